"""Rollouts: T steps of B environments under the current policy, recorded for the update.

Rows follow the next-step rule of `core.task`. If step t ends an episode, row t + 1 shows its last
observation with the memory unbroken, so the value of that row is the bootstrap of step t, exact and
without a second forward pass. Row t + 1 itself has weight 0 and its action is ignored; row t + 2
begins a new episode and is the first with a reset memory.
"""

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stormsail.core.task import (
    Alternatives,
    Step,
    StepInfo,
    Task,
    account_names,
    action_mask,
    alternatives,
    info_names,
)
from stormsail.functional import statistics
from stormsail.functional.statistics import Moments
from stormsail.modules.agent import Agent, Draw


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


class _Row(NamedTuple):
    observation: Tensor
    raw: Tensor
    decision: Draw
    mask: Tensor
    step: Step[StepInfo]
    weight: Tensor
    reset: Tensor
    return_so_far: Tensor
    length: Tensor


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
    """
    initial = agent.initial_memory(task.batch)
    rows, memories, norms = [], [], []
    before: list[EnvState] = []
    for t in range(steps):
        norms.append(_hidden_norm(env_state.memory))
        env_state = _reset_memory(env_state, initial)
        if t % sequence_length == 0:
            memories.append(env_state.memory)
        if grid is not None:
            before.append(env_state)
        env_state, row = _advance(task, agent, env_state, generators)
        rows.append(row)
        if online:
            named = agent.named_columns(row.raw)
            agent.observation_scale.commit(statistics.moments(named, weight=row.weight))
    last = _reset_memory(env_state, initial)
    final = agent.decide(last.observation, last.memory, deterministic=True)
    norms_before = torch.stack(norms)
    resets = torch.stack([row.reset for row in rows])
    norms_after = torch.where(resets, _hidden_norm(initial), norms_before)
    norm = torch.stack((norms_before, norms_after), -1)
    raw = agent.named_columns(torch.stack([row.raw for row in rows]))
    weight = torch.stack([row.weight for row in rows])
    return env_state, _stacked(
        rows,
        memories,
        norm,
        final.predicted,
        statistics.moments(raw.flatten(0, 1), weight=weight.flatten()),
        info_names(task),
        _options(task, grid, before, rows, (final.features, agent.normalised(last.observation))),
    )


def _options(
    task: Task[Any],
    grid: Tensor | None,
    before: list[EnvState],
    rows: list[_Row],
    final: tuple[Tensor, Tensor],
) -> Options | None:
    """Return what the actions of a grid would have made of every step, all steps in one call."""
    if grid is None:
        return None
    reward = torch.stack([row.step.reward for row in rows])
    state, made = None, None
    if len(grid) > 0 and account_names(task):
        states = [env_state.state for env_state in before]
        kind, columns = type(states[0]), [torch.stack(part) for part in zip(*states, strict=True)]
        state = kind(*columns)
        made = alternatives(task, kind(*(column.flatten(0, 1) for column in columns)), grid)
    if made is None:
        ended = torch.stack([row.step.terminated for row in rows])
        step = Alternatives(
            reward[..., None], ended[..., None], reward.new_empty(*reward.shape, 1, 0)
        )
    else:
        step = Alternatives(*(part.unflatten(0, reward.shape) for part in made))
    features, seen = final
    return Options(
        step=step,
        state=None if made is None else state,
        observation=torch.stack([row.raw for row in rows]),
        features=torch.stack([*(row.decision.features for row in rows), features]),
        seen=torch.stack([*(row.observation for row in rows), seen]),
        memory=torch.stack([env_state.memory for env_state in before]),
    )


def _reset_memory(env_state: EnvState, initial: Tensor) -> EnvState:
    """Return the state with the initial memory where a new episode begins."""
    where = env_state.reset[:, None, None, None]
    return env_state._replace(memory=torch.where(where, initial, env_state.memory))


def _hidden_norm(memory: Tensor) -> Tensor:
    """Return the norm of each environment's hidden state over all layers, [B]."""
    norms: Tensor = torch.linalg.vector_norm(memory[:, :, 0], dim=(1, 2))
    return norms


def _advance(
    task: Task[Any],
    agent: Agent,
    env_state: EnvState,
    generators: tuple[torch.Generator, torch.Generator],
) -> tuple[EnvState, _Row]:
    seen = agent.normalised(env_state.observation)
    mask = action_mask(task, env_state.state)
    decision = agent.draw(
        seen, env_state.memory, deterministic=False, generator=generators[0], mask=mask
    )
    state, step = task.step(env_state.state, decision.action, generators[1])
    ends = step.terminated | step.truncated
    weight = torch.where(env_state.ignored, 0.0, step.info.sample_weight)
    length = env_state.length + ~env_state.ignored
    row = _Row(
        observation=seen,
        raw=env_state.observation,
        decision=decision,
        mask=env_state.ignored.new_empty(task.batch, 0) if mask is None else mask,
        step=step,
        weight=weight,
        reset=env_state.reset,
        return_so_far=env_state.return_so_far,
        length=length,
    )
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
    return after, row


def _stacked(
    rows: list[_Row],
    memories: list[Tensor],
    norms: Tensor,
    last: Tensor,
    seen: Moments,
    reported: tuple[str, ...],
    options: Options | None,
) -> Rollout:
    def column(name: str) -> Tensor:
        return torch.stack([getattr(row, name) for row in rows])

    def decided(name: str) -> Tensor:
        return torch.stack([getattr(row.decision, name) for row in rows])

    def stepped(name: str) -> Tensor:
        return torch.stack([getattr(row.step, name) for row in rows])

    predicted = decided("predicted")
    terminated, truncated = stepped("terminated"), stepped("truncated")
    return Rollout(
        observation=column("observation"),
        raw_action=decided("raw_action"),
        log_prob=decided("log_prob"),
        parameters=decided("parameters"),
        mask=column("mask"),
        predicted=predicted,
        next_predicted=torch.cat((predicted[1:], last[None])),
        reward=stepped("reward"),
        terminated=terminated,
        truncated=truncated,
        weight=column("weight"),
        reset=column("reset"),
        memory=torch.stack(memories),
        return_so_far=column("return_so_far"),
        ended=terminated | truncated,
        length=column("length"),
        info=_columns([row.step.info for row in rows], reported),
        hidden_norm=norms,
        seen=seen,
        options=options,
    )


REPORTED = "info/"
"""Begins the names of columns that a task wants to be reported as they are."""


def _columns(infos: list[StepInfo], reported: tuple[str, ...]) -> dict[str, Tensor]:
    """Return those parts of the task's info that are one number a row, and its `measured` ones."""
    names: tuple[str, ...] = infos[0]._fields  # type: ignore[attr-defined]
    columns = {name: [getattr(info, name) for info in infos] for name in names}
    kept = {name: torch.stack(parts) for name, parts in columns.items() if parts[0].ndim == 1}
    if reported:
        measured = torch.stack(columns["measured"]).unbind(-1)
        kept |= {f"{REPORTED}{name}": x for name, x in zip(reported, measured, strict=True)}
    return kept


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
