"""Mean and deviation of returns over recent updates: the return scale of the critics."""

import math
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


Number = float | Tensor


class Scale(NamedTuple):
    """Mean and standard deviation by which returns are encoded."""

    mean: Number
    std: Number


class Outcomes(NamedTuple):
    """Weight, mean and variance of the returns of one update, float64 without dimensions."""

    count: Tensor  # type: ignore[assignment]  # the tuple method is not missed
    mean: Tensor
    variance: Tensor


def outcome_moments(returns: Tensor, weight: Tensor, atom_weight: Tensor | None) -> Outcomes:
    """Return weight, mean and variance of returns [n] or [n, M].

    Args:
        returns: in reward units.
        weight: of each row, [n].
        atom_weight: mass of each atom, [M], sums to 1; None for equal ones.
    """
    flat, mass = _entries(returns, weight, atom_weight)
    seen = statistics.moments(flat[:, None], weight=mass)
    return Outcomes(seen.count, seen.mean[0], statistics.variance(seen)[0])


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

    All of it is tensors that stay in place, and no step waits for the device: a captured graph may
    take it.

    Args:
        config: of the statistics.
        device: of the returns.
    """

    def __init__(self, config: ReturnConfig, device: torch.device | str = "cpu") -> None:
        self.config = config
        like = torch.zeros((), dtype=torch.float64, device=device)
        self._updates = like.clone()
        self._unfloored = torch.ones_like(like)
        size = (config.window_updates, len(Outcomes._fields))
        self._window = like.new_full(size, torch.nan)
        """Outcomes of recent updates, the newest last; NaN before there were as many."""
        self._spreads = like.new_full((_HISTORY,), torch.nan)
        """Of earlier windows, the newest last; NaN before there were as many."""

    @property
    def tensors(self) -> list[Tensor]:
        """All that a step changes."""
        return [self._updates, self._unfloored, self._window, self._spreads]

    @property
    def update(self) -> int:
        """Updates seen; waits for the device."""
        return int(self._updates)

    @property
    def unfloored(self) -> Tensor:
        """Deviation of the window before any floor; alarms read this one."""
        return self._unfloored.clone()

    @torch.no_grad()
    def step(
        self,
        returns: Tensor,
        weight: Tensor,
        now: Scale,
        *,
        atom_weight: Tensor | None = None,
        known: Outcomes | None = None,
        sound: Tensor | None = None,
    ) -> Scale:
        """Add the returns of an update; return the scale to use from now on.

        Args:
            returns: in reward units, [n] or [n, M] with atoms.
            weight: of each row, [n]; rows of weight 0 do not count.
            now: the scale in use.
            atom_weight: mass of each atom, [M], sums to 1; None for equal ones.
            known: `outcome_moments` of these, if they are there already.
            sound: whether the update counts; where not, nothing changes. None counts it.
        """
        config, update = self.config, self._updates + 1.0
        # a scale may come from elsewhere
        now = Scale(self._number(now.mean), self._number(now.std).clamp(min=least_std(config)))
        seen = outcome_moments(returns, weight, atom_weight) if known is None else known
        if config.return_stat == "mad":
            seen = seen._replace(variance=_robust_variance(seen, returns, weight, atom_weight))
        window = torch.cat((self._window[1:], torch.stack(seen)[None]))
        mean, unfloored, has_weight = _pooled(window)
        spreads = torch.cat((self._spreads[1:], unfloored[None]))
        floor = self._floor(spreads)
        wanted = Scale(mean, torch.maximum(unfloored, floor))
        limited = self._limited(now, wanted, floor)
        warming = update <= config.warmup_updates
        adds = torch.ones_like(warming) if sound is None else sound
        counted = self._updates + adds.double()
        if config.freeze_after is not None:
            adds = adds & (update <= config.freeze_after)
        follows = adds & has_weight
        for place, new, where in (
            (self._window, window, adds),
            (self._unfloored, unfloored, follows),
            (self._spreads, spreads, follows),
        ):
            place.copy_(torch.where(where, new, place))
        self._updates.copy_(counted)
        moved = (torch.where(warming, a, b) for a, b in zip(wanted, limited, strict=True))
        return Scale(*(torch.where(follows, a, b) for a, b in zip(moved, now, strict=True)))

    def _number(self, value: Number) -> Tensor:
        return value if isinstance(value, Tensor) else torch.full_like(self._unfloored, value)

    def _floor(self, spreads: Tensor) -> Tensor:
        """Return the least spread, given those so far."""
        floor = torch.full_like(self._unfloored, least_std(self.config))
        if self.config.std_floor_mode == "adaptive":
            median = statistics.percentile(spreads, ~spreads.isnan(), level=0.5)
            floor = torch.maximum(floor, _ADAPTIVE_SHARE * median)
        return floor

    def _limited(self, now: Scale, wanted: Scale, floor: Tensor) -> Scale:
        beta, step = self.config.ema_beta, self.config.max_rel_step
        before, spread = self._number(now.mean), self._number(now.std)
        mean = beta * before + (1.0 - beta) * wanted.mean
        std = beta * spread + (1.0 - beta) * wanted.std
        reach = step * torch.maximum(before.abs(), spread)
        mean = torch.clamp(mean, before - reach, before + reach)
        std = torch.clamp(std, spread / (1.0 + step), spread * (1.0 + step))
        return Scale(mean, torch.maximum(std, floor))

    def target_scale(self) -> Tensor:
        """Return 1 / (`ret_clip` * spread) of the window before any floor or cap, for alarms."""
        return return_scale.value_target_scale(
            self._unfloored,
            clip=self.config.ret_clip,
            floor=torch.finfo(torch.float64).tiny,
            cap=_READABLE,
        )

    def state_dict(self) -> dict[str, JsonValue]:
        """Return the state for a checkpoint."""
        row = torch.cat([part.flatten() for part in self.tensors])
        update, unfloored, *rest = row.tolist()
        numbers = iter(rest[: self._window.numel()])
        outcomes = zip(numbers, numbers, numbers, strict=True)
        return ReturnState(
            update=int(update),
            unfloored=unfloored,
            window=tuple(part for part in outcomes if not math.isnan(part[0])),
            spreads=tuple(
                spread for spread in rest[self._window.numel() :] if not math.isnan(spread)
            ),
        ).model_dump(mode="json")

    def load_state_dict(self, state: JsonValue) -> None:
        """Restore a saved state.

        Raises:
            ArtifactError: if the state is not one of return statistics.
        """
        saved = ReturnState.from_state(state, part="returns")
        self._updates.fill_(saved.update)
        self._unfloored.fill_(saved.unfloored)
        for place, kept in ((self._window, saved.window), (self._spreads, saved.spreads)):
            newest = torch.tensor(kept[-len(place) :], dtype=place.dtype, device=place.device)
            place.fill_(torch.nan)
            if len(newest):
                place[-len(newest) :] = newest


def _pooled(window: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean and deviation of all returns of a window, and whether any has weight."""
    is_there = ~window[:, :1].isnan()
    weight, centre, within = torch.where(is_there, window, 0.0).unbind(-1)
    count = weight.sum()
    has_weight = count > 0.0
    total = torch.where(has_weight, count, 1.0)
    mean = (weight * centre).sum() / total
    # variance within the updates and between them; squares of a large mean would cost digits
    spread = (weight * (within + (centre - mean).square())).sum()
    return mean, (spread / total).sqrt(), has_weight


def _robust_variance(
    seen: Outcomes, returns: Tensor, weight: Tensor, atom_weight: Tensor | None
) -> Tensor:
    """Return the squared robust deviation of all atoms of rows that count, all alike."""
    flat, mass = _entries(returns, weight, atom_weight)
    used = mass > 0.0
    middle = statistics.percentile(flat, used, level=0.5)
    spread = statistics.percentile((flat - middle).abs(), used, level=0.5)
    return torch.where(seen.count > 0.0, (statistics.MAD_TO_STD * spread).square(), 0.0)
