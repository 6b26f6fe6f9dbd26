"""Dtypes, unknown weights, far means and other numbers that once slipped through."""

import math
import sys

import numpy as np
import pytest
import torch

from stormsail.core.errors import DtypeError, RangeError
from stormsail.functional import (
    advantage,
    categorical,
    perturbation,
    policy,
    quantile,
    return_scale,
    returns,
    risk,
    risk_gate,
    statistics,
)
from stormsail.functional.distribution import categorical_log_prob

NAN, INF = math.nan, math.inf


def row(*values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


@pytest.mark.spec("M23")
def test_an_unknown_weight_makes_the_result_unknown():
    x, weight = row(1.0, 2.0, 3.0), row(1.0, NAN, 1.0)
    assert statistics.weighted_mean(x, weight).isnan()
    assert statistics.moments(x, weight=weight).mean.isnan()
    assert statistics.explained_variance(x, 2 * x, weight=weight).isnan()
    assert risk.empirical_cvar(x, alpha=0.5, weight=weight).isnan()
    assert advantage.normalise(x, weight=weight).isnan().all()


@pytest.mark.spec("T-R1")
def test_a_large_mean_does_not_cost_the_rescale_its_digits():
    # std * x is about .25 and float32 resolves it to 3e-8; added to a mean of 5000 first, it would
    # be known to 5e-4 only, and the means that follow cannot give that back.
    code = row(0.1234567, -0.7654321, 1.3, dtype=torch.float32)
    exact = (2.0 * code.double() + (5000.0 - 5001.0)) / 2.5
    actual = return_scale.re_express(code, 5000.0, 2.0, 5001.0, 2.5)
    torch.testing.assert_close(actual.double(), exact, rtol=1e-6, atol=1e-7)
    weight, bias = return_scale.popart_rescale(
        code.unsqueeze(-1), code, mean=5000.0, std=2.0, new_mean=5001.0, new_std=2.5
    )
    torch.testing.assert_close(bias.double(), exact, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(weight[:, 0], code * 0.8)


@pytest.mark.parametrize("reward", [torch.float32, torch.float64])
@pytest.mark.parametrize("quantiles", [torch.float32, torch.float64])
def test_targets_take_rewards_and_quantiles_of_different_dtypes(reward, quantiles):
    generator = torch.Generator().manual_seed(0)
    r = torch.randn(4, 3, generator=generator).to(reward)
    q = torch.randn(4, 3, 5, generator=generator).to(quantiles)
    no = torch.zeros(4, 3, dtype=torch.bool)
    for targets in (
        returns.quantile_lambda_targets(r, q, no, no, gamma=0.9, lam=0.5),
        returns.quantile_nstep_targets(r, q, no, no, gamma=0.9, steps=2),
    ):
        assert targets.dtype == reward


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x: returns.gae(x, x, x, x > 9, x > 9, gamma=0.9, lam=0.9), "reward"),
        (lambda x: advantage.normalise(x), "advantage"),
        (lambda x: categorical.project(x[0], row(0.0, 1.0)), "value"),
        (lambda x: quantile.midpoints(4, like=x), "like"),
        (lambda x: quantile.huber_loss(x, x, row(0.25, 0.75), kappa=1.0), "predicted"),
        (lambda x: risk.cvar(x, alpha=0.5), "quantiles"),
        (lambda x: risk.empirical_cvar(x, alpha=0.5), "sample"),
    ],
)
def test_whole_numbers_are_refused_because_the_result_would_be_cut(call, name):
    with pytest.raises(DtypeError) as caught:
        call(torch.tensor([[1, 2], [3, 4]]))
    assert str(caught.value) == (
        f"`{name}` must be a floating-point tensor; found torch.int64. "
        "Convert it with `.float()` or `.double()`. [dtype-mismatch]"
    )


@pytest.mark.parametrize(
    "steps", [3, 10**20, sys.maxsize, pytest.param(np.int64(7), marks=pytest.mark.unshaped)]
)
def test_a_window_of_any_length_is_the_whole_rollout(steps):
    reward, no = torch.ones(3, 1), torch.zeros(3, 1, dtype=torch.bool)
    actual = returns.quantile_nstep_targets(
        reward, torch.zeros(3, 1, 1), no, no, gamma=1.0, steps=steps
    )
    assert actual.flatten().tolist() == [3.0, 2.0, 1.0]


def test_an_infinite_gain_outside_the_tail_does_not_matter():
    quantiles = row(-1.0, 0.0, INF)
    assert risk.cvar(quantiles, alpha=0.3) == -1.0
    assert risk.empirical_cvar(quantiles, alpha=0.3) == -1.0
    assert risk.cvar(row(-1.0, 0.0, NAN), alpha=0.3).isnan()


def test_an_atom_without_mass_is_no_quantile():
    atoms = row(-1.0, 1.0)
    assert risk.categorical_value_at_risk(row(0.0, 1.0), atoms, alpha=1e-6) == 1.0
    distribution = row(9.1e-6, 1.0 - 9.1e-6, dtype=torch.float32)
    assert risk.categorical_value_at_risk(distribution, atoms.float(), alpha=1e-5) == 1.0


def test_a_floor_of_zero_still_centres_a_constant():
    assert advantage.normalise(row(1.1, 1.1, 1.1), floor=0.0).tolist() == [0.0, 0.0, 0.0]


def test_the_ball_has_a_gradient_at_its_centre():
    delta = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    perturbation.project_l2(delta, epsilon=0.5).sum().backward()
    assert delta.grad.tolist() == [[1.0, 1.0, 1.0]]


def test_a_constant_feature_does_not_drift():
    before = statistics.moments(row([1.0, 0.0], [1.0, 2.0]))
    after = statistics.moments(row([1.0, 1.0], [1.0, 3.0]))
    mean, std = statistics.drift(before, after)
    assert (mean.item(), std.item()) == (0.5, 0.0)  # shifts 0 and 1 standard deviation


@pytest.mark.spec("T-S2")
def test_no_perturbation_is_no_change_even_beyond_the_bounds():
    obs, mask = row([2.0, -3.0]), torch.tensor([True, True])
    assert torch.equal(
        perturbation.apply_mask(obs, torch.zeros_like(obs), mask, low=-1.0, high=1.0), obs
    )


def test_the_gate_answers_in_the_dtype_of_the_proposal():
    money = [
        torch.full((1,), value, dtype=torch.float64) for value in (0.1, 90.0, 100.0, 95.0, 0.0)
    ]
    limits = risk_gate.Limits(INF, 0.5, INF, INF, INF, 0.0)
    allowed, reason = risk_gate.risk_gate(torch.tensor([0.75]), risk_gate.Account(*money), limits)
    assert allowed.dtype == torch.float32
    assert (allowed.item(), reason.item()) == (0.5, risk_gate.Reason.LEVERAGE)


def test_a_strided_support_is_as_good_as_a_plain_one():
    atoms = torch.linspace(-1.0, 1.0, 9)[::2]
    assert torch.equal(
        categorical.project(torch.tensor([0.3]), atoms),
        categorical.project(torch.tensor([0.3]), atoms.contiguous()),
    )


@pytest.mark.spec("T-P2")
def test_dropping_cuts_at_the_log_probability_and_not_before():
    # The network's own NaN: the dropped sample adds nothing to the loss, but the backward pass of
    # log_softmax still meets it. Whoever trains must also guard the gradient.
    logits = torch.zeros(2, 3, dtype=torch.float64)
    logits[0, 0] = NAN
    logits.requires_grad_()
    log_prob = categorical_log_prob(logits, torch.tensor([1, 1]))
    kept = policy.drop_nonfinite(log_prob, -torch.ones(2).double(), torch.ones(2).double())
    loss = policy.clipped_surrogate(kept[0], kept[1], torch.ones(2).double(), clip=0.2)
    total = statistics.weighted_mean(loss, kept[2])
    total.backward()
    assert total.isfinite()
    assert logits.grad[1].isfinite().all()
    assert logits.grad[0].isnan().all()


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: perturbation.epsilon_at(NAN, initial=0.1, final=0.1, schedule="linear"),
            "`progress` must be a number; found nan. Pass the statistic itself. [out-of-range]",
        ),
        (
            lambda: return_scale.encode(row(1.0), NAN, 1.0),
            "`mean` must be a number; found nan. Pass the statistic itself. [out-of-range]",
        ),
        (
            lambda: return_scale.decode(row(1.0), 0.0, INF),
            "`std` must be finite; found inf. Pass the statistic itself. [out-of-range]",
        ),
        (
            lambda: quantile.huber_loss(row(1.0), row(1.0), row(0.5), kappa=INF),
            "`kappa` must be finite; found inf. Use 0 for the pinball loss or a small threshold "
            "such as 0.02. [out-of-range]",
        ),
        (
            lambda: statistics.standardise(row(1.0), row(1.0), row(1.0), eps=-2.0),
            "`eps` must be at least 0; found -2.0. Pass a small variance, for example 1e-8. "
            "[out-of-range]",
        ),
    ],
)
def test_numbers_that_mean_nothing_are_refused(call, words):
    with pytest.raises(RangeError) as caught:
        call()
    assert str(caught.value) == words
