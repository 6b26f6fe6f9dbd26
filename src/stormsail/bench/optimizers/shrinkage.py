r"""`stormsail bench shrinkage`: factors of the gradient scaler beside the optimal ones.

A parameter p is fitted to noisy targets, :math:`L_t = \tfrac12\|p - y_t\|^2` with
:math:`y_t = \bar y + \sigma\xi_t`, and does not move, so that the gradient is
:math:`g_t = G + \sigma\xi_t` with a known G. The factor that brings :math:`c\,g` nearest to G on
average is :math:`c^* = 1 / (1 + NSR)`, :math:`NSR = n\sigma^2 / \|G\|^2`, whatever the correlation
of the noise between elements: :math:`E\|cg - G\|^2` holds the trace of its covariance only. It
leaves the error :math:`NSR / (1 + NSR)` in units of :math:`\|G\|^2`; the raw gradient has NSR.

Shapes: n elements of a tensor, P tensors: one for each combination of case, ratio and size.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from stormsail.bench.seeds import Seeds
from stormsail.core.generators import Generators
from stormsail.optim import VarianceGradientScaler

STATISTICS = ("elementwise", "total", "mean", "norm")

PERSISTENCE = 0.9
"""Correlation of `persistent` noise with that of the step before."""


@dataclass(frozen=True)
class Case:
    """A distribution of gradients."""

    name: str
    uniform: bool
    """Whether all elements of G are equal; drawn from N(0, 1) otherwise."""
    noise: str
    """`independent`, `common` to all elements, `opposite` in the two halves of the tensor, or
    `persistent`: independent between elements and correlated over time."""


CASES = (
    Case("independent", uniform=False, noise="independent"),
    Case("equal elements", uniform=True, noise="independent"),
    Case("common", uniform=False, noise="common"),
    Case("opposite", uniform=False, noise="opposite"),
    Case("persistent", uniform=False, noise="persistent"),
)


@dataclass(frozen=True)
class Plan:
    """Size of the benchmark; the defaults are those of the full one."""

    ratios: tuple[float, ...] = (0.0, 0.01, 0.1, 1.0, 10.0, 100.0)
    sizes: tuple[int, ...] = (16, 256, 4096)
    cases: tuple[Case, ...] = CASES
    statistics: tuple[str, ...] = STATISTICS
    steps: int = 600
    counted: int = 300
    """Steps at the end over which factors and errors are averaged."""
    seeds: int = 10

    @classmethod
    def quick(cls) -> "Plan":
        """Return one of seconds."""
        return cls(ratios=(0.0, 1.0), sizes=(16, 256), steps=150, counted=50, seeds=2)


@dataclass(frozen=True)
class Row:
    """One statistic on one combination."""

    statistic: str
    case: str
    ratio: float
    """NSR."""
    size: int
    factor: Seeds
    error: Seeds
    """Mean of :math:`|c g - G|^2 / |G|^2`."""
    variance: Seeds
    """What the statistic calls the variance, at the end."""
    spread: Seeds
    """Variance of G over its elements."""

    @property
    def best_factor(self) -> float:
        """1 / (1 + NSR)."""
        return 1.0 / (1.0 + self.ratio)

    @property
    def best_error(self) -> float:
        """NSR / (1 + NSR)."""
        return self.ratio / (1.0 + self.ratio)


@dataclass(frozen=True)
class Summary:
    """One statistic in one case, over all ratios and sizes."""

    statistic: str
    case: str
    distance: float
    """Mean of |c - c*|."""
    worst: float
    """Largest of them."""
    excess: float
    """Mean of the error above the best one, in units of |G|²."""


class _Gradients:
    """Gradients of P tensors, step after step."""

    def __init__(self, combinations: Sequence[tuple[Case, float, int]], seed: int) -> None:
        streams = Generators(seed)
        self._generator = streams.stream("shrinkage.noise")
        drawing = streams.stream("shrinkage.gradient")
        self._combinations = list(combinations)
        self.true = [
            torch.ones(size) if case.uniform else _unit(torch.randn(size, generator=drawing))
            for case, _, size in combinations
        ]
        self._before = [self._draw(size) for _, _, size in combinations]

    def _draw(self, size: int) -> Tensor:
        return torch.randn(size, generator=self._generator)

    def next(self) -> list[Tensor]:
        """Return one noisy gradient of each tensor."""
        drawn = []
        for place, (case, ratio, size) in enumerate(self._combinations):
            noise = self._noise(case.noise, size, place)
            drawn.append(self.true[place] + math.sqrt(ratio) * noise)
        return drawn

    def _noise(self, kind: str, size: int, place: int) -> Tensor:
        """Return [n] noise of variance 1 in each element."""
        if kind == "common":
            return self._draw(1).expand(size)
        if kind == "opposite":
            return self._draw(1) * torch.tensor([1.0, -1.0]).repeat_interleave(size // 2)
        fresh = self._draw(size)
        if kind == "independent":
            return fresh
        mixed = PERSISTENCE * self._before[place] + math.sqrt(1.0 - PERSISTENCE**2) * fresh
        self._before[place] = mixed
        return mixed


def _unit(values: Tensor) -> Tensor:
    """Scale to a mean square of 1."""
    return values / values.square().mean().sqrt()


def rows(plan: Plan) -> list[Row]:
    """Measure every statistic on every combination, all of them on the same gradients."""
    combinations = list(product(plan.cases, plan.ratios, plan.sizes))
    by_seed = [_measure(plan, combinations, seed) for seed in range(plan.seeds)]
    measured = []
    for place, statistic in enumerate(plan.statistics):
        for column, (case, ratio, size) in enumerate(combinations):
            values = torch.stack([seed[:, place, column] for seed in by_seed])  # [seeds, 4]
            figures = [Seeds(values[:, kind].tolist(), shown="standard_error") for kind in range(4)]
            measured.append(Row(statistic, case.name, ratio, size, *figures))
    return measured


def _measure(plan: Plan, combinations: Sequence[tuple[Case, float, int]], seed: int) -> Tensor:
    """Return factor, error, variance and spread, [4, statistics, P], of one seed."""
    gradients = _Gradients(combinations, seed)
    parameters = [torch.nn.Parameter(torch.zeros_like(true)) for true in gradients.true]
    scalers = [
        VarianceGradientScaler(
            parameters, statistic=name, alpha=1.0, min_scaling_factor=1e-9, variance_cap=1e9
        )
        for name in plan.statistics
    ]
    spread = [true.var(correction=0) for true in gradients.true]
    sums = torch.zeros(2, len(scalers), len(parameters), dtype=torch.float64)
    for step in range(plan.steps):
        drawn = gradients.next()
        for parameter, gradient in zip(parameters, drawn, strict=True):
            parameter.grad = gradient
        for scaler in scalers:
            scaler.update_statistics()
        if step >= plan.steps - plan.counted:
            sums += _factors_and_errors(scalers, gradients.true, drawn)
    variance = torch.stack([_row(scaler.variance().values()) for scaler in scalers])
    across = torch.stack(spread).double().expand_as(variance)
    return torch.cat([sums / plan.counted, torch.stack([variance, across])])


def _factors_and_errors(
    scalers: Sequence[VarianceGradientScaler], true: Sequence[Tensor], drawn: Sequence[Tensor]
) -> Tensor:
    """Return c and |c g - G|^2 / |G|^2, [2, statistics, P].

    The square is |g|^2 c^2 - 2 c g·G + |G|^2, so the tensors are read once for all statistics.
    """
    pairs = list(zip(drawn, true, strict=True))
    square = _row([gradient.square().mean() for gradient, _ in pairs])
    inner = _row([(gradient * mean).mean() for gradient, mean in pairs])
    whole = _row([mean.square().mean() for _, mean in pairs])
    factor = torch.stack([_row(scaler.factors().values()) for scaler in scalers])
    return torch.stack([factor, (factor.square() * square - 2 * factor * inner) / whole + 1.0])


def _row(values: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(values)).double()


def summary(measured: Sequence[Row]) -> list[Summary]:
    """Return one line for each statistic and case."""
    lines = []
    for statistic, case in dict.fromkeys((row.statistic, row.case) for row in measured):
        own = [row for row in measured if (row.statistic, row.case) == (statistic, case)]
        distances = [abs(row.factor.mean - row.best_factor) for row in own]
        excess = statistics.fmean([row.error.mean - row.best_error for row in own])
        mean, worst = statistics.fmean(distances), max(distances)
        lines.append(Summary(statistic, case, mean, worst, excess))
    return lines


@dataclass(frozen=True)
class Identity:
    """The two sides of the law of total variance for one gradient with independent noise."""

    ratio: float
    size: int
    total: float
    """Variance over time and elements, as the statistic `total` measures it."""
    over_time: float
    """Mean over elements of the variance over time, as `elementwise` measures it."""
    over_elements: float
    """Variance of G over its elements."""


def identities(measured: Sequence[Row]) -> list[Identity]:
    """Return both sides wherever both statistics were measured."""
    by_key = {
        (row.statistic, row.ratio, row.size): row for row in measured if row.case == CASES[0].name
    }
    return [
        Identity(ratio, size, row.variance.mean, over_time.variance.mean, row.spread.mean)
        for (statistic, ratio, size), row in by_key.items()
        for over_time in [by_key.get(("elementwise", ratio, size))]
        if statistic == "total" and over_time is not None
    ]
