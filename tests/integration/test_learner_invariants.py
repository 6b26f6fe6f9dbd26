"""What must hold in every update of the real learner, however it is set up."""

import itertools

import pytest
import torch

from learner_lab import ACTIONS, CRITICS, ENDS, SCALAR, aged, learner, script, settings
from stormsail.algorithms.update.rollout import collect, sequences

B = len(ENDS)
CHUNKS = {"whole columns": (None, B), "sequences of 4": (4, 2 * B), "of 1": (1, 8 * B)}


def setup(memory, critic, chunk, *, own, distribution, **more):
    length, batch = CHUNKS[chunk]
    return settings(
        **{
            "network.memory": memory,
            "network.enable_critic_lstm": own,
            "ppo.sequence_length": length,
            "ppo.batch_size": batch,
            **CRITICS[critic],
            **distribution,
            **more,
        }
    )


GRID = [
    (*case, own)
    for case in itertools.product(("lstm", "gru", "none"), CRITICS, CHUNKS)
    for own in (False, True)
    if case[2] != "of 1" or (case[1] == "quantile" and not own)
]


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(("memory", "critic", "chunk", "own"), GRID)
@pytest.mark.spec("T-L4", "T-O1", "X10", "S0-4")
def test_before_the_first_step_every_ratio_is_one(memory, critic, chunk, own, action):
    """Rollouts begin mid-episode, on ends of both kinds, on ignored rows and on fresh memories."""
    actions, distribution = ACTIONS[action]
    config = setup(memory, critic, chunk, own=own, distribution=distribution)
    ppo = aged(learner(config, actions=actions))
    ppo.update()
    update = ppo.update()
    first = update.learned.minibatches[0]
    assert not first.skipped
    assert float(first.sums.weight) == float(update.rollout.weight.sum()) == 52.0
    assert float(first.sums.log_ratio_max) < 2e-5
    assert float(first.sums.kl) == pytest.approx(0.0, abs=1e-8)
    assert float(first.sums.clipped) == 0.0
    assert float(first.sums.analytic_kl) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("memory", ["lstm", "gru", "none"])
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.spec("T-L4")
def test_the_critics_repeat_what_they_said_as_well(memory, chunk, own):
    ppo = aged(learner(setup(memory, "quantile", chunk, own=own, distribution={})))
    ppo.update()
    length = CHUNKS[chunk][0] or 8
    streams = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    _, rollout = collect(
        ppo.task, ppo.agent, ppo.env_state, steps=8, sequence_length=length, generators=streams
    )
    cut = sequences(rollout, length)
    output = ppo.agent.network(cut.observation, cut.memory, cut.reset)
    assert torch.allclose(output.critic, cut.predicted, atol=2e-5)
    assert torch.allclose(output.actor, cut.parameters, atol=2e-5)


@pytest.mark.parametrize("chunk", ["whole columns", "sequences of 4"])
def test_a_wrong_memory_or_reset_would_be_seen(chunk):
    """The invariant has teeth: each of these slips moves a ratio by far more than its bound."""
    ppo = aged(learner(setup("lstm", "quantile", chunk, own=False, distribution={})))
    ppo.update()
    length = CHUNKS[chunk][0] or 8
    streams = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    _, rollout = collect(
        ppo.task, ppo.agent, ppo.env_state, steps=8, sequence_length=length, generators=streams
    )
    cut = sequences(rollout, length)
    late = torch.roll(cut.reset, 1, 0)
    none = torch.zeros_like(cut.reset)
    slips = {
        "memory of zeros": (cut.observation, torch.zeros_like(cut.memory), cut.reset),
        "memory of another": (cut.observation, cut.memory.roll(1, 0), cut.reset),
        "reset a row late": (cut.observation, cut.memory, late),
        "no reset": (cut.observation, cut.memory, none),
        "normalised again": (ppo.agent.normalised(cut.observation), cut.memory, cut.reset),
    }
    for name, slip in slips.items():
        parameters = ppo.agent.network(*slip).actor.detach()
        new = ppo.agent.network.head.log_prob(parameters, cut.raw_action)
        gap = (new - cut.log_prob).abs()[cut.weight > 0.0].max()
        assert float(gap) > 1e-3, name


@pytest.mark.parametrize("when", ["between_rollouts", "online"])
@pytest.mark.spec("T-O1", "S0-4")
def test_only_frozen_statistics_make_a_rollout_one_policy(when):
    """`online` is for comparison: there equal observations meet different policies in a rollout.

    The ratio is 1 all the same, because rows are stored as the network saw them.
    """
    told = script(("........",) * 2)
    told.observation[:] = told.observation[0, 0]
    config = settings(
        **{"network.memory": "none", "observation.obs_stats_update": when,
           "ppo.n_envs": 2, "ppo.batch_size": 2}
    )  # fmt: skip
    ppo = learner(config, told=told)
    update = aged(ppo).update()
    rows = update.rollout.parameters[:, 0]
    same = bool(torch.isclose(rows, rows[0], atol=1e-6).all())
    assert same is (when == "between_rollouts")
    assert float(update.learned.minibatches[0].sums.log_ratio_max) < 2e-5


def test_same_seed_same_bytes_and_another_seed_others():
    def trained(seed):
        ppo = learner(settings(ppo__n_epochs=2, ppo__batch_size=3), seed=seed)
        ppo.update()
        ppo.update()
        return torch.cat([p.detach().flatten() for p in ppo.agent.parameters()])

    assert torch.equal(trained(0), trained(0))
    assert not torch.equal(trained(0), trained(1))


# --- the infinite horizon ------------------------------------------------------------------------

GAMMA = 0.9


def constant_reward_values(end, **changes):
    """Return what the critics say of every counted row after learning a reward of 1 for ever."""
    rows, batch = 12, 8
    ends = tuple("." * (3 + b) + end + "." * (rows - 4 - b) for b in range(batch))
    told = script(ends, rewards=torch.ones(rows, batch))
    told.observation.copy_(torch.zeros_like(told.observation))
    config = settings(
        **{
            "ppo.n_envs": batch, "ppo.n_steps": rows, "ppo.batch_size": batch, "ppo.n_epochs": 4,
            "ppo.learning_rate": 3e-2, "ppo.gamma": GAMMA, "network.memory": "none",
            "observation.normalise": False,
            "kl.target_kl": None, "critic.twin_value_mode": "mean",
            **changes,
        }
    )  # fmt: skip
    ppo = learner(config, told=told)
    for _ in range(30):
        update = ppo.update()
    return update.estimates.value[update.rollout.weight > 0.0]


@pytest.mark.parametrize(
    "changes",
    [{}, {"critic.kind": "categorical", "critic.v_max": 15.0}, SCALAR,
     {"target.kind": "lambda_return"}],
    ids=["nstep", "categorical", "scalar", "lambda return"],
)  # fmt: skip
def test_a_reward_of_one_for_ever_is_worth_one_over_one_minus_gamma(changes):
    values = constant_reward_values("U", **changes)
    assert values.numpy() == pytest.approx(1.0 / (1.0 - GAMMA), rel=0.02)


def test_without_the_bootstrap_a_time_limit_makes_the_future_worthless():
    values = constant_reward_values("T")
    assert float(values.max()) < 0.75 / (1.0 - GAMMA)
