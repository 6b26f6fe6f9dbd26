"""Lines of a training in the trial ledger of its workspace.

A workspace is the folder that holds run folders; its ledger is `trials.jsonl` there. A training
writes one line when it begins and one when it ends. Both carry a key made of the folder's name and
of everything the run depends on, so a run that was interrupted, killed or resumed is one trial, and
so is one that was begun and never ended. The line at the beginning comes before the first update:
no result exists without its trial in the ledger, and a training that is refused before it, because
its settings or its data do not fit, is none. Nor is one that fails before its first evaluation: it
has no result to choose by. The manifest of the run names the line with which it began.

An extension writes a line `extended`. It has the key of its training. Where the training had ended,
its result was known when it was extended: then there were two results to choose from, and they
count as two trials. An extension of a training that was only interrupted counts as none. A member
of a population that is copied over goes on from another result that is known, so each copy counts
as a trial of its own, too.

A training that begins or is extended on bars which a validation has sealed opens them
(`walk_forward.seal`): its evaluations show how it does on them.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

from stormsail.algorithms.run.folder import RunFolder
from stormsail.algorithms.run.tasks import MARKET, market_data
from stormsail.core.clock import Clock
from stormsail.core.errors import StormsailError
from stormsail.core.files import documents
from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.stats.trial_marks import mark_of
from stormsail.evaluation.stats.trials import (
    EXTENDED,
    FAILED,
    LOOKS,
    RUN_KEY,
    STARTED,
    VALIDATION,
    Trial,
    TrialLedger,
)
from stormsail.market.splits import Span

LEDGER = "trials.jsonl"
"""File of the trials in a workspace."""

KIND = "training"


class TrialLines:
    """Ledger lines of one training.

    Args:
        folder: of the run.
        ledger: of the workspace.
        data_hash: of the bars of this trial; None takes those of the run.
        name: of the training; None takes that of the folder.
    """

    def __init__(
        self,
        folder: RunFolder,
        ledger: TrialLedger,
        data_hash: str | None = None,
        name: str | None = None,
    ) -> None:
        self._ledger, self._config = ledger, folder.config
        self._name = folder.path.resolve().name if name is None else name
        self._config_hash = str(folder.identity["config_hash"])
        own = folder.identity.get("bound_data", "")
        self._data_hash = str(own) if data_hash is None else data_hash
        body = documents.encode({"name": self._name, **folder.identity})
        self._extra: dict[str, JsonValue] = {
            RUN_KEY: hashlib.sha256(body).hexdigest(),
            "task": folder.config.task.name,
            "seed": folder.config.seed,
        }
        lineage = folder.lineage
        if lineage.source is not None:
            self._extra["from"] = lineage.source.record()
        if lineage.looks():
            self._extra[LOOKS] = lineage.looks()
        self._extension: dict[str, JsonValue] = {}
        if lineage.extensions:
            self._extension = {"extension": lineage.extensions[-1].model_dump(mode="json")}
        if lineage.copies:
            self._extension["copy"] = lineage.copies[-1].model_dump(mode="json")
        self.begun = False
        """Whether the training began, so that it may fail."""
        self.known: Callable[[], tuple[float | None, int]] = lambda: (None, 0)
        """Sharpe ratio and steps of the best evaluation so far: what a failure leaves to see."""

    @property
    def key(self) -> str:
        """Key that the lines of this training share."""
        return str(self._extra[RUN_KEY])

    def started(self) -> Trial:
        """Write that the training begins or is extended, unless that line exists.

        Returns:
            The first line of this training.

        Raises:
            ArtifactError: if the ledger is damaged or cannot be written.
        """
        lines = self._ledger.read().of_run(self.key)
        if not lines or lines[-1].status == FAILED:
            lines = (*lines, self._write(STARTED, None, 0))
            self._open_seals()
        if self._extension and not any(
            line.status == EXTENDED and self._extension.items() <= dict(line.extra).items()
            for line in lines
        ):
            self._write(EXTENDED, None, 0, **self._extension)
            self._open_seals()
        self.begun = True
        return lines[0]

    def _open_seals(self) -> None:
        """Record that sealed bars are opened, where the training reads any."""
        sealed = any(line.kind == VALIDATION for line in self._ledger.read().trials)
        if self._config.task.name != MARKET or not sealed:
            return
        # here, because it brings scipy, which takes a second
        from stormsail.evaluation.walk_forward.seal import Sealed, open_seals

        data = market_data(self._config)
        open_seals(
            self._ledger,
            self._name,
            Sealed(data.panel.symbols, Span(data.train.start_ms, data.validation.end_ms)),
            key=self.key,
            by=KIND,
            config_hash=self._config_hash,
            data_hash=self._data_hash,
        )

    def mark(self, line: Trial, run: Path) -> dict[str, JsonValue]:
        """Return the mark of a line for the manifest of the run in a folder."""
        return mark_of(self._ledger, line.number, line.hash, run)

    def ended(self, status: str, reason: str, sharpe_per_bar: float | None, bars: int) -> None:
        """Write how the training ended, unless the same line exists.

        Args:
            status: `finished`, `failed` or `stopped`.
            reason: why it did not finish.
            sharpe_per_bar: of the best agent's evaluation episodes.
            bars: steps in that ratio.

        Raises:
            ArtifactError: if the ledger is damaged or cannot be written.
        """
        last = self._ledger.read().of_run(self.key)[-1:]
        known = [(trial.status, trial.sharpe_per_bar, trial.bars) for trial in last]
        if known != [(status, sharpe_per_bar, bars)]:
            self._write(status, sharpe_per_bar, bars, **({"reason": reason} if reason else {}))

    def _write(
        self, status: str, sharpe_per_bar: float | None, bars: int, **more: JsonValue
    ) -> Trial:
        return self._ledger.record(
            KIND,
            self._name,
            config_hash=self._config_hash,
            data_hash=self._data_hash,
            sharpe_per_bar=sharpe_per_bar,
            bars=bars,
            status=status,
            extra={**self._extra, **more},
        )


@contextlib.contextmanager
def trial_lines(
    folder: RunFolder,
    path: Path | str | None = None,
    *,
    data_hash: str | None = None,
    clock: Clock | None = None,
    name: str | None = None,
) -> Iterator[TrialLines]:
    """Hand out the lines of a training; if it fails after its start, write that.

    An interrupt writes nothing: the run may continue, and counts until then as one that began.

    Args:
        folder: of the run.
        path: of the ledger; None takes the one of the workspace.
        data_hash: of the bars of this trial; None takes those of the run.
        clock: for the time of a line.
        name: of the training; None takes that of the folder.

    Raises:
        ArtifactError: if the ledger is damaged or cannot be written.
    """
    place = folder.path.resolve().parent / LEDGER if path is None else Path(path)
    lines = TrialLines(folder, TrialLedger(place, clock=clock), data_hash, name)
    try:
        yield lines
    except Exception as error:
        if lines.begun:
            with contextlib.suppress(StormsailError):  # the first error is the one to report
                lines.ended(FAILED, str(error), *lines.known())
        raise
