"""Steps a second of gym-anytrading or gym-trading-env, written as JSON to the standard output.

A script for an interpreter of its own (`make peers`): gym-trading-env pins releases that this
package cannot live with. It imports nothing of the package. One process measures one library,
because gym-trading-env turns every later warning of its process into an error.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pandas as pd

Row = dict[str, str | int | float]

_CHUNK = 256  # steps between two looks at the clock


def anytrading(bars: pd.DataFrame) -> gymnasium.Env[Any, Any]:
    """Return gym-anytrading's stock environment, as its README makes it for a user's own prices.

    Its fees, 1 % and 0.5 %, are on by default; it keeps no account but a running product.
    """
    prices = bars.rename(columns=str.capitalize)
    return gymnasium.make("gym_anytrading:stocks-v0", df=prices, frame_bound=(30, len(prices)))


def trading_env(bars: pd.DataFrame) -> gymnasium.Env[Any, Any]:
    """Return gym-trading-env's environment with features, positions and fees of its documentation.

    Only its line at the end of an episode is switched off: it would go to the standard output.
    """
    table = bars.copy()
    table["feature_close"] = bars["close"].pct_change()
    table["feature_open"] = bars["open"] / bars["close"]
    table["feature_high"] = bars["high"] / bars["close"]
    table["feature_low"] = bars["low"] / bars["close"]
    table["feature_volume"] = bars["volume"] / bars["volume"].rolling(7 * 24).max()
    return gymnasium.make(
        "gym_trading_env:TradingEnv",
        df=table.dropna(),
        positions=[-1, 0, 1],
        trading_fees=0.01 / 100,
        borrow_interest_rate=0.0003 / 100,
        verbose=0,
    )


PEERS: dict[str, Callable[[pd.DataFrame], gymnasium.Env[Any, Any]]] = {
    "gym-anytrading": anytrading,
    "gym-trading-env": trading_env,
}


def measure(peer: str, bars: pd.DataFrame, *, seconds: float, repeats: int, seed: int) -> Row:
    """Return the speed of one library: with actions drawn beforehand, and as its documents draw.

    Resets are part of the time, as they are part of a step of the simulator. The first stretch of
    each way is a warm-up and does not count; of the others the fastest does.
    """
    env = PEERS[peer](bars)
    env.action_space.seed(seed)
    env.reset(seed=seed)
    drawn = [int(env.action_space.sample()) for _ in range(_CHUNK)]

    def sampled() -> Iterator[Any]:
        for _ in range(_CHUNK):
            yield env.action_space.sample()

    stretch = seconds / repeats
    before = [_rate(env, lambda: iter(drawn), stretch) for _ in range(1 + repeats)]
    inside = [_rate(env, sampled, stretch) for _ in range(1 + repeats)]
    return {
        "name": peer,
        "version": _version(peer),
        "python": sys.version.split()[0],
        "bars": len(bars),
        "warmup_seconds": 2 * stretch,
        "repeats": repeats,
        "steps_per_second": max(before[1:]),
        "sampling_steps_per_second": max(inside[1:]),
    }


def _rate(
    env: gymnasium.Env[Any, Any], actions: Callable[[], Iterator[Any]], seconds: float
) -> float:
    """Return steps a second over at least that time."""
    steps = 0
    started = time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        for action in actions():
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        steps += _CHUNK
    return steps / elapsed


def _version(peer: str) -> str:
    """Return the installed release, as the name of its folder of metadata tells it."""
    pattern = f"{peer.replace('-', '_')}-*.dist-info"
    folders = [path for folder in sys.path for path in sorted(Path(folder).glob(pattern))]
    return folders[0].stem.rpartition("-")[2] if folders else "unknown"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=sorted(PEERS))
    parser.add_argument("bars", type=Path, help="CSV of ts, open, high, low, close, volume")
    parser.add_argument("--seconds", type=float, default=2.0, help="measured, for each way")
    parser.add_argument("--repeats", type=int, default=50, help="stretches of that time")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    """Measure what the command line names."""
    options = _arguments()
    bars = pd.read_csv(options.bars, index_col="ts")
    bars.index = pd.to_datetime(bars.index, unit="ms")
    row = measure(
        options.peer, bars, seconds=options.seconds, repeats=options.repeats, seed=options.seed
    )
    sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
