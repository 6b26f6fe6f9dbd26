"""A learner whose quantiles are dense in the tail: every reading goes by mass."""

import numpy as np
import pytest
import torch

from learner_lab import aged, learner, settings
from oracles import levels as oracle
from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.risk.advantage import (
    Trace,
    predicted_cvar,
    predicted_distribution,
    risk_advantage,
)
from stormsail.algorithms.telemetry.metrics import metrics
from stormsail.algorithms.update import critic_targets
from stormsail.algorithms.update.estimates import estimate
from stormsail.algorithms.update.losses import legacy_cvar
from stormsail.algorithms.update.return_statistics import ReturnStatistics, Scale
from stormsail.core.errors import ConfigError

TAIL = {"critic__levels": "tail"}
WEIGHT = oracle.tail_weights(4)  # .05 and three of .95 / 3
LEVELS = oracle.middles(WEIGHT)


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def rolled(**changes):
    """Return a learner with weights as after some training, and a rollout of it."""
    ppo = aged(learner(settings(**TAIL, **changes)))
    ppo.env_state, rollout = ppo._collect()
    return ppo, rollout


def test_critics_learn_their_levels_from_targets_by_mass():
    ppo, _ = rolled()
    predicted, target = normal(2, 3, 2, 4), normal(2, 3, 4, seed=1)
    loss = critic_targets.losses(ppo.agent, predicted, target)
    kappa = ppo.agent.spec.critic.huber_kappa
    for place in np.ndindex(2, 3, 2):
        theta, y = predicted[place].double().numpy(), target[place[:2]].double().numpy()
        expected = oracle.huber_loss(theta, y, LEVELS, kappa, WEIGHT)
        assert float(loss[place]) == pytest.approx(expected, rel=1e-5)


def test_a_scalar_return_is_one_atom_of_all_the_mass():
    ppo, _ = rolled(target__kind="lambda_return")
    assert critic_targets.atom_weights(ppo.agent, normal(3, 1)) is None
    predicted, target = normal(3, 2, 4), normal(3, 1, seed=1)
    loss = critic_targets.losses(ppo.agent, predicted, target)
    kappa = ppo.agent.spec.critic.huber_kappa
    expected = oracle.huber_loss(
        predicted[1, 0].double().numpy(), target[1].double().numpy(), LEVELS, kappa, [1.0]
    )
    assert float(loss[1, 0]) == pytest.approx(expected, rel=1e-5)


def test_predictions_are_held_by_the_moments_of_their_mass():
    ppo, _ = rolled(
        value_clip__clip_range_vf=0.1, value_clip__distributional_vf_clip_mode="mean_and_variance"
    )
    new, old, target = normal(1, 2, 4), normal(1, 2, 4, seed=1), normal(1, 4, seed=2)
    loss = critic_targets.clipped_losses(ppo.agent, new, old, target, ppo.config)
    held = oracle.clip_quantiles(
        new[0, 1].double().numpy(),
        old[0, 1].double().numpy(),
        0.1,
        "mean_and_variance",
        2.0,
        WEIGHT,
    )
    kappa = ppo.agent.spec.critic.huber_kappa
    expected = oracle.huber_loss(held, target[0].double().numpy(), LEVELS, kappa, WEIGHT)
    assert float(loss[0, 1]) == pytest.approx(expected, rel=1e-4)


def test_values_are_means_by_mass():
    ppo, rollout = rolled(critic__use_twin_critics=False)
    estimates = estimate(ppo.agent, rollout, ppo.config)
    mean = (rollout.predicted[..., 0, :].double() * torch.from_numpy(WEIGHT)).sum(-1)
    assert torch.allclose(estimates.value.double(), 1.9 * mean + 0.7, atol=1e-5)


@pytest.mark.parametrize("traced", [False, True])
def test_the_risk_advantage_goes_by_mass(traced):
    ppo, rollout = rolled(critic__use_twin_critics=False, target__kind="td")
    estimates = estimate(ppo.agent, rollout, ppo.config)
    trace = Trace(gamma=ppo.config.ppo.gamma, lam=0.0) if traced else None
    options = {"alpha": 0.2, "level": 0.1, "trace": trace}
    advantage = risk_advantage("budget", ppo.agent, rollout, estimates, **options)
    own = predicted_distribution(ppo.agent, rollout).double().numpy()
    target = estimates.target.double().numpy()
    budget = 0.1 - rollout.return_so_far.double().numpy()
    seen = 0
    for t, b in np.ndindex(*budget.shape):
        if rollout.weight[t, b] == 0.0:
            continue
        expected = oracle.budget_advantage(
            target[t, b], own[t, b], budget[t, b], 0.2, WEIGHT, WEIGHT
        )
        assert float(advantage[t, b]) == pytest.approx(expected, rel=1e-4, abs=1e-5)
        seen += 1
    assert seen > 40


def test_the_state_form_reads_its_own_value_at_risk_by_mass():
    ppo, rollout = rolled(critic__use_twin_critics=False, target__kind="td")
    estimates = estimate(ppo.agent, rollout, ppo.config)
    advantage = risk_advantage("state", ppo.agent, rollout, estimates, alpha=0.2, level=0.1)
    own = predicted_distribution(ppo.agent, rollout).double().numpy()
    t, b = (int(k) for k in (rollout.weight > 0.0).nonzero()[5])
    level = oracle.value_at_risk(own[t, b], 0.2, WEIGHT)
    expected = oracle.budget_advantage(
        estimates.target[t, b].double().numpy(), own[t, b], level, 0.2, WEIGHT, WEIGHT
    )
    assert float(advantage[t, b]) == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("estimator", ["dirac", "linear"])
def test_the_predicted_tail_is_that_of_the_mixture_by_mass(estimator):
    ppo, rollout = rolled()
    first = predicted_distribution(ppo.agent, rollout)[rollout.length == 1].double().numpy()
    actual = predicted_cvar(ppo.agent, rollout, alpha=0.05, estimator=estimator)
    read = oracle.cvar if estimator == "dirac" else oracle.cvar_linear
    expected = read(first.reshape(-1), 0.05, np.tile(WEIGHT, len(first)) / len(first))
    assert len(first) > 5
    assert actual == pytest.approx(expected, rel=1e-5)


def test_the_comparison_with_an_earlier_system_reads_by_mass():
    ppo, _ = rolled(critic__use_twin_critics=False)
    predicted = normal(3, 1, 4)
    actual = legacy_cvar(ppo.agent, predicted, alpha=0.05, estimator="dirac")
    expected = [oracle.cvar(q.double().numpy(), 0.05, WEIGHT) for q in predicted[:, 0]]
    assert actual.tolist() == pytest.approx(expected, rel=1e-5)


def test_return_statistics_weigh_atoms():
    # Rows of the atoms 0 and 10 with the masses .9 and .1: mean 1, variance .9 * 1 + .1 * 81 = 9
    statistics = ReturnStatistics(settings().returns)
    atoms = torch.tensor([[0.0, 10.0], [0.0, 10.0]])
    mass = torch.tensor([0.9, 0.1], dtype=torch.float64)
    scale = statistics.step(atoms, torch.ones(2), Scale(0.0, 1.0), atom_weight=mass)
    assert scale == pytest.approx((1.0, 3.0), rel=1e-9)
    # a row counts as much as one of equal atoms: two of those in the next update weigh the same
    scale = statistics.step(torch.full((2, 2), 5.0), torch.ones(2), scale)
    assert scale == pytest.approx((3.0, (0.5 * (9 + 4) + 0.5 * 4) ** 0.5), rel=1e-9)


def test_an_update_moves_the_return_scale_by_mass():
    ppo, _ = rolled(returns__warmup_updates=3)
    update = ppo.update()
    rows = update.estimates.target.double()[update.rollout.weight > 0.0]
    mean = (rows * torch.from_numpy(WEIGHT)).sum(-1).mean()
    variance = ((rows - mean).square() * torch.from_numpy(WEIGHT)).sum(-1).mean()
    assert float(update.scale[0]) == pytest.approx(float(mean), rel=1e-5)
    assert float(update.scale[1]) == pytest.approx(float(variance.sqrt()), rel=1e-5)


def test_metrics_read_by_mass():
    ppo, _ = rolled(
        risk__cvar_use_constraint=True, risk__cvar_limit=-1.0, validation__every_updates=0,
        critic__use_twin_critics=False, returns__ret_clip=0.5,
    )  # fmt: skip
    update = ppo.update()
    values = metrics(ppo, update)
    assert values["config/cvar_resolution"] == pytest.approx(0.05, rel=1e-12)
    rows = update.rollout.weight > 0.0
    joint = ppo.agent.network.critic.distribution(update.predicted)[rows].double().numpy()
    low, high = (
        np.array([oracle.value_at_risk(q, level, WEIGHT) for q in joint]) for level in (0.25, 0.75)
    )
    assert values["train/value_quantile_iqr_norm"] == pytest.approx((high - low).mean(), rel=1e-5)
    clipped = (update.target[rows].abs() >= 0.5).double().numpy() @ WEIGHT
    assert values["train/clip_active_frac/norm"] == pytest.approx(clipped.mean(), rel=1e-6)


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"target.kind": "lambda_mixture"},
            "`target.kind` must be `nstep`, `td`, `mc` or `lambda_return` for `critic.levels` "
            "`tail`, not `lambda_mixture`, which is made of equal atoms",
        ),
        (
            {"returns.return_stat": "mad"},
            "`returns.return_stat` must be `std` for `critic.levels` `tail`, not `mad`, which "
            "counts all atoms alike",
        ),
        (
            {"critic.kind": "categorical"},
            '`critic.levels` must be unset while `critic.kind` is "categorical"',
        ),
    ],
)
def test_what_needs_equal_atoms_is_refused_at_tail_levels(changes, words):
    with pytest.raises(ConfigError) as caught:
        TrainConfig().replace(**{"critic.levels": "tail", **changes})
    assert words in str(caught.value)
