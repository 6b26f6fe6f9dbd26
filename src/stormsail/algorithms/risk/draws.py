"""Memory of episodes whose draws can be played again: what the policy of now would make of them.

A state at an episode's start fixes all its draws (`core.task.alternatives`), so the present policy
can be replayed over the episodes of many rollouts. The estimate of CVaR then rests on thousands of
episodes instead of those of the last few updates, and those that matter for the tail are replayed
most: each draw counts once, with its newest outcome.

Which ones are replayed depends on the draw alone, never on what happened: an episode that is chosen
because it went badly would be played until it goes well. So the score of a draw is what actions
make of it that are held throughout, not what they would have made of the agent's own path: that
one ends with the agent's ruin and counts in the agent's wealth.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from stormsail.algorithms.risk.saved import Fit, check_tensors, kind_of, like
from stormsail.algorithms.update.graphs import Recorder, waiting_allowed
from stormsail.algorithms.update.rollout import Options, Rollout
from stormsail.core.task import DiscreteActions, Task, action_mask, with_batch
from stormsail.functional import risk
from stormsail.modules.agent import Agent

CAPACITY = 16384
"""Episodes that are remembered at most."""

RISKY_SHARE = 2.5
"""Replayed are, in turn, the worst draws: this many times alpha of all that are remembered."""


PLAIN = Recorder(captured=False)
"""Calls what it is given."""


class Draws(NamedTuple):
    """Remembered episodes, n of them."""

    state: tuple[Tensor, ...]
    """The task's own at the start, [n, ...] each."""
    observation: Tensor
    """First one, as the task gave it, [n, F]."""
    score: Tensor
    """Lowest return of any action that is held throughout, [n]."""
    result: Tensor
    """Newest return of the agent, float64 [n]."""
    measured: Tensor
    """Update in which it was measured, int64 [n]."""
    constant: Tensor
    """Return of each of some actions that are held throughout, [n, K]."""
    is_scored: Tensor
    """Whether both are known yet, bool [n]; until then they are 0: a state is finite. The newest
    are not yet."""


class Start(NamedTuple):
    """How n episodes began; the fields are those of `Draws`."""

    state: tuple[Tensor, ...]
    observation: Tensor


class Sample(NamedTuple):
    """Results of m episodes."""

    result: Tensor
    """Returns, float64 [m]."""
    weight: Tensor
    """Add up to 1, float64 [m]."""
    is_risky: Tensor
    """Stratum, bool [m]."""
    state: tuple[Tensor, ...]
    """The task's own at their starts, [m, ...] each."""


class DrawMemory:
    """The last finished episodes, with their draws.

    Args:
        capacity: how many are remembered.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self.kept: Draws | None = None
        self._open: tuple[Start, Tensor] | None = None
        """Start of the episodes that are running, and whether it is known, bool [B]."""
        self._scored = 0
        """Episodes that have a score: the first ones, so that nobody need ask the device."""

    def __len__(self) -> int:
        """Episodes that are remembered and have a score."""
        return self._scored

    def spread(self) -> float:
        """Return the standard deviation of the returns of all remembered episodes; 0 for one."""
        if self.kept is None or len(self.kept.result) == 0:
            return 0.0
        return float(self.kept.result.std(correction=0))

    def add(self, rollout: Rollout, update: int, *, actions: int) -> None:
        """Add the episodes that ended in a rollout, and remember where the running ones began.

        They count from the next `score_new` on.

        Args:
            rollout: with `options`, or nothing is added.
            update: number of this update.
            actions: K of the actions that they will be scored by.
        """
        options = rollout.options
        if options is None:
            return
        rows, batch = rollout.reward.shape
        row = torch.arange(rows, device=rollout.reward.device)
        start = row[:, None] - rollout.length + 1  # [T, B]; negative: in an earlier rollout
        known = start >= 0
        if self._open is not None:
            known = known | self._open[1]
        # an episode that began before this memory did is left out
        with waiting_allowed():
            t, b = (rollout.ended & known).nonzero(as_tuple=True)
        result = rollout.return_so_far.double()[t, b] + rollout.reward.double()[t, b]
        self._append(
            Draws(
                *self._began(options, start[t, b], b),
                score=torch.zeros_like(result),
                result=result,
                measured=torch.full_like(t, update),
                constant=result.new_zeros(len(result), actions),
                is_scored=torch.zeros_like(t, dtype=torch.bool),
            )
        )
        # an episode that ended in the last row has not begun yet: the next rollout has its start
        latest = (rows - rollout.length[-1]).clamp(max=rows - 1)
        places = torch.arange(batch, device=row.device)
        self._open = self._began(options, latest, places), known[-1]

    def _began(self, options: Options, start: Tensor, b: Tensor) -> Start:
        """Return how episodes began: in this rollout, or as the memory has it."""
        first = start.clamp(min=0)
        state = tuple(column[first, b] for column in options.state)
        here = Start(state, options.observation[first, b])
        if self._open is None:
            return here
        earlier, inside = self._open[0], start >= 0
        state = tuple(
            _where(inside, new, old[b]) for new, old in zip(state, earlier.state, strict=True)
        )
        return Start(state, _where(inside, here.observation, earlier.observation[b]))

    def _append(self, new: Draws) -> None:
        if self.kept is not None:
            state = tuple(map(_joined, self.kept.state, new.state))
            new = Draws(state, *map(_joined, self.kept[1:], new[1:]))
        forgotten = max(len(new.result) - self.capacity, 0)
        self._scored = max(self._scored - forgotten, 0)
        state = tuple(column[-self.capacity :] for column in new.state)
        self.kept = Draws(state, *(column[-self.capacity :] for column in new[1:]))

    def score_new(self, hold: Callable[[tuple[Tensor, ...]], Tensor]) -> None:
        """Score the episodes that were added since.

        Args:
            hold: returns what each action makes of n episodes if it is held throughout, [n, K],
                from the task's own state at their starts; see `held_returns`.
        """
        if self.kept is None:
            return
        kept, old = self.kept, self._scored
        if old == len(kept.result):
            return
        held = hold(tuple(column[old:] for column in kept.state))
        self.kept = kept._replace(
            score=torch.cat((kept.score[:old], held.amin(-1))),
            constant=torch.cat((kept.constant[:old], held)),
            is_scored=torch.ones_like(kept.is_scored),
        )
        self._scored = len(kept.result)

    def is_risky(self, alpha: float) -> Tensor:
        """Return which draws are among the worst, bool [n]; one without a score is not."""
        kept, scored = self._kept, self._kept.score[: self._scored]
        if len(scored) == 0:
            return torch.zeros_like(kept.score, dtype=torch.bool)
        count = min(len(scored), int(RISKY_SHARE * alpha * len(scored)) + 1)
        # strictly below: among equal scores nothing but chance would decide
        return kept.is_scored & (kept.score < scored.kthvalue(count).values)

    def risky(self, count: int, alpha: float) -> Tensor:
        """Return which draws are replayed next, int64 [count]: of the worst, the oldest results.

        Where there are fewer they take turns; without any all that have a score are taken.
        """
        kept, worst = self._kept, self.is_risky(alpha)
        taken = torch.where(worst.any(), worst, kept.is_scored)
        never = torch.iinfo(kept.measured.dtype).max
        order = torch.where(taken, kept.measured, never).argsort(stable=True)
        turn = torch.arange(count, device=order.device) % taken.sum().clamp(max=count)
        return order[turn]

    def _recent(self, since: int) -> Tensor:
        """Return the places of scored draws that were measured from an update on, int64 [m]."""
        with waiting_allowed():
            return (self._kept.measured[: self._scored] >= since).nonzero()[:, 0]

    def sample(self, alpha: float, *, since: int) -> "Sample":
        """Return the results of the updates from `since` on, stratified.

        Two strata, the worst draws and the others: each has the share of all remembered draws that
        belong to it, however many of them were measured lately.
        """
        kept, worst, recent = self._kept, self.is_risky(alpha), self._recent(since)
        is_risky = worst[recent]
        share = worst.sum().double() / self._scored
        weight = torch.where(
            is_risky,
            share / is_risky.sum().clamp(min=1),
            (1.0 - share) / (~is_risky).sum().clamp(min=1),
        )
        state = tuple(column[recent] for column in kept.state)
        return Sample(kept.result[recent], weight / weight.sum(), is_risky, state)

    def gaps(self, action: Tensor, alpha: float, *, since: int) -> tuple[Tensor, Tensor]:
        """Return what a held action made of the draws of `sample`, less the policy's results.

        Args:
            action: place among the actions that draws are scored by.
            alpha: of the strata.
            since: first update that counts.

        Returns:
            Gaps and weights, float64 [m] each.
        """
        sample = self.sample(alpha, since=since)
        constant = self._kept.constant[self._recent(since)]
        held = constant.index_select(1, action.reshape(1))[:, 0]
        return held - sample.result, sample.weight

    @torch.no_grad()
    def replay(
        self,
        task: Task[Any],
        agent: Agent,
        chosen: Tensor,
        *,
        steps: int,
        update: int,
        generators: tuple[torch.Generator, torch.Generator],
        record: Recorder = PLAIN,
    ) -> None:
        """Play draws again with the present policy, side by side; renew their results.

        Args:
            task: has `with_batch`, or as many environments as draws.
            agent: draws the actions.
            chosen: from `risky`.
            steps: longest that an episode lasts.
            update: number of this update.
            generators: of actions, and of what the task draws beside the episode's own draws.
            record: carries the steps out.
        """
        kept, task = self._kept, _widened(task, len(chosen))
        kind = type(task.reset(torch.Generator(device=task.device).manual_seed(0))[0])

        def play(begun: Start) -> Tensor:
            state, observation = kind(*begun.state), begun.observation
            memory = agent.initial_memory(task.batch)
            total = torch.zeros(task.batch, dtype=torch.float64, device=task.device)
            running = torch.ones(task.batch, dtype=torch.bool, device=task.device)
            for _ in range(steps):
                drawn = agent.draw(
                    agent.normalised(observation),
                    memory,
                    deterministic=False,
                    generator=generators[0],
                    mask=action_mask(task, state),
                )
                state, step = task.step(state, drawn.action, generators[1])
                total += torch.where(running, step.reward.double(), 0.0)
                running = running & ~(step.terminated | step.truncated)
                observation, memory = step.observation, drawn.memory
            return total

        begun = Start(tuple(column[chosen] for column in kept.state), kept.observation[chosen])
        total = record("replayed draws", play, begun)
        # a draw that was chosen several times gets its last result, in whatever order they are
        # written
        place = torch.arange(task.batch, device=task.device)
        last = torch.zeros_like(kept.measured).scatter_reduce(0, chosen, place, "amax")
        kept.result[chosen] = total[last[chosen]]
        kept.measured[chosen] = update

    def constant_returns(self) -> Tensor:
        """Return what each action held throughout would have made of every draw, [n, K]."""
        return self._kept.constant[: self._scored]

    def best_held(self, alpha: float) -> float | None:
        """Return the largest CVaR of an action that is held throughout; None without a draw."""
        if len(self) == 0:
            return None
        held = self.constant_returns().T.contiguous()  # [K, n]
        with waiting_allowed():
            return float(risk.empirical_cvar(held, alpha=alpha).max())

    @property
    def _kept(self) -> Draws:
        if self.kept is None:
            raise LookupError("no episode is remembered yet")
        return self.kept

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        kept = None if self.kept is None else self.kept._asdict()
        return {"kept": kept, "open": self._open}

    @staticmethod
    def check(saved: dict[str, Any], task: Task[Any], actions: int) -> None:
        """Refuse a saved state that is none of such a task.

        Raises:
            ArtifactError: if a tensor does not fit.
            KeyError: if a part is missing.
        """
        spare = torch.Generator(device=task.device).manual_seed(0)
        state, observation = task.reset(spare)
        parts = {**state._asdict(), "observation": observation}
        kept, running = saved["kept"], saved["open"]
        if kept is not None:
            count = len(kept["result"])
            start = {name: Fit((count, *x.shape[1:]), kind_of(x)) for name, x in parts.items()}
            numbers = {
                "score": Fit((count,), "double"),
                "result": Fit((count,), "double"),
                "measured": Fit((count,), "int"),
                "constant": Fit((count, actions), "double"),
                "is_scored": Fit((count,), "bool"),
            }
            columns = dict(zip(state._fields, kept["state"], strict=True))
            columns |= {name: kept[name] for name in Draws._fields[1:]}
            check_tensors(columns, {**start, **numbers}, part="draws/kept")
        if running is not None:
            (starts, first), known = running
            columns = dict(zip(state._fields, starts, strict=True))
            columns |= {"observation": first, "known": known}
            wanted = {**like(parts), "known": Fit((task.batch,), "bool")}
            check_tensors(columns, wanted, part="draws/open")

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Restore a saved state."""
        kept, running = state["kept"], state["open"]
        if kept is not None:
            columns = {name: kept[name].to(device) for name in Draws._fields[1:]}
            kept = Draws(tuple(part.to(device) for part in kept["state"]), **columns)
        if running is not None:
            (starts, observation), known = running
            begun = Start(tuple(part.to(device) for part in starts), observation.to(device))
            running = begun, known.to(device)
        self.kept, self._open = kept, running
        self._scored = 0 if kept is None else int(kept.is_scored.sum())


@torch.no_grad()
def held_returns(
    task: Task[Any],
    state: tuple[Tensor, ...],
    actions: Tensor,
    *,
    steps: int,
    generator: torch.Generator,
) -> Tensor:
    """Return what each of K actions makes of n episodes if it is held throughout, float64 [n, K].

    All of them are played side by side.

    Args:
        task: has `with_batch`, or an environment for every action of every episode.
        state: the task's own at the starts of the episodes, [n, ...] each.
        actions: [K], as `core.task.alternatives` takes them.
        steps: longest that an episode lasts.
        generator: of what the task draws beside the episodes' own draws.
    """
    count, kind = len(state[0]), cast("Callable[..., tuple[Tensor, ...]]", type(state))
    if count == 0:
        return torch.zeros(0, len(actions), dtype=torch.float64, device=task.device)
    whole = _widened(task, count * len(actions))
    state = kind(*(column.repeat_interleave(len(actions), 0) for column in state))
    held = actions.repeat(count)
    held = held if isinstance(task.actions, DiscreteActions) else held[:, None]
    total: Tensor = torch.zeros(whole.batch, dtype=torch.float64, device=task.device)
    running = torch.ones(whole.batch, dtype=torch.bool, device=task.device)
    for _ in range(steps):
        state, step = whole.step(state, held, generator)
        total += torch.where(running, step.reward.double(), 0.0)
        running = running & ~(step.terminated | step.truncated)
    return total.reshape(count, len(actions))


def _widened(task: Task[Any], batch: int) -> Task[Any]:
    return task if task.batch == batch else with_batch(task, batch)


def _joined(first: Tensor, second: Tensor) -> Tensor:
    return torch.cat((first, second))


def _where(here: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(here.reshape(-1, *[1] * (new.ndim - 1)), new, old)
