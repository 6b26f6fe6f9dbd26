"""AdaptiveUPGD: Adam that protects useful weights and perturbs the others.

The class `AdaptiveUPGD` holds settings and state, `adaptive_upgd_step_` is its arithmetic. Utility,
gate and noise are those of `upgd`.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from stormsail.optim.upgd.base import UtilityOptimizer
from stormsail.optim.upgd.buckets import Bucket, Span
from stormsail.optim.upgd.upgd import take_gated_step_, update_utility_


class AdaptiveUPGD(UtilityOptimizer):
    r"""`UPGD` along the direction of Adam instead of the gradient.

    .. math::
        p \leftarrow p\,(1 - lr \cdot wd)
        - lr \cdot \kappa\,(1 - s)\Big(\frac{\hat m}{\sqrt{\hat v} + \epsilon} + \sigma \xi\Big)

    with Adam's bias-corrected moments (Kingma & Ba 2015, arXiv:1412.6980) and the gate s of
    `UPGD` (Elsayed & Mahmood 2024, arXiv:2404.00781, whose reinforcement learning runs use it).
    The direction has no unit and a size near 1, so `sigma` means the same for every tensor.

    With equal utilities and `sigma=0` the step is that of `torch.optim.AdamW`, and without weight
    decay that of `torch.optim.Adam`. Deviations from the published code are those of `UPGD`.

    Args:
        params: parameters, or groups of them with settings of their own.
        lr: learning rate; a number or a tensor without dimensions.
        betas: decays of the first and the second moment, each in [0, 1).
        eps: added to the root of the second moment; at least 0.
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

    STATE: ClassVar[tuple[str, ...]] = ("avg_utility", "exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
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
            "betas": betas,
            "eps": eps,
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

    def _update_(self, buckets: Sequence[Bucket]) -> None:
        adaptive_upgd_step_(buckets, self.generator)


def adaptive_upgd_step_(buckets: Sequence[Bucket], generator: torch.Generator) -> None:
    """Take one step of AdaptiveUPGD: the gated direction is Adam's plus noise.

    Args:
        buckets: at least one, none of them empty; parameters and state are changed in place.
        generator: of the noise.
    """
    for bucket in buckets:
        torch._foreach_add_(bucket.lists["step"], 1.0)
        for span in bucket.spans:
            grads = update_utility_(bucket, span)
            _set_adam_direction_(bucket, span, grads)
    take_gated_step_(buckets, generator)


def _set_adam_direction_(bucket: Bucket, span: Span, grads: list[Tensor]) -> None:
    """Leave m / (sqrt(v) + eps) with both moments corrected in `direction`."""
    bucket.direction.flat[span.elements].zero_()
    beta1, beta2 = span.group["betas"]
    # Adam's own kernel, let loose on zeros with a rate of -1, leaves its direction there: one pass
    # over memory where the separate operations take a dozen.
    torch._fused_adam_(
        bucket.direction.views[span.tensors],
        grads,
        bucket.lists["exp_avg"][span.tensors],
        bucket.lists["exp_avg_sq"][span.tensors],
        [],
        bucket.lists["step"][span.tensors],
        lr=-1.0,
        beta1=beta1,
        beta2=beta2,
        weight_decay=0.0,
        eps=span.group["eps"],
        amsgrad=False,
        maximize=False,
    )
