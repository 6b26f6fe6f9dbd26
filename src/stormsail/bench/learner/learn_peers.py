"""PPO of stable-baselines3 and RecurrentPPO of sb3-contrib on the reference tasks.

Settings are those that rl-baselines3-zoo publishes for the task in `hyperparams/ppo.yml` and
`hyperparams/ppo_lstm.yml`; the environments are Gymnasium's. Neither library is needed to run the
package.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import gymnasium
import numpy as np

from stormsail.bench.learner.recall_env import RECALL

if TYPE_CHECKING:
    from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
    from stable_baselines3.common.vec_env import VecEnv

EVALUATION_SEED = 20_000
"""Of the episodes that evaluate a peer."""

_VELOCITIES = (1, 3)  # columns of CartPole's observation that the masked version shows as 0


@dataclass(frozen=True)
class Peer:
    """A learner of another library and its published settings for one task.

    Attributes:
        kind: class of the learner.
        environment: id in Gymnasium's registry.
        environments: side by side.
        settings: arguments of the class.
        linear: those of them that fall linearly to 0 over the run.
        normalised: whether observations and rewards are standardised.
        masked: whether velocities are hidden.
        steps: if not as many as ours takes.
    """

    kind: Literal["PPO", "RecurrentPPO"]
    environment: str
    environments: int
    settings: dict[str, Any] = field(hash=False)
    linear: tuple[str, ...] = ()
    normalised: bool = False
    masked: bool = False
    steps: int | None = None

    @property
    def name(self) -> str:
        """What the table calls it."""
        return f"{'sb3' if self.kind == 'PPO' else 'sb3-contrib'} {self.kind}"


class PeerResult(NamedTuple):
    """Result of one run."""

    score: float
    spread: float
    steps: int
    seconds: float


_CARTPOLE = {
    "n_steps": 32,
    "batch_size": 256,
    "gae_lambda": 0.8,
    "gamma": 0.98,
    "n_epochs": 20,
    "ent_coef": 0.0,
    "learning_rate": 0.001,
    "clip_range": 0.2,
}
_ACROBOT = {"n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0}
_FALLING = ("learning_rate", "clip_range")

PEERS: dict[str, tuple[Peer, ...]] = {
    "cartpole": (Peer("PPO", "CartPole-v1", 8, _CARTPOLE, _FALLING),),
    "cartpole-masked": (Peer("RecurrentPPO", "CartPole-v1", 8, _CARTPOLE, _FALLING, masked=True),),
    "acrobot": (
        Peer("PPO", "Acrobot-v1", 16, _ACROBOT, normalised=True),
        Peer("RecurrentPPO", "Acrobot-v1", 16, _ACROBOT, normalised=True),
    ),
    "pendulum": (
        Peer(
            "PPO",
            "Pendulum-v1",
            4,
            {
                "n_steps": 1024,
                "gae_lambda": 0.95,
                "gamma": 0.9,
                "n_epochs": 10,
                "ent_coef": 0.0,
                "learning_rate": 0.001,
                "clip_range": 0.2,
                "use_sde": True,
                "sde_sample_freq": 4,
            },
        ),
    ),
    "mountaincar-continuous": (
        Peer(
            "PPO",
            "MountainCarContinuous-v0",
            1,
            {
                "batch_size": 256,
                "n_steps": 8,
                "gamma": 0.9999,
                "learning_rate": 7.77e-05,
                "ent_coef": 0.00429,
                "clip_range": 0.1,
                "n_epochs": 10,
                "gae_lambda": 0.9,
                "max_grad_norm": 5,
                "vf_coef": 0.19,
                "use_sde": True,
                "policy_kwargs": {"log_std_init": -3.29, "ortho_init": False},
            },
            normalised=True,
            steps=20_000,  # published; with updates every 8 steps ours would take it hours
        ),
    ),
}
"""Peers by the name of the reference task."""

_MOUNTAIN_CAR = {"n_steps": 16, "gae_lambda": 0.98, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0}
_LUNAR_LANDER = {
    "n_steps": 1024,
    "batch_size": 64,
    "gae_lambda": 0.98,
    "gamma": 0.999,
    "n_epochs": 4,
    "ent_coef": 0.01,
}

BARE_PEERS: dict[str, tuple[Peer, ...]] = {
    "CartPole-v1": PEERS["cartpole"],
    "Acrobot-v1": PEERS["acrobot"][:1],
    "Pendulum-v1": PEERS["pendulum"],
    "MountainCar-v0": (Peer("PPO", "MountainCar-v0", 16, _MOUNTAIN_CAR, normalised=True),),
    "MountainCarContinuous-v0": PEERS["mountaincar-continuous"],
    # Published for version 2, which Gymnasium no longer has.
    "LunarLander-v3": (Peer("PPO", "LunarLander-v3", 16, _LUNAR_LANDER),),
    # Our own, so nothing is published: the defaults of the library.
    "Recall-v0": (Peer("RecurrentPPO", RECALL, 8, {}),),
}
"""Peers by the id of the environment, beside bare tasks.

Read in commit 00128b5d46d4 of rl-baselines3-zoo, `hyperparams/ppo.yml`."""


def missing() -> list[str]:
    """Return the libraries that are not installed."""
    absent = []
    try:
        import stable_baselines3  # noqa: F401
    except ImportError:
        absent.append("stable-baselines3")
    try:
        import sb3_contrib  # noqa: F401
    except ImportError:
        absent.append("sb3-contrib")
    return absent


def run(peer: Peer, *, steps: int, seed: int, episodes: int) -> PeerResult:
    """Train a peer and evaluate its last agent by greedy episodes with rewards as they are."""
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize

    environments = _environments(peer, peer.environments, seed=seed)
    if peer.normalised:
        environments = VecNormalize(environments, gamma=peer.settings["gamma"])
    learner = _learner(peer, environments, seed=seed)
    started = time.perf_counter()
    learner.learn(steps)
    seconds = time.perf_counter() - started
    evaluated = _environments(peer, min(episodes, 16), seed=EVALUATION_SEED)
    if isinstance(environments, VecNormalize):
        evaluated = VecNormalize(evaluated, training=False, norm_reward=False)
        evaluated.obs_rms = environments.obs_rms
    returns, _ = evaluate_policy(
        learner, evaluated, episodes, deterministic=True, return_episode_rewards=True, warn=False
    )
    scores = np.asarray(returns, dtype=np.float64)
    spread = float(scores.std(ddof=1)) if len(scores) > 1 else 0.0
    return PeerResult(float(scores.mean()), spread, int(learner.num_timesteps), seconds)


def _environments(peer: Peer, count: int, *, seed: int) -> "VecEnv":
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    def make() -> gymnasium.Env[Any, Any]:
        made = gymnasium.make(peer.environment)
        return Monitor(_masked(made) if peer.masked else made)

    environments = DummyVecEnv([make] * count)
    environments.seed(seed)
    return environments


def _masked(environment: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Show velocities as 0, as the zoo's mask and ours do."""
    seen = np.ones(environment.observation_space.shape or (), dtype=np.float32)
    seen[list(_VELOCITIES)] = 0.0
    return gymnasium.wrappers.TransformObservation(
        environment, lambda shown: shown * seen, environment.observation_space
    )


def _learner(peer: Peer, environments: "VecEnv", *, seed: int) -> "OnPolicyAlgorithm":
    settings = dict(peer.settings)
    for name in peer.linear:
        settings[name] = _falling(settings[name])
    if peer.kind == "PPO":
        from stable_baselines3 import PPO

        return PPO("MlpPolicy", environments, seed=seed, device="cpu", **settings)
    from sb3_contrib import RecurrentPPO

    return RecurrentPPO("MlpLstmPolicy", environments, seed=seed, device="cpu", **settings)


def _falling(start: float) -> Callable[[float], float]:
    return lambda left: start * left
