"""Compile a function of tensors to machine code, without guards.

`torch.compile` looks at some hundred attributes before every call, to see whether the code is still
the right one. Here the operations are recorded once, for tensors of known shapes, and handed to its
compiler directly: the caller must pass tensors of the same shapes and types.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

from stormsail.core.errors import ConfigError

TensorFunction = Callable[..., Sequence[Tensor]]
"""Takes tensors, returns a list of tensors, and never reads a value on the host."""


def record_graph(function: TensorFunction, arguments: Sequence[Tensor]) -> GraphModule:
    """Return the operations of a function, recorded for tensors like these."""
    from torch.fx.experimental.proxy_tensor import make_fx  # takes long to import

    return make_fx(function)(*arguments)


def compile_graph(
    function: TensorFunction, example: Sequence[Tensor], *, instead: str
) -> TensorFunction:
    """Return the same function, compiled for tensors like these; it may write into its arguments.

    Args:
        function: what is compiled.
        example: of the arguments; left as they are.
        instead: what to do without a compiler, for the error message.

    Raises:
        ConfigError: if there is no compiler, or it fails.
    """
    import torch._inductor  # takes seconds, which only those who compile should wait

    with torch.no_grad():
        arguments: list[Any] = [tensor.detach().clone() for tensor in example]
        graph = record_graph(function, arguments)
        try:
            run: TensorFunction = torch._inductor.compile(graph, arguments)
            run(*arguments)
        except (RuntimeError, OSError) as error:
            raise ConfigError(
                "missing-extra",
                wrong="a compiled step needs a working compiler: C++ for a CPU, Triton for a GPU",
                found=f"{type(error).__name__}: {str(error).splitlines()[0]}",
                remedy=f"Install one, or {instead}.",
            ) from error
    return run
