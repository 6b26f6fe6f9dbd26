"""Backtests: let an agent, or target weights, trade a span of bars once, and log everything.

float64 throughout, the simulator's own rules (`docs/life_of_a_bar.md`) with exact lots, ticks and
minimum notional, the risk gate in its place, and decisions through `Agent.decide` alone. Several
symbols are sleeves: equal capital at the start, own accounts, equity added up. What an episode is
outside training, how the memory is warmed up and what a stop does is documented in `loop.py`.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stormsail.core.clock import iso
from stormsail.core.errors import ConfigError, DataError, RangeError, ShapeError
from stormsail.core.files import manifest
from stormsail.core.files.artifact import encode_artifact
from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.engine.agent_terms import AgentTerms, terms_of, with_market
from stormsail.evaluation.engine.config import BacktestConfig, milliseconds
from stormsail.evaluation.engine.loop import AgentDecider, WeightsDecider
from stormsail.evaluation.engine.recorder import PreparedRun, run_all
from stormsail.evaluation.engine.result import Array, Backtest
from stormsail.evaluation.engine.scenario import ScenarioCache
from stormsail.market.panel import Panel
from stormsail.market.simulator.config import Costs, MarketConfig
from stormsail.market.simulator.funding import assumptions
from stormsail.market.terms import stated_document, stated_terms
from stormsail.modules.agent import KIND, Agent

Weights = NDArray[np.float64] | Tensor


def backtest(agent: Agent, panel: Panel, config: BacktestConfig) -> Backtest:
    """Let an agent trade a span of bars once, and return the log of every bar.

    Args:
        agent: with what it was trained for in its binding, as `market.terms.bound_terms` says.
        panel: bars of the span and before it, as much as features and burn-in need. Symbols that
            the agent was not trained on are allowed and marked.
        config: which bars, which rules.

    Raises:
        ConfigError: if bars, features, costs or actions are not those of the agent's training, or
            accounts are pooled; it names the setting.
        ArtifactError: if the agent's file lacks what it was trained for.
        DataError: if the span has no bars, or too few before it.
    """
    return backtests(agent, panel, config)[0]


def backtests(
    agent: Agent, panel: Panel, config: BacktestConfig, *, costs: Sequence[Costs] = ()
) -> list[Backtest]:
    """Return one backtest for each of several cost settings, all run in one batch.

    Under each of them the agent sees its own account and decides anew. These costs may differ from
    those of its training; the market's may not, see `backtest`. Without any, those of the market
    are taken.
    """
    return run_batch([BacktestRequest(agent, panel, config, tuple(costs))])[0]


def replay(weights: Weights, panel: Panel, config: BacktestConfig) -> Backtest:
    """Trade target weights that are known beforehand, on the same ledger.

    Args:
        weights: row t is decided at the close of row t of the panel and fills at the next open,
            [T, S]; NaN holds the position. Only the rows of the span are used, the last not;
            where the first holds, it takes the last weight before that does not.
        panel: bars.
        config: which bars, which rules; burn-in means nothing here.

    Raises:
        ShapeError: if there is not one weight for each row and symbol.
        RangeError: if a weight lies beyond the leverage limit.
        DataError: if the span has no bars.
    """
    return replays(weights, panel, config)[0]


def replays(
    weights: Weights, panel: Panel, config: BacktestConfig, *, costs: Sequence[Costs] = ()
) -> list[Backtest]:
    """Return one replay of the same weights for each of several cost settings, in one batch.

    The weights are the same; what they buy depends on the equity that the costs have left.
    """
    return run_batch([ReplayRequest(weights, panel, config, tuple(costs))])[0]


@dataclass(frozen=True, eq=False)
class ReplayRequest:
    """Target weights to be traded; see `replays`."""

    weights: Weights
    panel: Panel
    config: BacktestConfig
    costs: tuple[Costs, ...] = ()
    whole: bool = True
    """Otherwise the result is one long bar, with equity at the start and at the end only."""

    def prepare(self, cache: ScenarioCache) -> PreparedRun:
        """Return the run, after refusing what cannot be traded."""
        panel, config = self.panel, self.config
        given = torch.as_tensor(self.weights, dtype=torch.float64)
        if tuple(given.shape) != panel.shape:
            raise ShapeError(
                wrong="`weights` must have one entry for each row and symbol of the panel",
                found=f"weights {tuple(given.shape)} and a panel of {panel.shape}",
                remedy="Pass the weight decided at each close; NaN where nothing is decided.",
            )
        rows = rows_of(panel, config, lookback=1, burn_in=0)
        used = given[rows[0] : rows[1]].clone()
        used[0] = _standing(given[: rows[0] + 1])
        _check_range(used, config.ledger(panel), panel.symbols)
        scenario = cache.scenario(panel, config, rows, costs=self.costs)
        return PreparedRun(scenario, WeightsDecider(used, len(scenario.costs)), self.whole)

    def annotate(self, results: list[Backtest]) -> list[Backtest]:
        """Return the results with their notes."""
        notes: dict[str, JsonValue] = {
            "data": self.panel.digest(),
            "config": self.config.config_hash(),
            "assumptions": _assumptions(results[0], self.panel),
            "instruments": _instruments(self.panel, self.config),
        }
        return [replace(result, notes=notes) for result in results]


@dataclass(frozen=True, eq=False)
class BacktestRequest:
    """An agent that is to trade; see `backtests`."""

    agent: Agent
    panel: Panel
    config: BacktestConfig
    costs: tuple[Costs, ...] = ()

    def prepare(self, cache: ScenarioCache) -> PreparedRun:
        """Return the run, after refusing what does not fit the agent."""
        if self.config.pool_bars is not None:
            raise ConfigError(
                "config-inconsistent",
                wrong="`pool_bars` must be left out for an agent, which sees an account of its own",
                found=str(self.config.pool_bars),
                remedy="Use it for weights that are known beforehand, with `replay`.",
            )
        terms = terms_of(self.agent, self.panel)
        config = with_market(self.agent, terms, self.config)
        config = config.for_policy(self.agent.judged_policy)
        lookback, burn_in = terms.features.lookback, config.burn_in
        scenario = cache.scenario(
            self.panel,
            config,
            rows_of(self.panel, config, lookback=lookback, burn_in=burn_in),
            features=(terms.features, terms.scaler),
            burn_in=burn_in,
            costs=self.costs,
        )
        config.rules(self.panel).check_offered()
        levels = terms.market.offered_levels if terms.market.action == "levels" else None
        local = copy.deepcopy(self.agent).cpu()
        agent_digest(local)  # what cannot be saved is not traded
        accounts, settings = scenario.accounts, len(scenario.costs)
        decider = AgentDecider(local, config, levels, accounts, settings)
        return PreparedRun(scenario, decider)

    def annotate(self, results: list[Backtest]) -> list[Backtest]:
        """Return the results with their notes and the support of the critic's distribution."""
        terms, span = terms_of(self.agent, self.panel), results[0].span
        notes = _notes(self.agent, terms, self.panel, results[0].config)
        notes["assumptions"] = _assumptions(results[0], self.panel)
        # other data may share the years, so this is a mark and not a refusal
        notes["overlaps_training"] = span.overlaps(terms.train_span)
        if terms.validation_span is not None:
            notes["overlaps_validation"] = span.overlaps(terms.validation_span)
        support = _support(copy.deepcopy(self.agent).cpu())
        kind = self.agent.spec.critic.kind
        return [
            replace(result, distribution_kind=kind, distribution_support=support, notes=notes)
            for result in results
        ]


def run_batch(requests: Sequence[ReplayRequest | BacktestRequest]) -> list[list[Backtest]]:
    """Run all requested backtests in one batch; return one for each cost setting of each request.

    The result of a request does not depend on the others, to the last bit. A batch saves time: a
    bar costs nearly the same for one account and for hundreds.
    """
    cache = ScenarioCache()
    results = run_all([request.prepare(cache) for request in requests])
    return [request.annotate(own) for request, own in zip(requests, results, strict=True)]


def rows_of(
    panel: Panel, config: BacktestConfig, *, lookback: int, burn_in: int
) -> tuple[int, int]:
    """Return the rows of the first decision and of the last mark.

    One observation needs `lookback` bars, its own included; `burn_in` bars are read before the
    first decision.

    Raises:
        DataError: if the span holds fewer than 2 bars, or a symbol too few before it.
    """
    ts = panel.ts.cpu().numpy()
    listed = panel.listed.cpu().to(torch.int8).argmax(0).numpy()
    needed = lookback - 1 + burn_in
    ready = int(listed.max()) + needed
    first, last = _edges(ts, config, ready)
    if last - first < 1:
        raise DataError(
            "data-span",
            wrong="a backtest must have at least 2 bars, one to decide on and one to fill in",
            found=f"{max(last - first + 1, 0)} bars in the span, and {len(ts)} from "
            f"{iso(int(ts[0]))} to {iso(int(ts[-1]))} in the data, of which the first {ready} "
            "only prepare the first decision",
            remedy="Choose a span inside the data, or bring more of them.",
        )
    late = int(listed.argmax())
    if first < ready:
        raise DataError(
            "data-span",
            wrong=f"each symbol must have {needed} bars before the first decision: {burn_in} of "
            f"burn-in and {lookback - 1} that features look back",
            found=f"{max(first - int(listed[late]), 0)} of {panel.symbols[late]} before "
            f"{iso(int(ts[first]))}",
            remedy=f"Start at {iso(int(ts[ready]))} or later, with a shorter burn-in, or with "
            "more data."
            if ready < len(ts)
            else "Bring more data, or leave the symbol out.",
        )
    return first, last


def _edges(ts: NDArray[np.int64], config: BacktestConfig, ready: int) -> tuple[int, int]:
    first = ready
    if config.start is not None:
        first = int(np.searchsorted(ts, milliseconds(config.start)))
    stop = len(ts)
    if config.end is not None:
        stop = int(np.searchsorted(ts, milliseconds(config.end)))
    return first, stop - 1


def _check_range(weights: Tensor, market: MarketConfig, symbols: Sequence[str]) -> None:
    """Refuse weights beyond the leverage limit, or beyond what a symbol's kind allows."""
    widest = market.limits.max_leverage
    bounds = torch.tensor([market.weight_bounds(symbol) for symbol in symbols]).double()
    beyond = (weights.abs() > widest) | (weights < bounds[:, 0]) | (weights > bounds[:, 1])
    if not bool(beyond.any()):  # NaN is not, and holds
        return
    row, column = beyond.nonzero()[0].tolist()
    weight = float(weights[row, column])
    low, high = market.weight_bounds(symbols[column])
    words = f"within `limits.max_leverage` {widest:g}"
    remedy = "Cut the weights, or raise the limit of the market."
    if not low <= weight <= high:
        words = f"in {low:g} to {high:g}: {market.why_bounded(symbols[column])}"
        remedy = "Cut the weights, or choose margin with a borrow rate in `market.instruments`."
    raise RangeError(
        wrong=f"every weight of {symbols[column]} must stay {words}",
        found=f"{weight:g} in decision {row} of column {column}",
        remedy=remedy,
    )


def _standing(weights: Tensor) -> Tensor:
    """Return the last weight of each column that is no NaN, or NaN where there is none, [S]."""
    row = torch.arange(len(weights))[:, None]
    newest = torch.where(weights.isnan(), -1, row).amax(0)
    standing = weights.gather(0, newest.clamp(min=0)[None])[0]
    return torch.where(newest >= 0, standing, torch.nan)


def _notes(
    agent: Agent, terms: AgentTerms, panel: Panel, config: BacktestConfig
) -> dict[str, JsonValue]:
    return {
        "data": panel.digest(),
        "config": config.config_hash(),
        "instruments": _instruments(panel, config),
        "agent": agent_digest(agent),
        "unseen_symbols": list(terms.unseen(panel.symbols)),
        "gamma": agent.binding.values.get("gamma"),
    }


def _assumptions(result: Backtest, panel: Panel) -> JsonValue:
    rows = result.span.rows(panel.ts.cpu().numpy())
    return assumptions(panel, result.market, (rows.start + 1, rows.stop))


def _instruments(panel: Panel, config: BacktestConfig) -> JsonValue:
    """Return the terms by which each symbol was traded, with their sources."""
    return stated_document(
        stated_terms(config.configured(panel.symbols), panel.symbols, panel.instruments)
    )


def agent_digest(agent: Agent) -> str:
    """Return the SHA-256 of the manifest that the agent has as a file: its identity."""
    files = encode_artifact(kind=KIND, contents=agent.contents())
    return sha256(files[manifest.NAME]).hexdigest()


def _support(agent: Agent) -> Array | None:
    """Return the support of the return distribution: levels of quantiles, or atoms."""
    kind = agent.spec.critic.kind
    if kind == "categorical":
        return np.asarray(agent.atoms.detach().double().numpy())
    if kind == "quantile":
        return np.asarray(agent.levels.numpy())
    return None
