"""Environments that a call names: by id, as an object, as a factory, or a market by its bars."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import gymnasium
import torch

from stormsail.algorithms.run.tasks import GYMNASIUM, MARKET
from stormsail.core.errors import ArgumentError
from stormsail.core.task import Task
from stormsail.evaluation.engine.agent_terms import terms_of
from stormsail.market.gymnasium import MarketEnv, MarketVectorEnv
from stormsail.market.panel import Panel
from stormsail.market.simulator import Simulator
from stormsail.modules import Agent
from stormsail.tasks import NAMES, make
from stormsail.tasks.gymnasium_task import GymnasiumTask
from stormsail.tasks.own_environments import register_own

Environment: TypeAlias = str | gymnasium.Env[Any, Any] | Callable[[], gymnasium.Env[Any, Any]]
"""Id of an environment, an environment, or a function that returns a new one."""

Judged: TypeAlias = Environment | MarketVectorEnv | Panel
"""What an agent can be evaluated on: an environment, or bars of a market."""


_LONGEST_ID = 200
"""Characters of an id: it becomes a part of the run's folder."""


class Trials(NamedTuple):
    """Environments in which an agent plays one episode each."""

    task: Task[Any]
    log_returns: bool
    """Whether rewards are log returns of a bar."""


def task_name(env: Environment) -> str:
    """Return the name of an environment as `task.name` has it.

    A name that is one of `stormsail.tasks` means that one, which equals Gymnasium's step by step
    and runs as tensors; `gym:` before it asks for Gymnasium's own.

    Raises:
        ArgumentError: if it is no environment.
    """
    if not isinstance(env, str):
        return GYMNASIUM + register_own(env)
    if not env.isprintable() or len(env) > _LONGEST_ID:
        raise ArgumentError(
            "environment-form",
            wrong=f"the id of an environment must have {_LONGEST_ID} printable characters or fewer",
            found=f"{len(env)}, or others",
            remedy='Write for example `env="CartPole-v1"`.',
        )
    return env if env == MARKET or env in NAMES or env.startswith(GYMNASIUM) else GYMNASIUM + env


def trials(env: Judged, agent: Agent, *, batch: int, device: torch.device) -> Trials:
    """Return so many copies of an environment.

    Bars are traded as the agent was trained: by its market's rules, its features and its scaler,
    with exact order steps, in episodes that start at random.

    Raises:
        ArgumentError: if it is no environment.
        ConfigError: if the agent was trained for something else than the bars, or Gymnasium does
            not know the id.
        DataError: if the bars do not suffice.
    """
    if isinstance(env, Panel):
        return Trials(_market_of(agent, env, batch=batch, device=device), log_returns=True)
    if isinstance(env, MarketEnv | MarketVectorEnv):
        return Trials(env.task(batch=batch, device=device), log_returns=True)
    name = task_name(env)
    if name == MARKET:
        raise ArgumentError(
            "environment-form",
            wrong="a market must be given by its bars",
            found=f"`{MARKET}`",
            remedy="Pass what `ss.load_bars` or `ss.make_market` returns.",
        )
    if name in NAMES:
        return Trials(make(name, batch=batch, device=device), log_returns=False)
    own = GymnasiumTask(name.removeprefix(GYMNASIUM), batch=batch, device=device)
    return Trials(own, log_returns=False)


def _market_of(agent: Agent, panel: Panel, *, batch: int, device: torch.device) -> Simulator:
    terms = terms_of(agent, panel)
    market = terms.market.with_terms(panel.symbols, panel.instruments).with_exact_filters()
    return Simulator(
        panel, market, batch=batch, device=device, features=terms.features, scaler=terms.scaler
    )
