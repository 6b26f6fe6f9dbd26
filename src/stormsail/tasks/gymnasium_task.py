"""`GymnasiumTask`: any Gymnasium environment as a task, through its vector interface."""

import multiprocessing
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from stormsail.core.errors import ConfigError, DataError
from stormsail.core.task import Step
from stormsail.tasks import gymnasium_info
from stormsail.tasks.gymnasium_fit import FittingObservations, ObservationUnfitError
from stormsail.tasks.gymnasium_spaces import (
    ActionChoices,
    Array,
    ObservationColumns,
    action_choices,
    float_dtype,
)

CLOSE_SECONDS = 5.0
"""Time that worker processes are given to end by themselves."""


class GymnasiumState(NamedTuple):
    """The part of the state that is known here; the environments keep their own."""

    over: Tensor
    """Whether the last step ended the episode, bool [B]."""
    mask: Tensor
    """Actions that are allowed now, bool [B, D]; [B, 0] where the environment gives no masks."""


class GymnasiumInfo(NamedTuple):
    """Further results of a step."""

    sample_weight: Tensor
    """1, but 0 where the action was ignored because a new episode starts, [B]."""
    measured: Tensor
    """Numbers of the environments' `info`, [B, K]; NaN where there is none."""


class GymnasiumTask:
    """B copies of a Gymnasium environment.

    Observations of any nest of Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple become
    columns; actions are a Discrete, a MultiDiscrete, a MultiBinary or a Box with finite bounds.
    `docs/gymnasium.md` says how. Where `reset` gives `info["action_mask"]`, every step must.

    The environments keep their own state, which Gymnasium cannot save: a resumed run begins new
    episodes here, where every other task goes on bit for bit.

    Args:
        name: id in Gymnasium's registry, such as `CartPole-v1`.
        batch: number of environments.
        device: where the tensors live that come out.
        dtype: of observations and rewards.
        vectorization: `sync` steps one environment after the other in this process, `async` each
            in a process of its own. The results are the same.

    Raises:
        ConfigError: if the id is not known, or its spaces are of another kind.
    """

    is_capturable = False
    """The environments step on the host."""

    def __init__(
        self,
        name: str,
        *,
        batch: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        vectorization: Literal["sync", "async"] = "sync",
    ) -> None:
        self.name, self.batch, self.dtype = name, batch, dtype
        self.device = torch.device(device)
        self._choices, self._columns, self.info_names, self.episode_steps = _looked_through(name)
        self.actions, self.observation_layout = self._choices.actions, self._columns.layout
        self.observation_names = self.observation_layout.names
        self.observation_size = self.observation_layout.size
        self._masked: bool | None = None
        """Whether there are masks; known from the first reset on."""
        self._env: Any = _vector_env(name, batch, vectorization)

    def reset(self, generator: torch.Generator) -> tuple[GymnasiumState, Tensor]:
        """Start every environment with a seed of its own from the generator.

        Raises:
            DataError: if a mask is none, or an observation does not fit its space.
        """
        seed = torch.randint(2**31, (), generator=generator, device=generator.device)
        with self._fitting():
            observation, info = self._env.reset(seed=int(seed))
        if self._masked is None:
            self._masked = gymnasium_info.MASK in info
        over = np.zeros(self.batch, dtype=np.bool_)
        return self._state(over, info), self._seen(observation)

    def step(
        self, state: GymnasiumState, action: Tensor, generator: torch.Generator
    ) -> tuple[GymnasiumState, Step[GymnasiumInfo]]:
        """Do one action in each environment; the environments draw from their own seeds.

        Raises:
            ShapeError: if there is not one action for each environment.
            DtypeError: if the actions are of another type.
            RangeError: if an action is not on offer.
            DataError: if a mask is missing or none, or an observation does not fit its space.
        """
        del generator
        self.actions.check(action, batch=self.batch, dtype=self.dtype)
        bad = self.actions.bad(action) & ~state.over
        if bad.any():
            raise self.actions.refusal(action, bad)
        given = self._choices.given(action)
        with self._fitting():
            observation, reward, terminated, truncated, info = self._env.step(given)
        over = np.asarray(terminated, dtype=np.bool_) | np.asarray(truncated, dtype=np.bool_)
        ended = self._flags(terminated)
        cut = self._flags(truncated) & ~ended
        weight = (~state.over).to(self.dtype)
        rewards = torch.where(state.over, 0.0, self._numbers(reward))
        numbers = gymnasium_info.measured(info, self.info_names, self.batch)
        further = GymnasiumInfo(weight, self._numbers(numbers))
        return self._state(over, info), Step(self._seen(observation), rewards, ended, cut, further)

    def action_mask(self, state: GymnasiumState) -> Tensor | None:
        """Return the allowed actions of a state, bool [B, D]; None without masks."""
        return state.mask if state.mask.shape[-1] > 0 else None

    def close(self) -> None:
        """Let the environments go, and end their processes; those that do not answer are killed."""
        workers = getattr(self._env, "processes", ())
        try:
            self._env.close(**({"timeout": CLOSE_SECONDS} if workers else {}))
        except (EOFError, OSError):  # a worker is dead already, and its pipe with it
            pass
        finally:
            for worker in workers:
                if worker.is_alive():
                    worker.terminate()
                worker.join(CLOSE_SECONDS)

    @contextmanager
    def _fitting(self) -> Iterator[None]:
        """Turn an observation that does not fit its space into an error of ours."""
        try:
            yield
        except ObservationUnfitError as error:
            raise DataError(
                "data-defects",
                wrong=f"an observation of `{self.name}` must fit the environment's own space",
                found=str(error),
                remedy="Correct the environment, or its `observation_space`.",
            ) from None

    def _state(self, over: Array, info: dict[str, Any]) -> GymnasiumState:
        """Return the state after a step: the mask belongs to the observation of that step."""
        return GymnasiumState(self._flags(over), self._flags(self._mask(over, info)))

    def _mask(self, over: Array, info: dict[str, Any]) -> Array:
        there = info.get(f"_{gymnasium_info.MASK}", np.zeros(self.batch, dtype=np.bool_))
        if bool(self._masked) != bool((there & ~over).any()) and not over.all():
            raise _missing_mask(self.name, present=not self._masked)
        if not self._masked:
            return np.zeros((self.batch, 0), dtype=np.bool_)
        if (~there & ~over).any():
            raise _missing_mask(self.name, present=False)
        return self._choices.mask(info.get(gymnasium_info.MASK), there & ~over)

    def _seen(self, observation: Any) -> Tensor:  # noqa: ANN401 - whatever the environment gives
        return self._numbers(self._columns(observation, float_dtype(self.dtype)))

    def _numbers(self, values: Any) -> Tensor:  # noqa: ANN401 - whatever the environment gives
        return torch.as_tensor(np.array(values), dtype=self.dtype, device=self.device)

    def _flags(self, values: Any) -> Tensor:  # noqa: ANN401 - whatever the environment gives
        return torch.as_tensor(np.array(values), dtype=torch.bool, device=self.device)


def _looked_through(
    name: str,
) -> tuple[ActionChoices, ObservationColumns, tuple[str, ...], int | None]:
    """Return actions, columns, names of numbers and time limit of an environment, from one copy.

    The limit is that of its registration; None where it has none.
    """

    def refuse(problem: str) -> ConfigError:
        return _unfit(name, problem)

    if name.count(":") > 1 or not name:
        raise _misnamed(name)
    try:
        env: gymnasium.Env[Any, Any] = gymnasium.make(name)
    except gymnasium.error.Error as error:
        raise _answered(name, error) from None
    except Exception as error:  # the user's module or constructor may raise anything
        raise _not_made(name, error) from error
    try:
        choices = action_choices(env.action_space, refuse)
        columns = ObservationColumns(env.observation_space, refuse)
        limit = None if env.spec is None else env.spec.max_episode_steps
        return choices, columns, gymnasium_info.numeric_names(env), limit
    finally:
        env.close()


def _vector_env(name: str, batch: int, vectorization: str) -> Any:  # noqa: ANN401 - of Gymnasium
    options: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    if vectorization == "async":
        # A plain fork would copy locks that threads of torch hold, and a worker could wait forever.
        methods = multiprocessing.get_all_start_methods()
        options["context"] = "forkserver" if "forkserver" in methods else "spawn"
    try:
        return gymnasium.make_vec(
            name,
            num_envs=batch,
            vectorization_mode=vectorization,
            vector_kwargs=options,
            wrappers=(FittingObservations,),
        )
    except gymnasium.error.Error as error:
        raise _answered(name, error) from None


def _misnamed(name: str) -> ConfigError:
    return ConfigError(
        "config-value",
        wrong="`task.name` must be `gym:<id>`, or `gym:<module>:<id>` with a module to import",
        found=f"`gym:{name}`",
        remedy="Write for example `gym:CartPole-v1` or `gym:my_module:Mine-v0`.",
    )


def _not_made(name: str, error: Exception) -> ConfigError:
    """Return the refusal of an environment whose module or constructor failed, with the place."""
    module, colon, _ = name.partition(":")
    if isinstance(error, ModuleNotFoundError) and colon and error.name in (module, None):
        return ConfigError(
            "config-value",
            wrong=f"`task.name` must name a module that can be imported, and `{module}` is none",
            found=str(error).partition(". ")[0].rstrip("."),
            remedy=f"Start in the folder that holds `{module}.py`, or install the module.",
        )
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return ConfigError(
        "config-value",
        wrong=f"`task.name` must name an environment that can be made, and `{name}` cannot",
        found=f"{type(error).__name__}: {error}{place}",
        remedy="Correct it so that `gymnasium.make` returns it.",
    )


def _answered(name: str, error: gymnasium.error.Error) -> ConfigError:
    """Return the refusal of an environment that Gymnasium does not make."""
    answer = f"Gymnasium's answer: {str(error).rstrip('.')}"
    if isinstance(error, gymnasium.error.UnregisteredEnv | gymnasium.error.DeprecatedEnv):
        return ConfigError(
            "config-value",
            wrong=f"`task.name` must name an environment that Gymnasium has, and `{name}` is none",
            found=answer,
            remedy="Correct the id, or name the module that registers it: `gym:<module>:<id>`.",
        )
    return _unfit(name, answer)


def _unfit(name: str, found: str) -> ConfigError:
    return ConfigError(
        "config-value",
        wrong=f"`task.name` must name a Gymnasium environment that shows Box, Discrete, "
        f"MultiDiscrete, MultiBinary, Dict or Tuple and takes Discrete, MultiDiscrete, MultiBinary "
        f"or a Box with finite bounds, and `{name}` is none",
        found=found,
        remedy="Wrap it so that it has such spaces, and register the wrapped one.",
    )


def _missing_mask(name: str, *, present: bool) -> DataError:
    when = "by a step, but not by `reset`" if present else "not in every state that is acted in"
    return DataError(
        "data-defects",
        wrong=f'`{name}` must give `info["action_mask"]` with every observation, or never',
        found=f"it given {when}",
        remedy="Return the mask from `reset` and from every `step`, or from neither.",
    )
