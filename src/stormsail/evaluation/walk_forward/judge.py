"""Judge the pooled account of a validation: significance, calibration, costs, stress, verdict.

The folds of a validation and its final test span are judged by the same function, `judge_runs`.
Results stay typed objects here; `files` makes JSON of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stormsail.core import steps
from stormsail.evaluation.calibration.document import CalibrationReport, calibration_of
from stormsail.evaluation.calibration.predictions import closes_of
from stormsail.evaluation.engine.result import Backtest
from stormsail.evaluation.engine.run import ReplayRequest, run_batch
from stormsail.evaluation.performance.document import Performance
from stormsail.evaluation.robustness import self_tests
from stormsail.evaluation.robustness.baselines import baseline_requests
from stormsail.evaluation.robustness.costs import (
    MOST_BP,
    NOTHING_TRADED,
    SWEEP_BP,
    BreakEven,
    PrefetchedReturns,
    first_costs,
    search_break_even,
)
from stormsail.evaluation.robustness.self_tests import ORACLE, SelfTest
from stormsail.evaluation.robustness.significance import Significance
from stormsail.evaluation.robustness.stress import CRASHES
from stormsail.evaluation.stats.metrics import Metrics
from stormsail.evaluation.stats.sharpe_difference import SharpeDifference
from stormsail.evaluation.walk_forward.batch import (
    BatchResults,
    cost_requests,
    finished,
    most_traded,
    run_backtests,
)
from stormsail.evaluation.walk_forward.config import ValidationConfig
from stormsail.evaluation.walk_forward.evidence import (
    Trading,
    TrialSummary,
    account_tests,
    evidence_of,
)
from stormsail.evaluation.walk_forward.ledger import EarlierTrials
from stormsail.evaluation.walk_forward.performance import pooled_performance
from stormsail.evaluation.walk_forward.pool import FoldBacktests, Pooled, Run, charged_bp, pool
from stormsail.evaluation.walk_forward.verdict import Evidence, Tail, Verdict, decide
from stormsail.market.panel import Panel
from stormsail.market.simulator.config import MarketConfig
from stormsail.market.splits import Span

_TOLERANCE_BP = 0.01


@dataclass(frozen=True, eq=False)
class CostReport:
    """The pooled account at other costs."""

    sweep: Mapping[float, Pooled]
    """By cost in basis points of the notional."""
    break_even: BreakEven
    charged_bp: float | None
    """What trading cost; None where nothing was traded."""


@dataclass(frozen=True, eq=False)
class Judgement:
    """All results on the pooled account of some runs, and the verdict on them."""

    runs: tuple[Run, ...]
    pooled: Pooled
    metrics: Metrics
    significance: Significance
    calibration: CalibrationReport
    baselines: Mapping[str, Backtest]
    """By name; empty where they were not traded."""
    costs: CostReport | None
    """None where they were not swept."""
    stress: Mapping[str, Pooled] | None
    """By scenario; None where there was no stress test."""
    comparisons: Mapping[str, SharpeDifference]
    """Against the simple baselines at equal risk, by name."""
    trials: TrialSummary
    self_tests: tuple[SelfTest, ...]
    evidence: Evidence
    verdict: Verdict
    performance: Performance


def judge_runs(
    runs: Sequence[Run],
    panel: Panel,
    config: ValidationConfig,
    *,
    capital: float,
    earlier: EarlierTrials,
    more_self_tests: Sequence[SelfTest] = (),
    explanations: Mapping[str, str] | None = None,
) -> Judgement:
    """Pool the backtests of some folds, test the account, and return the verdict.

    Args:
        runs: fold by fold, and in each fold seed by seed.
        panel: bars that were traded, and before.
        config: which tests are wanted.
        capital: of all seeds together at the start.
        earlier: trials before this validation.
        more_self_tests: results of tests that were run elsewhere.
        explanations: of what is too good to be true, by rule.
    """
    run_set = _RunSet(tuple(runs), panel, config, capital)
    pooled = run_set.pool([run.backtest for run in runs])
    requests = run_set.baseline_requests(pooled) if config.baselines else {}
    steps.began("judging: baselines, costs, stress and self-tests")
    batch = run_backtests(run_set.runs, panel, config, baselines=requests, span=_span(pooled))
    traded = {name: result.returns for name, result in batch.baselines.items()}
    steps.began("judging: resampling")
    tested = account_tests(pooled, traded, earlier, seed=config.seed)
    steps.began("judging: calibration")
    calibration = run_set.calibration()
    steps.began("judging: break-even")
    costs = run_set.costs(batch) if config.costs else None
    stress = run_set.stress(batch) if config.stress else None
    steps.began("judging: self-tests")
    oracle = run_set.oracle_return(batch)
    tests = (*run_set.self_tests(pooled, batch, oracle), *more_self_tests)
    evidence = evidence_of(pooled, tested, run_set.trading(calibration, costs, tests, oracle))
    return Judgement(
        runs=run_set.runs,
        pooled=pooled,
        metrics=pooled.metrics(config.alpha),
        significance=tested.significance,
        calibration=calibration,
        baselines=batch.baselines,
        costs=costs,
        stress=stress,
        comparisons=tested.baselines,
        trials=tested.trials,
        self_tests=tests,
        evidence=evidence,
        verdict=decide(evidence, config.rules, explanations=explanations),
        performance=run_set.performance(pooled),
    )


@dataclass(frozen=True, eq=False)
class _RunSet:
    """The runs with everything that is needed to pool them and to trade them again."""

    runs: tuple[Run, ...]
    panel: Panel
    config: ValidationConfig
    capital: float

    @property
    def finished(self) -> list[Backtest]:
        return finished(self.runs)

    def pool(self, backtests: Sequence[Backtest | None], *, ends: bool = False) -> Pooled:
        """Return one backtest for each run as one account; with `ends`, each as one long bar."""
        return pool(self.folds(backtests, ends=ends), self.panel.interval, capital=self.capital)

    def folds(
        self, backtests: Sequence[Backtest | None], *, ends: bool = False
    ) -> list[FoldBacktests]:
        """Return one backtest for each run by fold; with `ends`, each as one long bar."""
        ts, width = self.panel.ts.cpu().numpy(), len(self.config.seeds)
        folds = []
        for start in range(0, len(backtests), width):
            marks = self.runs[start].fold.marks(ts, self.panel.interval)
            own = backtests[start : start + width]
            folds.append(FoldBacktests(marks[[0, -1]] if ends else marks, own))
        return folds

    def performance(self, pooled: Pooled) -> Performance:
        """Return costs, legs, regimes and folds; the capacity curve where costs are wanted."""
        market = self.finished[0].market if self.finished else self.config.backtest.market
        return pooled_performance(
            self.folds([run.backtest for run in self.runs]),
            pooled,
            self.panel,
            market or MarketConfig(),
            pool=self.pool if self.config.costs else None,
            alpha=self.config.alpha,
        )

    def baseline_requests(self, pooled: Pooled) -> dict[str, ReplayRequest]:
        """Return the baselines over the whole span, with the agents' turnover and capital."""
        config = self.config.backtest.replace(capital=self.capital)
        if not self.finished:
            whole = config.during(_span(pooled))
            return baseline_requests(self.panel, whole)
        first = self.finished[0]
        turnover = [backtest.bars["turnover"].reshape(-1) for backtest in self.finished]
        like = replace(
            first,
            ts=pooled.ts,
            bars={"turnover": np.concatenate(turnover)},
            config=first.config.replace(capital=self.capital),
        )
        return baseline_requests(self.panel, config, like=like)

    def calibration(self) -> CalibrationReport:
        closes = [closes_of(backtest, self.panel) for backtest in self.finished]
        return calibration_of(self.finished, alpha=self.config.alpha, closes=closes)

    def costs(self, batch: BatchResults) -> CostReport:
        """Return the sweep and the break-even of the pooled account."""
        sweep = {
            cost: self.pool(self._by_run(batch.sweep, place)) for place, cost in enumerate(SWEEP_BP)
        }
        traded = any(backtest.trades for backtest in self.finished)
        even = self._break_even(batch) if traded else NOTHING_TRADED
        return CostReport(sweep, even, charged_bp(self.finished))

    def _break_even(self, batch: BatchResults) -> BreakEven:
        def returns_at(costs_bp: Sequence[float]) -> list[float]:
            requests = cost_requests(self.runs, self.panel, costs_bp, whole=False)
            return self._total_returns(run_batch(requests), len(costs_bp))

        known = PrefetchedReturns(returns_at, most_bp=MOST_BP, tolerance_bp=_TOLERANCE_BP)
        first = first_costs(MOST_BP)
        known.add(first, self._total_returns(batch.break_even, len(first)))
        return search_break_even(known, most_bp=MOST_BP, tolerance_bp=_TOLERANCE_BP)

    def _total_returns(self, ends: Sequence[Sequence[Backtest]], costs: int) -> list[float]:
        """Return the total return of the pooled account at each cost, from starts and ends."""
        return [
            self.pool(self._by_run(ends, place), ends=True).total_return for place in range(costs)
        ]

    def _by_run(self, results: Sequence[Sequence[Backtest]], place: int) -> list[Backtest | None]:
        """Return one of several backtests of each run, None where it has none."""
        following = iter(results)
        return [None if run.backtest is None else next(following)[place] for run in self.runs]

    def stress(self, batch: BatchResults) -> dict[str, Pooled]:
        """Return each scenario, pooled; of the crashes the worst of all."""
        names = dict.fromkeys(name for run in batch.stress for name in run if not _crash(name))
        pooled = {name: self.pool([run.get(name) for run in batch.stress]) for name in names}
        windows: dict[tuple[int, int], list[Backtest]] = {}
        for run in batch.stress:
            for name, result in run.items():
                if _crash(name):
                    span = result.span
                    windows.setdefault((span.start_ms, span.end_ms), []).append(result)
        ranked = sorted(windows.values(), key=lambda results: -self._market_fall(results[0]))
        for number, results in enumerate(ranked[:CRASHES], start=1):
            pooled[f"crash {number}"] = pool(
                [FoldBacktests(results[0].ts, results)], self.panel.interval, capital=self.capital
            )
        return pooled

    def _market_fall(self, result: Backtest) -> float:
        """Return how far the market fell in a span, from its highest close to its last."""
        close = closes_of(result, self.panel)
        worth = (close / close[0]).mean(1)
        return float(1.0 - worth[-1] / worth.max())

    def oracle_return(self, batch: BatchResults) -> float | None:
        """Return the total return of somebody who knows every bar; None without baselines."""
        if ORACLE not in batch.baselines:
            return None
        return self_tests.oracle_return(
            batch.baselines[ORACLE], self.panel, ledger=batch.runner.replay
        )

    def self_tests(
        self, pooled: Pooled, batch: BatchResults, best: float | None
    ) -> tuple[SelfTest, ...]:
        """Run the self-tests; those of one backtest on the one with the most trades."""
        runner = batch.runner
        returns = {name: result.total_return for name, result in batch.baselines.items()}
        if best is not None:
            returns[ORACLE] = best
        oracle = self_tests.oracle_wins(returns, pooled.total_return)
        tested = most_traded(self.runs)
        if tested is None:
            words = "No training finished, so there was no agent to test."
            names = ("noise", "permuted decisions", "fees", "look-ahead")
            return (oracle, *(SelfTest(name, None, words) for name in names))
        agent, result = tested
        seed, span = self.config.seed, _span(pooled)
        return (
            oracle,
            self_tests.noise_stays_noise(
                result, self.panel, seed=seed, span=span, ledger=runner.replay
            ),
            self_tests.permuted_matters(result, self.panel, seed=seed, ledger=runner.replay),
            self_tests.fees_hurt(result, self.panel, ledger=runner.replay),
            self_tests.no_look_ahead(agent, result, self.panel, decide=runner.backtest),
        )

    def trading(
        self,
        calibration: CalibrationReport,
        costs: CostReport | None,
        tests: Sequence[SelfTest],
        best: float | None,
    ) -> Trading:
        """Return what the backtests tell beside the returns of the account."""
        trained = {run.fold.number for run in self.runs if run.agent is not None}
        flags = [backtest.flags for backtest in self.finished]
        shorter = calibration.judged_tail
        return Trading(
            self_tests=tests,
            failed_folds=sorted({run.fold.number for run in self.runs} - trained),
            liquidations=sum(int(flag["liquidated"].sum()) for flag in flags),
            stops=sum(len(backtest.stopped_symbols) for backtest in self.finished),
            break_even=None if costs is None else costs.break_even,
            charged_bp=charged_bp(self.finished),
            cost_floor_bp=self.config.rules.cost_floor_bp(self.panel.symbols),
            dead_fills=sum(dead_fills(backtest, self.panel) for backtest in self.finished),
            clairvoyant_return=best,
            tail=Tail(calibration.horizon, calibration.checks.tail.gap),
            judged_tail=None
            if shorter is None
            else Tail(calibration.judged_horizon or 0, shorter.gap),
        )


def dead_fills(backtest: Backtest, panel: Panel) -> int:
    """Return the fills in bars without volume, or whose price never left the last close."""
    ts = panel.ts.cpu().numpy()
    rows = np.searchsorted(ts, backtest.ts[:-1])  # an order fills in the bar that opens then
    high, low = panel.high.cpu().numpy()[rows], panel.low.cpu().numpy()[rows]
    before = panel.close.cpu().numpy()[np.maximum(rows - 1, 0)]
    still = (high == low) & (high == before)
    dead = still | (panel.volume.cpu().numpy()[rows] <= 0.0)
    return int(np.count_nonzero((backtest.bars["traded"] != 0.0) & dead))


def _span(pooled: Pooled) -> Span:
    return Span(int(pooled.ts[0]) - pooled.interval.milliseconds, int(pooled.ts[-1]))


def _crash(name: str) -> bool:
    return name.startswith("crash ")
