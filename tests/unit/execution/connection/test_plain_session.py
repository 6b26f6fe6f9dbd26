"""The HTTP session of orders: each request once, as it was given; no redirect; certificates."""

import gzip
import http.client
import re
import socket
import ssl
import threading
import time
import zlib
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from requests.exceptions import (
    ConnectionError,
    ContentDecodingError,
    ReadTimeout,
    SSLError,
    TooManyRedirects,
)

from stormsail.execution.connection.plain_session import plain_session


@contextmanager
def served(context=None):
    """A server that notes every request; `/elsewhere` is redirected to `/`."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self):
            size = int(self.headers.get("Content-Length", 0))
            seen.append((self.command, self.path, dict(self.headers), self.rfile.read(size)))
            moved = self.path == "/elsewhere"
            self.send_response(307 if moved else 200)
            if moved:
                self.send_header("Location", "/")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        do_GET = do_POST = do_DELETE = answer  # noqa: N815 - names of the library

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http{'s' if context else ''}://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def certificate(tmp_path):
    """A key and a certificate of 127.0.0.1 that signs itself, in one file."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "loopback")])
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "certificate.pem"
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    secret = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain)
    path.write_bytes(secret + signed.public_bytes(encoding))
    return path


def test_a_request_arrives_once_as_it_was_given():
    body = b"symbol=BTCUSDT&side=BUY&signature=a%2Bb"
    with served() as (url, seen):
        session = plain_session()
        answer = session.request(
            "POST", f"{url}/fapi/v1/order?a=%2B&b=1", data=body, headers={"X-MBX-APIKEY": "key"}
        )
        session.request("DELETE", f"{url}/fapi/v1/order?id=7")
        session.request("GET", f"{url}/fapi/v1/time")
        session.close()
    assert (answer.status_code, answer.content) == (200, b"{}")
    assert [(method, path, data) for method, path, _, data in seen] == [
        ("POST", "/fapi/v1/order?a=%2B&b=1", body),
        ("DELETE", "/fapi/v1/order?id=7", b""),
        ("GET", "/fapi/v1/time", b""),
    ]
    assert seen[0][2]["X-MBX-APIKEY"] == "key"
    assert seen[0][2]["Content-Length"] == str(len(body))
    assert not {"Cookie", "Authorization"} & set(seen[0][2])


@pytest.mark.parametrize("method", ["POST", "DELETE", "GET"])
def test_a_redirect_is_refused_and_nothing_is_sent_again(method):
    with served() as (url, seen):
        session = plain_session()
        with pytest.raises(TooManyRedirects, match="a redirect is not followed"):
            session.request(method, f"{url}/elsewhere", data=b"x")
        session.close()
    assert [path for _, path, _, _ in seen] == ["/elsewhere"]


def test_an_unknown_certificate_is_refused_before_anything_is_sent(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with served(context) as (url, seen), closing(plain_session()) as session:
        with pytest.raises(SSLError):
            session.request("POST", f"{url}/order", data=b"x", verify=True)
        assert seen == []
        known = session.request("POST", f"{url}/order", data=b"x", verify=str(certificate))
    assert known.status_code == 200
    assert [(path, data) for _, path, _, data in seen] == [("/order", b"x")]


@contextmanager
def scripted(*scripts):
    """A server that gives the requests of each connection the answers of a script, byte for byte.

    A number in place of an answer is a pause in seconds; None closes the connection.
    """
    seen, scripts, opened = [], list(scripts), []
    server = socket.create_server(("127.0.0.1", 0))

    def serve(connection):
        left, data = list(scripts.pop(0)), b""
        while received := connection.recv(65536):
            data += received
            while found := REQUEST.match(data):
                size = int(found["size"] or 0)
                if len(data) < found.end() + size:
                    break
                line, data = found["line"].decode(), data[found.end() :]
                seen.append((line, data[:size]))
                data = data[size:]
                if not answered(connection, left):
                    return

    def accept():
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            opened.append(connection)
            threading.Thread(target=quietly, args=(serve, connection), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}", seen, opened
    finally:
        server.close()
        for connection in opened:
            connection.close()


REQUEST = re.compile(rb"(?P<line>[^\r]+)\r\n(?:Content-Length: (?P<size>\d+)\r\n|[^\r]+\r\n)*\r\n")


def answered(connection, left):
    """Give the next answer of a script; return whether the connection stays open."""
    while left:
        answer = left.pop(0)
        if answer is None:
            connection.close()
            return False
        if isinstance(answer, bytes):
            connection.sendall(answer)
            return True
        time.sleep(answer)
    return True


def quietly(serve, connection):
    with suppress(OSError):  # closed by either side
        serve(connection)


def answer(body, *lines):
    """Return an answer of HTTP."""
    head = (b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(body), *lines)
    return b"\r\n".join((*head, b"", body))


def test_a_request_is_written_at_once_and_a_connection_is_used_again(monkeypatch):
    writes, plain = [], http.client.HTTPConnection.send

    def send(self, data):
        writes.append(data)
        plain(self, data)

    with scripted([answer(b"{}"), answer(b"[]")]) as (url, seen, opened):
        session = plain_session()
        first = session.request("POST", f"{url}/order", data=b"a=1", timeout=5.0)
        monkeypatch.setattr(http.client.HTTPConnection, "send", send)
        second = session.request("POST", f"{url}/order", data=b"b=2", timeout=5.0)
        session.close()
    assert (first.content, second.content) == (b"{}", b"[]")
    assert seen == [("POST /order HTTP/1.1", b"a=1"), ("POST /order HTTP/1.1", b"b=2")]
    assert len(opened) == len(writes) == 1
    assert writes[0].endswith(b"\r\n\r\nb=2")


@pytest.mark.spec("M43")
@pytest.mark.parametrize("pause", [0.0, 0.4])
def test_an_answer_that_comes_late_is_not_that_to_the_next_request(pause):
    scripts = [0.3, answer(b'"late"')], [answer(b'"own"')]
    with scripted(*scripts) as (url, seen, opened):
        session = plain_session()
        with pytest.raises(ReadTimeout):
            session.request("POST", f"{url}/order", data=b"a=1", timeout=0.1)
        time.sleep(pause)
        own = session.request("POST", f"{url}/order", data=b"b=2", timeout=5.0)
        session.close()
    assert own.content == b'"own"'
    assert [body for _, body in seen] == [b"a=1", b"b=2"]  # each once
    assert len(opened) == 2


@pytest.mark.spec("M43")
@pytest.mark.parametrize("cut", [None, b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"])
def test_a_connection_that_breaks_sends_nothing_again(cut):
    with scripted([cut, None], [answer(b"{}")]) as (url, seen, opened):
        session = plain_session()
        with pytest.raises((ConnectionError, ReadTimeout)):
            session.request("POST", f"{url}/order", data=b"a=1", timeout=0.5)
        assert [body for _, body in seen] == [b"a=1"]
        session.close()
    assert len(opened) == 1


@pytest.mark.spec("M43")
def test_a_connection_that_was_closed_meanwhile_is_opened_anew_before_a_request():
    with scripted([answer(b"{}")], [answer(b"[]")]) as (url, seen, opened):
        session = plain_session()
        session.request("GET", f"{url}/time", timeout=5.0)
        opened[0].shutdown(socket.SHUT_RDWR)
        time.sleep(0.05)
        found = session.request("POST", f"{url}/order", data=b"a=1", timeout=5.0)
        session.close()
    assert found.content == b"[]"
    assert [body for _, body in seen] == [b"", b"a=1"]
    assert len(opened) == 2


def test_nobody_there_is_a_connection_error():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ConnectionError):
        plain_session().request("GET", f"http://127.0.0.1:{port}/", timeout=1.0)


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        (b"gzip", gzip.compress(b'{"a": 1}')),
        (b"deflate", zlib.compress(b'{"a": 1}')),
        (b"deflate", zlib.compress(b'{"a": 1}', wbits=-15)),
        (b"identity", b'{"a": 1}'),
    ],
    ids=["gzip", "zlib", "raw", "plain"],  # the bytes of gzip hold the time
)
def test_packed_answers_are_unpacked(encoding, packed):
    with scripted([answer(packed, b"Content-Encoding: " + encoding)]) as (url, _, _):
        session = plain_session()
        headers = {"Accept-Encoding": "gzip, deflate"}
        found = session.request("GET", f"{url}/", headers=headers, timeout=5.0)
        session.close()
    assert found.json() == {"a": 1}


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate", b"br"])
def test_what_cannot_be_unpacked_is_an_error_and_no_answer(encoding):
    with scripted([answer(b"nothing", b"Content-Encoding: " + encoding)]) as (url, _, _):
        session = plain_session()
        with pytest.raises(ContentDecodingError):
            session.request("GET", f"{url}/", timeout=5.0)
        session.close()


def test_a_header_cannot_carry_another():
    with served() as (url, seen):
        session = plain_session()
        with pytest.raises(ValueError, match="Invalid header value"):
            session.request("GET", f"{url}/", headers={"X-A": "a\r\nX-B: b"})
        session.close()
    assert seen == []
