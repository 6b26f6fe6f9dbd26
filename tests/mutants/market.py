"""The bugs of market data and features."""

from mutants.harness import Mutant
from mutants.nodes import law, unit

INDICATORS = "functional/market/indicators.py"
WARNED = "test_warnings_precede_their_share_of_jumps_and_tell_the_mean_of_the_next_bar"

MARKET_DATA = (
    # --- indicators
    Mutant(
        "rsi-of-stillness-is-missing",
        "M20",
        INDICATORS,
        "return torch.where(total == 0.0, 50.0, share * 100.0)",
        "return gain / total * 100.0",
        unit("indicators", "test_rsi_of_gains_only_and_of_stillness"),
    ),
    Mutant(
        "parkinson-constant-wrong",
        "M22",
        INDICATORS,
        "(4.0 * math.log(2.0))).sqrt()",
        "(2.0 * math.log(2.0))).sqrt()",
        unit("indicators", "test_parkinson_by_hand"),
    ),
    Mutant(
        "yang-zhang-population-variance",
        "M22",
        INDICATORS,
        "window_variance(jump, window=window, ddof=1)",
        "window_variance(jump, window=window, ddof=0)",
        unit("indicators", "test_yang_zhang_by_hand"),
    ),
    Mutant(
        "decay-counted-from-the-wrong-half",
        "M21",
        "functional/market/rolling.py",
        "decay ** counts[1],)",
        "decay ** counts[0],)",
        unit("indicators", "test_decayed_sum_by_hand"),
    ),
    # --- bars, splits and features
    Mutant(
        "longer-bar-labelled-by-its-end",
        "M27",
        "market/resample.py",
        '{"ts": opening}',
        '{"ts": interval.after(opening)}',
        unit("resample", "test_four_quarters_of_an_hour_worked_out_by_hand", part="market"),
    ),
    Mutant(
        "unfinished-longer-bar-kept",
        "M27",
        "market/resample.py",
        "keep = np.ones_like(whole) if keep_partial else whole",
        "keep = np.ones_like(whole)",
        unit(
            "resample",
            "test_groups_cut_at_either_end_or_with_a_hole_are_left_out_and_counted",
            part="market",
        ),
    ),
    Mutant(
        "warning-with-the-event",
        "synthetic",
        "market/synthetic/process.py",
        "return np.append(alarm[1:], 0.0)",
        "return alarm",
        unit("processes", WARNED, part="market/synthetic"),
    ),
    Mutant(
        "warned-mean-of-any-jump",
        "synthetic",
        "market/synthetic/garch_jump.py",
        "return self.config.drift + (times - 1.0) * self.config.jump_rate * self.config.jump_mean",
        "return self.config.drift + times * self.config.jump_rate * self.config.jump_mean",
        unit("processes", WARNED, part="market/synthetic"),
    ),
    Mutant(
        "embargo-forgets-the-burn-in",
        "B5",
        "market/splits.py",
        "reach = lookback_bars + burn_in_bars",
        "reach = lookback_bars",
        law("splits", "test_no_bar_of_one_part_reaches_another"),
    ),
    Mutant(
        "decision-time-of-the-open",
        "B3",
        "market/features/catalogue.py",
        "(bars.ts + bars.interval.milliseconds - origin_ms) % period_ms",
        "(bars.ts - origin_ms) % period_ms",
        unit("catalogue", "test_time_is_that_of_the_close_in_utc", part="market/features"),
    ),
    Mutant(
        "leak-checker-compares-roughly",
        "R13",
        "market/features/leaks.py",
        "differs = moved | (_bits(values) != _bits(wanted))",
        "differs = moved | ((values - wanted).abs() > 1e-9)",
        unit(
            "leaks",
            "test_a_difference_in_the_last_bit_is_found_and_told_apart_as_rounding",
            part="market/features",
        ),
    ),
    Mutant(
        "history-before-the-listing-counts",
        "R12",
        "market/features/registry.py",
        "if bars.listed is not None and warm:",
        "if False:",
        unit(
            "feature_set",
            "test_a_panel_gives_its_columns_and_a_window_before_the_listing_is_not_valid",
            part="market/features",
        ),
    ),
    Mutant(
        "shared-rows-not-cut",
        "features",
        "market/features/tensors.py",
        "return tuple(part[self.first - begun :] for part in parts)",
        "return parts",
        unit(
            "feature_set",
            "test_what_features_share_is_computed_for_the_longest_window_and_cut",
            part="market/features",
        ),
    ),
)
