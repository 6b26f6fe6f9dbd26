"""N(0, 1) of torch's generator for a CPU in a third of torch's time (`whole_step.cpp`).

torch takes word after word from the generator, which is five sixths of what a draw costs; here
vectors of words are made. The numbers are torch's, up to the rounding of a logarithm and a cosine,
and the generator stands where torch would leave it, so either may go on.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stormsail.optim.upgd.buckets import fill_normal_

Library = Callable[[str, Sequence[int], Sequence[Tensor]], None]
"""Calls a function of the C++ file, as `core.machine_code` compiles it."""

LEAST = 16
"""Numbers from which on torch draws in this way; it draws fewer one by one."""

_STATE_BYTES = 5056
_SIZES = (LEAST, 3 * 624 + 5)
"""Of the draws that are compared: one group, and several refreshed states with a rest."""


class NormalDraws:
    """Fills tensors as `fill_normal_` does.

    How torch keeps a state and makes its numbers is its own affair: before the first draw some
    numbers are compared, and where they differ torch draws.

    Args:
        library: with the function `draw`.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._fits: bool | None = None

    def fill_(self, out: Tensor, generator: torch.Generator) -> None:
        """Fill a flat float32 tensor on a CPU; the generator goes on."""
        if out.numel() < LEAST or generator.device.type != "cpu":
            fill_normal_(out, generator)
            return
        if self._fits is None:
            self._fits = self._is_torchs()
        if self._fits:
            self._draw(out, generator)
        else:
            fill_normal_(out, generator)

    def _draw(self, out: Tensor, generator: torch.Generator) -> None:
        state = generator.get_state()
        self._library("draw", (out.numel(),), (state, out))
        generator.set_state(state)

    def _is_torchs(self) -> bool:
        """Say whether some draws are those of torch, and whether the state after them is."""
        theirs = torch.Generator().manual_seed(1)
        ours = torch.Generator().manual_seed(1)
        if ours.get_state().numel() != _STATE_BYTES:
            return False
        for size in _SIZES:
            drawn, wanted = torch.zeros(size), torch.empty(size)
            fill_normal_(wanted, theirs)
            self._draw(drawn, ours)
            if not torch.equal(ours.get_state(), theirs.get_state()):
                return False
            if not torch.allclose(drawn, wanted, rtol=1e-5, atol=1e-5):
                return False
        return True
