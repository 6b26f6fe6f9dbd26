"""What an agent remembers from step to step: LSTM, GRU, or nothing.

A state is one tensor [B, L, P, H]: L layers of P parts (hidden and cell of an LSTM, hidden of a
GRU), so that it is stored, moved, reset and saved as one thing. Without a memory it has no layers.
"""

import torch
from torch import Tensor, nn

from stormsail.core.errors import ShapeError
from stormsail.functional import recurrence

_PARTS = {"lstm": 2, "gru": 1, "none": 0}
_GATES = {"lstm": 4, "gru": 3, "none": 0}


class Memory(nn.Module):
    """A stack of recurrent layers whose state can be reset inside a sequence.

    Where `reset[t, b]` is true, environment b starts row t from the initial state. Gates are in
    torch's own order, so a sequence without a reset inside goes through torch's fused kernel and
    one with a reset through `functional.recurrence`, step by step; both give the same numbers.

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

    def forward(self, x: Tensor, state: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs [T, B, H] and the state after the last row.

        Args:
            x: inputs [T, B, I].
            state: before the first row, [B, L, P, H].
            reset: where a row starts from the initial state, bool [T, B].

        Raises:
            ShapeError: if the shapes do not fit each other.
        """
        self._check(x, state, reset)
        if self.kind == "none":
            return x, state
        whole = _may_look(reset) and not bool(reset[1:].any())
        run = self._fused if whole else self._stepwise
        states = []
        for layer in range(self.layers):
            x, after = run(layer, x, state[:, layer], reset)
            states.append(after)
        return x, torch.stack(states, 1)

    def _stepwise(
        self, layer: int, x: Tensor, state: Tensor, reset: Tensor
    ) -> tuple[Tensor, Tensor]:
        weight, bias = self.hidden_weights[layer], self.hidden_biases[layer]
        gates = nn.functional.linear(x, self.input_weights[layer], self.input_biases[layer])
        initial = self.initial[layer]
        # under autocast the input's part may be bfloat16; what is carried on keeps its digits
        gates, state = gates.to(weight.dtype), state.to(weight.dtype)
        with torch.autocast(x.device.type, enabled=False):
            if self.kind == "lstm":
                output, cell = recurrence.lstm_sequence(
                    gates + bias, weight, state[:, 0], state[:, 1], reset, initial[0], initial[1]
                )
                return output, torch.stack((output[-1], cell), 1)
            output = recurrence.gru_sequence(gates, weight, bias, state[:, 0], reset, initial[0])
            return output, output[-1][:, None]

    def _fused(self, layer: int, x: Tensor, state: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
        begin = torch.where(reset[0][:, None, None], self.initial[layer], state)
        parts = begin.transpose(0, 1).to(self.initial.dtype).contiguous()  # [P, B, H]
        weights = [
            self.input_weights[layer],
            self.hidden_weights[layer],
            self.input_biases[layer],
            self.hidden_biases[layer],
        ]
        options = (True, 1, 0.0, self.training, False, False)
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(self.initial.dtype)
            if self.kind == "lstm":
                output, hidden, cell = torch.lstm(x, (parts[0:1], parts[1:2]), weights, *options)
                return output, torch.stack((hidden[0], cell[0]), 1)
            output, hidden = torch.gru(x, parts[0:1], weights, *options)
            return output, hidden[0][:, None]

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


def _may_look(reset: Tensor) -> bool:
    """Return whether reading a flag costs nothing: on a CPU, outside of tracing."""
    return reset.device.type == "cpu" and not torch.compiler.is_compiling()
