"""Gymnasium environments as tasks: spaces, masks, infos, and processes of their own."""

import multiprocessing

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.spaces.utils import flatdim, flatten
from gymnasium.vector.utils import concatenate, create_empty_array
from gymnasium.wrappers import RecordEpisodeStatistics

import gymnasium_lab
from stormsail.core.errors import ConfigError, DataError, RangeError
from stormsail.core.task import (
    ContinuousActions,
    ImagePart,
    MultiDiscreteActions,
    account_names,
    action_mask,
    alternatives,
    episode_steps,
)
from stormsail.tasks.gymnasium_info import measured, numeric_names
from stormsail.tasks.gymnasium_spaces import ObservationColumns
from stormsail.tasks.gymnasium_task import GymnasiumTask

LAB = gymnasium_lab.FOLDER
F64 = np.dtype(np.float64)

SPACES = {
    "discrete": Discrete(4),
    "started": Discrete(3, start=-2),
    "numbers": Box(-1.0, 1.0, (3,)),
    "single": Box(-np.inf, np.inf, ()),
    "table": Box(-1.0, 1.0, (2, 3)),
    "small bytes": Box(0, 255, (4, 4, 3), np.uint8),
    "choices": MultiDiscrete([2, 3]),
    "started choices": MultiDiscrete([[2, 3], [4, 1]], start=[[5, 0], [-1, 7]]),
    "flags": MultiBinary((2, 2)),
    "keys": Dict({"b": Discrete(2), "a": Box(0.0, 1.0, (2,)), "c": Dict({"d": MultiBinary(2)})}),
    "places": Tuple((Discrete(2, start=1), Box(-1.0, 1.0, (1,)))),
}


def refuse(problem):
    return ValueError(problem)


def batched(space, count=5):
    """Return samples, and the same as a vector environment hands them over."""
    space.seed(3)
    samples = [space.sample() for _ in range(count)]
    return samples, concatenate(space, samples, create_empty_array(space, count))


@pytest.mark.parametrize("name", SPACES)
def test_columns_are_those_of_gymnasiums_flatten(name):
    space = SPACES[name]
    samples, batch = batched(space)
    columns = ObservationColumns(space, refuse)
    expected = np.stack([flatten(space, sample) for sample in samples]).astype(np.float64)
    assert np.array_equal(columns(batch, F64), expected)
    names = columns.layout.names
    assert len(set(names)) == len(names) == columns.layout.size == flatdim(space)


def test_names_say_where_a_column_comes_from_and_which_are_left_unscaled():
    layout = ObservationColumns(gymnasium_lab.NESTED, refuse).layout
    hot = ("gear=-1", "gear=0", "gear=1")
    rest = tuple(f"rest.0_{name}" for name in ("0=0", "0=1", "1=0", "1=1", "1=2"))
    flags = ("rest.1_0", "rest.1_1")
    numbers = tuple(f"position_{i}" for i in range(4))
    assert layout.names == (*hot, *numbers, *rest, *flags, "rest.2.deep", "speed")
    assert layout.unscaled == (*hot, *rest, *flags)
    assert layout.images == (ImagePart("camera", 3, 9, 8),)
    assert layout.size == 16 + 3 * 9 * 8


def test_names_of_a_vector_are_those_of_older_agents():
    assert ObservationColumns(Box(-1.0, 1.0, (2,)), refuse).layout.names == (
        "observation_0",
        "observation_1",
    )


def test_equal_names_of_different_keys_are_told_apart():
    space = Dict({"a": Box(0.0, 1.0, (2,)), "a_0": Box(0.0, 1.0, (1,))})
    assert ObservationColumns(space, refuse).layout.names == ("a_0#0", "a_1#1", "a_0#2")


@pytest.mark.parametrize("first", [False, True])
def test_an_image_follows_the_other_columns_with_channels_first_between_0_and_1(first):
    shape = (3, 9, 8) if first else (9, 8, 3)
    space = Dict({"a": Box(0, 255, shape, np.uint8), "b": Box(-1.0, 1.0, (2,))})
    samples, batch = batched(space)
    seen = ObservationColumns(space, refuse)(batch, F64)
    for row, sample in zip(seen, samples, strict=True):
        assert np.array_equal(row[:2], sample["b"].astype(np.float64))
        pixels = sample["a"] / 255.0
        pixels = pixels if first else np.moveaxis(pixels, -1, 0)
        assert np.array_equal(row[2:].reshape(3, 9, 8), pixels)


def test_what_counts_as_an_image():
    def image(*arguments):
        layout = ObservationColumns(Box(*arguments), refuse).layout
        return [(part.channels, part.height, part.width) for part in layout.images]

    assert image(0, 255, (8, 12), np.uint8) == [(1, 8, 12)]
    assert image(-1.0, 1.0, (8, 9, 2)) == [(2, 8, 9)]
    assert image(-np.inf, np.inf, (8, 9, 2)) == []  # no bounds to scale it by
    assert image(-1.0, 1.0, (8, 9)) == []
    assert image(0, 255, (7, 8, 3), np.uint8) == []
    assert image(0, 255, (128,), np.uint8) == []


def test_a_class_outside_of_its_space_is_refused():
    with pytest.raises(DataError, match="`observation` must be one of its classes"):
        ObservationColumns(Discrete(3, start=1), refuse)(np.array([1, 0]), F64)


@pytest.mark.parametrize(
    ("name", "columns", "actions"),
    [("Blackjack-v1", 32 + 11 + 2, 2), ("Taxi-v4", 500, 6), ("FrozenLake-v1", 16, 4),
     ("CliffWalking-v1", 48, 4), ("CartPole-v1", 4, 2)],
)  # fmt: skip
def test_environments_of_gymnasium(name, columns, actions):
    task = GymnasiumTask(name, batch=2)
    state, observation = task.reset(torch.Generator().manual_seed(0))
    assert (observation.shape, task.actions.count) == ((2, columns), actions)
    action = torch.zeros(2, dtype=torch.int64)
    if action_mask(task, state) is not None:
        action = action_mask(task, state).int().argmax(-1)
    _, step = task.step(state, action, torch.Generator())
    if columns != 4:  # one-hots: one for each class that is shown
        assert step.observation.sum(-1).tolist() == [3.0 if columns == 45 else 1.0] * 2
    task.close()


def stepped(name, action):
    """Return what two environments were given for an action of the task."""
    task = GymnasiumTask(LAB + name, batch=2)
    state, _ = task.reset(torch.Generator().manual_seed(0))
    task.step(state, action, torch.Generator())
    given = [env.unwrapped.given for env in task._env.envs]
    task.close()
    return task.actions, given


def test_choices_are_given_from_their_start_in_the_shape_of_the_space():
    _, given = stepped("Started-v0", torch.tensor([0, 2]))
    assert given == [5, 7]
    actions, given = stepped("Table-v0", torch.tensor([[0, 0, 0, 0], [1, 2, 3, 4]]))
    assert actions == MultiDiscreteActions((2, 3, 4, 5))
    assert [x.tolist() for x in given] == [[[1, 0], [0, -2]], [[2, 2], [3, 2]]]
    actions, given = stepped("MultiBinaryActions-v0", torch.tensor([[0, 1, 1, 0], [1, 1, 0, 0]]))
    assert actions == MultiDiscreteActions((2, 2, 2, 2))
    assert [x.tolist() for x in given] == [[[0, 1], [1, 0]], [[1, 1], [0, 0]]]


def test_numbers_are_given_in_the_shape_of_the_space_and_within_its_bounds():
    action = torch.tensor([[0.5, 0.0, 2.5, 1.0], [-9.0, 9.0, 9.0, -9.0]])
    actions, given = stepped("Plane-v0", action)
    assert actions == ContinuousActions((-1.0, 0.0, 2.0, -3.0), (1.0, 5.0, 3.0, 3.0))
    assert [x.tolist() for x in given] == [[[0.5, 0.0], [2.5, 1.0]], [[-1.0, 5.0], [3.0, -3.0]]]
    assert given[0].dtype == np.float32


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Unbounded", "the action space Box(-1.0, inf, (2,), float32) without finite bounds"),
        ("WholeNumbers", "the action space Box(0, 3, (2,), int64) of whole numbers, which are a "
         "MultiDiscrete"),
        ("Pairs", "the action space Tuple(Discrete(2), Discrete(2))"),
        ("Wide", "100800 observed columns, where 1 to 65536 are allowed"),
    ],
)  # fmt: skip
def test_other_spaces_are_refused_in_words(name, problem):
    with pytest.raises(ConfigError) as caught:
        GymnasiumTask(f"{LAB}{name}-v0", batch=2)
    assert str(caught.value) == (
        "`task.name` must name a Gymnasium environment that shows Box, Discrete, MultiDiscrete, "
        "MultiBinary, Dict or Tuple and takes Discrete, MultiDiscrete, MultiBinary or a Box with "
        f"finite bounds, and `{LAB}{name}-v0` is none; found {problem}. Wrap it so that it has "
        "such spaces, and register the wrapped one. [config-value]"
    )


@pytest.mark.refusal
def test_an_id_that_gymnasium_has_no_more_is_no_matter_of_spaces():
    with pytest.raises(ConfigError) as caught:
        GymnasiumTask("CartPole-v9", batch=1)
    assert "must name an environment that Gymnasium has, and `CartPole-v9` is none" in str(
        caught.value
    )
    assert "Correct the id" in caught.value.remedy
    assert ".." not in str(caught.value)


@pytest.mark.refusal
def test_words_and_unknown_ids_are_refused():
    with pytest.raises(ConfigError, match=r"found the observation space Text\(1, 3"):
        GymnasiumTask(f"{LAB}Words-v0", batch=1)
    with pytest.raises(
        ConfigError, match="found Gymnasium's answer: Environment `Nothing` doesn't"
    ):
        GymnasiumTask("Nothing-v0", batch=1)


@pytest.mark.refusal
def test_a_choice_that_is_not_on_offer_is_refused():
    with pytest.raises(RangeError) as caught:
        stepped("Table-v0", torch.tensor([[0, 0, 0, 0], [1, 3, 3, 4]]))
    assert str(caught.value) == (
        "every `action` must lie between 0 and [1, 2, 3, 4]; found [1, 3, 3, 4] in environment 1. "
        "Choose among the actions of each dimension, counted from 0. [out-of-range]"
    )


# --- masks


def test_the_mask_of_a_row_is_that_of_its_observation():
    task = GymnasiumTask(f"{LAB}Countdown-v0", batch=2)
    state, seen = task.reset(torch.Generator().manual_seed(0))
    rows, masks = [seen], [action_mask(task, state)]
    for _ in range(9):
        action = masks[-1].int().argmax(-1)
        state, step = task.step(state, action, torch.Generator())
        rows.append(step.observation)
        masks.append(action_mask(task, state))
    task.close()
    counts = [int(row[0].argmax()) for row in rows]
    assert counts == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    allowed = {0: [1, 1, 0, 0], 1: [0, 1, 1, 0], 2: [0, 0, 1, 1], 3: [1, 1, 1, 1]}
    # 3 is shown by the step that ends: what is done then is ignored, so everything is allowed
    assert [mask[0].int().tolist() for mask in masks] == [allowed[count] for count in counts]


def test_the_mask_of_taxi_is_its_own():
    task = GymnasiumTask("Taxi-v4", batch=3)
    state, _ = task.reset(torch.Generator().manual_seed(1))
    for _ in range(20):
        own = [env.unwrapped.action_mask(env.unwrapped.s) for env in task._env.envs]
        mask = action_mask(task, state)
        assert mask.int().tolist() == [row.tolist() for row in own]
        state, _ = task.step(state, mask.float().multinomial(1)[:, 0], torch.Generator())
    task.close()


def test_masks_of_several_choices_come_as_a_tuple():
    task = GymnasiumTask(f"{LAB}TwoChoices-v0", batch=2)
    state, _ = task.reset(torch.Generator().manual_seed(1))
    assert action_mask(task, state).int().tolist() == [[1, 1, 1, 1, 1, 0]] * 2
    task.close()


def test_a_task_without_masks_has_none():
    task = GymnasiumTask("CartPole-v1", batch=2)
    state, _ = task.reset(torch.Generator().manual_seed(1))
    assert action_mask(task, state) is None
    assert state.mask.shape == (2, 0)
    task.close()


def first_step(task):
    state, _ = task.reset(torch.Generator().manual_seed(1))
    task.step(state, torch.zeros(2, dtype=torch.int64), torch.Generator())


MUST = (
    '`info["action_mask"]` must have 4 entries, one for each class of a discrete action, and allow '
    "one or more of each choice in every state that is acted in; found "
)
WITH_EVERY = 'must give `info["action_mask"]` with every observation, or never; found it given '


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ("Empty", f"{MUST}no allowed class in environment 0, [False, False, False, False]"),
        ("Short", f"{MUST}3 entries in environment 0"),
        ("Sometimes", f"{WITH_EVERY}not in every state that is acted in"),
        ("Late", f"{WITH_EVERY}by a step, but not by `reset`"),
    ],
)
def test_a_mask_that_cannot_be_kept_is_refused(form, problem, monkeypatch):
    # the single environment that names are read from would refuse its own masks
    monkeypatch.setattr("stormsail.tasks.gymnasium_info.PROBE_STEPS", 0)
    task = GymnasiumTask(f"{LAB}Countdown{form}-v0", batch=2)
    with pytest.raises(DataError) as caught:
        first_step(task)
    assert problem in str(caught.value)
    task.close()


# --- infos


def test_numbers_of_the_info_are_columns_and_nothing_else_is():
    env = gymnasium.make(f"{LAB}Countdown-v0")
    assert numeric_names(env) == ("count", "episode/r", "last", "odd")
    task = GymnasiumTask(f"{LAB}Countdown-v0", batch=2)
    assert task.info_names == ("count", "episode/r", "last", "odd")
    state, _ = task.reset(torch.Generator().manual_seed(0))
    rows = []
    for _ in range(4):
        action = action_mask(task, state).int().argmax(-1)
        state, step = task.step(state, action, torch.Generator())
        rows.append(step.info.measured[1].tolist())
    task.close()
    nan = float("nan")
    expected = [[1, nan, nan, 1], [2, nan, nan, 0], [3, 6, 0.5, 1], [0, nan, nan, 0]]
    np.testing.assert_array_equal(rows, expected)


def test_a_number_that_only_some_environments_report_is_unknown_in_the_others():
    infos = {
        "a": np.array([1.0, 0.0, 3.0]), "_a": np.array([True, False, True]),
        "b": np.array([None, True, "x"], dtype=object), "_b": np.array([False, True, True]),
        "c": {"d": np.array([7, 8, 9]), "_d": np.array([True, True, False])},
    }  # fmt: skip
    nan = float("nan")
    expected = [[1, nan, 7, nan], [nan, 1, 8, nan], [3, nan, nan, nan]]
    np.testing.assert_array_equal(measured(infos, ("a", "b", "c/d", "e/f"), 3), expected)


def test_statistics_of_episodes_are_reported_without_the_wall_clock():
    env = RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))
    assert numeric_names(env) == ("episode/l", "episode/r")


# --- processes


def played(vectorization):
    task = GymnasiumTask("CartPole-v1", batch=2, vectorization=vectorization)
    try:
        generator = torch.Generator().manual_seed(4)
        state, seen = task.reset(generator)
        trace = [seen]
        for t in range(40):
            action = torch.tensor([t % 2, (t // 3) % 2])
            state, step = task.step(state, action, generator)
            trace += [step.observation, step.reward, step.terminated, step.truncated, state.over]
        return trace
    finally:
        task.close()


def test_processes_of_their_own_change_no_bit_and_are_ended():
    before = {child.pid for child in multiprocessing.active_children()}
    pairs = list(zip(played("sync"), played("async"), strict=True))
    assert all(torch.equal(one, other) for one, other in pairs)
    assert any(bool(one.any()) for one, _ in pairs[5::5])  # an episode ended on the way
    assert {child.pid for child in multiprocessing.active_children()} == before


@pytest.mark.filterwarnings("ignore")  # Gymnasium logs the error of a worker as a warning
def test_processes_are_ended_after_an_error_too():
    before = {child.pid for child in multiprocessing.active_children()}
    task = GymnasiumTask("CartPole-v1", batch=1, vectorization="async")
    task.reset(torch.Generator().manual_seed(1))
    workers = task._env.processes
    workers[0].terminate()  # as the kernel does when memory is short
    workers[0].join(5.0)
    with pytest.raises((EOFError, OSError)):
        task._env.step(np.zeros(1, dtype=np.int64))
    task.close()
    task.close()
    assert not any(worker.is_alive() for worker in workers)
    assert {child.pid for child in multiprocessing.active_children()} == before


@pytest.mark.parametrize(("name", "steps"), [("CartPole-v1", 500), (f"{LAB}Echo-v0", None)])
def test_the_longest_episode_is_that_of_the_registration(name, steps):
    task = GymnasiumTask(name, batch=1)
    assert episode_steps(task) == steps
    assert account_names(task) == ()
    state, _ = task.reset(torch.Generator().manual_seed(0))
    assert alternatives(task, state, torch.arange(2)) is None
    task.close()
