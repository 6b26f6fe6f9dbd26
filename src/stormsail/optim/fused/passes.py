"""The passes of a compiled step over the tensors of a network, and how a CPU does them."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from stormsail.functional.optim import gradient_noise
from stormsail.optim.fused import cpu as lists
from stormsail.optim.fused import rows
from stormsail.optim.fused.compiler import Lists, compiled
from stormsail.optim.fused.cpu import Tensors
from stormsail.optim.fused.rows import Prepared, Report, ScalerRows, Settings
from stormsail.optim.upgd.buckets import Buffer


def is_capturing(device: torch.device) -> bool:
    """Say whether a graph is being captured, which keeps the addresses that it sees."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


class Foreseen(NamedTuple):
    """What a CUDA device works out while it looks at the gradients."""

    addresses: Tensor
    """[P, 7] where the tensors lie, the columns those of `Tensors`."""
    numbers: Tensor
    """The settings that it started from."""
    table: Tensor
    """[P, 12], the coefficients as far as they are known."""
    ahead: Tensor
    """[10, P], see `functional.kernels.utility_step`."""
    is_aligned: bool
    """Whether 16 bytes may be loaded at once."""


class Measured(NamedTuple):
    """The tensors of a step, and what the raw gradients show."""

    tensors: Tensors
    values: Tensor
    """[P, 5], see `MEASURED`; on CUDA [4, C], the first columns for each chunk."""
    foreseen: Foreseen | None = None


class Passes(Protocol):
    """Three trips through memory, with a few numbers for each tensor between them."""

    def measure(self, tensors: Tensors, settings: Settings) -> Measured:
        """Look at the raw gradients."""

    def is_refused(self, measured: Measured) -> Tensor:
        """Return whether a gradient is not finite, or its square is not."""

    def refuse(self, measured: Measured, settings: Settings) -> Report:
        """Change nothing but the scaler's count of what was not finite."""

    def prepare(self, measured: Measured, settings: Settings) -> Prepared:
        """Advance the scaler; return coefficients and the report."""

    def survey(
        self, measured: Measured, prepared: Prepared, settings: Settings, norms: tuple[str, ...]
    ) -> Tensor:
        """Return the line of each tensor's gate, [P, 2]."""

    def advance(
        self, measured: Measured, prepared: Prepared, lines: Tensor, noise: Buffer | None
    ) -> None:
        """Write parameters and state, unless the step is refused."""


class CpuPasses:
    """Each pass compiled for the shapes of the network; a refused step must not come this far."""

    def __init__(self) -> None:
        self._made: dict[Any, Lists] = {}

    def measure(self, tensors: Tensors, settings: Settings) -> Measured:
        """Look at the raw gradients."""
        steps, scaler, scaling = torch.stack(tensors.steps), settings.scaler, settings.scaling
        gains = torch.zeros_like(steps)
        if scaler is not None and scaling is not None:
            # As if every tensor were seen; one that is not has no use for it.
            counts = scaler.counts.index_select(0, scaler.inverse)
            gains = gradient_noise.gain(counts.double() + 1.0, beta=scaling.beta)
        arguments = [gains.to(tensors.grads[0].dtype), *tensors.grads, *tensors.means]
        make = lists.measure(len(steps), scaler=scaler is not None)
        (found,) = self._run(("measure", scaler is not None), make, arguments)
        return Measured(tensors, torch.cat([found.double(), steps.double().unsqueeze(1)], 1))

    def is_refused(self, measured: Measured) -> Tensor:
        """Return whether a gradient is not finite, or its square is not."""
        return rows.is_refused(measured.values)

    def refuse(self, measured: Measured, settings: Settings) -> Report:
        """Change nothing but the scaler's count of what was not finite."""
        found = rows.seen(measured.values, settings.order)
        scaler, scaling = settings.scaler, settings.scaling
        if scaler is not None and scaling is not None:
            values = measured.values.index_select(0, scaler.order)
            scaler.nonfinite.add_(~rows.is_finite(values[:, 0], values[:, 1], scaling))
        return Report(*found, found.raw_norm, found.raw_norm)

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
        key = ("prepare", scaling, bound, places, *(one.dtype for one in settings.given))
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
        (found,) = self._run(("survey", norms), lists.survey(norms, count), arguments)
        return found

    def advance(
        self, measured: Measured, prepared: Prepared, lines: Tensor, noise: Buffer | None
    ) -> None:
        """Write parameters and state; whether it is refused was read by the host."""
        tensors = measured.tensors
        moments, scaler, noisy = tensors.has_moments, tensors.has_scaler, noise is not None
        make = lists.advance(len(tensors.params), moments=moments, scaler=scaler, noisy=noisy)
        drawn = [] if noise is None else noise.views
        written = (*tensors.utility, *tensors.first, *tensors.second, *tensors.means)
        arguments = [prepared.table, lines, *tensors.grads, *tensors.params, *written, *drawn]
        self._run(("advance", moments, scaler, noisy), make, arguments)
        torch._foreach_add_(tensors.steps, 1.0)

    def _run(
        self, key: tuple[Any, ...], make: Callable[..., list[Tensor]], arguments: list[Tensor]
    ) -> list[Tensor]:
        if key not in self._made:
            self._made[key] = compiled(make, arguments)
        return list(self._made[key](*[argument.detach() for argument in arguments]))
