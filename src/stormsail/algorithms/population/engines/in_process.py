"""Engine in this process: members take turns, and share bars and features in memory."""

from collections.abc import Iterator, Sequence

from stormsail.algorithms.population.jobs import Call, Feed, Job, Outcome


class InProcess:
    """Carries out one job after the other, in this process."""

    def run(self, call: Call, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome | Exception]]:
        """Carry out jobs in their order; see `Engine.run`."""
        left = iter(jobs)
        yield from self.stream(call, lambda: next(left, None))

    def stream(self, call: Call, feed: Feed) -> Iterator[tuple[Job, Outcome | Exception]]:
        """Carry out jobs as they are asked for; see `StreamingEngine.stream`."""
        while (job := feed()) is not None:
            try:
                yield job, call(job)
            except Exception as error:  # noqa: BLE001 - the driver decides what it means
                yield job, error

    def close(self) -> None:
        """Nothing is held."""
