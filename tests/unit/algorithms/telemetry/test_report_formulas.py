"""What a report says where formulas part: k3 or k1, unknown or zero, what counts or everything."""

import dataclasses
import math

import pytest
import torch

from learner_lab import NUMBERS, aged, learner, script, settings
from stormsail.algorithms.telemetry import learning
from stormsail.algorithms.telemetry.metrics import metrics
from stormsail.algorithms.update.epochs import Minibatches


def summed(update, **sums):
    """Return the update as if its first minibatch had been all, with these sums."""
    first = update.learned.minibatches[0]
    planted = {name: torch.tensor(float(value)) for name, value in sums.items()}
    report = first._replace(sums=first.sums._replace(**planted))
    return dataclasses.replace(
        update, learned=dataclasses.replace(update.learned, minibatches=Minibatches.of([report]))
    )


@pytest.mark.spec("S3-2")
@pytest.mark.parametrize("larger", ["returns", "value"])
def test_the_reported_floor_is_the_resolution_of_what_counts(larger):
    """8 eps32 times the larger of returns and values, over rows with weight alone."""
    ppo = aged(learner())
    update = ppo.update()
    weight = torch.ones_like(update.rollout.weight)
    weight[0] = 0.0
    parts = {"returns": torch.full_like(weight, 3.0), "value": torch.full_like(weight, 2.0)}
    parts[larger][1] = -4096.0
    parts[larger][0] = 1e9  # of a row that does not count
    changed = dataclasses.replace(
        update,
        mixed=torch.ones_like(weight),  # without any spread
        rollout=dataclasses.replace(update.rollout, weight=weight),
        estimates=dataclasses.replace(update.estimates, **parts),
    )
    row = metrics(ppo, changed)
    assert row["train/advantages_std_raw"] == 0.0
    assert row["train/advantages_std_clamped"] == pytest.approx(8.0 * 2.0**-23 * 4096.0, rel=1e-9)


@pytest.mark.spec("X16")
def test_the_divergence_is_k3_and_the_raw_one_k1():
    ppo = aged(learner())
    row = metrics(ppo, summed(ppo.update(), weight=4, kl=0.6, log_ratio=1.0, analytic_kl=0.8))
    assert row["train/approx_kl"] == pytest.approx(0.15, rel=1e-6)
    assert row["train/approx_kl_raw"] == pytest.approx(-0.25, rel=1e-6)
    assert row["train/kl_analytic"] == pytest.approx(0.2, rel=1e-6)


@pytest.mark.spec("X16")
def test_the_reported_penalty_is_in_closed_form():
    """As in the loss: k1 would be -0.25 here, a penalty that rewards."""
    ppo = aged(learner())
    update = ppo.update()
    update = dataclasses.replace(update, now=update.now._replace(kl_beta=0.5))
    update = summed(update, weight=4, kl=0.6, log_ratio=1.0, analytic_kl=0.8)
    values = learning.losses(ppo, update, learning.summed(update.learned.minibatches))
    assert float(values["train/policy_loss_kl_penalty"]) == pytest.approx(0.5 * 0.2, rel=1e-6)


@pytest.mark.spec("X16")
def test_a_beta_policy_reports_its_divergence():
    ppo = aged(learner(settings(policy__distribution="beta"), actions=NUMBERS))
    row = metrics(ppo, ppo.update())
    # both of the policy's own rollout: one step has been taken since for neither
    assert row["train/kl_analytic"] == pytest.approx(0.0, abs=1e-6)
    assert row["train/approx_kl"] == pytest.approx(0.0, abs=1e-6)
    assert row["debug/nonfinite_metrics"] == 0.0


FLAT = {"ppo__gamma": 0.0, "target__steps": 1}
"""Every return is its reward."""


@pytest.mark.spec("X19")
def test_an_unknown_explained_variance_is_unknown_everywhere():
    """Equal rewards leave nothing to explain: NaN in each report, and no gate opens on it."""
    told = script()
    told.reward.fill_(0.25)
    config = settings(**FLAT, value_clip__clip_range_vf=0.2, value_clip__vf_clip_threshold_ev=-1e9)
    ppo = aged(learner(config, told=told))
    update = ppo.update()
    row = metrics(ppo, update)
    names = ("explained_variance", "ev/global", "ev/mean_grouped", "ev/median_grouped", "ev/corr")
    assert {name: math.isnan(row[f"train/{name}"]) for name in names} == dict.fromkeys(names, True)
    assert math.isnan(ppo.explained_variance)
    assert not ppo.schedule().clips_values
    assert row["debug/nonfinite_metrics"] == 0.0


@pytest.mark.spec("X19")
def test_groups_without_spread_do_not_count_in_the_mean_of_the_groups():
    """Two groups, one of equal returns: the mean is that of the other one, not half of it."""
    ppo = aged(learner())
    update = ppo.update()
    weight = torch.ones_like(update.rollout.weight)
    symbol = torch.zeros_like(update.rollout.length)
    symbol[1::2] = 1
    target = torch.arange(float(weight.numel())).reshape(weight.shape)
    value = 0.5 * target  # explains three quarters
    target = torch.where(symbol == 1, 3.0, target)
    info = {**update.rollout.info, "symbol": symbol}
    changed = dataclasses.replace(
        update,
        rollout=dataclasses.replace(update.rollout, weight=weight, info=info),
        estimates=dataclasses.replace(update.estimates, returns=target, value=value),
    )
    row = metrics(ppo, changed)
    assert row["train/ev/mean_grouped"] == pytest.approx(0.75, rel=1e-6)
    assert row["train/ev/median_grouped"] == pytest.approx(0.75, rel=1e-6)
