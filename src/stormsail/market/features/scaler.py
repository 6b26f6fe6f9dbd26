"""`Scaler`: robust scaling (median, IQR) of features, fitted on the training span only."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from stormsail.core.errors import DataError, RangeError, ShapeError
from stormsail.core.files.documents import JsonValue
from stormsail.market.features.feature_set import Features
from stormsail.market.features.schema import Schema, check_schema, schema_hash

IQR_TO_STD = 1.0 / 1.349
"""A Gaussian's standard deviation over the distance between its quartiles."""

CLIP = 10.0
"""Largest scaled size."""

_LEAST_ROWS = 4  # quartiles of fewer numbers are those numbers
_LOW, _HIGH = "low", "high"


@dataclass(frozen=True, eq=False)  # tensors do not compare to one truth value
class Scaler:
    """Median and quartile distance of each column over the training span.

    x becomes clamp((x - median) / (IQR / 1.349), +-clip); where a value is not valid it becomes 0,
    the median. A column whose quartiles coincide keeps its unit. With `winsorise` the values are
    first cut at two quantiles of the training span.
    """

    schema: Schema
    centre: Tensor
    """[F] float64."""
    scale: Tensor
    """[F] float64, greater than 0."""
    clip: float = CLIP
    bounds: tuple[Tensor, Tensor] | None = None
    """Lowest and highest value of each column, [F] float64, where values are winsorised."""

    @classmethod
    def fit(
        cls,
        features: Features,
        rows: tuple[int, int],
        *,
        schema: Schema,
        clip: float = CLIP,
        winsorise: tuple[float, float] | None = None,
    ) -> "Scaler":
        """Fit on the valid values of the rows [first, last), all symbols together.

        Raises:
            RangeError: if the rows are not there, a column has fewer than 4 valid values, the
                quantiles are not 0 <= low < high <= 1, or the clip is not greater than 0.
            DataError: if the columns are not those of the schema.
        """
        _check_options(clip, winsorise)
        _check_columns(schema, features)
        first, last = rows
        if not 0 <= first < last <= features.values.shape[0]:
            raise RangeError(
                wrong=f"the training rows must lie in [0, {features.values.shape[0]}]",
                found=f"[{first}, {last})",
                remedy="Pass the first row and the row after the last.",
            )
        levels = (0.25, 0.5, 0.75, *(winsorise or ()))
        table = [
            _quantiles(
                features.values[first:last, ..., index],
                features.valid[first:last, ..., index],
                levels,
                name,
            )
            for index, name in enumerate(features.names)
        ]
        quantiles = torch.stack(table)  # [F, levels]
        spread = (quantiles[:, 2] - quantiles[:, 0]) * IQR_TO_STD
        scale = torch.where(spread > 0.0, spread, 1.0)
        bounds = (quantiles[:, 3].clone(), quantiles[:, 4].clone()) if winsorise else None
        return cls(schema, quantiles[:, 1].clone(), scale, clip, bounds)

    def transform(self, features: Features) -> Features:
        """Return the features scaled.

        Raises:
            DataError: if the columns are not those it was fitted on.
        """
        _check_columns(self.schema, features)
        return Features(self.apply(features.values, features.valid), features.valid, features.names)

    def apply(self, values: Tensor, valid: Tensor) -> Tensor:
        """Return values [..., F] scaled, 0 where they are not valid; keeps their dtype."""
        if values.shape != valid.shape or values.shape[-1:] != self.centre.shape:
            raise ShapeError(
                wrong=f"`values` and `valid` must end in the {len(self.centre)} columns",
                found=f"values {tuple(values.shape)} and valid {tuple(valid.shape)}",
                remedy="Pass what the feature set computed.",
            )
        x = values
        if self.bounds is not None:
            x = torch.minimum(torch.maximum(x, self.bounds[0].to(x)), self.bounds[1].to(x))
        scaled = (x - self.centre.to(x)) / self.scale.to(x)
        return torch.where(valid, scaled.clamp(-self.clip, self.clip), 0.0)

    def tensors(self) -> dict[str, Tensor]:
        """Return what goes into a safetensors file."""
        bounds = {} if self.bounds is None else {_LOW: self.bounds[0], _HIGH: self.bounds[1]}
        return {"centre": self.centre, "scale": self.scale, **bounds}

    def document(self) -> dict[str, JsonValue]:
        """Return what goes into a JSON file beside the tensors."""
        return {
            "version": 1,
            "clip": self.clip,
            "schema": dict(self.schema),
            "schema_hash": schema_hash(self.schema),
        }

    @classmethod
    def load(
        cls, tensors: Mapping[str, Tensor], document: Mapping[str, JsonValue], *, schema: Schema
    ) -> "Scaler":
        """Return a saved scaler.

        Raises:
            DataError: if it was fitted on other features than `schema` names, or is not whole.
        """
        saved = document.get("schema")
        if not isinstance(saved, dict):
            raise _damaged("no schema")
        check_schema(saved, schema)
        count = len(_labels(schema))
        _check_whole(tensors, count)
        clip = document.get("clip")
        if not isinstance(clip, int | float) or not 0.0 < clip < math.inf:
            raise _damaged(f"a clip of {clip!r}")
        bounds = (tensors[_LOW], tensors[_HIGH]) if _LOW in tensors else None
        return cls(schema, tensors["centre"], tensors["scale"], float(clip), bounds)


def _quantiles(values: Tensor, valid: Tensor, levels: tuple[float, ...], name: str) -> Tensor:
    """Return quantiles of the valid values, interpolated linearly between neighbours."""
    ordered = values[valid].double().sort().values
    if ordered.numel() < _LEAST_ROWS:
        raise RangeError(
            wrong=f"`{name}` must have at least {_LEAST_ROWS} valid values in the training rows",
            found=str(ordered.numel()),
            remedy="Train on a longer span than the lookback, or drop the feature.",
        )
    place = torch.tensor(levels, dtype=torch.float64, device=values.device) * (len(ordered) - 1)
    below = place.floor().long()
    above = (below + 1).clamp(max=len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _check_options(clip: float, winsorise: tuple[float, float] | None) -> None:
    if not 0.0 < clip < math.inf:
        raise RangeError(
            wrong="`clip` must be finite and greater than 0",
            found=repr(clip),
            remedy="Leave it at 10, or pass the largest scaled size.",
        )
    if winsorise is not None and not 0.0 <= winsorise[0] < winsorise[1] <= 1.0:
        raise RangeError(
            wrong="`winsorise` must be two quantiles, 0 <= low < high <= 1",
            found=repr(winsorise),
            remedy="Pass for example `(0.01, 0.99)`.",
        )


def _check_columns(schema: Schema, features: Features) -> None:
    labels = _labels(schema)
    if list(features.names) != labels:
        check_schema({"labels": list(labels)}, {"labels": list(features.names)})


def _check_whole(tensors: Mapping[str, Tensor], count: int) -> None:
    """Refuse tensors that are missing, misshapen, or could not have been fitted."""
    bounded = _LOW in tensors or _HIGH in tensors
    for name in ("centre", "scale", *((_LOW, _HIGH) if bounded else ())):
        if name not in tensors or tuple(tensors[name].shape) != (count,):
            shape = tuple(tensors[name].shape) if name in tensors else "nothing"
            raise _damaged(f"`{name}` {shape} for {count} columns")
        if not bool(tensors[name].isfinite().all()):
            raise _damaged(f"a number in `{name}` that is not finite")
    if not bool((tensors["scale"] > 0.0).all()):
        raise _damaged("a scale that is not greater than 0")
    if bounded and not bool((tensors[_LOW] <= tensors[_HIGH]).all()):
        raise _damaged("a lowest value above the highest")


def _labels(schema: Schema) -> list[str]:
    features = schema.get("features")
    entries = features if isinstance(features, list) else []
    return [str(entry["label"]) for entry in entries if isinstance(entry, dict)]


def _damaged(found: str) -> DataError:
    return DataError(
        "feature-schema",
        wrong="a saved scaler must hold a schema and one number for each of its columns",
        found=found,
        remedy="Use another copy of the artifact.",
    )
