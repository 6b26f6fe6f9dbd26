"""A change of settings against the defaults, seed by seed."""

import math

import pytest

from stormsail.bench.learner.learn import Outcome, bare_tasks, row
from stormsail.bench.learner.learn_pairs import UNCHANGED, gains, paired_lines
from stormsail.core.errors import ArgumentError

CHANGE = "ppo.advantage_scale=slow"


def measured(lines, scores):
    outcomes = [[Outcome(score, 1.0, 64, 1.0) for score in part] for part in scores]
    pairs = zip(lines, outcomes, strict=True)
    return [row(line, tuple(range(len(part))), part) for line, part in pairs]


def test_each_task_is_trained_with_and_without_the_change():
    chosen = {"CartPole-v1": 4096, "Recall-v0": 2048}
    lines = paired_lines(chosen, CHANGE, overrides=["ppo.gamma=0.9"])
    assert [(line.name, line.variant, line.steps) for line in lines] == [
        ("CartPole-v1", UNCHANGED, 4096),
        ("CartPole-v1", CHANGE, 4096),
        ("Recall-v0", UNCHANGED, 2048),
        ("Recall-v0", CHANGE, 2048),
    ]
    assert [line.config.ppo.advantage_scale for line in lines] == ["rollout", "slow"] * 2
    assert {line.config.ppo.gamma for line in lines} == {0.9}


def test_the_gain_is_that_of_pairs():
    lines = paired_lines({"CartPole-v1": 4096}, CHANGE)
    (gain,) = gains(measured(lines, [(1.0, 2.0, 6.0), (2.0, 5.0, 8.0)]), CHANGE)
    # Differences 1, 3, 2: mean 2, deviation 1. Of 2 degrees, t = x sqrt(2 / (1 - x^2)) at x = .95.
    half = 0.95 * math.sqrt(2.0 / (1.0 - 0.95**2)) / math.sqrt(3.0)
    assert (gain.before, gain.after, gain.gain) == (3.0, 5.0, 2.0)
    assert (gain.low, gain.high) == pytest.approx((2.0 - half, 2.0 + half), rel=1e-12)
    # The change is better, so "it costs nothing" stands: t = -2 sqrt 3, P(T_2 >= -3.4641).
    assert gain.p_worse == pytest.approx(1.0 - 0.5 * (1.0 - math.sqrt(12.0 / 14.0)), rel=1e-9)
    assert gain.as_dict()["change"] == CHANGE


def test_a_run_that_failed_leaves_no_gain():
    lines = paired_lines({"CartPole-v1": 4096}, CHANGE)
    (gain,) = gains(measured(lines, [(1.0, math.nan), (2.0, 5.0)]), CHANGE)
    assert all(math.isnan(value) for value in (gain.gain, gain.low, gain.high, gain.p_worse))


@pytest.mark.refusal
def test_a_change_needs_bare_tasks():
    with pytest.raises(ArgumentError):
        bare_tasks("")
