"""Decisions, first values, fitness and metrics of populations, without training."""

import math
from datetime import UTC, datetime

import pytest

from population_lab import RATE, plan, trained
from stormsail.algorithms.population import fitness as fitness_module
from stormsail.algorithms.population.config import ends, is_whole
from stormsail.algorithms.population.decisions import decide, is_ready, smoothed_fitness
from stormsail.algorithms.population.fitness import fitness, sharpe
from stormsail.algorithms.population.jobs import Outcome
from stormsail.algorithms.population.values import explored_values, first_values
from stormsail.algorithms.run.evaluate import Evaluation
from stormsail.algorithms.run.tasks import market_data
from training_lab import small


def outcomes(*values, stopped=()):
    return [Outcome(i, 0, value, 2, "", {}, stopped=i in stopped) for i, value in enumerate(values)]


def decided(config, *values, stopped=(), round_=0):
    given = [first_values(config.searched(), i) for i in range(len(values))]
    return given, decide(
        config.searched(),
        config.training(),
        round_=round_,
        outcomes=outcomes(*values, stopped=stopped),
        fitness=values,
        values=given,
    )


def test_fitness_is_the_moving_average_and_a_copy_takes_that_of_its_source():
    config = plan(fitness_smoothing=0.75).searched()
    got = smoothed_fitness(config, outcomes(2.0, 4.0, math.nan), [math.nan, 8.0, 1.0])
    assert got[:2] == [2.0, 7.0]
    assert math.isnan(got[2])


def test_too_few_known_members_wait_and_diverged_ones_are_not_waited_for():
    config = plan(ready_percentage=0.75).searched()
    unknown = math.nan
    assert is_ready(config, outcomes(1.0, 2.0, 3.0, unknown), (1.0, 2.0, 3.0, unknown))
    assert not is_ready(config, outcomes(1.0, 2.0, unknown, unknown), (1.0, 2.0, unknown, unknown))
    two = outcomes(1.0, 2.0, unknown, unknown, stopped=(2, 3))
    assert is_ready(config, two, (1.0, 2.0, unknown, unknown))
    given, waiting = decided(plan(), 1.0, unknown, unknown)
    assert [decision.source for decision in waiting] == [0, 1, 2]
    assert [decision.values for decision in waiting] == given
    assert waiting[0].reason == "only 1 of 3 members have a fitness"


@pytest.mark.parametrize(("mode", "best", "worst"), [("max", 1, 2), ("min", 2, 1)])
def test_only_the_worst_explores_and_from_the_values_of_its_source(mode, best, worst):
    config = plan(metric_mode=mode)
    given, decisions = decided(config, 1.0, 5.0, -3.0, round_=4)
    for decision in decisions:
        if decision.member != worst:
            assert (decision.source, decision.explored) == (decision.member, False)
            assert decision.values == given[decision.member]
    copy = decisions[worst]
    assert (copy.source, copy.stream) == (best, f"round.4.member.{worst}")
    wanted = explored_values(config.searched(), given[best], round_=4, member=worst)
    assert copy.values == wanted != given[best]


def test_draws_depend_on_seed_round_and_member_and_on_nothing_else():
    config = plan().searched()
    first = first_values(config, 1)
    assert first == first_values(config, 1)
    assert first[RATE] != first_values(config, 0)[RATE]
    assert first[RATE] != first_values(plan(seed=1).searched(), 1)[RATE]
    config = plan(explore_method="resample").searched()
    tried = {
        explored_values(config, first, round_=round_, member=member)[RATE]
        for round_ in (1, 2, 3)
        for member in (0, 1)
    }
    assert len(tried) == 6


def test_the_ways_of_exploring_differ():
    start = {RATE: 1e-3, "ppo.clip_range": 0.1, "kl.use_ema": True}
    perturb = plan(explore_method="perturb").searched()
    for member in range(20):
        new = explored_values(perturb, start, round_=0, member=member)
        assert new[RATE] in (pytest.approx(1.2e-3), pytest.approx(1e-3 / 1.2))
        assert new["ppo.clip_range"] in (pytest.approx(0.11), pytest.approx(0.1 / 1.1))
    resample = plan(explore_method="resample").searched()
    drawn = [explored_values(resample, start, round_=0, member=m)[RATE] for m in range(40)]
    assert all(1e-4 <= rate <= 5e-3 for rate in drawn)
    below = sum(rate < math.sqrt(1e-4 * 5e-3) for rate in drawn)
    assert 10 <= below <= 30  # half of a log-uniform draw lies below the geometric mean


def test_values_that_contradict_each_other_fall_back_to_the_source():
    search = {"kl.beta_min": {"min": 0.001, "max": 0.05}, "kl.beta_init": {"min": 0.05, "max": 0.9}}
    config = plan(search=search, explore_method="resample")
    given = [{"kl.beta_min": 0.01, "kl.beta_init": 0.1}] * 2
    tight = config.training().replace(**{"kl.beta_max": 0.1})
    decisions = decide(
        config.searched(),
        tight,
        round_=0,
        outcomes=outcomes(1.0, 2.0),
        fitness=(1.0, 2.0),
        values=given,
    )
    assert decisions[0].source == 1
    assert decisions[0].values == given[1]
    assert not decisions[0].explored
    assert "its values stay" in decisions[0].reason


def test_whole_numbers_stay_whole():
    assert is_whole("ppo.n_epochs")
    assert not is_whole(RATE)
    config = plan(search={"ppo.n_epochs": {"min": 1, "max": 8}}).searched()
    values = {first_values(config, member)["ppo.n_epochs"] for member in range(30)}
    assert values <= set(range(1, 9))
    assert all(type(value) is int for value in values)
    assert ends(config.search["ppo.n_epochs"]) == (1.0, 8.0)


def test_fitness_of_a_market_is_the_sharpe_ratio_on_the_evaluation_span(monkeypatch):
    config = small("market", risk__cvar_use_constraint=False, risk__cvar_limit=None)
    agent, seen = trained(config, 1).agent, []
    real = fitness_module.backtest

    def spied(agent, panel, settings):
        seen.append(real(agent, panel, settings))
        return seen[-1]

    monkeypatch.setattr(fitness_module, "backtest", spied)
    judged, metrics = fitness(config, plan().searched(), agent, round_=0)
    result, span = seen[0], market_data(config).validation
    assert span.start_ms >= market_data(config).train.end_ms
    assert judged == metrics["sharpe"] == sharpe(config, agent)
    assert result.span.start_ms >= span.start_ms
    assert result.span.end_ms <= span.end_ms
    returns = result.returns
    if returns.std(ddof=1) > 0.0:
        ratio = returns.mean() / returns.std(ddof=1) * math.sqrt(365.25 * 24)
        assert judged == pytest.approx(ratio, rel=1e-2)


def test_fitness_sees_no_bar_behind_the_end_of_the_data(monkeypatch):
    """Whatever a test keeps apart lies there: a fitness that saw it would select on it."""
    free = {"risk__cvar_use_constraint": False, "risk__cvar_limit": None}
    whole = market_data(small("market", **free)).panel
    last = int(whole.ts[len(whole.ts) * 3 // 4])
    end = datetime.fromtimestamp(last / 1000, UTC).isoformat()
    config = small("market", **free, task__data__end=end)
    agent, seen = trained(config, 1).agent, []
    real = fitness_module.backtest

    def spied(agent, panel, settings):
        seen.append((panel, real(agent, panel, settings)))
        return seen[-1][1]

    monkeypatch.setattr(fitness_module, "backtest", spied)
    fitness(config, plan().searched(), agent, round_=0)
    ((panel, result),) = seen
    assert int(panel.ts[-1]) < last < int(whole.ts[-1])
    assert result.span.end_ms <= last


def test_whoever_breaks_the_limit_falls_behind(monkeypatch):
    config = small("market")
    agent = trained(config, 1).agent
    limit = config.risk.episode_limit
    assert limit == -0.005
    monkeypatch.setattr(fitness_module, "sharpe", lambda *_: 3.0)

    def judged(cvar):
        result = Evaluation(0.0, 1.0, 3, 0, cvar=cvar)
        monkeypatch.setattr(fitness_module, "evaluate", lambda *_, **__: result)
        return fitness(config, plan().searched(), agent, round_=0)

    assert judged(-0.004)[0] == pytest.approx(0.75)
    broken, metrics = judged(-0.0075)
    assert broken == pytest.approx(-1.5)
    assert metrics["breach"] == pytest.approx(0.0025)
