"""Registry of features by name: each is a decorated function of bars."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from stormsail.core import plugins
from stormsail.core.errors import (
    ArgumentError,
    ChoiceError,
    DtypeError,
    RangeError,
    ShapeError,
    nearest,
)
from stormsail.market.features.tensors import BarTensors, Kept

Parameters = Mapping[str, int | float]
Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Feature:
    """One column of observations: its function, lookback, inputs and version.

    Call it to compute the raw rows of a window; `BoundFeature.column` adds neutral values and
    validity.
    """

    name: str
    function: Function
    lookback: int | Callable[..., int]
    """Bars that a row reads, its own included; a number, or a function of the parameters."""
    columns: tuple[str, ...]
    neutral: float
    version: int
    """Raised by hand whenever the numbers change; it is part of the schema."""
    forgeable: bool = True
    """Whether it comes from outside, so that an adversary could change it; time does not."""

    def __call__(self, bars: BarTensors, /, **parameters: int | float) -> Tensor:
        """Return the raw rows."""
        return self.function(bars, **parameters)

    def bind(self, parameters: Parameters | None = None) -> "BoundFeature":
        """Return the feature with all its parameters, defaults included.

        Raises:
            ChoiceError: if it has no parameter of that name.
            ArgumentError: if one without a default is missing.
            DtypeError: if a parameter is not a finite number, or whole where the default is.
            RangeError: if the lookback is not a whole number of at least 1.
        """
        given = dict(parameters or {})
        known = self._keywords()
        for name in given:
            if name not in known:
                near = nearest(name, known)
                raise ChoiceError(
                    wrong=f"parameters of feature `{self.name}` must be among: "
                    + (", ".join(f"`{keyword}`" for keyword in known) or "none"),
                    found=f"`{name}`",
                    remedy=f"Did you mean `{near}`?" if near else "Choose one of those names.",
                )
        missing = [
            name for name, fallback in known.items() if fallback is None and name not in given
        ]
        if missing:
            raise ArgumentError(
                "missing-argument",
                wrong=f"feature `{self.name}` must be given `{missing[0]}`",
                found="no value and no default",
                remedy=f"Write for example `parameters = {{ {missing[0]} = 14 }}`.",
            )
        resolved = {
            name: _number(self.name, name, given.get(name, fallback), like=fallback)
            for name, fallback in known.items()
        }
        return BoundFeature(self, resolved, self._lookback(resolved), _label(self.name, resolved))

    def _keywords(self) -> dict[str, int | float | None]:
        parameters = list(inspect.signature(self.function).parameters.values())[1:]
        return {
            parameter.name: None if parameter.default is parameter.empty else parameter.default
            for parameter in parameters
        }

    def _lookback(self, parameters: Parameters) -> int:
        bars = self.lookback if isinstance(self.lookback, int) else self.lookback(**parameters)
        if isinstance(bars, bool) or not isinstance(bars, int) or bars < 1:
            raise RangeError(
                wrong=f"the lookback of feature `{self.name}` must be a whole number of bars, "
                "at least 1",
                found=repr(bars),
                remedy="Count the bar itself: a one-bar return has a lookback of 2.",
            )
        return bars


@dataclass(frozen=True)
class BoundFeature:
    """A feature with its parameters."""

    feature: Feature
    parameters: Parameters
    lookback: int
    label: str

    def read(self, bars: BarTensors) -> BarTensors:
        """Return nothing but the columns that the feature declares.

        Raises:
            DataError: if one is missing.
        """
        return bars.only(self.feature.columns, reader=self.label)

    def column(self, bars: BarTensors, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return values and validity [stop - start, S] of some rows, read from as many as needed.

        A row is valid when its whole window is there and listed and the result is finite; it holds
        the neutral value otherwise.

        Raises:
            DataError: if a column is missing.
            ShapeError: if the function returns neither T nor T - lookback + 1 rows.
            DtypeError: if it returns no tensor, or floats of another type than the bars.
        """
        rows, ok = self.warm(bars, start, stop, own=self.read(bars))
        values = rows.new_full((stop - start, bars.symbols), self.feature.neutral)
        valid = torch.zeros_like(values, dtype=torch.bool)
        cold = len(values) - len(rows)
        values[cold:] = rows
        valid[cold:] = True if ok is None else ok
        return values, valid

    def warm(
        self, bars: BarTensors, start: int, stop: int, *, own: BarTensors, kept: Kept | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return values and validity of those rows that have a full window: the last ones.

        Validity is None where every value is valid, which is what most blocks of a history are.

        Args:
            bars: the history.
            start: first row.
            stop: row behind the last.
            own: what `read` returns for the bars.
            kept: where features of the same rows leave what they have in common.

        Raises:
            ShapeError: if the function returns neither T nor T - lookback + 1 rows.
            DtypeError: if it returns no tensor, or floats of another type than the bars.
        """
        first = max(0, start - self.lookback + 1)
        part = own.rows(first, stop)
        part.__dict__.update(kept=kept, first=first)
        computed = self._typed(self.feature(part, **self.parameters), bars)
        raw = self._checked(computed, len(part), bars.symbols)
        count = max(0, min(stop - start, stop - max(start, self.lookback - 1)))
        raw = raw[raw.shape[0] - count :]
        listed = None if bars.listed is None else _whole(bars.listed, stop, count, self.lookback)
        if listed is None and _all_finite(raw):
            return raw, None
        valid = raw * 0.0 == 0.0  # finite, in half the time of `isfinite`
        if listed is not None:
            valid = valid & listed
        return torch.where(valid, raw, self.feature.neutral), valid

    def _typed(self, raw: object, bars: BarTensors) -> Tensor:
        """Return the result as the bars' type of number; whole numbers and truths are converted."""
        columns = bars.columns
        name = self.feature.columns[0] if self.feature.columns else next(iter(columns))
        dtype = columns[name].dtype
        if isinstance(raw, Tensor):
            if raw.dtype == dtype:
                return raw
            if not raw.is_floating_point() and not raw.is_complex():
                return raw.to(dtype)
        raise DtypeError(
            wrong=f"feature `{self.label}` must return a tensor of {dtype}, as the bars are",
            found=str(raw.dtype) if isinstance(raw, Tensor) else type(raw).__name__,
            remedy=f"Compute with the bars' own numbers, or convert with `.to({dtype})`.",
        )

    def _checked(self, raw: Tensor, rows: int, symbols: int) -> Tensor:
        allowed = ((rows, symbols), (max(0, rows - self.lookback + 1), symbols))
        if tuple(raw.shape) not in allowed:
            raise ShapeError(
                wrong=f"feature `{self.label}` with a lookback of {self.lookback} must return "
                f"{allowed[0]} or {allowed[1]} for {rows} bars of {symbols} symbols",
                found=str(tuple(raw.shape)),
                remedy="Return one row for each bar, or one for each full window.",
            )
        return raw


def _whole(listed: Tensor, stop: int, count: int, lookback: int) -> Tensor | None:
    """Return which of the last rows before `stop` have a window of listed bars; None where all."""
    oldest = listed[stop - count - lookback + 1 : stop - lookback + 1]
    # what is listed once is so for good: the first row speaks for all
    return None if listed.device.type == "cpu" and bool(oldest[:1].all()) else oldest


def _all_finite(raw: Tensor) -> bool:
    """Return whether one pass shows that all numbers are finite; false where it does not show.

    What is not finite stays so in a sum. A sum of finite numbers may overflow, and a device other
    than the CPU should not be waited for: then the rows are looked at one by one.
    """
    return raw.device.type == "cpu" and math.isfinite(raw.detach().sum())


def _number(feature: str, name: str, value: object, *, like: int | float | None) -> int | float:
    """Return a parameter as the type of its default; 2 and 2.0 are one parameter."""
    truth = isinstance(value, bool)
    if truth or not isinstance(value, int | float) or not math.isfinite(value):
        raise DtypeError(
            wrong=f"parameter `{name}` of feature `{feature}` must be a finite number",
            found=repr(value),
            remedy="Write a whole number or a fraction; 0 and 1 for a switch.",
        )
    if isinstance(like, float):
        return float(value)
    if value == int(value):
        return int(value)
    if like is not None:
        raise DtypeError(
            wrong=f"parameter `{name}` of feature `{feature}` must be a whole number, "
            f"as its default {like} is",
            found=repr(value),
            remedy=f"Round it, or write the default as `{like}.0`.",
        )
    return float(value)


def _label(name: str, parameters: Parameters) -> str:
    # the shortest text that reads back as the same number, so that two never share a label
    inside = ", ".join(
        f"{key}={repr(value).removesuffix('.0')}" for key, value in parameters.items()
    )
    return f"{name}({inside})" if inside else name


class Registry(plugins.Registry[Feature]):
    """Features by name."""

    def __init__(self) -> None:
        super().__init__("feature", duplicate="feature-duplicate")

    def add(self, feature: Feature) -> None:
        """Take a feature in.

        Raises:
            ArgumentError: if the name is taken or badly formed.
        """
        self.register(feature.name, feature, defined=feature.function)


REGISTRY = plugins.published(Registry())
"""Where `feature` puts what it decorates."""


def feature(
    *,
    name: str,
    lookback: int | Callable[..., int],
    columns: tuple[str, ...] = ("close",),
    neutral: float = 0.0,
    version: int = 1,
    forgeable: bool = True,
    registry: Registry = REGISTRY,
) -> Callable[[Function], Feature]:
    """Register a function of bars as a feature.

    The function gets `BarTensors` and its own keyword parameters, and returns one row for each bar
    or one for each full window.

    Args:
        name: unique, in lower case.
        lookback: how many bars a row reads, its own included; a function of the parameters if it
            depends on them.
        columns: the columns that it reads. It is given no others.
        neutral: finite value of a row that is not valid.
        version: raise it when the numbers change, so that models trained before refuse to run.
        forgeable: false for what nobody but the agent itself measures, such as the time of day:
            adversarial training leaves it alone.
        registry: where it goes.

    Raises:
        ArgumentError: if the name is taken or badly formed.
        DtypeError: if the default of a parameter is not a finite number.
        RangeError: if the neutral value is not finite.
    """

    def register(function: Function) -> Feature:
        registry.check(name, function)
        if not math.isfinite(neutral):
            raise RangeError(
                wrong=f"the neutral value of feature `{name}` must be finite",
                found=repr(neutral),
                remedy="Choose what an uninformative bar would show, such as 0.",
            )
        for parameter in list(inspect.signature(function).parameters.values())[1:]:
            if parameter.default is not parameter.empty:
                _number(name, parameter.name, parameter.default, like=None)
        made = Feature(name, function, lookback, tuple(columns), float(neutral), version, forgeable)
        registry.add(made)
        return made

    return register
