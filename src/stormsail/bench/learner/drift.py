"""`stormsail bench drift`: observation statistics that move between rollouts, or during them.

The market with hidden regimes is learned twice with each seed: with statistics that stay frozen
during a rollout (`between_rollouts`) and with statistics that take in every row as it comes
(`online`). Weights, bars and random streams are the same for both.
"""

import math
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from stormsail.algorithms.callbacks import Progress
from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.trainer import train
from stormsail.bench.processes import one_thread, side_by_side
from stormsail.bench.seeds import Seeds

Mode = Literal["between_rollouts", "online"]
MODES: tuple[Mode, ...] = ("between_rollouts", "online")

QUICKSTART: dict[str, Any] = {
    "task.data.world_bars": 8000,
    "task.market.episode_bars": 128,
    "ppo.n_steps": 64,
    "ppo.n_envs": 64,
    "ppo.n_epochs": 4,
    "ppo.batch_size": 16,
    "ppo.learning_rate": 1e-3,
    "validation.episodes": 128,
}
"""What `configs/quickstart.toml` sets that matters here."""

MEAN_DRIFT = "debug/vecnormalize_mean_drift"
STD_DRIFT = "debug/vecnormalize_std_drift"
BEFORE_RESET = "lstm/h_norm_pre_reset"
AFTER_RESET = "lstm/h_norm_post_reset"
SCORE = "validation/score"


@dataclass(frozen=True)
class Plan:
    """Size of the benchmark; the defaults are those of the full one."""

    seeds: int = 5
    updates: int = 49
    """As many as the 200,000 steps of the quickstart take."""
    settings: tuple[tuple[str, Any], ...] = ()
    """Further settings of a run, by path."""

    @classmethod
    def quick(cls) -> "Plan":
        """Return one that shows in seconds that everything runs, and nothing else."""
        small: dict[str, Any] = {
            "task.data.world_bars": 700,
            "task.data.world_symbols": 2,
            "task.market.features": (
                {"name": "log_return"},
                {"name": "realised_volatility", "parameters": {"window": 24}},
            ),
            "task.market.episode_bars": 12,
            "network.encoder_sizes": (6,),
            "network.lstm_hidden_size": 5,
            "network.head_sizes": (6,),
            "ppo.n_envs": 4,
            "ppo.n_steps": 16,
            "ppo.batch_size": 2,
            "ppo.n_epochs": 1,
            "validation.episodes": 4,
        }
        return cls(seeds=2, updates=4, settings=tuple(small.items()))

    def config(self, mode: Mode, seed: int) -> TrainConfig:
        """Return the settings of one run, which is evaluated once, at its end."""
        config = TrainConfig().replace(**{**QUICKSTART, **dict(self.settings)})
        rows = config.ppo.n_steps * config.ppo.n_envs
        return config.replace(
            **{
                "seed": seed,
                "observation.obs_stats_update": mode,
                "observation.warmup_steps": 0,  # drift is measured from empty statistics
                "ppo.total_steps": self.updates * rows,
                "checkpoint.every_updates": self.updates,
                "validation.every_updates": self.updates,
            }
        )


@dataclass(frozen=True)
class Outcome:
    """One run: a number for each update, NaN where there was nothing to measure."""

    mode: Mode
    seed: int
    mean_drift: tuple[float, ...]
    """Mean over scaled columns of |mu' - mu| / sigma, of one rollout."""
    std_drift: tuple[float, ...]
    """Mean over scaled columns of |log(sigma' / sigma)|."""
    norm_before: tuple[float, ...]
    """Length of the hidden state where an episode begins, before it is reset."""
    norm_after: tuple[float, ...]
    """The same after it."""
    score: float
    """Mean return of the judged policy's episodes on bars that training never saw, at the end."""


FIGURES = (
    "mean_drift_first",
    "mean_drift_last",
    "std_drift_first",
    "std_drift_last",
    "norm_before",
    "norm_after",
    "score",
)


@dataclass(frozen=True)
class Row:
    """Figures of one mode, or the difference of two on the same seeds."""

    name: str
    mean_drift_first: Seeds
    """Of the second rollout; before the first there were no statistics to drift from."""
    mean_drift_last: Seeds
    """Mean over the last quarter of the updates; so are the next ones."""
    std_drift_first: Seeds
    std_drift_last: Seeds
    norm_before: Seeds
    norm_after: Seeds
    score: Seeds


def run(plan: Plan, job: tuple[Mode, int]) -> Outcome:
    """Train once, in a folder that is gone afterwards."""
    mode, seed = job
    seen: list[dict[str, float]] = []

    def watch(progress: Progress) -> None:
        seen.append(dict(progress.metrics))

    with one_thread(), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        train(plan.config(mode, seed), out=path, on_progress=watch, tensorboard=False)

    def column(name: str) -> tuple[float, ...]:
        return tuple(metrics[name] for metrics in seen)

    return Outcome(
        mode,
        seed,
        mean_drift=column(MEAN_DRIFT),
        std_drift=column(STD_DRIFT),
        norm_before=column(BEFORE_RESET),
        norm_after=column(AFTER_RESET),
        score=seen[-1][SCORE],
    )


def compare(plan: Plan, *, jobs: int = 1, say: Callable[[str], None]) -> list[Outcome]:
    """Run both modes with every seed, in this process or in several that are started for it."""
    pairs = [(mode, seed) for seed in range(plan.seeds) for mode in MODES]
    return side_by_side(
        partial(run, plan),
        pairs,
        processes=jobs,
        say=lambda result: say(f"{result.mode}, seed {result.seed}: score {result.score:.4f}"),
    )


def figures(outcome: Outcome) -> dict[str, float]:
    """Return the numbers of one run that are averaged over seeds."""
    values = (
        outcome.mean_drift[1],
        late(outcome.mean_drift),
        outcome.std_drift[1],
        late(outcome.std_drift),
        late(outcome.norm_before),
        late(outcome.norm_after),
        outcome.score,
    )
    return dict(zip(FIGURES, values, strict=True))


def late(values: Sequence[float]) -> float:
    """Return the mean over the last quarter, at least one value, of what could be measured."""
    last = values[-max(1, len(values) // 4) :]
    known = [value for value in last if not math.isnan(value)]
    return statistics.fmean(known) if known else math.nan


def rows(outcomes: Sequence[Outcome]) -> list[Row]:
    """Return a row for each mode and one for the difference on the same seeds."""
    by_mode = {
        mode: {outcome.seed: figures(outcome) for outcome in outcomes if outcome.mode == mode}
        for mode in MODES
    }
    frozen, online = (by_mode[mode] for mode in MODES)
    differences = [
        {name: online[seed][name] - frozen[seed][name] for name in FIGURES}
        for seed in sorted(frozen)
    ]
    return [
        *(_row(mode, list(by_seed.values())) for mode, by_seed in by_mode.items()),
        _row("online less frozen", differences),
    ]


def _row(name: str, by_seed: Sequence[dict[str, float]]) -> Row:
    columns = ([values[figure] for values in by_seed] for figure in FIGURES)
    return Row(name, *(Seeds(column, spec="z.4f") for column in columns))
