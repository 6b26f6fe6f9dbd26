"""The policy's loss for a CUDA device: value, gradient and report in one pass."""

import math

import numpy as np
import pytest
import torch

from oracles import policy as oracle
from stormsail.functional import distribution, policy
from stormsail.functional.kernels.losses.policy_loss import LOG_RATIO_LIMIT, policy_sums

COEFFICIENTS = {"clip": 0.2, "entropy_coef": 0.03, "kl_coef": 0.4}
EXTREME = 10.0


def draw(shape, classes, *, expected=False, dtype=torch.float64, device="cpu"):
    source = torch.Generator().manual_seed(classes)

    def normal(*size):
        return torch.randn(*size, generator=source, dtype=torch.float64)

    old = normal(*shape, classes)
    logits = old + 0.4 * normal(*shape, classes)
    action = normal(*shape, classes).argmax(-1)
    old_log_prob = distribution.categorical_log_prob(old, action)
    advantage = normal(*shape, classes) if expected else normal(*shape)
    weight = torch.where(normal(*shape) > -0.7, normal(*shape).abs(), 0.0)
    floats = (logits, old_log_prob, old, advantage, weight)
    logits, old_log_prob, old, advantage, weight = (part.to(device, dtype) for part in floats)
    return [logits.requires_grad_(), action.to(device), old_log_prob, old, advantage, weight]


def plain(logits, action, old_log_prob, old, advantage, weight):
    """The same sums, term by term."""
    log_prob = distribution.categorical_log_prob(logits, action)
    bad = policy.count_nonfinite(torch.where(weight > 0.0, log_prob - old_log_prob, 0.0))
    log_prob, old_log_prob, weight = policy.drop_nonfinite(log_prob, old_log_prob, weight)
    clip, log_ratio = COEFFICIENTS["clip"], log_prob - old_log_prob
    if advantage.ndim == logits.ndim:
        laws = logits.log_softmax(-1), old.log_softmax(-1)
        surrogate = policy.expected_surrogate(*laws, advantage, clip=clip)
    else:
        surrogate = policy.clipped_surrogate(log_prob, old_log_prob, advantage, clip=clip)
    entropy = distribution.categorical_entropy(logits)
    analytic = distribution.categorical_kl(old, logits)
    loss = surrogate - COEFFICIENTS["entropy_coef"] * entropy + COEFFICIENTS["kl_coef"] * analytic
    bounded = log_ratio.clamp(-policy.LOG_RATIO_LIMIT, policy.LOG_RATIO_LIMIT)
    excess = bounded.expm1()
    columns = (
        surrogate,
        entropy,
        policy.kl_estimate(bounded, kind="k3"),
        analytic,
        log_ratio,
        log_ratio.square(),
        excess,
        excess.square(),
        policy.ratio_is_clipped(log_ratio, clip=clip).double(),
        (log_ratio.abs() > EXTREME).double(),
    )

    def total(column):
        return torch.where(weight > 0.0, column * weight, 0.0).sum()

    peak = torch.where(weight > 0.0, log_ratio.abs(), 0.0).max()
    sums = [total(column) for column in columns]
    return [total(loss), weight.sum(), *sums, bad.nan.double(), bad.inf.double(), peak, weight]


def compared(args, bound):
    sums = policy_sums(*args, **COEFFICIENTS, extreme=EXTREME)
    (slope,) = torch.autograd.grad(3.0 * sums.loss, args[0])
    exact = [part.detach().double() if part.is_floating_point() else part for part in args]
    exact[0].requires_grad_()
    want = plain(*exact)
    (theirs,) = torch.autograd.grad(3.0 * want[0], exact[0])
    for name, mine, other in zip(sums._fields, sums, want, strict=True):
        scale = float(other.detach().abs().max()) + 1.0
        assert float((mine.detach().double() - other.detach()).abs().max()) <= bound * scale, name
    torch.testing.assert_close(slope.double(), theirs, rtol=bound, atol=bound)


def test_the_bound_of_log_ratios_is_that_of_the_plain_formula():
    assert LOG_RATIO_LIMIT == policy.LOG_RATIO_LIMIT


@pytest.mark.parametrize("expected", [False, True], ids=["of the action", "of all actions"])
@pytest.mark.parametrize(
    ("shape", "classes"), [((5, 7), 5), ((300,), 9), ((1,), 1), ((3,), 2)], ids=str
)
def test_sums_and_gradient_are_those_of_the_terms(shape, classes, expected, device):
    compared(draw(shape, classes, expected=expected, device=device), 1e-12)


def test_float32_keeps_its_digits(device):
    compared(draw((200,), 5, dtype=torch.float32, device=device), 1e-5)


def test_the_surrogate_is_that_of_the_oracle(device):
    args = draw((40,), 3, device=device)
    options = {"clip": 0.2, "entropy_coef": 0.0, "kl_coef": 0.0, "extreme": EXTREME}
    sums = policy_sums(*args, **options)
    logits, action, old_log_prob, _, advantage, weight = (part.detach().cpu() for part in args)
    log_prob = distribution.categorical_log_prob(logits, action)
    given = [part.numpy() for part in (log_prob, old_log_prob, advantage)]
    loss = (oracle.clipped_surrogate(*given, 0.2) * weight.numpy()).sum()
    assert sums.policy.item() == pytest.approx(loss, rel=1e-12)
    assert sums.loss.item() == pytest.approx(loss, rel=1e-12)
    k3 = (oracle.k3((log_prob - old_log_prob).numpy()) * weight.numpy()).sum()
    assert sums.kl.item() == pytest.approx(k3, rel=1e-12)
    (slope,) = torch.autograd.grad(sums.loss, args[0])
    pull = oracle.clipped_surrogate_gradient(*given, 0.2) * weight.numpy()
    one_hot = np.eye(3)[action.numpy()]
    want = pull[:, None] * (one_hot - logits.softmax(-1).numpy())
    np.testing.assert_allclose(slope.cpu(), want, rtol=1e-11, atol=1e-14)


def test_a_divergence_far_below_rounding_is_kept(device):
    # k3 = x^2 / 2 + x^3 / 6 + ... for x = 1e-4 in float32, where e^x - 1 alone has three digits
    logits = torch.zeros(1, 2, device=device)
    action = torch.zeros(1, dtype=torch.int64, device=device)
    old_log_prob = torch.full((1,), math.log(0.5) - 1e-4, device=device)
    one = torch.ones(1, device=device)
    options = {"clip": 0.2, "entropy_coef": 0.0, "kl_coef": 0.0, "extreme": EXTREME}
    sums = policy_sums(logits, action, old_log_prob, logits, one, one, **options)
    x = math.log(0.5) - float(old_log_prob)
    assert sums.kl.item() == pytest.approx(0.5 * x * x, rel=2e-3)
    assert sums.ratio_excess.item() == pytest.approx(x, rel=1e-3)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, in the interpreter
def test_samples_that_are_not_finite_are_dropped_and_counted(device):
    args = draw((9,), 4, device=device)
    logits, _, old_log_prob, _, _, weight = args
    weight.copy_(torch.arange(1.0, 10.0))
    weight[8] = 0.0
    old_log_prob[1], old_log_prob[3] = math.inf, -math.inf
    old_log_prob[5] = old_log_prob[8] = math.nan
    broken = logits.detach().clone()
    broken[6] = math.nan
    args[0] = broken.requires_grad_()
    sums = policy_sums(*args, **COEFFICIENTS, extreme=EXTREME)
    assert (sums.nan.item(), sums.inf.item()) == (2.0, 2.0)
    assert sums.used.tolist() == [1.0, 0.0, 3.0, 0.0, 5.0, 0.0, 0.0, 8.0, 0.0]
    assert sums.weight.item() == 17.0
    (slope,) = torch.autograd.grad(sums.loss, args[0])
    dropped = [1, 3, 5, 6, 8]
    assert torch.equal(slope[dropped], torch.zeros_like(slope[dropped]))
    kept = [0, 2, 4, 7]
    rest = [part.detach()[kept] for part in args]
    rest[0].requires_grad_()
    want = plain(*rest)
    (theirs,) = torch.autograd.grad(want[0], rest[0])
    torch.testing.assert_close(slope[kept], theirs, rtol=1e-12, atol=1e-13)
    for mine, other in zip(sums[:12], want[:12], strict=True):
        assert mine.item() == pytest.approx(other.item(), rel=1e-12, abs=1e-12)


def test_a_masked_class_adds_nothing_and_gets_no_gradient(device):
    args = draw((6,), 4, device=device)
    allowed = torch.ones(6, 4, dtype=torch.bool, device=device)
    allowed[:, 1] = False
    args[1] = torch.where(args[1] == 1, 0, args[1])
    for place in (0, 3):
        args[place] = distribution.masked_logits(args[place].detach(), allowed)
    args[2] = distribution.categorical_log_prob(args[3], args[1]) + 0.1
    args[0].requires_grad_()
    compared(args, 1e-12)
    sums = policy_sums(*args, **COEFFICIENTS, extreme=EXTREME)
    (slope,) = torch.autograd.grad(sums.loss, args[0])
    assert torch.equal(slope[:, 1], torch.zeros_like(slope[:, 1]))


def test_ratios_beyond_the_bound_are_finite_and_pull_no_more(device):
    args = draw((4,), 3, device=device)
    args[2][0] -= 30.0
    args[2][1] += 30.0
    args[4].copy_(torch.tensor([-1.0, 1.0, 1.0, -1.0]))
    args[5].fill_(1.0)
    compared(args, 1e-12)


def test_coefficients_may_be_tensors(device):
    args = draw((20,), 3, device=device)
    tensors = {
        name: torch.full((), value, dtype=torch.float64, device=device)
        for name, value in COEFFICIENTS.items()
    }
    for a, b in zip(
        policy_sums(*args, **tensors, extreme=EXTREME),
        policy_sums(*args, **COEFFICIENTS, extreme=EXTREME),
        strict=True,
    ):
        assert torch.equal(a, b)


@pytest.mark.gpu
@pytest.mark.parametrize("expected", [False, True])
def test_a_large_batch_is_the_sum_of_its_terms(expected):
    compared(draw((64, 4096), 5, expected=expected, dtype=torch.float32, device="cuda"), 1e-4)
