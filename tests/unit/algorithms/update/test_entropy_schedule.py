"""The entropy coefficient: one start, one decay, a boost and a floor."""

import itertools
import json
import math

import pytest

from stormsail.algorithms.config import EntropyConfig
from stormsail.algorithms.update.entropy_schedule import EntropySchedule
from stormsail.core.errors import ArtifactError

GOOD = 0.5  # an explained variance


def build(updates=1000, **settings):
    shape = {
        "ent_coef": 0.01,
        "ent_coef_final": 0.002,
        "ent_coef_min": 0.001,
        "ent_coef_decay_steps": 100,
    }
    return EntropySchedule(EntropyConfig(**{**shape, **settings}), updates)


def plain(updates=123, **settings):
    """Return a schedule in which only these settings are set."""
    return EntropySchedule(EntropyConfig(**settings), updates)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"entropy_boost_factor": 1.5, "ent_coef_plateau_window": 2},
        {"ent_coef_decay_steps": 10},
        {"ent_coef_final": 0.0, "ent_coef_min": 0.0},
    ],
)
@pytest.mark.parametrize("bad", [0, 7, 10**6])
def test_a_coefficient_of_zero_is_no_bonus_at_any_update(settings, bad):
    schedule = plain(ent_coef=0.0, **settings)
    schedule.bad_updates = bad  # a million of them overflow the boost, and 0 times that is 0
    assert {schedule.coefficient(update) for update in range(200)} == {(0.0, 0.0, False)}
    assert (schedule.final, schedule.floor) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("settings", "final", "floor"),
    [
        ({}, 0.001, 0.0005),
        ({"ent_coef": 0.0007}, 0.0007, 0.0005),
        ({"ent_coef": 0.0002}, 0.0002, 0.0002),
        ({"ent_coef_final": 0.0}, 0.0, 0.0),
        ({"ent_coef": 0.0, "ent_coef_final": 0.3}, 0.3, 0.0),  # it may rise, from nothing
        ({"ent_coef_min": 0.004}, 0.001, 0.004),
    ],
)
def test_what_is_not_set_is_never_above_what_is(settings, final, floor):
    schedule = plain(**settings)
    assert (schedule.final, schedule.floor) == (final, floor)
    assert schedule.coefficient(0).effective == settings.get("ent_coef", 0.01)


@pytest.mark.parametrize("updates", [2, 7, 123, 400])
def test_the_decay_ends_with_the_last_update_of_the_run(updates):
    schedule = plain(updates)
    values = [schedule.coefficient(update).effective for update in range(updates)]
    assert values[0] == 0.01
    assert values[-1] == 0.001
    assert all(after < before for before, after in itertools.pairwise(values))
    middle = schedule.coefficient((updates - 1) // 2).effective
    share = ((updates - 1) // 2) / (updates - 1)
    assert middle == pytest.approx(0.01 - 0.009 * share, rel=1e-12)


def test_a_run_of_one_update_is_trained_with_the_start():
    assert plain(1).coefficient(0).effective == 0.01


def test_a_decay_from_a_plateau_ends_with_the_last_update_too():
    shape = {"ent_coef_plateau_window": 24, "ent_coef_plateau_min_updates": 40}
    schedule = plain(123, **shape)
    result = watch(schedule, [1.2] * 123)
    assert schedule.start == 40
    assert result[40] == 0.01
    assert result[81] == pytest.approx(0.0055, rel=1e-12)  # half of the 82 updates from 40 to 122
    assert result[121] > result[122] == 0.001


def test_a_plateau_at_the_very_end_leaves_nothing_to_divide_by():
    schedule = plain(3, ent_coef_plateau_window=2, ent_coef_plateau_min_updates=0)
    assert watch(schedule, [1.0, 2.0, 2.0]) == [0.01, 0.01, 0.01]
    assert schedule.start == 2
    assert [schedule.coefficient(update).effective for update in (2, 3, 9)] == [0.01, 0.001, 0.001]


def waiting(**settings):
    """Return a schedule that waits for a plateau of 24 updates, from update 40 on."""
    shape = {"ent_coef_plateau_window": 24, "ent_coef_plateau_min_updates": 40}
    return build(**{**shape, **settings})


def watch(schedule, entropies, *, first=0, explained=GOOD):
    """Return the coefficient of every update."""
    result = []
    for update, entropy in enumerate(entropies, first):
        result.append(schedule.coefficient(update).effective)
        schedule.observe(update, entropy, explained)
    return result


@pytest.mark.parametrize(
    ("update", "value"), [(0, 0.01), (25, 0.008), (50, 0.006), (100, 0.002), (10**6, 0.002)]
)
def test_without_a_window_the_decay_starts_at_once(update, value):
    schedule = build()
    assert schedule.start == 0
    assert schedule.coefficient(update).effective == pytest.approx(value, rel=1e-12)


def test_a_decay_of_no_steps_is_at_its_end():
    assert build(ent_coef_decay_steps=0).coefficient(0).effective == 0.002


@pytest.mark.spec("T-E1", "S0-5", "S2-5")
def test_300_updates_of_flat_entropy_start_one_decay():
    schedule = waiting()
    result = watch(schedule, [1.2] * 300)
    assert schedule.start == 40
    assert result[:41] == [0.01] * 41  # the plateau is seen after update 40 has been used
    assert result[90] == pytest.approx(0.006, rel=1e-12)
    assert result[140:] == pytest.approx([0.002] * 160, rel=1e-12)
    assert all(a >= b for a, b in itertools.pairwise(result))
    assert min(result) >= 0.001


@pytest.mark.spec("T-E1", "S0-5")
def test_a_second_plateau_does_not_start_it_again():
    schedule = waiting()
    watch(schedule, [1.2] * 60)
    before = schedule.coefficient(70)
    watch(schedule, [1.2 - 0.1 * k for k in range(40)], first=60)  # it moves: no plateau
    assert schedule.plateau is False
    watch(schedule, [0.5] * 40, first=100)
    assert schedule.plateau is True
    assert schedule.start == 40
    assert schedule.coefficient(70) == before


def test_a_plateau_needs_a_full_window():
    schedule = waiting(ent_coef_plateau_min_updates=0)
    watch(schedule, [1.0] * 23)
    assert schedule.start is None
    assert math.isnan(schedule.slope)
    schedule.observe(23, 1.0, GOOD)
    assert (schedule.start, schedule.slope) == (23, 0.0)


@pytest.mark.parametrize(("slope", "level"), [(0.0019, True), (-0.0019, True), (0.0021, False)])
def test_level_is_a_slope_within_the_tolerance(slope, level):
    schedule = waiting()
    watch(schedule, [1.0 + slope * k for k in range(60)])
    assert schedule.slope == pytest.approx(slope, rel=1e-9)
    assert (schedule.start is not None) is level


def test_the_tolerance_itself_is_level():
    schedule = waiting(ent_coef_plateau_window=2, ent_coef_plateau_tolerance=0.25)
    watch(schedule, [1.0, 1.25], first=50)
    assert (schedule.slope, schedule.start) == (0.25, 51)


def test_the_slope_is_per_update_even_when_updates_are_left_out():
    schedule = waiting(ent_coef_plateau_window=3)
    for update in (50, 60, 80):
        schedule.observe(update, 0.1 * update, GOOD)
    assert schedule.slope == pytest.approx(0.1, rel=1e-12)


def test_the_floor_wins_over_the_end():
    schedule = build(ent_coef_final=0.0, ent_coef_min=0.004)
    result = [schedule.coefficient(k) for k in range(200)]
    assert result[60].effective == pytest.approx(0.004, rel=1e-12)
    assert {part.effective for part in result[61:]} == {0.004}
    assert result[199].nominal == 0.0
    assert not any(part.boosted for part in result)


@pytest.mark.spec("S0-5")
@pytest.mark.parametrize(
    "settings",
    [
        {"ent_coef": 0.002},  # at its end already
        {"ent_coef": 0.001},  # below its end
        {"ent_coef": 0.003, "ent_coef_min": 0.003},  # at its floor already
    ],
)
def test_a_plateau_at_the_end_or_the_floor_is_seen_and_does_nothing(settings):
    schedule = waiting(**settings)
    before = schedule.coefficient(0)
    watch(schedule, [1.0] * 100)
    assert schedule.plateau is True
    assert schedule.start is None
    assert schedule.coefficient(500) == before


def test_blind_critics_raise_the_coefficient_after_some_patience():
    # patience 2, factor 1.5: the third bad update in a row is the first that counts
    schedule = build(entropy_boost_factor=1.5, ent_coef_decay_steps=10**9)
    result = watch(schedule, [1.0] * 6, explained=-0.1)
    assert result == pytest.approx([0.01, 0.01, 0.01, 0.015, 0.0225, 0.03375], rel=1e-6)
    assert schedule.coefficient(6).boosted is True
    schedule.observe(6, 1.0, 0.0)  # as good as a constant is not worse than one
    assert schedule.coefficient(7).effective == pytest.approx(0.01, rel=1e-6)
    assert schedule.coefficient(7).boosted is False


def test_the_boost_has_a_cap():
    schedule = build(entropy_boost_factor=1.5, entropy_boost_cap=3.0)
    schedule.bad_updates = 20
    assert schedule.coefficient(0).effective == pytest.approx(0.03, rel=1e-12)


def test_thousands_of_bad_updates_overflow_nothing():
    schedule = build(entropy_boost_factor=1.5)
    schedule.bad_updates = 10**6
    assert schedule.coefficient(0).effective == pytest.approx(0.05, rel=1e-12)


def test_the_boost_acts_on_the_floored_coefficient():
    # By plan 0, floored to .004, times 1.5 for one update beyond patience.
    schedule = build(ent_coef_final=0.0, ent_coef_min=0.004, entropy_boost_factor=1.5)
    schedule.bad_updates = 3
    result = schedule.coefficient(10**6)
    assert result.effective == pytest.approx(0.006, rel=1e-12)
    assert (result.nominal, result.boosted) == (0.0, True)


def test_without_a_factor_there_is_no_boost():
    schedule = build()
    schedule.bad_updates = 50
    assert schedule.coefficient(0).effective == 0.01
    assert schedule.coefficient(0).boosted is False


def test_asking_changes_nothing():
    schedule = waiting(entropy_boost_factor=1.5)
    watch(schedule, [1.0] * 45, explained=-1.0)
    before = schedule.state_dict()
    assert schedule.coefficient(50) == schedule.coefficient(50)
    assert schedule.state_dict() == before


def test_an_unknown_entropy_is_no_plateau_and_can_be_saved():
    schedule = waiting()
    watch(schedule, [1.0] * 50)
    assert schedule.plateau is True
    schedule.observe(50, math.nan, GOOD)
    assert schedule.plateau is False
    fresh = waiting()
    fresh.load_state_dict(json.loads(json.dumps(schedule.state_dict(), allow_nan=False)))
    assert fresh.state_dict() == schedule.state_dict()


@pytest.mark.parametrize("stop", [0, 10, 45, 80])
def test_a_restored_schedule_goes_on_exactly(stop):
    entropies = [1.5 - 0.7 * math.sin(0.01 * k) for k in range(160)]
    signs = [-1.0 if k % 7 > 2 else 0.5 for k in range(160)]
    settings = {"entropy_boost_factor": 1.3, "ent_coef_plateau_tolerance": 0.003}

    def run(schedule, updates):
        result = []
        for k in updates:
            schedule.observe(k, entropies[k], signs[k])
            result.append((schedule.coefficient(k + 1), schedule.plateau, schedule.start))
        return result

    whole = waiting(**settings)
    expected = run(whole, range(160))
    first = waiting(**settings)
    run(first, range(stop))
    text = json.dumps(first.state_dict(), allow_nan=False)
    second = waiting(**settings)
    second.load_state_dict(json.loads(text))
    assert run(second, range(stop, 160)) == expected[stop:]
    assert second.state_dict() == whole.state_dict()
    assert whole.start is not None


@pytest.mark.parametrize(
    "state", [None, [], {"start": "0"}, {"seen": [[1]]}, {"surprise": 1}, {"bad_updates": 1.5}]
)
def test_a_state_of_something_else_is_refused(state):
    with pytest.raises(ArtifactError) as caught:
        build().load_state_dict(state)
    assert caught.value.code == "artifact-document"
