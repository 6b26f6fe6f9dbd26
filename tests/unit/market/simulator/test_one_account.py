"""One account on plain numbers: the simulator's own transition, bit for bit, and fast."""

import struct
import time
import timeit

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from simulator_lab import plain_features, plain_scaler, settings, simulator, wild_panel
from stormsail.bench.market.simulator import everything_on
from stormsail.market import MarketConfig
from stormsail.market.gymnasium.env import MarketEnv
from stormsail.market.gymnasium.vector import MarketVectorEnv
from stormsail.market.simulator import Info, State
from stormsail.market.simulator.one_account import OneAccount

MARKETS = {
    "plain": {},
    "every cost drawn, every fault of the feed": {
        "randomise.taker_fee": (0.5, 2.0),
        "randomise.half_spread": (0.1, 3.0),
        "randomise.impact": (0.0, 5.0),
        "degrade.stale_prob": 0.2,
        "degrade.drop_prob": 0.2,
        "degrade.delay_prob": 0.3,
        "degrade.max_delay_bars": 3,
    },
    "leverage, stops, limits, penalty, clip": {
        "levels": (-5.0, -1.0, 0.0, 2.0, 5.0),
        "limits.max_leverage": 5.0,
        "limits.max_turnover": 8.0,
        "stops.drawdown": 0.4,
        "reward_clip": 0.05,
        "ruin_penalty": 1.0,
        "min_rebalance": 0.01,
        "no_trade.daily": ("03:00-05:00",),
    },
    "lots and ticks": {
        "filters.lot": 0.01,
        "filters.tick": 0.05,
        "filters.min_notional": 5.0,
    },
}

MARKETS["every rule on"] = everything_on().model_dump()


def bits(numbers):
    return [
        "nan" if x != x else struct.pack("d", x) if isinstance(x, float) else (type(x), x)
        for x in numbers
    ]


def written_out(state, step):
    tensors = [*state, *step[:-1], *step.info]
    return [number for tensor in tensors for number in tensor.flatten().tolist()]


def numbers_of(state):
    """Return a state as plain numbers, in the order of its fields."""
    return tuple(number for tensor in state for number in tensor.flatten().tolist())


@pytest.mark.parametrize("name", MARKETS)
def test_every_number_of_a_step_is_that_of_the_tensors(name):
    sim = simulator(wild_panel(5, rows=300, symbols=3), MarketConfig().replace(**MARKETS[name]))
    account = OneAccount(sim)
    generator = torch.Generator().manual_seed(3)
    rng = np.random.default_rng(3)
    state, _ = sim.reset(generator)
    ends = 0
    for _ in range(600):
        if bool(state.done):
            state, ends = sim.reset(generator)[0], ends + 1
        numbers = numbers_of(state)
        action, uniform = int(rng.integers(5)), sim.draw(generator)
        state, step = sim.transition(state, torch.tensor([action]), uniform)
        after, shown = account.step(numbers, action, uniform.flatten().tolist())
        flags = (shown.terminated, shown.truncated)
        found = [*after, *shown.observation, shown.reward, *flags, *shown.info.values()]
        found += shown.observation
        assert bits(found) == bits(written_out(state, step))
        assert tuple(shown.info) == Info._fields[:-1]
    assert ends >= 2


def test_weights_and_bad_actions_are_those_of_the_tensors():
    sim = simulator(wild_panel(6, rows=300, symbols=2), settings(leverage=3.0))
    account = OneAccount(sim)
    state, _ = sim.reset(torch.Generator().manual_seed(1))
    uniform = sim.draw(torch.Generator().manual_seed(2))
    for weight in (0.3, -2.9, 3.5, float("nan"), 0.0, 1e-9, 3.0):
        numbers = numbers_of(state)
        after, _ = account.step(numbers, weight, uniform.flatten().tolist())
        action = torch.tensor([weight], dtype=torch.float64)
        state, _ = sim.transition(state, action, uniform)
        assert bits(after) == bits(numbers_of(state))
    assert after[State._fields.index("bad_actions")] == 2


def options(**changes):
    panel = wild_panel(5, rows=300, symbols=3)
    features = plain_features(panel)
    config = MarketConfig().replace(**{**changes, "episode_bars": 24})
    return {
        "panel": panel,
        "config": config,
        "features": features,
        "scaler": plain_scaler(features),
    }


@pytest.mark.parametrize("name", MARKETS)
def test_the_single_environment_shows_and_earns_what_the_vector_environment_does(name):
    alone, many = (
        MarketEnv(**options(**MARKETS[name])),
        MarketVectorEnv(1, **options(**MARKETS[name])),
    )
    observation, info = alone.reset(seed=4)
    observations, infos = many.reset(seed=4)
    rng, ends = np.random.default_rng(9), 0
    for _ in range(300):
        assert observation.dtype == observations.dtype == np.float32
        assert observation.tobytes() == observations[0].tobytes()
        for key, value in info.items():
            assert np.array_equal(value, infos[key][0]), key
            assert infos[f"_{key}"][0]
        action = rng.integers(5)
        observation, reward, terminated, truncated, info = alone.step(action)
        observations, rewards, terminations, truncations, infos = many.step(action[None])
        assert bits([reward]) == bits(rewards.tolist())
        assert ([terminated], [truncated]) == (terminations.tolist(), truncations.tolist())
        if terminated or truncated:
            assert observation.tobytes() == observations[0].tobytes()
            ends += 1
            observation, info = alone.reset()
            observations, *_, infos = many.step(action[None])
    assert ends >= 10


def test_only_what_the_processor_does_not_round_alike_is_left_to_tensors():
    account = OneAccount(simulator(wild_panel(5, rows=300), MarketConfig()))
    held = vars(account._run.__self__)
    left = sorted(
        str(value.target)
        for name, value in held.items()
        if callable(value) and name.startswith("held")
    )
    assert left == [
        "aten.log.default",
        "aten.log.default",
        "aten.sqrt.default",
        "aten.sqrt.default",
    ]


class Operations(TorchDispatchMode):
    """Counts the tensor operations that are carried out while it is entered."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def alone():
    """Return an environment that has recorded its rules."""
    env = MarketEnv(**options())
    env.reset(seed=0)
    env.step(2)
    return env


def test_a_step_of_the_single_environment_takes_a_dozen_tensor_operations(alone):
    sim, generator = alone._bridge.simulator, torch.Generator().manual_seed(0)
    state, _ = sim.reset(generator)
    with Operations() as tensors:
        sim.step(state, torch.tensor([1]), generator)
    with Operations() as numbers:
        alone.step(1)
    assert tensors.count > 500
    assert numbers.count <= 12


def test_the_single_environment_is_six_times_as_fast_as_tensors_of_one_number(alone):
    sim = alone._bridge.simulator
    generator = torch.Generator().manual_seed(0)
    state, _ = sim.reset(generator)
    actions = [torch.tensor([index % 5]) for index in range(100)]

    def tensors():
        nonlocal state
        for action in actions:
            state, step = sim.step(state, action, generator)
            {name: value.tolist() for name, value in step.info._asdict().items()}

    def numbers():
        alone.reset(seed=0)
        for index in range(100):
            *_, terminated, truncated, _ = alone.step(index % 5)
            if terminated or truncated:
                alone.reset()

    # As `timeit` does: plain numbers are many small objects, and a collection goes through all
    # that the tests of this process left behind.
    ratio = max(
        timeit.timeit(tensors, time.process_time, number=1)
        / timeit.timeit(numbers, time.process_time, number=1)
        for _ in range(5)
    )
    assert ratio > 6.0
