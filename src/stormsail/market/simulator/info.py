"""What a step of the simulator reports beside observation, reward and flags."""

from typing import NamedTuple

import torch
from torch import Tensor

from stormsail.market.simulator.account import Fill, State, held_weight
from stormsail.market.simulator.config import MarketConfig


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
    """Signed quantity filled, without what a liquidation or a delisting closed."""
    fee_total: Tensor
    """All fees of the step, a liquidation's included."""
    slippage: Tensor
    """Quote currency lost to spread, impact and tick, or to a delisting."""
    funding: Tensor
    """Funding paid; negative where it was received."""
    turnover: Tensor
    """Traded notional at the open over equity at the open."""
    liquidated: Tensor
    """Whether margin was gone, bool."""
    blocked: Tensor
    """Whether an order was wanted and could not be sent, bool."""
    delisted: Tensor
    """Whether the symbol was delisted, which closes a position and ends the episode, bool."""
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
    """Requested weight; the held one where the action was bad."""
    signal_pos_next: Tensor
    """Weight held after the fill, at the open."""
    time_limit_truncated: Tensor
    """Whether the episode was truncated; equal to `truncated`, bool."""
    terminal_observation: Tensor
    """The step's own observation, [B, F]; it is the terminal one where an episode ended."""


class Outcome(NamedTuple):
    """What a step did, [B] each."""

    fill: Fill
    requested: Tensor
    """Requested weight; NaN where the action was bad."""
    growth: Tensor
    """Log growth with the penalty of ruin, before any clip."""
    reward: Tensor
    bad_action: Tensor
    """Whether the action was replaced."""
    truncated: Tensor
    observation: Tensor
    """[B, F]."""


def step_info(before: State, state: State, outcome: Outcome, config: MarketConfig) -> Info:
    """Return the info of a step; events are 0 where it only started a new episode."""
    fill, over = outcome.fill, before.done

    def event(value: Tensor) -> Tensor:
        return torch.where(over, torch.zeros_like(value), value)

    held = held_weight(before)
    unlearned = over | fill.blocked if config.no_trade.drop_samples else over
    bound = torch.nan if config.reward_clip is None else config.reward_clip
    return Info(
        equity=state.equity,
        cash=state.cash,
        quantity=state.quantity,
        entry_price=state.entry_price,
        weight=held_weight(state),
        price=torch.where(over, torch.nan, fill.price),
        traded=event(fill.order),
        fee_total=event(fill.fee),
        slippage=event(fill.slippage),
        funding=event(fill.funding),
        turnover=event(fill.turnover),
        liquidated=event(fill.liquidated),
        blocked=event(fill.blocked),
        delisted=event(fill.delisted),
        reason=event(fill.reason),
        bad_action=outcome.bad_action,
        data_age=state.row - state.shown_row,
        sample_weight=(~unlearned).to(state.equity.dtype),
        symbol=state.symbol,
        row=state.row,
        reward_raw_fraction=event(outcome.growth),
        reward_used_fraction=outcome.reward,
        reward_costs_fraction=event((fill.fee + fill.slippage + fill.funding) / before.equity),
        reward_clip_bound_fraction=torch.full_like(outcome.reward, bound),
        signal_pos_requested=event(torch.where(outcome.bad_action, held, outcome.requested)),
        signal_pos_next=event(fill.weight_after),
        time_limit_truncated=outcome.truncated,
        terminal_observation=outcome.observation,
    )
