"""What is done with each row of a decision beside the network, for a CUDA device: one kernel each.

A rollout's rows are narrow and many, so that a formula takes as long as it has operations.
"""

import torch
from torch import Tensor

from stormsail.functional.kernels.devices import may_launch, power_of_two

NUMBERS, WARPS = 1024, 4
"""Of a program, and warps that share it."""
WIDEST = 1024
"""Columns that one program goes through at once."""


def serves(table: Tensor, *others: Tensor) -> bool:
    """Return whether the kernels know a table [*b, N] and may run; without gradients."""
    return (
        may_launch(table, *others)
        and table.dtype in (torch.float32, torch.float64)
        and 0 < table.shape[-1] <= WIDEST
        and not (torch.is_grad_enabled() and table.requires_grad)
    )


def standardised(
    x: Tensor, mean: Tensor, variance: Tensor, passed: Tensor, *, clip: float, eps: float
) -> Tensor:
    """Return `statistics.standardise` [*b, N], and x in columns that are `passed` on, bool [N]."""
    from stormsail.functional.kernels.decisions_triton import standardise

    flat, rows, height, columns = _flat(x)
    result = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if rows:
        standardise[(-(-rows // height),)](
            flat, mean.double().contiguous(), variance.double().contiguous(),
            passed.contiguous().view(torch.uint8), result, rows, flat.stride(0),
            N=x.shape[-1], CLIP=clip, EPS=eps, ROWS=height, COLUMNS=columns, num_warps=WARPS,
        )  # fmt: skip
    return result


def drawn_classes(logits: Tensor, uniform: Tensor) -> Tensor:
    """Return classes of the distribution of logits [*b, A], from numbers in [0, 1): int64 [*b]."""
    from stormsail.functional.kernels import decisions_triton as kernels

    flat, rows, height, columns = _flat(logits)
    chosen = torch.empty(logits.shape[:-1], dtype=torch.int64, device=logits.device)
    if rows:
        kernels.draw_classes[(-(-rows // height),)](
            flat, uniform.contiguous(), chosen, rows, flat.stride(0), N=logits.shape[-1],
            TINY=torch.finfo(uniform.dtype).tiny, KIND=kernels.KINDS[logits.dtype],
            ROWS=height, COLUMNS=columns, num_warps=WARPS,
        )  # fmt: skip
    return chosen


def class_log_prob(logits: Tensor, chosen: Tensor) -> Tensor:
    """Return the log probability of a class of each row, [*b]."""
    from stormsail.functional.kernels import decisions_triton as kernels

    flat, rows, height, columns = _flat(logits)
    result = torch.empty(logits.shape[:-1], dtype=logits.dtype, device=logits.device)
    if rows:
        kernels.class_log_probs[(-(-rows // height),)](
            flat, chosen.contiguous(), result, rows, flat.stride(0), N=logits.shape[-1],
            KIND=kernels.KINDS[logits.dtype], ROWS=height, COLUMNS=columns, num_warps=WARPS,
        )  # fmt: skip
    return result


def _flat(table: Tensor) -> tuple[Tensor, int, int, int]:
    """Return rows [R, N], their number, and the rows and columns of a program."""
    flat = table.reshape(-1, table.shape[-1])
    if flat.stride(1) != 1:
        flat = flat.contiguous()
    columns = power_of_two(flat.shape[1])
    return flat, len(flat), max(NUMBERS // columns, 1), columns
