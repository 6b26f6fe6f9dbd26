"""The bugs of the search for leaks in few rows."""

from mutants.harness import Mutant
from mutants.nodes import unit

FEATURES = "market/features/"
ROWS = f"{FEATURES}leak_rows.py"
SEARCH = f"{FEATURES}leak_search.py"
CONDITIONS = f"{FEATURES}leak_conditions.py"

CLOCKS = "test_the_clocks_meet_every_hour_of_a_leap_year_whatever_the_lookback"
SIZES = "test_the_histories_cover_sizes_and_lengths"


def search(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of the search."""
    return unit("leak_search", *names, part="market/features")


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
        search("test_what_is_read_from_beyond_a_piece_differs_in_the_whole"),
    ),
    Mutant(
        "a-rise-keeps-the-shape-of-bars",
        "R13",
        ROWS,
        '_RISE = {"open": 2.0, "high": 1000.0, "low": 1.0, "close": 900.0}',
        "_RISE = dict.fromkeys(PRICES, 1000.0)",
        search("test_a_truth_about_the_next_bar_is_found_in_every_row"),
    ),
    Mutant(
        "empty-bars-stay-empty",
        "R13",
        ROWS,
        "columns[name] = column.nan_to_num().abs() * _OTHER * size + 1.0",
        "columns[name] = column.nan_to_num().abs() * _OTHER * size",
        search("test_a_truth_about_the_next_bar_is_found_in_every_row"),
    ),
    Mutant(
        "all-clocks-are-one",
        "R13",
        SEARCH,
        "return replace(bars, ts=bars.ts - bars.ts[0] + begin)",
        "return replace(bars, ts=bars.ts + 0 * begin)",
        search(CLOCKS),
    ),
    Mutant(
        "a-clock-begins-with-the-lookback",
        "R13",
        SEARCH,
        "begin -= (len(bars) - 2 * CUTS - 1) * length",
        "begin -= 0 * length",
        search(CLOCKS),
    ),
    Mutant(
        "the-clocks-of-a-year-are-one",
        "R13",
        SEARCH,
        "part = (index + _THIRD * (index // len(YEARS))) % len(YEARS)",
        "part = index % len(YEARS)",
        search(CLOCKS),
    ),
    Mutant(
        "prices-have-one-size",
        "R13",
        SEARCH,
        'columns[name] = target["price"] * (columns[name] / _usual(close)) ** power',
        "columns[name] = _usual(close) * (columns[name] / _usual(close)) ** power",
        search(SIZES),
    ),
    Mutant(
        "returns-have-one-size",
        "R13",
        SEARCH,
        'columns[name] = target["price"] * (columns[name] / _usual(close)) ** power',
        'columns[name] = target["price"] * (columns[name] / _usual(close))',
        search(SIZES),
    ),
    Mutant(
        "one-length-of-random-bars",
        "R13",
        SEARCH,
        "for length in LENGTHS:",
        "for length in LENGTHS[-1:]:",
        search(SIZES),
    ),
    Mutant(
        "a-range-of-dates-is-no-condition",
        "R13",
        CONDITIONS,
        "for over, under in edges:",
        "for over, under in edges[:0]:",
        search("test_conditions_are_named_by_hand"),
    ),
    Mutant(
        "a-fall-keeps-its-upper-wick",
        "R13",
        ROWS,
        'columns["high"] = torch.maximum(columns["open"], columns["close"])',
        'columns["high"] = 2.0 * torch.maximum(columns["open"], columns["close"])',
        search("test_a_truth_about_the_next_bar_is_found_in_every_row"),
    ),
    Mutant(
        "a-condition-that-some-leaks-do-not-meet",
        "R13",
        CONDITIONS,
        "if (rows.volume[rows.leaks] == 0.0).all():",
        "if True:",
        search("test_conditions_are_named_by_hand"),
    ),
)
