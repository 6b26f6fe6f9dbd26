"""Read what an agent was trained for from its file, and check that a backtest matches it.

An agent sees scaled features. So its file must name the features, hold the scaler of its training
span and the rules of its market; `market.terms.bound_terms` is what a trainer writes into the
binding, and `terms_of` reads it back.

Symbols need not agree: no feature names the symbol, all are ratios, and one agent trades many. A
symbol that it was not trained on is allowed and marked (`AgentTerms.unseen`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stormsail.core import plugins
from stormsail.core.errors import ArtifactError, ConfigError, StormsailError
from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.market.features import ACCOUNT_FEATURES, FeatureSet, FeatureSpec, Scaler
from stormsail.market.panel import Panel
from stormsail.market.simulator.config import MarketConfig
from stormsail.market.splits import Span
from stormsail.market.terms import TASK
from stormsail.modules.agent import PLUGINS, Agent

_REQUIRED = ("market", "features", "scaler", "interval", "symbols", "train_span")


@dataclass(frozen=True, eq=False)
class AgentTerms:
    """What an agent was trained for: market, features, scaler, and the bars it has seen."""

    market: MarketConfig
    features: FeatureSet
    scaler: Scaler
    """Fitted on the training span."""
    symbols: tuple[str, ...]
    """Trained on."""
    train_span: Span
    validation_span: Span | None = None
    """Bars on which the best agent of a run was chosen; None where the file does not name them."""
    without: tuple[Span, ...] = ()
    """Spans inside those two that it has seen nothing of."""

    def unseen(self, symbols: Sequence[str]) -> tuple[str, ...]:
        """Return the symbols that the agent was not trained on."""
        return tuple(symbol for symbol in symbols if symbol not in self.symbols)


def terms_of(agent: Agent, panel: Panel) -> AgentTerms:
    """Return what an agent was trained for, rebuilt for bars of the panel's interval.

    Raises:
        ConfigError: if it was trained for another task, or for bars of another length.
        ArtifactError: if its file lacks something that a backtest needs.
        ArtifactError: with the code `plugin-missing` or `plugin-mismatch`, if a feature of a
            plug-in is not registered, or comes from another source.
        DataError: if a feature is no longer computed as it was in training.
    """
    binding = agent.binding.values
    agent.binding.check(task=TASK)
    missing = [name for name in _REQUIRED if name not in binding]
    if missing:
        raise _lacking(f"no `{missing[0]}`")
    agent.binding.check(interval=str(panel.interval))
    plugins.require(binding.get(PLUGINS), owner="the agent", kinds=("feature",))
    try:
        terms = _read(binding, panel)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, StormsailError):
            raise
        raise _lacking(f"a binding that cannot be read, {type(error).__name__} {error}") from error
    agent.binding.check(feature_schema=terms.features.schema_hash())
    wanted = (*terms.features.names, *ACCOUNT_FEATURES)
    if agent.spec.observation_names != wanted:
        raise _lacking(f"columns {list(agent.spec.observation_names)} and features {list(wanted)}")
    return terms


def _read(binding: Mapping[str, JsonValue], panel: Panel) -> AgentTerms:
    specs = [FeatureSpec.from_mapping(table) for table in _tables(binding["features"])]
    features = FeatureSet(specs, interval=panel.interval)
    saved = _tables([binding["scaler"]])[0]
    tensors: dict[str, Tensor] = {
        name: torch.tensor(saved[name], dtype=torch.float64)
        for name in ("centre", "scale", "low", "high")
        if name in saved
    }
    return AgentTerms(
        market=MarketConfig.from_mapping(_tables([binding["market"]])[0]),
        features=features,
        scaler=Scaler.load(tensors, saved, schema=features.schema()),
        symbols=tuple(str(symbol) for symbol in _list(binding["symbols"])),
        train_span=_span(binding["train_span"]),
        validation_span=_span(binding["validation_span"]) if "validation_span" in binding else None,
        without=tuple(_span(pair) for pair in _list(binding.get("without", []))),
    )


def with_market(agent: Agent, terms: AgentTerms, config: BacktestConfig) -> BacktestConfig:
    """Return the configuration with the agent's market filled in; refuse one that differs.

    Raises:
        ConfigError: if costs, horizon or actions differ; it names the setting.
    """
    own = terms.market
    if config.market is None:
        return config.replace(market=own.model_dump())
    market = config.market.replace(  # what is left out follows the agent, not the kinds
        levels=config.market.levels or own.levels,
        weight_range=config.market.weight_range or own.weight_range,
    )
    given: dict[str, JsonValue] = {
        "costs": market.costs.model_dump(mode="json"),
        "episode_bars": market.episode_bars,
        "action": market.action,
        "levels": list(market.offered_levels),
        "weight_range": list(market.offered_range),
    }
    fixed = {name: value for name, value in given.items() if name not in config.allow}
    agent.binding.check(**fixed)
    if market.features is not None and market.features != own.features:
        raise ConfigError(
            "config-inconsistent",
            wrong="`market.features` must be those of the agent's training",
            found=", ".join(feature.name for feature in market.features),
            remedy="Leave the setting out: the agent brings its own features.",
        )
    return config.replace(market=market.model_dump())


def _lacking(found: str) -> ArtifactError:
    return ArtifactError(
        "artifact-document",
        wrong="the agent's file must say what it was trained for: market, features and scaler",
        found=found,
        remedy="Train it again with this version of the package.",
    )


def _list(value: JsonValue) -> list[JsonValue]:
    if not isinstance(value, list):
        raise TypeError(f"a list was expected, not {value!r}")
    return value


def _tables(value: JsonValue) -> list[dict[str, JsonValue]]:
    tables = [item for item in _list(value) if isinstance(item, dict)]
    if len(tables) != len(_list(value)):
        raise TypeError("tables were expected")
    return tables


def _span(value: JsonValue) -> Span:
    first, last = _list(value)
    if not isinstance(first, int) or not isinstance(last, int):
        raise TypeError(f"two times in milliseconds were expected, not {value!r}")
    return Span(first, last)
