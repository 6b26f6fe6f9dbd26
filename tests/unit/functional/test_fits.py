"""What the quantile loss really learns: fits by its own gradient, without closed forms of ours.

The targets are M midpoint quantiles of the true distribution, so expectations have no sampling
error.
"""

import numpy as np
import pytest
import torch
from scipy import stats

from oracles import risk as risk_oracle
from stormsail.functional import quantile, risk

UNIT_STUDENT = stats.t(3, scale=1 / np.sqrt(3))
"""Student's t with 3 degrees of freedom and variance 1."""


def grid(distribution, count):
    return torch.from_numpy(distribution.ppf((np.arange(count) + 0.5) / count))


def gradient(theta, target, tau, kappa):
    theta = theta.clone().requires_grad_()
    quantile.huber_loss(theta, target, tau, kappa=kappa).backward()
    return theta.grad


def descend(distribution, n, *, kappa, rounds, rate):
    """Plain gradient descent from a start that is the same for all levels."""
    target, theta = grid(distribution, 2001), torch.ones(n, dtype=torch.float64)
    tau = quantile.midpoints(n, like=theta)
    for _ in range(rounds):
        theta = theta - rate * n * gradient(theta, target, tau, kappa)
    return theta


def fixed_point(distribution, tau, *, kappa, reach=60.0, count=20_001):
    """Zero of the gradient of `huber_loss`, one bisection for each level at once."""
    target = grid(distribution, count)
    low, high = torch.full_like(tau, -reach), torch.full_like(tau, reach)
    for _ in range(36):  # to 2e-9
        middle = 0.5 * (low + high)
        rising = gradient(middle, target, tau, kappa) > 0
        low, high = torch.where(rising, low, middle), torch.where(rising, middle, high)
    return 0.5 * (low + high)


@pytest.mark.spec("T-Q1", "S1-D1", "S3-M3", "M01")
def test_fitted_quantiles_of_an_exponential_distribution_are_its_quantiles_in_order():
    # Flipping the indicator learns the 1 - tau quantiles: the order comes out reversed.
    theta = descend(stats.expon, 5, kappa=0.01, rounds=400, rate=0.4)
    expected = -np.log(1 - (np.arange(5) + 0.5) / 5)
    np.testing.assert_allclose(theta, expected, rtol=0.05)
    assert bool((theta.diff() > 0).all())


@pytest.mark.spec("T-Q1", "S1-D1", "M01")
def test_fitted_quantiles_of_a_normal_distribution_are_its_quantiles_in_order():
    theta = descend(stats.norm, 7, kappa=0.01, rounds=400, rate=0.4)
    expected = stats.norm.ppf((np.arange(7) + 0.5) / 7)
    np.testing.assert_allclose(theta, expected, atol=0.01)
    assert bool((theta.diff() > 0).all())


@pytest.mark.spec("T-Q1")
def test_the_pinball_loss_fits_the_quantiles_themselves():
    tau = quantile.midpoints(5, like=torch.zeros(1, dtype=torch.float64))
    theta = fixed_point(stats.norm, tau, kappa=0.0, count=4001)
    np.testing.assert_allclose(theta, stats.norm.ppf(tau), atol=1e-3)


@pytest.mark.spec("T-C6", "X4")
@pytest.mark.parametrize(
    ("kappa", "expected"),
    [(1.0, -1.617), (0.5, -1.770), (0.25, -1.868), (0.1, -1.934), (0.01, -1.976)],
)
def test_the_golden_fixed_points_of_the_lowest_of_21_levels(kappa, expected):
    # With kappa 1 in unit variance the "quantile" is nearly an expectile; the true one is -1.981.
    # A missing division by kappa moves no zero, so the slope is checked too: it is that of the
    # pinball loss far outside, 1 - tau per level.
    tau = torch.tensor([0.5 / 21], dtype=torch.float64)
    theta = fixed_point(stats.norm, tau, kappa=kappa, reach=8.0)
    np.testing.assert_allclose(theta, [expected], atol=1e-3)
    far = gradient(torch.full_like(tau, 50.0), grid(stats.norm, 101), tau, kappa)
    np.testing.assert_allclose(far, 1 - tau, rtol=1e-9)


@pytest.mark.spec("T-C6", "X4")
@pytest.mark.parametrize(
    ("kappa", "expected", "percent"),
    [(1.0, -1.595, 22.7), (0.5, -1.747, 15.3), (0.1, -1.910, 7.4), (0.01, -1.951, 5.4)],
)
def test_the_tail_fitted_to_a_normal_distribution_falls_short_as_documented(
    kappa, expected, percent
):
    tau = quantile.midpoints(21, like=torch.zeros(1, dtype=torch.float64))
    theta = fixed_point(stats.norm, tau, kappa=kappa, reach=8.0, count=4001)
    cvar = risk.cvar(theta, alpha=0.05).item()
    np.testing.assert_allclose(cvar, expected, atol=1.5e-3)
    short = 100 * (1 - cvar / risk_oracle.normal_cvar(0.05))
    np.testing.assert_allclose(short, percent, atol=0.1)


@pytest.mark.spec("T-C6", "X4")
def test_a_threshold_of_a_tenth_keeps_the_fitted_tail_within_nine_percent():
    tau = quantile.midpoints(21, like=torch.zeros(1, dtype=torch.float64))
    theta = fixed_point(stats.norm, tau, kappa=0.1, reach=8.0, count=4001)
    cvar = risk.cvar(theta, alpha=0.05).item()
    assert 0 < 1 - cvar / risk_oracle.normal_cvar(0.05) < 0.09


@pytest.mark.spec("T-C6", "X4")
@pytest.mark.parametrize(
    ("kappa", "percent", "documented"), [(1.0, 33.98, 33.8), (0.01, 17.98, 17.8)]
)
def test_the_tail_fitted_to_a_heavy_distribution_falls_short_as_documented(
    kappa, percent, documented
):
    # Against the closed form. Spec 2.5 says 33.8 and 17.8: measured against the tail of a finite
    # grid of targets, which is itself .25 % short for so heavy a distribution.
    tau = quantile.midpoints(21, like=torch.zeros(1, dtype=torch.float64))
    theta = fixed_point(UNIT_STUDENT, tau, kappa=kappa, count=20_001)
    cvar = risk.cvar(theta, alpha=0.05).item()
    true = risk_oracle.student_cvar(0.05, 3) / np.sqrt(3)
    np.testing.assert_allclose(100 * (1 - cvar / true), percent, atol=0.02)
    np.testing.assert_allclose(100 * (1 - cvar / true), documented, atol=0.2)


@pytest.mark.spec("X4")
def test_the_shipped_threshold_is_almost_the_pinball_loss():
    tau = quantile.midpoints(32, like=torch.zeros(1, dtype=torch.float64))
    shipped, pinball = (
        risk.cvar(fixed_point(stats.norm, tau, kappa=k, reach=8.0, count=4001), alpha=0.05).item()
        for k in (0.02, 0.0)
    )
    np.testing.assert_allclose(shipped, pinball, rtol=0.01)
