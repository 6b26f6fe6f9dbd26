"""Worlds of `bench tails` with observed states: their steps, and their exact distributions."""

import math
from dataclasses import replace

import pytest
import torch

from oracles import markov_returns as oracle
from stormsail.bench.risk import tails as bench
from stormsail.bench.risk import tails_states as worlds
from stormsail.bench.risk.tails_garch import GARCH_STATES, one_bar
from stormsail.market.synthetic.garch_jump import GarchJumpConfig

ALL = (worlds.RUIN, worlds.TWO_MODES, worlds.HEAVY_SCALES, worlds.CLUSTERED)
NORMAL = (worlds.RUIN, worlds.TWO_MODES, worlds.CLUSTERED)


def by_name(values):
    return pytest.mark.parametrize("world", values, ids=lambda world: world.name)


def walk(task, steps, seed=0):
    """Return state and step after each of some steps."""
    generator = torch.Generator().manual_seed(seed)
    state, observation = task.reset(generator)
    action = torch.zeros(task.batch, dtype=torch.int64)
    results = [(state, observation)]
    for _ in range(steps):
        state, shown = task.step(state, action, generator)
        results.append((state, shown))
    return results


# ------------------------------------------------------------------------------- what is exact


def mixture(world, regime, left, gamma):
    regimes = [
        (one.drift, one.noise, [(jump.size, jump.chance, jump.ends) for jump in one.jumps])
        for one in world.regimes
    ]
    return oracle.parts(regimes, world.transition.tolist(), regime, left, gamma)


@by_name(NORMAL)
@pytest.mark.parametrize("left", [1, 4])
def test_a_state_has_the_distribution_of_all_its_paths(world, left):
    for regime in range(len(world.regimes)):
        paths = mixture(world, regime, left, 0.9)
        assert float(paths[0].sum()) == pytest.approx(1.0)
        known = world.truth(regime, left, gamma=0.9)
        assert (known.mean, known.spread) == pytest.approx(oracle.moments(paths), abs=1e-10)
        assert known.cvar(0.05) == pytest.approx(oracle.cvar(paths, 0.05), abs=1e-7)
        for value in (known.mean, known.mean - known.spread):
            share = known.below(torch.tensor(value, dtype=torch.float64))
            assert float(share) == pytest.approx(oracle.below(paths, value), abs=1e-10)


def test_the_ruin_of_the_note_is_nearly_this_one():
    """-8.86, -3.97 and -2.76 there, by a world that is described in words."""
    known = {
        (share, left): worlds.RUIN.truth(share, left, gamma=0.99).cvar(0.05)
        for share, left in ((2, 20), (2, 5), (1, 20))
    }
    assert known == pytest.approx({(2, 20): -8.8479, (2, 5): -3.9269, (1, 20): -2.7103}, abs=1e-4)
    noted = {(2, 20): -8.86, (2, 5): -3.97, (1, 20): -2.76}
    assert known == pytest.approx(noted, rel=0.02)


def test_a_sure_state_by_hand():
    """Without hazard 20 steps pay .1 ± .1: by the geometric sums of .99 and of .99²."""
    first = (1.0 - 0.99**20) / 0.01
    second = (1.0 - 0.99**40) / (1.0 - 0.99**2)
    known = worlds.RUIN.truth(0, 20, gamma=0.99)
    assert known.mean == pytest.approx(0.1 * first)
    assert known.spread == pytest.approx(0.1 * math.sqrt(second))
    assert known.cvar(0.05) == pytest.approx(known.mean - 2.0627128 * known.spread, abs=1e-6)


def test_events_are_losses_by_jumps_before_the_end():
    """8 % in 20 steps by definition; rare jumps 1 - .995 ** 5; noise always comes."""
    assert worlds.RUIN.event(2, 20) == pytest.approx(0.08)
    assert worlds.RUIN.event(2, 5) == pytest.approx(1.0 - 0.92**0.25)
    assert worlds.RUIN.event(0, 20) == 0.0
    assert worlds.TWO_MODES.event(1, 5) == pytest.approx(1.0 - 0.995**5)  # gains do not count
    assert worlds.HEAVY_SCALES.event(0, 1) == 1.0
    # two steps of a storm: spared with .97, and then with .999 or .97
    assert worlds.CLUSTERED.event(1, 2) == pytest.approx(1.0 - 0.97 * (0.25 * 0.999 + 0.75 * 0.97))


# ---------------------------------------------------------------------------------- the steps


@by_name(ALL)
def test_episodes_have_the_returns_of_the_formula(world):
    """Mean and spread within five standard errors; CVaR and a quantile of 40,000 and more."""
    task = world.task(150_000)
    results = walk(task, world.steps)
    first = results[0][0].regime
    total, alive = torch.zeros(task.batch).double(), torch.ones(task.batch).double()
    for step, (_, shown) in enumerate(results[1:]):
        total += 0.99**step * alive * shown.reward.double()
        alive *= (~shown.terminated).double()
    assert not alive.any()
    for regime in range(len(world.regimes)):
        known, sample = world.truth(regime, world.steps, gamma=0.99), total[first == regime]
        error = known.spread / math.sqrt(len(sample))
        assert float(sample.mean()) == pytest.approx(known.mean, abs=5.0 * error)
        points = known.quantiles(torch.tensor([0.05, 0.3, 0.9]))
        shares = [(sample <= point).double().mean().item() for point in points]
        assert shares == pytest.approx([0.05, 0.3, 0.9], abs=0.012)
        worst = sample.sort().values[: len(sample) // 20].mean()
        assert float(worst) == pytest.approx(known.cvar(0.05), rel=0.06)


def test_an_episode_ends_with_a_ruin_or_its_last_step_and_the_row_after_it_is_none():
    sure = worlds.Regime("sure", 1.0, 0.1, 0.1, (worlds.Jump(-10.0, 1.0, ends=True),))
    safe = worlds.Regime("safe", 0.0, 0.1, 0.1)
    world = worlds.StateWorld("two", (safe, sure), 2, ())
    results = walk(world.task(64), 3)
    ruined = results[0][0].regime == 1
    assert 10 < int(ruined.sum()) < 54
    first, second, third = (shown for _, shown in results[1:])
    assert torch.equal(first.terminated, ruined)
    assert bool((first.reward[ruined] < -9.0).all())
    assert bool((first.reward[~ruined].abs() < 1.0).all())
    assert first.info.sample_weight.tolist() == [1.0] * 64
    # after a ruin a new episode is shown and nothing paid; the others end with their second step
    assert torch.equal(second.terminated, ~ruined)
    assert torch.equal(second.info.sample_weight, (~ruined).float())
    assert not second.reward[ruined].any()
    assert second.observation[ruined, 1].tolist() == [1.0] * int(ruined.sum())
    assert second.observation[~ruined, 1].tolist() == [0.0] * int((~ruined).sum())
    assert torch.equal(third.info.sample_weight, ruined.float())
    assert not any(bool(shown.truncated.any()) for shown in (first, second, third))


def test_what_is_observed_is_the_regime_and_what_is_left():
    task = worlds.RUIN.task(200)
    assert task.observation_names == ("hazard", "left")
    (state, observation), (after, shown) = walk(task, 1)
    hazard = torch.tensor([0.0, 0.02, 0.08])[state.regime]
    assert torch.equal(observation, torch.stack([hazard, torch.ones(200)], -1))
    assert torch.equal(shown.observation[:, 0], hazard)
    assert shown.observation[:, 1].tolist() == pytest.approx([0.95] * 200)
    assert after.left.tolist() == [19] * 200


def test_regimes_follow_each_other_as_the_table_says():
    results = walk(worlds.CLUSTERED.task(40_000), 1)
    before, after = results[0][0].regime, results[1][0].regime
    moved = [(after[before == regime] == 1).double().mean().item() for regime in (0, 1)]
    assert moved == pytest.approx([0.05, 0.75], abs=0.015)


def test_a_judged_state_is_led_to_by_its_own_regime():
    (state,) = replace(worlds.TWO_MODES, judged=((2, 3),)).states(gamma=0.9)
    assert state.name == "often, 3 left"
    assert [seen.tolist() for seen in state.path] == [
        [[2.0, pytest.approx(share)]] for share in (1.0, 0.8, 0.6)
    ]
    assert state.event == pytest.approx(1.0 - 0.94**3)
    assert state.truth.cvar(0.05) == worlds.TWO_MODES.truth(2, 3, gamma=0.9).cvar(0.05)


# ------------------------------------------------------------------------------------- garch


def test_a_bar_has_the_moments_of_the_process():
    """Centre, variance and jumps by their formulas; the next variance has its mean."""
    process = GarchJumpConfig(jump_rate=0.2, drift=0.001)
    variance = torch.full((400_000,), 4e-4, dtype=torch.float64)
    paid, following = one_bar(process, variance, torch.Generator().manual_seed(0))
    exact = 4e-4 + 0.2 * (0.01**2 + 0.03**2)
    assert float(paid.mean()) == pytest.approx(0.001, abs=5.0 * math.sqrt(exact / 400_000))
    assert float(paid.var()) == pytest.approx(exact, rel=0.02)
    assert float(following.mean()) == pytest.approx(2e-6 + 0.98 * 4e-4, rel=0.005)
    # kurtosis of Student(8) is 4.5, so E (x² - 1)² is 3.5
    assert float((following - following.mean()).square().mean().sqrt()) == pytest.approx(
        0.06 * 4e-4 * math.sqrt(3.5), rel=0.05
    )


def test_the_drawn_truth_is_the_return_of_the_task_from_that_state():
    world = replace(GARCH_STATES, steps=3, draws=100_000, judged=((4.0, 3),))
    (state,) = world.states(gamma=0.9)
    assert state.name == "4 of the variance, 3 left"
    assert [seen.tolist() for seen in state.path] == [[[pytest.approx(math.log(4.0)), 1.0]]]
    task = world.task(100_000)
    generator = torch.Generator().manual_seed(5)
    started, _ = task.reset(generator)
    started = started._replace(variance=torch.full_like(started.variance, 4e-4))
    action = torch.zeros(task.batch, dtype=torch.int64)
    total, now = torch.zeros(task.batch).double(), started
    for step in range(3):
        now, shown = task.step(now, action, generator)
        total += 0.9**step * shown.reward.double()
    assert bool(shown.terminated.all())
    worst = float(total.sort().values[:5000].mean())
    assert state.truth.cvar(0.05) == pytest.approx(worst, rel=0.03)
    assert state.truth.spread == pytest.approx(float(total.std()), rel=0.03)
    assert state.truth.mean == pytest.approx(float(total.mean()), abs=6e-4)
    fresh, shown = task.step(now, action, generator)
    assert not shown.reward.any()
    assert not shown.info.sample_weight.any()
    assert fresh.left.tolist() == [3] * task.batch
    ratio = fresh.variance / 1e-4
    assert 1.0 / 9.0 <= float(ratio.min()) < 0.12
    assert 8.9 < float(ratio.max()) <= 9.0001
    assert float(ratio.log().mean()) == pytest.approx(0.0, abs=0.02)


# ----------------------------------------------------------------------------- what is measured

PLAN = replace(bench.Plan.quick(), state_rows=2048)


def test_every_judged_state_has_a_row_beside_its_truth():
    rows = bench.measure_states(worlds.TWO_MODES, bench.DEFAULT, PLAN, 3)
    states = worlds.TWO_MODES.states(gamma=0.9)
    assert [row.state for row in rows] == [state.name for state in states]
    for row, state in zip(rows, states, strict=True):
        assert (row.world, row.case, row.seed) == ("two-modes", bench.DEFAULT.name, 3)
        assert (row.event, row.true) == (state.event, state.truth.cvar(0.05))
        assert (row.true_mean, row.true_spread) == (state.truth.mean, state.truth.spread)
        larger = max(abs(row.true), state.truth.spread)
        assert row.error == pytest.approx((row.true - row.predicted) / larger)
        assert row.values == row.levels == ()
    assert len({row.predicted for row in rows}) == len(rows)


def test_an_error_is_relative_to_the_spread_where_cvar_is_near_nothing():
    assert bench._error(-5.0, -10.0, 3.0) == pytest.approx(-5.0 / -10.0 - 1.0)
    assert bench._error(0.3, 0.1, 0.4) == pytest.approx(-0.5)  # too good: understated
    assert bench._error(0.3, -0.1, 0.4) == pytest.approx(-1.0)
    assert bench._error(0.5, 1.0, 0.4) == pytest.approx(0.5)


def test_critics_are_trained_as_on_a_market_without_its_policy_and_memory():
    config = bench._state_settings(bench.Case("x", {"critic.num_quantiles": 16}), bench.Plan(), 4)
    assert (config.ppo.n_envs, config.ppo.n_steps, config.ppo.n_epochs) == (64, 128, 4)
    assert (config.ppo.learning_rate, config.ppo.total_steps) == (3e-4, 600_000)
    assert config.ppo.critic_grad_warmup_updates >= 600_000 // 8192 + 1
    assert (config.seed, config.critic.num_quantiles, config.network.memory) == (4, 16, "none")


def test_critics_with_memory_are_asked_after_the_episode_so_far():
    case = bench.Case("lstm", {"network.memory": "lstm"})
    rows = bench.measure_states(worlds.TWO_MODES, case, PLAN, 0)
    assert len(rows) == 6
    assert all(math.isfinite(row.predicted) for row in rows)
