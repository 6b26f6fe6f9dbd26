"""Margin, limits, closed times, reward and end, in numbers worked out by hand."""

import math

import pytest
import torch

from simulator_lab import market, play, settings, steady
from stormsail.functional.risk_gate import Reason

NAN = math.nan


def numbers(panel, config, weights, **options):
    return play(panel, config, weights, **options)[2]


def column(rows, name):
    return [row[name] for row in rows]


# --- margin


def test_a_gap_through_the_margin_is_liquidated_at_the_open_without_an_order():
    # 5 times long: cash -40,000, quantity 500. At 82 equity is 1,000 <= 0.05 * 41,000 = 2,050.
    panel = market([*steady([100.0, 100.0]), (82, 95, 82, 95), *steady([95.0] * 2)])
    config = settings(
        leverage=5.0, episode_bars=3, margin__maintenance=0.05, margin__liquidation_fee=0.01
    )
    rows = numbers(panel, config, [5.0, -5.0, 0.0])
    assert column(rows, "liquidated") == [False, True, False]
    assert rows[1]["traded"] == 0.0
    assert rows[1]["fee_total"] == pytest.approx(410.0, rel=1e-14)
    assert rows[1]["equity"] == pytest.approx(590.0, rel=1e-13)
    assert (rows[1]["quantity"], rows[1]["entry_price"]) == (0.0, 0.0)
    assert (rows[1]["turnover"], rows[1]["slippage"]) == (0.0, 0.0)
    assert rows[1]["signal_pos_next"] == 0.0


def test_inside_a_bar_a_long_is_taken_away_where_its_margin_ends():
    # -40,000 + 500 x = 0.05 * 500 x  =>  x = 40,000 / 475; the low touches it, the close recovers.
    panel = market([*steady([100.0]), (100, 100, 84, 99), *steady([99.0] * 2)])
    config = settings(leverage=5.0, episode_bars=2, **{"margin.maintenance": 0.05})
    row = numbers(panel, config.replace(**{"costs.taker_fee": 0.0}), [5.0])[0]
    price = 40_000 / 475
    assert row["liquidated"]
    assert row["equity"] == pytest.approx(-40_000 + 500 * price * (1 - 0.005), rel=1e-12)
    assert row["fee_total"] == pytest.approx(0.005 * 500 * price, rel=1e-12)
    assert row["traded"] == 500.0
    assert row["signal_pos_next"] == 5.0


def test_a_close_outside_the_margin_is_seen_by_the_low_and_not_by_the_close():
    panel = market([*steady([100.0]), (100, 100, 84.5, 99), *steady([99.0] * 2)])
    config = settings(leverage=5.0, episode_bars=2, **{"margin.maintenance": 0.05})
    row = numbers(panel, config, [5.0])[0]
    assert not row["liquidated"]
    assert row["equity"] == 9_500.0


def test_inside_a_bar_a_short_is_taken_away_by_the_high():
    # Cash 60,000, quantity -500: 60,000 - 500 x = 0.05 * 500 x  =>  x = 60,000 / 525.
    panel = market([*steady([100.0]), (100, 115, 100, 100), *steady([100.0] * 2)])
    config = settings(leverage=5.0, episode_bars=2, **{"margin.maintenance": 0.05})
    row = numbers(panel, config, [-5.0])[0]
    price = 60_000 / 525
    assert row["liquidated"]
    assert row["equity"] == pytest.approx(60_000 - 500 * price * 1.005, rel=1e-12)


@pytest.mark.spec("M32")
def test_a_liquidation_does_not_end_the_episode_and_the_account_trades_on():
    panel = market([*steady([100.0]), (100, 100, 70, 99), *steady([100.0, 110.0, 110.0])])
    config = settings(leverage=2.0, episode_bars=3, **{"margin.maintenance": 0.4})
    rows = numbers(panel, config, [2.0, 1.0, 1.0])
    assert column(rows, "liquidated") == [True, False, False]
    assert column(rows, "terminated") == [False] * 3
    assert rows[2]["equity"] == pytest.approx(rows[0]["equity"] * 1.1, rel=1e-14)


@pytest.mark.spec("M29", "TorchTrade-159")
def test_equity_below_zero_is_shown_as_it_is():
    panel = market(steady([100.0, 100.0, 50.0, 50.0]))
    rows = numbers(panel, settings(leverage=5.0, episode_bars=2), [5.0, 0.0])
    # -40,000 + 500 * 50 = -15,000, less 0.005 of 25,000.
    assert rows[1]["equity"] == pytest.approx(-15_125.0, rel=1e-14)
    assert rows[1]["terminated"]
    assert rows[1]["reward"] == pytest.approx(math.log(0.05), rel=1e-14)


def test_a_loss_of_exactly_everything_gives_finite_numbers():
    # Twice long and the price halves: equity at the open is 0 to the bit.
    panel = market(steady([100.0, 100.0, 50.0, 50.0]))
    config = settings(leverage=2.0, episode_bars=2, **{"margin.liquidation_fee": 0.0})
    infos, _, rows = play(panel, config, [2.0, 1.0])
    assert rows[1]["equity"] == 0.0
    assert rows[1]["turnover"] == 0.0
    assert infos[1].terminal_observation.isfinite().all()


# --- limits of the gate


def test_a_daily_loss_allows_only_reducing_until_midnight():
    # The day starts at row 0; midnight is the open of row 24.
    prices = [100.0] * 21 + [80.0] * 6
    config = settings(episode_bars=24, **{"limits.max_daily_loss": 0.09})
    rows = numbers(market(steady(prices)), config, [0.0] * 19 + [0.5, 0.5, 1.0, 1.0, 1.0])
    # Row 21 opens at 80: equity 9,000, half of it is 56.25, and the day's loss is 0.1. From then on
    # nothing may grow. The order of row 24 falls on the new day.
    assert [Reason(code).name for code in column(rows, "reason")[20:]] == [
        "NONE", "DAILY_LOSS", "DAILY_LOSS", "NONE",
    ]  # fmt: skip
    assert column(rows, "quantity")[19:23] == [50.0, 56.25, 56.25, 56.25]
    assert rows[23]["weight"] == pytest.approx(1.0, rel=1e-14)


def test_the_day_turns_for_the_decision_that_fills_at_midnight():
    config = settings(episode_bars=30, **{"limits.max_turnover": 1.0})
    weights = [0.0] * 21 + [1.0, -1.0, -1.0, -1.0]
    rows = numbers(market(steady([100.0] * 34)), config, weights)
    # 1 is used up at 22:00; at 23:00 only the way to zero is free; at 00:00 a new budget begins.
    assert column(rows, "weight")[21:] == [1.0, 0.0, -1.0, -1.0]
    assert [Reason(code).name for code in column(rows, "reason")[21:]] == [
        "NONE", "TURNOVER", "NONE", "NONE",
    ]  # fmt: skip


def test_turnover_is_measured_at_the_open_over_the_equity_there():
    panel = market(steady([100.0, 100.0, 150.0, 150.0]))
    _, states, rows = play(panel, settings(episode_bars=2), [0.5, 0.0])
    # 50 * 150 over 12,500.
    assert rows[1]["turnover"] == 0.6
    assert states[2].turnover.item() == 1.1


def test_a_drawdown_allows_only_reducing_and_counts_from_the_highest_mark():
    panel = market(steady([100.0, 100.0, 120.0, 90.0, 90.0, 90.0, 90.0]))
    config = settings(episode_bars=5, **{"limits.max_drawdown": 0.25})
    _, states, rows = play(panel, config, [1.0, 1.0, 1.0, 0.4, -1.0])
    assert states[-1].peak_equity.item() == 12_000.0
    assert [Reason(code).name for code in column(rows, "reason")] == [
        "NONE", "NONE", "NONE", "NONE", "DRAWDOWN",
    ]  # fmt: skip
    assert column(rows, "quantity")[3:] == pytest.approx([40.0, 0.0], rel=1e-14)


def test_the_gate_sees_the_account_of_the_decision():
    # The fall comes at the open of row 2, after the decision: the order still goes through.
    panel = market([*steady([100.0, 100.0]), (70, 70, 70, 70), *steady([70.0] * 3)])
    config = settings(episode_bars=4, **{"limits.max_drawdown": 0.1})
    rows = numbers(panel, config, [0.5, 1.0, -1.0])
    assert column(rows, "reason")[:2] == [Reason.NONE, Reason.NONE]
    assert rows[1]["weight"] == pytest.approx(1.0, rel=1e-14)
    assert rows[2]["reason"] == Reason.DRAWDOWN


def test_a_largest_position_and_a_least_equity_hold():
    panel = market(steady([100.0, 100.0, 60.0, 60.0, 60.0]))
    config = settings(episode_bars=3, limits__max_position=5_000.0, limits__min_equity=8_500.0)
    rows = numbers(panel, config, [1.0, 1.0, 1.0])
    # 50 at 100; at 60 equity is 8,000 < 8,500, so what follows is closed.
    assert rows[0]["quantity"] == 50.0
    assert column(rows, "reason") == [Reason.POSITION, Reason.POSITION, Reason.BANKRUPT]
    assert rows[2]["quantity"] == 0.0


# --- when no order is sent


@pytest.mark.spec("M30", "M31", "TorchTrade-190")
def test_without_a_bar_nothing_is_traded_and_nothing_changes_but_the_mark():
    panel = market(steady([100.0] * 6), closed=[2], funding={2: 0.01})
    rows = numbers(panel, settings(episode_bars=4), [0.5, 1.0, 1.0, 0.0])
    assert column(rows, "blocked") == [False, True, False, False]
    assert column(rows, "quantity") == pytest.approx([50.0, 50.0, 99.5, 0.0], rel=1e-14)
    assert rows[1]["funding"] == 50.0
    assert math.isnan(rows[1]["price"])


def test_a_window_counts_at_the_fill_and_not_at_the_decision():
    config = settings(episode_bars=6, **{"no_trade.daily": ("02:00-04:00",)})
    rows = numbers(market(steady([100.0] * 9)), config, [0.1, 0.2, 0.3, 0.4, 0.5])
    assert column(rows, "blocked") == [False, True, True, False, False]
    assert column(rows, "quantity") == pytest.approx([10.0, 10.0, 10.0, 40.0, 50.0], rel=1e-14)


def test_a_window_may_pass_midnight():
    config = settings(episode_bars=25, **{"no_trade.daily": ("23:00-01:00",)})
    weights = [0.1 + 0.01 * k for k in range(25)]
    rows = numbers(market(steady([100.0] * 28)), config, weights)
    blocked = [index + 1 for index, row in enumerate(rows) if row["blocked"]]
    assert blocked == [23, 24]


def test_a_dated_window_begins_and_ends_on_the_minute():
    ranges = (("2021-01-04T00:03:00Z", "2021-01-04T00:05:00Z"),)
    config = settings(episode_bars=7, **{"no_trade.ranges": ranges})
    weights = [0.1 * (k + 1) for k in range(7)]
    rows = numbers(market(steady([100.0] * 10), interval="1m"), config, weights)
    assert [index + 1 for index, row in enumerate(rows) if row["blocked"]] == [3, 4]


def test_the_minutes_around_funding_include_both_ends():
    config = settings(episode_bars=11, **{"no_trade.around_funding_minutes": 60})
    weights = [0.05 * (k + 1) for k in range(11)]
    rows = numbers(market(steady([100.0] * 14)), config, weights)
    assert [index + 1 for index, row in enumerate(rows) if row["blocked"]] == [1, 7, 8, 9]


def test_a_sample_is_dropped_only_where_an_order_was_stopped():
    # 0.7 is too near to 0.6 to be traded at all, so nothing was stopped; 0 would have been.
    config = settings(
        episode_bars=6, min_rebalance=0.5, no_trade__daily=("02:00-04:00",),
        no_trade__drop_samples=True,
    )  # fmt: skip
    rows = numbers(market(steady([100.0] * 9)), config, [0.6, 0.7, 0.0, 0.0])
    assert column(rows, "blocked") == [False, False, True, False]
    assert column(rows, "sample_weight") == [1.0, 1.0, 0.0, 1.0]


def test_nobody_buys_at_a_price_below_zero():
    # A volume of 1 a bar: selling 10,000 would move the price by 0.05 * sqrt(10,000).
    panel = market(steady([100.0] * 5), volume=0.01)
    rows = numbers(panel, settings(episode_bars=3, **{"costs.impact": 0.05}), [-1.0])
    assert (rows[0]["blocked"], rows[0]["traded"], rows[0]["equity"]) == (True, 0.0, 10_000.0)


def test_a_bad_action_is_told_as_not_finite_and_asks_for_what_is_held():
    panel = market(steady([100.0, 100.0, 150.0, 150.0, 150.0, 150.0]))
    rows = numbers(panel, settings(episode_bars=4), [0.5, 7.0, NAN, 0.5])
    assert column(rows, "reason") == [0, Reason.NONFINITE, Reason.NONFINITE, 0]
    assert column(rows, "signal_pos_requested") == [0.5, 0.5, 7_500 / 12_500, 0.5]
    assert column(rows, "bad_action") == [False, True, True, False]


# --- reward and end


def test_the_penalty_of_ruin_is_added_once_and_exactly():
    panel = market(steady([100.0, 100.0, 50.0, 50.0]))
    config = settings(leverage=5.0, episode_bars=2, ruin_penalty=0.7)
    rows = numbers(panel, config, [5.0, 5.0])
    assert rows[1]["reward"] == pytest.approx(math.log(0.05) - 0.7, rel=1e-14)
    assert rows[0]["reward"] == 0.0


def test_a_clip_bounds_the_reward_and_keeps_the_raw_one():
    panel = market(steady([100.0, 100.0, 200.0, 100.0, 100.0]))
    rows = numbers(panel, settings(episode_bars=3, reward_clip=0.3), [1.0, 1.0, 1.0])
    assert column(rows, "reward") == [0.0, 0.3, -0.3]
    assert column(rows, "reward_used_fraction") == [0.0, 0.3, -0.3]
    assert column(rows, "reward_raw_fraction") == pytest.approx(
        [0.0, math.log(2), -math.log(2)], rel=1e-14
    )
    assert column(rows, "reward_clip_bound_fraction") == [0.3] * 3


def test_the_floor_ends_an_episode_at_equality():
    panel = market(steady([100.0, 100.0, 50.0, 50.0, 50.0]))
    config = settings(episode_bars=3, **{"stops.equity_floor": 0.5})
    rows = numbers(panel, config, [1.0, 1.0])
    assert column(rows, "terminated") == [False, True]


def test_a_drawdown_stop_ends_an_episode_at_equality():
    panel = market(steady([100.0, 100.0, 200.0, 150.0, 150.0]))
    config = settings(episode_bars=3, **{"stops.drawdown": 0.25})
    rows = numbers(panel, config, [1.0, 1.0, 1.0])
    assert column(rows, "terminated") == [False, False, True]
    assert column(rows, "truncated") == [False, False, False]
    assert rows[2]["reward"] == pytest.approx(math.log(0.75), rel=1e-14)


@pytest.mark.spec("TorchTrade-293", "TorchTrade-301")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("share", [0.1, 0.2, 0.3, 0.4, 0.6, 0.7])
def test_a_fall_by_exactly_the_stop_ends_an_episode_in_both_precisions(share, dtype):
    # 1 - 0.9 is less than 0.1 in float64 and more in float32.
    low = 100.0 * round(1.0 - share, 1)
    panel = market(steady([100.0, 100.0, low, low, low]))
    config = settings(episode_bars=3, **{"stops.drawdown": share})
    rows = numbers(panel, config, [1.0, 1.0], dtype=dtype)
    assert column(rows, "terminated") == [False, True]
