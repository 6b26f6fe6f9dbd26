"""The bugs of imports: two writers, one reader, wicks, bars of months."""

from mutants.harness import Mutant
from mutants.nodes import integration, unit

WICKS = "market/checks/wicks.py"
LOCK = "core/files/lock.py"

IMPORTS = (
    # --- two writers
    Mutant(
        "import-reads-before-it-holds-the-store",
        "B1",
        "cli/data/import_.py",
        'with target.writing("stormsail import"):',
        "if True:",
        integration("two_writers", "test_an_import_waits_for_the_holder_and_keeps_what_that_wrote"),
    ),
    Mutant(
        "fetch-writes-over-what-came-meanwhile",
        "B1",
        "market/fetch/bars.py",
        "            stored = _stored(store, symbol, interval)\n            _check_columns",
        "            stored = self._stored\n            _check_columns",
        unit("fetch", "test_bars_that_are_imported_during_a_fetch_are_kept", part="market/fetch"),
    ),
    Mutant(
        "funding-fetch-writes-over-what-came-meanwhile",
        "B1",
        "market/fetch/funding.py",
        "known = [] if stored is None else [stored.table]",
        "known = []",
        unit("fetch", "test_rates_that_are_imported_during_a_fetch_are_kept", part="market/fetch"),
    ),
    Mutant(
        "lock-waits-for-ever-or-not-at-all",
        "B1",
        LOCK,
        "round(wait_s * NANOSECONDS)",
        "round(wait_s)",
        unit("store", "test_a_waiting_writer_counts_time_by_its_clock", part="market"),
    ),
    Mutant(
        "lock-shared-by-all-who-ask",
        "B1",
        LOCK,
        "fcntl.LOCK_EX | fcntl.LOCK_NB",
        "fcntl.LOCK_SH | fcntl.LOCK_NB",
        unit("store", "test_a_waiting_writer_counts_time_by_its_clock", part="market"),
    ),
    Mutant(
        "threads-share-a-held-store",
        "B1",
        "market/store.py",
        "if self._writer == threading.get_ident():",
        "if self._writer is not None:",
        unit(
            "store",
            "test_writes_inside_of_a_held_store_take_part_and_other_threads_wait",
            part="market",
        ),
    ),
    # --- one reader
    Mutant(
        "zone-less-times-only-warned-of",
        "B1",
        "market/checks/defects.py",
        '"naive-time",\n        "error",',
        '"naive-time",\n        "warning",',
        integration("one_reader", "test_what_pandas_writes_is_judged_the_same"),
    ),
    Mutant(
        "unnamed-index-not-read",
        "B1",
        "market/checks/columns.py",
        "[name for name in dict.fromkeys(names[:1]) if tidy(name) in INDEX]",
        "[]",
        integration("one_reader", "test_what_pandas_writes_is_judged_the_same"),
    ),
    Mutant(
        "times-of-half-milliseconds-checked-as-good",
        "B1",
        "market/checks/files.py",
        "if problem is None or report.errors:",
        "if True:",
        integration("one_reader", "test_files_of_every_kind_are_judged_the_same"),
    ),
    Mutant(
        "all-bad-file-repaired-to-nothing",
        "B1",
        "market/checks/repair.py",
        "if not repaired.num_rows:",
        "if False:",
        integration("one_reader", "test_an_all_bad_file_is_never_repaired_into_an_empty_one"),
    ),
    # --- wicks
    Mutant(
        "wick-explained-by-volume-itself",
        "B1",
        WICKS,
        "usual * np.sqrt(np.fmax(1.0, traded))",
        "usual * np.fmax(1.0, traded)",
        unit("wicks", "test_volume_explains_a_wick_by_its_root", part="market/checks"),
    ),
    Mutant(
        "wick-measured-by-itself",
        "B1",
        WICKS,
        "others = around != at[:, None]",
        "others = around >= 0",
        unit("wicks", "test_a_wick_is_not_measured_by_itself", part="market/checks"),
    ),
    Mutant(
        "wick-explained-by-later-bodies-alone",
        "B1",
        WICKS,
        "np.arange(-_NEAR, _NEAR + 1)",
        "np.arange(0, _NEAR + 1)",
        unit("wicks", "test_a_body_within_two_bars_explains_a_wick", part="market/checks"),
    ),
    Mutant(
        "reference-not-asked",
        "B1",
        WICKS,
        "known[there] = high[place[there]]",
        "known[there] = np.nan",
        unit("wicks", "test_a_reference_decides_where_it_has_the_bar", part="market/checks"),
    ),
    Mutant(
        "longs-liquidated-as-mirrored-shorts",
        "B1",
        WICKS,
        "else 1.0 / (1.0 - 1.0 / leverage)",
        "else 1.0 + 1.0 / leverage",
        unit("wicks", "test_longs_hinge_on_lows", part="market/checks"),
    ),
    Mutant(
        "liquidations-of-the-dead-counted",
        "B1",
        WICKS,
        "np.maximum.accumulate(later[::-1])[::-1]",
        "later",
        unit(
            "wicks",
            "test_a_finding_counts_the_liquidations_that_hinge_on_it",
            part="market/checks",
        ),
    ),
    # --- months
    Mutant(
        "month-of-mean-length",
        "B1",
        "market/interval.py",
        "        if self.months:\n            return self.opening(self.number(ts) + 1)\n",
        "",
        unit(
            "bars",
            "test_a_bar_of_months_opens_on_the_first_and_closes_when_the_next_opens",
            part="market",
        ),
    ),
)
