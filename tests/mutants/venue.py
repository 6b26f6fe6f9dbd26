"""The bugs of connections to an exchange: answers believed, requests repeated, keys shown."""

from mutants.harness import Mutant
from mutants.nodes import gate, integration, perils, unit

OUTCOMES, CLIENT = "execution/connection/outcomes.py", "execution/connection/ccxt_client.py"
BINANCE, VENUE = "execution/connection/binance.py", "execution/ccxt_venue.py"
BUDGET, SECRETS = "execution/connection/rate_budget.py", "execution/secrets.py"
PERMISSIONS, ACCOUNT = "execution/permissions.py", "execution/loopback/account.py"


def venue(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of the venue."""
    return unit("ccxt_venue", *names, part="execution")


def outcome(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of the judgement of answers."""
    return unit("connection/outcomes", *names, part="execution")


def wire(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of the HTTP session."""
    return unit("plain_session", *names, part="execution/connection")


def line(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of the connection under it."""
    return unit("wire", *names, part="execution/connection")


def budget(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of the request budget."""
    return unit("connection/rate_budget", *names, part="execution")


VENUES = (
    Mutant(
        "a-lost-answer-is-a-refusal",
        "M42",
        OUTCOMES,
        'return Unknown(f"no answer: {problem}")',
        "return Refused(NOT_SENT, problem)",
        outcome("test_without_an_answer_nothing_is_known"),
    ),
    Mutant(
        "a-timeout-of-the-backend-is-a-refusal",
        "D3",
        OUTCOMES,
        "return 400 <= status < 500 and status != 408 and code in DEFINITIVE",
        "return 400 <= status < 500 and (status == 408 or code in DEFINITIVE)",
        outcome("test_a_refusal_counts_only_with_a_status_that_refuses"),
    ),
    Mutant(
        "a-name-that-is-taken-is-a-refusal",
        "D3",
        OUTCOMES,
        "if any(mark in words.lower() for mark in _DUPLICATE):",
        "if any(mark in words.upper() for mark in _DUPLICATE):",
        outcome("test_a_name_that_is_taken_says_that_the_order_may_exist"),
    ),
    Mutant(
        "an-echo-is-believed",
        "D3",
        BINANCE,
        "        if echo != sent:\n",
        "        if echo != sent and not name:\n",
        venue("test_an_echo_that_does_not_fit_is_unknown_and_never_sent_again"),
    ),
    Mutant(
        "sent-is-noted-after-the-answer",
        "M46",
        CLIENT,
        "            self.exchanged.sent = True\n"
        "            return super().fetch(url, method, headers, body)",
        "            answer = super().fetch(url, method, headers, body)\n"
        "            self.exchanged.sent = True\n            return answer",
        integration(
            "loopback_socket",
            "test_every_fault_looks_the_same_over_a_socket_and_inside_the_process",
        ),
    ),
    Mutant(
        "a-signature-is-told",
        "E1",
        "market/fetch/client.py",
        '_QUERY.sub("", _STREAM.sub(r"\\1", " ".join(str(error).split())))',
        '" ".join(str(error).split())',
        venue(
            "test_words_about_a_failure_hold_nothing_that_signs_a_request",
            "test_the_key_to_a_stream_is_no_part_of_what_is_told",
        ),
    ),
    Mutant(
        "retries-are-not-looked-for",
        "M43",
        CLIENT,
        'if name == "maxRetriesOnFailure" and value:',
        'if name == "maxRetries" and value:',
        venue("test_a_client_that_would_repeat_a_request_is_refused"),
    ),
    Mutant(
        "a-redirected-order-is-sent-again",
        "M43",
        CLIENT,
        "    made.session = plain_session()\n",
        "",
        integration("loopback_socket", "test_a_redirected_order_is_not_sent_again"),
    ),
    Mutant(
        "a-late-answer-is-that-to-the-next-request",
        "D2",
        "execution/connection/wire.py",
        "                line.close()  # an answer that comes after all is nobody's\n",
        "",
        wire("test_an_answer_that_comes_late_is_not_that_to_the_next_request"),
    ),
    Mutant(
        "a-request-goes-out-on-a-closed-connection",
        "D2",
        "execution/connection/wire.py",
        "        if self._connection.sock is not None and _readable(self._connection.sock):\n",
        "        if self._connection.sock is None:\n",
        wire("test_a_connection_that_was_closed_meanwhile_is_opened_anew_before_a_request"),
    ),
    Mutant(
        "a-request-that-was-refused-is-sent-with-the-next",
        "D2",
        "execution/connection/wire.py",
        "        self._connection.close()\n        self._connection = self._unopened()\n",
        "        self._connection.close()\n",
        line("test_nothing_of_a_request_that_cannot_be_written_is_sent_with_the_next_one"),
    ),
    Mutant(
        "an-answer-may-drip-for-ever",
        "R20",
        "execution/connection/wire.py",
        "            self._sock.settimeout(left_ns / NANOSECONDS)\n",
        "            self._end_ns += 10**9\n",
        line("test_an_answer_that_drips_is_waited_for_no_longer_than_a_silent_one"),
    ),
    Mutant(
        "a-surplus-answer-waits-for-the-next-request",
        "D2",
        "execution/connection/wire.py",
        "if isinstance(sock, ssl.SSLSocket) and sock.pending():",
        "if isinstance(sock, ssl.SSLSocket) and not sock:",
        line("test_a_second_answer_to_one_request_is_not_that_to_the_next"),
    ),
    Mutant(
        "an-early-hint-is-the-answer",
        "D2",
        "execution/connection/wire.py",
        "if answer.status < 200:",
        "if answer.status < 100:",
        line("test_an_early_hint_is_not_taken_for_the_answer_nor_the_answer_for_the_next"),
    ),
    Mutant(
        "an-error-of-a-header-quotes-the-key",
        "R28",
        "execution/connection/wire.py",
        "    except ValueError:  # it quotes the value, which may be the key\n",
        "    except LookupError:\n",
        line("test_an_error_of_a_header_does_not_show_its_value"),
    ),
    Mutant(
        "a-key-with-a-line-end-is-taken",
        "E1",
        SECRETS,
        'if not "!" <= sign <= "~"',
        'if sign == "\\0"',
        unit(
            "secrets",
            "test_a_key_that_can_be_no_header_is_refused_without_quoting_it",
            part="execution",
        ),
    ),
    Mutant(
        "a-budget-that-cannot-be-written-ends-a-trader",
        "D10",
        BUDGET,
        "OSError as error:\n                raise _unkept_error",
        "KeyError as error:\n                raise _unkept_error",
        (
            "tests/fault/test_full_disk.py::"
            "test_a_request_budget_that_cannot_be_written_sends_nothing_and_says_so",
        ),
    ),
    Mutant(
        "a-proxy-may-see-every-order",
        "E1",
        CLIENT,
        "    check_goes_directly(made)\n",
        "",
        venue("test_a_client_with_a_proxy_is_refused_at_start"),
    ),
    Mutant(
        "nobody-looks-at-certificates",
        "E1",
        "execution/connection/wire.py",
        "    if verify is False:\n",
        "    if verify is True:\n",
        wire("test_an_unknown_certificate_is_refused_before_anything_is_sent"),
    ),
    Mutant(
        "an-answer-about-another-market-counts",
        "D4",
        BINANCE,
        '    if row.get("symbol") != market_id:\n',
        '    if row.get("symbol") is None:\n',
        venue("test_an_echo_that_does_not_fit_is_unknown_and_never_sent_again"),
    ),
    Mutant(
        "a-balance-that-cannot-be-read-is-nothing",
        "M45",
        BINANCE,
        "    if isinstance(answer, dict) and answer:\n        return answer\n",
        "    if isinstance(answer, dict) and answer:\n        return answer\n"
        '    if what == "the account":\n        return {"balances": [], "assets": []}\n',
        venue("test_a_question_that_fails_is_an_error_and_never_nothing"),
    ),
    Mutant(
        "a-minute-is-half-a-minute",
        "D10",
        BUDGET,
        "WINDOW_S = 61.0",
        "WINDOW_S = 30.0",
        budget(
            "test_what_is_used_is_free_again_after_a_minute",
            "test_no_minute_of_the_exchange_is_over_its_limit_and_nothing_is_sent_in_a_ban",
        ),
    ),
    Mutant(
        "a-ban-is-not-kept",
        "D10",
        BUDGET,
        "silent = max(self._ban_s(state), state.quiet_until_s - now)",
        "silent = state.quiet_until_s - now",
        budget("test_a_ban_outlasts_every_change_of_the_wall_clock"),
    ),
    Mutant(
        "a-budget-for-each-process",
        "D10",
        BUDGET,
        "os.pwrite(self._descriptor, data, 0)",
        "self._own = data",
        budget("test_processes_share_one_budget"),
    ),
    Mutant(
        "a-key-file-for-the-group",
        "E1",
        SECRETS,
        "if status.st_mode & 0o077:",
        "if status.st_mode & 0o007:",
        unit("secrets", "test_a_file_that_others_can_touch_is_refused_unread", part="execution"),
    ),
    Mutant(
        "a-secret-shows-in-containers",
        "E1",
        SECRETS,
        "        return repr(MASK)\n",
        "        return str.__repr__(self)\n",
        unit("secrets", "test_a_secret_shows_itself_nowhere", part="execution"),
    ),
    Mutant(
        "tracebacks-in-logs-are-not-cleaned",
        "E1",
        SECRETS,
        "record.exc_text, record.exc_info = self.clean(text), None",
        "record.exc_text, record.exc_info = text, None",
        unit("secrets", "test_no_logger_writes_a_secret_in_any_form", part="execution"),
    ),
    Mutant(
        "a-key-that-can-transfer",
        "E2",
        PERMISSIONS,
        '    "internal_transfer": "internal transfers",\n',
        "",
        unit(
            "permissions", "test_all_32_combinations_of_rights_are_judged_right", part="execution"
        ),
    ),
    Mutant(
        "the-oracle-forgets-a-fee",
        "C1",
        ACCOUNT,
        "self.wallet += realised - fee",
        "self.wallet += realised",
        unit("loopback/ledger", "test_a_position_averages_realises_and_turns", part="execution"),
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
)
