"""A backtest decides by the policy that the agent was judged by, unless it is told otherwise."""

import pytest

from backtest_lab import agent_for, panel, plain
from stormsail.core.files.artifact import read_artifact
from stormsail.evaluation import write_backtest
from stormsail.evaluation.engine.files import summary_of
from stormsail.evaluation.engine.run import agent_digest, backtest, backtests
from stormsail.evaluation.robustness.costs import cost_sweep
from stormsail.evaluation.robustness.stress import stress
from stormsail.market.simulator.config import Costs
from stormsail.modules import Agent

COSTS = (Costs(taker_fee=0.0), Costs(taker_fee=0.001), Costs(taker_fee=0.002))


def agents(bars):
    """Return the same weights judged by either policy; actions are nearly equally likely."""
    greedy, sampled = (agent_for(bars, gain=1.0) for _ in range(2))
    sampled.judged_policy = "sampled"
    return greedy, sampled


def test_the_default_follows_the_agent_and_the_result_says_what_it_was(tmp_path):
    bars = panel(90)
    greedy, sampled = agents(bars)
    likeliest, drawn = (backtest(agent, bars, plain()) for agent in (greedy, sampled))
    assert plain().greedy is None
    assert (likeliest.config.greedy, drawn.config.greedy) == (True, False)
    assert likeliest.order_hash == backtest(sampled, bars, plain(greedy=True)).order_hash
    assert drawn.order_hash == backtest(greedy, bars, plain(greedy=False)).order_hash
    assert likeliest.order_hash != drawn.order_hash
    assert (summary_of(likeliest)["policy"], summary_of(drawn)["policy"]) == ("greedy", "sampled")
    write_backtest(tmp_path / "drawn", drawn)
    saved = read_artifact(tmp_path / "drawn").documents["summary"]
    assert (saved["policy"], saved["settings"]["greedy"]) == ("sampled", False)


def test_the_default_follows_the_file_of_the_agent(tmp_path):
    bars = panel(90)
    _, sampled = agents(bars)
    sampled.save(tmp_path / "agent")
    loaded = Agent.load(tmp_path / "agent")
    first, again = (backtest(agent, bars, plain(seed=4)) for agent in (sampled, loaded))
    assert (first.config.policy, first.order_hash) == ("sampled", again.order_hash)
    assert first.order_hash != backtest(loaded, bars, plain(seed=5)).order_hash
    assert agent_digest(loaded) == agent_digest(sampled)


def test_a_greedy_backtest_has_the_hash_that_it_had_when_greedy_was_the_default():
    bars = panel(60)
    greedy, _ = agents(bars)
    named = backtest(greedy, bars, plain(greedy=True))
    assert backtest(greedy, bars, plain()).notes == named.notes


@pytest.mark.parametrize("policy", ["greedy", "sampled"])
def test_other_cost_settings_beside_it_change_no_draw(policy):
    """Each cost has the draws that it has alone: what differs is due to the costs."""
    bars = panel(90)
    agent = agents(bars)[policy == "sampled"]
    together = backtests(agent, bars, plain(seed=3), costs=COSTS)
    for costs, result in zip(COSTS, together, strict=True):
        (alone,) = backtests(agent, bars, plain(seed=3), costs=(costs,))
        assert alone.order_hash == result.order_hash
        assert alone.equity.tolist() == result.equity.tolist()
    free, _, dear = together
    if policy == "sampled":  # what is decided depends little on the account here
        assert (free.bars["decided"] == dear.bars["decided"]).mean() > 0.9


def test_stress_and_costs_use_the_judged_policy():
    bars = panel(200)
    _, sampled = agents(bars)
    result = backtest(sampled, bars, plain(seed=2))
    policies = {run.config.policy for run in stress(sampled, bars, plain(seed=2)).values()}
    assert policies == {"sampled"}
    swept = cost_sweep(result, bars, agent=sampled, mode="decide")
    assert {run.config.policy for run in swept.values()} == {"sampled"}


def test_weights_that_are_known_have_no_policy():
    assert plain().policy is None
    assert plain(greedy=True).policy == "greedy"
    assert plain(greedy=False).policy == "sampled"
    assert plain().for_policy("sampled").greedy is False
    assert plain(greedy=True).for_policy("sampled").greedy is True
