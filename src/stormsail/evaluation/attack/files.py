"""A robustness curve as files: an artifact with one document, `attack.json`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from stormsail import __version__
from stormsail.core.files.artifact import Contents, write_artifact
from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.attack.curve import Point

KIND = "attack"
DOCUMENT = "attack"
FORMAT = 1
"""Version of the document."""


def attack_document(
    points: Sequence[Point], settings: Mapping[str, JsonValue]
) -> dict[str, JsonValue]:
    """Return a curve as plain data.

    Args:
        points: the clean one first.
        settings: what they depend on: `agent`, `task`, `policy`, `norm`, `alpha`, `episodes`,
            `seed`, `columns` and more.
    """
    return {
        "format": FORMAT,
        "code_version": __version__,
        "settings": dict(settings),
        "points": [point.document() for point in points],
    }


def write_attack(path: Path | str, document: Mapping[str, JsonValue]) -> None:
    """Write the document of a curve as an artifact.

    Raises:
        ArtifactError: if the path is taken or the disk refuses.
    """
    write_artifact(path, kind=KIND, contents=Contents(documents={DOCUMENT: dict(document)}))
