"""What the steps of a critic of all actions look at, and in which order."""

from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

BATCH = 256
"""Of them in one step of the optimizer."""

EPOCHS = 4
"""How often each is used."""


class Targets(NamedTuple):
    """Inputs and parts of the targets for n steps; nothing of it changes while it is learned."""

    own: Tensor
    """Inputs before the step, [n, X]."""
    following: Tensor
    """Inputs after each action, [n, K, X]."""
    probability: Tensor
    """Of every action in the state before the step, [n, K]."""
    reward: Tensor
    """Of both kinds, [n, K, R]."""
    discount: Tensor
    """Of what follows, 0 where nothing does, [n, K, R]."""
    ceiling: Tensor
    """Highest possible value, [n, 1, R]."""
    weight: Tensor
    """[n]."""


class Lesson(NamedTuple):
    """What n remembered steps teach."""

    own: Tensor
    """Inputs before the step, [n, X]."""
    value: Tensor
    """Of both rewards under the policy, [n, R]."""
    added: Tensor
    """What each action adds to the shortfall, about their mean, [n, K]."""
    weight: Tensor
    """[n]."""


class Followed(NamedTuple):
    """States of the newest rollout, and what followed them."""

    own: Tensor
    """Inputs, [n, X]."""
    wanted: Tensor
    """What they earned, and added to the shortfall, [n, R]."""
    weight: Tensor
    """[n]."""


class Branched(NamedTuple):
    """States of the newest rollout, and what every action led to."""

    own: Tensor
    """Inputs, [n, X]."""
    added: Tensor
    """What each action added to the shortfall of the episode, about their mean, [n, K]."""


_States = TypeVar("_States", Followed, Branched)


class Lessons(NamedTuple):
    """All that the steps of one round of learning are made of."""

    targets: Targets
    orders: tuple[Tensor, ...]
    """Of the remembered steps in each epoch, int64 [n]."""
    followed: tuple[Followed | None, ...]
    """States of each epoch, in its order."""
    branched: tuple[Branched | None, ...]


def draw_lessons(
    targets: Targets,
    followed: Followed | None,
    branched: Branched | None,
    generator: torch.Generator,
) -> Lessons:
    """Draw the order of every epoch, and the states that it looks at beside."""
    count, device = len(targets.weight), targets.weight.device
    rows = -(-count // BATCH) * BATCH
    epochs = []
    for _ in range(EPOCHS):
        order = torch.randperm(count, generator=generator, device=generator.device)
        states = _shuffled(followed, rows, generator)
        epochs.append((order.to(device), states, _shuffled(branched, rows, generator)))
    return Lessons(targets, *zip(*epochs, strict=True))


def _shuffled(states: _States | None, most: int, generator: torch.Generator) -> _States | None:
    """Return some of the states, in another order."""
    if states is None:
        return None
    order = torch.randperm(len(states.own), generator=generator, device=generator.device)
    chosen = order[:most].to(states.own.device)
    return type(states)(*(column[chosen] for column in states))


def split(states: _States | None, parts: int) -> list[_States | None]:
    """Return the states of each step of an epoch."""
    if states is None:
        return [None] * parts
    pieces = zip(*(column.tensor_split(parts) for column in states), strict=True)
    return [type(states)(*piece) for piece in pieces]
