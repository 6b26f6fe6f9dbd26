"""Run a function of small tensors on plain Python numbers, with the same results to the last bit.

An operation on a tensor of one number costs a microsecond or more, nearly all of it overhead; the
same operation on a Python float costs a fiftieth. Here the operations of a function are recorded
once, for tensors of known shapes, and written out again number by number: what only moves numbers
(select, cat, expand, ...) disappears, what every processor rounds alike (sums, products, quotients,
comparisons, choices) becomes Python arithmetic, and everything else calls the recorded operation
itself: a logarithm, and even a root, whose last bit depends on the library. So there is one source
of the function, an operation that this file does not know is slower and never wrong, and no
compiler is needed. Whole numbers must stay within 64 bits: Python's do not wrap around.
"""

import ctypes
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.func import functionalize

from stormsail.core.machine_code.graph_compiler import TensorFunction, record_graph

Number = float | int | bool
NumberFunction = Callable[..., tuple[Number, ...]]
"""Takes the numbers of all tensors in order, and returns those of all results in order."""

aten = torch.ops.aten


class _Cells(NamedTuple):
    """A tensor, each of whose numbers is a constant or a node of the graph that is written."""

    cells: list[Any]
    like: Tensor
    """A tensor of the same shape and type, with the numbers of the example."""

    @property
    def dtype(self) -> torch.dtype:
        return self.like.dtype


def number_graph(function: TensorFunction, example: Sequence[Tensor]) -> NumberFunction:
    """Return the same function of plain numbers, for tensors shaped and typed like these.

    Args:
        function: pure; its tensors are small, but for constants that it reads by row.
        example: of the arguments; left as they are.
    """
    with torch.no_grad():
        arguments = [tensor.detach().clone() for tensor in example]
        graph = record_graph(functionalize(function), arguments)
        module = _Writer(graph).written(arguments)
    run: NumberFunction = module.forward  # without the hooks of a module's call
    return run


class _Writer:
    """Writes a recorded graph of tensors out as a graph of numbers."""

    def __init__(self, recorded: fx.GraphModule) -> None:
        self.recorded = recorded
        self.graph = fx.Graph()
        self.root = torch.nn.Module()
        self.values: dict[fx.Node, Any] = {}
        self.calls: dict[tuple[Any, ...], fx.Node] = {}

    def written(self, arguments: Sequence[Tensor]) -> fx.GraphModule:
        given = iter(arguments)
        for node in self.recorded.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = self._placeholder(node.name, next(given))
            elif node.op == "get_attr":
                self.values[node] = getattr(self.recorded, node.target)
            elif node.op == "output":
                (outputs,) = fx.map_arg(node.args, self.values.__getitem__)
                cells = [cell for value in outputs for cell in _cells_of(value)]
                self.graph.output(tuple(cells))
            else:
                args, kwargs = fx.map_arg((node.args, node.kwargs), self.values.__getitem__)
                self.values[node] = self._called(node.target, args, kwargs)
        module = fx.GraphModule(self.root, self.graph)
        module.graph.eliminate_dead_code()
        module.recompile()
        return module

    def _placeholder(self, name: str, like: Tensor) -> _Cells:
        cells = [self.graph.placeholder(f"{name}_{index}") for index in range(like.numel())]
        return _Cells(cells, like)

    def _called(self, target: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        """Return what an operation makes of tensors, numbers and cells."""
        if target is operator.getitem:
            return args[0][args[1]]
        result = target(*_tensors(args), **_tensors(kwargs))
        inputs = _inputs(args) + _inputs(kwargs)
        if not inputs or target.overloadpacket in _FILLED:
            return result  # a constant
        if target.overloadpacket in _MOVES:
            return self._moved(target, args, kwargs)
        if target.overloadpacket is aten.index and self._is_table(args):
            return self._rows(args[0], args[1][0], result)
        function = _function(target.overloadpacket, args, kwargs, result)
        if function is None:
            return self._as_it_is(target, args, kwargs, result)
        return self._pointwise(function, args, result)

    def _moved(self, target: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        """Let an operation that only moves numbers move their places instead."""
        cells: list[Any] = []

        def places(value: Any) -> Any:  # noqa: ANN401
            own = _Cells(_cells_of(value), value if isinstance(value, Tensor) else value.like)
            first = len(cells)
            cells.extend(own.cells)
            return torch.arange(first, len(cells)).reshape(own.like.shape)

        result = target(*_mapped(args, places), **_mapped(kwargs, places))
        like = target(*_tensors(args), **_tensors(kwargs))
        if isinstance(result, Tensor):
            return _Cells([cells[place] for place in result.flatten().tolist()], like)
        return [
            _Cells([cells[place] for place in part.flatten().tolist()], own)
            for part, own in zip(result, like, strict=True)
        ]

    def _is_table(self, args: Any) -> bool:  # noqa: ANN401
        """Return whether rows of a constant are read, by one index."""
        table, index = args
        return isinstance(table, Tensor) and len(index) == 1 and index[0].dtype == torch.int64

    def _rows(self, table: Tensor, index: _Cells, like: Tensor) -> _Cells:
        array = table.numpy()
        width = table[0].numel()
        rows = self._attribute(array.reshape(len(array), width) if table.ndim > 1 else array)
        cells: list[Any] = []
        for cell in index.cells:
            row = self._call(_row, rows, cell)
            parts = range(width) if table.ndim > 1 else ()
            cells += [self._call(operator.getitem, row, part) for part in parts]
            cells += [] if table.ndim > 1 else [row]
        return _Cells(cells, like)

    def _attribute(self, value: object) -> fx.Node:
        name = f"held_{len(self.root.__dict__)}"
        setattr(self.root, name, value)
        return self.graph.create_node("get_attr", name)

    def _pointwise(self, function: Callable[..., Any], args: Any, like: Tensor) -> _Cells:  # noqa: ANN401
        """Return an operation number by number."""
        single = any(value.dtype == torch.float32 for value in _inputs(args))
        columns = [self._broadcast(value, like, single=single) for value in args]
        cells = [
            self._write_one(function, numbers, rounds=like.dtype == torch.float32)
            for numbers in zip(*columns, strict=True)
        ]
        return _Cells(cells, like)

    def _write_one(self, function: Any, numbers: Sequence[Any], *, rounds: bool) -> Any:  # noqa: ANN401
        if function is _where and not isinstance(numbers[0], fx.Node):
            return _where(*numbers)
        if not any(isinstance(number, fx.Node) for number in numbers):
            value = function(*numbers)
            return _single(value) if rounds else value
        node = self._call(function, *numbers)
        return self._call(_single, node) if rounds else node

    def _call(self, function: Callable[..., Any], *args: Any) -> fx.Node:  # noqa: ANN401
        """Write a call down, once for equal arguments."""
        key = (function, *map(repr, args))  # 0, 0.0, -0.0 and False are not one number
        if key not in self.calls:
            self.calls[key] = self.graph.call_function(function, args)
        return self.calls[key]

    def _broadcast(self, value: Any, like: Tensor, *, single: bool) -> list[Any]:  # noqa: ANN401
        """Return one number, or node, for each number of the result."""
        if not isinstance(value, Tensor | _Cells):
            rounded = _single(value) if single and isinstance(value, float) else value
            return [rounded] * like.numel()
        cells = _cells_of(value)
        shape = value.shape if isinstance(value, Tensor) else value.like.shape
        places = torch.arange(len(cells)).reshape(shape).expand(like.shape)
        return [cells[place] for place in places.flatten().tolist()]

    def _as_it_is(self, target: Any, args: Any, kwargs: Any, like: Any) -> Any:  # noqa: ANN401
        """Call the recorded operation on tensors made of the numbers."""
        cells = [cell for value in _inputs(args) + _inputs(kwargs) for cell in value.cells]
        flat = self._call(operator.call, self._attribute(_Call(target, args, kwargs)), *cells)
        results, first = [], 0
        for own in [like] if isinstance(like, Tensor) else like:
            here = range(first, first + own.numel())
            results.append(_Cells([self._call(operator.getitem, flat, at) for at in here], own))
            first += own.numel()
        return results[0] if isinstance(like, Tensor) else results


class _Call:
    """One operation of tensors, called with the numbers of its arguments."""

    def __init__(self, target: Any, args: Any, kwargs: Any) -> None:  # noqa: ANN401
        self.target, self.args, self.kwargs = target, args, kwargs
        alone = len(args) == 1 and not kwargs and isinstance(args[0], _Cells)
        self.alone = args[0].like if alone and args[0].like.ndim == 1 else None
        """The only argument, where it is a list of numbers: the usual case has a short way."""

    def __call__(self, *numbers: Number) -> list[Number]:
        if self.alone is not None:
            result = self.target(torch.tensor(numbers, dtype=self.alone.dtype))
        else:
            rest = iter(numbers)
            args, kwargs = (_mapped(x, partial(_made, rest)) for x in (self.args, self.kwargs))
            result = self.target(*args, **kwargs)
        parts = [result] if isinstance(result, Tensor) else result
        return [number for part in parts for number in part.flatten().tolist()]


def _made(numbers: Iterator[Number], value: Tensor | _Cells) -> Tensor:
    """Return a constant as it is, and a tensor of the next numbers for others."""
    if isinstance(value, Tensor):
        return value
    own = torch.tensor(list(islice(numbers, len(value.cells))), dtype=value.dtype)
    return own.reshape(value.like.shape)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:  # noqa: ANN401
    """Return nested arguments with every tensor and every `_Cells` changed."""
    if isinstance(value, Tensor | _Cells):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)(_mapped(part, change) for part in value)
    if isinstance(value, dict):
        return {name: _mapped(part, change) for name, part in value.items()}
    return value


def _tensors(value: Any) -> Any:  # noqa: ANN401
    return _mapped(value, lambda own: own if isinstance(own, Tensor) else own.like)


def _inputs(value: Any) -> list[_Cells]:  # noqa: ANN401
    inputs: list[_Cells] = []

    def look(own: Tensor | _Cells) -> Tensor | _Cells:
        if isinstance(own, _Cells):
            inputs.append(own)
        return own

    _mapped(value, look)
    return inputs


def _cells_of(value: Tensor | _Cells) -> list[Any]:
    if isinstance(value, _Cells):
        return value.cells
    numbers: list[Any] = value.flatten().tolist()
    return numbers


def _function(
    operation: object, args: Sequence[object], kwargs: object, result: object
) -> Callable[..., Any] | None:
    """Return what an operation is for numbers, or None if it is not exact for these types."""
    if not isinstance(result, Tensor):
        return None
    inputs = {value.dtype for value in args if isinstance(value, Tensor | _Cells)}
    types = inputs | {result.dtype}
    if not types <= _CASTS.keys():
        return None
    if operation is aten._to_copy:
        return _CASTS[result.dtype]
    single = {torch.float32} if operation not in _COMPARED else {torch.float32, torch.bool}
    if kwargs or (torch.float32 in types and not (operation in _SINGLE and types == single)):
        return None
    if result.dtype == torch.bool and operation in _TRUTHS:
        return _TRUTHS[operation]
    if operation in _CHOSEN and inputs <= {result.dtype, torch.bool}:
        return _CHOSEN[operation]
    if operation in _FLOATS and inputs == {torch.float64}:
        return _FLOATS[operation]
    return _MIXED.get(operation)


# --- operations on numbers


def _row(table: Any, index: int) -> Any:  # noqa: ANN401
    return table[index].tolist()


def _single(value: float) -> float:
    """Return the nearest float32, after an operation in float64.

    Rounding twice is harmless for + - * /: float64 has more than twice the digits
    (Figueroa, When is double rounding innocuous?, 1995).
    """
    return ctypes.c_float(value).value


def _divide(a: float, b: float) -> float:
    if b == 0.0:
        a, b = float(a), float(b)
        return math.nan if a == 0.0 or a != a else math.copysign(math.inf, a) * math.copysign(1, b)
    return a / b


def _reciprocal(a: float) -> float:
    return _divide(1.0, a)


def _where(condition: bool, a: Number, b: Number) -> Number:  # noqa: FBT001
    return a if condition else b


def _maximum(a: Number, b: Number) -> Number:
    return b if a < b or b != b else a


def _minimum(a: Number, b: Number) -> Number:
    return b if b < a or b != b else a


def _clamp(a: Number, low: Number | None = None, high: Number | None = None) -> Number:
    if low is not None and a < low:
        a = low
    return high if high is not None and a > high else a


def _sign(a: float) -> float:
    return float((a > 0.0) - (a < 0.0))


def _floor(a: float) -> float:
    return math.copysign(math.floor(a), a) if math.isfinite(a) else a


def _ceil(a: float) -> float:
    return math.copysign(math.ceil(a), a) if math.isfinite(a) else a


def _round(a: float) -> float:
    return round(a, 0)


def _whole(a: Number) -> int:
    return int(a) if math.isfinite(a) else -(2**63)


def _reversed_sub(a: Number, b: Number) -> Number:
    return b - a


_MIXED: dict[Any, Callable[..., Any]] = {
    aten.add: operator.add,
    aten.sub: operator.sub,
    aten.rsub: _reversed_sub,
    aten.mul: operator.mul,
    aten.div: _divide,
    aten.eq: operator.eq,
    aten.ne: operator.ne,
    aten.lt: operator.lt,
    aten.le: operator.le,
    aten.gt: operator.gt,
    aten.ge: operator.ge,
    aten.logical_not: operator.not_,
}
"""Operations on numbers of any types; like all below, equal to the tensor's to the last bit."""

_CHOSEN: dict[Any, Callable[..., Any]] = {
    aten.abs: abs,
    aten.neg: operator.neg,
    aten.maximum: _maximum,
    aten.minimum: _minimum,
    aten.clamp: _clamp,
    aten.where: _where,
    aten.bitwise_and: operator.and_,
    aten.bitwise_or: operator.or_,
    aten.bitwise_xor: operator.xor,
    aten.bitwise_not: operator.invert,
}
"""Operations whose result has the type of what it was chosen from."""

_FLOATS: dict[Any, Callable[..., Any]] = {
    aten.reciprocal: _reciprocal,
    aten.sign: _sign,
    aten.floor: _floor,
    aten.ceil: _ceil,
    aten.round: _round,
}
"""Operations on float64."""

_TRUTHS: dict[Any, Callable[..., Any]] = {
    aten.add: operator.or_,
    aten.mul: operator.and_,
    aten.bitwise_not: operator.not_,
}
"""Operations whose result is a truth, where Python's would be a number."""

_CASTS: dict[torch.dtype, Callable[..., Any]] = {
    torch.float64: float,
    torch.float32: float,
    torch.int64: _whole,
    torch.bool: bool,
}

_COMPARED = {aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge}
_SINGLE = {aten.add, aten.sub, aten.mul, aten.div} | _COMPARED
"""Operations on float32 whose result may be rounded to it, see `_single`, or is a truth."""

_MOVES = {
    aten.alias,
    aten.cat,
    aten.clone,
    aten.detach,
    aten.expand,
    aten.flip,
    aten.permute,
    aten.select,
    aten.slice,
    aten.split,
    aten.squeeze,
    aten.stack,
    aten.t,
    aten.transpose,
    aten.unbind,
    aten.unsqueeze,
    aten.view,
    aten._unsafe_view,
}
"""Operations that only move numbers."""

_FILLED = {aten.full_like, aten.new_full, aten.new_zeros, aten.new_ones, aten.ones_like}
_FILLED |= {aten.zeros_like}
"""Operations that read the shape of a tensor alone."""
