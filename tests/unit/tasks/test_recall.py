"""`Recall-v0` shows its cue once, asks ten steps later, and gives nothing to chance."""

import gymnasium
import numpy as np
import pytest
import torch

from stormsail.bench.learner.recall_env import RECALL
from stormsail.core.task import DiscreteActions
from stormsail.tasks import Recall, make

BATCH = 64


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def episodes(choose, *, batch=BATCH, count=1):
    """Return observations, rewards and ends of some episodes; `choose` is given cue and time."""
    task = make("Recall-v0", batch=batch)
    generator = seeded(0)
    state, seen = task.reset(generator)
    rows = []
    for _ in range(12 * count):
        cue = state.physical[:, 0].long()
        action = choose(cue, state.elapsed)
        before = seen
        state, step = task.step(state, action, generator)
        seen = step.observation
        ends = step.terminated, step.truncated
        rows.append((before, step.reward, *ends, step.info.sample_weight, cue))
    return [torch.stack(column) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_step_equals_that_of_the_gymnasium_environment(dtype):
    env = gymnasium.make(RECALL).unwrapped
    rng = np.random.default_rng(5)
    task = Recall(batch=1, dtype=dtype)
    rewards = set()
    for episode in range(40):
        shown, _ = env.reset(seed=episode)
        start = torch.tensor([[env.cue + rng.uniform(), 0.0]], dtype=dtype)
        state, seen = task.place(start)
        assert seen[0].tolist() == shown.tolist()
        for time in range(11):
            action = int(rng.integers(2))
            state, step = task.step(state, torch.tensor([action]), torch.Generator())
            shown, reward, terminated, truncated, _ = env.step(action)
            assert step.observation[0].tolist() == shown.tolist()
            assert (float(step.reward), bool(step.terminated), bool(step.truncated)) == (
                reward,
                terminated,
                truncated,
            )
            assert terminated == (time == 10)
            rewards.add(reward)
    assert rewards == {-1.0, 0.0, 1.0}


def test_the_cue_is_seen_once_and_the_query_ten_steps_later():
    seen, *_, cue = episodes(lambda cue, _: cue)
    shown = torch.nn.functional.one_hot(cue[0], 2).float()
    assert torch.equal(seen[0], torch.cat((shown, torch.zeros(BATCH, 1)), -1))
    assert (seen[1:10] == 0.0).all()
    assert torch.equal(seen[10], torch.tensor([0.0, 0.0, 1.0]).expand(BATCH, 3))
    assert (seen[11] == 0.0).all()  # the last one, after the answer
    assert 0.3 < float(cue[0].float().mean()) < 0.7


def test_an_answer_is_worth_one_at_the_query_alone_and_ends_the_episode():
    right = episodes(lambda cue, _: cue, count=2)
    wrong = episodes(lambda cue, _: 1 - cue, count=2)
    for (_, reward, terminated, truncated, weight, _), worth in ((right, 1.0), (wrong, -1.0)):
        expected = torch.zeros(24, BATCH)
        expected[[10, 22]] = worth
        assert torch.equal(reward, expected)
        assert torch.equal(terminated, expected != 0.0)
        assert not truncated.any()
        assert (weight.sum(0) == 22.0).all()  # rows 11 and 23 start an episode


@pytest.mark.parametrize("answer", [0, 1])
def test_without_memory_every_policy_scores_nothing_on_average(answer):
    # At the query both cues look the same, so the policy is one number: how often it answers 1.
    _, reward, *_ = episodes(lambda cue, _: torch.full_like(cue, answer), batch=20_000)
    assert abs(float(reward.sum(0).mean())) < 4.0 / 20_000**0.5


def test_both_cues_are_drawn_and_the_largest_number_below_two_is_the_second():
    task = Recall(batch=2)
    almost = torch.tensor([[0.0, 0.0], [1.0 - 2.0**-24, 0.0]])
    assert task._observe(task._start(almost))[:, :2].tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert task._observe(torch.tensor([[2.0, 0.0], [1.0, 0.0]]))[:, 1].tolist() == [1.0, 1.0]


def test_names_and_sizes():
    task = make("Recall-v0", batch=3)
    assert task.actions == DiscreteActions(2)
    assert task.observation_names == ("cue_0", "cue_1", "query")
    assert task.limit == 11
