"""Many accounts as one vector environment: `gymnasium.make_vec("stormsail/Market-v0")`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray
from torch import Tensor

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
from stormsail.market.simulator.account import choose
from stormsail.market.splits import Span
from stormsail.market.store import Store

Flags = NDArray[np.bool_]
Numbers = NDArray[np.float64]


class MarketVectorEnv(Bridged, gymnasium.vector.VectorEnv[Observation, NDArray[Any], NDArray[Any]]):
    """Many accounts, each trading one symbol through one episode after another.

    All of them are stepped together as tensors. The step after an episode's end ignores its action
    and shows the first observation of a new episode, with reward 0 (next-step autoreset).

    `info` has the names of `simulator.Info` as arrays, each with a mask under `_name` that says
    which environments have it: `price` where something was filled, `terminal_observation` where an
    episode ended, all others everywhere. `reward_clip_bound_fraction` is there if rewards are
    clipped.

    Random starts come from one stream for all environments, so environment i does not start where
    a single one with the seed s + i would.

    Args:
        num_envs: number of environments. All other arguments, and what is refused, are those of
            `MarketEnv`; `render` returns one frame for each environment.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 - as Gymnasium declares it
        "render_modes": list(RENDER_MODES),
        "render_fps": FRAMES_A_SECOND,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self,
        num_envs: int = 1,
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
        self.num_envs = num_envs
        self._bridge = Bridge(
            panel_of(panel, store, symbols, interval),
            config,
            batch=num_envs,
            features=features,
            scaler=scaler,
            span=span,
        )
        self.single_observation_space = self._bridge.observation_space
        self.single_action_space = self._bridge.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._shape = self.action_space.shape or ()
        self._generator: torch.Generator | None = None
        self._state: State | None = None
        self._traces: list[Trace] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode in each environment, as `MarketEnv.reset` does in one.

        An option is one value, or a list with one for each environment.
        """
        super().reset(seed=seed)
        if seed is not None or self._generator is None:
            self._generator = own_generator(self.np_random)
        state, observation = self._bridge.start(options, self._generator)
        self._state = state
        if self.render_mode is not None:
            self._traces = [self._bridge.trace(state, index) for index in range(self.num_envs)]
        info = self._bridge.opened(state, observation)
        return observed(observation), _arrays(info, ended=np.zeros(self.num_envs, dtype=np.bool_))

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[Observation, Numbers, Flags, Flags, dict[str, Any]]:
        """Do one action in each environment.

        Raises:
            ArgumentError: if the actions are no element of `action_space`.
            gymnasium.error.ResetNeeded: before the first `reset`.
        """
        if self._state is None or self._generator is None:
            raise reset_needed()
        before = self._state
        chosen = self._bridge.action(actions, self._shape)
        self._state, step = self._bridge.simulator.step(before, chosen, self._generator)
        self._follow(before, self._state)
        terminated, truncated = _copied(step.terminated), _copied(step.truncated)
        info = _arrays(step.info, ended=terminated | truncated)
        return observed(step.observation), _copied(step.reward), terminated, truncated, info

    def restart(self) -> Observation:
        """Start the next episodes at once where one has ended, rather than in the next step.

        Returns:
            Observations [B, F], new ones; only those of the environments that ended mean something.

        Raises:
            gymnasium.error.ResetNeeded: before the first `reset`.
        """
        if self._state is None or self._generator is None:
            raise reset_needed()
        before, simulator = self._state, self._bridge.simulator
        action, uniform = simulator.example()[1], simulator.draw(self._generator)
        opened, step = simulator.transition(before, action, uniform)
        self._state = choose(before.done, opened, before)
        for index in before.done.nonzero().flatten().tolist() if self._traces else ():
            self._traces[index] = self._bridge.trace(self._state, index)
        return observed(step.observation)

    def _follow(self, before: State, state: State) -> None:
        for index, trace in enumerate(self._traces):
            if before.done[index]:
                self._traces[index] = self._bridge.trace(state, index)
            else:
                self._bridge.follow(trace, state, index)

    def render(self) -> tuple[NDArray[np.uint8] | str, ...] | None:
        """Return a picture or a line of each episode.

        Raises:
            gymnasium.error.ResetNeeded: before the first `reset`.
            ConfigError: if Pillow is not installed.
        """
        if self.render_mode is None:
            gymnasium.logger.warn(
                "`render` draws nothing without a `render_mode`, such as "
                '`gymnasium.make_vec("stormsail/Market-v0", render_mode="rgb_array")`.'
            )
            return None
        if not self._traces:
            raise reset_needed()
        if self.render_mode == "rgb_array":
            return tuple(draw(trace) for trace in self._traces)
        return tuple(one_line(trace) for trace in self._traces)


def _copied(values: Tensor) -> NDArray[Any]:
    """Return an array of its own: the tensor may be a part of the simulator's state."""
    return values.numpy().copy()


def _arrays(info: Info, *, ended: Flags) -> dict[str, Any]:
    """Return an info as arrays, each with the mask of the environments that have it."""
    arrays: dict[str, Any] = {}
    for name, value in info._asdict().items():
        if name == "terminal_observation":
            arrays[name], mask = observed(value), ended
        else:
            arrays[name] = _copied(value)
            mask = ~np.isnan(arrays[name]) if name in OPTIONAL_INFO else np.ones_like(ended)
        arrays[f"_{name}"] = mask.copy()
    if not arrays["_reward_clip_bound_fraction"].any():
        del arrays["reward_clip_bound_fraction"], arrays["_reward_clip_bound_fraction"]
    return arrays
