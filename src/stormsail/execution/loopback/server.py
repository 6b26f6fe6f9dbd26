"""`Loopback`: the exchange on a port of 127.0.0.1, HTTP and WebSocket, in a thread of its own."""

import asyncio
import contextlib
import json
import socket
import struct
import threading
from email.utils import formatdate
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from stormsail.core.errors import ConfigError, VenueError
from stormsail.execution.loopback.exchange import Exchange, Reply, Request
from stormsail.execution.loopback.routes import LISTEN_KEY
from stormsail.execution.loopback.streams import Message, Subscriber

if TYPE_CHECKING:
    from aiohttp import web

_TICK_S = 0.005
_DRIP_S = 0.02
_LONGEST_HANG_S = 30.0


class Loopback:
    """Serves an exchange; use it as a context, which gives the exchange with its `url`.

    Args:
        exchange: what is served; a new archive if None.
        port: 0 takes a free one.
        audit: prove the accounts and the routes at the end; see `Exchange.audit`.
    """

    def __init__(
        self, exchange: Exchange | None = None, *, port: int = 0, audit: bool = True
    ) -> None:
        self.exchange = exchange if exchange is not None else Exchange()
        self._port = port
        self._audit = audit
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: BaseException | None = None
        self._sockets: list[web.WebSocketResponse] = []

    def __enter__(self) -> Exchange:
        _check_installed()
        self._thread = threading.Thread(target=self._run, name="loopback exchange", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise VenueError(
                "venue-unreachable",
                wrong=f"the loopback exchange must be able to listen on port {self._port}",
                found=str(self._failure),
                remedy="Choose another port; 0 takes a free one.",
            )
        if self.exchange.clock is not None:
            self.exchange.clock.on_advance(self._advanced)
        return self.exchange

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        if self._audit and kind is None:
            self.exchange.audit()

    def _advanced(self) -> None:
        self.exchange.advance()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        from aiohttp import web

        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        server = web.Server(self._handle, access_log=None)
        try:
            listener = await self._loop.create_server(server, "127.0.0.1", self._port, backlog=64)
        except OSError as error:
            self._failure = error
            self._ready.set()
            return
        self._port = listener.sockets[0].getsockname()[1]
        self.exchange.url = f"http://127.0.0.1:{self._port}"
        self._ready.set()
        pump = asyncio.create_task(self._pump())
        await self._stop.wait()
        pump.cancel()
        listener.close()
        for connection in self._sockets:
            with contextlib.suppress(Exception):
                await connection.close()
        await server.shutdown(timeout=0.2)

    async def _pump(self) -> None:
        """Move an exchange whose clock runs by itself."""
        clock = self.exchange.clock
        if clock is None or clock.real_seconds(1.0) is None:
            return
        while True:
            self.exchange.advance()
            await asyncio.sleep(_TICK_S)

    async def _handle(self, request: "web.BaseRequest") -> "web.StreamResponse":
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return await self._stream(request)
        path, _, query = request.raw_path.partition("?")
        body = await request.text()
        params = dict(parse_qsl(query)) | dict(parse_qsl(body))
        headers = dict(request.headers)
        arrived = Request(path, params, headers, request.method, body or query)
        reply = self.exchange.handle(arrived)
        try:
            return await self._respond(request, reply)
        finally:
            self.exchange.on_request(reply.group, reply.number, "after")

    async def _respond(self, request: "web.BaseRequest", reply: Reply) -> "web.StreamResponse":
        from aiohttp import web

        if reply.wire == "send":
            headers = {"Content-Type": "application/json", **self._date(), **reply.headers}
            # One write for head and body, or Nagle's algorithm costs 40 ms a request.
            return web.Response(status=reply.status, body=reply.body.encode(), headers=headers)
        transport = request.transport
        if transport is None:
            return web.Response()
        if reply.wire in ("reset", "refuse"):
            _reset(transport)
        elif reply.wire == "hang":
            await _hang(transport, reply.seconds)
        else:
            await _write_badly(transport, reply)
        request.protocol.force_close()
        return web.Response(status=500)

    def _date(self) -> dict[str, str]:
        now = self.exchange.time_ms()
        return {"Date": formatdate(now // 1000, usegmt=True)} if now else {}

    async def _stream(self, request: "web.BaseRequest") -> "web.StreamResponse":
        from aiohttp import web

        exchange = self.exchange
        if exchange.feed.is_down(exchange.time_ms()):
            return web.Response(status=503)
        connection = web.WebSocketResponse()
        await connection.prepare(request)
        self._sockets.append(connection)
        outgoing: asyncio.Queue[Message | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        path = request.path
        wrapped = path.startswith("/ws-api")
        spot = wrapped or path.startswith("/stream")

        def send(message: Message | None) -> None:
            event = message
            if wrapped and message is not None and "e" in message:
                event = {"subscriptionId": 0, "event": message}
            loop.call_soon_threadsafe(outgoing.put_nowait, event)

        subscriber = Subscriber("spot" if spot else "perp", send)
        if request.query.get("listenKey") == LISTEN_KEY:
            subscriber.channels.add("user")
        with exchange.lock:
            exchange.feed.subscribers.append(subscriber)
        sender = asyncio.create_task(_deliver(connection, outgoing, request))
        try:
            async for message in connection:
                if message.type == web.WSMsgType.TEXT:
                    send(_subscribe(subscriber, json.loads(message.data)))
        finally:
            with exchange.lock:
                exchange.feed.subscribers.remove(subscriber)
            self._sockets.remove(connection)
            sender.cancel()
        return connection


def _subscribe(subscriber: Subscriber, message: Message) -> Message:
    """Take what a client asks for on a stream; return the answer."""
    method, params = message.get("method"), message.get("params")
    if method == "SUBSCRIBE" and isinstance(params, list):
        subscriber.channels.update(str(name) for name in params)
        return {"result": None, "id": message.get("id")}
    if method == "userDataStream.subscribe.signature":
        subscriber.channels.add("user")
        return {"id": message.get("id"), "status": 200, "result": {"subscriptionId": 0}}
    error = {"code": 2, "msg": "Invalid request: unknown method"}
    return {"id": message.get("id"), "error": error}


async def _deliver(
    connection: "web.WebSocketResponse",
    outgoing: "asyncio.Queue[Message | None]",
    request: "web.BaseRequest",
) -> None:
    while True:
        message = await outgoing.get()
        if message is None:
            if request.transport is not None:
                _reset(request.transport)
            return
        await connection.send_str(json.dumps(message))


def _reset(transport: asyncio.Transport) -> None:
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


async def _hang(transport: asyncio.Transport, seconds: float) -> None:
    """Be silent until the client goes away."""
    waited = 0.0
    while waited < min(seconds, _LONGEST_HANG_S) and not transport.is_closing():
        await asyncio.sleep(_TICK_S)
        waited += _TICK_S
    transport.abort()


async def _write_badly(transport: asyncio.Transport, reply: Reply) -> None:
    body = reply.body.encode()
    length = f"Content-Length: {len(body)}\r\n" if reply.wire != "cut" else ""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n{length}Connection: close\r\n\r\n"
    transport.write(head.encode())
    if reply.wire == "drip":
        for start in range(0, len(body), max(1, len(body) // 4)):
            await asyncio.sleep(_DRIP_S)
            transport.write(body[start : start + max(1, len(body) // 4)])
    else:  # torn, or cut where nobody said how long it should have been
        transport.write(body[: len(body) // 2])
    await asyncio.sleep(0)
    transport.close()


def _check_installed() -> None:
    try:
        import aiohttp  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise ConfigError(
            "missing-extra",
            wrong="the loopback exchange needs the package aiohttp, which ccxt brings along",
            found="no such package in this environment",
            remedy="Run `pip install 'stormsail[exchange]'`.",
        ) from error
