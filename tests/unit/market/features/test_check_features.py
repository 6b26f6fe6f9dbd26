"""`stormsail check --features` and `stormsail bench features`."""

import json

import pytest
import typer

from stormsail.cli.bench.market import features as bench
from stormsail.cli.data import check_features
from stormsail.cli.data.check import check
from stormsail.cli.data.check_features import run
from stormsail.core.errors import DataError
from stormsail.market.features import REGISTRY

GOOD = """
from stormsail.market.features import feature

@feature(name="gap", lookback=2, columns=("open", "close"))
def gap(bars):
    return (bars["open"][1:] / bars["close"][:-1]).log()
"""
BAD = (
    GOOD
    + """
@feature(name="hindsight", lookback=2)
def hindsight(bars):
    return bars["close"] / bars["close"].mean(0)
"""
)
BROKEN = """
@feature(name="broken", lookback=1)
def broken(bars):
    return {}["close"]
"""


def test_clean_features_are_a_yes(tmp_path, capsys):
    path = tmp_path / "my_features.py"
    path.write_text(GOOD)
    before = REGISTRY.names()
    assert run(str(path)) == 0
    assert run(str(path)) == 0  # nothing of the first run is left
    assert REGISTRY.names() == before
    assert "gap" in capsys.readouterr().out


def test_a_leak_is_a_no_that_names_the_feature(tmp_path, capsys):
    path = tmp_path / "my_features.py"
    path.write_text(BAD)
    assert run(str(path)) == 1
    out = capsys.readouterr().out
    assert "hindsight" in out
    assert "noise after row" in out


def test_a_feature_that_fails_is_a_no_and_the_others_are_checked(tmp_path, capsys):
    path = tmp_path / "my_features.py"
    path.write_text(GOOD + BROKEN)
    assert run(str(path), cuts=3) == 1
    out = capsys.readouterr().out
    assert "gap" in out
    assert "KeyError" in out


def test_the_interval_of_the_command_is_that_of_the_bars(monkeypatch):
    seen = []
    monkeypatch.setattr(
        check_features, "run", lambda target, *, interval: seen.append((target, interval)) or 0
    )
    for interval in ("4h", None):
        with pytest.raises(typer.Exit):
            check(features="default", interval=interval)
    assert seen == [("default", "4h"), ("default", "1h")]


def test_the_default_set_is_a_yes(capsys):
    assert run("default", cuts=3) == 0
    assert "macd" in capsys.readouterr().out


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "must be a Python file; found no file there."),
        ("x = 1", "must register at least one feature; found none."),
        ("def (", "must run; found SyntaxError: invalid syntax"),
        ("import no_such_thing", "must run; found ModuleNotFoundError: No module named"),
        ("1 / 0", "must run; found ZeroDivisionError: division by zero."),
        ("undefined", "must run; found NameError: name 'undefined' is not defined."),
        ("raise SystemExit(3)", "must run; found SystemExit: 3."),
        (
            GOOD.replace("lookback=2", "lookback=lambda window: 2"),
            "must register features that bind; found TypeError: ",
        ),
    ],
)
def test_a_file_that_registers_nothing_is_refused(tmp_path, text, problem):
    path = tmp_path / "my_features.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DataError) as caught:
        run(str(path))
    assert str(caught.value).startswith(f"{path} {problem}")
    assert caught.value.code == "feature-file"


def test_the_bench_compares_every_default_column(tmp_path, capsys):
    bench(bars=4000, threads=0, seed=0, out=tmp_path / "rows.json")
    written = json.loads((tmp_path / "rows.json").read_text())
    assert written["total"]["columns"] == written["total"]["peer_columns"] == 34
    assert max(row["largest_difference"] for row in written["columns"]) < 1e-6
    assert {row["peer"] for row in written["columns"]} == {"numpy", "pandas", "TA-Lib"}
    assert "34 columns at once" in capsys.readouterr().out
