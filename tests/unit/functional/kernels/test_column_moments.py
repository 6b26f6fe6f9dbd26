"""Moments of columns are those of the formula."""

import math

import pytest
import torch

from stormsail.functional import statistics
from stormsail.functional.kernels import column_moments as module

SHAPES = [(3000, 40), (70, 1), (5, 7), (600, 256)]


def both(x, weight, monkeypatch):
    found = []
    for launches in (True, False):
        monkeypatch.setattr(module, "may_launch", lambda *_, own=launches: own)
        found.append(statistics.moments(x, weight=weight))
    return found


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_moments_of_columns_are_those_of_the_formula(shape, kind, device, monkeypatch):
    source = torch.Generator().manual_seed(4)
    x = (1e3 + torch.randn(*shape, generator=source, dtype=torch.float64)).to(device, kind)
    weight = torch.rand(shape[0], generator=source).sub(0.3).to(device)  # some are not used
    if shape[0] > 5:
        x[weight <= 0.0] = math.nan
    wide = torch.cat((x, x), 1)[:, : shape[1]]
    monkeypatch.setattr(module, "PROGRAMS", 2)  # so that each goes through several blocks
    for table in (x, wide, x.t().contiguous().t()):
        got, want = both(table, weight, monkeypatch)
        assert {part.dtype for part in got} == {torch.float64}
        for a, b in zip(got, want, strict=True):
            assert a.shape == b.shape
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


def test_what_is_not_known_shows(device, monkeypatch):
    x = torch.ones(4, 2, device=device)
    weight = torch.ones(4, device=device)
    weight[1] = math.nan
    got, want = both(x, weight, monkeypatch)
    assert got.count.isnan()
    assert want.count.isnan()
    x[2, 1] = math.nan
    got, want = both(x, torch.ones(4, device=device), monkeypatch)
    assert got.mean.isnan().tolist() == want.mean.isnan().tolist() == [False, True]
    none, plain = both(x, torch.zeros(4, device=device), monkeypatch)
    assert [part.tolist() for part in none] == [part.tolist() for part in plain]
