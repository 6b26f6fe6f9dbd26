"""The folder of one run: made once, held by one process, and kept within its limits.

`config.toml` says what is trained and `manifest.json` for what; the manifest is written last, so a
folder without one was never begun. `checkpoints/` holds generations, `best/` the best agent so far,
`refused/` batches that were not learned from, `rollback.json` how far back a run was sent.
"""

import contextlib
import operator
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.run import checkpoint
from stormsail.core.config import toml
from stormsail.core.errors import ArtifactError, ConfigError
from stormsail.core.files import atomic, documents
from stormsail.core.files.artifact import Contents, encode_artifact, write_artifact, write_error
from stormsail.core.files.documents import DocumentError, JsonValue
from stormsail.core.files.generations import Generations
from stormsail.core.files.verified import read_error
from stormsail.modules.agent import KIND as AGENT
from stormsail.modules.agent import Agent

CONFIG = "config.toml"
MANIFEST = "manifest.json"
BEST = "best"
_FORMAT = 1
_KIND = "run"
_NEXT_BEST, _OLD_BEST = "best-next", "best-old"
_ROLLBACK = "rollback.json"
_REFUSED = "refused"
_MAX_REFUSED = 16
"""Refused batches that are kept; the first ones tell where it began."""

_MAX_BYTES = 1 << 20
_ALL = 1 << 40
"""Generations that are never pruned by number alone: this folder has rules of its own."""

_ONLY_DISK = {
    "checkpoint.keep_last",
    "checkpoint.keep_every_updates",
    "checkpoint.disk_limit_mb",
}
"""Settings that change nothing that is computed, so that a run may go on with others."""


class Rollback(NamedTuple):
    """How far back a run was sent, and how often so far."""

    step: int
    """Generation to go on from."""
    times: int
    """Times that the run was sent back, this one included."""
    reason: str
    """What was wrong."""


class RunFolder:
    """A run's folder, held by this process; made by `open_run`.

    Args:
        path: the folder.
        config: of the run.
        binding: what the task is bound to, as `task_factory.binding` says.
    """

    def __init__(self, path: Path, config: TrainConfig, binding: Mapping[str, JsonValue]) -> None:
        self.path, self.config = path, config
        self.identity = checkpoint.identity(config, binding)
        self.generations = Generations(path / "checkpoints", kind=checkpoint.KIND, keep=_ALL)
        self.metrics = path / "metrics.parquet"
        self.events = path / "events.jsonl"
        self.process = path / "process.jsonl"
        self.tensorboard = path / "tb"
        self.best = path / BEST

    def has_generations(self) -> bool:
        """Tell whether anything was saved before, be it damaged or moved aside by now."""
        return bool(self.generations.steps()) or (self.generations.root / "quarantine").exists()

    def save(self, step: int, contents: Contents) -> Path:
        """Write a generation, then let go of those that need not be kept.

        Raises:
            ArtifactError: if the run would become larger than its limit, or the disk refuses.
        """
        if self.config.checkpoint.disk_limit_mb is not None:
            self._check_limit(encode_artifact(kind=checkpoint.KIND, contents=contents))
        path = self.generations.save(step, contents)
        self._prune()
        return path

    def save_best(self, agent: Agent) -> None:
        """Put the agent in the place of the best one so far; a kill leaves the old or the new.

        Raises:
            ArtifactError: if the disk refuses.
        """
        files = encode_artifact(kind=AGENT, contents=agent.contents())
        self._check_limit(files)
        with _loud(self.best), self._opened() as folder:
            _finish_best(folder)
            atomic.write_folder(folder, _NEXT_BEST, files)
            _finish_best(folder)

    def save_refused(self, name: str, contents: Contents) -> Path | None:
        """Keep a batch that was not learned from; None if there are enough, or it is there."""
        place = self.path / _REFUSED
        taken = {one.name for one in place.iterdir()} if place.is_dir() else set()
        if name in taken or len(taken) >= _MAX_REFUSED:
            return None
        write_artifact(place / name, kind="refused-batch", contents=contents)
        return place / name

    def send_back(self, target: Rollback) -> None:
        """Decide to go on from an older generation; the decision outlives a kill."""
        with _loud(self.path), self._opened() as folder:
            atomic.replace_file(folder, _ROLLBACK, documents.encode_readable(target._asdict()))

    def rollback(self) -> Rollback | None:
        """Return how far back the run was sent last, or None if it never was.

        Raises:
            ArtifactError: if the file that says so is damaged.
        """
        with self._opened() as folder:
            if not atomic.exists(folder, _ROLLBACK):
                return None
            document = _document(self.path, folder, _ROLLBACK)
        try:
            found = Rollback(**document)  # type: ignore[arg-type]  # checked in the next line
            kinds = zip(found, (int, int, str), strict=True)
        except TypeError:
            raise _damaged(self.path / _ROLLBACK, f"the keys {sorted(document)}") from None
        if not all(type(value) is kind for value, kind in kinds):
            raise _damaged(self.path / _ROLLBACK, f"{found}")
        return found

    def size(self) -> int:
        """Return the bytes of all files of the run."""
        total = 0
        for place, _, names in os.walk(self.path):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    total += os.lstat(Path(place) / name).st_size
        return total

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        with atomic.open_folder(self.path, follow=True) as folder:
            yield folder

    def _check_limit(self, files: Mapping[str, bytes]) -> None:
        limit = self.config.checkpoint.disk_limit_mb
        if limit is None:
            return
        needed = self.size() + sum(map(len, files.values()))
        if needed > limit << 20:
            raise ArtifactError(
                "artifact-limit",
                wrong=f"{self.path} must stay within `checkpoint.disk_limit_mb` {limit}",
                found=f"{needed / 2**20:.1f} MiB with the next artifact",
                remedy="Raise the limit, or lower `checkpoint.keep_last`, and repeat the command; "
                "what was saved before is untouched.",
            )

    def _prune(self) -> None:
        kept = self.config.checkpoint
        steps = self.generations.steps()
        doomed = steps[: -kept.keep_last]
        if kept.keep_every_updates is not None:
            ppo = self.config.ppo
            period = kept.keep_every_updates * ppo.n_steps * ppo.n_envs
            doomed = [step for step in doomed if step % period]
        root = self.generations.root
        with _loud(root), atomic.open_folder(root, follow=True) as folder:
            atomic.remove_tree(folder, *(f"{step:012d}" for step in doomed))


@contextlib.contextmanager
def open_run(
    path: Path | str, config: TrainConfig, binding: Mapping[str, JsonValue]
) -> Iterator[RunFolder]:
    """Make a run's folder, or take up one that is there, and hold it alone.

    Args:
        path: the folder.
        config: of the run. In a folder that is there, only what concerns the disk may differ.
        binding: what the task is bound to.

    Raises:
        ConfigError: if the run in the folder has another configuration; it names the settings.
        ArtifactError: if another process holds the folder, it is not one of a run, it was made
            for other data or by another version, or the disk refuses.
    """
    path = Path(path)
    with _loud(path):
        atomic.make_folders(path)
    with _alone(path) as folder:
        present = set(atomic.entries(folder))
        run = RunFolder(path, config, binding)
        begun = MANIFEST in present
        if begun:
            _check_same(path, folder, run)
        else:
            _check_empty(path, present)
        with _loud(path):
            _clear(folder)
            _finish_best(folder)
            atomic.replace_file(folder, CONFIG, config.to_toml().encode("utf-8"))
            if not begun:
                text = documents.encode_readable(_manifest(run.identity))
                atomic.replace_file(folder, MANIFEST, text)
        yield run


def read_config(path: Path | str, overrides: Iterable[str] = ()) -> TrainConfig:
    """Return the configuration of the run in a folder, with `path=value` overrides on top.

    Raises:
        ArtifactError: if there is no run.
        ConfigError: if its configuration cannot be read.
    """
    path = Path(path)
    if not (path / MANIFEST).is_file():
        raise ArtifactError(
            "artifact-missing",
            wrong=f"{path} must be the folder of a run",
            found="no such folder" if not path.exists() else f"no `{MANIFEST}` in it",
            remedy="Start one with `stormsail train CONFIG --out RUN`.",
        )
    return TrainConfig.load(path / CONFIG, overrides)


def differences(first: TrainConfig, second: TrainConfig) -> list[tuple[str, object, object]]:
    """Return the settings in which two configurations differ: path, first value, second value."""
    one, other = _settings(first.model_dump(mode="json")), _settings(second.model_dump(mode="json"))
    names = sorted({*one, *other})
    return [
        (name, one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name)
    ]


def _settings(data: Mapping[str, object], above: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in data.items():
        if isinstance(value, Mapping) and value:
            found |= _settings(value, f"{above}{name}.")
        else:
            found[above + name] = value
    return found


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[int]:
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(atomic.locked_folder(path))
        except atomic.FolderBusyError as error:
            raise ArtifactError(
                "run-busy",
                wrong=f"one process at a time must train in {path}",
                found="another one that does so now",
                remedy="Wait for it or stop it, or give this run a folder of its own.",
            ) from error
        except OSError as error:
            raise write_error(path, error) from error
        yield folder


def _manifest(identity: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    return {**identity, "format": _FORMAT, "kind": _KIND}


def _check_empty(path: Path, present: set[str]) -> None:
    others = sorted(name for name in present - {CONFIG} if not name.startswith(atomic.TEMPORARY))
    if others:
        raise ArtifactError(
            "artifact-exists",
            wrong=f"{path} must be a new folder, or that of a run",
            found=f"`{others[0]}` and no `{MANIFEST}` in it",
            remedy="Choose another folder; nothing is ever overwritten.",
        )


def _check_same(path: Path, folder: int, run: RunFolder) -> None:
    """Refuse to go on with other settings, data or another version; name what differs."""
    found = _document(path, folder, MANIFEST)
    wanted = _manifest(run.identity)
    for name in ("kind", "format", "code_version"):
        _require(path, found, wanted, name)
    if atomic.exists(folder, CONFIG):
        saved = TrainConfig.load(path / CONFIG)
        changed = [one for one in differences(saved, run.config) if one[0] not in _ONLY_DISK]
        if changed:
            raise _changed(path, changed)
    for name in wanted:
        _require(path, found, wanted, name)


def _require(
    path: Path, found: Mapping[str, JsonValue], wanted: Mapping[str, JsonValue], name: str
) -> None:
    if found.get(name) != wanted[name]:
        raise ArtifactError(
            "artifact-mismatch",
            wrong=f"`{name}` of the run in {path} must be {toml.shown(wanted[name])}",
            found=toml.shown(found.get(name)),
            remedy="Go on with the data and the version that it was begun with, or start a new "
            "run in another folder.",
        )


def _changed(path: Path, changed: list[tuple[str, object, object]]) -> ConfigError:
    names = ", ".join(f"`{name}`" for name in map(operator.itemgetter(0), changed))
    values = ", ".join(
        f"`{name}` {toml.shown(new)} instead of {toml.shown(old)}" for name, old, new in changed
    )
    return ConfigError(
        "config-inconsistent",
        wrong=f"{names} must stay what the run in {path} was begun with",
        found=values,
        remedy="Repeat the command that began it, or give the new run another folder.",
    )


def _document(path: Path, folder: int, name: str) -> dict[str, JsonValue]:
    try:
        value = documents.decode(atomic.read_file(folder, name, limit=_MAX_BYTES))
    except OSError as error:
        raise read_error(path, name, error) from error
    except DocumentError as error:
        raise _damaged(path / name, str(error)) from error
    if not isinstance(value, dict):
        raise _damaged(path / name, "no table")
    return value


def _damaged(path: Path, found: str) -> ArtifactError:
    return ArtifactError(
        "artifact-document",
        wrong=f"{path} must be as this version writes it",
        found=found,
        remedy="Restore it from a copy, or start a new run in another folder.",
    )


def _clear(folder: int) -> None:
    """Remove what killed writers left behind."""
    left = [name for name in atomic.entries(folder) if name.startswith(atomic.TEMPORARY)]
    atomic.remove_tree(folder, *left)


def _finish_best(folder: int) -> None:
    """Take every step that is still missing between a complete next best agent and its place."""
    if atomic.exists(folder, _NEXT_BEST):
        if atomic.exists(folder, BEST):
            if atomic.exists(folder, _OLD_BEST):
                atomic.remove_tree(folder, _OLD_BEST)
            atomic.move(folder, BEST, folder, _OLD_BEST)
        atomic.move(folder, _NEXT_BEST, folder, BEST)
    if atomic.exists(folder, _OLD_BEST):
        atomic.remove_tree(folder, _OLD_BEST)


@contextlib.contextmanager
def _loud(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise write_error(path, error) from error
