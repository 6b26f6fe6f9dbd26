"""Loss of a categorical policy for a CUDA device, its gradient and its report in one pass.

The terms are those of `functional.policy` and `functional.distribution`: surrogate, entropy bonus
and KL penalty, after `drop_nonfinite`. What else a loss may hold is added outside.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from stormsail.functional._numbers import Number, scalar

SAMPLES = 256
"""Of one program."""
WARPS = 4
LOG_RATIO_LIMIT = 20.0
"""That of `functional.policy`."""


class PolicySums(NamedTuple):
    """Weighted sums over samples, 0-dim tensors, but for the last field."""

    loss: Tensor
    """Surrogate, entropy bonus and KL penalty; carries the gradient."""
    weight: Tensor
    """That was used: of all samples but those of a non-finite log ratio."""
    policy: Tensor
    entropy: Tensor
    kl: Tensor
    """k3."""
    analytic_kl: Tensor
    log_ratio: Tensor
    log_ratio_square: Tensor
    ratio_excess: Tensor
    ratio_excess_square: Tensor
    clipped: Tensor
    extreme: Tensor
    nan: Tensor
    """Samples of a weight whose log ratio is NaN."""
    inf: Tensor
    log_ratio_max: Tensor
    """Largest size, not a sum."""
    used: Tensor
    """Weight of each sample, [*b]."""


def policy_sums(
    logits: Tensor,
    action: Tensor,
    old_log_prob: Tensor,
    old_logits: Tensor,
    advantage: Tensor,
    weight: Tensor,
    *,
    clip: Number,
    entropy_coef: Number,
    kl_coef: Number,
    extreme: float,
) -> PolicySums:
    """Return loss and report of the policy.

    Args:
        logits: of the policy that is trained, [*b, A]; the gradient flows here.
        action: class that was drawn, int64 [*b].
        old_log_prob: its log probability when it was drawn, [*b].
        old_logits: of the policy that acted, [*b, A].
        advantage: of the action taken, [*b], or of every one, [*b, A]: `clipped_surrogate` or
            `expected_surrogate`.
        weight: of each sample, [*b].
        clip: half-width of the band of the ratio.
        entropy_coef: factor of the entropy.
        kl_coef: factor of KL(old || new).
        extreme: log ratio beyond which a sample counts as extreme.
    """
    numbers = [scalar(number, like=logits) for number in (clip, entropy_coef, kl_coef)]
    loss, sums, peak, used = _PolicyLoss.apply(
        logits, action, old_log_prob, old_logits, advantage, weight, numbers, extreme
    )
    return PolicySums._make((loss, *sums.unbind()[1:], peak, used))


class _PolicyLoss(torch.autograd.Function):
    """Loss and gradient together."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's own stub is untyped
        logits: Tensor,
        action: Tensor,
        old_log_prob: Tensor,
        old_logits: Tensor,
        advantage: Tensor,
        weight: Tensor,
        numbers: list[Tensor],
        extreme: float,
    ) -> tuple[Tensor, ...]:
        from stormsail.functional.kernels.losses import policy_triton as kernels

        logits = logits.contiguous()
        given = [part.contiguous() for part in (action, old_log_prob, old_logits, advantage)]
        samples, classes = weight.numel(), logits.shape[-1]
        programs = -(-samples // SAMPLES)
        dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
        grad, used = torch.empty_like(logits), torch.empty_like(weight.contiguous())
        partial = torch.empty(15, programs, dtype=dtype, device=logits.device)
        kernels.policy_loss[(programs,)](
            logits, *given, weight.contiguous(), *numbers, grad, used, partial, samples,
            A=classes, LIMIT=LOG_RATIO_LIMIT, EXTREME=extreme,
            EXPECTED=advantage.ndim == logits.ndim,
            KIND=kernels.KINDS[dtype],
            BLOCK=SAMPLES, num_warps=WARPS,
        )  # fmt: skip
        sums, peak = partial[:-1].sum(1), partial[-1].max()
        ctx.save_for_backward(grad)
        ctx.mark_non_differentiable(sums, peak, used)
        return sums[0].clone(), sums, peak, used

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        (grad,) = ctx.saved_tensors
        return grad * grads[0].to(grad.dtype), None, None, None, None, None, None, None
