"""Combinatorial purged cross-validation: splits, holes, paths and their Sharpe ratios."""

from dataclasses import replace
from itertools import pairwise
from math import comb

import numpy as np
import pytest

from stormsail.core.errors import ConfigError, DataError, RangeError
from stormsail.evaluation import ValidationConfig, backtest, validate
from stormsail.evaluation.robustness.self_tests import SelfTest
from stormsail.evaluation.walk_forward.combinatorial import distribution_of, plan_paths
from stormsail.evaluation.walk_forward.config import Combinatorial
from stormsail.evaluation.walk_forward.files import validation_document
from stormsail.evaluation.walk_forward.folds import plan_folds
from stormsail.evaluation.walk_forward.judge import _RunSet
from stormsail.evaluation.walk_forward.pool import growth
from stormsail.market.splits import HoledSpan
from validation_lab import BURN_IN, GAP, HOUR, LOOKBACK, fitter, settings, untrained, world

BARE = {"baselines": False, "costs": False}


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(_RunSet, "self_tests", lambda *_: (SelfTest("none", True, ""),))


def planned(rows, groups, tested):
    ts = np.arange(rows, dtype=np.int64) * HOUR.milliseconds
    plan = plan_folds(ts, HOUR, settings(folds=1), lookback=LOOKBACK - 1)
    return ts, plan, plan_paths(ts, HOUR, Combinatorial(groups=groups, tested=tested), plan)


def test_paths_are_those_of_the_book():
    _, _, spans = planned(700, 6, 2)
    assert len(spans.splits) == comb(6, 2) == 15
    assert len(spans.paths) == 5  # 2/6 of 15
    # López de Prado 2018, figure 12.1: path 2 is S2, S6, S6, S7, S8, S9, counted from 1
    assert spans.paths[1] == (1, 5, 5, 6, 7, 8)
    for path in spans.paths:
        for group, split in enumerate(path):
            assert group in spans.splits[split].tested


@pytest.mark.parametrize("tested", [1, 2, 3])
def test_groups_cover_all_bars_once_and_no_bar_is_read_by_both_sides(tested):
    ts, plan, spans = planned(400, 4, tested)
    rows = [group.test.rows(ts) for group in spans.groups]
    last = plan.development.rows(ts).stop
    assert rows[0].start == LOOKBACK - 1 + BURN_IN
    assert rows[-1].stop == last
    assert all(before.stop == after.start for before, after in pairwise(rows))
    assert max(len(ts[one]) for one in rows) - min(len(ts[one]) for one in rows) <= 1
    # a backtest ends at the close at which the next group begins
    assert [group.traded.rows(ts).stop for group in spans.groups] == [
        *(one.stop + 1 for one in rows[:-1]),
        last,
    ]
    for split in spans.splits:
        free = np.zeros(len(ts), dtype=bool)
        free[split.train.rows(ts)] = True
        for hole in split.train.without:
            free[hole.rows(ts)] = False
        for group in split.tested:
            reads = slice(max(rows[group].start - BURN_IN - LOOKBACK + 1, 0), rows[group].stop)
            assert not free[reads].any()
            assert not free[rows[group].stop : rows[group].stop + GAP].any()
        others = [one for number, one in enumerate(rows) if number not in split.tested]
        assert all(free[one].any() for one in others)


def test_too_few_bars_and_nothing_to_learn_from_are_refused():
    with pytest.raises(DataError, match="9 groups must have at least 30 bars each"):
        planned(300, 9, 2)
    with pytest.raises(ConfigError, match="`tested` must be below `groups`"):
        Combinatorial.from_mapping({"groups": 3, "tested": 3})


def holed(bars, **changes):
    """Return a `fit` whose agents state that they saw nothing of the holes."""

    def fit(config, span, seed):
        holes = span.without if isinstance(span, HoledSpan) else ()
        return untrained(
            bars, span, seed, rules=config.backtest.market,
            without=[[hole.start_ms, hole.end_ms] for hole in holes], **changes,
        )  # fmt: skip

    return fit


def test_every_path_is_the_account_of_its_backtests(quick):
    bars = world(260)
    config = settings(folds=1, combinatorial={"groups": 3, "tested": 2}, **BARE)
    trained, steps, announced = {}, [], []

    def fit(config, span, seed):
        trained[span, seed] = holed(bars)(config, span, seed)
        return trained[span, seed]

    result = validate(bars, config, fit=fit, ahead=announced.extend, on_progress=steps.append)
    assert list(trained) == announced
    paths = result.paths
    assert (paths.splits, paths.tested, paths.failed, len(paths.sharpe)) == (3, 2, 0, 2)
    assert [step.what for step in steps[3:]] == [
        f"training split {split}, seed {seed}" for split in range(3) for seed in (0, 1)
    ]
    assert {step.total for step in steps} == {2 + 1 + 6}
    # once more by hand: splits (0, 1), (0, 2), (1, 2), so the second path is 1, 2, 2
    ts = bars.ts.numpy()
    spans = plan_paths(ts, HOUR, config.combinatorial, result.plan)
    seen = bars.between(result.plan.development.start_ms, result.plan.development.end_ms)
    equity = [1.0]
    for group, split in zip(spans.groups, (1, 2, 2), strict=True):
        rules = config.backtest.replace(burn_in=BURN_IN, capital=5_000.0).during(group.traded)
        done = [backtest(trained[spans.splits[split].train, seed], seen, rules) for seed in (0, 1)]
        closed = group.number < 2
        mean = np.mean([growth(one, len(one.returns), closed=closed) for one in done], axis=0)
        equity.extend(equity[-1] * mean[1:])
    returns = np.diff(equity) / np.array(equity[:-1])
    sharpe = returns.mean() / returns.std(ddof=1) * np.sqrt(24 * 365)
    assert paths.bars == len(returns)
    assert paths.sharpe[1] == pytest.approx(sharpe, rel=1e-6)
    assert validation_document(result)["paths"]["sharpe"] == list(paths.sharpe)
    # and they have no vote
    alone = validate(bars, config.replace(combinatorial=None), fit=holed(bars))
    assert alone.paths is None
    assert alone.verdict == result.verdict


def test_the_distribution_by_hand(quick):
    bars = world(260)
    config = settings(folds=1, **BARE)
    pooled = validate(bars, config, fit=fitter(bars)).judgement.pooled
    year = 24 * 365
    flat = replace(pooled, equity=np.ones(5))
    # returns .1, -.1, .1, .1: mean .05, deviation .1, ratio .5 a bar
    up = replace(pooled, equity=np.cumprod([1.0, 1.1, 0.9, 1.1, 1.1]))
    down = replace(pooled, equity=np.cumprod([1.0, 0.9, 1.1, 0.9, 0.9]))
    stated = distribution_of([up, down, up, flat], Combinatorial(), splits=15, failed=1)
    ratio = 0.5 * np.sqrt(year)
    assert stated.sharpe[:3] == pytest.approx((ratio, -ratio, ratio))
    assert stated.sharpe[3] is None
    assert stated.mean == pytest.approx(ratio / 3.0)
    assert stated.deviation == pytest.approx(ratio * np.sqrt(4.0 / 3.0))
    assert stated.losing == 0.5
    assert stated.words.startswith("4 paths through 4 bars, 15 splits: Sharpe ratio -46.80 to 46.8")


def test_an_agent_that_learned_from_a_hole_is_refused(quick):
    bars = world(260)
    config = settings(folds=1, combinatorial={"groups": 3, "tested": 1}, **BARE)
    with pytest.raises(RangeError, match="split 0 must have learned nothing from"):
        validate(bars, config, fit=fitter(bars))


def test_it_is_off_unless_asked_for():
    assert ValidationConfig().combinatorial is None
    assert Combinatorial().model_dump() == {"groups": 6, "tested": 2}
