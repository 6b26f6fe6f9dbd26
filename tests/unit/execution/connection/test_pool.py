"""Several connections: results in order, every call ended, one client for one thread."""

import threading
import time
from types import SimpleNamespace

import pytest

from stormsail.execution.connection.pool import IDLE_S, Connection, ConnectionPool


class Session:
    closed = 0

    def close(self):
        self.closed += 1


def opened(number):
    client = SimpleNamespace(
        session=Session(), number=number, markets={"of": number}, markets_by_id={}, symbols=[],
        ids=[], currencies={}, currencies_by_id={},
    )  # fmt: skip
    return Connection(client, SimpleNamespace())


@pytest.fixture
def pool():
    made = ConnectionPool(opened, 4)
    yield made
    made.close()


def test_results_stand_in_the_order_of_the_calls(pool):
    def call(number):
        time.sleep(0.002 * (8 - number))
        return number

    assert pool.at_once([lambda n=n: call(n) for n in range(8)]) == list(range(8))


def test_calls_do_not_wait_for_each_other(pool):
    together = threading.Barrier(4, timeout=10.0)
    assert len(set(pool.at_once([lambda: (together.wait(), threading.get_ident())[1]] * 4))) == 4


def test_a_thread_has_a_client_of_its_own_with_the_markets_of_the_first(pool):
    together = threading.Barrier(4, timeout=10.0)

    def call():
        together.wait()
        return pool.here.client.number, pool.here.client.markets

    found = pool.at_once([call] * 4)
    assert {number for number, _ in found} == {1, 2, 3, 4}
    assert all(markets == {"of": 0} for _, markets in found)
    assert pool.here.client.number == 0
    pool.here.client.markets = {"of": "a later list"}
    assert pool.at_once([lambda: pool.here.client.markets] * 2) == [{"of": "a later list"}] * 2


def test_an_error_is_raised_once_every_call_has_ended(pool):
    ended = []

    def late(number):
        time.sleep(0.05)
        ended.append(number)

    def wrong():
        raise ValueError("no answer")

    with pytest.raises(ValueError, match="no answer"):
        pool.at_once([wrong, *(lambda n=n: late(n) for n in range(6))])
    assert sorted(ended) == list(range(6))


def test_one_connection_is_the_callers_own():
    alone = ConnectionPool(opened, 1)
    assert alone.at_once([threading.get_ident] * 3) == [threading.get_ident()] * 3


def test_one_call_needs_no_other_thread(pool):
    assert pool.at_once([threading.get_ident]) == [threading.get_ident()]
    assert pool.at_once([]) == []


def test_a_connection_that_was_idle_for_long_is_opened_anew(pool):
    clock = SimpleNamespace(now=10**12)
    pool._machine = SimpleNamespace(monotonic_ns=lambda: clock.now)
    together = threading.Barrier(4, timeout=10.0)

    def call():
        together.wait()
        return pool.here.client.session.closed

    assert pool.at_once([call] * 4) == [1] * 4
    clock.now += int(IDLE_S * 1e9)
    assert pool.at_once([call] * 4) == [1] * 4
    clock.now += int(IDLE_S * 1e9) + 1
    assert pool.at_once([call] * 4) == [2] * 4
