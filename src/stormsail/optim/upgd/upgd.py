"""Gradient descent that protects useful weights and perturbs the others."""

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from stormsail.optim.upgd.base import UtilityOptimizer


class UPGD(UtilityOptimizer):
    r"""Utility-based perturbed gradient descent, first order, over all weights.

    .. math::
        U &\leftarrow \beta U - (1 - \beta)\, g\, p, \qquad \hat U = U / (1 - \beta^k) \\
        s &= sigmoid((\hat U - shift) / width) \\
        p &\leftarrow p\,(1 - lr \cdot wd) - lr \cdot \kappa\,(1 - s)\,(g + \sigma \xi),
        \qquad \xi \sim N(0, 1)

    Elsayed & Mahmood 2024 (arXiv:2404.00781): what would raise the loss if it were removed moves
    little and is perturbed little. Shift and width are those of
    `stormsail.functional.optim.upgd.gate_line`, over every tensor of every group that has a
    gradient; k counts the steps of the tensor itself. With equal utilities and `sigma=0` the step
    is that of `torch.optim.SGD`.

    We deviate from the published code, which `variant="official"` follows instead:

    * `utility_norm="centred"`. The published gate divides corrected utilities by the maximum of
      the uncorrected ones, a thousand times too small at the first step; a negative maximum turns
      the order around, and a maximum of 0 gives NaN.
    * noise comes from a generator of its own, which the state dict carries.
    * parameters without a gradient, and frozen ones, are left alone.
    * nothing waits for the device, and no tensor is read by the host.

    Half-precision parameters keep float32 state. On the CPU three buffers of the size of the
    parameters are kept as working memory.

    Args:
        params: parameters, or groups of them with settings of their own.
        lr: learning rate; a number or a tensor without dimensions.
        weight_decay: decoupled, per unit of `lr`.
        beta_utility: decay of the utilities, in [0, 1).
        sigma: standard deviation of the noise in the unit of `noise_scale`; 0 draws none.
        noise_scale: `absolute`, or times the root mean square of each tensor's direction
            (`rms_update`) or gradient (`rms_grad`).
        utility_norm: `centred`, `minmax`, `global_max` or `abs_max`.
        lr_compensation: κ; 2 gives an average weight, whose gate is 1/2, the plain step.
        variant: `fixed`, or `official`, which ignores `utility_norm` and draws the noise tensor by
            tensor as the published code does.
        generator: of the noise; advanced by every step that draws.
        seed: of the generator that is made on the device of the first parameter without one.
        maximize: ascend instead.
        capturable: the step may be captured in a CUDA graph. Pass `lr` as a tensor on the device
            then, and register `generator` with the graph.

    Raises:
        RangeError, ChoiceError, ShapeError, DtypeError: if a setting means nothing.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        *,
        weight_decay: float = 0.001,
        beta_utility: float = 0.999,
        sigma: float | Tensor = 0.001,
        noise_scale: str = "absolute",
        utility_norm: str = "centred",
        lr_compensation: float = 2.0,
        variant: str = "fixed",
        generator: torch.Generator | None = None,
        seed: int = 0,
        maximize: bool = False,
        capturable: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "beta_utility": beta_utility,
            "sigma": sigma,
            "noise_scale": noise_scale,
            "utility_norm": utility_norm,
            "lr_compensation": lr_compensation,
            "variant": variant,
            "maximize": maximize,
            "capturable": capturable,
        }
        super().__init__(params, defaults, generator=generator, seed=seed)
