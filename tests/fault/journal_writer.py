"""A trader whose run is the same in every process; each boundary of it is told to a hook.

As a script it tells them by a byte on its standard output, for a tracer to see.
"""

import os
import sys
from contextlib import contextmanager
from pathlib import Path

from execution_lab import Desk, config
from stormsail.execution.journal import Journal

BARS = 20


def traded(folder, hook, *, bars=BARS):
    """Trade some bars; call the hook after each commit and before and after each request."""
    plain = Journal.transaction

    @contextmanager
    def told(self):
        outer = not self._database.in_transaction
        with plain(self):
            yield
        if outer:
            hook(desk)

    desk = Desk(folder, symbols=2)
    desk.venue.kill = lambda _step: hook(desk)
    Journal.transaction = told
    try:
        with desk.trader("live", config()) as loop:
            loop.run(bars=bars)
    finally:
        Journal.transaction = plain
    desk.venue.kill = lambda _step: None
    return desk


if __name__ == "__main__":
    traded(Path(sys.argv[1]), lambda _desk: os.write(1, b"+"), bars=int(sys.argv[2]))
