"""The simulator as Gymnasium environments, single and vector."""

from typing import TYPE_CHECKING

from stormsail.core.lazy import lazy_exports

if TYPE_CHECKING:
    from stormsail.market.gymnasium.env import MarketEnv
    from stormsail.market.gymnasium.stable_baselines import StableBaselinesEnv
    from stormsail.market.gymnasium.vector import MarketVectorEnv

__all__ = ["MarketEnv", "MarketVectorEnv", "StableBaselinesEnv"]

_EXPORTS = {
    "env": ("MarketEnv",),
    "stable_baselines": ("StableBaselinesEnv",),
    "vector": ("MarketVectorEnv",),
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
