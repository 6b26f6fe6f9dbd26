"""The third ledger: target weights, traded by NautilusTrader's own backtest engine.

Nautilus keeps orders, fills, position, fees and balance; `nautilus_engine` is all that touches the
third-party package. What Nautilus does not know, how large an order is and when none is sent, is in
`nautilus_plan`. What its version 1.221 cannot express is refused here, never approximated.
"""

from dataclasses import dataclass
from decimal import Decimal, localcontext
from types import ModuleType

from stormsail.core.clock import iso
from stormsail.core.errors import ConfigError, DataError
from stormsail.evaluation.crosscheck.nautilus_plan import (
    LARGEST_BALANCE,
    LARGEST_START,
    MOST_DECIMALS,
    Fill,
    Journal,
    Weights,
    decimals,
    exact,
    make_plan,
)
from stormsail.market import Panel
from stormsail.market.simulator.config import MarketConfig

_DIGITS = 100  # no product of the plan needs more, so its sums and products are exact


@dataclass(frozen=True)
class NautilusRun:
    """What Nautilus's account looked like at every bar's close.

    One entry a row of the panel, fewer where one of the config's `stops` ended the run.

    Attributes:
        equity: balance plus the open position's profit at the close.
        balance: the account's own balance: start, realised profit, fees and funding.
        cash: equity less position times close, the cash of the other two ledgers.
        position: signed quantity held.
        funding: paid at the row's open, with interest on loans; negative where received.
        fills: in order of time.
        version: of NautilusTrader.
    """

    equity: tuple[Decimal, ...]
    balance: tuple[Decimal, ...]
    cash: tuple[Decimal, ...]
    position: tuple[Decimal, ...]
    funding: tuple[Decimal, ...]
    fills: tuple[Fill, ...]
    version: str


def run_nautilus(panel: Panel, symbol: str, weights: Weights, config: MarketConfig) -> NautilusRun:
    """Trade one symbol of a panel in NautilusTrader: decide at each close, fill at the next open.

    The account starts at the first row's close with `config.initial_equity` and trades to the last
    row, or to the close at which one of `stops` is reached or the symbol delisted: `episode_bars`,
    rewards and `degrade` have no part in it. Decisions come from the account that Nautilus keeps,
    so its roundings (8 decimals a fill) act on the orders as well.

    Args:
        panel: bars in float64, and the funding rates.
        symbol: which of its symbols.
        weights: target weight decided at the close of each row but the last, [T-1].
        config: costs, filters, leverage and no-trade windows.

    Raises:
        ConfigError: if NautilusTrader is not installed, or the config asks for what it cannot
            express: impact, drawn costs, limits other than leverage, no lot or tick, more money
            than it can count.
        DataError: if a price has too many decimals or bars contradict themselves, if the account
            would have been liquidated, which Nautilus 1.221 does not do, or held a symbol as it
            was delisted, or if Nautilus did not fill every order whole and at the quoted price.
        ShapeError: if there is not one weight for each row but the last.
        DtypeError: if the panel is not in float64.
        ChoiceError: if the panel has no such symbol.
    """
    config = config.with_terms((symbol,), panel.instruments)
    _check_config(config, symbol)
    engine = _load_engine()
    with localcontext() as context:
        context.prec = _DIGITS
        plan = make_plan(panel, symbol, weights, config)
        journal = Journal(plan)
        engine.execute(journal)
        _check_journal(journal)
        cash = (
            equity - held * row.close
            for equity, held, row in zip(journal.equity, journal.position, plan.rows, strict=False)
        )
        return NautilusRun(
            equity=tuple(journal.equity),
            balance=tuple(journal.balance),
            cash=tuple(cash),
            position=tuple(journal.position),
            funding=tuple(journal.funding[: len(journal.equity)]),
            fills=tuple(journal.fills),
            version=engine.VERSION,
        )


def _check_config(config: MarketConfig, symbol: str) -> None:
    """Refuse what Nautilus 1.221 cannot express."""
    filters = config.filters_of(symbol)
    for name, step in (("lot", filters.lot), ("tick", filters.tick)):
        if step == 0 or decimals(exact(step)) > MOST_DECIMALS:
            raise _refusal(
                f"`filters.{name}` of {symbol} must be a step with at most {MOST_DECIMALS} "
                f"decimals: Nautilus has no orders without one",
                found=f"{step:g}",
                remedy=f"Set the exchange's own {name}, such as 0.001.",
            )
    if config.costs.impact > 0:
        raise _refusal(
            "`costs.impact` must be 0: a quote cannot know how large the order will be",
            found=f"{config.costs.impact:g}",
            remedy="Set `costs.impact = 0`, and `costs.half_spread` to what an order costs.",
        )
    drawn = [n for n, bounds in config.randomise.model_dump().items() if tuple(bounds) != (1, 1)]
    if drawn:
        raise _refusal(
            "costs must be fixed: a run in Nautilus has no episodes to draw them for",
            found=f"`randomise.{drawn[0]}`",
            remedy=f"Set `randomise.{drawn[0]} = [1, 1]`.",
        )
    limits = config.limits
    names = ("max_position", "max_turnover", "max_drawdown", "max_daily_loss", "min_equity")
    for name in names:
        if getattr(limits, name):
            raise _refusal(
                "of the limits, only `limits.max_leverage` may be set for Nautilus",
                found=f"`limits.{name}` {getattr(limits, name):g}",
                remedy=f"Leave `limits.{name}` out, or use the built-in engine.",
            )
    if config.initial_equity > LARGEST_START:
        raise _refusal(
            f"`initial_equity` must be at most {LARGEST_START:g}: Nautilus computes money in "
            f"float64 with 8 decimals",
            found=f"{config.initial_equity:g}",
            remedy="Start with less.",
        )


def _refusal(wrong: str, *, found: str, remedy: str) -> ConfigError:
    return ConfigError("engine-limit", wrong=wrong, found=found, remedy=remedy)


def _check_journal(journal: Journal) -> None:
    """Refuse a run that Nautilus carried out but that the market's rules would not have."""
    rows = journal.plan.rows
    if journal.liquidated is not None:
        raise DataError(
            "engine-limit",
            wrong="no position may lose its maintenance margin: Nautilus 1.221 never liquidates",
            found=f"a liquidation in the bar of {iso(rows[journal.liquidated].ts_ms)}",
            remedy="Use smaller weights, a span that ends before, or the built-in engine.",
        )
    if journal.delisted is not None:
        raise DataError(
            "engine-limit",
            wrong="no position may be held as a symbol is delisted: Nautilus would have to fill "
            "where nothing is quoted",
            found=f"one in the bar of {iso(rows[journal.delisted].ts_ms)}",
            remedy="Close it before, choose a span that ends before, or use the built-in engine.",
        )
    if journal.overflown is not None:
        raise _refusal(
            f"the balance must stay below {LARGEST_BALANCE:g}: Nautilus cannot count more",
            found=f"more in the bar of {iso(rows[journal.overflown].ts_ms)}",
            remedy="Set a smaller `initial_equity`.",
        )
    sent = journal.orders
    filled = [(fill.row, fill.quantity, fill.price) for fill in journal.fills]
    whole = len(journal.equity) == len(rows) or journal.ended is not None
    if sent != filled or not whole:
        astray = next((a for a, b in zip(sent, filled, strict=False) if a != b), sent[-1:])
        raise DataError(
            "engine-limit",
            wrong="Nautilus must mark every bar and fill every order whole, at the quoted price",
            found=f"{len(journal.equity)} of {len(rows)} bars, {len(filled)} fills of {len(sent)} "
            f"orders, first amiss {astray}",
            remedy="Trade less than 1e13 units at a time, at prices of more than a tick.",
        )


def _load_engine() -> ModuleType:
    try:
        import nautilus_trader  # noqa: F401 - the engine's module may be loaded already

        from stormsail.evaluation.crosscheck import nautilus_engine
    except ImportError as error:
        raise ConfigError(
            "missing-extra",
            wrong="the engine `nautilus` needs the package nautilus_trader",
            found="no such package in this environment",
            remedy="Run `pip install 'stormsail[nautilus]'`.",
        ) from error
    return nautilus_engine
