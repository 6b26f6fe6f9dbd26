"""`stormsail configs`: list the configurations that come with the package, or copy them."""

from pathlib import Path
from typing import Annotated

import typer

from stormsail.cli.completion import complete_config
from stormsail.cli.output import publish
from stormsail.cli.output_files import checked_output, write_checked


def configs(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Which; default: all.", autocompletion=complete_config),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to copy them to.")] = None,
) -> None:
    """List shipped configurations; with `--out` copy them into a folder.

    A command takes a shipped configuration by its name, too: `stormsail train quickstart`.
    """
    files = _chosen(names or [])
    if out is not None:
        copies = _copied(files, out)
        publish(configs=[{"name": name, "file": str(file)} for name, file in copies.items()])
        for file in copies.values():
            typer.echo(f"wrote {file}")
        return
    purposes = {name: _purpose(file) for name, file in files.items()}
    publish(configs=[{"name": name, "purpose": words} for name, words in purposes.items()])
    for name, words in purposes.items():
        typer.echo(f"{name}: {words}")


def _chosen(names: list[str]) -> dict[str, Path]:
    """Return shipped configurations by name; all of them without names.

    Raises:
        ChoiceError: if there is none of a name.
    """
    from stormsail.core.errors import ChoiceError, nearest
    from stormsail.core.shipped import shipped

    known = shipped()
    chosen = {}
    for name in names or known:
        plain = name.removesuffix(".toml").removeprefix("configs/")
        if plain not in known:
            near = nearest(plain, known)
            raise ChoiceError(
                wrong="a shipped configuration must be one of those that `stormsail configs` lists",
                found=f"`{name}`",
                remedy=f"Did you mean `{near}`?" if near else "Choose one of them.",
            )
        chosen[plain] = known[plain]
    return chosen


def _copied(files: dict[str, Path], out: Path) -> dict[str, Path]:
    """Copy files into a folder, none over a file that is there; return where they are.

    Raises:
        ArtifactError: as `checked_output`, or if the disk refuses.
    """
    targets = {name: out / f"{name}.toml" for name in files}
    for target in targets.values():  # all or none
        checked_output(target)
    for name, target in targets.items():
        write_checked(target, files[name].read_bytes())
    return targets


def _purpose(file: Path) -> str:
    """Return the comment at the top of a file, up to its first full stop."""
    lines = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#") or line.startswith("# stormsail "):
            break
        lines.append(line.removeprefix("#").strip())
    return f"{' '.join(lines)} ".partition(". ")[0].strip().removesuffix(".")
