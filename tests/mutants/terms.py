"""Bugs of instrument terms: kinds, fees, tiers, loans, order steps, and who stated what."""

from mutants.harness import Mutant
from mutants.nodes import integration, unit

INSTRUMENTS = "market/instruments.py"
CONFIG = "market/simulator/config.py"
TRADE = "market/simulator/trade.py"
SIMULATOR = "market/simulator/simulator.py"
FILLS = "functional/market/fills.py"
PANEL = "market/panel.py"
STATED = "market/terms.py"
BACKTEST = "evaluation/engine/config.py"
SELF_TESTS = "evaluation/robustness/self_tests.py"
REFERENCE = "evaluation/crosscheck/reference.py"
PLAN = "evaluation/crosscheck/nautilus_plan.py"


def sim(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of terms in the simulator."""
    return unit("simulator/terms", *names, part="market")


def engine(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of terms in backtests."""
    return unit("engine/terms", *names, part="evaluation")


TERMS = (
    Mutant(
        "spot-is-sold-short",
        "terms",
        CONFIG,
        'if kind == "spot":\n            return 0.0, 1.0',
        'if kind == "spot":\n            return -most, most',
        sim("test_spot_cannot_be_sold_short_and_the_refusal_says_what_can"),
    ),
    Mutant(
        "a-replay-sells-spot-short",
        "terms",
        "evaluation/engine/run.py",
        "(weights.abs() > widest) | (weights < bounds[:, 0]) | (weights > bounds[:, 1])",
        "(weights.abs() > widest) | (weights > bounds[:, 1])",
        engine("test_weights_short_of_spot_are_refused_and_cost_on_margin"),
    ),
    Mutant(
        "margin-without-a-rate-borrows-for-nothing",
        "terms",
        CONFIG,
        "0.0 if terms.borrow_rate is None else -most,",
        "-most,",
        sim("test_margin_needs_a_rate_for_what_it_borrows"),
    ),
    Mutant(
        "one-short-symbol-makes-all-levels-short",
        "terms",
        CONFIG,
        "return all(self.weight_bounds(symbol)[0] < 0.0 for symbol in self.instruments)",
        "return any(self.weight_bounds(symbol)[0] < 0.0 for symbol in self.instruments)",
        sim("test_default_levels_follow_the_kind"),
    ),
    Mutant(
        "longs-pay-for-coins-they-own",
        "terms",
        FILLS,
        "base_rate * (-quantity).clamp(min=0.0) * price",
        "base_rate * quantity.abs() * price",
        unit("ledger", "test_interest_is_paid_on_coins_sold_short_and_on_money_owed"),
    ),
    Mutant(
        "interest-of-a-year-every-bar",
        "terms",
        TRADE,
        "bar = interval.milliseconds / _YEAR_MS",
        "bar = 1.0",
        sim("test_a_short_on_margin_pays_for_the_coins_it_borrows"),
    ),
    Mutant(
        "interest-after-the-fill-is-owed",
        "terms",
        TRADE,
        "state.cash, state.quantity, bar.open, *steps.interest",
        "state.cash, state.quantity, state.price, *steps.interest",
        sim("test_a_short_on_margin_pays_for_the_coins_it_borrows"),
    ),
    Mutant(
        "only-the-first-tier-counts",
        "terms",
        FILLS,
        "for rate, amount in tiers[1:]:\n        margin",
        "for rate, amount in tiers[:1]:\n        margin",
        unit("ledger", "test_the_margin_of_each_part_of_the_notional_is_added"),
    ),
    Mutant(
        "a-position-survives-the-first-line",
        "terms",
        FILLS,
        "first = torch.where(quantity > 0.0, highest, lowest)",
        "first = torch.where(quantity > 0.0, lowest, highest)",
        unit("ledger", "test_a_tiered_position_is_lost_at_the_first_line_it_meets"),
    ),
    Mutant(
        "tiers-jump-at-their-bounds",
        "terms",
        TRADE,
        "amount += (tier.rate - rate) * tier.notional",
        "amount += 0.0 * tier.notional",
        sim("test_a_large_position_is_lost_earlier_by_the_tiers_of_its_margin"),
    ),
    Mutant(
        "every-symbol-pays-the-first-fee",
        "terms",
        SIMULATOR,
        "base = self._fees[symbol]",
        "base = self._fees[symbol * 0]",
        sim("test_each_symbol_has_its_own_fee_and_the_configuration_stands_before_it"),
    ),
    Mutant(
        "terms-stand-before-the-configuration",
        "terms",
        CONFIG,
        "terms = own.over(stored[symbol].terms) if symbol in stored else own",
        "terms = stored[symbol].terms.over(own) if symbol in stored else own",
        sim("test_filling_in_terms_twice_changes_nothing"),
    ),
    Mutant(
        "backtests-fill-seventeen-digits",
        "terms",
        BACKTEST,
        "return market.with_exact_filters().replace(",
        "return market.replace(",
        engine("test_a_backtest_uses_the_stored_order_steps_unless_told_otherwise"),
    ),
    Mutant(
        "the-clairvoyant-is-cut-to-lots",
        "terms",
        SELF_TESTS,
        "smooth.replace(filters=Filters(), symbol_filters={})",
        "smooth.replace(filters=None, symbol_filters={})",
        engine("test_the_clairvoyant_is_compared_without_order_steps"),
    ),
    Mutant(
        "a-default-passes-for-known",
        "terms",
        STATED,
        "return StatedTerm(default, DEFAULT)",
        "return StatedTerm(default, WRITTEN)",
        engine("test_terms_are_stated_with_their_sources_and_defaults"),
    ),
    Mutant(
        "changed-terms-pass-the-seal",
        "terms",
        INSTRUMENTS,
        "if document.get(_SEAL) != _seal(content):",
        "if document.get(_SEAL) is None:",
        unit("instruments", "test_a_changed_term_is_refused_and_left_as_it_is", part="market"),
    ),
    Mutant(
        "a-fetch-overrules-the-user",
        "terms",
        INSTRUMENTS,
        "Instrument(self.symbol, kept.over(terms), {**sources, **own})",
        "Instrument(self.symbol, terms.over(kept), {**sources, **own})",
        unit(
            "instruments",
            "test_what_the_user_gives_stands_before_what_an_exchange_says",
            part="market",
        ),
    ),
    Mutant(
        "an-inverse-contract-passes-for-linear",
        "terms",
        INSTRUMENTS,
        "if settle == quote:",
        "if settle:",
        unit("instruments", "test_the_kind_is_how_the_symbol_is_written", part="market"),
    ),
    Mutant(
        "delisted-symbols-trade-on",
        "terms",
        PANEL,
        "inside[:, column] &= ts < 1000 * terms.delisted.timestamp()",
        "inside[:, column] &= ts <= 1000 * terms.delisted.timestamp()",
        unit(
            "instruments",
            "test_bars_outside_of_listing_and_delisting_are_not_traded",
            part="market",
        ),
    ),
    Mutant(
        "the-data-hash-forgets-the-terms",
        "terms",
        PANEL,
        "if symbol in self.instruments:\n                terms",
        "if symbol in ():\n                terms",
        unit(
            "instruments",
            "test_a_panel_has_the_stored_terms_and_an_old_store_has_none",
            part="market",
        ),
    ),
    Mutant(
        "lots-are-counted-in-contracts",
        "terms",
        "market/fetch/terms.py",
        "float(np.round(lot * size, 16))",
        "lot",
        unit(
            "fetch/terms",
            "test_contracts_are_counted_in_coins_and_decimals_become_steps",
            part="market",
        ),
    ),
    Mutant(
        "reference-lends-money-for-nothing",
        "terms",
        REFERENCE,
        "yearly += -account.cash * self._quote_interest",
        "yearly += ZERO",
        integration(
            "three_ledgers", "test_streams_with_instrument_terms_equal_the_decimal_reference"
        ),
    ),
    Mutant(
        "nautilus-lends-coins-for-nothing",
        "terms",
        PLAN,
        "paid += coins * max(-held, _ZERO) * row.open + money * max(-cash, _ZERO)",
        "paid += money * max(-cash, _ZERO)",
        integration("nautilus_ledger", "test_nautilus_pays_the_interest_of_a_margin_account"),
    ),
)
