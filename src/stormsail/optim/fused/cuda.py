"""The passes of a compiled step as five kernels of a CUDA device."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from stormsail.functional.optim.upgd import NORMS, ZERO_RANGE
from stormsail.optim.fused.passes import Measured, Precomputed, Tensors, is_capturing
from stormsail.optim.fused.rows import COLUMNS, Prepared, Report, Scaling, Settings
from stormsail.optim.upgd.buckets import Buffer
from stormsail.optim.vgs.scaler import slow_beta

BLOCK = 2048
"""Elements of a chunk, which one program looks at."""
PARTS = 2
"""Programs that share a chunk where everything is written."""
WARPS = {"measure": 4, "settle": 4, "survey": 8, "gate": 8, "advance": 4}
"""Of 32 threads, in a program of each kernel; the fastest on an H200."""
ROOMS = 4
"""Tables that graphs may bring along from one plain step to the next."""
AT_ONCE = 2048
"""Sums of chunks that one program adds up at once."""


class CudaPasses:
    """Kernels that find the tensors through a table of addresses.

    Args:
        params: of the network, in the optimizer's order.
    """

    def __init__(self, params: list[Tensor]) -> None:
        device, sizes = params[0].device, [param.numel() for param in params]
        chunks = [(place, at) for place, size in enumerate(sizes) for at in range(0, size, BLOCK)]
        counts = [-(-size // BLOCK) for size in sizes]
        firsts = [sum(counts[:place]) for place in range(len(counts) + 1)]
        offsets = [sum(sizes[:place]) for place in range(len(sizes))]
        self._chunks, self._sizes, self._firsts, self._offsets = (
            torch.tensor(values, dtype=torch.int64, device=device)
            for values in (chunks, sizes, firsts, offsets)
        )
        self._elements, self._longest = sum(sizes), max(counts)
        # From Hopper on, a kernel may be launched before the one before it has ended.
        self._early = device.type == "cuda" and _is_hopper(device)
        self._launch = {"launch_pdl": True} if self._early else {}
        self._tensors = AddressTable(len(params), len(Tensors._fields), device)
        self._given = AddressTable(len(params), 2, device)
        self._constants: dict[tuple[Scaling | float, ...], Tensor] = {}
        self._norms: dict[tuple[str, ...], Tensor] = {}

    def measure(self, tensors: Tensors, settings: Settings) -> Measured:
        """Look at the raw gradients; leave sums of each chunk, [4, C]."""
        from stormsail.functional.kernels import utility_step as kernels

        grad, width, chunks = tensors.grads[0], len(tensors.grads), len(self._chunks)
        columns = [[tensor.data_ptr() for tensor in part] or [0] * width for part in tensors]
        # The counter is read by itself.
        is_aligned = not any(address % 16 for column in columns[:-1] for address in column)
        addresses = self._tensors.on_device(columns)
        table = grad.new_empty(width, len(COLUMNS))
        ahead = torch.empty(11, width, dtype=torch.float64, device=grad.device)
        partial = grad.new_empty(4, chunks)
        unused = (self._sizes,) * 3
        counts, inverse, steps = (
            unused
            if settings.scaler is None
            else (settings.scaler.counts, settings.scaler.inverse, settings.scaler.steps)
        )
        kernels.measure[(chunks + 1,)](
            addresses, self._chunks, self._sizes, settings.numbers, self._constants_of(settings),
            counts, inverse, steps, table, ahead, partial,
            width,
            SCALER=settings.scaler is not None, MEDIAN=_follows_median(settings),
            DTYPE=kernels.KINDS[grad.dtype], ALIGNED=is_aligned, P=_power_of_two(width),
            BLOCK=BLOCK, EARLY=self._early, num_warps=WARPS["measure"],
        )  # fmt: skip
        precomputed = Precomputed(addresses, settings.numbers, table, ahead, is_aligned=is_aligned)
        return Measured(tensors, partial, precomputed)

    def is_refused(self, measured: Measured) -> Tensor:
        """Return whether a gradient is not finite, or its square is not."""
        return ~measured.values[0].isfinite().all()

    def refuse(self, measured: Measured, settings: Settings) -> Report:
        """Change nothing but the scaler's count of what was not finite."""
        report = self.prepare(measured, settings).report
        return report._replace(nonfinite=(~report.norms.isfinite()).sum())

    def prepare(self, measured: Measured, settings: Settings) -> Prepared:
        """Advance the scaler; return coefficients and the report."""
        from stormsail.functional.kernels import utility_rows as row_kernels

        precomputed, device = _precomputed(measured), self._sizes.device
        if precomputed.numbers is not settings.numbers:  # a hook of the optimizer has changed them
            precomputed = _precomputed(self.measure(measured.tensors, settings))
        width = len(measured.tensors.params)
        refused = torch.empty((), dtype=torch.int32, device=device)
        stepped = torch.empty((), dtype=torch.bool, device=device)
        nonfinite = torch.empty((), dtype=torch.int64, device=device)
        norms, totals = torch.empty(width + 3, dtype=torch.float64, device=device).split([width, 3])
        unused, chunks, scaler = self._sizes, len(self._chunks), settings.scaler
        counts, spread, mean_square, bad, median, inverse = (
            (unused,) * 6 if scaler is None else (*scaler[:4], scaler.median, scaler.inverse)
        )
        row_kernels.settle[(width,)](
            measured.values, self._firsts, chunks, settings.numbers,
            self._addresses_of(settings), self._constants_of(settings), precomputed.ahead,
            settings.ranks, inverse, counts, spread, mean_square, bad, median,
            precomputed.table, refused, stepped.view(torch.uint8), norms, totals,
            width,
            SCALER=scaler is not None, MEDIAN=_follows_median(settings),
            BOUNDED=settings.bound > 0, WIDTH=_width(chunks, AT_ONCE),
            OWN=_width(self._longest, AT_ONCE), EARLY=self._early,
            num_warps=WARPS["settle"], **self._launch,
        )  # fmt: skip
        report = Report(stepped, nonfinite, norms, *totals.unbind())
        return Prepared(precomputed.table, refused, report, precomputed.ahead)

    def survey(
        self, measured: Measured, prepared: Prepared, settings: Settings, norms: tuple[str, ...]
    ) -> Tensor:
        """Return the line of each tensor's gate, [P, 2]; fill in what the report still lacks."""
        from stormsail.functional.kernels import utility_rows as row_kernels
        from stormsail.functional.kernels import utility_step as kernels

        precomputed, chunks, table = _precomputed(measured), len(self._chunks), prepared.table
        if norms not in self._norms:
            codes = torch.tensor([NORMS.index(norm) for norm in norms], dtype=torch.int32)
            self._norms[norms] = codes.to(table.device)
        partial, lines = table.new_empty(3, chunks), table.new_empty(len(norms), 2)
        unused, scaler, dtype = self._sizes, settings.scaler, kernels.KINDS[table.dtype]
        steps, largest = (unused,) * 2 if scaler is None else (scaler.steps, scaler.largest)
        padded = _power_of_two(len(norms))
        kernels.survey[(chunks + 1,)](
            precomputed.addresses, self._chunks, self._sizes, table, partial,
            prepared.report.norms, prepared.report.nonfinite, prepared.ahead, steps, largest,
            len(norms),
            SCALER=scaler is not None, DTYPE=dtype, ALIGNED=precomputed.is_aligned, P=padded,
            BLOCK=BLOCK, num_warps=WARPS["survey"], EARLY=self._early, **self._launch,
        )  # fmt: skip
        number = torch.finfo(table.dtype)
        row_kernels.gate[(1,)](
            partial, self._norms[norms], lines, chunks, len(norms), self._elements,
            EPS=ZERO_RANGE * number.eps, TINY=number.tiny, DTYPE=dtype, P=padded,
            WIDTH=_width(chunks, AT_ONCE), EARLY=self._early,
            num_warps=WARPS["gate"], **self._launch,
        )  # fmt: skip
        return lines

    def advance(
        self, measured: Measured, prepared: Prepared, lines: Tensor, noise: Buffer | None
    ) -> None:
        """Write parameters and state, unless the step is refused."""
        from stormsail.functional.kernels import utility_step as kernels

        table, tensors, precomputed = prepared.table, measured.tensors, _precomputed(measured)
        kernels.advance[(PARTS * len(self._chunks),)](
            precomputed.addresses, self._chunks, self._sizes, self._offsets, table, lines,
            table if noise is None else noise.flat, prepared.refused,
            MOMENTS=tensors.has_moments, SCALER=tensors.has_scaler, NOISY=noise is not None,
            DTYPE=kernels.KINDS[table.dtype], ALIGNED=precomputed.is_aligned, BLOCK=BLOCK // PARTS,
            PARTS=PARTS, num_warps=WARPS["advance"], EARLY=self._early, **self._launch,
        )  # fmt: skip

    def _constants_of(self, settings: Settings) -> Tensor:
        """Return the settings of scaler and clip, [12], in the order in which kernels read them."""
        scaling, bound = settings.scaling, settings.bound
        if scaling is None:
            return self._constant((bound,), (0.0,) * 9 + (bound, 0.0, 0.0))
        ratio = (1.0 - scaling.beta) / (1.0 + scaling.beta)
        warm = max(scaling.warmup_steps, 1)
        values = (
            1.0 - scaling.beta,
            _log(scaling.beta),
            ratio,
            scaling.alpha,
            scaling.eps_rel,
            warm,
        )
        slow = slow_beta(scaling.beta)
        ends = (scaling.floor, scaling.cap, scaling.limit, bound, 1.0 - slow, _log(slow))
        return self._constant((scaling, bound), (*values, *ends))

    def _constant(self, key: tuple[Scaling | float, ...], values: Sequence[float]) -> Tensor:
        """Return numbers in float64, which a kernel's own arguments are not."""
        key = (*key, len(values))
        if key not in self._constants:
            made = torch.tensor(values, dtype=torch.float64)
            self._constants[key] = made.to(self._sizes.device)
        return self._constants[key]

    def _addresses_of(self, settings: Settings) -> Tensor:
        """Return where rates and sigmas that are tensors lie, [P, 2]."""
        columns = [[0] * len(self._sizes) for _ in range(2)]
        for (row, start, stop), tensor in zip(settings.places, settings.given, strict=True):
            address = tensor.data_ptr() + (tensor.dtype == torch.float64)
            columns[row][start:stop] = [address] * (stop - start)
        return self._given.on_device(columns)


class AddressTable:
    """Addresses on the device, [height, width], copied there where one has changed.

    A graph reads the table that it was captured with, and copies it from the host if that was made
    meanwhile, at every replay: both then stay for good.
    """

    def __init__(self, height: int, width: int, device: torch.device) -> None:
        self._shape, self._device = (height, width), device
        self._tables: dict[tuple[int, ...], Tensor] = {}
        self._rooms: list[Tensor] = []
        self._kept: list[Tensor] = []

    def on_device(self, columns: Sequence[Sequence[int]]) -> Tensor:
        """Return the table with these columns."""
        key = tuple(address for column in columns for address in column)
        capturing = is_capturing(self._device)
        if key in self._tables:
            if capturing:
                self._kept.append(self._tables[key])
            return self._tables[key]
        if not capturing:  # pinned memory cannot be asked for while a graph is captured
            while len(self._rooms) < ROOMS:
                self._rooms.append(self._room())
        room = self._rooms.pop() if self._rooms else self._room()
        room.copy_(torch.tensor(columns, dtype=torch.int64).T)
        table = room.to(self._device, non_blocking=True)
        if capturing:  # not for other steps: it is filled by a replay only
            self._kept += [room, table]
        else:
            self._tables.clear()
            self._tables[key] = table
        return table

    def _room(self) -> Tensor:
        pinned = self._device.type == "cuda"
        return torch.empty(self._shape, dtype=torch.int64, pin_memory=pinned)


def _precomputed(measured: Measured) -> Precomputed:
    assert measured.precomputed is not None  # noqa: S101  # `CudaPasses.measure` put it there
    return measured.precomputed


def _follows_median(settings: Settings) -> bool:
    return settings.scaling is not None and settings.scaling.follows_median


def _is_hopper(device: torch.device) -> bool:
    """Say whether a device is of Nvidia's Hopper generation or later."""
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)


def _log(beta: float) -> float:
    return math.log(beta) if beta > 0.0 else -math.inf


def _power_of_two(count: int) -> int:
    """Return the least power of two that is not smaller."""
    return 1 << (count - 1).bit_length()


def _width(count: int, most: int) -> int:
    return max(1, min(_power_of_two(count), most))
