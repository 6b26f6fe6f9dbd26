"""Episodes at chosen places of stored bars: where they start, what they earn, their intervals."""

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from limits_lab import FREE, HOUR_MS, JUDGED_BARS, MISSING_ROW, TRAIN_BARS, job
from stormsail.algorithms.run.tasks import market_data
from stormsail.bench.risk import unseen as bench
from stormsail.core.errors import DataError
from stormsail.functional import risk
from stormsail.market import Simulator


@pytest.fixture
def config(limits_store):
    return job(limits_store, changes=FREE).settings(is_limited=True)


def episodes(config, starts=4):
    return bench.Episodes.of(config, market_data(config).validation, starts=starts)


def cvar_by_hand(values, alpha):
    """Mean of the worst share; the last one counts in part."""
    ordered, left, total = np.sort(values), alpha * len(values), 0.0
    for value in ordered:
        total += value * min(1.0, left)
        left -= min(1.0, left)
    return total / (alpha * len(values))


# ------------------------------------------------------------------------------- where they start


def test_all_symbols_start_at_equal_distances_and_every_fourth_start_is_apart(config):
    """720 judged bars: a day that starts at row r marks its last bar at r + 24 <= 719 of them."""
    placed = episodes(config)
    first = TRAIN_BARS
    rows = list(range(first, first + 720 - 24, 6))
    assert JUDGED_BARS == 720
    assert sorted(placed.row.tolist()) == sorted(2 * rows)
    assert placed.bars == 24
    by_symbol = [sorted(placed.row[placed.symbol == column].tolist()) for column in (0, 1)]
    assert by_symbol == [rows, rows]
    since = placed.row - first
    assert torch.equal(placed.apart, since % 24 == 0)
    assert int(placed.apart.sum()) == 2 * 29
    # a week has 168 bars and four days 96: the longer of the two is a block
    assert torch.equal(placed.block, since // 168)
    assert torch.equal(placed.week, since // 168)
    assert placed.task.config.weight_range == (0.0, 1.0)


def test_overlapping_weeks_are_in_blocks_of_four_and_those_apart_in_blocks_of_one(limits_store):
    """A log return reads two bars: no start at row 0, and training ends with row 1464 - 2 - 1."""
    config = job(limits_store, horizon="week").settings(is_limited=True)
    span = market_data(config).train
    placed = bench.Episodes.of(config, span, starts=7)
    assert sorted(set(placed.row.tolist())) == list(range(24, 1461 - 168 + 1, 24))
    assert torch.equal(placed.block, placed.row // 672)
    assert sorted(set(placed.block.tolist())) == [0, 1]
    assert torch.equal(placed.week, placed.row // 168)
    assert torch.equal(placed.apart, placed.row % 168 == 0)
    alone = bench.Episodes.of(config, span, starts=1)
    assert sorted(set(alone.row.tolist())) == list(range(168, 1461 - 168 + 1, 168))
    assert torch.equal(alone.block, alone.row // 168)
    assert alone.apart.all()


@pytest.mark.refusal
def test_episodes_of_one_block_have_no_interval_and_are_refused(limits_store):
    config = job(limits_store, train_end="2024-01-27").settings(is_limited=True)
    with pytest.raises(DataError) as refused:
        episodes(config)
    assert str(refused.value) == (
        "episodes must start in 2 blocks of time or more; found 24 episodes of 24 bars in one, "
        "2024-01-27T00:00:00Z to 2024-01-31T00:00:00Z. Leave more bars to judge by, or shorten "
        "the episodes. [data-span]"
    )


# ------------------------------------------------------------------------------- what they earn


def test_all_in_earns_from_the_next_open_to_the_last_close(config):
    placed = episodes(config)
    account = bench.trade_weights(placed, torch.ones(24, len(placed.row)))
    panel = placed.panel
    whole = panel.tradable[placed.row + 1, placed.symbol]
    bought = panel.open[placed.row + 1, placed.symbol]
    sold = panel.close[placed.row + 24, placed.symbol]
    expected = (sold / bought).log()
    assert account.log_growth[whole].tolist() == pytest.approx(expected[whole].tolist(), abs=2e-6)
    assert int((~whole).sum()) == 1  # the bar that is missing
    steps = 24 * len(placed.row)
    assert account.exposure == pytest.approx((steps - 1) / steps, rel=1e-6)
    assert account.invested == pytest.approx((steps - 1) / steps, rel=1e-12)
    assert account.turnover == pytest.approx(1.0, rel=1e-6)


def test_what_is_held_is_held_and_costs_are_charged_once(limits_store):
    """Half of what is left after costs is bought: E = 1 - E / 2 * c, so E = 1 / (1 + c / 2)."""
    config = job(limits_store).settings(is_limited=True)
    placed = episodes(config)
    weights = torch.full((24, len(placed.row)), torch.nan)
    weights[0] = 0.5
    account = bench.trade_weights(placed, weights)
    whole = placed.panel.tradable[placed.row + 1, placed.symbol]
    bought = placed.panel.open[placed.row + 1, placed.symbol]
    sold = placed.panel.close[placed.row + 24, placed.symbol]
    cost = 0.0002 + 0.001 * 1.0002  # the fee is on the price with the spread
    expected = ((0.5 + 0.5 * sold / bought) / (1.0 + 0.5 * cost)).log()
    assert account.log_growth[whole].tolist() == pytest.approx(expected[whole].tolist(), abs=3e-6)
    filled = 1.0 - 1.0 / len(placed.row)  # all but the order that met a missing bar
    assert account.turnover == pytest.approx(0.5 * filled / (1.0 + 0.5 * cost), rel=1e-5)
    assert bench.trade_weights(placed, 0.0 * weights).log_growth.tolist() == [0.0] * len(placed.row)


class Chosen(NamedTuple):
    action: Tensor
    memory: Tensor


class Climber:
    """Takes the level of its step, modulo five; checks that it is shown its own account."""

    def __init__(self, greedy) -> None:
        self.greedy, self.seen = greedy, []

    def initial_memory(self, batch):
        return torch.zeros(batch, dtype=torch.int64)

    def decide(self, observation, memory, *, deterministic, generator=None):
        assert deterministic == self.greedy
        assert generator.initial_seed() == 7
        self.seen.append(observation)
        return Chosen(memory % 5, memory + 1)


def test_an_agent_trades_its_levels_as_in_the_market_that_it_was_trained_in(limits_store):
    config = job(limits_store).settings(is_limited=True)
    placed, agent, data = episodes(config), Climber(greedy=True), market_data(config)
    account = bench.trade_agent(agent, placed, greedy=True)
    task = Simulator(
        data.panel, config.task.market, batch=len(placed.row),
        features=data.features, scaler=data.scaler, span=data.validation,
    )  # fmt: skip
    state, observation = task.place(placed.symbol, placed.row)
    growth, draws = torch.zeros(len(placed.row)).double(), torch.Generator().manual_seed(1)
    for step in range(24):
        assert torch.equal(agent.seen[step], observation)
        action = torch.full((len(placed.row),), step % 5)
        state, shown = task.step(state, action, draws)
        growth += shown.reward.double()
        observation = shown.observation
    assert shown.truncated.all()
    assert torch.equal(account.log_growth, growth)
    assert account.weights[:6, 0].tolist() == [0.0, 0.25, 0.5, 0.75, 1.0, 0.0]


def test_an_episode_that_ends_early_is_over(limits_store):
    """It stops at a drawdown of half a percent; what follows is another episode."""
    stop = ("task.market.stops.drawdown=0.005",)
    config = job(limits_store, changes=(*FREE, *stop)).settings(is_limited=True)
    placed = episodes(config)
    account = bench.trade_weights(placed, torch.ones(24, len(placed.row)))
    free = episodes(job(limits_store, changes=FREE).settings(is_limited=True))
    whole = bench.trade_weights(free, torch.ones(24, len(free.row)))
    panel = placed.panel
    for place in (0, 5, 50):
        symbol, row = int(placed.symbol[place]), int(placed.row[place])
        worth = panel.close[row + 1 : row + 25, symbol] / panel.open[row + 1, symbol]
        fall = worth / worth.cummax(0).values.clamp(min=1.0) - 1.0
        (ended,) = np.nonzero((fall <= -0.005).numpy())
        last = int(ended[0]) if len(ended) else 23
        assert float(account.log_growth[place]) == pytest.approx(
            math.log(float(worth[last])), abs=2e-6
        )
    assert float((account.log_growth != whole.log_growth).double().mean()) > 0.5


# --------------------------------------------------------------------------------- the intervals


def tail_by_hand(values, labels, groups, alpha):
    """CVaR and its cluster-robust error, in loops; equal labels are one group."""
    ordered = sorted(values)
    level = ordered[math.ceil(alpha * len(ordered) - 1e-9) - 1]
    cvar = cvar_by_hand(values, alpha)
    sums = [0.0] * groups
    for value, label in zip(values, labels, strict=True):
        sums[label] += level + min(value - level, 0.0) / alpha - cvar
    square = sum(part * part for part in sums) * groups / (groups - 1)
    return cvar, math.sqrt(square) / len(values)


@pytest.mark.parametrize("per_group", [40, 13])
def test_the_interval_of_a_tail_is_that_of_resampled_groups_in_loops(per_group):
    """Groups are drawn with replacement, as whole lists; 13 leave a part of an outcome."""
    values = np.random.default_rng(5).standard_t(3, size=9 * per_group)
    labels = np.tile([4, 4, 7, 1, 0, 9, 9, 9, 2], per_group)  # six groups, of several sizes
    result = bench.estimated_cvar(torch.tensor(values), torch.tensor(labels))
    names = [0, 1, 2, 4, 7, 9]
    parts = [values[labels == name].tolist() for name in names]
    cvar, error = tail_by_hand(values, [names.index(label) for label in labels], 6, 0.05)
    draws = torch.Generator().manual_seed(11)
    pivots = []
    for picked in torch.randint(6, (999, 6), generator=draws).tolist():
        sample = [value for group in picked for value in parts[group]]
        owner = [place for place, group in enumerate(picked) for _ in parts[group]]
        other, scale = tail_by_hand(sample, owner, 6, 0.05)
        # one group six times over has no error, nor a tail of copies of one outcome
        pivots.append((other - cvar) / scale if scale > 1e-9 * error else 0.0)
    low, high = np.quantile(pivots, [0.025, 0.975])
    assert result.value == pytest.approx(cvar, rel=1e-9)
    assert result.low == pytest.approx(cvar - high * error, rel=1e-6)
    assert result.high == pytest.approx(cvar - low * error, rel=1e-6)
    assert float(risk.empirical_cvar_error(
        torch.tensor(values), alpha=0.05, group=torch.tensor(labels)
    )) == pytest.approx(error, rel=1e-9)  # fmt: skip


def test_who_holds_nothing_has_a_tail_of_nothing():
    result = bench.estimated_cvar(torch.zeros(60).double(), torch.arange(60) // 6)
    assert result == (0.0, 0.0, 0.0)


def test_the_interval_of_a_mean_is_the_one_of_clustered_means():
    draws = np.random.default_rng(3)
    values, group = draws.normal(size=60), np.repeat(np.arange(10), 6)
    result = bench.estimated_mean(torch.tensor(values), torch.tensor(group))
    sums = (values - values.mean()).reshape(10, 6).sum(1)
    error = math.sqrt(10 / 9 * (sums**2).sum()) / 60
    assert result.value == pytest.approx(values.mean(), rel=1e-12)
    half = stats.t.ppf(0.975, 9) * error
    assert result.low == pytest.approx(values.mean() - half, rel=1e-9)
    assert result.high == pytest.approx(values.mean() + half, rel=1e-9)


def test_cvar_of_episodes_is_that_of_the_loop():
    values = np.random.default_rng(4).standard_t(3, size=333)
    result = bench.estimated_cvar(torch.tensor(values), torch.arange(333) // 3)
    assert result.value == pytest.approx(cvar_by_hand(values, bench.ALPHA), rel=1e-12)


def test_values_of_bars_are_read_at_the_rows_of_decisions(config):
    placed = episodes(config)
    times = placed.panel.ts[:, None] + placed.panel.listed.long().cumsum(1)
    read = placed.at_decisions(times)
    place = 7
    start = int(placed.panel.ts[int(placed.row[place])])
    expected = [start + HOUR_MS * step + int(placed.symbol[place]) + 1 for step in range(24)]
    assert read[:, place].tolist() == expected
    assert not placed.panel.tradable[MISSING_ROW, 1]
