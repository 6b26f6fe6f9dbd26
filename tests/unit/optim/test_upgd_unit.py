"""The parts of the UPGD family that no formula tells: buffers, noise blocks, copies, refusals."""

import copy
import math

import pytest
import torch
from torch import nn

from stormsail.core.errors import ArgumentError, ChoiceError, DtypeError, RangeError, ShapeError
from stormsail.functional.optim.upgd import NORMS, gate_line, step_share
from stormsail.optim import UPGD, UPGDW, AdaptiveUPGD, VarianceGradientScaler, upgd, vgs
from stormsail.optim.upgd.buckets import Workspace, fill_normal_

KINDS = {"upgd": UPGD, "adaptive": AdaptiveUPGD, "upgdw": UPGDW}
every_kind = pytest.mark.parametrize("kind", KINDS)
every_norm = pytest.mark.parametrize("norm", NORMS)


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


def parameters(*shapes, dtype=torch.float64, seed=0):
    generator = seeded(seed)
    return [nn.Parameter(torch.randn(s, generator=generator).to(dtype)) for s in shapes]


def give_gradients(params, seed):
    generator = seeded(seed)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)


def test_each_package_exports_its_classes():
    assert (upgd.UPGD, upgd.UPGDW, upgd.AdaptiveUPGD) == (UPGD, UPGDW, AdaptiveUPGD)
    assert upgd.__all__ == ["UPGD", "UPGDW", "AdaptiveUPGD"]
    assert vgs.__all__ == ["VarianceGradientScaler"]
    assert vgs.VarianceGradientScaler is VarianceGradientScaler


def drawn(count, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        out = torch.empty(count)
        fill_normal_(out, seeded())
    finally:
        torch.set_num_threads(before)
    return out


@pytest.mark.parametrize("count", [5, (1 << 16) - 1, 1 << 16, (1 << 18) + 7])
def test_noise_does_not_depend_on_the_number_of_threads(count):
    assert torch.equal(drawn(count, 1), drawn(count, 3))


def test_short_noise_is_what_torch_draws():
    assert torch.equal(drawn(65_535, 1), torch.randn(65_535, generator=seeded()))


def test_long_noise_is_gaussian():
    noise = drawn((1 << 21) - 3, 2).double()  # the last row is cut
    error = 1 / math.sqrt(noise.numel())
    assert abs(noise.mean()) < 4 * error
    # even moments 1, 3, 15 with variances 2, 96, 10170 of one draw
    for power, moment, variance in ((2, 1, 2), (4, 3, 96), (6, 15, 10_170)):
        assert abs((noise**power).mean() - moment) < 4 * math.sqrt(variance) * error
    for edge in (0.5, 1.0, 2.0, 3.0, 4.0):
        share = math.erfc(edge / math.sqrt(2)) / 2
        spread = 4 * math.sqrt(share) * error
        assert abs((noise > edge).double().mean() - share) < spread
        assert abs((noise < -edge).double().mean() - share) < spread


def test_long_noise_has_no_pattern_in_rows_columns_or_rectangles():
    grid = drawn(1 << 21, 2).double().view(1024, 2048)
    error = 1 / math.sqrt(grid.numel())
    for down, across in ((1, 1), (7, 64), (128, 1024), (512, 3)):
        a, b = grid[:-down, :-across], grid[:-down, across:]
        c, d = grid[down:, :-across], grid[down:, across:]
        for pair in (a * b, a * c, a * d):
            assert abs(pair.mean()) < 4.5 * error
        # a generator that adds words of rows and columns passes all pairs and fails here
        assert abs((a * b * c * d).mean()) < 4.5 * error
        energy = (a**2 - 1) * (b**2 - 1) * (c**2 - 1) * (d**2 - 1)  # variance 2^4
        assert abs(energy.mean()) < 4.5 * 4 * error
    # the largest singular value of a Gaussian matrix lies near sqrt(1024) + sqrt(2048) = 77.25
    assert abs(torch.linalg.matrix_norm(grid.float(), 2) - 77.25) < 1.0


def test_the_next_noise_is_new():
    generator = seeded()
    first, second = torch.empty(70_000), torch.empty(70_000)
    fill_normal_(first, generator)
    fill_normal_(second, generator)
    assert (first == second).double().mean() < 1e-3


@every_norm
@pytest.mark.parametrize("value", [0.0, -0.3, 7.0, 1e-42])
def test_equal_utilities_keep_half(norm, value):
    share = step_share(torch.full((101,), value), norm=norm)
    assert torch.equal(share, torch.full((101,), 0.5))


@every_norm
def test_rounding_of_equal_utilities_is_no_range(norm):
    eps = torch.finfo(torch.float64).eps
    utility = 0.3 * (1 + eps * torch.tensor([0.0, 8.0, 60.0, 3.0], dtype=torch.float64))
    assert torch.equal(step_share(utility, norm=norm), torch.full((4,), 0.5).double())


@every_norm
def test_a_range_beyond_rounding_is_one(norm):
    eps = torch.finfo(torch.float64).eps
    utility = 0.3 * (1 + eps * torch.tensor([0.0, 8.0, 70.0, 3.0], dtype=torch.float64))
    _, width = gate_line(utility.amin(), utility.amax(), utility.mean(), norm=norm)
    assert torch.isfinite(width)


def test_the_golden_shares():
    utility = torch.tensor([-0.5, -0.3, -0.1], dtype=torch.float64)
    want = torch.tensor([0.7310585786, 0.5, 0.2689414214], dtype=torch.float64)
    for norm in ("centred", "minmax", "global_max"):  # the last falls back: no utility is positive
        torch.testing.assert_close(step_share(utility, norm=norm), want, rtol=0, atol=1e-10)


@every_kind
def test_noise_does_not_depend_on_the_groups(kind):
    one, two = parameters((3, 4), (5,)), parameters((3, 4), (5,))
    together = KINDS[kind](one, lr=0.1, generator=seeded())
    apart = KINDS[kind]([{"params": two[:1]}, {"params": two[1:]}], lr=0.1, generator=seeded())
    for t in range(3):
        give_gradients(one, t)
        give_gradients(two, t)
        together.step()
        apart.step()
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)


@every_kind
def test_buffers_left_over_from_other_shapes_do_no_harm(kind):
    params, twins = parameters((3, 4), (6, 2), (5,)), parameters((3, 4), (6, 2), (5,))
    optimizer = KINDS[kind](params, lr=0.1, generator=seeded())
    fresh = KINDS[kind](twins, lr=0.1, generator=seeded())
    for t in range(6):
        give_gradients(params, t)
        give_gradients(twins, t)
        params[t % 3].grad = twins[t % 3].grad = None
        optimizer.step()
        fresh._workspace = Workspace()
        fresh.step()
    for a, b in zip(params, twins, strict=True):
        assert torch.equal(a, b)


@every_kind
def test_memory_layout_does_not_matter(kind):
    plain = parameters((4, 6), dtype=torch.float32)
    turned = [nn.Parameter(plain[0].detach().t().contiguous().t())]
    assert not turned[0].is_contiguous()
    for t in range(4):
        give_gradients(plain, t)
        turned[0].grad = plain[0].grad.t().contiguous().t()
        if t == 0:
            ours, theirs = KINDS[kind](plain, lr=0.1), KINDS[kind](turned, lr=0.1)
        ours.step()
        theirs.step()
    assert torch.equal(plain[0], turned[0])


@every_kind
def test_a_step_scale_multiplies_the_step_and_not_the_decay(kind):
    params, twins = parameters((3, 4), (5,)), parameters((3, 4), (5,))
    settings = {"lr": 0.1, "weight_decay": 0.5, "sigma": 0.3}
    scaled = KINDS[kind](params, **settings, generator=seeded())
    whole = KINDS[kind](twins, **settings, generator=seeded())
    before = [p.detach().clone() for p in params]
    give_gradients(params, 1)
    give_gradients(twins, 1)
    scaled.set_step_scale(params, torch.tensor([0.25, 0.0]))
    scaled.step()
    whole.step()
    for p, q, start, factor in zip(params, twins, before, (0.25, 0.0), strict=True):
        decayed = start * (1 - 0.1 * 0.5)
        torch.testing.assert_close(p, decayed + factor * (q - decayed), rtol=0, atol=1e-14)


@every_kind
def test_a_step_scale_holds_until_it_is_cleared_and_is_not_saved(kind):
    params, twins = parameters((4,), (3,)), parameters((4,), (3,))
    scaled = KINDS[kind](params, lr=0.1, weight_decay=0.0)
    whole = KINDS[kind](twins, lr=0.1, weight_decay=0.0)
    scale = torch.ones(())
    scaled.set_step_scale(params[:1], [scale])
    assert "step_scale" not in scaled.state_dict()
    scale.zero_()  # read when the step is taken
    start = params[0].detach().clone()
    for t in range(2):
        give_gradients(params, t)
        scaled.step()
        give_gradients(twins, t)
        whole.step()
    assert torch.equal(params[0], start)
    scaled.clear_step_scale()
    give_gradients(params, 2)
    scaled.step()
    assert not torch.equal(params[0], start)


@every_kind
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_saved_state_goes_on_bit_for_bit(kind, dtype):
    params = parameters((3, 4), (5,), dtype=dtype)
    optimizer = KINDS[kind](params, lr=0.1, sigma=0.2)
    for t in range(3):
        give_gradients(params, t)
        optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    twins = [nn.Parameter(p.detach().clone()) for p in params]
    other = KINDS[kind](twins, lr=0.7, sigma=0.2, seed=11)
    other.load_state_dict(saved)
    for t in range(3, 6):
        give_gradients(params, t)
        give_gradients(twins, t)
        optimizer.step()
        other.step()
    for a, b in zip(params, twins, strict=True):
        assert torch.equal(a, b)
    now, then = optimizer.state_dict(), other.state_dict()
    assert torch.equal(now["generator"], then["generator"])
    for number, entry in now["state"].items():
        for key, value in entry.items():
            assert value.dtype == (torch.float32 if dtype == torch.bfloat16 else value.dtype)
            assert torch.equal(value, then["state"][number][key])


@every_kind
def test_a_loaded_state_shares_no_memory_with_the_saved_one(kind):
    params = parameters((3,))
    optimizer = KINDS[kind](params, lr=0.1)
    give_gradients(params, 0)
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    kept = copy.deepcopy(saved)
    other = KINDS[kind](parameters((3,)), lr=0.1)
    other.load_state_dict(saved)
    give_gradients(other.param_groups[0]["params"], 1)
    other.step()
    for key, value in saved["state"][0].items():
        assert torch.equal(value, kept["state"][0][key])


@every_kind
def test_a_deep_copy_takes_the_same_steps(kind):
    model = nn.Linear(3, 2).double()
    pair = {"model": model, "optimizer": KINDS[kind](model.parameters(), lr=0.1)}
    give_gradients(list(model.parameters()), 0)
    pair["optimizer"].step()
    twin = copy.deepcopy(pair)
    for one in (pair, twin):
        give_gradients(list(one["model"].parameters()), 1)
        one["optimizer"].step()
    for a, b in zip(pair["model"].parameters(), twin["model"].parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_frozen_parameter_with_an_old_gradient_stays():
    params = parameters((3,), (4,))
    optimizer = AdaptiveUPGD(params, lr=0.1)
    give_gradients(params, 0)
    params[0].requires_grad_(False)
    before = params[0].detach().clone()
    optimizer.step()
    assert torch.equal(params[0], before)
    assert params[0] not in optimizer.state


def test_noise_without_sigma_leaves_the_generator_alone():
    params = parameters((3,))
    optimizer = AdaptiveUPGD(params, lr=0.1, sigma=0.0, generator=seeded())
    give_gradients(params, 0)
    optimizer.step()
    assert torch.equal(optimizer.generator.get_state(), seeded().get_state())


def test_a_tensor_as_sigma_and_lr_gives_the_same_numbers():
    params, twins = parameters((3, 2), (4,)), parameters((3, 2), (4,))
    number = AdaptiveUPGD(params, lr=0.25, sigma=0.5, generator=seeded())
    lr, sigma = torch.tensor(0.25).double(), torch.tensor(0.5).double()
    tensor = AdaptiveUPGD(twins, lr=lr, sigma=sigma, generator=seeded(), capturable=True)
    for t in range(3):
        give_gradients(params, t)
        give_gradients(twins, t)
        number.step()
        tensor.step()
    for a, b in zip(params, twins, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)


@pytest.mark.refusal
def test_settings_out_of_range_are_refused_in_our_words():
    params = parameters((2,))
    with pytest.raises(RangeError, match=r"`lr` must be a finite number at least 0; found -1"):
        AdaptiveUPGD(params, lr=-1.0)
    with pytest.raises(RangeError, match=r"`beta_utility` must lie in \[0, 1\); found 1.0"):
        UPGD(params, beta_utility=1.0)
    with pytest.raises(RangeError, match=r"`betas\[1\]` must lie in \[0, 1\); found -0.5"):
        UPGDW(params, betas=(0.9, -0.5))
    with pytest.raises(RangeError, match="`lr_compensation` must be a finite number greater than"):
        UPGD(params, lr_compensation=0.0)
    with pytest.raises(RangeError, match="`sigma` must be a finite number at least 0; found nan"):
        UPGD(params, sigma=float("nan"))
    with pytest.raises(RangeError, match="`seed` must be a whole number"):
        UPGD(params, seed=-1)
    with pytest.raises(ShapeError, match="`lr` must be a number or a tensor without dimensions"):
        UPGD(params, lr=torch.ones(2))
    with pytest.raises(ChoiceError, match="Did you mean `minmax`"):
        UPGD(params, utility_norm="min_max")
    with pytest.raises(ChoiceError, match="`amsgrad` must be False; found True"):
        UPGDW(params, amsgrad=True)
    with pytest.raises(ChoiceError, match=r"`fused` must be False; found True. Leave it out, or"):
        UPGDW(params, fused=True)
    with pytest.raises(ChoiceError, match=r"`differentiable` must be False; found True. Use"):
        UPGDW(params, differentiable=True)
    with pytest.raises(ChoiceError, match="`foreach` must be None, True or False; found 'yes'"):
        UPGDW(params, foreach="yes")
    with pytest.raises(DtypeError, match="every parameter must be real and floating"):
        UPGD([torch.zeros(2, dtype=torch.complex64, requires_grad=True)])


@pytest.mark.refusal
def test_a_group_that_is_refused_is_not_kept():
    optimizer = UPGD(parameters((2,)))
    with pytest.raises(RangeError, match="`sigma` must be"):
        optimizer.add_param_group({"params": parameters((3,)), "sigma": -1.0})
    complex_one = torch.zeros(2, dtype=torch.complex64, requires_grad=True)
    with pytest.raises(DtypeError, match="every parameter must be"):
        optimizer.add_param_group({"params": [complex_one]})
    assert len(optimizer.param_groups) == 1


@pytest.mark.refusal
def test_the_state_of_another_optimizer_is_refused():
    params = parameters((2,))
    adam = torch.optim.AdamW(params)
    give_gradients(params, 0)
    adam.step()
    with pytest.raises(ArgumentError, match="must hold avg_utility, exp_avg, exp_avg_sq, step"):
        AdaptiveUPGD(params).load_state_dict(adam.state_dict())


@pytest.mark.refusal
def test_sparse_gradients_and_scales_without_a_parameter_are_refused():
    layer = nn.Embedding(4, 2, sparse=True)
    layer(torch.tensor([1])).sum().backward()
    optimizer = AdaptiveUPGD(layer.parameters())
    with pytest.raises(DtypeError, match=r"every gradient must be dense; found torch\.sparse_coo"):
        optimizer.step()
    with pytest.raises(ShapeError, match="`scales` must hold one number for each parameter"):
        optimizer.set_step_scale(list(layer.parameters()), torch.ones(2))


@pytest.mark.gpu
@pytest.mark.parametrize("noise_scale", ["absolute", "rms_update", "rms_grad"])
@every_kind
def test_captured_and_eager_steps_are_bit_identical(kind, noise_scale):
    made = []
    for _ in range(2):
        params = [nn.Parameter(p.cuda()) for p in parameters((64, 32), (65,), dtype=torch.float32)]
        for t, p in enumerate(params):
            p.grad = torch.full_like(p, 0.1 + t)
        rate = torch.tensor(0.01, device="cuda")
        optimizer = KINDS[kind](params, lr=rate, noise_scale=noise_scale, capturable=True)
        optimizer.set_step_scale(params, torch.tensor([0.5, 0.9], device="cuda"))
        made.append((params, optimizer))
    (eager, plain), (captured, recorded) = made
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        recorded.step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(recorded.generator)
    with torch.cuda.graph(graph):
        recorded.step()
    plain.step()
    for _ in range(5):
        graph.replay()
        plain.step()
    torch.cuda.synchronize()
    for a, b in zip(eager, captured, strict=True):
        assert torch.equal(a, b)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@every_kind
def test_a_step_never_waits_for_the_gpu(kind):
    params = [nn.Parameter(p.cuda()) for p in parameters((64, 32), (65,), dtype=torch.float32)]
    for p in params:
        p.grad = torch.ones_like(p)
    optimizer = KINDS[kind](params, noise_scale="rms_update")
    optimizer.set_step_scale(params, torch.tensor([0.5, 0.9], device="cuda"))
    optimizer.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
