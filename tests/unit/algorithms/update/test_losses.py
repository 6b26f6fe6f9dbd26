"""The loss of a batch, term by term, against a float64 replay."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from learner_lab import (
    ACTIONS,
    CRITICS,
    ENDS,
    SCALAR,
    prepared,
    settings,
)
from oracles import learner as oracle
from stormsail.algorithms.update import critic_targets
from stormsail.algorithms.update import losses as module
from stormsail.algorithms.update.losses import Batch, batch_sums
from stormsail.algorithms.update.schedules import Scheduled
from stormsail.core.errors import DataError, ShapeError
from stormsail.functional import distribution, policy, quantile
from stormsail.functional.kernels.losses import quantile_pairs
from stormsail.functional.kernels.losses.policy_loss import PolicySums

T, B = 8, len(ENDS)
NOW = Scheduled(
    learning_rate=1e-3, clip_range=0.15, vf_coef=0.7, bc_coef=0.0, ent_coef=0.05, kl_beta=0.0,
    clips_values=False, trains_policy=True,
)  # fmt: skip


def sums(ppo, batch, now=NOW, config=None):
    source = torch.Generator().manual_seed(6)
    return batch_sums(ppo.agent, batch, now, config or ppo.config, source)


def number(x):
    return float(x.detach())


def gradients(ppo, loss):
    """Return the gradient of every parameter, 0 where there is none."""
    parameters = dict(ppo.agent.named_parameters())
    result = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return {
        name: torch.zeros_like(parameter) if grad is None else grad
        for (name, parameter), grad in zip(parameters.items(), result, strict=True)
    }


def changed(batch, **parts):
    return dataclasses.replace(batch, **parts)


FULL = Scheduled(
    learning_rate=1e-3, clip_range=0.15, vf_coef=0.7, bc_coef=0.2, ent_coef=0.05, kl_beta=0.4,
    clips_values=True, trains_policy=True,
)  # fmt: skip


@pytest.mark.parametrize("critic", CRITICS)
@pytest.mark.spec("T-P1", "T-W1", "T-F5", "T-F6", "S1-P1", "S4-V4", "S4-V6", "S3-1", "S4-V2")
def test_the_loss_of_a_batch_is_that_of_the_replay(critic):
    config = settings(
        **CRITICS[critic], critic__huber_kappa=0.2, bc__awr_temperature=2.0, bc__max_weight=3.0,
        value_clip__clip_range_vf=0.2, value_clip__value_clip_limit=None,
        value_clip__distributional_vf_clip_mode="mean_and_variance",
    )  # fmt: skip
    ppo, batch = prepared(config)
    result = sums(ppo, batch, FULL)
    output = ppo.agent.network(batch.observation, batch.memory, batch.reset)

    def flat(x):
        x = x.detach().flatten(0, 1)
        return (x.double() if x.is_floating_point() else x).numpy()

    scale = ppo.agent.return_scale
    expected = oracle.batch_loss(
        {
            "actor": flat(output.actor), "old_actor": flat(batch.parameters),
            "action": flat(batch.raw_action), "old_log_prob": flat(batch.log_prob),
            "advantage": flat(batch.advantage), "weight": flat(batch.weight),
            "predicted": flat(output.critic), "old": flat(batch.predicted),
            "target": flat(batch.target),
        },
        {"clip_range": 0.15, "vf": 0.7, "ent": 0.05, "kl": 0.4, "bc": 0.2},
        kind=critic, kappa=0.2, atoms=ppo.agent.network.critic.atoms.double().numpy(),
        clip={"epsilon": 0.2, "mode": "mean_and_variance", "factor": 2.0, "limit": None,
              "mean": float(scale.mean), "std": float(scale.std)},
        bc=(2.0, 3.0),
    )  # fmt: skip
    assert number(result.weight) == pytest.approx(float(batch.weight.sum()))
    assert float((result.loss / result.weight).detach()) == pytest.approx(expected, rel=2e-4)


def test_the_readings_are_weighted_sums_over_rows_that_count():
    ppo, batch = prepared()
    result = sums(ppo, batch)
    output = ppo.agent.network(batch.observation, batch.memory, batch.reset)
    new = ppo.agent.network.head.log_prob(output.actor, batch.raw_action).detach().double()
    ratio = new - batch.log_prob.double()
    weight = batch.weight.double()
    for name, each in {
        "log_ratio": ratio, "log_ratio_square": ratio**2, "ratio_excess": ratio.expm1(),
        "ratio_excess_square": ratio.expm1() ** 2, "kl": ratio.expm1() - ratio,
        "clipped": ((ratio.exp() - 1.0).abs() > 0.15).double(),
        "extreme": (ratio.abs() > 10.0).double(),
    }.items():  # fmt: skip
        expected = float((weight * each).sum())
        assert number(getattr(result, name)) == pytest.approx(expected, rel=1e-4, abs=1e-6), name
    largest = float(ratio.abs()[weight > 0.0].max())
    assert number(result.log_ratio_max) == pytest.approx(largest, rel=1e-4)
    means = output.critic.detach().double().mean(-1)
    gap = (means[..., 0] - means[..., 1]).abs() * float(ppo.agent.return_scale.std)
    assert number(result.value_gap) == pytest.approx(float((weight * gap).sum()), rel=1e-4)


@pytest.mark.spec("X9", "T-G3")
def test_rows_of_weight_0_change_neither_a_number_nor_a_gradient():
    ppo, batch = prepared()
    dead = batch.weight == 0.0
    assert int(dead.sum()) == 12
    wild = changed(
        batch,
        advantage=torch.where(dead, 1e6, batch.advantage),
        target=torch.where(dead[..., None], -1e6, batch.target),
        log_prob=torch.where(dead, -30.0, batch.log_prob),
        predicted=torch.where(dead[..., None, None], 1e6, batch.predicted),
    )
    config = ppo.config.replace(**{"value_clip.clip_range_vf": 0.2})
    first, second = (sums(ppo, each, FULL, config) for each in (batch, wild))
    for name, a, b in zip(first._fields, first, second, strict=True):
        assert torch.equal(a, b), name
    a, b = gradients(ppo, first.loss), gradients(ppo, second.loss)
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.spec("S3-1", "T-T5")
def test_twin_critics_vf_clipping():
    """Each critic keeps the worse of its own two losses; only then they are averaged.

    The audit asks for an average before the maximum, which lets one critic switch the other off.
    """
    config = settings(**SCALAR, value_clip__clip_range_vf=0.5)
    ppo, batch = prepared(config)
    output = ppo.agent.network(batch.observation, batch.memory, batch.reset).critic.detach()
    # critic 1 has moved by 1 towards the target: held, it is farther; critic 2 has not moved
    old = output.clone()
    old[:, :, 0] -= 1.0
    target = (output[:, :, 0] + output[:, :, 1]) * 0.0 + 5.0
    data = changed(batch, predicted=old, target=target, weight=torch.ones(T, B))
    result = sums(ppo, data, NOW._replace(clips_values=True))
    first = 0.5 * (5.0 - (output[:, :, 0] - 0.5)) ** 2
    second = 0.5 * (5.0 - output[:, :, 1]) ** 2
    assert bool((first > 0.5 * (5.0 - output[:, :, 0]) ** 2).all())
    assert number(result.value) == pytest.approx(float((0.5 * (first + second)).sum()), rel=1e-5)
    assert number(result.vf_clipped) == 0.5 * T * B
    grads = gradients(ppo, result.value)
    # the held branch of critic 1 is flat, that of critic 2 is not
    assert float(grads["network.critic.heads.0.last.bias"].abs().max()) == 0.0
    expected = float((output[:, :, 1] - 5.0).sum()) / 2.0
    found_bias = float(grads["network.critic.heads.1.last.bias"])
    assert found_bias == pytest.approx(expected, rel=1e-5)


@pytest.mark.spec("T-F6", "S4-V6")
def test_the_worse_branch_is_chosen_sample_by_sample():
    config = settings(**SCALAR, critic__use_twin_critics=False, value_clip__clip_range_vf=0.5)
    ppo, batch = prepared(config)
    output = ppo.agent.network(batch.observation, batch.memory, batch.reset).critic.detach()
    old = output.clone()
    old[::2] -= 1.0
    old[1::2] += 1.0
    data = changed(batch, predicted=old, target=output[:, :, 0] + 4.0, weight=torch.ones(T, B))
    result = sums(ppo, data, NOW._replace(clips_values=True))
    # even rows: free 8, held 10.125; odd rows: free 8, held 6.125
    assert number(result.value) == pytest.approx(T * B * (10.125 + 8.0) / 2.0, rel=1e-4)


def test_values_are_held_only_when_the_schedule_says_so():
    ppo, batch = prepared(settings(value_clip__clip_range_vf=0.01))
    free, held = (sums(ppo, batch, NOW._replace(clips_values=on)) for on in (False, True))
    assert number(free.vf_clipped) == 0.0
    assert number(held.vf_clipped) > 1.0
    assert number(held.value) > number(free.value) + 0.1


@pytest.mark.spec("T-P2", "S3-6")
@pytest.mark.parametrize("action", ACTIONS)
def test_policy_gradient_explosion_detection(action):
    """One NaN and one infinity are counted and dropped; the others learn as if alone.

    The audit clamps, which leaves a NaN a NaN.
    """
    actions, distribution = ACTIONS[action]
    ppo, batch = prepared(settings(**distribution), actions=actions, weights=(1.0, 0.5))
    old, weight = batch.log_prob.clone(), batch.weight.clone()
    assert weight[0, 0] > 0.0 < weight[5, 7]
    old[0, 0], old[5, 7] = math.nan, -math.inf
    weight[0, 0] = weight[5, 7] = 0.0
    result = sums(ppo, changed(batch, log_prob=old))
    alone = sums(ppo, changed(batch, weight=weight))
    assert (int(result.nan), int(result.inf)) == (1, 1)
    assert number(result.weight) == number(alone.weight) == float(weight.sum())
    a, b = gradients(ppo, result.loss), gradients(ppo, alone.loss)
    assert all(torch.allclose(a[name], b[name], atol=1e-6) for name in a)


def test_what_is_not_finite_on_an_ignored_row_is_nobodys_business():
    ppo, batch = prepared()
    old = torch.where(batch.weight == 0.0, math.nan, batch.log_prob)
    for rule in ("drop", "zero", "skip", "raise"):
        config = ppo.config.replace(**{"ppo.nonfinite_policy": rule})
        result, plain = sums(ppo, changed(batch, log_prob=old), NOW, config), sums(ppo, batch)
        assert (int(result.nan), int(result.inf)) == (0, 0)
        a, b = gradients(ppo, result.loss), gradients(ppo, plain.loss)
        assert all(torch.allclose(a[name], b[name], atol=1e-6) for name in a), rule


@pytest.mark.spec("T-P2", "S3-6")
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_bad_ratio_may_count_as_one(bad):
    config = settings(ppo__nonfinite_policy="zero")
    ppo, batch = prepared(config)
    old = batch.log_prob.clone()
    old[0, 0] = bad
    result, plain = sums(ppo, changed(batch, log_prob=old)), sums(ppo, batch)
    assert number(result.weight) == number(plain.weight)
    assert bool(result.loss.isfinite())
    own = float(batch.weight[0, 0])
    keep = batch.weight.clone()
    keep[0, 0] = 0.0
    rest = sums(ppo, changed(batch, weight=keep))
    # the sample pays its advantage at ratio 1, and no gradient of the policy
    expected = number(rest.policy) - own * float(batch.advantage[0, 0])
    assert number(result.policy) == pytest.approx(expected, rel=1e-5, abs=1e-5)
    a, b = gradients(ppo, result.policy), gradients(ppo, rest.policy)
    assert all(torch.allclose(a[name], b[name], atol=1e-6) for name in a)


def test_a_bad_ratio_may_void_the_batch():
    config = settings(ppo__nonfinite_policy="skip")
    ppo, batch = prepared(config)
    old = batch.log_prob.clone()
    old[0, 0] = math.nan
    result = sums(ppo, changed(batch, log_prob=old))
    assert number(result.weight) == 0.0
    assert all(float(grad.abs().max()) == 0.0 for grad in gradients(ppo, result.loss).values())


@pytest.mark.refusal
def test_a_bad_ratio_may_stop_everything():
    config = settings(ppo__nonfinite_policy="raise")
    ppo, batch = prepared(config)
    old = batch.log_prob.clone()
    old[0, :2] = math.nan
    with pytest.raises(DataError) as refusal:
        sums(ppo, changed(batch, log_prob=old))
    count = int((batch.weight[0, :2] > 0.0).sum())
    assert str(refusal.value) == (
        f"every log ratio must be finite; found {count} that are not. Lower the learning rate, or "
        "set `ppo.nonfinite_policy` to `drop`. [data-defects]"
    )


@pytest.mark.parametrize("beta", [0.0, 0.4])
@pytest.mark.parametrize("action", ACTIONS)
def test_an_extreme_ratio_stays_finite_in_every_term(action, beta):
    """e^100 is infinite in float32, and 0 times infinity is no number."""
    actions, distribution = ACTIONS[action]
    ppo, batch = prepared(settings(**distribution), actions=actions)
    old = batch.log_prob.clone()
    old[0, 0] -= 200.0
    result = sums(ppo, changed(batch, log_prob=old), NOW._replace(kl_beta=beta))
    assert all(bool(grad.isfinite().all()) for grad in gradients(ppo, result.loss).values())
    for name in ("loss", "kl", "ratio_excess", "ratio_excess_square", "policy"):
        assert bool(getattr(result, name).isfinite()), name
    assert number(result.extreme) == float(batch.weight[0, 0])


# --- imitation -----------------------------------------------------------------------------------


@pytest.mark.spec("T-W1", "S4-V2")
def test_imitation_without_weight_is_not_computed(monkeypatch):
    def never(*_, **__):
        raise AssertionError("computed for nothing")

    ppo, batch = prepared()
    monkeypatch.setattr(module.policy, "awr_loss", never)
    monkeypatch.setattr(module.policy, "awr_weight", never)
    assert number(sums(ppo, batch).bc) == 0.0
    with pytest.raises(AssertionError, match="for nothing"):
        sums(ppo, batch, NOW._replace(bc_coef=0.1))


def test_imitation_weights_may_be_divided_by_their_mean_over_rows_that_count():
    config = settings(bc__awr_temperature=0.5)
    ppo, batch = prepared(config)
    dead = batch.weight == 0.0
    data = changed(batch, advantage=torch.where(dead, 50.0, batch.advantage))
    now = NOW._replace(bc_coef=0.1)
    plain = sums(ppo, data, now)
    divided = sums(ppo, data, now, config.replace(**{"bc.awr_normalize": True}))
    each = (batch.advantage / 0.5).exp().clamp(max=100.0)
    mean = float((batch.weight * each).sum() / batch.weight.sum())
    assert number(divided.bc) == pytest.approx(number(plain.bc) / mean, rel=1e-5)


# --- entropy and warm-up -------------------------------------------------------------------------


@pytest.mark.spec("S3-5", "T-E2", "T-S4")
@pytest.mark.parametrize("action", ACTIONS)
def test_the_bonus_is_the_entropy_of_the_whole_action(action):
    actions, distribution = ACTIONS[action]
    ppo, batch = prepared(settings(**distribution), actions=actions)
    low, high = (sums(ppo, batch, NOW._replace(ent_coef=c)) for c in (0.0, 0.1))
    difference = float((high.loss - low.loss).detach())
    assert difference == pytest.approx(-0.1 * number(low.entropy), rel=1e-3, abs=1e-3)
    parameters = ppo.agent.network(batch.observation, batch.memory, batch.reset).actor
    each = ppo.agent.network.head.entropy(parameters)
    assert each.shape == (T, B)
    assert number(low.entropy) == pytest.approx(float((each * batch.weight).sum().detach()))


@pytest.mark.spec("S3-5", "T-E2")
def test_entropy_multidim_action(monkeypatch):
    """An entropy that still has its action axis is refused, not summed once more."""
    actions, _ = ACTIONS["gaussian"]
    ppo, batch = prepared(actions=actions)
    head = ppo.agent.network.head
    monkeypatch.setattr(head, "entropy", lambda parameters: parameters[..., :2])
    with pytest.raises(ShapeError):
        sums(ppo, batch)


def test_the_entropy_after_squashing_is_sampled_when_asked_for():
    actions, _ = ACTIONS["gaussian"]
    config = settings(entropy__entropy_mode="corrected_mc")
    ppo, batch = prepared(config, actions=actions)
    result = sums(ppo, batch)
    output = ppo.agent.network(batch.observation, batch.memory, batch.reset).actor
    each = ppo.agent.network.head.squashed_entropy(output, torch.Generator().manual_seed(6))
    assert number(result.entropy) == pytest.approx(float((each * batch.weight).sum().detach()))


@pytest.mark.parametrize("own", [False, True])
def test_while_only_critics_learn_the_actor_gets_no_gradient(own):
    ppo, batch = prepared(settings(network__enable_critic_lstm=own))
    result = sums(ppo, batch, FULL._replace(trains_policy=False, clips_values=False))
    grads = gradients(ppo, result.loss)
    for name, grad in grads.items():
        actor = name.startswith("network.actor") or (own and name.startswith("network.trunk"))
        assert (float(grad.abs().max()) == 0.0) is actor, name
    assert number(result.loss) == pytest.approx(0.7 * number(result.value), rel=1e-6)
    trained = gradients(ppo, sums(ppo, batch).loss)
    assert float(trained["network.actor_last.weight"].abs().max()) > 1e-3


@pytest.mark.spec("T-P3", "S3-12", "X16")
def test_the_penalty_is_the_analytic_divergence_from_the_policy_that_played():
    ppo, batch = prepared()
    without, with_it = (sums(ppo, batch, NOW._replace(kl_beta=b)) for b in (0.0, 2.0))
    output = ppo.agent.network(batch.observation, batch.memory, batch.reset).actor
    old, new = batch.parameters.log_softmax(-1), output.log_softmax(-1)
    each = (old.exp() * (old - new)).sum(-1).detach()
    expected = float((each * batch.weight).sum())
    assert number(with_it.analytic_kl) == pytest.approx(expected, rel=1e-4)
    difference = float((with_it.loss - without.loss).detach())
    assert difference == pytest.approx(2.0 * expected, rel=1e-3)


@pytest.mark.parametrize("name", ACTIONS)
def test_every_distribution_is_penalised_by_its_divergence_in_closed_form(name):
    actions, distribution = ACTIONS[name]
    ppo, batch = prepared(settings(**distribution), actions=actions)
    without, with_it = (sums(ppo, batch, NOW._replace(kl_beta=b)) for b in (0.0, 2.0))
    actor = ppo.agent.network(batch.observation, batch.memory, batch.reset).actor
    each = ppo.agent.network.head.kl(batch.parameters, actor).detach()
    expected = float((each * batch.weight).sum())
    assert number(with_it.analytic_kl) == pytest.approx(expected, rel=1e-5)
    difference = float((with_it.loss - without.loss).detach())
    assert difference == pytest.approx(2.0 * expected, rel=1e-3)


def test_a_batch_is_made_of_tensors_that_are_selected_together():
    names = {field.name for field in dataclasses.fields(Batch)}
    assert names == {
        "observation", "memory", "reset", "raw_action", "log_prob", "parameters", "mask",
        "predicted", "weight", "advantage", "target", "options",
    }  # fmt: skip
    assert np.isfinite(float(prepared()[1].advantage.abs().sum()))


def test_without_clipping_the_loss_needs_no_old_predictions():
    ppo, whole = prepared()
    chosen = torch.arange(whole.weight.shape[1]).flip(0)
    full, part = (module.select(whole, chosen, held=held) for held in (True, False))
    assert torch.equal(full.predicted, whole.predicted.flip(1))
    assert part.predicted.shape == (*full.predicted.shape[:-1], 0)
    now = NOW._replace(clips_values=False)
    for one, two in zip(sums(ppo, full, now), sums(ppo, part, now), strict=True):
        assert torch.equal(one, two)


def plain_policy_sums(
    logits, action, old_log_prob, old, advantage, weight, *, clip, entropy_coef, kl_coef, extreme
):
    """The sums of the kernel, term by term: it runs on a CUDA device alone."""
    log_prob = distribution.categorical_log_prob(logits, action)
    bad = policy.count_nonfinite(torch.where(weight > 0.0, log_prob - old_log_prob, 0.0))
    log_prob, old_log_prob, used = policy.drop_nonfinite(log_prob, old_log_prob, weight)
    log_ratio = log_prob - old_log_prob
    surrogate = policy.clipped_surrogate(log_prob, old_log_prob, advantage, clip=clip)
    entropy = distribution.categorical_entropy(logits)
    analytic = distribution.categorical_kl(old, logits)
    bounded = log_ratio.clamp(-policy.LOG_RATIO_LIMIT, policy.LOG_RATIO_LIMIT)
    excess = bounded.expm1()
    columns = (
        surrogate - entropy_coef * entropy + kl_coef * analytic,
        torch.ones_like(used),
        surrogate,
        entropy,
        policy.kl_estimate(bounded, kind="k3"),
        analytic,
        log_ratio,
        log_ratio.square(),
        excess,
        excess.square(),
        policy.ratio_is_clipped(log_ratio, clip=clip).to(used.dtype),
        (log_ratio.abs() > extreme).to(used.dtype),
    )
    totals = [torch.where(used > 0.0, column * used, 0.0).sum() for column in columns]
    peak = torch.where(used > 0.0, log_ratio.abs(), 0.0).max()
    return PolicySums(*totals, bad.nan.to(used.dtype), bad.inf.to(used.dtype), peak, used)


@pytest.mark.parametrize("bad", [False, True], ids=["finite", "one log ratio is not"])
@pytest.mark.parametrize("critic", CRITICS)
def test_terms_of_the_policy_from_one_kernel_enter_the_same_sums(critic, bad, monkeypatch):
    config = settings(**CRITICS[critic], critic__huber_kappa=0.2)
    ppo, batch = prepared(config)
    if bad:
        old = batch.log_prob.clone()
        old[3, 1] = -math.inf
        batch = changed(batch, log_prob=old)
    now = NOW._replace(kl_beta=0.4)
    wanted = sums(ppo, batch, now)
    assert not module.fuses_policy(ppo.agent, batch, now, config)
    monkeypatch.setattr(module, "policy_sums", plain_policy_sums)
    monkeypatch.setattr(module, "may_launch", lambda *_: True)
    assert module.fuses_policy(ppo.agent, batch, now, config)
    assert not module.fuses_policy(ppo.agent, batch, now._replace(bc_coef=0.1), config)
    assert not module.fuses_policy(ppo.agent, batch, now._replace(trains_policy=False), config)
    skips = config.replace(**{"ppo.nonfinite_policy": "skip"})
    assert not module.fuses_policy(ppo.agent, batch, now, skips)
    found = sums(ppo, batch, now)
    for name, mine, other in zip(wanted._fields, found, wanted, strict=True):
        assert mine.dtype == other.dtype, name
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-7, msg=name)
    own, other = gradients(ppo, found.loss), gradients(ppo, wanted.loss)
    for name, value in other.items():
        torch.testing.assert_close(own[name], value, rtol=1e-5, atol=1e-7, msg=name)


@pytest.mark.parametrize("levels", ["uniform", "tail"])
def test_what_is_told_of_quantiles_is_a_by_product_of_the_loss(levels, monkeypatch):
    config = settings(**CRITICS["quantile"], critic__huber_kappa=0.2, critic__levels=levels)
    ppo, batch = prepared(config)
    wanted = sums(ppo, batch)
    monkeypatch.setattr(critic_targets, "may_launch", lambda *_: True)
    monkeypatch.setattr(critic_targets.quantile_pairs, "huber_loss_and_seen", lambda *a: (
        quantile.huber_loss(a[0], a[1], a[2], kappa=a[3], target_weight=a[4]),
        quantile_pairs.Seen(
            quantile.huber_active(a[0], a[1], kappa=a[3], target_weight=a[4]),
            quantile.crossing_fraction(a[0]),
            quantile.expectation(a[0], weight=a[5]),
        ),
    ))  # fmt: skip
    found = sums(ppo, batch)
    for name in ("huber_linear", "crossing", "value_gap"):
        mine, other = getattr(found, name), getattr(wanted, name)
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-7, msg=name)
    assert torch.equal(found.loss, wanted.loss)
