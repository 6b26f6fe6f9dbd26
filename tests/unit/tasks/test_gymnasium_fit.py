"""An observation that does not fit its space is refused by name, in this process and in workers."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Tuple

from gymnasium_lab import Unfit
from stormsail.core.errors import DataError
from stormsail.core.task import close
from stormsail.tasks.gymnasium_fit import misfit
from stormsail.tasks.gymnasium_task import GymnasiumTask

NAME = "UnfitOfTheTest-v0"


@pytest.fixture
def registered():
    def register(**arguments):
        gymnasium.registry.pop(NAME, None)
        kind = {"kwargs": arguments, "disable_env_checker": True}
        gymnasium.register(NAME, entry_point=Unfit, **kind)

    yield register
    gymnasium.registry.pop(NAME, None)


def begin_and_act(task):
    generator = torch.Generator().manual_seed(0)
    state, _ = task.reset(generator)
    task.step(state, torch.zeros(2, dtype=torch.int64), generator)


@pytest.mark.refusal
@pytest.mark.filterwarnings("ignore::UserWarning")  # by which Gymnasium logs a worker's end
@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize(("good", "method"), [(0, "reset"), (1, "step")])
def test_the_error_names_environment_space_and_method(good, method, vectorization, registered):
    registered(good=good)
    task = GymnasiumTask(NAME, batch=2, vectorization=vectorization)
    try:
        with pytest.raises(DataError) as caught:
            begin_and_act(task)
    finally:
        close(task)
    assert str(caught.value) == (
        f"an observation of `{NAME}` must fit the environment's own space; found `{method}` gave "
        "the shape (3,) instead of (2,). Correct the environment, or its `observation_space`. "
        "[data-defects]"
    )


BOX = Box(0.0, 1.0, (2,), np.float32)


@pytest.mark.parametrize(
    ("space", "observation", "problem"),
    [
        (BOX, np.zeros(2, np.float64), ""),  # another type of number is common
        (BOX, [0.0, 1.0], ""),
        (BOX, 1.0, "the shape () instead of (2,)"),
        (BOX, np.zeros((1, 2)), "the shape (1, 2) instead of (2,)"),
        (BOX, [[0.0], [0.0, 1.0]], "a value of the type list of unequal rows instead of the shape"),
        (BOX, None, "a value of the type NoneType instead of numbers of the shape (2,)"),
        (Discrete(3), np.int64(1), ""),
        (Discrete(3), np.zeros(1, np.int64), "the shape (1,) instead of ()"),
        (Dict(a=BOX, b=Discrete(2)), {"a": np.zeros(2), "b": 1}, ""),
        (Dict(a=BOX), {"b": 1}, "['b'] instead of the keys ['a']"),
        (Dict(a=BOX), (1,), "a tuple of 1 instead of the keys ['a']"),
        (Dict(a=Tuple((BOX,))), {"a": (np.zeros(3),)}, "`a.0` with the shape (3,) instead of (2,)"),
        (Tuple((BOX, BOX)), (np.zeros(2),), "a tuple of 1 instead of a tuple of 2"),
    ],
)
def test_structure_and_shape_are_compared(space, observation, problem):
    found = misfit(space, observation)
    assert found.startswith(problem)
    assert bool(found) == bool(problem)
