"""An exchange on the loopback: speaks as much of Binance's spot and USD-M dialect as ccxt needs.

It holds the only truth (candles, funding rates, its clock, the ban) and a script of faults. Tests
point the real ccxt client at `Venue.url`; nothing leaves this machine.
"""

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

import numpy as np

HOUR = 3_600_000
UNITS = {"m": 60_000, "h": HOUR, "d": 24 * HOUR, "w": 7 * 24 * HOUR}

Candle = list  # the twelve fields of a Binance kline
Rows = Callable[[list], object]


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one answer.

    Attributes:
        kind: `status`, `reset`, `hang`, `torn`, `cut`, `text` or `rows`.
        status: HTTP status of `status`.
        body: text of `status`, `text` and `cut`.
        headers: extra headers.
        seconds: how long `hang` is silent.
        rows: what `rows` makes of the right answer.
    """

    kind: str
    status: int = 200
    body: str = "{}"
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    rows: Rows = list


@dataclass(frozen=True)
class Request:
    """One request as it arrived."""

    path: str
    params: dict[str, str]
    headers: dict[str, str]


def candles(seed: int, count: int, *, start: int, step: int = HOUR) -> list[Candle]:
    """Draw candles as Binance writes them: decimal texts, twelve fields."""
    generator = np.random.Generator(np.random.PCG64(seed))
    close = 20_000.0 * np.exp(np.cumsum(generator.normal(0.0, 0.01, count)))
    rows = []
    for number in range(count):
        ts = start + number * step
        opens = close[number - 1] if number else close[0]
        low, high = sorted((opens, close[number]))
        volume = float(generator.uniform(1.0, 999.0))
        quote = volume * close[number]
        share = float(generator.uniform(0.0, 1.0))
        rows.append(
            [
                ts,
                f"{opens:.2f}",
                f"{high * 1.001:.2f}",
                f"{low * 0.999:.2f}",
                f"{close[number]:.2f}",
                f"{volume:.8f}",
                ts + step - 1,
                f"{quote:.8f}",
                int(generator.integers(1, 100_000)),
                f"{volume * share:.8f}",
                f"{quote * share:.8f}",
                "0",
            ]
        )
    return rows


def rates(seed: int, count: int, *, start: int, step: int = 8 * HOUR) -> list[tuple[int, str]]:
    """Draw funding rates; like the real ones, they settle some milliseconds late."""
    generator = np.random.Generator(np.random.PCG64(seed))
    return [
        (start + number * step + int(generator.integers(0, 12)), f"{value:.8f}")
        for number, value in enumerate(generator.normal(1e-4, 2e-4, count))
    ]


class Venue:
    """The exchange. Use it as a context; the server ends with it.

    Attributes:
        spot, perp: candles by (market id, interval as Binance writes it).
        funding: rates by market id.
        script: faults by number of the request for candles or rates, counted from 1.
        always: a fault for each such request that the script does not name.
        on_request: called with that number before the answer is sent, and after.
        now_ms: if set, the time in the Date header and the end of what is published.
        windowed: answer only candles of the window of `limit` bars, as some exchanges do.
        banned: after a 418 every further request is counted here.
        requests: everything that arrived.
    """

    def __init__(self) -> None:
        self.spot: dict[tuple[str, str], list[Candle]] = {}
        self.perp: dict[tuple[str, str], list[Candle]] = {}
        self.funding: dict[str, list[tuple[int, str]]] = {}
        self.script: dict[int, Fault] = {}
        self.always: Fault | None = None
        self.info_script: dict[int, Fault] = {}
        self.on_request: Callable[[int, str], None] = lambda _number, _moment: None
        self.now_ms: int | None = None
        self.windowed = False
        self.is_banned = False
        self.banned = 0
        self.requests: list[Request] = []
        self._lock = threading.Lock()
        self._numbers = {"data": 0, "info": 0}

    @property
    def data_requests(self) -> list[Request]:
        return [r for r in self.requests if not r.path.endswith("exchangeInfo")]

    @property
    def info_requests(self) -> list[Request]:
        return [r for r in self.requests if r.path.endswith("exchangeInfo")]

    def reset(self) -> None:
        """Forget requests, faults and the ban, but not the market."""
        self.script, self.info_script, self.always, self.is_banned = {}, {}, None, False
        self.requests, self._numbers, self.banned = [], {"data": 0, "info": 0}, 0
        self.on_request = lambda _number, _moment: None

    def __enter__(self) -> "Venue":
        handler = type("Handler", (_Handler,), {"venue": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def numbered(self, request: Request) -> tuple[str, int]:
        kind = "info" if request.path.endswith("exchangeInfo") else "data"
        with self._lock:
            self.requests.append(request)
            self._numbers[kind] += 1
            self.banned += self.is_banned
            return kind, self._numbers[kind]

    def answer(self, request: Request) -> object:
        """Return the right answer, whatever the script then makes of it."""
        markets = {"/api/v3": self.spot, "/fapi/v1": self.perp}
        root, _, verb = request.path.rpartition("/")
        if root in markets and verb == "exchangeInfo":
            ids = sorted(
                {name for name, _ in markets[root]} | (set(self.funding) if "f" in root else set())
            )
            return {"timezone": "UTC", "symbols": [_market(name, root) for name in ids]}
        if root in markets and verb == "klines":
            return self._klines(markets[root], request.params)
        if (root, verb) == ("/fapi/v1", "fundingRate"):
            return self._funding(request.params)
        return None

    def _klines(self, market: dict, params: dict[str, str]) -> list[Candle] | None:
        rows = market.get((params["symbol"], params["interval"]))
        if rows is None:
            return None
        start, limit = int(params["startTime"]), int(params["limit"])
        end = int(params.get("endTime", 1 << 60))
        if self.now_ms is not None:
            end = min(end, self.now_ms)
        if self.windowed:
            step = int(params["interval"][:-1]) * UNITS[params["interval"][-1]]
            end = min(end, start + limit * step - 1)
        return [row for row in rows if start <= row[0] <= end][:limit]

    def _funding(self, params: dict[str, str]) -> list[dict] | None:
        rows = self.funding.get(params["symbol"])
        if rows is None:
            return None
        start, end = int(params["startTime"]), int(params.get("endTime", 1 << 60))
        page = [row for row in rows if start <= row[0] <= end][: int(params["limit"])]
        return [
            {"symbol": params["symbol"], "fundingTime": ts, "fundingRate": rate, "markPrice": "1.0"}
            for ts, rate in page
        ]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed in mid-answer is a part of the plan."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    venue: Venue

    def setup(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().setup()

    def log_message(self, *_args: object) -> None:
        pass

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        request = Request(parts.path, dict(parse_qsl(parts.query)), dict(self.headers.items()))
        kind, number = self.venue.numbered(request)
        if kind == "data":
            self.venue.on_request(number, "before")
        script = self.venue.script if kind == "data" else self.venue.info_script
        fault = script.get(number, self.venue.always if kind == "data" else None)
        self._respond(fault, self.venue.answer(request))
        if kind == "data":
            self.venue.on_request(number, "after")

    def _respond(self, fault: Fault | None, right: object) -> None:
        if fault is None or fault.kind in {"rows", "torn"}:
            answer = fault.rows(right) if fault is not None and fault.kind == "rows" else right
            if answer is None:
                self._send(400, json.dumps({"code": -1121, "msg": "Invalid symbol."}))
            else:
                self._send(200, json.dumps(answer), torn=fault is not None and fault.kind == "torn")
        elif fault.kind == "status":
            self.venue.is_banned = self.venue.is_banned or fault.status == 418
            self._send(fault.status, fault.body, fault.headers)
        elif fault.kind == "text":
            self._send(200, fault.body)
        elif fault.kind == "cut":  # torn, and nobody said how long it should have been
            body = json.dumps(right)
            self._write(f"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{body[: len(body) // 2]}")
            self.close_connection = True
        elif fault.kind == "hang":
            threading.Event().wait(fault.seconds)
            self.close_connection = True
        elif fault.kind == "reset":
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.request.close()
            self.close_connection = True

    def _send(
        self, status: int, body: str, headers: dict[str, str] | None = None, *, torn: bool = False
    ) -> None:
        lines = [f"HTTP/1.1 {status} {'OK' if status == 200 else 'No'}"]
        lines += ["Content-Type: application/json", f"Content-Length: {len(body.encode())}"]
        if self.venue.now_ms is not None:
            lines.append(f"Date: {self.date_time_string(self.venue.now_ms // 1000)}")
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        text = "\r\n".join(lines) + "\r\n\r\n" + (body[: len(body) // 2] if torn else body)
        self._write(text)
        if torn:
            self.close_connection = True

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the client may have been killed
            self.wfile.write(text.encode())  # header and body in one: two writes cost 40 ms
            self.wfile.flush()


def _market(name: str, root: str) -> dict:
    base = name.removesuffix("USDT")
    market = {
        "symbol": name,
        "status": "TRADING",
        "baseAsset": base,
        "quoteAsset": "USDT",
        "baseAssetPrecision": 8,
        "quotePrecision": 8,
        "filters": [
            {
                "filterType": "PRICE_FILTER",
                "minPrice": "0.01",
                "maxPrice": "1000000",
                "tickSize": "0.01",
            },
            {"filterType": "LOT_SIZE", "minQty": "0.001", "maxQty": "9000", "stepSize": "0.001"},
            {"filterType": "NOTIONAL", "minNotional": "5.00", "maxNotional": "9000000"}
            if root == "/api/v3"
            else {"filterType": "MIN_NOTIONAL", "notional": "100"},
        ],
    }
    if root == "/fapi/v1":
        contract = {
            "pair": name,
            "contractType": "PERPETUAL",
            "deliveryDate": 4133404800000,
            "onboardDate": 1569398400000,
            "marginAsset": "USDT",
            "pricePrecision": 2,
            "quantityPrecision": 3,
        }
        return market | contract
    return market | {"isSpotTradingAllowed": True, "permissions": ["SPOT"]}
