"""`stormsail bench tails`: tails of return distributions that critics predict, beside true ones.

Critics are trained by the real trainer on worlds whose return distribution is known, with a policy
that stays as it was drawn. Three kinds of worlds:

- `chain`: independent noise for ever (`tails_chain`). The truth is a formula.
- `garch-jump`: a market with clustered volatility and jumps, another for each seed. The truth is
  drawn: episodes of the same policy on later bars, which training never saw.
- worlds with observed states (`tails_states`, and `tails_garch` for the process of `garch-jump`),
  each of which has a distribution of its own that is known: every state is judged by itself. They
  are trained for 600,000 rows with the settings that a market has by default, but without a memory,
  since all is observed. One of them, `clustered`, was not used for choosing anything and is trained
  only where it is named.

What is compared is the distribution of discounted returns from a state. `coverage` is the largest
distance between a level and the share of true returns below the predicted quantile of that level,
in points of a hundred. `error` is (true - predicted) / max(|true|, spread) of CVaR, with the
state's own spread: below 0, risk is understated. Where the size of CVaR is at least the spread,
which is so for every tail that matters, that is predicted / true - 1; elsewhere CVaR may be near 0
and a ratio to it says nothing. `resolution` is the same for exact quantiles at the levels that each
critic has, so what no training can remove. Twins that are mixed give two values for each level;
their grid is still that of one.

Every start of `garch_jump` has a distribution of its own, and one return is drawn of it. So all is
compared over all starts together, and that shows less than on a chain:

- `coverage` is marginal: a critic that is blind to the state and knows the distribution of all
  starts together scores perfectly.
- CVaR and spread are those of the mixture of all predicted distributions: of a return from a start
  drawn at random. `resolution` is that of one grid for the distribution of all starts together.
  That is what the grid costs where all predictions are alike; where they differ, their mixture is
  finer.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.algorithms.run.tasks import make_task
from stormsail.bench.campaign import RowLog
from stormsail.bench.learner.learn_rows import run_key
from stormsail.bench.options import changes
from stormsail.bench.resumed import run_missing
from stormsail.bench.risk.tails_chain import Chain, truth
from stormsail.bench.risk.tails_garch import GARCH_STATES
from stormsail.bench.risk.tails_states import (
    CLUSTERED,
    HEAVY_SCALES,
    RUIN,
    TWO_MODES,
    ObservedWorld,
)
from stormsail.bench.risk.tails_truth import KnownReturns
from stormsail.bench.training import train_agent
from stormsail.core.generators import Generators
from stormsail.core.task import Task
from stormsail.functional import quantile, risk
from stormsail.functional._checks import check_choice
from stormsail.modules.agent import Agent

ALPHA = 0.05
WORLDS = ("chain", "chain-skewed", "garch-jump")
"""Those with one distribution for all states, or judged over all states together."""
STATE_WORLDS: dict[str, ObservedWorld] = {
    world.name: world for world in (RUIN, TWO_MODES, HEAVY_SCALES, GARCH_STATES)
}
"""Those that are judged state by state."""
HELD_OUT: dict[str, ObservedWorld] = {world.name: world for world in (CLUSTERED,)}
"""The same, but not used for choosing anything."""
NEGLIGIBLE = 0.01
"""Weight of what is left out of a realised return."""


@dataclass(frozen=True)
class Case:
    """One way to train the critics: changes to the default settings."""

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)


DEFAULT = Case("N 64, κ 0.02, n 64", {"critic.num_quantiles": 64})
"""What risk features are used with: design asks for 64 quantiles where the tail matters most."""

CATEGORICAL = Case(
    "categorical, 101 atoms", {"critic.kind": "categorical", "critic.num_atoms": 101}
)

LAMBDA_RETURN = Case("λ-return 0.95", {"target.kind": "lambda_return"})
"""Averages instead of outcomes: its spread is 0.415 of the true one where gamma is 0.99."""

CASES = (
    DEFAULT,
    Case("N 16", {"critic.num_quantiles": 16}),
    Case("N 32"),
    Case("κ 0", {"critic.huber_kappa": 0.0}),
    Case("κ 0.1", {"critic.huber_kappa": 0.1}),
    Case("κ 1", {"critic.huber_kappa": 1.0}),
    Case("n 1 (TD)", {"target.kind": "td"}),
    Case("n 16", {"target.steps": 16}),
    Case("n 16, κ 0.1", {"target.steps": 16, "critic.huber_kappa": 0.1}),
    Case("mixture λ 0.95", {"target.kind": "lambda_mixture", "target.mixture_lambda": 0.95}),
    Case("mixture λ 0.98", {"target.kind": "lambda_mixture", "target.mixture_lambda": 0.98}),
    LAMBDA_RETURN,
    Case("one critic", {"critic.use_twin_critics": False}),
    Case("twins mixed", {"critic.twin_dist_mode": "mixture"}),
    Case("twins elementwise min", {"critic.twin_dist_mode": "elementwise_min"}),
    Case("PopArt off", {"returns.normalize_returns": "off"}),
    Case("categorical, 51 atoms", {"critic.kind": "categorical"}),
    CATEGORICAL,
)

STATE_CASES = (DEFAULT, Case("N 32"), CATEGORICAL)
"""Those of `CASES` that worlds with states are also tried with."""


@dataclass(frozen=True)
class Plan:
    """How long critics are trained, and how much of the truth is drawn."""

    gamma: float = 0.99
    n_steps: int = 256
    """At least four times n: the last n rows of a rollout have shorter targets."""
    n_envs: int = 32
    updates: int = 200
    """Of 1.6 million rewards in all. Their noise moves the mean of the learned distribution by some
    0.02 spreads, which is a point of coverage and one percent of CVaR."""
    learning_rate: float = 1e-3
    """At first; it falls to 0, which averages the last updates. The lowest level learns slowest:
    with 4e-4 it was still 4 % short when the others stood."""
    garch_updates: int = 240
    """With 80 the distributions of single states still scattered, which widens all of them
    together: the mean of five seeds was 6 % beyond what exact quantiles give."""
    episodes: int = 4096
    state_rows: int = 600_000
    """Of worlds with states."""

    @classmethod
    def quick(cls) -> "Plan":
        """Return one of seconds, which proves only that it runs."""
        return cls(
            n_steps=32,
            n_envs=4,
            updates=2,
            garch_updates=2,
            episodes=64,
            gamma=0.9,
            state_rows=4096,
        )


class Tail(NamedTuple):
    """Prediction of one trained critic, beside the truth."""

    world: str
    case: str
    seed: int
    coverage: float
    """Largest error of a level's coverage, in points of a hundred."""
    predicted: float
    """CVaR at 5 %, in reward units; over all states on average."""
    true: float
    error: float
    """(true - predicted) / max(|true|, spread): below 0, risk is understated."""
    resolution: float
    """The same of exact quantiles at the levels of one critic; 0 for atoms."""
    spread: float
    """Predicted standard deviation over the true one; of many starts, that of their mixture."""
    values: tuple[float, ...] = ()
    """Predicted returns of the levels, of worlds with one distribution for all states."""
    levels: tuple[float, ...] = ()
    """Shares of returns that should lie below them."""
    state: str = ""
    """The one that is judged, of worlds with states."""
    event: float = 1.0
    """Probability there of what makes the tail."""
    predicted_mean: float | None = None
    """Of the return; None where it was not kept."""
    true_mean: float | None = None
    true_spread: float | None = None
    """Standard deviation of the return."""


def measure(world: str, case: Case, plan: Plan, seed: int) -> Tail:
    """Train critics on a world and compare them with its truth."""
    if world == "garch-jump":
        return _measure_market(case, plan, seed)
    noise = "skewed" if world == "chain-skewed" else "normal"
    config = _settings(case, plan, seed, updates=plan.updates, task="CartPole-v1")
    agent = train_agent(Chain(batch=plan.n_envs, noise=noise), config).agent
    prediction = _predict(agent, torch.ones(1, 1), agent.initial_memory(1))
    return _compare(world, case, seed, prediction, truth(noise, gamma=plan.gamma))


def _settings(case: Case, plan: Plan, seed: int, *, updates: int, task: str) -> TrainConfig:
    values: dict[str, Any] = {
        "seed": seed,
        "task.name": task,
        "network.memory": "none",
        "kl.target_kl": None,
        "ppo.gamma": plan.gamma,
        "ppo.n_steps": plan.n_steps,
        "ppo.n_envs": plan.n_envs,
        "ppo.batch_size": max(plan.n_envs // 8, 1),
        "ppo.n_epochs": 1,
        "ppo.total_steps": plan.n_steps * plan.n_envs * updates,
        "ppo.learning_rate": plan.learning_rate,
        "ppo.critic_grad_warmup_updates": updates,
        "ppo.max_grad_norm": 0.0,
        **case.changes,
    }
    return derive(TrainConfig().replace(**values))


def measure_states(world: ObservedWorld, case: Case, plan: Plan, seed: int) -> list[Tail]:
    """Train critics on a world with states and compare them in each state that is judged."""
    config = _state_settings(case, plan, seed)
    agent = train_agent(world.task(config.ppo.n_envs), config).agent
    rows = []
    for state in world.states(gamma=plan.gamma):
        row = _compare(world.name, case, seed, _predict_after(agent, state.path), state.truth)
        rows.append(row._replace(state=state.name, event=state.event, values=(), levels=()))
    return rows


def _state_settings(case: Case, plan: Plan, seed: int) -> TrainConfig:
    """Return what a market has by default, which is what limits on the tail are used with."""
    values: dict[str, Any] = {
        "seed": seed,
        "task.name": "market",
        "network.memory": "none",
        "ppo.gamma": plan.gamma,
        "ppo.total_steps": plan.state_rows,
        "ppo.critic_grad_warmup_updates": plan.state_rows,  # more than there are updates
        **case.changes,
    }
    # the sizes of a market; then a task with plain columns
    return derive(TrainConfig().replace(**values)).replace(**{"task.name": "CartPole-v1"})


@torch.no_grad()
def _predict_after(agent: Agent, path: Sequence[Tensor]) -> "_Prediction":
    """Return what is predicted at the end of an episode's observations, with what it remembers."""
    memory = agent.initial_memory(1)
    *before, observation = path
    for shown in before:
        memory = agent.decide(shown, memory, deterministic=True).memory
    return _predict(agent, observation, memory)


class _Prediction(NamedTuple):
    """Predicted return distributions of n states, in reward units."""

    values: Tensor
    """Ascending quantiles [n, N] or atoms [n, K], float64."""
    levels: Tensor
    """Of the quantiles [N]; or the distribution function at each atom [n, K]."""
    cvar: Tensor
    """[n]."""
    spread: Tensor
    """Standard deviation [n]."""
    grid: Tensor | None = None
    """Levels that each critic has, half as many as `levels` where twins are mixed; None: atoms."""
    weight: Tensor | None = None
    """Mass of each of them; None where all have the same."""
    mean: Tensor | None = None
    """[n]."""


def _predict(agent: Agent, observation: Tensor, memory: Tensor) -> _Prediction:
    output = agent.decide(observation, memory, deterministic=True).predicted
    distribution = agent.network.critic.distribution(output).double()
    if agent.spec.critic.kind == "categorical":
        atoms = agent.atoms.double()
        mean = (distribution * atoms).sum(-1, keepdim=True)
        spread = (distribution * (atoms - mean).square()).sum(-1).sqrt()
        cvar = risk.categorical_cvar(distribution, atoms, alpha=ALPHA)
        values = atoms.expand_as(distribution)
        return _Prediction(values, distribution.cumsum(-1), cvar, spread, mean=mean[:, 0])
    values = agent.return_scale.decode(distribution)
    weight = agent.network.critic.weights()
    cvar = risk.cvar(values, alpha=ALPHA, weight=weight)
    mean = quantile.expectation(values, weight=weight)
    deviation = values - mean.unsqueeze(-1)
    spread = quantile.expectation(deviation.square(), weight=weight).sqrt()
    return _Prediction(
        values=values.sort(-1).values,
        levels=agent.levels,
        cvar=cvar,
        spread=spread,
        grid=agent.network.critic.levels(),
        weight=weight,
        mean=mean,
    )


def _compare(
    world: str, case: Case, seed: int, prediction: _Prediction, known: KnownReturns
) -> Tail:
    levels = prediction.levels if prediction.levels.ndim == 1 else prediction.levels[0]
    # What lies between two atoms counts to neither: read the distribution in the middle.
    values = prediction.values[0]
    if prediction.levels.ndim > 1:
        values, levels = (values[:-1] + values[1:]) / 2.0, levels[:-1]
    coverage = 100.0 * float((known.below(values) - levels).abs().max())
    predicted, true = float(prediction.cvar[0]), known.cvar(ALPHA)
    resolution = 0.0
    if prediction.grid is not None:
        exact = known.quantiles(prediction.grid)
        cvar = float(risk.cvar(exact, alpha=ALPHA, weight=prediction.weight))
        resolution = _error(cvar, true, known.spread)
    return Tail(
        world=world,
        case=case.name,
        seed=seed,
        coverage=coverage,
        predicted=predicted,
        true=true,
        error=_error(predicted, true, known.spread),
        resolution=resolution,
        spread=float(prediction.spread[0]) / known.spread,
        values=tuple(values.tolist()),
        levels=tuple(levels.tolist()),
        predicted_mean=None if prediction.mean is None else float(prediction.mean[0]),
        true_mean=known.mean,
        true_spread=known.spread,
    )


def _error(predicted: float, true: float, spread: float) -> float:
    """Return the error of CVaR: below 0, risk is understated."""
    return predicted / true - 1.0 if true <= -spread else (true - predicted) / max(true, spread)


def _measure_market(case: Case, plan: Plan, seed: int) -> Tail:
    horizon = math.ceil(math.log(NEGLIGIBLE) / math.log(plan.gamma))
    market = {
        "task.data.world": "garch_jump",
        # bars of its own for each seed: how wild those of the evaluation are is chance, too
        "task.data.world_seed": seed,
        "task.data.world_bars": 60_000,
        "task.data.world_symbols": 8,
        "task.data.validation_share": 0.4,
        "task.market.episode_bars": 2 * horizon,
    }
    changed = Case(case.name, {**market, **case.changes})
    config = _settings(changed, plan, seed, updates=plan.garch_updates, task="market")
    agent = train_agent(make_task(config, batch=plan.n_envs), config).agent
    unseen = make_task(config, batch=plan.episodes, purpose="evaluation")
    prediction, realised = _realise(agent, unseen, plan.gamma, horizon, Generators(seed))
    return _compare_drawn(case, seed, prediction, realised)


@torch.no_grad()
def _realise(
    agent: Agent, task: Task[Any], gamma: float, horizon: int, generators: Generators
) -> tuple[_Prediction, Tensor]:
    """Return the predictions for each start, and the realised discounted return of each."""
    starts, actions = generators.stream("judge.task"), generators.stream("judge.actions")
    state, observation = task.reset(starts)
    memory = agent.initial_memory(task.batch)
    prediction = _predict(agent, observation, memory)
    total = torch.zeros(task.batch, dtype=torch.float64)
    alive = torch.ones(task.batch, dtype=torch.float64)
    for step in range(horizon):
        chosen = agent.decide(observation, memory, deterministic=False, generator=actions)
        state, shown = task.step(state, chosen.action, starts)
        total += gamma**step * alive * shown.reward.double()
        alive *= (~(shown.terminated | shown.truncated)).double()
        observation, memory = shown.observation, chosen.memory
    return prediction, total


def _compare_drawn(case: Case, seed: int, prediction: _Prediction, realised: Tensor) -> Tail:
    """Compare the predictions for many starts with one drawn return of each."""
    values, levels = prediction.values, prediction.levels
    if levels.ndim > 1:  # of atoms, read in the middle between two, as `_compare` does
        values, levels = (values[:, :-1] + values[:, 1:]) / 2.0, levels.mean(0)[:-1]
    below = (realised[:, None] <= values).double().mean(0)
    true = float(risk.empirical_cvar(realised, alpha=ALPHA))
    resolution = 0.0
    if prediction.grid is not None:
        exact = torch.quantile(realised, prediction.grid)
        resolution = float(risk.cvar(exact, alpha=ALPHA)) / true - 1.0
    returns, weight = _mixture(prediction)
    predicted = float(risk.empirical_cvar(returns, alpha=ALPHA, weight=weight))
    return Tail(
        world="garch-jump",
        case=case.name,
        seed=seed,
        coverage=100.0 * float((below - levels).abs().max()),
        predicted=predicted,
        true=true,
        error=predicted / true - 1.0,
        resolution=resolution,
        spread=_deviation(returns, weight) / float(realised.std(correction=0)),
    )


def _mixture(prediction: _Prediction) -> tuple[Tensor, Tensor]:
    """Return values and weights of the distribution of a return from a random start."""
    values, levels = prediction.values, prediction.levels
    if levels.ndim == 1:
        return values.flatten(), torch.ones_like(values).flatten()
    mass = torch.diff(levels, dim=-1, prepend=torch.zeros_like(levels[:, :1]))
    return values.flatten(), mass.flatten().clamp(min=0.0)


def _deviation(values: Tensor, weight: Tensor) -> float:
    """Return the standard deviation of a weighted distribution.

    Of a mixture that is more than the mean of its parts' deviations, by how their means differ.
    """
    share = weight / weight.sum()
    mean = (share * values).sum()
    return float((share * (values - mean).square()).sum().sqrt())


def named(
    worlds: str, cases: str, more: Sequence[str] = ()
) -> tuple[tuple[str, ...], tuple[Case, ...]]:
    """Return the worlds and cases that texts name.

    Args:
        worlds: names with commas.
        cases: name of a group, or `none`.
        more: further cases, each settings with semicolons, `critic.num_quantiles=32; ...`; with
            a name before them, `fine: critic.num_quantiles=64`, if it is to have one.

    Raises:
        ChoiceError: for a world or group that is not known.
        ConfigError: for a setting that is not known.
    """
    chosen = tuple(part.strip() for part in worlds.split(","))
    for world in chosen:
        check_choice(world, (*WORLDS, *STATE_WORLDS, *HELD_OUT), name="worlds")
    groups = {
        "all": CASES,
        "default": (DEFAULT, CATEGORICAL),
        "pictured": (DEFAULT, LAMBDA_RETURN, CATEGORICAL),
        "none": (),
    }
    check_choice(cases, tuple(groups), name="cases")
    return chosen, (*groups[cases], *map(_further, more))


def _further(text: str) -> Case:
    """Return a case that a text describes; what is no setting is refused before the work."""
    name, colon, settings = text.partition(":")
    if not colon or "=" in name:
        name = settings = text
    case = Case(name.strip(), changes(settings.split(";")))
    TrainConfig().replace(**case.changes)
    return case


@dataclass(frozen=True)
class Job:
    """One training: everything that its rows depend on."""

    world: str
    case: Case
    plan: Plan
    seed: int

    @property
    def key(self) -> str:
        """Hash of the settings with all defaults spelt out, the world and the plan."""
        world = {**STATE_WORLDS, **HELD_OUT}.get(self.world)
        if world is None:
            config = _settings(self.case, self.plan, self.seed, updates=1, task="market")
        else:
            config = _state_settings(self.case, self.plan, self.seed)
        document = {
            "world": self.world if world is None else repr(world),
            "case": self.case.name,
            "plan": asdict(self.plan),
            "settings": config.model_dump(mode="json"),
        }
        return run_key(document)


def run(job: Job) -> list[Tail]:
    """Train one agent and return its rows: one, or one for each state that is judged."""
    world = {**STATE_WORLDS, **HELD_OUT}.get(job.world)
    if world is None:
        return [measure(job.world, job.case, job.plan, job.seed)]
    return measure_states(world, job.case, job.plan, job.seed)


def jobs(
    worlds: Sequence[str], cases: Sequence[Case], plan: Plan, seeds: Iterable[int]
) -> list[Job]:
    """Return every combination; worlds with states leave out cases that are about chains."""
    about_chains = {case.name for case in CASES} - {case.name for case in STATE_CASES}
    return [
        Job(world, case, plan, seed)
        for world in worlds
        for case in cases
        if world in WORLDS or case.name not in about_chains
        for seed in seeds
    ]


def measure_all(
    planned: Sequence[Job],
    *,
    processes: int,
    log: RowLog | None = None,
    say: Callable[[list[Tail]], None] = lambda _: None,
) -> list[Tail]:
    """Run what the log does not hold yet, in processes of one thread each; return all rows."""
    outcomes = run_missing(run, planned, row=Tail, processes=processes, log=log, say=say)
    return [row for rows in outcomes for row in rows]
