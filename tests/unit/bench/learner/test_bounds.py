"""What bounds an update: counts by hand, calls and memory of known work, fast beside plain."""

import pytest
import torch

from stormsail.bench.learner import counters, twins
from stormsail.bench.learner.bounds import ceilings, minibatches_of, work
from stormsail.bench.learner.train import TASK, Ours, Sizes, overrides
from training_lab import small


def test_work_is_counted_from_the_shapes():
    sizes = Sizes(environments=6, steps=10, epochs=3, minibatches=2)
    ours = Ours(overrides(sizes, 8, task=TASK, plain=True, device="cpu", seed=0)).ppo
    found = work(ours.agent, ours.config)
    # 4 observations; gates 32 of 4 and of 8, two hidden layers of 64, 2 actions, 1 value
    matrices = [(32, 4), (32, 8), (64, 8), (2, 64), (64, 8), (1, 64)]
    products = sum(rows * columns for rows, columns in matrices)
    outputs, biases = 32 + 32 + 64 + 2 + 64 + 1, 32 + 32 + 64 + 2 + 64 + 1
    weights, samples = products + biases, 60
    assert found["rollout"].operations == 2 * products * samples
    assert found["epochs"].operations == 3 * 3 * 2 * products * samples
    # a row: observation, outputs of all layers, hidden and cell read and written
    assert found["rollout"].bytes == 4 * (10 * weights + samples * (4 + outputs + 2 * 16))
    # six minibatches in three epochs
    assert found["epochs"].bytes == 4 * (3 * samples * (4 + 4 * outputs) + 6 * 12 * weights)


def test_minibatches_are_of_sequences_where_rollouts_are_cut():
    # 3 epochs of 6 environments by 4, rounded up; cut at half of 8 rows they are 12 sequences
    config = small("cartpole", ppo__n_envs=6, ppo__n_epochs=3, ppo__batch_size=4)
    assert minibatches_of(config) == 3 * 2
    assert minibatches_of(config.replace(**{"ppo.sequence_length": 4})) == 3 * 3


def test_ceilings_are_those_of_one_product_and_one_copy(monkeypatch):
    from stormsail.bench.learner import bounds

    monkeypatch.setattr(bounds, "_SIDES", {"cpu": 10})
    monkeypatch.setattr(bounds, "_COPIED", {"cpu": 400})
    monkeypatch.setattr(bounds, "_shortest", lambda call, _: call() is None or 0.5)
    assert ceilings("cpu") == bounds.Ceilings(operations=2 * 10**3 / 0.5, bytes=2 * 400 / 0.5)


def test_calls_are_the_operators_that_reach_the_device():
    weight = torch.ones(3, requires_grad=True)

    def update():
        (weight * 2.0).sum().backward()

    # mul, sum, ones_like; back: expand, mul; the first gradient is kept by detaching it
    assert counters.calls(update, "cpu").launches == 6
    assert counters.calls(lambda: None, "cpu") == counters.Calls(0)


def test_the_peak_of_memory_is_that_since_it_was_forgotten():
    before = counters.peak_mib("cpu")
    if before is None:
        pytest.skip("this system does not say what is resident")
    held = torch.ones(32 << 20)  # 128 MiB, written
    counters.forget_peak("cpu")
    with_it = counters.peak_mib("cpu")
    del held
    counters.forget_peak("cpu")
    assert with_it - counters.peak_mib("cpu") > 100.0


@pytest.mark.parametrize("guard", twins.GUARDS, ids=lambda guard: guard.name)
def test_a_fast_way_gives_the_gradients_of_its_plain_twin(guard):
    fast, plain = (way() for way in guard.make("cpu"))
    torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("guard", twins.guards("cpu"), ids=lambda guard: guard.name)
def test_a_fast_way_takes_a_share_of_the_time_of_its_plain_twin(guard):
    held = twins.measure(guard)
    assert held.holds, f"{held.ratio:.2f} of the plain twin's time; at most {held.bound}"


def test_a_guard_holds_the_median_round_to_its_bound(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(twins, "_now", lambda _: now[0])
    spent = iter([9.0, 1.0, 1.0, 2.0, 3.0, 2.0, 1.0, 4.0])  # the first round is not counted

    def way():
        now[0] += next(spent)
        return torch.zeros(())

    guard = twins.Guard("one", lambda _: (way, way), bounds={"cpu": 0.5})
    held = twins.measure(guard, rounds=3)
    assert (held.ratio, held.holds) == (0.5, True)
    assert not twins.Held("one", 0.51, 0.5).holds
