"""Populations so small that several fit into a test, and what must be equal of two of them."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from stormsail.algorithms.population import population as population_module
from stormsail.algorithms.population.config import RunFile
from stormsail.algorithms.population.engines.in_process import InProcess
from stormsail.algorithms.population.jobs import Exploit, Outcome
from stormsail.algorithms.run import checkpoint
from stormsail.algorithms.run.learners import new_learner
from stormsail.algorithms.run.tasks import binding, make_task
from training_lab import small

RATE = "ppo.learning_rate"
SEARCH: dict[str, Any] = {
    RATE: {"min": 1e-4, "max": 5e-3, "is_log_scale": True},
    "ppo.clip_range": {"min": 0.05, "max": 0.3, "perturbation_factor": 1.1},
    "kl.use_ema": {"values": [True, False]},
}
UPDATES, INTERVAL, MEMBERS = 6, 2, 3


def plan(task="cartpole", search=None, changes=None, **population):
    """Return a configuration file of a small population."""
    base = small(task, **{"ppo__total_steps": UPDATES * 32, **(changes or {})})
    table = {
        "population_size": MEMBERS, "perturbation_interval": INTERVAL,
        "search": SEARCH if search is None else search, **population,
    }  # fmt: skip
    return RunFile.from_mapping({**base.model_dump(), "population": table})


def trained(config, updates):
    """Return a learner after some updates."""
    ppo = new_learner(config, make_task(config, batch=config.ppo.n_envs), binding(config))
    for _ in range(updates):
        ppo.update()
    return ppo


def states(source, own):
    return checkpoint.learner_state(source), checkpoint.learner_state(own)


def exploit(strategy, **values):
    return Exploit(0, "", strategy, {name.replace("__", "."): v for name, v in values.items()})


def image(root: Path) -> dict[str, str]:
    """Return the SHA-256 of all files that two equal populations have in common."""
    names = ("config.toml", "population.jsonl", "metrics.parquet", "logs/pbt_training.log")
    files = [root / name for name in names]
    for member in sorted((root / "members").iterdir()):
        files += [member / name for name in ("config.toml", "lineage.json", "metrics.parquet")]
        files += sorted(max((member / "checkpoints").glob("[0-9]*")).iterdir())
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }


class Killed(BaseException):
    """The process is gone; nothing catches this."""


class Dying(InProcess):
    """An engine whose process dies after some jobs, or instead of one."""

    def __init__(self, jobs):
        super().__init__()
        self.left = jobs

    def run(self, call, jobs):
        for job, result in super().run(call, jobs):
            yield job, result
            self.left -= 1
            if self.left == 0:
                raise Killed


class Calling:
    """An engine whose workers carry out something else than the driver asks for."""

    def __init__(self, engine, call):
        self.engine, self.call = engine, call

    def run(self, _, jobs):
        return self.engine.run(self.call, jobs)

    def close(self):
        self.engine.close()


class Untrained:
    """An engine that trains nobody: it remembers the jobs and gives fitness from a table.

    Args:
        fitness: of each round, by member.
    """

    def __init__(self, fitness):
        self.fitness, self.jobs = fitness, []

    @staticmethod
    def prepare(monkeypatch):
        """Let a population neither build learners at its start nor look for checkpoints."""
        monkeypatch.setattr(population_module, "check_search", lambda *_: None)
        monkeypatch.setattr(population_module._Driver, "_stage_parents", lambda *_: None)

    def run(self, _, jobs):
        for job in jobs:
            self.jobs.append(replace(job, root=None))
            fitness = self.fitness[job.round][job.member]
            values = {} if job.exploit is None else dict(job.exploit.values)
            yield job, Outcome(job.member, job.round, fitness, job.target, "", values)

    def close(self):
        pass
