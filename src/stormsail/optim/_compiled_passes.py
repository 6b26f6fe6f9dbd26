"""The passes of a compiled step over the tensors of a network, on a CPU or a CUDA device."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from stormsail.functional import gradient_noise
from stormsail.optim import _compiled_cpu as lists
from stormsail.optim._compiled_cpu import Tensors
from stormsail.optim._compiled_rows import MEASURED, ScalerRows, gate
from stormsail.optim._compiler import Lists, compiled
from stormsail.optim._upgd_buckets import Buffer

BLOCK = 1024
"""Elements that one program of a CUDA device works on."""


class Passes(Protocol):
    """Three trips through memory, with a few numbers for each tensor between them."""

    def measure(self, tensors: Tensors, rows: ScalerRows | None, *, beta: float) -> Tensor:
        """Return [P, 5], see `MEASURED`."""

    def survey(self, tensors: Tensors, table: Tensor, norms: tuple[str, ...]) -> Tensor:
        """Return the line of each tensor's gate, [P, 2]."""

    def advance(
        self, tensors: Tensors, table: Tensor, lines: Tensor, noise: Buffer | None, refused: Tensor
    ) -> None:
        """Write parameters and state, unless the step is refused."""


class CpuPasses:
    """Each pass compiled for the shapes of the network; a refused step must not come this far."""

    def __init__(self) -> None:
        self._made: dict[Any, Lists] = {}

    def measure(self, tensors: Tensors, rows: ScalerRows | None, *, beta: float) -> Tensor:
        """Return [P, 5], see `MEASURED`."""
        steps = torch.stack(tensors.steps)
        gains = torch.zeros_like(steps)
        if rows is not None:  # as if every tensor were seen; one that is not has no use for it
            counts = rows.counts.index_select(0, rows.inverse)
            gains = gradient_noise.gain(counts.double() + 1.0, beta=beta)
        arguments = [gains.to(tensors.grads[0].dtype), *tensors.grads, *tensors.means]
        make = lists.measure(len(steps), scaler=rows is not None)
        (found,) = self._run(("measure", rows is not None), make, arguments)
        return torch.cat([found.double(), steps.double().unsqueeze(1)], 1)

    def survey(self, tensors: Tensors, table: Tensor, norms: tuple[str, ...]) -> Tensor:
        """Return the line of each tensor's gate, [P, 2]."""
        count = sum(param.numel() for param in tensors.params)
        arguments = [table, *tensors.grads, *tensors.params, *tensors.utility]
        (found,) = self._run(("survey", norms), lists.survey(norms, count), arguments)
        return found

    def advance(
        self, tensors: Tensors, table: Tensor, lines: Tensor, noise: Buffer | None, refused: Tensor
    ) -> None:
        """Write parameters and state; `refused` was read by the host."""
        del refused
        moments, scaler, noisy = tensors.has_moments, tensors.has_scaler, noise is not None
        make = lists.advance(len(tensors.params), moments=moments, scaler=scaler, noisy=noisy)
        drawn = [] if noise is None else noise.views
        written = (*tensors.utility, *tensors.first, *tensors.second, *tensors.means)
        arguments = [table, lines, *tensors.grads, *tensors.params, *written, *drawn]
        self._run(("advance", moments, scaler, noisy), make, arguments)
        torch._foreach_add_(tensors.steps, 1.0)

    def _run(
        self, key: tuple[Any, ...], make: Callable[..., list[Tensor]], arguments: list[Tensor]
    ) -> list[Tensor]:
        if key not in self._made:
            self._made[key] = compiled(make, arguments)
        return list(self._made[key](*[argument.detach() for argument in arguments]))


class CudaPasses:
    """Four kernels that find the tensors through a table of addresses.

    Args:
        params: of the network, in the optimizer's order.
    """

    def __init__(self, params: list[Tensor]) -> None:
        device = params[0].device
        sizes = [param.numel() for param in params]
        chunks = [(place, at) for place, size in enumerate(sizes) for at in range(0, size, BLOCK)]
        counts = [-(-size // BLOCK) for size in sizes]
        firsts = [sum(counts[:place]) for place in range(len(counts) + 1)]
        offsets = [sum(sizes[:place]) for place in range(len(sizes))]
        self._chunks, self._sizes, self._firsts, self._offsets = (
            torch.tensor(values, dtype=torch.int64, device=device)
            for values in (chunks, sizes, firsts, offsets)
        )
        self._elements = sum(sizes)
        self._tables: dict[tuple[int, ...], Tensor] = {}
        self._room = self._pinned(len(params))
        self._kept: list[Tensor] = []
        self._constants: dict[float, Tensor] = {}
        self._gates: dict[tuple[str, ...], Lists] = {}

    def measure(self, tensors: Tensors, rows: ScalerRows | None, *, beta: float) -> Tensor:
        """Return [P, 5], see `MEASURED`."""
        from stormsail.functional.kernels import utility_step as kernels

        grad, scaler = tensors.grads[0], rows is not None
        pointers = self._pointers(tensors)
        partial = grad.new_empty(len(self._chunks), 4)
        measured = torch.empty(
            len(tensors.grads), len(MEASURED), dtype=torch.float64, device=grad.device
        )
        counts, inverse = (self._sizes,) * 2 if rows is None else (rows.counts, rows.inverse)
        kernels.measure[(len(self._chunks),)](
            pointers, self._chunks, self._sizes, counts, inverse,
            self._constant(beta), partial,
            SCALER=scaler, DTYPE=kernels.KINDS[grad.dtype], BLOCK=BLOCK,
        )  # fmt: skip
        kernels.collect[(len(tensors.grads),)](
            pointers, self._firsts, partial, measured,
            SCALER=scaler, WIDTH=256,
        )  # fmt: skip
        return measured

    def survey(self, tensors: Tensors, table: Tensor, norms: tuple[str, ...]) -> Tensor:
        """Return the line of each tensor's gate, [P, 2]."""
        from stormsail.functional.kernels import utility_step as kernels

        pointers = self._pointers(tensors)
        partial = table.new_empty(3, len(self._chunks))
        kernels.survey[(len(self._chunks),)](
            pointers, self._chunks, self._sizes, table, partial,
            DTYPE=kernels.KINDS[table.dtype], BLOCK=BLOCK,
        )  # fmt: skip
        if norms not in self._gates:

            def lines(partial: Tensor) -> list[Tensor]:
                # Each over all rows, so that the compiler makes one kernel of the three.
                low, high = partial.amin(1)[0], partial.amax(1)[1]
                mean = partial.double().sum(1)[2] / self._elements
                return [gate(low, high, mean.to(partial.dtype), norms)]

            self._gates[norms] = compiled(lines, [partial])
        return self._gates[norms](partial)[0]

    def advance(
        self, tensors: Tensors, table: Tensor, lines: Tensor, noise: Buffer | None, refused: Tensor
    ) -> None:
        """Write parameters and state, unless the step is refused."""
        from stormsail.functional.kernels import utility_step as kernels

        pointers = self._pointers(tensors)
        kernels.advance[(len(self._chunks),)](
            pointers, self._chunks, self._sizes, self._offsets, table, lines,
            table if noise is None else noise.flat, refused,
            MOMENTS=tensors.has_moments, SCALER=tensors.has_scaler, NOISY=noise is not None,
            DTYPE=kernels.KINDS[table.dtype], BLOCK=BLOCK,
        )  # fmt: skip

    def _constant(self, beta: float) -> Tensor:
        """Return 1 - beta and its logarithm in float64, which a kernel's own arguments are not."""
        if beta not in self._constants:
            both = torch.tensor([1.0 - beta, beta], dtype=torch.float64)
            both[1].log_()
            self._constants[beta] = both.to(self._sizes.device)
        return self._constants[beta]

    def _pointers(self, tensors: Tensors) -> Tensor:
        """Return the table of addresses, made anew where a tensor has moved."""
        width = len(tensors.grads)
        columns = [[one.data_ptr() for one in part] or [0] * width for part in tensors]
        key = tuple(address for column in columns for address in column)
        if key not in self._tables:
            capturing = torch.cuda.is_current_stream_capturing()
            # A graph copies from this memory at every replay: it must stay, and pinned memory
            # cannot be asked for while one is captured.
            room, self._room = self._room, self._room if capturing else self._pinned(width)
            room.copy_(torch.tensor(columns, dtype=torch.int64).T)
            if capturing:
                self._kept.append(room)
            else:
                self._tables.clear()
            self._tables[key] = room.to(self._sizes.device, non_blocking=True)
        return self._tables[key]

    def _pinned(self, width: int) -> Tensor:
        pinned = self._sizes.device.type == "cuda"
        return torch.empty(width, len(Tensors._fields), dtype=torch.int64, pin_memory=pinned)
