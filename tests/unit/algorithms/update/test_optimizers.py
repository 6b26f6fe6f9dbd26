"""Optimizers as a configuration builds them: the decay that each gets."""

import math

import pytest
import torch

from learner_lab import learner, settings
from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.learning import OptimizerConfig
from stormsail.algorithms.update.optimizers import weight_decay
from stormsail.core.errors import ConfigError

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
