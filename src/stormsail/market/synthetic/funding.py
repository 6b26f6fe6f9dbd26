"""Funding rates of synthetic perpetuals."""

import numpy as np
import pyarrow as pa

from stormsail.market.bars import Funding
from stormsail.market.synthetic.autoregression import stationary
from stormsail.market.synthetic.world import Streams, WorldConfig

PERIOD_MS = 8 * 3_600_000
"""Settlements at 00:00, 08:00 and 16:00 UTC."""

_DECIMALS = 8  # as exchanges publish rates


def draw_funding(
    symbol: str, config: WorldConfig, streams: Streams, *, start_ms: int, end_ms: int
) -> Funding:
    """Return the rates of all settlements in [start, end).

    f_k − mean = persistence · (f_{k−1} − mean) + e_k, Gaussian and stationary: the expected
    distance from the mean shrinks by the factor `funding_persistence` per settlement.
    """
    first = -(-start_ms // PERIOD_MS) * PERIOD_MS
    ts = np.arange(first, end_ms, PERIOD_MS, dtype=np.int64)
    noise = streams("funding").standard_normal(len(ts))
    away = stationary(
        noise, persistence=config.funding_persistence, deviation=config.funding_deviation
    )
    rate = np.round(config.funding_mean + away, _DECIMALS) + 0.0  # no negative zeros
    return Funding(symbol, pa.table({"ts": ts, "funding_rate": rate}))
