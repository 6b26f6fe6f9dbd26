"""Hand-computed values, golden numbers and refusals of `stormsail.functional.twin`."""

import math

import numpy as np
import pytest
import torch

from stormsail.core.errors import ChoiceError, ShapeError
from stormsail.functional import quantile, twin, value_clip


def row(*values):
    return torch.tensor(values, dtype=torch.float64)


def close(actual, expected, *, atol=1e-12):
    np.testing.assert_allclose(actual.detach(), expected, rtol=1e-12, atol=atol)


@pytest.mark.spec("T-T2", "S1-T1", "S3-FP2")
def test_the_smaller_of_two_biased_heads_is_the_unbiased_one():
    values = torch.stack([row(4, -1, 0) + 1.0, row(4, -1, 0)], dim=-1)
    close(twin.twin_value(values, mode="min"), [4, -1, 0])
    close(twin.twin_value(values, mode="mean"), [4.5, -0.5, 0.5])


@pytest.mark.spec("S1-T1")
def test_the_minimum_of_two_unbiased_critics_is_biased_low():
    # E min of two N(0, 1) = -1/sqrt(pi) = -.56419; the mean is unbiased. A product grid of
    # normal quantiles leaves no sampling error beyond its own resolution.
    n = 1000
    z = math.sqrt(2.0) * torch.erfinv(2 * quantile.midpoints(n, like=row(0.0)) - 1)
    pairs = torch.stack([z.repeat_interleave(n), z.repeat(n)], dim=-1)
    low = twin.twin_value(pairs, mode="min").mean()
    np.testing.assert_allclose(low, -0.56419, atol=2e-4)
    np.testing.assert_allclose(twin.twin_value(pairs, mode="mean").mean(), 0.0, atol=1e-9)


def test_distribution_reads_by_hand():
    # Means 2 and 1.5: the second critic is the smaller one and stays as it is, unsorted.
    pair = torch.tensor([[3.0, 1.0], [5.0, -2.0]])
    assert twin.twin_quantiles(pair, mode="argmin").tolist() == [5.0, -2.0]
    assert twin.twin_quantiles(pair, mode="mixture").tolist() == [-2.0, 1.0, 3.0, 5.0]
    # Sorted: (1, 3) and (-2, 5), element by element (-2, 3).
    assert twin.twin_quantiles(pair, mode="elementwise_min").tolist() == [-2.0, 3.0]


def test_the_first_critic_is_read_on_a_tie():
    pair = torch.tensor([[0.0, 4.0], [1.0, 3.0]])
    assert twin.twin_quantiles(pair, mode="argmin").tolist() == [0.0, 4.0]
    assert twin.twin_quantiles(pair.flip(0), mode="argmin").tolist() == [1.0, 3.0]
    distributions = torch.tensor([[0.5, 0.0, 0.5], [0.0, 1.0, 0.0]])
    atoms = torch.tensor([-1.0, 0.0, 1.0])
    assert twin.twin_distribution(distributions, atoms, mode="argmin").tolist() == [0.5, 0.0, 0.5]
    assert twin.twin_distribution(distributions.flip(0), atoms, mode="argmin").tolist() == [
        0.0,
        1.0,
        0.0,
    ]


def test_distributions_by_hand():
    distributions = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    atoms = torch.tensor([0.0, 8.0])
    assert twin.twin_distribution(distributions, atoms, mode="argmin").tolist() == [0.5, 0.5]
    assert twin.twin_distribution(distributions, atoms, mode="mixture").tolist() == [0.375, 0.625]


def test_each_state_chooses_its_own_critic():
    pair = torch.tensor([[[0.0, 0.0], [1.0, 1.0]], [[3.0, 3.0], [2.0, 2.0]]])
    assert twin.twin_quantiles(pair, mode="argmin").tolist() == [[0.0, 0.0], [2.0, 2.0]]


@pytest.mark.spec("T-T5", "S3-1")
def test_the_joint_loss_takes_each_critics_worse_branch_and_then_the_mean():
    # a1 > b1 and a2 < b2: (a1 + b2) / 2 = (5 + 7) / 2. Average first: max(3.5, 4) = 4.
    close(twin.twin_loss(row(5, 2), row(1, 7)), 6.0)
    # For two samples: rows are kept apart.
    loss, clipped = torch.tensor([[5.0, 2], [1, 1]]), torch.tensor([[1.0, 7], [3, 0]])
    assert twin.twin_loss(loss, clipped).tolist() == [6.0, 2.0]


@pytest.mark.spec("T-F6", "S4-V6")
def test_the_worse_branch_is_taken_for_each_sample():
    # Samples (plain, clipped) = (1, 3) and (3, 1): the mean of the maxima is 3, the maximum of
    # the means 2.
    per_sample = twin.twin_loss(row(1, 3).unsqueeze(-1), row(3, 1).unsqueeze(-1))
    close(per_sample, [3, 3])
    close(per_sample.mean(), 3.0)


@pytest.mark.spec("T-T3", "S1-T2")
def test_each_critic_is_clipped_against_its_own_old_values():
    # Old 0 and 10, new 1 and 11, epsilon .5: .5 and 10.5. A shared old minimum gives .5 and .5.
    new, old = torch.tensor([[1.0], [11.0]]), torch.tensor([[0.0], [10.0]])
    for mode in ("mean_only", "mean_and_variance", "per_quantile"):
        clipped = value_clip.clip_quantiles(new, old, epsilon=0.5, mode=mode)
        assert clipped.tolist() == [[0.5], [10.5]]


@pytest.mark.spec("T-T5", "T-T3", "S3-1")
def test_twin_critics_vf_clipping():
    # Median heads, pinball at tau = .5 counts half of each distance. Target 0 for both.
    # Critic 1: old -2, new 4, epsilon 1 -> clipped -1: 2 plain, .5 clipped: plain branch wins.
    # Critic 2: old 6, new 2, epsilon 1 -> clipped 5: 1 plain, 2.5 clipped: the clipped branch
    # wins, which is flat in the new value, so this head gets no gradient.
    new = torch.tensor([[4.0], [2.0]], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([[-2.0], [6.0]], dtype=torch.float64)
    target, tau = torch.zeros(2, 1, dtype=torch.float64), row(0.5)
    clipped = value_clip.clip_quantiles(new, old, epsilon=1.0, mode="per_quantile")
    close(clipped, [[-1], [5]])
    plain_loss = quantile.huber_loss(new, target, tau, kappa=0.0)
    clipped_loss = quantile.huber_loss(clipped, target, tau, kappa=0.0)
    loss = twin.twin_loss(plain_loss, clipped_loss)
    close(loss, (2.0 + 2.5) / 2)
    loss.backward()
    # d loss / d new_1 = (1/2 critics) * tau = .25. Clipping only the first critic would give
    # (2 + 1) / 2 and a gradient on head 2; averaging the critics first max(1.5, 1.5) = 1.5.
    close(new.grad, [[0.25], [0.0]])


# -------------------------------------------------------------------------------------- refusals


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("call", "names", "near", "meant"),
    [
        (lambda mode: twin.twin_value(torch.zeros(3, 2), mode=mode), "min mean", "meen", "mean"),
        (
            lambda mode: twin.twin_quantiles(torch.zeros(3, 2, 4), mode=mode),
            "argmin mixture elementwise_min",
            "mixtrue",
            "mixture",
        ),
        (
            lambda mode: twin.twin_distribution(torch.zeros(3, 2, 4), torch.arange(4.0), mode=mode),
            "argmin mixture",
            "agrmin",
            "argmin",
        ),
    ],
)
def test_an_unknown_mode_is_refused_with_the_nearest_name(call, names, near, meant):
    listed = ", ".join(f"`{name}`" for name in names.split())
    with pytest.raises(ChoiceError) as caught:
        call(near)
    assert str(caught.value) == (
        f"`mode` must be one of {listed}; found `{near}`. Did you mean `{meant}`? [unknown-choice]"
    )
    with pytest.raises(ChoiceError) as caught:
        call("zzz")
    assert str(caught.value) == (
        f"`mode` must be one of {listed}; found `zzz`. Choose one of those names. [unknown-choice]"
    )


@pytest.mark.refusal
def test_the_joint_loss_refuses_to_broadcast():
    with pytest.raises(ShapeError) as caught:
        twin.twin_loss(torch.zeros(4, 2), torch.zeros(4, 1))
    message = str(caught.value)
    start = (
        "`loss` and `clipped_loss` must have the same shape; "
        "found loss (4, 2) and clipped_loss (4, 1). "
        "Reduce or expand one of them before the call; "
    )
    assert message.startswith(start)
    assert message.endswith("never broadcasts. [shape-mismatch]")


@pytest.mark.refusal
def test_a_joint_distribution_must_live_on_its_atoms():
    with pytest.raises(ShapeError) as caught:
        twin.twin_distribution(torch.zeros(3, 2, 4), torch.arange(5.0), mode="argmin")
    assert str(caught.value) == (
        "`probs` must have one entry for each of the 5 atoms in its last dimension; "
        "found probs (3, 2, 4). Project the distribution on these atoms first. [shape-mismatch]"
    )
