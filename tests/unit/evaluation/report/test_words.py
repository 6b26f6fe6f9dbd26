"""Texts of a report: metrics, verdicts, evidence for and against a backtest."""

import re

import numpy as np
import pyarrow as pa
import pytest

from simulator_lab import HOUR_MS
from stormsail.evaluation.report.sections import verdict_section
from stormsail.evaluation.report.words import (
    PERCENT,
    cell,
    charged_bp,
    evidence,
    figure,
    hour,
    kept_figure,
    not_measured,
    summary_words,
)
from stormsail.evaluation.saved import Result
from stormsail.evaluation.stats.statement import Statement
from stormsail.evaluation.walk_forward.verdict import Reason, Verdict


def saved(value, low=None, high=None):
    return Statement(value, low, high).document()


def made(kind="backtest", documents=None, trades=None, verdict=None, **document):
    equity = pa.table({"ts": HOUR_MS * np.arange(3), "total": [100.0, 110.0, 105.0]})
    none = pa.table({"ts": pa.array([], pa.int64())})
    metrics = {"bar_ms": HOUR_MS, "total_return": saved(0.05), "max_drawdown": saved(-0.045454)}
    main = {"symbols": ["A", "B"], "metrics": metrics, **document}
    return Result(
        "one",
        kind,
        main,
        equity,
        none if trades is None else trades,
        none,
        documents or {},
        verdict=verdict,
    )


def test_a_figure_has_its_interval_or_says_what_it_needs():
    assert cell(Statement(0.1234), PERCENT) == "+12.34%"
    assert cell(Statement(0.5, 0.4, 0.6), "{:.1f}") == "0.5 [0.4, 0.6]"
    assert cell(Statement(1.0, 0.5), "{:.1f}") == "1.0 [0.5, …]"
    short = figure(Statement(None, needed=200, found=31), PERCENT)
    assert short.text == "not enough data: needs 200 bars, found 31"
    assert not short.known
    assert figure(None, PERCENT).text == "not measured"
    assert figure(Statement(None, needed=1, found=1, why="there was no loss"), PERCENT).text == (
        "there was no loss"
    )


def test_a_kept_figure_without_its_reason_says_how_many_bars_it_lacks():
    assert kept_figure({"bars": 168, "cvar": None}, "cvar", PERCENT) == "needs 200 bars, found 168"
    assert kept_figure({"bars": 900, "sharpe": None}, "sharpe", PERCENT) == "not defined"
    assert kept_figure({"bars": 168, "cvar": -0.01}, "cvar", PERCENT) == "-1.00%"


def test_costs_that_were_charged_are_basis_points_of_what_was_traded():
    trades = pa.table(
        {
            "quantity": [2.0, 1.0],
            "price": [100.0, 50.0],
            "fee": [0.1, 0.02],
            "slippage": [0.04, 0.0],
        }
    )
    # 0.16 paid on a notional of 250
    assert charged_bp(made(trades=trades)) == pytest.approx(6.4, rel=1e-12)
    assert charged_bp(made()) is None


def test_what_fails_comes_before_what_is_unknown_and_what_holds():
    reasons = (
        Reason("a", holds=True, words="fine"),
        Reason("b", None, "unknown"),
        Reason("c", holds=False, words="fails"),
    )
    page = verdict_section([made("validation", verdict=Verdict("reject", "No.", reasons))])
    assert re.findall(r'<li class="(\w+)">(\w+)</li>', page) == [
        ("bad", "fails"),
        ("warn", "unknown"),
        ("good", "fine"),
    ]
    assert '<span class="badge bad">reject</span></div><p class="words">No.</p>' in page


def test_a_backtest_claims_no_verdict_and_names_what_was_not_measured():
    result = made()
    words = "Over 2 bars (0.1 days) of A, B it earned 5.00% after all costs; "
    words += "the max drawdown was 4.55%."
    assert summary_words(result) == words
    head = f'<span class="badge info">no verdict</span></div><p class="words">{words} One backtest'
    assert head in verdict_section([result])
    unknown = [reason.words for reason in evidence(result) if reason.holds is None]
    assert unknown == [
        "Baselines: not measured; run with `--baselines`.",
        "Significance: not measured; run with `--significance`.",
        "Costs: not measured; run with `--costs`.",
        "Predicted tail: not measured; run with `--calibration`.",
    ]


def test_evidence_against_a_backtest_has_its_numbers():
    trades = pa.table({"quantity": [1.0], "price": [100.0], "fee": [0.05], "slippage": [0.0]})
    documents = {
        "baselines": {"buy and hold": {"total_return": 0.08}},
        "significance": {"trials": 12, "deflated": saved(0.71)},
        "costs": {"replay": {"break_even": {"cost_bp": 9.0, "low_bp": 8.9, "reason": ""}}},
        "calibration": {
            "tail": {
                "predicted": saved(-0.02),
                "realised": saved(-0.05, -0.06, -0.04),
                "gap": saved(-0.03, -0.04, -0.02),
            }
        },
    }
    reasons = evidence(made(documents=documents, trades=trades, overlaps_training=True))
    assert [reason.words for reason in reasons if reason.holds is False] == [
        "The span overlaps the training span: this is no test.",
        "Against buy and hold: +5.00% to +8.00%.",
        "Probability that the true Sharpe ratio is above 0 after 12 trials: 71.0% (needed 95%).",
        "Break-even cost 9.0 bp of notional; charged 5.0 bp (needed 2 times that).",
        "CVaR of a window: predicted -2.000%, realised -5.000%; worse than predicted.",
    ]


def test_a_tail_that_may_be_as_predicted_is_not_held_against_it():
    tail = {"predicted": saved(-0.02), "realised": saved(-0.03), "gap": saved(-0.01, -0.02, 0.001)}
    reasons = evidence(made(documents={"calibration": {"tail": tail}}))
    words = "CVaR of a window: predicted -2.000%, realised -3.000%; not worse than predicted."
    assert [reason.holds for reason in reasons if reason.words == words] == [True]


def test_what_was_not_measured_says_how_to_measure_it():
    assert not_measured(made(), "costs") == "not measured: run with `--costs`"
    assert not_measured(made(kind="validation"), "costs") == (
        "not measured: `costs` was switched off in this validation"
    )
    assert hour("2021-03-07T12:00:00Z") == "2021-03-07 12:00"


def test_how_actions_were_decided_is_said():
    assert summary_words(made(policy="sampled")).endswith(
        "4.55%. Actions were drawn (sampled policy)."
    )
    assert summary_words(made(policy="greedy")).endswith(
        "4.55%. Actions were the likeliest ones (greedy policy)."
    )
    runs = [{"policy": "greedy"}, {"policy": "sampled"}, {"policy": None}, {"policy": "greedy"}]
    assert summary_words(made("validation", runs=runs)).endswith(
        "4.55%. 1 of 3 agents drew their actions, as judged."
    )
    assert summary_words(made("validation", runs=runs[:1])).endswith("(greedy policy).")
