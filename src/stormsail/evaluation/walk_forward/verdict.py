"""Verdict of a validation: promote, not proven or reject, with the reason for each rule.

A pure function of figures, so that a verdict can be recomputed by hand. A rule holds, does not
hold, or is unknown. Rejected is what breaks a rule that no honest strategy breaks: a self-test
failed, a fold could not be trained, money was lost, ruin. Promoted is what keeps every rule. The
rest is not proven. A result that is too good to be true breaks a rule too, until somebody explains
it in writing. What these bars cannot decide, such as a tail at a long horizon, is no rule but a
condition: it stands beside the verdict and caps the capital.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from stormsail.core.clock import iso
from stormsail.core.errors import ChoiceError
from stormsail.core.files.documents import JsonValue, Record
from stormsail.evaluation.stats.statement import Statement

if TYPE_CHECKING:  # readers of saved verdicts need neither backtests nor agents
    from stormsail.evaluation.robustness.costs import BreakEven
    from stormsail.evaluation.robustness.self_tests import SelfTest
    from stormsail.evaluation.stats.sharpe_difference import SharpeDifference
    from stormsail.evaluation.walk_forward.config import VerdictRules

Decision = Literal["reject", "not proven", "promote"]
ORDER: tuple[Decision, ...] = ("reject", "not proven", "promote")
"""From the worst to the best."""

EXPLAINABLE = ("clairvoyant", "losing year", "cost floor", "dead bars", "few bars")
"""Rules against what is too good to be true: an explanation in writing lifts them."""

SEAL = "seal"
"""Name of the condition that the final test span was opened before; every verdict tells it."""

LAX = "laxer rules"
"""Name of the condition that thresholds were lowered for this verdict; every verdict tells it."""
LAX_CAPITAL = 0.25
"""Largest share of the capital after a promotion by laxer rules, whatever these say of it."""

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
    conditions: tuple[Reason, ...] = ()
    """What could not be decided and prevents nothing."""
    explanations: Mapping[str, str] = field(default_factory=dict)
    """What was written about results that are too good to be true, by rule."""
    capital_share: float = 0.0
    """Largest share of the capital that may be traded: 0 unless promoted, less than 1 while a
    condition is open."""

    def document(self) -> dict[str, JsonValue]:
        """Return it as JSON."""
        return {**super().document(), "explanations": dict(self.explanations)}


@dataclass(frozen=True)
class Tail:
    """Realised minus predicted CVaR at one horizon."""

    horizon: int
    """Bars of a window; 0 where nothing was predicted."""
    gap: Statement


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
    baselines: "Mapping[str, SharpeDifference]"
    """Against each simple baseline at equal risk; empty where none was traded."""
    break_even: "BreakEven | None"
    charged_bp: float | None
    """What trading cost, all in, in basis points of the notional; None where nothing was traded."""
    cost_floor_bp: float
    """Below which nobody trades on such a venue."""
    tail: Tail
    """At the horizon of the critic."""
    judged_tail: Tail | None
    """At the longest horizon that can be judged, where that is a shorter one."""
    clairvoyant_share: Statement
    """Log growth over that of somebody who knows every bar."""
    losing_year: Statement
    """Probability of a year with a loss, at the lower end of the Sharpe ratio's interval."""
    dead_fills: int
    """Fills in bars in which nothing was traded or the price did not move."""
    best_bars_share: Statement
    """Share of the log growth that the five best bars earned."""
    end_ms: int = 0
    """Close of the last bar that was traded."""
    bar_ms: int = 3_600_000


def decide(
    evidence: Evidence, rules: "VerdictRules", *, explanations: Mapping[str, str] | None = None
) -> Verdict:
    """Return the verdict on some figures.

    Args:
        evidence: the figures.
        rules: their thresholds.
        explanations: why a result is good all the same, by name of one of `EXPLAINABLE`.

    Raises:
        ChoiceError: if there is no such rule to explain, or an explanation is empty.
    """
    written = checked_explanations(explanations or {})
    rejecting = list(_rejecting(evidence))
    suspicious = [_explained(reason, written) for reason in _too_good(evidence, rules)]
    tails, conditions = _tail(evidence)
    if laxer := rules.laxer():
        conditions.append(Reason(LAX, None, f"Judged by laxer rules: {', '.join(laxer)}."))
    reasons = (*rejecting, *_promoting(evidence, rules), *tails, *suspicious)
    decision: Decision = "not proven"
    if any(reason.holds is False for reason in rejecting):
        decision = "reject"
    elif all(reason.holds for reason in reasons):
        decision = "promote"
    return _verdict(decision, reasons, tuple(conditions), written, rules.conditional_capital)


def judge_final(folds: Evidence, final: Evidence) -> Verdict:
    """Return the verdict on the final test span: it confirms the folds, contradicts them or not.

    By the interval of the difference of mean returns, final span less folds,

        (m' - m) + sqrt((high' - m')² + (m - low)²),

    which is how far the final span can lie above the folds with 97.5 % confidence: below 0 it
    contradicts them. Being short only makes that interval wide.
    """
    rejecting = [
        _tested(final.self_tests),
        _trained(final),
        _not_losing(final.mean_return),
        _ruin(final),
    ]
    compared = _final_mean(folds.mean_return, final.mean_return)
    broken = any(reason.holds is False for reason in rejecting)
    reasons = (*rejecting, compared)
    low = final.mean_return.low
    confirms = compared.holds is True and low is not None and low > 0.0
    decision: Decision = "reject" if broken else "promote" if confirms else "not proven"
    return Verdict(decision, f"{decision.capitalize()}: {compared.words}", reasons)


def lowered(verdict: Verdict, final: Verdict, *, conditional_capital: float) -> Verdict:
    """Return a verdict after the final test span was opened, which can only lower it.

    A span that rejects or contradicts lowers it; one that is merely short is a condition.
    """
    broken = [reason.name for reason in final.reasons if reason.holds is False]
    decision = verdict.decision
    if final.decision == "reject":
        decision = "reject"
    elif broken:
        decision = min(decision, "not proven", key=ORDER.index)
    holds = False if broken else True if final.decision == "promote" else None
    reason = Reason("test span", holds, final.words)
    conditions = verdict.conditions if holds is not None else (*verdict.conditions, reason)
    reasons = verdict.reasons if holds is None else (*verdict.reasons, reason)
    return _verdict(decision, reasons, conditions, verdict.explanations, conditional_capital)


def unsealed(verdict: Verdict, words: str, *, conditional_capital: float) -> Verdict:
    """Return a verdict that says that the final test span was opened before it: a condition.

    Args:
        verdict: without it.
        words: who opened it.
        conditional_capital: share of the capital while a condition is open.
    """
    conditions = (*verdict.conditions, Reason(SEAL, None, words))
    return _verdict(
        verdict.decision, verdict.reasons, conditions, verdict.explanations, conditional_capital
    )


def checked_explanations(explanations: Mapping[str, str]) -> dict[str, str]:
    """Return explanations in writing by rule.

    Raises:
        ChoiceError: if there is no such rule to explain, or an explanation is empty.
    """
    for name, text in explanations.items():
        if name not in EXPLAINABLE or not text.strip():
            raise ChoiceError(
                wrong=f"an explanation must be some text about one of {', '.join(EXPLAINABLE)}",
                found=f"`{name}`: {text!r}",
                remedy="Write for example --explain 'clairvoyant=the signal is the order book'.",
            )
    return {name: text.strip() for name, text in explanations.items()}


def _verdict(
    decision: Decision,
    reasons: tuple[Reason, ...],
    conditions: tuple[Reason, ...],
    explanations: Mapping[str, str],
    conditional_capital: float,
) -> Verdict:
    if any(condition.name == LAX for condition in conditions):
        conditional_capital = min(conditional_capital, LAX_CAPITAL)
    promoted = 1.0 if not conditions else conditional_capital
    return Verdict(
        decision,
        _sentence(decision, reasons, conditions, conditional_capital),
        reasons,
        conditions,
        explanations,
        promoted if decision == "promote" else 0.0,
    )


def _rejecting(evidence: Evidence) -> Iterator[Reason]:
    """Yield the rules whose breach rejects."""
    yield _tested(evidence.self_tests)
    yield _trained(evidence)
    yield _positive_return(evidence.total_return)
    yield _not_losing(evidence.mean_return)
    yield _ruin(evidence)


def _promoting(evidence: Evidence, rules: "VerdictRules") -> Iterator[Reason]:
    """Yield the rules that a promotion takes beside those."""
    yield _deflated(evidence.deflated, rules.deflated_sharpe)
    yield _positive_mean(evidence.mean_return)
    yield _superior(evidence.baselines, rules.superiority_p)
    yield _most("folds", evidence.fold_returns, rules.earning_share)
    yield _most("seeds", evidence.seed_returns, rules.earning_share)
    yield _costs(evidence, rules.cost_margin)


def _too_good(evidence: Evidence, rules: "VerdictRules") -> Iterator[Reason]:
    """Yield the rules that a leak, a missing cost or an accident breaks."""
    yield _at_most(
        "clairvoyant",
        evidence.clairvoyant_share,
        rules.clairvoyant_share,
        "Of what somebody who knows every bar would have earned, {value:.1%} was earned; more than "
        "{limit:.0%} looks like a leak.",
        "The share of the clairvoyant's growth",
    )
    year = evidence.losing_year
    if year.value is None:
        yield _unknown("losing year", "The probability of a losing year", year, rules.losing_year)
    else:
        words = (
            f"At the costs charged, a year with a loss would have the probability {year.value:.2g} "
            f"or less; below {rules.losing_year:g} nothing that trades is so sure."
        )
        holds = year.value >= rules.losing_year
        yield Reason("losing year", holds, words, year.value, rules.losing_year)
    charged, floor = evidence.charged_bp, evidence.cost_floor_bp
    if charged is None:
        yield Reason("cost floor", None, "Nothing was traded, so nothing was charged.", None, floor)
    else:
        words = (
            f"Trading cost {charged:.2f} bp of the notional; nobody pays less than {floor:g} bp."
        )
        yield Reason("cost floor", charged >= floor * (1.0 - 1e-9), words, charged, floor)
    words = f"{evidence.dead_fills} fills in bars without volume or movement; there must be none."
    yield Reason("dead bars", evidence.dead_fills == 0, words, float(evidence.dead_fills), 0.0)
    yield _at_most(
        "few bars",
        evidence.best_bars_share,
        rules.best_bars_share,
        "The five best bars earned {value:.1%} of the growth; above {limit:.0%} it is an accident.",
        "The share of the best bars",
    )


def _explained(reason: Reason, explanations: Mapping[str, str]) -> Reason:
    """Return a rule as it is, or as one that holds because of an explanation."""
    text = explanations.get(reason.name)
    if reason.holds or text is None:
        return reason
    return replace(reason, holds=True, words=f"{reason.words} Explained: {text}")


def _at_most(name: str, figure: Statement, limit: float, words: str, what: str) -> Reason:
    if figure.value is None:
        return _unknown(name, what, figure, limit)
    text = words.format(value=figure.value, limit=limit)
    return Reason(name, figure.value <= limit, text, figure.value, limit)


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


def _ruin(evidence: Evidence) -> Reason:
    ruined = evidence.liquidations + evidence.stops
    words = (
        f"Accounts that were liquidated {evidence.liquidations} times and stopped "
        f"{evidence.stops} times; there must be none of either."
    )
    return Reason("ruin", ruined == 0, words, float(ruined), 0.0)


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


def _superior(baselines: "Mapping[str, SharpeDifference]", most: float) -> Reason:
    """Return whether it is better than every simple baseline at equal risk.

    All of the tests must reject: then the level of each is that of the whole, without a correction
    for their number, since the claim "not better than one of them" is false only if all are.
    """
    name = "baselines"
    if not baselines:
        return _unknown(name, "The test against simple baselines", NOT_MEASURED, most)
    for other, comparison in baselines.items():
        if comparison.p_value.value is None:
            return _unknown(name, f"The test against {other}", comparison.p_value, most)
    other, worst = max(baselines.items(), key=lambda item: item[1].p_value.value or 0.0)
    p = worst.p_value.value or 0.0
    words = (
        f"At equal volatility it earns {worst.annual_return.value:+.1%} a year against {other}, a "
        f"Sharpe ratio {worst.sharpe.value:+.2f} from its own; that it is no better has the "
        f"p-value {p:.3f}, at most {most:g} is needed."
    )
    return Reason(name, p <= most, words, p, most)


def _most(name: str, returns: Sequence[float], share: float) -> Reason:
    earning = sum(gain > 0.0 for gain in returns)
    needed = int(share * len(returns)) + 1
    words = f"{earning} of {len(returns)} {name} earned something; {needed} are needed."
    return Reason(name, earning >= needed, words, float(earning), float(needed))


def _costs(evidence: Evidence, margin: float) -> Reason:
    even, charged = evidence.break_even, evidence.charged_bp
    if even is None or charged is None:
        why = "nothing was traded" if charged is None else "it was not measured"
        return Reason("costs", None, f"The cost that breaks even is not known: {why}.")
    needed = margin * max(charged, evidence.cost_floor_bp)
    borne = even.low_bp if even.cost_bp is None else even.cost_bp
    tail = f" ({even.reason})" if even.reason else ""
    words = (
        f"It breaks even at {borne:.2f} bp of the notional{tail}; trading cost {charged:.2f} bp, "
        f"and {needed:.2f} bp are needed."
    )
    return Reason("costs", borne >= needed, words, borne, needed)


def _tail(evidence: Evidence) -> tuple[list[Reason], list[Reason]]:
    """Return the rule on the tail, if any horizon can be judged, and the condition, if one cannot.

    A tail that is worse than predicted at any horizon that can be judged breaks the rule.
    """
    own, shorter = evidence.tail, evidence.judged_tail
    known = own if own.gap.high is not None else shorter
    reasons = []
    if known is not None and known.gap.high is not None:
        reasons.append(_tail_rule(known))
    if own.gap.high is not None:
        return reasons, []
    return reasons, [_tail_condition(evidence, reasons)]


def _tail_rule(tail: Tail) -> Reason:
    gap, high = tail.gap, tail.gap.high or 0.0
    words = (
        f"Over {tail.horizon} bars the realised tail was {gap.value:+.3g} from the predicted one, "
        f"at most {high:+.3g} with 95 % confidence; below 0 it would be worse than predicted."
    )
    return Reason("tail", high >= 0.0, words, high, 0.0)


def _tail_condition(evidence: Evidence, decided: Sequence[Reason]) -> Reason:
    own, shorter = evidence.tail, evidence.judged_tail
    gap = own.gap
    if gap.enough:
        return Reason("tail", None, f"tail unproven: {gap.reason}")
    words = f"tail unproven: {gap.found} of {gap.needed} windows of {own.horizon} bars"
    if evidence.end_ms:
        missing = (gap.needed - gap.found) * own.horizon * evidence.bar_ms
        words += f"; enough by {iso(evidence.end_ms + missing)[:7]} at the earliest"
    if decided and shorter is not None:
        outcome = "proven" if decided[0].holds else "worse than predicted"
        words += f"; at {shorter.horizon} bars: {outcome}"
    return Reason("tail", None, words, float(gap.found), float(gap.needed))


def _final_mean(folds: Statement, final: Statement) -> Reason:
    name = "test span"
    parts = (folds.value, folds.low, final.value, final.low, final.high)
    if any(part is None for part in parts):
        missing = final if final.value is None else folds
        return Reason(name, None, f"It cannot be compared: {missing.reason}.")
    mean, low, other, _, high = (part or 0.0 for part in parts)
    reach = other - mean + math.hypot(high - other, mean - low)
    words = (
        f"The mean return of a bar is {other:+.3g} [{final.low:+.3g}, {final.high:+.3g}] in the "
        f"final test span of {final.found} bars and {mean:+.3g} in the folds; "
    )
    if reach < 0.0:
        return Reason(name, holds=False, words=f"{words}the two contradict.", value=reach, needed=0)
    confirms = (final.low or 0.0) > 0.0
    effect = "it confirms them." if confirms else "it contradicts nothing and is short of a proof."
    return Reason(name, True if confirms else None, words + effect, reach, 0.0)


def _unknown(name: str, what: str, figure: Statement, needed: float) -> Reason:
    return Reason(name, None, f"{what} is not known: {figure.reason}.", None, needed)


def _sentence(
    decision: Decision,
    reasons: Sequence[Reason],
    conditions: Sequence[Reason],
    conditional_capital: float,
) -> str:
    broken = [reason.name for reason in reasons if reason.holds is False]
    unknown = [reason.name for reason in reasons if reason.holds is None]
    if decision == "promote":
        held = f"Promote: all {len(reasons)} rules hold"
        if not conditions:
            return f"{held}."
        opened = "; ".join(condition.words.rstrip(".") for condition in conditions)
        return f"{held}, with {conditional_capital:.0%} of the capital: {opened}."
    parts = [f"does not hold: {', '.join(broken)}"] if broken else []
    parts += [f"not known: {', '.join(unknown)}"] if unknown else []
    parts += [condition.words for condition in conditions if condition.name in (SEAL, LAX)]
    return f"{decision.capitalize()}: {'; '.join(parts)}."
