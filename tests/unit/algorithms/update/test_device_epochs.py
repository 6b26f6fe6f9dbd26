"""Epochs without a host sync learn what those learn that ask after every minibatch."""

import copy
import dataclasses
import math

import pytest
import torch

from learner_lab import CRITICS, aged, learner, script, settings
from stormsail.algorithms import ppo as order_of_an_update
from stormsail.algorithms.update import epochs
from stormsail.algorithms.update.device_epochs import COEFFICIENTS, DeviceEpochs
from stormsail.algorithms.update.kl_control import STOP_NUMBERS, KlControl, next_stop
from stormsail.algorithms.update.schedules import Scheduled

NOW = Scheduled(
    learning_rate=1e-3, clip_range=0.15, vf_coef=0.7, bc_coef=0.2, ent_coef=0.05, kl_beta=0.4,
    clips_values=False, trains_policy=True,
)  # fmt: skip
SCALED = {
    "optimizer.optimizer_class": "AdaptiveUPGD", "optimizer.compiled": False,
    "vgs.enabled": True, "vgs.warmup_steps": 1,
}  # fmt: skip


def prepared(**changes):
    """Return a learner whose weights have moved since its sequences were played, and these."""
    changes = {"ppo.batch_size": 3, "ppo.n_epochs": 3, "kl.target_kl": None, **changes}
    ppo = aged(learner(settings(**changes), told=script(weights=(1.0, 0.25, 0.5))))
    kept = {}
    take = epochs.learn

    def watch(agent, data, *rest, **named):
        kept["data"] = data
        return take(agent, data, *rest, **named)

    order_of_an_update.learn = watch
    try:
        ppo.update()
        ppo.update()
    finally:
        order_of_an_update.learn = take
    return ppo, kept["data"]


def asking(ppo, data, now, told):
    """Learn with a look at the device after every minibatch."""
    streams = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    report = epochs.learn(
        ppo.agent, data, ppo.pipeline, ppo.kl, now, ppo.config, generators=streams,
        on_refusal=lambda batch, _: told.append(batch.advantage), on_step=lambda: told.append(None),
    )  # fmt: skip
    return report, streams


def deferred(ppo, data, now, told):
    """Learn and look once."""
    streams = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    on_device = DeviceEpochs(ppo.agent, ppo.pipeline, ppo.config, streams[1], captured=False)
    report = on_device.learn(
        data, ppo.kl, now, order=streams[0],
        on_refusal=lambda batch, _: told.append(batch.advantage), on_step=lambda: told.append(None),
    )  # fmt: skip
    return report, streams


def same(first, second):
    return (
        torch.equal(first.nan_to_num(7.0), second.nan_to_num(7.0)) and first.dtype == second.dtype
    )


def compare(ppo, data, now=NOW, *, noise=True):
    """Learn both ways from the same state; return the report."""
    other, data_of_other = copy.deepcopy((ppo, data))
    one, two = [], []
    first, streams = asking(ppo, data, now, one)
    second, others = deferred(other, data_of_other, now, two)
    for a, b in zip(ppo.agent.parameters(), other.agent.parameters(), strict=True):
        assert torch.equal(a, b)
    states = (each.optimizer.state_dict()["state"] for each in (ppo, other))
    for a, b in zip(*(state.values() for state in states), strict=True):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in a)
    assert len(one) == len(two)
    assert all(
        (a is None) == (b is None) and (a is None or same(a, b))
        for a, b in zip(one, two, strict=True)
    )
    assert [m.skipped for m in first.minibatches] == [m.skipped for m in second.minibatches]
    assert (first.epochs, first.stopped) == (second.epochs, second.stopped)
    assert first.divergence == second.divergence
    for a, b in zip(first.minibatches, second.minibatches, strict=True):
        assert a.micro_batches == b.micro_batches
        assert all(same(x, y) for x, y in zip(a.sums, b.sums, strict=True))
        assert torch.equal(a.gradient.stepped, b.gradient.stepped)
        assert int(a.gradient.nonfinite) == int(b.gradient.nonfinite)
        if bool(a.gradient.stepped):  # nobody reads the norms of a step that was not taken
            assert all(same(x, y) for x, y in zip(a.gradient, b.gradient, strict=True))
    assert vars(ppo.kl) == vars(other.kl) | {"config": ppo.kl.config}
    assert all(
        torch.equal(a.get_state(), b.get_state()) for a, b in zip(streams, others, strict=True)
    )
    if noise and hasattr(ppo.optimizer, "generator"):
        own, its = (each.optimizer.generator.get_state() for each in (ppo, other))
        assert torch.equal(own, its)
    if ppo.pipeline.scaler is not None:
        counts = (each.pipeline.scaler.nonfinite_counts for each in (ppo, other))
        assert torch.equal(*counts)
    return second


VARIANTS = {
    "plain": {},
    "scaled noise": SCALED,
    "parts": {"ppo.microbatch_size": 2},
    "values held": {"value_clip.clip_range_vf": 0.1},
    "sampled entropy": {"entropy.entropy_mode": "corrected_mc"},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_it_learns_the_same_bit_for_bit(changes):
    ppo, data = prepared(**changes)
    now = NOW._replace(clips_values="value_clip.clip_range_vf" in changes)
    report = compare(ppo, data, now)
    assert len(report.minibatches) == 9  # 8 sequences in parts of 3, three times


@pytest.mark.parametrize("critic", CRITICS)
def test_it_learns_the_same_with_every_critic_and_with_critics_alone(critic):
    ppo, data = prepared(**CRITICS[critic])
    compare(ppo, data)
    compare(ppo, data, NOW._replace(trains_policy=False, bc_coef=0.0, kl_beta=0.0))


@pytest.mark.parametrize("target", [1e-12, 0.002, 0.01, 10.0])
@pytest.mark.parametrize("more", [{}, SCALED], ids=["adam", "noise"])
def test_an_early_stop_ends_where_it_would_and_leaves_the_streams_there(target, more):
    ppo, data = prepared(**{"kl.target_kl": target, "kl.kl_epoch_decay": 0.9, **more})
    report = compare(ppo, data)
    assert (report.stopped == "") == (len(report.minibatches) == 9)
    if target == 1e-12:
        assert len(report.minibatches) == 1


def test_the_rules_of_the_stop_are_those_of_the_control():
    """Over random divergences, some of them not finite, and every rule."""
    source = torch.Generator().manual_seed(3)
    reasons = set()
    for case in range(200):
        changes = {
            "kl.use_ema": bool(case % 2), "kl.kl_consec_minibatches": 1 + case % 4,
            "kl.kl_exceed_stop_fraction": (0.25, 0.5, 1.0)[case % 3], "kl.kl_epoch_decay": 0.8,
            "kl.kl_early_stop": case % 7 != 0, "kl.target_kl": 0.1,
        }  # fmt: skip
        control = KlControl(settings(**changes).kl)
        control.begin_update()
        state = torch.zeros(STOP_NUMBERS, dtype=torch.float64)
        drawn = 0.1 * torch.randn(16, generator=source, dtype=torch.float64).exp()
        if case % 5 == 0:
            drawn[case % 16] = (math.nan, math.inf)[case % 2]
        for number, divergence in enumerate(drawn.tolist()):
            control.begin_epoch(number // 4)
            target = torch.tensor(control.target, dtype=torch.float64)
            asked = torch.tensor(divergence, dtype=torch.float64)
            state = next_stop(state, asked, target, control.config, counts=torch.tensor(True))
            stops = control.stops(divergence)
            assert bool(state[-1]) == stops
            assert same(state[0], torch.tensor(control.average, dtype=torch.float64))
            if stops:
                reasons.add(control.reason)
                break
        kept = next_stop(state, asked, target, control.config, counts=torch.tensor(False))
        assert same(kept, state)
    assert reasons == {"absolute", "consecutive", "fraction"}


def test_skipped_and_refused_minibatches_change_nothing_and_are_told():
    ppo, data = prepared(**SCALED, **{"ppo.nonfinite_policy": "skip", "ppo.n_epochs": 1})
    chosen = torch.randperm(8, generator=torch.Generator().manual_seed(1))
    old, advantage = data.log_prob.clone(), data.advantage.clone()
    target, weight = data.target.clone(), data.weight.clone()
    weight[:, chosen[:6]] = 1.0
    old[0, chosen[0]] = math.nan  # the first minibatch is void
    advantage[0, chosen[3]] = math.inf  # the second has a gradient that is not finite
    target[0, chosen[6]] = math.inf  # the third a loss, with a bounded gradient
    weight[0, chosen[6]] = 1.0
    bad = dataclasses.replace(data, log_prob=old, advantage=advantage, target=target, weight=weight)
    report = compare(ppo, bad, noise=False)  # a refused step has drawn its noise here
    assert [m.skipped for m in report.minibatches[:3]] == [True, False, False]
    assert not any(bool(m.gradient.stepped) for m in report.minibatches)


@pytest.mark.parametrize("name", [*COEFFICIENTS, "lr"])
def test_a_number_that_changes_is_seen_by_the_same_function(name):
    """The function of a minibatch is made once; a captured one reads the same tensors."""
    more = {"risk.cvar_policy_mode": "critic_legacy"} if name == "legacy_risk" else {}
    ppo, data = prepared(**more)
    now = NOW._replace(legacy_risk=0.3)
    entropy = torch.Generator().manual_seed(2)
    rate = torch.tensor(1e-2, dtype=torch.float64)
    ppo.optimizer.param_groups[0]["lr"] = rate

    def learned(now, rate_now):
        own, given = copy.deepcopy((ppo.agent.state_dict(), ppo.optimizer.state_dict()["state"]))
        rate.fill_(rate_now)
        on_device.learn(
            data, ppo.kl, now, order=torch.Generator().manual_seed(1),
            on_refusal=lambda *_: None,
        )  # fmt: skip
        weights = torch.cat([weight.detach().flatten() for weight in ppo.agent.parameters()])
        ppo.agent.load_state_dict(own)
        for place, parameter in enumerate(ppo.agent.parameters()):
            for key, value in given[place].items():
                ppo.optimizer.state[parameter][key].copy_(value)
        return weights

    on_device = DeviceEpochs(ppo.agent, ppo.pipeline, ppo.config, entropy, captured=False)
    first = learned(now, 1e-2)
    made = dict(on_device._minibatches)
    assert torch.equal(learned(now, 1e-2), first)
    if name == "lr":
        other = learned(now, 2e-2)
    else:
        other = learned(now._replace(**{name: 2.0 * getattr(now, name)}), 1e-2)
    assert on_device._minibatches == made
    assert not torch.equal(other, first)
