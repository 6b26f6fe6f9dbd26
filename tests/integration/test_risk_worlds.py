"""Tails that are predicted and limits that are kept, on worlds whose truth is known.

Short versions of `stormsail bench tails` and `stormsail bench frontier`, which run all cases and
five seeds; these run on every change.
"""

import math
from pathlib import Path

import pytest
import torch
from scipy import stats

from stormsail.bench.risk import frontier, tails
from stormsail.bench.risk.tails_chain import draw, truth
from stormsail.functional import quantile, returns, risk

ROOT = Path(__file__).resolve().parents[2]
ALPHA = 0.05
TWO_SIDED = float(stats.norm.ppf(0.975))  # 1.96
NORMAL_TAIL = float(stats.norm.pdf(stats.norm.ppf(ALPHA))) / ALPHA  # 2.0627


@pytest.fixture(autouse=True)
def _one_thread_at_the_root(monkeypatch):
    """The frontier reads its file from the current folder and sets one thread for good."""
    monkeypatch.chdir(ROOT)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# ------------------------------------------------------------------ what a target's distribution
# would teach


@pytest.mark.spec("X5")
def test_lambda_returns_have_two_fifths_of_the_tail_of_the_return():
    """Independent N(0, 1) rewards, gamma = .99, lambda = .95, values exact: all of them 0.

    A lambda-return is then sum (gamma lambda)^k r_k, normal like the return sum gamma^k r_k, with
    sqrt((1 - gamma^2) / (1 - (gamma lambda)^2)) = .41516 of its spread. Both have mean 0, so the
    CVaR of one is the same share of the other's, at every alpha: a critic that fits such targets
    perfectly says -6.07 where -14.62 is true. Drawn here, as the learner makes them; four rows, far
    enough apart to be nearly independent.
    """
    gamma, lam, rows, envs = 0.99, 0.95, 256, 16_384
    reward = draw("normal", (rows, envs), torch.Generator().manual_seed(5)).double()
    zero, no = torch.zeros_like(reward), torch.zeros(rows, envs, dtype=torch.bool)
    sample = returns.gae(reward, zero, zero, no, no, gamma=gamma, lam=lam)[:128:32].flatten()
    known = truth("normal", gamma=gamma)
    assert known.cvar(ALPHA) == pytest.approx(-NORMAL_TAIL / math.sqrt(1.0 - gamma**2), rel=1e-9)
    share = math.sqrt((1.0 - gamma**2) / (1.0 - (gamma * lam) ** 2))
    assert share == pytest.approx(0.41516, abs=5e-6)
    result = float(risk.empirical_cvar(sample, alpha=ALPHA)) / known.cvar(ALPHA)
    assert result == pytest.approx(share, abs=0.008)  # two standard errors of 65,536 samples
    assert float(sample.std()) / known.spread == pytest.approx(share, abs=0.004)


@pytest.mark.spec("X5")
def test_sums_of_64_rewards_and_the_distribution_beyond_keep_the_whole_tail():
    """The default target, from exact quantiles: what is left out is the resolution behind it."""
    gamma, envs, count = 0.99, 4096, 64
    known = truth("normal", gamma=gamma)
    levels = quantile.midpoints(count, like=torch.zeros(1, dtype=torch.float64))
    exact = known.quantiles(levels)
    reward = draw("normal", (64, envs), torch.Generator().manual_seed(6)).double()
    no = torch.zeros(64, envs, dtype=torch.bool)
    bootstrap = exact.expand(64, envs, count)
    atoms = returns.quantile_nstep_targets(reward, bootstrap, no, no, gamma=gamma, steps=64)[0]
    result = float(risk.empirical_cvar(atoms.flatten(), alpha=ALPHA)) / known.cvar(ALPHA)
    assert result == pytest.approx(1.0, abs=0.03)  # two standard errors


# ----------------------------------------------------------------------------- what critics learned


@pytest.mark.parametrize("case", [tails.DEFAULT, tails.CATEGORICAL], ids=["quantile", "atoms"])
def test_trained_critics_predict_the_tail_of_a_chain(case):
    """At gamma = .9 CVaR is -2.0627 / sqrt(1 - .81) = -4.7322.

    Exact quantiles of 64 levels would be short by 1.7 %. Three seeds were within 5.5 % and 2.5
    points. A threshold of 1 or lambda-returns are short by more than 15 %.
    """
    plan = tails.Plan(gamma=0.9, n_steps=128, n_envs=16, updates=40, learning_rate=4e-3)
    result = tails.measure("chain", case, plan, 0)
    assert result.true == pytest.approx(-4.7322, abs=1e-4)
    assert result.predicted == pytest.approx(-4.7322, rel=0.08)
    assert result.coverage <= 4.0
    assert result.spread == pytest.approx(1.0, abs=0.08)


# ----------------------------------------------------------------------------- what a limit changes

SMALL = (
    ("task.data.world_bars", 4000),
    ("task.data.world_symbols", 16),
    ("task.market.episode_bars", 32),
    ("network.memory", "none"),
    ("ppo.n_steps", 64),
    ("ppo.n_envs", 64),
    ("ppo.batch_size", 16),
    ("ppo.learning_rate", 3e-3),
    # one error inside the limit, not two: in twenty updates an error is most of the limit
    ("risk.cvar_margin", 0.5),
)


FORMER = (
    ("risk.form", "budget"),
    ("ppo.advantage_scale", "rollout"),
    ("critic.learning_rate_factor", 1.0),
    ("critic.levels", "uniform"),
    ("network.first_layer", "orthogonal"),
)


def trained(kind, limit, changes=()):
    settings = (*SMALL, *changes)
    job = frontier.Job(
        kind, gamma=0.99, seed=0, steps=80_000, episodes=512, limit=limit, changes=settings
    )
    return frontier.run(job)[0]


def test_a_limit_that_all_actions_keep_finds_the_warnings_in_a_market_that_crashes():
    """Twenty updates, as below. It holds as much as the free agent, but not when a warning stands.

    Seed 0: CVaR -.026 at an exposure of .65, free -.072 at .58. Twenty updates do not always
    suffice: seed 1 ended at -.086.
    """
    limit = -0.03
    free, limited = trained("free", None), trained("limit", limit)
    assert free.cvar < 2.0 * limit
    assert limited.cvar + TWO_SIDED * limited.cvar_error >= limit
    assert limited.cvar > free.cvar + 0.03
    assert limited.mean > free.mean
    assert limited.exposure > 0.3


@pytest.mark.spec("S3-3")
def test_a_limit_on_the_tail_makes_an_agent_hold_less_in_a_market_that_crashes():
    """Twenty updates on `configs/crash.toml`, smaller, judged on bars that neither agent saw.

    Over five seeds the free agent held .68 to .80 of its equity and the limited one .06 to .46,
    less by .32 or more; its CVaR was better by .05 or more.

    On either side of the limit: its 95 % interval reaches it from below, which that of the free
    agent does not, and it is not better by more than three errors of an estimate there. That error
    is the free agent's, made smaller with its weights until its CVaR is the limit: .0084. Seeds 0
    to 2 ended at -.011, -.035 and -.065 with errors of .001, .013 and .025, and with multipliers of
    0, .04 and .50 after at most 1.08, .92 and .76.
    """
    limit = -0.03
    free, limited = trained("free", None, FORMER), trained("limit", limit, FORMER)
    assert free.largest_multiplier == 0.0
    assert limited.largest_multiplier > 0.3
    assert free.exposure > 0.55
    assert limited.exposure < free.exposure - 0.2
    assert free.cvar < -0.08
    assert limited.cvar > free.cvar + 0.03
    assert free.cvar + TWO_SIDED * free.cvar_error < limit
    assert limited.cvar + TWO_SIDED * limited.cvar_error >= limit
    error = free.cvar_error * limit / free.cvar
    assert error == pytest.approx(0.0084, abs=0.004)  # else the bound below says nothing
    assert limited.cvar < limit + 3.0 * error  # one that holds nothing has 0
    assert limited.multiplier < 0.75 * limited.largest_multiplier  # it comes down again
