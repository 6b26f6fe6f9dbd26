"""Passes over memory that a compiled step consists of, and the data between them."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from stormsail.optim.fused.rows import Prepared, Report, Settings
from stormsail.optim.upgd.buckets import Buffer


def is_capturing(device: torch.device) -> bool:
    """Say whether a graph is being captured, which keeps the addresses that it sees."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


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


class Precomputed(NamedTuple):
    """What a CUDA device computes while it reads the gradients."""

    addresses: Tensor
    """[P, 7] where the tensors lie, the columns those of `Tensors`."""
    numbers: Tensor
    """The settings that it started from."""
    table: Tensor
    """[P, 12], the coefficients as far as they are known."""
    ahead: Tensor
    """[11, P], see `functional.kernels.utility_step`."""
    is_aligned: bool
    """Whether 16 bytes may be loaded at once."""


class Measured(NamedTuple):
    """The tensors of a step, and sums over the raw gradients."""

    tensors: Tensors
    values: Tensor
    """[P, 5], see `MEASURED`; on CUDA [4, C], the first columns for each chunk."""
    precomputed: Precomputed | None = None


class Passes(Protocol):
    """Three trips through memory, with a few numbers for each tensor between them."""

    def measure(self, tensors: Tensors, settings: Settings) -> Measured:
        """Look at the raw gradients."""

    def is_refused(self, measured: Measured) -> Tensor:
        """Return whether a gradient is not finite, or its square is not."""

    def refuse(self, measured: Measured, settings: Settings) -> Report:
        """Change nothing but the scaler's count of what was not finite."""

    def prepare(self, measured: Measured, settings: Settings) -> Prepared:
        """Advance the scaler; return coefficients and the report."""

    def survey(
        self, measured: Measured, prepared: Prepared, settings: Settings, norms: tuple[str, ...]
    ) -> Tensor:
        """Return the line of each tensor's gate, [P, 2]."""

    def advance(
        self, measured: Measured, prepared: Prepared, lines: Tensor, noise: Buffer | None
    ) -> None:
        """Write parameters and state, unless the step is refused."""
