"""The trace form of the budget advantage, in numbers worked out by hand."""

import pytest
import torch

from stormsail.core.errors import DtypeError, RangeError, ShapeError
from stormsail.functional import risk

REWARD = torch.tensor([[1.0], [-2.0], [4.0]], dtype=torch.float64)
NEXT = torch.tensor([[[-2.0, 2.0]], [[-4.0, 2.0]], [[0.0, 4.0]]], dtype=torch.float64)
QUANTILES = torch.tensor([[[-1.0, 3.0]], [[-2.0, 2.0]], [[1.0, 5.0]]], dtype=torch.float64)
BUDGET = torch.tensor([[0.0], [-1.0], [2.0]], dtype=torch.float64)
NEVER = torch.zeros(3, 1, dtype=torch.bool)
SECOND = torch.tensor([[False], [True], [False]])
HALF = {"alpha": 0.5, "gamma": 0.5, "lam": 0.5}


def traced(terminated=NEVER, truncated=NEVER, following=NEXT, **changes):
    result = risk.budget_trace(
        REWARD, following, QUANTILES, BUDGET, terminated, truncated, **{**HALF, **changes}
    )
    return result[:, 0].tolist()


def test_the_trace_by_hand():
    """Discount and decay are a half each, so a later change counts a quarter.

    Row 0: 1 + (-2, 2) / 2 = 0, 2, never below 0; the critic had -1, 3, so -1/2: (0 + .5) / .5 = 1.
    Row 1 against -1: it ends at -2, so -1; the critic had -2, 2, so -1/2: -.5 / .5 = -1.
    Row 2 against 2: 4 + (0, 4) / 2 is above; the critic had 1, 5, so -1/2: 1.
    The trace ends with row 1: 1 - 1/4, -1, 1.
    """
    assert traced(terminated=SECOND) == pytest.approx([0.75, -1.0, 1.0], abs=1e-12)


def test_a_time_out_stands_on_the_distribution_it_reached_and_cuts_the_trace():
    """Row 1 is -2 + (-4, 2) / 2 = -4, -1 against -1: -3, 0, so -1.5 + .5 = -1, over .5: -2."""
    assert traced(truncated=SECOND) == pytest.approx([0.5, -2.0, 1.0], abs=1e-12)


def test_without_an_end_the_sum_runs_to_the_last_row():
    """-2 + 1/4 = -1.75, and 1 - 1.75 / 4 = .5625."""
    assert traced() == pytest.approx([0.5625, -1.75, 1.0], abs=1e-12)
    assert traced(lam=0.0) == pytest.approx([1.0, -2.0, 1.0], abs=1e-12)
    assert traced(lam=1.0) == pytest.approx([0.25, -1.5, 1.0], abs=1e-12)


def test_what_a_final_state_is_said_to_be_worth_does_not_matter():
    spoilt = NEXT.clone()
    spoilt[1] = torch.nan
    assert traced(terminated=SECOND, following=spoilt) == traced(terminated=SECOND)
    probs = torch.full((3, 1, 2), 0.5, dtype=torch.float64)
    holed = probs.clone()
    holed[1] = torch.nan
    atoms = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    rest = (probs, atoms, BUDGET, SECOND, NEVER)
    result, whole = (
        risk.categorical_budget_trace(REWARD, distribution, *rest, **HALF)
        for distribution in (holed, probs)
    )
    assert bool(result.isfinite().all())
    assert torch.equal(result, whole)


ATOMS = torch.tensor([-2.0, 0.0, 2.0], dtype=torch.float64)


def one_step(*, terminated, **changes):
    return risk.categorical_budget_trace(
        torch.ones(1, 1, dtype=torch.float64),
        torch.tensor([[[0.5, 0.25, 0.25]]], dtype=torch.float64),
        torch.tensor([[[0.25, 0.5, 0.25]]], dtype=torch.float64),
        ATOMS,
        torch.ones(1, 1, dtype=torch.float64),
        torch.tensor([[terminated]]),
        torch.tensor([[False]]),
        **{**HALF, **changes},
    ).item()


def test_a_distribution_on_atoms_by_hand():
    """1 + (-2, 0, 2) / 2 = 0, 1, 2 against 1: -1 with 1/2. The critic: -3 / 4 - 1 / 2 = -1.25.

    (-.5 + 1.25) / .5 = 1.5; and 2.5 if it ends at 1. Projected, half of the quarter at 1 would lie
    at 0 and fall short too: (-.625 + 1.25) / .5 = 1.25.
    """
    assert one_step(terminated=False) == pytest.approx(1.5, abs=1e-12)
    assert one_step(terminated=True) == pytest.approx(2.5, abs=1e-12)


def test_what_lies_below_the_support_is_not_pulled_in():
    """gamma 1 and a reward of 1 against a budget of 1, atoms from -2: the worst is -2, half of it.

    With the reward -9 instead the one-step distribution lies at -11, -9, -7, far below the lowest
    atom.
    """
    assert one_step(terminated=False, gamma=1.0) == pytest.approx((-1.0 + 1.25) / 0.5, abs=1e-12)
    result = risk.categorical_budget_trace(
        torch.full((1, 1), -9.0, dtype=torch.float64),
        torch.tensor([[[0.5, 0.25, 0.25]]], dtype=torch.float64),
        torch.tensor([[[0.25, 0.5, 0.25]]], dtype=torch.float64),
        ATOMS,
        torch.ones(1, 1, dtype=torch.float64),
        torch.tensor([[False]]),
        torch.tensor([[False]]),
        alpha=0.5,
        gamma=1.0,
        lam=1.0,
    )
    # -12, -10 and -8 with 1/2, 1/4, 1/4: -10.5.
    assert result.item() == pytest.approx((-10.5 + 1.25) / 0.5, abs=1e-12)


def test_full_traces_without_discount_tell_what_happened_less_what_was_expected():
    """A row begins with the distribution that the row before led to; budgets follow the rewards."""
    source = torch.Generator().manual_seed(3)
    distribution = torch.randn(7, 2, 5, generator=source, dtype=torch.float64)
    reward = torch.randn(6, 2, generator=source, dtype=torch.float64)
    budget = 0.3 - torch.cat([torch.zeros(1, 2), reward.cumsum(0)[:-1]])
    last = torch.zeros(6, 2, dtype=torch.bool)
    last[-1, 0] = True  # the first column ends, the second is cut by the rollout's end
    never = torch.zeros_like(last)
    options = {"alpha": 0.2, "gamma": 1.0, "lam": 1.0}
    result = risk.budget_trace(
        reward, distribution[1:], distribution[:-1], budget, last, never, **options
    )
    total = reward.flip(0).cumsum(0).flip(0)
    after = torch.where(last[-1][:, None], 0.0, distribution[-1])
    monte_carlo = total[..., None] + after
    expected = risk.budget_advantage(monte_carlo, distribution[:-1], budget, alpha=0.2)
    torch.testing.assert_close(result, expected, rtol=0.0, atol=1e-12)
    short = (reward.sum(0)[0] - 0.3).clamp(max=0.0) - (distribution[0, 0] - 0.3).clamp(
        max=0.0
    ).mean()
    assert result[0, 0].item() == pytest.approx(short.item() / 0.2, abs=1e-12)


def refused(
    error, *, distribution=QUANTILES, following=NEXT, flags=(NEVER, NEVER), budget=BUDGET, **changes
):
    with pytest.raises(error) as caught:
        risk.budget_trace(REWARD, following, distribution, budget, *flags, **{**HALF, **changes})
    return str(caught.value)


@pytest.mark.refusal
def test_what_does_not_fit_is_refused():
    tail = (
        "Reduce or expand one of them before the call; this function never broadcasts. "
        "[shape-mismatch]"
    )
    assert refused(ShapeError, following=NEXT[:2]) == (
        "`reward` must have the shape of `next_quantiles` without its last dimension; "
        f"found reward (3, 1) and next_quantiles (2, 1, 2). {tail}"
    )
    assert refused(ShapeError, budget=BUDGET[:, 0]) == (
        "`budget` must have the shape of `quantiles` without its last dimension; "
        f"found budget (3,) and quantiles (3, 1, 2). {tail}"
    )
    assert refused(ShapeError, flags=(NEVER[:2], NEVER)) == (
        f"`reward` and `terminated` must have the same shape; found reward (3, 1) and terminated "
        f"(2, 1). {tail}"
    )
    refused(DtypeError, flags=(NEVER.double(), NEVER))
    for name, value in (("alpha", 0.0), ("gamma", 1.1), ("lam", -0.1)):
        assert f"`{name}` must lie in" in refused(RangeError, **{name: value})
