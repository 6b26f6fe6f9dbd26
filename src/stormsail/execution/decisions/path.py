"""`DecisionPath`: from a window of closed bars to target weights and orders, as in the backtest.

Nothing is computed here that the backtest computes otherwise: features by `FeatureSet`, the view of
an episode by the engine's `Horizon`, decisions by its `AgentDecider`, gate and order size by
`market.simulator.trade`. All symbols are decided in one batch of a fixed shape, because the last
bits of a matrix product depend on it.
"""

import copy
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from stormsail.core.errors import DataError
from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.calibration.predictions import atom_quantiles, horizon_of
from stormsail.evaluation.engine.agent_terms import AgentTerms, terms_of, with_market
from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.evaluation.engine.loop import AgentDecider, Decision, Horizon
from stormsail.evaluation.engine.run import agent_digest
from stormsail.functional.risk import cvar
from stormsail.market.panel import Panel
from stormsail.market.simulator.account import CostRates, Fill, State, StopLevels, open_accounts
from stormsail.market.simulator.config import MarketConfig
from stormsail.market.simulator.tape import Bar, closed_times, trailing_notional
from stormsail.market.simulator.trade import Rules, SymbolRules, trade
from stormsail.modules.agent import Agent

DAY_MS = 86_400_000

ATOM_LEVELS = (np.arange(200) + 0.5) / 200
"""Levels at which a distribution on atoms is read."""


class Opening(NamedTuple):
    """What is known when the orders of a bar are sized, [S] each in float64."""

    price: Tensor
    """At which they are sized, before spread and impact: the open, or the mid."""
    rate: Tensor
    """Funding that settles now."""
    notional: Tensor
    """Mean notional of a bar."""
    may_trade: Tensor
    """Whether orders may be sent, bool."""
    new_day: Tensor
    """Whether a UTC day begins, bool."""

    def bar(self) -> Bar:
        """Return a bar that has only opened."""
        return self.closed(self.price, self.price, self.price, self.may_trade)

    def closed(self, high: Tensor, low: Tensor, close: Tensor, may_trade: Tensor) -> Bar:
        """Return the whole bar."""
        return Bar(
            open=self.price,
            high=high,
            low=low,
            close=close,
            rate=self.rate,
            notional=self.notional,
            may_trade=may_trade,
            new_day=self.new_day,
            mark_open=None,
            delisted=None,
        )


@dataclass(frozen=True, eq=False)
class Setup:
    """An agent with the market that it trades in, checked against each other.

    Attributes:
        agent: on the CPU.
        digest: identity of its file.
        config: by which its accounts are kept, as those of a backtest.
        market: rules of the accounts, order steps of the venue included.
    """

    agent: Agent
    digest: str
    terms: AgentTerms
    config: BacktestConfig
    market: MarketConfig
    symbols: tuple[str, ...]

    @classmethod
    def of(cls, agent: Agent, panel: Panel, *, capital: float, burn_in: int) -> "Setup":
        """Check an agent against a market.

        Raises:
            ConfigError: if bars, features, costs or weights are not those of its training.
            ArtifactError: if its file lacks what it was trained for.
            DataError: if a feature is no longer computed as it was in training.
        """
        terms = terms_of(agent, panel)
        given = BacktestConfig(capital=capital, burn_in=burn_in)
        config = with_market(agent, terms, given).for_policy(agent.judged_policy)
        config.rules(panel).check_offered()
        local = copy.deepcopy(agent).cpu()
        market = config.ledger(panel)
        return cls(local, agent_digest(local), terms, config, market, panel.symbols)

    @property
    def rows(self) -> int:
        """Rows that a window needs: lookback, burn-in, the mean notional, a day of funding."""
        interval = self.terms.features.interval.milliseconds
        needed = max(self.terms.features.lookback, self.market.costs.impact_window)
        return needed + self.config.burn_in + max(1, DAY_MS // interval)

    @property
    def risk_horizon(self) -> int | None:
        """Bars over which the critic predicts returns; None where the agent does not say."""
        gamma = self.agent.binding.values.get("gamma")
        if not isinstance(gamma, float) or not 0.0 <= gamma < 1.0:
            return None
        return horizon_of(gamma)


class DecisionPath:
    """Decisions of one agent for S symbols, with its memory.

    Args:
        setup: agent and market.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        market, symbols = setup.market, setup.symbols
        levels = None
        if setup.terms.market.action == "levels":
            levels = setup.terms.market.offered_levels
        self._decider = AgentDecider(setup.agent, setup.config, levels, len(symbols))
        self._features, self._scaler = setup.terms.features, setup.terms.scaler
        self._horizon: Horizon | None = None
        self.length = setup.terms.market.episode_bars
        self._like = torch.zeros(len(symbols), dtype=torch.float64)
        self.rules = Rules.of(market, symbols)
        interval = self._features.interval
        self.steps = SymbolRules.of(market, symbols, interval, like=self._like)
        self.stops = StopLevels.of(market)

    def follow(self, panel: Panel) -> None:
        """Size orders by the steps of a panel's instruments from now on."""
        market = self.setup.config.ledger(panel)
        interval = self._features.interval
        self.steps = SymbolRules.of(market, self.setup.symbols, interval, like=self._like)

    def opened(self, price: Tensor) -> State:
        """Return flat accounts with equal capital, marked at prices."""
        market, row = self.setup.market, torch.zeros(len(price), dtype=torch.int64)
        fees = price.new_tensor([market.fee_of(symbol) for symbol in self.setup.symbols])
        costs = market.costs
        rates = CostRates(
            fees,
            torch.full_like(price, costs.half_spread),
            torch.full_like(price, costs.impact),
        )
        equity = market.initial_equity
        column = torch.arange(len(price))
        return open_accounts(column, row, row, price, rates, equity=equity)

    @torch.inference_mode()
    def warm(self, panel: Panel) -> None:
        """Let the memory read the burn-in before the newest bar, with flat accounts."""
        burn_in = self.setup.config.burn_in
        if not burn_in:
            return
        scaled = self._scaler.transform(self._features.compute(panel)).values
        flat = self.opened(panel.close[-1])
        for back in range(burn_in, 0, -1):
            horizon = Horizon.at(flat, -back, self.length, None)
            columns = horizon.columns(flat, self.length)
            self._decider.warm(torch.cat((scaled[-1 - back], columns), -1))

    @torch.inference_mode()
    def observe(self, panel: Panel, state: State, step: int) -> Tensor:
        """Return what the agent sees at the close of the newest bar, [S, F]."""
        newest = self._features.latest(panel)
        market = self._scaler.apply(newest.values, newest.valid)
        self._horizon = Horizon.at(state, step, self.length, self._horizon)
        return torch.cat((market, self._horizon.columns(state, self.length)), -1)

    @torch.inference_mode()
    def decide(self, step: int, observation: Tensor) -> Decision:
        """Return target weights; the memory moves on."""
        return self._decider.decide(step, observation)

    @torch.inference_mode()
    def read(self, observation: Tensor) -> None:
        """Let the memory read a bar on which nothing is decided."""
        self._decider.warm(observation)

    def requested(self, weight: Tensor, stopped: Tensor) -> Tensor:
        """Return the weights that reach the gate; NaN, which holds, for what is not on offer."""
        wanted = torch.where(stopped, 0.0, weight)
        widest = self.rules.limits.max_leverage
        return torch.where((wanted >= -widest) & (wanted <= widest), wanted, torch.nan)

    @torch.inference_mode()
    def fill(self, state: State, requested: Tensor, bar: Bar) -> Fill:
        """Return what a bar does to accounts that request weights: `market.simulator.trade`."""
        return trade(state, requested, bar, self.steps, self.rules)

    def opening(self, panel: Panel, price: Tensor, rate: Tensor, may_trade: Tensor) -> Opening:
        """Return what orders at the open after the newest bar are sized by."""
        ts = panel.ts[-1] + panel.interval.milliseconds
        closed = closed_times(ts[None], self.setup.market.no_trade)
        window = self.setup.market.costs.impact_window
        return Opening(
            price=price,
            rate=rate if self.setup.market.funding else torch.zeros_like(rate),
            notional=trailing_notional(panel, window=window)[-1],
            may_trade=may_trade & ~closed,
            new_day=(ts // DAY_MS != panel.ts[-1] // DAY_MS).expand(len(price)),
        )

    def shut(self, state: State, ts: int) -> Opening:
        """Return an open after the bar at `ts` at which nothing can be traded."""
        nothing, closed = torch.zeros_like(state.equity), torch.zeros_like(state.done)
        new_day = (ts + self._features.interval.milliseconds) // DAY_MS != ts // DAY_MS
        return Opening(state.price, nothing, nothing, closed, torch.full_like(closed, new_day))

    def predicted_cvar(self, decision: Decision, alpha: float) -> Tensor | None:
        """Return the CVaR of each account's predicted log growth over the risk horizon, [S].

        None where the critic predicts a mean alone.
        """
        agent, distribution = self.setup.agent, decision.distribution
        if distribution is None or agent.spec.critic.kind == "scalar":
            return None
        if agent.spec.critic.kind == "categorical":
            atoms = agent.atoms.detach().double().numpy()
            read = atom_quantiles(distribution.numpy(), atoms, ATOM_LEVELS)
            distribution = torch.from_numpy(read)
        return cvar(distribution, alpha=alpha)

    def saved(self) -> tuple[dict[str, JsonValue], bytes, bytes]:
        """Return the horizon as a document, and memory and generator as bytes."""
        memory, generator = self._decider.saved()
        horizon = self._horizon
        document: dict[str, JsonValue] = {
            "shape": list(memory.shape),
            "horizon": None
            if horizon is None
            else {
                "bars": horizon.bars,
                "start": horizon.start_equity.tolist(),
                "peak": horizon.peak_equity.tolist(),
            },
        }
        return document, memory.numpy().tobytes(), generator.numpy().tobytes()

    def restore(self, document: dict[str, JsonValue], memory: bytes, generator: bytes) -> None:
        """Go on from what `saved` returned.

        Raises:
            DataError: if it was saved by another agent, or for other symbols.
        """
        like, _ = self._decider.saved()
        shape = list(like.shape)
        if document.get("shape") != shape or len(memory) != like.numpy().nbytes:
            raise DataError(
                "journal-account",
                wrong=f"the memory in the journal must be of this agent and its {shape[0]} symbols",
                found=f"{document.get('shape')} and not {shape}",
                remedy="Trade the agent and symbols of the journal, or name another folder.",
            )
        kept = torch.from_numpy(np.frombuffer(memory, dtype=like.numpy().dtype).copy())
        state = torch.from_numpy(np.frombuffer(generator, dtype=np.uint8).copy())
        self._decider.restore(kept.reshape(shape), state)
        horizon = document.get("horizon")
        if isinstance(horizon, dict):
            self._horizon = Horizon(
                int(horizon["bars"]),  # type: ignore[arg-type]
                torch.tensor(horizon["start"], dtype=torch.float64),
                torch.tensor(horizon["peak"], dtype=torch.float64),
            )
