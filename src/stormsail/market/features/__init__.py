"""Causal features of closed bars: equal values for a whole history, a window and one new bar."""

from stormsail.market.features.account import ACCOUNT_FEATURES, AccountTensors, account_features
from stormsail.market.features.catalogue import default_features, default_specs
from stormsail.market.features.feature_set import Features, FeatureSet, FeatureSpec
from stormsail.market.features.leak_search import search_leaks
from stormsail.market.features.leaks import Leak, LeakReport, check_leaks, draw_cuts
from stormsail.market.features.registry import REGISTRY, Feature, Registry, feature
from stormsail.market.features.sample import sample_bars
from stormsail.market.features.scaler import Scaler
from stormsail.market.features.schema import Schema, check_schema, schema_hash
from stormsail.market.features.tensors import BarTensors

__all__ = [
    "ACCOUNT_FEATURES",
    "REGISTRY",
    "AccountTensors",
    "BarTensors",
    "Feature",
    "FeatureSet",
    "FeatureSpec",
    "Features",
    "Leak",
    "LeakReport",
    "Registry",
    "Scaler",
    "Schema",
    "account_features",
    "check_leaks",
    "check_schema",
    "default_features",
    "default_specs",
    "draw_cuts",
    "feature",
    "sample_bars",
    "schema_hash",
    "search_leaks",
]
