"""Fully connected layers with orthogonal weights from an explicit generator."""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "silu": nn.SiLU}

HIDDEN_GAIN = math.sqrt(2.0)
"""Gain of hidden layers, as usual for PPO (Huang et al. 2022, the 37 implementation details)."""


def linear(inputs: int, outputs: int, *, gain: float, generator: torch.Generator) -> nn.Linear:
    """Return a layer with an orthogonal weight matrix and zero bias."""
    layer: nn.Linear = nn.utils.skip_init(
        nn.Linear, inputs, outputs, device=torch.get_default_device()
    )
    nn.init.orthogonal_(layer.weight, gain=gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


class Mlp(nn.Module):
    """Linear layers with an activation after each; without any it passes its input on.

    Args:
        inputs: width of the input.
        sizes: width of each layer.
        activation: name of the non-linearity.
        generator: source of the weights.
    """

    def __init__(
        self, inputs: int, sizes: Sequence[int], *, activation: str, generator: torch.Generator
    ) -> None:
        super().__init__()
        widths = [inputs, *sizes]
        self.layers = nn.ModuleList(
            linear(a, b, gain=HIDDEN_GAIN, generator=generator)
            for a, b in itertools.pairwise(widths)
        )
        self.activation = ACTIVATIONS[activation]()
        self.width = widths[-1]

    def forward(self, x: Tensor) -> Tensor:
        """Return the last layer's activations, [..., width]."""
        for layer in self.layers:
            x = self.activation(layer(x))
        return x
