"""Ledger of a population: one line for each round, from which a killed population goes on.

`population.jsonl` only grows. A line holds the outcomes of a round and the decisions that follow
from them, so the jobs of the next round are a function of the line. It holds no times: a population
that was killed and went on has the same bytes as one that was not. What is shown elsewhere, the
metrics and the log of learning rates, is made from the lines.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stormsail.algorithms.population.config import LEARNING_RATE, PopulationConfig
from stormsail.algorithms.population.decisions import Decision, ready_members
from stormsail.algorithms.population.jobs import Outcome
from stormsail.core.errors import ArtifactError
from stormsail.core.files import documents
from stormsail.core.files.documents import DocumentError, JsonValue
from stormsail.monitors.sinks import EventFile

LEDGER = "population.jsonl"

NEW_RATE = "Member {member}: Using NEW learning rate from PBT: {rate:.2e}"
NO_RATE = "Member {member}: learning_rate NOT found in hyperparams"
"""Lines of the log after each copy."""


@dataclass(frozen=True)
class Round:
    """One line of the ledger.

    Attributes:
        number: of the round, from 0.
        outcomes: of all members, by number.
        fitness: by which they were compared, smoothed; NaN where it is not known.
        decisions: of all members, by number; empty after the last round.
    """

    number: int
    outcomes: tuple[Outcome, ...]
    fitness: tuple[float, ...]
    decisions: tuple[Decision, ...]

    def document(self) -> dict[str, JsonValue]:
        """Return the line as plain data."""
        return {
            "round": self.number,
            "outcomes": [_outcome(outcome) for outcome in self.outcomes],
            "fitness": [_known(fitness) for fitness in self.fitness],
            "decisions": [
                {**vars(decision), "values": dict(decision.values)} for decision in self.decisions
            ],
        }

    @classmethod
    def of(cls, document: Mapping[str, object]) -> "Round":
        """Return the line that plain data describe.

        Raises:
            KeyError: if something is missing.
            TypeError: if something has another form.
        """
        given: dict[str, object] = dict(document)
        outcomes, fitness, decisions = (
            _list(given, name) for name in ("outcomes", "fitness", "decisions")
        )
        return cls(
            int(str(given["round"])),
            tuple(Outcome(**{**entry, "fitness": _number(entry["fitness"])}) for entry in outcomes),
            tuple(map(_number, fitness)),
            tuple(Decision(**entry) for entry in decisions),
        )


class Ledger:
    """The rounds of a population, on the disk and in memory.

    Args:
        root: folder of the population. A last line that a kill cut off is dropped.

    Raises:
        ArtifactError: if the file is damaged.
        DataError: if it cannot be written.
    """

    def __init__(self, root: Path) -> None:
        path = root / LEDGER
        whole = _whole_lines(path)
        self.rounds = _rounds(path, whole)
        self._file = EventFile(path, length=len(whole))

    def append(self, round_: Round) -> None:
        """Add a round and wait until it is on the disk.

        Raises:
            DataError: if the system refuses.
        """
        self._file.append(round_.document())
        self.rounds.append(round_)


def read_rounds(root: Path) -> tuple[Round, ...]:
    """Return the rounds of a population without writing: a driver may be at work on it.

    Raises:
        ArtifactError: if the file is damaged.
    """
    path = root / LEDGER
    return tuple(_rounds(path, _whole_lines(path)))


def metrics_of(config: PopulationConfig, round_: Round) -> dict[str, float]:
    """Return the metrics of a round; those of fitness are of the members whose fitness is known."""
    known = np.array([fitness for fitness in round_.fitness if math.isfinite(fitness)])
    empty = len(known) == 0
    return {
        "pbt/population_size": float(config.population_size),
        "pbt/ready_members": float(ready_members(round_.fitness)),
        "pbt/mean_performance": math.nan if empty else float(known.mean()),
        "pbt/std_performance": math.nan if empty else float(known.std()),
        "pbt/min_performance": math.nan if empty else float(known.min()),
        "pbt/max_performance": math.nan if empty else float(known.max()),
        "pbt/exploitation_count": float(sum(decision.copies for decision in round_.decisions)),
        "pbt/exploration_count": float(sum(decision.explored for decision in round_.decisions)),
    }


def rate_lines(before: Sequence[Decision], round_: Round) -> list[tuple[str, bool]]:
    """Return the log lines of a round's copies, each with whether it is a warning.

    Args:
        before: decisions from which the round began.
        round_: is over; its outcomes hold the rates that were read back from the learners.
    """
    lines = []
    for decision in before:
        if not decision.copies:
            continue
        rate = round_.outcomes[decision.member].applied.get(LEARNING_RATE)
        if rate is None:
            lines.append((NO_RATE.format(member=decision.member), True))
        else:
            lines.append((NEW_RATE.format(member=decision.member, rate=rate), False))
    return lines


def _outcome(outcome: Outcome) -> dict[str, JsonValue]:
    """Return an outcome without its wall time, which is no part of the result."""
    values = {**vars(outcome), "applied": dict(outcome.applied), "metrics": dict(outcome.metrics)}
    del values["seconds"]
    metrics = {name: _known(value) for name, value in outcome.metrics.items()}
    return {**values, "fitness": _known(outcome.fitness), "metrics": metrics}


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: object) -> float:
    return math.nan if value is None else float(str(value))


def _list(given: Mapping[str, object], name: str) -> list[Any]:
    value = given[name]
    if not isinstance(value, list):
        raise TypeError(f"`{name}` is no list")
    return value


def _whole_lines(path: Path) -> bytes:
    data = path.read_bytes() if path.is_file() else b""
    return data[: data.rfind(b"\n") + 1]


def _rounds(path: Path, whole: bytes) -> list[Round]:
    return [_read(path, number, line) for number, line in enumerate(whole.splitlines())]


def _read(path: Path, number: int, line: bytes) -> Round:
    try:
        result = Round.of(dict(documents.decode(line)))  # type: ignore[arg-type]  # refused below
    except (DocumentError, KeyError, TypeError, ValueError) as error:
        raise _damaged(path, number, str(error)) from error
    if result.number != number:
        raise _damaged(path, number, f"round {result.number}")
    return result


def _damaged(path: Path, number: int, problem: str) -> ArtifactError:
    return ArtifactError(
        "artifact-document",
        wrong=f"line {number + 1} of {path} must be round {number} as this version writes it",
        found=problem,
        remedy="Restore the file from a copy, or start a new population in another folder.",
    )
