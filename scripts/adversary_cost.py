"""Print how much longer an update takes with an adversary, for docs/adversary.md.

    python scripts/adversary_cost.py

Epochs alone are timed, on one thread, the fastest of several updates: the rollout is the same.
"""

import time

import torch

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.algorithms.ppo import Ppo
from stormsail.algorithms.run.tasks import agent_spec, make_task
from stormsail.algorithms.update.epochs import EpochReport
from stormsail.algorithms.update.losses import Batch
from stormsail.algorithms.update.schedules import Scheduled
from stormsail.core.generators import Generators
from stormsail.modules.agent import Agent

UPDATES = 6
SIZE = {"ppo.n_envs": 16, "ppo.n_steps": 32, "ppo.batch_size": 8, "kl.target_kl": None}
KINDS = {
    "off": {},
    "kl_reg, 1 step": {"adversary.mode": "kl_reg", "adversary.attack_steps": 1},
    "kl_reg, 3 steps": {"adversary.mode": "kl_reg"},
    "kl_reg, 10 steps": {"adversary.mode": "kl_reg", "adversary.attack_steps": 10},
    "mixed_batch, 3 steps, half": {"adversary.mode": "mixed_batch"},
}


def learner(changes: dict[str, object]) -> Ppo:
    """Return a learner of these settings."""
    plain = {"task.name": "CartPole-v1", "adversary.warmup_updates": 0, **SIZE}
    config = derive(TrainConfig().replace(**{**plain, **changes}))
    generators = Generators(0)
    task = make_task(config, batch=config.ppo.n_envs)
    agent = Agent(agent_spec(config, task), generators.stream("weights"))
    return Ppo(task, agent, config, generators)


def watched(ppo: Ppo) -> list[float]:
    """Return the list to which every update adds the seconds of its epochs."""
    times: list[float] = []
    learn = ppo._learn

    def timed(data: Batch, now: Scheduled) -> EpochReport:
        start = time.perf_counter()
        report = learn(data, now)
        times.append(time.perf_counter() - start)
        return report

    ppo._learn = timed  # type: ignore[method-assign]
    return times


def main() -> None:
    """Print the table; the kinds take turns, so that other work on the machine hits all alike."""
    torch.set_num_threads(1)
    learners = {name: learner(changes) for name, changes in KINDS.items()}
    times = {name: watched(ppo) for name, ppo in learners.items()}
    for _ in range(UPDATES):
        for ppo in learners.values():
            ppo.update()
    for name in KINDS:
        print(f"{name:28s} {min(times[name]) / min(times['off']):5.2f}")


if __name__ == "__main__":
    main()
