"""`stormsail bench frontier`: which agents are trained, how they are evaluated, the verdicts."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from xml.etree import ElementTree as ET

import pytest
import torch
import typer
from scipy import stats
from torch import Tensor

from simulator_lab import settings, simulator, wild_panel
from stormsail.algorithms.config import TrainConfig
from stormsail.bench.options import numbers
from stormsail.bench.risk import frontier as bench
from stormsail.bench.risk import frontier_baselines as baselines
from stormsail.bench.risk import frontier_verdicts
from stormsail.cli.bench import risk as command
from stormsail.cli.bench.output import read_rows
from stormsail.core.errors import ChoiceError, RangeError
from stormsail.core.task import Step, account_names, alternatives, draw_places, episode_steps

ROOT = Path(__file__).resolve().parents[4]
TINY = {
    "task.data.world_bars": 1500, "task.data.world_symbols": 2, "task.market.episode_bars": 16,
    "ppo.n_steps": 16, "ppo.n_envs": 8, "ppo.batch_size": 8, "network.lstm_hidden_size": 8,
    "risk.cvar_min_samples": 8, "risk.cvar_min_tail_samples": 1, "risk.cvar_window": 64,
    "task.market.features": ({"name": "log_return"},),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def tiny_config():
    changes = {**TINY, "task.market.features": [{"name": "log_return"}]}
    return TrainConfig.load(bench.CONFIG).replace(**changes)


# ---------------------------------------------------------------------------------- who is trained


def test_every_discount_has_its_free_agents_and_limits_and_the_first_all_the_others():
    plan = bench.Plan(seeds=(0, 1))
    found = bench.jobs(plan)
    counts = {
        (kind, gamma): sum(job.kind == kind and job.gamma == gamma for job in found)
        for kind in bench.KINDS
        for gamma in plan.gammas
    }
    assert {key: count for key, count in counts.items() if count} == {
        ("free", 0.99): 2, ("limit", 0.99): 6, ("slack", 0.99): 2, ("infeasible", 0.99): 2,
        ("alpha", 0.99): 4, ("penalty", 0.99): 6, ("rule", 0.99): 2,
        ("free", 0.999): 2, ("limit", 0.999): 6,
    }  # fmt: skip
    assert {(job.alpha, job.limit) for job in found if job.kind == "alpha"} == {
        (0.1, -0.1), (0.25, -0.1),
    }  # fmt: skip
    assert {job.kind for job in bench.jobs(plan, ["slack", "free"])} == {"slack", "free"}
    assert bench.Plan(limits=(-0.3,)).middle == -0.3


@pytest.mark.refusal
def test_kinds_and_numbers_are_known_or_refused():
    with pytest.raises(ChoiceError) as refused:
        bench.jobs(bench.Plan(), ["limits"])
    assert str(refused.value) == (
        "`kinds` must be one of `free`, `limit`, `slack`, `infeasible`, `alpha`, `penalty`, "
        "`rule`; found `limits`. Did you mean `limit`? [unknown-choice]"
    )
    options = {"option": "limits", "example": "0.5,0.25"}
    assert numbers("-0.2, 0.5", **options) == (-0.2, 0.5)
    for text in ("", "a", "0.1,nan"):
        with pytest.raises(RangeError) as refused:
            numbers(text, **options)
        assert str(refused.value) == (
            f"`--limits` must be numbers with commas between them; found {text!r}. "
            "Write it as 0.5,0.25. [out-of-range]"
        )


def test_a_limit_is_held_and_its_absence_only_watched():
    common = {"gamma": 0.999, "seed": 3, "steps": 100, "episodes": 2}
    free = bench.settings(bench.Job("free", **common))
    held = bench.settings(bench.Job("alpha", limit=-0.3, alpha=0.25, **common))
    assert not free.risk.acts
    assert held.risk.cvar_use_constraint
    assert (held.risk.cvar_limit, held.risk.cvar_alpha) == (-0.3, 0.25)
    assert (held.seed, held.ppo.gamma, held.ppo.total_steps) == (3, 0.999, 100)
    changed = bench.Job("free", changes=(("risk.dual_controller", "integral"),), **common)
    assert bench.settings(changed).risk.dual_controller == "integral"


def test_a_margin_goes_to_the_agents_that_have_a_limit_to_aim_at():
    """It belongs to the form `critic`: agents without a limit and those of `budget` have none."""
    common = {"gamma": 0.99, "seed": 3, "steps": 100, "episodes": 2}
    wider, former = ("risk.cvar_margin", 2.0), ("risk.form", "budget")
    made = {
        (kind, changes): bench.settings(bench.Job(kind, limit=limit, changes=changes, **common))
        for kind, limit in (("free", None), ("limit", -0.1))
        for changes in ((wider,), (wider, former))
    }
    margins = {key: config.risk.cvar_margin for key, config in made.items()}
    assert margins == {
        ("free", (wider,)): 1.0,
        ("free", (wider, former)): 1.0,
        ("limit", (wider,)): 2.0,
        ("limit", (wider, former)): 1.0,
    }


# ----------------------------------------------------------------------------- how it is evaluated


class Bars(NamedTuple):
    row: int


class Market:
    """Two episodes of three bars; what a bar pays times the weight; the second ends early."""

    pays = torch.tensor([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]])

    def __init__(self, levels, ends) -> None:
        self.levels, self.ends, self.batch = levels, ends, 2

    def reset(self, generator):
        assert generator.initial_seed() == 7
        return Bars(0), torch.zeros(2, 1)

    def step(self, state, action, generator):
        del generator
        weight = self.levels[action].float()
        ended = self.ends(state.row, weight)
        pay = self.pays[state.row] * weight
        seen = torch.full((2, 1), state.row + 1.0)
        return Bars(state.row + 1), Step(seen, pay, ended, torch.zeros(2).bool(), None)


class Chosen(NamedTuple):
    action: Tensor
    memory: Tensor


class Steady:
    """Always the same action; counts its steps in its memory and checks what it is shown."""

    def __init__(self, action=1, greedy=False) -> None:
        self.action, self.greedy = action, greedy

    def initial_memory(self, batch):
        return torch.zeros(batch)

    def decide(self, observation, memory, *, deterministic, generator=None):
        assert deterministic == self.greedy
        assert isinstance(generator, torch.Generator)
        if observation.shape[1] == 1:
            assert observation[:, 0].tolist() == memory.tolist()
        return Chosen(torch.full((len(memory),), self.action), memory + 1)


def fake(monkeypatch, ends):
    levels = torch.tensor([0.0, 0.25, 0.5, 1.0]).double()
    index = torch.tensor([[0, 3], [0, 1]])  # its own weights 0 and 1, and a quarter of them
    market = Market(levels, ends)
    monkeypatch.setattr(bench, "_accounts", lambda *_: bench._Accounts(market, levels, index))
    config = tiny_config().replace(**{"task.market.episode_bars": 3})
    return bench.evaluate(Steady(), config, episodes=2, greedy=False, scales=(0.25,))


def test_accounts_earn_their_share_until_their_episode_ends(monkeypatch):
    """The second episode ends with its second bar for both: 10 + 20."""
    own, quarter = fake(monkeypatch, lambda row, _: torch.tensor([False, row == 1]))
    assert own.log_growth.tolist() == [7.0, 30.0]
    assert quarter.log_growth.tolist() == [1.75, 7.5]
    assert (own.exposure, quarter.exposure) == (1.0, 0.25)


def test_an_account_that_ends_first_ends_alone_and_the_agents_own_ends_all(monkeypatch):
    own, quarter = fake(monkeypatch, lambda row, w: torch.tensor([row == 0, False]) & (w < 0.5))
    assert own.log_growth.tolist() == [7.0, 70.0]
    assert quarter.log_growth.tolist() == [0.25, 17.5]
    own, quarter = fake(monkeypatch, lambda row, w: torch.tensor([row == 0, False]) & (w > 0.5))
    assert own.log_growth.tolist() == [1.0, 70.0]
    assert quarter.log_growth.tolist() == [0.25, 17.5]


def test_half_of_a_whole_weight_is_the_weight_of_a_half():
    """The same bars, episodes and account, reached by two ways; and a weight of 0 earns nothing."""
    config = tiny_config()
    assert config.task.market.levels == (0.0, 0.25, 0.5, 0.75, 1.0)
    whole = bench.evaluate(Steady(4), config, episodes=32, greedy=False, scales=(0.5, 0.0))
    (half,) = bench.evaluate(Steady(2, greedy=True), config, episodes=32, greedy=True)
    assert torch.equal(whole[1].log_growth, half.log_growth)
    assert not whole[2].log_growth.any()
    assert [account.exposure for account in whole] == [1.0, 0.5, 0.0]
    assert float(whole[0].log_growth.std()) == pytest.approx(
        2.0 * float(half.log_growth.std()), rel=0.02
    )
    assert float(whole[0].log_growth.std()) > 0.005


def test_who_steps_aside_holds_nothing_while_a_warning_stands():
    rule = baselines.StepsAside(("log_return", "warning"), 5)
    seen = torch.tensor([[9.0, 0.0], [-9.0, 1.0], [0.0, 0.0]])
    chosen = rule.decide(seen, rule.initial_memory(3), deterministic=False)
    assert chosen.action.tolist() == [4, 0, 4]


def test_the_rule_is_evaluated_without_training_and_misses_the_crashes_it_is_warned_of():
    """A warning precedes every crash: it never has one, and holds 70 % of the time."""
    changes = (
        ("task.data.world_bars", 4000),
        ("task.data.world_symbols", 4),
        ("task.data.world_parameters.crash_probability", 0.01),
    )
    job = bench.Job("rule", 0.99, 0, 100, 256, warned=1.0, changes=changes)
    rows = bench.run(job)
    assert [(row.kind, row.scale, row.updates) for row in rows] == [
        ("rule", scale, 0) for scale in (1.0, *bench.SCALES)
    ]
    assert rows[0].exposure == pytest.approx(0.7, abs=0.02)
    assert rows[0].greedy_cvar == rows[0].cvar
    assert rows[0].cvar > -0.05
    held = bench.run(bench.Job("rule", 0.99, 0, 100, 256, warned=0.0, changes=changes))
    assert held[0].cvar < -0.5  # warnings that mean nothing


def test_each_seed_has_a_world_of_its_own_with_its_share_of_warnings():
    for seed, warned in ((3, 0.25), (4, 0.0)):
        data = bench.settings(bench.Job("free", 0.99, seed, 100, 2, warned=warned)).task.data
        assert data.world_seed == seed
        assert data.world_parameters["warning_share"] == warned


def test_agents_are_evaluated_on_bars_after_those_of_training(monkeypatch):
    spans, real = [], bench.Simulator
    monkeypatch.setattr(
        bench, "Simulator", lambda *a, **k: spans.append(k["span"]) or real(*a, **k)
    )
    config = tiny_config()
    bench.evaluate(Steady(4), config, episodes=2, greedy=False)
    data = bench.market_data(config)
    assert spans == [data.validation]
    assert data.validation.start_ms >= data.train.end_ms


def test_a_penalised_reward_has_the_multiple_of_its_square_taken_off():
    levels = torch.tensor([0.0, 1.0])
    market = Market(levels, lambda row, _: torch.tensor([row == 1, False]))
    market.device, market.dtype, market.actions = torch.device("cpu"), torch.float32, None
    market.observation_size, market.observation_names = 1, ("row",)
    task = baselines.Penalised(market, 0.1)
    state, observation = task.reset(torch.Generator().manual_seed(7))
    assert observation.tolist() == [[0.0], [0.0]]
    state, first = task.step(state, torch.tensor([1, 1]), None)
    _, second = task.step(state, torch.tensor([1, 0]), None)
    assert first.reward.tolist() == pytest.approx([0.9, 0.0])
    assert second.reward.tolist() == pytest.approx([1.6, 0.0])
    assert second.terminated.tolist() == [True, False]
    assert task.observation_names == ("row",)
    assert (account_names(task), episode_steps(task)) == ((), None)
    assert alternatives(task, state, torch.tensor([0, 1])) is None


def test_a_penalised_market_takes_the_penalty_off_every_alternative():
    market = simulator(wild_panel(1, rows=40), settings(episode_bars=7), batch=2)
    task = baselines.Penalised(market, 3.0)
    assert account_names(task) == account_names(market) != ()
    assert episode_steps(task) == 7
    state, _ = task.reset(torch.Generator().manual_seed(1))
    weights = torch.tensor([-1.0, 0.5], dtype=torch.float64)
    outcomes = alternatives(task, state, weights)
    plain = alternatives(market, state, weights)
    assert torch.equal(outcomes.reward, plain.reward - 3.0 * plain.reward**2)
    assert torch.equal(outcomes.account, plain.account)
    assert torch.equal(draw_places(task, state), state.row)
    for k, weight in enumerate(weights):
        _, step = task.step(state, weight.expand(2), torch.Generator().manual_seed(2))
        assert torch.equal(outcomes.reward[:, k], step.reward)


@pytest.mark.parametrize(
    ("kind", "limit", "penalty"),
    [("free", None, 0.0), ("infeasible", 5.0, 0.0), ("penalty", None, 3.0)],
)
def test_an_agent_is_trained_and_evaluated(kind, limit, penalty, monkeypatch):
    changes = {name: value for name, value in TINY.items() if name != "task.market.features"}
    changes |= {"risk.cvar_infeasible_updates": 2, "risk.cvar_lambda_max": 0.5}
    changes |= {"risk.form": "budget", "risk.cvar_margin": 1.0}  # `budget` has no aim inside
    monkeypatch.setattr(
        bench, "settings", lambda _: tiny_config().replace(
            **changes,
            **{"ppo.total_steps": 8 * 128, "risk.cvar_use_constraint": limit is not None,
               "risk.cvar_limit": -0.1 if limit is None else limit},
        ),
    )  # fmt: skip
    job = bench.Job(kind, 0.99, 0, 8 * 128, 64, limit=limit, penalty=penalty)
    taken_off, penalised = [], bench.Penalised
    monkeypatch.setattr(
        bench, "Penalised", lambda task, k: taken_off.append(k) or penalised(task, k)
    )
    rows = bench.run(job)
    assert taken_off == ([penalty] if penalty else [])
    assert [row.scale for row in rows] == [1.0, *(bench.SCALES if kind == "free" else ())]
    assert {row.kind for row in rows[1:]} == ({"scaled"} if kind == "free" else set())
    first = rows[0]
    assert (first.kind, first.updates) == (kind, 8)
    assert first.greedy_cvar is not None
    assert all(row.greedy_mean is None for row in rows[1:])
    assert first.exposure == pytest.approx(0.5, abs=0.2)  # hardly trained: all weights alike
    for row in rows[1:]:
        assert row.exposure == pytest.approx(row.scale * first.exposure)
        assert row.cvar == pytest.approx(row.scale * first.cvar, rel=0.1)
    if kind == "infeasible":
        assert first.multiplier == first.largest_multiplier == 0.5
        assert first.infeasible_at == 7  # 20 episodes at 4; two stretches of two updates
    else:
        assert (first.multiplier, first.infeasible_at) == (0.0, None)


def test_agents_are_reported_one_by_one(monkeypatch):
    monkeypatch.setattr(bench, "run", lambda job: [row(job.kind), row("scaled")])
    reported = []
    planned = [SimpleNamespace(kind=kind, key=kind) for kind in ("a", "b")]
    rows = bench.run_all(planned, processes=1, say=reported.append)
    assert [result.kind for result in rows] == ["a", "scaled", "b", "scaled"]
    assert [result.kind for result in reported] == ["a", "b"]


# ------------------------------------------------------------------------------------ the verdicts


def row(kind="limit", **changes):
    fields = {
        "kind": kind, "gamma": 0.99, "seed": 0, "limit": None, "alpha": 0.05, "penalty": 0.0,
        "scale": 1.0, "mean": 0.02, "mean_error": 0.001, "cvar": -0.1, "cvar_error": 0.01,
        "exposure": 0.5, "greedy_mean": None, "greedy_cvar": None, "multiplier": 1.0,
        "largest_multiplier": 2.0, "infeasible_at": None, "updates": 100,
    }  # fmt: skip
    return bench.Row(**{**fields, **changes})


def free(seed=0, **changes):
    return row("free", **{"seed": seed, "mean": 0.08, "cvar": -0.4, **changes})


def verdicts_on(rows, part):
    return [verdict for verdict in frontier_verdicts.verdicts(rows) if part in verdict.claim]


def test_a_limit_is_held_kept_or_proven_by_its_interval():
    """-.12 + 1.96 * .01 = -.1004, which is below -.1; -.1195 + .0196 = -.0999 is above.

    -.08 - .0196 = -.0996 is above, too; -.0805 - .0196 = -.1001 is below.
    """
    assert row(limit=-0.1, cvar=-0.1195).held_by_interval is True
    assert row(limit=-0.1, cvar=-0.12).held_by_interval is False
    assert row(limit=-0.1, cvar=-0.1).kept_by_estimate is True
    assert row(limit=-0.1, cvar=-0.1001).kept_by_estimate is False
    assert row(limit=-0.1, cvar=-0.08).proven_kept is True
    assert row(limit=-0.1, cvar=-0.0805).proven_kept is False
    nothing = row()
    assert nothing.held_by_interval is nothing.kept_by_estimate is nothing.proven_kept is None
    assert row(cvar=-0.12).breaks(-0.1) is True
    assert row(cvar=-0.1195).breaks(-0.1) is False


@pytest.mark.parametrize(("bad", "passed"), [(1, True), (2, False)])
def test_four_of_five_estimates_must_keep_a_limit(bad, passed):
    """The bad ones are breaches that are not proven; of the others one is proven to keep it."""
    tails = [-0.11 if seed < bad else -0.1 for seed in range(4)] + [-0.05]
    rows = [row(seed=seed, limit=-0.1, cvar=cvar) for seed, cvar in enumerate(tails)]
    (verdict,) = verdicts_on(rows, "kept by the estimate in 4 of 5")
    assert verdict.claim == "gamma 0.99: the limit -0.1 is kept by the estimate in 4 of 5 seeds"
    assert verdict.passed is passed
    assert verdict.measured == (
        f"kept by the estimate in {5 - bad} of 5, held by the interval in 5, proven kept in 1"
    )


@pytest.mark.parametrize("unbroken", [0, 1])
def test_every_free_agent_must_break_a_limit_or_it_tests_nothing(unbroken):
    rows = [row(seed=seed, limit=-0.1) for seed in range(5)]
    rows += [free(k, cvar=-0.11 if k < unbroken else -0.4) for k in range(5)]
    (verdict,) = verdicts_on(rows, "free agent is proven to break")
    assert verdict.passed is (unbroken == 0)
    assert verdict.measured == f"in {5 - unbroken} of 5"
    assert verdicts_on(rows[:5], "free agent is proven to break") == []  # nobody is free


def test_a_slack_limit_must_cost_no_more_than_two_percent_of_the_mean():
    rows = [free(seed, mean=0.1 + seed) for seed in range(3)]
    for share, passed in ((0.981, True), (1.019, True), (0.979, False), (1.021, False)):
        slack = [
            row("slack", limit=-1.0, seed=seed, mean=share * (0.1 + seed), multiplier=0.0)
            for seed in range(3)
        ]
        (verdict,) = verdicts_on([*rows, *slack], "the mean is within 2%")
        assert verdict.passed is passed
    # means 1.1 and 1.021 of it: 1.1231; gains .0021, .0231 and .0441, s = .021, t 4.3027
    assert verdict.measured == "1.1231 against 1.1000, +2.1%; by seed +0.0231 ± 0.0522"
    other = [row("slack", limit=-1.0, seed=9, multiplier=0.0)]
    (verdict,) = verdicts_on([*rows, *other], "the mean is within 2%")
    assert (verdict.passed, verdict.measured) == (None, "no seed has both")
    assert verdicts_on(other, "the mean is within 2%") == []


def test_a_tighter_limit_must_raise_the_tail_and_lower_the_mean():
    rows = [free(), row(limit=-0.2, cvar=-0.2, mean=0.05), row(limit=-0.1, cvar=-0.1, mean=0.03)]
    (verdict,) = verdicts_on(rows, "as the limit tightens")
    assert verdict.passed is True
    assert verdict.measured == "CVaR -0.4000 → -0.2000 → -0.1000; mean 0.0800 → 0.0500 → 0.0300"
    for spoilt in (row(limit=-0.1, cvar=-0.25, mean=0.03), row(limit=-0.1, cvar=-0.1, mean=0.06)):
        (verdict,) = verdicts_on([*rows[:2], spoilt], "as the limit tightens")
        assert verdict.passed is False
    assert verdicts_on(rows[:1], "as the limit tightens") == []


def test_a_smaller_tail_under_the_same_limit_must_too():
    rows = [
        row(limit=-0.1, cvar=-0.1, mean=0.03),
        row("alpha", limit=-0.1, alpha=0.25, cvar=-0.3, mean=0.06),
        row("alpha", limit=-0.1, alpha=0.1, cvar=-0.2, mean=0.05),
        row(limit=-0.2, cvar=-0.5),
    ]
    (verdict,) = verdicts_on(rows, "the tail under the limit")
    assert "the limit -0.1 shrinks, 25%, 10%, 5%" in verdict.claim
    assert verdict.passed is True
    assert verdict.measured == "CVaR -0.3000 → -0.2000 → -0.1000; mean 0.0600 → 0.0500 → 0.0300"


def test_a_slack_limit_must_leave_no_multiplier_and_one_out_of_reach_must_be_named():
    slack = [row("slack", limit=-1.0, seed=k, multiplier=0.0) for k in range(3)]
    (verdict,) = verdicts_on(slack, "slack limit")
    assert (verdict.passed, verdict.measured) == (True, "in 3 of 3; at its largest it was 2")
    (verdict,) = verdicts_on([*slack, row("slack", limit=-1.0, seed=3, multiplier=1e-3)], "slack")
    assert (verdict.passed, verdict.measured) == (False, "in 3 of 4; at its largest it was 2")
    named = [row("infeasible", limit=0.02, seed=k, infeasible_at=70 - k) for k in range(2)]
    (verdict,) = verdicts_on(named, "out of reach")
    assert (verdict.passed, verdict.measured) == (True, "in 2 of 2, at updates 69, 70 of 100")
    late = row("infeasible", limit=0.02, seed=2, infeasible_at=151)
    (verdict,) = verdicts_on([*named, late], "out of reach within 150")
    assert not verdict.passed
    (verdict,) = verdicts_on([*named, row("infeasible", limit=0.02, seed=2)], "out of reach")
    assert (verdict.passed, verdict.measured) == (False, "in 2 of 3, at updates 69, 70 of 100")


def with_curves(gains, *, at=-0.1, kind="limit"):
    """Return free agents whose mean is a tenth of their tail, and others that differ by gains."""
    rows = []
    for seed, gain in enumerate(gains):
        rows += [free(seed, mean=0.04), row("scaled", seed=seed, scale=0.5, cvar=-0.2, mean=0.02)]
        rows.append(row(kind, seed=seed, limit=-0.1, cvar=at, mean=-at / 10.0 + gain))
    return rows


def test_the_curve_of_smaller_weights_runs_through_all_of_them_and_nothing():
    curve = frontier_verdicts.scaled_curves(
        [free(mean=0.05), row("scaled", scale=0.5, cvar=-0.2, mean=0.02)]
    )[0]
    # Through (-.4, .05), (-.2, .02) and (0, 0).
    assert [curve(x) for x in (-0.4, -0.3, -0.2, -0.1, 0.0)] == pytest.approx(
        [0.05, 0.035, 0.02, 0.01, 0.0]
    )
    assert math.isnan(curve(-0.41))
    assert math.isnan(curve(0.01))


@pytest.mark.parametrize(
    ("gains", "word"),
    [
        ((0.010, 0.012, 0.014), "better: mean return +0.0120 ± 0.0050"),
        ((-0.010, -0.012, -0.014), "worse: mean return -0.0120 ± 0.0050"),
        ((-0.010, 0.012, 0.001), "no different: mean return +0.0010 ± 0.0273"),
    ],
)
def test_the_constraint_is_compared_with_smaller_weights_at_its_own_tail(gains, word):
    """Half of the interval of three: 4.3027 * s / sqrt(3); s = .002 and .011."""
    assert stats.t.ppf(0.975, 2) == pytest.approx(4.3027, abs=1e-4)
    (verdict,) = verdicts_on(with_curves(gains), "scaled down")
    assert verdict.claim == "gamma 0.99, limit -0.1: against weights scaled down to its CVaR"
    assert verdict.measured == word
    assert verdict.passed is None


def test_a_limit_must_beat_smaller_weights_where_warnings_mean_something():
    """The interval must exclude 0; of rows that do not say, or of one seed, nothing is claimed."""
    for gains, warned, passed in (
        ((0.010, 0.012, 0.014), 0.8, True),
        ((-0.010, 0.012, 0.001), 0.8, False),
        ((-0.010, -0.012, -0.014), 0.8, False),
        ((0.010, 0.012, 0.014), 0.0, None),
        ((0.010,), 0.8, None),
    ):
        rows = [one._replace(warned=warned) for one in with_curves(gains)]
        (verdict,) = verdicts_on(rows, "scaled down")
        assert verdict.passed is passed
    rows = [one._replace(warned=0.8) for one in with_curves((0.01, 0.02), kind="alpha")]
    (verdict,) = verdicts_on(rows, "scaled down")
    assert verdict.passed is None


def test_what_lies_beyond_the_curve_is_left_out_and_verdicts_on():
    rows = with_curves((0.010, 0.012, 0.014))
    rows[-1] = rows[-1]._replace(cvar=-0.9)
    (verdict,) = verdicts_on(rows, "scaled down")
    assert verdict.measured.endswith("; 1 of 3 lie beyond their curve")
    (verdict,) = verdicts_on(with_curves((0.01,), at=-0.9), "scaled down")
    assert verdict.measured == "its CVaR is beyond all of theirs"
    (verdict,) = verdicts_on(with_curves((0.01,)), "scaled down")
    assert verdict.measured == "one seed says nothing: mean return +0.0100 ± nan"


def test_discounts_are_compared_apart():
    rows = [free(), row(limit=-0.1), free(gamma=0.999, cvar=-0.01), row(limit=-0.1, gamma=0.999)]
    verdicts = verdicts_on(rows, "free agent is proven to break")
    assert [(verdict.claim.split(":")[0], verdict.passed) for verdict in verdicts] == [
        ("gamma 0.99", True), ("gamma 0.999", False),
    ]  # fmt: skip


def test_seeds_become_one_line_with_an_interval():
    rows = [row(limit=-0.1, seed=k, cvar=cvar) for k, cvar in enumerate((-0.1, -0.11, -0.3))]
    rows += [free(), row("alpha", limit=-0.1, alpha=0.25)]
    found = frontier_verdicts.summaries(rows)
    assert [one.key.kind for one in found] == ["free", "limit", "alpha"]
    assert [one.key.setting for one in found] == [
        "", "limit -0.1", "limit -0.1 on the worst 25%",
    ]  # fmt: skip
    limited = found[1]
    counts = (limited.held_by_interval, limited.kept_by_estimate, limited.proven_kept)
    assert (limited.seeds, *counts) == (3, 2, 1, 0)
    assert limited.cvar.mean == pytest.approx(-0.17)
    # s of the three is .11269; 4.3027 * .11269 / sqrt(3).
    assert limited.cvar.half == pytest.approx(0.27995, abs=1e-4)
    assert found[0].cvar.half == pytest.approx(0.0196, abs=1e-5)  # of one agent: its own error
    assert (found[0].held_by_interval, found[2].held_by_interval) == (None, None)
    assert (found[0].proven_kept, found[2].kept_by_estimate) == (None, None)


# -------------------------------------------------------------------------------------- the command


def everything():
    rows = with_curves((0.010, 0.012, 0.014))
    rows.append(row("penalty", penalty=3.0, cvar=-0.2, mean=0.021))
    rows.append(free(gamma=0.999))
    return [*rows, row("slack", limit=-1.0, mean=0.04, multiplier=0.0)]


def test_the_chart_has_a_dot_for_each_agent_and_a_line_of_smaller_weights():
    tree = ET.fromstring(frontier_verdicts.chart(everything()))  # noqa: S314
    panels = [one for one in tree.iterfind("{*}g") if one.findall("{*}text")]
    assert len(panels) == 2
    counts = [
        [len(panel.findall(f"{{*}}{shape}")) for shape in ("circle", "rect", "polyline")]
        for panel in panels
    ]
    assert counts == [[3, 3, 1], [1, 0, 1]]
    names = [one.text for one in tree.iterfind("{*}text")]
    assert names == [
        "free, weights scaled down", "free", "reward - k r²", "limit -0.1",
        "every dot is one agent on bars that it never saw",
    ]  # fmt: skip


def test_the_rule_is_a_line_of_every_panel_since_it_knows_no_discount():
    rule = [row("rule", scale=scale, cvar=-0.1 * scale, mean=0.05 * scale) for scale in (1, 0.5)]
    tree = ET.fromstring(frontier_verdicts.chart([*everything(), *rule]))  # noqa: S314
    panels = [one for one in tree.iterfind("{*}g") if one.findall("{*}text")]
    assert [len(panel.findall("{*}polyline")) for panel in panels] == [2, 2]
    assert "0 while warned, scaled down" in [one.text for one in tree.iterfind("{*}text")]


def test_the_command_prints_writes_and_draws(tmp_path, monkeypatch, capsys):
    asked = []

    def ran(wanted, *, processes, log, say):
        assert log is None
        assert {job.episodes for job in wanted} == {77}
        asked.append((len(wanted), processes))
        say(everything()[0])
        return everything()

    monkeypatch.setattr(bench, "run_all", ran)
    out, drawn = tmp_path / "frontier.json", tmp_path / "frontier.svg"
    command.frontier(
        seeds=2, steps=10, episodes=77, gammas="0.99", limits="-0.1", jobs=3,
        kinds="free, limit", out=out, chart=drawn,
    )  # fmt: skip
    assert asked == [(4, 3)]
    found = json.loads(out.read_text(), parse_constant=pytest.fail)
    assert len(found["rows"]) == len(everything())
    assert found["plan"]["limits"] == [-0.1]
    assert drawn.read_text() == frontier_verdicts.chart(everything())
    printed = capsys.readouterr().out
    assert "4 agents, 3 at a time" in printed
    assert "better: mean return +0.0120 ± 0.0050" in printed
    command.frontier(rows=[out])
    again = capsys.readouterr().out
    assert again == printed[printed.index(again.splitlines()[0]) :]  # all but the training
    halves = []
    for place in (0, 1):
        halves.append(tmp_path / f"half-{place}.json")
        halves[-1].write_text(json.dumps({"rows": found["rows"][place::2]}))
    command.frontier(rows=halves)
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(again.splitlines())


def test_the_command_fails_with_its_claims(monkeypatch, capsys):
    monkeypatch.setattr(bench, "run_all", lambda *_, **__: [free(), row(limit=-0.1, cvar=-0.2)])
    with pytest.raises(typer.Exit) as left:
        command.frontier(seeds=1, jobs=1)
    assert left.value.exit_code == 1
    assert (
        "FAILS; kept by the estimate in 0 of 1, held by the interval in 0, proven kept in 0"
    ) in capsys.readouterr().out


def test_finished_agents_are_kept_in_a_file_and_not_trained_again(tmp_path, monkeypatch, capsys):
    trained = []

    def run(job):
        trained.append((job.kind, job.seed, dict(job.changes)))
        changed = {"seed": job.seed, "limit": job.limit, "warned": job.warned}
        return [row(job.kind, cvar=-0.4 if job.limit is None else -0.05, **changed)]

    monkeypatch.setattr(bench, "run", run)
    path, out = tmp_path / "rows.jsonl", tmp_path / "rows.json"
    options = {
        "gammas": "0.99", "limits": "-0.1", "kinds": "free,limit", "rows": [path],
        "settings": ["risk.dual_controller=integral"],
    }  # fmt: skip
    command.frontier(seeds=1, first_seed=70, **options)
    changes = {"risk.dual_controller": "integral"}
    assert trained == [("free", 70, changes), ("limit", 70, changes)]
    command.frontier(seeds=2, first_seed=70, out=out, **options)
    assert trained[2:] == [("free", 71, changes), ("limit", 71, changes)]
    assert len(path.read_text().splitlines()) == 4
    printed = capsys.readouterr().out
    assert "kept by the estimate in 2 of 2, held by the interval in 2, proven kept in 2" in printed
    assert [one["seed"] for one in json.loads(out.read_text())["rows"]] == [70, 70, 71, 71]
    options["settings"] = None
    command.frontier(seeds=1, first_seed=70, **options)  # other settings are other agents
    assert trained[4:] == [("free", 70, {}), ("limit", 70, {})]


def test_rows_of_earlier_versions_are_read():
    rows = read_rows([ROOT / "docs/evidence/frontier.json"], bench.Row)
    assert {one.warned for one in rows} == {None}
    lines = {(line.key.gamma, line.key.limit): line for line in frontier_verdicts.summaries(rows)
             if line.key.kind == "limit"}  # fmt: skip
    assert {
        key: (line.held_by_interval, line.kept_by_estimate, line.proven_kept)
        for key, line in lines.items()
    } == {
        (0.99, -0.2): (5, 4, 2), (0.99, -0.1): (5, 2, 0), (0.99, -0.05): (3, 0, 0),
        (0.999, -0.2): (4, 3, 1), (0.999, -0.1): (4, 3, 1), (0.999, -0.05): (0, 0, 0),
    }  # fmt: skip


@pytest.mark.refusal
def test_rows_of_two_kinds_are_refused(tmp_path):
    files = [tmp_path / "a.jsonl", tmp_path / "b.json"]
    with pytest.raises(typer.BadParameter) as refused:
        command.frontier(rows=files)
    assert refused.value.message == (
        "`--rows` must be one .jsonl file of finished runs, or .json files that `--out` wrote; "
        f"found {files[0]}, {files[1]}. Name one kind."
    )


@pytest.mark.refusal
def test_a_folder_that_is_not_there_is_refused_before_the_work(tmp_path):
    nowhere = tmp_path / "no" / "frontier.svg"
    with pytest.raises(typer.BadParameter) as refused:
        command.frontier(chart=nowhere)
    expected = f"the folder of `frontier.svg` must exist; found no {nowhere.parent}. Make it."
    assert refused.value.message == expected
