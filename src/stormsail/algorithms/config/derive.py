"""Settings that were left open, derived from task, budget and kind of device, and nothing else.

Neither the machine's cores nor its memory nor its environment enters: the same configuration has
the same derived values everywhere. They are written into the run's `config.toml`, and a run that
goes on takes them from there; they are never derived again.
"""

import math
from typing import NamedTuple

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derivable import is_open
from stormsail.core.errors import ConfigError

_MARKET = "market"

_LEAST_UPDATES = 40
"""A small budget is cut into at least about this many updates, by shorter rollouts."""

_LEAST_ROWS = 16
"""But no rollout is shorter."""

_MINIBATCHES = 4
"""Minibatches of an epoch: that many steps of the optimizer for each pass over a rollout."""

_THREADS = 1
"""A network of 64 units is not faster with two threads (docs/runs.md), and sums stay the same."""

_BC_WARMUP_SHARE, _BC_DECAY_SHARE = 0.2, 0.8
"""Shares of the budget before the AWR coefficient falls, and of its fall."""


class _Sizes(NamedTuple):
    """Rollout and step size for a kind of task and device."""

    n_envs: int
    n_steps: int
    n_epochs: int
    learning_rate: float


_SIZES = {
    # Returns of bars are nearly noise: many environments average it, and steps are small.
    (True, "cpu"): _Sizes(64, 128, 4, 3e-4),
    # A GPU takes 1,024 environments in about the time of 64.
    (True, "cuda"): _Sizes(1024, 128, 4, 3e-4),
    # Control tasks have clear rewards: more updates of fewer samples, and larger steps.
    (False, "cpu"): _Sizes(16, 128, 4, 1e-3),
    (False, "cuda"): _Sizes(16, 128, 4, 1e-3),
}
"""By whether the task is the market, and the kind of device."""

DERIVED = (
    "threads",
    "ppo.n_envs",
    "ppo.n_steps",
    "ppo.n_epochs",
    "ppo.batch_size",
    "ppo.learning_rate",
    "entropy.ent_coef_decay_steps",
    "bc.bc_warmup_steps",
    "bc.bc_decay_steps",
)
"""Paths of all settings that may be left open."""


def open_settings(config: TrainConfig) -> tuple[str, ...]:
    """Return the paths of the settings that are still to be derived."""
    return tuple(path for path in DERIVED if is_open(_value(config, path)))


def require_derived(config: TrainConfig) -> None:
    """Refuse a configuration with open settings.

    Raises:
        ConfigError: if a setting is open; it names them all.
    """
    missing = open_settings(config)
    if missing:
        raise ConfigError(
            "config-value",
            wrong=f"{', '.join(f'`{path}`' for path in missing)} must have a value before anything "
            "is computed",
            found="nothing",
            remedy="Pass `derive(config)` from `stormsail.algorithms.config.derive`; `train` does "
            "it itself.",
        )


def derive(config: TrainConfig) -> TrainConfig:
    """Return the configuration with every open setting filled in; given ones stay as they are.

    Raises:
        ConfigError: if the given settings do not fit the derived ones.
    """
    missing = set(open_settings(config))
    if not missing:
        return config
    ppo = config.ppo
    sizes = _sizes(config)
    n_envs = sizes.n_envs if is_open(ppo.n_envs) else ppo.n_envs
    n_steps = _rows(config, n_envs, sizes.n_steps) if is_open(ppo.n_steps) else ppo.n_steps
    updates = math.ceil(ppo.total_steps / (n_envs * n_steps))
    values = {
        "threads": _THREADS,
        "ppo.n_envs": n_envs,
        "ppo.n_steps": n_steps,
        "ppo.n_epochs": sizes.n_epochs,
        "ppo.batch_size": _batch_size(config, n_envs, n_steps),
        "ppo.learning_rate": _learning_rate(config, sizes.learning_rate),
        "entropy.ent_coef_decay_steps": updates,
        "bc.bc_warmup_steps": round(_BC_WARMUP_SHARE * ppo.total_steps),
        "bc.bc_decay_steps": round(_BC_DECAY_SHARE * ppo.total_steps),
    }
    return config.replace(**{path: values[path] for path in DERIVED if path in missing})


def _sizes(config: TrainConfig) -> _Sizes:
    kind = "cuda" if config.device.partition(":")[0] == "cuda" else "cpu"
    return _SIZES[config.task.name == _MARKET, kind]


def _rows(config: TrainConfig, n_envs: int, usual: int) -> int:
    """Return the rows of a rollout: a power of two, and of whole sequences."""
    rows = usual
    while rows > _LEAST_ROWS and rows * n_envs * _LEAST_UPDATES > config.ppo.total_steps:
        rows //= 2
    length = config.ppo.sequence_length
    return rows if length is None else length * math.ceil(rows / length)


def _batch_size(config: TrainConfig, n_envs: int, n_steps: int) -> int:
    """Return the sequences of a minibatch: a quarter, or the next larger equal part of them all."""
    sequences = n_envs * n_steps // (config.ppo.sequence_length or n_steps)
    least = config.ppo.microbatch_size or 1
    parts = range(_MINIBATCHES, 1, -1)
    fitting = (n for n in parts if sequences % n == 0 and sequences // n >= least)
    return sequences // next(fitting, 1)


def _learning_rate(config: TrainConfig, usual: float) -> float:
    """Return the rate of this kind of task, within the given bounds."""
    least, most = config.ppo.optimizer_lr_min, config.ppo.optimizer_lr_max
    return max(least, usual if most is None else min(usual, most))


def _value(config: TrainConfig, path: str) -> object:
    value: object = config
    for name in path.split("."):
        value = getattr(value, name)
    return value
