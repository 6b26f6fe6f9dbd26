"""Settings of the adversary that cannot work are refused in words."""

import pytest

from stormsail.algorithms.config import TrainConfig
from stormsail.core.errors import ConfigError

REFUSED = {
    "a start where the gradient is 0": (
        {"mode": "kl_reg", "random_init": False},
        "`random_init` must be true for `mode` `kl_reg`, not false: the divergence between a "
        "policy and itself is at its minimum, so its gradient at the observation is exactly 0 and "
        "`pgd` would stay there",
    ),
    "one step from where the gradient is 0": (
        {"mode": "kl_reg", "random_init": False, "attack_method": "fgsm"},
        "is exactly 0 and `fgsm` would stay there",
    ),
    "a start where the gradient is 0, in a rollout": (
        {"mode": "rollout", "random_init": False},
        "`random_init` must be true for `mode` `rollout`, not false: the divergence",
    ),
    "nothing to raise": (
        {"mode": "mixed_batch", "attack_policy": False, "attack_value": False},
        "`attack_policy` or `attack_value` must be true for `mode` `mixed_batch`, not both false: "
        "there would be no loss to raise",
    ),
    "bounds the wrong way round": (
        {"clip_min": 1.0, "clip_max": -1.0},
        "`clip_min` must be below `clip_max`, not 1.0 and -1.0",
    ),
    "bounds of a column the wrong way round": (
        {"bounds": {"log_return*": (1.0, 1.0)}},
        "`bounds` of `log_return*` must be a smaller number and a larger one, not 1.0 and 1.0",
    ),
    "no column": (
        {"features": ()},
        "`features` must name a column or more; leave it out for all of them",
    ),
}


@pytest.mark.refusal
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused(name):
    changes, words = REFUSED[name]
    with pytest.raises(ConfigError) as caught:
        TrainConfig().replace(**{f"adversary.{key}": value for key, value in changes.items()})
    assert words in str(caught.value)


def test_the_noise_of_langevin_dynamics_is_a_start_of_its_own():
    config = TrainConfig().replace(
        **{
            "adversary.mode": "kl_reg",
            "adversary.random_init": False,
            "adversary.attack_method": "sgld",
        }
    )
    assert config.adversary.acts
    assert not TrainConfig().adversary.acts


@pytest.mark.parametrize(
    ("changes", "forges"),
    [
        ({}, False),
        ({"mode": "kl_reg"}, True),
        ({"mode": "kl_reg", "epsilon": 0.0}, False),
        ({"mode": "kl_reg", "epsilon": 0.0, "epsilon_schedule": "linear"}, True),
        ({"mode": "kl_reg", "epsilon_final": 0.0, "epsilon_schedule": "cosine"}, True),
        (
            {
                "mode": "kl_reg",
                "epsilon": 0.0,
                "epsilon_final": 0.0,
                "epsilon_schedule": "linear",
            },
            False,
        ),
        ({"mode": "mixed_batch"}, True),
        ({"mode": "mixed_batch", "adversarial_ratio": 0.0}, False),
        ({"mode": "rollout", "adversarial_ratio": 0.0}, False),
        ({"mode": "rollout", "epsilon": 0.0}, False),
    ],
)
def test_without_a_radius_or_a_share_at_any_time_nothing_is_forged(changes, forges):
    config = TrainConfig().replace(**{f"adversary.{key}": value for key, value in changes.items()})
    assert config.adversary.forges is forges
