"""The market's rules, one by one, in numbers worked out by hand. Free of costs unless said."""

import math

import pytest
import torch

from simulator_lab import SYMBOL, at, draws, market, play, settings, simulator, steady

NAN = math.nan


def numbers(panel, config, weights, **options):
    return play(panel, config, weights, **options)[2]


def column(rows, name):
    return [row[name] for row in rows]


# --- when an order fills


@pytest.mark.spec("M37")
def test_an_order_fills_at_the_next_open_and_never_at_the_close_that_decided_it():
    panel = market([(90, 105, 90, 100), (110, 125, 110, 120), (120, 120, 120, 120)])
    first, _ = numbers(panel, settings(episode_bars=1), [1.0, 0.0])
    assert first["price"] == 110.0
    assert first["traded"] == pytest.approx(10_000 / 110, rel=1e-15)
    assert first["equity"] == pytest.approx(10_000 * 120 / 110, rel=1e-15)


@pytest.mark.spec("M28")
def test_the_jump_before_the_fill_belongs_to_the_old_position():
    panel = market([*steady([100, 100]), (200, 200, 200, 200), (100, 100, 100, 100)])
    rows = numbers(panel, settings(episode_bars=2), [0.5, 0.0, 1.0])
    # 0.5 at 100; the price doubles before the close-out fills: 5,000 * 2 + 5,000.
    assert column(rows, "equity")[:2] == [10_000.0, 15_000.0]
    assert rows[1]["quantity"] == 0.0


def test_an_action_is_a_weight_and_repeating_it_does_not_accumulate():
    panel = market(steady([100.0] * 6))
    rows = numbers(panel, settings(episode_bars=4), [0.5, 0.5, 0.5, 0.5])
    assert column(rows, "quantity") == [50.0] * 4
    assert column(rows, "traded") == [50.0, 0.0, 0.0, 0.0]
    assert column(rows, "weight") == [0.5] * 4


def test_a_repeated_weight_is_the_weight_after_every_fill():
    closes = [100.0, 101.0, 103.0, 99.0, 104.0, 98.0, 98.0]
    panel = market([(c + 0.3, c + 1.0, c - 1.0, c) for c in closes])
    config = settings(episode_bars=5, **{"costs.taker_fee": 0.001})
    for weight in (0.5, -0.8):
        rows = numbers(panel, config, [weight] * 5)
        assert column(rows, "signal_pos_next") == pytest.approx([weight] * 5, rel=1e-12)


def test_a_repeated_weight_is_restored_after_the_price_moved():
    panel = market(steady([100.0, 100.0, 200.0, 200.0, 200.0]))
    rows = numbers(panel, settings(episode_bars=3), [0.5, 0.5, 0.5])
    # 50 bought at 100; the next order meets an open of 200: equity 15,000, half of it is 37.5.
    assert column(rows, "traded") == [50.0, -12.5, 0.0]
    assert rows[2]["quantity"] == 37.5


def test_the_held_weight_itself_is_no_order():
    panel = market(steady([100.0, 100.0, 150.0, 120.0, 130.0]))
    config = settings(leverage=2.0, episode_bars=3)
    rows = numbers(panel, config, [0.5, NAN, NAN])
    assert column(rows, "quantity") == [50.0] * 3
    assert column(rows, "traded")[1:] == [0.0, 0.0]
    assert column(rows, "bad_action") == [False, True, True]
    assert math.isnan(rows[1]["price"])


# --- costs


def test_a_fill_pays_half_spread_fee_and_impact():
    panel = market(steady([100.0] * 4), volume=400.0)  # 40,000 a bar
    costs = {"costs.taker_fee": 0.001, "costs.half_spread": 0.002, "costs.impact": 0.01}
    row = numbers(panel, settings(episode_bars=2, **costs), [1.0])[0]
    # Reserved: 0.002 + 0.01 * sqrt(10,000 / 40,000) = 0.007; c = 0.007 + 0.001 * 1.007.
    size = 10_000 / (1 + 0.007 + 0.001 * 1.007) / 100
    price = 100 * (1 + 0.002 + 0.01 * math.sqrt(size * 100 / 40_000))
    assert row["traded"] == pytest.approx(size, rel=1e-14)
    assert row["price"] == pytest.approx(price, rel=1e-14)
    assert row["fee_total"] == pytest.approx(0.001 * size * price, rel=1e-13)
    assert row["slippage"] == pytest.approx(size * (price - 100), rel=1e-12)
    assert row["cash"] == pytest.approx(10_000 - size * price * 1.001, abs=1e-9)
    assert row["cash"] >= 0.0
    assert row["turnover"] == pytest.approx(size * 100 / 10_000, rel=1e-14)
    paid = 0.001 * size * price + size * (price - 100)
    assert row["reward_costs_fraction"] == pytest.approx(paid / 10_000, rel=1e-12)
    assert row["reward"] == pytest.approx(math.log(1 - paid / 10_000), rel=1e-12)


def test_the_reward_of_a_step_holds_its_own_costs():
    panel = market(steady([100.0] * 5))
    rows = numbers(panel, settings(episode_bars=3, **{"costs.taker_fee": 0.01}), [1.0, 1.0, 0.0])
    bought = math.log(1 - 0.01 / 1.01)  # fee on 10,000 / 1.01
    assert column(rows, "reward") == pytest.approx([bought, 0.0, math.log(0.99)], abs=1e-15)


@pytest.mark.spec("M35", "FinRL-378")
@pytest.mark.parametrize("tick", [0.0, 0.7])
def test_weight_one_with_every_cost_leaves_no_debt(tick):
    panel = market(steady([100.0, 100.0, 101.3, 97.7, 103.1, 99.9]), volume=150.0)
    costs = {"costs.taker_fee": 0.01, "costs.half_spread": 0.01, "costs.impact": 0.05}
    config = settings(episode_bars=4, **costs, **{"filters.tick": tick})
    rows = numbers(panel, config, [1.0] * 4)
    assert min(column(rows, "cash")) >= -1e-9
    assert rows[0]["weight"] > 0.99


@pytest.mark.spec("TorchTrade-278")
def test_no_trade_at_full_weight_is_rejected_for_want_of_its_fee():
    panel = market(steady([100.0 + 3 * (k % 5) for k in range(30)]))
    config = settings(episode_bars=20, **{"costs.taker_fee": 0.01})
    rows = numbers(panel, config, [1.0, -1.0] * 10)
    assert all(row["traded"] != 0.0 for row in rows)
    assert not any(row["blocked"] for row in rows)


@pytest.mark.spec("M31", "TorchTrade-243")
def test_a_position_that_was_there_before_can_be_closed():
    sim = simulator(market(steady([100.0] * 8)), settings(episode_bars=5))
    state = at(sim, row=1)
    state = state._replace(quantity=state.cash.new_tensor([3.7]), entry_price=state.price)
    state = state._replace(cash=state.cash - 370.0)
    state, step = sim.transition(state, torch.zeros(1, dtype=torch.float64), draws(sim))
    assert state.quantity.item() == 0.0
    assert step.info.traded.item() == -3.7
    assert state.cash.item() == pytest.approx(10_000.0, rel=1e-15)


def test_the_mean_notional_is_of_closed_bars_in_the_window():
    # Decided at row 3 with a window of 2: rows 2 and 3 trade 200 * 100 and 400 * 100.
    panel = market(steady([100.0] * 6), volume=[9e9, 9e9, 200.0, 400.0, 7.0, 7.0])
    costs = {"costs.impact": 0.01, "costs.impact_window": 2}
    row = numbers(panel, settings(episode_bars=2, **costs), [-1.0], row=3)[0]
    size = 10_000 / (1 + 0.01 * math.sqrt(10_000 / 30_000)) / 100
    assert row["price"] == pytest.approx(
        100 * (1 - 0.01 * math.sqrt(size * 100 / 30_000)), rel=1e-14
    )


def test_at_the_start_the_mean_is_of_the_bars_there_are():
    panel = market(steady([100.0] * 6), volume=[200.0, 400.0, 7.0, 7.0, 7.0, 7.0])
    row = numbers(panel, settings(episode_bars=2, **{"costs.impact": 0.01}), [-1.0], row=1)[0]
    size = 10_000 / (1 + 0.01 * math.sqrt(10_000 / 30_000)) / 100
    assert row["traded"] == pytest.approx(-size, rel=1e-14)


def test_a_quote_volume_is_taken_as_it_is():
    quoted = [30_000.0] * 6
    panel = market(steady([100.0] * 6), volume=5.0, quote_volume=quoted)
    row = numbers(panel, settings(episode_bars=2, **{"costs.impact": 0.01}), [-1.0])[0]
    size = 10_000 / (1 + 0.01 * math.sqrt(10_000 / 30_000)) / 100
    assert row["traded"] == pytest.approx(-size, rel=1e-14)


def test_no_order_goes_out_where_the_impact_cannot_be_known():
    panel = market(steady([100.0] * 6), volume=[0.0, 0.0, 5e6, 5e6, 5e6, 5e6])
    rows = numbers(panel, settings(episode_bars=4, **{"costs.impact": 0.01}), [1.0] * 4)
    assert column(rows, "blocked") == [True, True, False, False]
    assert rows[1]["quantity"] == 0.0
    free = numbers(panel, settings(episode_bars=4, trade_without_volume=True), [1.0] * 4)
    assert column(free, "blocked") == [False] * 4


@pytest.mark.spec("TorchTrade-274", "TorchTrade-302", "TorchTrade-304")
def test_a_partial_resize_pays_for_the_difference_and_keeps_the_entry():
    panel = market(steady([100.0, 100.0, 120.0, 120.0, 120.0, 120.0]))
    config = settings(episode_bars=4, leverage=5.0, **{"costs.taker_fee": 0.001})
    rows = numbers(panel, config, [4.0, 2.0, 2.5, 0.0])
    q0, q1, q2, _ = column(rows, "quantity")
    assert column(rows, "fee_total")[1:3] == pytest.approx(
        [0.001 * (q0 - q1) * 120, 0.001 * (q2 - q1) * 120], rel=1e-12
    )
    assert column(rows, "entry_price")[:2] == [100.0, 100.0]  # reduced, not closed and reopened
    mean = (100 * q1 + 120 * (q2 - q1)) / q2
    assert rows[2]["entry_price"] == pytest.approx(mean, rel=1e-14)
    assert rows[3]["entry_price"] == 0.0


def test_turning_through_zero_enters_at_the_fill():
    panel = market(steady([100.0, 100.0, 120.0, 120.0]))
    rows = numbers(panel, settings(episode_bars=2), [1.0, -1.0])
    assert rows[1]["entry_price"] == 120.0
    assert rows[1]["quantity"] == -100.0
    assert rows[1]["traded"] == -200.0


# --- steps of an exchange


@pytest.mark.spec("M33", "M36")
def test_lots_cut_the_order_and_a_closing_leaves_no_dust():
    panel = market(steady([100.0] * 8))
    config = settings(episode_bars=6, **{"filters.lot": 0.3})
    rows = numbers(panel, config, [0.5, 0.53, 0.2, -0.31, 0.0, 0.0])
    assert column(rows, "quantity") == pytest.approx([49.8, 52.8, 20.1, -30.9, 0.0, 0.0], rel=1e-15)
    assert column(rows, "quantity")[4:] == [0.0, 0.0]
    assert rows[4]["entry_price"] == 0.0


def test_positions_stay_on_the_lot_grid_to_the_last_bit():
    panel = market(steady([100.0 + k % 7 for k in range(60)]))
    config = settings(episode_bars=57, **{"filters.lot": 0.1})
    weights = [math.sin(k) for k in range(57)]
    for quantity in column(numbers(panel, config, weights), "quantity"):
        assert quantity == round(quantity / 0.1) * 0.1


def test_a_lot_has_its_double_precision():
    panel = market(steady([100.0] * 4))
    row = numbers(panel, settings(episode_bars=2, **{"filters.lot": 0.001}), [0.123456])[0]
    assert row["quantity"] == 12345 * 0.001


def test_a_price_is_moved_to_the_next_tick_against_us():
    panel = market(steady([100.13] * 5))
    config = settings(episode_bars=3, **{"filters.tick": 0.25})
    rows = numbers(panel, config, [0.5, -0.5])
    assert column(rows, "price") == [100.25, 100.0]
    assert rows[0]["slippage"] == pytest.approx(rows[0]["traded"] * 0.12, rel=1e-9)


def test_an_order_below_the_least_notional_is_not_sent():
    panel = market(steady([100.0] * 5))
    config = settings(episode_bars=3, **{"filters.min_notional": 1_000.0})
    rows = numbers(panel, config, [0.0999, 0.1, 0.15])
    assert column(rows, "quantity") == [0.0, 10.0, 10.0]
    assert math.isnan(rows[2]["price"])
    assert column(rows, "blocked") == [False] * 3


def test_a_small_change_of_weight_is_not_traded_unless_it_closes():
    panel = market(steady([100.0] * 8))
    config = settings(episode_bars=6, min_rebalance=0.1)
    rows = numbers(panel, config, [0.05, 0.5, 0.55, 0.41, 0.05, 0.0])
    assert column(rows, "quantity") == pytest.approx([0.0, 50.0, 50.0, 50.0, 5.0, 0.0], rel=1e-14)
    assert rows[5]["quantity"] == 0.0


def test_a_symbol_may_have_its_own_steps():
    panel = market({SYMBOL: steady([100.0] * 4), "BBB/USDT:USDT": steady([100.0] * 4)})
    config = settings(episode_bars=2).replace(
        **{"filters.lot": 7.0, "symbol_filters": {SYMBOL: {"lot": 0.5}}}
    )
    assert numbers(panel, config, [0.128])[0]["quantity"] == 12.5
    assert config.filters_of("BBB/USDT:USDT").lot == 7.0


# --- funding


def test_funding_is_paid_at_the_open_on_what_was_held_before_the_fill():
    panel = market([(100, 100, 100, 100), (100, 100, 100, 100), (150, 150, 150, 100)] * 2,
                   funding={1: 0.01, 2: 0.01})  # fmt: skip
    rows = numbers(panel, settings(episode_bars=4), [0.5, 0.0, 0.0])
    # Opened at row 1: nothing held before. Closed at row 2: 50 * 150 * 0.01, although sold there.
    assert column(rows, "funding") == [0.0, 75.0, 0.0]
    assert rows[1]["equity"] == 10_000 + 50 * 50 - 75


def test_a_short_receives_a_positive_rate():
    panel = market(steady([100.0] * 5), funding={2: 0.01, 3: -0.02})
    rows = numbers(panel, settings(episode_bars=3), [-1.0, NAN, NAN])
    assert column(rows, "funding") == pytest.approx([0.0, -100.0, 200.0], rel=1e-15)
    assert rows[2]["equity"] == pytest.approx(9_900.0, rel=1e-15)


def test_funding_is_paid_before_the_order_is_sized():
    panel = market(steady([100.0] * 5), funding={2: 0.1})
    rows = numbers(panel, settings(episode_bars=3), [1.0, 0.5])
    assert rows[1]["quantity"] == pytest.approx(45.0, rel=1e-15)  # half of an equity of 9,000
