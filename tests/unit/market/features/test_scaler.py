"""Robust scaling of the training span."""

import numpy as np
import pytest
import torch

from stormsail.core.errors import DataError, RangeError, ShapeError
from stormsail.core.files.artifact import Contents, read_artifact, write_artifact
from stormsail.core.generators import Generators
from stormsail.market.features import Features, Scaler, default_features, sample_bars
from stormsail.market.interval import Interval

HOUR = Interval.parse("1h")


def table(*columns):
    values = torch.tensor(columns, dtype=torch.float64).T.unsqueeze(1)  # [T, 1, F]
    names = tuple(f"f{index}" for index in range(len(columns)))
    schema = {"features": [{"label": name} for name in names]}
    return Features(values, torch.ones_like(values, dtype=torch.bool), names), schema


def test_fit_and_transform_by_hand():
    # 0, 1, 2, 3, 8: median 2, quartiles 1 and 3, scale 2 / 1.349
    features, schema = table([0.0, 1.0, 2.0, 3.0, 8.0])
    scaler = Scaler.fit(features, (0, 5), schema=schema)
    assert scaler.centre.tolist() == [2.0]
    torch.testing.assert_close(scaler.scale, torch.tensor([2 / 1.349]).double())
    scaled = scaler.transform(features).values[:, 0, 0]
    torch.testing.assert_close(scaled, torch.tensor([-1.349, -0.6745, 0, 0.6745, 4.047]).double())


def test_rows_outside_the_training_span_do_not_matter():
    features, schema = table([0.0, 1.0, 2.0, 3.0, 8.0, 1e9, -1e9])
    before = Scaler.fit(features, (0, 5), schema=schema)
    features.values[5:] = torch.nan
    after = Scaler.fit(features, (0, 5), schema=schema)
    assert torch.equal(before.centre, after.centre)
    assert torch.equal(before.scale, after.scale)


def test_invalid_values_are_neither_fitted_nor_scaled():
    features, schema = table([0.0, 1.0, 2.0, 3.0, 8.0, 77.0])
    features.valid[5] = False
    scaler = Scaler.fit(features, (0, 6), schema=schema)
    assert scaler.centre.tolist() == [2.0]
    assert scaler.transform(features).values[5].item() == 0.0


def test_the_scale_of_a_gaussian_is_its_deviation_and_the_clip_holds():
    x = Generators(0).numpy("x").normal(5.0, 3.0, 100_001)
    features, schema = table(x.tolist())
    scaler = Scaler.fit(features, (0, len(x)), schema=schema)
    assert scaler.centre.item() == pytest.approx(np.median(x))
    quartiles = np.percentile(x, [25, 75])
    assert scaler.scale.item() == pytest.approx((quartiles[1] - quartiles[0]) / 1.349)
    assert scaler.scale.item() == pytest.approx(3.0, rel=0.02)
    far = scaler.apply(torch.tensor([[1e9], [-1e9]]), torch.ones(2, 1, dtype=torch.bool))
    assert far.flatten().tolist() == [10.0, -10.0]
    assert far.dtype == torch.float32


def test_a_column_whose_quartiles_coincide_keeps_its_unit():
    features, schema = table([0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.5])
    scaler = Scaler.fit(features, (0, 7), schema=schema)
    assert scaler.scale.tolist() == [1.0]
    assert scaler.transform(features).values[6].item() == 1.5


def test_winsorising_cuts_at_quantiles_of_the_training_span():
    column = [float(value) for value in range(101)]
    features, schema = table([*column, 5000.0])
    scaler = Scaler.fit(features, (0, 101), schema=schema, winsorise=(0.01, 0.99))
    assert [bound.item() for bound in scaler.bounds] == [1.0, 99.0]
    scaled = scaler.transform(features).values[:, 0, 0]
    assert scaled[101] == scaled[99]
    assert scaled[0] == scaled[1]


@pytest.mark.parametrize("winsorise", [None, (0.01, 0.99)])
def test_it_is_saved_in_an_artifact_and_comes_back(tmp_path, winsorise):
    generator = Generators(0).stream("bars")
    chosen = default_features(HOUR)
    bars = sample_bars(rows=1500, symbols=2, interval=HOUR, generator=generator)
    features = chosen.compute(bars)
    scaler = Scaler.fit(features, (0, 1200), schema=chosen.schema(), winsorise=winsorise)
    contents = Contents({"scaler": scaler.tensors()}, {"scaler": scaler.document()})
    write_artifact(tmp_path / "a", kind="scaler", contents=contents)

    saved = read_artifact(tmp_path / "a", kind="scaler")
    again = Scaler.load(saved.tensors["scaler"], saved.documents["scaler"], schema=chosen.schema())

    assert torch.equal(again.transform(features).values, scaler.transform(features).values)
    assert again.transform(features).values.abs().max() <= 10.0
    latest = chosen.latest(bars)
    assert torch.equal(again.transform(latest).values, scaler.transform(features).values[-1])


@pytest.mark.refusal
def test_a_scaler_of_other_features_is_refused():
    features, schema = table([0.0, 1.0, 2.0, 3.0])
    scaler = Scaler.fit(features, (0, 4), schema=schema)
    other = {"features": [{"label": "g"}]}
    with pytest.raises(DataError) as caught:
        Scaler.load(scaler.tensors(), scaler.document(), schema=other)
    assert str(caught.value) == (
        '`features[0].label` of the features must be "f0"; found "g". '
        "Feed the model with the features it was trained on, or train a new one. [feature-schema]"
    )
    renamed = Features(features.values, features.valid, ("g",))
    with pytest.raises(DataError, match=r'`labels\[0\]` of the features must be "f0"; found "g"'):
        scaler.transform(renamed)


@pytest.mark.refusal
def test_a_damaged_scaler_is_refused():
    features, schema = table([0.0, 1.0, 2.0, 3.0])
    scaler = Scaler.fit(features, (0, 4), schema=schema)
    whole, document = scaler.tensors(), scaler.document()
    with pytest.raises(DataError, match=r"found `scale` nothing for 1 columns"):
        Scaler.load({"centre": whole["centre"]}, document, schema=schema)
    with pytest.raises(DataError, match=r"found `centre` \(2,\) for 1 columns"):
        Scaler.load({**whole, "centre": torch.zeros(2)}, document, schema=schema)
    with pytest.raises(DataError, match=r"found a clip of -1"):
        Scaler.load(whole, {**document, "clip": -1}, schema=schema)
    with pytest.raises(DataError, match=r"found no schema"):
        Scaler.load(whole, {}, schema=schema)


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"centre": float("nan")}, "a number in `centre` that is not finite"),
        ({"scale": float("inf")}, "a number in `scale` that is not finite"),
        ({"scale": 0.0}, "a scale that is not greater than 0"),
        ({"low": 1.0}, r"`high` nothing for 1 columns"),
        ({"high": 1.0}, r"`low` nothing for 1 columns"),
        ({"low": 2.0, "high": 1.0}, "a lowest value above the highest"),
    ],
)
def test_a_scaler_that_could_not_have_been_fitted_is_refused(changes, problem):
    features, schema = table([0.0, 1.0, 2.0, 3.0])
    scaler = Scaler.fit(features, (0, 4), schema=schema)
    tensors = {name: torch.tensor([value]).double() for name, value in changes.items()}
    with pytest.raises(DataError, match=f"found {problem}"):
        Scaler.load({**scaler.tensors(), **tensors}, scaler.document(), schema=schema)


@pytest.mark.refusal
@pytest.mark.parametrize("quantiles", [(0.9, 0.1), (0.5, 0.5), (-0.1, 0.9), (0.1, 1.1)])
def test_quantiles_and_clip_must_mean_something(quantiles):
    features, schema = table([0.0, 1.0, 2.0, 3.0])
    with pytest.raises(RangeError) as caught:
        Scaler.fit(features, (0, 4), schema=schema, winsorise=quantiles)
    assert str(caught.value) == (
        f"`winsorise` must be two quantiles, 0 <= low < high <= 1; found {quantiles}. "
        "Pass for example `(0.01, 0.99)`. [out-of-range]"
    )
    for clip in (0.0, -1.0, float("nan")):
        with pytest.raises(RangeError, match="`clip` must be finite and greater than 0"):
            Scaler.fit(features, (0, 4), schema=schema, clip=clip)


@pytest.mark.refusal
def test_a_fit_needs_the_columns_of_its_schema():
    features, _ = table([0.0, 1.0, 2.0, 3.0])
    other = {"features": [{"label": "g"}]}
    with pytest.raises(DataError, match=r'`labels\[0\]` of the features must be "g"; found "f0"'):
        Scaler.fit(features, (0, 4), schema=other)


@pytest.mark.refusal
def test_a_span_that_is_not_there_or_holds_too_little_is_refused():
    features, schema = table([0.0, 1.0, 2.0, 3.0])
    with pytest.raises(RangeError) as caught:
        Scaler.fit(features, (2, 5), schema=schema)
    assert str(caught.value) == (
        "the training rows must lie in [0, 4]; found [2, 5). "
        "Pass the first row and the row after the last. [out-of-range]"
    )
    with pytest.raises(RangeError, match="`f0` must have at least 4 valid values"):
        Scaler.fit(features, (1, 4), schema=schema)


@pytest.mark.refusal
def test_values_must_end_in_the_columns():
    features, schema = table([0.0, 1.0, 2.0, 3.0])
    scaler = Scaler.fit(features, (0, 4), schema=schema)
    with pytest.raises(ShapeError, match="`values` and `valid` must end in the 1 columns"):
        scaler.apply(torch.zeros(3, 2), torch.ones(3, 2, dtype=torch.bool))
