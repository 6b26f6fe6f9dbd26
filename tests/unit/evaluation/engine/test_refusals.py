"""What a backtest refuses: another market than the agent's, and spans that hold too little."""

import pytest
import torch

from backtest_lab import agent_for, panel, plain, rules
from simulator_lab import market, steady
from stormsail.core.errors import ArtifactError, ConfigError, DataError, RangeError, ShapeError
from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.evaluation.engine.run import backtest, replay
from stormsail.market.panel import Panel
from stormsail.modules.agent import Agent, Binding


def refused(kind, agent, bars, config):
    with pytest.raises(kind) as caught:
        backtest(agent, bars, config)
    return str(caught.value)


def rebound(agent, **changes):
    """Return the agent with another binding; None leaves an entry out."""
    values = {**agent.binding.values, **changes}
    agent.binding = Binding({name: value for name, value in values.items() if value is not None})
    return agent


def hourly(*, interval="1h", symbols=1, rows=60):
    bars = {f"{letter * 3}/USDT:USDT": steady(range(100, 100 + rows)) for letter in "ABC"[:symbols]}
    return market(bars, interval=interval)


@pytest.mark.refusal
def test_bars_of_another_length_are_refused_by_name():
    message = refused(ConfigError, agent_for(panel(40)), hourly(interval="4h"), plain())
    assert message == (
        "`interval` must be what the agent was trained for, 1h; found 4h. Use the data and costs "
        "of its training, or train another agent. [config-inconsistent]"
    )


@pytest.mark.refusal
def test_other_features_are_refused_by_name():
    bars = panel(40)
    changed = [{"name": "log_return", "parameters": {"horizon": 2}}]
    message = refused(DataError, rebound(agent_for(bars), features=changed), bars, plain())
    assert message.startswith("`features[0].label` of the features must be ")
    assert message.endswith("[feature-schema]")
    message = refused(ConfigError, rebound(agent_for(bars), feature_schema="0" * 64), bars, plain())
    assert message.startswith(
        f"`feature_schema` must be what the agent was trained for, {'0' * 64}"
    )
    own = rules().replace(features=[{"name": "log_return"}])
    message = refused(ConfigError, agent_for(bars), bars, plain(market=own.model_dump()))
    assert message == (
        "`market.features` must be those of the agent's training; found log_return. Leave the "
        "setting out: the agent brings its own features. [config-inconsistent]"
    )


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"costs__taker_fee": 0.001}, "costs"),
        ({"episode_bars": 17}, "episode_bars"),
        ({"levels": (-1.0, 0.0, 1.0)}, "levels"),
        ({"action": "continuous"}, "action"),
        ({"weight_range": (-0.5, 0.5)}, "weight_range"),
    ],
)
def test_other_costs_horizons_and_actions_are_refused_by_name(change, name):
    bars = panel(40)
    config = plain(market=rules(**change).model_dump())
    message = refused(ConfigError, agent_for(bars), bars, config)
    assert message.startswith(f"`{name}` must be what the agent was trained for, ")


def test_other_costs_and_horizons_pass_where_they_are_allowed():
    bars = panel(60)
    agent = agent_for(bars)
    dear = rules(costs__taker_fee=0.01, episode_bars=20).model_dump()
    result = backtest(agent, bars, plain(market=dear, allow=("costs", "episode_bars")))
    assert result.market.costs.taker_fee == 0.01
    assert result.equity[-1] < backtest(agent, bars, plain()).equity[-1]


@pytest.mark.refusal
def test_only_costs_and_horizon_can_be_allowed():
    with pytest.raises(ConfigError, match="allow"):
        BacktestConfig(allow=("levels",))


def test_other_symbols_are_allowed_and_marked():
    bars = panel(60, symbols=2)
    agent = agent_for(bars, symbols=("AAA/USDT:USDT", "ZZZ/USDT:USDT"))
    result = backtest(agent, bars, plain())
    assert result.notes["unseen_symbols"] == ["BBB/USDT:USDT"]
    assert backtest(agent_for(bars), bars, plain()).notes["unseen_symbols"] == []


def test_a_span_after_training_is_not_marked_as_seen():
    bars = panel(80)
    agent = agent_for(bars)  # trained on the first 40 bars
    inside = backtest(agent, bars, plain(end="2021-01-05T14:00:00Z"))
    after = backtest(agent, bars, plain(start="2021-01-05T16:00:00Z"))
    assert inside.notes["overlaps_training"] is True
    assert after.notes["overlaps_training"] is False
    assert inside.notes["overlaps_validation"] is False
    assert after.notes["overlaps_validation"] is True  # the last 20 bars chose it
    silent = rebound(agent, validation_span=None)
    assert "overlaps_validation" not in backtest(silent, bars, plain()).notes


@pytest.mark.refusal
@pytest.mark.parametrize("name", ["market", "features", "scaler", "symbols", "train_span"])
def test_an_agent_that_does_not_say_what_it_was_trained_for_is_refused(name):
    bars = panel(40)
    message = refused(ArtifactError, rebound(agent_for(bars), **{name: None}), bars, plain())
    assert message == (
        "the agent's file must say what it was trained for: market, features and scaler; found no "
        f"`{name}`. Train it again with this version of the package. [artifact-document]"
    )


@pytest.mark.refusal
@pytest.mark.parametrize(
    "change",
    [
        {"train_span": [1]},
        {"symbols": "AAA"},
        {"features": ["log_return"]},
        {"train_span": [1, "x"]},
    ],
)
def test_a_binding_that_cannot_be_read_is_refused(change):
    bars = panel(40)
    message = refused(ArtifactError, rebound(agent_for(bars), **change), bars, plain())
    assert "found a binding that cannot be read" in message


@pytest.mark.refusal
def test_an_agent_of_another_task_is_refused():
    agent = rebound(agent_for(panel(40)), task="CartPole-v1")
    message = refused(ConfigError, agent, panel(40), plain())
    assert message.startswith(
        "`task` must be what the agent was trained for, CartPole-v1; found market"
    )


def test_an_agent_keeps_what_it_was_trained_for_in_its_file(tmp_path):
    bars = panel(60)
    agent = agent_for(bars)
    agent.save(tmp_path / "agent")
    result = backtest(Agent.load(tmp_path / "agent"), bars, plain())
    wanted = backtest(agent, bars, plain())
    assert result.order_hash == wanted.order_hash
    assert result.notes == wanted.notes


# ------------------------------------------------------------------ spans


@pytest.mark.refusal
def test_a_span_without_data_is_refused():
    bars = panel(60)
    config = plain(start="2030-01-01T00:00:00Z")
    assert refused(DataError, agent_for(bars), bars, config) == (
        "a backtest must have at least 2 bars, one to decide on and one to fill in; found 0 bars "
        "in the span, and 60 from 2021-01-04T00:00:00Z to 2021-01-06T11:00:00Z in the data, of "
        "which the first 11 only prepare the first decision. Choose a span inside the data, or "
        "bring more of them. [data-span]"
    )
    config = plain(end="2020-01-01T00:00:00Z")
    assert "found 0 bars in the span" in refused(DataError, agent_for(bars), bars, config)


@pytest.mark.refusal
def test_too_little_past_is_refused_with_the_number_needed():
    bars = panel(60)
    config = plain(start="2021-01-04T10:00:00Z")
    assert refused(DataError, agent_for(bars), bars, config) == (
        "each symbol must have 11 bars before the first decision: 5 of burn-in and 6 that features "
        "look back; found 10 of AAA/USDT:USDT before 2021-01-04T10:00:00Z. Start at "
        "2021-01-04T11:00:00Z or later, with a shorter burn-in, or with more data. [data-span]"
    )
    exact = backtest(agent_for(bars), bars, plain(start="2021-01-04T11:00:00Z"))
    assert exact.ts[0] == backtest(agent_for(bars), bars, plain()).ts[0]


@pytest.mark.refusal
def test_a_symbol_that_is_listed_late_is_named():
    bars = panel(60, symbols=2)
    listed = bars.listed.clone()
    listed[:30, 1] = False
    late = Panel(**{**vars(bars), "listed": listed})
    config = plain(start="2021-01-05T00:00:00Z")
    assert "found 0 of BBB/USDT:USDT before 2021-01-05T00:00:00Z" in refused(
        DataError, agent_for(bars), late, config
    )
    result = backtest(agent_for(bars), late, plain())
    assert len(result.returns) == 60 - (30 + 11) - 1


@pytest.mark.refusal
def test_weights_of_another_shape_or_beyond_the_leverage_are_refused():
    bars = hourly(symbols=2)
    config = BacktestConfig()
    with pytest.raises(ShapeError, match=r"weights \(60, 1\) and a panel of \(60, 2\)"):
        replay(torch.zeros(60, 1), bars, config)
    weights = torch.zeros(60, 2)
    weights[7, 1] = -1.5
    with pytest.raises(RangeError, match=r"found -1.5 in decision 7 of column 1"):
        replay(weights, bars, config)


@pytest.mark.refusal
def test_an_agent_never_trades_a_pool():
    bars = panel(40)
    assert refused(ConfigError, agent_for(bars), bars, plain(pool_bars=3)) == (
        "`pool_bars` must be left out for an agent, which sees an account of its own; found 3. Use "
        "it for weights that are known beforehand, with `replay`. [config-inconsistent]"
    )


@pytest.mark.refusal
def test_times_need_a_zone_and_an_order():
    with pytest.raises(ConfigError, match="time zone"):
        BacktestConfig.from_mapping({"start": "2021-01-01T00:00:00"})
    with pytest.raises(ConfigError, match="`start` must be before `end`"):
        plain(start="2021-01-02T00:00:00Z", end="2021-01-01T00:00:00Z")


@pytest.mark.refusal
def test_order_steps_of_a_symbol_that_is_not_traded_are_refused():
    bars = panel(40)
    config = plain(symbol_filters={"ETH/USDT": {"lot": 0.1}})
    assert "`symbol_filters` must name symbols of the panel" in refused(
        DataError, agent_for(bars), bars, config
    )
    trained = rules(symbol_filters={"OLD/USDT": {"lot": 0.1}})
    assert backtest(agent_for(bars, trained), bars, plain()).market.symbol_filters == {}
