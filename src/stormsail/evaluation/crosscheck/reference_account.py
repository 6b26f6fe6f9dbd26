"""The account of the reference ledger: cash and position in Decimals that never round.

All of it is meant to run inside `EXACT`.
"""

import decimal
import math
from decimal import Decimal, localcontext

from stormsail.core.errors import InvariantError

ZERO = Decimal(0)
ONE = Decimal(1)
EXACT = decimal.Context(
    prec=5000,  # a double has up to 1,074 decimals; only digits that are there cost time
    traps=[
        decimal.Inexact,
        decimal.InvalidOperation,
        decimal.DivisionByZero,
        decimal.Overflow,
        decimal.FloatOperation,
    ],
)
"""Money: a sum or product that would have to be rounded raises `decimal.Inexact` instead."""
RATIO = decimal.Context(prec=60, rounding=decimal.ROUND_HALF_EVEN)
RATIO_DOWN = decimal.Context(prec=60, rounding=decimal.ROUND_DOWN)
RATIO_UP = decimal.Context(prec=60, rounding=decimal.ROUND_UP)


def written(number: float) -> Decimal:
    """Return a setting as it was written: 0.1 is a tenth, not the nearest double."""
    return Decimal(repr(float(number)))


def on_grid(value: Decimal, step: Decimal, *, up: bool) -> Decimal:
    """Return the multiple of `step` next to `value`.

    A quotient within 64 units in the last place (of a double) of an integer is that integer:
    stored prices are doubles, and the double next to 100.1 lies off a grid of 0.1. A quantity may
    so be up to 1.5e-14 of itself larger than the exact floor.
    """
    quotient = RATIO.divide(value, step)
    count = quotient.to_integral_value(decimal.ROUND_HALF_EVEN)
    if abs(quotient - count) > 64 * Decimal.from_float(math.ulp(float(quotient))):
        rounding = decimal.ROUND_CEILING if up else decimal.ROUND_FLOOR
        count = quotient.to_integral_value(rounding)
    return count * step


class Account:
    """Cash, position, and the sum of everything that ever changed them."""

    def __init__(self, initial: Decimal, mark: Decimal) -> None:
        self.initial = self.cash = initial
        self.mark = mark
        self.quantity = self.entry_price = ZERO
        self.fees = self.funding = self.slippage = ZERO
        self.gross = ZERO
        """Sum of position held times change of the mark."""
        self.crossing = ZERO
        """Sum of signed quantity times (fill price - mark): what trading off the mark has cost."""
        self.bought = ZERO
        """Sum of signed quantity times fill price."""
        self.filled = ZERO
        """Sum of signed quantities, those of liquidations included."""

    @property
    def equity(self) -> Decimal:
        """Cash and position at the mark; nothing keeps it from falling below zero."""
        return self.cash + self.quantity * self.mark

    def move(self, price: Decimal) -> None:
        """Mark the position at another price."""
        self.gross += self.quantity * (price - self.mark)
        self.mark = price

    def pay_funding(self, amount: Decimal) -> None:
        """Pay funding, or receive it where negative."""
        self.cash -= amount
        self.funding += amount

    def fill(self, traded: Decimal, price: Decimal, fee: Decimal) -> None:
        """Buy (or sell, where negative) at a price and pay the fee."""
        self.entry_price = self._entry(traded, price)
        self.quantity += traded
        self.cash -= traded * price + fee
        self.fees += fee
        self.crossing += traded * (price - self.mark)
        self.bought += traded * price
        self.filled += traded

    def _entry(self, traded: Decimal, price: Decimal) -> Decimal:
        held, after = self.quantity, self.quantity + traded
        if after == 0:
            return ZERO
        if held * after <= 0:  # opened, or turned through zero
            return price
        if abs(after) < abs(held):
            return self.entry_price
        cost = self.entry_price * abs(held) + price * abs(traded)
        return RATIO.divide(cost, abs(after))

    def check_identity(self) -> None:
        """Check that no unit of money or quantity has appeared or vanished, to the last digit.

        Raises:
            InvariantError: if one has.
        """
        with localcontext(EXACT):
            paid = self.fees + self.funding
            sums = {
                "cash": (self.cash, self.initial - self.bought - paid),
                "quantity": (self.quantity, self.filled),
                "equity": (self.equity, self.initial + self.gross - self.crossing - paid),
            }
        for name, (held, summed) in sums.items():
            if held != summed:
                raise InvariantError(
                    "ledger-identity",
                    wrong=f"{name} must equal the sum of everything that ever changed it",
                    found=f"{held} held and {summed} summed up",
                    remedy="Report this with the configuration and the bars that led to it.",
                )
