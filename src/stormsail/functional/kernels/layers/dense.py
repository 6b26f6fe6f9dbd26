"""Fully connected layers over many rows, for a CUDA device.

Bias and tanh are part of the product in bfloat16, and one kernel behind it otherwise. On the way
back the sum over rows that is the bias's gradient is a by-product of the gradient before the tanh.
Torch sums the rows of a bias once more: of 262,144 rows and 256 units that takes longer than the
product. Units are filled up to a multiple of `ALIGNMENT`: a product of 5 columns takes twice the
time of one of 8. What comes back may have gaps between its rows and is read where it is. Where
nobody asks for the gradient of the inputs, one kernel goes straight to that of weights and bias.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from stormsail.functional.kernels.devices import compute_dtype, filled_up, power_of_two
from stormsail.functional.kernels.layers.recurrent import exact_product, place_columns
from stormsail.functional.kernels.layers.row_sums import blocks, slopes_and_sums
from stormsail.functional.kernels.layers.steady_weights import made_of

ALIGNMENT = 8
"""Columns of 16 bytes of bfloat16."""


class Tile(NamedTuple):
    """What one program of a product works on, and with what."""

    rows: int
    units: int
    """At most."""
    inputs: int
    """At a time."""
    warps: int
    stages: int
    """Loads that are under way."""
    share: int = 0
    """Programs that a multiprocessor has room for, where they stay and keep their weights."""


PRODUCT = Tile(64, 128, 64, 4, 3)
"""Of the product with its tanh."""
KEPT = (Tile(64, 128, 64, 4, 3, 3), Tile(64, 128, 256, 4, 1, 2))
"""Of the same where a program keeps the weights of all inputs, of which there are so many at most.
With 256 of them one program loads while another multiplies."""
NARROW = 64
"""Units of a program where those of `PRODUCT` do not divide all, and inputs of a way back to the
weights alone."""
WHOLE = 16
"""Columns that units for matrices multiply at once."""
BACK = Tile(64, 64, NARROW, 4, 3, 3)
"""Of the way back to the weights alone."""


def dense(
    x: Tensor, weight: Tensor, bias: Tensor, *, tanh: bool, dtype: torch.dtype | None = None
) -> Tensor:
    """Return x W' + b, or its tanh, [*b, N], in the dtype of the product.

    Args:
        x: [*b, I], or more columns, which are zeros.
        weight: float32 [N, I].
        bias: float32 [N].
        tanh: whether a tanh follows.
        dtype: of the product and of what is kept for the way back, float32 or bfloat16;
            `compute_dtype` without it.
    """
    dtype = compute_dtype(x) if dtype is None else dtype
    with torch.autocast(x.device.type, enabled=False):
        if torch.is_grad_enabled():
            result: Tensor = _Dense.apply(x, weight, bias, tanh, dtype)
            return result
        rows = _rows(x, dtype)
        given = _given(rows, weight, bias)
        return _cut(_product(rows, *given, tanh=tanh), x, len(weight))


def _given(rows: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return weight and bias for rows, rounded and filled up."""
    missing, idle = -len(weight) % ALIGNMENT, rows.shape[1] - weight.shape[1]

    def make() -> tuple[Tensor, Tensor]:
        own = filled_up(weight.to(rows.dtype), rows=missing, columns=idle)
        return own, filled_up(bias, columns=missing)

    return made_of((weight, bias), (rows.dtype, idle), make)


def _product(rows: Tensor, weight: Tensor, bias: Tensor, *, tanh: bool) -> Tensor:
    if tanh:
        return squashed(rows, weight, bias)
    return torch.addmm(bias.to(rows.dtype), rows, weight.t())


def _cut(output: Tensor, x: Tensor, units: int) -> Tensor:
    """Return the first units of rows in the shape of the input."""
    return output.view(*x.shape[:-1], output.shape[1])[..., :units]


class _Dense(torch.autograd.Function):
    """The layer and its gradient."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's own stub is untyped
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        tanh: bool,  # noqa: FBT001 - apply takes no names
        dtype: torch.dtype,
    ) -> Tensor:
        rows = _rows(x, dtype)
        own, shift = _given(rows, weight, bias)
        output = _product(rows, own, shift, tanh=tanh)
        ctx.save_for_backward(rows, own, *([output] if tanh else []))
        ctx.tanh, ctx.kind, ctx.shape, ctx.sizes = tanh, x.dtype, x.shape, weight.shape
        return _cut(output, x, len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        rows, weight, *outputs = ctx.saved_tensors
        units, inputs = ctx.sizes
        missing = len(weight) - units
        grad = grad.reshape(-1, units).to(weight.dtype)
        if missing:
            grad = filled_up(grad, columns=missing)
        elif grad.stride(1) != 1 or grad.stride(0) % ALIGNMENT:
            grad = grad.contiguous()
        of_x = None
        if ctx.needs_input_grad[0] or not ctx.tanh or rows.shape[1] > NARROW:
            slope, sums = slopes_and_sums(grad, outputs[0] if ctx.tanh else None)
            if ctx.needs_input_grad[0]:
                of_x = torch.mm(slope, weight)[:, : ctx.shape[-1]].reshape(ctx.shape).to(ctx.kind)
            of_weight = exact_product(slope.t(), rows)
        else:
            of_weight, sums = _back_to_weights(grad, outputs[0], rows)
        return of_x, of_weight[:units, :inputs], sums[:units], None, None


def _rows(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return rows [R, I] in a dtype; where that is another, filled up for `_is_whole`."""
    rows = x.reshape(-1, x.shape[-1])
    if rows.dtype == dtype:
        return rows
    filled = rows.new_empty(1, len(rows), rows.shape[1] + -rows.shape[1] % WHOLE, dtype=dtype)
    place_columns(rows, filled, 0)
    return filled[0]


def _back_to_weights(grad: Tensor, output: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of weight [N, I] and bias behind a tanh, float32."""
    from stormsail.functional.kernels.layers.dense_triton import back_to_weights

    (count, units), inputs = output.shape, rows.shape[1]
    rows, width = rows.contiguous(), min(max(power_of_two(units), WHOLE), BACK.units)
    wanted = max(BACK.share * _processors(grad.device) // -(-units // width), 1)
    blocks = -(-count // BACK.rows)
    repeat = max(-(-blocks // wanted), 1)  # all programs at once: none waits for a last few
    programs = -(-blocks // repeat)
    parts = torch.empty(programs, units * (inputs + 1), device=grad.device)
    if count:
        back_to_weights[(-(-units // width), programs)](
            grad, output, rows, parts, count, units, inputs, grad.stride(0),
            ROWS=BACK.rows, UNITS=width, INPUTS=max(power_of_two(inputs), WHOLE),
            REPEAT=repeat, num_warps=BACK.warps, num_stages=BACK.stages,
        )  # fmt: skip
    of_weight, of_bias = parts.sum(0).split([units * inputs, units])
    return of_weight.view(units, inputs), of_bias


def squashed(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return tanh(rows weight' + bias), [R, N], in the dtype of rows [R, I] and weight."""
    if _is_whole(rows, weight):
        return _squashed_product(rows, weight, bias)
    output = torch.mm(rows, weight.t())
    _squash(output, bias)
    return output


def _is_whole(rows: Tensor, weight: Tensor) -> bool:
    """Return whether a product is one of ours: wide enough for the units that multiply matrices."""
    sizes = (rows.shape[1], len(weight))
    return (
        rows.dtype == torch.bfloat16 and not any(size % WHOLE for size in sizes) and len(rows) > 0
    )


def _squashed_product(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return tanh(rows weight' + bias), [R, N]."""
    from stormsail.functional.kernels.layers import dense_triton as kernels

    rows, (count, inputs), units = rows.contiguous(), rows.shape, len(weight)
    output = torch.empty(count, units, dtype=rows.dtype, device=rows.device)
    tile = next((each for each in KEPT if inputs <= each.inputs), PRODUCT)
    width = min(power_of_two(units), tile.units)
    if width > NARROW and units % width:
        width = NARROW  # or a quarter of 192 columns would be none
    blocks, parts = -(-count // tile.rows), -(-units // width)
    tables = (rows, weight.contiguous(), bias.float().contiguous(), output, count, units, inputs)
    options = {
        "ROWS": tile.rows, "UNITS": width, "INPUTS": min(power_of_two(inputs), tile.inputs),
        "FAST": _is_fast(output), "num_warps": tile.warps,
    }  # fmt: skip
    if tile.share:
        programs = min(blocks, max(tile.share * _processors(rows.device) // parts, 1))
        kernels.kept_product_tanh[(programs * parts,)](*tables, STAGES=tile.stages, **options)
    else:
        kernels.product_tanh[(blocks * parts,)](*tables, num_stages=tile.stages, **options)
    return output


def _processors(device: torch.device) -> int:
    """Return the number of multiprocessors of a device."""
    if device.type != "cuda":
        return 1
    count: int = torch.get_device_module(device).get_device_properties(device).multi_processor_count
    return count


def _squash(table: Tensor, bias: Tensor) -> None:
    """Replace a product [R, N] by tanh(product + bias)."""
    from stormsail.functional.kernels.layers.dense_triton import bias_tanh

    if table.numel() == 0:
        return
    grid, options = blocks(*table.shape)
    bias_tanh[grid](table, bias.float().contiguous(), *table.shape, FAST=_is_fast(table), **options)


def _is_fast(table: Tensor) -> bool:
    """Return whether a GPU's own tanh serves: it keeps more digits than bfloat16 has."""
    return table.is_cuda and table.dtype == torch.bfloat16
