"""A logger in memory, which fails when it should."""

from collections.abc import Sequence

from stormsail.monitors.loggers import Ending, LoggedRun, Row


class Recorder:
    """Keeps everything it is shown; `failing` are the calls, counted from 0, that raise."""

    def __init__(self, name: str = "recorder", failing: Sequence[int] = ()) -> None:
        self.name, self.failing = name, set(failing)
        self.calls = 0
        self.started: list[tuple[LoggedRun, str | None]] = []
        self.rows: list[Row] = []
        self.batches: list[int] = []
        self.endings: list[Ending] = []

    def _called(self) -> None:
        self.calls += 1
        if self.calls - 1 in self.failing:
            raise ConnectionError(f"call {self.calls - 1} failed\nsecond line")

    def start(self, run: LoggedRun, run_id: str | None) -> str:
        self._called()
        self.started.append((run, run_id))
        return run_id or f"{self.name}-1"

    def write(self, rows: Sequence[Row]) -> None:
        self._called()
        self.rows += rows
        self.batches.append(len(rows))

    def finish(self, ending: Ending) -> None:
        self._called()
        self.endings.append(ending)
