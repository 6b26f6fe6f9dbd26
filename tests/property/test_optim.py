"""Laws of the utility gate and of the gradient-noise statistic, for any numbers."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from oracles import upgd as gate_oracle
from oracles import vgs as noise_oracle
from stormsail.optim import UPGD, UPGDW, AdaptiveUPGD, VarianceGradientScaler

KINDS = {"upgd": UPGD, "adaptive": AdaptiveUPGD, "upgdw": UPGDW}
NORMS = ["centred", "minmax", "global_max", "abs_max"]
kinds = st.sampled_from(sorted(KINDS))
norms = st.sampled_from(NORMS)
some = settings(max_examples=40)

# Away from 0, so that no utility is lost in rounding.
numbers = st.floats(0.01, 10.0).flatmap(lambda x: st.sampled_from([x, -x]))


def rows(n):
    return hnp.arrays(np.float64, n, elements=numbers)


pairs = st.integers(2, 10).flatmap(lambda n: st.tuples(rows(n), rows(n)))


def step(kind, arrays, grads, *, steps=1, **options):
    """Return the weights after some steps with the same gradients."""
    options = {"lr": 0.1, "weight_decay": 0.0, "sigma": 0.0} | options
    params = [nn.Parameter(torch.tensor(a)) for a in arrays]
    optimizer = KINDS[kind](params, **options)
    for _ in range(steps):
        for p, g in zip(params, grads, strict=True):
            p.grad = torch.tensor(g)
        optimizer.step()
    return [p.detach().numpy() for p in params]


def opened(p, g, **options):
    """Return 1 - s of every weight at the first step."""
    (after,) = step("upgd", [p], [g], lr_compensation=1.0, **options)
    return (p - after) / (0.1 * g)


def spread_out(p, g):
    """Say whether the utilities lie clearly apart from being equal."""
    u = -g * p
    return np.ptp(u) > 1e-6 * np.abs(u).max()


@pytest.mark.spec("2.19")
@some
@given(pair=pairs, norm=norms, kind=kinds, decay=st.sampled_from([0.0, 0.1]))
def test_three_steps_equal_the_oracle(pair, norm, kind, decay):
    p, g = pair
    assume(spread_out(p, g))
    own = {"lr": 0.1, "weight_decay": decay, "sigma": 0.0, "beta_utility": 0.9}
    oracle_own = own if kind == "upgd" else own | {"betas": (0.9, 0.999), "eps": 1e-8}
    expected = gate_oracle.Upgd([p], [oracle_own], utility_norm=norm)
    for _ in range(3):
        expected.step([g])
    (found,) = step(kind, [p], [g], steps=3, utility_norm=norm, **own)
    np.testing.assert_allclose(found, expected.params[0], rtol=1e-8, atol=1e-8)


@pytest.mark.spec("T-U1", "S1-U1")
@some
@given(pair=pairs, norm=norms)
def test_the_more_useful_of_two_weights_moves_less(pair, norm):
    p, g = pair
    assume(spread_out(p, g))
    share, u = opened(p, g, utility_norm=norm), -g * p
    order = np.argsort(u)
    assert (np.diff(share[order]) <= 1e-9).all()
    # strictly so between the extremes
    assert share[order[0]] > share[order[-1]]


@pytest.mark.spec("2.19", "8")
@some
@given(pair=pairs, norm=norms)
def test_every_weight_moves_and_none_moves_more_than_the_mode_allows(pair, norm):
    p, g = pair
    share = opened(p, g, utility_norm=norm)
    low, high = 1.0 - gate_oracle.sigmoid(1.0), gate_oracle.sigmoid(1.0)
    if norm == "global_max":
        high = 1.0
    assert (share >= low - 1e-9).all()
    assert (share <= high + 1e-9).all()


@pytest.mark.spec("2.19")
@some
@given(pair=pairs, norm=norms, kind=kinds, data=st.data())
def test_how_weights_are_cut_into_tensors_makes_no_difference(pair, norm, kind, data):
    p, g = pair
    cut = data.draw(st.integers(1, len(p) - 1))
    (whole,) = step(kind, [p], [g], steps=3, utility_norm=norm)
    parts = step(kind, [p[:cut], p[cut:]], [g[:cut], g[cut:]], steps=3, utility_norm=norm)
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-9, atol=1e-9)


@pytest.mark.spec("2.19")
@some
@given(pair=pairs, norm=norms, kind=kinds, data=st.data())
def test_the_order_of_weights_makes_no_difference(pair, norm, kind, data):
    p, g = pair
    order = np.array(data.draw(st.permutations(range(len(p)))))
    (plain,) = step(kind, [p], [g], steps=3, utility_norm=norm)
    (turned,) = step(kind, [p[order]], [g[order]], steps=3, utility_norm=norm)
    np.testing.assert_allclose(turned, plain[order], rtol=1e-9, atol=1e-9)


@pytest.mark.spec("2.19")
@some
@given(pair=pairs, norm=norms, power=st.integers(-20, 20))
def test_the_gate_does_not_know_the_unit_of_the_loss(pair, norm, power):
    p, g = pair
    unit = 2.0**power
    plain = opened(p, g, utility_norm=norm)
    np.testing.assert_allclose(opened(p, unit * g, utility_norm=norm), plain, rtol=1e-6, atol=1e-9)


@pytest.mark.spec("T-U2", "S1-U2")
@some
@given(p=rows(6), c=numbers, norm=norms, kind=kinds)
def test_equal_utilities_take_the_plain_first_step(p, c, norm, kind):
    g = c / p
    (found,) = step(kind, [p], [g], utility_norm=norm)
    plain = {"upgd": torch.optim.SGD, "adaptive": torch.optim.Adam, "upgdw": torch.optim.AdamW}
    options = {} if kind == "upgd" else {"eps": 1e-8}
    q = nn.Parameter(torch.tensor(p))
    q.grad = torch.tensor(g)
    plain[kind]([q], lr=0.1, weight_decay=0.0, **options).step()
    np.testing.assert_allclose(found, q.detach().numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.spec("2.16")
@some
@given(pair=pairs, kind=kinds, scale=st.floats(0.0, 1.0), decay=st.sampled_from([0.0, 0.1]))
def test_a_step_scale_shortens_the_step_in_proportion(pair, kind, scale, decay):
    p, g = pair
    (full,) = step(kind, [p], [g], weight_decay=decay)
    param = nn.Parameter(torch.tensor(p))
    optimizer = KINDS[kind]([param], lr=0.1, weight_decay=decay, sigma=0.0)
    optimizer.set_step_scale([param], [torch.tensor(scale, dtype=torch.float64)])
    param.grad = torch.tensor(g)
    optimizer.step()
    rest = p * (1.0 - 0.1 * decay)
    expected = rest + scale * (full - rest)
    np.testing.assert_allclose(param.detach().numpy(), expected, rtol=1e-9, atol=1e-9)


# -------------------------------------------------------------------------------- gradient noise

histories = st.tuples(st.integers(1, 12), st.integers(1, 6)).flatmap(
    lambda shape: hnp.arrays(np.float64, shape, elements=numbers)
)
STATISTICS = ["elementwise", "total", "mean", "norm", "elementwise_full"]


def watch(histories_by_name, **options):
    """Return a scaler that has seen one row of each history per step."""
    params = {
        name: nn.Parameter(torch.zeros(rows.shape[1], dtype=torch.float64))
        for name, rows in histories_by_name.items()
    }
    vgs = VarianceGradientScaler(params.items(), **({"warmup_steps": 0} | options))
    for t in range(len(next(iter(histories_by_name.values())))):
        for name, p in params.items():
            p.grad = torch.tensor(histories_by_name[name][t])
        vgs.update_statistics()
    return vgs


@pytest.mark.spec("2.16")
@some
@given(
    history=histories,
    statistic=st.sampled_from(["elementwise", "mean", "norm"]),
    beta=st.sampled_from([0.5, 0.9, 0.99]),
)
def test_the_statistic_equals_the_sum_over_the_history(history, statistic, beta):
    variance, ratio = getattr(noise_oracle, statistic)(list(history), beta)
    vgs = watch({"w": history}, statistic=statistic, beta=beta)
    size = float(np.square(history).sum(axis=1).max())
    assert float(vgs.variance()["w"]) == pytest.approx(variance, rel=1e-7, abs=1e-12 * size)
    assume(variance == 0.0 or variance > 1e-9 * size)
    assert float(vgs.get_normalized_variance()) == pytest.approx(ratio, rel=1e-5, abs=1e-9)


@pytest.mark.spec("2.16", "T-V10", "S4-O3")
@some
@given(
    history=histories,
    statistic=st.sampled_from(STATISTICS),
    alpha=st.floats(0.0, 100.0),
    least=st.floats(0.01, 1.0),
    scope=st.sampled_from(["per_tensor", "global"]),
)
def test_a_factor_lies_between_its_floor_and_one(history, statistic, alpha, least, scope):
    vgs = watch(
        {"w": history}, statistic=statistic, alpha=alpha, min_scaling_factor=least, scope=scope
    )
    assert least - 1e-12 <= float(vgs.factors()["w"]) <= 1.0
    assert float(vgs.variance()["w"]) >= 0.0
    assert float(vgs.get_normalized_variance()) >= 0.0


@pytest.mark.spec("T-V2", "S1-1a")
@some
@given(history=histories, copies=st.integers(2, 4))
def test_a_tensor_repeated_has_the_noise_of_one(history, copies):
    one = watch({"w": history})
    many = watch({"w": np.tile(history, (1, copies))})
    for read in (lambda v: float(v.variance()["w"]), lambda v: float(v.get_normalized_variance())):
        assert read(many) == pytest.approx(read(one), rel=1e-5, abs=1e-9)


@pytest.mark.spec("T-V9", "S1-V5")
@some
@given(history=histories, statistic=st.sampled_from(STATISTICS), power=st.integers(-30, 30))
def test_the_ratio_does_not_know_the_unit_of_the_gradient(history, statistic, power):
    # A power of two changes no digit, so the two ratios are equal and not merely close.
    plain = watch({"w": history}, statistic=statistic)
    scaled = watch({"w": 2.0**power * history}, statistic=statistic)
    assert float(scaled.get_normalized_variance()) == pytest.approx(
        float(plain.get_normalized_variance()), rel=1e-9
    )
    assert float(scaled.factors()["w"]) == pytest.approx(float(plain.factors()["w"]), rel=1e-9)


@pytest.mark.spec("T-V3", "S1-1b")
@some
@given(row=rows(5), k=st.integers(2, 20))
def test_a_constant_gradient_is_all_signal(row, k):
    vgs = watch({"w": np.tile(row, (k, 1))})
    size = float(np.square(row).mean())
    assert float(vgs.variance()["w"]) <= 1e-12 * size
    assert float(vgs.get_normalized_variance()) <= 1e-10
    assert float(vgs.factors()["w"]) == pytest.approx(1.0, abs=1e-10)


@pytest.mark.spec("T-V8", "S1-V4")
@some
@given(a=hnp.arrays(np.float64, (6, 3), elements=numbers), b=rows(6), turn=st.booleans())
def test_a_tensor_does_not_see_its_neighbours(a, b, turn):
    alone = watch({"a": a})
    both = {"a": a, "b": b.reshape(6, 1)}
    together = watch(dict(reversed(both.items())) if turn else both)
    assert float(together.variance()["a"]) == pytest.approx(float(alone.variance()["a"]), rel=1e-12)
    assert float(together.factors()["a"]) == pytest.approx(float(alone.factors()["a"]), rel=1e-12)
