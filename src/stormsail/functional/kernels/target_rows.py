"""Advantages and n-step targets for a CUDA device, one launch each."""

import torch
from torch import Tensor

from stormsail.functional._numbers import Number, scalar
from stormsail.functional.kernels.devices import power_of_two

ENVIRONMENTS = 64
"""Of one program."""
WARPS = 2


def gae(
    reward: Tensor,
    value: Tensor,
    bootstrap: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: Number,
    lam: Number,
) -> Tensor:
    """Return `functional.returns.gae`, without its checks and without a gradient."""
    from stormsail.functional.kernels import returns_triton as kernels

    rows, batch = reward.shape
    advantage = _empty(reward, reward.dtype)
    kernels.gae[(-(-batch // ENVIRONMENTS),)](
        *_plain(reward, value, bootstrap), *_flags(terminated, truncated),
        scalar(gamma, like=reward), scalar(lam, like=reward), advantage, batch,
        T=rows, BLOCK=ENVIRONMENTS, num_warps=WARPS,
    )  # fmt: skip
    return advantage


def quantile_nstep_targets(
    reward: Tensor,
    bootstrap_quantiles: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: Number,
    steps: int,
) -> Tensor:
    """Return `functional.returns.quantile_nstep_targets`, without checks and gradient."""
    (quantiles,) = _plain(bootstrap_quantiles)
    target = torch.empty(quantiles.shape, dtype=reward.dtype, device=reward.device)
    _launch(reward, terminated, truncated, gamma, steps, quantiles=quantiles, target=target)
    return target


def windows(
    reward: Tensor, terminated: Tensor, truncated: Tensor, *, gamma: Number, steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return, for the window that starts at each row: reward sum, last row, gamma^length."""
    total, discount = (_empty(reward, torch.float64) for _ in range(2))
    last = _empty(reward, torch.int64)
    _launch(reward, terminated, truncated, gamma, steps, window=(total, last, discount))
    return total, last, discount


def _launch(
    reward: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: Number,
    steps: int,
    *,
    quantiles: Tensor | None = None,
    target: Tensor | None = None,
    window: tuple[Tensor, Tensor, Tensor] | None = None,
) -> None:
    from stormsail.functional.kernels import returns_triton as kernels

    rows, batch = reward.shape
    atoms = 1 if quantiles is None else quantiles.shape[-1]
    unused = (reward,) * 3
    (reward,) = _plain(reward)
    kernels.nstep[(rows, -(-batch // ENVIRONMENTS))](
        reward, reward if quantiles is None else quantiles, *_flags(terminated, truncated),
        scalar(gamma, like=reward), *(window or unused), reward if target is None else target,
        batch,
        T=rows, STEPS=min(steps, rows), N=atoms, ATOMS=power_of_two(atoms),
        TARGET=target is not None, BLOCK=ENVIRONMENTS, num_warps=WARPS,
    )  # fmt: skip


def _empty(like: Tensor, dtype: torch.dtype) -> Tensor:
    """Return room of that shape, one row after the other whatever the strides of `like` are."""
    return torch.empty(like.shape, dtype=dtype, device=like.device)


def _plain(*tensors: Tensor) -> list[Tensor]:
    return [tensor.detach().contiguous() for tensor in tensors]


def _flags(*tensors: Tensor) -> list[Tensor]:
    """Return flags as bytes, which Triton reads."""
    return [tensor.contiguous().view(torch.uint8) for tensor in tensors]
