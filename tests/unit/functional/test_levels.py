"""Quantiles of unequal mass by hand: cells, levels, exact means and tails, refusals."""

import math

import numpy as np
import pytest
import torch

from stormsail.core.errors import ChoiceError, RangeError, ShapeError
from stormsail.functional import quantile, risk, twin, value_clip

WEIGHT = (0.05, 0.2, 0.25, 0.5)


def row(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_a_quarter_of_the_levels_shares_the_worst_twentieth():
    # N = 8: 2 cells of .05 / 2 and 6 of .95 / 6.
    weight = quantile.tail_weights(8, like=row(0.0))
    np.testing.assert_allclose(weight, [0.025] * 2 + [0.95 / 6] * 6, rtol=1e-14)
    weight = quantile.tail_weights(32, like=row(0.0))
    np.testing.assert_allclose(weight[:8], 0.00625, rtol=1e-14)
    np.testing.assert_allclose(weight[8:], 0.95 / 24, rtol=1e-14)
    assert quantile.tail_weights(32).dtype == torch.float32


@pytest.mark.parametrize(("n", "narrow"), [(2, 1), (3, 1), (5, 1), (6, 2), (10, 3), (64, 16)])
def test_the_quarter_is_rounded_and_never_none(n, narrow):
    weight = quantile.tail_weights(n, like=row(0.0))
    np.testing.assert_allclose(weight[:narrow].sum(), 0.05, rtol=1e-14)
    np.testing.assert_allclose(weight[narrow:], 0.95 / (n - narrow), rtol=1e-14)


def test_one_level_has_all_of_the_mass():
    assert quantile.tail_weights(1).tolist() == [1.0]
    assert quantile.levels_of(row(1.0)).tolist() == [0.5]


def test_levels_by_hand():
    # Cells [0, .05], [.05, .25], [.25, .5], [.5, 1].
    np.testing.assert_allclose(
        quantile.levels_of(row(*WEIGHT)), [0.025, 0.15, 0.375, 0.75], rtol=1e-14
    )
    np.testing.assert_allclose(quantile.weights_of(row(0.025, 0.15, 0.375, 0.75)), WEIGHT)


def test_levels_that_are_no_middles_give_a_cell_without_mass():
    # .1 is the middle of [0, .2], so .15 lies inside of it.
    assert quantile.weights_of(row(0.1, 0.15))[1].item() == pytest.approx(-0.1)


def test_the_mean_of_a_distribution_that_is_constant_on_its_cells_is_exact():
    # .05 * -10 + .2 * -1 + .25 * 0 + .5 * 2 = .3; equal weights would say -2.25.
    np.testing.assert_allclose(
        quantile.expectation(row(-10, -1, 0, 2), weight=row(*WEIGHT)), 0.3, rtol=1e-14
    )


@pytest.mark.parametrize(
    ("alpha", "tail"),
    [
        (0.05, -10.0),
        (0.01, -10.0),  # within the first cell
        (0.10, -5.5),  # (.05 * -10 + .05 * -1) / .1
        (0.25, -2.8),  # (-.5 - .2) / .25
        (1.00, 0.3),
    ],
)
def test_the_cvar_of_a_distribution_that_is_constant_on_its_cells_is_exact(alpha, tail):
    given = row(2, -10, 0, -1)  # crossed: each takes its mass along
    mass = row(0.5, 0.05, 0.25, 0.2)
    np.testing.assert_allclose(risk.cvar(given, alpha=alpha, weight=mass), tail, rtol=1e-12)


def test_a_rare_ruin_is_seen_at_tail_levels_and_missed_at_equal_ones():
    # Ruin of -10 at 2 %, else 1: the CVaR at 5 % is (.02 * -10 + .03 * 1) / .05 = -3.4.
    # 16 levels, 4 of them in the tail, at .00625, .01875, .03125, .04375: two read the ruin, whose
    # cells end at .025: (.025 * -10 + .025) / .05 = -4.5, off by a cell of .0125 at most.
    # Of 16 equal cells the first, of .0625 with the middle .03125, does not see it at all.
    def quantiles_at(tau):
        return torch.where(tau < 0.02, -10.0, 1.0)

    weight = quantile.tail_weights(16, like=row(0.0))
    fine = risk.cvar(quantiles_at(quantile.levels_of(weight)), alpha=0.05, weight=weight)
    equal = risk.cvar(quantiles_at(quantile.midpoints(16, like=weight)), alpha=0.05)
    np.testing.assert_allclose((fine, equal), (-4.5, 1.0), rtol=1e-12)


def test_the_value_at_risk_reads_by_mass():
    given, mass = row(2, -10, 0, -1), row(0.5, 0.05, 0.25, 0.2)
    for alpha, atom in ((0.05, -10.0), (0.06, -1.0), (0.25, -1.0), (0.26, 0.0), (1.0, 2.0)):
        assert risk.value_at_risk(given, alpha=alpha, weight=mass).item() == atom


def test_linear_cvar_by_hand():
    # Levels .25 and .75 of equal cells are a line from -1 to 1 through 0 at .5, -2 at 0 and 2 at 1;
    # cells of .2 and .8 have the levels .1 and .6: slope 4, so -1.4 at 0 and -.6 at .2.
    actual = risk.cvar(row(-1, 1), alpha=0.2, estimator="linear", weight=row(0.2, 0.8))
    np.testing.assert_allclose(actual, -1.0, rtol=1e-12)


def test_target_atoms_count_with_their_mass():
    # Level .5 at 0, pinball: targets 1 (mass .9) and -4 (mass .1): .5 * .9 + .5 * .4 = .65.
    options = {"kappa": 0.0, "target_weight": row(0.9, 0.1)}
    theta = row(0.0).requires_grad_()
    loss = quantile.huber_loss(theta, row(1, -4), row(0.5), **options)
    loss.backward()
    np.testing.assert_allclose(loss.detach(), 0.65, rtol=1e-12)
    np.testing.assert_allclose(theta.grad, [-0.5 * 0.9 + 0.5 * 0.1], rtol=1e-12)


def test_every_level_learns_at_its_own_rate_whatever_its_cell():
    # Far above all targets the slope of level tau is (1 - tau) / N, and not times a cell's width.
    tau = quantile.levels_of(row(*WEIGHT))
    theta = torch.full((4,), 9.0, dtype=torch.float64).requires_grad_()
    mass = row(*WEIGHT)
    quantile.huber_loss(theta, row(-1, 0, 1, 2), tau, kappa=0.0, target_weight=mass).backward()
    np.testing.assert_allclose(theta.grad, (1.0 - tau) / 4, rtol=1e-12)


def test_a_distribution_is_the_fixed_point_of_its_own_weighted_atoms():
    # At the middle of its own cell an atom has as much pull from above as from below: the mass
    # below it plus half of its own is its level, and its own pair has no slope.
    tau, atoms = quantile.levels_of(row(*WEIGHT)), row(-3, -1, 0, 2)
    for shift in (-1e-6, 1e-6):
        theta = (atoms + shift).requires_grad_()
        mass = row(*WEIGHT)
        quantile.huber_loss(theta, atoms, tau, kappa=0.0, target_weight=mass).backward()
        # one side of the kink: the slope is half of the atom's own mass, either way
        np.testing.assert_allclose(theta.grad, math.copysign(0.5, shift) * mass / 4, rtol=1e-9)


def test_the_mean_decides_between_twins_by_mass():
    # Equal weights: means -1 and 0. By mass: .9 * 0 + .1 * -2 = -.2 against .9 * -1 + .1 * 1 = -.8.
    critics = torch.tensor([[-2.0, 0.0], [1.0, -1.0]], dtype=torch.float64)
    assert twin.twin_quantiles(critics, mode="argmin").tolist() == [-2.0, 0.0]
    chosen = twin.twin_quantiles(critics, mode="argmin", weight=row(0.1, 0.9))
    assert chosen.tolist() == [1.0, -1.0]


@pytest.mark.refusal
def test_a_mixture_of_weighted_quantiles_is_refused():
    with pytest.raises(ChoiceError) as caught:
        twin.twin_quantiles(torch.zeros(2, 4), mode="mixture", weight=row(*WEIGHT))
    assert str(caught.value) == (
        "`mode` must be `argmin` or `elementwise_min` for quantiles of unequal weight; found "
        "`mixture`, whose atoms would have other weights in every row. Use `argmin`, or quantiles "
        "at equal levels. [unknown-choice]"
    )


@pytest.mark.refusal
def test_weights_of_another_number_of_atoms_are_refused():
    three, four = row(0.2, 0.3, 0.5), torch.zeros(4, dtype=torch.float64)
    for call in (
        lambda: quantile.expectation(four, weight=three),
        lambda: quantile.monotone(four, weight=three),
        lambda: risk.cvar(four, alpha=0.1, weight=three),
        lambda: risk.value_at_risk(four, alpha=0.1, weight=three),
        lambda: twin.twin_quantiles(torch.zeros(2, 4), mode="argmin", weight=three),
        lambda: value_clip.clip_quantiles(four, four, epsilon=0.1, mode="mean_only", weight=three),
        lambda: risk.budget_advantage(four, four, row(0.0)[0], alpha=0.1, weight=three),
    ):
        with pytest.raises(
            ShapeError, match="`weight` must have one entry for each of the 4 atoms"
        ):
            call()
    tau = quantile.midpoints(4, like=four)
    for call in (
        lambda: quantile.huber_loss(four, four, tau, kappa=0.1, target_weight=three),
        lambda: quantile.huber_active(four, four, kappa=0.1, target_weight=three),
        lambda: risk.budget_advantage(four, four, row(0.0)[0], alpha=0.1, target_weight=three),
    ):
        with pytest.raises(ShapeError, match="`target_weight` must have one entry for each of"):
            call()


@pytest.mark.refusal
def test_no_levels_are_refused():
    with pytest.raises(RangeError, match="`n` must be a whole number of at least 1; found 0"):
        quantile.tail_weights(0)


@pytest.mark.parametrize("mass", [None, torch.tensor([0.1, 0.2, 0.3, 0.4])])
def test_several_values_at_risk_are_those_of_each_level(mass):
    atoms = torch.tensor([[3.0, -1.0, 2.0, 0.5], [1.0, math.nan, 0.0, 2.0]])
    levels = (0.05, 0.25, torch.tensor(0.5), 1.0)
    together = risk.values_at_risk(atoms, alphas=levels, weight=mass)
    alone = [risk.value_at_risk(atoms, alpha=level, weight=mass) for level in levels]
    wanted = torch.stack(alone, -1)
    torch.testing.assert_close(together, wanted, rtol=0.0, atol=0.0, equal_nan=True)
    assert together[0].tolist()[::3] == [-1.0, 3.0]
