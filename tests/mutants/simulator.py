"""The bugs of the simulator, of its ledger and of the two ledgers that judge it."""

from mutants.harness import Mutant
from mutants.nodes import integration, law, unit

LEDGER = "functional/market/fills.py"
GATE = "functional/risk_gate.py"
TRADE = "market/simulator/trade.py"
ACCOUNT = "market/simulator/account.py"
SIMULATOR = "market/simulator/simulator.py"
TAPE = "market/simulator/tape.py"
EPISODES = "market/simulator/episodes.py"
OBSERVATION = "market/simulator/observation.py"
INFO = "market/simulator/info.py"
LOOP = "evaluation/engine/loop.py"
REFERENCE = "evaluation/crosscheck/reference.py"
REFERENCE_ACCOUNT = "evaluation/crosscheck/reference_account.py"
NAUTILUS = "evaluation/crosscheck/nautilus_engine.py"


def sim(*names: str, part: str = "") -> tuple[str, ...]:
    """Return node ids of unit tests of the simulator."""
    return unit(f"simulator/{part or 'simulator'}", *names, part="market")


SIMULATOR_RULES = (
    # --- simulator: the order of events
    Mutant(
        "fill-at-the-deciding-close",
        "M37",
        TRADE,
        "price = fills.fill_price(bar.open, wanted, bar.notional, terms)",
        "price = fills.fill_price(state.price, wanted, bar.notional, terms)",
        sim("test_an_order_fills_at_the_next_open_and_never_at_the_close_that_decided_it"),
    ),
    Mutant(
        "fill-in-the-bar-that-decided",
        "M28 M37",
        SIMULATOR,
        "bar = self._tape.bar(row, state.symbol)",
        "bar = self._tape.bar(state.row, state.symbol)",
        sim("test_an_order_fills_at_the_next_open_and_never_at_the_close_that_decided_it"),
    ),
    Mutant(
        "weight-taken-as-a-change",
        "orders",
        LEDGER,
        "gap = weight * equity - held",
        "gap = weight * equity",
        sim("test_a_repeated_weight_is_the_weight_after_every_fill"),
    ),
    Mutant(
        "holding-trades",
        "orders",
        TRADE,
        "torch.where(holds | gapped, 0.0, wanted)",
        "torch.where(gapped, 0.0, wanted)",
        sim("test_the_held_weight_itself_is_no_order"),
    ),
    Mutant(
        "asking-for-the-held-weight-is-to-hold",
        "orders",
        TRADE,
        "holds = (allowed == held) & (reason != int(Reason.NONE))",
        "holds = allowed == held",
        sim("test_a_repeated_weight_is_restored_after_the_price_moved"),
    ),
    Mutant(
        "funding-is-received-by-longs",
        "ledger",
        TRADE,
        "cash = state.cash - funding",
        "cash = state.cash + funding",
        sim("test_a_short_receives_a_positive_rate"),
    ),
    Mutant(
        "funding-on-the-position-after-the-fill",
        "ledger",
        TRADE,
        "    after = cash + quantity * bar.open\n",
        "    cash = cash + funding\n    funding = quantity * bar.open * bar.rate\n"
        "    cash = cash - funding\n    after = cash + quantity * bar.open\n",
        sim("test_funding_is_paid_at_the_open_on_what_was_held_before_the_fill"),
    ),
    Mutant(
        "marked-at-the-open",
        "TorchTrade-278",
        TRADE,
        "equity=cash + left * bar.close,",
        "equity=cash + left * bar.open,",
        sim("test_an_order_fills_at_the_next_open_and_never_at_the_close_that_decided_it"),
    ),
    # --- sizes, prices, costs
    Mutant(
        "fee-not-reserved",
        "M35",
        LEDGER,
        "rate = slip + terms.fee * (1.0 + side * slip)",
        "rate = slip",
        sim("test_weight_one_with_every_cost_leaves_no_debt")
        + unit("ledger", "test_a_fee_is_reserved_so_that_weight_one_is_affordable"),
    ),
    Mutant(
        "tick-not-reserved",
        "M35",
        LEDGER,
        "slip = _slippage(gap.abs(), notional, terms) + terms.tick / price",
        "slip = _slippage(gap.abs(), notional, terms)",
        unit("ledger", "test_a_tick_is_reserved_as_a_share_of_the_price"),
    ),
    Mutant(
        "spread-in-our-favour",
        "orders",
        LEDGER,
        "paid = price * (1.0 + side * _slippage(",
        "paid = price * (1.0 - side * _slippage(",
        unit("ledger", "test_buying_costs_more_and_selling_gives_less"),
    ),
    Mutant(
        "ticks-in-our-favour",
        "ledger",
        LEDGER,
        "torch.where(side > 0.0, -cut_down(-paid, terms.tick), cut_down(paid, terms.tick))",
        "torch.where(side < 0.0, -cut_down(-paid, terms.tick), cut_down(paid, terms.tick))",
        sim("test_a_price_is_moved_to_the_next_tick_against_us"),
    ),
    Mutant(
        "lots-rounded-up",
        "M36",
        LEDGER,
        "torch.where(near, whole, steps.floor()) * size",
        "steps.ceil() * size",
        unit("ledger", "test_lots_cut_towards_zero"),
    ),
    Mutant(
        "lots-lose-one-to-rounding",
        "M33",
        LEDGER,
        "torch.where(near, whole, steps.floor()) * size",
        "steps.floor() * size",
        unit("ledger", "test_cut_down_gives_the_multiple_below"),
    ),
    Mutant(
        "dust-beside-the-lot-grid",
        "M33 M36",
        TRADE,
        "_on_grid(state.quantity + order, steps.lot)",
        "state.quantity + order",
        sim("test_positions_stay_on_the_lot_grid_to_the_last_bit"),
    ),
    Mutant(
        "lots-in-single-precision",
        "TorchTrade-293",
        TRADE,
        "like.new_tensor(column) for column in columns",
        "torch.tensor(column).to(like) for column in columns",
        sim("test_a_lot_has_its_double_precision"),
    ),
    Mutant(
        "least-notional-ignored",
        "rules",
        TRADE,
        "sent = ~closed & (wanted.abs() * price >= steps.min_notional)",
        "sent = ~closed",
        sim("test_an_order_below_the_least_notional_is_not_sent"),
    ),
    Mutant(
        "small-closings-not-traded",
        "rules",
        LEDGER,
        "torch.where(weight == 0.0, -quantity, torch.where(small, 0.0, order))",
        "torch.where(small, 0.0, torch.where(weight == 0.0, -quantity, order))",
        sim("test_a_small_change_of_weight_is_not_traded_unless_it_closes"),
    ),
    Mutant(
        "costs-reverse-the-order",
        "orders",
        LEDGER,
        "gap.abs() / torch.where(share > 0.0, share, torch.inf) / price",
        "gap.abs() / share / price",
        law("ledger", "test_an_order_never_leads_away_from_its_target"),
    ),
    Mutant(
        "costs-turn-the-position",
        "M36",
        LEDGER,
        "torch.where(side * weight < 0.0, torch.minimum(wanted, quantity.abs()), wanted)",
        "wanted",
        unit("ledger", "test_costs_never_turn_or_reverse_what_they_make_dear"),
    ),
    Mutant(
        "impact-of-the-bar-that-fills",
        "R12",
        TAPE,
        "notional[1:] = _trailing_notional(panel, window=config.costs.impact_window)[:-1]",
        "notional[:] = _trailing_notional(panel, window=config.costs.impact_window)",
        sim("test_the_mean_notional_is_of_closed_bars_in_the_window"),
    ),
    Mutant(
        "impact-unknown-is-none",
        "rules",
        TRADE,
        "((state.impact > 0.0) & (bar.notional <= 0.0)) | (price <= 0.0)",
        "price <= 0.0",
        sim("test_no_order_goes_out_where_the_impact_cannot_be_known"),
    ),
    Mutant(
        "close-and-reopen-on-a-resize",
        "TorchTrade-274",
        TRADE,
        "fee = state.fee * order.abs() * price",
        "fee = state.fee * torch.where(order == 0.0, 0.0, state.quantity.abs()"
        " + (state.quantity + order).abs()) * price",
        sim("test_a_partial_resize_pays_for_the_difference_and_keeps_the_entry"),
    ),
    Mutant(
        "entry-moves-on-reducing",
        "TorchTrade-274",
        LEDGER,
        "torch.where(grows, mean, torch.where(opens, price, entry))",
        "torch.where(grows, mean, price)",
        sim("test_a_partial_resize_pays_for_the_difference_and_keeps_the_entry"),
    ),
    # --- margin
    Mutant(
        "liquidation-looks-at-the-close",
        "M28",
        TRADE,
        "worst = torch.where(quantity > 0.0, bar.low, bar.high)",
        "worst = bar.close",
        sim("test_inside_a_bar_a_long_is_taken_away_where_its_margin_ends", part="limits"),
    ),
    Mutant(
        "liquidation-at-the-better-extreme",
        "M28",
        TRADE,
        "worst = torch.where(quantity > 0.0, bar.low, bar.high)",
        "worst = torch.where(quantity > 0.0, bar.high, bar.low)",
        sim("test_inside_a_bar_a_short_is_taken_away_by_the_high", part="limits"),
    ),
    Mutant(
        "gap-liquidated-at-the-margin-price",
        "ledger",
        TRADE,
        "exit_price = torch.where(gapped, bar.open, lost)",
        "exit_price = torch.where(gapped, fills.liquidation_price(cash, quantity,"
        " maintenance=rules.maintenance), lost)",
        sim(
            "test_a_gap_through_the_margin_is_liquidated_at_the_open_without_an_order",
            part="limits",
        ),
    ),
    Mutant(
        "liquidated-and-traded-in-one-bar",
        "ledger",
        TRADE,
        "torch.where(holds | gapped, 0.0, wanted)",
        "torch.where(holds, 0.0, wanted)",
        sim(
            "test_a_gap_through_the_margin_is_liquidated_at_the_open_without_an_order",
            part="limits",
        ),
    ),
    Mutant(
        "liquidation-is-free",
        "ledger",
        TRADE,
        "exit_fee = (state.fee + rules.liquidation_fee) * quantity.abs() * exit_price",
        "exit_fee = 0.0 * exit_price",
        sim("test_inside_a_bar_a_short_is_taken_away_by_the_high", part="limits"),
    ),
    Mutant(
        "equity-clamped-at-nothing",
        "M29",
        TRADE,
        "equity=cash + left * bar.close,",
        "equity=(cash + left * bar.close).clamp(min=0.0),",
        sim("test_equity_below_zero_is_shown_as_it_is", part="limits"),
    ),
    Mutant(
        "liquidation-leaves-the-position",
        "M32",
        TRADE,
        "left = torch.where(gone, 0.0, quantity)",
        "left = quantity",
        sim("test_a_liquidation_does_not_end_the_episode_and_the_account_trades_on", part="limits"),
    ),
    Mutant(
        "closing-a-position-does-nothing",
        "M31",
        LEDGER,
        "torch.where(weight == 0.0, -quantity, ",
        "torch.where(weight == 0.0, 0.0, ",
        sim("test_a_position_that_was_there_before_can_be_closed"),
    ),
    # --- gate and windows
    Mutant(
        "day-never-starts",
        "D6",
        TRADE,
        "day_start = torch.where(bar.new_day, state.equity, state.day_start_equity)",
        "day_start = state.day_start_equity",
        sim("test_a_daily_loss_allows_only_reducing_until_midnight", part="limits"),
    ),
    Mutant(
        "turnover-never-forgotten",
        "D6",
        TRADE,
        "day_turnover = torch.where(bar.new_day, 0.0, state.turnover)",
        "day_turnover = state.turnover",
        sim("test_the_day_turns_for_the_decision_that_fills_at_midnight", part="limits"),
    ),
    Mutant(
        "gate-sees-yesterday",
        "D6",
        TRADE,
        "account = Account(held, state.equity, state.peak_equity, day_start, day_turnover)",
        "account = Account(held, state.equity, state.peak_equity, state.day_start_equity,"
        " state.turnover)",
        sim("test_the_day_turns_for_the_decision_that_fills_at_midnight", part="limits"),
    ),
    Mutant(
        "peak-never-rises",
        "D6",
        ACCOUNT,
        "peak_equity=torch.maximum(state.peak_equity, fill.equity),",
        "peak_equity=state.peak_equity,",
        sim("test_a_drawdown_allows_only_reducing_and_counts_from_the_highest_mark", part="limits"),
    ),
    Mutant(
        "window-at-the-decision",
        "rules",
        TAPE,
        "~closed_times(panel.ts, config.no_trade)",
        "~closed_times(panel.ts - panel.interval.milliseconds, config.no_trade)",
        sim("test_a_window_counts_at_the_fill_and_not_at_the_decision", part="limits"),
    ),
    Mutant(
        "window-stops-at-midnight",
        "rules",
        TAPE,
        "else after | before",
        "else after & before",
        sim("test_a_window_may_pass_midnight", part="limits"),
    ),
    Mutant(
        "missing-bars-can-be-traded",
        "rules",
        TAPE,
        "open_ = panel.tradable & ",
        "open_ = panel.listed & ",
        sim("test_without_a_bar_nothing_is_traded_and_nothing_changes_but_the_mark", part="limits"),
    ),
    Mutant(
        "failed-order-moves-the-position",
        "M30",
        TRADE,
        "    quantity = torch.where(\n"
        "        order == 0.0, state.quantity, _on_grid(state.quantity + order, steps.lot)\n"
        "    )\n",
        "    quantity = state.quantity + wanted\n",
        sim("test_without_a_bar_nothing_is_traded_and_nothing_changes_but_the_mark", part="limits"),
    ),
    # --- reward and episodes
    Mutant(
        "reward-is-weight-times-log-return",
        "X15",
        SIMULATOR,
        "raw = fills.log_growth(moved.equity, state.equity, floor=self._floor)",
        "raw = fill.weight_after * (moved.price / state.price).log()",
        sim("test_the_reward_of_a_step_holds_its_own_costs"),
    ),
    Mutant(
        "ruin-is-free",
        "X15",
        SIMULATOR,
        "raw = torch.where(moved.equity <= self._floor, raw - self.config.ruin_penalty, raw)",
        "raw = torch.where(moved.equity <= self._floor, 0.0, raw)",
        sim("test_the_penalty_of_ruin_is_added_once_and_exactly", part="limits"),
    ),
    Mutant(
        "ruined-account-trades-on",
        "X15",
        ACCOUNT,
        "hit = state.equity <= levels.equity\n",
        "hit = state.equity < levels.equity\n",
        sim("test_the_floor_ends_an_episode_at_equality", part="limits"),
    ),
    Mutant(
        "reward-before-costs",
        "X15",
        SIMULATOR,
        "fills.log_growth(moved.equity, state.equity,",
        "fills.log_growth(moved.equity + fill.fee + fill.slippage, state.equity,",
        sim("test_the_reward_of_a_step_holds_its_own_costs"),
    ),
    Mutant(
        "reward-since-the-peak",
        "X15",
        SIMULATOR,
        "fills.log_growth(moved.equity, state.equity,",
        "fills.log_growth(moved.equity, state.peak_equity,",
        law("simulator_laws", "test_the_sum_of_rewards_is_the_log_of_growth"),
    ),
    Mutant(
        "truncation-as-termination",
        "M18",
        SIMULATOR,
        "truncated = (moved.row >= moved.last_row) & ~terminated",
        "terminated = terminated | (moved.row >= moved.last_row)\n        truncated = ~terminated"
        " & terminated",
        sim("test_an_episode_is_truncated_at_its_last_row_and_never_before", part="episodes"),
    ),
    Mutant(
        "episode-one-bar-short",
        "M21",
        SIMULATOR,
        "truncated = (moved.row >= moved.last_row) & ~terminated",
        "truncated = (moved.row >= moved.last_row - 1) & ~terminated",
        sim("test_an_episode_is_truncated_at_its_last_row_and_never_before", part="episodes"),
    ),
    Mutant(
        "autoreset-in-the-ending-step",
        "M18",
        SIMULATOR,
        "over = state.done\n",
        "over = moved.done\n",
        sim(
            "test_the_ending_step_shows_the_old_episode_and_the_next_one_a_new_start",
            part="episodes",
        ),
    ),
    Mutant(
        "reset-does-not-rewind",
        "TorchTrade-278",
        SIMULATOR,
        "new = new._replace(bad_actions=state.bad_actions + bad)",
        "new = new._replace(bad_actions=state.bad_actions + bad, turnover=moved.turnover)",
        sim("test_the_step_after_an_end_starts_over_and_counts_for_nothing", part="episodes"),
    ),
    Mutant(
        "starting-rows-are-learned-from",
        "episodes",
        INFO,
        "if config.no_trade.drop_samples else over",
        "if config.no_trade.drop_samples else over & ~over",
        sim("test_the_step_after_an_end_starts_over_and_counts_for_nothing", part="episodes"),
    ),
    Mutant(
        "bad-actions-not-counted",
        "actions",
        SIMULATOR,
        "new = new._replace(bad_actions=state.bad_actions + bad)",
        "new = new._replace(bad_actions=state.bad_actions)",
        sim("test_a_level_that_is_no_offer_keeps_the_position_and_is_counted", part="batch"),
    ),
    Mutant(
        "starts-crowd-at-the-beginning",
        "episodes",
        EPISODES,
        "index = (uniform * count).long()",
        "index = (uniform * uniform * count).long()",
        sim("test_starts_are_uniform_over_all_pairs_of_symbol_and_row", part="episodes"),
    ),
    Mutant(
        "costs-drawn-every-bar",
        "rules",
        SIMULATOR,
        "new = new._replace(bad_actions=state.bad_actions + bad)",
        "new = new._replace(bad_actions=state.bad_actions + bad, fee=fresh.fee)",
        sim("test_drawn_costs_fill_their_ranges_and_stay_for_the_episode", part="episodes"),
    ),
    # --- what is seen
    Mutant(
        "next-row-shown",
        "M40 R12",
        OBSERVATION,
        "self._rows[state.symbol * self._length + state.shown_row]",
        "self._rows[state.symbol * self._length + state.shown_row + 1]",
        sim("test_what_comes_later_changes_nothing_before", part="batch"),
    ),
    Mutant(
        "feed-goes-back",
        "D11",
        OBSERVATION,
        "row = torch.maximum(row, before.shown_row)",
        "row = torch.maximum(row, torch.zeros_like(row))",
        sim(
            "test_a_delayed_row_is_one_to_three_bars_old_and_never_older_than_the_last_shown",
            part="episodes",
        ),
    ),
    Mutant(
        "dropped-bar-is-shown",
        "rules",
        OBSERVATION,
        "torch.where(dropped[:, None], 0.0, self._market(state))",
        "self._market(state)",
        sim("test_a_dropped_row_is_zero_and_the_feed_recovers", part="episodes"),
    ),
    # --- ties and rounding
    Mutant(
        "rounding-is-traded",
        "orders",
        LEDGER,
        " | (gap.abs() <= dust * held.abs())",
        "",
        sim("test_asking_for_the_held_weight_trades_no_rounding", part="ties"),
    ),
    Mutant(
        "blocked-order-uses-up-turnover",
        "M30",
        TRADE,
        "torch.where(order == 0.0, 0.0, order.abs() * bar.open / equity)",
        "torch.where(wanted == 0.0, 0.0, wanted.abs() * bar.open / equity)",
        sim("test_an_order_that_is_not_sent_uses_no_turnover", part="ties"),
    ),
    Mutant(
        "stop-missed-by-rounding",
        "stops",
        ACCOUNT,
        "(state.equity <= least + rounding)",
        "(state.equity <= least)",
        sim("test_a_fall_by_exactly_the_stop_ends_an_episode_at_every_price", part="ties"),
    ),
    Mutant(
        "backtest-stops-by-its-own-rule",
        "stops",
        LOOP,
        "return stop_hit(state, StopLevels(self.stop_equity, self.stop_share))",
        "share = self.stop_equity * 0.0 if self.stop_share is None else self.stop_share\n"
        "        return (state.equity <= self.stop_equity) | (\n"
        "            state.equity / state.peak_equity <= share\n        )",
        unit(
            "engine/stops",
            "test_a_stop_ends_simulator_and_backtest_at_the_same_bar_with_the_same_equity",
            "test_the_transition_of_an_account_stands_in_one_file",
            part="evaluation",
        ),
    ),
    Mutant(
        "loss-at-the-limit-rounded-away",
        "gate",
        GATE,
        "(known - equity.double() < limit * known)",
        "(1.0 - equity / known.to(equity.dtype) < limit)",
        sim("test_a_fall_by_exactly_the_limit_trips_it_whatever_rounding_makes_of_it", part="ties"),
    ),
    # --- the reference in decimals
    Mutant(
        "reference-fills-at-the-close",
        "M37",
        REFERENCE,
        "price = bar.open * (1 + slip if buy else 1 - slip)",
        "price = bar.close * (1 + slip if buy else 1 - slip)",
        unit(
            "crosscheck/reference",
            "test_an_order_is_decided_before_the_bar_and_fills_at_its_open",
            part="evaluation",
        ),
    ),
    Mutant(
        "reference-fee-not-reserved",
        "M35",
        REFERENCE,
        "rate = slip + self._fee * (1 + side * slip)",
        "rate = slip",
        unit(
            "crosscheck/reference", "test_spread_and_fee_are_reserved_and_paid", part="evaluation"
        ),
    ),
    Mutant(
        "reference-sells-at-the-ask",
        "ledger",
        REFERENCE,
        "price = bar.open * (1 + slip if buy else 1 - slip)",
        "price = bar.open * (1 + slip)",
        unit(
            "crosscheck/reference",
            "test_a_sale_pays_spread_and_fee_the_other_way_round",
            part="evaluation",
        ),
    ),
    Mutant(
        "reference-funding-after-the-order",
        "ledger",
        REFERENCE,
        "funding = account.quantity * bar.open * bar.funding_rate if",
        "funding = weight * account.equity * bar.funding_rate if",
        unit(
            "crosscheck/reference",
            "test_funding_is_due_on_the_position_before_the_fill",
            part="evaluation",
        ),
    ),
    Mutant(
        "reference-liquidates-at-the-extreme",
        "M28",
        REFERENCE,
        "return self._liquidate(min(price, bar.open))",
        "return self._liquidate(bar.low)",
        unit(
            "crosscheck/reference",
            "test_a_long_is_liquidated_inside_the_bar_where_its_margin_ends",
            part="evaluation",
        ),
    ),
    Mutant(
        "reference-hold-trades",
        "orders",
        REFERENCE,
        "holds = allowed == held and reason is not Reason.NONE",
        "holds = False",
        unit(
            "crosscheck/reference",
            "test_a_weight_that_is_no_number_keeps_the_position",
            part="evaluation",
        ),
    ),
    Mutant(
        "identity-forgets-the-funding",
        "ledger",
        REFERENCE_ACCOUNT,
        "paid = self.fees + self.funding",
        "paid = self.fees",
        unit(
            "crosscheck/reference",
            "test_longs_pay_positive_rates_and_shorts_receive_them",
            part="evaluation",
        ),
    ),
    # --- the ledger of NautilusTrader
    Mutant(
        "nautilus-receives-what-it-owes",
        "ledger",
        NAUTILUS,
        "self.exchange.adjust_account(_money(-paid))",
        "self.exchange.adjust_account(_money(paid))",
        integration("nautilus_ledger", "test_a_row_without_a_bar_pays_funding_and_fills_nothing"),
    ),
    Mutant(
        "nautilus-trades-for-free",
        "M41",
        NAUTILUS,
        "taker_fee=plan.fee",
        "taker_fee=Decimal(0)",
        integration("nautilus_ledger", "test_one_order_worked_by_hand"),
    ),
)
