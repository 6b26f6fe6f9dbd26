"""Rewards in the simulator: values, memory, alternatives, and what log growth stays."""

import numpy as np
import pytest
import torch

from oracles import rewards as oracle
from simulator_lab import at, draws, market, settings, simulator, steady, wild_panel
from stormsail.core import plugins
from stormsail.core.errors import ArgumentError, ChoiceError, ConfigError, DtypeError
from stormsail.market.rewards import REWARDS, StepRecord, reward
from stormsail.market.simulator.one_account import OneAccount

PRICES = [100.0, 101.0, 99.0, 99.0, 104.0, 96.0, 97.0, 90.0, 95.0, 100.0, 98.0]
SHARPE = {"rate": 0.1, "volatility": 0.02, "least_share": 0.05}


@pytest.fixture(autouse=True)
def _forgets():
    with plugins.scope():
        yield


def walked(name, parameters, *, fee=0.001, steps=9, **changes):
    """Return rewards and equities of an account that is long and flat in turns."""
    config = settings(
        episode_bars=steps,
        costs__taker_fee=fee,
        reward=name,
        reward_parameters=parameters,
        **changes,
    )
    sim = simulator(market(steady(PRICES)), config)
    state, rewards, growth = at(sim), [], []
    equity = [state.equity.item()]
    for step in range(steps):
        weight = torch.tensor([1.0 if step % 3 else -0.5], dtype=torch.float64)
        state, result = sim.transition(state, weight, draws(sim))
        rewards.append(result.reward.item())
        growth.append(result.info.reward_raw_fraction.item())
        equity.append(state.equity.item())
    return np.array(rewards), equity, np.array(growth)


def test_the_differential_sharpe_ratio_of_an_account_is_the_oracles():
    found, equity, growth = walked("differential_sharpe", SHARPE)
    assert found == pytest.approx(oracle.differential_sharpe(equity, **SHARPE), rel=1e-9, abs=1e-11)
    assert np.abs(found).max() > 0.5
    # what is reported as growth is money, whatever the reward
    assert growth == pytest.approx(np.diff(np.log(equity)), abs=1e-14)


def test_drawdown_growth_of_an_account_is_the_oracles():
    found, equity, _ = walked("drawdown_growth", {"penalty": 0.7})
    assert found == pytest.approx(oracle.drawdown_growth(equity, penalty=0.7), abs=1e-13)
    plain = np.diff(np.log(equity))
    assert (found < plain - 1e-6).any()


def test_an_account_that_does_not_trade_has_a_reward_of_zero_forever():
    config = settings(episode_bars=9, reward="differential_sharpe", reward_parameters=SHARPE)
    sim = simulator(market(steady(PRICES)), config)
    state = at(sim)
    for _ in range(9):
        state, result = sim.transition(state, torch.zeros(1, dtype=torch.float64), draws(sim))
        assert result.reward.item() == 0.0
    assert state.reward_memory[0, 1].item() == pytest.approx(0.02**2 * 0.9**9, rel=1e-12)


def test_the_clip_applies_to_every_reward():
    found, equity, _ = walked("drawdown_growth", {"penalty": 0.7}, reward_clip=0.02)
    wanted = np.clip(oracle.drawdown_growth(equity, penalty=0.7), -0.02, 0.02)
    assert found == pytest.approx(wanted, abs=1e-13)


def test_the_penalty_of_ruin_is_taken_from_every_reward():
    # 10,000 long at 100, then 50: equity 5,000, counted as the floor of 6,000, less 3 for ruin.
    config = settings(
        episode_bars=3,
        reward="drawdown_growth",
        reward_parameters={"penalty": 0.5},
        ruin_penalty=3.0,
        stops__equity_floor=0.6,
    )
    sim = simulator(market(steady([100.0, 100.0, 50.0, 50.0, 50.0])), config)
    state, whole = at(sim), torch.ones(1, dtype=torch.float64)
    state, _ = sim.transition(state, whole, draws(sim))
    state, step = sim.transition(state, whole, draws(sim))
    assert state.equity.item() == pytest.approx(5_000.0)
    assert step.terminated.item()
    assert step.reward.item() == pytest.approx(1.5 * np.log(0.6) - 3.0, abs=1e-12)
    assert step.info.reward_raw_fraction.item() == pytest.approx(np.log(0.6) - 3.0, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "parameters"), [("differential_sharpe", SHARPE), ("drawdown_growth", {})]
)
def test_alternatives_are_what_each_action_gives_with_the_memory_of_the_account(name, parameters):
    batch = 6
    config = settings(
        episode_bars=7, costs__taker_fee=0.001, reward=name, reward_parameters=parameters
    )
    sim = simulator(wild_panel(3, rows=60, calm=True), config, batch=batch)
    generator = torch.Generator().manual_seed(2)
    state, _ = sim.reset(generator)
    actions = torch.tensor([-1.0, 0.0, 0.4, 1.0], dtype=torch.float64)
    seen = 0
    for _ in range(12):
        outcomes = sim.alternatives(state, actions)
        uniform = sim.draw(generator)
        for k, action in enumerate(actions):
            _, step = sim.transition(state, action.expand(batch).clone(), uniform)
            assert torch.equal(outcomes.reward[:, k], step.reward)
            assert torch.equal(outcomes.terminated[:, k], step.terminated)
        seen += int((outcomes.reward.std(1) > 0).sum())
        chosen = actions[torch.randint(4, (batch,), generator=generator)]
        state, _ = sim.transition(state, chosen, uniform)
    assert seen > 40


def test_the_memory_begins_anew_with_each_episode():
    config = settings(episode_bars=3, reward="differential_sharpe", reward_parameters=SHARPE)
    sim = simulator(wild_panel(3, rows=60, calm=True), config, batch=4)
    generator = torch.Generator().manual_seed(2)
    state, _ = sim.reset(generator)
    first = torch.tensor([0.0, 0.02**2], dtype=torch.float64).expand(4, 2)
    assert torch.equal(state.reward_memory, first)
    for _ in range(3):
        state, _ = sim.transition(state, torch.ones(4, dtype=torch.float64), sim.draw(generator))
    assert state.done.all()
    assert not torch.isclose(state.reward_memory, first).all(1).any()
    state, step = sim.transition(state, torch.ones(4, dtype=torch.float64), sim.draw(generator))
    assert torch.equal(state.reward_memory, first)
    assert step.reward.tolist() == [0.0] * 4


def test_log_growth_remembers_nothing_and_is_the_record_s_growth():
    @reward(name="same_growth")
    def same_growth(record):
        return record.growth

    default, equity, growth = walked("log_growth", {})
    own, again, _ = walked("same_growth", {})
    assert equity == again
    assert default.tolist() == own.tolist() == growth.tolist()
    sim = simulator(market(steady(PRICES)), settings(episode_bars=3))
    assert at(sim).reward_memory.shape == (1, 0)


def test_a_record_says_what_the_ledger_books():
    records = []

    @reward(name="spy")
    def spy(record):
        records.append(record)
        return record.growth

    # 10,000 at 100: long 1 filled at 110 for a fee of 1 %, marked at 121; closes at 121, flat.
    panel = market([*steady([100.0]), (110, 125, 105, 121), *steady([121.0] * 4)])
    config = settings(episode_bars=3, costs__taker_fee=0.01, reward="spy")
    sim = simulator(panel, config)
    records.clear()
    state, _ = sim.transition(at(sim), torch.ones(1, dtype=torch.float64), draws(sim))
    sim.transition(state, torch.zeros(1, dtype=torch.float64), draws(sim))
    bought = 10_000 / (110 * 1.01)
    first, second = ({k: v.item() for k, v in one._asdict().items()} for one in records)
    assert first == {
        "equity_before": 10_000.0, "equity": pytest.approx(bought * 121),
        "growth": pytest.approx(np.log(bought * 121 / 10_000)),
        "peak_before": 10_000.0, "peak": pytest.approx(bought * 121), "initial_equity": 10_000.0,
        "cash": pytest.approx(0.0, abs=1e-9), "quantity_before": 0.0,
        "quantity": pytest.approx(bought), "weight": pytest.approx(1.0), "requested": 1.0,
        "price_before": 100.0, "open": 110.0, "high": 125.0, "low": 105.0, "close": 121.0,
        "traded": pytest.approx(bought), "fee": pytest.approx(bought * 1.1), "slippage": 0.0,
        "funding": 0.0, "turnover": pytest.approx(bought * 110 / 10_000), "bars_in_position": 1,
        "bars_left": 2, "ruined": False,
    }  # fmt: skip
    assert records[1].costs.item() == pytest.approx(bought * 1.21)
    assert records[1].drawdown.item() == pytest.approx(0.01)
    assert (second["quantity"], second["peak"]) == (0.0, pytest.approx(bought * 121))


def test_rewards_see_one_dimension_even_for_alternatives():
    shapes = []

    @reward(name="shapes")
    def look(record):
        shapes.append({tuple(column.shape) for column in record})
        return record.growth

    sim = simulator(market(steady(PRICES)), settings(episode_bars=3, reward="shapes"), batch=2)
    shapes.clear()
    sim.alternatives(at(sim), torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64))
    assert shapes == [{(6,)}]


def refused(function, *, memory=0, initial=None, kind=ConfigError):
    reward(name="wrong", memory=memory, initial=initial)(function)
    with pytest.raises(kind) as caught:
        simulator(market(steady(PRICES)), settings(episode_bars=3, reward="wrong"))
    assert caught.value.code in ("plugin-result", "missing-argument", "dtype-mismatch")
    return str(caught.value)


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("function", "options", "words"),
    [
        (lambda record: record.growth.sum(), {}, "rewards of the shape (6,); found the shape ()"),
        (lambda _: 1.0, {}, "found a float"),
        (lambda record: record.growth.half(), {}, "tensors of torch.float64; found torch.float16"),
        (lambda record: record.growth / 0.0, {}, "finite numbers"),
        (lambda record: record.growth - record.growth.mean(), {}, "by its own row"),
        (lambda record: torch.rand(len(record.growth), dtype=torch.float64), {}, "the same steps"),
        (lambda record: record.no_such_thing, {}, "must run; found AttributeError"),
        (lambda record, _: record.growth, {"memory": 1}, "rewards and memory, in that order"),
        (
            lambda record, memory: (record.growth, memory[:, 0]),
            {"memory": 1},
            "a memory of the shape (6, 1); found the shape (6,)",
        ),
        (
            lambda record, memory: (record.growth, memory),
            {"memory": 2, "initial": (0.0,), "kind": ArgumentError},
            "must be 2 numbers; found 1",
        ),
        (
            lambda record, memory: (record.growth, memory),
            {"memory": 1, "initial": (float("nan"),), "kind": DtypeError},
            "must be a finite number",
        ),
        (
            lambda record, *, level: record.growth - level,
            {"kind": ArgumentError},
            "must be given `level`",
        ),
    ],
)
def test_a_reward_that_no_simulator_could_use_is_refused(function, options, words):
    assert words in refused(function, **options)


@pytest.mark.refusal
def test_unknown_rewards_and_parameters_are_refused():
    panel = market(steady(PRICES))
    with pytest.raises(ChoiceError, match="Did you mean `differential_sharpe`"):
        simulator(panel, settings(reward="diferential_sharpe", episode_bars=3))
    parameters = {"penality": 1.0}
    with pytest.raises(ChoiceError, match="Did you mean `penalty`"):
        simulator(
            panel,
            settings(reward="drawdown_growth", reward_parameters=parameters, episode_bars=3),
        )
    with pytest.raises(ConfigError, match="must be left out with the reward `log_growth`"):
        simulator(panel, settings(reward_parameters=parameters, episode_bars=3))
    with pytest.raises(ArgumentError, match="must belong to one reward"):
        reward(name="drawdown_growth")(lambda record: record.growth)
    with pytest.raises(ArgumentError, match="at least 0"):
        reward(name="odd", memory=-1)
    assert "odd" not in REWARDS
    assert StepRecord._fields[0] == "equity_before"


def test_one_account_on_plain_numbers_has_the_rewards_of_a_batch():
    config = settings(
        episode_bars=8,
        costs__taker_fee=0.001,
        reward="differential_sharpe",
        reward_parameters=SHARPE,
    )
    sim = simulator(market(steady(PRICES)), config)
    account, state = OneAccount(sim), at(sim)
    numbers = tuple(number for tensor in state for number in tensor.flatten().tolist())
    for step in range(8):
        weight = torch.tensor([(-1.0) ** step], dtype=torch.float64)
        uniform = draws(sim, seed=step)
        state, result = sim.transition(state, weight, uniform)
        numbers, shown = account.step(numbers, weight.item(), uniform.flatten().tolist())
        assert shown.reward == result.reward.item()
        assert list(numbers[-3:-1]) == state.reward_memory[0].tolist()
    assert shown.truncated
