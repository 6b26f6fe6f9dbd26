"""Properties of the action distributions, and their equality with the plain-Python oracle."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from oracles import distribution as oracle
from stormsail.functional import distribution

KINDS = ["tanh", "sigmoid"]


def stacked(rows, low, high):
    """`rows` arrays of one shape [*batch, D], drawn as one array with that many rows."""
    shape = st.one_of(
        st.tuples(st.just(rows), st.integers(1, 4)),
        st.tuples(st.just(rows), st.integers(1, 4), st.integers(1, 4)),
        st.tuples(st.just(rows), st.integers(1, 2), st.integers(1, 2), st.integers(1, 3)),
    )
    return hnp.arrays(np.float64, shape, elements=st.floats(low, high, allow_subnormal=False))


def positive(x):
    """Standard deviations or concentrations between e^-1.5 and e^1.5."""
    return np.exp(x / 2.0)


numbers3 = stacked(3, -3.0, 3.0)
numbers4 = stacked(4, -3.0, 3.0)


def close(actual, expected, *, rtol=1e-9, atol=1e-11):
    torch.testing.assert_close(actual, torch.as_tensor(expected), rtol=rtol, atol=atol)


def tensors(*arrays):
    return tuple(torch.from_numpy(np.ascontiguousarray(a)) for a in arrays)


@given(batch=numbers3)
def test_gaussian_log_prob_equals_the_density_and_scipy(batch):
    value, mean, std = batch[0], batch[1], positive(batch[2])

    actual = distribution.gaussian_log_prob(*tensors(value, mean, std))

    close(actual, oracle.gaussian_log_prob(value, mean, std))
    close(actual, stats.norm.logpdf(value, mean, std).sum(-1))


@given(batch=stacked(1, -3.0, 3.0))
def test_gaussian_entropy_equals_the_formula_and_scipy(batch):
    std = positive(batch[0])

    actual = distribution.gaussian_entropy(*tensors(std))

    close(actual, oracle.gaussian_entropy(std))
    close(actual, stats.norm(0.0, std).entropy().sum(-1))


@pytest.mark.spec("T-S3")
@given(batch=numbers4)
def test_gaussian_kl_equals_the_formula_and_is_never_negative(batch):
    mean, other_mean = batch[0], batch[1]
    std, other_std = positive(batch[2]), positive(batch[3])

    actual = distribution.gaussian_kl(*tensors(mean, std, other_mean, other_std))

    close(actual, oracle.gaussian_kl(mean, std, other_mean, other_std), atol=1e-10)
    assert (actual >= -1e-12).all()


@given(batch=stacked(2, -3.0, 3.0))
def test_gaussian_kl_is_zero_between_equal_distributions(batch):
    mean, std = tensors(batch[0], positive(batch[1]))

    actual = distribution.gaussian_kl(mean, std, mean, std)

    assert (actual.abs() <= 1e-14).all()


@given(batch=stacked(2, -3.0, 3.0), shift=st.floats(0.01, 3.0))
def test_gaussian_kl_is_positive_between_different_distributions(batch, shift):
    mean, std = tensors(batch[0], positive(batch[1]))

    assert (distribution.gaussian_kl(mean, std, mean + shift, std) > 0.0).all()
    assert (distribution.gaussian_kl(mean, std, mean, std * (1.0 + shift)) > 0.0).all()


@settings(max_examples=25)
@given(
    m1=st.floats(-1.0, 1.0), m2=st.floats(-1.0, 1.0), s1=st.floats(0.3, 2.0), s2=st.floats(0.3, 2.0)
)
def test_gaussian_kl_equals_its_integral(m1, m2, s1, s2):
    # Trapezoid over 12 standard deviations: exponentially accurate for smooth decaying integrands.
    x = np.linspace(m1 - 12.0 * s1, m1 + 12.0 * s1, 4001)
    p = stats.norm.pdf(x, m1, s1)
    ratio = stats.norm.logpdf(x, m1, s1) - stats.norm.logpdf(x, m2, s2)
    expected = np.trapezoid(p * ratio, x)

    actual = distribution.gaussian_kl(
        *(torch.tensor([v], dtype=torch.float64) for v in (m1, s1, m2, s2))
    )

    assert actual.item() == pytest.approx(expected, rel=1e-9, abs=1e-10)


@st.composite
def categorical_batches(draw, distributions=1):
    shape = draw(st.tuples(st.integers(1, 3), st.integers(1, 5)))
    numbers = st.floats(-6.0, 6.0, allow_subnormal=False)
    logits = [draw(hnp.arrays(np.float64, shape, elements=numbers)) for _ in range(distributions)]
    action = draw(hnp.arrays(np.int64, shape[0], elements=st.integers(0, shape[1] - 1)))
    return *logits, action


@given(batch=categorical_batches())
def test_categorical_log_prob_and_entropy_equal_the_definition(batch):
    logits, action = batch

    log_prob = distribution.categorical_log_prob(*tensors(logits, action))
    entropy = distribution.categorical_entropy(*tensors(logits))

    close(log_prob, oracle.categorical_log_prob(logits, action), atol=1e-10)
    close(entropy, oracle.categorical_entropy(logits), atol=1e-10)
    assert (entropy >= 0.0).all()
    assert (entropy <= np.log(logits.shape[-1]) + 1e-12).all()


@given(batch=categorical_batches(distributions=2))
def test_categorical_kl_equals_the_definition_and_is_never_negative(batch):
    logits, other, _ = batch

    actual = distribution.categorical_kl(*tensors(logits, other))

    close(actual, oracle.categorical_kl(logits, other), atol=1e-10)
    assert (actual >= -1e-12).all()
    assert (distribution.categorical_kl(*tensors(logits, logits)).abs() <= 1e-14).all()


@given(batch=categorical_batches(distributions=2), shift=st.floats(-50.0, 50.0))
def test_categorical_numbers_ignore_a_constant_added_to_the_logits(batch, shift):
    logits, other, action = tensors(*batch)
    moved = logits + shift

    close(
        distribution.categorical_log_prob(moved, action),
        distribution.categorical_log_prob(logits, action),
    )
    close(distribution.categorical_entropy(moved), distribution.categorical_entropy(logits))
    close(distribution.categorical_kl(moved, other), distribution.categorical_kl(logits, other))


@given(batch=categorical_batches(distributions=2), seed=st.integers(0, 1000))
def test_renaming_the_actions_changes_nothing(batch, seed):
    logits, other, _ = tensors(*batch)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(logits.shape[-1]))

    close(
        distribution.categorical_entropy(logits[:, order]), distribution.categorical_entropy(logits)
    )
    close(
        distribution.categorical_kl(logits[:, order], other[:, order]),
        distribution.categorical_kl(logits, other),
    )


@given(batch=categorical_batches(distributions=2), hole=st.integers(0, 4))
def test_a_class_that_is_impossible_in_both_distributions_counts_for_nothing(batch, hole):
    logits, other, _ = batch
    assume(logits.shape[-1] > 1)
    hole %= logits.shape[-1]
    closed, other_closed = logits.copy(), other.copy()
    closed[:, hole] = other_closed[:, hole] = -np.inf
    smaller, other_smaller = np.delete(logits, hole, -1), np.delete(other, hole, -1)

    close(
        distribution.categorical_entropy(*tensors(closed)),
        oracle.categorical_entropy(smaller),
        atol=1e-10,
    )
    close(
        distribution.categorical_kl(*tensors(closed, other_closed)),
        oracle.categorical_kl(smaller, other_smaller),
        atol=1e-10,
    )


@given(pre_squash=stacked(1, -1e4, 1e4), kind=st.sampled_from(KINDS))
def test_squash_and_its_log_det_equal_the_definition_up_to_ten_thousand(pre_squash, kind):
    u = pre_squash[0]

    close(distribution.squash(*tensors(u), kind=kind), oracle.squash(u, kind))
    close(distribution.squash_log_det(*tensors(u), kind=kind), oracle.squash_log_det(u, kind))


@given(pre_squash=stacked(1, -3.0, 3.0), kind=st.sampled_from(KINDS))
def test_squash_log_det_is_the_log_of_the_derivative_of_squash(pre_squash, kind):
    (u,) = tensors(pre_squash[0])
    leaf = u.clone().requires_grad_()

    (derivative,) = torch.autograd.grad(distribution.squash(leaf, kind=kind).sum(), leaf)

    close(distribution.squash_log_det(u, kind=kind), derivative.log().sum(-1), atol=1e-9)


@given(batch=numbers3, kind=st.sampled_from(KINDS))
def test_squashed_log_prob_equals_the_change_of_variables(batch, kind):
    u, mean, std = batch[0], batch[1], positive(batch[2])

    actual = distribution.squashed_gaussian_log_prob(*tensors(u, mean, std), kind=kind)

    close(actual, oracle.squashed_gaussian_log_prob(u, mean, std, kind))


@settings(max_examples=25)
@given(mean=st.floats(-0.8, 0.8), std=st.floats(0.25, 0.7), kind=st.sampled_from(KINDS))
def test_squashed_density_has_mass_one(mean, std, kind):
    nodes, mass = np.polynomial.legendre.leggauss(400)
    a = nodes if kind == "tanh" else 0.5 * (nodes + 1.0)
    u = np.arctanh(a) if kind == "tanh" else np.log(a) - np.log1p(-a)
    points = torch.from_numpy(u).unsqueeze(-1)

    density = distribution.squashed_gaussian_log_prob(
        points, torch.full_like(points, mean), torch.full_like(points, std), kind=kind
    ).exp()

    width = 1.0 if kind == "tanh" else 0.5
    assert width * float(np.sum(mass * density.numpy())) == pytest.approx(1.0, abs=1e-7)


@given(
    samples=hnp.arrays(
        np.float64,
        st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 3)),
        elements=st.floats(-4.0, 4.0, allow_subnormal=False),
    ),
    kind=st.sampled_from(KINDS),
)
def test_squashed_entropy_equals_the_definition(samples, kind):
    std = positive(samples[0])

    actual = distribution.squashed_gaussian_entropy(*tensors(samples, std), kind=kind)

    close(actual, oracle.squashed_gaussian_entropy(samples, std, kind))
    # A squash with |da/du| <= 1 can only lower the entropy.
    assert (actual <= distribution.gaussian_entropy(*tensors(std)) + 1e-12).all()


@given(batch=numbers3)
def test_beta_equals_the_definition_and_scipy(batch):
    action = 1.0 / (1.0 + np.exp(-batch[0]))
    alpha, beta = positive(batch[1]), positive(batch[2])

    log_prob = distribution.beta_log_prob(*tensors(action, alpha, beta))
    entropy = distribution.beta_entropy(*tensors(alpha, beta))

    close(log_prob, oracle.beta_log_prob(action, alpha, beta), atol=1e-10)
    close(log_prob, stats.beta.logpdf(action, alpha, beta).sum(-1), atol=1e-10)
    close(entropy, oracle.beta_entropy(alpha, beta), atol=1e-10)
    close(entropy, stats.beta(alpha, beta).entropy().sum(-1), rtol=1e-7, atol=1e-8)


@given(batch=numbers4)
def test_beta_kl_equals_the_definition_and_is_never_negative(batch):
    parts = [positive(part) for part in batch]

    actual = distribution.beta_kl(*tensors(*parts))

    close(actual, oracle.beta_kl(*parts), rtol=1e-8, atol=1e-9)
    assert (actual >= -1e-9).all()
    same = distribution.beta_kl(*tensors(parts[0], parts[1], parts[0], parts[1]))
    assert (same == 0.0).all()


@given(batch=numbers3)
def test_beta_is_symmetric_under_exchange_of_its_ends(batch):
    action = 1.0 / (1.0 + np.exp(-batch[0]))
    alpha, beta = positive(batch[1]), positive(batch[2])

    close(
        distribution.beta_log_prob(*tensors(action, alpha, beta)),
        distribution.beta_log_prob(*tensors(1.0 - action, beta, alpha)),
        atol=1e-9,
    )
    close(
        distribution.beta_entropy(*tensors(alpha, beta)),
        distribution.beta_entropy(*tensors(beta, alpha)),
        atol=1e-10,
    )


GRADCHECKS = {
    "gaussian_log_prob": lambda x, y, z: distribution.gaussian_log_prob(x, y, z),
    "gaussian_entropy": lambda _x, _y, z: distribution.gaussian_entropy(z),
    "gaussian_kl": lambda x, y, z: distribution.gaussian_kl(x, z, y, z.square() + 0.1),
    "categorical_entropy": lambda x, _y, _z: distribution.categorical_entropy(x),
    "categorical_kl": lambda x, y, _z: distribution.categorical_kl(x, y),
    "squash_log_det_tanh": lambda x, _y, _z: distribution.squash_log_det(x, kind="tanh"),
    "squash_log_det_sigmoid": lambda x, _y, _z: distribution.squash_log_det(x, kind="sigmoid"),
    "squashed": lambda x, y, z: distribution.squashed_gaussian_log_prob(x, y, z, kind="tanh"),
    "squashed_entropy": lambda x, y, z: distribution.squashed_gaussian_entropy(
        torch.stack([x, y]), z, kind="sigmoid"
    ),
    "beta_log_prob": lambda x, y, z: distribution.beta_log_prob(x.sigmoid(), y.exp(), z),
    "beta_entropy": lambda _x, y, z: distribution.beta_entropy(y.exp(), z),
    "beta_kl": lambda x, y, z: distribution.beta_kl(y.exp(), z, x.exp(), z.square() + 0.1),
}


@pytest.mark.parametrize("name", GRADCHECKS)
def test_every_gradient_passes_gradcheck(name):
    rng = np.random.default_rng(5)
    x, y = (torch.from_numpy(rng.normal(size=(3, 2))).requires_grad_() for _ in range(2))
    z = torch.from_numpy(rng.uniform(0.4, 1.5, size=(3, 2))).requires_grad_()

    assert torch.autograd.gradcheck(GRADCHECKS[name], (x, y, z))


@settings(max_examples=20)
@given(batch=numbers4)
def test_a_batch_equals_a_loop(batch):
    x, y, z, w = (torch.from_numpy(a.reshape(-1, a.shape[-1])) for a in batch)
    z, w = (z / 2.0).exp(), (w / 2.0).exp()
    functions = {
        "log_prob": lambda k: distribution.gaussian_log_prob(x[k], y[k], z[k]),
        "kl": lambda k: distribution.gaussian_kl(x[k], z[k], y[k], w[k]),
        "categorical": lambda k: distribution.categorical_kl(x[k], y[k]),
        "squashed": lambda k: distribution.squashed_gaussian_log_prob(
            x[k], y[k], z[k], kind="tanh"
        ),
        "beta": lambda k: distribution.beta_entropy(z[k], w[k]),
    }

    for function in functions.values():
        together = function(slice(None))
        for k in range(len(x)):
            close(together[k], function(k), rtol=1e-12)


def test_float32_stays_float32_and_within_its_rounding():
    rng = np.random.default_rng(3)
    x, y = (torch.from_numpy(rng.normal(size=(50, 3))) for _ in range(2))
    z = torch.from_numpy(rng.uniform(0.3, 1.5, size=(50, 3)))
    action = torch.from_numpy(rng.integers(0, 3, size=50))
    results = {
        name: (function(x.float(), y.float(), z.float()), function(x, y, z))
        for name, function in GRADCHECKS.items()
    }
    results["categorical_log_prob"] = (
        distribution.categorical_log_prob(x.float(), action),
        distribution.categorical_log_prob(x, action),
    )

    for single, exact in results.values():
        assert single.dtype == torch.float32
        # Three terms of size up to about 50 (z-scores of 10): 50 * 3 * a few eps32.
        torch.testing.assert_close(single.double(), exact, rtol=2e-5, atol=5e-5)


@st.composite
def choice_batches(draw):
    counts = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    rows = draw(st.integers(1, 3))
    numbers = st.floats(-6.0, 6.0, allow_subnormal=False)
    logits, other = (
        draw(hnp.arrays(np.float64, (rows, sum(counts)), elements=numbers)) for _ in range(2)
    )
    columns = [
        draw(hnp.arrays(np.int64, (rows, 1), elements=st.integers(0, count - 1)))
        for count in counts
    ]
    return logits, other, np.concatenate(columns, 1), counts


@given(batch=choice_batches())
def test_several_choices_are_one_choice_among_all_combinations(batch):
    logits, other, action, counts = batch
    log_prob = distribution.multi_categorical_log_prob(*tensors(logits, action), counts=counts)
    entropy = distribution.multi_categorical_entropy(*tensors(logits), counts=counts)
    divergence = distribution.multi_categorical_kl(*tensors(logits, other), counts=counts)

    close(log_prob, oracle.multi_categorical_log_prob(logits, action, counts), atol=1e-10)
    close(entropy, oracle.multi_categorical_entropy(logits, counts), atol=1e-10)
    close(divergence, oracle.multi_categorical_kl(logits, other, counts), atol=1e-10)


@st.composite
def masked_batches(draw):
    logits, other, action = draw(categorical_batches(distributions=2))
    mask = draw(hnp.arrays(np.bool_, logits.shape))
    mask[np.arange(len(action)), action] = True  # the action that was drawn was allowed
    return logits, other, action, mask


@given(batch=masked_batches())
def test_a_mask_leaves_the_distribution_given_that_an_allowed_class_is_drawn(batch):
    logits, other, action, mask = batch
    first, second = (distribution.masked_logits(*tensors(x, mask)) for x in (logits, other))
    p, q = (oracle.masked_probabilities(x, mask) for x in (logits, other))
    safe = np.where(mask, p, 1.0), np.where(mask, q, 1.0)

    close(first.softmax(-1), p)
    assert (first.softmax(-1).numpy()[~mask] == 0.0).all()
    chosen = np.log(np.take_along_axis(p, action[:, None], 1)[:, 0])
    close(distribution.categorical_log_prob(first, *tensors(action)), chosen, atol=1e-10)
    close(distribution.categorical_entropy(first), -(p * np.log(safe[0])).sum(-1), atol=1e-10)
    divergence = (p * (np.log(safe[0]) - np.log(safe[1]))).sum(-1)
    close(distribution.categorical_kl(first, second), divergence, atol=1e-10)


@given(batch=masked_batches())
def test_gradients_under_a_mask_are_those_of_the_allowed_classes_alone(batch):
    logits, other, action, mask = batch
    for formula in ("log_prob", "entropy", "kl"):
        given_logits = torch.tensor(logits, requires_grad=True)
        masked = distribution.masked_logits(given_logits, torch.tensor(mask))
        second = distribution.masked_logits(*tensors(other, mask))
        arguments = {"log_prob": (torch.tensor(action),), "entropy": (), "kl": (second,)}[formula]
        getattr(distribution, f"categorical_{formula}")(masked, *arguments).sum().backward()
        gradient = given_logits.grad.numpy()
        assert (gradient[~mask] == 0.0).all(), formula
        for row in range(len(logits)):  # the same with the allowed classes as the only ones
            places = np.flatnonzero(mask[row])
            alone = torch.tensor(logits[row, places], requires_grad=True)
            arguments = {
                "log_prob": (torch.tensor(int(np.searchsorted(places, action[row]))),),
                "entropy": (),
                "kl": (torch.tensor(other[row, places]),),
            }[formula]
            getattr(distribution, f"categorical_{formula}")(alone, *arguments).backward()
            np.testing.assert_allclose(gradient[row, places], alone.grad.numpy(), atol=1e-9)
