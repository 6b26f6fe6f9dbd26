"""`stormsail bench tails`: tails of return distributions that critics predict, beside true ones.

Critics are trained by the real trainer on worlds whose return distribution is known, with a policy
that stays as it was drawn. Two worlds:

- `chain`: independent noise for ever (`tails_chain`). The truth is a formula.
- `garch_jump`: a market with clustered volatility and jumps, another for each seed. The truth is
  drawn: episodes of the same policy on later bars, which training never saw.

What is compared is the distribution of discounted returns from a state. `coverage` is the largest
distance between a level and the share of true returns below the predicted quantile of that level,
in points of a hundred. `error` is predicted CVaR over the true one less 1: below 0, risk is
understated. `resolution` is the same for exact quantiles at the levels that each critic has, so
what no training can remove. Twins that are mixed give two values for each level; their grid is
still that of one.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.algorithms.run.tasks import make_task
from stormsail.bench.processes import side_by_side
from stormsail.bench.risk.tails_chain import Chain, Truth, truth
from stormsail.bench.training import train_agent
from stormsail.core.generators import Generators
from stormsail.core.task import Task
from stormsail.functional import quantile, risk
from stormsail.functional._checks import check_choice
from stormsail.modules.agent import Agent

ALPHA = 0.05
WORLDS = ("chain", "chain-skewed", "garch-jump")
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

    @classmethod
    def quick(cls) -> "Plan":
        """Return one of seconds, which proves only that it runs."""
        return cls(n_steps=32, n_envs=4, updates=2, garch_updates=2, episodes=64, gamma=0.9)


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
    """predicted / true - 1."""
    resolution: float
    """The same of exact quantiles at the levels of one critic; 0 for atoms."""
    spread: float
    """Predicted standard deviation over the true one; of many starts, that of their mixture."""
    values: tuple[float, ...] = ()
    """Predicted returns of the levels, of worlds with one distribution for all states."""
    levels: tuple[float, ...] = ()
    """Shares of returns that should lie below them."""


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


def _predict(agent: Agent, observation: Tensor, memory: Tensor) -> _Prediction:
    output = agent.decide(observation, memory, deterministic=True).predicted
    distribution = agent.network.critic.distribution(output).double()
    if agent.spec.critic.kind == "categorical":
        atoms = agent.atoms.double()
        mean = (distribution * atoms).sum(-1, keepdim=True)
        spread = (distribution * (atoms - mean).square()).sum(-1).sqrt()
        cvar = risk.categorical_cvar(distribution, atoms, alpha=ALPHA)
        values = atoms.expand_as(distribution)
        return _Prediction(values, distribution.cumsum(-1), cvar, spread)
    values = agent.return_scale.decode(distribution)
    weight = agent.network.critic.weights()
    cvar = risk.cvar(values, alpha=ALPHA, weight=weight)
    mean = quantile.expectation(values, weight=weight).unsqueeze(-1)
    spread = quantile.expectation((values - mean).square(), weight=weight).sqrt()
    return _Prediction(
        values=values.sort(-1).values,
        levels=agent.levels,
        cvar=cvar,
        spread=spread,
        grid=agent.network.critic.levels(),
        weight=weight,
    )


def _compare(world: str, case: Case, seed: int, prediction: _Prediction, known: Truth) -> Tail:
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
        resolution = float(risk.cvar(exact, alpha=ALPHA, weight=prediction.weight)) / true - 1.0
    return Tail(
        world=world,
        case=case.name,
        seed=seed,
        coverage=coverage,
        predicted=predicted,
        true=true,
        error=predicted / true - 1.0,
        resolution=resolution,
        spread=float(prediction.spread[0]) / known.spread,
        values=tuple(values.tolist()),
        levels=tuple(levels.tolist()),
    )


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


def named(worlds: str, cases: str) -> tuple[tuple[str, ...], tuple[Case, ...]]:
    """Return the worlds and cases that texts name.

    Raises:
        ChoiceError: for one that is not known.
    """
    chosen = tuple(part.strip() for part in worlds.split(","))
    for world in chosen:
        check_choice(world, WORLDS, name="worlds")
    groups = {
        "all": CASES,
        "default": (DEFAULT, CATEGORICAL),
        "pictured": (DEFAULT, LAMBDA_RETURN, CATEGORICAL),
    }
    check_choice(cases, tuple(groups), name="cases")
    return chosen, groups[cases]


def measure_all(
    worlds: Sequence[str],
    cases: Sequence[Case],
    plan: Plan,
    seeds: Sequence[int],
    *,
    processes: int,
) -> list[Tail]:
    """Measure every combination, in processes of one thread each."""
    jobs = [(world, case, plan, seed) for world in worlds for case in cases for seed in seeds]
    return side_by_side(_measured, jobs, processes=processes)


def _measured(job: tuple[str, Case, Plan, int]) -> Tail:
    return measure(*job)
