"""Laws that hold for every market, agent and price path: money is conserved, costs cost.

Each example draws a whole batch of accounts with paths and decisions of their own.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from simulator_lab import draws, settings, simulator, wild_panel
from stormsail.market import Panel

BATCH = 400
STEPS = 12
seeds = st.integers(0, 2**32 - 1)
many = effort(max_examples=25)  # of 400 accounts each: ten thousand examples a law
COSTS = {
    "costs.taker_fee": 0.001,
    "costs.half_spread": 0.0005,
    "costs.impact": 0.02,
    "costs.impact_window": 4,
}
ALL = {
    **COSTS,
    "filters.lot": 0.01,
    "filters.tick": 0.05,
    "filters.min_notional": 100.0,
    "min_rebalance": 0.02,
    "limits.max_turnover": 20.0,
    "limits.max_position": 60_000.0,
    "limits.max_drawdown": 0.6,
    "limits.max_daily_loss": 0.3,
    "limits.min_equity": 1_000.0,
    "margin.maintenance": 0.03,
    "stops.equity_floor": 1e-6,
    "no_trade.around_funding_minutes": 60,
}


def weights_of(seed, *, top, batch=BATCH, held=0.2):
    """Return targets [STEPS, batch]; NaN, which keeps the position, now and then."""
    rng = np.random.default_rng([seed, 1])
    weights = rng.uniform(-top, top, (STEPS, batch))
    weights[rng.random(weights.shape) < 0.1] = 0.0
    weights[rng.random(weights.shape) < held] = math.nan
    return torch.from_numpy(weights)


def run(panel, config, weights, *, places=None):
    """Return the states (the first one included) and steps of accounts spread over the panel."""
    batch = weights.shape[1]
    sim = simulator(panel, config, batch=batch)
    if places is None:
        rng = np.random.default_rng(0)
        symbol = torch.from_numpy(rng.integers(0, len(panel.symbols), batch))
        row = torch.from_numpy(rng.integers(0, len(panel.ts) - STEPS - 2, batch))
        places = (symbol, row)
    state, _ = sim.place(*places)
    states, steps = [state], []
    for index, weight in enumerate(weights):
        state, step = sim.transition(state, weight, draws(sim, index))
        states.append(state)
        steps.append(step)
    return states, steps


def alive(states):
    """Return where no episode has ended before a step, [STEPS, B]."""
    done = torch.stack([state.done for state in states[:-1]])
    return done.long().cumsum(0) == 0


def bars_at(panel, state, name):
    return getattr(panel, name)[state.row, state.symbol]


@pytest.mark.spec("C1", "R17")
@many
@given(seeds)
def test_not_a_unit_of_money_appears_or_vanishes(seed):
    panel = wild_panel(seed, rows=40, quoted=bool(seed % 2))
    config = settings(leverage=5.0, episode_bars=30, **ALL)
    states, steps = run(panel, config, weights_of(seed, top=5.0))
    going = alive(states)
    for index, step in enumerate(steps):
        before, after, info = states[index], states[index + 1], step.info
        here = going[index]
        open_, close = bars_at(panel, after, "open"), bars_at(panel, after, "close")
        held = before.quantity + info.traded  # after the fill, before any liquidation
        carried = before.equity + before.quantity * (open_ - before.price)
        costs = info.fee_total + info.slippage + info.funding
        leaves_at = torch.where(info.liquidated, exit_price(before, info, config, panel), close)
        wanted = carried - costs + held * (leaves_at - open_)
        scale = before.equity.abs() + before.quantity.abs() * open_ + held.abs() * open_
        error = ((info.equity - wanted).abs() / scale)[here]
        assert error.max().item() < 1e-12
        kept = here & ~info.liquidated
        cash = before.cash - info.funding - info.fee_total
        cash = cash - info.traded * info.price.nan_to_num(0.0)
        assert (((info.cash - cash).abs() / scale)[kept]).max().item() < 1e-12
        assert ((info.quantity - held).abs()[kept]).max().item() < 1e-9
        assert (info.quantity[here & info.liquidated] == 0.0).all()
        assert torch.equal(info.equity[here], (after.cash + after.quantity * after.price)[here])


def exit_price(before, info, config, panel):
    """Return where a liquidated position left: at the open, or where its margin ended."""
    row, symbol = info.row, info.symbol
    open_ = panel.open[row, symbol]
    margin = config.margin.maintenance
    cash = before.cash - info.funding
    gone = cash + before.quantity * open_ <= margin * before.quantity.abs() * open_
    paid = info.traded * info.price.nan_to_num(0.0)
    cash = cash - paid - before.fee * paid.abs()
    held = before.quantity + info.traded
    long = torch.minimum(-cash / (held * (1 - margin)), open_)
    short = torch.maximum(cash / (held.abs() * (1 + margin)), open_)
    inside = torch.where(held > 0.0, long, short)
    return torch.where(gone & (before.quantity != 0.0), open_, inside)


@many
@given(seeds)
def test_the_sum_of_rewards_is_the_log_of_growth(seed):
    config = settings(leverage=2.0, episode_bars=30, **COSTS)
    states, steps = run(wild_panel(seed, rows=40), config, weights_of(seed, top=2.0))
    total = sum(step.reward for step in steps)
    good = ~torch.stack([state.done for state in states]).any(0)
    growth = (states[-1].equity / 10_000.0).log()
    assert ((total - growth).abs()[good]).max().item() < 1e-12


# --- metamorphic laws


@pytest.mark.spec("C3")
@pytest.mark.parametrize("cost", ["costs.taker_fee", "costs.half_spread"])
@many
@given(seed=seeds, more=st.floats(1.01, 20.0))
def test_dearer_trading_never_ends_richer(cost, seed, more):
    panel = wild_panel(seed, rows=40, calm=True)
    weights = weights_of(seed, top=1.5)
    cheap = {"costs.taker_fee": 0.0005, "costs.half_spread": 0.0003}
    ends, paid = [], []
    for factor in (1.0, more):
        costs = {**cheap, cost: cheap[cost] * factor}
        states, steps = run(panel, settings(leverage=1.5, episode_bars=30, **costs), weights)
        ends.append(states[-1].equity)
        paid.append(sum(step.info.fee_total + step.info.slippage for step in steps))
    traded = paid[0] > 0.0
    assert (ends[1] <= ends[0]).all()
    assert (ends[1] < ends[0])[traded].all()


def scaled(panel: Panel, *, price: float, volume: float) -> Panel:
    prices = {name: price * getattr(panel, name) for name in ("open", "high", "low", "close")}
    return replace(panel, **prices, volume=volume * panel.volume)


@pytest.mark.spec("C3")
@many
@given(seed=seeds, power=st.sampled_from([-6, -1, 1, 5]))
def test_another_unit_of_the_base_currency_changes_no_money(seed, power):
    k = 2.0**power
    panel = wild_panel(seed, rows=40)
    weights = weights_of(seed, top=5.0)
    config = settings(leverage=5.0, episode_bars=30, **ALL)
    other = config.replace(**{"filters.lot": 0.01 / k, "filters.tick": 0.05 * k})
    one, ones = run(panel, config, weights)
    two, twos = run(scaled(panel, price=k, volume=1 / k), other, weights)
    assert torch.equal(one[-1].equity, two[-1].equity)
    assert torch.equal(one[-1].quantity, two[-1].quantity * k)
    for a, b in zip(ones, twos, strict=True):
        assert torch.equal(a.reward, b.reward)
        assert torch.equal(a.info.reason, b.info.reason)


@pytest.mark.spec("C3")
@many
@given(seed=seeds, power=st.sampled_from([-3, 2, 7]))
def test_another_unit_of_the_quote_currency_scales_all_money(seed, power):
    k = 2.0**power
    panel = wild_panel(seed, rows=40)
    weights = weights_of(seed, top=5.0)
    config = settings(leverage=5.0, episode_bars=30, **ALL)
    other = config.replace(
        **{
            "initial_equity": 10_000.0 * k,
            "filters.tick": 0.05 * k,
            "filters.min_notional": 100.0 * k,
            "limits.max_position": 60_000.0 * k,
            "limits.min_equity": 1_000.0 * k,
        }
    )
    one, ones = run(panel, config, weights)
    two, twos = run(scaled(panel, price=k, volume=1.0), other, weights)
    assert torch.equal(one[-1].equity * k, two[-1].equity)
    assert torch.equal(one[-1].quantity, two[-1].quantity)
    assert all(torch.equal(a.reward, b.reward) for a, b in zip(ones, twos, strict=True))


def split(panel: Panel, seed: int) -> Panel:
    """Return every bar as two that meet at a price inside it."""
    rng = np.random.default_rng([seed, 2])
    share = torch.from_numpy(rng.random(panel.shape))
    middle = panel.low + share * (panel.high - panel.low)
    first = torch.from_numpy(rng.random(panel.shape) < 0.5)

    def two(a, b):
        return torch.stack((a, b), 1).flatten(0, 1)

    halves = {
        "open": two(panel.open, middle),
        "close": two(middle, panel.close),
        # The extreme lies in one of the halves; the other reaches as far as its own ends.
        "high": two(
            torch.where(first, panel.high, torch.maximum(panel.open, middle)),
            torch.where(first, torch.maximum(middle, panel.close), panel.high),
        ),
        "low": two(
            torch.where(first, panel.low, torch.minimum(panel.open, middle)),
            torch.where(first, torch.minimum(middle, panel.close), panel.low),
        ),
        "volume": two(panel.volume, panel.volume),
        "tradable": two(panel.tradable, panel.tradable),
        "listed": two(panel.listed, panel.listed),
        "funding": two(panel.funding, torch.zeros_like(panel.funding)),
    }
    rows = 2 * len(panel.ts)
    step = panel.ts[1] - panel.ts[0]
    return replace(panel, ts=panel.ts[0] + step * torch.arange(rows), optional={}, **halves)


@pytest.mark.spec("C3")
@many
@given(seed=seeds)
def test_a_bar_split_in_two_ends_with_the_same_money(seed):
    panel = wild_panel(seed, rows=30)
    weights = weights_of(seed, top=3.0, held=0.0)
    costs = {**COSTS, "costs.impact": 0.0, "margin.maintenance": 0.03, "stops.equity_floor": 1e-9}
    # A higher limit than any weight asked for, or the gate would trim what drifted beyond it.
    costs["limits.max_leverage"] = 20.0
    config = settings(leverage=3.0, episode_bars=26, **costs)
    rng = np.random.default_rng(seed)
    symbol = torch.from_numpy(rng.integers(0, 3, BATCH))
    row = torch.from_numpy(rng.integers(0, 14, BATCH))
    states, _ = run(panel, config, weights, places=(symbol, row))
    nothing = torch.full_like(weights, math.nan)
    doubled = torch.stack((weights, nothing), 1).flatten(0, 1)  # hold through the second half
    halves, _ = run(split(panel, seed), config, doubled, places=(symbol, 2 * row + 1))
    fine = ~torch.stack([state.done for state in states]).any(0)
    error = (halves[-1].equity - states[-1].equity).abs() / states[-1].equity
    assert error[fine].max().item() < 1e-10


@pytest.mark.spec("C3")
@many
@given(seed=seeds)
def test_the_order_of_symbols_does_not_matter(seed):
    panel = wild_panel(seed, rows=40)
    order = torch.randperm(3, generator=torch.Generator().manual_seed(seed))
    names = ("open", "high", "low", "close", "volume", "tradable", "listed", "funding")
    mixed = replace(
        panel,
        symbols=tuple(panel.symbols[k] for k in order.tolist()),
        **{name: getattr(panel, name)[:, order] for name in names},
    )
    rng = np.random.default_rng(seed)
    symbol = torch.from_numpy(rng.integers(0, 3, BATCH))
    row = torch.from_numpy(rng.integers(0, 20, BATCH))
    weights = weights_of(seed, top=5.0)
    # New episodes may draw another symbol; look at those that did not end.
    changes = {**ALL, "symbol_filters": {panel.symbols[1]: {"lot": 0.5}}}
    config = settings(leverage=5.0, episode_bars=30, **changes)
    states, _ = run(panel, config, weights, places=(symbol, row))
    others, _ = run(mixed, config, weights, places=(order.argsort()[symbol], row))
    fine = ~torch.stack([state.done for state in states]).any(0)
    assert torch.equal(states[-1].equity[fine], others[-1].equity[fine])
    assert torch.equal(states[-1].quantity[fine], others[-1].quantity[fine])


@pytest.mark.spec("C3")
@many
@given(seed=seeds)
def test_an_account_that_asks_for_nothing_keeps_its_money_to_the_bit(seed):
    config = settings(leverage=5.0, episode_bars=30, **ALL)
    zero = torch.zeros(STEPS, BATCH, dtype=torch.float64)
    states, steps = run(wild_panel(seed, rows=40), config, zero)
    for state, step in zip(states[1:], steps, strict=True):
        assert (state.equity == 10_000.0).all()
        assert (step.reward == 0.0).all()
        assert (step.info.fee_total == 0.0).all()
        assert not step.info.blocked.any()
        assert (step.info.traded == 0.0).all()


@pytest.mark.spec("C3")
@many
@given(seed=seeds, fee=st.floats(0.0, 0.01), spread=st.floats(0.0, 0.01))
def test_buying_and_holding_is_the_formula(seed, fee, spread):
    panel = replace(wild_panel(seed, rows=40, calm=True), funding=torch.zeros(40, 3).double())
    changes = {"costs.taker_fee": fee, "costs.half_spread": spread}
    weights = torch.full((STEPS, BATCH), math.nan, dtype=torch.float64)
    weights[0] = 1.0
    states, _ = run(panel, settings(episode_bars=30, **changes), weights)
    first, last = states[1], states[-1]
    bought = bars_at(panel, first, "open")
    wanted = 10_000.0 / ((1 + spread) * (1 + fee)) * bars_at(panel, last, "close") / bought
    torch.testing.assert_close(last.equity, wanted, rtol=1e-12, atol=0.0)


@pytest.mark.spec("C3")
@many
@given(seed=seeds)
def test_what_a_long_gains_a_short_loses(seed):
    panel = wild_panel(seed, rows=40, calm=True)  # funding included
    config = settings(episode_bars=30)
    weights = torch.full((STEPS, BATCH), math.nan, dtype=torch.float64)
    weights[0] = weights_of(seed, top=1.0, held=0.0)[0].abs().clamp(max=0.8)
    long, _ = run(panel, config, weights)
    short, _ = run(panel, config, -weights)
    gains = long[-1].equity - 10_000.0
    torch.testing.assert_close(short[-1].equity - 10_000.0, -gains, rtol=0.0, atol=1e-8)


@many
@given(seed=seeds)
def test_the_weight_after_a_fill_never_exceeds_what_was_allowed(seed):
    config = settings(leverage=5.0, episode_bars=30, **ALL)
    states, steps = run(wild_panel(seed, rows=40), config, weights_of(seed, top=5.0))
    going = alive(states)
    for index, step in enumerate(steps):
        bought = going[index] & (step.info.traded != 0.0)
        grew = (states[index].quantity + step.info.traded).abs() > states[index].quantity.abs()
        assert (step.info.signal_pos_next.abs()[bought & grew] <= 5.0 + 1e-9).all()


@pytest.mark.spec("M35", "FinRL-378", "FinRL-630")
@many
@given(seed=seeds)
def test_an_account_that_only_buys_what_it_has_never_owes(seed):
    config = settings(episode_bars=30, **{**ALL, "limits.max_turnover": None}, funding=False)
    weights = weights_of(seed, top=1.0).abs()
    weights[weights > 0.7] = 1.0
    states, _ = run(wild_panel(seed, rows=40), config, weights)
    for state in states:
        assert (state.cash >= -1e-8).all()
        assert (state.quantity >= 0.0).all()
