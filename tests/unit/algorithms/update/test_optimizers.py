"""Optimizers as a configuration builds them: the decay and the rates that each gets."""

import copy
import math

import pytest
import torch

from learner_lab import learner, settings
from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.learning import OptimizerConfig
from stormsail.algorithms.run.checkpoint import learner_state, restore_learner
from stormsail.algorithms.update.optimizers import weight_decay
from stormsail.core.errors import ArtifactError, ConfigError

RATE = 0.01


@pytest.mark.parametrize(
    ("kind", "decay"), [("AdaptiveUPGD", 0.0), ("UPGD", 0.0), ("UPGDW", 0.01), ("AdamW", 0.01)]
)
def test_without_a_setting_each_optimizer_has_its_own_decay(kind, decay):
    ppo = learner(settings(optimizer__optimizer_class=kind))
    assert [group["weight_decay"] for group in ppo.optimizer.param_groups] == [decay]
    for given in (0.0, 0.3):
        chosen = OptimizerConfig(optimizer_class=kind, weight_decay=given)
        assert weight_decay(chosen) == given


def stepped(kind):
    """Return weights before and after one step of a learner, and the moments that it left."""
    ppo = learner(
        settings(
            optimizer__optimizer_class=kind, optimizer__sigma=0.0, ppo__learning_rate=RATE,
            ppo__learning_rate_final=RATE, ppo__n_epochs=1, returns__normalize_returns="off",
        )
    )  # fmt: skip
    before = [p.detach().double().clone() for p in ppo.agent.parameters()]
    ppo.update()
    return before, [p.detach().double() for p in ppo.agent.parameters()]


def test_in_the_trainer_upgdw_is_adaptive_upgd_and_its_decay():
    """One step from the same weights and gradients: they differ by lr · wd · p and nothing else."""
    before, plain = stepped("AdaptiveUPGD")
    start, decayed = stepped("UPGDW")
    largest = 0.0
    for first, own, result, other in zip(before, start, decayed, plain, strict=True):
        assert torch.equal(first, own)
        expected = -RATE * 0.01 * first
        difference = result - other
        assert torch.allclose(difference, expected, rtol=0.0, atol=2e-7)
        largest = max(largest, float(difference.abs().max()))
    assert largest == pytest.approx(
        RATE * 0.01 * max(float(p.abs().max()) for p in before), rel=0.2
    )


def test_a_negative_decay_is_refused():
    with pytest.raises(ConfigError, match="weight_decay"):
        TrainConfig().replace(**{"optimizer.weight_decay": -0.1})
    assert math.isclose(
        TrainConfig().replace(**{"optimizer.weight_decay": 0}).optimizer.weight_decay, 0
    )


KINDS = ("AdaptiveUPGD", "UPGD", "UPGDW", "AdamW")


def names_of(ppo, group):
    """Return the names of the weights of a group."""
    own = {id(parameter) for parameter in group["params"]}
    return {name for name, parameter in ppo.agent.named_parameters() if id(parameter) in own}


@pytest.mark.parametrize("trunk", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_critics_take_their_multiple_of_the_rate(kind, trunk):
    ppo = learner(
        settings(
            optimizer__optimizer_class=kind,
            critic__learning_rate_factor=5.0,
            network__enable_critic_lstm=trunk,
        )
    )
    others, critics = ppo.optimizer.param_groups
    everything = {name for name, _ in ppo.agent.named_parameters()}
    heads = ("network.critic.", *(["network.critic_trunk."] if trunk else []))
    assert names_of(ppo, critics) == {name for name in everything if name.startswith(heads)}
    assert names_of(ppo, others) == everything - names_of(ppo, critics)
    assert (others["lr"], critics["lr"]) == (0.01, 0.05)
    assert others["weight_decay"] == critics["weight_decay"] == weight_decay(ppo.config.optimizer)
    ppo._set_rate(0.004)
    assert (others["lr"], critics["lr"]) == (0.004, 0.02)


def test_without_a_factor_there_is_one_group_and_nothing_more_in_it():
    (group,) = learner(settings(critic__learning_rate_factor=1.0)).optimizer.param_groups
    assert "rate_factor" not in group
    assert len(group["params"]) == len(list(learner(settings()).agent.parameters()))


def test_the_schedule_and_a_refused_step_reach_both_rates():
    ppo = learner(
        settings(
            critic__learning_rate_factor=5.0, ppo__learning_rate_final=0.0, ppo__total_steps=640
        )
    )
    ppo.update()
    ppo.rate_factor = 0.5
    ppo.update()  # 64 of 640 rows are done: nine tenths of the rate, halved
    others, critics = ppo.optimizer.param_groups
    assert others["lr"] == pytest.approx(0.01 * 0.9 * 0.5, rel=1e-12)
    assert critics["lr"] == pytest.approx(5.0 * others["lr"], rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_one_step_of_the_critics_is_as_many_times_as_long(kind):
    """The same gradients: heads move by five times as much, decay included, all else as before."""

    def moved(factor):
        ppo = learner(
            settings(
                optimizer__optimizer_class=kind, optimizer__sigma=0.0, ppo__learning_rate=1e-3,
                ppo__learning_rate_final=1e-3, ppo__n_epochs=1, returns__normalize_returns="off",
                critic__learning_rate_factor=factor,
            )
        )  # fmt: skip
        before = {name: p.detach().double().clone() for name, p in ppo.agent.named_parameters()}
        ppo.update()
        after = dict(ppo.agent.named_parameters())
        return {name: after[name].detach().double() - old for name, old in before.items()}

    plain, fast = moved(1.0), moved(5.0)
    for name, step in plain.items():
        factor = 5.0 if name.startswith("network.critic.") else 1.0
        assert torch.allclose(fast[name], factor * step, rtol=1e-3, atol=1e-6), name
    assert max(float(step.abs().max()) for step in plain.values()) > 5e-5


@pytest.mark.parametrize("kind", ["AdaptiveUPGD", "AdamW"])
def test_a_checkpoint_of_two_rates_continues_to_the_bit(kind):
    config = settings(optimizer__optimizer_class=kind, critic__learning_rate_factor=5.0)
    first = learner(config)
    first.update()
    again = learner(config)
    restore_learner(again, copy.deepcopy(learner_state(first)))
    assert [group.get("rate_factor", 1.0) for group in again.optimizer.param_groups] == [1.0, 5.0]
    first.update()
    again.update()
    for own, other in zip(first.agent.parameters(), again.agent.parameters(), strict=True):
        assert torch.equal(own, other)


@pytest.mark.refusal
def test_the_optimizer_of_another_factor_is_refused():
    first = learner(settings(critic__learning_rate_factor=5.0))
    first.update()
    for factor in (1.0, 2.0):
        with pytest.raises(ArtifactError):
            restore_learner(learner(settings(critic__learning_rate_factor=factor)),
                            learner_state(first))  # fmt: skip
