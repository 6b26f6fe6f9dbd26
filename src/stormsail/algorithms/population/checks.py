"""Which settings a population may search: asked of learners that are built with them.

A member takes over the state of another one, so a searched setting must leave the kind and the
shape of that state, and the set of metrics, as they are. No list of names says so: the learner is
built with both ends of every range, is given the state of one with the common settings, and does
one update.
"""

from collections.abc import Mapping
from typing import Any

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.population.config import (
    LEARNING_RATE,
    PopulationConfig,
    ends,
    is_whole,
    with_values,
)
from stormsail.algorithms.population.exploit import exploited_learner
from stormsail.algorithms.population.jobs import Exploit, Value
from stormsail.algorithms.population.member import first_config
from stormsail.algorithms.run import checkpoint
from stormsail.algorithms.run.checkpoint import State
from stormsail.algorithms.run.learners import new_learner
from stormsail.algorithms.run.state_tree import flatten
from stormsail.algorithms.run.tasks import binding, make_task
from stormsail.algorithms.telemetry.metrics import metrics
from stormsail.core.errors import ArtifactError, ConfigError
from stormsail.core.files import tensor_file
from stormsail.core.files.documents import JsonValue
from stormsail.core.task import close


def check_search(base: TrainConfig, population: PopulationConfig) -> None:
    """Refuse a population whose members could not take over each other's state.

    Args:
        base: what the members have in common, without open settings.
        population: its rules and its search.

    Raises:
        ConfigError: for the first setting that cannot be searched, with the reason; or if the first
            values of a member do not fit the other settings.
    """
    # two learners for every setting, of one update each: none is worth a compiler
    base = base.replace(**{"compile_update": False, "task.compile_step": False})
    bound = binding(base)
    state, names = _plain(base, bound)
    for path, search in population.search.items():
        for end in ends(search):
            value = round(float(end)) if is_whole(path) else end
            _check_value(base, population, bound, state, names, path, value)
    for member in range(population.population_size):
        first_config(base, population, member)


def _plain(base: TrainConfig, bound: Mapping[str, JsonValue]) -> tuple[State, set[str]]:
    """Return the state of a learner after one update, and the names of its metrics."""
    task = make_task(base, batch=base.ppo.n_envs)
    try:
        ppo = new_learner(base, task, bound)
        names = set(metrics(ppo, ppo.update()))
        return checkpoint.learner_state(ppo), names
    finally:
        close(task)


def _check_value(
    base: TrainConfig,
    population: PopulationConfig,
    bound: Mapping[str, JsonValue],
    state: State,
    names: set[str],
    path: str,
    value: Value,
) -> None:
    config = with_values(base, {path: value})
    if _common(config) != _common(base):
        raise _unsearchable(path, value, "changes the task, the budget or how members are judged")
    if binding(config) != bound:
        raise _unsearchable(path, value, "changes what an agent is bound to")
    task = make_task(config, batch=config.ppo.n_envs)
    exploit = Exploit(0, "", population.optimizer_exploit_strategy, {path: value})
    try:
        ppo = exploited_learner(base, task, bound, state, state, exploit)
        odd = names ^ set(metrics(ppo, ppo.update()))
    except ArtifactError as error:
        raise _unsearchable(path, value, f"changes the state of a learner: {error.found}") from None
    finally:
        close(task)
    if odd:
        raise _unsearchable(path, value, f"changes the set of metrics by `{min(odd)}`")
    after = checkpoint.learner_state(ppo)
    for part in ("agent", "env_state", "scaler"):
        old, new = (_form(states[part]) for states in (state, after))
        difference = tensor_file.difference(old, new)
        if difference is not None:
            raise _unsearchable(path, value, f"changes the shape of `{part}`: {difference}")


def _common(config: TrainConfig) -> tuple[object, ...]:
    """Return what must be equal among members: task, judge, disk, budget and rollout."""
    ppo = config.ppo
    size = (ppo.total_steps, ppo.n_steps, ppo.n_envs)
    where = (config.seed, config.device, config.threads)
    return (config.task, config.validation, config.checkpoint, *size, *where)


def _form(part: object) -> Any:  # noqa: ANN401 - as `tensor_file` has it
    return tensor_file.specification(flatten(part)[1])


def _unsearchable(path: str, value: Value, reason: str) -> ConfigError:
    return ConfigError(
        "config-inconsistent",
        wrong=f'`population.search."{path}"` must leave state, metrics, task and budget of members '
        "as they are, so that one can take over another",
        found=f"the value {value!r}, which {reason}",
        remedy="Leave the setting out of the search, or narrow it to values that keep them; "
        f"`{LEARNING_RATE}` and coefficients of losses always do.",
    )
