"""Checkpoint generations: save, prune, and load the newest one that is undamaged.

`root/000000001200/` is the state after step 1200. `root/latest` names the newest, for people and
other programs; nothing here relies on it. `root/set_aside/` keeps damaged and rolled back
generations, each with the reason.
"""

import contextlib
import operator
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from stormsail.core.errors import ArtifactError, ErrorCode, RangeError
from stormsail.core.files import atomic, documents
from stormsail.core.files.artifact import (
    Artifact,
    Contents,
    encode_artifact,
    read_artifact,
    verify_artifact,
    write_error,
)
from stormsail.core.files.verified import read_error

_NAME = re.compile(r"[0-9]{12}")
_POINTER = "latest"
_ASIDE = "set_aside"
_MAX_STEP = 10**12 - 1

# How often a load lists generations while another process saves new ones and prunes those listed.
_LISTINGS = 16

# Errors that mean damaged content. Others (no permission, a newer format, another kind) do not:
# falling back to an older generation would hide them and silently undo work.
_DAMAGE: frozenset[ErrorCode] = frozenset(
    {
        "artifact-corrupt",
        "artifact-document",
        "artifact-files",
        "artifact-limit",
        "artifact-manifest",
        "artifact-nonfinite",
        "artifact-tensors",
    }
)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A generation that could not be loaded.

    Attributes:
        name: its folder's name.
        reason: text of the error.
        moved_to: where it lies now; None if it could not be moved or was not there.
    """

    name: str
    reason: str
    moved_to: Path | None


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """A generation that was verified and read.

    Attributes:
        step: the step it was saved at.
        artifact: its contents.
        skipped: newer ones that could not be loaded, newest first; for the user.
    """

    step: int
    artifact: Artifact
    skipped: tuple[Skipped, ...]


class Generations:
    """Folder of the checkpoints of a run. One process saves at a time; any number may load.

    Args:
        root: the folder, created at the first save.
        kind: kind of artifact that is written and accepted.
        keep: how many of the newest generations survive a save; at least 1.
    """

    def __init__(self, root: Path | str, *, kind: str = "checkpoint", keep: int = 3) -> None:
        remedy = "Keep 3, so that two damaged generations cost no more than their steps."
        keep = _whole("keep", keep, remedy)
        if keep < 1:
            raise RangeError(wrong="`keep` must be at least 1", found=repr(keep), remedy=remedy)
        self.root = Path(root)
        self.aside = self.root / _ASIDE
        self.kind = kind
        self.keep = keep

    def steps(self) -> list[int]:
        """Return the steps of all generations present, in order, verified or not."""
        try:
            with atomic.open_folder(self.root, follow=True) as root:
                return [int(name) for name in _generations(root)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise read_error(self.root, self.root.name, error) from error

    def save(self, step: int, contents: Contents) -> Path:
        """Write a generation and return its folder once it is on the disk and reads back right.

        Leftovers of killed writers are removed first; generations beyond `keep` afterwards, which
        can never concern the one just verified.

        Raises:
            ArtifactError: if any part fails. The older generations are then untouched; the new one
                is absent or complete. Where the disk refuses even to remove one that does not read
                back right, a note of the error says so; it is never loaded.
            ArgumentError: if the step is not above those already saved, or the contents have no
                place in an artifact.
        """
        name = _name(step)
        files = encode_artifact(kind=self.kind, contents=contents)
        path = self.root / name
        with _loud(path), self._writing() as root:
            atomic.remove_leftovers(root)
            self._check_newest(root, name)
            atomic.write_folder(root, name, files)
            _verify_or_remove(root, path)
            atomic.replace_file(root, _POINTER, f"{name}\n".encode("ascii"))
            atomic.remove_tree(root, *_generations(root)[: -self.keep])
        return path

    def load_latest(self, *, allow_nonfinite: Collection[str] = ()) -> Generation:
        """Return the newest undamaged generation, setting damaged ones aside.

        A generation that another process removes before it is read is not damaged: the folder is
        listed again, for what that process saved meanwhile.

        Raises:
            ArtifactError: if none is left, naming what was tried; or at once, if a generation
                cannot be checked, for lack of permission or because a newer version wrote it.
        """
        skipped = {lost.name: lost for lost in self._lost()}
        for _ in range(_LISTINGS):
            try:
                return self._newest_whole(skipped, allow_nonfinite)
            except _GoneError as error:
                skipped[error.skipped.name] = error.skipped
        raise ArtifactError(
            "artifact-missing",
            wrong=f"a generation in {self.root} must stay there until it is read",
            found=f"{_LISTINGS} in a row that were removed before that",
            remedy="Save less often, or let `keep` be larger where they are saved.",
        )

    def load(self, step: int, *, allow_nonfinite: Collection[str] = ()) -> Artifact:
        """Return one generation, verified."""
        path = self.root / _name(step)
        return read_artifact(path, kind=self.kind, allow_nonfinite=allow_nonfinite)

    def set_aside(self, step: int, *, reason: str) -> Path:
        """Move a generation to `aside`, so that it is never loaded again; return its new path.

        Rolling back a run does the same: a step must be free before it can be saved again.

        Raises:
            ArtifactError: if there is no such generation, or it cannot be moved; it then lies where
                it was, and no reason is left behind where the disk permits.
        """
        name = _name(step)
        with _loud(self.aside):
            try:
                with atomic.open_folder(self.root, follow=True) as root:
                    if not atomic.exists(root, name):
                        raise self._absent(step)
                    atomic.make_folders(self.aside)
                    with atomic.open_folder(self.aside) as target:
                        return self.aside / _moved(root, name, target, reason)
            except FileNotFoundError as error:  # no folder at all, or removed at this very moment
                raise self._absent(step) from error

    def _absent(self, step: int) -> ArtifactError:
        return ArtifactError(
            "artifact-missing",
            wrong=f"{self.root} must hold a generation of step {step} before it can be moved aside",
            found=f"the steps {self.steps()}",
            remedy="Pass one of those in `steps()`.",
        )

    def _newest_whole(
        self, skipped: dict[str, Skipped], allow_nonfinite: Collection[str]
    ) -> Generation:
        """Return the newest undamaged generation of one listing; add the others to `skipped`.

        Raises:
            _GoneError: if a generation was removed between listing and reading.
        """
        for step in reversed(self.steps()):
            try:
                artifact = self.load(step, allow_nonfinite=allow_nonfinite)
            except ArtifactError as error:
                name, reason = _name(step), str(error)
                if error.code == "artifact-missing":
                    raise _GoneError(Skipped(name, reason, None)) from error
                if error.code not in _DAMAGE:
                    raise
                skipped[name] = self._skip(step, reason)
            else:
                # What went while a newer one came was pruned, and no step of it is lost.
                kept = [skip for skip in skipped.values() if skip.moved_to or int(skip.name) > step]
                kept.sort(key=operator.attrgetter("name"), reverse=True)
                return Generation(step, artifact, tuple(kept))
        raise ArtifactError(
            "artifact-none-left",
            wrong=f"{self.root} must hold a whole `{self.kind}`",
            found="; ".join(f"{skip.name}: {skip.reason}" for skip in skipped.values())
            or "none at all",
            remedy=f"Start anew, or look into {self.aside}.",
        )

    @contextlib.contextmanager
    def _writing(self) -> Iterator[int]:
        """Hold the folder alone while writing, so that every temporary entry is a leftover."""
        atomic.make_folders(self.root)
        try:
            with atomic.locked_folder(self.root) as root:
                yield root
        except atomic.FolderBusyError as error:
            raise ArtifactError(
                "artifact-write",
                wrong=f"one process at a time must save to {self.root}",
                found="another one that is saving now",
                remedy="Stop the other run, or give this one a name of its own.",
            ) from error

    def _check_newest(self, root: int, name: str) -> None:
        newest = max(_generations(root), default="")
        if name <= newest:
            raise RangeError(
                wrong=f"`step` must be above that of the newest generation in {self.root}",
                found=f"{int(name)} after {int(newest)}",
                remedy="Move what is in the way with `set_aside`; nothing is overwritten.",
            )

    def _skip(self, step: int, reason: str) -> Skipped:
        """Set a damaged generation aside; where the disk forbids it, skip it all the same.

        Raises:
            _GoneError: if it is no longer there: what is pruned while it is read looks damaged.
        """
        try:
            return Skipped(_name(step), reason, self.set_aside(step, reason=reason))
        except ArtifactError as error:
            if error.code == "artifact-missing":
                raise _GoneError(Skipped(_name(step), reason, None)) from error
            return Skipped(_name(step), f"{reason} It could not be moved: {error.found}.", None)

    def _lost(self) -> Iterator[Skipped]:
        """Yield the generation that `latest` names and that is gone: the user must be informed."""
        try:
            with atomic.open_folder(self.root, follow=True) as root:
                name = atomic.read_file(root, _POINTER, limit=64).decode("ascii").strip()
                present = _generations(root)
        except (OSError, UnicodeDecodeError):
            return
        moved = (self.aside / f"{name}.1").exists()
        if _NAME.fullmatch(name) and name > max(present, default="") and not moved:
            yield Skipped(name, f"`{_POINTER}` names it, but it is not there.", None)


class _GoneError(Exception):
    """A generation was removed between listing and reading."""

    def __init__(self, skipped: Skipped) -> None:
        self.skipped = skipped
        super().__init__(skipped.name)


def _verify_or_remove(root: int, path: Path) -> None:
    """Read back what was just written; what does not come back right must not stay visible."""
    try:
        verify_artifact(path)
    except ArtifactError as error:
        try:
            atomic.remove_tree(root, path.name)
        except OSError as obstacle:
            error.add_note(f"{path} could not be removed: {obstacle.strerror or obstacle}.")
        raise


def _moved(root: int, name: str, target: int, reason: str) -> str:
    """Move a generation into the folder `target`; return its name there."""
    new_name = _free_name(target, name)
    note = f"{new_name}.reason.json"
    # The reason goes first: every generation set aside has one, whenever this process dies.
    text = documents.encode_readable({"generation": name, "reason": reason})
    atomic.replace_file(target, note, text)
    try:
        atomic.move(root, name, target, new_name)
    except OSError:
        with contextlib.suppress(OSError):
            if not atomic.exists(target, new_name):
                atomic.remove_tree(target, note)
        raise
    return new_name


@contextlib.contextmanager
def _loud(path: Path) -> Iterator[None]:
    """Turn any error of the operating system into an `artifact-write` error."""
    try:
        yield
    except OSError as error:
        raise write_error(path, error) from error


def _whole(name: str, value: object, remedy: str) -> int:
    if not isinstance(value, bool):
        with contextlib.suppress(TypeError):
            return operator.index(value)  # type: ignore[arg-type]  # that is what it finds out
    raise RangeError(wrong=f"`{name}` must be a whole number", found=repr(value), remedy=remedy)


def _name(step: int) -> str:
    remedy = "Pass the number of steps taken so far."
    step = _whole("step", step, remedy)
    if not 0 <= step <= _MAX_STEP:
        raise RangeError(
            wrong=f"`step` must be at least 0 and at most {_MAX_STEP}",
            found=repr(step),
            remedy=remedy,
        )
    return f"{step:012d}"


def _generations(root: int) -> list[str]:
    return [name for name in atomic.entries(root) if _NAME.fullmatch(name)]


def _free_name(folder: int, name: str) -> str:
    taken = set(atomic.entries(folder))
    number = 1
    while {f"{name}.{number}", f"{name}.{number}.reason.json"} & taken:
        number += 1
    return f"{name}.{number}"
