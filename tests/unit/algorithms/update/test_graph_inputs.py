"""Inputs of recorded functions: what is copied where, and what need not be looked at again."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from stormsail.core.machine_code import graph_inputs
from stormsail.core.machine_code.graph_inputs import Places, form_of


@dataclass(frozen=True, eq=False)
class Table:
    first: Tensor
    info: dict[str, Tensor]


class Row(NamedTuple):
    table: Table
    fresh: Tensor
    flag: Any = None


def given(fresh=0.0, flag=None, table=None):
    own = table or Table(torch.zeros(3), {"count": torch.zeros(2, dtype=torch.int64)})
    return Row(own, torch.full((4,), fresh), flag)


def placed(row):
    """Return places and the tensors in them."""
    places = Places(row)
    move(places, row)
    return places, [row.table.first, row.table.info["count"], row.fresh]


def move(places, row):
    tensors = []
    form_of(row, tensors)
    places.move(row, tensors)


def test_what_is_given_again_is_found_by_comparing_objects(monkeypatch):
    row = given()
    places, tensors = placed(row)
    compared = []
    real = graph_inputs._is_at
    monkeypatch.setattr(graph_inputs, "_is_at", lambda *pair: compared.append(pair) or real(*pair))
    assert places.moves_at_once(Row(*row))  # another table of the same objects
    assert compared == []
    row.table.first.fill_(2.0)  # a result of another graph: the same object with other numbers
    assert places.moves_at_once(row)
    assert tensors[0].tolist() == [2.0] * 3


def test_what_is_made_anew_is_copied_to_its_place():
    row = given()
    places, tensors = placed(row)
    later = given(1.0, table=row.table)
    assert not places.moves_at_once(later)  # it was in place the first time
    move(places, later)
    assert tensors[2].tolist() == [1.0] * 4
    assert places.moves_at_once(given(3.0, table=row.table))
    assert tensors[2].tolist() == [3.0] * 4
    assert row.fresh is tensors[2]
    assert places.moves_at_once(row)  # the place itself


def test_nothing_that_was_copied_is_kept():
    row = given()
    places, _ = placed(row)
    move(places, given(1.0, table=row.table))
    held = [part for part in places._seen if isinstance(part, Tensor)]
    assert [id(part) for part in held] == [id(row.table.first), id(row.table.info["count"])]


@pytest.mark.parametrize(
    "other",
    [
        lambda row: row._replace(flag="on"),
        lambda row: row._replace(fresh=torch.zeros(5)),
        lambda row: row._replace(fresh=torch.zeros(4, dtype=torch.float64)),
        lambda row: row._replace(fresh=None),
        lambda row: row._replace(flag=torch.zeros(1)),
        lambda row: row._replace(flag=()),
        lambda row: row._replace(table=Table(torch.zeros(3), row.table.info)),
        lambda row: row._replace(table=Table(row.table.first, {"sum": row.table.info["count"]})),
        lambda row: row._replace(table=(row.table.first, row.table.info)),
        lambda row: tuple(row),
        lambda row: [*row],
    ],
)
def test_what_differs_in_anything_else_is_looked_at(other):
    row = given()
    places, tensors = placed(row)
    move(places, given(1.0, table=row.table))
    before = [tensor.clone() for tensor in tensors]
    assert not places.moves_at_once(other(row))
    assert all(map(torch.equal, tensors, before))


def test_a_table_that_was_changed_since_is_looked_at():
    row = given()
    places, _ = placed(row)
    row.table.info["count"] = torch.ones(2, dtype=torch.int64)
    assert not places.moves_at_once(row)
    row.table.info["more"] = torch.ones(2)
    assert not places.moves_at_once(row)
