"""What is known of a pass before its first bar: bars, rules, costs, and what is seen of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stormsail.core.errors import DataError
from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.market.features import FeatureSet, Scaler
from stormsail.market.interval import Interval
from stormsail.market.panel import Panel
from stormsail.market.simulator import State
from stormsail.market.simulator.config import Costs, MarketConfig
from stormsail.market.simulator.tape import Tape
from stormsail.market.simulator.trade import Rules, Steps

Sight = tuple[FeatureSet, Scaler]
"""What whoever decides sees of the market."""


@dataclass(frozen=True, eq=False)
class Course:
    """Everything that is known of one pass before its first bar: K scenarios of S symbols."""

    config: BacktestConfig
    market: MarketConfig
    """Rules by which its accounts are kept."""
    symbols: tuple[str, ...]
    interval: Interval
    ts: NDArray[np.int64]
    """Open times of the panel's rows."""
    tape: Tape
    seen: Tensor | None
    """Scaled features, [T, S, F]; None where nobody looks."""
    first: int
    """Row of the first decision."""
    last: int
    """Row of the last mark."""
    burn_in: int
    """Bars that are read before the first decision."""
    horizon: int
    """Bars of an episode, as the agent sees it."""
    scenarios: tuple[Costs, ...]
    """Costs of each scenario."""

    @property
    def steps(self) -> int:
        """N, the number of decisions."""
        return self.last - self.first

    @property
    def batch(self) -> int:
        """Number of accounts, K * S."""
        return len(self.scenarios) * len(self.symbols)

    @property
    def rules(self) -> Rules:
        """What must be the same in all passes that are walked together."""
        own = self.market
        return Rules(
            own.limits.gate(),
            own.margin.maintenance,
            own.margin.liquidation_fee,
            own.min_rebalance,
        )

    def opened(self, row: int) -> State:
        """Return flat accounts at a row, each with the costs of its scenario."""
        cash = torch.full((self.batch,), self.market.initial_equity, dtype=torch.float64)
        nothing, count = torch.zeros_like(cash), torch.zeros(self.batch, dtype=torch.int64)
        symbol = torch.arange(len(self.symbols)).repeat(len(self.scenarios))
        rows = torch.full_like(count, row)
        return State(
            symbol=symbol,
            row=rows,
            last_row=torch.full_like(count, self.last),
            shown_row=rows,
            cash=cash,
            quantity=nothing,
            entry_price=nothing,
            price=self.tape.close(rows, symbol),
            equity=cash,
            peak_equity=cash,
            day_start_equity=cash,
            turnover=nothing,
            bars_in_position=count,
            fee=self._each("taker_fee"),
            half_spread=self._each("half_spread"),
            impact=self._each("impact"),
            bad_actions=count,
            done=torch.zeros(self.batch, dtype=torch.bool),
        )

    def order_steps(self) -> Steps:
        """Return the order steps of each account."""
        filters = [self.market.filters_of(symbol) for symbol in self.symbols]
        return Steps(
            *(
                torch.tensor([getattr(one, name) for one in filters], dtype=torch.float64).repeat(
                    len(self.scenarios)
                )
                for name in Steps._fields
            )
        )

    def _each(self, name: str) -> Tensor:
        numbers = [getattr(one, name) for one in self.scenarios]
        return torch.tensor(numbers, dtype=torch.float64).repeat_interleave(len(self.symbols))

    def moved(self, equity: Tensor, step: int) -> Tensor:
        """Return the cash that each account gets from the others before a step, 0 in sum."""
        period = self.config.pool_bars
        if period is None or step % period:
            return torch.zeros_like(equity)
        table = equity.reshape(len(self.scenarios), len(self.symbols))
        return (table.mean(1, keepdim=True) - table).reshape(-1)


@dataclass(frozen=True, eq=False)
class Shelf:
    """Bars as they are walked, and features, made once for all courses over the same panel."""

    _tapes: dict[str, Tape] = field(default_factory=dict)
    _seen: dict[str, Tensor] = field(default_factory=dict)
    _panels: list[Panel] = field(default_factory=list)

    def course(
        self,
        panel: Panel,
        config: BacktestConfig,
        rows: tuple[int, int],
        *,
        sight: Sight | None = None,
        burn_in: int = 0,
        scenarios: Sequence[Costs] = (),
    ) -> Course:
        """Return a course over the rows from the first decision to the last mark.

        Args:
            panel: bars.
            config: which rules.
            rows: of the first decision and of the last mark.
            sight: what whoever decides sees of the market; None where nobody looks.
            burn_in: bars that are read before.
            scenarios: costs of each; none takes those of the market.

        Raises:
            DataError: if order steps are given for a symbol that is not there.
        """
        market = config.ledger(panel.symbols)
        _check_filters(market, panel)
        trained = config.market
        return Course(
            config=config,
            market=market,
            symbols=panel.symbols,
            interval=panel.interval,
            ts=panel.ts.cpu().numpy(),
            tape=self._tape(panel, market),
            seen=None if sight is None else self._features(panel, sight),
            first=rows[0],
            last=rows[1],
            burn_in=burn_in,
            horizon=1 if trained is None else trained.episode_bars,
            scenarios=tuple(scenarios) or (market.costs,),
        )

    def _tape(self, panel: Panel, market: MarketConfig) -> Tape:
        told = (market.costs.impact_window, market.funding, market.no_trade.model_dump_json())
        key = f"{self._number(panel)} {told}"
        if key not in self._tapes:
            exact = panel.to(dtype=torch.float64)
            cpu = torch.device("cpu")
            self._tapes[key] = Tape.of(exact, market, device=cpu, dtype=torch.float64)
        return self._tapes[key]

    def _features(self, panel: Panel, sight: Sight) -> Tensor:
        features, scaler = sight
        numbers = {name: one.tolist() for name, one in scaler.tensors().items()}
        key = f"{self._number(panel)} {features.schema_hash()} {scaler.clip!r} {numbers}"
        if key not in self._seen:
            found = scaler.transform(features.compute(panel.to(dtype=torch.float64)))
            self._seen[key] = found.values.to(device="cpu", dtype=torch.float64)
        return self._seen[key]

    def _number(self, panel: Panel) -> int:
        """Return the place of a panel among those that are known; the very same, not an equal."""
        for number, known in enumerate(self._panels):
            if known is panel:
                return number
        self._panels.append(panel)
        return len(self._panels) - 1


def _check_filters(market: MarketConfig, panel: Panel) -> None:
    """Refuse order steps of a symbol that is not there, in the words of the simulator."""
    foreign = sorted(set(market.symbol_filters) - set(panel.symbols))
    if foreign:
        raise DataError(
            "data-symbol",
            wrong="`symbol_filters` must name symbols of the panel",
            found=f"`{foreign[0]}` and a panel of {', '.join(panel.symbols)}",
            remedy="Write the symbol as the panel does, or leave its filters out.",
        )
