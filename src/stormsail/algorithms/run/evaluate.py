"""Evaluation of an agent during training: one episode in each environment, greedy and sampled.

An agent has two policies: the likeliest action always (greedy), and actions drawn as in training
(sampled). They can differ by everything: two actions of nearly the same probability are played half
and half by the one and never mixed by the other. So both are evaluated from the same starts, and
the one that is judged is the one that later backtests use (`Agent.judged_policy`).
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stormsail.algorithms.config.run import EvaluatedPolicy
from stormsail.core.notebook import html_table
from stormsail.core.precision import matrix_precision
from stormsail.core.task import Task, action_mask
from stormsail.evaluation.stats import figures, paired
from stormsail.functional import risk
from stormsail.modules.agent import Agent, JudgedPolicy

MAX_STEPS = 20_000
"""Episodes are cut off after this many steps."""


class Evaluation(NamedTuple):
    """Returns of the episodes of an evaluation, those of the policy that was judged."""

    score: float
    """Mean return."""
    spread: float
    """Standard deviation of the returns; 0 for a single one."""
    episodes: int
    unfinished: int
    """Episodes that were cut off at `MAX_STEPS`."""
    sharpe_per_bar: float | None = None
    """Mean over deviation of the simple returns of all steps, not annualised. None where rewards
    are no log returns, or where all of them are equal."""
    bars: int = 0
    """Steps in that ratio; episodes may share bars."""
    cvar: float = math.nan
    """Mean of the worst share `alpha` of the returns."""
    cvar_error: float = math.nan
    """Its standard error."""
    low: float = math.nan
    """Lower end of the 95 % interval of the mean return; NaN for a single episode."""
    high: float = math.nan
    """Upper end."""
    policy: JudgedPolicy = "greedy"
    """Which policy was judged."""
    greedy_score: float = math.nan
    """Mean return of the greedy policy; NaN where it was not evaluated."""
    sampled_score: float = math.nan
    """Mean return of the sampled policy; NaN where it was not evaluated."""
    policy_p: float = math.nan
    """p-value of "greedy is not worse than sampled"; NaN where not both were evaluated."""

    @property
    def policy_gap(self) -> float:
        """By how much the sampled policy scores higher than the greedy one; NaN without both."""
        return self.sampled_score - self.greedy_score

    @property
    def greedy_is_worse(self) -> bool:
        """Whether the greedy policy is significantly worse than the sampled one."""
        return self.policy_p < paired.LEVEL  # NaN is not

    def breach(self, limit: float | None) -> float:
        """Return by how much a limit on CVaR is broken, max(0, limit - CVaR); 0 without a limit.

        By the estimate alone, without its interval: that of a few episodes is so wide that it
        reaches limits which are broken several times over. The configuration demands enough
        episodes (`ValidationConfig.check_tail`). A CVaR of NaN breaks every limit by infinity.
        """
        if limit is None:
            return 0.0
        return math.inf if math.isnan(self.cvar) else max(0.0, limit - self.cvar)

    def _repr_html_(self) -> str:
        known = {name: value for name, value in self._asdict().items() if not _is_unknown(value)}
        return html_table("Evaluation", known)


def _is_unknown(value: object) -> bool:
    """Return whether a figure was not measured."""
    return value is None or (isinstance(value, float) and math.isnan(value))


class _Episodes(NamedTuple):
    """What one policy returned."""

    totals: Tensor
    """Return of each episode, float64 [B]."""
    running: Tensor
    """Whether it was cut off, bool [B]."""
    returns: list[Tensor]
    """Simple returns of all steps; empty where rewards are no log returns."""

    def evaluation(self, policy: JudgedPolicy, alpha: float) -> Evaluation:
        score = float(self.totals.mean())
        result = _summary(self.totals, self.running, alpha)._replace(**_ratio(self.returns))
        if policy == "greedy":
            return result._replace(policy=policy, greedy_score=score)
        return result._replace(policy=policy, sampled_score=score)


@torch.no_grad()
def evaluate(
    task: Task[Any],
    agent: Agent,
    generator: torch.Generator,
    *,
    policy: EvaluatedPolicy = "greedy",
    actions: torch.Generator | None = None,
    max_steps: int = MAX_STEPS,
    log_returns: bool = False,
    alpha: float = 0.05,
) -> Evaluation:
    """Run the first episode of every environment to its end.

    One episode each, not as many as fit into some time: short ones would count more often.

    `both` runs the environments twice from equal states of the generator: the same starts, and the
    same random numbers on the way as far as a task draws them from it. Greedy is then judged unless
    it is significantly worse, by a paired test over environments (`paired_p_value`) at the level
    `paired.LEVEL`. An environment that draws numbers of its own leaves the test valid and makes it
    less sharp.

    Args:
        task: a batch as large as the number of episodes.
        agent: decides.
        generator: of the starts; equal ones give equal episodes, so that agents can be compared.
        policy: which policy is evaluated: `greedy`, `sampled` or `both`.
        actions: of sampled actions; needed but for `greedy`. A stream of its own, so that what is
            drawn here changes no start.
        max_steps: see `MAX_STEPS`.
        log_returns: whether a reward is the log return of a bar, so that there is a Sharpe ratio.
        alpha: share of worst episodes in CVaR.

    Raises:
        ConfigError: if actions must be sampled and there is no generator for them.
    """

    def episodes(kind: JudgedPolicy, starts: torch.Generator) -> _Episodes:
        drawn = actions if kind == "sampled" else None
        with matrix_precision("float32", task.device):  # beside a member that is training, too
            return _run_episodes(
                task, agent, starts, kind, drawn, max_steps, log_returns=log_returns
            )

    if policy != "both":
        return episodes(policy, generator).evaluation(policy, alpha)
    same = torch.Generator(device=generator.device)
    same.set_state(generator.get_state())
    greedy, sampled = episodes("greedy", generator), episodes("sampled", same)
    p_value = paired.paired_p_value(greedy.totals.cpu().numpy(), sampled.totals.cpu().numpy())
    first, second = greedy.evaluation("greedy", alpha), sampled.evaluation("sampled", alpha)
    judged = first._replace(sampled_score=second.score, policy_p=p_value)
    if not judged.greedy_is_worse:
        return judged
    return second._replace(greedy_score=first.score, policy_p=p_value)


def _run_episodes(
    task: Task[Any],
    agent: Agent,
    starts: torch.Generator,
    policy: JudgedPolicy,
    actions: torch.Generator | None,
    max_steps: int,
    *,
    log_returns: bool,
) -> _Episodes:
    state, observation = task.reset(starts)
    memory = agent.initial_memory(task.batch)
    running = torch.ones(task.batch, dtype=torch.bool, device=task.device)
    totals = torch.zeros(task.batch, dtype=torch.float64, device=task.device)
    returns: list[Tensor] = []
    for _ in range(max_steps):
        decision = agent.decide(
            observation,
            memory,
            deterministic=policy == "greedy",
            generator=actions,
            mask=action_mask(task, state),
        )
        state, step = task.step(state, decision.action, starts)
        observation, memory = step.observation, decision.memory
        reward = step.reward.double()
        totals = totals + torch.where(running, reward, 0.0)
        if log_returns:
            returns.append(reward[running].expm1())
        running = running & ~(step.terminated | step.truncated)
        if not bool(running.any()):
            break
    return _Episodes(totals, running, returns)


def _summary(totals: Tensor, running: Tensor, alpha: float) -> Evaluation:
    low, high = paired.mean_interval(totals.cpu().numpy())
    return Evaluation(
        score=float(totals.mean()),
        spread=float(totals.std()) if len(totals) > 1 else 0.0,
        episodes=len(totals),
        unfinished=int(running.sum()),
        cvar=float(risk.empirical_cvar(totals, alpha=alpha)),
        cvar_error=float(risk.empirical_cvar_error(totals, alpha=alpha)),
        low=low,
        high=high,
    )


def _ratio(returns: list[Tensor]) -> dict[str, Any]:
    """Return the Sharpe ratio of one bar and the number of bars; nothing without returns."""
    if not returns:
        return {}
    bars = torch.cat(returns)
    finite = bool(bars.isfinite().all())
    ratio = float(figures.per_bar_sharpe(bars.cpu().numpy())) if finite else math.nan
    return {"sharpe_per_bar": ratio if math.isfinite(ratio) else None, "bars": len(bars)}
