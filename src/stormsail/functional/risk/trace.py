"""The budget form of the risk advantage as a sum of one-step changes. Higher is better.

T rows, B environments, N quantiles, K atoms. As in `functional.risk`, advantages are constants for
the policy gradient and carry none of their own.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from stormsail.functional import _checks as check
from stormsail.functional import returns, risk
from stormsail.functional._numbers import Number


def budget_trace(
    reward: Float[Tensor, "T B"],
    reached: Float[Tensor, "T B N"],
    quantiles: Float[Tensor, "T B N"],
    budget: Float[Tensor, "T B"],
    terminated: Bool[Tensor, "T B"],
    truncated: Bool[Tensor, "T B"],
    *,
    alpha: Number,
    gamma: Number,
    lam: Number,
) -> Float[Tensor, "T B"]:
    r"""Return how much the steps from t on changed the expected shortfall below the budget.

    .. math::
        \delta_t = \frac1\alpha \Big[ \frac1N \sum_j \min(r_t + \gamma\,\theta_j(s_{t+1}) - b_t, 0)
                   - \frac1N \sum_i \min(\theta_i(s_t) - b_t, 0) \Big], \qquad
        A^{risk}_t = \sum_{k \ge 0} (\gamma\lambda)^k \delta_{t+k}

    Ours: `risk.budget_advantage` of one-step atoms, summed like the generalised advantage estimate
    of Schulman et al. 2016, arXiv:1506.02438. The value whose advantage this is,
    E[min(Z - b_t, 0)] / alpha, belongs to the state and to what the episode has earned, for
    b_{t+1} = b_t - r_t.

    With the true laws, gamma = 1 and episodes that end by termination, every lambda gives the
    policy gradient of the episode's CVaR in expectation, since later changes have mean 0. A small
    lambda has little variance and believes the critics; lambda = 1 sums to the shortfall that
    really happened, minus the one expected, which is `budget_advantage` of Monte Carlo targets.
    Discounting and time-out bootstraps make all of them approximations. The sum ends with its
    episode; the last row stands on the law of the state that it reached, as time-outs do.

    Args:
        reward: r_t.
        reached: theta of the state that step t reached, in the unit of the reward; ignored where
            terminated.
        quantiles: theta of s_t.
        budget: b_t, what may still be lost.
        terminated: the reached state is final.
        truncated: the episode was cut at this step.
        alpha: share of worst outcomes, in (0, 1].
        gamma: discount in [0, 1].
        lam: trace decay in [0, 1].

    Returns:
        The advantage, without gradient.

    Raises:
        ShapeError: if the tensors do not share [T, B].
        DtypeError: if a flag is not boolean.
        RangeError: if `alpha`, `gamma` or `lam` is a number out of its range.
    """
    _check(reward, reached, terminated, truncated, gamma=gamma, lam=lam)
    reached, reward = reached.detach(), reward.detach()
    to_come = torch.where(terminated.unsqueeze(-1), 0.0, gamma * reached)
    atoms = reward.to(reached.dtype).unsqueeze(-1) + to_come
    change = risk.budget_advantage(atoms, quantiles, budget, alpha=alpha)
    return _summed(change, terminated, truncated, gamma=gamma, lam=lam)


def categorical_budget_trace(
    reward: Float[Tensor, "T B"],
    reached: Float[Tensor, "T B K"],
    probs: Float[Tensor, "T B K"],
    atoms: Float[Tensor, " K"],
    budget: Float[Tensor, "T B"],
    terminated: Bool[Tensor, "T B"],
    truncated: Bool[Tensor, "T B"],
    *,
    alpha: Number,
    gamma: Number,
    lam: Number,
) -> Float[Tensor, "T B"]:
    r"""Return `budget_trace` for laws on fixed atoms.

    .. math::
        \delta_t = \frac1\alpha \sum_k \big[ p_k(s_{t+1}) \min(r_t + \gamma z_k - b_t, 0)
                   - p_k(s_t) \min(z_k - b_t, 0) \big]

    Ours, as there. The one-step law is read where it lies: nothing is projected on the atoms, so
    nothing of it is smoothed and nothing beyond the support is lost.

    Args:
        reward: r_t, in the unit of the atoms.
        reached: law of the state that step t reached; ignored where terminated.
        probs: the critic's law at s_t.
        atoms: ascending support.
        budget: b_t, what may still be lost.
        terminated: the reached state is final.
        truncated: the episode was cut at this step.
        alpha: share of worst outcomes, in (0, 1].
        gamma: discount in [0, 1].
        lam: trace decay in [0, 1].

    Returns:
        The advantage, without gradient.

    Raises:
        ShapeError: if the tensors do not share [T, B] or the support does not fit.
        DtypeError: if a flag is not boolean.
        RangeError: if `alpha`, `gamma` or `lam` is a number out of its range.
    """
    check.check_alpha(alpha)
    _check(reward, reached, terminated, truncated, gamma=gamma, lam=lam)
    check.check_distribution(atoms, probs=probs, reached=reached)
    check.check_without_last(whole={"probs": probs}, part={"budget": budget})
    reward, reached, probs = reward.detach(), reached.detach(), probs.detach()
    atoms, budget = atoms.detach(), budget.detach()
    left = (budget - reward).unsqueeze(-1)  # [T, B, 1], what may be lost after this step
    going_on = (reached * (gamma * atoms - left).clamp(max=0.0)).sum(-1)
    after = torch.where(terminated, (reward - budget).clamp(max=0.0), going_on)
    expected = (probs * (atoms - budget.unsqueeze(-1)).clamp(max=0.0)).sum(-1)
    change = (after - expected) / alpha
    return _summed(change, terminated, truncated, gamma=gamma, lam=lam)


def _summed(
    change: Tensor, terminated: Tensor, truncated: Tensor, *, gamma: Number, lam: Number
) -> Tensor:
    """Return the decaying sum of later changes: an advantage estimate whose values are all 0."""
    nothing = torch.zeros_like(change)
    return returns.gae(change, nothing, nothing, terminated, truncated, gamma=gamma, lam=lam)


def _check(
    reward: Tensor,
    reached: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: Number,
    lam: Number,
) -> None:
    check.check_time_batch(reward=reward)
    check.check_same_shape(reward=reward, terminated=terminated, truncated=truncated)
    check.check_flags(terminated=terminated, truncated=truncated)
    check.check_without_last(whole={"reached": reached}, part={"reward": reward})
    check.check_gamma(gamma)
    check.check_lam(lam)
