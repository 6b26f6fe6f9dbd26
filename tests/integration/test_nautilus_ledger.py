"""The third ledger: NautilusTrader's own engine against the Decimal reference, bar by bar."""

import sys
import threading
from dataclasses import dataclass, replace
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
import torch

from stormsail.core.errors import ConfigError, DataError, DtypeError, ShapeError
from stormsail.core.generators import Generators
from stormsail.evaluation.crosscheck.nautilus import NautilusRun, run_nautilus
from stormsail.evaluation.crosscheck.reference import Record, reference_bars, replay
from stormsail.market import Bars, Interval, MarketConfig, Panel
from stormsail.market.bars import Funding

pytest.importorskip("nautilus_trader", reason="needs the extra `nautilus`")

SYMBOL = "BTC/USDT:USDT"
START_MS = 1_609_459_200_000  # 2021-01-01T00:00:00Z
HOUR_MS = 3_600_000
EIGHT = Decimal("1e-8")  # Nautilus's money has 8 decimals
ROWS = 1_101


def panel_of(rows, rates=None):
    """Make a panel from hourly (open, high, low, close) and the rate that settles at each open."""
    first, high, low, close = np.asarray(rows, dtype=np.float64).T
    ts = START_MS + HOUR_MS * np.arange(len(first))
    table = {"ts": ts, "open": first, "high": high, "low": low, "close": close}
    bars = Bars(SYMBOL, Interval.parse("1h"), pa.table({**table, "volume": np.full(len(ts), 9.0)}))
    if rates is None:
        return Panel.from_bars([bars])
    funding = Funding(SYMBOL, pa.table({"ts": ts, "funding_rate": np.asarray(rates, np.float64)}))
    return Panel.from_bars([bars], {SYMBOL: funding})


def walk(generator, rows, *, volatility, start, decimals):
    """Make a random walk with gaps between bars, on a grid of prices, and rates every 8 hours."""
    steps = volatility * generator.standard_normal((4, rows))
    close = start * np.exp(np.cumsum(steps[0]))
    first = np.concatenate(([start], close[:-1])) * np.exp(steps[1] / 8)
    high = np.maximum(first, close) * np.exp(abs(steps[2]) / 4)
    low = np.minimum(first, close) * np.exp(-abs(steps[3]) / 4)
    rates = np.where(np.arange(rows) % 8 == 0, 3e-4 * generator.standard_normal(rows), 0.0)
    return panel_of(np.stack((first, high, low, close), axis=1).round(decimals), rates.round(8))


@dataclass(frozen=True)
class World:
    """What a stream of decisions is made for."""

    config: MarketConfig
    start: float = 30_000.0
    decimals: int = 2  # of the prices
    volatility: float = 0.01
    unknown: float = 0.0  # share of decisions that are no number


def market(**changes):
    settings = {
        "episode_bars": 100_000,
        "initial_equity": 100_000.0,
        "costs": {"taker_fee": 0.0005, "half_spread": 0.0002, "impact": 0.0},
        "filters": {"lot": 0.001, "tick": 0.01},
    }
    return MarketConfig.model_validate(settings | changes)


LEVELS = World(market(levels=(-1.0, -0.6, -0.2, 0.0, 0.3, 0.7, 1.0)))
LEVERED = World(
    market(action="continuous", weight_range=(-3.0, 3.0), limits={"max_leverage": 3.0}),
    volatility=0.004,
)
CHEAP = World(  # steps that are no powers of ten, prices finer than the tick, a small account
    market(
        initial_equity=2_000.0,
        action="continuous",
        costs={"taker_fee": 0.00075, "half_spread": 0.00035, "impact": 0.0},
        filters={"lot": 0.25, "tick": 0.005},
    ),
    start=7.0,
    decimals=6,
)
RULES = World(  # everything that keeps an order from being sent
    market(
        levels=(-1.0, -0.5, 0.0, 0.45, 0.5, 1.0),
        min_rebalance=0.06,
        filters={"lot": 0.001, "tick": 0.1, "min_notional": 60_000.0},
        limits={"max_leverage": 1.0},
        no_trade={
            "daily": ("22:00-01:00", "12:00-13:00"),
            "ranges": (("2021-01-10T00:30:00Z", "2021-01-10T05:00:00Z"),),
            "around_funding_minutes": 60,
        },
    ),
    unknown=0.1,
)


def both(world: World, seed: int, rows: int = ROWS) -> tuple[NautilusRun, list[Record]]:
    """Run the same decisions through both ledgers; each takes its orders from its own equity."""
    generators = Generators(seed)
    panel = walk(
        generators.numpy("walk"),
        rows,
        volatility=world.volatility,
        start=world.start,
        decimals=world.decimals,
    )
    draw = generators.numpy("weights")
    config = world.config
    if config.action == "levels":
        weights = draw.choice(np.array(config.offered_levels), rows - 1)
    else:
        weights = draw.uniform(*config.offered_range, rows - 1)
        weights[draw.random(rows - 1) < 0.05] = 0.0
    weights[draw.random(rows - 1) < world.unknown] = np.nan
    run = run_nautilus(panel, SYMBOL, weights, config)
    return run, reference(panel, weights, config)


def reference(panel, weights, config):
    decided = [None if np.isnan(weight) else Decimal(repr(float(weight))) for weight in weights]
    bars = reference_bars(panel, SYMBOL, impact_window=1)
    return replay(config, bars, decided, symbol=SYMBOL)


def assert_equal_ledgers(run: NautilusRun, records: list[Record]) -> None:
    assert len(run.equity) == len(records) + 1
    assert run.position[0] == run.funding[0] == 0
    assert list(run.position[1:]) == [record.quantity for record in records]
    fills = [(record.traded, record.price) for record in records if record.price is not None]
    assert [(fill.quantity, fill.price) for fill in run.fills] == fills
    for row, record in enumerate(records, start=1):
        assert abs(run.equity[row] / record.equity - 1) <= EIGHT, row
        assert abs(run.cash[row] - record.cash) <= EIGHT * record.equity, row
        assert abs(run.funding[row] - record.funding) <= EIGHT, row
    fees = {fill.row: fill.commission for fill in run.fills}
    for row, record in enumerate(records, start=1):
        assert abs(fees.get(row, Decimal(0)) - record.fee_total) <= EIGHT, row
    paid = sum(record.fee_total for record in records)
    assert abs(sum(fees.values()) / paid - 1) <= EIGHT


@pytest.mark.parametrize("world", [LEVELS, LEVERED, CHEAP], ids=["levels", "levered", "cheap"])
def test_nautilus_and_the_reference_keep_the_same_books(world):
    run, records = both(world, seed=1)
    assert_equal_ledgers(run, records)
    assert len(run.fills) > 0.9 * len(records)
    turned = [a for a, b in zip(run.position, run.position[1:], strict=False) if a * b < 0]
    assert len(turned) > 0.3 * len(records)
    assert sum(abs(paid) for paid in run.funding) > run.equity[0] / 1000


def test_nautilus_pays_the_interest_of_a_margin_account():
    generators = Generators(3)
    bars = walk(generators.numpy("walk"), 400, volatility=0.004, start=30_000.0, decimals=2)
    symbol = "BTC/USDT"
    panel = replace(bars, symbols=(symbol,), funding=torch.zeros_like(bars.funding))
    loans = {"kind": "margin", "borrow_rate": 1.0, "quote_borrow_rate": 0.5, "taker_fee": 0.001}
    config = LEVERED.config.replace(
        **{"costs.taker_fee": None, "margin.maintenance": None},
        instruments={symbol: {**loans, "maintenance": [{"notional": 0.0, "rate": 0.02}]}},
    )
    weights = generators.numpy("weights").uniform(-3.0, 3.0, 399)
    run = run_nautilus(panel, symbol, weights, config)
    decided = [Decimal(repr(float(weight))) for weight in weights]
    records = replay(config, reference_bars(panel, symbol, impact_window=1), decided, symbol=symbol)
    assert_equal_ledgers(run, records)
    # On average 1.5 of equity are short half of the time, at 1 a year; the rest borrows less.
    assert sum(run.funding) > 100_000 * 0.3 * 400 / 8_760
    assert min(run.funding) == 0


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(2, 102))
def test_a_hundred_streams_keep_the_same_books(seed):
    world = (LEVELS, LEVERED, CHEAP, RULES)[seed % 4]
    run, records = both(world, seed)
    assert_equal_ledgers(run, records)
    assert world is RULES or len(run.fills) > 0.9 * len(records)


def test_orders_that_the_rules_hold_back_are_not_sent_to_nautilus():
    run, records = both(RULES, seed=1)
    assert_equal_ledgers(run, records)
    assert sum(record.blocked for record in records) > 200
    assert 200 < len(run.fills) < 0.5 * len(records)


def script(prices, weights, config, rates=None):
    """Run both ledgers over given bars, hold them against each other, return Nautilus's."""
    panel = panel_of(prices, rates)
    run = run_nautilus(panel, SYMBOL, weights, config)
    assert_equal_ledgers(run, reference(panel, np.asarray(weights), config))
    return run


def flat(*prices):
    """Bars that do not move: each opens where it closes."""
    return [(price,) * 4 for price in prices]


def test_one_order_worked_by_hand():
    config = market(
        initial_equity=1_000.0, costs={"taker_fee": 0.001, "half_spread": 0.001, "impact": 0.0}
    )
    bars = [(99.0, 100.0, 99.0, 100.0), (100.0, 102.0, 99.0, 101.0), (102.0, 103.0, 101.0, 103.0)]
    run = script(bars, [1.0, 0.0], config, rates=[0.01, 0.01, 0.0002])
    # Row 1: reserve 0.1 + 0.01, cost 0.11 + 0.001 * 100.11 = 0.21011, so 1000 / 100.21011 = 9.97903
    # units, bought at the ask of 100.10 for 998.8979 and a fee of 0.9988979. No funding before it.
    # Row 2: funding 9.979 * 102 * 0.0002, then all is sold at 102 - 0.102, rounded to 101.89.
    bought, sold = run.fills
    assert (bought.row, bought.quantity, bought.price) == (1, Decimal("9.979"), Decimal("100.10"))
    assert bought.commission == Decimal("0.99889790")
    assert run.cash[1] == Decimal("0.1032021")
    assert run.equity[1] == Decimal("0.1032021") + Decimal("9.979") * 101
    assert run.funding == (0, 0, Decimal("0.2035716"))
    assert (sold.row, sold.quantity, sold.price) == (2, Decimal("-9.979"), Decimal("101.89"))
    assert sold.commission == Decimal("1.01676031")
    income = Decimal("9.979") * Decimal("101.89") - Decimal("1.01676031")
    assert run.balance[2] == Decimal("0.1032021") - Decimal("0.2035716") + income
    assert run.position == (0, Decimal("9.979"), 0)
    assert run.version.startswith("1.")


def test_a_small_position_is_closed_whatever_the_least_rebalance():
    config = market(levels=(0.0, 0.6), min_rebalance=0.5)
    run = script(flat(100.0, 100.0, 50.0, 50.0), [0.6, 0.0, 0.0], config)
    assert [fill.row for fill in run.fills] == [1, 2]  # the held weight is 0.43 at the close
    assert run.position[2] == 0


def test_an_unknown_weight_holds_unless_leverage_has_grown_too_high():
    config = market(levels=(0.0, 2.0), limits={"max_leverage": 2.0})
    unknown = [2.0, np.nan, np.nan, np.nan]
    # A rise takes the weight from 2 to 2 * 110 / 120 = 1.83, a fall to 2 * 90 / 80 = 2.25.
    risen = script(flat(100.0, 100.0, 100.0, 110.0, 110.0), unknown, config)
    assert [fill.row for fill in risen.fills] == [1]
    fallen = script(flat(100.0, 100.0, 100.0, 90.0, 90.0), unknown, config)
    assert [fill.row for fill in fallen.fills] == [1, 4]
    weight = fallen.position[4] * 90 / fallen.equity[4]
    assert abs(weight - 2) < Decimal("1e-4")


def test_a_row_without_a_bar_pays_funding_and_fills_nothing():
    panel = panel_of(flat(100.0, 100.0, 100.0, 100.0), [0.0, 0.0, 0.001, 0.0])
    panel.tradable[2] = False
    weights = np.array([1.0, 0.5, 0.5])
    run = run_nautilus(panel, SYMBOL, weights, market())
    assert_equal_ledgers(run, reference(panel, weights, market()))
    assert [fill.row for fill in run.fills] == [1, 3]
    assert run.funding[2] == run.position[1] * Decimal("0.1")


def test_rates_are_not_paid_where_funding_is_off():
    config = market(funding=False)
    run = script(flat(100.0, 100.0, 100.0), [1.0, 1.0], config, rates=[0.01, 0.01, 0.01])
    assert run.funding == (0, 0, 0)


def test_a_stop_ends_both_ledgers_at_the_same_close():
    weights = [1.0] * 5
    ruined = script(flat(100.0, 100.0, 40.0, 4.9, 5.0, 5.0), weights, market())
    assert len(ruined.equity) == 4
    bars = flat(100.0, 100.0, 80.0, 69.0, 70.0, 70.0)
    stopped = script(bars, weights, market(stops={"drawdown": 0.3}))
    assert len(stopped.equity) == 4
    assert len(script(bars, weights, market()).equity) == 6


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("bar", "weight"),
    [((50.0, 70.0, 50.0, 70.0), 0.0), ((99.0, 99.0, 59.5, 90.0), 2.5)],
    ids=["gap at the open", "low inside the bar"],
)
def test_a_liquidation_is_refused_because_nautilus_has_none(bar, weight):
    # At weight 2.5 from 99, 1 - 2.5 + 2.5 x / 99 = 0.005 * 2.5 * x / 99 at x = 59.7.
    config = market(levels=(0.0, 2.5), limits={"max_leverage": 2.5})
    with pytest.raises(DataError) as caught:
        run_nautilus(panel_of([*flat(100.0, 100.0), bar]), SYMBOL, [2.5, weight], config)
    assert str(caught.value) == (
        "no position may lose its maintenance margin: Nautilus 1.221 never liquidates; found a "
        "liquidation in the bar of 2021-01-01T02:00:00Z. Use smaller weights, a span that ends "
        "before, or the built-in engine. [engine-limit]"
    )


def test_a_bar_that_stays_above_the_margin_is_no_liquidation():
    config = market(levels=(0.0, 2.5), limits={"max_leverage": 2.5})
    run = script([*flat(100.0, 100.0), (99.0, 99.0, 60.0, 90.0)], [2.5, 2.5], config)
    assert len(run.fills) == 2


@pytest.mark.refusal
def test_a_balance_that_outgrows_nautilus_is_refused():
    with pytest.raises(ConfigError) as caught:
        run_nautilus(
            panel_of(flat(100.0, 100.0, 250.0, 250.0)),
            SYMBOL,
            [1.0, 0.0, 0.0],
            market(initial_equity=10_000_000.0),
        )
    assert str(caught.value) == (
        "the balance must stay below 2e+07: Nautilus cannot count more; found more in the bar of "
        "2021-01-01T02:00:00Z. Set a smaller `initial_equity`. [engine-limit]"
    )


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"costs": {"impact": 0.01}},
            "`costs.impact` must be 0: a quote cannot know how large the order will be; found "
            "0.01. Set `costs.impact = 0`, and `costs.half_spread` to what an order costs.",
        ),
        (
            {"filters": {"lot": 0.0, "tick": 0.01}},
            "`filters.lot` of BTC/USDT:USDT must be a step with at most 16 decimals: Nautilus has "
            "no orders without one; found 0. Set the exchange's own lot, such as 0.001.",
        ),
        (
            {"filters": {"lot": 0.001, "tick": 1e-17}},
            "`filters.tick` of BTC/USDT:USDT must be a step with at most 16 decimals: Nautilus has "
            "no orders without one; found 1e-17. Set the exchange's own tick, such as 0.001.",
        ),
        (
            {"limits": {"max_drawdown": 0.3}},
            "of the limits, only `limits.max_leverage` may be set for Nautilus; found "
            "`limits.max_drawdown` 0.3. Leave `limits.max_drawdown` out, or use the built-in "
            "engine.",
        ),
        (
            {"randomise": {"taker_fee": (0.5, 2.0)}},
            "costs must be fixed: a run in Nautilus has no episodes to draw them for; found "
            "`randomise.taker_fee`. Set `randomise.taker_fee = [1, 1]`.",
        ),
        (
            {"initial_equity": 1.1e7},
            "`initial_equity` must be at most 1e+07: Nautilus computes money in float64 with 8 "
            "decimals; found 1.1e+07. Start with less.",
        ),
    ],
    ids=["impact", "lot", "tick", "limit", "randomise", "equity"],
)
def test_what_nautilus_cannot_express_is_refused(changes, words):
    with pytest.raises(ConfigError) as caught:
        run_nautilus(panel_of(flat(1.0, 1.0)), SYMBOL, [0.0], market(**changes))
    assert str(caught.value) == f"{words} [engine-limit]"


@pytest.mark.refusal
def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "nautilus_trader", None)
    with pytest.raises(ConfigError) as caught:
        run_nautilus(panel_of(flat(1.0, 1.0)), SYMBOL, [0.0], market())
    assert str(caught.value) == (
        "the engine `nautilus` needs the package nautilus_trader; found no such package in this "
        "environment. Run `pip install 'stormsail[nautilus]'`. [missing-extra]"
    )


@pytest.mark.refusal
def test_input_that_does_not_fit_is_refused():
    panel = panel_of(flat(1.0, 1.0, 1.0))
    with pytest.raises(ShapeError, match=r"one entry for each row but the last, 2; found shape"):
        run_nautilus(panel, SYMBOL, [0.0, 0.0, 0.0], market())
    with pytest.raises(DtypeError, match="must hold float64"):
        run_nautilus(panel.to(dtype=torch.float32), SYMBOL, [0.0, 0.0], market())
    with pytest.raises(DataError, match=r"at most 16 decimals; found 17 in BTC/USDT:USDT at 2021"):
        run_nautilus(panel_of(flat(1.0, 1.2e-16, 1.0)), SYMBOL, [0.0, 0.0], market())
    with pytest.raises(DataError, match=r"0 < low <= open, close <= high; found open, high, low"):
        run_nautilus(panel_of([(1.0, 1.0, 1.0, 2.0)] * 3), SYMBOL, [0.0, 0.0], market())


@pytest.mark.refusal
def test_an_order_beyond_the_quoted_depth_is_noticed():
    config = market(initial_equity=1e7, filters={"lot": 1.0, "tick": 1e-9})
    with pytest.raises(DataError) as caught:
        run_nautilus(panel_of(flat(1e-7, 1e-7, 1e-7)), SYMBOL, [1.0, 1.0], config)
    assert str(caught.value).startswith(
        "Nautilus must mark every bar and fill every order whole, at the quoted price; found 3 of "
        "3 bars, "
    )
    assert str(caught.value).endswith(
        "Trade less than 1e13 units at a time, at prices of more than a tick. [engine-limit]"
    )


def test_a_second_engine_in_one_process_repeats_the_first_and_both_are_silent(capfd):
    threads = threading.active_count()
    first, _ = both(LEVELS, seed=3, rows=60)
    second, _ = both(LEVELS, seed=3, rows=60)
    assert first == second
    assert len(first.fills) > 50
    assert threading.active_count() == threads
    assert capfd.readouterr() == ("", "")
