"""Laws of the reference ledger: money is conserved, and related markets give related results."""

import itertools
import math
import random
from decimal import Decimal, localcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stormsail.evaluation.crosscheck.reference import ReferenceBar, ReferenceLedger, replay
from stormsail.evaluation.crosscheck.reference_account import EXACT, RATIO
from stormsail.evaluation.crosscheck.reference_gate import (
    GateInputs,
    ReferenceLimits,
    reference_gate,
)
from stormsail.functional.risk_gate import Account, Limits, risk_gate
from stormsail.market.simulator.config import MarketConfig, RiskLimits

HOUR = 3_600_000
SYMBOL = "BTC/USDT"
CLOSE = Decimal("1e-18")


def decimals(low, high, places):
    return st.decimals(low, high, places=places, allow_nan=False, allow_infinity=False)


prices = decimals("0.5", "500", 2)
moves = decimals("0.7", "1.4", 3)
fees = st.sampled_from([0.0, 0.0005, 0.001, 0.01])
spreads = st.sampled_from([0.0, 0.0002, 0.01])
impacts = st.sampled_from([0.0, 0.01, 0.3])
lots = st.sampled_from([0.0, 0.001, 0.7, 3.0])
ticks = st.sampled_from([0.0, 0.01, 0.05, 0.25])
weights = st.sampled_from([None, *map(Decimal, ("-1", "-0.5", "0", "0.3", "0.5", "1"))])


def market(*, fee=0.0, spread=0.0, impact=0.0, **rest):
    costs = {"taker_fee": fee, "half_spread": spread, "impact": impact}
    return MarketConfig(**({"costs": costs, "episode_bars": 10**9} | rest))


def bar(hour, opened, close, *, reach="1", **rest):
    """A bar from open to close that overshoots both ends by the factor `reach`."""
    reach = Decimal(reach)
    with localcontext(EXACT):
        high = max(opened, close) * reach
        low = RATIO.divide(min(opened, close), reach)
    return ReferenceBar(hour * HOUR, opened, high, low, close, **rest)


def path(closes, **rest):
    """Bars that each open at the last close."""
    rest = {"trailing_notional": Decimal(10**6)} | rest
    pairs = itertools.pairwise([closes[0], *closes])
    return [bar(hour, before, close, **rest) for hour, (before, close) in enumerate(pairs)]


def run(config, bars, proposals, **rest):
    return replay(config, bars, proposals, symbol=SYMBOL, **rest)


def hold(weight, bars):
    """A proposal for the first bar, and none for the others."""
    return [weight, *[None] * (len(bars) - 2)]


# Sizing


@pytest.mark.spec("C1", "M35")
@given(
    opened=prices,
    equity=st.integers(100, 100_000),
    fee=fees,
    spread=spreads,
    impact=impacts,
    lot=lots,
    tick=ticks,
    notional=st.sampled_from([100, 10**4, 10**7]),
    moves=st.lists(moves, min_size=1, max_size=4),
)
def test_weight_one_never_overdraws(
    opened, equity, fee, spread, impact, lot, tick, notional, moves
):
    config = market(
        fee=fee,
        spread=spread,
        impact=impact,
        initial_equity=float(equity),
        filters={"lot": lot, "tick": tick},
    )
    closes = [opened, *(opened * factor for factor in moves)]
    bars = path([opened, *closes], trailing_notional=Decimal(notional))
    for record in run(config, bars, [Decimal(1)] * (len(bars) - 1)):
        assert record.cash >= 0


@given(opened=prices, weight=decimals("0.1", "1", 2), fee=fees, spread=spreads, side=st.booleans())
def test_after_the_fill_the_weight_at_the_open_is_the_proposed_one(
    opened, weight, fee, spread, side
):
    weight = weight if side else -weight
    bars = path([opened, opened])
    (record,) = run(market(fee=fee, spread=spread), bars, [weight])
    assert abs(record.signal_pos_next - weight) <= CLOSE


@given(
    opened=prices, weight=weights, fee=fees, spread=spreads, impact=impacts, lot=lots, tick=ticks
)
def test_repeating_a_weight_approaches_it_and_never_passes_it(
    opened, weight, fee, spread, impact, lot, tick
):
    config = market(fee=fee, spread=spread, impact=impact, filters={"lot": lot, "tick": tick})
    records = run(config, path([opened] * 8), [weight] * 7)
    target = weight or Decimal(0)
    gaps = [abs(target - record.weight) for record in records]
    assert gaps == sorted(gaps, reverse=True)
    assert all(record.traded * target >= 0 for record in records)
    if not (impact or lot or tick):  # then the reserve was exact, and there is nothing to add
        assert all(abs(record.turnover) <= CLOSE for record in records[1:])


# Known results


@pytest.mark.spec("C3")
@given(closes=st.lists(prices, min_size=2, max_size=8), fee=fees, spread=spreads)
def test_buy_and_hold_equals_the_closed_formula(closes, fee, spread):
    config = market(fee=fee, spread=spread, stops={"equity_floor": 1e-9})
    records = run(config, path(closes), hold(Decimal(1), closes))

    # The first order fills at the open of the second bar, which is the first close.
    paid = (1 + Decimal(str(fee))) * (1 + Decimal(str(spread)))
    for record, close in zip(records, closes[1:], strict=True):
        expected = 10_000 / paid * close / closes[0]
        assert abs(record.equity / expected - 1) <= CLOSE


@pytest.mark.spec("C3")
@given(closes=st.lists(prices, min_size=2, max_size=6), fee=fees, impact=impacts, rate=moves)
def test_a_weight_of_zero_keeps_every_unit(closes, fee, impact, rate):
    records = run(
        market(fee=fee, impact=impact),
        path(closes, funding_rate=rate),
        [Decimal(0)] * (len(closes) - 1),
    )
    assert {record.equity for record in records} == {10_000}
    assert {record.traded for record in records} == {0}


# Metamorphic laws


@pytest.mark.spec("C3", "M41")
@given(
    closes=st.lists(prices, min_size=2, max_size=6),
    weight=st.sampled_from([Decimal(1), Decimal("0.4"), Decimal("-0.4"), Decimal(-1)]),
    low=fees,
    more=st.sampled_from([0.0001, 0.01]),
    spread=spreads,
    impact=impacts,
)
def test_a_higher_fee_never_ends_richer_where_the_position_gains(
    closes, weight, low, more, spread, impact
):
    # The reserve makes the position smaller: a losing one would lose less. So the price moves in
    # its favour, or not at all.
    closes = sorted(closes, reverse=weight < 0)
    final = [
        run(
            market(fee=fee, spread=spread, impact=impact),
            path([closes[0], *closes]),
            hold(weight, [*closes, None]),
        )[-1].equity
        for fee in (low, low + more)
    ]
    assert final[1] < final[0]


@given(closes=st.lists(prices, min_size=2, max_size=6), low=fees, spread=spreads)
def test_a_higher_fee_never_ends_richer_for_an_investor_of_everything(closes, low, spread):
    # With nothing kept in cash, the formula of buy and hold falls with the fee on any path.
    final = [
        run(
            market(fee=fee, spread=spread, stops={"equity_floor": 1e-9}),
            path(closes),
            hold(Decimal(1), closes),
        )[-1].equity
        for fee in (low, low + 0.002)
    ]
    assert final[1] < final[0]


@pytest.mark.spec("C3")
@given(
    closes=st.lists(prices, min_size=3, max_size=7),
    proposals=st.lists(weights, min_size=6, max_size=6),
    factor=st.sampled_from([2, 10, 1000]),
    fee=fees,
    spread=spreads,
    impact=impacts,
    lot=st.sampled_from([0.0, 2.0, 30.0]),
    tick=st.sampled_from([0.0, 0.01, 0.25]),
)
def test_another_unit_of_the_asset_changes_no_return(
    closes, proposals, factor, fee, spread, impact, lot, tick
):
    proposals = proposals[: len(closes) - 1]

    def growth(k):
        # k coins are one new coin: prices and ticks times k, lots over k, notionals unchanged.
        config = market(
            fee=fee,
            spread=spread,
            impact=impact,
            filters={"lot": lot / k, "tick": tick * k, "min_notional": 20.0},
            margin={"maintenance": 0.0},
        )
        scaled = path([close * k for close in closes], funding_rate=Decimal("0.001"))
        return [record.equity for record in run(config, scaled, proposals)]

    for mine, theirs in zip(growth(1), growth(factor), strict=True):
        assert abs(mine - theirs) <= 10_000 * CLOSE


@pytest.mark.spec("C3")
@given(
    moves=st.lists(decimals("-10", "10", 2), min_size=1, max_size=6),
    weight=decimals("0.1", "1", 1),
    cost=st.sampled_from([0.0, 0.001]),
    kind=st.sampled_from(["fee", "spread", "impact"]),
)
def test_a_short_earns_what_a_long_earns_on_the_mirrored_path(moves, weight, cost, kind):
    # One kind of cost at a time: with two, a buyer pays the fee on a dearer price.
    up = [Decimal(100), *itertools.accumulate(moves, initial=Decimal(100))]
    down = [200 - close for close in up]
    config = market(**{kind: cost}, limits={"max_leverage": 50.0})  # so that none is cut
    long = run(config, path(up), hold(weight, up))
    short = run(config, path(down), hold(-weight, down))
    # The size is rounded from another quotient where the price is not the same on both sides.
    assert len(long) == len(short)
    for mine, theirs in zip(long, short, strict=True):
        assert abs(mine.equity - theirs.equity) <= 10_000 * CLOSE
        assert abs(mine.quantity + theirs.quantity) <= CLOSE


@pytest.mark.spec("C3")
@given(
    opened=prices,
    first=moves,
    second=moves,
    reach=st.sampled_from(["1", "1.1", "1.4"]),
    weight=st.sampled_from([Decimal(value) for value in (-4, -1, 0, 1, 4)]),
    fee=fees,
    rate=st.sampled_from([Decimal(0), Decimal("0.001")]),
)
def test_a_bar_cut_in_two_ends_at_the_same_equity(opened, first, second, reach, weight, fee, rate):
    config = market(
        fee=fee, limits={"max_leverage": 100.0}, levels=(-4.0, 0.0, 4.0), action="levels"
    )
    middle = opened * first
    last = middle * second
    begin = bar(0, opened, opened)
    halves = [
        bar(1, opened, middle, reach=reach, funding_rate=rate),
        bar(2, middle, last, reach=reach),
    ]
    whole = halves[0]._replace(
        high=max(one.high for one in halves), low=min(one.low for one in halves), close=last
    )
    cut = run(config, [begin, *halves], [weight, None])
    uncut = run(config, [begin, whole], [weight])
    if len(cut) == 2:  # the first half did not ruin the account
        assert cut[-1].equity == uncut[-1].equity
        assert cut[-1].quantity == uncut[-1].quantity


@pytest.mark.spec("M39")
@given(
    closes=st.lists(prices, min_size=5, max_size=8),
    other=st.lists(prices, min_size=3, max_size=3),
    proposals=st.lists(weights, min_size=7, max_size=7),
)
def test_what_comes_later_changes_no_earlier_record(closes, other, proposals):
    proposals = proposals[: len(closes) - 1]
    known = len(closes) - 3
    changed = closes[:known] + other
    ours, theirs = (
        run(market(fee=0.001, impact=0.01), path(one), proposals) for one in (closes, changed)
    )
    assert ours[: known - 1] == theirs[: known - 1]


# The gate. All numbers are exact in both systems, so that a limit just met is met in both.

limit_sets = st.builds(
    RiskLimits,
    max_position=st.none() | st.integers(100, 20_000).map(float),
    max_leverage=st.sampled_from([0.5, 1.0, 3.0]),
    max_turnover=st.none() | st.sampled_from([0.5, 1.0, 2.5]),
    max_drawdown=st.none() | st.sampled_from([0.125, 0.5]),
    max_daily_loss=st.none() | st.sampled_from([0.0625, 0.5]),
    min_equity=st.sampled_from([0.0, 8_000.0]),
)
shares = st.integers(-256, 256).map(lambda part: part / 64)
balances = st.sampled_from([5_000.0, 8_000.0, 10_000.0]) | st.integers(1, 20_000).map(float)


@pytest.mark.spec("D6")
@settings(max_examples=400)
@given(
    weight=shares | st.sampled_from([math.nan, math.inf, -math.inf]),
    account=st.tuples(
        shares,
        balances | st.sampled_from([-1.0, 0.0, 7_000.0, 8_750.0, 9_375.0]),
        balances,
        balances,
    ),
    turnover=st.sampled_from([0.0, 0.25, 1.0, 3.0]),
    limits=limit_sets,
)
def test_the_gate_in_decimals_equals_the_gate_in_tensors(weight, account, turnover, limits):
    held, equity, peak, day_start = account
    numbers = (held, equity, peak, day_start, turnover)
    fields = [torch.tensor([value], dtype=torch.float64) for value in (weight, *numbers)]
    expected, expected_reason = risk_gate(fields[0], Account(*fields[1:]), limits.gate())
    allowed, reason = reference_gate(
        Decimal(weight), GateInputs(*map(Decimal, numbers)), ReferenceLimits.of(limits)
    )
    assert isinstance(limits.gate(), Limits)
    assert float(allowed) == pytest.approx(expected.item(), rel=1e-12, abs=1e-12)
    assert reason == expected_reason.item()


# Conservation


class Auditor:
    """Follows a ledger from the outside, by its records alone."""

    def __init__(self, config, first_close, **multipliers):
        self.ledger = ReferenceLedger(
            config, symbol=SYMBOL, first_ts_ms=0, first_close=first_close, **multipliers
        )
        self.cash, self.quantity = Decimal(repr(config.initial_equity)), Decimal(0)

    def step(self, at, weight):
        record = self.ledger.step(at, weight)
        with localcontext(EXACT):
            self.cash -= record.funding + record.fee_total
            if record.price is not None:
                self.cash -= record.traded * record.price
                self.quantity += record.traded
            if record.liquidated:
                self.cash += self.quantity * record.liquidation_price
                self.quantity = Decimal(0)
            self.check(record, at)
        return record

    def check(self, record, at):
        assert (record.cash, record.quantity) == (self.cash, self.quantity)
        assert record.equity == self.cash + self.quantity * at.close
        assert (record.entry_price == 0) == (self.quantity == 0)
        assert (record.price is None) == (record.traded == 0)
        self.ledger.check_identity()


MARKETS = (
    MarketConfig(episode_bars=10**9),
    MarketConfig(
        episode_bars=60,
        limits={"max_leverage": 5.0},
        margin={"maintenance": 0.05},
        stops={"equity_floor": 0.01, "drawdown": 0.9},
    ),
    MarketConfig(
        episode_bars=60,
        limits={"max_leverage": 5.0, "max_turnover": 3.0, "max_daily_loss": 0.2},
        margin={"maintenance": 0.02},
        filters={"lot": 0.001, "tick": 0.05, "min_notional": 10.0},
        no_trade={"daily": ("23:00-02:00",), "around_funding_minutes": 30},
    ),
    MarketConfig(
        episode_bars=60,
        limits={"max_drawdown": 0.3, "max_position": 8_000.0, "min_equity": 2_000.0},
        filters={"lot": 0.7, "tick": 0.01},
        min_rebalance=0.05,
    ),
)
TARGETS = [None, *(Decimal(value) for value in ("-5", "-1", "-0.5", "0", "0.3", "0.5", "1", "5"))]


class LedgerMachine(RuleBasedStateMachine):
    """Bars of every kind in any order; after each, nothing may have appeared or vanished."""

    @initialize(config=st.sampled_from(MARKETS), close=prices)
    def begin(self, config, close):
        self.config, self.close, self.hour = config, close, 0
        self.audit = Auditor(config, close)

    def bar(self, weight, opened, close, *, reach="1.01", **rest):
        if self.audit.ledger.ended:
            self.audit = Auditor(self.config, self.close)
        self.hour += 1
        rest = {"trailing_notional": Decimal(10**6)} | rest
        opened, close = (max(price.quantize(Decimal("0.01")), CLOSE) for price in (opened, close))
        at = bar(self.hour, opened, close, reach=reach, **rest)
        self.audit.step(at, weight)
        self.close = close

    @rule(weight=st.sampled_from(TARGETS), move=moves)
    def order(self, weight, move):
        self.bar(weight, self.close, self.close * move)

    @rule(move=moves)
    def price_moves(self, move):
        self.bar(None, self.close, self.close * move, reach="1.2")

    @rule(rate=decimals("-0.01", "0.01", 5), weight=st.sampled_from(TARGETS))
    def funding_settles(self, rate, weight):
        self.bar(weight, self.close, self.close, funding_rate=rate)

    @rule(gap=decimals("0.2", "4", 2), weight=st.sampled_from(TARGETS))
    def price_gaps(self, gap, weight):
        self.bar(weight, self.close * gap, self.close)

    @rule(weight=st.sampled_from(TARGETS), tradable=st.booleans())
    def order_is_blocked(self, weight, tradable):
        notional = Decimal(0) if tradable else Decimal(1)
        self.bar(weight, self.close, self.close, tradable=tradable, trailing_notional=notional)

    @rule(fee=moves, spread=moves, impact=moves)
    def fees_change(self, fee, spread, impact):
        self.audit = Auditor(
            self.config,
            self.close,
            fee_multiplier=fee,
            half_spread_multiplier=spread,
            impact_multiplier=impact,
        )

    @invariant()
    def nothing_has_vanished(self):
        if hasattr(self, "audit"):
            self.audit.ledger.check_identity()


LedgerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
test_no_sequence_of_events_creates_or_destroys_money = pytest.mark.spec("C1")(
    LedgerMachine.TestCase
)


def random_bar(draw, hour, last):
    """A bar of doubles, as a panel would hold it: mostly calm, sometimes a gap or a spike."""
    jump = draw.choice([0.0] * 6 + [0.3, 0.8])
    opened = last * math.exp(draw.gauss(0.0, 0.002) + draw.uniform(-jump, jump))
    # Drawn back to 100, so that no price ends in the hundreds of decimals.
    close = opened * math.exp(draw.gauss(0.0, 0.02) - 0.01 * math.log(opened / 100.0))
    spike = 1.0 + abs(draw.gauss(0.0, 0.01))
    numbers = (opened, max(opened, close) * spike, min(opened, close) / spike, close)
    return ReferenceBar(
        hour * HOUR,
        *map(Decimal, numbers),
        tradable=draw.random() > 0.02,
        funding_rate=Decimal(draw.gauss(0.0, 0.001) if hour % 8 == 0 else 0.0),
        trailing_notional=Decimal(draw.choice([0.0, 1e6, 1e6, 1e6, 1e7, 1e7, 1e8, 1e8])),
    )


def soak(events, seed):
    """Run random events; return how many fills, liquidations and episodes there were."""
    draw = random.Random(seed)
    counts = {"fills": 0, "liquidations": 0, "episodes": 0, "blocked": 0, "digits": 0}
    audit, last = None, 100.0
    for hour in range(1, events + 1):
        if audit is None or audit.ledger.ended:
            multipliers = {
                f"{name}_multiplier": Decimal(draw.uniform(0.5, 2.0))
                for name in ("fee", "half_spread", "impact")
            }
            audit = Auditor(draw.choice(MARKETS[1:]), Decimal(last), **multipliers)
            counts["episodes"] += 1
        at = random_bar(draw, hour, last)
        record = audit.step(at, draw.choice(TARGETS))
        last = float(at.close)
        counts["fills"] += record.price is not None
        counts["liquidations"] += record.liquidated
        counts["blocked"] += record.blocked
        counts["digits"] = max(counts["digits"], len(record.equity.as_tuple().digits))
    return counts


@pytest.mark.spec("C1", "R17")
def test_twenty_thousand_random_events_conserve_money():
    counts = soak(20_000, seed=1)

    assert counts["fills"] > 5_000
    assert counts["liquidations"] > 100
    assert counts["blocked"] > 1_000
    assert counts["episodes"] > 100


@pytest.mark.campaign
@pytest.mark.spec("C1", "R17")
@pytest.mark.parametrize("events", [250_000])
@pytest.mark.parametrize("part", range(40))
def test_ten_million_random_events_conserve_money(part, events):
    assert soak(events, seed=1000 + part)["fills"] > events // 4


def test_a_long_run_needs_no_more_digits_than_a_short_one():
    def digits(steps):
        draw, last = random.Random(7), 100.0
        audit, most = Auditor(MARKETS[0], Decimal(last)), 0
        for hour in range(1, steps + 1):
            at = random_bar(draw, hour, last)._replace(trailing_notional=Decimal(10**7))
            record = audit.step(at, draw.choice([Decimal("0.2"), Decimal("-0.2"), Decimal(0)]))
            last = float(at.close)
            most = max(most, -record.cash.as_tuple().exponent)
        return most

    # 24 decimals of a quantity, at most 46 of a price above 64, 66 and more of a small rate.
    assert digits(100) <= digits(4_000) <= 160
