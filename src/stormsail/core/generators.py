"""Named random number streams (torch and numpy), all derived from one seed.

Each stream depends on the seed and its name only: not on which streams were made before it, nor on
how much they were used. A new feature that draws numbers therefore leaves every other draw of a run
as it was.
"""

import hashlib
import re
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stormsail.core.errors import ArgumentError, ArtifactError, RangeError

_NAME = re.compile(r"[a-z0-9_]+([.][a-z0-9_]+)*")
_VERSION = "stormsail.generators.1"
_SEED_LIMIT = 1 << 63
_IDENTITY = "identity"
_MAX_DEPTH = 32

# State, increment, whether half of a 64-bit word is kept, that half.
_PCG64_LAYOUT = struct.Struct("<16s16sBI")


class Generators:
    """A tree of random streams whose state can be saved and restored.

    A state is one flat mapping of uint8 tensors, so that it goes into a safetensors file as it is:
    `torch:rollout.actions`, `numpy:world`, and the same behind `member.3/` for a sub-tree.

    torch's CPU generator reads only the lower 32 bits of its seed. Two given streams coincide with
    a probability of 2⁻³², so among 100 streams some pair does with about one in a million.

    Args:
        seed: at least 0 and below 2⁶³.
        device: where the torch streams live; numpy's are on the CPU always.
    """

    def __init__(self, seed: int, device: torch.device | str = "cpu") -> None:
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < _SEED_LIMIT:
            raise RangeError(
                wrong="`seed` must be a whole number of at least 0 and below 2**63",
                found=repr(seed),
                remedy="Pass for example 0.",
            )
        self.seed = seed
        self.device = torch.device(device)
        self._torch: dict[str, torch.Generator] = {}
        self._numpy: dict[str, np.random.Generator] = {}
        self._children: dict[str, Generators] = {}
        self._depth = 0

    def stream(self, name: str) -> torch.Generator:
        """Return the torch stream of that name, the same object at every call."""
        if name not in self._torch:
            generator = torch.Generator(device=self.device)
            generator.manual_seed(self._derived("torch", name))
            self._torch[name] = generator
        return self._torch[name]

    def numpy(self, name: str) -> np.random.Generator:
        """Return the numpy stream of that name; it shares nothing with a torch stream's."""
        if name not in self._numpy:
            bits = np.random.PCG64(self._derived("numpy", name))
            self._numpy[name] = np.random.Generator(bits)
        return self._numpy[name]

    def spawn(self, name: str) -> "Generators":
        """Return the sub-tree of that name: a seed of its own, on the same device.

        Raises:
            RangeError: if it would lie more than 32 levels deep.
        """
        if name not in self._children:
            if self._depth >= _MAX_DEPTH:
                raise RangeError(
                    wrong=f"a tree of streams must have at most {_MAX_DEPTH} levels",
                    found=f"the sub-tree `{name}` below that",
                    remedy="Give the streams longer names instead, such as `member.3.actions`.",
                )
            child = Generators(self._derived("spawn", name), self.device)
            child._depth = self._depth + 1
            self._children[name] = child
        return self._children[name]

    def state(self) -> dict[str, Tensor]:
        """Return everything needed to continue all streams, copied."""
        state = {_IDENTITY: self._identity()}
        for name, generator in sorted(self._torch.items()):
            state[f"torch:{name}"] = generator.get_state().clone()
        for name, numpy_generator in sorted(self._numpy.items()):
            state[f"numpy:{name}"] = _pack_pcg64(numpy_generator.bit_generator.state)
        for name, child in sorted(self._children.items()):
            state |= {f"{name}/{key}": tensor for key, tensor in child.state().items()}
        return state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue exactly where `state` was taken; refuse as a whole or change as a whole.

        Streams that did not exist then start anew, which is what they would have done. The
        objects handed out by `stream` and `numpy` stay valid.

        Raises:
            ArtifactError: if the state belongs to another seed or kind of device, or is damaged.
        """
        if _IDENTITY not in state:
            raise _malformed(_IDENTITY, "nothing")
        restored = Generators(self.seed, self.device)
        restored._read(_IDENTITY, state[_IDENTITY])  # first: it explains every other difference
        for key, tensor in state.items():
            if not isinstance(key, str) or key.count("/") > _MAX_DEPTH:
                raise _malformed(key, "an entry of that name")
            restored._read(key, tensor)
        self._adopt(restored)

    def _derived(self, kind: str, name: str) -> int:
        """Return the seed of one stream: 63 bits of a hash over an encoding without ambiguity."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ArgumentError(
                "name-form",
                wrong="a stream's name must be lower-case words joined by points",
                found=f"`{name}`",
                remedy="Write for example `rollout.actions`.",
            )
        text = f"{_VERSION}\n{kind}\n{self.seed}\n{name}"  # no part can hold a line break
        digest = hashlib.sha256(text.encode("ascii")).digest()
        return int.from_bytes(digest[:8], "little") % _SEED_LIMIT

    def _identity(self) -> Tensor:
        """Return version, device type and seed, which a state must agree with to be restored."""
        text = f"{_VERSION} {self.device.type} {self.seed}"
        return torch.tensor(list(text.encode("ascii")), dtype=torch.uint8)

    def _read(self, key: str, tensor: Tensor) -> None:
        """Take one entry of a state into this tree, which is thrown away if any entry is bad."""
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.is_meta:
            raise _malformed(key, "no dense tensor with numbers")
        if tensor.dtype != torch.uint8 or tensor.ndim != 1:
            raise _malformed(key, f"{tensor.dtype} of shape {tuple(tensor.shape)}")
        owner, separator, rest = key.partition("/")
        kind, _, name = key.partition(":")
        if separator and _NAME.fullmatch(owner):
            self.spawn(owner)._read(rest, tensor)
        elif key == _IDENTITY:
            self._check_identity(tensor)
        elif kind == "torch" and _NAME.fullmatch(name):
            self._read_torch(name, tensor)
        elif kind == "numpy" and _NAME.fullmatch(name):
            self._read_numpy(name, tensor)
        else:
            raise _malformed(key, "an entry of that name")

    def _check_identity(self, tensor: Tensor) -> None:
        own, given = self._identity(), tensor.cpu()
        if not torch.equal(own, given):
            raise ArtifactError(
                "generator-mismatch",
                wrong=f"the state must belong to `{_text(own)}`",
                found=f"`{_text(given)}`",
                remedy="Resume with the seed and the kind of device that the run began with.",
            )

    def _read_torch(self, name: str, tensor: Tensor) -> None:
        generator = self.stream(name)
        expected = generator.initial_seed()
        try:
            generator.set_state(tensor.cpu())
        except RuntimeError as error:
            raise _malformed(f"torch:{name}", str(error).splitlines()[0]) from error
        if generator.initial_seed() != expected:
            raise _malformed(f"torch:{name}", "the state of another stream")

    def _read_numpy(self, name: str, tensor: Tensor) -> None:
        bits = self.numpy(name).bit_generator
        try:
            state = _unpack_pcg64(tensor)
        except ValueError as error:
            raise _malformed(f"numpy:{name}", str(error)) from error
        if _pcg64_increment(state) != _pcg64_increment(bits.state):  # fixed by the seed for good
            raise _malformed(f"numpy:{name}", "the state of another stream")
        bits.state = state

    def _adopt(self, other: "Generators") -> None:
        """Take over the positions of `other`, into the objects that callers already hold."""
        for name in {*self._torch, *other._torch}:
            self.stream(name).set_state(other.stream(name).get_state())
        for name in {*self._numpy, *other._numpy}:
            self.numpy(name).bit_generator.state = other.numpy(name).bit_generator.state
        for name in {*self._children, *other._children}:
            self.spawn(name)._adopt(other.spawn(name))


def _malformed(key: object, found: str) -> ArtifactError:
    name = str(key)
    shown = name if len(name) <= 80 else f"{name[:77]}..."
    return ArtifactError(
        "generator-state",
        wrong=f"the entry `{shown}` of a generator state must be as it was saved",
        found=found,
        remedy="Load an older generation of the checkpoint.",
    )


def _text(tensor: Tensor) -> str:
    return bytes(tensor.tolist()).decode("ascii", errors="replace")[:80]


def _pack_pcg64(state: Mapping[str, Any]) -> Tensor:
    """Return numpy's `bit_generator.state` as a uint8 tensor of 37 bytes."""
    inner = state["state"]
    data = _PCG64_LAYOUT.pack(
        inner["state"].to_bytes(16, "little"),
        inner["inc"].to_bytes(16, "little"),
        state["has_uint32"],
        state["uinteger"],
    )
    return torch.tensor(list(data), dtype=torch.uint8)


def _pcg64_increment(state: Mapping[str, Any]) -> int:
    """Return the constant that tells one PCG64 stream from another; drawing never changes it."""
    increment: int = state["state"]["inc"]
    return increment


def _unpack_pcg64(tensor: Tensor) -> dict[str, Any]:
    """Return what `_pack_pcg64` was given; a ValueError if no PCG64 gave these bytes."""
    data = bytes(tensor.tolist())
    if len(data) != _PCG64_LAYOUT.size:
        raise ValueError(f"{len(data)} bytes instead of {_PCG64_LAYOUT.size}")
    state, increment, has_half, half = _PCG64_LAYOUT.unpack(data)
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
