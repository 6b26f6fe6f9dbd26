"""The risk gate for one proposal, rule by rule, in plain float64 Python.

Definition: every rule names the set of weights it allows, an interval that contains 0; the gate
moves the proposal to the nearest allowed weight, rule after rule. What is unknown counts as
tripped. The name of the most severe rule that moved the weight is the reason.
"""

import math

NONE, LEVERAGE, POSITION, TURNOVER, DAILY_LOSS, DRAWDOWN, BANKRUPT, NONFINITE = range(8)


def _turnover_interval(held, turnover, max_turnover):
    """Weights whose change fits into what is left, and every weight between 0 and the held one."""
    left = 0.0 if math.isnan(turnover) else max(max_turnover - turnover, 0.0)
    return min(held - left, 0.0), max(held + left, 0.0)


def _tripped(equity, reference, limit):
    """A loss since the reference at or above the limit; unknown losses count as tripped."""
    loss = 1.0 - equity / reference
    return math.isnan(loss) or loss >= limit


def _rules(account, limits):
    """Reason and allowed interval of every rule, in the order of the gate."""
    held, equity, peak, day_start, turnover = account
    max_position, max_leverage, max_turnover, max_drawdown, max_daily_loss, min_equity = limits
    reduce_only = (min(held, 0.0), max(held, 0.0))
    yield LEVERAGE, (-max_leverage, max_leverage)
    if equity > 0.0:
        yield POSITION, (-max_position / equity, max_position / equity)
    yield TURNOVER, _turnover_interval(held, turnover, max_turnover)
    if _tripped(equity, day_start, max_daily_loss):
        yield DAILY_LOSS, reduce_only
    if _tripped(equity, peak, max_drawdown):
        yield DRAWDOWN, reduce_only
    if math.isnan(equity) or equity < min_equity or equity <= 0.0:
        yield BANKRUPT, (0.0, 0.0)


def risk_gate(weight, account, limits):
    """Allowed weight and reason of one proposal; account and limits are plain tuples."""
    held = account[0]
    if not math.isfinite(held):
        return 0.0, NONFINITE
    reason = NONE
    allowed = weight
    if not math.isfinite(weight):
        allowed, reason = held, NONFINITE
    for name, (low, high) in _rules(account, limits):
        moved = min(max(allowed, low), high)
        if moved != allowed:
            allowed, reason = moved, max(reason, name)
    return allowed, reason
