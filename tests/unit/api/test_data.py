"""`ss.load_bars` takes a store, files and frames; `ss.make_market` makes a vector environment."""

import numpy as np
import pyarrow.csv as pc
import pytest
import torch

import stormsail as ss
from stormsail.core.errors import ArgumentError, ConfigError, DataError
from stormsail.market import Interval, Store, load_panel

HOUR = Interval.parse("1h")


def test_a_store_gives_its_panel(market):
    store = Store(market / "store")
    symbols = [symbol for symbol, _ in store.contents()]
    wanted = load_panel(store, symbols, HOUR)
    for source in (market / "store", str(market / "store"), store, wanted):
        panel = ss.load_bars(source)
        assert panel.digest() == wanted.digest()
    one = ss.load_bars(store, symbols=symbols[1], interval="1h")
    assert one.symbols == (symbols[1],)
    assert torch.equal(one.close[:, 0], wanted.close[:, 1])


def test_files_and_frames_give_the_bars_of_the_store(market, tmp_path):
    store = Store(market / "store")
    symbol = store.contents()[0][0]
    bars = store.read(symbol, HOUR)
    wanted = ss.Panel.from_bars([bars])
    pc.write_csv(bars.table, tmp_path / "prices.csv")
    by_file = ss.load_bars(tmp_path / "prices.csv", symbols=symbol, interval="1h")
    by_list = ss.load_bars([str(tmp_path / "prices.csv")], symbols=[symbol], interval=HOUR)
    by_frame = ss.load_bars(bars.table, symbols=symbol, interval="1h")
    for panel in (by_file, by_list, by_frame):
        assert (panel.symbols, panel.interval) == ((symbol,), HOUR)
        assert torch.equal(panel.ts, wanted.ts)
        assert torch.equal(panel.close, wanted.close)


@pytest.mark.refusal
def test_bars_that_are_not_there_or_not_certain_are_refused(market, tmp_path):
    store = Store(tmp_path / "two")
    for symbol, interval in Store(market / "store").contents():
        bars = Store(market / "store").read(symbol, interval)
        store.write(bars)
        store.write(ss.Bars(symbol, Interval.parse("30m"), bars.table))
    with pytest.raises(ArgumentError, match="several lengths or none; found 30m, 1h"):
        ss.load_bars(store.root)
    assert ss.load_bars(store.root, interval="30m").interval == Interval.parse("30m")
    with pytest.raises(DataError, match="must hold bars of 4h"):
        ss.load_bars(store.root, interval="4h")
    with pytest.raises(ArgumentError, match="no bars of these symbols"):
        ss.load_bars(store.root, symbols="NO/SUCH")
    with pytest.raises(ArgumentError, match="a frame must come with its symbol and its interval"):
        ss.load_bars(bars.table)
    renamed = bars.table.rename_columns(["when", *bars.table.column_names[1:]])
    with pytest.raises(DataError, match="rename or convert the columns first"):
        ss.load_bars(renamed, symbols="AAA/USDT", interval="30m")
    with pytest.raises(DataError):
        ss.load_bars(tmp_path / "nowhere.csv")


def test_a_market_is_a_vector_environment_with_the_rules_that_it_is_given(market):
    panel = ss.load_bars(market / "store")
    env = ss.make_market(panel, num_envs=3, config={"episode_bars": 5, "costs.taker_fee": 0.0})
    assert (env.num_envs, env.config.episode_bars, env.config.costs.taker_fee) == (3, 5, 0.0)
    observation, _ = env.reset(seed=1)
    assert observation.shape == (3, len(env.observation_names))
    for step in range(5):
        *_, truncated, _ = env.step(env.action_space.sample())
        assert truncated.tolist() == [step == 4] * 3
    same = ss.make_market(market / "store", num_envs=3, config=env.config)
    np.testing.assert_array_equal(same.reset(seed=1)[0], observation)


def test_the_market_of_an_agent_shows_what_it_was_trained_on(market):
    agent = ss.Agent.load(market / "runs" / "run")
    env = ss.make_market(market / "store", num_envs=2, agent=agent)
    assert env.observation_names == agent.spec.observation_names
    assert env.config.episode_bars == 12
    saved = agent.binding.values["scaler"]
    np.testing.assert_array_equal(env.scaler.centre.numpy(), np.asarray(saved["centre"]))
    observation, _ = env.reset(seed=0)
    decision = agent.decide(observation)
    observation, *_ = env.step(decision.action)
    assert agent.decide(observation, decision.memory).action.shape == (2,)


@pytest.mark.refusal
def test_a_market_that_contradicts_itself_is_refused(market):
    agent = ss.Agent.load(market / "runs" / "run")
    with pytest.raises(ArgumentError, match="found no bars"):
        ss.make_market(agent=agent)
    with pytest.raises(ArgumentError, match="found rules beside the agent"):
        ss.make_market(market / "store", agent=agent, config={"episode_bars": 5})
    with pytest.raises(ConfigError, match="episode_bars"):
        ss.make_market(config={"episode_bar": 5})


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("make", "code", "words"),
    [
        (lambda: ss.load_bars([]), "data-missing", "`source` must hold bars; found an empty list"),
        (lambda: ss.make_market(num_envs=1.5), "out-of-range", "a whole number of at least 1"),
        (lambda: ss.make_market(num_envs=0), "out-of-range", "found 0"),
        (lambda: ss.make_market(num_envs=10**12), "out-of-memory", "`num_envs` 1,000,000,000,000"),
        (lambda: ss.make_market(config=3), "config-value", "found a value of the type int"),
    ],
    ids=["no source", "half an account", "no account", "accounts beyond memory", "rules"],
)
def test_bars_and_markets_that_cannot_be_are_refused_in_words(make, code, words):
    with pytest.raises(ss.StormsailError) as caught:
        make()
    assert caught.value.code == code
    assert words in str(caught.value)
