"""The gate of utility-based perturbed gradient descent: how much of its step a weight may take.

The utility of a weight is the first-order rise of the loss if the weight were removed, -g p. The
gate s lies in (0, 1) and grows with it; a weight keeps the share 1 - s of its step.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from stormsail.functional import _checks as check

NORMS = ("centred", "minmax", "global_max", "abs_max")
"""Ways to bring utilities, which have the unit of the loss, to the unit of the gate."""

ZERO_RANGE = 64.0
"""Range, in units of eps times the largest size, below which utilities count as equal."""


def gate_line(
    low: Float[Tensor, ""], high: Float[Tensor, ""], mean: Float[Tensor, ""], *, norm: str
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    r"""Return the shift and the width with which a utility enters the gate.

    .. math::
        s = sigmoid\Big(\frac{\hat U - shift}{width}\Big)

    * `centred`: the mean and :math:`\max|\hat U - mean|`. Ours: the average weight keeps half,
      which the compensation of 2 turns into the plain step.
    * `minmax`: the middle and half of the range, so that s = sigmoid(2 (x - 1/2)) of the utility x
      scaled to [0, 1]. Ours.
    * `global_max`: 0 and :math:`\max\hat U`, the scaling by the largest utility of Elsayed &
      Mahmood 2024 (arXiv:2404.00781). We deviate where the maximum is not positive: `minmax`
      stands in, because the division would turn the order around.
    * `abs_max`: 0 and :math:`\max|\hat U|`, which keeps signs. Ours.

    Utilities without a range give a width of infinity, hence s = 1/2 for every finite one and in
    every mode: a range of at most 64 eps times the largest size is rounding, and dividing by it
    would blow the rounding up to a gate; one below the least normal number is not resolved either.
    No gradient flows.

    Args:
        low: smallest utility of all tensors, bias corrected.
        high: largest one.
        mean: their mean over all elements.
        norm: one of the four above.

    Raises:
        ChoiceError: if the norm is unknown.
    """
    check.check_choice(norm, NORMS, name="norm")
    low, high, mean = low.detach(), high.detach(), mean.detach()
    spread = high - low
    size = torch.maximum(high.abs(), low.abs())
    middle, half = 0.5 * (high + low), 0.5 * spread
    if norm == "centred":
        shift, width = mean, torch.maximum(high - mean, mean - low)
    elif norm == "minmax":
        shift, width = middle, half
    elif norm == "abs_max":
        shift, width = torch.zeros_like(size), size
    else:
        shift = torch.where(high > 0, 0.0, middle)
        width = torch.where(high > 0, high, half)
    number = torch.finfo(high.dtype)
    is_flat = spread <= (ZERO_RANGE * number.eps * size).clamp(min=number.tiny)
    return shift, torch.where(is_flat, torch.inf, width)


def step_share(utility: Float[Tensor, "*batch"], *, norm: str) -> Float[Tensor, "*batch"]:
    r"""Return the share 1 - s of its step that each weight keeps, s as in `gate_line`.

    Elsayed & Mahmood 2024 (arXiv:2404.00781) for the gate, ours for three of the four norms. The
    optimizers do the same in place, with the statistics over all of their tensors.

    Args:
        utility: bias-corrected utilities of every weight together; no gradient flows.
        norm: `centred`, `minmax`, `global_max` or `abs_max`.

    Raises:
        ChoiceError: if the norm is unknown.
    """
    check.check_choice(norm, NORMS, name="norm")
    utility = utility.detach()
    low, high = utility.aminmax()
    shift, width = gate_line(low, high, utility.mean(), norm=norm)
    return torch.sigmoid((shift - utility) / width)
