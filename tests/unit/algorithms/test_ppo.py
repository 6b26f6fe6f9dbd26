"""One update as a whole: the order of its operations, and what it leaves for the next."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from learner_lab import CRITICS, ENDS, SCALAR, aged, learner, script, settings
from oracles import advantage as advantage_oracle
from oracles import learner as oracle
from oracles import returns as returns_oracle
from stormsail.algorithms import ppo as module
from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.ppo import Ppo
from stormsail.algorithms.update.nonfinite import Diverged
from stormsail.core.errors import ConfigError, DataError
from stormsail.functional import advantage, categorical, statistics

T, B = 8, len(ENDS)


def moments(values, weight):
    """Mean and population spread by weight, in float64."""
    mean = (weight * values).sum() / weight.sum()
    return mean, math.sqrt((weight * (values - mean) ** 2).sum() / weight.sum())


def words(**changes):
    """Return what a refusal says, without the settings that it shows."""
    with pytest.raises(ConfigError) as refusal:
        settings(**changes)
    text = str(refusal.value)
    return text[: text.index("; found")], text[text.rindex("[") :]


# --- the order -----------------------------------------------------------------------------------


@pytest.mark.parametrize("critic", CRITICS)
@pytest.mark.spec("T-R1", "T-R2", "S0-3", "S2-3", "S4-V1")
def test_an_update_goes_from_rollout_to_epochs_in_the_order_of_the_replay(critic):
    """Decode with the old statistics, estimate, normalise, move the units, then encode."""
    config = settings(**CRITICS[critic], ppo__gamma=0.9, target__steps=3, ppo__gae_lambda=0.8)
    ppo = aged(learner(config, told=script(weights=(1.0, 0.5))))
    ppo.update()
    scale = ppo.agent.return_scale
    old = float(scale.mean), float(scale.std)
    atoms = ppo.agent.network.critic.atoms.double().numpy().copy()
    update = ppo.update()
    rollout, result = update.rollout, update.estimates
    data = {name: getattr(rollout, name).double().numpy() for name in ("reward", "next_predicted")}
    data |= {name: getattr(rollout, name).numpy() for name in ("terminated", "truncated")}
    predicted = rollout.predicted.double().numpy()
    value = oracle.values(predicted, critic, atoms, *old)
    beyond = oracle.values(data["next_predicted"], critic, atoms, *old)
    raw = returns_oracle.gae(
        data["reward"], value, beyond, data["terminated"], data["truncated"], 0.9, 0.8
    )
    assert result.raw_advantage.numpy() == pytest.approx(raw, abs=1e-4)
    assert result.returns.numpy() == pytest.approx(raw + value, abs=1e-4)
    weight = rollout.weight.double().numpy()
    expected = advantage_oracle.normalise(raw, weight)
    assert update.advantage.numpy() == pytest.approx(expected, abs=1e-4)
    target = oracle.target(
        data, critic, config.target.kind, gamma=0.9, steps=3, lam=0.0, mean=old[0], std=old[1],
        atoms=atoms, scalar_return=raw + value,
    )  # fmt: skip
    assert result.target.numpy() == pytest.approx(target, abs=1e-4)
    mean, std = (float(part) for part in update.scale)
    assert (mean, std) != old
    if critic == "categorical":
        return
    encoded = np.clip((target - mean) / std, -10.0, 10.0) if critic == "scalar" else (
        (target - mean) / std
    )  # fmt: skip
    assert update.target.numpy() == pytest.approx(encoded, abs=1e-3)
    spoken = (old[1] * predicted + old[0] - mean) / std
    assert update.predicted.numpy() == pytest.approx(spoken, abs=1e-4)


@pytest.mark.parametrize("critic", ["quantile", "scalar"])
def test_units_are_those_of_what_the_critics_must_resolve(critic):
    """In the warm-up they are at once those of the targets' atoms, over rows that count."""
    ppo = aged(learner(settings(**CRITICS[critic]), told=script(weights=(1.0, 0.5))))
    update = ppo.update()
    target = update.estimates.target.double().numpy()
    weight = np.broadcast_to(update.rollout.weight.double().numpy()[..., None], target.shape)
    assert [float(part) for part in update.scale] == pytest.approx(moments(target, weight))


@pytest.mark.parametrize("critic", CRITICS)
@pytest.mark.spec("T-R2", "S2-3")
def test_what_is_decoded_is_what_was_encoded_in_every_update(critic, monkeypatch):
    """Between the end of one update's epochs and the start of the next, words keep their value."""
    config = settings(**CRITICS[critic], critic__v_range_ema_alpha=0.0)
    ppo = aged(learner(config))
    moved = []
    move = module.popart_rescale

    def watch(agent, statistics_, returns, weight, predicted, *rest):
        said = agent.return_scale.decode(agent.network.critic.means(predicted))
        out = move(agent, statistics_, returns, weight, predicted, *rest)
        again = agent.return_scale.decode(agent.network.critic.means(out))
        moved.append(float((said - again).abs().max()))
        return out

    monkeypatch.setattr(module, "popart_rescale", watch)
    stds = set()
    for _ in range(5):
        ppo.update()
        stds.add(float(ppo.agent.return_scale.std))
    assert len(stds) == 5
    assert max(moved) < 1e-4


@pytest.mark.spec("S0-3", "T-K4")
def test_targets_of_a_categorical_critic_follow_its_atoms():
    """Units and support move; every target is projected from where its atoms were, in rewards."""
    config = settings(critic__kind="categorical", critic__v_range_ema_alpha=0.3,
                      returns__warmup_updates=0)  # fmt: skip
    ppo = aged(learner(config))
    ppo.update()
    before = ppo.agent.atoms.double()
    update = ppo.update()
    after = ppo.agent.atoms.double()
    assert float((after - before).abs().max()) > 0.1
    target = update.estimates.target.double()
    expected = categorical.project_distribution(target, before.expand(target.shape), after)
    assert torch.allclose(update.target.double(), expected, atol=1e-4)
    assert not torch.allclose(target, expected, atol=1e-2)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_the_support_of_a_categorical_critic_fits_rewards_of_any_size(size):
    """After the warm-up it reaches ten spreads to either side, whatever a reward is worth."""
    told = script()
    told.reward.mul_(size)
    config = settings(critic__kind="categorical", critic__v_range_ema_alpha=0.0,
                      returns__warmup_updates=2, ppo__gamma=0.0)  # fmt: skip
    ppo = learner(config, told=told)
    ppo.update()
    ppo.update()
    scale, atoms = ppo.agent.return_scale, ppo.agent.network.critic.atoms
    assert float(scale.std) == pytest.approx(size, rel=0.2)
    assert (float(atoms[0]), float(atoms[-1])) == pytest.approx((-10.0, 10.0))
    kept = ppo.agent.atoms.clone()
    ppo.update()  # from here on atoms stay in reward units while statistics move
    assert torch.allclose(ppo.agent.atoms, kept, rtol=1e-4, atol=1e-4 * size)
    assert abs(float(atoms[-1]) - 10.0) > 1e-3


@pytest.mark.spec("T-A5", "S4-V1")
def test_advantages_are_normalised_once_a_rollout(monkeypatch):
    calls, batches = [], []
    scaled, learn = advantage.normalise, module.learn
    monkeypatch.setattr(advantage, "normalise", lambda *a, **k: calls.append(1) or scaled(*a, **k))

    def watch(agent, data, *rest, **named):
        batches.append(data)
        return learn(agent, data, *rest, **named)

    monkeypatch.setattr(module, "learn", watch)
    told = script()
    told.reward.mul_(7.0)
    ppo = learner(settings(ppo__n_epochs=3, ppo__batch_size=2, ppo__microbatch_size=1), told=told)
    update = ppo.update()
    assert len(calls) == 1
    used = batches[0].advantage[batches[0].weight > 0.0]
    assert float(update.estimates.raw_advantage.std()) > 4.0
    assert float(used.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(used.std()) == pytest.approx(1.0, abs=1e-6)
    column = batches[0].advantage[:, 0]
    assert abs(float(column.mean())) > 0.02


@pytest.mark.spec("T-O1", "S0-4", "S1-N1")
def test_observation_statistics_are_taken_in_after_the_rollout_and_before_the_next():
    ppo = aged(learner())
    scale = ppo.agent.observation_scale
    before = statistics.Moments(*(part.clone() for part in scale.moments))
    update = ppo.update()
    merged = statistics.merge(before, update.rollout.seen)
    for a, b, c in zip(before, update.observation_before, merged, strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
    assert all(torch.equal(a, b) for a, b in zip(merged, scale.moments, strict=True))
    second = ppo.update()
    # normalised with what was known before it, not with what it brought
    raw = ppo.task.told.observation[T : 2 * T]
    std = (merged.m2 / merged.count + 1e-8).sqrt()
    expected = ((raw.double() - merged.mean) / std).clamp(-10.0, 10.0).float()
    assert torch.allclose(second.rollout.observation, expected, atol=1e-6)


def test_statistics_stay_empty_where_nothing_is_normalised():
    ppo = learner(settings(observation__normalise=False))
    update = ppo.update()
    assert float(ppo.agent.observation_scale.count) == 0.0
    assert torch.equal(update.rollout.observation, ppo.task.told.observation[:T])


def test_what_the_epochs_get_is_the_rollout_cut_into_sequences(monkeypatch):
    batches = []
    learn = module.learn

    def watch(agent, data, *rest, **named):
        batches.append(data)
        return learn(agent, data, *rest, **named)

    monkeypatch.setattr(module, "learn", watch)
    ppo = aged(learner(settings(ppo__sequence_length=2, ppo__batch_size=4)))
    update = ppo.update()
    data = batches[0]
    whole = {
        "advantage": update.advantage, "target": update.target, "predicted": update.predicted,
        "weight": update.rollout.weight, "log_prob": update.rollout.log_prob,
        "parameters": update.rollout.parameters, "raw_action": update.rollout.raw_action,
        "reset": update.rollout.reset, "observation": update.rollout.observation,
    }  # fmt: skip
    for name, value in whole.items():
        part = getattr(data, name)
        for piece in range(4):
            expected = value[2 * piece : 2 * piece + 2]
            result = part[:, piece * B : piece * B + B]
            assert torch.equal(result, expected), name
    assert torch.equal(data.memory, update.rollout.memory.flatten(0, 1))


# --- schedules and controllers -------------------------------------------------------------------


def test_every_number_of_an_update_comes_from_its_schedule():
    config = settings(
        ppo__total_steps=1000, ppo__learning_rate_final=0.0, ppo__clip_range_warmup=0.4,
        ppo__clip_range_warmup_updates=4, ppo__vf_coef_warmup=1.5, ppo__vf_coef_warmup_updates=4,
        ppo__critic_grad_warmup_updates=1, entropy__ent_coef_decay_steps=10, bc__awr_coef=0.2,
        bc__bc_warmup_steps=0, bc__bc_decay_steps=128, kl__penalty=True,
        value_clip__clip_range_vf=0.2, value_clip__vf_clip_warmup_updates=1,
        ppo__vf_bad_explained_scale=1.0,
    )  # fmt: skip
    ppo = learner(config)
    first, second = ppo.update().now, ppo.update().now
    assert (first.learning_rate, second.learning_rate) == pytest.approx((1e-2, 1e-2 * 0.936))
    assert (first.clip_range, second.clip_range) == pytest.approx((0.4, 0.35))
    assert (first.vf_coef, second.vf_coef) == pytest.approx((1.5, 1.25))
    assert (first.bc_coef, second.bc_coef) == pytest.approx((0.2, 0.1))
    assert (first.ent_coef, second.ent_coef) == pytest.approx((0.01, 0.0091))
    assert (first.trains_policy, second.trains_policy) == (False, True)
    assert (first.clips_values, second.clips_values) == (False, True)
    assert first.kl_beta == 0.01
    assert second.kl_beta == ppo.config.kl.beta_min
    assert ppo.steps == 2 * T * B
    assert all(group["lr"] == second.learning_rate for group in ppo.optimizer.param_groups)


def test_the_rate_reaches_a_tensor_in_place():
    ppo = learner()
    rate = torch.tensor(0.5)
    ppo.optimizer.param_groups[0]["lr"] = rate
    ppo._set_rate(0.25)
    assert float(rate) == 0.25
    assert ppo.optimizer.param_groups[0]["lr"] is rate


def test_controllers_hear_of_the_finished_update():
    ppo = learner(settings(entropy__ent_coef_plateau_window=4, ppo__n_epochs=2))
    heard = []
    ppo.entropy.observe = lambda *parts: heard.append(parts)
    ppo.kl.end_update = lambda *parts: heard.append(parts)
    update = ppo.update()
    reports = update.learned.minibatches
    entropy = sum(float(r.sums.entropy) for r in reports) / sum(
        float(r.sums.weight) for r in reports
    )
    explained = float(update.estimates.explained_variance)
    assert heard[0] == (0, pytest.approx(entropy, rel=1e-6), explained)
    assert heard[1] == (pytest.approx(np.mean(update.learned.divergence)),)
    assert ppo.explained_variance == explained
    assert ppo.update_count == 1


def test_early_stop_is_wired():
    config = settings(kl__target_kl=1e-9, ppo__n_epochs=4, ppo__batch_size=2)
    update = aged(learner(config)).update()
    assert update.learned.stopped == "absolute"
    assert update.learned.epochs == 1
    assert len(update.learned.minibatches) == 2  # at the first the policy has not moved yet
    assert update.learned.divergence[0] == pytest.approx(0.0, abs=1e-9)


def test_while_only_critics_learn_the_actors_weights_stay_bit_for_bit():
    config = settings(
        ppo__critic_grad_warmup_updates=2, optimizer__optimizer_class="AdaptiveUPGD",
        optimizer__weight_decay=0.1, network__enable_critic_lstm=True, bc__awr_coef=0.5,
    )  # fmt: skip
    ppo = learner(config)

    def actor():
        names = ("network.actor", "network.trunk")
        return [
            p.detach().clone() for n, p in ppo.agent.named_parameters() if n.startswith(names)
        ]  # fmt: skip

    begun = actor()
    critic = ppo.agent.network.critic.heads[0].last.weight
    first = critic.detach().clone()
    ppo.update()
    ppo.update()
    assert all(torch.equal(a, b) for a, b in zip(begun, actor(), strict=True))
    assert not torch.equal(first, critic)
    ppo.update()
    assert not all(torch.equal(a, b) for a, b in zip(begun, actor(), strict=True))


def test_earlier_advantages_stand_in_for_a_rollout_without_spread():
    """The second rollout pays nothing and its values are level: nothing to divide by."""
    told = script(("........" * 3,) * 2)
    told.observation[8:16] = told.observation[8, 0]
    config = settings(
        **SCALAR, ppo__advantage_mode="previous_stats", ppo__n_envs=2, ppo__batch_size=2,
        ppo__gamma=0.0, ppo__adv_std_floor=1e-3, network__memory="none",
    )  # fmt: skip
    told.reward[8:16] = 1.0
    ppo = learner(config, told=told)
    assert ppo.advantage_moments is None
    first = ppo.update()
    raw = first.estimates.raw_advantage.double()
    rollouts, mean, variance = (float(part) for part in ppo.advantage_moments)
    std = variance**0.5
    assert rollouts == 1.0
    assert (mean, std) == pytest.approx((float(raw.mean()), float(raw.std())))
    second = ppo.update()
    expected = (second.estimates.raw_advantage - mean) / std
    assert torch.allclose(second.advantage, expected, atol=1e-5)
    # a rollout without spread is no new reference
    assert [float(part) for part in ppo.advantage_moments] == [rollouts, mean, variance]


@pytest.mark.parametrize("beta", [0.98, 0.5])
def test_a_slow_scale_is_that_of_the_rollouts_before(beta):
    told = script(("........" * 5,) * 2, weights=(1.0, 0.5), seed=4)
    told.reward[24:32] *= 1000.0  # the fourth rollout: it must not shrink itself
    config = settings(
        **SCALAR, ppo__advantage_scale="slow", ppo__advantage_scale_beta=beta, ppo__n_envs=2,
        ppo__batch_size=2,
    )  # fmt: skip
    ppo = learner(config, told=told)
    before = []
    for number in range(5):
        update = ppo.update()
        raw, weight = (part.double().numpy() for part in (update.mixed, update.rollout.weight))
        moments = advantage_oracle.running(before or [(raw, weight)], beta)
        assert [float(part) for part in update.moments] == pytest.approx(
            [max(number, 1), *moments], rel=1e-9
        )
        expected = advantage_oracle.normalise_by(raw, *moments, weight)
        assert update.advantage.numpy() == pytest.approx(expected, rel=1e-5, abs=1e-5)
        before.append((raw, weight))
    assert [float(part) for part in ppo.advantage_moments] == pytest.approx(
        [5.0, *advantage_oracle.running(before, beta)], rel=1e-9
    )


def test_a_slow_scale_waits_for_the_first_spread():
    """Nothing is paid and all values are level in the first rollout; the second one pays."""
    told = script(("........" * 2,) * 2)
    told.observation[:8] = told.observation[0, 0]
    told.reward[:8] = 1.0
    config = settings(
        **SCALAR, ppo__advantage_scale="slow", ppo__n_envs=2, ppo__batch_size=2, ppo__gamma=0.0,
        ppo__adv_std_floor=1e-3, network__memory="none",
    )  # fmt: skip
    ppo = learner(config, told=told)
    ppo.update()
    assert float(ppo.advantage_moments.variance) < 1e-6
    update = ppo.update()
    assert torch.equal(torch.stack(update.moments), torch.stack(ppo.advantage_moments))
    assert float(update.advantage.abs().max()) < 3.0


# --- numbers that are not finite -----------------------------------------------------------------


class Refusing:
    """A pipeline whose steps are refused as often as told."""

    def __init__(self, ppo, times):
        self.step, self.left = ppo.pipeline.step, times
        ppo.pipeline.step = self

    def __call__(self):
        report = self.step()
        if self.left > 0:
            self.left -= 1
            return report._replace(stepped=torch.tensor(False))
        return report


def test_a_refused_step_is_shown_and_halves_the_rate():
    ppo = learner(settings(ppo__batch_size=4))
    shown = []
    ppo.on_refusal = lambda batch, report: shown.append((batch, report))
    Refusing(ppo, 1)
    ppo.update()
    assert len(shown) == 1
    assert shown[0][0].weight.shape == (T, 4)
    assert (ppo.rate_factor, ppo.refusals) == (0.5, 0)
    assert ppo.schedule().learning_rate == pytest.approx(5e-3)


def test_three_refusals_in_a_row_end_the_run():
    ppo = learner(settings(ppo__batch_size=2))
    Refusing(ppo, 3)
    with pytest.raises(Diverged, match=r"^3 losses or gradients in a row were not finite$"):
        ppo.update()
    assert ppo.rate_factor == 0.125


def test_refusals_are_counted_across_updates():
    ppo = learner()
    Refusing(ppo, 3)
    ppo.update()
    ppo.update()
    assert ppo.refusals == 2
    with pytest.raises(Diverged):
        ppo.update()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_reward_that_is_not_finite_is_refused_before_anything_changes(bad):
    told = script()
    told.reward[3, 0] = bad
    ppo = learner(told=told)
    before = {name: value.clone() for name, value in ppo.agent.state_dict().items()}
    with pytest.raises(DataError, match="1 of 64 numbers in `reward`"):
        ppo.update()
    after = ppo.agent.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_network_that_is_not_finite_is_a_divergence():
    ppo = learner()
    with torch.no_grad():
        ppo.agent.network.critic.heads[0].last.bias.fill_(math.nan)
    with pytest.raises(Diverged, match="predictions"):
        ppo.update()


@pytest.mark.parametrize("start", [0.0, 0.01])
def test_the_entropy_bonus_ends_with_the_run_and_zero_is_none(start):
    ppo = learner(settings(entropy__ent_coef=start, ppo__total_steps=5 * 64 - 1))
    seen = []
    for number in range(5):
        ppo.update_count = number
        seen.append(ppo.schedule().ent_coef)
    falling = [0.01, 0.00775, 0.0055, 0.00325, 0.001]
    assert seen == pytest.approx(falling if start else [0.0] * 5, rel=1e-12)


def test_imitation_falls_over_the_run():
    ppo = learner(settings(bc__awr_coef=0.4, ppo__total_steps=640))
    seen = []
    for number in (0, 2, 6, 10):
        ppo.update_count = number
        seen.append(ppo.schedule().bc_coef)
    assert seen == pytest.approx([0.4, 0.4, 0.2, 0.0], rel=1e-12)  # from 128 to 640 steps


# --- impossible settings -------------------------------------------------------------------------

IMPOSSIBLE = {
    "a sequence that does not divide the rollout": (
        {"ppo.sequence_length": 3},
        "`ppo.sequence_length` must divide `ppo.n_steps` 8, not 3",
    ),
    "a minibatch larger than the batch": (
        {"ppo.batch_size": 9},
        "`ppo.batch_size` must be at most the 8 sequences of a rollout, not 9",
    ),
    "the same with sequences": (
        {"ppo.sequence_length": 4, "ppo.batch_size": 17},
        "`ppo.batch_size` must be at most the 16 sequences of a rollout, not 17",
    ),
    "a micro-batch larger than the minibatch": (
        {"ppo.batch_size": 4, "ppo.microbatch_size": 5},
        "`ppo.microbatch_size` must be at most `ppo.batch_size` 4, not 5",
    ),
    "quantiles of a categorical critic": (
        {"critic.kind": "categorical", "value_clip.clip_range_vf": 0.2,
         "value_clip.distributional_vf_clip_mode": "per_quantile"},
        "`value_clip.distributional_vf_clip_mode` must be `mean_only` or `mean_and_variance` for a "
        "categorical critic, which has no quantiles",
    ),
    "quantiles of a scalar critic": (
        {**SCALAR, "value_clip.clip_range_vf": 0.2,
         "value_clip.distributional_vf_clip_mode": "per_quantile"},
        "`value_clip.distributional_vf_clip_mode` must be `mean_only` or `mean_and_variance` for a "
        "scalar critic, which has no quantiles",
    ),
    "a law for a scalar critic": (
        {"critic.kind": "scalar"},
        "`target.kind` must be `lambda_return` for a scalar critic, not `nstep`, which is a "
        "distribution",
    ),
    "a mixture of quantiles for atoms": (
        {"critic.kind": "categorical", "target.kind": "lambda_mixture"},
        "`target.kind` must be `nstep`, `td`, `mc` or `lambda_return` for a categorical critic, "
        "not `lambda_mixture`, which is made of quantiles",
    ),
    "nothing to compare within a step": (
        {"vgs.enabled": True, "vgs.statistic": "microbatch"},
        "`ppo.microbatch_size` must cut every minibatch into two parts or more for "
        "`vgs.statistic` `microbatch`, which compares them; the smallest has 8 sequences",
    ),
    "nothing to compare in the last minibatch": (
        {"vgs.enabled": True, "vgs.statistic": "microbatch", "ppo.batch_size": 6,
         "ppo.microbatch_size": 3},
        "`ppo.microbatch_size` must cut every minibatch into two parts or more for "
        "`vgs.statistic` `microbatch`, which compares them; the smallest has 2 sequences",
    ),
    "the tail of a mean": (
        {**SCALAR, "risk.cvar_weight": 0.1},
        "`critic.kind` must be `quantile` or `categorical` with settings of `risk`, not `scalar`:"
        " a mean has no tail",
    ),
    "a limit to watch on a mean": (
        {**SCALAR, "risk.cvar_limit": -0.1},
        "`critic.kind` must be `quantile` or `categorical` with settings of `risk`, not `scalar`:"
        " a mean has no tail",
    ),
    "the tail of returns whose spread is hidden": (
        {"target.kind": "lambda_return", "risk.cvar_weight": 0.1},
        "`target.kind` must be a distribution for `risk.cvar_policy_mode` `budget`, not "
        "`lambda_return`, whose spread is less than half of the return's",
    ),
    "a constraint without a limit": (
        {"risk.cvar_use_constraint": True},
        "`risk`: `cvar_limit` must be set where `cvar_use_constraint` is true: a constraint "
        "without a limit holds nothing",
    ),
    "a constraint that nothing presses": (
        {"risk.cvar_use_constraint": True, "risk.cvar_limit": -0.1, "risk.cvar_kp": 0.0,
         "risk.cvar_ki": 0.0, "validation.every_updates": 0},
        "`risk`: one of `cvar_kp`, `cvar_ki` and `cvar_kd` must be above 0 where "
        "`cvar_use_constraint` is true: without a gain the multiplier stays at 0",
    ),
    "a cut through the tail": (
        {"risk.cvar_winsor_pct": 0.3},
        "`risk`: `cvar_winsor_pct` must be at most 0.25 percent, a twentieth of `cvar_alpha` "
        "0.05, not 0.3: a cut near the tail's own share erases the tail",
    ),
    "a budget of single rewards": (
        {"risk.cvar_quantity": "step"},
        "`risk`: `cvar_policy_mode` must be `state` for the quantity `step`, not `budget`, which "
        "is about the return of a whole episode",
    ),
    "tail episodes of partial sums": (
        {"risk.cvar_quantity": "nstep", "risk.cvar_policy_mode": "episode"},
        "`risk`: `cvar_policy_mode` must be `state` for the quantity `nstep`, not `episode`, "
        "which is about the return of a whole episode",
    ),
    "a multiplier that follows another quantity": (
        {"risk.cvar_quantity": "nstep", "risk.cvar_policy_mode": "state",
         "risk.cvar_use_predicted_for_dual": True},
        "`risk`: `cvar_use_predicted_for_dual` must be false for the quantity `nstep`: the "
        "critics predict returns of episodes, and a multiplier must follow the quantity that its "
        "limit is about",
    ),
    "a window that never holds a tail": (
        {"risk.cvar_weight": 0.1, "risk.cvar_alpha": 0.01},
        "`risk`: `cvar_window` must hold at least 1000 episodes, so that `cvar_min_samples` 200 "
        "of them and `cvar_min_tail_samples` 10 in a tail of 0.01 can ever be reached, not 512",
    ),
    "a rollout that never holds a tail": (
        {"risk.cvar_weight": 0.1, "risk.cvar_quantity": "nstep", "risk.cvar_policy_mode": "state",
         "target.steps": 3},
        "a rollout must give at least 200 outcomes of the quantity `nstep` before the tail can "
        "act, not 48; raise `ppo.n_envs` or `ppo.n_steps`, or lower `target.steps`",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "said"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
@pytest.mark.refusal
def test_settings_that_cannot_be_together_are_refused_by_name(changes, said):
    assert words(**changes) == (said, "[config-inconsistent]")


@pytest.mark.spec("S4-2", "T-C5", "M09")
@pytest.mark.parametrize("alpha", [0.0, -1.0, 1.1, 9.9e-5, math.nan])
@pytest.mark.refusal
def test_a_tail_that_no_rollout_can_show_is_refused(alpha):
    with pytest.raises(ConfigError) as refusal:
        settings(**{"risk.cvar_alpha": alpha})
    assert "risk.cvar_alpha" in str(refusal.value)


def test_what_is_possible_is_not_refused():
    assert isinstance(
        settings(
            **{"ppo.sequence_length": 4, "ppo.batch_size": 16, "ppo.microbatch_size": 16,
               "critic.kind": "categorical",
               "vgs.statistic": "microbatch"}
        ),
        TrainConfig,
    )  # fmt: skip


@pytest.mark.spec("S3-arch")
def test_an_update_is_all_that_a_reader_needs():
    update = learner().update()
    assert {field.name for field in dataclasses.fields(update)} == {
        "number", "now", "rollout", "estimates", "risk", "mixed", "advantage", "moments",
        "target", "predicted", "scale", "learned", "observation_before",
    }  # fmt: skip
    assert not [name for name in vars(Ppo) if name.startswith("_last")]
