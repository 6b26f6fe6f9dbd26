"""Bars in Decimals, as the reference ledger takes them."""

from collections.abc import Sequence
from decimal import Decimal, localcontext
from typing import TYPE_CHECKING, NamedTuple

from stormsail.evaluation.crosscheck.reference_account import EXACT, ONE, RATIO, ZERO

if TYPE_CHECKING:
    from stormsail.market.panel import Panel


class ReferenceBar(NamedTuple):
    """Row n, at whose open the order fills and at whose close the account is marked."""

    ts_ms: int
    """Open time of row n, UTC milliseconds."""
    open: Decimal
    high: Decimal
    low: Decimal
    close: Decimal
    tradable: bool = True
    """Whether row n has a bar."""
    funding_rate: Decimal = ZERO
    """Sum of the rates that settle after the open of row n - 1 and up to the open of row n."""
    trailing_notional: Decimal = ZERO
    """M of row n - 1, the newest one known at the decision: mean notional of the rows up to it."""


def trailing_notional(
    closes: Sequence[Decimal], volumes: Sequence[Decimal], window: int
) -> list[Decimal]:
    """Return for each row the mean of close times volume over the last `window` rows up to it.

    At the start it is the mean of the rows there are. For a quote volume pass ones as closes.
    """
    with localcontext(EXACT):
        notional = [close * volume for close, volume in zip(closes, volumes, strict=True)]
        means, total = [], ZERO
        for row, newest in enumerate(notional):
            total += newest - (notional[row - window] if row >= window else ZERO)
            means.append(RATIO.divide(total, Decimal(min(row + 1, window))))
    return means


def reference_bars(panel: "Panel", symbol: str, *, impact_window: int) -> list[ReferenceBar]:
    """Return the rows of one symbol, each number the exact value of the double in the panel.

    The trailing notional of a row is that of the row before it, over the bars that the symbol has
    had; up to the first of them, at which no order can fill, it is 0.
    """
    column = panel.index(symbol)

    def exact(name: str) -> list[Decimal]:
        tensor = panel.optional[name] if name in panel.optional else getattr(panel, name)
        return [Decimal(value) for value in tensor[:, column].tolist()]

    closes = exact("close")
    first = panel.listed[:, column].tolist().index(True)  # before its first bar nothing was traded
    if "quote_volume" in panel.optional:
        priced, volumes = [ONE] * len(closes), exact("quote_volume")
    else:
        priced, volumes = closes, exact("volume")
    traded = [ZERO] * first + trailing_notional(priced[first:], volumes[first:], impact_window)
    columns = zip(
        panel.ts.tolist(),
        exact("open"),
        exact("high"),
        exact("low"),
        closes,
        panel.tradable[:, column].tolist(),
        exact("funding"),
        [ZERO, *traded[:-1]],
        strict=True,
    )
    return [ReferenceBar(*row) for row in columns]
