"""CVaR and value at risk of a return distribution, predicted or sampled. Higher is better.

N quantiles, K atoms, n samples. `alpha` is the share of worst outcomes, in (0, 1].
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from stormsail.functional import _checks as check
from stormsail.functional._numbers import Number, scalar
from stormsail.functional.kernels.devices import may_launch
from stormsail.functional.kernels.losses.lower_quantiles import LONGEST, lower_quantiles

ESTIMATORS = ("dirac", "linear")
RANK_TOLERANCE = 1e-9
"""Relative slack on alpha * N before rounding up: 0.3 * 10 may be a rounding error above 3.

A tensor alpha gets four units in the last place of its dtype: 0.3 in float32 is 3e-8 above 0.3.
"""


def cvar(
    quantiles: Float[Tensor, "*batch N"],
    *,
    alpha: Number,
    estimator: str = "dirac",
    weight: Float[Tensor, " N"] | None = None,
) -> Float[Tensor, "*batch"]:
    r"""Return the mean of the worst `alpha` share of a distribution given by N quantiles.

    .. math::
        CVaR_\alpha = \frac{1}{\alpha} \int_0^\alpha F^{-1}(p)\, dp

    Expected shortfall with the sign of a return: Acerbi & Tasche 2002, arXiv:cond-mat/0104295,
    Def. 2.6 (as an integral: their Prop. 3.2). Quantiles that cross are sorted first.

    * `dirac`: exact for N equal atoms; the atom that straddles alpha counts with the fraction of
      its mass below alpha, so the result is continuous and monotone in alpha and equals the mean at
      alpha = 1. Below alpha = 1 / N it is the smallest atom.
    * `linear`: the exact integral of the piecewise-linear curve through the points
      (midpoint, quantile), its end pieces extrapolated to 0 and 1. Less biased for a smooth
      distribution; not exact for the atoms on which targets live.

    Atoms of unequal mass take their mass along when they are sorted, so the result at alpha = 1 is
    their mean, crossed or not; the points of `linear` are the middles of the sorted cells. Below
    the mass of the worst atom `dirac` is that atom.

    Both understate the tail of a smooth distribution: with exact quantiles of N(0, 1) and alpha = 5
    % by 5.2 % and 4.6 % at N = 21, 2.4 % and 1.4 % at N = 51.

    Args:
        quantiles: values at the middles of their cells, in any order; gradients follow the sort.
        alpha: share of worst outcomes, in (0, 1].
        estimator: `dirac` or `linear`.
        weight: mass of each quantile's cell, sums to 1; None for equal ones.

    Raises:
        RangeError: if `alpha` is a number outside (0, 1].
        ChoiceError: if the estimator is unknown.
        ShapeError: if there is no quantile axis, or not one weight for each quantile.
    """
    check.check_choice(estimator, ESTIMATORS, name="estimator")
    check.check_alpha(alpha)
    check.check_has_axis(axis="quantiles", quantiles=quantiles)
    check.check_floating(quantiles=quantiles)
    check.check_weight(weight, count=quantiles.shape[-1])
    ordered, order = quantiles.sort(-1)
    if weight is None:
        equal = _dirac_weights if estimator == "dirac" else _linear_weights
        share = equal(quantiles.shape[-1], alpha, quantiles)  # [N], sums to 1
    else:
        unequal = _dirac_cells if estimator == "dirac" else _linear_cells
        share = unequal(weight.double()[order], alpha).to(quantiles.dtype)  # [*batch, N]
    worst = torch.where(share == 0.0, 0.0, ordered * share).sum(-1)
    return torch.where(ordered[..., -1].isnan(), torch.nan, worst)  # a NaN sorts last: show it


def value_at_risk(
    quantiles: Float[Tensor, "*batch N"],
    *,
    alpha: Number,
    weight: Float[Tensor, " N"] | None = None,
) -> Float[Tensor, "*batch"]:
    r"""Return the lower alpha-quantile of N atoms, :math:`\theta_{(\lceil \alpha N \rceil)}`.

    The inverse distribution function inf{x : F(x) >= alpha}, an atom of the distribution, not
    interpolated: the lower quantile that Def. 2.6 of Acerbi & Tasche 2002, arXiv:cond-mat/0104295,
    is built on. Of atoms of unequal mass it is the first, in ascending order, up to which the mass
    reaches alpha, with the slack of `categorical_value_at_risk`.

    Raises:
        RangeError: if `alpha` is a number outside (0, 1].
        ShapeError: if there is no quantile axis, or not one weight for each quantile.
    """
    return values_at_risk(quantiles, alphas=(alpha,), weight=weight).squeeze(-1)


def values_at_risk(
    quantiles: Float[Tensor, "*batch N"],
    *,
    alphas: Sequence[Number],
    weight: Float[Tensor, " N"] | None = None,
) -> Float[Tensor, "*batch K"]:
    """Return `value_at_risk` (arXiv:cond-mat/0104295, Def. 2.6) at each of K levels.

    The atoms are sorted once, which is most of the work.

    Raises:
        RangeError: if a level is a number outside (0, 1].
        ShapeError: if there is no quantile axis, or not one weight for each quantile.
    """
    for alpha in alphas:
        check.check_alpha(alpha)
    check.check_has_axis(axis="quantiles", quantiles=quantiles)
    check.check_weight(weight, count=quantiles.shape[-1])
    numbers = [alpha for alpha in alphas if not isinstance(alpha, Tensor)]
    is_short = 0 < quantiles.shape[-1] <= LONGEST and len(numbers) == len(alphas) > 0
    if is_short and _may_compare(quantiles, weight):
        if weight is None:  # the mass at or below an atom is a count
            weight, slack = quantiles.new_ones(quantiles.shape[-1]), RANK_TOLERANCE
            numbers = [alpha * quantiles.shape[-1] for alpha in numbers]
        else:
            slack = _slack(weight)
        return lower_quantiles(quantiles, weight, [own * (1.0 - slack) for own in numbers])
    ordered, order = quantiles.sort(-1)
    is_nan = ordered[..., -1].isnan()  # a NaN sorts last: show it
    if weight is None:
        ranks = [_rank(ordered, alpha).reshape(1) for alpha in alphas]
        levels = ordered.index_select(-1, torch.cat(ranks))
    else:
        levels = ordered.gather(-1, _ranks_reaching(weight[order], alphas))
    return torch.where(is_nan[..., None], torch.nan, levels)


def _may_compare(quantiles: Tensor, weight: Tensor | None) -> bool:
    """Return whether atoms may be compared with each other on a device instead of being sorted."""
    given = [quantiles] if weight is None else [quantiles, weight]
    return may_launch(*given) and not any(part.requires_grad for part in given)


def _slack(mass: Tensor) -> float:
    """Return by which share a level may be missed: masses are sums, and end a rounding away."""
    return 1e-6 if mass.dtype != torch.float64 else 1e-12


def _rank(ordered: Tensor, alpha: Number) -> Int[Tensor, ""]:
    """Return the place of the lower alpha-quantile among N equal atoms."""
    n = ordered.shape[-1]
    count = scalar(alpha, like=ordered) * n
    slack = 4.0 * torch.finfo(alpha.dtype).eps if isinstance(alpha, Tensor) else RANK_TOLERANCE
    return (count * (1.0 - slack)).ceil().long().clamp(1, n) - 1


def categorical_value_at_risk(
    probs: Float[Tensor, "*batch K"], atoms: Float[Tensor, " K"], *, alpha: Number
) -> Float[Tensor, "*batch"]:
    r"""Return the smallest atom whose distribution function reaches alpha.

    The lower quantile that Def. 2.6 of Acerbi & Tasche 2002, arXiv:cond-mat/0104295, is built on.
    Deviation: a level missed by less than the rounding of a K-term sum counts as reached, and the
    last atom stands in if rounding leaves the whole mass below alpha.

    Raises:
        RangeError: if `alpha` is a number outside (0, 1].
        ShapeError: if the distribution does not lie on these atoms.
    """
    check.check_alpha(alpha)
    check.check_distribution(atoms, probs=probs)
    level = atoms[_ranks_reaching(probs, (alpha,)).squeeze(-1)].to(probs.dtype)
    return torch.where(probs.isnan().any(-1), torch.nan, level)


def categorical_cvar(
    probs: Float[Tensor, "*batch K"], atoms: Float[Tensor, " K"], *, alpha: Number
) -> Float[Tensor, "*batch"]:
    r"""Return the mean of the worst `alpha` share of a distribution on fixed atoms.

    .. math::
        \frac1\alpha \sum_k z_k \min\big(p_k,\ [\alpha - F(z_{k-1})]_+\big)

    Acerbi & Tasche 2002, arXiv:cond-mat/0104295, Def. 2.6: full mass below the lower quantile, and
    of the quantile's own atom only what is left of alpha. Mass that rounding leaves missing is put
    on the last atom, so the weights always sum to alpha.

    Args:
        probs: the distribution; differentiable.
        atoms: ascending support.
        alpha: share of worst outcomes, in (0, 1].

    Raises:
        RangeError: if `alpha` is a number outside (0, 1].
        ShapeError: if the distribution does not lie on these atoms.
    """
    check.check_alpha(alpha)
    check.check_distribution(atoms, probs=probs)
    mass = probs.double()
    taken = _take_worst(mass, alpha)
    missing = alpha - taken.sum(-1)
    return (((taken * atoms).sum(-1) + missing * atoms[-1]) / alpha).to(probs.dtype)


def empirical_cvar(
    sample: Float[Tensor, "*batch n"],
    *,
    alpha: Number,
    weight: Float[Tensor, "*batch n"] | None = None,
) -> Float[Tensor, "*batch"]:
    r"""Return the mean of the worst `alpha` share of a sample, the last one counted in part.

    .. math::
        \frac{1}{\alpha W} \sum_i x_{(i)} \min\big(w_{(i)},\ [\alpha W - W_{i-1}]_+\big),
        \qquad W_i = \sum_{j \le i} w_{(j)}

    Acerbi & Tasche 2002, arXiv:cond-mat/0104295, Def. 2.6, for the empirical distribution.
    Deviation from the usual estimator, the mean of the ceil(alpha n) worst: the last sample counts
    only with the share that alpha n leaves for it, which makes the estimate continuous in alpha and
    less biased. Never winsorise the sample first: that removes the tail which is to be measured.

    Args:
        sample: outcomes, unclipped.
        alpha: share of worst outcomes, in (0, 1].
        weight: weight of each outcome, at least 0; those with 0 never matter, whatever they are.

    Returns:
        The estimate; NaN where all weights are 0.

    Raises:
        RangeError: if `alpha` is a number outside (0, 1].
        ShapeError: if `weight` is not shaped like `sample`.
    """
    check.check_alpha(alpha)
    check.check_has_axis(axis="outcomes", sample=sample)
    check.check_floating(sample=sample)
    weight = torch.ones_like(sample) if weight is None else weight
    check.check_same_shape(sample=sample, weight=weight)
    used = ~(weight <= 0)  # an unknown weight takes part, and shows
    ordered, order = torch.where(used, sample, torch.inf).sort(-1)
    mass = torch.where(used, weight, 0.0).double().gather(-1, order)
    tail = alpha * mass.sum(-1, keepdim=True)
    taken = _take_worst(mass, tail)
    worst = torch.where(taken > 0, ordered.double() * taken, 0.0).sum(-1)
    poisoned = torch.where(used, sample, 0.0).isnan().any(-1)  # a NaN sorts last, out of the tail
    return torch.where(poisoned, torch.nan, worst / tail.squeeze(-1)).to(sample.dtype)


def empirical_cvar_error(
    sample: Float[Tensor, "*batch n"], *, alpha: Number, group: Int[Tensor, " n"] | None = None
) -> Float[Tensor, "*batch"]:
    r"""Return the standard error of `empirical_cvar` for n outcomes of equal weight in G groups.

    .. math::
        \frac1n \sqrt{\frac{G}{G-1} \sum_g \Big(\sum_{i \in g} (v_i - \bar v)\Big)^2}, \qquad
        v_i = \nu + \frac{\min(x_i - \nu, 0)}{\alpha}

    with nu the lower alpha-quantile of the sample. Outcomes of one group may depend on each other,
    those of two may not; without groups each outcome is its own, and this is s / sqrt(n) with s the
    standard deviation (n - 1) of the v_i. Ours, from the variational form of CVaR
    (Rockafellar & Uryasev 2000, J. Risk 2(3):21-41, Theorem 1): the estimate is the mean of
    nu + min(x - nu, 0) / alpha at its best nu, where its derivative in nu vanishes; so to first
    order it varies like that mean with nu held fixed. The variance is that which Manistre & Hancock
    2005 (N. Am. Actuar. J. 9(2)) give for the conditional tail expectation. Sums within groups
    before squares, and G / (G - 1), are those of the cluster-robust variance of a mean (the subject
    of Cameron & Miller 2015, J. Hum. Resour. 50(2):317-372), here of the v_i.

    It is an error for many tail outcomes. A band of 1.96 of them at alpha = 5 % covers 95 % of
    normal samples of 2048, 92 % of 512 and 88 % of 200; of Student's t with three degrees 87 % and
    81 % of the last two. Groups do not help a tail with few outcomes in it: of sums of 64 rewards
    that overlap, from 128 rows of 64 environments, it covers 82 % at alpha = 5 % and 93 % at 20 %;
    taken for independent they would have covered 24 % and 27 %.

    Args:
        sample: outcomes, unclipped.
        alpha: share of worst outcomes, in (0, 1].
        group: label of the group of each outcome, the same for every batch; any whole numbers.

    Returns:
        The error; NaN for fewer than two outcomes or groups.

    Raises:
        RangeError: if `alpha` is a number outside (0, 1].
        ShapeError: if there is no axis of outcomes, or not one label for each.
    """
    check.check_alpha(alpha)
    check.check_has_axis(axis="outcomes", sample=sample)
    check.check_floating(sample=sample)
    count = sample.shape[-1]
    if group is not None:
        check.check_same_shape(outcomes=group.new_empty(count), group=group)
    if count < 2:
        return torch.full_like(sample.sum(-1), torch.nan)
    level = value_at_risk(sample, alpha=alpha).unsqueeze(-1).double()
    influence = level + (sample.double() - level).clamp(max=0.0) / alpha
    centred = influence - influence.mean(-1, keepdim=True)
    if group is None:
        variance = centred.square().sum(-1) / ((count - 1) * count)
        return variance.sqrt().to(sample.dtype)
    sums, groups = _group_sums(centred, group)
    variance = sums.square().sum(-1) * groups / ((groups - 1.0) * count**2)
    return torch.where(groups > 1.0, variance, torch.nan).sqrt().to(sample.dtype)


def weighted_value_at_risk(
    sample: Float[Tensor, " n"], weight: Float[Tensor, " n"], *, alpha: Number
) -> Float[Tensor, ""]:
    r"""Return the lower alpha-quantile of a weighted sample.

    The first outcome at which the weight of it and of all lower ones reaches alpha of the whole:
    Acerbi & Tasche 2002, arXiv:cond-mat/0104295, Def. 2.1, for the empirical distribution.

    Args:
        sample: outcomes.
        weight: of each, at least 0.
        alpha: share of worst outcomes, in (0, 1].

    Raises:
        RangeError: if `alpha` is a number outside (0, 1].
        ShapeError: if `weight` is not shaped like `sample`, or there is no outcome.
    """
    check.check_alpha(alpha)
    check.check_rows(sample=sample)
    check.check_same_shape(sample=sample, weight=weight)
    ordered, order = sample.sort()
    mass = weight.double()[order].cumsum(0)
    slack = 4.0 * torch.finfo(alpha.dtype).eps if isinstance(alpha, Tensor) else RANK_TOLERANCE
    place = (mass < scalar(alpha, like=mass) * mass[-1] * (1.0 - slack)).sum()
    level = ordered.index_select(0, place.clamp(max=len(ordered) - 1).reshape(1)).squeeze(0)
    return torch.where(ordered[-1].isnan(), torch.nan, level)  # a NaN sorts last: show it


def stratified_cvar_error(
    sample: Float[Tensor, " n"],
    weight: Float[Tensor, " n"],
    stratum: Bool[Tensor, " n"],
    *,
    alpha: Number,
    level: Number,
    draws: int,
    place: Int[Tensor, " n"] | None = None,
    reach: int = 1,
) -> Float[Tensor, ""]:
    r"""Return the standard error of CVaR from a sample in two strata of a larger one.

    .. math::
        \frac1\alpha \sqrt{\frac{S^2}{M} + \sum_h W_h^2 \frac{s_h^2}{n_h}
        + \Big[2 \sum_{i<j} \Big(1 - \frac{|p_i - p_j|}{R}\Big)_+ z_i z_j\Big]_+},
        \qquad z_i = w_i (x_i - \bar x)

    with :math:`x = \min(G - \nu, 0)`, S its deviation over all with their weights, and for the
    stratum h its share W of the weight, its n outcomes and their deviation s. M draws were made
    once, which is the first part; of those of a stratum n were looked at, which is the second.
    Ours, for the same reason as `empirical_cvar_error`; a little too large, since the second part
    holds what the first has already where all are looked at. A stratum of fewer than two outcomes
    has no deviation and adds nothing.

    The third part is there where outcomes have a place p on a line and depend on those near by, as
    episodes do that share bars of a market: the products of different outcomes in the variance of a
    sum with Bartlett's kernel (Newey & West 1987, Econometrica 55(3):703-708, Eq. 5), taken over
    all outcomes of near places together (Driscoll & Kraay 1998, Rev. Econ. Stat. 80(4):549-560), so
    that it does not matter which symbol an outcome is of. Its expectation is 0 for independent
    outcomes, and it counts only where it is above 0: few places make it noisy, and sharing does not
    make an error smaller. Of two weeks of hourly bars that overlap by half the kernel counts 1/2 at
    a reach of a week and 3/4 at one of two.

    Args:
        sample: outcomes.
        weight: of each; adds up to 1.
        stratum: which of both each belongs to.
        alpha: share of worst outcomes, in (0, 1].
        level: nu, the value at risk.
        draws: M, at least 1.
        place: p, where the draws of each outcome lie; None where each has its own.
        reach: R, distance from which on two outcomes are independent, at least 1.

    Raises:
        RangeError: if `alpha` is a number outside (0, 1], or `draws` or `reach` no whole number
            above 0.
        ShapeError: if the shapes differ, or `level` has a dimension.
        DtypeError: if `stratum` is not boolean.
    """
    check.check_alpha(alpha)
    check.check_scalar(level, name="level")
    check.check_count(draws, name="draws", remedy="Pass the number of draws that there are.")
    check.check_count(reach, name="reach", remedy="Pass how far apart draws depend on each other.")
    check.check_same_shape(sample=sample, weight=weight, stratum=stratum)
    if place is not None:
        check.check_same_shape(sample=sample, place=place)
    check.check_flags(stratum=stratum)
    short = (sample.double() - level).clamp(max=0.0)
    mass = weight.double()
    whole = (mass * (short - (mass * short).sum()).square()).sum() / draws
    for side in (stratum, ~stratum):
        count = side.sum()
        share = torch.where(side, mass, 0.0).sum()
        mean = torch.where(side, short, 0.0).sum() / count.clamp(min=1)
        squares = torch.where(side, (short - mean).square(), 0.0).sum()
        whole = whole + share.square() * squares / ((count - 1).clamp(min=1) * count.clamp(min=1))
    if place is not None:
        own = mass * (short - (mass * short).sum())
        whole = whole + _near_products(own, place, reach).clamp(min=0.0)
    return (whole.sqrt() / alpha).to(sample.dtype)


def _dirac_weights(n: int, alpha: Number, like: Tensor) -> Float[Tensor, " n"]:
    rank = torch.arange(n, dtype=torch.float64, device=like.device)
    return ((alpha * n - rank).clamp(0.0, 1.0) / (alpha * n)).to(like.dtype)


def _linear_weights(n: int, alpha: Number, like: Tensor) -> Float[Tensor, " n"]:
    """Return the weight of each sorted quantile in the integral of the piecewise-linear curve.

    Piece i runs from level knot_i to knot_{i+1} and lies on the line through the quantiles i and
    i + 1; the outer knots are 0 and 1. Its integral up to alpha is its width times the curve's
    value at its middle, which is linear in the two quantiles.
    """
    if n == 1:
        return torch.ones(1, dtype=like.dtype, device=like.device)
    level = (torch.arange(n, dtype=torch.float64, device=like.device) + 0.5) / n
    start = torch.cat((torch.zeros_like(level[:1]), level[1:-1]))  # [n - 1] pieces
    stop = torch.cat((level[1:-1], torch.ones_like(level[:1])))
    stop = torch.minimum(stop, torch.ones_like(stop) * alpha)
    width = (stop - start).clamp(min=0.0) / alpha
    towards_right = ((start + stop) / 2 - level[:-1]) * n  # 0 at quantile i, 1 at quantile i + 1
    left, right = width * (1.0 - towards_right), width * towards_right
    nothing = torch.zeros_like(level[:1])
    return (torch.cat((left, nothing)) + torch.cat((nothing, right))).to(like.dtype)


def _dirac_cells(mass: Float[Tensor, "*batch n"], alpha: Number) -> Float[Tensor, "*batch n"]:
    """Return what each atom, worst first, contributes to the worst alpha; sums to 1.

    Mass that rounding leaves missing is put on the last atom, as in `categorical_cvar`.
    """
    taken = _take_worst(mass, alpha)
    missing = alpha - taken.sum(-1, keepdim=True)
    return torch.cat((taken[..., :-1], taken[..., -1:] + missing), -1) / alpha


def _linear_cells(mass: Float[Tensor, "*batch n"], alpha: Number) -> Float[Tensor, "*batch n"]:
    """Return `_linear_weights` for cells of unequal mass, in the order of their quantiles."""
    if mass.shape[-1] == 1:
        return torch.ones_like(mass)
    level = mass.cumsum(-1) - 0.5 * mass
    start = torch.cat((torch.zeros_like(level[..., :1]), level[..., 1:-1]), -1)
    stop = torch.cat((level[..., 1:-1], torch.ones_like(level[..., :1])), -1)
    stop = torch.minimum(stop, torch.ones_like(stop) * alpha)
    width = (stop - start).clamp(min=0.0) / alpha
    towards_right = ((start + stop) / 2 - level[..., :-1]) / level.diff(dim=-1)
    left, right = width * (1.0 - towards_right), width * towards_right
    nothing = torch.zeros_like(level[..., :1])
    return torch.cat((left, nothing), -1) + torch.cat((nothing, right), -1)


def _take_worst(mass: Tensor, tail: Number) -> Tensor:
    """Return what each entry, worst first, contributes to a tail of the given mass."""
    before = mass.cumsum(-1) - mass
    return torch.minimum((tail - before).clamp(min=0.0), mass)


def _group_sums(
    x: Float[Tensor, "*batch n"], group: Int[Tensor, " n"]
) -> tuple[Float[Tensor, "*batch n"], Float[Tensor, ""]]:
    """Return the sum of each group, by label and then zeros, and how many groups there are.

    As many places as outcomes, so that no shape depends on a value.
    """
    label, order = group.sort()
    begins = torch.cat((torch.ones_like(label[:1]), (label[1:] != label[:-1]).to(label.dtype)))
    place = begins.cumsum(-1) - 1
    sums = torch.zeros_like(x).index_add(-1, place, x.index_select(-1, order))
    return sums, begins.sum().to(x.dtype)


def _near_products(
    x: Float[Tensor, " n"], place: Int[Tensor, " n"], reach: int
) -> Float[Tensor, ""]:
    """Return the sum of x_i x_j (1 - |p_i - p_j| / reach) over all i != j nearer than `reach`.

    Each meets those before it, by place, in sums that are differences of running ones.
    """
    ordered, order = place.sort(stable=True)
    x, p = x[order], (ordered - ordered[0]).to(x.dtype)
    first = torch.searchsorted(ordered, ordered - reach, right=True)  # nearest that counts
    sums = torch.nn.functional.pad(torch.stack((x, x * p)).cumsum(-1), (1, 0))  # [2, n + 1]
    mass, moment = (sums[:, :-1] - sums[:, first]).unbind()
    return 2.0 * (x * (mass * (1.0 - p / reach) + moment / reach)).sum()


def _ranks_reaching(
    probs: Float[Tensor, "*batch K"], alphas: Sequence[Number]
) -> Int[Tensor, "*batch n"]:
    """Return the index of the first atom whose distribution function reaches each of n levels."""
    count = probs.shape[-1]
    if probs.is_cuda:
        # A scan along a short last axis is among the slowest kernels there; a triangular product
        # is not.
        ones = torch.ones(count, count, dtype=torch.float64, device=probs.device).triu()
        sums = probs.detach().double() @ ones
    else:
        sums = probs.detach().double().cumsum(-1).contiguous()
    unit, slack = torch.ones_like(sums[..., :1]), _slack(probs)
    wanted = torch.cat([unit * (alpha * (1.0 - slack)) for alpha in alphas], -1)
    # No sum is smaller than the one before it, so the first that reaches is searched.
    return torch.searchsorted(sums, wanted).clamp(max=count - 1)
