"""A population beside its fixed draws: equal starts, unseen bars, paired differences, rows."""

import json
from datetime import timedelta
from types import SimpleNamespace

import pytest

from command_lab import forked
from oracles import attack as oracle
from stormsail.algorithms.fit import Interrupted
from stormsail.algorithms.population.checks import check_search
from stormsail.algorithms.population.config import value_of
from stormsail.algorithms.population.engines.processes import Processes
from stormsail.algorithms.population.fitness import sharpe
from stormsail.algorithms.population.member import first_config, member_folder
from stormsail.algorithms.population.population import train_population
from stormsail.algorithms.run.folder import read_config
from stormsail.algorithms.run.tasks import binding, market_data, market_panel
from stormsail.bench.learner import population as bench
from stormsail.bench.learner.population import FIXED, POPULATION, PopulationRow
from stormsail.core.errors import ConfigError

SMALL = (
    "task.data.world_bars=120", "task.data.world_symbols=1", "task.market.episode_bars=6",
    'task.market.features=[{name="log_return", parameters={horizon=1}}]',
    "network.encoder_sizes=[4]", "network.lstm_hidden_size=4", "network.head_sizes=[4]",
    "critic.num_quantiles=5", "ppo.n_envs=2", "ppo.n_steps=8", "ppo.batch_size=2",
    "ppo.n_epochs=1", "validation.episodes=2", "validation.every_updates=0",
)  # fmt: skip
TINY = (
    *SMALL, "population.population_size=2", "population.perturbation_interval=1",
    'population.search={"ppo.learning_rate"={min=1e-4, max=1e-1, is_log_scale=true}}',
)  # fmt: skip
STEPS = 32  # two updates


def planned(*seeds, common=(), **options):
    return bench.jobs(seeds, steps=STEPS, common=(*TINY, *common), **options)


def row(arm, seed, chosen, *unseen):
    return PopulationRow(arm, seed, chosen, (1.0,) * len(unseen), unseen, 0, {"ppo.gamma": 0.9})


@pytest.fixture(scope="module")
def arms(tmp_path_factory):
    """Both arms of a repeat, trained: job and result by name."""
    folder = tmp_path_factory.mktemp("arms")
    return {job.arm: (job, train_population(job.plan, out=folder / job.arm)) for job in planned(3)}


def test_the_arms_of_a_repeat_differ_in_their_rounds_alone():
    made = planned(0, 1)
    assert [(job.arm, job.seed) for job in made] == [
        (POPULATION, 0), (FIXED, 0), (POPULATION, 1), (FIXED, 1),
    ]  # fmt: skip
    own, fixed = (job.plan for job in made[2:])
    assert own.searched().perturbation_interval == 1
    assert fixed.searched().perturbation_interval == 2  # all updates: one round
    same = fixed.replace(**{"population.perturbation_interval": 1})
    assert same.config_hash() == own.config_hash()
    assert own.training() == fixed.training()
    assert len({job.key for job in made}) == 4


def test_repeats_share_neither_world_nor_seeds_nor_first_values():
    first, second = (job.plan for job in planned(0, 1) if job.arm == POPULATION)
    members = [
        first_config(plan.training(), plan.searched(), number)
        for plan in (first, second)
        for number in range(2)
    ]
    assert [member.seed for member in members] == [0, 1, 2, 3]
    assert len({member.ppo.learning_rate for member in members}) == 4
    assert [plan.task.data.world_seed for plan in (first, second)] == [0, 1]


def test_unseen_bars_are_the_last_quarter_and_behind_those_of_the_fitness():
    config = planned(1)[0].plan.training()
    whole = market_panel(config.replace(**{"task.data.end": None}))
    span = bench.unseen_span(config)
    assert span.start_ms == int(whole.ts[90]) == market_data(config).validation.end_ms
    assert span.end_ms == int(whole.ts[-1]) + timedelta(hours=1) // timedelta(milliseconds=1)


def test_fixed_draws_are_the_members_before_any_copy(arms):
    (_, own), (_, fixed) = arms[POPULATION], arms[FIXED]
    assert [len(run.rounds) for run in (own, fixed)] == [2, 1]
    copied = {each.member for each in own.rounds[0].decisions if each.copies}
    assert len(copied) == 1
    stayed = ({0, 1} - copied).pop()
    ends = [run.rounds[-1].outcomes[stayed] for run in (own, fixed)]
    assert ends[0].fitness == ends[1].fitness
    assert ends[0].applied == ends[1].applied
    assert ends[0].updates == ends[1].updates == 2


def test_the_agent_that_is_judged_is_the_one_of_the_last_fitness(arms):
    for job, done in arms.values():
        config, last = job.plan.training(), done.rounds[-1]
        for outcome in last.outcomes:
            member = member_folder(done.path, outcome.member)
            agent = bench.last_agent(member, binding(config))
            assert sharpe(config, agent) == outcome.fitness


@pytest.mark.parametrize("policy", ["greedy", "sampled"])
def test_the_policy_that_is_judged_is_the_one_of_the_evaluations(arms, monkeypatch, policy):
    job, done = arms[FIXED]
    member, bound = member_folder(done.path, 0), binding(job.plan.training())
    real = bench.read_records
    monkeypatch.setattr(bench, "read_records", lambda state: real(state).replace(policy=policy))
    assert bench.last_agent(member, bound).judged_policy == policy
    monkeypatch.undo()
    config = read_config(member).replace(**{"validation.policy": policy})
    monkeypatch.setattr(bench, "read_config", lambda _: config)  # and no evaluation so far
    assert bench.last_agent(member, bound).judged_policy == policy


def test_a_row_holds_what_every_member_made_of_the_unseen_bars(arms, monkeypatch):
    job, done = arms[POPULATION]
    seen = []

    def scored(span, panel, _agent):
        seen.append((span, len(panel.ts)))
        return float(len(seen))

    monkeypatch.setattr(bench, "sharpe_during", scored)
    made = bench.judged(job, done)
    assert made.unseen == (1.0, 2.0)
    assert seen == [(bench.unseen_span(job.plan.training()), 120)] * 2
    assert made.chosen == done.best
    assert made.fitness == done.rounds[-1].fitness
    assert made.copies == 1
    rate = done.rounds[0].decisions[made.chosen].values["ppo.learning_rate"]
    assert made.values["ppo.learning_rate"] == rate


def test_differences_are_those_of_pairs():
    rows = [
        row(POPULATION, 0, 1, 0.0, 9.0, 1.0, 2.0), row(FIXED, 0, 0, 5.0, 1.0, 2.0, 7.0),
        row(POPULATION, 1, 0, 6.0, 0.0, 1.0, 2.0), row(FIXED, 1, 3, 0.0, 1.0, 3.0, 8.0),
        row(POPULATION, 2, 2, 0.0, 0.0, 8.0, 0.0), row(FIXED, 2, 1, 2.0, 2.0, 4.0, 4.0),
        row(POPULATION, 3, 0, 99.0),
    ]  # fmt: skip
    line = bench.summary(rows)
    assert line.best.values == (9.0, 6.0, 8.0)
    assert line.members.values == (1.5, 1.5, 0.0)
    assert line.fixed_median.values == (3.5, 2.0, 3.0)
    assert line.fixed_best.values == (5.0, 8.0, 2.0)
    assert line.gain.values == (5.5, 4.0, 5.0)
    assert line.gain_on_best.values == (4.0, -2.0, 6.0)
    assert line.gain.half == pytest.approx(oracle.t_half([5.5, 4.0, 5.0]))
    claim, beside = bench.verdicts(line)
    assert (claim.passed, beside.passed) == (True, None)


def test_a_gain_whose_interval_reaches_0_is_not_proven():
    rows = [row(POPULATION, 0, 0, 3.0), row(FIXED, 0, 0, 2.0)]
    rows += [row(POPULATION, 1, 0, 12.0), row(FIXED, 1, 0, 2.0)]
    assert bench.verdicts(bench.summary(rows))[0].passed is False


def test_a_job_trains_below_its_key_and_leaves_nothing_else(arms, tmp_path, monkeypatch):
    places = []

    def trained(_plan, *, out, engine):
        assert engine is None  # this process
        places.append(out)
        return arms[FIXED][1]

    monkeypatch.setattr(bench, "train_population", trained)
    monkeypatch.setattr(bench, "sharpe_during", lambda *_: 0.5)
    kept, passing = planned(3, folder=tmp_path)[1], planned(3)[1]
    assert kept.key == passing.key
    assert bench.run(kept) == bench.run(passing)
    assert places[0] == tmp_path / kept.key
    assert tmp_path not in places[1].parents
    assert not places[1].parent.exists()


def test_members_of_an_arm_train_in_as_many_processes_as_are_asked_for(arms, monkeypatch):
    made = []

    class Noted(Processes):
        def __init__(self, *, workers):
            super().__init__(workers=workers)
            made.append((self, workers))

    def trained(_plan, *, out, engine):
        assert engine is made[-1][0]
        return arms[FIXED][1]

    monkeypatch.setattr(bench, "Processes", Noted)
    monkeypatch.setattr(bench, "train_population", trained)
    monkeypatch.setattr(bench, "sharpe_during", lambda *_: 0.5)
    alone, shared = planned(3)[1], planned(3, workers=2)[1]
    assert shared.key == alone.key  # every engine trains the same members
    bench.run(shared)
    assert [workers for _, workers in made] == [2]


def test_a_campaign_goes_on_from_its_rows(tmp_path, monkeypatch):
    def run(job):
        assert job.workers == 3
        unseen = (2.0 + job.seed, 1.0) if job.arm == POPULATION else (0.0, 1.0)
        return [row(job.arm, job.seed, 0, *unseen)]

    monkeypatch.setattr(bench, "run", run)  # a fork takes it along
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out.json"
    settings = [word for setting in TINY for word in ("--set", setting)]
    options = ("bench", "population", "--seed-base", 4, "--steps", STEPS, *settings)
    options += ("--workers", 3, "--rows", rows, "--folder", tmp_path, "--out", out)
    first = forked(*options)
    assert first.returncode == 0, first.stderr
    lines = rows.read_bytes().splitlines(keepends=True)
    assert len(lines) == 10
    figures = json.loads(out.read_text())
    assert figures["summary"]["gain"]["values"] == [5.5, 6.5, 7.5, 8.5, 9.5]
    assert "holds; gain 7.500 ± 1.963 in Sharpe ratio a year, 5 repeats" in first.stdout
    assert "beside the fixed draw with the best fitness: gain 8.000 ± 1.963" in first.stdout
    rows.write_bytes(b"".join(lines[:7]))
    again = forked(*options, "--force")
    assert (first.stdout.count(" copies"), again.stdout.count(" copies")) == (10, 3)
    assert rows.read_bytes() == b"".join(lines)
    assert json.loads(out.read_text()) == figures


def test_a_campaign_whose_claim_fails_exits_with_1(monkeypatch):
    monkeypatch.setattr(bench, "run", lambda job: [row(job.arm, job.seed, 0, 1.0)])
    settings = [word for setting in TINY for word in ("--set", setting)]
    done = forked("bench", "population", "--seeds", 2, "--steps", STEPS, *settings)
    assert done.returncode == 1
    assert "FAILS; gain 0.000 ± 0.000" in done.stdout


def test_an_interrupted_campaign_says_so_and_exits_by_its_signal(monkeypatch):
    def run(_job):
        raise Interrupted(SimpleNamespace(path="members", reason="a signal came", signal=15))

    monkeypatch.setattr(bench, "run", run)
    settings = [word for setting in TINY for word in ("--set", setting)]
    done = forked("bench", "population", "--seeds", 1, "--steps", STEPS, *settings)
    assert done.returncode == 128 + 15
    assert "interrupted; the same command goes on" in done.stderr


def test_the_search_of_the_benchmark_can_be_searched_and_covers_the_defaults():
    plan = bench.jobs([0], steps=STEPS, common=SMALL)[0].plan
    searched = plan.searched()
    assert (searched.population_size, len(searched.search)) == (8, 3)
    check_search(plan.training(), searched)
    for path, search in searched.search.items():
        assert search.low < value_of(plan, path) < search.high


@pytest.mark.refusal
@pytest.mark.parametrize(
    "setting",
    ['task.data.store="data"', "task.name=CartPole-v1", "task.data.end=2022-01-01T00:00:00Z"],
)
def test_bars_that_the_benchmark_cannot_divide_are_refused(setting):
    with pytest.raises(ConfigError, match="must draw a world of its own"):
        planned(0, common=[setting])
