"""The bugs of positions that are turned, and of orders that are sent one after the other."""

from mutants.harness import Mutant
from mutants.nodes import integration, unit

GATE, PLACING = "execution/order_gate.py", "execution/orders/placing.py"


def chains(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of orders of one symbol."""
    return unit("order_chains", *names, part="execution")


def turning(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of turns at a real exchange."""
    return integration("turning", *names)


TURNING = (
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
