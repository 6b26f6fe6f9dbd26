"""Conversion of nested state to named tensors and one JSON document, and back without loss.

A state dict holds tables with text or whole numbers as keys, lists, tuples, numbers and tensors.
Tensors go into a file of tensors under their path, `state/0/exp_avg`; what is left is the tree,
JSON that names at each leaf the tensor that belongs there. No class is ever named: the code that
restores a named tuple knows which one.
"""

import math
from collections.abc import Mapping

from torch import Tensor

from stormsail.core.errors import ArtifactError
from stormsail.core.files.documents import JsonValue

_ODD_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""Numbers that JSON has no word for."""


def flatten(value: object) -> tuple[JsonValue, dict[str, Tensor]]:
    """Return the tree of a nested value, and its tensors by path.

    Raises:
        ArtifactError: if it holds anything but tables, lists, tuples, tensors and plain values.
    """
    tensors: dict[str, Tensor] = {}
    return _tree(value, "", tensors), tensors


def unflatten(tree: JsonValue, tensors: Mapping[str, Tensor]) -> object:
    """Return the nested value of a tree and its tensors; tuples come back as plain ones.

    Raises:
        ArtifactError: if the tree is not one, or does not use every tensor exactly once.
    """
    left = dict(tensors)
    value = _value(tree, left)
    if left:
        raise _malformed(f"the tensor `{min(left)}`, which stands nowhere in it")
    return value


def _tree(value: object, path: str, tensors: dict[str, Tensor]) -> JsonValue:
    if isinstance(value, Tensor):
        tensors[path or "value"] = value.detach()
        return {"tensor": path or "value"}
    if isinstance(value, tuple):
        return {"tuple": _trees(value, path, tensors)}
    if isinstance(value, list):
        return _trees(value, path, tensors)
    if isinstance(value, Mapping):
        return _table(value, path, tensors)
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or type(value) in (bool, int, float, str):
        return value  # type: ignore[return-value]  # the exact types above are JSON's own
    raise ArtifactError(
        "artifact-document",
        wrong=f"the state `{path}` must be made of tables, lists, tensors and plain values",
        found=f"a value of the type {type(value).__name__}",
        remedy="Give the part a state that can be written down.",
    )


def _trees(
    values: list[object] | tuple[object, ...], path: str, tensors: dict[str, Tensor]
) -> list[JsonValue]:
    """Return the trees of a sequence; a named tuple's fields give their paths names."""
    names = getattr(values, "_fields", range(len(values)))
    pairs = zip(names, values, strict=True)
    return [_tree(item, _joined(path, name), tensors) for name, item in pairs]


def _table(value: Mapping[object, object], path: str, tensors: dict[str, Tensor]) -> JsonValue:
    if all(type(key) is str for key in value):
        table: dict[str, JsonValue] = {
            str(key): _tree(item, _joined(path, key), tensors) for key, item in value.items()
        }
        return {"table": table}
    if all(type(key) is int for key in value):
        numbered: list[JsonValue] = [
            [key, _tree(item, _joined(path, key), tensors)]  # type: ignore[list-item]
            for key, item in value.items()
        ]
        return {"numbered": numbered}
    raise ArtifactError(
        "artifact-document",
        wrong=f"the keys of the state `{path}` must be all text or all whole numbers",
        found=", ".join(sorted({type(key).__name__ for key in value})),
        remedy="Give the part a state that can be written down.",
    )


def _joined(path: str, name: object) -> str:
    return f"{path}/{name}" if path else f"{name}"


def _value(tree: JsonValue, left: dict[str, Tensor]) -> object:
    if isinstance(tree, list):
        return [_value(item, left) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if len(tree) != 1:
        raise _malformed(f"an entry with the keys {sorted(tree)}")
    (kind, inner), *_ = tree.items()
    if kind == "tensor" and isinstance(inner, str) and inner in left:
        return left.pop(inner)
    if kind == "float" and isinstance(inner, str) and inner in _ODD_FLOATS:
        return _ODD_FLOATS[inner]
    if kind == "tuple" and isinstance(inner, list):
        return tuple(_value(item, left) for item in inner)
    if kind == "table" and isinstance(inner, dict):
        return {key: _value(item, left) for key, item in inner.items()}
    if kind == "numbered" and isinstance(inner, list):
        return dict(_numbered(item, left) for item in inner)
    raise _malformed(f"the entry {tree!r}"[:120])


def _numbered(item: JsonValue, left: dict[str, Tensor]) -> tuple[int, object]:
    if isinstance(item, list) and len(item) == 2 and type(item[0]) is int:
        return item[0], _value(item[1], left)
    raise _malformed(f"the entry {item!r}"[:120])


def _malformed(problem: str) -> ArtifactError:
    return ArtifactError(
        "artifact-document",
        wrong="a saved state must be a tree that this version writes",
        found=problem,
        remedy="Use another copy of the artifact, or an older generation.",
    )
