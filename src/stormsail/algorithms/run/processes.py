"""Training in several processes: the first one leads the run, the others do each update with it.

Only the first process knows the run's folder: it writes, evaluates and decides. It hands the others
its learner when the run begins, is resumed or rolled back, and calls them to every update. All
learners stay the same, so a checkpoint is that of a run in one process, and a run may be continued
by another number of processes.
"""

from typing import Any, Literal, NamedTuple

from torch import Tensor

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.algorithms.ppo import Ppo, Update
from stormsail.algorithms.run import checkpoint
from stormsail.algorithms.run.learners import new_learner
from stormsail.algorithms.run.plugins import bring
from stormsail.algorithms.run.state_tree import flatten, unflatten
from stormsail.algorithms.run.tasks import make_task
from stormsail.algorithms.update.nonfinite import Diverged
from stormsail.algorithms.update.schedules import History
from stormsail.core.errors import ConfigError, StormsailError
from stormsail.core.files.documents import JsonValue
from stormsail.core.group import Group
from stormsail.core.signals import handled_signals
from stormsail.core.task import part
from stormsail.core.threads import torch_threads


class Handed(NamedTuple):
    """A learner on its way to the other processes."""

    config: TrainConfig
    bound: dict[str, JsonValue]
    history: History
    trees: dict[str, tuple[JsonValue, dict[str, Tensor]]]
    """State of each part, as a checkpoint has it, on the host."""


Call = Handed | Literal["update", "end"]
"""What the first process asks of the others."""


def check_group(config: TrainConfig, group: Group) -> None:
    """Refuse settings with which several processes would not compute what one does.

    Raises:
        ConfigError: if there are some; it names the first.
    """
    if group.size == 1:
        return
    config = derive(config)
    for name in ("n_envs", "batch_size"):
        if getattr(config.ppo, name) % group.size:
            raise ConfigError(
                "config-inconsistent",
                wrong=f"`ppo.{name}` must be a multiple of the {group.size} processes",
                found=str(getattr(config.ppo, name)),
                remedy="Change it, or the number of processes.",
            )
    alone = {
        "adversary.mode": config.adversary.acts,
        "ppo.nonfinite_policy": config.ppo.nonfinite_policy == "raise",
        "vgs.statistic": config.vgs.enabled and config.vgs.statistic == "microbatch",
        "entropy.entropy_mode": config.entropy.entropy_mode == "corrected_mc",
        "policy.distribution": config.policy.distribution == "beta",
        "observation.obs_stats_update": config.observation.normalise
        and config.observation.obs_stats_update == "online",
        "device": config.device.startswith("cuda:"),
    }
    for path in (path for path, is_set in alone.items() if is_set):
        value: Any = config
        for name in path.split("."):
            value = getattr(value, name)
        raise _refused(f"`{path}` must be one that several processes share exactly", f"`{value}`")
    try:
        plain = config.replace(**{"task.compile_step": False})
        part(make_task(plain, batch=group.size), group.columns(group.size))
    except LookupError as error:
        raise _refused("the environments must be such as can be divided", str(error)) from None


def _refused(wrong: str, found: str) -> ConfigError:
    return ConfigError(
        "config-inconsistent",
        wrong=f"with several processes {wrong}",
        found=found,
        remedy="Change it, or train in one process; `docs/data_parallel.md` lists what is shared.",
    )


def hand_out(ppo: Ppo, bound: dict[str, JsonValue]) -> None:
    """Give the learner of the first process to the others."""
    if ppo.group.size == 1:
        return
    trees = {}
    for name, value in checkpoint.learner_state(ppo).items():
        tree, tensors = flatten(value)
        trees[name] = tree, {path: tensor.cpu() for path, tensor in tensors.items()}
    ppo.group.tell(Handed(ppo.config, bound, ppo.history, trees))


def update_together(ppo: Ppo) -> Update:
    """Do one update, in all processes."""
    ppo.group.tell("update")
    return ppo.update()


def end(group: Group) -> None:
    """Let the other processes go."""
    if group.rank == 0:
        group.tell("end")


def follow(group: Group) -> None:
    """Do what the first process asks for, until it says that the run has ended.

    Signals are left to it: what interrupts all processes lets it finish the update and save.
    """
    ppo: Ppo | None = None
    with handled_signals(lambda _: None):
        while True:
            call: Call = group.tell("end")
            if isinstance(call, Handed):
                ppo = _received(call, group)
            elif call == "end" or ppo is None:
                return
            else:
                _update(ppo)


def _received(handed: Handed, group: Group) -> Ppo:
    """Return the learner that the first process has handed out."""
    config = bring(handed.config)
    task = make_task(config, batch=config.ppo.n_envs)
    ppo = new_learner(config, task, handed.bound, handed.history, group=group)
    state = {name: unflatten(*tree) for name, tree in handed.trees.items()}
    checkpoint.restore_learner(ppo, state)
    return ppo


def _update(ppo: Ppo) -> None:
    """Do one update. What goes wrong goes wrong in the first process, too, which decides on it."""
    try:
        with torch_threads(ppo.config.threads):
            ppo.update()
    except (Diverged, StormsailError):
        return
