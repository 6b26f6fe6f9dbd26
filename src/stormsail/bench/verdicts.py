"""Claims about the package, and whether a benchmark bears them out."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """A claim, what was measured, and whether it holds; None where nothing is claimed."""

    claim: str
    measured: str
    passed: bool | None
