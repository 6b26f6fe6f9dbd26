"""Baselines of `bench limits`: weights that a multiplier scales, and the search for a CVaR."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from stormsail.bench.risk.unseen import ALPHA, Account, Episodes, trade_weights
from stormsail.evaluation.robustness.baselines import volatility_weights
from stormsail.functional import risk
from stormsail.market.simulator.tape import traded

VOLATILITY_DAYS = 30
"""Over which realised volatility is measured."""

MOST_VOLATILITY = 4.0
"""Largest target of annual volatility: almost every weight is 1 there."""

_DAY_MS = 86_400_000
_TURNS = 24
_CLOSE = 1e-4
_UNBOUNDED = 1e6


class Scalable(NamedTuple):
    """A strategy whose size a multiplier sets."""

    name: str
    weights: Callable[[float], Tensor]
    """Target weights [bars, N] at a multiplier; NaN holds."""
    most: float
    """Largest multiplier."""


def shares(name: str, weights: Tensor) -> Scalable:
    """Return shares of weights that are known, such as those of an agent: m w with m up to 1."""
    return Scalable(name, lambda multiplier: multiplier * weights, 1.0)


def hold(episodes: Episodes) -> Scalable:
    """Return buy and hold: a share of equity is bought at the start and kept.

    An order that met a bar without trades is sent again.
    """
    filled = episodes.at_decisions(traded(episodes.panel, episodes.task.config))
    filled[0] = False
    bought = torch.where(filled, torch.nan, 1.0).to(episodes.task.dtype)
    return shares("hold", bought)


def volatility_target(episodes: Episodes) -> Scalable:
    """Return weights that aim at a constant volatility, min(m / sigma, 1); m is the annual target.

    sigma is that of `evaluation.robustness.baselines.volatility_weights` over 30 days. Orders are
    sent at an episode's start and daily from there.
    """
    day = max(1, _DAY_MS // episodes.panel.interval.milliseconds)
    inverse = volatility_weights(
        episodes.panel, target=1.0, window=VOLATILITY_DAYS * day, every=1, most=_UNBOUNDED
    )
    chosen = episodes.at_decisions(inverse).to(episodes.task.dtype)
    chosen[torch.arange(episodes.bars) % day != 0] = torch.nan
    return Scalable("volatility", lambda target: (target * chosen).clamp(max=1.0), MOST_VOLATILITY)


class Match(NamedTuple):
    """A strategy at the multiplier that gives it a CVaR."""

    multiplier: float
    account: Account
    is_equal: bool
    """Whether there is such a multiplier. Without one it is the largest where CVaR is above, and 0
    where it is below: a sure gain was wanted."""


def at_cvar(episodes: Episodes, strategy: Scalable, cvar: float) -> Match:
    """Return a strategy scaled so that its CVaR on these episodes is at least a number, just so.

    Every multiplier that is tried is traded with its costs. The crossing stays bracketed, and the
    bracket is divided in turns by the line through its ends, which is close because CVaR is almost
    proportional to small weights, and in the middle. The search ends where CVaR is less than 0.0001
    above the number, or after 24 of them, on the side of the smaller tail. Where CVaR does not fall
    with the multiplier, it is one crossing of possibly several.
    """

    def traded(multiplier: float) -> tuple[Account, float]:
        """Return the account, and how far its CVaR is above the number."""
        account = trade_weights(episodes, strategy.weights(multiplier))
        return account, float(risk.empirical_cvar(account.log_growth, alpha=ALPHA)) - cvar

    high, (account, below) = strategy.most, traded(strategy.most)
    if below >= 0.0:
        return Match(high, account, is_equal=below < _CLOSE)
    low, (best, above) = 0.0, traded(0.0)
    for turn in range(_TURNS if above >= 0.0 else 0):
        if above < _CLOSE:
            break
        share = 0.5 if turn % 2 else (above - 0.5 * _CLOSE) / (above - below)
        middle = low + share * (high - low)
        account, reserve = traded(middle)
        if reserve >= 0.0:
            low, best, above = middle, account, reserve
        else:
            high, below = middle, reserve
    return Match(low, best, is_equal=above >= 0.0)
