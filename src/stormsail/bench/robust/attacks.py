"""Attacks on a saved agent as jobs that can be interrupted: one for each attack and radius."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.algorithms.run.tasks import make_task
from stormsail.bench.chart import COLOURS, Intervals, Line, Panel, draw, ticks
from stormsail.bench.learner.learn_rows import run_key
from stormsail.bench.training import train_agent
from stormsail.core.errors import RangeError
from stormsail.core.task import close
from stormsail.evaluation.attack.adversary import AdversaryTask
from stormsail.evaluation.attack.columns import Ball, forgeable_names
from stormsail.evaluation.attack.curve import (
    CLEAN,
    AttackRow,
    Fit,
    Point,
    attack_row,
    check_attack,
)
from stormsail.evaluation.stats.tail_intervals import Estimate
from stormsail.market.rewards import LOG_GROWTH
from stormsail.modules.agent import Agent


@dataclass(frozen=True)
class Plan:
    """What all attacks on an agent have in common."""

    episodes: int = 256
    seed: int = 0
    norm: str = "linf"
    features: tuple[str, ...] = ()
    """Names or patterns of the columns that are forged; none takes all that may be."""
    adversary_steps: int = 200_000
    """Steps that a learned adversary is trained for, at each radius."""
    units: tuple[tuple[str, float], ...] = ()
    """Columns and what a radius of 1 stands for in them; others are in units of the agent."""


@dataclass(frozen=True)
class Job:
    """Everything that the episodes of one attack depend on."""

    agent: str
    """Folder of its artifact."""
    digest: str
    """Of that artifact."""
    config: TrainConfig
    """Of its training: task and data."""
    attack: str
    epsilon: float
    plan: Plan

    @property
    def key(self) -> str:
        """Hash of all that but the place of the folder."""
        plan = self.plan
        document = {
            "agent": self.digest,
            "config": self.config.config_hash(),
            "attack": self.attack,
            "epsilon": self.epsilon,
            "episodes": plan.episodes,
            "seed": plan.seed,
            "norm": plan.norm,
            "features": list(plan.features),
        }
        if self.attack == "learned":
            document["adversary_steps"] = plan.adversary_steps
        if plan.units:
            document["units"] = dict(plan.units)
        return run_key(document)


def jobs(
    agent: str,
    digest: str,
    config: TrainConfig,
    attacks: Sequence[str],
    epsilons: Iterable[float],
    plan: Plan,
) -> list[Job]:
    """Return the clean job and one for each attack and positive radius.

    Raises:
        ChoiceError: if there is no such attack.
        RangeError: if a radius is no finite number of at least 0, or none is positive.
    """
    for attack in attacks:
        check_attack(attack)
    radii = sorted(set(epsilons))
    bad = [epsilon for epsilon in radii if not 0.0 <= epsilon < float("inf")]
    if bad or not any(radii):
        raise RangeError(
            wrong="radii must be finite numbers of at least 0, one of them positive",
            found=repr(bad[0]) if bad else repr(radii),
            remedy="Write them as 0.05,0.1,0.2.",
        )
    names = dict.fromkeys(attacks)
    pairs = [(CLEAN, 0.0), *((name, radius) for name in names for radius in radii if radius > 0.0)]
    return [Job(agent, digest, config, name, radius, plan) for name, radius in pairs]


def run(job: Job) -> list[AttackRow]:
    """Run the episodes of one attack.

    Raises:
        ArtifactError: if the agent cannot be read.
        DataError: if its bars are not there.
    """
    agent = Agent.load(job.agent)
    return [measured(agent, job.config, job.attack, job.epsilon, job.plan)]


def measured(
    agent: Agent, config: TrainConfig, attack: str, epsilon: float, plan: Plan
) -> AttackRow:
    """Run the episodes of one attack on an agent: of the market, on its evaluation span."""
    task = make_task(config, batch=plan.episodes, purpose="evaluation")
    columns = forgeable_names(task, plan.features)
    try:
        return attack_row(
            task,
            agent,
            columns,
            attack=attack,
            epsilon=epsilon,
            norm=plan.norm,
            seed=plan.seed,
            fit=adversary_fit(agent, config, plan),
            units=dict(plan.units),
        )
    finally:
        close(task)


def adversary_fit(agent: Agent, config: TrainConfig, plan: Plan) -> Fit:
    """Return the function that trains an adversary of an agent by our own learner.

    It learns where the agent did, never on the bars of the evaluation, with default settings but
    for the discount of the agent's training, steps and seed. Its training is a function of these
    and takes place in memory: an interruption trains this one adversary again.
    """
    settings = TrainConfig(task=config.task, seed=plan.seed).replace(
        **{
            "device": config.device,
            "task.market.reward": LOG_GROWTH,  # it is judged by what the agent loses
            "task.market.reward_parameters": {},
            "ppo.gamma": config.ppo.gamma,
            "ppo.total_steps": plan.adversary_steps,
        }
    )

    def fit(ball: Ball) -> Agent:
        derived = derive(settings)
        task = make_task(derived, batch=derived.ppo.n_envs)
        forging = AdversaryTask(task, agent, ball, policy=agent.judged_policy)
        try:
            return train_agent(forging, derived).agent
        finally:
            forging.close()

    return fit


def chart(points: Sequence[Point], *, alpha: float, note: str) -> str:
    """Return mean return and CVaR against the radius as SVG, a line for each attack."""
    return draw(
        [
            _panel(points, "Mean return", "mean"),
            _panel(points, f"CVaR of {alpha:.0%} of the episodes", "cvar"),
        ],
        note=note,
    )


def _panel(points: Sequence[Point], title: str, field: str) -> Panel:
    clean, attacked = points[0], points[1:]
    lines, bars, values = [], [], []
    names = dict.fromkeys(point.attack for point in attacked)
    for name, colour in zip(names, COLOURS, strict=False):
        own = [clean, *(point for point in attacked if point.attack == name)]
        estimates: list[Estimate] = [getattr(point, field) for point in own]
        heights = [estimate.value for estimate in estimates]
        places = [point.epsilon for point in own]
        lines.append(Line(name, tuple(zip(places, heights, strict=True)), colour))
        ends = [(x, each.low, each.high) for x, each in zip(places, estimates, strict=True)]
        known = tuple(end for end in ends if end[1] == end[1])  # NaN of a single episode
        bars.append(Intervals(known, colour))
        values += [*heights, *(value for end in known for value in end[1:])]
    vertical = ticks(values)
    return Panel(
        title=title,
        horizontal="radius of the perturbation",
        vertical="return of an episode",
        lines=tuple(lines),
        vertical_range=(vertical[0], vertical[-1]),
        horizontal_ticks=ticks([point.epsilon for point in points]),
        vertical_ticks=vertical,
        intervals=tuple(bars),
    )
