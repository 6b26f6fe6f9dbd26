"""Backtests that run in one batch: each is as if it were alone, and as the simulator has it.

Equal means equal to the last bit throughout.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from backtest_lab import LEVELS, agent_for, panel, plain, rules, simulated
from stormsail.evaluation.engine.result import FLAGS, MONEY
from stormsail.evaluation.engine.run import (
    BacktestRequest,
    ReplayRequest,
    backtest,
    replay,
    run_batch,
)
from stormsail.evaluation.robustness.baselines import random_weights
from stormsail.evaluation.robustness.costs import all_in
from stormsail.market.features import FeatureSet
from stormsail.market.simulator.config import Costs

COSTS = tuple(all_in(cost, Costs()) for cost in (0.0, 3.0, 40.0))


def same(first, other):
    """Assert that two backtests are one."""
    assert first.order_hash == other.order_hash
    assert first.trades == other.trades
    assert (first.config, first.market, dict(first.notes)) == (
        other.config,
        other.market,
        dict(other.notes),
    )
    for mine, yours in ((first.bars, other.bars), (first.flags, other.flags)):
        assert list(mine) == list(yours)
        for name, column in mine.items():
            assert column.tobytes() == yours[name].tobytes(), name
    for name in (
        "ts",
        "equity",
        "sleeves",
        "reasons",
        "value",
        "distribution",
        "distribution_support",
    ):
        mine, yours = getattr(first, name), getattr(other, name)
        assert (mine is None) == (yours is None)
        assert mine is None or mine.tobytes() == yours.tobytes(), name


@pytest.mark.parametrize(
    ("market", "config", "happens"),
    [
        ({}, {}, (False, False)),
        ({"stops__drawdown": 0.03}, {}, (True, False)),
        ({"limits__max_leverage": 9.0, "levels": (-9.0, 0.0, 9.0)}, {"filters": {}}, (True, True)),
        (
            {"limits__max_turnover": 0.4, "limits__max_daily_loss": 0.01, "funding": True},
            {},
            (False, False),
        ),
        ({"min_rebalance": 0.2, "costs__impact": 0.5}, {"pool_bars": 7}, (True, False)),
    ],
)
def test_a_backtest_does_what_the_simulator_does_in_every_bar(market, config, happens):
    own = rules(**market)
    bars = panel(160, calm=False)
    weights = random_weights(bars, own.levels, turnover=0.5, seed=4)
    result = replay(weights, bars, plain(market=own.model_dump(), **config))
    steps = list(simulated(result, bars))
    assert len(steps) == len(result.returns) == 159
    for name in MONEY:
        column = np.stack([getattr(step.info, name).numpy() for step in steps])
        assert column.tobytes() == result.bars[name].tobytes(), name
    for name in FLAGS:
        column = np.stack([getattr(step.info, name).numpy() for step in steps])
        assert column.tolist() == result.flags[name].tolist(), name
    reasons = np.stack([step.info.reason.numpy() for step in steps])
    assert reasons.tolist() == result.reasons.tolist()
    ended = np.stack([step.terminated.numpy() for step in steps])
    before = np.concatenate((np.zeros((1, 3), bool), np.maximum.accumulate(ended)[:-1]))
    assert result.flags["stopped"].tolist() == before.tolist()
    assert (result.flags["stopped"].any(), result.flags["liquidated"].any()) == happens


def several(bars, other):
    """Return requests of every kind: agents and weights, short and long, under several rules."""
    agent, second = agent_for(bars), agent_for(bars, seed=1, gain=1.0)
    given = random_weights(bars, LEVELS, turnover=0.3, seed=1)
    usual = plain(market=rules().model_dump())
    limited = plain(market=rules(limits__max_turnover=0.4).model_dump())
    stopped = plain(market=rules(stops__drawdown=0.02).model_dump(), capital=900.0)
    return [
        ReplayRequest(given, bars, usual),
        BacktestRequest(agent, bars, plain(delay_bars=2)),
        BacktestRequest(
            agent, bars, plain(degrade={"stale_prob": 0.2, "drop_prob": 0.2}, seed=3), COSTS
        ),
        ReplayRequest(given, bars, usual.replace(pool_bars=5), COSTS),
        BacktestRequest(second, bars, plain(greedy=False, start="2021-01-06T00:00:00Z")),
        ReplayRequest(random_weights(other, LEVELS, turnover=0.3, seed=2), other, usual),
        ReplayRequest(given, bars, limited, COSTS[:2]),
        ReplayRequest(given, bars, stopped),
        BacktestRequest(agent, bars, stopped.replace(end="2021-01-08T00:00:00Z")),
    ]


def test_other_requests_of_a_batch_change_no_bit():
    bars, other = panel(120), panel(200, seed=5, symbols=2)
    requests = several(bars, other)
    together = run_batch(requests)
    assert [len(results) for results in together] == [1, 1, 3, 3, 1, 1, 2, 1, 1]
    for request, results in zip(requests, together, strict=True):
        for shared, alone in zip(results, run_batch([request])[0], strict=True):
            same(shared, alone)
    same(together[0][0], replay(requests[0].weights, bars, requests[0].config))
    same(together[1][0], backtest(requests[1].agent, bars, requests[1].config))
    lengths = {len(results[0].returns) for results in together}
    assert len(lengths) == 5  # so that scenarios ended at different bars


def test_the_end_alone_is_the_end_of_the_whole():
    bars = panel(200)
    given = random_weights(bars, LEVELS, turnover=0.3, seed=1)
    whole = ReplayRequest(given, bars, plain(market=rules().model_dump()), COSTS)
    for result, end in zip(*run_batch([whole, replace(whole, whole=False)]), strict=True):
        assert end.total_return == result.total_return
        assert end.sleeves.tolist() == result.sleeves[[0, -1]].tolist()
        assert end.ts.tolist() == result.ts[[0, -1]].tolist()
        assert end.span == result.span
        assert end.bars["weight"].tolist() == result.bars["weight"][-1:].tolist()
        assert (end.trades, len(end.round_trips)) == ((), 0)


def test_features_are_computed_once_for_all_requests_over_the_same_bars(monkeypatch):
    bars = panel(80)
    agent = agent_for(bars)
    computed = []
    compute = FeatureSet.compute

    def counted(self, source):
        computed.append(self.names)
        return compute(self, source)

    monkeypatch.setattr(FeatureSet, "compute", counted)
    run_batch([BacktestRequest(agent, bars, plain(delay_bars=late)) for late in range(4)])
    assert len(computed) == 1


@pytest.mark.spec("M38")
def test_features_of_one_panel_are_not_those_of_another():
    """Two panels of one shape and one agent in one batch: each has the decisions it has alone."""
    first, second = panel(80), panel(80, seed=5)
    agent = agent_for(first)
    requests = [BacktestRequest(agent, bars, plain()) for bars in (first, second)]
    together = run_batch(requests)
    for request, (shared,) in zip(requests, together, strict=True):
        same(shared, run_batch([request])[0][0])
    assert together[0][0].order_hash != together[1][0].order_hash


def test_a_weight_that_is_not_on_offer_is_held():
    bars = panel(40)
    weights = torch.full(bars.shape, torch.nan, dtype=torch.float64)
    weights[0] = 0.5
    result = replay(weights, bars, plain(market=rules().model_dump()))
    assert len(result.trades) == 3
    assert np.isnan(result.weights[1:]).all()
