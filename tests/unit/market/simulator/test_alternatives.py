"""What each action would make of the coming bar, in numbers worked out by hand."""

import math

import pytest
import torch

from simulator_lab import at, draws, market, settings, simulator, steady, wild_panel
from stormsail.core import task
from stormsail.core.errors import DtypeError, ShapeError
from stormsail.market.features import ACCOUNT_FEATURES
from stormsail.market.simulator import State

COLUMN = {name: index for index, name in enumerate(ACCOUNT_FEATURES)}


def weights(*values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


def logs(*values):
    return [math.log(value) for value in values]


def test_the_reward_of_each_weight_is_that_of_this_bar():
    # 10,000 at 100, then a bar from 100 to 110, then one to 55. Long 1: 11,000; short .5: 9,500.
    panel = market(
        [*steady([100.0]), (100, 110, 100, 110), (110, 110, 55, 55), *steady([55.0] * 3)]
    )
    sim = simulator(panel, settings(episode_bars=3))
    outcomes = sim.alternatives(at(sim), weights(1.0, 0.0, -0.5))
    assert outcomes.reward.shape == outcomes.terminated.shape == (1, 3)
    assert outcomes.reward[0].tolist() == pytest.approx(logs(1.1, 1.0, 0.95), abs=1e-15)
    assert outcomes.terminated[0].tolist() == [False] * 3


def test_each_alternative_starts_from_the_position_that_is_held():
    # 100 long since 100, fee 1 %: equity 9,900.99. The bar goes from 110 to 121.
    panel = market([*steady([100.0, 100.0]), (110, 121, 110, 121), *steady([121.0] * 4)])
    sim = simulator(panel, settings(episode_bars=4, costs__taker_fee=0.01))
    state, _ = sim.transition(at(sim), weights(1.0), draws(sim))
    held, cash = state.quantity.item(), state.cash.item()
    assert (held, cash) == (pytest.approx(10_000 / 101), pytest.approx(0.0, abs=1e-9))
    outcomes = sim.alternatives(state, weights(0.0, math.nan))
    closed = held * 110 * 0.99  # sold at the open, fee paid
    kept = held * 121
    before = held * 100
    assert outcomes.reward[0].tolist() == pytest.approx(
        logs(closed / before, kept / before), abs=1e-14
    )
    shown = outcomes.account[0]
    assert shown[:, COLUMN["position"]].tolist() == pytest.approx([0.0, 1.0], abs=1e-14)
    unrealised = [0.0, (121 - 100) / 121]
    assert shown[:, COLUMN["unrealised"]].tolist() == pytest.approx(unrealised, abs=1e-14)
    assert shown[:, COLUMN["time_in_position"]].tolist() == [0.0, 0.5]
    assert shown[:, COLUMN["time_left"]].tolist() == [0.5, 0.5]
    growth = logs(closed / 10_000, kept / 10_000)
    assert shown[:, COLUMN["log_equity"]].tolist() == pytest.approx(growth, abs=1e-14)


def test_turning_pays_the_fee_of_both_legs():
    # From 1 to -1 at 100 and a fee of 1 %: 10,000 / 1.01 / 100 sold, and as much short after costs.
    panel = market(steady([100.0] * 5))
    sim = simulator(panel, settings(episode_bars=3, costs__taker_fee=0.01))
    state, _ = sim.transition(at(sim), weights(1.0), draws(sim))
    equity = state.equity.item()
    # D = 2 E / (1 + s w c) with s = -1, w = -1, c = .01; the fee is .01 D
    paid = 0.01 * 2 * equity / 1.01
    outcomes = sim.alternatives(state, weights(-1.0, 1.0))
    expected = [math.log((equity - paid) / equity), 0.0]
    assert outcomes.reward[0].tolist() == pytest.approx(expected, abs=1e-13)


def test_ruin_ends_some_alternatives_with_its_penalty_and_the_clip_is_last():
    # 3 times long through a fall by 30 %: 1,000 left, the floor. 1 times: 7,000. Flat: 10,000.
    panel = market([*steady([100.0]), (100, 100, 70, 70), *steady([70.0] * 4)])
    config = settings(
        leverage=3.0, episode_bars=3, ruin_penalty=0.4, stops__equity_floor=0.1,
        margin__maintenance=0.0,
    )  # fmt: skip
    asked = weights(3.0, 1.0, 0.0)
    sim = simulator(panel, config)
    outcomes = sim.alternatives(at(sim), asked)
    expected = [math.log(0.1) - 0.4, math.log(0.7), 0.0]
    assert outcomes.reward[0].tolist() == pytest.approx(expected, abs=1e-12)
    assert outcomes.terminated[0].tolist() == [True, False, False]
    clipped = simulator(panel, config.replace(reward_clip=0.3))
    assert clipped.alternatives(at(clipped), asked).reward[0].tolist() == [-0.3, -0.3, 0.0]


def test_a_drawdown_stop_ends_an_alternative_by_its_own_peak():
    panel = market([*steady([100.0]), (100, 100, 85, 85), *steady([85.0] * 4)])
    sim = simulator(panel, settings(episode_bars=3, stops__drawdown=0.1))
    outcomes = sim.alternatives(at(sim), weights(1.0, 0.5, -1.0))
    assert outcomes.terminated[0].tolist() == [True, False, False]
    drawdown = outcomes.account[0, :, COLUMN["drawdown"]].tolist()
    assert drawdown == pytest.approx([0.15, 0.075, 0.0], abs=1e-14)


def test_the_last_bar_of_an_episode_is_valued_too():
    panel = market(steady([100.0, *[110.0] * 5]))
    sim = simulator(panel, settings(episode_bars=3))
    state = at(sim, last_row=1)
    outcomes = sim.alternatives(state, weights(0.0, 1.0))
    assert outcomes.account[0, :, COLUMN["time_left"]].tolist() == [0.0, 0.0]
    state, step = sim.transition(state, weights(1.0), draws(sim))
    assert step.truncated.item()
    over = sim.alternatives(state, weights(0.0, 1.0))
    assert over.reward.tolist() == [[0.0, 0.0]]
    assert over.terminated.tolist() == [[False, False]]
    assert over.account.tolist() == [[[0.0] * 6] * 2]


def test_faults_of_the_feed_leave_the_account_columns_alone():
    panel = wild_panel(5, rows=40)
    faulty = settings(episode_bars=20, degrade__delay_prob=1.0, degrade__max_delay_bars=3)
    shown = []
    for config in (settings(episode_bars=20), faulty):
        sim = simulator(panel, config, batch=3)
        state, _ = sim.place(torch.arange(3), torch.full((3,), 4))
        for index in range(5):
            outcomes = sim.alternatives(state, weights(-1.0, 0.5))
            state, step = sim.transition(state, weights(0.5, 0.5, 0.5), draws(sim, index))
            assert torch.equal(outcomes.account[:, 1], step.observation[:, -6:])
        shown.append((outcomes, step))
    (plain, seen), (same, delayed) = shown
    assert torch.equal(plain.account, same.account)
    assert torch.equal(plain.reward, same.reward)
    assert not torch.equal(seen.observation[:, :-6], delayed.observation[:, :-6])


@pytest.mark.parametrize("action", ["continuous", "levels"])
def test_a_bad_action_is_the_held_position(action):
    panel = market([*steady([100.0, 100.0]), (100, 120, 100, 120), *steady([120.0] * 4)])
    sim = simulator(panel, settings(episode_bars=4, action=action))
    buy = torch.tensor([2]) if action == "levels" else weights(1.0)
    state, _ = sim.transition(at(sim), buy, draws(sim))
    bad = torch.tensor([-1, 3, 2]) if action == "levels" else weights(math.inf, 1.5, 1.0)
    assert sim.alternatives(state, bad).reward[0].tolist() == pytest.approx(logs(1.2, 1.2, 1.2))


def test_the_members_are_read_through_the_functions_of_a_task():
    sim = simulator(wild_panel(1, rows=40), settings(episode_bars=7), batch=2)
    assert task.account_names(sim) == ACCOUNT_FEATURES
    assert sim.observation_names[-6:] == ACCOUNT_FEATURES
    assert task.episode_steps(sim) == 7
    state = at(sim, row=3)
    read = task.alternatives(sim, state, weights(0.5, -0.5))
    own = sim.alternatives(state, weights(0.5, -0.5))
    assert all(torch.equal(a, b) for a, b in zip(read, own, strict=True))
    assert own.account.shape == (2, 2, 6)


def test_an_episode_ends_within_its_steps():
    sim = simulator(wild_panel(1, rows=40), settings(episode_bars=7), batch=5)
    generator = torch.Generator().manual_seed(3)
    state, _ = sim.reset(generator)
    for index in range(sim.episode_steps):
        assert not state.done.any(), index
        state, _ = sim.step(state, weights(*[0.1] * 5), generator)
    assert state.done.all()


@pytest.mark.parametrize("action", ["continuous", "levels"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_never_reads_a_value(action, dtype):
    sim = simulator(
        wild_panel(1, rows=60), settings(episode_bars=8, action=action), batch=4, dtype=dtype
    )
    state = at(sim, row=3)
    given = torch.arange(3) if action == "levels" else weights(-1.0, 0.0, 1.0, dtype=dtype)
    mode = torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        fake = State(*(mode.from_tensor(tensor) for tensor in state))
        outcomes = sim.alternatives(fake, mode.from_tensor(given))
    assert outcomes.reward.shape == outcomes.terminated.shape == (4, 3)
    assert outcomes.account.shape == (4, 3, 6)
    assert outcomes.reward.dtype == outcomes.account.dtype == dtype
    assert outcomes.terminated.dtype == torch.bool


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it loads itself
def test_compiled_it_is_one_graph_and_the_same_numbers():
    panel = wild_panel(1, rows=60)
    sim = simulator(panel, settings(episode_bars=8, costs__taker_fee=0.001), batch=16)
    compiled = torch.compile(sim.alternatives, fullgraph=True, dynamic=False, backend="aot_eager")
    state, _ = sim.reset(torch.Generator().manual_seed(1))
    offered = weights(-1.0, -0.5, 0.0, 0.5, 1.0)
    for index in range(10):
        eager, graph = sim.alternatives(state, offered), compiled(state, offered)
        for own, other in zip(eager, graph, strict=True):
            torch.testing.assert_close(own, other, rtol=1e-13, atol=1e-13)
        state, _ = sim.transition(state, offered[index % 5].expand(16), draws(sim, index))
    torch._dynamo.reset()


def test_nothing_of_the_state_is_changed():
    sim = simulator(wild_panel(1, rows=60), settings(episode_bars=8), batch=4)
    state = at(sim, row=3)
    kept = State(*(tensor.clone() for tensor in state))
    sim.alternatives(state, weights(-1.0, 1.0))
    assert all(torch.equal(a, b) for a, b in zip(state, kept, strict=True))


@pytest.mark.refusal
@pytest.mark.parametrize("shape", [(), (2, 1), (1, 2, 3)])
def test_actions_of_another_shape_are_refused(shape):
    sim = simulator(wild_panel(1, rows=40), settings(episode_bars=8), batch=2)
    with pytest.raises(ShapeError, match="must have the shape \\[K\\]"):
        sim.alternatives(at(sim, row=3), torch.zeros(shape, dtype=torch.float64))


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("action", "dtype"), [("levels", torch.int32), ("continuous", torch.float32)]
)
def test_actions_of_another_type_are_refused(action, dtype):
    sim = simulator(wild_panel(1, rows=40), settings(episode_bars=8, action=action), batch=2)
    with pytest.raises(DtypeError, match="Convert it with"):
        sim.alternatives(at(sim, row=3), torch.zeros(2, dtype=dtype))
