"""Per-tensor arithmetic of a compiled step: statistics, factors of the scaler, coefficients.

Everything is a row of P float64 numbers, in the optimizer's order of the parameters; the scaler's
own rows are brought into it and back.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stormsail.functional.optim import gradient_noise
from stormsail.functional.optim.upgd import gate_line
from stormsail.optim.vgs.scaler import slow_beta

COLUMNS = (
    "share",  # of the gradient after the clip, with its sign
    "gain",  # weight of the newest gradient in the scaler's mean
    "utility_weight",  # 1 - beta; betas near 1 lose digits in float32, their complements do not
    "utility_scale",  # bias correction
    "first_weight",
    "second_weight",
    "first_scale",
    "second_scale",  # of the root
    "eps",
    "sigma",
    "rate",  # lr, its compensation and the scaler's factor
    "decay",  # 1 - lr times weight decay
)
"""Coefficients of each tensor that the kernels read, in this order."""

SETTINGS = (
    "lr",
    "sigma",
    "weight_decay",
    "lr_compensation",
    "beta_utility",
    "beta1",
    "beta2",
    "eps",
    "sign",  # -1 to maximise
    "in_gradients",  # 1 if sigma is in units of the gradient
    "log_beta_utility",
    "log_beta1",
    "log_beta2",
)
"""Rows of a parameter group's settings."""

MEASURED = ("square", "peak", "before", "after", "step")
"""Columns of what was measured: sum of squares, largest absolute element, squared distance from the
scaler's mean before it moves, its square sum afterwards, and the steps taken so far."""


Place = tuple[int, int, int]
"""A row of the settings, and the first and the last but one of its columns."""


class Scaling(NamedTuple):
    """Settings of the scaler that are fixed in the code."""

    beta: float
    alpha: float
    eps_rel: float
    warmup_steps: int
    floor: float
    cap: float
    limit: float
    follows_median: bool
    """Whether noise is compared with its own slow median instead of the signal."""


class ScalerRows(NamedTuple):
    """State of the scaler, written in place, and its order of the parameters."""

    counts: Tensor
    spread: Tensor
    mean_square: Tensor
    nonfinite: Tensor
    steps: Tensor
    largest: Tensor
    median: Tensor
    order: Tensor
    """[P] place in the optimizer of each of the scaler's tensors."""
    inverse: Tensor


class Settings(NamedTuple):
    """Settings of a step, besides the tensors themselves."""

    sizes: Tensor
    """[P] numbers of elements, float64."""
    numbers: Tensor
    """[13, P], see `SETTINGS`."""
    places: tuple[Place, ...]
    """Where `given` belongs in them."""
    given: list[Tensor]
    """Settings that are tensors, which a captured graph sees change."""
    order: Tensor
    """[P] place in the optimizer of each of the pipeline's tensors."""
    ranks: Tensor
    """[P] place in the pipeline of each of the optimizer's tensors."""
    scaler: ScalerRows | None
    scaling: Scaling | None
    bound: float
    """Of the global norm; 0 or less is none."""


class Report(NamedTuple):
    """The fields of `GradientReport`, in its order."""

    stepped: Tensor
    nonfinite: Tensor
    norms: Tensor
    raw_norm: Tensor
    grad_norm_pre_clip: Tensor
    grad_norm_post_clip: Tensor


class Prepared(NamedTuple):
    """Results of the first pass that the second one reads."""

    table: Tensor
    """[P, 12], see `COLUMNS`, in the dtype of the parameters."""
    refused: Tensor
    """Not 0 if nothing may be written."""
    report: Report
    ahead: Tensor | None = None
    """On CUDA, what `functional.kernels.utility_step` leaves from one kernel to the next."""


def is_refused(measured: Tensor) -> Tensor:
    """Return whether a gradient is not finite, or its square is not."""
    return ~measured[:, 0].isfinite().all()


def is_finite(square: Tensor, peak: Tensor, scaling: Scaling) -> Tensor:
    """Return whether the scaler can learn from each tensor's gradient."""
    return square.isfinite() & (peak <= scaling.limit)


class Seen(NamedTuple):
    """Report on the raw gradients; the fields of `GradientReport` up to the clip."""

    stepped: Tensor
    nonfinite: Tensor
    norms: Tensor
    raw_norm: Tensor


def seen(measured: Tensor, order: Tensor) -> Seen:
    """Return the report on raw gradients; `order` brings the rows into that of the pipeline."""
    square = measured[:, 0]
    norms = square.index_select(0, order).sqrt()
    return Seen(~is_refused(measured), (~square.isfinite()).sum(), norms, square.sum().sqrt())


def learn_(
    measured: Tensor, sizes: Tensor, refused: Tensor, rows: ScalerRows, scaling: Scaling
) -> tuple[Tensor, Tensor]:
    """Advance the scaler by one step unless it is refused; return gains and factors.

    The same numbers as `VarianceGradientScaler.update_statistics` and `scale_gradients`.
    """
    square, peak, before, after, _ = measured.index_select(0, rows.order).double().unbind(1)
    size = sizes.index_select(0, rows.order)
    finite = is_finite(square, peak, scaling)
    learns = finite & ~refused
    count = rows.counts + learns
    gain = torch.where(learns, gradient_noise.gain(count.double(), beta=scaling.beta), 0.0)
    spread = gradient_noise.moving_spread(rows.spread, before / size, gain)
    spread = torch.where(learns, spread, rows.spread)
    mean_square = torch.where(learns, after / size, rows.mean_square)
    learned = learns.any()
    steps = rows.steps + learned
    weight = gradient_noise.gain(steps.double(), beta=scaling.beta)
    largest = torch.where(learns, peak, 0.0).amax()
    largest = torch.where(learned, rows.largest + weight * (largest - rows.largest), rows.largest)
    median = _followed(count, spread, rows.median, learns, scaling)
    factor = _factor(count, spread, mean_square, median, scaling)
    rows.nonfinite.copy_(rows.nonfinite + ~finite)
    for old, new in (
        (rows.counts, count),
        (rows.spread, spread),
        (rows.mean_square, mean_square),
        (rows.steps, steps),
        (rows.largest, largest),
        (rows.median, median),
    ):
        old.copy_(new)
    return gain.index_select(0, rows.inverse), factor.index_select(0, rows.inverse)


def _followed(
    count: Tensor, spread: Tensor, median: Tensor, learns: Tensor, scaling: Scaling
) -> Tensor:
    """Return the slow median of each tensor's noise; the same one where nothing follows it."""
    if not scaling.follows_median:
        return median
    after = count - max(scaling.warmup_steps, 1)
    slow = slow_beta(scaling.beta)
    gain = gradient_noise.gain((after + 1).clamp(min=1).double(), beta=slow)
    concentration = gradient_noise.weight_concentration(count.double(), beta=scaling.beta)
    variance = gradient_noise.noise_variance(spread, concentration)
    moved = gradient_noise.moving_median(median, variance, gain)
    return torch.where(learns, torch.where(after > 0, moved, variance), median)


def _ratio(spread: Tensor, mean_square: Tensor, concentration: Tensor, scaling: Scaling) -> Tensor:
    variance = gradient_noise.noise_variance(spread, concentration)
    signal = gradient_noise.signal_square(mean_square, variance, concentration)
    return gradient_noise.noise_to_signal(
        variance, signal, spread + mean_square, eps_rel=scaling.eps_rel
    )


def _factor(
    count: Tensor, spread: Tensor, mean_square: Tensor, median: Tensor, scaling: Scaling
) -> Tensor:
    concentration = gradient_noise.weight_concentration(count.double(), beta=scaling.beta)
    if scaling.follows_median:
        variance = gradient_noise.noise_variance(spread, concentration)
        ratio = gradient_noise.relative_excess(variance, median)
    else:
        ratio = _ratio(spread, mean_square, concentration, scaling)
    factor = gradient_noise.scaling_factor(
        ratio, alpha=scaling.alpha, floor=scaling.floor, cap=scaling.cap
    )
    return torch.where(count >= max(scaling.warmup_steps, 1), factor, 1.0)


def coefficients(
    measured: Tensor,
    sizes: Tensor,
    settings: Tensor,
    gain: Tensor,
    factor: Tensor,
    *,
    bound: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the table of `COLUMNS`, [P, 12], and the norm of all gradients before and after.

    Args:
        measured: [P, 5], see `MEASURED`.
        sizes: [P] numbers of elements.
        settings: [13, P], see `SETTINGS`.
        gain: [P] of the scaler; 0 without one.
        factor: [P] of the scaler; 1 without one.
        bound: of the global norm; 0 or less is none.
    """
    square = measured[:, 0].double()
    before = square.sum().sqrt()
    clip = torch.ones_like(before)
    if bound > 0:
        clip = (bound / (before + 1e-6)).clamp(max=1.0)
    named = dict(zip(SETTINGS, settings.unbind(), strict=True))
    steps = measured[:, 4].double() + 1.0
    unit = torch.where(named["in_gradients"] > 0, clip * (square / sizes).sqrt(), 1.0)
    # 1 - beta^k; a power in float64 would take a GPU longer than everything else here.
    mass = {
        name: -torch.expm1(steps * named[f"log_{name}"])
        for name in ("beta_utility", "beta1", "beta2")
    }
    columns = {
        "share": clip * named["sign"],
        "gain": gain,
        "utility_weight": 1.0 - named["beta_utility"],
        "utility_scale": 1.0 / mass["beta_utility"],
        "first_weight": 1.0 - named["beta1"],
        "second_weight": 1.0 - named["beta2"],
        "first_scale": 1.0 / mass["beta1"],
        "second_scale": mass["beta2"].rsqrt(),
        "eps": named["eps"],
        "sigma": named["sigma"] * unit,
        "rate": named["lr"] * named["lr_compensation"] * factor,
        "decay": 1.0 - named["lr"] * named["weight_decay"],
    }
    half = len(COLUMNS) // 2  # a stack of more than eight is no single kernel to the compiler
    parts = [
        torch.stack([columns[name] for name in names], 1)
        for names in (COLUMNS[:half], COLUMNS[half:])
    ]
    return torch.cat(parts, 1), before, before * clip


def gate(low: Tensor, high: Tensor, mean: Tensor, norms: tuple[str, ...]) -> Tensor:
    """Return [P, 2], shift and inverse width of each tensor's gate, from the utilities of all."""
    lines = {}
    for norm in dict.fromkeys(norms):
        shift, width = gate_line(low, high, mean, norm=norm)
        lines[norm] = torch.stack([shift, 1.0 / width])
    return torch.stack([lines[norm] for norm in norms])


def with_tensors(settings: Tensor, places: Sequence[Place], tensors: Sequence[Tensor]) -> Tensor:
    """Return the settings with tensors in their places."""
    table = list(settings.unbind())
    for (row, start, stop), tensor in zip(places, tensors, strict=True):
        middle = tensor.double().expand(stop - start)
        table[row] = torch.cat([table[row][:start], middle, table[row][stop:]])
    return torch.stack(table)


def settings_of(group: dict[str, Any]) -> list[float]:
    """Return a group's `SETTINGS`; a tensor in the place of a number counts as 0 for now."""
    beta1, beta2 = group.get("betas", (0.0, 0.0))
    numbers = {
        **{name: group[name] for name in SETTINGS[:5]},
        "beta1": beta1,
        "beta2": beta2,
        "eps": group.get("eps", 0.0),
        "sign": -1.0 if group["maximize"] else 1.0,
        "in_gradients": 1.0 if group["noise_scale"] == "rms_grad" else 0.0,
    }
    for name in ("beta_utility", "beta1", "beta2"):
        numbers[f"log_{name}"] = math.log(numbers[name]) if numbers[name] > 0.0 else -math.inf
    return [0.0 if isinstance(numbers[name], Tensor) else float(numbers[name]) for name in SETTINGS]
