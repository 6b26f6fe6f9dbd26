"""What is reported of the tail, against the outcomes themselves."""

import dataclasses
import math

import pytest

from learner_lab import aged, learner, script, settings
from oracles import risk as oracle
from oracles import risk_control
from stormsail.algorithms.callbacks import Progress
from stormsail.algorithms.telemetry import risk
from stormsail.algorithms.telemetry.metrics import metrics
from stormsail.cli.learning.train import SHOWN, _words
from stormsail.monitors.alarms import Alarms

ALPHA = 0.3
TAIL = {
    "risk.cvar_alpha": ALPHA,
    "risk.cvar_min_samples": 12,
    "risk.cvar_min_tail_samples": 2,
    "risk.cvar_window": 16,
    "risk.cvar_use_constraint": True,
    "risk.cvar_limit": 0.5,
    "risk.cvar_weight": 0.2,
    "risk.cvar_activation_threshold": -100.0,
    "risk.cvar_ramp_updates": 8,
    "risk.cvar_ema_beta": 0.0,
}


def measured(updates, **changes):
    ppo = aged(learner(settings(**{**TAIL, **changes}), told=script(seed=4)))
    for _ in range(updates):
        update = ppo.update()
    return ppo, update, metrics(ppo, update)


def test_numbers_of_the_tail_are_those_of_its_outcomes():
    ppo, update, result = measured(4)
    sample = ppo.risk.window.sample().tolist()
    estimate, error = (
        oracle.empirical_cvar(sample, ALPHA),
        oracle.empirical_cvar_error(sample, ALPHA),
    )
    unit = max(0.5, risk_control.deviation(sample))
    report = update.risk
    expected = {
        "train/cvar_samples": 16.0,
        "train/cvar_ready": 1.0,
        "train/cvar_raw": estimate,
        "train/cvar_empirical": estimate,
        "train/cvar_empirical_low": estimate - 1.959964 * error,
        "train/cvar_empirical_high": estimate + 1.959964 * error,
        "train/cvar_empirical_ema": estimate,
        "train/cvar_value_at_risk": oracle.value_at_risk(sample, ALPHA),
        "train/cvar_unit": unit,
        "train/cvar_limit_unit": 0.5 / unit,
        "train/cvar_gap": 0.5 - estimate,
        "train/cvar_gap_unit": (0.5 - estimate) / unit,
        "train/cvar_violation": max(0.0, 0.5 - estimate),
        "train/cvar_violation_ema": max(0.0, 0.5 - estimate),
        "train/cvar_realised_episode": estimate,
        "train/cvar_predicted_at_reset": report.predicted,
        "train/cvar_predicted_minus_realised": report.predicted - estimate,
        "train/cvar_lambda": report.multiplier,
        "train/cvar_infeasible": 0.0,
        "train/cvar_penalty_active": 1.0,
        "train/cvar_penalty_share": 3 / 8,  # the first update had too few episodes
        "train/cvar_weight_effective": report.weight,
        "train/cvar_term": report.term,
        "train/cvar_loss": -report.weight * report.term,
        "train/cvar_constraint": report.multiplier * (0.5 - estimate),
        "debug/cvar_dual_update_source": 1.0,
        "config/cvar_alpha": ALPHA,
        "config/cvar_weight": 0.2,
        "config/cvar_limit": 0.5,
        "config/cvar_lambda_max": 2.0,
        "config/cvar_quantity": 2.0,
        "config/cvar_resolution": 0.25,
    }
    reported = {name: result[name] for name in result if "cvar" in name}
    mean, spread = risk_control.weighted(
        report.risk.double().numpy(), update.rollout.weight.double().numpy()
    )
    assert reported.pop("train/cvar_advantage_std") == pytest.approx(spread, rel=1e-5)
    assert report.term == pytest.approx(mean, rel=1e-4)
    assert reported == pytest.approx(expected, rel=1e-6)
    assert estimate < 0.5  # so that a violation is not 0 by itself


@pytest.mark.spec("X7", "T-C7")
def test_the_violation_is_that_of_the_estimate_that_is_followed():
    """Raw and winsorised tails lie apart: the limit is compared with the second one."""
    ppo, update, _ = measured(4)
    tail = update.risk.tail._replace(raw=-9.0, empirical=-2.0, error=0.25)
    report = dataclasses.replace(update.risk, tail=tail, average=-1.0)
    result = risk.risk(ppo, dataclasses.replace(update, risk=report))
    assert result["train/cvar_violation"] == 2.5
    assert result["train/cvar_violation_ema"] == 1.5
    assert (result["train/cvar_raw"], result["train/cvar_empirical"]) == (-9.0, -2.0)
    assert result["train/cvar_empirical_low"] == pytest.approx(-2.0 - 0.25 * 1.959964)


def test_a_limit_that_holds_is_not_violated_and_its_gap_is_negative():
    _, _, result = measured(3, **{"risk.cvar_limit": -50.0})
    assert result["train/cvar_violation"] == result["train/cvar_violation_ema"] == 0.0
    assert result["train/cvar_gap"] == pytest.approx(-50.0 - result["train/cvar_empirical"])
    assert result["train/cvar_constraint"] == result["train/cvar_lambda"] == 0.0


def test_before_there_are_enough_outcomes_the_estimate_is_shown_and_nothing_acts():
    _, _, result = measured(1)
    assert result["train/cvar_samples"] == 11.0
    assert result["train/cvar_ready"] == 0.0
    assert math.isfinite(result["train/cvar_empirical"])
    assert math.isnan(result["train/cvar_gap"])
    assert math.isnan(result["train/cvar_empirical_ema"])
    for name in ("lambda", "weight_effective", "constraint", "term", "advantage_std"):
        assert result[f"train/cvar_{name}"] == 0.0
    assert result["debug/cvar_dual_update_source"] == 0.0
    assert result["debug/nonfinite_metrics"] == 0.0


def test_a_limit_by_itself_is_watched():
    _, update, result = measured(
        3, **{"risk.cvar_use_constraint": False, "risk.cvar_use_penalty": False}
    )
    assert update.mixed is update.estimates.raw_advantage
    assert result["train/cvar_violation"] > 0.0
    assert result["train/cvar_lambda"] == result["train/cvar_weight_effective"] == 0.0
    assert result["config/cvar_weight"] == 0.0


def test_atoms_have_no_resolution_of_this_kind():
    _, _, result = measured(1, **{"critic.kind": "categorical"})
    assert math.isnan(result["config/cvar_resolution"])
    assert result["debug/nonfinite_metrics"] == 0.0


def test_advantages_are_reported_as_they_are_normalised():
    _, update, result = measured(4)
    mean, spread = risk_control.weighted(
        update.mixed.double().numpy(), update.rollout.weight.double().numpy()
    )
    assert result["train/advantages_mean_raw"] == pytest.approx(mean, rel=1e-5)
    assert result["train/advantages_std_raw"] == pytest.approx(spread, rel=1e-5)
    _, raw = risk_control.weighted(
        update.estimates.raw_advantage.double().numpy(), update.rollout.weight.double().numpy()
    )
    assert spread != pytest.approx(raw, rel=0.01)


def test_while_a_run_goes_on_its_tail_is_shown():
    progress = Progress(1, 10, 100, {"train/cvar_empirical": -0.12345}, (), None)
    assert SHOWN["CVaR"][0] == "train/cvar_empirical"
    assert _words(progress) == "CVaR -0.1235"


def test_quantities_have_their_places():
    assert risk.QUANTITIES == ("step", "nstep", "episode_return")


@pytest.mark.spec("S3-3")
def test_a_limit_that_no_policy_can_hold_is_said_within_the_stated_updates():
    """Actions change nothing here: one update to have enough episodes, then two stretches."""
    alarms, said = Alarms(), {}
    changes = {"risk.cvar_limit": 100.0, "risk.cvar_kp": 2.0, "risk.cvar_lambda_max": 1.0,
               "risk.cvar_infeasible_updates": 3}  # fmt: skip
    ppo = aged(learner(settings(**{**TAIL, **changes}), told=script(seed=4)))
    for number in range(1, 9):
        result = metrics(ppo, ppo.update())
        said |= {alarm.name: number for alarm in alarms.check(result)}
    assert said["alert/cvar_infeasible"] == 1 + 2 * 3
    assert result["train/cvar_lambda"] == 1.0
    assert "alert/cvar_infeasible" in alarms.active


def test_a_multiplier_comes_back_to_nothing_once_the_limit_is_slack():
    """A bad stretch first, then rewards far above the limit."""
    told = script(seed=4)
    told.reward[:8] -= 20.0
    told.reward[8:] += 20.0
    config = settings(**{**TAIL, "risk.cvar_window": 12, "risk.cvar_weight": 0.0})
    ppo = aged(learner(config, told=told))
    result = [metrics(ppo, ppo.update())["train/cvar_lambda"] for _ in range(4)]
    assert result[1] > 0.5
    assert result[3] == 0.0
