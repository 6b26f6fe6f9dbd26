"""Numbers of given ranks are those that a sort would give, bit by bit."""

import math

import pytest
import torch

from stormsail.functional import risk
from stormsail.functional.kernels.ranks import ranked
from stormsail.functional.risk import tail


@pytest.mark.parametrize("shape", [(3, 2, 32), (130, 7), (1, 1), (0, 4), (2, 64)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_numbers_of_ranks_are_those_of_a_sort(shape, dtype, device):
    source = torch.Generator().manual_seed(3)
    table = torch.randn(*shape, generator=source, dtype=torch.float64).mul(2.0).round(decimals=0)
    table = table.to(device, dtype)  # many are equal
    if table.numel() > 1:
        table.view(-1)[:2] = torch.tensor([-math.inf, math.inf], device=device, dtype=dtype)
    ranks = torch.tensor([0, shape[-1] // 2, shape[-1] - 1, 0], device=device)
    got = ranked(table, ranks)
    assert torch.equal(got, table.sort(-1).values.index_select(-1, ranks))


def test_a_row_with_nan_has_no_numbers(device):
    table = torch.tensor([[1.0, math.nan, 0.0], [2.0, 1.0, 3.0]], device=device)
    got = ranked(table, torch.tensor([0, 2], device=device))
    assert got[0].isnan().all()
    assert got[1].tolist() == [1.0, 3.0]


@pytest.mark.parametrize("levels", [32, 65])
def test_values_at_risk_are_the_same_through_the_kernel(levels, device, monkeypatch):
    source = torch.Generator().manual_seed(5)
    quantiles = torch.randn(4, 3, levels, generator=source).to(device)
    want = risk.values_at_risk(quantiles.cpu(), alphas=(0.25, 0.5, 1.0))
    calls = []
    monkeypatch.setattr(tail, "may_launch", lambda *_: True)
    monkeypatch.setattr(tail, "ranked", lambda *given: calls.append(1) or ranked(*given))
    assert torch.equal(risk.values_at_risk(quantiles, alphas=(0.25, 0.5, 1.0)).cpu(), want)
    assert len(calls) == (levels == 32)
    learned = quantiles.clone().requires_grad_()
    risk.values_at_risk(learned, alphas=(0.5,)).sum().backward()
    assert int(learned.grad.sum()) == 12
    assert len(calls) == (levels == 32)
