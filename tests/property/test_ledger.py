"""Laws of orders, and their equality with the decimal oracle."""

import math

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

from oracles import ledger as oracle
from stormsail.functional.market import fills as ledger


def floats(low, high):
    return st.floats(low, high, allow_subnormal=False)


weights = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 0.5]), floats(-5.0, 5.0))
equities = floats(100.0, 1e6)
prices = floats(0.01, 1e5)
quantities = st.one_of(st.just(0.0), floats(-1e3, 1e3))
notionals = floats(1e5, 1e9)
terms_of = st.tuples(
    floats(0.0, 0.01),
    floats(0.0, 0.01),
    floats(0.0, 0.05),
    st.sampled_from([0.0, 0.0, 0.001, 0.1, 0.3]),
    st.sampled_from([0.0, 0.0, 0.01, 0.05]),
)


def tensor(number):
    return torch.tensor([number], dtype=torch.float64)


def as_terms(numbers):
    return ledger.Terms(*map(tensor, numbers))


def off_grid(value, step):
    """Whether a quotient is so far from whole that floating point cannot decide otherwise."""
    if step == 0.0:
        return True
    quotient = abs(value) / step
    return abs(quotient - round(quotient)) > 1e-9 * max(quotient, 1.0)


@pytest.mark.spec("C2")
@given(weights, equities, quantities, prices, notionals, terms_of, st.sampled_from([0.0, 0.1]))
def test_the_order_equals_the_rule_in_decimals(
    weight, equity, quantity, price, notional, terms, small
):
    account = (weight, equity, quantity, price, notional)
    change = abs(weight - quantity * price / equity)
    assume(abs(change - small) > 1e-9)
    bare = (*terms[:3], 0.0, terms[4])
    assume(off_grid(float(oracle.order_quantity(*account, bare, small)), terms[3]))

    got = ledger.order_quantity(*map(tensor, account), as_terms(terms), min_rebalance=small)

    wanted = float(oracle.order_quantity(*account, terms, small))
    gap = abs(weight) * equity / price + abs(quantity)
    assert got.item() == pytest.approx(wanted, rel=1e-11, abs=1e-13 * gap)


@given(prices, quantities, notionals, terms_of)
def test_the_price_equals_the_rule_in_decimals(price, order, notional, terms):
    assume(order != 0.0)
    bare = (*terms[:4], 0.0)
    assume(off_grid(float(oracle.fill_price(price, order, notional, bare)), terms[4]))

    got = ledger.fill_price(tensor(price), tensor(order), tensor(notional), as_terms(terms))

    assert got.item() == pytest.approx(
        float(oracle.fill_price(price, order, notional, terms)), rel=1e-13
    )


@given(prices, quantities, notionals, terms_of)
def test_a_price_is_never_better_than_the_open(price, order, notional, terms):
    got = ledger.fill_price(tensor(price), tensor(order), tensor(notional), as_terms(terms)).item()
    side = math.copysign(1.0, order) if order else 0.0
    assert side * (got - price) >= -1e-13 * price


@given(st.integers(-(10**6), 10**6), st.sampled_from([0.001, 0.01, 0.1, 0.3, 0.25, 5.0]))
def test_a_multiple_of_a_step_is_cut_to_itself(count, step):
    assert ledger.cut_down(tensor(count * step), tensor(step)).item() == count * step


@given(floats(-1e6, 1e6), st.sampled_from([0.0, 0.001, 0.1, 0.3]))
def test_what_is_cut_is_less_than_a_step(x, step):
    got = ledger.cut_down(tensor(x), tensor(step)).item()
    slack = 1e-13 * abs(x)
    assert got <= x + slack
    assert x - got <= step + slack
    assert got == pytest.approx(float(oracle.cut_down(x, step)), rel=1e-13)


@given(quantities, prices, quantities, prices)
def test_the_entry_equals_the_average_cost_in_decimals(quantity, entry, order, price):
    got = ledger.entry_price(*map(tensor, (quantity, entry if quantity else 0.0, order, price)))
    wanted = oracle.entry_price(quantity, entry if quantity else 0.0, order, price)
    assume(abs(quantity + order) > 1e-6 or quantity + order == 0.0)
    assert got.item() == pytest.approx(float(wanted), rel=1e-9)


@given(st.lists(st.tuples(floats(0.1, 10.0), prices), min_size=1, max_size=8), st.booleans())
def test_buying_in_parts_gives_the_mean_price(fills, short):
    side = -1.0 if short else 1.0
    quantity, entry = tensor(0.0), tensor(0.0)
    for size, price in fills:
        order = tensor(side * size)
        entry = ledger.entry_price(quantity, entry, order, tensor(price))
        quantity = quantity + order
    total = sum(size for size, _ in fills)
    assert entry.item() == pytest.approx(sum(s * p for s, p in fills) / total, rel=1e-12)


@given(prices, quantities, st.one_of(st.just(0.0), notionals), terms_of, floats(0.0, 0.9))
def test_a_delisted_position_goes_at_the_price_of_the_rule_in_decimals(
    price, quantity, notional, numbers, loss
):
    got = ledger.delisting_price(
        tensor(price), tensor(quantity), tensor(notional), as_terms(numbers), loss=loss
    ).item()
    wanted = float(oracle.delisting_price(price, quantity, notional, numbers, loss))
    assert got == pytest.approx(wanted, rel=1e-12, abs=1e-12 * price)
    assert (got - price) * quantity <= 0.0
    assert 0.0 <= got <= 2.0 * price


@given(floats(-1e6, 1e6), floats(0.01, 1e3), floats(0.0, 0.5), st.booleans())
def test_at_the_liquidation_price_equity_is_the_margin(cash, size, maintenance, short):
    quantity = -size if short else size
    got = ledger.liquidation_price(tensor(cash), tensor(quantity), maintenance=maintenance).item()
    assert got == pytest.approx(
        float(oracle.liquidation_price(cash, quantity, maintenance)), rel=1e-13
    )
    assert cash + quantity * got == pytest.approx(
        maintenance * size * got, rel=1e-9, abs=1e-9 * abs(cash)
    )


@given(
    floats(10.0, 1e5),
    floats(0.1, 1e3),
    st.lists(st.tuples(floats(1.0, 1e5), floats(0.0, 0.3)), min_size=0, max_size=4),
    st.booleans(),
)
def test_a_tiered_margin_is_met_where_halving_finds_it(cash, size, more, short):
    bounds = sorted({round(bound) for bound, _ in more})
    rates = sorted(rate for _, rate in more)[: len(bounds)]
    tiers = [(0.0, 0.005), *((float(b), 0.005 + r) for b, r in zip(bounds, rates, strict=True))]
    lines, amount, last = [], 0.0, 0.0
    for bound, rate in tiers:
        amount += (rate - last) * bound
        last = rate
        lines.append((tensor(rate), tensor(amount)))
    cash, quantity = (cash, -size) if short else (-cash, size)
    got = ledger.tiered_liquidation_price(tensor(cash), tensor(quantity), lines).item()
    assert got == pytest.approx(
        float(oracle.tiered_liquidation_price(cash, quantity, tiers)), rel=1e-9
    )
    assert ledger.maintenance_margin(tensor(size * got), lines).item() == pytest.approx(
        cash + quantity * got, rel=1e-6, abs=1e-9 * abs(cash)
    )


@given(floats(-1e5, 1e6), floats(1.0, 1e6), floats(0.1, 1e4))
def test_growth_equals_the_logarithm_in_decimals(equity, previous, floor):
    got = ledger.log_growth(tensor(equity), tensor(previous), floor=floor).item()
    assert got == pytest.approx(
        float(oracle.log_growth(equity, previous, floor)), rel=1e-12, abs=1e-15
    )


@pytest.mark.spec("M35")
@given(floats(0.0, 1.0), equities, floats(0.0, 1.0), prices, notionals, terms_of)
def test_weight_one_never_overdraws(weight, equity, share, price, notional, terms):
    assume(terms[4] <= 0.1 * price)
    quantity = share * equity / price  # a long account without debt
    cash = equity - quantity * price
    order = ledger.order_quantity(
        tensor(weight), tensor(equity), tensor(quantity), tensor(price), tensor(notional),
        as_terms(terms),
    )  # fmt: skip
    paid = ledger.fill_price(tensor(price), order, tensor(notional), as_terms(terms))
    left = cash - (order * paid).item() - terms[0] * (order.abs() * paid).item()
    assert left >= -1e-9 * equity


@given(floats(-3.0, 3.0), equities, floats(-2.0, 2.0), prices, floats(0.0, 0.01), floats(0.0, 0.01))
def test_the_weight_after_costs_is_the_one_asked_for(weight, equity, share, price, fee, spread):
    # Without impact and tick the reserved costs are the paid ones.
    terms = as_terms((fee, spread, 0.0, 0.0, 0.0))
    quantity = share * equity / price
    cash = equity - quantity * price
    inputs = map(tensor, (weight, equity, quantity, price, 1.0))
    order = ledger.order_quantity(*inputs, terms)
    paid = ledger.fill_price(tensor(price), order, tensor(1.0), terms)
    left = cash - (order * paid).item() - fee * (order.abs() * paid).item()
    after = quantity + order.item()
    assert after * price == pytest.approx(
        weight * (left + after * price), rel=1e-9, abs=1e-9 * equity
    )


# Half of ten times the equity is to be sold, against a market that trades 100 a bar.
@example(5.0, 10_000.0, 1_000.0, 100.0, 100.0, (0.0005, 0.0002, 0.01, 0.0, 0.0))
@given(weights, equities, quantities, prices, floats(1e-3, 1e3), terms_of)
def test_an_order_never_leads_away_from_its_target(weight, equity, quantity, price, thin, terms):
    # Where the costs would eat the whole trade there is none, rather than one the other way.
    inputs = map(tensor, (weight, equity, quantity, price, thin))
    order = ledger.order_quantity(*inputs, as_terms(terms)).item()
    gap = weight * equity - quantity * price
    assert order * gap >= 0.0
    if weight * gap < 0.0:  # reduced, and never turned
        assert abs(order) <= abs(quantity)
