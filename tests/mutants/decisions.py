"""The bugs of a close and of a decision: bars, accounts, what was missed."""

from mutants.harness import Mutant
from mutants.nodes import close, integration, loop, outages, perils, unit

LEDGER = "execution/decisions/ledger.py"
PATH = "execution/decisions/path.py"
CLOSING = "execution/decisions/closing.py"

DECISIONS = (
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
        "what-no-fill-explains-is-not-asked-for",
        "D4",
        CLOSING,
        "            if not moved:\n                break",
        "            if True:\n                break",
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
        "a-refused-order-passed-the-gates",
        "D6",
        "execution/decisions/standing.py",
        "reason=_refusal_words(refusal) or Reason(",
        "reason=Reason(",
        loop("test_an_operator_is_told_which_limit_refused_an_order"),
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
        "a-repeated-close-is-a-fresh-bar",
        "D9",
        "execution/decisions/bar_window.py",
        "self.panel.ts[self.panel.tradable[:, self.panel.index(symbol)]]",
        "self.panel.ts",
        outages("test_a_symbol_whose_bars_stop_is_not_traded_on_its_last_one"),
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
        "a-restart-books-fills-again",
        "M44",
        "execution/decisions/standing.py",
        '        (int(accounts[0]["fills"]), int(accounts[0]["funding"])),',
        "        (0, 0),",
        loop("test_fills_that_come_twice_count_once"),
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
)
