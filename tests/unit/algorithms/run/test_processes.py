"""Several processes train as one does: the same environments, gradients and statistics."""

import pytest
import torch

from processes_lab import beside
from stormsail.algorithms.run import checkpoint
from stormsail.algorithms.run.learners import new_learner
from stormsail.algorithms.run.processes import check_group, end, follow, hand_out, update_together
from stormsail.algorithms.run.state_tree import flatten
from stormsail.algorithms.run.tasks import binding, make_task
from stormsail.algorithms.update.device_epochs import DeviceEpochs
from stormsail.core.errors import ConfigError, RangeError
from stormsail.core.generators import Generators
from stormsail.core.group import ALONE, Group
from stormsail.core.task import Columns, part
from training_lab import small

CASES = {
    "cartpole": small(
        "cartpole-lstm",
        optimizer__optimizer_class="AdaptiveUPGD",
        optimizer__sigma=0.01,
        vgs__enabled=True,
        vgs__warmup_steps=3,
        observation__warmup_steps=5,
    ),
    "pendulum": small("pendulum", entropy__entropy_mode="presquash", critic__kind="categorical"),
    "market": small("market"),
    "risk critic": small("market", risk__form="critic", risk__cvar_weight=0.0),
}
UPDATES = 3


def learner(config, group=ALONE):
    task = make_task(config, batch=config.ppo.n_envs)
    return new_learner(config, task, binding(config), group=group)


def state_after(config, group, updates=UPDATES):
    ppo = learner(config, group)
    for _ in range(updates):
        ppo.update()
    return state_of(ppo)


def state_of(ppo):
    return {
        f"{name}/{path}": value
        for name, part_ in checkpoint.learner_state(ppo).items()
        for path, value in leaves(part_)
    }


def leaves(value):
    tree, tensors = flatten(value)
    yield from tensors.items()
    yield "tree", tree


def assert_close(own, other, *, rtol, atol):
    """Compare two states: numbers to rounding, everything else exactly."""
    assert own.keys() == other.keys()
    for name, value in own.items():
        if not isinstance(value, torch.Tensor):
            assert_tree(name, value, other[name])
        elif value.is_floating_point():
            assert torch.allclose(other[name], value, rtol=rtol, atol=atol, equal_nan=True), name
        else:
            assert torch.equal(other[name], value), name


def assert_tree(name, own, other):
    if isinstance(own, float):
        assert other == pytest.approx(own, rel=1e-3, abs=1e-5), name
    elif isinstance(own, dict):
        assert own.keys() == other.keys(), name
        for key, value in own.items():
            assert_tree(f"{name}.{key}", value, other[key])
    elif isinstance(own, list):
        assert len(own) == len(other), name
        for place, (a, b) in enumerate(zip(own, other, strict=True)):
            assert_tree(f"{name}.{place}", a, b)
    else:
        assert own == other, name


@pytest.mark.parametrize("case", CASES)
def test_two_processes_are_one_with_all_environments(case):
    """The random streams stand at the same place, the environments and weights are the same."""
    config = CASES[case]
    alone = state_after(config, ALONE)
    first, second = beside(2, lambda group: state_after(config, group))
    assert_close(alone, first, rtol=1e-3, atol=2e-5)
    for name, value in first.items():  # to the last bit
        same = torch.equal(value, second[name]) if torch.is_tensor(value) else value == second[name]
        assert same, name


@pytest.mark.parametrize("task", ["cartpole", "market"])
def test_parts_stepped_side_by_side_do_what_the_whole_task_does(task):
    config = small(task)
    whole = make_task(config, batch=6)
    parts = [part(whole, Columns(first, 2, 6)) for first in (0, 2, 4)]
    streams = [Generators(1).stream("task") for _ in range(4)]
    state, seen = whole.reset(streams[0])
    states = [own.reset(stream) for own, stream in zip(parts, streams[1:], strict=True)]
    for _ in range(30):
        assert torch.equal(torch.cat([observation for _, observation in states]), seen)
        action = torch.ones(6, dtype=torch.int64)
        state, step = whole.step(state, action, streams[0])
        seen = step.observation
        taken = [
            own.step(before, action[:2], stream)
            for own, (before, _), stream in zip(parts, states, streams[1:], strict=True)
        ]
        assert torch.equal(torch.cat([other.reward for _, other in taken]), step.reward)
        states = [(after, other.observation) for after, other in taken]
    assert all(torch.equal(stream.get_state(), streams[0].get_state()) for stream in streams)


def test_epochs_without_a_host_sync_share_minibatches_too():
    config = CASES["cartpole"]
    alone = state_after(config, ALONE, updates=1)

    def on_device(group):
        ppo = learner(config, group)
        entropy = ppo.generators.stream("entropy")
        ppo._epochs = DeviceEpochs(
            ppo.agent, ppo.pipeline, config, entropy, captured=False, group=group
        )
        ppo.update()
        return state_of(ppo)

    first, second = beside(2, on_device)
    assert_close(alone, first, rtol=1e-3, atol=2e-5)
    weights = [name for name in first if name.startswith("agent/")]
    assert all(torch.equal(first[n], second[n]) for n in weights if torch.is_tensor(first[n]))


def test_the_others_follow_the_first_process():
    """They get its learner, do every update, survive one that fails, and end when it does."""
    config = CASES["pendulum"]
    followed = []

    def process(group):
        if group.rank > 0:
            follow(group)
            return None
        ppo = learner(config, group)
        hand_out(ppo, binding(config))
        update_together(ppo)
        before = ppo.env_state
        ppo.env_state = before._replace(observation=before.observation * float("nan"))
        with pytest.raises(RangeError):
            update_together(ppo)
        again = learner(config, group)
        hand_out(again, binding(config))
        update_together(again)
        end(group)
        followed.append(True)
        return state_of(again)

    first, _ = beside(2, process)
    assert followed == [True]
    assert_close(state_after(config, ALONE, updates=1), first, rtol=1e-3, atol=2e-5)


def test_an_action_that_one_process_refuses_ends_the_rollout_of_all():
    config = CASES["pendulum"]

    def process(group):
        ppo = learner(config, group)
        spoiled = ppo.env_state.observation.clone()
        spoiled[-1] = float("nan")  # an environment of the second process
        ppo.env_state = ppo.env_state._replace(observation=spoiled)
        with pytest.raises(RangeError) as refusal:
            ppo.update()
        return str(refusal.value)

    first, second = beside(2, process)
    assert "another one in process 1" in first
    assert "another one in process" not in second


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"ppo__n_envs": 3, "ppo__batch_size": 1}, "ppo.n_envs"),
        ({"ppo__batch_size": 1}, "ppo.batch_size"),
        ({"adversary__mode": "kl_reg"}, "adversary.mode"),
        ({"ppo__nonfinite_policy": "raise"}, "ppo.nonfinite_policy"),
        (
            {"vgs__enabled": True, "vgs__statistic": "microbatch", "ppo__microbatch_size": 1},
            "vgs.statistic",
        ),
        ({"entropy__entropy_mode": "corrected_mc"}, "entropy.entropy_mode"),
        ({"policy__distribution": "beta"}, "policy.distribution"),
        ({"observation__obs_stats_update": "online"}, "observation.obs_stats_update"),
        ({"device": "cuda:1"}, "device"),
        ({"task__name": "gym:CartPole-v1"}, "GymnasiumTask cannot be divided"),
    ],
)
def test_what_processes_cannot_share_exactly_is_refused(changes, named):
    config = small("pendulum", **{"entropy__entropy_mode": "presquash", **changes})
    with pytest.raises(ConfigError, match="processes") as refusal:
        check_group(config, Group(0, 2))
    assert named in str(refusal.value)
    check_group(config, ALONE)
