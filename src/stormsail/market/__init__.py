"""Bars to simulator: data in, checked, aligned, described by causal features, traded.

`bars`, `store` and `panel` hold data; `importers` and `fetch` bring it in; `validate` looks at it;
`synthetic` draws worlds whose answer is known; `features` and `splits` prepare it for learning;
`simulator` trades it.
"""

import stormsail.core.gymnasium_plugin  # noqa: F401 - makes `stormsail/Market-v0` known
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
