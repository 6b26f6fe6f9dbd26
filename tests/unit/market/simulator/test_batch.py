"""A batch is many accounts that know nothing of one another, nor of what comes later."""

import hashlib
import math
import os
import subprocess
import sys
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from simulator_lab import at, draws, plain_scaler, settings, simulator, wild_panel
from stormsail.market import MarketConfig, Panel, Simulator
from stormsail.market.features import FeatureSet, FeatureSpec
from stormsail.market.simulator.account import State

BUSY = {
    "leverage": 5.0,
    "costs.taker_fee": 0.001,
    "costs.half_spread": 0.0005,
    "costs.impact": 0.02,
    "costs.impact_window": 4,
    "filters.lot": 0.01,
    "filters.tick": 0.05,
    "filters.min_notional": 100.0,
    "limits.max_turnover": 20.0,
    "limits.max_drawdown": 0.5,
    "limits.max_daily_loss": 0.3,
    "randomise.taker_fee": (0.5, 2.0),
    "degrade.stale_prob": 0.2,
    "degrade.drop_prob": 0.1,
    "degrade.delay_prob": 0.2,
    "degrade.max_delay_bars": 3,
    "no_trade.daily": ("22:00-01:00",),
}
HOLD = {"no_trade.daily": (), "limits.max_leverage": 20.0}
"""Lets a position drift beyond the weights on offer."""
WINDOW = ("parkinson", "realised_volatility")


def features_of(panel):
    specs = [FeatureSpec(name="log_return")]
    specs += [FeatureSpec(name=name, parameters={"window": 4}) for name in WINDOW]
    return FeatureSet(specs, interval=panel.interval)


def busy(panel, *, batch, dtype=torch.float64, device="cpu", episode_bars=8, **changes):
    config = settings(episode_bars=episode_bars, **{**BUSY, **changes})
    features = features_of(panel)
    return simulator(
        panel, config, batch=batch, dtype=dtype, device=device, features=features,
        scaler=plain_scaler(features),
    )  # fmt: skip


def flat(value):
    """Return every tensor of nested tuples."""
    if isinstance(value, Tensor):
        return [value]
    return [tensor for part in value for tensor in flat(part)]


def assert_bits(first, other):
    for a, b in zip(flat(first), flat(other), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(torch.isnan(a), torch.isnan(b))
        assert torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


def actions(count, batch, *, seed=0, dtype=torch.float64, top=5.0, bad=0.05):
    generator = torch.Generator().manual_seed(seed)
    weights = top * (2 * torch.rand(count, batch, generator=generator, dtype=torch.float64) - 1)
    weights[torch.rand(count, batch, generator=generator) < bad] = math.nan
    return weights.to(dtype)


def shuffled(step, order):
    return type(step)(*(part[order] if isinstance(part, Tensor) else shuffled(part, order)
                        for part in step))  # fmt: skip


def test_shuffling_environments_shuffles_the_results():
    batch = 64
    sim = busy(wild_panel(1, rows=60), batch=batch)
    state, _ = sim.reset(torch.Generator().manual_seed(1))
    order = torch.randperm(batch, generator=torch.Generator().manual_seed(2))
    other = State(*(tensor[order] for tensor in state))
    for index, weight in enumerate(actions(30, batch)):
        uniform = draws(sim, index)
        state, step = sim.transition(state, weight, uniform)
        other, mixed = sim.transition(other, weight[order], uniform[:, order])
        assert_bits(State(*(tensor[order] for tensor in state)), other)
        assert_bits(shuffled(step, order), mixed)


def only(panel, column):
    """Return the panel of one symbol."""
    picked = {
        field.name: getattr(panel, field.name)[:, column : column + 1]
        for field in fields(Panel)
        if isinstance(getattr(panel, field.name), Tensor) and getattr(panel, field.name).ndim == 2
    }
    return replace(
        panel, symbols=(panel.symbols[column],), has_funding=panel.has_funding[column : column + 1],
        funding_outside=(0,), **picked,
    )  # fmt: skip


def trail(sim, symbol, weights, *, row=3, last_row=None):
    """Return every state and step of placed environments."""
    batch = sim.batch
    last = None if last_row is None else torch.full((batch,), last_row)
    state, seen = sim.place(torch.as_tensor(symbol), torch.full((batch,), row), last_row=last)
    results = [seen]
    for index, weight in enumerate(weights):
        state, step = sim.transition(state, weight, draws(sim, index))
        results += [*state, *flat(step)]
    return results


def test_a_panel_of_three_symbols_gives_the_ledger_of_each_alone():
    panel = wild_panel(5, rows=50)
    weights = actions(40, 3, bad=0.0)
    quiet = {"degrade.stale_prob": 0.0, "degrade.drop_prob": 0.0, "degrade.delay_prob": 0.0}
    together = busy(panel, batch=3, episode_bars=44, **quiet)
    state, _ = together.place(torch.arange(3), torch.full((3,), 5))
    alone = [busy(only(panel, s), batch=1, episode_bars=44, **quiet) for s in range(3)]
    states = [at(sim, row=5) for sim in alone]
    ended = torch.zeros(3, dtype=torch.bool)
    for index, weight in enumerate(weights):
        uniform = draws(together, index)
        state, step = together.transition(state, weight, uniform)
        for s, sim in enumerate(alone):
            states[s], single = sim.transition(states[s], weight[s : s + 1], uniform[:, s : s + 1])
            if ended[s]:
                continue  # new episodes start anywhere
            for name in ("equity", "cash", "quantity", "fee_total", "funding", "price", "reason"):
                assert_bits(getattr(step.info, name)[s : s + 1], getattr(single.info, name))
            assert_bits(step.observation[s : s + 1], single.observation)
            assert_bits(step.reward[s : s + 1], single.reward)
        ended |= step.terminated | step.truncated
    assert ended.sum() < 3


def bytes_of(thing, seen=None):
    """Return the bytes of all tensors that can be reached from an object."""
    seen = set() if seen is None else seen
    if id(thing) in seen:
        return 0
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        return thing.untyped_storage().nbytes()
    if isinstance(thing, dict):
        return sum(bytes_of(part, seen) for part in thing.values())
    if isinstance(thing, tuple | list):
        return sum(bytes_of(part, seen) for part in thing)
    if is_dataclass(thing) or type(thing).__module__.startswith("stormsail"):
        return bytes_of(vars(thing), seen)
    return 0


def test_a_simulator_of_ten_thousand_holds_no_more_than_one_of_one():
    panel = wild_panel(1, rows=60)
    sizes = [bytes_of(busy(panel, batch=batch)) for batch in (1, 10_000)]
    assert sizes[0] == sizes[1]
    assert sizes[0] > 60 * 3 * 8 * 8  # the tape was found


def test_a_state_holds_a_few_numbers_for_each_environment():
    sim = busy(wild_panel(1, rows=60), batch=1_000)
    assert bytes_of(tuple(at(sim, row=3))) <= 1_000 * len(State._fields) * 8


# --- nothing is read from the device, and nothing later than the row


@pytest.mark.parametrize("action", ["continuous", "levels"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_transition_never_reads_a_value(action, dtype):
    # Fake tensors have shapes but no data: what would wait for a device raises here.
    sim = busy(wild_panel(1, rows=60), batch=4, dtype=dtype, action=action)
    state = at(sim, row=3)
    given = torch.zeros(4, dtype=torch.int64 if action == "levels" else dtype)
    mode = torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        fake = State(*(mode.from_tensor(tensor) for tensor in state))
        uniform = mode.from_tensor(draws(sim))
        moved, step = sim.transition(fake, mode.from_tensor(given), uniform)
    assert [tensor.shape for tensor in moved] == [tensor.shape for tensor in state]
    assert [tensor.dtype for tensor in moved] == [tensor.dtype for tensor in state]
    assert step.observation.shape == (4, sim.observation_size)
    assert step.observation.dtype == step.reward.dtype == dtype


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it loads itself
def test_compiled_it_is_one_graph_and_the_same_numbers():
    batch = 16
    sim = busy(wild_panel(1, rows=60), batch=batch)
    compiled = torch.compile(sim.transition, fullgraph=True, dynamic=False, backend="aot_eager")
    state, _ = sim.reset(torch.Generator().manual_seed(1))
    other = state
    for index, weight in enumerate(actions(12, batch)):
        uniform = draws(sim, index)
        state, step = sim.transition(state, weight, uniform)
        other, again = compiled(other, weight, uniform)
        torch.testing.assert_close(
            flat((state, step)), flat((other, again)), rtol=1e-13, atol=1e-13, equal_nan=True
        )
    torch._dynamo.reset()
    assert other.bad_actions.sum().item() > 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("compiled", [False, True])
def test_an_action_that_is_no_offer_keeps_the_position_and_is_counted(compiled):
    sim = busy(wild_panel(8, rows=60), batch=6, **{"no_trade.daily": ()})
    run = sim.transition
    if compiled:
        run = torch.compile(run, fullgraph=True, dynamic=False, backend="aot_eager")
    state = at(sim, row=3)
    first = torch.tensor([1.5, -1.0, 0.5, 1.0, -2.0, -1.0], dtype=torch.float64)
    state, _ = run(state, first, draws(sim, 1))
    held = state.quantity
    assert (held != 0.0).all()
    bad = torch.tensor([math.nan, math.inf, -math.inf, 5.000001, -6.0, 0.0], dtype=torch.float64)
    state, step = run(state, bad, draws(sim, 2))
    torch._dynamo.reset()
    assert step.info.bad_action.tolist() == [True] * 5 + [False]
    assert state.bad_actions.tolist() == [1] * 5 + [0]
    assert state.quantity.tolist() == [*held[:5].tolist(), 0.0]
    assert step.info.traded[:5].tolist() == [0.0] * 5
    assert step.reward.isfinite().all()


def test_a_level_that_is_no_offer_keeps_the_position_and_is_counted():
    sim = busy(wild_panel(8, rows=60), batch=3, action="levels", **HOLD)
    state = at(sim, row=3)
    state, _ = sim.transition(state, torch.tensor([2, 2, 0]), draws(sim, 1))
    held = state.quantity
    state, step = sim.transition(state, torch.tensor([3, -1, 2**40]), draws(sim, 2))
    assert step.info.bad_action.tolist() == [True] * 3
    assert state.bad_actions.tolist() == [1, 1, 1]
    assert torch.equal(state.quantity, held)


def tampered(panel, row, how, seed=0):
    """Return the panel with everything after a row replaced."""
    rng = np.random.default_rng(seed)

    def change(name, values):
        after = values[row + 1 :]
        if values.dtype == torch.bool:
            new = torch.from_numpy(rng.random(after.shape) < 0.5)
        elif how == "noise":
            new = torch.from_numpy(rng.uniform(1.0, 900.0, after.shape))
        else:
            new = after * 1_000.0
        return torch.cat((values[: row + 1], new.to(values.dtype)))

    names = ("open", "high", "low", "close", "volume", "funding", "tradable")
    return replace(panel, **{name: change(name, getattr(panel, name)) for name in names})


@pytest.mark.spec("R12", "B3")
@pytest.mark.parametrize("how", ["noise", "thousandfold"])
@pytest.mark.parametrize("cut", [4, 5, 11, 24, 25, 37])
def test_what_comes_later_changes_nothing_before(how, cut):
    panel = wild_panel(12, rows=50)
    weights = actions(cut - 3, 3)
    symbols = torch.arange(3)
    clean = trail(busy(panel, batch=3), symbols, weights, last_row=45)
    dirty = trail(busy(tampered(panel, cut, how), batch=3), symbols, weights, last_row=45)
    assert_bits(clean, dirty)


@pytest.mark.spec("R12", "B3")
def test_the_bar_that_fills_does_change_the_result():
    # Otherwise the test above would be blind.
    panel = wild_panel(12, rows=50)
    weights = actions(9, 3, bad=0.0)
    clean = trail(busy(panel, batch=3), torch.arange(3), weights, last_row=45)
    dirty = trail(
        busy(tampered(panel, 11, "noise"), batch=3), torch.arange(3), weights, last_row=45
    )
    with pytest.raises(AssertionError):
        assert_bits(clean, dirty)


@pytest.mark.spec("M39")
def test_a_result_does_not_depend_on_where_the_data_end():
    panel = wild_panel(12, rows=50)
    short = panel.between(int(panel.ts[0]), int(panel.ts[31]))
    weights = actions(20, 3)
    whole = trail(busy(panel, batch=3), torch.arange(3), weights, last_row=25)
    cut = trail(busy(short, batch=3), torch.arange(3), weights, last_row=25)
    assert_bits(whole, cut)


# --- the same seed gives the same bytes


def digest(seed=3):
    sim = busy(wild_panel(1, rows=60), batch=8, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    state, observation = sim.reset(generator)
    total = hashlib.sha256(observation.numpy().tobytes())
    for weight in actions(40, 8, seed=9, dtype=torch.float32, bad=0.0):
        state, step = sim.step(state, weight, generator)
        for tensor in flat((state, step)):
            total.update(tensor.numpy().tobytes())
    return total.hexdigest()


@pytest.mark.spec("C5", "R8")
def test_one_seed_gives_the_same_bytes_here_and_in_another_process():
    tests = Path(__file__).resolve().parents[3]
    code = (
        "import importlib.util as u, torch, sys\n"
        f"s = u.spec_from_file_location('batch', {str(Path(__file__))!r})\n"
        "m = u.module_from_spec(s); s.loader.exec_module(m); torch.set_num_threads(1)\n"
        "print(m.digest())"
    )
    paths = os.pathsep.join(filter(None, (str(tests), *sys.path)))
    strange = {"PYTHONHASHSEED": "77", "TZ": "Asia/Kathmandu", "LC_ALL": "C", "PYTHONPATH": paths}
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **strange}, cwd="/", check=True,
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert digest() == digest() == run.stdout.strip()
    assert digest(4) != digest()


# --- on a GPU


def on_gpu(batch, dtype):
    sim = busy(wild_panel(1, rows=60), batch=batch, dtype=dtype, device="cuda")
    generator = torch.Generator("cuda").manual_seed(1)
    state, _ = sim.reset(generator)
    uniforms = [sim.draw(generator) for _ in range(20)]
    return sim, state, actions(20, batch, dtype=dtype).cuda(), uniforms


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_captured_transition_equals_the_eager_one_and_never_waits(dtype):
    sim, state, weights, uniforms = on_gpu(4_096, dtype)
    held = State(*(tensor.clone() for tensor in state))
    action, uniform = weights[0].clone(), uniforms[0].clone()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        sim.transition(held, action, uniform)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        moved, captured = sim.transition(held, action, uniform)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for weight, drawn in zip(weights, uniforms, strict=True):
            for static, now in zip(held, state, strict=True):
                static.copy_(now)
            action.copy_(weight)
            uniform.copy_(drawn)
            graph.replay()
            state, step = sim.transition(state, weight, drawn)
            same = [
                (a.nan_to_num(7.0) == b.nan_to_num(7.0)).all()
                for a, b in zip(flat((moved, captured)), flat((state, step)), strict=True)
            ]
            held_all = torch.stack(same).all()
            torch.cuda.set_sync_debug_mode("default")
            assert held_all.item()
            torch.cuda.set_sync_debug_mode("error")
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_the_gpu_keeps_the_ledger_of_the_cpu():
    sim, state, weights, uniforms = on_gpu(256, torch.float64)
    here = busy(wild_panel(1, rows=60), batch=256)
    other = State(*(tensor.cpu() for tensor in state))
    for weight, drawn in zip(weights, uniforms, strict=True):
        state, step = sim.transition(state, weight, drawn)
        other, again = here.transition(other, weight.cpu(), drawn.cpu())
        for a, b in zip(flat((state, step)), flat((other, again)), strict=True):
            torch.testing.assert_close(a.cpu(), b, rtol=1e-9, atol=1e-9, equal_nan=True)


@pytest.mark.gpu
def test_a_step_on_the_gpu_holds_on_a_bad_action_instead_of_refusing():
    sim, state, _, _ = on_gpu(4, torch.float32)
    generator = torch.Generator("cuda").manual_seed(1)
    action = torch.tensor([math.nan, 0.0, 9.0, 1.0], device="cuda")
    _, step = sim.step(state, action, generator)
    assert step.info.bad_action.tolist() == [True, False, True, False]


def test_the_default_market_runs_with_its_own_features():
    panel = wild_panel(2, rows=900, symbols=2, calm=True)
    sim = Simulator(panel, MarketConfig(episode_bars=20), batch=3)
    state, observation = sim.reset(torch.Generator().manual_seed(0))
    assert observation.shape == (3, sim.observation_size)
    assert observation.dtype == torch.float32
    for _ in range(45):
        state, step = sim.step(state, torch.tensor([0, 2, 4]), torch.Generator().manual_seed(1))
        assert step.observation.isfinite().all()
