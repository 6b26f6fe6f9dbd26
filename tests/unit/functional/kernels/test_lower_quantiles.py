"""Lower quantiles by comparison are those of a sort, to the bit."""

import pytest
import torch

from stormsail.functional.kernels.losses.lower_quantiles import lower_quantiles
from stormsail.functional.risk import tail, values_at_risk

LEVELS = (0.0625, 0.25, 0.5, 0.75, 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(40, 32), (3, 7, 5), (5, 1), (0, 4), (2, 100), (33, 64)])
def test_they_are_those_of_sorted_atoms(shape, dtype, device):
    source = torch.Generator().manual_seed(shape[0])
    atoms = torch.randn(shape, generator=source, dtype=dtype).mul(4.0).round()  # many are equal
    weight = torch.rand(shape[-1], generator=source, dtype=torch.float64)
    weight /= weight.sum()
    want = values_at_risk(atoms, alphas=LEVELS, weight=weight)
    got = lower_quantiles(atoms.to(device), weight.to(device), [a - 1e-12 * a for a in LEVELS])
    assert (got.shape, got.dtype) == (want.shape, dtype)
    assert torch.equal(got.cpu(), want)


def test_a_level_that_no_sum_reaches_has_the_largest_atom(device):
    atoms = torch.tensor([[1.0, 3.0, -2.0], [-5.0, -7.0, -6.0]], device=device)
    weight = torch.full((3,), 0.3, dtype=torch.float64, device=device)
    assert lower_quantiles(atoms, weight, [0.95]).tolist() == [[3.0], [-5.0]]


def test_infinite_atoms_are_atoms_and_an_unknown_one_shows(device):
    inf, nan = torch.inf, torch.nan
    atoms = torch.tensor([[inf, 0.0, 1.0], [-inf, 0.0, 1.0], [nan, 0.0, 1.0]], device=device)
    weight = torch.full((3,), 1.0 / 3.0, dtype=torch.float64, device=device)
    got = lower_quantiles(atoms, weight, [0.3, 0.9])
    assert got[:2].tolist() == [[0.0, inf], [-inf, 1.0]]
    assert bool(got[2].isnan().all())


@pytest.mark.gpu
def test_value_at_risk_takes_them_on_a_device_and_gives_the_same_bits():
    atoms = torch.randn(1000, 32, generator=torch.Generator().manual_seed(1)).cuda()
    weight = torch.rand(32, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    weight /= weight.sum()
    alphas = (0.05, 0.25, 0.5, 0.3125, 1.0)  # 10 of 32 atoms and all of them, to the rounding
    got = values_at_risk(atoms, alphas=alphas, weight=weight.cuda())
    assert torch.equal(got.cpu(), values_at_risk(atoms.cpu(), alphas=alphas, weight=weight))
    got = values_at_risk(atoms, alphas=alphas)
    assert torch.equal(got.cpu(), values_at_risk(atoms.cpu(), alphas=alphas))


@pytest.mark.parametrize("alpha", [0.001, 0.05, 0.3, 0.3125, 0.7, 1.0])
@pytest.mark.parametrize("count", [1, 10, 32])
def test_equal_masses_are_counted(alpha, count, device, monkeypatch):
    atoms = torch.randn(20, count, generator=torch.Generator().manual_seed(count))
    want = values_at_risk(atoms, alphas=(alpha, 0.5))
    monkeypatch.setattr(tail, "may_launch", lambda *_: True)
    assert torch.equal(values_at_risk(atoms.to(device), alphas=(alpha, 0.5)).cpu(), want)
