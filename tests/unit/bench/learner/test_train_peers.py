"""Peers of `stormsail bench train`: their markets and their steps."""

import pytest

from stormsail.bench.learner import train_peers
from stormsail.bench.learner.jax_learner import Shape


def test_the_small_market_pays_position_times_return_less_a_fee():
    market = train_peers.trading_environment(5)()
    seen, _ = market.reset(seed=0)
    assert seen.shape == (5,)
    assert seen[-2:].tolist() == [0.0, 0.0]
    free = market.step(2)[1]  # stays flat
    seen, bought, _, truncated, _ = market.step(4)  # from 0 to 1
    seen, held, *_ = market.step(4)
    assert free == 0.0
    growth = (1.0 + bought) * (1.0 + held) - 1.0
    assert seen[-2:] == pytest.approx([1.0, growth], abs=1e-7)
    sold = market.step(2)[1]
    assert sold == pytest.approx(-train_peers._FEE, abs=1e-12)
    assert not truncated
    for _ in range(495):
        assert not market.step(2)[3]
    assert market.step(2)[3]  # the 500th bar


def test_the_program_in_jax_learns_and_steps_once_a_minibatch():
    jax = pytest.importorskip("jax")
    shape = Shape(environments=8, steps=6, epochs=2, minibatches=2, width=8, features=3)
    learner = train_peers.Jax(shape, seed=0)
    first = learner._state[0]["actor"][0]
    learner(2)
    weights, (_, _, count), *_ = learner._state
    assert float(count) == 2 * 2 * 2
    moved = jax.numpy.abs(weights["actor"][0] - first).max()
    assert 0.0 < float(moved) <= 8 * 2 * shape.learning_rate
