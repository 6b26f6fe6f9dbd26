"""Playing: T steps of B environments with one policy, written down for learning.

Rows follow the next-step rule of `core.task`. If step t ends an episode, row t + 1 shows its last
observation with the memory unbroken, so the value of that row is the bootstrap of step t, exact and
without a second pass. Row t + 1 itself has weight 0 and its action is ignored; row t + 2 begins a
new episode and is the first with a fresh memory.
"""

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stormsail.core.task import Step, StepInfo, Task
from stormsail.functional import statistics
from stormsail.functional.statistics import Moments
from stormsail.modules.agent import Agent, Draw


@dataclass(frozen=True, eq=False)
class Rollout:
    """What happened, time first."""

    observation: Tensor
    """Normalised as the network saw it, [T, B, F]."""
    raw_action: Tensor
    """[T, B] or [T, B, A]."""
    log_prob: Tensor
    """[T, B]."""
    parameters: Tensor
    """Of the distribution that actions came from, [T, B, D]."""
    predicted: Tensor
    """What each critic said, normalised, [T, B, C, W]."""
    reached: Tensor
    """The same for the state that each step reached, [T, B, C, W]."""
    reward: Tensor
    """[T, B]."""
    terminated: Tensor
    """bool [T, B]."""
    truncated: Tensor
    """bool [T, B]."""
    weight: Tensor
    """0 for rows that are not learned from, [T, B]."""
    reset: Tensor
    """Rows that begin with a fresh memory, bool [T, B]."""
    memory: Tensor
    """State before the first row of each training sequence, [S, B, L, P, H]."""
    earned: Tensor
    """Rewards of the episode before each step, [T, B]."""
    ended: Tensor
    """Whether the step ended an episode, bool [T, B]."""
    length: Tensor
    """Steps of the episode so far, this one included, int64 [T, B]."""
    info: dict[str, Tensor]
    """Further columns of the task, [T, B] each."""
    hidden_norm: Tensor
    """Length of the hidden state as it was found and as the row began with it, [T, B, 2]; they
    differ where a fresh memory was put in its place."""
    seen: Moments
    """Of the raw observations of all rows with weight."""


class Play(NamedTuple):
    """Where the environments stand between two rollouts. All of it is saved and restored."""

    state: Any
    """The task's own, a named tuple of tensors."""
    observation: Tensor
    """[B, F]."""
    memory: Tensor
    """[B, L, P, H]."""
    ignored: Tensor
    """Whether the coming step only starts a new episode, bool [B]."""
    reset: Tensor
    """Whether the coming row begins with a fresh memory, bool [B]."""
    earned: Tensor
    """Rewards of the running episode, float64 [B]."""
    length: Tensor
    """Steps of it, int64 [B]."""


class _Row(NamedTuple):
    observation: Tensor
    raw: Tensor
    decision: Draw
    step: Step[StepInfo]
    weight: Tensor
    reset: Tensor
    earned: Tensor
    length: Tensor


def begin(task: Task[Any], agent: Agent, generator: torch.Generator) -> Play:
    """Start every environment."""
    state, observation = task.reset(generator)
    batch, device = task.batch, task.device
    flags = torch.zeros(batch, dtype=torch.bool, device=device)
    return Play(
        state=state,
        observation=observation,
        memory=agent.initial_memory(batch),
        ignored=flags,
        reset=flags.clone(),
        earned=torch.zeros(batch, dtype=torch.float64, device=device),
        length=torch.zeros(batch, dtype=torch.int64, device=device),
    )


@torch.no_grad()
def collect(
    task: Task[Any],
    agent: Agent,
    play: Play,
    *,
    steps: int,
    sequence_length: int,
    generators: tuple[torch.Generator, torch.Generator],
    online: bool = False,
) -> tuple[Play, Rollout]:
    """Play T steps; return where the environments stand, and what happened.

    Args:
        task: what is played.
        agent: who plays; its statistics stay as they are, unless `online`.
        play: from `begin`, or the call before.
        steps: T.
        sequence_length: rows of a training sequence; the memory before each is kept.
        generators: of actions, and of the task.
        online: take each observation into the statistics as it comes.
    """
    initial = agent.initial_memory(task.batch)
    rows, memories, norms = [], [], []
    for t in range(steps):
        norms.append(_hidden_norm(play.memory))
        play = _fresh(play, initial)
        if t % sequence_length == 0:
            memories.append(play.memory)
        play, row = _advance(task, agent, play, generators)
        rows.append(row)
        if online:
            agent.observation_scale.commit(statistics.moments(row.raw, weight=row.weight))
    last = _fresh(play, initial)
    final = agent.decide(last.observation, last.memory, deterministic=True)
    found = torch.stack(norms)
    used = torch.where(torch.stack([row.reset for row in rows]), _hidden_norm(initial), found)
    return play, _written(rows, memories, torch.stack((found, used), -1), final.predicted)


def _fresh(play: Play, initial: Tensor) -> Play:
    """Return the play with fresh memories where a new episode begins."""
    where = play.reset[:, None, None, None]
    return play._replace(memory=torch.where(where, initial, play.memory))


def _hidden_norm(memory: Tensor) -> Tensor:
    """Return the length of each environment's hidden state over all layers, [B]."""
    lengths: Tensor = torch.linalg.vector_norm(memory[:, :, 0], dim=(1, 2))
    return lengths


def _advance(
    task: Task[Any],
    agent: Agent,
    play: Play,
    generators: tuple[torch.Generator, torch.Generator],
) -> tuple[Play, _Row]:
    seen = agent.normalised(play.observation)
    decision = agent.draw(seen, play.memory, deterministic=False, generator=generators[0])
    state, step = task.step(play.state, decision.action, generators[1])
    ends = step.terminated | step.truncated
    weight = torch.where(play.ignored, 0.0, step.info.sample_weight)
    length = play.length + ~play.ignored
    row = _Row(
        observation=seen,
        raw=play.observation,
        decision=decision,
        step=step,
        weight=weight,
        reset=play.reset,
        earned=play.earned,
        length=length,
    )
    earned = play.earned + torch.where(play.ignored, 0.0, step.reward)
    after = Play(
        state=state,
        observation=step.observation,
        memory=decision.memory,
        ignored=ends,
        reset=play.ignored,
        earned=torch.where(ends, 0.0, earned),
        length=torch.where(ends, 0, length),
    )
    return after, row


def _written(rows: list[_Row], memories: list[Tensor], norms: Tensor, last: Tensor) -> Rollout:
    def column(name: str) -> Tensor:
        return torch.stack([getattr(row, name) for row in rows])

    def decided(name: str) -> Tensor:
        return torch.stack([getattr(row.decision, name) for row in rows])

    def stepped(name: str) -> Tensor:
        return torch.stack([getattr(row.step, name) for row in rows])

    predicted = decided("predicted")
    terminated, truncated = stepped("terminated"), stepped("truncated")
    raw, weight = column("raw"), column("weight")
    return Rollout(
        observation=column("observation"),
        raw_action=decided("raw_action"),
        log_prob=decided("log_prob"),
        parameters=decided("parameters"),
        predicted=predicted,
        reached=torch.cat((predicted[1:], last[None])),
        reward=stepped("reward"),
        terminated=terminated,
        truncated=truncated,
        weight=weight,
        reset=column("reset"),
        memory=torch.stack(memories),
        earned=column("earned"),
        ended=terminated | truncated,
        length=column("length"),
        info=_columns([row.step.info for row in rows]),
        hidden_norm=norms,
        seen=statistics.moments(raw.flatten(0, 1), weight=weight.flatten()),
    )


def _columns(infos: list[StepInfo]) -> dict[str, Tensor]:
    """Return those parts of the task's info that are one number a row."""
    names: tuple[str, ...] = infos[0]._fields  # type: ignore[attr-defined]
    found = {name: [getattr(info, name) for info in infos] for name in names}
    return {name: torch.stack(parts) for name, parts in found.items() if parts[0].ndim == 1}


def sequences(rollout: Rollout, length: int) -> Rollout:
    """Return the rollout cut into sequences, [length, S * B, ...], with a memory for each.

    Sequences of one piece of time are neighbours; `memory` becomes [S * B, L, P, H].
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
