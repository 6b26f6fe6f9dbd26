"""Leverage and margin mode: what differs is set where that is allowed, and refused in words."""

from decimal import Decimal

import pytest

from execution_lab import Desk, config, quick_folder
from stormsail.core.errors import ConfigError, VenueError
from stormsail.execution.config import Margin
from stormsail.execution.margin import agreed_margin
from stormsail.execution.venue import MarginTerms


@pytest.fixture
def venue():
    with quick_folder() as folder:
        yield Desk(folder, symbols=2).venue


def names(venue):
    return tuple(venue.held)


def refused(venue, margin, most=1.0):
    with pytest.raises(ConfigError) as caught:
        agreed_margin(venue, names(venue), margin, most)
    assert caught.value.code == "account-margin"
    return caught.value


def test_what_is_left_open_is_accepted_and_told(venue):
    found = agreed_margin(venue, names(venue), Margin(), 1.0)
    assert found == dict.fromkeys(names(venue), MarginTerms(Decimal(20), "cross"))
    assert venue.margin == {}


@pytest.mark.parametrize("margin", [Margin(leverage=5), Margin(mode="isolated")])
def test_what_differs_is_refused_and_nothing_is_set(venue, margin):
    error = refused(venue, margin)
    assert error.found == "20 times cross"
    assert venue.margin == {}


def test_what_differs_is_set_where_that_is_allowed(venue):
    asked = Margin(leverage=5, mode="isolated", change=True)
    found = agreed_margin(venue, names(venue), asked, 5.0)
    assert found == venue.margin == dict.fromkeys(names(venue), MarginTerms(Decimal(5), "isolated"))


def test_an_exchange_that_refuses_to_change_it_is_a_refusal_in_words(venue):
    venue.held[names(venue)[1]] = Decimal(1)
    error = refused(venue, Margin(mode="isolated", change=True))
    assert error.found == "20 times cross, and -4048"


def test_a_setting_that_does_not_stay_is_noticed(venue):
    venue.set_leverage = lambda _symbol, _leverage: None
    assert refused(venue, Margin(leverage=5, change=True)).found == "20 times cross"


@pytest.mark.parametrize(("leverage", "most"), [(2, 2.0), (3, 3.0)])
def test_the_exchange_must_allow_as_much_as_the_order_gate(venue, leverage, most):
    for symbol in names(venue):
        venue.set_leverage(symbol, leverage)
    agreed_margin(venue, names(venue), Margin(), most)
    error = refused(venue, Margin(), most + 0.01)
    assert error.found == f"{leverage} times cross"


def test_a_venue_that_does_not_say_is_no_agreement(venue):
    venue.down = True
    with pytest.raises(VenueError):
        agreed_margin(venue, names(venue), Margin(), 1.0)


def test_a_start_refuses_before_anything_is_ready():
    with quick_folder() as folder:
        desk = Desk(folder, symbols=2)
        settings = config(margin__leverage=3)
        with (
            pytest.raises(ConfigError, match="must be 3 times cross"),
            desk.trader("live", settings),
        ):
            pass
        assert desk.venue.requests == []
