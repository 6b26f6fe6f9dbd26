"""Epochs of an update: minibatches, gradient accumulation over micro-batches, KL early stopping.

The gradient of a minibatch is that of one mean over its samples, however it is cut into
micro-batches: every micro-batch adds its weighted sum over the minibatch's weight, and the weight
of samples dropped on the way is corrected at the end.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from typing import NamedTuple, Self, overload

import torch
from torch import Tensor

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.update.adversary import Adversary, attacked_count
from stormsail.algorithms.update.compiled import CompiledLosses
from stormsail.algorithms.update.kl_control import KlControl
from stormsail.algorithms.update.losses import Batch, Sums, batch_sums, imitation_unit, select
from stormsail.algorithms.update.schedules import Scheduled
from stormsail.algorithms.update.shares import added, own_sequences
from stormsail.core.group import ALONE, Group
from stormsail.modules.agent import Agent
from stormsail.optim.pipeline import GradientPipeline, GradientReport


class MinibatchReport(NamedTuple):
    """Sums and gradient statistics of one optimizer step."""

    sums: Sums
    gradient: GradientReport
    micro_batches: int
    skipped: bool
    """No step: no sample had weight, or a non-finite one voided all."""


@dataclass(frozen=True, eq=False)
class Minibatches(Sequence[MinibatchReport]):
    """Reports of M minibatches as columns: metrics take few calls for all of them together."""

    sums: Sums
    """Each [M, ...]."""
    gradient: GradientReport
    """Each [M, ...]."""
    micro_batches: tuple[int, ...]
    skipped: tuple[bool, ...]

    @classmethod
    def of(cls, reports: Sequence[MinibatchReport]) -> Self:
        """Return reports, of which there is at least one, as columns."""
        sums = zip(*(report.sums for report in reports), strict=True)
        gradients = zip(*(report.gradient for report in reports), strict=True)
        return cls(
            Sums(*(torch.stack(parts) for parts in sums)),
            GradientReport(*(torch.stack(parts) for parts in gradients)),
            tuple(report.micro_batches for report in reports),
            tuple(report.skipped for report in reports),
        )

    def __len__(self) -> int:
        return len(self.skipped)

    @overload
    def __getitem__(self, place: int) -> MinibatchReport: ...

    @overload
    def __getitem__(self, place: slice) -> "Minibatches": ...

    def __getitem__(self, place: int | slice) -> "MinibatchReport | Minibatches":
        sums = Sums(*(column[place] for column in self.sums))
        gradient = GradientReport(*(column[place] for column in self.gradient))
        if isinstance(place, slice):
            return Minibatches(sums, gradient, self.micro_batches[place], self.skipped[place])
        return MinibatchReport(sums, gradient, self.micro_batches[place], self.skipped[place])


@dataclass(frozen=True, eq=False)
class EpochReport:
    """Minibatches of an update and why its epochs ended."""

    minibatches: Minibatches
    epochs: int
    """Epochs begun."""
    stopped: str
    """Rule that ended them early; empty if none did."""
    divergence: list[float]
    """Mean divergence of each minibatch."""


OnStep = Callable[[], None]
"""Called when a step was taken."""

OnRefusal = Callable[[Batch, MinibatchReport], None]
"""Called when a step was refused because the loss or a gradient was not finite."""


def learn(
    agent: Agent,
    data: Batch,
    pipeline: GradientPipeline,
    control: KlControl,
    now: Scheduled,
    config: TrainConfig,
    *,
    generators: tuple[torch.Generator, torch.Generator],
    on_refusal: OnRefusal,
    on_step: OnStep = lambda: None,
    adversary: Adversary | None = None,
    group: Group = ALONE,
    losses: CompiledLosses | None = None,
) -> EpochReport:
    """Train on all sequences of a rollout for `n_epochs` epochs, or fewer.

    Args:
        agent: is trained.
        data: all sequences.
        pipeline: turns gradients into a step.
        control: stops the epochs early.
        now: numbers of this update.
        config: of the run.
        generators: of the order of sequences, and of sampled entropies.
        on_refusal: see `OnRefusal`.
        on_step: see `OnStep`.
        adversary: attacks sequences; None without one.
        group: processes that share the sequences of every minibatch.
        losses: those of the network's heads as machine code; None calls them.
    """
    control.begin_update()
    reports: list[MinibatchReport] = []
    divergences: list[float] = []
    for epoch in range(config.ppo.n_epochs):
        control.begin_epoch(epoch)
        begin = 0
        for chosen in _minibatches(data, config.ppo.batch_size, generators[0]):
            batch = select(data, chosen)
            report = _step(
                agent,
                batch,
                pipeline,
                now,
                config,
                generators[1],
                adversary,
                group,
                begin=begin,
                losses=losses,
            )
            begin += len(chosen)
            reports.append(report)
            if report.skipped:
                continue
            if bool(report.gradient.stepped):
                on_step()
            else:
                on_refusal(batch, report)
            divergences.append(float(report.sums.kl / report.sums.weight))
            if control.stops(divergences[-1]):
                whole = Minibatches.of(reports)
                return EpochReport(whole, epoch + 1, control.reason, divergences)
    return EpochReport(Minibatches.of(reports), config.ppo.n_epochs, "", divergences)


def _minibatches(data: Batch, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    count = data.weight.shape[1]
    order = torch.randperm(count, generator=generator, device=generator.device)
    yield from order.to(data.weight.device).split(size)


def _step(
    agent: Agent,
    batch: Batch,
    pipeline: GradientPipeline,
    now: Scheduled,
    config: TrainConfig,
    generator: torch.Generator,
    adversary: Adversary | None,
    group: Group,
    *,
    begin: int,
    losses: CompiledLosses | None,
) -> MinibatchReport:
    """Take one optimizer step from a minibatch, which begins at a place of the epoch's order."""
    total, planned, parts = accumulate(
        agent,
        batch,
        pipeline,
        now,
        config,
        generator,
        adversary,
        group,
        begin=begin,
        losses=losses,
    )
    void = config.ppo.nonfinite_policy == "skip" and bool(total.nan + total.inf > 0)
    if void or not bool(total.weight > 0.0):
        return MinibatchReport(total, _no_step(pipeline, planned.device), parts, skipped=True)
    if not bool(total.loss.isfinite()):
        # A quantile loss has bounded gradients: an infinite target passes the pipeline's guard.
        return MinibatchReport(total, _no_step(pipeline, planned.device), parts, skipped=False)
    reweigh(pipeline, planned / total.weight)
    return MinibatchReport(total, pipeline.step(), parts, skipped=False)


def accumulate(
    agent: Agent,
    batch: Batch,
    pipeline: GradientPipeline,
    now: Scheduled,
    config: TrainConfig,
    generator: torch.Generator,
    adversary: Adversary | None = None,
    group: Group = ALONE,
    *,
    begin: int = 0,
    losses: CompiledLosses | None = None,
) -> tuple[Sums, Tensor, int]:
    """Leave the gradients of a minibatch; return its sums, its weight, and its micro-batches.

    Of several processes each learns from its own share; gradients and sums are those of all.
    Without an adversary nothing is read on the host.
    """
    pipeline.optimizer.zero_grad(set_to_none=True)
    planned = batch.weight.sum()
    imitation = imitation_unit(batch, now, config)
    if group.size > 1:
        batch = own_sequences(batch, group.columns(batch.weight.shape[1]))
    size = config.ppo.microbatch_size or batch.weight.shape[1]
    parts: list[Sums] = []
    for part in _parts(batch, size):
        end = begin + part.weight.shape[1]
        compiled = None if losses is None else losses(part, now, planned, imitation)
        if compiled is not None:
            parts.append(compiled)
            begin = end
            continue
        sums = batch_sums(
            agent,
            part,
            now,
            config,
            generator,
            imitation=imitation,
            adversary=adversary,
            attacked_count=attacked_count(config.adversary, begin, end),
        )
        begin = end
        (sums.loss / planned.clamp(min=torch.finfo(planned.dtype).tiny)).backward()
        parts.append(Sums(*(value.detach() for value in sums)))
        if pipeline.scaler is not None and config.vgs.statistic == "microbatch":
            pipeline.scaler.observe_microbatch()
    total = _added(parts)
    return total if group.size == 1 else added(total, pipeline, group), planned, len(parts)


def _parts(batch: Batch, size: int) -> Iterator[Batch]:
    """Yield micro-batches of some sequences each, as views."""
    columns = {}
    for field in fields(batch):
        value: Tensor = getattr(batch, field.name)
        columns[field.name] = value.split(size, 0 if field.name == "memory" else 1)
    for parts in zip(*columns.values(), strict=True):
        yield Batch(**dict(zip(columns, parts, strict=True)))


def _added(parts: list[Sums]) -> Sums:
    """Return the sums of all micro-batches; the largest of what is a maximum."""
    return reduce(_plus, parts)


def _plus(first: Sums, second: Sums) -> Sums:
    added = Sums(*(a + b for a, b in zip(first, second, strict=True)))
    return added._replace(log_ratio_max=torch.maximum(first.log_ratio_max, second.log_ratio_max))


def reweigh(pipeline: GradientPipeline, factor: Tensor) -> None:
    """Correct the gradients for samples that were dropped after the division."""
    groups = pipeline.optimizer.param_groups
    given = [parameter.grad for group in groups for parameter in group["params"]]
    torch._foreach_mul_([grad for grad in given if grad is not None], factor)


def _no_step(pipeline: GradientPipeline, device: torch.device) -> GradientReport:
    """Abandon the step; report on the device of the others, as they are read as one tensor."""
    pipeline.abandon()
    zero = torch.zeros((), device=device)
    none = torch.zeros((), dtype=torch.bool, device=device)
    count = torch.zeros((), dtype=torch.int64, device=device)
    norms = torch.zeros(len(pipeline.names), device=device)
    return GradientReport(none, count, norms, zero, zero, zero)
