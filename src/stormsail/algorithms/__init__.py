"""Training of agents: PPO updates, CVaR control, checkpoints, and the run around them.

Public names are imported on first use (PEP 562): `import stormsail.algorithms` loads nothing else.
"""

from typing import TYPE_CHECKING

from stormsail.core.lazy import lazy_exports

if TYPE_CHECKING:
    from stormsail.algorithms.callbacks import (
        Callback,
        Checkpoint,
        Evaluated,
        Progress,
        Stop,
        callback,
    )
    from stormsail.algorithms.config import TrainConfig
    from stormsail.algorithms.fit import fitter
    from stormsail.algorithms.population.config import RunFile
    from stormsail.algorithms.population.population import PopulationRun, train_population
    from stormsail.algorithms.run.tasks import market_panel
    from stormsail.algorithms.sweep.search import SearchRun, search
    from stormsail.algorithms.trainer import Run, Trainer, train

__all__ = [
    "Callback",
    "Checkpoint",
    "Evaluated",
    "PopulationRun",
    "Progress",
    "Run",
    "RunFile",
    "SearchRun",
    "Stop",
    "TrainConfig",
    "Trainer",
    "callback",
    "fitter",
    "market_panel",
    "search",
    "train",
    "train_population",
]

_EXPORTS = {
    "callbacks": ("Callback", "Checkpoint", "Evaluated", "Progress", "Stop", "callback"),
    "config": ("TrainConfig",),
    "fit": ("fitter",),
    "population.config": ("RunFile",),
    "population.population": ("PopulationRun", "train_population"),
    "run.tasks": ("market_panel",),
    "sweep.search": ("SearchRun", "search"),
    "trainer": ("Run", "Trainer", "train"),
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
