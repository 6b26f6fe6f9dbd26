"""Which outcomes the tail is estimated from."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from learner_lab import ENDS, learner, script, settings
from oracles import risk as risk_oracle
from oracles import risk_control as oracle
from stormsail.algorithms.risk.window import EpisodeWindow, partial_sums
from stormsail.functional import risk


def rollouts(count, **changes):
    ppo = learner(settings(**changes), told=script(seed=3))
    result = []
    for _ in range(count):
        ppo.env_state, rollout = ppo._collect()
        result.append(rollout)
    return result


def arrays(rollout):
    names = ("return_so_far", "reward", "weight")
    parts = {name: getattr(rollout, name).double().numpy() for name in names}
    return parts | {"ended": rollout.ended.numpy(), "ignored": (rollout.length == 0).numpy()}


def test_the_window_keeps_the_last_episodes_across_rollouts():
    window, samples = EpisodeWindow(11), []
    for rollout in rollouts(4):
        window.add(rollout)
        part = arrays(rollout)
        samples += oracle.finished(part["return_so_far"], part["reward"], part["ended"])
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
            ppo.env_state, rollout = ppo._collect()
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
        ppo.env_state, rollout = ppo._collect()
        window.add(rollout)
        assert window.sample().tolist() == expected


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8])
def test_sums_of_rewards_are_those_of_the_loop(steps):
    for rollout in rollouts(3):
        part = arrays(rollout)
        totals, columns = oracle.nstep_sums(part["reward"], part["ended"], part["ignored"], steps)
        result = partial_sums(rollout, steps)
        assert result.total.dtype == torch.float64
        np.testing.assert_allclose(result.total.numpy(), totals, rtol=0, atol=1e-12)
        assert result.environment.tolist() == columns
        assert len(totals) > 0


def test_one_step_is_the_reward_of_every_row_that_counts():
    for rollout in rollouts(2):
        used = rollout.length > 0
        assert partial_sums(rollout, 1).total.tolist() == rollout.reward.double()[used].tolist()


def played(reward, ended):
    """Return a rollout of these columns; the row after an end only starts the next episode."""
    ignored = torch.zeros_like(ended)
    for t in range(1, len(ended)):
        ended[t] &= ~ended[t - 1]
        ignored[t] = ended[t - 1]
    reward = torch.where(ignored, 0.0, reward)
    return SimpleNamespace(reward=reward, ended=ended, length=(~ignored).long())


def test_rows_with_too_few_rows_left_count_in_no_case():
    """Rewards 1, 2, 4, 8, 16 in two environments, sums of three; the second ends at 2 and at 16.

    First: 1 + 2 + 4, 2 + 4 + 8, 4 + 8 + 16. Second: 1 + 2, 2 alone, and row 2 only starts the next
    episode. Its rows 3 and 4 lead to an end within the rollout and still do not count: had they
    gone on instead, nobody would have known what they earn.
    """
    reward = (2.0 ** torch.arange(5.0))[:, None].expand(5, 2)
    ended = torch.tensor([[0, 0], [0, 1], [0, 0], [0, 0], [0, 1]]).bool()
    result = partial_sums(played(reward, ended), 3)
    assert result.total.tolist() == [7.0, 3.0, 14.0, 2.0, 28.0]
    assert result.environment.tolist() == [0, 1, 0, 1, 0]
    assert partial_sums(played(reward, ended), 6).total.tolist() == []


def test_ruin_is_as_frequent_among_the_sums_as_it_is():
    """A ruin has a chance of 0.001 a step and costs 1: 1 - 0.999^64 = 6.2 % of sums of 64 see one.

    20,000 environments are independent, so the error is that of the mean of groups. Sums that
    counted whenever their episode ended in time would see 9.0 %.
    """
    source = torch.Generator().manual_seed(5)
    ruin = torch.rand(128, 20_000, generator=source) < 0.001
    sums, environment = partial_sums(played(-ruin.double(), ruin), 64)
    share, true = float((sums < 0.0).double().mean()), 1.0 - 0.999**64
    error = float(risk.empirical_cvar_error(sums, alpha=1.0, group=environment))
    assert error == pytest.approx(0.0014, abs=0.0002)
    assert share == pytest.approx(true, abs=4.0 * error)
    assert abs(0.0901 - true) > 15.0 * error


@pytest.mark.parametrize(("alpha", "covered", "apart"), [(0.05, 0.82, 0.24), (0.2, 0.93, 0.27)])
def test_the_stated_coverage_of_a_band_around_the_tail_of_sums_that_overlap(alpha, covered, apart):
    """Sums of 64 of 128 normal rewards in 64 environments: their distribution is N(0, 64).

    Under 5 % the tail itself holds too few independent sums, as the docstring says; at 20 % the
    band is within a few points of its 95 %. Taken for independent, sums have a band that is far too
    narrow at either.
    """
    source, draws = torch.Generator().manual_seed(0), 300
    true = 8.0 * risk_oracle.normal_cvar(alpha)
    never = torch.zeros(128, 64, dtype=torch.bool)
    hits = torch.zeros(2)
    for _ in range(draws):
        reward = torch.randn(128, 64, dtype=torch.float64, generator=source)
        sums, environment = partial_sums(played(reward, never.clone()), 64)
        miss = (risk.empirical_cvar(sums, alpha=alpha) - true).abs()
        for place, group in enumerate((environment, None)):
            hits[place] += miss <= 1.96 * risk.empirical_cvar_error(sums, alpha=alpha, group=group)
    for result, share in zip((hits / draws).tolist(), (covered, apart), strict=True):
        assert result == pytest.approx(share, abs=3.0 * math.sqrt(share * (1.0 - share) / draws))


def test_what_is_not_learned_from_is_lost_all_the_same():
    """Rewards -1, -10, -100, then an end; the middle row has weight 0 and counts in full."""
    told = script(["..T....."], rewards=torch.tensor([[-1.0, -10.0, -100.0, 0, 0, 0, 0, 0]]).T)
    told.weight[1] = 0.0
    ppo = learner(settings(**{"ppo.n_envs": 1, "ppo.batch_size": 1, "ppo.n_steps": 4}), told=told)
    ppo.env_state, rollout = ppo._collect()
    assert rollout.weight[:3, 0].tolist() == [1.0, 0.0, 1.0]
    window = EpisodeWindow(4)
    window.add(rollout)
    assert window.sample().tolist() == [-111.0]
    assert partial_sums(rollout, 3).total.tolist() == [-111.0, -110.0]


def test_a_replaced_window_forgets_and_stays_bounded():
    window = EpisodeWindow(3)
    window.replace([1.0, 2.0, 3.0, 4.0])
    window.replace([5.0, 6.0])
    assert window.sample().tolist() == [5.0, 6.0]
