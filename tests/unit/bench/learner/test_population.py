"""A population beside its fixed draws: equal starts, unseen bars, paired differences, rows."""

import json
from datetime import timedelta

import pytest

from command_lab import forked
from oracles import attack as oracle
from stormsail.algorithms.population.config import RunFile, value_of
from stormsail.algorithms.population.fitness import sharpe
from stormsail.algorithms.population.member import first_config, member_folder
from stormsail.algorithms.population.population import train_population
from stormsail.algorithms.run.tasks import binding, market_data, market_panel
from stormsail.bench.learner import population as bench
from stormsail.bench.learner.population import FIXED, POPULATION, PopulationRow
from stormsail.core.errors import ConfigError

TINY = (
    "task.data.world_bars=400", "task.data.world_symbols=1", "task.market.episode_bars=12",
    'task.market.features=[{name="log_return", parameters={horizon=1}}]',
    "network.encoder_sizes=[4]", "network.lstm_hidden_size=4", "network.head_sizes=[4]",
    "critic.num_quantiles=5", "ppo.n_envs=2", "ppo.n_steps=8", "ppo.batch_size=2",
    "ppo.n_epochs=1", "validation.episodes=2", "validation.every_updates=0",
    "population.population_size=2", "population.perturbation_interval=1",
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
    assert span.start_ms == int(whole.ts[300]) == market_data(config).validation.end_ms
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


def test_a_row_holds_what_every_member_made_of_the_unseen_bars(arms, monkeypatch):
    job, done = arms[POPULATION]
    seen = []

    def scored(span, panel, _agent):
        seen.append((span, len(panel.ts)))
        return float(len(seen))

    monkeypatch.setattr(bench, "sharpe_during", scored)
    made = bench.judged(job, done)
    assert made.unseen == (1.0, 2.0)
    assert seen == [(bench.unseen_span(job.plan.training()), 400)] * 2
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


def test_a_campaign_goes_on_from_its_rows(tmp_path):
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out.json"
    settings = [word for setting in TINY for word in ("--set", setting)]
    options = ("bench", "population", "--seeds", 2, "--steps", STEPS, *settings)
    options += ("--rows", rows, "--folder", tmp_path / "members", "--out", out)
    first = forked(*options)
    assert first.returncode in (0, 1), first.stderr
    lines = rows.read_bytes().splitlines(keepends=True)
    assert len(lines) == 4
    figures = json.loads(out.read_text())
    assert first.returncode == (0 if figures["verdicts"][0]["passed"] else 1)
    rows.write_bytes(b"".join(lines[:3]))
    again = forked(*options)
    assert (first.stdout.count(" copies"), again.stdout.count(" copies")) == (4, 1)
    assert rows.read_bytes() == b"".join(lines)
    assert json.loads(out.read_text()) == figures


def test_the_search_of_the_benchmark_covers_the_defaults():
    plan = RunFile.from_mapping(bench.SETTINGS)
    searched = plan.searched()
    assert searched.population_size == 8
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
