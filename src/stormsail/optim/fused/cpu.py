"""The three passes of a compiled step over lists of tensors, for a CPU.

1. `measure`: what the guard, the clip and the scaler must know of each gradient.
2. `survey`: the range and the mean of all utilities.
3. `advance`: everything that is written, in one trip through memory.

Arithmetic only, and pure but for what `advance` writes into its arguments: the eager step is the
reference, and these are the same formulas in the order in which they touch memory least.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from stormsail.core.machine_code.graph_compiler import TensorFunction, compile_graph
from stormsail.functional.optim import gradient_noise
from stormsail.optim.fused import rows
from stormsail.optim.fused.passes import Measured, Tensors
from stormsail.optim.fused.rows import COLUMNS, Prepared, Report, ScalerRows, Settings, gate
from stormsail.optim.upgd.buckets import Buffer


class CpuPasses:
    """Each pass compiled for the shapes of the network; a refused step must not come this far."""

    def __init__(self) -> None:
        self._made: dict[Any, TensorFunction] = {}

    def measure(self, tensors: Tensors, settings: Settings) -> Measured:
        """Look at the raw gradients."""
        steps, scaler, scaling = torch.stack(tensors.steps), settings.scaler, settings.scaling
        gains = torch.zeros_like(steps)
        if scaler is not None and scaling is not None:
            # As if every tensor were seen; one that is not has no use for it.
            counts = scaler.counts.index_select(0, scaler.inverse)
            gains = gradient_noise.gain(counts.double() + 1.0, beta=scaling.beta)
        arguments = [gains.to(tensors.grads[0].dtype), *tensors.grads, *tensors.means]
        make = _measure(len(steps), scaler=scaler is not None)
        (sums,) = self._run(("measure", scaler is not None), make, arguments)
        return Measured(tensors, torch.cat([sums.double(), steps.double().unsqueeze(1)], 1))

    def is_refused(self, measured: Measured) -> Tensor:
        """Return whether a gradient is not finite, or its square is not."""
        return rows.is_refused(measured.values)

    def refuse(self, measured: Measured, settings: Settings) -> Report:
        """Change nothing but the scaler's count of what was not finite."""
        seen = rows.seen(measured.values, settings.order)
        scaler, scaling = settings.scaler, settings.scaling
        if scaler is not None and scaling is not None:
            values = measured.values.index_select(0, scaler.order)
            scaler.nonfinite.add_(~rows.is_finite(values[:, 0], values[:, 1], scaling))
        return Report(*seen, seen.raw_norm, seen.raw_norm)

    def prepare(self, measured: Measured, settings: Settings) -> Prepared:
        """Advance the scaler; return coefficients and the report."""
        places, scaling, bound = settings.places, settings.scaling, settings.bound
        dtype = measured.tensors.params[0].dtype

        def run(
            values: Tensor, sizes: Tensor, numbers: Tensor, order: Tensor, *rest: Tensor
        ) -> list[Tensor]:
            numbers = rows.with_tensors(numbers, places, rest[: len(places)])
            refused = rows.is_refused(values)
            gain, factor = torch.zeros_like(sizes), torch.ones_like(sizes)
            if scaling is not None:
                own = ScalerRows(*rest[len(places) :])
                gain, factor = rows.learn_(values, sizes, refused, own, scaling)
            table, before, after = rows.coefficients(
                values, sizes, numbers, gain, factor, bound=bound
            )
            return [table.to(dtype), refused, *rows.seen(values, order), before, after]

        fixed = [measured.values, settings.sizes, settings.numbers, settings.order]
        arguments = [*fixed, *settings.given, *(settings.scaler or ())]
        key = ("prepare", scaling, bound, places, *(tensor.dtype for tensor in settings.given))
        table, refused, *report = self._run(key, run, arguments)
        return Prepared(table, refused, Report(*report))

    def survey(
        self, measured: Measured, prepared: Prepared, settings: Settings, norms: tuple[str, ...]
    ) -> Tensor:
        """Return the line of each tensor's gate, [P, 2]."""
        del settings
        tensors = measured.tensors
        count = sum(param.numel() for param in tensors.params)
        arguments = [prepared.table, *tensors.grads, *tensors.params, *tensors.utility]
        (lines,) = self._run(("survey", norms), _survey(norms, count), arguments)
        return lines

    def advance(
        self, measured: Measured, prepared: Prepared, lines: Tensor, noise: Buffer | None
    ) -> None:
        """Write parameters and state; whether it is refused was read by the host."""
        tensors = measured.tensors
        moments, scaler, noisy = tensors.has_moments, tensors.has_scaler, noise is not None
        make = _advance(len(tensors.params), moments=moments, scaler=scaler, noisy=noisy)
        drawn = [] if noise is None else noise.views
        written = (*tensors.utility, *tensors.first, *tensors.second, *tensors.means)
        arguments = [prepared.table, lines, *tensors.grads, *tensors.params, *written, *drawn]
        self._run(("advance", moments, scaler, noisy), make, arguments)
        torch._foreach_add_(tensors.steps, 1.0)

    def _run(
        self, key: tuple[Any, ...], make: Callable[..., list[Tensor]], arguments: list[Tensor]
    ) -> list[Tensor]:
        if key not in self._made:
            self._made[key] = compile_graph(make, arguments, instead="leave `compiled=True` out")
        return list(self._made[key](*[argument.detach() for argument in arguments]))


def _measure(tensors: int, *, scaler: bool) -> Callable[..., list[Tensor]]:
    """Return the pass (gains [P], grads, means) -> [P, 4], the first columns of `MEASURED`."""

    def run(gains: Tensor, *flat: Tensor) -> list[Tensor]:
        rows = []
        for i, grad in enumerate(flat[:tensors]):
            square, peak = grad.square().sum(), grad.abs().amax()
            before = after = torch.zeros_like(square)
            if scaler:
                mean = flat[tensors + i]
                distance = grad - mean
                before = distance.square().sum()
                after = (mean + gains[i] * distance).square().sum()
            rows += [square, peak, before, after]
        return [torch.stack(rows).view(tensors, 4)]

    return run


def _survey(norms: tuple[str, ...], count: int) -> Callable[..., list[Tensor]]:
    """Return the pass (table, grads, params, utility) -> lines [P, 2], see `gate`."""
    tensors = len(norms)

    def run(table: Tensor, *flat: Tensor) -> list[Tensor]:
        grads, params, utility = _split(flat, tensors, 3)
        lows, highs, sums = [], [], []
        for i in range(tensors):
            row = _columns(table, i)
            corrected = _moved_utility(utility[i], grads[i], params[i], row) * row["utility_scale"]
            lows.append(corrected.amin())
            highs.append(corrected.amax())
            sums.append(corrected.sum())
        total = torch.stack(sums).double().sum() / count
        low, high = torch.stack(lows).amin(), torch.stack(highs).amax()
        return [gate(low, high, total.to(table.dtype), norms)]

    return run


def _advance(
    tensors: int, *, moments: bool, scaler: bool, noisy: bool
) -> Callable[..., list[Tensor]]:
    """Return the pass (table, lines, lists), which writes all but gradients and noise.

    The lists are gradients, parameters and utilities, and those of the two moments, the scaler's
    means and the noise that there are.
    """

    def run(table: Tensor, lines: Tensor, *flat: Tensor) -> list[Tensor]:
        lists = iter(_split(flat, tensors, 3 + 2 * moments + scaler + noisy))
        grads, params, utility = next(lists), next(lists), next(lists)
        first, second = (next(lists), next(lists)) if moments else ((), ())
        means = next(lists) if scaler else ()
        noise = next(lists) if noisy else ()
        for i in range(tensors):
            row, grad, param = _columns(table, i), grads[i], params[i]
            valued = _moved_utility(utility[i], grad, param, row)
            kept = torch.sigmoid((lines[i, 0] - valued * row["utility_scale"]) * lines[i, 1])
            step = grad * row["share"]
            if moments:
                low = first[i] + row["first_weight"] * (step - first[i])
                square = second[i] + row["second_weight"] * (step * step - second[i])
                first[i].copy_(low)
                second[i].copy_(square)
                root = square.sqrt() * row["second_scale"] + row["eps"]
                step = low * row["first_scale"] / root
            if noisy:
                step = step + row["sigma"] * noise[i]
            if scaler:
                means[i].copy_(means[i] + row["gain"] * (grad - means[i]))
            params[i].copy_(param * row["decay"] - row["rate"] * (kept * step))
            utility[i].copy_(valued)
        return []

    return run


def _moved_utility(utility: Tensor, grad: Tensor, param: Tensor, row: dict[str, Tensor]) -> Tensor:
    return utility - row["utility_weight"] * (utility + grad * row["share"] * param)


def _columns(table: Tensor, place: int) -> dict[str, Tensor]:
    return {name: table[place, column] for column, name in enumerate(COLUMNS)}


def _split(flat: Sequence[Tensor], tensors: int, lists: int) -> list[Sequence[Tensor]]:
    return [flat[start * tensors : (start + 1) * tensors] for start in range(lists)]
