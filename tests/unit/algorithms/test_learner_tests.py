"""The two questions to a learner tell apart who learned, who did not, and who looked ahead."""

import math

import numpy as np
import pytest
import torch

from stormsail.algorithms import learner_tests as lab
from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.learner_tests import (
    HeldOut,
    informed_weights,
    noise_test,
    oracle_test,
    world_config,
)
from stormsail.algorithms.run.tasks import make_task, market_panel
from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.evaluation.engine.run import replay
from stormsail.evaluation.stats.trials import TrialLedger
from training_lab import small

BARS = 900


@pytest.fixture(autouse=True)
def short_worlds(monkeypatch):
    monkeypatch.setattr(lab, "BARS", BARS)


def training(**changes):
    plain = {"task__market__randomise": {}, "task__market__degrade": {}, "task__market__stops": {}}
    levels = {"task__market__levels": (-1.0, 0.0, 1.0), "task__market__no_trade": {}}
    return small("market", **{**plain, **levels, **changes})


def held_out(world, weigh, **changes):
    """Return a pass of given weights over the last quarter of a world."""
    config = world_config(training(**changes), world)
    panel = market_panel(config)
    _, span = lab._parts(panel, config)
    rules = BacktestConfig(market=config.task.market).during(span)
    return HeldOut(config, panel, replay(weigh(panel, config), panel, rules))


def flat(panel, _config):
    return np.zeros(panel.shape)


def ahead(panel, _config):
    """Weights of someone who sees the next bar."""
    weights = torch.zeros_like(panel.close)
    weights[:-1] = (panel.close[1:] / panel.open[1:] - 1.0).sign()
    return weights


def random(panel, _config, seed=0):
    return np.random.Generator(np.random.PCG64(seed)).choice([-1.0, 0.0, 1.0], size=panel.shape)


def test_a_world_keeps_every_setting_of_the_training_but_its_bars():
    own = training(ppo__gamma=0.9, task__market__costs__taker_fee=0.0011)
    config = world_config(own, "oracle")
    data = config.task.data
    assert (data.world, data.world_bars, data.store, data.interval) == ("oracle", BARS, None, "1h")
    assert [one.name for one in config.task.market.features] == [
        "log_return", "realised_volatility", "leak",
    ]  # fmt: skip
    same = config.replace(**{
        "task.data": own.task.data.model_dump(),
        "task.market.features": own.task.market.model_dump()["features"],
    })  # fmt: skip
    assert same == own
    noise = world_config(own, "noise").task.market.features
    assert [one.name for one in noise] == ["log_return", "realised_volatility"]


def test_default_features_are_named_and_the_leak_is_seen_only_where_it_is_planted():
    own = training(task__market__features=None)
    told = make_task(world_config(own, "oracle"), batch=2).observation_names
    blind = make_task(world_config(own, "noise"), batch=2).observation_names
    assert set(told) - set(blind) == {"leak"}
    assert len(blind) > 10


def test_long_episodes_get_longer_worlds():
    own = training(task__market__episode_bars=100)
    assert world_config(own, "noise").task.data.world_bars == 1600


def test_bars_that_judge_lie_behind_an_embargo():
    config = world_config(training(), "noise")
    panel = market_panel(config)
    seen, span = lab._parts(panel, config)
    rows = panel.ts.numpy()
    lookback = 25  # 24 returns and the bar before them
    assert span.count(rows) == BARS // 4
    assert BARS - span.count(rows) - seen.count(rows) == lookback + 64 + 1


def test_without_costs_the_informed_follow_the_sign_of_the_leak():
    costs = {f"task__market__costs__{name}": 0.0 for name in ("taker_fee", "half_spread", "impact")}
    config = world_config(training(**costs), "oracle")
    panel = market_panel(config)
    leak = panel.optional["leak"].numpy()
    clear = np.abs(leak) > 1e-3  # near 0 the second order decides
    assert (informed_weights(panel, config)[clear] == np.sign(leak)[clear]).all()


def test_costs_make_the_informed_wait_and_they_earn_more_than_those_who_do_not():
    fee = {"task__market__costs__taker_fee": 0.004, "task__market__costs__impact": 0.0}
    patient = held_out("oracle", informed_weights, **fee)
    hasty = held_out("oracle", ahead, **fee)
    assert patient.backtest.total_return > hasty.backtest.total_return
    assert patient.backtest.turnover.sum() < 0.8 * hasty.backtest.turnover.sum()


def test_who_uses_the_leak_passes_and_who_does_not_fails():
    best = oracle_test(held_out("oracle", informed_weights))
    assert (best.name, best.holds) == ("learner, oracle", True)
    assert "100% of the" in best.words
    blind = oracle_test(held_out("oracle", flat))
    assert blind.holds is False
    assert blind.words.startswith(
        "Where the next return is known, the same training earned +0.0000 log growth on unseen "
        "bars, 0% of the +"
    )
    assert oracle_test(held_out("oracle", random)).holds is False


def test_half_of_the_growth_is_the_line():
    whole = held_out("oracle", informed_weights)

    def part(share):
        def weigh(panel, config):
            first = len(panel.ts) - BARS // 4
            kept = informed_weights(panel, config)
            kept[first + int(share * BARS / 4) :] = 0.0
            return kept

        return weigh

    for share, holds in ((0.35, False), (0.65, True)):
        own = held_out("oracle", part(share))
        result = oracle_test(own)
        ratio = math.log1p(own.backtest.total_return) / math.log1p(whole.backtest.total_return)
        assert (ratio >= 0.5) is holds
        assert result.holds is holds
        assert f"{ratio:.0%} of the" in result.words


def test_where_nobody_can_earn_nothing_is_asked():
    fee = {"task__market__costs__taker_fee": 0.2}
    result = oracle_test(held_out("oracle", informed_weights, **fee))
    assert result.holds is None
    assert result.words.startswith("At these costs not even a policy that knows the next return")


def test_a_look_ahead_shows_in_noise_and_luck_does_not():
    cheat = noise_test(held_out("noise", ahead))
    assert (cheat.name, cheat.holds) == ("learner, noise", False)
    assert "p 0.000, and below 0.001" in cheat.words
    for seed in range(5):
        drawn = noise_test(
            held_out("noise", lambda panel, config, s=seed: random(panel, config, s))
        )
        assert drawn.holds is True


def test_a_leak_shows_in_noise_even_where_costs_eat_it():
    fee = {"task__market__costs__taker_fee": 0.02}
    cheat = held_out("noise", ahead, **fee)
    assert cheat.backtest.total_return < 0.0
    assert noise_test(cheat).holds is False


def test_doing_nothing_in_noise_is_right():
    result = noise_test(held_out("noise", flat))
    assert result.holds is True
    bars = BARS // 4 - 1
    assert result.words == (
        f"In noise the same training learned to hold nothing in all {bars} bars."
    )


def test_the_tests_train_in_folders_of_their_own_and_find_them_again(tmp_path, monkeypatch):
    config = training()
    heard = []
    first = lab.learner_tests(
        config,
        workspace=tmp_path,
        name="v",
        on_progress=lambda run, progress: heard.append((run, progress.update)),
    )
    assert [one.name for one in first] == ["learner, oracle", "learner, noise"]
    assert {run for run, _ in heard} == {"learner-oracle", "learner-noise"}
    assert not (tmp_path / "trials.jsonl").exists()
    assert TrialLedger(tmp_path / "v" / "trials.jsonl").count() == 2
    heard.clear()
    again = lab.learner_tests(
        config, workspace=tmp_path, name="v", on_progress=lambda *told: heard.append(told)
    )
    assert (again, heard) == (first, [])


@pytest.mark.campaign
def test_the_shipped_quickstart_learns_what_is_told_and_nothing_from_noise(tmp_path, monkeypatch):
    monkeypatch.undo()
    config = TrainConfig.load("configs/quickstart.toml")
    result = lab.learner_tests(config, workspace=tmp_path, name="v")
    assert [one.holds for one in result] == [True, True], result
