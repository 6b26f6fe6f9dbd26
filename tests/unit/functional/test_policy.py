"""Policy losses against numbers worked out by hand."""

import math

import numpy as np
import pytest
import torch
from numpy.polynomial.hermite_e import hermegauss

from stormsail.core.errors import ChoiceError, RangeError, ShapeError
from stormsail.functional import distribution, policy, statistics

NAN, INF = math.nan, math.inf
NEVER = (
    "Reduce or expand one of them before the call; this function never broadcasts. [shape-mismatch]"
)


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


# The clip is 0.2, so the band of the ratio is [0.8, 1.2]. The loss is -min(r A, held A); its
# derivative with respect to log_prob is -r A where r A is the smaller product (or r is inside the
# band, where both are equal) and 0 where the held product is the smaller one.
#
#   r     A    r A    held A   loss   derivative
TABLE = [
    (1.5, 1.0, -1.2, 0.0),  # 1.5 > 1.2: held, flat
    (1.5, -1.0, 1.5, 1.5),  # -1.5 < -1.2: the loss of a worse action is never hidden
    (0.5, 1.0, -0.5, -0.5),  # 0.5 < 0.8: the plain product
    (0.5, -1.0, 0.8, 0.0),  # -0.8 < -0.5: held, flat
    (1.1, 2.0, -2.2, -2.2),  # inside the band
    (0.9, -3.0, 2.7, 2.7),  # inside the band
    (1.0, 4.0, -4.0, -4.0),  # unchanged policy: minus the advantage
    (1.0, 0.0, 0.0, 0.0),
]


@pytest.mark.spec("T-P1", "S1-P1", "S4-V4")
@pytest.mark.parametrize(("ratio", "advantage", "loss", "derivative"), TABLE)
def test_clipped_surrogate_and_its_gradient_match_the_hand_table(
    ratio, advantage, loss, derivative
):
    old = double(-0.7)
    new = (old + math.log(ratio)).requires_grad_()

    actual = policy.clipped_surrogate(new, old, double(advantage), clip=0.2)
    (gradient,) = torch.autograd.grad(actual.sum(), new)

    torch.testing.assert_close(actual.detach(), double(loss), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, double(derivative), rtol=1e-12, atol=1e-12)


@pytest.mark.spec("T-P1")
def test_only_the_new_log_prob_receives_a_gradient():
    new, old, advantage = (double(0.1, -0.2).requires_grad_() for _ in range(3))

    policy.clipped_surrogate(new, old, advantage, clip=0.2).sum().backward()

    assert new.grad is not None
    assert old.grad is None
    assert advantage.grad is None


@pytest.mark.spec("1.6", "2.2")
def test_policy_gradient_explosion_detection():
    # Log-ratios of 25, 700 (beyond float32 and nearly float64) and +-inf are held at +-20, so every
    # loss and every gradient is finite, and what was not finite is counted.
    log_ratio = torch.tensor([25.0, 700.0, INF, -25.0, -INF, 0.1])
    new = log_ratio.clone().requires_grad_()
    old = torch.zeros(6)
    advantage = -torch.ones(6)

    loss = policy.clipped_surrogate(new, old, advantage, clip=0.2)
    (gradient,) = torch.autograd.grad(loss.sum(), new)
    counted = policy.count_nonfinite(log_ratio)

    # A = -1: loss = max(r, held r); r = e^20 at the upper bound, held r = 0.8 at the lower one.
    top = math.exp(20.0)
    expected = torch.tensor([top, top, top, 0.8, 0.8, math.exp(0.1)])
    torch.testing.assert_close(loss.detach(), expected, rtol=1e-5, atol=0.0)
    # Beyond the bound the loss is constant.
    torch.testing.assert_close(
        gradient, torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, math.exp(0.1)]), rtol=1e-5, atol=0.0
    )
    assert (int(counted.nan), int(counted.inf), int(counted.total)) == (0, 2, 2)
    assert policy.ratio_is_clipped(log_ratio, clip=0.2).tolist() == [True] * 5 + [False]


def test_log_ratio_of_twenty_is_still_exact():
    # The bound must sit at 20, not below: e^19.5 comes through unchanged.
    loss = policy.clipped_surrogate(double(19.5), double(0.0), double(-1.0), clip=0.2)

    torch.testing.assert_close(loss, double(math.exp(19.5)), rtol=1e-12, atol=0.0)


@pytest.mark.spec("M23", "T-P2")
def test_a_nan_log_prob_stays_visible_in_its_own_entry_only():
    loss = policy.clipped_surrogate(
        double(0.0, NAN, 0.0), double(0.0, 0.0, 0.0), double(1.0, 1.0, 2.0), clip=0.2
    )

    torch.testing.assert_close(loss, double(-1.0, NAN, -2.0), equal_nan=True)


@pytest.mark.spec("M23")
def test_a_nan_advantage_stays_visible_in_loss_and_weight():
    loss = policy.clipped_surrogate(double(0.5), double(0.0), double(NAN), clip=0.2)
    weight = policy.awr_weight(double(NAN, 0.0), beta=5.0, max_weight=100.0)

    assert torch.isnan(loss).all()
    torch.testing.assert_close(weight, double(NAN, 1.0), equal_nan=True)


@pytest.mark.spec("T-P2", "S3-6")
def test_dropping_one_nan_and_one_inf_leaves_the_batch_without_them():
    generator = torch.Generator().manual_seed(7)
    action, old, advantage = (
        torch.randn(8, dtype=torch.float64, generator=generator) for _ in range(3)
    )
    weight = torch.rand(8, dtype=torch.float64, generator=generator) + 0.5
    poison = torch.zeros(8, dtype=torch.float64)
    poison[2], poison[5] = NAN, INF
    good = torch.isfinite(poison)

    def gradient_of(chosen, added):
        theta = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
        new = -0.5 * (action[chosen] - theta).square() + added
        new, held, kept = policy.drop_nonfinite(new, old[chosen], weight[chosen])
        loss = statistics.weighted_mean(
            policy.clipped_surrogate(new, held, advantage[chosen], clip=5.0), kept
        )
        return loss.detach(), torch.autograd.grad(loss, theta)[0]

    everything = torch.ones(8, dtype=torch.bool)
    loss, gradient = gradient_of(everything, poison)
    clean_loss, clean_gradient = gradient_of(good, torch.zeros(6, dtype=torch.float64))

    torch.testing.assert_close(loss, clean_loss, rtol=1e-12, atol=0.0)
    torch.testing.assert_close(gradient, clean_gradient, rtol=1e-12, atol=0.0)
    # A guard that skips the whole batch would pass on zeros only.
    assert clean_gradient.abs() > 1e-3
    counted = policy.count_nonfinite(poison)
    assert (int(counted.nan), int(counted.inf)) == (1, 1)


def test_drop_nonfinite_zeroes_exactly_the_bad_samples():
    # Bad differences: NaN, inf - finite, finite - (-inf), (-inf) - (-inf), and an overflow.
    new = double(0.5, NAN, INF, 0.0, -INF, 1e308, -3.0)
    old = double(0.1, 0.0, 0.0, -INF, -INF, -1e308, -1.0)
    weight = double(0.3, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0)

    kept_new, kept_old, kept_weight = policy.drop_nonfinite(new, old, weight)

    assert kept_new.tolist() == [0.5, 0.0, 0.0, 0.0, 0.0, 0.0, -3.0]
    assert kept_old.tolist() == [0.1, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0]
    assert kept_weight.tolist() == [0.3, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0]


@pytest.mark.spec("T-P2")
def test_drop_nonfinite_gives_dropped_samples_a_gradient_of_exactly_zero():
    new = double(0.5, NAN, INF, -INF).requires_grad_()

    kept, _, _ = policy.drop_nonfinite(new, torch.zeros(4).double(), torch.ones(4).double())
    (gradient,) = torch.autograd.grad(kept.exp().sum(), new)

    assert gradient[1:].tolist() == [0.0, 0.0, 0.0]
    torch.testing.assert_close(gradient[0], torch.tensor(0.5, dtype=torch.float64).exp())


def test_count_nonfinite_counts_nan_and_both_infinities():
    counted = policy.count_nonfinite(torch.tensor([[NAN, INF, 1.0], [-INF, NAN, NAN]]))

    for number in (counted.nan, counted.inf, counted.total):
        assert number.dtype == torch.int64
        assert number.shape == ()
    assert (int(counted.nan), int(counted.inf), int(counted.total)) == (3, 2, 5)


@pytest.mark.spec("T-P3", "S3-12", "X16")
def test_k3_averages_to_the_kl_of_a_gaussian_shift_and_k1_can_be_negative():
    # KL(N(0, .5^2) || N(.3, .5^2)) = (.3 / .5)^2 / 2 = .18. Actions come from the old policy, so
    # the expectation runs over N(0, .5^2): Gauss-Hermite nodes make it exact instead of sampled.
    nodes, mass = hermegauss(60)
    action = torch.from_numpy(0.5 * nodes).unsqueeze(-1)
    mass = torch.from_numpy(mass / mass.sum())
    std = torch.full_like(action, 0.5)
    old = distribution.gaussian_log_prob(action, torch.zeros_like(action), std)
    new = distribution.gaussian_log_prob(action, torch.full_like(action, 0.3), std)

    k1 = policy.kl_estimate(new - old, kind="k1")
    k3 = policy.kl_estimate(new - old, kind="k3")

    torch.testing.assert_close((mass * k3).sum().item(), 0.18, rtol=1e-9, atol=0.0)
    torch.testing.assert_close((mass * k1).sum().item(), 0.18, rtol=1e-9, atol=0.0)
    assert (k3 >= 0.0).all()
    # The defect X16: an early stop fed with k1 sees negative "divergences".
    assert (k1 < 0.0).any()


@pytest.mark.spec("T-P3", "3.14")
def test_k3_on_sampled_batches_is_near_the_truth_and_never_negative():
    generator = torch.Generator().manual_seed(11)
    action = 0.5 * torch.randn(200, 256, 1, dtype=torch.float64, generator=generator)
    std = torch.full_like(action, 0.5)
    old = distribution.gaussian_log_prob(action, torch.zeros_like(action), std)
    new = distribution.gaussian_log_prob(action, torch.full_like(action, 0.3), std)

    per_batch = policy.kl_estimate(new - old, kind="k3").mean(dim=-1)

    # A reversed sign estimates another quantity: E[e^-l - 1 + l] = e^.36 - 1 - .18 = .253.
    assert abs(per_batch.mean().item() - 0.18) < 0.01
    assert (per_batch >= 0.0).all()


@pytest.mark.spec("X16")
def test_k3_keeps_its_digits_for_tiny_log_ratios():
    # e^l - 1 - l = l^2 / 2 + l^3 / 6 + ...; the naive exp(l) - 1 - l gives -6e-17 at 1e-8.
    tiny = double(1e-8, -1e-8, 1e-5)
    expected = double(5e-17, 5e-17, 0.5e-10 + 1e-15 / 6.0)

    torch.testing.assert_close(policy.kl_estimate(tiny, kind="k3"), expected, rtol=1e-6, atol=0.0)


def test_kl_estimates_at_log_two_by_hand():
    # l = log 2: k1 = -log 2 = -0.6931..., k3 = 2 - 1 - log 2 = 0.3069...
    log_two = double(math.log(2.0))

    torch.testing.assert_close(policy.kl_estimate(log_two, kind="k1"), -log_two)
    torch.testing.assert_close(policy.kl_estimate(log_two, kind="k3"), 1.0 - log_two)


@pytest.mark.spec("2.2")
def test_k3_has_no_gradient_at_ratio_one_where_k1_has_full_noise():
    log_ratio = double(0.0, 0.0).requires_grad_()

    (of_k3,) = torch.autograd.grad(policy.kl_estimate(log_ratio, kind="k3").sum(), log_ratio)
    (of_k1,) = torch.autograd.grad(policy.kl_estimate(log_ratio, kind="k1").sum(), log_ratio)

    assert of_k3.tolist() == [0.0, 0.0]
    assert of_k1.tolist() == [-1.0, -1.0]


def test_ratio_is_clipped_outside_the_band_and_not_on_its_edge():
    # e^-inf = 0 exactly, so |r - 1| = 1 = clip: an edge without rounding. Not outside.
    edge = policy.ratio_is_clipped(double(-INF), clip=1.0)
    inside_and_outside = policy.ratio_is_clipped(
        torch.log(double(0.79, 0.81, 1.0, 1.19, 1.21)), clip=0.2
    )

    assert edge.tolist() == [False]
    assert inside_and_outside.tolist() == [True, False, False, False, True]
    assert edge.dtype == torch.bool


@pytest.mark.spec("T-W1", "S4-V2", "2.13")
def test_awr_weights_match_the_golden_numbers():
    # exp(-2/5) = .6703, exp(0) = 1, exp(2/5) = 1.4918, and exp(20) is capped at 100.
    weight = policy.awr_weight(double(-2.0, 0.0, 2.0, 100.0), beta=5.0, max_weight=100.0)

    expected = double(math.exp(-0.4), 1.0, math.exp(0.4), 100.0)
    torch.testing.assert_close(weight, expected, rtol=1e-12, atol=0.0)
    assert [round(w, 4) for w in weight.tolist()] == [0.6703, 1.0, 1.4918, 100.0]


@pytest.mark.spec("T-W1", "2.13")
def test_awr_weight_of_a_standard_normal_advantage_averages_to_1_0202():
    # E exp(Z / 5) = exp(1 / 50) = 1.0202.
    nodes, mass = hermegauss(40)
    weight = policy.awr_weight(torch.from_numpy(nodes), beta=5.0, max_weight=100.0)

    average = float(np.sum(mass * weight.numpy()) / np.sum(mass))
    assert average == pytest.approx(math.exp(0.02), rel=1e-10)
    assert round(average, 4) == 1.0202


@pytest.mark.spec("2.13")
def test_ninety_five_percent_of_awr_weights_lie_between_676_and_1479():
    weight = policy.awr_weight(double(-1.959964, 1.959964), beta=5.0, max_weight=100.0)

    torch.testing.assert_close(weight, double(0.676, 1.480), rtol=0.0, atol=1e-3)


@pytest.mark.spec("T-W1")
def test_awr_gradient_flows_through_the_log_prob_only():
    log_prob = double(-1.0, -2.0).requires_grad_()
    advantage = double(2.0, 100.0).requires_grad_()

    loss = policy.awr_loss(log_prob, advantage, beta=5.0, max_weight=100.0)
    loss.sum().backward()

    # loss = -w log_prob: 1.4918 * 1 and 100 * 2; derivative -w.
    torch.testing.assert_close(loss.detach(), double(math.exp(0.4), 200.0), rtol=1e-12, atol=0.0)
    torch.testing.assert_close(log_prob.grad, double(-math.exp(0.4), -100.0), rtol=1e-12, atol=0.0)
    assert advantage.grad is None
    weight = policy.awr_weight(advantage, beta=5.0, max_weight=100.0)
    assert not weight.requires_grad


@pytest.mark.spec("2.13")
def test_awr_weight_is_capped_before_the_exponential_so_nothing_overflows():
    weight = policy.awr_weight(torch.tensor([1e6, -1e6, INF]), beta=0.01, max_weight=20.0)

    torch.testing.assert_close(weight, torch.tensor([20.0, 0.0, 20.0]), rtol=1e-6, atol=0.0)


def test_a_cap_below_one_caps_every_weight():
    weight = policy.awr_weight(double(-5.0, 0.0, 5.0), beta=5.0, max_weight=0.5)

    torch.testing.assert_close(weight, double(math.exp(-1.0), 0.5, 0.5), rtol=1e-12, atol=0.0)


def test_entropy_loss_is_minus_the_entropy_and_keeps_its_gradient():
    entropy = double(0.5, 1.5).requires_grad_()

    loss = policy.entropy_loss(entropy, torch.zeros(2, dtype=torch.float64))
    loss.sum().backward()

    assert loss.tolist() == [-0.5, -1.5]
    assert entropy.grad.tolist() == [-1.0, -1.0]


@pytest.mark.spec("T-E2", "S3-5", "1.6")
def test_entropy_multidim_action():
    # Diagonal Gaussian with three action dimensions: H = sum log(2 pi e s^2) / 2, one number for
    # each sample. Summing again over the batch or averaging over dimensions gives another number.
    std = torch.tensor([[0.5, 1.0, 2.0], [0.3, 0.3, 0.3]], dtype=torch.float64)
    log_prob = torch.zeros(2, dtype=torch.float64)
    one = 0.5 * math.log(2.0 * math.pi * math.e)
    expected = double(3.0 * one, 3.0 * one + 3.0 * math.log(0.3))  # log(.5 * 1 * 2) = 0

    entropy = distribution.gaussian_entropy(std)
    loss = policy.entropy_loss(entropy, log_prob)

    torch.testing.assert_close(entropy, expected, rtol=1e-12, atol=0.0)
    torch.testing.assert_close(loss, -expected, rtol=1e-12, atol=0.0)


@pytest.mark.refusal
@pytest.mark.spec("T-E2", "S3-5")
def test_an_entropy_per_dimension_is_refused_instead_of_summed():
    with pytest.raises(ShapeError) as caught:
        policy.entropy_loss(torch.ones(2, 3), torch.zeros(2))
    assert str(caught.value) == (
        "`entropy` and `log_prob` must have the same shape; "
        f"found entropy (2, 3) and log_prob (2,). {NEVER}"
    )


@pytest.mark.spec("3.17", "M23")
def test_torch_clamp_keeps_nan_and_turns_infinity_into_the_bound():
    # The specification relies on this: a clamp is no guard against NaN.
    held = torch.tensor([NAN, INF, -INF, 3.0]).clamp(-20.0, 20.0)

    torch.testing.assert_close(held, torch.tensor([NAN, 20.0, -20.0, 3.0]), equal_nan=True)


@pytest.mark.spec("2.2", "M23")
def test_torch_minimum_keeps_nan():
    least = torch.minimum(torch.tensor([NAN, 1.0]), torch.tensor([1.0, NAN]))

    assert torch.isnan(least).all()


def four(*shape):
    return torch.zeros(shape)


SHAPES = [
    pytest.param(
        lambda: policy.clipped_surrogate(four(4), four(4, 1), four(4), clip=0.2),
        "`log_prob` and `old_log_prob` must have the same shape; "
        f"found log_prob (4,) and old_log_prob (4, 1). {NEVER}",
        id="surrogate-old",
    ),
    pytest.param(
        lambda: policy.clipped_surrogate(four(4), four(4), four(1), clip=0.2),
        "`log_prob` and `advantage` must have the same shape; "
        f"found log_prob (4,) and advantage (1,). {NEVER}",
        id="surrogate-advantage",
    ),
    pytest.param(
        lambda: policy.drop_nonfinite(four(4), four(1), four(4)),
        "`log_prob` and `old_log_prob` must have the same shape; "
        f"found log_prob (4,) and old_log_prob (1,). {NEVER}",
        id="drop-old",
    ),
    pytest.param(
        lambda: policy.drop_nonfinite(four(4), four(4), four(4, 4)),
        "`log_prob` and `weight` must have the same shape; "
        f"found log_prob (4,) and weight (4, 4). {NEVER}",
        id="drop-weight",
    ),
    pytest.param(
        lambda: policy.awr_loss(four(4), four(4, 1), beta=5.0, max_weight=100.0),
        "`log_prob` and `advantage` must have the same shape; "
        f"found log_prob (4,) and advantage (4, 1). {NEVER}",
        id="awr",
    ),
]


@pytest.mark.refusal
@pytest.mark.spec("M02")
@pytest.mark.parametrize(("call", "words"), SHAPES)
def test_policy_functions_refuse_to_broadcast(call, words):
    with pytest.raises(ShapeError) as caught:
        call()
    assert str(caught.value) == words


def clip_words(shown):
    return (
        f"`clip` must be greater than 0; found {shown}. "
        "Pass the half-width of the ratio band, for example 0.2. [out-of-range]"
    )


def beta_words(shown):
    return (
        f"`beta` must be greater than 0; found {shown}. "
        "Pass the temperature of the weights, for example 5.0. [out-of-range]"
    )


def cap_words(shown):
    return (
        f"`max_weight` must be greater than 0; found {shown}. "
        "Pass the cap of one weight, for example 100. [out-of-range]"
    )


@pytest.mark.refusal
@pytest.mark.parametrize(("clip", "shown"), [(0, "0"), (0.0, "0.0"), (-0.2, "-0.2"), (NAN, "nan")])
def test_a_clip_that_is_not_positive_is_refused(clip, shown):
    with pytest.raises(RangeError) as caught:
        policy.clipped_surrogate(four(2), four(2), four(2), clip=clip)
    assert str(caught.value) == clip_words(shown)
    with pytest.raises(RangeError) as caught:
        policy.ratio_is_clipped(four(2), clip=clip)
    assert str(caught.value) == clip_words(shown)


@pytest.mark.refusal
@pytest.mark.parametrize("call", ["awr_weight", "awr_loss"])
@pytest.mark.parametrize(("beta", "shown"), [(0.0, "0.0"), (-5, "-5"), (NAN, "nan")])
def test_a_temperature_that_is_not_positive_is_refused(call, beta, shown):
    tensors = [four(2)] * (1 if call == "awr_weight" else 2)
    with pytest.raises(RangeError) as caught:
        getattr(policy, call)(*tensors, beta=beta, max_weight=100.0)
    assert str(caught.value) == beta_words(shown)


@pytest.mark.refusal
@pytest.mark.parametrize("call", ["awr_weight", "awr_loss"])
@pytest.mark.parametrize(("cap", "shown"), [(-1, "-1"), (0.0, "0.0"), (NAN, "nan")])
def test_a_cap_that_is_not_positive_is_refused(call, cap, shown):
    tensors = [four(2)] * (1 if call == "awr_weight" else 2)
    with pytest.raises(RangeError) as caught:
        getattr(policy, call)(*tensors, beta=5.0, max_weight=cap)
    assert str(caught.value) == cap_words(shown)


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("kind", "remedy"), [("k33", "Did you mean `k3`?"), ("analytic", "Choose one of those names.")]
)
def test_an_unknown_kl_estimator_is_refused_with_the_choices(kind, remedy):
    with pytest.raises(ChoiceError) as caught:
        policy.kl_estimate(four(2), kind=kind)
    assert str(caught.value) == (
        f"`kind` must be one of `k1`, `k3`; found `{kind}`. {remedy} [unknown-choice]"
    )
