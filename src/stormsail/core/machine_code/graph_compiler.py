"""Compile a function of tensors to machine code, without guards.

`torch.compile` looks at some hundred attributes before every call, to see whether the code is still
the right one. Here the operations are recorded once, for tensors of known shapes, and handed to its
compiler directly: the caller must pass tensors of the same shapes and types.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from stormsail.core.errors import ConfigError

TensorFunction = Callable[..., Sequence[Tensor]]
"""Takes tensors, returns a list of tensors, and never reads a value on the host."""


def record_graph(function: TensorFunction, arguments: Sequence[Tensor]) -> GraphModule:
    """Return the operations of a function, recorded for tensors like these."""
    from torch.fx.experimental.proxy_tensor import make_fx  # takes long to import

    with _COMPILING:
        return make_fx(function)(*arguments)


_THREAD = threading.local()

_COMPILING = threading.RLock()
"""One thread at a time records: for that torch replaces functions of the whole process."""


def is_traced() -> bool:
    """Return whether operations are recorded for a compiler, so that no value can be read.

    By `torch.compile`, or by `compile_in_place` in this thread. A function that reads values on a
    CPU, or has a version for it that is fast as a list of calls, asks for this.
    """
    return torch.compiler.is_compiling() or getattr(_THREAD, "recording", False)


@contextmanager
def _recording() -> Iterator[None]:
    _THREAD.recording = True
    try:
        yield
    finally:
        _THREAD.recording = False


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
    with torch.no_grad(), _COMPILING:
        arguments: list[Any] = [tensor.detach().clone() for tensor in example]
        return _compiled(record_graph(function, arguments), arguments, instead)


def compile_in_place(
    function: TensorFunction, example: Sequence[Tensor], *, instead: str
) -> TensorFunction:
    """Return the same function, compiled, of tensors like these and of others that stay in place.

    What else the function reads (weights, statistics) must be written in place alone, as for a CUDA
    graph: it is read anew by every call. Random numbers of explicit generators are drawn before
    each call, in the function's own order and by the operations that it would call, so they are the
    same to the bit. It may take gradients, and writes nothing.

    Args:
        function: what is compiled.
        example: of the arguments; left as they are, and so are the generators.
        instead: what to do without a compiler, for the error message.

    Raises:
        ConfigError: if there is no compiler, or it fails, or a distribution that is drawn from is
            computed.
    """
    with _COMPILING:
        draws, run, held = _compiled_in_place(function, example, instead)

    def call(*tensors: Tensor) -> Sequence[Tensor]:
        numbers = [draw.again() for draw in draws]
        return run(*[tensor.contiguous() for tensor in tensors], *numbers, *held)

    return call


def _compiled_in_place(
    function: TensorFunction, example: Sequence[Tensor], instead: str
) -> tuple[list["_Draw"], TensorFunction, list[Tensor]]:
    """Return what is drawn before a call, the machine code, and what it is given beside that."""
    with torch.no_grad(), _recording():
        arguments = [_dense(tensor) for tensor in example]
        draws = _draws_of(function, arguments)
        drawn = [draw.like for draw in draws]

        def given(*tensors: Tensor) -> Sequence[Tensor]:
            with _Given(tensors[len(arguments) :]):
                return function(*tensors[: len(arguments)])

        graph = record_graph(given, [*arguments, *drawn])
        held = _hold(graph)
    with torch.no_grad():
        return draws, _compiled(graph, [*arguments, *drawn, *held], instead, _PLAIN), held


def _dense(tensor: Tensor) -> Tensor:
    """Return a copy with memory of its own in the usual order, whose places are compiled in."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


_PLAIN = {"pattern_matcher": False}
"""Options of a compiler that does not look for known patterns, none of which occur here: a third of
its time."""


def _compiled(
    graph: GraphModule, arguments: list[Any], instead: str, options: dict[str, Any] | None = None
) -> TensorFunction:
    """Return a recorded graph as machine code, after one call."""
    import torch._inductor  # takes seconds, which only those who compile should wait

    try:
        run: TensorFunction = torch._inductor.compile(graph, arguments, options=options)
        run(*arguments)
    except (RuntimeError, OSError) as error:
        raise ConfigError(
            "missing-extra",
            wrong="a compiled step needs a working compiler: C++ for a CPU, Triton for a GPU",
            found=f"{type(error).__name__}: {str(error).splitlines()[0]}",
            remedy=f"Install one, or {instead}.",
        ) from error
    return run


class _Draw(NamedTuple):
    """A call that drew random numbers."""

    operation: Callable[..., Tensor]
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    like: Tensor
    """What came out."""

    def again(self) -> Tensor:
        """Draw the next numbers."""
        if self.arguments and isinstance(self.arguments[0], Tensor):  # filled in place
            place = torch.empty_like(self.like)
            return self.operation(place, *self.arguments[1:], **self.options)
        return self.operation(*self.arguments, **self.options)


def _source(arguments: Sequence[Any], options: dict[str, Any]) -> torch.Generator | None:
    """Return the generator that a call draws from, if any."""
    every = (*arguments, *options.values())
    return next((part for part in every if isinstance(part, torch.Generator)), None)


def _check_draw(operation: Any, given: object) -> None:  # noqa: ANN401 - torch's own operations
    """Refuse a draw whose distribution is computed: drawn before the call, it would be a stale one.

    Raises:
        ConfigError: if the call takes a tensor that it does not fill.
    """
    tensors = sum(isinstance(part, Tensor) for part in tree_leaves(given))
    filled = int(operation._schema.name.endswith("_"))
    if tensors > filled:
        raise ConfigError(
            "config-inconsistent",
            wrong="what is compiled must draw numbers whose distribution is fixed",
            found=f"{operation._schema.name} of a computed tensor",
            remedy="Draw uniform or normal numbers and transform them, or do not compile it.",
        )


class _Watched(TorchDispatchMode):
    """Takes down all calls that draw."""

    def __init__(self) -> None:
        super().__init__()
        self.draws: list[_Draw] = []
        self.states: dict[torch.Generator, Tensor] = {}

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - torch's own operations
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        options = kwargs or {}
        source = _source(args, options)
        if source is None:
            return func(*args, **options)
        _check_draw(func, (args, options))
        self.states.setdefault(source, source.get_state())
        result = func(*args, **options)
        self.draws.append(_Draw(func, args, options, result.clone()))
        return result


class _Given(TorchDispatchMode):
    """Hands out numbers that were drawn before, in order, where a call would draw."""

    def __init__(self, drawn: Sequence[Tensor]) -> None:
        super().__init__()
        self._drawn = iter(drawn)

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - torch's own operations
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        options = kwargs or {}
        if _source(args, options) is None:
            return func(*args, **options)
        drawn = next(self._drawn)
        return args[0].copy_(drawn) if args and isinstance(args[0], Tensor) else drawn


def _draws_of(function: TensorFunction, arguments: Sequence[Tensor]) -> list[_Draw]:
    """Return the calls by which a function draws; its generators stand where they stood."""
    watched = _Watched()
    with watched:
        function(*arguments)
    for generator, state in watched.states.items():
        generator.set_state(state)
    return watched.draws


_VIEWS = (torch.ops.aten.t, torch.ops.aten.detach, torch.ops.aten.select, torch.ops.aten.unsqueeze)
"""Operations whose result lies in the memory of what they are given."""


def _hold(graph: GraphModule) -> list[Tensor]:
    """Make arguments of all tensors that a graph reads without being given them; return these.

    A compiler may take the numbers of a small tensor for constants. Views of them are arguments,
    too: made once, and not by every call.
    """
    nodes = list(graph.graph.nodes)
    last = [node for node in nodes if node.op == "placeholder"][-1]
    known: dict[Any, tuple[Any, Tensor]] = {}  # by what it is a view of, and how
    values: dict[Any, Tensor] = {}
    for node in nodes:
        packet = getattr(node.target, "overloadpacket", None)
        if node.op == "get_attr":
            tensor: Tensor = getattr(graph, node.target).detach()
            key: Any = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        elif packet in _VIEWS and node.args[0] in values and not node.kwargs:
            tensor = node.target(values[node.args[0]], *node.args[1:])
            key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        else:
            continue
        if key not in known:
            with graph.graph.inserting_after(last):
                last = graph.graph.placeholder(f"held_{len(known)}")
            known[key] = (last, tensor)
        place, values[known[key][0]] = known[key][0], tensor
        node.replace_all_uses_with(place)
        graph.graph.erase_node(node)
    for name, (place, _) in list(known.items()):
        if not place.users:
            graph.graph.erase_node(place)
            del known[name]
    graph.recompile()
    return [tensor for _, tensor in known.values()]
