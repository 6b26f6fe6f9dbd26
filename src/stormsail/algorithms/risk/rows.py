"""Memory of steps for the values of all actions: those of the last rollouts, the worst draws first.

A rollout leaves R of its N rows: the R / 4 with the lowest reward of any action are kept for sure,
the others are drawn without replacement. Every kept row has the inverse of its probability to be
kept as its weight, so that weighted sums have the rollout's own as their mean: rare events are
always there, and count no more than they happened.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from stormsail.algorithms.update.rollout import Rollout
from stormsail.modules.agent import Agent

ROWS = 1024
"""R: most rows that are kept of one rollout."""

TAIL_SHARE = 0.25
"""Share of them that are the worst draws."""


class Rows(NamedTuple):
    """Steps of the past, n of them; K actions."""

    seen: Tensor
    """Normalised observations before and after the step, [n, 2, F]."""
    memory: Tensor
    """Of the agent before the step, [n, L, P, H]."""
    reward: Tensor
    """Of every action, [n, K]."""
    terminated: Tensor
    """Of every action, bool [n, K]."""
    account: Tensor
    """Columns after every action, normalised, [n, K, P]."""
    return_so_far: Tensor
    """What the episode had earned before the step, float32 [n]."""
    elapsed: Tensor
    """Steps of the episode before this one, float32 [n]."""
    last: Tensor
    """Whether the time limit ends the episode with this step, bool [n]."""
    raw_action: Tensor
    """The one that was taken, [n, A]."""
    log_prob: Tensor
    """Of it, under the policy that took it, [n]."""
    weight: Tensor
    """Inverse of the probability to be kept, times the weight of the row, [n]; 0 for an empty
    place."""


class Selection(NamedTuple):
    """Rows of a rollout that are kept."""

    places: Tensor
    """Places in the flat rollout, int64 [R]; the worst draws first."""
    weight: Tensor
    """Inverse of the probability to be kept, [R]; 0 where no row was left."""


def select_rows(
    score: Tensor, valid: Tensor, *, tail: int, rest: int, generator: torch.Generator
) -> Selection:
    """Return which of N rows are kept: the `tail` lowest scores, and `rest` of the others drawn.

    Static shapes and no host sync: where fewer rows are valid, places stay empty with weight 0.

    Args:
        score: [N]; lower is worse.
        valid: rows that count at all, bool [N].
        tail: rows that are kept for sure.
        rest: rows that are drawn without replacement, each with the same probability.
        generator: of the draw.
    """
    worst = torch.where(valid, score, torch.inf).topk(tail, largest=False).indices
    key = torch.rand(score.shape, generator=generator, device=score.device, dtype=score.dtype)
    key = torch.where(valid, key, -1.0).index_fill(0, worst, -1.0)
    drawn = key.topk(rest)
    others = (key >= 0.0).sum()
    weight = torch.where(drawn.values >= 0.0, (others / rest).clamp(min=1.0), 0.0)
    return Selection(
        torch.cat((worst, drawn.indices)),
        torch.cat((valid[worst].to(score.dtype), weight.to(score.dtype))),
    )


class RowMemory:
    """The kept rows of the last rollouts.

    Args:
        rollouts: how many rollouts are remembered.
    """

    def __init__(self, rollouts: int) -> None:
        self.rollouts = rollouts
        self.added = 0
        """Rollouts so far."""
        self.newest = 0
        """Rows that the last one had."""
        self.table: Rows | None = None
        """[rollouts, R, ...] each, the worst draws of each rollout first; written in a circle."""

    @property
    def filled(self) -> int:
        """Rollouts that are remembered."""
        return min(self.added, self.rollouts)

    def add(
        self, agent: Agent, rollout: Rollout, horizon: int | None, generator: torch.Generator
    ) -> None:
        """Add a rollout that has `options`; the oldest leaves where there are too many."""
        options = rollout.options
        if options is None:
            return
        count = self.newest = rollout.reward.numel()
        size = min(count, ROWS)
        tail = max(int(size * TAIL_SHARE), 1)
        reward = options.step.reward.flatten(0, 1)
        chosen = select_rows(
            reward.amin(-1),
            rollout.weight.flatten() > 0.0,
            tail=tail,
            rest=size - tail,
            generator=generator,
        )
        seen = torch.stack((options.seen[:-1], options.seen[1:]), 2).flatten(0, 1)
        last = rollout.truncated if horizon is None else rollout.length >= horizon
        table = Rows(
            seen=seen,
            memory=options.memory.flatten(0, 1),
            reward=reward,
            terminated=options.step.terminated.flatten(0, 1),
            account=scaled_account(agent, options.step.account).flatten(0, 1),
            return_so_far=rollout.return_so_far.float().flatten(),
            elapsed=(rollout.length - 1).float().flatten(),
            last=(last | rollout.truncated).flatten(),
            raw_action=rollout.raw_action.reshape(count, -1),
            log_prob=rollout.log_prob.flatten(),
            weight=rollout.weight.flatten(),
        )
        rows = Rows(*(column[chosen.places] for column in table))
        rows = rows._replace(weight=rows.weight * chosen.weight)
        if self.table is None:
            self.table = Rows(*(x.new_zeros(self.rollouts, *x.shape) for x in rows))
        for kept, new in zip(self.table, rows, strict=True):
            kept[self.added % self.rollouts].copy_(new)
        self.added += 1

    def sample(self, count: int, generator: torch.Generator) -> Rows:
        """Return rows, half of them worst draws, with weights for means over the whole memory.

        The mean of weight times anything has that over all remembered steps as its expectation.
        """
        table = self.table
        if table is None:
            raise LookupError("a memory without rows cannot be sampled")
        size, half = table.weight.shape[1], count // 2
        tail = max(int(size * TAIL_SHARE), 1)
        total = table.weight.sum()
        index, factor = [], []
        for first, after in ((0, tail), (tail, size)):
            places = self.filled * (after - first)
            place = torch.randint(places, (half,), generator=generator, device=total.device)
            index.append(place // (after - first) * size + first + place % (after - first))
            factor.append(torch.full((half,), places * 2.0, device=total.device) / total)
        chosen, factors = torch.cat(index), torch.cat(factor)
        rows = Rows(*(column.flatten(0, 1)[chosen] for column in table))
        return rows._replace(weight=rows.weight * factors)

    def state_dict(self) -> dict[str, object]:
        """Return the state for a checkpoint."""
        table = None if self.table is None else self.table._asdict()
        return {"added": self.added, "newest": self.newest, "table": table}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Restore a saved state."""
        self.added, self.newest, table = state["added"], state["newest"], state["table"]
        if table is not None:
            table = Rows(**{name: column.to(device) for name, column in table.items()})
        self.table = table


def scaled_account(agent: Agent, account: Tensor) -> Tensor:
    """Return the account's columns as the network sees them, [..., P]."""
    names = agent.spec.observation_names
    columns = [names.index(name) for name in agent.spec.after_memory]
    if not columns or account.shape[-1] == 0:  # what other actions make of it is not recorded
        return account[..., :0]
    whole = account.new_zeros(*account.shape[:-1], len(names))
    for place, column in enumerate(columns):  # an index would have to be copied to the device
        whole[..., column] = account[..., place]
    scaled: Tensor = agent.observation_scale(whole)
    return torch.stack([scaled[..., column] for column in columns], -1)
