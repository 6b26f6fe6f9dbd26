"""Scenarios of the backtest engine: bars, rules, costs and features, fixed before the first bar."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.market.features import FeatureSet, Scaler
from stormsail.market.interval import Interval
from stormsail.market.panel import Panel
from stormsail.market.simulator.account import CostRates, State, open_accounts
from stormsail.market.simulator.config import Costs, MarketConfig
from stormsail.market.simulator.funding import check_funding
from stormsail.market.simulator.tape import Tape
from stormsail.market.simulator.trade import Rules, SymbolRules


@dataclass(frozen=True, eq=False)
class Scenario:
    """One backtest before its first bar: S symbols under each of K cost settings, K * S accounts.

    Accounts are ordered by cost setting, then by symbol.
    """

    config: BacktestConfig
    market: MarketConfig
    """Rules by which its accounts are kept."""
    symbols: tuple[str, ...]
    interval: Interval
    ts: NDArray[np.int64]
    """Open times of the panel's rows."""
    tape: Tape
    features: Tensor | None
    """Scaled features, [T, S, F]; None where the decisions need none."""
    first: int
    """Row of the first decision."""
    last: int
    """Row of the last mark."""
    burn_in: int
    """Bars that are read before the first decision."""
    horizon: int
    """Bars of an episode, as the agent sees it."""
    costs: tuple[Costs, ...]
    """The K cost settings."""

    @property
    def steps(self) -> int:
        """N, the number of decisions."""
        return self.last - self.first

    @property
    def accounts(self) -> int:
        """Number of accounts, K * S."""
        return len(self.costs) * len(self.symbols)

    @property
    def rules(self) -> Rules:
        """What must be the same in all scenarios that run in one batch."""
        return Rules.of(self.market, self.symbols)

    @property
    def symbol(self) -> Tensor:
        """Column of the panel that each account trades, int64 [K * S]."""
        return torch.arange(len(self.symbols)).repeat(len(self.costs))

    def open_accounts(self) -> State:
        """Return flat accounts at the row of the first decision, each with its own costs."""
        rows = torch.full_like(self.symbol, self.first)
        return open_accounts(
            self.symbol,
            rows,
            torch.full_like(rows, self.last),
            self.tape.close(rows, self.symbol),
            CostRates(self._fees(), self._each("half_spread"), self._each("impact")),
            equity=self.market.initial_equity,
        )

    def symbol_rules(self) -> SymbolRules:
        """Return order steps, margin and interest of each account."""
        rules = SymbolRules.of(self.market, self.symbols, self.interval, like=self.tape.rows)
        return rules.select(self.symbol)

    def _fees(self) -> Tensor:
        """Return the taker fee of each account, [K * S]."""
        fees = [[self.market.fee_of(name, costs) for name in self.symbols] for costs in self.costs]
        return self.tape.rows.new_tensor(fees).reshape(-1)

    def _each(self, name: str) -> Tensor:
        """Return a cost of each account, [K * S]."""
        numbers = self.tape.rows.new_tensor([getattr(costs, name) for costs in self.costs])
        return numbers.repeat_interleave(len(self.symbols))

    def transfers(self, equity: Tensor, step: int) -> Tensor:
        """Return the cash that each account gets from the others before a step, 0 in sum."""
        period = self.config.pool_bars
        if period is None or step % period:
            return torch.zeros_like(equity)
        table = equity.reshape(len(self.costs), len(self.symbols))
        return (table.mean(1, keepdim=True) - table).reshape(-1)


_OF_TAPE = {"funding", "funding_missing", "trade_without_volume", "delisting", "no_trade"}
"""Settings by which bars are laid out, beside the window of the impact."""


@dataclass(frozen=True, eq=False)
class ScenarioCache:
    """Makes scenarios; tapes and features are computed once for all of the same panel."""

    _tapes: dict[str, Tape] = field(default_factory=dict)
    _features: dict[str, Tensor] = field(default_factory=dict)
    _panels: list[Panel] = field(default_factory=list)

    def scenario(
        self,
        panel: Panel,
        config: BacktestConfig,
        rows: tuple[int, int],
        *,
        features: tuple[FeatureSet, Scaler] | None = None,
        burn_in: int = 0,
        costs: Sequence[Costs] = (),
    ) -> Scenario:
        """Return a scenario over the rows from the first decision to the last mark.

        Args:
            panel: bars.
            config: which rules.
            rows: of the first decision and of the last mark.
            features: that the decider observes, and their scaler; None where it needs none.
            burn_in: bars that are read before.
            costs: the cost settings; none takes that of the market.

        Raises:
            DataError: if order steps are given for a symbol that is not there, or funding rates
                are missing.
        """
        market = config.ledger(panel)
        market.check_symbols(panel.symbols)
        check_funding(panel, market, (rows[0] + 1, rows[1] + 1))
        trained = config.market
        return Scenario(
            config=config,
            market=market,
            symbols=panel.symbols,
            interval=panel.interval,
            ts=panel.ts.cpu().numpy(),
            tape=self._tape(panel, market),
            features=None if features is None else self._scaled(panel, *features),
            first=rows[0],
            last=rows[1],
            burn_in=burn_in,
            horizon=1 if trained is None else trained.episode_bars,
            costs=tuple(costs) or (market.costs,),
        )

    def _tape(self, panel: Panel, market: MarketConfig) -> Tape:
        read = market.model_dump(include=_OF_TAPE, mode="json")
        key = f"{self._number(panel)} {market.costs.impact_window} {read}"
        if key not in self._tapes:
            exact = panel.to(dtype=torch.float64)
            cpu = torch.device("cpu")
            self._tapes[key] = Tape.of(exact, market, device=cpu, dtype=torch.float64)
        return self._tapes[key]

    def _scaled(self, panel: Panel, features: FeatureSet, scaler: Scaler) -> Tensor:
        numbers = {name: tensor.tolist() for name, tensor in scaler.tensors().items()}
        key = f"{self._number(panel)} {features.schema_hash()} {scaler.clip!r} {numbers}"
        if key not in self._features:
            scaled = scaler.transform(features.compute(panel.to(dtype=torch.float64)))
            self._features[key] = scaled.values.to(device="cpu", dtype=torch.float64)
        return self._features[key]

    def _number(self, panel: Panel) -> int:
        """Return the place of a panel among those that are known; the very same, not an equal."""
        for number, known in enumerate(self._panels):
            if known is panel:
                return number
        self._panels.append(panel)
        return len(self._panels) - 1
