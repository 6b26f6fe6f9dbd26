r"""Statistics of gradient noise that `VarianceGradientScaler` can measure, one class each.

With :math:`g_i(t)` element i of a tensor's gradient at step t, and a bar for the mean over i:

- `elementwise`: :math:`\overline{Var_t(g_i)}` against :math:`\overline{(E_t g_i)^2}`. One tensor of
  state for each parameter.
- `elementwise_full`: the same for every element by itself; the ratio is the 90th percentile over
  elements. Two tensors, and a selection over all elements at every step: slow.
- `total`: :math:`E_t\overline{g^2} - (E_t \bar g)^2`, which by the law of total variance is
  `elementwise` **plus the spread of the mean gradient over elements**: a gradient without any noise
  shows a large value as soon as its elements differ.
- `mean`: :math:`Var_t(\bar g)`. Divides independent noise by the number of elements, and sees none
  at all if the elements' noise cancels in the sum.
- `norm`: :math:`Var_t\|g\|` against :math:`(E_t\|g\|)^2`. The same defect of size as `mean`.
- `microbatch`: the disagreement of the M parts of one step; needs no time, so drift of the gradient
  does not count as noise. Measures the noise of the accumulated gradient, as `elementwise` does.

Every state row is float64 on the device of the gradients; tensors are at least float32. Nothing
here waits for the device.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from stormsail.core.errors import ArgumentError
from stormsail.functional.optim import gradient_noise as noise
from stormsail.optim import tensor_lists
from stormsail.optim.tensor_lists import Layout

PERCENTILE = 0.9
"""Over elements in `elementwise_full`, and over tensors in the global ratio."""


class Noise(NamedTuple):
    """Noise statistics of each tensor's gradient, [P] each."""

    variance: Tensor
    signal: Tensor
    second_moment: Tensor
    ratio: Tensor


class Estimator(ABC):
    """Moving statistics of P gradients, each with a counter of its own.

    A tensor that has no gradient, or one that is not finite, keeps its statistics and its counter.

    Args:
        shapes: of the P tensors.
        beta: decay of the moving averages.
        eps_rel: relative floor of the noise-to-signal ratio.
        dtype: of the state tensors.
        device: of all state.
    """

    ROWS: ClassVar[tuple[str, ...]]
    TENSORS: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        shapes: Sequence[torch.Size],
        *,
        beta: float,
        eps_rel: float,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.beta, self.eps_rel = beta, eps_rel
        size = len(shapes)
        self.size = torch.tensor(
            [max(shape.numel(), 1) for shape in shapes], dtype=torch.float64, device=device
        )
        self.count = torch.zeros(size, dtype=torch.int64, device=device)
        self.rows = {
            name: torch.zeros(size, dtype=torch.float64, device=device) for name in self.ROWS
        }
        self.tensors = {
            name: [torch.zeros(shape, dtype=dtype, device=device) for shape in shapes]
            for name in self.TENSORS
        }

    def update(self, grads: list[Tensor], where: Layout, seen: Tensor) -> None:
        """Take the gradients of the tensors that are seen, [P], into the averages."""
        self.count += seen
        gain = torch.where(seen, noise.gain(self.count.double(), beta=self.beta), 0.0)
        self._take(grads, where, seen, gain)

    @abstractmethod
    def _take(self, grads: list[Tensor], where: Layout, seen: Tensor, gain: Tensor) -> None:
        """Do so with the weight of the newest gradient, [P], which is 0 where it is not seen."""

    @abstractmethod
    def noise(self) -> Noise:
        """Return the statistics so far."""

    def observe(  # noqa: B027  # most statistics have no use for it
        self, grads: list[Tensor], where: Layout
    ) -> None:
        """Take in the gradients accumulated up to this micro-batch, if the statistic uses them."""

    def abandon(self) -> None:  # noqa: B027  # most statistics keep nothing within a step
        """Forget the micro-batches of a step that is not taken, if the statistic keeps any."""

    def _average(self, name: str, value: Tensor, seen: Tensor, gain: Tensor) -> None:
        row = self.rows[name]
        row.copy_(torch.where(seen, row + gain * (value - row), row))

    def _spread(self, distance_square: Tensor, seen: Tensor, gain: Tensor) -> None:
        row = self.rows["spread"]
        row.copy_(torch.where(seen, noise.moving_spread(row, distance_square, gain), row))

    def _concentration(self) -> Tensor:
        return noise.weight_concentration(self.count.double(), beta=self.beta)

    def _corrected(self, spread: Tensor, mean_square: Tensor, more: Tensor | None = None) -> Noise:
        """Return the bias-corrected statistics; `more` is variance that needs no correction."""
        concentration = self._concentration()
        variance = noise.noise_variance(spread, concentration)
        signal = noise.signal_square(mean_square, variance, concentration)
        second = spread + mean_square
        if more is not None:
            variance = torch.where(concentration < 1, variance + more, 0.0)
            second = second + more
        ratio = noise.noise_to_signal(variance, signal, second, eps_rel=self.eps_rel)
        return Noise(variance, signal, second, ratio)


class Elementwise(Estimator):
    """Temporal variance of each element, averaged over the tensor."""

    ROWS: ClassVar[tuple[str, ...]] = ("spread", "mean_square")
    TENSORS: ClassVar[tuple[str, ...]] = ("mean",)

    def _take(self, grads: list[Tensor], where: Layout, seen: Tensor, gain: Tensor) -> None:
        means = [self.tensors["mean"][place] for place in where.positions]
        weight = tensor_lists.pick(gain, where)
        before, after = tensor_lists.follow_(means, grads, weight, where)
        self._spread(tensor_lists.fill(before, where) / self.size, seen, gain)
        row = self.rows["mean_square"]
        row.copy_(torch.where(seen, tensor_lists.fill(after, where) / self.size, row))

    def noise(self) -> Noise:
        """Return the mean variance against the mean square of the mean."""
        return self._corrected(self.rows["spread"], self.rows["mean_square"])


class ElementwiseFull(Elementwise):
    """Temporal variance of each element; the ratio is a percentile over elements."""

    TENSORS: ClassVar[tuple[str, ...]] = ("mean", "element_spread")

    def _take(self, grads: list[Tensor], where: Layout, seen: Tensor, gain: Tensor) -> None:
        # v' = (1 - a)(v + a d^2) is a move of v towards (1 - a) d^2 by a.
        weight = tensor_lists.pick(gain, where)
        spreads = [self.tensors["element_spread"][place] for place in where.positions]
        means = [self.tensors["mean"][place] for place in where.positions]
        targets = [
            (grad - mean).square().mul_(1.0 - own.to(mean.dtype))
            for grad, mean, own in zip(grads, means, weight.unbind(), strict=True)
        ]
        if spreads:
            tensor_lists.move_(spreads, targets, weight.to(spreads[0].dtype), where)
        super()._take(grads, where, seen, gain)

    def noise(self) -> Noise:
        """Return the same variance as `elementwise`, and the percentile of the elements' ratios."""
        mean = super().noise()
        ratios = [
            self._percentile(spread, element, concentration)
            for spread, element, concentration in zip(
                self.tensors["element_spread"],
                self.tensors["mean"],
                self._concentration(),
                strict=True,
            )
        ]
        return mean._replace(ratio=torch.stack(ratios))

    def _percentile(self, spread: Tensor, mean: Tensor, concentration: Tensor) -> Tensor:
        if spread.numel() == 0:
            return concentration.new_zeros(())
        spread, square = spread.reshape(-1).double(), mean.reshape(-1).double().square()
        share = concentration.expand_as(spread)
        variance = noise.noise_variance(spread, share)
        signal = noise.signal_square(square, variance, share)
        ratio = noise.noise_to_signal(variance, signal, spread + square, eps_rel=self.eps_rel)
        # `quantile` refuses more than 16 million elements; the order statistic does not.
        rank = max(1, -(-int(PERCENTILE * 1000) * ratio.numel() // 1000))
        return ratio.kthvalue(rank).values


class Series(Estimator):
    """Temporal variance of one number for each tensor."""

    ROWS: ClassVar[tuple[str, ...]] = ("spread", "mean")

    def _take(self, grads: list[Tensor], where: Layout, seen: Tensor, gain: Tensor) -> None:
        value = tensor_lists.fill(self._value(grads), where)
        self._spread((value - self.rows["mean"]).square(), seen, gain)
        self._average("mean", value, seen, gain)

    @abstractmethod
    def _value(self, grads: list[Tensor]) -> Tensor:
        """Return the number, [Q]."""

    def noise(self) -> Noise:
        """Return the variance of the number against the square of its mean."""
        return self._corrected(self.rows["spread"], self.rows["mean"].square())


class Mean(Series):
    """Variance of the mean over elements: version 3.0 of the scaler's history."""

    def _value(self, grads: list[Tensor]) -> Tensor:
        return _means(grads)


class Norm(Series):
    """Variance of the Euclidean norm."""

    def _value(self, grads: list[Tensor]) -> Tensor:
        return tensor_lists.norms(grads)


class Total(Estimator):
    """Variance over time and elements together: version 3.1 of the scaler's history."""

    ROWS: ClassVar[tuple[str, ...]] = ("spread", "mean", "spatial")

    def _take(self, grads: list[Tensor], where: Layout, seen: Tensor, gain: Tensor) -> None:
        value = tensor_lists.fill(_means(grads), where)
        square = tensor_lists.fill(tensor_lists.norms(grads).square(), where) / self.size
        self._spread((value - self.rows["mean"]).square(), seen, gain)
        self._average("mean", value, seen, gain)
        self._average("spatial", (square - value.square()).clamp(min=0.0), seen, gain)

    def noise(self) -> Noise:
        """Return temporal and spatial variance together, against the square of the mean."""
        return self._corrected(
            self.rows["spread"], self.rows["mean"].square(), more=self.rows["spatial"]
        )


class Microbatch(Estimator):
    """Disagreement of the micro-batches of one step, averaged over steps."""

    ROWS: ClassVar[tuple[str, ...]] = ("variance", "second_moment")

    def __init__(
        self,
        shapes: Sequence[torch.Size],
        *,
        beta: float,
        eps_rel: float,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(shapes, beta=beta, eps_rel=eps_rel, dtype=dtype, device=device)
        self._parts = 0
        self._square_sum = torch.zeros_like(self.size)
        self._before = [torch.zeros(shape, dtype=dtype, device=device) for shape in shapes]

    def observe(self, grads: list[Tensor], where: Layout) -> None:
        """Take in the sum of the parts so far.

        Welford's step for part m: the distance of the new part from the mean of those before is
        sum - before · m / (m - 1), where `before` is the sum without it.
        """
        if self._parts == 0:
            torch._foreach_zero_(self._before)
            self._square_sum.zero_()
        self._parts += 1
        before = [self._before[place] for place in where.positions]
        if self._parts > 1 and before:
            ratio = self._parts / (self._parts - 1)
            distance = torch._foreach_sub(grads, torch._foreach_mul(before, ratio))
            square = tensor_lists.fill(tensor_lists.norms(distance).square(), where)
            self._square_sum += square / ratio
        if before:
            torch._foreach_copy_(before, grads)

    def abandon(self) -> None:
        """Forget the parts so far: the next `observe` sees the first of a step."""
        self._parts = 0

    def _take(self, grads: list[Tensor], where: Layout, seen: Tensor, gain: Tensor) -> None:
        """Close the step; `grads` are the sum of its parts."""
        parts, self._parts = self._parts, 0
        if parts < 2:
            raise ArgumentError(
                "missing-argument",
                wrong="the statistic `microbatch` must see at least 2 micro-batches in each step",
                found=f"{parts}",
                remedy="Call `observe_microbatch()` after each backward, or choose `elementwise`.",
            )
        count = torch.full_like(self._square_sum, parts)
        variance = noise.accumulated_variance(self._square_sum, count) / self.size
        square = tensor_lists.fill(tensor_lists.norms(grads).square(), where) / self.size
        self._average("variance", variance, seen, gain)
        self._average("second_moment", square, seen, gain)

    def noise(self) -> Noise:
        """Return the variance against the second moment less the variance."""
        variance, second = self.rows["variance"], self.rows["second_moment"]
        signal = noise.signal_square(second, variance, torch.ones_like(variance))
        ratio = noise.noise_to_signal(variance, signal, second, eps_rel=self.eps_rel)
        return Noise(variance, signal, second, ratio)


def _means(grads: list[Tensor]) -> Tensor:
    if not grads:
        return torch.zeros(0, dtype=torch.float64)
    return torch.stack([grad.mean(dtype=torch.float64) for grad in grads])


STATISTICS: dict[str, Callable[..., Estimator]] = {
    "elementwise": Elementwise,
    "total": Total,
    "mean": Mean,
    "norm": Norm,
    "elementwise_full": ElementwiseFull,
    "microbatch": Microbatch,
}
