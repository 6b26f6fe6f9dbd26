"""Fetch from an exchange that runs on this machine: the real client, no network.

Usage: `python scripts/loopback_fetch.py [STORE]`. A drawn market is served on the loopback in
Binance's dialect, and `stormsail fetch` pages through it with ccxt as through the real one.
"""

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from venue import Venue, candles, rates

START_MS = 1_609_459_200_000  # 2021-01-01
BARS = 3_000


def main(store: str) -> int:
    """Serve a market, fetch it, and return the exit code of the fetch."""
    with Venue() as exchange:
        exchange.perp["BTCUSDT", "1h"] = candles(1, BARS, start=START_MS)
        exchange.funding["BTCUSDT"] = rates(2, BARS // 8, start=START_MS)
        command = [sys.executable, "-m", "stormsail", "fetch", "BTC/USDT:USDT", "--funding"]
        command += ["--exchange", "binanceusdm", "--since", "2021-01-01", "--until", "2021-05-01"]
        command += ["--store", store, "--base-url", exchange.url]
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "data"))
