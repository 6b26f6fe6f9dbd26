"""Verdict of a validation: promote, not proven or reject, with the reason for each rule.

A pure function of figures, so that a verdict can be recomputed by hand. A rule holds, does not
hold, or is unknown. Rejected is what breaks a rule that no honest strategy breaks: a self-test
failed, a fold could not be trained, money was lost, ruin. Promoted is what keeps every rule;
whatever is unknown prevents it. The rest is not proven.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from stormsail.core.files.documents import Record
from stormsail.evaluation.stats.statement import Statement

if TYPE_CHECKING:  # readers of saved verdicts need neither backtests nor agents
    from stormsail.evaluation.robustness.costs import BreakEven
    from stormsail.evaluation.robustness.self_tests import SelfTest
    from stormsail.evaluation.walk_forward.config import VerdictRules

Decision = Literal["reject", "not proven", "promote"]
ORDER: tuple[Decision, ...] = ("reject", "not proven", "promote")
"""From the worst to the best."""

NOT_MEASURED = Statement(None, why="it was not measured")


@dataclass(frozen=True)
class Reason(Record):
    """One rule, and whether it holds."""

    name: str
    holds: bool | None
    """None where it is not known."""
    words: str
    value: float | None = None
    needed: float | None = None


@dataclass(frozen=True)
class Verdict(Record):
    """A decision, one sentence, and every rule behind it."""

    decision: Decision
    words: str
    reasons: tuple[Reason, ...]


@dataclass(frozen=True)
class Evidence:
    """The figures that a verdict depends on, all out of sample and after costs."""

    self_tests: "Sequence[SelfTest]"
    failed_folds: Sequence[int]
    """Folds in which no seed could be trained."""
    fold_returns: Sequence[float]
    seed_returns: Sequence[float]
    total_return: Statement
    mean_return: Statement
    """Of one bar, with the 95 % interval of the bootstrap."""
    liquidations: int
    stops: int
    """Accounts that were stopped for good."""
    deflated: Statement
    superiority: Statement
    overfitting: Statement | None
    """None for one seed, where nothing was chosen."""
    break_even: "BreakEven | None"
    charged_bp: float | None
    """What trading cost, all in, in basis points of the notional; None where nothing was traded."""
    tail_gap: Statement
    """Realised minus predicted CVaR, with its interval."""


def decide(evidence: Evidence, rules: "VerdictRules") -> Verdict:
    """Return the verdict on some figures."""
    rejecting = list(_rejecting(evidence))
    reasons = (*rejecting, *_promoting(evidence, rules), _enough(evidence))
    decision: Decision = "not proven"
    if any(reason.holds is False for reason in rejecting):
        decision = "reject"
    elif all(reason.holds for reason in reasons):
        decision = "promote"
    return Verdict(decision, _sentence(decision, reasons), reasons)


def lowered(verdict: Verdict, final: Verdict) -> Verdict:
    """Return a verdict after the final test span was opened, which can only lower it."""
    decision = min(verdict.decision, final.decision, key=ORDER.index)
    holds = ORDER.index(final.decision) >= ORDER.index(verdict.decision)
    words = (
        f"The final test span alone comes to `{final.decision}`, the folds to `{verdict.decision}`."
    )
    reasons = (*verdict.reasons, Reason("test span", holds, words))
    return Verdict(decision, _sentence(decision, reasons), reasons)


def _rejecting(evidence: Evidence) -> Iterator[Reason]:
    """Yield the rules whose breach rejects."""
    yield _tested(evidence.self_tests)
    yield _trained(evidence)
    yield _positive_return(evidence.total_return)
    yield _not_losing(evidence.mean_return)
    ruined = evidence.liquidations + evidence.stops
    yield Reason(
        "ruin",
        ruined == 0,
        f"Accounts that were liquidated {evidence.liquidations} times and stopped "
        f"{evidence.stops} times; there must be none of either.",
        float(ruined),
        0.0,
    )


def _promoting(evidence: Evidence, rules: "VerdictRules") -> Iterator[Reason]:
    """Yield the rules that a promotion takes beside those."""
    yield _deflated(evidence.deflated, rules.deflated_sharpe)
    yield _positive_mean(evidence.mean_return)
    yield _superior(evidence.superiority, rules.superiority_p)
    yield _overfitting(evidence.overfitting, rules.overfitting)
    yield _most("folds", evidence.fold_returns, rules.earning_share)
    yield _most("seeds", evidence.seed_returns, rules.earning_share)
    yield _costs(evidence.break_even, evidence.charged_bp, rules.cost_margin)
    yield _tail(evidence.tail_gap)


def _tested(tests: "Sequence[SelfTest]") -> Reason:
    failed = [test.name for test in tests if test.holds is False]
    unknown = [test.name for test in tests if test.holds is None]
    passed = len(tests) - len(failed) - len(unknown)
    words = f"Of {len(tests)} self-tests {passed} passed"
    words += f", failed: {', '.join(failed)}" if failed else ""
    words += f", could not be run: {', '.join(unknown)}" if unknown else ""
    holds = False if failed else (None if unknown or not tests else True)
    return Reason("self-tests", holds, f"{words}.", float(passed), float(len(tests)))


def _trained(evidence: Evidence) -> Reason:
    count, failed = len(evidence.fold_returns), len(evidence.failed_folds)
    names = ", ".join(str(number) for number in evidence.failed_folds)
    words = f"In {count - failed} of {count} folds at least one training finished"
    words += f"; none did in fold {names}." if failed else "."
    return Reason("training", not failed, words, float(count - failed), float(count))


def _positive_return(total: Statement) -> Reason:
    if total.value is None:
        return _unknown("return", "The total return after costs", total, 0.0)
    words = f"After costs {total.value:+.2%} was earned out of sample; it must be above 0."
    return Reason("return", total.value > 0.0, words, total.value, 0.0)


def _not_losing(mean: Statement) -> Reason:
    if mean.high is None:
        return _unknown("no proven loss", "The interval of the mean return", mean, 0.0)
    words = (
        f"The mean return of a bar is at most {mean.high:+.3g} with 95 % confidence; below 0 it "
        "would be a proven loss."
    )
    return Reason("no proven loss", mean.high >= 0.0, words, mean.high, 0.0)


def _deflated(deflated: Statement, least: float) -> Reason:
    if deflated.value is None:
        return _unknown("deflated Sharpe", "The deflated Sharpe ratio", deflated, least)
    words = (
        f"After all that was tried, the Sharpe ratio is above 0 with probability "
        f"{deflated.value:.3f}; {least:g} is needed."
    )
    return Reason("deflated Sharpe", deflated.value >= least, words, deflated.value, least)


def _positive_mean(mean: Statement) -> Reason:
    if mean.low is None:
        return _unknown("mean return", "The interval of the mean return", mean, 0.0)
    words = (
        f"The mean return of a bar is at least {mean.low:+.3g} with 95 % confidence; it must be "
        "above 0."
    )
    return Reason("mean return", mean.low > 0.0, words, mean.low, 0.0)


def _superior(superiority: Statement, most: float) -> Reason:
    if superiority.value is None:
        return _unknown("buy and hold", "The test against buy and hold", superiority, most)
    words = (
        f"That nothing here earns more than buy and hold has the p-value "
        f"{superiority.value:.3f}; at most {most:g} is needed."
    )
    return Reason("buy and hold", superiority.value <= most, words, superiority.value, most)


def _overfitting(overfitting: Statement | None, most: float) -> Reason:
    if overfitting is None:
        return Reason(
            "overfitting", holds=True, words="There is one seed; none was chosen.", needed=most
        )
    if overfitting.value is None:
        return _unknown("overfitting", "The probability of overfitting", overfitting, most)
    words = (
        f"The seed that is best in one half of the bars is below the middle in the other with "
        f"probability {overfitting.value:.3f}; at most {most:g} is needed."
    )
    return Reason("overfitting", overfitting.value <= most, words, overfitting.value, most)


def _most(name: str, returns: Sequence[float], share: float) -> Reason:
    earning = sum(gain > 0.0 for gain in returns)
    needed = int(share * len(returns)) + 1
    words = f"{earning} of {len(returns)} {name} earned something; {needed} are needed."
    return Reason(name, earning >= needed, words, float(earning), float(needed))


def _costs(even: "BreakEven | None", charged: float | None, margin: float) -> Reason:
    if even is None or charged is None:
        why = "nothing was traded" if charged is None else "it was not measured"
        return Reason("costs", None, f"The cost that breaks even is not known: {why}.")
    needed = margin * charged
    borne = even.low_bp if even.cost_bp is None else even.cost_bp
    tail = f" ({even.reason})" if even.reason else ""
    words = (
        f"It breaks even at {borne:.2f} bp of the notional{tail}; trading cost {charged:.2f} bp, "
        f"and {needed:.2f} bp are needed."
    )
    return Reason("costs", borne >= needed, words, borne, needed)


def _tail(gap: Statement) -> Reason:
    if gap.value is None or gap.high is None:
        return _unknown("tail", "Whether the tail was as predicted", gap, 0.0)
    words = (
        f"The realised tail was {gap.value:+.3g} from the predicted one, at most {gap.high:+.3g} "
        "with 95 % confidence; below 0 it would be worse than predicted."
    )
    return Reason("tail", gap.high >= 0.0, words, gap.high, 0.0)


def _enough(evidence: Evidence) -> Reason:
    """Return whether every figure that the rules use has the data it needs."""
    used = {
        "total return": evidence.total_return,
        "mean return": evidence.mean_return,
        "deflated Sharpe": evidence.deflated,
        "buy and hold": evidence.superiority,
        "overfitting": evidence.overfitting,
        "tail": evidence.tail_gap,
    }
    short = {
        name: figure for name, figure in used.items() if figure is not None and not figure.enough
    }
    if not short:
        return Reason("enough data", holds=True, words="Every figure has the data that it needs.")
    name, worst = max(short.items(), key=lambda item: item[1].needed - item[1].found)
    words = f"Too little data for {', '.join(short)}: {name} needs {worst.needed} {worst.unit}, "
    words += f"found {worst.found}."
    return Reason(
        "enough data",
        holds=False,
        words=words,
        value=float(worst.found),
        needed=float(worst.needed),
    )


def _unknown(name: str, what: str, figure: Statement, needed: float) -> Reason:
    return Reason(name, None, f"{what} is not known: {figure.reason}.", None, needed)


def _sentence(decision: Decision, reasons: Sequence[Reason]) -> str:
    broken = [reason.name for reason in reasons if reason.holds is False]
    unknown = [reason.name for reason in reasons if reason.holds is None]
    if decision == "promote":
        return f"Promote: all {len(reasons)} rules hold."
    parts = [f"does not hold: {', '.join(broken)}"] if broken else []
    parts += [f"not known: {', '.join(unknown)}"] if unknown else []
    return f"{decision.capitalize()}: {'; '.join(parts)}."
