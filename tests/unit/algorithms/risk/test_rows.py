"""Steps that the values of all actions are learned from: which are kept, and how they count."""

import dataclasses
import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch

from all_actions_lab import COIN, COSTLY, RUIN, agent_of, bets, rollout_of, rollouts, seeded
from oracles import risk_critic as oracle
from stormsail.algorithms.risk import rows as module
from stormsail.algorithms.risk.rows import RowMemory, Rows, scaled_account, select_rows
from stormsail.algorithms.run.state_tree import flatten, unflatten

ALL = 6


def all_orders(monkeypatch, count):
    """Yield after the keys of the draw were put in each of their orders, all equally likely."""
    for order in itertools.permutations(range(count)):
        keys = torch.tensor([(place + 0.5) / count for place in order])
        monkeypatch.setattr(module.torch, "rand", lambda *_, keys=keys, **__: keys)
        yield order


SCORES = [(3.0, -1.0, 2.0, -5.0, 0.5, 7.0), (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)]


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(("tail", "rest"), [(1, 2), (2, 3), (2, 1), (3, 3), (1, 5)])
def test_weighted_sums_have_those_of_all_rows_as_their_mean(monkeypatch, score, tail, rest):
    """Over all orders of the keys: inclusion, and the mean of the weighted sum, exactly."""
    values = [1, 10, 100, 1000, 10_000, 100_000]
    held, sums = np.zeros(ALL), []
    valid = torch.ones(ALL, dtype=torch.bool)
    for _ in all_orders(monkeypatch, ALL):
        chosen = select_rows(torch.tensor(score), valid, tail=tail, rest=rest, generator=seeded())
        places, weight = chosen.places.tolist(), chosen.weight.double().tolist()
        assert len(set(places)) == tail + rest
        held[places] += 1
        parts = (
            Fraction(w).limit_denominator(9) * values[k]
            for k, w in zip(places, weight, strict=True)
        )
        sums.append(sum(parts))
    np.testing.assert_allclose(held / len(sums), oracle.stratified_inclusion(score, tail, rest))
    assert sum(sums) / len(sums) == sum(values)
    assert oracle.stratified_expectation(values, score, tail, rest) == pytest.approx(sum(values))


def test_the_worst_draws_come_first_and_are_always_kept():
    score = torch.tensor([3.0, -1.0, 2.0, -5.0, 0.5, 7.0])
    chosen = select_rows(score, torch.ones(6, dtype=torch.bool), tail=2, rest=2, generator=seeded())
    assert chosen.places[:2].tolist() == [3, 1]
    assert chosen.weight.tolist() == [1.0, 1.0, 2.0, 2.0]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_where_few_rows_count_each_is_kept_once_and_places_stay_empty(monkeypatch, count):
    # rows 1, 4, 5, 0 in turn become valid; of six rows 2 + 3 are kept
    valid = torch.zeros(ALL, dtype=torch.bool)
    valid[[1, 4, 5, 0][:count]] = True
    values = torch.tensor([1.0, 10.0, 100.0, 1e3, 1e4, 1e5])
    for _ in all_orders(monkeypatch, ALL):
        chosen = select_rows(torch.tensor(SCORES[0]), valid, tail=2, rest=3, generator=seeded())
        assert chosen.places.shape == chosen.weight.shape == (5,)
        assert float((chosen.weight * values[chosen.places]).sum()) == float(values[valid].sum())
        assert set(chosen.weight.tolist()) <= {0.0, 1.0}


def test_rows_that_do_not_count_are_never_drawn(monkeypatch):
    """Row 3 has the lowest score and row 5 the highest key; neither counts."""
    valid = torch.tensor([True, True, True, False, True, False])
    held, sums = np.zeros(ALL), 0.0
    for _ in all_orders(monkeypatch, ALL):
        chosen = select_rows(torch.tensor(SCORES[0]), valid, tail=1, rest=2, generator=seeded())
        assert chosen.weight.tolist() == [1.0, 1.5, 1.5]  # three others for two places
        held[chosen.places] += 1
        sums += float((chosen.weight * torch.arange(1.0, 7.0)[chosen.places]).sum())
    np.testing.assert_allclose(held / 720, [2 / 3, 1, 2 / 3, 0, 2 / 3, 0])
    assert sums / 720 == pytest.approx(1 + 2 + 3 + 5)


def test_the_draw_comes_from_the_generator_alone():
    score, valid = torch.zeros(500), torch.ones(500, dtype=torch.bool)
    torch.manual_seed(1)
    first = select_rows(score, valid, tail=1, rest=40, generator=seeded(3)).places
    torch.manual_seed(2)
    assert torch.equal(
        first, select_rows(score, valid, tail=1, rest=40, generator=seeded(3)).places
    )
    assert not torch.equal(
        first, select_rows(score, valid, tail=1, rest=40, generator=seeded(4)).places
    )


# ------------------------------------------------------------------------------ what is remembered


def test_a_row_holds_the_step_and_what_every_action_made_of_it():
    """A small rollout is kept whole, so each row can be looked up again."""
    task = bets(COSTLY)
    agent = agent_of(task)
    rollout = rollout_of(task, agent, steps=9)
    memory = RowMemory(1)
    memory.add(agent, rollout, 3, seeded())
    table, options = memory.table, rollout.options
    flat = options.step.reward.flatten(0, 1)
    assert memory.newest == 36
    used = table.weight[0] > 0.0
    assert int(used.sum()) == int((rollout.weight > 0.0).sum()) == 28
    assert table.weight[0][used].tolist() == [1.0] * 28
    lowest = flat.amin(-1)[rollout.weight.flatten() > 0.0].sort().values
    torch.testing.assert_close(table.reward[0, :9].amin(-1).sort().values, lowest[:9])
    columns = [agent.spec.observation_names.index(name) for name in task.account_names]
    chosen = select_rows(
        flat.amin(-1), rollout.weight.flatten() > 0.0, tail=9, rest=27, generator=seeded()
    )
    for place in used.nonzero()[:, 0].tolist():
        row = Rows(*(column[0, place] for column in table))
        t, b = divmod(int(chosen.places[place]), task.batch)
        assert torch.equal(row.reward, options.step.reward[t, b])
        assert torch.equal(row.memory, options.memory[t, b])
        assert torch.equal(row.seen[0], options.seen[t, b])
        assert float(row.log_prob) == float(rollout.log_prob[t, b])
        assert torch.equal(row.seen[1], options.seen[t + 1, b])
        assert float(row.elapsed) == float(rollout.length[t, b]) - 1.0
        assert bool(row.last) == (int(rollout.length[t, b]) == 3)
        assert bool(row.terminated.all()) == bool(rollout.terminated[t, b])
        torch.testing.assert_close(row.return_so_far, rollout.return_so_far[t, b].float())
        # the taken action's account is the next observation's, normalised
        taken = int(rollout.raw_action[t, b])
        assert int(row.raw_action[0]) == taken
        torch.testing.assert_close(row.account[taken], options.seen[t + 1, b][columns])


def test_an_account_is_scaled_as_the_columns_of_an_observation_are():
    task = bets(COSTLY)
    agent = agent_of(task)
    raw = torch.randn(5, 3, len(task.observation_names), generator=seeded(8))
    columns = [task.observation_names.index(name) for name in task.account_names]
    expected = agent.normalised(raw.flatten(0, 1)).reshape(raw.shape)[..., columns]
    torch.testing.assert_close(scaled_account(agent, raw[..., columns]), expected)


def test_a_time_limit_and_the_last_step_are_both_the_last():
    task = bets()
    agent = agent_of(task)
    rollout = rollout_of(task, agent, steps=7)
    cut = dataclasses.replace(
        rollout, truncated=torch.zeros_like(rollout.truncated).index_fill(0, torch.tensor(1), True)
    )
    for horizon, expected in ((None, {2.0}), (3, {2.0, 3.0})):
        memory = RowMemory(1)
        memory.add(agent, cut, horizon, seeded())
        used = memory.table.weight[0] > 0.0
        ends = memory.table.last[0] & used
        assert set((memory.table.elapsed[0][ends] + 1.0).tolist()) == expected
        assert int(ends.sum()) == (4 if horizon is None else 12)


def marked(rollout, number):
    """Return the rollout with a number of its own as the task's reward of every action."""
    step = rollout.options.step
    step = step._replace(reward=torch.full_like(step.reward, float(number)))
    return dataclasses.replace(rollout, options=dataclasses.replace(rollout.options, step=step))


def test_the_oldest_rollout_leaves_and_its_place_is_written_again():
    task = bets()
    agent = agent_of(task)
    memory = RowMemory(3)
    order = []
    for number, (_, rollout) in enumerate(rollouts(task, agent, steps=4, count=5), 1):
        memory.add(agent, marked(rollout, number), 3, seeded())
        order.append([int(x) for x in memory.table.reward[:, 0, 0]])
        assert memory.filled == min(number, 3)
    assert order == [[1, 0, 0], [1, 2, 0], [1, 2, 3], [4, 2, 3], [4, 5, 3]]


def test_a_rollout_without_options_leaves_nothing():
    task = bets()
    agent = agent_of(task)
    memory = RowMemory(2)
    plain = dataclasses.replace(rollout_of(task, agent, steps=4), options=None)
    memory.add(agent, plain, 3, seeded())
    assert (memory.added, memory.table) == (0, None)
    with pytest.raises(LookupError, match="without rows"):
        memory.sample(4, seeded())


def test_a_large_rollout_leaves_its_worst_draws_and_a_share_of_the_others(monkeypatch):
    monkeypatch.setattr(module, "ROWS", 16)
    task = bets(batch=10)
    agent = agent_of(task)
    rollout = rollout_of(task, agent, steps=8)
    memory = RowMemory(1)
    memory.add(agent, rollout, 3, seeded())
    valid = int((rollout.weight > 0.0).sum())
    assert memory.table.weight.shape == (1, 16)
    assert memory.table.weight[0, :4].tolist() == [1.0] * 4
    np.testing.assert_allclose(memory.table.weight[0, 4:], (valid - 4) / 12, rtol=1e-6)
    lowest = rollout.options.step.reward.amin(-1)[rollout.weight > 0.0].sort().values[:4]
    torch.testing.assert_close(memory.table.reward[0, :4].amin(-1), lowest)


# ---------------------------------------------------------------------------------- what is sampled


@pytest.mark.parametrize("added", [1, 2, 3, 4])
def test_a_sampled_mean_has_the_mean_over_the_memory_as_its_expectation(monkeypatch, added):
    """Every pair of places of both halves once, all equally likely."""
    monkeypatch.setattr(module, "ROWS", 6)
    task = bets(RUIN, batch=3)
    agent = agent_of(task)
    memory = RowMemory(3)
    for _, rollout in rollouts(task, agent, steps=4, count=added):
        memory.add(agent, rollout, 4, seeded(added))
    table = memory.table
    value = table.reward.double()[..., 1] + 10.0 * table.elapsed.double()
    expected = float((table.weight * value).sum() / table.weight.sum())
    size, tail = 6, 1  # a quarter of six
    filled = memory.filled
    total = 0.0
    pairs = list(itertools.product(range(filled * tail), range(filled * (size - tail))))
    for pair in pairs:
        places = iter(pair)

        def drawn(high, shape, places=places, **_):
            assert high in (filled * tail, filled * (size - tail))
            return torch.full(shape, next(places))

        monkeypatch.setattr(module.torch, "randint", drawn)
        rows = memory.sample(2, seeded())
        values = rows.reward.double()[..., 1] + 10.0 * rows.elapsed.double()
        total += float((rows.weight.double() * values).mean())
    assert total / len(pairs) == pytest.approx(expected, rel=1e-6)


def test_half_of_a_sample_are_worst_draws():
    task = bets(COIN, batch=40)
    agent = agent_of(task)
    memory = RowMemory(2)
    for _, rollout in rollouts(task, agent, steps=8, count=2):
        memory.add(agent, rollout, 3, seeded())
    rows = memory.sample(200, seeded(1))
    assert rows.reward.shape == (200, 3)
    assert rows.memory.shape[0] == rows.seen.shape[0] == 200
    bound = memory.table.reward[:, :80].amin(-1).amax()
    assert bool((rows.reward[:100].amin(-1) <= bound).all())


def test_a_restored_memory_goes_on_as_the_saved_one():
    task = bets()
    agent = agent_of(task)
    first, second = RowMemory(2), RowMemory(2)
    batches = [rollout for _, rollout in rollouts(task, agent, steps=4, count=4)]
    for rollout in batches[:3]:
        first.add(agent, rollout, 3, seeded())
    tree, tensors = flatten(first.state_dict())
    saved = unflatten(tree, {name: x.clone() for name, x in tensors.items()})
    second.load_state_dict(saved, torch.device("cpu"))
    second_before = Rows(*(column.clone() for column in second.table))
    for memory in (first, second):
        memory.add(agent, batches[3], 3, seeded(5))
        assert (memory.added, memory.newest, memory.filled) == (4, 16, 2)
    assert all(map(torch.equal, first.table, second.table))
    assert not torch.equal(second_before.reward, second.table.reward)
    mine, other = (memory.sample(8, seeded(6)) for memory in (first, second))
    assert all(map(torch.equal, mine, other))
    empty = RowMemory(2)
    empty.load_state_dict(RowMemory(2).state_dict(), torch.device("cpu"))
    assert (empty.added, empty.table) == (0, None)
