"""Which keys a trader accepts: every combination of rights, as the exchange states them."""

import itertools

import pytest

from loopback_lab import NAMES, credentials, exchange_at
from stormsail.core.errors import ConfigError
from stormsail.execution.ccxt_venue import CcxtVenue
from stormsail.execution.connection.rate_budget import RateBudget
from stormsail.execution.loopback import VirtualClock
from stormsail.execution.loopback.transport import in_process
from stormsail.execution.permissions import check_permissions

T0_NS = 1_700_000_400 * 1_000_000_000
RIGHTS = ("enableWithdrawals", "enableInternalTransfer", "permitsUniversalTransfer")


@pytest.fixture(params=["spot", "perp"])
def dialect(request):
    return request.param


@pytest.fixture
def exchange():
    return exchange_at(VirtualClock(T0_NS))


@pytest.fixture
def venue(exchange, dialect, tmp_path):
    made = CcxtVenue(
        NAMES[dialect][0], credentials=credentials(), clock=exchange.clock,
        base_url="http://127.0.0.1:1", adapter=in_process(exchange),
        budget=RateBudget(tmp_path / "b", limit=6000, clock=exchange.clock),
    )  # fmt: skip
    yield made
    made.close()


@pytest.mark.spec("R28 E2")
def test_all_32_combinations_of_rights_are_judged_right(exchange, venue, dialect):
    trading = "enableSpotAndMarginTrading" if dialect == "spot" else "enableFutures"
    accepted = 0
    for rights in itertools.product([False, True], repeat=5):
        *moving, restricted, trades = rights
        given = dict(zip(RIGHTS, moving, strict=True))
        exchange.rights |= given | {"ipRestrict": restricted, trading: trades}
        permissions = venue.permissions()
        if any(moving) or not trades:
            with pytest.raises(ConfigError) as caught:
                check_permissions(permissions, venue.kind)
            assert caught.value.code == "venue-permission"
            assert ("move money" in caught.value.wrong) == any(moving)
            for name, word in zip(
                RIGHTS, ("withdrawals", "internal transfers", "universal transfers"), strict=True
            ):
                assert (word in caught.value.found) == given[name]
        else:
            accepted += 1
            warnings = check_permissions(permissions, venue.kind)
            assert len(warnings) == (0 if restricted else 1)
    assert accepted == 2


def test_a_key_that_cannot_read_is_not_told_its_rights(exchange, venue):
    from stormsail.core.errors import VenueError

    exchange.rights["enableReading"] = False
    with pytest.raises(VenueError) as caught:
        venue.permissions()
    assert caught.value.code == "venue-refused"


def test_borrowing_is_warned_of_and_rights_that_are_not_stated_count_as_given(exchange, venue):
    exchange.rights["enableMargin"] = True
    words = check_permissions(venue.permissions(), venue.kind)
    assert words == ("the key may borrow on margin, which is not needed here",)
    del exchange.rights["enableWithdrawals"]
    with pytest.raises(ConfigError, match="withdrawals"):
        check_permissions(venue.permissions(), venue.kind)
