"""`wire`: an adapter of `requests` that writes a request to its connection once.

An adapter of `requests` looks for its pool, its key and its certificates anew for every request,
and has an answer pass through two libraries: more than half of the processor time of a request.
This one is the standard library's HTTP client with one connection to a host. It knows no retry and
no redirect. An answer has to be whole in time, however steadily it drips. After whatever went wrong
the connection is gone, with what was not written of a request, so that neither that nor an answer
that comes late meets the next request; one that the exchange has closed meanwhile, or on which it
said more than it was asked, is opened anew before anything is written. Errors are those of
`requests`, which ccxt reads.
"""

import http.client
import io
import select
import socket
import ssl
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from stormsail.core.clock import NANOSECONDS, Clock, SystemClock
from stormsail.core.errors import InvariantError

if TYPE_CHECKING:
    from requests import PreparedRequest, Response

Verify = bool | str
"""Whether certificates are checked, or the file or folder that they are checked with."""

_ACCEPT = "accept-encoding"


class Answer(NamedTuple):
    """An answer of HTTP, read to its end and unpacked."""

    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: bytes


class _Timed(io.RawIOBase):
    """What a socket receives within one time in all, where a socket has one for every piece."""

    def __init__(self, sock: socket.socket, timeout_s: float | None, clock: Clock) -> None:
        self._sock, self._raw = sock, sock.makefile("rb", buffering=0)
        self._clock, self._end_ns = clock, None
        if timeout_s is not None:
            self._end_ns = clock.monotonic_ns() + round(timeout_s * NANOSECONDS)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:  # noqa: ANN401 - as the library has it
        if self._end_ns is not None:
            left_ns = self._end_ns - self._clock.monotonic_ns()
            if left_ns <= 0:
                raise TimeoutError("the answer was not whole in time")
            self._sock.settimeout(left_ns / NANOSECONDS)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Plain(http.client.HTTPConnection):
    """A connection that writes headers and body of a request as one."""

    _held: list[bytes] | None = None
    _clock: Clock = SystemClock()

    def response_class(  # type: ignore[override] # the library calls it, and asks for no class
        self, sock: socket.socket, method: str | None = None
    ) -> http.client.HTTPResponse:
        timed: Any = _Timed(sock, self.timeout, self._clock)
        return http.client.HTTPResponse(timed, method=method)

    def send(self, data: Any) -> None:  # noqa: ANN401 - as the library has it
        if self._held is None:
            super().send(data)
        else:
            self._held.append(data)

    def write(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> None:
        """Write a whole request."""
        self._held = []
        try:
            named = {name.lower() for name in headers}
            self.putrequest(method, target, skip_accept_encoding=_ACCEPT in named)
            for name, value in headers.items():
                self.putheader(name, value)
            self.endheaders(body)
            data = b"".join(self._held)
        finally:
            self._held = None
        self.send(data)


class _Encrypted(_Plain, http.client.HTTPSConnection):
    """The same, encrypted."""


class Line:
    """One connection to a host.

    Args:
        origin: scheme, host and port.
        verify: its certificates.
    """

    def __init__(self, origin: str, verify: Verify) -> None:
        self._parts, self._verify = urlsplit(origin), verify
        self._connection = self._unopened()

    def _unopened(self) -> _Plain:
        host, port = str(self._parts.hostname), self._parts.port
        if self._parts.scheme == "https":
            return _Encrypted(host, port, context=_context(self._verify))
        return _Plain(host, port)

    def open(self, timeout_s: float | None) -> None:
        """Connect where there is no connection, or the host has closed it.

        One on which something is to be read before anything was asked is closed, or out of step.
        """
        if self._connection.sock is not None and _readable(self._connection.sock):
            self.close()
        connection = self._connection
        connection.timeout = timeout_s
        if connection.sock is None:
            connection.connect()
        else:
            connection.sock.settimeout(timeout_s)

    def exchange(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> Answer:
        """Write a request once, and return the answer to it."""
        self._connection.write(method, target, headers, body)
        answer = self._connection.getresponse()
        if answer.status < 200:
            raise http.client.HTTPException("an answer before the answer")
        data = _unpacked(answer.read(), answer.getheader("Content-Encoding", ""))
        return Answer(answer.status, answer.reason, answer.getheaders(), data)

    def close(self) -> None:
        """Close the connection; the next request opens another.

        The library keeps the lines of a request that it could not write, and would write them
        before the next one: an order that was refused here would be sent after all.
        """
        self._connection.close()
        self._connection = self._unopened()


def not_done(names: str) -> InvariantError:
    """Return the error of a request that asks for what the connection of orders does not do."""
    return InvariantError(
        "unexpected",
        wrong="a request of trading must need nothing but an address, headers, a body and a time",
        found=f"one with {names}",
        remedy="It was not sent. Trading goes to the exchange itself, without a proxy. Report this "
        "with the version of ccxt that is installed.",
    )


def wire() -> Any:  # noqa: ANN401 - a class of a library that may be absent
    """Return an adapter for a session of `requests`; one thread at a time may use it."""
    from requests.adapters import BaseAdapter
    from requests.exceptions import ConnectTimeout, ReadTimeout

    class Wire(BaseAdapter):
        def __init__(self) -> None:
            super().__init__()
            self._lines: dict[tuple[str, Verify], Line] = {}

        def send(  # type: ignore[override]
            self,
            request: "PreparedRequest",
            *,
            timeout: float | None = None,
            verify: Verify = True,
            proxies: Mapping[str, str] | None = None,
        ) -> "Response":
            if proxies:
                raise not_done("proxies")
            parts = urlsplit(str(request.url))
            origin = f"{parts.scheme}://{parts.netloc}"
            line = self._lines.get((origin, verify))
            if line is None:
                line = self._lines[origin, verify] = Line(origin, verify)
            target = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
            headers: Any = request.headers  # ccxt's, of text, and its body of bytes
            content: Any = request.body
            try:
                with _errors_of_requests(request, ConnectTimeout):
                    line.open(timeout)
                with _errors_of_requests(request, ReadTimeout):
                    answer = line.exchange(str(request.method), target, headers, content)
            except BaseException:
                line.close()  # an answer that comes after all is nobody's
                raise
            return _response(request, answer)

        def close(self) -> None:
            for line in self._lines.values():
                line.close()

    return Wire()


@contextmanager
def _errors_of_requests(request: "PreparedRequest", late: Any) -> Iterator[None]:  # noqa: ANN401
    from requests import exceptions

    try:
        yield
    except TimeoutError as error:
        raise late(f"timed out: {error}", request=request) from error
    except ssl.SSLError as error:
        raise exceptions.SSLError(error, request=request) from error
    except (OSError, http.client.HTTPException) as error:
        raise exceptions.ConnectionError(error, request=request) from error
    except zlib.error as error:
        raise exceptions.ContentDecodingError(error, request=request) from error
    except ValueError:  # it quotes the value, which may be the key
        raise exceptions.InvalidHeader(
            "Invalid header value: not shown here", request=request
        ) from None


def _response(request: "PreparedRequest", answer: Answer) -> "Response":
    from requests import Response
    from requests.structures import CaseInsensitiveDict

    made = Response()
    made.status_code, made.reason, made.url = answer.status, answer.reason, str(request.url)
    made.headers, made.request = CaseInsensitiveDict(answer.headers), request
    made.encoding, made._content = "utf-8", answer.body
    return made


@cache
def _context(verify: Verify) -> ssl.SSLContext:
    """Return what certificates are checked with: those that `requests` brings, or a file's."""
    from requests.utils import DEFAULT_CA_BUNDLE_PATH

    if verify is False:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    else:
        place = DEFAULT_CA_BUNDLE_PATH if verify is True else verify
        folder = Path(place).is_dir()
        context = ssl.create_default_context(
            cafile=None if folder else place, capath=place if folder else None
        )
    context.set_alpn_protocols(["http/1.1"])
    return context


def _readable(sock: socket.socket) -> bool:
    if isinstance(sock, ssl.SSLSocket) and sock.pending():
        return True  # received and decrypted, where the system does not see it any more
    watched = select.poll()
    watched.register(sock, select.POLLIN)
    return bool(watched.poll(0))


def _unpacked(data: bytes, encoding: str) -> bytes:
    """Return an answer as it was before it was packed.

    Raises:
        zlib.error: if it is not packed so, or in a way that nobody asked for.
    """
    if encoding in ("", "identity") or not data:
        return data
    if encoding == "gzip":
        return zlib.decompress(data, zlib.MAX_WBITS | 16)
    if encoding == "deflate":
        try:
            return zlib.decompress(data)
        except zlib.error:
            return zlib.decompress(data, -zlib.MAX_WBITS)
    raise zlib.error(f"an encoding that was not asked for: {encoding[:40]}")
