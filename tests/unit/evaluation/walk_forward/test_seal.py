"""Sealed bars: what overlaps, what is recorded, and what every later verdict says."""

import pytest

from stormsail.core.clock import ManualClock
from stormsail.core.errors import ConfigError
from stormsail.evaluation import validate
from stormsail.evaluation.robustness.self_tests import SelfTest
from stormsail.evaluation.stats.trials import TrialLedger
from stormsail.evaluation.walk_forward.judge import _RunSet
from stormsail.evaluation.walk_forward.run import plan
from stormsail.evaluation.walk_forward.seal import (
    Sealed,
    open_seals,
    opened_words,
    openings_of,
    recorded_look,
    sealing,
)
from stormsail.evaluation.walk_forward.verdict import Verdict, unsealed
from stormsail.market.splits import Span
from validation_lab import fitter, settings, world

BTC, ETH = "BTC/USDT", "ETH/USDT"
SPAN = Span(100, 200)


@pytest.fixture
def ledger(tmp_path):
    return TrialLedger(tmp_path / "trials.jsonl", clock=ManualClock(1_700_000_000_000_000_000))


def seal(ledger, symbols=(BTC,), span=SPAN, name="v", key="k", status="started"):
    ledger.record(
        "validation", name, config_hash="", data_hash="d", sharpe_per_bar=None, bars=0,
        status=status, extra={"run_key": key, **Sealed(tuple(symbols), span).document()},
    )  # fmt: skip


def look(ledger, symbols=(BTC,), span=SPAN, *, sharpe=0.1, error=None, later=None):
    bars = Sealed(tuple(symbols), span)
    with recorded_look(ledger, "agent", bars, config_hash="c", data_hash="e") as seen:
        if error is not None:
            raise error
        if seen is not None:
            seen.sharpe_per_bar, seen.bars = sharpe, 9
        if later is not None:
            raise later
    return seen


@pytest.mark.parametrize(
    ("symbols", "span", "shared"),
    [
        ((BTC,), Span(100, 200), True),
        ((BTC,), Span(100, 199), True),
        ((ETH, BTC), Span(199, 400), True),
        ((BTC,), Span(0, 101), True),
        ((BTC,), Span(0, 100), False),
        ((BTC,), Span(200, 300), False),
        ((ETH,), Span(100, 200), False),
        ((), Span(150, 160), True),
    ],
)
def test_bars_are_the_same_by_symbol_and_time(symbols, span, shared):
    first, second = Sealed((BTC,), SPAN), Sealed(symbols, span)
    assert first.overlaps(second) is second.overlaps(first) is shared
    assert Sealed.read(second.document()) == second


def test_a_backtest_on_sealed_bars_is_an_opening_and_a_trial_each_time(ledger):
    seal(ledger)
    seal(ledger, name="w", key="l", span=Span(150, 300))
    first = look(ledger, (ETH, BTC), Span(190, 200))
    assert (first.sealed_by, first.before) == (("v", "w"), 0)
    assert "recorded as their opening number 1 and counts as a trial" in first.words
    again = look(ledger, (ETH, BTC), Span(190, 200))
    assert again.before == 1
    lines = [(line.kind, line.status, line.sharpe_per_bar) for line in ledger.read().trials[2:]]
    assert lines == [("backtest", "started", None), ("backtest", "finished", 0.1)] * 2
    assert ledger.count() == 2 + 2
    assert len(openings_of(ledger.read(), Sealed((BTC,), Span(199, 210)))) == 2
    assert openings_of(ledger.read(), Sealed((BTC,), Span(200, 210))) == []


def test_a_backtest_elsewhere_writes_nothing(ledger):
    seal(ledger)
    assert look(ledger, (ETH,)) is None
    assert look(ledger, (BTC,), Span(0, 100)) is None
    assert len(ledger.read().trials) == 1


def test_one_that_failed_has_shown_nothing_and_one_that_was_killed_may_have(ledger):
    seal(ledger)
    with pytest.raises(ValueError, match="bad"):
        look(ledger, error=ValueError("bad"))
    assert (ledger.count(), ledger.openings()) == (1, ())
    with pytest.raises(KeyboardInterrupt):
        look(ledger, error=KeyboardInterrupt())
    assert (ledger.count(), len(ledger.openings())) == (2, 1)


def test_one_that_failed_after_it_was_seen_is_an_opening_even_without_a_sharpe_ratio(ledger):
    seal(ledger)
    with pytest.raises(ValueError, match="full disk"):
        look(ledger, sharpe=None, later=ValueError("full disk"))
    assert (ledger.count(), len(ledger.openings())) == (2, 1)


def test_each_validation_seals_once(ledger):
    seal(ledger)
    seal(ledger, status="finished")
    assert [line.number for line in sealing(ledger.read(), Sealed((BTC,), SPAN))] == [1]


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        ("reject", "Reject: opened."),
        ("not proven", "Not proven: opened."),
        ("promote", "Promote: all 0 rules hold, with 25% of the capital: opened."),
    ],
)
def test_every_verdict_says_that_its_seal_was_broken(decision, words):
    verdict = unsealed(Verdict(decision, "", ()), "opened", conditional_capital=0.25)
    assert (verdict.decision, verdict.words) == (decision, words)
    assert [reason.name for reason in verdict.conditions] == ["seal"]
    assert verdict.capital_share == (0.25 if decision == "promote" else 0.0)


def test_a_validation_seals_and_the_next_one_tells_of_the_look(ledger, monkeypatch):
    monkeypatch.setattr(_RunSet, "self_tests", lambda *_: (SelfTest("none", True, ""),))
    bars, small = world(200), settings(folds=2, baselines=False, costs=False)
    first = validate(bars, small, fit=fitter(bars), ledger=ledger, name="first")
    sealed = Sealed(bars.symbols, first.plan.final.test)
    assert Sealed.of(ledger.read().trials[0]) == sealed
    with recorded_look(ledger, "agent", sealed, config_hash="", data_hash="") as seen:
        seen.sharpe_per_bar = 0.5
    second = validate(bars, small, fit=fitter(bars), ledger=ledger, name="second")
    assert (
        "opened 1 time before, by backtest `agent` at 2023-11-14T22:13:20Z" in second.verdict.words
    )
    assert second.openings == 1
    # the first validation and the look; seeds count as two
    assert second.judgement.trials.count == 1 + 1 + 2
    assert plan(bars, small, ledger=ledger).trials == 3 + 2


def test_a_validation_that_reads_sealed_bars_in_its_folds_opens_them(ledger, monkeypatch, caplog):
    """Else a smaller share of closed bars would judge on the ones that another keeps closed."""
    monkeypatch.setattr(_RunSet, "self_tests", lambda *_: (SelfTest("none", True, ""),))
    bars, small = world(260), settings(folds=2, baselines=False, costs=False)
    large = small.replace(test_share=0.3)
    first = validate(bars, large, fit=fitter(bars), ledger=ledger, name="first")
    assert (first.openings, ledger.openings()) == (0, ())
    second = validate(bars, small, fit=fitter(bars), ledger=ledger, name="second")
    assert "reads bars that are sealed as the final test span of `first`" in caplog.text
    assert (second.openings, second.verdict.conditions) == (0, first.verdict.conditions)
    validate(bars, small, fit=fitter(bars), ledger=ledger, name="third")
    (opening,) = ledger.openings()
    assert (opening.kind, opening.name, opening.number) == ("test-opened", "second", 4)
    seen = Span(int(bars.ts[0]), second.plan.development.end_ms)
    assert Sealed.of(opening) == Sealed(bars.symbols, seen)
    assert ledger.count() == 3
    again = validate(bars, large, fit=fitter(bars), ledger=ledger, name="fourth")
    assert "opened 1 time before, by validation `second` at 2023-11-14" in again.verdict.words
    with pytest.raises(ConfigError, match="found that `second` opened it"):
        validate(bars, large.replace(open_test=True), fit=fitter(bars), ledger=ledger, name="first")


def test_a_training_that_reads_sealed_bars_opens_them_once(ledger, caplog):
    seal(ledger)
    own = {"by": "training", "config_hash": "c", "data_hash": "e"}
    open_seals(ledger, "elsewhere", Sealed((BTC,), Span(0, 100)), key="x", **own)
    open_seals(ledger, "other", Sealed((ETH,), SPAN), key="y", **own)
    assert ledger.openings() == ()
    for name in ("all", "more"):
        open_seals(ledger, name, Sealed((BTC,), Span(0, 101)), key=name, **own)
    (opening,) = openings_of(ledger.read(), Sealed((BTC,), SPAN))
    assert opened_words([opening]) == (
        "the final test span was opened 1 time before, by training `all` at 2023-11-14T22:13:20Z: "
        "it confirms nothing any more"
    )
    assert ledger.count() == 1
    assert len(caplog.records) == 1
