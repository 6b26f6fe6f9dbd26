"""Tasks of a configuration: the environments for training and for evaluation, and their data.

Synthetic worlds and Gymnasium take a second to import, so they are imported where they are used.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from stormsail.algorithms.config import DataConfig, TrainConfig
from stormsail.algorithms.run.plugins import used_by
from stormsail.core.clock import iso
from stormsail.core.errors import ConfigError, DataError, RangeError, nearest
from stormsail.core.files.documents import JsonValue
from stormsail.core.task import Task, account_names, observation_layout
from stormsail.core.threads import torch_threads
from stormsail.market.features import ACCOUNT_FEATURES, FeatureSet, Scaler, default_features
from stormsail.market.features.tensors import BarTensors
from stormsail.market.interval import Interval
from stormsail.market.panel import Panel, load_panel
from stormsail.market.rewards import LOG_GROWTH
from stormsail.market.simulator import MarketConfig, Simulator
from stormsail.market.simulator.episodes import unbroken, window_of
from stormsail.market.simulator.funding import funding_words
from stormsail.market.splits import Span, rows_without
from stormsail.market.store import TERMS, Store
from stormsail.market.terms import bound_terms, stated_document, stated_terms
from stormsail.modules.agent import ActionSpec, AgentSpec, ImageSpec
from stormsail.tasks import NAMES, TASKS, make

MARKET = "market"
GYMNASIUM = "gym:"

Purpose = Literal["train", "evaluation"]

_LOG = logging.getLogger(__name__)
_FEWEST_BARS = 2
_CACHED = 8
"""Divided panels in the cache; those of one world or store share its memory."""


@dataclass(frozen=True, eq=False)
class MarketData:
    """Bars of a run, their features, and the spans of training and evaluation."""

    panel: Panel
    features: FeatureSet
    scaler: Scaler
    """Fitted on the training span."""
    train: Span
    validation: Span
    without: tuple[Span, ...] = ()
    """Spans inside those two that nothing is learned from."""

    @classmethod
    def of(
        cls,
        panel: Panel,
        market: MarketConfig,
        *,
        validation_share: float,
        without: Sequence[Span] = (),
    ) -> "MarketData":
        """Divide a panel: training first, an embargo of one lookback, then evaluation.

        Both are counted in the bars that lie in none of the spans `without`.
        """
        features = (
            default_features(panel.interval).available(BarTensors.of(panel).columns)
            if market.features is None
            else FeatureSet(market.features, interval=panel.interval)
        )
        free = rows_without(panel.ts.numpy(), without)
        wanted = int(int(free.sum()) * (1.0 - validation_share))
        cut = min(int(np.searchsorted(free.cumsum(), wanted, side="right")), len(free) - 1)
        length = panel.interval.milliseconds
        first, after = int(panel.ts[0]), int(panel.ts[-1]) + length
        start = int(panel.ts[cut])
        train = Span(first, max(start - features.lookback * length, first + length))
        seen = train.rows(panel.ts.numpy())
        computed = features.compute(panel)
        if without:
            whole = unbroken(torch.from_numpy(free), before=features.lookback - 1)
            computed = replace(computed, valid=computed.valid & whole[:, None, None])
        try:
            scaler = Scaler.fit(computed, (seen.start, seen.stop), schema=features.schema())
        except RangeError as error:
            least = 2 * features.lookback + market.episode_bars + 1
            if without or cut >= least:
                raise
            raise DataError(
                "data-span",
                wrong=f"a training must have {_bars_for(least, validation_share):,} bars: "
                f"{features.lookback} that features look back, as many that keep apart what is "
                f"learned from and the last {validation_share:.0%}, which the best agent is chosen "
                f"on, and an episode of {market.episode_bars}",
                found=f"{len(panel.ts):,} bars from {iso(first)} to {iso(int(panel.ts[-1]))}",
                remedy="Bring more bars, fewer folds of a validation, or features that look back "
                "less.",
            ) from error
        return cls(panel, features, scaler, train, Span(start, after), tuple(without))


def _bars_for(least: int, share: float) -> int:
    """Return how many bars leave so many before the share on which the best agent is chosen."""
    count = math.ceil(least / (1.0 - share))
    while int(count * (1.0 - share)) < least:
        count += 1
    return count


def load_data(data: DataConfig, market: MarketConfig) -> MarketData:
    """Return the bars of a configuration from `start` to `end`, divided.

    Raises:
        DataError: if they are not there or do not suffice.
        ConfigError: if the store has no symbol of that interval.
    """
    panel = _during(_whole_panel(data), data)
    without = [
        Span(_milliseconds(first), _milliseconds(last))
        for first, last in data.without
        if first is not None and last is not None
    ]
    return MarketData.of(panel, market, validation_share=data.validation_share, without=without)


def load_bars(data: DataConfig) -> Panel:
    """Return all bars of the world or store of a configuration, whatever its span.

    Raises:
        DataError: if they are not there.
        ConfigError: if the store has no symbol of that interval.
    """
    interval = Interval.parse(data.interval)
    if data.store is None:
        from stormsail.market.synthetic import generate

        parameters: dict[str, Any] = dict(data.world_parameters)
        world = generate(
            data.world,
            symbols=data.world_symbols,
            bars=data.world_bars,
            interval=interval,
            seed=data.world_seed,
            **parameters,
        )
        return Panel.from_bars(world.bars, world.funding, signals=world.features)
    store = Store(data.store)
    symbols = data.symbols or tuple(
        symbol for symbol, stored in store.contents() if stored == interval
    )
    if not symbols:
        raise ConfigError(
            "config-value",
            wrong=f"`task.data.store` must hold bars of {interval}",
            found=f"none in {data.store}",
            remedy="Import, fetch or synthesise them first, or change `task.data.interval`.",
        )
    return load_panel(store, symbols, interval)


def _during(panel: Panel, data: DataConfig) -> Panel:
    """Return the part of a panel between `start` and `end`."""
    after = int(panel.ts[-1]) + panel.interval.milliseconds
    first = int(panel.ts[0]) if data.start is None else _milliseconds(data.start)
    last = after if data.end is None else _milliseconds(data.end)
    part = panel.between(first, last)
    if len(part.ts) < _FEWEST_BARS:
        raise DataError(
            "data-span",
            wrong=f"`task.data.start` and `task.data.end` must leave {_FEWEST_BARS} bars or more",
            found=f"{len(part.ts)} of {len(panel.ts)} bars, which open from "
            f"{iso(int(panel.ts[0]))} to {iso(int(panel.ts[-1]))}",
            remedy="Choose times between the two, or bring more data.",
        )
    return part


def _milliseconds(time: datetime) -> int:
    return round(1000 * time.timestamp())


Stored = tuple[tuple[str, int, int], ...]
"""Name, time of the last change and size of every file of a store."""


def _stored(data: DataConfig) -> Stored:
    """Return the state of the store; it is part of a cache's key, since bars may be replaced."""
    if data.store is None:
        return ()
    folder = Path(data.store)
    files = sorted((*folder.rglob("*.parquet"), *folder.rglob(TERMS)))
    states = ((str(path), path.stat()) for path in files)
    return tuple((name, state.st_mtime_ns, state.st_size) for name, state in states)


def _whole_panel(data: DataConfig) -> Panel:
    """Return all bars, whatever the span; cached."""
    whole = data.replace(start=None, end=None, without=())
    return _panel_of(whole.model_dump_json(), _stored(data))


# Prepared on one thread, whatever a run trains with: the same bars have the same features and
# scaler, and the caches serve runs with any number of threads.
@lru_cache(2)
def _panel_of(data: str, _files: Stored) -> Panel:
    with torch_threads(1):
        return load_bars(DataConfig.model_validate_json(data))


@lru_cache(_CACHED)
def _data_of(data: str, market: str, _files: Stored) -> MarketData:
    with torch_threads(1):
        return load_data(
            DataConfig.model_validate_json(data), MarketConfig.model_validate_json(market)
        )


def market_data(config: TrainConfig) -> MarketData:
    """Return the divided bars of a run; cached for each configuration."""
    data, market = config.task.data, config.task.market
    return _data_of(data.model_dump_json(), market.model_dump_json(), _stored(data))


def market_panel(config: TrainConfig) -> Panel:
    """Return the bars of a run, from `task.data.start` to `task.data.end`.

    Raises:
        DataError: if they are not there or are fewer than two.
        ConfigError: if the store has no symbol of that interval.
    """
    data = config.task.data
    return _during(_whole_panel(data), data)


def make_task(config: TrainConfig, *, batch: int, purpose: Purpose = "train") -> Task[Any]:
    """Return the task of a configuration.

    Args:
        config: of the run.
        batch: number of environments.
        purpose: training, or evaluation on bars that are not trained on. Other tasks than the
            market are the same for both.

    Raises:
        ConfigError: if there is no such task.
        DataError: if the bars are not there or do not suffice.
    """
    name, device = config.task.name, torch.device(config.device)
    if name == MARKET:
        data = market_data(config)
        market = config.task.market
        if purpose == "evaluation":  # judged as a backtest judges
            market = market.with_terms(data.panel.symbols, data.panel.instruments)
            market = market.with_exact_filters()
            market = market.replace(reward=LOG_GROWTH, reward_parameters={})
        simulator = Simulator(
            data.panel,
            market,
            batch=batch,
            device=device,
            features=data.features,
            scaler=data.scaler,
            span=data.train if purpose == "train" else data.validation,
            without=data.without,
        )
        if purpose == "train" and config.task.market.funding:
            rows = window_of(data.panel, data.train)
            for words in funding_words(data.panel, config.task.market, rows):
                _LOG.warning(words)
        if config.task.compile_step:
            simulator.compile()
        return simulator
    if name.startswith(GYMNASIUM):
        from stormsail.tasks.gymnasium_task import GymnasiumTask

        return GymnasiumTask(
            name.removeprefix(GYMNASIUM),
            batch=batch,
            device=device,
            # an evaluation has many environments and few steps: their processes would cost more
            vectorization=config.task.vectorization if purpose == "train" else "sync",
        )
    if name in NAMES or name in TASKS:
        return make(name, batch=batch, device=device)
    known = (MARKET, *NAMES, *TASKS.names())
    near = nearest(name, known)
    raise ConfigError(
        "config-value",
        wrong=f"`task.name` must be `{MARKET}`, `{GYMNASIUM}<id>` or one of {', '.join(NAMES)}",
        found=f"`{name}`",
        remedy=f"Did you mean `{near}`?"
        if near
        else f"Write `{GYMNASIUM}{name}` for Gymnasium, or bring the file that registers it with "
        "`--plugin FILE.py`.",
    )


def agent_spec(config: TrainConfig, task: Task[Any]) -> AgentSpec:
    """Return the specification of an agent for this task."""
    layout = observation_layout(task)
    unscaled = tuple(ACCOUNT_FEATURES) if config.task.name == MARKET else layout.unscaled
    if not config.observation.normalise:
        unscaled = task.observation_names
    return AgentSpec(
        observation_names=task.observation_names,
        unscaled=unscaled,
        after_memory=account_names(task) if config.values_all_actions else (),
        images=tuple(ImageSpec.of(image) for image in layout.images),
        actions=ActionSpec.of(task.actions),
        network=config.network,
        policy=config.policy,
        critic=config.critic,
    )


def binding(config: TrainConfig) -> dict[str, JsonValue]:
    """Return what an agent is bound to: features, bars, costs and actions, or the task's id."""
    if config.task.name != MARKET:
        return {"task": config.task.name, **used_by(config)}
    data, market = market_data(config), config.task.market
    known = market.with_terms(data.panel.symbols, data.panel.instruments)
    terms = bound_terms(
        # what follows from the symbols is fixed; their terms are those of the bars it will trade
        market.replace(levels=known.offered_levels, weight_range=known.offered_range),
        data.features,
        data.scaler,
        symbols=data.panel.symbols,
        train_span=data.train,
        validation_span=data.validation,
        gamma=config.ppo.gamma,
        without=data.without,
    )
    names = [bound.feature.name for bound in data.features.bound]
    return {
        "data": data.panel.digest(),
        "instruments": instrument_terms(config),
        **terms,
        **used_by(config, names),
    }


def instrument_terms(config: TrainConfig) -> dict[str, JsonValue]:
    """Return the terms by which each symbol of a run is traded, with their sources."""
    panel = market_data(config).panel
    return stated_document(stated_terms(config.task.market, panel.symbols, panel.instruments))
