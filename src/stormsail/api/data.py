"""`ss.load_bars` and `ss.make_market`: bars of a store, of files or of a frame, and a market."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from stormsail.api.settings import is_whole
from stormsail.core.arguments import check_type, given_words, wrong_type
from stormsail.core.errors import ArgumentError, ChoiceError, DataError, RangeError
from stormsail.core.files.paths import given_path
from stormsail.core.memory import check_memory
from stormsail.evaluation.engine.agent_terms import terms_of
from stormsail.market.bars import Bars, Funding, Mark
from stormsail.market.gymnasium import MarketVectorEnv
from stormsail.market.importers import from_frame, import_files
from stormsail.market.interval import Interval
from stormsail.market.panel import Panel, load_panel
from stormsail.market.simulator import MarketConfig
from stormsail.market.splits import Span
from stormsail.market.store import Store
from stormsail.modules import Agent

BarSource: TypeAlias = Panel | Store | Path | str
"""Bars, or where they are: a store, or files of bars."""

_LEAST_BYTES = 256
"""What an account takes at the least: its state and one observation."""


def load_bars(
    source: BarSource | Sequence[Path | str] | object,
    *,
    symbols: str | Sequence[str] | None = None,
    interval: Interval | str | None = None,
) -> Panel:
    """Return bars of several symbols on one time grid.

    Args:
        source: folder of a store; a file, a folder or a pattern of files that `stormsail import`
            reads, or a list of these; or an Arrow table, a pandas or a polars frame.
        symbols: which of them, as ccxt writes them; None takes all that have this interval. A file
            or frame whose name does not say its symbol needs it here, and a frame always does.
        interval: length of a bar, such as `1h`; None takes the only one there is.

    Raises:
        DataError: if there are no such bars, they cannot be read, or have defects.
        ArgumentError: if several intervals are there and none is chosen, a frame comes without, or
            an argument has another type.
    """
    length = _length(interval)
    chosen = given_words(symbols, name="symbols", example='"BTC/USDT"')
    if isinstance(source, Panel):
        return _part(source, chosen, length)
    if isinstance(source, str | Path):
        path = given_path(source, name="source")
        source = Store(path) if path.is_dir() and Store(path).contents() else path
    if isinstance(source, Store):
        return _stored(source, chosen, length)
    if isinstance(source, Path):
        return _imported([source], chosen, length)
    if isinstance(source, list | tuple):
        if not source:
            raise _nothing("`source`", length, found="an empty list")
        return _imported([given_path(each, name="source") for each in source], chosen, length)
    if source is None or isinstance(source, bytes | bool | int | float) or callable(source):
        raise wrong_type(
            source,
            name="source",
            must="a store, files, or a frame",
            remedy='Write for example `ss.load_bars("data")`.',
        )
    if len(chosen) != 1 or length is None:
        raise ArgumentError(
            "missing-argument",
            wrong="a frame must come with its symbol and its interval",
            found=f"{len(chosen)} symbols and {'no interval' if length is None else length}",
            remedy='Write `ss.load_bars(frame, symbols="BTC/USDT", interval="1h")`.',
        )
    with _python_hints():
        bars = from_frame(source, symbol=chosen[0], interval=length)
    return Panel.from_bars([bars])


@contextmanager
def _python_hints() -> Iterator[None]:
    """Say what an option of `stormsail import` is for whoever calls `load_bars`, which has none."""
    try:
        yield
    except DataError as error:
        if "`--" not in error.remedy:
            raise
        raise DataError(
            error.code,
            wrong=error.wrong,
            found=error.found,
            remedy=f"{error.remedy} `stormsail import` has these options; for `ss.load_bars` "
            "rename or convert the columns first.",
        ) from error


def _stored(store: Store, symbols: Sequence[str], interval: Interval | None) -> Panel:
    """Return bars of a store."""
    stored = [(symbol, own) for symbol, own in store.contents() if _among(symbol, symbols)]
    if not stored and symbols:
        raise ChoiceError(
            wrong=f"`symbols` must be among those of {store.root}",
            found=f"no bars of these symbols, {', '.join(symbols)}",
            remedy=f"It holds {_holdings(store)}; symbols are written as ccxt writes them.",
        )
    own = interval or _only(own for _, own in stored)
    names = symbols or tuple(symbol for symbol, each in stored if each == own)
    if not names:
        raise _nothing(str(store.root), own, found=_holdings(store))
    return load_panel(store, names, own)


def _length(interval: object) -> Interval | None:
    """Return the length of a bar that somebody asked for."""
    if isinstance(interval, str):
        return Interval.parse(interval)
    if interval is None or isinstance(interval, Interval):
        return interval
    remedy = 'Write for example `interval="1h"`.'
    raise wrong_type(interval, name="interval", must="the length of a bar, as text", remedy=remedy)


def _part(panel: Panel, symbols: Sequence[str], interval: Interval | None) -> Panel:
    """Return bars that are loaded already; what they are not is refused.

    Raises:
        DataError: if they have another interval or other symbols.
    """
    if interval not in (None, panel.interval):
        raise _nothing("the bars", interval, found=f"bars of {panel.interval}")
    if symbols and set(symbols) != set(panel.symbols):
        raise DataError(
            "data-mismatch",
            wrong=f"bars that are loaded must be of the symbols asked for, {', '.join(symbols)}",
            found=", ".join(panel.symbols),
            remedy="Choose them where the bars are read: `ss.load_bars(store, symbols=...)`.",
        )
    return panel


def _holdings(store: Store) -> str:
    """Return what a store holds, in words."""
    held = [f"{symbol} {interval}" for symbol, interval in store.contents()]
    return ", ".join(held[:6]) + (", ..." if len(held) > 6 else "") or "nothing"


def make_market(
    bars: BarSource | None = None,
    *,
    num_envs: int = 1,
    agent: Agent | None = None,
    config: MarketConfig | Mapping[str, object] | None = None,
    span: Span | None = None,
    render_mode: str | None = None,
) -> MarketVectorEnv:
    """Return a market as a vector environment of Gymnasium's: many accounts stepped together.

    Args:
        bars: what `load_bars` takes or returns; None draws a synthetic market.
        num_envs: number of accounts.
        agent: makes the market that this agent was trained on: its rules, features and scaler.
        config: the market's rules, or those that differ from the defaults (docs/config.md,
            `task.market`).
        span: episodes lie inside it; None allows all bars.
        render_mode: `rgb_array` or `ansi`.

    Raises:
        ArgumentError: if both an agent and rules are given, or an agent without bars.
        RangeError: if `num_envs` is no whole number of at least 1.
        ConfigError: if a rule does not fit, the agent was trained for other bars, or so many
            accounts do not fit into memory.
        DataError: if the bars are not there or do not suffice.
    """
    _check_accounts(num_envs)
    if agent is not None:
        remedy = 'Write `agent=ss.Agent.load("runs/first")`.'
        check_type(agent, Agent, name="agent", must="an agent", remedy=remedy)
    if span is not None:
        remedy = "Write `span=Span(start_ms, end_ms)` of `stormsail.market`."
        check_type(span, Span, name="span", must="a `Span` of times", remedy=remedy)
    if render_mode is not None:
        remedy = 'Write `render_mode="ansi"` or `render_mode="rgb_array"`.'
        check_type(render_mode, str, name="render_mode", must="text", remedy=remedy)
    panel = None if bars is None else load_bars(bars)
    if agent is None:
        rules = config if isinstance(config, MarketConfig) else _rules(config)
        return MarketVectorEnv(num_envs, panel, rules, span=span, render_mode=render_mode)
    if config is not None or panel is None:
        raise ArgumentError(
            "config-inconsistent" if config is not None else "missing-argument",
            wrong="the market of an agent must have bars, and its rules from the agent alone",
            found="rules beside the agent" if config is not None else "no bars",
            remedy="Pass `bars` and `agent`, or `config` without an agent.",
        )
    terms = terms_of(agent, panel)
    return MarketVectorEnv(
        num_envs,
        panel,
        terms.market,
        features=terms.features,
        scaler=terms.scaler,
        span=span,
        render_mode=render_mode,
    )


def _check_accounts(count: int) -> None:
    """Refuse a number of accounts that is none, or for which there is no memory.

    Raises:
        RangeError: if it is no whole number of at least 1.
        ConfigError: if so many do not fit into memory.
    """
    if not is_whole(count) or count < 1:
        raise RangeError(
            wrong="`num_envs` must be a whole number of at least 1",
            found=repr(count),
            remedy="Pass the number of accounts.",
        )
    check_memory(
        _LEAST_BYTES * int(count),
        what="a market",
        found=f"`num_envs` {count:,}",
        remedy="Lower `num_envs`.",
    )


def _rules(settings: Mapping[str, object] | None) -> MarketConfig:
    if settings is None:
        return MarketConfig()
    if not isinstance(settings, Mapping):
        raise ArgumentError(
            "config-value",
            wrong="`config` must be a `MarketConfig`, or a dictionary of what differs from one",
            found=f"a value of the type {type(settings).__name__}",
            remedy='Write for example `config={"episode_bars": 48}`.',
        )
    return MarketConfig().replace(**settings)


def _imported(
    sources: Sequence[Path | str], symbols: Sequence[str], interval: Interval | None
) -> Panel:
    """Return bars of files, with the funding rates and mark prices among them."""
    named = symbols[0] if len(symbols) == 1 else None
    with _python_hints():
        read = [part.data for part in import_files(sources, symbol=named, interval=interval)]
    bars = [part for part in read if isinstance(part, Bars) and _among(part.symbol, symbols)]
    if not bars:
        raise _nothing(", ".join(map(str, sources)), interval)
    own = interval or _only(part.interval for part in bars)
    bars = [part for part in bars if part.interval == own]
    traded = {part.symbol for part in bars}
    return Panel.from_bars(
        bars,
        {part.symbol: part for part in read if isinstance(part, Funding) and part.symbol in traded},
        marks={
            part.symbol: part
            for part in read
            if isinstance(part, Mark) and part.symbol in traded and part.interval == own
        },
    )


def _among(symbol: str, chosen: Sequence[str]) -> bool:
    return not chosen or symbol in chosen


def _only(intervals: Iterable[Interval]) -> Interval:
    """Return the only interval."""
    lengths = sorted(set(intervals), key=lambda length: length.milliseconds)
    if len(lengths) != 1:
        raise ArgumentError(
            "missing-argument",
            wrong="`interval` must be given where bars have several lengths or none",
            found=", ".join(map(str, lengths)) or "no bars of these symbols",
            remedy='Write for example `interval="1h"`.',
        )
    return lengths[0]


def _nothing(
    place: str, interval: Interval | None, *, found: str = "none of these symbols"
) -> DataError:
    return DataError(
        "data-missing",
        wrong=f"{place} must hold bars{'' if interval is None else f' of {interval}'}",
        found=found,
        remedy="Import, fetch or synthesise them first, or name other symbols.",
    )
