"""What one bar does to an account, from the decision at a close to the mark at the next.

The order of events is the whole point of this file: new day, risk gate, funding, margin at the
open, delisting, order, fill, margin inside the bar, mark. `docs/life_of_a_bar.md` describes it in
words, and `evaluation.crosscheck.reference` is an independent second implementation, in decimals.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from stormsail.functional.market import fills
from stormsail.functional.risk_gate import Account, Limits, Reason, risk_gate
from stormsail.market.simulator.account import Fill, State, held_weight
from stormsail.market.simulator.config import MarketConfig
from stormsail.market.simulator.tape import Bar


class Rules(NamedTuple):
    """Numbers that hold for all accounts of a batch."""

    limits: Limits
    maintenance: float
    liquidation_fee: float
    min_rebalance: float
    delisting_loss: float

    @classmethod
    def of(cls, config: MarketConfig) -> "Rules":
        """Return those of a market."""
        margin = config.margin
        return cls(
            limits=config.limits.gate(),
            maintenance=margin.maintenance,
            liquidation_fee=margin.liquidation_fee,
            min_rebalance=config.min_rebalance,
            delisting_loss=config.delisting.loss,
        )


class OrderSteps(NamedTuple):
    """Lot, tick and least notional of the symbol that each account trades; see `Filters`."""

    lot: Tensor
    tick: Tensor
    min_notional: Tensor

    @classmethod
    def of(cls, config: MarketConfig, symbols: Sequence[str], *, like: Tensor) -> "OrderSteps":
        """Return those of each symbol, [S], with type and device of a tensor."""
        filters = [config.filters_of(symbol) for symbol in symbols]
        columns = ([getattr(own, name) for own in filters] for name in cls._fields)
        return cls(*(like.new_tensor(column) for column in columns))

    def select(self, index: Tensor | slice) -> "OrderSteps":
        """Return those at an index of the last dimension."""
        return OrderSteps(*(column[index] for column in self))


def trade(state: State, requested: Tensor, bar: Bar, steps: OrderSteps, rules: Rules) -> Fill:
    """Return what a bar does to each account that requests a target weight.

    Args:
        state: accounts at the close of the bar before.
        requested: target weights, [B]; one that is not finite holds the position.
        bar: in which the orders fill.
        steps: of each account's symbol.
        rules: risk limits, margin, least change of weight.
    """
    day_start = torch.where(bar.new_day, state.equity, state.day_start_equity)
    day_turnover = torch.where(bar.new_day, 0.0, state.turnover)
    held = held_weight(state)
    account = Account(held, state.equity, state.peak_equity, day_start, day_turnover)
    allowed, reason = risk_gate(requested, account, rules.limits)

    funding = state.quantity * bar.open * bar.rate
    cash = state.cash - funding
    equity = cash + state.quantity * bar.open
    gapped = _margin_gone(equity, state.quantity, bar.open, rules)
    if bar.mark_open is not None:
        marked = cash + state.quantity * bar.mark_open
        gapped = _margin_gone(marked, state.quantity, bar.mark_open, rules)

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
    size = wanted.abs()
    sent = ~closed & (size * price >= steps.min_notional)
    order, size = torch.where(sent, wanted, 0.0), torch.where(sent, size, 0.0)
    none = order == 0.0

    fee = state.fee * size * price
    cash = cash - order * price - fee
    quantity = torch.where(none, state.quantity, _on_grid(state.quantity + order, steps.lot))
    entry = fills.entry_price(state.quantity, state.entry_price, order, price)
    after = cash + quantity * bar.open
    turnover = torch.where(none, 0.0, size * bar.open / equity)

    weight_after = torch.where(gapped, 0.0, quantity * bar.open / after)
    slippage = size * (price - bar.open).abs()

    long = quantity > 0.0
    worst = torch.where(long, bar.low, bar.high)
    gone = gapped | _margin_gone(cash + quantity * worst, quantity, worst, rules)
    opened = bar.open if bar.mark_open is None else _worse(long, bar.open, bar.mark_open)
    exit_price = torch.where(gapped, opened, _exit_price(cash, quantity, long, opened, rules))
    exit_fee = (state.fee + rules.liquidation_fee) * quantity.abs() * exit_price
    closes, delisted = gone, bar.delisted
    if delisted is not None:
        settled = delisted & ~gapped
        # the last traded price is the close before, at which the account was marked
        settlement = fills.delisting_price(
            state.price, quantity, bar.notional, terms, loss=rules.delisting_loss
        )
        gone, closes = gone & ~settled, gone | settled
        exit_price = torch.where(settled, settlement, exit_price)
        exit_fee = torch.where(settled, 0.0, exit_fee)
        lost = quantity.abs() * (settlement - state.price).abs()
        slippage = torch.where(settled, lost, slippage)
        weight_after = torch.where(settled, 0.0, weight_after)
    cash = torch.where(closes, cash + quantity * exit_price - exit_fee, cash)
    left = torch.where(closes, 0.0, quantity)
    return Fill(
        cash=cash,
        quantity=left,
        entry_price=torch.where(closes, 0.0, entry),
        equity=cash + left * bar.close,
        day_start_equity=day_start,
        day_turnover=day_turnover + turnover,
        reason=reason,
        order=order,
        price=torch.where(none, torch.nan, price),
        fee=fee + torch.where(gone, exit_fee, 0.0),
        slippage=slippage,
        funding=funding,
        turnover=turnover,
        weight_after=weight_after,
        liquidated=gone,
        blocked=closed & (wanted != 0.0),
        delisted=torch.zeros_like(gone) if delisted is None else delisted,
    )


def _margin_gone(equity: Tensor, quantity: Tensor, price: Tensor, rules: Rules) -> Tensor:
    return (quantity != 0.0) & (equity <= rules.maintenance * quantity.abs() * price)


def _exit_price(
    cash: Tensor, quantity: Tensor, long: Tensor, open_: Tensor, rules: Rules
) -> Tensor:
    """Return where margin runs out inside the bar, on the losing side of its open."""
    price = fills.liquidation_price(cash, quantity, maintenance=rules.maintenance)
    return torch.where(quantity == 0.0, open_, _worse(long, price, open_))


def _worse(long: Tensor, price: Tensor, other: Tensor) -> Tensor:
    """Return the price at which closing a long or a short position brings less."""
    return torch.where(long, torch.minimum(price, other), torch.maximum(price, other))


def _on_grid(quantity: Tensor, lot: Tensor) -> Tensor:
    """Return the position without the dust of adding two multiples of a lot."""
    size = torch.where(lot > 0.0, lot, 1.0)
    return torch.where(lot > 0.0, (quantity / size).round() * size, quantity)
