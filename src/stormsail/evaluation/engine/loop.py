"""The pass itself: accounts walked through the market in float64, bar by bar, without a break.

Several courses (`backtest_course`) that keep to the same limits are walked together: their accounts
are one batch, in which each has its own bars, costs, steps and stops, and no account touches
another but where cash is pooled. What a bar does to an account is `market.simulator.trade.trade`,
which is exact arithmetic, element by element: whoever walks beside it changes no bit. Whoever
decides sees the accounts of their own course alone, so that neither do decisions depend on company.

Nothing about money is decided here. What is decided here is what an episode means outside training:

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
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from stormsail.core.generators import Generators
from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.evaluation.engine.scenario import Course
from stormsail.market.features import ACCOUNT_FEATURES, AccountTensors, account_features
from stormsail.market.simulator import State
from stormsail.market.simulator.episodes import drawn_rows, feed_fails, named
from stormsail.market.simulator.observation import Observer
from stormsail.market.simulator.records import held_weight
from stormsail.market.simulator.tape import Tape
from stormsail.market.simulator.trade import Fill, Rules, Steps, trade
from stormsail.modules.agent import Agent

_TIE_ULPS = 4
"""Roundings within which equity counts as equal to a stop, as in the simulator."""


class Decided(NamedTuple):
    """Target weights of one bar, and what the critic said."""

    weight: Tensor
    """float64 [B]; NaN holds the position."""
    value: Tensor | None = None
    """Expected return in reward units, [B]."""
    distribution: Tensor | None = None
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
        return Decided(weight, made.value.double(), made.distribution.double())


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


_LOOKED_AT = ("row", "quantity", "price", "entry_price", "equity", "bars_in_position")
"""What an agent sees of its account comes from these."""


class Moment(NamedTuple):
    """One bar of every account: a decision at a close, and what it led to by the next."""

    decided: tuple[Decided, ...]
    """Of each course that still goes on."""
    weight: Tensor
    """Weights that were decided, those of all courses one after the other, [B]."""
    asked: Tensor
    """Weight that reached the gate, after delay and stops; NaN holds."""
    stopped: Tensor
    """Whether the account had been stopped before, bool."""
    moved: Tensor
    """Cash that came from the other accounts before the bar."""
    fill: Fill
    held: Tensor
    """Position at the close as a signed share of equity."""


class Lane:
    """A course on its way: who decides, what they saw last, and what has not arrived yet.

    Args:
        course: what is walked.
        decider: who decides.
        start: of its accounts in the batch.
    """

    def __init__(self, course: Course, decider: Decider, start: int) -> None:
        self.course, self._decider = course, decider
        self.own = slice(start, start + course.batch)
        self._horizon: Horizon | None = None
        late = course.config.delay_bars
        self._waiting = deque(torch.zeros(course.batch, dtype=torch.float64) for _ in range(late))
        self._feed = Generators(course.config.seed).stream("backtest.feed")
        self._seen = course.seen
        self._observer: Observer | None = None
        if course.seen is not None and feed_fails(course.market):
            self._observer = Observer(course.seen, course.market)
        self._shown = torch.full((course.batch,), course.first)

    def warm(self) -> None:
        """Read the bars before the first decision."""
        course = self.course
        if self._seen is None:
            return
        flat = course.opened(course.first)
        for back in range(course.burn_in, 0, -1):
            horizon = Horizon.at(flat, -back, course.horizon, None)
            market = self._market(self._seen[course.first - back])
            self._decider.warm(_joined(market, horizon, flat, course.horizon))

    def decide(self, step: int, state: State) -> Decided:
        """Decide at the close of a bar, with the accounts of all courses given."""
        course = self.course
        if self._seen is None:
            return self._decider.decide(step, state.equity[:0])
        own = state._replace(**{name: getattr(state, name)[self.own] for name in _LOOKED_AT})
        self._horizon = Horizon.at(own, step, course.horizon, self._horizon)
        if self._observer is not None and step > 0:
            whole = State(*(column[self.own] for column in state))
            market = self._through_feed(self._observer, whole)
        else:
            market = self._market(self._seen[course.first + step])
        return self._decider.decide(step, _joined(market, self._horizon, own, course.horizon))

    def late(self, weight: Tensor) -> Tensor:
        """Return the weight that arrives now."""
        self._waiting.append(weight)
        return self._waiting.popleft()

    def _market(self, shown: Tensor) -> Tensor:
        """Return the features of a row [S, F] for each account, [K * S, F]."""
        count = len(self.course.scenarios)
        return shown if count == 1 else shown.repeat(count, 1)

    def _through_feed(self, observer: Observer, own: State) -> Tensor:
        """Return what a feed with faults shows of the newest row."""
        shape = (drawn_rows(self.course.market), self.course.batch)
        uniform = torch.rand(shape, generator=self._feed, dtype=torch.float32)
        before = own._replace(shown_row=self._shown)
        seen, shown = observer.next(before, own, named(uniform, self.course.market))
        self._shown = seen.shown_row
        return shown[:, : -len(ACCOUNT_FEATURES)]


class _Ground(NamedTuple):
    """What each account meets besides itself; all [B] but the tape."""

    tape: Tape
    place: Tensor
    """Row of the tape at which the account's symbol begins."""
    steps: Steps
    floor: Tensor
    """Equity that ends its decisions."""
    kept: Tensor
    """Share of the peak at which a drawdown does; -1 where none does."""
    falls: bool
    """Whether there is any such drawdown."""
    rules: Rules

    @classmethod
    def of(cls, courses: Sequence[Course]) -> "_Ground":
        """Lay the bars of all courses one after the other, each tape once."""
        tapes: list[Tape] = []
        places, floors, kept = [], [], []
        for course in courses:
            if not any(course.tape is known for known in tapes):
                tapes.append(course.tape)
            begin = 0
            for tape in tapes:
                if tape is course.tape:
                    break
                begin += len(tape.rows)
            places.append(begin + course.opened(course.first).symbol * course.tape.length)
            stops, start = course.market.stops, course.market.initial_equity
            like = torch.ones(course.batch, dtype=torch.float64)
            floors.append(like * (stops.equity_floor * start))
            kept.append(like * (-1.0 if stops.drawdown is None else 1.0 - stops.drawdown))
        rows = tapes[0].rows if len(tapes) == 1 else torch.cat([one.rows for one in tapes])
        steps = [course.order_steps() for course in courses]
        return cls(
            tape=Tape(rows, 1),
            place=torch.cat(places),
            steps=Steps(*(torch.cat(parts) for parts in zip(*steps, strict=True))),
            floor=torch.cat(floors),
            kept=torch.cat(kept),
            falls=any(one.market.stops.drawdown is not None for one in courses),
            rules=courses[0].rules,
        )

    def first(self, count: int) -> "_Ground":
        """Return that of the first accounts."""
        return self._replace(
            place=self.place[:count],
            steps=Steps(*(one[:count] for one in self.steps)),
            floor=self.floor[:count],
            kept=self.kept[:count],
        )

    def meet(self, state: State, asked: Tensor) -> tuple[State, Fill]:
        """Return the accounts one bar later, and what that bar did; as the simulator's step."""
        widest = self.rules.limits.max_leverage
        offered = (asked >= -widest) & (asked <= widest)  # NaN is not
        row = state.row + 1
        bar = self.tape.bar(row, self.place)
        fill = trade(state, torch.where(offered, asked, torch.nan), bar, self.steps, self.rules)
        same = state.quantity * fill.quantity > 0.0
        moved = state._replace(
            row=row,
            cash=fill.cash,
            quantity=fill.quantity,
            entry_price=fill.entry_price,
            price=bar.close,
            equity=fill.equity,
            peak_equity=torch.maximum(state.peak_equity, fill.equity),
            day_start_equity=fill.day_start_equity,
            turnover=fill.day_turnover,
            bars_in_position=torch.where(same, state.bars_in_position, 0) + (fill.quantity != 0.0),
        )
        return moved, fill

    def ended(self, state: State) -> Tensor:
        """Return where a stop ends the decisions."""
        ended = state.equity <= self.floor
        if self.falls:
            # a fall by exactly the stop ends the episode, whatever rounding makes of it
            rounding = _TIE_ULPS * torch.finfo(torch.float64).eps * state.peak_equity
            fallen = state.equity <= self.kept * state.peak_equity + rounding
            ended = ended | (fallen & (self.kept >= 0.0))
        return ended


@torch.inference_mode()
def walk(courses: Sequence[Course], deciders: Sequence[Decider]) -> Iterator[Moment]:
    """Yield every bar of courses under the same rules, in order.

    Args:
        courses: longest first; one that has come to its end is left behind.
        deciders: of each course.
    """
    lanes, start = [], 0
    for course, decider in zip(courses, deciders, strict=True):
        lanes.append(Lane(course, decider, start))
        start += course.batch
    for lane in lanes:
        lane.warm()
    ground = _Ground.of(courses)
    opened = [course.opened(course.first) for course in courses]
    state = State(*(torch.cat(parts) for parts in zip(*opened, strict=True)))
    stopped = state.done
    for step in range(courses[0].steps):
        if lanes[-1].course.steps == step:
            lanes = [lane for lane in lanes if lane.course.steps > step]
            count = lanes[-1].own.stop
            ground, stopped = ground.first(count), stopped[:count]
            state = State(*(column[:count] for column in state))
        decided = tuple(lane.decide(step, state) for lane in lanes)
        weight = torch.cat([one.weight for one in decided])
        arrived = [lane.late(one.weight) for lane, one in zip(lanes, decided, strict=True)]
        asked = torch.where(stopped, 0.0, torch.cat(arrived))
        moved = _moved(lanes, state, step)
        state, fill = ground.meet(_given(state, moved), asked)
        yield Moment(decided, weight, asked, stopped, moved, fill, held_weight(state))
        stopped = stopped | ground.ended(state)


def _moved(lanes: Sequence[Lane], state: State, step: int) -> Tensor:
    """Return the cash that each account gets from the others of its course."""
    moved = torch.zeros_like(state.equity)
    for lane in lanes:
        if lane.course.config.pool_bars is not None:
            moved[lane.own] = lane.course.moved(state.equity[lane.own], step)
    return moved


def _given(state: State, cash: Tensor) -> State:
    """Return accounts that got cash, which is neither gain nor loss: peak and day move along."""
    return state._replace(
        cash=state.cash + cash,
        equity=state.equity + cash,
        peak_equity=state.peak_equity + cash,
        day_start_equity=state.day_start_equity + cash,
    )


def _joined(market: Tensor, horizon: Horizon, state: State, length: int) -> Tensor:
    """Return the market's columns beside those of the account in its horizon."""
    return torch.cat((market, horizon.seen(state, length)), -1)
