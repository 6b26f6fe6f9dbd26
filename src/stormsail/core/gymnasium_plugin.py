"""Registers the Gymnasium environment `stormsail/Market-v0` when it is imported.

Since version 1.0 Gymnasium does not load the entry points of installed packages, so a name is
known only after an import. `gymnasium.make("stormsail.core.gymnasium_plugin:stormsail/Market-v0")`
does it by itself. The environments are named as text and loaded when one is made: registering
imports no torch.
"""

import gymnasium

MARKET = "stormsail/Market-v0"
"""Name of the market, single and vector."""

if MARKET not in gymnasium.registry:
    gymnasium.register(
        id=MARKET,
        entry_point="stormsail.market.gymnasium.env:MarketEnv",
        vector_entry_point="stormsail.market.gymnasium.vector:MarketVectorEnv",
    )
