"""The dashboard's web server: page, state as JSON and as a stream, health, kill button."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stormsail.core.clock import Clock, SystemClock
from stormsail.core.errors import ConfigError, StormsailError, VenueError
from stormsail.execution.operator.dashboard.guard import (
    Guard,
    allowed_hosts,
    is_loopback,
    require_safe_address,
)
from stormsail.execution.operator.dashboard.view import View

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

STREAMS = 8
"""Pages that may follow at the same time; each holds a connection open."""

PERIOD_SECONDS = 0.5
"""Between two looks at the state; a change is sent, the same state is not sent again."""

HEARTBEAT_SECONDS = 15.0
"""Age of the loop's heartbeat from which `/health` says that it hangs."""

START_SECONDS = 10.0

UNREADABLE = 503
"""Status where the account cannot be read, as on a disk without room for SQLite's own files."""

HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}

FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}


@dataclass(frozen=True)
class Certificate:
    """Files of a TLS certificate, PEM."""

    chain: Path
    key: Path

    def check(self) -> None:
        """Refuse files that no server could use, in words.

        Raises:
            ConfigError: if they cannot be read, are no PEM, do not fit or need a password.
        """
        import ssl

        try:
            # with a password at hand nobody is asked for one
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.chain, self.key, "")
        except OSError as error:  # errors of TLS are among them
            raise ConfigError(
                "config-value",
                wrong=f"{self.chain} and {self.key} must be a certificate chain and its private "
                "key, PEM without a password",
                found=error.strerror or str(error) or type(error).__name__,
                remedy="Name other files, or listen on 127.0.0.1 and use an SSH tunnel.",
            ) from error


def build_app(view: Callable[[], View], kill: Callable[[str], None], guard: Guard) -> "Starlette":
    """Return the application: every route, behind one guard.

    Args:
        view: returns what is to be shown; called from a thread.
        kill: trips the kill switch with a reason.
        guard: decides who may ask.
    """
    from starlette.applications import Starlette
    from starlette.routing import Route

    answers = _Answers(view, kill)
    routes = [
        *(Route(path, _file(path), methods=["GET"]) for path in FILES),
        Route("/api/state", answers.state, methods=["GET"]),
        Route("/api/stream", answers.stream, methods=["GET"]),
        Route("/health", answers.health, methods=["GET"]),
        Route("/api/kill", answers.kill, methods=["POST"]),
    ]
    return Starlette(routes=routes, middleware=[_middleware(guard)])


def _file(path: str) -> Callable[["Request"], Awaitable["Response"]]:
    from starlette.responses import Response

    name, kind = FILES[path]
    body = (Path(__file__).parent / name).read_bytes()

    async def send(_: "Request") -> "Response":
        return Response(body, media_type=kind)

    return send


class _Answers:
    """Answers that depend on the state."""

    def __init__(self, view: Callable[[], View], kill: Callable[[str], None]) -> None:
        self._view, self._kill = view, kill
        self._streams = asyncio.Semaphore(STREAMS)

    async def _shown(self) -> View:
        from starlette.concurrency import run_in_threadpool

        return await run_in_threadpool(self._view)

    async def state(self, _: "Request") -> "Response":
        from starlette.responses import PlainTextResponse, Response

        try:
            return Response((await self._shown()).as_json(), media_type="application/json")
        except StormsailError as error:
            return PlainTextResponse(str(error), UNREADABLE)

    async def stream(self, request: "Request") -> "Response":
        from starlette.responses import PlainTextResponse, StreamingResponse

        if self._streams.locked():
            return PlainTextResponse("too many pages follow already; close one", 503)
        return StreamingResponse(self._changes(request), media_type="text/event-stream")

    async def _changes(self, request: "Request") -> AsyncIterator[str]:
        async with self._streams:
            sent = ""
            while not await request.is_disconnected():
                try:
                    message = f"data: {(await self._shown()).as_json()}\n\n"
                except StormsailError as error:
                    message = f"event: problem\ndata: {json.dumps(str(error))}\n\n"
                yield message if message != sent else ": same\n\n"
                sent = message
                await asyncio.sleep(PERIOD_SECONDS)

    async def health(self, _: "Request") -> "Response":
        from starlette.responses import PlainTextResponse

        try:
            shown = await self._shown()
        except StormsailError as error:
            return PlainTextResponse(str(error), UNREADABLE)
        age = shown.health.heartbeat_age_s
        if age > HEARTBEAT_SECONDS:
            return PlainTextResponse(f"the loop has not turned for {age:.0f} s", 503)
        return PlainTextResponse(shown.state if shown.killed is None else "KILLED")

    async def kill(self, _: "Request") -> "Response":
        from starlette.concurrency import run_in_threadpool
        from starlette.responses import PlainTextResponse

        await run_in_threadpool(self._kill, "dashboard")
        return PlainTextResponse("the kill switch is latched; only `stormsail rearm` undoes it")


def _middleware(guard: Guard) -> Any:  # noqa: ANN401 - starlette's own is generic over anything
    from starlette.datastructures import Headers, MutableHeaders
    from starlette.middleware import Middleware
    from starlette.responses import PlainTextResponse

    class Guarded:
        """Asks the guard before anything else, and puts the safety headers on every answer."""

        def __init__(self, app: Any) -> None:  # noqa: ANN401 - an ASGI application
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
                return
            if scope["type"] != "http":
                return  # no WebSocket is served; the server closes it

            async def send_safely(message: Any) -> None:  # noqa: ANN401 - an ASGI message
                if message["type"] == "http.response.start":
                    headers = MutableHeaders(scope=message)
                    for name, value in HEADERS.items():
                        headers[name] = value
                await send(message)

            headers = Headers(scope=scope)
            given = headers.get("authorization", "")
            refusal = guard.refusal(
                method=scope["method"],
                host=headers.get("host", ""),
                origin=headers.get("origin"),
                bearer=given.removeprefix("Bearer ") if given.startswith("Bearer ") else None,
                address=scope["client"][0] if scope.get("client") else "",
            )
            answer = self.app
            if refusal is not None:
                answer = PlainTextResponse(refusal.text, refusal.status)
            await answer(scope, receive, send_safely)

    return Middleware(Guarded)


class Dashboard:
    """A dashboard that runs in a thread of its own while it is entered.

    Args:
        view: returns what is to be shown; called from threads of the server.
        kill: trips the kill switch with a reason.
        token: from `load_or_create_token`.
        address: to listen on. Anything but loopback needs a certificate, and a token for reading.
        port: 0 takes a free one.
        certificate: for other machines.
        names: further values of `Host` that are allowed, as a reverse proxy or tunnel needs them.
        clock: for the lock-out after wrong tokens.
    """

    def __init__(
        self,
        view: Callable[[], View],
        kill: Callable[[str], None],
        token: str,
        *,
        address: str = "127.0.0.1",
        port: int = 0,
        certificate: Certificate | None = None,
        names: tuple[str, ...] = (),
        clock: Clock | None = None,
    ) -> None:
        require_safe_address(address, encrypted=certificate is not None)
        _require_extra()
        if certificate is not None:
            certificate.check()
        self._view, self._kill, self._token = view, kill, token
        self._address, self._port, self._certificate = address, port, certificate
        self._names, self._clock = names, clock or SystemClock()

    def __enter__(self) -> "Dashboard":
        import socket

        import uvicorn

        family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((self._address, self._port))
        except OSError as error:
            listening.close()
            raise VenueError(
                "dashboard-address",
                wrong=f"the dashboard must be able to listen on {self._address}:{self._port}",
                found=str(error.strerror or error),
                remedy="Choose another port; 0 takes a free one.",
            ) from error
        self._socket, self.port = listening, int(listening.getsockname()[1])
        guard = Guard(
            token=self._token,
            hosts=allowed_hosts(self._address, self.port, self._names),
            scheme="https" if self._certificate else "http",
            open_reading=is_loopback(self._address),
            clock=self._clock,
        )
        files = self._certificate
        config = uvicorn.Config(
            build_app(self._view, self._kill, guard),
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=1,
            ssl_certfile=None if files is None else str(files.chain),
            ssl_keyfile=None if files is None else str(files.key),
        )
        self._server = uvicorn.Server(config)
        started = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(started,), name="dashboard", daemon=True
        )
        self._thread.start()
        if not started.wait(START_SECONDS) or not self._server.started:
            self.__exit__()
            raise VenueError(
                "dashboard-address",
                wrong=f"the dashboard must start within {START_SECONDS:.0f} seconds",
                found="no answer from its server",
                remedy="Start without it; the agent does not need it.",
            )
        return self

    def _run(self, started: threading.Event) -> None:
        async def serve() -> None:
            serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
            while not self._server.started and not serving.done():
                await asyncio.sleep(0.01)
            started.set()
            await serving

        with suppress(SystemExit):  # uvicorn's way to say that a certificate cannot be read
            asyncio.run(serve())

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=START_SECONDS)
        self._socket.close()

    @property
    def url(self) -> str:
        """Where the page is."""
        scheme = "https" if self._certificate else "http"
        host = f"[{self._address}]" if ":" in self._address else self._address
        return f"{scheme}://{host}:{self.port}/"


def _require_extra() -> None:
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "missing-extra",
            wrong="the dashboard needs starlette and uvicorn",
            found=f"no module {error.name}",
            remedy="Install them: pip install 'stormsail[dashboard]', or start without it.",
        ) from error
