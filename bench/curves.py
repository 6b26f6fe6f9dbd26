"""Learning curves of two precisions: eager float32 beside captured bfloat16, seed by seed.

    PYTHONPATH=src python bench/curves.py --task cartpole|oracle --way eager|captured [--out FILE]
    PYTHONPATH=src python bench/curves.py --compare EAGER.json CAPTURED.json

The same settings and seeds; what differs is `precision` and `cuda_graphs`. Compared are the means
of the last updates, by seed, with Student's interval of their difference.
"""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import torch

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.algorithms.learner_tests import world_config
from stormsail.algorithms.ppo import Ppo
from stormsail.algorithms.run.tasks import agent_spec, make_task
from stormsail.algorithms.telemetry.metrics import metrics
from stormsail.core.generators import Generators
from stormsail.modules.agent import Agent

WAYS = {
    "eager": {"precision": "float32", "cuda_graphs": "off"},
    "captured": {"precision": "bf16", "cuda_graphs": "auto"},
}
METRICS = {"cartpole": "rollout/episode_return_mean", "oracle": "rollout/reward_mean"}
LAST = 5
"""Updates at the end whose mean is compared."""
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 8: 2.365, 10: 2.262}
"""97.5 % quantile of Student's distribution for a number of seeds."""


def settings(task: str, way: str, seed: int, device: str, updates: int) -> TrainConfig:
    """Return the configuration of one run."""
    environments = 64 if task == "cartpole" else 256
    wanted: dict[str, Any] = {
        "device": device,
        "seed": seed,
        "task.name": "CartPole-v1" if task == "cartpole" else "market",
        "task.compile_step": False,
        "ppo.n_envs": environments,
        "ppo.n_steps": 64,
        "ppo.sequence_length": 32,
        "ppo.batch_size": environments // 2,
        "ppo.n_epochs": 4,
        "ppo.learning_rate": 1e-3,
        "ppo.total_steps": updates * environments * 64,
        "network.lstm_hidden_size": 64,
        "network.encoder_sizes": (64,),
        "network.head_sizes": (64,),
        "vgs.enabled": True,
        "validation.every_updates": 0,
        **WAYS[way],
    }
    config = TrainConfig().replace(**wanted)
    if task == "oracle":
        config = world_config(config.replace(**{"task.market.episode_bars": 64}), "oracle")
    return derive(config)


def curve(task: str, way: str, seed: int, *, device: str, updates: int) -> list[float]:
    """Return the metric of every update of one run; NaN where there is none."""
    config = settings(task, way, seed, device, updates)
    made = make_task(config, batch=config.ppo.n_envs)
    agent = Agent(agent_spec(config, made), Generators(config.seed).stream("weights"))
    ppo = Ppo(made, agent.to(device), config, Generators(config.seed, device=device))
    return [metrics(ppo, ppo.update())[METRICS[task]] for _ in range(updates)]


def final(values: list[float]) -> float:
    """Return the mean of the last known values."""
    known = [value for value in values if math.isfinite(value)][-LAST:]
    return math.fsum(known) / len(known)


def compare(first: dict[str, list[float]], second: dict[str, list[float]]) -> dict[str, Any]:
    """Return both means and the interval of their difference over the seeds of both."""
    seeds = sorted(set(first) & set(second))
    ends = [(final(first[seed]), final(second[seed])) for seed in seeds]
    gaps = [b - a for a, b in ends]
    count = len(gaps)
    mean = math.fsum(gaps) / count
    spread = math.sqrt(math.fsum((gap - mean) ** 2 for gap in gaps) / max(count - 1, 1))
    reach = STUDENT.get(count, 2.0) * spread / math.sqrt(count) if count > 1 else math.inf
    return {
        "seeds": count,
        "eager float32": math.fsum(a for a, _ in ends) / count,
        "captured bf16": math.fsum(b for _, b in ends) / count,
        "difference": mean,
        "interval": [mean - reach, mean + reach],
        "begins": math.fsum(final(first[seed][: LAST + 1]) for seed in seeds) / count,
    }


def main() -> int:
    """Run the seeds of one way, or compare two."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=tuple(METRICS), default="cartpole")
    parser.add_argument("--way", choices=tuple(WAYS), default="captured")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compare", type=Path, nargs=2)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if asked.compare:
        out: dict[str, Any] = compare(*(json.loads(path.read_text()) for path in asked.compare))
    else:
        torch.set_num_threads(1)
        out = {}
        for seed in range(asked.seeds):
            options = {"device": asked.device, "updates": asked.updates}
            out[str(seed)] = curve(asked.task, asked.way, seed, **options)
            if asked.out is not None:
                asked.out.write_text(json.dumps(out))
    sys.stdout.write(json.dumps(out) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
