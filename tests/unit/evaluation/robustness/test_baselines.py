"""Baselines of an agent: their weights by hand, no look ahead, and the same ledger."""

import itertools
import math

import numpy as np
import pytest
import torch

from backtest_lab import LEVELS, agent_for, panel, plain, rules
from simulator_lab import market, steady
from stormsail.core.errors import ChoiceError, RangeError
from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.evaluation.engine.run import backtest, replay, rows_of
from stormsail.evaluation.robustness.baselines import (
    BASELINES,
    clairvoyant_weights,
    equal_weights,
    flat_weights,
    hindsight,
    hold_weights,
    momentum_weights,
    random_weights,
    run_baselines,
    volatility_weights,
)
from stormsail.market import MarketConfig

NAN = math.nan
CAUSAL = {
    "flat": flat_weights,
    "hold": hold_weights,
    "equal": equal_weights,
    "momentum": lambda bars: momentum_weights(bars, lookback=5),
    "volatility": lambda bars: volatility_weights(bars, target=0.3, window=6, every=3),
    "random": lambda bars: random_weights(bars, LEVELS, turnover=0.2, seed=1),
}


def numbers(weights):
    return [None if math.isnan(one) else round(one, 12) for one in weights[:, 0].tolist()]


def free(**changes):
    rules = MarketConfig().replace(
        **{"costs.taker_fee": 0.0, "costs.half_spread": 0.0, "costs.impact": 0.0}
    )
    return BacktestConfig.from_mapping({"market": rules.model_dump(), "burn_in": 0, **changes})


def test_momentum_asks_when_the_sign_turns():
    bars = market(steady([100, 101, 102, 103, 101, 100, 104.0]))
    # returns over 2 bars from row 2 on: +, +, -, -, +
    assert numbers(momentum_weights(bars, lookback=2)) == [0, None, 1, None, -1, None, 1]
    assert numbers(momentum_weights(bars, lookback=2, short=False)) == [
        0, None, 1, None, 0, None, 1,
    ]  # fmt: skip


def test_momentum_asks_again_after_a_bar_that_was_not_there():
    bars = market(steady([100, 101, 102, 103, 104, 105.0]), closed=(4,))
    assert numbers(momentum_weights(bars, lookback=2)) == [0, None, 1, None, 1, None]


def test_the_volatility_target_is_worked_out_by_hand():
    growth = [0.01, -0.02, 0.02, 0.01]
    prices = 100.0 * np.exp(np.cumsum([0.0, *growth]))
    bars = market(steady(prices.tolist()))
    weights = volatility_weights(bars, target=0.3, window=2, every=1)
    year = 24 * 365
    wanted = [
        min(1.0, 0.3 / math.sqrt(year * (a * a + b * b) / 2.0))
        for a, b in itertools.pairwise(growth)
    ]
    assert weights[:, 0].tolist() == pytest.approx([0.0, 0.0, *wanted])
    assert wanted[0] == pytest.approx(0.3 / (math.sqrt(8760) * math.sqrt(0.00025)))
    assert volatility_weights(bars, target=9.0, window=2, every=1)[-1, 0] == 1.0
    still = volatility_weights(market(steady([5.0] * 4)), target=0.3, window=2, every=1)
    assert numbers(still) == [0, 0, 1, 1]


def test_the_volatility_target_is_asked_for_at_fixed_times():
    bars = panel(40)
    every = volatility_weights(bars, target=0.3, window=3, every=4)
    asked = (~every[:, 0].isnan()).nonzero()[:, 0].tolist()
    assert asked == list(range(0, 40, 4))  # the panel begins at midnight
    whole = volatility_weights(bars, target=0.3, window=3, every=1)
    assert every[asked].tolist() == whole[asked].tolist()


@pytest.mark.parametrize("name", CAUSAL)
def test_no_baseline_looks_ahead(name):
    bars, other = panel(80), panel(80)
    cut = 50
    for column in ("open", "high", "low", "close", "volume"):
        getattr(other, column)[cut:] *= 1.7
    other.tradable[cut:] = False
    before, after = (CAUSAL[name](one)[:cut].numpy() for one in (bars, other))
    assert before.tobytes() == after.tobytes()


def test_the_clairvoyant_does_look_ahead():
    bars, other = panel(60, symbols=1), panel(60, symbols=1)
    for column in ("open", "high", "low", "close"):
        getattr(other, column)[31:] *= 0.5
    own = rules()
    first, changed = (clairvoyant_weights(one, own, LEVELS, rows=(0, 59)) for one in (bars, other))
    assert float(changed[29, 0]) == -1.0  # sold at the open of row 30, held through the gap
    assert float(first[29, 0]) == 1.0


def test_random_weights_have_the_turnover_that_was_asked_for():
    bars = panel(1_500)
    weights = random_weights(bars, LEVELS, turnover=0.3, seed=3)
    traded = replay(weights, bars, free())
    assert traded.bars["turnover"].mean() == pytest.approx(0.3, rel=0.06)
    shares = [float((weights == level).double().mean()) for level in LEVELS]
    assert max(shares) / min(shares) < 1.35
    rare = random_weights(bars, LEVELS, turnover=0.02, seed=3)
    # five levels lie 0.94 apart on average, so 2 in 94 bars bring a change
    assert float((~rare.isnan()).double().mean()) == pytest.approx(0.02 / 0.94, rel=0.15)
    again = random_weights(bars, LEVELS, turnover=0.3, seed=3)
    assert np.array_equal(weights, again, equal_nan=True)
    other = random_weights(bars, LEVELS, turnover=0.3, seed=4)
    assert not np.array_equal(weights, other, equal_nan=True)


def test_buy_and_hold_earns_the_price_and_trades_once():
    bars = market(steady([100.0, 100.0, 130.0, 120.0]))
    traded = run_baselines(bars, free(), names=["flat", "buy and hold"])
    assert traded["flat"].equity.tolist() == [10_000.0] * 4
    assert traded["flat"].trades == ()
    assert traded["buy and hold"].total_return == pytest.approx(0.2)
    assert len(traded["buy and hold"].trades) == 1


def test_buy_and_hold_does_not_chase_funding_and_buys_when_it_can():
    bars = market(steady([100.0] * 30), funding={8: -0.01, 16: -0.01}, closed=(1, 2))
    traded = run_baselines(bars, free(filters={"lot": 0.01}), names=["buy and hold"])
    trades = traded["buy and hold"].trades
    assert [one.ts_ms for one in trades] == [int(bars.ts[3])]  # rows 1 and 2 are not there
    assert traded["buy and hold"].equity[-1] == pytest.approx(10_200.0)


def test_equal_weight_is_brought_back_to_equal_shares_each_day():
    rows = 60
    rising = [100.0] * 24 + [200.0] * (rows - 24)
    again = [100.0] * 48 + [200.0] * (rows - 48)
    bars = market({"AAA/USDT:USDT": steady(rising), "BBB/USDT:USDT": steady(again)})
    traded = run_baselines(bars, free(), names=["buy and hold", "equal weight"])
    # 20,000: the first doubles, 30,000; equal again, then the second doubles
    assert traded["equal weight"].equity[-1] == pytest.approx(30_000.0 * 1.5)
    assert traded["buy and hold"].equity[-1] == pytest.approx(40_000.0)


def test_no_baseline_and_no_agent_beats_the_clairvoyant():
    bars = panel(300)
    agent = agent_for(bars)
    result = backtest(agent, bars, plain())
    baselines = run_baselines(bars, plain(), like=result)
    assert list(baselines) == list(BASELINES)
    bound = result.market.replace(action="levels", levels=LEVELS)
    first, last = rows_of(bars, result.config.during(result.span), lookback=1, burn_in=0)
    best = hindsight(bars, bound, LEVELS, rows=(first, last))
    sleeves = baselines["clairvoyant"].sleeves
    growth = np.log(sleeves[-1] / sleeves[0])
    assert (growth <= best.log_growth + 1e-12).all()
    # lots, ticks and what they round away are all that is missing
    np.testing.assert_allclose(growth, best.log_growth, rtol=0.02)
    for name, baseline in {**baselines, "agent": result}.items():
        assert baseline.ts.tolist() == result.ts.tolist()
        own = np.log(baseline.sleeves[-1] / baseline.sleeves[0])
        if name != "equal weight":  # its accounts get cash from one another
            assert (own <= best.log_growth + 1e-12).all(), name


def test_a_baseline_that_is_late_for_the_agent_is_in_time_itself():
    bars = panel(80)
    late = backtest(agent_for(bars), bars, plain(delay_bars=3))
    traded = run_baselines(bars, plain(), like=late, names=["buy and hold"])["buy and hold"]
    assert traded.trades[0].ts_ms == late.ts[0]


@pytest.mark.refusal
def test_an_unknown_baseline_and_windows_below_one_are_refused():
    bars = panel(30)
    with pytest.raises(ChoiceError, match="Did you mean `momentum`"):
        run_baselines(bars, free(), names=["momentun"])
    with pytest.raises(RangeError, match="`lookback` must be at least 1; found 0"):
        momentum_weights(bars, lookback=0)
    with pytest.raises(RangeError, match="at least two different weights"):
        random_weights(bars, [1.0, 1.0], turnover=0.1, seed=0)


def test_weights_are_float64_of_the_panels_shape():
    bars = panel(30)
    for make in CAUSAL.values():
        weights = make(bars)
        assert weights.dtype == torch.float64
        assert tuple(weights.shape) == bars.shape
