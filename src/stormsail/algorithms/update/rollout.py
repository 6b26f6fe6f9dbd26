"""Rollouts: T steps of B environments under the current policy, recorded for the update.

Rows follow the next-step rule of `core.task`. If step t ends an episode, row t + 1 shows its last
observation with the memory unbroken, so the value of that row is the bootstrap of step t, exact and
without a second forward pass. Row t + 1 itself has weight 0 and its action is ignored; row t + 2
begins a new episode and is the first with a reset memory.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stormsail.algorithms.update.adversary import Forger
from stormsail.core.precision import network_precision
from stormsail.core.task import (
    Alternatives,
    StepInfo,
    Task,
    account_names,
    action_mask,
    alternatives,
    columns_of,
    info_names,
)
from stormsail.functional import statistics
from stormsail.functional.kernels.layers.steady_weights import steady_weights
from stormsail.functional.statistics import Moments
from stormsail.modules.agent import Agent
from stormsail.modules.scale import Held


@dataclass(frozen=True, eq=False)
class Options:
    """What every action would have made of each step of a rollout, and what was known before it."""

    step: Alternatives
    """[T, B, K, ...] each."""
    state: Any
    """The task's own before each step, [T, B, ...] each; None of a task without `alternatives`."""
    observation: Tensor
    """As the task gave it, [T, B, F]."""
    features: Tensor
    """Output of the actor's memory, [T + 1, B, H]; the last row belongs to the coming step."""
    seen: Tensor
    """Normalised observations, [T + 1, B, F]."""
    memory: Tensor
    """Before each step, [T, B, L, P, H]."""


@dataclass(frozen=True, eq=False)
class Rollout:
    """Transitions of one rollout, time first."""

    observation: Tensor
    """Normalised as the network saw it, [T, B, F]."""
    raw_action: Tensor
    """[T, B] or [T, B, A]."""
    log_prob: Tensor
    """[T, B]."""
    parameters: Tensor
    """Of the distribution that actions were drawn from, [T, B, D]."""
    mask: Tensor
    """Actions that were allowed in the state of each row, bool [T, B, D]; [T, B, 0] of a task
    without masks."""
    predicted: Tensor
    """Output of each critic, normalised, [T, B, C, W]."""
    next_predicted: Tensor
    """The same for the next state of each step, [T, B, C, W]."""
    reward: Tensor
    """[T, B]."""
    terminated: Tensor
    """bool [T, B]."""
    truncated: Tensor
    """bool [T, B]."""
    weight: Tensor
    """0 for rows that are not learned from, [T, B]."""
    reset: Tensor
    """Rows that begin with a reset memory, bool [T, B]."""
    memory: Tensor
    """State before the first row of each training sequence, [S, B, L, P, H]."""
    return_so_far: Tensor
    """Sum of the episode's rewards before each step, [T, B]."""
    ended: Tensor
    """Whether the step ended an episode, bool [T, B]."""
    length: Tensor
    """Steps of the episode so far, this one included, int64 [T, B]."""
    info: dict[str, Tensor]
    """Further columns of the task, [T, B] each."""
    hidden_norm: Tensor
    """Norm of the hidden state before and after the reset rule, [T, B, 2]; they differ in rows with
    a reset."""
    seen: Moments
    """Of the raw observations of all rows with weight, without pixels."""
    options: Options | None = None
    """Where they were asked for and the task can say."""
    forged: Tensor | None = None
    """Size of the perturbations, [T, B]; None of a rollout that nobody forged."""


class EnvState(NamedTuple):
    """State of the environments and of the agent's memory between two rollouts; saved whole."""

    state: Any
    """The task's own, a named tuple of tensors."""
    observation: Tensor
    """[B, F]."""
    memory: Tensor
    """[B, L, P, H]."""
    ignored: Tensor
    """Whether the coming step only starts a new episode, bool [B]."""
    reset: Tensor
    """Whether the coming row begins with a reset memory, bool [B]."""
    return_so_far: Tensor
    """Sum of the rewards of the running episode, float64 [B]."""
    length: Tensor
    """Steps of it, int64 [B]."""


LARGE = 1 << 17
"""Numbers of a column from which on it is copied by itself: a call for many columns has too few
programs for a large one."""

PIECE = 1 << 13
"""Numbers of a column that one program of a call for many columns copies: on a GPU it has one for
each tensor that it is given, and the longest is what the call takes."""


class _Table:
    """Columns [T, B, ...] that are written row by row, in memory that is taken once.

    Args:
        rows: T.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.columns: dict[str, Tensor] = {}
        self._groups: list[tuple[list[str], list[tuple[Tensor, ...]]]] = []
        self._large: dict[str, tuple[Tensor, ...]] = {}

    def write(self, t: int, row: dict[str, Tensor]) -> None:
        """Write a row; the first one fixes shapes and types."""
        if not self.columns:
            self._open(row)
        for names, places in self._groups:  # one call for a type: few kernels on a GPU
            torch._foreach_copy_(
                _pieces(place[t] for place in places), _pieces(row[name] for name in names)
            )
        for name, own in self._large.items():
            own[t].copy_(row[name])

    def _open(self, row: dict[str, Tensor]) -> None:
        self.columns = {
            name: value.new_empty(self._rows, *value.shape) for name, value in row.items()
        }
        small = {name: value for name, value in row.items() if value.numel() < LARGE}
        self._large = {name: self.columns[name].unbind() for name in row if name not in small}
        for kind in dict.fromkeys(value.dtype for value in small.values()):
            names = [name for name, value in small.items() if value.dtype == kind]
            self._groups.append((names, [self.columns[name].unbind() for name in names]))


class _Kept:
    """Columns [T, B, ...] of rows that stay as they are, put together when all are there."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Tensor]] = []
        self._columns: dict[str, Tensor] = {}

    def write(self, t: int, row: dict[str, Tensor]) -> None:
        """Keep row t, which comes after row t - 1."""
        del t
        self._rows.append(row)

    @property
    def columns(self) -> dict[str, Tensor]:
        """All columns; no row may follow."""
        if not self._columns and self._rows:
            names = self._rows[0]
            self._columns = {name: torch.stack([row[name] for row in self._rows]) for name in names}
        return self._columns


def _pieces(columns: Iterable[Tensor]) -> list[Tensor]:
    """Return columns [B, ...] as pieces of whole environments of about `PIECE` numbers, views."""
    pieces: list[Tensor] = []
    for column in columns:
        if column.numel() <= PIECE:
            pieces.append(column)
        else:
            pieces += column.split(max(PIECE * len(column) // column.numel(), 1))
    return pieces


@torch.no_grad()  # else a learned initial memory would be tied to the stream of this call
def begin(task: Task[Any], agent: Agent, generator: torch.Generator) -> EnvState:
    """Reset every environment and return its first state."""
    state, observation = task.reset(generator)
    batch, device = task.batch, task.device
    flags = torch.zeros(batch, dtype=torch.bool, device=device)
    return EnvState(
        state=state,
        observation=observation,
        memory=agent.initial_memory(batch),
        ignored=flags,
        reset=flags.clone(),
        return_so_far=torch.zeros(batch, dtype=torch.float64, device=device),
        length=torch.zeros(batch, dtype=torch.int64, device=device),
    )


@torch.no_grad()
def collect(
    task: Task[Any],
    agent: Agent,
    env_state: EnvState,
    *,
    steps: int,
    sequence_length: int,
    generators: tuple[torch.Generator, torch.Generator],
    online: bool = False,
    grid: Tensor | None = None,
    precision: str = "float32",
    play: "Play | None" = None,
    forger: Forger | None = None,
) -> tuple[EnvState, Rollout]:
    """Take T steps in every environment; return the state after them and the transitions.

    Args:
        task: the environments.
        agent: draws the actions; its statistics stay as they are, unless `online`.
        env_state: from `begin`, or from the call before.
        steps: T.
        sequence_length: rows of a training sequence; the memory before each is kept.
        generators: of actions, and of the task.
        online: merge each observation into the statistics as it comes.
        grid: actions of which it is recorded what each would have made of every step, [K]. An empty
            one, or a task without `alternatives`, records the taken action alone; None nothing.
        precision: of the network.
        play: takes one step, into memory that nobody writes into again; None takes `played`.
        forger: of what the agent and its critics are shown; the task goes on from its true state,
            and statistics of observations are those of true ones. None shows the truth. A `play`
            of its own shows the truth.
    """
    initial = agent.initial_memory(task.batch)
    stays = play is not None
    if play is None:
        # a statistic that moves within the rollout cannot be held
        held = None if online else agent.observation_scale.held()
        play = partial(played, task, agent, initial, generators, held=held, forger=forger)
    # within: what a captured graph reads must be converted by the graph itself
    with network_precision(precision, task.device), steady_weights():
        return _collect(
            task,
            agent,
            env_state,
            steps,
            sequence_length,
            play,
            initial,
            grid,
            forger,
            online=online,
            stays=stays,
        )


def _collect(
    task: Task[Any],
    agent: Agent,
    env_state: EnvState,
    steps: int,
    sequence_length: int,
    play: "Play",
    initial: Tensor,
    grid: Tensor | None,
    forger: Forger | None,
    *,
    online: bool,
    stays: bool,
) -> tuple[EnvState, Rollout]:
    valued = grid is not None and len(grid) > 0 and bool(account_names(task))
    before = _Table(-(-steps // sequence_length))
    rows, states, outputs = (
        _Kept() if stays else _Table(count) for count in (steps, steps, steps + 1)
    )
    for t in range(steps):
        kind, state = type(env_state.state), env_state.state
        if t % sequence_length == 0 or grid is not None:
            memory = _reset_memory(env_state, initial).memory
        env_state, row, output = play(env_state)
        if t % sequence_length == 0:
            before.write(t // sequence_length, {"memory": memory})
        if grid is not None:
            own = _tensors(state) if valued else {}
            states.write(t, {**own, _MEMORY: memory})
        rows.write(t, row)
        shown = tuple(output) if grid is not None else ("predicted",)
        outputs.write(t, {name: output[name] for name in shown})
        if online:
            named = agent.named_columns(row["raw"])
            agent.observation_scale.commit(statistics.moments(named, weight=row["weight"]))
    last = _reset_memory(env_state, initial)
    true = agent.normalised(last.observation)
    seen = _shown(agent, true, last.memory, action_mask(task, last.state), forger)
    final = agent.draw(seen, last.memory, deterministic=True)
    output = {"predicted": final.predicted, "features": final.features, "seen": seen}
    outputs.write(steps, {name: output[name] for name in shown})
    columns = rows.columns
    norm = columns["norm"]
    norms = torch.stack((norm, torch.where(columns["reset"], _hidden_norm(initial), norm)), -1)
    named = agent.named_columns(columns["raw"])
    options = None
    if grid is not None:
        options = _options(task, grid, states.columns, columns, outputs.columns, kind)
    terminated, truncated = columns["terminated"], columns["truncated"]
    predicted = outputs.columns["predicted"]
    return env_state, Rollout(
        observation=columns["observation"],
        raw_action=columns["raw_action"],
        log_prob=columns["log_prob"],
        parameters=columns["parameters"],
        mask=columns["mask"],
        predicted=predicted[:-1],
        next_predicted=predicted[1:].clone(),
        reward=columns["reward"],
        terminated=terminated,
        truncated=truncated,
        weight=columns["weight"],
        reset=columns["reset"],
        memory=before.columns["memory"],
        return_so_far=columns["return_so_far"],
        ended=terminated | truncated,
        length=columns["length"],
        info=_reported(columns, info_names(task)),
        hidden_norm=norms,
        seen=statistics.moments(named.flatten(0, 1), weight=columns["weight"].flatten()),
        options=options,
        forged=None if forger is None else columns["forged"],
    )


_INFO = "info."
"""Begins the names of a task's own columns in a table."""

_STATE = "state."
"""Begins the names of a task's state in a table."""

_MEMORY = "memory"


def _tensors(state: Any) -> dict[str, Tensor]:  # noqa: ANN401 - a named tuple of the task's own
    return {f"{_STATE}{name}": part for name, part in state._asdict().items()}


def _options(
    task: Task[Any],
    grid: Tensor,
    states: dict[str, Tensor],
    columns: dict[str, Tensor],
    outputs: dict[str, Tensor],
    kind: type[Any],
) -> Options:
    """Return what the actions of a grid would have made of every step, all steps in one call."""
    reward = columns["reward"]
    state, made = None, None
    if len(states) > 1:
        own = [part for name, part in states.items() if name.startswith(_STATE)]
        state = kind(*own)
        made = alternatives(task, kind(*(part.flatten(0, 1) for part in own)), grid)
    if made is None:
        ended = columns["terminated"]
        step = Alternatives(
            reward[..., None], ended[..., None], reward.new_empty(*reward.shape, 1, 0)
        )
    else:
        step = Alternatives(*(part.unflatten(0, reward.shape) for part in made))
    return Options(
        step=step,
        state=None if made is None else state,
        observation=columns["raw"],
        features=outputs["features"],
        seen=outputs["seen"],
        memory=states[_MEMORY],
    )


def _reset_memory(env_state: EnvState, initial: Tensor) -> EnvState:
    """Return the state with the initial memory where a new episode begins."""
    where = env_state.reset[:, None, None, None]
    return env_state._replace(memory=torch.where(where, initial, env_state.memory))


def _hidden_norm(memory: Tensor) -> Tensor:
    """Return the norm of each environment's hidden state over all layers, [B]."""
    norms: Tensor = torch.linalg.vector_norm(memory[:, :, 0], dim=(1, 2))
    return norms


class Played(NamedTuple):
    """One step in every environment."""

    after: EnvState
    """State after it."""
    row: dict[str, Tensor]
    """Its columns of a rollout."""
    output: dict[str, Tensor]
    """The network's, before it."""


Play = Callable[[EnvState], Played]
"""Takes one step."""


def played(
    task: Task[Any],
    agent: Agent,
    initial: Tensor,
    generators: tuple[torch.Generator, torch.Generator],
    env_state: EnvState,
    *,
    held: Held | None = None,
    forger: Forger | None = None,
) -> Played:
    """Take a step.

    Args:
        task: the environments.
        agent: draws the actions.
        initial: memory at an episode's start.
        generators: of actions, and of the task.
        env_state: before the step.
        held: statistics of observations, where they stay as they are; None takes those of now.
        forger: of what the agent is shown; None shows the truth.
    """
    norm, reset = _hidden_norm(env_state.memory), env_state.reset
    if forger is not None:  # the agent itself resets its memory, as it does within a sequence
        env_state = _reset_memory(env_state, initial)
    true = agent.normalised(env_state.observation, held)
    mask = action_mask(task, env_state.state)
    seen = _shown(agent, true, env_state.memory, mask, forger)
    decision = agent.draw(
        seen,
        env_state.memory,
        deterministic=False,
        generator=generators[0],
        mask=mask,
        columns=columns_of(task),
        reset=reset,
    )
    state, step = task.step(env_state.state, decision.action, generators[1])
    ends = step.terminated | step.truncated
    length = env_state.length + ~env_state.ignored
    row = {
        "observation": seen,
        "raw": env_state.observation,
        "raw_action": decision.raw_action,
        "log_prob": decision.log_prob,
        "parameters": decision.parameters,
        "mask": env_state.ignored.new_empty(task.batch, 0) if mask is None else mask,
        "reward": step.reward,
        "terminated": step.terminated,
        "truncated": step.truncated,
        "weight": torch.where(env_state.ignored, 0.0, step.info.sample_weight),
        "return_so_far": env_state.return_so_far,
        "length": length,
        **_recorded(step.info, info_names(task)),
        "reset": reset,
        "norm": norm,
    }
    if forger is not None:
        row["forged"] = forger.size(seen - true)
    total = env_state.return_so_far + torch.where(env_state.ignored, 0.0, step.reward)
    after = EnvState(
        state=state,
        observation=step.observation,
        memory=decision.memory,
        ignored=ends,
        reset=env_state.ignored,
        return_so_far=torch.where(ends, 0.0, total),
        length=torch.where(ends, 0, length),
    )
    output = {"predicted": decision.predicted, "features": decision.features, "seen": seen}
    return Played(after, row, output)


def _shown(
    agent: Agent, true: Tensor, memory: Tensor, mask: Tensor | None, forger: Forger | None
) -> Tensor:
    """Return what the agent is shown of normalised observations."""
    return true if forger is None else forger.forge(agent, true, memory, mask)


REPORTED = "info/"
"""Begins the names of columns that a task wants to be reported as they are."""


MEASURED = "measured"
"""Field of a step's info with what a task reports itself, [B, K]."""


def _recorded(info: StepInfo, reported: tuple[str, ...]) -> dict[str, Tensor]:
    """Return those parts of the task's info that are one number a row, and its `measured` ones."""
    parts: dict[str, Tensor] = info._asdict()  # type: ignore[attr-defined]
    return {
        f"{_INFO}{name}": part
        for name, part in parts.items()
        if part.ndim == 1 or (reported and name == MEASURED)
    }


def _reported(columns: dict[str, Tensor], reported: tuple[str, ...]) -> dict[str, Tensor]:
    """Return the task's own columns, each of its `measured` ones under its name."""
    own = {
        name.removeprefix(_INFO): column
        for name, column in columns.items()
        if name.startswith(_INFO)
    }
    if reported:
        measured = own.pop(MEASURED).unbind(-1)
        own |= {f"{REPORTED}{name}": x for name, x in zip(reported, measured, strict=True)}
    return own


def sequences(rollout: Rollout, length: int) -> Rollout:
    """Return the rollout cut into training sequences, [length, S * B, ...], each with its memory.

    Sequences of the same rows are neighbours; `memory` becomes [S * B, L, P, H].
    """
    parts = {}
    for field in fields(rollout):
        value = getattr(rollout, field.name)
        if field.name == "memory":
            value = value.flatten(0, 1)
        elif isinstance(value, Tensor):
            value = cut_rows(value, length)
        elif isinstance(value, dict):
            value = {name: cut_rows(part, length) for name, part in value.items()}
        parts[field.name] = value
    return Rollout(**parts)


def cut_rows(value: Tensor, length: int) -> Tensor:
    """Return [T, B, ...] as sequences [length, S * B, ...]."""
    rows, batch = value.shape[:2]
    pieces = value.reshape(rows // length, length, *value.shape[1:]).transpose(0, 1)
    return pieces.reshape(length, rows // length * batch, *value.shape[2:])
