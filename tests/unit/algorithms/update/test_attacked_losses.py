"""The loss with an adversary: which term sees clean rows, which attacked ones, and with what."""

import dataclasses

import pytest
import torch

from learner_lab import ACTIONS, CRITICS, FEATURES, aged, learner, prepared, script, settings
from oracles import learner as oracle
from stormsail.algorithms.update import losses as module
from stormsail.algorithms.update.adversary import Adversary
from stormsail.algorithms.update.losses import batch_sums
from stormsail.algorithms.update.schedules import Scheduled

NOW = Scheduled(
    learning_rate=1e-3, clip_range=0.15, vf_coef=0.7, bc_coef=0.0, ent_coef=0.05, kl_beta=0.0,
    clips_values=False, trains_policy=True, epsilon=0.4,
)  # fmt: skip
REGULARISED = {"adversary__mode": "kl_reg", "adversary__warmup_updates": 0}
MIXED = {"adversary__mode": "mixed_batch", "adversary__warmup_updates": 0}
FORGED = {"adversary__mode": "rollout", "adversary__warmup_updates": 0}
COUNT = 3


def sums(ppo, batch, now=NOW, *, count=COUNT, seed=3, config=None):
    columns = torch.arange(len(FEATURES))
    return batch_sums(
        ppo.agent, batch, now, config or ppo.config, torch.Generator().manual_seed(6),
        adversary=Adversary(columns, torch.Generator().manual_seed(seed)), attacked_count=count,
    )  # fmt: skip


def clean_sums(ppo, batch, now=NOW):
    return batch_sums(ppo.agent, batch, now, ppo.config, torch.Generator().manual_seed(6))


def kept_attack(ppo, batch, now=NOW, **options):
    """Return the sums, and the attacked sequences behind them."""
    kept, real = [], module._attacked

    def watch(*arguments):
        kept.append(real(*arguments))
        return kept[-1]

    module._attacked = watch
    try:
        result = sums(ppo, batch, now, **options)
    finally:
        module._attacked = real
    return result, kept[0]


def number(x):
    return float(x.detach())


def weighed(rows, weight):
    return float((rows.detach().double() * weight.double()).sum())


# -- clean where there is no attack ----------------------------------------------------------------


@pytest.mark.spec("T-S2", "S1-S2")
@pytest.mark.parametrize("name", CRITICS)
@pytest.mark.parametrize("mode", [REGULARISED, MIXED])
def test_without_radius_or_share_the_loss_is_the_clean_one_bit_for_bit(mode, name):
    ppo, batch = prepared(settings(**mode, **CRITICS[name]))
    expected = clean_sums(ppo, batch)
    still = NOW._replace(epsilon=0.0)
    for result in (sums(ppo, batch, still), sums(ppo, batch, count=0)):
        for name_, value in expected._asdict().items():
            assert torch.equal(getattr(result, name_), value), name_


@pytest.mark.spec("T-S2", "S1-S2")
@pytest.mark.parametrize(
    "idle",
    [
        {**REGULARISED, "adversary__epsilon": 0.0},
        {**MIXED, "adversary__epsilon": 0.0},
        {**MIXED, "adversary__adversarial_ratio": 0.0},
        {**FORGED, "adversary__epsilon": 0.0},
        {**FORGED, "adversary__adversarial_ratio": 0.0},
    ],
)
def test_without_radius_or_share_a_run_is_the_clean_one_bit_for_bit(idle):
    small = {"ppo__batch_size": 4, "ppo__microbatch_size": 2, "ppo__n_epochs": 2}
    plain, other = (aged(learner(settings(**small, **more))) for more in ({}, idle))
    for _ in range(3):
        plain.update()
        other.update()
    states = plain.agent.state_dict(), other.agent.state_dict()
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())
    streams = plain.generators.state(), other.generators.state()
    assert streams[1].keys() - streams[0].keys() == {"torch:adversary"}
    assert all(torch.equal(value, streams[1][key]) for key, value in streams[0].items())


# -- kl_reg ----------------------------------------------------------------------------------------


@pytest.mark.spec("T-S3", "S1-S3")
@pytest.mark.parametrize("name", ACTIONS)
def test_the_regulariser_adds_the_divergence_and_leaves_all_else_clean(name):
    actions, distribution = ACTIONS[name]
    ppo, batch = prepared(settings(**REGULARISED, **distribution), actions=actions)
    expected = clean_sums(ppo, batch)
    result, attacked = kept_attack(ppo, batch, count=batch.weight.shape[1])
    for term in ("policy", "value", "entropy", "kl", "analytic_kl", "bc", "log_ratio", "clipped"):
        assert torch.equal(getattr(result, term), getattr(expected, term)), term
    actor = ppo.agent.network(batch.observation, batch.memory, batch.reset).actor
    each = ppo.agent.network.head.kl(actor.detach(), attacked.parameters)
    total = weighed(each, batch.weight)
    assert total / float(batch.weight.sum()) > 1e-3
    added = number(result.loss) - number(expected.loss)
    assert added == pytest.approx(0.1 * total, rel=1e-3)
    assert number(result.robust_kl) == pytest.approx(total, rel=1e-5)
    assert number(result.attacked) == pytest.approx(float(batch.weight.sum()))


@pytest.mark.spec("T-S3", "S1-S3", "X8")
def test_the_divergence_carries_gradient_on_its_attacked_side_alone():
    ppo, batch = prepared(settings(**REGULARISED))
    result, attacked = kept_attack(ppo, batch, count=batch.weight.shape[1])
    parameters = [p for p in ppo.agent.parameters() if p.requires_grad]
    first = torch.autograd.grad(result.loss, parameters, allow_unused=True, retain_graph=True)
    plain = torch.autograd.grad(clean_sums(ppo, batch).loss, parameters, allow_unused=True)
    fixed = ppo.agent.network(batch.observation, batch.memory, batch.reset).actor.detach()
    rows = ppo.agent.network.head.kl(fixed, attacked.parameters)
    term = 0.1 * torch.where(batch.weight > 0.0, rows * batch.weight, 0.0).sum()
    robust = torch.autograd.grad(term, parameters, allow_unused=True)
    sizes = []
    for whole, without, alone in zip(first, plain, robust, strict=True):
        if alone is None:
            continue
        torch.testing.assert_close(whole - without, alone, rtol=1e-3, atol=2e-5)
        sizes.append(float(alone.abs().max()))
    assert max(sizes) > 1e-2


def test_the_regulariser_rests_while_only_the_critics_learn():
    ppo, batch = prepared(settings(**REGULARISED))
    waiting = NOW._replace(trains_policy=False)
    assert torch.equal(sums(ppo, batch, waiting).loss, clean_sums(ppo, batch, waiting).loss)


# -- mixed_batch -----------------------------------------------------------------------------------


FULL = NOW._replace(bc_coef=0.2, kl_beta=0.4, clips_values=True)


@pytest.mark.spec("T-S2", "T-S4", "S1-S2", "X8")
@pytest.mark.parametrize("critic", CRITICS)
def test_the_mixed_loss_is_that_of_the_replay(critic):
    """Policy and critics on mixed rows with the targets of the same rows; all else on clean ones.

    The replay is that of the clean loss, twice: with the outputs on mixed rows, where only policy
    and critics count, and with those on clean rows for the other terms.
    """
    config = settings(
        **MIXED, **CRITICS[critic], critic__huber_kappa=0.2, bc__awr_temperature=2.0,
        bc__max_weight=3.0, value_clip__clip_range_vf=0.2,
        value_clip__distributional_vf_clip_mode="mean_and_variance",
    )  # fmt: skip
    ppo, batch = prepared(config)
    result, attacked = kept_attack(ppo, batch, FULL)
    output = ppo.agent.network(batch.observation, batch.memory, batch.reset)
    mixed, predicted = output.actor.clone(), output.critic.clone()
    robust = torch.zeros_like(batch.weight)
    for place, column in enumerate(attacked.chosen.tolist()):
        mixed[:, column] = attacked.parameters[:, place]
        predicted[:, column] = attacked.predicted[:, place]
        p, q = (x.log_softmax(-1) for x in (output.actor[:, column], mixed[:, column]))
        robust[:, column] = (p.exp() * (p - q)).sum(-1).detach()

    def flat(x):
        x = x.detach().flatten(0, 1)
        return (x.double() if x.is_floating_point() else x).numpy()

    scale = ppo.agent.return_scale

    def replay(actor, values, **coefficients):
        zero = {"clip_range": 0.15, "vf": 0.0, "ent": 0.0, "kl": 0.0, "bc": 0.0}
        return oracle.batch_loss(
            {
                "actor": flat(actor), "old_actor": flat(batch.parameters),
                "action": flat(batch.raw_action), "old_log_prob": flat(batch.log_prob),
                "advantage": flat(batch.advantage), "weight": flat(batch.weight),
                "predicted": flat(values), "old": flat(batch.predicted),
                "target": flat(batch.target),
            },
            zero | coefficients,
            kind=critic, kappa=0.2, atoms=ppo.agent.network.critic.atoms.double().numpy(),
            clip={"epsilon": 0.2, "mode": "mean_and_variance", "factor": 2.0, "limit": None,
                  "mean": float(scale.mean), "std": float(scale.std)},
            bc=(2.0, 3.0),
        )  # fmt: skip

    rest = replay(output.actor, output.critic, ent=0.05, kl=0.4, bc=0.2)
    rest -= replay(output.actor, output.critic)  # without the policy's loss on clean rows
    weight = float(batch.weight.sum())
    expected = (
        replay(mixed, predicted, vf=0.7) + rest + 0.1 * weighed(robust, batch.weight) / weight
    )
    assert number(result.loss) / weight == pytest.approx(expected, rel=5e-4)


@pytest.mark.spec("T-S4", "S1-S4")
@pytest.mark.parametrize("mode", [REGULARISED, MIXED])
def test_the_entropy_bonus_is_that_of_all_clean_rows(mode):
    ppo, batch = prepared(settings(**mode))
    first, second = (sums(ppo, batch, NOW._replace(ent_coef=c)) for c in (0.05, 0.35))
    entropy = number(clean_sums(ppo, batch).entropy)
    assert number(first.entropy) == entropy
    change = number(second.loss) - number(first.loss)
    assert change == pytest.approx(-0.3 * entropy, rel=1e-4)


@pytest.mark.parametrize("coefficient", ["bc_coef", "kl_beta"])
def test_imitation_and_the_penalty_see_clean_rows(coefficient):
    ppo, batch = prepared(settings(**MIXED))
    readings = {"bc_coef": "bc", "kl_beta": "analytic_kl"}
    pair = [NOW._replace(bc_coef=1e-9), NOW._replace(**{"bc_coef": 1e-9, coefficient: 0.5})]
    change = number(sums(ppo, batch, pair[1]).loss) - number(sums(ppo, batch, pair[0]).loss)
    expected = getattr(clean_sums(ppo, batch, pair[1]), readings[coefficient])
    assert change == pytest.approx(0.5 * number(expected), rel=1e-3)


def test_early_stop_and_the_readings_of_ratios_see_clean_rows():
    ppo, batch = prepared(settings(**MIXED))
    result, expected = sums(ppo, batch), clean_sums(ppo, batch)
    for name in ("kl", "log_ratio", "log_ratio_square", "ratio_excess", "clipped", "log_ratio_max",
                 "huber_linear", "crossing", "value_gap", "weight"):  # fmt: skip
        assert torch.equal(getattr(result, name), getattr(expected, name)), name
    for name in ("policy", "value"):
        assert number(getattr(result, name)) != number(getattr(expected, name)), name


def test_clipped_values_are_those_of_mixed_rows():
    config = settings(**MIXED, value_clip__clip_range_vf=0.05)
    ppo, batch = prepared(config)
    clipped = NOW._replace(clips_values=True)
    result, attacked = kept_attack(ppo, batch, clipped)
    output = ppo.agent.network(batch.observation, batch.memory, batch.reset)
    predicted = output.critic.index_copy(1, attacked.chosen, attacked.predicted)
    pair = module._value_losses(ppo.agent, predicted, batch, clipped, config)
    expected = weighed(module.twin.twin_loss(*pair), batch.weight)
    assert number(result.value) == pytest.approx(expected, rel=1e-5)
    assert number(result.value) != pytest.approx(number(sums(ppo, batch).value), rel=1e-3)


def test_values_of_all_actions_count_on_mixed_rows():
    ppo, batch = prepared(settings(**MIXED))
    options = torch.randn(*batch.weight.shape, 3, generator=torch.Generator().manual_seed(1))
    batch = dataclasses.replace(batch, options=options)
    result, attacked = kept_attack(ppo, batch)
    actor = ppo.agent.network(batch.observation, batch.memory, batch.reset).actor
    mixed = actor.index_copy(1, attacked.chosen, attacked.parameters).log_softmax(-1)
    ratio = (mixed - batch.parameters.log_softmax(-1)).exp()
    bounded = ratio.clamp(0.85, 1.15)
    gain = torch.minimum(ratio * options, bounded * options)
    each = -(batch.parameters.softmax(-1) * gain).sum(-1)
    assert number(result.policy) == pytest.approx(weighed(each, batch.weight), rel=1e-3)


@pytest.mark.spec("T-S6", "S1-S2", "X8")
def test_the_attacked_sequences_are_a_random_subset():
    ppo, batch = prepared(settings(**MIXED, adversary__attack_method="fgsm"))
    counts = torch.zeros(batch.weight.shape[1])
    sets = set()
    for seed in range(60):
        _, attacked = kept_attack(ppo, batch, seed=seed)
        chosen = attacked.chosen.tolist()
        assert len(set(chosen)) == COUNT
        counts[chosen] += 1
        sets.add(tuple(sorted(chosen)))
    # each of 8 has a chance of 3/8: 22.5 of 60, with a deviation of 3.75
    assert float(counts.min()) > 10.0
    assert float(counts.max()) < 35.0
    assert len(sets) > 20


@pytest.mark.spec("T-S1", "S1-S1", "X8")
@pytest.mark.parametrize("part", ["policy", "value"])
def test_an_attack_raises_the_loss_it_is_set_on(part):
    other = {"policy": "value", "value": "policy"}[part]
    ppo, batch = prepared(settings(**MIXED, **{f"adversary__attack_{other}": False}))
    count = batch.weight.shape[1]
    result, expected = sums(ppo, batch, count=count), clean_sums(ppo, batch)
    gain = number(getattr(result, part)) - number(getattr(expected, part))
    assert gain / float(batch.weight.sum()) > 0.01
    assert number(getattr(result, f"attacked_{part}")) == pytest.approx(
        number(getattr(result, part)), rel=1e-5
    )


def test_critics_are_attacked_while_only_they_learn():
    ppo, batch = prepared(settings(**MIXED))
    waiting = NOW._replace(trains_policy=False)
    result = sums(ppo, batch, waiting)
    assert number(result.loss) == pytest.approx(0.7 * number(result.value), rel=1e-6)
    assert number(result.value) > number(clean_sums(ppo, batch, waiting).value)
    spared = settings(**MIXED, adversary__attack_value=False)
    assert torch.equal(
        sums(ppo, batch, waiting, config=spared).loss, clean_sums(ppo, batch, waiting).loss
    )


def test_a_sample_that_is_not_finite_under_attack_is_dropped():
    """An observation of 1e30 is finite, its policy is not."""
    ppo, batch = prepared(settings(**MIXED, network__activation="relu", network__memory="none"))
    real = module.attacked_observations

    def wild(observation, *rest, **named):
        forged = real(observation, *rest, **named).clone()
        forged[2, 0] = torch.nan
        return forged

    module.attacked_observations = wild
    try:
        result, attacked = kept_attack(ppo, batch)
    finally:
        module.attacked_observations = real
    lost = float(batch.weight[2, int(attacked.chosen[0])])
    assert number(result.weight) == pytest.approx(float(batch.weight.sum()) - lost)
    assert number(result.nan) == (1.0 if lost else 0.0)


def test_rows_of_weight_0_change_nothing_under_attack():
    ppo, batch = prepared(settings(**MIXED))
    dead = batch.weight == 0.0
    wild = dataclasses.replace(
        batch,
        advantage=torch.where(dead, 1e6, batch.advantage),
        target=torch.where(dead[..., None], -1e6, batch.target),
    )
    assert int(dead.sum()) == 12
    for name, value in sums(ppo, batch)._asdict().items():
        assert torch.equal(getattr(sums(ppo, wild), name), value), name


def test_every_micro_batch_has_its_share_of_attacks():
    config = settings(
        **MIXED, ppo__batch_size=4, ppo__microbatch_size=1, adversary__adversarial_ratio=0.5
    )
    ppo = aged(learner(config, told=script()))
    for report in ppo.update().learned.minibatches:
        assert float(report.sums.attacks) == 2.0
