"""How episodes start and end, what is drawn for them, and what a failing feed shows."""

import math

import pytest
import torch
from scipy import stats

from simulator_lab import (
    HOUR_MS,
    START_MS,
    SYMBOL,
    at,
    draws,
    market,
    play,
    settings,
    simulator,
    steady,
    wild_panel,
)
from stormsail.market.simulator.account import State
from stormsail.market.simulator.episodes import Starts, Window, unbroken
from stormsail.market.splits import Span

EVENTS = (
    "traded", "fee_total", "slippage", "funding", "turnover", "liquidated", "blocked", "reason",
    "reward_raw_fraction", "reward_used_fraction", "reward_costs_fraction", "signal_pos_requested",
    "signal_pos_next", "time_limit_truncated", "bad_action", "data_age",
)  # fmt: skip


def column(rows, name):
    return [row[name] for row in rows]


# --- starts


def test_no_episode_touches_a_hole_or_looks_back_on_one():
    panel = market(steady([100.0] * 40))
    rules = settings(episode_bars=3, **{"costs.impact_window": 4})
    hole = Span(START_MS + 15 * HOUR_MS, START_MS + 20 * HOUR_MS)  # rows 15 to 19
    window = Window(2, 40)
    starts = [
        Starts.of(panel, rules, window, lookback=back, device=torch.device("cpu"), without=[hole])
        for back in (2, 8)
    ]
    # episodes of rows 11 + 3 end at 14; features of 8 bars read back from 27 to 20, of 2 bars
    # from 21, but the impact of row 24 is that of the 4 rows before it, 20 to 23
    assert starts[0].row.tolist() == [*range(2, 12), *range(24, 37)]
    assert starts[1].row.tolist() == [*range(7, 12), *range(27, 37)]


def test_rows_around_which_all_is_free():
    free = torch.tensor([True, True, False, True, True, True, True, False])
    assert unbroken(free, before=0).tolist() == free.tolist()
    assert unbroken(free, before=2, after=1).nonzero().flatten().tolist() == [0, 5]


# --- ends and the step after them


def test_an_episode_is_truncated_at_its_last_row_and_never_before():
    rows = play(market(steady([100.0] * 9)), settings(episode_bars=4), [0.5] * 4)[2]
    assert column(rows, "truncated") == [False, False, False, True]
    assert column(rows, "time_limit_truncated") == column(rows, "truncated")
    assert column(rows, "terminated") == [False] * 4
    assert column(rows, "row") == [1, 2, 3, 4]


def test_ruin_in_the_last_row_is_a_termination_and_no_truncation():
    panel = market(steady([100.0, 100.0, 50.0, 50.0, 50.0]))
    rows = play(panel, settings(leverage=5.0, episode_bars=2), [5.0, 5.0])[2]
    assert (rows[1]["terminated"], rows[1]["truncated"]) == (True, False)


def test_the_ending_step_shows_the_old_episode_and_the_next_one_a_new_start():
    panel = market([(100.0, 100.0, 100.0, 100.0 + k) for k in range(12)])
    sim = simulator(panel, settings(episode_bars=3))
    state = at(sim, row=1)
    generator = torch.Generator().manual_seed(4)
    half = torch.tensor([0.5], dtype=torch.float64)
    for _ in range(3):
        state, step = sim.step(state, half, generator)
    names = sim.observation_names
    shown = dict(zip(names, step.observation[0].tolist(), strict=True))
    assert shown[names[0]] == pytest.approx(math.log(104 / 103), rel=1e-12)
    assert shown["time_left"] == 0.0
    assert shown["position"] == pytest.approx(step.info.weight.item(), rel=1e-15)
    assert torch.equal(step.info.terminal_observation, step.observation)

    old = state
    state, step = sim.step(state, half, generator)
    start = state.row.item()
    first = sim.place(state.symbol, state.row)[1]
    assert torch.equal(step.observation, first)
    shown = dict(zip(names, step.observation[0].tolist(), strict=True))
    fresh = math.log((100 + start) / (99 + start))
    assert shown[names[0]] == pytest.approx(fresh, rel=1e-12)
    assert (shown["time_left"], shown["position"]) == (1.0, 0.0)
    assert old.row.item() == 4


@pytest.mark.spec("TorchTrade-278")
def test_the_step_after_an_end_starts_over_and_counts_for_nothing():
    panel = wild_panel(1, rows=60)
    config = settings(
        leverage=3.0, episode_bars=5, costs__taker_fee=0.01, limits__max_turnover=50.0
    )
    sim = simulator(panel, config, batch=2)
    generator = torch.Generator().manual_seed(0)
    state, _ = sim.reset(generator)
    for k in range(5):
        action = torch.tensor([3.0, -2.0 + k], dtype=torch.float64)
        state, step = sim.step(state, action, generator)
    assert state.done.tolist() == [True, True]
    assert (state.turnover > 0).all()
    # NaN is no action at all, and is not looked at.
    state, step = sim.step(state, torch.full((2,), math.nan, dtype=torch.float64), generator)
    assert step.reward.tolist() == [0.0, 0.0]
    assert step.info.sample_weight.tolist() == [0.0, 0.0]
    assert not (step.terminated | step.truncated | state.done).any()
    assert step.info.price.isnan().all()
    for name in EVENTS:
        assert getattr(step.info, name).tolist() == [0, 0], name
    for name in ("cash", "equity", "peak_equity", "day_start_equity"):
        assert getattr(state, name).tolist() == [10_000.0] * 2, name
    for name in ("quantity", "entry_price", "turnover", "bars_in_position", "bad_actions"):
        assert getattr(state, name).tolist() == [0, 0], name
    assert (state.last_row - state.row).tolist() == [5, 5]
    assert torch.equal(step.info.equity, state.equity)
    # The action after it counts again, and the episode has its full length.
    for k in range(5):
        state, step = sim.step(state, torch.full((2,), 1.0, dtype=torch.float64), generator)
        assert step.info.sample_weight.tolist() == [1.0, 1.0]
        assert step.truncated.tolist() == [k == 4] * 2


def test_one_environment_starts_over_while_the_other_goes_on():
    panel = market(steady([100.0 + k for k in range(20)]))
    sim = simulator(panel, settings(episode_bars=10), batch=2)
    zeros = torch.zeros(2, dtype=torch.int64)
    state, _ = sim.place(zeros, torch.tensor([1, 1]), last_row=torch.tensor([2, 9]))
    generator = torch.Generator().manual_seed(0)
    ones = torch.ones(2, dtype=torch.float64)
    state, step = sim.step(state, ones, generator)
    assert step.truncated.tolist() == [True, False]
    state, step = sim.step(state, ones, generator)
    assert step.info.sample_weight.tolist() == [0.0, 1.0]
    assert step.info.row[1].item() == 3
    assert step.info.quantity[1].item() == 10_000 / 102


def test_bars_in_position_count_from_the_opening_and_from_the_turn():
    panel = market(steady([100.0] * 12))
    weights = [0.0, 0.5, 0.4, -0.5, -0.5, 0.0]
    _, states, _ = play(panel, settings(episode_bars=8), weights)
    assert [state.bars_in_position.item() for state in states[1:]] == [0, 1, 2, 1, 2, 0]


def test_no_two_fields_of_a_state_share_memory():
    panel = wild_panel(1, rows=30)
    for changes in ({}, {"degrade.stale_prob": 0.5}, {"randomise.taker_fee": (0.5, 2.0)}):
        sim = simulator(panel, settings(episode_bars=5, **changes), batch=4)
        generator = torch.Generator().manual_seed(0)
        state, _ = sim.reset(generator)
        placed = at(sim, row=3)
        moved, _ = sim.step(state, torch.zeros(4, dtype=torch.float64), generator)
        for own in (state, placed, moved):
            places = [tensor.data_ptr() for tensor in own]
            assert len(set(places)) == len(State._fields)


def test_a_step_changes_nothing_of_the_state_it_was_given():
    panel = wild_panel(2, rows=30)
    sim = simulator(panel, settings(episode_bars=5, leverage=3.0), batch=4)
    state = at(sim, row=3)
    kept = [tensor.clone() for tensor in state]
    sim.transition(state, torch.full((4,), 3.0, dtype=torch.float64), draws(sim))
    assert all(map(torch.equal, state, kept))


# --- where episodes start


def counted(symbols, rows, sim):
    pairs = symbols * 1_000 + rows
    return torch.unique(pairs, return_counts=True)


@pytest.mark.parametrize("how", ["reset", "autoreset"])
def test_starts_are_uniform_over_all_pairs_of_symbol_and_row(how):
    panel = wild_panel(3, rows=40)
    panel.listed[:25, 2] = False  # a symbol that came late has fewer starts
    batch = 20_000
    sim = simulator(panel, settings(episode_bars=10), batch=batch)
    generator = torch.Generator().manual_seed(11)
    state, _ = sim.reset(generator)
    if how == "autoreset":
        ended = state._replace(done=torch.ones_like(state.done))
        state, _ = sim.step(ended, torch.zeros(batch, dtype=torch.float64), generator)
    # Two bars of lookback, ten to play: rows 1 to 29, and 26 to 29 for the late one.
    allowed = {s * 1_000 + r for s in (0, 1) for r in range(1, 30)}
    allowed |= {2_000 + r for r in range(26, 30)}
    starts, counts = counted(state.symbol, state.row, sim)
    assert set(starts.tolist()) == allowed
    assert stats.chisquare(counts.numpy()).pvalue > 0.01
    assert torch.equal(state.last_row, state.row + 10)


def test_a_span_holds_whole_episodes():
    panel = wild_panel(3, rows=60)
    span = Span(START_MS + 20 * HOUR_MS, START_MS + 40 * HOUR_MS)
    sim = simulator(panel, settings(episode_bars=10), batch=4_000, span=span)
    state, _ = sim.reset(torch.Generator().manual_seed(0))
    assert (state.row.min().item(), state.last_row.max().item()) == (20, 39)
    assert state.row.max().item() == 29


# --- costs drawn for each episode


def test_drawn_costs_fill_their_ranges_and_stay_for_the_episode():
    changes = {
        "costs.taker_fee": 0.001,
        "costs.half_spread": 0.002,
        "costs.impact": 0.1,
        "randomise.taker_fee": (0.5, 2.0),
        "randomise.half_spread": (0.0, 1.0),
        "randomise.impact": (1.0, 1.0),
    }
    batch = 5_000
    sim = simulator(wild_panel(4, rows=40), settings(episode_bars=3, **changes), batch=batch)
    generator = torch.Generator().manual_seed(1)
    state, _ = sim.reset(generator)
    first = state
    bounds = {"fee": (0.0005, 0.002), "half_spread": (0.0, 0.002)}
    for name, (low, high) in bounds.items():
        drawn = getattr(state, name)
        assert low <= drawn.min().item() < low + 0.01 * (high - low)
        assert high - 0.01 * (high - low) < drawn.max().item() <= high
        assert stats.kstest(drawn.numpy(), stats.uniform(low, high - low).cdf).pvalue > 0.01
    assert (state.impact == 0.1).all()
    pair = torch.stack((state.fee, state.half_spread))
    assert abs(torch.corrcoef(pair)[0, 1].item()) < 0.05
    action = torch.full((batch,), 0.5, dtype=torch.float64)
    for _ in range(3):
        state, _ = sim.step(state, action, generator)
        assert torch.equal(state.fee, first.fee)
        assert torch.equal(state.half_spread, first.half_spread)
    state, _ = sim.step(state, action, generator)
    assert (state.fee != first.fee).all()
    assert (state.fee >= 0.0005).all()


def test_the_drawn_fee_is_the_one_that_is_paid():
    changes = {"costs.taker_fee": 0.001, "randomise.taker_fee": (3.0, 4.0)}
    sim = simulator(market(steady([100.0] * 12)), settings(episode_bars=3, **changes), batch=50)
    generator = torch.Generator().manual_seed(1)
    state, _ = sim.reset(generator)
    half = torch.full((50,), 0.5, dtype=torch.float64)
    _, step = sim.step(state, half, generator)
    torch.testing.assert_close(
        step.info.fee_total, state.fee * step.info.traded * 100.0, rtol=1e-12, atol=0.0
    )
    assert step.info.fee_total.min().item() > 14.0


def test_a_placed_episode_pays_the_costs_of_the_config():
    changes = {"costs.taker_fee": 0.001, "randomise.taker_fee": (3.0, 4.0)}
    sim = simulator(market(steady([100.0] * 12)), settings(episode_bars=3, **changes))
    assert at(sim, row=2).fee.item() == 0.001


# --- a feed that fails

FEED = {
    "degrade.stale_prob": 0.5,
    "degrade.drop_prob": 0.25,
    "degrade.delay_prob": 0.5,
    "degrade.max_delay_bars": 3,
}


def feed(stale=0.9, dropped=0.9, late=0.9, length=0.0):
    return torch.tensor([[0.0], [0.0], [stale], [dropped], [late], [length]])


def watch(script):
    """Return the row shown, its age and the market's column, after each scripted fault."""
    panel = market([(100.0, 100.0, 100.0, 100.0 + k * k) for k in range(30)])
    sim = simulator(panel, settings(episode_bars=20, **FEED))
    state = at(sim, row=5)
    seen = []
    for faults in script:
        state, step = sim.transition(state, torch.zeros(1, dtype=torch.float64), feed(**faults))
        shown = step.observation[0, 0].item()
        seen.append((state.shown_row.item(), step.info.data_age.item(), shown))
    return seen


def log_return(row):
    return pytest.approx(math.log((100 + row**2) / (100 + (row - 1) ** 2)), rel=1e-12)


def test_a_healthy_feed_shows_the_newest_row():
    assert watch([{}, {}]) == [(6, 0, log_return(6)), (7, 0, log_return(7))]


def test_a_stale_feed_repeats_what_it_showed():
    seen = watch([{}, {"stale": 0.49}, {"stale": 0.49}, {"stale": 0.5}])
    assert seen == [
        (6, 0, log_return(6)),
        (6, 1, log_return(6)),
        (6, 2, log_return(6)),
        (9, 0, log_return(9)),
    ]


def test_a_dropped_row_is_zero_and_the_feed_recovers():
    seen = watch([{}, {"dropped": 0.24}, {"dropped": 0.25}])
    assert seen == [(6, 0, log_return(6)), (6, 1, 0.0), (8, 0, log_return(8))]


def test_a_delayed_row_is_one_to_three_bars_old_and_never_older_than_the_last_shown():
    seen = watch(
        [
            {"late": 0.49, "length": 0.0},  # row 6, one bar old: row 5
            {"late": 0.49, "length": 0.99},  # row 7, three bars: row 4, but 5 was shown
            {},  # row 8
            {"late": 0.49, "length": 0.5},  # row 9, two bars: row 7, but 8 was shown
            {},
            {},
            {},  # row 12
            {"late": 0.49, "length": 0.34},  # row 13, two bars: row 11, but 12 was shown
        ]
    )
    assert [row for row, _, _ in seen] == [5, 5, 8, 8, 10, 11, 12, 12]
    assert [age for _, age, _ in seen] == [1, 2, 0, 1, 0, 0, 0, 1]


def test_the_three_delays_are_equally_likely():
    # After staying silent for long, the age shown is the delay itself.
    panel = market([(100.0, 100.0, 100.0, 100.0 + k) for k in range(30)])
    changes = {**FEED, "degrade.stale_prob": 0.0, "degrade.drop_prob": 0.0}
    batch = 9_000
    sim = simulator(panel, settings(episode_bars=20, **changes), batch=batch)
    state = at(sim, row=5)
    state = state._replace(row=state.row + 10)  # ten bars unseen
    generator = torch.Generator().manual_seed(5)
    _, step = sim.step(state, torch.zeros(batch, dtype=torch.float64), generator)
    counts = torch.bincount(step.info.data_age, minlength=4)
    wanted = [batch / 2, batch / 6, batch / 6, batch / 6]
    assert stats.chisquare(counts.numpy(), wanted).pvalue > 0.01


def test_the_account_is_seen_whatever_the_feed_does():
    panel = market([(100.0, 100.0, 100.0, 100.0 + k) for k in range(30)])
    sim = simulator(panel, settings(episode_bars=20, **FEED))
    state = at(sim, row=5)
    half = torch.tensor([0.5], dtype=torch.float64)
    state, step = sim.transition(state, half, feed(dropped=0.0))
    shown = dict(zip(sim.observation_names, step.observation[0].tolist(), strict=True))
    assert shown["position"] == step.info.weight.item()
    assert shown[sim.observation_names[0]] == 0.0


def test_a_new_episode_is_always_seen():
    panel = market([(100.0, 100.0, 100.0, 100.0 + k * k) for k in range(30)])
    sim = simulator(panel, settings(episode_bars=20, **FEED))
    state = at(sim, row=5)
    state = state._replace(done=torch.ones(1, dtype=torch.bool))
    faults = feed(stale=0.0, dropped=0.0, late=0.0, length=0.99)
    state, step = sim.transition(state, torch.zeros(1, dtype=torch.float64), faults)
    assert step.info.data_age.item() == 0
    assert step.observation[0, 0].item() == log_return(state.row.item())


def test_the_ledger_does_not_know_of_the_feed():
    panel = wild_panel(6, rows=50)
    weights = torch.randn(40, 3, generator=torch.Generator().manual_seed(2)).double().clamp(-1, 1)
    ledgers = []
    for changes in ({}, FEED):
        config = settings(episode_bars=45, **changes, **{"costs.taker_fee": 0.001})
        sim = simulator(panel, config, batch=3)
        state, _ = sim.place(torch.arange(3), torch.ones(3, dtype=torch.int64))
        rows = []
        for index, weight in enumerate(weights):
            state, step = sim.transition(state, weight, draws(sim, index))
            skipped = {"data_age", "terminal_observation"}
            rows += [value for name, value in step.info._asdict().items() if name not in skipped]
            rows += [step.reward, step.terminated, step.truncated]
        ledgers.append(rows)
    for free, failing in zip(*ledgers, strict=True):
        assert torch.equal(free.nan_to_num(-9.0), failing.nan_to_num(-9.0))


def test_the_feed_of_a_symbol_shows_that_symbol():
    panel = market({SYMBOL: steady([100.0 + k for k in range(20)]), "BBB/USDT:USDT": steady(
        [500.0 - 7 * k for k in range(20)])})  # fmt: skip
    sim = simulator(panel, settings(episode_bars=10), batch=2)
    _, observation = sim.place(torch.tensor([1, 0]), torch.tensor([4, 4]))
    assert observation[:, 0].tolist() == pytest.approx(
        [math.log(472 / 479), math.log(104 / 103)], rel=1e-12
    )
