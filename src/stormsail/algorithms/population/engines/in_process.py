"""Engine in this process: members take turns, and share bars and features in memory."""

from collections.abc import Iterator, Sequence

from stormsail.algorithms.population.jobs import Call, Job, Outcome


class InProcess:
    """Carries out one job after the other, in this process."""

    def run(self, call: Call, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome | Exception]]:
        """Carry out jobs in their order; see `Engine.run`."""
        for job in jobs:
            try:
                yield job, call(job)
            except Exception as error:  # noqa: BLE001 - the driver decides what it means
                yield job, error

    def close(self) -> None:
        """Nothing is held."""
