import time

import pytest

from stormsail.core.clock import Clock, ManualClock, SystemClock
from stormsail.core.errors import RangeError


def test_a_manual_clock_moves_only_when_told():
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
