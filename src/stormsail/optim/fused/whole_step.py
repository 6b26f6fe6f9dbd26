"""A step of the gradient pipeline on a CPU as three calls of C++ of our own (`whole_step.cpp`).

An eager step is some hundred calls over lists of small tensors, which take longer than their
arithmetic. Here one call comes before the noise, one draws it, and one comes after it.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from stormsail.functional.optim.upgd import NORMS
from stormsail.optim.fused.normal import Library, NormalDraws
from stormsail.optim.fused.rows import Report
from stormsail.optim.fused.step import unfit
from stormsail.optim.upgd.base import UtilityOptimizer
from stormsail.optim.upgd.upgd import is_noisy
from stormsail.optim.vgs.scaler import LARGEST, VarianceGradientScaler, slow_beta

SOURCE = "optim/fused/whole_step.cpp"

_TOTALS = 4
"""Numbers of the C++ report before the norms: refused, not finite, raw norm, clipped norm."""
_SEEN = 3
"""Numbers that the first call leaves for each tensor to the second."""
_STATE = ("avg_utility", "exp_avg", "exp_avg_sq", "step")
_NO_MEAN = (0, 0)


class _Given(NamedTuple):
    """A parameter with a gradient, and where that lies."""

    param: Tensor
    grad: int
    size: int
    group: int


class WholeStep:
    """Guard, statistics, scale, clip and step of the UPGD family, in float32 on a CPU.

    The noise is that of the eager step: the same draws of the same generator. Other numbers differ
    by rounding alone, since sums are added up in another order. `.grad` stays raw.

    Args:
        library: of `SOURCE`.
        parameters: of the pipeline; its norms are in their order.
        optimizer: takes the step, if it is one that is known here.
        scaler: of the same parameters; or None.
        bound: of the global norm of the gradients; 0 or less is none.
    """

    def __init__(
        self,
        library: Library,
        parameters: Sequence[Tensor],
        optimizer: Optimizer,
        scaler: VarianceGradientScaler | None,
        *,
        bound: float,
    ) -> None:
        self._library, self._parameters, self._scaler = library, parameters, scaler
        self._optimizer, self._bound = optimizer, bound
        self._ranks = {id(param): rank for rank, param in enumerate(parameters)}
        self._draws = NormalDraws(library)
        self._noise = torch.empty(0)

    def step(self) -> Report | None:
        """Take one step; None, and nothing done, where this one has to be taken by calls."""
        optimizer = self._optimizer
        if not isinstance(optimizer, UtilityOptimizer) or optimizer.step_scale:
            return None
        if unfit(self._parameters, optimizer, self._scaler) is not None:
            return None
        if self._parameters[0].device.type != "cpu":
            return None
        groups = optimizer.param_groups
        if any(isinstance(group[name], Tensor) for group in groups for name in ("lr", "sigma")):
            return None
        given = _gradients(groups)
        if not given:
            return None
        seen = torch.empty(len(given), _SEEN, dtype=torch.float64)
        report = torch.zeros(_TOTALS + len(self._parameters), dtype=torch.float64)
        self._measure(given, seen, report)
        refused, nonfinite, raw, clipped = report[:_TOTALS].unbind()
        if not bool(refused):
            optimizer.step_by(lambda: self._advance(optimizer, given, seen, report))
        return Report(
            stepped=refused == 0.0,
            nonfinite=nonfinite.long(),
            norms=report[_TOTALS:],
            raw_norm=raw,
            grad_norm_pre_clip=raw,
            grad_norm_post_clip=clipped,
        )

    def _measure(self, given: Sequence[_Given], seen: Tensor, report: Tensor) -> None:
        """Take norms and statistics; change nothing but counts where the step is refused."""
        scaler, means = self._scaler, {}
        rows, is_on = (torch.zeros(1, dtype=torch.float64),) * 7, False
        scaling: tuple[float, ...] = (self._bound, *(0.0,) * 8)
        if scaler is not None and scaler.enabled:
            is_on, rows, own = True, scaler.rows(), scaler.parameters
            kept = zip(own, scaler.means(own), strict=True)
            means = {id(param): (row, mean.data_ptr()) for row, (param, mean) in enumerate(kept)}
            scaling = (self._bound, *_scaling(scaler))
        # the C++ structures `Measured` and `Scaling`
        places: list[int] = []
        for param, grad, size, _ in given:
            places += (grad, size, self._ranks[id(param)], *means.get(id(param), _NO_MEAN))
        tensors = (_whole(places), _real(scaling), *rows, seen, report)
        self._library("measure", (len(given), int(is_on)), tensors)

    def _advance(
        self, optimizer: UtilityOptimizer, given: Sequence[_Given], seen: Tensor, report: Tensor
    ) -> None:
        """Write parameters and state; the settings are those of now, after all hooks."""
        groups = optimizer.param_groups
        noisy = any(is_noisy(groups[group]) for group in {each.group for each in given})
        if noisy:
            size = sum(each.size for each in given)
            if self._noise.numel() != size:
                self._noise = torch.empty(size)
            self._draws.fill_(self._noise, optimizer.generator)
        # the C++ structures `Moved` and `Settings`
        places: list[int] = []
        for param, grad, size, group in given:
            state = optimizer.state_of(param)
            places += (grad, size, group, param.data_ptr())
            places += [state[name].data_ptr() if name in state else 0 for name in _STATE]
        settings = [number for group in groups for number in _settings(group)]
        tensors = (_whole(places), _real(settings), seen, report, self._noise)
        self._library("advance", (len(given), int(noisy)), tensors)


def _whole(numbers: Iterable[int]) -> Tensor:
    """Return whole numbers as a tensor: a list takes torch six times as long as an array."""
    return torch.frombuffer(array("q", numbers), dtype=torch.int64)


def _real(numbers: Iterable[float]) -> Tensor:
    return torch.frombuffer(array("d", numbers), dtype=torch.float64)


def _gradients(groups: Sequence[Mapping[str, Any]]) -> list[_Given]:
    """Return all gradients; none where one of them is not as the C++ takes it."""
    given = []
    for index, group in enumerate(groups):
        for param in group["params"]:
            grad = param.grad
            if grad is None:
                continue
            if not param.requires_grad or grad.dtype != torch.float32 or param.dtype != grad.dtype:
                return []
            if grad.layout != torch.strided or not grad.is_contiguous():
                return []
            given.append(_Given(param, grad.data_ptr(), grad.numel(), index))
    return given


def _scaling(scaler: VarianceGradientScaler) -> tuple[float, ...]:
    """Return the settings of a scaler in the order of the C++ structure `Scaling`."""
    return (
        scaler.beta,
        scaler.alpha,
        scaler.eps_rel,
        scaler.warmup_steps,
        scaler.min_scaling_factor,
        scaler.variance_cap,
        LARGEST[torch.float32],
        slow_beta(scaler.beta) if scaler.reference == "median" else 0.0,
    )


def _settings(group: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the settings of a group in the order of the C++ structure `Settings`."""
    return (
        group["lr"],
        group["sigma"],
        group["weight_decay"],
        group["lr_compensation"],
        group["beta_utility"],
        *group.get("betas", (0.0, 0.0)),
        group.get("eps", 0.0),
        -1.0 if group["maximize"] else 1.0,
        float(group["noise_scale"] == "rms_grad"),
        NORMS.index(group["utility_norm"]),
    )
