"""Instrument terms in backtests: exact order steps by default, kinds refused, sources named."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from backtest_lab import agent_for, panel, rules
from simulator_lab import market, steady
from stormsail.core.errors import ConfigError, RangeError
from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.evaluation.engine.files import summary_of
from stormsail.evaluation.engine.run import backtest, replay
from stormsail.evaluation.robustness.baselines import run_baselines
from stormsail.evaluation.robustness.self_tests import oracle_request
from stormsail.market.instruments import GIVEN, Instrument, InstrumentTerms
from stormsail.market.simulator.config import LONG_ONLY, Filters, MarketConfig
from stormsail.market.terms import stated_document, stated_terms, term_lines

SPOT, PERPETUAL = "NEAR/USDT", "BTC/USDT:USDT"
STEPS = {"lot": 0.25, "tick": 0.5, "min_notional": 1_000.0}
FREE = {"taker_fee": 0.0, "half_spread": 0.0, "impact": 0.0}


def with_terms(bars, **terms):
    own = {
        s: Instrument(s, InstrumentTerms(**terms), dict.fromkeys(terms, "binance"))
        for s in bars.symbols
    }
    return replace(bars, instruments=own)


def config(**changes):
    return BacktestConfig.from_mapping({"burn_in": 5, **changes})


@pytest.mark.spec("B4")
def test_a_backtest_uses_the_stored_order_steps_unless_told_otherwise():
    bars = panel(rows=60, symbols=2)
    agent = agent_for(bars)
    known = with_terms(bars, **STEPS)
    exact = backtest(agent, known, config())
    given = backtest(agent, bars, config(filters=STEPS))
    assert len(exact.trades) > 10
    assert exact.order_hash == given.order_hash
    assert exact.equity.tolist() == given.equity.tolist()
    for trade in exact.trades:
        assert trade.quantity / 0.25 == pytest.approx(round(trade.quantity / 0.25), abs=1e-9)
        assert trade.price / 0.5 == pytest.approx(round(trade.price / 0.5), abs=1e-9)
        assert trade.quantity * trade.price >= 1_000.0
    loose = backtest(agent, bars, config())
    off = backtest(agent, known, config(filters={}))
    assert off.order_hash == loose.order_hash != exact.order_hash
    one = backtest(agent, known, config(symbol_filters={bars.symbols[0]: {"lot": 3.0}}))
    assert one.market.filters_of(bars.symbols[0]) == Filters(lot=3.0)
    assert one.market.filters_of(bars.symbols[1]) == Filters(**STEPS)
    trained = agent_for(bars, rules(filters={"lot": 0.125}))
    assert backtest(trained, known, config()).market.filters_of(bars.symbols[0]).lot == 0.125


@pytest.mark.refusal
def test_weights_short_of_spot_are_refused_and_cost_on_margin():
    bars = market({SPOT: steady([10.0] * 502)})
    weights = np.full(bars.shape, -1.0)
    with pytest.raises(RangeError) as caught:
        replay(weights, bars, config(market={"costs": FREE}))
    assert caught.value.wrong == (
        "every weight of NEAR/USDT must stay in 0 to 1: it is spot, which is neither sold short "
        "nor bought on credit"
    )
    margin = {SPOT: {"kind": "margin", "borrow_rate": 0.876}}  # 1e-4 an hour
    result = replay(weights, bars, config(market={"costs": FREE, "instruments": margin}))
    # Every bar the short is brought back to all of equity, and 1e-4 of it is paid.
    assert result.equity[-1] == pytest.approx(10_000 * (1 - 1e-4) ** 500, rel=1e-9)
    assert result.bars["funding"][1, 0] == pytest.approx(1.0, rel=1e-9)


@pytest.mark.refusal
def test_leverage_on_spot_is_refused_in_a_replay():
    bars = market({SPOT: steady([10.0] * 5)})
    high = config(market={"limits": {"max_leverage": 20.0}})
    with pytest.raises(RangeError, match="it is spot"):
        replay(np.full(bars.shape, 20.0), bars, high)


@pytest.mark.refusal
def test_an_agent_that_goes_short_does_not_trade_spot():
    bars = panel(rows=60, symbols=2)
    agent = agent_for(bars)
    spot = replace(bars, symbols=("AAA/USDT", "BBB/USDT"))
    with pytest.raises(ConfigError) as caught:
        backtest(agent, spot, config())
    assert "must lie in 0 to 1 for AAA/USDT: it is spot" in caught.value.wrong
    long_only = agent_for(bars, rules(levels=(0.0, 0.5, 1.0)))
    assert backtest(long_only, spot, config()).bars["weight"].min() >= 0.0


def test_baselines_of_spot_are_long_only():
    bars = replace(panel(rows=120, symbols=2), symbols=("AAA/USDT", "BBB/USDT"))
    chosen = config()
    assert chosen.rules(bars).offered_levels == LONG_ONLY
    results = run_baselines(bars, chosen)
    assert set(results) > {"momentum", "random", "clairvoyant"}
    for result in results.values():
        assert result.bars["quantity"].min() >= 0.0


def test_the_clairvoyant_is_compared_without_order_steps():
    bars = with_terms(panel(rows=60, symbols=1), **STEPS)
    request = oracle_request(np.zeros(bars.shape), bars, config())
    assert request.config.ledger(bars).filters_of(bars.symbols[0]) == Filters()


def test_each_account_pays_its_own_fee_and_a_cost_setting_stands_before_it():
    rows = steady([100.0] * 6)
    bars = market({PERPETUAL: rows, "ETH/USDT:USDT": rows})
    cheap = Instrument(PERPETUAL, InstrumentTerms(taker_fee=0.0))
    bars = replace(bars, instruments={PERPETUAL: cheap})
    weights = torch.full(bars.shape, 0.5, dtype=torch.float64)
    costs = {"half_spread": 0.0, "impact": 0.0}
    paid = replay(weights, bars, config(market={"costs": costs})).bars["fee_total"].sum(0)
    # 100 q = (10,000 - 100 q f) / 2 at the default fee of 0.0005
    assert paid.tolist() == pytest.approx([0.0, 0.0005 * 5_000 / 1.00025], rel=1e-9)
    dear = replay(weights, bars, config(market={"costs": {**costs, "taker_fee": 0.01}}))
    assert dear.bars["fee_total"].sum(0).tolist() == pytest.approx([50 / 1.005] * 2, rel=1e-9)


def test_terms_are_stated_with_their_sources_and_defaults():
    known = InstrumentTerms(kind="margin", lot=0.1, borrow_rate=0.2)
    stored = {
        SPOT: Instrument(SPOT, known, {"kind": GIVEN, "lot": "binance", "borrow_rate": GIVEN})
    }
    chosen = MarketConfig(
        costs={"taker_fee": 0.001}, instruments={SPOT: {"quote_borrow_rate": 0.1}}
    )
    stated = stated_terms(chosen, [SPOT, PERPETUAL], stored)
    assert {name: tuple(term) for name, term in stated[SPOT].items()} == {
        "kind": ("margin", "given"),
        "lot": (0.1, "binance"),
        "tick": (0.0, "default"),
        "min_notional": (0.0, "default"),
        "taker_fee": (0.001, "configuration"),
        "max_leverage": (None, "default"),
        "maintenance": ([{"notional": 0.0, "rate": 0.005}], "default"),
        "borrow_rate": (0.2, "given"),
        "quote_borrow_rate": (0.1, "configuration"),
    }
    assert stated[PERPETUAL]["kind"] == ("perpetual", "symbol")
    assert term_lines(stated_document(stated)) == [
        "NEAR/USDT: margin (given); lot 0.1 (binance); taker fee 0.001, quote borrow rate a year "
        "0.1 (configuration); borrow rate a year 0.2 (given); not known, so by default no tick, no "
        "minimum notional, no largest leverage of the exchange, maintenance margin 0.005",
        "BTC/USDT:USDT: perpetual (as it is written); taker fee 0.001 (configuration); not known, "
        "so by default no lot, no tick, no minimum notional, no largest leverage of the exchange, "
        "maintenance margin 0.005",
    ]


def test_a_saved_backtest_names_the_terms_and_the_defaults():
    bars = with_terms(panel(rows=60, symbols=4), lot=0.001)
    saved = summary_of(backtest(agent_for(bars), bars, config()))["instruments"]
    assert saved[bars.symbols[0]]["lot"] == {"value": 0.001, "source": "binance"}
    assert saved[bars.symbols[0]]["tick"] == {"value": 0.0, "source": "default"}
    lines = term_lines(saved)
    assert len(lines) == 1
    assert lines[0].startswith("AAA/USDT:USDT and 3 more: perpetual")
