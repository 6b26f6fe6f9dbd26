"""Checks of bars against their neighbours: stuck prices, outages, spikes, breaks of the level.

They rest on what a market can do, so their thresholds are wide, local and robust, and most findings
are warnings. Three observations carry them:

* Markets go on where they stopped. The open of a bar is near the close of the bar before it even in
  a crash, because the crash happens *inside* bars: on 2020-03-12 Bitcoin lost 18 % inside an hour
  and at most 0.2 % between two; LUNA's worst hour in 2022-05 was -70 %, its largest step between
  two bars 0.9 %. A level that changes between two bars was changed when the file was written.
* Volatility clusters. A move is measured by the median absolute move of its own few hundred bars
  and of the blocks beside them, so a wild month does not look like errors, and a spike inside a
  quiet one does. Half the mean absolute move is a lower bound of that scale: where most bars do not
  move at all the median is zero. Steps between bars have a scale of their own, by median: large
  where markets close overnight, nearly nothing where they never close.
* Size alone never makes a finding: most large moves are real.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stormsail.core.clock import iso
from stormsail.market.bars import PRICES
from stormsail.market.checks.columns import Columns
from stormsail.market.checks.report import Collector
from stormsail.market.checks.times import Order, in_order
from stormsail.market.interval import Interval

_BLOCK = 256  # bars whose median absolute return is one local scale
_USUAL_MOVES = 8.0  # times the local scale of moves that a spike must exceed
_USUAL_STEPS = 25.0  # times the local scale of steps between bars that a spike or break must exceed
_SPIKE = np.log(1.05)  # smallest move that is called a spike
_BREAK = np.log(1.5)  # smallest step between two bars that is called a break of the level
_LONE_BREAK = np.log(3.0)  # the same, if the level never comes back
_REVERTED = 0.1  # share of a move that may be left when it is called taken back
_BLOCKS = 1_024  # of them at once
_STUCK = 12  # bars in a row at one price, with volume
_SHORTEST = 8  # bars below which there are no neighbours to compare with
_CANDIDATES = 10_000  # breaks that are matched one by one
_SPLITS = np.log(np.array([2, 3, 4, 5, 6, 7, 8, 15, 20, 25, 30, 40, 50]))

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Series:
    """Usable bars in the order of time."""

    rows: NDArray[np.int64]
    open: NDArray[np.float64]
    close: NDArray[np.float64]
    adjacent: NDArray[np.bool_]
    """Whether a bar follows directly on one that was traded in; false for the first."""


@dataclass(frozen=True)
class Motion:
    """How prices move from bar to bar, in logarithms.

    Args:
        price: closes.
        move: from the close before to the close.
        step: from the close before to the open, 0 where bars are not consecutive.
        move_scale: usual size of a move around every bar.
        step_scale: usual size of a step around every bar.
    """

    price: NDArray[np.float64]
    move: NDArray[np.float64]
    step: NDArray[np.float64]
    move_scale: "LocalScale"
    step_scale: "LocalScale"


def check_levels(collector: Collector, columns: Columns, order: Order, interval: Interval) -> None:
    """Report zero volume, stuck prices, spikes, changes of scale and swapped symbols."""
    _check_volume(collector, columns, order)
    series = _series(columns, order, interval)
    if len(series.rows) < _SHORTEST:
        return
    motion = _motion(series)
    _check_breaks(collector, series, motion, _check_spikes(collector, series, motion))


def _check_volume(collector: Collector, columns: Columns, order: Order) -> None:
    """Report bars without volume, and long runs of one price with volume.

    Twelve bars in a row with a single price each, all the same, although something was traded in
    every one of them: a halted market has no volume, and a quiet one has a spread that trades jump
    across. The longest such run in 1.4 million real bars of 1m to 1h was 3 bars.
    """
    if "volume" not in columns.values:
        return
    rows = order.rows
    volume = in_order(columns.values["volume"], rows)
    zero = volume == 0
    if zero.any():
        _report_zero(collector, columns, order, zero)
    o, h, low, c = (in_order(columns.values[name], rows) for name in PRICES)
    single = (h == low) & (o == c) & (o == h)
    if np.count_nonzero(single) < _STUCK:
        return
    _report_runs(collector, rows, c, single & (volume > 0))


def _report_zero(
    collector: Collector, columns: Columns, order: Order, zero: NDArray[np.bool_]
) -> None:
    """Report bars without volume, and where the longest run of them begins."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], zero, [False]))))
    runs = edges[1::2] - edges[::2]
    longest = int(np.argmax(runs))
    start = iso(int(order.ts[edges[2 * longest]]))
    collector.add(
        "zero-volume",
        order.rows[zero],
        lambda row: f"close={columns.values['close'][row]:g}",
        detail=f"at most {int(runs[longest])} in a row, from {start}",
    )


def _report_runs(
    collector: Collector,
    rows: NDArray[np.int64],
    close: NDArray[np.float64],
    same: NDArray[np.bool_],
) -> None:
    change = np.concatenate(([True], close[1:] != close[:-1]))
    starts = np.flatnonzero(same & (change | np.concatenate(([True], ~same[:-1]))))
    if len(starts) == 0:
        return
    stops = np.flatnonzero(~same | change)
    following = np.searchsorted(stops, starts, side="right")
    ends = np.append(stops, len(same))[following]
    long = ends - starts >= _STUCK
    lengths = dict(zip(rows[starts[long]].tolist(), (ends - starts)[long].tolist(), strict=True))
    collector.add(
        "stuck-price", rows[starts[long]], lambda row: f"{lengths[row]} bars at one price"
    )


def _series(columns: Columns, order: Order, interval: Interval) -> Series:
    values = {name: in_order(columns.values[name], order.rows) for name in PRICES}
    usable = np.ones(len(order.rows), bool)
    for column in values.values():
        usable &= np.isfinite(column) & (column > 0)
    adjacent = np.zeros(len(order.ts), bool)
    adjacent[1:] = interval.steps(order.ts) == interval.milliseconds
    if "volume" in columns.values:  # after an outage a market may open anywhere
        adjacent[1:] &= in_order(columns.values["volume"], order.rows)[:-1] != 0
    if usable.all():
        return Series(order.rows, values["open"], values["close"], adjacent)
    adjacent[1:] &= usable[:-1]
    return Series(
        order.rows[usable], values["open"][usable], values["close"][usable], adjacent[usable]
    )


def _motion(series: Series) -> Motion:
    price = np.log(series.close)
    move = np.zeros(len(price))
    np.subtract(price[1:], price[:-1], out=move[1:])
    step = np.log(series.open)
    step[1:] -= price[:-1]
    step[~series.adjacent] = 0.0
    return Motion(
        price, move, step, _local_scale(move, mean_share=0.5), _local_scale(step, mean_share=0.0)
    )


@dataclass(frozen=True)
class LocalScale:
    """The usual size of a move around every bar, kept once for each block of bars."""

    length: int
    sizes: NDArray[np.float64]

    def __getitem__(self, rows: NDArray[np.int64] | int) -> NDArray[np.float64]:
        return np.asarray(self.sizes[np.minimum(rows // self.length, len(self.sizes) - 1)])


def _local_scale(move: NDArray[np.float64], *, mean_share: float) -> LocalScale:
    """Return the usual size of a move around every bar: a median, or a share of the mean."""
    blocks = max(len(move) // _BLOCK, 1)
    length = len(move) // blocks
    scale = np.empty(blocks)
    for first in range(0, blocks, _BLOCKS):
        last = min(first + _BLOCKS, blocks)
        whole = np.abs(move[first * length : last * length]).reshape(-1, length)
        scale[first:last] = np.maximum(
            np.median(whole, axis=1), mean_share * np.mean(whole, axis=1)
        )
    beside = scale.copy()
    beside[1:] = np.maximum(beside[1:], scale[:-1])
    beside[:-1] = np.maximum(beside[:-1], scale[1:])
    return LocalScale(length, beside)


def _larger(move: NDArray[np.float64], least: float, times: float, scale: LocalScale) -> Rows:
    """Return where a move is larger than a least size and than so many usual ones."""
    at = np.flatnonzero((move > least) | (move < -least))
    return np.asarray(at[np.abs(move[at]) > times * scale[at]])


def _check_spikes(collector: Collector, series: Series, motion: Motion) -> NDArray[np.int64]:
    """Report closes that leave their level and are back at once; return where.

    A spike moves by more than 5 % and 8 usual moves. At the next open, or one or two closes later,
    what is left of it is less than a tenth or eight usual moves, and never half of it. At least
    half of the way out or of the way back lies between two bars, and is more than 25 usual steps.
    That tells a wrong price from a flash crash: of six such moves in real data (Litecoin on
    2021-09-13, LUNA on 2022-05-12 among them) none had a step of a tenth of it between bars. The
    blind spot: a source that writes every open as the close before it hides its spikes.
    """
    price, move, step = motion.price, motion.move, motion.step
    at = _larger(move, _SPIKE, _USUAL_MOVES, motion.move_scale)
    at = at[(at > 0) & (at < len(price) - 1)]
    if len(at) == 0:
        return at
    size = np.abs(move[at])
    left = np.minimum(0.5 * size, np.maximum(_REVERTED * size, 8.0 * motion.move_scale[at]))
    later = np.minimum(at + 2, len(price) - 1)
    opening = price[at] + step[at + 1]
    soon = (
        np.minimum(np.abs(opening - price[at - 1]), np.abs(price[at + 1] - price[at - 1])) <= left
    )
    late = (np.abs(price[later] - price[at - 1]) <= left) & (later == at + 2)
    between = np.maximum(np.abs(step[at]), np.abs(np.where(soon, step[at + 1], step[later])))
    needed = np.maximum(0.5 * size, _USUAL_STEPS * motion.step_scale[at])
    back = (soon | late) & (between > needed)
    change = dict(zip(series.rows[at].tolist(), move[at].tolist(), strict=True))
    collector.add(
        "spike",
        series.rows[at[back]],
        lambda row: f"close moved by {np.expm1(change[row]):+.1%} and back",
    )
    return np.asarray(at[back], dtype=np.int64)


def _check_breaks(
    collector: Collector, series: Series, motion: Motion, spikes: NDArray[np.int64]
) -> None:
    """Report changes of the level between two bars.

    A break is a step from a close to the next open by more than a factor of 1.5 and 25 usual steps,
    in consecutive bars. Two opposite breaks of the same size enclose a foreign block; one alone, by
    a power of ten or the ratio of a split, is a change of scale, and by any other factor above 3 a
    foreign tail. Blocks of one or two bars are spikes.
    """
    step = motion.step
    at = _larger(step, _BREAK, _USUAL_STEPS, motion.step_scale)
    at = at[~np.isin(at, spikes[:, None] + np.arange(3))]
    if len(at) == 0 or len(at) > max(_CANDIDATES, len(step) // 10):
        return
    taken = np.zeros(len(at), bool)
    for i in range(len(at)):
        if taken[i]:
            continue
        partner = _closing(motion, at, taken, i)
        taken[i] = True
        if partner is not None:
            taken[partner] = True
            _report_break(collector, series, motion, int(at[i]), int(at[partner]))
        elif (single := _single_bar(motion, int(at[i]))) is not None:
            collector.add(
                "spike", series.rows[single : single + 1], lambda _: "a price off the level"
            )
        else:
            _report_break(collector, series, motion, int(at[i]), None)


def _single_bar(motion: Motion, start: int) -> int | None:
    """Return the one bar that a lone break is about, if the level is the same on both sides.

    The close of the bar before is wrong, if the market opens where it was before that bar; the open
    of this one, if it closes where the bar before did.
    """
    half = 0.5 * abs(motion.step[start])
    price = motion.price
    if start >= 2 and abs(price[start - 1] + motion.step[start] - price[start - 2]) <= half:
        return start - 1
    return start if abs(motion.move[start]) <= half else None


def _closing(motion: Motion, at: NDArray[np.int64], taken: NDArray[np.bool_], i: int) -> int | None:
    """Return the next break that undoes the i-th one, up to what the market moved in between."""
    size = motion.step[at[i]]
    for j in range(i + 1, min(i + 20, len(at))):
        drift = 10.0 * motion.move_scale[at[i]] * np.sqrt(at[j] - at[i])
        allowed = min(max(_REVERTED * abs(size), drift), 0.5 * abs(size))
        if not taken[j] and abs(size + motion.step[at[j]]) <= allowed:
            return j
    return None


def _report_break(
    collector: Collector, series: Series, motion: Motion, start: int, end: int | None
) -> None:
    size = abs(motion.step[start])
    near = float(np.clip(3.0 * motion.step_scale[start], 0.01, 0.05))
    tens = round(size / np.log(10.0))
    ten = tens >= 1 and abs(size - tens * np.log(10.0)) <= near
    split = end is None and bool((np.abs(size - _SPLITS) <= near).any())
    length = "to the end" if end is None else f"for {end - start} bars"
    words = f"times {np.exp(motion.step[start]):.6g} {length}"
    rows = series.rows[start : start + 1]
    if end is not None and end - start <= 2:
        collector.add("spike", rows, lambda _: words)
    elif ten or split:
        collector.add("scale-change", rows, lambda _: words, severity="error" if ten else "warning")
    elif end is not None:
        collector.add("symbol-swap", rows, lambda _: words, severity="error")
    elif size > _LONE_BREAK:
        collector.add("symbol-swap", rows, lambda _: words)
