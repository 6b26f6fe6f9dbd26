"""From a rollout to advantages, against a float64 replay."""

import numpy as np
import pytest
import torch

from learner_lab import CRITICS, ENDS, aged, learner, script, settings
from oracles import advantage as advantage_oracle
from oracles import learner as oracle
from oracles import returns as returns_oracle
from stormsail.algorithms.update import estimates as module
from stormsail.algorithms.update.estimates import decoded_value, estimate, normalised
from stormsail.algorithms.update.rollout import collect
from stormsail.core.errors import DataError
from stormsail.functional.advantage import RunningMoments

T, B = 8, len(ENDS)


def played(config=None, *, told=None, rollouts=2):
    """Return a learner with statistics and its second rollout, which begins in every way."""
    config = config or settings()
    ppo = aged(learner(config, told=told))
    streams = torch.Generator().manual_seed(3), torch.Generator().manual_seed(4)
    play = ppo.env_state
    for _ in range(rollouts):
        play, rollout = collect(
            ppo.task, ppo.agent, play, steps=T, sequence_length=T, generators=streams
        )
    return ppo, rollout


def exact(rollout):
    names = ("reward", "terminated", "truncated", "predicted", "next_predicted", "weight")
    parts = {name: getattr(rollout, name) for name in names}
    return {
        name: part.double().numpy() if part.is_floating_point() else part.numpy()
        for name, part in parts.items()
    }


@pytest.mark.parametrize("critic", CRITICS)
@pytest.mark.spec("T-GAE1", "T-T2", "X1", "S1-T1", "S1-P2", "S3-M2", "S3-FP2")
def test_advantages_and_returns_are_those_of_the_replay(critic):
    ppo, rollout = played(settings(**CRITICS[critic], ppo__gamma=0.93, ppo__gae_lambda=0.8))
    result, data = estimate(ppo.agent, rollout, ppo.config), exact(rollout)
    atoms = ppo.agent.network.critic.atoms.double().numpy()
    value = oracle.values(data["predicted"], critic, atoms, 0.7, 1.9)
    beyond = oracle.values(data["next_predicted"], critic, atoms, 0.7, 1.9)
    expected = returns_oracle.gae_as_a_sum(
        data["reward"], value, beyond, data["terminated"], data["truncated"], 0.93, 0.8
    )
    assert result.value.numpy() == pytest.approx(value, abs=1e-5)
    assert result.raw_advantage.numpy() == pytest.approx(expected, abs=2e-5)
    assert result.returns.numpy() == pytest.approx(expected + value, abs=2e-5)


@pytest.mark.parametrize("head", [0, 1])
@pytest.mark.spec("T-T2", "S1-T1", "S3-FP2")
def test_the_lower_critic_speaks_for_this_state_the_next_and_the_last(head):
    ppo, rollout = played()
    for distribution in (rollout.predicted, rollout.next_predicted):
        distribution[:, :, 1 - head] = distribution[:, :, head] + 1.0
    result = estimate(ppo.agent, rollout, ppo.config)
    expected = 1.9 * rollout.predicted[:, :, head].mean(-1) + 0.7
    assert torch.allclose(result.value, expected, atol=1e-5)
    beyond = 1.9 * rollout.next_predicted[:, :, head].mean(-1) + 0.7
    alive = ~rollout.terminated[-1]
    delta = rollout.reward[-1] + 0.99 * beyond[-1] - expected[-1]
    assert torch.allclose(result.raw_advantage[-1][alive], delta[alive], atol=1e-5)


def test_the_mean_of_both_critics_is_read_when_asked_for():
    ppo, rollout = played(settings(critic__twin_value_mode="mean"))
    result = estimate(ppo.agent, rollout, ppo.config)
    expected = 1.9 * rollout.predicted.mean((-1, -2)) + 0.7
    assert torch.allclose(result.value, expected, atol=1e-5)


@pytest.mark.spec("T-F7")
def test_the_limit_holds_values_and_bootstraps_and_never_targets():
    config = settings(value_clip__value_clip_limit=1.0, target__kind="td", ppo__gae_lambda=0.0)
    ppo, rollout = played(config)
    ppo.agent.return_scale.mean.fill_(0.0)
    ppo.agent.return_scale.std.fill_(1.0)
    rollout.predicted.fill_(3.0)
    rollout.next_predicted.fill_(3.0)
    rollout.terminated.fill_(False)
    result = estimate(ppo.agent, rollout, config)
    assert torch.equal(result.value, torch.ones(T, B))
    assert torch.allclose(result.raw_advantage, rollout.reward + 0.99 - 1.0)
    wanted = (rollout.reward + 0.99 * 3.0)[..., None].expand_as(result.target)
    assert torch.allclose(result.target, wanted)
    assert torch.equal(decoded_value(ppo.agent, -rollout.predicted, config), -torch.ones(T, B))


def test_explained_variance_is_that_of_the_rows_that_count():
    ppo, rollout = played(told=script(weights=(1.0, 0.25)))
    result = estimate(ppo.agent, rollout, ppo.config)
    weight = rollout.weight.double().numpy()
    value, total = result.value.double().numpy(), result.returns.double().numpy()

    def variance(x):
        mean = (weight * x).sum() / weight.sum()
        return (weight * (x - mean) ** 2).sum() / weight.sum()

    expected = 1.0 - variance(total - value) / variance(total)
    assert float(result.explained_variance) == pytest.approx(expected, rel=1e-9)
    # the same numbers with ignored rows counted would be another figure
    everything = 1.0 - np.var(total - value) / np.var(total)
    assert abs(everything - expected) > 1e-3


@pytest.mark.spec("T-GAE3", "S4-O1")
@pytest.mark.parametrize(
    ("field", "place", "words"),
    [
        ("reward", (2, 0), "1 in `reward` that are not"),
        ("predicted", (2, 0, 0, 1), "1 in `value` that are not"),
        ("next_predicted", (7, 3, 1, 0), "1 in `bootstrap` that are not"),
    ],
)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.refusal
def test_a_number_that_is_not_finite_is_named_with_its_place(field, place, words, bad):
    ppo, rollout = played(settings(critic__use_twin_critics=True, critic__twin_value_mode="mean"))
    getattr(rollout, field)[place] = bad
    with pytest.raises(DataError) as refusal:
        estimate(ppo.agent, rollout, ppo.config)
    assert str(refusal.value) == (
        f"rewards and values of a rollout must be finite; found {words}. Look at the data and the "
        "task first; a value that is not finite comes from the network. [data-defects]"
    )


def prepared(advantage, weight, *, value=None, returns=None, **changes):
    """Return `normalised` of advantages in a rollout of which nothing else matters."""
    config = settings(**changes)
    _, rollout = played(config)
    shape = advantage.shape
    weight = torch.ones(shape) if weight is None else weight
    rollout = module.Rollout(**{**vars(rollout), "weight": weight})
    zeros = torch.zeros(shape)
    result = module.Estimates(
        value=zeros if value is None else value,
        raw_advantage=advantage,
        returns=zeros if returns is None else returns,
        target=zeros[..., None],
        outcomes=zeros[..., None],
        explained_variance=torch.tensor(0.0),
    )
    return lambda previous=None: normalised(advantage, result, rollout, config, previous)


@pytest.mark.spec("T-A1", "S3-2", "S1-P3")
def test_advantage_normalization_zero_std():
    """S3 expects an explosion; equal advantages give exactly 0, because float64 finds no spread."""
    equal = torch.full((256, 8), 1.1)
    assert torch.equal(prepared(equal, None)(), torch.zeros(256, 8))


@pytest.mark.spec("T-A2", "S3-2")
def test_rounding_of_equal_advantages_stays_small():
    noise = 1e-7 * torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    level = torch.full((256, 8), 1.1)
    result = prepared(level + noise, None, returns=level)()
    assert bool(result.isfinite().all())
    assert float(result.abs().max()) <= 20.0


@pytest.mark.spec("T-A3", "S3-2")
def test_tiny_advantages_are_signal_and_keep_their_shape():
    tiny = 1e-5 * torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    assert float(prepared(tiny, None)().std()) == pytest.approx(1.0, abs=0.01)


@pytest.mark.spec("T-A4", "S3-9")
@pytest.mark.parametrize(("per_env", "ratio"), [(False, 10.0), (True, 1.0)])
def test_one_map_for_all_keeps_the_ratio_of_environments(per_env, ratio):
    source = torch.Generator().manual_seed(0)
    raw = torch.randn(400, 2, generator=source) * torch.tensor([1.0, 10.0])
    raw = raw / raw.std(0) * torch.tensor([1.0, 10.0])
    result = prepared(raw, None, ppo__normalize_advantage_per_env=per_env)()
    assert float(result[:, 1].std() / result[:, 0].std()) == pytest.approx(ratio, rel=1e-4)


@pytest.mark.spec("T-A5", "S4-V1")
def test_advantages_are_normalised_over_rows_with_weight_by_their_weight():
    source = torch.Generator().manual_seed(0)
    raw = 5.0 + 7.0 * torch.randn(T, B, generator=source)
    weight = torch.rand(T, B, generator=source)
    weight[raw > 9.0] = 0.0
    returns, value = 3.0 * raw, 2.0 * raw
    result = prepared(raw, weight, returns=returns, value=value)()
    expected = advantage_oracle.normalise(raw.double().numpy(), weight.double().numpy())
    assert result.numpy() == pytest.approx(expected, abs=1e-6)
    assert float(result[weight == 0.0].abs().max()) == 0.0


@pytest.mark.spec("T-A5", "S4-V1")
def test_what_ignored_rows_return_does_not_blunt_the_others():
    """The floor follows the size of values that count; a huge one on an ignored row is none."""
    tiny = 1e-5 * torch.randn(T, B, generator=torch.Generator().manual_seed(0))
    weight, returns = torch.ones(T, B), torch.zeros(T, B)
    weight[0, 0], returns[0, 0] = 0.0, 1e6
    result = prepared(tiny, weight, returns=returns)()
    assert float(result[weight > 0.0].std()) == pytest.approx(1.0, rel=1e-5)


def test_the_floor_knows_the_resolution_of_the_values():
    tiny = 1e-5 * torch.randn(T, B, generator=torch.Generator().manual_seed(0))
    size = 8.0 * 2.0**-23 * 1e4
    for name in ("returns", "value"):
        result = prepared(tiny, None, **{name: torch.full((T, B), -1e4)})()
        assert torch.allclose(result, (tiny - tiny.mean()) / size, atol=1e-9), name


def test_advantages_pass_unchanged_when_asked_for():
    raw = torch.randn(T, B, generator=torch.Generator().manual_seed(0))
    assert prepared(raw, None, ppo__normalize_advantage=False)() is raw


def test_a_bound_holds_normalised_advantages():
    raw = torch.randn(T, B, generator=torch.Generator().manual_seed(0))
    free = prepared(raw, None)()
    held = prepared(raw, None, ppo__adv_clip=0.5)()
    assert torch.equal(held, free.clamp(-0.5, 0.5))


@pytest.mark.parametrize("mode", ["floor", "eps", "center_only", "zero", "skip"])
def test_every_mode_does_what_it_says_where_there_is_no_spread(mode):
    raw = torch.full((T, B), 2.0)
    raw[0, 0] += 1e-3
    result = prepared(raw, None, ppo__advantage_mode=mode, ppo__adv_std_floor=1.0)()
    expected = advantage_oracle.normalise(raw.double().numpy(), mode=mode, floor=1.0)
    assert result.numpy() == pytest.approx(expected, abs=1e-7)


def test_earlier_statistics_stand_in_when_asked_for():
    raw = torch.full((T, B), 2.0)
    find = prepared(raw, None, ppo__advantage_mode="previous_stats")
    result = find(RunningMoments(*torch.tensor([1.0, 1.0, 16.0]).double()))
    assert torch.equal(result, torch.full((T, B), 0.25))
    # the very first rollout has no earlier one, and nothing to say
    assert torch.equal(find(None), torch.zeros(T, B))


def test_nothing_that_counts_gives_nothing_to_learn():
    assert torch.equal(prepared(torch.ones(T, B), torch.zeros(T, B))(), torch.zeros(T, B))
