"""A whole report: its texts, its charts, that it is inert and always the same."""

import base64
import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from page_reader import PageReader
from report_lab import passed, write_full_backtest, write_made_validation
from simulator_lab import HOUR_MS
from stormsail.cli.judging.report import report
from stormsail.core.errors import RangeError
from stormsail.evaluation.engine.files import write_backtest
from stormsail.evaluation.performance.document import performance_of
from stormsail.evaluation.populations import SavedPopulation, SavedRound
from stormsail.evaluation.report.charts import (
    equity_figure,
    position_figure,
    returns_figure,
    verdict_figure,
)
from stormsail.evaluation.report.page import CONTENTS, report_page
from stormsail.evaluation.report.robustness_charts import (
    costs_figure,
    coverage_figure,
    fan_figure,
    forecast_of,
    pit_figure,
)
from stormsail.evaluation.report.sections import figures_section
from stormsail.evaluation.report.verdict_sections import tail_beside, verdict_section
from stormsail.evaluation.saved import Result, TrainingRun, read_results, read_run

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>"


def numbers(packed):
    """Return the numbers of a packed array."""
    kind = {"f4": "<f4", "f8": "<f8"}[packed["dtype"]]
    return np.frombuffer(base64.b64decode(packed["bdata"]), kind)


def charts(text):
    """Return the figures of a page by identifier."""
    figures = re.findall(
        r'<div class="chart"[^>]* id="([a-z0-9-]+)"[^>]*><script type="application/json" '
        r'data-role="figure">(.*?)</script>',
        text,
    )
    return {name: json.loads(data) for name, data in figures}


def words(text):
    """Return what a reader reads."""
    return re.sub(r"\s+", " ", " ".join(PageReader(text.split("<script>")[0]).texts))


def learned(name="run", updates=40):
    metrics = pa.table(
        {
            "train/approx_kl": np.linspace(0.0, 0.02, updates),
            "validation/score": np.where(np.arange(updates) % 10 == 9, 0.5, np.nan),
        }
    )
    text = {"name": "alert/loss", "severity": "alert", "message": "a loss"}
    alarm = {"kind": "alarm", "update": 7, **text}
    return TrainingRun(name, metrics, (alarm, {"kind": "trial", "update": 9}))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("results")
    write_full_backtest(place / "full", rows=440, symbols=2)
    write_backtest(place / "bare", passed(80, symbols=1)[0])
    write_made_validation(place / "judged", bars=450)
    return place


@pytest.fixture(scope="module")
def full(folders):
    return read_results([folders / "full"])[0]


@pytest.fixture(scope="module")
def full_page(full):
    return report_page([full], [learned()])


def test_every_section_is_there_once_and_in_the_menu(full_page):
    absent = ("folds", "robustness", "parity", "search", "population")
    wanted = [name for name, *_ in CONTENTS if name not in absent]
    assert re.findall(r'<section id="([a-z]+)">', full_page) == wanted
    assert re.findall(r'<a href="#([a-z]+)">', full_page) == wanted


def test_a_population_stands_beside_results_before_the_training(full):
    values = ({"ppo.gamma": 0.9}, {"ppo.gamma": 0.8})
    round_ = SavedRound((0, 1), values, (1.0, 2.0), (1.0, 2.0), (5, 5))
    bred = SavedPopulation("p", "max", {"ppo.gamma": False}, (round_,))
    text = report_page([full], populations=[bred])
    shown = re.findall(r'<section id="([a-z]+)">', text)
    absent = ("folds", "robustness", "parity", "search", "training")
    assert shown == [name for name, *_ in CONTENTS if name not in absent]
    assert "Best: member 01 with fitness 2; <code>ppo.gamma</code> 0.8." in text


def test_the_page_loads_nothing_and_is_small(full_page):
    read = PageReader(full_page)
    assert {(tag, name, value[0]) for tag, name, value in read.loads} == {("a", "href", "#")}
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & set(read.tags)
    assert not re.search(r"url\(|@import", "".join(read.styles))
    assert len(read.scripts) == 2
    assert len(full_page.encode()) < 2_000_000


KEYS = {
    "data": {
        "type", "mode", "name", "x", "y", "line", "fill", "fillcolor", "marker", "error_y", "yaxis",
        "legendgroup", "showlegend", "visible", "orientation", "width", "hoverinfo",
    },
    "layout": {"xaxis", "yaxis", "yaxis2", "shapes", "annotations", "showlegend", "hovermode",
               "bargap"},
    "axis": {
        "type", "range", "domain", "title", "tickformat", "hoverformat", "dtick", "rangemode",
        "anchor", "zeroline", "autorange",
    },
}  # fmt: skip
"""What `charts.js` reads, or may leave aside."""


def test_every_figure_is_one_that_our_script_can_draw(full_page):
    figures = charts(full_page)
    names = {"verdict-chart", "equity-chart", "position-0", "position-1", "returns-chart"}
    names |= {"forecast-0", "coverage-chart", "pit-chart", "rolling-chart", "ratio-chart"}
    names |= {"costs-chart", "stress-chart", "fan-0", "curve-0", "curve-1", "sleeves-0"}
    assert names == set(figures)
    for name, figure in figures.items():
        assert figure["data"], name
        for trace in figure["data"]:
            assert set(trace) <= KEYS["data"], name
            assert trace["type"] in ("scatter", "bar")
        assert set(figure["layout"]) <= KEYS["layout"], name
        for axis in ("xaxis", "yaxis", "yaxis2"):
            assert set(figure["layout"].get(axis, {})) <= KEYS["axis"], name


def test_the_first_screen_says_what_a_limit_on_the_tail_buys(tmp_path):
    """Half of every return has the tail of half the position, and earns what that earns."""
    write_made_validation(tmp_path / "free")
    (free,) = read_results([tmp_path / "free"])
    total = np.concatenate(([1.0], np.cumprod(1.0 + 0.5 * free.returns)))
    place = free.equity.column_names.index("total")
    equity = free.equity.set_column(place, "total", pa.array(total))
    settings = {
        "task": {"market": {"episode_bars": 24}},
        "risk": {"cvar_limit": -0.1, "cvar_alpha": 0.05},
    }
    document = {**free.document, "training": settings}
    limited = replace(free, name="limited", equity=equity, document=document)
    tail = tail_beside(free, limited)
    assert tail.multiple == pytest.approx(0.5, abs=1e-6)
    assert (tail.window, tail.alpha, tail.limit) == (24, 0.05, -0.1)
    shown = verdict_section([free, limited])
    assert f"What the limit buys. {tail.words}." in shown
    for other in (
        replace(limited, document=free.document),  # no limit
        replace(limited, document={**document, "hashes": {"data": "other bars"}}),
        replace(limited, equity=equity.set_column(0, "ts", pa.array(free.ts + HOUR_MS))),
    ):
        assert tail_beside(free, other) is None
        assert "What the limit buys" not in verdict_section([free, other])


def test_baselines_are_drawn_at_the_volatility_of_the_agent(full):
    shown = [line["name"] for line in verdict_figure([full])["data"] if not line.get("yaxis")]
    assert shown == ["buy and hold, same volatility", "agent"]  # momentum never traded
    drawn = np.random.default_rng(2).normal([0.0, 0.004], 0.01, (len(full.returns), 2))
    table = full.tables["baselines.parquet"].drop_columns(["momentum"])
    for place, name in enumerate(("equal_weight", "volatility_target")):
        equity = np.cumprod(np.concatenate(([1.0], 1.0 + drawn[:, place])))
        table = table.append_column(name, pa.array(equity))
    full = replace(full, tables={"baselines.parquet": table})
    data = [line for line in verdict_figure([full])["data"] if line.get("yaxis") is None]
    assert [line["name"] for line in data] == [
        "buy and hold, same volatility", "volatility target, same volatility", "agent",
    ]  # fmt: skip
    deviations = [np.diff(np.log1p(line["y"].astype(float))).std() for line in data]
    assert deviations[0] == pytest.approx(deviations[2], rel=0.02)
    assert deviations[1] == pytest.approx(deviations[2], rel=0.02)
    assert data[2]["y"][-1] == pytest.approx(full.metrics["total_return"].value, abs=1e-6)


def test_baselines_are_sorted_by_their_sharpe_ratio_and_the_bound_is_last(full):
    sharpes = {"hold": 0.5, "momentum": 2.0, "clairvoyant": 30.0, "flat": None}
    documents = {**full.documents, "baselines": {
        name: {"bars": 500, "sharpe": value, "total_return": 0.0} for name, value in sharpes.items()
    }}  # fmt: skip
    page = figures_section([replace(full, documents=documents)])
    table = page[page.index("Against baselines") :]
    names = re.findall(r'<th scope="row">([^<]+)</th>', table)
    own = full.metrics["sharpe"].value
    ranked = sorted([("agent", own), ("hold", 0.5), ("momentum", 2.0)], key=lambda row: -row[1])
    assert names == [*(name for name, _ in ranked), "flat", "clairvoyant"]
    assert '<tr class="own"><th scope="row">agent</th>' in table


def test_performance_tables_are_those_of_the_frames(tmp_path):
    result, _, bars = passed(440, symbols=2)
    documents = {"performance": performance_of(result, bars).document()}
    write_backtest(tmp_path / "measured", result, documents=documents)
    saved = read_results([tmp_path / "measured"])[0]
    text = report_page([saved])
    section = text[text.index('<section id="performance">') :].split("</section>")[0]
    for row in saved.frames.table("monthly").to_pylist():
        assert f"<td>{row['return']:+.1%}</td>" in section
    first = saved.frames.table("drawdowns").to_pylist()[0]
    assert f'<th scope="row">{first["depth"]:+.2%}</th>' in section
    costs = {row["item"]: row for row in saved.frames.table("costs").to_pylist()}
    items = re.findall(r'<th scope="row">(gross|fees|spread|impact|tick|net)</th>', section)
    assert items[0] == "gross"
    assert items[-1] == "net"
    assert f"<td>{costs['net']['both']:,.2f}</td>" in section
    assert f"<td>{-costs['fees']['both']:,.2f}</td>" in section
    assert "impact is set to 0: no account is too large" in section


def test_every_colour_of_a_figure_is_one_of_the_page(full_page):
    style = PageReader(full_page).styles[0]
    drawn = json.dumps(charts(full_page))
    used = set(re.findall(r'"@([a-z0-9-]+)', drawn))
    assert {"c1", "reference", "bad"} <= used
    for name in used:
        # in light, in dark by choice, in dark by the system
        assert len(re.findall(rf"--{name}: #[0-9a-f]{{3,6}};", style)) >= 3


def test_equity_starts_at_nothing_and_ends_at_the_total_return(full):
    data = equity_figure([full])["data"]
    agent = next(line for line in data if line["name"] == "agent")
    assert agent["y"][0] == 0.0
    assert agent["y"][-1] == pytest.approx(full.metrics["total_return"].value, abs=1e-6)
    drawdowns = [line for line in data if line.get("yaxis") == "y2"]
    assert [line["name"] for line in drawdowns] == ["buy and hold", "agent"]
    assert drawdowns[1]["y"].min() == pytest.approx(full.metrics["max_drawdown"].value, abs=1e-6)
    assert {line["name"] for line in data} == {"agent", "buy and hold", "momentum", "flat"}


def test_without_accounts_the_price_goes_from_fill_to_fill(folders):
    result = read_results([folders / "judged"])[0]
    data = position_figure([result], "AAA/USDT:USDT")["data"]
    assert [line["name"] for line in data] == ["price", "buy", "sell", "weight"]
    assert data[0]["line"]["dash"] == "dot"
    assert data[0]["x"].tolist() == result.trades["ts"].to_pylist()
    assert len(data[1]["x"]) + len(data[2]["x"]) == result.trades.num_rows
    assert data[3]["y"].min() == -0.5


def test_the_histogram_holds_every_bar_that_moved(full):
    bars = returns_figure([full])["data"][0]
    assert float(bars["y"].sum()) == pytest.approx(1.0, abs=1e-5)
    lines = [shape["x0"] for shape in returns_figure([full])["layout"]["shapes"]]
    assert lines == [full.metrics[name].value for name in ("value_at_risk", "cvar")]


def test_outcomes_are_discounted_as_the_critic_does():
    equity = np.exp(np.array([0.0, 0.1, 0.3, 0.0]))
    ts = HOUR_MS * np.arange(4)
    predicted = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(6.0)), 2)
    result = Result(
        "one",
        "backtest",
        {"symbols": ["A"], "distribution_support": [0.25, 0.75], "distribution_kind": "quantile"},
        pa.table({"ts": ts, "total": equity, "A": equity}),
        pa.table({"ts": pa.array([], pa.int64())}),
        pa.table({"ts": ts[:3], "symbol": ["A"] * 3, "distribution": predicted}),
        {"calibration": {"horizon_bars": 2, "discount": 0.5}},
    )
    forecast = forecast_of(result)
    assert forecast is not None
    # growths 0.1, 0.2, -0.3: 0.1 + 0.2 / 2, and 0.2 - 0.3 / 2
    assert forecast.realised == pytest.approx([0.2, 0.05], abs=1e-12)
    assert forecast.values.tolist() == [0.0, 1.0, 2.0, 3.0]  # quantiles of the first two decisions
    assert forecast.weight.tolist() == [0.25] * 4


def test_costs_show_the_sweep_the_break_even_and_what_was_charged():
    sweep = {"10": {"total_return": -0.1}, "0": {"total_return": 0.2}, "2": {"total_return": 0.1}}
    document = {"replay": {"sweep_bp": sweep, "break_even": {"cost_bp": 6.5}}}
    figure = costs_figure([("one", 0, document, 4.0)])
    assert figure["data"][0]["x"] == [0.0, 2.0, 10.0]
    assert figure["data"][0]["y"] == [0.2, 0.1, -0.1]
    assert [shape["x0"] for shape in figure["layout"]["shapes"]] == [6.5, 4.0]
    assert [note["text"] for note in figure["layout"]["annotations"]] == [
        "break-even 6.5 bp",
        "charged 4.0 bp",
    ]


def test_coverage_shows_levels_with_enough_data_and_their_intervals():
    known = {"value": 0.2, "low": 0.15, "high": 0.3}
    document = {
        "coverage": [
            {"level": 0.1, "share": known},
            {"level": 0.5, "share": {"value": None, "reason": "not enough data"}},
        ]
    }
    line = coverage_figure([("one", 0, document)])["data"][1]
    assert (line["x"].tolist(), line["y"].tolist()) == ([0.1], [0.2])
    assert line["error_y"]["array"] == pytest.approx([0.1])
    assert line["error_y"]["arrayminus"] == pytest.approx([0.05])


def test_outcomes_over_expected_are_one_where_the_distribution_is_right():
    pit = {"edges": [0.0, 0.25, 1.0], "share": [0.5, 0.5], "expected": [0.25, 0.75]}
    alone = pit_figure([("one", 0, {"pit": pit})])["data"][0]
    assert alone["y"].tolist() == pytest.approx([2.0, 2 / 3])
    assert alone["x"].tolist() == [0.125, 0.625]
    both = pit_figure([("one", 0, {"pit": pit}), ("two", 1, {"pit": pit})])["data"]
    assert [line["line"]["color"] for line in both] == ["@c1", "@c2"]
    assert both[0]["x"].tolist() == [0.0, 0.25, 1.0]


def test_the_fan_lies_around_the_realised_path(full):
    fan = full.documents["significance"]["fan"]
    lines = fan_figure(full, fan, 0)["data"]
    assert [line.get("name") for line in lines] == [
        None, "5% to 95%", None, "25% to 75%", "median", "realised",
    ]  # fmt: skip
    assert lines[0]["y"][-1] == pytest.approx(fan["equity"][0][-1] - 1.0)
    assert lines[1]["y"][-1] == pytest.approx(fan["equity"][4][-1] - 1.0)


def test_the_verdict_stands_before_any_figure(folders):
    text = report_page(read_results([folders / "judged"]))
    read = words(text)
    assert "It earned money, but chance alone could have done so." in read
    first = text.index("It earned money")
    assert text.index("not proven") < first < text.index("Deflated Sharpe 0.61, needed 0.95.")
    assert first < text.index('class="chart"')
    assert "failed: the loss was not finite" in read
    assert "never opened" in read
    assert "oracle: the clairvoyant earned most" in read
    assert '<section id="folds">' in text


def test_the_verdict_on_an_opened_test_span_is_on_the_page(tmp_path):
    final = {"verdict": {"decision": "reject", "words": "It lost on the test span.", "reasons": []}}
    write_made_validation(tmp_path / "v", bars=60, test=final)
    read = words(report_page(read_results([tmp_path / "v"])))
    assert "On the final test span reject" in re.sub(" +", " ", read)
    assert "It lost on the test span." in read


def test_what_was_not_measured_is_said_and_not_drawn(folders):
    text = report_page(read_results([folders / "bare"]))
    read = words(text)
    assert set(charts(text)) == {"verdict-chart", "equity-chart", "position-0", "returns-chart"}
    read = re.sub(" +", " ", read)
    absent = "baselines, calibration, costs, performance, significance, stress"
    assert read.count("Not measured") == 1
    assert f"Not measured: {absent}; run with" in read
    assert read.count("Too little data") == 1
    assert "(needs 400 bars, found 68)" in read
    assert "annual return, Calmar ratio (needs 720 bars, found 68)" in read
    for name in ("calibration", "costs", "stress", "significance", "rolling", "training"):
        assert f'<section id="{name}">' not in text


def test_several_results_share_axes_and_stand_side_by_side(folders):
    results = read_results([folders / "full", folders / "judged"])
    text = report_page(results)
    drawn = charts(text)["equity-chart"]["data"]
    lines = [line for line in drawn if line.get("yaxis") is None]
    assert [line["name"] for line in lines][-2:] == ["full", "judged"]
    assert [line["line"]["color"] for line in lines][-2:] == ["@c1", "@c2"]
    assert numbers(lines[-1]["y"])[-1] == pytest.approx(
        results[1].metrics["total_return"].value, abs=1e-6
    )
    assert '<th scope="col">full</th><th scope="col">judged</th>' in text
    read = words(text)
    assert "These results differ in spans, symbols, data: compare with care." in read
    assert "switched off in this validation" in read
    assert "Baselines are those of full." in read


def test_settings_that_differ_are_marked(folders, tmp_path):
    write_made_validation(tmp_path / "other", bars=60, settings={"folds": 3, "seeds": [0, 1]})
    text = report_page(read_results([folders / "judged", tmp_path / "other"]))
    row = '<tr class="differs"><th scope="row">folds</th><td>2</td><td>3</td></tr>'
    assert row in text
    assert '<tr><th scope="row">seeds</th><td>[0, 1]</td><td>[0, 1]</td></tr>' in text
    assert '<th scope="row">backtest.burn_in</th><td>5</td><td>\u2013</td>' in text


def test_training_curves_carry_their_alarms(full):
    text = report_page([full], [learned()])
    curve = charts(text)["curve-0"]
    assert numbers(curve["data"][0]["x"]).tolist() == [9.0, 19.0, 29.0, 39.0]
    assert [shape["x0"] for shape in curve["layout"]["shapes"]] == [7.0]
    assert "Update 7, alert alert/loss : a loss" in words(text)


def test_names_of_others_are_inert_everywhere(tmp_path):
    write_made_validation(tmp_path / "v", bars=450, name=EVIL)
    plain = read_results([tmp_path / "v"])[0]
    text = report_page([replace(plain, name=EVIL), plain], [learned(EVIL)])
    read = PageReader(text)
    assert len(read.scripts) == 2
    assert read.handlers == []
    assert "img" not in read.tags
    assert not any("<" in data for data in read.data)
    assert EVIL in "".join(read.texts)


def test_the_same_results_give_the_same_bytes_in_another_process(folders, tmp_path):
    code = (
        "import sys; from pathlib import Path;"
        "from stormsail.evaluation.report.page import report_page;"
        "from stormsail.evaluation.saved import read_results;"
        "paths = [Path(one) for one in sys.argv[2:]];"
        "Path(sys.argv[1]).write_text(report_page(read_results(paths)), encoding='utf-8')"
    )
    pages = []
    for seed in ("1", "2"):
        out = tmp_path / f"{seed}.html"
        paths = [str(folders / name) for name in ("full", "judged")]
        subprocess.run(
            [sys.executable, "-c", code, str(out), *paths],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
        )
        pages.append(out.read_bytes())
    assert pages[0] == pages[1]


def test_a_year_of_hours_of_several_symbols_stays_small():
    bars, symbols = 8760, [f"S{number}/USDT" for number in range(5)]
    rng = np.random.default_rng(0)
    ts = HOUR_MS * np.arange(bars + 1)
    accounts = 1e4 * np.exp(np.cumsum(rng.normal(0.0, 0.004, (bars + 1, 5)), 0))
    columns = {name: accounts[:, place] for place, name in enumerate(symbols)}
    weight = rng.choice([-1.0, 0.0, 0.5], bars * 5)
    money = rng.uniform(1.0, 2.0, (4, bars * 5))
    times, names = np.repeat(ts[:-1], 5), symbols * bars
    trades = dict(zip(("quantity", "price", "fee", "slippage"), money, strict=True))
    result = Result(
        "year",
        "backtest",
        {"symbols": symbols, "metrics": {"bar_ms": HOUR_MS}},
        pa.table({"ts": ts, "total": accounts.sum(1), **columns}),
        pa.table({"ts": times, "symbol": names, "side": ["buy"] * bars * 5, **trades}),
        pa.table({"ts": times, "symbol": names, "weight": weight, "quantity": weight}),
        {},
    )
    text = report_page([result, result])
    assert len(text.encode()) < 2_000_000
    read = words(text)
    assert "Series of up to 8,761 points are drawn with 1,600" in read
    assert "The last 2,000 of 43,800 trades" in read
    assert "Of 8,760 fills of year the 600 largest are marked." in read
    assert len(numbers(charts(text)["equity-chart"]["data"][0]["y"])) <= 1600


def command(*arguments):
    app = typer.Typer()
    app.command()(report)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_command_writes_the_page_and_says_how_large_it_is(folders, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    pq.write_table(learned().metrics, run / "metrics.parquet")
    (run / "events.jsonl").write_bytes(b'{"kind":"alarm","update":3}\n{"half')
    out = tmp_path / "new" / "page.html"
    done = command(folders / "bare", "--out", out, "--run", run)
    assert done.exit_code == 0
    expected = report_page(read_results([folders / "bare"]), [read_run(run, name="run")])
    assert out.read_text(encoding="utf-8") == expected
    assert done.output == f"wrote {out} ({len(expected.encode()) / 1e6:.1f} MB)\n"
    assert len(read_run(run, name="run").alarms()) == 1  # the line that is cut off is left out


@pytest.mark.refusal
def test_a_report_of_nothing_is_refused():
    with pytest.raises(RangeError, match="one result, population, search or run; found none"):
        report_page([])
