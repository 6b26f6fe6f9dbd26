"""Gradient pipeline: guard, measure, scale, clip and step, in the one order that is right."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from stormsail.core.errors import ArgumentError, RangeError
from stormsail.functional import _checks as check
from stormsail.optim import tensor_lists
from stormsail.optim.parameters import NamedParameters, Parameters
from stormsail.optim.vgs.scaler import VarianceGradientScaler

if TYPE_CHECKING:  # imported when it is used
    from stormsail.optim.fused.normal import Library
    from stormsail.optim.fused.step import CompiledStep
    from stormsail.optim.fused.whole_step import WholeStep

DEFAULT_MAX_GRAD_NORM = 0.5
GUARDS = ("auto", "host", "device")
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integers that have as many bytes as an element."""


class GradientReport(NamedTuple):
    """Report of one step, as tensors, so that nothing waits for the device."""

    stepped: Tensor
    """False if a gradient was not finite, and nothing was changed."""
    nonfinite: Tensor
    """How many tensors had a gradient that is not finite, or whose square is not."""
    norms: Tensor
    """[P] raw Euclidean norm of each tensor's gradient, 0 without one; `GradientPipeline.names`."""
    raw_norm: Tensor
    """Norm of all raw gradients together."""
    grad_norm_pre_clip: Tensor
    """The same after the scaler; differs only where that acts on the gradients."""
    grad_norm_post_clip: Tensor
    """The same after the clip."""


class GradientPipeline:
    """All steps between `backward` and the next batch, in a fixed order.

    1. Guard: if any gradient is not finite, nothing below changes anything.
    2. Raw norms, for the report.
    3. The scaler's statistics, from the raw gradients: after scaling or clipping it would measure
       its own work (a clipped gradient has the same length at every step).
    4. The scaler's factors.
    5. Clip of the global norm, last, so that nothing bypasses it.
    6. The optimizer's step.

    A refused step leaves parameters, optimizer state and statistics bit for bit as they were; the
    scaler counts what was not finite. How it is refused:

    - `host` reads one flag from the device and skips: no work, one wait.
    - `device` never waits: parameters and optimizer state are copied before the step and selected
      afterwards, at the cost of one copy of both and three passes. The optimizer's state must be
      tensors on the same device (`capturable=True`), and its noise generator moves on. State that
      this very step created is set to 0, which is how Adam-type state begins. An optimizer's first
      step is guarded by the host, unless a graph is being captured.
    - `auto`, the default: `device` while a CUDA graph is captured, `host` otherwise.

    Gradients are unscaled (no loss scale of mixed precision) and are not zeroed here.

    Args:
        named_parameters: (name, parameter) pairs, or parameters, which are then named by position.
        optimizer: takes the step.
        scaler: of the same parameters; None for none.
        max_grad_norm: bound of the global norm; None is 0.5, 0 or less is no bound.
        guard: `auto`, `host` or `device`.
        compiled: do everything in a few compiled passes, which needs a C++ compiler for a CPU and
            Triton for CUDA, and takes a while at the first step. The same numbers up to rounding,
            with two differences: `.grad` stays raw, and on a CPU the noise, of the same
            distribution and from the same generator, is drawn by a counter. For the optimizers of
            this package with `variant="fixed"`, over float32 or float64, without a scaler or with
            the default statistic acting on the update. A step with a gradient missing
            is done eagerly.

    Raises:
        ArgumentError: if the scaler scales the steps of another optimizer, or what is to be
            compiled cannot be.
        ChoiceError: if the guard is unknown.
        RangeError: if `max_grad_norm` is not a number.
    """

    def __init__(
        self,
        named_parameters: Parameters,
        optimizer: Optimizer,
        *,
        scaler: VarianceGradientScaler | None = None,
        max_grad_norm: float | None = DEFAULT_MAX_GRAD_NORM,
        guard: str = "auto",
        compiled: bool = False,
    ) -> None:
        check.check_choice(guard, GUARDS, name="guard")
        bound = DEFAULT_MAX_GRAD_NORM if max_grad_norm is None else max_grad_norm
        if math.isnan(bound):
            raise RangeError(
                wrong="`max_grad_norm` must be a number",
                found=repr(max_grad_norm),
                remedy="Pass 0 for no bound.",
            )
        if scaler is not None and scaler.optimizer not in (None, optimizer):
            raise ArgumentError(
                "out-of-range",
                wrong="`scaler` must scale the steps of this pipeline's optimizer",
                found=f"a scaler of another {type(scaler.optimizer).__name__}",
                remedy="Pass the same optimizer to both.",
            )
        self._parameters = NamedParameters(named_parameters)
        self._device = self._parameters.device
        self.optimizer, self.scaler = optimizer, scaler
        self.max_grad_norm, self.guard = bound, guard
        self._started = False
        self._compiled = self._compiled_step() if compiled else None
        self._whole: WholeStep | None = None

    def call_whole_steps(self, library: "Library") -> None:
        """Take steps as calls of C++ from now on, where it knows them; see `fused.whole_step`.

        Args:
            library: of `fused.whole_step.SOURCE`.
        """
        from stormsail.optim.fused.whole_step import WholeStep

        tensors, bound = self._parameters.tensors, self.max_grad_norm
        self._whole = WholeStep(library, tensors, self.optimizer, self.scaler, bound=bound)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters, in the order of `GradientReport.norms`."""
        return self._parameters.names

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The parameters, in the same order."""
        return self._parameters.tensors

    def norms_by_name(self, report: GradientReport) -> dict[str, Tensor]:
        """Return the raw norm of each tensor's gradient, by name."""
        return self._parameters.named(report.norms)

    def group_norm(self, report: GradientReport, prefix: str) -> Tensor:
        """Return the raw norm of all gradients whose name begins with the prefix; 0 for none."""
        chosen = [place for place, name in enumerate(self.names) if name.startswith(prefix)]
        if not chosen:
            return report.norms.new_zeros(())
        return torch.stack([report.norms[place] for place in chosen]).square().sum().sqrt()

    @torch.no_grad()
    def step(self, *, veto: Tensor | None = None) -> GradientReport:
        """Guard, measure, scale, clip and step.

        Args:
            veto: flag on the device. Where it is true the step is refused as if it had not been
                asked for: gradients that are not finite are not counted, and the report is that of
                no gradients. With a veto nothing waits for the device, whatever the guard.

        Raises:
            ConfigError: if it is to be compiled, and no compiler is found.
        """
        if veto is None:
            return self._step(None)
        scaler = self.scaler
        counted = None if scaler is None else scaler.nonfinite_counts.clone()
        report = self._step(veto)
        if scaler is not None and counted is not None:
            now = scaler.nonfinite_counts
            now.copy_(torch.where(veto, counted, now))
        return GradientReport(*(torch.where(veto, torch.zeros_like(x), x) for x in report))

    def _step(self, veto: Tensor | None) -> GradientReport:
        if self._compiled is not None and self._compiled.applies():
            return self._step_compiled(self._compiled, veto)
        taken = None if self._whole is None or veto is not None else self._whole.step()
        if taken is not None:
            self._started = True
            return GradientReport(*taken)
        grads, where = self._parameters.gradients()
        norms = tensor_lists.norms(grads).to(self._device)
        bad = ~norms.isfinite()
        refused = bad.any() if veto is None else bad.any() | veto
        raw = norms.square().sum().sqrt()
        if veto is None and self._waits():
            if bool(refused):
                before = after = raw
                if self.scaler is not None:
                    self.scaler.update_statistics(veto=refused)
            else:
                before, after = self._go(grads, norms, veto=None)
        else:
            kept = self._copy()
            before, after = self._go(grads, norms, veto=refused)
            self._select(kept, refused)
        return GradientReport(
            stepped=~refused,
            nonfinite=bad.sum(),
            norms=tensor_lists.fill(norms, where),
            raw_norm=raw,
            grad_norm_pre_clip=before,
            grad_norm_post_clip=after,
        )

    def abandon(self) -> None:
        """Drop a minibatch whose step is not taken, with all that the scaler saw of its parts."""
        if self.scaler is not None:
            self.scaler.abandon_step()

    def _compiled_step(self) -> "CompiledStep":
        from stormsail.optim.fused.step import CompiledStep

        tensors = self._parameters.tensors
        return CompiledStep(tensors, self.optimizer, self.scaler, bound=self.max_grad_norm)

    def _step_compiled(self, compiled: "CompiledStep", veto: Tensor | None) -> GradientReport:
        if veto is not None:  # what the passes refuse is a gradient that is not finite
            grads, _ = self._parameters.gradients()
            first = grads[0].view(-1)[:1]
            first.copy_(torch.where(veto, torch.nan, first))
        measured = compiled.measure()
        waits = veto is None and self._waits()
        if (self._device.type == "cpu" or waits) and bool(compiled.is_refused(measured)):
            return GradientReport(*compiled.refuse(measured))
        report = GradientReport(*compiled.advance(measured))
        self._started = True
        return report

    def _waits(self) -> bool:
        """Say whether the guard reads its flag on the host this time."""
        capturing = self._device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        if self.guard == "device" or capturing:
            return not (self._started or capturing)
        return True

    def _go(
        self,
        grads: list[Tensor],
        norms: Tensor,
        *,
        veto: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Measure, scale, clip and step; return the norms before and after the clip."""
        if self.scaler is not None:
            self.scaler.update_statistics(veto=veto)
            self.scaler.scale_gradients()
            if self.scaler.apply_to == "grad":
                norms = tensor_lists.norms(grads).to(self._device)
        before = norms.square().sum().sqrt()
        after = before
        if self.max_grad_norm > 0 and grads:
            # As `torch.nn.utils.clip_grad_norm_`, from norms that are known already.
            share = (self.max_grad_norm / (before + 1e-6)).clamp(max=1.0)
            # Half precision keeps the share in float32: rounded to three digits it could exceed 1.
            torch._foreach_mul_(grads, share.to(torch.promote_types(grads[0].dtype, torch.float32)))
            after = before * share
        self.optimizer.step()
        self._started = True
        return before, after

    def _kept(self) -> Iterator[Tensor]:
        """Yield every tensor that a step of the optimizer may change."""
        for group in self.optimizer.param_groups:
            yield from group["params"]
        for state in self.optimizer.state.values():
            for key, value in state.items():
                if isinstance(value, Tensor):
                    if value.device != self._device:
                        raise ArgumentError(
                            "out-of-range",
                            wrong=f"the optimizer's `{key}` must be on {self._device}",
                            found=f"{value.device}",
                            remedy="Build it with `capturable=True`, or use the guard `host`.",
                        )
                    yield value

    def _copy(self) -> dict[int, Tensor]:
        tensors = list(self._kept())
        copies = [torch.empty_like(tensor) for tensor in tensors]
        for theirs, ours in _by_dtype(tensors, copies):
            torch._foreach_copy_(ours, theirs)
        return {id(tensor): copy for tensor, copy in zip(tensors, copies, strict=True)}

    def _select(self, kept: dict[int, Tensor], refused: Tensor) -> None:
        """Put the copies back where the step was refused, by bits: 0 times NaN is NaN."""
        tensors = list(self._kept())
        copies = [kept.get(id(tensor), torch.zeros_like(tensor)) for tensor in tensors]
        for current, earlier in _by_dtype(tensors, copies):
            bits = BITS[current[0].element_size()]
            now = [tensor.view(bits) for tensor in current]
            then = [tensor.view(bits) for tensor in earlier]
            torch._foreach_mul_(now, (~refused).to(bits))
            torch._foreach_mul_(then, refused.to(bits))
            torch._foreach_add_(now, then)


def _by_dtype(
    tensors: list[Tensor], others: list[Tensor]
) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Yield the pairs in lists of one dtype each."""
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        pairs = [pair for pair in zip(tensors, others, strict=True) if pair[0].dtype == dtype]
        yield [pair[0] for pair in pairs], [pair[1] for pair in pairs]
