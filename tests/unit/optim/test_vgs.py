"""The variance gradient scaler: what it measures, what it does to a step, what it keeps."""

import copy
import io
import math

import numpy as np
import pytest
import torch
from torch import nn

from oracles import vgs as oracle
from stormsail.core.errors import ArgumentError, DataError
from stormsail.functional.optim.gradient_noise import scaling_factor
from stormsail.optim import UPGD, UPGDW, AdaptiveUPGD, VarianceGradientScaler

BETA = 0.99


def parameter(*shape, dtype=torch.float64):
    return nn.Parameter(torch.zeros(shape, dtype=dtype))


def scaler(params, **options):
    named = params.items() if isinstance(params, dict) else params
    return VarianceGradientScaler(named, **options)


def feed(vgs, params, grads):
    """Show the scaler one step of gradients, by name."""
    for name, p in params.items():
        g = grads.get(name)
        p.grad = None if g is None else torch.as_tensor(g, dtype=p.dtype).clone()
    vgs.update_statistics()


def watch(history, **options):
    """Return a scaler of one tensor `w` that has seen this history."""
    params = {"w": parameter(*np.shape(history[0]))}
    vgs = scaler(params, **options)
    for grad in history:
        feed(vgs, params, {"w": grad})
    return vgs


def number(value):
    return float(value)


def variance(vgs, name="w"):
    return number(vgs.variance()[name])


def ratio(vgs):
    return number(vgs.get_normalized_variance())


def noise(seed, *shape, scale=1.0):
    return scale * np.random.default_rng(seed).normal(size=shape)


# ------------------------------------------------------------------------------- what it measures


@pytest.mark.spec("T-V1", "S0-1", "1.6", "3.1")
def test_vgs_anticorrelated_gradients():
    found, ratios = [], []
    for seed in range(20):
        n = noise(seed, 400, scale=2.0)
        vgs = watch([[x, -x] for x in n])
        found.append(variance(vgs))
        ratios.append(ratio(vgs))
    assert 3.7 <= np.mean(found) <= 4.3
    assert np.mean(ratios) > 50.0


@pytest.mark.spec("T-V1", "S0-1", "3.1")
def test_the_variance_of_the_mean_does_not_see_anticorrelated_noise():
    n = noise(0, 400, scale=2.0)
    vgs = watch([[x, -x] for x in n], statistic="mean")
    assert variance(vgs) < 1e-6


@pytest.mark.spec("T-V2", "S1-1a", "1.6")
def test_vgs_variance_parameter_size_invariant():
    found = {n: variance(watch(list(noise(n, 300, n)))) for n in (100, 10_000)}
    assert found[100] == pytest.approx(1.0, abs=0.1)
    assert found[10_000] == pytest.approx(1.0, abs=0.02)
    assert found[100] == pytest.approx(found[10_000], rel=0.1)


@pytest.mark.spec("T-V2", "S1-1a", "3.1")
@pytest.mark.parametrize(("n", "expected"), [(100, 0.0104), (10_000, 1.07e-4)])
def test_the_variance_of_the_mean_shrinks_with_the_tensor(n, expected):
    found = [variance(watch(list(noise(50 + seed, 200, n)), statistic="mean")) for seed in range(3)]
    assert np.mean(found) == pytest.approx(expected, rel=0.25)


@pytest.mark.spec("T-V3", "S1-1b", "1.6", "3.1")
def test_vgs_variance_temporal_not_spatial():
    grad = noise(3, 2_000)
    vgs = watch([grad] * 150)
    assert variance(vgs) < 1e-8
    assert ratio(vgs) < 1e-8
    assert number(vgs.factors()["w"]) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.spec("T-V3", "S1-1b", "3.1")
def test_the_total_variance_calls_a_constant_gradient_noisy():
    grad = noise(3, 2_000)
    vgs = watch([grad] * 150, statistic="total")
    assert variance(vgs) == pytest.approx(np.var(grad), rel=0.02)


@pytest.mark.spec("T-V4", "S1-1c", "1.6")
@pytest.mark.parametrize("statistic", ["elementwise", "total", "mean"])
def test_vgs_stochastic_variance_computation(statistic):
    # A wave common to all elements: it does not tell the three statistics apart.
    history = [np.full(50, math.sin(0.3 * t)) for t in range(400)]
    assert variance(watch(history, statistic=statistic)) == pytest.approx(0.5, abs=0.1)


@pytest.mark.spec("T-V5", "S1-V1", "8")
@pytest.mark.parametrize(
    ("k", "fraction"), [(2, 0.49999), (5, 0.79996), (20, 0.94983), (100, 0.98917)]
)
def test_the_variance_is_right_from_the_second_gradient_on(k, fraction):
    n = 40_000 if k < 100 else 5_000
    found = variance(watch(list(noise(k, k, n))))
    assert found == pytest.approx(1.0, abs=0.03)
    left = 1.0 - math.fsum(w * w for w in oracle.weights(k, BETA))
    assert left == pytest.approx(fraction, abs=5e-5)


@pytest.mark.spec("T-V5", "S1-V1", "7")
def test_one_gradient_has_no_variance():
    vgs = watch([noise(1, 30)])
    assert variance(vgs) == 0.0
    assert ratio(vgs) == 0.0


@pytest.mark.spec("T-V5", "8")
def test_the_ratio_of_pure_noise_is_not_bounded_by_the_missing_correction():
    # Uncorrected it would end near 1 / W = 199, whatever the tensor.
    assert ratio(watch(list(noise(2, 1_000, 2_000)))) > 400.0


@pytest.mark.spec("2.16")
@pytest.mark.parametrize("statistic", ["elementwise", "mean", "norm", "total", "elementwise_full"])
@pytest.mark.parametrize("beta", [0.0, 0.9, 0.99])
def test_every_step_equals_the_sum_over_the_history(statistic, beta):
    rng = np.random.default_rng(5)
    history = [0.3 + rng.normal(size=(4, 3)) for _ in range(40)]
    params = {"w": parameter(4, 3)}
    vgs = scaler(params, statistic=statistic, beta=beta, warmup_steps=0, min_scaling_factor=0.01)
    for t, grad in enumerate(history):
        feed(vgs, params, {"w": grad})
        own, nsr = getattr(oracle, statistic)(history[: t + 1], beta)
        assert variance(vgs) == pytest.approx(own, rel=1e-9, abs=1e-14), t
        assert ratio(vgs) == pytest.approx(nsr, rel=1e-8, abs=1e-12), t
        expected = oracle.factor(nsr, least=0.01)
        assert number(vgs.factors()["w"]) == pytest.approx(expected, rel=1e-9), t


@pytest.mark.spec("2.16")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_large_tensor_is_measured_to_its_last_element(dtype):
    # Whatever is worked through in blocks has an end, and precision to lose on the way.
    rng = np.random.default_rng(24)
    n = 200_003
    params = {"w": parameter(n, dtype=dtype), "t": parameter(300, 211, dtype=dtype)}
    vgs = scaler(params)
    grads = []
    for _ in range(6):
        row = 3.0 + rng.normal(size=n)
        row[-3:] += 2_000.0 * rng.normal(size=3)  # as much noise as all the others together
        feed(vgs, params, {"w": row})
        sideways = torch.tensor(row[:63_300].reshape(211, 300), dtype=dtype).t()
        assert not sideways.is_contiguous()
        params["w"].grad, params["t"].grad = None, sideways
        vgs.update_statistics()
        grads.append(torch.tensor(row).to(dtype).double().numpy())
    w = np.array(oracle.weights(6, BETA))
    for name, history in (("w", np.array(grads)), ("t", np.array(grads)[:, :63_300])):
        spread = (w @ history**2 - (w @ history) ** 2).mean()
        expected = spread / (1.0 - (w**2).sum())
        assert variance(vgs, name) == pytest.approx(expected, rel=2e-5), name
    assert variance(vgs) > 10.0
    assert variance(vgs, "t") < 1.1


@pytest.mark.spec("2.16")
def test_total_variance_is_temporal_plus_spatial():
    # The law of total variance, over time and elements with the same weights.
    rng = np.random.default_rng(6)
    history = [rng.normal(size=12) + np.arange(12) for _ in range(300)]
    total = variance(watch(history, statistic="total"))
    temporal, _ = oracle.elementwise(history, BETA)
    w = oracle.weights(300, BETA)
    average = sum(x * g for x, g in zip(w, history, strict=True))
    assert total == pytest.approx(temporal + np.var(average), rel=0.02)


@pytest.mark.spec("T-V9", "S1-V5")
@pytest.mark.parametrize("statistic", ["elementwise", "mean", "norm", "total", "elementwise_full"])
@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_the_ratio_does_not_depend_on_the_unit_of_the_gradient(statistic, unit):
    history = [0.5 + g for g in noise(7, 200, 30)]
    plain = watch(history, statistic=statistic)
    scaled = watch([unit * g for g in history], statistic=statistic)
    assert ratio(plain) > 0.01
    assert ratio(scaled) == pytest.approx(ratio(plain), rel=1e-3)
    assert variance(scaled) == pytest.approx(unit**2 * variance(plain), rel=1e-3)


@pytest.mark.spec("T-V9")
def test_the_ratio_does_not_depend_on_the_unit_in_float32():
    history = [0.5 + g for g in noise(7, 200, 30)]
    found = []
    for unit in (1.0, 1e-6):
        params = {"w": parameter(30, dtype=torch.float32)}
        vgs = scaler(params)
        for grad in history:
            feed(vgs, params, {"w": unit * grad})
        found.append(ratio(vgs))
    assert found[1] == pytest.approx(found[0], rel=1e-3)


@pytest.mark.spec("7")
def test_zero_gradients_have_no_noise():
    vgs = watch([np.zeros(5)] * 10, warmup_steps=0)
    assert variance(vgs) == 0.0
    assert ratio(vgs) == 0.0
    assert number(vgs.factors()["w"]) == 1.0


# ------------------------------------------------------------------------------------- the factor


@pytest.mark.spec("2.16", "8")
@pytest.mark.parametrize(
    ("alpha", "least", "expected"),
    [(0.1, 0.1, 1 / 6), (0.1, 0.5, 0.5), (0.0, 0.5, 1.0), (0.02, 0.1, 0.5)],
)
def test_pure_noise_gets_the_factor_of_the_cap(alpha, least, expected):
    vgs = watch(list(noise(8, 300, 500)), alpha=alpha, min_scaling_factor=least, warmup_steps=0)
    assert number(vgs.factors()["w"]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.spec("2.16", "3.1")
def test_with_alpha_one_the_factor_is_the_optimal_shrinkage():
    # E|c g - G|^2 is least at 1 / (1 + NSR); here NSR = 4.
    rng = np.random.default_rng(9)
    signal = rng.normal(size=4_000)
    history = [signal + 2.0 * rng.normal(size=4_000) for _ in range(400)]
    vgs = watch(history, alpha=1.0, min_scaling_factor=0.01, warmup_steps=0)
    assert number(vgs.factors()["w"]) == pytest.approx(1 / 5, rel=0.05)


@pytest.mark.spec("T-V10", "S4-O3", "8")
def test_a_ratio_that_rounding_made_negative_is_none():
    ratios = torch.tensor([-0.5, -9.9, -1e9, 0.0, 10.0, 50.0, 1e9], dtype=torch.float64)
    found = scaling_factor(ratios, alpha=0.1, floor=0.1, cap=50.0)
    assert found.tolist() == pytest.approx([1.0, 1.0, 1.0, 1.0, 0.5, 1 / 6, 1 / 6], rel=1e-12)


@pytest.mark.spec("T-V8", "S1-V4")
def test_warm_up_counts_the_gradients_of_each_tensor():
    params = {"a": parameter(6), "b": parameter(6)}
    vgs = scaler(params, warmup_steps=10, min_scaling_factor=0.01, apply_to="grad")
    applied = {"a": [], "b": []}
    for t in range(30):
        draw = {name: noise(10 * t + k, 6) for k, name in enumerate(params)}
        if t % 2:
            draw["b"] = None
        feed(vgs, params, draw)
        vgs.scale_gradients()
        for name, grad in draw.items():
            if grad is not None:
                applied[name].append(number((params[name].grad / torch.as_tensor(grad))[0]))
    # gradient number k is scaled once the tensor has seen `warmup_steps` of them
    assert applied["a"][:9] == [1.0] * 9
    assert applied["b"][:9] == [1.0] * 9
    assert all(c < 1.0 for c in applied["a"][10:])
    assert all(c < 1.0 for c in applied["b"][10:])


@pytest.mark.spec("T-V8", "S1-V4", "design:VGS")
def test_the_getters_are_not_gated_by_warm_up():
    history = list(noise(12, 20, 50))
    vgs = watch(history, warmup_steps=1_000)
    own, nsr = oracle.elementwise(history, BETA)
    assert variance(vgs) == pytest.approx(own, rel=1e-9)
    assert ratio(vgs) == pytest.approx(nsr, rel=1e-9)
    assert number(vgs.get_scaling_factor()) == pytest.approx(oracle.factor(nsr), rel=1e-9)
    assert number(vgs.factors()["w"]) == 1.0


@pytest.mark.spec("T-V8", "S1-V4", "X2")
def test_a_tensor_with_every_second_gradient_has_its_own_average():
    rng = np.random.default_rng(13)
    params = {"a": parameter(5), "b": parameter(5)}
    vgs = scaler(params)
    seen = []
    for t in range(30):
        grad = 1.0 + 0.5 * rng.normal(size=5)
        feed(vgs, params, {"a": rng.normal(size=5), "b": None if t % 2 else grad})
        if t % 2 == 0:
            seen.append(grad)
    expected, _ = oracle.elementwise(seen, BETA)
    assert variance(vgs, "b") == pytest.approx(expected, rel=1e-9)


@pytest.mark.spec("2.16", "7")
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_is_skipped_and_counted(bad):
    rng = np.random.default_rng(14)
    params = {"a": parameter(5), "b": parameter(5)}
    vgs = scaler(params)
    seen = {"a": [], "b": []}
    for t in range(20):
        grads = {name: rng.normal(size=5) for name in params}
        if t in (0, 7, 8):
            grads["b"][2] = bad
        feed(vgs, params, grads)
        for name, grad in grads.items():
            if np.isfinite(grad).all():
                seen[name].append(grad)
    for name in params:
        expected, _ = oracle.elementwise(seen[name], BETA)
        assert variance(vgs, name) == pytest.approx(expected, rel=1e-9), name
    assert nonfinite(vgs) == {"a": 0, "b": 3}


def nonfinite(vgs):
    """Return how many gradients were skipped, by name."""
    return {name: int(count) for name, count in vgs.nonfinite().items()}


# -------------------------------------------------------------------------------- micro-batches


def accumulate(vgs, params, parts):
    """Add up the gradients of micro-batches of equal share, and close the step."""
    for p in params.values():
        p.grad = None
    for part in parts:
        for name, p in params.items():
            share = torch.tensor(part[name] / len(parts), dtype=p.dtype)
            p.grad = share if p.grad is None else p.grad + share
        vgs.observe_microbatch()
    vgs.update_statistics()


@pytest.mark.spec("2.16", "3.1")
@pytest.mark.parametrize("M", [2, 3, 8])
@pytest.mark.parametrize("beta", [0.0, 0.9])
def test_micro_batches_of_one_step_disagree_as_the_oracle_says(M, beta):
    rng = np.random.default_rng(20)
    params = {"w": parameter(4, 3)}
    vgs = scaler(params, statistic="microbatch", beta=beta)
    steps = []
    for _ in range(15):
        parts = [0.4 + rng.normal(size=(4, 3)) for _ in range(M)]
        accumulate(vgs, params, [{"w": part} for part in parts])
        steps.append(parts)
        own, nsr = oracle.microbatch(steps, beta)
        assert variance(vgs) == pytest.approx(own, rel=1e-9)
        assert ratio(vgs) == pytest.approx(nsr, rel=1e-8)


@pytest.mark.spec("3.1")
def test_micro_batches_measure_the_noise_of_the_step_and_ignore_drift():
    # Each part has variance 1, so the mean of four has a quarter; the drift is no noise at all.
    rng = np.random.default_rng(21)
    within, across = {"w": parameter(5_000)}, {"w": parameter(5_000)}
    inside, outside = scaler(within, statistic="microbatch"), scaler(across)
    for t in range(60):
        parts = [0.5 * t + rng.normal(size=5_000) for _ in range(4)]
        accumulate(inside, within, [{"w": part} for part in parts])
        feed(outside, across, {"w": sum(parts) / 4})
    assert variance(inside) == pytest.approx(0.25, rel=0.02)
    assert variance(outside) > 10.0


@pytest.mark.spec("3.1")
def test_without_drift_micro_batches_and_time_agree():
    rng = np.random.default_rng(22)
    within, across = {"w": parameter(5_000)}, {"w": parameter(5_000)}
    inside, outside = scaler(within, statistic="microbatch"), scaler(across)
    for _ in range(60):
        parts = [1.0 + rng.normal(size=5_000) for _ in range(4)]
        accumulate(inside, within, [{"w": part} for part in parts])
        feed(outside, across, {"w": sum(parts) / 4})
    assert variance(inside) == pytest.approx(variance(outside), rel=0.03)
    assert ratio(inside) == pytest.approx(0.25, rel=0.05)
    assert ratio(outside) == pytest.approx(0.25, rel=0.05)


# -------------------------------------------------------------------------- several tensors, scope


def planted(ratios, *, scope="per_tensor", **options):
    """Return a scaler whose tensors have very different noise, and the ratios it should see."""
    rng = np.random.default_rng(15)
    params = {name: parameter(200) for name in ratios}
    vgs = scaler(params, scope=scope, **options)
    history = {name: [] for name in ratios}
    for _ in range(150):
        grads = {n: 1.0 + math.sqrt(r) * rng.normal(size=200) for n, r in ratios.items()}
        for name, grad in grads.items():
            history[name].append(grad)
        feed(vgs, params, grads)
    return vgs, {name: oracle.elementwise(h, BETA)[1] for name, h in history.items()}, params


@pytest.mark.spec("2.16")
def test_the_global_ratio_is_the_ninetieth_percentile_over_tensors():
    vgs, ratios, _ = planted({"a": 0.1, "b": 0.5, "c": 2.0, "d": 8.0})
    expected = np.percentile(list(ratios.values()), 90.0)
    assert ratio(vgs) == pytest.approx(expected, rel=1e-6)


@pytest.mark.spec("2.16")
def test_each_tensor_gets_its_own_factor():
    vgs, ratios, _ = planted({"a": 0.1, "b": 2.0, "c": 8.0}, min_scaling_factor=0.1)
    for name, nsr in ratios.items():
        expected = oracle.factor(nsr, least=0.1)
        assert number(vgs.factors()[name]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.spec("2.16")
def test_the_global_scope_gives_one_factor_to_all():
    vgs, ratios, _ = planted({"a": 0.1, "b": 2.0, "c": 8.0}, scope="global", min_scaling_factor=0.1)
    expected = oracle.factor(np.percentile(list(ratios.values()), 90.0), least=0.1)
    found = [number(c) for c in vgs.factors().values()]
    assert found == pytest.approx([expected] * 3, rel=1e-6)
    assert number(vgs.get_scaling_factor()) == pytest.approx(expected, rel=1e-6)


@pytest.mark.spec("1.4")
def test_what_is_logged_has_the_names_and_the_values_of_the_statistics():
    vgs, ratios, params = planted({"a": 0.1, "b": 2.0, "c": 8.0}, min_scaling_factor=0.1)
    found = {name: number(value) for name, value in vgs.metrics().items()}
    each = np.array([variance(vgs, name) for name in params])
    factors = np.array([oracle.factor(r, least=0.1) for r in ratios.values()])
    expected = {
        "vgs/normalized_variance": np.percentile(list(ratios.values()), 90.0),
        "vgs/stochastic_var_p10": np.percentile(each, 10.0),
        "vgs/stochastic_var_p50": np.percentile(each, 50.0),
        "vgs/stochastic_var_p90": np.percentile(each, 90.0),
        "vgs/stochastic_var_mean": each.mean(),
        "vgs/scaling_factor": factors.mean(),
        "vgs/factor_mean": factors.mean(),
        "vgs/factor_median": np.median(factors),
        "vgs/factor_min": factors.min(),
        "vgs/floor_fraction": 0.0,
        "vgs/step_count": 150.0,
        "vgs/warmup_active": 0.0,
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-6), name
    rest = {"grad_norm_ema", "grad_max_ema", "noise_fraction", "effect_on_update"}
    assert set(found) == {*expected, *(f"vgs/{name}" for name in rest)}
    # three tensors of one size, signal 1 each
    assert found["vgs/noise_fraction"] == pytest.approx(10.1 / 13.1, rel=0.05)
    assert found["vgs/grad_norm_ema"] == pytest.approx(math.sqrt(200 * 13.1), rel=0.05)
    assert 5.0 < found["vgs/grad_max_ema"] < 15.0
    energy = np.array([1.1, 3.0, 9.0])
    kept = math.sqrt((factors**2 * energy).sum() / energy.sum())
    assert found["vgs/effect_on_update"] == pytest.approx(1.0 - kept, rel=0.05)


# ----------------------------------------------------------------------------- scaling the gradient


@pytest.mark.spec("2.16")
def test_scaling_multiplies_the_gradient_by_the_factor():
    vgs, _, params = planted({"a": 0.1, "b": 8.0}, apply_to="grad", min_scaling_factor=0.1)
    before = {name: p.grad.clone() for name, p in params.items()}
    vgs.scale_gradients()
    for name, p in params.items():
        torch.testing.assert_close(
            p.grad, before[name] * number(vgs.factors()[name]), rtol=1e-9, atol=0.0
        )


@pytest.mark.spec("2.16", "S1-V2")
def test_step_updates_from_the_raw_gradient_and_then_scales():
    rng = np.random.default_rng(16)
    params, twin = {"w": parameter(20)}, {"w": parameter(20)}
    both = scaler(params, apply_to="grad", warmup_steps=3)
    apart = scaler(twin, apply_to="grad", warmup_steps=3)
    for _ in range(15):
        grad = rng.normal(size=20)
        params["w"].grad = torch.tensor(grad)
        both.step()
        feed(apart, twin, {"w": grad})
        apart.scale_gradients()
        assert torch.equal(params["w"].grad, twin["w"].grad)
    assert variance(both) == variance(apart)


@pytest.mark.spec("2.16")
def test_a_disabled_scaler_changes_nothing():
    params = {"w": parameter(20)}
    vgs = scaler(params, apply_to="grad", warmup_steps=0, enabled=False)
    for t in range(5):
        grad = noise(t, 20)
        params["w"].grad = torch.tensor(grad)
        vgs.step()
        assert np.array_equal(params["w"].grad.numpy(), grad)


@pytest.mark.spec("T-V10", "S4-O3")
@pytest.mark.parametrize("statistic", ["elementwise", "total", "mean", "norm", "elementwise_full"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_factor_is_ever_above_one(statistic, dtype):
    # Constant gradients put rounding errors, of either sign, where the variance should be 0.
    rng = np.random.default_rng(17)
    for trial in range(8):
        params = {"w": parameter(37, dtype=dtype)}
        vgs = scaler(params, statistic=statistic, warmup_steps=0, apply_to="grad")
        grad = rng.normal(size=37) * 10.0 ** rng.integers(-6, 6)
        for _ in range(12):
            params["w"].grad = torch.tensor(grad, dtype=dtype)
            before = params["w"].grad.clone()
            vgs.step()
            assert 0.5 <= number(vgs.factors()["w"]) <= 1.0, trial
            assert (params["w"].grad.abs() <= before.abs()).all()


# ------------------------------------------------------------------------------- scaling the update


def problem(seed=18, *, n=40):
    """Return a target and the noise of a regression towards it."""
    rng = np.random.default_rng(seed)
    return torch.tensor(rng.normal(size=n)), rng


def regress(make, *, alpha, steps=60, apply_to="auto", **options):
    """Return the weights after noisy descent towards a target."""
    target, rng = problem()
    p = parameter(40)
    optimizer = make([p])
    vgs = VarianceGradientScaler(
        [("w", p)], optimizer=optimizer, alpha=alpha, warmup_steps=5, apply_to=apply_to, **options
    )
    for _ in range(steps):
        optimizer.zero_grad()
        p.grad = p.detach() - target + torch.tensor(rng.normal(size=40))
        vgs.step()
        optimizer.step()
    return p.detach().clone()


# Ours take a step scale whatever their direction is; the others are of Adam's type.
ADAM_LIKE = {
    "UPGD": lambda params: UPGD(params, lr=0.02, weight_decay=0.0, sigma=0.0),
    "AdaptiveUPGD": lambda params: AdaptiveUPGD(params, lr=0.02, weight_decay=0.0, sigma=0.0),
    "UPGDW": lambda params: UPGDW(params, lr=0.02, weight_decay=0.0, sigma=0.0),
    "Adam": lambda params: torch.optim.Adam(params, lr=0.02),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.02),
}
SGD_LIKE = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.02),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.02, momentum=0.9),
}


@pytest.mark.spec("T-V7", "S1-V3", "X2")
@pytest.mark.parametrize("name", [*ADAM_LIKE, *SGD_LIKE])
def test_the_scaler_has_an_effect_with_every_optimizer(name):
    make = (ADAM_LIKE | SGD_LIKE)[name]
    without, with_it = regress(make, alpha=0.0), regress(make, alpha=0.1)
    assert ((with_it - without).norm() / without.norm()).item() > 0.01


@pytest.mark.spec("design:VGS")
@pytest.mark.parametrize("name", [*ADAM_LIKE, *SGD_LIKE])
def test_with_alpha_zero_nothing_changes(name):
    make = (ADAM_LIKE | SGD_LIKE)[name]
    target, rng = problem()
    p = parameter(40)
    optimizer = make([p])
    for _ in range(60):
        p.grad = p.detach() - target + torch.tensor(rng.normal(size=40))
        optimizer.step()
    torch.testing.assert_close(regress(make, alpha=0.0), p.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.spec("3.1", "X2")
def test_a_constant_factor_on_the_gradient_means_nothing_to_adam():
    # Why the update is scaled: pure noise sits at the cap, so c never changes.
    history = list(noise(19, 80, 30))

    def path(alpha, apply_to):
        p = parameter(30)
        optimizer = torch.optim.Adam([p], lr=0.02, eps=0.0)
        vgs = VarianceGradientScaler(
            [("w", p)], optimizer=optimizer, alpha=alpha, warmup_steps=0, apply_to=apply_to
        )
        for t, grad in enumerate(history):
            p.grad = torch.tensor(grad)
            vgs.step()
            if t >= 5:  # by then the factor is at its floor
                optimizer.step()
        return p.detach()

    plain = path(0.0, "grad")
    on_gradient = (path(10.0, "grad") - plain).norm() / plain.norm()
    on_update = (path(10.0, "update") - plain).norm() / plain.norm()
    assert on_gradient < 1e-9
    assert on_update == pytest.approx(0.5, abs=1e-9)


@pytest.mark.spec("design:VGS")
@pytest.mark.parametrize("name", list(ADAM_LIKE))
def test_in_update_mode_the_gradient_is_left_alone(name):
    p = parameter(30)
    optimizer = ADAM_LIKE[name]([p])
    vgs = VarianceGradientScaler([("w", p)], optimizer=optimizer, warmup_steps=0)
    for t in range(5):
        grad = torch.tensor(noise(t, 30))
        p.grad = grad.clone()
        vgs.step()
        assert torch.equal(p.grad, grad)
        optimizer.step()


@pytest.mark.spec("design:VGS")
@pytest.mark.parametrize("name", list(SGD_LIKE))
def test_with_plain_descent_the_gradient_is_scaled(name):
    p = parameter(30)
    optimizer = SGD_LIKE[name]([p])
    vgs = VarianceGradientScaler([("w", p)], optimizer=optimizer, warmup_steps=0)
    for t in range(5):
        grad = torch.tensor(noise(t, 30))
        p.grad = grad.clone()
        vgs.step()
        c = number(vgs.factors()["w"])
        torch.testing.assert_close(p.grad, c * grad, rtol=1e-9, atol=0.0)
        assert vgs.apply_to == "grad"
        optimizer.step()
    assert c < 1.0


@pytest.mark.spec("design:VGS")
@pytest.mark.parametrize("peer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam])
def test_with_a_foreign_optimizer_the_step_is_shortened_towards_where_it_began(peer):
    starts = [np.random.default_rng(k).normal(size=12) for k in range(2)]
    ours = {f"p{k}": nn.Parameter(torch.tensor(s)) for k, s in enumerate(starts)}
    theirs = [nn.Parameter(torch.tensor(s)) for s in starts]
    optimizer, plain = peer(ours.values(), lr=0.05), peer(theirs, lr=0.05)
    vgs = VarianceGradientScaler(ours.items(), optimizer=optimizer, warmup_steps=3)
    for t in range(20):
        for k, (p, q) in enumerate(zip(ours.values(), theirs, strict=True)):
            p.grad = torch.tensor(noise(100 * k + t, 12))
            q.grad = p.grad.clone()
            q.data.copy_(p.detach())
        before = [p.detach().clone() for p in ours.values()]
        vgs.step()
        factors = [number(c) for c in vgs.factors().values()]
        optimizer.step()
        plain.step()
        for p0, p, q, c in zip(before, ours.values(), theirs, factors, strict=True):
            assert c == 1.0 if t + 1 < 3 else c < 1.0
            expected = p0 + c * (q.detach() - p0)
            torch.testing.assert_close(p.detach(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.spec("design:VGS")
def test_a_factor_is_used_for_one_step_only():
    # Without a new call, a step is the plain one: an old factor must not linger.
    for name, make in ADAM_LIKE.items():
        p, q = parameter(10), parameter(10)
        optimizer, plain = make([p]), make([q])
        vgs = VarianceGradientScaler([("w", p)], optimizer=optimizer, warmup_steps=0)
        for t in range(6):
            p.grad = torch.tensor(noise(t, 10))
            q.grad = p.grad.clone()
            q.data.copy_(p.detach())
            start = p.detach().clone()
            if t % 2 == 0:
                vgs.step()
            optimizer.step()
            plain.step()
            c = number(vgs.factors()["w"]) if t % 2 == 0 else 1.0
            expected = start + c * (q.detach() - start)
            torch.testing.assert_close(
                p.detach(), expected, rtol=1e-9, atol=1e-9, msg=f"{name} at {t}"
            )


@pytest.mark.parametrize("peer", [torch.optim.Adam, torch.optim.SGD])
def test_two_lines_in_a_plain_training_loop(peer):
    torch.manual_seed(0)
    model = nn.Linear(5, 1)
    x = torch.randn(256, 5)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5], [0.0], [3.0]])
    optimizer = peer(model.parameters(), lr=0.05)
    vgs = VarianceGradientScaler(model.named_parameters(), optimizer=optimizer, warmup_steps=10)
    for t in range(400):
        rows = torch.arange(32) + 32 * (t % 8)
        optimizer.zero_grad()
        (model(x[rows]) - y[rows]).square().mean().backward()
        vgs.step()
        optimizer.step()
    assert (model(x) - y).square().mean().item() < 0.02


def test_plain_parameters_are_named_by_position():
    params = [parameter(3), parameter(2)]
    vgs = VarianceGradientScaler(params)
    for t in range(4):
        for p in params:
            p.grad = torch.tensor(noise(t, *p.shape))
        vgs.update_statistics()
    assert len(vgs.variance()) == 2
    assert list(vgs.variance()) == list(vgs.factors()) == ["0", "1"]


# ------------------------------------------------------------------------------------------- state


def life(vgs, params, first, last):
    for t in range(first, last):
        grads = {name: noise(1000 * k + t, *p.shape) for k, (name, p) in enumerate(params.items())}
        feed(vgs, params, grads)


STATISTICS = ["elementwise", "total", "mean", "norm", "elementwise_full"]


@pytest.mark.spec("T-V8", "S1-V4")
@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize("through_a_file", [False, True])
def test_a_saved_scaler_continues_bit_for_bit(statistic, through_a_file):
    params = {"a": parameter(4, 3), "b": parameter(5)}
    whole = scaler(params, statistic=statistic)
    life(whole, params, 0, 12)
    state = copy.deepcopy(whole.state_dict())
    if through_a_file:
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        state = torch.load(file, weights_only=True)
    other = {"a": parameter(4, 3), "b": parameter(5)}
    resumed = scaler(other, statistic=statistic)
    resumed.load_state_dict(state)
    life(whole, params, 12, 20)
    life(resumed, other, 12, 20)
    for name in params:
        assert torch.equal(torch.as_tensor(whole.variance()[name]), resumed.variance()[name])
        assert torch.equal(torch.as_tensor(whole.factors()[name]), resumed.factors()[name])
    assert ratio(whole) == ratio(resumed)


@pytest.mark.spec("T-V8", "S1-V4")
def test_a_state_finds_its_tensors_by_name_in_any_order():
    params = {"a": parameter(6), "b": parameter(6), "c": parameter(6)}
    vgs = scaler(params)
    for t in range(20):
        grads = {"a": noise(t, 6), "b": noise(99 + t, 6, scale=3.0), "c": noise(500 + t, 6)}
        if t % 3:
            grads["c"] = None
        feed(vgs, params, grads)
    turned = {name: parameter(*params[name].shape) for name in ("c", "b", "a")}
    other = scaler(turned)
    other.load_state_dict(vgs.state_dict())
    for name in params:
        assert variance(other, name) == variance(vgs, name)
    grads = {"a": noise(77, 6), "b": noise(78, 6), "c": noise(79, 6)}
    feed(vgs, params, grads)
    feed(other, turned, grads)
    for name in params:
        assert variance(other, name) == variance(vgs, name)


@pytest.mark.spec("2.16", "M09")
def test_relinking_follows_the_new_tensors():
    # What a reloaded model needs: the scaler must not go on reading tensors nobody trains.
    old = {"w": parameter(8), "b": parameter(3)}
    vgs = scaler(old, apply_to="grad", warmup_steps=0)
    life(vgs, old, 0, 10)
    new = {name: parameter(*p.shape) for name, p in old.items()}
    vgs.relink(new.items())
    reference = scaler(old, apply_to="grad", warmup_steps=0)
    life(reference, old, 0, 10)
    life(reference, old, 10, 15)
    for p in old.values():
        p.grad = torch.full_like(p, 1e9)
    life(vgs, new, 10, 15)
    for name in new:
        assert variance(vgs, name) == variance(reference, name)
    before = {name: p.grad.clone() for name, p in new.items()}
    vgs.scale_gradients()
    for name, p in new.items():
        torch.testing.assert_close(p.grad, number(vgs.factors()[name]) * before[name])
        assert number(vgs.factors()[name]) < 1.0


@pytest.mark.spec("2.16")
def test_a_state_of_another_version_is_dropped_with_a_warning():
    params = {"w": parameter(8)}
    vgs = scaler(params, warmup_steps=0)
    life(vgs, params, 0, 10)
    state = copy.deepcopy(vgs.state_dict())
    state["version"] = "3.1"
    other = scaler({"w": parameter(8)}, warmup_steps=0)
    life(other, params, 0, 0)
    with pytest.warns(UserWarning, match="version"):
        other.load_state_dict(state)
    assert variance(other) == 0.0
    assert number(other.factors()["w"]) == 1.0


@pytest.mark.spec("2.16")
def test_a_used_scaler_is_reset_by_a_foreign_state():
    params = {"w": parameter(8)}
    vgs = scaler(params, warmup_steps=0)
    life(vgs, params, 0, 10)
    with pytest.warns(UserWarning, match="version"):
        vgs.load_state_dict({"version": "3.0", "step_count": 10})
    assert variance(vgs) == 0.0
    fresh_params = {"w": parameter(8)}
    fresh = scaler(fresh_params, warmup_steps=0)
    life(fresh, fresh_params, 20, 30)
    life(vgs, params, 20, 30)
    assert variance(vgs) == variance(fresh)


# ------------------------------------------------------------------------------ words and refusals


@pytest.mark.spec("S0-8")
@pytest.mark.parametrize("statistic", [*STATISTICS, "microbatch"])
def test_its_repr_names_the_statistic(statistic):
    assert statistic in repr(scaler({"w": parameter(2)}, statistic=statistic))


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"beta": 1.0}, "out-of-range"),
        ({"beta": -0.1}, "out-of-range"),
        ({"alpha": -0.1}, "out-of-range"),
        ({"alpha": math.nan}, "out-of-range"),
        ({"eps_rel": -1.0}, "out-of-range"),
        ({"warmup_steps": -1}, "out-of-range"),
        ({"min_scaling_factor": 0.0}, "out-of-range"),
        ({"min_scaling_factor": 1.5}, "out-of-range"),
        ({"variance_cap": -1.0}, "out-of-range"),
        ({"statistic": "variance"}, "unknown-choice"),
        ({"scope": "layer"}, "unknown-choice"),
        ({"apply_to": "weights"}, "unknown-choice"),
    ],
)
def test_a_setting_without_meaning_is_refused(options, code):
    with pytest.raises(ArgumentError) as caught:
        scaler({"w": parameter(2)}, **options)
    assert caught.value.code == code
    assert next(iter(options)) in caught.value.wrong


def test_keys_that_nobody_reads_are_refused():
    for key in ("accumulation_steps", "clip_threshold"):
        with pytest.raises(TypeError, match=key):
            scaler({"w": parameter(2)}, **{key: 4})


def test_two_tensors_of_one_name_are_refused():
    with pytest.raises(ArgumentError):
        VarianceGradientScaler([("w", parameter(2)), ("w", parameter(3))])


def test_one_tensor_under_two_names_is_refused():
    # It would be scaled twice, below the smallest factor that was asked for.
    p = parameter(4)
    with pytest.raises(ArgumentError):
        VarianceGradientScaler([("encoder", p), ("decoder", p)])


def test_to_scale_updates_an_optimizer_is_needed():
    with pytest.raises(ArgumentError, match="optimizer"):
        scaler({"w": parameter(2)}, apply_to="update")


@pytest.mark.parametrize("parts", [0, 1])
def test_fewer_than_two_micro_batches_are_refused(parts):
    params = {"w": parameter(3)}
    vgs = scaler(params, statistic="microbatch")
    params["w"].grad = torch.ones(3, dtype=torch.float64)
    for _ in range(parts):
        vgs.observe_microbatch()
    with pytest.raises(ArgumentError, match="at least 2"):
        vgs.update_statistics()


@pytest.mark.parametrize("others", [{"v": (8,)}, {"w": (8,), "v": (2,)}, {"w": (4,)}])
def test_the_state_of_another_network_is_refused_and_changes_nothing(others):
    params = {"w": parameter(8)}
    vgs = scaler(params)
    life(vgs, params, 0, 5)
    before = variance(vgs)
    stranger = {name: parameter(*shape) for name, shape in others.items()}
    other = scaler(stranger)
    life(other, stranger, 0, 5)
    with pytest.raises((ArgumentError, DataError)):
        vgs.load_state_dict(other.state_dict())
    with pytest.raises((ArgumentError, DataError)):
        vgs.relink(stranger.items())
    assert variance(vgs) == before
    life(vgs, params, 5, 6)
    history = [noise(t, 8) for t in range(6)]
    assert variance(vgs) == pytest.approx(oracle.elementwise(history, BETA)[0], rel=1e-9)


def test_the_state_of_another_statistic_is_dropped_with_a_warning():
    params = {"w": parameter(8)}
    vgs = scaler(params, statistic="mean")
    life(vgs, params, 0, 5)
    other = scaler(params)
    with pytest.warns(UserWarning, match="statistic"):
        other.load_state_dict(vgs.state_dict())
    assert variance(other) == 0.0


# --------------------------------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@pytest.mark.parametrize("statistic", STATISTICS)
def test_statistics_never_wait_for_the_device(statistic):
    params = {f"p{k}": nn.Parameter(torch.randn(64, 32, device="cuda")) for k in range(3)}
    vgs = scaler(params, statistic=statistic, apply_to="grad")
    for p in params.values():
        p.grad = torch.randn_like(p)
    vgs.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        vgs.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()


@pytest.mark.gpu
@pytest.mark.parametrize("apply_to", ["grad", "update"])
def test_a_captured_loop_equals_the_eager_one_bit_for_bit(apply_to):
    device = "cuda"
    shapes = [(40, 9), (9,)]

    def make():
        start = [torch.tensor(noise(k, *s), dtype=torch.float32) for k, s in enumerate(shapes)]
        params = [nn.Parameter(s.to(device)) for s in start]
        for p in params:
            p.grad = torch.zeros_like(p)
        optimizer = AdaptiveUPGD(
            params, lr=torch.tensor(0.01, device=device), sigma=0.0, capturable=True
        )
        named = [(f"p{k}", p) for k, p in enumerate(params)]
        vgs = VarianceGradientScaler(named, optimizer=optimizer, warmup_steps=5, apply_to=apply_to)
        return params, optimizer, vgs

    grads = [
        [
            torch.tensor(noise(10 * t + k, *s), dtype=torch.float32, device=device)
            for k, s in enumerate(shapes)
        ]
        for t in range(15)
    ]

    def fill(params, t):
        for p, g in zip(params, grads[t], strict=True):
            p.grad.copy_(g)

    eager, optimizer, vgs = make()
    for t in range(15):
        fill(eager, t)
        vgs.step()
        optimizer.step()
    captured, optimizer, vgs = make()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for t in range(3):
            fill(captured, t)
            vgs.step()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        vgs.step()
        optimizer.step()
    for t in range(3, 15):
        fill(captured, t)
        graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(captured, eager, strict=True))
