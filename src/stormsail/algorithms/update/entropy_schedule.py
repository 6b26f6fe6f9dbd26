"""Schedule of the entropy coefficient: linear decay after a plateau, boost, floor."""

import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import torch

from stormsail.algorithms.config import EntropyConfig
from stormsail.algorithms.update.schedules import linear
from stormsail.core.config import Config
from stormsail.core.files.documents import JsonValue
from stormsail.functional import statistics

FINAL = 0.001
"""End of a decay that is not configured, or the start where that is less."""

FLOOR = 0.0005
"""Floor that is not configured, or the start or end where that is less."""


class Coefficient(NamedTuple):
    """Entropy coefficient of an update."""

    effective: float
    """Factor of the entropy in the loss."""
    nominal: float
    """Before boost and floor."""
    boosted: bool


class EntropyState(Config):
    """Saved state of the schedule."""

    start: int | None = None
    """Update at which the decay started."""
    plateau: bool = False
    """Whether the last update was on a plateau."""
    slope: float | None = None
    """Of the entropy over the window."""
    bad_updates: int = 0
    """Updates in a row in which the critics were worse than a constant."""
    seen: tuple[tuple[int, float], ...] = ()
    """Updates of the window and their entropy."""


class EntropySchedule:
    """Entropy coefficient of each update; the decay starts once.

    What is not configured follows from what is: the end is 0.001, the floor 0.0005, and neither is
    above the start, so that a start of 0 means no bonus at all; the decay takes all updates from
    its start to the last of the run, which is trained with the end.

    The decay starts at the first update at which the entropy has been level over the window, or at
    update 0 without a window. A later plateau changes nothing: nothing is ever applied twice. Nor
    does one while the coefficient is at its end or floor already.

    Args:
        config: of the schedule.
        updates: of the whole run, before any extension.
        planned: from an update to its place in the decay; that of a run whose budget was extended
            is slower (`schedules.History`). By default the update itself.
    """

    def __init__(
        self,
        config: EntropyConfig,
        updates: int,
        planned: Callable[[int], float] = lambda update: update,
    ) -> None:
        self.config, self.updates, self._planned = config, updates, planned
        final, floor = config.ent_coef_final, config.ent_coef_min
        self.final = min(FINAL, config.ent_coef) if final is None else final
        self.floor = min(FLOOR, config.ent_coef, self.final) if floor is None else floor
        self.start: int | None = 0 if config.ent_coef_plateau_window == 0 else None
        self.plateau = False
        self.slope = math.nan
        self.bad_updates = 0
        self._seen: deque[tuple[int, float]] = deque(maxlen=max(config.ent_coef_plateau_window, 2))

    def coefficient(self, update: int) -> Coefficient:
        """Return the coefficient of an update; pure."""
        config = self.config
        nominal = self._nominal(update)
        floored = max(nominal, self.floor)
        cap = config.entropy_boost_cap * config.ent_coef
        boosted = floored * self._boost() if floored > 0.0 else 0.0  # 0 times infinity is no number
        raised = max(min(boosted, cap), floored)
        return Coefficient(raised, nominal, raised > floored)

    def _boost(self) -> float:
        """Return the factor for bad critics; infinite on overflow, where the cap acts."""
        over = self.bad_updates - self.config.bad_explained_patience
        try:
            return self.config.entropy_boost_factor ** max(over, 0)
        except OverflowError:
            return math.inf

    def _nominal(self, update: int) -> float:
        if self.start is None:
            return self.config.ent_coef
        begin = self._planned(self.start)
        steps: float | None = self.config.ent_coef_decay_steps
        if steps is None:
            steps = max(self.updates - 1 - begin, 1)
        done = self._planned(update) - begin
        return (
            self.final if done >= steps else linear(self.config.ent_coef, self.final, done / steps)
        )

    def observe(self, update: int, entropy: float, explained_variance: float) -> None:
        """Record the mean entropy and the explained variance of a finished update."""
        self.bad_updates = self.bad_updates + 1 if explained_variance < 0.0 else 0
        window = self.config.ent_coef_plateau_window
        self.plateau = False
        if window == 0 or not math.isfinite(entropy):  # an unknown entropy is level with nothing
            return
        self._seen.append((update, entropy))
        if len(self._seen) < max(window, 2):
            return
        x, y = (
            torch.tensor(column, dtype=torch.float64) for column in zip(*self._seen, strict=True)
        )
        self.slope = float(statistics.slope(y, x=x))
        level = abs(self.slope) <= self.config.ent_coef_plateau_tolerance
        self.plateau = level and update >= self.config.ent_coef_plateau_min_updates
        if self.plateau and self.start is None and self._may_fall(update):
            self.start = update

    def _may_fall(self, update: int) -> bool:
        """Return whether a decay would lower the coefficient: it is above its end and floor."""
        return self._nominal(update) > max(self.final, self.floor)

    def state_dict(self) -> dict[str, JsonValue]:
        """Return the state for a checkpoint."""
        return EntropyState(
            start=self.start,
            plateau=self.plateau,
            slope=None if math.isnan(self.slope) else self.slope,
            bad_updates=self.bad_updates,
            seen=tuple(self._seen),
        ).model_dump(mode="json")

    def load_state_dict(self, state: JsonValue) -> None:
        """Restore a saved state.

        Raises:
            ArtifactError: if the state is not one of a schedule.
        """
        saved = EntropyState.from_state(state, part="entropy")
        self.start, self.plateau, self.bad_updates = saved.start, saved.plateau, saved.bad_updates
        self.slope = math.nan if saved.slope is None else saved.slope
        self._seen.clear()
        self._seen.extend(saved.seen)
