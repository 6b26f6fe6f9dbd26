"""Tail of the present policy's outcomes, estimated from remembered draws."""

from typing import Any

import torch
from torch import Tensor

from stormsail.algorithms.config import RiskConfig
from stormsail.algorithms.risk.draws import DrawMemory
from stormsail.algorithms.risk.report import NOTHING, Tail
from stormsail.algorithms.update.graphs import waiting_allowed
from stormsail.core.task import Task, draw_places, episode_steps
from stormsail.functional import risk

REACH = 2
"""Lengths of an episode within which two are near each other where they share draws: one alone
would count two that share half of their bars by half of what they share."""


def measure_tail(
    draws: DrawMemory,
    task: Task[Any],
    kind: type[tuple[Tensor, ...]],
    config: RiskConfig,
    *,
    since: int,
) -> Tail:
    """Return the tail over all remembered draws.

    Args:
        draws: with the newest outcome of each.
        task: of the episodes.
        kind: of its states.
        config: of the run.
        since: first update whose outcomes count as those of the present policy.
    """
    if len(draws) == 0:  # none has a score: nothing limits the tail, or not yet
        return NOTHING._replace(spread=draws.spread())
    alpha = config.cvar_alpha
    sample = draws.sample(alpha, since=since)
    cvar = risk.empirical_cvar(sample.result, alpha=alpha, weight=sample.weight)
    level = risk.weighted_value_at_risk(sample.result, sample.weight, alpha=alpha)
    error = risk.stratified_cvar_error(
        sample.result,
        sample.weight,
        sample.is_risky,
        alpha=alpha,
        level=level,
        draws=len(draws),
        place=draw_places(task, kind(*sample.state)),
        reach=REACH * (episode_steps(task) or 1),
    )
    mean = (sample.result * sample.weight).sum()
    variance = (sample.weight * (sample.result - mean).square()).sum()
    with waiting_allowed():
        numbers = torch.stack((cvar, level, error, variance.sqrt())).tolist()
    return Tail(
        samples=len(sample.result),
        is_ready=len(draws) >= config.least_samples,
        raw=numbers[0],
        empirical=numbers[0],
        error=numbers[2],
        level=numbers[1],
        spread=numbers[3],
    )
