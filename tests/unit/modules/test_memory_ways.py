"""The ways through a sequence with resets: the same numbers, each where it is the fastest."""

import pytest
import torch

from stormsail.modules import memory as module
from stormsail.modules.memory import Memory

T, B, F, H = 48, 3, 4, 5


def made(kind="lstm", layers=2):
    source = torch.Generator().manual_seed(3)
    memory = Memory(F, kind=kind, width=H, layers=layers, learn_initial=True, generator=source)
    memory = memory.double()
    with torch.no_grad():
        for parameter in memory.parameters():
            parameter.normal_(0.0, 0.5, generator=source)
    return memory


def resets(*cells):
    flags = torch.zeros(T, B, dtype=torch.bool)
    for row, column in cells:
        flags[row, column] = True
    return flags


FEW = resets((0, 1), (20, 0), (20, 2), (33, 1))
SHORT = resets(*((row, 0) for row in range(0, T, 9)), (11, 1), (12, 1), (40, 1), (20, 2), (30, 2))
UNBROKEN = resets(*((row, 0) for row in range(0, T, 9)), (11, 1), (12, 1))


def run(memory, reset):
    """Return outputs, last state and every gradient of a sum with known weights."""
    source = torch.Generator().manual_seed(4)
    x = torch.randn(T, B, F, dtype=torch.float64, generator=source, requires_grad=True)
    shape = (B, *memory.initial.shape)
    state = torch.randn(shape, dtype=torch.float64, generator=source, requires_grad=True)
    output, after = memory(x, state, reset)
    weights = (torch.randn(y.shape, dtype=y.dtype, generator=source) for y in (output, after))
    total = sum((w * y).sum() for w, y in zip(weights, (output, after), strict=True))
    return output, after, *torch.autograd.grad(total, [x, state, *memory.parameters()])


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("reset", [FEW, SHORT, UNBROKEN], ids=["few", "short", "unbroken"])
def test_every_way_gives_outputs_states_and_gradients_of_the_rows_one_by_one(
    kind, reset, monkeypatch
):
    memory = made(kind)
    result = run(memory, reset)
    monkeypatch.setattr(module, "_may_read", lambda _: False)
    for one, other in zip(result, run(memory, reset), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "reset", "way"),
    [
        ("lstm", resets(), "_fused"),
        ("lstm", FEW, "_fused"),
        ("lstm", SHORT, "_packed"),
        ("lstm", UNBROKEN, "_stepwise"),
        ("gru", FEW, "_fused"),
        ("gru", SHORT, "_stepwise"),
    ],
)
def test_few_resets_are_cut_short_episodes_packed_and_all_else_goes_row_by_row(kind, reset, way):
    chosen = made(kind)._implementation(reset)
    assert getattr(chosen, "func", chosen).__name__ == way


def test_pieces_between_resets_fill_all_rows():
    assert module._between_resets(FEW) == [20, 13, 15]
    assert module._between_resets(resets()) == [T]


def test_stretches_are_the_episodes_of_each_column_longest_first():
    flags = torch.tensor([[0, 1], [0, 0], [1, 0], [0, 1]], dtype=torch.bool)
    result = module._stretches(flags)
    # column 1 has rows 0 to 2, column 0 has 0 to 1 and 2 to 3, and column 1 ends with row 3
    assert result.column.tolist() == [1, 0, 0, 1]
    assert result.fresh.tolist() == [True, False, True, True]
    assert result.sizes == [4, 3, 1]
    assert result.place.tolist() == [1, 0, 4, 7, 3, 2, 6, 5]
    assert result.back.tolist() == [1, 0, 5, 4, 2, 7, 6, 3]
    assert result.last.tolist() == [2, 3]
