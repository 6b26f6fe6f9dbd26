"""Critics: C heads that predict a law of returns, or its mean, in normalised units.

What a critic predicts is one tensor [*b, C, W]: quantiles, logits over atoms, or one value. Reading
it, rescaling the last layers when the return statistics move, and moving the support are here; the
losses are in `functional` and their order in `algorithms`.
"""

import torch
from torch import Tensor, nn

from stormsail.functional import categorical, quantile, return_scale, twin
from stormsail.modules.config import CriticConfig
from stormsail.modules.layers import Mlp, linear


class CriticHead(nn.Module):
    """Layers of one critic; its last one is rescaled when the return statistics move."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        sizes: tuple[int, ...],
        activation: str,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.body = Mlp(inputs, sizes, activation=activation, generator=generator)
        self.last = linear(self.body.width, outputs, gain=1.0, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Return [*b, W]."""
        out: Tensor = self.last(self.body(x))
        return out


class Critic(nn.Module):
    """C heads with different weights, read as one.

    Args:
        inputs: width of what the memory gives.
        config: what is predicted.
        sizes: widths of the hidden layers of each head.
        activation: their non-linearity.
        generator: source of the weights; each head draws its own.
    """

    def __init__(
        self,
        inputs: int,
        config: CriticConfig,
        *,
        sizes: tuple[int, ...],
        activation: str,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.config = config
        self.heads = nn.ModuleList(
            CriticHead(
                inputs, config.width, sizes=sizes, activation=activation, generator=generator
            )
            for _ in range(config.critics)
        )
        self.register_buffer("atoms", torch.linspace(config.v_min, config.v_max, config.num_atoms))
        # behind the softplus of monotone quantiles, where no last layer can be rescaled
        self.register_buffer("affine_scale", torch.ones(config.critics))
        self.register_buffer("affine_offset", torch.zeros(config.critics))
        self.atoms: Tensor
        self.affine_scale: Tensor
        self.affine_offset: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Return what all critics predict, [*b, C, W]."""
        predicted = torch.stack([head(x) for head in self.heads], -2)
        if self._is_monotone:
            predicted = quantile.monotone(predicted)
            predicted = predicted * self.affine_scale[:, None] + self.affine_offset[:, None]
        return predicted

    @property
    def _is_monotone(self) -> bool:
        return self.config.kind == "quantile" and self.config.monotone_quantiles

    def means(self, predicted: Tensor) -> Tensor:
        """Return the mean of each critic's law, normalised, [*b, C]."""
        if self.config.kind == "categorical":
            return categorical.distribution_mean(predicted.softmax(-1), self.atoms)
        return predicted.mean(-1)

    def value(self, predicted: Tensor) -> Tensor:
        """Return the one scalar value of all critics, normalised, [*b]."""
        return twin.twin_value(self.means(predicted), mode=self.config.twin_value_mode)

    def distribution(self, predicted: Tensor) -> Tensor:
        """Return one law from all critics, for readings of risk: quantiles, probabilities, mean."""
        mode = self.config.twin_dist_mode
        if self.config.kind == "categorical":
            return twin.twin_distribution(predicted.softmax(-1), self.atoms, mode=mode)
        if self.config.kind == "quantile":
            return twin.twin_quantiles(predicted, mode=mode)
        return self.value(predicted)[..., None]

    def last_layers(self) -> list[nn.Linear]:
        """Return the last layer of each critic."""
        return [head.last for head in self.heads if isinstance(head, CriticHead)]

    @torch.no_grad()
    def rescale(self, mean: Tensor, std: Tensor, new_mean: Tensor, new_std: Tensor) -> None:
        """Keep every decoded prediction as it is while the return statistics move (PopArt).

        Last layers are rescaled; behind the softplus of monotone quantiles an affine map takes it;
        atoms move instead of a categorical head.
        """
        moved = {"mean": mean, "std": std, "new_mean": new_mean, "new_std": new_std}
        if self.config.kind == "categorical":
            self.atoms.copy_(return_scale.move_atoms(self.atoms, **moved))
        elif self._is_monotone:
            scale, offset = return_scale.popart_rescale_affine(
                self.affine_scale, self.affine_offset, **moved
            )
            self.affine_scale.copy_(scale)
            self.affine_offset.copy_(offset)
        else:
            for last in self.last_layers():
                weight, bias = return_scale.popart_rescale(last.weight, last.bias, **moved)
                last.weight.copy_(weight)
                last.bias.copy_(bias)
