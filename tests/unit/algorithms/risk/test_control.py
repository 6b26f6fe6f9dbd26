"""The control as a whole: estimate, one step of the multiplier, mixture, and what is saved."""

import copy
import json
import math
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from learner_lab import CRITICS, aged, learner, script, settings
from oracles import advantage as advantage_oracle
from oracles import risk as risk_oracle
from oracles import risk_control as oracle
from stormsail.algorithms.callbacks import Progress
from stormsail.algorithms.risk.advantage import Trace, risk_advantage
from stormsail.algorithms.risk.control import RiskControl, winsorised
from stormsail.algorithms.risk.report import SOURCES
from stormsail.algorithms.run.checkpoint import learner_state, restore_learner
from stormsail.algorithms.telemetry.risk import QUANTITIES
from stormsail.algorithms.update.estimates import estimate
from stormsail.cli.learning.train import _words
from stormsail.core.errors import ArtifactError, ConfigError
from stormsail.monitors.alarm_rules import OUTCOMES, outcomes

CONFIGS = Path(__file__).parents[4] / "configs"
ALPHA = 0.3
FAST = {
    "risk.cvar_alpha": ALPHA,
    "risk.cvar_min_samples": 12,  # the first rollout of the script ends 11 episodes
    "risk.cvar_min_tail_samples": 2,
    "risk.cvar_window": 16,
    "risk.cvar_activation_threshold": -100.0,
}
LIMIT = {
    **FAST,
    "risk.form": "budget",
    "risk.cvar_use_constraint": True,
    "risk.cvar_limit": 0.5,
}
BOTH = {**LIMIT, "risk.cvar_weight": 0.4, "risk.cvar_ramp_updates": 3}


def made(**changes):
    told = script(weights=(1.0, 0.5), seed=4)
    return aged(learner(settings(**{**FAST, **changes}), told=told))


def as_array(tensor):
    return tensor.double().numpy()


# --- one update after another, against the loops -------------------------------------------------


def replay(updates, config):
    """Walk through finished updates by loops; yield what the control should have said of each."""
    samples, gaps, shares, estimates = [], [], [], []
    risk = config.risk
    for update in updates:
        rollout = update.rollout
        earned, reward = as_array(rollout.return_so_far), as_array(rollout.reward)
        samples += oracle.finished(earned, reward, rollout.ended.numpy())
        kept = oracle.window(samples, risk.cvar_window)
        ready = len(kept) >= max(risk.cvar_min_samples, risk.cvar_min_tail_samples / ALPHA)
        estimates.append(risk_oracle.empirical_cvar(kept, ALPHA) if ready else math.nan)
        average = oracle.moving_average(estimates, risk.cvar_ema_beta)[-1]
        unit = max(abs(risk.cvar_limit), oracle.deviation(kept))
        gaps.append((risk.cvar_limit - average) / unit)
        if ready:  # before, nothing opens and no ramp runs
            shares.append(float(update.estimates.explained_variance))
        yield {
            "ready": ready, "samples": kept, "average": average, "unit": unit,
            "lambda": oracle.pid_dual(
                gaps, risk.cvar_kp, risk.cvar_ki, risk.cvar_kd, risk.cvar_lambda_max
            )[-1],
            "share": oracle.gate(
                shares, risk.cvar_activation_threshold, risk.cvar_activation_hysteresis,
                risk.cvar_ramp_updates,
            )[-1]
            if shares
            else 0.0,
        }  # fmt: skip


@pytest.mark.parametrize("critic", ["quantile", "categorical"])
@pytest.mark.parametrize("mode", ["budget", "state", "episode"])
@pytest.mark.spec("T-C7", "X7")
def test_updates_are_those_of_the_replay(mode, critic):
    """Limit, estimate, gap and multiplier all speak of returns of episodes, in rewards."""
    ppo = made(**BOTH, **CRITICS[critic], **{"risk.cvar_policy_mode": mode})
    updates = [ppo.update() for _ in range(6)]
    config, seen, mixes = ppo.config, [], []
    for update, expected in zip(updates, replay(updates, config), strict=True):
        report, weight = update.risk, as_array(update.rollout.weight)
        seen.append(expected["ready"])
        assert report.tail.is_ready == expected["ready"]
        assert report.tail.samples == len(expected["samples"])
        assert report.multiplier == pytest.approx(expected["lambda"], abs=1e-9)
        assert report.share == expected["share"]
        raw, tail = as_array(update.estimates.raw_advantage), as_array(report.risk)
        if not expected["ready"]:
            mixes.append((raw, weight))
            assert not tail.any()
            assert update.mixed is update.estimates.raw_advantage
            continue
        assert report.average == pytest.approx(expected["average"], abs=1e-9)
        assert report.unit == pytest.approx(expected["unit"], abs=1e-9)
        assert report.tail.raw == pytest.approx(
            risk_oracle.empirical_cvar(expected["samples"], ALPHA), abs=1e-9
        )
        assert report.tail.level == risk_oracle.value_at_risk(expected["samples"], ALPHA)
        assert report.tail.error == pytest.approx(
            risk_oracle.empirical_cvar_error(expected["samples"], ALPHA), abs=1e-9
        )
        acting = oracle.penalty(0.4, expected["share"], 0.7, 0.5, raw, tail, weight)
        assert report.weight == pytest.approx(acting, rel=1e-5)
        mix = oracle.mixed(raw, tail, acting, expected["lambda"], rescale=True)
        assert as_array(update.mixed) == pytest.approx(mix, abs=1e-4)
        slow = advantage_oracle.running(mixes, 0.98)
        assert as_array(update.advantage) == pytest.approx(
            advantage_oracle.normalise_by(mix, *slow, weight), abs=1e-4
        )
        mixes.append((mix, weight))
    assert seen[0] is False
    assert seen[-1] is True
    assert updates[-1].risk.multiplier > 0.5
    assert np.abs(as_array(updates[-1].risk.risk)).max() > 0.1


@pytest.mark.parametrize("lam", ["target", 0.0, 0.9])
def test_the_control_sums_changes_with_the_decay_that_is_set(lam):
    ppo = made(**LIMIT, **{"risk.cvar_trace": lam, "ppo.gamma": 0.8})
    for _ in range(3):
        ppo.env_state, rollout = ppo._collect()
        ppo.risk.window.add(rollout)
    estimates = estimate(ppo.agent, rollout, ppo.config)
    report = ppo.risk.act(rollout, estimates, 0.5, ppo.agent)
    trace = None if lam == "target" else Trace(0.8, lam)
    expected = risk_advantage(
        "budget", ppo.agent, rollout, estimates,
        alpha=ALPHA, level=report.tail.level, trace=trace,
    )  # fmt: skip
    assert float(expected.abs().max()) > 0.1
    assert torch.equal(report.risk, expected)


def test_the_advantages_are_mixed_before_they_are_normalised():
    """Normalised first and mixed after, they would not have mean 0 and spread 1."""
    ppo = made(**LIMIT, **{"ppo.advantage_scale": "rollout"})
    for _ in range(4):
        update = ppo.update()
    mean, spread = oracle.weighted(as_array(update.advantage), as_array(update.rollout.weight))
    assert update.risk.multiplier > 0.5
    assert mean == pytest.approx(0.0, abs=1e-6)
    assert spread == pytest.approx(1.0, abs=1e-5)


def test_the_multiplier_moves_once_an_update(monkeypatch):
    ppo, steps = made(**LIMIT), []
    inner = ppo.risk.dual.step
    monkeypatch.setattr(ppo.risk.dual, "step", lambda gap: (steps.append(gap), inner(gap)))
    for _ in range(5):
        ppo.update()
    assert len(steps) == 4  # the first update has too few episodes
    assert ppo.risk.dual.multiplier == oracle.pid_dual(steps, 0.5, 0.02, 0.0, 2.0)[-1]


@pytest.mark.spec("X7")
def test_what_happened_is_followed_and_not_what_was_predicted():
    """Far apart by construction: the critics are told to be off by 1000."""
    for predicted, source in ((False, "empirical"), (True, "predicted")):
        ppo = made(**LIMIT, **{"risk.cvar_use_predicted_for_dual": predicted})
        for _ in range(3):
            update = ppo.update()
        with torch.no_grad():
            ppo.agent.return_scale.mean.add_(1000.0)
        report = ppo.risk.act(update.rollout, update.estimates, 0.5, ppo.agent)
        assert report.predicted > 900.0
        assert report.source == source
        followed = report.predicted if predicted else report.average
        assert report.gap == pytest.approx(0.5 - followed, rel=1e-9)
        assert (report.multiplier == 0.0) == predicted


def test_critics_that_are_optimistic_would_hide_a_broken_limit():
    """The constraint is broken in fact; a multiplier that trusted the critics stays at 0."""
    ppo = made(**LIMIT, **{"risk.cvar_use_predicted_for_dual": True})
    with torch.no_grad():
        for last in ppo.agent.network.critic.last_layers():
            last.bias.add_(50.0)
    for _ in range(3):
        update = ppo.update()
    assert update.risk.predicted > 0.5 > update.risk.tail.empirical
    assert update.risk.multiplier == 0.0


# --- bounds --------------------------------------------------------------------------------------


def test_the_weight_is_ramped_and_bounded():
    result = {}
    for name, changes in {
        "free": {"risk.cvar_weight": 0.1, "risk.cvar_ramp_updates": 0, "risk.cvar_cap": 1e9},
        "ramp": {"risk.cvar_weight": 0.1, "risk.cvar_ramp_updates": 12, "risk.cvar_cap": 1e9},
        "capped": {"risk.cvar_weight": 5.0, "risk.cvar_ramp_updates": 0, "risk.cvar_cap": 1e9},
        "off": {"risk.cvar_weight": 5.0, "risk.cvar_use_penalty": False,
                "risk.cvar_limit": -99.0, "risk.cvar_use_constraint": True},
    }.items():  # fmt: skip
        ppo = made(**changes)
        for _ in range(3):
            update = ppo.update()
        result[name] = update.risk.weight
    assert result == pytest.approx({"free": 0.1, "ramp": 0.1 * 2 / 12, "capped": 0.7, "off": 0.0})


def test_the_mean_term_is_bounded_once_for_the_whole_batch():
    """|w <A_risk>| is at most a share of the advantage's spread; w shrinks, the rows stay."""
    cap = 1e-3
    ppo = made(**{"risk.cvar_weight": 0.5, "risk.cvar_ramp_updates": 0, "risk.cvar_cap": cap})
    for _ in range(4):
        update = ppo.update()
    report, weight = update.risk, as_array(update.rollout.weight)
    mean, _ = oracle.weighted(as_array(report.risk), weight)
    _, spread = oracle.weighted(as_array(update.estimates.raw_advantage), weight)
    assert report.weight < 0.5
    assert abs(report.weight * mean) == pytest.approx(cap * spread, rel=1e-4)
    mix = as_array(update.estimates.raw_advantage) + report.weight * as_array(report.risk)
    assert as_array(update.mixed) == pytest.approx(mix, abs=1e-5)


def test_rescaling_divides_by_one_plus_the_multiplier():
    result = []
    for rescale in (True, False):
        ppo = made(**LIMIT, **{"risk.cvar_rescale": rescale, "ppo.normalize_advantage": False})
        for _ in range(2):
            update = ppo.update()
        result.append(update)
    first, second = result  # nothing was learned from risk before the second update
    lam = first.risk.multiplier
    assert lam == second.risk.multiplier > 0.1
    assert torch.equal(first.rollout.reward, second.rollout.reward)
    np.testing.assert_allclose(
        as_array(first.advantage) * (1.0 + lam), as_array(second.advantage), rtol=1e-5, atol=1e-6
    )
    assert first.risk.factor == pytest.approx(lam / (1.0 + lam))


# --- quantities ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("quantity", "steps"), [("step", 1), ("nstep", 3)])
@pytest.mark.spec("X7", "T-C7")
def test_parts_of_episodes_are_taken_from_the_rollout_at_hand(quantity, steps):
    changes = {"risk.cvar_quantity": quantity, "risk.cvar_policy_mode": "state", "target.steps": 3}
    ppo = made(**LIMIT, **changes)
    for _ in range(2):
        update = ppo.update()
    rollout = update.rollout
    samples, columns = oracle.nstep_sums(
        as_array(rollout.reward), rollout.ended.numpy(), (rollout.length == 0).numpy(), steps
    )
    error = risk_oracle.grouped_cvar_error(samples, ALPHA, columns)
    assert update.risk.tail.error == pytest.approx(error)
    assert error != pytest.approx(risk_oracle.empirical_cvar_error(samples, ALPHA), rel=0.02)
    assert update.risk.tail.samples == len(samples)
    assert update.risk.tail.raw == pytest.approx(risk_oracle.empirical_cvar(samples, ALPHA))
    assert update.risk.unit == pytest.approx(max(0.5, oracle.deviation(samples)))
    episodes = ppo.risk.window.sample().tolist()
    assert update.risk.realised == pytest.approx(risk_oracle.empirical_cvar(episodes, ALPHA))
    assert update.risk.realised != pytest.approx(update.risk.tail.raw)


@pytest.mark.parametrize(
    ("quantity", "words"),
    [("step", "single rewards"), ("nstep", "n-step sums"), ("episode_return", "episode returns")],
)
@pytest.mark.spec("X7")
def test_a_tail_is_shown_with_the_name_of_its_quantity(quantity, words):
    place = float(QUANTITIES.index(quantity))
    result = {"train/cvar_empirical": -0.125, "config/cvar_quantity": place}
    assert _words(Progress(1, 10, 100, result, (), None)) == f"CVaR of {words} -0.125"
    assert outcomes(result) == OUTCOMES[int(place)] == words


CLIPPED = {"task.market.reward_clip": 0.1}


@pytest.mark.refusal
@pytest.mark.parametrize("changes", [LIMIT, {"risk.cvar_weight": 0.1}, {"risk.cvar_limit": -0.1}])
@pytest.mark.spec("X7")
def test_a_tail_of_clipped_rewards_is_refused(changes):
    with pytest.raises(ConfigError) as caught:
        settings(**{**changes, **CLIPPED})
    text = str(caught.value)
    assert text[: text.index("; found")] == (
        "`task.market.reward_clip` must be left out with settings of `risk`, not 0.1: a crash of "
        "any size would count as at most the clip, and the tail that is watched and held would be "
        "that of clipped rewards; lower `ppo.learning_rate` if single updates are too large"
    )
    assert text.endswith("[config-inconsistent]")


def test_rewards_are_clipped_where_no_tail_is_watched_and_no_market_played():
    assert settings(**CLIPPED).task.market.reward_clip == 0.1
    other = settings(**{**LIMIT, **CLIPPED, "task.name": "CartPole-v1"})
    assert other.risk.watches


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.toml")), ids=lambda path: path.stem)
def test_no_shipped_settings_watch_a_tail_that_is_clipped(path):
    told = tomllib.loads(path.read_text(encoding="utf-8"))
    if "risk" in told:
        assert "reward_clip" not in told.get("task", {}).get("market", {})


@pytest.mark.spec("X7", "T-C8")
def test_winsorising_pulls_in_both_ends_and_only_when_asked():
    sample = np.random.default_rng(0).standard_t(3, 400)
    tensor = torch.tensor(sample)
    assert winsorised(tensor, 0.0) is tensor
    for percent in (0.1, 1.0, 10.0):
        result = winsorised(tensor, percent).tolist()
        assert result == oracle.winsorised(sample.tolist(), percent)
    ppo = made(**LIMIT, **{"risk.cvar_winsor_pct": 1.5})
    for _ in range(4):
        report = ppo.update().risk
    kept = ppo.risk.window.sample().tolist()
    assert report.tail.raw == pytest.approx(risk_oracle.empirical_cvar(kept, ALPHA))
    pulled = oracle.winsorised(kept, 1.5)
    assert report.tail.empirical == pytest.approx(risk_oracle.empirical_cvar(pulled, ALPHA))


@pytest.mark.spec("X7", "T-C8")
def test_the_multiplier_follows_the_winsorised_estimate_and_both_are_reported():
    """400 outcomes, of which 6 on each side are pulled in; too few outcomes would hide the cut."""
    sample = np.random.default_rng(1).standard_t(3, 400).tolist()
    config = settings(
        **{**LIMIT, "risk.cvar_window": 400, "risk.cvar_winsor_pct": 1.5, "risk.cvar_ema_beta": 0.5}
    )
    ppo = aged(learner(config, told=script(["." * 32])))
    ppo.risk.window.replace(sample)
    report = ppo.update().risk
    plain = risk_oracle.empirical_cvar(sample, ALPHA)
    pulled = risk_oracle.empirical_cvar(oracle.winsorised(sample, 1.5), ALPHA)
    assert pulled - plain > 0.05
    assert (report.tail.raw, report.tail.empirical) == pytest.approx((plain, pulled))
    assert report.average == pytest.approx(pulled)
    assert report.gap == pytest.approx(0.5 - pulled)


def test_an_update_without_any_episode_is_quiet():
    config = settings(**{**LIMIT, "ppo.n_envs": 1, "ppo.batch_size": 1})
    ppo = learner(config, told=script(["." * 32]))
    report = ppo.update().risk
    assert report.tail.samples == 0
    assert not report.tail.is_ready
    assert math.isnan(report.tail.empirical)
    assert math.isnan(report.gap)
    assert math.isnan(report.realised)
    assert (report.multiplier, report.weight, report.source) == (0.0, 0.0, SOURCES[0])
    assert report.unit == 0.5


# --- what changes what is learned ----------------------------------------------------------------


def weights_after(updates, scale="slow", **changes):
    """Return the weights after some updates, with a scale that does not depend on the limit."""
    told = script(weights=(1.0, 0.5), seed=4)
    ppo = aged(learner(settings(**{**changes, "ppo.advantage_scale": scale}), told=told))
    for _ in range(updates):
        ppo.update()
    return {name: tensor.clone() for name, tensor in ppo.agent.state_dict().items()}


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    "changes",
    [
        {**LIMIT, "risk.cvar_limit": -1e3},
        {**FAST, "risk.cvar_limit": 1e3},
        {**BOTH, "risk.cvar_limit": -1e3, "risk.cvar_activation_threshold": 1e3},
        {**BOTH, "risk.cvar_window": 512, "risk.cvar_min_samples": 500},
    ],
    ids=[
        "slack limit",
        "limit without constraint",
        "slack limit and shut gate",
        "too few episodes",
    ],
)
@pytest.mark.parametrize("scale", ["slow", "rollout"])
def test_what_does_not_act_changes_no_bit(changes, scale):
    assert same(weights_after(4, scale), weights_after(4, scale, **changes))


@pytest.mark.parametrize("changes", [LIMIT, BOTH], ids=["constraint", "weight too"])
@pytest.mark.parametrize("mode", ["budget", "state", "episode", "critic_legacy"])
def test_what_acts_changes_what_is_learned(changes, mode):
    assert not same(
        weights_after(4), weights_after(4, **{**changes, "risk.cvar_policy_mode": mode})
    )


def test_statistics_kept_for_a_flat_rollout_are_those_of_the_mixture():
    rollout = {"ppo.advantage_scale": "rollout"}
    ppo = made(**LIMIT, **rollout, **{"ppo.advantage_mode": "previous_stats"})
    for _ in range(3):
        update = ppo.update()
    mean, spread = oracle.weighted(as_array(update.mixed), as_array(update.rollout.weight))
    assert float(ppo.advantage_moments.mean) == pytest.approx(mean, abs=1e-6)
    assert float(ppo.advantage_moments.variance.sqrt()) == pytest.approx(spread, rel=1e-5)


# --- saving --------------------------------------------------------------------------------------


def saved(ppo):
    return copy.deepcopy(learner_state(ppo))


@pytest.mark.parametrize("cut", [1, 3])
def test_a_resumed_control_goes_on_with_window_average_gate_and_multiplier(cut):
    whole, first = made(**BOTH), made(**BOTH)
    for _ in range(6):
        expected = whole.update()
    for _ in range(cut):
        first.update()
    second = made(**BOTH)
    restore_learner(second, saved(first))
    for _ in range(6 - cut):
        result = second.update()
    assert second.risk.state_dict() == whole.risk.state_dict()
    assert torch.equal(result.mixed, expected.mixed)
    assert same(whole.agent.state_dict(), second.agent.state_dict())


def test_a_state_is_plain_json_and_names_its_version():
    ppo = made(**BOTH)
    for _ in range(3):
        ppo.update()
    state = ppo.risk.state_dict()
    assert json.loads(json.dumps(state)) == json.loads(json.dumps(state, allow_nan=False))
    assert state["version"] == 2
    assert set(state) == {"version", "window", "average", "dual", "gate"}
    assert len(state["window"]) == 16


@pytest.mark.refusal
@pytest.mark.parametrize(
    "change",
    [
        {"version": 1},
        {"window": "wide"},
        {"window": [0.0, math.nan]},
        {"dual": None},
        {"more": 1},
    ],
)
def test_a_state_that_this_version_does_not_write_is_refused(change):
    control = RiskControl(settings(**LIMIT))
    with pytest.raises(ArtifactError) as caught:
        control.load_state_dict({**control.state_dict(), **change})
    assert caught.value.wrong == "the saved state of `risk` must be what this version writes"


def test_a_run_with_a_control_and_one_without_are_not_exchanged():
    with_one, without = made(**LIMIT), made()
    for a, b in ((with_one, without), (without, with_one)):
        with pytest.raises(ArtifactError):
            restore_learner(made(**LIMIT) if a is with_one else made(), saved(b))
