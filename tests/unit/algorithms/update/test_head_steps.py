"""Steps of the critics' heads alone: what they learn from, and what they leave as it was."""

import copy
from dataclasses import replace

import pytest
import torch

from learner_lab import learner, script, settings
from stormsail.algorithms.run.checkpoint import (
    adopt_learner,
    keep_optimizer,
    learner_state,
    restore_learner,
)
from stormsail.algorithms.update.head_steps import DRAWS, HeadSteps
from stormsail.core.errors import ArtifactError, ConfigError
from stormsail.core.generators import Generators
from stormsail.functional import quantile

ON = {"critic__head_steps": 5, "critic__head_batch": 6, "critic__head_rollouts": 2}
KINDS = {
    "quantile": {},
    "noise and decay": {"optimizer__optimizer_class": "UPGDW"},
    "tail": {"critic__levels": "tail", "critic__num_quantiles": 8},
    "categorical": {"critic__kind": "categorical"},
    "own trunk": {"network__enable_critic_lstm": True},
}
all_kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def made(**changes):
    return learner(settings(**{**ON, **changes}))


def weights(ppo):
    return {name: value.detach().clone() for name, value in ppo.agent.state_dict().items()}


def moved(one, other, name):
    return not torch.equal(one[name], other[name])


@all_kinds
def test_the_steps_move_the_heads_and_nothing_else(kind):
    ppo = made(**kind, returns__normalize_returns="off")
    seen = {}
    learn = ppo.heads.learn

    def watched(data, rate):
        seen["epochs"] = weights(ppo)
        learn(data, rate)

    ppo.heads.learn = watched
    before = weights(ppo)
    ppo.update()
    heads = {f"network.critic.{name}" for name, _ in ppo.agent.network.critic.named_parameters()}
    rest = {name for name, _ in ppo.agent.named_parameters()} - heads
    assert {name for name in rest | heads if moved(before, seen["epochs"], name)} == rest
    assert {name for name in rest | heads if moved(seen["epochs"], weights(ppo), name)} == heads


def test_without_steps_there_is_nothing_to_save():
    ppo = learner(settings())
    assert ppo.heads is None
    assert learner_state(ppo)["heads"] is None
    assert "torch:heads" not in ppo.generators.state()


@all_kinds
def test_only_rows_with_weight_of_the_last_rollouts_are_kept(kind):
    ppo = made(**kind)
    counts = [int((ppo.update().rollout.weight > 0.0).sum()) for _ in range(3)]
    assert [len(rows.weight) for rows in ppo.heads.memory] == counts[1:]
    for rows in ppo.heads.memory:
        assert rows.features.shape == (len(rows.weight), ppo.agent.network.trunk.memory.width)
        assert rows.returns.shape == (len(rows.weight), DRAWS)


def test_kept_returns_are_reward_units_drawn_from_the_target():
    """An episode's end is within each sequence, or the row after it: atoms are known returns."""
    ppo = made(target__kind="mc", ppo__gamma=1.0)
    done = ppo.update()
    wanted = done.estimates.target  # reward units [T, B, M]
    kept = done.rollout.weight > 0.0
    # rows of a sequence lie as in the rollout, since it is one sequence
    rows = ppo.heads.memory[-1]
    far = (rows.returns[:, :, None] - wanted[kept][:, None, :]).abs().amin(-1)
    assert float(far.max()) < 1e-4
    assert float(wanted[kept].std()) > 0.5


def test_draws_of_a_target_have_the_mass_of_its_atoms():
    ppo = made(critic__levels="tail", critic__num_quantiles=8)
    target = torch.arange(8.0).expand(20_000, 8)
    drawn = ppo.agent.return_scale.encode(ppo.heads._draw(target)).round()
    share = torch.stack([(drawn == k).double().mean() for k in range(8)])
    # tail levels of 8: two cells of 2.5 %, then six of 15.83 %; 80,000 draws: 3 sd are .4 points
    torch.testing.assert_close(share, quantile.tail_weights(8).double(), rtol=0.0, atol=5e-3)


def test_draws_of_a_categorical_target_are_its_atoms_in_reward_units():
    ppo = made(critic__kind="categorical")
    ppo.agent.return_scale.mean.fill_(2.0)
    ppo.agent.return_scale.std.fill_(3.0)
    target = torch.zeros(5000, 7)
    target[:, 1], target[:, 5] = 0.25, 0.75
    drawn = ppo.heads._draw(target)
    low, high = float(ppo.agent.atoms[1]), float(ppo.agent.atoms[5])
    assert set(drawn.flatten().tolist()) == {low, high}
    assert float((drawn == low).double().mean()) == pytest.approx(0.25, abs=0.01)


def test_remembered_returns_follow_the_return_scale():
    """The same heads after PopArt have the same prediction, so the same loss in other units."""
    ppo = made(critic__huber_kappa=0.0)
    ppo.update()
    rows, scale, critic = ppo.heads.memory[-1], ppo.agent.return_scale, ppo.agent.network.critic
    before = ppo.heads._losses(rows.features, rows.returns[:, 0])
    old = scale.mean.clone(), scale.std.clone()
    scale.mean.add_(1.5)
    scale.std.mul_(4.0)
    critic.rescale(*old, scale.mean, scale.std)
    after = ppo.heads._losses(rows.features, rows.returns[:, 0])
    torch.testing.assert_close(4.0 * after, before, rtol=1e-4, atol=1e-6)


def test_the_rate_is_a_multiple_of_the_heads_own_and_falls_with_the_square():
    ppo = made(critic__head_rate=2.0, critic__learning_rate_factor=5.0, ppo__learning_rate=0.01)
    data = []
    ppo.heads.learn = lambda *given: data.append(given[0])
    ppo.update()
    HeadSteps.learn(ppo.heads, data[0], 0.004)  # 40 % of the first rate: .004 * 5 * 2 * .4
    assert ppo.heads.optimizer.param_groups[0]["lr"] == pytest.approx(0.016)


def test_each_pass_takes_every_row_once():
    ppo = made(critic__head_steps=4, critic__head_batch=5)
    ppo.update()
    chosen, draw = ppo.heads._chosen(10)
    assert chosen.shape == draw.shape == (4, 5)
    for two in (chosen[:2], chosen[2:]):
        assert sorted(two.flatten().tolist()) == list(range(10))
    assert 0 <= int(draw.min()) <= int(draw.max()) < DRAWS


def test_they_learn_the_quantiles_of_a_known_return():
    """Returns are independent normal numbers: after some updates the heads have their quantiles."""
    told = script(ends=("T.T.T.T.T.T.T.T.T.T.T.T.T.T.T.T.",) * 8, seed=4)
    told = replace(told, observation=torch.ones_like(told.observation))
    config = settings(
        critic__head_steps=60, critic__head_batch=64, critic__head_rollouts=4,
        critic__num_quantiles=8, critic__learning_rate_factor=5.0, critic__head_rate=2.0,
        ppo__learning_rate=4e-3, ppo__learning_rate_final=0.0, ppo__n_steps=32,
        ppo__total_steps=32 * 8 * 4, target__kind="mc", returns__normalize_returns="off",
    )  # fmt: skip
    ppo = learner(config, told=told)
    for _ in range(4):
        done = ppo.update()
    wanted = torch.quantile(done.rollout.reward[done.rollout.weight > 0.0], quantile.midpoints(8))
    predicted = ppo.agent.network.critic(torch.cat([r.features for r in ppo.heads.memory]))
    assert float((predicted.detach().mean((0, 1)) - wanted).abs().max()) < 0.2


@all_kinds
def test_a_restored_learner_goes_on_bit_for_bit(kind):
    first = made(**kind)
    for _ in range(3):
        first.update()
    state = copy.deepcopy(learner_state(first))
    second = made(**kind)
    restore_learner(second, state)
    for ppo in (first, second):
        for _ in range(2):
            ppo.update()
    one, other = weights(first), weights(second)
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("keeps", [True, False])
def test_a_copy_remembers_the_rows_and_keeps_the_moments_only_where_asked(keeps):
    source, copied = made(), learner(settings(**ON), seed=7)
    source.update()
    copied.update()
    own = copy.deepcopy(learner_state(copied))
    fresh = learner(settings(**ON), seed=7)
    adopt_learner(fresh, copy.deepcopy(learner_state(source)), own, keeps_optimizer=keeps)
    for kept, taken in zip(source.heads.memory, fresh.heads.memory, strict=True):
        assert all(map(torch.equal, kept, taken))
    assert bool(fresh.heads.optimizer.state) == keeps


def test_a_kept_optimizer_is_that_of_the_heads_too():
    source, fresh = made(), made()
    source.update()
    keep_optimizer(fresh, copy.deepcopy(learner_state(source)))
    moments = [entry["exp_avg"] for entry in fresh.heads.optimizer.state.values()]
    kept = [entry["exp_avg"] for entry in source.heads.optimizer.state.values()]
    assert all(map(torch.equal, moments, kept))
    assert moments
    assert not fresh.heads.memory  # of another run's rollouts


def damaged(state, part):
    if part == "rows":
        state["heads"]["memory"][0]["returns"] = torch.zeros(3, DRAWS)
    elif part == "moments":
        state["heads"]["optimizer"]["state"][0]["exp_avg"] = torch.zeros(3)
    else:
        state["heads"] = None
    return state


@pytest.mark.parametrize("part", ["rows", "moments", "all"])
def test_a_damaged_state_is_refused(part):
    ppo = made()
    ppo.update()
    state = damaged(copy.deepcopy(learner_state(ppo)), part)
    with pytest.raises(ArtifactError, match="heads"):
        restore_learner(made(), state)


def test_a_mean_has_no_tail_to_learn():
    with pytest.raises(ConfigError, match=r"critic\.head_steps"):
        settings(critic__kind="scalar", target__kind="lambda_return", critic__head_steps=1)


def test_a_stream_of_their_own_leaves_all_other_draws_as_they_were():
    plain, more = learner(settings()), made()
    one, other = plain.update().rollout, more.update().rollout
    assert torch.equal(one.raw_action, other.raw_action)
    assert Generators(0).stream("heads").initial_seed() == more.heads.generator.initial_seed()
