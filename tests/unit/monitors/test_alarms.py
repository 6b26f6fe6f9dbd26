"""Each alarm at its threshold, once, and the same after a resume."""

import json
import math
import re
from pathlib import Path

import pytest

from stormsail.core.errors import ArtifactError
from stormsail.core.files import documents
from stormsail.monitors.alarm_rules import RULES
from stormsail.monitors.alarms import ALARM_NAMES, Alarm, Alarms, warn

DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"

BOTH = {"train/critic1_grad_norm": 1.0, "train/critic2_grad_norm": 1.0}
FLOOR = {"train/optimizer_lr_min": 5e-6}
SCALE = {"train/return_stats/std_unfloored": 0.0009}
CLIP = {"config/max_grad_norm": 0.5}
HIDDEN = {
    "lstm/h_mean_layer0": 0.1,
    "lstm/h_std_layer0": 0.3,
    "lstm/h_mean_layer1": 0.0,
    "lstm/h_std_layer1": 0.2,
    "lstm/h_saturated_frac_layer0": 0.1,
    "lstm/c_max_abs_layer0": 2.0,
}
OUT_OF_REACH = {
    "config/cvar_limit": -0.1,
    "config/cvar_lambda_max": 10.0,
    "config/cvar_quantity": 2.0,
    "train/cvar_empirical_ema": -0.25,
    "train/cvar_lambda": 7.5,
}
POLICIES = {
    "validation/policy_gap": 33.0,
    "validation/policy_p": 0.001,
    "validation/score_greedy": -30.5,
}

# What sounds at once: metrics beside it, the metric, a value that is quiet, one that sounds.
THRESHOLDS = {
    "warn/excessive_return_scaling": (SCALE, "train/return_stats/unfloored_scale", 100.0, 100.1),
    "warn/ret_std_triggering_scaling": (SCALE, "train/return_stats/unfloored_scale", 100.0, 100.1),
    "warn/value_target_scale_capped": (
        {"config/ret_std_at_cap": 1e-3, "train/ret_mean": 2.0},
        "train/return_stats/std_unfloored",
        1e-3,
        9.9e-4,
    ),
    "alert/gradient_explosion": ({}, "train/grad_norm_pre_clip_max", 50.0, 50.1),
    "alert/advantage_outliers": ({}, "train/advantages_norm_max_abs", 20.0, 20.1),
    "alert/loss": ({}, "train/value_loss", 1000.0, 1000.1),
    "alert/steps_refused": ({}, "train/steps_refused", 0.0, 1.0),
    "error/post_clip_invariant": (CLIP, "train/grad_norm_post_clip_max", 0.5, 0.50001),
    "error/decode_encode_mismatch": (
        {},
        "train/return_stats/decode_encode_mismatch",
        0.0,
        1e-12,
    ),
    "warn/twin_critics_gradient_imbalance": (BOTH, "train/critics_grad_ratio", 99.0, 101.0),
    "warn/critic1_vanishing_gradients": ({}, "train/critic1_grad_norm", 1.1e-8, 0.9e-8),
    "warn/critic2_vanishing_gradients": ({}, "train/critic2_grad_norm", 1.1e-8, 0.9e-8),
    "error/log_ratio_nonfinite": ({}, "train/log_ratio_inf_count", 0.0, 2.0),
    "error/log_ratio_nan_count": ({}, "train/log_ratio_nan_count", 0.0, 1.0),
    "error/log_ratio_inf_count": ({}, "train/log_ratio_inf_count", 0.0, 1.0),
    "warn/log_ratio_concerning": ({}, "train/log_ratio_max_abs", 1.0, 1.1),
    "warn/log_ratio_severe_instability": ({}, "train/log_ratio_max_abs", 10.0, 10.1),
    "warn/optimizer_lr_floor_hit": (FLOOR, "train/optimizer_lr", 6e-6, 5e-6),
    "warn/empty_rollout_buffer": ({}, "rollout/samples", 1.0, 0.0),
    "warn/empty_microbatch_group": ({}, "train/minibatches_skipped", 0.0, 1.0),
    "warn/microbatch_size_mismatch": (
        {"train/expected_batch_size": 64.0},
        "train/microbatch_size",
        32.0,
        48.0,
    ),
    "warn/advantages_std_below_floor": (
        {"train/advantages_std_clamped": 1e-8},
        "train/advantages_std_raw",
        1e-8,
        9e-9,
    ),
    "warn/normalization_mean_nonzero": ({}, "train/advantages_norm_mean", -0.1, -0.11),
    "warn/value_targets_outside_support": (
        {"train/v_min": -10.0},
        "train/clip_active_frac/norm",
        0.01,
        0.02,
    ),
    "warn/vf_clip_mean_only": ({}, "config/vf_clip_mode", 2.0, 1.0),
    "warn/hidden_state_exploding": (
        {"lstm/h_std_layer0": 0.6},
        "lstm/h_mean_layer0",
        -0.8,
        -0.81,
    ),
    "warn/cvar_alpha_small": ({}, "config/cvar_alpha", 0.01, 0.009),
    "warn/cvar_below_resolution": (
        {"config/cvar_resolution": 0.03125},
        "config/cvar_alpha",
        0.03125,
        0.03,
    ),
    "warn/cvar_coarse_tail": (
        {"config/cvar_resolution": 0.03125},
        "config/cvar_alpha",
        0.0625,
        0.05,
    ),
    "alert/cvar_infeasible": (OUT_OF_REACH, "train/cvar_infeasible", 0.0, 1.0),
    "warn/greedy_policy_worse": (POLICIES, "validation/greedy_worse", 0.0, 1.0),
}
PATIENT = {
    "warn/twin_critics_persistent_imbalance": (BOTH, "train/critics_grad_ratio", 1.0, 0.009, 6),
    "warn/explained_variance_low": ({}, "train/explained_variance", 0.31, 0.3, 3),
    "warn/hidden_state_saturated": (HIDDEN, "lstm/h_saturated_frac_layer1", 0.5, 0.51, 3),
    "warn/hidden_state_vanishing": (
        {**HIDDEN, "lstm/h_mean_layer1": 0.0},
        "lstm/h_std_layer1",
        1.01e-3,
        0.99e-3,
        3,
    ),
    "warn/cell_state_large": (HIDDEN, "lstm/c_max_abs_layer1", 50.0, 50.1, 3),
    "warn/vgs_saturated": (
        {"vgs/warmup_active": 0.0, "vgs/factor_min": 0.5, "vgs/factor_median": 0.5},
        "vgs/floor_fraction",
        0.89,
        0.9,
        10,
    ),
    "warn/vgs_idle": ({"vgs/warmup_active": 0.0}, "vgs/factor_min", 0.998, 0.999, 10),
    "warn/cvar_not_ready": ({"train/cvar_samples": 3.0}, "train/cvar_ready", 1.0, 0.0, 50),
    "warn/cvar_gate_shut": (
        {"config/cvar_weight": 0.1, "train/explained_variance": 0.05},
        "train/cvar_penalty_share",
        0.1,
        0.0,
        50,
    ),
}
RELATIVE = "warn/ret_std_out_of_range"


def names(alarms):
    return [alarm.name for alarm in alarms]


def sounded(alarms, name, metrics):
    return name in names(alarms.check(metrics))


def test_every_rule_has_a_case_here_and_a_row_in_the_page():
    listed = {rule.name for rule in RULES}
    assert listed == {*THRESHOLDS, *PATIENT, RELATIVE}
    rows = re.findall(r"^\| `((?:warn|alert|error)/\w+)` \| (\w+) \|", DOCS.read_text(), re.M)
    assert rows == [(rule.name, rule.severity) for rule in RULES]


@pytest.mark.spec("S4-R1", "S4-O2", "T-M3", "T-M4")
@pytest.mark.parametrize("name", list(THRESHOLDS))
def test_an_alarm_sounds_beyond_its_threshold_and_only_when_that_begins(name):
    beside, metric, quiet, loud = THRESHOLDS[name]
    alarms = Alarms()
    assert not sounded(alarms, name, {**beside, metric: quiet})
    assert sounded(alarms, name, {**beside, metric: loud})
    assert name in alarms.active
    assert not sounded(alarms, name, {**beside, metric: loud})
    assert alarms.streak(name) == 2
    assert not sounded(alarms, name, {**beside, metric: quiet})
    assert alarms.streak(name) == 0
    assert name not in alarms.active
    assert sounded(alarms, name, {**beside, metric: loud})


@pytest.mark.spec("S2-7")
@pytest.mark.parametrize("name", list(PATIENT))
def test_a_patient_alarm_waits_for_its_streak(name):
    beside, metric, quiet, loud, patience = PATIENT[name]
    alarms = Alarms()
    loud, quiet = {**beside, metric: loud}, {**beside, metric: quiet}
    assert [sounded(alarms, name, loud) for _ in range(patience - 1)] == [False] * (patience - 1)
    assert not sounded(alarms, name, quiet)
    streak = [sounded(alarms, name, loud) for _ in range(patience + 3)]
    assert streak == [False] * (patience - 1) + [True] + [False] * 3


@pytest.mark.spec("X20")
@pytest.mark.parametrize("unit", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize(
    ("factor", "loud"), [(0.19, True), (0.21, False), (4.9, False), (5.1, True)]
)
def test_the_spread_of_returns_is_judged_by_its_own_median_in_any_unit(unit, factor, loud):
    alarms = Alarms()
    for step in range(8):
        assert alarms.check({"train/ret_std": unit * (0.9 + 0.2 * (step % 2))}) == []
    begun = alarms.check({"train/ret_std": unit * factor})
    assert names(begun) == [RELATIVE] * loud
    if loud:
        assert begun[0].value == pytest.approx(factor)


def test_the_spread_is_not_judged_before_there_is_a_past():
    alarms = Alarms()
    assert [alarms.check({"train/ret_std": 10.0**step}) for step in range(8)] == [[]] * 8


def test_the_ratio_of_critics_says_nothing_where_one_has_no_gradient():
    metrics = {
        "train/critic1_grad_norm": 1.0,
        "train/critic2_grad_norm": 1e-9,
        "train/critics_grad_ratio": 1e9,
    }
    assert names(Alarms().check(metrics)) == ["warn/critic2_vanishing_gradients"]


@pytest.mark.parametrize("loss", [math.nan, -1001.0])
@pytest.mark.parametrize("name", ["train/loss", "train/policy_loss", "train/entropy_loss"])
def test_any_loss_that_is_unknown_or_large_in_size_is_an_alert(name, loss):
    assert names(Alarms().check({name: loss})) == ["alert/loss"]


def test_without_a_bound_the_norm_after_the_clip_may_be_anything():
    metrics = {"config/max_grad_norm": 0.0, "train/grad_norm_post_clip_max": 40.0}
    assert Alarms().check(metrics) == []


def test_metrics_that_are_unknown_or_missing_meet_no_condition():
    every = {metric for _, metric, *_ in (*THRESHOLDS.values(), *PATIENT.values())}
    beside = {name for parts, *_ in THRESHOLDS.values() for name in parts}
    unknown = {
        name: math.nan for name in every | beside if "loss" not in name and "mismatch" not in name
    }
    alarms = Alarms()
    assert [alarms.check(unknown) for _ in range(8)] == [[]] * 8
    assert Alarms().check({}) == []


def test_a_capped_gain_names_the_spread_and_the_factor_for_rewards():
    metrics = {
        "config/ret_std_at_cap": 1e-3,
        "train/ret_mean": 3e-8,
        "train/return_stats/std_unfloored": 1e-7,
    }
    (alarm,) = Alarms().check(metrics)
    assert alarm.message == (
        "returns have a spread of 1e-07 in the unit of the reward, below 0.001, where "
        "`returns.value_target_scale_cap` holds the gain: targets fill only a part of a "
        "normalised unit, and critics learn them coarsely; multiply rewards by about 1e+07, or "
        "raise the cap"
    )


@pytest.mark.parametrize(("mean", "spread"), [(0.0, 0.0), (500.0, 1e-5), (-500.0, 1e-5)])
def test_returns_that_do_not_vary_have_no_unit_to_change(mean, spread):
    metrics = {
        "config/ret_std_at_cap": 1e-3,
        "train/ret_mean": mean,
        "train/return_stats/std_unfloored": spread,
    }
    assert Alarms().check(metrics) == []


def test_an_alarm_says_the_value_the_bound_and_what_to_do():
    alarm = Alarms().check({"train/grad_norm_pre_clip_max": 61.25})[0]
    assert alarm == Alarm(
        "alert/gradient_explosion",
        "alert",
        "a gradient norm before the clip is 61.25, above 50 (healthy: below 10); lower the "
        "learning rate, or look for outliers in rewards and advantages",
        61.25,
    )


@pytest.mark.spec("S3-3")
def test_a_limit_out_of_reach_is_said_in_words():
    (alarm,) = Alarms().check({**OUT_OF_REACH, "train/cvar_infeasible": 1.0})
    assert alarm.severity == "alert"
    assert alarm.value == -0.25
    assert alarm.message == (
        "the limit `risk.cvar_limit` -0.1 is out of reach: CVaR of episode returns stays at -0.25 "
        "with the multiplier at 7.5 of at most 10, and the gap no longer closes; choose a limit at "
        "or below what is reached, or raise `risk.cvar_lambda_max`, or the gains if the multiplier "
        "is far below it"
    )


def test_a_limit_that_no_action_keeps_is_said_to_be_measured():
    metrics = {**OUT_OF_REACH, "train/cvar_infeasible": 1.0, "train/cvar_risk_share": 0.999}
    (alarm,) = Alarms().check(metrics)
    assert alarm.message == (
        "the limit `risk.cvar_limit` -0.1 is out of reach: CVaR of episode returns is surely below "
        "it, at -0.25, after `risk.cvar_infeasible_updates` updates that learned from risk alone, "
        "and so is that of every action held throughout; choose a limit at or below what is reached"
    )


@pytest.mark.spec("X7")
@pytest.mark.parametrize(
    ("quantity", "words"),
    [(0.0, "single rewards"), (1.0, "n-step sums"), (2.0, "episode returns"),
     (3.0, "outcomes"), (math.nan, "outcomes")],
)  # fmt: skip
def test_an_alarm_about_the_tail_names_its_quantity(quantity, words):
    metrics = {**OUT_OF_REACH, "train/cvar_infeasible": 1.0, "config/cvar_quantity": quantity}
    (alarm,) = Alarms().check(metrics)
    assert f": CVaR of {words} stays at -0.25 with" in alarm.message


@pytest.mark.spec("S3-10", "T-C4")
def test_a_level_below_one_quantile_is_said_with_its_cure():
    metrics = {"config/cvar_alpha": 0.02, "config/cvar_resolution": 1 / 32}
    (alarm,) = Alarms().check(metrics)
    assert alarm.message == (
        "`risk.cvar_alpha` is 0.02, below the 0.03125 that one quantile stands for: the predicted "
        "tail is the lowest quantile and too light; raise `critic.num_quantiles` to 2 / alpha"
    )


@pytest.mark.spec("S3-10", "T-C4")
def test_a_tail_of_fewer_than_two_quantiles_is_said_with_its_cure():
    metrics = {"config/cvar_alpha": 0.05, "config/cvar_resolution": 1 / 32}
    (alarm,) = Alarms().check(metrics)
    assert (alarm.name, alarm.severity, alarm.value) == ("warn/cvar_coarse_tail", "warning", 0.05)
    assert alarm.message == (
        "`risk.cvar_alpha` is 0.05, below twice the 0.03125 that one quantile stands for: fewer "
        "than two quantiles make the predicted tail, which is too light by several percent; raise "
        "`critic.num_quantiles` to 2 / alpha"
    )


@pytest.mark.parametrize(
    ("alpha", "levels", "said"),
    [(0.05, 19, ["warn/cvar_below_resolution"]), (0.05, 20, ["warn/cvar_coarse_tail"]),
     (0.05, 39, ["warn/cvar_coarse_tail"]), (0.05, 40, []), (0.3, 6, ["warn/cvar_coarse_tail"]),
     (0.3, 7, []), (0.05, math.nan, [])],
)  # fmt: skip
def test_the_cure_of_a_coarse_tail_is_enough_and_no_more(alpha, levels, said):
    """2 / alpha quantiles: 40 for 0.05, 7 for 0.3; atoms have no levels."""
    metrics = {"config/cvar_alpha": alpha, "config/cvar_resolution": 1.0 / levels}
    assert names(Alarms().check(metrics)) == said


def test_an_alarm_of_an_unknown_value_is_still_json():
    alarm = Alarms().check({"train/value_loss": math.nan})[0]
    assert math.isnan(alarm.value)
    assert alarm.record()["value"] is None
    assert b'"name":"alert/loss"' in documents.encode(alarm.record())


def story(length):
    """Return metrics in which many conditions begin, last and end."""
    return [
        {
            **BOTH,
            "train/explained_variance": 0.1 if step % 7 < 5 else 0.9,
            "train/critics_grad_ratio": 200.0 if step % 11 < 8 else 1.0,
            "train/log_ratio_max_abs": float(step % 3),
            "train/ret_std": 30.0 if step % 13 == 12 else 1.0,
        }
        for step in range(length)
    ]


@pytest.mark.parametrize("cut", range(0, 30, 3))
def test_resumed_alarms_sound_as_if_nothing_had_happened(cut):
    whole, first, second = Alarms(), Alarms(), Alarms()
    updates = story(30)
    expected = [whole.check(metrics) for metrics in updates]
    begun = [first.check(metrics) for metrics in updates[:cut]]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    begun += [second.check(metrics) for metrics in updates[cut:]]
    assert begun == expected
    # imbalance at 0, 11, 22; persistent at 5, 16, 27; ten log ratios; variance at 2, 9, 16, 23;
    # spread at 12, 25
    assert sum(map(len, expected)) == 3 + 3 + 10 + 4 + 2
    assert documents.encode(second.state_dict()) == documents.encode(whole.state_dict())


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("state", "shown"),
    [
        (None, "a NoneType"),
        ({"streaks": {"warn/no_such": 1}, "spreads": []}, "the unknown alarm `warn/no_such`"),
    ],
)
def test_a_foreign_state_is_refused(state, shown):
    with pytest.raises(ArtifactError) as refusal:
        Alarms().load_state_dict(state)
    assert str(refusal.value) == (
        "the saved state of `alarms` must be what this version writes; "
        f"found {shown}. Resume with the version that wrote it, or start a new run. "
        "[artifact-document]"
    )


def test_a_state_with_other_fields_is_refused_and_changes_nothing():
    alarms = Alarms()
    alarms.check({"train/log_ratio_max_abs": 2.0})
    with pytest.raises(ArtifactError):
        alarms.load_state_dict({"streaks": {}, "spreads": ["a"]})
    assert alarms.streak("warn/log_ratio_concerning") == 1


@pytest.mark.parametrize("name", list(THRESHOLDS))
def test_an_alarm_is_a_scalar_of_every_update_while_it_lasts(name):
    beside, metric, quiet, loud = THRESHOLDS[name]
    alarms = Alarms()
    seen = []
    for value in (quiet, loud, loud, quiet, loud):
        metrics = {**beside, metric: value}
        alarms.check(metrics)
        scalars = alarms.scalars(metrics)
        assert tuple(scalars) == ALARM_NAMES
        seen.append(scalars[name])
    lasting = {
        "error/log_ratio_nan_count": 1.0,
        "error/log_ratio_inf_count": 1.0,
        "warn/ret_std_triggering_scaling": 0.0009,
    }.get(name, 1.0)
    assert seen == [0.0, lasting, lasting, 0.0, lasting]


def test_the_count_of_bad_log_ratios_is_a_count():
    alarms, metrics = Alarms(), {"train/log_ratio_nan_count": 7.0, "train/log_ratio_inf_count": 0.0}
    alarms.check(metrics)
    scalars = alarms.scalars(metrics)
    assert scalars["error/log_ratio_nan_count"] == 7.0
    assert scalars["error/log_ratio_inf_count"] == 0.0
    assert scalars["error/log_ratio_nonfinite"] == 1.0


def test_a_patient_alarm_is_a_scalar_from_its_last_update_of_waiting_on():
    alarms, low = Alarms(), {"train/explained_variance": 0.1}
    seen = []
    for metrics in (low, low, low, low, {"train/explained_variance": 0.5}):
        alarms.check(metrics)
        seen.append(alarms.scalars(metrics)["warn/explained_variance_low"])
    assert seen == [0.0, 0.0, 1.0, 1.0, 0.0]


def test_the_worst_layer_of_a_memory_is_reported():
    metrics = {**HIDDEN, "lstm/h_saturated_frac_layer1": 0.75, "lstm/c_max_abs_layer1": 60.0}
    alarms = Alarms()
    begun = [alarms.check(metrics) for _ in range(3)]
    assert [(alarm.name, alarm.value) for alarm in begun[2]] == [
        ("warn/hidden_state_saturated", 0.75),
        ("warn/cell_state_large", 60.0),
    ]
    assert begun[:2] == [[], []]


def test_holding_the_mean_alone_is_warned_of_once_in_a_run():
    alarms, resumed = Alarms(), Alarms()
    metrics = {"config/vf_clip_mode": 1.0}
    first = [names(alarms.check(metrics)) for _ in range(5)]
    resumed.load_state_dict(json.loads(json.dumps(alarms.state_dict())))
    assert first == [["warn/vf_clip_mean_only"], [], [], [], []]
    assert resumed.check(metrics) == []
    assert [
        names(Alarms().check({"config/vf_clip_mode": code})) for code in (0.0, 2.0, 3.0, 4.0)
    ] == [[]] * 4


def test_a_warning_begins_with_a_word_to_search_for(caplog):
    warn("market, update 3: too much")
    assert [(record.name, record.levelname, record.message) for record in caplog.records] == [
        ("stormsail", "WARNING", "ALERT: market, update 3: too much")
    ]


# Names of the specification, section 1.5, word for word.
NAMED = """
warn/excessive_return_scaling warn/ret_std_triggering_scaling warn/twin_critics_gradient_imbalance
warn/critic1_vanishing_gradients warn/critic2_vanishing_gradients error/log_ratio_nonfinite
error/log_ratio_nan_count error/log_ratio_inf_count warn/log_ratio_concerning
warn/log_ratio_severe_instability warn/explained_variance_low warn/ret_std_out_of_range
warn/optimizer_lr_floor_hit warn/empty_rollout_buffer warn/empty_microbatch_group
warn/microbatch_size_mismatch warn/advantages_std_below_floor warn/normalization_mean_nonzero
"""
# Named there by what they are about: gradient explosion, advantage outliers, loss, norm after the
# clip, persistent imbalance, level of CVaR below 0.01 and below 1/N.
DESCRIBED = """
alert/gradient_explosion alert/advantage_outliers alert/loss error/post_clip_invariant
warn/twin_critics_persistent_imbalance warn/cvar_alpha_small warn/cvar_below_resolution
"""


@pytest.mark.spec("S4-R1")
def test_every_alarm_of_the_specification_is_there_under_its_name():
    assert set((NAMED + DESCRIBED).split()) - set(ALARM_NAMES) == set()


def test_slow_advantages_may_have_another_mean_than_zero():
    rule = next(rule for rule in RULES if rule.name == "warn/normalization_mean_nonzero")
    row = {"train/advantages_norm_mean": 0.5, "train/advantages_std_clamped": 2.0}
    assert rule.holds({**row, "train/advantage_scale": 2.0})
    assert not rule.holds({**row, "train/advantage_scale": 3.0})
