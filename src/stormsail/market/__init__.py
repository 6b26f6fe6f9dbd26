"""Market data and the simulator that trades it.

`bars`, `store` and `panel` hold data; `importers` and `fetch` bring it in; `checks` finds defects;
`synthetic` draws markets whose best strategy is known; `features` and `splits` prepare data for
learning; `simulator` trades it and `gymnasium` wraps the simulator as an environment. Names are
imported on first use (PEP 562): importing and checking data load no torch.
"""

from typing import TYPE_CHECKING

from stormsail.core.gymnasium_hook import register_with_gymnasium
from stormsail.core.lazy import lazy_exports

if TYPE_CHECKING:
    from stormsail.market.bars import Bars, Funding
    from stormsail.market.interval import Interval
    from stormsail.market.panel import Panel, load_panel
    from stormsail.market.simulator import MarketConfig, Simulator
    from stormsail.market.splits import Span, split_by_time
    from stormsail.market.store import Store

__all__ = [
    "Bars",
    "Funding",
    "Interval",
    "MarketConfig",
    "Panel",
    "Simulator",
    "Span",
    "Store",
    "load_panel",
    "split_by_time",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "bars": ("Bars", "Funding"),
        "interval": ("Interval",),
        "panel": ("Panel", "load_panel"),
        "simulator": ("MarketConfig", "Simulator"),
        "splits": ("Span", "split_by_time"),
        "store": ("Store",),
    },
)

register_with_gymnasium()
