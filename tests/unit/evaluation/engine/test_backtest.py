"""One pass over a span: money, sleeves, episodes, memory, stops, hashes."""

import hashlib
import math
from decimal import Decimal

import numpy as np
import pytest
import torch

from backtest_lab import LEVELS, LOOKBACK, STEPS, agent_for, features_of, panel, plain, rules
from simulator_lab import START_MS, market, steady
from stormsail.core.errors import ArtifactError
from stormsail.core.generators import Generators
from stormsail.evaluation.crosscheck.compare import compare_nautilus
from stormsail.evaluation.crosscheck.reference import reference_bars
from stormsail.evaluation.crosscheck.reference import replay as refer
from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.evaluation.engine.loop import AgentDecider, Decision
from stormsail.evaluation.engine.run import backtest, backtests, replay, replays, rows_of
from stormsail.evaluation.robustness.costs import on_panel
from stormsail.market import MarketConfig
from stormsail.market.features import ACCOUNT_FEATURES
from stormsail.market.simulator.config import Costs
from stormsail.modules import CriticConfig

HOUR_MS = 3_600_000


def free(**changes):
    """Return a backtest without costs, with weights up to 1 and no order steps."""
    rules = MarketConfig().replace(
        **{
            "costs.taker_fee": 0.0,
            "costs.half_spread": 0.0,
            "costs.impact": 0.0,
            "initial_equity": 1_000.0,
        }
    )
    return BacktestConfig.from_mapping({"market": rules.model_dump(), "burn_in": 0, **changes})


# ------------------------------------------------------------------ money


def test_two_sleeves_start_equal_and_add_up():
    doubles = steady([100.0, 100.0, 200.0])
    falls = steady([50.0, 50.0, 40.0])
    bars = market({"AAA/USDT:USDT": doubles, "BBB/USDT:USDT": falls})
    result = replay(torch.ones(3, 2), bars, free(capital=3_000.0))
    # 1,500 each: the first is filled at 100 and marked at 100, then at 200; the second 50, 40
    assert result.sleeves.tolist() == [[1500.0, 1500.0], [1500.0, 1500.0], [3000.0, 1200.0]]
    assert result.equity.tolist() == [3000.0, 3000.0, 4200.0]
    assert result.total_return == pytest.approx(0.4)
    assert result.ts.tolist() == [START_MS + HOUR_MS * n for n in (1, 2, 3)]
    assert result.span.start_ms == START_MS
    assert result.span.end_ms == START_MS + 3 * HOUR_MS


def test_a_trade_has_side_price_fee_and_slippage():
    bars = market([(100.0, 101.0, 99.0, 100.0), (100.0, 111.0, 99.0, 110.0), (120.0,) * 4])
    costs = {"market.costs.taker_fee": 0.001, "market.costs.half_spread": 0.01}
    config = free(filters=STEPS).replace(**costs)
    result = replay(torch.tensor([[0.5], [0.0], [0.0]]), bars, config)
    buy, sell = result.trades
    # the reserved cost of a purchase: s = 0.01 + tick/open = 0.0101, c = s + f (1 + s) = 0.0111101
    quantity = math.floor(500.0 / (1.0 + 0.5 * 0.0111101) / 100.0 / 0.001) * 0.001
    assert buy[:5] == (
        START_MS + HOUR_MS,
        "AAA/USDT:USDT",
        "buy",
        pytest.approx(quantity, abs=1e-12),
        101.0,
    )
    assert buy.fee == pytest.approx(0.001 * quantity * 101.0)
    assert buy.slippage == pytest.approx(quantity * 1.0)
    assert sell[:5] == (
        START_MS + 2 * HOUR_MS,
        "AAA/USDT:USDT",
        "sell",
        buy.quantity,
        pytest.approx(118.8),
    )
    assert (buy.reason, sell.reason) == ("decision", "decision")
    earned = buy.quantity * (118.8 - 101.0) - buy.fee - sell.fee
    assert result.round_trips.tolist() == [pytest.approx(earned)]
    assert result.equity[-1] == pytest.approx(1_000.0 + earned)


def test_round_trips_split_a_turn_at_zero_and_sum_to_what_was_earned():
    bars = panel(400)
    draw = np.random.default_rng(0)
    weights = draw.choice(LEVELS, bars.shape)
    weights[-2] = 0.0  # the last decision closes everything
    result = replay(weights, bars, plain(market=rules().model_dump()))
    assert result.bars["quantity"][-1].tolist() == [0.0] * 3
    assert len(result.round_trips) > 300
    assert result.round_trips.sum() == pytest.approx(result.equity[-1] - result.equity[0], rel=1e-9)
    assert result.metrics.win_rate.found == len(result.round_trips)


@pytest.mark.parametrize("calm", [True, False])
def test_the_pass_of_an_agent_equals_the_decimal_reference(calm):
    bars = panel(160, calm=calm)
    own = rules(
        limits__max_leverage=1.0,
        costs__impact=0.01,
        limits__max_daily_loss=0.05,
        limits__max_turnover=4.0,
        no_trade__daily=("05:00-06:00",),
    )
    result = backtest(agent_for(bars, own), bars, plain())
    assert len(result.trades) > 60
    first, _ = rows_of(bars, result.config, lookback=LOOKBACK, burn_in=5)
    for column, symbol in enumerate(bars.symbols):
        exact = reference_bars(bars, symbol, impact_window=result.market.costs.impact_window)
        weights = [None if math.isnan(w) else Decimal(w) for w in result.weights[:, column]]
        ledger = result.market.replace(episode_bars=len(weights))
        records = refer(ledger, exact[first:], weights, symbol=symbol)
        assert len(records) == len(weights)
        for name in ("equity", "cash", "quantity", "funding", "fee_total", "slippage", "turnover"):
            wanted = np.array([float(getattr(record, name)) for record in records])
            np.testing.assert_allclose(
                result.bars[name][:, column], wanted, rtol=1e-9, atol=1e-9, err_msg=name
            )
        assert result.reasons[:, column].tolist() == [int(record.reason) for record in records]
        fills = [(float(abs(row.traded)), float(row.price)) for row in records if row.price]
        own = [(trade.quantity, trade.price) for trade in result.trades if trade.symbol == symbol]
        assert own == [(pytest.approx(q, abs=1e-9), pytest.approx(p, abs=1e-9)) for q, p in fills]


def test_a_liquidation_is_a_trade_at_the_reference_price():
    rows = [(100.0,) * 4, (100.0, 100.0, 100.0, 100.0), (100.0, 100.0, 70.0, 75.0), (75.0,) * 4]
    bars = market(rows)
    own = rules(leverage=4.0, levels=(-4.0, 0.0, 4.0), stops__equity_floor=0.001)
    weights = torch.tensor([[4.0], [4.0], [0.0], [0.0]])
    result = replay(weights, bars, plain(market=own.model_dump(), filters=STEPS))
    *fills, gone = result.trades
    bought = sum(trade.quantity if trade.side == "buy" else -trade.quantity for trade in fills)
    records = refer(
        result.market.replace(episode_bars=3),
        reference_bars(bars, "AAA/USDT:USDT", impact_window=24),
        [Decimal(4), Decimal(4), Decimal(0)],
        symbol="AAA/USDT:USDT",
    )
    assert gone.reason == "liquidation"
    assert (gone.side, gone.quantity) == ("sell", pytest.approx(bought, rel=1e-12))
    assert gone.price == pytest.approx(float(records[1].liquidation_price), rel=1e-9)
    last = sum(trade.fee for trade in fills if trade.ts_ms == gone.ts_ms)
    assert gone.fee + last == pytest.approx(float(records[1].fee_total), rel=1e-9)
    assert gone.fee == pytest.approx((0.0005 + 0.005) * gone.quantity * gone.price, rel=1e-9)
    assert result.round_trips.tolist() == [
        pytest.approx(result.equity[-1] - result.equity[0], rel=1e-9)
    ]


def test_the_same_decisions_replayed_give_the_same_orders():
    bars = panel(150)
    result = backtest(agent_for(bars), bars, plain())
    again = replay(on_panel(result.weights, result, bars), bars, result.config.during(result.span))
    assert again.order_hash == result.order_hash
    assert again.equity.tolist() == result.equity.tolist()


def test_costs_walked_together_are_what_each_gives_alone():
    bars = panel(80)
    weights = np.random.default_rng(1).choice(LEVELS, bars.shape)
    config = plain(market=rules().model_dump())
    both = [Costs(taker_fee=0.002, half_spread=0.0), Costs(taker_fee=0.0, half_spread=0.001)]
    together = replays(weights, bars, config, costs=both)
    for cost, result in zip(both, together, strict=True):
        own = config.replace(**{"market.costs": cost.model_dump()})
        assert replay(weights, bars, own).equity.tolist() == result.equity.tolist()
        assert result.market.costs == cost
    assert together[0].order_hash != together[1].order_hash


# ------------------------------------------------------------------ order hash


def test_the_order_hash_is_the_sha256_of_a_text_that_anyone_can_write():
    bars = market(steady([100.0, 100.0, 110.0]))
    result = replay(torch.tensor([[0.5], [0.0], [0.0]]), bars, free(filters=STEPS))
    text = (
        "stormsail-orders-1\n"
        f"{START_MS + HOUR_MS} AAA/USDT:USDT buy 4.999 100.0\n"
        f"{START_MS + 2 * HOUR_MS} AAA/USDT:USDT sell 4.999 110.0\n"
    )
    assert result.order_hash == hashlib.sha256(text.encode()).hexdigest()


def test_a_golden_order_list_does_not_move():
    bars = panel(200, seed=11)
    weights = Generators(4).numpy("golden").choice(LEVELS, bars.shape)
    result = replay(weights, bars, plain(market=rules().model_dump()))
    assert len(result.trades) == GOLDEN[0]
    assert result.order_hash == GOLDEN[1]


GOLDEN = (533, "c4f9dbbca683663b8b41ceab3a1507e0afd7bb9b2fad1176bb7709e9f558be76")


# ------------------------------------------------------------------ memory, episodes, draws


class Watcher:
    """Writes down what it is shown, and holds one weight."""

    def __init__(self, weight):
        self.warmed, self.seen, self._weight = [], [], weight

    def warm(self, observation):
        self.warmed.append(observation.clone())

    def decide(self, _, observation):
        self.seen.append(observation.clone())
        return Decision(torch.full((len(observation),), self._weight, dtype=torch.float64))


def watched(monkeypatch, bars, own, config, *, weight=1.0):
    """Return a backtest and whoever watched it, in the place of the agent."""
    watcher = Watcher(weight)
    monkeypatch.setattr("stormsail.evaluation.engine.run.AgentDecider", lambda *_: watcher)
    return backtest(agent_for(bars, own), bars, config), watcher


def column(seen, name):
    place = ACCOUNT_FEATURES.index(name) - len(ACCOUNT_FEATURES)
    return torch.stack(seen)[:, 0, place].numpy()


def test_what_an_agent_sees_of_an_episode_restarts_while_the_account_goes_on(monkeypatch):
    bars = panel(60, symbols=1)
    result, watcher = watched(monkeypatch, bars, rules(), plain(burn_in=20))
    equity = result.equity[:-1]
    length = 16
    step = np.arange(len(equity))
    start = step - step % length
    np.testing.assert_allclose(
        column(watcher.seen, "log_equity"), np.log(equity / equity[start]), atol=1e-12
    )
    np.testing.assert_allclose(
        column(watcher.seen, "time_left"), (length - step % length) / length, atol=1e-12
    )
    peak = np.array([equity[s : n + 1].max() for n, s in zip(step, start, strict=True)])
    np.testing.assert_allclose(column(watcher.seen, "drawdown"), 1.0 - equity / peak, atol=1e-12)
    # the position, opened in the first bar, is never sold; only its age starts anew
    held = np.concatenate(([0], np.arange(1, len(equity))))
    age = np.minimum(held, step % length) / length
    np.testing.assert_allclose(column(watcher.seen, "time_in_position"), age, atol=1e-12)
    assert len(result.trades) == 1 or {trade.side for trade in result.trades[1:]} <= {"buy", "sell"}
    weights = np.concatenate(([0.0], result.bars["weight"][:-1, 0]))
    np.testing.assert_allclose(column(watcher.seen, "position"), weights, atol=1e-12)


def test_the_memory_reads_the_burn_in_with_a_flat_account(monkeypatch):
    bars = panel(60, symbols=1)
    result, watcher = watched(monkeypatch, bars, rules(), plain(burn_in=20))
    assert len(watcher.warmed) == 20
    for name in ("position", "unrealised", "drawdown", "time_in_position", "log_equity"):
        assert column(watcher.warmed, name).tolist() == [0.0] * 20
    # episodes of 16 bars are counted backwards from the first decision: 4 bars, then 16
    left = [*range(4, 0, -1), *range(16, 0, -1)]
    assert column(watcher.warmed, "time_left").tolist() == [bars_left / 16 for bars_left in left]
    own = features_of(bars)
    first, _ = rows_of(bars, result.config, lookback=LOOKBACK, burn_in=20)
    assert first == LOOKBACK - 1 + 20
    terms = agent_for(bars).binding.values["scaler"]
    raw = own.compute(bars).values[first - 20, 0].numpy()
    centre, scale = (np.array(terms[name]) for name in ("centre", "scale"))
    wanted = (raw - centre) / scale
    np.testing.assert_allclose(watcher.warmed[0][0, :2], wanted.clip(-10, 10), rtol=1e-12)


def test_the_burn_in_changes_what_an_agent_remembers_and_nothing_else():
    bars = panel(120)
    agent = agent_for(bars)
    start = "2021-01-06T00:00:00Z"  # row 48
    short, long = (
        backtest(agent, bars, plain(burn_in=bars_read, start=start)) for bars_read in (0, 40)
    )
    assert short.ts.tolist() == long.ts.tolist()
    assert short.value is not None
    assert long.value is not None
    assert (short.value[0] != long.value[0]).all()
    forgetful = agent_for(bars, memory="none")
    short, long = (
        backtest(forgetful, bars, plain(burn_in=bars_read, start=start)) for bars_read in (0, 40)
    )
    assert short.order_hash == long.order_hash


def test_what_was_predicted_is_what_the_critic_says_of_the_same_observations():
    bars = panel(50)
    agent = agent_for(bars)
    config = plain(market=rules().model_dump())
    decider = AgentDecider(agent, config, LEVELS, 3)
    seen = torch.randn(3, len(agent.spec.observation_names), dtype=torch.float64)
    made = decider.decide(0, seen)
    wanted = agent.decide(seen.float(), agent.initial_memory(3), deterministic=True)
    assert made.distribution is not None
    assert made.distribution.tolist() == wanted.distribution.double().tolist()
    assert made.weight.tolist() == [LEVELS[int(action)] for action in wanted.action]
    result = backtest(agent, bars, config)
    assert result.distribution is not None
    assert result.distribution.shape == (len(result.returns), 3, 5)
    assert result.distribution_kind == "quantile"
    assert result.distribution_support is not None
    np.testing.assert_allclose(result.distribution_support, [0.1, 0.3, 0.5, 0.7, 0.9], rtol=1e-15)


@pytest.mark.parametrize(
    ("critic", "width"),
    [
        (CriticConfig(kind="categorical", num_atoms=7), 7),
        (CriticConfig(kind="scalar", use_twin_critics=False), 1),
    ],
)
def test_other_critics_leave_their_distribution_as_well(critic, width):
    bars = panel(40)
    result = backtest(agent_for(bars, critic=critic), bars, plain())
    assert result.distribution is not None
    assert result.distribution.shape[-1] == width
    assert result.distribution_kind == critic.kind


def test_a_continuous_agent_trades_its_own_numbers():
    bars = panel(60)
    own = rules(action="continuous", weight_range=(-0.8, 0.6))
    result = backtest(agent_for(bars, own), bars, plain())
    assert result.bars["decided"].min() >= -0.8
    assert result.bars["decided"].max() <= 0.6
    assert len(np.unique(result.bars["decided"])) > 50


def test_drawn_actions_repeat_with_their_seed_and_differ_with_another():
    bars = panel(90)
    agent = agent_for(bars, gain=1.0)
    first, same, other = (
        backtest(agent, bars, plain(greedy=False, seed=seed)).order_hash for seed in (1, 1, 2)
    )
    assert first == same
    assert first != other


def test_where_a_network_computes_no_numbers_the_position_is_held():
    agent = agent_for(panel(40), memory="none")
    decider = AgentDecider(agent, plain(), LEVELS, 2)
    seen = torch.zeros(2, len(agent.spec.observation_names), dtype=torch.float64)
    seen[1] = torch.nan
    weight = decider.decide(0, seen).weight
    assert weight.isnan().tolist() == [False, True]


def test_an_agent_with_broken_weights_is_refused():
    bars = panel(40)
    agent = agent_for(bars)
    with torch.no_grad():
        agent.network.actor_last.bias.fill_(torch.nan)
    with pytest.raises(ArtifactError, match="artifact-nonfinite"):
        backtest(agent, bars, plain())


def test_no_decision_depends_on_later_bars():
    bars = panel(100)
    agent = agent_for(bars)
    result = backtest(agent, bars, plain())
    cut = 60
    later = panel(100)
    for name in ("open", "high", "low", "close", "volume"):
        getattr(later, name)[cut:] *= 1.5
    changed = backtest(agent, later, plain())
    first, _ = rows_of(bars, result.config, lookback=LOOKBACK, burn_in=5)
    known = cut - first  # decisions at the closes of rows before the cut
    assert result.weights[:known].tolist() == changed.weights[:known].tolist()
    assert result.equity[:known].tolist() == changed.equity[:known].tolist()
    assert result.weights[known:].tolist() != changed.weights[known:].tolist()


# ------------------------------------------------------------------ delay, stops, pools


def test_a_delayed_decision_fills_one_bar_later():
    bars = market(steady([100.0, 100.0, 110.0, 121.0]))
    weights = torch.tensor([[1.0], [0.0], [0.0], [0.0]])
    prompt = replay(weights, bars, free())
    late = replay(weights, bars, free(delay_bars=1))
    # in time: bought at 100, sold at 110; late: bought at 110, sold at 121
    assert prompt.equity.tolist() == pytest.approx([1000.0, 1000.0, 1100.0, 1100.0])
    assert late.equity.tolist() == pytest.approx([1000.0, 1000.0, 1000.0, 1100.0])
    assert [trade.ts_ms for trade in late.trades] == [START_MS + HOUR_MS * n for n in (2, 3)]


def test_a_stop_ends_decisions_and_closes_the_position_at_the_next_open():
    prices = [100.0, 100.0, 70.0, 72.0, 90.0, 90.0]
    bars = market({"AAA/USDT:USDT": steady(prices), "BBB/USDT:USDT": steady([50.0] * 6)})
    config = free(**{}).replace(**{"market.stops.drawdown": 0.25})
    result = replay(torch.ones(6, 2), bars, config)
    assert result.flags["stopped"][:, 0].tolist() == [False, False, True, True, True]
    assert not result.flags["stopped"][:, 1].any()
    closing = result.trades[-1]
    assert (closing.symbol, closing.side, closing.reason) == ("AAA/USDT:USDT", "sell", "stop")
    assert closing.ts_ms == START_MS + 3 * HOUR_MS
    assert result.sleeves[:, 0].tolist() == pytest.approx([1000, 1000, 700, 720, 720, 720])


def test_a_pool_moves_cash_and_makes_or_loses_none():
    names = ("AAA/USDT:USDT", "BBB/USDT:USDT")
    bars = market({names[0]: steady([100.0, 100, 200, 200]), names[1]: steady([10.0] * 4)})
    result = replay(torch.ones(4, 2), bars, free(pool_bars=2))
    # after two bars 2000 and 1000 become 1500 each; the third bar trades both back to weight 1
    assert result.bars["transfer"].tolist()[2] == [-500.0, 500.0]
    assert result.bars["quantity"][:, 0].tolist() == pytest.approx([10.0, 10.0, 7.5])
    assert result.bars["quantity"][:, 1].tolist() == pytest.approx([100.0, 100.0, 150.0])
    assert result.equity.tolist() == pytest.approx([2000, 2000, 3000, 3000])


def test_the_first_decision_of_a_replay_takes_the_weight_that_stood_before():
    bars = market(steady([100.0, 100.0, 110.0, 121.0]))
    weights = torch.tensor([[1.0], [torch.nan], [torch.nan], [torch.nan]])
    result = replay(weights, bars, free(start="2021-01-04T01:00:00Z"))
    assert result.equity.tolist() == pytest.approx([1000.0, 1000.0, 1100.0])


# ------------------------------------------------------------------ the third ledger


def test_nautilus_keeps_the_same_books():
    pytest.importorskip("nautilus_trader", reason="needs the extra `nautilus`")
    bars = panel(150, symbols=2)
    rounded = {name: getattr(bars, name).round(decimals=2) for name in ("open", "close")}
    high = torch.maximum(bars.high, torch.maximum(*rounded.values())).mul(100).ceil().div(100)
    low = torch.minimum(bars.low, torch.minimum(*rounded.values())).mul(100).floor().div(100)
    for name, table in {**rounded, "high": high, "low": low}.items():
        getattr(bars, name).copy_(table)
    result = backtest(agent_for(bars), bars, plain())
    apart = compare_nautilus(result, bars)
    assert [difference.symbol for difference in apart] == list(bars.symbols)
    assert [difference.bars for difference in apart] == [len(result.equity)] * 2
    assert sum(difference.fills for difference in apart) == len(result.trades) > 50
    assert max(difference.position for difference in apart) <= 1e-9
    assert max(difference.equity_share for difference in apart) <= 1e-9
    late = backtest(agent_for(bars), bars, plain(delay_bars=1))
    assert max(difference.equity_share for difference in compare_nautilus(late, bars)) <= 1e-9


def test_several_costs_of_an_agent_are_decided_by_what_each_account_sees():
    bars = panel(80)
    agent = agent_for(bars)
    cheap, dear = backtests(
        agent, bars, plain(), costs=[rules().costs, Costs(taker_fee=0.01, half_spread=0.0)]
    )
    assert cheap.order_hash == backtest(agent, bars, plain()).order_hash
    assert cheap.value is not None
    assert dear.value is not None
    assert (dear.value[1] != cheap.value[1]).all()
