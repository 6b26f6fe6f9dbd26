"""Results of `bench frontier`: a table with one line for each kind of agent, claims, a chart."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from stormsail.bench.chart import COLOURS, Dots, Line, Panel, draw, ticks
from stormsail.bench.risk.frontier import ALPHA, Row
from stormsail.bench.seeds import Seeds
from stormsail.bench.verdicts import Verdict

ORDER = ("free", "scaled", "penalty", "rule", "limit", "alpha", "slack", "infeasible")
"""Of kinds, in tables."""

REPORTED_WITHIN = 150
"""Updates by which a limit out of reach must be reported: 6 n = 120 of them once the gap stands
still, with n = `risk.cvar_infeasible_updates`, and some until it does."""

SLACK_SHARE = 0.02
"""Share of the free agent's mean that a limit which nothing breaks may cost."""

NOTHING_HELD = (0.0, 0.0)
"""CVaR and mean of an agent whose weights are multiplied by 0."""


class Key(NamedTuple):
    """Agents that differ by their seed alone."""

    kind: str
    gamma: float
    limit: float | None
    alpha: float
    penalty: float
    scale: float

    @property
    def setting(self) -> str:
        """What sets it apart within its kind."""
        return {
            "limit": f"limit {self.limit}",
            "slack": f"limit {self.limit}",
            "infeasible": f"limit {self.limit}",
            "alpha": f"limit {self.limit} on the worst {self.alpha:.0%}",
            "penalty": f"{self.penalty:g} r²",
            "scaled": f"{self.scale:g} of the weights",
            "rule": f"{self.scale:g}, 0 while warned",
        }.get(self.kind, "")


@dataclass(frozen=True)
class Summary:
    """All seeds of agents of one kind."""

    key: Key
    seeds: int
    mean: Seeds
    cvar: Seeds
    exposure: float
    multiplier: float
    """Mean at the end of training."""
    largest_multiplier: float
    held_by_interval: int | None
    """Seeds; None where there is no limit, or it is on another tail."""
    kept_by_estimate: int | None
    """The same."""
    proven_kept: int | None
    """The same."""


def summaries(rows: Sequence[Row]) -> list[Summary]:
    """Return one line for each kind, setting and discount."""
    groups = _groups(rows)
    keys = sorted(groups, key=lambda key: (ORDER.index(key.kind), key.gamma, *_rank(key)))
    return [_summary(key, groups[key]) for key in keys]


def _rank(key: Key) -> tuple[float, float, float, float]:
    limit = -math.inf if key.limit is None else key.limit
    return limit, -key.alpha, key.penalty, -key.scale


def _groups(rows: Sequence[Row]) -> dict[Key, list[Row]]:
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        key = Key(row.kind, row.gamma, row.limit, row.alpha, row.penalty, row.scale)
        groups.setdefault(key, []).append(row)
    return groups


def _summary(key: Key, rows: list[Row]) -> Summary:
    is_limited = key.limit is not None and key.alpha == ALPHA
    return Summary(
        key=key,
        seeds=len(rows),
        mean=Seeds([row.mean for row in rows], shown="half", alone=rows[0].mean_error),
        cvar=Seeds([row.cvar for row in rows], shown="half", alone=rows[0].cvar_error),
        exposure=statistics.fmean(row.exposure for row in rows),
        multiplier=statistics.fmean(row.multiplier for row in rows),
        largest_multiplier=max(row.largest_multiplier for row in rows),
        held_by_interval=_count(row.held_by_interval for row in rows) if is_limited else None,
        kept_by_estimate=_count(row.kept_by_estimate for row in rows) if is_limited else None,
        proven_kept=_count(row.proven_kept for row in rows) if is_limited else None,
    )


def _count(answers: Iterable[bool | None]) -> int:
    return sum(map(bool, answers))


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """Return the verdicts on the constraint, as far as there are rows for it."""
    results = []
    groups = _groups(rows)
    for gamma in dict.fromkeys(row.gamma for row in rows):
        own = {key: group for key, group in groups.items() if key.gamma == gamma}
        free = next((group for key, group in own.items() if key.kind == "free"), [])
        limits = sorted(_of(own, "limit"), key=lambda key: _rank(key)[0])
        results += [_kept(key, own[key]) for key in limits]
        if free:
            results += [_broken(key, free) for key in limits]
        results += _tightening(gamma, free, [own[key] for key in limits])
        results += _smaller_tails(gamma, own)
        results += [_slack(key, own[key]) for key in _of(own, "slack")]
        results += [_slack_mean(key, own[key], free) for key in _of(own, "slack") if free]
        results += [_infeasible(key, own[key]) for key in _of(own, "infeasible")]
        curves = scaled_curves([row for group in own.values() for row in group])
        compared = [*limits, *_of(own, "alpha"), *_of(own, "penalty")]
        results += [_against_scaled(key, own[key], curves) for key in compared if curves]
    return results


def _of(groups: dict[Key, list[Row]], kind: str) -> list[Key]:
    return [key for key in groups if key.kind == kind]


def _kept(key: Key, rows: list[Row]) -> Verdict:
    held = _count(row.held_by_interval for row in rows)
    kept = _count(row.kept_by_estimate for row in rows)
    proven = _count(row.proven_kept for row in rows)
    return Verdict(
        claim=f"gamma {key.gamma:g}: the limit {key.limit} is kept by the estimate in 4 of 5 seeds",
        measured=f"kept by the estimate in {kept} of {len(rows)}, held by the interval in {held}, "
        f"proven kept in {proven}",
        passed=5 * kept >= 4 * len(rows),
    )


def _broken(key: Key, free: list[Row]) -> Verdict:
    """Compare the free agents with a limit: one that they keep would test nothing."""
    broken = _count(row.breaks(_limit(key)) for row in free)
    return Verdict(
        claim=f"gamma {key.gamma:g}: the free agent is proven to break the limit {key.limit} in "
        "all seeds",
        measured=f"in {broken} of {len(free)}",
        passed=broken == len(free),
    )


def _limit(key: Key) -> float:
    return -math.inf if key.limit is None else key.limit


def _tightening(gamma: float, free: list[Row], limited: list[list[Row]]) -> list[Verdict]:
    ladder = [free, *limited] if free else limited
    if len(ladder) < 2:
        return []
    return [
        _ladder(f"gamma {gamma:g}: CVaR rises and the mean falls as the limit tightens", ladder)
    ]


def _smaller_tails(gamma: float, groups: dict[Key, list[Row]]) -> list[Verdict]:
    """Compare the agents of one limit on tails of several sizes."""
    others = _of(groups, "alpha")
    keys = [key for key in groups if key.kind == "limit" and key.limit in {k.limit for k in others}]
    keys = sorted([*others, *keys], key=lambda key: -key.alpha)
    if len(keys) < 2:
        return []
    shares = ", ".join(f"{key.alpha:.0%}" for key in keys)
    claim = (
        f"gamma {gamma:g}: CVaR rises and the mean falls as the tail under the limit "
        f"{keys[0].limit} shrinks, {shares}"
    )
    return [_ladder(claim, [groups[key] for key in keys])]


def _ladder(claim: str, ladder: list[list[Row]]) -> Verdict:
    tails = [statistics.fmean(row.cvar for row in rows) for rows in ladder]
    means = [statistics.fmean(row.mean for row in rows) for rows in ladder]
    rises = all(before <= after for before, after in pairwise(tails))
    falls = all(before >= after for before, after in pairwise(means))
    words = [" → ".join(f"{value:.4f}" for value in values) for values in (tails, means)]
    return Verdict(claim, f"CVaR {words[0]}; mean {words[1]}", rises and falls)


def _slack(key: Key, rows: list[Row]) -> Verdict:
    back = sum(row.multiplier == 0.0 for row in rows)
    largest = max(row.largest_multiplier for row in rows)
    return Verdict(
        claim=f"gamma {key.gamma:g}: under the slack limit {key.limit} the multiplier ends at 0",
        measured=f"in {back} of {len(rows)}; at its largest it was {largest:.3g}",
        passed=back == len(rows),
    )


def _slack_mean(key: Key, rows: list[Row], free: list[Row]) -> Verdict:
    """Compare the means of agents under a slack limit with those of free ones, seed by seed."""
    without = {row.seed: row.mean for row in free}
    pairs = [(row.mean, without[row.seed]) for row in rows if row.seed in without]
    claim = (
        f"gamma {key.gamma:g}: under the slack limit {key.limit} the mean is within "
        f"{SLACK_SHARE:.0%} of that of the free agent"
    )
    if not pairs:
        return Verdict(claim, "no seed has both", None)
    limited, base = (statistics.fmean(values) for values in zip(*pairs, strict=True))
    gain = Seeds([own - other for own, other in pairs])
    share = (limited - base) / abs(base) if base else math.nan
    return Verdict(
        claim=claim,
        measured=f"{limited:.4f} against {base:.4f}, {share:+.1%}; by seed {gain.mean:+.4f} ± "
        f"{gain.half:.4f}",
        passed=abs(limited - base) <= SLACK_SHARE * abs(base),
    )


def _infeasible(key: Key, rows: list[Row]) -> Verdict:
    updates = sorted(row.infeasible_at for row in rows if row.infeasible_at is not None)
    when = f", at updates {', '.join(map(str, updates))} of {rows[0].updates}" if updates else ""
    return Verdict(
        claim=f"gamma {key.gamma:g}: the limit {key.limit} is reported out of reach within "
        f"{REPORTED_WITHIN} updates",
        measured=f"in {len(updates)} of {len(rows)}{when}",
        passed=len(updates) == len(rows) and updates[-1] <= REPORTED_WITHIN,
    )


Curve = Callable[[float], float]


def scaled_curves(rows: Sequence[Row]) -> dict[int, Curve]:
    """Return for each seed the mean of the free agent's weights scaled down, as CVaR sets it.

    It runs through the agents that were evaluated, and through the one that holds nothing.
    """
    points: dict[int, list[tuple[float, float]]] = {}
    for row in rows:
        if row.kind in ("free", "scaled"):
            points.setdefault(row.seed, [NOTHING_HELD]).append((row.cvar, row.mean))
    return {seed: _interpolated(sorted(own)) for seed, own in points.items()}


def _interpolated(points: list[tuple[float, float]]) -> Curve:
    def at(cvar: float) -> float:
        """Return the mean at this CVaR; NaN beyond the ends."""
        for (low, first), (high, second) in pairwise(points):
            if low <= cvar <= high:
                share = (cvar - low) / (high - low) if high > low else 1.0
                return first + share * (second - first)
        return math.nan

    return at


def _against_scaled(key: Key, rows: list[Row], curves: dict[int, Curve]) -> Verdict:
    known = [row for row in rows if row.seed in curves]
    gains = [row.mean - curves[row.seed](row.cvar) for row in known]
    inside = [gain for gain in gains if not math.isnan(gain)]
    name = f"{key.kind} {key.setting}" if key.limit is None else key.setting
    claim = f"gamma {key.gamma:g}, {name}: against weights scaled down to its CVaR"
    if not inside:
        return Verdict(claim, "its CVaR is beyond all of theirs", None)
    gain = Seeds(inside)
    if math.isnan(gain.half):
        words = "one seed says nothing"
    elif abs(gain.mean) <= gain.half:
        words = "no different"
    else:
        words = "better" if gain.mean > 0.0 else "worse"
    left_out = len(known) - len(inside)
    further = f"; {left_out} of {len(known)} lie beyond their curve" if left_out else ""
    measured = f"{words}: mean return {gain.mean:+.4f} ± {gain.half:.4f}{further}"
    is_claimed = _must_beat_scaling(key, known) and len(inside) > 1
    return Verdict(claim, measured, words == "better" if is_claimed else None)


def _must_beat_scaling(key: Key, rows: list[Row]) -> bool:
    """Return whether a limit must do better than smaller weights: where warnings mean something."""
    return key.kind == "limit" and all(row.warned is not None and row.warned > 0.0 for row in rows)


def chart(rows: Sequence[Row]) -> str:
    """Return mean against CVaR as SVG, a panel for each discount, a dot for each agent."""
    gammas = tuple(dict.fromkeys(row.gamma for row in rows))
    across = ticks([NOTHING_HELD[0], *(row.cvar for row in rows)])
    up = ticks([NOTHING_HELD[1], *(row.mean for row in rows)])
    panels = [
        Panel(
            title=f"gamma {gamma:g}",
            horizontal="CVaR: mean of the worst 5 % of episodes, log growth",
            vertical="mean log growth of an episode",
            lines=_lines(rows, gamma),
            vertical_range=(up[0], up[-1]),
            horizontal_ticks=across,
            vertical_ticks=up,
            dots=_dots([row for row in rows if row.gamma == gamma]),
        )
        for gamma in gammas
    ]
    return draw(panels, note="every dot is one agent on bars that it never saw")


def _lines(rows: Sequence[Row], gamma: float) -> tuple[Line, ...]:
    """Return what smaller weights make of the free agent, and of the rule, which has no gamma."""
    free = _through([row for row in rows if row.gamma == gamma], ("free", "scaled"))
    rule = _through(rows, ("rule",))
    lines = (
        Line("free, weights scaled down", free, COLOURS[-1], dashed=True),
        Line("0 while warned, scaled down", rule, COLOURS[-1]),
    )
    return tuple(line for line in lines if line.points)


def _through(rows: Sequence[Row], kinds: tuple[str, ...]) -> tuple[tuple[float, float], ...]:
    """Return mean against CVaR over seeds for all scales, down to nothing held."""
    groups = [own for key, own in _groups(rows).items() if key.kind in kinds]
    points = sorted(
        (statistics.fmean(row.cvar for row in own), statistics.fmean(row.mean for row in own))
        for own in groups
    )
    return (*points, NOTHING_HELD) if points else ()


def _dots(rows: list[Row]) -> tuple[Dots, ...]:
    """Return the agents by kind and limit."""
    limits = sorted({row.limit for row in rows if row.kind == "limit" and row.limit is not None})
    colours = (COLOURS[0], COLOURS[2], COLOURS[4]) * len(limits)
    groups = [
        Dots("free", _points(rows, "free"), COLOURS[-1]),
        Dots("reward - k r²", _points(rows, "penalty"), COLOURS[1], "cross"),
        Dots("limit on a wider tail", _points(rows, "alpha"), COLOURS[3], "triangle"),
    ]
    for limit, colour in zip(limits, colours, strict=False):
        points = _points([row for row in rows if row.limit == limit], "limit")
        groups.append(Dots(f"limit {limit}", points, colour, "square"))
    return tuple(dots for dots in groups if dots.points)


def _points(rows: list[Row], kind: str) -> tuple[tuple[float, float], ...]:
    return tuple((row.cvar, row.mean) for row in rows if row.kind == kind)
