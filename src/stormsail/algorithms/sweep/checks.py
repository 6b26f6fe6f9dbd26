"""Which settings a search may vary: whatever leaves the task, the budget and the judge alone.

A trial is a training of its own, so unlike in a population the shape of its networks may differ
from that of others. What must be equal is what trials are compared by.
"""

import math
from typing import Final

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.algorithms.population.config import SweepConfig, ends, is_whole, with_values
from stormsail.algorithms.population.jobs import Value
from stormsail.algorithms.run.start_checks import check_start
from stormsail.algorithms.run.tasks import MARKET, market_data
from stormsail.core.clock import iso
from stormsail.core.errors import ConfigError
from stormsail.evaluation.stats.trials import TrialLedger
from stormsail.market.splits import Span

INCONSISTENT: Final = "config-inconsistent"
"""Code of settings that contradict each other: those of a trial may agree where these do not."""


def check_sweep(base: TrainConfig, sweep: SweepConfig) -> None:
    """Refuse a search whose trials could not be compared.

    Args:
        base: what the trials have in common.
        sweep: rules and searched settings.

    Raises:
        ConfigError: for the first setting that cannot be searched, with the reason; if there is
            none; or if a trial is too short for its rungs.
    """
    if not sweep.over:
        raise ConfigError(
            "config-value",
            wrong="a search must name one setting or more",
            found="none",
            remedy="Add for example `--over ppo.learning_rate=log:1e-5:1e-2`, or a section "
            '`[search.over."ppo.learning_rate"]` with `min` and `max`.',
        )
    total, least = base.ppo.total_steps, sweep.reduction_factor**sweep.rungs
    if total < least:
        raise ConfigError(
            INCONSISTENT,
            wrong=f"`ppo.total_steps` must be at least {least} for {sweep.rungs} `search.rungs`",
            found=str(total),
            remedy="Train longer, or lower `search.rungs`.",
        )
    for path, searched in sweep.over.items():
        for end in ends(searched):
            numeric = searched.values is None and is_whole(path)
            _check_value(base, path, round(float(end)) if numeric else end)
    check_start(derive(base))


def _check_value(base: TrainConfig, path: str, value: Value) -> None:
    try:
        config = with_values(base, {path: value})
    except ConfigError as error:
        if error.code == INCONSISTENT:
            return
        raise _unsearchable(path, value, f"is refused: {error.wrong}") from None
    if judged_by(config) != judged_by(base):
        raise _unsearchable(path, value, "changes the task, the budget or how trials are judged")


def judged_by(config: TrainConfig) -> tuple[object, ...]:
    """Return what must be equal among trials: task, judge, budget, seed and machine."""
    risk = config.risk
    judge = (config.task, config.validation, risk.episode_limit, risk.cvar_alpha)
    where = (config.seed, config.device, config.threads, config.checkpoint)
    return (*judge, config.ppo.total_steps, *where)


def check_seal(base: TrainConfig, ledger: TrialLedger) -> None:
    """Refuse bars that a validation of the workspace has sealed for its final test.

    Raises:
        ConfigError: if the run's bars hold one of them.
        ArtifactError: if the ledger is damaged.
    """
    # here, because it brings scipy, which takes a second
    from stormsail.evaluation.walk_forward.seal import Sealed, sealing

    if base.task.name != MARKET:
        return
    data = market_data(base)
    span = Span(data.train.start_ms, data.validation.end_ms)
    seals = sealing(ledger.read(), Sealed(data.panel.symbols, span))
    spans = [own.span for line in seals if (own := Sealed.of(line)) is not None]
    if spans:
        first = min(own.start_ms for own in spans)
        raise ConfigError(
            INCONSISTENT,
            wrong="a search must not use bars that are sealed as the final test span of "
            f"{', '.join(f'`{line.name}`' for line in seals)}: its choice would be made on them",
            found=f"bars until {iso(span.end_ms)}, sealed from {iso(first)} on",
            remedy=f"Set `task.data.end` to {iso(first)} or earlier.",
        )


def _unsearchable(path: str, value: Value, reason: str) -> ConfigError:
    shown = f"{value:g}" if isinstance(value, float) and math.isfinite(value) else repr(value)
    return ConfigError(
        INCONSISTENT,
        wrong=f"`{path}` must be a setting that can be searched: one number or one word that "
        "leaves task, budget and judge as they are",
        found=f"the value {shown}, which {reason}",
        remedy="Search another setting, or give it other values; what belongs to `task`, "
        "`validation` and `checkpoint`, the seed, the limit on CVaR and `ppo.total_steps` stay.",
    )
