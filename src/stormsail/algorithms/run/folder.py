"""The folder of a run: created once, locked by one process, kept within its size limit.

`config.toml` holds the settings, `manifest.json` the identity of the run (version, data, task); the
manifest is written last, so a folder without one holds no run. `checkpoints/` holds generations,
`best/` the best agent so far, `refused/` batches whose step was refused, `rollback.json` the last
rollback.
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
"""Refused batches that are kept, the first ones."""

_MAX_BYTES = 1 << 20
_ALL = 1 << 40
"""`Generations` never prunes: this folder has rules of its own."""

_ONLY_DISK = {
    "checkpoint.keep_last",
    "checkpoint.keep_every_updates",
    "checkpoint.disk_limit_mb",
}
"""Settings that change nothing that is computed, so that a run may continue with others."""


class Rollback(NamedTuple):
    """A rollback of a run to an older generation."""

    step: int
    """Generation to continue from."""
    times: int
    """Rollbacks so far, this one included."""
    reason: str
    """Why."""


class RunFolder:
    """Folder of a run, locked by this process; from `open_run`.

    Args:
        path: the folder.
        config: of the run.
        binding: what the agent is bound to, from `run.tasks.binding`.
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
        """Return whether anything was saved before, even if it was set aside since."""
        return bool(self.generations.steps()) or self.generations.aside.exists()

    def save(self, step: int, contents: Contents) -> Path:
        """Write a generation, then prune old ones.

        Raises:
            ArtifactError: if the run would become larger than its limit, or the disk refuses.
        """
        if self.config.checkpoint.disk_limit_mb is not None:
            self._check_limit(encode_artifact(kind=checkpoint.KIND, contents=contents))
        path = self.generations.save(step, contents)
        self._prune()
        return path

    def save_best(self, agent: Agent) -> None:
        """Replace the best agent; a kill leaves the old or the new one.

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
        """Save a batch whose step was refused; None if there are enough, or it is there."""
        place = self.path / _REFUSED
        taken = {entry.name for entry in place.iterdir()} if place.is_dir() else set()
        if name in taken or len(taken) >= _MAX_REFUSED:
            return None
        write_artifact(place / name, kind="refused-batch", contents=contents)
        return place / name

    def save_rollback(self, target: Rollback) -> None:
        """Record the decision to continue from an older generation, so that it outlives a kill."""
        with _loud(self.path), self._opened() as folder:
            atomic.replace_file(folder, _ROLLBACK, documents.encode_readable(target._asdict()))

    def last_rollback(self) -> Rollback | None:
        """Return the last rollback, or None if there was none.

        Raises:
            ArtifactError: if its file is damaged.
        """
        with self._opened() as folder:
            if not atomic.exists(folder, _ROLLBACK):
                return None
            document = _document(self.path, folder, _ROLLBACK)
        try:
            target = Rollback(**document)  # type: ignore[arg-type]  # checked in the next line
            kinds = zip(target, (int, int, str), strict=True)
        except TypeError:
            raise _damaged(self.path / _ROLLBACK, f"the keys {sorted(document)}") from None
        if not all(type(value) is kind for value, kind in kinds):
            raise _damaged(self.path / _ROLLBACK, f"{target}")
        return target

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
    """Create the folder of a run, or open an existing one, and lock it.

    Args:
        path: the folder.
        config: of the run. In an existing folder only what concerns the disk may differ.
        binding: what the agent is bound to.

    Raises:
        ConfigError: if the run in the folder has another configuration; it names the settings.
        ArtifactError: if another process uses the folder, it is not one of a run, it was created
            for other data or by another version, or the disk refuses.
    """
    path = Path(path)
    if not path.is_dir():
        atomic.check_free(path)
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
            atomic.remove_leftovers(folder)
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
    left, right = (_settings(config.model_dump(mode="json")) for config in (first, second))
    names = sorted({*left, *right})
    return [
        (name, left.get(name), right.get(name))
        for name in names
        if left.get(name) != right.get(name)
    ]


def _settings(data: Mapping[str, object], above: str = "") -> dict[str, object]:
    settings: dict[str, object] = {}
    for name, value in data.items():
        if isinstance(value, Mapping) and value:
            settings |= _settings(value, f"{above}{name}.")
        else:
            settings[above + name] = value
    return settings


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
    """Refuse to continue with other settings, data or another version; name what differs."""
    saved = _document(path, folder, MANIFEST)
    wanted = _manifest(run.identity)
    for name in ("kind", "format", "code_version"):
        _require(path, saved, wanted, name)
    if atomic.exists(folder, CONFIG):
        before = TrainConfig.load(path / CONFIG)
        changed = [
            setting for setting in differences(before, run.config) if setting[0] not in _ONLY_DISK
        ]
        if changed:
            raise _changed(path, changed)
    for name in wanted:
        _require(path, saved, wanted, name)


def _require(
    path: Path, saved: Mapping[str, JsonValue], wanted: Mapping[str, JsonValue], name: str
) -> None:
    if saved.get(name) != wanted[name]:
        raise ArtifactError(
            "artifact-mismatch",
            wrong=f"`{name}` of the run in {path} must be {toml.shown(wanted[name])}",
            found=toml.shown(saved.get(name)),
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


def _damaged(path: Path, problem: str) -> ArtifactError:
    return ArtifactError(
        "artifact-document",
        wrong=f"{path} must be as this version writes it",
        found=problem,
        remedy="Restore it from a copy, or start a new run in another folder.",
    )


def _finish_best(folder: int) -> None:
    """Complete the replacement of the best agent, wherever a kill interrupted it."""
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
