"""`stormsail bench markets`: does the learner find an edge, and none where there is none.

Each market has a known answer. An agent learns in the training span and then trades the evaluation
span, which it has never seen and which nothing was chosen on: it is the agent of the last update,
not the best of several. Every seed draws a world of its own, so that seeds are independent.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import special

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.algorithms.run.tasks import make_task
from stormsail.bench.learner.market_episodes import EpisodeResults, Episodes, check_plain
from stormsail.bench.processes import side_by_side
from stormsail.bench.training import train_agent
from stormsail.bench.verdicts import Verdict
from stormsail.core.errors import ChoiceError, nearest
from stormsail.core.shipped import located

ORACLE_SHARE = 0.95
"""Least share of the best policy's growth where the next return is shown."""
AR1_SHARE = 0.80
"""The same where it is correlated with the last one."""
LEVEL = 0.05
"""An edge in noise is significant where the two-sided p is below this."""
TURNOVER_SHARE = 0.02
"""Most turnover under fees in noise, as a share of chance's."""

MARKETS = ("oracle", "ar1", "noise", "noise-with-fees")
"""Names of the markets, and of their configurations."""


@dataclass(frozen=True)
class Job:
    """One agent of one market."""

    market: str
    config: TrainConfig

    @classmethod
    def of(cls, market: str, config: TrainConfig, seed: int) -> "Job":
        """Return the job of a seed, which is also the seed of its world."""
        return cls(market, config.replace(**{"seed": seed, "task.data.world_seed": seed}))


@dataclass(frozen=True)
class Rates:
    """Growth, gain and turnover per bar."""

    log_growth: float
    gain: float
    """Mean simple return of a step, after costs."""
    turnover: float

    @classmethod
    def of(cls, results: EpisodeResults, bars: int) -> "Rates":
        """Return the means over all bars of all episodes."""
        return cls(*(float(np.mean(column)) / bars for column in results))


@dataclass(frozen=True)
class Outcome:
    """Result of one job, out of sample."""

    market: str
    seed: int
    steps: int
    seconds: float
    """Of learning."""
    bars: int
    """Length of an episode."""
    agent: Rates
    informed: Rates | None
    """The best policy that sees what the agent sees; None in noise, where it is not to trade."""
    clairvoyant: Rates
    chance: Rates
    ledger_difference: float
    """Largest difference between the clairvoyant's growth by dynamic programming and in the
    simulator, over episodes."""
    gains: tuple[float, ...]
    """Sum of the agent's simple returns, by episode."""

    @property
    def share(self) -> float:
        """Growth of the agent over that of the best policy."""
        return self.agent.log_growth / self.informed.log_growth if self.informed else math.nan

    @property
    def clairvoyant_share(self) -> float:
        """Growth of the agent over the bound."""
        return self.agent.log_growth / self.clairvoyant.log_growth

    @property
    def turnover_share(self) -> float:
        """Turnover of the agent over that of chance."""
        return self.agent.turnover / self.chance.turnover


def load(folder: Path, markets: Sequence[str], *, seeds: int) -> list[Job]:
    """Return one job for each market and seed; a market whose rules do not fit is refused.

    Raises:
        ChoiceError: if there is no such market.
        ConfigError: if a configuration cannot be read or has no known answer.
    """
    jobs = []
    for market in markets:
        if market not in MARKETS:
            near = nearest(market, MARKETS)
            raise ChoiceError(
                wrong=f"a market must be one of {', '.join(MARKETS)}",
                found=f"`{market}`",
                remedy=f"Did you mean `{near}`?" if near else "Leave it out to run them all.",
            )
        config = derive(TrainConfig.load(located(folder / f"{market}.toml")))
        check_plain(config)
        jobs += [Job.of(market, config, seed) for seed in range(seeds)]
    return jobs


def run(job: Job) -> Outcome:
    """Train an agent, then trade the evaluation span with it and with known policies.

    It is the agent of the last update: nothing is chosen on the evaluation span.
    """
    started = time.perf_counter()
    task = make_task(job.config, batch=job.config.ppo.n_envs)
    agent = train_agent(task, job.config).agent
    seconds = time.perf_counter() - started
    episodes = Episodes.of(job.config)
    hindsight, growth = episodes.hindsight()
    clairvoyant = episodes.trade(hindsight)
    own = episodes.trade(episodes.agent(agent))
    informed = None
    if not job.market.startswith("noise"):
        informed = Rates.of(episodes.trade(episodes.informed()), episodes.bars)
    return Outcome(
        market=job.market,
        seed=job.config.seed,
        steps=job.config.ppo.total_steps,
        seconds=seconds,
        bars=episodes.bars,
        agent=Rates.of(own, episodes.bars),
        informed=informed,
        clairvoyant=Rates.of(clairvoyant, episodes.bars),
        chance=Rates.of(episodes.trade(episodes.chance()), episodes.bars),
        ledger_difference=float(np.abs(clairvoyant.log_growth - growth).max()),
        gains=tuple(own.gain.tolist()),
    )


def run_all(jobs: Sequence[Job], *, workers: int, say: Callable[[Outcome], None]) -> list[Outcome]:
    """Run every job, in this process or in several that hold one thread each."""
    return side_by_side(run, jobs, processes=workers, say=say)


@dataclass(frozen=True)
class Edge:
    """Mean simple return per bar, and the test whether it differs from 0."""

    mean: float
    error: float
    """Standard error."""
    p: float
    """Two-sided."""
    episodes: int

    @classmethod
    def of(cls, gains: Sequence[float], bars: int) -> "Edge":
        """Test the mean of the episodes' gains against 0 by Student's t.

        In noise without costs a step earns wR, and E[wR | past] = 0 exactly, whatever the weight:
        the gains of disjoint episodes have mean 0 and are uncorrelated. The episode is the block,
        so that nothing is assumed about the steps inside it. The log growth would not do: its mean
        is below 0 for every position.
        """
        each = np.asarray(gains) / bars
        mean, count = float(each.mean()), len(each)
        error = float(each.std(ddof=1)) / math.sqrt(count)
        if error == 0.0:  # never traded
            return cls(mean, 0.0, 1.0, count)
        p = 2.0 * float(special.stdtr(count - 1, -abs(mean / error)))
        return cls(mean, error, p, count)


def verdicts(outcomes: Sequence[Outcome]) -> list[Verdict]:
    """Return one verdict for each market that was run, in its order."""
    by_market: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_market.setdefault(outcome.market, []).append(outcome)
    checks = {"noise": _no_edge, "noise-with-fees": _no_turnover}
    return [checks.get(market, _share)(market, own) for market, own in by_market.items()]


def _share(market: str, own: Sequence[Outcome]) -> Verdict:
    least = {"oracle": ORACLE_SHARE, "ar1": AR1_SHARE}[market]
    shares = [outcome.share for outcome in own]
    bound = np.mean([outcome.clairvoyant_share for outcome in own])
    return Verdict(
        f"{market}: every seed earns at least {least:.0%} of the best policy that sees as much",
        f"{min(shares):.1%} at worst, {np.mean(shares):.1%} on average; {bound:.1%} of hindsight",
        min(shares) >= least,
    )


def _no_edge(market: str, own: Sequence[Outcome]) -> Verdict:
    gains = [gain for outcome in own for gain in outcome.gains]
    edge = Edge.of(gains, own[0].bars)
    return Verdict(
        f"{market}: the mean return does not differ from 0, p at least {LEVEL:g}",
        f"{1e4 * edge.mean:.3f} ± {1e4 * edge.error:.3f} basis points a bar, p {edge.p:.2f}, "
        f"{edge.episodes} episodes",
        edge.p >= LEVEL,
    )


def _no_turnover(market: str, own: Sequence[Outcome]) -> Verdict:
    worst = max(own, key=lambda outcome: outcome.turnover_share)
    return Verdict(
        f"{market}: every seed trades at most {TURNOVER_SHARE:.0%} of what chance trades",
        f"{worst.turnover_share:.2%} at worst: {worst.agent.turnover:.5f} of equity a bar, "
        f"chance {worst.chance.turnover:.3f}",
        worst.turnover_share <= TURNOVER_SHARE,
    )
