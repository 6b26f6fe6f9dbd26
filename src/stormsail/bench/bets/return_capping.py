"""`stormsail bench capping`: limits on the tail beside Return Capping, in its own betting game.

Return Capping (Mead, Costen, Lacerda & Hawes 2025, arXiv:2504.20887) maximises CVaR by plain PPO on
capped returns: max E[min(G, C)], whose best policy is the one of best CVaR where C is that policy's
alpha-quantile. C follows the quantile of the present policy, C <- C + eta (VaR - C), and is never
below a floor C_M. `CappedReturns` is our implementation, from the description of the method and the
behaviour of its public code (HarryMJMead/cvar-return-capping); both sides are trained by our
learner with the same network, rollouts and steps.

For each seed three agents are trained:

- `capping`: without a limit, on capped returns;
- `equal`: with a limit at the CVaR that `capping` has in the end, so that the means compare;
- `near-best`: with a limit at a share of the largest CVaR there is, so that the CVaRs compare.

All are evaluated exactly (`betting_exact`): the policy that samples, and the greedy one.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.algorithms.ppo import Ppo
from stormsail.bench.bets.betting_exact import agent_policy, best_cvar, best_mean, tree_of
from stormsail.bench.bets.betting_game import BettingGame, BettingRules
from stormsail.bench.learner.learn_rows import run_key
from stormsail.bench.processes import side_by_side
from stormsail.bench.seeds import Seeds
from stormsail.bench.training import train_agent
from stormsail.bench.verdicts import Verdict
from stormsail.core.config.overrides import apply_overrides
from stormsail.core.errors import ArtifactError
from stormsail.core.task import Step, StepInfo, Task
from stormsail.functional import risk

ALPHA = 0.2
"""Share of worst episodes, as in the paper."""

CAPPING, EQUAL, NEAR_BEST = "capping", "equal", "near-best"
KINDS = (CAPPING, EQUAL, NEAR_BEST)

KEPT = 0.05
"""A limit counts as kept down to this share of its size below it."""

_ROWS = 7
"""Of a whole game in a rollout: at most six bets, and the row that starts the next one."""

_GAMES = 7
"""Whole games of each environment in a rollout: with 64 of them 3,136 rows, about the 3,000 of the
public code."""


class CappedState(NamedTuple):
    """State of the task, and what each episode has returned."""

    inner: Any
    total: Tensor
    """[B], without the cap."""
    cap: Tensor
    """[B]: C at the episode's start, so that its rewards add up to one cap."""


class CappedReturns:
    """A task whose rewards add up to min(G, C), but for the constant min(0, C).

    The reward of step t is min(R_t, C) - min(R_{t-1}, C), where R_t is the sum of the task's own
    rewards up to it and R_{-1} = 0. Finished returns are collected on the way for `follow`, so one
    object serves one training, on the CPU.

    Deviations from the public code: an episode keeps the cap that it began with (there, batches
    hold whole episodes), and the quantile is the lower one, inf{x: F(x) >= alpha}.

    Attributes:
        cap: C of the episodes that begin now.
    """

    def __init__(
        self, task: Task[Any], *, alpha: float, rate: float, initial: float, least: float
    ) -> None:
        self._task, self._alpha, self._rate, self._least = task, alpha, rate, least
        self.batch, self.device, self.dtype = task.batch, task.device, task.dtype
        self.observation_size = task.observation_size
        self.observation_names, self.actions = task.observation_names, task.actions
        self.cap = initial
        self._finished: list[Tensor] = []

    def reset(self, generator: torch.Generator) -> tuple[CappedState, Tensor]:
        """Start, as the task does."""
        inner, observation = self._task.reset(generator)
        total = torch.zeros(self.batch, dtype=self.dtype, device=self.device)
        return CappedState(inner, total, torch.full_like(total, self.cap)), observation

    def step(
        self, state: CappedState, action: Tensor, generator: torch.Generator
    ) -> tuple[CappedState, Step[StepInfo]]:
        """Step as the task does, and cap what the episode returns."""
        inner, shown = self._task.step(state.inner, action, generator)
        fresh = shown.info.sample_weight == 0.0
        before = torch.where(fresh, 0.0, state.total)
        cap = torch.where(fresh, self.cap, state.cap)
        total = before + shown.reward
        self._finished.append(total[shown.terminated | shown.truncated])
        reward = torch.minimum(total, cap) - torch.minimum(before, cap)
        return CappedState(inner, total, cap), shown._replace(reward=reward)

    def follow(self) -> None:
        """Move the cap towards the quantile of the returns that finished since the last call."""
        finished = [part for part in self._finished if len(part)]
        self._finished.clear()
        if finished:
            returns = torch.cat(finished)
            level = float(risk.value_at_risk(returns.sort().values, alpha=self._alpha))
            self.cap = max(self.cap + self._rate * (level - self.cap), self._least)


@dataclass(frozen=True)
class Plan:
    """Settings of all runs of a campaign."""

    steps: int = 500_000
    """Of each agent, as in the public code."""
    share: float = 0.98
    """Limit of `near-best`, as a share of the largest CVaR."""
    changes: tuple[str, ...] = ()
    """Further settings of the agents with a limit, as `path=value`."""
    common: tuple[str, ...] = ()
    """Further settings of all agents."""
    cap_rate: float = 0.2
    """eta, the default of the public code; the 0.1 of its example was slower here."""
    cap_least: float = 0.0
    """C_M, where the cap begins: no bet at all returns 0 for sure, so neither the best CVaR nor its
    quantile is below. With the -25.6 of the public code's example, which no return reaches, it
    was slower too."""
    rules: BettingRules = field(default_factory=BettingRules)

    def config(self, kind: str, *, seed: int = 0, limit: float | None = None) -> TrainConfig:
        """Return all settings of an agent; the limit is left out of those without one.

        Raises:
            ConfigError: for a change that is none.
        """
        given: dict[str, Any] = {
            "seed": seed,
            "task": {"name": "betting game"},  # not made: the task is passed beside the settings
            # the wealth is observed, and exact evaluation needs a policy of what is observed
            "network": {"memory": "none"},
            "target": {"kind": "mc"},
            "validation": {"every_updates": 0},
            "entropy": {"ent_coef": 1e-3},  # all are judged by the policy that samples
            "ppo": {
                "gamma": 1.0,
                "total_steps": self.steps,
                "n_envs": 64,
                "n_steps": _ROWS * _GAMES,
                "sequence_length": _ROWS,
                "batch_size": 32,
                "learning_rate": 1e-3,
            },
        }
        changes = list(self.common)
        if kind != CAPPING:
            given["risk"] = {
                "cvar_use_constraint": True,
                "cvar_alpha": ALPHA,
                "cvar_limit": 0.0 if limit is None else limit,
            }
            changes += self.changes
        return derive(TrainConfig.from_mapping(apply_overrides(given, changes)))

    def key(self, kind: str) -> str:
        """Return a hash of everything that an agent depends on but its seed.

        That of `capping` knows nothing of `changes`: its rows serve all of them.
        """
        document: dict[str, Any] = {
            "kind": kind,
            "settings": self.config(kind).config_hash(),
            "rules": repr(self.rules),
        }
        if kind != NEAR_BEST:  # the limit of `equal` is the result of `capping`
            document |= {"cap": [self.cap_rate, self.cap_least]}
        else:
            document |= {"share": self.share}
        return run_key(document)


class Row(NamedTuple):
    """Result of one agent; returns in tokens, exact."""

    kind: str
    seed: int
    steps: int
    key: str
    """Hash of its settings."""
    limit: float | None
    mean: float
    """Of the policy that samples."""
    cvar: float
    greedy_mean: float
    greedy_cvar: float
    best: float | None
    """Largest mean that any policy with a CVaR of `limit` has; None without a limit."""
    most: float
    """Largest CVaR of any policy."""
    level: float | None
    """Cap C at the end, or the multiplier; None where the control has none."""

    @property
    def kept(self) -> bool | None:
        """Whether CVaR is at most 5 % of its size below the limit; None without one."""
        return None if self.limit is None else self.cvar >= self.limit - KEPT * abs(self.limit)


def train(plan: Plan, kind: str, *, seed: int, limit: float | None = None) -> Row:
    """Train one agent and evaluate it."""
    config = plan.config(kind, seed=seed, limit=limit)
    game = BettingGame(config.ppo.n_envs, plan.rules)
    if kind == CAPPING:
        task = CappedReturns(
            game, alpha=ALPHA, rate=plan.cap_rate, initial=plan.cap_least, least=plan.cap_least
        )
        learner = train_agent(task, config, on_update=lambda _learner, _update: task.follow())
        return _row(plan, kind, learner, limit=None, level=task.cap)
    learner = train_agent(game, config)
    multiplier = None if learner.risk is None else learner.risk.multiplier
    return _row(plan, kind, learner, limit=limit, level=multiplier)


def _row(plan: Plan, kind: str, learner: Ppo, *, limit: float | None, level: float | None) -> Row:
    tree = tree_of(plan.rules)
    sampled, greedy = (
        tree.tail(agent_policy(learner.agent, plan.rules, greedy=greedy), alpha=ALPHA)
        for greedy in (False, True)
    )
    return Row(
        kind=kind,
        seed=learner.config.seed,
        steps=learner.steps,
        key=plan.key(kind),
        limit=limit,
        mean=sampled.mean,
        cvar=sampled.cvar,
        greedy_mean=greedy.mean,
        greedy_cvar=greedy.cvar,
        best=None if limit is None else best_mean(plan.rules, alpha=ALPHA, limit=limit),
        most=best_cvar(plan.rules, alpha=ALPHA),
        level=level,
    )


def measure(
    seed: int, steps: int, changes: Sequence[str] = (), *, known: Mapping[str, Row] | None = None
) -> list[Row]:
    """Train and evaluate the three agents of a seed.

    Args:
        seed: of all three.
        steps: of each.
        changes: settings of the two with a limit, as `path=value`.
        known: rows by kind that are not trained again.
    """
    plan, rows = Plan(steps=steps, changes=tuple(changes)), dict(known or {})
    rows |= {row.kind: row for row in _missing(_Job(plan, seed, rows))}
    return [rows[kind] for kind in KINDS]


class _Job(NamedTuple):
    plan: Plan
    seed: int
    known: Mapping[str, Row]


def _missing(job: _Job) -> list[Row]:
    """Return the rows of a seed that are not known yet."""
    plan, seed, known = job
    capping = known.get(CAPPING) or train(plan, CAPPING, seed=seed)
    limits = {
        EQUAL: capping.cvar,
        NEAR_BEST: plan.share * best_cvar(plan.rules, alpha=ALPHA),
    }
    fresh = [] if CAPPING in known else [capping]
    return fresh + [
        train(plan, kind, seed=seed, limit=limit)
        for kind, limit in limits.items()
        if kind not in known
    ]


def select(plan: Plan, rows: Iterable[Row]) -> dict[int, dict[str, Row]]:
    """Return the rows of a plan by seed and kind; rows of other settings are left out."""
    keys = {kind: plan.key(kind) for kind in KINDS}
    chosen: dict[int, dict[str, Row]] = {}
    for row in rows:
        if keys.get(row.kind) == row.key:
            chosen.setdefault(row.seed, {})[row.kind] = row
    return chosen


def run_all(
    plan: Plan,
    seeds: Iterable[int],
    before: Iterable[Row] = (),
    *,
    processes: int = 1,
    keep: Callable[[Sequence[Row]], None] = lambda _: None,
) -> list[Row]:
    """Return the rows of all seeds; those in `before` are not trained again.

    Args:
        plan: of all agents.
        seeds: three agents each.
        before: rows of earlier calls, of this plan or others.
        processes: seeds at a time.
        keep: called with the new rows of each seed when they are there.
    """
    known = select(plan, before)
    jobs = [_Job(plan, seed, known.get(seed, {})) for seed in dict.fromkeys(seeds)]
    missing = [job for job in jobs if len(job.known) < len(KINDS)]
    trained = side_by_side(_missing, missing, processes=processes, say=keep)
    for job, fresh in zip(missing, trained, strict=True):
        known[job.seed] = {**job.known, **{row.kind: row for row in fresh}}
    return [known[job.seed][kind] for job in jobs for kind in KINDS]


def complete(plan: Plan, rows: Iterable[Row]) -> list[Row]:
    """Return the rows of a plan of those seeds that have all three.

    Raises:
        ArtifactError: if there is none.
    """
    chosen = [own for own in select(plan, rows).values() if len(own) == len(KINDS)]
    if not chosen:
        raise ArtifactError(
            "artifact-missing",
            wrong=f"the file must hold rows of {', '.join(KINDS)} of a seed by these settings",
            found="none",
            remedy="Leave `--judge` out to train them, or pass the options that they had.",
        )
    return [own[kind] for own in chosen for kind in KINDS]


def from_json(fields: Mapping[str, Any]) -> Row:
    """Return a row as a file holds it.

    Raises:
        ArtifactError: if these are not the fields of a row.
    """
    try:
        return Row(**fields)
    except TypeError as error:
        raise ArtifactError(
            "artifact-corrupt",
            wrong="a row must be one that `stormsail bench capping` wrote",
            found=str(error),
            remedy="Remove that line, and its seed is trained again; or name another file.",
        ) from None


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """Return the claims about all seeds; differences are paired by seed, ± their 95 % interval."""
    by_kind = {kind: {row.seed: row for row in rows if row.kind == kind} for kind in KINDS}
    peers = by_kind[CAPPING]

    def gains(kind: str, figure: str) -> Seeds:
        pairs = [
            (getattr(row, figure), getattr(peers[s], figure)) for s, row in by_kind[kind].items()
        ]
        return Seeds([own - other for own, other in pairs])

    tail, mean = gains(NEAR_BEST, "cvar"), gains(EQUAL, "mean")
    limited = [row for row in rows if row.limit is not None]
    kept = sum(bool(row.kept) for row in limited)
    shares = [row.mean / row.best for row in limited if row.best and math.isfinite(row.best)]
    return [
        Verdict(
            "CVaR at least that of Return Capping at equal steps",
            f"near-best less capping {_shown(tail)}",
            tail.mean >= 0.0,
        ),
        Verdict(
            "mean at least that of Return Capping at equal CVaR",
            f"equal less capping {_shown(mean)}",
            mean.mean >= 0.0 and all(bool(row.kept) for row in by_kind[EQUAL].values()),
        ),
        Verdict(
            "limits kept to within 5 % of their size",
            f"{kept} of {len(limited)}; mean {sum(shares) / max(len(shares), 1):.2f} of the best",
            kept >= 0.8 * len(limited),
        ),
    ]


def _shown(gain: Seeds) -> str:
    return f"{gain.mean:+.2f} ± {gain.half:.2f} tokens over {len(gain.values)} seeds"
