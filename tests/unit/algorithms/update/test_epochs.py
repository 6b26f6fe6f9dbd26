"""Minibatches of micro-batches: one mean over the weight that was used, however it is cut."""

import dataclasses
import math

import pytest
import torch

from learner_lab import ACTIONS, CLASSES, CRITICS, ENDS, aged, learner, script, settings
from stormsail.algorithms.update import epochs as module
from stormsail.algorithms.update.epochs import learn, select
from stormsail.algorithms.update.schedules import Scheduled

T, B = 8, len(ENDS)
NOW = Scheduled(
    learning_rate=1e-3, clip_range=0.15, vf_coef=0.7, bc_coef=0.2, ent_coef=0.05, kl_beta=0.4,
    clips_values=False, trains_policy=True,
)  # fmt: skip


class Halt(Exception):  # noqa: N818 - a signal
    """Raised in the place of a step, with the gradients that it would have taken."""


def batch_of(ppo, *, bad=()):
    """Return a batch of the learner's second rollout after its weights have moved."""
    kept = {}
    take = module.learn

    def watch(agent, data, *rest, **named):
        kept["data"] = data
        return take(agent, data, *rest, **named)

    from stormsail.algorithms import ppo as order

    order.learn = watch
    try:
        ppo.update()
        ppo.update()
    finally:
        order.learn = take
    data = kept["data"]
    if bad:
        old = data.log_prob.clone()
        for place in bad:
            old[place] = math.nan
        data = dataclasses.replace(data, log_prob=old)
    return data


def prepared(config=None, *, weights=(1.0, 0.25, 0.5), bad=(), actions=CLASSES):
    config = config or settings()
    ppo = aged(learner(config, told=script(weights=weights), actions=actions))
    return ppo, batch_of(ppo, bad=bad)


def run(ppo, data, now=NOW, refused=None, **changes):
    """Learn from the data; return the report."""
    streams = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)

    def on_refusal(batch, report):
        if refused is not None:
            refused.append((batch, report))

    return learn(
        ppo.agent, data, ppo.pipeline, ppo.kl, now, ppo.config.replace(**changes),
        generators=streams, on_refusal=on_refusal,
    )  # fmt: skip


def gradients(ppo, data, now=NOW, **changes):
    """Return the gradients that the first step would take, and what the minibatch reported."""
    caught = {}
    step = ppo.pipeline.step

    def catch():
        caught.update(
            {name: p.grad.clone() for name, p in ppo.agent.named_parameters() if p.grad is not None}
        )
        raise Halt

    ppo.pipeline.step = catch
    try:
        with pytest.raises(Halt):
            run(ppo, data, now, **changes)
    finally:
        ppo.pipeline.step = step
    return caught


def near(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert torch.allclose(first[name], second[name], atol=1e-6, rtol=1e-5), name


VARIANTS = {
    "fractional weights": ({}, ()),
    "dropped samples": ({}, ((0, 0), (3, 2), (4, 2))),
    "a column without samples": ({}, tuple((t, 5) for t in range(T))),
    "divided imitation": ({"bc.awr_normalize": True, "bc.awr_temperature": 0.5}, ((0, 0),)),
    "ratios of one": ({"ppo.nonfinite_policy": "zero"}, ((0, 0),)),
    "values held": ({"value_clip.clip_range_vf": 0.1}, ()),
}


@pytest.mark.parametrize(("changes", "bad"), VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("critic", CRITICS)
@pytest.mark.spec("T-G1", "T-G2", "S0-2", "S2-2")
def test_micro_batches_add_up_to_the_gradient_of_their_minibatch(critic, changes, bad):
    ppo, data = prepared(settings(**CRITICS[critic], **changes), bad=bad)
    now = NOW._replace(clips_values="value_clip.clip_range_vf" in changes)
    whole = gradients(ppo, data, now)
    for size in (1, 2, 3):  # of 8 columns; 3 leaves a rest
        near(gradients(ppo, data, now, **{"ppo.microbatch_size": size}), whole)


@pytest.mark.spec("T-G2", "S2-2")
def test_what_was_dropped_leaves_the_mean_of_the_rest():
    """The gradient is that of the batch without the samples, not of one with their share of 0."""
    ppo, data = prepared(bad=((0, 0), (3, 2)))
    weight = data.weight.clone()
    weight[0, 0] = weight[3, 2] = 0.0
    clean = dataclasses.replace(data, log_prob=data.log_prob.nan_to_num(0.0), weight=weight)
    for size in (B, 2):
        near(
            gradients(ppo, data, **{"ppo.microbatch_size": size}),
            gradients(ppo, clean, **{"ppo.microbatch_size": size}),
        )


@pytest.mark.spec("T-G1", "S0-2")
def test_weights_are_relative():
    ppo, data = prepared()
    doubled = dataclasses.replace(data, weight=2.0 * data.weight)
    near(gradients(ppo, doubled), gradients(ppo, data))


@pytest.mark.spec("T-G3", "X9")
def test_a_minibatch_in_which_nothing_counts_is_left_out():
    ppo, data = prepared(settings(ppo__batch_size=4, ppo__n_epochs=1))
    weight = data.weight.clone()
    order = torch.randperm(B, generator=torch.Generator().manual_seed(1))
    weight[:, order[:4]] = 0.0
    data = dataclasses.replace(data, weight=weight)
    before = [p.detach().clone() for p in ppo.agent.parameters()]
    steps = []
    step = ppo.pipeline.step
    ppo.pipeline.step = lambda: steps.append(1) or step()
    report = run(ppo, data)
    assert [m.skipped for m in report.minibatches] == [True, False]
    assert len(steps) == len(report.divergence) == 1
    assert float(report.minibatches[0].sums.weight) == 0.0
    assert not bool(report.minibatches[0].gradient.stepped)
    moved = [not torch.equal(a, b) for a, b in zip(before, ppo.agent.parameters(), strict=True)]
    assert all(moved)


@pytest.mark.spec("T-G3", "X9")
def test_an_update_in_which_nothing_counts_changes_no_weight():
    told = script(weights=(0.0,))
    ppo = aged(learner(settings(ppo__n_epochs=2), told=told))
    before = [p.detach().clone() for p in ppo.agent.parameters()]
    update = ppo.update()
    assert all(m.skipped for m in update.learned.minibatches)
    assert all(torch.equal(a, b) for a, b in zip(before, ppo.agent.parameters(), strict=True))
    assert update.learned.divergence == []
    assert torch.equal(update.advantage, torch.zeros(T, B))
    assert math.isnan(ppo.explained_variance)
    assert ppo.update().number == 1


@pytest.mark.parametrize("size", [None, 2])
def test_one_bad_ratio_voids_its_whole_minibatch_however_it_is_cut(size):
    ppo, data = prepared(settings(ppo__nonfinite_policy="skip"), bad=((0, 0),))
    before = [p.detach().clone() for p in ppo.agent.parameters()]
    report = run(ppo, data, **{"ppo.microbatch_size": size})
    assert [m.skipped for m in report.minibatches] == [True]
    assert int(report.minibatches[0].sums.nan) == 1
    assert all(torch.equal(a, b) for a, b in zip(before, ppo.agent.parameters(), strict=True))


@pytest.mark.spec("T-P2", "S3-6")
@pytest.mark.parametrize("size", [None, 2])
def test_an_infinite_ratio_voids_its_minibatch_as_well(size):
    ppo, data = prepared(settings(ppo__nonfinite_policy="skip"))
    old = data.log_prob.clone()
    old[0, 0] = -math.inf
    before = [p.detach().clone() for p in ppo.agent.parameters()]
    report = run(ppo, dataclasses.replace(data, log_prob=old), **{"ppo.microbatch_size": size})
    assert [m.skipped for m in report.minibatches] == [True]
    sums = report.minibatches[0].sums
    assert (int(sums.nan), int(sums.inf)) == (0, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, ppo.agent.parameters(), strict=True))


@pytest.mark.spec("T-P2", "S3-6")
def test_dropped_samples_leave_finite_weights_and_are_counted():
    ppo, data = prepared(settings(ppo__batch_size=4), bad=((0, 0), (3, 2)))
    report = run(ppo, data)
    assert sum(int(m.sums.nan) for m in report.minibatches) == 2
    assert all(bool(m.gradient.stepped) for m in report.minibatches)
    assert all(bool(p.isfinite().all()) for p in ppo.agent.parameters())


def test_sums_of_micro_batches_are_those_of_the_minibatch():
    ppo, data = prepared()
    state = {k: v.clone() for k, v in ppo.agent.state_dict().items()}
    whole = run(ppo, data).minibatches[0]
    ppo.agent.load_state_dict(state)
    parts = run(ppo, data, **{"ppo.microbatch_size": 3}).minibatches[0]
    assert (whole.micro_batches, parts.micro_batches) == (1, 3)
    for name, a, b in zip(whole.sums._fields, whole.sums, parts.sums, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5), name


def test_every_sequence_is_seen_once_an_epoch_and_the_rest_is_not_lost():
    ppo, data = prepared(settings(ppo__batch_size=3, ppo__n_epochs=2, kl__target_kl=None))
    seen = []
    take = module.select

    def watch(batch, chosen):
        if batch is data:
            seen.append(chosen.tolist())
        return take(batch, chosen)

    module.select = watch
    try:
        report = run(ppo, data)
    finally:
        module.select = take
    assert [len(part) for part in seen] == [3, 3, 2, 3, 3, 2]
    epochs = [[place for part in half for place in part] for half in (seen[:3], seen[3:])]
    assert [sorted(epoch) for epoch in epochs] == [list(range(B))] * 2
    assert epochs[0] != epochs[1]
    assert (report.epochs, report.stopped) == (2, "")


def test_a_selection_keeps_each_sequence_whole():
    _, data = prepared()
    chosen = torch.tensor([5, 1])
    part = select(data, chosen)
    for field in dataclasses.fields(data):
        whole, result = getattr(data, field.name), getattr(part, field.name)
        axis = 0 if field.name == "memory" else 1
        assert torch.equal(result, torch.stack([whole.select(axis, i) for i in (5, 1)], axis))


@pytest.mark.parametrize(
    ("changes", "minibatches", "reason"),
    [
        ({"kl.target_kl": 1e-12}, 1, "absolute"),
        ({"kl.target_kl": 1e-12, "kl.kl_early_stop": False}, 8, ""),
        ({"kl.target_kl": None}, 8, ""),
        ({"kl.target_kl": 10.0}, 8, ""),
        (
            {"kl.target_kl": 1e-12, "kl.kl_absolute_stop_factor": 1e12,
             "kl.kl_consec_minibatches": 3, "kl.kl_exceed_stop_fraction": 1.0},
            3, "consecutive",
        ),
    ],
    ids=["absolute", "never", "off", "far", "consecutive"],
)  # fmt: skip
def test_epochs_end_when_the_policy_has_moved_enough(changes, minibatches, reason):
    config = settings(ppo__batch_size=4, ppo__n_epochs=4, **changes)
    ppo, data = prepared(config)
    source = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for parameter in ppo.agent.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=source))
    report = run(ppo, data)
    assert len(report.minibatches) == len(report.divergence) == minibatches
    assert report.stopped == reason
    assert report.epochs == (minibatches + 1) // 2
    assert report.divergence[0] > 1e-3


@pytest.mark.spec("X16")
def test_each_epoch_has_the_target_of_its_number():
    """With a decay of a tenth the second epoch ends at a divergence that the first one allows."""
    config = settings(ppo__batch_size=8, ppo__n_epochs=4, kl__kl_epoch_decay=0.1)
    ppo, data = prepared(config)
    targets = []
    stops = ppo.kl.stops

    def watch(divergence):
        targets.append(ppo.kl.target)
        return stops(divergence) and False

    ppo.kl.stops = watch
    run(ppo, data)
    first = config.kl.target_kl
    assert targets == pytest.approx([first * 0.1**epoch for epoch in range(4)])


def test_the_divergence_is_the_mean_over_the_weight_that_was_used():
    ppo, data = prepared(bad=((0, 0),))
    report = run(ppo, data)
    sums = report.minibatches[0].sums
    assert report.divergence == [float(sums.kl / sums.weight)]


def test_a_step_that_is_not_finite_is_refused_and_shown():
    ppo, data = prepared(settings(ppo__batch_size=4))
    advantage = data.advantage.clone()
    order = torch.randperm(B, generator=torch.Generator().manual_seed(1))
    row = int((data.weight[:, order[0]] > 0.0).int().argmax())
    advantage[row, order[0]] = math.inf
    refused = []
    report = run(ppo, dataclasses.replace(data, advantage=advantage), refused=refused)
    assert [bool(m.gradient.stepped) for m in report.minibatches] == [False, True]
    assert len(refused) == 1
    assert bool(refused[0][0].advantage.isinf().any())
    told, kept = refused[0][1], report.minibatches[0]
    assert all(torch.equal(a, b) for a, b in zip(told.sums, kept.sums, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(told.gradient, kept.gradient, strict=True))
    assert told[2:] == kept[2:]
    assert all(bool(p.isfinite().all()) for p in ppo.agent.parameters())


def test_a_loss_that_is_not_finite_is_refused_though_its_gradient_is_bounded():
    ppo, data = prepared()
    target = data.target.clone()
    target[0, 0] = math.inf
    before = [p.detach().clone() for p in ppo.agent.parameters()]
    refused = []
    report = run(ppo, dataclasses.replace(data, target=target), refused=refused)
    assert [bool(m.gradient.stepped) for m in report.minibatches] == [False]
    assert len(refused) == 1
    assert all(torch.equal(a, b) for a, b in zip(before, ppo.agent.parameters(), strict=True))


def test_the_report_of_a_refused_loss_lies_where_the_data_do():
    ppo, data = prepared(settings(network__memory="none"))
    target = data.target.clone()
    target[0, 0] = math.inf
    with torch.device("meta"):  # whatever is made without a device lands there
        report = run(ppo, dataclasses.replace(data, target=target)).minibatches[0]
    assert not report.skipped
    assert [part.device.type for part in report.gradient] == ["cpu"] * 6


@pytest.mark.parametrize("action", ACTIONS)
def test_statistics_within_a_step_see_every_micro_batch(action):
    actions, distribution = ACTIONS[action]
    config = settings(
        **distribution, ppo__microbatch_size=2, vgs__enabled=True, vgs__statistic="microbatch"
    )
    ppo = learner(config, actions=actions)
    calls = []
    observe = ppo.pipeline.scaler.observe_microbatch
    ppo.pipeline.scaler.observe_microbatch = lambda: calls.append(1) or observe()
    assert ppo.update().learned.minibatches[0].micro_batches == len(calls) == 4


@pytest.mark.parametrize("how", ["skipped", "refused"])
def test_a_minibatch_without_a_step_leaves_nothing_to_the_next(how):
    """Its partial sums, kept, would count as a part of the next minibatch."""
    config = settings(
        ppo__batch_size=4, ppo__microbatch_size=2, ppo__n_epochs=1, ppo__nonfinite_policy="skip",
        vgs__enabled=True, vgs__statistic="microbatch", vgs__beta=0.0,
    )  # fmt: skip
    ppo, data = prepared(config)
    order = torch.randperm(B, generator=torch.Generator().manual_seed(1))
    row = int((data.weight[:, order[0]] > 0.0).int().argmax())
    name = "log_prob" if how == "skipped" else "target"
    spoilt = getattr(data, name).clone()
    spoilt[row, order[0]] = math.nan if how == "skipped" else math.inf
    data = dataclasses.replace(data, **{name: spoilt})
    scaler, seen = ppo.pipeline.scaler, []
    observe = scaler.observe_microbatch

    def watch():
        seen.append({n: p.grad.double().clone() for n, p in ppo.agent.named_parameters()})
        observe()

    scaler.observe_microbatch = watch
    report = run(ppo, data)
    assert [bool(m.gradient.stepped) for m in report.minibatches] == [False, True]
    assert report.minibatches[0].skipped is (how == "skipped")
    assert len(seen) == 4
    for key, variance in scaler.variance().items():
        # two parts a and b of one step: the variance of a + b is (a - b)², mean over elements
        first, second = seen[2][key], seen[3][key] - seen[2][key]
        assert float(variance) == pytest.approx(float((first - second).square().mean()), rel=1e-5)
