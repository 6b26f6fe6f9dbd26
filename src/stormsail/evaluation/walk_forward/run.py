"""Walk-forward validation: train on the past, trade what follows, judge the pooled account.

`validate` runs the steps in order: plan the folds, train and backtest each of them with every seed,
pool and judge the backtests, decide the verdict; `files` writes the result. The newest bars are
kept apart as the final test span: nothing here reads or hashes them until they are opened, which
happens once and is recorded in the trial ledger first.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from stormsail.core import steps
from stormsail.core.errors import (
    ArgumentError,
    ArtifactError,
    ConfigError,
    RangeError,
)
from stormsail.core.files.documents import JsonValue
from stormsail.core.generators import Generators
from stormsail.core.notebook import html_table, several, short_repr
from stormsail.evaluation.calibration.predictions import horizon_of
from stormsail.evaluation.engine.agent_terms import terms_of
from stormsail.evaluation.engine.result import Array, Backtest
from stormsail.evaluation.engine.run import backtest
from stormsail.evaluation.robustness.baselines import run_baselines
from stormsail.evaluation.robustness.self_tests import SelfTest
from stormsail.evaluation.stats.figures import bars_per_year
from stormsail.evaluation.stats.frames import Frames
from stormsail.evaluation.stats.trial_marks import check_marks
from stormsail.evaluation.stats.trials import TrialLedger
from stormsail.evaluation.walk_forward.combinatorial import (
    PathDistribution,
    distribution_of,
    plan_paths,
)
from stormsail.evaluation.walk_forward.config import Combinatorial, ValidationConfig
from stormsail.evaluation.walk_forward.evidence import COMPARED
from stormsail.evaluation.walk_forward.folds import FoldPlan, Plan, plan_folds
from stormsail.evaluation.walk_forward.judge import Judgement, judge_runs
from stormsail.evaluation.walk_forward.ledger import (
    EarlierTrials,
    ValidationTrial,
    earlier_trials,
)
from stormsail.evaluation.walk_forward.pool import (
    FoldBacktests,
    Run,
    growth,
    pool,
    trades_by_run,
)
from stormsail.evaluation.walk_forward.power import Power, plan_power
from stormsail.evaluation.walk_forward.seal import opened_words
from stormsail.evaluation.walk_forward.verdict import (
    Verdict,
    checked_explanations,
    judge_final,
    lowered,
    unsealed,
)
from stormsail.market.bars import Bars
from stormsail.market.features import FeatureSet, default_features
from stormsail.market.panel import Panel
from stormsail.market.simulator.config import MarketConfig
from stormsail.market.simulator.funding import assumptions, check_funding
from stormsail.market.splits import HoledSpan, Span
from stormsail.modules.agent import Agent

Fit = Callable[[ValidationConfig, Span, int], Agent]
"""Trains an agent on the bars of a span and on nothing else, with a seed."""

Ahead = Callable[[Sequence[tuple[Span, int]]], None]
"""Is told the span and the seed of every training, in order, before the first of them."""

_REFUSED = (ConfigError, ArgumentError, ArtifactError)
"""What the user must change first, in whichever fold it comes up; a training did not fail."""

_BUGS = (TypeError, AttributeError, NameError, LookupError, AssertionError)
"""What is wrong in the code of `fit`, and would be in every fold."""


class Progress(NamedTuple):
    """How far a validation has come."""

    done: int
    total: int
    what: str
    """The step that begins now."""


@dataclass(frozen=True, eq=False)
class Validation:
    """Result of a walk-forward validation: plan, backtests, judgement, verdict."""

    config: ValidationConfig
    symbols: tuple[str, ...]
    plan: Plan
    judgement: Judgement
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
    paths: PathDistribution | None = None
    """Of combinatorial cross-validation; None where it was not asked for."""
    training: JsonValue = None
    """Settings of the trainings, as JSON."""
    assumptions: JsonValue = None
    """What is assumed of funding and margin in the bars that were seen."""

    def _shown(self) -> dict[str, object]:
        failed = sum(run.backtest is None for run in self.runs)
        return {
            "verdict": f"{self.verdict.decision}: {self.verdict.words}",
            "symbols": several(self.symbols),
            "folds": len(self.plan.folds),
            "seeds": len(self.config.seeds),
            "failed trainings": failed,
            **self.judgement.metrics.shown(),
            "final test span": f"{self.final_bars} bars, "
            f"{'closed' if self.final is None else 'opened'}",
        }

    def __repr__(self) -> str:
        return short_repr("Validation", self._shown())

    def _repr_html_(self) -> str:
        return html_table("Validation", self._shown())

    @property
    def equity(self) -> Array:
        """Equity of the pooled account, [N + 1]."""
        return self.judgement.pooled.equity

    @property
    def frames(self) -> Frames:
        """The pooled account of the folds as pandas frames and CSV files."""
        judgement, pooled = self.judgement, self.judgement.pooled
        return Frames(
            pooled.ts,
            pooled.equity,
            pooled.interval.milliseconds,
            trades_by_run(judgement.runs),
            benchmarks={name: result.equity for name, result in judgement.baselines.items()},
            performance=judgement.performance.document(),
        )

    @property
    def runs(self) -> tuple[Run, ...]:
        """Every training of the folds, with the backtest of its agent."""
        return self.judgement.runs

    @property
    def for_trading(self) -> Run | None:
        """The run whose agent is meant for trading; None where no such training finished.

        Of the trainings on the newest bars, those before the final test span where it was opened
        and else those of the last fold, the one with the first seed that has an agent: chosen by
        its number and not by its result.
        """
        newest = self.final.runs if self.final is not None else self.judgement.runs
        last = max(run.fold.number for run in newest)
        named = [run for run in newest if run.fold.number == last and run.agent is not None]
        return named[0] if named else None


def validate(
    bars: Panel | Sequence[Bars],
    config: ValidationConfig,
    *,
    fit: Fit,
    ahead: Ahead | None = None,
    ledger: TrialLedger | None = None,
    name: str = "validation",
    training: JsonValue = None,
    more_self_tests: Sequence[SelfTest] = (),
    explanations: Mapping[str, str] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Validation:
    """Validate a way to train agents: retrain in each fold, trade the bars that follow, judge.

    A training that fails leaves its capital in cash, is counted and shown. One that is refused,
    because settings or files do not fit, ends the validation.

    Args:
        bars: of all symbols; the newest are kept apart.
        config: folds, seeds, rules.
        fit: trains one agent. The validation refuses an agent that has seen other bars. Where it
            has a function `check`, that is given the shortest span before anything is written, and
            refuses one on which nothing can be trained.
        ahead: is told all trainings before `fit` is called, so that they can go side by side.
        ledger: trials of the workspace. All that were written before this validation began deflate
            its Sharpe ratio, whatever their data: bars of one market resemble each other.
        name: of the validation in the ledger.
        training: settings of the trainings as JSON; they are part of the identity of a trial.
        more_self_tests: results of tests that were run elsewhere.
        explanations: why a result is good that is too good to be true, by name of the rule; they
            are no setting, and the same validation with one is the same trial.
        on_progress: called before each step.

    Raises:
        DataError: if there are too few bars, and it names how many are needed; or if funding rates
            are missing.
        RangeError: if the embargo is too small, or an agent has seen other bars than its span.
        ConfigError: if the final test span has been opened before, or settings do not fit.
        ArgumentError: if it is to be opened and there is no ledger.
        ChoiceError: if there is no such rule to explain, or an explanation is empty.
    """
    written = checked_explanations(explanations or {})
    panel = bars if isinstance(bars, Panel) else Panel.from_bars(list(bars))
    ts = panel.ts.cpu().numpy()
    plan = plan_folds(ts, panel.interval, config, lookback=_lookback(panel, config))
    check = getattr(fit, "check", None)
    if check is not None:
        check(plan.folds[0].train)
    seen = panel.between(plan.development.start_ms, plan.development.end_ms)
    market, used = config.backtest.market or MarketConfig(), panel if config.open_test else seen
    check_funding(used, market, (0, len(used.ts)))
    trial = ValidationTrial.start(
        ledger, name, config=config, data=seen, final=plan.final.test, training=training
    )
    walk = _WalkForward(plan, config, fit, on_progress or _silent)
    with trial.record_failure():
        capital = walk.capital(panel)
        if ahead is not None:
            ahead(walk.trainings(seen))
        runs = walk.train_and_backtest_folds(seen, capital)
        walk.report("judging")
        judgement = judge_runs(
            runs,
            seen,
            config,
            capital=capital,
            earlier=trial.earlier,
            more_self_tests=more_self_tests,
            explanations=written,
        )
        paths = None
        if config.combinatorial is not None:
            paths = walk.train_and_backtest_paths(seen, capital, config.combinatorial)
        verdict, final = judgement.verdict, None
        if config.open_test:
            final_runs = walk.train_and_backtest_final(panel, capital, trial)
            final = judge_runs(final_runs, panel, config, capital=capital, earlier=trial.earlier)
            final = replace(final, verdict=judge_final(judgement.evidence, final.evidence))
            verdict = lowered(
                judgement.verdict,
                final.verdict,
                conditional_capital=config.rules.conditional_capital,
            )
        others = trial.openings_by_others()
        if others:
            verdict = unsealed(
                verdict, opened_words(others), conditional_capital=config.rules.conditional_capital
            )
        validation = Validation(
            config=config,
            symbols=panel.symbols,
            plan=plan,
            judgement=judgement,
            final=final,
            verdict=verdict,
            data_hash=trial.data_hash,
            openings=len(trial.openings()),
            final_bars=plan.final.test.count(ts),
            paths=paths,
            training=training,
            assumptions=assumptions(used, market, (0, len(used.ts))),
        )
        _record_end(trial, validation)
    return validation


def plan(
    bars: Panel | Sequence[Bars],
    config: ValidationConfig,
    *,
    ledger: TrialLedger | None = None,
    gamma: float | None = None,
    check: Callable[[Span], None] | None = None,
) -> Power:
    """Return what a validation would find, without training anything or writing a line.

    The simple baselines are traded over the bars of the folds; the final test span is not read.

    Args:
        bars: of all symbols.
        config: folds, seeds, rules.
        ledger: trials of the workspace.
        gamma: discount of a bar that critics are trained with, for the horizon of the tail; None
            where it is not known.
        check: is given the shortest span that agents would be trained on, and refuses one that
            does not suffice.

    Raises:
        DataError: if there are too few bars; it names how many are needed.
        RangeError: if the embargo is too small.
        ArtifactError: if the ledger is damaged, or lacks trials of the workspace.
    """
    panel = bars if isinstance(bars, Panel) else Panel.from_bars(list(bars))
    ts = panel.ts.cpu().numpy()
    spans = plan_folds(ts, panel.interval, config, lookback=_lookback(panel, config))
    if check is not None:
        check(spans.folds[0].train)
    seen = panel.between(spans.development.start_ms, spans.development.end_ms)
    whole = Span(spans.folds[0].traded.start_ms, spans.folds[-1].traded.end_ms)
    rules = config.backtest.during(whole)
    traded = run_baselines(seen, rules, names=COMPARED) if config.baselines else {}
    horizon = None if gamma is None or not 0.0 <= gamma < 1.0 else horizon_of(gamma)
    records = None if ledger is None else ledger.read()
    if ledger is not None and records is not None:
        check_marks(ledger, records)
    return plan_power(
        [fold.traded.count(ts) - 1 for fold in spans.folds],
        per_year=bars_per_year(panel.interval.milliseconds),
        seeds=len(config.seeds),
        earlier=EarlierTrials() if records is None else earlier_trials(records),
        baselines={name: result.returns for name, result in traded.items()},
        rules=config.rules,
        alpha=config.alpha,
        tail_horizon=horizon,
    )


def _record_end(trial: ValidationTrial, validation: Validation) -> None:
    """Record how the validation ended; one in which no training finished failed."""
    measured, pooled = validation.judgement.metrics, validation.judgement.pooled
    trial.keep_returns(pooled.ts[1:], pooled.returns)
    trial.finish(
        "failed" if all(run.backtest is None for run in validation.runs) else "finished",
        sharpe_per_bar=measured.sharpe_per_bar.value,
        bars=measured.bars,
        verdict=validation.verdict.decision,
    )


def _silent(progress: Progress) -> None:
    """Report nothing."""


def _lookback(panel: Panel, config: ValidationConfig) -> int:
    """Return the bars before its own that a feature reads, as far as the settings say."""
    market = config.backtest.market or MarketConfig()
    if market.features is None:
        return default_features(panel.interval).lookback - 1
    return FeatureSet(market.features, interval=panel.interval).lookback - 1


class _WalkForward:
    """Trains and backtests agents, fold by fold."""

    def __init__(
        self,
        plan: Plan,
        config: ValidationConfig,
        fit: Fit,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._plan, self._config, self._fit, self._on_progress = plan, config, fit, on_progress
        self._done = 0
        self._rules = config.backtest.replace(burn_in=config.burn_in_bars)
        folds = len(plan.folds) + (1 if config.open_test else 0)
        wanted = config.combinatorial
        splits = 0 if wanted is None else math.comb(wanted.groups, wanted.tested)
        self._total = (folds + splits) * len(config.seeds) + (2 if config.open_test else 1)

    def report(self, what: str) -> None:
        """Report the step that begins."""
        self._on_progress(Progress(self._done, self._total, what))
        self._done += 1

    def capital(self, panel: Panel) -> float:
        """Return the capital of all seeds together at the start."""
        accounts = len(panel.symbols) * len(self._config.seeds)
        return self._rules.capital or accounts * self._rules.start_equity(accounts)

    def trainings(self, panel: Panel) -> list[tuple[Span, int]]:
        """Return span and seed of every training, in the order in which they are asked for."""
        spans = [fold.train for fold in self._plan.folds]
        if self._config.combinatorial is not None:
            ts = panel.ts.cpu().numpy()
            paths = plan_paths(ts, panel.interval, self._config.combinatorial, self._plan)
            spans.extend(split.train for split in paths.splits)
        if self._config.open_test:
            spans.append(self._plan.final.train)
        return [(span, seed) for span in spans for seed in self._config.seeds]

    def train_and_backtest_folds(self, panel: Panel, capital: float) -> list[Run]:
        """Train and trade every fold; each begins with what the one before has left."""
        runs: list[Run] = []
        for number, fold in enumerate(self._plan.folds, start=1):
            trained = [self._train(fold, seed, panel) for seed in self._config.seeds]
            traded = [self._backtest(run, panel, capital / len(trained)) for run in trained]
            closed = number < len(self._plan.folds)
            paths = [growth(run.backtest, 1, closed=closed)[-1] for run in traded]
            capital *= float(np.mean(paths))
            runs.extend(traded)
        return runs

    def train_and_backtest_final(
        self, panel: Panel, capital: float, trial: ValidationTrial
    ) -> list[Run]:
        """Train once more, record that the final test span is opened, then trade it."""
        trained = [self._train(self._plan.final, seed, panel) for seed in self._config.seeds]
        self.report("opening the final test span")
        trial.record_opening()
        return [self._backtest(run, panel, capital / len(trained)) for run in trained]

    def train_and_backtest_paths(
        self, panel: Panel, capital: float, wanted: Combinatorial
    ) -> PathDistribution:
        """Train every split, trade the groups that it tests, and return the paths through them."""
        ts, seeds = panel.ts.cpu().numpy(), self._config.seeds
        spans = plan_paths(ts, panel.interval, wanted, self._plan)
        traded: dict[tuple[int, int], list[Backtest | None]] = {}
        failed = 0
        for split in spans.splits:
            first = spans.groups[split.tested[0]]
            fold = FoldPlan(split.number, split.train, first.test, first.traded)
            where = f"split {split.number}"
            trained = [self._train(fold, seed, panel, where=where) for seed in seeds]
            failed += sum(run.agent is None for run in trained)
            for number in split.tested:
                group = spans.groups[number]
                runs = [
                    self._backtest(
                        replace(run, fold=group),
                        panel,
                        capital / len(seeds),
                        draws=f"split.{split.number}.group.{number}.seed.{run.seed}",
                    )
                    for run in trained
                ]
                traded[split.number, number] = [run.backtest for run in runs]
        accounts = [
            pool(
                [
                    FoldBacktests(group.marks(ts, panel.interval), traded[split, group.number])
                    for group, split in zip(spans.groups, path, strict=True)
                ],
                panel.interval,
                capital=capital,
            )
            for path in spans.paths
        ]
        return distribution_of(accounts, wanted, splits=len(spans.splits), failed=failed)

    def _train(self, fold: FoldPlan, seed: int, panel: Panel, *, where: str = "") -> Run:
        final = fold is self._plan.final
        where = where or ("before the final test span" if final else f"fold {fold.number}")
        self.report(f"training {where}, seed {seed}")
        try:
            agent = self._fit(self._config, fold.train, seed)
        except (*_REFUSED, *_BUGS):
            raise
        except Exception as error:  # noqa: BLE001 - whatever ended a training, the others go on
            return Run(fold, seed, reason=f"{type(error).__name__}: {error}")
        _check_agent(agent, fold, panel, self._plan)
        return Run(fold, seed, agent)

    def _backtest(self, run: Run, panel: Panel, share: float, *, draws: str = "") -> Run:
        if run.agent is None:
            return run
        if share <= 0.0:
            return replace(run, reason="nothing was left to trade with")
        name = draws or f"fold.{run.fold.number}.seed.{run.seed}"
        steps.began(f"trading {name.replace('.', ' ')}")
        seed = self._draws(name)
        rules = self._rules.replace(capital=share, seed=seed).during(run.fold.traded)
        return replace(run, backtest=backtest(run.agent, panel, rules))

    def _draws(self, name: str) -> int:
        """Return the seed of the draws of a run: agents that sample must not sample alike."""
        return Generators(self._rules.seed).spawn(name).seed


def _check_agent(agent: Agent, fold: FoldPlan, panel: Panel, plan: Plan) -> None:
    """Refuse an agent that was trained or chosen on other bars than its training span."""
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
    for hole in fold.train.without if isinstance(fold.train, HoledSpan) else ():
        if not any(
            own.start_ms <= hole.start_ms and hole.end_ms <= own.end_ms for own in terms.without
        ):
            raise RangeError(
                wrong=f"an agent of split {fold.number} must have learned nothing from {hole}",
                found=f"one that states no such hole in {terms.train_span}",
                remedy="Let `fit` leave out the spans in `without` of the span that it is given.",
            )
    reach = terms.features.lookback - 1 + plan.burn_in
    if reach > plan.embargo:
        raise RangeError(
            wrong=f"the embargo must be at least {reach} bars, the {terms.features.lookback - 1} "
            f"that the agent's features look back plus the {plan.burn_in} of burn-in",
            found=str(plan.embargo),
            remedy="Raise `embargo_bars`, or name the features in `backtest.market.features`.",
        )
