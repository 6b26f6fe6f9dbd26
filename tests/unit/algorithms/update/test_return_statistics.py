"""Mean and spread of returns: window, average, limits, floors and robust spread."""

import json
import math

import numpy as np
import pytest
import torch

from stormsail.algorithms.config import ReturnConfig
from stormsail.algorithms.update.return_statistics import ReturnStatistics, Scale, least_std
from stormsail.core.errors import ArtifactError

START = Scale(0.0, 1.0)


def build(**settings):
    return ReturnStatistics(ReturnConfig(**settings))


def row(*values):
    return torch.tensor(values, dtype=torch.float64)


def two(mean, std):
    """Return two returns of that mean and spread."""
    return row(mean - std, mean + std)


def step(statistics, returns, now=START, weight=None):
    weight = torch.ones(len(returns)) if weight is None else weight
    return Scale(*map(float, statistics.step(returns, weight, now)))


def sample(n, seed=0):
    draw = np.random.Generator(np.random.PCG64(seed))
    return torch.from_numpy(draw.normal(3.0, 2.0, n))


def test_the_first_updates_follow_the_returns_at_once():
    returns = sample(500)
    units = step(build(), returns)
    assert units.mean == pytest.approx(float(returns.mean()), rel=1e-12)
    assert units.std == pytest.approx(float(returns.std(correction=0)), rel=1e-12)


def test_the_window_is_the_moments_of_all_returns_in_it():
    statistics, parts = build(window_updates=3), [sample(n, seed=n) * n for n in (7, 50, 31, 12)]
    units = START
    for part in parts:
        units = step(statistics, part, units)
    inside = torch.cat(parts[1:])
    assert units.mean == pytest.approx(float(inside.mean()), rel=1e-12)
    assert units.std == pytest.approx(float(inside.std(correction=0)), rel=1e-12)
    assert statistics.unfloored == pytest.approx(units.std, rel=1e-12)


def test_after_the_warm_up_an_average_follows_the_window():
    statistics = build(warmup_updates=1, window_updates=1)
    now = step(statistics, two(10.0, 2.0))
    assert now == (10.0, 2.0)
    now = step(statistics, two(12.0, 2.5), now)
    assert now.mean == pytest.approx(0.9 * 10.0 + 0.1 * 12.0, rel=1e-12)
    assert now.std == pytest.approx(0.9 * 2.0 + 0.1 * 2.5, rel=1e-12)


@pytest.mark.parametrize(("updates", "follows"), [(6, True), (7, False)])
def test_the_warm_up_counts_updates(updates, follows):
    statistics, units = build(window_updates=1), START
    for k in range(updates):
        units = step(statistics, two(float(k), 2.0), units)
    assert (units.mean == updates - 1.0) is follows


@pytest.mark.parametrize(
    ("now", "target", "mean"),
    [
        (Scale(1.0, 4.0), 1e6, 1.0 + 0.5 * 4.0),  # the spread is the larger
        (Scale(1.0, 4.0), -1e6, 1.0 - 0.5 * 4.0),
        (Scale(-8.0, 4.0), 1e6, -8.0 + 0.5 * 8.0),  # the mean is
    ],
)
def test_the_mean_moves_by_at_most_half_of_the_larger_of_itself_and_the_spread(now, target, mean):
    units = step(build(warmup_updates=0), two(target, 4.0), now)
    assert units.mean == pytest.approx(mean, rel=1e-12)


@pytest.mark.parametrize(("spread", "std"), [(1e6, 6.0), (0.002, 0.9 * 4.0 + 0.1 * 0.002)])
def test_the_spread_grows_by_at_most_half(spread, std):
    units = step(build(warmup_updates=0), two(1.0, spread), Scale(1.0, 4.0))
    assert units.std == pytest.approx(std, rel=1e-9)


def test_the_spread_shrinks_by_at_most_the_same_factor():
    config = {"warmup_updates": 0, "ema_beta": 0.0, "std_floor": 1e-8}
    assert step(build(**config), two(1.0, 1e-6), Scale(1.0, 4.0)).std == pytest.approx(4.0 / 1.5)
    assert step(build(**config), two(1.0, 3.0), Scale(1.0, 4.0)).std == pytest.approx(3.0)


def test_rows_without_weight_do_not_count():
    returns, weight = row(1.0, math.nan, 5.0, math.inf), row(1.0, 0.0, 1.0, 0.0)
    units = step(build(), returns, weight=weight)
    assert units == (3.0, 2.0)


def test_fractional_weights_count_by_their_share():
    returns, weight = row(0.0, 4.0), row(0.75, 0.25)
    units = step(build(), returns, weight=weight)
    assert units.mean == pytest.approx(1.0, rel=1e-12)
    assert units.std == pytest.approx(math.sqrt(0.75 * 1.0 + 0.25 * 9.0), rel=1e-12)


def test_updates_count_by_their_weight():
    statistics = build()
    step(statistics, two(0.0, 1.0), weight=row(3.0, 3.0))
    units = step(statistics, two(8.0, 1.0))
    assert units.mean == pytest.approx(8.0 * 2.0 / 8.0, rel=1e-12)
    assert units.std == pytest.approx(math.sqrt(1.0 + 0.25 * 36.0 + 0.75 * 4.0), rel=1e-12)


def test_an_update_without_weight_changes_nothing():
    now = Scale(2.0, 3.0)
    assert step(build(), two(50.0, 1.0), now, weight=row(0.0, 0.0)) == now
    statistics = build()
    units = step(statistics, two(5.0, 1.0))
    assert step(statistics, row(math.nan, 1.0), units, weight=row(0.0, 0.0)) == units


def test_atoms_of_a_target_count_each_with_the_weight_of_their_row():
    atoms, weight = torch.tensor([[0.0, 2.0], [4.0, 6.0], [math.nan, 9.0]]), row(1.0, 2.0, 0.0)
    units = step(build(), atoms, weight=weight)
    flat = np.array([0.0, 2.0, 4.0, 6.0, 4.0, 6.0])
    assert units.mean == pytest.approx(flat.mean(), rel=1e-12)
    assert units.std == pytest.approx(flat.std(), rel=1e-12)


@pytest.mark.parametrize("mean", [1e6, 1e9])
def test_a_large_mean_costs_the_spread_no_digits(mean):
    statistics = build()
    step(statistics, two(mean, 0.5))
    units = step(statistics, two(mean + 1.0, 0.5))
    assert units.mean == mean + 0.5
    assert units.std == pytest.approx(math.sqrt(0.25 + 0.25), rel=1e-9)


@pytest.mark.spec("T-R5")
def test_the_robust_spread_carries_its_factor():
    # medians 3 and |x - 3| = (2, 1, 0, 1, 997): median 1, times 1.4826
    units = step(build(return_stat="mad"), row(1.0, 2.0, 3.0, 4.0, 1000.0))
    assert units.std == pytest.approx(1.4826, rel=1e-12)
    assert units.mean == 202.0


@pytest.mark.spec("T-R5")
def test_the_robust_spread_leaves_rows_without_weight_out():
    returns, weight = row(1.0, math.nan, 2.0, 3.0, 4.0, 1000.0), row(1.0, 0.0, 1.0, 1.0, 1.0, 1.0)
    assert step(build(return_stat="mad"), returns, weight=weight).std == pytest.approx(1.4826)


@pytest.mark.spec("T-R3", "S4-1")
def test_the_spread_has_a_floor():
    statistics = build(std_floor=0.003)
    assert step(statistics, row(7.0, 7.0, 7.0)) == (7.0, 0.003)
    assert statistics.unfloored == 0.0
    after = build(std_floor=0.003, warmup_updates=0, ema_beta=0.0)
    assert step(after, row(7.0, 7.0), Scale(7.0, 0.004)).std == 0.003


@pytest.mark.spec("S4-1", "T-R3")
def test_the_floor_is_not_approached_step_by_step():
    """A spread that came from below the floor is at the floor at once, whatever limits a step."""
    statistics = build(std_floor=0.01, warmup_updates=0)
    assert step(statistics, row(7.0, 7.0), Scale(7.0, 1e-4)) == (7.0, 0.01)


@pytest.mark.spec("T-R5")
def test_the_adaptive_floor_is_a_tenth_of_the_median_spread():
    statistics, units = build(std_floor_mode="adaptive", window_updates=1, std_floor=0.01), START
    for spread in (2.0, 4.0, 9.0):
        units = step(statistics, two(0.0, spread), units)
    units = step(statistics, row(0.0, 0.0), units)  # spreads 2, 4, 9, 0: median 3
    assert units.std == pytest.approx(0.3, rel=1e-12)
    assert statistics.unfloored == 0.0
    fixed = build(std_floor_mode="adaptive", window_updates=1, std_floor=0.5)
    assert step(fixed, two(0.0, 1.0)).std == 1.0
    assert step(fixed, row(0.0, 0.0)).std == 0.5  # the fixed one is the larger


def test_after_the_freeze_nothing_moves():
    statistics = build(freeze_after=2)
    units = step(statistics, two(1.0, 2.0))
    units = step(statistics, two(3.0, 2.0), units)
    assert units.mean == 2.0
    assert step(statistics, two(1e6, 9.0), units) == units
    assert step(statistics, row(math.nan, 1.0), units) == units
    assert statistics.update == 4


@pytest.mark.spec("T-R3", "S4-1")
def test_the_reported_gain_sees_no_floor_and_has_a_cap():
    statistics = build(std_floor=0.01)
    step(statistics, two(0.0, 1e-4))
    assert float(statistics.target_scale()) == pytest.approx(1000.0, rel=1e-12)
    statistics = build(std_floor=0.01)
    step(statistics, two(0.0, 1e-3))
    assert float(statistics.target_scale()) == pytest.approx(100.0, rel=1e-12)
    statistics = build(std_floor=0.01, value_target_scale_cap=50.0)
    step(statistics, two(0.0, 1e-4))
    assert float(statistics.target_scale()) == pytest.approx(
        1000.0, rel=1e-12
    )  # nor the cap of the gain
    statistics = build()
    step(statistics, row(1.0, 1.0))
    assert statistics.target_scale() == 1e12


@pytest.mark.spec("T-R3", "S4-1")
@pytest.mark.parametrize(
    ("settings", "least"),
    [
        ({}, 1e-3),  # 1 / 1000
        ({"value_target_scale_cap": 50.0}, 0.02),
        ({"value_target_scale_cap": 1e6}, 1e-6),
        ({"value_target_scale_cap": 1e12}, 1e-8),  # the floor is the larger
        ({"std_floor": 0.003}, 0.003),
        ({"normalize_returns": "scale"}, 1e-4),  # ten deviations are one unit
        ({"normalize_returns": "scale", "ret_clip": 4.0}, 2.5e-4),
        ({"return_stat": "mad"}, 1e-3),
        ({"normalize_returns": "frozen_lag"}, 1e-3),
    ],
)
@pytest.mark.parametrize("warm", [0, 6])
def test_no_spread_is_so_small_that_the_gain_passes_its_cap(settings, least, warm):
    statistics, units = build(warmup_updates=warm, ema_beta=0.0, **settings), Scale(0.0, 1e-9)
    for _ in range(40):  # the limits on each step let it fall by a third at a time
        units = step(statistics, two(0.0, 1e-9), units)
        assert units.std >= least * (1.0 - 1e-12)
    assert units.std == pytest.approx(least, rel=1e-12)
    assert least_std(ReturnConfig(**settings)) == pytest.approx(least, rel=1e-12)


def test_a_frozen_scale_from_elsewhere_is_bounded_too():
    statistics = build(freeze_after=1, warmup_updates=0)
    step(statistics, two(0.0, 1.0))
    assert step(statistics, two(0.0, 1e-9), Scale(0.5, 1e-7)) == (0.5, 1e-3)
    assert step(build(), two(0.0, 1.0), Scale(0.5, 1e-7), weight=row(0.0, 0.0)) == (0.5, 1e-3)


@pytest.mark.parametrize("settings", [{}, {"return_stat": "mad", "std_floor_mode": "adaptive"}])
@pytest.mark.parametrize("stop", [0, 3, 11])
def test_restored_statistics_go_on_exactly(settings, stop):
    def run(statistics, units, updates):
        result = []
        for k in updates:
            units = step(statistics, sample(40, seed=k) * (1 + k % 5), units)
            result.append((units, float(statistics.unfloored), float(statistics.target_scale())))
        return result

    shape = {"window_updates": 4, **settings}
    whole = build(**shape)
    expected = run(whole, START, range(20))
    first = build(**shape)
    done = run(first, START, range(stop))
    second = build(**shape)
    second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
    units = done[-1][0] if done else START
    assert run(second, units, range(stop, 20)) == expected[stop:]
    assert second.state_dict() == whole.state_dict()


@pytest.mark.parametrize("state", [None, {}, {"update": 1}, {"window": 3}])
def test_a_state_of_something_else_is_refused(state):
    with pytest.raises(ArtifactError) as caught:
        build().load_state_dict(state)
    assert caught.value.code == "artifact-document"
