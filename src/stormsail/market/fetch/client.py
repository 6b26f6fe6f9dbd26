"""`connect` to an exchange with ccxt without keys, and requests with retries that avoid bans.

ccxt paces requests but does not repeat one that failed, and some of its parsers turn an answer
that is no JSON into an empty list. So each request goes through `Requester`, which reads the HTTP
response itself: status, headers, and whether there was JSON at all.
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from types import ModuleType
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

import numpy as np

from stormsail.core.clock import Clock, iso
from stormsail.core.errors import ChoiceError, ConfigError, RangeError, VenueError, nearest

T = TypeVar("T")

_BANNED, _TOO_MANY = 418, 429
_PASSING = frozenset({408, 409, 425, _TOO_MANY})  # the statuses below 500 that time alone may cure
_QUERY = re.compile(r"\?[^\s?]*=\S*")
_STREAM = re.compile(r"(wss?://[^\s/]+)/\S*")
_BAN_END = re.compile(r"until (\d{13})")
_NANOSECONDS_PER_MS = 1_000_000


class Session(Protocol):
    """The part of a requests session that is used."""

    hooks: dict[str, list[Callable[..., None]]]


class Client(Protocol):
    """The part of a ccxt exchange that is used."""

    id: str
    urls: dict[str, object]
    has: dict[str, object]
    options: dict[str, object]
    timeframes: Mapping[str, str]
    fees: Mapping[str, object]
    precisionMode: int  # noqa: N815 - ccxt's name
    markets: Mapping[str, Mapping[str, object]] | None
    session: Session
    enableLastJsonResponse: bool  # noqa: N815 - ccxt's name
    last_json_response: object

    def load_markets(self, reload: bool) -> object:  # noqa: FBT001 - ccxt's signature
        """Load what can be traded."""

    def feature_value(self, symbol: str, method: str, name: str) -> object:
        """Return what ccxt knows about a method of the exchange."""

    def fetch_ohlcv(self, symbol: str, timeframe: str, since: int, limit: int) -> object:
        """Return one page of candles."""

    def fetch_funding_rate_history(
        self, symbol: str, since: int, limit: int, params: Mapping[str, object]
    ) -> object:
        """Return one page of funding rates."""

    def fetch_market_leverage_tiers(self, symbol: str) -> object:
        """Return the margin tiers of one market."""

    def fetch_leverage_tiers(self, symbols: Sequence[str]) -> object:
        """Return the margin tiers of markets."""


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how long to retry requests to an exchange.

    Attributes:
        tries: times a request is sent, the first included.
        first_s: wait before the second try; each further one doubles it.
        longest_s: no wait is longer. An exchange that demands more ends the fetch with that time.
    """

    tries: int = 6
    first_s: float = 1.0
    longest_s: float = 120.0

    def __post_init__(self) -> None:
        if not (self.tries >= 1 and 0.0 <= self.first_s <= self.longest_s):
            raise RangeError(
                wrong="`tries` must be at least 1 and 0 <= `first_s` <= `longest_s`",
                found=f"tries={self.tries}, first_s={self.first_s}, longest_s={self.longest_s}",
                remedy="Use the defaults, or raise `longest_s`.",
            )


def connect(
    exchange: str, symbols: Sequence[str], *, base_url: str | None = None, timeout_s: float = 20.0
) -> Client:
    """Return a ccxt client for public market data: paced, without keys, quiet.

    Args:
        exchange: its ccxt id.
        symbols: to be fetched; only the market lists that these need are loaded.
        base_url: scheme, host and port that stand in for every host of the exchange; the paths
            stay. For tests and mirrors.
        timeout_s: how long one answer may take.

    Raises:
        ConfigError: if ccxt is not installed.
        ChoiceError: if ccxt has no such exchange.
    """
    ccxt = load_ccxt()
    if exchange not in ccxt.exchanges:
        near = nearest(exchange, ccxt.exchanges)
        raise ChoiceError(
            wrong=f"`exchange` must be one of the {len(ccxt.exchanges)} that ccxt knows",
            found=f"`{exchange}`",
            remedy=f"Did you mean `{near}`?" if near else "Write its ccxt id, as in `binance`.",
        )
    settings: dict[str, object] = {
        "enableRateLimit": True,
        "timeout": round(timeout_s * 1000),
        "verbose": False,
    }
    if exchange == "binance":  # by default it would load all its three market lists
        kinds = sorted({_binance_kind(symbol) for symbol in symbols}) or ["spot"]
        settings["options"] = {"fetchMarkets": {"types": kinds}, "fetchMargins": False}
    client: Client = getattr(ccxt, exchange)(settings)
    client.has["fetchCurrencies"] = False  # not needed for bars, and often asks for keys
    if base_url is not None:
        client.urls["api"] = moved(client.urls["api"], check_base_url(base_url))
    # ccxt writes whole requests and answers to its log at DEBUG.
    logging.getLogger("ccxt").setLevel(logging.WARNING)
    return client


def load_ccxt() -> ModuleType:
    """Return the ccxt package.

    Raises:
        ConfigError: if it is not installed.
    """
    try:
        import ccxt
    except ImportError as error:
        raise ConfigError(
            "missing-extra",
            wrong="a connection to an exchange needs the package ccxt",
            found="no such package in this environment",
            remedy="Run `pip install 'stormsail[exchange]'`.",
        ) from error
    module: ModuleType = ccxt
    return module


def _binance_kind(symbol: str) -> str:
    base, _, rest = symbol.partition("/")
    settle = rest.partition(":")[2]
    if not settle:
        return "spot"
    return "inverse" if settle == base else "linear"


def check_base_url(base_url: str) -> str:
    """Return an address that can stand in for an exchange's hosts.

    Raises:
        ConfigError: if it is more or less than a scheme, a host and a port.
    """
    parts = urlsplit(base_url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path.strip("/"):
        raise ConfigError(
            "config-value",
            wrong="a base address must be a scheme, a host and a port and nothing else",
            found=f"`{base_url}`",
            remedy="Write for example `http://127.0.0.1:8080`.",
        )
    return base_url.rstrip("/")


def moved(urls: object, base_url: str) -> object:
    """Return the addresses with every host replaced, however deep they are nested."""
    if isinstance(urls, dict):
        return {name: moved(value, base_url) for name, value in urls.items()}
    return base_url + urlsplit(urls).path if isinstance(urls, str) else urls


class Requester:
    """Sends requests to an exchange: retries, waits, counts, and turns failures into errors.

    Args:
        client: a ccxt exchange; its responses are recorded through a hook of its session.
        clock: waits between tries, and the time that Retry-After dates are compared with.
        generator: jitter of the waits, so that many clients do not return at the same moment.
        retry: how often and how long.
    """

    def __init__(
        self, client: Client, clock: Clock, generator: np.random.Generator, retry: RetryPolicy
    ) -> None:
        self.client = client
        self.requests = 0
        self.retries = 0
        self._clock = clock
        self._generator = generator
        self._retry = retry
        self._status: int | None = None
        self._headers: Mapping[str, str] = {}
        client.enableLastJsonResponse = True
        client.session.hooks["response"] = [self._record]

    def now_ms(self) -> int:
        """Return the earlier of our time and that of the exchange's last response.

        A clock that runs ahead would take a forming bar for a finished one.
        """
        own = self._clock.now_ns() // _NANOSECONDS_PER_MS
        date = _date_ms(self._headers.get("Date"))
        return own if date is None else min(own, date)

    def request(self, what: str, call: Callable[[], T]) -> T:
        """Return the result of `call`, retried as often as the policy allows.

        Raises:
            VenueError: if the exchange refuses, bans, does not answer or answers no JSON.
        """
        ccxt = load_ccxt()
        failure: _Failure | None = None
        for attempt in range(self._retry.tries):
            if failure is not None:
                self.retries += 1
                self._clock.sleep(self._wait(failure, attempt - 1, what))
            self.requests += 1
            self._status, self._headers, self.client.last_json_response = None, {}, None
            try:
                answer = call()
            except ccxt.BaseError as error:
                failure = self._transient(error, what)
                continue
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                raise response_error(
                    self.client, what, f"something ccxt cannot read ({type(error).__name__})"
                ) from error
            if self._has_json():
                return answer
            failure = _Failure("response", "no JSON", None)
        raise self._exhausted(failure, what)

    def _has_json(self) -> bool:
        # ccxt hands text on where JSON should be, and its parsers read both that and {} as nothing.
        return self.client.last_json_response is not None and self.client.last_json_response != {}

    def _record(self, response: "_Response", *_args: object, **_kwargs: object) -> None:
        self._status, self._headers = response.status_code, response.headers

    def _transient(self, error: Exception, what: str) -> "_Failure":
        """Return a failure that a retry may cure; raise the error for any other."""
        ccxt = load_ccxt()
        words = one_line(error)
        if self._status == _BANNED:
            raise self._ban(words, what) from error
        if isinstance(error, ccxt.BadSymbol):
            raise symbol_error(self.client.id, what, words, None) from error
        final = self._status is not None and 400 <= self._status < 500
        if (final and self._status not in _PASSING) or not isinstance(error, ccxt.OperationFailed):
            raise VenueError(
                "venue-refused",
                wrong=f"{self.client.id} must answer a request for {what}",
                found=words,
                remedy="Repeating it will not help: check the symbol, the interval and whether "
                "the exchange serves your country without an account.",
            ) from error
        if self._status == _TOO_MANY or isinstance(
            error, ccxt.DDoSProtection | ccxt.RateLimitExceeded
        ):
            return _Failure("rate", words, self._demanded_s())
        kind = "response" if isinstance(error, ccxt.BadResponse) else "network"
        return _Failure(kind, words, self._demanded_s())

    def _wait(self, failure: "_Failure", attempt: int, what: str) -> float:
        """Return how long to wait before the next try; raise if the exchange demands too long."""
        own = min(self._retry.first_s * 2.0**attempt, self._retry.longest_s)
        own *= 0.5 + 0.5 * float(self._generator.random())
        if failure.demanded_s is None:
            return own
        if failure.demanded_s > self._retry.longest_s:
            raise self._rate_limit(failure, what)
        return max(own, failure.demanded_s)

    def _demanded_s(self) -> float | None:
        """Return the seconds of a Retry-After header, which is a number or a date."""
        text = self._headers.get("Retry-After", "").strip()
        if re.fullmatch(r"\d{1,9}", text):
            return float(text)
        date = _date_ms(text)
        if date is None:
            return None
        return max(0.0, (date - self._clock.now_ns() // _NANOSECONDS_PER_MS) / 1000.0)

    def _ban(self, words: str, what: str) -> VenueError:
        end, seconds = _BAN_END.search(words), self._demanded_s()
        if end is not None:
            until = f"until {iso(int(end[1]))}"
        elif seconds is not None:
            until = f"until {iso(self._clock.now_ns() // _NANOSECONDS_PER_MS + int(seconds * 1e3))}"
        else:
            until = "for a time it does not state"
        return VenueError(
            "venue-ban",
            wrong=f"{self.client.id} must accept requests from this address to give {what}",
            found=f"HTTP 418, banned {until}",
            remedy="No further request was sent. Wait until then, and stop other programs that use "
            "the same address: asking during a ban prolongs it.",
        )

    def _rate_limit(self, failure: "_Failure", what: str) -> VenueError:
        when = ""
        if failure.demanded_s is not None:
            end = self._clock.now_ns() // _NANOSECONDS_PER_MS + int(failure.demanded_s * 1000)
            when = f", not before {iso(end)}"
        return VenueError(
            "venue-rate-limit",
            wrong=f"{self.client.id} must have requests left for {what}",
            found=f"{failure.words}{when}",
            remedy="Run the command again later; what was fetched is kept. Other programs on "
            "this address use up the same limit.",
        )

    def _exhausted(self, failure: "_Failure | None", what: str) -> VenueError:
        words = failure.words if failure else "nothing"
        tries = f"{self._retry.tries} tries"
        if failure is not None and failure.kind == "rate":
            return self._rate_limit(_Failure("rate", f"{words} after {tries}", None), what)
        if failure is not None and failure.kind == "response":
            return response_error(self.client, what, f"{words} in {tries}")
        return VenueError(
            "venue-unreachable",
            wrong=f"{self.client.id} must answer a request for {what}",
            found=f"{words} after {tries}",
            remedy="Check the connection and the exchange's status page, then run the command "
            "again: it goes on where it was.",
        )


@dataclass(frozen=True)
class _Failure:
    kind: str
    words: str
    demanded_s: float | None


class _Response(Protocol):
    status_code: int
    headers: Mapping[str, str]


def response_error(client: Client, what: str, found: str) -> VenueError:
    """Return the error for an answer that cannot be what was requested."""
    return VenueError(
        "venue-response",
        wrong=f"the answer of {client.id} for {what} must be what was requested",
        found=found,
        remedy="Nothing of this answer was stored. Run the command again; if it stays, the "
        "exchange has changed or something between stands in its place.",
    )


def symbol_error(exchange: str, what: str, found: str, choices: Sequence[str] | None) -> VenueError:
    """Return the error for a symbol that the exchange does not have."""
    near = nearest(what, choices) if choices else None
    return VenueError(
        "venue-symbol",
        wrong=f"{what} must be a market of {exchange}",
        found=found,
        remedy=f"Did you mean `{near}`?" if near else "Check the symbol on the exchange's page.",
    )


def one_line(error: Exception) -> str:
    """Return what a client library says, in one line and without what signs a request.

    It quotes whole addresses: their queries hold signatures, those of streams the key to listen.
    """
    words = _QUERY.sub("", _STREAM.sub(r"\1", " ".join(str(error).split())))
    return words[:200].rstrip(". ") or type(error).__name__


def _date_ms(text: str | None) -> int | None:
    try:
        return int(parsedate_to_datetime(text).timestamp() * 1000) if text else None
    except ValueError:
        return None
