"""Calendar returns, drawdowns, regressions, cost attribution: loops from their definitions."""

import calendar
import math
from datetime import UTC, datetime


def months(returns, closes_ms, bar_ms):
    """Return {(year, month): compounded return} by the month in which each bar opens."""
    growth = {}
    for value, close in zip(returns, closes_ms, strict=True):
        opened = datetime.fromtimestamp((close - bar_ms) / 1000, UTC)
        key = (opened.year, opened.month)
        growth[key] = growth.get(key, 1.0) * (1.0 + value)
    return {key: total - 1.0 for key, total in growth.items()}


def days_in(year, month):
    return calendar.monthrange(year, month)[1]


def drawdowns(equity):
    """Return (depth, peak, trough, recovery) of every drawdown, largest first."""
    rows = []
    peak, trough = 0, None
    for place in range(1, len(equity)):
        if equity[place] >= equity[peak]:
            if trough is not None:
                rows.append((equity[trough] / equity[peak] - 1.0, peak, trough, place))
            peak, trough = place, None
        elif trough is None or equity[place] < equity[trough]:
            trough = place
    if trough is not None:
        rows.append((equity[trough] / equity[peak] - 1.0, peak, trough, None))
    return sorted(rows, key=lambda row: row[0])


def regression(own, other, per_year):
    """Return alpha, its error, beta, its error, correlation, tracking error, information ratio."""
    count = len(own)
    mean_own, mean_other = math.fsum(own) / count, math.fsum(other) / count
    cross = math.fsum((o - mean_own) * (b - mean_other) for o, b in zip(own, other, strict=True))
    power = math.fsum((b - mean_other) ** 2 for b in other)
    spread = math.fsum((o - mean_own) ** 2 for o in own)
    beta = cross / power
    alpha = mean_own - beta * mean_other
    rest = [o - alpha - beta * b for o, b in zip(own, other, strict=True)]
    # White: the slope is sum(b - mean) y / power, the constant sum of w_t y_t with
    # w_t = 1 / n - mean (b_t - mean) / power; each y_t has the variance e_t^2.
    slope_variance = math.fsum(
        ((b - mean_other) / power) ** 2 * e**2 for b, e in zip(other, rest, strict=True)
    )
    constant_variance = math.fsum(
        (1.0 / count - mean_other * (b - mean_other) / power) ** 2 * e**2
        for b, e in zip(other, rest, strict=True)
    )
    gaps = [o - b for o, b in zip(own, other, strict=True)]
    gap = math.fsum(gaps) / count
    deviation = math.sqrt(math.fsum((g - gap) ** 2 for g in gaps) / (count - 1))
    return (
        per_year * alpha,
        per_year * math.sqrt(constant_variance),
        beta,
        math.sqrt(slope_variance),
        cross / math.sqrt(power * spread),
        math.sqrt(per_year) * deviation,
        math.sqrt(per_year) * gap / deviation,
    )


def window(own, other, per_year):
    """Return volatility, Sharpe ratio and beta of one window."""
    count = len(own)
    mean = math.fsum(own) / count
    deviation = math.sqrt(math.fsum((o - mean) ** 2 for o in own) / (count - 1))
    middle = math.fsum(other) / count
    power = math.fsum((b - middle) ** 2 for b in other)
    cross = math.fsum((b - middle) * (o - mean) for o, b in zip(own, other, strict=True))
    root = math.sqrt(per_year)
    return root * deviation, root * mean / deviation, cross / power


def attribution(ledger, *, half_spread, impact):
    """Return {leg: {item: money}} of one account, bar by bar, from a plain ledger.

    `ledger` is a list of rows with what an auditor sees: `q` held before, order `u` and its `price`
    (0 where none), `open`, `before` (the close before), `close` (or the price at which a
    liquidation took the position), `mean` (notional of the bars before), `fee`, `exit_fee`, `rate`
    of funding, `interest`.
    """
    items = ("gross", "fees", "spread", "impact", "tick", "funding", "borrow", "liquidation")
    sums = {leg: dict.fromkeys(items, 0.0) for leg in ("long", "short")}

    def book(leg, item, money):
        sums[leg][item] += money

    for row in ledger:
        q, u, opened = row["q"], row["u"], row["open"]
        side = "short" if q < 0 else "long"
        after = q + u
        later = side if after == 0 else ("short" if after < 0 else "long")
        book(side, "gross", q * (opened - row["before"]))
        book(later, "gross", after * (row["close"] - opened))
        book(side, "funding", q * opened * row["rate"])
        book(side, "borrow", row["interest"])
        book(later, "liquidation", row["exit_fee"])
        if u == 0:
            continue
        size = abs(u)
        closing = min(abs(q), size) if q * u < 0 else 0.0
        new = "short" if u < 0 else "long"
        spread = size * opened * half_spread
        pushed = size * opened * impact * math.sqrt(size * opened / row["mean"]) if impact else 0.0
        whole = size * abs(row["price"] - opened)
        costs = {
            "fees": row["fee"],
            "spread": spread,
            "impact": pushed,
            "tick": whole - spread - pushed,
        }
        for item, money in costs.items():
            book(side, item, money * closing / size)
            book(new, item, money * (size - closing) / size)
    return sums
