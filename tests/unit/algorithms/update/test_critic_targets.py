"""What critics learn towards and what it costs them to miss it, against a float64 replay."""

import numpy as np
import pytest
import torch

from learner_lab import CRITICS, ENDS, SCALAR, aged, learner, settings
from oracles import learner as oracle
from stormsail.algorithms.update import critic_targets
from stormsail.algorithms.update.critic_targets import clipped_losses, encoded, losses, targets
from stormsail.algorithms.update.rollout import collect
from stormsail.core.errors import InvariantError

T, B = 8, len(ENDS)
MEAN, STD = 0.7, 1.9


def played(config):
    ppo = aged(learner(config))
    streams = torch.Generator().manual_seed(3), torch.Generator().manual_seed(4)
    play = ppo.env_state
    for _ in range(2):
        play, rollout = collect(
            ppo.task, ppo.agent, play, steps=T, sequence_length=T, generators=streams
        )
    return ppo.agent, rollout


CASES = {
    "quantile nstep": {"target.steps": 3},
    "quantile nstep beyond the rollout": {"target.steps": 64},
    "quantile td": {"target.kind": "td"},
    "quantile mc": {"target.kind": "mc"},
    "quantile mixture": {"target.kind": "lambda_mixture", "target.mixture_lambda": 0.6},
    "quantile return": {"target.kind": "lambda_return"},
    "categorical nstep": {"critic.kind": "categorical", "target.steps": 3},
    "categorical td": {"critic.kind": "categorical", "target.kind": "td"},
    "categorical mc": {"critic.kind": "categorical", "target.kind": "mc"},
    "categorical return": {"critic.kind": "categorical", "target.kind": "lambda_return"},
    "scalar return": SCALAR,
}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
@pytest.mark.spec("X5", "S3-4", "S3-FP1")
def test_targets_are_those_of_the_replay_in_reward_units(changes):
    config = settings(**changes, ppo__gamma=0.9)
    agent, rollout = played(config)
    scalar = torch.randn(T, B, generator=torch.Generator().manual_seed(1)) * 4.0
    data = {
        name: getattr(rollout, name).double().numpy() for name in ("reward", "next_predicted")
    } | {name: getattr(rollout, name).numpy() for name in ("terminated", "truncated")}
    steps = {"td": 1, "mc": T, "nstep": min(config.target.steps, T)}.get(config.target.kind, 0)
    expected = oracle.target(
        data, config.critic.kind, config.target.kind,
        gamma=0.9, steps=steps, lam=0.6, mean=MEAN, std=STD,
        atoms=agent.network.critic.atoms.double().numpy(), scalar_return=scalar.double().numpy(),
    )  # fmt: skip
    result = targets(agent, rollout, scalar, config)
    assert result.shape == expected.shape
    assert result.numpy() == pytest.approx(expected, abs=3e-5)
    if config.critic.kind == "categorical":
        assert result.sum(-1).numpy() == pytest.approx(np.ones((T, B)), abs=1e-6)


def test_a_mixture_of_both_distributions_has_the_atoms_of_both():
    config = settings(critic__twin_dist_mode="mixture", target__kind="td")
    agent, rollout = played(config)
    result = targets(agent, rollout, rollout.reward, config)
    assert result.shape == (T, B, 8)
    both = (STD * rollout.next_predicted + MEAN).flatten(-2).sort(-1).values
    expected = rollout.reward[..., None] + torch.where(
        rollout.terminated[..., None], 0.0, 0.99 * both
    )
    assert torch.allclose(result, expected, atol=1e-5)


@pytest.mark.spec("T-R4", "S4-Q1")
def test_targets_are_encoded_in_the_units_of_the_heads():
    config = settings()
    agent, _ = played(config)
    raw = torch.tensor([[[1.0, 100.0, -100.0, 0.7]]])
    result = encoded(agent, raw, config)
    assert torch.allclose(result, (raw - MEAN) / STD)
    assert torch.allclose(agent.return_scale.decode(result), raw, rtol=1e-6)


def test_only_a_scalar_target_is_limited():
    raw = torch.tensor([[[100.0]]])
    held = settings(target__kind="lambda_return")
    assert float(encoded(played(held)[0], raw, held)) == 10.0
    wider = settings(target__kind="lambda_return", returns__ret_clip=20.0)
    assert float(encoded(played(wider)[0], raw, wider)) == 20.0
    distribution = settings()
    assert float(encoded(played(distribution)[0], raw, distribution)) == pytest.approx(
        (100.0 - MEAN) / STD
    )


def test_what_is_not_normalised_is_not_limited():
    """A bound of ten spreads means nothing where returns are learned in reward units."""
    config = settings(target__kind="lambda_return", returns__normalize_returns="off")
    agent, _ = played(config)
    agent.return_scale.mean.fill_(0.0)
    agent.return_scale.std.fill_(1.0)
    assert float(encoded(agent, torch.tensor([[[100.0]]]), config)) == 100.0


def test_probabilities_need_no_units():
    config = settings(critic__kind="categorical", target__kind="lambda_return")
    agent, _ = played(config)
    distribution = torch.rand(2, 3, 7)
    assert encoded(agent, distribution, config) is distribution


@pytest.mark.parametrize("critic", CRITICS)
@pytest.mark.spec("T-K2", "T-Q3")
def test_each_critic_pays_for_its_own_distance(critic):
    config = settings(**CRITICS[critic], critic__huber_kappa=0.3)
    agent, rollout = played(config)
    source = torch.Generator().manual_seed(2)
    width = {"quantile": 6, "categorical": 7, "scalar": 1}[critic]
    wanted = torch.randn(T, B, width, generator=source)
    if critic == "categorical":
        wanted = wanted.softmax(-1)
    result = losses(agent, rollout.predicted, wanted)
    assert result.shape == (T, B, 2)
    predicted, target = rollout.predicted.double().numpy(), wanted.double().numpy()
    for t, b, c in np.ndindex(T, B, 2):
        expected = oracle.critic_loss(predicted[t, b, c], target[t, b], critic, 0.3)
        assert float(result[t, b, c]) == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.spec("T-K2", "S4-V3")
@pytest.mark.parametrize("atoms", [2, 21, 51])
def test_a_uniform_prediction_costs_one_whatever_the_number_of_atoms(atoms):
    config = settings(critic__kind="categorical", critic__num_atoms=atoms)
    agent, _ = played(config)
    wanted = torch.zeros(1, 1, atoms)
    wanted[..., 0] = 1.0
    result = losses(agent, torch.zeros(1, 1, 2, atoms), wanted)
    assert result.numpy() == pytest.approx(np.ones((1, 1, 2)), rel=1e-6)


MODES = {
    "quantile": ("mean_only", "mean_and_variance", "per_quantile"),
    "categorical": ("mean_only", "mean_and_variance"),
    "scalar": ("mean_only",),
}


@pytest.mark.parametrize(("critic", "mode"), [(c, m) for c in MODES for m in MODES[c]])
@pytest.mark.parametrize("units", ["norm", "raw"])
@pytest.mark.spec("T-F1", "T-F2", "T-F3", "T-T3", "T-K1", "S1-T2", "S3-M1", "X11", "X12", "X18")
def test_held_predictions_cost_what_the_replay_says(critic, mode, units):
    config = settings(
        **CRITICS[critic], value_clip__clip_range_vf=0.3, value_clip__vf_clip_units=units,
        value_clip__distributional_vf_clip_mode=mode,
        value_clip__distributional_vf_clip_variance_factor=0.5, critic__huber_kappa=0.3,
    )  # fmt: skip
    agent, rollout = played(config)
    source = torch.Generator().manual_seed(2)
    old = rollout.predicted + 0.8 * torch.randn(rollout.predicted.shape, generator=source)
    wanted = torch.randn(T, B, old.shape[-1], generator=source)
    if critic == "categorical":
        wanted = wanted.softmax(-1)
    result = clipped_losses(agent, rollout.predicted, old, wanted, config)
    new, before = rollout.predicted.double().numpy(), old.double().numpy()
    target, atoms = wanted.double().numpy(), agent.network.critic.atoms.double().numpy()
    clip = {
        "epsilon": 0.3 if units == "norm" else 0.3 / STD, "mode": mode, "factor": 0.5,
        "limit": None, "mean": MEAN, "std": STD,
    }  # fmt: skip
    for t, b, c in np.ndindex(T, B, 2):
        near = oracle.held(new[t, b, c], before[t, b, c], critic, atoms, **clip)
        expected = oracle.critic_loss(near, target[t, b], critic, 0.3)
        assert float(result[t, b, c]) == pytest.approx(expected, rel=2e-4, abs=1e-5)


@pytest.mark.spec("T-F7")
def test_the_limit_holds_the_clipped_branch_and_the_target_stays():
    config = settings(**SCALAR, value_clip__clip_range_vf=100.0, value_clip__value_clip_limit=1.0)
    agent, _ = played(config)
    predicted = torch.full((1, 1, 2, 1), (3.0 - MEAN) / STD)
    target = torch.full((1, 1, 1), (3.0 - MEAN) / STD)
    assert losses(agent, predicted, target).abs().max() == 0.0
    result = clipped_losses(agent, predicted, predicted, target, config)
    assert result.numpy() == pytest.approx(np.full((1, 1, 2), 0.5 * (2.0 / STD) ** 2), rel=1e-5)


@pytest.mark.spec("T-K3", "X11")
def test_the_gradient_of_a_held_distribution_reaches_every_logit():
    config = settings(critic__kind="categorical", value_clip__clip_range_vf=0.1)
    agent, _ = played(config)
    logits = torch.randn(1, 1, 2, 7, generator=torch.Generator().manual_seed(5))
    old = torch.zeros_like(logits)
    logits.requires_grad_()
    wanted = torch.full((1, 1, 7), 1.0 / 7.0)
    clipped_losses(agent, logits, old, wanted, config).sum().backward()
    assert bool((logits.grad != 0.0).all())
    assert float(logits.grad.sum(-1).abs().max()) < 1e-5


@pytest.mark.refusal
def test_without_a_range_there_is_nothing_to_hold():
    config = settings()
    agent, rollout = played(config)
    wanted = torch.zeros(T, B, 4)
    with pytest.raises(InvariantError) as refusal:
        clipped_losses(agent, rollout.predicted, rollout.predicted, wanted, config)
    assert str(refusal.value) == (
        "`value_clip.clip_range_vf` must be set where predictions are clipped; found None. "
        "Call `losses` instead. [missing-argument]"
    )


def test_the_distribution_of_reached_states_is_decoded_with_the_statistics_of_the_heads():
    agent, rollout = played(settings(critic__use_twin_critics=False))
    result = critic_targets.next_distribution(agent, rollout)
    assert torch.allclose(result, STD * rollout.next_predicted[:, :, 0] + MEAN, atol=1e-5)
    agent, rollout = played(settings(critic__kind="categorical", critic__use_twin_critics=False))
    result = critic_targets.next_distribution(agent, rollout)
    assert torch.allclose(result, rollout.next_predicted[:, :, 0].softmax(-1))
