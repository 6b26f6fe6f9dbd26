"""The quantile loss for a CUDA device gives the numbers of the paper, and so does its slope."""

import math

import numpy as np
import pytest
import torch

from oracles import quantile as oracle
from stormsail.functional import quantile
from stormsail.functional.kernels.losses import quantile_pairs

CASES = {  # levels, atoms, kappa, atoms of unequal mass
    "odd": (5, 9, 0.3, False),
    "pinball": (4, 3, 0.0, False),
    "pinball by mass": (3, 5, 0.0, True),
    "by mass": (7, 6, 0.02, True),
    "one": (1, 1, 0.5, False),
    "more levels than a block": (33, 2, 1.0, False),
}


def draw(levels, atoms, *, samples=3, critics=2, dtype=torch.float64, device="cpu", by_mass=False):
    source = torch.Generator().manual_seed(levels + atoms)
    theta = torch.randn(samples, critics, levels, generator=source, dtype=torch.float64)
    y = torch.randn(samples, 1, atoms, generator=source, dtype=torch.float64)
    mass = torch.rand(atoms, generator=source, dtype=torch.float64) + 0.1 if by_mass else None
    mass = None if mass is None else (mass / mass.sum()).to(device, dtype)
    tau = quantile.midpoints(levels, like=theta).to(device, dtype)
    theta, y = theta.to(device, dtype), y.to(device, dtype)
    return theta.requires_grad_(), y.expand(-1, critics, -1), tau, mass


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-14), (torch.float32, 2e-6)])
def test_loss_slope_and_share_are_those_of_all_pairs(case, dtype, bound, device):
    levels, atoms, kappa, by_mass = case
    theta, y, tau, mass = draw(levels, atoms, dtype=dtype, device=device, by_mass=by_mass)
    level_mass = (tau + 0.5) / (tau + 0.5).sum() if by_mass else None
    loss, seen = quantile_pairs.huber_loss_and_seen(theta, y, tau, kappa, mass, level_mass)
    active = seen.active
    assert loss.shape == active.shape == (3, 2)
    share = torch.linspace(-1.0, 2.0, 6, dtype=dtype, device=device).view(3, 2)
    (slope,) = torch.autograd.grad((loss * share).sum(), theta)
    exact = theta.detach().double().requires_grad_()
    wide = None if mass is None else mass.double()
    want = quantile._pairwise_huber(exact, y.double(), tau.double(), kappa, wide)
    (theirs,) = torch.autograd.grad((want * share.double()).sum(), exact)
    torch.testing.assert_close(loss.double(), want, rtol=bound, atol=bound)
    torch.testing.assert_close(slope.double(), theirs, rtol=bound, atol=bound)
    weight = torch.full_like(y[0, 0].double(), 1.0 / atoms) if wide is None else wide
    beyond = (y.double().unsqueeze(-2) - exact.detach().unsqueeze(-1)).abs() > kappa
    counted = (beyond * weight).sum(-1).mean(-1)
    torch.testing.assert_close(active.double(), counted, rtol=bound, atol=bound)
    crossed = quantile.crossing_fraction(exact.detach())
    torch.testing.assert_close(seen.crossed.double(), crossed, rtol=bound, atol=bound)
    mean = quantile.expectation(
        exact.detach(), weight=None if level_mass is None else level_mass.double()
    )
    torch.testing.assert_close(seen.mean.double(), mean, rtol=bound, atol=bound)
    alone = quantile_pairs.huber_active(theta.detach(), y, kappa, mass)
    assert torch.equal(alone, active)


@pytest.mark.parametrize("kappa", [0.0, 0.02, 0.7])
def test_the_loss_is_that_of_the_oracle(kappa, device):
    theta, y, tau, _ = draw(4, 6, samples=2, critics=1, device=device)
    loss = quantile_pairs.huber_loss(theta, y, tau, kappa, None)
    (slope,) = torch.autograd.grad(loss.sum(), theta)
    for k in range(2):
        args = [part.detach().cpu().numpy() for part in (theta[k, 0], y[k, 0], tau)]
        np.testing.assert_allclose(loss[k, 0].item(), oracle.huber_loss(*args, kappa), rtol=1e-12)
        want = oracle.huber_loss_gradient(*args, kappa)
        np.testing.assert_allclose(slope[k, 0].cpu(), want, rtol=1e-12, atol=1e-15)


def test_an_atom_on_the_prediction_pulls_nowhere(device):
    theta = torch.zeros(1, 1, dtype=torch.float64, device=device, requires_grad=True)
    tau = torch.full((1,), 0.25, dtype=torch.float64, device=device)
    y = torch.zeros(1, 3, dtype=torch.float64, device=device)
    y[0, 0] = 3.0
    loss = quantile_pairs.huber_loss(theta, y, tau, 0.0, None)
    (slope,) = torch.autograd.grad(loss.sum(), theta)
    assert loss.item() == pytest.approx(0.25)  # .25 * 3 / 3
    assert slope.item() == pytest.approx(-0.25 / 3)


def test_targets_that_are_not_shared_are_read_row_by_row(device):
    theta, y, tau, _ = draw(3, 4, device=device)
    own = y + torch.arange(2.0, dtype=y.dtype, device=device)[:, None]
    got = quantile_pairs.huber_loss(theta, own, tau, 0.1, None)
    want = quantile._pairwise_huber(theta, own, tau, 0.1, None)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-14)


def test_a_threshold_may_be_a_tensor_and_a_nan_stays_visible(device):
    theta, y, tau, _ = draw(3, 4, device=device)
    kappa = torch.full((), 0.3, dtype=torch.float64, device=device)
    got = quantile_pairs.huber_loss(theta, y, tau, kappa, None)
    torch.testing.assert_close(got, quantile_pairs.huber_loss(theta, y, tau, 0.3, None))
    broken = theta.detach().clone()
    broken[1, 0, 2] = math.nan
    broken.requires_grad_()
    loss = quantile_pairs.huber_loss(broken, y, tau, kappa, None)
    assert loss.isnan().nonzero().tolist() == [[1, 0]]
    (slope,) = torch.autograd.grad(loss.sum(), broken)
    assert slope.isnan().nonzero().tolist() == [[1, 0, 2]]


@pytest.mark.gpu
@pytest.mark.parametrize("kappa", [0.0, 0.02, 1.0])
@pytest.mark.parametrize(("levels", "atoms"), [(32, 32), (64, 64), (200, 51), (7, 3)])
def test_large_batches_are_those_of_all_pairs(levels, atoms, kappa):
    theta, y, tau, mass = draw(
        levels, atoms, samples=4099, dtype=torch.float32, device="cuda", by_mass=True
    )
    loss = quantile.huber_loss(theta, y, tau, kappa=kappa, target_weight=mass)
    exact = theta.detach().double().requires_grad_()
    want = quantile._pairwise_huber(exact, y.double(), tau.double(), kappa, mass.double())
    torch.testing.assert_close(loss.double(), want, rtol=1e-5, atol=1e-6)
    (slope,) = torch.autograd.grad(loss.sum(), theta)
    (theirs,) = torch.autograd.grad(want.sum(), exact)
    assert float((slope.double() - theirs).norm() / theirs.norm()) < 1e-5
    active = quantile.huber_active(theta, y, kappa=kappa, target_weight=mass)
    counted = quantile.huber_active(theta.cpu(), y.cpu(), kappa=kappa, target_weight=mass.cpu())
    torch.testing.assert_close(active.cpu(), counted, rtol=0, atol=2e-4)
