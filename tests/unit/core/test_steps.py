"""Steps of a long computation, seen by whoever watches."""

import threading

from stormsail.core import steps


class Seen:
    def __init__(self):
        self.calls = []

    def began(self, what):
        self.calls.append(what)

    def advanced(self, done, total, unit):
        self.calls.append((done, total, unit))


def work():
    steps.began("a")
    steps.advanced(1, 2, "bars")


def test_only_what_runs_inside_is_seen_and_the_innermost_watcher_sees_it():
    outer, inner = Seen(), Seen()
    work()
    with steps.watched(outer):
        work()
        with steps.watched(inner):
            work()
        thread = threading.Thread(target=work)  # nobody watches there
        thread.start()
        thread.join()
        steps.began("b")
    work()
    assert inner.calls == ["a", (1, 2, "bars")]
    assert outer.calls == ["a", (1, 2, "bars"), "b"]
