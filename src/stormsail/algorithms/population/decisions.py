"""What follows from the outcomes of a round: who goes on as he is, and who copies whom."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.population.config import PopulationConfig, with_values
from stormsail.algorithms.population.jobs import Outcome, Value
from stormsail.algorithms.population.values import draws, explored_values, stream_of
from stormsail.core.errors import ConfigError
from stormsail.functional import population as rules


@dataclass(frozen=True)
class Decision:
    """What a member does before its next round.

    Attributes:
        member: its number.
        source: the member that it copies; itself where it goes on as it is.
        values: of the searched settings from then on.
        reason: why, in words.
        stream: from which new values were drawn; empty without any.
        explored: whether the values differ from the source's.
    """

    member: int
    source: int
    values: Mapping[str, Value]
    reason: str
    stream: str = ""
    explored: bool = False

    @property
    def copies(self) -> bool:
        """Whether the member copies another one."""
        return self.source != self.member


def smoothed_fitness(
    config: PopulationConfig, outcomes: Sequence[Outcome], before: Sequence[float]
) -> list[float]:
    """Return the fitness by which members are compared; `before` is that of the round before."""
    raw = _tensor([outcome.fitness for outcome in outcomes])
    kept = rules.smoothed(raw, _tensor(before), beta=config.fitness_smoothing)
    return [float(fitness) for fitness in kept]


def ready_members(fitness: Sequence[float]) -> int:
    """Return how many members have a fitness that is known."""
    return sum(map(math.isfinite, fitness))


def is_ready(
    config: PopulationConfig, outcomes: Sequence[Outcome], fitness: Sequence[float]
) -> bool:
    """Return whether enough members have a fitness.

    Those that kept diverging do not count: they never will have one unless they copy somebody.
    """
    waiting = sum(not outcome.stopped for outcome in outcomes)
    known = ready_members(fitness)
    return known > 0 and known >= math.ceil(config.ready_percentage * waiting)


def decide(
    config: PopulationConfig,
    base: TrainConfig,
    *,
    round_: int,
    outcomes: Sequence[Outcome],
    fitness: Sequence[float],
    values: Sequence[Mapping[str, Value]],
) -> list[Decision]:
    """Return what each member does before the round after this one.

    Args:
        config: of the population.
        base: settings that the members have in common.
        round_: that is over.
        outcomes: of all members, by number.
        fitness: by which they are compared, by number.
        values: of each member in this round.
    """
    if not is_ready(config, outcomes, fitness):
        reason = f"only {ready_members(fitness)} of {len(fitness)} members have a fitness"
        return [Decision(i, i, values[i], reason) for i in range(len(fitness))]
    known = _tensor([value if math.isfinite(value) else math.nan for value in fitness])
    uniform = torch.from_numpy(draws(config, f"round.{round_}.sources", len(fitness)))
    order = rules.ranking(known, mode=config.metric_mode)
    if config.exploit_method == "truncation":
        sources = rules.truncation_sources(order, uniform, ratio=config.truncation_ratio)
    else:
        sources = rules.tournament_sources(known, uniform, mode=config.metric_mode)
    places = {int(member): place for place, member in enumerate(order, start=1)}
    decisions = []
    for member, source in enumerate(map(int, sources)):
        rank = f"place {places[member]} of {len(fitness)}"
        if source == member or not math.isfinite(fitness[source]):  # nobody known to copy
            decisions.append(Decision(member, member, values[member], f"{rank}: goes on"))
            continue
        reason = f"{rank}: copies member {source} at place {places[source]}"
        new = explored_values(config, values[source], round_=round_, member=member)
        try:
            with_values(base, new)
        except ConfigError as error:
            new = dict(values[source])
            reason += f"; its values stay, since others are refused: {error.wrong}"
        explored = new != dict(values[source])
        decisions.append(Decision(member, source, new, reason, stream_of(round_, member), explored))
    return decisions


def _tensor(values: Sequence[float]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64)
