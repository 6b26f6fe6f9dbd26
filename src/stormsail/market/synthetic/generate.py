"""Draw a synthetic world by name (bars, funding, features, process) and write it to a store."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath

import numpy as np

from stormsail.core.errors import ChoiceError, RangeError, nearest
from stormsail.core.generators import Generators
from stormsail.core.memory import check_memory
from stormsail.market.bars import Bars, Funding, check_symbol, from_columns
from stormsail.market.interval import Interval
from stormsail.market.store import Store
from stormsail.market.synthetic import ar1, crash, garch_jump, noise, oracle, regime
from stormsail.market.synthetic.bars import build_columns, draw_funding
from stormsail.market.synthetic.own import OWN_WORLDS
from stormsail.market.synthetic.process import Array, Process, Streams, WorldConfig, WorldKind

START_MS = 1_609_718_400_000
"""2021-01-04 00:00 UTC, a Monday, on which bars of every length open."""

_BAR_BYTES = 64
"""Bytes of a bar at the least: time, prices, volume, notional and number of trades."""

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


WORLDS: dict[str, WorldKind] = {
    "ar1": WorldKind(
        ar1.Ar1Config, ar1.Ar1Process, ar1.draw, "momentum with a closed-form optimum"
    ),
    "crash": WorldKind(
        crash.CrashConfig, crash.CrashProcess, crash.draw, "steady gains and rare deep losses"
    ),
    "garch_jump": WorldKind(
        garch_jump.GarchJumpConfig,
        garch_jump.GarchJumpProcess,
        garch_jump.draw,
        "clustered volatility, fat tails, jumps",
    ),
    "noise": WorldKind(
        noise.NoiseConfig, noise.NoiseProcess, noise.draw, "a martingale: nothing to be learned"
    ),
    "oracle": WorldKind(
        oracle.OracleConfig, oracle.OracleProcess, oracle.draw, "a feature tells the next return"
    ),
    "regime": WorldKind(
        regime.RegimeConfig,
        regime.RegimeProcess,
        regime.draw,
        "hidden states of drift and volatility",
    ),
}
"""Every world by name: settings, process, draw, summary."""


def all_worlds() -> dict[str, WorldKind]:
    """Return every world by name, those of plug-ins last; the package's own names stand first."""
    return {**{name: OWN_WORLDS.get(name) for name in OWN_WORLDS.names()}, **WORLDS}


@dataclass(frozen=True)
class World:
    """A drawn synthetic market.

    Attributes:
        name: of the world.
        config: settings it was drawn with.
        bars: one entry per symbol.
        funding: rates by symbol, for perpetuals.
        features: columns an agent may see beside the bars, by symbol and name; None without any.
        hidden: states that no agent may see, by symbol and name: regimes, variances, crashes.
        process: exact moments of the returns, and the known answer.
    """

    name: str
    config: WorldConfig
    bars: list[Bars]
    funding: dict[str, Funding]
    features: dict[str, dict[str, Array]] | None
    hidden: dict[str, dict[str, Array]]
    process: Process


def generate(
    world: str,
    *,
    symbols: int | Sequence[str],
    bars: int,
    interval: Interval,
    seed: int,
    start_ms: int = START_MS,
    **parameters: object,
) -> World:
    """Draw a world; equal arguments give equal bytes.

    Each quantity of each symbol has a random stream of its own, so another symbol changes none of
    the others, and more bars only append (the funding rates too).

    Args:
        world: a name of `WORLDS`.
        symbols: their number, for `AAA/USDT:USDT`, `BBB/USDT:USDT`, ...; or their names.
        bars: per symbol.
        interval: length of a bar. The settings count per bar, whatever its length.
        seed: of every stream.
        start_ms: open time of the first bar, UTC milliseconds, where a bar opens.
        parameters: settings of the world, as in its `Config`.

    Raises:
        ChoiceError: if there is no such world; the nearest name is suggested.
        ConfigError: if a setting is unknown or does not fit.
    """
    kind, config = _kind(world), config_of(world, parameters)
    _check_size(bars, interval, start_ms)
    _check_memory(symbols, bars)
    names = _symbols(symbols, spot=config.spot)
    generators = Generators(seed)
    process = kind.process(config)
    drawn = World(world, config, [], {}, None, {}, process)
    features: dict[str, dict[str, Array]] = {}
    notes = {"source": "synthetic", "world": world, "seed": str(seed), "process": process.statement}
    end_ms = start_ms + bars * interval.milliseconds
    for name in names:
        streams = _streams(generators, world, name)
        # One bar more than returned: a feature of the last bar may be about the bar behind it.
        path = kind.draw(config, streams, bars + 1)
        columns = build_columns(path, config, streams, interval=interval, start_ms=start_ms)
        shown = dict(path.features)
        if isinstance(config, oracle.OracleConfig):
            shown[oracle.LEAK] = oracle.leaked(config, streams, columns)
        features[name] = {key: values[:bars] for key, values in shown.items()}
        drawn.hidden[name] = {key: values[:bars] for key, values in path.hidden.items()}
        cut = {key: values[:bars] for key, values in columns.items()}
        made = from_columns(name, interval, cut)
        drawn.bars.append(Bars(name, interval, made.table, notes))
        if ":" in name and not config.spot:
            drawn.funding[name] = draw_funding(
                name, config, streams, start_ms=start_ms, end_ms=end_ms
            )
    shared = features if any(features.values()) else None
    return World(world, config, drawn.bars, drawn.funding, shared, drawn.hidden, process)


def write_world(store: Store, world: World) -> list[FilePath]:
    """Write bars, funding and signals of every symbol; return the files.

    What an earlier world left beside a symbol and this one does not have is removed: its leak must
    not stand beside other bars.
    """
    written = []
    with store.writing("stormsail synth"):
        for bars in world.bars:
            written.append(store.write(bars))
            store.remove_terms(bars.symbol)
            if bars.symbol in world.funding:
                written.append(store.write_funding(world.funding[bars.symbol]))
            else:
                store.remove_funding(bars.symbol)
            if world.features is not None:
                written.append(store.write_signals(bars, world.features[bars.symbol]))
            else:
                store.remove_signals(bars.symbol, bars.interval)
    return written


def config_of(world: str, parameters: Mapping[str, object]) -> WorldConfig:
    """Return the settings of a world, with defaults for those not given."""
    return _kind(world).config.from_mapping(parameters)


def process_of(world: str, **parameters: object) -> Process:
    """Return the process of a world without drawing from it."""
    return _kind(world).process(config_of(world, parameters))


def _kind(world: str) -> WorldKind:
    known = all_worlds()
    if world not in known:
        near = nearest(world, known)
        raise ChoiceError(
            wrong=f"a world must be one of {', '.join(f'`{name}`' for name in known)}",
            found=f"`{world}`",
            remedy=f"Did you mean `{near}`?"
            if near
            else "Run `stormsail synth --list`, or bring the file that registers it with "
            "`--plugin FILE.py`.",
        )
    return known[world]


def _check_memory(symbols: int | Sequence[str], bars: int) -> None:
    count = symbols if isinstance(symbols, int) else len(symbols)
    check_memory(
        count * bars * _BAR_BYTES,
        what="a synthetic world",
        found=f"{count:,} symbols of {bars:,} bars",
        remedy="Lower the number of bars or of symbols.",
    )


def _check_size(bars: int, interval: Interval, start_ms: int) -> None:
    if bars < 1:
        raise RangeError(
            wrong="`bars` must be at least 1", found=str(bars), remedy="Pass for example 20000."
        )
    interval.check_fixed("a synthetic world")
    if (start_ms - interval.origin_ms) % interval.milliseconds:
        raise RangeError(
            wrong=f"`start_ms` must be a time at which a bar of {interval} opens",
            found=str(start_ms),
            remedy=f"Leave it out, or pass a Monday 00:00 UTC such as {START_MS}.",
        )


def _symbols(symbols: int | Sequence[str], *, spot: bool) -> list[str]:
    if not isinstance(symbols, int):
        names = [check_symbol(name) for name in symbols]
    else:
        settle = "" if spot else ":USDT"
        names = [f"{_base(number)}/USDT{settle}" for number in range(symbols)]
    if not names or len(set(names)) != len(names):
        raise RangeError(
            wrong="`symbols` must be at least one name, each once",
            found=", ".join(names) or "none",
            remedy="Pass a number of at least 1, or different names.",
        )
    return names


def _base(number: int) -> str:
    """Return AAA, BBB, ..., ZZZ, AAA1, BBB1, ...: the same name for the same place for ever."""
    rounds, letter = divmod(number, len(_LETTERS))
    return _LETTERS[letter] * 3 + (str(rounds) if rounds else "")


def _streams(generators: Generators, world: str, symbol: str) -> Streams:
    place = symbol.lower().replace("/", "_").replace(":", "_")

    def stream(quantity: str) -> np.random.Generator:
        return generators.numpy(f"{world}.{place}.{quantity}")

    return stream
