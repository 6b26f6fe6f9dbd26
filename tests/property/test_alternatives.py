"""What other actions would have made of a bar is, bit for bit, what a step with them gives.

Each example draws a market with its rules, walks a batch of accounts through it, and before every
step compares each alternative with a step in which all accounts do that action.
"""

import numpy as np
import torch
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from simulator_lab import draws, settings, simulator, wild_panel
from stormsail.core import task

BATCH, STEPS, ROWS = 61, 9, 40
LETTERS = "ABC"
seeds = st.integers(0, 2**32 - 1)


def pick(rng, *choices):
    return choices[rng.integers(len(choices))]


def drawn_config(rng, *, kind):
    """Draw a market: every cost, limit, filter, stop and fault is on in some examples."""
    leverage = float(pick(rng, 1.0, 3.0, 8.0))
    filters = {"lot": pick(rng, 0.0, 0.01, 0.5), "tick": pick(rng, 0.0, 0.05)}
    return settings(
        leverage=leverage,
        episode_bars=int(pick(rng, 5, 30)),
        **{
            "action": kind,
            "levels": (-leverage, -0.4 * leverage, 0.0, 0.25 * leverage, leverage),
            "min_rebalance": pick(rng, 0.0, 0.1),
            "ruin_penalty": pick(rng, 0.0, 0.7),
            "reward_clip": pick(rng, None, 0.02),
            "costs.taker_fee": pick(rng, 0.0, 0.002),
            "costs.half_spread": pick(rng, 0.0, 0.001),
            "costs.impact": pick(rng, 0.0, 0.05),
            "costs.impact_window": int(rng.integers(1, 6)),
            "funding": bool(rng.integers(2)),
            "margin.maintenance": pick(rng, 0.0, 0.005, 0.06),
            "margin.liquidation_fee": pick(rng, 0.0, 0.01),
            "filters.min_notional": pick(rng, 0.0, 300.0),
            "symbol_filters": {f"{LETTERS[0] * 3}/USDT:USDT": filters},
            "limits.max_position": pick(rng, None, 9_000.0),
            "limits.max_turnover": pick(rng, None, 4.0),
            "limits.max_drawdown": pick(rng, None, 0.15),
            "limits.max_daily_loss": pick(rng, None, 0.05),
            "limits.min_equity": pick(rng, 0.0, 6_000.0),
            "stops.equity_floor": pick(rng, 0.001, 0.5),
            "stops.drawdown": pick(rng, None, 0.2),
            "no_trade.around_funding_minutes": int(pick(rng, 0, 60)),
            "randomise.taker_fee": pick(rng, (1.0, 1.0), (0.5, 3.0)),
            "randomise.impact": pick(rng, (1.0, 1.0), (0.0, 2.0)),
            "degrade.stale_prob": pick(rng, 0.0, 0.3),
            "degrade.drop_prob": pick(rng, 0.0, 0.2),
            "degrade.delay_prob": pick(rng, 0.0, 0.3),
            "degrade.max_delay_bars": 3,
        },
    )


def drawn_market(seed):
    """Return a simulator and the actions to compare: all levels, or weights and a bad one."""
    rng = np.random.default_rng([seed, 3])
    kind, dtype = pick(rng, "levels", "continuous"), pick(rng, torch.float32, torch.float64)
    config = drawn_config(rng, kind=kind)
    panel = wild_panel(seed, rows=ROWS, symbols=len(LETTERS), quoted=bool(seed % 2))
    sim = simulator(panel, config, batch=BATCH, dtype=dtype)
    if kind == "levels":
        return sim, torch.tensor([0, 1, 2, 3, 4, 5])  # five levels, and one that is not there
    top = config.weight_range[1]
    drawn = [*rng.uniform(-top, top, 3).tolist(), 0.0, top, 2.0 * top, float("nan")]
    return sim, torch.tensor(drawn, dtype=dtype)


def walked(sim, seed):
    """Yield states of accounts that do random actions, with the numbers drawn for each step."""
    generator = torch.Generator().manual_seed(seed % 2**31)
    state, _ = sim.reset(generator)
    low, high = sim.config.weight_range
    for _ in range(STEPS):
        uniform = sim.draw(generator)
        yield state, uniform
        number = torch.rand(sim.batch, generator=generator, dtype=sim.dtype)
        if sim.config.action == "levels":
            action = (number * len(sim.config.levels)).long()
        else:
            action = low + (high - low) * number
        state, _ = sim.transition(state, action, uniform)


@effort(max_examples=60)
@given(seeds)
def test_an_alternative_is_the_step_that_does_it_bit_for_bit(seed):
    sim, actions = drawn_market(seed)
    columns = [sim.observation_names.index(name) for name in sim.account_names]
    for state, uniform in walked(sim, seed):
        outcomes = sim.alternatives(state, actions)
        going = ~state.done
        for k, action in enumerate(actions):
            _, step = sim.transition(state, action.expand(sim.batch), uniform)
            assert torch.equal(outcomes.reward[going, k], step.reward[going])
            assert torch.equal(outcomes.terminated[going, k], step.terminated[going])
            shown = step.observation[:, columns]
            assert torch.equal(outcomes.account[going, k], shown[going])
        assert not outcomes.reward[~going].any()
        assert not outcomes.terminated[~going].any()
        assert not outcomes.account[~going].any()


@effort(max_examples=30)
@given(seeds)
def test_no_action_changes_a_column_that_is_none_of_the_account(seed):
    sim, actions = drawn_market(seed)
    kept = [k for k, name in enumerate(sim.observation_names) if name not in sim.account_names]
    for state, uniform in walked(sim, seed):
        shown = [
            sim.transition(state, action.expand(sim.batch), uniform)[1].observation[:, kept]
            for action in actions
        ]
        assert all(torch.equal(shown[0], other) for other in shown[1:])


@effort(max_examples=30)
@given(seeds)
def test_a_state_at_the_start_fixes_the_episode_whatever_is_drawn_later(seed):
    sim, _ = drawn_market(seed)
    generator = torch.Generator().manual_seed(seed % 2**31)
    first, _ = sim.reset(generator)
    number = torch.rand(STEPS, sim.batch, generator=generator, dtype=sim.dtype)
    low, high = sim.config.weight_range
    chosen = low + (high - low) * number
    if sim.config.action == "levels":
        chosen = (number * len(sim.config.levels)).long()
    columns = [sim.observation_names.index(name) for name in task.account_names(sim)]
    seen = list(range(sim.observation_size))
    if max(sim.config.degrade.stale_prob, sim.config.degrade.drop_prob,
           sim.config.degrade.delay_prob) > 0.0:  # fmt: skip
        seen = columns  # faults of the feed are drawn at every step
    states, going = [first, first], torch.ones(sim.batch, dtype=torch.bool)
    for index, action in enumerate(chosen):
        steps = []
        for way in (0, 1):
            uniform = draws(sim, 2 * index + way)
            states[way], step = sim.transition(states[way], action, uniform)
            steps.append(step)
        one, other = steps
        assert torch.equal(one.reward[going], other.reward[going])
        assert torch.equal(one.terminated[going], other.terminated[going])
        assert torch.equal(one.truncated[going], other.truncated[going])
        assert torch.equal(one.observation[going][:, seen], other.observation[going][:, seen])
        going = going & ~(one.terminated | one.truncated)
