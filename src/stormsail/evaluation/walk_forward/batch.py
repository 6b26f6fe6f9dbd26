"""Run all backtests that a validation needs in one batch, and cache them.

Baselines, cost sweep, stress scenarios and self-tests each name the backtests that they need. They
are run in as few batches as can be, and each finds its own again by what was requested: the same
weights or agent, the same bars, the same settings. What was not run beforehand is run when it is
needed, so that the cache changes how long a validation takes and nothing else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.evaluation.engine.result import Backtest
from stormsail.evaluation.engine.run import BacktestRequest, ReplayRequest, Weights, run_batch
from stormsail.evaluation.robustness.costs import MOST_BP, SWEEP_BP, cost_request, first_costs
from stormsail.evaluation.robustness.self_tests import (
    ORACLE,
    fee_requests,
    look_ahead_requests,
    noise_requests,
    oracle_request,
    permuted_requests,
)
from stormsail.evaluation.robustness.stress import by_name, stress_requests
from stormsail.evaluation.walk_forward.config import ValidationConfig
from stormsail.evaluation.walk_forward.pool import Run
from stormsail.market.panel import Panel
from stormsail.market.splits import Span
from stormsail.modules.agent import Agent

Request = ReplayRequest | BacktestRequest


def finished(runs: Sequence[Run]) -> list[Backtest]:
    """Return the backtests of the trainings that did not fail."""
    return [run.backtest for run in runs if run.backtest is not None]


def most_traded(runs: Sequence[Run]) -> tuple[Agent, Backtest] | None:
    """Return the backtest with the most trades and its agent; None where no training finished."""
    known = [
        (run.agent, run.backtest)
        for run in runs
        if run.backtest is not None and run.agent is not None
    ]
    return max(known, key=lambda pair: len(pair[1].trades)) if known else None


class CachedRunner:
    """Memoised `replay` and `backtest`: returns each prefetched result once, and runs the rest."""

    def __init__(self) -> None:
        self._results: dict[str, Backtest] = {}
        self._agents: list[Agent] = []

    def run(
        self, requests: Sequence[Request], *, prefetch: Sequence[Request] = ()
    ) -> list[list[Backtest]]:
        """Return the results of some requests, and keep those of others.

        Args:
            requests: whose backtests are returned, one for each of the costs.
            prefetch: what `replay` and `backtest` will be called with.
        """
        results = run_batch([*requests, *prefetch])
        for request, result in zip(prefetch, results[len(requests) :], strict=True):
            self._results[self._key(request)] = result[0]
        return results[: len(requests)]

    def replay(self, weights: Weights, panel: Panel, config: BacktestConfig) -> Backtest:
        """Return what `engine.run.replay` does."""
        return self._result(ReplayRequest(weights, panel, config))

    def backtest(self, agent: Agent, panel: Panel, config: BacktestConfig) -> Backtest:
        """Return what `engine.run.backtest` does."""
        return self._result(BacktestRequest(agent, panel, config))

    def _result(self, request: Request) -> Backtest:
        known = self._results.pop(self._key(request), None)
        return run_batch([request])[0][0] if known is None else known

    def _key(self, request: Request) -> str:
        if isinstance(request, ReplayRequest):
            decider = (
                f"weights {sha256(np.ascontiguousarray(request.weights).tobytes()).hexdigest()}"
            )
        else:
            decider = f"agent {self._number(request.agent)}"
        return f"{decider} {request.panel.digest()} {request.config.config_hash()}"

    def _number(self, agent: Agent) -> int:
        places = [number for number, known in enumerate(self._agents) if known is agent]
        if not places:
            self._agents.append(agent)
        return places[0] if places else len(self._agents) - 1


@dataclass(frozen=True, eq=False)
class BatchResults:
    """The backtests of one batch."""

    runner: CachedRunner
    """With the backtests of the self-tests."""
    baselines: Mapping[str, Backtest]
    sweep: Sequence[Sequence[Backtest]]
    """Of each finished run, the backtest at each cost of the sweep."""
    break_even: Sequence[Sequence[Backtest]]
    """The same at the first costs of the search for the break-even, start and end alone."""
    stress: Sequence[Mapping[str, Backtest]]
    """Of each run, the stress scenarios by name."""


def run_backtests(
    runs: Sequence[Run],
    panel: Panel,
    config: ValidationConfig,
    *,
    baselines: Mapping[str, ReplayRequest],
    span: Span,
) -> BatchResults:
    """Run every backtest of a validation that can be named beforehand, in one batch.

    `span` reaches from the first to the last bar of all folds.
    """
    sweep = cost_requests(runs, panel, SWEEP_BP) if config.costs else []
    ends = cost_requests(runs, panel, first_costs(MOST_BP), whole=False) if config.costs else []
    stress = _stress_requests(runs, panel) if config.stress else []
    scenarios = [request for requests in stress for request in requests.values()]
    runner = CachedRunner()
    prefetch = _self_test_requests(runs, panel, config, baselines, span)
    results = iter(runner.run([*baselines.values(), *sweep, *ends, *scenarios], prefetch=prefetch))
    return BatchResults(
        runner=runner,
        baselines={name: next(results)[0] for name in baselines},
        sweep=[next(results) for _ in sweep],
        break_even=[next(results) for _ in ends],
        stress=[by_name(requests, [next(results) for _ in requests]) for requests in stress],
    )


def cost_requests(
    runs: Sequence[Run], panel: Panel, costs_bp: Sequence[float], *, whole: bool = True
) -> list[ReplayRequest]:
    """Return the decisions of all finished runs, to be replayed at several costs."""
    return [cost_request(backtest, panel, costs_bp, whole=whole) for backtest in finished(runs)]


def _stress_requests(
    runs: Sequence[Run], panel: Panel
) -> list[dict[tuple[str, ...], BacktestRequest]]:
    return [
        {}
        if run.agent is None or run.backtest is None
        else stress_requests(run.agent, panel, run.backtest)
        for run in runs
    ]


def _self_test_requests(
    runs: Sequence[Run],
    panel: Panel,
    config: ValidationConfig,
    baselines: Mapping[str, ReplayRequest],
    span: Span,
) -> list[Request]:
    requests: list[Request] = []
    if ORACLE in baselines:
        oracle = baselines[ORACLE]
        weights = np.asarray(oracle.weights, np.float64)
        requests.append(oracle_request(weights, panel, oracle.config))
    tested = most_traded(runs)
    if tested is None:
        return requests
    agent, result = tested
    return [
        *requests,
        *noise_requests(result, panel, seed=config.seed, span=span),
        *permuted_requests(result, panel, seed=config.seed),
        *fee_requests(result, panel),
        *look_ahead_requests(agent, result, panel).values(),
    ]
