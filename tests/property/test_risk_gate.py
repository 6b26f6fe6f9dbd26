"""Properties of the risk gate, and its equality with the plain-Python oracle."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from oracles import risk_gate as oracle
from stormsail.functional.risk_gate import Account, Limits, Reason, risk_gate

NAN, INF = math.nan, math.inf
# Round numbers as well as arbitrary ones, so that proposals, holdings and limits often coincide.
weights = st.one_of(
    st.sampled_from([0.0, 0.5, -0.5, 1.0, -1.0]), st.floats(-3.0, 3.0, allow_subnormal=False)
)
money = st.one_of(st.sampled_from([50.0, 75.0, 100.0]), st.floats(1.0, 200.0))
strange = st.sampled_from([NAN, INF, -INF])
shares = st.one_of(st.sampled_from([0.25, 0.5, 1.0, INF]), st.floats(0.01, 1.0))
amounts = st.one_of(st.sampled_from([0.5, 1.0, INF]), st.floats(0.0, 4.0, allow_subnormal=False))
accounts = st.tuples(weights, money, money, money, amounts.filter(math.isfinite))
limit_sets = st.tuples(
    st.one_of(st.just(INF), st.floats(1.0, 300.0)),
    amounts,
    amounts,
    shares,
    shares,
    st.one_of(st.just(0.0), st.floats(0.0, 100.0, allow_subnormal=False)),
)


def gate(proposals, account, limits):
    """Run the gate on a list of proposals for one account."""
    x = torch.tensor(proposals, dtype=torch.float64)
    return risk_gate(x, Account(*(torch.full_like(x, v) for v in account)), Limits(*limits))


def gate_one(proposal, account, limits):
    allowed, reason = gate([proposal], account, limits)
    return allowed.item(), reason.item()


@pytest.mark.spec("D6")
@given(proposal=weights, account=accounts, limits=limit_sets)
def test_the_gate_equals_the_rules_in_plain_python(proposal, account, limits):
    allowed, reason = gate_one(proposal, account, limits)

    expected, expected_reason = oracle.risk_gate(proposal, account, limits)
    assert allowed == pytest.approx(expected, rel=1e-12, abs=1e-15)
    assert reason == expected_reason


@pytest.mark.spec("D6", "M23")
@given(
    proposal=st.one_of(weights, strange),
    account=accounts,
    limits=limit_sets,
    hole=st.integers(1, 4),
)
def test_the_gate_with_an_unknown_number_equals_the_rules_in_plain_python(
    proposal, account, limits, hole
):
    account = tuple(NAN if k == hole else v for k, v in enumerate(account))
    # A rule that is switched off and an unknown number: the contract does not say; stay away.
    assume(all(math.isfinite(v) for v in limits))

    allowed, reason = gate_one(proposal, account, limits)

    expected, expected_reason = oracle.risk_gate(proposal, account, limits)
    assert allowed == pytest.approx(expected, rel=1e-12, abs=1e-15)
    assert reason == expected_reason


def left_over(account, limits):
    return max(limits[2] - account[4], 0.0)


def between_zero_and(held, weight):
    return min(held, 0.0) <= weight <= max(held, 0.0)


@pytest.mark.spec("D6")
@given(proposal=st.one_of(weights, strange), account=accounts, limits=limit_sets)
def test_what_is_allowed_obeys_every_limit(proposal, account, limits):
    held, equity, peak, day_start, _ = account
    max_position, max_leverage, _, max_drawdown, max_daily_loss, min_equity = limits

    allowed, _ = gate_one(proposal, account, limits)

    assert math.isfinite(allowed)
    assert abs(allowed) <= max_leverage
    assert abs(allowed) * equity <= max_position * (1.0 + 1e-12)
    in_budget = abs(allowed - held) <= left_over(account, limits) + 1e-12
    assert in_budget or between_zero_and(held, allowed)
    if 1.0 - equity / day_start >= max_daily_loss or 1.0 - equity / peak >= max_drawdown:
        assert between_zero_and(held, allowed)
    if equity < min_equity:
        assert allowed == 0.0


@given(proposal=st.one_of(weights, strange), account=accounts, limits=limit_sets)
def test_the_gate_is_idempotent(proposal, account, limits):
    allowed, _ = gate_one(proposal, account, limits)

    assert gate_one(allowed, account, limits) == (allowed, Reason.NONE)


@given(proposal=weights, account=accounts, limits=limit_sets)
def test_the_reason_is_none_exactly_where_nothing_changed(proposal, account, limits):
    allowed, reason = gate_one(proposal, account, limits)

    assert (reason == Reason.NONE) == (allowed == proposal)


@given(proposal=weights, account=accounts, limits=limit_sets)
def test_the_gate_never_turns_or_enlarges_a_proposal(proposal, account, limits):
    allowed, _ = gate_one(proposal, account, limits)

    assert allowed * proposal >= 0.0
    assert abs(allowed) <= abs(proposal)


@pytest.mark.spec("D6")
@pytest.mark.parametrize("which", range(6), ids=Limits._fields)
@given(
    proposal=st.one_of(weights, strange),
    account=accounts,
    limits=limit_sets,
    factor=st.floats(0.0, 1.0, allow_subnormal=False),
)
def test_a_tighter_limit_never_allows_more(which, proposal, account, limits, factor):
    # A higher minimum of equity is the tighter one; every other limit is tighter when smaller.
    loose = limits[which]
    if which == 5:
        tight = loose + 100.0 * factor
    elif which in (3, 4):
        tight = max(min(loose, 1.0) * factor, 1e-6)
    else:
        tight = min(loose, 1e3) * factor
    tighter = tuple(tight if k == which else v for k, v in enumerate(limits))

    allowed, _ = gate_one(proposal, account, limits)
    less, _ = gate_one(proposal, account, tighter)

    assert abs(less) <= abs(allowed) * (1.0 + 1e-12)


@given(
    proposal=st.one_of(weights, strange),
    account=accounts,
    limits=limit_sets,
    tripped=st.sampled_from(["daily", "drawdown", "turnover"]),
)
def test_a_tripped_rule_never_lets_the_position_grow(proposal, account, limits, tripped):
    held, equity, *_ = account
    account = (held, equity, 4.0 * equity, 4.0 * equity, 2.0)
    limits = (
        limits[0],
        limits[1],
        1.0 if tripped == "turnover" else INF,
        0.75 if tripped == "drawdown" else INF,
        0.75 if tripped == "daily" else INF,
        0.0,
    )

    allowed, _ = gate_one(proposal, account, limits)

    assert between_zero_and(held, allowed)


@pytest.mark.spec("D6")
@given(account=accounts, limits=limit_sets, share=st.floats(0.0, 1.0, allow_subnormal=False))
def test_a_reduction_inside_the_position_limits_is_always_allowed(account, limits, share):
    # Turnover, daily loss and drawdown never stand in the way of less risk.
    held, equity, *_ = account
    proposal = held * share
    assume(abs(proposal) <= limits[1])
    assume(abs(proposal) * equity <= limits[0] * (1.0 - 1e-12))
    assume(equity >= limits[5])

    assert gate_one(proposal, account, limits) == (proposal, Reason.NONE)


@given(account=accounts, limits=limit_sets)
def test_flat_is_always_allowed(account, limits):
    assert gate_one(0.0, account, limits) == (0.0, Reason.NONE)


@given(proposal=weights, account=accounts, limits=limit_sets)
def test_long_and_short_are_treated_alike(proposal, account, limits):
    mirrored = (-account[0], *account[1:])

    allowed, reason = gate_one(proposal, account, limits)

    assert gate_one(-proposal, mirrored, limits) == (-allowed, reason)


def hostile(count, seed):
    """Proposals and accounts that mix ordinary, huge, negative and non-finite numbers."""
    rng = np.random.default_rng(seed)
    ordinary = [
        rng.normal(0.0, 2.0, count),
        rng.normal(0.0, 1.0, count),
        rng.uniform(-20.0, 200.0, count),
        rng.uniform(1.0, 200.0, count),
        rng.uniform(1.0, 200.0, count),
        rng.uniform(0.0, 6.0, count),
    ]
    poison = np.array([NAN, INF, -INF, 1e30, -1e30, 0.0])
    for k, column in enumerate(ordinary):
        hit = rng.random(count) < 0.1
        choices = poison if k < 2 else np.array([NAN, 1e30])
        column[hit] = rng.choice(choices, size=int(hit.sum()))
    proposal, *account = (torch.from_numpy(column) for column in ordinary)
    return proposal, Account(*account)


@pytest.mark.spec("D6")
def test_a_million_hostile_proposals_never_pass_a_limit():
    proposal, account = hostile(1_000_000, seed=20240518)
    limits = Limits(100.0, 1.5, 4.0, 0.4, 0.3, 10.0)

    allowed, reason = risk_gate(proposal, account, limits)

    held = torch.where(account.weight.isfinite(), account.weight, 0.0)
    between = (allowed >= held.clamp(max=0.0)) & (allowed <= held.clamp(min=0.0))
    left = torch.where(account.turnover.isnan(), 0.0, 4.0 - account.turnover).clamp(min=0.0)
    in_budget = (allowed - held).abs() <= left + 1e-9 * held.abs() + 1e-12
    safe_daily = 1.0 - account.equity / account.day_start_equity < 0.3
    safe_peak = 1.0 - account.equity / account.peak_equity < 0.4
    assert allowed.isfinite().all()
    assert (allowed.abs() <= 1.5).all()
    assert (between | in_budget).all()
    assert (between | (safe_daily & safe_peak)).all()
    assert (allowed[~(account.equity >= 10.0)] == 0.0).all()
    assert (allowed[~account.weight.isfinite()] == 0.0).all()
    notional = allowed.abs() * account.equity
    assert (notional[account.equity >= 10.0] <= 100.0 * (1.0 + 1e-12)).all()
    assert ((reason == Reason.NONE) == (allowed == proposal))[account.weight.isfinite()].all()


@pytest.mark.spec("D6")
def test_a_batch_equals_a_loop_over_the_plain_rules():
    proposal, account = hostile(2_000, seed=3)
    limits = Limits(100.0, 1.5, 4.0, 0.4, 0.3, 10.0)

    allowed, reason = risk_gate(proposal, account, limits)

    table = zip(proposal.tolist(), zip(*(c.tolist() for c in account), strict=True), strict=True)
    expected = [oracle.risk_gate(weight, row, tuple(limits)) for weight, row in table]
    np.testing.assert_allclose(allowed.numpy(), [w for w, _ in expected], rtol=1e-12, atol=1e-15)
    undecided = ~account.weight.isfinite() & (proposal == 0.0)  # the contract names two reasons
    same = torch.tensor([r for _, r in expected]) == reason
    assert (same | undecided).all()


def test_any_leading_dimensions_give_the_same_verdicts():
    proposal, account = hostile(24, seed=4)
    limits = Limits(100.0, 1.5, 4.0, 0.4, 0.3, 10.0)

    flat = risk_gate(proposal, account, limits)
    folded = risk_gate(
        proposal.reshape(2, 3, 4), Account(*(c.reshape(2, 3, 4) for c in account)), limits
    )

    for a, b in zip(flat, folded, strict=True):
        assert torch.equal(a, b.reshape(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_dtype_is_kept_and_float32_agrees_up_to_its_rounding(dtype):
    rng = np.random.default_rng(9)
    proposal = torch.from_numpy(rng.normal(size=500)).to(dtype)
    account = Account(
        torch.from_numpy(rng.normal(size=500)).to(dtype),
        *(torch.from_numpy(rng.uniform(50.0, 150.0, size=500)).to(dtype) for _ in range(3)),
        torch.from_numpy(rng.uniform(0.0, 5.0, size=500)).to(dtype),
    )
    limits = Limits(100.0, 1.5, 4.0, 0.4, 0.3, 10.0)

    allowed, reason = risk_gate(proposal, account, limits)
    exact, _ = risk_gate(proposal.double(), Account(*(c.double() for c in account)), limits)

    assert allowed.dtype == dtype
    assert reason.dtype == torch.int64
    # Weights up to 5 with one or two roundings.
    torch.testing.assert_close(allowed.double(), exact, rtol=1e-6, atol=1e-6)
