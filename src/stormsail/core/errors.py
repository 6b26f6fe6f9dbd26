"""Error classes and error codes of the package, grouped by who must act.

A message reads: what must hold; found what. What to do. [code]
The code is searchable: `docs/errors.md` has one heading for each.
"""

from collections.abc import Iterable
from difflib import SequenceMatcher
from typing import ClassVar, Literal

ErrorCode = Literal[
    # arguments
    "argument-type",
    "callback-form",
    "environment-form",
    "dtype-mismatch",
    "missing-argument",
    "name-form",
    "out-of-range",
    "shape-mismatch",
    "unknown-choice",
    # command line
    "file-unusable",
    "out-of-memory",
    "output-exists",
    "output-kind",
    "unexpected",
    "usage",
    # configuration
    "config-inconsistent",
    "config-override",
    "config-round-trip",
    "config-syntax",
    "config-unknown-key",
    "config-unreadable",
    "config-value",
    "missing-extra",
    # plug-ins
    "plugin-duplicate",
    "plugin-file",
    "plugin-mismatch",
    "plugin-missing",
    "plugin-result",
    # artifacts
    "artifact-corrupt",
    "artifact-document",
    "artifact-exists",
    "artifact-files",
    "artifact-kind",
    "artifact-limit",
    "artifact-manifest",
    "artifact-mismatch",
    "artifact-missing",
    "artifact-nonfinite",
    "artifact-none-left",
    "artifact-tensors",
    "artifact-unreadable",
    "artifact-version",
    "artifact-write",
    # runs
    "run-busy",
    "run-stopped",
    "trials-missing",
    # populations
    "cluster-resources",
    "cluster-unreachable",
    "not-picklable",
    "worker-lost",
    "member-failed",
    "value-not-applied",
    # searches
    "trial-failed",
    # ledger
    "engine-limit",
    "ledger-identity",
    # generators
    "generator-mismatch",
    "generator-state",
    # trading
    "dashboard-address",
    # exchanges
    "venue-ban",
    "venue-conflict",
    "venue-permission",
    "venue-rate-limit",
    "venue-refused",
    "venue-response",
    "venue-symbol",
    "venue-unreachable",
    # trading
    "account-busy",
    "account-margin",
    "agent-unproven",
    "bars-stale",
    "clock-offset",
    "journal-account",
    "journal-damaged",
    "journal-missing",
    "journal-version",
    "kill-switch",
    "not-confirmed",
    "not-reconciled",
    "secret-exposed",
    "secret-missing",
    # market data
    "data-alignment",
    "data-busy",
    "data-column",
    "data-defects",
    "data-interval",
    "data-mismatch",
    "data-missing",
    "data-funding",
    "data-order",
    "data-repair",
    "data-source",
    "data-span",
    "data-symbol",
    "data-time-unit",
    "data-time-zone",
    "data-type",
    "data-unreadable",
    "data-write",
    "feature-duplicate",
    "feature-file",
    "feature-schema",
]


class StormsailError(Exception):
    """Base class; catch it to catch everything this package refuses on purpose.

    Args:
        code: searchable name of the refusal.
        wrong: what must hold, as a clause without a full stop.
        found: what was found instead.
        remedy: what the reader can do about it, as one or more sentences.
    """

    def __init__(self, code: ErrorCode, *, wrong: str, found: str, remedy: str) -> None:
        self.code: ErrorCode = code
        self.wrong = wrong
        self.found = found
        self.remedy = remedy
        super().__init__(f"{wrong}; found {found}. {remedy} [{code}]")

    def __reduce__(self) -> tuple[object, ...]:
        # The default would call the class with the finished message as its only argument, so a
        # worker process could not send its error home. `__dict__` also carries added notes.
        arguments = (type(self), self.code, self.wrong, self.found, self.remedy)
        return _rebuild, arguments, dict(self.__dict__)


def _rebuild(
    kind: type[StormsailError], code: ErrorCode, wrong: str, found: str, remedy: str
) -> StormsailError:
    """Make an error again from its parts, whatever the signature of its own constructor."""
    error = kind.__new__(kind)
    StormsailError.__init__(error, code, wrong=wrong, found=found, remedy=remedy)
    return error


class ConfigError(StormsailError):
    """The user's configuration must change."""


class DataError(StormsailError):
    """Data or a file must change."""


class ArtifactError(DataError):
    """A saved artifact is missing, damaged, foreign, or could not be written."""


class VenueError(StormsailError):
    """An exchange must answer first: retry or wait."""


class WorkerError(StormsailError):
    """A worker or a cluster must be there first: mend it, or try again."""


class InvariantError(StormsailError):
    """We must act: whatever the input was, this is a bug of this package."""


class ArgumentError(StormsailError, ValueError):
    """The calling code must change."""


class _SingleCodeError(ArgumentError):
    """An argument error whose class alone decides the code."""

    CODE: ClassVar[ErrorCode]

    def __init__(self, *, wrong: str, found: str, remedy: str) -> None:
        super().__init__(self.CODE, wrong=wrong, found=found, remedy=remedy)


class ShapeError(_SingleCodeError):
    """Dimensions do not fit; nothing broadcasts silently."""

    CODE = "shape-mismatch"


class DtypeError(_SingleCodeError):
    """A value has the wrong type of number."""

    CODE = "dtype-mismatch"


class RangeError(_SingleCodeError):
    """A number lies outside the range in which the call means something."""

    CODE = "out-of-range"


class ChoiceError(_SingleCodeError):
    """A name is none of those on offer."""

    CODE = "unknown-choice"


_CLOSE = 0.6  # difflib's own threshold: about two slips in a word of eight letters
_CLOSE_SHORT = 0.5  # one slip in a word of two letters, such as `lr`


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """Return the choice most like `name`, or None where nothing is close.

    Case is ignored, because `Tanh` for `tanh` is the commonest slip of all. Of equally close
    choices the alphabetically first is returned, so the words of an error never depend on the
    order in which the choices came.
    """
    threshold = _CLOSE_SHORT if 1 < len(name) <= 3 else _CLOSE
    matcher = SequenceMatcher(b=name.lower(), autojunk=False)
    best, best_ratio = None, 0.0
    for choice in sorted(choices):
        matcher.set_seq1(choice.lower())
        ratio = matcher.ratio()
        if ratio >= threshold and ratio > best_ratio:
            best, best_ratio = choice, ratio
    return best
