"""The verdict: every rule flips its own reason and nothing else."""

from dataclasses import replace

import pytest

from stormsail.evaluation.robustness.costs import BreakEven
from stormsail.evaluation.robustness.self_tests import SelfTest
from stormsail.evaluation.stats.statement import Statement
from stormsail.evaluation.walk_forward.config import VerdictRules
from stormsail.evaluation.walk_forward.verdict import NOT_MEASURED, Evidence, decide, lowered

RULES = VerdictRules()


def known(value, low=None, high=None):
    return Statement(value, low, high, needed=30, found=500)


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
    superiority=known(0.05),
    overfitting=known(0.5),
    break_even=BreakEven(14.0, 13.99, 14.01, ""),
    charged_bp=7.0,
    tail_gap=known(-0.01, -0.02, 0.0),
)
NAMES = (
    "self-tests", "training", "return", "no proven loss", "ruin", "deflated Sharpe", "mean return",
    "buy and hold", "overfitting", "folds", "seeds", "costs", "tail", "enough data",
)  # fmt: skip


def holds(evidence):
    return {one.name: one.holds for one in decide(evidence, RULES).reasons}


def test_everything_at_its_threshold_is_promoted():
    verdict = decide(GOOD, RULES)
    assert tuple(one.name for one in verdict.reasons) == NAMES
    assert [one.holds for one in verdict.reasons] == [True] * len(NAMES)
    assert verdict.decision == "promote"
    assert verdict.words == "Promote: all 14 rules hold."


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
    ({"superiority": known(0.051)}, "buy and hold", False, "not proven"),
    ({"overfitting": known(0.51)}, "overfitting", False, "not proven"),
    ({"fold_returns": (0.1, -0.1, 0.3, -0.2)}, "folds", False, "not proven"),
    ({"fold_returns": (0.1, 0.0)}, "folds", False, "not proven"),
    ({"seed_returns": (0.1, -0.1)}, "seeds", False, "not proven"),
    ({"charged_bp": 7.01}, "costs", False, "not proven"),
    ({"break_even": BreakEven(None, 0.0, 0.0, "nothing is earned")}, "costs", False, "not proven"),
    ({"break_even": None}, "costs", None, "not proven"),
    ({"charged_bp": None}, "costs", None, "not proven"),
    ({"tail_gap": known(-0.02, -0.03, -1e-9)}, "tail", False, "not proven"),
    ({"tail_gap": Statement(None, why="it was not measured")}, "tail", None, "not proven"),
]


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
        ({"superiority": SHORT}, ["buy and hold"]),
        ({"overfitting": SHORT}, ["overfitting"]),
        ({"tail_gap": SHORT}, ["tail"]),
        ({"total_return": SHORT}, ["return"]),
        ({"mean_return": SHORT}, ["no proven loss", "mean return"]),
    ],
)
def test_too_little_data_is_unknown_and_prevents_a_promotion(change, names):
    changed = replace(GOOD, **change)
    expected = {**holds(GOOD), **dict.fromkeys(names), "enough data": False}
    assert holds(changed) == expected
    verdict = decide(changed, RULES)
    assert verdict.decision == "not proven"
    last = verdict.reasons[-1]
    assert (last.value, last.needed) == (50.0, 200.0)
    assert last.words.endswith("needs 200 bars, found 50.")


def test_one_seed_was_not_chosen_among_others():
    alone = replace(GOOD, overfitting=None, seed_returns=(0.1,))
    assert holds(alone) == holds(GOOD)


def test_a_cost_beyond_the_largest_tried_is_borne():
    never = BreakEven(None, 1000.0, float("inf"), "something is earned even at 1000 bp")
    verdict = decide(replace(GOOD, break_even=never), RULES)
    assert verdict.decision == "promote"
    assert verdict.reasons[11].value == 1000.0


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


@pytest.mark.parametrize(
    ("first", "second", "expected", "held"),
    [
        ("promote", "promote", "promote", True),
        ("promote", "not proven", "not proven", False),
        ("promote", "reject", "reject", False),
        ("not proven", "promote", "not proven", True),
        ("reject", "promote", "reject", True),
    ],
)
def test_the_test_span_can_only_lower_a_verdict(first, second, expected, held):
    evidence = {
        "promote": GOOD,
        "not proven": replace(GOOD, deflated=known(0.1)),
        "reject": replace(GOOD, stops=1),
    }
    both = lowered(decide(evidence[first], RULES), decide(evidence[second], RULES))
    assert both.decision == expected
    assert (both.reasons[-1].name, both.reasons[-1].holds) == ("test span", held)
    assert both.words.startswith(expected.capitalize())


def test_what_was_not_measured_is_unknown_and_says_so():
    verdict = decide(replace(GOOD, superiority=NOT_MEASURED), RULES)
    reason = {one.name: one for one in verdict.reasons}["buy and hold"]
    assert (reason.holds, reason.value) == (None, None)
    assert reason.words == "The test against buy and hold is not known: it was not measured."
