"""Masked, several and pictured: short runs on Gymnasium environments from start to artifact."""

import multiprocessing

import pyarrow.parquet as pq
import pytest
import torch

import gymnasium_lab
from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.algorithms.ppo import Ppo
from stormsail.algorithms.run.evaluate import evaluate
from stormsail.algorithms.run.tasks import agent_spec, make_task
from stormsail.algorithms.trainer import train
from stormsail.core.generators import Generators
from stormsail.core.task import MultiDiscreteActions
from stormsail.modules.agent import Agent
from training_lab import UPDATES, image, run_all, run_for, small

LAB = f"gym:{gymnasium_lab.FOLDER}"
LEARNING = {
    "ppo.n_envs": 16, "ppo.n_steps": 32, "ppo.batch_size": 8, "ppo.n_epochs": 4,
    "ppo.learning_rate": 5e-3, "ppo.learning_rate_final": 5e-3, "ppo.gamma": 0.0,
    "network.memory": "none", "network.encoder_sizes": (32,), "network.head_sizes": (32,),
    "critic.num_quantiles": 8, "optimizer.optimizer_class": "AdamW", "kl.target_kl": None,
    "observation.warmup_steps": 8, "compile_update": False,
}  # fmt: skip
EPISODE = 8
"""Steps of an episode of these tasks; each pays at most 1."""


def learned(name, updates):
    """Return the mean return of a greedy episode, per step, before and after some updates."""
    config = derive(TrainConfig().replace(**{**LEARNING, "task.name": f"{LAB}{name}-v0"}))
    generators = Generators(config.seed)
    task, judge = make_task(config, batch=16), make_task(config, batch=64, purpose="evaluation")
    agent = Agent(agent_spec(config, task), generators.stream("weights"))
    ppo = Ppo(task, agent, config, generators)
    scores = []
    for count in (0, updates):
        for _ in range(count):
            ppo.update()
        result = evaluate(judge, agent, torch.Generator().manual_seed(9))
        scores.append(result.score / EPISODE)
    task.close()
    judge.close()
    return agent, scores


def test_a_masked_bandit_is_learned_without_one_forbidden_arm():
    # Three arms are allowed in each state, one of them pays: 1/3 by chance. A forbidden one is an
    # error of the environment.
    _, (before, after) = learned("MaskedBandit", 12)
    assert before < 0.6
    assert after >= 0.95


def test_two_choices_are_learned_at_once():
    # By chance 1/2 * 1/3 + 1/2 * 1/2 = 5/12.
    agent, (before, after) = learned("TwoChoices", 12)
    assert agent.spec.actions.actions() == MultiDiscreteActions((3, 3))
    assert before < 0.7
    assert after >= 0.95


def test_a_lit_quadrant_is_recognised():
    # By chance 1/4.
    agent, (before, after) = learned("Quadrant", 12)
    assert [(part.channels, part.height, part.width) for part in agent.spec.images] == [(1, 8, 8)]
    assert before < 0.5
    assert after >= 0.9


@pytest.mark.parametrize("name", ["Nested", "TwoChoices", "Table", "Plane", "MultiBinaryActions"])
def test_an_agent_of_any_spaces_is_read_as_it_was_saved(name, tmp_path):
    config = small().replace(**{"task.name": f"{LAB}{name}-v0"})
    task = make_task(config, batch=3)
    agent = Agent(agent_spec(config, task), torch.Generator().manual_seed(0))
    agent.save(tmp_path / "agent")
    again = Agent.load(tmp_path / "agent")
    assert again.spec == agent.spec
    assert again.spec.actions.actions() == task.actions
    _, seen = task.reset(torch.Generator().manual_seed(1))
    memory = agent.initial_memory(3)
    first, second = (
        one.decide(seen, memory, deterministic=False, generator=torch.Generator().manual_seed(2))
        for one in (agent, again)
    )
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))
    task.step(task.reset(torch.Generator())[0], first.action, torch.Generator())
    task.close()


def test_a_run_reports_the_numbers_of_the_info_in_columns_of_their_own(tmp_path):
    config = small().replace(**{"task.name": f"{LAB}Countdown-v0"})
    run_for(config, tmp_path / "run", 3)
    done = run_all(config, tmp_path / "run")
    assert (done.status, done.updates) == ("finished", UPDATES)
    table = pq.read_table(tmp_path / "run" / "metrics.parquet").to_pydict()
    names = [name for name in table if name.startswith("rollout/info/")]
    assert names == [f"rollout/info/{name}" for name in ("count", "episode/r", "last", "odd")]
    # 8 rows from the start: counts 1, 2, 3, ignored, 1, 2, 3, ignored; the first update alone
    assert [table[name][0] for name in names] == pytest.approx([2.0, 6.0, 0.5, 2.0 / 3.0])
    assert set(table["debug/nonfinite_metrics"]) == {0.0}


def test_processes_of_their_own_give_the_same_run_and_are_ended(tmp_path):
    children = {child.pid for child in multiprocessing.active_children()}
    changes = {"task.name": "gym:CartPole-v1", "ppo.total_steps": 64, "ppo.n_envs": 2,
               "observation.warmup_steps": 4}  # fmt: skip
    scores = []
    for kind in ("sync", "async"):
        config = small().replace(**changes, **{"task.vectorization": kind})
        done = train(config, out=tmp_path / kind, tensorboard=False)
        weights = torch.cat([p.detach().flatten() for p in done.agent.parameters()])
        scores.append((done.best_score, weights.tolist()))
    assert scores[0] == scores[1]
    assert {child.pid for child in multiprocessing.active_children()} == children


@pytest.mark.filterwarnings("ignore")
def test_processes_are_ended_when_an_environment_fails(tmp_path):
    children = {child.pid for child in multiprocessing.active_children()}
    config = small().replace(**{"task.name": f"{LAB}Breaking-v0", "task.vectorization": "async",
                                "ppo.n_envs": 2})  # fmt: skip
    with pytest.raises(ArithmeticError, match="broken on purpose"):
        train(config, out=tmp_path / "run", tensorboard=False)
    assert {child.pid for child in multiprocessing.active_children()} == children


@pytest.mark.parametrize("task", ["cartpole-lstm", "market"])
@pytest.mark.parametrize("interrupted", [0, 3])
def test_a_run_with_a_warm_up_resumes_bit_for_bit(task, interrupted, tmp_path):
    config = small(task, observation__warmup_steps=5)
    run_all(config, tmp_path / "whole")
    run_for(config, tmp_path / "cut", interrupted)
    run_all(config, tmp_path / "cut")
    assert image(tmp_path / "cut") == image(tmp_path / "whole")


def test_an_agent_of_an_earlier_version_is_read_unchanged():
    config = small("cartpole-lstm")
    task = make_task(config, batch=2)
    agent = Agent(agent_spec(config, task), torch.Generator().manual_seed(0))
    saved = agent.contents()
    spec = dict(saved.documents["agent"])
    del spec["images"]  # what earlier versions did not write
    spec["actions"] = {key: spec["actions"][key] for key in ("kind", "count", "low", "high")}
    again = Agent.restored(spec, saved.tensors["model"], saved.metadata, "agent")
    assert again.spec == agent.spec
    names = [name for name in again.state_dict() if "parts" in name]
    assert names == []  # no weight has another name than before
