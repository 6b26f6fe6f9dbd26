"""The loop of the backtest engine: accounts go through the market in float64, bar by bar.

Scenarios under the same rules run in one batch, in which each account has its own bars, costs,
order steps and stops; no account touches another except where cash is pooled. What a bar does to
an account is `market.simulator.trade.trade`, whose arithmetic is element by element, and a decider
sees the accounts of its own scenario alone: the results of a scenario do not depend on the others.

The rules of money are those of the simulator. What is defined here is what an episode means outside
training:

- The account never restarts: cash, position, the peak of the risk gate, its day and the memory of
  the agent go on from the first bar to the last.
- An agent was trained on episodes, so what it *sees* of an episode restarts every `episode_bars`
  bars, counted from the first decision: equity since the episode's start, drawdown from the
  episode's peak, the time left; and the time in a position counts from there at the earliest.
  Position and unrealised result are the account's own.
- Before the first decision the memory reads `burn_in` bars with a flat account, through a feed
  without faults; the decisions there are discarded. The episodes are counted backwards there.
- A stop (equity at the floor, or the drawdown that ends an episode) ends the decisions of that
  account for good: its position is closed at the next open that can be traded, at the usual costs,
  and it stays in cash. So does a delisting, which closes the position itself.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from stormsail.core import steps
from stormsail.core.errors import ShapeError
from stormsail.core.generators import Generators
from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.evaluation.engine.scenario import Scenario
from stormsail.market.features import ACCOUNT_FEATURES, AccountTensors, account_features
from stormsail.market.simulator.account import (
    Fill,
    State,
    StopLevels,
    apply_fill,
    held_weight,
    stop_hit,
)
from stormsail.market.simulator.episodes import drawn_rows, feed_fails, split_draws
from stormsail.market.simulator.observation import Observer
from stormsail.market.simulator.tape import Tape
from stormsail.market.simulator.trade import Rules, SymbolRules, joined, trade
from stormsail.modules.agent import Agent
from stormsail.modules.agent import Decision as AgentDecision


class Decision(NamedTuple):
    """Target weights of one bar, and the critic's estimate of the return."""

    weight: Tensor
    """float64 [B]; NaN holds the position."""
    value: Tensor | None = None
    """Expected return in reward units, [B]."""
    distribution: Tensor | None = None
    """Quantiles or probabilities of atoms of the return, [B, W]."""


class Decider(Protocol):
    """A policy: it turns observations into target weights."""

    def warm(self, observation: Tensor) -> None:
        """Read a bar before the first decision."""

    def decide(self, index: int, observation: Tensor) -> Decision:
        """Decide at the close of bar `index` of the span."""


class AgentDecider:
    """An agent with its memory.

    Args:
        agent: on the CPU.
        config: greedy or drawn, and the seed.
        levels: weights that its actions stand for; None where an action is the weight itself.
        batch: number of accounts.
        settings: K, the number of cost settings, whose accounts follow each other in the batch.
            Each has the same draws, those that it has alone: results at several costs differ by
            the costs.
    """

    def __init__(
        self,
        agent: Agent,
        config: BacktestConfig,
        levels: Sequence[float] | None,
        batch: int,
        settings: int = 1,
    ) -> None:
        self._agent = agent
        self._greedy = bool(config.for_policy(agent.judged_policy).greedy)
        self._generators = [
            Generators(config.seed).stream("backtest.actions") for _ in range(settings)
        ]
        self._levels = None if levels is None else torch.tensor(levels, dtype=torch.float64)
        self._dtype = next(agent.parameters()).dtype
        self._memory = agent.initial_memory(batch).detach()

    def warm(self, observation: Tensor) -> None:
        """Read a bar; nothing is drawn, so that more burn-in does not change later draws."""
        seen = observation.to(self._dtype)
        self._memory = self._agent.decide(seen, self._memory, deterministic=True).memory

    def decide(self, index: int, observation: Tensor) -> Decision:  # noqa: ARG002 - see `Decider`
        """Return the agent's weights; NaN, which holds, where it computed no numbers."""
        seen = observation.to(self._dtype)
        if self._greedy:
            made = self._agent.decide(seen, self._memory, deterministic=True)
        else:
            made = self._sampled(seen)
        self._memory = made.memory
        if self._levels is None:
            weight = made.action.reshape(len(observation)).double()
        else:
            weight = self._levels[made.action]
        known = made.parameters.isfinite().all(-1)
        weight = torch.where(known, weight, torch.nan)
        return Decision(weight, made.value.double(), made.distribution.double())

    def saved(self) -> tuple[Tensor, Tensor]:
        """Return memory and generator, from which another decider goes on bit for bit."""
        return self._memory, self._generators[0].get_state()

    def restore(self, memory: Tensor, generator: Tensor) -> None:
        """Go on from what `saved` returned.

        Raises:
            ShapeError: if the memory is that of another network or number of accounts.
        """
        if memory.shape != self._memory.shape or memory.dtype != self._memory.dtype:
            raise ShapeError(
                wrong=f"the memory must be {tuple(self._memory.shape)} of {self._memory.dtype}",
                found=f"{tuple(memory.shape)} of {memory.dtype}",
                remedy="Go on with the agent and the symbols that it was saved with.",
            )
        self._memory = memory
        self._generators[0].set_state(generator)

    def _sampled(self, seen: Tensor) -> AgentDecision:
        """Return drawn decisions, those of each cost setting with its own generator."""
        count = len(self._generators)
        parts = [
            self._agent.decide(own, memory, deterministic=False, generator=generator)
            for own, memory, generator in zip(
                seen.chunk(count), self._memory.chunk(count), self._generators, strict=True
            )
        ]
        return AgentDecision(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


class WeightsDecider:
    """Target weights that are known beforehand.

    Args:
        weights: [N, S], one row for each decision; the same under every cost setting.
        settings: K, the number of cost settings.
    """

    def __init__(self, weights: Tensor, settings: int) -> None:
        self._weights = weights.double().repeat(1, settings)

    def warm(self, observation: Tensor) -> None:
        """Read nothing."""

    def decide(self, index: int, observation: Tensor) -> Decision:  # noqa: ARG002 - see `Decider`
        """Return one row."""
        return Decision(self._weights[index])


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

    def columns(self, state: State, length: int) -> Tensor:
        """Return the account's columns of the observation, [B, 6]."""
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


_OBSERVED = ("row", "quantity", "price", "entry_price", "equity", "bars_in_position")
"""Fields of the account from which its columns are computed."""


class BarRecord(NamedTuple):
    """One bar of every account: the decision at a close, and the account at the next."""

    decisions: tuple[Decision, ...]
    """Of each scenario that still goes on."""
    weight: Tensor
    """Decided weights, those of all scenarios one after the other, [B]."""
    requested: Tensor
    """Weight that reached the risk gate, after delay and stops; NaN holds."""
    stopped: Tensor
    """Whether the account had been stopped before, bool."""
    transfer: Tensor
    """Cash that came from the other accounts before the bar."""
    fill: Fill
    held: Tensor
    """Position at the close as a signed share of equity."""


class Slot:
    """A scenario in the batch: its decider, its feed, and the orders that are delayed.

    Args:
        scenario: bars, rules, costs and features.
        decider: of its accounts.
        start: of its accounts in the batch.
    """

    def __init__(self, scenario: Scenario, decider: Decider, start: int) -> None:
        self.scenario, self._decider = scenario, decider
        self.accounts = slice(start, start + scenario.accounts)
        self._horizon: Horizon | None = None
        nothing = torch.zeros(scenario.accounts, dtype=torch.float64)
        self._delayed = deque(nothing.clone() for _ in range(scenario.config.delay_bars))
        self._feed = Generators(scenario.config.seed).stream("backtest.feed")
        self._features = scenario.features
        self._observer: Observer | None = None
        if scenario.features is not None and feed_fails(scenario.market):
            self._observer = Observer(scenario.features, scenario.market)
        self._shown = torch.full((scenario.accounts,), scenario.first)

    def warm(self) -> None:
        """Let the decider read the bars before the first decision."""
        scenario = self.scenario
        if self._features is None:
            return
        flat = scenario.open_accounts()
        for back in range(scenario.burn_in, 0, -1):
            horizon = Horizon.at(flat, -back, scenario.horizon, None)
            market = self._each(self._features[scenario.first - back])
            self._decider.warm(_observation(market, horizon, flat, scenario.horizon))

    def decide(self, step: int, state: State) -> Decision:
        """Decide at the close of a bar, given the accounts of the whole batch."""
        scenario = self.scenario
        if self._features is None:
            return self._decider.decide(step, state.equity[:0])
        own = state._replace(**{name: getattr(state, name)[self.accounts] for name in _OBSERVED})
        self._horizon = Horizon.at(own, step, scenario.horizon, self._horizon)
        if self._observer is not None and step > 0:
            whole = State(*(column[self.accounts] for column in state))
            market = self._through_feed(self._observer, whole)
        else:
            market = self._each(self._features[scenario.first + step])
        observation = _observation(market, self._horizon, own, scenario.horizon)
        return self._decider.decide(step, observation)

    def delay(self, weight: Tensor) -> Tensor:
        """Take the weight decided now; return the one that reaches the market now."""
        self._delayed.append(weight)
        return self._delayed.popleft()

    def _each(self, features: Tensor) -> Tensor:
        """Return the features of a row [S, F] for each account, [K * S, F]."""
        settings = len(self.scenario.costs)
        return features if settings == 1 else features.repeat(settings, 1)

    def _through_feed(self, observer: Observer, own: State) -> Tensor:
        """Return what a feed with faults shows of the newest row."""
        market = self.scenario.market
        shape = (drawn_rows(market), self.scenario.accounts)
        uniform = torch.rand(shape, generator=self._feed, dtype=torch.float32)
        before = own._replace(shown_row=self._shown)
        after, observation = observer.next(before, own, split_draws(uniform, market))
        self._shown = after.shown_row
        return observation[:, : -len(ACCOUNT_FEATURES)]


class _Batch(NamedTuple):
    """Bars, order steps, stops and rules of all accounts of a batch; [B] but tape and rules."""

    tape: Tape
    """Bars of all scenarios, one after the other."""
    offset: Tensor
    """Row of the tape at which the account's symbol begins."""
    steps: SymbolRules
    stop_equity: Tensor
    """See `StopLevels`."""
    stop_share: Tensor | None
    """See `StopLevels`; -1 where no drawdown stops the account."""
    rules: Rules

    @classmethod
    def of(cls, scenarios: Sequence[Scenario]) -> "_Batch":
        """Join the bars and accounts of scenarios; a tape that several share is laid out once."""
        tapes: list[Tape] = []
        offsets, equities, shares = [], [], []
        for scenario in scenarios:
            if not any(scenario.tape is known for known in tapes):
                tapes.append(scenario.tape)
            begin = 0
            for tape in tapes:
                if tape is scenario.tape:
                    break
                begin += len(tape.rows)
            offsets.append(begin + scenario.symbol * scenario.tape.length)
            stop = StopLevels.of(scenario.market)
            like = torch.ones(scenario.accounts, dtype=torch.float64)
            equities.append(like * stop.equity)
            shares.append(like * (-1.0 if stop.peak_share is None else stop.peak_share))
        rows = tapes[0].rows if len(tapes) == 1 else torch.cat([tape.rows for tape in tapes])
        share = torch.cat(shares)
        return cls(
            tape=Tape(
                rows,
                1,
                marks=any(tape.marks for tape in tapes),
                delists=any(tape.delists for tape in tapes),
            ),
            offset=torch.cat(offsets),
            steps=joined([scenario.symbol_rules() for scenario in scenarios]),
            stop_equity=torch.cat(equities),
            stop_share=share if bool((share >= 0.0).any()) else None,
            rules=scenarios[0].rules,
        )

    def first(self, count: int) -> "_Batch":
        """Return that of the first accounts."""
        return self._replace(
            offset=self.offset[:count],
            steps=self.steps.select(slice(count)),
            stop_equity=self.stop_equity[:count],
            stop_share=None if self.stop_share is None else self.stop_share[:count],
        )

    def step(self, state: State, requested: Tensor) -> tuple[State, Fill]:
        """Return the accounts one bar later, and what that bar did; as the simulator's step."""
        widest = self.rules.limits.max_leverage
        offered = (requested >= -widest) & (requested <= widest)  # NaN is not
        row = state.row + 1
        bar = self.tape.bar(row, self.offset)
        fill = trade(state, torch.where(offered, requested, torch.nan), bar, self.steps, self.rules)
        return apply_fill(state, fill, row, bar.close), fill

    def stopped(self, state: State) -> Tensor:
        """Return where a stop ends the decisions."""
        return stop_hit(state, StopLevels(self.stop_equity, self.stop_share))


@torch.inference_mode()
def run_scenarios(
    scenarios: Sequence[Scenario], deciders: Sequence[Decider]
) -> Iterator[BarRecord]:
    """Run scenarios under the same rules in one batch; yield every bar, in order.

    Args:
        scenarios: longest first; one that has come to its end leaves the batch.
        deciders: of each scenario.
    """
    slots, start = [], 0
    for scenario, decider in zip(scenarios, deciders, strict=True):
        slots.append(Slot(scenario, decider, start))
        start += scenario.accounts
    for slot in slots:
        slot.warm()
    batch = _Batch.of(scenarios)
    opened = [scenario.open_accounts() for scenario in scenarios]
    state = State(*(torch.cat(parts) for parts in zip(*opened, strict=True)))
    stopped = state.done
    total = scenarios[0].steps
    for step in range(total):
        steps.advanced(step, total, "bars")
        if slots[-1].scenario.steps == step:
            slots = [slot for slot in slots if slot.scenario.steps > step]
            count = slots[-1].accounts.stop
            batch, stopped = batch.first(count), stopped[:count]
            state = State(*(column[:count] for column in state))
        decisions = tuple(slot.decide(step, state) for slot in slots)
        weight = torch.cat([decision.weight for decision in decisions])
        arrived = [
            slot.delay(decision.weight) for slot, decision in zip(slots, decisions, strict=True)
        ]
        requested = torch.where(stopped, 0.0, torch.cat(arrived))
        transfer = _transfers(slots, state, step)
        state, fill = batch.step(_with_cash(state, transfer), requested)
        yield BarRecord(decisions, weight, requested, stopped, transfer, fill, held_weight(state))
        stopped = stopped | batch.stopped(state) | fill.delisted


def _transfers(slots: Sequence[Slot], state: State, step: int) -> Tensor:
    """Return the cash that each account gets from the others of its scenario."""
    transfer = torch.zeros_like(state.equity)
    for slot in slots:
        if slot.scenario.config.pool_bars is not None:
            transfer[slot.accounts] = slot.scenario.transfers(state.equity[slot.accounts], step)
    return transfer


def _with_cash(state: State, cash: Tensor) -> State:
    """Return accounts that got cash, which is neither gain nor loss: peak and day move along."""
    return state._replace(
        cash=state.cash + cash,
        equity=state.equity + cash,
        peak_equity=state.peak_equity + cash,
        day_start_equity=state.day_start_equity + cash,
    )


def _observation(market: Tensor, horizon: Horizon, state: State, length: int) -> Tensor:
    """Return the market's columns beside those of the account in its horizon."""
    return torch.cat((market, horizon.columns(state, length)), -1)
