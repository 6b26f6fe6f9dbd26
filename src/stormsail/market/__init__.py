"""Market data and the simulator that trades it.

`bars`, `store` and `panel` hold data; `importers` and `fetch` bring it in; `checks` finds defects;
`synthetic` draws markets whose best strategy is known; `features` and `splits` prepare data for
learning; `simulator` trades it and `gymnasium` wraps the simulator as an environment.
"""

from stormsail.core.gymnasium_hook import register_with_gymnasium
from stormsail.market.bars import Bars, Funding
from stormsail.market.interval import Interval
from stormsail.market.panel import Panel, load_panel
from stormsail.market.simulator import MarketConfig, Simulator
from stormsail.market.store import Store

__all__ = [
    "Bars",
    "Funding",
    "Interval",
    "MarketConfig",
    "Panel",
    "Simulator",
    "Store",
    "load_panel",
]

register_with_gymnasium()
