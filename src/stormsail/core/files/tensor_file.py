"""Tensors to safetensors bytes and back, with every header checked."""

from collections.abc import Mapping
from typing import TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load as safetensors_load
from safetensors.torch import save as safetensors_save
from torch import Tensor

MAX_HEADER_BYTES = 16 << 20
"""A header beyond this is no network of ours; 100,000 tensors need less."""

TensorSpec: TypeAlias = dict[str, dict[str, str | list[int]]]
"""Name of each tensor to its `dtype` and `shape`."""


DTYPES = frozenset(
    {
        torch.bfloat16,
        torch.bool,
        torch.complex64,
        torch.float16,
        torch.float32,
        torch.float64,
        torch.float8_e4m3fn,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2,
        torch.float8_e5m2fnuz,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
    }
)
"""Types of number that the format gives back as they were."""


class TensorFileError(ValueError):
    """Bytes or tensors that this format cannot carry; the caller names the file."""


def encode_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the tensors as safetensors bytes: equal tensors give equal bytes.

    Tensors are copied to the CPU. Tied weights are written once for each name, because a file in
    which two names share memory would make one of them disappear.
    """
    check_tensors(tensors)
    copies = {
        name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()
    }
    return safetensors_save(copies)


def check_tensors(tensors: object) -> None:
    """Refuse tensors that the format cannot hold.

    Raises:
        TensorFileError: if a name is no text or taken, or a tensor is not a dense one with numbers
            of a type in `DTYPES`.
    """
    if not isinstance(tensors, Mapping):
        raise TensorFileError(f"a value of the type {type(tensors).__name__}")
    for name, tensor in tensors.items():
        if type(name) is not str:
            raise TensorFileError(f"the name {name!r}, which is not a string")
        if name == "__metadata__":
            raise TensorFileError("the name `__metadata__`, which the format keeps for itself")
        if not name.isascii() and any("\ud800" <= letter <= "\udfff" for letter in name):
            raise TensorFileError(f"the name {name!r}, which has no UTF-8 form")
        obstacle = _obstacle(tensor)
        if obstacle is not None:
            raise TensorFileError(f"`{name}`, {obstacle}")


def _obstacle(tensor: object) -> str | None:
    if not isinstance(tensor, Tensor):
        return f"a value of the type {type(tensor).__name__}"
    if tensor.layout != torch.strided or tensor.is_nested:
        return "a tensor that is sparse or nested"
    if tensor.is_meta:
        return "a tensor without numbers, on the device `meta`"
    return None if tensor.dtype in DTYPES else f"a tensor of {tensor.dtype}"


def decode_tensors(data: bytes) -> dict[str, Tensor]:
    """Return the tensors of safetensors bytes that are already in memory.

    Raises:
        TensorFileError: if the bytes are not exactly one well-formed safetensors file.
    """
    header = int.from_bytes(data[:8], "little")
    if len(data) < 8 or header > min(len(data) - 8, MAX_HEADER_BYTES):
        raise TensorFileError(f"a header of {header} bytes in a file of {len(data)}")
    try:
        return safetensors_load(data)
    except (SafetensorError, AssertionError, KeyError, RuntimeError, ValueError) as error:
        raise TensorFileError(f"{type(error).__name__} {error}".splitlines()[0]) from error


def specification(tensors: Mapping[str, Tensor]) -> TensorSpec:
    """Return the type and shape of each tensor, as plain data."""
    return {
        name: {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
        for name, tensor in tensors.items()
    }


def difference(expected: TensorSpec, actual: TensorSpec) -> str | None:
    """Describe how the first differing tensor differs; return None if none does."""
    for name in sorted({*expected, *actual}):
        if name not in actual:
            return f"no tensor `{name}`"
        if name not in expected:
            return f"an unexpected tensor `{name}`"
        if expected[name] != actual[name]:
            return f"`{name}` {_words(actual[name])} instead of {_words(expected[name])}"
    return None


def count_nonfinite(tensor: Tensor) -> int:
    """Return how many entries are NaN or infinite; 0 for a type that has no such entries."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return 0
    if tensor.is_floating_point() and tensor.element_size() == 1:
        tensor = tensor.float()  # eight-bit floats lack most operations
    return int((~torch.isfinite(tensor)).sum())


def _words(spec: Mapping[str, str | list[int]]) -> str:
    shape = spec["shape"]
    return f"{spec['dtype']} ({', '.join(map(str, shape))})"
