"""Replay a journal: every decision again from what was recorded, and the first difference named.

Bars, accounts and prices are those of the journal; features, memory, decisions, gate and sizes are
computed anew, in the same batch. So an agent that decides otherwise today than it did then is found
out, to the last bit. `parity` goes further, where the account was on paper: the backtest engine
itself trades the recorded bars, and every observation, weight and reason is compared, and every
fill in basis points.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stormsail.core.clock import iso
from stormsail.core.errors import DataError
from stormsail.core.files.artifact import Contents, write_artifact
from stormsail.core.files.documents import JsonValue, Record
from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.evaluation.engine.loop import AgentDecider, Decision, run_scenarios
from stormsail.evaluation.engine.scenario import Scenario, ScenarioCache
from stormsail.evaluation.saved import PARITY
from stormsail.execution.decisions.path import DecisionPath, Setup
from stormsail.execution.decisions.standing import DECIDED, read_standing
from stormsail.execution.journal import Journal
from stormsail.functional.risk_gate import Reason
from stormsail.market.bars import PRICES, from_columns
from stormsail.market.features.tensors import FUNDING
from stormsail.market.instruments import Instrument, InstrumentTerms
from stormsail.market.interval import Interval
from stormsail.market.panel import Panel
from stormsail.market.simulator.tape import Tape
from stormsail.modules.agent import Agent

BASIS_POINTS = 1e4
_OPEN, _CLOSED = 2.0, 1.0  # sizes of the column `kind` of a tape


@dataclass(frozen=True)
class Difference(Record):
    """Where a replay first differs from the record."""

    bar: str
    symbol: str
    what: str
    recorded: str
    replayed: str

    def __str__(self) -> str:
        return (
            f"{self.bar} {self.symbol}: {self.what} was {self.recorded}, and is now {self.replayed}"
        )


@dataclass(frozen=True)
class Replayed(Record):
    """A replay: how many decisions, and the first that differs."""

    decisions: int
    bars: int
    difference: Difference | None


@dataclass(frozen=True)
class FillGap(Record):
    """Fills of one symbol against what the simulator expected of them, in basis points.

    Positive is worse than expected.
    """

    symbol: str
    fills: int
    mean_bp: float
    worst_bp: float


@dataclass(frozen=True)
class Parity(Record):
    """The recorded account beside the backtest of the same bars."""

    mode: str
    bars: int
    decisions: int
    decision_differences: int
    """Decisions whose observation, weight or reason is not the same to the last bit."""
    first: Difference | None
    fills: tuple[FillGap, ...]
    words: str

    def document(self) -> dict[str, JsonValue]:
        """Return it as JSON."""
        return {
            **super().document(),
            "first": None if self.first is None else self.first.document(),
            "fills": [gap.document() for gap in self.fills],
        }


@dataclass(frozen=True, eq=False)
class Recording:
    """What a journal holds of decisions: bars as a panel, and rows by bar."""

    journal: Journal
    symbols: tuple[str, ...]
    interval: Interval
    panel: Panel
    times: tuple[int, ...]
    """Open times of the bars that were decided on or read, in order."""
    settings: dict[str, JsonValue]

    @classmethod
    def of(cls, journal: Journal) -> "Recording":
        """Read a journal.

        Raises:
            DataError: if it holds no decision.
        """
        times = [int(str(row[0])) for row in journal.rows("SELECT DISTINCT ts FROM decisions")]
        sessions = journal.rows("SELECT settings FROM sessions ORDER BY id DESC LIMIT 1")
        if not times or not sessions:
            raise DataError(
                "journal-missing",
                wrong=f"{journal.path} must hold decisions",
                found="none",
                remedy="Trade at least one bar first.",
            )
        settings = json.loads(str(sessions[0][0]))
        names = tuple(str(symbol) for symbol in settings["symbols"])
        interval = Interval.parse(journal.meta("interval"))
        instruments = {
            symbol: Instrument(symbol, InstrumentTerms.from_mapping(terms))
            for symbol, terms in settings["instruments"].items()
        }
        panel = recorded_panel(journal, names, interval, instruments)
        return cls(journal, names, interval, panel, tuple(sorted(times)), settings)

    def setup(self, agent: Agent) -> Setup:
        """Return the agent in the market of the record."""
        capital, burn_in = self.settings["capital"], self.settings["burn_in"]
        return Setup.of(
            agent,
            self.panel,
            capital=float(capital),  # type: ignore[arg-type]
            burn_in=int(burn_in),  # type: ignore[arg-type]
        )

    def rows(self, ts: int) -> dict[str, dict[str, object]]:
        """Return what was decided, by symbol."""
        names = ("observation", "weight", "requested", "reason", "order", "kind")
        result = self.journal.rows(
            "SELECT symbol, observation, weight, requested, reason, quantity, kind "
            "FROM decisions WHERE ts = ?",
            ts,
        )
        return {str(row[0]): dict(zip(names, row[1:], strict=True)) for row in result}

    def upto(self, ts: int, rows: int) -> Panel:
        """Return the last rows of the panel, up to a bar."""
        length = self.interval.milliseconds
        return self.panel.between(ts - (rows - 1) * length, ts + 1)


def replay(journal: Journal, agent: Agent) -> Replayed:
    """Decide everything in a journal again; stop at the first difference.

    Raises:
        DataError: if the journal holds no decision.
        ConfigError: if the agent does not fit it.
    """
    recording = Recording.of(journal)
    setup = recording.setup(agent)
    path = DecisionPath(setup)
    count = 0
    for ts in _begun(recording, path):
        standing = read_standing(journal, path, ts)
        window = recording.upto(ts, setup.rows)
        rows = recording.rows(ts)
        observation = path.observe(window, standing.state, standing.step)
        if next(iter(rows.values()))["kind"] != DECIDED:
            path.read(observation)
            continue
        decision = path.decide(standing.step, observation)
        for column, symbol in enumerate(recording.symbols):
            cells = {
                "weight": float(decision.weight[column]),
                "reason": int(standing.ordered.reason[column]),
                "order": float(standing.ordered.order[column]),
            }
            result = _difference(ts, symbol, rows[symbol], observation[column], cells)
            if result is not None:
                return Replayed(count, len(recording.times), result)
        count += len(rows)
    return Replayed(count, len(recording.times), None)


def _begun(recording: Recording, path: DecisionPath) -> tuple[int, ...]:
    """Bring the memory to where the record begins; return the bars that follow.

    A journal that was trimmed begins with a bar after which the memory was kept.

    Raises:
        DataError: if it was cut elsewhere.
    """
    first, *later = recording.times
    if read_standing(recording.journal, path, first).step == 0:
        path.warm(recording.upto(first, path.setup.rows))
        return recording.times
    kept = recording.journal.memory(first)
    if kept is None:
        raise DataError(
            "journal-damaged",
            wrong=f"a journal must begin with the first decision, or where it was trimmed, "
            f"{recording.journal.path}",
            found=f"{iso(first)}, without what the agent remembered then",
            remedy="Replay a copy from before rows were deleted by other means than "
            "`stormsail trim`.",
        )
    path.restore(*kept)
    return tuple(later)


def _difference(
    ts: int, symbol: str, row: Mapping[str, object], observation: Tensor, now: Mapping[str, float]
) -> Difference | None:
    """Return the first difference between a recorded decision and one that was made again."""
    own = observation.numpy()
    was = np.frombuffer(row["observation"], dtype=np.float64)  # type: ignore[call-overload]
    if own.shape != was.shape:
        return Difference(iso(ts), symbol, "columns", str(len(was)), str(len(own)))
    other = np.flatnonzero(_bits(own) != _bits(was))
    if other.size:
        place = int(other[0])
        name = f"column {place} of the observation"
        return Difference(iso(ts), symbol, name, repr(was[place]), repr(own[place]))
    for name, number in now.items():
        if not _same(row[name], number):
            return Difference(iso(ts), symbol, name, repr(row[name]), repr(number))
    return None


def parity(journal: Journal, agent: Agent) -> Parity:
    """Trade the recorded bars with the backtest engine; compare decisions and fills.

    The engine meets the recorded prices at each open, and orders that were not filled are blocked.
    Decisions are compared from the first bar to the first break of the record (a bar that nobody
    decided on, or a limit of the operator that cut the weight), after which the accounts differ by
    right.

    Raises:
        DataError: if the journal holds no decision.
        ConfigError: if the agent does not fit it.
    """
    recording = Recording.of(journal)
    setup = recording.setup(agent)
    mode = journal.meta("mode")
    fills = tuple(fill_gaps(journal))
    first, compared, differences = None, 0, 0
    words = "a live account is compared by its fills alone"
    if mode == "paper" and _trimmed(recording):
        words = "a trimmed journal is compared by its fills alone"
    elif mode == "paper":
        words = "the backtest engine on the recorded bars"
        for difference in _engine(recording, setup):
            compared += 1
            if difference is not None:
                differences += 1
                first = first or difference
    return Parity(mode, len(recording.times), compared, differences, first, fills, words)


def _trimmed(recording: Recording) -> bool:
    """Return whether the first decisions of the account are no longer there."""
    query = "SELECT step FROM decisions WHERE ts = ? LIMIT 1"
    return recording.journal.rows(query, recording.times[0]) != [(0,)]


def write_parity(path: Path, result: Parity) -> None:
    """Write a parity report into a new folder, which `stormsail report` reads.

    Raises:
        ArtifactError: if the path is taken or the disk refuses.
    """
    write_artifact(path, kind=PARITY, contents=Contents(documents={PARITY: result.document()}))


def _engine(recording: Recording, setup: Setup) -> Iterator[Difference | None]:
    """Yield for each decision of the engine whether it differs from the record."""
    times = _unbroken(recording)
    scenario = _scenario(recording, setup, times)
    levels = None
    if setup.terms.market.action == "levels":
        levels = setup.terms.market.offered_levels
    decider = _Watched(setup.agent, setup.config, levels, len(setup.symbols))
    for ts, bar in zip(times, run_scenarios([scenario], [decider]), strict=False):
        rows = recording.rows(ts)
        for column, symbol in enumerate(recording.symbols):
            cells = {
                "weight": float(bar.weight[column]),
                "reason": int(bar.fill.reason[column]),
            }
            yield _difference(ts, symbol, rows[symbol], decider.seen[column], cells)


class _Watched(AgentDecider):
    """An agent that keeps what it saw last."""

    seen: Tensor

    def decide(self, index: int, observation: Tensor) -> Decision:
        """Remember the observation, and decide."""
        self.seen = observation
        return super().decide(index, observation)


def _unbroken(recording: Recording) -> list[int]:
    """Return the bars from the first on that follow each other and were decided freely."""
    times: list[int] = []
    for ts in recording.times:
        rows = recording.rows(ts)
        if times and ts != times[-1] + recording.interval.milliseconds:
            break
        free = (_same(row["weight"], _plain(row["requested"])) for row in rows.values())
        if not all(free) or any(row["kind"] != DECIDED for row in rows.values()):
            break
        times.append(ts)
    return times


def _scenario(recording: Recording, setup: Setup, times: Sequence[int]) -> Scenario:
    """Return the recorded bars as a scenario of the engine, with recorded opens and orders."""
    ts = recording.panel.ts.tolist()
    first = ts.index(times[0])
    last = min(first + len(times), len(ts) - 1)
    scenario = ScenarioCache().scenario(
        recording.panel,
        _config(setup),
        (first, last),
        features=(setup.terms.features, setup.terms.scaler),
        burn_in=setup.config.burn_in,
    )
    tape = scenario.tape
    rows = tape.rows.clone()
    length = tape.length
    by_symbol = _openings(recording)
    for column, symbol in enumerate(recording.symbols):
        for place, opened in enumerate(times):
            row = column * length + first + place + 1
            if first + place + 1 > last:
                continue
            reference, rate, notional, may_trade, filled, quantity = by_symbol[opened][symbol]
            kind = _OPEN if may_trade and (filled or quantity == 0.0) else _CLOSED
            sign = -1.0 if rows[row, -1] < 0 else 1.0
            rows[row, 0] = reference
            rows[row, 4], rows[row, 5], rows[row, -1] = rate, notional, sign * kind
    return replace(scenario, tape=Tape(rows, length, marks=False, delists=False))


def _config(setup: Setup) -> BacktestConfig:
    """Return the configuration; it demands no rates, since the record holds what settled."""
    market = setup.config.market
    assert market is not None  # noqa: S101 - `with_market` fills it in
    return setup.config.replace(market=market.replace(funding_missing="zero").model_dump())


def _openings(recording: Recording) -> dict[int, dict[str, tuple[float, ...]]]:
    rows = recording.journal.rows(
        "SELECT d.ts, d.symbol, d.reference, d.rate, d.notional, d.may_trade, "
        "coalesce((SELECT max(CAST(filled AS REAL)) FROM order_states o WHERE o.bar_ms = d.ts "
        "AND o.symbol = d.symbol AND o.leg = 'target'), 0.0), d.quantity "
        "FROM decisions d"
    )
    result: dict[int, dict[str, tuple[float, ...]]] = {}
    for ts, symbol, *numbers in rows:
        cells = tuple(float(str(number)) for number in numbers)
        result.setdefault(int(str(ts)), {})[str(symbol)] = cells
    return result


def fill_gaps(journal: Journal) -> Iterator[FillGap]:
    """Yield how fills compare with the simulator's expectation, by symbol."""
    rows = journal.rows(
        "SELECT f.symbol, f.side, f.price, d.expected_price FROM fills f "
        "JOIN intents i ON i.client_id = f.client_id "
        "JOIN decisions d ON d.ts = i.bar_ms AND d.symbol = i.symbol "
        "WHERE i.leg = 'target' AND d.expected_price IS NOT NULL"
    )
    gaps: dict[str, list[float]] = {}
    for symbol, side, price, expected in rows:
        gap = (float(str(price)) / float(str(expected)) - 1.0) * BASIS_POINTS
        gaps.setdefault(str(symbol), []).append(gap if side == "buy" else -gap)
    for symbol, own in sorted(gaps.items()):
        yield FillGap(symbol, len(own), float(np.mean(own)), float(np.max(own)))


def reason_counts(journal: Journal) -> dict[str, int]:
    """Return how often each reason of the risk gate was given."""
    rows = journal.rows("SELECT reason, count(*) FROM decisions GROUP BY reason")
    return {Reason(int(str(reason))).name: int(str(count)) for reason, count in rows}


def recorded_panel(
    journal: Journal,
    symbols: Sequence[str],
    interval: Interval,
    instruments: Mapping[str, Instrument],
) -> Panel:
    """Return the bars of a journal as a panel, funding included."""
    bars, funding = [], {}
    for symbol in symbols:
        rows = journal.rows(
            "SELECT ts, open, high, low, close, volume, extra FROM bars WHERE symbol = ? "
            "ORDER BY ts",
            symbol,
        )
        extras = [json.loads(str(row[6])) for row in rows]
        columns = {
            name: [row[place] for row in rows]
            for place, name in enumerate(("ts", *PRICES, "volume"))
        } | {name: [extra[name] for extra in extras] for name in extras[0] if name != FUNDING}
        bars.append(from_columns(symbol, interval, columns))
        funding[symbol] = dict(
            zip(columns["ts"], [extra.get(FUNDING) for extra in extras], strict=True)
        )
    panel = Panel.from_bars(bars, instruments=instruments)
    table = torch.tensor(
        [[funding[symbol].get(ts) or 0.0 for symbol in symbols] for ts in panel.ts.tolist()],
        dtype=torch.float64,
    )
    known = [any(rate is not None for rate in own.values()) for own in funding.values()]
    return replace(
        panel,
        funding=table,
        has_funding=torch.tensor(known),
        settlements=None,
        rates_missing=None,
    )


def _bits(numbers: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.ascontiguousarray(numbers).view(np.int64)


def _plain(number: object) -> float:
    return float("nan") if number is None else float(number)  # type: ignore[arg-type]


def _same(recorded: object, now: float) -> bool:
    """Return whether two numbers are the same; None stands for one that is not finite."""
    if recorded is None:
        return not np.isfinite(now)
    return _plain(recorded) == now
