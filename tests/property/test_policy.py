"""Properties of the policy losses, and their equality with the plain-Python oracle."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles import policy as oracle
from stormsail.functional import policy, statistics


def stacked(rows, low, high):
    """`rows` arrays of one shape, drawn as one array with that many rows."""
    numbers = st.floats(low, high, allow_subnormal=False)
    shape = st.one_of(
        st.tuples(st.just(rows), st.integers(1, 8)),
        st.tuples(st.just(rows), st.integers(1, 3), st.integers(1, 3)),
    )
    return hnp.arrays(np.float64, shape, elements=numbers)


triples = stacked(3, -3.0, 3.0)
clips = st.floats(0.01, 0.9)


def close(actual, expected):
    torch.testing.assert_close(actual, torch.as_tensor(expected), rtol=1e-9, atol=1e-12)


@pytest.mark.spec("T-P1")
@given(batch=triples, clip=clips)
def test_clipped_surrogate_equals_the_paper(batch, clip):
    new, old, advantage = batch

    actual = policy.clipped_surrogate(*map(torch.from_numpy, batch), clip=clip)

    close(actual, oracle.clipped_surrogate(new, old, advantage, clip))


@given(batch=stacked(3, -40.0, 40.0), clip=clips)
def test_clipped_surrogate_equals_the_paper_far_outside_the_band(batch, clip):
    new, old, advantage = batch

    actual = policy.clipped_surrogate(*map(torch.from_numpy, batch), clip=clip)

    assert torch.isfinite(actual).all()
    close(actual, oracle.clipped_surrogate(new, old, advantage, clip))


@given(batch=triples, clip=clips)
def test_clipped_surrogate_in_float32_is_near_the_paper(batch, clip):
    # Ratios reach e^6 = 403 and advantages 3; the log-ratio carries an error of 2 eps * 6, which
    # the exponential turns into a relative error of about 12 eps = 1.4e-6.
    batch = batch.astype(np.float32)
    expected = oracle.clipped_surrogate(*batch.astype(np.float64), clip)

    actual = policy.clipped_surrogate(*map(torch.from_numpy, batch), clip=clip)

    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual.double(), torch.from_numpy(expected), rtol=5e-6, atol=5e-6)


@pytest.mark.spec("T-P1")
@given(batch=triples, clip=clips)
def test_clipped_surrogate_gradient_equals_the_closed_form(batch, clip):
    new, old, advantage = batch
    ratio = np.exp(new - old)
    # On a kink the derivative is a matter of taste; stay off it.
    off_kink = (np.abs(ratio - 1.0 - clip) > 1e-6) & (np.abs(ratio - 1.0 + clip) > 1e-6)
    leaf = torch.from_numpy(new.copy()).requires_grad_()

    loss = policy.clipped_surrogate(
        leaf, torch.from_numpy(old), torch.from_numpy(advantage), clip=clip
    )
    (gradient,) = torch.autograd.grad(loss.sum(), leaf)

    expected = oracle.clipped_surrogate_gradient(new, old, advantage, clip)
    close(gradient[torch.from_numpy(off_kink)], expected[off_kink])


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000))
def test_clipped_surrogate_passes_gradcheck_away_from_the_kinks(seed):
    rng = np.random.default_rng(seed)
    # Ratios in the middle of the three zones of the band [0.7, 1.3].
    ratio = rng.choice([0.4, 0.9, 1.1, 1.8], size=6)
    old = torch.from_numpy(rng.normal(size=6))
    new = (old + torch.from_numpy(np.log(ratio))).requires_grad_()
    advantage = torch.from_numpy(rng.choice([-1.0, 1.0], size=6) * rng.uniform(0.5, 2.0, size=6))

    assert torch.autograd.gradcheck(
        lambda x: policy.clipped_surrogate(x, old, advantage, clip=0.3), (new,)
    )


@given(batch=triples)
def test_a_huge_clip_gives_the_plain_ratio(batch):
    new, old, advantage = map(torch.from_numpy, batch)

    actual = policy.clipped_surrogate(new, old, advantage, clip=1e9)

    close(actual, -(new - old).exp() * advantage)


@given(batch=stacked(2, -3.0, 3.0), clip=clips)
def test_an_unchanged_policy_gives_minus_the_advantage_and_that_gradient(batch, clip):
    log_prob, advantage = map(torch.from_numpy, batch)
    new = log_prob.clone().requires_grad_()

    loss = policy.clipped_surrogate(new, log_prob, advantage, clip=clip)
    (gradient,) = torch.autograd.grad(loss.sum(), new)

    close(loss.detach(), -advantage)
    close(gradient, -advantage)


@given(batch=triples, clip=clips)
def test_the_surrogate_is_never_below_the_plain_ratio_loss(batch, clip):
    # -min(a, b) >= -a: the clipped objective is a lower bound of the unclipped one.
    new, old, advantage = map(torch.from_numpy, batch)

    actual = policy.clipped_surrogate(new, old, advantage, clip=clip)

    plain = -(new - old).exp() * advantage
    assert (actual >= plain - 1e-9 * plain.abs()).all()


@given(batch=triples, clip=clips)
def test_a_batch_of_the_surrogate_equals_a_loop(batch, clip):
    new, old, advantage = (torch.from_numpy(x.reshape(-1)) for x in batch)

    together = policy.clipped_surrogate(new, old, advantage, clip=clip)

    for k in range(len(new)):
        alone = policy.clipped_surrogate(new[k], old[k], advantage[k], clip=clip)
        close(together[k], alone)


@pytest.mark.spec("T-P3")
@given(log_ratio=stacked(1, -15.0, 15.0))
def test_kl_estimates_equal_the_definition(log_ratio):
    x = torch.from_numpy(log_ratio)

    close(policy.kl_estimate(x, kind="k1"), oracle.k1(log_ratio))
    # expm1(l) - l cancels to l^2 / 2: one rounding of expm1 leaves an error of eps * |l|.
    expected = torch.from_numpy(oracle.k3(log_ratio))
    error = (policy.kl_estimate(x, kind="k3") - expected).abs()
    assert (error <= 1e-9 * expected + 4.0 * np.finfo(np.float64).eps * x.abs()).all()


@pytest.mark.spec("T-P3", "X16")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(
    log_ratio=st.lists(st.floats(-15.0, 15.0, width=32, allow_subnormal=False), min_size=1),
    scale=st.sampled_from([1.0, 1e-3, 1e-6, 1e-9]),
)
def test_k3_is_never_negative_and_zero_at_ratio_one(dtype, log_ratio, scale):
    x = scale * torch.tensor(log_ratio, dtype=dtype)

    k3 = policy.kl_estimate(x, kind="k3")

    assert k3.dtype == dtype
    # One rounding of expm1 may fall short of l by one unit in the last place of l.
    assert (k3 >= -torch.finfo(dtype).eps * x.abs()).all()
    assert (policy.kl_estimate(torch.zeros_like(x), kind="k3") == 0.0).all()


@settings(max_examples=20)
@given(log_ratio=stacked(1, -3.0, 3.0), kind=st.sampled_from(["k1", "k3"]))
def test_kl_estimates_pass_gradcheck(log_ratio, kind):
    x = torch.from_numpy(log_ratio).requires_grad_()

    assert torch.autograd.gradcheck(lambda v: policy.kl_estimate(v, kind=kind), (x,))


@given(log_ratio=stacked(1, -3.0, 3.0), clip=clips)
def test_ratio_is_clipped_equals_the_definition(log_ratio, clip):
    clear = np.abs(np.abs(np.exp(log_ratio) - 1.0) - clip) > 1e-9  # no verdict inside rounding

    actual = policy.ratio_is_clipped(torch.from_numpy(log_ratio), clip=clip).numpy()

    np.testing.assert_array_equal(actual[clear], oracle.ratio_is_clipped(log_ratio, clip)[clear])


any_float = st.floats(allow_nan=True, allow_infinity=True, allow_subnormal=False)


@given(values=st.lists(any_float, min_size=1, max_size=12))
def test_count_nonfinite_counts_what_numpy_counts(values):
    counted = policy.count_nonfinite(torch.tensor(values, dtype=torch.float64))

    assert int(counted.nan) == int(np.isnan(values).sum())
    assert int(counted.inf) == int(np.isinf(values).sum())
    assert int(counted.total) == int(counted.nan) + int(counted.inf)


@given(batch=hnp.arrays(np.float64, st.tuples(st.just(2), st.integers(1, 8)), elements=any_float))
def test_drop_nonfinite_keeps_good_samples_bit_for_bit_and_is_idempotent(batch):
    new, old = map(torch.from_numpy, batch)
    weight = torch.ones_like(new)
    good = torch.isfinite(new - old)

    once = policy.drop_nonfinite(new, old, weight)
    twice = policy.drop_nonfinite(*once)

    for before, after, again in zip((new, old, weight), once, twice, strict=True):
        assert torch.equal(after[good], before[good])
        assert (after[~good] == 0.0).all()
        assert torch.equal(after, again)


@pytest.mark.spec("T-P2")
@given(batch=stacked(3, -2.0, 2.0), bad=st.integers(0, 2), clip=clips)
def test_a_dropped_sample_never_changes_the_mean_or_the_gradient_of_the_others(batch, bad, clip):
    new, old, advantage = (torch.from_numpy(x.reshape(-1).copy()) for x in batch)
    poison = (float("nan"), float("inf"), float("-inf"))[bad]
    longer = torch.cat([new, torch.tensor([poison], dtype=torch.float64)]).requires_grad_()
    tail = torch.ones(1, dtype=torch.float64)
    new.requires_grad_()

    def mean_loss(log_prob, old_log_prob, signal):
        a, b, w = policy.drop_nonfinite(log_prob, old_log_prob, torch.ones_like(log_prob))
        return statistics.weighted_mean(policy.clipped_surrogate(a, b, signal, clip=clip), w)

    with_bad = mean_loss(longer, torch.cat([old, tail]), torch.cat([advantage, tail]))
    without = mean_loss(new, old, advantage)
    (gradient_with,) = torch.autograd.grad(with_bad, longer)
    (gradient_without,) = torch.autograd.grad(without, new)

    close(with_bad.detach(), without.detach())
    close(gradient_with[:-1], gradient_without)
    assert gradient_with[-1] == 0.0


@pytest.mark.spec("T-W1")
@given(
    advantage=stacked(1, -50.0, 50.0), beta=st.floats(0.1, 10.0), max_weight=st.floats(0.5, 200.0)
)
def test_awr_weight_equals_the_definition(advantage, beta, max_weight):
    weight = policy.awr_weight(torch.from_numpy(advantage), beta=beta, max_weight=max_weight)

    close(weight, oracle.awr_weight(advantage, beta, max_weight))
    assert (weight <= max_weight * (1.0 + 1e-12)).all()


@given(batch=stacked(2, -5.0, 5.0), beta=st.floats(0.5, 10.0), max_weight=st.floats(1.0, 200.0))
def test_awr_loss_and_gradient_equal_the_definition(batch, beta, max_weight):
    log_prob, advantage = batch
    leaf = torch.from_numpy(log_prob.copy()).requires_grad_()

    loss = policy.awr_loss(leaf, torch.from_numpy(advantage), beta=beta, max_weight=max_weight)
    (gradient,) = torch.autograd.grad(loss.sum(), leaf)

    close(loss.detach(), oracle.awr_loss(log_prob, advantage, beta, max_weight))
    close(gradient, -oracle.awr_weight(advantage, beta, max_weight))


@given(advantage=stacked(1, -5.0, 5.0), beta=st.floats(0.5, 10.0))
def test_awr_weight_never_falls_as_the_advantage_grows(advantage, beta):
    ordered = torch.from_numpy(np.sort(advantage.reshape(-1)))

    weight = policy.awr_weight(ordered, beta=beta, max_weight=10.0)

    assert (weight.diff() >= 0.0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_result_keeps_the_dtype_and_tensor_scalars_equal_numbers(dtype):
    x = torch.tensor([0.3, -0.4, 1.2], dtype=dtype)
    scalar = torch.tensor
    pairs = [
        (
            policy.clipped_surrogate(x, -x, x, clip=0.25),
            policy.clipped_surrogate(x, -x, x, clip=scalar(0.25)),
        ),
        (
            policy.awr_weight(x, beta=0.5, max_weight=4.0),
            policy.awr_weight(x, beta=scalar(0.5), max_weight=scalar(4.0)),
        ),
        (
            policy.awr_loss(x, x, beta=0.5, max_weight=4.0),
            policy.awr_loss(x, x, beta=scalar(0.5), max_weight=scalar(4.0)),
        ),
    ]

    for with_number, with_tensor in pairs:
        assert with_number.dtype == dtype
        assert with_tensor.dtype == dtype
        torch.testing.assert_close(with_number, with_tensor, rtol=1e-6, atol=0.0)
    assert policy.entropy_loss(x, x).dtype == dtype
    assert all(part.dtype == dtype for part in policy.drop_nonfinite(x, x, x))
