"""Configurations that come with the package, by name: `quickstart`, `markets/oracle`.

They have one place, the folder `configs` of the repository. A wheel carries it inside the package;
an editable installation reads it where it is.
"""

import os
from functools import cache
from pathlib import Path, PurePath

FOLDER = "configs"
_ENDING = ".toml"


def shipped_folder() -> Path:
    """Return the folder of the shipped configurations."""
    package = Path(__file__).resolve().parents[1]
    inside = package / FOLDER
    return inside if inside.is_dir() else package.parents[1] / FOLDER


@cache
def shipped() -> dict[str, Path]:
    """Return the shipped configurations: name and file, those of the top folder first."""
    folder = shipped_folder()
    names = [
        file.relative_to(folder).with_suffix("").as_posix() for file in folder.rglob(f"*{_ENDING}")
    ]
    return {
        name: folder / f"{name}{_ENDING}" for name in sorted(names, key=lambda n: ("/" in n, n))
    }


def located(path: Path) -> Path:
    """Return a path, or the shipped configuration that it names where there is no such file.

    `quickstart`, `quickstart.toml` and `configs/quickstart.toml` name the same one, so that a
    command of the documentation works without a clone of the repository.
    """
    if path.is_absolute() or (os.path.lexists(path) and not path.is_dir()):
        return path
    parts = path.parts[1:] if path.parts[:1] == (FOLDER,) else path.parts
    name = PurePath(*parts).as_posix().removesuffix(_ENDING)
    return shipped().get(name, path)
