"""`Simulator.compile` is the eager simulator, but for rounding."""

import shutil

import pytest
import torch

from simulator_lab import market, settings, simulator, steady
from stormsail.core.machine_code import graph_compiler
from stormsail.core.task import Columns, part

COMPILER = any(shutil.which(name) for name in ("c++", "g++", "clang++"))
PRICES = [100.0 + 7.0 * ((k * k) % 5) for k in range(60)]


def test_some_of_the_environments_are_compiled_where_all_are(monkeypatch):
    """One of several processes steps its own; what was compiled for all of them fits none."""
    monkeypatch.setattr(graph_compiler, "_compiled", lambda graph, *_: graph)
    whole = simulator(market(steady(PRICES)), settings(episode_bars=9), batch=6)
    own, columns = torch.Generator().manual_seed(2), Columns(2, 2, 6)
    eager = part(whole, columns)
    whole.compile()
    fast = part(whole, columns)
    assert eager._transition == eager.transition
    assert fast._transition != fast.transition
    weight = torch.full((2,), 0.5, dtype=torch.float64)
    steps = []
    for each in (eager, fast):
        own.manual_seed(2)
        state, _ = each.reset(own)
        steps.append(each.step(state, weight, own)[1])
    assert torch.equal(steps[0].observation, steps[1].observation)
    assert torch.equal(steps[0].reward, steps[1].reward)


@pytest.mark.skipif(not COMPILER, reason="no C++ compiler")
@pytest.mark.filterwarnings("default")  # torch deprecates functions that its own compiler uses
def test_compiled_steps_are_the_eager_ones():
    config = settings(episode_bars=9, leverage=3.0, **{"costs.taker_fee": 0.001})
    eager, fast = (simulator(market(steady(PRICES)), config, batch=8) for _ in range(2))
    fast.compile()
    first, second = (torch.Generator().manual_seed(4) for _ in range(2))
    state, seen = eager.reset(first)
    other, shown = fast.reset(second)
    assert torch.equal(seen, shown)
    weights = torch.empty(30, 8, dtype=torch.float64).uniform_(-3.0, 3.0, generator=first)
    first.manual_seed(5), second.manual_seed(5)
    ends = 0
    for weight in weights:
        state, step = eager.step(state, weight, first)
        other, again = fast.step(other, weight, second)
        for name, plain, quick in zip(state._fields, state, other, strict=True):
            torch.testing.assert_close(quick, plain, rtol=1e-11, atol=1e-9, msg=name)
        for name, plain, quick in zip(step.info._fields, step.info, again.info, strict=True):
            torch.testing.assert_close(quick, plain, rtol=1e-9, atol=1e-9, equal_nan=True, msg=name)
        torch.testing.assert_close(again.reward, step.reward, rtol=1e-9, atol=1e-12)
        assert torch.equal(again.terminated, step.terminated)
        assert torch.equal(again.truncated, step.truncated)
        ends += int((step.terminated | step.truncated).sum())
    assert ends >= 8, "new episodes must be among the steps compared"
