"""`stormsail bench robust`: what robust training costs without an attack and gains under attacks.

A job trains one agent, as it is or with changed settings, and attacks it. The two agents of a seed
share starts, attacks' draws and the size of the attacks in units of the task (`UNITS`). The
strongest attack is chosen for each agent by itself: the one under which its mean return is lowest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.algorithms.run.tasks import make_task
from stormsail.bench.learner.learn_rows import run_key
from stormsail.bench.options import changes
from stormsail.bench.robust.attacks import Plan, measured
from stormsail.bench.seeds import Seeds
from stormsail.bench.training import train_agent
from stormsail.bench.verdicts import Verdict
from stormsail.core.errors import ChoiceError, RangeError, nearest
from stormsail.core.task import close
from stormsail.evaluation.attack.curve import CLEAN, check_attack

PLAIN, CHANGED = "plain", "changed"

TASKS: dict[str, dict[str, object]] = {
    "pendulum": {"task.name": "Pendulum-v1", "ppo.total_steps": 100_000},
    "regime": {
        "task.name": "market",
        "task.data.world": "regime",
        "task.market.episode_bars": 128,
        "ppo.total_steps": 200_000,
        "ppo.learning_rate": 1e-3,
        "ppo.policy_gradient": "all_actions",
    },
}
"""Settings of each task; everything else is a default. On `regime` agents learn from all actions:
those that learned from the taken ones hardly lost under attack, so there was nothing to defend."""

RADII: dict[str, float] = {"pendulum": 0.4, "regime": 0.8}
"""Radius of the attacks on each task, in normalised units: one at which plain agents lose much;
found on seeds 0 to 2."""

UNITS: dict[str, dict[str, float]] = {
    "pendulum": {"cos_angle": 0.7, "sin_angle": 0.5, "angular_velocity": 3.0}
}
"""What a radius of 1 stands for in the columns of a task: about the standard deviations of plain
agents of seeds 0 to 2. What an agent observes on Pendulum depends on what it does, so its own
standard deviations do, too: an agent that explores more would be attacked harder. Bars of a market
are the same for every agent."""

ADVERSARIES: dict[str, dict[str, object]] = {
    "pendulum": {"adversary.epsilon": 0.3, "adversary.robust_kl_coef": 0.3},
    "regime": {"adversary.epsilon": 0.8, "adversary.robust_kl_coef": 0.005},
}
"""Radius and weight of an adversary of minibatches, where a change sets `adversary.mode` and not
these; found on seeds 0 to 2. On `regime` a weight of 0.02 or more cost half of the clean return."""


@dataclass(frozen=True)
class Job:
    """Everything that one agent and its attacked episodes depend on."""

    task: str
    variant: str
    seed: int
    config: TrainConfig
    attacks: tuple[str, ...]
    epsilon: float
    plan: Plan

    @property
    def key(self) -> str:
        """Hash of all that."""
        plan = self.plan
        document: dict[str, object] = {
            "config": self.config.config_hash(),
            "attacks": list(self.attacks),
            "epsilon": self.epsilon,
            "plan": [plan.episodes, plan.seed, plan.norm, *plan.features, plan.adversary_steps],
        }
        if plan.units:
            document["units"] = dict(plan.units)
        return run_key(document)


class RobustRow(NamedTuple):
    """Mean returns of one agent."""

    task: str
    variant: str
    seed: int
    clean: float
    attacks: tuple[str, ...]
    attacked: tuple[float, ...]
    """Under each of the attacks."""

    @property
    def worst(self) -> float:
        """Under the strongest attack."""
        return min(self.attacked)


def jobs(
    tasks: Sequence[str],
    seeds: Sequence[int],
    overrides: Sequence[str],
    *,
    attacks: Sequence[str],
    epsilon: float | None,
    plan: Plan,
    steps: int | None = None,
    common: Sequence[str] = (),
    own_units: bool = False,
) -> list[Job]:
    """Return two jobs for each task and seed: plain, and with the changed settings.

    Args:
        tasks: names in `TASKS`.
        seeds: of training.
        overrides: `path=value` of the changed agents. With `adversary.mode` among them, those of
            the task in `ADVERSARIES` are added, but for `rollout`.
        attacks: names; the strongest counts.
        epsilon: radius, above 0; None takes that of each task in `RADII`.
        plan: episodes and settings of the attacks.
        steps: of training; None takes those of `TASKS`.
        common: `path=value` of all agents.
        own_units: measure the radius in standard deviations of each agent's own training, as
            `stormsail attack` does, and not in `UNITS`.

    Raises:
        ChoiceError: if a task or an attack is unknown.
        RangeError: if nothing is changed, or the radius is not positive.
        ConfigError: if a setting is refused.
    """
    for attack in attacks:
        check_attack(attack)
    for name in tasks:
        if name not in TASKS:
            near = nearest(name, TASKS)
            raise ChoiceError(
                wrong=f"a task must be one of {', '.join(TASKS)}",
                found=f"`{name}`",
                remedy=f"Did you mean `{near}`?" if near else "Name one of these.",
            )
    if not overrides or not (epsilon is None or 0.0 < epsilon < float("inf")):
        raise RangeError(
            wrong="robust training must change a setting and be attacked with a positive radius",
            found=f"{len(overrides)} changes and the radius {epsilon!r}",
            remedy="Pass for example `--change adversary.mode='\"kl_reg\"' --epsilon 0.1`.",
        )
    planned = []
    changed = changes(overrides)
    for name in tasks:
        radius = RADII[name] if epsilon is None else epsilon
        weighed = changed.get("adversary.mode") not in (None, "rollout")
        strength = ADVERSARIES[name] if weighed else {}
        units = {} if own_units else UNITS.get(name, {})
        attacked = replace(plan, units=tuple(units.items()))
        budget = {} if steps is None else {"ppo.total_steps": steps}
        base = TrainConfig().replace(**{**TASKS[name], **budget, **changes(common)})
        for seed in seeds:
            for variant in (PLAIN, CHANGED):
                further = {**strength, **changed} if variant == CHANGED else {}
                config = derive(base.replace(**{"seed": seed, **further}))
                planned.append(Job(name, variant, seed, config, tuple(attacks), radius, attacked))
    return planned


def run(job: Job) -> list[RobustRow]:
    """Train one agent and attack it."""
    task = make_task(job.config, batch=job.config.ppo.n_envs)
    try:
        agent = train_agent(task, job.config).agent
    finally:
        close(task)

    def mean(attack: str) -> float:
        row = measured(agent, job.config, attack, job.epsilon, job.plan)
        return sum(row.returns) / len(row.returns)

    attacked = tuple(mean(attack) for attack in job.attacks)
    return [RobustRow(job.task, job.variant, job.seed, mean(CLEAN), job.attacks, attacked)]


class Summary(NamedTuple):
    """One task over seeds; differences are those of the two agents of a seed."""

    task: str
    plain_clean: Seeds
    plain_worst: Seeds
    changed_clean: Seeds
    changed_worst: Seeds
    cost: Seeds
    """Clean return of the plain agent minus that of the changed one."""
    gain: Seeds
    """Return of the changed agent under its strongest attack minus that of the plain one."""


def summaries(rows: Sequence[RobustRow]) -> list[Summary]:
    """Return a summary for each task, of the seeds of which both agents are there."""
    return [_summary(task, rows) for task in dict.fromkeys(row.task for row in rows)]


def _summary(task: str, rows: Sequence[RobustRow]) -> Summary:
    by_variant = {
        variant: {row.seed: row for row in rows if (row.task, row.variant) == (task, variant)}
        for variant in (PLAIN, CHANGED)
    }
    plain, changed = by_variant[PLAIN], by_variant[CHANGED]
    both = [seed for seed in plain if seed in changed]

    def over_seeds(values: list[float]) -> Seeds:
        return Seeds(values, shown="half", spec=".4g")

    return Summary(
        task=task,
        plain_clean=over_seeds([plain[seed].clean for seed in both]),
        plain_worst=over_seeds([plain[seed].worst for seed in both]),
        changed_clean=over_seeds([changed[seed].clean for seed in both]),
        changed_worst=over_seeds([changed[seed].worst for seed in both]),
        cost=over_seeds([plain[seed].clean - changed[seed].clean for seed in both]),
        gain=over_seeds([changed[seed].worst - plain[seed].worst for seed in both]),
    )


def verdicts(lines: Sequence[Summary]) -> list[Verdict]:
    """Return for each task whether the gain under the strongest attack is proven at 95 %."""
    return [
        Verdict(
            f"{line.task}: the change gains under the strongest attack",
            f"gain {line.gain}, clean cost {line.cost}, {len(line.gain.values)} seeds",
            line.gain.mean - line.gain.half > 0.0,
        )
        for line in lines
    ]
