"""Whether the funding of a panel is known well enough to trade it, and by which price margin goes.

A settlement without a known rate pays nothing, which flatters whoever holds the paid side: so its
share is counted for each symbol and span, and too large a share is refused.
"""

from typing import NamedTuple

from stormsail.core.clock import iso
from stormsail.core.errors import DataError
from stormsail.core.files.documents import JsonValue
from stormsail.market.panel import Panel
from stormsail.market.settlements import LEAST_COVERAGE, is_perpetual
from stormsail.market.simulator.config import MarketConfig


class Coverage(NamedTuple):
    """Settlements of one symbol within a span."""

    symbol: str
    settlements: int
    """That were due."""
    missing: int
    """Without a known rate."""

    @property
    def share(self) -> float:
        """Share with a known rate; 1 where none was due."""
        return 1.0 - self.missing / self.settlements if self.settlements else 1.0


def funding_coverage(panel: Panel, rows: tuple[int, int]) -> list[Coverage]:
    """Return the coverage of each symbol that pays funding, of settlements in [first, last)."""
    if panel.settlements is None or panel.rates_missing is None:
        return []
    part = slice(*rows)
    due = panel.settlements[part].sum(0).tolist()
    missing = panel.rates_missing[part].sum(0).tolist()
    counted = zip(panel.symbols, due, missing, strict=True)
    return [Coverage(*each) for each in counted if each[1]]


def check_funding(panel: Panel, config: MarketConfig, rows: tuple[int, int]) -> None:
    """Refuse a span in which too many rates are not known, unless a decision says what they are.

    Raises:
        DataError: if fewer than 99 % of the settlements of a symbol have a known rate.
    """
    if not config.funding or config.funding_missing != "refuse":
        return
    poor = [each for each in funding_coverage(panel, rows) if each.share < LEAST_COVERAGE]
    if not poor:
        return
    counts = ", ".join(
        f"{each.settlements - each.missing} of {each.settlements} ({each.share:.1%}) of "
        f"{each.symbol}"
        for each in poor
    )
    first, last = (iso(int(panel.ts[row])) for row in (rows[0], rows[1] - 1))
    raise DataError(
        "data-funding",
        wrong=f"funding rates must be known for {LEAST_COVERAGE:.0%} of the settlements of each "
        f"perpetual from {first} to {last}",
        found=counts,
        remedy="Import or fetch the rates, choose another span, or decide what is paid where none "
        'is known: `task.market.funding_missing = "zero"`, or a rate such as 0.0001.',
    )


def funding_words(panel: Panel, config: MarketConfig, rows: tuple[int, int]) -> list[str]:
    """Return sentences about what was assumed where no rate is known; none if all are."""
    covered = funding_coverage(panel, rows)
    if not config.funding:
        names = ", ".join(each.symbol for each in covered)
        return [f"Funding is switched off: {names} paid none."] if names else []
    paid = "nothing"
    if not isinstance(config.funding_missing, str):
        paid = f"an assumed rate of {config.funding_missing:g}"
    return [
        f"{each.symbol} paid {paid} at {each.missing} of {each.settlements} settlements "
        f"({each.missing / each.settlements:.2%}) whose rate is not known."
        for each in covered
        if each.missing
    ]


def margin_words(panel: Panel, rows: tuple[int, int]) -> list[str]:
    """Return sentences about the price by which perpetuals are liquidated in [first, last)."""
    words = []
    for column, symbol in enumerate(panel.symbols):
        if not is_perpetual(symbol):
            continue
        bars = rows[1] - rows[0]
        known = 0
        if panel.mark is not None:
            known = int((~panel.mark[slice(*rows), column].isnan().any(-1)).sum())
        if known == bars:
            words.append(f"{symbol} is liquidated by its mark price.")
        elif known:
            words.append(
                f"{symbol} is liquidated by its mark price in {known} of {bars} bars, by the "
                "traded price in the others."
            )
        else:
            words.append(f"{symbol} is liquidated by its traded price: no mark price is stored.")
    return words


def assumptions(panel: Panel, config: MarketConfig, rows: tuple[int, int]) -> dict[str, JsonValue]:
    """Return what a result must say of funding and margin: counts by symbol, and sentences."""
    return {
        "funding": [
            {**each._asdict(), "coverage": each.share} for each in funding_coverage(panel, rows)
        ],
        "words": [*funding_words(panel, config, rows), *margin_words(panel, rows)],
    }
