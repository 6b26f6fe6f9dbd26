"""Which control of the tail a configuration needs on a task."""

from typing import Any

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.risk.action_critic import ActionCritic, first_weights
from stormsail.algorithms.risk.control import RiskControl
from stormsail.algorithms.risk.limit import ROLLOUTS, LimitControl
from stormsail.algorithms.update.graphs import captures
from stormsail.core.errors import ConfigError
from stormsail.core.generators import Generators
from stormsail.core.task import Task, account_names, episode_steps
from stormsail.modules.agent import Agent

_OF_MULTIPLIER = (
    *("dual_controller", "cvar_kp", "cvar_ki", "cvar_kd", "cvar_lambda_lr", "cvar_lambda_max"),
    *("cvar_rescale", "cvar_ema_beta", "cvar_estimator"),
)
"""Settings that a limit kept by the values of all actions has no use for."""


def offers_all_actions(task: Task[Any], agent: Agent) -> bool:
    """Return whether the task says what every action would have made, and they can be listed.

    Not where it also says which are allowed: what would be allowed after an action that was not
    taken is unknown.
    """
    is_masked = hasattr(task, "action_mask")
    return bool(account_names(task)) and len(agent.network.grid) > 0 and not is_masked


def build_control(
    task: Task[Any], agent: Agent, config: TrainConfig, generators: Generators
) -> RiskControl | LimitControl | None:
    """Return the control of the tail, or of all actions; None where nothing asks for one.

    Raises:
        ConfigError: if all actions are asked for on a task that cannot say what they would make.
    """
    whole = offers_all_actions(task, agent)
    if config.ppo.policy_gradient == "all_actions" and not whole:
        raise ConfigError(
            "config-inconsistent",
            wrong="`ppo.policy_gradient` can be `all_actions` only on a task that says what every "
            "action would have made of a step, with one dimension of actions",
            found=f"`{config.task.name}`",
            remedy="Set `ppo.policy_gradient` to `sampled`.",
        )
    learns = config.risk.form == "critic" and config.risk.episode_limit is not None
    if whole and learns:
        _check_unused(config)
    if whole and (learns or config.ppo.policy_gradient == "all_actions"):
        return LimitControl(config, task, agent, generators)
    graphs = captures(task, config)
    if not learns:
        return RiskControl(config, captured=graphs) if config.risk.watches else None
    critic = ActionCritic(
        agent,
        actions=1,
        gamma=config.ppo.gamma,
        rollouts=ROLLOUTS,
        generator=first_weights(generators),
        captured=graphs,
    )
    return RiskControl(
        config, critic, generators.stream("risk.memory"), episode_steps(task), captured=graphs
    )


def _check_unused(config: TrainConfig) -> None:
    """Refuse settings of a multiplier where there is none: they would change nothing."""
    plain = type(config.risk)()
    unused = [name for name in _OF_MULTIPLIER if getattr(config.risk, name) != getattr(plain, name)]
    if unused:
        raise ConfigError(
            "config-inconsistent",
            wrong="settings of the multiplier must be left out on a task whose limit is kept by "
            "the values of all actions",
            found=", ".join(f"`risk.{name}`" for name in unused),
            remedy='Leave them out, or set `risk.form` to "budget".',
        )
