"""Panels and configurations for tests of the simulator, and a short way to run one."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from stormsail.market import Interval, MarketConfig, Panel, Simulator
from stormsail.market.features import FeatureSet, Scaler
from stormsail.market.simulator import Info, State

START_MS = 1_609_718_400_000  # 2021-01-04 00:00 UTC, a Monday
HOUR_MS = 3_600_000
SYMBOL = "AAA/USDT:USDT"
FREE = {"costs.taker_fee": 0.0, "costs.half_spread": 0.0, "costs.impact": 0.0}
"""Changes that make trading cost nothing."""


def market(
    bars: Sequence[Sequence[float]] | Mapping[str, Sequence[Sequence[float]]],
    *,
    volume: float | Sequence[float] = 1e9,
    funding: Mapping[int, float] | None = None,
    closed: Sequence[int] = (),
    interval: str = "1h",
    start_ms: int = START_MS,
    quote_volume: Sequence[float] | None = None,
) -> Panel:
    """Return a panel of (open, high, low, close) rows, of one symbol or by name.

    `funding` is a rate by row; `closed` are rows without a bar, whose prices are kept as given.
    """
    by_name = bars if isinstance(bars, Mapping) else {SYMBOL: bars}
    prices = torch.tensor([list(rows) for rows in by_name.values()], dtype=torch.float64)
    prices = prices.transpose(0, 1)  # [T, S, 4]
    rows, symbols = prices.shape[:2]
    step = Interval.parse(interval)
    tradable = torch.ones(rows, symbols, dtype=torch.bool)
    rates = torch.zeros(rows, symbols, dtype=torch.float64)
    for row, rate in (funding or {}).items():
        rates[row] = rate
    for row in closed:
        tradable[row] = False
    column = torch.as_tensor(volume, dtype=torch.float64).expand(rows)[:, None]
    optional = {}
    if quote_volume is not None:
        optional["quote_volume"] = torch.tensor(quote_volume).double()[:, None].repeat(1, symbols)
    return Panel(
        symbols=tuple(by_name),
        interval=step,
        ts=start_ms + step.milliseconds * torch.arange(rows),
        **{name: prices[..., k].clone() for k, name in enumerate(("open", "high", "low", "close"))},
        volume=column.repeat(1, symbols),
        tradable=tradable,
        listed=torch.ones(rows, symbols, dtype=torch.bool),
        funding=rates,
        has_funding=torch.ones(symbols, dtype=torch.bool),
        funding_outside=(0,) * symbols,
        optional=optional,
    )


def steady(prices: Sequence[float]) -> list[tuple[float, float, float, float]]:
    """Return bars that stand still at one price each: between them the market jumps."""
    return [(price, price, price, price) for price in prices]


def settings(*, leverage: float = 1.0, **changes: object) -> MarketConfig:
    """Return a free market with continuous weights; a double underscore reaches into a section."""
    dotted = {name.replace("__", "."): value for name, value in changes.items()}
    base = {
        "action": "continuous",
        "weight_range": (-leverage, leverage),
        "limits.max_leverage": leverage,
        "levels": (-leverage, 0.0, leverage),
        **FREE,
    }
    return MarketConfig().replace(**{**base, **dotted})


def plain_features(panel: Panel) -> FeatureSet:
    """Return one feature that needs two bars."""
    return FeatureSet(["log_return"], interval=panel.interval)


def plain_scaler(features: FeatureSet) -> Scaler:
    """Return a scaler that changes nothing, so that no row depends on later ones."""
    count = len(features.names)
    zeros = torch.zeros(count, dtype=torch.float64)
    return Scaler(features.schema(), zeros, torch.ones_like(zeros), clip=1e6)


def simulator(
    panel: Panel,
    config: MarketConfig,
    *,
    batch: int = 1,
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
    **options: object,
) -> Simulator:
    """Return a simulator with one plain feature."""
    features = plain_features(panel)
    chosen = {"features": features, "scaler": plain_scaler(features), **options}
    return Simulator(panel, config, batch=batch, dtype=dtype, device=device, **chosen)


def at(sim: Simulator, *, row: int = 0, symbol: int = 0, last_row: int | None = None) -> State:
    """Return all environments placed at one row."""
    place = torch.full((sim.batch,), row)
    last = None if last_row is None else torch.full((sim.batch,), last_row)
    return sim.place(torch.full((sim.batch,), symbol), place, last_row=last)[0]


def draws(sim: Simulator, seed: int = 0) -> torch.Tensor:
    """Return the uniform numbers of one transition."""
    return sim.draw(torch.Generator().manual_seed(seed))


def play(
    panel: Panel,
    config: MarketConfig,
    weights: Sequence[float],
    *,
    row: int = 0,
    dtype: torch.dtype = torch.float64,
) -> tuple[list[Info], list[State], list[dict[str, float]]]:
    """Trade one account; return infos, states (the first one included) and plain numbers."""
    sim = simulator(panel, config, dtype=dtype)
    state = at(sim, row=row)
    infos, states, numbers = [], [state], []
    for index, weight in enumerate(weights):
        action = torch.tensor([weight], dtype=dtype)
        state, step = sim.transition(state, action, draws(sim, index))
        infos.append(step.info)
        states.append(state)
        kept = {
            name: value.item() for name, value in step.info._asdict().items() if value.ndim == 1
        }
        flags = {"terminated": step.terminated.item(), "truncated": step.truncated.item()}
        numbers.append({**kept, **flags, "reward": step.reward.item()})
    return infos, states, numbers


def wild_panel(
    seed: int, *, rows: int, symbols: int = 3, calm: bool = False, quoted: bool = False
) -> Panel:
    """Return random bars with jumps, holes, dead volume and funding; `calm` leaves those out."""
    rng = np.random.default_rng(seed)
    shape = (rows, symbols)
    size = 0.004 if calm else 0.02
    overnight = size * 0.3 * rng.standard_t(4, shape)
    if not calm:
        jump = rng.random(shape) < 0.04
        overnight += jump * rng.normal(0.0, 0.15, shape)
    inside = size * rng.standard_t(4, shape)
    close = 100.0 * np.exp(np.cumsum(overnight + inside, 0)) * (1.0 + np.arange(symbols))
    open_ = close / np.exp(inside)
    wick = np.abs(rng.normal(0.0, size, (2, *shape)))
    high = np.maximum(open_, close) * np.exp(wick[0])
    low = np.minimum(open_, close) * np.exp(-wick[1])
    volume = np.exp(rng.normal(7.0, 1.0, shape))
    tradable = np.ones(shape, dtype=bool)
    if not calm:
        for start in rng.integers(2, rows, 2):
            volume[start : start + 7] = 0.0  # longer than the window of the impact
        tradable[2:] = rng.random((rows - 2, symbols)) > 0.06
    for row, column in zip(*np.nonzero(~tradable), strict=True):
        for prices in (open_, high, low, close):
            prices[row, column] = close[row - 1, column]
        volume[row, column] = 0.0
    ts = START_MS + HOUR_MS * np.arange(rows)
    rates = np.where((ts % (8 * HOUR_MS) == 0)[:, None], rng.normal(0.0, 0.003, shape), 0.0)
    named = {"open": open_, "high": high, "low": low, "close": close, "volume": volume}
    optional = {"quote_volume": torch.from_numpy(volume * open_ * 1.01)} if quoted else {}
    return Panel(
        symbols=tuple(f"{letter * 3}/USDT:USDT" for letter in "ABCDEFGH"[:symbols]),
        interval=Interval.parse("1h"),
        ts=torch.from_numpy(ts),
        **{name: torch.from_numpy(values) for name, values in named.items()},
        tradable=torch.from_numpy(tradable),
        listed=torch.ones(shape, dtype=torch.bool),
        funding=torch.from_numpy(rates),
        has_funding=torch.ones(symbols, dtype=torch.bool),
        funding_outside=(0,) * symbols,
        optional=optional,
    )
