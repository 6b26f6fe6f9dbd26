"""`stormsail bench train`: environment steps a second, beside sb3-contrib's RecurrentPPO.

Both learn CartPole-v1 in this process with the same threads, environments, rows, epochs, samples of
a minibatch and learning rate, in turns. Neither is given what it does not do by itself: ours scales
observations, has an encoder in front of the memory and computes its metrics, the peer does not.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.algorithms.ppo import Ppo, Update
from stormsail.algorithms.run.tasks import agent_spec, make_task
from stormsail.algorithms.telemetry.metrics import metrics
from stormsail.algorithms.update.losses import Batch
from stormsail.algorithms.update.rollout import EnvState, Rollout
from stormsail.core.errors import RangeError
from stormsail.core.generators import Generators
from stormsail.modules.agent import Agent

TASK = "CartPole-v1"
PARTS = ("rollout", "estimates", "epochs", "metrics")
"""Of one update of ours: rollout, all between rollout and learning, learning, reporting."""

LEARNING_RATE = 3e-4
HEAD = 64
"""Width of the one layer between memory and outputs, of actor and critic each."""

NOT_INSTALLED = "sb3-contrib is not installed: pip install stable-baselines3 sb3-contrib"

_NEVER = 10**9
_PLAIN: dict[str, Any] = {
    "network": {"encoder_sizes": []},
    "critic": {"kind": "scalar", "use_twin_critics": False},
    "target": {"kind": "lambda_return"},
    "optimizer": {"optimizer_class": "AdamW"},
}
"""Settings that make ours like the peer: no encoder, one critic of the mean, Adam."""


@dataclass(frozen=True)
class Sizes:
    """Sizes that both sides have in common."""

    environments: int = 16
    steps: int = 128
    epochs: int = 4
    minibatches: int = 4
    """Of one epoch; they divide the environments."""

    @property
    def samples(self) -> int:
        """Environment steps of one update."""
        return self.environments * self.steps


SIZES = Sizes()


@dataclass(frozen=True)
class Row:
    """One way to learn."""

    width: int
    """Of the LSTM."""
    way: str
    rates: tuple[float, ...]
    """Environment steps a second, of each round."""
    milliseconds: Mapping[str, float] = field(default_factory=dict)
    """Of each of `PARTS` in one update; empty for a peer."""

    @property
    def rate(self) -> float:
        """The median round."""
        return statistics.median(self.rates)

    @property
    def is_peer(self) -> bool:
        """Whether this is not ours."""
        return not self.milliseconds


class Learner(Protocol):
    """A learner that is timed."""

    def __call__(self, updates: int) -> None:
        """Do some updates: rollout and learning."""


class Timed(Ppo):
    """The learner with a clock between the parts of its update."""

    stamps: list[float]

    def update(self) -> Update:
        """Do one update; leaves the times between its parts in `stamps`."""
        self.stamps = []
        self._warm_up()  # once in a run, so no part of an update
        self._stamp()
        return super().update()

    def _collect(self) -> tuple[EnvState, Rollout]:
        collected = super()._collect()
        self._stamp()
        return collected

    def _batch(self, *parts: Any) -> Batch:  # noqa: ANN401 - whatever the learner passes on
        batch = super()._batch(*parts)
        self._stamp()
        return batch

    def _finish(self, done: Update) -> None:
        super()._finish(done)
        self._stamp()

    def _stamp(self) -> None:
        self.stamps.append(_now(self.task.device))


class Ours:
    """Our trainer without files: updates and their metrics."""

    def __init__(self, overrides: Mapping[str, Any]) -> None:
        config = derive(TrainConfig.from_mapping(overrides))
        generators = Generators(config.seed, device=config.device)
        task = make_task(config, batch=config.ppo.n_envs)
        agent = Agent(agent_spec(config, task), Generators(config.seed).stream("weights"))
        self.ppo = Timed(task, agent.to(config.device), config, generators)
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.updates = 0

    def __call__(self, updates: int) -> None:
        """Do some updates."""
        for _ in range(updates):
            metrics(self.ppo, self.ppo.update())
            stamps = [*self.ppo.stamps, _now(self.ppo.task.device)]
            for part, began, ended in zip(PARTS, stamps, stamps[1:], strict=False):
                self.seconds[part] += ended - began
        self.updates += updates

    def forget(self) -> None:
        """Begin counting anew."""
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.updates = 0

    def milliseconds(self) -> dict[str, float]:
        """Return the mean time of each part of an update."""
        return {part: 1e3 * spent / self.updates for part, spent in self.seconds.items()}


class Peer:
    """RecurrentPPO of sb3-contrib on its usual vector of Gymnasium environments.

    Args:
        sizes: as ours.
        width: of the LSTM.
        shared: one LSTM for actor and critic, as ours, instead of one each.
        device: where it learns.
        seed: of all.

    Raises:
        ImportError: if it is not installed.
    """

    def __init__(self, sizes: Sizes, width: int, *, shared: bool, device: str, seed: int) -> None:
        import gymnasium
        from sb3_contrib import RecurrentPPO
        from stable_baselines3.common.vec_env import DummyVecEnv

        self.samples = sizes.samples
        self.model = RecurrentPPO(
            "MlpLstmPolicy",
            DummyVecEnv([partial(gymnasium.make, TASK) for _ in range(sizes.environments)]),
            learning_rate=LEARNING_RATE,
            n_steps=sizes.steps,
            batch_size=sizes.samples // sizes.minibatches,
            n_epochs=sizes.epochs,
            policy_kwargs={
                "lstm_hidden_size": width,
                "net_arch": {"pi": [HEAD], "vf": [HEAD]},
                "shared_lstm": shared,
                "enable_critic_lstm": not shared,
            },
            seed=seed,
            device=device,
        )

    def __call__(self, updates: int) -> None:
        """Do some updates; `learn` counts on from where it stood."""
        total = updates * self.samples
        self.model.learn(total, reset_num_timesteps=False, log_interval=_NEVER)


def overrides(sizes: Sizes, width: int, *, task: str, plain: bool, device: str, seed: int) -> Any:  # noqa: ANN401 - a document
    """Return the settings of ours that differ from the defaults."""
    chosen = dict(_PLAIN) if plain else {}
    network = {"lstm_hidden_size": width, "head_sizes": [HEAD], **chosen.pop("network", {})}
    return {
        "task": {"name": task},
        "ppo": {
            "n_envs": sizes.environments,
            "n_steps": sizes.steps,
            "n_epochs": sizes.epochs,
            "batch_size": sizes.environments // sizes.minibatches,
            "learning_rate": LEARNING_RATE,
        },
        "network": network,
        "kl": {"target_kl": None},  # no epoch is left out
        "device": device,
        "seed": seed,
        **chosen,
    }


def ways(sizes: Sizes, width: int, *, device: str, seed: int) -> dict[str, Callable[[], Learner]]:
    """Return each way's name and what makes it."""
    common: dict[str, Any] = {"device": device, "seed": seed}

    def ours(task: str, *, plain: bool) -> Learner:
        return Ours(overrides(sizes, width, task=task, plain=plain, **common))

    return {
        "sb3-contrib, its defaults, two LSTMs": partial(Peer, sizes, width, shared=False, **common),
        "sb3-contrib, one LSTM": partial(Peer, sizes, width, shared=True, **common),
        "ours, its defaults": partial(ours, TASK, plain=False),
        "ours, its defaults, Gymnasium": partial(ours, f"gym:{TASK}", plain=False),
        "ours, one scalar critic, AdamW": partial(ours, TASK, plain=True),
        "ours, one scalar critic, AdamW, Gymnasium": partial(ours, f"gym:{TASK}", plain=True),
    }


def compare(
    width: int,
    *,
    sizes: Sizes = SIZES,
    updates: int = 2,
    rounds: int = 5,
    device: str = "cpu",
    seed: int = 0,
) -> list[Row]:
    """Return the speed of every way that can run here, each measured once a round.

    All take turns, so that a slow minute of the machine falls on all of them. The first update of
    each is not counted.

    Raises:
        RangeError: if the minibatches do not divide the environments.
    """
    _check(sizes)
    learners: dict[str, Learner] = {}
    for name, make in ways(sizes, width, device=device, seed=seed).items():
        try:
            learners[name] = make()
        except ImportError:  # without the peer, ours is measured alone
            continue
    for learner in learners.values():
        learner(1)
        if isinstance(learner, Ours):
            learner.forget()
    rates: dict[str, list[float]] = {name: [] for name in learners}
    for _ in range(rounds):
        for name, learner in learners.items():
            began = _now(torch.device(device))
            learner(updates)
            rates[name].append(updates * sizes.samples / (_now(torch.device(device)) - began))
    return [
        Row(
            width,
            name,
            tuple(rates[name]),
            learner.milliseconds() if isinstance(learner, Ours) else {},
        )
        for name, learner in learners.items()
    ]


def ratios(rows: list[Row]) -> list[float | None]:
    """Return how many times the fastest peer of the same width each row is; None without one."""
    fastest: dict[int, float] = {}
    for row in rows:
        if row.is_peer:
            fastest[row.width] = max(row.rate, fastest.get(row.width, 0.0))
    return [row.rate / fastest[row.width] if row.width in fastest else None for row in rows]


def _check(sizes: Sizes) -> None:
    if sizes.environments % sizes.minibatches:
        raise RangeError(
            wrong="`--minibatches` must divide `--environments`, so that both sides learn from "
            "equal ones",
            found=f"{sizes.minibatches} minibatches of {sizes.environments} environments",
            remedy="Choose for example 4 of 16.",
        )


def _now(device: torch.device) -> float:
    """Return the time once the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
