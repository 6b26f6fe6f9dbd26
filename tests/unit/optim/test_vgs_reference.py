"""Noise compared with the slow median of the tensor's own, instead of with its signal."""

import io
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from oracles import vgs as oracle
from stormsail.core.errors import StormsailError
from stormsail.functional.optim import gradient_noise
from stormsail.optim import AdaptiveUPGD, GradientPipeline, VarianceGradientScaler

STATISTICS = ("elementwise", "total", "mean", "norm")


def parameter(*shape):
    return nn.Parameter(torch.zeros(*shape, dtype=torch.float64))


def scaler(params, **options):
    return VarianceGradientScaler(params.items(), **{"reference": "median", **options})


def feed(vgs, params, grads):
    """Show one step's gradients, and return the factors that belong to it."""
    for name, param in params.items():
        given = grads.get(name)
        param.grad = None if given is None else torch.as_tensor(given, dtype=param.dtype)
    vgs.update_statistics()
    return {name: float(value) for name, value in vgs.factors().items()}


def medians(vgs):
    return {name: float(part["median"]) for name, part in vgs.state_dict()["parameters"].items()}


@pytest.mark.spec("2.16")
@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize("beta", [0.5, 0.9])
@pytest.mark.parametrize("warmup", [0, 12])
def test_median_and_factor_are_those_of_the_oracle_at_every_step(statistic, beta, warmup):
    rng = np.random.default_rng(1)
    params = {"w": parameter(3, 2)}
    options = {"statistic": statistic, "beta": beta, "warmup_steps": warmup}
    vgs = scaler(params, **options, min_scaling_factor=0.01)
    history, variances, factors = [], [], []
    for step in range(40):
        history.append((5.0 if 20 <= step < 30 else 1.0) * rng.normal(size=(3, 2)) + 0.3)
        given = feed(vgs, params, {"w": history[-1]})["w"]
        variances.append(getattr(oracle, statistic)(history, beta)[0])
        median = oracle.slow_median(variances, beta, warmup=max(warmup, 1))[-1]
        assert medians(vgs)["w"] == pytest.approx(median, rel=1e-9)
        expected = oracle.factor(oracle.excess(variances[-1], median), least=0.01)
        assert given == pytest.approx(expected if step + 1 >= warmup else 1.0, rel=1e-7)
        factors.append(given)
    assert min(factors[:20]) < 1.0 if warmup == 0 else max(factors[:11]) == 1.0
    assert min(factors[20:]) < 0.7  # the burst


@pytest.mark.parametrize("ratio", [0.1, 10.0, 1000.0])
def test_steady_noise_of_any_level_leaves_the_typical_factor_near_one(ratio):
    rng = np.random.default_rng(2)
    params = {"w": parameter(400)}
    vgs, against = scaler(params), VarianceGradientScaler(params.items())
    factors, fixed = [], []
    for _ in range(500):
        grad = {"w": 1.0 + math.sqrt(ratio) * rng.normal(size=400)}
        factors.append(feed(vgs, params, grad)["w"])
        fixed.append(feed(against, params, grad)["w"])
    assert np.median(factors[150:]) >= 0.995
    assert min(factors[150:]) >= 0.95
    # the fixed level gives the same gradients a constant: 1 / (1 + 0.1 ratio), or the floor
    constant = {0.1: 1.0 / 1.01, 10.0: 0.5, 1000.0: 0.5}[ratio]
    assert np.median(fixed[150:]) == pytest.approx(constant, abs=0.02)


@pytest.mark.parametrize("ratio", [0.1, 1000.0])
def test_a_burst_of_noise_shortens_the_steps_of_that_tensor_alone_until_it_is_usual(ratio):
    rng = np.random.default_rng(3)
    params = {"loud": parameter(64), "calm": parameter(64)}
    vgs = scaler(params, beta=0.9, warmup_steps=20)

    def run(steps, level):
        levels = {"loud": level, "calm": 1.0}
        factors = []
        for _ in range(steps):
            noise = {k: math.sqrt(ratio) * v * rng.normal(size=64) for k, v in levels.items()}
            factors.append(feed(vgs, params, {k: 1.0 + v for k, v in noise.items()}))
        return factors

    before = run(150, 1.0)
    burst = run(10, 10.0)
    assert min(given["loud"] for given in before[50:]) > 0.9
    assert burst[-1]["loud"] == 0.5  # the variance is 60 times its median, which hardly moved
    assert min(given["calm"] for given in burst) > 0.95
    after = run(150, 1.0)
    assert after[-1]["loud"] > 0.95  # what is usual again is free
    assert min(given["calm"] for given in after) > 0.9
    # a burst that stays becomes usual: 2 ln 10 = 4.6 takes about 460 steps of a hundredth
    stays = run(600, 10.0)
    assert stays[150]["loud"] == 0.5
    assert stays[-1]["loud"] > 0.95


@pytest.mark.parametrize("unit", [1e-8, 1e6])
def test_the_factor_does_not_depend_on_the_unit_of_the_gradient(unit):
    def path(scale):
        rng = np.random.default_rng(4)
        params = {"w": parameter(8)}
        vgs = scaler(params, warmup_steps=0, beta=0.9)
        levels = [1.0] * 60 + [4.0] * 20
        return [
            feed(vgs, params, {"w": scale * (level * rng.normal(size=8) + 0.1)})["w"]
            for level in levels
        ]

    plain, scaled = path(1.0), path(unit)
    assert min(plain) < 0.7
    assert scaled == pytest.approx(plain, rel=1e-9)


def test_factors_lie_between_the_floor_and_one_and_are_one_in_the_warm_up():
    rng = np.random.default_rng(5)
    params = {"w": parameter(4)}
    vgs = scaler(params, beta=0.5, warmup_steps=50, min_scaling_factor=0.3, alpha=1.0)
    levels = rng.lognormal(sigma=2.0, size=300)
    factors = [feed(vgs, params, {"w": lv * rng.normal(size=4)})["w"] for lv in levels]
    assert factors[:49] == [1.0] * 49
    assert min(factors[49:]) == 0.3
    assert max(factors[49:]) == 1.0
    assert float(vgs.metrics()["vgs/floor_fraction"]) in {0.0, 1.0}


def test_the_cap_bounds_the_excess():
    params = {"w": parameter(1)}
    vgs = scaler(params, beta=0.0, warmup_steps=0, min_scaling_factor=0.01, variance_cap=4.0)
    for value in (1.0, -1.0, 1.0, -1.0, 100.0):
        factor = feed(vgs, params, {"w": [value]})["w"]
    assert factor == 1.0  # a memory of one gradient shows no variance
    vgs = scaler(params, beta=0.9, warmup_steps=0, min_scaling_factor=0.01, variance_cap=4.0)
    for value in (1.0, -1.0, 1.0, -1.0, 1000.0):
        factor = feed(vgs, params, {"w": [value]})["w"]
    assert factor == pytest.approx(1.0 / 1.4, rel=1e-12)


def test_one_step_moves_the_median_by_its_gain_however_large_the_gradient():
    params = {"w": parameter(1)}
    vgs = scaler(params, beta=0.9, warmup_steps=0)
    path = []
    for value in (1.0, -1.0, 1.0, -1.0, 1e9):
        feed(vgs, params, {"w": [value]})
        path.append(medians(vgs)["w"])
    assert path[0] == 0.0
    gain = oracle.weights(5, 0.99)[-1]
    assert math.log(path[4] / path[3]) == pytest.approx(gain, rel=1e-12)


def test_missing_and_non_finite_gradients_leave_the_median_as_it_was():
    rng = np.random.default_rng(6)
    params = {"a": parameter(3), "b": parameter(3)}
    vgs = scaler(params, warmup_steps=0)
    for _ in range(10):
        feed(vgs, params, {name: rng.normal(size=3) for name in params})
    before = medians(vgs)
    feed(vgs, params, {"a": [math.nan, 0.0, 1.0], "b": None})
    assert medians(vgs) == before
    feed(vgs, params, {"a": None, "b": rng.normal(size=3)})
    assert medians(vgs)["a"] == before["a"]
    assert medians(vgs)["b"] != before["b"]


def test_a_refused_step_leaves_the_median_as_it_was():
    params = {"a": parameter(3), "b": parameter(3)}
    optimizer = AdaptiveUPGD(params.values())
    vgs = scaler(params, optimizer=optimizer, warmup_steps=0)
    rng = np.random.default_rng(7)
    for guard in ("host", "device"):
        pipeline = GradientPipeline(params.items(), optimizer, scaler=vgs, guard=guard)
        for _ in range(5):
            for param in params.values():
                param.grad = torch.as_tensor(rng.normal(size=3))
            pipeline.step()
        before = medians(vgs)
        params["a"].grad = torch.full((3,), math.inf, dtype=torch.float64)
        params["b"].grad = torch.ones(3, dtype=torch.float64)
        assert not bool(pipeline.step().stepped)
        assert medians(vgs) == before


@pytest.mark.parametrize("way", ["load", "relink"])
def test_a_saved_scaler_continues_bit_for_bit(way):
    def run(vgs, params, steps, rng):
        return [
            feed(vgs, params, {name: rng.normal(size=4) for name in sorted(params)})
            for _ in range(steps)
        ]

    params = {"a": parameter(4), "b": parameter(4)}
    whole = scaler(params, warmup_steps=0, beta=0.9)
    rng = np.random.default_rng(8)
    run(whole, params, 30, rng)
    state, position = whole.state_dict(), rng.bit_generator.state
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    expected = run(whole, params, 30, rng)

    others = {"b": parameter(4), "a": parameter(4)}
    copy = scaler(others if way == "load" else params, warmup_steps=0, beta=0.9)
    copy.load_state_dict(torch.load(buffer))
    if way == "relink":
        copy.relink(others.items())
    rng.bit_generator.state = position
    assert run(copy, others, 30, rng) == expected
    assert min(given["a"] for given in expected) < 1.0


@pytest.mark.parametrize(("own", "other"), [("median", "absolute"), ("absolute", "median")])
def test_a_state_of_the_other_reference_is_dropped_with_a_warning(own, other):
    params = {"w": parameter(2)}
    source, vgs = scaler(params, reference=other), scaler(params, reference=own)
    for value in (1.0, -1.0):
        feed(source, params, {"w": [value, 1.0]})
        feed(vgs, params, {"w": [value, 1.0]})
    with pytest.warns(UserWarning, match=f"reference '{other}'.*'{own}': it starts anew"):
        vgs.load_state_dict(source.state_dict())
    parts = vgs.state_dict()["parameters"]["w"]
    assert int(parts["count"]) == 0
    assert float(parts.get("median", 0.0)) == 0.0


def test_a_state_from_before_there_were_two_references_is_absolute():
    params = {"w": parameter(2)}
    source = scaler(params, reference="absolute")
    for value in (1.0, -1.0):
        feed(source, params, {"w": [value, 1.0]})
    state = source.state_dict()
    del state["reference"]
    vgs = scaler(params, reference="absolute")
    vgs.load_state_dict(state)
    assert int(vgs.state_dict()["parameters"]["w"]["count"]) == 2


def test_the_global_scope_takes_the_ninetieth_percentile_of_the_excess():
    rng = np.random.default_rng(9)
    params = {name: parameter(5) for name in "abc"}
    vgs = scaler(params, warmup_steps=0, scope="global", min_scaling_factor=0.01, beta=0.9)
    variances = {name: [] for name in params}
    history = {name: [] for name in params}
    for step in range(60):
        for place, name in enumerate(params):
            level = 3.0 * (1 + place) if step >= 50 else 1.0
            history[name].append(level * rng.normal(size=5))
            variances[name].append(oracle.elementwise(history[name], 0.9)[0])
        factors = feed(vgs, params, {name: past[-1] for name, past in history.items()})
    excess = [oracle.excess(v[-1], oracle.slow_median(v, 0.9)[-1]) for v in variances.values()]
    expected = oracle.factor(float(np.percentile(excess, 90.0)), least=0.01)
    assert all(given == pytest.approx(expected, rel=1e-7) for given in factors.values())
    assert float(vgs.get_scaling_factor()) == pytest.approx(expected, rel=1e-7)
    assert expected < 0.5


def test_metrics_tell_a_saturated_scaler_from_one_that_measures():
    rng = np.random.default_rng(10)
    params = {name: parameter(30) for name in "abcd"}
    fixed, own = VarianceGradientScaler(params.items()), scaler(params)
    for _ in range(150):
        grads = {name: rng.normal(size=30) for name in params}
        feed(fixed, params, grads)
        feed(own, params, grads)
    saturated = {name: float(value) for name, value in fixed.metrics().items()}
    assert saturated["vgs/floor_fraction"] == 1.0
    assert saturated["vgs/factor_median"] == saturated["vgs/factor_min"] == 0.5
    measuring = {name: float(value) for name, value in own.metrics().items()}
    assert measuring["vgs/floor_fraction"] == 0.0
    assert measuring["vgs/factor_median"] > 0.95


def test_the_mean_factor_counts_every_weight():
    params = {"small": parameter(1), "large": parameter(99)}
    vgs = scaler(params, warmup_steps=0, beta=0.9)
    for value in (1.0, -1.0, 1.0, -1.0):
        feed(vgs, params, {"small": [value], "large": np.full(99, value)})
    factors = feed(vgs, params, {"small": [30.0], "large": np.ones(99)})
    assert factors == {"small": 0.5, "large": 1.0}
    metrics = vgs.metrics()
    assert float(metrics["vgs/factor_mean"]) == pytest.approx(0.995, rel=1e-12)
    assert float(metrics["vgs/scaling_factor"]) == pytest.approx(0.75, rel=1e-12)


def test_a_scaler_that_saw_nothing_reports_factors_of_one():
    metrics = scaler({"w": parameter(2)}, min_scaling_factor=0.25).metrics()
    names = ("vgs/factor_mean", "vgs/factor_median", "vgs/factor_min", "vgs/floor_fraction")
    assert [float(metrics[name]) for name in names] == [1.0, 1.0, 1.0, 0.0]


def test_a_statistic_that_the_median_does_not_read_is_refused():
    with pytest.raises(StormsailError, match=r"elementwise_full.*median.*Use the statistic"):
        scaler({"w": parameter(2)}, statistic="elementwise_full")
    with pytest.raises(StormsailError, match="reference"):
        scaler({"w": parameter(2)}, reference="mean")


def test_a_network_that_wakes_up_in_the_warm_up_is_no_burst():
    """Variances that grow by orders of magnitude in the first steps, as those of new networks."""
    rng = np.random.default_rng(12)
    params = {"w": parameter(64)}
    vgs = scaler(params)
    growth = [min(1.0, 10.0 ** (step / 20.0 - 4.0)) for step in range(300)]
    factors = [feed(vgs, params, {"w": level * rng.normal(size=64)})["w"] for level in growth]
    assert np.median(factors[100:]) > 0.98
    late = scaler(params, warmup_steps=0)
    slow = [feed(late, params, {"w": level * rng.normal(size=64)})["w"] for level in growth]
    assert slow[200] == 0.5


# --------------------------------------------------------------- micro-batches that came to nothing


def show_parts(vgs, params, parts):
    for param in params.values():
        param.grad = None
    for part in parts:
        for param in params.values():
            share = torch.full_like(param, part / len(parts))
            param.grad = share if param.grad is None else param.grad + share
        vgs.observe_microbatch()


def variance(vgs):
    return float(vgs.variance()["w"])


ABANDONED = (40.0, -40.0)
STEP = (3.0, -1.0)
"""Parts of a step; the variance of their mean is ((3 - 1)² + (-1 - 1)²) / (2 - 1) / 2 = 4."""


@pytest.mark.spec("2.16")
@pytest.mark.parametrize("guard", ["host", "device"])
def test_an_abandoned_minibatch_leaves_nothing_to_the_next_step(guard):
    params = {"w": parameter(2)}
    optimizer = AdaptiveUPGD(params.values())
    vgs = scaler(params, optimizer=optimizer, reference="absolute", statistic="microbatch")
    pipeline = GradientPipeline(params.items(), optimizer, scaler=vgs, guard=guard)
    for _ in range(2):
        show_parts(vgs, params, ABANDONED)
        pipeline.abandon()
        show_parts(vgs, params, STEP)
        pipeline.step()
        assert variance(vgs) == pytest.approx(4.0, rel=1e-12)


@pytest.mark.parametrize("guard", ["host", "device"])
def test_a_refused_step_leaves_nothing_to_the_next_one(guard):
    params = {"w": parameter(2)}
    optimizer = AdaptiveUPGD(params.values())
    vgs = scaler(params, optimizer=optimizer, reference="absolute", statistic="microbatch")
    pipeline = GradientPipeline(params.items(), optimizer, scaler=vgs, guard=guard)
    for _ in range(3):
        show_parts(vgs, params, STEP)
        pipeline.step()
        show_parts(vgs, params, (40.0, math.inf))
        assert not bool(pipeline.step().stepped)
        assert variance(vgs) == pytest.approx(4.0, rel=1e-12)


def test_a_step_without_gradients_leaves_nothing_to_the_next_one():
    params = {"w": parameter(2)}
    vgs = scaler(params, reference="absolute", statistic="microbatch")
    show_parts(vgs, params, ABANDONED)
    params["w"].grad = None
    vgs.update_statistics()
    show_parts(vgs, params, STEP)
    vgs.update_statistics()
    assert variance(vgs) == pytest.approx(4.0, rel=1e-12)


def test_a_state_loaded_within_a_step_starts_a_new_one():
    params = {"w": parameter(2)}
    vgs = scaler(params, reference="absolute", statistic="microbatch")
    state = vgs.state_dict()
    show_parts(vgs, params, ABANDONED)
    vgs.load_state_dict(state)
    show_parts(vgs, params, STEP)
    vgs.update_statistics()
    assert variance(vgs) == pytest.approx(4.0, rel=1e-12)


def test_the_slow_median_rests_at_the_median_of_the_series():
    rng = np.random.default_rng(11)
    gain, median = torch.tensor(0.01), torch.tensor(1.0)
    path = []
    for value in torch.tensor(rng.lognormal(mean=1.5, sigma=1.0, size=4000)).float():
        median = gradient_noise.moving_median(median, value, gain)
        path.append(float(median))
    assert np.mean(np.log(path[1000:])) == pytest.approx(1.5, abs=0.1)
    assert max(abs(math.log(b / a)) for a, b in pairwise(path)) == pytest.approx(0.01, rel=1e-3)


def test_an_excess_is_a_share_of_the_median_and_nothing_below_it():
    value, median = torch.tensor([0.5, 2.0, 3.0, 3.0]), torch.tensor([1.0, 2.0, 2.0, 0.0])
    assert gradient_noise.relative_excess(value, median).tolist() == [0.0, 0.0, 0.5, 0.0]
