"""The HTTP session of orders: each request once, as it was given; no redirect; certificates."""

import ssl
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from requests.exceptions import SSLError, TooManyRedirects

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
    with served(context) as (url, seen):
        session = plain_session()
        with pytest.raises(SSLError):
            session.request("POST", f"{url}/order", data=b"x", verify=True)
        assert seen == []
        known = session.request("POST", f"{url}/order", data=b"x", verify=str(certificate))
        session.close()
    assert known.status_code == 200
    assert [(path, data) for _, path, _, data in seen] == [("/order", b"x")]
