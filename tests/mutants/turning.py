"""The bugs of positions that are turned, and of orders that leave one after the other."""

from mutants.harness import Mutant
from mutants.nodes import close, integration, perils, unit

GATE, PLACING = "execution/order_gate.py", "execution/orders/placing.py"
PROTECTION, LOOP = "execution/protection.py", "execution/loop.py"


def chains(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of orders of one symbol."""
    return unit("order_chains", *names, part="execution")


def turning(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of turns at a real exchange."""
    return integration("turning", *names)


TURNING = (
    Mutant(
        "prices-of-before-are-fresh",
        "D6",
        PLACING,
        "if ahead is not None and ahead[0] >= oldest:",
        "if ahead is not None:",
        close("test_prices_are_asked_for_beside_positions_and_again_where_that_is_long_ago"),
    ),
    Mutant(
        "a-close-fails-with-a-price",
        "D4",
        PLACING,
        "        with suppress(VenueError):\n",
        "        with suppress(KeyError):\n",
        close("test_prices_are_asked_for_beside_positions_and_again_where_that_is_long_ago"),
    ),
    Mutant(
        "prices-wait-for-positions",
        "execution",
        LOOP,
        "        self.accounts.beside = (self.placing.look,)\n",
        "",
        close("test_prices_are_asked_for_beside_positions_and_again_where_that_is_long_ago"),
    ),
    Mutant(
        "a-stop-of-any-price-fits",
        "D8",
        PROTECTION,
        "        return away > FARTHEST * Decimal",
        "        return away < -FARTHEST * Decimal",
        perils("test_a_position_that_grows_again_has_no_stop_of_a_price_long_gone"),
    ),
    Mutant(
        "a-stop-that-came-late-costs-the-position",
        "D8",
        PROTECTION,
        "            if not isinstance(outcome, Accepted):\n                self.release",
        "            if not isinstance(outcome, Accepted) or passed_s > self._config.deadline_s:\n"
        "                self.release",
        perils("test_a_position_whose_stop_stands_is_not_closed_because_it_came_late"),
    ),
    Mutant(
        "stops-are-canceled-one-after-the-other",
        "D8",
        PROTECTION,
        "        outcomes = self._venue.at_once(\n"
        "            [partial(self._gate.cancel, own.symbol, own.client_id) for own in intents]\n"
        "        )\n",
        "        outcomes = [self._gate.cancel(own.symbol, own.client_id) for own in intents]\n",
        perils("test_many_stops_that_are_canceled_leave_no_position_without_its_own_for_long"),
    ),
    Mutant(
        "a-countdown-that-failed-is-renewed",
        "D8",
        PROTECTION,
        "        for symbol in symbols:\n            self._venue.renew_dead_man",
        "        self._renewed_ns = now\n"
        "        for symbol in symbols:\n            self._venue.renew_dead_man",
        perils("test_a_countdown_that_could_not_be_renewed_is_tried_again_at_once"),
    ),
    Mutant(
        "messages-are-read-while-orders-leave",
        "execution",
        "execution/connection/pro_streams.py",
        "loop.call_soon_threadsafe(over.wait, HELD_S)",
        "loop.call_soon_threadsafe(over.is_set)",
        integration("loopback_socket", "test_no_message_is_read_while_requests_leave_side_by_side"),
    ),
    Mutant(
        "messages-wait-as-long-as-requests-do",
        "execution",
        "execution/connection/pro_streams.py",
        "loop.call_soon_threadsafe(over.wait, HELD_S)",
        "loop.call_soon_threadsafe(over.wait)",
        integration("loopback_socket", "test_no_message_is_read_while_requests_leave_side_by_side"),
    ),
    Mutant(
        "a-stop-is-sent-for-a-position-that-will-not-come",
        "D7",
        GATE,
        "if decided and self._switch.tripped():",
        'if proposal.leg == "target" and self._switch.tripped():',
        chains("test_no_stop_is_sent_for_an_order_that_the_kill_switch_keeps_back"),
    ),
    Mutant(
        "an-order-is-filled-where-all-of-its-parts-are",
        "D12",
        "execution/replay.py",
        "SELECT max(CAST(filled AS REAL))",
        "SELECT min(CAST(coalesce(filled, 0) AS REAL))",
        turning("test_a_turn_of_which_a_stop_did_the_first_half_is_no_bar_without_an_order"),
    ),
    Mutant(
        "a-turn-is-one-order",
        "D8",
        PLACING,
        "turns=self.real)",
        "turns=False)",
        turning("test_a_stop_that_fires_at_any_moment_of_a_turn_doubles_nothing"),
    ),
    Mutant(
        "a-position-is-opened-on-top-of-another",
        "D4",
        GATE,
        "if closing and not self._closed(closing, view.market):",
        "if closing and not view.market:",
        turning("test_the_other_side_is_not_opened_while_something_of_the_first_is_left"),
    ),
    Mutant(
        "an-order-on-its-way-has-closed-the-position",
        "D2",
        GATE,
        "        if any(isinstance(own, Unknown) for own in outcomes):\n            return False\n",
        "",
        chains("test_what_opens_a_position_is_sent_from_flat_alone"),
    ),
    Mutant(
        "a-position-that-nobody-tells-is-flat",
        "D4",
        GATE,
        "        except VenueError:\n            return False\n        return not held",
        "        except VenueError:\n            return True\n        return not held",
        turning("test_the_other_side_is_not_opened_where_the_position_cannot_be_looked_up"),
    ),
    Mutant(
        "what-one-part-has-closed-is-all",
        "D4",
        GATE,
        "closing = [outcome for own, outcome in before if own.leg == proposal.leg]",
        "closing = [outcome for own, outcome in before[:1] if own.leg == proposal.leg]",
        chains("test_parts_that_close_are_all_taken_or_the_venue_is_asked"),
    ),
    Mutant(
        "a-refused-order-leaves-its-stop",
        "D6",
        GATE,
        'refused.get(proposal.request.symbol, refusal) if proposal.leg == "stop" else refusal',
        "refusal",
        chains("test_a_position_is_closed_although_the_other_side_is_refused"),
    ),
    Mutant(
        "a-loss-keeps-a-position-open",
        "D6",
        GATE,
        "return proposal.request.symbol, proposal.leg, proposal.request.reduce_only",
        "return proposal.request.symbol, proposal.leg, False",
        chains("test_a_position_is_closed_although_the_other_side_is_refused"),
    ),
    Mutant(
        "the-other-side-passes-alone",
        "D6",
        GATE,
        'refusal = refused.get(symbol) if leg == "target" else None',
        "refusal = None",
        chains("test_the_other_side_is_refused_with_what_closes_the_first"),
    ),
    Mutant(
        "a-stop-that-is-refused-keeps-the-order-back",
        "D8",
        GATE,
        "closing = [outcome for own, outcome in before if own.leg == proposal.leg]",
        "closing = [outcome for own, outcome in before]",
        chains("test_a_stop_is_sent_before_its_order_whatever_becomes_of_it"),
    ),
    Mutant(
        "dust-keeps-a-position-from-being-turned",
        "D4",
        PLACING,
        "if not turns or not closable(_decimal(held), market, mid):",
        "if not turns:",
        unit(
            "placing",
            "test_what_no_order_can_close_is_turned_with_the_rest",
            part="execution",
        ),
    ),
    Mutant(
        "what-is-too-small-to-open-keeps-a-position",
        "D6",
        PLACING,
        "    return closing, opening if opens else _NONE\n",
        "    return closing, opening\n",
        unit(
            "placing",
            "test_an_order_that_turns_a_position_closes_it_and_opens_another",
            part="execution",
        ),
    ),
)
