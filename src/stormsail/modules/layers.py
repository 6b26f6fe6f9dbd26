"""Fully connected layers with orthogonal weights from an explicit generator."""

import itertools
import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from stormsail.functional.kernels.devices import may_launch
from stormsail.functional.kernels.layers.dense import ALIGNMENT, dense
from stormsail.functional.kernels.layers.heads import Head, heads
from stormsail.functional.kernels.layers.steady_weights import are_steady

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "silu": nn.SiLU}

HIDDEN_GAIN = math.sqrt(2.0)
"""Gain of hidden layers, as usual for PPO (Huang et al. 2022, the 37 implementation details)."""


BIAS_REACH = 1.0
"""Largest bias of a layer whose biases are spread: one standard deviation of what a unit reads."""


def linear(
    inputs: int,
    outputs: int,
    *,
    gain: float,
    generator: torch.Generator,
    spread: bool = False,
) -> nn.Linear:
    """Return a layer with an orthogonal weight matrix.

    Args:
        inputs: width of the input.
        outputs: width of the output.
        gain: of the weight matrix.
        generator: source of the weights, and then of the biases.
        spread: draw the biases from (-`BIAS_REACH`, `BIAS_REACH`) instead of leaving them 0.
    """
    layer: nn.Linear = nn.utils.skip_init(
        nn.Linear, inputs, outputs, device=torch.get_default_device()
    )
    nn.init.orthogonal_(layer.weight, gain=gain, generator=generator)
    if spread:
        nn.init.uniform_(layer.bias, -BIAS_REACH, BIAS_REACH, generator=generator)
    else:
        nn.init.zeros_(layer.bias)
    return layer


def launches(layer: nn.Linear, x: Tensor) -> bool:
    """Return whether a layer is trained through our own kernels, which know float32 weights only.

    So is a rollout, which keeps what is made of the weights. Elsewhere without gradients torch's
    own is as fast, and its weights are converted once for many calls.
    """
    weight, wanted = layer.weight, torch.is_grad_enabled() or are_steady()
    return wanted and may_launch(x, weight) and weight.dtype == torch.float32


def beside(layer: nn.Linear | None, features: Tensor, others: Tensor) -> Tensor:
    """Return columns side by side, for a layer of as many inputs.

    Where kernels of ours train it, zeros fill them up: a product of 262 columns takes three times
    as long as one of 264. None is a layer of another kind.
    """
    parts = [features, others]
    missing = -(features.shape[-1] + others.shape[-1]) % ALIGNMENT
    if missing and layer is not None and launches(layer, features):
        parts.append(features.new_zeros(*features.shape[:-1], missing))
    return torch.cat(parts, -1)


def last_layer(layer: nn.Linear, x: Tensor) -> Tensor:
    """Return the output of a layer without an activation."""
    if launches(layer, x):
        return dense(x, layer.weight, layer.bias, tanh=False)
    output: Tensor = layer(x)
    return output


def side_by_side(
    x: Tensor, groups: Sequence[Sequence[tuple["Mlp", nn.Linear]]]
) -> tuple[Tensor, ...] | None:
    """Return the outputs of groups of heads on one input, [*b, heads of the group, N] each.

    Each head is a body and its last layer; the bodies are of equal sizes, the outputs within a
    group. None where no kernels of ours train them: these know bodies of one layer and a tanh.
    """
    if not launches(groups[0][0][1], x):
        return None
    known = [
        [
            Head(first.weight, first.bias, last.weight, last.bias)
            for body, last in group
            if len(body.layers) == 1 and (first := body.squashed) is not None
        ]
        for group in groups
    ]
    return heads(x, known) if all(known) else None


def unit_gain(inputs: int, outputs: int) -> float:
    r"""Return the gain at which each unit reads a variance of 1 from independent inputs of 1.

    .. math::
        \sqrt{\max(outputs / inputs,\ 1)}

    An orthogonal matrix of gain 1 with no more rows than columns has rows of norm 1; one with more
    rows than columns has columns of norm 1, so that the squared norms of its rows average
    inputs / outputs: 2 observations on 64 units with the usual gain of sqrt(2) give every unit a
    deviation of 0.25, where tanh is a straight line. Ours.
    """
    return math.sqrt(max(outputs / inputs, 1.0))


class Mlp(nn.Module):
    """Linear layers with an activation after each; without any it passes its input on.

    Args:
        inputs: width of the input.
        sizes: width of each layer.
        activation: name of the non-linearity.
        generator: source of the weights.
        spread: number of layers, from the first on, whose biases are spread.
        unit_first: scale the first layer by `unit_gain` instead of `HIDDEN_GAIN`.
    """

    def __init__(
        self,
        inputs: int,
        sizes: Sequence[int],
        *,
        activation: str,
        generator: torch.Generator,
        spread: int = 0,
        unit_first: bool = False,
    ) -> None:
        super().__init__()
        widths = [inputs, *sizes]
        self.layers = nn.ModuleList(
            linear(
                a,
                b,
                gain=unit_gain(a, b) if unit_first and place == 0 else HIDDEN_GAIN,
                generator=generator,
                spread=place < spread,
            )
            for place, (a, b) in enumerate(itertools.pairwise(widths))
        )
        self.activation = ACTIVATIONS[activation]()
        self._squashes = activation == "tanh"
        self.width = widths[-1]

    def forward(self, x: Tensor) -> Tensor:
        """Return the last layer's activations, [..., width]."""
        return self._through(self.layers, x)

    @property
    def squashed(self) -> nn.Linear | None:
        """The first layer, if a tanh follows it."""
        first = self.layers[0] if self.layers else None
        return first if self._squashes and isinstance(first, nn.Linear) else None

    def seeing(self, shown: Tensor, x: Tensor) -> Tensor:
        """Return the same where only some columns are seen: `shown` is 1 for these, else 0, [I]."""
        first = self.layers[0]
        if not isinstance(first, nn.Linear):
            return self._through(self.layers, x * shown)
        seen = nn.functional.linear(x, first.weight * shown, first.bias)
        return self._through(list(self.layers)[1:], self.activation(seen))

    def _through(self, layers: Iterable[nn.Module], x: Tensor) -> Tensor:
        for layer in layers:
            if self._squashes and isinstance(layer, nn.Linear) and launches(layer, x):
                x = dense(x, layer.weight, layer.bias, tanh=True)
            else:
                x = self.activation(layer(x))
        return x
