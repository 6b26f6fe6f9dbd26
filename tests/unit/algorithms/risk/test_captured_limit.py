"""The control of all actions with its games and its learning as CUDA graphs: the plain numbers."""

import warnings

import pytest
import torch

from bets_lab import bets_learner, limited
from host_reads import host_reads
from stormsail.algorithms.update import graphs
from stormsail.algorithms.update.device_epochs import DeviceEpochs
from stormsail.algorithms.update.graphs import Recorder
from stormsail.bench.bets.bets_worlds import KNOWN

STAKES, ONE_BET = KNOWN["stakes-8"], KNOWN["one-bet-10"]
"""In the first what follows depends on the account: episodes are played on after every action."""

GAMES = {"draws whose actions are held", "replayed draws"}
STEPS = {"the steps of the risk critic"}


class Replayed:
    """A graph of a machine without any: to be made it runs the function, and puts draws back."""

    def __init__(self, function, generators):
        self.function = function
        states = [generator.get_state() for generator in generators]
        function()
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)

    def __call__(self):
        return self.function()


def learners(world, **changes):
    every = {**limited(world), "ppo.n_envs": 32, "network.memory": "lstm", **changes}
    return bets_learner(world, **every)


def told(ppo, update):
    """Return what the control says of an update, and all weights."""
    report = update.risk
    numbers = (report.tail.empirical, report.tail.error, report.multiplier, report.loss)
    critic = [weight.detach().flatten() for weight in ppo.risk.critic.averaged.parameters()]
    policy = [weight.detach().flatten() for weight in ppo.agent.parameters()]
    return torch.tensor(numbers), torch.cat(critic).cpu(), torch.cat(policy).cpu()


@pytest.mark.parametrize("world", [STAKES, ONE_BET], ids=["stakes", "one bet"])
def test_a_limit_through_places_of_a_graph_is_a_plain_one(world, monkeypatch):
    """A graph plays one number of episodes, and its steps run before they count."""
    monkeypatch.setattr(graphs, "Graph", Replayed)
    plain, placed = learners(world), learners(world)
    placed.risk.critic._recorder = Recorder(captured=True)
    placed.risk._recorder = Recorder(
        captured=True, generators=[placed.risk._stream(name) for name in ("replay", "task")]
    )
    for _ in range(5):
        one, two = plain.update(), placed.update()
        for a, b in zip(told(plain, one), told(placed, two), strict=True):
            torch.testing.assert_close(a, b, rtol=0.0, atol=0.0)
    assert set(placed.risk._recorder._known) == GAMES
    assert set(placed.risk.critic._recorder._known) == STEPS


@pytest.mark.gpu
@pytest.mark.parametrize("world", [STAKES, ONE_BET], ids=["stakes", "one bet"])
def test_a_captured_limit_is_the_eager_one(world):
    captured = learners(world, device="cuda", precision="float32")
    eager = learners(world, device="cuda", precision="float32", cuda_graphs="off")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a part that cannot be captured says so
        for _ in range(6):
            pairs = zip(told(captured, captured.update()), told(eager, eager.update()), strict=True)
            for a, b in pairs:
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    assert set(captured.risk._recorder._known) == GAMES
    assert set(captured.risk.critic._recorder._known) == STEPS
    assert captured._rollouts is not None


@pytest.mark.gpu
def test_the_first_weights_of_the_risk_critic_are_the_same_on_every_device():
    here, there = learners(ONE_BET), learners(ONE_BET, device="cuda")
    pairs = zip(
        here.risk.critic.values.parameters(), there.risk.critic.values.parameters(), strict=True
    )
    assert all(torch.equal(a, b.cpu()) for a, b in pairs)


@pytest.mark.parametrize("world", [STAKES, ONE_BET], ids=["stakes", "one bet"])
def test_a_limit_of_all_actions_looks_at_the_device_so_often(world, monkeypatch):
    """Once for each thing it decides on; sizes of its memory it knows. A float counts twice."""
    ppo = learners(world)
    entropy = ppo.generators.stream("entropy")
    ppo._epochs = DeviceEpochs(ppo.agent, ppo.pipeline, ppo.config, entropy, captured=False)
    for _ in range(5):
        ppo.update()
    with host_reads(monkeypatch) as (places, leaves):
        ppo.update()
    assert len(leaves) == 2
    assert len(places) <= 14, places
