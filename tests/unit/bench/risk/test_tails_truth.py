"""Return distributions by their characteristic functions, beside closed forms and integrals."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from stormsail.bench.risk.tails_truth import Characteristic, StudentSum
from stormsail.core.errors import RangeError

LEVELS = torch.tensor([0.01, 0.05, 0.5, 0.9], dtype=torch.float64)


def normal(mean, deviation):
    return Characteristic(
        lambda t: np.exp(1j * mean * t - (deviation * t) ** 2 / 2.0), mean=mean, spread=deviation
    )


@pytest.mark.parametrize(("mean", "deviation"), [(0.2, 0.1), (-9.0, 3.0)])
def test_a_normal_distribution_comes_back_from_its_characteristic_function(mean, deviation):
    """CVaR of N(m, s²) at 5 % is m - 2.0627128 s."""
    known = normal(mean, deviation)
    exact = stats.norm(mean, deviation)
    assert known.quantiles(LEVELS).tolist() == pytest.approx(exact.ppf(LEVELS.numpy()), abs=1e-8)
    points = torch.tensor([[mean - 2.0 * deviation, mean], [mean + deviation, mean - deviation]])
    assert known.below(points).tolist() == pytest.approx(exact.cdf(points.numpy()), abs=1e-7)
    assert known.below(points).shape == (2, 2)
    assert known.cvar(0.05) == pytest.approx(mean - 2.062712807507426 * deviation, abs=1e-9)


def test_two_far_modes_are_both_seen():
    """-9 in 4 % and 1 else, each ± .1: of the worst 5 %, four fifths are -9 and a fifth .8."""

    def function(t):
        modes = 0.04 * np.exp(-9j * t) + 0.96 * np.exp(1j * t)
        return modes * np.exp(-((0.1 * t) ** 2) / 2)

    known = Characteristic(function, mean=0.6, spread=math.sqrt(0.04 * 0.96 * 100.0 + 0.01))
    lowest = stats.norm.ppf(0.01 / 0.96)
    rest = 1.0 - 0.1 * stats.norm.pdf(lowest) / (0.01 / 0.96)
    assert known.cvar(0.05) == pytest.approx(0.8 * -9.0 + 0.2 * rest, abs=1e-7)


@pytest.mark.refusal
def test_noise_too_small_for_the_nodes_is_refused():
    with pytest.raises(RangeError) as refused:
        normal(0.0, 0.01)
    assert str(refused.value) == (
        "a characteristic function must be below 1e-15 at 400; found 3.4e-04. "
        "Give every step more noise. [out-of-range]"
    )


@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_one_student_variable_is_that_of_the_tables(scale):
    """Its mean below the quantile q of level a is -s f(q) (3 + q²) / (2 a), q and f unscaled."""
    known, exact = StudentSum([scale], mean=0.5), stats.t(3, loc=0.5, scale=scale)
    assert known.spread == pytest.approx(math.sqrt(3.0) * scale)
    assert known.quantiles(LEVELS).tolist() == pytest.approx(exact.ppf(LEVELS.numpy()), rel=1e-8)
    quantile = stats.t.ppf(0.05, 3)
    lower = -stats.t.pdf(quantile, 3) * (3.0 + quantile**2) / 2.0 / 0.05
    assert known.cvar(0.05) == pytest.approx(0.5 + scale * lower, rel=1e-9)


def test_a_sum_of_two_student_variables_is_their_convolution():
    known = StudentSum([1.0, 0.4], mean=0.3)

    def density(x):
        def inner(y):
            return stats.t.pdf(y, 3) * stats.t.pdf((x - 0.3 - y) / 0.4, 3) / 0.4

        return integrate.quad(inner, -np.inf, np.inf, limit=200)[0]

    step = 0.2
    points = np.arange(-6.0, 2.0, step) + step / 2.0
    mass = sum(density(x) for x in points) * step
    ends = known.below(torch.tensor([-6.0, 2.0]))
    assert float(ends[1] - ends[0]) == pytest.approx(mass, abs=1e-3)
    assert known.spread == pytest.approx(math.sqrt(3.0 * (1.0 + 0.16)))


@pytest.mark.parametrize("scales", [[1.0, 0.4], [1.0, 0.9, 0.8, 0.7]])
def test_what_falls_short_is_the_integral_of_the_distribution_function(scales):
    """Up to the quantile; what lies below -4000 has less than 1e-6 of it."""
    known = StudentSum(scales, mean=0.3)
    value = float(known.quantiles(LEVELS)[1])
    integral = integrate.quad(known._cdf, -4000.0, value, limit=800)[0]
    assert known.cvar(0.05) == pytest.approx(value - integral / 0.05, rel=1e-5)
