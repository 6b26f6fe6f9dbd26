"""Every class of defect is found where it was planted, and clean bars have none."""

from pathlib import Path

import pyarrow as pa
import pytest

import market_defects
from stormsail.market.checks import BY_NUMBER, DEFECTS, Report, check_file, check_table
from stormsail.market.interval import Interval

NOW_MS = 4_000_000_000_000
INTERVALS = {name: Interval.parse(name) for name in ("1m", "1h", "1d")}
CASES = [
    (name, interval)
    for interval in INTERVALS
    for name in market_defects.names_for(INTERVALS[interval])
]


def report_of(case: market_defects.Case, interval: Interval, folder: Path) -> Report:
    if case.content is None:
        now = NOW_MS if case.now_ms is None else case.now_ms
        return check_table(case.table(), symbol="BTC/USDT", interval=interval, now_ms=now)
    path = folder / f"bars{case.suffix}"
    path.write_bytes(case.content)
    return check_file(path, symbol="BTC/USDT", interval=interval, now_ms=NOW_MS)


def assert_found(name: str, seed: int, interval: Interval, folder: Path) -> None:
    case = market_defects.planted(name, seed, interval)
    report = report_of(case, interval, folder)
    findings = {(finding.number, finding.severity): finding for finding in report.findings}
    assert (case.number, case.severity) in findings, f"{name} {seed}: {report.summary()}"
    first = findings[case.number, case.severity].places[0]
    assert first.row == case.row, f"{name} {seed}: {report.summary()}"
    assert set(report.numbers) <= {case.number, *case.with_it}, f"{name} {seed}: {report.summary()}"
    assert report.ok == (not any(severity == "error" for _, severity in findings))


def clean_report(seed: int, interval: Interval) -> Report:
    table = pa.table(market_defects.clean_bars(seed, interval))
    return check_table(table, symbol="BTC/USDT", interval=interval, now_ms=NOW_MS)


@pytest.mark.parametrize(("name", "interval"), CASES)
def test_a_planted_defect_is_found_at_its_row(name, interval, tmp_path):
    assert_found(name, 0, INTERVALS[interval], tmp_path)


@pytest.mark.parametrize("seed", [1, 2])
def test_planted_defects_are_found_on_other_seeds(seed, tmp_path):
    for name in market_defects.names_for(INTERVALS["1h"]):
        assert_found(name, seed, INTERVALS["1h"], tmp_path)


@pytest.mark.campaign
@pytest.mark.parametrize(("name", "interval"), CASES)
def test_a_planted_defect_is_found_on_a_hundred_seeds(name, interval, tmp_path):
    for seed in range(100):
        assert_found(name, seed, INTERVALS[interval], tmp_path)


@pytest.mark.parametrize("interval", INTERVALS)
def test_clean_bars_have_no_error_and_no_warning(interval):
    for seed in range(20):
        report = clean_report(seed, INTERVALS[interval])
        assert report.findings == (), report.summary()


@pytest.mark.campaign
@pytest.mark.parametrize("interval", INTERVALS)
def test_clean_bars_of_a_thousand_seeds_have_no_finding(interval):
    for seed in range(1000):
        report = clean_report(seed, INTERVALS[interval])
        assert report.findings == (), report.summary()


@pytest.mark.parametrize("kind", market_defects.FORMATS)
def test_a_clean_file_of_any_format_has_no_finding(kind, tmp_path):
    suffix, write = market_defects.FORMATS[kind]
    path = tmp_path / f"bars{suffix}"
    path.write_bytes(write(market_defects.clean_bars(3, INTERVALS["1h"])))
    report = check_file(path, now_ms=NOW_MS)
    assert report.findings == (), report.summary()
    assert (report.rows, report.interval, report.symbol) == (1500, "1h", "bars")


def test_every_class_but_that_of_funding_rates_is_planted():
    planted = {
        market_defects.planted(name, 0, INTERVALS["1h"]).number
        for name in market_defects.names_for(INTERVALS["1h"])
    }
    assert planted == {defect.number for defect in DEFECTS} - {"D47", "D49"}


def test_every_planted_class_is_known():
    assert list(BY_NUMBER) == [f"D{i:02d}" for i in range(1, len(DEFECTS) + 1)]
