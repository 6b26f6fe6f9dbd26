"""`stormsail check --features` and `stormsail bench features`."""

import json
import runpy
from pathlib import Path

import pytest
import typer

from stormsail.cli.bench.market import features as bench
from stormsail.cli.data import check_features
from stormsail.cli.data.check import check
from stormsail.cli.data.check_features import run
from stormsail.core.clock import iso
from stormsail.core.errors import DataError
from stormsail.core.generators import Generators
from stormsail.market import Interval, Store, load_panel
from stormsail.market.features import REGISTRY, BarTensors, search_leaks
from stormsail.market.synthetic import generate

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
ROUNDED = """
from stormsail.market.features import feature

@feature(name="mean", lookback=11)
def mean(bars):
    total = bars["close"].cumsum(0)
    return (total[10:] - total[: max(len(bars) - 10, 0)]) / 10 / bars["close"][10:]
"""
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
    assert run(str(path)) == 1
    out = capsys.readouterr().out
    assert "gap" in out
    assert "KeyError" in out


def test_the_command_hands_its_options_on(monkeypatch):
    seen = []
    monkeypatch.setattr(
        check_features, "run", lambda target, **options: seen.append((target, options)) or 0
    )
    for options in ({"interval": "4h"}, {}, {"store": Path("data"), "symbol": "AAA/USDT"}):
        with pytest.raises(typer.Exit):
            check(features="default", **options)
    with pytest.raises(typer.Exit):
        check(plugin=["mine.py"])
    nothing = {"interval": None, "store": None, "symbol": None, "plugins": []}
    assert seen == [
        ("default", {**nothing, "interval": "4h"}),
        ("default", nothing),
        ("default", {**nothing, "store": Path("data"), "symbol": "AAA/USDT"}),
        (None, {**nothing, "plugins": ["mine.py"]}),
    ]


@pytest.mark.campaign
def test_the_default_set_is_a_yes(capsys):
    assert run("default") == 0
    out = capsys.readouterr().out
    assert "macd" in out
    assert "rounding" not in out


def test_a_rounding_is_no_leak_and_is_told(tmp_path, capsys):
    path = tmp_path / "my_features.py"
    path.write_text(ROUNDED)
    assert run(str(path)) == 0
    out = capsys.readouterr().out
    assert "rounding, no leak: mean: window after row" in out


STORED_LEAK = """
import torch
from stormsail.market.features import feature

@feature(name="waits", lookback=2, columns=("close",))
def waits(bars):
    close = bars["close"]
    known, coming = close.log(), close.log()
    known = torch.cat([known[:1] * 0, known.diff(dim=0)])
    coming = torch.cat([coming.diff(dim=0), coming[:1] * 0])
    here = (bars.ts >= BEGIN) & (bars.ts < END)  # four hours of all time
    return torch.where(here[:, None], coming, known)
"""


def stored(tmp_path, *, intervals=("1h",), bars=700):
    store = Store(tmp_path / "data")
    for interval in intervals:
        world = generate("noise", symbols=2, bars=bars, interval=Interval.parse(interval), seed=1)
        for part in world.bars:
            store.write(part)
    return world.bars[0]


def test_what_leaks_in_four_of_the_users_own_bars_is_found_there_and_named(tmp_path, capsys):
    times = stored(tmp_path).column("ts")
    path = tmp_path / "my_features.py"
    begin, end = int(times[600]), int(times[604])
    path.write_text(STORED_LEAK.replace("BEGIN", str(begin)).replace("END", str(end)))
    assert run(str(path)) == 0  # random bars do not meet those hours
    assert run(str(path), store=tmp_path / "data") == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "every row of 700 bars x 2 symbols" in out
    assert "rise" in out
    with REGISTRY.scope():
        runpy.run_path(str(path))
        panel = load_panel(Store(tmp_path / "data"), ["AAA/USDT:USDT"], Interval.parse("1h"))
        report = search_leaks(
            REGISTRY.get("waits"),
            interval=panel.interval,
            generator=Generators(0).stream("leaks"),
            bars=BarTensors.of(panel),
        )
    leak = report.leaks[0]
    assert (leak.kind, leak.history) == ("rise", "your bars")
    assert leak.row == leak.cut in range(600, 604)
    assert leak.time == iso(int(times[leak.row]))
    condition = f"from {iso(begin)} on and until {iso(int(times[603]))}: 4 of 4 such rows"
    assert report.conditions["waits"] == condition


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("intervals", "options", "problem"),
    [
        ((), {}, "must hold bars of some symbol, of one interval; found none. Import or fetch"),
        (("1h", "4h"), {}, "of one interval; found bars of 1h, 4h. Name one with `--interval`."),
        (
            ("1h",),
            {"symbol": "XXX/USDT"},
            "must hold bars of XXX/USDT, of one interval; found none",
        ),
        (("1h",), {"interval": "5m"}, "of one interval; found none"),
    ],
)
def test_a_store_without_the_bars_is_refused(tmp_path, intervals, options, problem):
    if intervals:
        stored(tmp_path, intervals=intervals, bars=50)
    with pytest.raises(DataError) as caught:
        run("default", store=tmp_path / "data", **options)
    assert problem in str(caught.value)
    assert caught.value.code == "data-missing"


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
