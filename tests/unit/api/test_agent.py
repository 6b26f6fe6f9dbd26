"""`ss.Agent`: arrays and tensors, one and many, all through the one decision path."""

import gymnasium
import numpy as np
import pytest
import torch

import stormsail as ss
from api_lab import CARTPOLE
from stormsail import modules
from stormsail.algorithms.run.evaluate import evaluate
from stormsail.api.environments import trials
from stormsail.core.errors import (
    ArgumentError,
    ArtifactError,
    ConfigError,
    DtypeError,
    RangeError,
    ShapeError,
)
from stormsail.core.generators import Generators
from stormsail.market import Simulator
from stormsail.tasks import make


@pytest.fixture(scope="module")
def agent(cartpole):
    return cartpole.best_agent


@pytest.fixture(scope="module")
def seen():
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def test_an_agent_is_read_from_its_folder_or_from_its_run(cartpole):
    by_run, by_folder = ss.Agent.load(cartpole.folder), ss.Agent.load(str(cartpole.best))
    below = modules.Agent.load(cartpole.folder)  # the base class takes a run as well
    assert by_run.folder == by_folder.folder == cartpole.best
    for name, tensor in by_run.state_dict().items():
        assert torch.equal(tensor, by_folder.state_dict()[name])
        assert torch.equal(tensor, below.state_dict()[name])


@pytest.mark.refusal
@pytest.mark.parametrize("kind", [ss.Agent, modules.Agent])
def test_a_run_without_an_agent_says_so(kind, tmp_path):
    settings = {**CARTPOLE, "validation.every_updates": 0, "ppo.total_steps": 32}
    run = ss.train(out=tmp_path / "run", tensorboard=False, **settings)
    with pytest.raises(ArtifactError) as caught:
        kind.load(run.folder)
    assert str(caught.value) == (
        f"{run.folder} must be a run with an agent in `best`; found a run that has saved none yet. "
        "Train until the first evaluation; `validation.every_updates` says when. "
        "[artifact-missing]"
    )
    assert run.best_score is None
    assert "best score: none yet" in repr(run)


def test_arrays_and_tensors_one_and_many_give_the_decisions_of_the_base_class(agent, seen):
    memory = agent.initial_memory(3)
    wanted = modules.Agent.decide(agent, seen, memory, deterministic=True)
    tensors = agent.decide(seen)
    assert type(tensors) is ss.Decision
    arrays = agent.decide(seen.numpy().astype(np.float64))
    assert type(arrays) is ss.ArrayDecision
    assert ss.ArrayDecision._fields == ss.Decision._fields
    for name in ss.Decision._fields:
        assert torch.equal(getattr(tensors, name), getattr(wanted, name)), name
        found = getattr(arrays, name)
        assert isinstance(found, np.ndarray)
        np.testing.assert_array_equal(found, getattr(wanted, name).numpy())
    for row in range(3):
        first = agent.initial_memory(1)
        wanted = modules.Agent.decide(agent, seen[row][None], first, deterministic=True)
        arrays, tensors = agent.decide(seen[row].numpy()), agent.decide(seen[row])
        assert arrays.action.shape == ()
        for name in ss.Decision._fields:
            np.testing.assert_array_equal(getattr(arrays, name), getattr(wanted, name)[0].numpy())
            assert torch.equal(getattr(tensors, name), getattr(wanted, name)[0]), name


def test_memory_goes_from_step_to_step(agent, seen):
    first = modules.Agent.decide(agent, seen, agent.initial_memory(3), deterministic=True)
    second = modules.Agent.decide(agent, seen, first.memory, deterministic=True)
    assert not torch.equal(first.value, second.value)
    arrays = agent.decide(seen.numpy(), agent.decide(seen.numpy()).memory)
    np.testing.assert_array_equal(arrays.value, second.value.numpy())
    begun = agent.decide(seen[:1], None)
    alone = agent.decide(seen[0].numpy(), agent.decide(seen[0].numpy()).memory)
    np.testing.assert_array_equal(alone.value, agent.decide(seen[:1], begun.memory).value[0])


def test_a_sampled_agent_draws_from_the_generator_that_it_is_given(cartpole, seen):
    agent = cartpole.best_agent
    agent.judged_policy = "sampled"
    with pytest.raises(ConfigError, match="Pass `generator`, or `deterministic=True`"):
        agent.decide(seen)
    drawn = agent.decide(seen.numpy(), generator=torch.Generator().manual_seed(3))
    wanted = modules.Agent.decide(
        agent,
        seen,
        agent.initial_memory(3),
        deterministic=False,
        generator=torch.Generator().manual_seed(3),
    )
    np.testing.assert_array_equal(drawn.action, wanted.action.numpy())
    agent.decide(seen, deterministic=True)


def test_a_mask_forbids_for_one_and_for_many(agent, seen):
    for allowed in (0, 1):
        mask = np.arange(2) == allowed
        assert int(agent.decide(seen[0].numpy(), mask=mask).action) == allowed
        many = agent.decide(seen.numpy(), mask=np.tile(mask, (3, 1)))
        assert many.action.tolist() == [allowed] * 3


@pytest.mark.refusal
def test_what_does_not_fit_is_refused_by_name(agent, seen):
    with pytest.raises(ShapeError, match="must have the 4 columns"):
        agent.decide(np.zeros(5))
    with pytest.raises(ShapeError, match=r"must be \[4\] or \[B, 4\]; found .*\(1, 3, 4\)"):
        agent.decide(seen[None])
    with pytest.raises(ShapeError, match=r"`memory` must have the shape \(3, 1, 2, 5\)"):
        agent.decide(seen.numpy(), agent.decide(seen[0].numpy()).memory)
    with pytest.raises(ShapeError, match=r"`memory` must have the shape \(1, 2, 5\)"):
        agent.decide(seen[0], agent.decide(seen).memory)
    with pytest.raises(DtypeError, match="must hold numbers"):
        agent.decide(np.array(["left"] * 4))


# ------------------------------------------------------------------ evaluation


def test_an_evaluation_repeats_that_of_the_training(cartpole, agent):
    rules = cartpole.config.validation
    again = agent.evaluate("CartPoleNoVel-v1", rules.episodes, seed=5, policy=rules.policy)
    assert again.score == cartpole.best_score
    assert (again.low, again.high) == cartpole.best_interval
    assert again.policy == agent.judged_policy == cartpole.best_policy


def test_an_environment_of_gymnasium_gives_what_a_plain_loop_over_it_gives(agent):
    env = gymnasium.make("CartPole-v1")
    result = agent.evaluate(env, 12, seed=2, policy="greedy")
    named = agent.evaluate("gym:CartPole-v1", 12, seed=2, policy="greedy")
    assert named == pytest.approx(result, nan_ok=True)
    starts = torch.randint(2**31, (), generator=Generators(2).stream("validation"))
    totals = []
    for copy in range(12):
        observation, _ = env.reset(seed=int(starts) + copy)
        memory, total, over = None, 0.0, False
        while not over:
            decision = agent.decide(observation, memory, deterministic=True)
            memory = decision.memory
            observation, reward, ended, cut, _ = env.step(int(decision.action))
            total, over = total + reward, ended or cut
        totals.append(total)
    assert len(set(totals)) > 1
    assert result.score == np.mean(totals)
    assert result.episodes == 12


def test_a_task_of_ours_is_played_as_the_trainer_plays_it(agent):
    result = agent.evaluate("CartPole-v1", 5, seed=7, policy="sampled")
    streams = Generators(7)
    wanted = evaluate(
        make("CartPole-v1", batch=5),
        agent,
        streams.stream("validation"),
        policy="sampled",
        actions=streams.stream("validation.actions"),
    )
    assert result == pytest.approx(wanted, nan_ok=True)


def test_a_market_is_bars_or_an_environment_on_them(market):
    agent = ss.Agent.load(market / "runs" / "run")
    panel = ss.load_bars(market / "store")
    by_bars = agent.evaluate(panel, 6, seed=1, policy="sampled")
    by_env = agent.evaluate(ss.make_market(panel, agent=agent), 6, seed=1, policy="sampled")
    assert by_bars == pytest.approx(by_env, nan_ok=True)
    assert (by_bars.episodes, by_bars.bars) == (6, 6 * 12)
    env = ss.make_market(panel, agent=agent)
    task = Simulator(panel, env.config, batch=6, scaler=env.scaler)
    streams = Generators(1)
    by_hand = evaluate(
        task,
        agent,
        streams.stream("validation"),
        policy="sampled",
        actions=streams.stream("validation.actions"),
        log_returns=True,
    )
    assert by_hand.score == by_env.score != 0.0
    assert by_hand.sharpe_per_bar == by_env.sharpe_per_bar
    saved = agent.binding.values["scaler"]
    for judged in (panel, env):  # scaled as in training, and not fitted anew
        task = trials(judged, agent, batch=1, device=torch.device("cpu")).task
        np.testing.assert_array_equal(task.scaler.centre.numpy(), np.asarray(saved["centre"]))


@pytest.mark.refusal
def test_what_cannot_be_evaluated_on_is_refused(agent, market):
    with pytest.raises(RangeError, match="`episodes` must be at least 1; found 0"):
        agent.evaluate("CartPole-v1", 0)
    with pytest.raises(ArgumentError, match="a market must be given by its bars"):
        agent.evaluate("market")
    with pytest.raises(ShapeError, match="must have the 4 columns"):
        agent.evaluate("Pendulum-v1", 2)
    with pytest.raises(ConfigError, match="`task` must be what the agent was trained for"):
        agent.evaluate(ss.load_bars(market / "store"), 2)


@pytest.mark.refusal
def test_what_is_no_number_decides_nothing(agent, seen):
    holed = seen[0].numpy().copy()
    holed[1] = np.nan
    with pytest.raises(RangeError, match=r"found 1 that are not a number \(NaN\)"):
        agent.decide(holed)
    with pytest.raises(DtypeError, match="`memory` must hold numbers"):
        agent.decide(seen[0].numpy(), "memory")


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ({"policy": "best"}, "unknown-choice", "one of sampled, greedy, both; found 'best'"),
        ({"episodes": 1.5}, "out-of-range", "`episodes` must be a whole number; found 1.5"),
        ({"episodes": 10**12}, "out-of-memory", "`episodes` 1,000,000,000,000"),
    ],
)
def test_an_evaluation_that_cannot_be_played_is_refused_first(agent, arguments, code, words):
    with pytest.raises(ss.StormsailError) as caught:
        agent.evaluate("CartPole-v1", **arguments)
    assert caught.value.code == code
    assert words in str(caught.value)
