"""Servers that note what a client writes, byte for byte, and answer what a test wants."""

import re
import socket
import ssl
import threading
import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


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
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http{'s' if context else ''}://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def certificate(tmp_path, address="127.0.0.1"):
    """Return a file of a key and a certificate of an address that signs itself."""
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
            x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "certificate.pem"
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    secret = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain)
    path.write_bytes(secret + signed.public_bytes(encoding))
    return path


def encrypting(own):
    """Return how a server encrypts with a file of `certificate`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own)
    return context


@contextmanager
def scripted(*scripts, context=None):
    """A server that gives the requests of each connection the answers of a script, byte for byte.

    A number in place of an answer is a pause in seconds; None closes the connection; a list of
    answers and pauses is one answer in parts.
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
                connection = accepted(server, context)
            except OSError:
                return
            opened.append(connection)
            threading.Thread(target=quietly, args=(serve, connection), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http{'s' if context else ''}://127.0.0.1:{server.getsockname()[1]}", seen, opened
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
        if isinstance(answer, bytes | list):
            for part in answer if isinstance(answer, list) else [answer]:
                connection.sendall(part) if isinstance(part, bytes) else time.sleep(part)
            return True
        time.sleep(answer)
    return True


def accepted(server, context):
    connection, _ = server.accept()
    return connection if context is None else context.wrap_socket(connection, server_side=True)


def quietly(serve, connection):
    with suppress(OSError):  # closed by either side
        serve(connection)


def answer(body, *lines):
    """Return an answer of HTTP."""
    head = (b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(body), *lines)
    return b"\r\n".join((*head, b"", body))
