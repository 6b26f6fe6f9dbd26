"""Draws of N(0, 1) in C++ are those of torch, and so is the state that they leave."""

import shutil

import pytest
import torch

from stormsail.core.machine_code import cpp
from stormsail.optim.fused.normal import NormalDraws
from stormsail.optim.fused.whole_step import SOURCE

COMPILER = any(shutil.which(name) for name in ("c++", "g++", "clang++"))
pytestmark = [
    pytest.mark.skipif(not COMPILER, reason="no C++ compiler"),
    # torch deprecates functions that its own compiler uses
    pytest.mark.filterwarnings("default"),
]


@pytest.fixture(scope="module")
def library():
    return cpp.compiled_library(SOURCE, instead="wait")


def pair(seed):
    return tuple(torch.Generator().manual_seed(seed) for _ in range(2))


def test_numbers_and_state_are_those_of_torch_whatever_was_drawn_before(library):
    draws, (ours, theirs) = NormalDraws(library), pair(7)
    for size in (16, 17, 31, 623, 624, 625, 1, 15, 1248, 5, 50_371, 640, 100_003):
        found, wanted = torch.empty(size), torch.empty(size)
        draws.fill_(found, ours)
        wanted.normal_(generator=theirs)
        # both make a size and an angle of the same 24 bits each; their last digits may differ
        torch.testing.assert_close(found, wanted, rtol=2e-6, atol=2e-6)
        assert torch.equal(ours.get_state(), theirs.get_state())
        orders = [torch.randperm(size % 97, generator=own) for own in (ours, theirs)]
        assert torch.equal(*orders)
    assert draws._fits


def test_a_state_may_be_taken_and_put_back_between_two_draws(library):
    draws, (ours, theirs) = NormalDraws(library), pair(2**63 - 1)
    for own in (ours, theirs):
        own.set_state(torch.Generator().manual_seed(3).get_state())
    first, again = torch.empty(700), torch.empty(700)
    state = ours.get_state()
    draws.fill_(first, ours)
    ours.set_state(state)
    draws.fill_(again, ours)
    assert torch.equal(first, again)
    torch.testing.assert_close(
        first, torch.empty(700).normal_(generator=theirs), rtol=2e-6, atol=2e-6
    )


def spoiled(library, change):
    def call(name, sizes, tensors):
        library(name, sizes, tensors)
        change(*tensors)

    return call


CHANGES = {
    "other numbers": lambda _, out: out[-1:].add_(0.01),
    "another state": lambda state, _: state[100:101].add_(1),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_torch_draws_where_its_numbers_would_be_others(library, change):
    draws, (ours, theirs) = NormalDraws(spoiled(library, change)), pair(4)
    for size in (20, 900):
        found = torch.empty(size)
        draws.fill_(found, ours)
        assert torch.equal(found, torch.empty(size).normal_(generator=theirs))
    assert torch.equal(ours.get_state(), theirs.get_state())
