"""Searches that train nobody: scores from a formula, and the document of one written by hand."""

import json
import math
from functools import cache

from stormsail.algorithms.population.jobs import Outcome
from stormsail.algorithms.sweep import search as search_module
from stormsail.core.errors import StormsailError
from training_lab import small

RATE, MEMORY, EPOCHS = "ppo.learning_rate", "network.memory", "ppo.n_epochs"
PLANTED = 1e-3
OVER = {RATE: "log:1e-5:1e-1", MEMORY: "none,lstm"}
TOTAL = 900


class Killed(BaseException):
    """The process is gone; nothing catches this."""


@cache
def base(**changes):
    """Return what the trials have in common; a learning rate may be as large as it likes."""
    return small(
        "cartpole", **{"ppo__total_steps": TOTAL, "ppo__optimizer_lr_max": None, **changes}
    )


def distance(values):
    """Return how many powers of ten a learning rate lies from the planted one."""
    return abs(math.log10(values[RATE] / PLANTED))


def planted(job):
    """Return the score of a trial: highest at the planted learning rate with an LSTM."""
    worse = 2.0 if job.values.get(MEMORY) == "none" else 0.0
    fitness = -distance(job.values) - worse - 0.01 * (2 - job.round)
    return Outcome(job.member, job.round, fitness, job.target, "", {}, {"score": fitness})


def untrained(monkeypatch, advance=planted):
    """Let a search train nobody: a function gives the outcome of each piece of work."""
    monkeypatch.setattr(search_module, "advance", advance)
    monkeypatch.setattr(search_module, "close_trial", lambda *_: None)
    monkeypatch.setattr(search_module, "trained_config", lambda *_: base())
    return search_module.search


def refused(call, *arguments, **options):
    """Return the error with which a call is refused."""
    try:
        call(*arguments, **options)
    except StormsailError as error:
        return error
    raise AssertionError("it was not refused")


def document():
    """Return the document of a search over a number and a word, with every state of a trial."""
    states = ("finished", "pruned", "finished", "diverged", "refused", "finished", "finished")
    scores = ([1.0, 2.0], [0.5], [1.5, 4.0], [], [], [1.2, 3.0], [1.1, 2.5])
    rates = (1e-3, 1e-5, 5e-3, 1e-1, 1e-2, 4e-3, 2e-3)
    return {
        "kind": "search", "format": 1, "code_version": "0", "task": "market",
        "metric_mode": "max", "rungs": [300, 900],
        "over": {
            RATE: {"min": 1e-5, "max": 1e-1, "values": None, "is_log_scale": True},
            MEMORY: {"min": None, "max": None, "values": ["none", "a<b"], "is_log_scale": False},
        },
        "trials": [
            {
                "number": number, "state": state, "reason": "pruned" if state == "pruned" else "",
                "values": {RATE: rate, MEMORY: ("none", "a<b")[number % 2]},
                "scores": [[300 * 3**k, value] for k, value in enumerate(own)],
                "metrics": {"sharpe": 1.0},
            }
            for number, (state, own, rate) in enumerate(zip(states, scores, rates, strict=True))
        ],
        "best": 2,
        "importance": {MEMORY: 0.2, RATE: 0.8},
    }  # fmt: skip


def write_search(folder, contents=None):
    """Write a search as a report reads it."""
    folder.mkdir(parents=True)
    (folder / "search.json").write_text(json.dumps(contents or document()))
    return folder
