"""Texts of a report: metrics, verdicts, evidence for and against a backtest."""

import re

import numpy as np
import pyarrow as pa
import pytest

from simulator_lab import HOUR_MS
from stormsail.evaluation.report.verdict_sections import (
    first_figure,
    gaps_section,
    rules_section,
    verdict_section,
)
from stormsail.evaluation.report.words import (
    PERCENT,
    calibration_gap,
    cell,
    charged_bp,
    evidence,
    figure,
    hour,
    kept_figure,
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
    assert cell(Statement(None, needed=200, found=31), PERCENT) == "\u2013"  # one box says why
    assert figure(None, PERCENT).text == "not measured"
    assert figure(Statement(None, needed=1, found=1, why="there was no loss"), PERCENT).text == (
        "there was no loss"
    )


def test_a_kept_figure_with_too_few_bars_is_a_dash_and_one_without_meaning_is_not():
    assert kept_figure({"bars": 168, "cvar": None}, "cvar", PERCENT) == "\u2013"
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
    assert '<p class="words"><span class="badge bad">reject</span> No.</p>' in page


def test_three_rules_stand_on_the_first_screen_and_all_of_them_in_the_table():
    reasons = [Reason(f"r{k}", holds=k > 4, words=f"w{k}") for k in range(7)]
    tail = Reason("tail", None, "open tail")
    verdict = Verdict(
        "reject", "No.", tuple(reasons), (tail,), {"few bars": "a squeeze"}, capital_share=0.25
    )
    result = made("validation", verdict=verdict)
    first = verdict_section([result])
    assert re.findall(r"<li[^>]*>(\w+)</li>", first) == ["w0", "w1", "w2"]
    table = rules_section([result])
    rows = re.findall(r'<tr class="(\w+)"><th scope="row">(.) (\w+)</th>', table)
    assert [name for _, _, name in rows] == ["r0", "r1", "r2", "r3", "r4", "tail", "r5", "r6"]
    assert [(kind, sign) for kind, sign, _ in rows][4:6] == [("bad", "✗"), ("warn", "?")]
    assert "few bars: explained as “a squeeze”" in table
    assert "at most 25% is traded" in table


def test_the_four_figures_carry_the_intervals_of_the_bootstrap():
    intervals = {"mean_return": saved(0.0001, -0.0001, 0.0003), "sharpe": saved(1.5, 0.2, 2.8)}
    result = made(documents={"significance": {"intervals": intervals}})
    yearly = first_figure(result, "mean_return")
    # 8,760 hours a year
    assert (yearly.value, yearly.low, yearly.high) == pytest.approx((0.876, -0.876, 2.628))
    assert first_figure(result, "sharpe").low == 0.2
    assert first_figure(result, "max_drawdown").low is None
    # without a bootstrap: returns of +10 % and -4.545 %
    bare = first_figure(made(), "mean_return")
    assert bare.value == pytest.approx(8_760 * (0.1 - 5.0 / 110.0) / 2.0)
    page = verdict_section([result])
    assert page.count('class="tile"') == 4
    assert "[0.20, 2.80]" in page
    assert "no interval" in page


def test_too_little_data_and_what_was_not_measured_are_said_once():
    short = Statement(None, needed=200, found=2).document()
    metrics = {"bar_ms": HOUR_MS, "cvar": short, "value_at_risk": short, "skew": saved(0.1)}
    result = made(metrics=metrics, documents={"costs": {}})
    page = gaps_section([result])
    titles = "value at risk 5 %, one bar, CVaR 5 %, one bar"
    assert f"Too little data for {titles} (needs 200 bars, found 2); rolling risk" in page
    assert "(needs 400 bars, found 2)." in page
    assert "Not measured: baselines, calibration, performance, significance, stress; run" in page
    assert "run with <code>--baselines</code> <code>--calibration</code>" in page
    assert "switched off in this validation" in gaps_section([made("validation")])


def test_a_critic_can_be_judged_where_one_level_has_windows():
    few = Statement(None, needed=200, found=19, unit="windows that share no bar").document()
    levels = [{"level": 0.05, "share": few}, {"level": 0.5, "share": {**few, "needed": 20}}]
    gap = calibration_gap(made(documents={"calibration": {"coverage": levels}}))
    assert gap == "needs 20 windows that share no bar, found 19"
    known = [*levels, {"level": 0.9, "share": saved(0.9)}]
    assert calibration_gap(made(documents={"calibration": {"coverage": known}})) == ""
    reason = {"reason": "the discount is 1"}
    assert calibration_gap(made(documents={"calibration": reason})) == "the discount is 1"
    assert calibration_gap(made()) == ""


def test_a_backtest_claims_no_verdict_and_names_what_was_not_measured():
    result = made()
    words = "Over 2 bars (0.1 days) of A, B it earned 5.00% after all costs; "
    words += "the max drawdown was 4.55%."
    assert summary_words(result) == words
    page = verdict_section([result])
    assert '<p class="words"><span class="badge info">no verdict</span> One backtest proves' in page
    assert f'<p class="lead">{words}</p>' in page
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


def test_times_are_shown_to_the_minute():
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
