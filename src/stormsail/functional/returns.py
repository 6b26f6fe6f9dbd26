"""Advantages and critic targets from one rollout.

Time-major: T steps, B environments, N quantiles, K atoms. Row t holds the reward of step t, the
flags of step t, and `bootstrap[t]`, the value of the state that step t *reached*. Under next-step
autoreset that is the value of row t + 1, read with the unbroken memory, also where an episode ends.

Two masks, never one: `terminated` says that the reached state is worth nothing; `terminated or
truncated` says that the next row belongs to another episode. Masked numbers are selected away, so
a NaN beyond an episode's end cannot travel backwards.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from stormsail.functional import _checks as check
from stormsail.functional._numbers import Number, scalar
from stormsail.functional.categorical import project, project_distribution
from stormsail.functional.kernels import target_rows
from stormsail.functional.kernels.devices import may_launch

LEVEL_TOLERANCE = 1e-9
"""Slack, in units of one quantile's mass, within which a mixture level counts as reached.

Masses such as 10 * (1 - 0.95) miss 0.5 by a rounding error; without slack the tie rule of
`quantile_lambda_targets` would depend on the last bit of lambda.
"""

MASS_BITS = 40
"""Binary digits behind the point of a mass: 2^-40 is far below the slack, 2^22 atoms still fit."""


def gae(
    reward: Float[Tensor, "T B"],
    value: Float[Tensor, "T B"],
    bootstrap: Float[Tensor, "T B"],
    terminated: Bool[Tensor, "T B"],
    truncated: Bool[Tensor, "T B"],
    *,
    gamma: Number,
    lam: Number,
) -> Float[Tensor, "T B"]:
    r"""Return the generalised advantage estimate of every step.

    .. math::
        \delta_t = r_t + \gamma\,(1 - term_t)\,V(s_{t+1}) - V(s_t), \qquad
        A_t = \delta_t + \gamma\lambda\,(1 - done_t)\,A_{t+1},
        \qquad done = term \lor trunc

    Schulman et al. 2016, arXiv:1506.02438, Eq. 16 in its recursive form. Deviations: the paper has
    no time-outs; here a truncated step bootstraps but cuts the trace, so that nothing of the next
    episode reaches it. The last row bootstraps from `bootstrap[T-1]`. Runs in float64; the result
    has the dtype of `reward`.

    Args:
        reward: r_t, in the unit of the value.
        value: V(s_t).
        bootstrap: V of the state that step t reached; ignored where terminated.
        terminated: the reached state is final.
        truncated: the episode was cut although the reached state has a value; where both flags
            are set, `terminated` wins.
        gamma: discount in [0, 1].
        lam: trace decay in [0, 1]; 0 is the one-step error, 1 the Monte Carlo advantage.

    Raises:
        ShapeError: if the tensors are not all the same [T, B].
        DtypeError: if a flag is not boolean.
        RangeError: if `gamma` or `lam` is a number outside [0, 1].
    """
    check.check_time_batch(reward=reward)
    check.check_same_shape(
        reward=reward, value=value, bootstrap=bootstrap, terminated=terminated, truncated=truncated
    )
    check.check_flags(terminated=terminated, truncated=truncated)
    check.check_gamma(gamma)
    check.check_lam(lam)
    if _on_device(reward, value, bootstrap):
        flags = (terminated, truncated)
        return target_rows.gae(reward, value, bootstrap, *flags, gamma=gamma, lam=lam)
    next_value = torch.where(terminated, 0.0, bootstrap.double())
    delta = reward.double() + gamma * next_value - value.double()
    done = terminated | truncated
    rows, following = [], torch.zeros_like(delta[0])
    for delta_t, done_t in zip(reversed(delta.unbind(0)), reversed(done.unbind(0)), strict=True):
        following = delta_t + gamma * lam * following.masked_fill(done_t, 0.0)
        rows.append(following)
    return torch.stack(rows[::-1]).to(reward.dtype)


def quantile_nstep_targets(
    reward: Float[Tensor, "T B"],
    bootstrap_quantiles: Float[Tensor, "T B N"],
    terminated: Bool[Tensor, "T B"],
    truncated: Bool[Tensor, "T B"],
    *,
    gamma: Number,
    steps: int,
) -> Float[Tensor, "T B N"]:
    r"""Return the atoms of the n-step return distribution of every step.

    .. math::
        y_{t,j} = \sum_{k=0}^{m-1} \gamma^k r_{t+k} + \gamma^m \theta_j(s_{t+m}), \qquad
        m = \min(n,\ \text{steps to the episode's end},\ T - t)

    The multi-step distributional target of Hessel et al. 2018, arXiv:1710.02298 (Section "The
    Integrated Agent", unnumbered), with quantile atoms (Dabney et al. 2018, arXiv:1710.10044).
    Deviations: the window shortens at an episode's end and at the rollout's end; a terminal state
    adds nothing, a time-out bootstraps from the state it reached. `steps=1` is the one-step target,
    `steps >= T` the Monte Carlo target within the rollout.

    Args:
        reward: r_t.
        bootstrap_quantiles: theta(s) of the state that step t reached; ignored where terminated.
        terminated: the reached state is final.
        truncated: the episode was cut at this step.
        gamma: discount in [0, 1].
        steps: n, at least 1.

    Raises:
        ShapeError: if the tensors do not share [T, B].
        DtypeError: if a flag is not boolean.
        RangeError: if `gamma` or `steps` is out of range.
    """
    _check_rollout(reward, bootstrap_quantiles, terminated, truncated, "bootstrap_quantiles")
    check.check_gamma(gamma)
    check.check_steps(steps)
    if _on_device(reward, bootstrap_quantiles):
        return target_rows.quantile_nstep_targets(
            reward, bootstrap_quantiles, terminated, truncated, gamma=gamma, steps=steps
        )
    total, last, discount = _windows(reward, terminated, truncated, gamma=gamma, steps=steps)
    quantiles = _rows(bootstrap_quantiles, last)  # [T, B, N]
    final = terminated.gather(0, last).unsqueeze(-1)  # [T, B, 1]
    tail = torch.where(final, 0.0, discount.to(quantiles.dtype).unsqueeze(-1) * quantiles)
    return (total.to(quantiles.dtype).unsqueeze(-1) + tail).to(reward.dtype)


def quantile_lambda_targets(
    reward: Float[Tensor, "T B"],
    bootstrap_quantiles: Float[Tensor, "T B N"],
    terminated: Bool[Tensor, "T B"],
    truncated: Bool[Tensor, "T B"],
    *,
    gamma: Number,
    lam: Number,
) -> Float[Tensor, "T B N"]:
    r"""Return the atoms of the lambda-mixture of n-step return distributions.

    .. math::
        Z_t = r_t + \gamma \cdot \begin{cases}
            0 & \text{terminated} \\
            \theta(s_{t+1}) & \text{truncated or } t = T-1 \\
            (1-\lambda)\,\theta(s_{t+1}) \oplus \lambda\,Z_{t+1} & \text{otherwise}
        \end{cases}

    where the circled plus mixes *distributions* (probabilities, not values) and the mixture is
    projected back on N equal atoms: its inverse distribution function at p,
    inf{x : F(x) >= p}, at the midpoints (i + 1/2) / N. Mixing distributions is what keeps the tail:
    the mixture of values, the scalar lambda-return, has less than half the true spread. Mixtures of
    n-step return distributions: Gruslys et al. 2018, arXiv:1704.04651, Section 3.2 (unnumbered).
    Deviation: N quantiles, hence the projection; it costs tail mass at every step, which is why the
    n-step target is the default.

    Args:
        reward: r_t.
        bootstrap_quantiles: theta of the state that step t reached, in any order; ignored where
            terminated.
        terminated: the reached state is final.
        truncated: the episode was cut at this step.
        gamma: discount in [0, 1].
        lam: mixing weight in [0, 1]; 0 is the one-step target.

    Raises:
        ShapeError: if the tensors do not share [T, B].
        DtypeError: if a flag is not boolean.
        RangeError: if `gamma` or `lam` is out of range.
    """
    _check_rollout(reward, bootstrap_quantiles, terminated, truncated, "bootstrap_quantiles")
    check.check_gamma(gamma)
    check.check_lam(lam)
    kind = torch.promote_types(reward.dtype, bootstrap_quantiles.dtype)
    boot = bootstrap_quantiles.to(kind).sort(-1).values  # [T, B, N]
    done = (terminated | truncated).unsqueeze(-1)  # [T, B, 1]
    final = terminated.unsqueeze(-1)
    # A NaN sorts last, where no level may read it: it is carried along to keep its rows visible.
    unknown = boot[..., -1:].isnan() & ~final
    mix = _Mixture.of(boot.shape[-1], lam, like=boot)
    atoms, lost = boot[-1], unknown[-1]  # what follows the last row is the bootstrap itself
    rows = []
    for t in range(reward.shape[0] - 1, -1, -1):
        if t < reward.shape[0] - 1:
            atoms = torch.where(done[t], boot[t], mix.quantiles(boot[t], atoms))
            lost = unknown[t] | (lost & ~done[t])
        reward_t = reward[t].unsqueeze(-1)
        atoms = torch.where(
            final[t], reward_t, reward_t.masked_fill(lost, torch.nan) + gamma * atoms
        )
        rows.append(atoms)
    return torch.stack(rows[::-1]).to(reward.dtype)


def categorical_nstep_targets(
    reward: Float[Tensor, "T B"],
    bootstrap_probs: Float[Tensor, "T B K"],
    terminated: Bool[Tensor, "T B"],
    truncated: Bool[Tensor, "T B"],
    atoms: Float[Tensor, " K"],
    *,
    gamma: Number,
    steps: int,
) -> Float[Tensor, "T B K"]:
    r"""Return the n-step return distribution of every step, projected on the atoms.

    .. math::
        p_t = \Pi\Big(\sum_{k<m} \gamma^k r_{t+k} + \gamma^m Z(s_{t+m})\Big)

    with the window of `quantile_nstep_targets` and the projection of Bellemare et al. 2017,
    arXiv:1707.06887, Eq. 7, applied to a multi-step target as in Hessel et al. 2018,
    arXiv:1710.02298, Section "The Integrated Agent". A window that ends in a terminal state is the
    projected Dirac of its reward sum.

    Args:
        reward: r_t, in the unit of the atoms.
        bootstrap_probs: distribution of the state that step t reached; ignored where terminated.
        terminated: the reached state is final.
        truncated: the episode was cut at this step.
        atoms: ascending support.
        gamma: discount in [0, 1].
        steps: n, at least 1.

    Raises:
        ShapeError: if the tensors do not share [T, B] or the support does not fit.
        DtypeError: if a flag is not boolean.
        RangeError: if `gamma` or `steps` is out of range.
    """
    _check_rollout(reward, bootstrap_probs, terminated, truncated, "bootstrap_probs")
    check.check_distribution(atoms, bootstrap_probs=bootstrap_probs)
    check.check_gamma(gamma)
    check.check_steps(steps)
    total, last, discount = _windows(reward, terminated, truncated, gamma=gamma, steps=steps)
    total, discount = total.to(atoms.dtype), discount.to(atoms.dtype)
    final = terminated.gather(0, last).unsqueeze(-1)  # [T, B, 1]
    support = total.unsqueeze(-1) + discount.unsqueeze(-1) * atoms  # [T, B, K]
    probs = project_distribution(_rows(bootstrap_probs, last), support, atoms)
    return torch.where(final, project(total, atoms), probs).to(reward.dtype)


def _check_rollout(
    reward: Tensor, bootstrap: Tensor, terminated: Tensor, truncated: Tensor, name: str
) -> None:
    check.check_time_batch(reward=reward)
    check.check_same_shape(reward=reward, terminated=terminated, truncated=truncated)
    check.check_flags(terminated=terminated, truncated=truncated)
    check.check_without_last(whole={name: bootstrap}, part={"reward": reward})


def _on_device(*tensors: Tensor) -> bool:
    """Return whether kernels can do it: they know no gradients."""
    learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return not learns and may_launch(*tensors)


def _window_sum(
    terms: Float[Tensor, "T B"], done: Bool[Tensor, "T B"], *, decay: Number, steps: int
) -> Float[Tensor, "T B"]:
    """Return the sum of decay^k terms[t+k] over at most `steps` rows, ending with a `done` row.

    Windows of 1, 2, 4, ... rows are composed along the binary digits of `steps`: log2 vector
    operations instead of one per row. A window that met its end is closed: what lies behind it is
    never added, not even times zero.
    """
    block, is_open, size = terms.clone(), ~done, 1  # the sums grow in place
    total, total_open, length = torch.zeros_like(terms), torch.ones_like(done), 0
    remaining = min(steps, terms.shape[0])
    while remaining > 1:
        if remaining & 1:
            _continue(total, total_open, block, decay=decay, length=length)
            total_open = _still_open(total_open, is_open, length=length)
            length += size
        _continue(block, is_open, block, decay=decay, length=size)
        is_open = _still_open(is_open, is_open, length=size)
        remaining, size = remaining // 2, size * 2
    if not length:
        return block
    _continue(total, total_open, block, decay=decay, length=length)
    return total


def _continue(head: Tensor, head_open: Tensor, tail: Tensor, *, decay: Number, length: int) -> None:
    """Add to open windows of `length` rows, in place, the windows that follow them."""
    rows = head.shape[0] - length
    if rows <= 0:
        return
    following = torch.where(head_open[:rows], tail[length:], 0.0)  # a copy: head may be tail
    if isinstance(decay, Tensor):
        head[:rows].add_(following * decay**length)
    else:
        head[:rows].add_(following, alpha=decay**length)


def _still_open(head: Tensor, tail: Tensor, *, length: int) -> Tensor:
    """Return which joined windows met no end; none reaches beyond the last row."""
    rows = max(head.shape[0] - length, 0)
    return torch.cat((head[:rows] & tail[length:], torch.zeros_like(head[rows:])))


def _windows(
    reward: Float[Tensor, "T B"],
    terminated: Bool[Tensor, "T B"],
    truncated: Bool[Tensor, "T B"],
    *,
    gamma: Number,
    steps: int,
) -> tuple[Float[Tensor, "T B"], Int[Tensor, "T B"], Float[Tensor, "T B"]]:
    """Return, for the window that starts at each row: reward sum, last row, gamma^length."""
    if _on_device(reward):
        return target_rows.windows(reward, terminated, truncated, gamma=gamma, steps=steps)
    done = terminated | truncated
    time = torch.arange(reward.shape[0], device=reward.device).unsqueeze(-1)  # [T, 1]
    end = torch.where(done, time, reward.shape[0] - 1)  # [T, B]
    first_end = end.flip(0).cummin(0).values.flip(0)
    last = torch.minimum(first_end, time + (min(steps, reward.shape[0]) - 1))
    length = (last - time + 1).double()
    total = _window_sum(reward.double(), done, decay=gamma, steps=steps)
    return total, last, scalar(gamma, like=reward) ** length


def _rows(values: Float[Tensor, "T B N"], row: Int[Tensor, "T B"]) -> Float[Tensor, "T B N"]:
    """Return `values[row[t, b], b]`."""
    return values.gather(0, row.unsqueeze(-1).expand_as(values))


class _Mixture(NamedTuple):
    """(1 - lam) first + lam second, for distributions of n equal atoms, read at n midpoints.

    In units of 1 / n an atom of `first` has the mass 1 - lam and one of `second` lam. Merged, each
    atom fills the levels between the mass before it and the mass up to it; as no mass exceeds 1,
    that is one level k + 1/2 or none. Masses are whole numbers of 2^-40: rounding can then neither
    leave a level without its atom nor decide a tie.
    """

    own_mass: Int[Tensor, " m"]  # of each of the m = 2 n atoms, those of `first` before the others
    other_mass: Int[Tensor, " m"]  # of one atom of the other one
    alone: Int[Tensor, " m"]  # mass up to each atom if there were no other one, less a half

    @classmethod
    def of(cls, n: int, lam: Number, *, like: Tensor) -> "_Mixture":
        """Return the masses of two distributions of n atoms."""
        unit = 1 << MASS_BITS
        second = (scalar(lam, like=like) * unit).round().long().expand(n)
        first = unit - second
        half = unit // 2 - round(LEVEL_TOLERANCE * unit)
        rank = torch.arange(1, n + 1, device=like.device)
        own = torch.cat((first, second))
        return cls(own, torch.cat((second, first)), rank.repeat(2) * own - half)

    def quantiles(
        self, first: Float[Tensor, "B n"], second: Float[Tensor, "B n"]
    ) -> Float[Tensor, "B n"]:
        """Return the midpoint quantiles of the mixture of two sorted distributions."""
        batch, n = first.shape
        # How many of `first` lie at or below each of `second` also tells the reverse: an atom of
        # `second` lies below first[i] exactly if at most i of `first` lie at or below it.
        first_below = torch.searchsorted(first, second, right=True)  # [B, n] in 0 .. n
        count = first_below.new_zeros((batch, n + 1))
        count.scatter_add_(-1, first_below, torch.ones_like(first_below))
        below = torch.cat((count.cumsum(-1)[..., :n], first_below), -1)  # [B, 2 n]
        up_to = torch.addcmul(self.alone, below, self.other_mass)
        beyond = up_to & ((1 << MASS_BITS) - 1)  # mass behind the last level reached
        level = (up_to >> MASS_BITS).masked_fill_(beyond >= self.own_mass, n)
        mixed = first.new_full((batch, n + 1), torch.nan)
        return mixed.scatter(-1, level, torch.cat((first, second), -1))[..., :n]
