r"""Gross-to-net attribution: what positions made, and what each kind of cost took of it, by leg.

For each bar and account, with the position q before it, the order u that filled at its open o, the
close p before and the equity E (cash moved between accounts left out):

$$\underbrace{q\,(o - p) + (q + u)\,(c - o)}_{\text{gross}} =
\Delta E + \text{fees} + \text{spread} + \text{impact} + \text{tick} + \text{funding} +
\text{borrow} + \text{liquidation} + \text{delisting}$$

where c is the close, or the price at which a liquidation took the position. Costs are positive
where they are paid. Nothing is left over: every amount is booked by the ledger, and only the split
of slippage into spread, impact and tick, and of funding into funding and interest, is computed
here, from the formulas of `functional.market.fills`.

**Legs.** What a position earns, and its funding, belong to its side. A fill that reduces or turns a
position is split by quantity: what closes it belongs to the old side, the rest to the new one.
Interest of an account that is flat and in debt counts as long. Ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.engine.result import (
    Array,
    Backtest,
    fill_fees,
    positions_before,
    taken_away,
)
from stormsail.functional.market import fills
from stormsail.market.panel import Panel
from stormsail.market.simulator.tape import Tape
from stormsail.market.simulator.trade import SymbolRules

LEGS = ("long", "short")
COSTS = (
    "fees",
    "spread",
    "impact",
    "tick",
    "funding",
    "borrow",
    "liquidation",
    "delisting",
    "written_off",
)
"""What stands between gross and net. `tick` is what moving a price to the next tick costs;
`liquidation` the fees of liquidations; `written_off` is 0 or negative: the debt of a ruined share
of a validation, which the pooled account does not carry."""
ITEMS = ("gross", *COSTS)


@dataclass(frozen=True, eq=False)
class Attribution:
    """Gross result and costs, bar by bar, of the long and the short leg."""

    amounts: Array
    """Money, [N, 2, 10]: bar, leg of `LEGS`, item of `ITEMS`."""
    exposure: Array
    """Notional held at the end of each bar over all equity, by leg, unsigned, [N, 2]."""

    @property
    def net(self) -> Array:
        """What each leg made after all costs, [N, 2]."""
        return np.asarray(self.amounts[:, :, 0] - self.amounts[:, :, 1:].sum(2))

    def totals(self) -> dict[str, dict[str, float]]:
        """Return the sums over all bars, with `net`: by leg, and under `both` for the two."""
        sums = self.amounts.sum(0)
        rows = {**dict(zip(LEGS, sums, strict=True)), "both": sums.sum(0)}
        return {
            leg: {
                **dict(zip(ITEMS, map(float, row), strict=True)),
                "net": float(row[0] - row[1:].sum()),
            }
            for leg, row in rows.items()
        }

    def exposures(self) -> dict[str, float]:
        """Return mean gross, net, long and short exposure, the largest gross one, and its time."""
        if not len(self.exposure):
            return dict.fromkeys(("gross", "net", "long", "short", "largest", "time"), 0.0)
        both = self.exposure.sum(1)
        long, short = (float(column.mean()) for column in self.exposure.T)
        return {
            "gross": float(both.mean()),
            "net": long - short,
            "long": long,
            "short": short,
            "largest": float(both.max()),
            "time": float(np.mean(both > 0.0)),
        }

    def document(self) -> dict[str, JsonValue]:
        """Return costs and exposure as JSON, in the order in which they are read."""
        rows: list[JsonValue] = [
            {"item": item, "long": long, "short": short, "both": both}
            for item, long, short, both in cost_rows(self.totals())
        ]
        shares: list[JsonValue] = [
            {"exposure": name, "value": value} for name, value in self.exposures().items()
        ]
        return {"costs": rows, "exposure": shares}


def attribution_of(result: Backtest, panel: Panel) -> Attribution:
    """Return what every bar of a backtest made and cost, by leg.

    Args:
        result: of a backtest or replay.
        panel: bars that it traded.
    """
    market, bars = _Market.of(result, panel), result.bars
    before = positions_before(bars["quantity"])
    order = bars["traded"]
    legs = _Legs(before, order)
    costs = _costs(result, market, before)
    paid = bars["fee_total"] + bars["slippage"] + bars["funding"]
    gross = np.diff(result.sleeves, axis=0) - bars["transfer"] + paid
    overnight = before * (market.open - market.before)
    amounts = np.zeros((len(order), len(LEGS), len(ITEMS)))
    amounts[:, :, 0] = legs.held(overnight) + legs.kept(gross - overnight)
    for place, name in enumerate(COSTS, start=1):
        if name in _OF_FILL:
            amounts[:, :, place] = legs.filled(costs[name])
        elif name in _OF_HOLDING:
            amounts[:, :, place] = legs.held(costs[name])
        elif name in costs:
            amounts[:, :, place] = legs.kept(costs[name])
    return Attribution(amounts, _exposure(result))


_OF_FILL = ("fees", "spread", "impact", "tick")
_OF_HOLDING = ("funding", "borrow")


@dataclass(frozen=True, eq=False)
class _Market:
    """Prices and notional of the bars in which the orders of a backtest filled, [N, S] each."""

    open: Array
    before: Array
    """Close of the bar before."""
    notional: Array
    """Mean notional of the bars before, by which impact is measured."""

    @classmethod
    def of(cls, result: Backtest, panel: Panel) -> "_Market":
        exact = panel.to(dtype=torch.float64)
        tape = Tape.of(exact, result.market, device=torch.device("cpu"), dtype=torch.float64)
        # an order that is decided on a close fills in the bar that opens there
        first = int(np.searchsorted(panel.ts.cpu().numpy(), int(result.ts[0])))
        rows = torch.arange(first, first + len(result.ts) - 1)[:, None]
        symbols = torch.arange(len(panel.symbols))[None]
        bar = tape.bar(rows, symbols)
        return cls(bar.open.numpy(), tape.close(rows - 1, symbols).numpy(), bar.notional.numpy())


@dataclass(frozen=True, eq=False)
class _Legs:
    """Which side of the market each bar's amounts belong to."""

    before: Array
    order: Array

    def held(self, amount: Array) -> Array:
        """Return amounts of the position before the fill by leg, [N, 2]."""
        return _split(amount, self.before < 0.0)

    def kept(self, amount: Array) -> Array:
        """Return amounts of the position after the fill by leg, [N, 2]."""
        after = self.before + self.order
        return _split(amount, np.where(after != 0.0, after < 0.0, self.before < 0.0))

    def filled(self, amount: Array) -> Array:
        """Return amounts of the fill by leg, [N, 2]: what closes a position is its own side's."""
        size = np.abs(self.order)
        reduces = self.before * self.order < 0.0
        closing = np.where(reduces, np.minimum(np.abs(self.before), size), 0.0)
        share = np.divide(closing, size, out=np.zeros_like(size), where=size > 0.0)
        opened = _split(amount * (1.0 - share), self.order < 0.0)
        return opened + self.held(amount * share)


def _split(amount: Array, short: NDArray[np.bool_]) -> Array:
    """Return the sums over symbols of what is long and what is short, [N, 2]."""
    return np.stack((np.where(short, 0.0, amount).sum(1), np.where(short, amount, 0.0).sum(1)), 1)


def _costs(result: Backtest, market: _Market, before: Array) -> dict[str, Array]:
    """Return every cost of every bar and account, [N, S] each."""
    bars, flags, rules = result.bars, result.flags, result.market
    own = fill_fees(result.symbols, rules, bars, flags)
    delisting = np.where(taken_away(bars, flags) & ~flags["liquidated"], bars["slippage"], 0.0)
    slippage = bars["slippage"] - delisting
    size = np.abs(bars["traded"])
    pushes = rules.costs.impact > 0.0
    ticks = np.array([rules.filters_of(symbol).tick for symbol in result.symbols]) > 0.0
    # what only one of them can have cost is its own to the last bit, rounding included
    half = np.minimum(size * market.open * rules.costs.half_spread, slippage)
    spread = np.where(ticks | pushes, half, slippage)
    rest = slippage - spread
    impact = np.where(ticks, np.minimum(_impact(result, market), rest), rest) * pushes
    borrow = _borrow(result, market, before)
    return {
        "fees": own,
        "spread": spread,
        "impact": impact,
        "tick": rest - impact,
        "funding": bars["funding"] - borrow,
        "borrow": borrow,
        "liquidation": bars["fee_total"] - own,
        "delisting": delisting,
    }


def _impact(result: Backtest, market: _Market) -> Array:
    """Return what fills pay for impact alone, [N, S]: by the fill price without spread and tick."""
    order, price = torch.from_numpy(result.bars["traded"]), torch.from_numpy(market.open)
    nothing = torch.zeros_like(order)
    strength = torch.full_like(order, result.market.costs.impact)
    terms = fills.Terms(nothing, nothing, strength, nothing, nothing)
    paid = fills.fill_price(price, order, torch.from_numpy(market.notional), terms)
    return np.asarray((order.abs() * (paid - price).abs()).numpy())


def _borrow(result: Backtest, market: _Market, before: Array) -> Array:
    """Return the interest of each bar, [N, S]; 0 where nothing can be borrowed."""
    like = torch.from_numpy(before)
    rules = SymbolRules.of(result.market, result.symbols, result.interval, like=like)
    if not rules.interest:
        return np.zeros_like(before)
    cash = np.full_like(before, result.market.initial_equity)
    cash[1:] = result.bars["cash"][:-1]
    owed = torch.from_numpy(cash + result.bars["transfer"])
    rates = [rate.expand(like.shape) for rate in rules.interest]
    price = torch.from_numpy(market.open)
    return np.asarray(fills.borrow_interest(owed, like, price, *rates).numpy())


def _exposure(result: Backtest) -> Array:
    """Return the notional of each leg at the end of each bar over all equity, [N, 2]."""
    held = result.bars["weight"] * result.bars["equity"]
    alive = result.equity[1:] > 0.0
    whole = np.where(alive, result.equity[1:], 1.0)
    return np.asarray(_split(np.abs(held), held < 0.0) / whole[:, None] * alive[:, None])


def joined(parts: Sequence[Attribution]) -> Attribution:
    """Return the attributions of spans that follow each other as one."""
    return Attribution(
        np.concatenate([part.amounts for part in parts]),
        np.concatenate([part.exposure for part in parts]),
    )


def cost_rows(totals: Mapping[str, Mapping[str, float]]) -> list[tuple[str, float, float, float]]:
    """Return gross, the costs that occurred, and net: name, long, short, both."""
    names = ["gross", *(name for name in COSTS if any(totals[leg][name] for leg in LEGS)), "net"]
    return [
        (name, totals["long"][name], totals["short"][name], totals["both"][name]) for name in names
    ]
