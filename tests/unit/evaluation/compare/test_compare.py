"""Comparisons: what differs comes first, and spoiled figures have no winner."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from backtest_lab import agent_for, panel, plain, rules
from stormsail.cli.judging.compare import compare as verb
from stormsail.core.errors import ArgumentError, ArtifactError, RangeError
from stormsail.core.files.artifact import Contents, write_artifact
from stormsail.evaluation import validate
from stormsail.evaluation.compare.compare import compare_entries, compare_results
from stormsail.evaluation.compare.page import comparison_page
from stormsail.evaluation.compare.sources import Curve, Entry, read_entry
from stormsail.evaluation.engine.files import FORMAT, contents_of, summary_of, write_backtest
from stormsail.evaluation.engine.run import backtest
from stormsail.evaluation.stats.performance import window_cvar
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
    # without a limit the best agent is the one with the highest score
    quiet = {"validation__every_updates": 2, "risk__cvar_use_constraint": False}
    run_all(small("market", **quiet), folder / "one")
    run_all(small("market", seed=9, ppo__gamma=0.9, **quiet), folder / "two")
    run_for(small("market", **quiet), folder / "young", 1)
    return folder


VERDICT = {
    "decision": "not proven",
    "words": "It may be chance.",
    "reasons": [
        {"name": "deflated Sharpe", "holds": False, "words": "0.31 of 0.95", "value": 0.31},
        {"name": "tail", "holds": None, "words": "not enough data", "value": None},
    ],
}


def write_validation(path, result, *, decision="not proven", seeds=(1, 2), market=None):
    """Write a validation that has the figures of a backtest."""
    summary = summary_of(result)
    verdict = {**VERDICT, "decision": decision}
    document = {
        **{name: summary[name] for name in ("code_version", "symbols", "interval", "bars")},
        **{name: summary[name] for name in ("first_bar", "end", "metrics", "hashes")},
        "format": FORMAT,
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
    blobs = contents_of(result, {}, {}).blobs
    contents = Contents(documents={"validation": document}, blobs=blobs)
    write_artifact(path, kind="validation", contents=contents)


def caveats(compared):
    return {caveat.name: caveat for caveat in compared.caveats}


def row(compared, name):
    return next(figure for figure in compared.figures if figure.name == name)


# ------------------------------------------------------------------ comparable


def test_two_agents_on_the_same_bars_are_comparable(place):
    compared = compare_results([place / "first", place / "second"])
    assert compared.names == ("first", "second")
    assert compared.comparable
    assert compared.caveats == ()
    summaries = [json.loads((place / name / "summary.json").read_text()) for name in compared.names]
    values = [summary["metrics"]["total_return"]["value"] for summary in summaries]
    total = row(compared, "total_return")
    assert total.cells == tuple(f"{value:+.2%}" for value in values)
    assert total.best == int(values[1] > values[0])
    assert not total.spoiled
    assert compared.settings == ()
    hashes = {each.name: each for each in compared.hashes}
    assert {name: each.same for name, each in hashes.items()} == {
        "agent": False, "config": True, "data": True, "folder": False, "orders": False,
    }  # fmt: skip
    assert hashes["orders"].cells == tuple(summary["order_hash"] for summary in summaries)


def test_the_difference_of_two_is_that_of_their_returns_bar_by_bar(place):
    compared = compare_results([place / "first", place / "second"])
    (difference,) = compared.differences
    first, second = (entry.curve.y for entry in compared.entries)
    gains = second[1:] / second[:-1] - first[1:] / first[:-1]
    mean = difference.mean
    assert mean.value == pytest.approx(gains.mean(), rel=1e-9)
    assert mean.low < mean.value < mean.high
    assert mean.found == len(gains) == 168
    assert ("not significant" in difference.words) == (mean.low <= 0.0 <= mean.high)
    assert difference.words.startswith("second minus first: ")


def steady_entry(name, gain, *, count=400, noise=0.001):
    """Return an entry that earns `gain` a bar on top of a noise that all entries share."""
    drawn = np.random.Generator(np.random.PCG64(1)).normal(0.0, noise, count)
    curve = np.concatenate(([1.0], np.cumprod(1.0 + drawn + gain)))
    ts = np.arange(count + 1, dtype=np.int64) * 3_600_000
    terms = {"data": "d", "span": ["a", "b"], "symbols": ["X"], "interval": "1h", "costs": {}}
    return Entry(name, None, "backtest", terms, {}, {}, {}, curve=Curve(ts, curve))


LIMITED = {
    "training.task.market.episode_bars": 5,
    "training.risk.cvar_limit": -0.08,
    "training.risk.cvar_alpha": 0.05,
}


def limited_entry(name, returns, settings=LIMITED):
    entry = steady_entry(name, 0.0)
    total = np.concatenate(([1.0], np.cumprod(1.0 + returns)))
    return replace(entry, settings=settings, curve=Curve(entry.curve.x, total))


def noise(seed=3, size=0.01):
    return np.random.Generator(np.random.PCG64(seed)).normal(0.0, size, 400)


def test_a_limit_is_compared_with_a_part_of_the_first_that_has_its_cvar():
    """Half the returns and a little more at every bar: the part is near a half, the gain that."""
    free = noise()
    (tail,) = compare_entries(
        [limited_entry("free", free), limited_entry("limited", 0.5 * free + 0.0002)]
    ).tails
    part = tail.multiple * free
    assert window_cvar(part, window=5, alpha=0.05) == pytest.approx(tail.cvar[1], rel=1e-9)
    assert tail.cvar[0] == pytest.approx(window_cvar(free, window=5, alpha=0.05), rel=1e-9)
    assert (tail.window, tail.alpha, tail.limit) == (5, 0.05, -0.08)
    gain = 0.5 * free + 0.0002 - part
    assert tail.mean.value == pytest.approx(gain.mean(), abs=1e-12)
    assert tail.mean.low > 0.0
    assert tail.words == (
        f"CVaR of the worst 5% of windows of 5 bars: free {tail.cvar[0]:+.4f}, limited"
        f" {tail.cvar[1]:+.4f} in log growth, limit -0.0800. {tail.multiple:.0%} of free has the"
        f" CVaR of limited; against it limited earns {tail.mean.value:+.4%} a bar, 95 % interval"
        f" {tail.mean.low:+.4%} to {tail.mean.high:+.4%}: the limit buys more than a smaller"
        " position would"
    )


def test_a_limit_that_buys_nothing_is_said_to():
    free = noise()
    worse = [limited_entry("free", free), limited_entry("limited", 0.5 * free - 0.0002)]
    compared = compare_entries(worse)
    assert compared.tails[0].words.endswith(": a smaller position would have earned more")
    assert compared.findings == (compared.differences[0].words, compared.tails[0].words)
    unclear = [limited_entry("free", free), limited_entry("limited", noise(seed=4, size=0.005))]
    assert (
        compare_entries(unclear)
        .tails[0]
        .words.endswith(": not significant: a smaller position may do as well as the limit")
    )


@pytest.mark.parametrize(
    "second",
    [
        limited_entry("no limit", 0.5 * noise(), settings={}),
        limited_entry("a worse tail", 2.0 * noise()),
        limited_entry(
            "fewer bars than a window",
            0.5 * noise(),
            settings={**LIMITED, "training.task.market.episode_bars": 500},
        ),
        limited_entry("no loss", np.full(400, 0.001)),
        replace(limited_entry("other bars", 0.5 * noise()), terms={"data": "y"}),
    ],
    ids=lambda entry: entry.name,
)
def test_nothing_is_said_of_tails_that_cannot_be_set_equal(second):
    assert compare_entries([limited_entry("free", noise()), second]).tails == ()


def test_a_difference_beyond_the_noise_leaves_zero_out_and_one_within_it_does_not():
    # the common noise cancels: what is left is the gain itself, at every bar
    certain = compare_entries([steady_entry("a", 0.0), steady_entry("b", 0.0001)]).differences[0]
    assert certain.mean.value == pytest.approx(0.0001, abs=1e-12)
    assert certain.words == (
        "b minus a: +0.0100% a bar, 95 % interval +0.0100% to +0.0100%; significant: the interval "
        "leaves 0 out"
    )
    shuffled = steady_entry("c", 0.0)
    drawn = np.random.Generator(np.random.PCG64(2)).normal(0.0, 0.001, 400)
    curve = Curve(shuffled.curve.x, np.concatenate(([1.0], np.cumprod(1.0 + drawn))))
    object.__setattr__(shuffled, "curve", curve)
    doubtful = compare_entries([steady_entry("a", 0.0), shuffled]).differences[0]
    assert doubtful.words.endswith("; not significant: the interval holds 0")


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
    compared = compare_results([place / "first", place / name])
    assert set(caveats(compared)) == {caveat}
    assert caveats(compared)[caveat].words.startswith(words)
    assert not compared.comparable
    assert {figure.best for figure in compared.figures} == {None}
    assert {figure.spoiled for figure in compared.figures} == {True}


def test_other_bars_or_times_cannot_be_paired(place):
    for name, words in (
        ("other", "the stored bars differ, so nothing can be paired"),
        ("short", "the bars are not the same, so nothing can be paired"),
    ):
        (difference,) = compare_results([place / "first", place / name]).differences
        assert difference.words == f"{name} minus first: {words}"


def test_other_equity_at_the_start_spoils_money_alone():
    first, second = steady_entry("a", 0.0), steady_entry("b", 0.001)
    for entry, start in ((first, 100.0), (second, 200.0)):
        terms = {**entry.terms, "start_equity": start}
        figures = {name: Statement(start) for name in ("fees", "total_return")}
        object.__setattr__(entry, "terms", terms)
        object.__setattr__(entry, "figures", figures)
    compared = compare_entries([first, second])
    assert caveats(compared)["start_equity"].words == (
        "sums at the start differ (a: 100.0; b: 200.0). Sums of money cannot be compared."
    )
    assert compared.comparable
    assert row(compared, "fees").spoiled
    assert not row(compared, "total_return").spoiled
    assert row(compared, "total_return").best == 1


def test_more_capital_is_another_start_and_no_other_rule(place):
    compared = compare_results([place / "second", place / "rich"])
    assert set(caveats(compared)) == {"start_equity"}
    assert [figure.name for figure in compared.figures if figure.spoiled] == [
        "fees",
        "funding",
        "slippage",
    ]
    assert [(setting.name, setting.cells) for setting in compared.settings] == [
        ("capital", ("nothing", "90000.0"))
    ]


def test_another_length_of_a_bar_spoils_figures_of_one_bar_alone():
    first, second = steady_entry("a", 0.0), steady_entry("b", 0.001)
    object.__setattr__(second, "terms", {**second.terms, "interval": "4h", "data": "e"})
    figures = {name: Statement(1.0) for name in ("cvar", "sharpe")}
    for entry in (first, second):
        object.__setattr__(entry, "figures", figures)
    compared = compare_entries([first, second])
    assert set(caveats(compared)) == {"interval"}
    assert row(compared, "cvar").spoiled
    assert not row(compared, "sharpe").spoiled


def test_what_is_not_known_is_not_taken_for_equal():
    first, second = steady_entry("a", 0.0), steady_entry("b", 0.001)
    for entry in (first, second):
        object.__setattr__(entry, "terms", {**entry.terms, "data": None})
    compared = compare_entries([first, second])
    assert caveats(compared)["data"].words.startswith("stored bars are not known of a, b: ")
    assert not compared.comparable


def test_a_test_on_seen_bars_is_not_compared_with_one_on_new_bars(place):
    first, second = (read_entry(place / name, name=name) for name in ("first", "second"))
    object.__setattr__(second, "terms", {**second.terms, "seen": False})
    warnings = caveats(compare_entries([first, second]))
    assert warnings["seen"].words == (
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
    compared = compare_results([place / "first", place / "dear", place / "late"])
    rows = {setting.name: setting.cells for setting in compared.settings}
    assert rows == {
        "allow": ("[]", '["costs"]', "[]"),
        "delay_bars": ("0", "0", "1"),
        "market.costs.taker_fee": ("0.0005", "0.002", "0.0005"),
    }


def test_order_steps_against_none_are_a_difference():
    first, second = steady_entry("a", 0.0), steady_entry("b", 0.001)
    object.__setattr__(first, "settings", {"filters": None, "market": None})
    object.__setattr__(second, "settings", {"filters.lot": 0.1, "market.funding": True})
    compared = compare_entries([first, second])
    # a market that is nothing is the agent's: it says nothing about a difference
    assert [(setting.name, setting.cells) for setting in compared.settings] == [
        ("filters.lot", ("nothing", "0.1"))
    ]
    assert set(caveats(compared)) == {"rules"}


def test_agents_that_act_otherwise_on_the_same_market_are_comparable():
    first, second = steady_entry("a", 0.0), steady_entry("b", 0.001)
    object.__setattr__(
        first, "settings", {"market.levels": [0, 1], "market.limits.max_leverage": 1}
    )
    object.__setattr__(second, "settings", {"market.levels": [-1], "market.limits.max_leverage": 1})
    compared = compare_entries([first, second])
    assert [setting.name for setting in compared.settings] == ["market.levels"]
    assert compared.comparable
    object.__setattr__(second, "settings", {"market.levels": [-1], "market.limits.max_leverage": 3})
    compared = compare_entries([first, second])
    assert caveats(compared)["rules"].words.startswith(
        "rules of the accounts differ (`market.limits.max_leverage`)."
    )
    assert not compared.comparable


# ------------------------------------------------------------------ runs and validations


def test_runs_are_compared_by_their_scores_settings_and_hashes(runs):
    compared = compare_results([runs / "one", runs / "two"])
    assert compared.comparable
    assert {setting.name: setting.cells for setting in compared.settings} == {
        "ppo.gamma": ("0.99", "0.9"),
        "seed": ("5", "9"),
    }
    lines = (runs / "one" / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    scores = [event["score"] for event in events if event["kind"] == "trial"]
    first = compared.entries[0]
    assert first.figures["best_score"].value == max(scores)
    kept = next(event for event in events if event.get("score") == max(scores))
    assert first.figures["best_score"].low == kept["score_low"] < max(scores)
    assert first.figures["best_score"].high == kept["score_high"] > max(scores)
    assert first.figures["last_score"].value == scores[-1]
    assert first.figures["evaluations"].value == len(scores) == 3
    assert first.figures["updates"].value == 6.0
    assert first.figures["steps"].value == 192.0
    assert first.curve.x.tolist() == [2, 4, 6]
    assert first.curve.y.tolist() == scores
    hashes = {each.name: each.same for each in compared.hashes}
    assert hashes == {"data": True, "config": False, "features": True}
    assert compared.differences == ()
    assert first.notes == ()


def test_a_run_that_has_not_finished_says_so(runs):
    compared = compare_results([runs / "one", runs / "young"])
    young = compared.entries[1]
    assert young.notes == ("the run has not finished: interrupted",)
    assert young.figures["best_score"].reason == "not enough data: needs 1 evaluations, found 0"
    assert row(compared, "best_score").best is None


def test_a_run_and_a_backtest_are_never_compared(place, runs):
    compared = compare_results([runs / "one", place / "first"])
    assert caveats(compared)["kind"].words == (
        "kinds differ (one: a run; first: a backtest). Their figures are about different things."
    )
    assert not compared.comparable
    assert row(compared, "sharpe").cells[0] is None
    assert not row(compared, "sharpe").spoiled  # nothing stands beside it


def test_validations_bring_their_verdicts_notes_and_rules(tmp_path):
    bars = panel(180)
    result = backtest(agent_for(bars), bars, plain())
    write_validation(tmp_path / "a", result)
    write_validation(tmp_path / "b", result, decision="reject", seeds=(1, 2, 3))
    compared = compare_results([tmp_path / "a", tmp_path / "b"])
    assert [entry.verdict.decision for entry in compared.entries] == ["not proven", "reject"]
    assert [reason.cells for reason in compared.reasons] == [
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
    assert [each.name for each in compared.hashes if each.same] == ["agent", "config", "data"]
    page = comparison_page(compared)
    assert '<span class="badge warn">not proven</span>' in page
    assert '<span class="badge bad">reject</span>' in page


def test_validations_are_read_as_they_are_written(tmp_path):
    bars = world(200)
    for name, seeds in (("two", (3, 7)), ("one", (3,))):
        config = settings(folds=2, costs=False, seeds=seeds)
        validation = validate(bars, config, fit=fitter(bars), training={"steps": 5})
        save_validation(tmp_path / name, validation)
    compared = compare_results([tmp_path / "two", tmp_path / "one"])
    document = json.loads((tmp_path / "two" / "validation.json").read_text())
    two = compared.entries[0]
    assert two.verdict.document() == document["verdict"]
    names = {reason.name for reason in two.verdict.reasons}
    assert {reason.name for reason in compared.reasons} >= names
    assert two.figures["total_return"].value == document["metrics"]["total_return"]["value"]
    assert two.terms["costs"] == document["settings"]["backtest"]["market"]["costs"]
    assert set(caveats(compared)) == {"seeds", "start_equity"}  # each seed brings its capital
    assert compared.comparable
    assert [(setting.name, setting.cells) for setting in compared.settings] == [
        ("validation.seeds", ("[3, 7]", "[3]"))
    ]
    assert compared.differences[0].mean.found == document["bars"]


# ------------------------------------------------------------------ page and command


def test_the_page_is_the_same_bytes_and_shows_names_as_text(place, tmp_path):
    evil = tmp_path / "<img src=x onerror=alert(1)>"
    (place / "first").rename(evil)
    try:
        compared = compare_results([evil, place / "second"])
        text = comparison_page(compared)
        assert text == comparison_page(compare_results([evil, place / "second"]))
    finally:
        evil.rename(place / "first")
    assert "<img" not in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text


def printed(*words):
    import typer

    app = typer.Typer()
    app.command()(verb)
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_says_first_what_must_not_be_compared(place, tmp_path):
    out = tmp_path / "deep" / "page.html"
    output = printed(place / "first", place / "dear", "--out", out)
    lines = output.splitlines()
    assert lines[0] == "figures marked ≠ must not be compared:"
    assert lines[1].startswith("! costs differ (`taker_fee` first 0.0005, dear 0.002).")
    assert "total return ≠" in output
    assert "★" not in output
    assert lines[-1] == f"wrote {out}"
    assert out.read_text().startswith("<!DOCTYPE html>")


def test_the_command_marks_the_better_of_comparable_figures(place):
    output = printed(place / "first", place / "second")
    assert output.splitlines()[0] == "figures may be compared: same bars, same costs, same rules"
    assert "★" in output
    assert "≠" in output  # agents differ by their hash
    assert "second minus first: " in output


# ------------------------------------------------------------------ refusals


@pytest.mark.refusal
def test_one_folder_alone_or_twice_is_refused(place):
    with pytest.raises(ArgumentError) as caught:
        compare_results([place / "first"])
    assert str(caught.value) == (
        "at least two folders must be given to be compared; found 1. Name runs, backtests or "
        "validations; one alone is shown by `stormsail report`. [missing-argument]"
    )
    with pytest.raises(RangeError) as twice:
        compare_results([place / "first", place / "second", place / ".." / place.name / "first"])
    assert str(twice.value) == (
        f"each folder must be given once; found {place / '..' / place.name / 'first'} again. "
        "Leave the second one out. [out-of-range]"
    )


@pytest.mark.refusal
def test_what_is_no_run_backtest_or_validation_is_refused(place, tmp_path):
    agent_for(panel(40)).save(tmp_path / "agent")
    with pytest.raises(ArtifactError) as caught:
        compare_results([place / "first", tmp_path / "agent"])
    assert str(caught.value) == (
        f"{tmp_path / 'agent'} must be the folder of a `backtest` or a `validation`; found "
        "`agent`. Pass what `stormsail backtest` or `stormsail validate` wrote with `--out`; runs "
        "are taken by `stormsail compare` and `stormsail report --run`. [artifact-kind]"
    )


@pytest.mark.refusal
def test_a_run_with_damaged_settings_is_refused(runs, tmp_path):
    shutil.copytree(runs / "one", tmp_path / "run")
    (tmp_path / "run" / "config.toml").write_text("seed = ")
    with pytest.raises(ArtifactError) as caught:
        compare_results([runs / "two", tmp_path / "run"])
    assert caught.value.code == "artifact-document"
    assert str(tmp_path / "run" / "config.toml") in str(caught.value)


# ------------------------------------------------------------------ policies


def test_policies_that_differ_are_said_and_spoil_nothing(place, tmp_path):
    bars = panel(180)
    drawn = backtest(agent_for(bars, seed=4), bars, plain(greedy=False))
    write_backtest(tmp_path / "drawn", drawn)
    compared = compare_results([place / "first", tmp_path / "drawn"])
    assert set(caveats(compared)) == {"policy"}
    assert caveats(compared)["policy"].words == (
        'policies differ (first: "greedy"; drawn: "sampled"). Likeliest actions are compared with '
        "drawn ones, whose result is one draw of many."
    )
    assert compared.comparable


def test_a_backtest_of_an_earlier_version_names_its_policy_by_its_settings(place, tmp_path):
    bars = panel(180)
    result = backtest(agent_for(bars, seed=4), bars, plain(greedy=False))
    contents = contents_of(result, {}, {})
    del contents.documents["summary"]["policy"]
    write_artifact(tmp_path / "old", kind="backtest", contents=contents)
    assert read_entry(tmp_path / "old", name="old").terms["policy"] == "sampled"
    assert read_entry(place / "first", name="first").terms["policy"] == "greedy"


def test_a_validation_names_the_policies_of_its_agents(tmp_path):
    bars = world(200)
    made = fitter(bars)

    def fit(config, span, seed):
        agent = made(config, span, seed)
        agent.judged_policy = "sampled" if seed else "greedy"
        return agent

    rules = settings(folds=1, baselines=False, costs=False)
    save_validation(tmp_path / "mixed", validate(bars, rules, fit=fit))
    assert read_entry(tmp_path / "mixed", name="mixed").terms["policy"] == "greedy, sampled"


def test_a_run_says_that_its_best_agent_was_judged_by_the_sampled_policy(tmp_path):
    run_all(small(validation__policy="sampled"), tmp_path / "run")
    entry = read_entry(tmp_path / "run", name="run")
    assert entry.notes == ("its best agent was judged by the sampled policy",)
