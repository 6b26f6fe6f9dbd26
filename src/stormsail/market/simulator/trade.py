"""One bar of one account, from the decision at a close to the mark at the next.

The order of events is the whole point of this file: new day, gate, funding, margin at the open,
order, fill, margin inside the bar, mark. `docs/life_of_a_bar.md` tells it in words, and
`evaluation.reference` is a second telling, in decimals, by another hand.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from stormsail.functional.market import fills
from stormsail.functional.risk_gate import Account, Limits, Reason, risk_gate
from stormsail.market.simulator.records import State, held_weight
from stormsail.market.simulator.tape import Bar


class Rules(NamedTuple):
    """Numbers that hold for a whole simulator."""

    limits: Limits
    maintenance: float
    liquidation_fee: float
    min_rebalance: float


class Steps(NamedTuple):
    """Order steps of the symbol that each environment trades, [B]."""

    lot: Tensor
    tick: Tensor
    min_notional: Tensor


class Fill(NamedTuple):
    """What a bar did to an account, [B]."""

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


def trade(state: State, asked: Tensor, bar: Bar, steps: Steps, rules: Rules) -> Fill:
    """Return what becomes of each account that asks for a weight and meets a bar.

    A weight that is not finite asks to hold the position.
    """
    day_start = torch.where(bar.new_day, state.equity, state.day_start_equity)
    day_turnover = torch.where(bar.new_day, 0.0, state.turnover)
    held = held_weight(state)
    account = Account(held, state.equity, state.peak_equity, day_start, day_turnover)
    allowed, reason = risk_gate(asked, account, rules.limits)

    funding = state.quantity * bar.open * bar.rate
    cash = state.cash - funding
    equity = cash + state.quantity * bar.open
    gapped = _margin_gone(equity, state.quantity, bar.open, rules)

    terms = fills.Terms(state.fee, state.half_spread, state.impact, steps.lot, steps.tick)
    wanted = fills.order_quantity(
        allowed,
        equity,
        state.quantity,
        bar.open,
        bar.notional,
        terms,
        min_rebalance=rules.min_rebalance,
    )
    # a gate that leaves exactly the held weight says: hold; so does a bad action
    holds = (allowed == held) & (reason != int(Reason.NONE))
    wanted = torch.where(holds | gapped, 0.0, wanted)
    price = fills.fill_price(bar.open, wanted, bar.notional, terms)
    illiquid = ((state.impact > 0.0) & (bar.notional <= 0.0)) | (price <= 0.0)
    closed = ~bar.may_trade | illiquid | (equity <= 0.0)
    sent = ~closed & (wanted.abs() * price >= steps.min_notional)
    order = torch.where(sent, wanted, 0.0)

    fee = state.fee * order.abs() * price
    cash = cash - order * price - fee
    quantity = torch.where(
        order == 0.0, state.quantity, _on_grid(state.quantity + order, steps.lot)
    )
    entry = fills.entry_price(state.quantity, state.entry_price, order, price)
    after = cash + quantity * bar.open
    turnover = torch.where(order == 0.0, 0.0, order.abs() * bar.open / equity)

    worst = torch.where(quantity > 0.0, bar.low, bar.high)
    inside = _margin_gone(cash + quantity * worst, quantity, worst, rules)
    gone = gapped | inside
    exit_price = torch.where(gapped, bar.open, _exit_price(cash, quantity, bar.open, rules))
    exit_fee = (state.fee + rules.liquidation_fee) * quantity.abs() * exit_price
    cash = torch.where(gone, cash + quantity * exit_price - exit_fee, cash)
    left = torch.where(gone, 0.0, quantity)
    return Fill(
        cash=cash,
        quantity=left,
        entry_price=torch.where(gone, 0.0, entry),
        equity=cash + left * bar.close,
        day_start_equity=day_start,
        day_turnover=day_turnover + turnover,
        reason=reason,
        order=order,
        price=torch.where(order == 0.0, torch.nan, price),
        fee=fee + torch.where(gone, exit_fee, 0.0),
        slippage=order.abs() * (price - bar.open).abs(),
        funding=funding,
        turnover=turnover,
        weight_after=torch.where(gapped, 0.0, quantity * bar.open / after),
        liquidated=gone,
        blocked=closed & (wanted != 0.0),
    )


def _margin_gone(equity: Tensor, quantity: Tensor, price: Tensor, rules: Rules) -> Tensor:
    return (quantity != 0.0) & (equity <= rules.maintenance * quantity.abs() * price)


def _exit_price(cash: Tensor, quantity: Tensor, open_: Tensor, rules: Rules) -> Tensor:
    """Return where margin runs out inside the bar, on the losing side of its open."""
    price = fills.liquidation_price(cash, quantity, maintenance=rules.maintenance)
    losing = torch.where(quantity > 0.0, torch.minimum(price, open_), torch.maximum(price, open_))
    return torch.where(quantity == 0.0, open_, losing)


def _on_grid(quantity: Tensor, lot: Tensor) -> Tensor:
    """Return the position without the dust of adding two multiples of a lot."""
    size = torch.where(lot > 0.0, lot, 1.0)
    return torch.where(lot > 0.0, (quantity / size).round() * size, quantity)
