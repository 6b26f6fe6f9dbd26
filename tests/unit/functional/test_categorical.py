"""Hand-computed values, golden numbers and refusals of `stormsail.functional.categorical`."""

import math

import numpy as np
import pytest
import torch

from stormsail.core.errors import ShapeError
from stormsail.functional import categorical, value_clip


def row(*values):
    return torch.tensor(values, dtype=torch.float64)


def close(actual, expected, *, atol=1e-12):
    np.testing.assert_allclose(actual.detach(), expected, rtol=1e-12, atol=atol)


def test_projection_by_hand():
    # Atoms 0, 1, 2, 3. 1.25 lies a quarter of the way from 1 to 2; ends and atoms get mass 1.
    actual = categorical.project(row(1.25, 0.0, 3.0, 2.0, -7.0, 99.0), row(0, 1, 2, 3))
    expected = [
        [0, 0.75, 0.25, 0],
        [1, 0, 0, 0],
        [0, 0, 0, 1],
        [0, 0, 1, 0],
        [1, 0, 0, 0],
        [0, 0, 0, 1],
    ]
    close(actual, expected)


def test_two_atoms_are_enough():
    actual = categorical.project(row(-1.0, 0.5, 1.0), row(-1, 1))
    close(actual, [[1, 0], [0.25, 0.75], [0, 1]])


@pytest.mark.parametrize("count", [2, 21, 51, 101])
def test_every_atom_of_a_float32_support_keeps_all_its_mass(count):
    # b = (z - low) / gap is not a whole number in floating point; floor and ceiling may then both
    # land on one atom with weights that do not add up to one.
    atoms = torch.linspace(-10.0, 10.0, count)
    rows = categorical.project(atoms, atoms)
    np.testing.assert_allclose(rows.sum(-1), np.ones(count), rtol=1e-6)
    np.testing.assert_allclose(rows, np.eye(count), atol=2e-5)


def test_projection_of_a_distribution_by_hand():
    # .5 at .5 gives .25 to 0 and 1; .3 at 2 stays; .2 at 9 is clamped to 2.
    actual = categorical.project_distribution(row(0.5, 0.3, 0.2), row(0.5, 2.0, 9.0), row(0, 1, 2))
    close(actual, [0.25, 0.25, 0.5])


@pytest.mark.spec("T-K4", "X11")
def test_a_moved_support_keeps_mass_and_mean_and_is_not_merely_relabelled():
    # The distribution (.2, .5, .3) on 0, 1, 2 has mean 1.1. Atoms move to -.5, .75, 2.25 (all old
    # atoms inside): 0 -> 0.6 at -.5, .4 at .75; 1 -> 5/6 at .75, 1/6 at 2.25; 2 -> 1/6, 5/6.
    probs, old, new = row(0.2, 0.5, 0.3), row(0, 1, 2), row(-0.5, 0.75, 2.25)
    actual = categorical.project_distribution(probs, old, new)
    close(actual, [0.12, 0.08 + 5 / 12 + 0.05, 1 / 12 + 0.25])
    close(actual.sum(), 1.0)
    close(categorical.distribution_mean(actual, new), 1.1)
    # Atoms moved without projection would read a mean of 0.95.
    assert abs(categorical.distribution_mean(probs, new).item() - 1.1) > 0.04


def test_shifting_a_distribution_by_hand():
    # By +.25 on 0, 1, 2: each atom sends a quarter of its mass up, the last one is clamped.
    actual = categorical.shift_distribution(
        row(0.2, 0.5, 0.3), torch.tensor(0.25).double(), row(0, 1, 2)
    )
    close(actual, [0.15, 0.05 + 0.375, 0.125 + 0.3])


@pytest.mark.spec("T-K3", "X11")
def test_shifting_a_distribution_passes_a_gradient_to_every_logit():
    # Rebuilding the shifted distribution as a two-atom point would leave three logits without a
    # gradient of their own. p' = sum_m p_m hat(z_m + d): every p_m counts.
    logits = row(0.1, -0.4, 0.3, 0.9, -0.2).requires_grad_()
    atoms = row(-2, -1, 0, 1, 2)
    target = categorical.project(torch.tensor(1.6).double(), atoms)
    moved = categorical.shift_distribution(
        torch.softmax(logits, -1), torch.tensor(-0.3).double(), atoms
    )
    loss = categorical.cross_entropy(moved.log(), target)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert bool((gradient.abs() > 1e-3).all())
    clipped = value_clip.clip_distribution(
        torch.softmax(logits, -1),
        row(0.6, 0.1, 0.1, 0.1, 0.1),
        atoms,
        epsilon=0.2,
        mode="mean_only",
    )
    (gradient,) = torch.autograd.grad(categorical.cross_entropy(clipped.log(), target), logits)
    assert bool((gradient.abs() > 1e-3).all())


def test_cross_entropy_by_hand():
    # softmax(log 1, log 3) = (1/4, 3/4): -(.5 log .25 + .5 log .75).
    actual = categorical.cross_entropy(row(0.0, math.log(3.0)), row(0.5, 0.5))
    close(actual, -0.5 * (math.log(0.25) + math.log(0.75)))


def test_cross_entropy_stays_exact_for_huge_logits():
    actual = categorical.cross_entropy(torch.tensor([[1e4, 0.0]]), torch.tensor([[0.0, 1.0]]))
    assert actual.tolist() == [1e4]


@pytest.mark.spec("T-K1", "S3-4", "S3-FP1")
def test_a_target_far_from_the_old_value_enters_the_loss_unclipped():
    # Old and new value 0, epsilon .5, target 3. The plain loss is -log p(3); a target clamped to
    # old +- .5 would read -(.5 log p(0) + .5 log p(1)) instead.
    atoms = row(-3, -2, -1, 0, 1, 2, 3)
    logits = row(-9, -4, -1, 0, -1, -4, -9).requires_grad_()
    old = torch.softmax(logits, -1).detach()
    target = categorical.project(torch.tensor(3.0).double(), atoms)
    close(target, [0, 0, 0, 0, 0, 0, 1])
    loss = categorical.cross_entropy(logits, target)
    log_p = torch.log_softmax(logits, -1)
    close(loss, -log_p[6].item())
    assert loss.item() > -0.5 * (log_p[3] + log_p[4]).item() + 5
    # The clipped branch moves the prediction only: same distribution, same target, same loss.
    clipped = value_clip.clip_distribution(old, old, atoms, epsilon=0.5, mode="mean_only")
    close(categorical.cross_entropy(clipped.log(), target), loss.item(), atol=1e-6)


@pytest.mark.spec("T-K2", "S4-V3")
@pytest.mark.parametrize("count", [2, 21, 51])
def test_the_normalised_loss_of_a_uniform_prediction_is_one(count):
    target = categorical.project(row(0.3), torch.linspace(-1, 1, count, dtype=torch.float64))
    loss = categorical.cross_entropy(torch.zeros(1, count, dtype=torch.float64), target)
    close(loss / categorical.cross_entropy_normaliser(count), [1.0])


@pytest.mark.spec("T-K2", "S4-V3")
def test_the_normaliser_is_the_natural_logarithm_and_one_for_a_single_atom():
    np.testing.assert_allclose(categorical.cross_entropy_normaliser(21), 3.0445, atol=5e-5)
    assert categorical.cross_entropy_normaliser(21) == math.log(21)
    assert categorical.cross_entropy_normaliser(1) == 1.0
    assert isinstance(categorical.cross_entropy_normaliser(51), float)


def test_mean_and_variance_by_hand():
    # Mean .2 * -1 + .5 * 3 = 1.3; E z^2 = .2 + 4.5 = 4.7; variance 4.7 - 1.69.
    probs, atoms = row(0.2, 0.3, 0.5), row(-1, 0, 3)
    close(categorical.distribution_mean(probs, atoms), 1.3)
    close(categorical.distribution_variance(probs, atoms), 3.01)


def test_variance_survives_a_large_offset_in_float32():
    # E z^2 - mean^2 at 1e4 loses everything: 1e8 has a float32 spacing of 8.
    atoms = torch.tensor([10_000.0, 10_001.0])
    actual = categorical.distribution_variance(torch.tensor([0.5, 0.5]), atoms)
    np.testing.assert_allclose(actual, 0.25, rtol=1e-3)


def test_outside_support_by_hand():
    below, above = categorical.outside_support(row(-1.5, -1.0, 0.0, 1.0, 1.5), row(-1, 1))
    assert below.tolist() == [True, False, False, False, False]
    assert above.tolist() == [False, False, False, False, True]


# -------------------------------------------------------------------------------------- refusals


def refused(function, *arguments):
    with pytest.raises(ShapeError) as caught:
        function(*arguments)
    return str(caught.value)


@pytest.mark.refusal
@pytest.mark.parametrize("shape", [(1,), (2, 3), ()])
def test_atoms_must_be_a_row_of_at_least_two(shape):
    atoms = torch.zeros(shape)
    probs, value = torch.zeros(4, 1), torch.zeros(4)
    expected = (
        f"`atoms` must be one-dimensional with at least 2 entries; found atoms {shape}. "
        "Pass the support as one ascending row. [shape-mismatch]"
    )
    assert refused(categorical.project, value, atoms) == expected
    assert refused(categorical.project_distribution, probs, probs, atoms) == expected
    assert refused(categorical.shift_distribution, probs, value, atoms) == expected
    assert refused(categorical.distribution_mean, probs, atoms) == expected
    assert refused(categorical.distribution_variance, probs, atoms) == expected
    assert refused(categorical.outside_support, value, atoms) == expected


@pytest.mark.refusal
def test_a_distribution_on_other_atoms_is_refused():
    probs, atoms = torch.zeros(4, 21), torch.arange(51.0)
    expected = (
        "`probs` must have one entry for each of the 51 atoms in its last dimension; "
        "found probs (4, 21). Project the distribution on these atoms first. [shape-mismatch]"
    )
    assert refused(categorical.shift_distribution, probs, torch.zeros(4), atoms) == expected
    assert refused(categorical.distribution_mean, probs, atoms) == expected
    assert refused(categorical.distribution_variance, probs, atoms) == expected


@pytest.mark.refusal
def test_projection_refuses_to_broadcast():
    message = refused(
        categorical.project_distribution, torch.zeros(4, 8), torch.zeros(1, 8), torch.arange(3.0)
    )
    assert message == (
        "`probs` and `support` must have the same shape; found probs (4, 8) and support (1, 8). "
        "Reduce or expand one of them before the call; this function never broadcasts. "
        "[shape-mismatch]"
    )


@pytest.mark.refusal
def test_a_shift_must_have_one_entry_for_each_distribution():
    message = refused(
        categorical.shift_distribution, torch.zeros(4, 3), torch.zeros(3), torch.arange(3.0)
    )
    assert message == (
        "`shift` must have the shape of `probs` without its last dimension; "
        "found shift (3,) and probs (4, 3). Reduce or expand one of them before the call; "
        "this function never broadcasts. [shape-mismatch]"
    )


@pytest.mark.refusal
@pytest.mark.spec("M02")
def test_cross_entropy_refuses_to_broadcast():
    message = refused(categorical.cross_entropy, torch.zeros(4, 8), torch.zeros(1, 8))
    assert message == (
        "`logits` and `target` must have the same shape; "
        "found logits (4, 8) and target (1, 8). "
        "Reduce or expand one of them before the call; this loss never broadcasts. [shape-mismatch]"
    )


def test_earlier_public_names_are_the_same_functions():
    assert categorical.project_law is categorical.project_distribution
    assert value_clip.clip_law is value_clip.clip_distribution
