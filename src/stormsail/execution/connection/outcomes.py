"""Whether an order was accepted, refused, or nobody knows: by what the exchange answered.

Only an answer on the allow-list below counts as a refusal. Error classes of client libraries are no
help: ccxt gives one class to codes that refuse and to codes that say "execution status unknown",
and another class to the same code on another market. Everything else is unknown, and is settled by
asking the exchange for the order.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from stormsail.execution.venue import Refused, Unknown

NOT_SENT = "not-sent"

DEFINITIVE: Mapping[int, str] = {
    -1002: "not authorised",
    -1003: "over the request limit",
    -1013: "a filter of the market",
    -1014: "combination of order parameters",
    -1015: "over the order limit",
    -1020: "operation not supported",
    -1021: "clock outside of the receive window",
    -1022: "signature",
    -1100: "illegal characters",
    -1101: "too many parameters",
    -1102: "missing parameter",
    -1103: "unknown parameter",
    -1104: "unread parameters",
    -1105: "empty parameter",
    -1106: "parameter not required",
    -1111: "precision",
    -1114: "time in force not required",
    -1115: "time in force",
    -1116: "order type",
    -1117: "side",
    -1118: "empty client id",
    -1121: "symbol",
    -1128: "combination of optional parameters",
    -1130: "parameter value",
    -2010: "rejected by the matching engine",
    -2014: "format of the key",
    -2015: "key, address or permissions",
    -2018: "balance",
    -2019: "margin",
    -2020: "unable to fill",
    -2021: "would trigger at once",
    -2022: "would not reduce",
    -2023: "account in liquidation",
    -2024: "position not sufficient",
    -2025: "open order limit",
    -2026: "type cannot be reduce-only",
    -2027: "position above the leverage's maximum",
    -2028: "leverage below the margin's minimum",
    -4001: "price below 0",
    -4003: "quantity below 0",
    -4004: "quantity below the minimum",
    -4005: "quantity above the maximum",
    -4013: "price below the minimum",
    -4014: "price off the tick",
    -4015: "client id",
    -4016: "price above the collar",
    -4023: "quantity off the lot",
    -4024: "price below the collar",
    -4061: "position side",
    -4120: "order type belongs to another route",
    -4131: "counterparty's price outside of the collar",
    -4140: "market not open for orders",
    -4164: "notional below the minimum",
    -4400: "account may only reduce",
    -5021: "fill-or-kill could not fill",
    -5022: "post-only would take",
}
"""Binance's codes that say: this request had no effect. Spot and USD-M futures."""

_DUPLICATE = ("duplicate",)
"""A refusal because the name is taken says that an order of this name exists: ask for it."""

_CANCEL_GONE = -2011


@dataclass
class Exchanged:
    """One request and its answer, as they were on the wire.

    Attributes:
        sent: whether the request may have left this machine.
        status: of HTTP; None where no answer came.
        headers: with lower-case names.
        body: text of the answer.
    """

    sent: bool = False
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""

    def json(self) -> object:
        """Return the answer as JSON; None where it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    def code(self) -> int | None:
        """Return the exchange's code of an error; None where there is none."""
        answer = self.json()
        code = answer.get("code") if isinstance(answer, dict) else None
        if isinstance(code, bool) or not isinstance(code, int | str):
            return None
        try:
            return int(code)
        except ValueError:
            return None

    def words(self) -> str:
        """Return what the exchange said, in one short line."""
        answer = self.json()
        message = answer.get("msg") if isinstance(answer, dict) else None
        text = message if isinstance(message, str) else self.body
        line = " ".join(text.split())[:160]
        return f"HTTP {self.status}: {line or 'nothing'}"


def refused_or_unknown(exchanged: Exchanged, problem: str) -> Refused | Unknown:
    """Judge a request that did not end well.

    Args:
        exchanged: the request and its answer.
        problem: what the client library said, for the journal.
    """
    if not exchanged.sent:
        return Refused(NOT_SENT, problem)
    if exchanged.status is None:
        return Unknown(f"no answer: {problem}")
    code = exchanged.code()
    words = exchanged.words()
    if code is None or not _is_refusal(exchanged.status, code):
        return Unknown(words)
    if any(mark in words.lower() for mark in _DUPLICATE):
        return Unknown(f"the client id is taken: {words}")
    return Refused(str(code), words)


def gone_or_unknown(exchanged: Exchanged, problem: str) -> Refused | Unknown:
    """Judge a cancellation that did not end well; -2011 says that no such order is open."""
    if exchanged.status is not None and exchanged.code() == _CANCEL_GONE:
        return Refused(str(_CANCEL_GONE), exchanged.words())
    return refused_or_unknown(exchanged, problem)


def _is_refusal(status: int, code: int) -> bool:
    return 400 <= status < 500 and status != 408 and code in DEFINITIVE
