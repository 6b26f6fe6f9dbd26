"""`stormsail bench tails`: a world whose prediction is known, and comparisons that add no error."""

import inspect
import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import typer

from stormsail.algorithms.run.tasks import market_data
from stormsail.bench.risk import tails as bench
from stormsail.bench.risk import tails_verdicts
from stormsail.bench.risk.tails_chain import Chain, draw, truth
from stormsail.cli.bench import risk as command
from stormsail.core.errors import ChoiceError, ConfigError
from stormsail.core.generators import Generators
from stormsail.core.task import Step
from stormsail.functional import quantile, risk

# --------------------------------------------------------------------------------------- the chain


def one_step(noise, batch=200_000):
    task = Chain(batch=batch, noise=noise)
    generator = torch.Generator().manual_seed(1)
    state, observation = task.reset(generator)
    state, shown = task.step(state, torch.zeros(batch, dtype=torch.int64), generator)
    return observation, state, shown


@pytest.mark.parametrize(("noise", "third"), [("normal", 0.0), ("skewed", -2.0)])
def test_rewards_have_mean_nothing_and_variance_one(noise, third):
    """1 - Exp(1) has the third central moment -2."""
    _, _, shown = one_step(noise)
    reward = shown.reward.double()
    assert float(reward.mean()) == pytest.approx(0.0, abs=0.01)
    assert float(reward.var()) == pytest.approx(1.0, abs=0.02)
    assert float((reward - reward.mean()).pow(3).mean()) == pytest.approx(third, abs=0.1)


def test_a_chain_never_ends_and_shows_nothing():
    observation, state, shown = one_step("normal", batch=3)
    assert observation.tolist() == shown.observation.tolist() == [[1.0]] * 3
    assert state.elapsed.tolist() == [1, 1, 1]
    assert not bool((shown.terminated | shown.truncated).any())
    assert shown.info.sample_weight.tolist() == [1.0] * 3


def test_the_truth_of_normal_noise_by_its_formula():
    """gamma = .6: the variance is 1 / (1 - .36), the spread 1.25; of N(0, 1) CVaR is -2.0627."""
    known = truth("normal", gamma=0.6)
    assert known.spread == pytest.approx(1.25)
    assert known.cvar(0.05) == pytest.approx(-1.25 * 2.062713, abs=1e-5)
    levels = torch.tensor([0.025, 0.5, 0.9], dtype=torch.float64)
    assert known.quantiles(levels).tolist() == pytest.approx([-2.44995, 0.0, 1.60194], abs=1e-4)
    assert known.below(known.quantiles(levels)).tolist() == pytest.approx(levels.tolist())


def test_the_truth_of_skewed_noise_by_its_formula():
    """Of one step: 1 - E is below 1 + ln a with a; the mean below is ln a."""
    known = truth("skewed", gamma=0.0)
    assert known.spread == 1.0
    assert known.cvar(0.05) == pytest.approx(math.log(0.05), rel=0.01)
    level = torch.tensor([0.05], dtype=torch.float64)
    assert float(known.quantiles(level)) == pytest.approx(1.0 + math.log(0.05), rel=0.01)
    assert float(known.below(torch.tensor([1.0 + math.log(0.05)]))) == pytest.approx(
        0.05, abs=0.002
    )
    # Third cumulants add up: -2 / (1 - gamma ** 3).
    sample = truth("skewed", gamma=0.5).sample
    assert float(sample.pow(3).mean()) == pytest.approx(-2.0 / 0.875, rel=0.04)
    assert float(sample.std()) == pytest.approx(truth("skewed", gamma=0.5).spread, rel=0.01)


@pytest.mark.parametrize("noise", ["normal", "skewed"])
def test_the_truth_is_the_return_distribution_of_the_chain(noise):
    generator, gamma = torch.Generator().manual_seed(9), 0.7
    rewards = torch.stack([draw(noise, (100_000,), generator).double() for _ in range(40)])
    total = (gamma ** torch.arange(40).double() @ rewards).sort().values
    known = truth(noise, gamma=gamma)
    assert known.cvar(0.05) == pytest.approx(float(total[:5000].mean()), rel=0.02)
    levels = torch.tensor([0.05, 0.5], dtype=torch.float64)
    assert known.below(total[[5000, 50_000]]).tolist() == pytest.approx(levels.tolist(), abs=0.005)


# ------------------------------------------------------------------------------------- comparisons

CASE = bench.Case("a case")


def exact_prediction(known, count):
    levels = quantile.midpoints(count, like=torch.zeros(1, dtype=torch.float64))
    values = known.quantiles(levels)[None]
    cvar = risk.cvar(values, alpha=bench.ALPHA)
    return bench._Prediction(values, levels, cvar, values.std(-1, correction=0), levels)


@pytest.mark.parametrize("noise", ["normal", "skewed"])
def test_exact_quantiles_have_no_error_but_their_resolution(noise):
    known = truth(noise, gamma=0.6)
    found = bench._compare("chain", CASE, 3, exact_prediction(known, 21), known)
    assert found.coverage == pytest.approx(0.0, abs=1e-3 if noise == "skewed" else 1e-9)
    assert found.error == found.resolution
    levels = torch.tensor([(place + 0.5) / 21 for place in range(21)], dtype=torch.float64)
    assert found.levels == pytest.approx(levels.tolist())
    assert found.values == pytest.approx(known.quantiles(levels).tolist())
    assert (found.world, found.case, found.seed, found.true) == (
        "chain", "a case", 3, known.cvar(0.05)
    )  # fmt: skip
    if noise == "normal":  # the docstring of `risk.cvar` names this
        assert found.resolution == pytest.approx(-0.052, abs=5e-4)


def test_half_a_distribution_has_half_a_tail_and_is_off_by_its_coverage():
    """At the lowest of 21 levels, 1/42, half the quantile -1.98 is passed by .161: 13.7 points."""
    known = truth("normal", gamma=0.0)
    whole = exact_prediction(known, 21)
    half = whole._replace(values=whole.values / 2, cvar=whole.cvar / 2, spread=whole.spread / 2)
    found = bench._compare("chain", CASE, 0, half, known)
    assert found.error == pytest.approx((1.0 + found.resolution) / 2.0 - 1.0)
    assert found.spread == pytest.approx(float(whole.spread) / 2.0)
    levels = whole.levels.numpy()
    from_formula = np.abs(known.below(half.values[0]).numpy() - levels).max()
    assert found.coverage == pytest.approx(100.0 * from_formula)
    assert found.coverage > 13.7


def test_masses_of_atoms_are_read_between_the_atoms():
    """Each atom has what the truth has between the middles beside it: nothing is off."""
    known = truth("normal", gamma=0.6)
    atoms = torch.linspace(-6.0, 6.0, 101, dtype=torch.float64)
    middles = known.below((atoms[:-1] + atoms[1:]) / 2)
    edges = torch.cat([torch.zeros(1), middles, torch.ones(1)])
    probs = edges.diff()[None]
    prediction = bench._Prediction(
        atoms[None],
        probs.cumsum(-1),
        risk.categorical_cvar(probs, atoms, alpha=0.05),
        torch.tensor([1.25]),
    )
    found = bench._compare("chain", CASE, 0, prediction, known)
    assert found.coverage == pytest.approx(0.0, abs=1e-9)
    assert found.resolution == 0.0
    assert found.values == tuple(((atoms[:-1] + atoms[1:]) / 2).tolist())
    assert found.levels == pytest.approx(middles.tolist())
    assert found.error == pytest.approx(0.0, abs=0.01)
    assert found.spread == pytest.approx(1.0)


def test_drawn_returns_below_their_own_quantiles_have_the_levels():
    realised = torch.randperm(1000, generator=torch.Generator().manual_seed(0)).double() - 900.0
    levels = quantile.midpoints(10, like=realised)
    values = torch.quantile(realised, levels).expand(1000, 10)
    prediction = bench._Prediction(
        values, levels, torch.zeros(1000), values.std(-1, correction=0), levels
    )
    found = bench._compare_drawn(CASE, 0, prediction, realised)
    assert found.coverage == pytest.approx(0.0, abs=1e-9)
    assert found.true == pytest.approx(-900.0 + 24.5)  # the mean of 0 to 49
    assert found.predicted == pytest.approx(-900.0 + 49.95)  # a tenth of all atoms is the lowest
    assert found.error == pytest.approx(found.resolution, abs=1e-12)


def atoms_of(values, probs):
    return bench._Prediction(
        values, probs.cumsum(-1), torch.zeros(len(values)), torch.zeros(len(values))
    )


def test_drawn_returns_between_two_atoms_are_halved_between_them():
    """Returns 0, 1, ... 999 and atoms at 0, 100, ... 1000: exact masses cover every level."""
    realised = torch.arange(1000).double() + 0.5
    atoms = torch.linspace(0.0, 1000.0, 11, dtype=torch.float64).expand(1000, 11)
    probs = torch.tensor([0.05, *[0.1] * 9, 0.05]).double().expand(1000, 11)
    found = bench._compare_drawn(CASE, 0, atoms_of(atoms, probs), realised)
    assert found.coverage == pytest.approx(0.0, abs=1e-5)
    assert found.resolution == 0.0


def test_the_spread_of_many_starts_is_that_of_their_mixture():
    """-11 or -9 from two starts, 9 or 11 from two: a deviation of 1 each, of sqrt(101) in all."""
    values = torch.tensor([[-11.0, -9.0], [-11.0, -9.0], [9.0, 11.0], [9.0, 11.0]]).double()
    realised = torch.tensor([-11.0, -9.0, 9.0, 11.0]).double()
    levels = torch.tensor([0.25, 0.75]).double()
    prediction = bench._Prediction(values, levels, torch.zeros(4), torch.ones(4).double(), levels)
    assert bench._compare_drawn(CASE, 0, prediction, realised).spread == pytest.approx(1.0)
    halved = prediction._replace(values=values / 2.0)
    assert bench._compare_drawn(CASE, 0, halved, realised).spread == pytest.approx(0.5)
    # All on the first atom from the first starts, on the second from the others: -11 or 11.
    probs = torch.tensor([[1.0, 0.0]] * 2 + [[0.0, 1.0]] * 2).double()
    found = bench._compare_drawn(CASE, 0, atoms_of(values, probs), realised)
    assert found.spread == pytest.approx(11.0 / math.sqrt(101.0))


@pytest.mark.parametrize("mode", ["argmin", "mixture"])
def test_the_resolution_is_that_of_the_levels_that_each_critic_has(mode):
    """Twins that are mixed say 32 values of 16 levels; none of them is finer for that."""
    changes = {
        "critic.num_quantiles": 16, "critic.twin_dist_mode": mode, "critic.levels": "uniform",
    }  # fmt: skip
    case = bench.Case("of 16", changes)
    found = bench.measure("chain", case, bench.Plan.quick(), 0)
    assert len(found.values) == (32 if mode == "mixture" else 16)
    known = truth("normal", gamma=0.9)
    levels = quantile.midpoints(16, like=torch.zeros(1, dtype=torch.float64))
    exact = float(risk.cvar(known.quantiles(levels), alpha=0.05)) / known.cvar(0.05) - 1.0
    assert found.resolution == exact
    assert exact == pytest.approx(-0.097, abs=1e-3)


def test_the_tail_of_many_starts_is_that_of_their_mixture():
    """Atoms 0, 1 and -4, -2: a twentieth of their four is a part of -4, not the mean of both."""
    values = torch.tensor([[0.0, 1.0], [-4.0, -2.0]]).double()
    prediction = bench._Prediction(
        values, torch.tensor([0.25, 0.75]).double(), torch.zeros(2), torch.ones(2)
    )
    assert predicted_cvar(prediction) == -4.0
    # 2 % at -4 and 98 % at -2, beside 0 and 1: of all, 1 % at -4 and 4 % of -2 make a twentieth.
    cumulated = torch.tensor([[0.5, 1.0], [0.02, 1.0]]).double()
    prediction = prediction._replace(levels=cumulated)
    assert predicted_cvar(prediction) == pytest.approx((0.01 * -4 + 0.04 * -2) / 0.05)


def predicted_cvar(prediction):
    return bench._compare_drawn(CASE, 0, prediction, torch.tensor([-1.0, 1.0]).double()).predicted


class _Paying:
    """Two environments that pay 1 a step; the first ends with its third step."""

    batch = 2

    def reset(self, generator):
        del generator
        return 0, torch.ones(2, 1)

    def step(self, state, action, generator):
        del action, generator
        ends = torch.tensor([state == 2, False])
        pays = torch.ones(2)
        return state + 1, Step(torch.ones(2, 1), pays, ends, torch.zeros(2).bool(), None)


class _Idle:
    def initial_memory(self, batch):
        return torch.zeros(batch)

    def decide(self, observation, memory, *, deterministic, generator=None):
        assert not deterministic
        assert observation.shape == (2, 1)
        assert isinstance(generator, torch.Generator)
        return type("Chosen", (), {"action": torch.zeros(2), "memory": memory})


def test_the_return_of_a_start_is_discounted_and_ends_with_its_episode(monkeypatch):
    monkeypatch.setattr(bench, "_predict", lambda *_: "predicted")
    prediction, total = bench._realise(_Idle(), _Paying(), 0.5, 5, Generators(0))
    assert prediction == "predicted"
    assert total.tolist() == [1.75, 1.9375]


# ---------------------------------------------------------------------------------- drawn markets

SMALL = bench.Case("small", {"task.data.world_bars": 6000, "task.data.world_symbols": 2})
QUICK = bench.Plan.quick()


def tasks_of_market(monkeypatch, seed):
    """Return settings, the task of training and that of evaluation; nothing is trained."""
    seen = {}

    def trained(task, config):
        seen.update(config=config, learned=task)
        return SimpleNamespace(agent=None)

    def realised(agent, task, gamma, horizon, generators):
        del agent, generators
        seen.update(unseen=task, gamma=gamma, horizon=horizon)
        levels = torch.tensor([0.5]).double()
        prediction = bench._Prediction(torch.zeros(2, 1).double(), levels, None, None, levels)
        return prediction, torch.tensor([-1.0, 1.0]).double()

    monkeypatch.setattr(bench, "train_agent", trained)
    monkeypatch.setattr(bench, "_realise", realised)
    found = bench.measure("garch-jump", SMALL, QUICK, seed)
    assert (found.world, found.seed) == ("garch-jump", seed)
    assert (seen["gamma"], seen["horizon"]) == (0.9, 44)  # 0.9 ** 44 = 0.0097
    return seen


def rows_of(task, steps):
    """Return the rows at which episodes start, from the first to the last of all that may."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.cat([task.reset(generator)[0].row for _ in range(steps)])
    return int(rows.min()), int(rows.max())


def test_the_truth_is_drawn_from_bars_that_training_never_saw(monkeypatch):
    """Of 6000 bars training ends one lookback before row 3600, where the evaluation begins."""
    seen = tasks_of_market(monkeypatch, 0)
    data = market_data(seen["config"])
    spans = [span.rows(data.panel.ts.numpy()) for span in (data.train, data.validation)]
    assert (spans[1].start, spans[1].stop) == (3600, 6000)
    assert spans[0].stop == 3600 - data.features.lookback
    latest = [span.stop - 1 - 88 for span in spans]  # an episode of two horizons fits
    learned, unseen = rows_of(seen["learned"], 500), rows_of(seen["unseen"], 200)
    assert seen["unseen"].batch == QUICK.episodes
    assert learned[1] + 88 < spans[0].stop
    assert unseen == (3600, latest[1])
    assert learned[1] == pytest.approx(latest[0], abs=40)


def test_each_seed_has_a_market_of_its_own(monkeypatch):
    """Otherwise the error of one drawn truth is that of all seeds, and no deviation shows it."""
    first, second = (tasks_of_market(monkeypatch, seed)["config"] for seed in (0, 3))
    assert [one.task.data.world_seed for one in (first, second)] == [0, 3]
    closes = [market_data(one).panel.digest() for one in (first, second)]
    assert closes[0] != closes[1]


# ------------------------------------------------------------------------------ plans and summaries


def tail(**changes):
    fields = {
        "world": "w", "case": "c", "seed": 0, "coverage": 1.0, "predicted": -1.0, "true": -2.0,
        "error": -0.5, "resolution": -0.1, "spread": 1.0,
    }  # fmt: skip
    return bench.Tail(**{**fields, **changes})


def test_seeds_of_one_case_become_one_line_in_percent():
    found = tails_verdicts.summaries(
        [tail(), tail(seed=1, coverage=3.0, error=-0.1), tail(case="d", coverage=7.0)]
    )
    assert [(one.world, one.case) for one in found] == [("w", "c"), ("w", "d")]
    assert found[0].coverage.mean == 2.0
    assert found[0].coverage.deviation == pytest.approx(math.sqrt(2.0))
    assert found[0].error.mean == pytest.approx(-30.0)
    assert found[0].resolution == pytest.approx(-10.0)
    assert (found[1].coverage.mean, found[1].coverage.deviation) == (7.0, 0.0)
    assert str(found[0].coverage) == "2.00 ± 1.41"


@pytest.mark.refusal
def test_names_of_worlds_and_cases_are_known_or_refused():
    assert bench.named("chain, garch-jump", "default") == (
        ("chain", "garch-jump"), (bench.DEFAULT, bench.CATEGORICAL),
    )  # fmt: skip
    assert bench.named("chain", "all")[1] == bench.CASES
    assert bench.named("chain", "pictured")[1] == (
        bench.DEFAULT, bench.LAMBDA_RETURN, bench.CATEGORICAL,
    )  # fmt: skip
    with pytest.raises(ChoiceError) as refused:
        bench.named("chian", "all")
    assert str(refused.value) == (
        "`worlds` must be one of `chain`, `chain-skewed`, `garch-jump`, `ruin`, `two-modes`, "
        "`heavy-scales`, `garch-states`, `clustered`; found `chian`. "
        "Did you mean `chain`? [unknown-choice]"
    )
    with pytest.raises(
        ChoiceError, match="`cases` must be one of `all`, `default`, `pictured`, `none`;"
    ):
        bench.named("chain", "some")


def test_every_case_changes_what_it_says():
    plan = bench.Plan.quick()
    base = bench._settings(bench.Case("none"), plan, 0, updates=1, task="CartPole-v1")
    for case in bench.CASES:
        config = bench._settings(case, plan, 0, updates=1, task="CartPole-v1")
        assert (config == base) == (case.name == "N 32"), case.name  # the default of the settings


def test_further_cases_are_settings():
    text = " critic.num_quantiles=16; critic.kind = categorical "
    _, (case,) = bench.named("ruin", "none", [text])
    assert case.name == "critic.num_quantiles=16; critic.kind = categorical"
    assert case.changes == {"critic.num_quantiles": 16, "critic.kind": "categorical"}
    _, (short,) = bench.named("ruin", "none", [f"atoms: {text}"])
    assert (short.name, short.changes) == ("atoms", case.changes)
    assert bench.named("ruin", "default", [text])[1][:2] == (bench.DEFAULT, bench.CATEGORICAL)


@pytest.mark.refusal
def test_a_further_case_of_no_setting_is_refused_before_the_work():
    with pytest.raises(ConfigError, match="num_quantils"):
        bench.named("ruin", "none", ["critic.num_quantils=16"])
    with pytest.raises(ConfigError, match="must have the form `path=value`"):
        bench.named("ruin", "none", ["critic"])


def test_worlds_with_states_leave_out_what_is_about_chains():
    further = bench.Case("x=1", {"critic.num_quantiles": 16})
    planned = bench.jobs(["chain", "ruin"], (*bench.CASES, further), QUICK, [7, 8])
    assert len([job for job in planned if job.world == "chain"]) == 2 * (len(bench.CASES) + 1)
    states = [(job.case.name, job.seed) for job in planned if job.world == "ruin"]
    names = [bench.DEFAULT.name, "N 32", bench.CATEGORICAL.name, "x=1"]
    assert states == [(name, seed) for name in names for seed in (7, 8)]


def test_a_run_is_known_by_everything_it_depends_on():
    base = bench.Job("ruin", CASE, QUICK, 0)
    others = [
        bench.Job("two-modes", CASE, QUICK, 0),
        bench.Job("chain", CASE, QUICK, 0),
        bench.Job("ruin", bench.Case("a case", {"critic.num_quantiles": 16}), QUICK, 0),
        bench.Job("ruin", CASE, replace(QUICK, state_rows=8192), 0),
        bench.Job("ruin", CASE, QUICK, 1),
    ]
    keys = [job.key for job in (base, *others)]
    assert len(set(keys)) == len(keys)
    assert bench.Job("ruin", CASE, QUICK, 0).key == base.key


def test_nothing_is_held_out_that_settings_are_chosen_by():
    assert list(bench.HELD_OUT) == ["clustered"]
    default = inspect.signature(command.tails).parameters["worlds"].default
    assert default.split(",") == [*bench.WORLDS, *bench.STATE_WORLDS]


# ------------------------------------------------------------------------------------- the command


def test_finished_runs_are_kept_and_continued(tmp_path, monkeypatch, capsys):
    trained = []

    def run(job):
        trained.append((job.world, job.case.name, job.seed))
        return [tail(world=job.world, case=job.case.name, seed=job.seed, values=(1.0,))]

    monkeypatch.setattr(bench, "run", run)
    path = tmp_path / "rows.jsonl"
    options = {"worlds": "chain", "cases": "default", "quick": True, "rows": [path]}
    command.tails(seeds=1, first_seed=5, **options)
    command.tails(seeds=2, first_seed=5, **options)
    names = (bench.DEFAULT.name, bench.CATEGORICAL.name)
    assert trained == [("chain", name, seed) for seed in (5, 6) for name in names]
    assert len(path.read_text().splitlines()) == 4
    assert "chain, N 64, κ 0.02, n 64, seed 6: CVaR off by at most -50.0 %" in (
        capsys.readouterr().out
    )


def test_the_command_measures_prints_and_writes(tmp_path, capsys):
    out = tmp_path / "tails.json"
    command.tails(worlds="chain", cases="default", seeds=2, jobs=1, quick=True, out=out)
    rows = json.loads(out.read_text(), parse_constant=pytest.fail)["rows"]
    assert [(row["case"], row["seed"]) for row in rows] == [
        (case, seed) for case in ("N 64, κ 0.02, n 64", "categorical, 101 atoms") for seed in (0, 1)
    ]
    expected = truth("normal", gamma=0.9).cvar(0.05)
    assert {row["true"] for row in rows} == {expected}
    assert all(row["error"] == row["predicted"] / row["true"] - 1.0 for row in rows)
    printed = capsys.readouterr().out
    assert "mean ± standard deviation over seeds" in printed
    assert "holds" not in printed  # seconds prove nothing, so nothing is claimed
    assert "FAILS" not in printed
    command.tails(rows=[out], quick=True)
    again = capsys.readouterr().out
    assert again == printed[printed.index(again.splitlines()[0]) :]  # all but the training


@pytest.mark.refusal
def test_rows_without_values_have_no_picture(tmp_path):
    file = tmp_path / "rows.json"
    file.write_text('{"rows": []}')
    with pytest.raises(typer.BadParameter) as refused:
        command.tails(rows=[file], chart=tmp_path)
    expected = "`--rows` must hold the values of a chain for charts; found none. Measure it."
    assert refused.value.message == expected


@pytest.mark.refusal
def test_rows_that_are_none_are_refused(tmp_path):
    found = []
    for text in (None, "{", "[]", "{}", '{"rows": [{"world": "chain"}]}', '{"rows": [3]}'):
        file = tmp_path / "rows.json"
        if text is not None:
            file.write_text(text)
        with pytest.raises(typer.BadParameter) as refused:
            command.tails(rows=[file])
        found.append(refused.value.message)
    start = f"`--rows` must be a file that `--out` of this command wrote; found {file}: "
    assert all(one.startswith(start) and one.endswith(". Write one first.") for one in found)


@pytest.mark.refusal
def test_a_folder_that_is_not_there_is_refused_before_the_work(tmp_path):
    nowhere = tmp_path / "no" / "tails.json"
    with pytest.raises(typer.BadParameter) as refused:
        command.tails(out=nowhere)
    expected = f"the folder of `tails.json` must exist; found no {nowhere.parent}. Make it."
    assert refused.value.message == expected
