"""Functions of the last n bars, the same bit for bit however much history stands before them.

Time is the first axis; every other axis is a batch. Row i of a result belongs to the window that
ends at row i + n - 1 of the input: a result has T - n + 1 rows, and none where T < n. Nothing is
padded, so no half-filled window can pass for a full one.

A cumulative sum depends on where it began, in its last bits if in nothing else. These functions add
in an order that depends on the window alone: halves are merged, S_2m[t] = S_m[t-m] + S_m[t], which
takes about log2(n) vector operations. Only operations that IEEE 754 rounds exactly are used in
them, one at a time, because fused ones give other bits at the end of a vector than in its middle.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from stormsail.core.errors import ShapeError
from stormsail.functional import _checks as check
from stormsail.functional._numbers import Number

TRUNCATION = 1e-10
"""Share of an exponential weighting that may lie beyond its last tap."""

_WINDOW = "Pass the number of bars, for example 20."
_Parts = tuple[Tensor, ...]


def taps(*, decay: Number) -> int:
    r"""Return the least power of two K with :math:`d^K < 10^{-10}`.

    Ours: what an exponential weighting leaves out when only its K newest terms are added. A power
    of two, because sums are doubled. It is a length, so a decay that is a tensor is read.

    Raises:
        RangeError: if `decay` does not lie in [0, 1).
    """
    check.check_unit_interval(decay, name="decay", remedy="Pass a decay below 1.")
    check.check_positive(1.0 - decay, name="1 - decay", remedy="Pass a decay below 1.")
    rate = float(decay)
    if rate <= TRUNCATION:
        return 1
    needed = math.log(TRUNCATION) / math.log(rate)
    return 1 << math.ceil(math.log2(math.floor(needed) + 1))


def window_sum(x: Float[Tensor, " T *batch"], *, window: int) -> Float[Tensor, " rows *batch"]:
    r"""Return :math:`\sum_{k<n} x_{t-k}`.

    Definition; the order of the additions is ours, see the head of this module.

    Raises:
        ShapeError: if `x` has no time axis.
        RangeError: if `window` is not a whole number of at least 1.
    """
    _check(x, window=window)
    return _windowed((x,), window, lambda old, new, _: (old[0] + new[0],))[0]


def window_mean(x: Float[Tensor, " T *batch"], *, window: int) -> Float[Tensor, " rows *batch"]:
    r"""Return :math:`\frac1n \sum_{k<n} x_{t-k}`, the simple moving average.

    Definition; see `window_sum`.

    Raises:
        ShapeError: if `x` has no time axis.
        RangeError: if `window` is not a whole number of at least 1.
    """
    _check(x, window=window)
    return window_sum(x, window=window) / window


def window_variance(
    x: Float[Tensor, " T *batch"], *, window: int, ddof: int = 0
) -> Float[Tensor, " rows *batch"]:
    r"""Return :math:`\frac{1}{n - ddof} \sum_{k<n} (x_{t-k} - \bar x_t)^2`.

    Parts are merged as in Chan, Golub & LeVeque 1983, The American Statistician 37(3):242-247:
    d = mean_b - mean_a, M2 = M2_a + M2_b + d^2 n_a n_b / n. Never a difference of squares, so a
    large mean costs nothing and a constant has variance 0 exactly.

    Raises:
        ShapeError: if `x` has no time axis.
        RangeError: if `window` is not a whole number greater than `ddof`.
    """
    _check(x, window=window)
    remedy = "Pass a window longer than `ddof`."
    check.check_count(window - ddof, name="window - ddof", remedy=remedy)

    return Moments(x).variance(window=window, ddof=ddof)


class Moments:
    """Variances of one series over several windows, which have their halves in common.

    A part is the mean of its rows and their squared distances from it: None for parts of one row,
    where they are 0.
    """

    def __init__(self, x: Tensor) -> None:
        self._doubled: list[_Moment] = [(x, None)]

    def variance(self, *, window: int, ddof: int = 0) -> Tensor:
        """Return what `window_variance` returns, by the same operations in the same order."""
        x = self._doubled[0][0]
        if x.shape[0] < window:
            return x[:0]
        digits = [digit for digit in range(window.bit_length()) if window >> digit & 1]
        total, done = self._block(digits[0]), 1 << digits[0]
        for digit in digits[1:]:
            size = 1 << digit
            total = _merged(self._block(digit), size, total, done, mean=digit < digits[-1])
            done += size
        squares = total[1]
        return (torch.zeros_like(x) if squares is None else squares) / (window - ddof)

    def _block(self, digit: int) -> "_Moment":
        """Return the parts of 2^digit rows."""
        while len(self._doubled) <= digit:
            size = 1 << len(self._doubled) - 1
            half = self._doubled[-1]
            self._doubled.append(_merged(half, size, half, size, mean=True))
        return self._doubled[digit]


_Moment = tuple[Tensor, Tensor | None]


def _merged(older: _Moment, n_older: int, newer: _Moment, n_newer: int, *, mean: bool) -> _Moment:
    """Return the parts of both; `mean` says whether theirs is needed, or any number will do."""
    rows = newer[0].shape[0] - n_older
    old, new = older[0][:rows], newer[0][n_older:]
    count = n_older + n_newer
    gap = new - old
    squares = (gap * gap).mul_(n_older * n_newer / count)
    if older[1] is not None:  # parts of one row only ever are the newer ones beside longer ones
        inside = older[1][:rows]
        squares += inside if newer[1] is None else inside + newer[1][n_older:]
    middle = gap
    if mean:
        middle = gap * (n_newer / count)
        middle += old
    return middle, squares


def window_max(x: Float[Tensor, " T *batch"], *, window: int) -> Float[Tensor, " rows *batch"]:
    r"""Return :math:`\max_{k<n} x_{t-k}`; a NaN in the window is its maximum.

    Definition.

    Raises:
        ShapeError: if `x` has no time axis.
        RangeError: if `window` is not a whole number of at least 1.
    """
    _check(x, window=window)
    return _windowed((x,), window, lambda old, new, _: (torch.maximum(old[0], new[0]),))[0]


def window_min(x: Float[Tensor, " T *batch"], *, window: int) -> Float[Tensor, " rows *batch"]:
    r"""Return :math:`\min_{k<n} x_{t-k}`; a NaN in the window is its minimum.

    Definition.

    Raises:
        ShapeError: if `x` has no time axis.
        RangeError: if `window` is not a whole number of at least 1.
    """
    _check(x, window=window)
    return _windowed((x,), window, lambda old, new, _: (torch.minimum(old[0], new[0]),))[0]


def decayed_sum(
    x: Float[Tensor, " T *batch"], *, decay: Number, window: int
) -> Float[Tensor, " rows *batch"]:
    r"""Return :math:`\sum_{k<n} d^k x_{t-k}`.

    Ours: :math:`S_{a+b}[t] = S_b[t] + d^b S_a[t-b]`. A recursion y_t = x_t + d y_{t-1} remembers
    its first value for ever, in its last bits; this forgets everything after `window` bars.

    Args:
        x: terms.
        decay: d, in [0, 1].
        window: n, how many terms are added.

    Raises:
        ShapeError: if `x` has no time axis.
        RangeError: if `decay` or `window` is out of range.
    """
    _check(x, window=window)
    check.check_unit_interval(decay, name="decay", remedy="Pass a decay of at most 1.")

    def merge(old: _Parts, new: _Parts, counts: tuple[int, int]) -> _Parts:
        part = old[0] * decay ** counts[1]
        part += new[0]
        return (part,)

    return _windowed((x,), window, merge)[0]


def decayed_mean(x: Float[Tensor, " T *batch"], *, decay: Number) -> Float[Tensor, " rows *batch"]:
    r"""Return :math:`\sum_{k<K} d^k x_{t-k} / \sum_{k<K} d^k` with K = `taps(decay=d)`.

    Definition of an exponentially weighted mean, cut off where less than 1e-10 of the weight is
    left (ours), and divided by the weight that is there.

    Raises:
        ShapeError: if `x` has no time axis.
        RangeError: if `decay` does not lie in [0, 1).
    """
    window = taps(decay=decay)
    _check(x, window=window)
    return decayed_sum(x, decay=decay, window=window) * ((1.0 - decay) / (1.0 - decay**window))


def _check(x: Tensor, *, window: int) -> None:
    check.check_count(window, name="window", remedy=_WINDOW)
    if x.ndim == 0:
        raise ShapeError(
            wrong="`x` must have time as its first dimension",
            found="a single number",
            remedy="Pass one row for each bar.",
        )


def _windowed(
    parts: _Parts, window: int, merge: Callable[[_Parts, _Parts, tuple[int, int]], _Parts]
) -> _Parts:
    """Merge one-bar parts to windows along the binary digits of the window, newest digit first.

    `block` covers `size` bars; `total` the newest `done` of the window. `merge` gets the older
    part, the newer part and how many bars each covers.
    """
    if parts[0].shape[0] < window:
        return tuple(part[:0] for part in parts)
    block, size = parts, 1
    total, done = parts, 0
    rest = window
    while rest:
        if rest & 1:
            total = merge(*_adjacent(block, size, total), (size, done)) if done else block
            done += size
        rest >>= 1
        if rest:
            block = merge(*_adjacent(block, size, block), (size, size))
            size *= 2
    return total


def _adjacent(older: _Parts, n_older: int, newer: _Parts) -> tuple[_Parts, _Parts]:
    """Cut both so that row i of the older ends where row i of the newer begins."""
    rows = newer[0].shape[0] - n_older
    return tuple(part[:rows] for part in older), tuple(part[n_older:] for part in newer)
