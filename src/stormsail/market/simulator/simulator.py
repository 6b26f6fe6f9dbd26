"""The market as a task: B accounts, each trading one symbol through one episode after another."""

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from stormsail.core.errors import DtypeError, RangeError, ShapeError
from stormsail.core.machine_code.graph_compiler import TensorFunction, compile_graph, is_traced
from stormsail.core.task import (
    Actions,
    Alternatives,
    Columns,
    ContinuousActions,
    DiscreteActions,
    Step,
)
from stormsail.functional.market import fills
from stormsail.market.features import (
    ACCOUNT_FEATURES,
    BarTensors,
    FeatureSet,
    Scaler,
    default_features,
)
from stormsail.market.panel import Panel
from stormsail.market.rewards import BoundReward, StepRecord, bound_reward
from stormsail.market.simulator.account import (
    CostRates,
    Fill,
    State,
    StopLevels,
    apply_fill,
    choose,
    open_accounts,
    stop_hit,
    unshared,
)
from stormsail.market.simulator.config import MarketConfig
from stormsail.market.simulator.episodes import Draws, Starts, drawn_rows, split_draws, window_of
from stormsail.market.simulator.funding import check_funding
from stormsail.market.simulator.info import Info, Outcome, step_info
from stormsail.market.simulator.observation import Observer
from stormsail.market.simulator.tape import Bar, Tape
from stormsail.market.simulator.trade import Rules, SymbolRules, trade
from stormsail.market.splits import Span

Transition = Callable[[State, Tensor, Tensor], tuple[State, Step[Info]]]


class _Coming(NamedTuple):
    """The bar that the next step meets, for each account."""

    row: Tensor
    """int64 [B]."""
    bar: Bar
    steps: SymbolRules


class _Booked(NamedTuple):
    """What a bar made of an account that requested a weight; truncation is left out."""

    fill: Fill
    account: State
    growth: Tensor
    """Log growth with the penalty of ruin, before any clip."""
    reward: Tensor
    terminated: Tensor


class Simulator:
    """Thousands of accounts in one market, stepped together as tensors.

    An action is decided at the close of a bar, filled at the open of the next and marked at that
    bar's close. It is a target weight of equity: the index of a level, int64 [B], or the weight
    itself, [B] or [B, 1]. The step after an episode's end ignores its action and shows the first
    observation of a new one.

    `transition` is pure tensor code without a host sync, so it can be compiled and captured in a
    CUDA graph; there a bad action becomes the held position and is counted. `step` draws the
    numbers that `transition` needs and, on a CPU where looking costs nothing, refuses bad actions.
    The panel is laid out once and read by all environments.

    No order moves a price, so `alternatives` can say what other actions would have made of the same
    bar. A state fixes the whole rest of its episode but for the faults of a degraded feed: those
    are drawn at every step, and change what is shown of the market, never of the account.

    Args:
        panel: bars of one or more symbols, with what the features need of the past.
        config: the market's rules; instrument terms of the panel complete them, and `config` of the
            simulator has both.
        batch: number of environments.
        device: where everything lives.
        dtype: float32 to learn, float64 where money counts.
        features: columns of the observation; None takes those of the config.
        scaler: fitted on the training span. None fits one on the rows of `span`, which is right
            for training and wrong for evaluation.
        span: episodes lie inside it; None allows all rows. Earlier rows only warm features up.
        without: spans that no random episode touches, nor looks back on.

    Raises:
        DataError: if no episode fits into the data, funding rates are missing, or the scaler
            belongs to other features.
        ConfigError: if weights are on offer that the kind of a symbol does not allow, or the reward
            is none that a simulator could use.
        ChoiceError: if there is no such reward, or it has no such parameter.
        RangeError: if `batch` is less than 1.
        DtypeError: if `dtype` is not float32 or float64.
    """

    def __init__(
        self,
        panel: Panel,
        config: MarketConfig,
        *,
        batch: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        features: FeatureSet | None = None,
        scaler: Scaler | None = None,
        span: Span | None = None,
        without: Sequence[Span] = (),
    ) -> None:
        _check_arguments(panel, config, batch, dtype)
        config = config.with_terms(panel.symbols, panel.instruments)
        config.check_offered()
        self.config, self.batch, self.dtype = config, batch, dtype
        self._reward = _reward_of(config, dtype)
        self.device = torch.device(device)
        self.symbols = panel.symbols
        self.features = features or _features_of(panel, config)
        window = window_of(panel, span)
        check_funding(panel, config, window)
        self._end = window.last - 1
        listed = panel.listed.cpu().to(torch.int8).argmax(0)  # first row of each symbol
        self._first = listed.clamp(min=window.first)
        self._starts = Starts.of(
            panel,
            config,
            window,
            lookback=self.features.lookback,
            device=self.device,
            without=without,
        )
        computed = self.features.compute(panel)
        self.scaler = scaler or Scaler.fit(computed, window, schema=self.features.schema())
        scaled = self.scaler.transform(computed).values.to(device=self.device, dtype=dtype)
        self._observer = Observer(scaled, config)
        self._tape = Tape.of(panel, config, device=self.device, dtype=dtype)
        self._draws = drawn_rows(config)
        self._stops, self._rules = StopLevels.of(config), Rules.of(config, panel.symbols)
        self._floor = config.ruin_equity
        self._steps = SymbolRules.of(config, panel.symbols, panel.interval, like=scaled)
        fees = [config.fee_of(symbol) for symbol in panel.symbols]
        self._fee = fees[0] if len(set(fees)) == 1 else None  # of all symbols
        self._fees = scaled.new_tensor(fees)
        self._levels = scaled.new_tensor(config.offered_levels)
        self._first_memory = scaled.new_tensor(() if self._reward is None else self._reward.initial)
        self._initial_equity = scaled.new_tensor(config.initial_equity)
        self.actions: Actions
        if config.action == "levels":
            self.actions = DiscreteActions(len(config.offered_levels))
            self.action_range = 0.0, len(config.offered_levels) - 1.0
        else:
            self.action_range = config.offered_range
            self.actions = ContinuousActions(self.action_range[:1], self.action_range[1:])
        self._transition: Transition = self.transition

    columns: Columns | None = None
    """Of a part of another simulator."""

    account_names: tuple[str, ...] = ACCOUNT_FEATURES
    """Columns of the observation that actions change."""

    @property
    def episode_steps(self) -> int:
        """Number of bars after which every episode has ended that `reset` or a step started."""
        return self.config.episode_bars

    @property
    def observation_names(self) -> tuple[str, ...]:
        """Names of the columns: features of the market, then of the account."""
        return (*self.features.names, *ACCOUNT_FEATURES)

    @property
    def forgeable_names(self) -> tuple[str, ...]:
        """Columns that come from bars: neither the account's nor the clock's."""
        return tuple(bound.label for bound in self.features.bound if bound.feature.forgeable)

    @property
    def observation_size(self) -> int:
        """Number of columns F."""
        return len(self.observation_names)

    def compile(self) -> None:
        """Compile `step` in place, as `torch.nn.Module.compile` does its module.

        Raises:
            ConfigError: if no compiler is found.
        """
        self._transition = _compiled(self.transition, self.example())

    @property
    def is_compiled(self) -> bool:
        """Whether `compile` was called."""
        return self._transition != self.transition

    def example(self) -> tuple[State, Tensor, Tensor]:
        """Return arguments of `transition`: accounts just opened, an action, uniform numbers."""
        generator = torch.Generator(device=self.device).manual_seed(0)
        state, _ = self.reset(generator)
        kind = torch.int64 if self.config.action == "levels" else self.dtype
        action = torch.zeros(self.batch, dtype=kind, device=self.device)
        return state, action, self.draw(generator)

    def reset(self, generator: torch.Generator) -> tuple[State, Tensor]:
        """Start B episodes at random; return state and observation [B, F]."""
        draws = split_draws(self.draw(generator), self.config)
        symbol, row = self._starts.pick(draws.start)
        last = row + self.config.episode_bars
        state = unshared(self._opened(symbol, row, last, self._costs(symbol, draws)))
        return state, self._observer.first(state)

    def place(
        self, symbol: Tensor, row: Tensor, *, last_row: Tensor | None = None
    ) -> tuple[State, Tensor]:
        """Start one episode in each environment at a chosen symbol and row, at the config's costs.

        Args:
            symbol: columns of the panel, int64 [B].
            row: rows whose close is the first decision, int64 [B]; inside the span, and not before
                the symbol's first bar.
            last_row: rows at which the episodes are truncated; None takes `episode_bars`, or the
                end of the data where that comes first.

        Raises:
            ShapeError: if a tensor is not [B].
            RangeError: if a symbol or row is not there, or no bar is left after the first.
        """
        last = row + self.config.episode_bars if last_row is None else last_row
        last = last.clamp(max=self._end)
        bounds = (
            ("symbol", symbol, torch.zeros_like(symbol), len(self.symbols) - 1),
            ("row", row, torch.zeros_like(row), self._end - 1),
            ("last_row", last, row + 1, self._end),
        )
        for place in bounds:
            _check_places(*place, self.batch)
        self._check_known(symbol.cpu(), row.cpu())
        symbol, row, last = (tensor.to(self.device) for tensor in (symbol, row, last))
        state = unshared(self._opened(symbol, row, last, self._costs(symbol, None)))
        return state, self._observer.first(state)

    def _check_known(self, symbol: Tensor, row: Tensor) -> None:
        """Refuse a start before the span or a symbol's first bar, where prices are made up."""
        early = row < self._first[symbol]
        if early.any():
            where = int(early.nonzero()[0])
            column = int(symbol[where])
            raise RangeError(
                wrong=f"an episode of {self.symbols[column]} must start at row "
                f"{int(self._first[column])} or later",
                found=f"row {int(row[where])} in environment {where}",
                remedy="Earlier rows lie before the span, or before the symbol's first bar.",
            )

    def draw(self, generator: torch.Generator) -> Tensor:
        """Return the uniform numbers that one `transition` uses up, float32 [k, B]."""
        shape = (self._draws, self.batch if self.columns is None else self.columns.whole)
        drawn = torch.rand(shape, generator=generator, dtype=torch.float32, device=self.device)
        return drawn if self.columns is None else self.columns.of(drawn, 1)

    def step(
        self, state: State, action: Tensor, generator: torch.Generator
    ) -> tuple[State, Step[Info]]:
        """Do one action in each environment; return the new state and what it shows.

        Raises:
            ShapeError: if there is not one action for each environment.
            DtypeError: if the actions are of another type.
            RangeError: on a CPU outside of compilation, if an action is not finite or not on
                offer. Elsewhere it becomes the held position and `info.bad_action` says so.
        """
        action = self._shaped(action)
        if self.device.type == "cpu" and not is_traced():
            self.refuse_bad(action, state.done)
        # one compiler does not look into what another one made
        run = self.transition if is_traced() else self._transition
        return run(state, action, self.draw(generator))

    def refuse_bad(self, action: Tensor, done: Tensor) -> None:
        """Raise a `RangeError` if an action [B] is not on offer where an episode is running."""
        low, high = action.aminmax()  # cheaper than a look at each, which is rarely needed
        least, most = self.action_range
        if not (low >= least and high <= most):
            bad = self._bad(action) & ~done
            if bad.any():
                raise _bad_action(self.config, action, bad)

    def transition(self, state: State, action: Tensor, uniform: Tensor) -> tuple[State, Step[Info]]:
        """Return what `step` returns, for uniform numbers from `draw`; pure, without a sync."""
        draws = split_draws(uniform, self.config)
        bad = self._bad(action) & ~state.done
        requested = self._requested(action, bad)
        booked = self._booked(state, requested, self._coming(state))
        moved, terminated = booked.account, booked.terminated
        truncated = (moved.row >= moved.last_row) & ~terminated
        moved = moved._replace(done=terminated | truncated)

        symbol, start = self._starts.pick(draws.start)
        last = start + self.config.episode_bars
        fresh = self._opened(symbol, start, last, self._costs(symbol, draws))
        over = state.done
        new = choose(over, fresh, moved)
        new = new._replace(bad_actions=state.bad_actions + bad)
        new, observation = self._observer.next(state, new, draws)
        reward = torch.where(over, 0.0, booked.reward)
        ended, cut = terminated & ~over, truncated & ~over
        outcome = Outcome(booked.fill, requested, booked.growth, reward, bad, cut, observation)
        info = step_info(state, new, outcome, self.config)
        return State(*new), Step(observation, reward, ended, cut, info)

    def draw_places(self, state: State) -> Tensor:
        """Return the rows that accounts stand at, of any symbol: most fall on the same days."""
        return state.row

    def with_batch(self, batch: int) -> "Simulator":
        """Return the same market for another number of environments; nothing is laid out anew.

        Its `step` is not compiled.
        """
        other = copy.copy(self)
        other.batch, other.columns = batch, None
        other._transition = other.transition
        return other

    def part(self, columns: Columns) -> "Simulator":
        """Return some of the environments, see `core.task.part`; compiled as these are.

        Raises:
            ConfigError: if it is to be compiled, and no compiler is found.
        """
        other = self.with_batch(columns.width)
        other.columns = columns
        if self.is_compiled:
            other.compile()
        return other

    def alternatives(self, state: State, actions: Tensor) -> Alternatives:
        """Return what each of K actions would make of the coming bar; pure, without a sync.

        Entry k is what `transition` gives for action k in every environment, bit for bit: orders,
        costs, funding, gate, margin, stops, reward with its memory, penalty and clip are those of
        the same functions. An action that is not on offer is the held position. Rows after an end
        hold 0.

        Args:
            state: accounts before the bar.
            actions: indices of levels, int64 [K], or weights, [K] in the simulator's type.

        Raises:
            ShapeError: if there is not one dimension.
            DtypeError: if the actions are of another type.
        """
        kind = torch.int64 if self.config.action == "levels" else self.dtype
        _check_alternatives(actions, kind)
        shape = (len(actions), len(state.row))  # accounts last, where memory is contiguous
        requested = self._requested(actions, self._bad(actions))
        row, bar, steps = self._coming(state)
        each = State(*(tensor.expand(*shape, *tensor.shape[1:]) for tensor in state))
        coming = _Coming(
            row.expand(shape),
            bar.expand(shape),
            steps.each(lambda column: column.expand(shape)),
        )
        booked = self._booked(each, requested[:, None].expand(shape), coming)
        shown = torch.where(state.done[:, None], 0.0, self._observer.account(booked.account))
        reward = torch.where(state.done, 0.0, booked.reward)
        ended = booked.terminated & ~state.done
        return Alternatives(reward.T, ended.T, shown.transpose(0, 1))

    def _coming(self, state: State) -> _Coming:
        """Return the bar in which the orders of the next step fill."""
        row = torch.minimum(state.row + 1, state.last_row)
        bar = self._tape.bar(row, state.symbol)
        return _Coming(row, bar, self._steps.select(state.symbol))

    def _booked(self, state: State, requested: Tensor, coming: _Coming) -> _Booked:
        """Return what a bar makes of accounts that request a weight, all of one shape."""
        row, bar, steps = coming
        fill = trade(state, requested, bar, steps, self._rules)
        moved = apply_fill(state, fill, row, bar.close)
        raw = fills.log_growth(moved.equity, state.equity, floor=self._floor)
        ruined = moved.equity <= self._floor
        penalised = torch.where(ruined, raw - self.config.ruin_penalty, raw)
        ended = stop_hit(moved, self._stops)
        if bar.delisted is not None:
            ended = ended | bar.delisted
        if self._reward is None:
            return _Booked(fill, moved, penalised, self._clipped(penalised), ended)
        record = self._record(state, moved, fill, requested, bar, growth=raw, ruined=ruined)
        reward, memory = self._reward(record, state.reward_memory)
        reward = torch.where(ruined, reward - self.config.ruin_penalty, reward)
        moved = moved._replace(reward_memory=memory)
        return _Booked(fill, moved, penalised, self._clipped(reward), ended)

    def _record(
        self,
        before: State,
        after: State,
        fill: Fill,
        requested: Tensor,
        bar: Bar,
        *,
        growth: Tensor,
        ruined: Tensor,
    ) -> StepRecord:
        """Return what a reward of the user's own is given."""
        return StepRecord(
            equity_before=before.equity.clamp(min=self._floor),
            equity=after.equity.clamp(min=self._floor),
            growth=growth,
            peak_before=before.peak_equity,
            peak=after.peak_equity,
            initial_equity=self._initial_equity.expand_as(growth),
            cash=after.cash,
            quantity_before=before.quantity,
            quantity=after.quantity,
            weight=fill.weight_after,
            requested=requested,
            price_before=before.price,
            open=bar.open,
            high=bar.high,
            low=bar.low,
            close=bar.close,
            traded=fill.order,
            fee=fill.fee,
            slippage=fill.slippage,
            funding=fill.funding,
            turnover=fill.turnover,
            bars_in_position=after.bars_in_position,
            bars_left=after.last_row - after.row,
            ruined=ruined,
        )

    def _shaped(self, action: Tensor) -> Tensor:
        """Return the action as [B], after refusing what is shaped or typed otherwise."""
        if isinstance(self.actions, ContinuousActions) and action.ndim == 1:
            action = action[:, None]
        self.actions.check(action, batch=self.batch, dtype=self.dtype)
        return action.reshape(self.batch)

    def _bad(self, action: Tensor) -> Tensor:
        if self.config.action == "levels":
            return (action < 0) | (action >= len(self._levels))
        low, high = self.action_range
        return ~((action >= low) & (action <= high))  # NaN is bad

    def _requested(self, action: Tensor, bad: Tensor) -> Tensor:
        """Return the target weight; NaN, which the gate reads as hold, for a bad action."""
        weight = action
        if self.config.action == "levels":
            weight = self._levels[action.clamp(0, len(self._levels) - 1)]
        return torch.where(bad, torch.nan, weight)

    def _costs(self, symbol: Tensor, draws: Draws | None) -> CostRates:
        """Return the costs of an episode, drawn where the market randomises them."""
        costs, ranges = self.config.costs, self.config.randomise
        uniform = None if draws is None else draws.costs
        rates = []
        for index, name in enumerate(("taker_fee", "half_spread", "impact")):
            rate: float | None = self._fee if name == "taker_fee" else getattr(costs, name)
            if rate is None:
                base = self._fees[symbol]
            else:
                base = self._levels.new_full((self.batch,), rate)
            low, high = getattr(ranges, name)
            if uniform is not None:
                base = base * (low + (high - low) * uniform[index]).to(self.dtype)
            rates.append(base)
        return CostRates(*rates)

    def _opened(self, symbol: Tensor, row: Tensor, last: Tensor, costs: CostRates) -> State:
        price = self._tape.close(row, symbol)
        state = open_accounts(symbol, row, last, price, costs, equity=self.config.initial_equity)
        memory = self._first_memory.expand(len(row), -1)
        return state._replace(reward_memory=memory)

    def _clipped(self, raw: Tensor) -> Tensor:
        bound = self.config.reward_clip
        return raw if bound is None else raw.clamp(-bound, bound)


def flat(transition: Transition) -> TensorFunction:
    """Return a transition from tensors to a list of tensors.

    In: those of `State`, action and uniform numbers. Out: those of `State`, `Step` and `Info`.
    """
    width = len(State._fields)

    def run(*tensors: Tensor) -> list[Tensor]:
        action, uniform = tensors[width:]
        state, step = transition(State(*tensors[:width]), action, uniform)
        return [*state, *step[:-1], *step.info]

    return run


def _compiled(transition: Transition, example: tuple[State, Tensor, Tensor]) -> Transition:
    """Return the same function as machine code for tensors like the example's.

    It needs no guards: a simulator never changes, and `step` checks shapes and types.
    """
    width, shown = len(State._fields), len(Step._fields) - 1
    run = compile_graph(flat(transition), [*example[0], *example[1:]], instead="do not compile")

    def call(state: State, action: Tensor, uniform: Tensor) -> tuple[State, Step[Info]]:
        tensors = run(*state, action, uniform)
        observation, reward, terminated, truncated = tensors[width : width + shown]
        info = Info(*tensors[width + shown :])
        return State(*tensors[:width]), Step(observation, reward, terminated, truncated, info)

    return call


def _reward_of(config: MarketConfig, dtype: torch.dtype) -> BoundReward | None:
    reward = bound_reward(config.reward, config.reward_parameters)
    if reward is not None:
        reward.check(dtype)
    return reward


def _features_of(panel: Panel, config: MarketConfig) -> FeatureSet:
    if config.features is not None:
        return FeatureSet(config.features, interval=panel.interval)
    return default_features(panel.interval).available(BarTensors.of(panel).columns)


def _check_arguments(panel: Panel, config: MarketConfig, batch: int, dtype: torch.dtype) -> None:
    if batch < 1:
        raise RangeError(
            wrong="`batch` must be at least 1",
            found=str(batch),
            remedy="Pass the number of environments.",
        )
    if dtype not in (torch.float32, torch.float64):
        raise DtypeError(
            wrong="`dtype` of a simulator must be torch.float32 or torch.float64",
            found=str(dtype),
            remedy="Learn in float32, evaluate in float64; 16 bits cannot hold money.",
        )
    config.check_symbols(panel.symbols)


def _bad_action(config: MarketConfig, action: Tensor, bad: Tensor) -> RangeError:
    where = int(bad.nonzero()[0])
    if config.action == "levels":
        count = len(config.offered_levels)
        allowed = f"the index of one of {count} levels, 0 to {count - 1}"
    else:
        allowed = "a finite weight from {} to {}".format(*config.offered_range)
    return RangeError(
        wrong=f"every action must be {allowed}",
        found=f"{action[where].item()} in environment {where}, and {int(bad.sum())} bad in all",
        remedy="Look at what the policy returned; a NaN there often began in a loss.",
    )


def _check_alternatives(actions: Tensor, dtype: torch.dtype) -> None:
    if actions.ndim != 1:
        raise ShapeError(
            wrong="`actions` must have the shape [K], the same for every environment",
            found=f"actions {tuple(actions.shape)}",
            remedy="Pass each action to compare once.",
        )
    if actions.dtype != dtype:
        raise DtypeError(
            wrong=f"`actions` must be a tensor of {dtype}",
            found=f"{actions.dtype}",
            remedy=f"Convert it with `.to({dtype})`.",
        )


def _check_places(name: str, given: Tensor, least: Tensor, most: int, batch: int) -> None:
    if tuple(given.shape) != (batch,) or given.dtype != torch.int64:
        raise ShapeError(
            wrong=f"`{name}` must be an int64 tensor of {batch} environments",
            found=f"{given.dtype} {tuple(given.shape)}",
            remedy="Pass one number for each environment.",
        )
    wrong = (given < least) | (given > most)
    if wrong.any():
        where = int(wrong.nonzero()[0])
        raise RangeError(
            wrong=f"`{name}` must lie in {int(least[where])} to {most}",
            found=f"{int(given[where])} in environment {where}",
            remedy="A bar must be left after the first decision.",
        )
