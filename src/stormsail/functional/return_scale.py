"""Return scale of the critics: encode, decode, and PopArt rescaling that keeps predictions.

Heads predict (R - mean) / std. Decoding must use the statistics that the head was last trained
with; when the statistics change, the last layer is rescaled with them (PopArt), so that they never
differ.
"""

from jaxtyping import Float
from torch import Tensor

from stormsail.functional import _checks as check
from stormsail.functional._numbers import Number, clamp
from stormsail.functional.kernels.affine import mapped, maps

LOSSES = ("squared", "quantile")


def encode(x: Float[Tensor, "*batch"], mean: Number, std: Number) -> Float[Tensor, "*batch"]:
    r"""Return :math:`(x - \mu) / \sigma` (van Hasselt et al. 2016, arXiv:1602.07714, Section 2).

    Raises:
        RangeError: if `std` is a number that is not greater than 0.
    """
    check.check_known(mean=mean)
    check.check_std(std=std)
    if maps(x, mean, std):
        return mapped(x, taken=mean, divisor=std)
    return (x - mean) / std


def decode(x: Float[Tensor, "*batch"], mean: Number, std: Number) -> Float[Tensor, "*batch"]:
    r"""Return :math:`\sigma x + \mu` (van Hasselt et al. 2016, arXiv:1602.07714, Section 2).

    Raises:
        RangeError: if `std` is a number that is not greater than 0.
    """
    check.check_known(mean=mean)
    check.check_std(std=std)
    if maps(x, mean, std):
        return mapped(x, factor=std, added=mean)
    return std * x + mean


def re_express(
    x: Float[Tensor, "*batch"], mean: Number, std: Number, new_mean: Number, new_std: Number
) -> Float[Tensor, "*batch"]:
    r"""Return an encoded value in new statistics, :math:`(\sigma x + \mu - \mu') / \sigma'`.

    For stored predictions when the statistics move between rollout and update
    (arXiv:1602.07714, Proposition 1, applied to an output).

    Raises:
        RangeError: if `std` or `new_std` is a number that is not greater than 0.
    """
    check.check_known(mean=mean, new_mean=new_mean)
    check.check_std(std=std, new_std=new_std)
    if maps(x, mean, std, new_mean, new_std):
        return mapped(x, factor=std, added=mean, taken=new_mean, divisor=new_std)
    return (std * x + (mean - new_mean)) / new_std  # the means first: they may be far larger than x


def popart_rescale(
    weight: Float[Tensor, "O H"],
    bias: Float[Tensor, " O"],
    *,
    mean: Number,
    std: Number,
    new_mean: Number,
    new_std: Number,
) -> tuple[Float[Tensor, "O H"], Float[Tensor, " O"]]:
    r"""Return a last layer whose decoded outputs under the new statistics are what they were.

    .. math::
        W' = \frac{\sigma}{\sigma'} W, \qquad b' = \frac{\sigma b + \mu - \mu'}{\sigma'}

    van Hasselt et al. 2016, arXiv:1602.07714, Proposition 1. Up to rounding exact for every output
    of the layer, so for every quantile of a quantile head.

    Raises:
        ShapeError: if `bias` has not one entry per output.
        RangeError: if `std` or `new_std` is a number that is not greater than 0.
    """
    check.check_layer(weight=weight, bias=bias)
    check.check_std(std=std, new_std=new_std)
    return weight * (std / new_std), re_express(bias, mean, std, new_mean, new_std)


def popart_rescale_affine(
    scale: Float[Tensor, "*batch"],
    offset: Float[Tensor, "*batch"],
    *,
    mean: Number,
    std: Number,
    new_mean: Number,
    new_std: Number,
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    r"""Return the output map :math:`a\theta + c` that takes the rescale behind a non-linearity.

    .. math::
        a' = \frac{\sigma}{\sigma'} a, \qquad c' = \frac{\sigma c + \mu - \mu'}{\sigma'}

    arXiv:1602.07714, Proposition 1, for heads whose last layer is followed by softplus increments
    (`quantile.monotone`): rescaling the layer itself would not preserve those.

    Raises:
        ShapeError: if the shapes differ.
        RangeError: if `std` or `new_std` is a number that is not greater than 0.
    """
    check.check_same_shape(scale=scale, offset=offset)
    check.check_std(std=std, new_std=new_std)
    return scale * (std / new_std), re_express(offset, mean, std, new_mean, new_std)


def popart_rescale_moments(
    first: Float[Tensor, "*batch"],
    second: Float[Tensor, "*batch"],
    *,
    std: Number,
    new_std: Number,
    loss: str,
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    r"""Return an optimizer's moments of a rescaled last layer, in the gradient's new unit.

    The gradient of a `squared` loss is an encoded error, which scales by
    :math:`\sigma / \sigma'`: the first moment takes that factor, the second its square. The
    gradient of a `quantile` loss is a probability and has no unit: nothing changes. Ours; the
    paper (arXiv:1602.07714) uses plain gradient steps.

    Raises:
        ShapeError: if the shapes differ.
        ChoiceError: if the loss is unknown.
        RangeError: if `std` or `new_std` is a number that is not greater than 0.
    """
    check.check_choice(loss, LOSSES, name="loss")
    check.check_same_shape(first=first, second=second)
    check.check_std(std=std, new_std=new_std)
    if loss == "quantile":
        return first, second
    ratio = std / new_std
    return first * ratio, second * ratio**2


def popart_rescale_utility(
    utility: Float[Tensor, "*batch"], *, std: Number, new_std: Number
) -> Float[Tensor, "*batch"]:
    r"""Return the UPGD utility of a rescaled quantile head, :math:`U \sigma / \sigma'`.

    Utility is minus gradient times weight (arXiv:2404.00781): the gradient of a quantile loss has
    no unit, the weight takes the factor of `popart_rescale`. Ours.

    Raises:
        RangeError: if `std` or `new_std` is a number that is not greater than 0.
    """
    check.check_std(std=std, new_std=new_std)
    return utility * (std / new_std)


def move_atoms(
    atoms: Float[Tensor, " K"], *, mean: Number, std: Number, new_mean: Number, new_std: Number
) -> Float[Tensor, " K"]:
    r"""Return the support in new statistics, :math:`z' = (\sigma z + \mu - \mu') / \sigma'`.

    The categorical counterpart of `popart_rescale`: softmax outputs cannot be rescaled, the atoms
    they sit on can. Ours.

    Raises:
        ShapeError: if `atoms` is not one row of at least two.
        RangeError: if `std` or `new_std` is a number that is not greater than 0.
    """
    check.check_atoms(atoms)
    return re_express(atoms, mean, std, new_mean, new_std)


def effective_std(std: Float[Tensor, "*batch"], *, floor: Number) -> Float[Tensor, "*batch"]:
    r"""Return :math:`\max(\sigma, floor)`: 1 / floor bounds how much noise can be amplified.

    Ours. A NaN stays a NaN.

    Raises:
        RangeError: if `floor` is a negative number.
    """
    remedy = "Pass the smallest standard deviation to divide by."
    check.check_at_least_zero(floor, name="floor", remedy=remedy)
    return clamp(std, low=floor)


def value_target_scale(
    std: Float[Tensor, "*batch"], *, clip: Number, floor: Number, cap: Number
) -> Float[Tensor, "*batch"]:
    r"""Return :math:`\min\big(cap,\ 1 / (clip \cdot \max(\sigma, floor))\big)`.

    The gain that a unit of return gets when targets are divided by clip standard deviations; a
    large one amplifies noise. Diagnostic only. Ours.

    Raises:
        RangeError: if `clip` or `cap` is a number that is not greater than 0, or `floor` negative.
    """
    check.check_positive(clip, name="clip", remedy="Pass the bound of normalised returns.")
    check.check_positive(cap, name="cap", remedy="Pass the largest scale to report.")
    return clamp(1.0 / (clip * effective_std(std, floor=floor)), high=cap)
