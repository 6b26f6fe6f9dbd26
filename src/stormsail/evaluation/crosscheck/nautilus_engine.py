"""NautilusTrader's side of the third ledger; the only file that imports the package.

Nautilus fills a market order that is sent at a bar's close at that very close. So bars only mark
the account here (`bar_execution=False`), and one quote at each open, a nanosecond after the bar
before it closed, is what orders meet: the strategy remembers its decision at the close, sizes and
sends the order when the quote arrives, and the exchange fills it at that quote.
"""

from decimal import Decimal

import nautilus_trader
from nautilus_trader.backtest.config import BacktestEngineConfig, SimulationModuleConfig
from nautilus_trader.backtest.engine import BacktestEngine
from nautilus_trader.backtest.modules import SimulationModule
from nautilus_trader.cache.base import CacheFacade
from nautilus_trader.common.config import LoggingConfig
from nautilus_trader.model.currencies import BTC, USDT
from nautilus_trader.model.data import Bar, BarType, QuoteTick
from nautilus_trader.model.enums import AccountType, OmsType, OrderSide
from nautilus_trader.model.events import OrderFilled
from nautilus_trader.model.identifiers import InstrumentId, Symbol, Venue
from nautilus_trader.model.instruments import CryptoPerpetual
from nautilus_trader.model.objects import Money, Price, Quantity
from nautilus_trader.model.position import Position
from nautilus_trader.trading.config import StrategyConfig
from nautilus_trader.trading.strategy import Strategy

from stormsail.evaluation.crosscheck.nautilus_plan import (
    DEPTH,
    MONEY_DECIMALS,
    Fill,
    Journal,
    Plan,
    decimals,
)

VERSION: str = nautilus_trader.__version__

_VENUE = Venue("SIM")
_ID = InstrumentId(Symbol("PERP"), _VENUE)
# Only a label: bars that come from outside carry their own times.
_BAR_TYPE = BarType.from_str(f"{_ID}-1-MINUTE-LAST-EXTERNAL")
_NS_PER_MS = 1_000_000


def execute(journal: Journal) -> None:
    """Run a plan from its first bar to its last; the journal holds what happened.

    Logging is bypassed: Nautilus's logger is one for the whole process and starts a thread.
    """
    engine = BacktestEngine(
        BacktestEngineConfig(logging=LoggingConfig(bypass_logging=True), run_analysis=False)
    )
    try:
        plan = journal.plan
        instrument = _instrument(plan)
        engine.add_venue(
            venue=_VENUE,
            oms_type=OmsType.NETTING,
            account_type=AccountType.MARGIN,
            starting_balances=[_money(plan.initial)],
            default_leverage=Decimal(1),  # only scales margins, and the instrument asks for none
            modules=[_FundingModule(journal)],
            bar_execution=False,
        )
        engine.add_instrument(instrument)
        engine.add_data(_data(plan, instrument))
        engine.add_strategy(_WeightStrategy(journal, instrument))
        engine.run()
    finally:
        engine.dispose()


class _WeightStrategy(Strategy):  # type: ignore[misc]
    """Trades to the weights of a plan, from the account that Nautilus keeps."""

    def __init__(self, journal: Journal, instrument: CryptoPerpetual) -> None:
        super().__init__(StrategyConfig())
        self._journal = journal
        self._instrument = instrument

    def on_start(self) -> None:
        """Subscribe to quotes and bars."""
        self.subscribe_quote_ticks(_ID)
        self.subscribe_bars(_BAR_TYPE)

    def on_quote_tick(self, tick: QuoteTick) -> None:  # noqa: ARG002 - Nautilus's signature
        """At the open: size the order by the equity there, and send it."""
        price = self._journal.plan.rows[self._journal.next].open
        held, equity, _ = self._account(self._price(price))
        quantity = self._journal.open(held, equity)
        if quantity != 0:
            side = OrderSide.BUY if quantity > 0 else OrderSide.SELL
            size = _quantity(abs(quantity), self._instrument.size_precision)
            self.submit_order(self.order_factory.market(_ID, side, size))

    def on_bar(self, bar: Bar) -> None:
        """At the close: mark the account and decide."""
        self._journal.close(*self._account(bar.close))

    def on_order_filled(self, event: OrderFilled) -> None:
        """Note a fill."""
        size = event.last_qty.as_decimal()
        self._journal.fills.append(
            Fill(
                row=self._journal.next,
                quantity=size if event.order_side == OrderSide.BUY else -size,
                price=event.last_px.as_decimal(),
                commission=event.commission.as_decimal(),
            )
        )

    def _account(self, price: Price) -> tuple[Decimal, Decimal, Decimal]:
        """Return position, equity at a price and balance, all as Nautilus computes them."""
        balance = self.portfolio.account(_VENUE).balance_total(USDT).as_decimal()
        position = _open_position(self.cache)
        if position is None:
            return Decimal(0), balance, balance
        return _signed(position), balance + position.unrealized_pnl(price).as_decimal(), balance

    def _price(self, price: Decimal) -> Price:
        return _price(price, self._instrument.price_precision)


class _FundingModule(SimulationModule):  # type: ignore[misc]
    """Settles funding at each open, before the order that the same quote will fill."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(SimulationModuleConfig())
        self._journal = journal

    def pre_process(self, data: object) -> None:
        """Take what the position pays from the account, when an open is quoted."""
        if not isinstance(data, QuoteTick) or self._journal.halted:
            return
        position = _open_position(self.exchange.cache)
        paid = self._journal.settle(Decimal(0) if position is None else _signed(position))
        if paid != 0:
            self.exchange.adjust_account(_money(-paid))

    def process(self, ts_now: int) -> None:
        """Nothing happens between quotes."""

    def log_diagnostics(self, logger: object) -> None:
        """There is nothing to log."""

    def reset(self) -> None:
        """There is nothing to reset: an engine runs once."""


def _instrument(plan: Plan) -> CryptoPerpetual:
    # The currencies are labels with 8 decimals: the rules know a base and a quote, not their names.
    size_decimals = decimals(plan.lot)
    return CryptoPerpetual(
        instrument_id=_ID,
        raw_symbol=_ID.symbol,
        base_currency=BTC,
        quote_currency=USDT,
        settlement_currency=USDT,
        is_inverse=False,
        price_precision=plan.price_decimals,
        size_precision=size_decimals,
        price_increment=_price(plan.tick, plan.price_decimals),
        size_increment=_quantity(plan.lot, size_decimals),
        taker_fee=plan.fee,
        ts_event=0,
        ts_init=0,
    )


def _data(plan: Plan, instrument: CryptoPerpetual) -> list[Bar | QuoteTick]:
    """Return a bar at each close and, from the second row on, a quote just after each open."""
    depth = _quantity(DEPTH, instrument.size_precision)
    data: list[Bar | QuoteTick] = []
    for n, row in enumerate(plan.rows):
        if n > 0:
            at = row.ts_ms * _NS_PER_MS + 1
            bid, ask = (_price(quote, plan.price_decimals) for quote in (row.bid, row.ask))
            data.append(QuoteTick(_ID, bid, ask, depth, depth, at, at))
        at = (row.ts_ms + plan.interval_ms) * _NS_PER_MS
        prices = (_price(price, plan.price_decimals) for price in row.prices)
        data.append(Bar(_BAR_TYPE, *prices, depth, at, at))
    return data


def _open_position(cache: CacheFacade) -> Position | None:
    positions = cache.positions_open(instrument_id=_ID)
    return positions[0] if positions else None


def _signed(position: Position) -> Decimal:
    size: Decimal = position.quantity.as_decimal()
    return size if position.is_long else -size


def _price(number: Decimal, precision: int) -> Price:
    return Price.from_str(f"{number:.{precision}f}")


def _quantity(number: Decimal, precision: int) -> Quantity:
    return Quantity.from_str(f"{number:.{precision}f}")


def _money(number: Decimal) -> Money:
    return Money.from_str(f"{number:.{MONEY_DECIMALS}f} USDT")
