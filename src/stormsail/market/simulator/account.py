"""The account: what it holds, how it opens, what a bar's fill makes of it, and when a stop ends it.

The simulator, in float32 or float64, and the backtest engine keep their accounts by these functions
alone. They are pure functions of tensors with static shapes, without a host sync. What a bar does
to an account, from the order to the mark, is computed in `trade.py`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from stormsail.market.simulator.config import MarketConfig

_TIE_ULPS = 4
"""Roundings within which equity counts as equal to a drawdown stop."""


class State(NamedTuple):
    """One account in one episode, for each environment; all [B] but `reward_memory`."""

    symbol: Tensor
    """Column of the panel, int64."""
    row: Tensor
    """Newest closed bar, int64."""
    last_row: Tensor
    """Row at which the episode is truncated, int64."""
    shown_row: Tensor
    """Row whose features were shown last, int64; older than `row` where the feed is degraded."""
    cash: Tensor
    """In quote currency; less than 0 where bought on margin."""
    quantity: Tensor
    """Signed position, in base currency."""
    entry_price: Tensor
    """Mean price at which the position was entered; 0 when flat."""
    price: Tensor
    """Close of `row`, at which the account is marked."""
    equity: Tensor
    """Cash and position at that price."""
    peak_equity: Tensor
    """Highest equity of the episode."""
    day_start_equity: Tensor
    """Equity when the UTC day began, or at the episode's start."""
    turnover: Tensor
    """Traded notional over equity since the UTC day began."""
    bars_in_position: Tensor
    """Since the position was opened or turned, int64; 0 when flat."""
    fee: Tensor
    """The episode's taker fee."""
    half_spread: Tensor
    """The episode's half spread."""
    impact: Tensor
    """The episode's impact."""
    bad_actions: Tensor
    """Actions replaced since `reset` because they were not finite or not on offer, int64."""
    reward_memory: Tensor
    """What the reward remembers of the episode, [B, M]; M is 0 for log growth."""
    done: Tensor
    """Whether the episode has ended, so that the next step starts a new one, bool."""


def choose(over: Tensor, first: State, second: State) -> State:
    """Return the first accounts where `over`, bool [B], and the second ones elsewhere."""
    wide = over[:, None]
    return State(
        *(
            torch.where(over if tensor.ndim == 1 else wide, tensor, other)
            for tensor, other in zip(first, second, strict=True)
        )
    )


def unshared(state: State) -> State:
    """Return the state without shared memory, as every later state is."""
    return State(*(tensor.clone() for tensor in state))


class CostRates(NamedTuple):
    """What an account's fills cost in an episode, [B] each; see `config.Costs`."""

    fee: Tensor
    half_spread: Tensor
    impact: Tensor


class Fill(NamedTuple):
    """What a bar did to an account, [B] each."""

    cash: Tensor
    quantity: Tensor
    entry_price: Tensor
    equity: Tensor
    day_start_equity: Tensor
    day_turnover: Tensor
    reason: Tensor
    order: Tensor
    price: Tensor
    fee: Tensor
    slippage: Tensor
    funding: Tensor
    turnover: Tensor
    weight_after: Tensor
    liquidated: Tensor
    blocked: Tensor
    delisted: Tensor


class StopLevels(NamedTuple):
    """Where a stop ends an account: one number for all, or a tensor [B] with one for each."""

    equity: Tensor | float
    """Lowest equity, in quote currency; greater than 0."""
    peak_share: Tensor | float | None
    """Lowest equity as a share of the peak: 1 less the drawdown stop. A negative share, like None,
    never ends an account that is above the lowest equity."""

    @classmethod
    def of(cls, config: MarketConfig) -> "StopLevels":
        """Return the levels of a market's `stops`."""
        drawdown = config.stops.drawdown
        return cls(config.ruin_equity, None if drawdown is None else 1.0 - drawdown)


def held_weight(state: State) -> Tensor:
    """Return the position as a signed share of equity; 0 when flat, whatever is left."""
    flat = state.quantity == 0.0
    return torch.where(flat, 0.0, state.quantity * state.price / state.equity)


def open_accounts(
    symbol: Tensor,
    row: Tensor,
    last_row: Tensor,
    price: Tensor,
    costs: CostRates,
    *,
    equity: float,
) -> State:
    """Return accounts that hold nothing but their initial cash.

    Args:
        symbol: columns of the panel, int64 [B].
        row: rows at whose close the first decision falls, int64 [B].
        last_row: rows at which the episodes are truncated, int64 [B].
        price: closes of those first rows, [B], in the type of the money.
        costs: of the episodes.
        equity: initial cash, in quote currency.
    """
    cash = torch.full_like(price, equity)
    nothing, count = torch.zeros_like(cash), torch.zeros_like(row)
    return State(
        symbol=symbol,
        row=row,
        last_row=last_row,
        shown_row=row,
        cash=cash,
        quantity=nothing,
        entry_price=nothing,
        price=price,
        equity=cash,
        peak_equity=cash,
        day_start_equity=cash,
        turnover=nothing,
        bars_in_position=count,
        fee=costs.fee,
        half_spread=costs.half_spread,
        impact=costs.impact,
        bad_actions=count,
        reward_memory=cash.new_empty((len(cash), 0)),
        done=torch.zeros_like(row, dtype=torch.bool),
    )


def apply_fill(state: State, fill: Fill, row: Tensor, price: Tensor) -> State:
    """Return the accounts after a bar: its fill booked, marked at its close; stops come after.

    `row` is the bar's, int64 [B], and `price` its close, [B].
    """
    same = state.quantity * fill.quantity > 0.0
    return state._replace(
        row=row,
        cash=fill.cash,
        quantity=fill.quantity,
        entry_price=fill.entry_price,
        price=price,
        equity=fill.equity,
        peak_equity=torch.maximum(state.peak_equity, fill.equity),
        day_start_equity=fill.day_start_equity,
        turnover=fill.day_turnover,
        bars_in_position=torch.where(same, state.bars_in_position, 0) + (fill.quantity != 0.0),
    )


def stop_hit(state: State, levels: StopLevels) -> Tensor:
    """Return where a stop ends an account: at the lowest equity, or at the drawdown, bool [B]."""
    hit = state.equity <= levels.equity
    if levels.peak_share is not None:
        least = levels.peak_share * state.peak_equity
        # a fall by exactly the stop ends the episode, whatever rounding makes of it
        rounding = _TIE_ULPS * torch.finfo(state.equity.dtype).eps * state.peak_equity
        hit = hit | (state.equity <= least + rounding)
    return hit
