"""One account as a Gymnasium environment: `gymnasium.make("stormsail/Market-v0")`."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from stormsail.core.machine_code.graph_numbers import Number
from stormsail.market.features import FeatureSet, Scaler
from stormsail.market.gymnasium.bridge import (
    FRAMES_A_SECOND,
    OPTIONAL_INFO,
    RENDER_MODES,
    Bridge,
    Bridged,
    Observation,
    check_render_mode,
    observed,
    own_generator,
    panel_of,
    reset_needed,
)
from stormsail.market.gymnasium.render import Trace, draw, one_line
from stormsail.market.interval import Interval
from stormsail.market.panel import Panel
from stormsail.market.simulator import Info, MarketConfig, State
from stormsail.market.simulator.one_account import OneAccount
from stormsail.market.splits import Span
from stormsail.market.store import Store


class MarketEnv(Bridged, gymnasium.Env[Observation, Any]):
    """One account that trades one symbol through one episode at a time.

    An action is a target weight of equity: the number of a level (`Discrete`), or with
    `action = "continuous"` the weight itself (`Box` of shape [1]). It is decided at a bar's close
    and filled at the next open. The reward is the log growth of equity after all costs.

    `info` has the names of `simulator.Info` as plain numbers. `price` is there where something was
    filled, `reward_clip_bound_fraction` where rewards are clipped, and `terminal_observation` where
    the episode ended. After `reset` it describes the new account, and all events are 0.

    Args:
        panel: bars to trade; None takes the store's, and without a store a synthetic market.
        config: the market's rules; None takes the defaults.
        store: a store or its folder, with `symbols` and `interval`, in place of a panel.
        symbols: names to load from the store.
        interval: length of the stored bars, such as `1h`.
        features: columns of the observation; None takes those of the config.
        scaler: fitted on the training span; None fits one on the rows of `span`, which is right
            for training and wrong for evaluation.
        span: episodes lie inside it; None allows all rows.
        render_mode: `rgb_array` for pictures, `ansi` for a line of text.

    Raises:
        ArgumentError: if the arguments name no data, or two sources of it.
        ChoiceError: if there is no such render mode.
        DataError: if no episode fits into the data.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 - as Gymnasium declares it
        "render_modes": list(RENDER_MODES),
        "render_fps": FRAMES_A_SECOND,
    }

    def __init__(
        self,
        panel: Panel | None = None,
        config: MarketConfig | None = None,
        *,
        store: Store | Path | str | None = None,
        symbols: Sequence[str] | None = None,
        interval: Interval | str | None = None,
        features: FeatureSet | None = None,
        scaler: Scaler | None = None,
        span: Span | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.render_mode = check_render_mode(render_mode)
        self._bridge = Bridge(
            panel_of(panel, store, symbols, interval),
            config,
            batch=1,
            features=features,
            scaler=scaler,
            span=span,
        )
        self.observation_space = self._bridge.observation_space
        self.action_space = self._bridge.action_space
        self._shape = self.action_space.shape or ()
        self._generator: torch.Generator | None = None
        self._state: tuple[Number, ...] | None = None
        self._trace: Trace | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: begins a new random stream; None goes on with the one there is.
            options: `symbol` with `row` or `time` to choose the start; None draws it.

        Raises:
            ArgumentError: if the options do not name a bar of the panel.
        """
        super().reset(seed=seed)
        if seed is not None or self._generator is None:
            self._generator = own_generator(self.np_random)
        state, observation = self._bridge.start(options, self._generator)
        self._state = _numbers(state)
        if self.render_mode is not None:
            self._trace = self._bridge.trace(state, 0)
        info = self._bridge.opened(state, observation)
        numbers = {name: value.item() for name, value in zip(Info._fields[:-1], info, strict=False)}
        return observed(observation)[0], _known(numbers)

    def step(self, action: object) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Do one action.

        Raises:
            ArgumentError: if the action is no element of `action_space`.
            gymnasium.error.ResetNeeded: if no episode is running.
        """
        if self._state is None or self._generator is None:
            raise reset_needed()
        chosen = self._bridge.action(action, self._shape)
        simulator = self._bridge.simulator
        number = chosen.item()
        least, most = simulator.action_range
        if not least <= number <= most:
            simulator.refuse_bad(chosen, torch.zeros_like(chosen, dtype=torch.bool))
        uniform = simulator.draw(self._generator).flatten().tolist()
        state, step = self._account.step(self._state, number, uniform)
        if self._trace is not None:
            self._bridge.follow(self._trace, _tensors(state), 0)
        ended = step.terminated or step.truncated
        self._state = None if ended else state
        observation = np.array(step.observation, dtype=np.float32)
        info = _known(step.info)
        if ended:
            info["terminal_observation"] = observation.copy()
        return observation, step.reward, step.terminated, step.truncated, info

    @cached_property
    def _account(self) -> OneAccount:
        """The account's rules, recorded at the first step: it takes a second or two."""
        return OneAccount(self._bridge.simulator)

    def render(self) -> NDArray[np.uint8] | str | None:
        """Return a picture or a line of the episode, the last one if it has just ended.

        Raises:
            gymnasium.error.ResetNeeded: if there was none yet.
            ConfigError: if Pillow is not installed.
        """
        if self.render_mode is None:
            gymnasium.logger.warn(
                "`render` draws nothing without a `render_mode`, such as "
                '`gymnasium.make("stormsail/Market-v0", render_mode="rgb_array")`.'
            )
            return None
        if self._trace is None:
            raise reset_needed()
        return draw(self._trace) if self.render_mode == "rgb_array" else one_line(self._trace)


def _numbers(state: State) -> tuple[Number, ...]:
    return tuple(number for tensor in state for number in tensor.flatten().tolist())


def _tensors(state: tuple[Number, ...]) -> State:
    """Return the state of an account as tensors of one environment."""
    plain = len(State._fields) - 2  # all but the reward's memory and the flag, which come last
    columns = [torch.tensor([number]) for number in state[:plain]]
    columns += [torch.tensor([state[plain:-1]]), torch.tensor([state[-1]])]
    return State(*columns)


def _known(info: dict[str, Any]) -> dict[str, Any]:
    """Return an info without the numbers that it does not have."""
    for name in OPTIONAL_INFO:
        if info[name] != info[name]:
            del info[name]
    return info
