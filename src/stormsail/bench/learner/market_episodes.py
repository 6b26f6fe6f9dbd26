"""Episodes of `bench markets`: agent, best policy, hindsight and chance on the same unseen bars.

Episodes tile the evaluation span: each follows the last where it ended, so that every bar counts
once and no start is drawn. All policies trade in one simulator, in float64.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.run.tasks import MarketData, market_data
from stormsail.core.errors import ConfigError
from stormsail.core.generators import Generators
from stormsail.evaluation.robustness.hindsight import (
    Array,
    Policy,
    ProportionalCosts,
    autoregressive_chain,
    best_policy,
    clairvoyant,
    leaked_chain,
)
from stormsail.market.simulator import Simulator
from stormsail.market.simulator.account import State, held_weight
from stormsail.market.synthetic import config_of
from stormsail.market.synthetic.ar1 import Ar1Config
from stormsail.market.synthetic.oracle import LEAK, OracleConfig
from stormsail.modules.agent import Agent

Decide = Callable[[State, Tensor, int], Tensor]
"""State, observation [B, F] and bars left to the index of a level, int64 [B]."""


class EpisodeResults(NamedTuple):
    """Results of every episode, float64 [E]."""

    log_growth: Array
    """Log of equity at the end over equity at the start."""
    gain: Array
    """Sum of the simple returns of its steps."""
    turnover: Array
    """Sum of the traded notional over equity."""


@dataclass(frozen=True, eq=False)
class Episodes:
    """The episodes that every policy trades."""

    config: TrainConfig
    data: MarketData
    simulator: Simulator
    symbol: Tensor
    row: Tensor

    @classmethod
    def of(cls, config: TrainConfig) -> "Episodes":
        """Lay episodes end to end over the evaluation span of every symbol.

        Raises:
            ConfigError: if the market has rules that the known answers do not count.
        """
        check_plain(config)
        data = market_data(config)
        bars = config.task.market.episode_bars
        span = data.validation.rows(data.panel.ts.numpy())
        starts = torch.arange(span.start, span.stop - bars, bars)
        symbols = torch.arange(len(data.panel.symbols))
        symbol, row = symbols.repeat_interleave(len(starts)), starts.repeat(len(symbols))
        simulator = Simulator(
            data.panel,
            config.task.market,
            batch=len(row),
            dtype=torch.float64,
            features=data.features,
            scaler=data.scaler,
            span=data.validation,
        )
        return cls(config, data, simulator, symbol, row)

    @property
    def bars(self) -> int:
        """Length of an episode."""
        return self.config.task.market.episode_bars

    @property
    def costs(self) -> ProportionalCosts:
        """What the market charges."""
        market = self.simulator.config
        fee = min(map(market.fee_of, self.simulator.symbols))
        return ProportionalCosts(fee, market.costs.half_spread)

    @torch.no_grad()
    def trade(self, decide: Decide) -> EpisodeResults:
        """Trade every episode from its start to its end with the decisions of one policy."""
        generator = torch.Generator().manual_seed(0)  # nothing that it draws is used
        state, observation = self.simulator.place(self.symbol, self.row)
        grown, gain, turnover = (torch.zeros(len(self.row)).double() for _ in range(3))
        for left in range(self.bars, 0, -1):
            state, step = self.simulator.step(state, decide(state, observation, left), generator)
            observation = step.observation
            grown += step.reward
            gain += step.reward.expm1()
            turnover += step.info.turnover
        return EpisodeResults(grown.numpy(), gain.numpy(), turnover.numpy())

    def agent(self, agent: Agent) -> Decide:
        """Return the decisions of an agent that does not explore."""
        memory = [agent.initial_memory(len(self.row))]

        def decide(_state: State, observation: Tensor, _left: int) -> Tensor:
            made = agent.decide(observation.float(), memory[0], deterministic=True)
            memory[0] = made.memory
            return made.action

        return decide

    def chance(self) -> Decide:
        """Return decisions that draw each level with the same probability."""
        generator = Generators(self.config.seed).stream("markets.chance")
        levels = len(self.simulator.config.offered_levels)

        def decide(_state: State, _observation: Tensor, _left: int) -> Tensor:
            return torch.randint(levels, (len(self.row),), generator=generator)

        return decide

    def hindsight(self) -> tuple[Decide, Array]:
        """Return the best decisions with all bars known, and their log growth [E]."""
        rows = self.row[None] + torch.arange(1, self.bars + 1)[:, None]  # [bars, E]
        panel = self.data.panel
        opens, closes = (prices[rows, self.symbol].numpy() for prices in (panel.open, panel.close))
        best = clairvoyant(opens, closes, self.simulator.config.offered_levels, self.costs)
        choice = torch.from_numpy(best.choice)
        return (lambda _state, _observation, left: choice[self.bars - left]), best.log_growth

    def informed(self) -> Decide:
        """Return the best decisions of a policy that sees what the agent sees."""
        policy = self.policy()
        panel, data = self.data.panel, self.config.task.data
        if data.world == "oracle":
            seen = panel.optional[LEAK]
        else:
            seen = torch.zeros_like(panel.close)
            seen[1:] = panel.close[1:] / panel.close[:-1] - 1.0

        def decide(state: State, _observation: Tensor, left: int) -> Tensor:
            held, now = held_weight(state).numpy(), seen[state.row, state.symbol].numpy()
            return torch.from_numpy(policy.choose(held, now, bars_left=left))

        return decide

    def policy(self) -> Policy:
        """Return the best policy under the return distribution of the world, from its settings.

        `oracle` (returns independent N(0, s²), the next one seen): nothing but the leak x and the
        weight held w matters, because later leaks are independent of both. Without costs the best
        level is that of the largest log(1 + ux): the outermost one on the leak's side.

        `ar1` (R′ | R ~ N(φR, σ²), σ² = s²(1 − φ²)): the last return is all that the past says
        about the future. Without costs the best level has the largest E[log(1 + uR′) | R], to
        second order u·φR − ½u²σ²: the level nearest to φR/σ², which for levels −1, 0, 1 is 0 where
        |φR| < σ²/2 and else the sign of φR.

        With costs both have a band in which the weight held is kept, and `best_policy` finds it.

        Raises:
            ConfigError: if no optimum is known for the world.
        """
        data = self.config.task.data
        world = config_of(data.world, data.world_parameters)
        if isinstance(world, OracleConfig) and world.leak_noise == 0.0:
            chain = leaked_chain(world.volatility)
        elif isinstance(world, Ar1Config):
            chain = autoregressive_chain(world.phi, world.volatility)
        else:
            raise ConfigError(
                "config-value",
                wrong="the best policy is known for `ar1` and for `oracle` without noise",
                found=f"`{data.world}` with {data.world_parameters}",
                remedy="Change `task.data.world`, or leave `leak_noise` out.",
            )
        return best_policy(chain, self.simulator.config.offered_levels, self.costs, bars=self.bars)


def check_plain(config: TrainConfig) -> None:
    """Refuse a market in which the known answers do not hold.

    Raises:
        ConfigError: if bars come from a store or have gaps, or if a rule beside fee and half
            spread acts.
    """
    market, data = config.task.market, config.task.data
    default = type(market)()
    gap = float(data.world_parameters.get("gap_share", 0.0))
    wrong = {
        "`task.data.store` must be left out": data.store is not None,
        "`task.data.world_parameters.gap_share` must be 0": gap > 0.0,
        "`task.market.action` must be `levels`": market.action != "levels",
        "`task.market.costs.impact` must be 0": market.costs.impact > 0.0,
        "`task.market.min_rebalance` must be 0": market.min_rebalance > 0.0,
        "`task.market.funding` must be false": market.funding,
    }
    for name in ("filters", "limits", "stops", "no_trade", "randomise", "degrade"):
        changed = getattr(market, name) != getattr(default, name)
        wrong[f"`task.market.{name}` must be left out"] = changed
    rules = [rule for rule, is_broken in wrong.items() if is_broken]
    if rules:
        raise ConfigError(
            "config-value",
            wrong=f"{rules[0]} in a market with a known answer",
            found=f"a configuration of `{data.world}` that says otherwise",
            remedy="The dynamic programming counts fee and half spread, nothing else.",
        )
