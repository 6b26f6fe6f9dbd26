"""Fully connected layers for a CUDA device give the numbers of torch's own, forward and back."""

import pytest
import torch

from stormsail.functional.kernels.layers import dense as module
from stormsail.functional.kernels.layers import row_sums
from stormsail.functional.kernels.layers.dense import dense
from stormsail.modules import layers

SIZES = {  # leading shape, inputs, units
    "odd": ((3, 7), 5, 9),
    "one unit": ((11,), 4, 1),
    "two blocks of units": ((2, 5), 3, 130),
    "two programs of rows": ((3, 101), 2, 130),
    "one row": ((1, 1), 3, 4),
    "no row": ((0, 4), 3, 4),
}


def draw(size, device, *, scale=1.0):
    shape, inputs, units = size
    source = torch.Generator().manual_seed(0)
    parts = [
        torch.randn(*s, generator=source) for s in ((*shape, inputs), (units, inputs), (units,))
    ]
    parts[0] *= scale
    return [part.to(device).requires_grad_() for part in parts]


def gradients(result, leaves, *, level=0.0):
    share = torch.sin(1.0 + torch.arange(result.numel(), device=result.device)).view(result.shape)
    share = share + level
    return torch.autograd.grad((result * share.to(result.dtype)).sum(), leaves)


@pytest.mark.parametrize("tanh", [True, False])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_values_and_gradients_are_those_of_the_plain_layer(size, tanh, device):
    leaves = draw(size, device)
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    want = torch.nn.functional.linear(*exact)
    want = want.tanh() if tanh else want
    got = dense(*leaves, tanh=tanh)
    assert got.shape == want.shape
    pairs = zip((got, *gradients(got, leaves)), (want, *gradients(want, exact)), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


def test_large_and_small_inputs_and_nan_keep_their_tanh(device):
    x = torch.tensor([0.0, 1e-20, -1e-6, 0.049, 0.051, -3.0, 1e4, -1e30, torch.nan])
    weight, bias = torch.ones(1, 1, device=device), torch.zeros(1, device=device)
    got = dense(x.to(device)[:, None], weight, bias, tanh=True)[:, 0].cpu()
    torch.testing.assert_close(got, x.double().tanh().float(), rtol=2e-6, atol=0.0, equal_nan=True)


def test_inputs_may_be_strided_and_want_no_gradient(device):
    x = torch.arange(24.0, device=device).reshape(4, 6).t().div(24.0)
    weight = torch.full((3, 4), 0.1, device=device, requires_grad=True)
    bias = torch.zeros(3, device=device, requires_grad=True)
    got = dense(x, weight, bias, tanh=True)
    want = torch.nn.functional.linear(x, weight, bias).tanh()
    for a, b in zip(gradients(got, [weight, bias]), gradients(want, [weight, bias]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tanh", [True, False])
@pytest.mark.parametrize(
    "size", [*SIZES.values(), ((2, 5), 70, 9), ((3, 701), 48, 66)], ids=[*SIZES, "deep", "large"]
)
@pytest.mark.parametrize("processors", [1, 9])
def test_weights_learn_the_same_where_the_input_does_not(
    processors, size, tanh, device, monkeypatch
):
    monkeypatch.setattr(module, "_processors", lambda _: processors)
    x, *leaves = draw(size, device)
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    got = dense(x.detach(), *leaves, tanh=tanh)
    want = torch.nn.functional.linear(x.detach().double(), *exact)
    want = want.tanh() if tanh else want
    pairs = zip(gradients(got, leaves, level=2.0), gradients(want, exact, level=2.0), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(
            a.double(), b, rtol=2e-5, atol=2e-5 * max(1, want.numel()) ** 0.5
        )


@pytest.mark.parametrize("tanh", [True, False])
@pytest.mark.parametrize("learns", [True, False])
def test_an_input_of_another_type_is_filled_up_and_is_the_same(learns, tanh, device):
    x, *leaves = draw(((3, 7), 5, 32), device)
    rounded = x.detach().bfloat16().requires_grad_(learns)
    wide = rounded.detach().float().requires_grad_(learns)
    pairs = []
    for each in (rounded, wide):
        result = dense(each, *leaves, tanh=tanh, dtype=torch.float32)
        asked = [*leaves, each] if learns else leaves
        pairs.append([result, *gradients(result, asked, level=2.0)])
    assert not learns or pairs[0][-1].dtype == torch.bfloat16
    for a, b in zip(*pairs, strict=True):
        assert a.shape == b.shape
        torch.testing.assert_close(
            a.float(), b, rtol=1e-2 if a is pairs[0][-1] else 1e-5, atol=1e-5
        )


@pytest.mark.parametrize("tanh", [True, False])
def test_columns_that_fill_up_the_input_change_nothing(tanh, device):
    x, weight, bias = leaves = draw(((3, 7), 5, 16), device)
    wide = torch.cat((x, x.new_zeros(3, 7, 3)), -1)
    got, want = (dense(each, weight, bias, tanh=tanh) for each in (wide, x))
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
    for a, b in zip(gradients(got, leaves), gradients(want, leaves), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_blocks_of_narrow_tables_are_as_large_as_those_of_wide_ones():
    for units in (1, 5, 32, 256):
        _, options = row_sums.blocks(100, units)
        assert options["ROWS"] * options["UNITS"] == row_sums.ROWS * row_sums.UNITS


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_layers_of_a_network_are_the_same_through_kernels(activation, device, monkeypatch):
    body = layers.Mlp(5, (7, 6), activation=activation, generator=torch.Generator()).to(device)
    last = layers.linear(6, 3, gain=1.0, generator=torch.Generator()).to(device)
    leaves = [*body.parameters(), *last.parameters()]
    x = torch.linspace(-1.0, 1.0, 40, device=device).reshape(2, 4, 5)

    def run(launches):
        monkeypatch.setattr(layers, "may_launch", lambda *_: launches)
        return layers.last_layer(last, body(x))

    got, want = run(launches=True), run(launches=False)
    pairs = zip((got, *gradients(got, leaves)), (want, *gradients(want, leaves)), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        assert torch.equal(run(launches=True), run(launches=False))


@pytest.mark.gpu
@pytest.mark.parametrize("tanh", [True, False])
@pytest.mark.parametrize("units", [256, 32, 5])
def test_layers_of_a_minibatch_in_bfloat16(units, tanh):
    leaves = draw(((64, 4096), 256, units), "cuda", scale=0.1)
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    want = torch.nn.functional.linear(*exact)
    want = want.tanh() if tanh else want
    got = dense(*leaves, tanh=tanh, dtype=torch.bfloat16)
    assert got.dtype == torch.bfloat16
    # of sines alone the sum over rows, a bias's gradient, would be nothing but its rounding
    own, other = (gradients(*pair, level=2.0) for pair in ((got, leaves), (want, exact)))
    for a, b in zip((got, *own), (want, *other), strict=True):
        assert float((a.detach().double() - b.detach()).norm() / b.detach().norm()) < 1e-2


@pytest.mark.parametrize("sizes", [(300, 32, 48), (1, 16, 16), (77, 80, 272), (130, 272, 192)])
def test_a_product_with_its_tanh_is_that_of_float64(sizes, device):
    rows, inputs, units = sizes
    source = torch.Generator().manual_seed(1)
    shapes = ((rows, inputs), (units, inputs), (units,))
    x, weight, bias = (torch.randn(*shape, generator=source).to(device) for shape in shapes)
    weight = weight / inputs**0.5
    want = (x.double() @ weight.double().t() + bias.double()).tanh()
    # the interpreter multiplies no matrices of bfloat16, and a GPU none of float32 with all digits
    kind, bound = (torch.float32, 1e-6) if device == "cpu" else (torch.bfloat16, 1e-2)
    got = module._squashed_product(x.to(kind), weight.to(kind), bias)
    assert got.dtype == kind
    assert float((got.double() - want).norm() / want.norm()) < bound


def test_a_gradient_with_gaps_between_its_rows_is_read_where_it_is(device):
    leaves = draw(((3, 50), 8, 16), device)
    got = dense(*leaves, tanh=True)
    wide = torch.linspace(-1.0, 2.0, got.numel() * 2, device=device).view(3, 50, 2, 16)
    for share in (wide[..., 1, :], wide[..., 1, :].transpose(0, 1).contiguous().transpose(0, 1)):
        found = torch.autograd.grad(got, leaves, share, retain_graph=True)
        wanted = torch.autograd.grad(got, leaves, share.contiguous(), retain_graph=True)
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(3, 2, 32), (7, 5), (1, 1), (0, 4), (2, 300)])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-14), (torch.float32, 2e-6)])
def test_weighted_sums_along_rows_are_those_of_float64(shape, dtype, bound, device):
    source = torch.Generator().manual_seed(3)
    table = torch.randn(*shape, generator=source, dtype=torch.float64).to(device, dtype)
    weight = torch.rand(shape[-1], generator=source, dtype=torch.float64).to(device)
    got = row_sums.weighted(table, weight)
    want = (table.double() * weight).sum(-1)
    assert (got.dtype, got.shape) == (dtype, want.shape)
    torch.testing.assert_close(got.double(), want, rtol=bound, atol=bound * shape[-1])
    if want.numel():
        table[..., 0] = torch.nan
        assert bool(row_sums.weighted(table, weight).isnan().all())
