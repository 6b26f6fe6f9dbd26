"""What changes by plan, at the ends and between."""

import math

import pytest

from stormsail.algorithms.config import BcConfig, PpoConfig, ValueClipConfig
from stormsail.algorithms.update import schedules


@pytest.mark.parametrize(
    ("done", "value"), [(-1.0, 2.0), (0.0, 2.0), (0.25, 1.0), (1.0, -2.0), (7.0, -2.0)]
)
def test_a_straight_line_stops_at_its_ends(done, value):
    assert schedules.linear(2.0, -2.0, done) == value


@pytest.mark.parametrize(
    ("steps", "rate"), [(0, 1e-3), (250, 7.75e-4), (500, 5.5e-4), (1000, 1e-4), (5000, 1e-4)]
)
def test_the_learning_rate_falls_linearly(steps, rate):
    config = PpoConfig(total_steps=1000, learning_rate=1e-3, learning_rate_final=1e-4)
    assert schedules.learning_rate(config, steps) == pytest.approx(rate, rel=1e-12)


def test_the_learning_rate_stays_within_its_bounds():
    config = PpoConfig(
        total_steps=100, learning_rate=1e-3, optimizer_lr_min=2e-4, optimizer_lr_max=6e-4
    )
    rates = [schedules.learning_rate(config, steps) for steps in (0, 39, 50, 79, 81, 100)]
    assert rates[0] == rates[1] == 6e-4
    assert rates[2] == pytest.approx(5e-4, rel=1e-12)
    assert rates[3] == pytest.approx(2.1e-4, rel=1e-12)
    assert rates[4] == rates[5] == 2e-4


@pytest.mark.parametrize(("update", "clip"), [(0, 0.18), (8, 0.14), (16, 0.10), (99, 0.10)])
def test_the_clip_moves_from_its_warm_up_value(update, clip):
    config = PpoConfig(clip_range=0.10, clip_range_warmup=0.18, clip_range_warmup_updates=16)
    assert schedules.clip_range(config, update) == pytest.approx(clip, rel=1e-12)


def test_without_a_warm_up_only_the_last_value_counts():
    config = PpoConfig(clip_range=0.1, clip_range_warmup=0.3, vf_coef=1.8, vf_coef_warmup=0.1)
    assert schedules.clip_range(config, 0) == 0.1
    assert schedules.vf_coef(config, 0, None) == 1.8


@pytest.mark.parametrize(
    ("explained", "scale", "floor", "value"),
    [
        (None, 0.25, 0.0, 1.0),
        (0.3, 0.25, 0.0, 1.0),
        (0.0, 0.25, 0.0, 1.0),
        (-0.1, 0.25, 0.0, 0.25),
        (-0.1, 0.25, 0.4, 0.4),
        (-0.1, 0.25, 3.0, 1.0),  # a floor above the plan raises nothing
        (math.nan, 0.25, 0.0, 1.0),
    ],
)
def test_bad_critics_weigh_less(explained, scale, floor, value):
    config = PpoConfig(vf_coef=1.0, vf_bad_explained_scale=scale, vf_bad_explained_floor=floor)
    assert schedules.vf_coef(config, 5, explained) == value


@pytest.mark.parametrize(
    ("steps", "value"), [(0, 1.0), (200, 1.0), (600, 0.55), (1000, 0.1), (9999, 0.1)]
)
def test_imitation_is_constant_and_then_falls(steps, value):
    config = BcConfig(awr_coef=1.0, bc_warmup_steps=200, bc_decay_steps=800, bc_final_coef=0.1)
    assert schedules.bc_coef(config, steps) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(("total", "updates"), [(1, 1), (8192, 1), (8193, 2), (1_000_000, 123)])
def test_a_run_has_as_many_updates_as_its_steps_need(total, updates):
    config = PpoConfig(n_steps=128, n_envs=64)
    assert schedules.total_updates(config, total) == updates


def test_imitation_may_end_at_once_and_may_never_begin():
    config = BcConfig(awr_coef=1.0, bc_warmup_steps=200, bc_decay_steps=0, bc_final_coef=0.1)
    assert [schedules.bc_coef(config, steps) for steps in (199, 200)] == [1.0, 0.1]
    off = BcConfig(awr_coef=0.0, bc_final_coef=0.5)
    assert [schedules.bc_coef(off, steps) for steps in (0, 10**9)] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("explained", "open_"),
    [
        (0.2, True),
        (0.3, True),
        (0.1999, False),
        (0.0, False),
        (None, False),
        (math.nan, False),
        (math.inf, False),
        (-math.inf, False),
    ],
)
def test_value_clipping_waits_for_critics_that_are_known_to_be_good(explained, open_):
    config = ValueClipConfig(clip_range_vf=0.5, vf_clip_threshold_ev=0.2)
    assert schedules.clips_values(config, 0, explained) is open_


def test_a_threshold_of_zero_is_a_threshold():
    config = ValueClipConfig(clip_range_vf=0.5, vf_clip_threshold_ev=0.0)
    assert schedules.clips_values(config, 0, 0.0) is True
    assert schedules.clips_values(config, 0, -1e-9) is False
    assert schedules.clips_values(config, 0, None) is False


def test_value_clipping_waits_for_its_warm_up_and_may_be_off():
    config = ValueClipConfig(clip_range_vf=0.5, vf_clip_warmup_updates=10)
    assert [schedules.clips_values(config, k, None) for k in (0, 9, 10)] == [False, False, True]
    assert schedules.clips_values(ValueClipConfig(), 10**6, 1.0) is False


def extension(steps, old_total, new_total, *rates):
    old, new = rates or (None, None)
    return schedules.Extension(
        steps=steps, old_total=old_total, new_total=new_total, finished=steps >= old_total,
        old_rates=old, new_rates=new,
    )  # fmt: skip


def test_an_extended_rate_goes_on_from_where_it_stood():
    config = PpoConfig(total_steps=400, learning_rate=1.0, optimizer_lr_min=0.0)
    grown = (extension(100, 200, 400),)
    # half of the way at 100; the other half in 300 steps
    expected = {0: 1.0, 50: 0.75, 100: 0.5, 250: 0.25, 400: 0.0, 500: 0.0}
    for steps, rate in expected.items():
        assert schedules.learning_rate(config, steps, grown) == rate
    # a second extension at 250, where a quarter is left, over 500 steps
    twice = (*grown, extension(250, 400, 750))
    for steps, rate in {100: 0.5, 250: 0.25, 500: 0.125, 750: 0.0}.items():
        assert schedules.learning_rate(config, steps, twice) == rate
    done = (extension(220, 200, 400),)  # beyond its end, by a part of a rollout: it stays there
    assert [schedules.learning_rate(config, steps, done) for steps in (220, 300, 400)] == [0.0] * 3


def test_new_rates_are_a_line_of_their_own_and_old_steps_keep_theirs():
    config = PpoConfig(total_steps=800, learning_rate=0.4, learning_rate_final=0.2)
    grown = (
        extension(100, 100, 200),
        extension(200, 200, 400, (1.0, 0.0), (0.8, 0.0)),
        extension(300, 400, 500),  # 0.4 is left, over 200 steps
        extension(500, 500, 800, (0.8, 0.0), (0.4, 0.2)),
    )
    expected = {0: 1.0, 50: 0.5, 100: 5e-6, 199: 5e-6, 200: 0.8, 300: 0.4, 400: 0.2, 500: 0.4,
                650: 0.3, 800: 0.2}  # fmt: skip
    for steps, rate in expected.items():
        result = schedules.learning_rate(config, steps, grown)
        assert result == pytest.approx(rate, rel=1e-12), steps


def test_only_shares_of_the_budget_stretch_with_it():
    history = schedules.History((extension(100, 200, 400),), frozenset({"a", "b"}))
    places = [history.planned_steps(steps, ("a", "b")) for steps in (0, 60, 100, 250, 400)]
    assert places == [0.0, 60.0, 100.0, 150.0, 200.0]
    assert history.planned_steps(250, ("a", "c")) == 250
    assert schedules.NEW_RUN.planned_steps(250, ("a",)) == 250
