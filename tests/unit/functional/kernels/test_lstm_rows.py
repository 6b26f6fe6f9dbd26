"""An LSTM's rows in C++ give the numbers of the plain formula in float64, and so do its slopes."""

import shutil

import numpy as np
import pytest
import torch

from oracles import recurrence as oracle
from stormsail.core.errors import ConfigError, InvariantError
from stormsail.core.machine_code import cpp
from stormsail.functional import recurrence
from stormsail.functional.kernels.layers import products
from stormsail.functional.kernels.layers.lstm_rows import SOURCE, LstmRows
from stormsail.functional.kernels.layers.recurrent import Layer
from stormsail.modules.memory import Memory

COMPILER = any(shutil.which(name) for name in ("c++", "g++", "clang++"))
pytestmark = [
    pytest.mark.skipif(not COMPILER, reason="no C++ compiler"),
    # torch deprecates functions that its own compiler uses
    pytest.mark.filterwarnings("default"),
]

SIZES = {  # rows, sequences, inputs, units, share of resets
    "odd": (9, 5, 3, 7, 0.3),
    "more sequences than a tile, more units than a panel": (5, 13, 6, 67, 0.2),
    "one": (1, 1, 1, 1, 0.0),
    "no reset": (6, 2, 4, 16, 0.0),
    "every row a reset": (6, 3, 2, 9, 1.0),
    "products of all rows are large": (40, 6, 65, 70, 0.05),
}


@pytest.fixture(scope="module")
def rows():
    return LstmRows(cpp.compiled_library(SOURCE, instead="wait"))


def draw(rows, batch, inputs, units, share, *, seed=1):
    """Return inputs, weights, state and initial state as float64 leaves, and resets."""
    source = torch.Generator().manual_seed(seed)
    shapes = (
        (rows, batch, inputs), (4 * units, inputs), (4 * units, units), (4 * units,), (4 * units,),
        (batch, 2, units), (2, units),
    )  # fmt: skip
    leaves = [torch.randn(shape, generator=source, dtype=torch.float64) for shape in shapes]
    leaves[2] = leaves[2] / units**0.5
    reset = torch.rand(rows, batch, generator=source) < share
    return [leaf.requires_grad_() for leaf in leaves], reset


def plain(leaves, reset):
    x, of_x, of_h, bias_x, bias_h, state, initial = leaves
    gates = x @ of_x.t() + bias_x + bias_h
    hidden, cell = state.unbind(1)
    output, last = recurrence.lstm_sequence(gates, of_h, hidden, cell, reset, *initial)
    return output, torch.stack((output[-1], last), 1)


def fast(rows, leaves, reset):
    x, *weights, state, initial = leaves
    return rows(x, Layer(*weights), state, reset, initial)


def with_gradients(results, leaves):
    shares = [torch.sin(1.0 + torch.arange(x.numel())).view(x.shape) for x in results]
    total = sum((a * b.to(a.dtype)).sum() for a, b in zip(results, shares, strict=True))
    return [*results, *torch.autograd.grad(total, leaves)]


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_values_and_gradients_are_those_of_the_plain_layer(size, rows):
    exact, reset = draw(*size)
    leaves = [leaf.detach().float().requires_grad_() for leaf in exact]
    want = with_gradients(plain(exact, reset), exact)
    got = with_gradients(fast(rows, leaves, reset), leaves)
    for a, b in zip(got, want, strict=True):
        error = (a.detach().double() - b.detach()).norm()
        assert error <= 2e-6 * b.detach().norm(), (a.shape, float(error))


def test_outputs_are_those_of_the_oracle(rows):
    exact, reset = draw(4, 3, 2, 5, 0.4, seed=2)
    x, of_x, of_h, bias_x, bias_h, state, initial = (leaf.detach().numpy() for leaf in exact)
    gates = x @ of_x.T + bias_x + bias_h
    want, cell = oracle.lstm_sequence(
        gates, of_h, state[:, 0], state[:, 1], reset.numpy(), *initial
    )
    output, last = fast(rows, [leaf.detach().float() for leaf in exact], reset)
    np.testing.assert_allclose(output, want, atol=1e-6)
    np.testing.assert_allclose(last, np.stack((want[-1], cell), 1), atol=1e-6)


def test_gates_far_out_are_shut_or_open_and_what_is_no_number_stays_none(rows):
    leaves, reset = draw(3, 2, 2, 3, 0.0)
    leaves = [leaf.detach().float() for leaf in leaves]
    leaves[3] = leaves[3] + 1e30  # every gate open, so the cell grows by 1 each row
    output, last = fast(rows, leaves, reset)
    torch.testing.assert_close(last[:, 1], leaves[5][:, 1] + 3.0, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(output[-1], last[:, 1].tanh(), rtol=1e-6, atol=1e-7)
    leaves[3] = leaves[3] * -1.0
    assert fast(rows, leaves, reset)[1].abs().max() < 1e-37
    leaves[3] = torch.zeros_like(leaves[3])
    leaves[0][1, 0, 0] = torch.nan
    reset[2] = True
    output, _ = fast(rows, leaves, reset)
    assert output[1, 0].isnan().all()
    assert output[:, 1].isfinite().all()
    assert output[2].isfinite().all(), "a reset forgets it"


def test_a_small_input_of_a_squashed_gate_keeps_all_its_digits(rows):
    leaves, reset = draw(1, 1, 1, 16, 0.0)
    leaves = [torch.zeros_like(leaf).float() for leaf in leaves]
    small = torch.logspace(-30, 0, 16)
    leaves[3][:16], leaves[3][32:48] = 1e30, small  # in and new gate
    _, last = fast(rows, leaves, reset)
    torch.testing.assert_close(last[0, 1], small.double().tanh().float(), rtol=3e-7, atol=0.0)


def test_a_memory_takes_its_rows_through_it_layer_by_layer(rows):
    memory = Memory(
        3, kind="lstm", width=5, layers=2, learn_initial=True,
        generator=torch.Generator().manual_seed(5),
    )  # fmt: skip
    source = torch.Generator().manual_seed(6)
    x, reset = torch.randn(8, 4, 3, generator=source), torch.rand(8, 4, generator=source) < 0.2
    state = torch.randn(4, 2, 2, 5, generator=source)
    leaves = list(memory.parameters())
    want = with_gradients(memory(x, state, reset), leaves)
    got = with_gradients(memory(x, state, reset, rows), leaves)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("mkldnn", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
def test_a_large_product_is_that_of_torch(mkldnn, transposed, monkeypatch):
    if not mkldnn:
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    source = torch.Generator().manual_seed(7)
    x, weight, bias = (
        torch.randn(shape, generator=source) for shape in ((130, 90), (91, 90), (91,))
    )
    assert x.numel() * 91 > products.OPERATIONS
    if transposed:
        x, weight = (part.t().contiguous().t() for part in (x, weight))
    want = x.double() @ weight.double().t() + bias.double()
    torch.testing.assert_close(
        products.linear(x, weight, bias).double(), want, rtol=1e-5, atol=1e-5
    )


def test_without_a_compiler_it_says_what_to_do(monkeypatch):
    from torch._inductor import codecache

    def fail(*_, **__):
        raise RuntimeError("no such program\nand more")

    monkeypatch.setattr(codecache.CppCodeCache, "load", fail)
    with pytest.raises(ConfigError, match=r"lstm_rows\.cpp needs a working C\+\+ compiler") as told:
        cpp.compiled_library(SOURCE, instead="set it to false")
    assert "no such program" in str(told.value)
    assert "and more" not in str(told.value)
    assert "set it to false" in str(told.value)


def test_what_has_gaps_in_memory_is_not_passed_on():
    with pytest.raises(InvariantError, match="without gaps"):
        cpp.compiled_library(SOURCE, instead="")("any", (), [torch.zeros(4, 4).t()])
