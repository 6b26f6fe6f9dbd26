"""Kinds and instrument terms in the simulator, in numbers worked out by hand."""

from dataclasses import replace

import pytest
import torch

from simulator_lab import FREE, at, draws, market, play, settings, simulator, steady
from stormsail.core.errors import ConfigError, DataError
from stormsail.market import MarketConfig
from stormsail.market.instruments import Instrument, InstrumentTerms
from stormsail.market.simulator.config import LONG_ONLY, LONG_SHORT

SPOT, OTHER, PERPETUAL = "NEAR/USDT", "BTC/USDT", "BTC/USDT:USDT"
HOURLY = 0.876
"""A year's rate of 1e-4 an hour: 8,760 hours."""


def spot(prices, symbol=SPOT):
    return market({symbol: steady(prices)})


def known(panel, **terms):
    """Return the panel with stored terms for its first symbol."""
    symbol = panel.symbols[0]
    own = Instrument(symbol, InstrumentTerms(**terms), dict.fromkeys(terms, "binance"))
    return replace(panel, instruments={symbol: own})


def refused(panel, **changes):
    config = MarketConfig(episode_bars=1).replace(**changes)
    with pytest.raises(ConfigError) as caught:
        simulator(panel, config)
    return caught.value


@pytest.mark.refusal
def test_spot_cannot_be_sold_short_and_the_refusal_says_what_can():
    error = refused(spot([100.0] * 4), levels=(-1.0, 0.0, 1.0))
    assert error.code == "config-inconsistent"
    assert error.wrong == (
        "the weights on offer must lie in 0 to 1 for NEAR/USDT: it is spot, which is neither sold "
        "short nor bought on credit"
    )
    assert error.found == "`levels` from -1 to 1"
    assert '`kind = "margin"`' in error.remedy
    assert "`borrow_rate`" in error.remedy


@pytest.mark.refusal
def test_leverage_on_spot_is_refused():
    panel = spot([100.0] * 4)
    twenty = {"limits.max_leverage": 20.0}
    error = refused(panel, levels=(0.0, 20.0), **twenty)
    assert "`levels` from 0 to 20" in error.found
    error = refused(panel, action="continuous", weight_range=(0.0, 20.0), **twenty)
    assert "`weight_range` from 0 to 20" in error.found
    error = refused(panel, **twenty)
    assert error.wrong.startswith("`limits.max_leverage` must be at most 1 for NEAR/USDT")


@pytest.mark.refusal
def test_margin_needs_a_rate_for_what_it_borrows():
    panel, levels = spot([100.0] * 4), {"limits.max_leverage": 2.0, "levels": (-2.0, 0.0, 2.0)}
    none = {SPOT: {"kind": "margin"}}
    error = refused(panel, instruments=none, **levels)
    assert "no `borrow_rate`, so that nothing can be sold short, and it has no" in error.wrong
    half = {SPOT: {"kind": "margin", "borrow_rate": 0.1}}
    error = refused(panel, instruments=half, **levels)
    assert "must lie in -inf to 1 for NEAR/USDT: it has no `quote_borrow_rate`" in error.wrong
    other = {SPOT: {"kind": "margin", "quote_borrow_rate": 0.1}}
    error = refused(panel, instruments=other, **levels)
    assert "must lie in 0 to inf for NEAR/USDT: it has no `borrow_rate`" in error.wrong
    both = {SPOT: {**half[SPOT], "quote_borrow_rate": 0.1}}
    simulator(panel, MarketConfig(episode_bars=1).replace(instruments=both, **levels))


@pytest.mark.refusal
def test_an_exchange_bounds_the_leverage_of_its_perpetual():
    panel = known(market({PERPETUAL: steady([100.0] * 4)}), max_leverage=3.0)
    error = refused(panel, levels=(-5.0, 0.0, 5.0), **{"limits.max_leverage": 5.0})
    assert "the exchange allows a leverage of 3" in error.wrong
    error = refused(
        known(panel, maintenance=({"notional": 0.0, "rate": 0.4},)),
        **{"limits.max_leverage": 3.0},
    )
    assert "liquidated as it opens" in error.wrong


@pytest.mark.refusal
def test_an_inverse_contract_and_terms_of_another_symbol_are_refused():
    with pytest.raises(DataError, match="settled in BTC"):
        simulator(market({"BTC/USD:BTC": steady([100.0] * 4)}), MarketConfig(episode_bars=1))
    with pytest.raises(DataError, match="`instruments` must name symbols of the panel"):
        simulator(spot([1.0] * 4), MarketConfig(instruments={OTHER: {"lot": 1.0}}))
    with pytest.raises(ConfigError, match="cannot be of the kind `perpetual`"):
        MarketConfig(instruments={OTHER: {"kind": "perpetual"}})


def test_default_levels_follow_the_kind():
    rows = steady([100.0] * 4)
    config = MarketConfig(episode_bars=1)
    margin = {SPOT: {"kind": "margin", "borrow_rate": 0.1}}
    cases = [
        ({PERPETUAL: rows}, {}, LONG_SHORT, (-1.0, 1.0)),
        ({SPOT: rows}, {}, LONG_ONLY, (0.0, 1.0)),
        ({SPOT: rows, PERPETUAL: rows}, {}, LONG_ONLY, (0.0, 1.0)),  # one set for all symbols
        ({SPOT: rows}, margin, LONG_SHORT, (-1.0, 1.0)),
    ]
    for bars, terms, levels, weights in cases:
        sim = simulator(market(bars), config.replace(instruments=terms))
        assert sim.config.offered_levels == levels
        assert sim.config.offered_range == weights
        assert sim.actions.count == len(levels)
    assert (LONG_SHORT, LONG_ONLY) == ((-1.0, -0.5, 0.0, 0.5, 1.0), (0.0, 0.2, 0.6, 1.0))


def test_a_short_on_margin_pays_for_the_coins_it_borrows():
    terms = {"kind": "margin", "borrow_rate": HOURLY}
    config = settings(episode_bars=4, instruments={SPOT: terms}, leverage=1.0)
    _, _, rows = play(spot([100.0, 100.0, *[200.0] * 4]), config, [-0.5, -0.5, 0.0, 0.0])
    # 50 coins at 100. One bar later they are worth 10,000, and a bar's interest on them is 1; at
    # equity 4,999 half a weight short is 12.4975 coins. Then 12.4975 * 200 * 1e-4.
    assert [row["funding"] for row in rows] == pytest.approx([0.0, 1.0, 0.24995, 0.0], rel=1e-9)
    assert rows[1]["quantity"] == pytest.approx(-12.4975, rel=1e-12)
    assert rows[1]["equity"] == pytest.approx(4_999.0, rel=1e-12)
    assert rows[2]["equity"] == pytest.approx(4_999.0 - 0.24995, rel=1e-12)
    assert rows[1]["reward_costs_fraction"] == pytest.approx(1.0 / 10_000.0, rel=1e-9)


def test_a_levered_long_on_margin_pays_for_the_money_it_owes():
    terms = {"kind": "margin", "quote_borrow_rate": HOURLY}
    config = settings(
        episode_bars=3, instruments={SPOT: terms}, leverage=3.0, weight_range=(0.0, 3.0)
    )
    _, _, rows = play(spot([100.0] * 5), config, [3.0, float("nan"), 0.0])
    # 300 coins for 30,000, 20,000 of it owed: 2 a bar, then 2.0002 on 20,002.
    assert [row["funding"] for row in rows] == pytest.approx([0.0, 2.0, 2.0002], rel=1e-9)
    assert rows[2]["equity"] == pytest.approx(10_000.0 - 4.0002, rel=1e-12)


def test_a_long_position_paid_in_full_owes_nothing_and_a_perpetual_borrows_nothing():
    rates = {"borrow_rate": HOURLY, "quote_borrow_rate": HOURLY}
    config = settings(episode_bars=2, instruments={SPOT: {"kind": "margin", **rates}})
    _, _, rows = play(spot([100.0] * 4), config, [1.0, 1.0])
    assert [row["funding"] for row in rows] == [0.0, 0.0]
    config = settings(episode_bars=2, instruments={PERPETUAL: rates})
    _, _, rows = play(market({PERPETUAL: steady([100.0] * 4)}), config, [-1.0, -1.0])
    assert [row["funding"] for row in rows] == [0.0, 0.0]


def test_each_symbol_has_its_own_fee_and_the_configuration_stands_before_it():
    rows = steady([100.0] * 4)
    panel = market({PERPETUAL: rows, "ETH/USDT:USDT": rows, "SOL/USDT:USDT": rows})
    stored = {
        PERPETUAL: Instrument(PERPETUAL, InstrumentTerms(taker_fee=0.002)),
        "ETH/USDT:USDT": Instrument("ETH/USDT:USDT", InstrumentTerms(taker_fee=0.0)),
    }
    panel = replace(panel, instruments=stored)
    for fee, wanted in ((None, [0.002, 0.0, 0.0005]), (0.001, [0.001] * 3)):
        config = settings(episode_bars=2, **{"costs.taker_fee": fee})
        sim = simulator(panel, config, batch=3)
        state, _ = sim.place(torch.arange(3), torch.zeros(3, dtype=torch.int64))
        assert state.fee.tolist() == wanted
        state, step = sim.transition(state, torch.full((3,), 0.5).double(), draws(sim))
        # half of 10,000: quantity q with 100 q = (10,000 - 100 q f) / 2
        paid = [100 * f * 5_000 / (1 + f / 2) / 100 for f in wanted]
        assert step.info.fee_total.tolist() == pytest.approx(paid, rel=1e-12)
    changed = {"costs.taker_fee": None, "randomise.taker_fee": (2.0, 2.0)}
    sim = simulator(panel, settings(episode_bars=1, **changed), batch=64)
    state, _ = sim.reset(torch.Generator().manual_seed(0))
    fees = torch.tensor([0.004, 0.0, 0.001]).double()
    assert torch.allclose(state.fee, fees[state.symbol], rtol=1e-12)
    assert len(state.symbol.unique()) == 3


TIERS = ({"notional": 0.0, "rate": 0.01}, {"notional": 20_000.0, "rate": 0.06})


def test_a_large_position_is_lost_earlier_by_the_tiers_of_its_margin():
    # 3 x long: 300 at 100, 20,000 owed. 1 % alone is met at 20,000 / 297 = 67.34. With 6 % of what
    # is above 20,000: 300 x - 20,000 = 0.06 * 300 x - 1,000  =>  x = 19,000 / 282 = 67.3759, worth
    # 20,212: the second tier. The bar falls to 67.36: the plain margin holds, the tiers do not.
    bars = [*steady([100.0, 100.0]), (100.0, 100.0, 67.36, 80.0), *steady([80.0])]
    panel = market({PERPETUAL: bars})
    config = settings(episode_bars=2, leverage=3.0, **{"margin.liquidation_fee": 0.0})
    plain = config.replace(**{"margin.maintenance": 0.01})
    _, _, rows = play(panel, plain, [3.0, float("nan")])
    assert [row["liquidated"] for row in rows] == [False, False]
    _, _, rows = play(known(panel, maintenance=TIERS), config, [3.0, float("nan")])
    assert [row["liquidated"] for row in rows] == [False, True]
    assert rows[1]["equity"] == pytest.approx(300 * 19_000 / 282 - 20_000, rel=1e-9)
    # the same, stated in the configuration
    own = config.replace(instruments={PERPETUAL: {"maintenance": TIERS}})
    assert play(panel, own, [3.0, float("nan")])[2][1]["liquidated"]
    # a number in the configuration stands before tiers
    _, _, rows = play(known(panel, maintenance=TIERS), plain, [3.0, float("nan")])
    assert [row["liquidated"] for row in rows] == [False, False]


def test_stored_order_steps_are_off_in_training_and_exact_where_asked_for():
    panel = known(market({PERPETUAL: steady([100.0] * 4)}), lot=7.0, tick=0.3, min_notional=5.0)
    config = settings(episode_bars=1)
    assert play(panel, config, [1.0])[2][0]["traded"] == 100.0
    exact = config.with_terms(panel.symbols, panel.instruments).with_exact_filters()
    # tick 0.3: a purchase at 100 pays 100.2; 98 is the largest multiple of 7 that 10,000 buy
    row = play(panel, exact, [1.0])[2][0]
    assert (row["traded"], row["price"]) == (98.0, pytest.approx(100.2, rel=1e-12))
    own = config.replace(**{"filters.lot": 9.0})
    again = own.with_terms(panel.symbols, panel.instruments).with_exact_filters()
    assert play(panel, again, [1.0])[2][0]["traded"] == 99.0


def test_filling_in_terms_twice_changes_nothing():
    panel = known(spot([100.0] * 4), kind="margin", borrow_rate=0.2, lot=0.1)
    config = MarketConfig().replace(instruments={SPOT: {"lot": 0.5}}, **FREE)
    once = config.with_terms(panel.symbols, panel.instruments)
    assert once.with_terms(panel.symbols, panel.instruments) == once
    assert once.terms_of(SPOT) == InstrumentTerms(kind="margin", borrow_rate=0.2, lot=0.5)
    assert MarketConfig.from_mapping(once.model_dump(mode="json")) == once
    sim = simulator(panel, once.replace(episode_bars=1))
    assert at(sim).equity.item() == 10_000.0
