"""What a judgement trades ahead is what each of its parts would have traded alone."""

import numpy as np
import pytest

from stormsail.evaluation.engine.run import backtest, replay
from stormsail.evaluation.robustness import self_tests
from stormsail.evaluation.robustness.baselines import run_baselines
from stormsail.evaluation.robustness.costs import break_even, cost_sweep
from stormsail.evaluation.robustness.stress import stress
from stormsail.evaluation.walk_forward import batch
from stormsail.evaluation.walk_forward.batch import Desk
from stormsail.evaluation.walk_forward.run import validate
from validation_lab import fitter, settings, world


@pytest.fixture(scope="module")
def bars():
    return world(300)


@pytest.fixture(scope="module")
def found(bars):
    config = settings(folds=1, seeds=(0,), stress=True, test_share=0.3)
    return validate(bars, config, fit=fitter(bars))


def test_every_part_of_a_judgement_is_what_it_is_alone(found, bars):
    judged, run = found.judged, found.runs[0]
    seen = bars.between(found.plan.development.start_ms, found.plan.development.end_ms)
    result, agent = run.backtest, run.agent
    for name, one in run_baselines(seen, result.config, like=result).items():
        assert judged.rivals[name].order_hash == one.order_hash
        assert judged.rivals[name].equity.tolist() == one.equity.tolist()
    costs = judged.documents["costs"]["replay"]
    even = break_even(result, seen)
    assert costs["break_even"] == even.document()
    for cost, one in cost_sweep(result, seen).items():
        assert costs["sweep_bp"][f"{cost:g}"]["final_equity"] == pytest.approx(one.equity[-1])
    troubles = stress(agent, seen, result.config)
    assert list(judged.documents["stress"]) == list(troubles)
    for name, one in troubles.items():
        told = judged.documents["stress"][name]
        assert (told["bars"], told["trades"]) == (len(one.returns), len(one.trades))
    span = result.span
    assert judged.self_tests[1:] == (
        self_tests.noise_stays_noise(result, seen, seed=0, span=span),
        self_tests.permuted_matters(result, seen, seed=0),
        self_tests.fees_hurt(result, seen),
        self_tests.no_look_ahead(agent, result, seen),
    )


def test_a_judgement_asks_for_nothing_that_was_not_traded_ahead(monkeypatch, bars):
    walks = []
    trade_all = batch.trade_all

    def counted(passes):
        walks.append(len(passes))
        return trade_all(passes)

    monkeypatch.setattr(batch, "trade_all", counted)
    config = settings(folds=1, seeds=(0,), stress=True, test_share=0.3)
    validate(bars, config, fit=fitter(bars))
    assert len(walks) == 1


def test_a_desk_hands_out_what_was_asked_for_and_trades_the_rest(found, bars):
    result, agent = found.runs[0].backtest, found.runs[0].agent
    asked = self_tests.permuted_passes(result, bars, seed=0)
    later = next(iter(self_tests.later_passes(agent, result, bars).values()))
    desk = Desk()
    assert desk.trade([], ahead=[asked[0], later]) == []
    for one in (*asked, *asked):  # the first ahead, the others when they are asked for
        assert np.array_equal(desk.replay(*one).equity, replay(*one).equity)
    again = desk.backtest(agent, later.panel, later.config)
    alone = backtest(agent, later.panel, later.config)
    assert again.order_hash == alone.order_hash
    assert not np.array_equal(desk.replay(*asked[0]).equity, desk.replay(*asked[1]).equity)
