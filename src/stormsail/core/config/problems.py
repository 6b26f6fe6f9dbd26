"""One `ConfigError` for everything that pydantic reports about a configuration.

pydantic lists problems with machine-made locations. Who edits a TOML file needs the dotted path as
written there, the rule, the value, and the name that was probably meant.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from stormsail.core.config import toml
from stormsail.core.config.conversions import leaves
from stormsail.core.errors import ConfigError, ErrorCode, StormsailError, nearest

_QUOTED = re.compile(r"'([^']*)'")
_SUBJECT = re.compile(r"^\w+ should ")  # `Input should be ...`, `String should have ...`


_PLAIN_RULES = {
    "path_type": "a path",
    "tuple_type": "a list",
    "list_type": "a list",
    "string_type": "text",
    "dict_type": "a section of settings",
    "model_type": "a section of settings",
}
"""Rules of pydantic's whose words show a Python class, in words of a configuration."""

_KIND_WORDS = frozenset({"class", "kind", "mode", "name", "type"})
"""Words for which of several a section is; what one section calls so says nothing of another."""

_SYNONYMS = {
    "adam": ("AdamW",),
    "feedforward": ("none",),
    "gaussian": ("squashed_gaussian",),
    "mlp": ("none",),
    "recurrent": ("lstm", "gru"),
    "rnn": ("lstm", "gru"),
}
"""Words of the field for choices that are spelled quite differently."""


class ContradictionError(ValueError):
    """Settings that contradict each other, raised by a validator; it becomes a `ConfigError`.

    Args:
        wrong: what must hold, naming the settings.
        found: their values.
        remedy: the ways out.
    """

    def __init__(self, wrong: str, *, found: str, remedy: str) -> None:
        super().__init__(f"{wrong}, not {found}. {remedy}")
        self.wrong, self.found, self.remedy = wrong, found, remedy


class _Problem(NamedTuple):
    code: ErrorCode
    wrong: str
    found: str
    remedy: str


def config_error(
    model: type[BaseModel], data: object, error: ValidationError, *, source: str | None = None
) -> ConfigError:
    """Return one error that lists every problem in `error`.

    Args:
        model: the configuration that refused the data.
        data: its input; separates real keys from the labels that pydantic adds for unions.
        error: pydantic's report.
        source: name of the file, where there is one.
    """
    settings = dict(_settings(model))
    problems = [_problem(settings, data, details) for details in error.errors(include_url=False)]
    place = "" if source is None else f" of {source}"
    if len(problems) == 1:
        only = problems[0]
        wrong = only.wrong if source is None else f"in {source}, {only.wrong}"
        return ConfigError(only.code, wrong=wrong, found=only.found, remedy=only.remedy)
    codes = {problem.code for problem in problems}
    return ConfigError(
        codes.pop() if len(codes) == 1 else "config-value",
        wrong=f"every setting{place} must be known and have a value that fits",
        found=f"{len(problems)} problems",
        remedy=" ".join(
            f"({number}) {problem.wrong}; found {problem.found}. {problem.remedy}"
            for number, problem in enumerate(problems, start=1)
        ),
    )


def _settings(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield the dotted path of every setting, sections before what they hold."""
    for name, field in model.model_fields.items():
        yield prefix + name, field
        for inner in _models(field.annotation):
            if inner is not model:  # a section that holds itself would have no end
                yield from _settings(inner, f"{prefix}{name}.")


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    """Yield the configuration classes that an annotation such as `PPO | None` mentions."""
    for leaf in leaves(annotation):
        if issubclass(leaf, BaseModel):
            yield leaf


def _problem(settings: Mapping[str, FieldInfo], data: object, details: ErrorDetails) -> _Problem:
    path = _path(data, details["loc"])
    kind = details["type"]
    if kind == "extra_forbidden":
        return _unknown_key(settings, path, details["input"])
    if kind == "missing":
        remedy = f"Set it in the file or with `--set {path}=...`."
        return _Problem("config-value", f"`{path}` must be given", "nothing", remedy)
    if kind in {"value_error", "assertion_error"}:
        return _validator_problem(path, details)
    if kind in {"union_tag_invalid", "union_tag_not_found"}:
        return _tag_problem(path, details)
    rule = _rule(details)
    wrong = f"`{path}` {rule}" if path else f"the configuration {rule}"
    value = toml.shown(details["input"])
    return _Problem("config-value", wrong, value, _remedy(settings, path, details))


def _path(data: object, location: Sequence[int | str]) -> str:
    """Return the location as the user would write it.

    Where a setting may have several types, pydantic puts a label of the type tried into the
    location. A label is no key of the data at that point, which is how it is recognised.
    """
    parts: list[str] = []
    here = data
    for index, part in enumerate(location):
        last = index == len(location) - 1
        if isinstance(here, Mapping) and (part in here or last):
            here = here.get(part)
        elif isinstance(here, list | tuple) and isinstance(part, int):
            here = here[part] if part < len(here) else None
        else:
            continue
        parts.append(str(part))
    return ".".join(parts)


def _unknown_key(settings: Mapping[str, FieldInfo], path: str, value: object) -> _Problem:
    section, _, name = path.rpartition(".")
    siblings = {known: full for full in settings for known in [_child(full, section)] if known}
    anywhere = {full.rpartition(".")[2]: full for full in reversed(list(settings))}
    near_sibling, near = nearest(name, siblings), nearest(name, anywhere)
    kind = next((known for known in siblings if set(known.split("_")) & _KIND_WORDS), None)
    if section and name in _KIND_WORDS:  # of this section, whatever others call theirs
        near_sibling, near = kind, None
    elif name in anywhere:  # the right name in the wrong section
        near_sibling, near = None, name
    if near_sibling is not None:
        remedy = f"Did you mean `{siblings[near_sibling]}`?"
    elif near is not None:
        remedy = f"Did you mean `{anywhere[near]}`?"
    else:
        names = ", ".join(f"`{known}`" for known in siblings)
        remedy = f"The settings here are {names}." if names else "Remove it."
    wrong = f"`{path}` must be the name of a setting"
    return _Problem("config-unknown-key", wrong, toml.shown(value), remedy)


def _child(full: str, section: str) -> str | None:
    """Return the name of a setting inside its section, or None if it lies elsewhere."""
    head, _, name = full.rpartition(".")
    return name if head == section else None


def _validator_problem(path: str, details: ErrorDetails) -> _Problem:
    """Return the refusal of one of our validators, with its own message where it has one."""
    cause = details.get("ctx", {}).get("error")
    prefix = f"`{path}`: " if path else ""
    if isinstance(cause, StormsailError):
        return _Problem("config-value", prefix + cause.wrong, cause.found, cause.remedy)
    if isinstance(cause, ContradictionError):
        return _Problem("config-inconsistent", prefix + cause.wrong, cause.found, cause.remedy)
    across = isinstance(details["input"], Mapping | BaseModel)
    return _Problem(
        "config-inconsistent" if across else "config-value",
        prefix + str(cause),
        toml.shown(_as_plain(details["input"])),
        "Change the settings that it names." if across else f"Change `{path}`.",
    )


def _tag_problem(path: str, details: ErrorDetails) -> _Problem:
    """List the kinds of a section that exist, where its own `kind` is wrong or missing."""
    context = details["ctx"]
    key = f"{path}.{context['discriminator'].strip(chr(39))}"
    if "tag" not in context:
        return _Problem("config-value", f"`{key}` must be given", "nothing", f"Set `{key}`.")
    choices = _QUOTED.findall(context["expected_tags"])
    near = nearest(context["tag"], choices)
    return _Problem(
        "config-value",
        f"`{key}` must be one of {', '.join(f'`{choice}`' for choice in choices)}",
        toml.shown(context["tag"]),
        f"Did you mean `{near}`?" if near else "Choose one of those names.",
    )


def _as_plain(value: object) -> object:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value


def _rule(details: ErrorDetails) -> str:
    """Return pydantic's rule as the rest of our sentence, `must be greater than 0`."""
    if details["type"] in _PLAIN_RULES:
        return f"must be {_PLAIN_RULES[details['type']]}"
    rule, count = _SUBJECT.subn("must ", details["msg"])
    return _QUOTED.sub(r"`\1`", rule) if count else f"must pass this rule: {rule}"


def _remedy(settings: Mapping[str, FieldInfo], path: str, details: ErrorDetails) -> str:
    choices = _QUOTED.findall(str(details.get("ctx", {}).get("expected", "")))
    given = str(details["input"])
    meant = [choice for choice in _SYNONYMS.get(given.lower(), ()) if choice in choices]
    near = nearest(given, choices)
    if not meant and near is not None:
        meant = [near]
    if meant:
        return f"Did you mean {' or '.join(f'`{choice}`' for choice in meant)}?"
    field = settings.get(path)
    if field is None or field.is_required() or field.default_factory is not None:
        return f"Change `{path}`." if path else "Pass the settings as one table."
    default = field.default
    return f"The default is {toml.shown(_as_plain(default))}."
