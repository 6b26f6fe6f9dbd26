"""The risk gate, limit by limit, against verdicts worked out by hand."""

import math

import numpy as np
import pytest
import torch

from stormsail.core.errors import RangeError, ShapeError
from stormsail.functional.risk_gate import Account, Limits, Reason, risk_gate

NAN, INF = math.nan, math.inf
OFF = {
    "max_position": INF,
    "max_leverage": INF,
    "max_turnover": INF,
    "max_drawdown": INF,
    "max_daily_loss": INF,
    "min_equity": 0.0,
}
QUIET = {
    "weight": 0.0,
    "equity": 100.0,
    "peak_equity": 100.0,
    "day_start_equity": 100.0,
    "turnover": 0.0,
}


def gate(proposal, account=None, dtype=torch.float64, **limits):
    """Allowed weight and reason of one proposal; what is not named is quiet or off."""
    state = {**QUIET, **(account or {})}
    allowed, reason = risk_gate(
        torch.tensor([proposal], dtype=dtype),
        Account(**{name: torch.tensor([v], dtype=dtype) for name, v in state.items()}),
        Limits(**{**OFF, **limits}),
    )
    assert allowed.dtype == dtype
    assert reason.dtype == torch.int64
    return allowed.item(), Reason(reason.item())


def test_reasons_rise_in_severity():
    names = (
        "NONE", "LEVERAGE", "POSITION", "TURNOVER", "DAILY_LOSS", "DRAWDOWN", "BANKRUPT",
        "NONFINITE",
    )  # fmt: skip
    assert {reason.name: reason.value for reason in Reason} == {n: k for k, n in enumerate(names)}


@pytest.mark.parametrize("proposal", [0.0, 0.7, -1.3])
def test_nothing_is_changed_when_every_limit_is_off(proposal):
    assert gate(proposal) == (proposal, Reason.NONE)


# (proposal, account, limits, allowed, reason); equity is 100 unless the account says otherwise.
TABLE = {
    "leverage-long": (1.5, {}, {"max_leverage": 1.0}, 1.0, Reason.LEVERAGE),
    "leverage-short": (-1.5, {}, {"max_leverage": 1.0}, -1.0, Reason.LEVERAGE),
    "leverage-edge": (1.0, {}, {"max_leverage": 1.0}, 1.0, Reason.NONE),
    # A notional of 50 with an equity of 100 is a weight of 1/2.
    "position-long": (0.8, {}, {"max_position": 50.0}, 0.5, Reason.POSITION),
    "position-short": (-0.8, {}, {"max_position": 50.0}, -0.5, Reason.POSITION),
    "position-edge": (0.5, {}, {"max_position": 50.0}, 0.5, Reason.NONE),
    "position-with-double-equity": (
        0.8,
        {"equity": 200.0, "peak_equity": 200.0},
        {"max_position": 50.0},
        0.25,
        Reason.POSITION,
    ),
    # Half of a daily turnover of 1 is used: half is left.
    "turnover-buy": (
        1.0, {"weight": 0.25, "turnover": 0.5}, {"max_turnover": 1.0}, 0.75, Reason.TURNOVER,
    ),
    "turnover-sell-short": (
        -1.0, {"weight": -0.25, "turnover": 0.5}, {"max_turnover": 1.0}, -0.75, Reason.TURNOVER,
    ),
    "turnover-edge": (
        0.75, {"weight": 0.25, "turnover": 0.5}, {"max_turnover": 1.0}, 0.75, Reason.NONE,
    ),
    "turnover-used-up": (
        1.0, {"weight": 0.25, "turnover": 1.0}, {"max_turnover": 1.0}, 0.25, Reason.TURNOVER,
    ),
    # Overspent: nothing is left, and certainly not a negative amount.
    "turnover-overspent": (
        1.0, {"weight": 0.25, "turnover": 3.0}, {"max_turnover": 1.0}, 0.25, Reason.TURNOVER,
    ),
    # Toward 0 is always allowed, however much was traded.
    "turnover-reduce": (
        0.25, {"weight": 1.0, "turnover": 3.0}, {"max_turnover": 1.0}, 0.25, Reason.NONE,
    ),
    "turnover-flatten": (
        0.0, {"weight": -1.0, "turnover": 3.0}, {"max_turnover": 1.0}, 0.0, Reason.NONE,
    ),
    # Equity 75 after a day start of 100 is a loss of exactly .25.
    "daily-loss-no-new-risk": (
        0.75,
        {"weight": 0.5, "equity": 75.0},
        {"max_daily_loss": 0.25},
        0.5,
        Reason.DAILY_LOSS,
    ),
    "daily-loss-no-turn": (
        -0.5,
        {"weight": 0.5, "equity": 75.0},
        {"max_daily_loss": 0.25},
        0.0,
        Reason.DAILY_LOSS,
    ),
    "daily-loss-reduce": (
        0.25, {"weight": 0.5, "equity": 75.0}, {"max_daily_loss": 0.25}, 0.25, Reason.NONE,
    ),
    "daily-loss-just-below": (
        0.75, {"weight": 0.5, "equity": 75.5}, {"max_daily_loss": 0.25}, 0.75, Reason.NONE,
    ),
    "drawdown-no-new-risk": (
        -0.75,
        {"weight": -0.5, "equity": 75.0, "day_start_equity": 75.0},
        {"max_drawdown": 0.25},
        -0.5,
        Reason.DRAWDOWN,
    ),
    "drawdown-flat-stays-flat": (
        0.75,
        {"weight": 0.0, "equity": 75.0, "day_start_equity": 75.0},
        {"max_drawdown": 0.25},
        0.0,
        Reason.DRAWDOWN,
    ),
    "drawdown-just-below": (
        -0.75,
        {"weight": -0.5, "equity": 75.5, "day_start_equity": 75.5},
        {"max_drawdown": 0.25},
        -0.75,
        Reason.NONE,
    ),
    "drawdown-of-another-day-is-not-a-daily-loss": (
        0.75,
        {"weight": 0.5, "equity": 75.0, "day_start_equity": 75.0},
        {"max_daily_loss": 0.25},
        0.75,
        Reason.NONE,
    ),
    "bankrupt": (0.5, {"weight": 0.5, "equity": 9.0}, {"min_equity": 10.0}, 0.0, Reason.BANKRUPT),
    "bankrupt-edge": (
        0.5, {"weight": 0.5, "equity": 10.0}, {"min_equity": 10.0}, 0.5, Reason.NONE,
    ),
    "no-equity": (0.5, {"weight": 0.5, "equity": 0.0}, {}, 0.0, Reason.BANKRUPT),
    "negative-equity": (
        0.5,
        {"weight": 0.5, "equity": -5.0},
        {"min_equity": torch.tensor(-INF)},  # a tensor is not inspected
        0.0,
        Reason.BANKRUPT,
    ),
    "bankrupt-and-already-flat": (
        0.0,
        {"weight": 0.5, "equity": -5.0},
        {"max_position": 50.0, "min_equity": 10.0},
        0.0,
        Reason.NONE,
    ),
    # Two rules bind: the reason is the more severe one that still moved the weight.
    "leverage-then-position": (
        3.0, {}, {"max_leverage": 1.0, "max_position": 50.0}, 0.5, Reason.POSITION,
    ),
    "leverage-alone-binds": (
        3.0, {}, {"max_leverage": 0.5, "max_position": 80.0}, 0.5, Reason.LEVERAGE,
    ),
    "position-then-turnover": (
        3.0,
        {"weight": 0.125, "turnover": 0.75},
        {"max_position": 50.0, "max_turnover": 1.0},
        0.375,
        Reason.TURNOVER,
    ),
    "daily-loss-and-drawdown": (
        0.75,
        {"weight": 0.5, "equity": 75.0},
        {"max_daily_loss": 0.25, "max_drawdown": 0.25},
        0.5,
        # The drawdown rule finds nothing left to change.
        Reason.DAILY_LOSS,
    ),
    "everything": (
        3.0,
        {"weight": 0.5, "equity": 5.0, "turnover": 9.0},
        {
            "max_position": 1.0,
            "max_leverage": 1.0,
            "max_turnover": 1.0,
            "max_drawdown": 0.1,
            "max_daily_loss": 0.1,
            "min_equity": 10.0,
        },
        0.0,
        Reason.BANKRUPT,
    ),
}  # fmt: skip


@pytest.mark.spec("D6", "4")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", TABLE)
def test_the_gate_decides_as_worked_out_by_hand(name, dtype):
    proposal, account, limits, allowed, reason = TABLE[name]

    assert gate(proposal, account, dtype=dtype, **limits) == (allowed, reason)


@pytest.mark.spec("D6")
def test_a_turn_through_zero_that_turnover_forbids_stops_at_zero():
    # Held .5, proposed -.5, nothing left: going to 0 is a move toward 0 and always allowed, going
    # on is not. Staying at .5 would keep risk that the agent wanted to give up, and would answer a
    # sell with a long position.
    limits = {"max_turnover": 1.0}

    assert gate(-0.5, {"weight": 0.5, "turnover": 1.0}, **limits) == (0.0, Reason.TURNOVER)
    assert gate(0.5, {"weight": -0.5, "turnover": 0.75}, **limits) == (0.0, Reason.TURNOVER)
    # .75 is left: .5 of it reaches 0, .25 goes beyond.
    assert gate(-0.5, {"weight": 0.5, "turnover": 0.25}, **limits) == (-0.25, Reason.TURNOVER)


@pytest.mark.spec("D6")
def test_a_turn_that_turnover_cuts_still_obeys_the_leverage_limit():
    # Held 2 (above the limit of 1), proposed -3, .5 left: cutting the change alone would leave 1.5.
    allowed, _ = gate(-3.0, {"weight": 2.0, "turnover": 0.5}, max_turnover=1.0, max_leverage=1.0)

    assert abs(allowed) <= 1.0


@pytest.mark.spec("D6", "M23")
@pytest.mark.parametrize("proposal", [NAN, INF, -INF])
def test_a_proposal_that_is_no_number_keeps_the_held_weight(proposal):
    assert gate(proposal, {"weight": 0.25}, max_leverage=1.0) == (0.25, Reason.NONFINITE)


@pytest.mark.spec("M23")
def test_a_proposal_that_is_no_number_still_passes_the_other_rules():
    # The held weight 2 is above the leverage limit; bankruptcy still flattens.
    assert gate(NAN, {"weight": 2.0}, max_leverage=1.0) == (1.0, Reason.NONFINITE)
    assert gate(NAN, {"weight": 0.5, "equity": 5.0}, min_equity=10.0) == (0.0, Reason.NONFINITE)


@pytest.mark.spec("D6", "M23")
@pytest.mark.parametrize("held", [NAN, INF, -INF])
@pytest.mark.parametrize("proposal", [0.5, -0.5, NAN])
def test_an_unknown_held_weight_flattens(held, proposal):
    assert gate(proposal, {"weight": held}) == (0.0, Reason.NONFINITE)


LIVE = {
    "max_position": 1000.0,
    "max_leverage": 2.0,
    "max_turnover": 5.0,
    "max_drawdown": 0.5,
    "max_daily_loss": 0.5,
    "min_equity": 10.0,
}


@pytest.mark.spec("D6", "M23")
@pytest.mark.parametrize(
    ("unknown", "allowed", "reason"),
    [
        ("equity", 0.0, Reason.BANKRUPT),
        ("peak_equity", 0.5, Reason.DRAWDOWN),
        ("day_start_equity", 0.5, Reason.DAILY_LOSS),
        ("turnover", 0.5, Reason.TURNOVER),
    ],
)
def test_what_is_unknown_counts_as_tripped(unknown, allowed, reason):
    # Without the NaN the same proposal passes; every comparison with NaN is false, so a rule that
    # asks "is the loss too large?" lets it pass.
    account = {"weight": 0.5}
    assert gate(0.75, account, **LIVE) == (0.75, Reason.NONE)

    assert gate(0.75, {**account, unknown: NAN}, **LIVE) == (allowed, reason)


@pytest.mark.spec("D6")
@pytest.mark.parametrize("unknown", ["peak_equity", "day_start_equity", "turnover"])
def test_reductions_are_allowed_whatever_is_unknown(unknown):
    assert gate(0.25, {"weight": 0.5, unknown: NAN}, **LIVE) == (0.25, Reason.NONE)
    assert gate(-0.25, {"weight": -0.5, unknown: NAN}, **LIVE) == (-0.25, Reason.NONE)


@pytest.mark.spec("D6")
def test_every_limit_switches_between_two_neighbouring_numbers():
    # One unit in the last place on either side of each limit.
    up, down = (lambda x: float(np.nextafter(x, INF))), (lambda x: float(np.nextafter(x, -INF)))

    assert gate(up(1.0), max_leverage=1.0) == (1.0, Reason.LEVERAGE)
    assert gate(down(1.0), max_leverage=1.0) == (down(1.0), Reason.NONE)
    assert gate(up(0.5), max_position=50.0) == (0.5, Reason.POSITION)
    assert gate(down(0.5), max_position=50.0) == (down(0.5), Reason.NONE)
    assert gate(up(1.0), max_turnover=1.0) == (1.0, Reason.TURNOVER)
    assert gate(down(1.0), max_turnover=1.0) == (down(1.0), Reason.NONE)
    for rule, reason in (("max_drawdown", Reason.DRAWDOWN), ("max_daily_loss", Reason.DAILY_LOSS)):
        account = {"equity": 75.0}
        assert gate(0.5, account, **{rule: 0.25}) == (0.0, reason)
        assert gate(0.5, account, **{rule: up(0.25)}) == (0.5, Reason.NONE)
    assert gate(0.5, {"equity": down(10.0)}, min_equity=10.0) == (0.0, Reason.BANKRUPT)
    assert gate(0.5, {"equity": 10.0}, min_equity=10.0) == (0.5, Reason.NONE)


def test_limits_may_be_tensors():
    account = Account(*(torch.tensor([v, v], dtype=torch.float64) for v in QUIET.values()))
    limits = Limits(
        **{n: torch.tensor(v, dtype=torch.float64) for n, v in {**OFF, "max_leverage": 1.0}.items()}
    )

    allowed, reason = risk_gate(torch.tensor([2.0, 0.5], dtype=torch.float64), account, limits)

    assert allowed.tolist() == [1.0, 0.5]
    assert reason.tolist() == [Reason.LEVERAGE, Reason.NONE]


@pytest.mark.refusal
@pytest.mark.spec("M02")
def test_an_account_of_another_shape_is_refused():
    account = Account(*(torch.ones(3) for _ in QUIET))
    with pytest.raises(ShapeError):
        risk_gate(torch.ones(3, 1), account, Limits(**OFF))
    with pytest.raises(ShapeError):
        risk_gate(torch.ones(3), account._replace(equity=torch.ones(1)), Limits(**OFF))


@pytest.mark.spec("M23")
@pytest.mark.parametrize("name", ["max_leverage", "max_position"])
def test_an_unknown_cap_on_the_device_allows_nothing(name):
    allowed, reason = gate(0.5, {"weight": 0.25}, **{name: torch.tensor(NAN)})

    assert allowed == 0.0
    assert reason == {"max_leverage": Reason.LEVERAGE, "max_position": Reason.POSITION}[name]


@pytest.mark.refusal
def test_the_least_equity_is_switched_off_by_zero():
    with pytest.raises(RangeError) as caught:
        gate(0.5, {}, min_equity=-1.0)
    assert str(caught.value) == (
        "`min_equity` must be at least 0; found -1.0. Use 0 to switch this limit off. "
        "[out-of-range]"
    )
