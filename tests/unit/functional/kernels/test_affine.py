"""A table is mapped in one pass as by the formulas of the return scale."""

import math

import pytest
import torch

from stormsail.functional import return_scale
from stormsail.functional.kernels import affine as module

WAYS = {
    "encode": lambda x, numbers: return_scale.encode(x, *numbers[:2]),
    "decode": lambda x, numbers: return_scale.decode(x, *numbers[:2]),
    "re-express": lambda x, numbers: return_scale.re_express(x, *numbers),
}


def numbers_on(device):
    """Return mean, deviation, and new ones, of which the means are far larger than a value."""
    values = (1e6 + 0.37, 0.02, 1e6 + 0.125, 0.031)
    return [torch.tensor(value, dtype=torch.float64, device=device) for value in values]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("shape", [(3, 700, 2), (5,), (0, 4)])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_a_table_is_mapped_as_by_the_formula(kind, shape, way, device, monkeypatch):
    source = torch.Generator().manual_seed(2)
    x = torch.randn(*shape, generator=source, dtype=torch.float64).to(device, kind)
    numbers, calls, own = numbers_on(device), [], module.mapped
    monkeypatch.setattr(return_scale, "mapped", lambda *a, **b: calls.append(1) or own(*a, **b))
    monkeypatch.setattr(module, "may_launch", lambda *_: True)
    got = way(x, numbers)
    monkeypatch.setattr(module, "may_launch", lambda *_: False)
    want = way(x, numbers)
    assert calls == [1]
    assert (got.shape, got.dtype) == (want.shape, kind)
    bound = 4.0 * torch.finfo(kind).eps
    torch.testing.assert_close(got, want, rtol=bound, atol=bound)


def test_a_nan_stays_one_and_what_is_not_known_goes_through_the_formula(device, monkeypatch):
    monkeypatch.setattr(module, "may_launch", lambda *_: True)
    mean, std, *_ = numbers_on(device)
    x = torch.tensor([math.nan, math.inf, 1.0], device=device)
    assert return_scale.decode(x, mean, std).isnan().tolist() == [True, False, False]
    assert module.maps(x, mean, std)
    assert not module.maps(x, mean, 1.0)
    assert not module.maps(x, mean, std.view(1))
    assert not module.maps(x.expand(2, 3), mean)
    assert not module.maps(x.half(), mean)
    assert not module.maps(x[0], mean)  # a number by itself becomes a float64 one
    assert not module.maps(x.requires_grad_(), mean)
