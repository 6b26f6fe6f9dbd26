r"""Worlds of `bench tails` whose observed states have known return distributions.

An episode has `steps` steps and is in one of a few observed regimes; what is observed is a number
of the regime and the share of steps that are left. A step pays

.. math:: r = m_z + s_z \varepsilon + J, \qquad J \in \{0, j_1, j_2, \ldots\},

with :math:`\varepsilon` normal, or Student with 3 degrees of freedom, and jumps J whose
probabilities are those of the regime z. Then the regime moves by a Markov chain. A ruin ends the
episode, and so does the last step; both are ends, after which nothing is paid. Actions change
nothing, so the distribution is the same whatever the policy.

With n steps left, :math:`Z_n(z) = r + \gamma Z_{n-1}(z')`, so the characteristic function follows
by dynamic programming:

.. math::
    \varphi_{n,z}(t) = e^{im_zt}\,\psi(s_zt) \Big[ \sum_{j\,\text{ends}} p_{zj}\, e^{ijt}
        + \Big(\sum_{j\,\text{goes on}} p_{zj}\, e^{ijt}\Big)
          \sum_{z'} P_{zz'}\, \varphi_{n-1,z'}(\gamma t) \Big],
    \qquad \varphi_0 = 1,

and mean and variance by the same recursion over moments. `tails_truth` inverts it. Student noise
has another closed form, for regimes that stay and have no jumps.

The *event* of a state is what makes its tail: a ruin or a loss by a jump before the episode ends.
Where noise makes it, which comes with every step, its probability is 1.
"""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from stormsail.bench.risk.tails_truth import (
    Array,
    Characteristic,
    Complex,
    KnownReturns,
    StudentSum,
)
from stormsail.core.task import DiscreteActions, Step, Task

DEGREES = 3
"""Of Student noise."""


@dataclass(frozen=True)
class Jump:
    """Something that a step may pay on top."""

    size: float
    chance: float
    """Probability in each step."""
    ends: bool = False
    """Whether the episode ends with it."""


@dataclass(frozen=True)
class Regime:
    """One of the observed regimes of a world."""

    name: str
    shown: float
    """What is observed of it."""
    drift: float
    noise: float
    jumps: tuple[Jump, ...] = ()

    @property
    def loss_chance(self) -> float:
        """Probability of a loss by a jump in a step."""
        return sum(jump.chance for jump in self.jumps if jump.size < 0.0)


class JudgedState(NamedTuple):
    """A state whose prediction is judged."""

    name: str
    event: float
    """Probability of what makes its tail."""
    path: tuple[Tensor, ...]
    """Observations [1, F] of an episode that leads to it, its own last; for critics with memory."""
    truth: KnownReturns


class ObservedWorld(Protocol):
    """A world whose observed states have known return distributions."""

    @property
    def name(self) -> str:
        """What it is called."""

    def task(self, batch: int) -> Task[Any]:
        """Return its episodes as a task."""

    def states(self, *, gamma: float) -> list[JudgedState]:
        """Return the states that are judged."""


@dataclass(frozen=True)
class StateWorld:
    """Regimes, how they follow each other, and the states that are judged."""

    name: str
    regimes: tuple[Regime, ...]
    steps: int
    """Of an episode, at most."""
    judged: tuple[tuple[int, int], ...]
    """Regime and steps left."""
    moves: tuple[tuple[float, ...], ...] = ()
    """Probabilities of the next regime, a row for each; none: regimes stay."""
    student: bool = False
    """Whether noise is Student instead of normal."""
    observed: str = field(default="regime", kw_only=True)
    """Name of the number that is observed of a regime."""

    def task(self, batch: int) -> "StateTask":
        """Return its episodes as a task."""
        return StateTask(self, batch=batch)

    def states(self, *, gamma: float) -> list[JudgedState]:
        """Return the states that are judged; each is led to by steps in its own regime."""
        return [
            JudgedState(
                name=f"{self.regimes[regime].name}, {left} left",
                event=self.event(regime, left),
                path=self._path(regime, left),
                truth=self.truth(regime, left, gamma=gamma),
            )
            for regime, left in self.judged
        ]

    def _path(self, regime: int, left: int) -> tuple[Tensor, ...]:
        shown = self.regimes[regime].shown
        return tuple(
            torch.tensor([[shown, before / self.steps]])
            for before in range(self.steps, left - 1, -1)
        )

    @property
    def transition(self) -> Array:
        """Probabilities of the next regime [R, R]."""
        return np.asarray(self.moves) if self.moves else np.eye(len(self.regimes))

    def event(self, regime: int, left: int) -> float:
        """Return the probability of a loss by a jump before the episode ends; 1 without jumps."""
        if not any(each.jumps for each in self.regimes):
            return 1.0
        spared = np.ones(len(self.regimes))
        go_on = np.array([1.0 - each.loss_chance for each in self.regimes])
        for _ in range(left):
            spared = go_on * (self.transition @ spared)
        return float(1.0 - spared[regime])

    def truth(self, regime: int, left: int, *, gamma: float) -> KnownReturns:
        """Return the distribution of discounted returns from a state."""
        mean, variance = _moments(self, left, gamma)
        if self.student:
            own = self.regimes[regime]
            scales = [own.noise * gamma**step for step in range(left)]
            return StudentSum(scales, mean=float(mean[regime]))
        return Characteristic(
            lambda nodes: _characteristic(self, left, gamma, nodes)[regime],
            mean=float(mean[regime]),
            spread=math.sqrt(variance[regime]),
        )


def _characteristic(world: StateWorld, left: int, gamma: float, nodes: Array) -> Complex:
    """Return the characteristic functions of all regimes [R, n]."""
    later = np.ones((len(world.regimes), len(nodes)), dtype=np.complex128)
    for step in reversed(range(left)):
        t = gamma**step * nodes
        go_on = world.transition @ later
        rows = []
        for place, regime in enumerate(world.regimes):
            paid = np.exp(1j * regime.drift * t - (regime.noise * t) ** 2 / 2.0)
            none = 1.0 - sum(jump.chance for jump in regime.jumps)
            total = none * go_on[place]
            for jump in regime.jumps:
                turned = jump.chance * np.exp(1j * jump.size * t)
                total = total + turned * (1.0 if jump.ends else go_on[place])
            rows.append(paid * total)
        later = np.stack(rows)
    return later


def _moments(world: StateWorld, left: int, gamma: float) -> tuple[Array, Array]:
    """Return means and variances of all regimes, each [R], by their recursion."""
    first = second = np.zeros(len(world.regimes))
    unit = DEGREES / (DEGREES - 2.0) if world.student else 1.0
    for _ in range(left):
        first_next, second_next = world.transition @ first, world.transition @ second
        means, squares = [], []
        for place, regime in enumerate(world.regimes):
            none = Jump(0.0, 1.0 - sum(jump.chance for jump in regime.jumps))
            mean = square = 0.0
            for jump in (none, *regime.jumps):
                pay = regime.drift + jump.size
                paid = pay**2 + unit * regime.noise**2
                ahead, ahead_squared = (
                    (0.0, 0.0) if jump.ends else (first_next[place], second_next[place])
                )
                mean += jump.chance * (pay + gamma * ahead)
                square += jump.chance * (
                    paid + 2.0 * gamma * pay * ahead + gamma**2 * ahead_squared
                )
            means.append(mean)
            squares.append(square)
        first, second = np.array(means), np.array(squares)
    return first, second - first**2


class WorldState(NamedTuple):
    """Where each episode stands."""

    regime: Tensor
    """[B] int64."""
    left: Tensor
    """Steps that are left, [B] int64."""
    over: Tensor
    """[B] bool: the episode ended, and the coming step starts another."""


class WorldInfo(NamedTuple):
    """What comes with a step."""

    sample_weight: Tensor
    """[B]: 0 on the row after an end."""


class StateTask:
    """B episodes of a world side by side, as a task.

    Args:
        world: its regimes; every episode starts in one of them, all alike likely.
        batch: B.
    """

    dtype = torch.float32
    observation_size = 2
    actions = DiscreteActions(2)

    def __init__(self, world: StateWorld, *, batch: int) -> None:
        self.world, self.batch = world, batch
        self.device = torch.device("cpu")
        self.observation_names = (world.observed, "left")
        regimes, most = world.regimes, max(len(regime.jumps) for regime in world.regimes)
        self._shown = torch.tensor([regime.shown for regime in regimes])
        self._drift = torch.tensor([regime.drift for regime in regimes])
        self._noise = torch.tensor([regime.noise for regime in regimes])
        padded = [(*each.jumps, *[Jump(0.0, 0.0)] * (most - len(each.jumps))) for each in regimes]
        # no jump first, then each; a uniform number of at least `_jump_from` of one is that jump
        self._sizes = torch.tensor([[0.0, *(jump.size for jump in each)] for each in padded])
        self._ends = torch.tensor([[False, *(jump.ends for jump in each)] for each in padded])
        chances = torch.tensor(
            [[jump.chance for jump in each] for each in padded], dtype=torch.float64
        ).reshape(len(regimes), most)
        self._jump_from = (1.0 - chances.sum(-1, keepdim=True)) + torch.cat(
            [torch.zeros(len(regimes), 1, dtype=torch.float64), chances.cumsum(-1)[:, :-1]], -1
        )[:, :most]
        self._move_from = torch.from_numpy(world.transition).cumsum(-1)[:, :-1].contiguous()

    def reset(self, generator: torch.Generator) -> tuple[WorldState, Tensor]:
        """Start all episodes."""
        state = self._fresh(generator)
        return state, self._seen(state)

    def step(
        self, state: WorldState, action: Tensor, generator: torch.Generator
    ) -> tuple[WorldState, Step[WorldInfo]]:
        """Pay what the regime pays; actions change nothing."""
        self.actions.check(action, batch=self.batch, dtype=self.dtype)
        fresh = self._fresh(generator)
        jump = (self._uniform(generator) >= self._jump_from[state.regime]).sum(-1)
        noise = self._noise[state.regime] * self._standard(generator)
        pay = self._drift[state.regime] + noise + self._sizes[state.regime, jump]
        moved = (self._uniform(generator) >= self._move_from[state.regime]).sum(-1)
        left = state.left - 1
        ended = ((left == 0) | self._ends[state.regime, jump]) & ~state.over
        going = WorldState(moved, left, ended)
        after = WorldState(
            *(torch.where(state.over, a, b) for a, b in zip(fresh, going, strict=True))
        )
        reward = torch.where(state.over, 0.0, pay)
        info = WorldInfo((~state.over).to(self.dtype))
        return after, Step(self._seen(after), reward, ended, torch.zeros_like(ended), info)

    def _seen(self, state: WorldState) -> Tensor:
        return torch.stack([self._shown[state.regime], state.left / self.world.steps], -1)

    def _fresh(self, generator: torch.Generator) -> WorldState:
        size = (self.batch,)
        regime = torch.randint(len(self.world.regimes), size, generator=generator)
        return WorldState(regime, torch.full(size, self.world.steps), torch.zeros(size).bool())

    def _uniform(self, generator: torch.Generator) -> Tensor:
        return torch.rand(self.batch, 1, dtype=torch.float64, generator=generator)

    def _standard(self, generator: torch.Generator) -> Tensor:
        """Return normal or Student noise [B]."""
        if not self.world.student:
            return torch.randn(self.batch, generator=generator)
        # a normal over the root of a third of a sum of three squared ones
        drawn = torch.randn(DEGREES + 1, self.batch, generator=generator)
        return drawn[0] / drawn[1:].square().mean(0).sqrt()


def _hazard(share: float, steps: int) -> float:
    """Return the probability in each step that makes this share over all."""
    return -math.expm1(math.log1p(-share) / steps)


_RUIN_STEPS = 20
_RUIN = tuple(
    Regime(
        f"{share:.0%} ruin", share, 0.1, 0.1, (Jump(-10.0, _hazard(share, _RUIN_STEPS), ends=True),)
    )
    for share in (0.0, 0.02, 0.08)
)

RUIN = StateWorld(
    "ruin",
    _RUIN,
    _RUIN_STEPS,
    tuple((regime, left) for regime in range(3) for left in (20, 5)),
    observed="hazard",
)
"""A step pays 0.1 ± 0.1; a ruin of -10 ends the episode. The hazard is observed as the probability
of a ruin in 20 steps: none, 2 % or 8 %, and stays. With gamma .99 the exact CVaR at 5 % is -8.85
(8 %, 20 steps left), -3.93 (8 %, 5 left) and -2.71 (2 %, 20 left)."""

TWO_MODES = StateWorld(
    "two-modes",
    tuple(
        Regime(name, shown, 0.02, 0.1, (Jump(-2.0, chance), Jump(2.0, chance)) if chance else ())
        for name, shown, chance in (("calm", 0.0, 0.0), ("rare", 1.0, 0.005), ("often", 2.0, 0.06))
    ),
    5,
    tuple((regime, left) for regime in range(3) for left in (5, 1)),
)
"""Calm, or jumps of 2 to either side, with 0.5 % or 6 % each in a step: the return is either near
its mean or in one of two modes far away."""

_SCALES = (0.1, 0.3, 1.0, 3.0)

HEAVY_SCALES = StateWorld(
    "heavy-scales",
    tuple(Regime(f"scale {scale:g}", math.log(scale), 0.05 * scale, scale) for scale in _SCALES),
    4,
    tuple((regime, left) for regime in range(4) for left in (4, 1)),
    student=True,
    observed="log_scale",
)
"""Student noise with 3 degrees of freedom, whose scale is observed: 0.1 to 3."""

CLUSTERED = StateWorld(
    "clustered",
    (
        Regime("calm", 0.0, 0.05, 0.1, (Jump(-3.0, 0.001),)),
        Regime("storm", 1.0, 0.05, 0.3, (Jump(-3.0, 0.03), Jump(1.0, 0.05))),
    ),
    16,
    tuple((regime, left) for regime in range(2) for left in (16, 4, 1)),
    moves=((0.95, 0.05), (0.25, 0.75)),
    observed="storm",
)
"""Held out: nothing was chosen by it. Calm spells of 20 steps on average and storms of 4 follow
each other; losses of 3 come thirty times as often in a storm, which alone has gains of 1."""
