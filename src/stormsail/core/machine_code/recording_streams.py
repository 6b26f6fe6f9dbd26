"""Streams that CUDA graphs are recorded on.

The workspace of matrix products belongs to a stream and to the thread that issues them, its address
is recorded, and backward passes of all learners are issued by one thread of torch. Two graphs that
were recorded on one stream therefore write into one workspace, which is sound as long as one of
them is launched at a time; and torch frees it with the first of them that is destroyed, though the
other still writes there (pytorch/pytorch#193402).
"""

import gc
import weakref

import torch

STREAMS = 32
"""Streams of each priority that torch hands out in turn."""

PRIORITIES = (-1, -2, -3)
"""Of streams that graphs are recorded on: no other work of ours uses these, so that no thread finds
its own stream recording."""

MOST = 3
"""Streams of the graphs of one learner among others: 32 of them find enough."""


class RecordingStream:
    """A stream with the graphs that were recorded on it, none of which is destroyed before all are.

    Attributes:
        stream: to record on.
        place: handle of the stream that these graphs are launched on, one after the other.
        graphs: recorded on it.
    """

    def __init__(self, stream: torch.cuda.Stream, place: int) -> None:
        self.stream, self.place = stream, place
        self.graphs: list[torch.cuda.CUDAGraph] = []


_LIVING: "weakref.WeakSet[RecordingStream]" = weakref.WeakSet()


def recording_stream() -> RecordingStream:
    """Return a stream for a graph that is to be launched on the current stream.

    A learner that trains alone has one for each graph, as long as there are any, so that a graph
    that is made anew frees the memory of the one before. Learners side by side have few each, and
    never one of another learner: their graphs are launched at the same time.

    Raises:
        RuntimeError: if there is none.
    """
    place = torch.cuda.current_stream().cuda_stream
    own = [each for each in _LIVING if each.place == place]
    is_alone = place == torch.cuda.default_stream().cuda_stream
    if is_alone or len(own) < MOST:
        stream = _free()
        if stream is None:  # learners that nobody needs may still have theirs
            own.clear()
            gc.collect()
            own = [each for each in _LIVING if each.place == place]
            stream = _free()
        if stream is not None:
            made = RecordingStream(stream, place)
            _LIVING.add(made)
            return made
    if not own:
        raise RuntimeError(
            f"all {STREAMS * len(PRIORITIES)} streams to record graphs on belong to other learners"
        )
    return min(own, key=lambda each: len(each.graphs))


def _free() -> torch.cuda.Stream | None:
    """Return a stream that no living graph was recorded on; None where all are taken."""
    taken = {each.stream.cuda_stream for each in _LIVING}
    handed = (torch.cuda.Stream(priority=each) for each in PRIORITIES for _ in range(STREAMS))
    return next((stream for stream in handed if stream.cuda_stream not in taken), None)
