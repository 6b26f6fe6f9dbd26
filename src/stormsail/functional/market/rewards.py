"""Rewards of a trading step beside log growth: differential Sharpe ratio, drawdown penalty."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from stormsail.functional import _checks as check
from stormsail.functional._numbers import Number, scalar


class SharpeMoments(NamedTuple):
    """Differential Sharpe ratio of a step, and the moments after it."""

    reward: Float[Tensor, "*batch"]  # D_t
    mean: Float[Tensor, "*batch"]  # A_t
    square: Float[Tensor, "*batch"]  # B_t


def differential_sharpe(
    growth: Float[Tensor, "*batch"],
    average: Float[Tensor, "*batch"],
    square: Float[Tensor, "*batch"],
    *,
    rate: Number,
    least_variance: Number,
) -> SharpeMoments:
    r"""Return what a step adds to the Sharpe ratio of exponentially weighted returns.

    $$D_t = \frac{B_{t-1}\,\Delta A_t - \tfrac12 A_{t-1}\,\Delta B_t}
    {(B_{t-1} - A_{t-1}^2)^{3/2}},\qquad
    \Delta A_t = R_t - A_{t-1},\quad \Delta B_t = R_t^2 - B_{t-1}$$

    $$A_t = A_{t-1} + \eta\,\Delta A_t,\qquad B_t = B_{t-1} + \eta\,\Delta B_t$$

    with the simple return $R = e^{growth} - 1$: the derivative of $S_t = A_t / \sqrt{B_t - A_t^2}$
    to $\eta$ at $\eta = 0$, so that $S_t \approx S_{t-1} + \eta D_t$ (Moody & Saffell 2001,
    "Learning to trade via direct reinforcement", section II-D; 1998 in "Performance functions and
    reinforcement learning for trading systems and portfolios", where the constant
    $K_\eta$ in front of the ratio is left out, too). Ours is the bound: the variance in the
    denominator is at least `least_variance`, since an account that does not trade has none, and
    moments of 0, from which the paper starts, would divide by 0.

    Args:
        growth: log growth of equity in the step.
        average: A of the step before.
        square: B of the step before.
        rate: eta, the weight of a new return.
        least_variance: bound of B - A^2 from below.

    Raises:
        ShapeError: if the tensors differ in shape.
        RangeError: if the rate is outside of [0, 1], or the bound is not greater than 0.
    """
    check.check_same_shape(growth=growth, average=average, square=square)
    check.check_unit_interval(rate, name="rate", remedy="Use for example 0.01.")
    check.check_positive(
        least_variance, name="least_variance", remedy="Use the square of a small return."
    )
    low = scalar(least_variance, like=growth).to(growth.dtype)
    weight = scalar(rate, like=growth).to(growth.dtype)
    simple = growth.expm1()
    first, second = simple - average, simple.square() - square
    variance = torch.maximum(square - average.square(), low)
    reward = (square * first - 0.5 * average * second) / (variance * variance.sqrt())
    return SharpeMoments(reward, average + weight * first, square + weight * second)


def drawdown_growth(
    equity: Float[Tensor, "*batch"],
    previous: Float[Tensor, "*batch"],
    peak: Float[Tensor, "*batch"],
    previous_peak: Float[Tensor, "*batch"],
    *,
    penalty: Number,
) -> Float[Tensor, "*batch"]:
    r"""Return log growth less a multiple of what the drawdown grew by.

    $$r = \log\frac{E'}{E} - \lambda \max(d' - d, 0),\qquad d = \log\frac{P}{E},\quad
    d' = \log\frac{P'}{E'}$$

    with equity E and E' before and after the step, and highest equities P and P' of the episode.
    Each new depth of a drawdown is charged once, when it is reached: neither waiting in a drawdown
    nor recovering from it costs anything, and a second fall to the same depth is charged again.
    Ours.

    Args:
        equity: after the step, greater than 0.
        previous: before it, greater than 0.
        peak: highest equity of the episode, this step included.
        previous_peak: the same before it.
        penalty: lambda.

    Raises:
        ShapeError: if the tensors differ in shape.
        RangeError: if the penalty is a negative number.
    """
    check.check_same_shape(equity=equity, previous=previous, peak=peak, previous_peak=previous_peak)
    check.check_at_least_zero(penalty, name="penalty", remedy="Use for example 0.5.")
    factor = scalar(penalty, like=equity).to(equity.dtype)
    deeper = (peak / equity).log() - (previous_peak / previous).log()
    return (equity / previous).log() - factor * deeper.clamp(min=0.0)
