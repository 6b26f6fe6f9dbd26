"""The state of numpy's PCG64 as bytes in a tensor, and back, exactly."""

import struct
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_LAYOUT = struct.Struct("<16s16sBI")  # state, increment, whether half a word is kept, that half


def pack_pcg64(state: Mapping[str, Any]) -> Tensor:
    """Return numpy's `bit_generator.state` as a uint8 tensor of 37 bytes."""
    inner = state["state"]
    data = _LAYOUT.pack(
        inner["state"].to_bytes(16, "little"),
        inner["inc"].to_bytes(16, "little"),
        state["has_uint32"],
        state["uinteger"],
    )
    return torch.tensor(list(data), dtype=torch.uint8)


def pcg64_increment(state: Mapping[str, Any]) -> int:
    """Return the constant that tells one PCG64 stream from another; drawing never changes it."""
    increment: int = state["state"]["inc"]
    return increment


def unpack_pcg64(tensor: Tensor) -> dict[str, Any]:
    """Return what `pack_pcg64` was given.

    Raises:
        ValueError: if the bytes cannot have come from a PCG64.
    """
    data = bytes(tensor.tolist())
    if len(data) != _LAYOUT.size:
        raise ValueError(f"{len(data)} bytes instead of {_LAYOUT.size}")
    state, increment, has_half, half = _LAYOUT.unpack(data)
    if has_half > 1:
        raise ValueError(f"the flag {has_half}")
    return {
        "bit_generator": "PCG64",
        "state": {
            "state": int.from_bytes(state, "little"),
            "inc": int.from_bytes(increment, "little"),
        },
        "has_uint32": has_half,
        "uinteger": half,
    }
