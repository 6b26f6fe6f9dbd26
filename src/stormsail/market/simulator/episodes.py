"""Rows at which an episode may start, and the random numbers of its start, costs and feed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from stormsail.core.clock import iso
from stormsail.core.errors import DataError
from stormsail.market.panel import Panel
from stormsail.market.simulator.config import MarketConfig
from stormsail.market.simulator.tape import may_trade
from stormsail.market.splits import Span, rows_without


class Window(NamedTuple):
    """The rows [first, last) in which episodes lie."""

    first: int
    last: int


def window_of(panel: Panel, span: Span | None) -> Window:
    """Return the rows of a span, or all of them."""
    if span is None:
        return Window(0, len(panel.ts))
    rows = span.rows(panel.ts.cpu().numpy())
    return Window(rows.start, rows.stop)


@dataclass(frozen=True, eq=False)
class Starts:
    """Every pair of symbol and row at which an episode may start, each equally likely."""

    symbol: Tensor
    """int64 [K]."""
    row: Tensor
    """int64 [K]."""

    @classmethod
    def of(
        cls,
        panel: Panel,
        config: MarketConfig,
        window: Window,
        *,
        lookback: int,
        device: torch.device,
        without: Sequence[Span] = (),
    ) -> "Starts":
        """Find the starts from which a whole episode and its features have data.

        At least one of the episode's bars must be one in which an order can fill: where nothing
        can be traded nothing can be learned. And none of its bars, nor of those that its features
        and its market impact look back on, may lie in one of the spans `without`.

        Raises:
            DataError: if there is none.
        """
        length = config.episode_bars
        if length >= len(panel.ts):  # however long: it may not fit into 64 bits
            raise _too_short(panel, config, window, lookback)
        latest = window.last - 1 - length
        known = panel.listed.cpu()
        seen = known.long().cumsum(0)  # bars of each symbol so far
        row = torch.arange(len(panel.ts))[:, None]
        fits = known & (seen >= lookback) & (row >= window.first) & (row <= latest)
        if without:
            free = torch.from_numpy(rows_without(panel.ts.cpu().numpy(), without))
            reach = max(lookback - 1, config.costs.impact_window)
            fits = fits & unbroken(free, before=reach, after=length)[:, None]
        if not fits.any():
            raise _too_short(panel, config, window, lookback)
        filled = may_trade(panel, config).cpu().long().cumsum(0)
        alive = torch.zeros_like(fits)
        alive[:-length] = filled[length:] > filled[:-length]  # after the row, up to the end
        where = (fits & alive).nonzero()
        if not len(where):
            raise _nothing_to_trade(panel, config, int(fits.sum()))
        return cls(where[:, 1].to(device), where[:, 0].to(device))

    def pick(self, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Return symbol and row for uniform numbers in [0, 1), float64 [B]."""
        count = len(self.row)
        index = (uniform * count).long().clamp(max=count - 1)
        return self.symbol[index], self.row[index]


def unbroken(free: Tensor, *, before: int, after: int = 0) -> Tensor:
    """Return the rows around which all rows are free, so many before and after it, bool [T].

    Rows beyond either end count as free.
    """
    pad = torch.zeros(before, dtype=torch.int64), torch.zeros(after, dtype=torch.int64)
    taken = torch.cat((torch.zeros(1, dtype=torch.int64), pad[0], (~free).long(), pad[1])).cumsum(0)
    return taken[before + after + 1 :] == taken[: len(free)]


def _too_short(panel: Panel, config: MarketConfig, window: Window, lookback: int) -> DataError:
    bars = max(window.last - window.first, 0)
    since = iso(int(panel.ts[window.first])) if bars else "no bar"
    return DataError(
        "data-span",
        wrong=f"an episode of {config.episode_bars} bars must fit into the data, after "
        f"{lookback} bars of some symbol that the first observation needs",
        found=f"{bars} bars from {since}, {len(panel.ts)} in the whole panel",
        remedy="Use more data, fewer `episode_bars`, or features with a shorter lookback.",
    )


def _nothing_to_trade(panel: Panel, config: MarketConfig, starts: int) -> DataError:
    bars, silent = int(panel.tradable.sum()), int((panel.volume[panel.tradable] <= 0.0).sum())
    return DataError(
        "data-span",
        wrong=f"an episode of {config.episode_bars} bars must hold one in which an order can fill",
        found=f"none in {starts} episodes that fit; {silent} of {bars} bars have no volume",
        remedy="Use bars with volume and shorter no-trade windows; set "
        "`task.market.trade_without_volume` where the source has no volumes.",
    )


class Draws(NamedTuple):
    """Uniform numbers of one step by name; None where nothing needs them."""

    start: Tensor
    """float64 [B], from two numbers: one of 24 bits could not reach every row of a long panel."""
    costs: Tensor | None
    """[3, B]: fee, half spread, impact."""
    feed: Tensor | None
    """[4, B]: stale, dropped, delayed, by how much."""


def drawn_rows(config: MarketConfig) -> int:
    """Return how many uniform numbers an environment needs a step."""
    return 2 + 3 * costs_vary(config) + 4 * feed_fails(config)


def costs_vary(config: MarketConfig) -> bool:
    """Return whether the costs are drawn anew each episode."""
    ranges = config.randomise
    return {ranges.taker_fee, ranges.half_spread, ranges.impact} != {(1.0, 1.0)}


def feed_fails(config: MarketConfig) -> bool:
    """Return whether what the agent sees is degraded."""
    feed = config.degrade
    return max(feed.stale_prob, feed.drop_prob, feed.delay_prob) > 0.0


def split_draws(uniform: Tensor, config: MarketConfig) -> Draws:
    """Return rows of uniform numbers [k, B] by their use."""
    varies = 3 * costs_vary(config)
    costs = uniform[2 : 2 + varies] if varies else None
    feed = uniform[2 + varies :] if feed_fails(config) else None
    start = uniform[0].double() + uniform[1].double() * 2.0**-24
    return Draws(start, costs, feed)
