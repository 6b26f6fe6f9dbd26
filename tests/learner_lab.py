"""A task that does exactly what a table says, and learners small enough to be replayed by hand.

Row t of a script holds the observation before step t and what step t gives. The step after an end
shows the first observation of a new episode and gives nothing, as `core.task` demands of every
task.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.algorithms.ppo import Ppo
from stormsail.algorithms.update import epochs, losses
from stormsail.core.generators import Generators
from stormsail.core.task import Actions, ContinuousActions, DiscreteActions, Step
from stormsail.functional import statistics
from stormsail.modules.agent import ActionSpec, Agent, AgentSpec

CLASSES = DiscreteActions(3)
NUMBERS = ContinuousActions((-1.0, 0.0), (1.0, 2.0))
FEATURES = ("a", "b", "c")

ENDS = (
    "................................",  # never ends: every rollout starts mid-episode
    ".......T...............T........",  # a rollout ends on a termination
    ".......U...............U........",  # on a time-out: the next begins with its row
    "......T.......U.......T.......U.",  # on the ignored row: the next begins anew
    "..T..U...T.U..T...T..U...T.U..T.",  # ends of both kinds in the middle
    "T.U.T.U.T.U.T.U.T.U.T.U.T.U.T.U.",  # every step that can end does
    "...T.......U.......T.......U....",  # a sequence of 4 begins with an ignored row
    "..T.......U.......T.......U.....",  # and with a fresh memory
)
"""One environment each: T terminates, U runs out of time, a point goes on."""


class Place(NamedTuple):
    """Where the environments of a script stand."""

    row: Tensor
    """int64 [B]."""


class Info(NamedTuple):
    sample_weight: Tensor
    price: Tensor
    """A column of the task's own."""


@dataclass(frozen=True, eq=False)
class Script:
    """What every step gives, [R, B]; after row R - 1 it begins again."""

    observation: Tensor
    """[R, B, F]."""
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    weight: Tensor


def script(ends=ENDS, *, seed=0, weights=(1.0,), rewards=None) -> Script:
    """Return a script with these ends and random numbers for the rest.

    Args:
        ends: one text per environment.
        seed: of observations and rewards.
        weights: sample weights of rows that count, taken in turn.
        rewards: [R, B] instead of random ones.
    """
    source = torch.Generator().manual_seed(seed)
    rows, batch = len(ends[0]), len(ends)
    terminated = torch.tensor([[column[t] == "T" for column in ends] for t in range(rows)])
    truncated = torch.tensor([[column[t] == "U" for column in ends] for t in range(rows)])
    ignored = (terminated | truncated).roll(1, 0)
    assert not bool((ignored & (terminated | truncated)).any()), "an ignored step ends nothing"
    weight = torch.tensor(weights).repeat(rows * batch)[: rows * batch].reshape(rows, batch)
    reward = torch.randn(rows, batch, generator=source) if rewards is None else rewards
    return Script(
        observation=2.0 + 3.0 * torch.randn(rows, batch, len(FEATURES), generator=source),
        reward=torch.where(ignored, 0.0, reward),
        terminated=terminated,
        truncated=truncated,
        weight=torch.where(ignored, 0.0, weight),
    )


class Scripted:
    """The task; actions change nothing."""

    def __init__(self, told: Script, actions: Actions = CLASSES) -> None:
        self.told, self.actions = told, actions
        self.batch = told.reward.shape[1]
        self.device, self.dtype = torch.device("cpu"), torch.float32
        self.observation_names = FEATURES
        self.observation_size = len(FEATURES)

    def reset(self, generator: torch.Generator) -> tuple[Place, Tensor]:
        del generator
        place = Place(torch.zeros(self.batch, dtype=torch.int64))
        return place, self._at(self.told.observation, place.row)

    def step(self, state: Place, action: Tensor, generator: torch.Generator) -> tuple[Place, Any]:
        del generator
        self.actions.check(action, batch=self.batch, dtype=self.dtype)
        now, after = state.row, (state.row + 1) % len(self.told.reward)
        return Place(after), Step(
            observation=self._at(self.told.observation, after),
            reward=self._at(self.told.reward, now),
            terminated=self._at(self.told.terminated, now),
            truncated=self._at(self.told.truncated, now),
            info=Info(self._at(self.told.weight, now), self._at(self.told.reward, now) * 7.0),
        )

    def _at(self, table: Tensor, row: Tensor) -> Tensor:
        return table[row, torch.arange(self.batch)]


SMALL: dict[str, Any] = {
    # what replays by hand assume; levels, rates and first layers have tests of their own
    "critic.levels": "uniform",
    "critic.learning_rate_factor": 1.0,
    "network.first_layer": "orthogonal",
    "network.encoder_sizes": (5,),
    "network.lstm_hidden_size": 4,
    "network.head_sizes": (5,),
    "critic.num_quantiles": 4,
    "critic.num_atoms": 7,
    "ppo.n_envs": len(ENDS),
    "ppo.n_steps": 8,
    "ppo.batch_size": len(ENDS),
    "ppo.n_epochs": 1,
    "ppo.learning_rate": 1e-2,
    "ppo.learning_rate_final": 1e-2,
    "optimizer.optimizer_class": "AdamW",
    "compile_update": False,  # compiled updates have tests of their own
    "observation.warmup_steps": 0,  # rows of the script are those of the updates
}
SCALAR = {"critic.kind": "scalar", "target.kind": "lambda_return"}
CRITICS: dict[str, dict[str, Any]] = {
    "quantile": {},
    "categorical": {"critic.kind": "categorical"},
    "scalar": SCALAR,
}
ACTIONS: dict[str, tuple[Actions, dict[str, Any]]] = {
    "categorical": (CLASSES, {}),
    "gaussian": (NUMBERS, {}),
    "beta": (NUMBERS, {"policy.distribution": "beta"}),
}


def settings(**changes: Any) -> TrainConfig:
    """Return a tiny configuration; a double underscore reaches into a section."""
    dotted = {name.replace("__", "."): value for name, value in changes.items()}
    return derive(TrainConfig().replace(**{**SMALL, **dotted}))


def learner(config=None, *, told=None, actions=CLASSES, seed=0) -> Ppo:
    """Return a learner of a scripted task."""
    config = config or settings()
    task = Scripted(told or script(), actions)
    generators = Generators(seed)
    normalised = config.observation.normalise
    spec = AgentSpec(
        observation_names=task.observation_names,
        unscaled=() if normalised else task.observation_names,
        actions=ActionSpec.of(task.actions),
        network=config.network,
        policy=config.policy,
        critic=config.critic,
    )
    return Ppo(task, Agent(spec, generators.stream("weights")), config, generators)


def aged(ppo: Ppo) -> Ppo:
    """Give a learner statistics and weights as after some training, so that nothing is 0 or 1."""
    agent, source = ppo.agent, torch.Generator().manual_seed(77)
    raw = 1.0 + 2.0 * torch.randn(50, len(FEATURES), generator=source)
    agent.observation_scale.commit(statistics.moments(raw))
    agent.return_scale.mean.fill_(0.7)
    agent.return_scale.std.fill_(1.9)
    with torch.no_grad():
        for parameter in agent.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=source))
    return ppo


def prepared(config=None, *, actions=CLASSES, weights=(1.0, 0.25, 0.5), shake=0.3):
    """Return a learner whose weights have moved since its batch was played, and that batch."""
    config = config or settings()
    ppo = aged(learner(config, told=script(weights=weights), actions=actions))
    kept = {}
    real = losses.batch_sums

    def watch(agent, batch, *rest, **named):
        kept.setdefault("batch", batch)
        return real(agent, batch, *rest, **named)

    epochs.batch_sums = watch
    try:
        ppo.update()
        kept.clear()
        ppo.update()
    finally:
        epochs.batch_sums = real
    source = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for parameter in ppo.agent.parameters():
            parameter.add_(shake * torch.randn(parameter.shape, generator=source))
    return ppo, kept["batch"]
