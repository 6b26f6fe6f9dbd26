"""Synthetic worlds: markets whose law and best answer are known."""

from stormsail.market.synthetic.generate import (
    START_MS,
    WORLDS,
    World,
    config_of,
    generate,
    process_of,
)
from stormsail.market.synthetic.growth import Optimum, best_growth, path_optimum
from stormsail.market.synthetic.world import Process, WorldConfig

__all__ = [
    "START_MS",
    "WORLDS",
    "Optimum",
    "Process",
    "World",
    "WorldConfig",
    "best_growth",
    "config_of",
    "generate",
    "path_optimum",
    "process_of",
]
