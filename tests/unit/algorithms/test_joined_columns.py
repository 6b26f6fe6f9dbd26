"""An agent whose actor sees its account behind the memory is trained, saved and used as others."""

import torch

from backtest_lab import agent_for, panel, plain
from stormsail.algorithms.run import learners
from stormsail.evaluation import backtest
from stormsail.market.features import ACCOUNT_FEATURES
from stormsail.modules import Agent
from training_lab import image, run_all, run_for, small

JOINED = tuple(ACCOUNT_FEATURES)


def joined(monkeypatch):
    """Let every agent of a trainer have the account's columns behind its memory."""
    plain_spec = learners.agent_spec
    monkeypatch.setattr(
        learners,
        "agent_spec",
        lambda config, task: plain_spec(config, task).replace(after_memory=JOINED),
    )


def test_it_learns_through_the_joined_columns_and_resumes_bit_for_bit(monkeypatch, tmp_path):
    joined(monkeypatch)
    config = small("market")
    run_all(config, tmp_path / "whole")
    run_for(config, tmp_path / "parts", 3)
    run_all(config, tmp_path / "parts")
    assert image(tmp_path / "whole") == image(tmp_path / "parts")
    agent = Agent.load(tmp_path / "whole" / "best")
    assert agent.spec.after_memory == JOINED
    weight = agent.network.actor_body.layers[0].weight.detach()
    assert weight.shape == (6, 5 + len(JOINED))
    gram = weight @ weight.T  # orthogonal rows of size √2 before the first update
    assert not torch.allclose(gram, 2.0 * torch.eye(6), atol=1e-3)


def test_a_backtest_follows_it(tmp_path):
    bars = panel()
    made = agent_for(bars)
    spec = made.spec.replace(after_memory=JOINED)
    agent = Agent(spec, torch.Generator().manual_seed(0), binding=made.binding.values)
    agent.observation_scale.load_state_dict(made.observation_scale.state_dict())
    with torch.no_grad():
        agent.network.actor_last.weight.mul_(40.0)
    agent.save(tmp_path / "agent")
    results = [
        backtest(candidate, bars, plain()) for candidate in (agent, Agent.load(tmp_path / "agent"))
    ]
    assert results[0].order_hash == results[1].order_hash
    assert len(results[0].trades) > 10
