"""The scaler's own parts: formulas by hand, micro-batches, precision, foreign steps, metrics."""

import math

import pytest
import torch
from torch import nn

from stormsail.core.errors import ArgumentError, ArtifactError, ShapeError, StormsailError
from stormsail.functional.optim import gradient_noise as formula
from stormsail.optim import AdaptiveUPGD, tensor_lists
from stormsail.optim.vgs.scaler import VarianceGradientScaler


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


def parameter(*shape, dtype=torch.float64):
    return nn.Parameter(torch.zeros(shape, dtype=dtype))


def draws(seed, *shape, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def feed(scaler, parameters, *grads):
    for one, grad in zip(parameters, grads, strict=True):
        one.grad = grad
    scaler.update_statistics()


# ---------------------------------------------------------------------------------------- formulas


@pytest.mark.spec("S1-V1")
def test_the_share_of_the_variance_that_is_visible_matches_the_golden_numbers():
    found = 1 - formula.weight_concentration(double(1, 2, 5, 20, 100), beta=0.99)
    wanted = double(0, 0.49999, 0.79996, 0.94983, 0.98917)
    torch.testing.assert_close(found, wanted, rtol=0, atol=6e-6)
    limit = formula.weight_concentration(double(1e5), beta=0.99)
    torch.testing.assert_close(limit, double(0.0050251), rtol=0, atol=5e-8)


def test_the_concentration_is_the_sum_of_squared_weights():
    # beta = 1/2, k = 3: weights 1/7, 2/7, 4/7, squares add up to 21/49.
    found = formula.weight_concentration(double(0, 1, 3), beta=0.5)
    torch.testing.assert_close(found, double(1, 1, 21 / 49))
    torch.testing.assert_close(formula.gain(double(1, 3), beta=0.5), double(1, 4 / 7))


def test_the_spread_is_the_difference_of_the_moving_averages():
    # beta = 1/2, values 2, 4, 10: weights 1/7, 2/7, 4/7; mean 50/7, second moment 436/7,
    # spread 436/7 - 2500/49 = 552/49.
    mean, spread = double(0), double(0)
    for k, value in enumerate([2.0, 4.0, 10.0], start=1):
        gain = formula.gain(double(k), beta=0.5)
        spread = formula.moving_spread(spread, (value - mean).square(), gain)
        mean = mean + gain * (value - mean)
    torch.testing.assert_close(mean, double(50 / 7))
    torch.testing.assert_close(spread, double(552 / 49))


def test_noise_and_signal_by_hand():
    # Spread 3 with W = 1/4: variance 4; mean square 5 less 1: signal 4; ratio 4 / (4 + 8/10).
    variance = formula.noise_variance(double(3, 3, -1), double(0.25, 1.0, 0.25))
    torch.testing.assert_close(variance, double(4, 0, 0))
    signal = formula.signal_square(double(5, 0.5), double(4, 4), double(0.25, 0.25))
    torch.testing.assert_close(signal, double(4, 0))
    ratio = formula.noise_to_signal(double(4, 0), double(4, 0), double(8, 0), eps_rel=0.1)
    torch.testing.assert_close(ratio, double(4 / 4.8, 0))
    share = formula.noise_fraction(double(3, 0), double(1, 0))
    torch.testing.assert_close(share, double(0.75, 0))


def test_the_factor_is_the_wiener_shrinkage_between_its_bounds():
    ratio = double(-1, 0, 1, 3, 1e9, math.inf)
    found = formula.scaling_factor(ratio, alpha=1.0, floor=0.1, cap=4.0)
    torch.testing.assert_close(found, double(1, 1, 0.5, 0.25, 0.2, 0.2))
    found = formula.scaling_factor(ratio, alpha=1.0, floor=0.3, cap=4.0)
    torch.testing.assert_close(found, double(1, 1, 0.5, 0.3, 0.3, 0.3))


def test_the_variance_of_a_sum_of_parts_by_hand():
    # Parts 1, 2, 6: mean 3, squared distances 4 + 1 + 9 = 14, variance of one 7, of the sum 21.
    found = formula.accumulated_variance(double(14, 14), double(3, 1))
    torch.testing.assert_close(found, double(21, 0))


@pytest.mark.refusal
@pytest.mark.parametrize("beta", [1.0, -0.1, math.nan])
def test_a_decay_without_meaning_is_refused(beta):
    with pytest.raises(StormsailError) as caught:
        formula.gain(double(1), beta=beta)
    assert str(caught.value) == (
        f"`beta` must lie in [0, 1); found {beta!r}. "
        "Pass the decay of a moving average, for example 0.99. [out-of-range]"
    )


# ------------------------------------------------------------------------------------- statistics


@pytest.mark.spec("T-V3")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gradient_that_never_changes_has_no_noise_at_all_in_any_precision(dtype):
    w = parameter(500, dtype=dtype)
    scaler = VarianceGradientScaler([w], warmup_steps=0)
    grad = draws(1, 500, dtype=dtype)
    for _ in range(1500):  # long enough for a moving average in float32 to stall
        feed(scaler, [w], grad.clone())
    assert scaler.variance()["0"].item() == 0.0
    assert scaler.factors()["0"].item() == 1.0
    total = VarianceGradientScaler([w], statistic="total")
    for _ in range(5):
        feed(total, [w], grad.clone())
    spatial = grad.double().var(correction=0).item()
    assert total.variance()["0"].item() == pytest.approx(spatial, rel=1e-5)


def test_total_is_elementwise_plus_the_spread_of_the_mean():
    # Law of total variance, in expectation: many steps, all of the same weight but for the decay.
    w = parameter(50)
    scalers = {
        name: VarianceGradientScaler([w], statistic=name, beta=0.999)
        for name in ("elementwise", "total")
    }
    signal = draws(2, 50)
    for t in range(3000):
        for scaler in scalers.values():
            feed(scaler, [w], signal + 0.5 * draws(100 + t, 50))
    found = {name: scaler.variance()["0"].item() for name, scaler in scalers.items()}
    spatial = signal.var(correction=0).item()
    assert found["elementwise"] == pytest.approx(0.25, rel=0.02)
    assert found["total"] == pytest.approx(0.25 + spatial, rel=0.02)


def test_microbatches_measure_the_noise_of_their_sum():
    # Parts with noise of variance 4 / M^2 each: the sum of M has variance 4 / M, signal 1.
    w, parts = parameter(2000), 4
    scaler = VarianceGradientScaler([w], statistic="microbatch", beta=0.9)
    for t in range(60):
        w.grad = torch.zeros_like(w)
        for m in range(parts):
            w.grad += (1.0 + 2.0 * draws(parts * t + m, 2000)) / parts
            scaler.observe_microbatch()
        scaler.update_statistics()
    assert scaler.variance()["0"].item() == pytest.approx(1.0, rel=0.03)
    assert scaler.get_normalized_variance().item() == pytest.approx(1.0, rel=0.05)


def test_two_microbatches_by_hand():
    # Parts (1, 0) and (3, 2): variance of one part 2 in each element, of the sum 4; the sum is
    # (4, 2), second moment 10, signal 6.
    w = parameter(2)
    scaler = VarianceGradientScaler([w], statistic="microbatch", eps_rel=1e-9)
    for total in (double(1, 0), double(4, 2)):
        w.grad = total
        scaler.observe_microbatch()
    scaler.update_statistics()
    assert scaler.variance()["0"].item() == pytest.approx(4.0)
    assert scaler.get_normalized_variance().item() == pytest.approx(4 / 6)


@pytest.mark.refusal
@pytest.mark.parametrize("parts", [0, 1])
def test_microbatches_need_two_parts(parts):
    w = parameter(2)
    scaler = VarianceGradientScaler([w], statistic="microbatch")
    w.grad = double(1, 2)
    for _ in range(parts):
        scaler.observe_microbatch()
    with pytest.raises(ArgumentError) as caught:
        scaler.update_statistics()
    assert str(caught.value) == (
        "the statistic `microbatch` must see at least 2 micro-batches in each step; "
        f"found {parts}. Call `observe_microbatch()` after each backward, or choose "
        "`elementwise`. [missing-argument]"
    )


def test_the_full_statistic_takes_the_percentile_of_the_elements():
    # 10 elements, one of which is pure noise: the 9th smallest ratio belongs to the quiet ones.
    w = parameter(10)
    full = VarianceGradientScaler([w], statistic="elementwise_full")
    plain = VarianceGradientScaler([w])
    for t in range(50):
        grad = 1.0 + 0.1 * draws(t, 10)
        grad[3] = 5.0 * draws(1000 + t, 1)[0]
        for scaler in (full, plain):
            feed(scaler, [w], grad)
    assert full.variance()["0"].item() == pytest.approx(plain.variance()["0"].item(), rel=1e-12)
    assert full.get_normalized_variance().item() < 0.03
    assert plain.get_normalized_variance().item() > 1.0


# -------------------------------------------------------------------------------------- precision


def test_half_precision_gradients_are_measured_in_float32():
    half, full = parameter(4000, dtype=torch.bfloat16), parameter(4000, dtype=torch.float32)
    scalers = VarianceGradientScaler([half]), VarianceGradientScaler([full])
    for t in range(200):
        grad = (1.0 + 0.05 * draws(t, 4000)).bfloat16()
        feed(scalers[0], [half], grad)
        feed(scalers[1], [full], grad.float())
    assert scalers[0].state_dict()["parameters"]["0"]["mean"].dtype == torch.float32
    assert scalers[0].variance()["0"].item() == scalers[1].variance()["0"].item()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_moving_lists_keeps_the_bits_of_weight_zero(dtype):
    targets = [draws(1, 5).to(dtype), draws(2, 3).to(dtype)]
    sources = [torch.full((5,), math.nan, dtype=dtype), torch.ones(3, dtype=dtype)]
    wanted = [targets[0].clone(), (targets[1].double() * 0.75 + 0.25).to(dtype)]
    where = tensor_lists.layout([True, True], [5, 3], device=torch.device("cpu"))
    tensor_lists.move_(targets, sources, double(0, 0.25), where)
    assert torch.equal(targets[0], wanted[0])
    torch.testing.assert_close(targets[1], wanted[1])


def test_a_foreign_step_of_half_precision_parameters_is_shortened_too():
    w = nn.Parameter(torch.ones(64, dtype=torch.bfloat16))
    optimizer = torch.optim.Adam([w], lr=0.5)
    scaler = VarianceGradientScaler([w], optimizer=optimizer, alpha=10.0, warmup_steps=0)
    for t in range(2):
        w.grad = draws(t, 64).sign().bfloat16()
        start = w.detach().clone()
        scaler.step()
        optimizer.step()
    assert scaler.factors()["0"].item() == 0.5
    still = w.grad != 0
    moved = (w.detach() - start)[still].abs().double()
    assert moved.max().item() <= 0.27


# ------------------------------------------------------------------------------------------ metrics


def test_metrics_have_the_names_and_values_of_the_log():
    a, b = parameter(30), parameter(10)
    frozen = parameter(5)
    scaler = VarianceGradientScaler([a, b, frozen], apply_to="grad", warmup_steps=3)
    assert scaler.metrics()["vgs/warmup_active"].item() == 1.0
    for t in range(6):
        for one, grad in zip((a, b), (1 + draws(t, 30), 3 + draws(50 + t, 10)), strict=True):
            one.grad = grad
        scaler.update_statistics()
    metrics = {name: value.item() for name, value in scaler.metrics().items()}
    variance = sorted(scaler.variance()[name].item() for name in "01")
    factors = [scaler.factors()[name].item() for name in "01"]
    assert set(metrics) == {
        "vgs/normalized_variance",
        "vgs/stochastic_var_p10",
        "vgs/stochastic_var_p50",
        "vgs/stochastic_var_p90",
        "vgs/stochastic_var_mean",
        "vgs/grad_norm_ema",
        "vgs/grad_max_ema",
        "vgs/scaling_factor",
        "vgs/factor_mean",
        "vgs/factor_median",
        "vgs/factor_min",
        "vgs/floor_fraction",
        "vgs/step_count",
        "vgs/warmup_active",
        "vgs/noise_fraction",
        "vgs/effect_on_update",
    }
    low, high = variance
    assert metrics["vgs/stochastic_var_p10"] == pytest.approx(low + 0.1 * (high - low))
    assert metrics["vgs/stochastic_var_p50"] == pytest.approx((low + high) / 2)
    assert metrics["vgs/stochastic_var_mean"] == pytest.approx((low + high) / 2)
    assert metrics["vgs/scaling_factor"] == pytest.approx(sum(factors) / 2)
    assert metrics["vgs/step_count"] == 6
    assert metrics["vgs/warmup_active"] == 0.0
    weight = [0.99 ** (5 - t) for t in range(6)]
    rows = [(1 + draws(t, 30), 3 + draws(50 + t, 10)) for t in range(6)]
    square = [x.square().sum().item() + y.square().sum().item() for x, y in rows]
    peak = [max(x.abs().max().item(), y.abs().max().item()) for x, y in rows]
    mean = {
        name: sum(w * x for w, x in zip(weight, xs, strict=True)) / sum(weight)
        for name, xs in {"square": square, "peak": peak}.items()
    }
    assert metrics["vgs/grad_norm_ema"] == pytest.approx(math.sqrt(mean["square"]))
    assert metrics["vgs/grad_max_ema"] == pytest.approx(mean["peak"])
    assert metrics["vgs/noise_fraction"] == pytest.approx(40 / (40 + 30 + 90), abs=0.06)
    assert 0.0 < metrics["vgs/effect_on_update"] < 1 - min(factors)


@pytest.mark.parametrize("apply_to", ["grad", "update"])
def test_the_effect_counts_steps_by_their_length(apply_to):
    # Pure noise at the floor 0.5 in 30 elements of size 2, none in 10 elements of size 4: squared
    # lengths 120 and 160 of the gradient, 30 and 10 of an Adam-type step.
    noisy, quiet = parameter(30), parameter(10)
    scaler = VarianceGradientScaler(
        [noisy, quiet],
        optimizer=torch.optim.Adam([noisy, quiet]),
        apply_to=apply_to,
        warmup_steps=0,
        alpha=100.0,
    )
    for t in range(40):
        feed(scaler, [noisy, quiet], 2 * draws(t, 30).sign(), torch.full_like(quiet, 4.0))
    assert [factor.item() for factor in scaler.factors().values()] == [0.5, 1.0]
    kept = {"grad": (120 / 4 + 160) / 280, "update": (30 / 4 + 10) / 40}[apply_to]
    found = scaler.metrics()["vgs/effect_on_update"].item()
    assert found == pytest.approx(1 - math.sqrt(kept), rel=1e-6)


@pytest.mark.refusal
def test_a_factor_for_nobody_is_refused():
    scaler = VarianceGradientScaler([parameter(2)], optimizer=AdaptiveUPGD([parameter(2)], lr=0.1))
    with pytest.raises(ArgumentError) as caught:
        scaler.scale_gradients()
    assert str(caught.value) == (
        "the optimizer must hold a parameter of the scaler; found none of 1. "
        "Build both from one model, and `relink` the scaler after that changes. "
        "[missing-argument]"
    )


# -------------------------------------------------------------------------------------------- state


@pytest.mark.refusal
def test_a_state_of_other_names_is_refused():
    scaler = VarianceGradientScaler({"w": parameter(3)}.items())
    other = VarianceGradientScaler({"v": parameter(3)}.items())
    with pytest.raises(ArtifactError) as caught:
        other.load_state_dict(scaler.state_dict())
    assert str(caught.value) == (
        "the state must have the names of the parameters; found `v` in only one of them. "
        "Load the state into a scaler of the same network. [artifact-mismatch]"
    )


def test_a_failed_relink_changes_nothing():
    w = parameter(3)
    scaler = VarianceGradientScaler({"w": w}.items())
    for t in range(3):
        feed(scaler, [w], draws(t, 3))
    before = scaler.variance()["w"].item()
    with pytest.raises(ShapeError):
        scaler.relink({"w": parameter(4)}.items())
    assert scaler.variance()["w"].item() == before
    feed(scaler, [w], draws(3, 3))
    assert scaler.state_dict()["parameters"]["w"]["count"].item() == 4


def test_a_state_of_another_statistic_starts_anew():
    w = parameter(3)
    scaler = VarianceGradientScaler([w], statistic="norm")
    feed(scaler, [w], draws(1, 3))
    other = VarianceGradientScaler([w])
    with pytest.warns(UserWarning, match="statistic 'norm'"):
        other.load_state_dict(scaler.state_dict())
    assert other.metrics()["vgs/step_count"].item() == 0


@pytest.mark.refusal
def test_the_update_cannot_be_scaled_without_an_optimizer():
    with pytest.raises(ArgumentError) as caught:
        VarianceGradientScaler([parameter(2)], apply_to="update")
    assert str(caught.value) == (
        "`optimizer` must be given where `apply_to` is `update`; found None. "
        "Pass the optimizer whose steps are to be scaled, or use `grad`. [missing-argument]"
    )
