"""The warm-up of observation statistics before the first update."""

import numpy as np
import pytest
import torch

from learner_lab import FEATURES, learner, script, settings
from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.algorithms.ppo import Ppo
from stormsail.algorithms.run.tasks import agent_spec, make_task
from stormsail.core.generators import Generators
from stormsail.modules.agent import Agent

T, B = 8, 8


def of_task(name, **changes):
    config = derive(TrainConfig().replace(**{
        "task.name": name, "ppo.n_envs": 16, "ppo.n_steps": 32, "ppo.batch_size": 16,
        "task.data.world_bars": 1500, "network.lstm_hidden_size": 8, "compile_update": False,
        **changes,
    }))  # fmt: skip
    generators = Generators(config.seed)
    task = make_task(config, batch=config.ppo.n_envs)
    return Ppo(
        task, Agent(agent_spec(config, task), generators.stream("weights")), config, generators
    )


@pytest.mark.parametrize("name", ["CartPole-v1", "MountainCarContinuous-v0", "gym:CartPole-v1"])
def test_the_first_rollout_is_normalised(name):
    first, without = of_task(name), of_task(name, **{"observation.warmup_steps": 0})
    seen, raw = (ppo.update().rollout for ppo in (first, without))
    used = seen.weight > 0.0
    mean, std = seen.observation[used].mean(0), seen.observation[used].std(0)
    assert mean.abs().max() < 0.5
    assert 0.5 < std.min() <= std.max() < 2.0
    assert raw.observation[raw.weight > 0.0].std(0).min() < 0.5  # as the task gives it


def test_the_statistics_are_those_of_the_rows_of_the_first_policy():
    ppo = learner(settings(observation__warmup_steps=5))
    rows = ppo.task.told.observation[:5]
    used = ppo.task.told.weight[:5] > 0.0
    scale = ppo.agent.observation_scale
    ppo._warm_up()
    assert int(scale.count) == int(used.sum())
    torch.testing.assert_close(scale.mean, rows[used].double().mean(0))
    torch.testing.assert_close(scale.m2 / scale.count, rows[used].double().var(0, correction=0))


def test_episodes_begin_anew_after_it_and_no_step_is_counted():
    ppo, plain = learner(settings(observation__warmup_steps=5)), learner()
    ppo._warm_up()
    for part, other in zip(ppo.env_state, plain.env_state, strict=True):
        assert all(torch.equal(*pair) for pair in zip([*part], [*other], strict=True))
    assert (ppo.update_count, ppo.steps) == (0, 0)


def test_environments_that_keep_their_own_state_are_seen_as_they_are():
    ppo = of_task("gym:CartPole-v1")
    ppo._warm_up()
    own = torch.from_numpy(np.stack([env.unwrapped.state for env in ppo.task._env.envs]))
    assert torch.equal(ppo.env_state.observation, own.float())
    ppo.task.close()


def test_it_draws_from_streams_of_its_own():
    ppo, plain = learner(settings(observation__warmup_steps=5)), learner()
    before = ppo.generators.stream("actions").get_state()
    ppo._warm_up()
    assert torch.equal(ppo.generators.stream("actions").get_state(), before)
    assert torch.equal(plain.generators.stream("actions").get_state(), before)


def test_it_happens_once():
    ppo = learner(settings(observation__warmup_steps=5))
    counts = []
    for _ in range(3):
        ppo.update()
        counts.append(float(ppo.agent.observation_scale.count))
    used = ppo.task.told.weight > 0.0
    rows = [used[:5].sum() + used[: T * k].sum() for k in (1, 2, 3)]
    assert counts == [float(count) for count in rows]


@pytest.mark.parametrize("reason", ["off", "known", "not normalised"])
def test_it_is_left_out_where_there_is_nothing_to_set(reason):
    changes = {"off": {"observation__warmup_steps": 0}, "known": {"observation__warmup_steps": 5},
               "not normalised": {"observation__warmup_steps": 5,
                                  "observation__normalise": False}}  # fmt: skip
    ppo = learner(settings(**changes[reason]), told=script())
    scale = ppo.agent.observation_scale
    if reason == "known":  # an agent that was trained before
        scale.count.fill_(100.0)
        scale.mean.fill_(1.0)
    ppo._warm_up()
    expected = ([1.0] * len(FEATURES), 100.0) if reason == "known" else ([0.0] * 3, 0.0)
    assert (scale.mean.tolist(), float(scale.count)) == expected
