"""The backtests of one batch are those that each part of a judgement would have run alone."""

from dataclasses import replace

import numpy as np
import pytest

from stormsail.evaluation.engine.run import backtest, replay
from stormsail.evaluation.robustness import self_tests
from stormsail.evaluation.robustness.baselines import run_baselines
from stormsail.evaluation.robustness.costs import break_even, cost_sweep
from stormsail.evaluation.robustness.stress import stress
from stormsail.evaluation.walk_forward import batch
from stormsail.evaluation.walk_forward.batch import CachedRunner
from stormsail.evaluation.walk_forward.files import further_documents
from stormsail.evaluation.walk_forward.run import validate
from validation_lab import fitter, settings, world


@pytest.fixture(scope="module")
def bars():
    return world(300)


@pytest.fixture(scope="module")
def validation(bars):
    config = settings(folds=1, seeds=(0,), stress=True, test_share=0.3)
    return validate(bars, config, fit=fitter(bars))


def test_every_part_of_a_judgement_is_what_it_is_alone(validation, bars):
    judgement, run = validation.judgement, validation.runs[0]
    documents = further_documents(judgement, 0.05)
    seen = bars.between(validation.plan.development.start_ms, validation.plan.development.end_ms)
    result, agent = run.backtest, run.agent
    for name, one in run_baselines(seen, result.config, like=result).items():
        assert judgement.baselines[name].order_hash == one.order_hash
        assert judgement.baselines[name].equity.tolist() == one.equity.tolist()
    costs = documents["costs"]["replay"]
    even = break_even(result, seen)
    assert costs["break_even"] == even.document()
    for cost, one in cost_sweep(result, seen).items():
        assert costs["sweep_bp"][f"{cost:g}"]["final_equity"] == pytest.approx(one.equity[-1])
    scenarios = stress(agent, seen, result.config)
    assert list(documents["stress"]) == list(scenarios)
    for name, one in scenarios.items():
        figures = documents["stress"][name]
        assert (figures["bars"], figures["trades"]) == (len(one.returns), len(one.trades))
    span = result.span
    assert judgement.self_tests[1:] == (
        self_tests.noise_stays_noise(result, seen, seed=0, span=span),
        self_tests.permuted_matters(result, seen, seed=0),
        self_tests.fees_hurt(result, seen),
        self_tests.no_look_ahead(agent, result, seen),
    )


def test_a_judgement_needs_one_batch(monkeypatch, bars):
    batches = []
    run_batch = batch.run_batch

    def counted(requests):
        batches.append(len(requests))
        return run_batch(requests)

    monkeypatch.setattr(batch, "run_batch", counted)
    config = settings(folds=1, seeds=(0,), stress=True, test_share=0.3)
    validate(bars, config, fit=fitter(bars))
    assert len(batches) == 1


def test_a_cached_runner_returns_what_was_prefetched_and_runs_the_rest(validation, bars):
    result, agent = validation.runs[0].backtest, validation.runs[0].agent
    requests = self_tests.permuted_requests(result, bars, seed=0)
    usual, permuted = ((each.weights, each.panel, each.config) for each in requests)
    later = next(iter(self_tests.look_ahead_requests(agent, result, bars).values()))
    runner = CachedRunner()
    assert runner.run([], prefetch=[requests[0], later]) == []
    for given in (usual, permuted, usual, permuted):  # the first is cached, the others are run
        assert np.array_equal(runner.replay(*given).equity, replay(*given).equity)
    again = runner.backtest(agent, later.panel, later.config)
    alone = backtest(agent, later.panel, later.config)
    assert again.order_hash == alone.order_hash
    assert not np.array_equal(runner.replay(*usual).equity, runner.replay(*permuted).equity)


@pytest.mark.spec("M38")
def test_a_cached_result_is_not_that_of_other_bars_or_settings(validation, bars):
    """The same weights were traded before, at other costs and on other bars: they are run anew."""
    result = validation.runs[0].backtest
    known = self_tests.permuted_requests(result, bars, seed=0)[0]
    cheap, dear = self_tests.fee_requests(result, bars)[:2]
    assert cheap.config != dear.config
    runner = CachedRunner()
    runner.run([], prefetch=[cheap])
    given = (cheap.weights, cheap.panel)
    assert np.array_equal(
        runner.replay(*given, dear.config).equity, replay(*given, dear.config).equity
    )
    runner.run([], prefetch=[known])
    moved = replace(bars, close=bars.close * 1.01)
    here = runner.replay(known.weights, moved, known.config)
    assert np.array_equal(here.equity, replay(known.weights, moved, known.config).equity)
    assert not np.array_equal(here.equity, replay(known.weights, bars, known.config).equity)
