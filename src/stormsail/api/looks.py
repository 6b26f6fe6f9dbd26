"""A look at bars that a validation keeps sealed: it is told, and the ledger records it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from stormsail.api.agent_folders import POPULATION, agent_folder
from stormsail.core.errors import ArtifactError
from stormsail.core.files.artifact import read_artifact
from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.evaluation.stats.trials import TrialLedger
from stormsail.evaluation.walk_forward.files import DOCUMENT
from stormsail.evaluation.walk_forward.seal import Opening, Sealed, open_seals, recorded_look
from stormsail.market.panel import Panel
from stormsail.market.splits import Span

if TYPE_CHECKING:
    from stormsail.algorithms.config import TrainConfig

TRIALS = "trials.jsonl"
"""Trial ledger of a workspace."""

_NOT_RECORDED = (
    "this backtest trades bars that are sealed as the final test span of the agent's validation, "
    "and no trial ledger was found that could record it; name the folder with `--workspace`"
)


def trial_ledger(run: Path, workspace: Path | None = None) -> Path | None:
    """Return the trial ledger: of the workspace, beside the run, or of the default workspace.

    An agent is part of its run, and the run of a member part of its population. An agent for
    trading lies beside the results of its validation, wherever that is.

    Raises:
        ArtifactError: if a workspace is named that has no ledger.
    """
    if workspace is not None:
        return _named_ledger(workspace)
    place = run.resolve()
    inside = [place.parent, place.parent.parent]
    inside += [
        part.parent.parent.parent
        for part in (place, place.parent)
        if (part.parent.parent / POPULATION).is_file()
    ]
    folders = (*inside, Path("runs"))
    return next((file for file in (folder / TRIALS for folder in folders) if file.is_file()), None)


def _named_ledger(workspace: Path) -> Path:
    if not (workspace / TRIALS).is_file():
        raise ArtifactError(
            "artifact-missing",
            wrong=f"{workspace} must be a workspace, with the trial ledger `{TRIALS}`",
            found="none there",
            remedy="Name the folder that holds the runs, or leave `--workspace` out.",
        )
    return workspace / TRIALS


@contextmanager
def looking(
    ledger: Path | None,
    run: Path | None,
    panel: Panel,
    config: BacktestConfig,
    warn: Callable[[str], None],
) -> Iterator[Opening | None]:
    """Warn of sealed bars before they are traded, and record it in the ledger.

    A workspace that is named does not hide the run's own: its ledger is asked and told as well.

    Args:
        ledger: of the workspace; None where there is none.
        run: folder of the agent or of its run; None where it was never saved.
        panel: bars.
        config: which of them are traded, and how.
        warn: shows a sentence to the user.

    Raises:
        ArtifactError: if the ledger is damaged or cannot be written.
    """
    span = config.span(panel)
    if span is None:  # nothing to trade, which the backtest itself refuses
        yield None
        return
    bars = Sealed(panel.symbols, span)
    if ledger is None:
        sealed = None if run is None else _sealed_by_its_validation(run)
        if sealed is not None and sealed.overlaps(bars):
            warn(_NOT_RECORDED)
        yield None
        return
    place = Path("agent") if run is None else agent_folder(run).resolve()
    name = place.parent.name if place.name == "best" else place.name
    hashes = {"config_hash": config.config_hash(), "data_hash": panel.digest()}
    own = None if run is None else trial_ledger(run)
    files = [ledger] if own is None or own.resolve() == ledger.resolve() else [ledger, own]
    with ExitStack() as stack:
        looks = []
        for file in files:
            look = stack.enter_context(recorded_look(TrialLedger(file), name, bars, **hashes))
            if look is not None:
                looks.append(look)
                warn(look.words)
        try:
            yield looks[0] if looks else None
        finally:
            for look in looks[1:]:
                look.sharpe_per_bar, look.bars = looks[0].sharpe_per_bar, looks[0].bars


def open_by_verb(run: Path, config: "TrainConfig", *, by: str) -> None:
    """Record that a verb which is no trial shows what an agent makes of sealed bars.

    Such are the episodes of `attack` and `bench limits`: they lie in the evaluation span.

    Args:
        run: whose workspace it is.
        config: of the training, with bars and spans.
        by: the verb.

    Raises:
        ArtifactError: if the ledger is damaged or cannot be written.
    """
    from stormsail.algorithms.run.tasks import MARKET, market_data

    ledger = trial_ledger(run)
    if ledger is None or config.task.name != MARKET:
        return
    data, hashed = market_data(config), config.config_hash()
    place = run.resolve()
    name = place.parent.name if place.name == "best" else place.name
    open_seals(
        TrialLedger(ledger),
        name,
        Sealed(data.panel.symbols, Span(data.validation.start_ms, data.validation.end_ms)),
        key=f"{by}-{name}-{hashed}",
        by=by,
        config_hash=hashed,
        data_hash=data.panel.digest(),
    )


def _sealed_by_its_validation(run: Path) -> Sealed | None:
    """Return the final test span that the file of an agent for trading names."""
    document = read_artifact(agent_folder(run)).documents.get(DOCUMENT)
    sealed = document.get("sealed") if isinstance(document, dict) else None
    return Sealed.read(sealed) if isinstance(sealed, dict) else None
