"""Mean and deviation of returns over recent updates: the return scale of the critics."""

import math
from collections import deque
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from stormsail.algorithms.config import ReturnConfig
from stormsail.core.config import Config
from stormsail.core.files.documents import JsonValue
from stormsail.functional import return_scale, statistics

_ADAPTIVE_SHARE = 0.1
"""The adaptive floor is this share of the median spread so far."""

_HISTORY = 256
"""Updates whose spread the adaptive floor looks back on."""

_READABLE = 1e12
"""Largest reading of the gain before floors, so that returns without any spread stay a number."""


class Scale(NamedTuple):
    """Mean and standard deviation by which returns are encoded."""

    mean: float
    std: float


class Outcomes(NamedTuple):
    """Weight, mean and variance of the returns of one update."""

    count: float  # type: ignore[assignment]  # the tuple method is not missed
    mean: float
    variance: float


def outcome_moments(
    returns: Tensor, weight: Tensor, atom_weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return weight, mean and variance of returns [n] or [n, M], as tensors without dimensions.

    Args:
        returns: in reward units.
        weight: of each row, [n].
        atom_weight: mass of each atom, [M], sums to 1; None for equal ones.
    """
    flat, mass = _entries(returns, weight, atom_weight)
    seen = statistics.moments(flat[:, None], weight=mass)
    return seen.count, seen.mean[0], statistics.variance(seen)[0]


def _entries(returns: Tensor, weight: Tensor, atom_weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return all atoms in one row, and the weight of each."""
    rows = returns if returns.ndim == 2 else returns[:, None]
    wide = weight[:, None].expand_as(rows)
    if atom_weight is not None:  # times M: a row counts as much as one of equal atoms
        wide = wide.double() * (atom_weight * rows.shape[-1])
    return rows.flatten().double(), wide.flatten().double()


def deviations_per_unit(config: ReturnConfig) -> float:
    """Return how many deviations of the returns one normalised unit is: `ret_clip` for `scale`."""
    return config.ret_clip if config.normalize_returns == "scale" else 1.0


def std_at_cap(config: ReturnConfig) -> float:
    """Return the deviation of returns at which the gain from returns to targets is at its cap.

    1 / (n cap), where n deviations are one normalised unit: the gain is 1 / (n std).
    """
    return 1.0 / (deviations_per_unit(config) * config.value_target_scale_cap)


def least_std(config: ReturnConfig) -> float:
    """Return the smallest deviation that returns are divided by, max(std_floor, std_at_cap).

    Encoding, decoding and PopArt all read the one scale that this bounds. Critics are invariant to
    the unit of the reward down to here; returns of a smaller spread fill only a part of a
    normalised unit.
    """
    return max(config.std_floor, std_at_cap(config))


class ReturnState(Config):
    """Saved state of the statistics."""

    update: int
    """Updates seen."""
    unfloored: float
    """Spread of the window."""
    window: tuple[tuple[float, float, float], ...]
    """Weight, mean and variance of recent updates."""
    spreads: tuple[float, ...]
    """Spreads of earlier updates."""


class ReturnStatistics:
    """Running return scale: a window of updates, a moving average, limits on each step.

    Each update adds the mean and the variance of its returns, or of the atoms of its distributional
    targets, whose spread is the one the critics must resolve. The window's moments are followed by
    an average with weight `ema_beta`; the mean moves by at most `max_rel_step` times the larger of
    its size and the spread, the spread by at most a factor of 1 + `max_rel_step`, but never below
    its floor, `least_std`.
    """

    def __init__(self, config: ReturnConfig) -> None:
        self.config = config
        self.update = 0
        self.unfloored = 1.0
        """Deviation of the window before any floor; alarms read this one."""
        self._window: deque[tuple[float, float, float]] = deque(maxlen=config.window_updates)
        self._spreads: deque[float] = deque(maxlen=_HISTORY)

    def step(
        self,
        returns: Tensor,
        weight: Tensor,
        now: Scale,
        *,
        atom_weight: Tensor | None = None,
        known: Outcomes | None = None,
    ) -> Scale:
        """Add the returns of an update; return the scale to use from now on.

        Args:
            returns: in reward units, [n] or [n, M] with atoms.
            weight: of each row, [n]; rows of weight 0 do not count.
            now: the scale in use.
            atom_weight: mass of each atom, [M], sums to 1; None for equal ones.
            known: `outcome_moments` of these, if they have been read already.
        """
        self.update += 1
        frozen = self.config.freeze_after
        now = Scale(now.mean, max(now.std, least_std(self.config)))  # it may come from elsewhere
        if frozen is not None and self.update > frozen:
            return now
        self._window.append(self._moments(returns, weight, atom_weight, known))
        count = math.fsum(part[0] for part in self._window)
        if count == 0.0:
            return now
        mean = math.fsum(part[0] * part[1] for part in self._window) / count
        # variance within the updates and between them; squares of a large mean would cost digits
        spread = math.fsum(
            weight * (within + (centre - mean) ** 2) for weight, centre, within in self._window
        )
        self.unfloored = math.sqrt(spread / count)
        self._spreads.append(self.unfloored)
        wanted = Scale(mean, max(self.unfloored, self._floor()))
        return wanted if self.update <= self.config.warmup_updates else self._limited(now, wanted)

    def _moments(
        self,
        returns: Tensor,
        weight: Tensor,
        atom_weight: Tensor | None,
        known: Outcomes | None,
    ) -> tuple[float, float, float]:
        """Return weight, mean and variance of the rows that count."""
        if known is None:
            known = Outcomes(*torch.stack(outcome_moments(returns, weight, atom_weight)).tolist())
        count, mean, variance = known
        if count == 0.0:
            return 0.0, 0.0, 0.0
        if self.config.return_stat == "mad":
            flat, mass = _entries(returns, weight, atom_weight)
            kept = flat[mass > 0.0]
            variance = float(statistics.median_absolute_deviation_std(kept)) ** 2
        return count, mean, variance

    def _floor(self) -> float:
        floor = least_std(self.config)
        if self.config.std_floor_mode == "adaptive":
            floor = max(floor, _ADAPTIVE_SHARE * median(self._spreads))
        return floor

    def _limited(self, now: Scale, wanted: Scale) -> Scale:
        beta, step = self.config.ema_beta, self.config.max_rel_step
        mean = beta * now.mean + (1.0 - beta) * wanted.mean
        std = beta * now.std + (1.0 - beta) * wanted.std
        reach = step * max(abs(now.mean), now.std)
        mean = min(max(mean, now.mean - reach), now.mean + reach)
        std = min(max(std, now.std / (1.0 + step)), now.std * (1.0 + step))
        return Scale(mean, max(std, self._floor()))

    def target_scale(self) -> float:
        """Return 1 / (`ret_clip` * spread) of the window before any floor or cap, for alarms."""
        scale = return_scale.value_target_scale(
            torch.tensor(self.unfloored, dtype=torch.float64),
            clip=self.config.ret_clip,
            floor=torch.finfo(torch.float64).tiny,
            cap=_READABLE,
        )
        return float(scale)

    def state_dict(self) -> dict[str, JsonValue]:
        """Return the state for a checkpoint."""
        return ReturnState(
            update=self.update,
            unfloored=self.unfloored,
            window=tuple(self._window),
            spreads=tuple(self._spreads),
        ).model_dump(mode="json")

    def load_state_dict(self, state: JsonValue) -> None:
        """Restore a saved state.

        Raises:
            ArtifactError: if the state is not one of return statistics.
        """
        saved = ReturnState.from_state(state, part="returns")
        self.update, self.unfloored = saved.update, saved.unfloored
        self._window.clear()
        self._window.extend(saved.window)
        self._spreads.clear()
        self._spreads.extend(saved.spreads)
