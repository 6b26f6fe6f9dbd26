"""C++ of our own as machine code, by the compiler that `torch.compile` needs anyway."""

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from stormsail.core.errors import ConfigError, InvariantError

FLAGS = ("-ffp-contract=fast", "-fno-math-errno")
"""Let a product and a sum round once, as the processor does it, which torch's own code may not; and
let a root of a negative number be NaN and no more, so that several are taken at once."""

VECTORS = "vectors.h"
"""Beside this file: a C++ file may include it."""

Library = Callable[[str, Sequence[int], Sequence[Tensor]], None]
"""Calls a compiled function, by name, with whole numbers and then tensors without gaps."""


def has_compiler() -> bool:
    """Return whether torch finds a C++ compiler."""
    from torch._inductor.cpp_builder import get_cpp_compiler  # takes seconds to import

    try:
        get_cpp_compiler()
    except RuntimeError:
        return False
    return True


def compiled_library(file: str, *, instead: str) -> Library:
    """Return what a C++ file exports, compiled for this processor; torch keeps it on disk.

    Args:
        file: its path inside the package.
        instead: what to do without a compiler, for the error message.

    Raises:
        ConfigError: if there is no compiler, or it fails.
    """
    from torch._inductor.codecache import CppCodeCache  # takes seconds to import

    source = Path(__file__).parents[2] / file
    # as text, by which torch knows what it has compiled before
    vectors = Path(__file__).with_name(VECTORS).read_text()
    text = source.read_text().replace(f'#include "{VECTORS}"\n', vectors)
    try:
        functions = CppCodeCache.load(text, extra_flags=FLAGS)
    except (RuntimeError, OSError) as error:
        raise ConfigError(
            "missing-extra",
            wrong=f"{source.name} needs a working C++ compiler",
            found=f"{type(error).__name__}: {str(error).splitlines()[0]}",
            remedy=f"Install one, or {instead}.",
        ) from error

    def call(name: str, sizes: Sequence[int], tensors: Sequence[Tensor]) -> None:
        if not all(tensor.is_contiguous() for tensor in tensors):
            raise InvariantError(
                "shape-mismatch",
                wrong=f"`{name}` must get tensors that lie in memory without gaps",
                found=f"strides {[tensor.stride() for tensor in tensors]}",
                remedy="Pass `tensor.contiguous()`.",
            )
        numbers = [ctypes.c_int64(size) for size in sizes]
        places = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
        getattr(functions, name)(*numbers, *places)

    return call
