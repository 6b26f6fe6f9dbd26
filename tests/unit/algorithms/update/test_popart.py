"""Moving the units of the critics: what they say stays, what is stored follows."""

import dataclasses

import numpy as np
import pytest
import torch

from learner_lab import CRITICS, ENDS, SCALAR, aged, learner, script, settings
from oracles import categorical as categorical_oracle
from stormsail.algorithms.telemetry.metrics import metrics
from stormsail.algorithms.update.popart import initial_scale, move_support, popart_rescale
from stormsail.algorithms.update.return_statistics import Scale
from stormsail.algorithms.update.rollout import collect
from stormsail.monitors.alarms import Alarms

T, B = 8, len(ENDS)
NEW = Scale(3.0, 0.8)


class Told:
    """Return statistics that say what they are told."""

    def __init__(self, new=NEW):
        self.new = Scale(*(torch.tensor(x, dtype=torch.float64) for x in new))
        self.asked = None

    def step(self, returns, weight, now, *, atom_weight=None, known=None, sound=None):
        assert (atom_weight, known, sound) == (None, None, None)  # equal atoms here
        self.asked = (returns, weight, now)
        return self.new


def played(config):
    ppo = aged(learner(config))
    streams = torch.Generator().manual_seed(3), torch.Generator().manual_seed(4)
    _, rollout = collect(
        ppo.task, ppo.agent, ppo.env_state, steps=T, sequence_length=T, generators=streams
    )
    return ppo, rollout


@torch.no_grad()
def decoded(ppo, rollout):
    """Return the output of each critic for every row in reward units: atoms, or the mean."""
    agent = ppo.agent
    output = agent.network(rollout.observation, rollout.memory[0], rollout.reset).critic
    if agent.spec.critic.kind == "categorical":
        return (output.softmax(-1) * agent.atoms).sum(-1)
    return agent.return_scale.decode(output)


def move(ppo, rollout, told=None, returns=None):
    returns = torch.ones(T * B) if returns is None else returns
    weight = rollout.weight.flatten()
    return popart_rescale(
        ppo.agent, told or Told(), returns, weight, rollout.predicted, ppo.config, ppo.optimizer
    )


@pytest.mark.parametrize(
    ("critic", "monotone"), [*((critic, False) for critic in CRITICS), ("quantile", True)]
)
@pytest.mark.spec("T-R1", "T-R2", "S0-3", "S2-3", "S4-Q1", "T-R4")
def test_return_snapshot_freshness(critic, monotone):
    """Both critics say in reward units what they said, and stored words follow.

    The audit wants new statistics before the advantages, which would decode old heads wrongly.
    """
    ppo, rollout = played(settings(**CRITICS[critic], critic__monotone_quantiles=monotone))
    before = decoded(ppo, rollout)
    old = ppo.agent.return_scale.decode(rollout.predicted)
    predicted = move(ppo, rollout)
    scale = ppo.agent.return_scale
    assert (float(scale.mean), float(scale.std)) == (3.0, 0.8)
    assert torch.allclose(decoded(ppo, rollout), before, atol=1e-5)
    if critic == "categorical":
        assert torch.equal(predicted, rollout.predicted)
    else:
        assert torch.allclose(scale.decode(predicted), old, atol=1e-5)
    # the stored words are what the network would say now
    output = ppo.agent.network(rollout.observation, rollout.memory[0], rollout.reset).critic
    assert torch.allclose(output, predicted, atol=1e-4)


def test_statistics_are_asked_with_what_counts_and_the_units_in_use():
    ppo, rollout = played(settings())
    told, returns = Told(), torch.randn(T * B)
    move(ppo, rollout, told, returns)
    assert told.asked[0] is returns
    assert torch.equal(told.asked[1], rollout.weight.flatten())
    assert told.asked[2] == Scale(0.7, 1.9)


def test_scaled_returns_are_divided_by_the_bound_times_the_spread_and_not_centred():
    config = settings(returns__normalize_returns="scale", returns__ret_clip=5.0)
    ppo, rollout = played(config)
    told = Told()
    before = decoded(ppo, rollout)
    move(ppo, rollout, told)
    assert told.asked[2] == pytest.approx((0.7, 1.9 / 5.0))
    scale = ppo.agent.return_scale
    assert float(scale.mean) == 0.0
    assert float(scale.std) == pytest.approx(4.0)
    assert torch.allclose(decoded(ppo, rollout), before, atol=1e-5)


def test_a_frozen_lag_changes_the_units_and_nothing_else():
    ppo, rollout = played(settings(returns__normalize_returns="frozen_lag"))
    weights = [p.detach().clone() for p in ppo.agent.parameters()]
    predicted = move(ppo, rollout)
    assert predicted is rollout.predicted
    assert all(torch.equal(a, b) for a, b in zip(weights, ppo.agent.parameters(), strict=True))
    assert (float(ppo.agent.return_scale.mean), float(ppo.agent.return_scale.std)) == (3.0, 0.8)


def test_returns_in_reward_units_are_left_alone():
    ppo, rollout = played(settings(returns__normalize_returns="off"))
    told = Told()
    assert move(ppo, rollout, told) is rollout.predicted
    assert told.asked is None
    assert (float(ppo.agent.return_scale.mean), float(ppo.agent.return_scale.std)) == (0.7, 1.9)


@pytest.mark.parametrize("mode", ["popart", "scale", "frozen_lag"])
def test_units_that_do_not_move_change_not_a_bit(mode):
    ppo, rollout = played(settings(returns__normalize_returns=mode, returns__ret_clip=4.0))
    ppo.agent.return_scale.mean.fill_(0.0)
    weights = [p.detach().clone() for p in ppo.agent.parameters()]
    std = 1.9 / 4.0 if mode == "scale" else 1.9
    assert torch.equal(move(ppo, rollout, Told(Scale(0.0, std))), rollout.predicted)
    assert all(torch.equal(a, b) for a, b in zip(weights, ppo.agent.parameters(), strict=True))


@pytest.mark.parametrize("mode", ["popart", "scale"])
@pytest.mark.spec("S0-3", "T-R1")
def test_a_change_of_the_spread_alone_moves_the_heads(mode):
    """The mean stays what it was, as it always does where returns are not centred."""
    ppo, rollout = played(settings(returns__normalize_returns=mode, returns__ret_clip=4.0))
    scale = ppo.agent.return_scale
    scale.mean.fill_(0.0)
    before = decoded(ppo, rollout)
    old = scale.decode(rollout.predicted)
    predicted = move(ppo, rollout, Told(Scale(0.0, 0.8)))
    assert float(scale.std) == pytest.approx(3.2 if mode == "scale" else 0.8)
    assert torch.allclose(decoded(ppo, rollout), before, atol=1e-5)
    assert torch.allclose(scale.decode(predicted), old, atol=1e-5)


@pytest.mark.spec("S4-1")
def test_a_first_spread_below_the_floor_is_none():
    """Rewards that differ by less than the floor would be amplified beyond what it allows."""
    config = settings(ppo__gamma=0.0, returns__std_floor=0.5)
    ppo, rollout = played(config)
    scale = ppo.agent.return_scale
    before = (float(scale.mean), float(scale.std))
    reward = torch.where(torch.arange(T)[:, None] % 2 == 0, 0.0, 0.2).expand(T, B)
    initial_scale(ppo.agent, dataclasses.replace(rollout, reward=reward), config)
    assert (float(scale.mean), float(scale.std)) == before
    initial_scale(ppo.agent, dataclasses.replace(rollout, reward=10.0 * reward), config)
    assert 0.5 < float(scale.std) < 1.1


def remembered(optimizer_class, **changes):
    """Return a learner whose optimizer has stepped, its rollout, and its last layer's state."""
    config = settings(optimizer__optimizer_class=optimizer_class, **changes)
    ppo, rollout = played(config)
    ppo.env_state, _ = ppo._collect()
    for parameter in ppo.agent.parameters():
        parameter.grad = torch.full_like(parameter, 0.5)
    ppo.optimizer.step()
    states = [
        {key: value.clone() for key, value in ppo.optimizer.state[layer].items()
         if isinstance(value, torch.Tensor)}
        for last in ppo.agent.network.critic.last_layers() for layer in (last.weight, last.bias)
    ]  # fmt: skip
    return ppo, rollout, states


def states_of(ppo):
    layers = [
        x for last in ppo.agent.network.critic.last_layers() for x in (last.weight, last.bias)
    ]
    return [ppo.optimizer.state[layer] for layer in layers]


@pytest.mark.parametrize("optimizer", ["AdamW", "AdaptiveUPGD"])
def test_moments_of_a_squared_loss_follow_the_units(optimizer):
    ppo, rollout, before = remembered(optimizer, **SCALAR)
    move(ppo, rollout)
    ratio = 1.9 / 0.8
    for old, new in zip(before, states_of(ppo), strict=True):
        assert torch.allclose(new["exp_avg"], old["exp_avg"] * ratio, rtol=1e-5)
        assert torch.allclose(new["exp_avg_sq"], old["exp_avg_sq"] * ratio**2, rtol=1e-5)


@pytest.mark.parametrize("optimizer", ["AdamW", "AdaptiveUPGD"])
@pytest.mark.parametrize("changes", [{}, {"critic.kind": "categorical"}], ids=["quantile", "atoms"])
def test_moments_of_a_loss_without_units_stay(optimizer, changes):
    ppo, rollout, before = remembered(optimizer, **changes)
    move(ppo, rollout)
    for old, new in zip(before, states_of(ppo), strict=True):
        assert torch.equal(new["exp_avg"], old["exp_avg"])
        assert torch.equal(new["exp_avg_sq"], old["exp_avg_sq"])


@pytest.mark.parametrize(
    ("changes", "power"),
    [({}, 1), (SCALAR, 2), ({"critic.kind": "categorical"}, 0),
     ({"critic.monotone_quantiles": True}, 0)],
    ids=["quantile", "scalar", "categorical", "monotone"],
)  # fmt: skip
def test_utilities_follow_weight_times_gradient(changes, power):
    """A weight takes the factor once; the gradient of a squared loss takes it once more."""
    ppo, rollout, before = remembered("AdaptiveUPGD", **changes)
    move(ppo, rollout)
    after = states_of(ppo)
    for place in (0, 2):
        expected = before[place]["avg_utility"] * (1.9 / 0.8) ** power
        assert torch.allclose(after[place]["avg_utility"], expected, rtol=1e-5)


# --- the support of a categorical critic ---------------------------------------------------------


def support(alpha=0.25, **changes):
    return settings(critic__kind="categorical", critic__v_range_ema_alpha=alpha, **changes)


def moved(ppo, rollout, returns, weight=None, **options):
    target = torch.rand(T, B, 7, generator=torch.Generator().manual_seed(1))
    target = target / target.sum(-1, keepdim=True)
    weight = torch.ones(len(returns)) if weight is None else weight
    return target, move_support(ppo.agent, returns, weight, target, rollout.predicted, **options)


@pytest.mark.spec("T-K4", "X11")
def test_targets_and_old_distributions_are_projected_when_the_support_moves():
    ppo, rollout = played(support())
    atoms = ppo.agent.network.critic.atoms.double().numpy().copy()
    # decoded (0.7, 1.9): normalised returns from -20 to 20, so the support widens
    returns = 0.7 + 1.9 * torch.linspace(-20.0, 20.0, 101)
    target, (wanted, logits) = moved(ppo, rollout, returns)
    new = ppo.agent.network.critic.atoms.double().numpy()
    least = 2.0 * -19.2  # twice as far from the median as the quantile of the bulk
    room = 0.05 * 2.0 * 38.4
    low = -10.0 + 0.25 * (least - room + 10.0)
    assert new == pytest.approx(np.linspace(low, -low, 7), rel=1e-5, abs=1e-6)
    distributions = rollout.predicted.double().softmax(-1).numpy()
    after = logits.double().softmax(-1).numpy()
    for t, b in np.ndindex(T, B):
        expected = categorical_oracle.project_distribution(
            target[t, b].double().numpy(), atoms, new
        )
        assert wanted[t, b].numpy() == pytest.approx(expected, abs=1e-5)
        for c in range(2):
            expected = categorical_oracle.project_distribution(distributions[t, b, c], atoms, new)
            assert after[t, b, c] == pytest.approx(expected, abs=1e-5)
    # inside the new support nothing is lost: total mass and means are kept
    assert wanted.sum(-1).numpy() == pytest.approx(np.ones((T, B)), abs=1e-5)
    mean = (wanted.double().numpy() * new).sum(-1)
    assert mean == pytest.approx((target.double().numpy() * atoms).sum(-1), abs=1e-4)


def test_the_support_reaches_the_worst_outcome():
    """Nine hundred returns near 0.7 and one far below: the bulk alone would cut the tail off."""
    ppo, rollout = played(support(alpha=1.0))
    returns = torch.full((901,), 0.7)
    returns[450] = 0.7 + 1.9 * -12.0
    moved(ppo, rollout, returns)
    atoms = ppo.agent.network.critic.atoms
    assert float(atoms[0]) == pytest.approx(-12.0 - 0.05 * 12.0, rel=1e-5)


def test_the_support_keeps_a_ruin_that_every_rollout_holds():
    """At the default rate, from -10 on: the ruin at -9 with its padding of a twentieth stays in.

    The padding is .05 of the range from -9 to 1.92, twice the bulk's end: the bound goes to -9.55.
    """
    ppo, rollout = played(support(alpha=0.005))
    returns = 0.7 + 1.9 * torch.linspace(-1.0, 1.0, 1001)
    returns[0] = 0.7 + 1.9 * -9.0
    atoms = ppo.agent.network.critic.atoms
    for _ in range(1000):
        moved(ppo, rollout, returns)
        assert float(atoms[0]) < -9.5
    assert float(atoms[0]) == pytest.approx(-9.0 - 0.05 * (9.0 + 1.92), abs=0.01)


def test_a_bound_moves_by_at_most_half_a_span():
    ppo, rollout = played(support(alpha=1.0))
    moved(ppo, rollout, 0.7 + 1.9 * torch.linspace(-1e6, 1e6, 11))
    atoms = ppo.agent.network.critic.atoms
    assert (float(atoms[0]), float(atoms[-1])) == pytest.approx((-20.0, 20.0))


def test_a_support_never_collapses():
    ppo, rollout = played(support(alpha=1.0))
    for _ in range(30):
        moved(ppo, rollout, torch.full((11,), 0.7))
    atoms = ppo.agent.network.critic.atoms
    assert bool((atoms.diff() > 0.0).all())


def test_rows_of_weight_0_do_not_move_the_support():
    ppo, rollout = played(support())
    returns = 0.7 + 1.9 * torch.linspace(-20.0, 20.0, 101)
    weight = torch.ones(101)
    weight[80:] = 0.0
    moved(ppo, rollout, returns, weight)
    result = ppo.agent.network.critic.atoms.clone()
    other, rollout = played(support())
    moved(other, rollout, returns[:80])
    assert torch.equal(result, other.agent.network.critic.atoms)


@pytest.mark.parametrize("case", ["another critic", "fixed", "nothing counts"])
def test_a_support_stays_where_nothing_moves_it(case):
    config = {"another critic": settings(), "fixed": support(alpha=0.0)}.get(case, support())
    ppo, rollout = played(config)
    atoms = ppo.agent.network.critic.atoms.clone()
    weight = torch.zeros(3) if case == "nothing counts" else torch.ones(3)
    target, (wanted, logits) = moved(ppo, rollout, torch.tensor([1e3, 0.0, -1e3]), weight)
    assert wanted is target
    assert logits is rollout.predicted
    assert torch.equal(ppo.agent.network.critic.atoms, atoms)


@pytest.mark.parametrize("alpha", [0.0, 0.25])
def test_while_statistics_warm_up_the_support_is_that_of_the_settings(alpha):
    """Moved with its units alone, it would stay for good what the first rewards made of it."""
    ppo, rollout = played(support(alpha, critic__v_min=-4.0, critic__v_max=6.0))
    critic = ppo.agent.network.critic
    critic.atoms.copy_(torch.linspace(-400.0, 600.0, 7))
    atoms = critic.atoms.double().numpy().copy()
    returns = torch.randn(T * B, generator=torch.Generator().manual_seed(2))
    target, (wanted, logits) = moved(ppo, rollout, returns, warming=True)
    new = critic.atoms.double().numpy()
    assert new == pytest.approx(np.linspace(-4.0, 6.0, 7), abs=1e-6)
    distribution = rollout.predicted[0, 0, 0].double().softmax(-1).numpy()
    expected = categorical_oracle.project_distribution(distribution, atoms, new)
    assert logits[0, 0, 0].double().softmax(-1).numpy() == pytest.approx(expected, abs=1e-5)
    expected = categorical_oracle.project_distribution(target[0, 0].double().numpy(), atoms, new)
    assert wanted[0, 0].numpy() == pytest.approx(expected, abs=1e-5)


# --- the first units -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["popart", "scale", "off", "frozen_lag"])
def test_the_first_units_are_those_of_the_first_rewards(mode):
    """Discounted rewards to the end of the episode or of the rollout, by a loop, without values."""
    config = settings(returns__normalize_returns=mode)
    ppo, rollout = played(config)
    scale = ppo.agent.return_scale
    scale.mean.fill_(0.0)
    scale.std.fill_(1.0)
    heads = [last.weight.clone() for last in ppo.agent.network.critic.last_layers()]
    initial_scale(ppo.agent, rollout, config)
    sums = []
    for b in range(B):
        coming = 0.0
        for t in reversed(range(T)):
            ends = bool(rollout.terminated[t, b] | rollout.truncated[t, b])
            follows = 0.0 if ends else coming
            coming = float(rollout.reward[t, b]) + config.ppo.gamma * follows
            if rollout.weight[t, b] > 0.0:
                sums.append(coming)
    mean, std = np.mean(sums), np.std(sums)
    expected = {"popart": (mean, std), "scale": (0.0, 10.0 * std)}.get(mode, (0.0, 1.0))
    assert (float(scale.mean), float(scale.std)) == pytest.approx(expected, rel=1e-5)
    for last, before in zip(ppo.agent.network.critic.last_layers(), heads, strict=True):
        assert torch.equal(last.weight, before)


def test_rewards_without_spread_leave_the_units_alone():
    config = settings(ppo__gamma=0.0)
    ppo, rollout = played(config)
    scale = ppo.agent.return_scale
    before = (float(scale.mean), float(scale.std))
    initial_scale(ppo.agent, dataclasses.replace(rollout, reward=torch.full((T, B), -1.0)), config)
    assert (float(scale.mean), float(scale.std)) == before


@pytest.mark.spec("T-R3", "S4-1")
@pytest.mark.parametrize(("mode", "std"), [("popart", 1e-3), ("scale", 1e-3)])
def test_the_first_units_keep_the_gain_below_its_cap(mode, std):
    config = settings(returns__normalize_returns=mode)
    ppo, rollout = played(config)
    initial_scale(ppo.agent, dataclasses.replace(rollout, reward=rollout.reward * 1e-7), config)
    assert float(ppo.agent.return_scale.std) == pytest.approx(std, rel=1e-12)


@pytest.mark.spec("T-R3", "T-R2", "S4-1")
@pytest.mark.parametrize("stat", ["std", "mad"])
@pytest.mark.parametrize("mode", ["popart", "scale", "frozen_lag"])
@pytest.mark.parametrize("critic", CRITICS)
def test_the_gain_that_is_applied_is_bounded_by_its_cap(critic, mode, stat):
    """Returns of 1e-7 are multiplied by 1000 and not by 1e7, and decoded by the same scale."""
    told = script()
    told.reward.mul_(1e-7)
    ppo = learner(
        settings(**CRITICS[critic], returns__normalize_returns=mode, returns__return_stat=stat),
        told=told,
    )
    with torch.no_grad():
        for last in ppo.agent.network.critic.last_layers():
            last.weight.zero_()
            last.bias.zero_()
    update = ppo.update()
    mean, std = update.scale
    assert float(std) == pytest.approx(1e-3, rel=1e-12)
    row = metrics(ppo, update)
    assert row["train/value_target_scale"] == pytest.approx(1000.0, rel=1e-12)
    assert row["train/ret_std"] == pytest.approx(1e-3, rel=1e-12)
    assert row["train/return_stats/decode_encode_mismatch"] == 0.0
    assert row["train/return_stats/std_unfloored"] < 1e-6
    assert row["config/ret_std_at_cap"] == (1e-4 if mode == "scale" else 1e-3)
    if critic != "categorical":
        raw = update.estimates.target.double()
        assert torch.allclose(update.target.double(), (raw - mean) * 1000.0, rtol=1e-4, atol=1e-9)
        assert 1e-5 < float(update.target.abs().max()) < 1e-2
        decoded_target = ppo.agent.return_scale.decode(update.target.double())
        assert torch.allclose(decoded_target, raw, rtol=1e-4, atol=1e-12)
    names = [alarm.name for alarm in Alarms().check(row)]
    assert "warn/value_target_scale_capped" in names


def test_only_the_first_update_takes_its_units_from_rewards_alone():
    """Rewards of a thousandth: predictions are of that size at once, not of the size of one."""
    told = script()
    told.reward.mul_(1e-3)
    ppo = learner(settings(), told=told)
    first = ppo.update()
    assert float(first.estimates.value.abs().max()) < 0.02
    std = float(ppo.agent.return_scale.std)
    ppo.update()
    assert float(ppo.agent.return_scale.std) == pytest.approx(std, rel=0.5)
