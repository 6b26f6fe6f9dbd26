"""`Standing`: what was decided at a close and is carried to the next; its rows in the journal."""

import json
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stormsail.core.errors import DataError
from stormsail.evaluation.engine.loop import Decision
from stormsail.execution.decisions.bar_window import Row
from stormsail.execution.decisions.ledger import account_documents, accounts_from
from stormsail.execution.decisions.path import DAY_MS, DecisionPath, Opening
from stormsail.execution.journal import Journal
from stormsail.execution.operator.status import Health, Sleeve, Snapshot
from stormsail.execution.order_gate import OrderGate, Refusal, TradingState
from stormsail.functional.risk_gate import Reason
from stormsail.market.bars import PRICES
from stormsail.market.features.tensors import FUNDING
from stormsail.market.panel import Panel
from stormsail.market.simulator.account import Fill, State, held_weight

DECIDED, MISSED = "decided", "missed"
"""Kinds of rows: the agent decided, or only read the bar because nobody was there in time."""


@dataclass(frozen=True, eq=False)
class Standing:
    """Accounts at a close and what was decided there.

    Attributes:
        ts: open time of the bar on whose close it was decided.
        step: number of the decision; the agent's episodes are counted by it.
        state: accounts at that close.
        requested: weights that reached the risk gate.
        opening: by which orders were sized.
        ordered: what gate and sizes made of it.
        stopped: accounts whose decisions have ended for good, bool.
        booked: newest fill and funding payment that are in `state`.
    """

    ts: int
    step: int
    state: State
    requested: Tensor
    opening: Opening
    ordered: Fill
    stopped: Tensor
    booked: tuple[int, int]

    @property
    def equity(self) -> float:
        """Of all accounts together."""
        return float(self.state.equity.sum())

    @property
    def gross(self) -> float:
        """Size of all positions together."""
        return float((self.state.quantity * self.state.price).abs().sum())

    def sleeves(
        self, symbols: Sequence[str], refusals: Sequence[Refusal | None]
    ) -> tuple[Sleeve, ...]:
        """Return what an operator sees of each symbol."""
        state, ordered = self.state, self.ordered
        weight = held_weight(state)
        unrealised = state.quantity * (state.price - state.entry_price)
        return tuple(
            Sleeve(
                symbol=symbol,
                quantity=float(state.quantity[column]),
                price=float(state.price[column]),
                weight=float(weight[column]),
                target=number(self.requested[column]),
                allowed=number(ordered.weight_after[column]),
                reason=_refusal_words(refusal) or Reason(int(ordered.reason[column])).name,
                equity=float(state.equity[column]),
                unrealised=float(unrealised[column]),
            )
            for column, (symbol, refusal) in enumerate(zip(symbols, refusals, strict=True))
        )


def _refusal_words(refusal: Refusal | None) -> str:
    return "" if refusal is None else f"{refusal.limit}: {refusal.words}"


@dataclass(frozen=True, eq=False)
class Decided:
    """What belongs to a decision beside its standing."""

    decision: Decision
    observation: Tensor
    cvar: float | None


def snapshot_of(
    standing: Standing,
    symbols: Sequence[str],
    refusals: Sequence[Refusal | None],
    journal: Journal,
    gate: OrderGate,
    peaks: tuple[float, float],
    cvar: float | None,
    health: Health,
    at_ms: int,
) -> Snapshot:
    """Return what an operator sees after a decision.

    Args:
        standing: what was decided.
        symbols: in the order of the accounts.
        refusals: of the order gate, by symbol.
        journal: of the account.
        gate: what may be sent, and why not all.
        peaks: highest equity, and that with which the day began.
        cvar: predicted tail of the account.
        health: of the trader.
        at_ms: when it was.
    """
    pending, binding = journal.pending(), journal.binding
    return Snapshot(
        at_ms=at_ms,
        bar_ms=standing.ts,
        mode=binding.mode,
        account=binding.account,
        venue=binding.venue,
        interval=binding.interval,
        state=gate.state,
        reasons=gate.reasons,
        equity=standing.equity,
        peak=peaks[0],
        day_start=peaks[1],
        gross=standing.gross,
        cvar=cvar,
        sleeves=standing.sleeves(symbols, refusals),
        open_orders=len(pending),
        unsettled=sum(intent.kind in (None, "unknown") for intent in pending),
        bars=standing.step + 1,
        health=health,
    )


def decision_rows(
    standing: Standing,
    symbols: Sequence[str],
    decided: Decided | None,
    refusals: Sequence[Refusal | None],
    *,
    session: int,
    trading_state: TradingState,
    now_ms: int,
) -> list[dict[str, object]]:
    """Return the rows of a bar, one for each symbol; None where the agent only read it."""
    ordered, opening = standing.ordered, standing.opening
    columns: dict[str, Sequence[object]] = {
        "requested": _numbers(standing.requested),
        "allowed": _numbers(ordered.weight_after),
        "reason": ordered.reason.tolist(),
        "reference": opening.price.tolist(),
        "rate": opening.rate.tolist(),
        "notional": opening.notional.tolist(),
        "may_trade": opening.may_trade.int().tolist(),
        "quantity": ordered.order.tolist(),
        "expected_price": _numbers(ordered.price),
        "expected_fee": _numbers(ordered.fee),
        "account": _accounts(standing),
        "refusal": [_refusal_words(own) for own in refusals],
        "sent": [
            int(own is None and order != 0.0)
            for own, order in zip(refusals, ordered.order.tolist(), strict=True)
        ],
        **_decided_columns(decided, len(symbols)),
    }
    shared = {
        "ts": standing.ts,
        "session": session,
        "step": standing.step,
        "kind": MISSED if decided is None else DECIDED,
        "trading_state": trading_state,
        "cvar": None if decided is None else decided.cvar,
        "decided_ms": now_ms,
    }
    return [
        {**shared, "symbol": symbol, **{name: cells[row] for name, cells in columns.items()}}
        for row, symbol in enumerate(symbols)
    ]


def _accounts(standing: Standing) -> list[str]:
    fill, payment = standing.booked
    stopped = standing.stopped.tolist()
    return [
        json.dumps({**document, "stopped": ended, "fills": fill, "funding": payment})
        for document, ended in zip(account_documents(standing.state), stopped, strict=True)
    ]


def _decided_columns(decided: Decided | None, count: int) -> dict[str, Sequence[object]]:
    nothing: list[object] = [None] * count
    if decided is None:
        return {"weight": nothing, "value": nothing, "observation": [b""] * count}
    value, spread = decided.decision.value, decided.decision.distribution
    return {
        "weight": _numbers(decided.decision.weight),
        "value": nothing if value is None else _numbers(value),
        "observation": [row.tobytes() for row in decided.observation.numpy()],
        "distribution": nothing if spread is None else [row.tobytes() for row in spread.numpy()],
    }


def read_standing(journal: Journal, path: DecisionPath, ts: int) -> Standing:
    """Return the standing of a bar from the journal, to the last bit.

    Raises:
        DataError: if the journal is of other symbols.
    """
    symbols = path.setup.symbols
    rows = journal.rows(
        "SELECT symbol, step, account, requested, reference, rate, notional, may_trade "
        "FROM decisions WHERE ts = ?",
        ts,
    )
    by_symbol = {str(row[0]): row for row in rows}
    if set(by_symbol) != set(symbols):
        raise DataError(
            "journal-account",
            wrong=f"the journal must be of the symbols {', '.join(symbols)}",
            found=", ".join(sorted(by_symbol)) or "none",
            remedy="Trade the symbols of the journal, or name another folder.",
        )
    table = [by_symbol[symbol] for symbol in symbols]
    accounts = [json.loads(str(row[2])) for row in table]
    cells = [[np.nan if cell is None else cell for cell in row[3:]] for row in table]
    requested, reference, rate, notional, may_trade = torch.tensor(
        cells, dtype=torch.float64
    ).unbind(-1)
    length = path.setup.terms.features.interval.milliseconds
    new_day = (ts + length) // DAY_MS != ts // DAY_MS
    opening = Opening(reference, rate, notional, may_trade > 0, torch.full((len(table),), new_day))
    state = accounts_from(accounts, path.opened(reference))
    return Standing(
        ts,
        int(str(table[0][1])),
        state,
        requested,
        opening,
        path.fill(state, requested, opening.bar()),
        torch.tensor([bool(account["stopped"]) for account in accounts]),
        (int(accounts[0]["fills"]), int(accounts[0]["funding"])),
    )


def _bar_record(symbol: str, ts: int, row: Row, now_ms: int) -> tuple[object, ...]:
    extra = {name: cell for name, cell in row.items() if name not in (*PRICES, "volume")}
    return symbol, ts, *(row[name] for name in (*PRICES, "volume")), json.dumps(extra), now_ms


def panel_records(panel: Panel, after_ms: int | None, now_ms: int) -> list[tuple[object, ...]]:
    """Return the bars of a panel that open after a time, as rows of the journal."""
    times = panel.ts.tolist()
    first = 0 if after_ms is None else bisect_right(times, after_ms)
    columns = {name: getattr(panel, name) for name in (*PRICES, "volume")} | dict(panel.optional)
    cells = {name: own[first:].tolist() for name, own in columns.items()}
    funding, funded = panel.funding[first:].tolist(), panel.has_funding.tolist()
    rows = []
    for place, came in enumerate(panel.tradable[first:].tolist()):
        for column, symbol in enumerate(panel.symbols):
            if came[column]:
                row = {name: float(own[place][column]) for name, own in cells.items()}
                if funded[column]:
                    row[FUNDING] = funding[place][column]
                rows.append(_bar_record(symbol, times[first + place], row, now_ms))
    return rows


def number(value: Tensor | float) -> float | None:
    """Return a number; None where it is not finite, which SQL has no number for."""
    plain = float(value)
    return plain if math.isfinite(plain) else None


def _numbers(column: Tensor) -> list[object]:
    return [number(value) for value in column.tolist()]
