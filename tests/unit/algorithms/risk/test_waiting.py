"""What waits: multiplier and ramp, until there are enough outcomes and a policy that can answer."""

import math

import pytest

from learner_lab import aged, learner, script, settings
from oracles import risk as risk_oracle
from oracles import risk_control as oracle

ALPHA, LIMIT, RAMP = 0.3, 0.5, 3
TAIL = {
    "risk.cvar_alpha": ALPHA,
    "risk.cvar_min_samples": 12,  # the first rollout of the script ends 11 episodes
    "risk.cvar_min_tail_samples": 2,
    "risk.cvar_window": 128,
    "risk.cvar_activation_threshold": -100.0,
    "risk.cvar_use_constraint": True,
    "risk.cvar_limit": LIMIT,
    "risk.cvar_weight": 0.4,
    "risk.cvar_ramp_updates": RAMP,
    "risk.cvar_cap": 1e9,
}


def played(count, **changes):
    """Return a learner, its updates, and the outcomes that were there after each."""
    ppo = aged(learner(settings(**{**TAIL, **changes}), told=script(weights=(1.0, 0.5), seed=4)))
    updates, outcomes, so_far = [], [], []
    for _ in range(count):
        update = ppo.update()
        updates.append(update)
        rollout = update.rollout
        so_far += oracle.finished(
            rollout.return_so_far.double().numpy(),
            rollout.reward.double().numpy(),
            rollout.ended.numpy(),
        )
        outcomes.append(list(so_far))
    return ppo, updates, outcomes


def gaps_and_units(outcomes, *, first, beta=0.5):
    """Return limit minus moving average and the unit for each update from `first` on."""
    tails = [risk_oracle.empirical_cvar(kept, ALPHA) for kept in outcomes[first:]]
    units = [max(LIMIT, oracle.deviation(kept)) for kept in outcomes[first:]]
    return [
        LIMIT - oracle.moving_average(tails[: k + 1], beta)[-1] for k in range(len(tails))
    ], units


def test_neither_multiplier_nor_ramp_moves_while_only_critics_learn():
    """Three updates of critics alone; the first of them has too few episodes besides.

    The window fills and the average follows what happens all the while. Multiplier and ramp then
    begin as if the policy's first update were the first: no integral and no ramp from before.
    """
    ppo, updates, outcomes = played(6, **{"ppo.critic_grad_warmup_updates": 3})
    reports = [update.risk for update in updates]
    assert [len(kept) for kept in outcomes[:3]] == [11, 21, 32]
    assert [report.tail.samples for report in reports] == [len(kept) for kept in outcomes]
    assert [report.tail.is_ready for report in reports] == [False, True, True, True, True, True]
    gaps, units = gaps_and_units(outcomes, first=1)
    assert [report.gap for report in reports[1:]] == pytest.approx(gaps, abs=1e-9)
    assert [report.average for report in reports[1:]] == pytest.approx(
        [LIMIT - gap for gap in gaps], abs=1e-9
    )
    felt = [gap / unit for gap, unit in zip(gaps, units, strict=True)][2:]
    assert min(felt) > 0.1  # the limit is broken, so a multiplier that moved would be seen
    assert [report.multiplier for report in reports] == pytest.approx(
        [0.0, 0.0, 0.0, *oracle.pid_dual(felt, 0.5, 0.02, 0.0, 2.0)], abs=1e-9
    )
    assert ppo.risk.dual.integral == pytest.approx(sum(felt), abs=1e-9)
    assert [report.share for report in reports] == [0.0, 0.0, 0.0, 1 / 3, 2 / 3, 1.0]
    assert [report.weight for report in reports] == pytest.approx(
        [0.0, 0.0, 0.0, 0.4 / 3, 0.8 / 3, 0.4]
    )
    assert ppo.risk.gate.updates == 3
    assert [report.source for report in reports] == ["none"] * 3 + ["empirical"] * 3
    for update in updates[:3]:
        assert update.mixed is update.estimates.raw_advantage


@pytest.mark.parametrize("predicted", [False, True], ids=["what happened", "what was foretold"])
def test_before_there_are_enough_episodes_only_the_window_moves(predicted):
    """30 are asked for, 10 or 11 end in a rollout. What critics predict is there, and waits."""
    changes = {"risk.cvar_min_samples": 30, "risk.cvar_use_predicted_for_dual": predicted}
    ppo, updates, outcomes = played(4, **changes)
    reports = [update.risk for update in updates]
    assert [report.tail.samples for report in reports[:3]] == [11, 21, 32]
    for report in reports[:2]:
        assert not report.tail.is_ready
        assert math.isnan(report.average)
        assert math.isfinite(report.predicted)
        gap = LIMIT - report.predicted if predicted else math.nan
        assert report.gap == pytest.approx(gap, nan_ok=True)
        assert (report.multiplier, report.share, report.weight) == (0.0, 0.0, 0.0)
        assert report.source == "none"
    assert [report.share for report in reports[2:]] == [1 / 3, 2 / 3]
    assert ppo.risk.gate.updates == 2
    if predicted:
        gaps = [LIMIT - report.predicted for report in reports[2:]]
        units = [max(LIMIT, oracle.deviation(kept)) for kept in outcomes[2:]]
    else:
        gaps, units = gaps_and_units(outcomes, first=2)
    felt = [gap / unit for gap, unit in zip(gaps, units, strict=True)]
    assert min(felt) > 0.1
    assert [report.multiplier for report in reports[2:]] == pytest.approx(
        oracle.pid_dual(felt, 0.5, 0.02, 0.0, 2.0), abs=1e-9
    )


def test_a_multiplier_that_stands_acts_in_an_update_that_teaches_no_policy():
    """It stays what it was, to the bit, and so does the share of the ramp."""
    ppo, updates, _ = played(3)
    last = updates[-1]
    before, share = ppo.risk.dual.state(), last.risk.share
    report = ppo.risk.act(last.rollout, last.estimates, 0.9, ppo.agent, trains_policy=False)
    assert ppo.risk.dual.state() == before
    assert (report.multiplier, report.share, ppo.risk.gate.updates) == (
        before.multiplier, share, 2,
    )  # fmt: skip
    assert before.multiplier > 0.1
    assert report.factor == pytest.approx(
        (0.4 * share + before.multiplier) / (1.0 + before.multiplier)
    )
    assert len(ppo.risk.window) == last.risk.tail.samples + 11
