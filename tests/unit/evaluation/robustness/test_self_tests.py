"""Self-tests: each passes on the real thing, and finds the bug that is planted for it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from stormsail.evaluation.engine.run import backtest, replay
from stormsail.evaluation.robustness.baselines import run_baselines
from stormsail.evaluation.robustness.self_tests import (
    changed_after,
    fees_hurt,
    flipped,
    no_look_ahead,
    noise_stays_noise,
    oracle_return,
    oracle_wins,
    permuted_matters,
)
from stormsail.market.splits import Span
from validation_lab import settings, untrained, world

ROWS = 240


@pytest.fixture(scope="module")
def bars():
    return world(ROWS)


@pytest.fixture(scope="module")
def span(bars):
    return Span(int(bars.ts[140]), int(bars.ts[-1]) + 1)


@pytest.fixture(scope="module")
def agent(bars):
    return untrained(bars, Span(int(bars.ts[0]), int(bars.ts[120])), 0)


@pytest.fixture(scope="module")
def result(agent, bars, span):
    return backtest(agent, bars, settings().backtest.during(span))


def without_fees(weights, panel, config):
    """A ledger that forgets what trading costs."""
    free = {"taker_fee": 0.0, "half_spread": 0.0, "impact": 0.0}
    changes = {f"market.costs.{name}": value for name, value in free.items()}
    return replay(weights, panel, config.replace(**changes))


def generous(weights, panel, config):
    """A ledger that pays a little for every bar in which something is held."""
    tested = replay(weights, panel, config)
    held = np.abs(tested.bars["weight"]) > 0.0
    gift = np.concatenate((np.zeros((1, held.shape[1])), np.cumsum(30.0 * held, axis=0)))
    return replace(tested, sleeves=tested.sleeves + gift)


def forgetful(weights, panel, config):
    """A ledger that trades every decision as if it were the last one."""
    rows = ~np.isnan(weights).all(axis=1)
    same = np.where(rows[:, None], np.nanmax(weights), np.nan)
    return replay(same, panel, config)


def backwards(weights, panel, config):
    """A ledger that takes buying for selling."""
    return replay(-weights, panel, config)


# ------------------------------------------------------------------ oracle


@pytest.fixture(scope="module")
def baselines(bars, result):
    return run_baselines(bars, result.config, like=result)


def test_someone_who_knows_every_bar_wins(bars, result, baselines):
    returns = {name: one.total_return for name, one in baselines.items()}
    returns["clairvoyant"] = oracle_return(baselines["clairvoyant"], bars)
    # no impact, no order steps in these rules: the bound is what the replay earned, to the bit
    assert returns["clairvoyant"] == baselines["clairvoyant"].total_return
    assert oracle_wins(returns, result.total_return).holds is True


def test_an_oracle_that_loses_is_found(bars, result, baselines):
    returns = {name: one.total_return for name, one in baselines.items()}
    returns["clairvoyant"] = oracle_return(baselines["clairvoyant"], bars, ledger=backwards)
    assert returns["clairvoyant"] < -0.2
    tested = oracle_wins(returns, result.total_return)
    assert tested.holds is False
    assert "Knowing every bar earned -" in tested.words


@pytest.mark.parametrize(
    ("returns", "agents", "holds"),
    [
        ({"clairvoyant": 0.5, "flat": 0.0}, 0.4, True),
        ({"clairvoyant": 0.5, "flat": 0.0}, 0.6, False),
        ({"clairvoyant": 0.5, "momentum": 0.6}, 0.4, False),
        ({"clairvoyant": 0.0, "flat": 0.0}, 0.0, True),
        ({"flat": 0.0}, 0.4, None),
    ],
)
def test_the_oracle_must_beat_baselines_and_agents(returns, agents, holds):
    assert oracle_wins(returns, agents).holds is holds


def test_limits_that_the_oracle_does_not_know_do_not_make_it_lose(bars, span):
    rules = settings().backtest.during(span).replace(**{"market.limits.max_turnover": 0.5})
    baselines = run_baselines(bars, rules, names=("clairvoyant",))
    assert baselines["clairvoyant"].total_return < 0.05  # what the limit leaves of it
    assert oracle_return(baselines["clairvoyant"], bars) > 0.3


# ------------------------------------------------------------------ noise


def test_noise_does_not_look_like_skill(bars, result):
    tested = noise_stays_noise(result, bars, seed=0)
    assert tested.holds is True
    assert tested.words == (
        "Of 64 random strategies with the agent's turnover, on returns whose signs were drawn anew "
        "and without costs, 6 look skilled; chance explains up to 10."
    )


def test_a_ledger_that_gives_money_away_is_found(bars, result):
    tested = noise_stays_noise(result, bars, seed=0, ledger=generous)
    assert tested.holds is False
    assert tested.words.endswith("which chance does not explain.")


def skewed(weights, panel, config):
    """A ledger in which 20 accounts of 64 earn a little all the time and the others lose more."""
    tested = replay(weights, panel, config)
    marks, accounts = tested.sleeves.shape
    steps = np.tile([[2.0], [1.0]], (marks, 1))[:marks]  # some spread, or there is no ratio
    path = 1000.0 + np.cumsum(steps, axis=0)
    signs = np.where(np.arange(accounts) < 20, 1.0, -1.0)
    return replace(tested, sleeves=1000.0 + (path - 1000.0) * signs)


def test_a_statistic_that_calls_chance_skill_is_unknown_and_no_reason_to_reject(bars, result):
    tested = noise_stays_noise(result, bars, seed=0, ledger=skewed)
    assert tested.holds is None
    assert tested.words == (
        "Of 64 random strategies with the agent's turnover, on returns whose signs were drawn anew "
        "and without costs, 20 look skilled; chance explains up to 10. So few bars with moves so "
        "large make the Sharpe ratio's own error too small."
    )


def test_noise_asks_for_thirty_bars(bars, result):
    short = Span(result.span.start_ms, int(bars.ts[170]) - 1)
    tested = noise_stays_noise(result, bars, seed=0, span=short)
    assert tested.holds is None
    assert tested.words == "29 bars are too few to call anything skill; 30 are needed."


def test_a_market_without_direction_keeps_sizes_and_draws_signs(bars, span):
    world_ = flipped(bars, span, count=64, seed=3)
    close = bars.close[140:].numpy()
    size = np.abs(close[1:] / close[:-1] - 1.0)
    moved = (world_.close[1:] / world_.close[:-1] - 1.0).numpy()
    np.testing.assert_allclose(np.abs(moved), np.repeat(size, 64, axis=1), rtol=0, atol=1e-12)
    up = (moved > 0.0).mean(axis=0)
    assert abs(up.mean() - 0.5) < 0.02  # 6,336 signs: a deviation of 0.006
    assert len({tuple(column) for column in (moved > 0.0).T.tolist()}) == 64
    assert torch.equal(world_.open[1:], world_.close[:-1])


# ------------------------------------------------------------------ permuted decisions


def test_decisions_in_another_order_trade_otherwise(bars, result):
    tested = permuted_matters(result, bars, seed=0)
    assert tested.holds is True
    assert tested.words == (
        "99 decisions were traded in another order, and orders and equity changed."
    )


def test_a_ledger_that_ignores_when_something_was_decided_is_found(bars, result):
    tested = permuted_matters(result, bars, seed=0, ledger=forgetful)
    assert tested.holds is False
    assert tested.words == (
        "99 decisions were traded in another order, but the orders and the equity stayed the same."
    )


def test_an_agent_that_never_changes_its_weight_cannot_be_permuted(bars, span):
    held = np.full(bars.shape, 0.3)
    constant = replay(held, bars, settings().backtest.during(span))
    assert permuted_matters(constant, bars, seed=0).holds is None


# ------------------------------------------------------------------ fees


def test_dearer_trading_leaves_less(bars, result):
    assert fees_hurt(result, bars).holds is True


def test_a_ledger_that_ignores_fees_is_found(bars, result):
    assert fees_hurt(result, bars, ledger=without_fees).holds is False


def test_fees_hurt_where_there_are_none_to_double(bars, result):
    costs = {"market.costs.taker_fee": 0.0, "market.costs.half_spread": 0.0}
    free = replace(result, config=result.config.replace(**costs))
    assert fees_hurt(free, bars).holds is True


def test_without_a_trade_no_fee_can_hurt(bars, span):
    idle = replay(np.zeros(bars.shape), bars, settings().backtest.during(span))
    assert fees_hurt(idle, bars).holds is None


# ------------------------------------------------------------------ look-ahead


def test_what_comes_later_changes_no_decision(agent, bars, result):
    tested = no_look_ahead(agent, result, bars)
    assert tested.holds is True
    assert tested.words == (
        "Everything after decision 24, 49, 74 was changed; no decision changed."
    )


def peeking(agent, panel, config):
    """An agent that is shown each bar one bar early."""
    early = {
        name: torch.cat((getattr(panel, name)[1:], getattr(panel, name)[-1:]))
        for name in ("open", "high", "low", "close", "volume")
    }
    return backtest(agent, replace(panel, **early), config)


def test_an_agent_that_looks_one_bar_ahead_is_found(agent, bars, span):
    result = peeking(agent, bars, settings().backtest.during(span))
    tested = no_look_ahead(agent, result, bars, decide=peeking)
    assert tested.holds is False
    assert tested.words.endswith("; decisions up to 24, 49, 74 changed with it.")


def test_the_past_of_a_changed_panel_is_untouched(bars):
    changed = changed_after(bars, 100)
    assert torch.equal(changed.close[:101], bars.close[:101])
    assert torch.equal(changed.close[101:], 1.5 * bars.close[101:].flip(0))
    assert torch.equal(changed.volume[101:], 2.0 * bars.volume[101:].flip(0))
    assert torch.equal(changed.ts, bars.ts)
