"""Synthetic worlds: markets whose law and best answer are known."""

from stormsail.market.synthetic.generate import START_MS, WORLDS, World, config_of, generate, law_of
from stormsail.market.synthetic.growth import Optimum, best_growth, path_optimum
from stormsail.market.synthetic.world import Law, WorldConfig

__all__ = [
    "START_MS",
    "WORLDS",
    "Law",
    "Optimum",
    "World",
    "WorldConfig",
    "best_growth",
    "config_of",
    "generate",
    "law_of",
    "path_optimum",
]
