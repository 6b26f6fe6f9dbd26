"""The optimizers with a utility gate: against an oracle, against torch, and as optimizers."""

import copy
import io
import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from oracles import upgd as oracle
from stormsail.core.errors import ArgumentError
from stormsail.functional.optim.upgd import step_share
from stormsail.optim import UPGD, UPGDW, AdaptiveUPGD

KINDS = {"upgd": UPGD, "adaptive": AdaptiveUPGD, "upgdw": UPGDW}
NORMS = ["centred", "minmax", "global_max", "abs_max"]
NOISES = ["absolute", "rms_update", "rms_grad"]
BETAS, EPS = (0.9, 0.999), 1e-8
SHAPES = [(3, 4), (5,), (), (2, 1, 3)]
every_kind = pytest.mark.parametrize("kind", KINDS)
every_norm = pytest.mark.parametrize("norm", NORMS)


def draws(seed, shapes=SHAPES, *, scale=1.0):
    rng = np.random.default_rng(seed)
    return [scale * rng.normal(size=shape) for shape in shapes]


def parameters(arrays, dtype=torch.float64):
    return [nn.Parameter(torch.tensor(a, dtype=dtype)) for a in arrays]


def hand_over(params, grads):
    for p, g in zip(params, grads, strict=True):
        p.grad = None if g is None else torch.as_tensor(g, dtype=p.dtype).clone()


def seeded(seed=7):
    return torch.Generator().manual_seed(seed)


def settings(kind, **own):
    """What the oracle needs to be this kind of optimizer."""
    return own if kind == "upgd" else {"betas": BETAS, "eps": EPS} | own


def noise_of(kind, shapes, steps, *, seed=7, dtype=torch.float64, cut=0):
    """Return the unit noise that a generator of this seed feeds into each step.

    Zero weights with zero gradients have equal utilities and no direction, so with sigma = lr = 1
    the step is the noise itself, in whatever order the optimizer draws it. `cut` tensors are put
    into a group of their own.
    """
    params = parameters([np.zeros(shape) for shape in shapes], dtype)
    groups = [{"params": params[:cut]}, {"params": params[cut:]}] if cut else params
    probe = KINDS[kind](groups, lr=1.0, weight_decay=0.0, sigma=1.0, generator=seeded(seed))
    found = []
    for _ in range(steps):
        hand_over(params, [np.zeros(shape) for shape in shapes])
        probe.step()
        found.append([-p.detach().numpy().copy() for p in params])
        for p in params:
            p.data.zero_()
    return found


def agree(params, expected, tolerance=1e-12):
    for p, e in zip(params, expected, strict=True):
        np.testing.assert_allclose(p.detach().numpy(), e, rtol=tolerance, atol=tolerance)


def factors(kind, p, g, **options):
    """Return 1 - s of each weight after one step of UPGD from `p` with gradient `g`."""
    options = {"lr": 0.5, "weight_decay": 0.0, "sigma": 0.0, "lr_compensation": 1.0} | options
    param = nn.Parameter(torch.tensor(p, dtype=torch.float64))
    optimizer = KINDS[kind]([param], **options)
    hand_over([param], [np.asarray(g)])
    optimizer.step()
    return (np.asarray(p) - param.detach().numpy()) / (options["lr"] * np.asarray(g))


# ------------------------------------------------------------------------------------- the oracle


@pytest.mark.spec("2.19")
@every_kind
@every_norm
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("sigma", [0.0, 0.05])
def test_thirty_steps_equal_the_oracle(kind, norm, noise, sigma):
    own = {"lr": 0.05, "weight_decay": 0.01, "beta_utility": 0.9, "sigma": sigma}
    own |= {"noise_scale": noise}
    start = draws(1)
    params = parameters(start)
    optimizer = KINDS[kind](params, **own, utility_norm=norm, generator=seeded())
    expected = oracle.Upgd(start, [settings(kind, **own)] * len(start), utility_norm=norm)
    unit = noise_of(kind, SHAPES, 30) if sigma else [None] * 30
    for t in range(30):
        grads = draws(100 + t)
        hand_over(params, grads)
        optimizer.step()
        expected.step(grads, unit[t])
        agree(params, expected.params, 1e-11)


@pytest.mark.spec("2.19", "4.4")
@pytest.mark.parametrize("kind", ["upgd", "adaptive"])
def test_the_official_variant_repeats_the_published_steps_on_a_seed(kind):
    # The published code draws `randn_like` for one tensor after the other.
    own = {"lr": 0.01, "weight_decay": 0.001, "beta_utility": 0.999, "sigma": 0.01}
    shapes = [(5, 8), (8,), (1,), (8, 3)]
    start = draws(2, shapes)
    params = parameters(start)
    optimizer = KINDS[kind](params, **own, variant="official", generator=seeded(3))
    expected = oracle.Upgd(start, [settings(kind, **own)] * len(start), variant="official")
    stream = seeded(3)
    for t in range(25):
        grads = draws(200 + t, shapes)
        hand_over(params, grads)
        optimizer.step()
        unit = [torch.randn(s, generator=stream, dtype=torch.float64).numpy() for s in shapes]
        expected.step(grads, unit)
        agree(params, expected.params, 1e-11)


@pytest.mark.spec("2.19")
@every_norm
def test_the_official_variant_ignores_the_normalisation(norm):
    start, paths = draws(3), []
    for options in ({}, {"utility_norm": norm}):
        params = parameters(start)
        optimizer = AdaptiveUPGD(params, lr=0.01, sigma=0.0, variant="official", **options)
        for t in range(3):
            hand_over(params, draws(300 + t))
            optimizer.step()
        paths.append([p.detach().clone() for p in params])
    assert all(torch.equal(a, b) for a, b in zip(*paths, strict=True))


@pytest.mark.spec("2.19", "4.4")
def test_the_official_gate_is_a_thousandfold_sharper_at_the_first_step():
    p, g = [0.5, 0.3, -0.1], [-1.0, -1.0, -1.0]
    options = {"beta_utility": 0.999}
    sharp = factors("upgd", p, g, variant="official", lr_compensation=2.0, **options) / 2.0
    soft = factors("upgd", p, g, utility_norm="global_max", **options)
    np.testing.assert_allclose(sharp, [0.0, 0.0, 1.0], atol=1e-12)
    expected = [1.0 - oracle.sigmoid(u / 0.5) for u in p]
    np.testing.assert_allclose(soft, expected, rtol=1e-10)


@pytest.mark.spec("2.19")
@every_kind
def test_a_tensor_counts_its_own_steps(kind):
    own = {"lr": 0.05, "weight_decay": 0.0, "beta_utility": 0.9, "sigma": 0.0}
    start = draws(4)
    params = parameters(start)
    optimizer = KINDS[kind](params, **own)
    expected = oracle.Upgd(start, [settings(kind, **own)] * len(start))
    for t in range(24):
        grads = draws(400 + t)
        if t % 2:
            grads[1] = grads[3] = None
        hand_over(params, grads)
        optimizer.step()
        expected.step(grads)
        agree(params, expected.params)
    assert expected.count == [24, 12, 24, 12]


# --------------------------------------------------------------------------------------- the gate


@pytest.mark.spec("T-U1", "S1-U1", "8")
@pytest.mark.parametrize("beta", [0.0, 0.999])
@pytest.mark.parametrize(
    ("norm", "expected"),
    [
        ("minmax", [0.7311, 0.5, 0.2689]),
        ("global_max", [0.7311, 0.5, 0.2689]),
        ("centred", [0.7311, 0.5, 0.2689]),
        ("abs_max", [0.7311, 0.6457, 0.5498]),
    ],
)
def test_of_useless_weights_the_most_useless_moves_most(norm, expected, beta):
    found = factors("upgd", [0.5, 0.3, 0.1], [1.0] * 3, utility_norm=norm, beta_utility=beta)
    np.testing.assert_allclose(found, expected, atol=5e-5)


@pytest.mark.spec("T-U1", "8")
def test_the_published_gate_turns_the_order_round_when_nothing_is_useful():
    found = factors(
        "upgd",
        [0.5, 0.3, 0.1],
        [1.0] * 3,
        variant="official",
        beta_utility=0.0,
        lr_compensation=2.0,
    )
    np.testing.assert_allclose(found / 2.0, [0.0067, 0.0474, 0.2689], atol=5e-5)


@pytest.mark.spec("2.19")
@pytest.mark.parametrize(
    ("norm", "expected"),
    [
        # utilities 1, 0, -3: mean -2/3, furthest from it -7/3
        ("centred", [(1 + 2 / 3) / (7 / 3), (2 / 3) / (7 / 3), -1.0]),
        ("minmax", [1.0, 2 * (0.75 - 0.5), -1.0]),
        ("global_max", [1.0, 0.0, -3.0]),
        ("abs_max", [1 / 3, 0.0, -1.0]),
    ],
)
def test_each_normalisation_has_its_written_form(norm, expected):
    found = factors("upgd", [-1.0, 0.0, 3.0], [1.0] * 3, utility_norm=norm)
    np.testing.assert_allclose(found, [1.0 - oracle.sigmoid(x) for x in expected], rtol=1e-10)


@pytest.mark.spec("2.19")
@every_norm
def test_the_gate_looks_at_all_tensors_of_all_groups_together(norm):
    p = np.array([0.5, -0.3, 0.1, 2.0, -1.5])
    whole = factors("upgd", p, np.ones(5), utility_norm=norm)
    parts = parameters([p[:2], p[2:3], p[3:]])
    optimizer = UPGD(
        [{"params": parts[:1]}, {"params": parts[1:], "lr": 0.25}],
        lr=0.5,
        weight_decay=0.0,
        sigma=0.0,
        lr_compensation=1.0,
        utility_norm=norm,
    )
    hand_over(parts, [np.ones(2), np.ones(1), np.ones(2)])
    optimizer.step()
    moved = p - np.concatenate([q.detach().numpy() for q in parts])
    np.testing.assert_allclose(moved / [0.5, 0.5, 0.25, 0.25, 0.25], whole, rtol=1e-12)


@pytest.mark.spec("T-U2", "S1-U2", "2.19")
@every_norm
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(
    ("kind", "peer", "decay"),
    [
        ("upgd", torch.optim.SGD, 0.0),
        ("adaptive", torch.optim.Adam, 0.0),
        ("adaptive", torch.optim.AdamW, 0.02),
        ("upgdw", torch.optim.AdamW, 0.02),
    ],
)
def test_with_equal_utilities_and_no_noise_it_is_the_plain_optimizer(kind, peer, decay, sign, norm):
    # A gradient of c / p gives every weight the same utility -c, though not the same gradient.
    start = [np.abs(a) + 0.5 for a in draws(5)]
    ours, theirs = parameters(start), parameters(start)
    options = {"lr": 0.01, "weight_decay": decay} | ({"eps": EPS} if kind != "upgd" else {})
    optimizer = KINDS[kind](ours, **options, sigma=0.0, utility_norm=norm)
    plain = peer(theirs, **options)
    for t in range(20):
        c = sign * (1.0 + 0.5 * math.sin(t))
        for params, stepper in ((ours, optimizer), (theirs, plain)):
            hand_over(params, [c / p.detach() for p in params])
            stepper.step()
        agree(ours, [p.detach().numpy() for p in theirs])


@pytest.mark.spec("T-U2", "design:UPGD")
@every_norm
@pytest.mark.parametrize("value", [0.1, -0.1, 1e-12, 3e4])
def test_rounding_of_equal_utilities_does_not_open_the_gate(norm, value):
    rng = np.random.default_rng(0)
    g = rng.uniform(0.1, 3.0, size=1001)
    start = torch.tensor(value / g, dtype=torch.float32)
    p = nn.Parameter(start.clone())
    optimizer = UPGD([p], lr=1e-3, weight_decay=0.0, sigma=0.0, utility_norm=norm)
    p.grad = value / start  # p * grad is `value` up to one rounding of float32
    step = p.grad.clone()
    optimizer.step()
    torch.testing.assert_close(p.detach(), start - 1e-3 * step, rtol=2e-7, atol=0.0)


@pytest.mark.spec("2.19")
@every_kind
def test_compensation_multiplies_the_step_and_not_the_decay(kind):
    start, grads = draws(6), draws(60)
    moved = {}
    for compensation in (1.0, 2.0):
        params = parameters(start)
        optimizer = KINDS[kind](
            params, lr=0.1, weight_decay=0.5, sigma=0.0, lr_compensation=compensation
        )
        hand_over(params, grads)
        optimizer.step()
        moved[compensation] = [
            p.detach().numpy() - 0.95 * s for p, s in zip(params, start, strict=True)
        ]
    for one, two in zip(moved[1.0], moved[2.0], strict=True):
        np.testing.assert_allclose(two, 2.0 * one, rtol=1e-9)


@pytest.mark.spec("T-U5", "X14")
@every_kind
@every_norm
@pytest.mark.parametrize("noise", NOISES)
def test_zero_weights_with_zero_gradients_stay_finite(kind, norm, noise):
    params = parameters([np.zeros((3, 2)), np.zeros(4)])
    optimizer = KINDS[kind](
        params, lr=0.1, sigma=0.0, utility_norm=norm, noise_scale=noise, generator=seeded()
    )
    for _ in range(3):
        hand_over(params, [np.zeros((3, 2)), np.zeros(4)])
        optimizer.step()
    assert all(torch.equal(p, torch.zeros_like(p)) for p in params)


@pytest.mark.spec("T-U5", "X14")
@every_norm
def test_zero_initialised_biases_take_the_plain_first_step(norm):
    p = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    optimizer = UPGD([p], lr=0.1, weight_decay=0.0, sigma=0.0, utility_norm=norm)
    hand_over([p], [[1.0, -2.0, 3.0, 0.5]])
    optimizer.step()
    agree([p], [[-0.1, 0.2, -0.3, -0.05]], 1e-15)


@pytest.mark.spec("X14", "4.4")
def test_the_published_gate_of_nothing_but_zeros_is_not_a_number():
    p = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = UPGD([p], lr=0.1, sigma=0.0, variant="official")
    hand_over([p], [[1.0, 1.0, 1.0]])
    optimizer.step()
    assert torch.isnan(p).all()


@pytest.mark.spec("2.19", "8")
@every_norm
@pytest.mark.parametrize("seed", range(5))
def test_the_share_of_a_step_is_that_of_the_oracle(norm, seed):
    utilities = np.random.default_rng(seed).normal(size=20) - (seed == 4) * 10.0
    expected = [1.0 - s for s in oracle.gate(list(utilities), norm)]
    found = step_share(torch.tensor(utilities), norm=norm)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


# -------------------------------------------------------------------------------------- the noise


@pytest.mark.spec("T-U3", "S1-U3")
@every_kind
@pytest.mark.parametrize("of", ["one group", "two groups", "a tensor"])
def test_noise_has_the_written_deviation(kind, of):
    params = [nn.Parameter(torch.zeros(40_000, dtype=torch.float64)) for _ in range(2)]
    groups = [{"params": [p]} for p in params] if of == "two groups" else params
    sigma = torch.tensor(0.1, dtype=torch.float64) if of == "a tensor" else 0.1
    optimizer = KINDS[kind](groups, lr=0.5, weight_decay=0.0, sigma=sigma, generator=seeded(1))
    for p in params:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for p in params:
        noise = p.detach() / 0.5  # the gate is a half and the compensation 2
        assert noise.std().item() == pytest.approx(0.1, rel=0.02)
        assert abs(noise.mean().item()) < 0.1 * 4 / math.sqrt(40_000)


def walk(kind, seed, n=10_000, steps=3, cut=0):
    """Return the noise of each step of two tensors of one shape."""
    return np.array(noise_of(kind, [(n,), (n,)], steps, seed=seed, cut=cut))


@pytest.mark.spec("T-U3", "S1-U3")
@every_kind
def test_noise_repeats_with_its_seed_and_only_with_it(kind):
    first, again, other = walk(kind, 5), walk(kind, 5), walk(kind, 6)
    assert np.array_equal(first, again)
    correlation = np.corrcoef(first.ravel(), other.ravel())[0, 1]
    assert abs(correlation) < 4 / math.sqrt(first.size)


@pytest.mark.spec("T-U3", "S1-U3")
@every_kind
@pytest.mark.parametrize("cut", [0, 1])
def test_noise_is_independent_between_tensors_and_steps(kind, cut):
    rows = walk(kind, 5, cut=cut).reshape(6, -1)
    np.testing.assert_allclose(rows.std(axis=1), 1.0, rtol=0.03)
    correlation = np.corrcoef(rows)
    for a, b in itertools.combinations(range(6), 2):
        assert abs(correlation[a, b]) < 4.5 / math.sqrt(rows.shape[1]), (a, b)


@pytest.mark.spec("T-U3")
def test_noise_takes_nothing_from_the_global_generator():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    p = nn.Parameter(torch.ones(5))
    for generator in (None, seeded()):
        optimizer = AdaptiveUPGD([p], lr=0.1, sigma=0.1, generator=generator)
        p.grad = torch.ones(5)
        optimizer.step()
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.spec("T-U3", "S1-U3")
@every_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_large_draw_is_independent_throughout_and_ignores_the_number_of_threads(kind, dtype):
    # Large draws may be made in another way than small ones, from fewer numbers and on more cores.
    width, shapes = 2_048, [(200_000,), (2_048, 32), (3,)]
    try:
        torch.set_num_threads(2)
        (first,) = noise_of(kind, shapes, 1, seed=8, dtype=dtype)
        torch.set_num_threads(1)
        (again,) = noise_of(kind, shapes, 1, seed=8, dtype=dtype)
    finally:
        torch.set_num_threads(1)
    (grouped,) = noise_of(kind, shapes, 1, seed=8, dtype=dtype, cut=1)
    for other in (again, grouped):
        assert all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
    flat = np.concatenate([a.ravel() for a in first]).astype(np.float64)
    assert np.isfinite(flat).all()
    assert flat.std() == pytest.approx(1.0, abs=4 / math.sqrt(2 * flat.size))
    assert abs(flat.mean()) < 4 / math.sqrt(flat.size)
    assert np.mean(flat**4) == pytest.approx(3.0, abs=4 * math.sqrt(96 / flat.size))
    assert np.mean(np.abs(flat) > 3.0) == pytest.approx(0.0027, rel=0.2)
    rows = flat[: flat.size // width * width].reshape(-1, width)
    for values in (rows, rows**2):
        correlation = np.corrcoef(values)[np.triu_indices(len(rows), 1)]
        assert np.abs(correlation).max() < 6.5 / math.sqrt(width)
        assert np.sqrt(np.mean(correlation**2) * width) == pytest.approx(1.0, abs=0.04)


def relative_noise(kind, n, noise_scale, *, size=1.0, sigma=0.01):
    """Return rms(noise) / rms(direction) over enough tensors of n weights."""
    shapes = [(n,)] * max(1, 65_536 // n)
    grads = draws(11, shapes, scale=size)
    stepped = []
    for s in (0.0, sigma):
        params = parameters([np.zeros(shape) for shape in shapes])
        optimizer = KINDS[kind](
            params, lr=1.0, weight_decay=0.0, sigma=s, noise_scale=noise_scale, generator=seeded(2)
        )
        hand_over(params, grads)
        optimizer.step()
        stepped.append(np.concatenate([p.detach().numpy() for p in params]))
    plain, noisy = stepped
    return np.sqrt(np.mean((noisy - plain) ** 2) / np.mean(plain**2))


@pytest.mark.spec("T-U4", "X13")
@pytest.mark.parametrize("kind", ["adaptive", "upgdw"])
@pytest.mark.parametrize("n", [64, 65_536])
@pytest.mark.parametrize(
    ("noise_scale", "expected"), [("absolute", 0.01), ("rms_update", 0.01), ("rms_grad", 1e-5)]
)
def test_noise_against_the_update_does_not_grow_with_the_tensor(kind, n, noise_scale, expected):
    # The first direction of Adam is the sign of the gradient, so its root mean square is 1.
    found = relative_noise(kind, n, noise_scale, size=1e-3)
    assert found == pytest.approx(expected, rel=0.02)


@pytest.mark.spec("T-U4", "X13")
@pytest.mark.parametrize("n", [64, 65_536])
@pytest.mark.parametrize("size", [1e-4, 10.0])
def test_relative_noise_of_plain_descent_follows_the_gradient(n, size):
    for noise_scale in ("rms_update", "rms_grad"):
        found = relative_noise("upgd", n, noise_scale, size=size)
        assert found == pytest.approx(0.01, rel=0.02)


# ------------------------------------------------------------------------------------- step scale


@pytest.mark.spec("2.16", "2.19")
@every_kind
def test_a_step_scale_shrinks_the_step_and_not_the_decay(kind):
    own = {"lr": 0.05, "weight_decay": 0.1, "beta_utility": 0.9, "sigma": 0.05}
    start = draws(8)
    params = parameters(start)
    optimizer = KINDS[kind](params, **own, generator=seeded())
    expected = oracle.Upgd(start, [settings(kind, **own)] * len(start))
    unit = noise_of(kind, SHAPES, 20)
    for t in range(20):
        grads = draws(800 + t)
        scales = [0.5, 1.0, 0.25, 0.125 * (1 + t % 8)]
        optimizer.set_step_scale(params, [torch.tensor(s, dtype=torch.float64) for s in scales])
        hand_over(params, grads)
        optimizer.step()
        expected.step(grads, unit[t], scales)
        agree(params, expected.params, 1e-11)


@pytest.mark.spec("2.16")
def test_a_step_scale_of_zero_leaves_the_decay_alone():
    params = parameters(draws(9))
    start = [p.detach().clone() for p in params]
    optimizer = AdaptiveUPGD(params, lr=0.1, weight_decay=0.5, sigma=0.1, generator=seeded())
    optimizer.set_step_scale(params, torch.zeros(len(params), dtype=torch.float64))
    hand_over(params, draws(90))
    optimizer.step()
    agree(params, [0.95 * s.numpy() for s in start], 1e-15)


@pytest.mark.spec("2.16")
@every_kind
def test_a_step_scale_holds_until_it_is_cleared_and_only_where_it_was_set(kind):
    own = {"lr": 0.05, "weight_decay": 0.1, "beta_utility": 0.9, "sigma": 0.0}
    start = draws(8)
    params = parameters(start)
    optimizer = KINDS[kind](params, **own)
    expected = oracle.Upgd(start, [settings(kind, **own)] * len(start))
    optimizer.set_step_scale(params[1:3], torch.tensor([0.25, 0.5], dtype=torch.float64))
    for t in range(9):
        if t == 3:
            optimizer.set_step_scale(params[:1], [torch.tensor(0.125, dtype=torch.float64)])
        if t == 6:
            optimizer.clear_step_scale()
        scales = [1.0 if t < 3 else 0.125, 0.25, 0.5, 1.0] if t < 6 else [1.0] * 4
        grads = draws(850 + t)
        hand_over(params, grads)
        optimizer.step()
        expected.step(grads, scales=scales)
        agree(params, expected.params)


@pytest.mark.parametrize("scales", [torch.ones(3), [torch.ones(())] * 3, torch.ones(2, 2)])
def test_one_scale_for_each_parameter_is_demanded(scales):
    params = parameters(draws(9, [(2,), (2,)]))
    with pytest.raises(ArgumentError):
        UPGD(params, lr=0.1).set_step_scale(params, scales)


# -------------------------------------------------------------------------------- as an optimizer


def run(optimizer, params, first, last, **draw):
    for t in range(first, last):
        hand_over(params, draws(1000 + t, [tuple(p.shape) for p in params], **draw))
        optimizer.step()


def clone(params):
    return [nn.Parameter(p.detach().clone()) for p in params]


def equal_bits(left, right):
    assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@every_kind
@pytest.mark.parametrize("variant", ["fixed", "official"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("through_a_file", [False, True])
def test_a_state_saved_half_way_continues_bit_for_bit(kind, variant, dtype, through_a_file):
    def make(params, seed):
        return KINDS[kind](params, lr=0.02, sigma=0.05, variant=variant, generator=seeded(seed))

    whole = parameters(draws(10), dtype)
    optimizer = make(whole, 1)
    run(optimizer, whole, 0, 7)
    half = clone(whole)
    state = copy.deepcopy(optimizer.state_dict())
    if through_a_file:
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        state = torch.load(file, weights_only=True)
    resumed = make(half, 99)
    resumed.load_state_dict(state)
    for params, stepper in ((whole, optimizer), (half, resumed)):
        run(stepper, params, 7, 15)
    equal_bits(whole, half)


@every_kind
def test_a_saved_state_is_not_touched_by_later_steps(kind):
    params = parameters(draws(10))
    optimizer = KINDS[kind](params, lr=0.02, sigma=0.05, generator=seeded())
    run(optimizer, params, 0, 3)
    half, state = clone(params), copy.deepcopy(optimizer.state_dict())
    run(optimizer, params, 3, 6)
    expected = clone(params)
    for _ in range(2):
        restart = clone(half)
        again = KINDS[kind](restart, lr=0.02, sigma=0.05, generator=seeded(50))
        again.load_state_dict(state)
        run(again, restart, 3, 6)
        equal_bits(restart, expected)


@every_kind
def test_groups_have_their_own_settings(kind):
    base = {"beta_utility": 0.9, "sigma": 0.05}
    own = [{"lr": 0.05, "weight_decay": 0.1}, {"lr": 0.01, "weight_decay": 0.0}]
    start = draws(12)
    params = parameters(start)
    groups = [{"params": params[:2]} | own[0], {"params": params[2:]} | own[1]]
    optimizer = KINDS[kind](groups, lr=1.0, **base, generator=seeded())
    each = [settings(kind, **base, **own[i // 2]) for i in range(4)]
    expected = oracle.Upgd(start, each)
    unit = noise_of(kind, SHAPES, 20)  # how groups are cut makes no difference to it
    for t in range(20):
        grads = draws(1200 + t)
        hand_over(params, grads)
        optimizer.step()
        expected.step(grads, unit[t])
        agree(params, expected.params, 1e-11)


@every_kind
def test_a_group_added_later_begins_its_own_count(kind):
    own = {"lr": 0.05, "weight_decay": 0.0, "beta_utility": 0.9, "sigma": 0.0}
    start = draws(13)
    params = parameters(start)
    optimizer = KINDS[kind](params[:2], **own)
    expected = oracle.Upgd(start, [settings(kind, **own)] * 4)
    for t in range(20):
        grads = draws(1300 + t)
        if t < 6:
            grads[2:] = [None, None]
        if t == 6:
            optimizer.add_param_group({"params": params[2:]})
        hand_over(params, grads)
        optimizer.step()
        expected.step(grads)
        agree(params, expected.params)


@every_kind
def test_a_closure_is_called_with_gradients_on_and_its_loss_returned(kind):
    p = nn.Parameter(torch.tensor([3.0, -1.0], dtype=torch.float64))
    optimizer = KINDS[kind]([p], lr=0.1, sigma=0.0)

    def closure():
        optimizer.zero_grad()
        loss = (p**2).sum()
        loss.backward()
        return loss

    with torch.no_grad():
        assert optimizer.step(closure).item() == 10.0
    q = nn.Parameter(torch.tensor([3.0, -1.0], dtype=torch.float64))
    other = KINDS[kind]([q], lr=0.1, sigma=0.0)
    q.grad = 2.0 * q.detach()
    assert other.step() is None
    assert torch.equal(p, q)


@every_kind
def test_a_scheduler_changes_the_next_step(kind):
    own = {"weight_decay": 0.01, "beta_utility": 0.9, "sigma": 0.0}
    start = draws(14)
    params = parameters(start)
    optimizer = KINDS[kind](params, lr=0.1, **own)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)
    expected = oracle.Upgd(start, [settings(kind, lr=0.1, **own) for _ in start])
    for t in range(20):
        for setting in expected.settings:
            setting["lr"] = 0.1 * 0.5 ** (t // 3)
        grads = draws(1400 + t)
        hand_over(params, grads)
        optimizer.step()
        schedule.step()
        expected.step(grads)
        agree(params, expected.params)


@every_kind
def test_to_maximize_is_to_minimize_the_negative(kind):
    start = draws(15)
    up, down = parameters(start), parameters(start)
    options = {"lr": 0.05, "sigma": 0.05}
    rising = KINDS[kind](up, maximize=True, generator=seeded(), **options)
    falling = KINDS[kind](down, generator=seeded(), **options)
    for t in range(20):
        grads = draws(1500 + t)
        hand_over(up, [-g for g in grads])
        hand_over(down, grads)
        rising.step()
        falling.step()
    equal_bits(up, down)


@every_kind
def test_a_gradient_is_left_as_it_was(kind):
    params = parameters(draws(16))
    optimizer = KINDS[kind](params, lr=0.05, maximize=True, generator=seeded())
    grads = draws(160)
    hand_over(params, grads)
    optimizer.step()
    for p, g in zip(params, grads, strict=True):
        assert np.array_equal(p.grad.numpy(), g)


@every_kind
def test_without_a_gradient_nothing_moves(kind):
    params = parameters(draws(17))
    frozen = nn.Parameter(torch.ones(3, dtype=torch.float64), requires_grad=False)
    before = clone([*params, frozen])
    optimizer = KINDS[kind](
        [*params, frozen], lr=0.1, weight_decay=0.5, sigma=1.0, generator=seeded()
    )
    optimizer.step()
    equal_bits([*params, frozen], before)
    hand_over(params, [draws(170)[0], None, None, None])
    optimizer.step()
    equal_bits([*params[1:], frozen], before[1:])
    assert not torch.equal(params[0], before[0])


@every_kind
@pytest.mark.parametrize("noise", NOISES)
def test_bfloat16_weights_are_stepped_in_float32_and_rounded_once(kind, noise):
    start = [torch.tensor(a, dtype=torch.bfloat16) for a in draws(18)]
    small = [nn.Parameter(s.clone()) for s in start]
    large = [nn.Parameter(s.float()) for s in start]
    options = {"lr": 0.05, "weight_decay": 0.01, "sigma": 0.0, "noise_scale": noise}
    narrow, wide = KINDS[kind](small, **options), KINDS[kind](large, **options)
    for t in range(20):
        for s, wide_p, g in zip(small, large, draws(1800 + t), strict=True):
            s.grad = torch.tensor(g, dtype=torch.bfloat16)
            wide_p.data.copy_(s.detach())
            wide_p.grad = s.grad.float()
        narrow.step()
        wide.step()
        for s, wide_p in zip(small, large, strict=True):
            assert s.dtype == torch.bfloat16
            torch.testing.assert_close(s.detach().float(), wide_p.detach(), rtol=2**-8, atol=1e-6)
    for entry in narrow.state.values():
        floats = [v for v in entry.values() if torch.is_tensor(v) and v.is_floating_point()]
        assert floats
        assert {v.dtype for v in floats} == {torch.float32}


@every_kind
def test_loading_keeps_float32_state_for_bfloat16_weights(kind):
    params = parameters(draws(19), torch.bfloat16)
    optimizer = KINDS[kind](params, lr=0.05, sigma=0.0)
    run(optimizer, params, 0, 3)
    again = clone(params)
    other = KINDS[kind](again, lr=0.05, sigma=0.0)
    other.load_state_dict(optimizer.state_dict())
    for p, q in zip(params, again, strict=True):
        for key, value in optimizer.state[p].items():
            loaded = other.state[q][key]
            if torch.is_tensor(value):
                assert loaded.dtype == value.dtype, key
                assert torch.equal(loaded, value), key


@every_kind
def test_weights_of_two_precisions_share_one_gate(kind):
    own = {"lr": 0.05, "weight_decay": 0.01, "beta_utility": 0.9, "sigma": 0.0}
    start = [a.astype(np.float32) for a in draws(23)]
    types = [torch.float64, torch.float32, torch.float64, torch.float32]
    params = [nn.Parameter(torch.tensor(a, dtype=d)) for a, d in zip(start, types, strict=True)]
    optimizer = KINDS[kind](params, **own)
    expected = oracle.Upgd(start, [settings(kind, **own)] * 4)
    for t in range(10):
        grads = [g.astype(np.float32) for g in draws(2300 + t)]
        hand_over(params, grads)
        optimizer.step()
        expected.step(grads)
        agree(params, expected.params, 2e-5)


@every_kind
def test_how_a_tensor_lies_in_memory_makes_no_difference(kind):
    start = draws(24, [(4, 6), (2, 3, 4, 5)])
    plain = parameters(start)
    turned = [
        nn.Parameter(torch.tensor(start[0].T.copy()).t()),
        nn.Parameter(torch.tensor(start[1]).to(memory_format=torch.channels_last)),
    ]
    assert not any(p.is_contiguous() for p in turned)
    optimizers = [KINDS[kind](ps, lr=0.05, sigma=0.1, generator=seeded()) for ps in (plain, turned)]
    for t in range(6):
        grads = draws(2400 + t, [(4, 6), (2, 3, 4, 5)])
        for params, optimizer in zip((plain, turned), optimizers, strict=True):
            hand_over(params, grads)
            optimizer.step()
        agree(turned, [p.detach().numpy() for p in plain])


@every_kind
@every_norm
def test_an_empty_tensor_is_no_obstacle(kind, norm):
    start = [np.zeros((0, 3)), np.array([1.0, 2.0])]
    params = parameters(start)
    own = {"lr": 0.1, "weight_decay": 0.0, "sigma": 0.0}
    optimizer = KINDS[kind](params, **own, utility_norm=norm)
    expected = oracle.Upgd(start[1:], [settings(kind, **own)], utility_norm=norm)
    for t in range(3):
        grads = draws(2600 + t, [(0, 3), (2,)])
        hand_over(params, grads)
        optimizer.step()
        expected.step(grads[1:])
    agree(params[1:], expected.params)


@every_kind
def test_named_parameters_are_accepted(kind):
    model = nn.Linear(3, 2)
    optimizer = KINDS[kind](model.named_parameters(), lr=0.1, sigma=0.0)
    before = model.weight.detach().clone()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert not torch.equal(model.weight, before)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


@every_kind
def test_a_copy_of_an_optimizer_goes_its_own_way(kind):
    params = parameters(draws(25))
    optimizer = KINDS[kind](params, lr=0.05, sigma=0.1, generator=seeded())
    run(optimizer, params, 0, 3)
    twin = copy.deepcopy(optimizer)
    mine = [p for group in twin.param_groups for p in group["params"]]
    run(optimizer, params, 3, 6)
    run(twin, mine, 3, 6)
    equal_bits(params, mine)


def test_the_state_of_another_kind_is_refused():
    params = parameters(draws(27))
    adam = torch.optim.Adam(params, lr=0.1)
    hand_over(params, draws(270))
    adam.step()
    with pytest.raises(ArgumentError):
        AdaptiveUPGD(params, lr=0.1).load_state_dict(adam.state_dict())


@every_kind
def test_a_deviation_in_a_tensor_can_be_changed_between_steps(kind):
    shape, sigma = [(20_000,)], torch.tensor(0.1, dtype=torch.float64)
    params = parameters([np.zeros(20_000)])
    optimizer = KINDS[kind](params, lr=1.0, weight_decay=0.0, sigma=sigma, generator=seeded())
    found = []
    for value in (0.1, 0.4):
        sigma.fill_(value)
        params[0].data.zero_()
        hand_over(params, [np.zeros(shape[0])])
        optimizer.step()
        found.append(params[0].detach().std().item())
    assert found == pytest.approx([0.1, 0.4], rel=0.03)


@every_kind
def test_a_learning_rate_in_a_tensor_is_the_same_learning_rate(kind):
    start = draws(20)
    plain, tensor = parameters(start), parameters(start)
    rate = torch.tensor(0.05, dtype=torch.float64)
    by_number = KINDS[kind](plain, lr=0.05, sigma=0.01, generator=seeded())
    by_tensor = KINDS[kind](tensor, lr=rate, sigma=0.01, generator=seeded(), capturable=True)
    for t in range(10):
        if t == 5:
            rate.fill_(0.01)
            by_number.param_groups[0]["lr"] = 0.01
        grads = draws(2000 + t)
        hand_over(plain, grads)
        hand_over(tensor, grads)
        by_number.step()
        by_tensor.step()
        agree(tensor, [p.detach().numpy() for p in plain])


@every_kind
def test_defaults_are_the_written_ones(kind):
    group = KINDS[kind]([nn.Parameter(torch.zeros(1))], lr=0.1).param_groups[0]
    assert group["beta_utility"] == 0.999
    assert group["sigma"] == 0.001
    assert group["weight_decay"] == (0.01 if kind == "upgdw" else 0.001)
    assert group["lr_compensation"] == 2.0
    assert group["utility_norm"] == "centred"
    assert group["noise_scale"] == "absolute"
    if kind != "upgd":
        assert tuple(group["betas"]) == (0.9, 0.999)
        assert group["eps"] == 1e-8


# --------------------------------------------------------------------------------------- refusals


@every_kind
@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"lr": -0.1}, "out-of-range"),
        ({"lr": math.nan}, "out-of-range"),
        ({"weight_decay": -0.1}, "out-of-range"),
        ({"beta_utility": 1.0}, "out-of-range"),
        ({"beta_utility": -0.1}, "out-of-range"),
        ({"sigma": -1.0}, "out-of-range"),
        ({"sigma": math.inf}, "out-of-range"),
        ({"lr_compensation": 0.0}, "out-of-range"),
        ({"utility_norm": "max"}, "unknown-choice"),
        ({"noise_scale": "norm"}, "unknown-choice"),
        ({"variant": "paper"}, "unknown-choice"),
    ],
)
def test_a_setting_without_meaning_is_refused(kind, options, code):
    with pytest.raises(ArgumentError) as caught:
        KINDS[kind]([nn.Parameter(torch.zeros(2))], **({"lr": 0.1} | options))
    assert caught.value.code == code
    assert next(iter(options)) in caught.value.wrong


@pytest.mark.parametrize("kind", ["adaptive", "upgdw"])
@pytest.mark.parametrize("options", [{"betas": (1.0, 0.9)}, {"betas": (0.9, -0.1)}, {"eps": -1.0}])
def test_a_moment_setting_without_meaning_is_refused(kind, options):
    with pytest.raises(ArgumentError) as caught:
        KINDS[kind]([nn.Parameter(torch.zeros(2))], lr=0.1, **options)
    assert caught.value.code == "out-of-range"


@every_kind
def test_sparse_gradients_are_refused(kind):
    p = nn.Parameter(torch.zeros(3))
    optimizer = KINDS[kind]([p], lr=0.1)
    p.grad = torch.sparse_coo_tensor([[0]], [1.0], (3,), check_invariants=True)
    with pytest.raises(ArgumentError, match="sparse"):
        optimizer.step()
    assert torch.equal(p, torch.zeros(3))


def test_amsgrad_is_refused():
    with pytest.raises((ArgumentError, TypeError), match="amsgrad"):
        UPGDW([nn.Parameter(torch.zeros(2))], lr=0.1, amsgrad=True)


@pytest.mark.parametrize("foreach", [None, True, False])
def test_a_drop_in_takes_the_keywords_of_adamw_and_gives_the_same_numbers(foreach):
    import inspect

    wanted = set(inspect.signature(torch.optim.AdamW.__init__).parameters)
    assert wanted <= set(inspect.signature(UPGDW.__init__).parameters)
    params = [nn.Parameter(torch.tensor([1.0, -2.0])) for _ in range(2)]
    plain = UPGDW(params[:1], lr=0.1, sigma=0.01)
    same = UPGDW(params[1:], lr=0.1, sigma=0.01, foreach=foreach, fused=False, differentiable=False)
    for _ in range(3):
        for param, optimizer in zip(params, (plain, same), strict=True):
            param.grad = torch.tensor([0.3, 0.1])
            optimizer.step()
    assert torch.equal(params[0], params[1])
    assert not torch.equal(params[0], torch.tensor([1.0, -2.0]))


# -------------------------------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@every_kind
@every_norm
@pytest.mark.parametrize("variant", ["fixed", "official"])
@pytest.mark.parametrize("sigma", [0.0, 0.01])
def test_captured_steps_equal_eager_steps_bit_for_bit(kind, norm, variant, sigma):
    device = "cuda"
    shapes = [(64, 33), (33,), (7, 5, 3)]
    starts = [torch.tensor(a, dtype=torch.float32, device=device) for a in draws(21, shapes)]
    grads = [
        [torch.tensor(g, dtype=torch.float32, device=device) for g in draws(2100 + t, shapes)]
        for t in range(12)
    ]

    def make():
        params = [nn.Parameter(s.clone()) for s in starts]
        for p in params:
            p.grad = torch.zeros_like(p)
        generator = torch.Generator(device).manual_seed(4)
        rate = torch.tensor(0.01, device=device)
        return params, KINDS[kind](
            params,
            lr=rate,
            sigma=sigma,
            utility_norm=norm,
            variant=variant,
            generator=generator,
            capturable=True,
        )

    def feed(params, t):
        for p, g in zip(params, grads[t], strict=True):
            p.grad.copy_(g)

    eager, optimizer = make()
    for t in range(12):
        feed(eager, t)
        optimizer.step()
    captured, recorded = make()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for t in range(3):
            feed(captured, t)
            recorded.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    for generator in generators_of(recorded):
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        recorded.step()
    for t in range(3, 12):
        feed(captured, t)
        graph.replay()
    torch.cuda.synchronize()
    equal_bits(captured, eager)


def generators_of(optimizer):
    """Return the CUDA generators that a captured step draws from."""
    found = [v for v in vars(optimizer).values() if isinstance(v, torch.Generator)]
    return [generator for generator in found if generator.device.type == "cuda"]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@every_kind
@every_norm
def test_a_step_never_waits_for_the_device(kind, norm):
    params = [nn.Parameter(torch.randn(64, 32, device="cuda")) for _ in range(3)]
    generator = torch.Generator("cuda").manual_seed(1)
    optimizer = KINDS[kind](
        params,
        lr=torch.tensor(0.01, device="cuda"),
        sigma=0.01,
        utility_norm=norm,
        generator=generator,
        capturable=True,
    )
    for p in params:
        p.grad = torch.randn_like(p)
    optimizer.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()


@pytest.mark.gpu
@every_kind
@every_norm
def test_the_gpu_takes_the_step_of_the_oracle(kind, norm):
    own = {"lr": 0.05, "weight_decay": 0.01, "beta_utility": 0.9, "sigma": 0.0}
    start = draws(22)
    params = [nn.Parameter(torch.tensor(a, device="cuda")) for a in start]
    optimizer = KINDS[kind](params, **own, utility_norm=norm)
    expected = oracle.Upgd(start, [settings(kind, **own)] * 4, utility_norm=norm)
    for t in range(20):
        grads = draws(2200 + t)
        for p, g in zip(params, grads, strict=True):
            p.grad = torch.tensor(g, device="cuda")
        optimizer.step()
        expected.step(grads)
    for p, e in zip(params, expected.params, strict=True):
        np.testing.assert_allclose(p.detach().cpu().numpy(), e, rtol=1e-10, atol=1e-10)
