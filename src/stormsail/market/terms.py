"""Terms in words and as data: those that a saved agent is bound to, and those of instruments."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stormsail.core.files.documents import JsonValue
from stormsail.market.features import FeatureSet, Scaler
from stormsail.market.instruments import Instrument, InstrumentTerms
from stormsail.market.simulator.config import MAINTENANCE, TAKER_FEE, Filters, MarketConfig
from stormsail.market.splits import Span

TASK = "market"
"""Name of this kind of task in the file."""


def bound_terms(
    market: MarketConfig,
    features: FeatureSet,
    scaler: Scaler,
    *,
    symbols: Sequence[str],
    train_span: Span,
    validation_span: Span | None = None,
    gamma: float | None = None,
    without: Sequence[Span] = (),
) -> dict[str, JsonValue]:
    """Return the entries of an agent's binding that are needed to run it later.

    Args:
        market: rules that it was trained by.
        features: that it sees.
        scaler: fitted on the training span.
        symbols: trained on.
        train_span: bars that it learned from.
        validation_span: bars on which it was chosen among others.
        gamma: discount of one bar, without which its critic's predictions have no unit of time.
        without: spans inside the other two that it has seen nothing of.
    """
    chosen: dict[str, JsonValue] = {}
    if validation_span is not None:
        chosen["validation_span"] = [validation_span.start_ms, validation_span.end_ms]
    if gamma is not None:
        chosen["gamma"] = gamma
    if without:
        chosen["without"] = [[span.start_ms, span.end_ms] for span in without]
    return {
        **chosen,
        "task": TASK,
        "market": market.model_dump(mode="json"),
        "interval": str(features.interval),
        "feature_schema": features.schema_hash(),
        "features": [
            {"name": bound.feature.name, "parameters": dict(bound.parameters)}
            for bound in features.bound
        ],
        "scaler": {
            **scaler.document(),
            **{name: tensor.tolist() for name, tensor in scaler.tensors().items()},
        },
        "symbols": list(symbols),
        "train_span": [train_span.start_ms, train_span.end_ms],
        "costs": market.costs.model_dump(mode="json"),
        "episode_bars": market.episode_bars,
        "action": market.action,
        "levels": list(market.offered_levels),
        "weight_range": list(market.offered_range),
    }


CONFIGURED, DEFAULT, WRITTEN = "configuration", "default", "symbol"
"""Sources of a term besides those of the store: set in the configuration, stated by nobody, read
off how the symbol is written."""

_STEPS = ("lot", "tick", "min_notional")
_UNKNOWN = {
    "lot": "no lot",
    "tick": "no tick",
    "min_notional": "no minimum notional",
    "max_leverage": "no largest leverage of the exchange",
}
_NAMES = {
    "taker_fee": "taker fee",
    "min_notional": "minimum notional",
    "max_leverage": "largest leverage",
    "maintenance": "maintenance margin",
    "borrow_rate": "borrow rate a year",
    "quote_borrow_rate": "quote borrow rate a year",
}


class StatedTerm(NamedTuple):
    """A term by which a symbol is traded, and who said so."""

    value: JsonValue
    source: str
    """Of the store: `given` or an exchange; else `configuration`, `symbol` or `default`."""


Stated = Mapping[str, Mapping[str, StatedTerm]]
"""By symbol and name of the term."""


def stated_terms(
    market: MarketConfig, symbols: Sequence[str], stored: Mapping[str, Instrument]
) -> dict[str, dict[str, StatedTerm]]:
    """Return the terms by which each symbol is traded in a backtest, with their sources.

    Args:
        market: rules as they are configured.
        symbols: that are traded.
        stored: terms of the store.
    """
    known = market.with_terms(symbols, stored)
    return {symbol: _stated(market, known, symbol, stored.get(symbol)) for symbol in symbols}


def _stated(
    market: MarketConfig, known: MarketConfig, symbol: str, stored: Instrument | None
) -> dict[str, StatedTerm]:
    configured = market.instruments.get(symbol, InstrumentTerms()).known()
    sources = {} if stored is None else dict(stored.sources)
    sources |= dict.fromkeys(configured, CONFIGURED)
    whole, kind = known.terms_of(symbol).document(), known.kind_of(symbol)

    def term(name: str, default: JsonValue) -> StatedTerm:
        if name in whole:
            return StatedTerm(whole[name], sources.get(name, WRITTEN))
        return StatedTerm(default, DEFAULT)

    stated = {"kind": term("kind", kind)}
    steps = known.filters_of(symbol)
    for name in _STEPS:
        stated[name] = term(name, 0.0)
        if symbol in known.symbol_filters or known.filters != Filters():
            stated[name] = StatedTerm(getattr(steps, name), CONFIGURED)
    fee, margin = market.costs.taker_fee, market.margin.maintenance
    stated["taker_fee"] = (
        term("taker_fee", TAKER_FEE) if fee is None else StatedTerm(fee, CONFIGURED)
    )
    if kind != "spot":  # which has neither
        stated["max_leverage"] = term("max_leverage", None)
        stated["maintenance"] = (
            term("maintenance", [{"notional": 0.0, "rate": MAINTENANCE}])
            if margin is None
            else StatedTerm([{"notional": 0.0, "rate": margin}], CONFIGURED)
        )
    if kind == "margin":
        stated |= {name: term(name, None) for name in ("borrow_rate", "quote_borrow_rate")}
    stated |= {name: term(name, None) for name in ("listed", "delisted") if name in whole}
    return stated


def stated_document(stated: Stated) -> dict[str, JsonValue]:
    """Return the terms as JSON: a value and a source by symbol and name."""
    return {
        symbol: {name: dict(term._asdict()) for name, term in terms.items()}
        for symbol, terms in stated.items()
    }


def term_lines(document: Mapping[str, JsonValue]) -> list[str]:
    """Return the terms in words, one line for all symbols that share them; defaults are named.

    Args:
        document: of `stated_document`.
    """
    lines: dict[str, list[str]] = {}
    for symbol, terms in document.items():
        if isinstance(terms, dict):
            lines.setdefault(_line(terms), []).append(symbol)
    return [f"{_shared(symbols)}: {line}" for line, symbols in lines.items()]


def _line(terms: Mapping[str, JsonValue]) -> str:
    kind, by_source = "", dict[str, list[str]]()
    for name, term in terms.items():
        if not isinstance(term, dict):
            continue
        value, source = term.get("value"), str(term.get("source"))
        if name == "kind":
            kind = f"{value} ({'as it is written' if source == WRITTEN else source})"
        else:
            by_source.setdefault(source, []).append(_words(name, value))
    defaults = by_source.pop(DEFAULT, [])
    parts = [kind, *(f"{', '.join(words)} ({source})" for source, words in by_source.items())]
    if defaults:
        parts.append(f"not known, so by default {', '.join(defaults)}")
    return "; ".join(parts)


def _words(name: str, value: JsonValue) -> str:
    if value is None or (name in _STEPS and value == 0.0):
        return _UNKNOWN.get(name, f"no {_NAMES.get(name, name)}")
    if name == "maintenance" and isinstance(value, list):
        rates = [tier["rate"] for tier in value if isinstance(tier, dict)]
        shown = f"{rates[0]:g}" if len(rates) == 1 else f"{rates[0]:g} to {rates[-1]:g}"
        return f"{_NAMES[name]} {shown}"
    return f"{_NAMES.get(name, name)} {value:g}" if isinstance(value, float) else f"{name} {value}"


def _shared(symbols: Sequence[str]) -> str:
    if len(symbols) <= 3:
        return ", ".join(symbols)
    return f"{symbols[0]} and {len(symbols) - 1} more"
