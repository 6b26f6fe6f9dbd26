"""Properties that every control task has, whatever it simulates."""

import pytest
import torch
from torch import Tensor

from stormsail.core.errors import ChoiceError, DtypeError, RangeError, ShapeError
from stormsail.core.task import account_names, alternatives, episode_steps
from stormsail.tasks import NAMES, CartPole, ControlState, make

by_name = pytest.mark.parametrize("name", NAMES)


def seeded(seed, device="cpu"):
    return torch.Generator(device).manual_seed(seed)


def some_action(task, generator):
    """Return actions of which the continuous ones often lie out of bounds."""
    if task.actions.count == 1:
        shape = (task.batch, 1)
        return 2 * torch.randn(
            shape, generator=generator, dtype=task.dtype, device=generator.device
        )
    return torch.randint(
        task.actions.count, (task.batch,), generator=generator, device=generator.device
    )


def tensors(state, step):
    return [*state, *step[:4], *step.info]


def episodes(name, *, seed, steps, batch=8, dtype=torch.float32, device="cpu"):
    task = make(name, batch=batch, dtype=dtype, device=device)
    generator, choices = seeded(seed, device), seeded(seed + 1, device)
    state, _ = task.reset(generator)
    # close to their limit, so that new starts are part of what is compared
    state = state._replace(elapsed=state.elapsed + task.limit - steps // 2)
    rows = []
    for _ in range(steps):
        state, step = task.step(state, some_action(task, choices), generator)
        rows.append(tensors(state, step))
    return [torch.stack(column) for column in zip(*rows, strict=True)]


@by_name
def test_the_same_seed_gives_the_same_bytes(name):
    first = episodes(name, seed=3, steps=40)
    again = episodes(name, seed=3, steps=40)
    other = episodes(name, seed=4, steps=40)
    assert [part.numpy().tobytes() for part in first] == [part.numpy().tobytes() for part in again]
    assert not torch.equal(first[0], other[0])
    # Recall ends by an answer always, all others are near their limit.
    assert first[5 if name == "Recall-v0" else 6].any(), "no new start was compared"


@by_name
def test_the_generator_moves_on_alike_whether_or_not_an_episode_starts(name):
    task = make(name, batch=3)
    state, _ = task.reset(seeded(0))
    after = []
    for over in (torch.tensor([False] * 3), torch.tensor([True, False, True])):
        generator = seeded(1)
        task.step(state._replace(over=over), some_action(task, seeded(2)), generator)
        after.append(generator.get_state())
    assert torch.equal(*after)


@by_name
def test_a_batch_is_many_single_environments(name):
    task, single = (
        make(name, batch=5, dtype=torch.float64),
        make(name, batch=1, dtype=torch.float64),
    )
    state, _ = task.reset(seeded(0))
    state = state._replace(over=torch.tensor([False, True, False, False, True]))
    action = some_action(task, seeded(1))
    uniform = torch.rand(5, len(task.physical_names), generator=seeded(2), dtype=torch.float64)
    together = tensors(*task.transition(state, action, uniform))
    for row in range(5):
        part = slice(row, row + 1)
        alone = tensors(
            *single.transition(
                ControlState(*(tensor[part] for tensor in state)), action[part], uniform[part]
            )
        )
        for whole, own in zip(together, alone, strict=True):
            torch.testing.assert_close(whole[part], own, rtol=1e-13, atol=1e-15)


@by_name
def test_it_leaves_its_arguments_alone(name):
    task = make(name, batch=4)
    state, _ = task.reset(seeded(0))
    action = some_action(task, seeded(1))
    given = [*state, action]
    kept = [tensor.clone() for tensor in given]
    task.step(state, action, seeded(2))
    assert all(map(torch.equal, given, kept))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it loads itself
@by_name
def test_it_compiles_without_a_graph_break(name):
    task = make(name, batch=6, dtype=torch.float64)
    state, _ = task.reset(seeded(0))
    state = state._replace(
        over=torch.tensor([False, True] * 3), elapsed=torch.tensor([0, 7, task.limit - 1] * 2)
    )
    action = some_action(task, seeded(1))
    uniform = torch.rand(6, len(task.physical_names), generator=seeded(2), dtype=torch.float64)
    compiled = torch.compile(task.transition, fullgraph=True, backend="aot_eager")
    actual = tensors(*compiled(state, action, uniform))
    torch._dynamo.reset()
    expected = tensors(*task.transition(state, action, uniform))
    torch.testing.assert_close(actual, expected, rtol=1e-14, atol=1e-15)


def faked(mode, value):
    if isinstance(value, Tensor):
        return mode.from_tensor(value)
    return type(value)(*(faked(mode, part) for part in value))


@by_name
def test_a_transition_never_reads_a_value(name):
    # Fake tensors have shapes but no numbers: reading one raises, as it would wait on a GPU.
    real = make(name, batch=4)
    state, _ = real.reset(seeded(0))
    action = some_action(real, seeded(1))
    uniform = torch.rand(4, len(real.physical_names))
    mode = torch._subclasses.FakeTensorMode()
    with mode:
        task = make(name, batch=4)
        step = task.transition(faked(mode, state), faked(mode, action), faked(mode, uniform))
    expected = tensors(*real.transition(state, action, uniform))
    assert [(part.shape, part.dtype) for part in tensors(*step)] == [
        (part.shape, part.dtype) for part in expected
    ]


def test_fake_tensors_notice_the_look_that_a_step_on_the_cpu_takes():
    mode = torch._subclasses.FakeTensorMode()
    state, _ = make("CartPole-v1", batch=4).reset(seeded(0))
    with mode:
        task = make("CartPole-v1", batch=4)
        with pytest.raises(torch._subclasses.fake_tensor.DataDependentOutputException):
            task.step(faked(mode, state), torch.zeros(4, dtype=torch.int64), None)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@by_name
def test_a_step_is_captured_and_agrees_with_the_cpu(name):
    rows = episodes(name, seed=3, steps=4, batch=64, dtype=torch.float64, device="cuda")
    assert all(part.is_cuda for part in rows)
    task = make(name, batch=64, dtype=torch.float64, device="cuda")
    generator = seeded(0, "cuda")
    state, _ = task.reset(generator)
    state = state._replace(over=torch.arange(64, device="cuda") % 3 == 0)
    action = some_action(task, seeded(1, "cuda"))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        task.step(state, action, generator)
    finally:
        torch.cuda.set_sync_debug_mode("default")

    uniform = torch.rand(64, len(task.physical_names), dtype=torch.float64, device="cuda")
    eager = tensors(*task.transition(state, action, uniform))
    on_cpu = make(name, batch=64, dtype=torch.float64).transition(
        ControlState(*(part.cpu() for part in state)), action.cpu(), uniform.cpu()
    )
    for ours, theirs in zip(eager, tensors(*on_cpu), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-10, atol=1e-10)

    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    generator.manual_seed(9)
    with torch.cuda.graph(graph):
        captured = tensors(*task.step(state, action, generator))
    generator.manual_seed(9)
    replays = []
    for _ in range(2):
        graph.replay()
        replays.append([part.clone() for part in captured])
    generator.manual_seed(9)
    for replay in replays:
        expected = tensors(*task.step(state, action, generator))
        assert all(map(torch.equal, replay, expected))
    assert not torch.equal(replays[0][0], replays[1][0]), "every replay draws new starts"


DISCRETE = torch.tensor([0, 5, -1, 1])


def test_where_nothing_can_be_refused_a_bad_index_is_clamped_and_counted():
    task = make("CartPole-v1", batch=4)
    state, _ = task.reset(seeded(0))
    uniform = torch.zeros(4, 4)
    after, step = task.transition(state, DISCRETE, uniform)
    mended, expected = task.transition(state, torch.tensor([0, 1, 0, 1]), uniform)
    assert step.info.bad_action.tolist() == [False, True, True, False]
    assert expected.info.bad_action.tolist() == [False] * 4
    assert torch.equal(after.physical, mended.physical)


def test_where_nothing_can_be_refused_a_bad_number_is_zero_and_counted():
    task = make("Pendulum-v1", batch=4)
    state, _ = task.reset(seeded(0))
    bad = torch.tensor([[float("nan")], [float("inf")], [-float("inf")], [9.0]])
    after, step = task.transition(state, bad, torch.zeros(4, 2))
    mended, expected = task.transition(
        state, torch.tensor([[0.0], [0.0], [0.0], [2.0]]), torch.zeros(4, 2)
    )
    assert step.info.bad_action.tolist() == [True, True, True, False]
    assert torch.equal(after.physical, mended.physical)
    assert torch.equal(step.reward, expected.reward)


@pytest.mark.refusal
def test_on_the_cpu_an_index_out_of_range_is_refused():
    task = make("Acrobot-v1", batch=4)
    state, _ = task.reset(seeded(0))
    ignored = state._replace(over=torch.tensor([False, True, False, False]))
    with pytest.raises(RangeError) as caught:
        task.step(ignored, DISCRETE, seeded(1))
    assert str(caught.value) == (
        "every `action` must lie in 0 to 2; found -1 in environment 2. "
        "Choose among 3 actions, counted from 0. [out-of-range]"
    )


@pytest.mark.refusal
def test_on_the_cpu_an_action_that_is_no_number_is_refused():
    task = make("MountainCarContinuous-v0", batch=2)
    state, _ = task.reset(seeded(0))
    with pytest.raises(RangeError) as caught:
        task.step(state, torch.tensor([[0.5], [float("nan")]]), seeded(1))
    assert str(caught.value) == (
        "every `action` must be finite; found [nan] in environment 1. "
        "Look for a policy whose mean or scale became NaN. [out-of-range]"
    )


@pytest.mark.refusal
@pytest.mark.parametrize("call", ["step", "transition"])
@pytest.mark.parametrize(
    ("name", "action", "kind", "words"),
    [
        (
            "CartPole-v1",
            torch.zeros(2, 1, dtype=torch.int64),
            ShapeError,
            "`action` must have the shape (2,); found action (2, 1). Pass one action for each "
            "environment; this task never broadcasts. [shape-mismatch]",
        ),
        (
            "CartPole-v1",
            torch.zeros(2),
            DtypeError,
            "`action` must be a tensor of torch.int64; found torch.float32. "
            "Convert it with `.to(torch.int64)`. [dtype-mismatch]",
        ),
        (
            "Pendulum-v1",
            torch.zeros(2),
            ShapeError,
            "`action` must have the shape (2, 1); found action (2,). Pass one action for each "
            "environment; this task never broadcasts. [shape-mismatch]",
        ),
        (
            "Pendulum-v1",
            torch.zeros(2, 1, dtype=torch.float64),
            DtypeError,
            "`action` must be a tensor of torch.float32; found torch.float64. "
            "Convert it with `.to(torch.float32)`. [dtype-mismatch]",
        ),
    ],
)
def test_an_action_of_another_form_is_refused(name, action, kind, words, call):
    task = make(name, batch=2)
    state, _ = task.reset(seeded(0))
    last = {"step": seeded(1), "transition": torch.zeros(2, len(task.low))}[call]
    with pytest.raises(kind) as caught:
        getattr(task, call)(state, action, last)
    assert str(caught.value) == words


@pytest.mark.refusal
def test_a_physical_state_of_another_form_is_refused():
    task = make("Pendulum-v1", batch=2)
    with pytest.raises(ShapeError) as caught:
        task.place(torch.zeros(2, 3))
    assert str(caught.value) == (
        "`physical` must have the shape (2, 2); found physical (2, 3). "
        "Pass angle, angular_velocity for each environment. [shape-mismatch]"
    )
    with pytest.raises(DtypeError) as caught:
        task.place(torch.zeros(2, 2, dtype=torch.float64))
    assert str(caught.value) == (
        "`physical` must be a tensor of torch.float32; found torch.float64. "
        "Convert it with `.to(torch.float32)`. [dtype-mismatch]"
    )


@pytest.mark.refusal
@pytest.mark.parametrize("batch", [0, -1, 2.0, True])
def test_a_batch_is_at_least_one(batch):
    with pytest.raises(RangeError) as caught:
        make("CartPole-v1", batch=batch)
    assert str(caught.value) == (
        f"`batch` must be a whole number of at least 1; found {batch!r}. "
        "Pass the number of environments. [out-of-range]"
    )


@pytest.mark.refusal
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
def test_physics_is_done_in_float32_or_float64(dtype):
    with pytest.raises(DtypeError) as caught:
        make("CartPole-v1", batch=1, dtype=dtype)
    assert str(caught.value) == (
        f"`dtype` must be torch.float32 or torch.float64; found {dtype}. "
        "Use torch.float32 to learn and torch.float64 to compare. [dtype-mismatch]"
    )


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("cartpole", "Did you mean `CartPole-v1`?"),
        ("CartPole-v0", "Did you mean `CartPole-v1`?"),
        ("PendulumNoVelocity-v1", "Did you mean `PendulumNoVel-v1`?"),
        ("Breakout", "Take one of these tasks."),
    ],
)
def test_an_unknown_task_is_refused_with_the_nearest_name(name, remedy):
    with pytest.raises(ChoiceError) as caught:
        make(name, batch=1)
    assert str(caught.value) == (
        "`name` must be one of Acrobot-v1, AcrobotNoVel-v1, CartPole-v1, CartPoleNoVel-v1, "
        "MountainCarContinuous-v0, MountainCarContinuousNoVel-v0, Pendulum-v1, PendulumNoVel-v1, "
        f"Recall-v0; found {name!r}. {remedy} [unknown-choice]"
    )


@pytest.mark.refusal
def test_only_what_is_observed_can_be_hidden():
    with pytest.raises(ChoiceError) as caught:
        CartPole(batch=1, hide=("velocities",))
    assert str(caught.value) == (
        "every name in `hide` must be one of position, velocity, angle, angular_velocity; "
        "found 'velocities'. Did you mean `velocity`? [unknown-choice]"
    )


@by_name
def test_a_control_task_says_how_long_an_episode_lasts_and_values_no_other_action(name):
    task = make(name, batch=2)
    state, _ = task.reset(seeded(0))
    assert episode_steps(task) == task.limit
    assert account_names(task) == ()
    assert alternatives(task, state, torch.arange(2)) is None
