"""Gambles small enough that every distribution, gradient and optimum is computed exactly, in
float64.

A gambler plays H rounds. In each she knows the round and what she has earned, and picks a bet that
wins or loses a whole number. So C_t lies on a lattice, the distribution of what is still to come is
a table, and a policy is a table of logits [H, L, A] over round, lattice place and bet.
"""

import functools
import itertools
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from scipy import sparse
from scipy.optimize import linprog
from torch import Tensor

from stormsail.algorithms.config import RiskConfig
from stormsail.algorithms.risk.multiplier import RiskDual
from stormsail.functional import risk


@dataclass(frozen=True)
class Gamble:
    """The rounds, the bets, and the tail that is looked at."""

    rounds: int
    bets: tuple[tuple[tuple[float, int], ...], ...]
    """For each bet, pairs of probability and what it pays."""
    alpha: float

    @property
    def pays(self) -> list[int]:
        return [pay for bet in self.bets for _, pay in bet]

    @property
    def low(self) -> int:
        return self.rounds * min(0, *self.pays)

    @property
    def high(self) -> int:
        return self.rounds * max(0, *self.pays)

    @property
    def places(self) -> int:
        return self.high - self.low + 1

    @property
    def lattice(self) -> Tensor:
        return torch.arange(self.low, self.high + 1, dtype=torch.float64)

    def moved(self, values: Tensor, pay: int) -> Tensor:
        """Return values[..., c + pay] at each place c; beyond the lattice the last one stands in.

        Places from which a pay leaves the lattice are never reached.
        """
        place = (torch.arange(self.places) + pay).clamp(0, self.places - 1)
        return values.index_select(-1, place)

    @functools.cached_property
    def moves(self) -> Tensor:
        """Chance that a bet leads from a place to another, [L, A, L]; never out of the lattice."""
        result = torch.zeros(self.places, len(self.bets), self.places, dtype=torch.float64)
        here = torch.arange(self.places)
        for a, bet in enumerate(self.bets):
            for chance, pay in bet:
                result[here, a, (here + pay).clamp(0, self.places - 1)] += chance
        return result


TWO = Gamble(2, (((1.0, 0),), ((0.9, 1), (0.1, -2)), ((0.8, 3), (0.2, -6))), 0.25)
FOUR = Gamble(4, (((1.0, 0),), ((0.9, 1), (0.1, -2)), ((0.8, 2), (0.2, -4))), 0.25)
TEN = Gamble(10, (((1.0, 0),), ((0.9, 1), (0.1, -2)), ((0.8, 2), (0.2, -4))), 0.25)
LONG = Gamble(10, (((1.0, 0),), ((0.8, 1), (0.2, -3))), 0.25)
"""Three outcomes a round: all 59,049 courses of ten rounds can be played."""
HALVES = tuple(Gamble(rounds, (((1.0, 0),), ((0.5, 4), (0.5, -2))), 0.3) for rounds in (2, 4))
"""Fair odds: with a policy of quarters every distribution of H rounds is that of 8**H equal
outcomes.

No number of them is a share of 0.3, so the tail has a derivative."""
TRAP = Gamble(2, (*TWO.bets, ((0.5, 1), (0.5, -6))), 0.25)
"""The third bet is best, as in `TWO`; the fourth is worse in mean and tail."""


def final_distributions(gamble: Gamble, policy: Tensor) -> list[Tensor]:
    """Return for each round, and after the last, the distribution of the final sum at each place.

    Args:
        gamble: what is played.
        policy: probabilities [*s, H, L, A].

    Returns:
        H + 1 tables [*s, L, L]: place now, final place.
    """
    table = torch.eye(gamble.places, dtype=torch.float64).expand(
        *policy.shape[:-3], gamble.places, gamble.places
    )
    tables = [table]
    for t in range(gamble.rounds - 1, -1, -1):
        table = _expected(gamble, table, policy[..., t, :, :])
        tables.append(table)
    return tables[::-1]


def _expected(gamble: Gamble, table: Tensor, chosen: Tensor) -> Tensor:
    out = torch.zeros_like(table)
    for a, bet in enumerate(gamble.bets):
        for chance, pay in bet:
            after = gamble.moved(table.transpose(-1, -2), pay).transpose(-1, -2)
            out = out + chance * chosen[..., a, None] * after
    return out


def visits(gamble: Gamble, policy: Tensor) -> Tensor:
    """Return the chance to be at each place in each round, [*s, H + 1, L]."""
    now = torch.zeros(*policy.shape[:-3], gamble.places, dtype=torch.float64)
    now[..., -gamble.low] = 1.0
    seen = [now]
    for t in range(gamble.rounds):
        now = (now[..., None] * policy[..., t, :, :]).flatten(-2) @ gamble.moves.flatten(0, 1)
        seen.append(now)
    return torch.stack(seen, -2)


def cvar(gamble: Gamble, distribution: Tensor) -> Tensor:
    return risk.categorical_cvar(distribution, gamble.lattice, alpha=gamble.alpha)


def value_at_risk(gamble: Gamble, distribution: Tensor) -> Tensor:
    return risk.categorical_value_at_risk(distribution, gamble.lattice, alpha=gamble.alpha)


def action_values(gamble: Gamble, policy: Tensor, value: Tensor) -> Tensor:
    """Return the mean of value(final place) after each bet, [*s, H, L, A], by going backwards.

    `value` is [L] or [*s, L].
    """
    now = value.expand(*policy.shape[:-3], gamble.places)
    result = []
    for t in range(gamble.rounds - 1, -1, -1):
        after = (now @ gamble.moves.flatten(0, 1).T).unflatten(-1, gamble.moves.shape[:2])
        result.append(after)
        now = (policy[..., t, :, :] * after).sum(-1)
    return torch.stack(result[::-1], -3)


def advantages(gamble: Gamble, policy: Tensor, form: str) -> Tensor:
    """Return the expected advantage of each bet in the true distributions, [*s, H, L, A].

    `mean` is the plain one; `budget` and `state` are those of the tail.
    """
    if form == "state":
        result = []
        tables = final_distributions(gamble, policy)
        for table, after in itertools.pairwise(tables):
            shortfall = _state_shortfall(gamble, table)  # [*s, L, L], place now first
            per_bet = [
                sum(
                    chance
                    * (gamble.moved(after.transpose(-1, -2), pay).transpose(-1, -2) * shortfall)
                    for chance, pay in bet
                ).sum(-1)
                for bet in gamble.bets
            ]
            result.append(torch.stack(per_bet, -1))
        q = torch.stack(result, -3)
    else:
        value = gamble.lattice
        if form == "budget":
            level = value_at_risk(gamble, visits(gamble, policy)[..., -1, :])[..., None]
            value = (gamble.lattice - level).clamp(max=0.0) / gamble.alpha
        q = action_values(gamble, policy, value)
    return q - (policy * q).sum(-1, keepdim=True)


def _state_shortfall(gamble: Gamble, table: Tensor) -> Tensor:
    """Return min(final - VaR of the place's own distribution, 0) / alpha, [*s, L, L]."""
    level = value_at_risk(gamble, table)[..., None]
    return (gamble.lattice - level).clamp(max=0.0) / gamble.alpha


def policy_gradient(gamble: Gamble, policy: Tensor, advantage: Tensor) -> Tensor:
    """Return sum over visits of chance * advantage * grad log pi, by the logits, [*s, H, L, A]."""
    chance = visits(gamble, policy)[..., :-1, :, None]
    weighted = chance * policy * advantage
    return weighted - policy * weighted.sum(-1, keepdim=True)


def enumerated_rollout(gamble: Gamble, policy: Tensor) -> SimpleNamespace:
    """Return every visit, bet and pay as a column of a rollout of one row, with the true
    distributions.

    Of one policy [H, L, A]. `weight` is the chance of the column. `round`, `place` and `bet` say
    what it is.
    """
    tables, seen = final_distributions(gamble, policy), visits(gamble, policy)
    columns = []
    for t in range(gamble.rounds):
        for place in range(gamble.places):
            if seen[t, place] <= 0.0:
                continue
            so_far = place + gamble.low
            for a, bet in enumerate(gamble.bets):
                for chance, pay in bet:
                    weight = float(seen[t, place] * policy[t, place, a] * chance)
                    distribution = _to_come(gamble, tables[t][place], so_far)
                    target = _to_come(gamble, tables[t + 1][place + pay], so_far)
                    following = _to_come(gamble, tables[t + 1][place + pay], so_far + pay)
                    distributions = (
                        distribution,
                        target,
                        following if t < gamble.rounds - 1 else _least(following),
                    )
                    columns.append((t, place, a, float(so_far), float(pay), weight, *distributions))
    t, place, a, so_far, pay, weight, distribution, target, following = zip(*columns, strict=True)

    def row(values):
        return torch.tensor(values, dtype=torch.float64)[None]

    last = row(t) == gamble.rounds - 1
    rollout = SimpleNamespace(
        return_so_far=row(so_far),
        reward=row(pay),
        weight=row(weight),
        ended=last,
        terminated=last,
        truncated=torch.zeros_like(last),
        predicted=torch.stack(distribution)[None],
        next_predicted=torch.stack(following)[None],
    )
    estimates = SimpleNamespace(target=torch.stack(target)[None], raw_advantage=row(so_far))
    at = torch.tensor(t), torch.tensor(place), torch.tensor(a)
    agent = _critic_of_truth(gamble)
    return SimpleNamespace(rollout=rollout, estimates=estimates, agent=agent, at=at)


def _least(distribution: Tensor) -> Tensor:
    """Return the Dirac of the least outcome: a final state must never be read."""
    return torch.zeros_like(distribution).index_fill(-1, torch.tensor([0]), 1.0)


def _critic_of_truth(gamble: Gamble) -> SimpleNamespace:
    """Return an agent whose critic says what it is given, on the wider lattice."""
    return SimpleNamespace(
        network=SimpleNamespace(
            critic=SimpleNamespace(distribution=lambda predicted: predicted, weights=lambda: None)
        ),
        spec=SimpleNamespace(critic=SimpleNamespace(kind="categorical")),
        atoms=torch.arange(gamble.low - gamble.high, gamble.high - gamble.low + 1).double(),
    )


def _to_come(gamble: Gamble, distribution: Tensor, so_far: int) -> Tensor:
    """Return a distribution of final sums as one of what is still to come, on the wider lattice."""
    width = 2 * (gamble.high - gamble.low) + 1
    wide = torch.zeros(width, dtype=torch.float64)
    first = gamble.low - so_far - (gamble.low - gamble.high)
    wide[first : first + gamble.places] = distribution
    return wide


def gradient_of_columns(result: SimpleNamespace, policy: Tensor, advantage: Tensor) -> Tensor:
    """Return sum over columns of chance * advantage * grad log pi, [H, L, A], by loops."""
    gradient = torch.zeros_like(policy)
    for t, place, a, part in zip(
        *(x.tolist() for x in result.at),
        (result.rollout.weight * advantage)[0].tolist(),
        strict=True,
    ):
        gradient[t, place] -= part * policy[t, place]
        gradient[t, place, a] += part
    return gradient


def outcomes(gamble: Gamble) -> list[tuple[int, float, int]]:
    """Return everything that can happen in a round: bet, chance, pay."""
    return [(a, chance, pay) for a, bet in enumerate(gamble.bets) for chance, pay in bet]


def enumerated_episodes(
    gamble: Gamble, policy: Tensor, begin: tuple[tuple[int, float, int], ...] = ()
) -> SimpleNamespace:
    """Return every course of a whole game as a column of a rollout of H rows, with the true
    distributions.

    Of one policy [H, L, A], and of the courses that begin with these outcomes. `chance` [P] is that
    of the course. The state after the last round is said to be worth the least that can be: it is
    final, so nobody may ask.
    """
    rest = itertools.product(outcomes(gamble), repeat=gamble.rounds - len(begin))
    courses = [(*begin, *course) for course in rest]
    bets = torch.tensor([[step[0] for step in course] for course in courses]).T  # [H, P]
    odds = torch.tensor([[step[1] for step in course] for course in courses], dtype=torch.float64).T
    pays = torch.tensor([[step[2] for step in course] for course in courses]).T
    so_far = pays.cumsum(0) - pays
    place = so_far - gamble.low
    rounds = torch.arange(gamble.rounds)[:, None].expand_as(place)
    chance = (policy[rounds, place, bets] * odds).prod(0)
    tables = final_distributions(gamble, policy)
    distribution = torch.stack(
        [_row_to_come(gamble, tables[t], place[t]) for t in range(gamble.rounds)]
    )
    after = distribution.roll(-1, 0)
    after[-1] = _least(after[-1])
    last = rounds == gamble.rounds - 1
    rollout = SimpleNamespace(
        return_so_far=so_far.double(),
        reward=pays.double(),
        weight=torch.ones_like(odds),
        terminated=last,
        truncated=torch.zeros_like(last),
        ended=last,
        predicted=distribution,
        next_predicted=after,
    )
    estimates = SimpleNamespace(target=distribution, raw_advantage=so_far.double())
    agent = _critic_of_truth(gamble)
    return SimpleNamespace(
        rollout=rollout, estimates=estimates, agent=agent, at=(rounds, place, bets), chance=chance
    )


def _row_to_come(gamble: Gamble, table: Tensor, place: Tensor) -> Tensor:
    seen, which = place.unique(return_inverse=True)
    return torch.stack([_to_come(gamble, table[p], p + gamble.low) for p in seen.tolist()])[which]


def in_quantiles(result: SimpleNamespace, count: int) -> SimpleNamespace:
    """Return the same columns with a critic that tells each distribution by its equally likely
    outcomes.

    What it says is normalised, (theta + 1) / 2, as quantiles of a critic are; targets are not.
    """
    atoms = result.agent.atoms

    def normalised(distribution: Tensor) -> Tensor:
        return (_equal_outcomes(distribution, atoms, count) + 1.0) / 2.0

    rollout = SimpleNamespace(**vars(result.rollout))
    rollout.predicted = normalised(result.rollout.predicted)
    rollout.next_predicted = normalised(result.rollout.next_predicted)
    estimates = SimpleNamespace(**vars(result.estimates))
    estimates.target = _equal_outcomes(result.estimates.target, atoms, count)
    agent = SimpleNamespace(
        network=result.agent.network,
        spec=SimpleNamespace(critic=SimpleNamespace(kind="quantile")),
        return_scale=SimpleNamespace(decode=lambda theta: 2.0 * theta - 1.0),
    )
    return SimpleNamespace(
        **{**vars(result), "rollout": rollout, "estimates": estimates, "agent": agent}
    )


def _equal_outcomes(distribution: Tensor, atoms: Tensor, count: int) -> Tensor:
    """Return outcomes of a distribution, ascending, each as often as it is likely: [*, count]."""
    often = distribution * count
    assert torch.equal(often, often.round()), "not a law of so many equally likely outcomes"
    assert bool((often.sum(-1) == count).all())
    middle = (torch.arange(count) + 0.5).expand(*distribution.shape[:-1], count).contiguous()
    return atoms[torch.searchsorted(often.cumsum(-1), middle.double())]


def gradient_of_episodes(
    result: SimpleNamespace, policy: Tensor, advantage: Tensor
) -> tuple[Tensor, float]:
    """Return the mean of sum_t A_t grad log pi by the logits, and its total variance."""
    t, place, bet = result.at
    score = -policy[t, place]  # [H, P, A]
    score.scatter_add_(-1, bet[..., None], torch.ones_like(score))
    part = advantage[..., None] * score
    gradient = torch.zeros_like(policy)
    gradient.index_put_((t, place), result.chance[:, None] * part, accumulate=True)
    square = (result.chance * part.square().sum((0, -1))).sum()
    return gradient, float(square - gradient.square().sum())


def analytic_gradient(gamble: Gamble, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the CVaR of the final sum and its derivative by the logits, by autograd."""
    logits = logits.detach().clone().requires_grad_()
    distribution = visits(gamble, logits.softmax(-1))[..., -1, :]
    value = cvar(gamble, distribution)
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    return value.detach(), gradient


def constrained_optimum(gamble: Gamble, limit: float) -> tuple[float, float]:
    """Return the largest mean with CVaR at or above a limit, and the VaR at which it is reached.

    CVaR >= d if and only if nu + E[min(C - nu, 0)] / alpha >= d for some nu, and a place of the
    lattice will do. For each nu that is linear in the chances of visits, so each is a linear
    programme over all policies that know the round and the sum, random ones among them.
    """
    best = (-np.inf, np.nan)
    for level in range(gamble.low, gamble.high + 1):
        result = _programme(gamble, limit, level)
        if result is not None and result > best[0] + 1e-9:
            best = (result, float(level))
    return best


def _programme(gamble: Gamble, limit: float, level: int) -> float | None:
    """Maximise the mean over occupancies x[t, c, a] at one level."""
    H, L, A = gamble.rounds, gamble.places, len(gamble.bets)
    shape = (H, L, A)
    size = H * L * A
    mean = np.zeros(shape)
    shortfall = np.zeros(shape)
    for a, bet in enumerate(gamble.bets):
        mean[:, :, a] = sum(chance * pay for chance, pay in bet)
        for c in range(L):
            shortfall[H - 1, c, a] = sum(
                chance * min(c + gamble.low + pay - level, 0) for chance, pay in bet
            )
    place = np.arange(size).reshape(shape)
    flow = sparse.lil_array((H * L, size))
    sides = np.zeros(H * L)
    sides[-gamble.low] = 1.0
    for t in range(H):
        for c in range(L):
            flow[t * L + c, place[t, c]] = 1.0
            for a, bet in enumerate(gamble.bets if t else ()):
                for chance, pay in bet:
                    if 0 <= c - pay < L:
                        flow[t * L + c, place[t - 1, c - pay, a]] = -chance
    solved = linprog(
        -mean.ravel(),
        A_ub=-shortfall.reshape(1, size) / gamble.alpha,
        b_ub=[level - limit],
        A_eq=flow.tocsr(),
        b_eq=sides,
    )
    return -float(solved.fun) if solved.status == 0 else None


@dataclass(frozen=True)
class Ascent:
    """Where several starts ended, [s] each."""

    mean: Tensor
    cvar: Tensor
    multiplier: Tensor
    largest: Tensor
    """Multiplier on the way."""

    def count(self, best: float, limit: float) -> tuple[int, int]:
        """Return how many hold the limit within 0.05, and reach the best mean within 2 % too."""
        holds = self.cvar >= limit - 0.05
        return int(holds.sum()), int((holds & (self.mean >= 0.98 * best)).sum())


def quarters(gamble: Gamble, seed: int) -> Tensor:
    """Return logits of a policy over two bets whose probabilities are quarters, [H, L, 2]."""
    source = torch.Generator().manual_seed(seed)
    first = torch.randint(1, 4, (gamble.rounds, gamble.places), generator=source).double() / 4.0
    return torch.stack([first, 1.0 - first], -1).log()


def random_logits(gamble: Gamble, starts: int, spread: float, seed: int = 0) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    shape = (starts, gamble.rounds, gamble.places, len(gamble.bets))
    return spread * torch.randn(shape, generator=source, dtype=torch.float64)


def ascend(
    gamble: Gamble, config: RiskConfig, logits: Tensor, *, steps: int, rate: float
) -> Ascent:
    """Climb along the exact natural gradient of the Lagrangian, one step of our dual each time.

    For a table of logits that gradient is the advantage itself. The rate falls like a root, so
    that starts come to rest.
    """
    limit = config.cvar_limit
    duals = [RiskDual(config) for _ in range(len(logits))]
    largest = torch.zeros(len(logits), dtype=torch.float64)
    for k in range(steps):
        policy = logits.softmax(-1)
        distribution = visits(gamble, policy)[..., -1, :]
        result = cvar(gamble, distribution)
        square, mean = distribution @ gamble.lattice.square(), distribution @ gamble.lattice
        unit = (square - mean.square()).sqrt().clamp(min=abs(limit))
        for dual, gap in zip(duals, ((limit - result) / unit).tolist(), strict=True):
            dual.step(gap)
        lam = torch.tensor([dual.multiplier for dual in duals], dtype=torch.float64)
        largest = torch.maximum(largest, lam)
        lam = lam[:, None, None, None]
        tail = advantages(gamble, policy, config.cvar_policy_mode)
        mixed = (advantages(gamble, policy, "mean") + lam * tail) / (1.0 + lam)
        logits = logits + rate * (1.0 - k / steps) ** 0.5 * mixed
    distribution = visits(gamble, logits.softmax(-1))[..., -1, :]
    ended = torch.tensor([dual.multiplier for dual in duals], dtype=torch.float64)
    return Ascent(distribution @ gamble.lattice, cvar(gamble, distribution), ended, largest)
