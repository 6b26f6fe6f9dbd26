"""Configuration of a population and of a search: rules, and the settings that are searched.

They stand in the sections `population` and `search` of the configuration of a training, whose other
sections hold what all members or trials have in common.
"""

import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from stormsail.algorithms.config import TrainConfig, Whole
from stormsail.algorithms.population.jobs import Value
from stormsail.algorithms.run.plugins import MANIFEST, load_saved
from stormsail.core.config import Config
from stormsail.core.config.problems import ContradictionError
from stormsail.core.errors import ConfigError, nearest

LEARNING_RATE = "ppo.learning_rate"

RESAMPLE = 0.25
"""Probability of drawing anew where none is set."""


class SearchedSetting(Config):
    """One searched setting: a range of numbers, or a list of values."""

    min: float | None = None
    """Least value of a range."""

    max: float | None = None
    """Largest value of a range."""

    values: tuple[bool | int | float | str, ...] | None = None
    """Values in place of a range, in an order in which neighbours are alike."""

    is_log_scale: bool = False
    """Whether values are drawn so that every factor, not every distance, is equally likely."""

    @model_validator(mode="after")
    def _range_or_list(self) -> Self:
        is_range = self.min is not None and self.max is not None
        if is_range == (self.values is not None) or (
            self.values is not None and (self.min, self.max) != (None, None)
        ):
            raise ValueError("must have either `min` and `max`, or `values`")
        if self.values is not None:
            if not self.values or len(set(self.values)) < len(self.values):
                raise ValueError(f"`values` must hold different values, not {list(self.values)}")
            if self.is_log_scale:
                raise ValueError("`is_log_scale` must be left out where there are `values`")
            return self
        if self.low >= self.high:
            raise ValueError(f"`min` must be below `max`, not {self.min} and {self.max}")
        if self.is_log_scale and self.low <= 0.0:
            raise ValueError(f"`min` must be above 0 on a log scale, not {self.min}")
        return self

    @property
    def low(self) -> float:
        """Least value of a range."""
        return 0.0 if self.min is None else self.min

    @property
    def high(self) -> float:
        """Largest value of a range."""
        return 0.0 if self.max is None else self.max


class SearchConfig(SearchedSetting):
    """One setting that a population searches: its range or values, and how a copy moves it."""

    perturbation_factor: Annotated[float, Field(gt=1.0)] = 1.2
    """A copy takes the value of the member it copies times or over this; a value of a list moves to
    a neighbour instead."""

    resample_probability: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    """Probability that a copy draws the value anew instead, for `explore_method` `both`; None takes
    0.25."""


class PopulationConfig(Config):
    """A population of members that train side by side and copy each other."""

    population_size: Annotated[int, Field(ge=2, le=10_000)] = 8
    """P, members."""

    perturbation_interval: Annotated[int, Field(ge=1)] = 10
    """Updates of a round; after each one members are compared."""

    exploit_method: Literal["truncation", "binary_tournament"] = "truncation"
    """Who copies whom: the worst share one of the best share, or everybody a better opponent drawn
    at random."""

    explore_method: Literal["perturb", "resample", "both"] = "both"
    """How a copy changes the values: times or over a factor, drawn anew, or either."""

    truncation_ratio: Annotated[float, Field(gt=0.0, le=0.5)] = 0.25
    """Share of the members that is copied over, rounded down, but at least one."""

    metric_mode: Literal["max", "min"] = "max"
    """Whether a large or a small fitness is the better one."""

    ready_percentage: Annotated[float, Field(gt=0.0, le=1.0)] = 0.75
    """Share of the members whose fitness must be known before anybody copies; those that kept
    diverging do not count, since waiting would not help them."""

    optimizer_exploit_strategy: Literal["reset", "copy"] = "reset"
    """Optimizer of a copy: a fresh one, or with the state of the copied member's."""

    fitness_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.5
    """Weight of the rounds before in the fitness by which members are compared."""

    seed: Whole = 0
    """Of first values, copies, new values and evaluations; members train with seeds of their own,
    the configuration's `seed` plus their number."""

    search: dict[str, SearchConfig] = Field(default_factory=dict)
    """Searched settings by path, such as `[population.search."ppo.learning_rate"]`."""

    @model_validator(mode="after")
    def _known_paths(self) -> Self:
        for path in self.search:
            check_path(path)
        given = [
            path for path, search in self.search.items() if search.resample_probability is not None
        ]
        if given and self.explore_method != "both":
            raise ValueError(
                f"`search.{given[0]}.resample_probability` must be left out where `explore_method` "
                f"is `{self.explore_method}`, which draws "
                + ("never" if self.explore_method == "perturb" else "always")
            )
        if self.exploit_method != "truncation" and "truncation_ratio" in self.model_fields_set:
            plain = type(self).model_fields["truncation_ratio"].default
            if self.truncation_ratio != plain:
                raise ValueError(
                    "`truncation_ratio` must be left out where `exploit_method` is "
                    f"`{self.exploit_method}`, which has no share"
                )
        return self

    def resample_probability(self, path: str) -> float:
        """Return the probability with which a copy draws a setting anew."""
        if self.explore_method != "both":
            return 0.0 if self.explore_method == "perturb" else 1.0
        given = self.search[path].resample_probability
        return RESAMPLE if given is None else given


class SweepConfig(Config):
    """A search: independent trainings with other values, proposed by TPE and pruned by ASHA."""

    over: dict[str, SearchedSetting] = Field(default_factory=dict)
    """Searched settings by path, such as `[search.over."ppo.learning_rate"]`; `--over` adds one."""

    startup_trials: Whole = 10
    """Trials whose values are drawn at random, before the tree-structured Parzen estimator (TPE)
    proposes them."""

    reduction_factor: Annotated[int, Field(ge=2)] = 3
    """Of the trials that were scored at a rung, one in this many trains on; the next rung is this
    many times as far."""

    rungs: Annotated[int, Field(ge=0, le=20)] = 2
    """Scores of a trial before its end, after each of which it may be pruned; 0 prunes nobody."""

    metric_mode: Literal["max", "min"] = "max"
    """Whether a large or a small fitness is the better one."""

    fitness_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.5
    """Weight of the rungs before in the fitness by which trials are compared."""

    seed: Whole = 0
    """Of proposed values and of evaluations; all trials train with the configuration's `seed`."""

    @model_validator(mode="after")
    def _known_paths(self) -> Self:
        for path in self.over:
            check_path(path)
        return self


_OTHERS = {"population", "search"}
"""Sections of a configuration file that a plain training leaves out."""


def _sets_something(settings: Mapping[str, object]) -> bool:
    """Return whether any setting has a value; a section without one sets nothing."""
    return any(
        _sets_something(value) if isinstance(value, Mapping) and value else value != {}
        for value in settings.values()
    )


class RunFile(TrainConfig):
    """A configuration file: of a training, and of a population or a search in sections of them."""

    population: PopulationConfig | None = None
    """Population of members with these settings; a plain training leaves it out."""

    search: SweepConfig | None = None
    """Search over settings; a plain training leaves it out."""

    @classmethod
    def load(cls, path: Path | str, overrides: Iterable[str] = ()) -> Self:
        """Return the configuration of a file that sets something of a training, with overrides.

        Raises:
            ConfigError: if it cannot be read, does not fit, or sets nothing: defaults alone would
                train a million steps on a synthetic market, which nobody means by an empty file.
        """
        config = super().load(path, overrides)
        if not _sets_something(config.model_dump(exclude_unset=True, exclude=_OTHERS)):
            raise ConfigError(
                "config-value",
                wrong=f"the configuration {path} must set something of a training",
                found="other sections alone"
                if config.model_fields_set & _OTHERS
                else "an empty one",
                remedy="Write one with `stormsail init bars`, `env` or `demo`, or name a shipped "
                "one, such as `quickstart`.",
            )
        return config

    @model_validator(mode="after")
    def _rates_within_bounds(self) -> Self:
        """Refuse learning rates that the bounds of the optimizer would silently change."""
        if self.population is not None:
            self._check_rates("population.search", self.population.search)
        if self.search is not None:
            self._check_rates("search.over", self.search.over)
        return self

    def _check_rates(self, section: str, searched: Mapping[str, SearchedSetting]) -> None:
        if LEARNING_RATE not in searched:
            return
        least, most = self.ppo.optimizer_lr_min, self.ppo.optimizer_lr_max
        for rate in ends(searched[LEARNING_RATE]):
            number = float(rate)
            if number < least or (most is not None and number > most):
                above = "" if most is None else f" and at most `ppo.optimizer_lr_max` {most:g}"
                raise ContradictionError(
                    f'`{section}."{LEARNING_RATE}"` must be at least `ppo.optimizer_lr_min` '
                    f"{least:g}{above}",
                    found=f"{number:g}, which would be cut off there",
                    remedy="Narrow the search, or move `ppo.optimizer_lr_min` or "
                    "`ppo.optimizer_lr_max`.",
                )

    def training(self) -> TrainConfig:
        """Return the configuration of a training, without population and search."""
        return TrainConfig.from_mapping(self.model_dump(exclude=_OTHERS))

    def searched(self) -> PopulationConfig:
        """Return the population; its defaults where the file has no such section."""
        return PopulationConfig() if self.population is None else self.population


def load_training(path: Path | str, overrides: Iterable[str] = ()) -> TrainConfig:
    """Return the configuration of a training in a file that may also describe other things.

    Raises:
        ConfigError: if the file cannot be read or does not fit.
    """
    return load_run_file(path, overrides).training()


def load_run_file(path: Path | str, overrides: Iterable[str] = ()) -> RunFile:
    """Return the configuration in a file that the user names.

    Raises:
        ConfigError: if the file cannot be read or does not fit; or if it lies in a run's folder and
            names plug-ins, which saved settings never do.
    """
    # here, because it brings scipy, which takes a second
    from stormsail.evaluation.populations import LEDGER
    from stormsail.evaluation.searches import SEARCH

    given = RunFile.load(path, overrides)
    is_saved = any((Path(path).parent / name).is_file() for name in (MANIFEST, LEDGER, SEARCH))
    return load_saved(RunFile, path, overrides) if given.plugins and is_saved else given


def ends(search: SearchedSetting) -> tuple[Value, ...]:
    """Return the values between which a setting may move: both bounds, or all of a list."""
    return (search.low, search.high) if search.values is None else search.values


def is_whole(path: str) -> bool:
    """Return whether a setting takes whole numbers only."""
    kinds = set(_kinds(_annotation(path)))
    return int in kinds and float not in kinds


def check_path(path: str) -> None:
    """Refuse what is no setting of a training.

    Raises:
        ValueError: if there is no such setting; it names the nearest one.
    """
    known = dict(_settings(TrainConfig))
    if path not in known:
        near = nearest(path, known)
        hint = "" if near is None else f"; did you mean `{near}`?"
        raise ValueError(f"`search` must name settings of a training, not `{path}`{hint}")


def with_values(config: TrainConfig, values: Mapping[str, Value]) -> TrainConfig:
    """Return a configuration with these values, validated as a whole.

    Raises:
        ConfigError: if they do not fit each other or the other settings.
    """
    return config.replace(**values) if values else config


def value_of(config: Config, path: str) -> Value:
    """Return a setting by its path.

    Raises:
        ConfigError: if it has no value.
    """
    value: object = config
    for name in path.split("."):
        value = getattr(value, name)
    if not isinstance(value, bool | int | float | str):
        raise ConfigError(
            "config-value",
            wrong=f"`{path}` must have one number or one word to be searched",
            found=f"{value!r}",
            remedy="Give it a value in its own section, or search another setting.",
        )
    return value


def _settings(config: type[Config], above: str = "") -> Iterator[tuple[str, object]]:
    """Yield path and annotation of every setting of a configuration."""
    for name, field in config.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, Config):
            yield from _settings(annotation, f"{above}{name}.")
        else:
            yield f"{above}{name}", annotation


def _annotation(path: str) -> object:
    return dict(_settings(TrainConfig))[path]


def _kinds(annotation: object) -> Iterator[object]:
    """Yield the types that an annotation allows."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType, Annotated):
        for part in typing.get_args(annotation):
            yield from _kinds(part)
    else:
        yield annotation
