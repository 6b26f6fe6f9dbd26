"""`stormsail bench markets`: the same bars for everyone, known numbers, honest verdicts."""

import json
import math
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.run.tasks import make_task
from stormsail.bench.learner import markets as bench
from stormsail.bench.learner.market_episodes import Episodes, check_plain
from stormsail.bench.training import train_agent
from stormsail.cli.main import app
from stormsail.core.errors import ChoiceError, ConfigError
from stormsail.modules.agent import Agent

CONFIGS = Path(__file__).resolve().parents[4] / "configs" / "markets"
SMALL = {
    "task.data.world_bars": 1500,
    "task.data.world_symbols": 2,
    "task.market.episode_bars": 16,
    "ppo.total_steps": 256,
    "ppo.n_steps": 16,
    "ppo.n_envs": 8,
    "ppo.batch_size": 8,
}


def config(market):
    names = ("leak", "log_return") if market == "oracle" else ("log_return",)
    features = [{"name": name} for name in names]  # the others look back further than this reaches
    changes = {**SMALL, "task.market.features": features}
    return TrainConfig.load(CONFIGS / f"{market}.toml").replace(**changes)


@pytest.fixture(scope="module")
def episodes():
    return {market: Episodes.of(config(market)) for market in bench.MARKETS}


def outcome(market="oracle", *, agent=2.0, informed=2.5, clairvoyant=4.0, turnover=0.01, gains=()):
    best = None if informed is None else bench.Rates(informed, informed, 1.0)
    return bench.Outcome(
        market=market,
        seed=0,
        steps=1,
        seconds=1.0,
        bars=10,
        agent=bench.Rates(agent, agent, turnover),
        informed=best,
        clairvoyant=bench.Rates(clairvoyant, clairvoyant, 1.0),
        chance=bench.Rates(-1.0, -1.0, 0.8),
        ledger_difference=0.0,
        gains=gains,
    )


# ------------------------------------------------------------------------------- the episodes


def test_every_bar_of_the_validation_span_is_traded_once(episodes):
    own = episodes["oracle"]
    span = own.data.validation.rows(own.data.panel.ts.numpy())
    for symbol in range(2):
        rows = own.row[own.symbol == symbol].tolist()
        filled = [row + bar for row in rows for bar in range(1, 17)]
        assert filled == list(range(span.start + 1, span.start + 1 + len(filled)))
        assert span.stop - 17 <= filled[-1] < span.stop  # what is left is less than an episode
    train = own.data.train.rows(own.data.panel.ts.numpy())
    assert train.stop <= span.start


def test_dynamic_programming_and_the_simulator_agree_on_hindsight(episodes):
    for own in episodes.values():
        decide, growth = own.hindsight()
        np.testing.assert_allclose(own.trade(decide).log_growth, growth, rtol=0, atol=1e-13)


def test_hindsight_beats_the_informed_and_the_informed_beat_chance(episodes):
    for market in ("oracle", "ar1"):
        own = episodes[market]
        bound = own.hindsight()[1]
        best = own.trade(own.informed()).log_growth
        assert (best <= bound + 1e-13).all()  # in every single episode
        assert best.mean() > own.trade(own.chance()).log_growth.mean() + 0.02


def test_the_informed_follow_the_leak_where_trading_is_free(episodes):
    free = config("oracle").replace(**{"task.market.costs": {"taker_fee": 0.0, "half_spread": 0.0,
                                                            "impact": 0.0}})  # fmt: skip
    own = Episodes.of(free)
    panel = own.data.panel
    rows = own.row[None] + torch.arange(1, 17)[:, None]
    moves = (panel.close / panel.open - 1.0)[rows, own.symbol]
    best = own.trade(own.informed())
    np.testing.assert_allclose(best.log_growth, moves.abs().log1p().sum(0), atol=2e-4)
    np.testing.assert_allclose(best.gain, moves.abs().sum(0), atol=2e-4)
    assert episodes["oracle"].costs == (0.0005, 0.0002)


def test_chance_trades_what_independent_draws_of_three_levels_trade(episodes):
    # |u − w| of two of -1, 0, 1: 0 in 3 of 9, 1 in 4, 2 in 2, so 8/9; from flat 2/3. Drift adds
    # nothing but its square. 2 · 18 episodes of 16 bars, deviation 0.74 a bar: error 0.03
    own = episodes["noise"]
    turnover = own.trade(own.chance()).turnover.mean() / 16
    assert turnover == pytest.approx((15 * 8 / 9 + 2 / 3) / 16, abs=0.12)


def test_an_agent_trades_without_exploration_and_with_memory(episodes):
    own = episodes["ar1"]
    task = make_task(own.config, batch=own.config.ppo.n_envs)
    agent = train_agent(task, own.config).agent
    assert isinstance(agent, Agent)
    first, second = (own.trade(own.agent(agent)) for _ in range(2))
    np.testing.assert_array_equal(first.log_growth, second.log_growth)


# ----------------------------------------------------------------------------------- the jobs


def test_each_seed_has_a_world_of_its_own():
    jobs = bench.load(CONFIGS, ["ar1"], seeds=3)
    assert [job.config.seed for job in jobs] == [0, 1, 2]
    assert [job.config.task.data.world_seed for job in jobs] == [0, 1, 2]


def test_a_job_survives_the_way_to_another_process():
    job = bench.Job.of("ar1", config("ar1"), 3)
    assert pickle.loads(pickle.dumps(job)) == job  # noqa: S301 - our own bytes


@pytest.mark.parametrize("market", bench.MARKETS)
def test_the_shipped_markets_have_a_known_answer(market):
    chosen = TrainConfig.load(CONFIGS / f"{market}.toml")
    check_plain(chosen)
    assert chosen.task.data.world == market.split("-", maxsplit=1)[0]
    free = market == "noise"
    assert (chosen.task.market.costs.taker_fee == 0.0) is free


def test_a_job_reports_what_was_traded():
    done = bench.run(bench.Job.of("oracle", config("oracle"), 1))
    assert (done.market, done.seed, done.bars, done.steps) == ("oracle", 1, 16, 256)
    assert len(done.gains) == 2 * 18
    assert done.agent.gain == pytest.approx(np.mean(done.gains) / 16)
    assert done.share == done.agent.log_growth / done.informed.log_growth
    assert done.ledger_difference < 1e-13


def test_the_command_says_no_where_a_claim_does_not_hold(tmp_path):
    for market in ("oracle", "noise-with-fees"):
        (tmp_path / f"{market}.toml").write_text(config(market).to_toml())
    out = tmp_path / "figures.json"
    words = ["bench", "markets", "--worlds", "oracle,noise-with-fees", "--seeds", "1"]
    result = CliRunner().invoke(app, [*words, "--configs", str(tmp_path), "--out", str(out)])
    assert result.exit_code == 1, result.output
    assert "oracle: every seed earns at least 95% of the best policy" in result.output
    figures = json.loads(out.read_text())
    claims = [verdict["claim"] for verdict in figures["verdicts"]]
    assert [claim.split(":")[0] for claim in claims] == ["oracle", "noise-with-fees"]
    assert figures["verdicts"][0]["passed"] is False  # a few updates are not enough
    assert figures["outcomes"][1]["informed"] is None


# ------------------------------------------------------------------------------- the verdicts


def test_an_edge_is_tested_by_episodes():
    # per bar (10 bars): 0.1, 0.2, 0.3: mean 0.2, deviation 0.1, error 0.1/√3, t = 2√3 = 3.4641;
    # with 2 degrees P(|T| > t) = 1 − t/√(2 + t²) = 1 − 3.4641/√14 = 0.074180
    edge = bench.Edge.of([1.0, 2.0, 3.0], 10)
    assert edge.mean == pytest.approx(0.2)
    assert edge.error == pytest.approx(0.1 / math.sqrt(3.0))
    assert edge.p == pytest.approx(1.0 - math.sqrt(12.0 / 14.0))
    assert edge.episodes == 3


def test_the_test_of_an_edge_has_two_sides():
    assert bench.Edge.of([-1.0, -2.0, -3.0], 10).p == bench.Edge.of([1.0, 2.0, 3.0], 10).p


def test_an_agent_that_never_trades_has_no_edge():
    assert bench.Edge.of([0.0, 0.0], 10) == bench.Edge(0.0, 0.0, 1.0, 2)


def test_the_worst_seed_decides_about_the_share():
    good, bad = outcome(agent=2.5), outcome(agent=2.3)  # 100 % and 92 % of 2.5
    assert bench.verdicts([good])[0].passed
    verdict = bench.verdicts([good, bad])[0]
    assert not verdict.passed
    assert verdict.measured == "92.0% at worst, 96.0% on average; 60.0% of hindsight"
    assert bench.verdicts([replace(bad, market="ar1")])[0].passed  # 80 % suffice


def test_an_edge_in_noise_fails_and_its_absence_passes():
    edge = outcome("noise", informed=None, gains=(1.0, 1.1, 0.9, 1.0))
    none = outcome("noise", informed=None, gains=(1.0, -1.1, 0.9, -1.0))
    significant, fair = (bench.verdicts([result])[0] for result in (edge, none))
    assert (significant.passed, fair.passed) == (False, True)
    # (1 − 1.1 + 0.9 − 1)/4/10 = −0.005 a bar: -50 basis points
    assert fair.measured.startswith("-50.000 ± ")
    # together: mean of the eight, 0.475 a bar·10, deviation 0.91: p = 0.18
    assert bench.verdicts([edge, none])[0].passed


def test_too_much_turnover_under_fees_fails():
    # chance trades 0.8 a bar: 2 % of it is 0.016
    calm, busy = (
        outcome("noise-with-fees", informed=None, turnover=turnover) for turnover in (0.015, 0.017)
    )
    assert bench.verdicts([calm])[0].passed
    assert not bench.verdicts([calm, busy])[0].passed


# ----------------------------------------------------------------------------------- refusals


@pytest.mark.refusal
def test_a_market_that_is_none_is_refused():
    with pytest.raises(ChoiceError) as caught:
        bench.load(CONFIGS, ["oracel"], seeds=1)
    assert str(caught.value) == (
        "a market must be one of oracle, ar1, noise, noise-with-fees; found `oracel`. "
        "Did you mean `oracle`? [unknown-choice]"
    )


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"task.market.costs.impact": 0.01}, "`task.market.costs.impact` must be 0"),
        ({"task.market.funding": True}, "`task.market.funding` must be false"),
        ({"task.market.stops.drawdown": 0.2}, "`task.market.stops` must be left out"),
        (
            {"task.data.store": "data", "task.data.world": "regime"},
            "`task.data.store` must be left out",
        ),
    ],
)
def test_a_rule_that_the_answer_does_not_count_is_refused(change, words):
    with pytest.raises(ConfigError) as caught:
        check_plain(config("ar1").replace(**change))
    assert str(caught.value) == (
        f"{words} in a market with a known answer; found a configuration of "
        f"`{change.get('task.data.world', 'ar1')}` that says otherwise. The dynamic programming "
        "counts fee and half spread, nothing else. [config-value]"
    )


@pytest.mark.refusal
def test_a_world_without_a_known_policy_is_refused():
    noisy = config("oracle").replace(**{"task.data.world_parameters": {"leak_noise": 0.01}})
    with pytest.raises(ConfigError) as caught:
        Episodes.of(noisy).policy()
    assert str(caught.value) == (
        "the best policy is known for `ar1` and for `oracle` without noise; found `oracle` with "
        "{'leak_noise': 0.01}. Change `task.data.world`, or leave `leak_noise` out. [config-value]"
    )
