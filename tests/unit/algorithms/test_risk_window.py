"""Which outcomes the tail is estimated from."""

import numpy as np
import pytest
import torch

from learner_lab import ENDS, learner, script, settings
from oracles import risk_control as oracle
from stormsail.algorithms.risk_window import EpisodeWindow, partial_sums


def rollouts(count, **changes):
    ppo = learner(settings(**changes), told=script(seed=3))
    found = []
    for _ in range(count):
        ppo.play, rollout = ppo._collect()
        found.append(rollout)
    return found


def arrays(rollout):
    names = ("earned", "reward", "weight")
    parts = {name: getattr(rollout, name).double().numpy() for name in names}
    return parts | {"ended": rollout.ended.numpy(), "ignored": (rollout.length == 0).numpy()}


def test_the_window_keeps_the_last_episodes_across_rollouts():
    window, samples = EpisodeWindow(11), []
    for rollout in rollouts(4):
        window.add(rollout)
        part = arrays(rollout)
        samples += oracle.finished(part["earned"], part["reward"], part["ended"])
        assert window.sample().tolist() == oracle.window(samples, 11)
    assert len(samples) > 22  # the window was filled more than twice
    assert len(window) == 11


@pytest.mark.spec("S3-8")
def test_a_time_out_ends_an_episode_like_a_termination():
    """The scripts are the same but for the kind of their end, and so are the outcomes."""
    rewards = script(seed=5).reward
    kept = []
    for kind in "TU":
        ends = [text.replace("T", kind).replace("U", kind) for text in ENDS]
        ppo = learner(settings(), told=script(ends, rewards=rewards))
        window = EpisodeWindow(100)
        for _ in range(3):
            ppo.play, rollout = ppo._collect()
            window.add(rollout)
        kept.append(window.sample().tolist())
    assert kept[0] == kept[1]
    assert len(kept[0]) > 10


def test_an_episode_that_began_in_an_earlier_rollout_counts_as_a_whole():
    """Rewards 1, 2, 4, ... over twelve rows; rows 0 to 9 are one episode: 1023."""
    rewards = (2.0 ** torch.arange(12.0))[:, None]
    ppo = learner(settings(**{"ppo.n_envs": 1, "ppo.batch_size": 1, "ppo.n_steps": 4}),
                  told=script([".........T.."], rewards=rewards))  # fmt: skip
    window = EpisodeWindow(4)
    for expected in ([], [], [1023.0]):
        ppo.play, rollout = ppo._collect()
        window.add(rollout)
        assert window.sample().tolist() == expected


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8])
def test_sums_of_rewards_are_those_of_the_loop(steps):
    for rollout in rollouts(3):
        part = arrays(rollout)
        expected = oracle.nstep_sums(part["reward"], part["ended"], part["ignored"], steps)
        found = partial_sums(rollout, steps)
        assert found.dtype == torch.float64
        np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-12)
        assert len(expected) > 0


def test_one_step_is_the_reward_of_every_row_that_counts():
    for rollout in rollouts(2):
        used = rollout.length > 0
        assert partial_sums(rollout, 1).tolist() == rollout.reward.double()[used].tolist()


def test_a_replaced_window_forgets_and_stays_bounded():
    window = EpisodeWindow(3)
    window.replace([1.0, 2.0, 3.0, 4.0])
    window.replace([5.0, 6.0])
    assert window.sample().tolist() == [5.0, 6.0]
