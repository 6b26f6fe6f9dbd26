"""The betting game of Return Capping (Mead et al. 2025, arXiv:2504.20887) as a task.

A player begins with 16 tokens and bets 6 times. A bet is 0 to 8 eighths of her wealth, never more
than what is missing to 256 tokens; with probability 0.88 it pays its stake, otherwise the stake is
lost. The game ends after the last bet, at 0 tokens or at 256. Rules as in the public code of the
paper (HarryMJMead/cvar-return-capping, `envs/betting_game.py`).

The reward is the change of wealth in tokens, so the return of an episode is the final wealth less
16. The public code divides rewards by 256 and multiplies the CVaR that it reports by 256: the same
figures.
"""

import copy
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from stormsail.core.task import Alternatives, DiscreteActions, Step


@dataclass(frozen=True)
class BettingRules:
    """Sizes and chances of a game."""

    tokens: float = 16.0
    """Wealth at the start."""
    bets: int = 6
    """Number of bets, H."""
    parts: int = 8
    """A bet is 0 to this many equal parts of the wealth, so there are one more actions."""
    win: float = 0.88
    """Chance that a bet pays its stake."""
    most: float = 256.0
    """Wealth that ends the game."""


class BettingState(NamedTuple):
    """B games."""

    wealth: Tensor
    """[B], in tokens."""
    done: Tensor
    """int64 [B]: bets made so far."""
    uniform: Tensor
    """[B, H]: number in [0, 1) that decides each bet of the game; below `win` the bet pays."""
    over: Tensor
    """[B] bool: the last bet ended the game, so the next step starts another."""


class BettingInfo(NamedTuple):
    """Further results of a step."""

    sample_weight: Tensor
    """[B]: 1, but 0 where the action was ignored because a new game starts."""


class BettingGame:
    """B games side by side.

    All numbers of a game are drawn at its start and kept in its state, so stepping from a state
    again with the same actions gives the same rewards, and `alternatives` is exact. Wealth is a
    multiple of 2**-14 tokens below 2**8, which float32 holds without rounding.

    Every end is `terminated`: the observation shows the bets that are left.
    """

    observation_names = ("bets_left", "wealth", "log_wealth")
    account_names = ("wealth", "log_wealth")
    observation_size = 3

    def __init__(
        self,
        batch: int,
        rules: BettingRules | None = None,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.rules = BettingRules() if rules is None else rules
        self.batch, self.device, self.dtype = batch, torch.device(device), dtype
        self.actions = DiscreteActions(self.rules.parts + 1)
        self.episode_steps = self.rules.bets

    def reset(self, generator: torch.Generator) -> tuple[BettingState, Tensor]:
        """Start B games; return the state and the observation [B, 3]."""
        state = BettingState(
            wealth=torch.full(
                (self.batch,), self.rules.tokens, dtype=self.dtype, device=self.device
            ),
            done=torch.zeros(self.batch, dtype=torch.int64, device=self.device),
            uniform=self._draw(generator),
            over=torch.zeros(self.batch, dtype=torch.bool, device=self.device),
        )
        return state, self.observe(state.done, state.wealth)

    def step(
        self, state: BettingState, action: Tensor, generator: torch.Generator
    ) -> tuple[BettingState, Step[BettingInfo]]:
        """Bet once in each game; where the game was over, start another.

        The generator draws the next games, B by H numbers at every step whatever happens.

        Raises:
            ShapeError: for an action of another shape.
            DtypeError: for an action that is not int64.
        """
        self.actions.check(action, batch=self.batch, dtype=self.dtype)
        fresh, over = self._draw(generator), state.over
        wealth = self._bet(state, self.actions.mend(action)[:, None])[:, 0]
        reward = torch.where(over, 0.0, wealth - state.wealth)
        done = torch.where(over, 0, state.done + 1)
        wealth = torch.where(over, self.rules.tokens, wealth)
        terminated = ~over & (self._final(wealth) | (done == self.rules.bets))
        following = BettingState(
            wealth, done, torch.where(over[:, None], fresh, state.uniform), terminated
        )
        return following, Step(
            self.observe(done, wealth),
            reward,
            terminated,
            torch.zeros_like(terminated),
            BettingInfo((~over).to(self.dtype)),
        )

    def with_batch(self, batch: int) -> "BettingGame":
        """Return the same game for another number of environments."""
        other = copy.copy(self)
        other.batch = batch
        return other

    def alternatives(self, state: BettingState, actions: Tensor) -> Alternatives:
        """Return what each of K actions would make of the coming bet, by the same draw."""
        wealth = self._bet(state, actions[None, :])  # [B, K]
        done = (state.done + 1)[:, None].expand_as(wealth)
        return Alternatives(
            reward=wealth - state.wealth[:, None],
            terminated=self._final(wealth) | (done == self.rules.bets),
            account=self.observe(done, wealth)[..., 1:],
        )

    def observe(self, done: Tensor, wealth: Tensor) -> Tensor:
        """Return what is seen after so many bets at a wealth, [*b, 3], all within [0, 1].

        Bets left of all, wealth of the most there can be, and the same of log(1 + wealth).
        """
        most = self.rules.most
        left = 1.0 - done.to(self.dtype) / self.rules.bets
        logarithm = torch.log1p(wealth) / torch.log1p(torch.full_like(wealth, most))
        return torch.stack((left, wealth / most, logarithm), -1)

    def _bet(self, state: BettingState, action: Tensor) -> Tensor:
        """Return the wealth after the coming bet, [B, K], for actions [B, K] or [1, K]."""
        wealth = state.wealth[:, None]
        # after the last bet there is no number left; the row is ignored, so any will do
        place = state.done.clamp(max=self.rules.bets - 1)[:, None]
        stake = wealth * action.to(self.dtype) / self.rules.parts
        stake = torch.minimum(stake, self.rules.most - wealth)
        pays = state.uniform.gather(-1, place) < self.rules.win
        return torch.where(pays, wealth + stake, wealth - stake)

    def _final(self, wealth: Tensor) -> Tensor:
        return (wealth <= 0.0) | (wealth >= self.rules.most)

    def _draw(self, generator: torch.Generator) -> Tensor:
        shape = (self.batch, self.rules.bets)
        return torch.rand(shape, dtype=self.dtype, device=self.device, generator=generator)
