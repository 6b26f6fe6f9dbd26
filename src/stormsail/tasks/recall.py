"""Recall: repeat a cue that was shown ten steps ago and is no longer to be seen."""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from stormsail.core.task import DiscreteActions
from stormsail.tasks.base import ControlTask

CUES = 2
"""With two, an answer at random is right as often as wrong."""

DELAY = 10
"""Steps from the cue to the query."""


class Recall(ControlTask):
    """Our own `Recall-v0`: the shortest task that needs a memory and nothing else.

    The first observation shows one of two cues, drawn with equal probability, as a one-hot vector;
    the nine after it show zeros; that of time 10 shows the query flag alone. The action at the
    query ends the episode with a reward of 1 if it is the cue and -1 otherwise; every action before
    it does nothing and has reward 0. An episode is 11 steps.

    What is seen at the query is the same for both cues, so a policy without memory scores 0 on
    average whatever it does, and one that remembers scores 1.

    The physical state is the cue, a number in [0, 2) that is rounded down, and the time.
    """

    physical_names = ("cue", "time")
    observation_names = (*(f"cue_{k}" for k in range(CUES)), "query")
    velocity_names = ()
    actions = DiscreteActions(CUES)
    limit = DELAY + 1
    low = (0.0, 0.0)
    high = (float(CUES), 0.0)

    def _move(self, physical: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        cue, time = physical.unbind(-1)
        query = time == DELAY
        right = action == _index(cue)
        reward = torch.where(right, 1.0, -1.0).to(physical.dtype)
        moved = torch.stack((cue, time + 1.0), -1)
        return moved, torch.where(query, reward, 0.0), query

    def _observe(self, physical: Tensor) -> Tensor:
        cue, time = physical.unbind(-1)
        shown = one_hot(_index(cue), CUES).to(physical.dtype) * (time == 0.0)[:, None]
        return torch.cat((shown, (time == DELAY)[:, None].to(physical.dtype)), -1)  # [B, 3]


def _index(cue: Tensor) -> Tensor:
    # 2 u for u below 1 may be rounded up to 2 in float32
    return cue.long().clamp(0, CUES - 1)
