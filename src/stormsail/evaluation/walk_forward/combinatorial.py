r"""Combinatorial purged cross-validation: several paths through the same bars, each out of sample.

N groups of bars that follow one another, k of them tested at a time. Every choice of k groups is a
split: agents learn from the other groups and trade the k. Each group is tested in C(N - 1, k - 1)
splits, so taking for each group one of them gives as many accounts over all bars,

.. math:: \varphi[N, k] = \frac{k}{N} \binom{N}{N - k} = \binom{N - 1}{k - 1}

López de Prado 2018, Advances in Financial Machine Learning, section 12.4, page 163: the paths,
their number, and that their Sharpe ratios are a distribution where a walk forward has one. Purged
and embargoed are, on both sides of a tested group, as many bars as a walk forward leaves between
training and test. Agents of most splits have seen later bars than they trade, which no walk forward
allows: so the paths say how much one result depends on its bars, and have no vote.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from stormsail.core.clock import iso
from stormsail.core.errors import DataError
from stormsail.core.files.documents import Record
from stormsail.evaluation.stats import figures
from stormsail.evaluation.stats.figures import Array, bars_per_year
from stormsail.evaluation.walk_forward.config import Combinatorial
from stormsail.evaluation.walk_forward.folds import LEAST_FOLD_BARS, FoldPlan, Plan, Times
from stormsail.evaluation.walk_forward.pool import Pooled
from stormsail.market.interval import Interval
from stormsail.market.splits import HoledSpan, Span


@dataclass(frozen=True)
class Split:
    """One training, and the groups that its agents trade."""

    number: int
    tested: tuple[int, ...]
    """Numbers of the groups."""
    train: HoledSpan
    """All bars, without the tested groups and what is purged around them."""


@dataclass(frozen=True)
class PathPlan:
    """All splits, and which of them tests which group in which path."""

    groups: tuple[FoldPlan, ...]
    splits: tuple[Split, ...]

    @property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """For each path the split that tests each group, [paths, groups]."""
        testing = [
            [split.number for split in self.splits if group.number in split.tested]
            for group in self.groups
        ]
        return tuple(zip(*testing, strict=True))


def plan_paths(ts: Times, interval: Interval, wanted: Combinatorial, plan: Plan) -> PathPlan:
    """Return the splits of the bars that a walk forward with this plan may read.

    The first group begins where there are enough bars before it to decide at all.

    Raises:
        DataError: if a group would have fewer than 30 bars.
    """
    rows = plan.development.rows(ts)
    first, last = rows.start + plan.lookback + plan.burn_in, rows.stop
    if (last - first) // wanted.groups < LEAST_FOLD_BARS:
        needed = wanted.groups * LEAST_FOLD_BARS + plan.lookback + plan.burn_in
        raise DataError(
            "data-span",
            wrong=f"{wanted.groups} groups must have at least {LEAST_FOLD_BARS} bars each, "
            f"{needed} bars before the final test span",
            found=f"{last - rows.start} from {iso(int(ts[rows.start]))}",
            remedy="Bring more data, or fewer `combinatorial.groups`.",
        )
    parts = np.array_split(np.arange(first, last), wanted.groups)
    edges = [(int(part[0]), int(part[-1]) + 1) for part in parts]

    def span(start: int, stop: int) -> Span:
        return Span(int(ts[start]), int(ts[stop - 1]) + interval.milliseconds)

    holes = [
        span(max(start - plan.embargo, rows.start), min(stop + plan.embargo, last))
        for start, stop in edges
    ]
    splits = tuple(
        Split(
            number,
            tested,
            HoledSpan(
                plan.development.start_ms,
                plan.development.end_ms,
                tuple(holes[group] for group in tested),
            ),
        )
        for number, tested in enumerate(combinations(range(wanted.groups), wanted.tested))
    )
    groups = tuple(
        FoldPlan(
            number,
            plan.development,
            span(start, stop),
            span(start, stop if number + 1 == wanted.groups else stop + 1),
        )
        for number, (start, stop) in enumerate(edges)
    )
    return PathPlan(groups, splits)


@dataclass(frozen=True)
class PathDistribution(Record):
    """Annual Sharpe ratios of the paths.

    Attributes:
        groups: N.
        tested: k.
        splits: how many trainings with each seed.
        bars: of each path.
        sharpe: of each path; None where nothing was traded.
        mean: of those that have one.
        deviation: of those, with their number less 1; None below two.
        losing: share of the paths whose Sharpe ratio is not above 0.
        failed: trainings that did not finish; their share stayed in cash.
    """

    groups: int
    tested: int
    splits: int
    bars: int
    sharpe: tuple[float | None, ...]
    mean: float | None
    deviation: float | None
    losing: float
    failed: int

    @property
    def words(self) -> str:
        """What a reader wants first."""
        known = sorted(ratio for ratio in self.sharpe if ratio is not None)
        if not known:
            return f"{len(self.sharpe)} paths through {self.bars:,} bars: none traded"
        spread = "" if self.deviation is None else f", deviation {self.deviation:.2f}"
        return (
            f"{len(self.sharpe)} paths through {self.bars:,} bars, {self.splits} splits: Sharpe "
            f"ratio {known[0]:.2f} to {known[-1]:.2f}, mean {self.mean:.2f}{spread}; "
            f"{self.losing:.0%} not above 0"
        )


def distribution_of(
    paths: Sequence[Pooled], wanted: Combinatorial, *, splits: int, failed: int
) -> PathDistribution:
    """Return the Sharpe ratios of some paths."""
    per_year = bars_per_year(paths[0].interval.milliseconds)
    ratios: Array = np.array([figures.per_bar_sharpe(path.returns) for path in paths])
    ratios = ratios * math.sqrt(per_year)
    known = ratios[np.isfinite(ratios)]
    return PathDistribution(
        groups=wanted.groups,
        tested=wanted.tested,
        splits=splits,
        bars=len(paths[0].returns),
        sharpe=tuple(float(ratio) if math.isfinite(ratio) else None for ratio in ratios),
        mean=float(known.mean()) if known.size else None,
        deviation=float(known.std(ddof=1)) if known.size > 1 else None,
        losing=float(np.mean(~(ratios > 0.0))),
        failed=failed,
    )
