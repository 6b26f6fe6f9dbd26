"""What may be done in a task, as `core.task` describes it."""

import pytest
import torch

from stormsail.core.errors import RangeError, ShapeError
from stormsail.core.task import ContinuousActions, DiscreteActions


def test_the_count_of_continuous_actions_is_that_of_their_dimensions():
    assert ContinuousActions((-1.0, 0.0, -2.0), (1.0, 1.0, 2.0)).count == 3


def test_action_spaces_are_values():
    assert DiscreteActions(3) == DiscreteActions(3)
    assert len({ContinuousActions((0.0,), (1.0,)), ContinuousActions((0.0,), (1.0,))}) == 1


def test_one_bad_dimension_makes_the_action_bad_and_only_it_is_mended():
    space = ContinuousActions((-1.0, -1.0), (1.0, 1.0))
    action = torch.tensor([[0.5, float("inf")], [0.5, 3.0]])
    assert space.bad(action).tolist() == [True, False]
    assert torch.equal(space.mend(action), torch.tensor([[0.5, 0.0], [0.5, 3.0]]))


def test_indices_are_counted_from_zero():
    space = DiscreteActions(3)
    action = torch.tensor([-1, 0, 2, 3])
    assert space.bad(action).tolist() == [True, False, False, True]
    assert space.mend(action).tolist() == [0, 0, 2, 2]


@pytest.mark.refusal
@pytest.mark.parametrize("count", [0, -2, 1.0, True])
def test_there_is_something_to_choose_from(count):
    with pytest.raises(RangeError) as caught:
        DiscreteActions(count)
    assert str(caught.value) == (
        f"`count` must be a whole number of at least 1; found {count!r}. "
        "Pass the number of choices. [out-of-range]"
    )


@pytest.mark.refusal
def test_bounds_come_in_pairs():
    for low, high in (((), ()), ((0.0,), (1.0, 2.0))):
        with pytest.raises(ShapeError) as caught:
            ContinuousActions(low, high)
        assert str(caught.value) == (
            "`low` and `high` must have one entry for each action dimension; found "
            f"{len(low)} and {len(high)} entries. Pass one bound per dimension. [shape-mismatch]"
        )


@pytest.mark.refusal
@pytest.mark.parametrize("high", [1.0, 0.5, float("nan")])
def test_every_dimension_has_room(high):
    with pytest.raises(RangeError) as caught:
        ContinuousActions((1.0,), (high,))
    assert str(caught.value) == (
        "every entry of `low` must be smaller than that of `high`; found "
        f"low (1.0,) and high ({high},). Leave out a dimension that cannot move. [out-of-range]"
    )
