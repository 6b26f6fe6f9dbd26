"""`Config`, the base class of every configuration: closed, frozen, read from TOML.

Every problem of a refused configuration is listed in one error.
"""

import hashlib
import re
import tomllib
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
)
from pydantic_core import CoreSchema, core_schema

from stormsail.core.config import toml
from stormsail.core.config.conversions import forbid_conversions
from stormsail.core.config.overrides import apply_overrides, set_path
from stormsail.core.config.problems import config_error
from stormsail.core.errors import ArtifactError, ConfigError, InvariantError
from stormsail.core.files import documents
from stormsail.core.files.paths import given_path
from stormsail.core.files.regular import open_regular

_MAX_BYTES = 1 << 20
_MAX_DEPTH = 32

# A dotted key beyond any of ours; `tomllib` takes time that grows with the square of its length.
_DEEP_KEY = re.compile(
    r"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*)""" f"{{{_MAX_DEPTH}}}"
)

# Only the outermost configuration turns pydantic's error into ours: an inner one sees a part of the
# path and a part of the problems.
_inside: ContextVar[bool] = ContextVar("inside", default=False)


class Config(BaseModel):
    """Base class of configurations.

    Unknown keys are refused with the nearest name suggested. Numbers must be finite. Lists stand
    for tuples and strings for paths and dates, as TOML needs it, but text and booleans never
    stand for numbers, nor numbers for booleans, at any depth: a setting that was silently
    converted trains for a night before anyone sees it. Only the keys of a table are text, whatever
    they stand for. A refusal lists every problem in one `ConfigError`.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
    )

    @classmethod
    def load(cls, path: Path | str, overrides: Iterable[str] = ()) -> Self:
        """Return the configuration of a TOML file, with `path=value` overrides on top.

        Raises:
            ConfigError: if the file cannot be read, is not TOML, or holds what does not fit.
            ArgumentError: if `path` is no path.
        """
        path = given_path(path, name="path")
        data = apply_overrides(_read_toml(path), overrides)
        return cls.from_mapping(data, source=str(path))

    @classmethod
    def from_mapping(cls, data: Mapping[str, object], *, source: str | None = None) -> Self:
        """Return the configuration of plain data, as TOML or JSON give it.

        `source` names the file in a refusal.
        """
        token = _inside.set(True)  # this call, not the model, names the source in a refusal
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise config_error(cls, data, error, source=source) from None
        finally:
            _inside.reset(token)

    @classmethod
    def from_state(cls, document: object, *, part: str) -> Self:
        """Return the saved state of a part of a run, read as strictly as a configuration.

        Raises:
            ArtifactError: if the document is not such a state.
        """
        problem = f"a {type(document).__name__}"
        try:
            if isinstance(document, Mapping):
                return cls.from_mapping(document)
        except ConfigError as error:
            problem = str(error)
        raise ArtifactError(
            "artifact-document",
            wrong=f"the saved state of `{part}` must be what this version writes",
            found=problem,
            remedy="Resume with the version that wrote it, or start a new run.",
        )

    def replace(self, **changes: object) -> Self:
        """Return a copy with some settings changed, validated as a whole.

        A dotted path reaches into a section: `config.replace(**{"ppo.clip_range": 0.1})`. All
        changes are applied before the result is validated, so settings that must agree can change
        together.
        """
        data = self.model_dump()
        for path, value in changes.items():
            set_path(data, path.split("."), value)
        return self.from_mapping(data)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy like pydantic, but validate an `update`, which pydantic would not."""
        return self.replace(**update) if update else super().model_copy(deep=deep)

    def to_toml(self) -> str:
        """Return the complete configuration, defaults included, as TOML that loads to an equal one.

        Raises:
            InvariantError: if it does not, as with a setting that is None but has another default.
        """
        text = ""
        try:
            text = toml.dumps(self.model_dump(mode="json"))
            same = self.from_mapping(tomllib.loads(text)) == self
        except (ConfigError, toml.TomlError):
            same = False
        if not same:
            raise InvariantError(
                "config-round-trip",
                wrong=f"the TOML text of a `{type(self).__name__}` must load to an equal one",
                found=toml.shown(text),
                remedy="Give every setting that may be None the default None.",
            )
        return text

    def config_hash(self) -> str:
        """Return the SHA-256 of all settings: equal for equal settings, however they were given."""
        return hashlib.sha256(documents.encode(self.model_dump(mode="json"))).hexdigest()

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse assignment with a `ConfigError`; pydantic's own private attributes still work."""
        try:
            super().__setattr__(name, value)
        except ValidationError:
            raise ConfigError(
                "config-value",
                wrong=f"`{name}` must stay as it is, because a configuration is frozen",
                found=f"an assignment of {toml.shown(value)}",
                remedy=f"Make a copy with `replace({name}=...)`.",
            ) from None

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[BaseModel], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Add our two rules to what pydantic makes of a class.

        Numbers and booleans refuse conversions, and pydantic's report is turned into one
        `ConfigError` after the validators of every subclass have run.
        """
        schema = handler(source)
        forbid_conversions(schema, cls, handler)
        return core_schema.no_info_wrap_validator_function(cls._validated, schema)

    @classmethod
    def _validated(cls, data: object, handler: ValidatorFunctionWrapHandler) -> object:
        if _inside.get():
            return handler(data)
        token = _inside.set(True)
        try:
            return handler(data)
        except ValidationError as error:
            raise config_error(cls, data, error) from None
        finally:
            _inside.reset(token)


def _read_toml(path: Path) -> dict[str, object]:
    try:
        with open_regular(path) as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            "config-unreadable",
            wrong=f"the configuration {path} must be a file that can be read",
            found=f"{error.strerror}",
            remedy="Check the path and its permissions.",
        ) from error
    if len(data) > _MAX_BYTES:
        raise ConfigError(
            "config-unreadable",
            wrong=f"the configuration {path} must have at most {_MAX_BYTES} bytes",
            found="more",
            remedy="Check that it is the file you meant.",
        )
    return _parsed_toml(data, path)


def _parsed_toml(data: bytes, path: Path) -> dict[str, object]:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = f"0x{data[error.start]:02x}"
        raise _syntax_error(path, f"the byte {byte} at offset {error.start}") from error
    if _DEEP_KEY.search(text):
        raise _syntax_error(path, f"a key of more than {_MAX_DEPTH} parts")
    try:
        parsed = tomllib.loads(text)
    except RecursionError as error:
        raise _syntax_error(path, "values nested too deeply") from error
    except ValueError as error:  # TOML's own complaint, or a number of thousands of digits
        raise _syntax_error(path, str(error)) from error
    _check_depth(parsed, path)
    return parsed


def _syntax_error(path: Path, found: str) -> ConfigError:
    return ConfigError(
        "config-syntax",
        wrong=f"the configuration {path} must be TOML in UTF-8",
        found=found,
        remedy="Correct the file at that place.",
    )


def _check_depth(data: object, path: Path) -> None:
    """Refuse nesting beyond the limit, which would overflow the stack of recursive readers."""
    level = [data]
    for _ in range(_MAX_DEPTH):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return
    raise _syntax_error(path, f"values nested more than {_MAX_DEPTH} levels deep")


def _children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
