"""Outcomes that the tail is estimated from: returns of finished episodes, or parts of a rollout.

T rows, B environments. All sums are in float64 and in the unit of the reward, undiscounted.
"""

from collections import deque
from collections.abc import Iterable

import torch
from torch import Tensor

from stormsail.algorithms.rollout import Rollout


class EpisodeWindow:
    """Returns of the last episodes that ended, across rollouts, oldest first.

    An episode that a time limit cuts ends like any other. Within a rollout the order is that of
    time, then of environments. Episodes that end early are over-represented while the first ones
    of a run are still being played.

    Args:
        size: episodes that are kept.
    """

    def __init__(self, size: int) -> None:
        self._kept: deque[float] = deque(maxlen=size)

    def __len__(self) -> int:
        """Episodes that are kept now."""
        return len(self._kept)

    def add(self, rollout: Rollout) -> None:
        """Take the episodes in that ended within a rollout."""
        total = rollout.earned.double() + rollout.reward.double()
        self._kept.extend(total[rollout.ended].tolist())

    def sample(self) -> Tensor:
        """Return them, float64 [n] on the CPU."""
        return torch.tensor(tuple(self._kept), dtype=torch.float64)

    def replace(self, returns: Iterable[float]) -> None:
        """Forget everything and take these instead."""
        self._kept.clear()
        self._kept.extend(returns)


def partial_sums(rollout: Rollout, steps: int) -> Tensor:
    """Return what `steps` rewards in a row add up to, from every row on, float64 [n] on the CPU.

    A row counts if all its steps lie within the rollout, or the end of its episode does: an
    episode that ends sooner counts with what it has. Rows that only start an episode do not.
    """
    reward, ended = rollout.reward.double(), rollout.ended
    rows = len(reward)
    total = torch.zeros_like(reward)
    going = rollout.length > 0
    done = torch.zeros_like(ended)
    for k in range(min(steps, rows)):
        open_now, left = going[: rows - k], rows - k
        total[:left] += torch.where(open_now, reward[k:], 0.0)
        done[:left] |= open_now & (ended[k:] | (k == steps - 1))
        going[:left] = open_now & ~ended[k:]
    return total[done].cpu()
