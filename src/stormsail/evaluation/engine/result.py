"""The result of a backtest: equity, trades, every bar of every account, a hash of the orders."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stormsail.core.clock import iso
from stormsail.core.files.documents import JsonValue
from stormsail.core.notebook import html_table, several, short_repr
from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.evaluation.stats.figures import returns_of
from stormsail.evaluation.stats.frames import Frames
from stormsail.evaluation.stats.metrics import Flows, Metrics, measure
from stormsail.functional.risk_gate import Reason
from stormsail.market.interval import Interval
from stormsail.market.simulator.config import MarketConfig
from stormsail.market.splits import Span

Array = NDArray[np.float64]

ORDERS = "stormsail-orders-1"
"""First line of the text that `order_hash` hashes."""

MONEY = (
    "equity",
    "cash",
    "quantity",
    "weight",
    "price",
    "traded",
    "fee_total",
    "slippage",
    "funding",
    "turnover",
)
"""Columns of `Backtest.bars` that are numbers of the simulator's `Info`, under its names."""

_DUST = 1e-9
"""Share of a fill below which what is left of a position is rounding."""

FLAGS = ("liquidated", "blocked", "delisted")
ENGINE_COLUMNS = ("requested", "decided", "transfer")
"""Columns of `Backtest.bars` that the simulator does not have."""


class Trade(NamedTuple):
    """One fill, or what took a position away: a liquidation or a delisting."""

    ts_ms: int
    """Open of the bar in which it happened, UTC."""
    symbol: str
    side: str
    """`buy` or `sell`."""
    quantity: float
    """Base currency, greater than 0."""
    price: float
    fee: float
    slippage: float
    """Quote currency lost to spread, impact and tick, or to a delisting."""
    reason: str
    """`decision`, `stop`, `liquidation`, `delisting`, or the limit of the risk gate that changed
    the weight; `limit` where a position that was only held had grown past one."""

    def line(self) -> str:
        """Return the order as text that is the same everywhere: shortest exact decimals."""
        return f"{self.ts_ms} {self.symbol} {self.side} {self.quantity!r} {self.price!r}"


@dataclass(frozen=True, eq=False)  # arrays do not compare to one truth value
class Backtest:
    """One run over a span: S accounts, N decisions, N + 1 marks."""

    symbols: tuple[str, ...]
    interval: Interval
    market: MarketConfig
    """Rules by which the accounts were kept, as the simulator took them."""
    config: BacktestConfig
    ts: NDArray[np.int64]
    """Close times of the marks in UTC milliseconds, [N + 1]; the first decision falls on the first.
    """
    equity: Array
    """Of all accounts together, [N + 1]."""
    sleeves: Array
    """Of each account, [N + 1, S]."""
    trades: tuple[Trade, ...]
    """In order of time, then of symbols; within a bar a liquidation after the fill."""
    bars: Mapping[str, Array]
    """Columns [N, S]; row i is the bar that follows decision i. `requested`: weight that reached
    the risk gate, NaN to hold; `decided`: weight that was decided at that close; `transfer`: cash
    that came from the other accounts before the bar; and `MONEY`."""
    flags: Mapping[str, NDArray[np.bool_]]
    """Columns [N, S]: `liquidated`, `blocked`, `delisted`, `stopped`."""
    reasons: NDArray[np.int64]
    """`Reason` of the risk gate, [N, S]; NONFINITE where the position was held."""
    value: Array | None = None
    """Expected return by the critic at each decision, [N, S]."""
    distribution: Array | None = None
    """Its return distribution at each decision, [N, S, W], in reward units."""
    distribution_kind: str = ""
    """`quantile`, `categorical` or `scalar`."""
    distribution_support: Array | None = None
    """Levels of the quantiles or values of the atoms, [W]."""
    notes: Mapping[str, JsonValue] = field(default_factory=dict)
    """Hashes of data, configuration and agent, overlaps with the agent's training, and what is
    assumed of funding and margin."""

    def _shown(self) -> dict[str, object]:
        return {
            "symbols": several(self.symbols),
            "interval": self.interval,
            "bars": len(self.returns),
            "first": iso(int(self.ts[0])),
            "last": iso(int(self.ts[-1])),
            **self.metrics.shown(),
            "trades": len(self.trades),
        }

    def __repr__(self) -> str:
        return short_repr("Backtest", self._shown())

    def _repr_html_(self) -> str:
        return html_table("Backtest", self._shown())

    @property
    def span(self) -> Span:
        """The bars of the run, by their open times."""
        length = self.interval.milliseconds
        return Span(int(self.ts[0]) - length, int(self.ts[-1]))

    @property
    def delisted_symbols(self) -> tuple[str, ...]:
        """Symbols that were delisted within the span."""
        return self._where(self.flags["delisted"])

    @property
    def stopped_symbols(self) -> tuple[str, ...]:
        """Symbols whose account a stop of the market's `stops` ended."""
        delisted = np.maximum.accumulate(self.flags["delisted"])
        return self._where(self.flags["stopped"] & ~delisted)

    def _where(self, flag: NDArray[np.bool_]) -> tuple[str, ...]:
        """Return the symbols that ever have a flag of [N, S]."""
        return tuple(name for place, name in enumerate(self.symbols) if flag[:, place].any())

    @property
    def weights(self) -> Array:
        """Weights that reached the risk gate, [N, S]; replaying them repeats the run."""
        return self.bars["requested"]

    @property
    def order_hash(self) -> str:
        """SHA-256 of the order list: equal lists, equal hash, on every machine.

        The text is the line `stormsail-orders-1` and one line for each trade in order,
        `<ms> <symbol> <side> <quantity> <price>`, numbers as the shortest decimals that give the
        float64 back, each line ended by a line feed, in UTF-8.
        """
        text = "".join(f"{line}\n" for line in (ORDERS, *(trade.line() for trade in self.trades)))
        return hashlib.sha256(text.encode("utf-8")).hexdigest()

    @property
    def returns(self) -> Array:
        """Simple return of all accounts together, bar by bar, [N]."""
        return returns_of(self.equity)

    @property
    def frames(self) -> Frames:
        """The result as pandas frames and CSV files."""
        return Frames(self.ts, self.equity, self.interval.milliseconds, trades_table(self.trades))

    @property
    def total_return(self) -> float:
        """Equity at the end over equity at the start, less 1."""
        return float(self.equity[-1] / self.equity[0] - 1.0)

    @property
    def turnover(self) -> Array:
        """Traded notional of each bar over the equity of all before it, [N]; 0 after ruin."""
        traded = np.abs(self.bars["traded"]) * np.nan_to_num(self.bars["price"])
        return _share(traded.sum(1), self.equity[:-1])

    @property
    def exposure(self) -> Array:
        """Notional held at the end of each bar over the equity of all, unsigned, [N]."""
        held = np.abs(self.bars["weight"] * self.bars["equity"]).sum(1)
        return _share(held, self.equity[1:])

    @property
    def round_trips(self) -> Array:
        """Profit of each position from its opening to its end, after all costs.

        In quote currency. A position ends when the account is flat or turns; a fill that turns it
        is split at zero, its fee by quantity. In order of their ends, symbol by symbol; open ones
        are left out.
        """
        ended = [trip for column in range(len(self.symbols)) for trip in self._trips(column)]
        return np.array(ended, dtype=np.float64)

    def _trips(self, column: int) -> Iterator[float]:
        fills = iter([trade for trade in self.trades if trade.symbol == self.symbols[column]])
        filled = self.bars["traded"][:, column] != 0.0
        count = filled.astype(np.int64) + taken_away(self.bars, self.flags)[:, column]
        cash, held = 0.0, 0.0
        for row, number in enumerate(count.tolist()):
            cash -= float(self.bars["funding"][row, column])
            for _ in range(number):
                fill = next(fills)
                size = fill.quantity if fill.side == "buy" else -fill.quantity
                closing = -held if held * size < 0.0 and abs(size) > abs(held) else size
                share = closing / size
                cash -= closing * fill.price + share * fill.fee
                held += closing
                if abs(held) <= _DUST * fill.quantity:
                    yield cash
                    cash, held = 0.0, 0.0
                if share < 1.0:
                    rest = size - closing
                    cash, held = -(rest * fill.price + (1.0 - share) * fill.fee), rest

    @property
    def metrics(self) -> Metrics:
        """Every figure of the run; win rate and profit factor are those of round trips."""
        flows = Flows(
            turnover=self.turnover,
            exposure=self.exposure,
            fees=self.bars["fee_total"].sum(1),
            funding=self.bars["funding"].sum(1),
            slippage=self.bars["slippage"].sum(1),
        )
        return measure(
            self.equity,
            self.ts,
            bar_ms=self.interval.milliseconds,
            flows=flows,
            trade_pnl=self.round_trips,
        )


_OF_FILLS = ("traded", "price", "fee_total", "slippage")
_WORDS = {int(reason): reason.name.lower() for reason in Reason} | {
    int(Reason.NONE): "decision",
    int(Reason.NONFINITE): "limit",
}


@dataclass(frozen=True, eq=False)
class TradeLog:
    """The columns of a run, from which its trades follow."""

    symbols: tuple[str, ...]
    market: MarketConfig
    ts: NDArray[np.int64]
    bars: Mapping[str, Array]
    flags: Mapping[str, NDArray[np.bool_]]
    reasons: NDArray[np.int64]

    def trades(self) -> Iterator[Trade]:
        """Yield fills and what took positions away, in order."""
        filled = self.bars["traded"] != 0.0
        gone = taken_away(self.bars, self.flags)
        where = np.argwhere(filled | gone)
        picked = tuple(where.T)
        taken = [self.bars[name][picked].tolist() for name in _OF_FILLS]
        marks = [flag[picked].tolist() for flag in (filled, gone, self.flags["stopped"])]
        rows = zip(where.tolist(), *taken, *marks, self.reasons[picked].tolist(), strict=True)
        paid = fill_fees(self.symbols, self.market, self.bars, self.flags)
        for (row, column), traded, price, fee, slippage, fills, closed, stop, reason in rows:
            own = float(paid[row, column]) if closed else fee
            if fills:
                yield Trade(
                    ts_ms=int(self.ts[row]),
                    symbol=self.symbols[column],
                    side="buy" if traded > 0.0 else "sell",
                    quantity=abs(traded),
                    price=price,
                    fee=own,
                    slippage=slippage,
                    reason="stop" if stop else _WORDS[reason],
                )
            if closed:
                yield self._closing(row, column, own)

    def _number(self, name: str, row: int, column: int) -> float:
        return float(self.bars[name][row, column])

    def _closing(self, row: int, column: int, paid: float) -> Trade:
        """Return the trade that took a position away; its price follows from the cash it left.

        `paid` is the fee of the bar's fill. Cash after = cash before − funding − fill − its fee +
        q · price − fee of the liquidation. A delisting has no fee.
        """
        liquidated = bool(self.flags["liquidated"][row, column])
        traded = self._number("traded", row, column)
        cash, held = self.market.initial_equity, 0.0
        if row > 0:
            cash = self._number("cash", row - 1, column)
            held = self._number("quantity", row - 1, column)
        cash += self._number("transfer", row, column)
        fee = self._number("fee_total", row, column) - paid
        cash -= self._number("funding", row, column) + paid
        if traded != 0.0:
            cash -= traded * self._number("price", row, column)
        lot = self.market.filters_of(self.symbols[column]).lot
        quantity = held + traded
        if lot > 0.0:
            quantity = round(quantity / lot) * lot
        price = (self._number("cash", row, column) - cash + fee) / quantity
        return Trade(
            ts_ms=int(self.ts[row]),
            symbol=self.symbols[column],
            side="sell" if quantity > 0.0 else "buy",
            quantity=abs(quantity),
            price=price,
            fee=fee,
            slippage=0.0 if liquidated else self._number("slippage", row, column),
            reason="liquidation" if liquidated else "delisting",
        )


def fill_fees(
    symbols: Sequence[str],
    market: MarketConfig,
    bars: Mapping[str, Array],
    flags: Mapping[str, NDArray[np.bool_]],
) -> Array:
    """Return the fees of fills alone, [N, S]; a liquidation adds its own to the bar's."""
    rates = np.array([market.fee_of(symbol) for symbol in symbols])
    own = rates * np.abs(bars["traded"]) * np.nan_to_num(bars["price"])
    return np.asarray(np.where(flags["liquidated"], own, bars["fee_total"]))


def positions_before(quantity: Array) -> Array:
    """Return the position before each bar, [N, S], from that at its end; flat before the first."""
    held = np.zeros_like(quantity)
    held[1:] = quantity[:-1]
    return held


def trades_table(trades: Sequence[Trade]) -> pa.Table:
    """Return one row a trade."""
    kinds = [pa.int64(), pa.string(), pa.string(), *[pa.float64()] * 4, pa.string()]
    names = ("ts", *Trade._fields[1:])
    columns = list(zip(*trades, strict=True)) or [()] * len(names)
    return pa.table(
        {
            name: pa.array(column, kind)
            for name, column, kind in zip(names, columns, kinds, strict=True)
        }
    )


def taken_away(
    bars: Mapping[str, Array], flags: Mapping[str, NDArray[np.bool_]]
) -> NDArray[np.bool_]:
    """Return where a position was taken away by a liquidation or a delisting, [N, S]."""
    held = positions_before(bars["quantity"]) != 0.0
    return np.asarray(flags["liquidated"] | (flags["delisted"] & held))


def _share(part: Array, whole: Array) -> Array:
    """Return a ratio, 0 where nothing is left."""
    alive = whole > 0.0
    return np.asarray(np.where(alive, part / np.where(alive, whole, 1.0), 0.0))
