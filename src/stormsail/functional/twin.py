"""Read and train two critics as one. C critics; N quantiles, K atoms."""

import torch
from jaxtyping import Float
from torch import Tensor

from stormsail.core.errors import ChoiceError
from stormsail.functional import _checks as check
from stormsail.functional.categorical import distribution_mean
from stormsail.functional.quantile import expectation

VALUE_MODES = ("min", "mean")
QUANTILE_MODES = ("argmin", "mixture", "elementwise_min")
DISTRIBUTION_MODES = ("argmin", "mixture")


def twin_value(values: Float[Tensor, "*batch C"], *, mode: str) -> Float[Tensor, "*batch"]:
    r"""Return one scalar value from several critics: their `min` or `mean`.

    The pessimistic minimum is that of Fujimoto et al. 2018, arXiv:1802.09477, Eq. 10. Deviation:
    there it guards a maximum over actions, which PPO does not have; here it is plain pessimism with
    a known cost, :math:`E[\min] = -\sigma / \sqrt{\pi}` for two unbiased critics with independent
    errors of spread sigma. `mean` has no such bias.

    Raises:
        ShapeError: if there is no critic axis.
        ChoiceError: if the mode is unknown.
    """
    check.check_choice(mode, VALUE_MODES, name="mode")
    check.check_has_axis(axis="critics", values=values)
    return values.amin(-1) if mode == "min" else values.mean(-1)


def twin_quantiles(
    quantiles: Float[Tensor, "*batch C N"],
    *,
    mode: str,
    weight: Float[Tensor, " N"] | None = None,
) -> Float[Tensor, "*batch M"]:
    r"""Return the quantiles of one distribution from several critics, for risk readings.

    * `argmin`: the critic with the smaller mean, as it is (the first on a tie): the same choice
      that `twin_value` makes, so value and tail come from one distribution.
    * `mixture`: all C N atoms, sorted: the average of the distributions.
    * `elementwise_min`: each sorted, then the smallest per level. More pessimistic than either:
      mean(min(q1, q2)) <= min(mean q1, mean q2).

    Ours; arXiv:1802.09477, Eq. 10 has scalar critics only. The result has the weights of the
    critics, the mass of each quantile's cell. Sorting puts values in the order of the levels (the
    rearrangement of Chernozhukov et al. 2010, Econometrica 78(3)), which for crossed quantiles of
    unequal mass changes their mean. A mixture of those has no weights that all of its rows share,
    and is refused.

    Args:
        quantiles: of each critic.
        mode: one of the three.
        weight: mass of each quantile, sums to 1; None for equal ones.

    Raises:
        ShapeError: if there is no critic axis, or not one weight for each quantile.
        ChoiceError: if the mode is unknown, or `mixture` with weights.
    """
    check.check_choice(mode, QUANTILE_MODES, name="mode")
    check.check_critics(quantiles=quantiles)
    check.check_weight(weight, count=quantiles.shape[-1])
    if mode == "mixture" and weight is not None:
        raise ChoiceError(
            wrong="`mode` must be `argmin` or `elementwise_min` for quantiles of unequal weight",
            found="`mixture`, whose atoms would have other weights in every row",
            remedy="Use `argmin`, or quantiles at equal levels.",
        )
    if mode == "mixture":
        return quantiles.flatten(-2).sort(-1).values
    if mode == "elementwise_min":
        return quantiles.sort(-1).values.amin(-2)
    return _choose(quantiles, expectation(quantiles, weight=weight))


def twin_distribution(
    probs: Float[Tensor, "*batch C K"], atoms: Float[Tensor, " K"], *, mode: str
) -> Float[Tensor, "*batch K"]:
    """Return one distribution from several: `argmin` (smaller mean) or `mixture` (average).

    The categorical twin of `twin_quantiles`. Ours.

    Raises:
        ShapeError: if there is no critic axis or the distributions do not lie on the atoms.
        ChoiceError: if the mode is unknown.
    """
    check.check_choice(mode, DISTRIBUTION_MODES, name="mode")
    check.check_critics(probs=probs)
    check.check_distribution(atoms, probs=probs)
    return probs.mean(-2) if mode == "mixture" else _choose(probs, distribution_mean(probs, atoms))


def twin_loss(
    loss: Float[Tensor, "*batch C"], clipped_loss: Float[Tensor, "*batch C"]
) -> Float[Tensor, "*batch"]:
    r"""Return :math:`\frac1C \sum_c \max(\ell_c, \ell^{clip}_c)`, one value per sample.

    Each critic is its own clipped regression: the maximum per critic and sample comes first, then
    the average. Averaged before the maximum, one critic's excursion would switch the gradient of
    the other; with the maximum of means, one sample's that of another. The clipped maximum is the
    value loss of PPO implementations (arXiv:1707.06347, code); the average is ours.

    Raises:
        ShapeError: if the shapes differ.
    """
    check.check_same_shape(loss=loss, clipped_loss=clipped_loss)
    check.check_has_axis(axis="critics", loss=loss)
    return torch.maximum(loss, clipped_loss).mean(-1)


def _choose(critics: Tensor, mean: Tensor) -> Tensor:
    """Return the critic with the smallest mean: [*b, C, N], [*b, C] -> [*b, N]."""
    chosen = mean.argmin(-1)[..., None, None].expand(*mean.shape[:-1], 1, critics.shape[-1])
    return critics.gather(-2, chosen).squeeze(-2)
