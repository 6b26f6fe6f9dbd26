"""From a configuration to the task that is learned, and to the one that judges."""

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch

from stormsail.algorithms.config import DataConfig, TrainConfig
from stormsail.core.documents import JsonValue
from stormsail.core.errors import ConfigError, nearest
from stormsail.core.task import Task
from stormsail.market.features import ACCOUNT_FEATURES, FeatureSet, Scaler, default_features
from stormsail.market.features.tensors import BarTensors
from stormsail.market.interval import Interval
from stormsail.market.panel import Panel, load_panel
from stormsail.market.simulator import MarketConfig, Simulator
from stormsail.market.splits import Span
from stormsail.market.store import Store
from stormsail.market.synthetic import generate
from stormsail.market.terms import bound_terms
from stormsail.modules.agent import ActionSpec, AgentSpec
from stormsail.tasks import NAMES, make
from stormsail.tasks.gymnasium_task import GymnasiumTask

MARKET = "market"
GYMNASIUM = "gym:"

Purpose = Literal["train", "validation"]


@dataclass(frozen=True, eq=False)
class MarketData:
    """Bars of a run, what is computed from them, and where training ends."""

    panel: Panel
    features: FeatureSet
    scaler: Scaler
    """Fitted on the training span."""
    train: Span
    validation: Span

    @classmethod
    def of(cls, panel: Panel, market: MarketConfig, *, validation_share: float) -> "MarketData":
        """Divide a panel: training first, an embargo of one lookback, then validation."""
        features = (
            default_features(panel.interval).available(BarTensors.of(panel).columns)
            if market.features is None
            else FeatureSet(market.features, interval=panel.interval)
        )
        rows = len(panel.ts)
        cut = int(rows * (1.0 - validation_share))
        length = panel.interval.milliseconds
        first, after = int(panel.ts[0]), int(panel.ts[-1]) + length
        start = int(panel.ts[cut])
        train = Span(first, max(start - features.lookback * length, first + length))
        seen = train.rows(panel.ts.numpy())
        scaler = Scaler.fit(
            features.compute(panel), (seen.start, seen.stop), schema=features.schema()
        )
        return cls(panel, features, scaler, train, Span(start, after))


def load_data(data: DataConfig, market: MarketConfig) -> MarketData:
    """Return the bars that a configuration names.

    Raises:
        DataError: if they are not there or do not suffice.
        ConfigError: if the store has no symbol of that interval.
    """
    interval = Interval.parse(data.interval)
    if data.store is None:
        parameters: dict[str, Any] = dict(data.world_parameters)
        world = generate(
            data.world,
            symbols=data.world_symbols,
            bars=data.world_bars,
            interval=interval,
            seed=data.world_seed,
            **parameters,
        )
        panel = Panel.from_bars(world.bars, world.funding, signals=world.features)
    else:
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
        panel = load_panel(store, symbols, interval)
    return MarketData.of(panel, market, validation_share=data.validation_share)


@cache
def _data_of(data: str, market: str) -> MarketData:
    return load_data(DataConfig.model_validate_json(data), MarketConfig.model_validate_json(market))


def market_data(config: TrainConfig) -> MarketData:
    """Return the bars of a run; computed once for each configuration."""
    return _data_of(config.task.data.model_dump_json(), config.task.market.model_dump_json())


def make_task(config: TrainConfig, *, batch: int, purpose: Purpose = "train") -> Task[Any]:
    """Return the task of a configuration.

    Args:
        config: of the run.
        batch: number of environments.
        purpose: training, or validation on bars that training never sees. Other tasks than the
            market are the same for both.

    Raises:
        ConfigError: if there is no such task.
        DataError: if the bars are not there or do not suffice.
    """
    name, device = config.task.name, torch.device(config.device)
    if name == MARKET:
        data = market_data(config)
        simulator = Simulator(
            data.panel,
            config.task.market,
            batch=batch,
            device=device,
            features=data.features,
            scaler=data.scaler,
            span=data.train if purpose == "train" else data.validation,
        )
        if config.task.compile_step:
            simulator.compile()
        return simulator
    if name.startswith(GYMNASIUM):
        return GymnasiumTask(name.removeprefix(GYMNASIUM), batch=batch, device=device)
    if name in NAMES:
        return make(name, batch=batch, device=device)
    known = (MARKET, *NAMES)
    near = nearest(name, known)
    raise ConfigError(
        "config-value",
        wrong=f"`task.name` must be `{MARKET}`, `{GYMNASIUM}<id>` or one of {', '.join(NAMES)}",
        found=f"`{name}`",
        remedy=f"Did you mean `{near}`?" if near else f"Write `{GYMNASIUM}{name}` for Gymnasium.",
    )


def agent_spec(config: TrainConfig, task: Task[Any]) -> AgentSpec:
    """Return what an agent for this task is made of."""
    unscaled = tuple(ACCOUNT_FEATURES) if config.task.name == MARKET else ()
    if not config.observation.normalise:
        unscaled = task.observation_names
    return AgentSpec(
        observation_names=task.observation_names,
        unscaled=unscaled,
        actions=ActionSpec.of(task.actions),
        network=config.network,
        policy=config.policy,
        critic=config.critic,
    )


def binding(config: TrainConfig) -> dict[str, JsonValue]:
    """Return what an agent must be used with: features, bars, costs, actions, or the task's id."""
    if config.task.name != MARKET:
        return {"task": config.task.name}
    data, market = market_data(config), config.task.market
    terms = bound_terms(
        market,
        data.features,
        data.scaler,
        symbols=data.panel.symbols,
        train_span=data.train,
        validation_span=data.validation,
    )
    return {"data": data.panel.digest(), **terms}
