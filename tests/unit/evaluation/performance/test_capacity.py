"""The capacity curve: the same decisions, other capital, the simulator's own rules."""

import numpy as np
import pytest
import torch

from simulator_lab import market, settings, steady
from stormsail.core.errors import RangeError
from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.evaluation.engine.run import replay
from stormsail.evaluation.performance.capacity import capacity_curve, capacity_requests
from stormsail.evaluation.performance.document import performance_of

RISING = 100.0 * 1.002 ** np.arange(120)


def traded(rules, *, volume=1_000.0, **changes):
    bars = market(steady(RISING), volume=volume)
    weights = np.full((120, 1), np.nan)
    weights[::10] = 1.0
    weights[5::10] = 0.0
    given = {"market": rules.model_dump(), "capital": 1_000.0, **changes}
    config = BacktestConfig.from_mapping(given)
    return replay(torch.tensor(weights), bars, config), bars


def test_the_backtests_own_size_repeats_it_order_for_order():
    result, bars = traded(settings(costs__impact=0.05), delay_bars=2)
    request = capacity_requests(result, bars, factors=(1.0,))[0]
    again = replay(request.weights, bars, request.config)
    assert again.order_hash == result.order_hash
    assert capacity_curve(result, bars, factors=(1.0,))[0].total_return == result.total_return


def test_without_impact_every_size_earns_the_same_share():
    result, bars = traded(settings(costs__taker_fee=0.001))
    points = capacity_curve(result, bars)
    assert [point.capital for point in points] == pytest.approx([100.0, 1e3, 1e4, 1e5, 1e6])
    for point in points:
        assert point.total_return == pytest.approx(result.total_return, rel=1e-9)
        assert point.gain == pytest.approx(point.capital * result.total_return, rel=1e-9)
        assert point.impact == 0.0


def test_impact_takes_with_the_square_root_of_the_size():
    result, bars = traded(settings(costs__impact=0.01), volume=1_000.0)
    small, large = capacity_curve(result, bars, factors=(1e-3, 4e-3))
    # so small that orders hardly differ: a share of equity that grows by the root of 4
    assert large.impact / large.capital == pytest.approx(
        2.0 * small.impact / small.capital, rel=0.01
    )
    returns = [point.total_return for point in capacity_curve(result, bars)]
    assert returns == sorted(returns, reverse=True)
    assert returns[0] > 0.0 > returns[-1]


def test_a_size_must_be_positive():
    result, bars = traded(settings())
    with pytest.raises(RangeError, match="greater than 0"):
        capacity_curve(result, bars, factors=(0.0,))


def test_the_document_holds_everything():
    result, bars = traded(settings(costs__impact=0.01, costs__taker_fee=0.001))
    measured = performance_of(result, bars)
    document = measured.document()
    assert document["impact"] == 0.01
    assert len(document["capacity"]) == 5
    assert document["capacity"][1]["total_return"] == pytest.approx(result.total_return)
    rows = {row["item"]: row["both"] for row in document["attribution"]["costs"]}
    assert list(rows) == ["gross", "fees", "impact", "net"]
    assert rows["net"] == pytest.approx(result.equity[-1] - 1_000.0, abs=1e-9)
    assert document["folds"] == []
    assert [row["regime"] for row in document["regimes"] if row["kind"] == "trend"] == ["rising"]
    assert performance_of(result, bars, capacity=False).capacity == ()
