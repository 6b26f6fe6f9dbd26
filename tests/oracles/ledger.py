"""Size, price and margin of one order in exact decimals, written from the market's rules.

Numbers come in as floats, are taken at their exact value, and leave as Decimals of 50 digits.
"""

from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal, localcontext

ULP = Decimal(2) ** -52


def exact(*numbers):
    return [Decimal(number) for number in numbers]


def steps_in(value, step, rounding):
    """Whole steps in a value; a quotient within 64 roundings of a whole number is that number."""
    quotient = value / step
    whole = quotient.to_integral_value(ROUND_HALF_EVEN)
    if abs(quotient - whole) <= 64 * ULP * abs(quotient):
        return whole
    return quotient.to_integral_value(rounding)


def cut_down(value, step):
    with localcontext(prec=50):
        value, step = exact(value, step)
        return value if step == 0 else steps_in(value, step, ROUND_FLOOR) * step


def slippage(notional, mean_notional, half_spread, impact):
    if mean_notional <= 0:
        return half_spread
    return half_spread + impact * (notional / mean_notional).sqrt()


def order_quantity(weight, equity, quantity, price, notional, terms, min_rebalance=0.0):
    """Rule 6: the gap in quote currency, less its own costs, over the open, cut to lots."""
    with localcontext(prec=50):
        weight, equity, quantity, price, notional = exact(weight, equity, quantity, price, notional)
        fee, half_spread, impact, lot, tick = exact(*terms)
        if weight == 0:
            return -quantity
        gap = weight * equity - quantity * price
        if gap == 0 or abs(weight - quantity * price / equity) < Decimal(min_rebalance):
            return Decimal(0)
        side = 1 if gap > 0 else -1
        reserve = slippage(abs(gap), notional, half_spread, impact) + tick / price
        rate = reserve + fee * (1 + side * reserve)
        share = 1 + side * weight * rate
        if share <= 0:  # the costs are more than the trade is worth
            return Decimal(0)
        size = abs(gap) / share / price
        if side * weight < 0:  # reduced, and never turned by its own costs
            size = min(size, abs(quantity))
        return side * (size if lot == 0 else steps_in(size, lot, ROUND_FLOOR) * lot)


def fill_price(price, order, notional, terms):
    """Rule 7: worse than the open by spread and impact, and by what is missing to a tick."""
    with localcontext(prec=50):
        price, order, notional = exact(price, order, notional)
        _, half_spread, impact, _, tick = exact(*terms)
        slip = slippage(abs(order) * price, notional, half_spread, impact)
        paid = price * (1 + slip) if order > 0 else price * (1 - slip)
        if tick == 0:
            return paid
        return steps_in(paid, tick, ROUND_CEILING if order > 0 else ROUND_FLOOR) * tick


def entry_price(quantity, entry, order, price):
    """Average cost of what is held after a fill, by walking through the four ways to trade."""
    with localcontext(prec=50):
        quantity, entry, order, price = exact(quantity, entry, order, price)
        after = quantity + order
        if after == 0:
            return Decimal(0)
        if order == 0:
            return entry
        if quantity == 0 or (quantity > 0) != (after > 0):
            return price
        if abs(after) > abs(quantity):
            return (entry * abs(quantity) + price * abs(order)) / abs(after)
        return entry


def liquidation_price(cash, quantity, maintenance):
    """Rule 8, one formula for each side."""
    with localcontext(prec=50):
        cash, quantity, maintenance = exact(cash, quantity, maintenance)
        if quantity > 0:
            return -cash / (quantity * (1 - maintenance))
        return cash / (-quantity * (1 + maintenance))


def delisting_price(price, quantity, notional, terms, loss):
    """Rule 5: worse than the last traded price by spread and impact, at least by a share."""
    with localcontext(prec=50):
        price, quantity, notional, loss = exact(price, quantity, notional, loss)
        _, half_spread, impact, _, _ = exact(*terms)
        lost = slippage(abs(quantity) * price, notional, half_spread, impact)
        lost = min(max(lost, loss), Decimal(1))
        side = (quantity > 0) - (quantity < 0)
        return price * (1 - side * lost)


def tiered_margin(notional, tiers):
    """Margin of a notional, part by part: (bound, rate) of each tier."""
    margin, bounds = Decimal(0), [Decimal(bound) for bound, _ in tiers[1:]] + [None]
    for (low, rate), high in zip(tiers, bounds, strict=True):
        top = notional if high is None else min(notional, high)
        margin += Decimal(rate) * max(top - Decimal(low), Decimal(0))
    return margin


def tiered_liquidation_price(cash, quantity, tiers):
    """Where equity meets that margin, by halving: equity less margin falls to the losing side."""
    with localcontext(prec=50):
        cash, quantity = exact(cash, quantity)
        low, high = Decimal(0), abs(cash) * 100 / abs(quantity)
        for _ in range(160):
            price = (low + high) / 2
            safe = cash + quantity * price > tiered_margin(abs(quantity) * price, tiers)
            if safe == (quantity > 0):
                high = price
            else:
                low = price
        return high


def log_growth(equity, previous, floor):
    with localcontext(prec=50):
        equity, previous, floor = exact(equity, previous, floor)
        return (max(equity, floor) / max(previous, floor)).ln()
