"""Baseline strategies that an agent must beat, traded on the same ledger.

Each is a pure function from bars to target weights [T, S] (float64; NaN holds): row t uses bars
that have closed by row t and nothing later, so changing the future changes no past weight. The one
exception is named for it: `clairvoyant_weights` knows every bar and is a bound, not a strategy.
`run_baselines` trades them all over one span; `engine.run.replay` trades any other weights.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from stormsail.core.errors import ChoiceError, RangeError, nearest
from stormsail.core.generators import Generators
from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.evaluation.engine.result import Backtest
from stormsail.evaluation.engine.run import ReplayRequest, rows_of, run_batch
from stormsail.evaluation.robustness.hindsight import Hindsight, ProportionalCosts, clairvoyant
from stormsail.evaluation.stats.figures import bars_per_year
from stormsail.market.panel import Panel
from stormsail.market.simulator.config import MarketConfig
from stormsail.market.simulator.tape import may_trade, paid_rates, traded

_DAY_MS = 86_400_000


def flat_weights(panel: Panel) -> Tensor:
    """Return 0 everywhere: cash."""
    return torch.zeros(panel.shape, dtype=torch.float64)


def hold_weights(panel: Panel, market: MarketConfig | None = None) -> Tensor:
    """Return 1 in the first row and after a bar without trades, and else hold: buy and hold.

    Each symbol has its own capital. Funding that is paid may push the weight past a leverage limit
    of 1; the gate then sells a little.
    """
    weight = torch.ones(panel.shape, dtype=torch.float64)
    return _on_change(weight, traded(panel, market or MarketConfig()))


def equal_weights(panel: Panel) -> Tensor:
    """Return 1 everywhere; with accounts that are pooled, the same share of all in each symbol."""
    return torch.ones(panel.shape, dtype=torch.float64)


def momentum_weights(
    panel: Panel, *, lookback: int, short: bool = True, market: MarketConfig | None = None
) -> Tensor:
    """Return the sign of the return over the last `lookback` bars; time-series momentum.

    Moskowitz, Ooi & Pedersen 2012 without their scaling by volatility. A weight is asked for when
    the sign changes, again after a bar without trades, and held otherwise, so that drift costs
    nothing. 0 before there are enough bars.

    Args:
        panel: closed bars.
        lookback: bars over which the return is taken, at least 1.
        short: whether a falling price is sold short; otherwise it means cash.
        market: says in which bars orders fill; None takes the defaults.
    """
    _at_least_one("lookback", lookback)
    sign = torch.zeros(panel.shape, dtype=torch.float64)
    close = panel.close.double()
    sign[lookback:] = (close[lookback:] / close[:-lookback] - 1.0).sign()
    sign = torch.where(_aged(panel, lookback), sign, 0.0)
    may = traded(panel, market or MarketConfig())
    return _on_change(sign if short else sign.clamp(min=0.0), may)


def volatility_weights(
    panel: Panel, *, target: float, window: int, every: int, most: float = 1.0
) -> Tensor:
    r"""Return a long weight that aims at a constant volatility, min(target / sigma, most).

    sigma is the root mean square of the last `window` one-bar log returns times the root of the
    bars in a year. Asked for every `every` bars and held between. 0 before there are enough bars.

    Args:
        panel: closed bars.
        target: annual volatility, such as 0.3.
        window: bars over which volatility is measured, at least 1.
        every: bars between two orders, counted from 1970, so that the span plays no part.
        most: largest weight.
    """
    _at_least_one("window", window)
    _at_least_one("every", every)
    close = panel.close.double()
    squares = torch.zeros_like(close)
    squares[1:] = (close[1:] / close[:-1]).log().square()
    total = squares.cumsum(0)
    mean = torch.full_like(close, torch.inf)
    if len(close) > window:
        mean[window:] = (total[window:] - total[:-window]).clamp(min=0.0) / window
    year = bars_per_year(panel.interval.milliseconds)
    sigma = (mean * year).sqrt()
    weight = (target / sigma.clamp(min=target / most)).clamp(max=most)  # no volatility: the most
    weight = torch.where(_aged(panel, window), weight, 0.0)
    due = panel.ts // panel.interval.milliseconds % every == 0
    due[0] = True
    return torch.where(due[:, None], weight, torch.nan)


def random_weights(panel: Panel, levels: Sequence[float], *, turnover: float, seed: int) -> Tensor:
    r"""Return weights drawn from levels, changed as often as gives a turnover on average.

    In each bar and symbol, with probability p a new level is drawn, uniformly among the others;
    else the position is held. Levels are then uniform in the long run, a change is worth the mean
    distance d of two different levels, and p = turnover / d, at most 1. Nothing is read of the bars
    but their number. Ours.

    Args:
        panel: bars.
        levels: weights on offer, at least two.
        turnover: mean sum of weight changes of one account in one bar.
        seed: of the draws.
    """
    offered = np.unique(np.asarray(levels, dtype=np.float64))
    count = len(offered)
    if count < 2:
        raise RangeError(
            wrong="`levels` must be at least two different weights",
            found=str(list(levels)),
            remedy="Pass those that the agent chooses from.",
        )
    apart = np.abs(offered[:, None] - offered).sum() / (count * (count - 1))
    chance = min(turnover / apart, 1.0)
    draw = Generators(seed).numpy("baseline.random")
    changes = draw.random(panel.shape) < chance
    changes[0] = True
    steps = draw.integers(1, count, panel.shape)
    steps[0] = draw.integers(0, count, panel.shape[1])
    place = np.where(changes, steps, 0).cumsum(0) % count  # a step of 1 to n-1 is another level
    return torch.from_numpy(np.where(changes, offered[place], np.nan))


def hindsight(
    panel: Panel, market: MarketConfig, levels: Sequence[float], *, rows: tuple[int, int]
) -> Hindsight:
    """Return the best weights for someone who knows all bars, and the log growth they bound.

    Exact for fee, half spread and funding, by the dynamic programming of `robustness.hindsight`;
    impact, lots, ticks, limits and borrow rates, which it does not know, make a replay fall short
    of the bound. Where symbols differ in their fees it knows the lowest, and stays a bound.

    Args:
        panel: bars.
        market: costs, funding and no-trade times.
        levels: weights on offer.
        rows: of the first decision and of the last mark.
    """
    ahead = slice(rows[0] + 1, rows[1] + 1)
    return clairvoyant(
        panel.open[ahead].double().cpu().numpy(),
        panel.close[ahead].double().cpu().numpy(),
        levels,
        ProportionalCosts(min(map(market.fee_of, panel.symbols)), market.costs.half_spread),
        funding=paid_rates(panel, market)[ahead].double().cpu().numpy(),
        tradable=may_trade(panel, market)[ahead].cpu().numpy(),
    )


def clairvoyant_weights(
    panel: Panel, market: MarketConfig, levels: Sequence[float], *, rows: tuple[int, int]
) -> Tensor:
    """Return the weights of `hindsight`: a bound, not a strategy. Other rows than these hold."""
    weights = torch.full(panel.shape, torch.nan, dtype=torch.float64)
    best = hindsight(panel, market, levels, rows=rows)
    weights[rows[0] : rows[1]] = torch.from_numpy(best.weights)
    return weights


class _Setting(NamedTuple):
    """What a baseline may need besides the bars."""

    panel: Panel
    config: BacktestConfig
    rows: tuple[int, int]
    levels: tuple[float, ...]
    turnover: float
    day: int
    """Bars in a day, at least 1."""


def _long(setting: _Setting) -> float:
    """Return the largest long weight up to 1 that the limits allow."""
    return min(1.0, setting.config.ledger(setting.panel).limits.max_leverage)


def _momentum(setting: _Setting) -> Tensor:
    return momentum_weights(
        setting.panel,
        lookback=30 * setting.day,
        short=min(setting.levels) < 0.0,
        market=setting.config.market,
    )


def _volatility(setting: _Setting) -> Tensor:
    most = min(1.0, max(setting.levels))
    return volatility_weights(
        setting.panel, target=0.3, window=30 * setting.day, every=setting.day, most=most
    )


def _random(setting: _Setting) -> Tensor:
    return random_weights(
        setting.panel, setting.levels, turnover=setting.turnover, seed=setting.config.seed
    )


def _clairvoyant(setting: _Setting) -> Tensor:
    market = setting.config.ledger(setting.panel)
    return clairvoyant_weights(setting.panel, market, setting.levels, rows=setting.rows)


BASELINES: Mapping[str, Callable[[_Setting], Tensor]] = {
    "flat": lambda setting: flat_weights(setting.panel),
    "buy and hold": lambda setting: (
        hold_weights(setting.panel, setting.config.market) * _long(setting)
    ),
    "equal weight": lambda setting: equal_weights(setting.panel) * _long(setting),
    "momentum": _momentum,
    "volatility target": _volatility,
    "random": _random,
    "clairvoyant": _clairvoyant,
}
"""By name. Momentum and volatility look back 30 days; the volatility target is 30 % a year,
adjusted daily; equal weight moves capital between the accounts daily; random has the turnover that
is given."""


def run_baselines(
    panel: Panel,
    config: BacktestConfig,
    *,
    like: Backtest | None = None,
    names: Sequence[str] = tuple(BASELINES),
) -> dict[str, Backtest]:
    """Return each baseline traded over the same span by the same rules.

    Args:
        panel: bars.
        config: which bars, which rules.
        like: backtest whose span and turnover are taken; without one the span of `config`, and a
            turnover of one whole position a day.
        names: which of `BASELINES`.

    Raises:
        ChoiceError: if there is no such baseline.
        DataError: if the span has no bars.
    """
    requests = baseline_requests(panel, config, like=like, names=names)
    results = run_batch(list(requests.values()))
    return {name: result[0] for name, result in zip(requests, results, strict=True)}


def baseline_requests(
    panel: Panel,
    config: BacktestConfig,
    *,
    like: Backtest | None = None,
    names: Sequence[str] = tuple(BASELINES),
) -> dict[str, ReplayRequest]:
    """Return what `run_baselines` trades, by name; arguments and refusals are the same."""
    for name in names:
        _check_name(name)
    chosen = config if like is None else like.config.during(like.span)
    market = chosen.rules(panel)
    day = max(1, _DAY_MS // panel.interval.milliseconds)
    turnover = 1.0 / day if like is None else float(like.bars["turnover"].mean())
    levels = market.offered if market.action == "levels" else (*market.offered, 0.0)
    rows = rows_of(panel, chosen, lookback=1, burn_in=0)
    setting = _Setting(panel, chosen, rows, levels, turnover, day)
    # decisions of the agent may come late; a bound and a yardstick come in time
    prompt = chosen.replace(delay_bars=0)
    requests = {}
    for name in names:
        own = prompt.replace(pool_bars=day) if name == "equal weight" else prompt
        requests[name] = ReplayRequest(BASELINES[name](setting), panel, own)
    return requests


def _check_name(name: str) -> None:
    if name not in BASELINES:
        near = nearest(name, BASELINES)
        raise ChoiceError(
            wrong=f"a baseline must be one of {', '.join(BASELINES)}",
            found=f"`{name}`",
            remedy=f"Did you mean `{near}`?" if near else "Choose one of those.",
        )


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise RangeError(
            wrong=f"`{name}` must be at least 1", found=str(value), remedy="Count in bars."
        )


def _aged(panel: Panel, bars: int) -> Tensor:
    """Return where a symbol has had more than so many bars, bool [T, S]."""
    return panel.listed.long().cumsum(0) > bars


def _on_change(weight: Tensor, tradable: Tensor) -> Tensor:
    """Return the weights where they differ from the row before, or its order met no trade."""
    same = torch.zeros_like(weight, dtype=torch.bool)
    same[1:] = (weight[1:] == weight[:-1]) & tradable[1:]
    return torch.where(same, torch.nan, weight)
