"""What one bar does to an account, from the decision at a close to the mark at the next.

The order of events is the whole point of this file: new day, risk gate, funding, margin at the
open, delisting, order, fill, margin inside the bar, mark. `docs/life_of_a_bar.md` describes it in
words, and `evaluation.crosscheck.reference` is an independent second implementation, in decimals.
"""

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import NamedTuple

import torch
from torch import Tensor

from stormsail.functional.market import fills
from stormsail.functional.risk_gate import Account, Limits, Reason, risk_gate
from stormsail.market.instruments import Tier
from stormsail.market.interval import Interval
from stormsail.market.simulator.account import Fill, State, held_weight
from stormsail.market.simulator.config import Filters, MarketConfig
from stormsail.market.simulator.tape import Bar

_YEAR_MS = 365 * 24 * 3_600_000
"""The year of a borrow rate."""


class Rules(NamedTuple):
    """Numbers that hold for all accounts of a batch."""

    limits: Limits
    liquidation_fee: float
    min_rebalance: float
    delisting_loss: float
    maintenance: float | None
    """Maintenance margin of all symbols; None where it differs, or has tiers."""
    borrows: bool
    """Whether some symbol can be borrowed, at a rate."""

    @classmethod
    def of(cls, config: MarketConfig, symbols: Sequence[str]) -> "Rules":
        """Return those of a market with these symbols."""
        margins = {config.maintenance_of(symbol) for symbol in symbols}
        plain = len(margins) == 1 and len(next(iter(margins))) == 1
        return cls(
            config.limits.gate(),
            config.margin.liquidation_fee,
            config.min_rebalance,
            delisting_loss=config.delisting.loss,
            maintenance=next(iter(margins))[0].rate if plain else None,
            borrows=any(max(config.borrow_of(symbol)) > 0.0 for symbol in symbols),
        )


class SymbolRules(NamedTuple):
    """What holds for the symbol that each account trades: order steps, margin, interest."""

    lot: Tensor
    """See `Filters`."""
    tick: Tensor
    min_notional: Tensor
    tiers: tuple[tuple[Tensor, Tensor], ...] = ()
    """Rate and amount of each tier of the maintenance margin, see `fills.maintenance_margin`;
    empty where `Rules.maintenance` is that of all."""
    interest: tuple[Tensor, ...] = ()
    """Of one bar, on borrowed base and quote currency; empty where nothing is borrowed."""

    @classmethod
    def of(
        cls, config: MarketConfig, symbols: Sequence[str], interval: Interval, *, like: Tensor
    ) -> "SymbolRules":
        """Return those of each symbol, [S], with type and device of a tensor."""
        rules = Rules.of(config, symbols)
        columns = list(zip(*(_filters(config.filters_of(name)) for name in symbols), strict=True))
        lot, tick, least = (like.new_tensor(column) for column in columns)
        tiers: list[tuple[Tensor, Tensor]] = []
        interest: tuple[Tensor, ...] = ()
        if rules.maintenance is None:
            margins = [_lines(config.maintenance_of(symbol)) for symbol in symbols]
            for tier in zip_longest(*margins, fillvalue=(0.0, 0.0)):  # never the largest line
                rates, amounts = zip(*tier, strict=True)
                tiers.append((like.new_tensor(rates), like.new_tensor(amounts)))
        if rules.borrows:
            bar = interval.milliseconds / _YEAR_MS
            yearly = zip(*(config.borrow_of(symbol) for symbol in symbols), strict=True)
            interest = tuple(like.new_tensor(rates) * bar for rates in yearly)
        return cls(lot, tick, least, tuple(tiers), interest)

    def each(self, change: Callable[[Tensor], Tensor]) -> "SymbolRules":
        """Return every tensor changed in the same way."""
        return SymbolRules(
            change(self.lot),
            change(self.tick),
            change(self.min_notional),
            tuple((change(rate), change(amount)) for rate, amount in self.tiers),
            tuple(change(rate) for rate in self.interest),
        )

    def select(self, index: Tensor | slice) -> "SymbolRules":
        """Return those at an index of the last dimension."""
        return self.each(lambda column: column[index])


def joined(parts: Sequence[SymbolRules]) -> SymbolRules:
    """Return the rules of several batches of accounts, one after the other; all of one `Rules`."""

    def cat(columns: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(columns))

    most_tiers = max(len(part.tiers) for part in parts)
    padded = [_padded(part, most_tiers) for part in parts]
    return SymbolRules(
        cat([part.lot for part in parts]),
        cat([part.tick for part in parts]),
        cat([part.min_notional for part in parts]),
        tuple(
            (cat([rate for rate, _ in tier]), cat([amount for _, amount in tier]))
            for tier in zip(*padded, strict=True)
        ),
        tuple(cat(rates) for rates in zip(*(part.interest for part in parts), strict=True)),
    )


def _padded(part: SymbolRules, count: int) -> list[tuple[Tensor, Tensor]]:
    """Return the tiers, and more of them that are never the largest line."""
    nothing = torch.zeros_like(part.lot)
    return [*part.tiers, *[(nothing, nothing)] * (count - len(part.tiers))]


def _filters(steps: Filters) -> tuple[float, float, float]:
    return steps.lot, steps.tick, steps.min_notional


def _lines(tiers: Sequence[Tier]) -> list[tuple[float, float]]:
    """Return rate and amount of each tier, by which its line meets the one before."""
    lines, rate, amount = [], 0.0, 0.0
    for tier in tiers:
        amount += (tier.rate - rate) * tier.notional
        rate = tier.rate
        lines.append((rate, amount))
    return lines


def trade(state: State, requested: Tensor, bar: Bar, steps: SymbolRules, rules: Rules) -> Fill:
    """Return what a bar does to each account that requests a target weight.

    Args:
        state: accounts at the close of the bar before.
        requested: target weights, [B]; one that is not finite holds the position.
        bar: in which the orders fill.
        steps: of each account's symbol: order steps, tiers of the margin, interest.
        rules: risk limits, margin, least change of weight.
    """
    day_start = torch.where(bar.new_day, state.equity, state.day_start_equity)
    day_turnover = torch.where(bar.new_day, 0.0, state.turnover)
    held = held_weight(state)
    account = Account(held, state.equity, state.peak_equity, day_start, day_turnover)
    allowed, reason = risk_gate(requested, account, rules.limits)

    funding = state.quantity * bar.open * bar.rate
    if steps.interest:
        funding = funding + fills.borrow_interest(
            state.cash, state.quantity, bar.open, *steps.interest
        )
    cash = state.cash - funding
    equity = cash + state.quantity * bar.open
    gapped = _margin_gone(equity, state.quantity, bar.open, steps, rules)
    if bar.mark_open is not None:
        marked = cash + state.quantity * bar.mark_open
        gapped = _margin_gone(marked, state.quantity, bar.mark_open, steps, rules)

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
    gone = gapped | _margin_gone(cash + quantity * worst, quantity, worst, steps, rules)
    opened = bar.open if bar.mark_open is None else _worse(long, bar.open, bar.mark_open)
    lost = _exit_price(cash, quantity, long, opened, steps, rules)
    exit_price = torch.where(gapped, opened, lost)
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
        forgone = quantity.abs() * (settlement - state.price).abs()
        slippage = torch.where(settled, forgone, slippage)
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


def _margin_gone(
    equity: Tensor, quantity: Tensor, price: Tensor, steps: SymbolRules, rules: Rules
) -> Tensor:
    if rules.maintenance is not None:
        margin = rules.maintenance * quantity.abs() * price
    else:
        margin = fills.maintenance_margin(quantity.abs() * price, steps.tiers)
    return (quantity != 0.0) & (equity <= margin)


def _exit_price(
    cash: Tensor,
    quantity: Tensor,
    long: Tensor,
    open_: Tensor,
    steps: SymbolRules,
    rules: Rules,
) -> Tensor:
    """Return where margin runs out inside the bar, on the losing side of its open."""
    if rules.maintenance is not None:
        price = fills.liquidation_price(cash, quantity, maintenance=rules.maintenance)
    else:
        price = fills.tiered_liquidation_price(cash, quantity, steps.tiers)
    return torch.where(quantity == 0.0, open_, _worse(long, price, open_))


def _worse(long: Tensor, price: Tensor, other: Tensor) -> Tensor:
    """Return the price at which closing a long or a short position brings less."""
    return torch.where(long, torch.minimum(price, other), torch.maximum(price, other))


def _on_grid(quantity: Tensor, lot: Tensor) -> Tensor:
    """Return the position without the dust of adding two multiples of a lot."""
    size = torch.where(lot > 0.0, lot, 1.0)
    return torch.where(lot > 0.0, (quantity / size).round() * size, quantity)
