"""Orders exactly once: scenarios with one or two faults each, the exchange's ledger as oracle.

The order path is the real one: gate, journal, ccxt, recovery. The connection is in the process,
which costs a third of a socket; `test_loopback_socket.py` shows that both look the same to ccxt.
"""

import os
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from loopback_lab import Lab
from stormsail.execution.loopback.faults import (
    CANCEL_FAULTS,
    ORDER_FAULTS,
    QUERY_FAULTS,
    STREAM_FAULTS,
)
from stormsail.execution.venue import Accepted, Refused, Unknown

CHUNK = 250
CAMPAIGN = int(os.environ.get("STORMSAIL_SCENARIOS", "100000"))


@pytest.fixture
def fast_folder(tmp_path):
    """A folder in memory where there is one: 2,000 journals cost minutes of fsync on a disk."""
    memory = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


COINS = ("BTC", "ETH", "XRP", "SOL", "ADA", "DOT", "LTC", "BCH")


def run_scenarios(folder, first, count, **lab):
    """Run scenarios, one fault in the even seeds and a pair in the odd ones."""
    lab, outcomes, names = Lab(folder, **lab), Counter(), Counter()
    try:
        for seed in range(first, first + count):
            scenario = lab.scenario(seed, faults=1 + seed % 2)
            scenario.run()
            outcomes.update(type(outcome) for outcome in scenario.outcomes)
            names.update(scenario.names)
    finally:
        lab.close()
    return outcomes, names


@pytest.mark.spec("R20")
@pytest.mark.parametrize("first", range(0, 2000, CHUNK))
def test_no_order_is_doubled_lost_or_unknown_for_ever(fast_folder, first):
    outcomes, names = run_scenarios(fast_folder, first, CHUNK)
    # The scenarios are no idle ones: each kind of outcome is frequent, most faults were drawn.
    assert outcomes[Accepted] >= 2 * CHUNK
    assert outcomes[Unknown] >= CHUNK // 5
    assert outcomes[Refused] >= CHUNK // 5
    assert len(names) >= 48


@pytest.mark.spec("R20")
def test_nor_is_one_of_many_symbols_over_eight_connections(fast_folder):
    outcomes, _names = run_scenarios(fast_folder, 5_000_000, 200, coins=COINS, connections=8)
    assert outcomes[Accepted] >= 2000
    assert outcomes[Unknown] >= 20
    assert outcomes[Refused] >= 20


def test_the_catalogue_has_every_fault_that_the_rules_name():
    assert len(ORDER_FAULTS) == 44
    assert len(QUERY_FAULTS) == 20
    assert len(CANCEL_FAULTS) == 13
    assert len(STREAM_FAULTS) == 4


@pytest.mark.campaign
@pytest.mark.spec("R20")
@pytest.mark.parametrize("first", range(0, CAMPAIGN, 2000))
def test_a_hundred_thousand_scenarios(fast_folder, first):
    run_scenarios(fast_folder, 1_000_000 + first, min(2000, CAMPAIGN - first))


@pytest.mark.campaign
@pytest.mark.spec("R20")
@pytest.mark.parametrize("first", range(0, CAMPAIGN // 10, 2000))
def test_ten_thousand_scenarios_of_many_symbols(fast_folder, first):
    count = min(2000, CAMPAIGN // 10 - first)
    run_scenarios(fast_folder, 6_000_000 + first, count, coins=COINS, connections=8)
