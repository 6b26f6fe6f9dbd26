"""What a simulator remembers and what a step reports. Named tuples of tensors [B]."""

from typing import NamedTuple

import torch
from torch import Tensor


class State(NamedTuple):
    """One account in one episode, for each environment."""

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
    done: Tensor
    """Whether the episode has ended, so that the next step starts a new one, bool."""


def held_weight(state: State) -> Tensor:
    """Return the position as a signed share of equity; 0 when flat, whatever is left."""
    flat = state.quantity == 0.0
    return torch.where(flat, 0.0, state.quantity * state.price / state.equity)


class Info(NamedTuple):
    """What happened in a step, beside observation, reward and flags.

    On the row that starts a new episode the events are 0 and the account is the new one.
    """

    equity: Tensor
    """Equity at the close."""
    cash: Tensor
    """Cash at the close."""
    quantity: Tensor
    """Position at the close."""
    entry_price: Tensor
    """Mean price at which it was entered; 0 when flat."""
    weight: Tensor
    """Position at the close as a signed share of equity."""
    price: Tensor
    """Price of the fill; NaN where there was none."""
    traded: Tensor
    """Signed quantity filled, without what a liquidation closed."""
    fee_total: Tensor
    """All fees of the step, a liquidation's included."""
    slippage: Tensor
    """Quote currency lost to spread, impact and tick."""
    funding: Tensor
    """Funding paid; negative where it was received."""
    turnover: Tensor
    """Traded notional at the open over equity at the open."""
    liquidated: Tensor
    """Whether margin was gone, bool."""
    blocked: Tensor
    """Whether an order was wanted and could not be sent, bool."""
    reason: Tensor
    """`Reason` of the risk gate, int64."""
    bad_action: Tensor
    """Whether the action was replaced by the held position, bool."""
    data_age: Tensor
    """Bars by which the row shown is older than the newest, int64."""
    sample_weight: Tensor
    """0 for a sample that must not be learned from, else 1."""
    symbol: Tensor
    """Column of the panel, int64."""
    row: Tensor
    """Row of the bar that just closed, int64."""
    reward_raw_fraction: Tensor
    """Log growth of equity in this step, with the penalty of ruin, before any clip."""
    reward_used_fraction: Tensor
    """The reward itself."""
    reward_costs_fraction: Tensor
    """Fees, slippage and funding over the equity before the step."""
    reward_clip_bound_fraction: Tensor
    """Bound on the reward's size; NaN where there is none."""
    signal_pos_requested: Tensor
    """Weight that was asked for; the held one where the action was bad."""
    signal_pos_next: Tensor
    """Weight held after the fill, at the open."""
    time_limit_truncated: Tensor
    """Whether the episode was truncated; equal to `truncated`, bool."""
    terminal_observation: Tensor
    """The step's own observation, [B, F]; it is the terminal one where an episode ended."""
