"""The layers for a CUDA device give the numbers of the definition, forward and back."""

import math

import numpy as np
import pytest
import torch

from oracles import recurrence as oracle
from stormsail.functional import recurrence
from stormsail.functional.kernels.devices import compute_dtype
from stormsail.functional.kernels.layers import recurrent
from stormsail.functional.kernels.layers.recurrent import Layer, is_narrow, recurrent_sequence

KINDS = ("lstm", "gru")
SIZES = {  # rows, environments, inputs, width, share of resets
    "odd": (4, 19, 5, 7, 0.3),
    "two blocks of units": (2, 3, 3, 66, 0.3),
    "every row begins": (3, 5, 2, 4, 1.0),
    "no row begins": (3, 5, 2, 4, 0.0),
    "one row": (1, 2, 3, 4, 0.5),
    "narrow": (5, 19, 5, 16, 0.3),
    "narrow, one environment": (3, 1, 2, 32, 0.4),
    "narrow, one row": (1, 3, 16, 64, 0.5),
    "narrow, every row begins": (3, 17, 2, 16, 1.0),
    "narrow, no row begins": (3, 17, 2, 16, 0.0),
}
LARGE = {
    "minibatch": (64, 4096, 256, 256, 0.01),
    "narrow": (64, 4096, 34, 64, 0.01),
    "odd": (33, 301, 37, 70, 0.2),
    "every row begins": (5, 130, 64, 64, 1.0),
    "no row begins": (16, 130, 64, 64, 0.0),
}


def draw(kind, size, *, seed=0, device="cpu"):
    """Return inputs, four weights, state and initial state in float64, and the resets."""
    rows, batch, inputs, width, share = size
    source = torch.Generator().manual_seed(seed)
    gates, parts = {"lstm": (4, 2), "gru": (3, 1)}[kind]
    gates *= width

    def normal(*shape, scale=1.0):
        return scale * torch.randn(*shape, generator=source, dtype=torch.float64)

    spread = 1.0 / math.sqrt(width)
    leaves = [
        normal(rows, batch, inputs),
        normal(gates, inputs, scale=spread),
        normal(gates, width, scale=spread),
        normal(gates, scale=spread),
        normal(gates, scale=spread),
        normal(batch, parts, width),
        normal(parts, width),
    ]
    reset = torch.rand(rows, batch, generator=source) < share
    return [leaf.to(device).requires_grad_() for leaf in leaves], reset.to(device)


def plain(kind, leaves, reset):
    x, of_x, of_h, bias_x, bias_h, state, initial = leaves
    gates = torch.nn.functional.linear(x, of_x, bias_x)
    if kind == "lstm":
        parts = (*state.unbind(1), reset, *initial.unbind())
        output, cell = recurrence.lstm_sequence(gates + bias_h, of_h, *parts)
        return output, torch.stack((output[-1], cell), 1)
    output = recurrence.gru_sequence(gates, of_h, bias_h, state[:, 0], reset, initial[0])
    return output, output[-1][:, None]


def mine(kind, leaves, reset, **options):
    x, *weights, state, initial = leaves
    return recurrent_sequence(kind, x, Layer(*weights), state, reset, initial, **options)


def gradients(results, leaves, shares):
    total = sum((a * b.to(a.dtype)).sum() for a, b in zip(results, shares, strict=True))
    return torch.autograd.grad(total, leaves, materialize_grads=True)


def compared(kind, size, device, **options):
    """Return relative errors of outputs, last state and every gradient."""
    exact, reset = draw(kind, size, device=device)
    leaves = [leaf.detach().float().requires_grad_() for leaf in exact]
    want, got = plain(kind, exact, reset), mine(kind, leaves, reset, **options)
    shares = [torch.sin(1.0 + torch.arange(x.numel(), device=device)).view(x.shape) for x in want]
    want = [*want, *gradients(want, exact, shares)]
    got = [*got, *gradients(got, leaves, shares)]
    return [
        float((a.detach().double() - b.detach()).norm() / b.detach().norm().clamp(min=1e-30))
        for a, b in zip(got, want, strict=True)
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_values_and_gradients_are_those_of_the_plain_layer(kind, size, device):
    errors = compared(kind, size, device, dtype=torch.float32)
    assert max(errors) < (1e-3 if device == "cuda" else 2e-6), errors


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", LARGE.values(), ids=LARGE)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-3), (torch.bfloat16, 1e-2)])
def test_large_layers_are_those_of_the_plain_one(kind, size, dtype, bound):
    errors = compared(kind, size, "cuda", dtype=dtype)
    assert max(errors) < bound, errors


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [16, 32, 64])
def test_all_rows_in_one_kernel_are_as_exact_as_row_by_row(kind, width, monkeypatch):
    """Both round inputs, weights, gates and outputs to bfloat16; one of them a product more."""
    size = (9, 1000, 13, width, 0.1)
    whole = compared(kind, size, "cuda", dtype=torch.bfloat16)
    monkeypatch.setattr(recurrent, "is_narrow", lambda *_: False)
    rows = compared(kind, size, "cuda", dtype=torch.bfloat16)
    assert max(whole) < min(1.5 * max(rows), 1e-2), (whole, rows)


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_those_of_the_oracle(kind, device):
    exact, reset = draw(kind, (3, 2, 3, 2, 0.4), seed=4)
    x, of_x, of_h, bias_x, bias_h, state, initial = (leaf.detach().numpy() for leaf in exact)
    gates = x @ of_x.T + bias_x
    if kind == "lstm":
        parts = (state[:, 0], state[:, 1], reset.numpy(), *initial)
        want, cell = oracle.lstm_sequence(gates + bias_h, of_h, *parts)
        after = np.stack((want[-1], cell), 1)
    else:
        parts = (state[:, 0], reset.numpy(), initial[0])
        want = oracle.gru_sequence(gates, of_h, bias_h, *parts)
        after = want[-1][:, None]
    leaves = [leaf.detach().float().to(device) for leaf in exact]
    output, last = mine(kind, leaves, reset.to(device))
    np.testing.assert_allclose(output.cpu(), want, atol=2e-6)
    np.testing.assert_allclose(last.cpu(), after, atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", ["odd", "narrow"])
def test_without_gradients_rows_one_by_one_are_the_sequence(kind, size, device):
    leaves, reset = draw(kind, SIZES[size], device=device)
    leaves = [leaf.detach().float() for leaf in leaves]
    x, *rest, state, initial = leaves
    learning = [leaf.clone().requires_grad_() for leaf in leaves]
    whole, end = (part.detach() for part in mine(kind, learning, reset))
    rows = []
    with torch.no_grad():
        for t in range(len(x)):
            one = [x[t : t + 1], *rest, state, initial]
            row, state = mine(kind, one, reset[t : t + 1])
            rows.append(row[0])
    torch.testing.assert_close(torch.stack(rows), whole, rtol=0, atol=1e-6)
    torch.testing.assert_close(state, end, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [4, 16])
def test_neither_gradient_nor_nan_crosses_a_reset(kind, width, device):
    leaves, _ = draw(kind, (4, 3, 2, width, 0.0), device=device)
    leaves = [leaf.detach().float().requires_grad_() for leaf in leaves]
    reset = torch.zeros(4, 3, dtype=torch.bool, device=device)
    reset[2] = True
    output, _ = mine(kind, leaves, reset)
    (of_x,) = torch.autograd.grad(output[2:].sum(), leaves[0])
    assert torch.equal(of_x[:2], torch.zeros_like(of_x[:2]))
    assert (of_x[2] != 0.0).all()
    broken = leaves[0].detach().clone()
    broken[3] = math.nan
    leaves[0] = broken.requires_grad_()
    output, _ = mine(kind, leaves, reset)
    assert output[:3].isfinite().all()
    (of_x,) = torch.autograd.grad(output.sum(), leaves[0])
    assert of_x[:2].isfinite().all()
    assert of_x[2:].isnan().all()


@pytest.mark.parametrize("wanted", ["x", "weights", "state"])
@pytest.mark.parametrize("size", ["odd", "narrow"])
def test_what_wants_no_gradient_changes_no_other(wanted, size, device):
    leaves, reset = draw("lstm", SIZES[size], device=device)
    leaves = [leaf.detach().float() for leaf in leaves]
    chosen = {"x": [0], "weights": [1, 2, 3, 4], "state": [5]}[wanted]

    def asked(places):
        given = [leaf.clone().requires_grad_(k in places) for k, leaf in enumerate(leaves)]
        output, _ = mine("lstm", given, reset)
        return torch.autograd.grad(output.square().sum(), [given[k] for k in chosen])

    for a, b in zip(asked(chosen), asked(range(7)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_products_have_the_dtype_of_autocast():
    x = torch.zeros(1)
    assert compute_dtype(x) == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert compute_dtype(x) == torch.bfloat16
    with torch.autocast("cpu", enabled=False):
        assert compute_dtype(x) == torch.float32


def test_only_narrow_layers_go_through_all_rows_in_one_kernel():
    widths = [width for width in range(1, 300) if is_narrow(width, torch.bfloat16, "cuda")]
    assert widths == [16, 32, 64]
    assert not is_narrow(64, torch.float32, "cuda")  # a product of the library is faster


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
def test_a_captured_layer_sees_new_inputs_and_never_waits():
    exact, reset = draw("lstm", (8, 256, 64, 64, 0.1), device="cuda")
    leaves = [leaf.detach().float().requires_grad_() for leaf in exact]
    x = leaves[0]

    def work():
        output, _ = mine("lstm", leaves, reset, dtype=torch.bfloat16)
        return [output.detach(), *torch.autograd.grad(output.float().square().sum(), leaves[:3])]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.set_sync_debug_mode("error")
    try:
        work()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = work()
    x.data.copy_(torch.randn_like(x))
    reset.copy_(torch.rand(reset.shape, device="cuda") < 0.3)
    graph.replay()
    for a, b in zip(held, work(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
