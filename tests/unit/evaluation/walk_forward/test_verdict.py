"""The verdict: every rule flips its own reason and nothing else."""

from dataclasses import replace

import pytest

from stormsail.core.errors import ChoiceError
from stormsail.evaluation.robustness.costs import BreakEven
from stormsail.evaluation.robustness.self_tests import SelfTest
from stormsail.evaluation.stats.sharpe_difference import SharpeDifference
from stormsail.evaluation.stats.statement import Statement
from stormsail.evaluation.walk_forward.config import VerdictRules
from stormsail.evaluation.walk_forward.verdict import (
    NOT_MEASURED,
    Evidence,
    Tail,
    decide,
    judge_final,
    lowered,
)

RULES = VerdictRules()


def known(value, low=None, high=None):
    return Statement(value, low, high, needed=30, found=500)


def beaten(p):
    return SharpeDifference(known(0.5, 0.1, 0.9), known(0.1, 0.02, 0.18), known(p))


SHORT = Statement(None, needed=200, found=50)
GOOD = Evidence(
    self_tests=(SelfTest("oracle", True, ""), SelfTest("noise", True, "")),
    failed_folds=(),
    fold_returns=(0.1, 0.2, -0.1),
    seed_returns=(0.1, 0.2, -0.1),
    total_return=known(0.2),
    mean_return=known(2e-4, 1e-4, 3e-4),
    liquidations=0,
    stops=0,
    deflated=known(0.95),
    baselines={"buy and hold": beaten(0.05), "momentum": beaten(0.01)},
    break_even=BreakEven(14.0, 13.99, 14.01, ""),
    charged_bp=7.0,
    cost_floor_bp=2.0,
    tail=Tail(24, known(-0.01, -0.02, 0.0)),
    judged_tail=None,
    clairvoyant_share=known(0.5),
    losing_year=known(1e-6),
    dead_fills=0,
    best_bars_share=known(0.5),
    end_ms=1_767_225_600_000,  # 2026
)
NAMES = (
    "self-tests", "training", "return", "no proven loss", "ruin", "deflated Sharpe", "mean return",
    "baselines", "folds", "seeds", "costs", "tail", "clairvoyant", "losing year", "cost floor",
    "dead bars", "few bars",
)  # fmt: skip


def holds(evidence):
    return {one.name: one.holds for one in decide(evidence, RULES).reasons}


def test_everything_at_its_threshold_is_promoted():
    verdict = decide(GOOD, RULES)
    assert tuple(one.name for one in verdict.reasons) == NAMES
    assert [one.holds for one in verdict.reasons] == [True] * len(NAMES)
    assert verdict.decision == "promote"
    assert verdict.words == "Promote: all 17 rules hold."
    assert (verdict.conditions, verdict.capital_share) == ((), 1.0)


FLIPS = [
    # one change, the reason that it flips, to what, and the decision
    ({"self_tests": (SelfTest("noise", False, ""),)}, "self-tests", False, "reject"),
    ({"self_tests": (SelfTest("noise", None, ""),)}, "self-tests", None, "not proven"),
    ({"self_tests": ()}, "self-tests", None, "not proven"),
    ({"failed_folds": (1,)}, "training", False, "reject"),
    ({"total_return": known(0.0)}, "return", False, "reject"),
    ({"liquidations": 1}, "ruin", False, "reject"),
    ({"stops": 1}, "ruin", False, "reject"),
    ({"deflated": known(0.949)}, "deflated Sharpe", False, "not proven"),
    ({"mean_return": known(1e-4, 0.0, 2e-4)}, "mean return", False, "not proven"),
    ({"baselines": {"a": beaten(0.01), "b": beaten(0.051)}}, "baselines", False, "not proven"),
    ({"baselines": {}}, "baselines", None, "not proven"),
    ({"fold_returns": (0.1, -0.1, 0.3, -0.2)}, "folds", False, "not proven"),
    ({"fold_returns": (0.1, 0.0)}, "folds", False, "not proven"),
    ({"seed_returns": (0.1, -0.1)}, "seeds", False, "not proven"),
    ({"charged_bp": 7.01}, "costs", False, "not proven"),
    ({"break_even": BreakEven(None, 0.0, 0.0, "nothing is earned")}, "costs", False, "not proven"),
    ({"break_even": None}, "costs", None, "not proven"),
    ({"tail": Tail(24, known(-0.02, -0.03, -1e-9))}, "tail", False, "not proven"),
    ({"clairvoyant_share": known(0.501)}, "clairvoyant", False, "not proven"),
    ({"clairvoyant_share": NOT_MEASURED}, "clairvoyant", None, "not proven"),
    ({"losing_year": known(9e-7)}, "losing year", False, "not proven"),
    ({"losing_year": NOT_MEASURED}, "losing year", None, "not proven"),
    ({"cost_floor_bp": 7.01, "break_even": BreakEven(15.0, 15.0, 15.0, "")}, "cost floor", False,
     "not proven"),
    ({"dead_fills": 1}, "dead bars", False, "not proven"),
    ({"best_bars_share": known(0.501)}, "few bars", False, "not proven"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "name", "held", "decision"), FLIPS)
def test_each_rule_flips_its_own_reason_alone(change, name, held, decision):
    changed = replace(GOOD, **change)
    assert holds(changed) == {**holds(GOOD), name: held}
    assert decide(changed, RULES).decision == decision


def test_a_proven_loss_breaks_both_rules_of_the_mean_return():
    losing = replace(GOOD, mean_return=known(-2e-4, -3e-4, -1e-9))
    assert holds(losing) == {**holds(GOOD), "no proven loss": False, "mean return": False}
    assert decide(losing, RULES).decision == "reject"
    touching = replace(GOOD, mean_return=known(-2e-4, -3e-4, 0.0))
    assert holds(touching) == {**holds(GOOD), "mean return": False}
    assert decide(touching, RULES).decision == "not proven"


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"deflated": SHORT}, ["deflated Sharpe"]),
        ({"baselines": {"a": SharpeDifference(SHORT, SHORT, SHORT)}}, ["baselines"]),
        ({"total_return": SHORT}, ["return"]),
        ({"mean_return": SHORT}, ["no proven loss", "mean return"]),
        ({"charged_bp": None}, ["costs", "cost floor"]),
    ],
)
def test_a_rule_without_data_is_unknown_and_prevents_a_promotion(change, names):
    changed = replace(GOOD, **change)
    assert holds(changed) == {**holds(GOOD), **dict.fromkeys(names)}
    verdict = decide(changed, RULES)
    assert verdict.decision == "not proven"
    assert verdict.capital_share == 0.0


# ------------------------------------------------------------------ conditions


FEW = Statement(None, needed=200, found=19, unit="windows that share no bar")


def test_a_tail_that_no_data_can_decide_is_a_condition_and_no_veto():
    open_tail = replace(GOOD, tail=Tail(230, FEW))
    verdict = decide(open_tail, RULES)
    assert verdict.decision == "promote"
    assert "tail" not in holds(open_tail)
    (condition,) = verdict.conditions
    assert (condition.holds, condition.value, condition.needed) == (None, 19.0, 200.0)
    # (200 - 19) 230 hours are 4.75 years from the beginning of 2026
    wanted = "tail unproven: 19 of 200 windows of 230 bars; enough by 2030-10 at the earliest"
    assert condition.words == wanted
    assert verdict.words == (f"Promote: all 16 rules hold, with 25% of the capital: {wanted}.")
    assert verdict.capital_share == 0.25


def test_a_shorter_horizon_that_can_be_judged_is_a_rule_beside_the_condition():
    shorter = replace(GOOD, tail=Tail(230, FEW), judged_tail=Tail(24, known(0.0, -0.1, 0.1)))
    verdict = decide(shorter, RULES)
    assert holds(shorter)["tail"] is True
    assert verdict.decision == "promote"
    assert verdict.conditions[0].words.endswith("; at 24 bars: proven")
    worse = replace(shorter, judged_tail=Tail(24, known(-0.2, -0.3, -0.1)))
    verdict = decide(worse, RULES)
    assert holds(worse)["tail"] is False
    assert verdict.decision == "not proven"
    assert verdict.conditions[0].words.endswith("; at 24 bars: worse than predicted")


def test_a_critic_that_predicts_nothing_leaves_the_tail_open():
    none = replace(GOOD, tail=Tail(0, Statement(None, why="no critic predicted anything here")))
    verdict = decide(none, RULES)
    assert verdict.decision == "promote"
    assert verdict.conditions[0].words == "tail unproven: no critic predicted anything here"


# ------------------------------------------------------------------ too good to be true


def test_only_writing_lifts_what_is_too_good_to_be_true():
    good = replace(GOOD, clairvoyant_share=known(0.976), dead_fills=3)
    assert decide(good, RULES).decision == "not proven"
    one = decide(good, RULES, explanations={"clairvoyant": " the signal is real "})
    assert one.decision == "not proven"
    texts = {"clairvoyant": "the signal is real", "dead bars": "an auction"}
    both = decide(good, RULES, explanations=texts)
    assert both.decision == "promote"
    assert both.explanations == texts
    assert both.document()["explanations"] == texts
    reason = {one.name: one for one in both.reasons}["clairvoyant"]
    assert reason.holds is True
    assert reason.words == (
        "Of what somebody who knows every bar would have earned, 97.6% was earned; more than 50% "
        "looks like a leak. Explained: the signal is real"
    )


def test_no_explanation_lifts_another_rule():
    poor = replace(GOOD, deflated=known(0.1), dead_fills=1)
    explained = decide(poor, RULES, explanations={"dead bars": "an auction"})
    assert explained.decision == "not proven"
    assert explained.words == "Not proven: does not hold: deflated Sharpe."


@pytest.mark.refusal
@pytest.mark.parametrize("given", [{"deflated Sharpe": "luck"}, {"dead bars": " "}])
def test_an_explanation_of_nothing_is_refused(given):
    with pytest.raises(ChoiceError, match="an explanation must be some text about one of"):
        decide(GOOD, RULES, explanations=given)


def test_costs_of_nothing_are_held_to_the_floor():
    free = replace(GOOD, charged_bp=0.0, break_even=BreakEven(0.5, 0.5, 0.5, ""))
    assert {name for name, held in holds(free).items() if not held} == {"costs", "cost floor"}
    borne = replace(free, break_even=BreakEven(4.0, 4.0, 4.0, ""))
    assert {name for name, held in holds(borne).items() if not held} == {"cost floor"}


def test_the_floor_is_that_of_the_venue():
    assert RULES.cost_floor_bp(["BTC/USDT"]) == 2.0
    assert RULES.cost_floor_bp(["BTC/USDT:USDT", "ETH/USDT:USDT"]) == 1.5
    assert RULES.cost_floor_bp(["BTC/USDT:USDT", "ETH/USDT"]) == 2.0


# ------------------------------------------------------------------ costs, words, thresholds


def test_a_cost_beyond_the_largest_tried_is_borne():
    never = BreakEven(None, 1000.0, float("inf"), "something is earned even at 1000 bp")
    verdict = decide(replace(GOOD, break_even=never), RULES)
    assert verdict.decision == "promote"
    assert verdict.reasons[10].value == 1000.0


def test_words_carry_the_numbers_and_the_sentence_the_broken_rules():
    bad = replace(GOOD, deflated=known(0.5), total_return=known(-0.1234), break_even=None)
    verdict = decide(bad, RULES)
    words = {one.name: one.words for one in verdict.reasons}
    assert words["return"] == "After costs -12.34% was earned out of sample; it must be above 0."
    assert words["deflated Sharpe"] == (
        "After all that was tried, the Sharpe ratio is above 0 with probability 0.500; 0.95 is "
        "needed."
    )
    assert verdict.words == "Reject: does not hold: return, deflated Sharpe; not known: costs."


def test_other_rules_move_the_thresholds():
    strict = RULES.replace(deflated_sharpe=0.96, cost_margin=3.0, earning_share=0.7)
    broken = [one.name for one in decide(GOOD, strict).reasons if not one.holds]
    assert broken == ["deflated Sharpe", "folds", "seeds", "costs"]


STRICTER = [("deflated_sharpe", 0.96), ("superiority_p", 0.05), ("best_bars_share", 0.4)]
LAXER = [
    ("deflated_sharpe", 0.9),
    ("superiority_p", 0.06),
    ("earning_share", 0.4),
    ("cost_margin", 1.5),
    ("clairvoyant_share", 0.6),
    ("losing_year", 0.0),
    ("spot_floor_bp", 1.0),
    ("perpetual_floor_bp", 0.0),
    ("best_bars_share", 0.6),
    ("conditional_capital", 1.0),
]


@pytest.mark.parametrize(("name", "value"), LAXER)
def test_laxer_rules_are_a_condition_that_every_verdict_tells(name, value):
    rules = RULES.replace(**{name: value})
    verdict = decide(GOOD, rules)
    words = (
        f"Judged by laxer rules: `rules.{name}` is {value:g} instead of {getattr(RULES, name):g}"
    )
    assert [(one.name, one.holds, one.words) for one in verdict.conditions] == [
        ("laxer rules", None, f"{words}.")
    ]
    assert verdict.words == f"Promote: all 17 rules hold, with 25% of the capital: {words}."
    assert verdict.capital_share == 0.25
    assert words in decide(replace(GOOD, charged_bp=100.0), rules).words


def test_every_threshold_can_be_laxer_and_stricter_ones_are_no_condition():
    assert {name for name, _ in LAXER} == set(VerdictRules.model_fields)
    assert RULES.replace(**dict(STRICTER)).laxer() == []


# ------------------------------------------------------------------ the final test span


def final(mean, low, high, **changes):
    """Return the verdict on a final span beside folds of 2e-4 [1e-4, 3e-4] a bar."""
    return judge_final(GOOD, replace(GOOD, mean_return=known(mean, low, high), **changes))


def after(verdict, span):
    return lowered(verdict, span, conditional_capital=0.25)


def test_a_short_span_neither_confirms_nor_lowers():
    short = final(-1e-4, -6e-4, 4e-4)
    assert short.decision == "not proven"
    both = after(decide(GOOD, RULES), short)
    assert both.decision == "promote"
    assert (both.conditions[-1].name, both.conditions[-1].holds) == ("test span", None)
    assert both.words.startswith("Promote: all 17 rules hold, with 25% of the capital: Not proven:")
    assert both.words.endswith("it contradicts nothing and is short of a proof.")


def test_a_span_that_earns_for_sure_confirms():
    both = after(decide(GOOD, RULES), final(2e-4, 1e-9, 4e-4))
    assert (both.decision, both.conditions, both.capital_share) == ("promote", (), 1.0)
    assert (both.reasons[-1].name, both.reasons[-1].holds) == ("test span", True)


def test_a_span_contradicts_by_the_interval_of_the_difference():
    # (-1e-4 - 2e-4) + hypot(high + 1e-4, 1e-4): 0 at high = sqrt(9 - 1)e-4 - 1e-4 = 1.828e-4
    against, touching = final(-1e-4, -4e-4, 1.82e-4), final(-1e-4, -4e-4, 1.83e-4)
    assert against.reasons[-1].holds is False
    assert touching.reasons[-1].holds is None
    both = after(decide(GOOD, RULES), against)
    assert (both.decision, both.capital_share) == ("not proven", 0.0)
    assert both.words == "Not proven: does not hold: test span."
    assert after(decide(GOOD, RULES), touching).decision == "promote"


@pytest.mark.parametrize(
    ("mean", "changes"),
    [
        ((-2e-4, -3e-4, -1e-9), {}),
        ((2e-4, 1e-9, 4e-4), {"stops": 1}),
        ((2e-4, 1e-9, 4e-4), {"failed_folds": (0,)}),
        ((2e-4, 1e-9, 4e-4), {"self_tests": (SelfTest("fees", False, ""),)}),
    ],
)
def test_a_proven_loss_or_ruin_in_the_span_rejects(mean, changes):
    span = final(*mean, **changes)
    assert span.decision == "reject"
    both = after(decide(GOOD, RULES), span)
    assert both.decision == "reject"
    assert (both.reasons[-1].name, both.reasons[-1].holds) == ("test span", False)


def test_no_span_raises_a_verdict():
    confirmed = final(2e-4, 1e-9, 4e-4)
    poor = decide(replace(GOOD, deflated=known(0.1)), RULES)
    assert after(poor, confirmed).decision == "not proven"
    assert after(decide(replace(GOOD, stops=1), RULES), confirmed).decision == "reject"


def test_a_span_that_cannot_be_compared_says_why():
    span = judge_final(GOOD, replace(GOOD, mean_return=SHORT))
    assert span.words == (
        "Not proven: It cannot be compared: not enough data: needs 200 bars, found 50."
    )
    assert after(decide(GOOD, RULES), span).decision == "promote"


def test_what_was_not_measured_is_unknown_and_says_so():
    verdict = decide(replace(GOOD, baselines={}), RULES)
    reason = {one.name: one for one in verdict.reasons}["baselines"]
    assert (reason.holds, reason.value) == (None, None)
    assert reason.words == "The test against simple baselines is not known: it was not measured."
