"""Functions of many tensors as machine code.

`torch.compile` would look at every attribute of every tensor before each call, to see whether the
code is still the right one. Here the operations are recorded once, for tensors of known shapes, and
handed to its compiler directly; whoever calls must pass tensors of the same shapes and types.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._inductor
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from stormsail.core.errors import ConfigError

Lists = Callable[..., Sequence[Tensor]]


def compiled(function: Lists, example: Sequence[Tensor]) -> Lists:
    """Return the same function for tensors like these; it may write into its arguments.

    Args:
        function: takes tensors, returns a list of tensors, and never reads a value.
        example: of the arguments; left as they are.

    Raises:
        ConfigError: if there is no compiler, or it fails.
    """
    with torch.no_grad():
        room: list[Any] = [tensor.detach().clone() for tensor in example]
        graph = make_fx(function)(*room)
        try:
            run: Lists = torch._inductor.compile(graph, room)
            run(*room)
        except (RuntimeError, OSError) as error:
            raise ConfigError(
                "missing-extra",
                wrong="a compiled step needs a working compiler: C++ for a CPU, Triton for a GPU",
                found=f"{type(error).__name__}: {str(error).splitlines()[0]}",
                remedy="Install one, or leave `compiled=True` out.",
            ) from error
    return run
