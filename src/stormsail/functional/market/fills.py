"""What an order does to an account: its size, its price, its costs, and when margin is gone."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from stormsail.functional import _checks as check
from stormsail.functional._numbers import Number, scalar

_SNAP_ULPS = 64
"""A quotient this many roundings short of a whole number of steps counts as that number: 0.3 holds
three lots of 0.1, though 0.3 / 0.1 is less than 3 in floating point."""


_DUST, _DUST_ULPS = 1e-12, 8
"""A gap of this share of the position, or of so many roundings, is rounding and not an order."""


class Terms(NamedTuple):
    """What trading costs and how orders are cut, for each account."""

    fee: Float[Tensor, "*batch"]  # share of the filled notional
    half_spread: Float[Tensor, "*batch"]  # share of the price
    impact: Float[Tensor, "*batch"]  # share of the price at a participation of 1
    lot: Float[Tensor, "*batch"]  # step of quantities; 0 is off
    tick: Float[Tensor, "*batch"]  # step of prices; 0 is off


def order_quantity(
    weight: Float[Tensor, "*batch"],
    equity: Float[Tensor, "*batch"],
    quantity: Float[Tensor, "*batch"],
    price: Float[Tensor, "*batch"],
    notional: Float[Tensor, "*batch"],
    terms: Terms,
    *,
    min_rebalance: Number = 0.0,
) -> Float[Tensor, "*batch"]:
    r"""Return the signed quantity that brings the position to a target weight, costs reserved.

    Let q be the quantity held, o the price, E = cash + q o, and g = w E - q o the gap, with sign
    s. Trading D of quote currency costs D c, so the weight after costs is w only if
    q o + s D = w (E - D c). Hence

    $$D = \frac{|g|}{1 + s\,w\,c},\qquad c = \bar\delta + f (1 + s\bar\delta),\qquad
    \bar\delta = h + k\sqrt{|g| / M} + \text{tick} / o$$

    with fee f, half spread h, impact k and trailing notional M. The reserved slippage is never
    less than the paid one where cash could run out (buying towards 0 < w <= 1), so a weight of 1
    leaves cash at or above 0. Where the position is reduced (s w < 0), D is at most |q| o, and 0
    where the reserved costs exceed the trade (1 + s w c <= 0), so that costs never turn it. The
    quantity D / o is cut down to whole lots. A weight of 0 returns exactly -q, so that closing
    leaves nothing behind. Ours.

    Args:
        weight: target, a signed share of equity.
        equity: equity at `price`.
        quantity: position held, in base currency.
        price: the price before spread and impact, greater than 0.
        notional: trailing mean notional M of a bar; where it is not greater than 0 there is no
            impact.
        terms: costs and steps.
        min_rebalance: a change of weight smaller than this gives 0, unless the target is 0. So
            does a change within rounding.

    Raises:
        ShapeError: if the tensors differ in shape.
        RangeError: if `min_rebalance` is a negative number.
    """
    _check_terms(
        terms, weight=weight, equity=equity, quantity=quantity, price=price, notional=notional
    )
    check.check_at_least_zero(min_rebalance, name="min_rebalance", remedy="0 switches it off.")
    held = quantity * price
    gap = weight * equity - held
    side = gap.sign()
    slip = _slippage(gap.abs(), notional, terms) + terms.tick / price
    rate = slip + terms.fee * (1.0 + side * slip)
    share = 1.0 + side * weight * rate
    wanted = gap.abs() / torch.where(share > 0.0, share, torch.inf) / price
    wanted = torch.where(side * weight < 0.0, torch.minimum(wanted, quantity.abs()), wanted)
    order = side * cut_down(wanted, terms.lot)
    dust = max(_DUST, _DUST_ULPS * torch.finfo(gap.dtype).eps)
    small = ((weight - held / equity).abs() < min_rebalance) | (gap.abs() <= dust * held.abs())
    return torch.where(weight == 0.0, -quantity, torch.where(small, 0.0, order))


def fill_price(
    price: Float[Tensor, "*batch"],
    order: Float[Tensor, "*batch"],
    notional: Float[Tensor, "*batch"],
    terms: Terms,
) -> Float[Tensor, "*batch"]:
    r"""Return the price an order pays: worse by half the spread and a square-root impact.

    $$p = o\,\bigl(1 + s\,(h + k\sqrt{|u|\,o / M})\bigr)$$

    for an order u of sign s, then moved to the next tick against the trader: up for a purchase,
    down for a sale. The square-root law is textbook knowledge (Almgren et al. estimate a power near
    it); the participation is measured on the traded notional at the price before costs. Ours.

    Raises:
        ShapeError: if the tensors differ in shape.
    """
    _check_terms(terms, price=price, order=order, notional=notional)
    side = order.sign()
    paid = price * (1.0 + side * _slippage(order.abs() * price, notional, terms))
    return torch.where(side > 0.0, -cut_down(-paid, terms.tick), cut_down(paid, terms.tick))


def cut_down(x: Float[Tensor, "*batch"], step: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Return the greatest multiple of `step` not above `x`; a step of 0 leaves `x` alone.

    A quotient within 64 roundings of a whole number counts as that number. Ours.

    Raises:
        ShapeError: if the two differ in shape.
    """
    check.check_same_shape(x=x, step=step)
    on = step > 0.0
    size = torch.where(on, step, 1.0)
    steps = x / size
    whole = steps.round()
    near = (steps - whole).abs() <= _SNAP_ULPS * torch.finfo(x.dtype).eps * steps.abs()
    return torch.where(on, torch.where(near, whole, steps.floor()) * size, x)


def entry_price(
    quantity: Float[Tensor, "*batch"],
    entry: Float[Tensor, "*batch"],
    order: Float[Tensor, "*batch"],
    price: Float[Tensor, "*batch"],
) -> Float[Tensor, "*batch"]:
    """Return the mean price at which the position was entered, after a fill.

    Increasing averages, weighted by quantity; reducing leaves it; opening or turning through zero
    takes the fill's price; a flat account has 0. The average-cost method, textbook accounting.

    Args:
        quantity: position before the fill.
        entry: its mean entry price.
        order: signed quantity filled.
        price: price of the fill.

    Raises:
        ShapeError: if the tensors differ in shape.
    """
    check.check_same_shape(quantity=quantity, entry=entry, order=order, price=price)
    after = quantity + order
    grows = quantity * order > 0.0
    mean = entry + (price - entry) * (order / torch.where(grows, after, 1.0))
    opens = quantity * after <= 0.0  # from flat, or through zero
    kept = torch.where(grows, mean, torch.where(opens, price, entry))
    kept = torch.where(order == 0.0, entry, kept)
    return torch.where(after == 0.0, 0.0, kept)


def liquidation_price(
    cash: Float[Tensor, "*batch"], quantity: Float[Tensor, "*batch"], *, maintenance: Number
) -> Float[Tensor, "*batch"]:
    r"""Return the price at which equity has fallen to the maintenance margin.

    $$C + q x = m |q| x \quad\Rightarrow\quad x = \frac{-C}{q - m |q|}$$

    A flat account has no such price: NaN. A long position paid in full has one at or below 0, which
    no market reaches. Definition of a cross-margin liquidation, without brackets.

    Raises:
        ShapeError: if the tensors differ in shape.
        RangeError: if `maintenance` is a number outside [0, 1).
    """
    check.check_same_shape(cash=cash, quantity=quantity)
    remedy = "It is a share of the notional below 1, such as 0.005."
    check.check_below_one(maintenance, name="maintenance", remedy=remedy)
    slope = quantity - quantity.abs() * scalar(maintenance, like=cash).to(cash.dtype)
    return torch.where(quantity == 0.0, torch.nan, -cash / slope)


def delisting_price(
    price: Float[Tensor, "*batch"],
    quantity: Float[Tensor, "*batch"],
    notional: Float[Tensor, "*batch"],
    terms: Terms,
    *,
    loss: Number,
) -> Float[Tensor, "*batch"]:
    r"""Return the price at which a position in a delisted symbol is closed.

    $$x = p\,(1 - s\,l),\qquad l = \min\bigl(\max(L,\; h + k\sqrt{|q|\,p / M}),\; 1\bigr)$$

    for the last traded price p, a position q of sign s, half spread h, impact k, and the mean
    notional M of the last traded bars: worse than that price by spread and impact of selling
    all at once, and by L at least. There is no tick and no fee. Ours.

    Args:
        price: last traded price.
        quantity: position held.
        notional: mean notional M of a bar before the end; 0 leaves impact out.
        terms: costs.
        loss: L, a share of the price.

    Raises:
        ShapeError: if the tensors differ in shape.
        RangeError: if `loss` is a number outside [0, 1).
    """
    _check_terms(terms, price=price, quantity=quantity, notional=notional)
    check.check_below_one(loss, name="loss", remedy="It is a share of the price, such as 0.05.")
    lost = _slippage(quantity.abs() * price, notional, terms).clamp(min=loss).clamp(max=1.0)
    return price * (1.0 - quantity.sign() * lost)


def maintenance_margin(
    notional: Float[Tensor, "*batch"], tiers: Sequence[tuple[Tensor, Tensor]]
) -> Float[Tensor, "*batch"]:
    r"""Return the margin that a position must keep, by tiers of its notional.

    Each tier has a rate r_k on the part of the notional above its bound N_k, and the rates never
    fall, so the margin is the largest of K straight lines

    $$M(N) = \max_k\,(r_k N - a_k),\qquad a_0 = 0,\quad a_k = a_{k-1} + (r_k - r_{k-1}) N_k$$

    Exchanges state the same with a_k as the "maintenance amount". Textbook: a convex piecewise
    linear function is the largest of its lines.

    Args:
        notional: size of the position times a price, not negative.
        tiers: rate r_k and amount a_k of each, of the same shape; at least one.
    """
    margin = tiers[0][0] * notional - tiers[0][1]
    for rate, amount in tiers[1:]:
        margin = torch.maximum(margin, rate * notional - amount)
    return margin


def tiered_liquidation_price(
    cash: Float[Tensor, "*batch"],
    quantity: Float[Tensor, "*batch"],
    tiers: Sequence[tuple[Tensor, Tensor]],
) -> Float[Tensor, "*batch"]:
    r"""Return the price at which equity has fallen to a maintenance margin by tiers.

    Equity C + q x meets the line of tier k at x_k = -(C + a_k) / (q - r_k |q|). The margin is the
    largest of the lines, so a position is lost at the first of these prices that it comes to: the
    highest for a long position, the lowest for a short one. One tier with a_0 = 0 is
    `liquidation_price`. NaN for a flat account. Ours.

    Raises:
        ShapeError: if cash and quantity differ in shape.
    """
    check.check_same_shape(cash=cash, quantity=quantity)
    prices = [-(cash + amount) / (quantity - rate * quantity.abs()) for rate, amount in tiers]
    highest = lowest = prices[0]
    for price in prices[1:]:
        highest, lowest = torch.maximum(highest, price), torch.minimum(lowest, price)
    first = torch.where(quantity > 0.0, highest, lowest)
    return torch.where(quantity == 0.0, torch.nan, first)


def borrow_interest(
    cash: Float[Tensor, "*batch"],
    quantity: Float[Tensor, "*batch"],
    price: Float[Tensor, "*batch"],
    base_rate: Float[Tensor, "*batch"],
    quote_rate: Float[Tensor, "*batch"],
) -> Float[Tensor, "*batch"]:
    r"""Return the interest on what an account has borrowed, at the rates of the time held.

    $$I = b\,\max(-q, 0)\,x + c\,\max(-C, 0)$$

    A short position q < 0 borrows base currency, valued at the price x; negative cash C is borrowed
    quote currency. Definition of simple interest.

    Args:
        cash: in quote currency.
        quantity: signed position, in base currency.
        price: at which the borrowed base currency is valued.
        base_rate: b, of the whole time held.
        quote_rate: c, likewise.

    Raises:
        ShapeError: if the tensors differ in shape.
    """
    check.check_same_shape(
        cash=cash, quantity=quantity, price=price, base_rate=base_rate, quote_rate=quote_rate
    )
    return base_rate * (-quantity).clamp(min=0.0) * price + quote_rate * (-cash).clamp(min=0.0)


def log_growth(
    equity: Float[Tensor, "*batch"],
    previous: Float[Tensor, "*batch"],
    *,
    floor: Number,
) -> Float[Tensor, "*batch"]:
    r"""Return the log of equity over what it was before, both at least the floor.

    $$r = \log\frac{\max(E', F)}{\max(E, F)}$$

    The sum over an episode is the log of its growth, so that maximising it compounds. Without the
    floor a ruined account would have no finite reward. Ours.

    Raises:
        ShapeError: if the tensors differ in shape.
        RangeError: if the floor is a number not greater than 0.
    """
    check.check_same_shape(equity=equity, previous=previous)
    check.check_positive(floor, name="floor", remedy="Use a share of the starting equity.")
    low = scalar(floor, like=equity).to(equity.dtype)
    return (torch.maximum(equity, low) / torch.maximum(previous, low)).log()


def _slippage(traded: Tensor, notional: Tensor, terms: Terms) -> Tensor:
    """Return half spread and impact of trading that notional, as a share of the price."""
    share = traded / torch.where(notional > 0.0, notional, torch.inf)
    return terms.half_spread + terms.impact * share.sqrt()


def _check_terms(terms: Terms, **tensors: Tensor) -> None:
    parts = {f"terms.{name}": part for name, part in terms._asdict().items()}
    check.check_same_shape(kind="function", **tensors, **parts)
