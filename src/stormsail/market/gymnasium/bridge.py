"""What the single and the vector environment share: a simulator behind Gymnasium's types.

Money is counted in float64; an observation is float32, as learners expect it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stormsail.core.errors import ArgumentError, ChoiceError, DtypeError, ShapeError, nearest
from stormsail.core.generators import Generators
from stormsail.market.features import ACCOUNT_FEATURES, FeatureSet, Scaler
from stormsail.market.gymnasium.render import Trace
from stormsail.market.gymnasium.start import chosen_start
from stormsail.market.interval import Interval
from stormsail.market.panel import Panel, load_panel
from stormsail.market.simulator import Info, MarketConfig, Simulator, State
from stormsail.market.splits import Span
from stormsail.market.store import Store
from stormsail.market.synthetic import generate

Observation = NDArray[np.float32]

RENDER_MODES = ("rgb_array", "ansi")
FRAMES_A_SECOND = 10

OPTIONAL_INFO = ("price", "reward_clip_bound_fraction")
"""Names of `Info` that are NaN where there is no such value; a dictionary leaves them out."""

_LARGEST = float(np.finfo(np.float32).max)
_DEMO_SYMBOLS, _DEMO_BARS, _DEMO_SEED = 2, 4096, 0


def panel_of(
    panel: Panel | None,
    store: Store | Path | str | None,
    symbols: Sequence[str] | None,
    interval: Interval | str | None,
) -> Panel:
    """Return the bars to trade: those given, those stored, or a synthetic `regime` market.

    Raises:
        ArgumentError: if the arguments name no data, or two sources of it.
        DataError: if something is not in the store.
    """
    place = {"store": store, "symbols": symbols, "interval": interval}
    given = [name for name, value in place.items() if value is not None]
    if panel is not None and given:
        raise ArgumentError(
            "config-inconsistent",
            wrong="an environment must have one source of bars",
            found=f"`panel` and `{'`, `'.join(given)}`",
            remedy="Pass a panel, or a store with symbols and an interval.",
        )
    if panel is not None:
        return panel
    if store is not None and symbols is not None and interval is not None:
        return load_panel(
            store if isinstance(store, Store) else Store(store),
            symbols,
            interval if isinstance(interval, Interval) else Interval.parse(interval),
        )
    if given:
        raise ArgumentError(
            "missing-argument",
            wrong="`store`, `symbols` and `interval` must be given together",
            found=f"`{'`, `'.join(given)}` only",
            remedy="Name the folder, the symbols and the bars' length, such as `1h`.",
        )
    hourly = Interval.parse("1h")
    world = generate(
        "regime", symbols=_DEMO_SYMBOLS, bars=_DEMO_BARS, interval=hourly, seed=_DEMO_SEED
    )
    return Panel.from_bars(world.bars, world.funding)


def check_render_mode(mode: str | None) -> str | None:
    """Return the mode, or raise a `ChoiceError` if there is none of that name."""
    if mode is None or mode in RENDER_MODES:
        return mode
    near = nearest(mode, RENDER_MODES)
    raise ChoiceError(
        wrong=f"`render_mode` must be one of {', '.join(f'`{name}`' for name in RENDER_MODES)}",
        found=f"`{mode}`",
        remedy=f"Did you mean `{near}`?" if near else "Leave it out to draw nothing.",
    )


def reset_needed() -> gymnasium.error.ResetNeeded:
    """Return the error for a step or a picture without an episode."""
    return gymnasium.error.ResetNeeded(
        "an episode must be running; found none. Call `reset()` first, and again after each end."
    )


def own_generator(np_random: np.random.Generator) -> torch.Generator:
    """Return a random stream that depends on the state of Gymnasium's generator only."""
    seed = int(np_random.integers(np.iinfo(np.int64).max))
    return Generators(seed).stream("market")


class Bridge:
    """A float64 simulator, and the way from and to arrays.

    Args:
        panel: bars of one or more symbols.
        config: the market's rules; None takes the defaults.
        batch: number of environments. All other arguments are those of `Simulator`.
    """

    def __init__(
        self,
        panel: Panel,
        config: MarketConfig | None,
        *,
        batch: int,
        features: FeatureSet | None,
        scaler: Scaler | None,
        span: Span | None,
    ) -> None:
        self.panel, self._span = panel, span
        self.simulator = Simulator(
            panel,
            config or MarketConfig(),
            batch=batch,
            dtype=torch.float64,
            features=features,
            scaler=scaler,
            span=span,
        )
        self.config = self.simulator.config
        self.observation_space = self._observation_space()
        self.action_space = self._action_space()

    def _observation_space(self) -> gymnasium.Space[Any]:
        """Return finite bounds: the scaler's for the market, all numbers for the account."""
        market = min(self.simulator.scaler.clip, _LARGEST)
        high = np.full(self.simulator.observation_size, market, dtype=np.float32)
        high[-len(ACCOUNT_FEATURES) :] = _LARGEST
        return gymnasium.spaces.Box(-high, high, dtype=np.float32)

    def _action_space(self) -> gymnasium.Space[Any]:
        if self.config.action == "levels":
            return gymnasium.spaces.Discrete(len(self.config.offered_levels))
        low, high = self.config.offered_range
        return gymnasium.spaces.Box(low, high, shape=(1,), dtype=np.float32)

    def start(
        self, options: Mapping[str, Any] | None, generator: torch.Generator
    ) -> tuple[State, Tensor]:
        """Start episodes where the options say (see `chosen_start`), or at random."""
        if not options:
            return self.simulator.reset(generator)
        return chosen_start(self.simulator, self.panel, options)

    def action(self, action: object, shape: tuple[int, ...]) -> Tensor:
        """Return the action as the simulator takes it; it checks the values.

        Raises:
            ShapeError: if it is not shaped as the space says.
            DtypeError: if it does not hold numbers of the right kind.
        """
        levels = self.config.action == "levels"
        values = np.asarray(action)
        if values.dtype.kind not in ("iu" if levels else "iuf"):
            raise DtypeError(
                wrong=f"an action must be {'a whole number' if levels else 'a number'}",
                found=f"{values.dtype} {action!r}",
                remedy="Take it from `action_space`.",
            )
        if values.shape != shape:
            raise ShapeError(
                wrong=f"an action must have the shape {shape}",
                found=f"{values.shape}",
                remedy="Take it from `action_space`; nothing is broadcast.",
            )
        flat = values.reshape(self.simulator.batch)
        if levels:
            return torch.from_numpy(flat.astype(np.int64))
        return torch.from_numpy(self._inside(flat.astype(np.float64)))

    def _inside(self, weight: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return weights without the rounding by which the space's float32 bounds stick out."""
        for bound in self.config.offered_range:
            edge = float(np.float32(bound))
            low, high = min(bound, edge), max(bound, edge)
            weight = np.where((weight >= low) & (weight <= high), bound, weight)
        return weight

    def opened(self, state: State, observation: Tensor) -> Info:
        """Return the info of episodes that have just started, as after an autoreset."""
        nothing = torch.zeros_like(state.equity)
        never, count = torch.zeros_like(state.done), torch.zeros_like(state.row)
        clip = self.config.reward_clip
        events = dict.fromkeys(Info._fields, nothing)
        events |= dict.fromkeys(
            ("liquidated", "blocked", "delisted", "bad_action", "time_limit_truncated"), never
        )
        return Info(**events)._replace(
            equity=state.equity,
            cash=state.cash,
            price=torch.full_like(nothing, torch.nan),
            reason=count,
            data_age=count,
            symbol=state.symbol,
            row=state.row,
            reward_clip_bound_fraction=nothing + (torch.nan if clip is None else clip),
            terminal_observation=observation,
        )

    def trace(self, state: State, index: int) -> Trace:
        """Return the picture of an episode that has just started."""
        symbol = int(state.symbol[index])
        offered = self.config.offered
        trace = Trace(
            symbol=self.panel.symbols[symbol],
            bars=int(state.last_row[index] - state.row[index]),
            weights_offered=(min(offered), max(offered)),
        )
        self.follow(trace, state, index)
        return trace

    def follow(self, trace: Trace, state: State, index: int) -> None:
        """Add the newest bar of an environment to its picture."""
        price, equity = float(state.price[index]), float(state.equity[index])
        trace.add(
            time_ms=int(self.panel.ts[state.row[index]]),
            price=price,
            weight=float(state.quantity[index]) * price / equity if equity else 0.0,
            equity=equity,
        )

    def task(self, *, batch: int, device: torch.device | str) -> Simulator:
        """Return the same market as a float32 task of another batch."""
        return Simulator(
            self.panel,
            self.config,
            batch=batch,
            device=device,
            features=self.simulator.features,
            scaler=self.simulator.scaler,
            span=self._span,
        )


class Bridged:
    """Properties that both environments take from their bridge."""

    _bridge: Bridge

    @property
    def config(self) -> MarketConfig:
        """The market's rules."""
        return self._bridge.config

    @property
    def panel(self) -> Panel:
        """The bars."""
        return self._bridge.panel

    @property
    def scaler(self) -> Scaler:
        """The scaler, to pass to the environment of an evaluation."""
        return self._bridge.simulator.scaler

    def task(self, *, batch: int, device: torch.device | str = "cpu") -> Simulator:
        """Return the same market as a task: the tensors that agents learn and are judged on."""
        return self._bridge.task(batch=batch, device=device)

    @property
    def observation_names(self) -> tuple[str, ...]:
        """Names of the observation's columns."""
        return self._bridge.simulator.observation_names


def observed(observation: Tensor) -> Observation:
    """Return observations as new float32 arrays."""
    values: Observation = observation.to(torch.float32).numpy()
    return values
