"""A ccxt exchange under our rules: its clock, its pace and its answers are ours to see.

ccxt sends each request once if it is told so; that is checked here. Its HTTP session is ours as
well: see `plain_session`.
"""

import logging
from collections.abc import Mapping
from typing import Any, Protocol, cast

from stormsail.core.clock import Clock
from stormsail.core.errors import InvariantError
from stormsail.execution.connection.outcomes import Exchanged
from stormsail.execution.connection.plain_session import plain_session
from stormsail.execution.connection.rate_budget import RateBudget
from stormsail.execution.connection.wire import not_done
from stormsail.execution.secrets import Secret
from stormsail.market.fetch.client import Client, check_base_url, load_ccxt, moved

_MS = 1_000_000
_TOO_MANY, _BANNED = 429, 418
_QUIET_S = 30.0
_BAN_S = 120.0


class TradingClient(Client, Protocol):
    """The part of a ccxt exchange that trading uses."""

    exchanged: Exchanged
    urgent: bool
    patience_s: float

    def market(self, symbol: str) -> Mapping[str, Any]:
        """Return ccxt's description of a market."""

    def create_order(
        self,
        symbol: str,
        type: str,
        side: str,
        amount: str,
        price: str | None,
        params: Mapping[str, object],
    ) -> object:
        """Send an order."""


def open_client(
    exchange: str,
    *,
    market_type: str,
    key: Secret | None,
    secret: Secret | None,
    clock: Clock,
    budget: RateBudget,
    weight_of_cost: float,
    base_url: str | None = None,
    timeout_s: float = 10.0,
) -> TradingClient:
    """Return a ccxt client that sends nothing twice and keeps to a shared budget.

    Args:
        exchange: its ccxt id.
        market_type: the only list of markets that is loaded, in ccxt's words.
        key: of the account; None for public data.
        secret: of the key.
        clock: stamps the requests.
        budget: every request takes its weight from it, or is not sent.
        weight_of_cost: the exchange's weight of what ccxt counts as cost 1.
        base_url: scheme, host and port in place of every host; for the loopback exchange.
        timeout_s: how long one answer may take.

    Raises:
        ConfigError: if ccxt is not installed.
        InvariantError: if ccxt would repeat a request, or send it to a proxy.
    """
    base = getattr(load_ccxt(), exchange)
    settings: dict[str, object] = {
        "enableRateLimit": True,
        "timeout": round(timeout_s * 1000),
        "verbose": False,
        "apiKey": key.reveal() if key else "",
        "secret": secret.reveal() if secret else "",
        "options": {
            "fetchMarkets": {"types": [market_type]},
            "fetchMargins": False,
            "warnOnFetchOpenOrdersWithoutSymbol": False,
        },
    }
    made = _observed(base, clock, budget, weight_of_cost)(settings)
    made.has["fetchCurrencies"] = False
    made.session.close()
    made.session = plain_session()
    if base_url is not None:
        made.urls["api"] = moved(made.urls["api"], check_base_url(base_url))
    # ccxt writes whole requests, keys included, to its log at DEBUG.
    logging.getLogger("ccxt").setLevel(logging.WARNING)
    check_sends_once(made)
    check_goes_directly(made)
    return cast("TradingClient", made)


def check_sends_once(client: Any) -> None:  # noqa: ANN401 - a ccxt exchange
    """Refuse a client that would repeat a failed request.

    Raises:
        InvariantError: if an option of ccxt, or of its HTTP session, asks for retries.
    """
    problems = [f"option {name}" for name in _retries_in(client.options)]
    for prefix, adapter in client.session.adapters.items():
        retries = getattr(adapter, "max_retries", None)
        if retries is not None and retries.total:
            problems.append(f"{retries.total} retries of the HTTP session for {prefix}")
    if problems:
        raise InvariantError(
            "unexpected",
            wrong="a client that sends orders must send each request once",
            found=", ".join(problems),
            remedy="An order that is sent twice is bought twice. Report this with the version of "
            "ccxt that is installed.",
        )


def check_goes_directly(client: Any) -> None:  # noqa: ANN401 - a ccxt exchange
    """Refuse a client with a proxy, which would see and could change every order.

    Raises:
        InvariantError: if a setting of ccxt names one.
    """
    names = (name for name in dir(client) if "prox" in name.lower())
    named = [name for name in names if not _is_own(client, name) and getattr(client, name)]
    if named:
        raise not_done(", ".join(named))


def _is_own(client: Any, name: str) -> bool:  # noqa: ANN401 - a ccxt exchange
    """Return whether a name is a method of the client, and no callback that was set."""
    return callable(getattr(type(client), name, None))


def _retries_in(options: Mapping[str, object], path: str = "") -> list[str]:
    settings = []
    for name, value in options.items():
        if name == "maxRetriesOnFailure" and value:
            settings.append(f"{path}{name}={value}")
        if isinstance(value, Mapping):
            settings += _retries_in(value, f"{path}{name}.")
    return settings


def _observed(base: Any, clock: Clock, budget: RateBudget, weight_of_cost: float) -> Any:  # noqa: ANN401 - classes of ccxt
    """Return a subclass of a ccxt exchange that notes what was sent and what came back."""

    class Observed(base):  # type: ignore[misc]
        exchanged = Exchanged()
        urgent = False
        patience_s = 0.0

        def milliseconds(self) -> int:
            return clock.now_ns() // _MS

        def throttle(self, cost: float | None = None) -> None:
            self.exchanged = Exchanged()
            weight = (1.0 if cost is None else cost) * weight_of_cost
            budget.acquire(weight, urgent=self.urgent, patience_s=self.patience_s)

        def fetch(
            self,
            url: str,
            method: str = "GET",
            headers: object = None,
            body: object = None,
        ) -> object:
            budget.check_ban()  # another connection may have been told of one in the meantime
            self.exchanged.sent = True
            return super().fetch(url, method, headers, body)

        def parse_order(self, order: object, market: object = None) -> object:  # noqa: ARG002
            """Leave an order as it came: it is read from the answer, and field by field checked."""
            return order

        def on_rest_response(
            self,
            code: int,
            reason: str,
            url: str,
            method: str,
            response_headers: Mapping[str, str],
            response_body: str,
            request_headers: object,
            request_body: object,
        ) -> object:
            _note(self.exchanged, code, response_headers, response_body, budget)
            return super().on_rest_response(
                code, reason, url, method, response_headers, response_body,
                request_headers, request_body,
            )  # fmt: skip

    Observed.__name__ = base.__name__
    return Observed


def _note(
    exchanged: Exchanged, status: int, headers: Mapping[str, str], body: str, budget: RateBudget
) -> None:
    exchanged.status = int(status)
    exchanged.headers = {name.lower(): value for name, value in headers.items()}
    exchanged.body = body or ""
    used = exchanged.headers.get("x-mbx-used-weight-1m", "")
    if used.isdigit():
        budget.observed(int(used))
    wait = exchanged.headers.get("retry-after", "")
    if exchanged.status == _BANNED:
        budget.ban(float(wait) if wait.isdigit() else _BAN_S)
    elif exchanged.status == _TOO_MANY:
        budget.quiet(float(wait) if wait.isdigit() else _QUIET_S)
