"""Random bars for the look-ahead test: every column, gaps, bars without volume, jumps."""

import torch
from torch import Tensor

from stormsail.market.features.tensors import FUNDING, BarTensors
from stormsail.market.interval import Interval

_START_MS = 1_609_459_200_000  # 2021-01-01, a Friday
_GAP_SHARE = 0.03  # of bars at which a gap begins
_GAP_BARS = 6  # longest gap


def sample_bars(
    *, rows: int, symbols: int, interval: Interval, generator: torch.Generator
) -> BarTensors:
    """Return random bars of `symbols` walks, in float64 on the generator's device.

    About a tenth of the bars are missing and carried as a panel carries them: all four prices
    repeat the last close and the volumes are 0.
    """

    def draw(kind: str) -> Tensor:
        empty = torch.empty((rows, symbols), dtype=torch.float64, device=generator.device)
        if kind == "normal":
            return empty.normal_(generator=generator)
        return empty.uniform_(generator=generator)

    here = ~_gaps(draw("uniform"), draw("uniform"))
    jump = torch.where(draw("uniform") < 0.01, 5.0, 1.0)
    step = torch.where(here, 0.01 * jump * draw("normal"), 0.0)
    gap = torch.where(here, 0.002 * draw("normal"), 0.0)
    close = 100.0 * (step + gap).cumsum(0).exp()
    start = close * (-step).exp()
    wick = torch.where(here, 0.004 * draw("uniform"), 0.0), 0.004 * draw("uniform")
    high = torch.maximum(start, close) * (1.0 + wick[0])
    low = torch.minimum(start, close) * (1.0 - torch.where(here, wick[1], 0.0))
    volume = torch.where(here, (1.0 + 0.5 * draw("normal")).exp(), 0.0)
    bought = volume * draw("uniform")
    ts = _START_MS + interval.milliseconds * torch.arange(rows, device=generator.device)
    every = max(1, 8 * 3_600_000 // interval.milliseconds)
    settles = (torch.arange(rows, device=generator.device) % every == 0).unsqueeze(-1)
    columns = {
        "open": start,
        "high": high,
        "low": low,
        "close": close,
        "volume": volume,
        "quote_volume": volume * close,
        "trades": (volume * 10.0).floor(),
        "taker_buy_base": bought,
        "taker_buy_quote": bought * close,
        FUNDING: torch.where(settles, 1e-4 * draw("normal"), 0.0),
    }
    return BarTensors(ts, interval, columns)


def _gaps(begins: Tensor, lasts: Tensor) -> Tensor:
    """Return where bars are missing: gaps of 1 to 6 bars, never in the first row."""
    length = torch.where(begins < _GAP_SHARE, (lasts * _GAP_BARS).floor() + 1.0, 0.0)
    missing = torch.zeros_like(begins, dtype=torch.bool)
    for back in range(_GAP_BARS):
        missing[1 + back :] |= length[1 : length.shape[0] - back] > back
    return missing
