"""What a rollout is worth, as one function of tensors, and all that the host asks of it at once.

Estimates, whether everything is finite, and the statistics that the return scale follows are
computed without a host sync; one row of numbers is read.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.update.critic_targets import atom_weights
from stormsail.algorithms.update.estimates import (
    Estimates,
    check_inputs,
    decoded_value,
)
from stormsail.algorithms.update.graphs import waiting_allowed
from stormsail.algorithms.update.nonfinite import (
    check_estimates,
    check_rollout,
    estimate_arrays,
    finite_norms,
    rollout_arrays,
)
from stormsail.algorithms.update.return_statistics import Outcomes, Scale, outcome_moments
from stormsail.algorithms.update.rollout import Rollout
from stormsail.modules.agent import Agent


class Assessment(NamedTuple):
    """Estimates of a rollout and the numbers that the host decides on."""

    estimates: Estimates
    numbers: Tensor
    """float64, in the order that `read` knows."""


class Read(NamedTuple):
    """What the host knows of a rollout."""

    is_finite: bool
    """False also where a norm overflowed: then everything has to be counted."""
    explained_variance: float
    outcomes: Outcomes
    """For the return statistics."""
    scale: Scale
    """Mean and deviation that the critics predict in."""


@torch.no_grad()
def assess(agent: Agent, rollout: Rollout, estimates: Estimates, config: TrainConfig) -> Assessment:
    """Return estimates with the numbers of a rollout; nothing is read and nothing is changed."""
    bootstrap = decoded_value(agent, rollout.next_predicted, config)
    arrays = [*rollout_arrays(rollout), *estimate_arrays(estimates), ("bootstrap", bootstrap)]
    outcomes = estimates.outcomes.flatten(0, 1)
    seen = outcome_moments(outcomes, rollout.weight.flatten(), atom_weights(agent, outcomes))
    scale = agent.return_scale
    numbers = (
        finite_norms([array for _, array in arrays]).all().double(),
        estimates.explained_variance,
        *seen,
        scale.mean,
        scale.std,
    )
    return Assessment(estimates, torch.stack(numbers))


def read(assessment: Assessment) -> Read:
    """Wait for the numbers of an assessment."""
    with waiting_allowed():
        is_finite, explained, count, centre, spread, mean, std = assessment.numbers.tolist()
    return Read(is_finite > 0.0, explained, Outcomes(count, centre, spread), Scale(mean, std))


def check(agent: Agent, rollout: Rollout, estimates: Estimates, config: TrainConfig) -> None:
    """Say what of a rollout and its estimates is not finite.

    Raises:
        DataError: if the task gave it.
        Diverged: if the network made it.
    """
    check_rollout(rollout)
    check_inputs(agent, rollout, config)
    check_estimates(estimates)
