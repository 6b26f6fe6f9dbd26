"""The bugs of frozen bars, delistings, unknown funding and mark prices."""

from mutants.harness import Mutant
from mutants.nodes import unit

FILLS = "functional/market/fills.py"
TRADE = "market/simulator/trade.py"
SIMULATOR = "market/simulator/simulator.py"
TAPE = "market/simulator/tape.py"
EPISODES = "market/simulator/episodes.py"
FUNDING = "market/simulator/funding.py"
SETTLEMENTS = "market/settlements.py"
PANEL = "market/panel.py"
REFERENCE = "evaluation/crosscheck/reference.py"
RESULT = "evaluation/engine/result.py"


def dead(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of dead bars."""
    return unit("simulator/dead_bars", *names, part="market")


def rates(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of settlements."""
    return unit("settlements", *names, part="market")


_LOSS = dead("test_a_position_is_closed_at_the_last_traded_price_less_five_percent")
_SAME = dead("test_the_reference_closes_a_delisted_position_at_the_same_price")

DEAD_BARS = (
    Mutant(
        "frozen-bars-fill-orders",
        "dead bars",
        TAPE,
        "else panel.tradable & (panel.volume > 0.0)",
        "else panel.tradable",
        dead("test_no_order_fills_on_a_bar_without_volume_though_impact_is_off"),
    ),
    Mutant(
        "reference-fills-on-frozen-bars",
        "dead bars",
        REFERENCE,
        "shut = not bar.tradable or frozen or",
        "shut = not bar.tradable or",
        (
            "tests/integration/test_three_ledgers.py"
            "::test_fifty_streams_equal_the_decimal_reference_at_every_bar",
        ),
    ),
    Mutant(
        "a-delisting-costs-nothing",
        "dead bars",
        FILLS,
        "return price * (1.0 - quantity.sign() * lost)",
        "return price * torch.ones_like(lost)",
        _LOSS,
    ),
    Mutant(
        "a-delisted-short-gains",
        "dead bars",
        FILLS,
        "return price * (1.0 - quantity.sign() * lost)",
        "return price * (1.0 - lost)",
        _LOSS,
    ),
    Mutant(
        "a-delisting-loses-more-than-everything",
        "dead bars",
        FILLS,
        ".clamp(min=loss).clamp(max=1.0)",
        ".clamp(min=loss)",
        dead("test_spread_and_impact_of_the_last_traded_bars_are_paid_where_they_are_more"),
    ),
    Mutant(
        "a-delisting-at-the-frozen-price",
        "dead bars",
        TRADE,
        "            state.price, quantity, bar.notional, terms, loss=rules.delisting_loss\n",
        "            bar.open, quantity, bar.notional, terms, loss=rules.delisting_loss\n",
        _LOSS,
    ),
    Mutant(
        "a-delisting-pays-a-fee",
        "dead bars",
        TRADE,
        "        exit_fee = torch.where(settled, 0.0, exit_fee)\n",
        "",
        _SAME,
    ),
    Mutant(
        "a-delisting-leaves-the-episode-open",
        "dead bars",
        SIMULATOR,
        "            ended = ended | bar.delisted\n",
        "            pass\n",
        dead("test_a_flat_account_loses_nothing_and_its_episode_ends_as_well"),
    ),
    Mutant(
        "a-short-silence-is-a-delisting",
        "dead bars",
        TAPE,
        "(silent >= least)",
        "(silent > 0)",
        dead("test_a_symbol_ends_after_its_last_traded_bar_if_the_data_go_on_for_long_enough"),
    ),
    Mutant(
        "the-reference-loses-nothing",
        "dead bars",
        REFERENCE,
        "lost = min(max(slip, self._delisting_loss), ONE)",
        "lost = ZERO",
        _SAME,
    ),
    Mutant(
        "a-delisting-is-no-trade",
        "dead bars",
        RESULT,
        'return np.asarray(flags["liquidated"] | (flags["delisted"] & held))',
        'return np.asarray(flags["liquidated"] | (flags["delisted"] & ~held & held))',
        dead("test_a_backtest_books_the_same_loss_as_a_trade_and_goes_on_in_cash"),
    ),
    Mutant(
        "episodes-start-where-nothing-trades",
        "dead bars",
        EPISODES,
        "where = (fits & alive).nonzero()",
        "where = (fits | alive & fits).nonzero()",
        dead("test_a_dead_symbol_beside_a_living_one_takes_no_start"),
    ),
    Mutant(
        "starts-count-the-bar-that-decides",
        "dead bars",
        EPISODES,
        "alive[:-length] = filled[length:] > filled[:-length]",
        "alive[1:-length] = filled[length + 1 :] > filled[: -length - 1]",
        dead("test_episodes_start_only_where_a_bar_of_theirs_can_be_traded"),
    ),
    # --- funding
    Mutant(
        "unknown-funding-is-free",
        "funding",
        FUNDING,
        "poor = [each for each in funding_coverage(panel, rows) if each.share < LEAST_COVERAGE]",
        "poor = [each for each in funding_coverage(panel, rows) if each.share < 0.0]",
        rates("test_below_99_percent_is_refused_and_99_percent_is_not"),
    ),
    Mutant(
        "a-perpetual-without-rates-has-no-settlements",
        "funding",
        SETTLEMENTS,
        "if funding is None and not is_perpetual(bars.symbol):",
        "if funding is None:",
        rates("test_without_any_rate_all_settlements_of_eight_hours_are_missing"),
    ),
    Mutant(
        "rates-that-end-early-are-complete",
        "funding",
        SETTLEMENTS,
        "np.concatenate((before, inside, after))",
        "np.concatenate((before, inside))",
        rates("test_rates_that_begin_late_and_end_early_leave_both_ends_missing"),
    ),
    Mutant(
        "sparse-rates-are-a-slow-schedule",
        "funding",
        SETTLEMENTS,
        "_MINUTE_MS, _MINUTE_MS, SETTLEMENT_MS)",
        "_MINUTE_MS, _MINUTE_MS, 100 * SETTLEMENT_MS)",
        rates("test_rates_are_never_expected_less_often_than_every_eight_hours"),
    ),
    Mutant(
        "the-assumed-rate-is-not-paid",
        "funding",
        TAPE,
        "    return panel.funding + config.funding_missing * panel.rates_missing",
        "    return panel.funding + 0.0 * config.funding_missing * panel.rates_missing",
        rates("test_an_assumed_rate_is_paid_where_none_is_known"),
    ),
    Mutant(
        "missing-rates-are-not-in-the-digest",
        "funding",
        PANEL,
        "if self.rates_missing is not None and not self.rates_missing.any():",
        "if self.rates_missing is not None:",
        rates("test_what_is_missing_is_part_of_the_digest_and_complete_rates_are_not"),
    ),
    # --- mark prices
    Mutant(
        "liquidation-by-the-traded-extreme",
        "marks",
        TAPE,
        "torch.where(marks[name].isnan(), own[name], marks[name])",
        "torch.where(marks[name].isnan(), own[name], own[name])",
        dead("test_a_false_wick_does_not_liquidate_where_the_mark_price_did_not_follow"),
    ),
    Mutant(
        "an-unknown-mark-liquidates-nobody",
        "marks",
        TAPE,
        "torch.where(marks[name].isnan(), own[name], marks[name])",
        "torch.where(marks[name].isnan(), marks[name], marks[name])",
        dead("test_a_false_wick_does_not_liquidate_where_the_mark_price_did_not_follow"),
    ),
    Mutant(
        "a-gap-of-the-mark-closes-at-the-better-open",
        "marks",
        TRADE,
        "opened = bar.open if bar.mark_open is None else _worse(long, bar.open, bar.mark_open)",
        "opened = bar.open",
        dead("test_a_gap_of_the_mark_price_closes_at_the_worse_of_both_opens"),
    ),
)
