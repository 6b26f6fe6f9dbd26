"""Instrument terms on the command line: from a file and from options, into the store."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from stormsail.market.instruments import Instrument, InstrumentTerms
    from stormsail.market.store import Store

_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class GivenTerms:
    """What the user says about instruments."""

    by_symbol: "Mapping[str, InstrumentTerms]"
    """Of the file."""
    of_all: "InstrumentTerms"
    """Of the options; they stand before those of the file."""

    def check(self, symbols: Sequence[str]) -> None:
        """Refuse terms of other symbols than these.

        Raises:
            DataError: if the file names another symbol.
        """
        from stormsail.core.errors import DataError, nearest

        for symbol in self.by_symbol:
            if symbol not in symbols:
                near = nearest(symbol, symbols)
                raise DataError(
                    "data-symbol",
                    wrong="terms must be given for a symbol that is imported or, without sources, "
                    "stored",
                    found=f"`{symbol}` and {', '.join(symbols) or 'no symbol'}",
                    remedy=f"Did you mean `{near}`?" if near else "Import its bars first.",
                )

    def instruments(
        self, store: "Store", symbols: Sequence[str], *, replace: bool
    ) -> "list[Instrument]":
        """Return the terms to store for these symbols, with what is stored already beside them.

        Raises:
            DataError: if a kind contradicts its symbol, or stored terms cannot be read and are not
                to be replaced.
        """
        changed = []
        for symbol in symbols:
            own = self.by_symbol.get(symbol)
            terms = self.of_all if own is None else self.of_all.over(own)
            if terms.known():
                changed.append(_stored(store, symbol, replace=replace).with_given(terms))
        return changed


def given_terms(
    sources: Sequence[str] | None, file: Path | None, options: Sequence[str]
) -> GivenTerms:
    """Return the terms of a file and of `name=value` options.

    Raises:
        ConfigError: if something cannot be read or is no term, or there is nothing to import.
        DataError: if a symbol is written wrongly, or contradicts its kind.
    """
    from stormsail.core.config.overrides import apply_overrides
    from stormsail.core.errors import ConfigError
    from stormsail.market.instruments import InstrumentTerms, read_terms_file

    tables = {} if file is None else read_terms_file(_tables(file), source=str(file))
    if not sources and not tables and not options:
        raise ConfigError(
            "config-value",
            wrong="`stormsail import` must have something to import",
            found="neither sources nor terms",
            remedy="Name files, folders or patterns, or pass `--terms` or `--term`.",
        )
    return GivenTerms(tables, InstrumentTerms.from_mapping(apply_overrides({}, options)))


def write_terms(store: "Store", instruments: "Sequence[Instrument]") -> list[dict[str, object]]:
    """Write terms into the store, print which, and return which and where."""
    written: list[dict[str, object]] = []
    for instrument in instruments:
        names = list(instrument.terms.known())
        path = store.write_terms(instrument)
        typer.echo(f"wrote terms ({', '.join(names)}) to {path}")
        written.append({"symbol": instrument.symbol, "terms": names, "file": path})
    return written


def _stored(store: "Store", symbol: str, *, replace: bool) -> "Instrument":
    from stormsail.core.errors import DataError
    from stormsail.market.instruments import Instrument, InstrumentTerms

    nothing = Instrument(symbol, InstrumentTerms())
    if replace:
        return nothing
    try:
        return store.read_terms(symbol) or nothing
    except DataError as error:
        remedy = "Pass `--replace` to replace it, or import into another store."
        raise DataError(error.code, wrong=error.wrong, found=error.found, remedy=remedy) from error


def _tables(file: Path) -> Mapping[str, object]:
    """Return the content of a TOML or JSON file, by its ending."""
    import tomllib

    from stormsail.core.errors import ConfigError
    from stormsail.core.files import documents
    from stormsail.core.files.regular import open_regular

    try:
        with open_regular(file) as opened:
            data = opened.read(_MOST_BYTES)
    except OSError as error:
        raise ConfigError(
            "config-unreadable",
            wrong=f"the terms {file} must be a file that can be read",
            found=f"{error.strerror}",
            remedy="Check the path and its permissions.",
        ) from error
    try:
        if file.suffix == ".json":
            content = documents.decode(data)
        else:
            content = tomllib.loads(data.decode("utf-8"))
    except ValueError as error:
        raise ConfigError(
            "config-syntax",
            wrong=f"the terms {file} must be {'JSON' if file.suffix == '.json' else 'TOML'}",
            found=str(error).split("\n")[0],
            remedy="Correct the file at that place; JSON must end with .json.",
        ) from error
    if not isinstance(content, dict):
        raise ConfigError(
            "config-syntax",
            wrong=f"the terms {file} must hold a table for each symbol",
            found=f"a {type(content).__name__}",
            remedy='Write {"BTC/USDT": {"lot": 0.00001}}.',
        )
    return content
