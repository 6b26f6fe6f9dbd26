"""Compare runs, backtests and validations, and warn where their figures must not be compared.

Two returns are comparable only if they were earned on the same bars at the same costs. So what
differs comes before any figure: spans, symbols, bars, costs, rules. A figure that such a difference
spoils is shown, but none is marked as the better one.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stormsail.core.config import toml
from stormsail.core.errors import ArgumentError, RangeError
from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.compare.rows import (
    FIGURES,
    Row,
    figure_rows,
    hash_rows,
    key,
    reason_rows,
    setting_rows,
)
from stormsail.evaluation.compare.sources import Curve, Entry, read_entry
from stormsail.evaluation.saved import names_of
from stormsail.evaluation.stats.equal_tail import EqualTail, TailLimit, equal_tail, mean_gain
from stormsail.evaluation.stats.figures import returns_of
from stormsail.evaluation.stats.statement import Statement

_PER_BAR = frozenset({"value_at_risk", "cvar", "skew"})
_MONEY = frozenset({"fees", "funding", "slippage"})
_ALL = frozenset(FIGURES)
_NONE: frozenset[str] = frozenset()

_RULES = ("degrade", "delay_bars", "filters", "market", "pool_bars", "symbol_filters")
"""Settings by which accounts are kept; `market.costs` is a term of its own, and whether actions are
drawn is the term `policy`."""

_OWN = (
    "market.action", "market.costs", "market.degrade", "market.episode_bars", "market.features",
    "market.initial_equity", "market.levels", "market.randomise", "market.reward_clip",
    "market.ruin_penalty", "market.weight_range",
)  # fmt: skip
"""Settings of the market that are terms of their own, or by which an agent observes, acts and
learns: agents that differ in these are comparable."""

_MUST = ("span", "symbols", "interval", "data", "costs")
"""Terms that must be known of backtests and validations."""


class Caveat(NamedTuple):
    """A difference between entries that figures depend on."""

    name: str
    words: str
    spoils: frozenset[str]
    """Figures that cannot be compared because of it."""


class Difference(NamedTuple):
    """Difference of the returns of two entries on the same bars."""

    first: str
    second: str
    mean: Statement
    """Mean over the bars of the second's return less the first's, with its 95 % interval."""

    @property
    def words(self) -> str:
        """The finding in plain words."""
        pair, mean = f"{self.second} minus {self.first}", self.mean
        if mean.value is None or mean.low is None or mean.high is None:
            return f"{pair}: {mean.reason}"
        numbers = f"{mean.value:+.4%} a bar, 95 % interval {mean.low:+.4%} to {mean.high:+.4%}"
        if mean.low > 0.0 or mean.high < 0.0:
            return f"{pair}: {numbers}; significant: the interval leaves 0 out"
        return f"{pair}: {numbers}; not significant: the interval holds 0"


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two or more entries side by side.

    Attributes:
        entries: what is compared.
        caveats: what differs that figures depend on, worst first.
        figures: one row a figure that any of them has.
        differences: of each entry from the first, on common bars.
        tails: what a limit buys beside a smaller position of the first; of validations alone.
        settings: one row a setting that differs.
        hashes: one row a hash.
        reasons: one row a rule of the verdicts; empty without validations.
    """

    entries: tuple[Entry, ...]
    caveats: tuple[Caveat, ...]
    figures: tuple[Row, ...]
    differences: tuple[Difference, ...]
    tails: tuple[EqualTail, ...]
    settings: tuple[Row, ...]
    hashes: tuple[Row, ...]
    reasons: tuple[Row, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """What the entries are called."""
        return tuple(entry.name for entry in self.entries)

    @property
    def findings(self) -> tuple[str, ...]:
        """What pairs of entries came to, in plain words."""
        differences = tuple(difference.words for difference in self.differences)
        return differences + tuple(tail.words for tail in self.tails)

    @property
    def comparable(self) -> bool:
        """Whether returns may be compared."""
        return not any(caveat.spoils == _ALL for caveat in self.caveats)


def compare_results(paths: Sequence[Path | str]) -> Comparison:
    """Read the folders of at least two runs, backtests or validations and compare them.

    Raises:
        ArgumentError: if there are fewer than two.
        RangeError: if one is given twice.
        ArtifactError: if one is missing, damaged, or something else.
    """
    folders = _checked([Path(path) for path in paths])
    if len(folders) < 2:
        raise ArgumentError(
            "missing-argument",
            wrong="at least two folders must be given to be compared",
            found=f"{len(folders)}",
            remedy="Name runs, backtests or validations; one alone is shown by `stormsail report`.",
        )
    entries = [
        read_entry(folder, name=name)
        for folder, name in zip(folders, names_of(folders), strict=True)
    ]
    return compare_entries(entries)


def compare_entries(entries: Sequence[Entry]) -> Comparison:
    """Compare entries that were read before."""
    caveats = tuple(_caveats(entries))
    spoiled = frozenset[str]().union(*(caveat.spoils for caveat in caveats))
    return Comparison(
        entries=tuple(entries),
        caveats=caveats,
        figures=tuple(figure_rows(entries, spoiled)),
        differences=tuple(_differences(entries)),
        tails=tuple(_tails(entries)),
        settings=tuple(setting_rows(entries)),
        hashes=tuple(hash_rows(entries)),
        reasons=tuple(reason_rows(entries)),
    )


# ------------------------------------------------------------------ what differs


class _Term(NamedTuple):
    """Something that entries must share, what to say where they do not, and what it spoils."""

    title: str
    consequence: str
    spoils: frozenset[str]
    show: Callable[[JsonValue], str] = toml.shown


def _shown_span(value: JsonValue) -> str:
    if isinstance(value, list) and len(value) == 2:
        return f"{value[0]} to {value[1]}"
    return toml.shown(value)


def _shown_hash(value: JsonValue) -> str:
    return str(value)[:12]


def _yes(value: JsonValue) -> str:
    return "yes" if value else "no"


_TERMS: Mapping[str, _Term] = {
    "task": _Term("tasks", "Scores of different tasks cannot be compared.", _ALL),
    "span": _Term(
        "spans",
        "Returns, drawdowns and tails of different times cannot be compared.",
        _ALL,
        _shown_span,
    ),
    "symbols": _Term("symbols", "Figures of different markets cannot be compared.", _ALL),
    "interval": _Term("lengths of a bar", "Figures of one bar cannot be compared.", _PER_BAR),
    "data": _Term(
        "stored bars",
        "They differ in values or in how far they reach, so what was traded may not be the same.",
        _ALL,
        _shown_hash,
    ),
    "costs": _Term("costs", "What is left after different costs cannot be compared.", _ALL),
    "start_equity": _Term("sums at the start", "Sums of money cannot be compared.", _MONEY),
    "seen": _Term(
        "bars of training in the span", "One was tested on what its agent had seen.", _ALL, _yes
    ),
    "chosen_on": _Term(
        "bars of the agent's choice in the span",
        "One was tested where its agent was chosen, which flatters it.",
        _ALL,
        _yes,
    ),
    "policy": _Term(
        "policies",
        "Likeliest actions are compared with drawn ones, whose result is one draw of many.",
        _NONE,
    ),
    "episode_bars": _Term("bars of an episode", "Scores are returns of an episode.", _ALL),
    "episodes": _Term("episodes of an evaluation", "Scores have different errors.", _NONE),
    "folds": _Term("test windows of the folds", "Agents were retrained at other times.", _NONE),
    "seeds": _Term("seeds", "Figures pool different numbers or choices of agents.", _NONE),
}


def _caveats(entries: Sequence[Entry]) -> Iterable[Caveat]:
    kinds = {entry.kind for entry in entries}
    if len(kinds) > 1:
        values = "; ".join(f"{entry.name}: a {entry.kind}" for entry in entries)
        words = "Their figures are about different things."
        yield Caveat("kind", f"kinds differ ({values}). {words}", _ALL)
    for name, term in _TERMS.items():
        # bars of other symbols or lengths are other bars: once is enough
        implied = name == "data" and (_differs(entries, "symbols") or _differs(entries, "interval"))
        if not implied and _differs(entries, name):
            values = _values(entries, name, term.show)
            yield Caveat(name, f"{term.title} differ ({values}). {term.consequence}", term.spoils)
        elif len(kinds) == 1 and (unknown := _unknown(entries, name)):
            words = f"{term.title} are not known of {unknown}: they may differ."
            yield Caveat(name, f"{words} {term.consequence}", term.spoils)
    yield from _rule_caveat(entries)
    versions = {entry.code_version for entry in entries}
    if len(versions) > 1:
        values = "; ".join(f"{entry.name}: {entry.code_version}" for entry in entries)
        words = "The same settings may give other numbers."
        yield Caveat("code_version", f"versions of stormsail differ ({values}). {words}", _NONE)


def _rule_caveat(entries: Sequence[Entry]) -> Iterable[Caveat]:
    traded = [entry for entry in entries if entry.kind != "run"]
    names = [
        row.name
        for row in setting_rows(traded)
        if row.name.partition(".")[0] in _RULES and not row.name.startswith(_OWN)
    ]
    if names:
        listed = ", ".join(f"`{name}`" for name in names)
        words = "What was earned under different rules cannot be compared."
        yield Caveat("rules", f"rules of the accounts differ ({listed}). {words}", _ALL)


def _known(entries: Sequence[Entry], term: str) -> list[tuple[str, JsonValue]]:
    values = [(entry.name, entry.terms.get(term)) for entry in entries]
    return [(name, value) for name, value in values if value is not None]


def _differs(entries: Sequence[Entry], term: str) -> bool:
    return len({key(value) for _, value in _known(entries, term)}) > 1


def _unknown(entries: Sequence[Entry], term: str) -> str:
    """Return the names of entries that lack a term which others have, or which is required."""
    without = [entry.name for entry in entries if entry.terms.get(term) is None]
    must = term in _MUST and any(entry.kind != "run" for entry in entries)
    return ", ".join(without) if must or len(without) < len(entries) else ""


def _values(entries: Sequence[Entry], term: str, show: Callable[[JsonValue], str]) -> str:
    """Return the values of a term; of tables only what differs."""
    known = _known(entries, term)
    tables = [(name, value) for name, value in known if isinstance(value, dict)]
    if len(tables) < len(known):
        return "; ".join(f"{name}: {show(value)}" for name, value in known)
    parts = []
    for part in sorted({part for _, table in tables for part in table}):
        values = [(name, table.get(part)) for name, table in tables]
        if len({key(value) for _, value in values}) > 1:
            listed = ", ".join(f"{name} {show(value)}" for name, value in values)
            parts.append(f"`{part}` {listed}")
    return "; ".join(parts)


# ------------------------------------------------------------------ bar by bar


def _differences(entries: Sequence[Entry]) -> Iterable[Difference]:
    """Yield how each equity curve differs from the first; runs have none."""
    traded = [entry for entry in entries if entry.kind != "run"]
    for entry in traded[1:]:
        yield Difference(traded[0].name, entry.name, _mean_difference(traded[0], entry))


def _tails(entries: Sequence[Entry]) -> Iterable[EqualTail]:
    """Yield each account with a limit on its tail beside a part of the first one."""
    traded = [entry for entry in entries if entry.kind != "run"]
    for entry in traded[1:]:
        if (tail := _equal_tail(traded[0], entry)) is not None:
            yield tail


def _equal_tail(first: Entry, second: Entry) -> EqualTail | None:
    """Return what the limit of the second buys; None without one, or without a better tail."""
    head = "training."
    training = {
        path.removeprefix(head): value
        for path, value in second.settings.items()
        if path.startswith(head)
    }
    limit = TailLimit.of(training)
    if limit is None or first.curve is None or second.curve is None:
        return None
    if _why_unpaired(first, second):
        return None
    own, other = returns_of(first.curve.y), returns_of(second.curve.y)
    bar_ms = _bar_ms(first.curve)
    return equal_tail(first.name, own, second.name, other, limit, bar_ms=bar_ms)


def _mean_difference(first: Entry, second: Entry) -> Statement:
    """Compare two equity curves bar by bar, where both were marked at the same times."""
    why = _why_unpaired(first, second)
    if first.curve is None or second.curve is None or why:
        return Statement(None, why=why)
    gain = returns_of(second.curve.y) - returns_of(first.curve.y)
    return mean_gain(gain, bar_ms=_bar_ms(first.curve))


def _why_unpaired(first: Entry, second: Entry) -> str:
    """Return why the bars of two equity curves are no pairs; nothing where they are."""
    if first.curve is None or second.curve is None:
        return "one has no equity curve"
    if not np.array_equal(first.curve.x, second.curve.x):
        return "the bars are not the same, so nothing can be paired"
    if first.terms.get("data") != second.terms.get("data"):
        return "the stored bars differ, so nothing can be paired"
    return ""


def _bar_ms(curve: Curve) -> int:
    return int(curve.x[1] - curve.x[0])


def _checked(folders: Sequence[Path]) -> Sequence[Path]:
    """Refuse a folder that is given twice."""
    whole = [Path(os.path.realpath(folder)) for folder in folders]
    for place, folder in enumerate(whole):
        if folder in whole[:place]:
            raise RangeError(
                wrong="each folder must be given once",
                found=f"{folders[place]} again",
                remedy="Leave the second one out.",
            )
    return folders
