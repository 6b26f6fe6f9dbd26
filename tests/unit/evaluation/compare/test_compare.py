"""Things side by side: what differs comes first, and spoiled figures have no winner."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from backtest_lab import agent_for, panel, plain, rules
from stormsail.cli.judging.compare import compare as verb
from stormsail.core.errors import ArgumentError, ArtifactError, RangeError
from stormsail.core.files.artifact import Contents, write_artifact
from stormsail.evaluation import validate
from stormsail.evaluation.compare.compare import compare, compare_entries
from stormsail.evaluation.compare.page import comparison_page
from stormsail.evaluation.compare.sources import Curve, Entry, flat, read_entry, statement_of
from stormsail.evaluation.engine.files import contents_of, summary_of, write_backtest
from stormsail.evaluation.engine.run import backtest
from stormsail.evaluation.stats.statement import Statement
from stormsail.evaluation.walk_forward.files import write_validation as save_validation
from training_lab import run_all, run_for, small
from validation_lab import fitter, settings, world

# ------------------------------------------------------------------ what is compared


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder with backtests of two agents, and of one at other costs and times."""
    folder = tmp_path_factory.mktemp("compare")
    bars = panel(180)
    first, second = agent_for(bars, seed=0), agent_for(bars, seed=4)
    dear = rules(costs__taker_fee=0.002).model_dump()
    made = {
        "first": (first, plain()),
        "second": (second, plain()),
        "dear": (second, plain(market=dear, allow=("costs",))),
        "late": (second, plain(delay_bars=1)),
        "rich": (second, plain(capital=90_000.0)),
    }
    for name, (agent, config) in made.items():
        write_backtest(folder / name, backtest(agent, bars, config))
    other = panel(180, seed=8)
    write_backtest(folder / "other", backtest(first, other, plain()))
    shorter = backtest(first, bars, plain()).span
    config = plain().during(type(shorter)(shorter.start_ms + 3_600_000, shorter.end_ms))
    write_backtest(folder / "short", backtest(first, bars, config))
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    quiet = {"validation__every_updates": 2}
    run_all(small("market", **quiet), folder / "one")
    run_all(small("market", seed=9, ppo__gamma=0.9, **quiet), folder / "two")
    run_for(small("market", **quiet), folder / "young", 1)
    return folder


VERDICT = {
    "decision": "not proven",
    "words": "It may be luck.",
    "reasons": [
        {"name": "deflated Sharpe", "holds": False, "words": "0.31 of 0.95", "value": 0.31},
        {"name": "tail", "holds": None, "words": "not enough data", "value": None},
    ],
}


def write_validation(path, found, *, decision="not proven", seeds=(1, 2), market=None):
    """Write a validation that has the figures of a backtest."""
    told = summary_of(found)
    verdict = {**VERDICT, "decision": decision}
    document = {
        **{name: told[name] for name in ("code_version", "symbols", "interval", "bars")},
        **{name: told[name] for name in ("first_bar", "end", "metrics", "hashes")},
        "format": 1,
        "verdict": verdict,
        "folds": [{"number": 0, "train": ["a", "b"], "test": ["b", "c"], "bars": 9}],
        "seeds": list(seeds),
        "runs": [{"status": "failed"}, {"status": "finished"}],
        "self_tests": [{"name": "oracle", "holds": False, "words": "it lost"}],
        "test_span": {"openings": 1},
        "test": {"verdict": {"decision": "reject", "words": "It lost.", "reasons": []}},
        "settings": {"folds": 3, "burn_in": 9, "backtest": {"market": market, "burn_in": 5}},
        "training": {"task": {"market": {"costs": {"taker_fee": 0.001}}}},
    }
    blobs = contents_of(found, {}, {}).blobs
    contents = Contents(documents={"validation": document}, blobs=blobs)
    write_artifact(path, kind="validation", contents=contents)


def caveats(compared):
    return {one.name: one for one in compared.caveats}


def row(compared, name):
    return next(one for one in compared.figures if one.name == name)


# ------------------------------------------------------------------ comparable


def test_two_agents_on_the_same_bars_are_comparable(place):
    compared = compare([place / "first", place / "second"])
    assert compared.names == ("first", "second")
    assert compared.comparable
    assert compared.caveats == ()
    summaries = [json.loads((place / name / "summary.json").read_text()) for name in compared.names]
    values = [one["metrics"]["total_return"]["value"] for one in summaries]
    found = row(compared, "total_return")
    assert found.cells == tuple(f"{value:+.2%}" for value in values)
    assert found.best == int(values[1] > values[0])
    assert not found.spoiled
    assert compared.settings == ()
    hashes = {one.name: one for one in compared.hashes}
    assert {name: one.same for name, one in hashes.items()} == {
        "agent": False, "config": True, "data": True, "folder": False, "orders": False,
    }  # fmt: skip
    assert hashes["orders"].cells == tuple(one["order_hash"] for one in summaries)


def test_the_difference_of_two_is_that_of_their_returns_bar_by_bar(place):
    compared = compare([place / "first", place / "second"])
    (found,) = compared.differences
    first, second = (one.curve.y for one in compared.entries)
    gains = second[1:] / second[:-1] - first[1:] / first[:-1]
    assert found.mean.value == pytest.approx(gains.mean(), rel=1e-9)
    assert found.mean.low < found.mean.value < found.mean.high
    assert found.mean.found == len(gains) == 168
    held = found.mean.low <= 0.0 <= found.mean.high
    assert ("may be luck" in found.words) == held
    assert found.words.startswith("second minus first: ")


def steady_entry(name, gain, *, count=400, noise=0.001):
    """Return an entry that earns `gain` a bar on top of a noise that all entries share."""
    drawn = np.random.Generator(np.random.PCG64(1)).normal(0.0, noise, count)
    curve = np.concatenate(([1.0], np.cumprod(1.0 + drawn + gain)))
    ts = np.arange(count + 1, dtype=np.int64) * 3_600_000
    terms = {"data": "d", "span": ["a", "b"], "symbols": ["X"], "interval": "1h", "costs": {}}
    return Entry(name, None, "backtest", terms, {}, {}, {}, curve=Curve(ts, curve))


def test_a_difference_beyond_the_noise_leaves_zero_out_and_one_within_it_does_not():
    # the common noise cancels: what is left is the gain itself, at every bar
    certain = compare_entries([steady_entry("a", 0.0), steady_entry("b", 0.0001)]).differences[0]
    assert certain.mean.value == pytest.approx(0.0001, abs=1e-12)
    assert certain.words == (
        "b minus a: +0.0100% a bar, 95 % interval +0.0100% to +0.0100%; the interval leaves 0 out"
    )
    shuffled = steady_entry("c", 0.0)
    drawn = np.random.Generator(np.random.PCG64(2)).normal(0.0, 0.001, 400)
    curve = Curve(shuffled.curve.x, np.concatenate(([1.0], np.cumprod(1.0 + drawn))))
    object.__setattr__(shuffled, "curve", curve)
    doubtful = compare_entries([steady_entry("a", 0.0), shuffled]).differences[0]
    assert doubtful.words.endswith("the interval holds 0, so the difference may be luck")


def test_too_few_bars_say_how_many_are_needed():
    pair = [steady_entry("a", 0.0, count=50), steady_entry("b", 0.001, count=50)]
    assert compare_entries(pair).differences[0].words == (
        "b minus a: not enough data: needs 100 bars, found 50"
    )
    same = [steady_entry("a", 0.0), steady_entry("b", 0.0)]
    assert compare_entries(same).differences[0].words == (
        "b minus a: both earned the same at every bar"
    )


# ------------------------------------------------------------------ not comparable


@pytest.mark.parametrize(
    ("name", "caveat", "words"),
    [
        ("dear", "costs", "costs differ (`taker_fee` first 0.0005, dear 0.002)."),
        ("late", "rules", "rules of the accounts differ (`delay_bars`)."),
        ("other", "data", "stored bars differ (first: "),
        ("short", "span", "spans differ (first: "),
    ],
)
def test_what_spoils_a_comparison_is_said_and_leaves_no_winner(place, name, caveat, words):
    compared = compare([place / "first", place / name])
    assert set(caveats(compared)) == {caveat}
    assert caveats(compared)[caveat].words.startswith(words)
    assert not compared.comparable
    assert {one.best for one in compared.figures} == {None}
    assert {one.spoiled for one in compared.figures} == {True}


def test_other_bars_or_times_cannot_be_paired(place):
    for name, words in (
        ("other", "the stored bars differ, so nothing can be paired"),
        ("short", "the bars are not the same, so nothing can be paired"),
    ):
        (found,) = compare([place / "first", place / name]).differences
        assert found.words == f"{name} minus first: {words}"


def test_other_equity_at_the_start_spoils_money_alone():
    one, two = steady_entry("a", 0.0), steady_entry("b", 0.001)
    for entry, start in ((one, 100.0), (two, 200.0)):
        terms = {**entry.terms, "start_equity": start}
        figures = {name: Statement(start) for name in ("fees", "total_return")}
        object.__setattr__(entry, "terms", terms)
        object.__setattr__(entry, "figures", figures)
    compared = compare_entries([one, two])
    assert caveats(compared)["start_equity"].words == (
        "sums at the start differ (a: 100.0; b: 200.0). Sums of money cannot be compared."
    )
    assert compared.comparable
    assert row(compared, "fees").spoiled
    assert not row(compared, "total_return").spoiled
    assert row(compared, "total_return").best == 1


def test_more_capital_is_another_start_and_no_other_rule(place):
    compared = compare([place / "second", place / "rich"])
    assert set(caveats(compared)) == {"start_equity"}
    assert [one.name for one in compared.figures if one.spoiled] == ["fees", "funding", "slippage"]
    assert [(one.name, one.cells) for one in compared.settings] == [
        ("capital", ("nothing", "90000.0"))
    ]


def test_another_length_of_a_bar_spoils_figures_of_one_bar_alone():
    one, two = steady_entry("a", 0.0), steady_entry("b", 0.001)
    object.__setattr__(two, "terms", {**two.terms, "interval": "4h", "data": "e"})
    figures = {name: Statement(1.0) for name in ("cvar", "sharpe")}
    for entry in (one, two):
        object.__setattr__(entry, "figures", figures)
    compared = compare_entries([one, two])
    assert set(caveats(compared)) == {"interval"}
    assert row(compared, "cvar").spoiled
    assert not row(compared, "sharpe").spoiled


def test_what_is_not_known_is_not_taken_for_equal():
    one, two = steady_entry("a", 0.0), steady_entry("b", 0.001)
    for entry in (one, two):
        object.__setattr__(entry, "terms", {**entry.terms, "data": None})
    compared = compare_entries([one, two])
    assert caveats(compared)["data"].words.startswith("stored bars are not known of a, b: ")
    assert not compared.comparable


def test_a_test_on_seen_bars_is_not_compared_with_one_on_new_bars(place):
    first, second = (read_entry(place / name, name=name) for name in ("first", "second"))
    object.__setattr__(second, "terms", {**second.terms, "seen": False})
    found = caveats(compare_entries([first, second]))
    assert found["seen"].words == (
        "bars of training in the span differ (first: yes; second: no). "
        "One was tested on what its agent had seen."
    )
    assert "its span overlaps the agent's training span: this is no test of it" in first.notes


def test_versions_that_differ_are_said_and_spoil_nothing(place):
    first, second = (read_entry(place / name, name=name) for name in ("first", "second"))
    object.__setattr__(second, "code_version", "9.9")
    compared = compare_entries([first, second])
    assert "second: 9.9" in caveats(compared)["code_version"].words
    assert compared.comparable
    assert not row(compared, "total_return").spoiled


def test_settings_that_differ_stand_side_by_side_and_equal_ones_do_not(place):
    compared = compare([place / "first", place / "dear", place / "late"])
    rows = {one.name: one.cells for one in compared.settings}
    assert rows == {
        "allow": ("[]", '["costs"]', "[]"),
        "delay_bars": ("0", "0", "1"),
        "market.costs.taker_fee": ("0.0005", "0.002", "0.0005"),
    }


def test_order_steps_against_none_are_a_difference():
    one, two = steady_entry("a", 0.0), steady_entry("b", 0.001)
    object.__setattr__(one, "settings", {"filters": None, "market": None})
    object.__setattr__(two, "settings", {"filters.lot": 0.1, "market.funding": True})
    compared = compare_entries([one, two])
    # a market that is nothing is the agent's: it says nothing about a difference
    assert [(found.name, found.cells) for found in compared.settings] == [
        ("filters.lot", ("nothing", "0.1"))
    ]
    assert set(caveats(compared)) == {"rules"}


def test_agents_that_act_otherwise_on_the_same_market_are_comparable():
    one, two = steady_entry("a", 0.0), steady_entry("b", 0.001)
    object.__setattr__(one, "settings", {"market.levels": [0, 1], "market.limits.max_leverage": 1})
    object.__setattr__(two, "settings", {"market.levels": [-1], "market.limits.max_leverage": 1})
    compared = compare_entries([one, two])
    assert [found.name for found in compared.settings] == ["market.levels"]
    assert compared.comparable
    object.__setattr__(two, "settings", {"market.levels": [-1], "market.limits.max_leverage": 3})
    compared = compare_entries([one, two])
    assert caveats(compared)["rules"].words.startswith(
        "rules of the accounts differ (`market.limits.max_leverage`)."
    )
    assert not compared.comparable


# ------------------------------------------------------------------ runs and validations


def test_runs_are_compared_by_their_scores_settings_and_hashes(runs):
    compared = compare([runs / "one", runs / "two"])
    assert compared.comparable
    assert {one.name: one.cells for one in compared.settings} == {
        "ppo.gamma": ("0.99", "0.9"),
        "seed": ("5", "9"),
    }
    events = [json.loads(one) for one in (runs / "one" / "events.jsonl").read_text().splitlines()]
    scores = [one["score"] for one in events if one["kind"] == "trial"]
    first = compared.entries[0]
    assert first.figures["best_score"].value == max(scores)
    assert first.figures["last_score"].value == scores[-1]
    assert first.figures["validations"].value == len(scores) == 3
    assert first.figures["updates"].value == 6.0
    assert first.figures["steps"].value == 192.0
    assert first.curve.x.tolist() == [2, 4, 6]
    assert first.curve.y.tolist() == scores
    hashes = {one.name: one.same for one in compared.hashes}
    assert hashes == {"data": True, "config": False, "features": True}
    assert compared.differences == ()
    assert first.notes == ()


def test_a_run_that_has_not_finished_says_so(runs):
    compared = compare([runs / "one", runs / "young"])
    young = compared.entries[1]
    assert young.notes == ("the run has not finished: interrupted",)
    assert young.figures["best_score"].reason == "not enough data: needs 1 validations, found 0"
    assert row(compared, "best_score").best is None


def test_a_run_and_a_backtest_are_never_compared(place, runs):
    compared = compare([runs / "one", place / "first"])
    assert caveats(compared)["kind"].words == (
        "kinds differ (one: a run; first: a backtest). Their figures are about different things."
    )
    assert not compared.comparable
    assert row(compared, "sharpe").cells[0] is None
    assert not row(compared, "sharpe").spoiled  # nothing stands beside it


def test_validations_bring_their_verdicts_notes_and_rules(tmp_path):
    bars = panel(180)
    found = backtest(agent_for(bars), bars, plain())
    write_validation(tmp_path / "a", found)
    write_validation(tmp_path / "b", found, decision="reject", seeds=(1, 2, 3))
    compared = compare([tmp_path / "a", tmp_path / "b"])
    assert [one.verdict.decision for one in compared.entries] == ["not proven", "reject"]
    assert [one.cells for one in compared.reasons] == [
        ("fails: 0.31 of 0.95",) * 2,
        ("unknown: not enough data",) * 2,
    ]
    assert set(caveats(compared)) == {"seeds"}
    assert compared.comparable
    first = compared.entries[0]
    assert first.terms["costs"] == {"taker_fee": 0.001}  # the market is left to the agent
    assert first.settings["burn_in"] == 5
    assert first.settings["validation.burn_in"] == 9
    assert first.notes == (
        "self-test failed: oracle, it lost",
        "trainings that failed: 1 of 2",
        "times that its final test span was opened: 1",
        "verdict on the final test span alone: reject",
    )
    assert [one.name for one in compared.hashes if one.same] == ["agent", "config", "data"]
    page = comparison_page(compared)
    assert '<span class="badge warn">not proven</span>' in page
    assert '<span class="badge bad">reject</span>' in page


def test_validations_are_read_as_they_are_written(tmp_path):
    bars = world(200)
    for name, seeds in (("two", (3, 7)), ("one", (3,))):
        config = settings(folds=2, costs=False, seeds=seeds)
        judged = validate(bars, config, fit=fitter(bars), training={"steps": 5})
        save_validation(tmp_path / name, judged)
    compared = compare([tmp_path / "two", tmp_path / "one"])
    told = json.loads((tmp_path / "two" / "validation.json").read_text())
    two = compared.entries[0]
    assert two.verdict.decision == told["verdict"]["decision"]
    assert [one.name for one in two.verdict.reasons] == [
        one["name"] for one in told["verdict"]["reasons"]
    ]
    assert {one.name for one in compared.reasons} >= {one.name for one in two.verdict.reasons}
    assert two.figures["total_return"].value == told["metrics"]["total_return"]["value"]
    assert two.terms["costs"] == told["settings"]["backtest"]["market"]["costs"]
    assert set(caveats(compared)) == {"seeds", "start_equity"}  # each seed brings its capital
    assert compared.comparable
    assert [(one.name, one.cells) for one in compared.settings] == [
        ("validation.seeds", ("[3, 7]", "[3]"))
    ]
    assert compared.differences[0].mean.found == told["bars"]


# ------------------------------------------------------------------ page and command


def test_the_page_is_the_same_bytes_and_shows_names_as_text(place, tmp_path):
    evil = tmp_path / "<img src=x onerror=alert(1)>"
    (place / "first").rename(evil)
    try:
        compared = compare([evil, place / "second"])
        text = comparison_page(compared)
        assert text == comparison_page(compare([evil, place / "second"]))
    finally:
        evil.rename(place / "first")
    assert "<img" not in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text


def printed(*words):
    import typer

    app = typer.Typer()
    app.command()(verb)
    done = CliRunner().invoke(app, [str(one) for one in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_says_first_what_must_not_be_compared(place, tmp_path):
    out = tmp_path / "deep" / "page.html"
    told = printed(place / "first", place / "dear", "--out", out)
    lines = told.splitlines()
    assert lines[0] == "figures marked ≠ must not be compared:"
    assert lines[1].startswith("! costs differ (`taker_fee` first 0.0005, dear 0.002).")
    assert "total return ≠" in told
    assert "★" not in told
    assert lines[-1] == f"wrote {out}"
    assert out.read_text().startswith("<!DOCTYPE html>")


def test_the_command_marks_the_better_of_comparable_figures(place):
    told = printed(place / "first", place / "second")
    assert told.splitlines()[0] == "figures may be compared: same bars, same costs, same rules"
    assert "★" in told
    assert "≠" in told  # agents differ by their hash
    assert "second minus first: " in told


# ------------------------------------------------------------------ reading


def test_statements_come_back_as_they_were_written():
    for one in (
        Statement(0.5, 0.4, 0.6, needed=30, found=40),
        Statement(None, needed=30, found=4, unit="trades"),
        Statement(None, needed=3, found=4, why="all returns are equal"),
    ):
        assert statement_of(one.document()) == Statement(
            one.value, one.low, one.high, one.needed, one.found, one.unit, why=one.reason
        )
    assert statement_of(108) is None
    assert statement_of({"peak_ts": 5}) is None


def test_nested_settings_become_paths():
    data = {"a": {"b": {"c": 1}, "d": {}}, "e": [1, {"f": 2}]}
    assert flat(data, "x.") == {"x.a.b.c": 1, "x.a.d": {}, "x.e": [1, {"f": 2}]}


# ------------------------------------------------------------------ refusals


@pytest.mark.refusal
def test_one_folder_alone_or_twice_is_refused(place):
    with pytest.raises(ArgumentError) as caught:
        compare([place / "first"])
    assert str(caught.value) == (
        "at least two folders must be given to be compared; found 1. Name runs, backtests or "
        "validations; one alone is shown by `stormsail report`. [missing-argument]"
    )
    with pytest.raises(RangeError) as twice:
        compare([place / "first", place / "second", place / ".." / place.name / "first"])
    assert str(twice.value) == (
        f"each folder must be given once; found {place / '..' / place.name / 'first'} again. "
        "Leave the second one out. [out-of-range]"
    )


@pytest.mark.refusal
def test_what_is_no_run_backtest_or_validation_is_refused(place, tmp_path):
    def words(path):
        with pytest.raises(ArtifactError) as caught:
            compare([place / "first", path])
        return str(caught.value)

    assert words(tmp_path / "nowhere") == (
        f"{tmp_path / 'nowhere'} must be the folder of a run, a backtest or a validation; "
        "found no such folder. Check the path. [artifact-missing]"
    )
    (tmp_path / "empty").mkdir()
    assert "found no `manifest.json` in it." in words(tmp_path / "empty")
    agent_for(panel(40)).save(tmp_path / "agent")
    assert words(tmp_path / "agent") == (
        f"{tmp_path / 'agent'} must be a run, a `backtest` or a `validation`; found `agent`. Pass "
        "the folder of a run, or what `stormsail backtest` or `stormsail validate` wrote. "
        "[artifact-kind]"
    )
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "manifest.json").write_text('{"kind": "run"')
    assert words(tmp_path / "broken").endswith(
        "Use another copy, or make it again. [artifact-document]"
    )


@pytest.mark.refusal
def test_a_damaged_backtest_is_not_compared(place, tmp_path):
    bars = panel(60)
    write_backtest(tmp_path / "bad", backtest(agent_for(bars), bars, plain()))
    file = tmp_path / "bad" / "summary.json"
    file.write_bytes(file.read_bytes().replace(b'"bars": 48', b'"bars": 84'))
    with pytest.raises(ArtifactError, match="artifact-corrupt"):
        compare([place / "first", tmp_path / "bad"])
