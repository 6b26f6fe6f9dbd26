"""The bugs of a trader as a whole: its loop, its switch, its commands."""

from mutants.harness import Mutant
from mutants.nodes import close, integration, loop, outages, perils, unit

LOOP = "execution/loop.py"
SWITCH = "execution/kill_switch.py"


def full(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of a disk that is full."""
    return tuple(f"tests/fault/test_full_disk.py::{name}" for name in names)


TRADER = (
    Mutant(
        "a-signed-request-is-sent-before-clocks-agree",
        "D9",
        "cli/trading/live.py",
        "        agreed_offset_ms(place, clock, config.feed)  # a signed request bears a time\n",
        "",
        integration("live_refusals", "test_a_clock_that_is_off_is_refused"),
    ),
    Mutant(
        "a-full-disk-ends-a-trader",
        "R4",
        "cli/trading/session.py",
        "return not self._leaving",
        "return False",
        full("test_a_trader_waits_for_room_sends_nothing_meanwhile_and_goes_on"),
    ),
    Mutant(
        "a-countdown-runs-out-while-room-is-waited-for",
        "R24",
        "cli/trading/session.py",
        "self.loop.placing.protector.renew(self._account.symbols)",
        "pass",
        full("test_a_trader_waits_for_room_sends_nothing_meanwhile_and_goes_on"),
    ),
    Mutant(
        "a-kill-switch-needs-room",
        "R23",
        SWITCH,
        "                self._touch(folder)\n                return self.read() or made\n",
        "                raise\n",
        full("test_the_kill_switch_is_tripped_on_a_full_disk_and_says_no_more_than_it_keeps"),
    ),
    Mutant(
        "a-full-disk-locks-everybody-out",
        "D5",
        "core/files/lock.py",
        "with contextlib.suppress(OSError):  # on a full disk the lock holds, and says less",
        "with contextlib.suppress(KeyError):",
        full("test_a_full_disk_lets_one_trader_alone_begin"),
    ),
    Mutant(
        "an-absence-asks-at-every-bar",
        "D10",
        LOOP,
        "self._closed(panel, asks=ts == times[0])",
        "self._closed(panel)",
        perils("test_an_absence_of_many_bars_asks_the_exchange_once_and_books_its_funding"),
    ),
    Mutant(
        "a-clock-that-is-set-is-not-looked-at",
        "D9",
        LOOP,
        "            if self.feed.clock_was_set():\n                self._check_clock()\n",
        "",
        outages("test_a_clock_that_is_set_while_a_bar_is_waited_for_moves_no_bar"),
    ),
    Mutant(
        "an-error-that-ends-trading-needs-the-journal",
        "execution",
        "execution/operator/status.py",
        "        except (sqlite3.Error, StormsailError):\n            now",
        "        except sqlite3.Error:\n            now",
        loop("test_an_error_that_ends_trading_is_an_alarm_also_where_the_journal_fails"),
    ),
    Mutant(
        "stop-takes-any-account",
        "D7",
        "cli/trading/stop.py",
        "    if len(there) > 1:\n",
        "    if len(there) > 9:\n",
        integration("trading_commands", "test_of_several_accounts_the_one_to_stop_must_be_named"),
    ),
    Mutant(
        "what-leaves-the-position-alone-is-never-booked",
        "D4",
        LOOP,
        "                self.accounts.settle_all()\n",
        "",
        close(
            "test_a_round_trip_that_leaves_no_trace_in_the_position_is_booked_before_the_next_bar"
        ),
    ),
    Mutant(
        "a-verdict-without-a-share-allows-all-of-it",
        "E2",
        "cli/trading/live.py",
        "and not isinstance(stated, bool) and 0.0 < stated <= 1.0:",
        "and not isinstance(stated, bool):",
        integration("trading_commands", "test_a_verdict_that_allows_no_share_allows_no_trading"),
    ),
    Mutant(
        "rearming-stops-the-way-out",
        "D7",
        LOOP,
        "            trip = self._switch.read() or trip\n",
        '            trip = self._switch.read() or replace(trip, way="stop")\n',
        outages("test_rearming_does_not_stop_what_was_begun"),
    ),
    Mutant(
        "cancelling-stops-takes-the-way-out-back",
        "D7",
        SWITCH,
        '{"stop": 0, "cancel": 1, "flatten": 2}',
        '{"stop": 0, "cancel": 2, "flatten": 1}',
        unit(
            "kill_switch", "test_cancelling_stops_does_not_take_the_way_out_back", part="execution"
        ),
    ),
    Mutant(
        "two-trips-cross",
        "D7",
        SWITCH,
        "            self._alone(folder)\n",
        "",
        unit(
            "kill_switch",
            "test_of_trips_at_the_same_moment_the_one_that_asks_for_most_counts",
            part="execution",
        ),
    ),
    Mutant(
        "a-fill-that-is-found-later-has-no-stop",
        "D8",
        LOOP,
        "            if self._standing is not None and self.placing.unguarded():\n"
        "                self.placing.after_fills(self._standing)\n",
        "",
        outages(
            "test_an_order_that_was_filled_without_an_answer_gets_its_stop",
            "test_a_stop_that_could_not_be_placed_is_tried_again",
        ),
    ),
    Mutant(
        "the-clock-is-looked-at-once",
        "D9",
        LOOP,
        "                self._check_clock()\n                self._refresh_markets()\n",
        "                self._refresh_markets()\n",
        outages("test_a_clock_that_goes_off_while_trading_allows_reducing_only"),
    ),
    Mutant(
        "an-interrupted-stream-ends-trading",
        "D11",
        LOOP,
        "            self._interrupted = True\n",
        "            update_fills(self._venue, self._journal, self.symbols)\n",
        outages("test_streams_and_questions_that_fail_together_do_not_end_trading"),
    ),
    Mutant(
        "the-watch-over-the-tail-starts-anew",
        "D6",
        LOOP,
        "restored_watch(self._watch, self._journal, self.symbols, ts, length)",
        "self._watch",
        loop("test_the_watch_over_the_tail_goes_on_across_restarts"),
    ),
    Mutant(
        "a-reconnection-rearms-the-switch",
        "M26",
        LOOP,
        '            self.teller.tell("stream-interrupted", event.words, "warning")\n',
        '            self.teller.tell("stream-interrupted", event.words, "warning")\n'
        "            self._switch.rearm()\n",
        unit("kill_switch", "test_nothing_but_the_command_rearms", part="execution"),
    ),
    Mutant(
        "a-failed-question-is-flat",
        "M45",
        LOOP,
        '            self.teller.tell("account-unknown", str(error), "alarm")\n'
        "            return\n",
        '            self.teller.tell("account-unknown", str(error), "alarm")\n'
        "            state = self.path.opened(panel.close[-1])\n"
        "            stopped = torch.zeros_like(state.done)\n",
        loop("test_a_position_that_cannot_be_looked_up_is_not_flat"),
    ),
    Mutant(
        "an-order-before-ready",
        "execution",
        LOOP,
        "        self.gate.ready = True\n",
        "",
        loop("test_cancels_are_confirmed_within_two_seconds_or_retried_to_the_end"),
    ),
    Mutant(
        "a-trip-asks-for-less",
        "execution",
        SWITCH,
        "_MORE[way] <= _MORE[before.way]",
        "_MORE[way] == _MORE[before.way]",
        unit(
            "kill_switch",
            "test_a_second_trip_may_ask_for_more_and_never_for_less",
            part="execution",
        ),
    ),
    Mutant(
        "the-memory-is-lost-at-a-restart",
        "R26",
        LOOP,
        "        self.path.restore(document, memory, generator)\n",
        "",
        integration("execution_parity", "test_a_replay_of_the_journal_decides_everything_alike"),
    ),
    Mutant(
        "a-tail-that-is-too-heavy-is-only-told",
        "execution",
        LOOP,
        "        self.gate.reduce_only(name, words)\n        return loss",
        "        return loss",
        loop("test_a_predicted_tail_above_the_limit_allows_reducing_only"),
    ),
    Mutant(
        "days-outside-of-the-band-only-warn",
        "execution",
        LOOP,
        '            self._switch.trip(source="tail limit", words=words)\n',
        "            pass\n",
        loop("test_days_outside_of_the_band_halt_for_good"),
    ),
)
