"""Loss of a categorical policy with its gradient and everything that is reported of it, in Triton.

One pass over the samples: log-softmax, ratio, clipped surrogate, entropy, both divergences.
"""
# What is written here is Triton's language, which only looks like Python.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, N803

import torch
import triton
import triton.language as tl

KINDS = {torch.float32: tl.float32, torch.float64: tl.float64}
"""What `KIND`, the dtype of the arithmetic, may be."""


@triton.jit
def _excess(x):
    """Return e^x - 1 - x, near 0 from its series: there the difference would be all rounding."""
    series = 1.0 / 20922789888000.0
    series = 1.0 / 1307674368000.0 + x * series
    series = 1.0 / 87178291200.0 + x * series
    series = 1.0 / 6227020800.0 + x * series
    series = 1.0 / 479001600.0 + x * series
    series = 1.0 / 39916800.0 + x * series
    series = 1.0 / 3628800.0 + x * series
    series = 1.0 / 362880.0 + x * series
    series = 1.0 / 40320.0 + x * series
    series = 1.0 / 5040.0 + x * series
    series = 1.0 / 720.0 + x * series
    series = 1.0 / 120.0 + x * series
    series = 1.0 / 24.0 + x * series
    series = 1.0 / 6.0 + x * series
    series = 0.5 + x * series
    return tl.where(tl.abs(x) < 0.5, x * x * series, tl.exp(x) - 1.0 - x)


@triton.jit
def _softmax_parts(logits, sample, is_sample, A: tl.constexpr, KIND: tl.constexpr):
    """Return what a class's logit is shifted by and the sum of the exponentials, and its logarithm.

    Classes are gone through one by one, so that each sample belongs to one thread.
    """
    peak = tl.full(sample.shape, float("-inf"), KIND)
    for a in range(A):
        peak = tl.maximum(
            peak, tl.load(logits + sample * A + a, mask=is_sample, other=0.0).to(KIND)
        )
    peak = tl.where(peak == float("-inf"), 0.0, peak)
    total = tl.zeros(sample.shape, KIND)
    for a in range(A):
        logit = tl.load(logits + sample * A + a, mask=is_sample, other=0.0).to(KIND)
        total += tl.exp(logit - peak)
    return peak, total, tl.log(total)


@triton.jit
def _class(
    logits, sample, is_sample, a, peak, total, log_total, A: tl.constexpr, KIND: tl.constexpr
):
    """Return the log probability and the probability of a class."""
    shifted = tl.load(logits + sample * A + a, mask=is_sample, other=0.0).to(KIND) - peak
    return shifted - log_total, tl.exp(shifted) / total


@triton.jit
def _bounded(x, limit):
    low = tl.minimum(x, limit, propagate_nan=tl.PropagateNan.ALL)
    return tl.maximum(low, -limit, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _surrogate(log_ratio, advantage, clip, LIMIT: tl.constexpr):
    """Return the clipped loss of a ratio and its derivative in the log probability."""
    ratio = tl.exp(_bounded(log_ratio, LIMIT))
    held = tl.minimum(tl.maximum(ratio, 1.0 - clip), 1.0 + clip)
    plain, cut = ratio * advantage, held * advantage
    is_flat = (cut < plain) | (tl.abs(log_ratio) > LIMIT)
    return -tl.minimum(plain, cut), tl.where(is_flat, 0.0, -plain)


@triton.jit
def _total(partial, place, column, weight):
    """Leave the weighted sum over the samples that count."""
    tl.store(partial + place, tl.sum(tl.where(weight > 0.0, column * weight, 0.0), axis=0))


@triton.jit
def _expected(log_prob, old_log, old, advantage, sample, is_sample, a, clip,
    A: tl.constexpr, LIMIT: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Return what a class adds to the expected surrogate, and its derivative."""
    possible = (old > 0.0) & is_sample
    gain = tl.load(advantage + sample * A + a, mask=is_sample, other=0.0).to(KIND)
    each, pull = _surrogate(tl.where(possible, log_prob - old_log, 0.0), gain, clip, LIMIT)
    return tl.where(possible, old * each, 0.0), tl.where(possible, old * pull, 0.0)


@triton.jit
def _surprise(log_prob, prob):
    surprise = tl.where(prob > 0.0, log_prob, 0.0)
    return tl.where(prob == prob, surprise, prob)  # a NaN stays visible


@triton.jit
def _report(
    partial, loss, surrogate, entropy, analytic, log_ratio, clip, w,
    LIMIT: tl.constexpr, EXTREME: tl.constexpr,
):  # fmt: skip
    """Leave what is reported of these samples, in the order of `PolicySums`."""
    bounded = _bounded(log_ratio, LIMIT)
    k3 = _excess(bounded)
    excess = k3 + bounded
    beyond = tl.abs(_excess(log_ratio) + log_ratio) > clip
    partial += tl.program_id(0)
    step = tl.num_programs(0)
    _total(partial, 0, loss, w)
    _total(partial, step, tl.where(w > 0.0, 1.0, 0.0), w)
    _total(partial, 2 * step, surrogate, w)
    _total(partial, 3 * step, entropy, w)
    _total(partial, 4 * step, k3, w)
    _total(partial, 5 * step, analytic, w)
    _total(partial, 6 * step, log_ratio, w)
    _total(partial, 7 * step, log_ratio * log_ratio, w)
    _total(partial, 8 * step, excess, w)
    _total(partial, 9 * step, excess * excess, w)
    _total(partial, 10 * step, tl.where(beyond, 1.0, 0.0), w)
    _total(partial, 11 * step, tl.where(tl.abs(log_ratio) > EXTREME, 1.0, 0.0), w)
    tl.store(partial + 14 * step, tl.max(tl.where(w > 0.0, tl.abs(log_ratio), 0.0), axis=0))


@triton.jit
def _guarded(taken, old_log_prob, weight, used, partial, sample, is_sample, KIND: tl.constexpr):
    """Return log ratios and weights without samples that are not finite; count these."""
    log_ratio = taken - tl.load(old_log_prob + sample, mask=is_sample, other=0.0).to(KIND)
    given = tl.load(weight + sample, mask=is_sample, other=0.0).to(KIND)
    is_finite = tl.abs(log_ratio) < float("inf")
    counted = given > 0.0
    nan = tl.where(counted & (log_ratio != log_ratio), 1.0, 0.0)
    infinite = tl.where(counted & (tl.abs(log_ratio) == float("inf")), 1.0, 0.0)
    w = tl.where(is_finite, given, 0.0)
    tl.store(used + sample, w.to(used.dtype.element_ty), mask=is_sample)
    partial += tl.program_id(0)
    step = tl.num_programs(0)
    tl.store(partial + 12 * step, tl.sum(nan, axis=0))
    tl.store(partial + 13 * step, tl.sum(infinite, axis=0))
    return tl.where(is_finite, log_ratio, 0.0), w


@triton.jit
def _sums(
    logits, old_logits, advantage, sample, is_sample, peak, total, log_total, old_peak,
    old_total, old_log_total, clip, surrogate, pulls,
    A: tl.constexpr, LIMIT: tl.constexpr, EXPECTED: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Return surrogates and their derivatives, entropies and divergences, summed over classes."""
    entropy, analytic = tl.zeros_like(total), tl.zeros_like(total)
    for a in range(A):
        log_prob, prob = _class(logits, sample, is_sample, a, peak, total, log_total, A, KIND)
        old_log, old = _class(
            old_logits, sample, is_sample, a, old_peak, old_total, old_log_total, A, KIND
        )
        entropy -= prob * _surprise(log_prob, prob)
        apart = tl.where(old > 0.0, old_log - log_prob, 0.0)
        analytic += old * tl.where(old == old, apart, old)
        if EXPECTED:
            each, pull = _expected(
                log_prob, old_log, old, advantage, sample, is_sample, a, clip, A, LIMIT, KIND
            )
            surrogate += each
            pulls += pull
    return surrogate, pulls, entropy, analytic


@triton.jit
def _slopes(
    logits, old_logits, advantage, sample, is_sample, peak, total, log_total, old_peak,
    old_total, old_log_total, clip, pulls, chosen, entropy, of_entropy, of_kl, w, grad,
    A: tl.constexpr, LIMIT: tl.constexpr, EXPECTED: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Write the gradient of the summed loss."""
    for a in range(A):
        log_prob, prob = _class(logits, sample, is_sample, a, peak, total, log_total, A, KIND)
        old_log, old = _class(
            old_logits, sample, is_sample, a, old_peak, old_total, old_log_total, A, KIND
        )
        if EXPECTED:
            _, pull = _expected(
                log_prob, old_log, old, advantage, sample, is_sample, a, clip, A, LIMIT, KIND
            )
        else:
            pull = tl.where(chosen == a, pulls, 0.0)
        slope = pull - prob * pulls
        slope += of_entropy * prob * (_surprise(log_prob, prob) + entropy) + of_kl * (prob - old)
        slope = tl.where(w > 0.0, slope * w, 0.0)
        tl.store(grad + sample * A + a, slope.to(grad.dtype.element_ty), mask=is_sample)


@triton.jit
def policy_loss(
    logits, action, old_log_prob, old_logits, advantage, weight, clip_at, entropy_at, kl_at,
    grad, used, partial, samples,
    A: tl.constexpr, LIMIT: tl.constexpr, EXTREME: tl.constexpr, EXPECTED: tl.constexpr,
    KIND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the gradient of the summed loss, the weights used, and sums in `partial` [15, P].

    `advantage` is [samples], of the action taken, or [samples, A] of every one if `EXPECTED`.
    """
    sample = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_sample = sample < samples
    peak, total, log_total = _softmax_parts(logits, sample, is_sample, A, KIND)
    old_peak, old_total, old_log_total = _softmax_parts(old_logits, sample, is_sample, A, KIND)
    chosen = tl.load(action + sample, mask=is_sample, other=0)
    clip = tl.load(clip_at).to(KIND)
    of_entropy, of_kl = tl.load(entropy_at).to(KIND), tl.load(kl_at).to(KIND)

    own = tl.load(logits + sample * A + chosen, mask=is_sample, other=0.0).to(KIND)
    taken = own - peak - log_total
    log_ratio, w = _guarded(taken, old_log_prob, weight, used, partial, sample, is_sample, KIND)
    surrogate = tl.zeros([BLOCK], KIND)
    pulls = tl.zeros([BLOCK], KIND)
    if not EXPECTED:
        gain = tl.load(advantage + sample, mask=is_sample, other=0.0).to(KIND)
        surrogate, pulls = _surrogate(log_ratio, gain, clip, LIMIT)
    surrogate, pulls, entropy, analytic = _sums(
        logits, old_logits, advantage, sample, is_sample, peak, total, log_total, old_peak,
        old_total, old_log_total, clip, surrogate, pulls, A, LIMIT, EXPECTED, KIND,
    )  # fmt: skip
    loss = surrogate - of_entropy * entropy + of_kl * analytic
    _slopes(
        logits, old_logits, advantage, sample, is_sample, peak, total, log_total, old_peak,
        old_total, old_log_total, clip, pulls, chosen, entropy, of_entropy, of_kl, w, grad,
        A, LIMIT, EXPECTED, KIND,
    )  # fmt: skip
    _report(partial, loss, surrogate, entropy, analytic, log_ratio, clip, w, LIMIT, EXTREME)
