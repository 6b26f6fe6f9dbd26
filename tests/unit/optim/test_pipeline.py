"""From raw gradients to a step: guard, norms, statistics, scale, clip, step, in that order."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from oracles import vgs as oracle
from stormsail.core.errors import ArgumentError
from stormsail.optim import (
    UPGD,
    AdaptiveUPGD,
    GradientPipeline,
    VarianceGradientScaler,
)


def parameter(*shape):
    return nn.Parameter(torch.zeros(shape, dtype=torch.float64))


def noise(seed, *shape, scale=1.0):
    return scale * np.random.default_rng(seed).normal(size=shape)


def build(params, optimizer, *, scaler=True, max_grad_norm=0.5, guard="auto", **options):
    """Return a pipeline and its scaler, which is None without one."""
    vgs = VarianceGradientScaler(params.items(), optimizer=optimizer, **options) if scaler else None
    pipe = GradientPipeline(
        params.items(), optimizer, scaler=vgs, max_grad_norm=max_grad_norm, guard=guard
    )
    return pipe, vgs


def total_norm(params):
    return math.sqrt(sum(float((p.grad**2).sum()) for p in params.values() if p.grad is not None))


@pytest.mark.spec("T-V6", "S1-V2", "X2")
def test_statistics_are_taken_from_the_raw_gradient():
    # After the clip all gradients would have one length, and the noise in it would be gone.
    found = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        v = rng.normal(size=30)
        v *= 50.0 / np.linalg.norm(v)
        params = {"w": parameter(30)}
        optimizer = torch.optim.SGD(params.values(), lr=1e-6)
        pipe, vgs = build(params, optimizer)
        for _ in range(500):
            params["w"].grad = torch.tensor((1.0 + 0.3 * rng.normal()) * v)
            pipe.step()
        found.append(float(vgs.get_normalized_variance()))
    assert np.mean(found) == pytest.approx(0.09, abs=0.02)


@pytest.mark.spec("T-V6", "2.0")
def test_scaling_comes_after_the_statistics_and_before_the_clip():
    rng = np.random.default_rng(1)
    params = {"a": parameter(40), "b": parameter(10)}
    optimizer = torch.optim.SGD(params.values(), lr=1.0)
    pipe, _ = build(params, optimizer, warmup_steps=0, max_grad_norm=3.0)
    history = {name: [] for name in params}
    for t in range(25):
        raw = {"a": rng.normal(size=40), "b": 5.0 + 0.1 * rng.normal(size=10)}
        start = {name: p.detach().clone() for name, p in params.items()}
        for name, p in params.items():
            p.grad = torch.tensor(raw[name])
            history[name].append(raw[name])
        pipe.step()
        c = {name: oracle.factor(oracle.elementwise(h, 0.99)[1]) for name, h in history.items()}
        scaled = {name: c[name] * g for name, g in raw.items()}
        length = math.sqrt(sum(float((g**2).sum()) for g in scaled.values()))
        clip = min(1.0, 3.0 / length)
        for name, p in params.items():
            moved = (start[name] - p.detach()).numpy()
            np.testing.assert_allclose(moved, clip * scaled[name], rtol=1e-5, err_msg=f"{t}")
    assert c["a"] == 0.5
    assert c["b"] > 0.99


@pytest.mark.spec("T-V10", "S4-O3")
@pytest.mark.parametrize("alpha", [0.0, 0.1, 10.0])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize("scaled", [False, True])
def test_after_the_clip_no_gradient_is_longer_than_allowed(alpha, size, scaled):
    params = {"a": parameter(40), "b": parameter(10)}
    optimizer = torch.optim.SGD(params.values(), lr=1.0)
    pipe, _ = build(
        params, optimizer, scaler=scaled, **({"alpha": alpha, "warmup_steps": 0} if scaled else {})
    )
    for t in range(20):
        start = {name: p.detach().clone() for name, p in params.items()}
        for k, p in enumerate(params.values()):
            p.grad = torch.tensor(noise(100 * k + t, *p.shape, scale=size))
        raw = total_norm(params)
        pipe.step()
        moved = math.sqrt(
            sum(float((start[name] - p.detach()).square().sum()) for name, p in params.items())
        )
        assert moved <= min(0.5, raw) * (1.0 + 1e-9)


@pytest.mark.spec("T-V10", "1.5")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_norm_of_half_precision_gradients_is_not_rounded_to_half_precision(dtype):
    stream = torch.Generator().manual_seed(1)
    for k in range(10):
        p = nn.Parameter(torch.zeros(5_000, dtype=dtype))
        pipe = GradientPipeline([("w", p)], torch.optim.SGD([p], lr=1.0))
        p.grad = ((1.0 + 0.02 * k) * torch.randn(5_000, generator=stream)).to(dtype)
        exact = float(p.grad.double().norm())
        report = pipe.step()
        assert float(report.raw_norm) == pytest.approx(exact, rel=1e-5)
        assert float(p.grad.double().norm()) <= 0.5 * (1.0 + 4e-4)


@pytest.mark.spec("2.0")
def test_a_gradient_of_finite_halves_is_finite():
    p = nn.Parameter(torch.zeros(100, dtype=torch.float16))
    pipe = GradientPipeline([("w", p)], torch.optim.SGD([p], lr=1.0))
    p.grad = torch.full((100,), 30_000.0, dtype=torch.float16)  # its length is 300 000
    report = pipe.step()
    assert bool(report.stepped)
    assert float(report.raw_norm) == pytest.approx(3e5, rel=1e-3)


@pytest.mark.spec("2.0", "1.4")
def test_the_report_holds_the_norms_before_and_after():
    params = {"a": parameter(2), "b": parameter(1)}
    optimizer = torch.optim.SGD(params.values(), lr=1.0)
    pipe, _ = build(params, optimizer, scaler=False)
    params["a"].grad = torch.tensor([3.0, 0.0], dtype=torch.float64)
    params["b"].grad = torch.tensor([4.0], dtype=torch.float64)
    report = pipe.step()
    assert float(report.raw_norm) == pytest.approx(5.0)
    assert float(report.grad_norm_pre_clip) == pytest.approx(5.0)
    assert float(report.grad_norm_post_clip) == pytest.approx(0.5, rel=1e-5)


@pytest.mark.spec("T-V7", "S1-V3", "X2")
@pytest.mark.parametrize("kind", [AdaptiveUPGD, torch.optim.Adam])
def test_with_an_adaptive_optimizer_the_scaler_changes_the_path(kind):
    def path(alpha):
        rng = np.random.default_rng(2)
        params = {"w": parameter(40), "b": parameter(4)}
        target = {name: torch.tensor(rng.normal(size=p.shape)) for name, p in params.items()}
        own = {"sigma": 0.0} if kind is AdaptiveUPGD else {}
        optimizer = kind(params.values(), lr=0.02, **own)
        pipe, _ = build(params, optimizer, alpha=alpha, warmup_steps=5)
        for _ in range(80):
            for name, p in params.items():
                p.grad = p.detach() - target[name] + torch.tensor(3.0 * rng.normal(size=p.shape))
            pipe.step()
        return torch.cat([p.detach() for p in params.values()])

    plain = path(0.0)
    assert ((path(0.1) - plain).norm() / plain.norm()).item() > 0.01


@pytest.mark.spec("T-V7", "3.1", "X2")
def test_one_factor_for_all_gradients_is_undone_by_the_clip():
    # Why the factor is per tensor: the clip takes back whatever a common factor did.
    def path(alpha, scope):
        rng = np.random.default_rng(3)
        params = {"w": parameter(40), "b": parameter(4)}
        optimizer = torch.optim.SGD(params.values(), lr=0.02)
        pipe, _ = build(
            params, optimizer, alpha=alpha, warmup_steps=0, scope=scope, apply_to="grad"
        )
        for _ in range(60):
            params["w"].grad = torch.tensor(10.0 * rng.normal(size=40))
            params["b"].grad = torch.tensor(10.0 + rng.normal(size=4))
            pipe.step()
        return torch.cat([p.detach() for p in params.values()])

    plain = path(0.0, "global")
    assert ((path(0.1, "global") - plain).norm() / plain.norm()).item() < 1e-5
    assert ((path(0.1, "per_tensor") - plain).norm() / plain.norm()).item() > 0.01


def everything(params, optimizer, vgs):
    """Return a copy of all that a step may change, the count of refused gradients aside."""
    scaler = {"variance": vgs.variance(), "factors": vgs.factors(), "ratio": vgs.metrics()}
    return copy.deepcopy(
        {
            "weights": {name: p.detach() for name, p in params.items()},
            "optimizer": optimizer.state_dict(),
            "scaler": scaler,
        }
    )


def differences(a, b, path=""):
    """Yield where two nests of mappings, lists, tensors and plain values differ in any bit."""
    if isinstance(a, torch.Tensor):
        if a.dtype != b.dtype or not torch.equal(a, b):
            yield path
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            yield from differences(a[key], b[key], f"{path}/{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for k, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from differences(x, y, f"{path}/{k}")
    elif a != b:
        yield path


OPTIMIZERS = {
    "UPGD": lambda ps, sigma: UPGD(ps, lr=0.1, sigma=sigma, generator=seeded(), capturable=True),
    "AdaptiveUPGD": lambda ps, sigma: AdaptiveUPGD(
        ps, lr=0.1, sigma=sigma, generator=seeded(), capturable=True
    ),
    "Adam": lambda ps, _: torch.optim.Adam(ps, lr=0.1),
    "momentum": lambda ps, _: torch.optim.SGD(ps, lr=0.1, momentum=0.9),
}
BAD = {"nan": math.nan, "inf": math.inf, "minus inf": -math.inf}


def seeded():
    return torch.Generator().manual_seed(1)


def refused(kind, guard, bad, *, sigma, first=5):
    """Return everything before and after a poisoned step, and the report of that step."""
    params = {"a": parameter(6), "b": parameter(3)}
    optimizer = OPTIMIZERS[kind](params.values(), sigma)
    pipe, vgs = build(params, optimizer, warmup_steps=2, guard=guard)

    def feed(t, poison=None):
        for k, p in enumerate(params.values()):
            p.grad = torch.tensor(noise(100 * k + t, *p.shape))
        if poison is not None:
            params["b"].grad[1] = poison
        return pipe.step()

    for t in range(first):
        assert bool(feed(t).stepped)
    before = everything(params, optimizer, vgs)
    report = feed(first, poison=bad)
    after = everything(params, optimizer, vgs)
    counts = {name: int(n) for name, n in vgs.nonfinite().items()}
    assert bool(feed(first + 1).stepped)
    return before, after, report, counts


@pytest.mark.spec("2.0", "7")
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("bad", BAD)
def test_a_gradient_that_is_not_finite_leaves_everything_as_it_was(kind, bad):
    before, after, report, counts = refused(kind, "auto", BAD[bad], sigma=0.1)
    assert not bool(report.stepped)
    assert list(differences(before, after)) == []
    assert counts == {"a": 0, "b": 1}


@pytest.mark.spec("2.0", "7")
@pytest.mark.parametrize("kind", ["UPGD", "AdaptiveUPGD", "momentum"])
@pytest.mark.parametrize("bad", BAD)
def test_the_guard_that_never_waits_leaves_everything_as_it_was_too(kind, bad):
    # Without noise, because the generator moves on where nobody may look at the flag.
    before, after, report, counts = refused(kind, "device", BAD[bad], sigma=0.0)
    assert not bool(report.stepped)
    assert list(differences(before, after)) == []
    assert counts == {"a": 0, "b": 1}


@pytest.mark.spec("2.0")
def test_a_first_step_may_be_refused():
    before, after, report, _ = refused("AdaptiveUPGD", "auto", math.nan, sigma=0.1, first=0)
    assert not bool(report.stepped)
    assert list(differences(before, after)) == []


@pytest.mark.spec("2.0")
@pytest.mark.parametrize("guard", ["host", "device"])
def test_after_a_refused_step_the_path_is_the_one_without_it(guard):
    sigma = 0.1 if guard == "host" else 0.0

    def path(poisoned):
        params = {"a": parameter(6), "b": parameter(3)}
        optimizer = OPTIMIZERS["AdaptiveUPGD"](params.values(), sigma)
        pipe, _ = build(params, optimizer, warmup_steps=2, guard=guard)
        for t in range(12):
            if t in poisoned:
                for p in params.values():
                    p.grad = torch.full_like(p, math.nan)
                pipe.step()
            for k, p in enumerate(params.values()):
                p.grad = torch.tensor(noise(100 * k + t, *p.shape))
            pipe.step()
        return torch.cat([p.detach() for p in params.values()])

    assert torch.equal(path({0, 4, 5}), path(set()))


@pytest.mark.spec("2.0")
@pytest.mark.parametrize("kind", ["UPGD", "AdaptiveUPGD", "momentum"])
def test_both_guards_take_the_same_steps(kind):
    def path(guard):
        params = {"a": parameter(6), "b": parameter(3)}
        optimizer = OPTIMIZERS[kind](params.values(), 0.1)
        pipe, _ = build(params, optimizer, warmup_steps=2, guard=guard)
        for t in range(8):
            for k, p in enumerate(params.values()):
                p.grad = torch.tensor(noise(100 * k + t, *p.shape))
            pipe.step()
        return torch.cat([p.detach() for p in params.values()])

    assert torch.equal(path("host"), path("device"))


@pytest.mark.spec("2.0", "1.4")
def test_raw_norms_are_reported_by_name_and_by_prefix():
    params = {"critic.a": parameter(2), "critic.b": parameter(1), "actor": parameter(2)}
    optimizer = torch.optim.SGD(params.values(), lr=1.0)
    pipe, _ = build(params, optimizer, warmup_steps=0)
    grads = {"critic.a": [0.0, 3.0], "critic.b": [4.0], "actor": [5.0, 12.0]}
    for name, p in params.items():
        p.grad = torch.tensor(grads[name], dtype=torch.float64)
    report = pipe.step()
    found = {name: float(norm) for name, norm in pipe.norms_by_name(report).items()}
    assert found == pytest.approx({"critic.a": 3.0, "critic.b": 4.0, "actor": 13.0})
    assert float(pipe.group_norm(report, "critic")) == pytest.approx(5.0)
    assert float(pipe.group_norm(report, "none")) == 0.0
    assert float(report.raw_norm) == pytest.approx(math.sqrt(194.0))


@pytest.mark.parametrize(
    ("bound", "moved"), [(None, 0.5), (0.5, 0.5), (2.0, 2.0), (0.0, 5.0), (-1.0, 5.0), (9.0, 5.0)]
)
def test_the_bound_may_be_left_out_or_switched_off(bound, moved):
    params = {"w": parameter(2)}
    optimizer = torch.optim.SGD(params.values(), lr=1.0)
    pipe, _ = build(params, optimizer, scaler=False, max_grad_norm=bound)
    params["w"].grad = torch.tensor([3.0, 4.0], dtype=torch.float64)
    report = pipe.step()
    assert float(params["w"].detach().norm()) == pytest.approx(moved, rel=1e-5)
    assert float(report.grad_norm_post_clip) == pytest.approx(moved, rel=1e-5)


@pytest.mark.spec("2.0", "1.4")
def test_the_norm_before_the_clip_is_the_one_after_the_scaler():
    params = {"w": parameter(30)}
    optimizer = torch.optim.SGD(params.values(), lr=1.0)
    pipe, vgs = build(params, optimizer, warmup_steps=0)
    for t in range(6):
        params["w"].grad = torch.tensor(noise(t, 30))
        raw = float(params["w"].grad.norm())
        report = pipe.step()
        c = float(vgs.factors()["w"])
        assert float(report.raw_norm) == pytest.approx(raw, rel=1e-9)
        assert float(report.grad_norm_pre_clip) == pytest.approx(c * raw, rel=1e-9)
    assert c == 0.5


def test_a_scaler_of_another_optimizer_is_refused():
    params = {"w": parameter(2)}
    mine, other = (AdaptiveUPGD(params.values(), lr=0.1) for _ in range(2))
    vgs = VarianceGradientScaler(params.items(), optimizer=other)
    with pytest.raises(ArgumentError):
        GradientPipeline(params.items(), mine, scaler=vgs)


@pytest.mark.parametrize("options", [{"guard": "never"}, {"max_grad_norm": math.nan}])
def test_a_setting_without_meaning_is_refused(options):
    params = {"w": parameter(2)}
    with pytest.raises(ArgumentError):
        GradientPipeline(params.items(), torch.optim.SGD(params.values(), lr=0.1), **options)


@pytest.mark.spec("7")
def test_tensors_without_a_gradient_are_no_obstacle():
    params = {"a": parameter(6), "b": parameter(3)}
    optimizer = AdaptiveUPGD(params.values(), lr=0.1, sigma=0.0)
    pipe, vgs = build(params, optimizer, warmup_steps=0)
    for t in range(10):
        params["a"].grad = torch.tensor(noise(t, 6))
        params["b"].grad = None
        pipe.step()
    assert torch.equal(params["b"], torch.zeros(3, dtype=torch.float64))
    assert float(vgs.factors()["b"]) == 1.0
    params["a"].grad = None
    before = params["a"].detach().clone()
    pipe.step()
    assert torch.equal(params["a"], before)


# --------------------------------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [UPGD, AdaptiveUPGD])
def test_a_captured_pipeline_equals_the_eager_one_bit_for_bit(kind):
    device, shapes = "cuda", [(40, 9), (9,)]
    grads = [
        [
            torch.tensor(noise(10 * t + k, *s), dtype=torch.float32, device=device)
            for k, s in enumerate(shapes)
        ]
        for t in range(15)
    ]
    grads[7][1][3] = math.nan  # refused on both paths, and on neither does it leave a trace

    def make():
        params = {
            f"p{k}": nn.Parameter(
                torch.tensor(noise(50 + k, *s), dtype=torch.float32, device=device)
            )
            for k, s in enumerate(shapes)
        }
        for p in params.values():
            p.grad = torch.zeros_like(p)
        optimizer = kind(
            params.values(), lr=torch.tensor(0.01, device=device), sigma=0.0, capturable=True
        )
        return params, build(params, optimizer, warmup_steps=5, guard="device")[0]

    def fill(params, t):
        for p, g in zip(params.values(), grads[t], strict=True):
            p.grad.copy_(g)

    eager, pipe = make()
    for t in range(15):
        fill(eager, t)
        pipe.step()
    captured, pipe = make()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for t in range(3):
            fill(captured, t)
            pipe.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        report = pipe.step()
    refused = []
    for t in range(3, 15):
        fill(captured, t)
        graph.replay()
        refused.append(not bool(report.stepped))
    assert refused == [t == 7 for t in range(3, 15)]
    for a, b in zip(captured.values(), eager.values(), strict=True):
        assert torch.equal(a, b)
