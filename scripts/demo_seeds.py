"""How many other seeds of the demonstration's market agree with the one that it shows.

Usage: `python scripts/demo_seeds.py [--first 200] [--seeds 20] [--rows FILE]` in the root of the
repository. For each seed a market is drawn, and both agents of the demonstration are trained on its
bars but the last quarter, whose weeks they trade afterwards. A finished seed is a line of the file
of rows; the same command goes on, and `--judge` sums up those that are there.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

from demo import MARKET

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.algorithms.run.tasks import make_task, market_data
from stormsail.bench.campaign import RowLog
from stormsail.bench.risk.limits import AT_ITS_CVAR, FREE, LIMIT, judge
from stormsail.bench.risk.unseen import Episodes
from stormsail.bench.seeds import Seeds
from stormsail.bench.training import train_agent
from stormsail.modules.agent import Agent

ROWS = Path("docs/evidence/demo_seeds.jsonl")
JUDGED_SHARE = 0.25
"""Of the bars of a market, the last ones: those that agents are judged by."""

STARTS = 7
"""Weeks that begin within one: one a day."""


class Row(NamedTuple):
    """Both agents of one seed on the weeks that they never saw: log growth of a week."""

    seed: int
    market: tuple[str, ...]
    limit: float
    mean: float
    """Of the limited agent."""
    cvar: float
    """Mean of its worst 5 % of weeks."""
    exposure: float
    free_mean: float
    free_cvar: float
    free_exposure: float
    gain: float
    """Mean of the limited agent less that of the free one, scaled to the same CVaR."""
    gain_half: float
    """Half of its 95 % interval."""
    likeliest_exposure: float
    """Of the limited agent's likeliest actions."""

    @property
    def is_kept(self) -> bool:
        """Whether the limit is kept by the estimate."""
        return self.cvar >= self.limit

    @property
    def trades(self) -> bool:
        """Whether the limited agent holds more than next to nothing."""
        return self.exposure >= 0.01

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: limited {self.mean:+.4f} a week, CVaR {self.cvar:.3f}, exposure "
            f"{self.exposure:.2f}; free {self.free_mean:+.4f}, {self.free_cvar:.3f}, "
            f"{self.free_exposure:.2f}; less free at equal CVaR {self.gain:+.4f} ± "
            f"{self.gain_half:.4f}"
        )


def settings(name: str, store: str, seed: int) -> TrainConfig:
    """Return the demonstration's settings of an agent, for the bars of a store."""
    changes: dict[str, Any] = {
        "seed": seed,
        "task.data.store": store,
        "task.data.validation_share": JUDGED_SHARE,
    }
    return derive(TrainConfig.load(Path(f"configs/demo/{name}.toml")).replace(**changes))


def trained(config: TrainConfig) -> Agent:
    """Return the agent of the last update."""
    return train_agent(make_task(config, batch=config.ppo.n_envs), config).agent


def run(seed: int, market: tuple[str, ...]) -> Row:
    """Draw a market, train both agents on it, and judge them on its last weeks."""
    with tempfile.TemporaryDirectory() as store:
        words = ("synth", "garch_jump", "--store", store, *market)
        subprocess.run(
            [sys.executable, "-m", "stormsail", *words], check=True, stdout=subprocess.DEVNULL
        )
        free, limited = (settings(name, store, seed) for name in ("free", "limited"))
        limit, data = limited.risk.cvar_limit, market_data(limited)
        if limit is None:
            raise SystemExit("configs/demo/limited.toml must set `risk.cvar_limit`")
        unseen = Episodes.of(limited, data.validation, starts=STARTS)
        seen = Episodes.of(limited, data.train, starts=1)
        agents = trained(free), trained(limited)
        results = judge(*agents, unseen, seen, limit=limit, greedy=False)
    by_name = {result.name: result for result in results}
    own, other = by_name[LIMIT], by_name[FREE]
    scaled = by_name[f"{FREE}, {AT_ITS_CVAR}"]
    return Row(
        seed=seed,
        market=market,
        limit=limit,
        mean=own.mean,
        cvar=own.cvar,
        exposure=own.exposure,
        free_mean=other.mean,
        free_cvar=other.cvar,
        free_exposure=other.exposure,
        gain=scaled.gain,
        gain_half=scaled.gain_half,
        likeliest_exposure=by_name[f"{LIMIT}, likeliest"].exposure,
    )


def summary(rows: list[Row]) -> str:
    """Return how many seeds agree; the mean gain is over all, with 0 where nothing is held."""
    trading = [row for row in rows if row.trades]
    gain = Seeds([row.gain for row in rows])
    return (
        f"{len(rows)} seeds: the limit is kept in {sum(row.is_kept for row in rows)} and broken by "
        f"the free agent in {sum(row.free_cvar < row.limit for row in rows)}; the limited agent "
        f"trades in {len(trading)} and earns more than the free one at equal CVaR in "
        f"{sum(row.gain > 0.0 for row in trading)} of these; means of a week "
        f"{sum(row.mean for row in rows) / len(rows):+.4f} limited, "
        f"{sum(row.free_mean for row in rows) / len(rows):+.4f} free; mean gain at equal CVaR "
        f"{gain.mean:+.4f} a week, 95 % interval {gain.mean - gain.half:+.4f} to "
        f"{gain.mean + gain.half:+.4f}"
    )


def main() -> None:
    """Train what the file of rows does not hold yet, and print all seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=200, help="first seed of the market")
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    parser.add_argument("--rows", type=Path, default=ROWS, help="file of finished seeds")
    parser.add_argument("--set", action="append", default=[], help="setting of the market")
    parser.add_argument("--judge", action="store_true", help="only sum up the seeds of the file")
    given = parser.parse_args()
    options = tuple(word for change in given.set for word in ("--set", change))
    rows: list[Row] = []
    with RowLog.open(given.rows) as log:
        done = [Row(**{**line, "market": tuple(line["market"])}) for line in log.lines]
        for seed in range(given.first, given.first + given.seeds):
            # of two options with one name the last counts
            market = (*MARKET, "--seed", str(seed), *options)
            row = next((row for row in done if (row.seed, row.market) == (seed, market)), None)
            if row is None and given.judge:
                continue
            if row is None:
                row = run(seed, market)
                log.append(row._asdict())
            rows.append(row)
            print(row, flush=True)
    print(summary(rows) if rows else "no seed is there yet")


if __name__ == "__main__":
    main()
