"""The files behind paths, folders and patterns, and their rows for an import."""

import glob
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath

from stormsail.core.errors import DataError
from stormsail.market.checks.files import SUFFIXES, Loaded, load_files

MARKS = ".?! "
"""Marks at the end of other packages' messages, which our sentences would double."""

_REPAIR_LOG = ".repairs.txt"  # what `stormsail check` writes beside a mended file


def find_files(sources: Iterable[str | Path]) -> list[Path]:
    """Return the files behind paths, folders and patterns, sorted by name, each once.

    Raises:
        DataError: if a source is not there, or a folder holds nothing that can be imported.
    """
    paths: dict[Path, None] = {}
    listed = list(sources)
    for source in listed:
        path = Path(source)
        if path.is_dir():
            files = [file for file in path.iterdir() if _is_source(file)]
        elif path.exists():
            if path.name.lower().endswith(_REPAIR_LOG) and len(listed) > 1:
                continue  # the shell put it among the others
            files = [path]
        else:
            files = [Path(name) for name in glob.glob(str(source), recursive=True)]  # noqa: PTH207
            files = [file for file in files if _is_source(file)]
        if not files:
            raise DataError(
                "data-source",
                wrong="a source must be a CSV, zip, gz, Parquet or Feather file, a folder of "
                "them, or a pattern",
                found=f"nothing of that kind at `{source}`",
                remedy="Check the path, and quote a pattern so that the shell leaves it alone.",
            )
        paths.update(dict.fromkeys(files))
    return sorted(paths, key=lambda path: (path.name, str(path)))


def _is_source(path: Path) -> bool:
    name = path.name.lower()
    return name.endswith(SUFFIXES) and not name.endswith(_REPAIR_LOG)


def read_files(path: Path, chosen: Mapping[str, str]) -> list[Loaded]:
    """Return the rows of a file, or of each text inside an archive.

    Args:
        path: of a file whose name ends as data do.
        chosen: our column names to the source's, where a person has decided.

    Raises:
        DataError: if it is of an unknown kind, or cannot be read completely.
    """
    if not path.name.lower().endswith(SUFFIXES):
        raise DataError(
            "data-source",
            wrong="a source must be a CSV, zip, gz, Parquet or Feather file",
            found=f"{path}",
            remedy="Convert it to one of these, or rename it if only its ending is wrong.",
        )
    files = load_files(path, chosen=chosen)
    for file in files:
        broken = [finding for finding in file.collector.findings if finding.severity == "error"]
        if broken or file.table is None:
            words = [f"{finding.number} {finding.name}, {finding.places[0]}" for finding in broken]
            raise unreadable(path, " | ".join(words) or "nothing that can be read")
    return files


def unreadable(path: PurePath, found: str) -> DataError:
    """Return the refusal of a file that cannot be read completely."""
    return DataError(
        "data-unreadable",
        wrong=f"{path} must be a whole file of the kind that its name says",
        found=found.rstrip(MARKS),
        remedy="Download or export it again, and let `stormsail check` look at it.",
    )
