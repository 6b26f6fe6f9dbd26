"""How strongly the risk term pulls: the length of its own gradient, apart from everything else."""

import torch
from torch import Tensor

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.losses import Batch
from stormsail.algorithms.risk_legacy import legacy_cvar
from stormsail.modules.agent import Agent


def risk_gradient_norm(
    agent: Agent, batch: Batch, part: Tensor, legacy: float, config: TrainConfig
) -> Tensor:
    """Return the norm of the gradient of the risk term alone, over all parameters.

    The term is minus the mean of ratio times the risk's part of the advantage, before the first
    step, where every ratio is 1 and nothing is clipped; or the old critic term, if that has a
    weight. It is differentiated by itself: the norm of all gradients together says nothing of it.

    Args:
        agent: as it played.
        batch: a minibatch of sequences.
        part: of the normalised advantage that is due to risk, [L, n].
        legacy: weight of the old critic term.
        config: of the run.
    """
    network = agent.network
    with torch.enable_grad():
        output = network(batch.observation, batch.memory, batch.reset)
        if legacy:
            chosen = config.risk
            term = -legacy * legacy_cvar(
                agent, output.critic, alpha=chosen.cvar_alpha, estimator=chosen.cvar_estimator
            )
        else:
            log_prob = network.head.log_prob(output.actor, batch.raw_action)
            term = -(log_prob - batch.log_prob).exp() * part
        counted = torch.where(batch.weight > 0.0, term * batch.weight, 0.0).sum()
        total = counted / batch.weight.sum().clamp(min=torch.finfo(batch.weight.dtype).tiny)
        grads = torch.autograd.grad(total, list(agent.parameters()), allow_unused=True)
    norms = torch.stack([grad.double().square().sum() for grad in grads if grad is not None])
    return norms.sum().sqrt()
