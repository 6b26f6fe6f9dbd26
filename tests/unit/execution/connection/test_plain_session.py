"""The HTTP session of orders: each request once, as it was given; no redirect; certificates."""

import gzip
import http.client
import socket
import time
import zlib
from contextlib import closing

import pytest
from requests.exceptions import (
    ConnectionError,
    ContentDecodingError,
    ReadTimeout,
    SSLError,
    TooManyRedirects,
)

from stormsail.execution.connection.plain_session import plain_session
from wire_lab import answer, certificate, encrypting, scripted, served


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


def test_an_unknown_certificate_is_refused_before_anything_is_sent(tmp_path):
    own = certificate(tmp_path)
    with served(encrypting(own)) as (url, seen), closing(plain_session()) as session:
        with pytest.raises(SSLError):
            session.request("POST", f"{url}/order", data=b"x", verify=True)
        assert seen == []
        known = session.request("POST", f"{url}/order", data=b"x", verify=str(own))
    assert known.status_code == 200
    assert [(path, data) for _, path, _, data in seen] == [("/order", b"x")]


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
