"""Fitness of a member or a trial: how good its agent is on unseen bars, and at which risk.

On the market it is the annualised Sharpe ratio of a backtest on the evaluation span, the last bars
before `task.data.end`; bars behind that are never seen. A flat account has the ratio 0. Elsewhere
it is the mean return of the evaluation episodes. Under a limit on CVaR, agents are ordered as a run
orders them for its best one (`functional.population.limited_fitness`). All members of a round are
evaluated from the same starts, those of another round from others; the trials of a search likewise,
whose rounds are its rungs.
"""

import copy
import math
from typing import Literal, Protocol

import torch

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.run.evaluate import Evaluation, evaluate
from stormsail.algorithms.run.tasks import MARKET, make_task, market_data, market_panel
from stormsail.core.generators import Generators
from stormsail.core.task import close
from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.evaluation.engine.run import backtest
from stormsail.evaluation.stats import figures
from stormsail.functional import population as rules
from stormsail.market.panel import Panel
from stormsail.market.splits import Span
from stormsail.modules.agent import Agent


class Judge(Protocol):
    """What a fitness takes from the configuration of a population or of a search."""

    @property
    def seed(self) -> int:
        """Seed of the starts."""
        ...

    @property
    def metric_mode(self) -> Literal["max", "min"]:
        """Whether a large or a small fitness is the better one."""
        ...


def fitness(
    config: TrainConfig, judge: Judge, agent: Agent, *, round_: int
) -> tuple[float, dict[str, float]]:
    """Return the fitness of an agent, and the metrics behind it.

    Args:
        config: of the member or trial.
        judge: the population or search, whose seed the starts come from.
        agent: is judged.
        round_: number of the round.
    """
    limit, metrics = config.risk.episode_limit, dict[str, float]()
    on_market = config.task.name == MARKET
    score = math.nan
    if on_market:
        score = metrics["sharpe"] = sharpe(config, agent)
    if on_market and limit is None:
        return score, metrics
    evaluation = _evaluation(config, judge, agent, round_)
    metrics |= {"score": evaluation.score, "cvar": evaluation.cvar}
    if not on_market:
        score = evaluation.score
    if limit is None:
        return score, metrics
    breach = metrics["breach"] = evaluation.breach(limit)
    share = breach / abs(limit) if limit else breach
    both = torch.tensor((score, share), dtype=torch.float64)
    judged = rules.limited_fitness(both[0], both[1], mode=judge.metric_mode)
    return float(judged), metrics


def sharpe(config: TrainConfig, agent: Agent) -> float:
    """Return the annualised Sharpe ratio of a backtest on the evaluation span; 0 if it is flat."""
    return sharpe_during(market_data(config).validation, market_panel(config), agent)


def sharpe_during(span: Span, panel: Panel, agent: Agent) -> float:
    """Return the annualised Sharpe ratio of a backtest on a span; 0 if it is flat.

    Args:
        span: bars that are traded.
        panel: these, and earlier ones for features and burn-in.
        agent: with what it is bound to.
    """
    judged = copy.deepcopy(agent).cpu()  # a backtest is float64 arithmetic on the CPU
    result = backtest(judged, panel, BacktestConfig().during(span))
    returns = result.returns
    if not bool((returns != returns[0]).any()):
        return 0.0
    per_year = figures.bars_per_year(result.interval.milliseconds)
    return float(figures.sharpe(returns, per_year=per_year))


def _evaluation(config: TrainConfig, judge: Judge, agent: Agent, round_: int) -> Evaluation:
    streams = Generators(judge.seed, config.device).spawn(f"fitness.{round_}")
    task = make_task(config, batch=config.validation.episodes, purpose="evaluation")
    try:
        return evaluate(
            task,
            agent,
            streams.stream("starts"),
            policy=config.validation.policy,
            actions=streams.stream("actions"),
            log_returns=config.task.name == MARKET,
            alpha=config.risk.cvar_alpha,
        )
    finally:
        close(task)
