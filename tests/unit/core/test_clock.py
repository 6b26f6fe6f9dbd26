import time

import numpy as np
import pytest

from stormsail.core.clock import Clock, ManualClock, SystemClock, iso
from stormsail.core.errors import RangeError


def test_a_manual_clock_moves_only_by_calls():
    clock: Clock = ManualClock(1_700_000_000_000_000_000)
    assert clock.now_ns() == 1_700_000_000_000_000_000
    assert clock.monotonic_ns() == 0
    clock.sleep(1.5)
    assert clock.now_ns() == 1_700_000_001_500_000_000
    assert clock.monotonic_ns() == 1_500_000_000


def test_setting_the_wall_clock_leaves_durations_alone():
    clock = ManualClock(10**18)
    clock.advance(2.0)
    clock.set_now(5)
    clock.advance(1e-9)
    assert clock.now_ns() == 6
    assert clock.monotonic_ns() == 2_000_000_001


def test_the_system_clock_is_the_machine_s():
    clock: Clock = SystemClock()
    before, start = time.time_ns(), time.monotonic_ns()
    wall, steady = clock.now_ns(), clock.monotonic_ns()
    clock.sleep(0.001)
    assert before <= wall <= time.time_ns()
    assert start <= steady
    assert clock.monotonic_ns() - steady >= 1_000_000


@pytest.mark.refusal
@pytest.mark.parametrize("clock", [ManualClock(), SystemClock()])
@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_time_does_not_run_backwards(clock, seconds):
    with pytest.raises(RangeError) as caught:
        clock.sleep(seconds)
    assert str(caught.value) == (
        f"`seconds` must be a finite number of at least 0; found {seconds!r}. "
        "Pass how long to wait; time does not run backwards. [out-of-range]"
    )


START = 1_609_459_200_000  # 2021-01-01


def test_times_are_written_in_utc_with_milliseconds_only_where_there_are_some():
    assert iso(START) == "2021-01-01T00:00:00Z"
    assert iso(START + 7) == "2021-01-01T00:00:00.007Z"
    assert iso(START + 999) == "2021-01-01T00:00:00.999Z"
    assert iso(np.int64(0)) == "1970-01-01T00:00:00Z"
    assert iso(-1) == "1969-12-31T23:59:59.999Z"


def test_milliseconds_can_be_cut_off():
    assert iso(START + 999, timespec="seconds") == "2021-01-01T00:00:00Z"
    assert iso(-1, timespec="seconds") == "1969-12-31T23:59:59Z"


def test_a_number_that_is_no_time_is_shown_as_it_is():
    for timespec in ("auto", "seconds"):
        assert iso(2**70, timespec=timespec) == f"{2**70} ms"
