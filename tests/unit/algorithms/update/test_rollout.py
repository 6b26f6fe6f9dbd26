"""Playing by a script: every flag, memory and reached state against a replay of the rules."""

import numpy as np
import pytest
import torch

from learner_lab import ENDS, NUMBERS, Scripted, aged, learner, script, settings
from oracles import learner as oracle
from stormsail.algorithms.update import rollout as playing
from stormsail.algorithms.update.rollout import Rollout, begin, collect, cut_rows, sequences

T, B = 8, len(ENDS)


def play_on(ppo, rollouts, *, sequence_length=T, online=False):
    """Yield the rollouts that follow one another, with what was known before each."""
    source = torch.Generator().manual_seed(3), torch.Generator().manual_seed(4)
    play = ppo.env_state
    for _ in range(rollouts):
        before = play
        play, rollout = collect(
            ppo.task, ppo.agent, play,
            steps=T, sequence_length=sequence_length, generators=source, online=online,
        )  # fmt: skip
        yield before, rollout, play


def weights_of(agent):
    return {name: value.detach().double().numpy() for name, value in
            agent.network.named_parameters()}  # fmt: skip


@pytest.mark.spec("X9", "T-G3")
def test_rows_after_an_end_weigh_nothing_and_the_row_behind_them_begins_anew():
    ppo = aged(learner(told=script(weights=(1.0, 0.25, 0.5))))
    ignored, reset = np.zeros(B, dtype=bool), np.zeros(B, dtype=bool)
    told = ppo.task.told
    for k, (_, rollout, play) in enumerate(play_on(ppo, 4)):
        rows = slice(k * T, k * T + T)
        ended = (told.terminated | told.truncated)[rows].numpy()
        weight, fresh, ignored, reset = oracle.rows_of(
            ended, told.weight[rows].numpy(), ignored, reset
        )
        assert np.array_equal(rollout.weight.numpy(), weight)
        assert np.array_equal(rollout.reset.numpy(), fresh)
        assert np.array_equal(rollout.ended.numpy(), ended)
        assert np.array_equal(play.ignored.numpy(), ignored)
        assert np.array_equal(play.reset.numpy(), reset)
        assert torch.equal(rollout.terminated, told.terminated[rows])
        assert torch.equal(rollout.truncated, told.truncated[rows])


def test_a_task_that_weighs_the_ignored_row_does_not_get_it_learned():
    told = script()
    told.weight.fill_(1.0)
    _, rollout, _ = next(play_on(learner(told=told), 1))
    ended = (told.terminated | told.truncated)[: T - 1]
    assert torch.equal(rollout.weight[1:], (~ended).float())
    assert torch.equal(rollout.weight[0], torch.ones(B))


def test_episodes_are_added_up_from_their_first_step_across_rollouts():
    ppo = learner()
    told = ppo.task.told
    ended = (told.terminated | told.truncated).numpy()
    earned, length = oracle.episodes(told.reward.double().numpy(), ended, np.zeros(B))
    result = [rollout for _, rollout, _ in play_on(ppo, 4)]
    assert torch.cat([r.return_so_far for r in result]).numpy() == pytest.approx(earned, abs=1e-6)
    assert np.array_equal(torch.cat([r.length for r in result]).numpy(), length)


def test_what_an_ignored_step_pays_belongs_to_no_episode():
    told = script(("..T.....",), rewards=torch.ones(8, 1))
    told.reward.fill_(1.0)
    _, rollout, _ = next(play_on(learner(settings(ppo__n_envs=1, ppo__batch_size=1), told=told), 1))
    assert rollout.return_so_far[:, 0].tolist() == [0.0, 1.0, 2.0, 0.0, 0.0, 1.0, 2.0, 3.0]
    assert rollout.length[:, 0].tolist() == [1, 2, 3, 0, 1, 2, 3, 4]


@pytest.mark.spec("T-L4", "T-GAE2", "X10", "S3-8")
def test_every_row_is_what_a_float64_walk_with_that_memory_says():
    ppo = aged(learner())
    weights = weights_of(ppo.agent)
    memory = (np.zeros((B, 4)), np.zeros((B, 4)))
    for _, rollout, play in play_on(ppo, 3):
        seen = rollout.observation.double().numpy()
        actor, critics, memory = oracle.walk(seen, memory, rollout.reset.numpy(), weights, 2)
        assert rollout.parameters.numpy() == pytest.approx(actor, abs=2e-5)
        assert rollout.predicted.numpy() == pytest.approx(critics, abs=2e-5)
        kept = play.memory.double().numpy()
        assert kept[:, 0, 0] == pytest.approx(memory[0], abs=2e-5)
        assert kept[:, 0, 1] == pytest.approx(memory[1], abs=2e-5)


@pytest.mark.spec("T-GAE2", "S3-8")
def test_a_time_out_reaches_the_value_of_its_last_observation_with_the_unbroken_memory():
    ppo = aged(learner())
    agent, told = ppo.agent, ppo.task.told
    checked = 0
    for k, (before, rollout, _) in enumerate(play_on(ppo, 3)):
        memory = torch.where(
            before.reset[:, None, None, None], agent.initial_memory(B), before.memory
        )
        for t in range(T):
            if t:
                fresh = rollout.reset[t][:, None, None, None]
                memory = torch.where(fresh, agent.initial_memory(B), memory)
            now = agent.decide(told.observation[k * T + t], memory, deterministic=True)
            following = told.observation[(k * T + t + 1) % len(told.observation)]
            beyond = agent.decide(following, now.memory, deterministic=True).predicted
            # every step that ends an episode, and every other one that no reset follows
            same = ~rollout.weight[t].eq(0.0)
            assert torch.allclose(rollout.next_predicted[t][same], beyond[same], atol=1e-6)
            checked += int((rollout.truncated[t] & same).sum())
            memory = now.memory
    assert checked == int(told.truncated[: 3 * T].sum()) == 14


def test_the_look_at_the_last_state_leaves_no_trace():
    """The value behind the last row costs neither a memory nor a random number."""
    ppo = aged(learner(actions=NUMBERS))
    whole = torch.Generator().manual_seed(3), torch.Generator().manual_seed(4)
    _, long = collect(
        ppo.task, ppo.agent, ppo.env_state, steps=2 * T, sequence_length=T, generators=whole
    )
    halves = [rollout for _, rollout, _ in play_on(ppo, 2)]
    for name in ("observation", "raw_action", "log_prob", "predicted", "reset", "memory", "weight"):
        joined = torch.cat([getattr(half, name) for half in halves])
        assert torch.equal(joined, getattr(long, name)), name
    assert torch.equal(halves[0].next_predicted[-1], long.predicted[T])


@pytest.mark.spec("T-L2")
def test_the_memory_of_a_sequence_is_the_one_before_its_first_row():
    ppo = aged(learner())
    for before, rollout, _ in play_on(ppo, 2, sequence_length=4):
        assert rollout.memory.shape == (2, B, 1, 2, 4)
        fresh = before.reset[:, None, None, None]
        expected = torch.where(fresh, torch.zeros_like(before.memory), before.memory)
        assert torch.equal(rollout.memory[0], expected)
        begun = rollout.reset[4]
        assert torch.equal(rollout.memory[1][begun], torch.zeros_like(rollout.memory[1][begun]))
        assert bool((rollout.memory[1][~begun] != 0.0).all())


@pytest.mark.spec("T-L2")
def test_a_learned_initial_state_is_put_only_where_an_episode_begins_and_not_shared():
    ppo = aged(learner(settings(network__learn_initial_state=True)))
    initial = ppo.agent.network.trunk.memory.initial.detach().clone()
    before = ppo.agent.initial_memory(B)
    _, rollout, play = list(play_on(ppo, 2, sequence_length=1))[1]
    where = rollout.reset
    assert int(where.sum()) == 11
    assert torch.equal(rollout.memory[where], initial.expand(11, 1, 2, 4))
    assert not torch.isclose(rollout.memory[~where], initial).all((-1, -2, -3)).any()
    play.memory.add_(1.0)
    before.add_(1.0)
    assert torch.equal(ppo.agent.network.trunk.memory.initial, initial)


@pytest.mark.spec("T-O1", "S0-4")
def test_statistics_stand_still_during_a_rollout_and_gather_rows_with_weight():
    ppo = aged(learner(told=script(weights=(1.0, 0.25))))
    scale = ppo.agent.observation_scale
    before = [part.clone() for part in scale.moments]
    _, rollout, _ = next(play_on(ppo, 1))
    assert all(torch.equal(a, b) for a, b in zip(before, scale.moments, strict=True))
    raw = ppo.task.told.observation[:T].double().flatten(0, 1).numpy()
    weight = rollout.weight.double().flatten().numpy()
    mean = (weight[:, None] * raw).sum(0) / weight.sum()
    assert float(rollout.seen.count) == pytest.approx(weight.sum(), rel=1e-12)
    assert rollout.seen.mean.numpy() == pytest.approx(mean, rel=1e-12)
    spread = (weight[:, None] * (raw - mean) ** 2).sum(0)
    assert rollout.seen.m2.numpy() == pytest.approx(spread, rel=1e-12)
    expected = ppo.agent.normalised(ppo.task.told.observation[:T])
    assert torch.equal(rollout.observation, expected)


@pytest.mark.spec("T-O1", "S0-4")
def test_online_statistics_show_the_same_observation_differently_at_every_step():
    """For comparison only: what a network saw at row 0 it would not see again at row 7."""
    ppo = aged(learner())
    before = float(ppo.agent.observation_scale.count)
    _, rollout, _ = next(play_on(ppo, 1, online=True))
    assert float(ppo.agent.observation_scale.count) == before + float(rollout.weight.sum())
    again = ppo.agent.normalised(ppo.task.told.observation[:T])
    assert not torch.isclose(rollout.observation, again, atol=1e-3).all(-1)[:-1].any()


def test_columns_of_the_task_are_kept_and_wider_parts_are_not():
    class Wider(Scripted):
        def step(self, state, action, generator):
            state, step = super().step(state, action, generator)
            return state, step._replace(info=_Wide(*step.info, step.observation))

    from typing import NamedTuple

    class _Wide(NamedTuple):
        sample_weight: torch.Tensor
        price: torch.Tensor
        book: torch.Tensor

    ppo = learner()
    ppo.task = Wider(script())
    _, rollout, _ = next(play_on(ppo, 1))
    assert set(rollout.info) == {"sample_weight", "price"}
    assert torch.equal(rollout.info["price"], ppo.task.told.reward[:T] * 7.0)


def test_a_rollout_is_cut_into_neighbouring_sequences_with_their_own_memory():
    ppo = aged(learner())
    _, rollout, _ = next(play_on(ppo, 1, sequence_length=2))
    cut = sequences(rollout, 2)
    assert isinstance(cut, Rollout)
    assert cut.memory.shape[0] == cut.weight.shape[1] == 4 * B
    for piece in range(4):
        for b in range(B):
            place, rows = piece * B + b, slice(2 * piece, 2 * piece + 2)
            assert torch.equal(cut.memory[place], rollout.memory[piece, b])
            for name in (
                "observation",
                "predicted",
                "reset",
                "weight",
                "hidden_norm",
                "return_so_far",
            ):
                expected = getattr(rollout, name)[rows, b]
                assert torch.equal(getattr(cut, name)[:, place], expected), name
            assert torch.equal(cut.info["price"][:, place], rollout.info["price"][rows, b])
    assert torch.equal(cut_rows(rollout.reward, T), rollout.reward)
    assert cut.seen is rollout.seen


def test_hidden_norms_are_those_found_and_those_used():
    ppo = aged(learner())
    before, rollout, _ = list(play_on(ppo, 2))[1]
    result = before.memory[:, :, 0].flatten(1).norm(dim=-1)
    assert rollout.hidden_norm[0, :, 0].numpy() == pytest.approx(result.numpy(), rel=1e-6)
    assert rollout.hidden_norm[..., 1][rollout.reset].tolist() == [0.0] * int(rollout.reset.sum())
    kept = ~rollout.reset
    assert torch.equal(rollout.hidden_norm[..., 0][kept], rollout.hidden_norm[..., 1][kept])


def test_a_beginning_is_an_empty_account_with_an_initial_memory():
    ppo = learner()
    play = begin(ppo.task, ppo.agent, torch.Generator())
    assert torch.equal(play.memory, torch.zeros(B, 1, 2, 4))
    assert torch.equal(play.observation, ppo.task.told.observation[0])
    for flags in (play.ignored, play.reset, play.return_so_far, play.length):
        assert not flags.any()
    assert play.ignored.data_ptr() != play.reset.data_ptr()


def test_a_beginning_holds_no_path_of_a_gradient():
    """A graph that is recorded later would have to wait for the stream that it was made on."""
    ppo = learner(settings(network__learn_initial_state=True))
    assert ppo.agent.network.trunk.memory.initial.requires_grad
    assert not ppo.env_state.memory.requires_grad
    assert not begin(ppo.task, ppo.agent, torch.Generator()).memory.requires_grad


def test_rows_without_a_graph_cost_no_memory():
    _, rollout, play = next(play_on(learner(settings(network__learn_initial_state=True)), 1))
    assert not any(
        part.requires_grad
        for part in (rollout.predicted, rollout.log_prob, rollout.memory, play.memory)
    )


@pytest.mark.parametrize("piece", [1, 3, 4, 7, 1000])
def test_a_recorded_rollout_is_the_same_in_whatever_pieces_it_is_written(piece, monkeypatch):
    _, whole, _ = list(play_on(learner(), 2))[1]
    monkeypatch.setattr(playing, "PIECE", piece)
    _, cut, _ = list(play_on(learner(), 2))[1]
    for name in ("observation", "reward", "weight", "terminated", "length", "parameters"):
        assert torch.equal(getattr(cut, name), getattr(whole, name)), name
    assert torch.equal(cut.predicted, whole.predicted)
    assert torch.equal(cut.memory, whole.memory)
