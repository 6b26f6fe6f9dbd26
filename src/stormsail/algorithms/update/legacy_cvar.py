"""The risk term of the earlier bot, for comparison: it moves critics and leaves the policy alone.

It pays the critics for saying that the tail of a state is light. A state's law does not depend on
the action that was drawn in it, so no layer that belongs to the actor alone feels anything.
"""

from torch import Tensor

from stormsail.functional import risk
from stormsail.modules.agent import Agent


def legacy_cvar(agent: Agent, predicted: Tensor, *, alpha: float, estimator: str) -> Tensor:
    """Return the CVaR of the law that all critics give as one, normalised, [*b]; with gradient.

    Args:
        agent: whose critics these are.
        predicted: what they said, [*b, C, W].
        alpha: share of worst outcomes.
        estimator: how quantiles are read.
    """
    critic = agent.network.critic
    law = critic.distribution(predicted)
    if agent.spec.critic.kind == "categorical":
        return risk.categorical_cvar(law, critic.atoms.to(law.dtype), alpha=alpha)
    return risk.cvar(law, alpha=alpha, estimator=estimator)
