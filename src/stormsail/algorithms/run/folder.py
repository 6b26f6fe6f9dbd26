"""The folder of a run: created once, locked by one process, kept within its size limit.

`config.toml` holds the settings, derived ones included, `lineage.json` where the run comes from and
how it grew, `manifest.json` its identity (version, data, task) and its place in the trial ledger;
the manifest is written last, so a folder without one holds no run. They are written once task and
learner are made: a run that is refused before that leaves nothing behind, and an existing one as it
was. `checkpoints/` holds generations, `best/` the best agent so far, `refused/` batches whose step
was refused, `rollback.json` the last rollback. `copied-<n>-<step>` is a checkpoint that takes the
place of all others, between its writing and its move to `checkpoints/`: it counts once the lineage
has n copies.
"""

import contextlib
import operator
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive, open_settings
from stormsail.algorithms.run import checkpoint
from stormsail.algorithms.run.lineage import RATES, TOTAL, Lineage, Source, Wish
from stormsail.algorithms.run.plugins import load_saved
from stormsail.algorithms.update.schedules import Extension
from stormsail.core.config import Config, toml
from stormsail.core.errors import ArtifactError, ConfigError
from stormsail.core.files import atomic, documents
from stormsail.core.files.artifact import Contents, encode_artifact, write_artifact, write_error
from stormsail.core.files.documents import DocumentError, JsonValue
from stormsail.core.files.generations import Generations
from stormsail.core.files.verified import read_error
from stormsail.evaluation.stats.trial_marks import KEY as TRIALS
from stormsail.modules.agent import KIND as AGENT
from stormsail.modules.agent import Agent

CONFIG = "config.toml"
LINEAGE = "lineage.json"
MANIFEST = "manifest.json"
BEST = "best"
_FORMAT = 1
_KIND = "run"
_NEXT_BEST, _OLD_BEST = "best-next", "best-old"
_COPIED = "copied-"
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
        config: of the run, in force and without open settings.
        binding: what the agent is bound to, from `run.tasks.binding`.
        lineage: of the run.
        is_new: whether the folder holds no run yet.
    """

    def __init__(
        self,
        path: Path,
        config: TrainConfig,
        binding: Mapping[str, JsonValue],
        lineage: Lineage,
        *,
        is_new: bool,
    ) -> None:
        self.path, self.config, self.lineage, self.is_new = path, config, lineage, is_new
        self.identity = checkpoint.identity(lineage.begun(config), binding)
        if lineage.source is not None:
            self.identity["source"] = lineage.source.record()
        self.extension: Extension | None = None
        """Extension that this process makes; None where it makes none."""
        self._written, self._kept = False, False
        self.generations = Generations(path / "checkpoints", kind=checkpoint.KIND, keep=_ALL)
        self.metrics = path / "metrics.parquet"
        self.events = path / "events.jsonl"
        self.process = path / "process.jsonl"
        self.tensorboard = path / "tb"
        self.best = path / BEST

    def begin(self) -> None:
        """Write settings and lineage, and in a new folder the manifest.

        Raises:
            ArtifactError: if the disk refuses.
        """
        with _loud(self.path), self._opened() as folder:
            self._written = True
            text = documents.encode_readable(self.lineage.model_dump(mode="json"))
            atomic.replace_file(folder, LINEAGE, text)
            atomic.replace_file(folder, CONFIG, self.config.to_toml().encode("utf-8"))
            if self.is_new:
                text = documents.encode_readable(_manifest(self.identity))
                atomic.replace_file(folder, MANIFEST, text)

    def mark_trials(self, mark: dict[str, JsonValue]) -> None:
        """Write into the manifest with which line of the trial ledger the run began.

        Raises:
            ArtifactError: if the disk refuses.
        """
        with _loud(self.path), self._opened() as folder:
            saved = _document(self.path, folder, MANIFEST)
            if saved.get(TRIALS) != mark:
                text = documents.encode_readable({**saved, TRIALS: mark})
                atomic.replace_file(folder, MANIFEST, text)

    def keep(self) -> None:
        """Leave the folder as it is whatever happens: the first update comes."""
        self._kept = True

    def discard(self) -> None:
        """Remove what this process put into a new folder, unless an update may have been done."""
        if not self.is_new or self._kept or not self._written:
            return
        with _loud(self.path), self._opened() as folder:
            atomic.remove_tree(folder, *atomic.entries(folder))

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

    def copy_over(
        self, config: TrainConfig, lineage: Lineage, step: int, contents: Contents
    ) -> None:
        """Replace all checkpoints by one, and settings and lineage by those that belong to it.

        A kill leaves the old run or the new one. A rollback of the old one is forgotten.

        Args:
            config: of the run from now on.
            lineage: its own, with one more copy.
            step: of the checkpoint.
            contents: of the checkpoint.

        Raises:
            ArtifactError: if the disk refuses.
        """
        files = encode_artifact(kind=checkpoint.KIND, contents=contents)
        self._check_limit(files)
        with _loud(self.path), self._opened() as folder:
            name = f"{_COPIED}{len(lineage.copies)}-{step:012d}"
            atomic.write_folder(folder, name, files)
        self.config, self.lineage = config, lineage
        self.begin()
        with _loud(self.path), self._opened() as folder:
            _finish_copy(folder, lineage)

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
    path: Path | str,
    config: TrainConfig,
    binding: Mapping[str, JsonValue],
    *,
    source: Source | None = None,
    ancestors: Iterable[dict[str, JsonValue]] = (),
    extend_to: int | None = None,
) -> Iterator[RunFolder]:
    """Lock the folder of a new or an existing run; nothing is written before `RunFolder.begin`.

    A new folder that is refused before its first update is removed again.

    Args:
        path: the folder.
        config: of the run. In an existing folder only what concerns the disk may differ; open
            settings are those of the folder.
        binding: what the agent is bound to.
        source: agent that a new run begins from; in an existing folder None stands for its own.
        ancestors: lineage of that agent.
        extend_to: new total of steps of an existing run, which may then have other learning rates.

    Raises:
        ConfigError: if the run in the folder has another configuration; it names the settings. Or
            if it cannot be extended to that number.
        ArtifactError: if another process uses the folder, it is not one of a run, it was created
            for other data, from another agent or by another version, or the disk refuses.
    """
    path = Path(path)
    if extend_to is not None:
        _require_run(path)
    if not path.is_dir():
        atomic.check_free(path)
    made = [place for place in (path, *path.parents) if not place.is_dir()]
    with _loud(path):
        atomic.make_folders(path)
    try:
        with _alone(path) as folder:
            present = set(atomic.entries(folder))
            if MANIFEST in present:
                run = _existing(path, folder, config, binding, source, extend_to)
            else:
                _check_empty(path, present)
                lineage = Lineage(
                    derived=open_settings(config), source=source, ancestors=tuple(ancestors)
                )
                run = RunFolder(path, derive(config), binding, lineage, is_new=True)
            with _loud(path):
                atomic.remove_leftovers(folder)
                _finish_best(folder)
                _finish_copy(folder, run.lineage)
            try:
                yield run
            except Exception:
                run.discard()
                raise
    finally:
        for place in made:  # those with something in them stay
            with contextlib.suppress(OSError):
                place.rmdir()


def threads_of(path: Path | str, config: TrainConfig) -> int:
    """Return the threads of a run: as given, or those of the run in the folder, or derived."""
    known = config
    if "threads" in open_settings(config) and (Path(path) / MANIFEST).is_file():
        known = read_config(path)
    return derive(known).threads


def read_config(path: Path | str, overrides: Iterable[str] = ()) -> TrainConfig:
    """Return the configuration of the run in a folder, with `path=value` overrides on top.

    Raises:
        ArtifactError: if there is no run.
        ConfigError: if its configuration cannot be read.
    """
    path = Path(path)
    _require_run(path)
    return load_saved(TrainConfig, path / CONFIG, overrides)


def read_lineage(path: Path | str) -> Lineage:
    """Return the lineage of the run in a folder.

    Raises:
        ArtifactError: if it is damaged, or there is no such folder.
    """
    path = Path(path)
    with _loud(path), atomic.open_folder(path, follow=True) as folder:
        return _saved_lineage(path, folder)


def _require_run(path: Path) -> None:
    if not (path / MANIFEST).is_file():
        raise ArtifactError(
            "artifact-missing",
            wrong=f"{path} must be the folder of a run",
            found="no such folder" if not path.exists() else f"no `{MANIFEST}` in it",
            remedy="Start one with `stormsail train CONFIG --out RUN`.",
        )


def differences(first: Config, second: Config) -> list[tuple[str, object, object]]:
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
    others = sorted(
        name for name in present - {CONFIG, LINEAGE} if not name.startswith(atomic.TEMPORARY)
    )
    if others:
        raise ArtifactError(
            "artifact-exists",
            wrong=f"{path} must be a new folder, or that of a run",
            found=f"`{others[0]}` and no `{MANIFEST}` in it",
            remedy="Choose another folder; nothing is ever overwritten.",
        )


def _existing(
    path: Path,
    folder: int,
    config: TrainConfig,
    binding: Mapping[str, JsonValue],
    source: Source | None,
    extend_to: int | None,
) -> RunFolder:
    """Return the run in a folder; refuse other settings, data, agents or another version."""
    saved = _document(path, folder, MANIFEST)
    plain = _manifest(checkpoint.identity(config, binding))
    for name in ("kind", "format", "code_version"):
        _require(path, saved, plain, name)
    lineage = _saved_lineage(path, folder)
    _check_source(path, lineage, source)
    before = lineage.current(
        load_saved(TrainConfig, path / CONFIG) if atomic.exists(folder, CONFIG) else derive(config)
    )
    changed = _changes(lineage, before, config, extend_to)
    if changed:
        raise _changed(path, changed)
    current = before.replace(checkpoint=config.checkpoint)
    known = len(lineage.extensions)
    if extend_to is not None:
        wish = Wish(total=extend_to, rates=_wished_rates(current, config))
        steps = Generations(path / "checkpoints", kind=checkpoint.KIND, keep=_ALL).steps()
        lineage = lineage.extended(current, wish, steps=steps[-1] if steps else 0)
        current = lineage.current(current)
    run = RunFolder(path, current, binding, lineage, is_new=False)
    run.extension = next(iter(lineage.extensions[known:]), None)
    wanted = _manifest(run.identity)
    for name in wanted:
        _require(path, saved, wanted, name)
    return run


def _changes(
    lineage: Lineage, before: TrainConfig, config: TrainConfig, extend_to: int | None
) -> list[tuple[str, object, object]]:
    """Return the settings that differ from the run's and may not.

    May differ: those of the disk, open ones, and what extensions have changed or may change now.
    """
    free = _ONLY_DISK | set(open_settings(config))
    if extend_to is not None:
        free |= set(RATES)
        if config.ppo.total_steps == extend_to:
            free |= {TOTAL}
    new = {name for name, _, _ in differences(lineage.begun(before), config)}
    known = (TOTAL, *RATES, *lineage.searched())
    free |= {name for name in known if name not in new}  # as in the first command
    return [change for change in differences(before, config) if change[0] not in free]


def _wished_rates(current: TrainConfig, config: TrainConfig) -> tuple[float, float] | None:
    """Return the learning rates of an extension; None where those given are in force already."""
    known = (current.ppo.learning_rate, current.ppo.learning_rate_final)
    first = known[0] if RATES[0] in open_settings(config) else config.ppo.learning_rate
    given = (first, config.ppo.learning_rate_final)
    return None if given == known else given


def _saved_lineage(path: Path, folder: int) -> Lineage:
    if not atomic.exists(folder, LINEAGE):
        return Lineage()
    try:
        return Lineage.from_mapping(_document(path, folder, LINEAGE))
    except ConfigError as error:
        raise _damaged(path / LINEAGE, str(error)) from None


def _check_source(path: Path, lineage: Lineage, source: Source | None) -> None:
    """Refuse another agent to begin from than the run's; none stands for its own."""
    if source is None or source == lineage.source:
        return
    own = lineage.source
    raise ArtifactError(
        "artifact-mismatch",
        wrong=f"the run in {path} must go on from what it was begun with, "
        + ("random weights" if own is None else _named(own)),
        found=_named(source),
        remedy="Leave `--from` out to continue it, or give the new run another folder.",
    )


def _named(source: Source) -> str:
    steps = "" if source.steps is None else f" of {source.steps} steps"
    return f"`{source.name}`{steps} ({source.agent[:8]}, optimizer {source.optimizer})"


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


def _finish_copy(folder: int, lineage: Lineage) -> None:
    """Complete the replacement of all checkpoints, or forget it if its lineage was not written."""
    for name in [entry for entry in atomic.entries(folder) if entry.startswith(_COPIED)]:
        number, _, step = name.removeprefix(_COPIED).partition("-")
        if int(number) > len(lineage.copies):
            atomic.remove_tree(folder, name)
            continue
        if atomic.exists(folder, _ROLLBACK):
            atomic.remove_tree(folder, _ROLLBACK)
        with atomic.open_folder("checkpoints", parent=folder) as checkpoints:
            atomic.remove_tree(checkpoints, *atomic.entries(checkpoints))
            atomic.move(folder, name, checkpoints, step)


@contextlib.contextmanager
def _loud(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise write_error(path, error) from error
