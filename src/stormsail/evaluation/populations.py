"""Read a population from its folder: fitness, values and copies of every round.

`stormsail population` writes `population.jsonl`, one line a round, and `config.toml`; the values
that members began with stand in `lineage.json` or `config.toml` of `members/<number>`. They are
read here as documents, since evaluation lies below the algorithms that write them.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stormsail.core.errors import ArtifactError
from stormsail.core.files import documents
from stormsail.core.files.documents import DocumentError, JsonValue
from stormsail.evaluation.saved import Document, flat, items, mapping, number

LEDGER = "population.jsonl"
CONFIG = "config.toml"
LINEAGE = "lineage.json"

Value = bool | int | float | str
"""Value of a searched setting."""

Values = Mapping[str, Value]

MODES = ("max", "min")


@dataclass(frozen=True)
class SavedRound:
    """One round; each field has one entry a member, by number.

    Attributes:
        sources: the member whose weights each one began with; itself where it went on.
        values: of the searched settings in the round, as configured, before any decay.
        raw: fitness of this round alone; NaN where it is not known.
        fitness: smoothed, by which members were compared; NaN where it is not known.
        updates: done at the end of the round.
    """

    sources: tuple[int, ...]
    values: tuple[Values, ...]
    raw: tuple[float, ...]
    fitness: tuple[float, ...]
    updates: tuple[int, ...]


@dataclass(frozen=True)
class Copy:
    """A copy of a member by another one before a round."""

    round: int
    source: int
    member: int


@dataclass(frozen=True)
class SavedPopulation:
    """The finished rounds of a population.

    Attributes:
        name: for display.
        mode: `max` where a large fitness is the better one, `min` where a small one is.
        search: searched settings by path, each with whether it has a log scale.
        rounds: in order, at least one.
    """

    name: str
    mode: str
    search: Mapping[str, bool]
    rounds: tuple[SavedRound, ...]

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.rounds[0].fitness)

    @property
    def best(self) -> int | None:
        """The best member of the last round; None where no fitness is known."""
        best = self.ranking(-1)[0]
        return best if math.isfinite(self.rounds[-1].fitness[best]) else None

    def ranking(self, place: int) -> list[int]:
        """Return the members of a round from best to worst, as the population compared them.

        An unknown fitness is the worst, and the smaller number wins a tie.
        """
        fitness, sign = self.rounds[place].fitness, -1.0 if self.mode == "max" else 1.0
        costs = [sign * value if math.isfinite(value) else math.inf for value in fitness]
        return sorted(range(self.size), key=lambda member: (costs[member], member))

    def copies(self) -> list[Copy]:
        """Return who copied whom, by round and member."""
        return [
            Copy(place, source, member)
            for place, round_ in enumerate(self.rounds)
            for member, source in enumerate(round_.sources)
            if source != member
        ]

    def ancestors(self, member: int) -> list[int]:
        """Return, for each round, who trained the weights that a member has at the end."""
        line = [member]
        for round_ in reversed(self.rounds[1:]):
            line.append(round_.sources[line[-1]])
        return line[::-1]


def is_population(path: Path) -> bool:
    """Return whether a folder holds the ledger of a population."""
    return (path / LEDGER).is_file()


def read_population(path: Path | str, name: str = "") -> SavedPopulation:
    """Return the finished rounds of a population that `stormsail population` wrote.

    A last line that a running population has not finished is left out.

    Raises:
        ArtifactError: if a file is missing or damaged, or no round is finished.
    """
    path = Path(path)
    plan = mapping(_toml(path / CONFIG).get("population"))
    mode, search = plan.get("metric_mode"), mapping(plan.get("search"))
    size = number(plan.get("population_size"))
    if mode not in MODES or not search or size is None:
        wanted = "`metric_mode`, `population_size` and `search` of a population"
        raise _error(path / CONFIG, wanted, f"{mode!r}, {size!r} and {sorted(search)}")
    scales = {key: mapping(entry).get("is_log_scale") is True for key, entry in search.items()}
    lines = _bytes(path / LEDGER).split(b"\n")[:-1]
    if not lines:
        raise _error(path / LEDGER, "one finished round or more", "none")
    rounds: list[SavedRound] = []
    members = tuple(range(int(size)))
    begun = members, tuple(_first_values(path, member, scales) for member in members)
    for place, line in enumerate(lines):
        try:
            document = mapping(documents.decode(line))
            rounds.append(_round(document, place, *begun))
            if place + 1 < len(lines):
                begun = _decided(document, len(members), scales)
        except DocumentError as error:
            wanted = f"round {place} as this version writes it in line {place + 1}"
            raise _error(path / LEDGER, wanted, str(error)) from error
    return SavedPopulation(name or path.name, str(mode), scales, tuple(rounds))


def _round(
    document: Document, place: int, sources: tuple[int, ...], values: tuple[Values, ...]
) -> SavedRound:
    if document.get("round") != place or type(document.get("round")) is not int:
        raise DocumentError(f"round {document.get('round')!r}")
    outcomes = _entries(document, "outcomes", len(sources))
    fitness = tuple(_known(value) for value in items(document.get("fitness")))
    if len(fitness) != len(sources):
        raise DocumentError(f"the fitness of {len(fitness)} members, not of {len(sources)}")
    return SavedRound(
        sources,
        values,
        tuple(_known(outcome.get("fitness", "")) for outcome in outcomes),
        fitness,
        tuple(_whole(outcome.get("updates")) for outcome in outcomes),
    )


def _decided(
    document: Document, size: int, search: Mapping[str, bool]
) -> tuple[tuple[int, ...], tuple[Values, ...]]:
    """Return sources and values of all members at the start of the round after this one."""
    decisions = _entries(document, "decisions", size)
    sources = tuple(_whole(decision.get("source")) for decision in decisions)
    if max(sources) >= size:
        raise DocumentError(f"a copy of member {max(sources)} of {size}")
    values = (mapping(decision.get("values")) for decision in decisions)
    return sources, tuple(_values(given, search) for given in values)


def _entries(document: Document, key: str, size: int) -> list[Document]:
    """Return one table a member, in the order of their numbers."""
    entries = [mapping(entry) for entry in items(document.get(key))]
    if [entry.get("member") for entry in entries] != list(range(size)):
        raise DocumentError(f"no `{key}` of the members 0 to {size - 1} in order")
    return entries


def _values(given: Document, search: Mapping[str, bool]) -> Values:
    values = {key: value for key, value in given.items() if isinstance(value, Value)}
    if set(values) != set(search):
        raise DocumentError(f"values of {sorted(values)} in place of {sorted(search)}")
    return {key: values[key] for key in search}


def _first_values(path: Path, member: int, search: Mapping[str, bool]) -> Values:
    """Return the values that a member began with: those before its first copy, if it ever copied.

    Its configuration holds the present ones.
    """
    folder = path / "members" / f"{member:02d}"
    file = folder / LINEAGE
    try:
        copies = items(mapping(documents.decode(_bytes(file))).get("copies"))
        if copies:
            return _values(mapping(mapping(copies[0]).get("old")), search)
        file = folder / CONFIG
        leaves = flat(_toml(file))
        return _values({key: leaves.get(key) for key in search}, search)
    except DocumentError as error:
        raise _error(file, "a value of each searched setting", str(error)) from error


def _whole(value: JsonValue) -> int:
    if type(value) is not int or value < 0:
        raise DocumentError(f"{value!r} in place of a whole number")
    return value


def _known(value: JsonValue) -> float:
    """Return a fitness, NaN for null: JSON has no word for it."""
    known = number(value)
    if known is None and value is not None:
        raise DocumentError(f"{value!r} in place of a fitness")
    return math.nan if known is None else known


def _toml(path: Path) -> Document:
    try:
        return tomllib.loads(_bytes(path).decode("utf-8"))
    except ValueError as error:  # not UTF-8, or not TOML
        raise _error(path, "TOML", str(error)) from error


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ArtifactError(
            "artifact-missing",
            wrong=f"the folder of a population must hold a readable {path}",
            found=error.strerror or str(error),
            remedy="Pass the whole folder that `stormsail population` wrote.",
        ) from error


def _error(path: Path, wanted: str, problem: str) -> ArtifactError:
    return ArtifactError(
        "artifact-document",
        wrong=f"{path} must hold {wanted}",
        found=problem,
        remedy="Restore the file from a copy, or leave the population out of the report.",
    )
