"""`stormsail fetch`: download bars, funding rates and terms from an exchange into the store."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stormsail.cli.output import is_quiet, publish
from stormsail.cli.times import utc_time
from stormsail.core.errors import ConfigError

if TYPE_CHECKING:
    from stormsail.market.fetch import FetchResult
    from stormsail.market.fetch import bars as fetching
    from stormsail.market.fetch.bars import OnProgress
    from stormsail.market.fetch.client import Client
    from stormsail.market.fetch.terms import FetchedTerms

INTERRUPTED = 130
"""Exit status after Ctrl-C, as a shell reports it."""


def fetch(
    symbols: Annotated[list[str], typer.Argument(help="As ccxt writes them: BTC/USDT, ...")],
    interval: Annotated[str, typer.Option(help="Length of a bar: 1m, 1h, 1d.")] = "1h",
    exchange: Annotated[str, typer.Option(help="ccxt id of the exchange.")] = "binance",
    since: Annotated[str | None, typer.Option(help="First day or time, UTC; needed once.")] = None,
    until: Annotated[
        str | None, typer.Option(help="End, not included; default: the last closed bar.")
    ] = None,
    store: Annotated[Path, typer.Option(help="Folder of the store.")] = Path("data"),
    funding: Annotated[
        bool, typer.Option("--funding", help="Also the funding rates; perpetuals only.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=86_400, help="Seconds one answer may take.")
    ] = 20.0,
    tries: Annotated[int, typer.Option(min=1, help="Times one request is sent.")] = 6,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the jitter between tries.")] = 0,
    base_url: Annotated[
        str | None, typer.Option(hidden=True, help="Replaces every host; for tests and mirrors.")
    ] = None,
) -> None:
    """Download bars and instrument terms from an exchange into the store; stored bars are kept.

    Needs no keys and reads none. A fetch that was interrupted is continued by the same command.
    """
    from stormsail.market.bars import check_symbol
    from stormsail.market.fetch import connect
    from stormsail.market.interval import Interval

    length = Interval.parse(interval)
    span = _milliseconds("--since", since), _milliseconds("--until", until)
    _check_span(*span)
    client = connect(exchange, [*map(check_symbol, symbols)], base_url=base_url, timeout_s=timeout)
    bars, rates, terms = _fetchers(client, store, span, tries, seed)
    fetched: list[dict[str, object]] = []
    publish(exchange=exchange, interval=str(length), store=store, fetched=fetched)
    for symbol in symbols:
        fetched.append({"symbol": symbol})
        fetched[-1]["bars"] = _show(f"{symbol} {length}", partial(bars, symbol, length))
        stated = terms(symbol)
        fetched[-1]["terms"] = list(stated.instrument.terms.known())
        fetched[-1]["terms_not_stated"] = stated.unknown
        _show_terms(symbol, stated)
        if funding:
            fetched[-1]["funding"] = _show(f"{symbol} funding", partial(rates, symbol))


def _check_span(since: int | None, until: int | None) -> None:
    """Refuse a span of time in which there can be no bar."""
    from stormsail.core.clock import SystemClock, iso

    now = SystemClock().now_ns() // 1_000_000
    if since is None or since < min(now, now if until is None else until):
        return
    end = f"the present, {iso(now)}" if until is None or until > now else f"`--until` {iso(until)}"
    raise ConfigError(
        "config-value",
        wrong=f"`--since` must be earlier than {end}",
        found=iso(since),
        remedy="Name an earlier `--since`, or a later `--until`.",
    )


def _fetchers(
    client: "Client", root: Path, span: tuple[int | None, int | None], tries: int, seed: int
) -> "tuple[Callable[..., FetchResult], Callable[..., FetchResult], Callable[[str], FetchedTerms]]":
    """Return the fetches of bars, rates and terms, with everything given but the symbol."""
    from stormsail.core.clock import SystemClock
    from stormsail.core.generators import Generators
    from stormsail.market.fetch import RetryPolicy, fetch_bars, fetch_funding
    from stormsail.market.fetch.terms import fetch_terms
    from stormsail.market.store import Store

    clock, store, retry = SystemClock(), Store(root), RetryPolicy(tries=tries)
    generator = Generators(seed).numpy("fetch.jitter")

    def prepared(fetch: "Callable[..., FetchResult]") -> "Callable[..., FetchResult]":
        return partial(
            fetch,
            client,
            store,
            since_ms=span[0],
            until_ms=span[1],
            clock=clock,
            generator=generator,
            retry=retry,
        )

    terms = partial(fetch_terms, client, store, clock=clock, generator=generator, retry=retry)
    return prepared(fetch_bars), prepared(fetch_funding), terms


def _show_terms(symbol: str, fetched: "FetchedTerms") -> None:
    """Print which terms of a symbol are known."""
    names = ", ".join(fetched.instrument.terms.known())
    typer.echo(f"{symbol} terms: {names}{'' if fetched.changed else ', as stored'}")
    if fetched.unknown:
        typer.echo(f"  not stated: {', '.join(fetched.unknown)}")


def _show(what: str, call: "Callable[..., FetchResult]") -> "FetchResult":
    """Run one fetch under a progress bar, print its result and return it."""
    try:
        with _progress(what) as on_progress:
            done = call(on_progress=on_progress)
    except KeyboardInterrupt:
        typer.echo(f"stormsail: {what}: interrupted; the same command continues it.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    missing = sum(gap.count for gap in done.gaps)
    typer.echo(
        f"{what}: {done.added} rows added, {done.rows} stored, {len(done.gaps)} gaps "
        f"({missing} bars), {done.requests} requests, {done.retries} retries"
    )
    for line in done.warnings:
        typer.echo(f"  warning: {line}")
    return done


@contextmanager
def _progress(what: str) -> "Iterator[OnProgress]":
    """Show a bar with the time left, on a terminal only."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=is_quiet() or not console.is_terminal
    ) as bar:
        task = bar.add_task(what, total=None)

        def on_progress(progress: "fetching.Progress") -> None:
            bar.update(task, completed=progress.done, total=progress.total)

        yield on_progress


def _milliseconds(option: str, text: str | None) -> int | None:
    """Return a day or time as UTC milliseconds; without a zone it is UTC.

    Raises:
        ConfigError: if it cannot be read.
    """
    return None if text is None else round(utc_time(option, text).timestamp() * 1000)
