"""Self-tests of a validation: checks of ledger, statistics and agent whose answers are known.

A figure out of a broken ledger looks like any other. So before a verdict is believed: a strategy
that knows every bar must win, noise must not look like skill, other decisions must trade otherwise,
fees must hurt, and later bars must change no decision. Each test takes the function that it
examines as an argument, so that a broken one can be put in its place.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from stormsail.core.files.documents import Record
from stormsail.core.generators import Generators
from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.evaluation.engine.result import Array, Backtest
from stormsail.evaluation.engine.run import (
    BacktestRequest,
    ReplayRequest,
    Weights,
    backtest,
    replay,
)
from stormsail.evaluation.robustness.baselines import random_weights
from stormsail.evaluation.robustness.costs import all_in, on_panel
from stormsail.evaluation.stats.figures import returns_of
from stormsail.evaluation.stats.sharpe import probabilistic_sharpe
from stormsail.evaluation.stats.statement import MINIMUM_BARS
from stormsail.market.panel import Panel
from stormsail.market.simulator.config import Filters, MarketConfig, NoTrade, RiskLimits, Stops
from stormsail.market.splits import Span
from stormsail.modules.agent import Agent

Ledger = Callable[[Weights, Panel, BacktestConfig], Backtest]
"""Trades given weights [T, S], as `replay` does."""

Decide = Callable[[Agent, Panel, BacktestConfig], Backtest]
"""Lets an agent trade, as `backtest` does."""

ORACLE = "clairvoyant"
STRATEGIES = 64
PASS = 0.95
"""Probability of a Sharpe ratio above 0 from which a strategy looks like skill."""

SURE = 0.999
"""Confidence of the largest number of strategies that may look so."""

_SLACK = 1e-6  # share of equity that rounding may cost the clairvoyant against its equal
_LEAST_FEE = 0.001  # fee that is added where there are no costs to double


@dataclass(frozen=True)
class SelfTest(Record):
    """A check of the ledger, the statistics or the agent whose answer is known."""

    name: str
    holds: bool | None
    """None where it could not be checked."""
    words: str


def oracle_wins(returns: Mapping[str, float], agents: float) -> SelfTest:
    """Check that the clairvoyant baseline returned at least as much as all other strategies.

    Args:
        returns: total return of each baseline by name, the clairvoyant's from `oracle_return`.
        agents: total return of the agents over the same bars.
    """
    if ORACLE not in returns:
        return SelfTest("oracle", None, "No baselines were traded, so nobody knew the future.")
    best = 1.0 + returns[ORACLE]
    others = {name: total for name, total in returns.items() if name != ORACLE}
    name, most = max((others | {"agents": agents}).items(), key=lambda item: item[1])
    words = (
        f"Knowing every bar earned {best - 1.0:+.2%}; the best of the others, {name}, {most:+.2%}."
    )
    return SelfTest("oracle", best * (1.0 + _SLACK) >= 1.0 + most, words)


def oracle_return(oracle: Backtest, panel: Panel, *, ledger: Ledger = replay) -> float:
    """Return the total return of the clairvoyant where its weights are exact.

    They are for fee, spread, funding and times without trade. Impact, order steps, limits and
    stops, which it does not know, are left out: with them it would be no bound.
    """
    weights = on_panel(oracle.bars["decided"], oracle, panel)
    request = oracle_request(weights, panel, oracle.config.during(oracle.span))
    return _traded(request, ledger).total_return


def oracle_request(weights: Weights, panel: Panel, config: BacktestConfig) -> ReplayRequest:
    """Return what `oracle_return` trades: the clairvoyant's weights at the rows of the panel."""
    market = _smooth(_unlimited(config.market or MarketConfig()))
    smooth = config.replace(market=market.model_dump(), delay_bars=0)
    return ReplayRequest(weights, panel, smooth.replace(filters=Filters(), symbol_filters={}))


def noise_stays_noise(
    result: Backtest, panel: Panel, *, seed: int, span: Span | None = None, ledger: Ledger = replay
) -> SelfTest:
    """Check how often random strategies look skilled, on a market without direction.

    The null: the bars of the span, with the sign of every close-to-close return drawn anew, so that
    each return is as likely up as down whatever came before, and sizes keep their clusters. 64
    random strategies with the agent's levels and turnover trade 64 such markets without costs.
    Their true mean return is 0. Two questions:

    - Is their return positive? A mean over all of them above 0 with a one-sided p-value of
      Student's t below 0.001 means that the ledger makes money up: the answer is no.
    - Does the statistic call them skilled? One in twenty may pass the probabilistic Sharpe ratio of
      0.95. More than the 99.9 % bound of the binomial distribution means that it cannot be trusted
      here, which happens where a few huge bars decide everything, as the ratio's distribution is
      one for many bars: the answer is unknown, which prevents a promotion and rejects nothing.

    The sizes are those of the bars of `span`; None takes the span of the agent's backtest.
    """
    where = result.span if span is None else span
    bars = where.count(panel.ts.cpu().numpy()) - 1
    requests = noise_requests(result, panel, seed=seed, span=span)
    if not requests:
        words = f"{bars} bars are too few to call anything skill; {MINIMUM_BARS} are needed."
        return SelfTest("noise", None, words)
    returns = [returns_of(column) for column in _traded(requests[0], ledger).sleeves.T]
    means = np.array([series.mean() for series in returns])
    words = (
        f"Of {STRATEGIES} random strategies with the agent's turnover, on returns whose signs were "
        "drawn anew and without costs, "
    )
    if _surely_above_zero(means):
        words += f"the mean return of a bar is {means.mean():+.3g}, which chance does not explain."
        return SelfTest("noise", holds=False, words=words)
    # NaN, a strategy that never moved, does not pass
    passed = sum(probabilistic_sharpe(series) >= PASS for series in returns)
    from scipy import stats  # half a second of imports, so not above

    most = int(stats.binom.ppf(SURE, STRATEGIES, 1.0 - PASS))
    words += f"{passed} look skilled; chance explains up to {most}."
    if passed <= most:
        return SelfTest("noise", holds=True, words=words)
    words += " So few bars with moves so large make the Sharpe ratio's own error too small."
    return SelfTest("noise", None, words)


def _surely_above_zero(values: Array) -> bool:
    """Return whether the mean of independent values is above 0 beyond the confidence asked for."""
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    if error == 0.0:
        return float(values.mean()) > 0.0
    from scipy import stats  # half a second of imports, so not above

    return float(stats.t.sf(values.mean() / error, len(values) - 1)) < 1.0 - SURE


def noise_requests(
    result: Backtest, panel: Panel, *, seed: int, span: Span | None = None
) -> list[ReplayRequest]:
    """Return what `noise_stays_noise` trades: one replay, or none where there are too few bars."""
    where = result.span if span is None else span
    if where.count(panel.ts.cpu().numpy()) - 1 < MINIMUM_BARS:
        return []
    market = _free(_smooth(_unlimited(result.config.market or MarketConfig())))
    world = flipped(panel, where, count=STRATEGIES, seed=seed)
    own = result.config.rules(panel)
    levels = own.offered if own.action == "levels" else (*own.offered, 0.0)
    turnover = float(result.bars["turnover"].mean())
    weights = random_weights(world, levels, turnover=turnover, seed=seed)
    return [ReplayRequest(weights.numpy(), world, BacktestConfig(market=market, burn_in=0))]


def permuted_matters(
    result: Backtest, panel: Panel, *, seed: int, ledger: Ledger = replay
) -> SelfTest:
    """Check that the same decisions in another order give other orders and another equity."""
    requests = permuted_requests(result, panel, seed=seed)
    if not requests:
        words = "The agent never changed its weight, so no order of its decisions is another."
        return SelfTest("permuted decisions", None, words)
    usual, other = (_traded(request, ledger) for request in requests)
    same = [
        name
        for name, equal in (
            ("the orders", other.order_hash == usual.order_hash),
            ("the equity", np.array_equal(other.equity, usual.equity)),
        )
        if equal
    ]
    effect = (
        f"but {' and '.join(same)} stayed the same" if same else "and orders and equity changed"
    )
    words = f"{len(result.weights)} decisions were traded in another order, {effect}."
    return SelfTest("permuted decisions", not same, words)


def permuted_requests(result: Backtest, panel: Panel, *, seed: int) -> list[ReplayRequest]:
    """Return what `permuted_matters` trades: the decisions, and them in another order.

    Nothing where no order is another.
    """
    weights = result.weights
    if bool((np.nan_to_num(weights, nan=np.inf) == np.nan_to_num(weights[:1], nan=np.inf)).all()):
        return []
    drawn = Generators(seed).numpy("self_tests.order").permutation(len(weights))
    shuffled = weights[drawn]
    while np.array_equal(shuffled, weights, equal_nan=True):
        shuffled = np.roll(shuffled, 1, axis=0)
    return [
        ReplayRequest(on_panel(order, result, panel), panel, _prompt(result))
        for order in (weights, shuffled)
    ]


def fees_hurt(result: Backtest, panel: Panel, *, ledger: Ledger = replay) -> SelfTest:
    """Check that the same decisions end with less where trading costs twice as much.

    Stops and loss limits are off in both replays: dearer trading could trip one early and be spared
    a loss. Without them each bar leaves less, the more an order costs.
    """
    requests = fee_requests(result, panel)
    if not requests:
        return SelfTest("fees", None, "Nothing was traded, so no fee was paid.")
    usual, less = (_traded(request, ledger) for request in requests)
    words = (
        f"The same decisions came to {usual.total_return:+.3%}, and to {less.total_return:+.3%} "
        "where trading costs twice as much."
    )
    return SelfTest("fees", bool(less.equity[-1] < usual.equity[-1]), words)


def fee_requests(result: Backtest, panel: Panel) -> list[ReplayRequest]:
    """Return what `fees_hurt` trades: at the usual costs and at twice as much, or nothing."""
    if not result.trades:
        return []
    market = _unlimited(result.config.market or MarketConfig())
    costs = market.costs
    fee = max(map(result.market.fee_of, result.symbols))
    dear = costs.replace(
        taker_fee=min(2.0 * fee or _LEAST_FEE, 0.5),
        half_spread=min(2.0 * costs.half_spread, 0.5),
        impact=2.0 * costs.impact,
    )
    weights = on_panel(result.weights, result, panel)
    rules = [market.replace(costs=charged.model_dump()) for charged in (costs, dear)]
    return [ReplayRequest(weights, panel, _prompt(result, own)) for own in rules]


def no_look_ahead(
    agent: Agent, result: Backtest, panel: Panel, *, decide: Decide = backtest
) -> SelfTest:
    """Check that later bars change no decision.

    Three times, at a quarter, half and three quarters of the backtest, everything after a row is
    reversed in time and made dearer; the agent trades up to that row again. Its decisions and the
    predictions of its critic must be the same to the last bit.
    """
    requests = look_ahead_requests(agent, result, panel)
    wrong = [
        decisions
        for decisions, request in requests.items()
        if not _same_decisions(
            result, decide(request.agent, request.panel, request.config), decisions
        )
    ]
    words = f"Everything after decision {', '.join(map(str, requests))} was changed"
    effect = f"; decisions up to {', '.join(map(str, wrong))} changed with it."
    return SelfTest(
        "look-ahead", not wrong, words + (effect if wrong else "; no decision changed.")
    )


def look_ahead_requests(agent: Agent, result: Backtest, panel: Panel) -> dict[int, BacktestRequest]:
    """Return what `no_look_ahead` trades, by the number of decisions that are compared."""
    ts = panel.ts.cpu().numpy()
    first, count = int(np.searchsorted(ts, result.span.start_ms)), len(result.weights)
    requests = {}
    for decisions in sorted({max(1, count * part // 4) for part in (1, 2, 3)}):
        row = first + decisions - 1  # of the last decision that is compared
        end = int(ts[row + 1]) + panel.interval.milliseconds
        config = result.config.during(Span(result.span.start_ms, end))
        requests[decisions] = BacktestRequest(agent, changed_after(panel, row), config)
    return requests


def changed_after(panel: Panel, row: int) -> Panel:
    """Return a panel whose rows after one are reversed in time, at 1.5 times the price."""
    kept = row + 1

    def reversed_(tensor: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
        later = tensor[kept:].flip(0)
        return torch.cat((tensor[:kept], later if factor == 1.0 else later * factor))

    prices = {name: reversed_(getattr(panel, name), 1.5) for name in _PRICES}
    columns = {name: reversed_(getattr(panel, name)) for name in ("tradable", "funding")}
    volume = reversed_(panel.volume, 2.0)
    optional = {name: reversed_(column, 2.0) for name, column in panel.optional.items()}
    changed = {**prices, **columns, "volume": volume}
    return replace(panel, optional=optional, **changed)  # type: ignore[arg-type]  # all are tensors


def flipped(panel: Panel, span: Span, *, count: int, seed: int) -> Panel:
    """Return markets without direction: the span's returns with signs drawn anew.

    Column i has the sizes of the symbol i modulo S. Bars open where the last one closed. A return
    of more than ±90 % is left out, since its mirror image would leave nothing.
    """
    part = panel.between(span.start_ms, span.end_ms)
    close = part.close.double().cpu().numpy()[:, np.arange(count) % len(panel.symbols)]
    size = np.abs(close[1:] / close[:-1] - 1.0)
    sign = 2.0 * Generators(seed).numpy("self_tests.signs").integers(0, 2, size.shape) - 1.0
    moved = np.cumprod(1.0 + sign * np.where(size < 0.9, size, 0.0), axis=0)
    ends = torch.from_numpy(100.0 * np.concatenate((np.ones((1, count)), moved)))
    begins = torch.cat((ends[:1], ends[:-1]))
    every = torch.ones_like(ends, dtype=torch.bool)
    return Panel(
        symbols=tuple(f"N{number:03d}/USDT:USDT" for number in range(count)),
        interval=panel.interval,
        ts=part.ts.cpu(),
        open=begins,
        high=torch.maximum(begins, ends),
        low=torch.minimum(begins, ends),
        close=ends,
        volume=torch.full_like(ends, 1e9),
        tradable=every,
        listed=every,
        funding=torch.zeros_like(ends),
        has_funding=torch.zeros(count, dtype=torch.bool),
        funding_outside=(0,) * count,
    )


_PRICES = ("open", "high", "low", "close")


def _unlimited(market: MarketConfig) -> MarketConfig:
    """Return a market without stops and limits, but for that of the weight."""
    limits = RiskLimits(max_leverage=market.limits.max_leverage)
    return market.replace(limits=limits.model_dump(), stops=Stops(equity_floor=1e-9).model_dump())


def _smooth(market: MarketConfig) -> MarketConfig:
    """Return a market without impact and order steps."""
    return market.replace(
        **{"costs.impact": 0.0, "min_rebalance": 0.0},
        filters=Filters().model_dump(),
        symbol_filters={},
    )


def _free(market: MarketConfig) -> MarketConfig:
    """Return a market in which nothing costs anything and orders can always be sent."""
    free = all_in(0.0, market.costs)
    return market.replace(costs=free.model_dump(), funding=False, no_trade=NoTrade().model_dump())


def _prompt(result: Backtest, market: MarketConfig | None = None) -> BacktestConfig:
    """Return the rules for weights that have waited already: a delay must not act twice."""
    config = result.config.during(result.span).replace(delay_bars=0)
    return config if market is None else config.replace(market=market.model_dump())


def _traded(request: ReplayRequest, ledger: Ledger) -> Backtest:
    return ledger(request.weights, request.panel, request.config)


def _same_decisions(result: Backtest, again: Backtest, decisions: int) -> bool:
    pairs = [(result.bars["decided"], again.bars["decided"])]
    for first, second in ((result.value, again.value), (result.distribution, again.distribution)):
        if first is not None and second is not None:
            pairs.append((first, second))
    return all(
        np.array_equal(first[:decisions], second[:decisions], equal_nan=True)
        for first, second in pairs
    )
