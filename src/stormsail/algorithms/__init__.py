"""Training of agents: PPO updates, CVaR control, checkpoints, and the run around them.

Public names are imported on first use (PEP 562): `import stormsail.algorithms` loads nothing else.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stormsail.algorithms.config import TrainConfig
    from stormsail.algorithms.fit import fitter
    from stormsail.algorithms.run.tasks import market_panel
    from stormsail.algorithms.trainer import Progress, Run, Trainer, train

__all__ = ["Progress", "Run", "TrainConfig", "Trainer", "fitter", "market_panel", "train"]

_MODULES = {
    "Progress": "trainer",
    "Run": "trainer",
    "TrainConfig": "config",
    "Trainer": "trainer",
    "fitter": "fit",
    "market_panel": "run.tasks",
    "train": "trainer",
}


def __getattr__(name: str) -> object:
    """Import a public name from its module."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names, for those who complete a name by typing a part of it."""
    return __all__
