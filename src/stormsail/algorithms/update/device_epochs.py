"""Epochs of an update without a host sync: every decision is a flag on the device, read at the end.

`epochs.learn` asks the device after every minibatch whether it was skipped, refused or the last.
Here a minibatch that nothing is to be learned from runs all the same and changes nothing, and what
all minibatches found is read at once. The same minibatches give the same weights, and the same
report. On a GPU the function of a minibatch is captured in a CUDA graph; un-captured it runs
anywhere.

After an early stop `epochs.learn` draws no more orders, noise or entropies, so the generators are
set back to where the last minibatch that counted left them. A refused step draws its noise here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.update.epochs import (
    EpochReport,
    Minibatches,
    OnRefusal,
    OnStep,
    accumulate,
    reweigh,
)
from stormsail.algorithms.update.graphs import Graph, waiting_allowed
from stormsail.algorithms.update.kl_control import STOP_NUMBERS, KlControl, next_stop
from stormsail.algorithms.update.losses import Batch, Sums, select
from stormsail.algorithms.update.schedules import Coefficient, Scheduled, is_zero
from stormsail.core.group import ALONE, Group
from stormsail.core.machine_code.graph_inputs import move_into
from stormsail.modules.agent import Agent
from stormsail.optim.pipeline import GradientPipeline, GradientReport
from stormsail.optim.upgd.base import UtilityOptimizer

COEFFICIENTS = ("clip_range", "vf_coef", "bc_coef", "ent_coef", "kl_beta", "legacy_risk")
"""Numbers of `Scheduled` that enter the loss; the learning rate is the optimizer's own tensor."""


class Pending(NamedTuple):
    """What is read together with the epochs."""

    numbers: Tensor
    """float64 [n]."""
    sound: Tensor
    """Whether anything is to be learned, a flag on the device."""
    receive: Callable[[Tensor], object]
    """Called with the numbers on the host, before anything of the epochs is pending. If it raises,
    the generators are as they were: the error is to be that nothing was to be learned."""


class _Flags(NamedTuple):
    """What Python decides on in a minibatch, so that another value is another function."""

    trains_policy: bool
    clips_values: bool
    zeros: tuple[str, ...]
    """Coefficients that are 0."""


@dataclass(frozen=True, eq=False)
class _Minibatch:
    """A minibatch as a function of tensors that stay in place."""

    flags: _Flags
    run: Callable[[], None]
    """Takes the next step of an update, and writes what it found into the table."""
    reads: tuple[Tensor, ...]
    """What it reads and nothing else holds: a graph keeps addresses, but no tensor alive."""


class _Found(NamedTuple):
    """What a minibatch found."""

    ended: Tensor
    """The epochs had ended before it."""
    skipped: Tensor
    """As `MinibatchReport.skipped`."""
    sums: Sums
    gradient: GradientReport

    def row(self) -> Tensor:
        """Return all numbers in one row, float64, in few kernels: those of one type together."""
        parts = self.parts()
        kinds = dict.fromkeys(part.dtype for part in parts)
        rows = [
            torch.cat([part.reshape(-1) for part in parts if part.dtype == kind]) for kind in kinds
        ]
        return torch.cat([row.double() for row in rows])

    def parts(self) -> list[Tensor]:
        return [self.ended, self.skipped, *self.sums, *self.gradient]


class _Layout(NamedTuple):
    """Where the numbers of `_Found` lie in a row: shape and type of each."""

    shapes: tuple[torch.Size, ...]
    kinds: tuple[torch.dtype, ...]

    @staticmethod
    def of(result: _Found) -> "_Layout":
        parts = result.parts()
        return _Layout(tuple(part.shape for part in parts), tuple(part.dtype for part in parts))

    def read(self, table: Tensor) -> _Found:
        """Return what the rows say, as columns [M, ...] in the types that it was found in."""
        order = [
            place
            for kind in dict.fromkeys(self.kinds)
            for place, own in enumerate(self.kinds)
            if own == kind
        ]
        pieces = table.t().contiguous().split([self.shapes[place].numel() for place in order])
        columns: dict[int, Tensor] = {}
        for place, piece in zip(order, pieces, strict=True):
            column = piece.to(self.kinds[place])
            shape = self.shapes[place]
            columns[place] = column.t().reshape(-1, *shape).contiguous() if shape else column[0]
        width = len(Sums._fields)
        ended, skipped, *rest = (columns[place] for place in range(len(columns)))
        return _Found(ended, skipped, Sums(*rest[:width]), GradientReport(*rest[width:]))


class DeviceEpochs:
    """The epochs of all updates of a learner.

    Args:
        agent: is trained.
        pipeline: turns gradients into a step; the optimizer is `capturable` where it is captured.
        config: of the run.
        entropy: generator of sampled entropies.
        captured: whether a minibatch becomes a CUDA graph.
        group: processes that share the sequences of every minibatch.
    """

    def __init__(
        self,
        agent: Agent,
        pipeline: GradientPipeline,
        config: TrainConfig,
        entropy: torch.Generator,
        *,
        captured: bool,
        group: Group = ALONE,
    ) -> None:
        self._agent, self._pipeline, self._config = agent, pipeline, config
        self._entropy, self._captured, self._group = entropy, captured, group
        self._data: Batch | None = None
        self._minibatches: dict[int, _Minibatch] = {}
        self._layout: _Layout | None = None
        self._order: Tensor | None = None
        """Sequences of all epochs of an update, in the order that they are learned in, int64."""
        self._table: Tensor | None = None
        """What the minibatches of an update found, float64: a row each, and one to spare."""
        device = next(agent.parameters()).device
        self._numbers = {
            name: torch.zeros((), dtype=torch.float64, device=device) for name in COEFFICIENTS
        }
        self._next = torch.zeros(2, dtype=torch.int64, device=device)
        """Place in the order, and row of the table, of the coming minibatch."""
        self._target = torch.zeros((), dtype=torch.float64, device=device)
        self._stop = torch.zeros(STOP_NUMBERS, dtype=torch.float64, device=device)

    @property
    def _generators(self) -> list[torch.Generator]:
        """Of all that a minibatch draws."""
        optimizer = self._pipeline.optimizer
        noise = [optimizer.generator] if isinstance(optimizer, UtilityOptimizer) else []
        return [self._entropy, *noise]

    def learn(
        self,
        data: Batch,
        control: KlControl,
        now: Scheduled,
        *,
        order: torch.Generator,
        on_refusal: OnRefusal,
        on_step: OnStep = lambda: None,
        pending: Pending | None = None,
    ) -> EpochReport:
        """Train on all sequences of a rollout, as `epochs.learn` does.

        Args:
            data: all sequences.
            control: stops the epochs early.
            now: numbers of this update.
            order: generator of the order of sequences.
            on_refusal: called for every refused step once all epochs are over.
            on_step: called for every step that was taken, in order with the others.
            pending: what else is read with the epochs, and whether anything is to be learned.
        """
        kept = self._place(data)
        flags = self._set(now)
        self._stop.zero_()
        if pending is not None:
            self._stop[-1].copy_(~pending.sound)
        control.begin_update()
        streams = (order, *self._generators)
        begin = [each.get_state() for each in streams]
        drawn = self._draw(kept.weight.shape[1], order)
        self._next.zero_()
        kl = self._config.kl
        can_stop = bool(kl.target_kl) and kl.kl_early_stop
        moving: Sequence[torch.Generator] | None = None if can_stop else ()
        chosen: list[Tensor] = []
        after: list[tuple[int, list[Tensor]]] = []
        for epoch, (whole_order, state) in enumerate(drawn):
            control.begin_epoch(epoch)
            self._target.fill_(control.target)
            for part in whole_order.split(self._config.ppo.batch_size):
                self._minibatch(len(part), flags).run()
                chosen.append(part)
                if moving is None:  # which of them minibatches draw from
                    moving = _moved(self._generators, begin[1:])
                after.append((epoch, [state, *(each.get_state() for each in moving)]))
        result = self._read(self._wait(len(chosen), pending, begin, streams))
        parts = tuple(self._parts(len(part)) for part in chosen)
        whole = Minibatches(result.sums, result.gradient, parts, tuple(result.skipped.tolist()))
        stepped = result.gradient.stepped.tolist()
        each = (result.sums.kl / result.sums.weight).tolist()
        divergences: list[float] = []
        begun = count = 0
        for place, (epoch, states) in enumerate(after):
            if begun == epoch:
                control.begin_epoch(epoch)
                begun += 1
            count = place + 1
            if whole.skipped[place]:
                continue
            if stepped[place]:
                on_step()
            else:
                on_refusal(select(kept, chosen[place]), whole[place])
            divergences.append(each[place])
            if control.stops(divergences[-1]):
                _put_back((order, *(moving or ())), states)
                break
        return EpochReport(whole[:count], begun, control.reason, divergences)

    def _draw(self, count: int, order: torch.Generator) -> list[tuple[Tensor, Tensor]]:
        """Draw the orders of all epochs; return each, and the generator's state after it."""
        drawn, states = [], []
        for _ in range(self._config.ppo.n_epochs):
            drawn.append(torch.randperm(count, generator=order, device=order.device))
            states.append(order.get_state())
        whole = torch.cat(drawn).to(self._stop.device)
        if self._order is None or len(self._order) != len(whole):
            self._order = whole
        else:
            self._order.copy_(whole)
        return list(zip(self._order.split(count), states, strict=True))

    def _wait(
        self,
        rows: int,
        pending: Pending | None,
        begin: list[Tensor],
        generators: Sequence[torch.Generator],
    ) -> Tensor:
        """Read the table of all minibatches, and before it what else is pending."""
        if self._table is None:
            raise LookupError("no minibatch has run")
        table = self._table[:rows]
        if pending is None:
            with waiting_allowed():
                return table.cpu()
        with waiting_allowed():
            read = torch.cat((pending.numbers, table.flatten())).cpu()
        count = len(pending.numbers)
        try:
            pending.receive(read[:count])
        except Exception:
            _put_back(generators, begin)
            raise
        return read[count:].reshape(rows, -1)

    def _parts(self, sequences: int) -> int:
        """Return the number of micro-batches of a minibatch."""
        return -(-sequences // (self._config.ppo.microbatch_size or sequences))

    def _read(self, table: Tensor) -> _Found:
        if self._layout is None:
            raise LookupError("no minibatch has run")
        return self._layout.read(table)

    def _place(self, data: Batch) -> Batch:
        """Return the sequences, where they are captured in memory that does not move."""
        if not self._captured:
            self._data = data
            return data
        names = [field.name for field in fields(data)]
        if self._data is None:
            self._data = Batch(**{name: getattr(data, name).clone() for name in names})
        else:
            move_into(*([getattr(each, name) for name in names] for each in (self._data, data)))
        return self._data

    def _set(self, now: Scheduled) -> _Flags:
        """Set the numbers of an update on the device."""
        zeros = []
        for name, place in self._numbers.items():
            value = getattr(now, name)
            if is_zero(value):
                zeros.append(name)
            else:
                place.fill_(value)
        return _Flags(now.trains_policy, now.clips_values, tuple(zeros))

    def _minibatch(self, sequences: int, flags: _Flags) -> _Minibatch:
        """Return the function of a minibatch, made when its flags are met first."""
        known = self._minibatches.get(sequences)
        if known is not None and known.flags == flags:
            return known
        self._minibatches.pop(sequences, None)  # frees the memory of its graph
        place = torch.arange(sequences, device=self._stop.device)
        ahead = torch.tensor((sequences, 1), device=self._stop.device)
        numbers: dict[str, Coefficient] = {
            name: 0.0 if name in flags.zeros else place for name, place in self._numbers.items()
        }
        now = Scheduled(
            learning_rate=0.0,  # the optimizer has its own
            clip_range=numbers["clip_range"],
            vf_coef=numbers["vf_coef"],
            bc_coef=numbers["bc_coef"],
            ent_coef=numbers["ent_coef"],
            kl_beta=numbers["kl_beta"],
            clips_values=flags.clips_values,
            trains_policy=flags.trains_policy,
            legacy_risk=numbers["legacy_risk"],
        )

        def step() -> None:
            if self._order is None:
                raise LookupError("no order has been drawn")
            at, row = self._next.unbind()
            chosen = self._order[(at + place).clamp(max=len(self._order) - 1)]
            self._write(self._step(chosen, now), row)
            self._next.add_(ahead)

        made = _Minibatch(flags, self._graph(step) if self._captured else step, (place, ahead))
        self._minibatches[sequences] = made
        return made

    def _write(self, found: Tensor, row: Tensor) -> None:
        """Write a row into the table, or into the one to spare where it has no such row."""
        size = (self._rows + 1, len(found))
        if self._table is None or self._table.shape != size:
            self._table = found.new_zeros(size)
        self._table.index_copy_(0, row.clamp(max=self._rows).reshape(1), found[None])

    @property
    def _rows(self) -> int:
        """Minibatches of an update."""
        count = self._data.weight.shape[1] if self._data is not None else 0
        return self._config.ppo.n_epochs * -(-count // self._config.ppo.batch_size)

    def _graph(self, step: Callable[[], None]) -> "Graph[None]":
        """Capture a minibatch; until that is done the epochs count as over, so nothing changes."""
        stop, following = self._stop.clone(), self._next.clone()
        self._stop[-1:].fill_(1.0)
        try:
            return Graph(step, self._generators)
        finally:
            self._stop.copy_(stop)
            self._next.copy_(following)

    def _step(self, chosen: Tensor, now: Scheduled) -> Tensor:
        """Take one optimizer step; return a row of what was found."""
        config, pipeline = self._config, self._pipeline
        if self._data is None:
            raise LookupError("no sequences to learn from")
        total, planned, _ = accumulate(
            self._agent,
            select(self._data, chosen, held=now.clips_values),
            pipeline,
            now,
            config,
            self._entropy,
            group=self._group,
        )
        ended = self._stop[-1] > 0.0
        skipped = ~(total.weight > 0.0)
        if config.ppo.nonfinite_policy == "skip":
            skipped = skipped | (total.nan + total.inf > 0)
        # A quantile loss has bounded gradients: an infinite target passes the pipeline's guard.
        failed = ~total.loss.isfinite()
        reweigh(pipeline, planned / total.weight)
        gradient = pipeline.step(veto=ended | skipped | failed)
        divergence = (total.kl / total.weight).double()
        counts = ~(ended | skipped)
        self._stop.copy_(next_stop(self._stop, divergence, self._target, config.kl, counts=counts))
        result = _Found(ended, skipped, total, gradient)
        self._layout = _Layout.of(result)
        return result.row()


def _put_back(generators: Sequence[torch.Generator], states: Sequence[Tensor]) -> None:
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)


def _moved(
    generators: Sequence[torch.Generator], before: Sequence[Tensor]
) -> list[torch.Generator]:
    """Return the generators that are not where they were."""
    pairs = zip(generators, before, strict=True)
    return [each for each, state in pairs if not torch.equal(each.get_state(), state)]
