r"""Bets with a limit on the tail: small worlds whose best policy under the limit can be computed.

An episode is H bars. In each the agent sees the regime, the time left and what the episode has made
so far, and picks a level w. The bar then pays

.. math:: r = w\,x - c\,|w - w_{before}|

with x drawn from the table of the regime, whatever the level; where stakes are shares of the
wealth, w counts in units of initial wealth plus return so far. All draws of an episode are made
when it starts, so a state says what every level would make of the coming bar.
"""

import copy
import math
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from stormsail.core.errors import RangeError
from stormsail.core.task import (
    Actions,
    Alternatives,
    ContinuousActions,
    DiscreteActions,
    ObservationLayout,
    Step,
)

Numbers = TypeVar("Numbers", Tensor, "np.ndarray[tuple[int, ...], np.dtype[np.float64]]")

Table = tuple[tuple[float, float], ...]
"""Pairs of probability and payoff of a unit of the level."""


@dataclass(frozen=True)
class World:
    """A world and the limit on the CVaR of its episodes.

    Raises:
        RangeError: if probabilities do not add up to 1.
    """

    name: str
    limit: float
    """Least CVaR of an episode's return."""
    bars: int
    """H."""
    levels: tuple[float, ...]
    """On offer, ascending; of a continuous action the grid on which the best policy is computed."""
    payoffs: tuple[Table, ...]
    """By regime."""
    moves: tuple[tuple[float, ...], ...] = ((1.0,),)
    """Probability of the next regime (columns), by regime. Episodes start in the first."""
    alpha: float = 0.05
    """Share of worst episodes."""
    continuous: bool = False
    """The action is any number from the lowest to the highest level."""
    change_cost: float = 0.0
    """c, for a unit of change of the level; episodes start from level 0."""
    wealth: float | None = None
    """Initial wealth where levels are shares of it; None: levels are amounts."""
    ruin: float = -math.inf
    """A return so far at or below this ends the episode."""
    slack: bool = False
    """The limit is one that the best policy without a limit keeps."""
    warns: bool = False
    """A regime warns of losses."""

    def __post_init__(self) -> None:
        rows = [[share for share, _ in table] for table in self.payoffs] + list(
            map(list, self.moves)
        )
        for row in rows:
            if not math.isclose(sum(row), 1.0, abs_tol=1e-12):
                raise RangeError(
                    wrong=f"probabilities of world `{self.name}` must add up to 1",
                    found=f"{row}",
                    remedy="Give every outcome of each regime.",
                )

    @property
    def regimes(self) -> int:
        """Number of regimes."""
        return len(self.moves)

    @property
    def has_position(self) -> bool:
        """Whether the level of the bar before matters."""
        return self.change_cost > 0.0

    @property
    def scale(self) -> float:
        """Unit in which the return so far is observed: spread of a typical total, or more."""
        most = max(map(abs, self.levels)) * (1.0 if self.wealth is None else self.wealth)
        table = self.payoffs[0]
        return most * math.sqrt(self.bars * sum(share * x * x for share, x in table))

    def reward(self, level: Numbers, payoff: Numbers, total: Numbers, position: Numbers) -> Numbers:
        """Return what a bar makes of a level.

        Args:
            level: w.
            payoff: x, drawn.
            total: return so far.
            position: level of the bar before.
        """
        stake = level if self.wealth is None else level * (self.wealth + total)
        paid = stake * payoff
        return paid - self.change_cost * abs(level - position) if self.has_position else paid


class BetsState(NamedTuple):
    """State of B episodes, with all that is still to be drawn in them."""

    uniform: Tensor
    """[B, H, 2] in [0, 1): of the payoff and of the next regime, bar by bar."""
    elapsed: Tensor
    """[B] int64: bars done."""
    regime: Tensor
    """[B] int64, of the coming bar."""
    total: Tensor
    """[B]: return so far."""
    position: Tensor
    """[B]: level of the bar before."""
    over: Tensor
    """[B] bool: the last step ended the episode, so the next one starts another."""


class BetsInfo(NamedTuple):
    """What comes with a step."""

    sample_weight: Tensor
    """[B]: 1, but 0 where a new episode starts."""


class Bets:
    """B episodes of a world side by side.

    An episode ends by ruin or after H bars; both are `terminated`, since no bet follows.
    """

    def __init__(
        self,
        world: World,
        *,
        batch: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.world, self.batch = world, batch
        self.device, self.dtype = torch.device(device), dtype
        self.actions: Actions = DiscreteActions(len(world.levels))
        if world.continuous:
            self.actions = ContinuousActions((world.levels[0],), (world.levels[-1],))
        regimes = tuple(f"regime_{k}" for k in range(world.regimes)) if world.regimes > 1 else ()
        self.account_names = ("earned", "level") if world.has_position else ("earned",)
        self.observation_names = (*regimes, "time_left", *self.account_names)
        self.observation_size = len(self.observation_names)
        self.observation_layout = ObservationLayout(self.observation_names, unscaled=regimes)
        self.episode_steps = world.bars
        self._levels = self._tensor(world.levels)
        width = max(map(len, world.payoffs))
        shares = [[share for share, _ in table] for table in world.payoffs]
        self._payoff_steps = self._tensor([_thresholds(row, width) for row in shares])
        values = [[x for _, x in table] for table in world.payoffs]
        self._payoffs = self._tensor([row + [0.0] * (width - len(row)) for row in values])
        self._move_steps = self._tensor(
            [_thresholds(list(row), world.regimes) for row in world.moves]
        )

    def _tensor(self, values: object) -> Tensor:
        return torch.tensor(values, dtype=self.dtype, device=self.device)

    def reset(self, generator: torch.Generator) -> tuple[BetsState, Tensor]:
        """Start B episodes; return the state and the observation [B, F]."""
        whole = torch.zeros(self.batch, dtype=torch.int64, device=self.device)
        number = torch.zeros(self.batch, dtype=self.dtype, device=self.device)
        state = BetsState(
            self._draw(generator), whole, whole.clone(), number, number.clone(), whole > 0
        )
        return state, self.observed(state.regime, state.elapsed, state.total, state.position)

    def step(
        self, state: BetsState, action: Tensor, generator: torch.Generator
    ) -> tuple[BetsState, Step[BetsInfo]]:
        """Bet once in each environment; the generator gives the draws of new episodes alone."""
        self.actions.check(action, batch=self.batch, dtype=self.dtype)
        level = self._level(action if isinstance(self.actions, DiscreteActions) else action[:, 0])
        fresh, over = self._draw(generator), state.over
        payoff, regime = self._coming(state)
        reward = self.world.reward(level, payoff, state.total, state.position)
        reward = torch.where(over, 0.0, reward)
        total = torch.where(over, 0.0, state.total + reward)
        elapsed = torch.where(over, 0, state.elapsed + 1)
        terminated = ((total <= self.world.ruin) | (elapsed >= self.world.bars)) & ~over
        truncated = torch.zeros_like(terminated)
        after = BetsState(
            uniform=torch.where(over[:, None, None], fresh, state.uniform),
            elapsed=elapsed,
            regime=torch.where(over, 0, regime),
            total=total,
            position=torch.where(over, 0.0, level),
            over=terminated,
        )
        seen = self.observed(after.regime, elapsed, total, after.position)
        info = BetsInfo((~over).to(self.dtype))
        return after, Step(seen, reward, terminated, truncated, info)

    def with_batch(self, batch: int) -> "Bets":
        """Return the same world for another number of environments."""
        other = copy.copy(self)
        other.batch = batch
        return other

    def alternatives(self, state: BetsState, actions: Tensor) -> Alternatives:
        """Return what each of K actions would make of the coming bar.

        Args:
            state: of B environments.
            actions: indices, or levels of a continuous action, [K].
        """
        level = self._level(actions)[None]  # [1, K]
        payoff, _ = self._coming(state)
        total, position = state.total[:, None], state.position[:, None]
        reward = self.world.reward(level, payoff[:, None], total, position)  # [B, K]
        after = total + reward
        account = self._account(after, level.expand_as(after))
        last = (state.elapsed + 1 >= self.world.bars)[:, None]
        return Alternatives(reward, (after <= self.world.ruin) | last, account)

    def observed(self, regime: Tensor, elapsed: Tensor, total: Tensor, position: Tensor) -> Tensor:
        """Return the observation [*b, F] of states, each part [*b]."""
        left = 1.0 - elapsed.to(self.dtype) / self.world.bars
        parts = [left[..., None], self._account(total, position)]
        if self.world.regimes > 1:
            one_hot = torch.nn.functional.one_hot(regime, self.world.regimes).to(self.dtype)
            parts.insert(0, one_hot)
        return torch.cat(parts, -1)

    def _account(self, total: Tensor, position: Tensor) -> Tensor:
        columns = [total / self.world.scale]
        if self.world.has_position:
            columns.append(position / self.world.levels[-1])
        return torch.stack(columns, -1)

    def _level(self, action: Tensor) -> Tensor:
        if isinstance(self.actions, DiscreteActions):
            return self._levels[action]
        return action.clamp(self.world.levels[0], self.world.levels[-1])

    def _coming(self, state: BetsState) -> tuple[Tensor, Tensor]:
        """Return payoff [B] of the coming bar and the regime [B] after it."""
        bar = state.elapsed.clamp(max=self.world.bars - 1)[:, None, None].expand(-1, 1, 2)
        drawn = state.uniform.gather(1, bar)  # [B, 1, 2]
        place = (drawn[..., 0] >= self._payoff_steps[state.regime]).sum(-1)
        after = (drawn[..., 1] >= self._move_steps[state.regime]).sum(-1)
        return self._payoffs[state.regime, place], after

    def _draw(self, generator: torch.Generator) -> Tensor:
        shape = (self.batch, self.world.bars, 2)
        return torch.rand(shape, dtype=self.dtype, device=self.device, generator=generator)


def _thresholds(shares: list[float], width: int) -> list[float]:
    """Return cumulative shares but the last; places beyond the table are never drawn."""
    steps = np.cumsum(shares)[:-1].tolist()
    return [*steps, *([2.0] * (width - 1 - len(steps)))]


def _stakes(limit: float) -> World:
    table = ((0.016, -20.0), (0.984, 1.0))
    return World(f"stakes{limit:g}", limit, 4, (0.0, 1.0, 2.0, 3.0, 4.0), (table,))


_LEVELS = (0.0, 1.0, 2.0, 3.0, 4.0)


def _bars(crash: float) -> Table:
    rest = (1.0 - crash) / 2.0
    return ((crash, -300.0), (rest, -3.0), (rest, 4.0))


KNOWN: dict[str, World] = {
    world.name: world
    for world in (
        *map(_stakes, (-32.0, -16.0, -8.0, -4.0)),
        World("stakes10-12", -12.0, 4, _LEVELS, (((0.03, -10.0), (0.97, 1.0)),)),
        World("one-bet-4", -0.3, 1, (0.0, 1.0), (((0.04, -1.0), (0.96, 1.0)),)),
        World("one-bet-10", -0.5, 1, (0.0, 1.0), (((0.1, -1.0), (0.9, 1.0)),)),
        World("bars", -300.0, 64, _LEVELS, (_bars(0.0005),)),
        World(
            "warning", -150.0, 64, _LEVELS, (_bars(0.0001), _bars(0.01)),
            moves=((0.96, 0.04), (0.5, 0.5)), warns=True,
        ),
    )
}  # fmt: skip
"""Worlds whose figures are published with the method, by name."""
