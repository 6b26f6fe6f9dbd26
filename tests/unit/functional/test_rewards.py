"""Differential Sharpe ratio and drawdown penalty, in numbers worked out by hand and by oracles."""

import math

import numpy as np
import pytest
import torch

from oracles import differential_sharpe as definition
from oracles import rewards as oracle
from stormsail.core.errors import RangeError, ShapeError
from stormsail.functional.market import rewards


def column(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_the_differential_sharpe_ratio_by_hand():
    # A = 0.001, B = 0.0002, R = 0.02 and -0.01. Variance = 0.0002 - 0.000001 = 0.000199.
    # Gain: dA = 0.019, dB = 0.0004 - 0.0002 = 0.0002.
    #   B dA - A dB / 2 = 3.8e-6 - 1e-7 = 3.7e-6
    # Loss: dA = -0.011, dB = 0.0001 - 0.0002 = -0.0001.
    #   B dA - A dB / 2 = -2.2e-6 + 5e-8 = -2.15e-6
    growth = column(0.02, -0.01).log1p()
    step = rewards.differential_sharpe(
        growth, column(0.001, 0.001), column(0.0002, 0.0002), rate=0.1, least_variance=1e-9
    )
    below = 0.000199**1.5
    assert step.reward.tolist() == pytest.approx([3.7e-6 / below, -2.15e-6 / below], rel=1e-12)
    # A' = .001 + .1 * .019 and .001 - .1 * .011; B' = .0002 + .1 * .0002 and .0002 - .1 * .0001
    assert step.mean.tolist() == pytest.approx([0.0029, -0.0001], rel=1e-12)
    assert step.square.tolist() == pytest.approx([0.00022, 0.00019], rel=1e-12)


def test_the_variance_below_the_line_is_at_least_the_bound():
    # A flat account: A = B = 0, R = 0.01, bound 1e-4: D = 0, since B dA = A dB = 0.
    step = rewards.differential_sharpe(
        column(0.01).log1p(), column(0.0), column(0.0), rate=0.5, least_variance=1e-4
    )
    assert step.reward.item() == 0.0
    assert (step.mean.item(), step.square.item()) == pytest.approx((0.005, 5e-5), rel=1e-12)
    # A = 0.01 and B = 0.0001 have no variance: (1e-4 * .01 - .005 * 3e-4) / (1e-4)^1.5 = -0.5
    step = rewards.differential_sharpe(
        column(0.02).log1p(), column(0.01), column(1e-4), rate=0.5, least_variance=1e-4
    )
    assert step.reward.item() == pytest.approx(-0.5, rel=1e-10)


def test_the_differential_ratio_of_a_path_is_that_of_its_definition():
    generator = np.random.Generator(np.random.PCG64(3))
    for scale, rate in ((0.001, 0.01), (0.02, 0.1), (0.1, 0.5)):
        returns = scale * (0.2 + generator.standard_normal(60))
        start = (0.1 * scale, 1.5 * scale**2)
        expected = definition.path(returns, rate=rate, mean=start[0], square=start[1])
        average, square = column(start[0]), column(start[1])
        for value, wanted in zip(returns, expected, strict=True):
            growth = column(value).log1p().requires_grad_()
            step = rewards.differential_sharpe(
                growth, average, square, rate=rate, least_variance=1e-15
            )
            assert step.reward.item() == pytest.approx(wanted, rel=1e-9, abs=1e-9)
            (slope,) = torch.autograd.grad(step.reward, growth)
            # dD/dg = dD/dR dR/dg with R = e^g - 1
            by_return = definition.differential_by_return(value, average.item(), square.item())
            assert slope.item() == pytest.approx(by_return * (1.0 + value), rel=1e-9)
            average, square = step.mean.detach(), step.square.detach()
        last = definition.moments(returns, rate=rate, mean=start[0], square=start[1])
        assert (average.item(), square.item()) == pytest.approx(last, rel=1e-12)


def test_the_differential_ratio_is_the_derivative_of_the_ratio_to_the_rate():
    returns, rate = 0.01 * np.random.Generator(np.random.PCG64(1)).standard_normal(40), 1e-7
    mean, square = 0.0004, 0.00012
    start = mean / math.sqrt(square - mean**2)
    for value in returns:
        (after,) = oracle.sharpe_of_moments([value], rate=rate, mean=mean, square=square)
        step = rewards.differential_sharpe(
            column(value).log1p(), column(mean), column(square), rate=rate, least_variance=1e-12
        )
        assert step.reward.item() == pytest.approx((after - start) / rate, rel=1e-4, abs=1e-5)


def test_the_drawdown_penalty_by_hand():
    # From 90 with a peak of 100: to 81, deeper by log 90/81; to 95, recovering; to 110, a new peak.
    before, peak = column(90.0, 90.0, 90.0), column(100.0, 100.0, 100.0)
    after, highest = column(81.0, 95.0, 110.0), column(100.0, 100.0, 110.0)
    found = rewards.drawdown_growth(after, before, highest, peak, penalty=0.5)
    fall = math.log(81 / 90)
    assert found.tolist() == pytest.approx(
        [1.5 * fall, math.log(95 / 90), math.log(110 / 90)], rel=1e-14
    )


def test_a_fall_is_charged_once_however_many_steps_it_takes():
    equity = [100.0, 98.0, 95.0, 95.0, 90.0]
    found = sum(oracle.drawdown_growth(equity, penalty=2.0))
    assert found == pytest.approx(3.0 * math.log(0.9), rel=1e-14)


@pytest.mark.refusal
def test_refusals():
    one, two = column(1.0), column(1.0, 2.0)
    with pytest.raises(ShapeError):
        rewards.differential_sharpe(one, two, one, rate=0.1, least_variance=1.0)
    with pytest.raises(RangeError):
        rewards.differential_sharpe(one, one, one, rate=1.1, least_variance=1.0)
    with pytest.raises(RangeError):
        rewards.differential_sharpe(one, one, one, rate=0.1, least_variance=0.0)
    with pytest.raises(ShapeError):
        rewards.drawdown_growth(one, one, two, one, penalty=0.5)
    with pytest.raises(RangeError):
        rewards.drawdown_growth(one, one, one, one, penalty=-0.5)
