"""A look at the agent in a run: limit and alpha of the settings decide which agent is kept."""

import json
from contextlib import nullcontext

import pytest
import torch

from oracles import risk as oracle
from stormsail.algorithms import trainer
from stormsail.algorithms.run import evaluate as evaluation
from stormsail.algorithms.run.tasks import agent_spec, make_task
from stormsail.algorithms.trainer import Run
from stormsail.core.generators import Generators
from stormsail.modules.agent import Agent
from training_lab import run_all, small

ALPHA, LIMIT = 0.4, 0.0
STEADY = [0.1] * 10
"""Keeps the limit whatever share of it is looked at."""
ONE_BAD = [-1.0] + [0.5] * 9
"""Mean .35. The worst four of ten: (-1 + 3 * .5) / 4 = .125; the worst twentieth: -1."""
FOUR_BAD = [-0.2] * 4 + [1.0] * 6
"""Mean .52, the highest. The worst four: -.2, so it breaks the limit."""
EVALUATIONS = (STEADY, ONE_BAD, FOUR_BAD)


class Told:
    """Episodes of one step that earn what a table says, a line for each evaluation."""

    def __init__(self, task):
        self._task, self.evaluations = task, 0
        self.batch, self.device = task.batch, task.device

    def reset(self, generator):
        self.evaluations += 1
        return self._task.reset(generator)

    def step(self, state, action, generator):
        state, step = self._task.step(state, action, generator)
        reward = torch.tensor(EVALUATIONS[self.evaluations - 1], dtype=step.reward.dtype)
        return state, step._replace(reward=reward, terminated=torch.ones_like(step.terminated))


@pytest.fixture
def run(tmp_path, monkeypatch) -> tuple[Run, list[dict[str, torch.Tensor]]]:
    """A run of three evaluations, with the weights that were looked at."""
    make, evaluate, seen = trainer.make_task, trainer.evaluate, []

    def made(config, *, purpose="train", **options):
        task = make(config, purpose=purpose, **options)
        return Told(task) if purpose == "evaluation" else task

    def recorded(task, agent, *arguments, **options):
        seen.append({name: tensor.clone() for name, tensor in agent.state_dict().items()})
        return evaluate(task, agent, *arguments, **options)

    monkeypatch.setattr(trainer, "make_task", made)
    monkeypatch.setattr(trainer, "evaluate", recorded)
    config = small(
        "market",
        validation__every_updates=2,
        validation__episodes=10,
        validation__policy="greedy",
        risk__cvar_alpha=ALPHA,
        risk__cvar_limit=LIMIT,
        risk__cvar_min_tail_samples=2,
    )
    return run_all(config, tmp_path / "run"), seen


def trials(run):
    lines = (run.path / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] == "trial"]


def test_the_kept_agent_is_the_best_of_those_that_keep_the_limit_of_the_settings(run):
    """At the alpha of the settings the second agent keeps the limit and the third does not.

    Without the limit the third would be kept, with another alpha the first.
    """
    done, seen = run
    result = trials(done)
    assert len(result) == len(seen) == 3
    expected = [oracle.empirical_cvar(one, ALPHA) for one in EVALUATIONS]
    assert expected == pytest.approx([0.1, 0.125, -0.2])
    assert [one["cvar"] for one in result] == pytest.approx(expected, abs=1e-7)
    assert [one["breach"] for one in result] == pytest.approx([0.0, 0.0, 0.2], abs=1e-7)
    assert [one["score"] for one in result] == pytest.approx([0.1, 0.35, 0.52], abs=1e-7)
    assert [one["best"] for one in result] == [True, True, False]
    assert done.best_score == pytest.approx(0.35, abs=1e-7)
    kept = Agent.load(done.best).state_dict()
    assert all(torch.equal(kept[name], tensor) for name, tensor in seen[1].items())
    for other in (seen[0], seen[2]):
        assert not all(torch.equal(kept[name], tensor) for name, tensor in other.items())


def test_an_evaluation_is_in_float32_whatever_the_run_trains_in(monkeypatch):
    asked = []
    monkeypatch.setattr(
        evaluation, "matrix_precision", lambda *given: asked.append(given) or nullcontext()
    )
    config = small("cartpole-lstm", precision="bf16")
    task = make_task(config, batch=2)
    agent = Agent(agent_spec(config, task), Generators(0).stream("weights"))
    evaluation.evaluate(task, agent, torch.Generator().manual_seed(0), max_steps=2)
    assert asked == [("float32", torch.device("cpu"))]
