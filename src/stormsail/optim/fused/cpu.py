"""The three passes of a compiled step over lists of tensors, for a CPU.

1. `measure`: what the guard, the clip and the scaler must know of each gradient.
2. `survey`: the range and the mean of all utilities.
3. `advance`: everything that is written, in one trip through memory.

Arithmetic only, and pure but for what `advance` writes into its arguments: the eager step is the
reference, and these are the same formulas in the order in which they touch memory least.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from stormsail.optim.fused.rows import COLUMNS, gate


class Tensors(NamedTuple):
    """The P tensors of a step, in the optimizer's order; a list that is not used is empty."""

    grads: list[Tensor]
    params: list[Tensor]
    utility: list[Tensor]
    first: list[Tensor]
    second: list[Tensor]
    means: list[Tensor]
    """Of the scaler."""
    steps: list[Tensor]

    @property
    def has_moments(self) -> bool:
        """Whether the direction is that of Adam."""
        return bool(self.first)

    @property
    def has_scaler(self) -> bool:
        """Whether the scaler's means move."""
        return bool(self.means)


def measure(tensors: int, *, scaler: bool) -> Callable[..., list[Tensor]]:
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


def survey(norms: tuple[str, ...], count: int) -> Callable[..., list[Tensor]]:
    """Return the pass (table, grads, params, utility) -> lines [P, 2], see `gate`."""
    tensors = len(norms)

    def run(table: Tensor, *flat: Tensor) -> list[Tensor]:
        grads, params, utility = _split(flat, tensors, 3)
        lows, highs, sums = [], [], []
        for i in range(tensors):
            one = _columns(table, i)
            corrected = _moved_utility(utility[i], grads[i], params[i], one) * one["utility_scale"]
            lows.append(corrected.amin())
            highs.append(corrected.amax())
            sums.append(corrected.sum())
        total = torch.stack(sums).double().sum() / count
        low, high = torch.stack(lows).amin(), torch.stack(highs).amax()
        return [gate(low, high, total.to(table.dtype), norms)]

    return run


def advance(
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
            one, grad, param = _columns(table, i), grads[i], params[i]
            valued = _moved_utility(utility[i], grad, param, one)
            kept = torch.sigmoid((lines[i, 0] - valued * one["utility_scale"]) * lines[i, 1])
            step = grad * one["share"]
            if moments:
                low = first[i] + one["first_weight"] * (step - first[i])
                square = second[i] + one["second_weight"] * (step * step - second[i])
                first[i].copy_(low)
                second[i].copy_(square)
                root = square.sqrt() * one["second_scale"] + one["eps"]
                step = low * one["first_scale"] / root
            if noisy:
                step = step + one["sigma"] * noise[i]
            if scaler:
                means[i].copy_(means[i] + one["gain"] * (grad - means[i]))
            params[i].copy_(param * one["decay"] - one["rate"] * (kept * step))
            utility[i].copy_(valued)
        return []

    return run


def _moved_utility(utility: Tensor, grad: Tensor, param: Tensor, one: dict[str, Tensor]) -> Tensor:
    return utility - one["utility_weight"] * (utility + grad * one["share"] * param)


def _columns(table: Tensor, place: int) -> dict[str, Tensor]:
    return {name: table[place, column] for column, name in enumerate(COLUMNS)}


def _split(flat: Sequence[Tensor], tensors: int, lists: int) -> list[Sequence[Tensor]]:
    return [flat[start * tensors : (start + 1) * tensors] for start in range(lists)]
