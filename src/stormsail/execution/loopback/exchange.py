"""`Exchange`: the loopback exchange without its sockets. A request goes in, a reply comes out.

It holds the only truth: candles, the account, orders, the clock, request weights and bans. What
goes wrong is decided by `script`. A route that it does not know is an error of the test, and is
kept in `unknown`.
"""

import hashlib
import hmac
import json
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal
from urllib.parse import parse_qsl

from stormsail.core.errors import InvariantError
from stormsail.execution.loopback import routes
from stormsail.execution.loopback.account import FuturesAccount, SpotAccount
from stormsail.execution.loopback.clock import VirtualClock
from stormsail.execution.loopback.faults import LOST_BEFORE, STREAM, WORLD, Fault, Group
from stormsail.execution.loopback.ledger import Ledger
from stormsail.execution.loopback.limits import Limits
from stormsail.execution.loopback.orders import Dialect, Fill, HeldOrder, Listing, Numbers
from stormsail.execution.loopback.orders import RefusalError as Refusal
from stormsail.execution.loopback.routes import Route, Served
from stormsail.execution.loopback.streams import Feed
from stormsail.execution.loopback.tape import Candle

API_KEY, API_SECRET = "loopback-key", "loopback-secret"
Wire = Literal["send", "refuse", "reset", "hang", "torn", "cut", "drip"]
RECV_WINDOW_MS = 5000

RIGHTS = {
    "ipRestrict": True,
    "enableReading": True,
    "enableSpotAndMarginTrading": True,
    "enableFutures": True,
    "enableMargin": False,
    "enableWithdrawals": False,
    "enableInternalTransfer": False,
    "permitsUniversalTransfer": False,
    "enableVanillaOptions": False,
    "enablePortfolioMarginTrading": False,
}
"""What the key may do, in Binance's words."""


@dataclass(frozen=True)
class Request:
    """One request as it arrived."""

    path: str
    params: dict[str, str]
    headers: dict[str, str]
    method: str = "GET"
    signed: str = ""
    """The text that the signature covers, with the signature."""


@dataclass(frozen=True)
class Reply:
    """What is sent back, and what the connection does with it."""

    status: int
    body: str
    headers: dict[str, str]
    group: Group
    number: int
    wire: Wire = "send"
    seconds: float = 0.0


class _Tapes(dict[tuple[str, str], list[Candle]]):
    """Candles by market and interval; a market that gets its first ones is listed."""

    def __init__(self, listings: dict[str, Listing], make: Callable[[str], Listing]) -> None:
        super().__init__()
        self._listings, self._make = listings, make

    def __setitem__(self, key: tuple[str, str], rows: list[Candle]) -> None:
        super().__setitem__(key, rows)
        if key[0] not in self._listings:
            self._listings[key[0]] = self._make(key[0])

    def __delitem__(self, key: tuple[str, str]) -> None:
        super().__delitem__(key)
        if all(market != key[0] for market, _interval in self):
            self._listings.pop(key[0], None)


def _spot_listing(market_id: str) -> Listing:
    return Listing(market_id, market_id.removesuffix("USDT"), "USDT")


def _perp_listing(market_id: str) -> Listing:
    listing = _spot_listing(market_id)
    listing.min_notional = Decimal(100)
    listing.maker_fee, listing.taker_fee = Decimal("0.0002"), Decimal("0.0005")
    return listing


@dataclass(repr=False)
class Exchange:
    """The exchange.

    Attributes:
        clock: its time; None for an archive, in which every candle is published.
        now_ms: the time of an archive, if it has one: the end of what is published.
        script: faults by group and number of the request in that group, counted from 1.
        always: a fault for each request of a group that the script does not name.
        struck: the faults that were met, in order.
        on_request: called with group, number and `before` or `after` the answer is sent.
        windowed: answer only candles of the window of `limit` bars, as some exchanges do.
        requests: everything that arrived.
        unknown: routes that it does not have and was asked for.
        url: where it is served; empty where it is not.
    """

    clock: VirtualClock | None = None
    now_ms: int | None = None
    script: dict[tuple[Group, int], Fault] = field(default_factory=dict)
    always: dict[Group, Fault] = field(default_factory=dict)
    struck: list[tuple[Group, int, Fault]] = field(default_factory=list)
    on_request: Callable[[Group, int, str], None] = lambda _group, _number, _moment: None
    windowed: bool = False
    requests: list[Request] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    rights: dict[str, bool] = field(default_factory=lambda: dict(RIGHTS))
    api_key: str = API_KEY
    api_secret: str = API_SECRET
    check_limits: bool = True
    url: str = ""

    def __repr__(self) -> str:
        return f"Exchange({self.url or 'not served'}, {len(self.requests)} requests)"

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        self.funding: dict[str, list[tuple[int, str]]] = {}
        self.feed = Feed()
        numbers = Numbers()
        self.ledgers: dict[Dialect, Ledger] = {}
        makers: dict[Dialect, Callable[[str], Listing]] = {
            "spot": _spot_listing,
            "perp": _perp_listing,
        }
        for dialect, make in makers.items():
            listings: dict[str, Listing] = {}
            account = SpotAccount() if dialect == "spot" else FuturesAccount()
            tapes = _Tapes(listings, make)
            book = Ledger(dialect, tapes, self.funding, account, numbers, listings)
            book.emit = self._emit(dialect)
            self.ledgers[dialect] = book
        self.limits = {dialect: Limits(dialect) for dialect in self.ledgers}
        self.maintenance_ms = 0
        self.stale_ms = 0
        self.skew_ms, self._skew_end = 0, 0
        self._halts: dict[str, int] = {}
        self._counts: Counter[Group] = Counter()

    @property
    def spot(self) -> dict[tuple[str, str], list[Candle]]:
        """Candles of spot markets by market and interval, as Binance writes both."""
        tapes = self.ledgers["spot"].tapes
        assert isinstance(tapes, dict)  # noqa: S101 - for the type checker
        return tapes

    @property
    def perp(self) -> dict[tuple[str, str], list[Candle]]:
        """Candles of perpetuals, likewise."""
        tapes = self.ledgers["perp"].tapes
        assert isinstance(tapes, dict)  # noqa: S101 - for the type checker
        return tapes

    @property
    def banned(self) -> int:
        """Requests that arrived during a ban."""
        return sum(limits.during_ban for limits in self.limits.values())

    def of_group(self, group: Group) -> list[Request]:
        """Return the requests of a group that arrived."""
        return [r for r in self.requests if routes.group_of(r.method, r.path) == group]

    def reset(self) -> None:
        """Forget requests, faults and the ban, but neither the market nor the account."""
        self.script, self.always, self.struck = {}, {}, []
        self.requests, self.unknown = [], []
        self._counts.clear()
        self.limits = {dialect: Limits(dialect) for dialect in self.ledgers}
        self.on_request = lambda _group, _number, _moment: None

    def deposit(self, dialect: Dialect, asset: str, amount: str) -> None:
        """Give money to the account."""
        self.ledgers[dialect].deposit(asset, Decimal(amount))

    def advance(self) -> int:
        """Let the exchange catch up with its clock; return its time."""
        with self.lock:
            now = self.time_ms()
            for book in self.ledgers.values():
                book.advance(now)
            for market_id, end in list(self._halts.items()):
                if now >= end:
                    del self._halts[market_id]
                    for book in self.ledgers.values():
                        if market_id in book.listings:
                            book.listings[market_id].status = "TRADING"
            if self._skew_end and now >= self._skew_end:
                self.skew_ms, self._skew_end = 0, 0
            if self.clock is not None:
                self.feed.advance(now, self.ledgers)
            return now

    def time_ms(self) -> int:
        """Return the exchange's time; 0 for an archive that has none."""
        return self.clock.now_ms() if self.clock is not None else self.now_ms or 0

    def audit(self) -> None:
        """Prove the accounts from their history, and that nothing unknown was asked for.

        Raises:
            InvariantError: if something is amiss.
        """
        with self.lock:
            for book in self.ledgers.values():
                book.audit()
        if self.unknown:
            raise InvariantError(
                "unexpected",
                wrong="every route must be one that the loopback exchange has",
                found=", ".join(sorted(set(self.unknown))),
                remedy="Add it to `execution/loopback/routes.py`, or stop asking for it.",
            )

    def handle(self, request: Request) -> Reply:
        """Answer a request, or do to it what the script says."""
        route = routes.find(request.method, request.path)
        with self.lock:
            self.requests.append(request)
            group: Group = route.group if route else "other"
            self._counts[group] += 1
            number = self._counts[group]
        self.on_request(group, number, "before")
        with self.lock:
            self.advance()
            if route is None:
                self.unknown.append(f"{request.method} {request.path}")
                return self._reply(group, number, 404, '{"code":-1,"msg":"no such route"}')
            fault = self.script.get((group, number), self.always.get(group))
            return self._handled(route, request, number, fault)

    def _handled(self, route: Route, request: Request, number: int, fault: Fault | None) -> Reply:
        group, now = route.group, self.time_ms()
        limits = self.limits[route.dialect]
        if fault is not None:
            self.struck.append((group, number, fault))
            if fault.kind in WORLD or fault.kind in STREAM:
                self._happen(fault, route, request, now)
            if fault.kind == "ban":  # this request is told of it; the next one is one too many
                return self._reply(group, number, *limits.banned(now))
        if self.clock is not None and self.check_limits:
            over = limits.check(route.weight(request.params), now, order=group == "order")
        else:
            over = limits.check_ban(now)
        if over is not None:
            return self._reply(group, number, *over)
        if now < self.maintenance_ms:
            return self._reply(group, number, 503, "<html>maintenance</html>")
        if fault is not None and fault.kind in LOST_BEFORE:
            return self._lost(fault, group, number, now, limits)
        return self._answered(route, request, number, fault)

    def _lost(self, fault: Fault, group: Group, number: int, now: int, limits: Limits) -> Reply:
        if fault.kind == "status":
            if fault.status == 418:
                limits.ban(now, fault.headers)
            return self._reply(group, number, fault.status, fault.body, fault.headers)
        wire: Wire = "hang" if fault.kind == "hang" else "reset"
        wire = "refuse" if fault.kind == "refuse" else wire
        return Reply(0, "", {}, group, number, wire, fault.seconds)

    def _answered(self, route: Route, request: Request, number: int, fault: Fault | None) -> Reply:
        kind = fault.kind if fault is not None else ""
        served = Served(self, request.params, None)
        try:
            if route.signed:
                self._check_signature(request, route)
            answer = route.answer(served)
        except Refusal as refusal:
            body = json.dumps({"code": refusal.code, "msg": refusal.words})
            return self._reply(route.group, number, refusal.status, body)
        if served.order is not None and fault is not None and kind in ("late", "hidden"):
            self._hide(served.order, fault)
        if fault is None or kind in WORLD or kind in STREAM:
            return self._reply(route.group, number, 200, json.dumps(answer))
        return self._spoilt(fault, answer, route.group, number)

    def _spoilt(self, fault: Fault, answer: object, group: Group, number: int) -> Reply:
        """Return a reply after the effect, with something wrong."""
        right = json.dumps(answer)
        if fault.kind == "rows":
            return self._reply(group, number, 200, json.dumps(fault.rows(answer)))
        if fault.kind == "text":
            return self._reply(group, number, 200, fault.body)
        if fault.kind == "status_after":
            return self._reply(group, number, fault.status, fault.body, fault.headers)
        if fault.kind in ("late", "hidden"):
            lost = '{"code":-1007,"msg":"Timeout waiting for response. Send status unknown."}'
            return self._reply(group, number, 408, lost)
        wires: dict[str, Wire] = {"reset_after": "reset", "hang_after": "hang"}
        wires |= {"torn": "torn", "cut": "cut", "drip": "drip"}
        return Reply(200, right, {}, group, number, wires[fault.kind], fault.seconds)

    def _hide(self, order: HeldOrder, fault: Fault) -> None:
        until = self.time_ms() + round(fault.seconds * 1000)
        order.query_ms = until
        if fault.kind == "late":
            order.visible_ms = until

    def _check_signature(self, request: Request, route: Route) -> None:
        names = {name.lower(): value for name, value in request.headers.items()}
        if names.get("x-mbx-apikey") != self.api_key:
            raise Refusal(-2015, "Invalid API-key, IP, or permissions for action.", 401)
        text, _, signature = request.signed.rpartition("&signature=")
        right = hmac.new(self.api_secret.encode(), text.encode(), hashlib.sha256).hexdigest()
        if not hmac.compare_digest(right, signature):
            raise Refusal(-1022, "Signature for this request is not valid.")
        stamp = int(dict(parse_qsl(text)).get("timestamp", "0"))
        window = int(request.params.get("recvWindow", RECV_WINDOW_MS))
        now = self.server_ms()
        if not now - window <= stamp <= now + 1000:
            raise Refusal(-1021, "Timestamp for this request is outside of the recvWindow.")
        if not self.rights[route.right]:
            raise Refusal(-2015, "Invalid API-key, IP, or permissions for action.", 401)

    def server_ms(self) -> int:
        """Return the time that the exchange tells, which a fault may have set wrong."""
        return self.time_ms() + self.skew_ms

    def _reply(
        self,
        group: Group,
        number: int,
        status: int,
        body: str,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        return Reply(status, body, headers or {}, group, number)

    def _happen(self, fault: Fault, route: Route, request: Request, now: int) -> None:
        """Let something happen at the exchange."""
        book, end = self.ledgers[route.dialect], now + round(fault.seconds * 1000)
        market_id = request.params.get("symbol", next(iter(book.listings), ""))
        if fault.kind in STREAM:
            self.feed.strike(fault.kind, end)
        elif fault.kind == "maintenance":
            self.maintenance_ms = end
        elif fault.kind == "ban":
            for limits in self.limits.values():
                limits.banned_until = end
        elif fault.kind == "skew":
            self.skew_ms, self._skew_end = 10_000, end
        elif fault.kind == "stale":
            self.stale_ms = end
        elif market_id in book.listings:
            _change(book, fault.kind, market_id)
            if fault.kind == "halt":
                self._halts[market_id] = end

    def _emit(self, dialect: Dialect) -> Callable[[HeldOrder, Fill | None], None]:
        return lambda order, fill: self.feed.order(dialect, order, fill, self.time_ms())


def _change(book: Ledger, kind: str, market_id: str) -> None:
    """Change something about a market or the account, as the world does without asking."""
    listing = book.listings[market_id]
    if kind == "partial":
        book.partial = Decimal("0.5")
    elif kind == "overfill":
        book.overfill = True
    elif kind == "fill_first":
        book.fill_open(market_id)
    elif kind == "third_fee" and isinstance(book.account, SpotAccount):
        book.deposit("BNB", Decimal(10))
        book.account.fee_asset = "BNB"
    elif kind == "manual_close":
        book.close_by_hand(market_id)
    elif kind == "external":
        book.external_order(market_id, listing.lot * 3, "web")
    elif kind == "liquidate":
        book.liquidate()
    elif kind == "filters":
        listing.lot, listing.min_quantity = listing.lot * 10, listing.min_quantity * 10
        listing.tick = listing.tick * 10
    elif kind in ("halt", "delist"):
        listing.status = "BREAK" if kind == "halt" else "DELISTED"
