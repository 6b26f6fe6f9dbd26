"""What the driver of a population and its engines hand to each other: jobs, outcomes, `Engine`.

Everything here is plain values, so that it can be sent to another process or machine.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

Value = bool | int | float | str
"""Value of a searched setting."""

Strategy = Literal["reset", "copy"]
"""Of the optimizer after an exploit: a fresh one, or the source's state."""


@dataclass(frozen=True)
class Exploit:
    """A copy of another member with new values, before a member's round.

    Attributes:
        source: the member that is copied.
        digest: of its checkpoint, which must be the one in `parents`.
        strategy: what becomes of the optimizer.
        values: of all searched settings from then on, by path.
    """

    source: int
    digest: str
    strategy: Strategy
    values: Mapping[str, Value]


@dataclass(frozen=True)
class Job:
    """One round of one member.

    Attributes:
        member: its number.
        round: number of the round, from 0.
        root: folder of the population.
        target: updates that the member has done at the end of the round.
        exploit: what comes before it; None goes on with the member's own weights and values.
    """

    member: int
    round: int
    root: Path
    target: int
    exploit: Exploit | None = None

    @property
    def words(self) -> str:
        """What is done when the job is, for errors."""
        return f"member {self.member} has done round {self.round}"


@dataclass(frozen=True)
class Outcome:
    """Result of one round of one member. Two equal jobs have equal outcomes but for `seconds`.

    Attributes:
        member: its number.
        round: number of the round.
        fitness: raw, of this round alone; NaN if the member kept diverging.
        updates: done.
        digest: of the member's last checkpoint.
        applied: value of every searched setting as the learner uses it, by path.
        metrics: of the evaluation behind the fitness.
        stopped: whether the member kept diverging and waits to be copied over.
        seconds: of wall time.
    """

    member: int
    round: int
    fitness: float
    updates: int
    digest: str
    applied: Mapping[str, Value]
    metrics: Mapping[str, float] = field(default_factory=dict)
    stopped: bool = False
    seconds: float = 0.0


Call = Callable[[Job], Outcome]
"""What an engine carries out: `member.advance`, which can be pickled by name."""


Feed = Callable[[], Job | None]
"""Returns the next job; None where there is none before another one is done, or at all."""


class Engine(Protocol):
    """Carries out the jobs of a round somewhere.

    An engine changes no outcome: a job is a function of files below `Job.root`, which every worker
    must see, and no two jobs of a round write into the same folder.
    """

    def run(self, call: Call, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome | Exception]]:
        """Carry out jobs and hand each back with its outcome, in any order, each exactly once.

        What a job raises, and the death of its worker, is handed back as the exception; the driver
        decides whether to hand the job in again.
        """
        ...

    def close(self) -> None:
        """Let go of workers; called once, also after an error."""
        ...


class StreamingEngine(Engine, Protocol):
    """An engine whose jobs may follow from outcomes of others that are still being carried out."""

    def stream(self, call: Call, feed: Feed) -> Iterator[tuple[Job, Outcome | Exception]]:
        """Carry out jobs as `run` does, asking for the next one whenever a worker is free.

        It ends when nothing is being carried out and there is no job to begin.
        """
        ...
