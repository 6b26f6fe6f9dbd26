"""Critics: C heads that predict the return distribution, or its mean, in normalised units.

Their output is one tensor [*b, C, W]: quantiles, logits over atoms, or one value. Here it is
decoded, and the last layers or the support are rescaled when the return statistics change (PopArt);
the losses are in `functional` and `algorithms.update.critic_targets`.
"""

import torch
from torch import Tensor, nn

from stormsail.functional import categorical, quantile, return_scale, twin
from stormsail.modules.config import CriticConfig
from stormsail.modules.layers import Mlp, last_layer, linear, side_by_side

MONOTONE_GAIN = 0.01
"""Gain of the last layer of monotone quantiles, whose first distribution is `quantile.monotone`
of 0: mean 0 and width 2 in every state. An output of 1 would be the mean by itself."""


class CriticHead(nn.Module):
    """Layers of one critic; the last one is rescaled by PopArt."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        sizes: tuple[int, ...],
        activation: str,
        gain: float,
        generator: torch.Generator,
        spread: int = 0,
    ) -> None:
        super().__init__()
        self.body = Mlp(inputs, sizes, activation=activation, generator=generator, spread=spread)
        self.last = linear(self.body.width, outputs, gain=gain, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Return [*b, W]."""
        return last_layer(self.last, self.body(x))


class Critic(nn.Module):
    """C heads with different weights, combined to one value and one return distribution.

    Args:
        inputs: width of the memory's output.
        config: what is predicted.
        sizes: widths of the hidden layers of each head.
        activation: their non-linearity.
        generator: source of the weights; each head draws its own.
        spread: number of hidden layers of each head, from the first on, whose biases are spread.
    """

    def __init__(
        self,
        inputs: int,
        config: CriticConfig,
        *,
        sizes: tuple[int, ...],
        activation: str,
        generator: torch.Generator,
        spread: int = 0,
    ) -> None:
        super().__init__()
        self.config = config
        self.heads = nn.ModuleList(
            CriticHead(
                inputs,
                config.width,
                sizes=sizes,
                activation=activation,
                gain=MONOTONE_GAIN if self._is_monotone else 1.0,
                generator=generator,
                spread=spread,
            )
            for _ in range(config.critics)
        )
        self.register_buffer("atoms", torch.linspace(config.v_min, config.v_max, config.num_atoms))
        # kept, since a compiler that is given them as formulas evaluates these for every pair
        self.register_buffer("weight_of_quantiles", _weights(config), persistent=False)
        self.register_buffer("level_of_quantiles", _levels(config), persistent=False)
        # behind the softplus of monotone quantiles, where no last layer can be rescaled
        self.register_buffer("affine_scale", torch.ones(config.critics))
        self.register_buffer("affine_offset", torch.zeros(config.critics))
        self.atoms: Tensor
        self.weight_of_quantiles: Tensor | None
        self.level_of_quantiles: Tensor
        self.affine_scale: Tensor
        self.affine_offset: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of all critics, [*b, C, W]."""
        together = side_by_side(x, [self.pairs()])
        if together is None:
            return self.completed(torch.stack([head(x) for head in self.heads], -2))
        return self.completed(together[0])

    def pairs(self) -> list[tuple[Mlp, nn.Linear]]:
        """Return the hidden layers of each critic and its last one."""
        return [(head.body, head.last) for head in self.heads if isinstance(head, CriticHead)]

    def completed(self, predicted: Tensor) -> Tensor:
        """Return the output of all critics from that of their last layers, [*b, C, W]."""
        if self._is_monotone:
            predicted = quantile.monotone(predicted, weight=self.weights())
            predicted = predicted * self.affine_scale[:, None] + self.affine_offset[:, None]
        return predicted

    @property
    def _is_monotone(self) -> bool:
        return self.config.kind == "quantile" and self.config.monotone_quantiles

    def weights(self) -> Tensor | None:
        """Return the mass of each quantile, float64 [N]; None where all have the same."""
        return self.weight_of_quantiles

    def fill_levels(self) -> None:
        """Set levels and masses, which no file holds, after `to_empty`."""
        self.level_of_quantiles.copy_(_levels(self.config))
        weight = _weights(self.config)
        if self.weight_of_quantiles is not None and weight is not None:
            self.weight_of_quantiles.copy_(weight)

    def levels(self) -> Tensor:
        """Return the level of each quantile, float64 [N]."""
        return self.level_of_quantiles

    def distribution_levels(self) -> Tensor:
        """Return the levels of `distribution`, float64: those of all critics if they are mixed."""
        if self.config.twin_dist_mode != "mixture":
            return self.levels()
        count = self.config.critics * self.config.num_quantiles
        return quantile.midpoints(count, like=self.level_of_quantiles)

    def means(self, predicted: Tensor) -> Tensor:
        """Return the mean of each critic's distribution, normalised, [*b, C]."""
        if self.config.kind == "categorical":
            return categorical.distribution_mean(predicted.softmax(-1), self.atoms)
        return quantile.expectation(predicted, weight=self.weights())

    def value(self, predicted: Tensor) -> Tensor:
        """Return the combined scalar value, normalised, [*b]."""
        return twin.twin_value(self.means(predicted), mode=self.config.twin_value_mode)

    def distribution(self, predicted: Tensor) -> Tensor:
        """Return the combined return distribution: quantiles, probabilities or the mean."""
        mode = self.config.twin_dist_mode
        if self.config.kind == "categorical":
            return twin.twin_distribution(predicted.softmax(-1), self.atoms, mode=mode)
        if self.config.kind == "quantile":
            return twin.twin_quantiles(predicted, mode=mode, weight=self.weights())
        return self.value(predicted)[..., None]

    def last_layers(self) -> list[nn.Linear]:
        """Return the last layer of each critic."""
        return [head.last for head in self.heads if isinstance(head, CriticHead)]

    @torch.no_grad()
    def rescale(
        self,
        mean: Tensor,
        std: Tensor,
        new_mean: Tensor,
        new_std: Tensor,
        *,
        where: Tensor | None = None,
    ) -> None:
        """Preserve every decoded prediction while the return statistics change (PopArt).

        Last layers are rescaled; behind the softplus of monotone quantiles an affine map is; of a
        categorical critic the atoms are. Where a flag is false not a bit is changed.
        """
        moved = {"mean": mean, "std": std, "new_mean": new_mean, "new_std": new_std}
        if self.config.kind == "categorical":
            _move(self.atoms, return_scale.move_atoms(self.atoms, **moved), where)
        elif self._is_monotone:
            scale, offset = return_scale.popart_rescale_affine(
                self.affine_scale, self.affine_offset, **moved
            )
            _move(self.affine_scale, scale, where)
            _move(self.affine_offset, offset, where)
        else:
            for last in self.last_layers():
                weight, bias = return_scale.popart_rescale(last.weight, last.bias, **moved)
                _move(last.weight, weight, where)
                _move(last.bias, bias, where)


def _move(place: Tensor, new: Tensor, where: Tensor | None) -> None:
    """Write new numbers, where a flag allows it."""
    place.copy_(new if where is None else torch.where(where, new, place))


def _weights(config: CriticConfig) -> Tensor | None:
    """Return the mass of each quantile, float64 [N]; None where all have the same."""
    if not config.weighs_quantiles:
        return None
    return quantile.tail_weights(config.num_quantiles, like=torch.zeros((), dtype=torch.float64))


def _levels(config: CriticConfig) -> Tensor:
    """Return the level of each quantile, float64 [N]."""
    weight = _weights(config)
    if weight is not None:
        return quantile.levels_of(weight)
    return quantile.midpoints(config.num_quantiles, like=torch.zeros((), dtype=torch.float64))
