"""What a rollout is worth, as one function of tensors, and all that the host asks of it.

Estimates, whether everything is finite, and the statistics that the return scale follows are
computed without a host sync. Where the epochs of an update are read at once, so are these numbers:
what is not finite is a veto on the device, under which nothing changes, until the host knows of it.
Last the training sequences that are made from a rollout so assessed.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.update.critic_targets import atom_weights
from stormsail.algorithms.update.estimates import (
    Estimates,
    Normalised,
    check_inputs,
    decoded_value,
)
from stormsail.algorithms.update.graphs import waiting_allowed
from stormsail.algorithms.update.losses import Batch
from stormsail.algorithms.update.nonfinite import (
    check_estimates,
    check_rollout,
    estimate_arrays,
    finite_norms,
    rollout_arrays,
)
from stormsail.algorithms.update.return_statistics import Outcomes, outcome_moments
from stormsail.algorithms.update.rollout import Rollout, cut_rows, sequences
from stormsail.functional.advantage import RunningMoments
from stormsail.modules.agent import Agent


class Assessment(NamedTuple):
    """Estimates of a rollout, and numbers of it that nothing has waited for."""

    estimates: Estimates
    sound: Tensor
    """Whether all of it is finite, a flag; where it is not, nothing may change."""
    outcomes: Outcomes
    """For the return statistics."""

    @property
    def numbers(self) -> Tensor:
        """What the host decides on, float64, in the order that `known_from` knows."""
        return torch.stack((self.sound.double(), self.estimates.explained_variance))


class Read(NamedTuple):
    """What the host knows of a rollout."""

    is_finite: bool
    explained_variance: float


@torch.no_grad()
def assess(agent: Agent, rollout: Rollout, estimates: Estimates, config: TrainConfig) -> Assessment:
    """Return estimates with the numbers of a rollout; nothing is read and nothing is changed."""
    bootstrap = decoded_value(agent, rollout.next_predicted, config)
    arrays = [*rollout_arrays(rollout), *estimate_arrays(estimates), ("bootstrap", bootstrap)]
    outcomes = estimates.outcomes.flatten(0, 1)
    return Assessment(
        estimates=estimates,
        sound=finite_norms([array for _, array in arrays]).all(),
        outcomes=outcome_moments(outcomes, rollout.weight.flatten(), atom_weights(agent, outcomes)),
    )


def known_from(numbers: Tensor) -> Read:
    """Return what the numbers of an assessment say, once they are on the host."""
    is_finite, explained = numbers.tolist()
    return Read(is_finite > 0.0, explained)


def read(assessment: Assessment) -> Read:
    """Wait for the numbers of an assessment."""
    with waiting_allowed():
        return known_from(assessment.numbers.cpu())


def check(agent: Agent, rollout: Rollout, estimates: Estimates, config: TrainConfig) -> None:
    """Say what of a rollout and its estimates is not finite.

    Raises:
        DataError: if the task gave it.
        Diverged: if the network made it.
    """
    check_rollout(rollout)
    check_inputs(agent, rollout, config)
    check_estimates(estimates)


class Unprepared(NamedTuple):
    """What training sequences are made from."""

    rollout: Rollout
    assessment: Assessment
    mixed: Tensor
    """Advantages with the risk advantage, in reward units, [T, B]."""
    options: Tensor | None
    """Of every action, [T, B, K]; None where only those of taken ones are known."""
    moments: RunningMoments | None
    """Of advantages of earlier rollouts."""
    warming: bool
    """Whether the support of a categorical critic is that of a warm-up."""
    has_stepped: bool
    """Whether the optimizer has a state."""


class Prepared(NamedTuple):
    """Training sequences, and what they are encoded with."""

    normal: Normalised
    target: Tensor
    """Encoded, [T, B, M]."""
    predicted: Tensor
    """By the critics during the rollout, encoded with the new scale, [T, B, C, W]."""
    scale: tuple[Tensor, Tensor]
    """Mean and deviation of both."""
    data: Batch


def training_batch(
    rollout: Rollout,
    predicted: Tensor,
    advantage: Tensor,
    target: Tensor,
    options: Tensor | None,
    config: TrainConfig,
) -> Batch:
    """Return all training sequences of a rollout.

    Args:
        rollout: the transitions.
        predicted: by the critics during the rollout, encoded as the targets are, [T, B, C, W].
        advantage: normalised, [T, B].
        target: encoded, [T, B, M].
        options: advantage of every action, [T, B, K]; None where only taken ones are known.
        config: of the run.
    """
    if options is None:
        options = advantage.new_empty(*advantage.shape, 0)
    length = config.ppo.sequence_length or config.ppo.n_steps
    cut = sequences(rollout, length)
    others = {
        "predicted": predicted,
        "advantage": advantage,
        "target": target,
        "options": options.to(advantage.dtype),
    }
    return Batch(
        observation=cut.observation,
        memory=cut.memory,
        reset=cut.reset,
        raw_action=cut.raw_action,
        log_prob=cut.log_prob,
        parameters=cut.parameters,
        mask=cut.mask,
        weight=cut.weight,
        **{name: cut_rows(value, length) for name, value in others.items()},
    )
