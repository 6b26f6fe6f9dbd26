"""How often a verdict promotes, by simulation: noise at any number of trials, skill at its power.

Returns of a market, of simple baselines on it and of a strategy with a known Sharpe ratio are
drawn; everything after that is the code of a real validation: `account_tests`, `evidence_of`,
`decide`, and `plan_power` for what it predicts. What only backtests could tell (costs,
self-tests, fills) is taken to be in order, and the tail to be undecided.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from stormsail.bench.campaign import RowLog
from stormsail.bench.verdicts import Verdict
from stormsail.core.errors import ChoiceError
from stormsail.evaluation.robustness.costs import BreakEven
from stormsail.evaluation.robustness.self_tests import SelfTest
from stormsail.evaluation.stats import figures
from stormsail.evaluation.stats.figures import Array
from stormsail.evaluation.stats.metrics import Flows
from stormsail.evaluation.stats.statement import Statement
from stormsail.evaluation.walk_forward.config import VerdictRules
from stormsail.evaluation.walk_forward.evidence import Trading, account_tests, evidence_of
from stormsail.evaluation.walk_forward.ledger import EarlierTrials
from stormsail.evaluation.walk_forward.pool import Pooled
from stormsail.evaluation.walk_forward.power import SURE, plan_power
from stormsail.evaluation.walk_forward.verdict import Tail, decide
from stormsail.market.interval import Interval

YEAR = 365
"""Bars of a year: a day each."""

FALSE = 0.05
"""Largest share of strategies without skill that may be promoted."""

PROCESSES = ("normal", "clustered", "repeating", "jumping")
"""`normal`: independent; `clustered`: Student's t with 4 degrees of freedom and volatility that
clusters, a GARCH(1, 1) with .08 and .9; `repeating`: each return repeats a tenth of the last, at a
volatility that switches between calm and storm (a factor of 3) about every 60 bars;
`jumping`: stochastic volatility, jumps in a hundredth of the bars, and a moving average."""

_VOLATILITY, _MARKET, _ALIKE, _FOLDS, _SEEDS = 0.2, 0.6, 0.8, 5, 3
_MARKET_SHARPE = 0.5


@dataclass(frozen=True)
class Case:
    """One cell of the table."""

    process: str
    sharpe: float | None
    """True, of a year; None takes what the plan names."""
    bars: int
    trials: int = 1
    """Strategies of which the best is judged."""


class Row(NamedTuple):
    """One simulated validation."""

    process: str
    sharpe: float
    planned: bool
    """Whether the Sharpe ratio is the one that the plan names."""
    bars: int
    trials: int
    seed: int
    promoted: bool
    broken: str
    """Rules that did not hold."""


def shocks(process: str, shape: tuple[int, int], draw: np.random.Generator) -> Array:
    """Return columns of returns with mean 0 and deviation 1 in the long run, [T, S].

    Raises:
        ChoiceError: if there is no such process.
    """
    if process == "normal":
        return draw.standard_normal(shape)
    bars, columns = shape
    values = np.empty(shape)
    if process == "clustered":
        noise = draw.standard_t(4, shape) / math.sqrt(2.0)
        variance = np.ones(columns)
        for t in range(bars):
            values[t] = np.sqrt(variance) * noise[t]
            variance = 0.02 + 0.9 * variance + 0.08 * values[t] ** 2
        return values
    if process == "repeating":
        noise, switch = draw.standard_normal(shape), draw.random(shape) < 1.0 / 60.0
        storm = (switch.cumsum(axis=0) + draw.integers(0, 2, columns)) % 2 == 1
        scaled = np.where(storm, 3.0, 1.0) / math.sqrt(5.0) * noise * math.sqrt(1.0 - 0.01)
        values[0] = scaled[0]
        for t in range(1, bars):
            values[t] = 0.1 * values[t - 1] + scaled[t]
        return values
    if process == "jumping":
        noise, later = draw.standard_normal(shape), draw.standard_normal(shape)
        level = 0.25 / math.sqrt(1.0 - 0.97**2) * draw.standard_normal(columns)
        for t in range(bars):
            level = 0.97 * level + 0.25 * later[t]
            values[t] = np.exp(0.5 * level - 0.25 * 0.25**2 / (1.0 - 0.97**2)) * noise[t]
        values += np.where(draw.random(shape) < 0.01, 4.0, 0.0) * draw.standard_normal(shape)
        values[1:] += 0.15 * values[:-1].copy()
        return np.asarray(values / math.sqrt((1.0 + 0.16) * (1.0 + 0.15**2)))
    raise ChoiceError(
        wrong=f"a process must be one of {', '.join(PROCESSES)}",
        found=f"`{process}`",
        remedy="Choose one of those.",
    )


def simulate(case: Case, seed: int, *, repetitions: int = 200) -> Row:
    """Return one simulated validation and whether it was promoted."""
    draw = np.random.Generator(np.random.PCG64([seed, 21]))
    market = _scaled(shocks(case.process, (case.bars, 1), draw)[:, 0], _MARKET, _MARKET_SHARPE)
    baselines = _baselines(market)
    tried = shocks(case.process, (case.bars, case.trials), draw)
    ratios = figures.per_bar_sharpe(tried)
    best = int(ratios.argmax())
    earlier = EarlierTrials(case.trials - 1, np.delete(ratios, best) * math.sqrt(case.bars))
    folds = [len(part) for part in np.array_split(np.arange(case.bars), _FOLDS)]
    rules = VerdictRules()
    plan = plan_power(
        folds,
        per_year=float(YEAR),
        seeds=_SEEDS,
        earlier=earlier,
        baselines=baselines,
        rules=rules,
    )
    sharpe = plan.sharpe if case.sharpe is None else case.sharpe
    if sharpe is None:
        raise ChoiceError(
            wrong="a plan must name a Sharpe ratio",
            found=f"none for {case.bars} bars",
            remedy="Simulate more bars.",
        )
    own = shocks(case.process, (case.bars, _SEEDS), draw)
    pooled = _pooled(tried[:, best], own, sharpe)
    tested = account_tests(pooled, baselines, earlier, seed=seed, repetitions=repetitions)
    explanations = (
        {"losing year": "the plan said so"} if case.sharpe is None and plan.suspicious else {}
    )
    evidence = evidence_of(pooled, tested, _in_order(market))
    verdict = decide(evidence, rules, explanations=explanations)
    broken = [reason.name for reason in verdict.reasons if not reason.holds]
    return Row(
        case.process,
        sharpe,
        case.sharpe is None,
        case.bars,
        case.trials,
        seed,
        verdict.decision == "promote",
        ", ".join(broken),
    )


def simulate_all(
    planned: Iterable[tuple[Case, int]], *, repetitions: int, kept: RowLog | None = None
) -> list[Row]:
    """Return the rows of all cases and seeds; what a file holds is not simulated again."""
    rows = [] if kept is None else [Row(**line) for line in kept.lines]
    done = {
        (row.process, row.planned or row.sharpe, row.bars, row.trials, row.seed) for row in rows
    }
    for case, seed in planned:
        sharpe = True if case.sharpe is None else case.sharpe
        if (case.process, sharpe, case.bars, case.trials, seed) in done:
            continue
        row = simulate(case, seed, repetitions=repetitions)
        rows.append(row)
        if kept is not None:
            kept.append(row._asdict())
    return rows


def _scaled(shock: Array, volatility: float, sharpe: float) -> Array:
    """Return returns with an annual volatility and Sharpe ratio, from shocks of deviation 1."""
    return np.asarray(volatility / math.sqrt(YEAR) * (shock + sharpe / math.sqrt(YEAR)))


def _baselines(market: Array) -> dict[str, Array]:
    """Return buy and hold, a volatility target and momentum on a market, over its bars."""
    size = np.sqrt(np.convolve(market**2, np.ones(30) / 30)[: market.size])
    target = np.concatenate(([0.0], np.minimum(0.3 / math.sqrt(YEAR) / (size[:-1] + 1e-9), 1.0)))
    trend = np.sign(np.convolve(market, np.ones(30))[: market.size])
    return {
        "buy and hold": market,
        "volatility target": target * market,
        "momentum": np.concatenate(([0.0], trend[:-1])) * market,
    }


def _pooled(common: Array, own: Array, sharpe: float) -> Pooled:
    """Return the account of three seeds that have four fifths of their variance in common.

    The account as a whole has the true Sharpe ratio that is asked for.
    """
    bars, seeds = own.shape
    mixed = math.sqrt(_ALIKE) * common[:, None] + math.sqrt(1.0 - _ALIKE) * own
    deviation = math.sqrt(_ALIKE + (1.0 - _ALIKE) / seeds)
    columns = _VOLATILITY / math.sqrt(YEAR) * (mixed + deviation * sharpe / math.sqrt(YEAR))
    grown = np.concatenate((np.ones((1, seeds)), np.cumprod(1.0 + columns, axis=0)))
    returns = columns.mean(axis=1)
    equity = np.concatenate(([1.0], np.cumprod(1.0 + returns)))
    ends = np.cumsum([0, *(len(part) for part in np.array_split(np.arange(bars), _FOLDS))])
    day = Interval.parse("1d")
    return Pooled(
        interval=day,
        ts=np.arange(bars + 1, dtype=np.int64) * day.milliseconds,
        equity=equity,
        seed_equity=grown,
        fold_returns=tuple(float(ratio) for ratio in equity[ends[1:]] / equity[ends[:-1]] - 1.0),
        flows=Flows(),
        round_trips=np.zeros(0),
        trades=0,
        order_hash="",
    )


def _in_order(market: Array) -> Trading:
    """Return backtests in which nothing is wrong; the clairvoyant earned every move."""
    return Trading(
        self_tests=(SelfTest("simulated", holds=True, words=""),),
        failed_folds=(),
        liquidations=0,
        stops=0,
        break_even=BreakEven(20.0, 20.0, 20.0, ""),
        charged_bp=7.0,
        cost_floor_bp=2.0,
        dead_fills=0,
        clairvoyant_return=float(np.expm1(np.log1p(np.abs(market)).sum())),
        tail=Tail(230, Statement(None, needed=200, found=market.size // 230, unit="windows")),
    )


@dataclass(frozen=True)
class Rate:
    """How often a case was promoted."""

    process: str
    sharpe: float
    """Mean over the runs."""
    planned: bool
    bars: int
    trials: int
    promoted: int
    runs: int

    @property
    def share(self) -> float:
        """Promoted over all."""
        return self.promoted / self.runs


def rates(rows: Iterable[Row]) -> list[Rate]:
    """Return how often each case was promoted, in the order of the rows."""
    groups: dict[tuple[str, float | None, int, int], list[Row]] = {}
    for row in rows:
        case = (row.process, None if row.planned else row.sharpe, row.bars, row.trials)
        groups.setdefault(case, []).append(row)
    return [
        Rate(
            process,
            float(np.mean([row.sharpe for row in own])),
            sharpe is None,
            bars,
            trials,
            sum(row.promoted for row in own),
            len(own),
        )
        for (process, sharpe, bars, trials), own in groups.items()
    ]


def verdicts(found: Sequence[Rate]) -> list[Verdict]:
    """Return the claims: noise is seldom promoted, and the Sharpe ratio of the plan mostly is.

    Each within what chance explains at 99 % in so many runs.
    """
    claims = []
    for rate in found:
        where = f"{rate.process}, {rate.bars} bars, best of {rate.trials}"
        measured = f"{rate.promoted} of {rate.runs}"
        slack = 2.33 / math.sqrt(rate.runs)
        if not rate.planned and rate.sharpe == 0.0:
            most = FALSE + slack * math.sqrt(FALSE * (1.0 - FALSE))
            claims.append(Verdict(f"no skill, {where}", measured, rate.share <= most))
        elif rate.planned:
            least = SURE - slack * math.sqrt(SURE * (1.0 - SURE))
            claim = f"planned {rate.sharpe:.2f}, {where}"
            claims.append(Verdict(claim, measured, rate.share >= least))
    return claims
