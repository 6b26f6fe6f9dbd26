"""Read searched values back from the learner: from what it computes with, not from a configuration.

A learner keeps many settings in more than one place: a learning rate in its schedule and in every
parameter group, a gain in the controller that was built from it. A value counts as applied when
every place agrees with what a learner of the wanted configuration computes.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from torch import Tensor

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.population.config import value_of, with_values
from stormsail.algorithms.population.jobs import Value
from stormsail.algorithms.ppo import BC_SHARES, Ppo
from stormsail.algorithms.risk.control import RiskControl
from stormsail.algorithms.update import optimizers, schedules
from stormsail.algorithms.update.entropy_schedule import EntropySchedule
from stormsail.core.errors import InvariantError


class Reading(NamedTuple):
    """One place of a learner that holds a value."""

    place: str
    used: object
    wanted: object


def read_back(ppo: Ppo, values: Mapping[str, Value]) -> dict[str, Value]:
    """Return what a learner uses for each searched setting, after checking every place of it.

    Of a setting that a schedule moves, this is the value of the coming update: the learning rate
    after that much of its decay.

    Args:
        ppo: the learner.
        values: wanted, by path.

    Raises:
        InvariantError: if a place holds something else.
    """
    wanted = with_values(ppo.config, values)
    used: dict[str, Value] = {}
    for path in values:
        readings = [*_readings(ppo, wanted, path)]
        for reading in readings:
            if reading.used != reading.wanted:
                raise InvariantError(
                    "value-not-applied",
                    wrong=f"`{path}` must be {reading.wanted!r} in {reading.place}",
                    found=repr(reading.used),
                    remedy="This is a bug of stormsail; please report it with the configuration.",
                )
        first = readings[0].used
        used[path] = first if isinstance(first, bool | int | float | str) else values[path]
    return used


def _readings(ppo: Ppo, wanted: TrainConfig, path: str) -> Iterator[Reading]:
    """Yield all places of a setting; what acts first, then the parts that keep a copy."""
    section, _, name = path.partition(".")
    if path in _SCHEDULED:
        yield from _SCHEDULED[path](ppo, wanted)
    if section == "optimizer":
        yield from _in_groups(ppo, wanted, name)
    if section == "vgs" and ppo.pipeline.scaler is not None:
        yield Reading("the scaler", getattr(ppo.pipeline.scaler, name), value_of(wanted, path))
    for place, owner in _owners(ppo, section):
        yield Reading(place, getattr(owner, name), value_of(wanted, path))
    yield Reading("the learner", value_of(ppo.config, path), value_of(wanted, path))


def _owners(ppo: Ppo, section: str) -> Iterator[tuple[str, object]]:
    """Yield the parts that keep a section of settings of their own."""
    parts: dict[str, tuple[tuple[str, object], ...]] = {
        "kl": (("the KL control", ppo.kl.config),),
        "entropy": (("the entropy schedule", ppo.entropy.config),),
        "returns": (("the return statistics", ppo.returns.config),),
        "critic": (("the agent", ppo.agent.spec.critic),),
        "policy": (("the agent", ppo.agent.spec.policy),),
        "network": (("the agent", ppo.agent.spec.network),),
    }
    yield from parts.get(section, ())
    if section == "risk" and ppo.risk is not None:
        yield "the risk control", ppo.risk.config.risk
        if isinstance(ppo.risk, RiskControl):
            yield "the multiplier", ppo.risk.dual.config
            yield "the gate", ppo.risk.gate.config


def _rates(ppo: Ppo, wanted: TrainConfig) -> Iterator[Reading]:
    rate = schedules.learning_rate(wanted.ppo, ppo.steps, ppo.history.extensions) * ppo.rate_factor
    yield Reading("the schedule", ppo.schedule().learning_rate, rate)
    for number, group in enumerate(ppo.optimizer.param_groups):
        factor = group.get(optimizers.RATE_FACTOR, 1.0)
        yield Reading(f"parameter group {number}", _plain(group["lr"]), rate * factor)


def _head_rates(ppo: Ppo, wanted: TrainConfig) -> Iterator[Reading]:
    factor = wanted.critic.learning_rate_factor
    if ppo.heads is not None:  # the epochs leave the heads as they are
        yield Reading("the steps of the heads", ppo.heads.factor, factor)
        yield from _rates(ppo, wanted)
        return
    yield Reading(
        "the last parameter group",
        ppo.optimizer.param_groups[-1].get(optimizers.RATE_FACTOR, 1.0),
        1.0 if factor is None else factor,
    )
    yield from _rates(ppo, wanted)


def _clip(ppo: Ppo, wanted: TrainConfig) -> Iterator[Reading]:
    clip = schedules.clip_range(wanted.ppo, ppo.update_count)
    yield Reading("the schedule", ppo.schedule().clip_range, clip)


def _critic_weight(ppo: Ppo, wanted: TrainConfig) -> Iterator[Reading]:
    weight = schedules.vf_coef(wanted.ppo, ppo.update_count, ppo.explained_variance)
    yield Reading("the schedule", ppo.schedule().vf_coef, weight)


def _awr(ppo: Ppo, wanted: TrainConfig) -> Iterator[Reading]:
    coefficient = schedules.bc_coef(wanted.bc, ppo.history.planned_steps(ppo.steps, BC_SHARES))
    yield Reading("the schedule", ppo.schedule().bc_coef, coefficient)


def _entropy(ppo: Ppo, wanted: TrainConfig) -> Iterator[Reading]:
    own = EntropySchedule(wanted.entropy, ppo.entropy.updates, ppo.planned_update)
    own.load_state_dict(ppo.entropy.state_dict())
    coefficient = own.coefficient(ppo.update_count).effective
    yield Reading("the schedule", ppo.schedule().ent_coef, coefficient)


def _radius(ppo: Ppo, wanted: TrainConfig) -> Iterator[Reading]:
    used = schedules.progress(wanted.ppo, ppo.steps, ppo.history.extensions)
    radius = schedules.epsilon(wanted.adversary, used, update=ppo.update_count)
    yield Reading("the schedule", ppo.schedule().epsilon, radius)


def _norm(ppo: Ppo, wanted: TrainConfig) -> Iterator[Reading]:
    yield Reading("the gradient pipeline", ppo.pipeline.max_grad_norm, wanted.ppo.max_grad_norm)


_SCHEDULED: dict[str, Callable[[Ppo, TrainConfig], Iterator[Reading]]] = {
    "ppo.learning_rate": _rates,
    "ppo.learning_rate_final": _rates,
    "critic.learning_rate_factor": _head_rates,
    "ppo.clip_range": _clip,
    "ppo.vf_coef": _critic_weight,
    "ppo.max_grad_norm": _norm,
    "bc.awr_coef": _awr,
    "entropy.ent_coef": _entropy,
    "entropy.ent_coef_final": _entropy,
    "entropy.ent_coef_min": _entropy,
    "adversary.epsilon": _radius,
    "adversary.epsilon_final": _radius,
}
"""Settings that act through a schedule, an optimizer or a pipeline."""


def _in_groups(ppo: Ppo, wanted: TrainConfig, name: str) -> Iterator[Reading]:
    """Yield a setting of the optimizer as each of its parameter groups holds it."""
    if name == "optimizer_class":
        chosen = wanted.optimizer.optimizer_class
        yield Reading("the optimizer", type(ppo.optimizer).__name__, chosen)
        return
    value: object = getattr(wanted.optimizer, name)
    if name == "weight_decay":
        value = optimizers.weight_decay(wanted.optimizer)
    for number, group in enumerate(ppo.optimizer.param_groups):
        place = f"parameter group {number}"
        if name in ("beta1", "beta2"):
            yield Reading(place, group["betas"][name == "beta2"], value)
        elif name in group:
            yield Reading(place, _plain(group[name]), value)


def _plain(value: object) -> object:
    return float(value) if isinstance(value, Tensor) else value
