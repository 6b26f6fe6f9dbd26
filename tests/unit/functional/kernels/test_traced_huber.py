"""The quantile loss that a compiler gets has the numbers of the paper, and so has its slope."""

import numpy as np
import pytest
import torch

from oracles import quantile as oracle
from stormsail.core.machine_code.graph_compiler import record_graph
from stormsail.functional import quantile
from stormsail.functional.kernels.losses import traced_huber

CASES = {  # levels, atoms, kappa, atoms of unequal mass
    "odd": (5, 9, 0.3, False),
    "pinball": (4, 3, 0.0, False),
    "pinball by mass": (3, 5, 0.0, True),
    "by mass": (7, 6, 0.02, True),
    "one": (1, 1, 0.5, False),
    "a threshold that may change": (3, 4, torch.tensor(0.2, dtype=torch.float64), False),
}


def draw(levels, atoms, *, by_mass):
    source = torch.Generator().manual_seed(levels + atoms)
    theta = torch.randn(3, 2, levels, generator=source, dtype=torch.float64)
    y = torch.randn(3, 1, atoms, generator=source, dtype=torch.float64).expand(-1, 2, -1)
    mass = torch.rand(atoms, generator=source, dtype=torch.float64) + 0.1 if by_mass else None
    tau = quantile.midpoints(levels, like=theta)
    return theta.requires_grad_(), y, tau, None if mass is None else mass / mass.sum()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-14), (torch.float32, 2e-6)])
def test_loss_slope_and_share_are_those_of_calls(case, dtype, bound):
    levels, atoms, kappa, by_mass = case
    theta, y, tau, mass = draw(levels, atoms, by_mass=by_mass)
    want = quantile.huber_loss(theta, y, tau, kappa=kappa, target_weight=mass)
    share = torch.linspace(-1.0, 2.0, 6, dtype=torch.float64).view(3, 2)
    (theirs,) = torch.autograd.grad((want * share).sum(), theta)
    counted = quantile.huber_active(theta.detach(), y, kappa=kappa, target_weight=mass)
    narrow = theta.detach().to(dtype).requires_grad_()
    rest = [None if part is None else part.to(dtype) for part in (y, tau, mass)]
    loss, active = traced_huber.huber_loss_and_active(narrow, *rest[:2], kappa, rest[2])
    assert loss.dtype == active.dtype == dtype
    (slope,) = torch.autograd.grad((loss * share.to(dtype)).sum(), narrow)
    torch.testing.assert_close(loss.double(), want.detach(), rtol=bound, atol=bound)
    torch.testing.assert_close(slope.double(), theirs, rtol=bound, atol=bound)
    torch.testing.assert_close(active.double(), counted, rtol=bound, atol=bound)


@pytest.mark.parametrize("kappa", [0.0, 0.02, 0.7])
def test_the_loss_is_that_of_the_oracle(kappa):
    theta, y, tau, _ = draw(4, 6, by_mass=False)
    loss, active = traced_huber.huber_loss_and_active(theta, y, tau, kappa, None)
    (slope,) = torch.autograd.grad(loss.sum(), theta)
    for k in range(3):
        args = [part.detach().numpy() for part in (theta[k, 1], y[k, 1], tau)]
        np.testing.assert_allclose(loss[k, 1].item(), oracle.huber_loss(*args, kappa), rtol=1e-12)
        want = oracle.huber_loss_gradient(*args, kappa)
        np.testing.assert_allclose(slope[k, 1], want, rtol=1e-12, atol=1e-15)
        beyond = np.abs(args[1][None, :] - args[0][:, None]) > kappa
        np.testing.assert_allclose(active[k, 1].item(), beyond.mean(), rtol=1e-12)


def test_an_atom_on_the_prediction_pulls_nowhere():
    theta = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
    tau = torch.full((1,), 0.25, dtype=torch.float64)
    y = torch.tensor([[3.0, 0.0, 0.0]], dtype=torch.float64)
    loss, active = traced_huber.huber_loss_and_active(theta, y, tau, 0.0, None)
    (slope,) = torch.autograd.grad(loss.sum(), theta)
    assert loss.item() == pytest.approx(0.25)  # .25 * 3 / 3
    assert slope.item() == pytest.approx(-0.25 / 3)
    assert active.item() == pytest.approx(1.0 / 3)


def test_what_is_recorded_of_the_loss_keeps_its_slope_and_goes_back_by_one_product(monkeypatch):
    theta, y, tau, _ = draw(5, 7, by_mass=False)
    monkeypatch.setattr(quantile, "is_traced", lambda: True)

    def run(predicted, target):
        leaf = predicted.detach().requires_grad_()
        with torch.enable_grad():
            loss = quantile.huber_loss(leaf, target, tau, kappa=0.3)
            return [loss.detach(), *torch.autograd.grad(loss.sum(), leaf)]

    graph = record_graph(run, [theta.detach(), y])
    back = [str(node.target) for node in graph.graph.nodes][-4:]
    assert sum("mul" in name for name in back) == 1
    loss, slope = graph(theta.detach(), y)
    want = quantile._pairwise_huber(theta, y, tau, 0.3, None)
    (theirs,) = torch.autograd.grad(want.sum(), theta)
    torch.testing.assert_close(loss, want.detach(), rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(slope, theirs, rtol=1e-14, atol=1e-14)
