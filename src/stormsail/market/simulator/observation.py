"""Observations: scaled features of the market, through a feed that may fail, and of the account."""

import torch
from torch import Tensor

from stormsail.market.features import AccountTensors, account_features
from stormsail.market.simulator.account import State, held_weight
from stormsail.market.simulator.config import MarketConfig
from stormsail.market.simulator.episodes import Draws


class Observer:
    """Builds observations from the scaled features of every bar, [T, S, F], stored once."""

    def __init__(self, features: Tensor, config: MarketConfig) -> None:
        self._length = features.shape[0]
        self._rows = features.transpose(0, 1).reshape(-1, features.shape[-1])
        self._config = config

    def first(self, state: State) -> Tensor:
        """Return the first observation of an episode; its bar is always seen."""
        return torch.cat((self._market(state), self.account(state)), -1)

    def next(self, before: State, state: State, draws: Draws) -> tuple[State, Tensor]:
        """Return the state with the row that is shown, and the observation [B, F].

        A repeated or dropped bar shows nothing new; a delayed one shows an older row, but a feed
        never goes back. A dropped bar has 0 in all market columns. The account is always its own.
        """
        if draws.feed is None:
            state = state._replace(shown_row=state.row.clone())
            return state, self.first(state)
        feed = self._config.degrade
        stale, lost, late, length = draws.feed
        delay = 1 + (length * feed.max_delay_bars).long().clamp(max=feed.max_delay_bars - 1)
        row = torch.where(late < feed.delay_prob, state.row - delay, state.row)
        row = torch.maximum(row, before.shown_row)
        dropped = (lost < feed.drop_prob) & ~before.done
        repeated = (stale < feed.stale_prob) | dropped
        row = torch.where(repeated, before.shown_row, row)
        state = state._replace(shown_row=torch.where(before.done, state.row, row))
        market = torch.where(dropped[:, None], 0.0, self._market(state))
        return state, torch.cat((market, self.account(state)), -1)

    def account(self, state: State) -> Tensor:
        """Return the account's columns of the observation, [*batch, 6]; no fault touches them."""
        account = AccountTensors(
            weight=held_weight(state),
            unrealised=state.quantity * (state.price - state.entry_price),
            equity=state.equity,
            peak_equity=state.peak_equity,
            start_equity=torch.full_like(state.equity, self._config.initial_equity),
            bars_in_position=state.bars_in_position,
            bars_left=state.last_row - state.row,
        )
        return account_features(account, episode_bars=self._config.episode_bars)

    def _market(self, state: State) -> Tensor:
        return self._rows[state.symbol * self._length + state.shown_row]
