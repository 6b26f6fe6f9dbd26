"""What is done with each row of a decision is the same by one kernel as by its formula."""

import math

import pytest
import torch

from stormsail.core.task import DiscreteActions
from stormsail.functional import distribution, statistics
from stormsail.functional.kernels import decisions as module
from stormsail.modules import actions, scale

SHAPES = [(3, 7, 5), (300, 1), (1, 40), (0, 4), (2, 257)]


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def kind(request):
    return request.param


def draw(shape, kind, device, *, seed=0):
    source = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=source, dtype=torch.float64).mul(3.0).to(device, kind)


def launching(monkeypatch, *, launches=True):
    monkeypatch.setattr(module, "may_launch", lambda *_: launches)


@pytest.mark.parametrize("shape", SHAPES)
def test_scaled_observations_are_those_of_the_formula(shape, kind, device, monkeypatch):
    own = scale.ObservationScale(shape[-1], frozen=torch.arange(shape[-1]) % 3 == 1).to(device)
    seen = draw((50, shape[-1]), torch.float64, device, seed=1) * 1e-3
    own.commit(statistics.moments(seen, weight=seen.new_ones(50)))
    x = draw(shape, kind, device) * 1e-3
    if x.numel() > 4:
        x.view(-1)[:4] = torch.tensor([math.nan, math.inf, -math.inf, 50.0], dtype=kind)
    found = {}
    for launches in (True, False):
        launching(monkeypatch, launches=launches)
        found[launches] = own(x)
    assert found[True].dtype == kind
    bound = 2.0 * torch.finfo(kind).eps  # roots of float64 end otherwise on some processors
    torch.testing.assert_close(found[True], found[False], rtol=bound, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("shape", SHAPES)
def test_classes_are_drawn_by_the_numbers_that_the_formula_takes(shape, kind, device, monkeypatch):
    head, logits = actions.CategoricalHead(DiscreteActions(shape[-1])), draw(shape, kind, device)
    if shape[-1] > 1:
        logits[..., 0] = -math.inf  # not allowed
    found = {}
    for launches in (True, False):
        launching(monkeypatch, launches=launches)
        source = torch.Generator(device).manual_seed(3)
        found[launches] = head.sample(logits, source), source.get_state()
    assert torch.equal(found[True][0], found[False][0])
    assert torch.equal(found[True][1], found[False][1])
    assert found[True][0].dtype == torch.int64


def test_a_row_of_nan_draws_a_class_that_there_is(device):
    logits = torch.full((3, 5), math.nan, device=device)
    logits[1:, :] = -math.inf
    logits[2, 3] = math.nan
    chosen = module.drawn_classes(logits, torch.full((3, 5), 0.5, device=device))
    assert chosen.tolist() == [0, 0, 3]
    equal = module.drawn_classes(torch.zeros(2, 5, device=device), torch.zeros(2, 5, device=device))
    assert equal.tolist() == [0, 0]


@pytest.mark.parametrize("shape", SHAPES)
def test_log_probabilities_are_those_of_the_formula(shape, kind, device, monkeypatch):
    logits = draw(shape, kind, device)
    if shape[-1] > 1:
        logits[..., 0] = -math.inf
    action = torch.arange(logits[..., 0].numel(), device=device).view(shape[:-1]) % shape[-1]
    want = distribution.categorical_log_prob(logits.double(), action)
    launching(monkeypatch)
    got = distribution.categorical_log_prob(logits, action)
    assert (got.dtype, got.shape) == (kind, want.shape)
    bound = 1e-6 if kind == torch.float32 else 1e-13
    torch.testing.assert_close(got.double(), want, rtol=bound, atol=bound, equal_nan=True)
    wide = torch.cat((logits, logits), -1)[..., : shape[-1]]
    assert torch.equal(
        distribution.categorical_log_prob(wide, action).nan_to_num(7.0), got.nan_to_num(7.0)
    )


def test_what_learns_goes_through_the_formula(device, monkeypatch):
    launching(monkeypatch)
    logits = draw((4, 5), torch.float32, device).requires_grad_()
    action = torch.zeros(4, dtype=torch.int64, device=device)
    assert distribution.categorical_log_prob(logits, action).grad_fn is not None
    with torch.no_grad():
        assert module.serves(logits)
    assert not module.serves(logits)
    assert not module.serves(logits.detach().half())
