"""`stormsail bench limits`: settings, baselines at a CVaR, rows that are kept, the verdicts."""

import json
import math
import shutil
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from limits_lab import FOUR_HOURS, MISSING_ROW, TINY, TRAIN_BARS, job, write_store
from stormsail import __version__
from stormsail.algorithms.run.tasks import market_data
from stormsail.bench.risk import limits as bench
from stormsail.bench.risk import limits_baselines as baselines
from stormsail.bench.risk import limits_verdicts as judgement
from stormsail.bench.risk.unseen import Episodes, estimated_cvar, trade_weights
from stormsail.cli.main import app
from stormsail.core.errors import ArtifactError, DataError

NAMES = (
    "limit", "free", "limit, likeliest", "hold",
    "free, equal CVaR", "volatility, equal CVaR", "hold, equal CVaR",
    "free, preset", "volatility, preset", "hold, preset",
)  # fmt: skip


def unseen(store, **changes):
    config = job(store, **changes).settings(is_limited=True)
    return Episodes.of(config, market_data(config).validation, starts=4)


# ---------------------------------------------------------------------------------- who is trained


def test_bars_are_divided_in_the_row_that_the_day_says(limits_store):
    for end, row in (("2024-01-01", TRAIN_BARS), ("2023-12-31T23:00", TRAIN_BARS - 1)):
        config = job(limits_store, train_end=end).settings(is_limited=True)
        data = market_data(config)
        first = int(data.panel.ts[row])
        assert data.validation.start_ms == first
        assert data.train.end_ms == int(data.panel.ts[row - data.features.lookback])
        assert data.validation.end_ms == int(data.panel.ts[-1]) + 3_600_000


def test_both_agents_differ_by_the_limit_alone(limits_store):
    planned = job(limits_store, horizon="week", limit=-0.05, changes=("ppo.gamma=0.9",))
    held, free = (planned.settings(is_limited=limited) for limited in (True, False))
    assert (held.seed, held.ppo.total_steps, held.ppo.gamma) == (3, 768, 0.9)
    assert held.task.market.episode_bars == 168
    assert held.task.market.levels == (0.0, 0.25, 0.5, 0.75, 1.0)
    costs = held.task.market.costs
    assert (costs.taker_fee, costs.half_spread, costs.impact) == (0.001, 0.0002, 0.0)
    assert held.risk.cvar_use_constraint
    assert held.risk.cvar_limit == -0.05
    assert not free.risk.acts
    assert (held.risk.form, free.risk.form) == ("critic", "budget")  # derived from the limit
    derived = {"risk.form": "critic", "ppo.advantage_scale": "slow"}
    assert free.replace(**derived, **{"risk.cvar_use_constraint": True}) == held
    assert job(limits_store).settings(is_limited=True).task.market.episode_bars == 24
    longer = job(limits_store, changes=(FOUR_HOURS,)).settings(is_limited=True)
    assert longer.task.market.episode_bars == 6


def test_a_run_is_known_by_its_settings_and_bars_and_not_by_where_they_lie(limits_store, tmp_path):
    planned = job(limits_store)
    shutil.copytree(limits_store, tmp_path / "elsewhere")
    assert job(tmp_path / "elsewhere").key == planned.key
    others = [
        job(limits_store, seed=4),
        job(limits_store, limit=-0.02),
        job(limits_store, train_end="2024-01-02"),
        job(limits_store, symbols=("AAA/USDT",)),
        job(limits_store, greedy=True),
        job(write_store(tmp_path / "other", seed=1)),
    ]
    assert len({planned.key, *(other.key for other in others)}) == 7


@pytest.mark.refusal
@pytest.mark.parametrize("end", ["2023-11-01", "2024-03-01"])
def test_a_day_that_leaves_nothing_to_train_on_or_to_judge_by_is_refused(limits_store, end):
    with pytest.raises(DataError) as refused:
        job(limits_store, train_end=end).settings(is_limited=True)
    assert str(refused.value) == (
        "there must be bars before `--train-end` to train on and later ones to judge by; found "
        "bars that open from 2023-11-01T00:00:00Z to 2024-01-30T23:00:00Z, and "
        f"{end}T00:00:00Z. Choose a time between the two. [data-span]"
    )


# ------------------------------------------------------------------------------------ the baselines


def test_hold_buys_once_and_again_where_the_bar_was_missing(limits_store):
    episodes = unseen(limits_store)
    weights = baselines.hold(episodes).weights(0.3)
    asked = ~weights.isnan()
    assert asked[0].all()
    assert weights[asked].unique().tolist() == [pytest.approx(0.3)]
    places = asked[1:].nonzero()
    # the row of the missing bar, as seen by the episodes of BBB that decide on it
    for step, place in places.tolist():
        assert int(episodes.symbol[place]) == 1
        assert int(episodes.row[place]) + step + 1 == MISSING_ROW
    assert len(places) == 4  # that many days contain it after their first decision


def test_a_volatility_target_divides_by_what_was_realised_in_thirty_days(limits_store):
    episodes = unseen(limits_store)
    target = baselines.volatility_target(episodes)
    weights = target.weights(0.5)
    assert target.most == 4.0
    assert not weights[0].isnan().any()
    assert weights[1:].isnan().all()  # daily, and an episode is a day
    close = episodes.panel.close.numpy()
    for place in (0, 9, 77):
        symbol, row = int(episodes.symbol[place]), int(episodes.row[place])
        returns = np.diff(np.log(close[row - 720 : row + 1, symbol]))
        sigma = math.sqrt((returns**2).mean() * 365 * 24)
        assert float(weights[0, place]) == pytest.approx(min(0.5 / sigma, 1.0), rel=1e-5)
    assert (target.weights(4.0)[0] <= 1.0).all()
    week = job(limits_store, horizon="week").settings(is_limited=True)
    long = Episodes.of(week, market_data(week).train, starts=1)
    asked = ~baselines.volatility_target(long).weights(0.5).isnan()
    assert asked.all(1).nonzero().flatten().tolist() == list(range(0, 168, 24))


def cvar(account, episodes):
    return estimated_cvar(account.log_growth, episodes.block).value


def test_a_strategy_is_scaled_to_a_cvar_with_its_costs_from_the_side_of_the_smaller_tail(
    limits_store,
):
    episodes = unseen(limits_store)
    for strategy in (baselines.hold(episodes), baselines.volatility_target(episodes)):
        wanted = 0.4 * cvar(trade_weights(episodes, strategy.weights(strategy.most)), episodes)
        match = baselines.at_cvar(episodes, strategy, wanted)
        assert match.is_equal
        assert 0.0 <= cvar(match.account, episodes) - wanted < 1e-4
        again = trade_weights(episodes, strategy.weights(match.multiplier))
        assert torch.equal(again.log_growth, match.account.log_growth)
        larger = trade_weights(episodes, strategy.weights(match.multiplier + strategy.most / 256))
        assert cvar(larger, episodes) < wanted


def test_a_cvar_that_no_multiplier_gives_is_reported(limits_store):
    episodes = unseen(limits_store)
    strategy = baselines.hold(episodes)
    whole = cvar(trade_weights(episodes, strategy.weights(1.0)), episodes)
    below = baselines.at_cvar(episodes, strategy, whole - 0.01)
    assert (below.multiplier, below.is_equal) == (1.0, False)
    equal = baselines.at_cvar(episodes, strategy, whole)
    assert (equal.multiplier, equal.is_equal) == (1.0, True)
    nothing = baselines.at_cvar(episodes, strategy, 0.0)
    assert (nothing.multiplier, nothing.is_equal) == (0.0, True)
    gain = baselines.at_cvar(episodes, strategy, 0.01)
    assert (gain.multiplier, gain.is_equal) == (0.0, False)


class Steady:
    """Always the same level."""

    def __init__(self, action) -> None:
        self.action = action

    def initial_memory(self, batch):
        return torch.zeros(batch, 0)

    def decide(self, observation, memory, *, deterministic, generator=None):
        del deterministic, generator
        return type("Chosen", (), {"action": torch.full((len(observation),), self.action),
                                   "memory": memory})  # fmt: skip


def test_agents_and_baselines_are_judged_by_the_same_episodes(limits_store):
    """The limited agent always holds a quarter, the free one all: a quarter of it is the same."""
    changes = (FOUR_HOURS, "task.market.costs.taker_fee=0.0")
    config = job(limits_store, changes=changes).settings(is_limited=True)
    data = market_data(config)
    judged = Episodes.of(config, data.validation, starts=4)
    seen = Episodes.of(config, data.train, starts=1)
    results = bench.judge(Steady(4), Steady(1), judged, seen, limit=-0.02, greedy=False)
    by_name = {result.name: result for result in results}
    assert tuple(by_name) == NAMES
    limit, free, likeliest = by_name["limit"], by_name["free"], by_name["limit, likeliest"]
    assert likeliest == limit._replace(name="limit, likeliest")
    assert (limit.gain, limit.gain_half, limit.multiplier) == (0.0, 0.0, 1.0)
    assert limit.exposure == pytest.approx(0.25, rel=1e-3)
    assert limit.mean - free.mean == pytest.approx(free.gain, abs=1e-12)
    scaled = by_name["free, equal CVaR"]
    assert scaled.multiplier == pytest.approx(0.25, abs=0.004)
    assert scaled.gain == pytest.approx(0.0, abs=1e-5)
    assert scaled.is_equal
    for name in NAMES[4:7]:
        assert 0.0 <= by_name[name].cvar - limit.cvar < 1e-4
        assert by_name[name].gain == pytest.approx(limit.mean - by_name[name].mean, abs=1e-12)
    # those set in training have the limit there, and here what comes of it
    before = baselines.at_cvar(seen, baselines.hold(seen), -0.02)
    held = by_name["hold, preset"]
    assert held.multiplier == before.multiplier
    again = trade_weights(judged, baselines.hold(judged).weights(before.multiplier))
    assert held.cvar == cvar(again, judged)
    apart = again.log_growth[judged.apart]
    assert held.apart_mean == float(apart.mean())
    assert held.apart_cvar == estimated_cvar(apart, judged.week[judged.apart]).value
    swapped = bench.judge(Steady(4), Steady(1), judged, seen, limit=-0.02, greedy=True)
    assert swapped[2].name == "limit, drawn"


# -------------------------------------------------------------------------------- rows and command


def command(store, rows, *more):
    settings = [word for text in (*TINY, FOUR_HOURS) for word in ("--set", text)]
    options = ["--train-end", "2024-01-01", "--horizon", "day", "--steps", "768", "--seeds", "2"]
    return CliRunner().invoke(
        app,
        ["bench", "limits", "--store", str(store), "--rows", str(rows), "--seed-base", "5",
         *options, *settings, *more],
    )  # fmt: skip


def test_two_seeds_are_trained_kept_and_judged_again_without_training(
    limits_store, tmp_path, monkeypatch
):
    rows, chart, out = (tmp_path / name for name in ("rows.jsonl", "chart.svg", "out.json"))
    first = command(limits_store, rows, "--chart", str(chart), "--out", str(out))
    assert first.exit_code in (0, 1), first.output
    stored = [json.loads(line) for line in rows.read_text().splitlines()]
    assert [row["seed"] for row in stored] == [5, 6]
    for row in stored:
        assert [result["name"] for result in row["results"]] == list(NAMES)
        assert (row["horizon"], row["limit"], row["steps"]) == ("day", -0.03, 768)
        # 180 bars of four hours: 174 starts of two symbols, 29 of them a day apart, in five weeks
        assert (row["episodes"], row["apart"], row["blocks"]) == (348, 58, 5)
        assert row["symbols"] == ["AAA/USDT", "BBB/USDT"]
        assert (row["train_end"], row["judged_to"]) == (
            "2024-01-01T00:00:00Z", "2024-01-31T00:00:00Z",
        )  # fmt: skip
        assert row["version"] == __version__
    assert json.loads(out.read_text())["rows"] == stored
    ET.fromstring(chart.read_text())  # noqa: S314 - our own

    monkeypatch.setattr(bench, "run", None)  # nobody trains any more
    again = command(limits_store, rows)
    table = first.output[first.output.index("┏") :]
    assert again.output[again.output.index("┏") :] == table
    assert again.exit_code == first.exit_code
    alone = CliRunner().invoke(app, ["bench", "limits", "--rows", str(rows)])
    assert alone.output[alone.output.index("┏") :] == table


def test_a_seed_that_is_missing_is_trained_and_added(limits_store, tmp_path, monkeypatch):
    trained = []

    def run(planned):
        trained.append(planned.seed)
        return row(seed=planned.seed, key=planned.key)

    monkeypatch.setattr(bench, "run", run)
    rows = tmp_path / "rows.jsonl"
    command(limits_store, rows, "--seeds", "1")
    command(limits_store, rows, "--seeds", "3")
    command(limits_store, rows, "--seeds", "3", "--policy", "likeliest")
    assert trained == [5, 6, 7, 5, 6, 7]
    assert len(rows.read_text().splitlines()) == 6


@pytest.mark.refusal
def test_lines_that_are_no_rows_are_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row().as_dict()) + '\n{"key": "a"}\n')
    with pytest.raises(ArtifactError) as refused:
        bench.stored_rows(path, [row().as_dict(), {"key": "a"}])
    assert str(refused.value) == (
        f"every line of {path} must be a row that the same command wrote; found line 2, KeyError: "
        "'results'. Remove that line, and its run is trained again; or name another file. "
        "[artifact-corrupt]"
    )


@pytest.mark.refusal
def test_without_store_and_rows_there_is_nothing_to_judge():
    result = CliRunner().invoke(app, ["bench", "limits"])
    assert result.exit_code == 2
    assert "must be given; found neither" in result.output


# ------------------------------------------------------------------------------------ the verdicts


def result(name="limit", **changes):
    fields = {
        "name": name, "multiplier": 1.0, "is_equal": True, "mean": 0.002, "mean_half": 0.001,
        "cvar": -0.07, "cvar_low": -0.09, "cvar_high": -0.05, "apart_mean": 0.001,
        "apart_cvar": -0.06, "apart_low": -0.1, "apart_high": -0.04, "exposure": 0.2,
        "turnover": 1.5, "invested": 0.5, "gain": 0.0, "gain_half": 0.0,
    }  # fmt: skip
    return bench.Result(**{**fields, **changes})


def row(own=None, against=None, **changes):
    own = result() if own is None else own
    others = (
        result("free", cvar=-0.2, exposure=0.9),
        *(result(name, gain=0.001, gain_half=0.0005) for name in NAMES[4:7]),
    )
    if against is not None:
        others = (*others[:-1], against)
    fields = {
        "key": "k", "seed": 0, "horizon": "week", "limit": -0.08, "steps": 100, "changes": (),
        "greedy": False, "symbols": ("AAA/USDT",), "train_end": "a", "judged_to": "b",
        "episodes": 7, "apart": 3, "blocks": 2, "multiplier": 0.5, "largest_multiplier": 1.0,
        "infeasible_at": None, "seconds": 1.0, "version": "0", "results": (own, *others),
    }  # fmt: skip
    return bench.Row(**{**fields, **changes})


def test_a_limit_is_kept_proven_or_not_broken_by_estimate_lower_and_upper_end():
    """-.07, from -.09 to -.05."""
    limits = (-0.1, -0.08, -0.06, -0.04)
    own = result()
    assert [own.is_proven(limit) for limit in limits] == [True, False, False, False]
    assert [own.is_kept(limit) for limit in limits] == [True, True, False, False]
    assert [own.is_not_broken(limit) for limit in limits] == [True, True, True, False]
    assert result(exposure=0.01).trades
    assert not result(exposure=0.0099).trades


def test_a_row_is_the_same_after_the_file():
    stored = row(changes=("a=1",))
    assert bench.Row.parse(json.loads(json.dumps(stored.as_dict()))) == stored


@pytest.mark.parametrize(
    ("broken", "idle", "passed"), [(1, 0, True), (0, 1, True), (2, 0, False), (1, 1, False)]
)
def test_four_of_five_must_keep_the_limit_and_trade(broken, idle, passed):
    kinds = [result(cvar=-0.09, cvar_low=-0.1)] * broken + [result(exposure=0.0)] * idle
    kinds += [result(cvar_low=-0.075)] * (5 - len(kinds))
    rows = [row(own, seed=seed) for seed, own in enumerate(kinds)]
    verdict = judgement.verdicts(rows)[0]
    assert verdict.passed is passed
    assert verdict.claim == (
        "limit -0.08 a week, 100 steps, drawn actions: kept on unseen bars in 4 of 5 seeds, by "
        "agents that trade"
    )
    assert verdict.measured == (
        f"by the estimate in {5 - broken} of 5, proven in {5 - broken - idle}, not proven broken "
        f"in 5; {5 - idle} trade; without a limit 0 keep it"
    )


def test_agents_are_compared_with_baselines_of_their_cvar_by_seeds_and_by_weeks():
    """Gains .001 and .003: mean .002, deviation .00141, t(1) 12.706: ± .0127."""
    name = "hold, equal CVaR"
    pair = [
        row(seed=0, against=result(name, gain=0.001, gain_half=0.002)),
        row(seed=1, against=result(name, gain=0.003, gain_half=0.002, is_equal=False)),
    ]
    *_, verdict = judgement.verdicts(pair)
    assert verdict.passed is None
    assert verdict.claim == "limit -0.08 a week, 100 steps, drawn actions: against hold, equal CVaR"
    assert verdict.measured == (
        "mean return +0.0020 ± 0.0127 over seeds; by the interval of a seed better in 1, worse in "
        "0 of 2; no multiplier gives that CVaR in 1"
    )
    (alone,) = judgement.verdicts([row(against=result(name, gain=-0.004, gain_half=0.002))])[-1:]
    assert "-0.0040 ± 0.0020 over seeds; by the interval of a seed better in 0, worse in 1" in (
        alone.measured
    )


def test_seeds_of_one_setting_stand_together():
    rows = [
        row(seed=1), row(seed=0, limit=-0.05), row(seed=0), row(seed=0, changes=("a=1",)),
        row(seed=0, greedy=True),
    ]  # fmt: skip
    grouped = judgement.groups(rows)
    assert [[r.seed for r in own] for own in grouped.values()] == [[0, 1], [0], [0], [0]]
    assert [str(key) for key in grouped] == [
        "limit -0.08 a week, 100 steps, drawn actions",
        "limit -0.08 a week, 100 steps, likeliest actions",
        "limit -0.08 a week, 100 steps, a=1, drawn actions",
        "limit -0.05 a week, 100 steps, drawn actions",
    ]


def test_a_line_counts_seeds_and_averages_them():
    lines = judgement.summaries(
        [row(seed=0), row(result(mean=0.004, cvar=-0.11, exposure=0.0, cvar_high=-0.07), seed=1)]
    )
    own = lines[0]
    assert (own.name, own.seeds, own.mean.mean, own.cvar.mean) == (
        "limit", 2, pytest.approx(0.003), pytest.approx(-0.09),
    )  # fmt: skip
    assert (own.cvar_low, own.cvar_high, own.exposure, own.turnover, own.invested) == (
        -0.09, pytest.approx(-0.06), pytest.approx(0.1), 1.5, 0.5,
    )  # fmt: skip
    assert (own.trading, own.kept, own.proven, own.not_broken) == (1, 1, 0, 2)
    assert [line.name for line in lines] == ["limit", "free", *NAMES[4:7]]
    (single,) = judgement.summaries([row()])[:1]
    assert (single.mean.half, single.cvar.half) == (pytest.approx(0.001), pytest.approx(0.02))


def test_the_chart_has_a_panel_for_each_setting_and_a_dot_for_each_seed():
    picture = judgement.chart([row(seed=0), row(seed=1), row(seed=0, limit=-0.05)])
    root = ET.fromstring(picture)  # noqa: S314 - our own
    squares = [
        part for part in root.iter("{http://www.w3.org/2000/svg}rect")
        if part.get("width") == "7"
    ]  # fmt: skip
    assert len(squares) == 3 + 1  # three runs and the legend
    assert "limit -0.05 a week" in picture


def test_the_shipped_file_is_the_one_that_is_read():
    assert Path("configs/limits.toml") == bench.CONFIG
    assert {
        "week": bench.Horizon(7, -0.08, 7), "day": bench.Horizon(1, -0.03, 4),
    } == bench.HORIZONS  # fmt: skip
