"""Compiled steps and losses on a CPU: eager numbers, numbers that change, resume, and without.

A compiler takes seconds for each, so here the recorded operations run as they are, on the arguments
that its machine code would get; one test of the campaign compiles.
"""

import shutil
from typing import NamedTuple

import pytest
import torch

from stormsail.algorithms.ppo import Ppo
from stormsail.algorithms.run.tasks import agent_spec, make_task
from stormsail.algorithms.update import compiled, epochs
from stormsail.algorithms.update.compiled import CompiledLosses
from stormsail.algorithms.update.losses import Sums, batch_sums
from stormsail.core import precision
from stormsail.core.errors import ConfigError
from stormsail.core.generators import Generators
from stormsail.core.machine_code import graph_compiler
from stormsail.modules.agent import Agent
from training_lab import image, run_all, run_for, small

COMPILER = any(shutil.which(name) for name in ("c++", "g++", "clang++"))
ON = {"compile_update": True}


@pytest.fixture
def recorded(monkeypatch):
    """Run recorded operations without a compiler; return the list of what was recorded."""
    made = []

    def run(graph, arguments, *_):
        made.append(len(arguments))
        return graph

    monkeypatch.setattr(graph_compiler, "_compiled", run)
    monkeypatch.setattr(compiled, "compiled_library", lambda *_, **__: None)
    monkeypatch.setattr(compiled, "LstmRows", lambda _: None)
    monkeypatch.setattr(compiled, "call_whole_steps", lambda _: None)
    return made


class Counted(NamedTuple):
    """State of a task around another."""

    inner: tuple
    steps: torch.Tensor


class Around:
    """A task that adds the steps so far to the reward of another; its state holds the other's."""

    def __init__(self, task):
        self._task = task

    def __getattr__(self, name):
        return getattr(self._task, name)

    def reset(self, generator):
        state, observation = self._task.reset(generator)
        return Counted(state, torch.zeros(self._task.batch)), observation

    def step(self, state, action, generator):
        inner, step = self._task.step(state.inner, action, generator)
        steps = state.steps + 1.0
        return Counted(inner, steps), step._replace(reward=step.reward + steps)


def learner(config, around=lambda task: task):
    task = around(make_task(config, batch=config.ppo.n_envs))
    agent = Agent(agent_spec(config, task), Generators(config.seed).stream("weights"))
    return Ppo(task, agent, config, Generators(config.seed))


def both(task, updates=3, **changes):
    """Return an eager and a compiled learner after some updates, and the last of each."""
    eager, fast = (learner(small(task, **changes, **own)) for own in ({}, ON))
    for _ in range(updates):
        one, two = eager.update(), fast.update()
    return (eager, one), (fast, two)


def agree(eager, fast, *, within):
    """Hold that two learners played the same and learned the same but for rounding."""
    (first, one), (second, two) = eager, fast
    assert torch.equal(one.rollout.raw_action, two.rollout.raw_action)
    torch.testing.assert_close(
        one.rollout.observation, two.rollout.observation, atol=within, rtol=0
    )
    torch.testing.assert_close(one.rollout.memory, two.rollout.memory, atol=within, rtol=0)
    for a, b in zip(one.learned.minibatches, two.learned.minibatches, strict=True):
        for name, x, y in zip(Sums._fields, a.sums, b.sums, strict=True):
            if name != "vf_clipped":  # which of two equal losses is larger is up to rounding
                torch.testing.assert_close(x, y, rtol=1e-3, atol=100.0 * within, msg=name)
            assert x.dtype == y.dtype, name
    for a, b in zip(first.agent.parameters(), second.agent.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0.0, atol=within)
    own, other = (each.generators.state() for each in (first, second))
    assert own.keys() == other.keys()
    assert all(torch.equal(own[name], other[name]) for name in own), "the same draws"


@pytest.mark.parametrize("task", ["pendulum", "market"])
def test_recorded_updates_are_eager_updates(task, recorded):
    agree(*both(task), within=2e-6)
    assert len(recorded) >= 2


def test_a_task_that_holds_the_state_of_another_is_recorded_as_well(recorded):
    eager, fast = (learner(small("pendulum", **own), Around) for own in ({}, ON))
    one, two = eager.update(), fast.update()
    agree((eager, one), (fast, two), within=2e-6)
    steps = fast.env_state.state.steps
    assert torch.equal(steps, eager.env_state.state.steps)
    assert steps.min() > 1.0
    assert len(recorded) >= 2, "rollout and losses"


def prepared(monkeypatch):
    """Return a learner, a minibatch of it, and the numbers that it was learned with."""
    kept = {}
    real = epochs.batch_sums

    def watch(agent, batch, now, *rest, **named):
        kept.setdefault("given", (batch, now))
        return real(agent, batch, now, *rest, **named)

    ppo = learner(small("cartpole-lstm", bc__awr_coef=0.5, kl__penalty=True, kl__target_kl=0.01))
    ppo.update()
    with monkeypatch.context() as patch:
        patch.setattr(epochs, "batch_sums", watch)
        ppo.update()
    return ppo, *kept["given"]


def gradients(ppo, batch, now, losses=None):
    """Return the sums of a batch and the gradients that it leaves."""
    agent = ppo.agent
    agent.zero_grad(set_to_none=True)
    planned, unit = batch.weight.sum(), torch.tensor(2.0)
    source = torch.Generator().manual_seed(3)
    if losses is None:
        sums = batch_sums(agent, batch, now, ppo.config, source, imitation=unit)
        (sums.loss / planned).backward()
    else:
        sums = losses(batch, now, planned, unit)
    return sums, torch.cat([p.grad.flatten() for p in agent.parameters() if p.grad is not None])


CHANGED = {
    "clip_range": 0.01, "vf_coef": 3.0, "bc_coef": 0.9, "ent_coef": 0.7, "kl_beta": 5.0,
    "legacy_risk": 1.5,
}  # fmt: skip


def test_a_number_that_changes_acts_in_losses_that_are_compiled_already(recorded, monkeypatch):
    ppo, batch, now = prepared(monkeypatch)
    now = now._replace(clip_range=0.2, ent_coef=0.1, kl_beta=0.5, bc_coef=0.4, legacy_risk=0.3)
    with torch.no_grad():  # so that ratios lie between the two clip ranges
        ppo.agent.network.actor_last.bias.add_(torch.tensor([0.05, -0.05]))
    losses = CompiledLosses(ppo.agent, ppo.config, torch.Generator())
    _, before = gradients(ppo, batch, now, losses)
    for name, value in CHANGED.items():
        later = now._replace(**{name: value})
        found, after = gradients(ppo, batch, later, losses)
        sums, wanted = gradients(ppo, batch, later)
        torch.testing.assert_close(after, wanted, rtol=1e-4, atol=1e-7, msg=name)
        torch.testing.assert_close(found.loss, sums.loss, rtol=1e-5, atol=1e-6, msg=name)
        assert (after - before).abs().max() > 1e-5, name
    assert len(recorded) == 1


def test_what_is_compiled_once_serves_every_update_and_every_learning_rate(recorded):
    ppo = learner(small("cartpole-lstm", **ON, optimizer__optimizer_class="AdamW"))
    ppo.update()
    before = [p.detach().clone() for p in ppo.agent.network.actor_last.parameters()]
    ppo.rate_factor = 0.0
    ppo.update()
    after = list(ppo.agent.network.actor_last.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    ppo.rate_factor = 1.0
    ppo.update()
    assert not torch.equal(before[0], ppo.agent.network.actor_last.weight)
    assert len(recorded) == 2, "a step and the losses"


def test_other_flags_are_other_losses(recorded, monkeypatch):
    ppo, batch, now = prepared(monkeypatch)
    losses = CompiledLosses(ppo.agent, ppo.config, torch.Generator())
    critics_alone = now._replace(trains_policy=False)
    gradients(ppo, batch, now, losses)
    gradients(ppo, batch, critics_alone, losses)
    actor = ppo.agent.network.actor_last.weight
    assert actor.grad is None, "a weight that nothing reaches has no gradient, not one of 0"
    assert len(recorded) == 2


def test_a_resumed_run_is_the_run_that_never_stopped(recorded, tmp_path):
    config = small("cartpole-lstm", **ON, ppo__total_steps=96, validation__every_updates=3)
    run_all(config, tmp_path / "whole")
    run_for(config, tmp_path / "parts", 2)
    run_all(config, tmp_path / "parts")
    assert image(tmp_path / "whole") == image(tmp_path / "parts")


def test_without_a_compiler_it_says_so_and_gives_the_eager_numbers(monkeypatch):
    def fail(*_, **__):
        raise ConfigError("missing-extra", wrong="a compiler", found="none", remedy="Install one.")

    monkeypatch.setattr(graph_compiler, "_compiled", fail)
    monkeypatch.setattr(compiled, "compiled_library", fail)
    eager, fast = (learner(small("cartpole-lstm", **own)) for own in ({}, ON))
    eager.update()
    with pytest.warns(UserWarning, match="run without a compiler, so more slowly: ") as told:
        fast.update()
    assert [str(each.message).split(" run ")[0] for each in told] == [
        "steps of the optimizer",
        "rollouts",
        "the losses of an update",
    ]
    eager.update()
    fast.update()  # once said is enough: a second warning would be an error here
    own, other = eager.agent.state_dict(), fast.agent.state_dict()
    assert all(torch.equal(own[name], other[name]) for name in own)


def test_without_any_compiler_one_line_says_so():
    eager, fast = (learner(small("cartpole-lstm", **own)) for own in ({}, ON))
    with (
        torch._inductor.config.patch({"cpp.cxx": ("/nonexistent/c++",)}),
        pytest.warns(UserWarning, match="^updates run without a compiler, .* Install one") as told,
    ):
        fast.update()
    assert len(told) == 1
    assert (fast._play, fast._losses) == (None, None)
    fast.update()
    for _ in range(2):
        eager.update()
    own, other = eager.agent.state_dict(), fast.agent.state_dict()
    assert all(torch.equal(own[name], other[name]) for name in own)


def test_where_the_task_steps_on_the_host_the_losses_alone_are_compiled(recorded):
    ppo = learner(small("cartpole-lstm", **ON))
    ppo.task.is_capturable = False
    with pytest.warns(UserWarning, match="^rollouts .*: the task `CartPoleNoVel-v1` steps on the"):
        ppo.update()
    assert (ppo._play is None, len(recorded)) == (True, 1)


def test_what_looks_at_every_minibatch_keeps_its_losses_eager(recorded):
    ppo = learner(small("cartpole-lstm", **ON, ppo__nonfinite_policy="raise"))
    with pytest.warns(UserWarning, match="^the losses of an update .*`ppo.nonfinite_policy`"):
        ppo.update()
    assert (ppo._losses is None, len(recorded)) == (True, 1)


def test_another_precision_than_float32_stays_eager(recorded):
    """Compiled it was another one: products of the rollout, but its last row, were in float32."""
    if not precision._runs_bf16():
        pytest.skip("no bfloat16 on this CPU")
    eager, fast = (learner(small("cartpole-lstm", precision="bf16", **own)) for own in ({}, ON))
    eager.update()
    with pytest.warns(UserWarning, match="`precision` is `bf16`, and only float32 is") as told:
        fast.update()
    assert [str(each.message).split(" run ")[0] for each in told] == [
        "the losses of an update",
        "rollouts",
    ]
    own, other = eager.agent.state_dict(), fast.agent.state_dict()
    assert all(torch.equal(own[name], other[name]) for name in own)
    assert recorded == []


@pytest.mark.campaign
@pytest.mark.skipif(not COMPILER, reason="no C++ compiler")
@pytest.mark.filterwarnings("default")  # torch deprecates functions that its own compiler uses
@pytest.mark.parametrize("task", ["cartpole-lstm", "market"])
def test_compiled_updates_are_eager_updates(task, tmp_path):
    eager, fast = both(task)
    assert fast[0]._play is not None
    assert not fast[0]._losses._fails
    agree(eager, fast, within=1e-5)
    config = small(task, **ON)
    run_all(config, tmp_path / "whole")
    run_for(config, tmp_path / "parts", 3)
    run_all(config, tmp_path / "parts")
    assert image(tmp_path / "whole") == image(tmp_path / "parts")


@pytest.mark.parametrize(
    "idle",
    [
        {"adversary__mode": "kl_reg", "adversary__epsilon": 0.0},
        {"adversary__mode": "mixed_batch", "adversary__adversarial_ratio": 0.0},
        {"adversary__mode": "rollout", "adversary__epsilon": 0.0},
    ],
    ids=lambda idle: idle["adversary__mode"],
)
@pytest.mark.spec("T-S2", "S1-S2")
def test_an_adversary_that_forges_nothing_leaves_everything_compiled(recorded, idle):
    """Otherwise a radius of 0 would give other bits than no adversary: rounding is another."""
    clean, other = (learner(small("cartpole-lstm", **ON, **more)) for more in ({}, idle))
    sizes = []
    for ppo in (clean, other):
        recorded.clear()
        for _ in range(2):
            ppo.update()
        sizes.append(list(recorded))
    assert sizes[0] == sizes[1] != []
    assert (other._losses is None, other._play is None) == (False, False)
    states = clean.agent.state_dict(), other.agent.state_dict()
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
