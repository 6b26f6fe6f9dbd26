"""Registry of rewards by name: each is a decorated function of the ledger's record of a step."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from stormsail.core import plugins
from stormsail.core.errors import ArgumentError, ChoiceError, ConfigError, DtypeError, nearest

LOG_GROWTH = "log_growth"
"""The default: log of equity after a step over equity before, which the simulator computes."""

Parameters = Mapping[str, float]

_PROBES = 6
_CLOSE = 1e-4


class StepRecord(NamedTuple):
    """The ledger's record of one step, a row for each account; tensors [B].

    The order of events: decided at the close before, filled at the bar's open, marked at its close.
    Equity is at least the floor of `stops`, so that its logarithm is finite.
    """

    equity_before: Tensor
    """Equity at the close before, at least the floor."""
    equity: Tensor
    """Equity at this close, after all costs, at least the floor."""
    growth: Tensor
    """Log of the second over the first: the default reward."""
    peak_before: Tensor
    """Highest equity of the episode up to the close before."""
    peak: Tensor
    """Highest equity of the episode, this close included."""
    initial_equity: Tensor
    """Equity at the episode's start."""
    cash: Tensor
    """Cash at this close."""
    quantity_before: Tensor
    """Signed position before the fill."""
    quantity: Tensor
    """Signed position at this close."""
    weight: Tensor
    """Position after the fill, at the open, as a signed share of equity."""
    requested: Tensor
    """Requested weight; NaN where the action was bad."""
    price_before: Tensor
    """Close before."""
    open: Tensor
    """Open of the bar, at which an order fills before spread and impact."""
    high: Tensor
    """High of the bar; of the mark price where there is one."""
    low: Tensor
    """Low of the bar; of the mark price where there is one."""
    close: Tensor
    """Close of the bar."""
    traded: Tensor
    """Signed quantity filled."""
    fee: Tensor
    """Fees of the step, in quote currency."""
    slippage: Tensor
    """Quote currency lost to spread, impact and tick."""
    funding: Tensor
    """Funding and interest paid; negative where it was received."""
    turnover: Tensor
    """Traded notional over equity."""
    bars_in_position: Tensor
    """Bars since the position was opened or turned; 0 when flat."""
    bars_left: Tensor
    """Bars until the episode is truncated."""
    ruined: Tensor
    """Whether equity fell to the floor, bool. The simulator takes `ruin_penalty` by itself."""

    @property
    def costs(self) -> Tensor:
        """Fees, slippage and funding of the step, in quote currency."""
        return self.fee + self.slippage + self.funding

    @property
    def drawdown(self) -> Tensor:
        """Share of the highest equity that is lost at this close."""
        return 1.0 - self.equity / self.peak


Function = Callable[..., object]
"""`(record, **parameters)` to rewards; with a memory `(record, memory, **parameters)` to both."""


@dataclass(frozen=True)
class Reward:
    """A registered reward: its function and the memory that it carries through an episode."""

    name: str
    function: Function
    memory: int
    """Numbers that it remembers from step to step of an episode."""
    initial: Callable[..., tuple[float, ...]] | tuple[float, ...]
    """Those numbers at an episode's start; a function of the parameters, or the numbers."""

    def bind(self, parameters: Parameters) -> "BoundReward":
        """Return the reward with all its parameters, defaults included.

        Raises:
            ChoiceError: if it has no parameter of that name.
            ArgumentError: if one without a default is missing.
            DtypeError: if a parameter, or a number of the initial memory, is not finite.
        """
        known = self._keywords()
        for name in parameters:
            if name not in known:
                near = nearest(name, known)
                raise ChoiceError(
                    wrong=f"parameters of the reward `{self.name}` must be among: "
                    + (", ".join(f"`{keyword}`" for keyword in known) or "none"),
                    found=f"`{name}`",
                    remedy=f"Did you mean `{near}`?" if near else "Choose one of those names.",
                )
        given = {**known, **parameters}
        missing = [name for name, value in given.items() if value is None]
        if missing:
            raise ArgumentError(
                "missing-argument",
                wrong=f"the reward `{self.name}` must be given `{missing[0]}`",
                found="no value and no default",
                remedy=f"Write for example `reward_parameters = {{ {missing[0]} = 0.5 }}`.",
            )
        numbers = {name: _number(self.name, name, value) for name, value in given.items()}
        first = self.initial(**numbers) if callable(self.initial) else self.initial
        if len(first) != self.memory:
            raise ArgumentError(
                "plugin-result",
                wrong=f"`initial` of the reward `{self.name}` must be {self.memory} numbers",
                found=f"{len(first)}",
                remedy="Give one number for each that it remembers.",
            )
        start = tuple(_number(self.name, "initial", value) for value in first)
        return BoundReward(self, numbers, start)

    def _keywords(self) -> dict[str, float | None]:
        skipped = 2 if self.memory else 1
        declared = list(inspect.signature(self.function).parameters.values())[skipped:]
        return {one.name: None if one.default is one.empty else one.default for one in declared}


@dataclass(frozen=True)
class BoundReward:
    """A reward with its parameters, as the simulator calls it."""

    reward: Reward
    parameters: Parameters
    initial: tuple[float, ...]

    def first(self, like: Tensor) -> Tensor:
        """Return the memory at an episode's start, [B, M], for a tensor [B] of the money."""
        start = torch.tensor(self.initial, dtype=like.dtype, device=like.device)
        return start.expand(len(like), self.reward.memory)

    def __call__(self, record: StepRecord, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return rewards [*b] and the memory after the step [*b, M]; pure, without a sync.

        The function sees one dimension, whatever the shape here.
        """
        shape, width = record.equity.shape, self.reward.memory
        flat = StepRecord(*(column.reshape(-1) for column in record))
        if width == 0:
            rewards = self.reward.function(flat, **self.parameters)
            return self._checked(rewards, flat.equity).reshape(shape), memory
        answer = self.reward.function(flat, memory.reshape(-1, width), **self.parameters)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise self._wrong("must return rewards and memory, in that order", _named(answer))
        rewards, after = answer
        expected = (len(flat.equity), width)
        if not isinstance(after, Tensor) or tuple(after.shape) != expected:
            raise self._wrong(f"must return a memory of the shape {expected}", _named(after))
        after = self._typed(after, flat.equity)
        return self._checked(rewards, flat.equity).reshape(shape), after.reshape(*shape, width)

    def _checked(self, rewards: object, like: Tensor) -> Tensor:
        if not isinstance(rewards, Tensor) or rewards.shape != like.shape:
            raise self._wrong(
                f"must return rewards of the shape {tuple(like.shape)}", _named(rewards)
            )
        return self._typed(rewards, like)

    def _typed(self, result: Tensor, like: Tensor) -> Tensor:
        if result.dtype != like.dtype:
            raise self._wrong(f"must return tensors of {like.dtype}", str(result.dtype))
        return result

    def _wrong(self, must: str, found: str) -> ConfigError:
        return ConfigError(
            "plugin-result",
            wrong=f"the reward `{self.reward.name}` {must}",
            found=found,
            remedy="Compute one number for each account, from the record's own tensors.",
        )

    def check(self, dtype: torch.dtype) -> None:
        """Call it on made-up steps; refuse what no simulator could use.

        Raises:
            ConfigError: if it raises, returns something else than a number for each account, a
                number that is not finite, another one for the same steps, or one that depends on
                the other accounts of the batch.
        """
        record = _made_up(dtype)
        try:
            first = self.first(record.equity).clone()
            whole, after = self(record, first)
            again, _ = self(record, first)
            parts = [
                self(StepRecord(*(column[k : k + 1] for column in record)), first[k : k + 1])
                for k in range(_PROBES)
            ]
        except (ConfigError, ArgumentError):
            raise
        except Exception as error:  # a user's function may raise anything
            raise self._wrong("must run", f"{type(error).__name__}: {error}") from error
        if not bool(whole.isfinite().all() and after.isfinite().all()):
            raise self._wrong("must return finite numbers for finite steps", "NaN or infinity")
        if not torch.equal(whole, again):
            raise self._wrong("must return the same for the same steps", "another number")
        alone = torch.cat([rewards for rewards, _ in parts])
        if not torch.allclose(whole, alone, rtol=_CLOSE, atol=_CLOSE):
            raise self._wrong(
                "must judge each account by its own row",
                "other numbers for an account alone than in a batch",
            )


REWARDS = plugins.published(plugins.Registry[Reward]("reward"))
"""Where `reward` puts what it decorates."""


def reward(
    *,
    name: str,
    memory: int = 0,
    initial: Callable[..., tuple[float, ...]] | tuple[float, ...] | None = None,
) -> Callable[[Function], Function]:
    """Register a function of a step as a reward.

    The function gets a `StepRecord` and its own keyword parameters, numbers with or without a
    default, and returns rewards [B]. It must be pure: tensors in, tensors out, no Python branch on
    values, each account by its own row. With a `memory` of M numbers it gets them, [B, M], as its
    second argument and returns `(rewards, memory after the step)`. They begin with `initial` in
    each episode and are part of the simulator's state, so that checkpoints have them.

    Args:
        name: unique, in lower case; `task.market.reward` names it.
        memory: numbers that it remembers.
        initial: those numbers at an episode's start, or a function of the parameters; None is 0.

    Raises:
        ArgumentError: if the name is taken or badly formed, or `memory` is no count.
    """
    if isinstance(memory, bool) or not isinstance(memory, int) or memory < 0:
        raise ArgumentError(
            "out-of-range",
            wrong=f"`memory` of the reward `{name}` must be a whole number of at least 0",
            found=repr(memory),
            remedy="Count the numbers that it remembers of an account.",
        )
    start = (0.0,) * memory if initial is None else initial

    def register(function: Function) -> Function:
        REWARDS.register(name, Reward(name, function, memory, start), defined=function)
        return function

    return register


def bound_reward(name: str, parameters: Parameters) -> BoundReward | None:
    """Return a registered reward with its parameters; None for the default, log growth.

    Raises:
        ConfigError: if there is no such reward, or its parameters do not fit.
    """
    if name == LOG_GROWTH:
        if parameters:
            raise ConfigError(
                "config-value",
                wrong=f"`reward_parameters` must be left out with the reward `{LOG_GROWTH}`",
                found=", ".join(f"`{one}`" for one in parameters),
                remedy="Leave them out, or name another reward.",
            )
        return None
    return REWARDS.get(name).bind(parameters)


def _number(reward_name: str, name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DtypeError(
            wrong=f"`{name}` of the reward `{reward_name}` must be a finite number",
            found=repr(value),
            remedy="Write a number; 0 and 1 for a switch.",
        )
    return float(value)


def _named(value: object) -> str:
    if isinstance(value, Tensor):
        return f"the shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"


def _made_up(dtype: torch.dtype) -> StepRecord:
    """Return steps of six accounts, no two alike, gains and losses, flat and invested."""
    count = torch.arange(_PROBES, dtype=dtype)
    before = 10_000.0 + 37.0 * count
    growth = 0.01 * torch.tensor([0.0, 1.0, -1.0, 2.5, -3.0, 0.2], dtype=dtype)
    equity = before * growth.exp()
    peak = before + 250.0 * (count % 3)
    weight = torch.tensor([0.0, 1.0, -1.0, 0.5, -0.5, 0.2], dtype=dtype)
    price = 100.0 + count
    columns = {
        "equity_before": before,
        "equity": equity,
        "growth": growth,
        "peak_before": peak,
        "peak": torch.maximum(peak, equity),
        "initial_equity": torch.full_like(before, 10_000.0),
        "cash": equity * (1.0 - weight),
        "quantity_before": torch.zeros_like(before),
        "quantity": weight * before / price,
        "weight": weight,
        "requested": weight,
        "price_before": price,
        "open": price * 1.001,
        "high": price * 1.02,
        "low": price * 0.98,
        "close": price * (1.0 + growth),
        "traded": weight * before / price,
        "fee": 0.001 * before * weight.abs(),
        "slippage": 0.0002 * before * weight.abs(),
        "funding": 0.0001 * before * weight,
        "turnover": weight.abs(),
        "bars_in_position": torch.arange(_PROBES),
        "bars_left": torch.arange(_PROBES) + 3,
        "ruined": torch.zeros(_PROBES, dtype=torch.bool),
    }
    return StepRecord(**columns)
