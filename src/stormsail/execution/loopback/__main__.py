"""`python -m stormsail.execution.loopback [COMMAND ...]`: an exchange on this machine, no network.

Serves a drawn market in Binance's dialect, spot and USD-M. With a command it runs that, with `URL`
replaced by the exchange's address, and ends with its exit code; without one it serves until Ctrl-C.
"""

import argparse
import subprocess
import sys
import threading

from stormsail.execution.loopback.server import Loopback
from stormsail.execution.loopback.tape import candles, rates

START_MS = 1_609_459_200_000  # 2021-01-01
BARS = 3_000
_PLACE = "URL"


def main(arguments: list[str]) -> int:
    """Serve a market of 3,000 hours from 2021 on."""
    parser = argparse.ArgumentParser(
        prog="python -m stormsail.execution.loopback",
        description="An exchange on this machine: a drawn market in Binance's dialect.",
    )
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--seed", type=int, default=1, help="of the drawn market")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, help=f"run meanwhile, {_PLACE} replaced"
    )
    given = parser.parse_args(arguments)
    with Loopback(port=given.port) as exchange:
        for tapes in (exchange.spot, exchange.perp):
            tapes["BTCUSDT", "1h"] = candles(given.seed, BARS, start=START_MS)
        exchange.funding["BTCUSDT"] = rates(given.seed + 1, BARS // 8, start=START_MS)
        if given.command:
            command = [exchange.url if word == _PLACE else word for word in given.command]
            return subprocess.run(command, check=False).returncode  # noqa: S603 - the user's own
        sys.stdout.write(f"BTC/USDT and BTC/USDT:USDT at {exchange.url}; Ctrl-C ends it\n")
        sys.stdout.flush()
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
