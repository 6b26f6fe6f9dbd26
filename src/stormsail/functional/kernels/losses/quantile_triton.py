"""Quantile Huber loss and its slope for a block of samples, all pairs in registers, in Triton."""
# What is written here is Triton's language, which only looks like Python.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, N803

import torch
import triton
import triton.language as tl

KINDS = {torch.float32: tl.float32, torch.float64: tl.float64}
"""What `KIND`, the dtype of the arithmetic, may be."""


@triton.jit
def _bounded(u, kappa):
    """Return u clamped to +-kappa; a NaN stays a NaN."""
    low = tl.minimum(u, kappa, propagate_nan=tl.PropagateNan.ALL)
    return tl.maximum(low, -kappa, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _pull(u, kappa, lean, PINBALL: tl.constexpr):
    """Return the slope of a pair, times kappa, and what it is multiplied with to be its loss.

    `lean` is the level minus 1/2, so that the slope is the level on one side of 0 and the level
    minus 1 on the other: two operations, where a comparison and a choice cost four.
    """
    if PINBALL:
        inner = tl.where(u > 0.0, 1.0, tl.where(u < 0.0, -1.0, u))  # 0 and NaN as they are
        size = u
    else:
        inner = _bounded(u, kappa)
        size = u - 0.5 * inner
    return 0.5 * inner + lean * tl.abs(inner), size


@triton.jit
def _crossing(predicted, at, theta, here, level, N: tl.constexpr, KIND: tl.constexpr):
    """Return the share of neighbouring levels that are in the wrong order."""
    inner = here & (level + 1 < N)[None, :]
    above = tl.load(predicted + at + 1, mask=inner, other=0.0).to(KIND)
    wrong = tl.sum(tl.where(inner & (above < theta), 1.0, 0.0).to(KIND), axis=1)
    return wrong * tl.full([], 1.0 / max(N - 1, 1), KIND)


@triton.jit
def _level_mean(
    mass, theta, here, level, N: tl.constexpr, MASSES: tl.constexpr, KIND: tl.constexpr
):
    """Return the mean over levels, with a mass for each where they are not alike."""
    share = tl.full([], 1.0 / N, KIND)
    if MASSES:
        share = tl.load(mass + level, mask=level < N, other=0.0).to(KIND)[None, :]
    return tl.sum(tl.where(here, theta * share, 0.0), axis=1)


@triton.jit
def quantile_huber(
    predicted, target, tau, kappa_at, mass, level_mass, loss, slope, active, crossed, means,
    samples, shared,
    N: tl.constexpr, M: tl.constexpr, PINBALL: tl.constexpr, MASSES: tl.constexpr,
    LEVEL_MASSES: tl.constexpr, SLOPE: tl.constexpr, COUNT: tl.constexpr, KIND: tl.constexpr,
    BLOCK: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """Write loss [samples], its gradient [samples, N] and, with `COUNT`, what else is read off.

    That is the share of pairs beyond kappa, that of neighbouring levels in the wrong order, and the
    mean over levels, [samples] each.
    `shared` neighbouring samples, the critics of one row, have one row of target atoms.
    """
    sample = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    level = tl.arange(0, LEVELS)
    is_sample, is_level = sample < samples, level < N
    here = is_sample[:, None] & is_level[None, :]
    at = sample[:, None] * N + level[None, :]
    theta = tl.load(predicted + at, mask=here, other=0.0).to(KIND)
    lean = tl.load(tau + level, mask=is_level, other=0.0).to(KIND)[None, :] - 0.5
    kappa = tl.load(kappa_at).to(KIND)
    rows = target + (sample // shared) * M
    total = tl.zeros([BLOCK, LEVELS], KIND)
    pulls = tl.zeros([BLOCK, LEVELS], KIND)
    beyond = tl.zeros([BLOCK, LEVELS], KIND)
    for j in range(0, M):
        y = tl.load(rows + j, mask=is_sample, other=0.0).to(KIND)
        u = y[:, None] - theta
        pull, size = _pull(u, kappa, lean, PINBALL)
        is_beyond = tl.where(tl.abs(u) > kappa, 1.0, 0.0).to(KIND)
        if MASSES:
            share = tl.load(mass + j).to(KIND)
            pull, is_beyond = pull * share, is_beyond * share
        total += pull * size
        pulls += pull
        if COUNT:
            beyond += is_beyond
    scale = tl.full([], 1.0 / N, KIND)
    if not MASSES:  # all atoms have the same
        scale *= 1.0 / M
    if COUNT:
        counted = tl.sum(tl.where(here, beyond, 0.0), axis=1) * scale
        tl.store(active + sample, counted.to(active.dtype.element_ty), mask=is_sample)
        wrong = _crossing(predicted, at, theta, here, level, N, KIND)
        tl.store(crossed + sample, wrong.to(crossed.dtype.element_ty), mask=is_sample)
        middle = _level_mean(level_mass, theta, here, level, N, LEVEL_MASSES, KIND)
        tl.store(means + sample, middle.to(means.dtype.element_ty), mask=is_sample)
    if not PINBALL:
        scale /= kappa
    value = tl.sum(tl.where(here, total, 0.0), axis=1) * scale
    tl.store(loss + sample, value.to(loss.dtype.element_ty), mask=is_sample)
    if SLOPE:
        tl.store(slope + at, (-scale * pulls).to(slope.dtype.element_ty), mask=here)
