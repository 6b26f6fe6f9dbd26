"""The connection under orders: what is left of a request, late, torn and surplus answers, TLS."""

import socket
import threading
import time
from contextlib import closing

import pytest
from requests.exceptions import (
    ConnectionError,
    ConnectTimeout,
    ReadTimeout,
    RequestException,
    SSLError,
)

from stormsail.core.errors import InvariantError
from stormsail.execution.connection.plain_session import plain_session
from wire_lab import answer, certificate, encrypting, scripted, served

ORDER = ("POST /order HTTP/1.1", b"a=1")


def posted(session, url, data=b"a=1", **options):
    return session.request("POST", f"{url}/order", data=data, **{"timeout": 5.0, **options})


@pytest.mark.spec("M43")
@pytest.mark.parametrize("value", ["a\r\nX-B: b", "a\n", "ключ"])
def test_nothing_of_a_request_that_cannot_be_written_is_sent_with_the_next_one(value):
    scripts = [answer(b"{}")], [answer(b"{}")]
    with scripted(*scripts) as (url, seen, _), closing(plain_session()) as session:
        with pytest.raises(RequestException):
            posted(session, url, headers={"X-MBX-APIKEY": value})
        found = session.request("GET", f"{url}/time", timeout=5.0)
    assert found.content == b"{}"
    assert seen == [("GET /time HTTP/1.1", b"")]


@pytest.mark.spec("R28")
@pytest.mark.parametrize("value", ["canary-of-a-key\n", "canary-of-a-key-\u2026"])
def test_an_error_of_a_header_does_not_show_its_value(value):
    with (
        served() as (url, seen),
        closing(plain_session()) as session,
        pytest.raises(ValueError, match="header") as raised,
    ):
        posted(session, url, headers={"X-MBX-APIKEY": value})
    assert seen == []
    chain, error = [], raised.value
    while error is not None:
        chain.append(f"{error!r} {error}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    assert "canary" not in " ".join(chain)


HEAD = b"HTTP/1.1 200 OK\r\n"
SLOW = {
    "status line": [
        b"H",
        0.1,
        *(part for byte in b"TTP/1.1 200 Some words" for part in (bytes([byte]), 0.1)),
    ],
    "headers": [HEAD, *(part for k in range(20) for part in (b"X-%d: 1\r\n" % k, 0.1))],
    "body": [HEAD + b"Content-Length: 99\r\n\r\n", *[b"1", 0.1] * 20],
    "chunks": [HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[b"1\r\n1\r\n", 0.1] * 20],
    "without a length": [HEAD + b"Connection: close\r\n\r\n", *[b"1", 0.1] * 20],
}


@pytest.mark.spec("R20 R27")
@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("slow", SLOW)
def test_an_answer_that_drips_is_waited_for_no_longer_than_a_silent_one(slow, encrypted, tmp_path):
    own = certificate(tmp_path)
    context = encrypting(own) if encrypted else None
    with (
        scripted([SLOW[slow]], [answer(b"[]")], context=context) as (url, seen, opened),
        closing(plain_session()) as session,
    ):
        began = time.monotonic()
        with pytest.raises(ReadTimeout):
            posted(session, url, timeout=0.3, verify=str(own))
        assert 0.25 < time.monotonic() - began < 1.5
        found = posted(session, url, data=b"b=2", verify=str(own))
    assert found.content == b"[]"
    assert seen == [ORDER, ("POST /order HTTP/1.1", b"b=2")]
    assert len(opened) == 2


def test_an_answer_in_many_pieces_is_one_answer():
    whole = answer(b'{"orderId": 7}', b"X-MBX-USED-WEIGHT-1M: 12")
    pieces = [part for byte in whole for part in (bytes([byte]), 0.001)]
    with scripted([pieces]) as (url, _, _), closing(plain_session()) as session:
        found = posted(session, url)
    assert found.json() == {"orderId": 7}
    assert found.headers["x-mbx-used-weight-1m"] == "12"


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_an_answer_in_chunks_is_read_to_its_end_and_the_connection_used_again():
    whole = CHUNKED + b'8;of=it\r\n{"a": 1,\r\n8\r\n "b": 2}\r\n0\r\nX-Last: 1\r\n\r\n'
    with (
        scripted([whole, answer(b"[]")]) as (url, seen, opened),
        closing(plain_session()) as session,
    ):
        first, second = posted(session, url), posted(session, url)
    assert (first.json(), second.json()) == ({"a": 1, "b": 2}, [])
    assert seen == [ORDER, ORDER]
    assert len(opened) == 1


@pytest.mark.spec("M43")
@pytest.mark.parametrize(
    "torn",
    [
        CHUNKED + b'9\r\n{"a": 1,',
        CHUNKED + b'8\r\n{"a": 1}\r\n',
        CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n",
        HEAD + b'Content-Length: 20\r\n\r\n{"a": 1}',
        b"HTTP/1.1 2oo OK\r\n\r\n{}",
        b"\x16\x03\x01",
        HEAD + b"X: " + b"y" * 70_000 + b"\r\n\r\n",
        HEAD + b"".join(b"X-%d: 1\r\n" % k for k in range(120)) + b"\r\n",
        b"",
    ],
    ids=["chunk", "end", "size", "length", "status", "noise", "header", "headers", "nothing"],
)
def test_a_torn_answer_is_an_error_and_the_next_request_has_a_connection_of_its_own(torn):
    with (
        scripted([torn, None], [answer(b"[]")]) as (url, seen, opened),
        closing(plain_session()) as session,
    ):
        end = threading.Timer(0.2, lambda: opened[0].shutdown(socket.SHUT_RDWR))
        end.start()
        with pytest.raises(ConnectionError):
            posted(session, url)
        end.join()
        found = posted(session, url, data=b"b=2")
    assert found.content == b"[]"
    assert seen == [ORDER, ("POST /order HTTP/1.1", b"b=2")]
    assert len(opened) == 2


@pytest.mark.parametrize("status", [b"400 Bad Request", b"418 I", b"429 Slow", b"503 Busy"])
def test_an_answer_that_refuses_leaves_the_connection_to_the_next_request(status):
    refusal = answer(b'{"code": -1003}', b"Retry-After: 7").replace(b"200 OK", status)
    with (
        scripted([refusal, answer(b"[]")]) as (url, seen, opened),
        closing(plain_session()) as session,
    ):
        first, second = posted(session, url), posted(session, url)
    assert (first.status_code, first.json()) == (int(status[:3]), {"code": -1003})
    assert first.headers["retry-after"] == "7"
    assert (second.status_code, second.json()) == (200, [])
    assert seen == [ORDER, ORDER]
    assert len(opened) == 1


@pytest.mark.parametrize(
    "last",
    [
        answer(b"{}", b"Connection: close"),
        b"HTTP/1.0 200 OK\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n{}",
    ],
    ids=["said", "old", "no length", "no such length"],
)
def test_an_answer_that_ends_its_connection_is_whole_and_the_next_one_has_another(last):
    with (
        scripted([[last, 0.05], None], [answer(b"[]")]) as (url, seen, opened),
        closing(plain_session()) as session,
    ):
        end = threading.Timer(0.1, lambda: opened[0].shutdown(socket.SHUT_RDWR))
        end.start()
        first = posted(session, url)
        end.join()
        second = posted(session, url)
    assert (first.json(), second.json()) == ({}, [])
    assert seen == [ORDER, ORDER]
    assert len(opened) == 2


@pytest.mark.spec("M43")
def test_an_early_hint_is_not_taken_for_the_answer_nor_the_answer_for_the_next():
    hint = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    late = [hint, 0.1, answer(b'"of the first"')]
    with (
        scripted([late], [answer(b'"of the second"')]) as (url, seen, _),
        closing(plain_session()) as session,
    ):
        with pytest.raises(ConnectionError):
            posted(session, url)
        second = posted(session, url, data=b"b=2")
    assert second.json() == "of the second"
    assert [body for _, body in seen] == [b"a=1", b"b=2"]


def surplus(size):
    """Return an answer of a size in all, and one that nobody asked for."""
    plain = answer(b"")
    body = b"1" * (size - len(plain) - len(str(size)) + 1)
    return answer(body) + answer(b'"nobody\'s"')


@pytest.mark.spec("M43")
@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("size", [200, *range(8_188, 8_194)])
def test_a_second_answer_to_one_request_is_not_that_to_the_next(encrypted, size, tmp_path):
    own = certificate(tmp_path)
    context = encrypting(own) if encrypted else None
    scripts = [surplus(size)], [answer(b'"own"')]
    with scripted(*scripts, context=context) as (url, seen, _), closing(plain_session()) as session:
        posted(session, url, verify=str(own))
        time.sleep(0.02)
        try:
            found = posted(session, url, data=b"b=2", verify=str(own), timeout=0.1).json()
        except RequestException:
            found = "own"  # an error is no answer
    assert found == "own"
    assert [body for _, body in seen][:2] == [b"a=1", b"b=2"]


def test_an_encrypted_connection_is_used_again(tmp_path):
    own = certificate(tmp_path)
    answers = [answer(b"{}"), answer(b"[]")]
    with (
        scripted(answers, context=encrypting(own)) as (url, seen, opened),
        closing(plain_session()) as session,
    ):
        found = [posted(session, url, verify=str(own)).json() for _ in answers]
    assert found == [{}, []]
    assert seen == [ORDER, ORDER]
    assert len(opened) == 1


def test_a_certificate_of_another_host_is_refused_before_anything_is_sent(tmp_path):
    own = certificate(tmp_path, address="127.0.0.2")
    with (
        served(encrypting(own)) as (url, seen),
        closing(plain_session()) as session,
        pytest.raises(SSLError, match=r"127\.0\.0\.1"),
    ):
        posted(session, url, verify=str(own))
    assert seen == []


def test_a_host_that_never_greets_is_a_timeout_of_the_connection_and_nothing_was_sent():
    with socket.create_server(("127.0.0.1", 0)) as server, closing(plain_session()) as session:
        url = f"https://127.0.0.1:{server.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(ConnectTimeout):
            posted(session, url, timeout=0.2)
        assert time.monotonic() - began < 1.0


@pytest.mark.parametrize(
    "options",
    [{"proxies": {"https": "http://proxy:8080"}}, {"files": [("a", b"b")]}, {"cert": "own.pem"}],
    ids=["proxies", "files", "cert"],
)
def test_what_the_session_does_not_do_is_refused_in_words_and_nothing_is_sent(options):
    with (
        served() as (url, seen),
        closing(plain_session()) as session,
        pytest.raises(InvariantError, match=next(iter(options))),
    ):
        posted(session, url, **options)
    assert seen == []
