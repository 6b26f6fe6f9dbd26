"""Which bound acts, and how often: shares of a batch whose every pair is known."""

import dataclasses

import pytest
import torch

from learner_lab import CRITICS, FEATURES, learner, settings
from stormsail.algorithms.telemetry.metrics import metrics
from stormsail.algorithms.update.epochs import EpochReport, Minibatches
from stormsail.algorithms.update.losses import Batch, batch_sums
from stormsail.algorithms.update.schedules import Scheduled

NOW = Scheduled(
    learning_rate=1e-3, clip_range=0.2, vf_coef=1.0, bc_coef=0.0, ent_coef=0.0, kl_beta=0.0,
    clips_values=True, trains_policy=True,
)  # fmt: skip
QUANTILES = (-1.0, 0.0, 1.0, 2.0)
WEIGHT = ((1.0, 0.5), (0.0, 2.0))
TARGET = (((0.0, 0.5), (10.0, 10.0)), ((50.0, 50.0), (-10.0, -10.0)))
MOVED = (((0.0, -1.0), (1.0, 1.0)), ((1.0, 1.0), (1.0, -1.0)))
"""How far each critic's distribution lies above its old one; the band is a quarter."""

PAIRS = 25 / 28
"""With a threshold of 0.5, of the eight pairs of each sample: at weight 1 the target 0 is beyond it
for -1, 1 and 2, and 0.5 for -1 and 2 (0 and 1 lie on it): 5/8. At weights 0.5 and 2 all of them."""

HELD = 4 / 7
"""Of two critics: at weight 1 the second is held above its distribution and further from the
target, the first did not move. At 0.5 both are held below, away from a high target. At 2 the target
is low: the first is held below and costs less so, the second is held above and costs more."""


def planted(kappa=0.5):
    """Return a learner whose critics both say the same four quantiles of every state."""
    ppo = learner(settings(critic__num_quantiles=4, critic__huber_kappa=kappa,
                           value_clip__clip_range_vf=0.25))  # fmt: skip
    update = ppo.update()
    with torch.no_grad():
        for last in ppo.agent.network.critic.last_layers():
            last.weight.zero_()
            last.bias.copy_(torch.tensor(QUANTILES))
    return ppo, update


def batch_of(ppo):
    weight = torch.tensor(WEIGHT)
    observation = torch.zeros(2, 2, len(FEATURES))
    memory, reset = ppo.agent.initial_memory(2), torch.zeros(2, 2, dtype=torch.bool)
    with torch.no_grad():
        output = ppo.agent.network(observation, memory, reset)
        action = torch.zeros(2, 2, dtype=torch.int64)
        log_prob = ppo.agent.network.head.log_prob(output.actor, action)
    assert output.critic.tolist() == [[[list(QUANTILES)] * 2] * 2] * 2
    return Batch(
        observation=observation, memory=memory, reset=reset, raw_action=action,
        log_prob=log_prob, parameters=output.actor, weight=weight,
        mask=torch.ones(2, 2, 0, dtype=torch.bool),
        predicted=output.critic - torch.tensor(MOVED)[..., None],
        advantage=torch.zeros(2, 2), target=torch.tensor(TARGET), options=torch.zeros(2, 2, 0),
    )  # fmt: skip


def reported(ppo, update, *batches, now=NOW):
    """Return the metrics of an update that learned from these batches."""
    source = torch.Generator().manual_seed(0)
    like = update.learned.minibatches[0]
    result = [batch_sums(ppo.agent, batch, now, ppo.config, source) for batch in batches]
    reports = [like._replace(sums=sums) for sums in result]
    learned = EpochReport(Minibatches.of(reports), 1, "", [0.0] * len(reports))
    return metrics(ppo, dataclasses.replace(update, learned=learned))


@pytest.mark.spec("S4-V7", "T-M2")
def test_shares_of_pairs_and_of_held_predictions_are_those_of_the_batch():
    ppo, update = planted()
    row = reported(ppo, update, batch_of(ppo))
    assert row["train/clip_active_frac/quantile"] == PAIRS
    assert row["train/clip_active_frac/vf"] == HELD
    assert row["train/clip_active_frac/ratio"] == 0.0
    assert row["train/clip_dominant"] == 2.0  # held predictions, (4/7) / 0.3, not pairs


@pytest.mark.spec("S4-V7")
def test_the_share_of_pairs_is_that_of_all_critics():
    ppo, update = planted()
    batch = batch_of(ppo)
    with torch.no_grad():  # a second critic whose every pair lies beyond the threshold
        ppo.agent.network.critic.last_layers()[1].bias.add_(100.0)
    row = reported(ppo, update, batch)
    assert row["train/clip_active_frac/quantile"] == pytest.approx((PAIRS + 1.0) / 2.0, rel=1e-6)


@pytest.mark.spec("S4-V7")
@pytest.mark.parametrize("size", [2.0**-16, 2.0**-12, 0.5])
def test_the_spread_of_ratios_does_not_cancel(size):
    """Ratios e^l of l = size, -size, size with weights 1, 0.5, 2: (3 - 0.5) / 3.5 is their mean."""
    ppo, update = planted()
    batch = batch_of(ppo)
    moved = torch.tensor([[1.0, -1.0], [7.0, 1.0]]) * size  # the third has no weight
    old = batch.log_prob - moved
    row = reported(ppo, update, dataclasses.replace(batch, log_prob=old))
    log_ratio = (batch.log_prob - old).double()[batch.weight > 0.0]  # as float32 has them
    weight = batch.weight[batch.weight > 0.0].double() / 3.5
    excess = log_ratio.expm1()
    mean = (weight * excess).sum()
    spread = (weight * (excess - mean).square()).sum().sqrt()
    assert row["train/ratio_std"] == pytest.approx(float(spread), rel=1e-4)
    assert row["train/ratio_mean"] - 1.0 == pytest.approx(float(mean), rel=1e-5)


@pytest.mark.spec("S4-V7")
@pytest.mark.parametrize("critic", ["quantile", "scalar"])
def test_a_disabled_clip_learns_what_no_clip_does(critic):
    off, disabled, on = (
        learner(settings(**CRITICS[critic], ppo__n_epochs=3, **changes))
        for changes in (
            {},
            {
                "value_clip__clip_range_vf": 1e-3,
                "value_clip__distributional_vf_clip_mode": "disable",
            },
            {"value_clip__clip_range_vf": 1e-3},
        )
    )
    rows = [metrics(ppo, ppo.update()) for ppo in (off, disabled, on)]
    assert [row["train/vf_clip_active"] for row in rows] == [0.0, 0.0, 1.0]
    assert [row["train/vf_clip_ev_gate_active"] for row in rows] == [0.0, 0.0, 0.0]
    acting = {"quantile": 1.0, "scalar": 4.0}[critic]
    assert [row["config/vf_clip_mode"] for row in rows] == [0.0, 0.0, acting]
    states = [ppo.agent.state_dict() for ppo in (off, disabled, on)]
    equal = [
        all(torch.equal(value, other[name]) for name, value in states[0].items())
        for other in states[1:]
    ]
    assert equal == [True, False]


@pytest.mark.spec("S4-V7")
def test_shares_of_several_minibatches_are_weighted_by_what_they_used():
    ppo, update = planted()
    first = batch_of(ppo)
    weight = torch.tensor([[4.5, 0.0], [0.0, 0.0]])
    row = reported(ppo, update, first, dataclasses.replace(first, weight=weight))
    assert row["train/clip_active_frac/quantile"] == (3.125 + 4.5 * 0.625) / 8.0
    assert row["train/clip_active_frac/vf"] == (2.0 + 4.5 * 0.5) / 8.0


@pytest.mark.spec("S4-V7")
def test_where_nothing_is_held_no_share_is():
    ppo, update = planted()
    still = NOW._replace(clips_values=False)
    assert reported(ppo, update, batch_of(ppo), now=still)["train/clip_active_frac/vf"] == 0.0
    here = batch_of(ppo)
    unmoved = dataclasses.replace(here, predicted=here.predicted + torch.tensor(MOVED)[..., None])
    assert reported(ppo, update, unmoved)["train/clip_active_frac/vf"] == 0.0


@pytest.mark.parametrize(
    ("kappa", "share"), [(0.0, 27 / 28), (0.25, 27 / 28), (1.5, 0.75), (20.0, 0.0)]
)
@pytest.mark.spec("S4-V7")
def test_the_share_of_pairs_follows_the_threshold(kappa, share):
    ppo, update = planted(kappa)
    row = reported(ppo, update, batch_of(ppo))
    assert row["train/clip_active_frac/quantile"] == share


@pytest.mark.parametrize("critic", ["categorical", "scalar"])
@pytest.mark.spec("S4-V7")
def test_critics_without_quantiles_have_no_pairs(critic):
    ppo = learner(settings(**CRITICS[critic]))
    assert metrics(ppo, ppo.update())["train/clip_active_frac/quantile"] == 0.0
