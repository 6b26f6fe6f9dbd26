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
from stormsail.core.generators import Generators
from stormsail.modules.agent import Agent

UPDATES = 5
SIZE = {"ppo.n_envs": 16, "ppo.n_steps": 32, "ppo.batch_size": 8, "kl.target_kl": None}
KINDS = {
    "off": {},
    "kl_reg, 1 step": {"adversary.mode": "kl_reg", "adversary.attack_steps": 1},
    "kl_reg, 3 steps": {"adversary.mode": "kl_reg"},
    "kl_reg, 10 steps": {"adversary.mode": "kl_reg", "adversary.attack_steps": 10},
    "mixed_batch, 3 steps, half": {"adversary.mode": "mixed_batch"},
}


def seconds(changes: dict[str, object]) -> float:
    """Return the shortest time of the epochs of an update."""
    plain = {"task.name": "CartPole-v1", "adversary.warmup_updates": 0, **SIZE}
    config = derive(TrainConfig().replace(**{**plain, **changes}))
    generators = Generators(0)
    task = make_task(config, batch=config.ppo.n_envs)
    ppo = Ppo(
        task, Agent(agent_spec(config, task), generators.stream("weights")), config, generators
    )
    times: list[float] = []
    learn = ppo._learn

    def timed(*arguments: object) -> object:
        start = time.perf_counter()
        report = learn(*arguments)  # type: ignore[arg-type]
        times.append(time.perf_counter() - start)
        return report

    ppo._learn = timed  # type: ignore[assignment, method-assign]
    for _ in range(UPDATES + 1):
        ppo.update()
    return min(times)


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    base = seconds(KINDS["off"])
    for name, changes in KINDS.items():
        print(f"{name:28s} {seconds(changes) / base:5.2f}")


if __name__ == "__main__":
    main()
