"""Alarms over the metrics of a run, raised when a condition begins, not at every update."""

import logging
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from stormsail.core.config import Config
from stormsail.core.errors import ArtifactError
from stormsail.core.files.documents import JsonValue
from stormsail.monitors.alarm_rules import (
    LARGEST_CELL,
    LARGEST_HIDDEN,
    LEAST_HIDDEN,
    RELATIVE_SPREAD,
    RULES,
    SATURATION,
    Metrics,
    Severity,
)

LOG = logging.getLogger("stormsail")
"""Where alarms are warned of; its lines begin with `ALERT:`."""

ALARM_NAMES = tuple(rule.name for rule in RULES)
"""Each is a scalar of every update too."""

_HISTORY = 256
"""Updates whose spread of returns is remembered."""

_ENOUGH = 8
"""Updates before a spread is compared with the median of the earlier ones."""


@dataclass(frozen=True)
class Alarm:
    """One alarm, at the update at which its condition began to hold long enough."""

    name: str
    severity: Severity
    message: str
    value: float
    """Of the metric that the message is about; NaN where that is unknown."""

    def record(self) -> dict[str, JsonValue]:
        """Return it as plain JSON, with null for an unknown value."""
        return {
            "name": self.name,
            "severity": self.severity,
            "message": self.message,
            "value": self.value if math.isfinite(self.value) else None,
        }


def warn(text: str) -> None:
    """Write a line that begins with `ALERT:` to the log of the package, as a warning."""
    LOG.warning("ALERT: %s", text)


class AlarmState(Config):
    """Saved state of the alarms."""

    streaks: dict[str, int]
    """For how many updates in a row each condition has held; only of those that hold."""
    spreads: tuple[float, ...]
    """Spread of the returns in recent updates."""


class Alarms:
    """Checks the metrics of each update against the table in `alarm_rules`.

    An alarm is raised at the update at which its condition has held for as many updates in a row as
    the rule demands, and then not again before the condition has ended once. A metric that is
    missing or NaN meets no condition, but a loss that is NaN does.
    """

    def __init__(self) -> None:
        self._streaks: dict[str, int] = {}
        self._spreads: deque[float] = deque(maxlen=_HISTORY)

    def check(self, metrics: Mapping[str, float]) -> list[Alarm]:
        """Check the metrics of an update; return the alarms that begin with it."""
        seen = {**metrics, **self._relative_spread(metrics), **worst_layers(metrics)}
        begun = []
        for rule in RULES:
            if not rule.holds(seen):
                self._streaks.pop(rule.name, None)
                continue
            streak = self._streaks[rule.name] = self._streaks.get(rule.name, 0) + 1
            if streak == rule.patience:
                value = seen.get(rule.metric, math.nan)
                message = rule.message.format(value=value, metrics=seen)
                begun.append(Alarm(rule.name, rule.severity, message, value))
        return begun

    @property
    def active(self) -> tuple[str, ...]:
        """Names of the alarms whose condition still holds."""
        return tuple(
            rule.name for rule in RULES if self._streaks.get(rule.name, 0) >= rule.patience
        )

    def scalars(self, metrics: Metrics) -> dict[str, float]:
        """Return a number for each alarm after `check` of these metrics, whatever happened.

        1 while the alarm lasts, at every update and not only where it begins, and 0 otherwise. An
        alarm that is named after a number has the number instead of 1.
        """
        numbers = dict.fromkeys(ALARM_NAMES, 0.0)
        for rule in RULES:
            if self._streaks.get(rule.name, 0) >= rule.patience:
                numbers[rule.name] = metrics[rule.metric] if rule.is_number else 1.0
        return numbers

    def streak(self, name: str) -> int:
        """Return for how many updates in a row the condition of an alarm has held."""
        return self._streaks.get(name, 0)

    def _relative_spread(self, metrics: Mapping[str, float]) -> Metrics:
        """Return the spread of returns relative to its own past."""
        spread = metrics.get("train/ret_std", math.nan)
        relative = math.nan
        if len(self._spreads) >= _ENOUGH:
            usual = median(self._spreads)
            relative = spread / usual if usual > 0.0 else math.nan
        if math.isfinite(spread):
            self._spreads.append(spread)
        return {RELATIVE_SPREAD: relative}

    def state_dict(self) -> dict[str, JsonValue]:
        """Return the state for a checkpoint, as plain JSON."""
        state = AlarmState(streaks=dict(self._streaks), spreads=tuple(self._spreads))
        return state.model_dump(mode="json")

    def load_state_dict(self, state: JsonValue) -> None:
        """Restore a saved state.

        Raises:
            ArtifactError: if the state is not one of alarms.
        """
        saved = AlarmState.from_state(state, part="alarms")
        unknown = set(saved.streaks) - {rule.name for rule in RULES}
        if unknown:
            raise ArtifactError(
                "artifact-document",
                wrong="the saved state of `alarms` must be what this version writes",
                found=f"the unknown alarm `{min(unknown)}`",
                remedy="Resume with the version that wrote it, or start a new run.",
            )
        self._streaks = dict(saved.streaks)
        self._spreads = deque(saved.spreads, maxlen=_HISTORY)


def worst_layers(metrics: Metrics) -> dict[str, float]:
    """Return the most extreme readings of all layers of the memories; none without a memory.

    The root mean square of a hidden state is that of its mean and its deviation, so it needs no
    number of units: sqrt(mean^2 + std^2).
    """

    def of_layers(start: str) -> list[float]:
        return [value for name, value in metrics.items() if name.startswith(f"lstm/{start}_layer")]

    both = zip(of_layers("h_mean"), of_layers("h_std"), strict=False)
    sizes = [size for size in (math.hypot(*parts) for parts in both) if not math.isnan(size)]
    worst: dict[str, float] = {}
    if sizes:
        worst |= {LEAST_HIDDEN: min(sizes), LARGEST_HIDDEN: max(sizes)}
        worst[SATURATION] = max(of_layers("h_saturated_frac"), default=math.nan)
        worst[LARGEST_CELL] = max(of_layers("c_max_abs"), default=math.nan)
    return worst
