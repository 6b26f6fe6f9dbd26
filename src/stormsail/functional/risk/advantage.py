"""Risk advantages: what an action does to the lower tail of the return. Higher is better.

T rows, B environments, N quantiles, K atoms, M target atoms. `alpha` is the share of worst
outcomes, in (0, 1]. An advantage is a constant for the policy gradient and carries no gradient of
its own: a risk term that differentiated the critic instead would teach it optimism and leave the
policy alone.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from stormsail.functional import _checks as check
from stormsail.functional import returns
from stormsail.functional._numbers import Number
from stormsail.functional.quantile import expectation
from stormsail.functional.risk.tail import (
    categorical_cvar,
    categorical_value_at_risk,
    cvar,
    value_at_risk,
)


def risk_advantage(
    sampled_return: Float[Tensor, "*batch"],
    quantiles: Float[Tensor, "*batch N"],
    *,
    alpha: Number,
    weight: Float[Tensor, " N"] | None = None,
) -> Float[Tensor, "*batch"]:
    r"""Return how much better for the tail at s_t the sampled return was than the critic expects.

    .. math::
        A^{risk} = \frac1\alpha \min(G - VaR_\alpha, 0) - (CVaR_\alpha - VaR_\alpha)

    The CVaR policy gradient of Tamar, Glassner & Mannor 2015, arXiv:1404.3862, Proposition 1, per
    state: E[A^risk grad log pi(a_t | s_t)] is the gradient of the CVaR of the return from s_t with
    the later policy held fixed. Deviation: the critic's CVaR is subtracted as a baseline, so the
    mean is zero where the quantiles are right. This per-state objective is not the CVaR of the
    whole episode; for that see `budget_advantage`.

    Args:
        sampled_return: G, a sample of the return from s_t, in the unit of the quantiles.
        quantiles: the critic's distribution at s_t.
        alpha: share of worst outcomes, in (0, 1].
        weight: mass of each quantile, sums to 1; None for equal ones.

    Returns:
        The advantage, without gradient.

    Raises:
        ShapeError: if `sampled_return` is not shaped like `quantiles` without the last dimension,
            or there is not one weight for each quantile.
        RangeError: if `alpha` is a number outside (0, 1].
    """
    check.check_without_last(
        whole={"quantiles": quantiles}, part={"sampled_return": sampled_return}
    )
    sampled_return, quantiles = sampled_return.detach(), quantiles.detach()
    level = value_at_risk(quantiles, alpha=alpha, weight=weight)
    shortfall = (sampled_return - level).clamp(max=0.0)
    return shortfall / alpha - (cvar(quantiles, alpha=alpha, weight=weight) - level)


def categorical_risk_advantage(
    sampled_return: Float[Tensor, "*batch"],
    probs: Float[Tensor, "*batch K"],
    atoms: Float[Tensor, " K"],
    *,
    alpha: Number,
) -> Float[Tensor, "*batch"]:
    """Return `risk_advantage` for a distribution on fixed atoms (arXiv:1404.3862, Proposition 1).

    Raises:
        ShapeError: if the shapes do not fit.
        RangeError: if `alpha` is a number outside (0, 1].
    """
    check.check_distribution(atoms, probs=probs)
    check.check_without_last(whole={"probs": probs}, part={"sampled_return": sampled_return})
    sampled_return, probs, atoms = sampled_return.detach(), probs.detach(), atoms.detach()
    level = categorical_value_at_risk(probs, atoms, alpha=alpha)
    shortfall = (sampled_return - level).clamp(max=0.0)
    return shortfall / alpha - (categorical_cvar(probs, atoms, alpha=alpha) - level)


def budget_advantage(
    target_atoms: Float[Tensor, "*batch M"],
    quantiles: Float[Tensor, "*batch N"],
    budget: Float[Tensor, "*batch"],
    *,
    alpha: Number,
    weight: Float[Tensor, " N"] | None = None,
    target_weight: Float[Tensor, " M"] | None = None,
) -> Float[Tensor, "*batch"]:
    r"""Return how much an action changed the expected shortfall below the episode's budget.

    .. math::
        A^{risk}_t = \frac1\alpha \Big[ \frac1M \sum_j \min(y_j - b_t, 0)
                     - \frac1N \sum_i \min(\theta_i - b_t, 0) \Big], \qquad b_t = \nu - C_t

    with nu the VaR of episode returns and C_t the return of the episode before step t; atoms of
    unequal mass have that in the place of 1 / M and 1 / N. From the variational form of CVaR
    (Rockafellar & Uryasev 2000, J. Risk 2(3):21-41, Theorem 1): the CVaR of the episode return is
    nu + E[min(C_T - nu, 0)] / alpha at its optimal nu, so its policy gradient weighs every action
    by the shortfall of the return still to come below b_t. Ours; Tamar et al. 2015,
    arXiv:1404.3862, weigh by one sampled return instead of the target's atoms.

    For gamma = 1 and episodes that end by termination this is the policy gradient of the static
    episode CVaR, with the critic's distribution as baseline. Discounting and time-out bootstraps
    make it an approximation.

    Args:
        target_atoms: y_j, atoms of the distributional target at s_t, undiscounted reward units.
        quantiles: theta_i, the critic's distribution at s_t in the same unit.
        budget: b_t, what may still be lost, in the same unit.
        alpha: share of worst outcomes, in (0, 1].
        weight: mass of each quantile, sums to 1; None for equal ones.
        target_weight: mass of each target atom, likewise.

    Returns:
        The advantage, without gradient.

    Raises:
        ShapeError: if the leading dimensions differ, or there is not one weight for each atom.
        RangeError: if `alpha` is a number outside (0, 1].
    """
    check.check_alpha(alpha)
    check.check_same_leading(quantiles=quantiles, target_atoms=target_atoms)
    check.check_has_axis(axis="atoms", target_atoms=target_atoms, quantiles=quantiles)
    check.check_weight(target_weight, count=target_atoms.shape[-1], name="target_weight")
    check.check_without_last(whole={"quantiles": quantiles}, part={"budget": budget})
    level = budget.detach().unsqueeze(-1)
    after = expectation((target_atoms.detach() - level).clamp(max=0.0), weight=target_weight)
    expected = expectation((quantiles.detach() - level).clamp(max=0.0), weight=weight)
    return (after - expected) / alpha


def categorical_budget_advantage(
    target_probs: Float[Tensor, "*batch K"],
    probs: Float[Tensor, "*batch K"],
    atoms: Float[Tensor, " K"],
    budget: Float[Tensor, "*batch"],
    *,
    alpha: Number,
) -> Float[Tensor, "*batch"]:
    r"""Return `budget_advantage` for distributions on fixed atoms.

    .. math::
        \frac1\alpha \sum_k (p^{target}_k - p_k) \min(z_k - b_t, 0)

    Ours, as there.

    Args:
        target_probs: the distributional target at s_t, on the atoms.
        probs: the critic's distribution at s_t.
        atoms: ascending support, decoded to the unit of the budget.
        budget: b_t, what may still be lost.
        alpha: share of worst outcomes, in (0, 1].

    Returns:
        The advantage, without gradient.

    Raises:
        ShapeError: if the shapes do not fit.
        RangeError: if `alpha` is a number outside (0, 1].
    """
    check.check_alpha(alpha)
    check.check_distribution(atoms, probs=probs)
    check.check_same_shape(probs=probs, target_probs=target_probs)
    check.check_without_last(whole={"probs": probs}, part={"budget": budget})
    shortfall = (atoms.detach() - budget.detach().unsqueeze(-1)).clamp(max=0.0)  # [*batch, K]
    return ((target_probs.detach() - probs.detach()) * shortfall).sum(-1) / alpha


def budget_trace(
    reward: Float[Tensor, "T B"],
    next_quantiles: Float[Tensor, "T B N"],
    quantiles: Float[Tensor, "T B N"],
    budget: Float[Tensor, "T B"],
    terminated: Bool[Tensor, "T B"],
    truncated: Bool[Tensor, "T B"],
    *,
    alpha: Number,
    gamma: Number,
    lam: Number,
    weight: Float[Tensor, " N"] | None = None,
) -> Float[Tensor, "T B"]:
    r"""Return how much the steps from t on changed the expected shortfall below the budget.

    .. math::
        \delta_t = \frac1\alpha \Big[ \frac1N \sum_j \min(r_t + \gamma\,\theta_j(s_{t+1}) - b_t, 0)
                   - \frac1N \sum_i \min(\theta_i(s_t) - b_t, 0) \Big], \qquad
        A^{risk}_t = \sum_{k \ge 0} (\gamma\lambda)^k \delta_{t+k}

    Ours: `budget_advantage` of one-step atoms, summed like the generalised advantage estimate
    of Schulman et al. 2016, arXiv:1506.02438. The value whose advantage this is,
    E[min(Z - b_t, 0)] / alpha, is a function of the state and of the return so far, for
    b_{t+1} = b_t - r_t.

    With the true distributions, gamma = 1 and episodes that end by termination, every lambda gives
    the policy gradient of the episode's CVaR in expectation, since later changes have mean 0. A
    small lambda has little variance and relies on the critics; lambda = 1 sums to the shortfall
    that really happened, minus the one expected, which is `budget_advantage` of Monte Carlo
    targets. Discounting and time-out bootstraps make all of them approximations. The sum ends with
    its episode; the last row bootstraps from s_T, as time-outs do.

    Args:
        reward: r_t.
        next_quantiles: theta of s_{t+1}, in the unit of the reward; ignored where terminated.
        quantiles: theta of s_t.
        budget: b_t, what may still be lost.
        terminated: s_{t+1} is final.
        truncated: the episode was cut at this step.
        alpha: share of worst outcomes, in (0, 1].
        gamma: discount in [0, 1].
        lam: trace decay in [0, 1].
        weight: mass of each quantile, sums to 1; None for equal ones.

    Returns:
        The advantage, without gradient.

    Raises:
        ShapeError: if the tensors do not share [T, B], or there is not one weight for each
            quantile.
        DtypeError: if a flag is not boolean.
        RangeError: if `alpha`, `gamma` or `lam` is a number out of its range.
    """
    _check(reward, {"next_quantiles": next_quantiles}, terminated, truncated, gamma=gamma, lam=lam)
    next_quantiles, reward = next_quantiles.detach(), reward.detach()
    to_come = torch.where(terminated.unsqueeze(-1), 0.0, gamma * next_quantiles)
    atoms = reward.to(next_quantiles.dtype).unsqueeze(-1) + to_come
    change = budget_advantage(
        atoms, quantiles, budget, alpha=alpha, weight=weight, target_weight=weight
    )
    return _summed(change, terminated, truncated, gamma=gamma, lam=lam)


def categorical_budget_trace(
    reward: Float[Tensor, "T B"],
    next_probs: Float[Tensor, "T B K"],
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
    r"""Return `budget_trace` for distributions on fixed atoms.

    .. math::
        \delta_t = \frac1\alpha \sum_k \big[ p_k(s_{t+1}) \min(r_t + \gamma z_k - b_t, 0)
                   - p_k(s_t) \min(z_k - b_t, 0) \big]

    Ours, as there. The one-step distribution is read where it lies: nothing is projected on the
    atoms, so nothing of it is smoothed and nothing beyond the support is lost.

    Args:
        reward: r_t, in the unit of the atoms.
        next_probs: the critic's distribution at s_{t+1}; ignored where terminated.
        probs: the critic's distribution at s_t.
        atoms: ascending support.
        budget: b_t, what may still be lost.
        terminated: s_{t+1} is final.
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
    _check(reward, {"next_probs": next_probs}, terminated, truncated, gamma=gamma, lam=lam)
    check.check_distribution(atoms, probs=probs, next_probs=next_probs)
    check.check_without_last(whole={"probs": probs}, part={"budget": budget})
    reward, next_probs, probs = reward.detach(), next_probs.detach(), probs.detach()
    atoms, budget = atoms.detach(), budget.detach()
    left = (budget - reward).unsqueeze(-1)  # [T, B, 1], what may be lost after this step
    continuing = (next_probs * (gamma * atoms - left).clamp(max=0.0)).sum(-1)
    after = torch.where(terminated, (reward - budget).clamp(max=0.0), continuing)
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
    following: dict[str, Tensor],
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: Number,
    lam: Number,
) -> None:
    check.check_time_batch(reward=reward)
    check.check_same_shape(reward=reward, terminated=terminated, truncated=truncated)
    check.check_flags(terminated=terminated, truncated=truncated)
    check.check_without_last(whole=following, part={"reward": reward})
    check.check_gamma(gamma)
    check.check_lam(lam)


def shortfall_increment(
    reward: Float[Tensor, "*batch"], return_so_far: Float[Tensor, "*batch"], *, level: Number
) -> Float[Tensor, "*batch"]:
    r"""Return what a step adds to an episode's shortfall below a level.

    .. math::
        \rho_t = \min(C_t + r_t - \nu, 0) - \min(C_t - \nu, 0)

    with :math:`C_t` the rewards before the step. Over an episode the increments add up to
    :math:`\min(G - \nu, 0) - \min(-\nu, 0)`, so their undiscounted sum is a second return whose
    mean, over alpha and with nu added, is CVaR where nu is the value at risk: Rockafellar & Uryasev
    2000, Eq. 4. As an MDP with the state :math:`(s, C)`: Baeuerle & Ott 2011.

    Args:
        reward: of the step.
        return_so_far: C, sum of the episode's rewards before it.
        level: nu, in reward units.

    Raises:
        ShapeError: if the shapes differ.
    """
    check.check_same_shape(reward=reward, return_so_far=return_so_far)
    check.check_scalar(level, name="level")
    after = (return_so_far + reward - level).clamp(max=0.0)
    return after - (return_so_far - level).clamp(max=0.0)
