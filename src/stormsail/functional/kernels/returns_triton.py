"""Advantages and n-step windows of blocks of environments, in Triton and float64."""
# What is written here is Triton's language, which only looks like Python.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803

import triton
import triton.language as tl


@triton.jit
def gae(
    reward, value, bootstrap, terminated, truncated, gamma_at, lam_at, advantage, batch,
    T: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Walk back through all rows of a block of environments."""
    env = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = env < batch
    gamma = tl.load(gamma_at)
    trace = gamma * tl.load(lam_at)
    following = tl.zeros([BLOCK], tl.float64)
    at = tl.full([BLOCK], T - 1, tl.int64) * batch + env
    for _ in range(0, T):
        is_final = tl.load(terminated + at, mask=here, other=0) != 0
        is_cut = tl.load(truncated + at, mask=here, other=0) != 0
        ahead = tl.load(bootstrap + at, mask=here, other=0.0).to(tl.float64)
        delta = tl.load(reward + at, mask=here, other=0.0).to(tl.float64)
        delta += gamma * tl.where(is_final, 0.0, ahead)
        delta -= tl.load(value + at, mask=here, other=0.0).to(tl.float64)
        following = delta + trace * tl.where(is_final | is_cut, 0.0, following)
        tl.store(advantage + at, following.to(advantage.dtype.element_ty), mask=here)
        at -= batch


@triton.jit
def nstep(
    reward, quantiles, terminated, truncated, gamma_at, total_at, last_at, discount_at, target,
    batch,
    T: tl.constexpr, STEPS: tl.constexpr, N: tl.constexpr, ATOMS: tl.constexpr,
    TARGET: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add up the window that starts at one row; write its atoms, or sum, last row and discount."""
    t = tl.program_id(0)
    env = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = env < batch
    gamma = tl.load(gamma_at)
    total, discount = tl.zeros([BLOCK], tl.float64), tl.full([BLOCK], 1.0, tl.float64)
    start = tl.program_id(0).to(tl.int64) * batch + env
    is_open, last, at = here, start, start
    for k in range(0, STEPS):
        is_open = is_open & (t + k < T)
        # what lies behind a window's end is never added, not even times zero
        gain = tl.load(reward + at, mask=is_open, other=0.0).to(tl.float64)
        total += discount * gain
        discount = tl.where(is_open, discount * gamma, discount)
        last = tl.where(is_open, at, last)
        is_final = tl.load(terminated + at, mask=is_open, other=1) != 0
        is_cut = tl.load(truncated + at, mask=is_open, other=1) != 0
        is_open = is_open & ~(is_final | is_cut)
        at += batch
    if TARGET:
        atom = tl.arange(0, ATOMS)
        both = here[:, None] & (atom < N)[None, :]
        kind = quantiles.dtype.element_ty
        is_final = tl.load(terminated + last, mask=here, other=0) != 0
        reads = both & ~is_final[:, None]
        z = tl.load(quantiles + last[:, None] * N + atom[None, :], mask=reads, other=0.0)
        y = total.to(kind)[:, None] + discount.to(kind)[:, None] * z
        place = start[:, None] * N + atom[None, :]
        tl.store(target + place, y.to(target.dtype.element_ty), mask=both)
    else:
        tl.store(total_at + start, total, mask=here)
        tl.store(last_at + start, last // batch, mask=here)
        tl.store(discount_at + start, discount, mask=here)
