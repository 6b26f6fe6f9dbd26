"""Settings around the learner: task and data, checkpoints, evaluation during training."""

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from stormsail.algorithms.config.learning import Count, Whole
from stormsail.algorithms.config.risk import RiskConfig
from stormsail.core.config import Config, toml
from stormsail.core.config.conversions import Time
from stormsail.core.config.problems import ContradictionError
from stormsail.market.simulator.config import MarketConfig

EvaluatedPolicy = Literal["sampled", "greedy", "both"]
"""Policies that an evaluation plays: actions drawn as in training, the likeliest ones, or both."""

_ROUNDING = 1e-9
"""Relative slack before rounding up: a quotient may be a rounding error above a whole number."""


WORLD_SETTINGS = ("world", "world_parameters")
"""Settings of `DataConfig` that choose a synthetic world; its sizes only wait for one."""


class DataConfig(Config):
    """Bars to train on: a store, or a synthetic world."""

    store: str | None = None
    """Folder of a store that `stormsail import`, `fetch` or `synth` wrote; None draws `world`."""

    symbols: tuple[str, ...] = ()
    """Symbols of the store to trade; empty takes all that it has at this interval."""

    interval: str = "1h"
    """Length of a bar."""

    world: str = "regime"
    """Synthetic world that is drawn where no store is given."""

    world_bars: Count = 20_000
    """Bars of each symbol of that world."""

    world_symbols: Count = 4
    """Symbols of that world."""

    world_seed: Whole = 0
    """Seed of that world; the same world for every seed of training."""

    world_parameters: dict[str, float] = Field(default_factory=dict)
    """Settings of that world that differ from its defaults."""

    start: Time = None
    """Open time of the first bar of the run, with its time zone; None takes the first there is.
    Earlier bars are not used at all, not even to warm up a feature."""

    end: Time = None
    """Open time of the first bar behind the run; None takes all."""

    without: tuple[tuple[Time, Time], ...] = ()
    """Spans between the two, each by its start and its end, of which the run learns nothing:
    neither an episode nor a feature, scaler or evaluation reads a bar of them. Combinatorial
    cross-validation sets it."""

    validation_share: Annotated[float, Field(gt=0.0, lt=0.9)] = 0.2
    """Share of the bars, the last ones, that is not trained on; evaluations on it choose the best
    agent."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        """Refuse settings of a world beside a store, which would be ignored."""
        fields = type(self).model_fields
        given = [
            name
            for name in WORLD_SETTINGS
            if getattr(self, name) != fields[name].get_default(call_default_factory=True)
        ]
        if self.store is not None and given:
            raise ContradictionError(
                "a store and a world must not both be given: bars come from one of them",
                found=f"`store` {toml.shown(self.store)} beside "
                + ", ".join(f"`{name}` {toml.shown(getattr(self, name))}" for name in given),
                remedy="Leave `store` out to draw the world, or remove "
                f"{', '.join(f'`{name}`' for name in given)} to read the store.",
            )
        return self

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise ValueError(f"`start` must be before `end`, not {self.start} and {self.end}")
        for first, last in self.without:
            if first is None or last is None or first >= last:
                raise ValueError(f"`without` must hold starts before ends, not {first} and {last}")
        return self


class TaskConfig(Config):
    """Task: the market with its data and rules, or a control task."""

    name: str = "market"
    """`market`, a classic task such as `CartPole-v1` or `CartPoleNoVel-v1`, or `gym:<id>`."""

    data: DataConfig = DataConfig()
    """Bars of the market."""

    market: MarketConfig = MarketConfig()
    """Rules of the market."""

    vectorization: Literal["sync", "async"] = "sync"
    """Whether `gym:` tasks step one after the other in this process, or each in a process of its
    own; the results are the same. Evaluations are always `sync`."""

    compile_step: bool = False
    """Compile the simulator's step; worth it for long runs where a compiler is found."""


class CheckpointConfig(Config):
    """Checkpoints of a run."""

    every_updates: Count = 10
    """Updates between two checkpoints."""

    keep_last: Count = 3
    """Newest checkpoints that are kept."""

    keep_every_updates: Count | None = None
    """Also keep each one at a multiple of this."""

    disk_limit_mb: Count | None = None
    """Refuse to write when a run would become larger."""


class ValidationConfig(Config):
    """Evaluation of the agent during training; the best one is kept."""

    every_updates: Whole = 20
    """Updates between two evaluations; 0 switches them off."""

    episodes: Count = 64
    """Episodes of one evaluation of a policy; under a limit on the tail of episodes enough of them
    for `risk.cvar_min_tail_samples` in it."""

    policy: EvaluatedPolicy = "both"
    """Policy that is evaluated and judged: `greedy` takes the likeliest action, `sampled` draws as
    in training. `both` evaluates both from the same starts, which costs twice as much, and judges
    `greedy` unless it is significantly worse (paired test at 5 %; it takes 5 episodes or more). The
    agent's file names the judged one, and backtests use it."""

    def check_tail(self, risk: RiskConfig) -> None:
        """Refuse evaluations with too few episodes to tell whether the limit is kept.

        Raises:
            ValueError: if `episodes` times alpha is less than `risk.cvar_min_tail_samples`.
        """
        if risk.episode_limit is None or self.every_updates == 0:
            return
        least = math.ceil(risk.cvar_min_tail_samples / risk.cvar_alpha * (1.0 - _ROUNDING))
        if self.episodes < least:
            raise ValueError(
                f"`validation.episodes` must be at least {least} where `risk.cvar_use_constraint` "
                f"is true, so that {risk.cvar_min_tail_samples} of them are in a tail of "
                f"{risk.cvar_alpha} and the agent that is kept can be held to the limit, not "
                f"{self.episodes}; or set `validation.every_updates` to 0"
            )
