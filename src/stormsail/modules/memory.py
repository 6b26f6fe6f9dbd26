"""Recurrent memory of an agent: LSTM, GRU, or none.

A state is one tensor [B, L, P, H]: L layers of P parts (hidden and cell of an LSTM, hidden of a
GRU), so that it is stored, moved, reset and saved as one. Without a memory it has no layers.
"""

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from stormsail.core.errors import ShapeError
from stormsail.core.machine_code.graph_compiler import is_traced
from stormsail.functional import recurrence
from stormsail.functional.kernels.devices import may_launch
from stormsail.functional.kernels.layers.lstm_rows import LstmRows
from stormsail.functional.kernels.layers.packed_lstm import PackedLstm
from stormsail.functional.kernels.layers.recurrent import Layer, recurrent_sequence

_PARTS = {"lstm": 2, "gru": 1, "none": 0}
_GATES = {"lstm": 4, "gru": 3, "none": 0}

ROWS_OF_A_PIECE = 16
"""Rows between resets, on average, from which torch's kernel is called for each piece. At 16 that
took two thirds of the time of going row by row."""

SHARE_OF_ROWS = 0.75
"""An LSTM whose longest stretch without a reset has at most this share of the rows is packed."""

LARGEST_SHARE = 1.5
"""An LSTM whose longest column has at most this many times its rows once a row is inserted before
every reset goes through torch's kernel in one call. Each row of that takes less than half the time
of a row that is packed."""

SHUT = 1e30
"""Size of a gate's input at which it is shut or open, whatever else it reads; float32 holds it."""

Run = Callable[[int, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""From layer, inputs, state and resets to outputs and the state after the last row."""


class Memory(nn.Module):
    """A stack of recurrent layers whose state can be reset inside a sequence.

    Where `reset[t, b]` is true, environment b starts row t from the initial state. Seven
    implementations give the same numbers up to rounding. On a CUDA device with Triton all rows go
    through kernels of our own, whose outputs have autocast's dtype where it is on; the state is
    float32 always. On a CPU an LSTM goes through machine code of our own where it is given.
    Elsewhere, gates being in torch's own order, one row goes through torch's cell,
    and rows without a reset between them through its fused kernel. An LSTM that begins with zeros
    goes through that kernel with resets, too: a row is inserted before each, whose gates are shut,
    so that it leaves a state of zeros. Where the initial state is learned, the fused kernel takes
    the rows between few resets, and where all episodes of an LSTM are short, each becomes a packed
    sequence of its own. Everything else, and tensors whose flags cannot be read without a host
    sync, goes row by row through `functional.recurrence`.

    Args:
        inputs: width of the input.
        kind: `lstm`, `gru` or `none`.
        width: H.
        layers: L.
        learn_initial: learn the initial state instead of zeros.
        generator: source of the weights, orthogonal as usual for PPO, with zero bias.
    """

    def __init__(
        self,
        inputs: int,
        *,
        kind: str,
        width: int,
        layers: int,
        learn_initial: bool,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.kind = kind
        self.layers = 0 if kind == "none" else layers
        self.width = inputs if kind == "none" else width
        gates = _GATES[kind] * width
        sizes = [inputs, *[width] * (layers - 1)][: self.layers]
        self.input_weights = nn.ParameterList(
            nn.init.orthogonal_(torch.empty(gates, size), generator=generator) for size in sizes
        )
        self.hidden_weights = nn.ParameterList(
            nn.init.orthogonal_(torch.empty(gates, width), generator=generator) for _ in sizes
        )
        self.input_biases = nn.ParameterList(torch.zeros(gates) for _ in sizes)
        self.hidden_biases = nn.ParameterList(torch.zeros(gates) for _ in sizes)
        initial = torch.zeros(self.layers, max(_PARTS[kind], 1), self.width)
        self.initial: Tensor
        if learn_initial and self.layers:
            self.initial = nn.Parameter(initial)
        else:
            self.register_buffer("initial", initial)

    def initial_state(self, batch: int) -> Tensor:
        """Return the state at the start of an episode, [B, L, P, H], in memory of its own."""
        return self.initial.expand(batch, *self.initial.shape).clone()

    def forward(
        self, x: Tensor, state: Tensor, reset: Tensor, rows: LstmRows | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return outputs [T, B, H] and the state after the last row.

        Args:
            x: inputs [T, B, I].
            state: before the first row, [B, L, P, H].
            reset: where a row starts from the initial state, bool [T, B].
            rows: machine code for an LSTM's rows in float32 on a CPU; None without.

        Raises:
            ShapeError: if the shapes do not fit each other.
        """
        self._check(x, state, reset)
        if self.kind == "none":
            return x, state
        if rows is not None and self.kind == "lstm":
            run: Run = partial(self._in_machine_code, rows)
        else:
            run = self._on_device if self._launches(x) else self._implementation(reset)
        states = []
        for layer in range(self.layers):
            x, after = run(layer, x, state[:, layer], reset)
            states.append(after)
        return x, torch.stack(states, 1) if len(states) > 1 else states[0][:, None]

    def _launches(self, x: Tensor) -> bool:
        """Return whether our own kernels can run: they know float32 weights only."""
        return may_launch(x, self.initial) and self.initial.dtype == torch.float32

    def _on_device(
        self, layer: int, x: Tensor, state: Tensor, reset: Tensor
    ) -> tuple[Tensor, Tensor]:
        weights = Layer(*self._weights(layer))
        return recurrent_sequence(self.kind, x, weights, state, reset, self.initial[layer])

    def _in_machine_code(
        self, rows: LstmRows, layer: int, x: Tensor, state: Tensor, reset: Tensor
    ) -> tuple[Tensor, Tensor]:
        return rows(x, Layer(*self._weights(layer)), state, reset, self.initial[layer])

    def _implementation(self, reset: Tensor) -> Run:
        """Return the fastest implementation for these resets."""
        if len(reset) == 1:
            return self._one_row
        if not _may_read(reset):
            return self._stepwise
        lengths = _between_resets(reset)
        if self.kind == "lstm" and len(lengths) > 1 and self._begins_with_zeros():
            rows = len(reset) + int(reset[1:].sum(0).max())
            if rows <= LARGEST_SHARE * len(reset):
                return partial(self._separated, _separators(reset, rows))
        if len(lengths) <= max(1, len(reset) // ROWS_OF_A_PIECE):
            return partial(self._fused, lengths)
        stretches = _stretches(reset)
        if self.kind == "lstm" and len(stretches.sizes) <= SHARE_OF_ROWS * len(reset):
            return partial(self._packed, stretches)
        return self._stepwise

    def _one_row(
        self, layer: int, x: Tensor, state: Tensor, reset: Tensor
    ) -> tuple[Tensor, Tensor]:
        parts = self._begin(layer, state, reset[0]).unbind(1)
        with _full_precision(x.device):
            row, weights = x[0].to(self.initial.dtype), self._weights(layer)
            if self.kind == "lstm":
                hidden, cell = torch.lstm_cell(row, parts, *weights)
                return hidden[None], torch.stack((hidden, cell), 1)
            hidden = torch.gru_cell(row, parts[0], *weights)
            return hidden[None], hidden[:, None]

    def _stepwise(
        self, layer: int, x: Tensor, state: Tensor, reset: Tensor
    ) -> tuple[Tensor, Tensor]:
        weight, bias = self.hidden_weights[layer], self.hidden_biases[layer]
        gates = nn.functional.linear(x, self.input_weights[layer], self.input_biases[layer])
        initial = self.initial[layer]
        # under autocast the input's part may be bfloat16; what is carried on keeps its digits
        gates, state = gates.to(weight.dtype), state.to(weight.dtype)
        with _full_precision(x.device):
            if self.kind == "lstm":
                output, cell = recurrence.lstm_sequence(
                    gates + bias, weight, state[:, 0], state[:, 1], reset, initial[0], initial[1]
                )
                return output, torch.stack((output[-1], cell), 1)
            output = recurrence.gru_sequence(gates, weight, bias, state[:, 0], reset, initial[0])
            return output, output[-1][:, None]

    def _fused(
        self, lengths: list[int], layer: int, x: Tensor, state: Tensor, reset: Tensor
    ) -> tuple[Tensor, Tensor]:
        outputs = []
        for rows, flags in zip(x.split(lengths), reset.split(lengths), strict=True):
            output, state = self._piece(layer, rows, state, flags[0])
            outputs.append(output)
        return torch.cat(outputs), state

    def _piece(self, layer: int, x: Tensor, state: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs and last state of rows of which only the first may be a reset, [B]."""
        parts = self._begin(layer, state, reset).transpose(0, 1).contiguous()  # [P, B, H]
        weights = self._weights(layer)
        options = (True, 1, 0.0, self.training, False, False)
        with _full_precision(x.device):
            x = x.to(self.initial.dtype)
            if self.kind == "lstm":
                output, hidden, cell = torch.lstm(x, (parts[0:1], parts[1:2]), weights, *options)
                return output, torch.stack((hidden[0], cell[0]), 1)
            output, hidden = torch.gru(x, parts[0:1], weights, *options)
            return output, hidden[0][:, None]

    def _begin(self, layer: int, state: Tensor, reset: Tensor) -> Tensor:
        """Return the state before a row, fresh where that is a reset, [B, P, H]."""
        begin = torch.where(reset[:, None, None], self.initial[layer], state)
        return begin.to(self.initial.dtype)

    def _weights(self, layer: int) -> list[Tensor]:
        """Return the weights of one layer in torch's order."""
        name = str(layer)  # an index of a `ParameterList` is several times as slow
        return [
            getattr(self.input_weights, name),
            getattr(self.hidden_weights, name),
            getattr(self.input_biases, name),
            getattr(self.hidden_biases, name),
        ]

    def _packed(
        self, stretches: "_Stretches", layer: int, x: Tensor, state: Tensor, reset: Tensor
    ) -> tuple[Tensor, Tensor]:
        weight, bias = self.hidden_weights[layer], self.hidden_biases[layer]
        rows = x.flatten(0, 1).index_select(0, stretches.place)
        gates = nn.functional.linear(rows, self.input_weights[layer], self.input_biases[layer])
        begin = self._begin(layer, state.index_select(0, stretches.column), stretches.fresh)
        gates = gates.to(weight.dtype)
        with _full_precision(x.device):
            output, cells = PackedLstm.apply(
                gates + bias, weight, begin[:, 0], begin[:, 1], stretches.sizes
            )
        output = output.index_select(0, stretches.back).view(*reset.shape, -1)
        return output, torch.stack((output[-1], cells.index_select(0, stretches.last)), 1)

    def _begins_with_zeros(self) -> bool:
        return not self.initial.requires_grad and not bool(self.initial.any())

    def _separated(
        self, separators: "_Separators", layer: int, x: Tensor, state: Tensor, reset: Tensor
    ) -> tuple[Tensor, Tensor]:
        weight, *others = self._weights(layer)
        hidden, cell = self._begin(layer, state, reset[0]).unbind(1)
        with _full_precision(x.device):
            flat = x.to(weight.dtype).flatten(0, 1)
            rows = _Spread.apply(flat, separators.place, separators.size)
            rows = torch.cat((rows.view(*separators.marks.shape[:2], -1), separators.marks), -1)
            wide = torch.cat((weight, _shutters(weight)), 1)
            begin = (hidden[None].contiguous(), cell[None].contiguous())
            options = (True, 1, 0.0, self.training, False, False)
            output, _, cell = torch.lstm(rows, begin, [wide, *others], *options)
            if not bool(output.detach().sum().isfinite()):
                return self._stepwise(layer, x, state, reset)  # shut gates pass NaN on
        output = _Gathered.apply(output.flatten(0, 1), separators.place).view(*reset.shape, -1)
        return output, torch.stack((output[-1], cell[0]), 1)

    def _check(self, x: Tensor, state: Tensor, reset: Tensor) -> None:
        wanted = (*x.shape[1:2], *self.initial.shape)
        fits = x.ndim == 3 and x.shape[0] > 0 and reset.shape == x.shape[:2]
        if not fits or state.shape != wanted:
            raise ShapeError(
                wrong="a memory must have inputs [T, B, I] of one row or more, `reset` [T, B] and "
                f"`state` {wanted}",
                found=f"inputs {tuple(x.shape)}, reset {tuple(reset.shape)} and state "
                f"{tuple(state.shape)}",
                remedy="Take the state from `initial_state` or from the call before.",
            )


def _between_resets(reset: Tensor) -> list[int]:
    """Return the lengths of the pieces of time in which no environment is reset."""
    inside = reset[1:].any(1).nonzero()[:, 0] + 1
    edges = [0, *inside.tolist(), len(reset)]
    return [after - before for before, after in itertools.pairwise(edges)]


class _Separators(NamedTuple):
    """Columns [T, B] with a row inserted before each reset but those of row 0, R rows in all."""

    place: Tensor
    """Where the T B rows stand among the R B rows, [T B]."""
    size: int
    """R B."""
    marks: Tensor
    """1 in an inserted row, and 1 in a row after the end of its column, [R, B, 2]."""


def _separators(reset: Tensor, rows: int) -> _Separators:
    steps, columns = reset.shape
    later = reset[1:].cumsum(0)
    row = torch.arange(steps)[:, None].expand(steps, columns).clone()
    row[1:] += later
    place = (row * columns + torch.arange(columns)).flatten()
    kept = torch.zeros(rows * columns, dtype=torch.bool)
    kept[place] = True
    after = torch.arange(rows)[:, None] > row[-1]
    inserted = ~(kept.view(rows, columns) | after)
    return _Separators(place, rows * columns, torch.stack((inserted, after), -1))


def _shutters(weight: Tensor) -> Tensor:
    """Return what a mark adds to each gate, [4 H, 2].

    An inserted row shuts all gates, so that cell and output are 0. A row after the end lets the
    cell pass as it is.
    """
    inserted, after = weight.new_tensor([[-1.0, -1.0, 0.0, -1.0], [-1.0, 1.0, 0.0, 0.0]])
    return SHUT * torch.stack((inserted, after), 1).repeat_interleave(len(weight) // 4, 0)


class _Spread(torch.autograd.Function):
    """Rows at given places among zeros; no place is given twice."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, place: Tensor, size: int) -> Tensor:  # noqa: ANN401 - torch's own stub is untyped
        ctx.save_for_backward(place)
        return rows.new_zeros(size, rows.shape[1]).index_copy_(0, place, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        (place,) = ctx.saved_tensors
        return grad.index_select(0, place), None, None


class _Gathered(torch.autograd.Function):
    """Rows of given places; no place is given twice, so that nothing has to be added up."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, place: Tensor) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(place)
        ctx.size = len(rows)
        return rows.index_select(0, place)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        (place,) = ctx.saved_tensors
        return grad.new_zeros(ctx.size, grad.shape[1]).index_copy_(0, place, grad), None


class _Stretches(NamedTuple):
    """Columns [T, B] cut at their resets into K stretches, the longest first."""

    column: Tensor
    """Of each, [K]."""
    fresh: Tensor
    """Whether it begins with a reset, bool [K]."""
    sizes: list[int]
    """How many have a first row, a second row, and so on."""
    place: Tensor
    """Where the first rows of all, then the second rows, ... stand among T B rows, [T B]."""
    back: Tensor
    """The other way round, [T B]."""
    last: Tensor
    """The one that ends each column, [B]."""


def _stretches(reset: Tensor) -> _Stretches:
    rows, columns = reset.shape
    begins = reset.clone()
    begins[0] = True
    column, row = begins.t().nonzero(as_tuple=True)  # by column, then by time
    following = torch.cat((row[1:], row.new_zeros(1)))
    length = torch.where(following > 0, following, rows) - row  # the next column begins at row 0
    length, order = length.sort(descending=True, stable=True)
    column, row = column[order], row[order]
    time = torch.arange(int(length[0]))[:, None]
    there = time < length
    place = ((row + time) * columns + column)[there]
    ends = (row + length == rows).nonzero()[:, 0]
    return _Stretches(
        column=column,
        fresh=reset[row, column],
        sizes=there.sum(1).tolist(),
        place=place,
        back=place.argsort(),
        last=ends[column[ends].argsort()],
    )


def _full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Return a context without autocast: that of torch, which is slow, only where it acts."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def _may_read(reset: Tensor) -> bool:
    """Return whether flags can be read without a host sync: on a CPU, outside of tracing."""
    return reset.device.type == "cpu" and not is_traced()
