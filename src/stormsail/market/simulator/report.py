"""What a step tells beside observation, reward and flags."""

from typing import NamedTuple

import torch
from torch import Tensor

from stormsail.market.simulator.config import MarketConfig
from stormsail.market.simulator.records import Info, State, held_weight
from stormsail.market.simulator.trade import Fill


class Happened(NamedTuple):
    """What a step did, [B] each."""

    fill: Fill
    asked: Tensor
    """Weight asked for; NaN where the action was bad."""
    growth: Tensor
    """Reward before any clip."""
    reward: Tensor
    bad_action: Tensor
    """Whether the action was replaced."""
    truncated: Tensor
    observation: Tensor
    """[B, F]."""


def report(before: State, state: State, happened: Happened, config: MarketConfig) -> Info:
    """Return the info of a step; events are 0 where it only started a new episode."""
    fill, over = happened.fill, before.done

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
        reason=event(fill.reason),
        bad_action=happened.bad_action,
        data_age=state.row - state.shown_row,
        sample_weight=(~unlearned).to(state.equity.dtype),
        symbol=state.symbol,
        row=state.row,
        reward_raw_fraction=event(happened.growth),
        reward_used_fraction=happened.reward,
        reward_costs_fraction=event((fill.fee + fill.slippage + fill.funding) / before.equity),
        reward_clip_bound_fraction=torch.full_like(happened.reward, bound),
        signal_pos_requested=event(torch.where(happened.bad_action, held, happened.asked)),
        signal_pos_next=event(fill.weight_after),
        time_limit_truncated=happened.truncated,
        terminal_observation=happened.observation,
    )
