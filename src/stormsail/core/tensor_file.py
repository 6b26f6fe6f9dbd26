"""Tensors as safetensors bytes, and back: pure data, no code, nothing taken on trust."""

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


class TensorFileError(ValueError):
    """Bytes or tensors that this format cannot carry; the caller knows the file and says so."""


def encode_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the tensors as safetensors bytes: equal tensors give equal bytes.

    Tensors are copied to the CPU. Tied weights are written once for each name, because a file in
    which two names share memory would make one of them disappear.
    """
    if "__metadata__" in tensors:
        raise TensorFileError("the name `__metadata__`, which the format keeps for itself")
    copies = {
        name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()
    }
    return safetensors_save(copies)


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


def difference(expected: TensorSpec, found: TensorSpec) -> str | None:
    """Say how the first differing tensor differs, or return None if none does."""
    for name in sorted({*expected, *found}):
        if name not in found:
            return f"no tensor `{name}`"
        if name not in expected:
            return f"an unexpected tensor `{name}`"
        if expected[name] != found[name]:
            return f"`{name}` {_words(found[name])} instead of {_words(expected[name])}"
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
