"""UPGDW: `AdaptiveUPGD` as a drop-in for `torch.optim.AdamW`."""

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from stormsail.core.errors import ChoiceError
from stormsail.optim.upgd.adaptive_upgd import AdaptiveUPGD

_REMEDIES = {
    "amsgrad": "Use `torch.optim.AdamW` for it; gate and noise have no such variant.",
    "fused": "Leave it out, or compile the whole step: `GradientPipeline(..., compiled=True)`.",
    "differentiable": "Use `torch.optim.AdamW` for it; this step is taken without a graph.",
}


class UPGDW(AdaptiveUPGD):
    """`AdaptiveUPGD` with the arguments and the defaults of `torch.optim.AdamW`.

    The same step (Elsayed & Mahmood 2024, arXiv:2404.00781, for the gate; Loshchilov & Hutter 2019,
    arXiv:1711.05101, for the decoupled decay); the default decay is ten times as large. What AdamW
    can and this cannot is named in order to refuse it. Ours, as a drop-in.

    Args:
        params: parameters, or groups of them with settings of their own.
        lr: learning rate; a number or a tensor without dimensions.
        betas: decays of the first and the second moment, each in [0, 1).
        eps: added to the root of the second moment; at least 0.
        weight_decay: decoupled, per unit of `lr`.
        amsgrad: must be False.
        beta_utility: decay of the utilities, in [0, 1).
        sigma: standard deviation of the noise in the unit of `noise_scale`; 0 draws none.
        noise_scale: `absolute`, `rms_update` or `rms_grad`, as in `AdaptiveUPGD`.
        utility_norm: `centred`, `minmax`, `global_max` or `abs_max`.
        lr_compensation: κ; 2 gives an average weight, whose gate is 1/2, the plain step.
        variant: `fixed` or `official`, as in `AdaptiveUPGD`.
        generator: of the noise; advanced by every step that draws.
        seed: of the generator that is made on the device of the first parameter without one.
        maximize: ascend instead.
        capturable: the step may be captured in a CUDA graph, as in `AdaptiveUPGD`.
        foreach: taken for the sake of AdamW's callers; None, True and False are one step, which
            goes over lists of tensors.
        fused: must be None or False.
        differentiable: must be False.

    Raises:
        RangeError, ChoiceError, ShapeError, DtypeError: if a setting means nothing.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        amsgrad: bool = False,  # noqa: FBT001, FBT002  # the place it has in AdamW
        *,
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
        foreach: bool | None = None,
        fused: bool | None = None,
        differentiable: bool = False,
    ) -> None:
        refused = {"amsgrad": amsgrad, "fused": fused, "differentiable": differentiable}
        for name, value in refused.items():
            if value:
                raise ChoiceError(
                    wrong=f"`{name}` must be False", found=repr(value), remedy=_REMEDIES[name]
                )
        if foreach not in (None, True, False):
            raise ChoiceError(
                wrong="`foreach` must be None, True or False",
                found=repr(foreach),
                remedy="Leave it out; every step is taken over lists of tensors.",
            )
        super().__init__(
            params,
            lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            beta_utility=beta_utility,
            sigma=sigma,
            noise_scale=noise_scale,
            utility_norm=utility_norm,
            lr_compensation=lr_compensation,
            variant=variant,
            generator=generator,
            seed=seed,
            maximize=maximize,
            capturable=capturable,
        )
