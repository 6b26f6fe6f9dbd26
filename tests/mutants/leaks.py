"""The bugs of the search for leaks in few rows, and of one account on plain numbers."""

from mutants.harness import Mutant
from mutants.nodes import integration, unit

FEATURES = "market/features/"
ROWS = f"{FEATURES}leak_rows.py"
SEARCH = f"{FEATURES}leak_search.py"
CONDITIONS = f"{FEATURES}leak_conditions.py"
NUMBERS = "core/graph_numbers.py"


def search(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of the search."""
    return unit("leak_search", *names, part="market/features")


def numbers(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of functions on plain numbers."""
    return unit("graph_numbers", *names, part="core")


LEAKS = (
    Mutant(
        "rounding-is-a-leak",
        "R13",
        f"{FEATURES}leaks.py",
        "growth * ROUNDING * size",
        "0.0 * size",
        unit(
            "leaks",
            "test_a_difference_in_the_last_bit_is_found_and_told_apart_as_rounding",
            part="market/features",
        ),
    ),
    Mutant(
        "rounding-beside-a-large-number",
        "R13",
        f"{FEATURES}leaks.py",
        "size = torch.minimum(torch.maximum(values.abs(), wanted.abs()), spread)",
        "size = torch.maximum(values.abs(), wanted.abs())",
        unit("leaks", "test_what_rounding_is_by_hand", part="market/features"),
    ),
    Mutant(
        "not-every-row-is-cut",
        "R13",
        ROWS,
        "for first in range(lookback - 1, rows - 1, cuts):",
        "for first in range(lookback - 1, rows - 1, 2 * cuts):",
        search("test_every_row_with_a_window_and_a_future_is_cut_once"),
    ),
    Mutant(
        "the-next-bar-is-not-changed",
        "R13",
        ROWS,
        "after = (torch.arange(len(bars))[:, None] > cuts)[..., None]",
        "after = (torch.arange(len(bars))[:, None] > cuts + 1)[..., None]",
        search("test_a_truth_about_the_next_bar_is_found_in_every_row"),
    ),
    Mutant(
        "pieces-are-not-compared-with-the-whole",
        "R13",
        ROWS,
        "self.result.apart[piece.first : piece.stop] |= large",
        "self.result.apart[piece.first : piece.stop] |= large & False",
        search("test_one_leaking_row_is_found_at_any_distance"),
    ),
    Mutant(
        "a-rise-keeps-the-shape-of-bars",
        "R13",
        ROWS,
        '_RISE = {"open": 2.0, "high": 1000.0, "low": 1.5, "close": 900.0}',
        "_RISE = dict.fromkeys(PRICES, 1000.0)",
        search("test_a_truth_about_the_next_bar_is_found_in_every_row"),
    ),
    Mutant(
        "empty-bars-stay-empty",
        "R13",
        ROWS,
        "columns[name] = column.nan_to_num().abs() * _OTHER * draw + 1.0",
        "columns[name] = column.nan_to_num().abs() * _OTHER * draw",
        search("test_a_truth_about_the_next_bar_is_found_in_every_row"),
    ),
    Mutant(
        "all-clocks-are-one",
        "R13",
        SEARCH,
        "return replace(bars, ts=bars.ts - bars.ts[0] + begin)",
        "return replace(bars, ts=bars.ts + 0 * begin)",
        search("test_the_histories_cover_years_hours_prices_and_lengths"),
    ),
    Mutant(
        "prices-have-one-size",
        "R13",
        SEARCH,
        "columns[name] = columns[name] * factor",
        "columns[name] = columns[name] * factor.clamp(0.5, 2.0)",
        search("test_the_histories_cover_years_hours_prices_and_lengths"),
    ),
    Mutant(
        "a-condition-that-some-leaks-do-not-meet",
        "R13",
        CONDITIONS,
        "if (rows.volume[rows.leaks] == 0.0).all():",
        "if True:",
        search("test_conditions_are_named_by_hand"),
    ),
    # --- one account on plain numbers
    Mutant(
        "a-quotient-by-zero-is-zero",
        "M37",
        NUMBERS,
        "    if b == 0.0:\n",
        "    if b == 0.0:\n        return 0.0\n",
        numbers("test_an_operation_on_two_numbers_gives_the_bits_of_the_tensors"),
    ),
    Mutant(
        "a-maximum-loses-nan",
        "M37",
        NUMBERS,
        "return b if a < b or b != b else a",
        "return b if a < b else a",
        numbers("test_an_operation_on_two_numbers_gives_the_bits_of_the_tensors"),
    ),
    Mutant(
        "equal-numbers-are-one-number",
        "M37",
        NUMBERS,
        "key = (function, *map(repr, args))",
        "key = (function, *args)",
        numbers("test_equal_numbers_of_other_types_are_not_taken_for_one_another"),
    ),
    Mutant(
        "float32-is-not-rounded",
        "M37",
        NUMBERS,
        "return ctypes.c_float(value).value",
        "return value",
        numbers("test_an_operation_on_one_number_gives_the_bits_of_the_tensor"),
    ),
    Mutant(
        "a-restart-moves-running-accounts",
        "M37",
        "market/gymnasium/vector.py",
        "torch.where(before.done, new, old) for new, old in pairs",
        "torch.where(before.done | True, new, old) for new, old in pairs",
        integration(
            "gymnasium_market", "test_restarting_leaves_the_accounts_that_are_running_alone"
        ),
    ),
    Mutant(
        "a-new-episode-shows-the-old-one",
        "M37",
        "market/gymnasium/stable_baselines.py",
        "observation[ended] = fresh[ended]",
        "observation[~ended] = fresh[~ended]",
        integration(
            "gymnasium_market",
            "test_an_account_of_stable_baselines3_is_one_of_the_vector_environment",
        ),
    ),
)
