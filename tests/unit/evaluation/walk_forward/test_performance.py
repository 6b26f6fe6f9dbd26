"""Performance of a validation: costs of the pooled account, its legs, its capacity, its folds."""

import numpy as np
import pytest

from evaluation_peers import peer
from stormsail.evaluation.performance.attribution import COSTS, ITEMS, LEGS
from stormsail.evaluation.stats import figures
from stormsail.evaluation.walk_forward.pool import closing_costs
from stormsail.evaluation.walk_forward.run import validate
from validation_lab import fitter, settings, world


@pytest.fixture(scope="module")
def validation():
    bars = world(400, symbols=2)
    config = settings(**{"backtest.market.costs.impact": 0.02})
    return validate(bars, config, fit=fitter(bars))


def test_gross_less_all_costs_is_the_change_of_the_pooled_account(validation):
    pooled, measured = validation.judgement.pooled, validation.judgement.performance
    made = measured.attribution
    assert made.net.sum(1) == pytest.approx(np.diff(pooled.equity), abs=1e-9)
    both = made.totals()["both"]
    assert both["gross"] == pytest.approx(both["net"] + sum(both[name] for name in COSTS), abs=1e-9)
    assert both["fees"] == pytest.approx(np.sum(pooled.flows.fees), rel=1e-12)
    slipped = both["spread"] + both["impact"] + both["tick"]
    assert slipped == pytest.approx(np.sum(pooled.flows.slippage), rel=1e-12)
    assert both["funding"] == pytest.approx(np.sum(pooled.flows.funding), rel=1e-12)
    assert made.exposure.sum(1) == pytest.approx(pooled.flows.exposure, rel=1e-12)
    assert both["impact"] > 0.0
    assert both["written_off"] == 0.0
    assert made.amounts.shape == (len(pooled.returns), len(LEGS), len(ITEMS))


def test_closing_between_folds_counts_on_the_last_bar_of_the_old_fold(validation):
    first = [run.backtest for run in validation.runs if run.fold.number == 0]
    assert any(sum(closing_costs(backtest)) > 0.0 for backtest in first)
    pooled, made = validation.judgement.pooled, validation.judgement.performance.attribution
    last = len(first[0].returns) - 1
    share = pooled.equity[0] / len(first)
    booked = sum(
        share
        / backtest.equity[0]
        * (backtest.bars["fee_total"][last].sum() + closing_costs(backtest)[0])
        for backtest in first
    )
    assert made.amounts[last, :, ITEMS.index("fees")].sum() == pytest.approx(booked, abs=1e-9)


def test_folds_have_figures_of_their_own(validation):
    measured, pooled = validation.judgement.performance, validation.judgement.pooled
    returns = [fold.total_return.value for fold in measured.folds]
    assert returns == pytest.approx(list(pooled.fold_returns), rel=1e-12)
    first = validation.runs[0].backtest
    bars = len(first.returns)
    assert measured.folds[0].sharpe.value == pytest.approx(
        figures.sharpe(pooled.returns[:bars], per_year=8_760.0), rel=1e-12
    )


def test_capacity_repeats_the_account_at_its_own_size_and_falls(validation):
    points = validation.judgement.performance.capacity
    pooled = validation.judgement.pooled
    own = next(point for point in points if point.capital == pooled.equity[0])
    assert own.total_return == pytest.approx(pooled.total_return, abs=1e-12)
    assert own.gain == pytest.approx(pooled.equity[-1] - pooled.equity[0], abs=1e-6)
    both = validation.judgement.performance.attribution.totals()["both"]
    assert own.impact == pytest.approx(both["impact"], rel=1e-9)
    returns = [point.total_return for point in points]
    assert returns == sorted(returns, reverse=True)


def test_a_validation_gives_frames(validation):
    peer("pandas")
    frames = validation.frames
    assert frames.returns().to_numpy() == pytest.approx(validation.judgement.pooled.returns)
    trades = frames.trades()
    assert {"fold", "seed"} <= set(trades.columns)
    assert set(frames.tables()) >= {"costs", "exposure", "regimes", "capacity", "folds"}
    assert list(frames.frame("folds")["fold"]) == [0, 1, 2]
    costs = frames.frame("costs").set_index("item")
    assert costs.loc["gross", "both"] == pytest.approx(
        costs.drop(index="gross")["both"].sum(), abs=1e-9
    )
    assert list(frames.frame("exposure")["exposure"]) == [
        "gross", "net", "long", "short", "largest", "time",
    ]  # fmt: skip
    assert "buy and hold" in frames.against().index


def test_the_capacity_curve_is_left_out_with_the_costs():
    bars = world(300)
    measured = validate(bars, settings(costs=False), fit=fitter(bars)).judgement.performance
    assert measured.capacity == ()
    assert measured.document()["capacity"] == []
