"""`FeatureSet`: a list of features computed for a whole history, a window, or one new bar."""

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial, reduce

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from stormsail.core.config import Config
from stormsail.core.errors import ArgumentError, DataError, RangeError
from stormsail.market.features.registry import REGISTRY, BoundFeature, Registry
from stormsail.market.features.schema import Schema, schema_hash
from stormsail.market.features.tensors import BarTensors, Kept
from stormsail.market.interval import Interval
from stormsail.market.panel import Panel

BLOCK = 1 << 15
"""Numbers per column that are worked on at a time: few enough to stay in a core's cache."""

LARGE = 1 << 25
"""Bytes from which on C's allocator asks the system for new memory every time."""

SCHEMA_VERSION = 1

_NUMPY = {torch.float64: np.float64, torch.float32: np.float32, torch.bool: np.bool_}


class FeatureSpec(Config):
    """One feature of a set, as a configuration names it."""

    name: str
    """Name in the registry."""

    parameters: Mapping[str, int | float] = Field(default_factory=dict)
    """Parameters that differ from the defaults, in bars unless the feature says otherwise."""


@dataclass(frozen=True, eq=False)  # tensors do not compare to one truth value
class Features:
    """Values and validity of features, one column for each.

    `values` is [T, S, F], or [S, F] for one bar, and holds no NaN: where `valid` is false it holds
    the neutral value.
    """

    values: Tensor
    valid: Tensor
    names: tuple[str, ...]


class FeatureSet:
    """Features in a fixed order, for bars of one interval.

    Whole history, window and single bar go through the same code and give the same bits on a CPU,
    as long as each feature keeps to its declared lookback; `check_leaks` tests that.

    Args:
        features: names, specifications, or both.
        interval: length of the bars.
        registry: where the names are looked up.

    Raises:
        ChoiceError: if a name or a parameter is not known.
        ArgumentError: if a column comes twice, or there is none.
    """

    def __init__(
        self,
        features: Iterable[FeatureSpec | str],
        *,
        interval: Interval,
        registry: Registry = REGISTRY,
    ) -> None:
        self._choose(tuple(_bound(spec, registry) for spec in features), interval)

    def _choose(self, bound: tuple[BoundFeature, ...], interval: Interval) -> None:
        self.bound, self.interval = bound, interval
        # what is kept for a long lookback serves a shorter one
        self._longest_first = sorted(range(len(bound)), key=lambda at: -bound[at].lookback)
        labels = [feature.label for feature in bound]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice or not labels:
            raise ArgumentError(
                "feature-duplicate",
                wrong="a feature set must have at least one column, and each of them once",
                found=f"`{twice[0]}` {labels.count(twice[0])} times" if twice else "no feature",
                remedy="Leave the second one out, or give it other parameters."
                if twice
                else "Name one, or leave `features` out for the default ones.",
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Labels of the columns, in order."""
        return tuple(bound.label for bound in self.bound)

    @property
    def lookback(self) -> int:
        """Bars that one row of all columns needs, its own included."""
        return max(bound.lookback for bound in self.bound)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of bars that are read, each once."""
        return tuple(dict.fromkeys(name for bound in self.bound for name in bound.feature.columns))

    def available(self, columns: Collection[str]) -> "FeatureSet":
        """Return the set without the features that these columns cannot serve."""
        kept = tuple(bound for bound in self.bound if set(bound.feature.columns) <= set(columns))
        chosen = FeatureSet.__new__(FeatureSet)
        chosen._choose(kept, self.interval)
        return chosen

    def compute(self, source: Panel | BarTensors, *, block: int | None = BLOCK) -> Features:
        """Return all columns for every bar.

        Args:
            source: closed bars.
            block: numbers per column to work on at a time, or None for all; the result is the same.

        Raises:
            DataError: if a column is missing or the interval is another.
        """
        bars = self._checked(source)
        own = [bound.read(bars) for bound in self.bound]
        rows = len(bars)
        step = rows if block is None else max(self.lookback, block // bars.symbols - self.lookback)
        if rows <= 2 * step:
            return self._rows(bars, own, 0, rows)
        part = self._empty(bars, rows)
        tasks = [
            partial(self._fill, part, bars, own, start, min(rows, start + step))
            for start in range(0, rows, step)
        ]
        _shared_out(tasks, workers=_workers(bars, step + self.lookback))
        return part

    def latest(self, window: Panel | BarTensors) -> Features:
        """Return values and validity [S, F] of the newest bar.

        Raises:
            RangeError: if the window is shorter than `lookback`.
            DataError: if a column is missing or the interval is another.
        """
        bars = self._checked(window)
        if len(bars) < self.lookback:
            raise RangeError(
                wrong=f"the window must hold at least {self.lookback} bars",
                found=str(len(bars)),
                remedy="Fetch that many closed bars before the first decision.",
            )
        own = [bound.read(bars) for bound in self.bound]
        part = self._rows(bars, own, len(bars) - 1, len(bars))
        return Features(part.values[0], part.valid[0], self.names)

    def schema(self) -> Schema:
        """Return everything that decides the values: interval, names, parameters, versions."""
        return {
            "version": SCHEMA_VERSION,
            "interval": str(self.interval),
            "features": [
                {
                    "label": bound.label,
                    "name": bound.feature.name,
                    "version": bound.feature.version,
                    "parameters": dict(bound.parameters),
                    "lookback": bound.lookback,
                    "neutral": bound.feature.neutral,
                    "columns": list(bound.feature.columns),
                }
                for bound in self.bound
            ],
        }

    def schema_hash(self) -> str:
        """Return the SHA-256 that travels with a model."""
        return schema_hash(self.schema())

    def _checked(self, source: Panel | BarTensors) -> BarTensors:
        bars = BarTensors.of(source)
        if bars.interval != self.interval:
            raise DataError(
                "feature-schema",
                wrong=f"`interval` of the features must be {self.interval}",
                found=f"bars of {bars.interval}",
                remedy="Resample the bars, or build the features for that interval.",
            )
        return bars

    def _rows(self, bars: BarTensors, own: list[BarTensors], start: int, stop: int) -> Features:
        part = self._empty(bars, stop - start)
        if stop > start:
            self._fill(part, bars, own, start, stop, origin=start)
        return part

    def _empty(self, bars: BarTensors, rows: int) -> Features:
        """Return room for some rows; what it holds is not yet written."""
        read = [bars[name] for name in self.columns] or list(bars.columns.values())[:1]
        dtype = reduce(torch.promote_types, (column.dtype for column in read))
        shape = (rows, bars.symbols, len(self.bound))
        device = read[0].device
        return Features(_room(shape, dtype, device), _room(shape, torch.bool, device), self.names)

    def _fill(
        self,
        into: Features,
        bars: BarTensors,
        own: list[BarTensors],
        start: int,
        stop: int,
        *,
        origin: int = 0,
    ) -> None:
        """Compute some rows and write them to their places; row `origin` is the first of `into`."""
        kept: Kept = {}
        values, valid = (x[start - origin : stop - origin] for x in (into.values, into.valid))
        for few in valid.view(-1).split(BLOCK - 1):  # more at once would wake torch's own threads
            few.fill_(True)  # noqa: FBT003  most blocks have no other value, and this is cheap
        twos = _in_twos(values)
        waiting: dict[int, Tensor] = {}
        for at in self._longest_first:
            bound = self.bound[at]
            rows, ok = bound.warm(bars, start, stop, own=own[at], kept=kept)
            cold = len(values) - len(rows)
            if cold:
                values[:cold, :, at] = bound.feature.neutral
                valid[:cold, :, at] = False
            if ok is not None:
                valid[cold:, :, at] = ok
            other = waiting.pop(at ^ 1, None)
            if twos is None or cold or not _plain(rows, values):
                values[cold:, :, at] = rows
                if other is not None:
                    values[:, :, at ^ 1] = other
            elif other is None:
                waiting[at] = rows
            else:
                pair = (rows, other) if at % 2 == 0 else (other, rows)
                torch.complex(*pair, out=twos[:, :, at // 2])
        for at, rows in waiting.items():
            values[:, :, at] = rows


def _workers(bars: BarTensors, rows: int) -> int:
    """Return how many blocks of that many rows are worked on at a time.

    As many as torch has threads, if torch works on a block with one of them, as it does on fewer
    than `BLOCK` numbers. Larger ones it splits itself, and threads of ours would stand in its way.
    """
    alone = bars.ts.device.type == "cpu" and rows * bars.symbols <= BLOCK
    return torch.get_num_threads() if alone else 1


def _shared_out(tasks: Iterable[Callable[[], None]], *, workers: int) -> None:
    """Run tasks that do not depend on one another, this thread being one of the workers.

    Each writes its own rows, so who runs it changes no bit; torch lets go of Python's lock while it
    computes. After a failure no further task is begun.
    """
    waiting = deque(tasks)
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    def work() -> None:
        # a thread begins with modes of its own; leaving inference mode switches gradients on
        with torch.inference_mode(inference), torch.set_grad_enabled(grad):
            while True:
                try:
                    task = waiting.popleft()
                except IndexError:
                    return
                try:
                    task()
                except BaseException:
                    waiting.clear()
                    raise

    helpers = min(workers, len(waiting)) - 1
    if helpers < 1:
        return work()
    with ThreadPoolExecutor(helpers) as pool:
        others = [pool.submit(work) for _ in range(helpers)]
        work()
        for other in others:
            other.result()
    return None


def _room(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a tensor that is not yet written, in huge pages where it is large.

    NumPy asks the system for them. Without, the first write to each 4 kB of a result of a million
    rows is a fault of its own, and they take longer than computing a third of the columns. Smaller
    results lie in memory that was used before, which costs no fault at all.
    """
    small = math.prod(shape) * dtype.itemsize < LARGE
    if small or device.type != "cpu" or dtype not in _NUMPY:
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.empty(shape, dtype=_NUMPY[dtype]))


def _in_twos(values: Tensor) -> Tensor | None:
    """Return two neighbouring columns as one complex number, where that can be written to.

    A column lies in strides of a whole row, so that each number is a write of its own; two at a
    time are half as many. `torch.complex` copies bits, of -0 and of NaN, too.
    """
    if values.device.type != "cpu" or values.shape[-1] % 2 or values.dtype not in _NUMPY:
        return None
    return torch.view_as_complex(values.unflatten(-1, (-1, 2)))


def _plain(rows: Tensor, values: Tensor) -> bool:
    """Return whether rows can be written through `out=`: of the same type, without a gradient."""
    return rows.dtype == values.dtype and not rows.requires_grad


def _bound(spec: FeatureSpec | str, registry: Registry) -> BoundFeature:
    if isinstance(spec, str):
        return registry.get(spec).bind()
    return registry.get(spec.name).bind(spec.parameters)
