"""Everything that is said about a set of passes: figures, rivals, luck, costs, stress, verdict.

All of it is about the pooled account of `validation_pool`. The folds of a validation and its final
test span are judged by the same function.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stormsail.core.files.documents import JsonValue
from stormsail.core.generators import Generators
from stormsail.evaluation.calibration.document import calibration_document
from stormsail.evaluation.calibration.predictions import closes_of
from stormsail.evaluation.engine.result import Backtest
from stormsail.evaluation.engine.run import Given, trade_all
from stormsail.evaluation.robustness import self_tests
from stormsail.evaluation.robustness.baselines import baseline_passes
from stormsail.evaluation.robustness.costs import (
    MOST_BP,
    SWEEP_BP,
    BreakEven,
    Foresight,
    first_costs,
    sectioned,
)
from stormsail.evaluation.robustness.self_tests import ORACLE, SelfTest
from stormsail.evaluation.robustness.significance import luck_document
from stormsail.evaluation.robustness.stress import CRASHES, stress_document
from stormsail.evaluation.stats import figures
from stormsail.evaluation.stats.bootstrap import superiority
from stormsail.evaluation.stats.figures import Array, bars_per_year
from stormsail.evaluation.stats.metrics import Metrics
from stormsail.evaluation.stats.statement import Statement
from stormsail.evaluation.walk_forward.batch import Walked, at_costs, busiest, finished, walk_ahead
from stormsail.evaluation.walk_forward.config import ValidationConfig
from stormsail.evaluation.walk_forward.pool import FoldPass, Pooled, Run, charged_bp, pool
from stormsail.evaluation.walk_forward.verdict import Evidence, Verdict, judge, statement_of
from stormsail.market.panel import Panel
from stormsail.market.splits import Span

BENCHMARK = "buy and hold"
_TOLERANCE_BP = 0.01


@dataclass(frozen=True, eq=False)
class Trials:
    """What else was tried in the workspace before this validation began."""

    count: int = 0
    sharpes: Array = field(default_factory=lambda: np.zeros(0))
    """Per-bar Sharpe ratios of those that have one."""


@dataclass(frozen=True, eq=False)
class Judgement:
    """What some passes come to."""

    runs: tuple[Run, ...]
    pooled: Pooled
    metrics: Metrics
    rivals: Mapping[str, Backtest]
    documents: Mapping[str, JsonValue]
    """`luck`, `calibration`, and where asked for `baselines`, `costs`, `stress`."""
    trials: Mapping[str, JsonValue]
    self_tests: tuple[SelfTest, ...]
    verdict: Verdict


def judge_runs(
    runs: Sequence[Run],
    panel: Panel,
    config: ValidationConfig,
    *,
    capital: float,
    trials: Trials,
    more_self_tests: Sequence[SelfTest] = (),
) -> Judgement:
    """Return everything that is said about the passes of some folds.

    Args:
        runs: fold by fold, and in each fold seed by seed.
        panel: bars that were traded, and before.
        config: what is asked.
        capital: of all seeds together at the start.
        trials: what else was tried.
        more_self_tests: answers of tests that were asked elsewhere.
    """
    bench = _Bench(tuple(runs), panel, config, capital)
    pooled = bench.pooled([one.backtest for one in runs])
    asked = bench.rivals(pooled) if config.baselines else {}
    walked = walk_ahead(bench.runs, panel, config, rivals=asked, span=_span(pooled))
    rivals = walked.rivals
    documents: dict[str, JsonValue] = {
        "luck": _luck(pooled, rivals, trials, config),
        "calibration": bench.calibration(),
    }
    even: BreakEven | None = None
    if config.baselines:
        documents["baselines"] = stress_document(rivals)
    if config.costs:
        even, documents["costs"] = bench.costs(walked)
    if config.stress:
        documents["stress"] = bench.stress(walked)
    tests = (*bench.self_tests(pooled, walked), *more_self_tests)
    measured = pooled.metrics(config.alpha)
    evidence = bench.evidence(pooled, measured, documents, tests, even)
    return Judgement(
        runs=bench.runs,
        pooled=pooled,
        metrics=measured,
        rivals=rivals,
        documents=documents,
        trials=_trials(pooled, trials),
        self_tests=tests,
        verdict=judge(evidence, config.rules),
    )


@dataclass(frozen=True, eq=False)
class _Bench:
    """The passes with everything that is needed to trade them again."""

    runs: tuple[Run, ...]
    panel: Panel
    config: ValidationConfig
    capital: float

    @property
    def finished(self) -> list[Backtest]:
        return finished(self.runs)

    def pooled(self, passes: Sequence[Backtest | None], *, ends: bool = False) -> Pooled:
        """Return passes, one for each run, as one account; with `ends`, each as one long bar."""
        ts, width = self.panel.ts.cpu().numpy(), len(self.config.seeds)
        folds = []
        for start in range(0, len(passes), width):
            marks = self.runs[start].fold.marks(ts, self.panel.interval)
            folds.append(FoldPass(marks[[0, -1]] if ends else marks, passes[start : start + width]))
        return pool(folds, self.panel.interval, capital=self.capital)

    def rivals(self, pooled: Pooled) -> dict[str, Given]:
        """Return the baselines over the whole span, with the agents' turnover and capital."""
        config = self.config.backtest.replace(capital=self.capital)
        if not self.finished:
            whole = config.during(_span(pooled))
            return baseline_passes(self.panel, whole)
        one = self.finished[0]
        turnover = np.concatenate([found.bars["turnover"].reshape(-1) for found in self.finished])
        like = replace(
            one,
            ts=pooled.ts,
            bars={"turnover": turnover},
            config=one.config.replace(capital=self.capital),
        )
        return baseline_passes(self.panel, config, like=like)

    def calibration(self) -> JsonValue:
        closes = [closes_of(one, self.panel) for one in self.finished]
        return calibration_document(self.finished, alpha=self.config.alpha, closes=closes)

    def costs(self, walked: Walked) -> tuple[BreakEven, JsonValue]:
        """Return the break-even of the pooled account, and it with the sweep as plain data."""
        sweep = {
            f"{cost:g}": self.pooled(self._placed(walked.swept, place)).figures(self.config.alpha)
            for place, cost in enumerate(SWEEP_BP)
        }
        even = BreakEven(None, 0.0, np.inf, "nothing was traded, so no cost matters")
        if any(one.trades for one in self.finished):
            even = self._break_even(walked)
        told: dict[str, JsonValue] = {"sweep_bp": {**sweep}, "break_even": even.document()}
        return even, {"replay": told, "charged_bp": charged_bp(self.finished)}

    def _break_even(self, walked: Walked) -> BreakEven:
        def earned(costs_bp: Sequence[float]) -> list[float]:
            asked = at_costs(self.runs, self.panel, costs_bp, whole=False)
            return self._earned(trade_all(asked), len(costs_bp))

        foresight = Foresight(earned, most_bp=MOST_BP, tolerance_bp=_TOLERANCE_BP)
        first = first_costs(MOST_BP)
        foresight.learn(first, self._earned(walked.ends, len(first)))
        return sectioned(foresight, most_bp=MOST_BP, tolerance_bp=_TOLERANCE_BP)

    def _earned(self, ends: Sequence[Sequence[Backtest]], costs: int) -> list[float]:
        """Return what the pooled account earned at each cost, from where the passes ended."""
        return [
            self.pooled(self._placed(ends, place), ends=True).total_return for place in range(costs)
        ]

    def _placed(self, found: Sequence[Sequence[Backtest]], place: int) -> list[Backtest | None]:
        """Return one of several backtests of each run, None where it has none."""
        told = iter(found)
        return [None if one.backtest is None else next(told)[place] for one in self.runs]

    def stress(self, walked: Walked) -> JsonValue:
        """Return the figures of each thing that may go wrong, pooled; crashes: the worst of all."""
        found = walked.stressed
        names = dict.fromkeys(name for one in found for name in one if not _crash(name))
        told: dict[str, JsonValue] = {
            name: self.pooled([one.get(name) for one in found]).figures(self.config.alpha)
            for name in names
        }
        windows: dict[tuple[int, int], list[Backtest]] = {}
        for one in found:
            for name, result in one.items():
                if _crash(name):
                    span = result.span
                    windows.setdefault((span.start_ms, span.end_ms), []).append(result)
        ranked = sorted(windows.items(), key=lambda item: -self._fall(item[1][0]))
        for number, (_, passes) in enumerate(ranked[:CRASHES], start=1):
            alone = pool(
                [FoldPass(passes[0].ts, passes)], self.panel.interval, capital=self.capital
            )
            told[f"crash {number}"] = alone.figures(self.config.alpha)
        return told

    def _fall(self, result: Backtest) -> float:
        """Return how far the market fell in a span, from its highest close to its last."""
        close = closes_of(result, self.panel)
        worth = (close / close[0]).mean(1)
        return float(1.0 - worth[-1] / worth.max())

    def self_tests(self, pooled: Pooled, walked: Walked) -> tuple[SelfTest, ...]:
        """Ask the self-tests, those about one pass of the one with the most trades."""
        rivals, desk = walked.rivals, walked.desk
        earned = {name: one.total_return for name, one in rivals.items()}
        if ORACLE in rivals:
            rival = rivals[ORACLE]
            earned[ORACLE] = self_tests.oracle_return(rival, self.panel, ledger=desk.replay)
        oracle = self_tests.oracle_wins(earned, pooled.total_return)
        asked = busiest(self.runs)
        if asked is None:
            words = "No training finished, so there was nobody to ask."
            names = ("noise", "permuted decisions", "fees", "look-ahead")
            return (oracle, *(SelfTest(name, None, words) for name in names))
        agent, result = asked
        seed, span = self.config.seed, _span(pooled)
        return (
            oracle,
            self_tests.noise_stays_noise(
                result, self.panel, seed=seed, span=span, ledger=desk.replay
            ),
            self_tests.permuted_matters(result, self.panel, seed=seed, ledger=desk.replay),
            self_tests.fees_hurt(result, self.panel, ledger=desk.replay),
            self_tests.no_look_ahead(agent, result, self.panel, decide=desk.backtest),
        )

    def evidence(
        self,
        pooled: Pooled,
        measured: Metrics,
        documents: Mapping[str, JsonValue],
        tests: Sequence[SelfTest],
        even: BreakEven | None,
    ) -> Evidence:
        """Return what the verdict is made of."""
        luck, calibration = _table(documents["luck"]), _table(documents["calibration"])
        several = len(self.config.seeds) > 1
        trained = {one.fold.number for one in self.runs if one.agent is not None}
        flags = [one.flags for one in self.finished]
        return Evidence(
            self_tests=tests,
            failed_folds=sorted({one.fold.number for one in self.runs} - trained),
            fold_returns=pooled.folds,
            seed_returns=[float(one) for one in pooled.seeds[-1] / pooled.seeds[0] - 1.0],
            total_return=measured.total_return,
            mean_return=statement_of(_table(luck["intervals"])["mean_return"]),
            liquidations=sum(int(one["liquidated"].sum()) for one in flags),
            stops=sum(int(one["stopped"].any(0).sum()) for one in flags),
            deflated=statement_of(luck["deflated"]),
            superiority=statement_of(luck["superiority"]),
            overfitting=statement_of(luck["overfitting"]) if several else None,
            break_even=even,
            charged_bp=charged_bp(self.finished),
            tail_gap=statement_of(_table(calibration["tail"])["gap"]),
        )


def _luck(
    pooled: Pooled, rivals: Mapping[str, Backtest], trials: Trials, config: ValidationConfig
) -> JsonValue:
    """Return how much is luck. The test against buy and hold is one of the pooled account.

    The seeds are what was tried for the probability of overfitting. What is promoted is none of
    them but all together, so the benchmark is held against their sum.
    """
    own = figures.per_bar_sharpe(pooled.seed_returns)
    generator = Generators(config.seed).numpy("validation.luck")
    document = luck_document(
        pooled.returns,
        pooled.ts,
        per_year=bars_per_year(pooled.interval.milliseconds),
        trial_sharpes=np.concatenate((trials.sharpes, own)),
        trials=trials.count + len(own),
        tried=pooled.seed_returns if len(own) > 1 else None,
        generator=generator,
    )
    told = dict(_table(document))
    if BENCHMARK in rivals:
        found = superiority(pooled.returns, rivals[BENCHMARK].returns, generator=generator)
        told["superiority"] = {**found.document()}
    return told


def _trials(pooled: Pooled, trials: Trials) -> dict[str, JsonValue]:
    own = figures.per_bar_sharpe(pooled.seed_returns)
    known = np.concatenate((trials.sharpes, own[~np.isnan(own)]))
    words = f"{trials.count} trials of the workspace before this one, and {len(own)} seeds of it"
    if len(trials.sharpes) < 2:
        words += "; the spread of Sharpe ratios is that of the seeds"
    return {
        "count": trials.count + len(own),
        "with_sharpe": len(known),
        "sharpe_std": float(known.std(ddof=1)) if len(known) > 1 else None,
        "words": words,
    }


def run_document(run: Run) -> dict[str, JsonValue]:
    """Return one run as plain data."""
    found = run.backtest
    metrics: dict[str, Statement] = {} if found is None else found.metrics.statements()
    return {
        "fold": run.fold.number,
        "seed": run.seed,
        "metrics": {name: {**one.document()} for name, one in metrics.items()},
        "order_hash": None if found is None else found.order_hash,
        "agent": None if found is None else found.notes.get("agent"),
        "status": "failed" if found is None else "finished",
        "reason": run.reason,
    }


def _span(pooled: Pooled) -> Span:
    return Span(int(pooled.ts[0]) - pooled.interval.milliseconds, int(pooled.ts[-1]))


def _crash(name: str) -> bool:
    return name.startswith("crash ")


def _table(document: JsonValue) -> Mapping[str, JsonValue]:
    return document if isinstance(document, dict) else {}
