"""Whether a way to train agents earns money on bars that it has not seen, and how sure that is.

A walk forward: train on the past, leave a gap, trade what follows, again and again, with several
seeds. What is judged is the pooled account of all of them (`validation_pool`), by everything that
`validation_judging` asks. The newest bars are kept apart: not even their hash is taken until they
are opened, which happens once and is written down first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from stormsail.core.errors import (
    ArgumentError,
    ArtifactError,
    ConfigError,
    RangeError,
)
from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.engine.binding import terms_of
from stormsail.evaluation.engine.result import Array
from stormsail.evaluation.engine.run import backtest
from stormsail.evaluation.robustness.self_tests import SelfTest
from stormsail.evaluation.stats.trials import TrialLedger
from stormsail.evaluation.walk_forward.config import ValidationConfig
from stormsail.evaluation.walk_forward.folds import FoldPlan, Plan, make_plan
from stormsail.evaluation.walk_forward.judge import Judgement, judge_runs
from stormsail.evaluation.walk_forward.pool import Run, growth
from stormsail.evaluation.walk_forward.trials import Book
from stormsail.evaluation.walk_forward.verdict import Verdict, lowered
from stormsail.market.bars import Bars
from stormsail.market.features import FeatureSet, default_features
from stormsail.market.panel import Panel
from stormsail.market.simulator.config import MarketConfig
from stormsail.market.splits import Span
from stormsail.modules.agent import Agent

Fit = Callable[[ValidationConfig, Span, int], Agent]
"""Trains an agent on the bars of a span and on nothing else, with a seed."""

_REFUSED = (ConfigError, ArgumentError, ArtifactError)
"""What somebody must change first, in whichever fold it comes up; a training did not fail."""

_BUGS = (TypeError, AttributeError, NameError, LookupError, AssertionError)
"""What is wrong in the code of `fit`, and would be in every fold."""


class Progress(NamedTuple):
    """How far a validation has come."""

    done: int
    total: int
    what: str
    """What begins now."""


@dataclass(frozen=True, eq=False)
class Validation:
    """A validation: plan, passes, judgement."""

    config: ValidationConfig
    symbols: tuple[str, ...]
    plan: Plan
    judged: Judgement
    """Of the folds."""
    final: Judgement | None
    """Of the final test span, where it was opened."""
    verdict: Verdict
    """On both."""
    data_hash: str
    """Of the bars before the final test span."""
    openings: int
    """How often the final test span of these bars has been opened so far."""
    final_bars: int
    """Bars of the final test span."""
    training: JsonValue = None
    """How the agents were trained, as plain data."""

    @property
    def equity(self) -> Array:
        """Equity of the pooled account, [N + 1]."""
        return self.judged.pooled.equity

    @property
    def runs(self) -> tuple[Run, ...]:
        """Every training of the folds, with what its agent traded."""
        return self.judged.runs


def validate(
    bars: Panel | Sequence[Bars],
    config: ValidationConfig,
    *,
    fit: Fit,
    ledger: TrialLedger | None = None,
    name: str = "validation",
    training: JsonValue = None,
    more_self_tests: Sequence[SelfTest] = (),
    on_progress: Callable[[Progress], None] | None = None,
) -> Validation:
    """Return what agents that `fit` trains come to on bars that they were not trained on.

    A training that fails leaves its capital in cash, is counted and shown. One that is refused,
    because settings or files do not fit, ends the validation.

    Args:
        bars: of all symbols; the newest are kept apart.
        config: folds, seeds, rules.
        fit: trains one agent. The validation refuses an agent that says it has seen other bars.
        ledger: trials of the workspace. All that were written before this validation began deflate
            its Sharpe ratio, whatever their data: bars of one market resemble each other.
        name: of the validation in the ledger.
        training: settings of the trainings as plain data; they are part of the identity of a trial.
        more_self_tests: answers of tests that were asked elsewhere.
        on_progress: told before each step.

    Raises:
        DataError: if there are too few bars; it says how many are needed.
        RangeError: if the embargo is too small, or an agent has seen other bars than its span.
        ConfigError: if the final test span has been opened before, or settings do not fit.
        ArgumentError: if it is to be opened and there is no ledger.
    """
    panel = bars if isinstance(bars, Panel) else Panel.from_bars(list(bars))
    plan = make_plan(
        panel.ts.cpu().numpy(), panel.interval, config, lookback=_lookback(panel, config)
    )
    seen = panel.between(plan.development.start_ms, plan.development.end_ms)
    book = Book.begun(
        ledger, name, config=config, data=seen, final=plan.final.test, training=training
    )
    walk = _Walk(plan, config, fit, on_progress or _silent)
    with book.kept():
        capital = walk.capital(panel)
        runs = walk.folds(seen, capital)
        walk.tell("judging")
        judged = judge_runs(
            runs,
            seen,
            config,
            capital=capital,
            trials=book.trials,
            more_self_tests=more_self_tests,
        )
        final = walk.final(panel, capital, book) if config.open_test else None
        found = Validation(
            config=config,
            symbols=panel.symbols,
            plan=plan,
            judged=judged,
            final=final,
            verdict=judged.verdict if final is None else lowered(judged.verdict, final.verdict),
            data_hash=book.data_hash,
            openings=book.openings(),
            final_bars=plan.final.test.count(panel.ts.cpu().numpy()),
            training=training,
        )
        _write_end(book, found)
    return found


def _write_end(book: Book, found: Validation) -> None:
    """Write how the validation ended; one in which no training finished failed."""
    measured = found.judged.metrics
    book.ended(
        "failed" if all(one.backtest is None for one in found.runs) else "finished",
        sharpe_per_bar=measured.sharpe_per_bar.value,
        bars=measured.bars,
        verdict=found.verdict.decision,
    )


def _silent(progress: Progress) -> None:
    """Say nothing."""


def _lookback(panel: Panel, config: ValidationConfig) -> int:
    """Return the bars before its own that a feature reads, as far as the settings say."""
    market = config.backtest.market or MarketConfig()
    if market.features is None:
        return default_features(panel.interval).lookback - 1
    return FeatureSet(market.features, interval=panel.interval).lookback - 1


class _Walk:
    """Trains and trades, fold by fold."""

    def __init__(
        self,
        plan: Plan,
        config: ValidationConfig,
        fit: Fit,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._plan, self._config, self._fit, self._told = plan, config, fit, on_progress
        self._done = 0
        self._rules = config.backtest.replace(burn_in=config.warmed)
        folds = len(plan.folds) + (1 if config.open_test else 0)
        self._total = folds * len(config.seeds) + (2 if config.open_test else 1)

    def tell(self, what: str) -> None:
        """Say what begins."""
        self._told(Progress(self._done, self._total, what))
        self._done += 1

    def capital(self, panel: Panel) -> float:
        """Return the capital of all seeds together at the start."""
        accounts = len(panel.symbols) * len(self._config.seeds)
        return self._rules.capital or accounts * self._rules.start_equity(accounts)

    def folds(self, panel: Panel, capital: float) -> list[Run]:
        """Train and trade every fold; each begins with what the one before has left."""
        runs: list[Run] = []
        for number, fold in enumerate(self._plan.folds, start=1):
            agents = [self._trained(fold, seed, panel) for seed in self._config.seeds]
            made = [self._traded(one, panel, capital / len(agents)) for one in agents]
            closed = number < len(self._plan.folds)
            paths = [growth(one.backtest, 1, closed=closed)[-1] for one in made]
            capital *= float(np.mean(paths))
            runs.extend(made)
        return runs

    def final(self, panel: Panel, capital: float, book: Book) -> Judgement:
        """Train once more, write down that the final test span is opened, then trade it."""
        agents = [self._trained(self._plan.final, seed, panel) for seed in self._config.seeds]
        self.tell("opening the final test span")
        book.open()
        made = [self._traded(one, panel, capital / len(agents)) for one in agents]
        return judge_runs(made, panel, self._config, capital=capital, trials=book.trials)

    def _trained(self, fold: FoldPlan, seed: int, panel: Panel) -> Run:
        final = fold is self._plan.final
        where = "before the final test span" if final else f"fold {fold.number}"
        self.tell(f"training {where}, seed {seed}")
        try:
            agent = self._fit(self._config, fold.train, seed)
        except (*_REFUSED, *_BUGS):
            raise
        except Exception as error:  # noqa: BLE001 - whatever ended a training, the others go on
            return Run(fold, seed, reason=f"{type(error).__name__}: {error}")
        _check_agent(agent, fold, panel, self._plan)
        return Run(fold, seed, agent)

    def _traded(self, run: Run, panel: Panel, share: float) -> Run:
        if run.agent is None:
            return run
        if share <= 0.0:
            return replace(run, reason="nothing was left to trade with")
        rules = self._rules.replace(capital=share).during(run.fold.walked)
        return replace(run, backtest=backtest(run.agent, panel, rules))


def _check_agent(agent: Agent, fold: FoldPlan, panel: Panel, plan: Plan) -> None:
    """Refuse an agent that learned from, or was chosen on, other bars than its span."""
    terms = terms_of(agent, panel)
    for what, span in (("trained", terms.train_span), ("chosen", terms.validation_span)):
        if span is None:
            continue
        if span.start_ms < fold.train.start_ms or span.end_ms > fold.train.end_ms:
            raise RangeError(
                wrong=f"an agent of fold {fold.number} must have been {what} on bars of its "
                f"training span alone, {fold.train}",
                found=f"{span}",
                remedy="Let `fit` read no other bars than those of the span that it is given.",
            )
    reach = terms.features.lookback - 1 + plan.burn_in
    if reach > plan.embargo:
        raise RangeError(
            wrong=f"the embargo must be at least {reach} bars, the {terms.features.lookback - 1} "
            f"that the agent's features look back plus the {plan.burn_in} of burn-in",
            found=str(plan.embargo),
            remedy="Raise `embargo_bars`, or name the features in `backtest.market.features`.",
        )
