"""The bugs of trading bots: orders sent twice or forgotten, positions assumed, switches reset."""

from mutants.harness import Mutant
from mutants.nodes import integration, unit

GATE, LOOP = "execution/order_gate.py", "execution/loop.py"
LEDGER, JOURNAL = "execution/decisions/ledger.py", "execution/journal/__init__.py"
SCHEMA = "execution/journal/schema.py"
RECONCILE, SWITCH = "execution/reconcile.py", "execution/kill_switch.py"
PROTECTION, PATH = "execution/protection.py", "execution/decisions/path.py"
PLACING = "execution/orders/placing.py"
CLOSING, MARGIN = "execution/decisions/closing.py", "execution/margin.py"


def gate(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of the order gate."""
    return unit("order_gate", *names, part="execution")


def loop(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of the loop."""
    return integration("execution_loop", *names)


def kills(*names: str) -> tuple[str, ...]:
    """Return node ids of tests in which traders die."""
    return tuple(f"tests/fault/test_execution_kills.py::{name}" for name in names)


def outages(*names: str) -> tuple[str, ...]:
    """Return node ids of tests in which something fails for long."""
    return integration("execution_outages", *names)


def close(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of what is asked between a close and its orders."""
    return integration("close_questions", *names)


def perils(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of what costs money at a real exchange."""
    return integration("execution_perils", *names)


def margin(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of leverage and margin mode."""
    return unit("margin", *names, part="execution")


EXECUTION = (
    Mutant(
        "a-stop-must-cover-what-no-order-can-sell",
        "D8",
        PROTECTION,
        "    size = _stepped(abs(quantity), market.lot)\n    return [\n",
        "    size = abs(quantity)\n    return [\n",
        perils("test_a_spot_position_keeps_its_stop_although_a_fee_left_no_whole_lot"),
    ),
    Mutant(
        "a-stop-keeps-the-coins-that-are-to-be-sold",
        "D8",
        PLACING,
        "released = self.protector.release(sold)",
        "released = False",
        perils("test_spot_coins_that_a_stop_keeps_can_be_sold_by_a_decision"),
    ),
    Mutant(
        "a-sale-that-is-refused-costs-the-stop",
        "D8",
        PLACING,
        "if released or any(isinstance(outcome, Accepted | Unknown) for outcome in outcomes):",
        "if any(isinstance(outcome, Accepted | Unknown) for outcome in outcomes):",
        perils("test_a_spot_sale_that_is_refused_gives_the_stop_back"),
    ),
    Mutant(
        "a-stop-that-is-gone-is-not-missed",
        "D8",
        PLACING,
        "return self._guarded != (self.journal.booked()[0], self._stops())",
        "return self._guarded is None or self._guarded[0] != self.journal.booked()[0]",
        perils("test_a_stop_that_somebody_canceled_is_placed_again"),
    ),
    Mutant(
        "fills-of-others-are-booked-without-a-word",
        "D4",
        CLOSING,
        "        self._tell_fills(booked.trades)\n",
        "",
        perils(
            "test_a_liquidation_at_the_exchange_is_an_alarm",
            "test_trades_of_other_people_are_an_alarm_although_their_fills_explain_the_position",
        ),
    ),
    Mutant(
        "a-stop-of-ours-is-somebody-elses",
        "D4",
        CLOSING,
        "            self._update_orders(lambda intent: intent.symbol in unknown)\n",
        "            pass\n",
        perils("test_a_stop_that_was_triggered_is_told_and_is_nobody_elses"),
    ),
    Mutant(
        "the-rest-of-a-position-is-too-small-to-close",
        "D6",
        GATE,
        "        if request.reduce_only:  # markets",
        "        if False:  # markets",
        perils("test_the_small_rest_of_a_position_is_protected_and_closed"),
    ),
    Mutant(
        "dust-of-coins-is-an-alarm-for-ever",
        "D4",
        PLACING,
        "    return bool(size) and size >= least and worth\n",
        "    return bool(size)\n",
        perils("test_spot_coins_worth_less_than_the_least_order_are_dust_and_no_alarm"),
    ),
    Mutant(
        "one-market-that-is-gone-stops-all",
        "D4",
        RECONCILE,
        'if error.code != "venue-symbol" or len(before) == 1:',
        "if error.code:",
        perils("test_a_market_that_is_gone_does_not_keep_the_others_from_being_traded"),
    ),
    Mutant(
        "a-market-that-is-gone-stops-the-way-out",
        "D7",
        "execution/ccxt_venue.py",
        "        elif symbol not in self._ids:",
        "        else:",
        perils("test_a_market_that_is_gone_does_not_keep_the_others_from_being_closed"),
    ),
    Mutant(
        "one-symbol-without-a-price-stops-all",
        "D4",
        PLACING,
        "if error.code not in _SOME or len(self.symbols) == 1:",
        "if error.code:",
        perils("test_a_symbol_without_a_price_is_not_traded_and_the_others_are"),
    ),
    Mutant(
        "a-crash-that-refuses-the-way-out-ends-it",
        "D7",
        PLACING,
        '"-1021", "-2020", "-4131"})',
        '"-1021"})',
        perils("test_a_market_order_that_a_crash_refuses_is_tried_again"),
    ),
    Mutant(
        "a-stop-that-was-quicker-is-an-alarm",
        "D7",
        PLACING,
        "            return False  # a stop was quicker than the order\n",
        "            pass\n",
        perils("test_a_stop_that_is_quicker_than_the_way_out_leaves_no_alarm"),
    ),
    Mutant(
        "a-used-up-account-keeps-its-position",
        "D4",
        PLACING,
        "if self.real and bool(standing.ordered.liquidated[column]):",
        "if False:",
        perils("test_a_position_whose_own_account_is_used_up_is_closed"),
    ),
    Mutant(
        "the-past-is-one-question",
        "D2",
        "execution/connection/history.py",
        "    while now_ms - start > WEEK_MS:\n",
        "    while now_ms < start:\n",
        perils("test_fills_are_found_however_long_ago_the_last_one_was"),
    ),
    Mutant(
        "the-past-has-no-end",
        "D5",
        "execution/connection/history.py",
        "    start = max(since_ms, now_ms - OLDEST_MS)\n",
        "    start = since_ms\n",
        perils("test_an_absence_beyond_what_the_exchange_tells_is_no_refusal"),
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
        "hedge-mode-is-not-asked-for",
        "execution",
        MARGIN,
        "    if not venue.one_way():\n",
        "    if venue.one_way() is None:\n",
        perils("test_hedge_mode_is_refused_before_the_first_order"),
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
        "a-commit-that-failed-stays-open",
        "D1",
        JOURNAL,
        "                self._roll_back()\n                raise\n",
        "                raise\n",
        unit("journal", "test_a_commit_that_fails_is_no_open_transaction", part="execution"),
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
        "what-no-fill-explains-is-not-asked-for",
        "D4",
        CLOSING,
        "        if moved:\n",
        "        if not moved:\n",
        close("test_a_position_that_no_known_fill_explains_is_asked_for_and_only_that"),
    ),
    Mutant(
        "a-close-asks-for-every-symbol",
        "R20",
        CLOSING,
        "            self.settle(moved)\n",
        "            self.settle()\n",
        close("test_a_position_that_no_known_fill_explains_is_asked_for_and_only_that"),
    ),
    Mutant(
        "the-gate-believes-old-positions",
        "D4",
        CLOSING,
        "        return positions if young else None\n",
        "        return positions\n",
        close("test_a_close_that_known_fills_explain_asks_for_positions_once_and_for_no_symbol"),
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
        "a-row-that-is-no-position-is-left-out",
        "M45",
        "execution/connection/binance.py",
        '        decimal(row, "positionAmt")\n',
        "        pass\n",
        unit(
            "ccxt_venue",
            "test_a_question_that_fails_is_an_error_and_never_nothing",
            part="execution",
        ),
    ),
    Mutant(
        "rates-of-one-moment-are-one-rate",
        "D12",
        "execution/connection/binance.py",
        "    return f\"{row.get('symbol')}-{row.get('time')}-{own}\"",
        "    return f\"{row.get('time')}-{own}\"",
        unit(
            "ccxt_venue",
            "test_leverage_margin_mode_funding_and_the_countdown",
            part="execution",
        ),
    ),
    Mutant(
        "a-market-order-keeps-to-one-filter",
        "D6",
        "execution/venue.py",
        "min(most, default=ZERO)",
        "self.max_quantity",
        gate("test_2_a_market_order_keeps_to_both_filters_of_quantities"),
    ),
    Mutant(
        "a-closing-order-is-too-large-for-the-market",
        "D6",
        PROTECTION,
        "min(abs(held), most) if most else abs(held)",
        "abs(held)",
        close("test_a_position_larger_than_a_market_order_is_closed_in_parts"),
    ),
    Mutant(
        "a-part-follows-one-without-an-answer",
        "D2",
        GATE,
        "if not isinstance(before[-1][1], Accepted):",
        "if isinstance(before[-1][1], Refused):",
        gate("test_a_part_that_is_not_taken_stops_those_after_it"),
    ),
    Mutant(
        "parts-pass-one-by-one",
        "D6",
        GATE,
        "        if part.whole * price > bounds.order:\n",
        "        if request.quantity * price > bounds.order:\n",
        gate("test_parts_of_an_order_pass_together_or_not_at_all"),
    ),
    Mutant(
        "a-part-does-not-see-those-before-it",
        "D6",
        GATE,
        "            account = _with(account, [part])\n",
        "",
        gate("test_parts_of_an_order_pass_together_or_not_at_all"),
    ),
    Mutant(
        "an-order-in-parts-is-one-to-the-rates",
        "D6",
        GATE,
        "_count(rates.orders, since) + part.before >= bounds.orders",
        "_count(rates.orders, since) >= bounds.orders",
        gate("test_parts_are_one_order_to_the_throttle_and_many_to_the_rates"),
    ),
    Mutant(
        "a-part-is-too-large-for-the-market",
        "D6",
        PLACING,
        "    count = -(-lots // most_lots) if",
        "    count = lots // most_lots if",
        unit(
            "placing",
            "test_a_size_is_cut_into_as_few_parts_as_the_market_takes",
            part="execution",
        ),
    ),
    Mutant(
        "the-stop-of-an-order-in-parts-is-that-of-its-last-part",
        "D8",
        PLACING,
        "changes.get(request.symbol, _NONE) + signed",
        "signed",
        close("test_a_target_larger_than_a_market_order_is_worked_in_parts"),
    ),
    Mutant(
        "which-limit-refused-is-not-told",
        "D6",
        PLACING,
        "{request.quantity}: {why}{outcome.words}",
        "{request.quantity}: {outcome.words}",
        loop("test_an_operator_is_told_which_limit_refused_an_order"),
    ),
    Mutant(
        "a-refused-order-passed-the-gates",
        "D6",
        "execution/decisions/standing.py",
        "reason=_refusal_words(refusal) or Reason(",
        "reason=Reason(",
        loop("test_an_operator_is_told_which_limit_refused_an_order"),
    ),
    Mutant(
        "a-bar-reads-every-order-that-there-was",
        "R27",
        SCHEMA,
        '    "orders_by_number ON orders (order_id)",\n',
        "",
        unit(
            "journal",
            "test_a_question_of_every_bar_costs_as_much_after_many_orders[fills]",
            part="execution",
        ),
    ),
    Mutant(
        "an-order-of-one-symbol-is-that-of-another",
        "D4",
        JOURNAL,
        '"WHERE order_id = ? AND symbol = ? LIMIT 1",\n            (order_id, symbol),',
        '"WHERE order_id = ? LIMIT 1",\n            (order_id,),',
        unit("journal", "test_the_number_of_an_order_is_one_of_its_symbol", part="execution"),
    ),
    Mutant(
        "margin-is-set-without-permission",
        "D5",
        MARGIN,
        "    if config.change and any(",
        "    if any(",
        margin("test_what_differs_is_refused_and_nothing_is_set"),
    ),
    Mutant(
        "margin-that-was-set-is-not-read-again",
        "D5",
        MARGIN,
        "        present = venue.margin_terms(symbols)\n    for",
        "        return present\n    for",
        margin("test_a_setting_that_does_not_stay_is_noticed"),
    ),
    Mutant(
        "less-leverage-than-the-gate-allows-is-enough",
        "D6",
        MARGIN,
        "own.leverage < Decimal(repr(max_leverage))",
        "own.leverage < 1",
        margin("test_the_exchange_must_allow_as_much_as_the_order_gate"),
    ),
    Mutant(
        "funding-that-settled-is-not-asked-for",
        "D12",
        "execution/decisions/feed.py",
        "// _HOUR_MS * _HOUR_MS <= since:",
        "// _HOUR_MS * _HOUR_MS <= ts:",
        outages("test_funding_rates_are_asked_for_when_one_may_have_settled"),
    ),
    Mutant(
        "funding-of-an-hour-waits-for-the-next-bar",
        "D12",
        CLOSING,
        "        return self._funding_ms < newest + _SHOWN_MS\n",
        "        return False\n",
        close("test_funding_is_asked_for_before_a_close_and_after_it_where_an_hour_has_begun"),
    ),
    Mutant(
        "funding-paid-in-an-outage-is-forgotten",
        "D12",
        CLOSING,
        "            self._book_funding(min(since, self._funding_ms - _HOUR_MS))\n",
        "            self._book_funding(since)\n",
        close("test_what_was_paid_while_nothing_was_asked_is_asked_for_before_a_close"),
    ),
    Mutant(
        "rates-of-one-bar-are-those-of-the-next",
        "D12",
        "execution/decisions/feed.py",
        "        if self._due is not None and self._due[0] == ts:\n",
        "        if self._due is not None:\n",
        close("test_rates_are_asked_for_before_the_close_and_each_bar_has_its_own"),
    ),
    Mutant(
        "a-rate-that-is-not-shown-yet-is-none",
        "D12",
        "execution/decisions/feed.py",
        "        if self.now_ms() - ts >= SETTLEMENT_JITTER_MS + _LATE_MS:\n",
        "        if self.now_ms() >= ts:\n",
        close("test_rates_are_asked_for_before_the_close_and_each_bar_has_its_own"),
    ),
    Mutant(
        "a-position-forgets-all-but-its-first-fill",
        "D4",
        LEDGER,
        "changes[row][number] for row in rows",
        "changes[row][0] for row in rows",
        unit(
            "live_close",
            "test_fills_that_follow_each_other_give_the_bits_of_one_after_the_other",
            part="execution/decisions",
        ),
    ),
    Mutant(
        "what-another-process-used-is-not-read",
        "D10",
        "execution/connection/rate_budget.py",
        "        if self._known is None or self._known[0] != data:\n",
        "        if self._known is None:\n",
        unit(
            "rate_budget",
            "test_what_another_process_writes_counts_at_once",
            part="execution/connection",
        ),
    ),
    Mutant(
        "threads-share-a-client",
        "D2",
        "execution/connection/pool.py",
        'own: Connection = getattr(self._own, "connection", self._first)',
        "own: Connection = self._first",
        unit(
            "pool",
            "test_a_thread_has_a_client_of_its_own_with_the_markets_of_the_first",
            part="execution/connection",
        ),
    ),
    Mutant(
        "a-connection-keeps-the-filters-of-yesterday",
        "D6",
        "execution/connection/pool.py",
        "            setattr(connection.client, name, getattr(self._first.client, name))\n",
        "            pass\n",
        unit(
            "pool",
            "test_a_thread_has_a_client_of_its_own_with_the_markets_of_the_first",
            part="execution/connection",
        ),
    ),
    Mutant(
        "an-order-goes-out-on-a-dead-connection",
        "D2",
        "execution/connection/pool.py",
        "            _drop(connection)\n        connection.used_ns",
        "            pass\n        connection.used_ns",
        unit(
            "pool",
            "test_a_connection_that_was_idle_for_long_is_opened_anew",
            part="execution/connection",
        ),
    ),
    Mutant(
        "an-error-leaves-other-orders-on-their-way",
        "D2",
        "execution/connection/pool.py",
        "        ended = list(self._threads.map(self._run, calls))\n",
        "        ended = []\n"
        "        for own in self._threads.map(self._run, calls):\n"
        "            if own[1] is not None:\n"
        "                raise own[1]\n"
        "            ended.append(own)\n",
        unit(
            "pool",
            "test_an_error_is_raised_once_every_call_has_ended",
            part="execution/connection",
        ),
    ),
    Mutant(
        "a-ban-is-asked-for-only-once",
        "D10",
        "execution/connection/ccxt_client.py",
        "            budget.check_ban()",
        "            pass",
        unit(
            "ccxt_venue",
            "test_a_ban_that_begins_while_a_request_waits_for_its_weight_stops_it",
            part="execution",
        ),
    ),
    Mutant(
        "threads-lose-what-others-used",
        "D10",
        "execution/connection/rate_budget.py",
        "        with self._threads, self._locked(fcntl.LOCK_EX):\n",
        "        with self._locked(fcntl.LOCK_EX):\n",
        unit("rate_budget", "test_threads_share_one_budget", part="execution/connection"),
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
        "the-way-out-is-given-up-at-the-first-refusal",
        "D7",
        PLACING,
        "len(refused) < len(outcomes) or any(own.code in _PASSING for own in refused)",
        "len(refused) < len(outcomes)",
        outages("test_the_way_out_is_tried_again_while_time_may_help"),
    ),
    Mutant(
        "what-was-not-closed-is-confirmed",
        "D7",
        PLACING,
        '        self.left_open = words or "less than one lot is left"\n'
        '        self.teller.tell("not-flat", self.left_open, "alarm")\n',
        '        self.teller.tell("not-flat", words or "less than one lot is left", "alarm")\n',
        outages("test_what_is_refused_for_good_is_not_called_closed"),
    ),
    Mutant(
        "nothing-is-closed-before-the-first-decision",
        "D7",
        PLACING,
        'way != "flatten" or self._flat(standing)',
        'way != "flatten" or standing is None or self._flat(standing)',
        outages("test_what_was_held_before_the_first_decision_is_closed_as_well"),
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
        "a-position-that-stays-is-told-as-closed",
        "D8",
        PLACING,
        "        return all(own is None or isinstance(own, Accepted) for own in closed.values())",
        "        return True",
        outages("test_a_position_that_could_not_be_closed_is_told_and_tried_again"),
    ),
    Mutant(
        "a-repeated-close-is-a-fresh-bar",
        "D9",
        "execution/decisions/bar_window.py",
        "self.panel.ts[self.panel.tradable[:, self.panel.index(symbol)]]",
        "self.panel.ts",
        outages("test_a_symbol_whose_bars_stop_is_not_traded_on_its_last_one"),
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
        "money-that-is-not-there-is-traded",
        "D6",
        RECONCILE,
        "    if worth < Decimal(repr(capital)):\n",
        "    if worth < 0:\n",
        outages("test_more_capital_than_the_account_holds_is_refused"),
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
        "a-commit-is-not-forced-to-the-disk",
        "R2",
        JOURNAL,
        "PRAGMA synchronous = FULL",
        "PRAGMA synchronous = NORMAL",
        (
            "tests/fault/test_journal_power_loss.py::"
            "test_a_power_loss_costs_no_commit_and_leaves_no_half",
        ),
    ),
    Mutant(
        "a-killed-transaction-stays-by-half",
        "R21",
        JOURNAL,
        "PRAGMA journal_mode = WAL",
        "PRAGMA journal_mode = OFF",
        (
            "tests/fault/test_journal_syscalls.py::"
            "test_the_kernel_kills_a_trader_at_some_calls_and_the_next_one_equals_the_venue",
        ),
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
        "an-intention-moves-the-account",
        "M30",
        LEDGER,
        "    money, held = _exact(cash[row]), _exact(quantity[row])",
        "    money = _exact(cash[row])\n"
        "        held = _exact(quantity[row]) + _exact(float(ordered.order[row]))",
        loop("test_an_order_that_failed_does_not_move_the_account"),
    ),
    Mutant(
        "what-was-held-before-is-ignored",
        "M31",
        "execution/decisions/closing.py",
        "                quantity[column] = float(held)\n",
        "                quantity[column] = 0.0\n",
        loop("test_a_position_that_was_there_before_is_part_of_the_account"),
    ),
    Mutant(
        "the-position-is-that-of-the-cache",
        "M32",
        LEDGER,
        "        at_venue = _without_dust(booked.positions[symbol].quantity, market)",
        "        at_venue = _without_dust(held, market)",
        loop("test_a_position_that_others_changed_is_adopted_and_told"),
    ),
    Mutant(
        "dust-is-a-position",
        "M33",
        LEDGER,
        "    return ZERO if abs(quantity) < market.market_lot else quantity",
        "    return quantity",
        loop("test_dust_is_no_position"),
    ),
    Mutant(
        "no-answer-is-a-refusal",
        "M42",
        JOURNAL,
        'self._add_report(client_id, "unknown", None, "", outcome.words, now_ms)',
        'self._add_report(client_id, "refused", None, "", outcome.words, now_ms)',
        gate("test_no_answer_is_unknown_and_not_refused"),
    ),
    Mutant(
        "an-unknown-order-is-sent-again",
        "M43",
        GATE,
        "                outcomes.append(self._venue.submit(proposal.request))\n",
        "                outcomes.append(self._venue.submit(proposal.request))\n"
        '                if hasattr(outcomes[-1], "words"):\n'
        "                    outcomes[-1] = self._venue.submit(proposal.request)\n",
        gate("test_an_order_is_never_sent_again"),
    ),
    Mutant(
        "fills-count-each-time-they-come",
        "M44",
        SCHEMA,
        "    fee TEXT NOT NULL, fee_asset TEXT NOT NULL, realised TEXT NOT NULL, "
        "ts INTEGER NOT NULL,\n    UNIQUE (symbol, trade_id)\n",
        "    fee TEXT NOT NULL, fee_asset TEXT NOT NULL, realised TEXT NOT NULL, "
        "ts INTEGER NOT NULL\n",
        unit("journal", "test_a_fill_counts_once", part="execution"),
    ),
    Mutant(
        "a-restart-books-fills-again",
        "M44",
        "execution/decisions/standing.py",
        '        (int(accounts[0]["fills"]), int(accounts[0]["funding"])),',
        "        (0, 0),",
        loop("test_fills_that_come_twice_count_once"),
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
        "the-intent-is-written-after-the-send",
        "M46",
        JOURNAL,
        '                self._database.execute("COMMIT")\n',
        "",
        gate("test_the_intent_is_on_disk_before_the_request"),
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
        "unknown-exposure-is-left-out",
        "execution",
        GATE,
        "        if max(abs(held.low + signed), abs(held.high + signed)) * price > "
        "bounds.position:",
        "        if abs(held.low + signed) * price > bounds.position:",
        gate("test_5_an_order_without_an_answer_counts_as_filled"),
    ),
    Mutant(
        "reducing-may-turn",
        "execution",
        GATE,
        "        return exposure.low + change >= 0 and exposure.low > 0",
        "        return exposure.low > 0",
        gate("test_reducing_passes_the_limits_on_size_and_loss_but_never_turns"),
    ),
    Mutant(
        "the-switch-is-not-looked-at-last",
        "execution",
        GATE,
        'if proposal.leg == "target" and self._switch.tripped():',
        'if proposal.leg == "nothing" and self._switch.tripped():',
        gate("test_the_switch_is_looked_at_after_the_intent"),
    ),
    Mutant(
        "a-stop-comes-after-the-entry",
        "execution",
        PROTECTION,
        '        return self.on and self._venue.kind == "perpetual"',
        "        return False",
        kills("test_a_position_is_protected_whenever_the_trader_dies"),
    ),
    Mutant(
        "a-position-without-a-stop-stays-open",
        "execution",
        PROTECTION,
        "            if not isinstance(outcome, Accepted) or late:",
        "            if late:",
        kills("test_a_position_without_a_stop_in_time_is_closed"),
    ),
    Mutant(
        "a-countdown-is-renewed-too-late",
        "execution",
        PROTECTION,
        "RENEWALS = 4",
        "RENEWALS = 1",
        kills("test_a_countdown_is_renewed_after_a_quarter_of_it"),
    ),
    Mutant(
        "an-order-of-another-journal-is-ours",
        "execution",
        RECONCILE,
        "        if order.client_id.startswith(own) and epoch != journal.epoch:",
        "        if order.client_id.startswith(own) and epoch is None:",
        loop("test_another_trader_in_the_same_account_is_refused"),
    ),
    Mutant(
        "an-order-that-is-not-shown-never-was",
        "execution",
        RECONCILE,
        "        elif now_ms - intent.created_ms >= 1000.0 * visible_after_s:",
        "        elif now_ms >= 0:",
        loop("test_an_order_that_is_shown_late_is_waited_for"),
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
        "the-burn-in-is-left-out",
        "R26",
        PATH,
        "        for back in range(burn_in, 0, -1):",
        "        for back in range(burn_in, 1, -1):",
        integration(
            "execution_parity",
            "test_a_plain_backtest_of_the_same_bars_gives_the_same_bits",
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
