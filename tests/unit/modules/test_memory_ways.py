"""The ways through a sequence with resets: the same numbers, each where it is the fastest."""

import pytest
import torch

from stormsail.modules import memory as module
from stormsail.modules.memory import Memory

T, B, F, H = 48, 3, 4, 5


def made(kind="lstm", layers=2, *, learn_initial=True):
    source = torch.Generator().manual_seed(3)
    memory = Memory(
        F, kind=kind, width=H, layers=layers, learn_initial=learn_initial, generator=source
    )
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


NEARLY_ALL = resets(*((row, 0) for row in range(T) if row % 4), (7, 1))


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


@pytest.mark.parametrize("learn_initial", [True, False])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize(
    "reset", [FEW, SHORT, UNBROKEN, NEARLY_ALL], ids=["few", "short", "unbroken", "nearly-all"]
)
def test_every_way_gives_outputs_states_and_gradients_of_the_rows_one_by_one(
    kind, reset, learn_initial, monkeypatch
):
    memory = made(kind, learn_initial=learn_initial)
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


@pytest.mark.parametrize(
    ("kind", "reset", "way"),
    [
        ("lstm", resets(), "_fused"),
        ("lstm", resets((0, 1)), "_fused"),
        ("lstm", FEW, "_separated"),
        ("lstm", SHORT, "_separated"),
        ("lstm", UNBROKEN, "_separated"),
        ("lstm", NEARLY_ALL, "_stepwise"),
        ("gru", FEW, "_fused"),
    ],
)
def test_an_lstm_that_begins_with_zeros_goes_through_resets_in_one_call(kind, reset, way):
    chosen = made(kind, learn_initial=False)._implementation(reset)
    assert getattr(chosen, "func", chosen).__name__ == way


def test_a_begin_other_than_zeros_is_not_taken_for_them():
    memory = made(learn_initial=False)
    memory.initial[1, 0, 2] = 0.5
    chosen = memory._implementation(SHORT)
    assert chosen.func.__name__ == "_packed"


def test_in_float32_one_call_differs_from_the_rows_one_by_one_by_rounding(monkeypatch):
    memory = made(layers=1, learn_initial=False).float()
    source = torch.Generator().manual_seed(4)
    x = torch.randn(T, B, F, generator=source, requires_grad=True)
    state = torch.randn(B, 1, 2, H, generator=source, requires_grad=True)

    def everything():
        output, after = memory(x, state, SHORT)
        total = output.square().sum() + after.sum()
        return output, after, *torch.autograd.grad(total, [x, state, *memory.parameters()])

    result = everything()
    monkeypatch.setattr(module, "_may_read", lambda _: False)
    for one, other in zip(result, everything(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_what_is_not_finite_ends_at_a_reset():
    memory = made(learn_initial=False)
    x = torch.ones(T, B, F, dtype=torch.float64)
    state = memory.initial_state(B)
    clean, _ = memory(x, state, SHORT)
    x[10, 1, 0] = torch.nan  # column 1 begins anew in row 11
    output, _ = memory(x, state, SHORT)
    assert output[10, 1].isnan().all()
    torch.testing.assert_close(output[11:], clean[11:], rtol=0, atol=1e-12)


def test_a_row_is_inserted_before_every_reset_but_those_of_the_first_row():
    flags = torch.tensor([[1, 0], [0, 1], [0, 1]], dtype=torch.bool)
    result = module._separators(flags, 5)
    # column 0 has rows 0 to 2 and two rows after its end; column 1 has row 0, an inserted one,
    # row 1, another inserted one, and row 2
    assert result.place.view(3, 2).tolist() == [[0, 1], [2, 5], [4, 9]]
    assert result.marks[..., 0].tolist() == [[0, 0], [0, 1], [0, 0], [0, 1], [0, 0]]
    assert result.marks[..., 1].tolist() == [[0, 0], [0, 0], [0, 0], [1, 0], [1, 0]]
    assert result.size == 10


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


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_the_way_of_a_cuda_device_gives_the_same_numbers(kind, monkeypatch):
    pytest.importorskip("triton", reason="Triton is not installed")
    source = torch.Generator().manual_seed(5)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    memory = made(kind).float().to(device)
    x = torch.randn(3, B, F, generator=source).to(device)
    state = torch.randn(B, *memory.initial.shape, generator=source).to(device)
    reset = resets((1, 0), (2, 2))[:3].to(device)

    def results(*, launches):
        monkeypatch.setattr(module, "may_launch", lambda *_: launches)
        monkeypatch.setattr(module, "_may_read", lambda _: False)
        output, after = memory(x, state, reset)
        total = output.square().sum() + after.sum()
        return output, after, *torch.autograd.grad(total, list(memory.parameters()))

    for one, other in zip(results(launches=True), results(launches=False), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
