"""The one gate between a decision and the market, in training, backtest, paper and live.

A pure function: proposed weight and account in, allowed weight and reason out. Every comparison is
written so that an unknown number (NaN) counts as a tripped limit, because `nan > limit` is false
and would wave the order through.
"""

from enum import IntEnum
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from stormsail.functional import _checks as check
from stormsail.functional._numbers import Number, scalar


class Reason(IntEnum):
    """Why the allowed weight differs from the proposed one, in rising severity."""

    NONE = 0
    LEVERAGE = 1
    POSITION = 2
    TURNOVER = 3
    DAILY_LOSS = 4
    DRAWDOWN = 5
    BANKRUPT = 6
    NONFINITE = 7


class Account(NamedTuple):
    """What the gate must know of each account."""

    weight: Float[Tensor, "*batch"]  # held now, as a signed share of equity
    equity: Float[Tensor, "*batch"]  # in quote currency
    peak_equity: Float[Tensor, "*batch"]  # highest equity so far
    day_start_equity: Float[Tensor, "*batch"]  # equity when the UTC day began
    turnover: Float[Tensor, "*batch"]  # sum of |weight changes| since the UTC day began


class Limits(NamedTuple):
    """Bounds of one account; infinity switches a bound off, 0 the least equity."""

    max_position: Number  # notional, in quote currency
    max_leverage: Number  # |weight|
    max_turnover: Number  # per UTC day, in weight units
    max_drawdown: Number  # fall from the peak, as a share
    max_daily_loss: Number  # fall since the day began, as a share
    min_equity: Number  # in quote currency; below it the account is closed


def risk_gate(
    weight: Float[Tensor, "*batch"], account: Account, limits: Limits
) -> tuple[Float[Tensor, "*batch"], Int[Tensor, "*batch"]]:
    """Return the weight that the limits allow and the reason where it differs from the proposal.

    The stages, each acting on what the one before left:

    1. a proposal that is not finite becomes the held weight;
    2. leverage: |w| <= max_leverage;
    3. position: |w| * equity <= max_position;
    4. turnover: a change beyond what the day has left is cut to that, except that the way to zero
       is always free;
    5. daily loss, 6. drawdown: once reached, reduce only: the weight stays between 0 and the held;
    7. equity below `min_equity`, not positive or unknown: 0.

    An unknown day start, peak or turnover counts as tripped, even where its limit is off. A held
    weight that is not finite allows 0 only. The reason is the most severe stage that changed the
    weight. The gate never flips a sign and is idempotent. It computes in float64; a result in
    float32 may pass a notional limit by that rounding. Ours.

    Args:
        weight: proposed target weight, a signed share of equity.
        account: state of each account.
        limits: bounds, the same for all accounts.

    Returns:
        Allowed weight, and `Reason` as an int64 tensor.

    Raises:
        ShapeError: if a field of the account is not shaped like the weight.
        RangeError: if a limit is a negative number or NaN.
    """
    for name, field in account._asdict().items():
        check.check_same_shape(weight=weight, **{f"account.{name}": field})
    for name, limit in limits._asdict().items():
        off = "0" if name == "min_equity" else "infinity"
        remedy = f"Use {off} to switch this limit off."
        check.check_at_least_zero(limit, name=name, remedy=remedy)
    held_known = account.weight.isfinite()
    held = torch.where(held_known, account.weight, 0.0).double()  # money is float64
    known = weight.isfinite() & held_known
    start = torch.where(known, weight.double(), held)
    reason = torch.where(known, int(Reason.NONE), int(Reason.NONFINITE))

    stages = (
        (Reason.LEVERAGE, lambda w: _cap(w, scalar(limits.max_leverage, like=w))),
        (Reason.POSITION, lambda w: _cap_position(w, account.equity, limits.max_position)),
        (Reason.TURNOVER, lambda w: _cap_turnover(w, held, account.turnover, limits.max_turnover)),
        (
            Reason.DAILY_LOSS,
            lambda w: _reduce_only(
                w, held, _fell(account.equity, account.day_start_equity, limits.max_daily_loss)
            ),
        ),
        (
            Reason.DRAWDOWN,
            lambda w: _reduce_only(
                w, held, _fell(account.equity, account.peak_equity, limits.max_drawdown)
            ),
        ),
        (Reason.BANKRUPT, lambda w: torch.where(_solvent(account.equity, limits), w, 0.0)),
    )
    allowed = start
    for code, stage in stages:
        changed = stage(allowed)
        reason = torch.where(changed != allowed, reason.clamp(min=int(code)), reason)
        allowed = changed
    return allowed.to(weight.dtype), reason


def _cap(weight: Tensor, cap: Tensor) -> Tensor:
    """Return the weight within [-cap, cap]; an unknown cap allows nothing."""
    known = torch.where(cap >= 0.0, cap, 0.0)
    return torch.minimum(torch.maximum(weight, -known), known)


def _cap_position(weight: Tensor, equity: Tensor, limit: Number) -> Tensor:
    positive = equity > 0  # otherwise the account is closed by a later stage
    cap = torch.where(positive, limit / torch.where(positive, equity, 1.0), torch.inf)
    return _cap(weight, cap)


def _cap_turnover(weight: Tensor, held: Tensor, turnover: Tensor, limit: Number) -> Tensor:
    left = torch.where((turnover >= 0.0) & (turnover < limit), limit - turnover, 0.0)
    beyond_zero = (left - held.abs()).clamp(min=0.0)
    turned = torch.minimum(torch.maximum(weight, -beyond_zero), beyond_zero)
    grown = torch.minimum(torch.maximum(weight, held - left), held + left)
    turns = weight.sign() * held.sign() < 0.0
    grows = ~turns & (weight.abs() > held.abs())
    return torch.where(turns, turned, torch.where(grows, grown, weight))


def _fell(equity: Tensor, reference: Tensor, limit: Number) -> Bool[Tensor, "*batch"]:
    """Return where the fall below the reference reached the limit, or is not known."""
    known = reference.double()
    within = (known > 0) & (known - equity.double() < limit * known)  # no rounding at a tie
    return ~within


def _reduce_only(weight: Tensor, held: Tensor, tripped: Bool[Tensor, "*batch"]) -> Tensor:
    reduced = torch.minimum(torch.maximum(weight, held.clamp(max=0.0)), held.clamp(min=0.0))
    return torch.where(tripped, reduced, weight)


def _solvent(equity: Tensor, limits: Limits) -> Bool[Tensor, "*batch"]:
    return (equity > 0) & (equity >= limits.min_equity)
