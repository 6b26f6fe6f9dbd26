"""Rewards that come with the package beside log growth; written as a user would write her own."""

import torch
from torch import Tensor

from stormsail.functional.market import rewards
from stormsail.market.rewards.registry import StepRecord, reward


@reward(
    name="differential_sharpe",
    memory=2,
    # the paper starts from 0, where the ratio is not defined; `volatility` is what a step is
    # expected to vary by before anything was seen
    initial=lambda rate, volatility, least_share: (0.0, volatility**2),  # noqa: ARG005 - by name
)
def differential_sharpe(
    record: StepRecord,
    memory: Tensor,
    *,
    rate: float = 0.01,
    volatility: float = 0.01,
    least_share: float = 0.01,
) -> tuple[Tensor, Tensor]:
    """Return the differential Sharpe ratio of the step (`functional.market.rewards`).

    Args:
        record: of the step.
        memory: exponential means of returns and of their squares.
        rate: weight of a new return, one over the number of bars that the ratio looks back on.
        volatility: standard deviation of a bar's return that an episode begins with.
        least_share: bound of the variance from below, as a share of the one it begins with.
    """
    step = rewards.differential_sharpe(
        record.growth,
        memory[:, 0],
        memory[:, 1],
        rate=rate,
        least_variance=least_share * volatility**2,
    )
    return step.reward, torch.stack((step.mean, step.square), -1)


@reward(name="drawdown_growth")
def drawdown_growth(record: StepRecord, *, penalty: float = 0.5) -> Tensor:
    """Return log growth less `penalty` times what the drawdown grew by, in logarithms.

    Args:
        record: of the step.
        penalty: what a drawdown costs beside the loss itself, as a multiple of it.
    """
    return rewards.drawdown_growth(
        record.equity, record.equity_before, record.peak, record.peak_before, penalty=penalty
    )
