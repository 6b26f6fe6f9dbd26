"""The schema that travels with a model."""

import copy

import pytest

from stormsail.core.errors import DataError
from stormsail.market.features import (
    FeatureSet,
    FeatureSpec,
    Registry,
    check_schema,
    default_features,
    feature,
    schema_hash,
)
from stormsail.market.interval import Interval

HOUR = Interval.parse("1h")


def built(*, version=1, neutral=0.0, lookback=2, columns=("close",), period=14, interval="1h"):
    registry = Registry()

    def same(x, *, period):
        return x["close"]

    feature(
        name="mine",
        lookback=lambda **_: lookback,
        columns=columns,
        neutral=neutral,
        version=version,
        registry=registry,
    )(same)
    spec = FeatureSpec(name="mine", parameters={"period": period})
    return FeatureSet([spec], interval=Interval.parse(interval), registry=registry).schema()


def test_the_schema_by_hand():
    assert built() == {
        "version": 1,
        "interval": "1h",
        "features": [
            {
                "label": "mine(period=14)",
                "name": "mine",
                "version": 1,
                "parameters": {"period": 14},
                "lookback": 2,
                "neutral": 0.0,
                "columns": ["close"],
            }
        ],
    }


def test_the_hash_is_pinned():
    # A change of this number means that no earlier model runs: raise a version on purpose instead.
    assert schema_hash({"b": [1, 2.5], "a": "x"}) == (
        "66efddae6a97500318e4c6cdc4bc04149f340a165a7ef2d830393048b67b7a31"
    )
    assert default_features(HOUR).schema_hash() == (
        "6405c60fe1b96d0fc1f37b850f9aceae0d2cbb33ba7511462ccfff31ff4ab94a"
    )


@pytest.mark.parametrize(
    ("name", "key", "values"),
    [("bollinger_width", "deviations", (2, 2.0)), ("rsi", "period", (7, 7.0))],
)
def test_a_number_written_in_two_ways_is_one_parameter(name, key, values):
    whole, real = (
        FeatureSet([FeatureSpec(name=name, parameters={key: value})], interval=HOUR)
        for value in values
    )
    assert whole.schema_hash() == real.schema_hash()
    assert whole.names == real.names
    assert schema_hash(built(period=14)) == schema_hash(built(period=14.0))


def test_numbers_that_differ_have_labels_that_differ():
    specs = [FeatureSpec(name="garch", parameters={"beta": beta}) for beta in (0.94, 0.94000001)]
    assert FeatureSet(specs, interval=HOUR).names == (
        "garch(omega=0, alpha=0.06, beta=0.94)",
        "garch(omega=0, alpha=0.06, beta=0.94000001)",
    )


CHANGES = [
    ({"version": 2}, "`features[0].version` of the features must be 1; found 2."),
    ({"neutral": 0.5}, "`features[0].neutral` of the features must be 0.0; found 0.5."),
    ({"lookback": 3}, "`features[0].lookback` of the features must be 2; found 3."),
    ({"interval": "4h"}, '`interval` of the features must be "1h"; found "4h".'),
    ({"columns": ("open",)}, '`features[0].columns[0]` of the features must be "close"; found'),
    ({"columns": ("close", "open")}, "`features[0].columns[1]` of the features must be nothing;"),
    ({"period": 15}, '`features[0].label` of the features must be "mine(period=14)"; found'),
]


@pytest.mark.refusal
@pytest.mark.parametrize(("change", "words"), CHANGES, ids=[str(change) for change, _ in CHANGES])
def test_the_first_field_that_differs_is_named_and_the_hash_with_it(change, words):
    expected, actual = built(), built(**change)
    with pytest.raises(DataError) as caught:
        check_schema(expected, actual)
    assert str(caught.value).startswith(words)
    assert caught.value.code == "feature-schema"
    assert schema_hash(expected) != schema_hash(actual)


@pytest.mark.refusal
def test_a_parameter_is_named_by_its_path():
    expected, actual = copy.deepcopy(built()), copy.deepcopy(built())
    actual["features"][0]["parameters"]["period"] = 14.0
    with pytest.raises(DataError) as caught:
        check_schema(expected, actual)
    assert str(caught.value) == (
        "`features[0].parameters.period` of the features must be 14; found 14.0. "
        "Feed the model with the features it was trained on, or train a new one. [feature-schema]"
    )


@pytest.mark.refusal
def test_a_missing_feature_and_a_missing_field_are_nothing():
    fewer = {**built(), "features": []}
    with pytest.raises(DataError, match=r"`features\[0\]` of the features must be nothing; found"):
        check_schema(fewer, built())
    without = {key: value for key, value in built().items() if key != "interval"}
    with pytest.raises(DataError, match='`interval` of the features must be "1h"; found nothing'):
        check_schema(built(), without)


def test_equal_schemas_pass():
    check_schema(built(), built())
    assert schema_hash(built()) == schema_hash(dict(reversed(list(built().items()))))
