"""The pipeline's own parts: both guards, the bound of the norm, the report."""

import copy
import math

import pytest
import torch
from torch import nn

from stormsail.core.errors import ArgumentError
from stormsail.optim import AdaptiveUPGD
from stormsail.optim.pipeline import GradientPipeline
from stormsail.optim.vgs.scaler import VarianceGradientScaler


def draws(seed, *shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def network(dtype=torch.float32):
    return {
        "head.weight": nn.Parameter(draws(1, 5, 4, dtype=dtype)),
        "head.bias": nn.Parameter(draws(2, 5, dtype=dtype)),
        "body.weight": nn.Parameter(draws(3, 4, 3, dtype=dtype)),
    }


def give(params, step, poison=None):
    for place, (name, one) in enumerate(params.items()):
        one.grad = draws(10 * step + place, *one.shape, dtype=one.dtype)
        if name == poison:
            one.grad.view(-1)[0] = math.nan


MAKERS = {
    "AdaptiveUPGD": lambda params: AdaptiveUPGD(params, lr=0.1, sigma=0.0),
    "Adam": lambda params: torch.optim.Adam(params, lr=0.1, capturable=False),
    "SGD": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
}


def bits(params, optimizer, scaler):
    state = [value for one in optimizer.state.values() for value in one.values()]
    tensors = [value for value in state if isinstance(value, torch.Tensor)]
    saved = scaler.state_dict()["parameters"].values()
    moments = [value for one in saved for value in one.values()]
    return [one.detach().clone() for one in (*params.values(), *tensors, *moments)]


@pytest.mark.spec("2.0", "7")
@pytest.mark.parametrize("kind", list(MAKERS))
@pytest.mark.parametrize("guard", ["host", "device"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_refused_step_keeps_every_bit(kind, guard, dtype):
    params = network(dtype)
    optimizer = MAKERS[kind](params.values())
    scaler = VarianceGradientScaler(params.items(), optimizer=optimizer, warmup_steps=1)
    pipe = GradientPipeline(params.items(), optimizer, scaler=scaler, guard=guard)
    for step in range(3):
        give(params, step)
        assert pipe.step().stepped.item() is True
    before = bits(params, optimizer, scaler)
    give(params, 3, poison="head.bias")
    report = pipe.step()
    assert report.stepped.item() is False
    assert report.nonfinite.item() == 1
    for one, other in zip(before, bits(params, optimizer, scaler), strict=True):
        assert torch.equal(one, other)
    assert {name: count.item() for name, count in scaler.nonfinite().items()} == {
        "head.weight": 0,
        "head.bias": 1,
        "body.weight": 0,
    }
    give(params, 4)
    assert pipe.step().stepped.item() is True
    assert not torch.equal(params["head.bias"], before[1])


@pytest.mark.parametrize("kind", list(MAKERS))
def test_both_guards_go_the_same_way(kind):
    paths = []
    for guard in ("host", "device"):
        params = network()
        optimizer = MAKERS[kind](params.values())
        scaler = VarianceGradientScaler(params.items(), optimizer=optimizer, warmup_steps=2)
        pipe = GradientPipeline(params.items(), optimizer, scaler=scaler, guard=guard)
        for step in range(12):
            give(params, step, poison="body.weight" if step in (0, 5, 6) else None)
            pipe.step()
        paths.append(bits(params, optimizer, scaler))
    for one, other in zip(*paths, strict=True):
        assert torch.equal(one, other)


def test_the_device_guard_restores_negative_zero():
    params = {"w": nn.Parameter(torch.tensor([-0.0, 1.0]))}
    optimizer = torch.optim.SGD(params.values(), lr=0.1)
    pipe = GradientPipeline(params.items(), optimizer, guard="device")
    params["w"].grad = torch.zeros(2)
    pipe.step()
    params["w"].grad = torch.tensor([math.inf, 0.0])
    pipe.step()
    assert math.copysign(1.0, params["w"][0].item()) == -1.0


@pytest.mark.parametrize(("bound", "length"), [(0.5, 0.5), (None, 0.5), (0.0, 5.0), (-1, 5.0)])
def test_the_bound_of_the_norm_may_be_left_open(bound, length):
    w = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    pipe = GradientPipeline([w], torch.optim.SGD([w], lr=1.0), max_grad_norm=bound)
    w.grad = torch.tensor([3.0, 4.0], dtype=torch.float64)
    report = pipe.step()
    assert w.detach().norm().item() == pytest.approx(length, rel=1e-6)
    assert report.grad_norm_post_clip.item() == pytest.approx(length, rel=1e-6)


def test_the_report_names_norms_and_groups():
    params = network()
    pipe = GradientPipeline(params.items(), torch.optim.SGD(params.values(), lr=0.1))
    give(params, 1)
    params["head.bias"].grad = None
    raw = {name: one.grad.norm().item() for name, one in params.items() if one.grad is not None}
    report = pipe.step()
    found = {name: norm.item() for name, norm in pipe.norms_by_name(report).items()}
    assert found == pytest.approx({**raw, "head.bias": 0.0})
    assert pipe.group_norm(report, "head.").item() == pytest.approx(raw["head.weight"])
    total = math.hypot(raw["head.weight"], raw["body.weight"])
    assert pipe.group_norm(report, "").item() == pytest.approx(total)
    assert pipe.group_norm(report, "tail.").item() == 0.0


def test_a_scaler_on_gradients_shows_between_raw_and_clip():
    params = network(torch.float64)
    optimizer = torch.optim.SGD(params.values(), lr=0.1)
    scaler = VarianceGradientScaler(params.items(), optimizer=optimizer, alpha=9.0, warmup_steps=0)
    pipe = GradientPipeline(params.items(), optimizer, scaler=scaler, max_grad_norm=100.0)
    for step in range(5):
        give(params, step)
        report = pipe.step()
    assert {factor.item() for factor in scaler.factors().values()} == {0.5}
    assert report.grad_norm_pre_clip.item() == pytest.approx(report.raw_norm.item() / 2)
    assert report.grad_norm_post_clip.item() == report.grad_norm_pre_clip.item()


@pytest.mark.refusal
def test_a_scaler_of_another_optimizer_is_refused():
    params = network()
    mine, other = (torch.optim.Adam(params.values()) for _ in range(2))
    scaler = VarianceGradientScaler(params.items(), optimizer=other)
    with pytest.raises(ArgumentError) as caught:
        GradientPipeline(params.items(), mine, scaler=scaler)
    assert str(caught.value) == (
        "`scaler` must scale the steps of this pipeline's optimizer; "
        "found a scaler of another Adam. Pass the same optimizer to both. [out-of-range]"
    )


@pytest.mark.gpu
@pytest.mark.parametrize("apply_to", ["grad", "update"])
@pytest.mark.parametrize("own", [True, False])
def test_a_captured_pipeline_refuses_and_steps_as_the_eager_one(apply_to, own):
    def make():
        params = {name: nn.Parameter(one.detach().cuda()) for name, one in network().items()}
        for one in params.values():
            one.grad = torch.zeros_like(one)
        rate = torch.tensor(0.01, device="cuda")
        if own:
            optimizer = AdaptiveUPGD(params.values(), lr=rate, sigma=0.0, capturable=True)
        else:
            optimizer = torch.optim.AdamW(params.values(), lr=rate, capturable=True, foreach=True)
        scaler = VarianceGradientScaler(
            params.items(), optimizer=optimizer, warmup_steps=4, apply_to=apply_to
        )
        return params, optimizer, scaler, GradientPipeline(params.items(), optimizer, scaler=scaler)

    def fill(params, step):
        source = network()
        give(source, step, poison="head.bias" if step in (4, 9) else None)
        for name, one in params.items():
            one.grad.copy_(source[name].grad)

    eager = make()
    for step in range(15):
        fill(eager[0], step)
        eager[3].step()
    captured = make()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for step in range(3):
            fill(captured[0], step)
            captured[3].step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        report = captured[3].step()
    for step in range(3, 15):
        fill(captured[0], step)
        graph.replay()
        assert report.stepped.item() is (step not in (4, 9))
    for one, other in zip(bits(*eager[:3]), bits(*captured[:3]), strict=True):
        assert torch.equal(one, other)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
def test_the_device_guard_never_waits():
    params = {name: nn.Parameter(one.detach().cuda()) for name, one in network().items()}
    rate = torch.tensor(0.01, device="cuda")
    optimizer = torch.optim.AdamW(params.values(), lr=rate, capturable=True, foreach=True)
    scaler = VarianceGradientScaler(params.items(), optimizer=optimizer)
    pipe = GradientPipeline(params.items(), optimizer, scaler=scaler, guard="device")
    grads = {name: torch.randn_like(one) for name, one in params.items()}
    for name, one in params.items():
        one.grad = copy.deepcopy(grads[name])
    pipe.step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        pipe.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
