"""Terms that a saved trading agent is bound to: market rules, features, scaler, symbols, spans."""

from collections.abc import Sequence

from stormsail.core.files.documents import JsonValue
from stormsail.market.features import FeatureSet, Scaler
from stormsail.market.simulator.config import MarketConfig
from stormsail.market.splits import Span

TASK = "market"
"""Name of this kind of task in the file."""


def bound_terms(
    market: MarketConfig,
    features: FeatureSet,
    scaler: Scaler,
    *,
    symbols: Sequence[str],
    train_span: Span,
    validation_span: Span | None = None,
    gamma: float | None = None,
) -> dict[str, JsonValue]:
    """Return the entries of an agent's binding that are needed to run it later.

    Args:
        market: rules that it was trained by.
        features: that it sees.
        scaler: fitted on the training span.
        symbols: trained on.
        train_span: bars that it learned from.
        validation_span: bars on which it was chosen among others.
        gamma: discount of one bar, without which its critic's predictions have no unit of time.
    """
    chosen: dict[str, JsonValue] = {}
    if validation_span is not None:
        chosen["validation_span"] = [validation_span.start_ms, validation_span.end_ms]
    if gamma is not None:
        chosen["gamma"] = gamma
    return {
        **chosen,
        "task": TASK,
        "market": market.model_dump(mode="json"),
        "interval": str(features.interval),
        "feature_schema": features.schema_hash(),
        "features": [
            {"name": bound.feature.name, "parameters": dict(bound.parameters)}
            for bound in features.bound
        ],
        "scaler": {
            **scaler.document(),
            **{name: tensor.tolist() for name, tensor in scaler.tensors().items()},
        },
        "symbols": list(symbols),
        "train_span": [train_span.start_ms, train_span.end_ms],
        "costs": market.costs.model_dump(mode="json"),
        "episode_bars": market.episode_bars,
        "action": market.action,
        "levels": list(market.offered_levels),
        "weight_range": list(market.offered_range),
    }
