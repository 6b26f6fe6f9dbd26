"""Settings that were left open, derived from task, budget and kind of device, and nothing else.

Neither the machine's cores nor its memory nor its environment enters: the same configuration has
the same derived values everywhere. They are written into the run's `config.toml`, and a run that
goes on takes them from there; they are never derived again.
"""

import math
from typing import NamedTuple

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derivable import divisors, is_open
from stormsail.core.errors import ConfigError

_MARKET = "market"

_LEAST_UPDATES = 40
"""A small budget is cut into at least about this many updates: by fewer environments on the market,
whose returns take many bars, and by shorter rollouts."""

_LEAST_ENVS, _LEAST_ROWS = 16, 16
"""But not below these."""

_MINIBATCHES = 4
"""Minibatches of an epoch on the market: that many optimizer steps for a pass over a rollout."""

_SEQUENCE_ROWS, _MINIBATCH_SAMPLES = 32, 128
"""Rows of a sequence and samples of a minibatch of other tasks: what a step of the optimizer learns
from decides how fast a small task is learned (docs/evidence.md)."""

_THREADS = 1
"""A network of 64 units is not faster with two threads (docs/runs.md), and sums stay the same."""

_COMPILED_STEPS = 1_000_000
"""From which budget on a CPU compiles its updates: that of a run for which none is given. Compiling
takes 15 to 26 s of the processor the first time and 5 to 10 s later, and saves 33 to 115 s for each
million steps (docs/performance.md)."""

_BC_WARMUP_SHARE = 0.2
"""Share of the budget before the AWR coefficient falls; it falls for the rest."""


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
    "precision",
    "compile_update",
    "optimizer.compiled",
    "ppo.n_envs",
    "ppo.n_steps",
    "ppo.n_epochs",
    "ppo.sequence_length",
    "ppo.batch_size",
    "ppo.learning_rate",
    "ppo.advantage_scale",
    "risk.form",
    "critic.learning_rate_factor",
    "critic.levels",
    "network.first_layer",
    "entropy.ent_coef_decay_steps",
    "bc.bc_warmup_steps",
    "bc.bc_decay_steps",
)
"""Paths of all settings that may be left open."""

_CRITIC_RATES = {"quantile": 10.0, "categorical": 5.0, "scalar": 1.0}
"""Rate of the critics' heads over that of the other weights: a tail travels one bounded step at a
time (docs/evidence.md, tails)."""

_MOST_CRITIC_RATE = 1e-2
"""Largest rate of the heads themselves: beyond it their last steps leave too much noise."""

_ENTROPY_DECAY = "entropy.ent_coef_decay_steps"


def open_settings(config: TrainConfig) -> tuple[str, ...]:
    """Return the paths of the settings that are still to be derived."""
    missing = tuple(path for path in DERIVED if is_open(_value(config, path)))
    if config.entropy.ent_coef_plateau_window == 0:
        return missing
    # The decay begins at a plateau that nobody knows yet, and takes what is left of the run.
    return tuple(path for path in missing if path != _ENTROPY_DECAY)


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
    n_envs = _environments(config, sizes) if is_open(ppo.n_envs) else ppo.n_envs
    n_steps = _rows(config, n_envs, sizes.n_steps) if is_open(ppo.n_steps) else ppo.n_steps
    length = ppo.sequence_length or _sequence(config, n_steps)
    updates = math.ceil(ppo.total_steps / (n_envs * n_steps))
    warmup = ppo.total_steps * _BC_WARMUP_SHARE
    if not is_open(config.bc.bc_warmup_steps):
        warmup = config.bc.bc_warmup_steps
    values = {
        "threads": _THREADS,
        "precision": "float32" if config.device == "cpu" else "bf16",
        "compile_update": _compiles(config),
        "optimizer.compiled": config.device != "cpu" and config.fits_compiled_step,
        "ppo.n_envs": n_envs,
        "ppo.n_steps": n_steps,
        "ppo.n_epochs": sizes.n_epochs,
        "ppo.sequence_length": length,
        "ppo.batch_size": _batch_size(config, n_envs * n_steps // length, length),
        "ppo.learning_rate": _learning_rate(config, sizes.learning_rate),
        "critic.learning_rate_factor": _critic_rate(config, sizes.learning_rate),
        "critic.levels": "tail" if config.fits_tail_levels else "uniform",
        "network.first_layer": "spread",
        "risk.form": "critic" if config.risk.fits_critic else "budget",
        "ppo.advantage_scale": "slow" if config.slow_advantages else "rollout",
        _ENTROPY_DECAY: max(updates - 1, 1),  # at its end in the last update
        "bc.bc_warmup_steps": round(warmup),
        "bc.bc_decay_steps": max(ppo.total_steps - round(warmup), 0),
    }
    return config.replace(**{path: values[path] for path in DERIVED if path in missing})


def in_parts(config: TrainConfig, steps: int) -> TrainConfig:
    """Return the settings of a run that is begun anew after every so many steps.

    Each beginning compiles anew, so where it is left open that follows from a part, not from the
    budget.
    """
    if is_open(config.compile_update) and steps < _COMPILED_STEPS:
        return config.replace(compile_update=False)
    return config


def _sizes(config: TrainConfig) -> _Sizes:
    kind = "cuda" if config.device.partition(":")[0] == "cuda" else "cpu"
    return _SIZES[config.task.name == _MARKET, kind]


def _compiles(config: TrainConfig) -> bool:
    """Return whether a CPU compiles its updates: only float32 is compiled, and it must pay."""
    fits = config.device == "cpu" and (is_open(config.precision) or config.precision == "float32")
    return fits and config.ppo.total_steps >= _COMPILED_STEPS


def _environments(config: TrainConfig, sizes: _Sizes) -> int:
    """Return the environments: as usual, but fewer on the market where the budget is small."""
    count = sizes.n_envs
    rows = sizes.n_steps if is_open(config.ppo.n_steps) else config.ppo.n_steps
    if config.task.name == _MARKET:
        while count > _LEAST_ENVS and count * rows * _LEAST_UPDATES > config.ppo.total_steps:
            count //= 2
    return count


def _rows(config: TrainConfig, n_envs: int, usual: int) -> int:
    """Return the rows of a rollout: a power of two, and of whole sequences."""
    rows = usual
    while rows > _LEAST_ROWS and rows * n_envs * _LEAST_UPDATES > config.ppo.total_steps:
        rows //= 2
    length = config.ppo.sequence_length
    return rows if length is None else length * math.ceil(rows / length)


def _sequence(config: TrainConfig, n_steps: int) -> int:
    """Return the rows of a sequence: 32, or the largest number below that divides a rollout's.

    All rows on the market, whose hours belong together; and where `batch_size` is given, which then
    counts environments.
    """
    if config.task.name == _MARKET or not is_open(config.ppo.batch_size):
        return n_steps
    return max(rows for rows in range(1, _SEQUENCE_ROWS + 1) if n_steps % rows == 0)


def _batch_size(config: TrainConfig, sequences: int, length: int) -> int:
    """Return the sequences of a minibatch, which divide those of a rollout without a rest.

    On the market a quarter of them all, elsewhere as many as hold 128 samples; or the next larger
    number that fits.
    """
    wanted = sequences / _MINIBATCHES
    if config.task.name != _MARKET:
        wanted = min(_MINIBATCH_SAMPLES / length, wanted)
    least = max(wanted, config.ppo.microbatch_size or 1)
    fitting = (size for size in divisors(sequences) if size >= least)
    return next(fitting, sequences)


def _learning_rate(config: TrainConfig, usual: float) -> float:
    """Return the rate of this kind of task, within the given bounds."""
    least, most = config.ppo.optimizer_lr_min, config.ppo.optimizer_lr_max
    return max(least, usual if most is None else min(usual, most))


def _critic_rate(config: TrainConfig, usual: float) -> float:
    """Return the rate of the critics' heads over that of the other weights."""
    given = config.ppo.learning_rate
    rate = _learning_rate(config, usual) if is_open(given) else given
    return max(1.0, min(_CRITIC_RATES[config.critic.kind], _MOST_CRITIC_RATE / rate))


def _value(config: TrainConfig, path: str) -> object:
    value: object = config
    for name in path.split("."):
        value = getattr(value, name)
    return value
