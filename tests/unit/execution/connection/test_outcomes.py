"""Accepted, refused or unknown: by the answer itself, whatever class ccxt gives to it."""

import json

import ccxt
import pytest

from stormsail.execution.connection.outcomes import (
    DEFINITIVE,
    Exchanged,
    gone_or_unknown,
    refused_or_unknown,
)
from stormsail.execution.venue import Refused, Unknown


def answered(status, body, *, sent=True):
    return Exchanged(sent=sent, status=status, body=body)


def coded(code, status=400, words="No."):
    return answered(status, json.dumps({"code": code, "msg": words}))


def known_codes():
    """Return every numeric code that ccxt maps for Binance, in any of its tables."""
    found = set()

    def collect(table):
        for name, value in table.items():
            if isinstance(value, dict):
                collect(value)
            elif name.lstrip("-").isdigit():
                found.add(int(name))

    collect(ccxt.binance().exceptions)
    return sorted(found)


CODES = known_codes()
UNKNOWN_STATUS = (-1000, -1001, -1004, -1006, -1007, -1008, -1010, -1016, -1034, -1099)


@pytest.mark.spec("D3")
def test_every_code_that_ccxt_maps_is_judged_by_the_list_alone():
    assert len(CODES) > 300
    for code in CODES:
        outcome = refused_or_unknown(coded(code), "problem")
        expected = Refused if code in DEFINITIVE else Unknown
        assert isinstance(outcome, expected), code
        if expected is Refused:
            assert outcome == Refused(str(code), "HTTP 400: No.")


@pytest.mark.spec("D3")
@pytest.mark.parametrize("code", UNKNOWN_STATUS)
def test_codes_that_do_not_say_what_happened_are_never_a_refusal(code):
    assert code not in DEFINITIVE
    assert refused_or_unknown(coded(code), "") == Unknown("HTTP 400: No.")


@pytest.mark.spec("M42")
def test_without_an_answer_nothing_is_known():
    lost = refused_or_unknown(Exchanged(sent=True), "RequestTimeout: x")
    assert lost == Unknown("no answer: RequestTimeout: x")


def test_what_was_never_sent_had_no_effect():
    assert refused_or_unknown(Exchanged(), "no budget") == Refused("not-sent", "no budget")


@pytest.mark.parametrize("status", [200, 201, 302, 408, 500, 502, 503, 504])
def test_a_refusal_counts_only_with_a_status_that_refuses(status):
    assert isinstance(refused_or_unknown(coded(-2010, status), ""), Unknown)


@pytest.mark.parametrize("status", [400, 401, 403, 418, 429])
def test_a_code_of_the_list_with_such_a_status_is_a_refusal(status):
    assert refused_or_unknown(coded(-1003, status), "") == Refused("-1003", f"HTTP {status}: No.")


@pytest.mark.parametrize(
    "body",
    ["", "OK", "<html>", "{}", "[]", "null", "1", '{"code":null}', '{"code":true}', '{"code":"x"}',
     '{"code":{"a":1}}', '{"code":-2010', '["code",-2010]', '{"msg":"-2010"}', '{"code":1e3}'],
)  # fmt: skip
def test_a_body_without_a_code_is_unknown(body):
    assert isinstance(refused_or_unknown(answered(400, body), ""), Unknown)


def test_a_code_written_as_text_is_a_code():
    assert refused_or_unknown(answered(400, '{"code":"-2010","msg":"a\\n b"}'), "") == Refused(
        "-2010", "HTTP 400: a b"
    )


@pytest.mark.parametrize(("code", "words"), [(-2010, "Duplicate order sent."), (-4116, "x")])
def test_a_name_that_is_taken_says_that_the_order_may_exist(code, words):
    assert isinstance(refused_or_unknown(coded(code, words=words), ""), Unknown)


def test_a_cancellation_of_what_is_not_open_is_definite():
    assert gone_or_unknown(coded(-2011), "") == Refused("-2011", "HTTP 400: No.")
    assert isinstance(gone_or_unknown(coded(-1007, 408), ""), Unknown)
    assert isinstance(refused_or_unknown(coded(-2011), ""), Unknown)  # of an order it is not
