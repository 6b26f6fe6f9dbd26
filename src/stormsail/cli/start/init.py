"""`stormsail init`: write a commented configuration to begin with."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from stormsail.cli.output import publish
from stormsail.cli.output_files import checked_output, write_checked

if TYPE_CHECKING:
    from stormsail.market.interval import Interval

TEMPLATES = Path(__file__).with_name("templates")
"""One file a kind; each is a configuration that can be trained as it is."""

Kind = Literal["bars", "env", "demo"]


def init(
    kind: Annotated[
        Kind, typer.Argument(help="bars: of your own. env: a Gymnasium environment. demo: no data.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="File to write; default: KIND.toml in this folder.")
    ] = None,
    store: Annotated[
        Path | None, typer.Option(help="Store with the bars, for bars; default: data.")
    ] = None,
    interval: Annotated[
        str | None, typer.Option(help="Length of a bar, for bars; default: the store's only one.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Environment, for env, such as gym:Pendulum-v1.")
    ] = None,
) -> None:
    """Write a configuration in which a comment says what each setting does; it trains as it is."""
    _check_options(kind, store, interval, task)
    file = Path(f"{kind}.toml") if out is None else out
    checked_output(file)
    changes, note = {}, ""
    if kind == "bars":
        place = store or Path("data")
        held = _held(place)
        length = _interval(place, held, interval)
        changes = {'store = "data"': place, 'interval = "1h"': length, "--store data": place}
        if length not in {str(stored) for _, stored in held}:
            note = f"{place} holds no bars of {length} yet: stormsail import FILES --store {place}"
    elif task is not None:
        changes = {'name = "gym:CartPole-v1"': task}
    text = _filled((TEMPLATES / f"{kind}.toml").read_text(encoding="utf-8"), changes)
    text = text.replace(f" {kind}.toml", f" {file}").replace(f"runs/{kind}", f"runs/{file.stem}")
    write_checked(file, text)
    following = [f"stormsail train {file}"]
    if kind != "env":
        following.append(f"stormsail validate {file} --out {file.stem}-judged")
    publish(kind=kind, file=file, next=following)
    typer.echo(f"wrote {file}")
    if note:
        typer.echo(note)
    for command in following:
        typer.echo(f"next: {command}")


def _filled(text: str, changes: dict[str, object]) -> str:
    """Return a template with other values of some settings; its comments stay in their column."""
    for old, value in changes.items():
        name, sign, _ = old.partition(" = ")
        new = f"{name}{sign}{json.dumps(str(value), ensure_ascii=False)}"
        if not sign:  # a command in a comment
            text = text.replace(old, f"{name.split()[0]} {value}")
            continue
        # spaces behind the value keep the comments of neighbouring lines aligned
        head, _, tail = text.partition(f"\n{old}")
        gap = len(old) - len(new)
        spaces = len(tail) - len(tail.lstrip(" "))
        text = f"{head}\n{new}{' ' * max(spaces + gap, 1)}{tail.lstrip(' ')}"
    return text


def _check_options(kind: Kind, store: Path | None, interval: str | None, task: str | None) -> None:
    """Refuse an option of another kind.

    Raises:
        ArgumentError: if there is one.
    """
    from stormsail.core.errors import ArgumentError

    given = {"--store": ("bars", store), "--interval": ("bars", interval), "--task": ("env", task)}
    for option, (owner, value) in given.items():
        if value is not None and owner != kind:
            raise ArgumentError(
                "config-inconsistent",
                wrong=f"`{option}` must come with `stormsail init {owner}`",
                found=f"`stormsail init {kind}`",
                remedy=f"Write `stormsail init {owner}`, or leave `{option}` out.",
            )


def _held(store: Path) -> "list[tuple[str, Interval]]":
    """Return symbols and intervals of a store; none where there is no store yet."""
    from stormsail.market.store import Store

    return Store(store).contents() if store.is_dir() else []


def _interval(store: Path, held: "list[tuple[str, Interval]]", interval: str | None) -> str:
    """Return the interval that is meant: as given, the store's only one, or an hour.

    Raises:
        ConfigError: if the store has several and none is named, or the given one is none.
    """
    from stormsail.core.errors import ConfigError
    from stormsail.market.interval import Interval

    if interval is not None:
        return str(Interval.parse(interval))
    lengths = list(dict.fromkeys(str(length) for _, length in held))
    if len(lengths) > 1:
        raise ConfigError(
            "config-value",
            wrong=f"`--interval` must name one interval of {store}",
            found=f"bars of {', '.join(lengths)}",
            remedy=f"Pass for example `--interval {lengths[0]}`.",
        )
    return lengths[0] if lengths else "1h"
