"""The pass itself: accounts walked through the simulator in float64, bar by bar, without a break.

B accounts, K scenarios of S symbols each, scenario by scenario. The rules are the simulator's own
(`market.simulator`): nothing about money is decided here. What is decided here is what an episode
means outside training:

- The account never restarts: cash, position, the peak of the risk gate, its day and the memory of
  the agent go on from the first bar to the last.
- An agent was trained on episodes, so what it *sees* of an episode restarts every `episode_bars`
  bars, counted from the first decision: equity since the episode's start, drawdown from the
  episode's peak, the time left; and the time in a position counts from there at the earliest.
  Position and unrealised result are the account's own.
- Before the first decision the memory reads `burn_in` bars with a flat account, through a feed
  without faults; what is decided there is thrown away. The episodes are counted backwards there.
- A stop (equity at the floor, or the drawdown that ends an episode) ends the decisions of that
  account for good: its position is closed at the next open that can be traded, at the usual costs,
  and it stays in cash.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from stormsail.core.generators import Generators
from stormsail.evaluation.backtest_config import BacktestConfig
from stormsail.market.features import (
    ACCOUNT_FEATURES,
    AccountTensors,
    FeatureSet,
    Scaler,
    account_features,
)
from stormsail.market.panel import Panel
from stormsail.market.simulator import Info, Simulator, State
from stormsail.market.simulator.config import Costs
from stormsail.market.simulator.records import held_weight
from stormsail.modules.agent import Agent


class Decided(NamedTuple):
    """Target weights of one bar, and what the critic said."""

    weight: Tensor
    """float64 [B]; NaN holds the position."""
    value: Tensor | None = None
    """Expected return in reward units, [B]."""
    law: Tensor | None = None
    """Quantiles or probabilities of atoms of the return, [B, W]."""


class Decider(Protocol):
    """Whoever turns observations into target weights."""

    def warm(self, observation: Tensor) -> None:
        """Look at a bar before the first decision."""

    def decide(self, index: int, observation: Tensor) -> Decided:
        """Decide at the close of bar `index` of the span."""


class AgentDecider:
    """An agent with its memory.

    Args:
        agent: who decides, on the CPU.
        config: greedy or drawn, and the seed.
        levels: weights that its actions stand for; None where an action is the weight itself.
        batch: number of accounts.
    """

    def __init__(
        self, agent: Agent, config: BacktestConfig, levels: Sequence[float] | None, batch: int
    ) -> None:
        self._agent, self._greedy = agent, config.greedy
        self._generator = Generators(config.seed).stream("backtest.actions")
        self._levels = None if levels is None else torch.tensor(levels, dtype=torch.float64)
        self._dtype = next(agent.parameters()).dtype
        self._memory = agent.initial_memory(batch).detach()

    def warm(self, observation: Tensor) -> None:
        """Read a bar; nothing is drawn, so that more burn-in does not change later draws."""
        seen = observation.to(self._dtype)
        self._memory = self._agent.decide(seen, self._memory, deterministic=True).memory

    def decide(self, index: int, observation: Tensor) -> Decided:  # noqa: ARG002 - see `Decider`
        """Return the agent's weights; NaN, which holds, where it computed no numbers."""
        made = self._agent.decide(
            observation.to(self._dtype),
            self._memory,
            deterministic=self._greedy,
            generator=self._generator,
        )
        self._memory = made.memory
        if self._levels is None:
            weight = made.action.reshape(len(observation)).double()
        else:
            weight = self._levels[made.action]
        known = made.parameters.isfinite().all(-1)
        weight = torch.where(known, weight, torch.nan)
        return Decided(weight, made.value.double(), made.law.double())


class GivenDecider:
    """Weights that are known beforehand.

    Args:
        weights: [N, S], one row for each decision; the same in every scenario.
        scenarios: K.
    """

    def __init__(self, weights: Tensor, scenarios: int) -> None:
        self._weights = weights.double().repeat(1, scenarios)

    def warm(self, observation: Tensor) -> None:
        """Look at nothing."""

    def decide(self, index: int, observation: Tensor) -> Decided:  # noqa: ARG002 - see `Decider`
        """Return one row."""
        return Decided(self._weights[index])


@dataclass(frozen=True, eq=False)
class Course:
    """Everything that is known before the first bar."""

    simulator: Simulator
    config: BacktestConfig
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
    def symbols(self) -> int:
        """S."""
        return len(self.simulator.symbols)

    def placed(self, row: int) -> tuple[State, Tensor]:
        """Return flat accounts at a row, each with the costs of its scenario, and what they see."""
        batch = self.simulator.batch
        symbol = torch.arange(self.symbols).repeat(len(self.scenarios))
        last = torch.full((batch,), self.last)
        state, seen = self.simulator.place(symbol, torch.full((batch,), row), last_row=last)
        costs = {
            field: self._each([getattr(one, name) for one in self.scenarios], like=state.cash)
            for field, name in (
                ("fee", "taker_fee"),
                ("half_spread", "half_spread"),
                ("impact", "impact"),
            )
        }
        return state._replace(**costs), seen

    def _each(self, numbers: list[float], *, like: Tensor) -> Tensor:
        return like.new_tensor(numbers).repeat_interleave(self.symbols)

    def moved(self, state: State, step: int) -> Tensor:
        """Return the cash that each account gets from the others before a step, 0 in sum."""
        period = self.config.pool_bars
        if period is None or step % period:
            return torch.zeros_like(state.cash)
        table = state.equity.reshape(len(self.scenarios), self.symbols)
        return (table.mean(1, keepdim=True) - table).reshape(-1)


def make_course(
    panel: Panel,
    config: BacktestConfig,
    rows: tuple[int, int],
    *,
    features: FeatureSet,
    scaler: Scaler,
    burn_in: int = 0,
    scenarios: Sequence[Costs] = (),
) -> Course:
    """Return a course over the rows from the first decision to the last mark."""
    ledger = config.ledger(panel.symbols)
    chosen = tuple(scenarios) or (ledger.costs,)
    simulator = Simulator(
        panel.to(dtype=torch.float64),
        ledger,
        batch=len(chosen) * len(panel.symbols),
        dtype=torch.float64,
        features=features,
        scaler=scaler,
    )
    trained = config.market
    horizon = 1 if trained is None else trained.episode_bars
    return Course(simulator, config, *rows, burn_in, horizon, chosen)


class Horizon(NamedTuple):
    """The episode as an agent sees it: a fixed stretch of an account that goes on."""

    bars: int
    """Since its start."""
    start_equity: Tensor
    peak_equity: Tensor

    @classmethod
    def at(cls, state: State, step: int, length: int, before: "Horizon | None") -> "Horizon":
        """Return the episode of a step, which is a new one at every multiple of the length."""
        bars = step % length
        if before is None or bars == 0:
            return cls(bars, state.equity, state.equity)
        peak = torch.maximum(before.peak_equity, state.equity)
        return cls(bars, before.start_equity, peak)

    def seen(self, state: State, length: int) -> Tensor:
        """Return the account's columns, [B, 6]."""
        account = AccountTensors(
            weight=held_weight(state),
            unrealised=state.quantity * (state.price - state.entry_price),
            equity=state.equity,
            peak_equity=self.peak_equity,
            start_equity=self.start_equity,
            bars_in_position=state.bars_in_position.clamp(max=self.bars),
            bars_left=torch.full_like(state.row, length - self.bars),
        )
        return account_features(account, episode_bars=length)


class Moment(NamedTuple):
    """One bar of every account: a decision at a close, and what it led to by the next."""

    decided: Decided
    asked: Tensor
    """Weight that reached the gate, after delay and stops; NaN holds."""
    stopped: Tensor
    """Whether the account had been stopped before, bool."""
    moved: Tensor
    """Cash that came from the other accounts before the bar."""
    info: Info


@torch.no_grad()
def walk(course: Course, decider: Decider) -> Iterator[Moment]:
    """Yield every bar of the course, in order."""
    simulator, length = course.simulator, course.horizon
    feed = Generators(course.config.seed).stream("backtest.feed")
    for back in range(course.burn_in, 0, -1):
        state, market = course.placed(course.first - back)
        decider.warm(_joined(market, Horizon.at(state, -back, length, None), state, length))
    state, market = course.placed(course.first)
    horizon: Horizon | None = None
    stopped = torch.zeros_like(state.done)
    waiting = deque(torch.zeros_like(state.cash) for _ in range(course.config.delay_bars))
    for step in range(course.steps):
        horizon = Horizon.at(state, step, length, horizon)
        decided = decider.decide(step, _joined(market, horizon, state, length))
        waiting.append(decided.weight)
        asked = torch.where(stopped, 0.0, waiting.popleft())
        moved = course.moved(state, step)
        # the simulator would start a new episode after an end; here the account goes on
        ready = _given(state, moved)._replace(done=torch.zeros_like(state.done))
        state, made = simulator.transition(ready, asked, simulator.draw(feed))
        yield Moment(decided, asked, stopped, moved, made.info)
        stopped = stopped | made.terminated
        market = made.observation


def _given(state: State, cash: Tensor) -> State:
    """Return accounts that got cash, which is neither gain nor loss: peak and day move along."""
    return state._replace(
        cash=state.cash + cash,
        equity=state.equity + cash,
        peak_equity=state.peak_equity + cash,
        day_start_equity=state.day_start_equity + cash,
    )


def _joined(observation: Tensor, horizon: Horizon, state: State, length: int) -> Tensor:
    """Return the market's columns beside those of the account in its horizon."""
    market = observation[:, : -len(ACCOUNT_FEATURES)]
    return torch.cat((market, horizon.seen(state, length)), -1)
