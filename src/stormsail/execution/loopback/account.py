"""The money of the loopback exchange's one customer: exact, and proven from its own history."""

from dataclasses import dataclass, field
from decimal import ROUND_DOWN, Decimal
from typing import Protocol

from stormsail.core.errors import InvariantError
from stormsail.execution.loopback.orders import ZERO, Fill, HeldOrder, Listing, RefusalError

_UNIT = Decimal("0.00000001")


def whole_units(value: Decimal) -> Decimal:
    """Return a value cut to the eight decimals in which Binance keeps its ledgers."""
    return value.quantize(_UNIT, rounding=ROUND_DOWN)


@dataclass(frozen=True)
class Payment:
    """Money that moved without a trade: a deposit, funding, what a liquidation cost."""

    payment_id: int
    kind: str
    asset: str
    amount: Decimal
    market_id: str
    ts_ms: int


class Account(Protocol):
    """What the matching of orders needs of an account."""

    def check(self, listing: Listing, order: HeldOrder, price: Decimal) -> None:
        """Refuse an order for which there is not enough money."""

    def reserve(self, listing: Listing, order: HeldOrder) -> None:
        """Set money aside for an order that rests."""

    def release(self, listing: Listing, order: HeldOrder) -> None:
        """Give back what an order that ended had set aside."""

    def fill(
        self,
        listing: Listing,
        order: HeldOrder,
        price: Decimal,
        quantity: Decimal,
        *,
        maker: bool,
    ) -> tuple[Decimal, str, Decimal]:
        """Book a fill; return its fee, the fee's currency and the realised profit."""


@dataclass
class SpotAccount:
    """Balances by currency. A fee is taken from what is received, or from a third currency."""

    balances: dict[str, Decimal] = field(default_factory=dict)
    locked: dict[str, Decimal] = field(default_factory=dict)
    fee_asset: str | None = None
    fee_rate: Decimal = Decimal("0.002")  # units of the third currency for one of quote

    def free(self, asset: str) -> Decimal:
        """Return what can be spent."""
        return self.balances.get(asset, ZERO) - self.locked.get(asset, ZERO)

    def check(self, listing: Listing, order: HeldOrder, price: Decimal) -> None:
        """Refuse an order that costs more than is free.

        Raises:
            RefusalError: -2010.
        """
        asset, amount = _needed(listing, order, price)
        if amount > self.free(asset):
            raise RefusalError(-2010, "Account has insufficient balance for requested action.")

    def reserve(self, listing: Listing, order: HeldOrder) -> None:
        """Lock what a resting order will spend."""
        asset, amount = _needed(listing, order, order.price or order.stop_price)
        self.locked[asset] = self.locked.get(asset, ZERO) + amount

    def release(self, listing: Listing, order: HeldOrder) -> None:
        """Unlock it; called before the order's executed quantity changes."""
        asset, amount = _needed(listing, order, order.price or order.stop_price)
        self.locked[asset] = self.locked.get(asset, ZERO) - amount

    def fill(
        self,
        listing: Listing,
        order: HeldOrder,
        price: Decimal,
        quantity: Decimal,
        *,
        maker: bool,
    ) -> tuple[Decimal, str, Decimal]:
        """Exchange base for quote."""
        worth = whole_units(quantity * price)
        rate = listing.maker_fee if maker else listing.taker_fee
        self._add(listing.base, order.sign * quantity)
        self._add(listing.quote, -order.sign * worth)
        if self.fee_asset is not None:
            fee, asset = whole_units(worth * rate * self.fee_rate), self.fee_asset
        elif order.sign > 0:
            fee, asset = whole_units(quantity * rate), listing.base
        else:
            fee, asset = whole_units(worth * rate), listing.quote
        self._add(asset, -fee)
        return fee, asset, ZERO

    def _add(self, asset: str, amount: Decimal) -> None:
        self.balances[asset] = self.balances.get(asset, ZERO) + amount

    def audit(
        self, deposits: dict[str, Decimal], fills: list[Fill], listings: dict[str, Listing]
    ) -> None:
        """Prove the balances from deposits and fills alone.

        Raises:
            InvariantError: if one unit is missing or too many.
        """
        expected = dict(deposits)
        for fill in fills:
            listing = listings[fill.market_id]
            moves = [
                (listing.base, fill.sign * fill.quantity),
                (listing.quote, -fill.sign * whole_units(fill.quantity * fill.price)),
                (fill.fee_asset, -fill.fee),
            ]
            for asset, amount in moves:
                expected[asset] = expected.get(asset, ZERO) + amount
        _check_equal(expected, self.balances)


def _needed(listing: Listing, order: HeldOrder, price: Decimal) -> tuple[str, Decimal]:
    rest = order.quantity - order.executed
    return (listing.quote, whole_units(rest * price)) if order.sign > 0 else (listing.base, rest)


@dataclass
class Holding:
    """A position in one perpetual, in one-way mode."""

    quantity: Decimal = ZERO
    entry: Decimal = ZERO
    leverage: int = 20
    isolated: bool = False


@dataclass
class FuturesAccount:
    """A wallet in the settlement currency and a position for each market.

    Attributes:
        hedged: set to hedge mode, in which an order must name its side: it is refused here.
    """

    asset: str = "USDT"
    wallet: Decimal = ZERO
    holdings: dict[str, Holding] = field(default_factory=dict)
    marks: dict[str, Decimal] = field(default_factory=dict)
    hedged: bool = False

    def holding(self, market_id: str) -> Holding:
        """Return the position of a market."""
        return self.holdings.setdefault(market_id, Holding())

    def unrealised(self) -> Decimal:
        """Return the profit of all positions at the mark prices."""
        return sum(
            (h.quantity * (self.marks.get(m, h.entry) - h.entry) for m, h in self.holdings.items()),
            ZERO,
        )

    def initial_margin(self) -> Decimal:
        """Return what the positions hold of the wallet."""
        return sum(
            (
                abs(h.quantity) * self.marks.get(m, h.entry) / h.leverage
                for m, h in self.holdings.items()
            ),
            ZERO,
        )

    def available(self) -> Decimal:
        """Return what new positions may use as margin."""
        return self.wallet + self.unrealised() - self.initial_margin()

    def check(self, listing: Listing, order: HeldOrder, price: Decimal) -> None:
        """Refuse an order without margin, or one that only may reduce and would not.

        Raises:
            RefusalError: -2019 or -2022.
        """
        held = self.holding(listing.market_id)
        adds = held.quantity * order.sign >= 0
        if order.reduce_only:
            if adds:
                raise RefusalError(-2022, "ReduceOnly Order is rejected.")
            return
        grows = order.quantity if adds else max(ZERO, order.quantity - abs(held.quantity))
        if grows * price / held.leverage > self.available():
            raise RefusalError(-2019, "Margin is insufficient.")

    def reserve(self, listing: Listing, order: HeldOrder) -> None:
        """Resting orders lock nothing here: margin is checked again when they fill."""

    def release(self, listing: Listing, order: HeldOrder) -> None:
        """Nothing was locked."""

    def fill(
        self,
        listing: Listing,
        order: HeldOrder,
        price: Decimal,
        quantity: Decimal,
        *,
        maker: bool,
    ) -> tuple[Decimal, str, Decimal]:
        """Change the position; profit of what is closed and the fee go to the wallet."""
        held = self.holding(listing.market_id)
        signed = order.sign * quantity
        realised = ZERO
        if held.quantity * signed >= 0:
            total = held.quantity + signed
            cost = held.quantity * held.entry + signed * price
            held.entry = cost / total if total else ZERO
        else:
            closed = min(abs(signed), abs(held.quantity)) * (1 if held.quantity > 0 else -1)
            realised = whole_units(closed * (price - held.entry))
            if abs(signed) > abs(held.quantity):
                held.entry = price
        held.quantity += signed
        if not held.quantity:
            held.entry = ZERO
        rate = listing.maker_fee if maker else listing.taker_fee
        fee = whole_units(quantity * price * rate)
        self.wallet += realised - fee
        return fee, self.asset, realised

    def audit(
        self, deposits: dict[str, Decimal], fills: list[Fill], payments: list[Payment]
    ) -> None:
        """Prove wallet and positions from deposits, fills and payments alone.

        Raises:
            InvariantError: if one unit is missing or too many.
        """
        wallet = deposits.get(self.asset, ZERO)
        wallet += sum((fill.realised - fill.fee for fill in fills), ZERO)
        wallet += sum((payment.amount for payment in payments), ZERO)
        expected = {self.asset: wallet}
        for fill in fills:
            held = expected.get(fill.market_id, ZERO)
            expected[fill.market_id] = held + fill.sign * fill.quantity
        held_now = {name: h.quantity for name, h in self.holdings.items()}
        _check_equal(expected, {self.asset: self.wallet, **held_now})


def _check_equal(expected: dict[str, Decimal], found: dict[str, Decimal]) -> None:
    for name in sorted({*expected, *found}):
        if expected.get(name, ZERO) != found.get(name, ZERO):
            raise InvariantError(
                "ledger-identity",
                wrong="balances must be what deposits, fills and payments add up to",
                found=f"{name}: {found.get(name, ZERO)} instead of {expected.get(name, ZERO)}",
                remedy="The loopback exchange has lost count; report it with the seed.",
            )
