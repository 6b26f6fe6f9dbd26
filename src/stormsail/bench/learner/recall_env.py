"""`stormsail/Recall-v0`: the task `Recall-v0` as a Gymnasium environment, for other libraries.

Written by itself, without the code of `stormsail.tasks.recall`: a test lets both answer the same
questions. Importing this module registers it, and `gymnasium.make` does so for a name with this
module in front (`RECALL`).
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

NAME = "stormsail/Recall-v0"
RECALL = f"{__name__}:{NAME}"
"""What `gymnasium.make` takes wherever this package is installed."""

QUERY = 10
"""Time at which the cue must be repeated."""


class RecallEnv(gymnasium.Env[np.ndarray, np.int64]):
    """One of two cues at time 0, zeros, and the query at time 10; its answer ends the episode."""

    observation_space = Box(0.0, 1.0, (3,), np.float32)
    action_space = Discrete(2)

    def __init__(self) -> None:
        self.cue = self.time = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Draw a cue and show it."""
        super().reset(seed=seed, options=options)
        self.cue, self.time = int(self.np_random.integers(2)), 0
        return self._seen(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Wait, or answer at the query."""
        over = self.time == QUERY
        reward = (1.0 if action == self.cue else -1.0) if over else 0.0
        self.time += 1
        return self._seen(), reward, over, False, {}

    def _seen(self) -> np.ndarray:
        seen = np.zeros(3, dtype=np.float32)
        if self.time == 0:
            seen[self.cue] = 1.0
        if self.time == QUERY:
            seen[2] = 1.0
        return seen


if NAME not in gymnasium.registry:
    gymnasium.register(id=NAME, entry_point=f"{__name__}:RecallEnv")
