"""Densities, entropies and divergences against numbers worked out by hand."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from stormsail.core.errors import ChoiceError, ShapeError
from stormsail.functional import distribution

INF = math.inf
NEVER = (
    "Reduce or expand one of them before the call; this function never broadcasts. [shape-mismatch]"
)


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_gaussian_log_prob_by_hand_in_two_dimensions():
    # x = (1, 3), m = (0, 1), s = (1, 2): z = (1, 1).
    # -1/2 - 1/2 - log 1 - log 2 - 2 * log(2 pi) / 2 = -1 - log 2 - log(2 pi) = -3.5310.
    actual = distribution.gaussian_log_prob(double(1.0, 3.0), double(0.0, 1.0), double(1.0, 2.0))

    assert actual.shape == ()
    assert actual.item() == pytest.approx(-1.0 - math.log(2.0) - math.log(2.0 * math.pi), rel=1e-12)


@pytest.mark.spec("T-E2", "S3-5")
def test_gaussian_entropy_is_the_sum_over_three_action_dimensions():
    std = torch.tensor([[0.2, 0.7, 1.5]], dtype=torch.float64)

    actual = distribution.gaussian_entropy(std)

    expected = sum(0.5 * math.log(2.0 * math.pi * math.e * s * s) for s in (0.2, 0.7, 1.5))
    assert actual.shape == (1,)
    assert actual.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.spec("T-S3", "S1-S3", "X8")
def test_gaussian_kl_matches_the_golden_number_and_not_the_double_counted_one():
    # KL(N(0, .5^2) || N(.3, .5^2)) = (.3 / .5)^2 / 2 = .18.
    actual = distribution.gaussian_kl(double(0.0), double(0.5), double(0.3), double(0.5))

    assert actual.item() == pytest.approx(0.18, abs=1e-12)


@pytest.mark.spec("T-S3", "X8")
def test_gaussian_kl_carries_gradient_to_the_attacked_side():
    clean = double(0.0)
    attacked = double(0.3).requires_grad_()
    std = double(0.5)

    divergence = distribution.gaussian_kl(clean, std, attacked, std)
    (gradient,) = torch.autograd.grad(divergence, attacked)

    # d/dm2 of (m1 - m2)^2 / (2 s^2) = (m2 - m1) / s^2 = .3 / .25 = 1.2; a `.item()` has none.
    assert gradient.item() == pytest.approx(1.2, rel=1e-12)
    assert clean.grad is None


@pytest.mark.spec("T-S3")
def test_gaussian_kl_with_different_scales_has_a_direction():
    # KL(N(0,1) || N(1,2^2)) = log 2 + (1 + 1) / 8 - 1/2 = log 2 - 1/4;
    # the other way round: -log 2 + (4 + 1) / 2 - 1/2 = 2 - log 2.
    forward = distribution.gaussian_kl(double(0.0), double(1.0), double(1.0), double(2.0))
    backward = distribution.gaussian_kl(double(1.0), double(2.0), double(0.0), double(1.0))

    assert forward.item() == pytest.approx(math.log(2.0) - 0.25, rel=1e-12)
    assert backward.item() == pytest.approx(2.0 - math.log(2.0), rel=1e-12)


def test_gaussian_kl_sums_over_action_dimensions():
    one = distribution.gaussian_kl(double(0.0), double(0.5), double(0.3), double(0.5))
    three = distribution.gaussian_kl(
        double(0.0, 0.0, 0.0), double(0.5, 0.5, 0.5), double(0.3, 0.3, 0.3), double(0.5, 0.5, 0.5)
    )

    assert three.item() == pytest.approx(3.0 * one.item(), rel=1e-12)


def test_categorical_numbers_of_a_known_distribution():
    # Logits log(1, 2, 5) are the distribution (1/8, 2/8, 5/8), whatever constant is added.
    logits = torch.log(double(1.0, 2.0, 5.0)) + 7.0
    probs = (0.125, 0.25, 0.625)

    log_prob = distribution.categorical_log_prob(logits, torch.tensor(2))
    entropy = distribution.categorical_entropy(logits)
    divergence = distribution.categorical_kl(logits, torch.zeros(3, dtype=torch.float64))

    expected = -sum(p * math.log(p) for p in probs)
    assert log_prob.item() == pytest.approx(math.log(0.625), rel=1e-12)
    assert entropy.item() == pytest.approx(expected, rel=1e-12)
    # Against the uniform distribution the divergence is log 3 - H.
    assert divergence.item() == pytest.approx(math.log(3.0) - expected, rel=1e-12)


def test_categorical_kl_has_a_direction():
    # p = (1/2, 1/2), q = (1/4, 3/4): KL(p || q) = log 2 - log(3) / 2 = .1438,
    # KL(q || p) = log 2 + (1/4) log(1/4) + (3/4) log(3/4) = .1308.
    p = torch.log(double(0.5, 0.5))
    q = torch.log(double(0.25, 0.75))

    assert distribution.categorical_kl(p, q).item() == pytest.approx(
        math.log(2.0) - 0.5 * math.log(3.0), rel=1e-12
    )
    assert distribution.categorical_kl(q, p).item() == pytest.approx(
        math.log(2.0) + 0.25 * math.log(0.25) + 0.75 * math.log(0.75), rel=1e-12
    )


def test_impossible_classes_count_for_nothing():
    masked = double(0.3, -INF, 1.1, -INF)
    other = double(-0.2, -INF, 0.4, -INF)
    open_masked, open_other = double(0.3, 1.1), double(-0.2, 0.4)

    torch.testing.assert_close(
        distribution.categorical_entropy(masked), distribution.categorical_entropy(open_masked)
    )
    torch.testing.assert_close(
        distribution.categorical_kl(masked, other),
        distribution.categorical_kl(open_masked, open_other),
    )
    assert distribution.categorical_entropy(double(0.0, -INF)).item() == 0.0


def test_impossible_classes_leave_the_gradient_of_the_others_finite():
    masked = double(0.3, -INF, 1.1).requires_grad_()
    open_ = double(0.3, 1.1).requires_grad_()

    (entropy_gradient,) = torch.autograd.grad(distribution.categorical_entropy(masked), masked)
    (expected,) = torch.autograd.grad(distribution.categorical_entropy(open_), open_)
    (kl_gradient,) = torch.autograd.grad(
        distribution.categorical_kl(masked, double(-0.2, -INF, 0.4)), masked
    )
    (kl_expected,) = torch.autograd.grad(
        distribution.categorical_kl(open_, double(-0.2, 0.4)), open_
    )

    torch.testing.assert_close(entropy_gradient[[0, 2]], expected)
    torch.testing.assert_close(kl_gradient[[0, 2]], kl_expected)
    assert entropy_gradient[1] == 0.0
    assert kl_gradient[1] == 0.0


def test_a_class_possible_only_in_the_other_distribution_counts_for_nothing():
    # 0 log(0 / q) = 0, so KL((1, 0) || (1/2, 1/2)) = log 2.
    divergence = distribution.categorical_kl(double(0.0, -INF), double(0.0, 0.0))

    assert divergence.item() == pytest.approx(math.log(2.0), rel=1e-12)


def test_a_class_impossible_only_in_the_other_distribution_gives_an_infinite_divergence():
    divergence = distribution.categorical_kl(double(0.0, 0.0), double(0.0, -INF))

    assert divergence.item() == INF


def test_squash_maps_to_its_range_by_hand():
    u = double(0.0, math.atanh(0.5))

    torch.testing.assert_close(distribution.squash(u, kind="tanh"), double(0.0, 0.5))
    # log 3 is the logit of 3/4.
    torch.testing.assert_close(
        distribution.squash(double(0.0, math.log(3.0)), kind="sigmoid"), double(0.5, 0.75)
    )


def test_squash_log_det_by_hand():
    # tanh at a = .5: 1 - a^2 = .75; sigmoid at a = .75: a (1 - a) = .1875; both are summed over D.
    tanh = distribution.squash_log_det(double(0.0, math.atanh(0.5)), kind="tanh")
    sigmoid = distribution.squash_log_det(double(0.0, math.log(3.0)), kind="sigmoid")

    assert tanh.item() == pytest.approx(math.log(0.75), rel=1e-12)
    assert sigmoid.item() == pytest.approx(math.log(0.25) + math.log(0.1875), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("u", [20.0, -20.0, 1e3, -1e3, 1e4, -1e4])
def test_squash_log_det_is_exact_where_the_action_saturates(u, dtype):
    # Far out 1 - tanh^2 u = 4 e^{-2|u|} and s (1 - s) = e^{-|u|}; log(1 - a^2) would be -inf.
    point = torch.tensor([u], dtype=dtype).requires_grad_()

    tanh = distribution.squash_log_det(point, kind="tanh")
    (tanh_gradient,) = torch.autograd.grad(tanh, point)
    sigmoid = distribution.squash_log_det(point, kind="sigmoid")
    (sigmoid_gradient,) = torch.autograd.grad(sigmoid, point)

    assert tanh.item() == pytest.approx(2.0 * math.log(2.0) - 2.0 * abs(u), rel=1e-6)
    assert sigmoid.item() == pytest.approx(-abs(u), rel=1e-6)
    # Derivatives -2 tanh u and 1 - 2 sigmoid u.
    assert tanh_gradient.item() == pytest.approx(-2.0 * math.copysign(1.0, u), rel=1e-6)
    assert sigmoid_gradient.item() == pytest.approx(-math.copysign(1.0, u), rel=1e-6)


def test_squash_log_det_in_float32_matches_float64_everywhere():
    u = torch.linspace(-1e4, 1e4, 4001, dtype=torch.float64).unsqueeze(-1)
    near = torch.linspace(-12.0, 12.0, 4001, dtype=torch.float64).unsqueeze(-1)

    for points in (u, near):
        for kind in ("tanh", "sigmoid"):
            torch.testing.assert_close(
                distribution.squash_log_det(points.float(), kind=kind).double(),
                distribution.squash_log_det(points.float().double(), kind=kind),
                rtol=2e-6,
                atol=4e-6,  # near 0 the result is the difference of terms up to |u| = 12
            )


def test_squashed_log_prob_is_the_density_of_the_action_by_hand():
    # u = 0, m = 0, s = 1: N(0) = 1 / sqrt(2 pi), da/du = 1 (tanh) and 1/4 (sigmoid).
    zero, one = double(0.0), double(1.0)

    tanh = distribution.squashed_gaussian_log_prob(zero, zero, one, kind="tanh")
    sigmoid = distribution.squashed_gaussian_log_prob(zero, zero, one, kind="sigmoid")

    plain = -0.5 * math.log(2.0 * math.pi)
    assert tanh.item() == pytest.approx(plain, rel=1e-12)
    assert sigmoid.item() == pytest.approx(plain + math.log(4.0), rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "low", "inverse"),
    [("tanh", -1.0, np.arctanh), ("sigmoid", 0.0, lambda a: np.log(a) - np.log1p(-a))],
)
@pytest.mark.parametrize(("mean", "std"), [(0.0, 0.5), (0.4, 0.7), (-0.8, 0.3)])
def test_squashed_density_integrates_to_one_over_the_actions(kind, low, inverse, mean, std):
    def density(a):
        u = torch.tensor([inverse(a)], dtype=torch.float64)
        m, s = torch.full_like(u, mean), torch.full_like(u, std)
        return distribution.squashed_gaussian_log_prob(u, m, s, kind=kind).exp().item()

    mass, _ = integrate.quad(density, low, 1.0, epsabs=1e-10, limit=200)

    # Forgetting the Jacobian, or adding it, changes the mass by tens of percent.
    assert mass == pytest.approx(1.0, abs=1e-8)


@pytest.mark.spec("2.14")
def test_squashed_entropy_approaches_the_entropy_of_the_squashed_distribution():
    # Samples at the midpoints of 4,000 equal slices of N(.4, .7^2) stand for a large sample.
    mean, std = 0.4, 0.7
    levels = (np.arange(4000) + 0.5) / 4000
    u = torch.from_numpy(stats.norm.ppf(levels, mean, std)).reshape(-1, 1, 1)
    scale = torch.full((1, 1), std, dtype=torch.float64)

    def minus_p_log_p(a):
        log_density = stats.norm.logpdf(np.arctanh(a), mean, std) - np.log1p(-a * a)
        return -np.exp(log_density) * log_density

    truth, _ = integrate.quad(minus_p_log_p, -1.0, 1.0, limit=200)

    estimate = distribution.squashed_gaussian_entropy(u, scale, kind="tanh")

    assert estimate.shape == (1,)
    assert estimate.item() == pytest.approx(truth, abs=1e-3)


def test_beta_numbers_by_hand():
    # Beta(2, 3): density 12 x (1 - x)^2, at x = 1/2 it is 3/2. Beta(1, 1) is flat with entropy 0.
    density = distribution.beta_log_prob(double(0.5), double(2.0), double(3.0))
    flat = distribution.beta_log_prob(double(0.3, 0.9), double(1.0, 1.0), double(1.0, 1.0))
    entropy = distribution.beta_entropy(double(1.0), double(1.0))
    # Beta(2, 2): H = log B - psi(2) - psi(2) + 2 psi(4), psi(4) - psi(2) = 1/2 + 1/3 and
    # B(2, 2) = 1/6, so H = 5/3 - log 6.
    round_ = distribution.beta_entropy(double(2.0), double(2.0))

    assert density.item() == pytest.approx(math.log(1.5), rel=1e-12)
    assert flat.item() == pytest.approx(0.0, abs=1e-12)
    assert entropy.item() == pytest.approx(0.0, abs=1e-12)
    assert round_.item() == pytest.approx(5.0 / 3.0 - math.log(6.0), rel=1e-12)


def test_beta_kl_by_hand():
    # From the flat distribution: E[log 6 x (1 - x)] = log 6 - 2 under it, so KL = 2 - log 6. Back:
    # -H of Beta(2, 2) = log 6 - 5/3.
    flat, round_ = (double(1.0), double(1.0)), (double(2.0), double(2.0))
    there = distribution.beta_kl(*flat, *round_)
    back = distribution.beta_kl(*round_, *flat)
    assert there.item() == pytest.approx(2.0 - math.log(6.0), rel=1e-12)
    assert back.item() == pytest.approx(math.log(6.0) - 5.0 / 3.0, rel=1e-12)


def test_beta_kl_of_almost_equal_float32_distributions_keeps_its_digits():
    alpha, beta = torch.tensor([3.0]), torch.tensor([5.0])
    near = distribution.beta_kl(alpha, beta, alpha + 2.0**-9, beta)
    # half the Fisher information psi'(3) - psi'(8) times the square of the move
    fisher = float(torch.polygamma(1, double(3.0)) - torch.polygamma(1, double(8.0)))
    assert near.item() == pytest.approx(0.5 * fisher * 2.0**-18, rel=2e-3)
    assert near.dtype == torch.float32


@pytest.mark.parametrize("function", ["gaussian_log_prob", "gaussian_kl", "categorical_entropy"])
def test_a_nan_stays_visible_in_its_own_sample_only(function):
    rows = torch.tensor([[0.5, 0.7], [math.nan, 0.7]], dtype=torch.float64)
    ones = torch.ones_like(rows)
    others = {"gaussian_log_prob": (ones, ones), "gaussian_kl": (ones, ones, ones)}

    result = getattr(distribution, function)(rows, *others.get(function, ()))

    assert torch.isnan(result).tolist() == [False, True]


def zeros(*shape):
    return torch.zeros(shape)


SHAPES = [
    pytest.param(
        lambda: distribution.gaussian_log_prob(zeros(4, 3), zeros(4, 1), zeros(4, 3)),
        f"`value` and `mean` must have the same shape; found value (4, 3) and mean (4, 1). {NEVER}",
        id="gaussian-mean",
    ),
    pytest.param(
        lambda: distribution.gaussian_log_prob(zeros(4, 3), zeros(4, 3), zeros(3)),
        f"`value` and `std` must have the same shape; found value (4, 3) and std (3,). {NEVER}",
        id="gaussian-std",
    ),
    pytest.param(
        lambda: distribution.gaussian_kl(zeros(4, 3), zeros(4, 3), zeros(1, 3), zeros(4, 3)),
        "`mean` and `other_mean` must have the same shape; "
        f"found mean (4, 3) and other_mean (1, 3). {NEVER}",
        id="kl",
    ),
    pytest.param(
        lambda: distribution.categorical_log_prob(zeros(4, 8), torch.zeros(3, dtype=torch.int64)),
        "`action` must have the shape of `logits` without its last dimension; "
        f"found action (3,) and logits (4, 8). {NEVER}",
        id="action",
    ),
    pytest.param(
        lambda: distribution.categorical_kl(zeros(4, 8), zeros(4, 7)),
        "`logits` and `other_logits` must have the same shape; "
        f"found logits (4, 8) and other_logits (4, 7). {NEVER}",
        id="categorical-kl",
    ),
    pytest.param(
        lambda: distribution.squashed_gaussian_log_prob(
            zeros(4, 3), zeros(4, 1), zeros(4, 3), kind="tanh"
        ),
        "`pre_squash` and `mean` must have the same shape; "
        f"found pre_squash (4, 3) and mean (4, 1). {NEVER}",
        id="squashed",
    ),
    pytest.param(
        lambda: distribution.beta_log_prob(zeros(4, 3), zeros(4, 3), zeros(4, 1)),
        "`action` and `beta` must have the same shape; "
        f"found action (4, 3) and beta (4, 1). {NEVER}",
        id="beta",
    ),
    pytest.param(
        lambda: distribution.beta_entropy(zeros(4, 3), zeros(4)),
        f"`alpha` and `beta` must have the same shape; found alpha (4, 3) and beta (4,). {NEVER}",
        id="beta-entropy",
    ),
    pytest.param(
        lambda: distribution.beta_kl(zeros(4, 3), zeros(4, 3), zeros(4), zeros(4, 3)),
        "`alpha` and `other_alpha` must have the same shape; "
        f"found alpha (4, 3) and other_alpha (4,). {NEVER}",
        id="beta-kl",
    ),
]


@pytest.mark.refusal
@pytest.mark.spec("M02")
@pytest.mark.parametrize(("call", "words"), SHAPES)
def test_distributions_refuse_to_broadcast(call, words):
    with pytest.raises(ShapeError) as caught:
        call()
    assert str(caught.value) == words


@pytest.mark.refusal
def test_samples_of_another_batch_are_refused():
    with pytest.raises(ShapeError):
        distribution.squashed_gaussian_entropy(zeros(5, 4, 3), zeros(2, 3), kind="tanh")


UNKNOWN = [
    pytest.param(lambda kind: distribution.squash(zeros(2), kind=kind), id="squash"),
    pytest.param(lambda kind: distribution.squash_log_det(zeros(2), kind=kind), id="log-det"),
    pytest.param(
        lambda kind: distribution.squashed_gaussian_log_prob(
            zeros(2), zeros(2), torch.ones(2), kind=kind
        ),
        id="log-prob",
    ),
    pytest.param(
        lambda kind: distribution.squashed_gaussian_entropy(zeros(3, 2), torch.ones(2), kind=kind),
        id="entropy",
    ),
]


@pytest.mark.refusal
@pytest.mark.parametrize("call", UNKNOWN)
@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        ("Tanh", "Did you mean `tanh`?"),
        ("sigmod", "Did you mean `sigmoid`?"),
        ("relu", "Choose one of those names."),
    ],
)
def test_an_unknown_squash_is_refused_with_the_choices(call, kind, remedy):
    with pytest.raises(ChoiceError) as caught:
        call(kind)
    assert str(caught.value) == (
        f"`kind` must be one of `tanh`, `sigmoid`; found `{kind}`. {remedy} [unknown-choice]"
    )
