"""Plain numbers that a resumed run needs, read as strictly as a configuration."""

from typing import TypeVar

from stormsail.core.config import Config
from stormsail.core.errors import ArtifactError, ConfigError
from stormsail.core.files.documents import JsonValue

Saved = TypeVar("Saved", bound=Config)


def read_state(kind: type[Saved], document: JsonValue, *, part: str) -> Saved:
    """Return the saved state of a part of the learner.

    Raises:
        ArtifactError: if the document is not such a state.
    """
    try:
        if isinstance(document, dict):
            return kind.from_mapping(document)
        found = type(document).__name__
    except ConfigError as error:
        found = str(error)
    raise ArtifactError(
        "artifact-document",
        wrong=f"the saved state of `{part}` must be what this version writes",
        found=found,
        remedy="Resume with the version that wrote it, or start a new run.",
    )
