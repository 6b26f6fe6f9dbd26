"""`wire`: an adapter of `requests` that writes a request to its connection once.

An adapter of `requests` looks for its pool, its key and its certificates anew for every request,
and has an answer pass through two libraries: more than half of the processor time of a request.
This one is the standard library's HTTP client with one connection to a host. It knows no retry and
no redirect. After whatever went wrong the connection is closed, so that an answer that comes late
is never taken for that to the next request; one that the exchange has closed meanwhile is opened
anew before anything is written. Errors are those of `requests`, which ccxt reads.
"""

import http.client
import select
import ssl
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

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


class _Plain(http.client.HTTPConnection):
    """A connection that writes headers and body of a request as one."""

    _held: list[bytes] | None = None

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
        parts = urlsplit(origin)
        host = str(parts.hostname)
        self._connection = _Plain(host, parts.port)
        if parts.scheme == "https":
            self._connection = _Encrypted(host, parts.port, context=_context(verify))

    def open(self, timeout_s: float | None) -> None:
        """Connect where there is no connection, or the host has closed it.

        One on which something is to be read before anything was asked is closed, or out of step.
        """
        connection = self._connection
        connection.timeout = timeout_s
        if connection.sock is not None and _readable(connection.sock):
            connection.close()
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
        data = _unpacked(answer.read(), answer.getheader("Content-Encoding", ""))
        return Answer(answer.status, answer.reason, answer.getheaders(), data)

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        self._connection.close()


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
                raise NotImplementedError("no request of trading has a proxy")
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


def _readable(sock: Any) -> bool:  # noqa: ANN401 - a socket, encrypted or not
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
