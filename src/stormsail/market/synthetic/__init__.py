"""Synthetic markets whose data-generating process and best strategy are known."""

from stormsail.market.synthetic.generate import (
    START_MS,
    WORLDS,
    World,
    all_worlds,
    config_of,
    generate,
    process_of,
    write_world,
)
from stormsail.market.synthetic.growth import Optimum, best_growth, path_optimum
from stormsail.market.synthetic.own import world
from stormsail.market.synthetic.process import Process, WorldConfig

__all__ = [
    "START_MS",
    "WORLDS",
    "Optimum",
    "Process",
    "World",
    "WorldConfig",
    "all_worlds",
    "best_growth",
    "config_of",
    "generate",
    "path_optimum",
    "process_of",
    "world",
    "write_world",
]
