"""Return Capping: rewards that add up to the cap, a cap that follows, rows, claims, the command."""

import json
from typing import NamedTuple

import pytest
import torch
from typer.testing import CliRunner

from stormsail.bench import campaign
from stormsail.bench.bets import betting_exact as exact
from stormsail.bench.bets import return_capping as bench
from stormsail.bench.bets.betting_game import BettingGame, BettingRules
from stormsail.bench.training import train_agent
from stormsail.cli.main import app
from stormsail.core import task as tasks
from stormsail.core.errors import ArtifactError, ConfigError
from stormsail.core.task import DiscreteActions, Step
from stormsail.functional.risk import empirical_cvar

SMALL = BettingRules(tokens=4.0, bets=2, parts=2, win=0.92, most=16.0)
NONE = torch.Generator()


class Info(NamedTuple):
    sample_weight: torch.Tensor


class Scripted:
    """One environment for each column of a table of rewards; `T`, `U` and `-` mark its rows."""

    device, dtype, observation_size = torch.device("cpu"), torch.float64, 1
    observation_names, actions = ("row",), DiscreteActions(2)

    def __init__(self, rewards, marks):
        self.rewards, self.marks = torch.tensor(rewards, dtype=torch.float64), marks
        self.batch = self.rewards.shape[1]

    def reset(self, _generator):
        return torch.tensor(0), torch.zeros(self.batch, 1)

    def step(self, state, _action, _generator):
        row = int(state)

        def marked(sign):
            return torch.tensor([self.marks[row][k] == sign for k in range(self.batch)])

        info = Info((~marked("-")).double())
        shown = torch.full((self.batch, 1), float(row + 1))
        return state + 1, Step(shown, self.rewards[row], marked("T"), marked("U"), info)


def walked(task, steps, after=lambda _: None):
    """Return the rewards [steps, B] of a task, with something done after each step."""
    state, _ = task.reset(NONE)
    rewards = []
    for row in range(steps):
        state, step = task.step(state, torch.zeros(task.batch, dtype=torch.int64), NONE)
        rewards.append(step.reward)
        after(row)
    return torch.stack(rewards)


def capped(rewards, marks, *, alpha=0.5, rate=0.1, initial=5.0, least=-100.0):
    task = Scripted(rewards, marks)
    return bench.CappedReturns(task, alpha=alpha, rate=rate, initial=initial, least=least)


# -------------------------------------------------------------------------------------- the method


def test_rewards_add_up_to_the_cap_by_hand():
    """Totals 3, 9, 4, 12 under a cap of 5 are 3, 5, 4, 5; -2, 1, 8, 6 are -2, 1, 5, 5."""
    rewards = [[3.0, -2.0], [6.0, 3.0], [-5.0, 7.0], [8.0, -2.0]]
    result = walked(capped(rewards, ["..", "..", "..", "TU"]), 4)
    assert result.tolist() == [[3.0, -2.0], [2.0, 3.0], [-1.0, 4.0], [1.0, 0.0]]


def test_a_cap_below_nothing_rewards_only_what_stays_below_it():
    """Totals -1, -6, 2 under a cap of -4 are -4, -6, -4: the sum is min(G, C) - min(0, C) = 0."""
    result = walked(capped([[-1.0], [-5.0], [8.0]], [".", ".", "T"], initial=-4.0), 3)
    assert result.tolist() == [[0.0], [-2.0], [2.0]]


def test_an_episode_keeps_the_cap_that_it_began_with_and_the_next_has_the_new_one():
    """The first ends with 8; half the way from 5 to it is 6.5, which its next runs into.

    The other one, with totals of 2, 4, 8 and 12, is still held to 5.
    """
    rewards = [[4.0, 2.0], [4.0, 2.0], [0.0, 4.0], [4.0, 4.0], [4.0, 0.0]]
    task = capped(rewards, ["..", "T.", "-.", ".T", "T-"], rate=0.5)
    result = walked(task, 5, after=lambda row: task.follow() if row == 1 else None)
    assert task.cap == 6.5
    assert result[:, 0].tolist() == [4.0, 1.0, 0.0, 4.0, 2.5]
    assert result[:, 1].tolist() == [2.0, 2.0, 1.0, 0.0, 0.0]


def test_the_cap_follows_the_lower_quantile_and_never_falls_below_its_floor():
    """Returns 1, 2, 3, 4 and 10 without the cap: with alpha .4 the second worst, 2."""
    task = capped([[4.0, 1.0, 10.0, 3.0, 2.0]], ["TTTTU"], alpha=0.4, rate=0.25)
    walked(task, 1)
    task.follow()
    assert task.cap == 5.0 + 0.25 * (2.0 - 5.0)
    task.follow()  # nothing finished since
    assert task.cap == 4.25
    task = capped([[-8.0]], ["T"], rate=0.5, initial=0.0, least=-1.0)
    walked(task, 1)
    task.follow()
    assert task.cap == -1.0


def test_the_method_is_shown_the_same_game_and_nothing_of_other_actions():
    game = BettingGame(8)
    task = bench.CappedReturns(game, alpha=0.2, rate=0.1, initial=0.0, least=0.0)
    assert (task.observation_names, task.actions) == (game.observation_names, game.actions)
    state, _ = task.reset(torch.Generator().manual_seed(1))
    assert tasks.alternatives(task, state, torch.arange(9)) is None


# ---------------------------------------------------------------------------------------- the plan


def test_the_method_has_no_limit_and_changes_are_those_of_agents_with_one():
    plan = bench.Plan(steps=1000, changes=("risk.cvar_kp=0.7",), common=("ppo.n_epochs=3",))
    configs = [plan.config(kind, seed=4, limit=7.0) for kind in bench.KINDS]
    assert [config.risk.cvar_use_constraint for config in configs] == [False, True, True]
    assert [config.risk.cvar_kp for config in configs] == [0.5, 0.7, 0.7]
    assert [config.risk.cvar_limit for config in configs] == [None, 7.0, 7.0]
    assert {config.ppo.n_epochs for config in configs} == {3}
    assert {(config.seed, config.ppo.gamma, config.ppo.total_steps) for config in configs} == {
        (4, 1.0, 1000)
    }
    assert configs[1].risk.cvar_alpha == 0.2
    assert configs[1].ppo.n_envs * configs[1].ppo.n_steps == 3136


def test_a_key_changes_with_everything_that_its_agent_depends_on():
    def keys(**changes):
        return [bench.Plan(**changes).key(kind) for kind in bench.KINDS]

    plain = keys()
    assert len(set(plain)) == 3

    def same(**changes):
        return [mine == other for mine, other in zip(keys(**changes), plain, strict=True)]

    assert same(changes=("risk.cvar_kp=0.7",)) == [True, False, False]
    assert same(share=0.9) == [True, True, False]
    assert same(cap_rate=0.1) == [False, False, True]
    assert same(cap_least=-1.0) == [False, False, True]
    assert same(common=("ppo.n_epochs=3",)) == [False, False, False]
    assert same(rules=SMALL) == [False, False, False]


@pytest.mark.refusal
def test_a_change_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="cvar_kq"):
        bench.Plan(changes=("risk.cvar_kq=1",)).config(bench.EQUAL)


# ----------------------------------------------------------------------------------------- agents


def small(updates):
    """Return a plan of a game of two bets, which is learned in seconds."""
    common = (
        "entropy.ent_coef=0.0", "ppo.n_envs=16", "ppo.batch_size=32", "ppo.learning_rate=4e-3",
    )  # fmt: skip
    return bench.Plan(steps=updates * 16 * 49, rules=SMALL, cap_least=2.0, common=common)


def test_the_method_learns_the_best_cvar_of_a_small_game():
    """To bet all has the best mean, 9.5424 tokens, and a CVaR of -0.288; the best CVaR is 1.072.

    That is a bet of half, then of nothing after a win and of all after a loss:
    (.08 * .08 * -4 + .08 * .92 * 0 + .12 * 2) / .2. A return of 2 is its quantile: the cap stays.
    """
    row = bench.train(small(20), bench.CAPPING, seed=0)
    assert (row.kind, row.seed, row.limit, row.best, row.kept) == ("capping", 0, None, None, None)
    assert row.steps == 20 * 16 * 49
    assert row.most == pytest.approx(1.072, abs=1e-9)
    assert row.greedy_cvar == pytest.approx(1.072, abs=1e-9)
    assert row.cvar == pytest.approx(1.0, abs=0.1)
    assert row.level == 2.0


def test_an_agent_with_a_limit_is_measured_against_the_best_mean_under_it():
    plan = small(2)
    row = bench.train(plan, bench.EQUAL, seed=0, limit=0.5)
    config = plan.config(bench.EQUAL, seed=0, limit=0.5)
    agent = train_agent(BettingGame(16, SMALL), config).agent
    sampled = exact.agent_policy(agent, SMALL, greedy=False)
    assert exact.tree_of(SMALL).tail(sampled, alpha=0.2)[:2] == (row.mean, row.cvar)
    greedy = exact.agent_policy(agent, SMALL, greedy=True)
    assert [set(table.ravel().tolist()) for table in greedy] == [{0.0, 1.0}] * 2
    assert exact.tree_of(SMALL).tail(greedy, alpha=0.2)[:2] == (row.greedy_mean, row.greedy_cvar)
    assert row.best == exact.best_mean(SMALL, alpha=0.2, limit=0.5)
    assert row.kept is (row.cvar >= 0.475)


def test_the_table_of_an_agent_is_what_it_draws_in_the_game():
    """Of 40,000 games, the mean of the returns within four standard errors."""
    plan, games = small(2), 40_000
    config = plan.config(bench.EQUAL, seed=1, limit=0.5)
    agent = train_agent(BettingGame(16, SMALL), config).agent
    tail = exact.tree_of(SMALL).tail(exact.agent_policy(agent, SMALL, greedy=False), alpha=0.2)
    game, source = BettingGame(games, SMALL), torch.Generator().manual_seed(3)
    state, seen = game.reset(source)
    total, running = torch.zeros(games), torch.ones(games, dtype=torch.bool)
    for _ in range(game.episode_steps):
        decision = agent.decide(
            seen, agent.initial_memory(games), deterministic=False, generator=source
        )
        state, step = game.step(state, decision.action, source)
        total, seen = total + running * step.reward, step.observation
        running &= ~step.terminated
    error = float(total.std()) / games**0.5
    assert abs(float(total.mean()) - tail.mean) < 4.0 * error
    assert abs(float(empirical_cvar(total, alpha=0.2)) - tail.cvar) < 0.1


# ------------------------------------------------------------------------------------------ rows


def row(kind=bench.CAPPING, seed=0, mean=10.0, cvar=5.0, limit=None, best=None, **more):
    fields = {
        "steps": 10, "key": bench.Plan().key(kind), "greedy_mean": 0.0, "greedy_cvar": 0.0,
        "most": 24.0, "level": 1.0,
    }  # fmt: skip
    return bench.Row(
        kind=kind, seed=seed, mean=mean, cvar=cvar, limit=limit, best=best, **{**fields, **more}
    )


def test_the_limit_of_equal_is_the_cvar_of_the_method_and_known_rows_are_not_trained(monkeypatch):
    started = []

    def train(plan, kind, *, seed, limit=None):
        started.append((seed, kind, limit))
        return row(kind, seed, cvar=5.0 + seed, limit=limit, key=plan.key(kind))

    monkeypatch.setattr(bench, "train", train)
    plan, kept = bench.Plan(), []
    near_best = 0.98 * exact.best_cvar(plan.rules, alpha=0.2)
    result = bench.run_all(plan, (1, 2), keep=kept.append)
    assert started == [
        (1, "capping", None), (1, "equal", 6.0), (1, "near-best", near_best),
        (2, "capping", None), (2, "equal", 7.0), (2, "near-best", near_best),
    ]  # fmt: skip
    assert [rows for part in kept for rows in part] == result
    started.clear()
    assert bench.run_all(plan, (1, 2), result) == result
    assert started == []
    # another setting of ours: the method's rows serve again
    changed = bench.Plan(changes=("risk.cvar_kp=0.7",))
    bench.run_all(changed, (2,), result)
    assert started == [(2, "equal", 7.0), (2, "near-best", near_best)]
    started.clear()
    known = {each.kind: each for each in result[:3] if each.kind != "equal"}
    measured = bench.measure(1, 500_000, known=known)
    assert started == [(1, "equal", 6.0)]
    assert [each.kind for each in measured] == list(bench.KINDS)


@pytest.mark.refusal
def test_rows_of_other_settings_or_commands_are_not_judged():
    with pytest.raises(ArtifactError, match="bench capping"):
        bench.from_json({"a": 1})
    rows = [row(kind, limit=1.0) for kind in bench.KINDS]
    assert bench.complete(bench.Plan(), [*rows, row(seed=3)]) == rows
    with pytest.raises(ArtifactError, match="Leave `--judge` out"):
        bench.complete(bench.Plan(share=0.9), rows)


# ---------------------------------------------------------------------------------------- verdicts


def sample(near_best=(6.0, 9.0), equal=(12.0, 11.0), held=(5.0, 6.0)):
    """Two seeds: the method has means of 10 and 12, CVaRs of 5 and 6."""
    return [
        row(seed=0),
        row(seed=1, mean=12.0, cvar=6.0),
        row(bench.EQUAL, 0, mean=equal[0], cvar=held[0], limit=5.0, best=20.0),
        row(bench.EQUAL, 1, mean=equal[1], cvar=held[1], limit=6.0, best=22.0),
        row(bench.NEAR_BEST, 0, mean=8.0, cvar=near_best[0], limit=9.0, best=10.0),
        row(bench.NEAR_BEST, 1, mean=7.0, cvar=near_best[1], limit=9.0, best=10.0),
    ]


def test_claims_are_paired_by_seed():
    """CVaR: +1 and +3; mean: +2 and -1; of four limits 5, 6 and 9 are kept, 6 under 9 is not.

    Half of the interval of two values that differ by d is t * d / 2, t = 12.7062 with one degree.
    """
    tail, mean, kept = bench.verdicts(sample())
    assert (tail.passed, mean.passed, kept.passed) == (True, True, False)
    assert tail.measured == "near-best less capping +2.00 ± 12.71 tokens over 2 seeds"
    assert mean.measured == "equal less capping +0.50 ± 19.06 tokens over 2 seeds"
    # means over best: .6, .5, .8, .7
    assert kept.measured == "3 of 4; mean 0.65 of the best"


def test_claims_fail_where_the_method_is_better():
    assert [verdict.passed for verdict in bench.verdicts(sample(near_best=(4.0, 5.0)))] == [
        False, True, False,
    ]  # fmt: skip
    assert [verdict.passed for verdict in bench.verdicts(sample(equal=(9.0, 9.0)))][1] is False
    # a mean that is bought with a broken limit is no gain
    assert [verdict.passed for verdict in bench.verdicts(sample(held=(4.7, 6.0)))][1] is False
    assert [verdict.passed for verdict in bench.verdicts(sample(held=(4.76, 6.0)))][1] is True


def test_a_limit_is_kept_down_to_a_twentieth_of_its_size():
    assert row(bench.EQUAL, limit=-4.0, cvar=-4.19).kept is True
    assert row(bench.EQUAL, limit=-4.0, cvar=-4.21).kept is False
    assert row(bench.EQUAL, limit=4.0, cvar=3.79).kept is False
    assert row().kept is None


# ----------------------------------------------------------------------------------------- command


def command(file, *more):
    options = ["--seeds", "1", "--first-seed", "5", "--steps", "3136", "--common", "ppo.n_epochs=1"]
    return CliRunner().invoke(app, ["bench", "capping", "--rows", str(file), *options, *more])


def test_the_command_trains_continues_and_judges(tmp_path, monkeypatch):
    file, out = tmp_path / "rows.jsonl", tmp_path / "figures.json"
    trained, real = [], bench.train

    def train(*args, **options):
        trained.append(args[1])
        return real(*args, **options)

    monkeypatch.setattr(bench, "train", train)
    first = command(file)
    rows = [bench.from_json(fields) for fields in campaign.read_rows(file)]
    assert trained == list(bench.KINDS) == [each.kind for each in rows], first.output
    assert {(each.seed, each.steps) for each in rows} == {(5, 3136)}
    assert rows[1].limit == rows[0].cvar
    assert first.exit_code == (not all(v.passed for v in bench.verdicts(rows)))
    trained.clear()
    judged = command(file, "--judge", "--out", str(out))
    again = command(file, "--change", "risk.cvar_margin=0.7")
    assert trained == ["equal", "near-best"], again.output
    figures = json.loads(out.read_text())
    assert [bench.from_json(fields) for fields in figures["rows"]] == rows
    assert judged.output.count("CVaR at least that of Return Capping") == 1
    missing = command(file, "--judge", "--change", "risk.cvar_kp=0.8")
    assert isinstance(missing.exception, ArtifactError) or missing.exit_code == 2
    assert len(campaign.read_rows(file)) == 5
    assert rows[0].level >= 0.0  # the floor of the cap
    assert rows[1].level is not None
