"""A changed setting against the defaults on bare tasks, seed by seed."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stormsail.bench.learner.learn import Line, Row, bare_lines
from stormsail.evaluation.stats.paired import mean_interval, paired_p_value

UNCHANGED = "unchanged"


@dataclass(frozen=True)
class Gain:
    """What a change of settings is worth on one task: differences of scores of the same seeds."""

    name: str
    change: str
    before: float
    """Mean score without the change; NaN here and below where a run did not finish."""
    after: float
    gain: float
    """Mean difference, after less before."""
    low: float
    high: float
    """95 % interval of the mean difference, by Student's t."""
    p_worse: float
    """One-sided p-value of "the change costs nothing": small where it costs."""

    def as_dict(self) -> dict[str, Any]:
        """Return all figures, as a file holds them."""
        return asdict(self)


def paired_lines(
    chosen: Mapping[str, int], change: str, *, overrides: Sequence[str] = ()
) -> list[Line]:
    """Return two lines for each bare task: as it is, and with the change.

    Args:
        chosen: steps of each task.
        change: `path=value`; several with `;` between them are one change.
        overrides: `path=value` for both.

    Raises:
        ConfigError: for an override or a change that is none.
    """
    both = [
        bare_lines(chosen, overrides=overrides),
        bare_lines(chosen, overrides=[*overrides, *(part.strip() for part in change.split(";"))]),
    ]
    return [
        Line(line.name, line.config, line.bar, variant=variant)
        for pair in zip(*both, strict=True)
        for line, variant in zip(pair, (UNCHANGED, change), strict=True)
    ]


def gains(rows: Sequence[Row], change: str) -> list[Gain]:
    """Return what the change is worth on each task, from the rows of `paired_lines`."""
    return [
        _gain(before, after, change) for before, after in zip(rows[::2], rows[1::2], strict=True)
    ]


def _gain(before: Row, after: Row, change: str) -> Gain:
    differences = [new - old for new, old in zip(after.scores, before.scores, strict=True)]
    low, high = mean_interval(differences)
    return Gain(
        name=before.name,
        change=change,
        before=before.mean,
        after=after.mean,
        gain=sum(differences) / len(differences),
        low=low,
        high=high,
        p_worse=paired_p_value(after.scores, before.scores),
    )
