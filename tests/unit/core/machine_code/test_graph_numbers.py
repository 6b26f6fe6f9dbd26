"""A function of small tensors on plain numbers: the same bits, whatever the operation."""

import math
import struct

import pytest
import torch

from stormsail.core.machine_code.graph_numbers import number_graph

SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.7e-310, 1e300, -1e308, 7.0)
SPECIAL += (math.inf, -math.inf, math.nan, 0.1, -0.3, 2.0**52 + 0.5, 1 / 3)
WHOLE = (0, 1, -1, 5, -7, 2**30)

TWO_FLOATS = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "where": lambda a, b: torch.where(a > b, a, b),
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "pow": lambda a, b: a.abs().pow(b),
    "hypot": torch.hypot,
    "remainder": torch.remainder,
    "scaled sum": lambda a, b: torch.add(a, b, alpha=0.3),
    "from a number": lambda a, b: 3.0 - a + 2.0 / b,
}
ONE_FLOAT = {
    "abs": torch.abs,
    "neg": torch.neg,
    "sign": torch.sign,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "reciprocal": torch.reciprocal,
    "sqrt": torch.sqrt,
    "log": torch.log,
    "tanh": torch.tanh,
    "clamp": lambda a: a.clamp(-1.0, 2.0),
    "clamp below": lambda a: a.clamp(min=0.0),
    "clamp above": lambda a: a.clamp(max=0.0),
    "isfinite": torch.isfinite,
    "to single and back": lambda a: a.float().double(),
    "single sums": lambda a: ((a.float() * 0.3 + 0.1) / 0.7 - a.float()).double(),
    "single against a number": lambda a: (a.float() < 0.1) | (a.float() == 0.1),
    "truths": lambda a: (a > 0) & ~(a < 1) | (a != a),
    "truths as numbers": lambda a: (a > 0) + 2.0 * (a < 1),
    "truths times truths": lambda a: (a > 0) * (a < 3),
}


def written_out(tensors):
    return [number for tensor in tensors for number in tensor.flatten().tolist()]


def bits(numbers):
    """Return numbers with their types, floats by their bits: -0 is not 0, but a NaN is a NaN."""
    return [
        (type(x), "nan" if x != x else struct.pack("d", x) if isinstance(x, float) else x)
        for x in numbers
    ]


def assert_same(function, *tensors, example=None):
    run = number_graph(function, example or tensors)
    assert bits(run(*written_out(tensors))) == bits(written_out(function(*tensors)))


@pytest.mark.parametrize("name", TWO_FLOATS)
def test_an_operation_on_two_numbers_gives_the_bits_of_the_tensors(name):
    pairs = [(a, b) for a in SPECIAL for b in SPECIAL]
    run = number_graph(
        lambda a, b: [TWO_FLOATS[name](a, b)], [torch.ones(1, dtype=torch.float64)] * 2
    )
    for a, b in pairs:
        expected = TWO_FLOATS[name](*(torch.tensor([x], dtype=torch.float64) for x in (a, b)))
        assert bits(run(a, b)) == bits(expected.tolist()), (a, b)


@pytest.mark.parametrize("name", ONE_FLOAT)
def test_an_operation_on_one_number_gives_the_bits_of_the_tensor(name):
    run = number_graph(lambda a: [ONE_FLOAT[name](a)], [torch.ones(1, dtype=torch.float64)])
    for a in SPECIAL:
        expected = ONE_FLOAT[name](torch.tensor([a], dtype=torch.float64))
        assert bits(run(a)) == bits(expected.tolist()), a


def test_whole_numbers_stay_whole_and_truths_stay_truths():
    def function(a, b):
        return [
            a + b,
            a * b - 3,
            a.clamp(-1, 4),
            torch.maximum(a, b),
            (a > b).long(),
            a.double() / 4,
            a.abs() & 3,
            ~a,
            (a == b) ^ (b > 0),
            torch.where(a > 0, a, 0),
            a.bool(),
        ]

    run = number_graph(function, (torch.tensor([2]), torch.tensor([3])))
    for a in WHOLE:
        for b in WHOLE:
            expected = function(torch.tensor([a]), torch.tensor([b]))
            assert bits(run(a, b)) == bits(written_out(expected)), (a, b)


def test_a_number_that_is_not_finite_becomes_the_whole_number_of_the_tensor():
    for value in (math.nan, 2.9, -2.9):
        assert_same(lambda a: [a.long()], torch.tensor([value], dtype=torch.float64))


def test_numbers_are_moved_without_an_operation():
    def function(a, b):
        c = torch.cat((a, b[0]))
        d = torch.stack((c, c.flip(0)))
        first, second = d.T.unbind(1)
        return [d.T, first[1:3], second[..., None].expand(-1, 2), c[None].squeeze(0), b.reshape(-1)]

    a = torch.tensor([1.0, 2.0], dtype=torch.float64)
    b = torch.tensor([[3.0, 4.0, 5.0]], dtype=torch.float64)
    assert_same(function, a, b)
    run = number_graph(function, (a, b))
    operations = [node for node in run.__self__.graph.nodes if node.op == "call_function"]
    assert operations == []


def test_rows_of_a_large_constant_are_read_and_not_written_out():
    table = torch.arange(30_000, dtype=torch.float64).reshape(10_000, 3)
    names = torch.arange(10_000)

    def function(row):
        return [table[row], table[row + 1, 1], names[row]]

    run = number_graph(function, [torch.tensor([7, 9])])
    assert run(7, 9) == (21.0, 22.0, 23.0, 27.0, 28.0, 29.0, 25.0, 31.0, 7, 9)
    assert run(-1, 0)[:3] == (29_997.0, 29_998.0, 29_999.0)


def test_an_unknown_operation_is_the_tensors_own():
    def function(a, b):
        return [a.cumsum(0), torch.logaddexp(a, b), *a.sort(), torch.linalg.norm(a)]

    a = torch.tensor([3.0, -1.0, 0.5], dtype=torch.float64)
    assert_same(function, a, a.flip(0), example=(torch.zeros_like(a), torch.ones_like(a)))


def test_writing_into_a_tensor_is_seen_by_its_views():
    def function(a):
        b = a.clone()
        b[1:].mul_(3.0)
        b[0] = b[2]
        return [b, a]

    assert_same(function, torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64))


def test_equal_numbers_of_other_types_are_not_taken_for_one_another():
    def function(a):
        return [torch.where(a > 1, a, x) for x in (0.0, -0.0)] + [(a > 1) + x for x in (0, False)]

    assert_same(function, torch.tensor([0.5], dtype=torch.float64))


def test_a_choice_that_is_fixed_leaves_the_other_side_out():
    never = torch.zeros(1, dtype=torch.bool)
    run = number_graph(
        lambda a: [torch.where(never, a.log(), a)], [torch.ones(1, dtype=torch.float64)]
    )
    assert run(2.0) == (2.0,)
    assert not [node for node in run.__self__.graph.nodes if node.op == "call_function"]
