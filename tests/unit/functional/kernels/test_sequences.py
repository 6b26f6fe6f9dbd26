"""Sequences are copied by a kernel as torch selects them, bit by bit."""

import pytest
import torch

from stormsail.functional.kernels import sequences as module
from stormsail.functional.kernels.sequences import chosen_sequences

TABLES = {  # shape, axis, type
    "one column": ((90, 31), 1, torch.float32),
    "flags": ((3, 5), 1, torch.bool),
    "odd width": ((4, 7, 37), 1, torch.float32),
    "two blocks of columns": ((2, 5, 2, 300), 1, torch.float64),
    "before the first row": ((9, 1, 2, 6), 0, torch.float32),
    "places": ((2, 6), 1, torch.int64),
    "no column": ((2, 6, 0), 1, torch.bool),
}


@pytest.mark.parametrize(("shape", "axis", "kind"), TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("count", [1, 30, 0])
def test_chosen_sequences_are_those_that_torch_selects(
    shape, axis, kind, count, device, monkeypatch
):
    monkeypatch.setattr(module, "may_launch", lambda *_: True)
    source = torch.Generator().manual_seed(1)
    table = (torch.randn(*shape, generator=source) * 3.0).to(device, kind)
    if table.numel() and kind.is_floating_point:
        table.flatten()[0] = torch.nan
    chosen = torch.randint(shape[axis], (count,), generator=source).to(device)
    got, want = chosen_sequences(table, chosen, axis), table.index_select(axis, chosen)
    assert (got.shape, got.dtype, got.is_contiguous()) == (want.shape, want.dtype, True)
    assert torch.equal(got.nan_to_num(7.0), want.nan_to_num(7.0))


def test_a_table_with_gaps_is_read_as_it_is_meant(device, monkeypatch):
    monkeypatch.setattr(module, "may_launch", lambda *_: True)
    wide = torch.arange(60.0, device=device).view(3, 4, 5)
    chosen = torch.tensor([2, 0], device=device)
    for table in (wide[..., :2], wide.transpose(0, 1)):
        assert torch.equal(chosen_sequences(table, chosen, 1), table.index_select(1, chosen))


def test_a_table_that_learns_passes_its_gradient_on(device, monkeypatch):
    monkeypatch.setattr(module, "may_launch", lambda *_: True)
    table = torch.ones(2, 3, device=device, requires_grad=True)
    chosen = torch.tensor([1, 1], device=device)
    chosen_sequences(table, chosen, 1).sum().backward()
    assert table.grad.tolist() == [[0.0, 2.0, 0.0]] * 2
