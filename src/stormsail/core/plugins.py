"""Plug-ins: files and modules of the user that register features, rewards, tasks, worlds, networks.

A plug-in is code, so it runs only where the user names it: `--plugin FILE.py`, `plugins = [...]` in
a configuration that she passes, or `load` in Python. What an artifact uses of it is written into
the artifact by kind, name, file name and SHA-256 of the source (`used`), and compared before the
artifact is used again (`require`). A file that only an artifact names is never run.

The hash covers the file that was named, or all Python files of a package; no module it imports.
"""

import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import re
import sys
import types
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args

from stormsail.core.arguments import check_definition
from stormsail.core.errors import (
    ArgumentError,
    ArtifactError,
    ChoiceError,
    ConfigError,
    ErrorCode,
    StormsailError,
    nearest,
)
from stormsail.core.files.documents import JsonValue
from stormsail.core.files.regular import open_regular

Kind = Literal["feature", "reward", "task", "world", "network", "callback"]
"""What a plug-in can register."""

MAX_BYTES = 1 << 22
"""Largest source of a plug-in."""

NOTHING = "nothing"
"""What is found where a plug-in registers nothing."""

LOWER = re.compile(r"[a-z][a-z0-9_]*")
_OURS = "stormsail."
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_SHORT = 12
_KEYS = {"kind", "name", "file", "sha256", "covers"}

Item = TypeVar("Item")
AnyRegistry = TypeVar("AnyRegistry", bound="Registry[Any]")


class Registry(Generic[Item]):
    """Things of one kind by name, those of the package and those of plug-ins.

    Args:
        kind: what they are.
        form: pattern of a name.
        like: an example of such a name, and the pattern in words.
        duplicate: error code where a name is taken.
    """

    def __init__(
        self,
        kind: Kind,
        *,
        form: re.Pattern[str] = LOWER,
        like: str = "lower-case letters, digits and underscores, such as `overnight_gap`",
        duplicate: ErrorCode = "plugin-duplicate",
    ) -> None:
        self.kind, self._form, self._like, self._duplicate = kind, form, like, duplicate
        self._items: dict[str, Item] = {}
        self._defined: dict[str, object] = {}

    def register(self, name: str, item: Item, *, defined: object) -> None:
        """Take a thing in.

        Args:
            name: unique among its kind.
            item: what `get` returns.
            defined: function or class behind it, whose source is its identity.

        Raises:
            ArgumentError: if the name is taken or badly formed, or nothing callable is behind it.
        """
        self.check(name, defined)
        if name in self._items:
            taken = self._defined[name]
            place = f"{getattr(taken, '__module__', '')}.{getattr(taken, '__qualname__', '')}"
            raise ArgumentError(
                self._duplicate,
                wrong=f"the name `{name}` must belong to one {self.kind}",
                found=f"`{place}` under that name",
                remedy="Choose another name.",
            )
        self._items[name], self._defined[name] = item, defined
        if _loading and _registries.get(self.kind) is self and not _is_ours(defined):
            _loading[-1].append((self.kind, name))

    def check(self, name: object, defined: object) -> None:
        """Refuse a badly formed name, and what is neither function nor class."""
        if not isinstance(name, str) or not self._form.fullmatch(name):
            raise ArgumentError(
                "name-form",
                wrong=f"a {self.kind}'s name must be {self._like.partition(', such as')[0]}",
                found=f"`{name}`",
                remedy=f"Write for example {self._like.partition('such as ')[2]}.",
            )
        check_definition(defined, name=name, kind=self.kind)

    def get(self, name: str) -> Item:
        """Return what is registered under a name.

        Raises:
            ChoiceError: if there is nothing.
        """
        if name not in self._items:
            near = nearest(name, self._items)
            bring = f"or bring the file that defines it with `{option('FILE.py')}`"
            raise ChoiceError(
                wrong=f"a {self.kind} must be registered",
                found=f"`{name}`",
                remedy=f"Did you mean `{near}`? Write that, {bring}."
                if near
                else f"Take one of {', '.join(f'`{known}`' for known in self.names()) or 'none'}, "
                f"{bring}.",
            )
        return self._items[name]

    def __contains__(self, name: object) -> bool:
        """Return whether the name is taken."""
        return name in self._items

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted(self._items)

    def defined(self, name: str) -> object | None:
        """Return the function or class behind a name; None where there is none."""
        return self._defined.get(name)

    def forget(self, name: str) -> None:
        """Remove a name."""
        self._items.pop(name, None)
        self._defined.pop(name, None)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Forget on leaving what was added inside."""
        before = dict(self._items), dict(self._defined)
        try:
            yield
        finally:
            self._items, self._defined = before


class Plugin(NamedTuple):
    """A plug-in that was loaded."""

    name: str
    """File name without its folder, or name of the module."""
    sha256: str
    """Of its source."""
    registered: tuple[tuple[Kind, str], ...]
    """Kind and name of everything that it registers."""
    module: str
    """Name in `sys.modules`."""
    path: str
    """Where it was; stays in this process."""
    source: bytes | None
    """That was run; None of a module, which its own loader has read."""


class Carried(NamedTuple):
    """A loaded plug-in on its way to a process that this one has started."""

    name: str
    sha256: str
    path: str
    source: bytes | None


@dataclass(frozen=True)
class Use:
    """A thing of a plug-in that an artifact uses."""

    kind: Kind
    name: str
    file: str
    """Name of its file, without a folder, or of its module."""
    sha256: str
    """Of the source; empty where Python could not show it."""
    covers: Literal["file", "definition"]
    """Whether that is the source of the whole file, or of the function or class alone, as for what
    was defined in a script or a notebook and not loaded as a plug-in."""

    def record(self) -> JsonValue:
        """Return the entry in an artifact."""
        return {
            "kind": self.kind,
            "name": self.name,
            "file": self.file,
            "sha256": self.sha256,
            "covers": self.covers,
        }


_registries: dict[Kind, "Registry[Any]"] = {}
_loaded: dict[str, Plugin] = {}
_loading: list[list[tuple[Kind, str]]] = []


def published(registry: AnyRegistry) -> AnyRegistry:
    """Make a registry the one that plug-ins of its kind register in; return it."""
    _registries[registry.kind] = registry
    return registry


def option(file: str) -> str:
    """Return the option of the command line that brings a plug-in."""
    return f"--plugin {file}"


def load(names: Iterable[str | os.PathLike[str]]) -> tuple[Plugin, ...]:
    """Run plug-ins, each once in a process, and return them.

    Args:
        names: paths of Python files, or names of modules.

    Raises:
        ConfigError: if one cannot be read or run, registers nothing, or is another file than the
            one that this process has loaded from the same place.
        ArgumentError: if a name that it registers is taken.
    """
    return tuple(_load(os.fspath(name)) for name in names)


def loaded() -> tuple[Plugin, ...]:
    """Return all plug-ins of this process, in the order in which they were loaded."""
    return tuple(_loaded.values())


def carried() -> tuple[Carried, ...]:
    """Return the plug-ins of this process for one that it starts; see `restore`."""
    return tuple(
        Carried(plugin.name, plugin.sha256, plugin.path, plugin.source) for plugin in loaded()
    )


def restore(plugins: Iterable[Carried]) -> None:
    """Load what a driver has loaded, in a process that it has started.

    A file travels by its source, so the process need not see the driver's disk. A module must be
    installed there, with the same source.

    Raises:
        ConfigError: if a module is missing or differs, or cannot be run here.
    """
    for plugin in plugins:
        if plugin.source is not None:
            _run_once(plugin.name, plugin.path, plugin.source)
            continue
        here = _load_module(plugin.name)
        if here.sha256 != plugin.sha256:
            raise ConfigError(
                "plugin-mismatch",
                wrong=f"the module `{plugin.name}` of a worker must be that of the driver, "
                f"{_short(plugin.sha256)}",
                found=_short(here.sha256),
                remedy="Install the same version on every node, or pass it as a file.",
            )


@contextmanager
def scope() -> Iterator[None]:
    """Forget on leaving what was loaded and registered inside."""
    before = dict(_loaded)
    inside: list[tuple[Kind, str]] = []
    kept = {kind: set(registry.names()) for kind, registry in _registries.items()}
    try:
        yield
    finally:
        for plugin in loaded():
            if plugin.path not in before:
                inside += plugin.registered
                if plugin.source is not None:
                    sys.modules.pop(plugin.module, None)
        for kind, names in kept.items():
            inside += [(kind, name) for name in _registries[kind].names() if name not in names]
        for kind, name in inside:
            if not _is_ours(_registries[kind].defined(name)):
                _registries[kind].forget(name)
        _loaded.clear()
        _loaded.update(before)


def used(things: Iterable[tuple[Kind, str]]) -> list[JsonValue]:
    """Return the entries of an artifact that uses these things; those of the package have none."""
    uses = (use_of(kind, name) for kind, name in dict.fromkeys(things))
    return [use.record() for use in uses if use is not None]


def use_of(kind: Kind, name: str) -> Use | None:
    """Return where a registered thing comes from; None for one of the package, or for none."""
    registry = _registries.get(kind)
    defined = None if registry is None else registry.defined(name)
    if defined is None or _is_ours(defined):
        return None
    for plugin in loaded():
        if (kind, name) in plugin.registered:
            return Use(kind, name, plugin.name, plugin.sha256, "file")
    return Use(kind, name, _file_of(defined), _definition(defined), "definition")


def require(records: JsonValue, *, owner: str, kinds: Collection[str] | None = None) -> None:
    """Refuse to use an artifact without the plug-ins that it was made with.

    Args:
        records: entries of `used`, as an artifact has them; None has none.
        owner: what the artifact is, for the refusal.
        kinds: those that are needed now; None needs all.

    Raises:
        ArtifactError: if one is not loaded, or its source is another; or if the entries are not
            such.
    """
    for use in _read(records, owner):
        if kinds is not None and use.kind not in kinds:
            continue
        registry = _registries.get(use.kind)
        defined = None if registry is None else registry.defined(use.name)
        if defined is None:
            raise ArtifactError(
                "plugin-missing",
                wrong=f"{owner} needs the {use.kind} `{use.name}` of the plug-in `{use.file}` "
                f"({_short(use.sha256)})",
                found=f"no {use.kind} of that name",
                remedy=f"Bring the file that it was made with: `{option(use.file)}`. It is not run "
                "unless you name it.",
            )
        here = _hash_of(use, defined)
        if use.sha256 and here != use.sha256:
            raise ArtifactError(
                "plugin-mismatch",
                wrong=f"the {use.kind} `{use.name}` must come from the `{use.file}` that {owner} "
                f"was made with, {_short(use.sha256)}",
                found=f"a source of {_short(here)}",
                remedy=f"Bring that version of the file with `{option(use.file)}`, or train anew.",
            )


def files_of(records: JsonValue, *, owner: str) -> tuple[str, ...]:
    """Return the names of the files and modules, each once, that an artifact was made with.

    Args:
        records: entries of `used`, as an artifact has them; None has none.
        owner: what the artifact is, for the refusal.

    Raises:
        ArtifactError: if the entries are not such.
    """
    return tuple(dict.fromkeys(use.file for use in _read(records, owner)))


def shown(path: str | os.PathLike[str]) -> str:
    """Return a path as text that can be printed, whatever bytes it has."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _load(name: str) -> Plugin:
    is_file = name.endswith(".py") or os.path.isfile(name)  # noqa: PTH113 - never raises
    if not is_file and _MODULE.fullmatch(name):
        return _load_module(name)
    path = Path(name)
    source = _read_source(path)
    return _run_once(shown(path.name), str(path.resolve()), source)


def _read_source(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            source = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        words = getattr(error, "strerror", None) or str(error)
        raise _refused(shown(path), "must be a Python file that can be read", words) from error
    if len(source) > MAX_BYTES:
        raise _refused(shown(path), f"must have at most {MAX_BYTES} bytes", "more")
    return source


def _run_once(name: str, path: str, source: bytes) -> Plugin:
    """Run a file's source, unless this process has done so."""
    sha256 = hashlib.sha256(source).hexdigest()
    for plugin in loaded():
        if plugin.source is not None and (plugin.name, plugin.sha256) == (name, sha256):
            return plugin
        if plugin.path == path:
            raise ConfigError(
                "plugin-mismatch",
                wrong=f"{name} must stay as this process has loaded it, {_short(plugin.sha256)}",
                found=_short(sha256),
                remedy="Start Python anew: what was computed with the older source is still in "
                "memory.",
            )
    slug = re.sub(r"[^0-9a-zA-Z]+", "_", name.removesuffix(".py"))
    module = f"stormsail_plugin_{slug}_{sha256[:8]}"
    try:
        with _recording(name) as registered:
            _execute(module, path, source)
    except BaseException:
        sys.modules.pop(module, None)
        raise
    return _kept(Plugin(name, sha256, tuple(registered), module, path, source))


class _Source(importlib.abc.InspectLoader):
    """Runs the very bytes that were hashed; the file may be another by now."""

    def __init__(self, source: bytes, path: str) -> None:
        self._source, self._path = source, path

    def get_source(self, fullname: str) -> str:  # noqa: ARG002 - one module each
        return importlib.util.decode_source(self._source)

    def get_code(self, fullname: str) -> types.CodeType:  # noqa: ARG002 - one module each
        return self.source_to_code(self._source, shown(self._path))


def _execute(name: str, path: str, source: bytes) -> None:
    loader = _Source(source, path)
    spec = importlib.machinery.ModuleSpec(name, loader, origin=path)
    spec.has_location = True
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)


def _load_module(name: str) -> Plugin:
    for plugin in loaded():
        if plugin.source is None and plugin.name == name:
            return plugin
    spec, sha256 = _module_source(name)
    with _recording(name) as registered:
        importlib.import_module(name)
        registered += [
            (kind, item)
            for kind, registry in _registries.items()
            for item in registry.names()
            if (kind, item) not in registered and _is_of(registry.defined(item), name)
        ]
    return _kept(Plugin(name, sha256, tuple(registered), name, spec.origin or name, None))


def _module_source(name: str) -> tuple[importlib.machinery.ModuleSpec, str]:
    """Return where a module is and the SHA-256 of its source; the working folder counts, too."""
    here = str(Path.cwd())
    added = here not in sys.path and "" not in sys.path
    if added:
        sys.path.append(here)
        importlib.invalidate_caches()
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError) as error:
        raise _refused(
            name, "must be a module, or a file that ends with `.py`", _named(error)
        ) from (error)
    finally:
        if added:
            sys.path.remove(here)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        problem = "no such module" if spec is None else "a module without a Python file"
        raise _refused(name, "must be a module, or a file that ends with `.py`", problem)
    if added and Path(spec.origin).is_relative_to(here):
        sys.path.append(here)  # what it imports later is there, too
    files = [Path(spec.origin)]
    if spec.submodule_search_locations:
        files = sorted(Path(spec.origin).parent.rglob("*.py"))
    digest = hashlib.sha256()
    for file in files:
        source = _read_source(file)
        if len(files) > 1:
            digest.update(f"{file.relative_to(files[0].parent)}\0{len(source)}\0".encode())
        digest.update(source)
    return spec, digest.hexdigest()


@contextmanager
def _recording(name: str) -> Iterator[list[tuple[Kind, str]]]:
    """Record what is registered inside; forget all of it, and say so in words, if that fails."""
    registered: list[tuple[Kind, str]] = []
    _loading.append(registered)
    try:
        yield registered
        _check_any(name, registered)
    except BaseException as error:
        for kind, item in registered:
            _registries[kind].forget(item)
        if isinstance(error, StormsailError) or not isinstance(error, Exception | SystemExit):
            raise
        raise _refused(name, "must run", _named(error)) from error
    finally:
        _loading.pop()
        if _loading:  # a plug-in that loads another one brings what that one brings
            _loading[-1].extend(registered)


def _check_any(name: str, registered: list[tuple[Kind, str]]) -> None:
    if not registered:
        kinds = get_args(Kind)
        raise _refused(name, f"must register a {', '.join(kinds[:-1])} or {kinds[-1]}", NOTHING)


def _kept(plugin: Plugin) -> Plugin:
    _loaded[plugin.path] = plugin
    return plugin


def _refused(name: str, must: str, found: str) -> ConfigError:
    return ConfigError(
        "plugin-file",
        wrong=f"the plug-in {name} {must}",
        found=found,
        remedy="Pass a Python file, or a module, that registers something by a decorator such as "
        "`@feature(name=..., lookback=...)`.",
    )


def _named(error: BaseException) -> str:
    """Return an error in words, a syntax error with its line."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} in line {error.lineno}"
    return f"{type(error).__name__}: {error}"


def _is_ours(defined: object) -> bool:
    return str(getattr(defined, "__module__", "")).startswith(_OURS)


def _is_of(defined: object, module: str) -> bool:
    own = str(getattr(defined, "__module__", ""))
    return own == module or own.startswith(f"{module}.")


def _file_of(defined: object) -> str:
    module = sys.modules.get(str(getattr(defined, "__module__", "")))
    path = getattr(module, "__file__", None)
    return shown(Path(path).name) if path else str(getattr(defined, "__module__", "unknown"))


def _definition(defined: object) -> str:
    """Return the SHA-256 of a definition's source; empty where Python cannot show it."""
    try:
        source = inspect.getsource(defined)  # type: ignore[arg-type]  # what it refuses is caught
    except (OSError, TypeError):
        return ""
    return hashlib.sha256(source.encode("utf-8", "surrogateescape")).hexdigest()


def _hash_of(use: Use, defined: object) -> str:
    """Return the hash of what is registered now, of the same part that the artifact names."""
    if use.covers == "definition":
        return _definition(defined)
    here = use_of(use.kind, use.name)
    if here is not None and here.covers == "file":
        return here.sha256
    module = sys.modules.get(str(getattr(defined, "__module__", "")))
    path = getattr(module, "__file__", None)
    return hashlib.sha256(_read_source(Path(path))).hexdigest() if path else ""


def _read(records: JsonValue, owner: str) -> list[Use]:
    entries = [] if records is None else records
    if not isinstance(entries, list) or not all(_is_use(entry) for entry in entries):
        raise ArtifactError(
            "artifact-document",
            wrong=f"the plug-ins of {owner} must be a list of kind, name, file and SHA-256",
            found=repr(records)[:80],
            remedy="Use an artifact that this version of the package wrote.",
        )
    return [Use(**entry) for entry in entries]  # type: ignore[arg-type]  # checked above


def _is_use(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and set(entry) == _KEYS
        and all(isinstance(value, str) for value in entry.values())
        and entry["kind"] in get_args(Kind)
        and entry["covers"] in ("file", "definition")
    )


def _short(sha256: str) -> str:
    return f"SHA-256 {sha256[:_SHORT]}" if sha256 else "no known SHA-256"
