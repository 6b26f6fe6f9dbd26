"""Streams that graphs are recorded on: whose they are, how long, and who shares one."""

import contextlib
import gc
import itertools
import types

import pytest
import torch

from stormsail.core.machine_code import recording_streams
from stormsail.core.machine_code.recording_streams import MOST, recording_stream


class Streams:
    """torch's streams: a few handles of each priority in turn."""

    def __init__(self, count):
        self.handles = {
            priority: itertools.cycle(range(1 - 100 * priority, count + 1 - 100 * priority))
            for priority in (0, -1, -2, -3)
        }

    def __call__(self, priority=0):
        return types.SimpleNamespace(cuda_stream=next(self.handles[priority]))


class Device:
    """A device with a few streams, and the one that work is given to now."""

    def __init__(self, monkeypatch, count):
        self.now = 0
        monkeypatch.setattr(recording_streams, "_LIVING", type(recording_streams._LIVING)())
        monkeypatch.setattr(torch.cuda, "Stream", Streams(count))
        monkeypatch.setattr(
            torch.cuda, "current_stream", lambda: types.SimpleNamespace(cuda_stream=self.now)
        )
        monkeypatch.setattr(
            torch.cuda, "default_stream", lambda: types.SimpleNamespace(cuda_stream=0)
        )

    @contextlib.contextmanager
    def learner(self, place):
        """Give work to the stream of one of several learners."""
        self.now = place
        yield
        self.now = 0


def recorded():
    """Return what a graph holds of its stream."""
    held = recording_stream()
    held.graphs.append(object())
    return held


def handle(held):
    return held.stream.cuda_stream


def test_no_two_living_graphs_are_recorded_on_one_stream(monkeypatch):
    Device(monkeypatch, 3)
    owners = [recorded() for _ in range(4)]
    # none of priority 0, on which threads run their own work; then those of the next priority
    assert [handle(each) for each in owners] == [101, 102, 103, 201]
    del owners[1:]
    assert [handle(each) for each in recording_streams._LIVING] == [101]
    last = recorded()
    assert handle(last) in {102, 103}
    rest = [recorded() for _ in range(7)]
    assert len({handle(each) for each in (*owners, last, *rest)}) == 9


def test_one_learner_shares_its_streams_with_itself_where_there_is_no_other(monkeypatch):
    Device(monkeypatch, 1)
    first = [recorded() for _ in range(3)]
    again = [recorded() for _ in range(3)]
    assert sorted(map(handle, again)) == sorted(map(handle, first))
    assert all(len(each.graphs) == 2 for each in first)  # all live as long as one is needed


def test_learners_side_by_side_never_record_on_a_stream_of_another_one(monkeypatch):
    """Their graphs are launched at the same time, and would write into one workspace."""
    device = Device(monkeypatch, 32)
    held = {}
    for place in range(1, 33):
        with device.learner(place):
            held[place] = [recorded() for _ in range(12)]
    used = [{handle(each) for each in own} for own in held.values()]
    assert all(len(own) == MOST for own in used)
    assert len(set.union(*used)) == 32 * MOST
    with device.learner(33), pytest.raises(RuntimeError, match="all 96 streams"):
        recording_stream()


def test_a_graph_that_is_needed_no_more_lives_as_long_as_those_on_its_stream(monkeypatch):
    device = Device(monkeypatch, 1)
    with device.learner(7):
        own = [recorded() for _ in range(MOST + 1)]
    shared = next(each for each in own if len(each.graphs) == 2)
    ended = own.index(shared)
    del own[ended]
    assert len(shared.graphs) == 2


def test_streams_of_learners_that_nobody_needs_are_free_again(monkeypatch):
    Device(monkeypatch, 1)
    kept = [recorded() for _ in range(2)]
    forgotten = recorded()
    forgotten.itself = forgotten  # only the collector finds it
    freed = handle(forgotten)
    gc.disable()
    try:
        del forgotten
        assert handle(recorded()) == freed
    finally:
        gc.enable()
    assert len(kept) == 2
