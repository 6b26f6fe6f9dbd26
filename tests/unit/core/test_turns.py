"""Turns of threads that share a device: who runs, who waits, and that no turn is ever lost."""

import signal
import threading
import time

import pytest
import torch

from stormsail.core import precision, turns
from stormsail.core.turns import Turns, given_up, has_turn, taken

GPU = torch.device("cuda")  # named, not used
PATIENCE_S = 30


class Watch:
    """Notes who runs and how many at once."""

    def __init__(self):
        self.inside, self.most, self.order = set(), 0, []

    def run(self, name):
        self.inside.add(name)
        self.most = max(self.most, len(self.inside))
        self.order.append(name)
        time.sleep(0.002)
        self.inside.discard(name)


def side_by_side(*functions):
    """Run functions in threads of their own; raise what the first one that failed did."""
    failures = []

    def guarded(function):
        try:
            function()
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(each,), daemon=True) for each in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads), "somebody waits for ever"
    if failures:
        raise failures[0]


def joined(own, function, *arguments):
    def member():
        with own.joined():
            function(*arguments)

    return member


def test_one_thread_at_a_time_runs_between_two_waits():
    watch, own = Watch(), Turns()

    def member(name):
        for _ in range(5):
            with taken(GPU):
                for _ in range(3):
                    watch.run(name)
                    with given_up():
                        time.sleep(0.001)
                watch.run(name)

    side_by_side(*(joined(own, member, name) for name in range(6)))
    assert watch.most == 1
    assert len(watch.order) == 6 * 5 * 4


def test_a_wait_lets_the_others_run():
    own, other_ran = Turns(), threading.Event()
    began = threading.Event()

    def waits():
        with taken(GPU):
            began.set()
            with given_up():
                assert not has_turn()
                assert other_ran.wait(PATIENCE_S)
            assert has_turn()

    def runs():
        assert began.wait(PATIENCE_S)
        with taken(GPU):
            other_ran.set()

    side_by_side(joined(own, waits), joined(own, runs))


def test_a_wait_within_a_wait_gives_up_one_turn_and_takes_one():
    own, ran, inside = Turns(), threading.Event(), threading.Event()

    def nested():
        with taken(GPU):
            with given_up(), given_up():
                inside.set()
                assert ran.wait(PATIENCE_S)
            assert has_turn()
            with taken(GPU):  # has it already
                assert has_turn()
            assert has_turn()
        assert not has_turn()

    def runs():
        assert inside.wait(PATIENCE_S)
        with taken(GPU):
            ran.set()

    side_by_side(joined(own, nested), joined(own, runs))
    assert not own._is_taken


def test_turns_come_in_the_order_in_which_they_are_asked_for():
    own, order, free = Turns(), [], threading.Event()

    def first():
        with taken(GPU):
            assert free.wait(PATIENCE_S)

    def later(name):
        with taken(GPU):
            order.append(name)

    def asks():
        for waiting in range(4):
            threading.Thread(target=joined(own, later, waiting), daemon=True).start()
            deadline = time.monotonic() + PATIENCE_S
            while len(own._queue) <= waiting:
                assert time.monotonic() < deadline
                time.sleep(0.001)
        free.set()

    holder = threading.Thread(target=joined(own, first), daemon=True)
    holder.start()
    while not own._is_taken:
        time.sleep(0.001)
    asks()
    holder.join(PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while len(order) < 4 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert order == [0, 1, 2, 3]


def test_everyone_gets_as_many_turns_as_everyone_else():
    """A thread that gives its turn up and asks again at once waits behind those who wait."""
    own, order = Turns(), []
    meeting = threading.Barrier(4, timeout=PATIENCE_S)

    def member(name):
        meeting.wait()
        with taken(GPU):
            while len(own._queue) < 3 and len(order) < 4:
                time.sleep(0.001)
            for _ in range(20):
                order.append(name)
                with given_up():
                    pass

    side_by_side(*(joined(own, member, name) for name in range(4)))
    assert all(len(set(order[at : at + 4])) == 4 for at in range(0, 40, 4))


@pytest.mark.parametrize("where", ["with the turn", "in a wait"])
@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_whoever_fails_leaves_the_turn_to_the_others(where, kind):
    own, done = Turns(), []

    def fails():
        with taken(GPU):
            if where == "with the turn":
                raise kind("no")
            with given_up():
                raise kind("no")

    def works():
        with taken(GPU):
            done.append(1)

    with pytest.raises(kind, match="no"):
        side_by_side(joined(own, fails), joined(own, works), joined(own, works))
    side_by_side(joined(own, works))
    assert done == [1, 1, 1]


@pytest.mark.parametrize("again", [False, True], ids=["first time", "after a wait"])
def test_a_signal_while_waiting_for_a_turn_loses_no_turn(again):
    """The main thread is the one that a signal reaches."""
    own, free = Turns(), threading.Event()
    holds = threading.Event()

    def holder():
        with taken(GPU):
            holds.set()
            assert free.wait(PATIENCE_S)

    def raising(*_):
        raise KeyboardInterrupt

    def waits():
        other.start()
        assert holds.wait(PATIENCE_S)
        signal.setitimer(signal.ITIMER_REAL, 0.05)

    def begins():
        waits()
        with taken(GPU):
            raise AssertionError("another one has the turn")

    def goes_on():
        with taken(GPU), given_up():
            waits()

    other = threading.Thread(target=joined(own, holder), daemon=True)
    before = signal.signal(signal.SIGALRM, raising)
    try:
        with own.joined(), pytest.raises(KeyboardInterrupt):
            (goes_on if again else begins)()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not has_turn()
    assert own._is_taken  # by the other one, still
    free.set()
    other.join(PATIENCE_S)
    assert not own._is_taken
    assert not own._queue


def test_a_turn_that_came_together_with_a_signal_is_passed_on():
    """Between the gate's opening and the return of the wait, the turn is there already."""
    own, ran = Turns(), []

    class Gate:
        def __init__(self):
            self.asked = 0

        def acquire(self):
            self.asked += 1
            if self.asked == 2:  # the wait itself
                own._leave()  # who had the turn hands it over, just before the signal
                raise KeyboardInterrupt

        def release(self):
            pass

    own._take()
    real = threading.Lock
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(turns.threading, "Lock", Gate)
        with pytest.raises(KeyboardInterrupt):
            own._take()
    assert threading.Lock is real
    assert not own._is_taken
    with own.joined(), taken(GPU):
        ran.append(1)
    assert ran == [1]


def test_a_single_run_and_a_cpu_take_no_turn():
    with taken(GPU), given_up():
        assert not has_turn()
    own = Turns()
    with own.joined(), taken(torch.device("cpu")):
        assert not has_turn()
        assert not own._is_taken
    with own.joined():
        pass
    assert turns._OWN.turns is None


def test_who_waits_for_another_precision_gives_up_its_turn():
    """The one that is waited for needs a turn to end its update."""
    own, inside, waits = Turns(), threading.Event(), threading.Event()
    ended = []

    def update():
        with taken(GPU), precision.matrix_precision("tf32", GPU):
            with given_up():
                inside.set()
                assert waits.wait(PATIENCE_S)
                time.sleep(0.05)
            ended.append("update")

    def other():
        assert inside.wait(PATIENCE_S)
        with taken(GPU):
            waits.set()
            with precision.matrix_precision("float32", GPU):
                ended.append("other")

    side_by_side(joined(own, update), joined(own, other))
    assert ended == ["update", "other"]


def test_members_of_one_precision_keep_their_turn():
    """To give it up at the beginning of each update would be a place in the queue for nothing."""
    own, first, order = Turns(), threading.Event(), []

    def update():
        with taken(GPU), precision.matrix_precision("tf32", GPU), given_up():
            first.set()
            time.sleep(0.05)

    def begins():
        assert first.wait(PATIENCE_S)
        with taken(GPU):
            asking.start()
            while not own._queue:
                time.sleep(0.001)
            with precision.matrix_precision("tf32", GPU):
                order.append("begins")

    def asks():
        with taken(GPU):
            order.append("asks")

    asking = threading.Thread(target=joined(own, asks), daemon=True)
    side_by_side(joined(own, update), joined(own, begins))
    asking.join(PATIENCE_S)
    assert order == ["begins", "asks"]
