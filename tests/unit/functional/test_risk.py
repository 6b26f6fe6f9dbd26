"""Hand-computed values, golden numbers and refusals of `stormsail.functional.risk`."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from oracles import risk as oracle
from stormsail.core.errors import ChoiceError, RangeError, ShapeError
from stormsail.functional import returns, risk

NAN = math.nan


def row(*values):
    return torch.tensor(values, dtype=torch.float64)


def close(actual, expected, *, rtol=1e-12, atol=1e-12):
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol)


def exact_quantiles(distribution, n):
    """The true quantiles of a scipy distribution at the midpoint levels."""
    return torch.from_numpy(distribution.ppf((np.arange(n) + 0.5) / n))


# ------------------------------------------------------------------------------ value and tail


def test_dirac_cvar_by_hand():
    # Sorted 1, 2, 4, 8; alpha N = 1.2: (1 + .2 * 2) / 1.2. alpha N = 3: (1 + 2 + 4) / 3.
    theta = row(4, 1, 8, 2)
    close(risk.cvar(theta, alpha=0.3), 1.4 / 1.2)
    close(risk.cvar(theta, alpha=0.75), 7 / 3)
    close(risk.cvar(theta, alpha=1.0), 15 / 4)
    close(risk.cvar(theta, alpha=0.1), 1.0)


def test_linear_cvar_by_hand():
    # Two atoms 0 and 4 at levels .25 and .75: the line 8 (level - .25). Its mean over (0, alpha)
    # is the line at alpha / 2: 8 (.25 - .25) = 0 at alpha .5, 8 (.05 - .25) = -1.6 at alpha .1.
    theta = row(4, 0)
    close(risk.cvar(theta, alpha=0.5, estimator="linear"), 0.0)
    close(risk.cvar(theta, alpha=0.1, estimator="linear"), -1.6)
    close(risk.cvar(theta, alpha=1.0, estimator="linear"), 2.0)
    close(risk.cvar(row(7), alpha=0.1, estimator="linear"), 7.0)


@pytest.mark.spec("M05")
def test_linear_cvar_integrates_both_sides_of_a_kink():
    # Levels 1/6, 1/2, 5/6 with 0, 1, 5; alpha = 2/3. Line 3 level - .5 up to 1/2, then
    # 1 + 12 (level - 1/2). First piece: mean .25 over 1/2 -> .125. Second: mean 2 over 1/6 -> 1/3.
    # One trapezium from level 1/6 to 2/3 over the kink would give another value.
    actual = risk.cvar(row(0, 1, 5), alpha=2 / 3, estimator="linear")
    close(actual, (0.125 + 1 / 3) / (2 / 3))


def test_value_at_risk_by_hand():
    theta = row(*range(10, 0, -1))
    # alpha N = 3 is the third atom, 3.1 the fourth, .1 the first.
    close(risk.value_at_risk(theta, alpha=0.3), 3)
    close(risk.value_at_risk(theta, alpha=0.31), 4)
    close(risk.value_at_risk(theta, alpha=0.01), 1)
    close(risk.value_at_risk(theta, alpha=1.0), 10)
    for k in range(1, 11):
        close(risk.value_at_risk(theta, alpha=k / 10), k)
    # .07 * 100 is 7.000000000000001 in floating point and still the seventh atom.
    assert 0.07 * 100 > 7
    close(risk.value_at_risk(row(*range(1, 101)), alpha=0.07), 7)


@pytest.mark.spec("T-C1", "S0-6")
def test_the_tail_of_a_uniform_distribution_is_half_its_level():
    # CVaR_.1 of U(0, 1) is .05: without the division by alpha .005, over a wrong count .1.
    theta = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    close(risk.cvar(theta, alpha=0.1), 0.05, atol=5e-4, rtol=0)
    close(risk.cvar(theta, alpha=0.1, estimator="linear"), 0.05, atol=1e-9, rtol=0)


@pytest.mark.spec("T-C2", "S2-6", "M05")
@pytest.mark.parametrize(
    ("alpha", "true", "dirac", "linear"),
    [
        (0.01, -2.6652, -1.9808, -2.1844),
        (0.05, -2.0627, -1.9562, -1.9679),
        (0.1, -1.7550, -1.6971, -1.7169),
        (0.25, -1.2711, -1.2465, -1.2579),
    ],
)
def test_the_golden_table_of_the_normal_distribution_at_21_quantiles(alpha, true, dirac, linear):
    # floor(alpha N) whole atoms without the fraction would read -1.9808 at alpha = .05.
    theta = exact_quantiles(stats.norm, 21)
    close(oracle.normal_cvar(alpha), true, atol=5e-5, rtol=0)
    close(risk.cvar(theta, alpha=alpha), dirac, atol=6e-5, rtol=0)
    close(risk.cvar(theta, alpha=alpha, estimator="linear"), linear, atol=6e-5, rtol=0)


@pytest.mark.spec("T-C2", "S2-6")
@pytest.mark.parametrize(
    ("n", "alpha", "dirac", "linear"),
    [
        (21, 0.05, 5.2, 4.6),
        (51, 0.05, 2.4, 1.4),
        (101, 0.05, 1.0, 0.6),
        (21, 0.01, 25.7, 18.0),
        (51, 0.01, 12.4, 8.4),
    ],
)
def test_the_resolution_error_of_exact_normal_quantiles(n, alpha, dirac, linear):
    theta, true = exact_quantiles(stats.norm, n), oracle.normal_cvar(alpha)
    short = 100 * (1 - risk.cvar(theta, alpha=alpha).item() / true)
    close(short, dirac, atol=0.06, rtol=0)
    short = 100 * (1 - risk.cvar(theta, alpha=alpha, estimator="linear").item() / true)
    close(short, linear, atol=0.06, rtol=0)


@pytest.mark.spec("T-C2")
def test_the_golden_linear_cvar_at_51_quantiles():
    theta = exact_quantiles(stats.norm, 51)
    close(risk.cvar(theta, alpha=0.05, estimator="linear"), -2.0347, atol=6e-5, rtol=0)


@pytest.mark.spec("T-C2")
def test_cvar_of_the_normal_distribution_grows_with_alpha_up_to_the_mean():
    theta = exact_quantiles(stats.norm, 21)
    for estimator in ("dirac", "linear"):
        curve = [risk.cvar(theta, alpha=k / 200, estimator=estimator).item() for k in range(1, 201)]
        assert all(low <= high + 1e-12 for low, high in itertools.pairwise(curve))
        close(curve[-1], 0.0)


@pytest.mark.spec("R9")
def test_cvar_is_near_the_closed_form_at_200_quantiles():
    normal = exact_quantiles(stats.norm, 200)
    close(risk.cvar(normal, alpha=0.05), oracle.normal_cvar(0.05), rtol=0.005)
    uniform = exact_quantiles(stats.uniform, 200)
    close(risk.cvar(uniform, alpha=0.05), 0.025, rtol=0.005)
    # Two points: -1 with probability .02, else 1. The tail of .05 holds .02 of -1 and .03 of 1.
    two_points = torch.ones(200, dtype=torch.float64)
    two_points[:4] = -1.0
    close(risk.cvar(two_points, alpha=0.05), 0.2)


@pytest.mark.spec("R9")
def test_the_resolution_error_of_a_heavy_tail_at_200_quantiles_is_stated():
    # The worst cell of t3 has mean -8.91 but its midpoint is -7.45, a tenth of the tail's mass:
    # exact midpoint quantiles lose 3.96 %, the linear curve still 3.22 %. This is the grid, not
    # the code: on its own grid the code equals the definition.
    theta, true = exact_quantiles(stats.t(3), 200), oracle.student_cvar(0.05, 3)
    dirac = risk.cvar(theta, alpha=0.05)
    close(dirac, oracle.cvar(theta.numpy(), 0.05))
    close(100 * (1 - dirac / true), 3.96, atol=0.01, rtol=0)
    linear = risk.cvar(theta, alpha=0.05, estimator="linear")
    close(linear, oracle.cvar_linear(theta.numpy(), 0.05))
    close(100 * (1 - linear / true), 3.22, atol=0.01, rtol=0)


@pytest.mark.spec("R9")
@pytest.mark.parametrize(("n", "percent"), [(32, 4.27), (128, 0.82), (200, 0.47)])
def test_the_stated_resolution_error_of_the_shipped_number_of_quantiles(n, percent):
    short = 1 - risk.cvar(exact_quantiles(stats.norm, n), alpha=0.05) / oracle.normal_cvar(0.05)
    close(100 * short, percent, atol=0.006, rtol=0)


@pytest.mark.spec("T-C4", "S3-10")
def test_a_level_below_the_first_quantile_is_defined():
    theta = exact_quantiles(stats.norm, 21)
    assert risk.cvar(theta, alpha=0.01).item() == pytest.approx(theta[0].item(), rel=1e-12)
    close(risk.cvar(theta, alpha=0.01, estimator="linear"), -2.1844, atol=6e-5, rtol=0)
    assert risk.value_at_risk(theta, alpha=0.01).item() == theta[0].item()
    # alpha -> 0: the curve's value at level 0, theta_0 - (theta_1 - theta_0) / 2, not infinity.
    limit = 1.5 * theta[0] - 0.5 * theta[1]
    close(risk.cvar(theta, alpha=1e-9, estimator="linear"), limit, rtol=1e-6)
    close(risk.cvar(theta, alpha=1e-9), theta[0], rtol=1e-9)
    for estimator in ("dirac", "linear"):
        assert risk.cvar(row(-3), alpha=0.01, estimator=estimator).item() == -3.0


@pytest.mark.spec("T-C5", "S4-2")
@pytest.mark.parametrize("alpha", [1e-3, 0.05, 0.5, 1.0])
def test_the_gradient_of_cvar_adds_up_to_one_at_every_level(alpha):
    # A tail mass floored at 1e-6 or divided by a floor would break this for small alpha.
    theta = exact_quantiles(stats.norm, 21).requires_grad_()
    (gradient,) = torch.autograd.grad(risk.cvar(theta, alpha=alpha), theta)
    close(gradient.abs().sum(), 1.0, rtol=1e-9)


def test_a_constant_distribution_is_its_own_tail():
    theta = torch.full((21,), 0.7, dtype=torch.float64)
    for alpha in (0.01, 0.05, 0.4, 1.0):
        close(risk.cvar(theta, alpha=alpha), 0.7)
        close(risk.cvar(theta, alpha=alpha, estimator="linear"), 0.7)
        # Constant returns have no risk advantage either.
        close(risk.risk_advantage(theta[0], theta, alpha=alpha), 0.0, atol=1e-9)


# -------------------------------------------------------------------------------- categorical


def test_categorical_risk_by_hand():
    # Masses .02, .05, .93 on -10, -2, 1. alpha .05: (.02 * -10 + .03 * -2) / .05 = -5.2, VaR -2.
    probs, atoms = row(0.02, 0.05, 0.93), row(-10, -2, 1)
    close(risk.categorical_cvar(probs, atoms, alpha=0.05), -5.2)
    close(risk.categorical_value_at_risk(probs, atoms, alpha=0.05), -2)
    close(risk.categorical_value_at_risk(probs, atoms, alpha=0.01), -10)
    close(risk.categorical_cvar(probs, atoms, alpha=0.01), -10)
    close(risk.categorical_value_at_risk(probs, atoms, alpha=1.0), 1)
    close(risk.categorical_cvar(probs, atoms, alpha=1.0), 0.63)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_level_tie_of_the_distribution_function_reads_the_lower_atom(dtype):
    # .1 + .1 + .1 is not .3 in floating point, in neither direction reliably.
    probs = torch.full((10,), 0.1, dtype=dtype)
    atoms = torch.arange(1.0, 11.0, dtype=dtype)
    for k in range(1, 11):
        assert risk.categorical_value_at_risk(probs, atoms, alpha=k / 10).item() == k


def test_mass_that_rounding_lost_lies_on_the_last_atom():
    # The masses add up to .999: at alpha = 1 the missing .001 counts as the best atom.
    probs, atoms = row(0.5, 0.499), row(0.0, 1000.0)
    close(risk.categorical_cvar(probs, atoms, alpha=1.0), 500.0)
    close(risk.categorical_value_at_risk(probs, atoms, alpha=1.0), 1000.0)
    narrow = torch.full((51,), 1 / 51)
    atoms = torch.linspace(-10.0, 10.0, 51)
    np.testing.assert_allclose(risk.categorical_cvar(narrow, atoms, alpha=1.0), 0.0, atol=1e-4)
    assert risk.categorical_value_at_risk(narrow, atoms, alpha=1.0).item() == 10.0


def test_atoms_without_mass_are_never_the_value_at_risk():
    probs, atoms = row(0.0, 0.5, 0.0, 0.5), row(-9, 1, 2, 3)
    close(risk.categorical_value_at_risk(probs, atoms, alpha=0.01), 1)
    close(risk.categorical_cvar(probs, atoms, alpha=0.01), 1)
    close(risk.categorical_value_at_risk(probs, atoms, alpha=0.5), 1)


# ------------------------------------------------------------------------------------ samples


def test_empirical_cvar_by_hand():
    # alpha n = 1.5: (1 + .5 * 2) / 1.5. With weights 1, 0, 2, 1 on 5, NaN, 1, 2 the total is 4:
    # alpha = .75 takes 3: two of 1 and one of 2.
    close(risk.empirical_cvar(row(5, 2, 1), alpha=0.5), 2 / 1.5)
    close(risk.empirical_cvar(row(5, NAN, 1, 2), alpha=0.75, weight=row(1, 0, 2, 1)), 4 / 3)
    close(risk.empirical_cvar(row(5), alpha=0.05), 5.0)
    close(risk.empirical_cvar(row(5, 9), alpha=0.05, weight=row(0, 1)), 9.0)


def test_a_sample_without_weight_has_no_cvar():
    actual = risk.empirical_cvar(
        torch.ones(2, 3), alpha=0.5, weight=torch.tensor([[0.0] * 3, [0.0, 1, 0]])
    )
    assert actual.isnan().tolist() == [True, False]


@pytest.mark.spec("T-C2")
@pytest.mark.parametrize(
    ("n", "trials", "mean", "spread"),
    [(64, 20_000, -1.991, 0.301), (200, 8_000, -2.040, 0.173), (2048, 1_500, -2.060, 0.054)],
)
def test_the_golden_bias_and_spread_of_the_empirical_cvar(n, trials, mean, spread):
    generator = torch.Generator().manual_seed(n)
    sample = torch.randn(trials, n, dtype=torch.float64, generator=generator)
    actual = risk.empirical_cvar(sample, alpha=0.05)
    error = 4 * spread / math.sqrt(trials)  # four standard errors of the mean
    close(actual.mean(), mean, atol=error + 5e-4, rtol=0)
    close(actual.std(), spread, atol=error + 5e-4, rtol=0)
    # Whole samples only, the mean of the ceil(3.2) = 4 worst of 64, would give -1.911.
    if n == 64:
        worst = sample.sort(-1).values[:, :4].mean(-1)
        close(worst.mean(), -1.911, atol=0.01, rtol=0)


def test_the_error_of_the_empirical_cvar_by_hand():
    # 0, 1, 2, 3 at alpha 1/2: nu = 1, influence 1 + 2 min(x - 1, 0) = -1, 1, 1, 1 with mean 1/2,
    # which is the CVaR. Deviations -1.5, .5, .5, .5: variance 3 / 3, over n = 4: .25, root .5.
    close(risk.empirical_cvar_error(row(3, 0, 2, 1), alpha=0.5), 0.5)
    # alpha = 1 is the mean: s / sqrt(n) = sqrt(5 / 3 / 4).
    close(risk.empirical_cvar_error(row(3, 0, 2, 1), alpha=1.0), math.sqrt(5 / 12))
    assert risk.empirical_cvar_error(row(3), alpha=0.5).isnan().item()


def test_the_error_of_grouped_outcomes_by_hand():
    # The example above, v = 1, -1, 1, 1 for x = 3, 0, 2, 1, mean 1/2: deviations .5, -1.5, .5, .5.
    # Groups {3, 0, 2}, {1}: sums -.5 and .5, squares .5, times G / (G - 1) = 2: root 1, over n = 4.
    sample = row(3, 0, 2, 1)
    grouped = risk.empirical_cvar_error(sample, alpha=0.5, group=torch.tensor([8, 8, 8, -3]))
    close(grouped, 0.25)
    # Groups {3, 1}, {0}, {2}: sums 1, -1.5, .5, squares 3.5, times 3 / 2: root of 5.25, over 4.
    grouped = risk.empirical_cvar_error(sample, alpha=0.5, group=torch.tensor([0, 1, 2, 0]))
    close(grouped, math.sqrt(5.25) / 4)
    # Each its own group is no group; one group says nothing.
    alone = risk.empirical_cvar_error(sample, alpha=0.5, group=torch.tensor([3, 0, 2, 1]))
    close(alone, 0.5)
    whole = risk.empirical_cvar_error(sample, alpha=0.5, group=torch.zeros(4, dtype=torch.int64))
    assert whole.isnan().item()


@pytest.mark.parametrize(
    ("outcomes", "groups"), [(1, 1), (2, 2), (9, 1), (9, 2), (40, 7), (40, 40)]
)
def test_the_error_of_grouped_outcomes_is_that_of_the_loop(outcomes, groups):
    rng = np.random.default_rng(outcomes + groups)
    sample = rng.standard_t(3, (5, outcomes))
    group = rng.permutation(np.arange(outcomes) % groups)
    for alpha in (0.05, 0.3, 1.0):
        result = risk.empirical_cvar_error(
            torch.tensor(sample), alpha=alpha, group=torch.tensor(group)
        )
        expected = [oracle.grouped_cvar_error(one, alpha, group) for one in sample]
        np.testing.assert_allclose(result, expected, rtol=1e-10, atol=1e-15)
        if groups == outcomes > 1:
            bare = risk.empirical_cvar_error(torch.tensor(sample), alpha=alpha)
            np.testing.assert_allclose(result, bare, rtol=1e-12)


@pytest.mark.refusal
def test_labels_that_are_not_one_for_each_outcome_are_refused():
    with pytest.raises(ShapeError) as caught:
        risk.empirical_cvar_error(row(3, 0, 2, 1), alpha=0.5, group=torch.tensor([0, 1, 1]))
    assert str(caught.value) == (
        "`outcomes` and `group` must have the same shape; found outcomes (4,) and group (3,). "
        "Reduce or expand one of them before the call; this function never broadcasts. "
        "[shape-mismatch]"
    )


@pytest.mark.parametrize(
    ("distribution", "n", "trials", "covered"),
    [
        (stats.norm, 200, 4000, 0.877),
        (stats.norm, 512, 4000, 0.922),
        (stats.norm, 2048, 1500, 0.950),
        (stats.t(3), 512, 4000, 0.871),
    ],
)
def test_the_stated_coverage_of_a_band_around_the_empirical_cvar(distribution, n, trials, covered):
    true = oracle.normal_cvar(0.05) if distribution is stats.norm else oracle.student_cvar(0.05, 3)
    sample = torch.tensor(distribution.rvs(size=(trials, n), random_state=n))
    estimate = risk.empirical_cvar(sample, alpha=0.05)
    band = 1.96 * risk.empirical_cvar_error(sample, alpha=0.05)
    result = float(((estimate - true).abs() <= band).double().mean())
    assert result == pytest.approx(covered, abs=4 * math.sqrt(covered * (1 - covered) / trials))


@pytest.mark.spec("T-C8", "X7")
def test_winsorising_at_the_level_of_the_tail_erases_the_tail():
    # Student t3, alpha .05: -3.87 (spec 2.12, on a sample: -3.84). Clipped at its 10 % quantile
    # the tail *is* that quantile, -1.64 (sample -1.63); clipped at .1 % it is -3.77 (sample
    # -3.72); at alpha / 20 = .25 %, the most the spec allows, it has lost 5 percent.
    distribution = stats.t(3)
    sample = exact_quantiles(distribution, 20_000)
    full = risk.empirical_cvar(sample, alpha=0.05).item()
    close(full, oracle.student_cvar(0.05, 3), rtol=2e-3)

    def winsorised(share):
        return risk.empirical_cvar(sample.clamp(min=distribution.ppf(share)), alpha=0.05).item()

    close(winsorised(0.10), distribution.ppf(0.10), rtol=1e-9)
    close(winsorised(0.10), -1.63, rtol=0.01)
    close(winsorised(0.001), -3.770, atol=1e-3, rtol=0)
    close(winsorised(0.001), -3.72, rtol=0.02)
    close(winsorised(0.0025) / full, 0.95, atol=0.005, rtol=0)
    # Already at w = alpha the whole tail is one number, the value at risk.
    close(winsorised(0.05), distribution.ppf(0.05), rtol=1e-9)


# ---------------------------------------------------------------------------- risk advantages


def test_risk_advantage_by_hand():
    # Atoms 0, 1, 2, 3, alpha .5: VaR 1, CVaR .5. G = -1: 2 * -2 + .5. G = 9: 0 + .5.
    theta = row(0, 1, 2, 3)
    close(risk.risk_advantage(torch.tensor(-1.0).double(), theta, alpha=0.5), -3.5)
    close(risk.risk_advantage(torch.tensor(9.0).double(), theta, alpha=0.5), 0.5)
    probs = row(0.25, 0.25, 0.25, 0.25)
    distribution = risk.categorical_risk_advantage(
        torch.tensor(-1.0).double(), probs, theta, alpha=0.5
    )
    close(distribution, -3.5)


def test_budget_advantage_by_hand():
    # b = 1. Targets -1, 3: min(y - 1, 0) = -2, 0, mean -1. Quantiles 0, 1, 2, 3: -1, 0, 0, 0,
    # mean -.25. (-1 + .25) / .5.
    actual = risk.budget_advantage(
        row(-1, 3), row(0, 1, 2, 3), torch.tensor(1.0).double(), alpha=0.5
    )
    close(actual, -1.5)
    distribution = risk.categorical_budget_advantage(
        row(0.5, 0.0, 0.5),
        row(0.25, 0.25, 0.5),
        row(-1, 0, 3),
        torch.tensor(1.0).double(),
        alpha=0.5,
    )
    # -2 * .5 = -1 against -2 * .25 - 1 * .25 = -.75, over .5.
    close(distribution, -0.5)


SAFE, RISKY = (-0.1, 0.0, 0.1, 0.2), (-4.0, 1.0, 2.0, 3.0)


def cvar_of_mixture(logits, alpha):
    """Analytic CVaR of drawing an arm by softmax and then one of its four equal outcomes."""
    weight = np.exp(logits - np.max(logits))
    weight = weight / weight.sum()
    masses = [w / 4 for w in weight for _ in range(4)]
    return oracle.tail_mean([*SAFE, *RISKY], masses, alpha)


def finite_difference(function, x, step=1e-5):
    gradient = np.zeros_like(x)
    for i in range(len(x)):
        up, down = x.copy(), x.copy()
        up[i] += step
        down[i] -= step
        gradient[i] = (function(up) - function(down)) / (2 * step)
    return gradient


def score_gradient(logits, advantage):
    """E[A grad log pi]: the sum over both arms and their outcomes, weighted by probability."""
    theta = torch.from_numpy(logits).requires_grad_()
    log_pi = torch.log_softmax(theta, -1).repeat_interleave(4)
    weight = log_pi.detach().exp() / 4
    (gradient,) = torch.autograd.grad((weight * advantage * log_pi).sum(), theta)
    return gradient.numpy()


BANDITS = pytest.mark.parametrize(
    ("logits", "parts"), [((0.0, 0.0), (1, 1)), ((0.0, math.log(3)), (1, 3))]
)


@pytest.mark.spec("T-C3", "S3-3", "X3")
@pytest.mark.parametrize("alpha", [0.2, 0.3, 0.6])
@BANDITS
def test_the_risk_advantage_is_the_policy_gradient_of_the_cvar_of_a_bandit(logits, parts, alpha):
    logits = np.array(logits)
    outcome = row(*SAFE, *RISKY)
    # The critic's distribution at the state: both arms, each outcome repeated by the arm's
    # probability.
    distribution = torch.cat([row(*SAFE).repeat(parts[0]), row(*RISKY).repeat(parts[1])])
    advantage = risk.risk_advantage(outcome, distribution.expand(8, -1), alpha=alpha)
    expected = finite_difference(lambda x: cvar_of_mixture(x, alpha), logits)
    actual = score_gradient(logits, advantage)
    close(actual, expected, rtol=1e-6, atol=1e-9)
    # The tail prefers the safe arm although the other one has the larger mean.
    assert actual[0] > 0.05
    assert actual[1] < -0.05
    assert np.mean(RISKY) > np.mean(SAFE)


@pytest.mark.spec("T-C3", "S3-3")
@BANDITS
def test_the_categorical_risk_advantage_is_the_same_policy_gradient(logits, parts):
    logits = np.array(logits)
    atoms = row(*sorted([*SAFE, *RISKY]))
    weight = [1 / 4 * p / sum(parts) for p in parts]
    probs = row(*(weight[0] if x in SAFE else weight[1] for x in atoms.tolist()))
    advantage = risk.categorical_risk_advantage(
        row(*SAFE, *RISKY), probs.expand(8, -1), atoms, alpha=0.3
    )
    expected = finite_difference(lambda x: cvar_of_mixture(x, 0.3), logits)
    close(score_gradient(logits, advantage), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.spec("T-C3", "S3-3", "X3")
def test_cvar_constraint_gradient_flow():
    # The actor must feel the constraint and the critic must not; the legacy term does the reverse.
    actor = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    critic = row(*SAFE, *RISKY).requires_grad_()
    outcome = row(*SAFE, *RISKY)

    def gradients(advantage):
        log_pi = torch.log_softmax(actor, -1).repeat_interleave(4)
        loss = -(advantage * log_pi).mean()
        return torch.autograd.grad(loss, [actor, critic], allow_unused=True)

    gradient = gradients(risk.risk_advantage(outcome, critic.expand(8, -1), alpha=0.3))
    # The mean over 8 equally likely outcomes is the expectation at logits (0, 0): descent on the
    # loss raises CVaR by exactly its policy gradient.
    expected = finite_difference(lambda x: cvar_of_mixture(x, 0.3), np.zeros(2))
    close(-gradient[0], expected, rtol=1e-6, atol=1e-9)
    assert gradient[0][0].item() < -0.1
    assert gradient[1] is None
    # The same through the budget form.
    budget = risk.value_at_risk(critic, alpha=0.3).expand(8)
    gradient = gradients(
        risk.budget_advantage(outcome.unsqueeze(-1), critic.expand(8, -1), budget, alpha=0.3)
    )
    close(-gradient[0], expected, rtol=1e-6, atol=1e-9)
    assert gradient[1] is None
    # The legacy term: a state value does not depend on the sampled action.
    legacy = torch.autograd.grad(-risk.cvar(critic, alpha=0.3), [actor, critic], allow_unused=True)
    assert legacy[0] is None
    assert bool((legacy[1] < 0).any())


# ------------------------------------------------ static CVaR of a two-step problem, budget form


class TwoSteps:
    """Act, earn, act again knowing what was earned, earn, end; every path can be listed.

    Each reward is one of two equally likely numbers. The second decision has a state for each
    first action and first reward, so the policy may spend what it has left to lose.
    """

    FIRST = ((-1.0, 1.5), (0.0, 0.25))
    SECOND = ((-0.125, 0.125), (-2.0, 3.0))
    PARTS = 64  # every probability below is a whole number of 64ths, for the critic's equal atoms

    def __init__(self):
        # Probabilities 1/4 and 3/4 or one half each: rational, so N equal atoms hold every
        # distribution.
        quarter = math.log(3)
        self.logits = np.array([0.0, quarter, 0, 0, quarter, 0.0, 0, quarter, 0, 0])

    @staticmethod
    def policy(logits, state):
        pair = np.exp(logits[2 * state : 2 * state + 2])
        return pair / pair.sum()

    def paths(self, logits):
        """Yield probability, second state, actions and rewards of each path."""
        for a, i, b, j in itertools.product(range(2), repeat=4):
            state = 1 + 2 * a + i
            chance = self.policy(logits, 0)[a] * self.policy(logits, state)[b] / 4
            yield chance, state, (a, b), (self.FIRST[a][i], self.SECOND[b][j])

    def distribution(self, logits):
        """Atoms and masses of the total reward."""
        return oracle.distribution_of_sum(
            [(chance, sum(r)) for chance, _, _, r in self.paths(logits)]
        )

    def cvar(self, logits, alpha):
        return oracle.tail_mean(*self.distribution(logits), alpha)

    def equal_atoms(self, branches):
        """The distribution of the branches as PARTS equal atoms."""
        atoms = []
        for chance, x in branches:
            count = round(chance * self.PARTS)
            assert abs(chance * self.PARTS - count) < 1e-9
            atoms += [x] * count
        return atoms

    def critic(self, state):
        """What the true critic predicts before the first (0) or second decision."""
        if state == 0:
            total = self.paths(self.logits)
            merged = zip(
                *oracle.distribution_of_sum([(c, sum(r)) for c, _, _, r in total]), strict=True
            )
            return self.equal_atoms([(mass, x) for x, mass in merged])
        pi = self.policy(self.logits, state)
        return self.equal_atoms([(pi[b] / 2, x) for b in range(2) for x in self.SECOND[b]])

    def score_gradient(self, alpha, steps, budget):
        """Sum over paths of chance * sum_t A^risk_t grad log pi(a_t | s_t)."""
        paths = list(self.paths(self.logits))
        theta = torch.from_numpy(self.logits).requires_grad_()
        reward = torch.tensor([r for _, _, _, r in paths], dtype=torch.float64).T
        first = torch.tensor(self.critic(0), dtype=torch.float64).expand(len(paths), -1)
        second = torch.tensor([self.critic(s) for _, s, _, _ in paths], dtype=torch.float64)
        terminated = torch.zeros(2, len(paths), dtype=torch.bool)
        terminated[1] = True
        # The state step 0 reaches is the second one; step 1 ends and its bootstrap is never read.
        bootstrap = torch.stack([second, torch.full_like(second, NAN)])
        target = returns.quantile_nstep_targets(
            reward, bootstrap, terminated, torch.zeros_like(terminated), gamma=1.0, steps=steps
        )
        quantiles = torch.stack([first, second])
        advantage = risk.budget_advantage(target, quantiles, budget(quantiles, reward), alpha=alpha)
        log_pi = torch.log_softmax(theta.reshape(5, 2), -1)
        total = torch.zeros((), dtype=torch.float64)
        for k, (chance, state, (a, b), _) in enumerate(paths):
            total = total + chance * (advantage[0, k] * log_pi[0, a])
            total = total + chance * (advantage[1, k] * log_pi[state, b])
        (gradient,) = torch.autograd.grad(total, theta)
        return gradient.numpy()


@pytest.mark.spec("T-C3", "X3")
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("alpha", [0.07, 0.3])
def test_the_budget_advantage_is_the_policy_gradient_of_the_static_cvar(alpha, steps):
    problem = TwoSteps()
    nu = oracle.categorical_value_at_risk(
        problem.distribution(problem.logits)[1], problem.distribution(problem.logits)[0], alpha
    )

    def left_to_lose(quantiles, reward):
        earned = torch.stack([torch.zeros_like(reward[0]), reward[0]])
        return nu - earned

    expected = finite_difference(lambda x: problem.cvar(x, alpha), problem.logits)
    actual = problem.score_gradient(alpha, steps, left_to_lose)
    assert np.abs(expected).max() > 0.05
    close(actual, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.spec("T-C3")
def test_the_state_form_is_another_objective_than_the_static_cvar():
    # Each state's own value at risk forgets what was earned: the second decision then differs.
    problem, alpha = TwoSteps(), 0.3

    def own_value_at_risk(quantiles, reward):
        return risk.value_at_risk(quantiles, alpha=alpha)

    expected = finite_difference(lambda x: problem.cvar(x, alpha), problem.logits)
    actual = problem.score_gradient(alpha, 2, own_value_at_risk)
    close(actual[:2], expected[:2], rtol=1e-6, atol=1e-8)
    assert np.abs(actual[2:] - expected[2:]).max() > 0.05


# -------------------------------------------------------------------------------------- refusals

QUANTILES, BATCH = torch.zeros(4, 8), torch.zeros(4)
PROBS, ATOMS = torch.full((4, 3), 1 / 3), torch.arange(3.0)
CALLS = {
    "cvar": lambda **o: risk.cvar(QUANTILES, **o),
    "linear": lambda **o: risk.cvar(QUANTILES, estimator="linear", **o),
    "value_at_risk": lambda **o: risk.value_at_risk(QUANTILES, **o),
    "categorical_value_at_risk": lambda **o: risk.categorical_value_at_risk(PROBS, ATOMS, **o),
    "categorical_cvar": lambda **o: risk.categorical_cvar(PROBS, ATOMS, **o),
    "empirical_cvar": lambda **o: risk.empirical_cvar(QUANTILES, **o),
    "risk_advantage": lambda **o: risk.risk_advantage(BATCH, QUANTILES, **o),
    "categorical_risk_advantage": lambda **o: risk.categorical_risk_advantage(
        BATCH, PROBS, ATOMS, **o
    ),
    "budget_advantage": lambda **o: risk.budget_advantage(QUANTILES, QUANTILES, BATCH, **o),
    "categorical_budget_advantage": lambda **o: risk.categorical_budget_advantage(
        PROBS, PROBS, ATOMS, BATCH, **o
    ),
}


def refused(error, function, *arguments, **options):
    with pytest.raises(error) as caught:
        function(*arguments, **options)
    return str(caught.value)


@pytest.mark.refusal
@pytest.mark.spec("T-C5", "S4-2", "M09", "M23")
@pytest.mark.parametrize("alpha", [0.0, 0, -1, 1.1, NAN, math.inf])
@pytest.mark.parametrize("name", CALLS)
def test_a_level_outside_its_interval_is_refused(name, alpha):
    # NaN is neither below 0 nor above 1: a check written as two comparisons lets it pass.
    assert refused(RangeError, CALLS[name], alpha=alpha) == (
        f"`alpha` must lie in (0, 1]; found {alpha!r}. "
        "Pass the tail share as a fraction, for example 0.05. [out-of-range]"
    )


@pytest.mark.parametrize("name", CALLS)
def test_the_ends_of_the_interval_are_allowed(name):
    assert CALLS[name](alpha=1.0).shape == (4,)
    assert CALLS[name](alpha=1e-4).shape == (4,)


@pytest.mark.refusal
def test_an_unknown_estimator_is_refused_with_the_nearest_name():
    assert refused(ChoiceError, risk.cvar, QUANTILES, alpha=0.1, estimator="linaer") == (
        "`estimator` must be one of `dirac`, `linear`; found `linaer`. "
        "Did you mean `linear`? [unknown-choice]"
    )
    assert refused(ChoiceError, risk.cvar, QUANTILES, alpha=0.1, estimator="zzz") == (
        "`estimator` must be one of `dirac`, `linear`; found `zzz`. "
        "Choose one of those names. [unknown-choice]"
    )


TAIL = (
    "Reduce or expand one of them before the call; this function never broadcasts. [shape-mismatch]"
)


@pytest.mark.refusal
def test_one_budget_or_return_for_each_distribution():
    # A budget [3] against four distributions would broadcast or fail with words about other
    # dimensions.
    wrong = torch.zeros(3)
    assert refused(ShapeError, risk.budget_advantage, QUANTILES, QUANTILES, wrong, alpha=0.1) == (
        "`budget` must have the shape of `quantiles` without its last dimension; "
        f"found budget (3,) and quantiles (4, 8). {TAIL}"
    )
    assert refused(
        ShapeError, risk.categorical_budget_advantage, PROBS, PROBS, ATOMS, wrong, alpha=0.1
    ) == (
        "`budget` must have the shape of `probs` without its last dimension; "
        f"found budget (3,) and probs (4, 3). {TAIL}"
    )
    assert refused(ShapeError, risk.risk_advantage, wrong, QUANTILES, alpha=0.1) == (
        "`sampled_return` must have the shape of `quantiles` without its last dimension; "
        f"found sampled_return (3,) and quantiles (4, 8). {TAIL}"
    )
    assert refused(ShapeError, risk.categorical_risk_advantage, wrong, PROBS, ATOMS, alpha=0.1) == (
        "`sampled_return` must have the shape of `probs` without its last dimension; "
        f"found sampled_return (3,) and probs (4, 3). {TAIL}"
    )


@pytest.mark.refusal
@pytest.mark.spec("M02")
def test_returns_with_a_dimension_too_many_are_refused():
    # [B, 1] against [B] would become [B, B].
    column = torch.zeros(4, 1)
    for call in (
        lambda: risk.risk_advantage(column, QUANTILES, alpha=0.1),
        lambda: risk.budget_advantage(QUANTILES, QUANTILES, column, alpha=0.1),
        lambda: risk.categorical_risk_advantage(column, PROBS, ATOMS, alpha=0.1),
        lambda: risk.categorical_budget_advantage(PROBS, PROBS, ATOMS, column, alpha=0.1),
        lambda: risk.budget_advantage(QUANTILES[:1], QUANTILES, BATCH, alpha=0.1),
        lambda: risk.categorical_budget_advantage(PROBS[:1], PROBS, ATOMS, BATCH, alpha=0.1),
    ):
        with pytest.raises(ShapeError, match=r"never broadcasts\. \[shape-mismatch\]$"):
            call()


@pytest.mark.refusal
def test_weights_must_have_the_shape_of_the_sample():
    for weight in (torch.ones(8), torch.ones(4, 1)):
        message = refused(ShapeError, risk.empirical_cvar, QUANTILES, alpha=0.1, weight=weight)
        assert message == (
            "`sample` and `weight` must have the same shape; "
            f"found sample (4, 8) and weight {tuple(weight.shape)}. {TAIL}"
        )


@pytest.mark.refusal
def test_a_distribution_must_live_on_its_atoms():
    calls = (
        lambda z: risk.categorical_cvar(PROBS, z, alpha=0.1),
        lambda z: risk.categorical_value_at_risk(PROBS, z, alpha=0.1),
        lambda z: risk.categorical_risk_advantage(BATCH, PROBS, z, alpha=0.1),
    )
    for call in calls:
        assert refused(ShapeError, call, torch.arange(51.0)) == (
            "`probs` must have one entry for each of the 51 atoms in its last dimension; "
            "found probs (4, 3). Project the distribution on these atoms first. [shape-mismatch]"
        )
        assert refused(ShapeError, call, torch.zeros(1)) == (
            "`atoms` must be one-dimensional with at least 2 entries; found atoms (1,). "
            "Pass the support as one ascending row. [shape-mismatch]"
        )
