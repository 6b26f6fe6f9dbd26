"""Write docs/config.md from the settings themselves, so that the page cannot be out of date.

Also writes the list of settings that a shell completes, `src/stormsail/cli/settings.tsv`.
"""

import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derivable import DERIVABLE
from stormsail.algorithms.population.config import (
    PopulationConfig,
    SearchConfig,
    SearchedSetting,
    SweepConfig,
)
from stormsail.cli.completion import BACKTEST, TRAINING, VALIDATION
from stormsail.core.config import Config
from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.evaluation.walk_forward.config import ValidationConfig

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "config.md"
SETTINGS = ROOT / "src" / "stormsail" / "cli" / "settings.tsv"

FAMILIES: tuple[tuple[str, type[Config]], ...] = (
    ("", TrainConfig),
    ("population.", PopulationConfig),
    ('population.search."<path>".', SearchConfig),
    ("search.", SweepConfig),
    ('search.over."<path>".', SearchedSetting),
)
"""What stands at the top of a file, and where; those of `population` are read by `stormsail
population`, those of `search` by `stormsail search`."""

HEAD = """# Settings

Every setting of a training run, made by `scripts/config_page.py` from the code. A run is configured
by a TOML file, in which a section is a table, and by `--set` on the command line:

```sh
stormsail train configs/quickstart.toml --out runs/first --set ppo.clip_range=0.1
```

Unknown names are refused with the nearest one suggested. Nothing is converted silently.

A setting whose default is *derived* is filled in by `algorithms/config/derive.py` where it is left
out, from the task, `ppo.total_steps` and the kind of device, and from nothing else. The values
stand in the run's `config.toml`; a run that goes on keeps them ([runs.md](runs.md)).

The sections `population` and `search` at the end are those of `stormsail population`
([populations.md](populations.md)) and of `stormsail search` ([search.md](search.md)); `stormsail
train` leaves them alone.
"""


def sections(config: type[Config], prefix: str = "") -> Iterator[tuple[str, type[Config]]]:
    """Yield every section with its path, outermost first."""
    yield prefix, config
    for name, field in config.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Config):
            yield from sections(inner, f"{prefix}{name}.")


def shown_type(kind: object) -> str:
    """Return a type in words a user of TOML knows."""
    if kind is types.NoneType:
        return "none"
    plain = {bool: "true or false", int: "whole number", float: "number", str: "text"}
    if isinstance(kind, type) and kind in plain:
        return plain[kind]
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return " · ".join(f"`{choice}`" for choice in parts)
    if origin is typing.Annotated:
        return shown_type(parts[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(shown_type(part) for part in parts)
    if origin is tuple:
        inner = [part for part in parts if part is not Ellipsis]
        return "list of " + ", ".join(dict.fromkeys(shown_type(part) for part in inner))
    if origin is dict or origin is not None:
        return "table"
    return getattr(kind, "__name__", str(kind))


def bounds(field: FieldInfo) -> str:
    """Return the range that a number must lie in."""
    words = {Ge: "≥ {}", Gt: "> {}", Le: "≤ {}", Lt: "< {}"}
    limits = []
    for rule in field.metadata:
        for kind, text in words.items():
            if isinstance(rule, kind):
                limits.append(text.format(getattr(rule, kind.__name__.lower())))
    return ", ".join(limits)


def default(field: FieldInfo) -> str:
    """Return a default as TOML writes it."""
    value = field.get_default(call_default_factory=True)
    if DERIVABLE in field.metadata:
        return "derived"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{list(value) if isinstance(value, tuple) else value}`"


def page() -> str:
    """Return the whole page."""
    lines = [HEAD]
    families = [part for prefix, config in FAMILIES for part in sections(config, prefix)]
    for prefix, config in families:
        fields = {
            name: field
            for name, field in config.model_fields.items()
            if not (isinstance(field.annotation, type) and issubclass(field.annotation, Config))
        }
        if not fields:
            continue
        words = (config.__doc__ or "").strip().splitlines()[0]
        lines += [f"## {prefix.rstrip('.') or 'top level'}", "", words, ""]
        lines += ["| setting | default | kind | what it does |", "|---|---|---|---|"]
        for name, field in fields.items():
            kind = ", ".join(part for part in (shown_type(field.annotation), bounds(field)) if part)
            text = " ".join((field.description or "").split()).replace("|", "\\|")
            lines.append(f"| `{prefix}{name}` | {default(field)} | {kind} | {text} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


COMPLETED: tuple[tuple[str, str, type[Config]], ...] = (
    (TRAINING, "", TrainConfig),
    (TRAINING, "population.", PopulationConfig),
    (BACKTEST, "", BacktestConfig),
    (VALIDATION, "", ValidationConfig),
)
"""Settings that a shell completes: family, what stands before the path, class."""


def leaves(config: type[Config], above: str) -> Iterator[tuple[str, FieldInfo]]:
    """Yield path and field of every setting, those of sections that may be left out as well."""
    for name, field in config.model_fields.items():
        optional = typing.get_origin(field.annotation) in (typing.Union, types.UnionType)
        kinds = typing.get_args(field.annotation) if optional else (field.annotation,)
        inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Config)]
        if inner:
            yield from leaves(inner[0], f"{above}{name}.")
        else:
            yield f"{above}{name}", field


def typed(field: FieldInfo) -> str:
    """Return a default as it can be typed behind `=`; empty where that needs quotes or is none."""
    value = field.get_default(call_default_factory=True)
    if isinstance(value, bool):
        return str(value).lower()
    plain = isinstance(value, int | float) or (isinstance(value, str) and value.isalnum())
    return str(value) if plain and DERIVABLE not in field.metadata else ""


def completions() -> str:
    """Return one line a setting: family, path, default, first sentence of what it does."""
    lines = []
    for family, above, config in COMPLETED:
        for path, field in leaves(config, above):
            words = " ".join((field.description or "").split())
            sentence = f"{words} ".split(". ")[0].split("; ")[0].strip().rstrip(".")
            lines.append(f"{family}\t{path}\t{typed(field)}\t{sentence}\n")
    return "".join(lines)


if __name__ == "__main__":
    files = {PAGE: page(), SETTINGS: completions()}
    if sys.argv[1:] == ["--check"]:
        old = [file for file, text in files.items() if file.read_text(encoding="utf-8") != text]
        words = ", ".join(file.relative_to(ROOT).as_posix() for file in old)
        sys.exit(f"{words} is old: run this without --check" if old else 0)
    for file, text in files.items():
        file.write_text(text, encoding="utf-8")
