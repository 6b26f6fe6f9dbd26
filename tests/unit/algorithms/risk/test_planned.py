"""What an update needs of the control of the tail, on the device: the rules of the host."""

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch

from learner_lab import CRITICS, aged, learner, script, settings
from stormsail.algorithms.risk import advantage as readings
from stormsail.algorithms.risk.advantage import predicted_cvar, predicted_cvar_of_some
from stormsail.algorithms.risk.control import RiskControl
from stormsail.algorithms.risk.planned import Window, carried, decide, tail_of
from stormsail.algorithms.risk.report import NOTHING
from stormsail.algorithms.risk.window import EpisodeWindow

CONTROLS = {
    "pid": {"risk.cvar_use_constraint": True, "risk.cvar_limit": -0.3, "risk.cvar_kd": 0.3},
    "integral": {
        "risk.cvar_use_constraint": True, "risk.cvar_limit": -0.3,
        "risk.dual_controller": "integral", "risk.cvar_lambda_lr": 0.2,
    },
    "no unit": {"risk.cvar_use_constraint": True, "risk.cvar_limit": 0.0},
    "weight": {
        "risk.cvar_weight": 0.7, "risk.cvar_ramp_updates": 3, "risk.cvar_cap": 0.4,
        "risk.cvar_activation_threshold": 0.2, "risk.cvar_activation_hysteresis": 0.1,
        "risk.cvar_penalty_cap": 0.6,
    },
    "weight without ramp": {"risk.cvar_weight": 0.7, "risk.cvar_ramp_updates": 0},
    "both": {
        "risk.cvar_use_constraint": True, "risk.cvar_limit": -0.3, "risk.cvar_weight": 0.7,
        "risk.cvar_ramp_updates": 2,
    },
}  # fmt: skip


def number(value):
    return torch.tensor(value, dtype=torch.float64)


@pytest.mark.parametrize("changes", CONTROLS.values(), ids=CONTROLS)
def test_the_rules_on_the_device_are_those_of_the_host(changes):
    fixed = {"risk.form": "budget", "risk.cvar_reward": "any", "validation.every_updates": 0}
    config = settings(**fixed, **changes)
    control, source = RiskControl(config), torch.Generator().manual_seed(3)
    acted = 0
    for update in range(60):
        cvar, spread, explained, term, scale = torch.randn(5, generator=source).tolist()
        spread = 0.0 if update % 9 == 0 else abs(spread)
        explained = math.nan if update % 11 == 5 else 0.4 * explained + 0.15
        ready, trains = update % 7 != 2, update % 5 != 3
        tail = NOTHING._replace(is_ready=ready, empirical=cvar - 0.3, spread=spread)
        row = control._carried(SimpleNamespace(reward=torch.zeros(1)))
        before, _ = carried(row)
        found = decide(
            config.risk,
            before,
            SimpleNamespace(cvar=number(tail.empirical), spread=number(spread)),
            number(explained),
            number(term),
            number(abs(scale)),
            is_ready=torch.tensor(ready),
            trains_policy=trains,
        )
        decided = control._decide(tail, math.nan, explained, trains_policy=trains)
        _, coefficient = control._acting(tail, decided, term, abs(scale))
        assert float(found.multiplier) == pytest.approx(control.multiplier, rel=1e-12, abs=1e-15)
        assert float(found.coefficient) == pytest.approx(coefficient, rel=1e-12, abs=1e-15)
        acted += coefficient > 0.0
    assert 10 < acted < 60


@pytest.mark.parametrize("size", [1, 4, 9, 40, 300])
def test_the_window_is_that_of_the_host(size):
    """Rollouts that end fewer and more episodes than it holds, and none."""
    source = torch.Generator().manual_seed(size)
    kept = EpisodeWindow(size)
    window = Window(torch.zeros(size, dtype=torch.float64), number(0.0))
    for chance in (0.05, 0.0, 0.3, 0.9, 0.1, 1.0, 0.02):
        rollout = SimpleNamespace(
            return_so_far=torch.randn(8, 5, generator=source, dtype=torch.float64),
            reward=torch.randn(8, 5, generator=source),
            ended=torch.rand(8, 5, generator=source) < chance,
        )
        kept.add(rollout)
        window = window.add(rollout)
        assert window.outcomes[window.is_there].tolist() == list(kept)
        assert float(window.count) == len(kept)


@pytest.mark.parametrize("alpha", [0.05, 0.3, 0.25, 1.0])
@pytest.mark.parametrize("count", [1, 2, 20, 48])
def test_its_tail_is_that_of_the_host(alpha, count):
    control = RiskControl(settings(**{"risk.cvar_alpha": alpha}))
    drawn = torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(count))
    drawn[count // 2] = drawn[0]  # a tie
    wanted = control.tail(drawn)
    padded = torch.cat((torch.zeros(48 - count, dtype=torch.float64), drawn))
    found = tail_of(Window(padded, number(float(count))), alpha=alpha)
    assert float(found.cvar) == pytest.approx(wanted.empirical, rel=1e-12)
    assert float(found.level) == wanted.level
    assert float(found.spread) == pytest.approx(wanted.spread, rel=1e-12)


@pytest.mark.parametrize("critic", [*CRITICS, "tail"])
def test_the_predicted_tail_is_that_of_the_host(critic, monkeypatch):
    changes = {"critic.levels": "tail"} if critic == "tail" else CRITICS[critic]
    ppo = aged(learner(settings(**changes), told=script()))
    rollout = ppo.update().rollout
    wanted = predicted_cvar(ppo.agent, rollout, alpha=0.3, estimator="dirac")
    assert float(predicted_cvar_of_some(ppo.agent, rollout, alpha=0.3)) == pytest.approx(
        wanted, rel=1e-5, abs=1e-6
    )
    starts = (rollout.length == 1).nonzero()
    assert len(starts) > 9
    monkeypatch.setattr(readings, "MOST_STARTS", 3)
    length = torch.zeros_like(rollout.length)
    for place in (0, len(starts) // 3, 2 * len(starts) // 3):
        length[tuple(starts[place])] = 1
    some = dataclasses.replace(rollout, length=length)
    assert float(predicted_cvar_of_some(ppo.agent, rollout, alpha=0.3)) == pytest.approx(
        predicted_cvar(ppo.agent, some, alpha=0.3, estimator="dirac"), rel=1e-5, abs=1e-6
    )
    none = dataclasses.replace(rollout, length=torch.zeros_like(length))
    assert math.isnan(float(predicted_cvar_of_some(ppo.agent, none, alpha=0.3)))
