"""A control that learns values of actions is saved whole, goes on to the bit, refuses others."""

import copy
import dataclasses
import math

import pytest
import torch

from backtest_lab import plain
from bets_lab import COST, bets_learner, limited
from learner_lab import aged, learner, script, settings
from stormsail.algorithms.ppo import Ppo
from stormsail.algorithms.risk.limit import LimitControl
from stormsail.algorithms.run.checkpoint import (
    floating_state,
    learner_state,
    restore_learner,
)
from stormsail.algorithms.run.folder import open_run
from stormsail.algorithms.run.start_from import load_start
from stormsail.algorithms.run.state_tree import flatten, unflatten
from stormsail.algorithms.run.tasks import agent_spec, binding, make_task, market_panel
from stormsail.algorithms.trainer import Trainer, train
from stormsail.algorithms.update.nonfinite import tensors_of
from stormsail.bench.bets.bets_worlds import World
from stormsail.core.errors import ArtifactError, ConfigError
from stormsail.core.generators import Generators
from stormsail.evaluation import backtest
from stormsail.market.features import ACCOUNT_FEATURES
from stormsail.modules import Agent
from training_lab import image, run_all, run_for, small

SHARES = World(
    "shares", -4.0, 3, (0.0, 0.5, 1.0), (((0.3, -1.0), (0.7, 0.9)),), alpha=0.2, wealth=10.0
)
MARKET = small("market", risk__cvar_weight=0.0)
HARD = {"risk.cvar_limit": -0.9}
TAKEN = {
    "risk.cvar_alpha": 0.3,
    "risk.cvar_min_samples": 4,
    "risk.cvar_min_tail_samples": 1,
    "risk.cvar_use_constraint": True,
    "risk.cvar_limit": 0.5,
}


def bets():
    """Return a learner whose rollouts end within episodes, and whose limit is broken a little."""
    parts = {"risk.cvar_trust": "verified", "risk.cvar_floor": True}
    return bets_learner(COST, **limited(COST, **HARD), **{"ppo.n_steps": 4}, **parts)


def pole():
    return aged(learner(settings(**TAKEN), told=script(weights=(1.0, 0.5), seed=4)))


def numbers():
    """Return a learner whose action is a number."""
    world = dataclasses.replace(COST, continuous=True)
    return bets_learner(world, **limited(world, **HARD), **{"ppo.n_steps": 4})


def shares():
    """Return a learner whose stakes are shares of a wealth, so that episodes are branched."""
    ppo = bets_learner(SHARES, **limited(SHARES))
    assert ppo.risk.branches
    return ppo


MADE = {
    "all actions": bets,
    "some of many": numbers,
    "shares of a wealth": shares,
    "the taken one": pole,
}


def saved(ppo):
    """Return the state as a file gives it back."""
    tree, tensors = flatten(learner_state(ppo))
    return unflatten(tree, {name: tensor.clone() for name, tensor in tensors.items()})


def tensors(ppo):
    return {name: x.clone() for name, x in tensors_of(learner_state(ppo), "state")}


def same(one, other):
    assert one.keys() == other.keys()
    return all(torch.equal(one[name], other[name]) for name in one)


# --- going on ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MADE)
def test_every_floating_tensor_of_a_saved_limit_is_looked_at(kind):
    ppo = MADE[kind]()
    for _ in range(2):
        ppo.update()
    with torch.no_grad():
        for tensor in floating_state(ppo):
            tensor.fill_(math.nan)
    left = [
        name for name, x in tensors(ppo).items() if x.is_floating_point() and bool((x == x).any())
    ]
    assert left == []


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("before", [1, 3])
def test_a_restored_learner_computes_what_the_first_one_did(kind, before):
    first = MADE[kind]()
    for _ in range(before):
        first.update()
    state = saved(first)
    second = MADE[kind]()
    restore_learner(second, state)
    assert same(tensors(first), tensors(second))
    for _ in range(2):
        one, other = first.update(), second.update()
        assert (one.risk.level, one.risk.multiplier) == (other.risk.level, other.risk.multiplier)
        assert one.risk.loss == other.risk.loss
    assert same(tensors(first), tensors(second))
    if kind != "the taken one":
        for name in ("updates", "level", "share", "integral", "bound_updates"):
            assert getattr(first.risk, name) == getattr(second.risk, name)
    if kind == "all actions":
        assert first.risk.share > 0.0


def test_a_control_that_has_seen_nothing_is_saved_too():
    first, second = bets(), bets()
    restore_learner(second, saved(first))
    first.update()
    second.update()
    assert same(tensors(first), tensors(second))


def test_a_market_goes_on_bit_for_bit_after_an_interruption(tmp_path):
    assert MARKET.risk.form == "critic"
    run_all(MARKET, tmp_path / "whole")
    run_for(MARKET, tmp_path / "parts", 3)
    run_all(MARKET, tmp_path / "parts")
    assert image(tmp_path / "whole") == image(tmp_path / "parts")


def test_the_state_holds_both_memories_and_all_that_follows():
    ppo = bets()
    for _ in range(3):
        ppo.update()
    state = saved(ppo)["risk"]
    assert set(state) == {
        "critic", "draws", "updates", "level", "share", "integral", "bound_updates", "scale",
        "mixed", "balance", "verified",
    }  # fmt: skip
    assert set(state["critic"]) == {"values", "averaged", "optimizer", "memory", "updates"}
    assert set(state["draws"]) == {"kept", "open"}
    assert state["critic"]["updates"] == state["updates"] == 3
    assert state["critic"]["memory"]["added"] == 3
    kept = state["draws"]["kept"]
    assert len(kept["result"]) == 64
    assert int(kept["is_scored"].sum()) == len(ppo.risk.draws)
    (starts, first), known = state["draws"]["open"]
    assert len(starts) == len(ppo.env_state.state)
    assert (first.shape, known.tolist()) == ((16, 3), [True] * 16)
    assert len(state["critic"]["optimizer"]["state"]) == len(
        list(ppo.risk.critic.values.parameters())
    )


def needed(part):
    """Return whether a learner that goes on without a part of the control's state computes other
    numbers."""
    first = bets()
    for _ in range(4):  # 16 rows: the next one goes on with an episode
        first.update()
    second = bets()
    state = saved(first)
    restore_learner(second, state)
    fresh = bets().risk
    owner, name = part
    target = {"risk": second.risk, "draws": second.risk.draws, "critic": second.risk.critic}[owner]
    source = {"risk": fresh, "draws": fresh.draws, "critic": fresh.critic}[owner]
    setattr(target, name, getattr(source, name))
    for ppo in (first, second):
        for _ in range(2):
            ppo.update()
    return not same(tensors(first), tensors(second))


@pytest.mark.parametrize(
    "part",
    [
        *(("risk", name) for name in ("updates", "level", "integral", "scale", "mixed", "balance")),
        ("risk", "verified"),
        *(("critic", name) for name in ("values", "memory", "updates")),
        *(("draws", name) for name in ("kept", "_open")),
    ],
    ids=lambda part: "/".join(part),
)
def test_every_part_of_it_is_needed(part):
    assert needed(part)


# --- refusals ------------------------------------------------------------------------------------


def without(*path):
    def change(state):
        for name in path[:-1]:
            state = state[name]
        del state[path[-1]]

    return change


def instead(value, *path):
    def change(state):
        for name in path[:-1]:
            state = state[name]
        old = state[path[-1]]
        state[path[-1]] = value(old) if callable(value) else value

    return change


def shorter(tensor):
    return tensor[..., :-1].clone()


DAMAGE = {
    "no critic": without("critic"),
    "no draws": without("draws"),
    "no level": without("level"),
    "no values": without("critic", "values"),
    "a weight is missing": without("critic", "values", "states.1.1.bias"),
    "a weight is shorter": instead(shorter, "critic", "values", "states.1.1.bias"),
    "a weight is whole numbers": instead(lambda x: x.long(), "critic", "values", "states.1.1.bias"),
    "a moment is shorter": instead(shorter, "critic", "optimizer", "state", 0, "exp_avg"),
    "a moment is missing": without("critic", "optimizer", "state", 0, "exp_avg_sq"),
    "no memory": without("critic", "memory"),
    "a column is missing": without("critic", "memory", "table", "last"),
    "a column is shorter": instead(shorter, "critic", "memory", "table", "reward"),
    "flags are numbers": instead(lambda x: x.float(), "critic", "memory", "table", "last"),
    "fewer rollouts": instead(
        lambda table: {k: v[:-1] for k, v in table.items()}, "critic", "memory", "table"
    ),
    "rollouts are counted below 0": instead(-1, "critic", "memory", "added"),
    "updates of the critic are a text": instead("3", "critic", "updates"),
    "a result is missing": instead(shorter, "draws", "kept", "result"),
    "results are whole numbers": instead(lambda x: x.long(), "draws", "kept", "result"),
    "a state is missing": instead(lambda x: x[:-1], "draws", "kept", "state"),
    "a state of another task": instead(lambda x: (x[0][:, :-1], *x[1:]), "draws", "kept", "state"),
    "an action is missing": instead(shorter, "draws", "kept", "constant"),
    "a running episode is missing": instead(
        lambda x: ((x[0][0], x[0][1][:-1]), x[1]), "draws", "open"
    ),
    "not known which began": instead(lambda x: x[:1], "draws", "open"),
    "a scale is missing": instead(lambda x: x[:1], "scale"),
    "half a verification": instead(lambda x: x[:, :1], "verified"),
    "a verification more than is kept": instead(lambda x: x.repeat(30, 1), "verified"),
    "a rate is missing": instead(lambda x: x[:1], "balance"),
    "two sizes of the mixture": instead(lambda x: x.repeat(2), "mixed"),
    "a share of all": instead(1.0, "share"),
    "a share below 0": instead(-0.1, "share"),
    "an endless integral": instead(7.0, "integral"),
    "a level in words": instead("low", "level"),
    "half an update": instead(0.5, "updates"),
}


@pytest.fixture(scope="module")
def state_of_bets():
    ppo = bets()
    for _ in range(3):
        ppo.update()
    return saved(ppo)


@pytest.mark.refusal
@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_state_is_refused(name, state_of_bets):
    state = copy.deepcopy(state_of_bets)
    DAMAGE[name](state["risk"])
    with pytest.raises(ArtifactError) as caught:
        restore_learner(bets(), state)
    assert caught.value.code == "artifact-document"
    assert "the saved state of `risk" in str(caught.value)


@pytest.mark.refusal
def test_a_refusal_names_the_tensor(state_of_bets):
    state = copy.deepcopy(state_of_bets)
    DAMAGE["a column is shorter"](state["risk"])
    with pytest.raises(ArtifactError) as caught:
        restore_learner(bets(), state)
    assert str(caught.value) == (
        "the saved state of `risk/critic/memory/reward` must be one of this run; found "
        "torch.float32 of the shape (50, 64, 1), not (50, 64, 2). Go back to an older generation, "
        "or start a new run. [artifact-document]"
    )


@pytest.mark.refusal
@pytest.mark.parametrize(
    "change",
    [
        without("critic"),
        without("plain"),
        without("level"),
        instead("x", "level"),
        instead(shorter, "critic", "values", "states.1.1.bias"),
        instead(shorter, "critic", "memory", "table", "raw_action"),
    ],
)
def test_a_damaged_critic_of_the_taken_action_is_refused(change):
    ppo = pole()
    for _ in range(3):
        ppo.update()
    state = saved(ppo)
    change(state["risk"])
    with pytest.raises(ArtifactError, match="the saved state of `risk"):
        restore_learner(pole(), state)


@pytest.mark.refusal
def test_a_state_of_the_other_form_is_refused(state_of_bets):
    other = bets_learner(
        COST, **limited(COST, **HARD, **{"risk.form": "budget"}),
        **{"ppo.n_steps": 4},
    )  # fmt: skip
    state = {**saved(other), "risk": state_of_bets["risk"]}
    with pytest.raises(ArtifactError, match="the saved state of `risk"):
        restore_learner(other, state)


# --- a task that cannot say what others would have made ------------------------------------------


def test_a_pole_is_trained_with_the_critic_of_the_taken_action(tmp_path):
    config = small(
        "cartpole-lstm",
        risk__cvar_use_constraint=True,
        risk__cvar_limit=15.0,
        risk__cvar_alpha=0.5,
        risk__cvar_window=40,
        risk__cvar_min_samples=4,
        risk__cvar_min_tail_samples=1,
    )
    assert config.risk.form == "critic"
    run_all(config, tmp_path / "whole")
    run_for(config, tmp_path / "parts", 3)
    run_all(config, tmp_path / "parts")
    assert image(tmp_path / "whole") == image(tmp_path / "parts")


def test_level_and_loss_of_the_taken_action_are_finite_and_its_multiplier_moves():
    ppo = pole()
    reports = [ppo.update().risk for _ in range(5)]
    assert math.isnan(reports[0].level) == (not reports[0].tail.is_ready)
    ready = [report for report in reports if report.tail.is_ready]
    assert len(ready) >= 4
    for report in ready:
        assert math.isfinite(report.level)
        assert report.level >= TAKEN["risk.cvar_limit"]
        assert math.isfinite(report.loss)
        assert float(report.risk.abs().max()) > 0.01
    assert ready[-1].multiplier > 0.1


# --- agents --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("limited") / "run"
    train(MARKET, out=out, tensorboard=False)
    return out


def test_an_agent_of_this_form_is_saved_loaded_and_replayed(trained):
    agent = Agent.load(trained / "best")
    assert agent.spec.after_memory == tuple(ACCOUNT_FEATURES)
    assert agent.network.actor_body.layers[0].weight.shape == (6, 5 + len(ACCOUNT_FEATURES))
    task = make_task(MARKET, batch=4)
    assert agent_spec(MARKET, task).after_memory == tuple(ACCOUNT_FEATURES)
    _, observation = task.reset(torch.Generator().manual_seed(0))
    memory = agent.initial_memory(4)
    decided = [
        one.decide(observation, memory, deterministic=True).parameters
        for one in (agent, Agent.load(trained / "best"))
    ]
    assert torch.equal(*decided)


@pytest.mark.refusal
def test_a_run_of_this_form_does_not_begin_from_an_agent_of_the_other(tmp_path):
    budget = small("market", risk__cvar_weight=0.0, risk__form="budget")
    train(budget, out=tmp_path / "first", tensorboard=False)
    start = load_start(tmp_path / "first" / "best", keep_optimizer=False)
    bound = binding(MARKET)
    with (
        open_run(tmp_path / "run", MARKET, bound, source=start.source) as folder,
        pytest.raises(ConfigError) as caught,
    ):
        Trainer(folder, bound, start=start)
    text = str(caught.value)
    assert text.startswith(
        f"`after_memory` must be as in the agent {tmp_path / 'first' / 'best'} that the run begins "
        "from; found `after_memory` "
    )
    assert text.endswith(
        "Set them to the agent's, or begin without `--from`. [config-inconsistent]"
    )


def test_the_control_of_a_market_replays_its_draws():
    generators = Generators(MARKET.seed)
    task = make_task(MARKET, batch=MARKET.ppo.n_envs)
    agent = Agent(agent_spec(MARKET, task), generators.stream("weights"))
    ppo = Ppo(task, agent, MARKET, generators)
    for _ in range(10):
        ppo.update()
    assert isinstance(ppo.risk, LimitControl)
    assert (ppo.risk.horizon, ppo.risk.rounds) == (12, 2)
    measured = ppo.risk.draws.kept.measured
    # an earlier draw has a later result than one after it: it was played again
    assert int(measured.max()) == 9
    assert measured.tolist() != sorted(measured.tolist())


def test_an_agent_of_this_form_is_replayed_over_its_bars(trained):
    agent = Agent.load(trained / "best")
    with torch.no_grad():
        agent.network.actor_last.weight.normal_(
            0.0, 20.0, generator=torch.Generator().manual_seed(3)
        )
        agent.network.actor_last.bias.zero_()
    bars = market_panel(MARKET)
    results = [backtest(agent, bars, plain()) for _ in range(2)]
    assert results[0].order_hash == results[1].order_hash
    assert len(results[0].trades) >= 4
