"""Hand-computed values, golden numbers and refusals of `stormsail.functional.quantile`."""

import math

import numpy as np
import pytest
import torch

from stormsail.core.errors import RangeError, ShapeError
from stormsail.functional import quantile, risk

NAN = math.nan


def row(*values):
    return torch.tensor(values, dtype=torch.float64)


def rho(u, tau, kappa):
    """The loss of one prediction at level tau that misses its single target by u."""
    return quantile.huber_loss(row(0.0), row(u), row(tau), kappa=kappa).item()


@pytest.mark.spec("T-Q2", "S1-D2")
def test_four_midpoints_are_the_golden_levels():
    # A level i/N would start at 0, (i+1)/N would end at 1.
    assert quantile.midpoints(4).tolist() == [0.125, 0.375, 0.625, 0.875]
    assert quantile.midpoints(4).dtype == torch.float32
    assert quantile.midpoints(1).tolist() == [0.5]
    assert quantile.midpoints(3, like=row(0.0)).tolist() == [1 / 6, 0.5, 5 / 6]


@pytest.mark.spec("T-Q3", "S1-D3", "M01")
def test_one_pair_gives_the_golden_values():
    # kappa = 1: L(.5) = .125, L(3) = 3 - .5 = 2.5; the weight is tau above, 1 - tau below.
    # At tau = .5 both weights are .5.
    np.testing.assert_allclose(rho(0.5, 0.5, 1.0), 0.5 * 0.125, rtol=1e-12)
    np.testing.assert_allclose(rho(3.0, 0.5, 1.0), 0.5 * 2.5, rtol=1e-12)
    # rho_.1(+1) = .1 * .5 and rho_.1(-1) = .9 * .5: a target below a low quantile costs more.
    np.testing.assert_allclose(rho(1.0, 0.1, 1.0), 0.05, rtol=1e-12)
    np.testing.assert_allclose(rho(-1.0, 0.1, 1.0), 0.45, rtol=1e-12)


@pytest.mark.spec("T-Q3", "S1-D3")
@pytest.mark.parametrize("kappa", [0.02, 0.5, 2.0])
@pytest.mark.parametrize(
    ("multiple", "huber"), [(0.5, 0.125), (1.0, 0.5), (3.0, 2.5), (-0.5, 0.125), (-3.0, 2.5)]
)
def test_the_loss_is_divided_by_the_threshold(kappa, multiple, huber):
    # At u = m kappa, L / kappa = kappa * L_1(m): forgetting to divide gives kappa^2 * L_1(m).
    weight = 0.3 if multiple > 0 else 0.7
    actual = rho(multiple * kappa, 0.3, kappa)
    np.testing.assert_allclose(actual, weight * kappa * huber, rtol=1e-12)


def test_the_pinball_loss_by_hand():
    np.testing.assert_allclose(rho(2.0, 0.25, 0.0), 0.5, rtol=1e-12)
    np.testing.assert_allclose(rho(-2.0, 0.25, 0.0), 1.5, rtol=1e-12)
    assert rho(0.0, 0.25, 0.0) == 0.0


def test_the_loss_is_the_mean_over_predictions_and_targets():
    # Predictions 0 (tau .25) and 4 (tau .75), targets 1, 2, 9; pinball.
    # 0: u = 1, 2, 9 -> .25 * 12 = 3. 4: u = -3, -2, 5 -> .25 * 5 + .75 * 5 = 5. (3 + 5) / 6.
    actual = quantile.huber_loss(row(0, 4), row(1, 2, 9), row(0.25, 0.75), kappa=0.0)
    np.testing.assert_allclose(actual, 8 / 6, rtol=1e-12)


@pytest.mark.spec("M01", "S3-M3")
@pytest.mark.parametrize("kappa", [0.0, 0.5])
def test_the_gradient_pulls_a_low_quantile_down_and_a_high_one_up(kappa):
    # Targets half a unit beyond on both sides: slope -tau above, 1 - tau below, mean over 2 x 2.
    theta = row(0.0, 0.0).requires_grad_()
    quantile.huber_loss(theta, row(-2.0, 2.0), row(0.1, 0.9), kappa=kappa).backward()
    np.testing.assert_allclose(theta.grad, [(0.9 - 0.1) / 4, (0.1 - 0.9) / 4], rtol=1e-12)


def test_the_loss_with_gradients_alike_at_all_levels_by_hand():
    # Level .2: sqrt(.2 * .8) = .4, so the factor is 1 / .8 = 1.25; level .5: 1 / (2 * .5) = 1.
    # Return 3: .2 is at 1, u = 2, .2 * 2 * 1.25 = .5; .5 is at 4, u = -1, .5 * 1 * 1 = .5; mean .5.
    theta = row(1.0, 4.0).requires_grad_()
    loss = quantile.level_huber_loss(theta, row(3.0)[0], row(0.2, 0.5), kappa=0.0)
    np.testing.assert_allclose(loss.item(), 0.5, rtol=1e-12)
    # slopes: -.2 * 1.25 / 2 and +.5 * 1 / 2
    loss.backward()
    np.testing.assert_allclose(theta.grad, [-0.125, 0.25], rtol=1e-12)
    # kappa 2: L(2) / 2 = 1 and L(-1) / 2 = .25: (.25 * 1 + .5 * .25) / 2
    wide = quantile.level_huber_loss(theta, row(3.0)[0], row(0.2, 0.5), kappa=2.0)
    np.testing.assert_allclose(wide.item(), 0.1875, rtol=1e-12)


def test_with_levels_alike_the_tail_has_the_gradient_of_the_middle():
    # Exact quantiles of a uniform variable; its 1,000 middles stand for draws. The mean square of
    # a level's slope is tau (1 - tau) / (4 tau (1 - tau)) / N^2 = 1 / (4 * 9).
    tau = row(0.01, 0.5, 0.9)
    draws = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    theta = tau.expand(1000, 3).clone().requires_grad_()
    quantile.level_huber_loss(theta, draws, tau, kappa=0.0).sum().backward()
    np.testing.assert_allclose(theta.grad.square().mean(0), [1 / 36] * 3, rtol=1e-6)
    np.testing.assert_allclose(theta.grad.mean(0), [0.0] * 3, atol=1e-12)


@pytest.mark.refusal
@pytest.mark.parametrize("sample", [torch.zeros(3), torch.zeros(2, 1), torch.zeros(())])
def test_one_return_for_each_state_or_a_refusal(sample):
    with pytest.raises(ShapeError):
        quantile.level_huber_loss(torch.zeros(2, 4), sample, quantile.midpoints(4), kappa=0.02)


@pytest.mark.spec("T-Q4", "S2-opt2")
@pytest.mark.parametrize("n", [1, 2, 21, 51])
def test_every_number_of_quantiles_works(n):
    tau = quantile.midpoints(n, like=row(0.0))
    theta = torch.linspace(-1, 1, n, dtype=torch.float64).requires_grad_()
    loss = quantile.huber_loss(theta.expand(3, n), torch.zeros(3, 2 * n).double(), tau, kappa=0.02)
    loss.sum().backward()
    assert loss.shape == (3,)
    assert bool(theta.grad.isfinite().all())
    assert quantile.monotone(theta).shape == (n,)
    assert quantile.crossing_fraction(theta).item() == 0.0
    for estimator in ("dirac", "linear"):
        assert bool(risk.cvar(theta, alpha=0.05, estimator=estimator).isfinite())


def test_one_quantile_is_the_median():
    # tau = .5 weighs both sides alike, so between the middle targets the gradient vanishes.
    theta = row(0.5).requires_grad_()
    tau = quantile.midpoints(1, like=theta)
    quantile.huber_loss(theta, row(-9, 0, 1, 3), tau, kappa=0.0).backward()
    np.testing.assert_allclose(theta.grad, [0.0], atol=1e-15)


@pytest.mark.spec("M02")
def test_a_batch_of_states_does_not_mix_with_its_targets():
    # Two states, one quantile and one target each, both at distance 1 from their own target and
    # far from the other's: a [B, 1] against [B] broadcast would give a [B, B] mean of 50.
    predicted, target = row(0.0, 100.0).unsqueeze(-1), row(1.0, 101.0).unsqueeze(-1)
    actual = quantile.huber_loss(predicted, target, row(0.5), kappa=0.0)
    np.testing.assert_allclose(actual, [0.5, 0.5], rtol=1e-12)


@pytest.mark.parametrize("kappa", [0.0, 0.3])
def test_under_autocast_the_loss_keeps_its_digits(kappa):
    tau = quantile.midpoints(5)
    target = torch.linspace(-0.7, 0.9, 7)
    result = []
    for lowered in (False, True):
        predicted = torch.linspace(-1.0, 1.0, 5).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=lowered):
            loss = quantile.huber_loss(predicted, target, tau, kappa=kappa)
        result.append((loss, *torch.autograd.grad(loss, predicted)))
    for exact, other in zip(*result, strict=True):
        assert torch.equal(exact, other)


def test_monotone_by_hand():
    # N = 3: b = log(e - 1), so softplus(0 + b) = 1; steps 0, 1, 2 with the mean 1 around -3.
    actual = quantile.monotone(row(-3.0, 0.0, 0.0))
    np.testing.assert_allclose(actual, [-4, -3, -2], rtol=1e-12)
    # softplus(r + b) = 3 for r = log(e^3 - 1) - b: steps 0, 3, 4 with the mean 7/3 around 5.
    wide = math.log(math.expm1(3.0)) - math.log(math.expm1(1.0))
    actual = quantile.monotone(row(5.0, wide, 0.0))
    np.testing.assert_allclose(actual, [8 / 3, 17 / 3, 20 / 3], rtol=1e-12)
    assert quantile.monotone(row(7.0)).tolist() == [7.0]


@pytest.mark.parametrize("n", [1, 2, 8, 32, 200])
def test_monotone_outputs_of_zero_are_a_uniform_distribution_of_width_two(n):
    actual = quantile.monotone(torch.zeros(n, dtype=torch.float64))
    np.testing.assert_allclose(actual, np.linspace(-1, 1, n) if n > 1 else [0.0], atol=1e-12)


def test_monotone_stays_finite_for_extreme_outputs():
    actual = quantile.monotone(torch.tensor([0.0, 1000.0, -1000.0], requires_grad=True))
    # b = log(e - 1) = .5413: steps 0, 1000.5413, 1000.5413 with the mean 667.0275
    assert actual.tolist() == pytest.approx([-667.0275, 333.5138, 333.5138], rel=1e-6)
    actual[1].backward()


def test_crossing_fraction_by_hand():
    # 1 -> 3 up, 3 -> 2 down, 2 -> 2 equal counts as ordered, 2 -> 0 down: 2 of 4.
    assert quantile.crossing_fraction(row(1, 3, 2, 2, 0)).item() == 0.5
    assert quantile.crossing_fraction(row(1)).item() == 0.0
    assert quantile.crossing_fraction(torch.zeros(2, 3, 1)).tolist() == [[0.0] * 3] * 2


def test_huber_active_by_hand():
    # Distances 1, 2 and 0, 1: strictly above 1 is one pair of four, strictly above .5 is three.
    predicted, target = row(0.0, 1.0), row(1.0, 2.0)
    assert quantile.huber_active(predicted, target, kappa=1.0).item() == 0.25
    assert quantile.huber_active(predicted, target, kappa=0.5).item() == 0.75
    assert quantile.huber_active(predicted, target, kappa=0.0).item() == 0.75


@pytest.mark.refusal
@pytest.mark.spec("M02")
@pytest.mark.parametrize("name", ["huber_loss", "huber_active"])
def test_the_loss_refuses_to_broadcast(name):
    predicted, target = torch.zeros(4, 8), torch.zeros(1, 8)
    tau = (quantile.midpoints(8),) if name == "huber_loss" else ()
    with pytest.raises(ShapeError) as caught:
        getattr(quantile, name)(predicted, target, *tau, kappa=1.0)
    assert str(caught.value) == (
        "`predicted` and `target` must share every dimension but the last; "
        "found predicted (4, 8) and target (1, 8). "
        "Reduce or expand one of them before the call; this loss never broadcasts. [shape-mismatch]"
    )


@pytest.mark.refusal
@pytest.mark.spec("M02")
def test_a_target_without_a_sample_dimension_is_refused():
    # The history of this bug: targets [B] or [B, 1, 1] slipped in and broadcast to [B, B, N].
    for target in (torch.zeros(4), torch.zeros(4, 1, 1)):
        with pytest.raises(ShapeError) as caught:
            quantile.huber_loss(torch.zeros(4, 8), target, quantile.midpoints(8), kappa=1.0)
        assert f"found predicted (4, 8) and target {tuple(target.shape)}." in str(caught.value)


@pytest.mark.refusal
@pytest.mark.parametrize("shape", [(7,), (1,), (4, 8)])
def test_levels_must_match_the_quantiles(shape):
    with pytest.raises(ShapeError) as caught:
        quantile.huber_loss(torch.zeros(4, 8), torch.zeros(4, 3), torch.zeros(shape), kappa=1.0)
    assert str(caught.value) == (
        f"`tau` must have one entry for each of the 8 quantiles; found tau {shape}. "
        "Use `midpoints(8)`. [shape-mismatch]"
    )


@pytest.mark.refusal
@pytest.mark.spec("M23")
@pytest.mark.parametrize("name", ["huber_loss", "huber_active"])
@pytest.mark.parametrize("kappa", [-1.0, -1e-9, NAN])
def test_a_threshold_below_zero_is_refused(name, kappa):
    tau = (quantile.midpoints(8),) if name == "huber_loss" else ()
    with pytest.raises(RangeError) as caught:
        getattr(quantile, name)(torch.zeros(4, 8), torch.zeros(4, 8), *tau, kappa=kappa)
    assert str(caught.value) == (
        f"`kappa` must be at least 0; found {kappa!r}. "
        "Use 0 for the pinball loss or a small threshold such as 0.02. [out-of-range]"
    )
