"""Return and CVaR of an agent against the radius of each attack, paired with its clean episodes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from stormsail.core.errors import ChoiceError, ConfigError, nearest
from stormsail.core.files.documents import JsonValue
from stormsail.core.generators import Generators
from stormsail.core.task import Task
from stormsail.evaluation.attack.adversary import LearnedAttack
from stormsail.evaluation.attack.attackers import (
    Attacker,
    GradientAttack,
    RandomAttack,
    policy_divergence,
    value_loss,
)
from stormsail.evaluation.attack.columns import Ball
from stormsail.evaluation.attack.episodes import run_attacked
from stormsail.evaluation.stats.paired import mean_interval
from stormsail.evaluation.stats.tail_intervals import (
    Estimate,
    cvar_change,
    cvar_estimate,
    mean_estimate,
)
from stormsail.modules.agent import Agent

CLEAN = "clean"
"""Name of the row without an attack."""

LEARNED = "learned"

ATTACKS = ("random", "mad", "critic", "pgd", LEARNED)
"""Names of the attacks, from the cheapest to the dearest."""

ASCENTS = {"mad": (policy_divergence, 10, 1), "critic": (value_loss, 10, 1),
           "pgd": (policy_divergence, 40, 4)}  # fmt: skip
"""Objective, steps and random starts of the attacks by gradient ascent."""

Fit = Callable[[Ball], Agent]
"""Trains an adversary of the agent for a ball, in an `AdversaryTask`."""


class AttackRow(NamedTuple):
    """Episodes under one attack with one radius."""

    attack: str
    epsilon: float
    returns: tuple[float, ...]
    """One for each episode, in the order of the environments."""
    changed: float
    """How much of the decisions was changed, see `episodes.action_change`."""
    unfinished: int
    """Episodes that were cut off."""


def attack_row(
    task: Task[Any],
    agent: Agent,
    columns: Sequence[str],
    *,
    attack: str,
    epsilon: float,
    norm: str = "linf",
    seed: int = 0,
    fit: Fit | None = None,
    units: Mapping[str, float] | None = None,
) -> AttackRow:
    """Run one episode in every environment of a task under one attack.

    Starts, the agent's draws and the attack's own draws are streams of their own, all derived from
    the seed: rows of one seed belong together, episode by episode, and the row of `clean`, or of
    any attack with radius 0, is that of an evaluation without an attack.

    Args:
        task: of the agent; its batch is the number of episodes.
        agent: is attacked; it acts by the policy that it was judged by.
        columns: names of the columns that are forged.
        attack: `clean` or one of `ATTACKS`.
        epsilon: radius, see `Ball.epsilon`.
        norm: `linf` or `l2`.
        seed: of everything random.
        fit: trains the adversary of `learned` for a ball; no other attack needs it.
        units: of the radius, see `Ball.of`.

    Raises:
        ChoiceError: if there is no such attack or norm.
        RangeError: if the radius is no finite number of at least 0.
        ConfigError: if an adversary must be trained and `fit` is missing.
    """
    check_attack(attack, (CLEAN, *ATTACKS))
    generators = Generators(seed, task.device)
    radius = 0.0 if attack == CLEAN else epsilon
    ball = Ball.of(agent, columns, epsilon=radius, norm=norm, units=units)
    episodes = run_attacked(
        task,
        agent,
        ball,
        _attacker(attack, agent, ball, generators.stream(f"attack.{attack}"), fit),
        starts=generators.stream("attack.starts"),
        policy=agent.judged_policy,
        actions=generators.stream("attack.actions"),
    )
    return AttackRow(
        attack=attack,
        epsilon=ball.epsilon,
        returns=tuple(episodes.returns.tolist()),
        changed=episodes.changed,
        unfinished=episodes.unfinished,
    )


def _attacker(
    attack: str, agent: Agent, ball: Ball, draws: torch.Generator, fit: Fit | None
) -> Attacker:
    # of radius 0 every attack is the same, and nothing is to be searched for
    if attack in (CLEAN, "random") or ball.epsilon == 0.0:
        return RandomAttack(ball, draws)
    if attack in ASCENTS:
        objective, steps, starts = ASCENTS[attack]
        return GradientAttack(agent, ball, draws, objective, steps, starts)
    if fit is None:
        raise ConfigError(
            "config-inconsistent",
            wrong="the attack `learned` must have a function that trains the adversary",
            found="none",
            remedy="Pass `fit`.",
        )
    return LearnedAttack(fit(ball), ball)


def check_attack(name: str, known: Sequence[str] = ATTACKS) -> None:
    """Refuse the name of no attack.

    Raises:
        ChoiceError: if it is none of the known ones.
    """
    if name not in known:
        near = nearest(name, known)
        raise ChoiceError(
            wrong=f"an attack must be one of {', '.join(known)}",
            found=f"`{name}`",
            remedy=f"Did you mean `{near}`?" if near else "Name one of these.",
        )


class Point(NamedTuple):
    """One point of a curve."""

    attack: str
    epsilon: float
    mean: Estimate
    """Mean return."""
    cvar: Estimate
    """Mean of the worst share alpha of the returns."""
    mean_change: Estimate
    """Mean return minus the clean one, paired by episodes."""
    cvar_change: Estimate
    """CVaR minus the clean one, paired by episodes."""
    changed: float
    """How much of the decisions was changed."""
    unfinished: int

    def document(self) -> dict[str, JsonValue]:
        """Return it as plain data; what is not finite is None."""
        document: dict[str, JsonValue] = {"attack": self.attack, "epsilon": self.epsilon}
        for name in ("mean", "cvar", "mean_change", "cvar_change"):
            estimate: Estimate = getattr(self, name)
            document[name] = {key: _finite(value) for key, value in estimate._asdict().items()}
        return {**document, "changed": self.changed, "unfinished": self.unfinished}


def curve(clean: AttackRow, rows: Sequence[AttackRow], *, alpha: float) -> list[Point]:
    """Return a point for the clean row and for each attacked one, in this order.

    Args:
        clean: episodes without an attack.
        rows: of the same agent, task, seed and number of episodes.
        alpha: share of worst episodes in CVaR, in (0, 1].

    Raises:
        ShapeError: if a row has another number of episodes than the clean one.
    """
    return [_point(clean, row, alpha) for row in (clean, *rows)]


def strongest(points: Sequence[Point]) -> Point:
    """Return the point with the lowest mean return."""
    return min(points, key=lambda point: point.mean.value)


def _point(clean: AttackRow, row: AttackRow, alpha: float) -> Point:
    change = cvar_change(clean.returns, row.returns, alpha=alpha)  # refuses what are no pairs
    difference = torch.tensor(row.returns, dtype=torch.float64) - torch.tensor(
        clean.returns, dtype=torch.float64
    )
    return Point(
        attack=row.attack,
        epsilon=row.epsilon,
        mean=mean_estimate(row.returns),
        cvar=cvar_estimate(row.returns, alpha=alpha),
        mean_change=Estimate(float(difference.mean()), *mean_interval(difference.numpy())),
        cvar_change=change,
        changed=row.changed,
        unfinished=row.unfinished,
    )


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None
