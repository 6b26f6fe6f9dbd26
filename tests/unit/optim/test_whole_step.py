"""A step as two calls of C++: the oracles, the eager step, what is refused, what it leaves alone.

Every number is one of float32 that was rounded some times: 6e-8 of its size each. The eager step
adds up norms, means of utilities and squared distances in another order, so 1e-6 of the largest
element after a step and 3e-6 after fifty are what the two may differ by.
"""

import copy
import math
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from oracles import upgd as oracle
from oracles import vgs as noise_oracle
from stormsail.core.machine_code import cpp
from stormsail.optim import UPGD, UPGDW, AdaptiveUPGD, GradientPipeline, VarianceGradientScaler
from stormsail.optim.fused.whole_step import SOURCE

COMPILER = any(shutil.which(name) for name in ("c++", "g++", "clang++"))
pytestmark = [
    pytest.mark.skipif(not COMPILER, reason="no C++ compiler"),
    # torch deprecates functions that its own compiler uses
    pytest.mark.filterwarnings("default"),
]

SHAPES = ((7, 5), (), (3, 4, 11), (1,), (16,), (1029,))
"""Less than a vector, none left over, more than a block, a number without dimensions."""


@pytest.fixture(scope="module")
def library():
    return cpp.compiled_library(SOURCE, instead="wait")


def seeded(seed):
    return torch.Generator().manual_seed(seed)


class Learner:
    """Parameters in two groups with a pipeline; they lie in one row with marks between them."""

    def __init__(
        self, library=None, *, shapes=SHAPES, kind=AdaptiveUPGD, scaler=True, bound=1.0,
        other=None, first=0, reference="median", alpha=1.0, dtype=torch.float32, **options,
    ):  # fmt: skip
        stream = seeded(1)
        sizes = [math.prod(shape) for shape in shapes]
        self.row = torch.full((sum(sizes) + len(sizes) + 1 + first,), math.nan, dtype=dtype)
        self.marks = len(sizes) + 1 + first
        self.params, start = [], 1 + first
        for shape, size in zip(shapes, sizes, strict=True):
            view = self.row[start : start + size].view(shape)
            view.copy_(0.3 * torch.randn(shape, generator=stream))
            self.params.append(nn.Parameter(view))
            start += size + 1
        own = {"lr": 0.01, "sigma": 0.1, "weight_decay": 0.05, **options}
        half = max(len(shapes) // 2, 1)
        groups = [{"params": self.params[half:]}, {"params": self.params[:half], **(other or {})}]
        self.optimizer = kind([g for g in groups if g["params"]], seed=9, **own)
        self.scaler = None
        if scaler:
            named = [(str(i), p) for i, p in reversed(list(enumerate(self.params)))]
            self.scaler = VarianceGradientScaler(
                named, optimizer=self.optimizer, alpha=alpha, min_scaling_factor=0.01,
                warmup_steps=3, reference=reference, beta=0.9,
            )  # fmt: skip
        self.pipe = GradientPipeline(
            self.params, self.optimizer, scaler=self.scaler, max_grad_norm=bound
        )
        if library is not None:
            self.pipe.call_whole_steps(library)
        self.stream = seeded(5)

    def give(self, skip=(), scale=1.0):
        for place, p in enumerate(self.params):
            grad = scale * (0.1 + 0.3 * torch.randn(p.shape, generator=self.stream))
            p.grad = None if place in skip else grad.to(p.dtype)

    def step(self, skip=(), scale=1.0):
        self.give(skip, scale)
        return self.pipe.step()

    def everything(self):
        """Return all that a step may change, by name."""
        assert int(self.row.isnan().sum()) == self.marks, "nothing beside a parameter is written"
        found = {"row": self.row.nan_to_num(0.0)}
        for place, p in enumerate(self.params):
            state = self.optimizer.state[p]
            found |= {f"{place}.{key}": value.clone() for key, value in state.items()}
        if self.scaler is not None:
            saved = self.scaler.state_dict()
            for name, rows in saved["parameters"].items():
                found |= {f"vgs.{name}.{key}": value for key, value in rows.items()}
            found |= {f"vgs.{key}": saved[key] for key in ("steps", "largest")}
            found |= {f"vgs.nonfinite.{n}": v for n, v in saved["nonfinite"].items()}
        return found

    def same_as(self, other):
        found, wanted = self.everything(), other.everything()
        assert found.keys() == wanted.keys()
        states = [own.optimizer.generator.get_state() for own in (self, other)]
        return torch.equal(*states) and all(torch.equal(found[k], wanted[k]) for k in wanted)


def assert_close(ours, theirs, relative):
    found, wanted = ours.everything(), theirs.everything()
    assert found.keys() == wanted.keys()
    sizes = {}
    for name, value in wanted.items():  # an average of one number may come near 0: of all tensors
        kind = name.rpartition(".")[2]
        sizes[kind] = max(float(value.double().abs().max()), sizes.get(kind, 0.0))
    for name, value in wanted.items():
        of, _, kind = name.rpartition(".")
        size = sizes[kind]
        if kind == "mean_square":  # a difference, as large as what it is of
            size += float(wanted[f"{of}.spread"])
        error = float((found[name].double() - value.double()).abs().max())
        assert error <= relative * size, (name, error, size)
        assert found[name].dtype == value.dtype, name
    assert torch.equal(ours.optimizer.generator.get_state(), theirs.optimizer.generator.get_state())


def assert_reports(found, wanted):
    for field, value in wanted._asdict().items():
        own = getattr(found, field)
        assert own.dtype == value.dtype, field
        torch.testing.assert_close(own, value, rtol=3e-7, atol=0.0, msg=field)


CHOICES = {
    "defaults": {},
    "the level of the signal": {"reference": "absolute"},
    "no scaler, no bound": {"scaler": False, "bound": 0.0},
    "along the gradient": {"kind": UPGD},
    "no noise": {"kind": UPGDW, "sigma": 0.0, "utility_norm": "abs_max"},
    "groups": {
        "utility_norm": "minmax", "noise_scale": "rms_grad", "maximize": True, "betas": (0.0, 0.9),
        "other": {"lr": 0.03, "utility_norm": "global_max", "sigma": 0.0, "weight_decay": 0.0,
                  "betas": (0.8, 0.99), "beta_utility": 0.5, "maximize": False},
    },
    "not aligned, seldom clipped": {"first": 3, "bound": 100.0},
}  # fmt: skip


@pytest.mark.parametrize("options", CHOICES.values(), ids=CHOICES)
def test_fifty_steps_are_the_eager_ones(library, options):
    ours, theirs = Learner(library, **options), Learner(**options)
    for round_ in range(50):
        scale = 30.0 if round_ % 10 == 9 else 1.0  # a burst, for the median and the clip
        assert_reports(ours.step(scale=scale), theirs.step(scale=scale))
        assert_close(ours, theirs, 1e-6 + 4e-8 * round_)


@pytest.mark.parametrize("norm", ["centred", "minmax", "global_max", "abs_max"])
@pytest.mark.parametrize("kind", [UPGD, AdaptiveUPGD])
def test_steps_equal_both_oracles(library, kind, norm):
    shapes, bound = ((3, 5), (1,), (17,)), 1.0
    ours = Learner(library, shapes=shapes, kind=kind, bound=bound, utility_norm=norm)
    start = [p.detach().double().numpy().copy() for p in ours.params]
    own = {"lr": 0.01, "sigma": 0.1, "weight_decay": 0.05}
    own["betas"] = None if kind is UPGD else (0.9, 0.999)
    exact = oracle.Upgd(start, [own] * len(start), utility_norm=norm)
    history, variances = [[] for _ in shapes], [[] for _ in shapes]
    source = ours.optimizer.generator.clone_state()
    order = [place for group in ours.optimizer.param_groups for p in group["params"]
             for place, other in enumerate(ours.params) if other is p]  # fmt: skip
    shrunk = False
    for _ in range(8):
        ours.give()
        grads = [p.grad.double().numpy().copy() for p in ours.params]
        length = math.sqrt(sum(float((g * g).sum()) for g in grads))
        share = min(1.0, bound / (length + 1e-6))
        factors = []
        for place, grad in enumerate(grads):
            history[place].append(grad)
            variances[place].append(noise_oracle.elementwise(history[place], 0.9)[0])
            level = noise_oracle.slow_median(variances[place], 0.9, warmup=3)[-1]
            ratio = noise_oracle.excess(variances[place][-1], level)
            warm = len(history[place]) >= 3
            factors.append(noise_oracle.factor(ratio, alpha=1.0, least=0.01) if warm else 1.0)
        drawn = torch.empty(sum(p.numel() for p in ours.params)).normal_(generator=source)
        parts = dict(zip(order, drawn.split([ours.params[i].numel() for i in order]), strict=True))
        noise = [parts[i].double().numpy().reshape(shape) for i, shape in enumerate(shapes)]
        report = ours.pipe.step()
        assert float(report.raw_norm) == pytest.approx(length, rel=1e-7)
        assert float(report.grad_norm_post_clip) == pytest.approx(length * share, rel=1e-7)
        exact.step([share * grad for grad in grads], noise, factors)
        for p, wanted in zip(ours.params, exact.params, strict=True):
            np.testing.assert_allclose(p.detach().numpy(), wanted, rtol=2e-6, atol=1e-6)
        shrunk = shrunk or min(factors) < 1.0
    assert shrunk


@settings(max_examples=40, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(1, 40), max_size=2).map(tuple), min_size=1, max_size=5),
    first=st.integers(0, 3),
    exponent=st.integers(-12, 9),
    data=st.data(),
)
def test_steps_of_any_sizes_are_the_eager_ones(shapes, first, exponent, data):
    library = cpp.compiled_library(SOURCE, instead="wait")
    missing = [data.draw(st.sets(st.integers(0, len(shapes) - 1))) for _ in range(3)]
    ours, theirs = (Learner(each, shapes=shapes, first=first) for each in (library, None))
    for skip in missing:
        found, wanted = (own.step(skip, 10.0**exponent) for own in (ours, theirs))
        assert_reports(found, wanted)
        assert_close(ours, theirs, 1e-6)


@pytest.mark.parametrize("norm", ["centred", "minmax", "global_max", "abs_max"])
def test_utilities_of_one_sign_have_no_range_beyond_their_own(library, norm):
    ours, theirs = (
        Learner(each, shapes=((3,), (18,)), utility_norm=norm) for each in (library, None)
    )
    for own in (ours, theirs):
        own.give()
        for p in own.params:
            p.data.copy_(1.0 + p.detach().abs())
            p.grad.copy_(-1.0 - p.grad.abs())
        own.pipe.step()
    assert_close(ours, theirs, 1e-6)


def test_a_refused_step_changes_no_bit_but_the_count(library):
    ours, theirs = Learner(library), Learner()
    for first in (True, False):
        for bad in (math.nan, math.inf, -1e20):  # the square of the last is not finite
            before, position = ours.everything(), ours.optimizer.generator.get_state()
            reports = []
            for own in (ours, theirs):
                own.give()
                own.params[2].grad[1, 2, 0] = bad
                reports.append(own.pipe.step())
            after = ours.everything()
            assert not bool(reports[0].stepped)
            assert int(reports[0].nonfinite) == int(reports[1].nonfinite) == 1
            counts = [own.pop("vgs.nonfinite.2") for own in (before, after)]
            assert int(counts[1] - counts[0]) == 1
            assert all(torch.equal(after[name], value) for name, value in before.items())
            assert torch.equal(ours.optimizer.generator.get_state(), position)
            if first:
                assert not any(ours.optimizer.state[p] for p in ours.params)
        if first:
            ours.step(), theirs.step()
    assert_close(ours, theirs, 1e-6)


def test_a_gradient_that_the_scaler_cannot_measure_is_counted_and_not_learned_from(library):
    ours, theirs = Learner(library), Learner()
    for large in (0.0, 2e15, 0.0):
        for own in (ours, theirs):
            own.give()
            own.params[4].grad[3] += large
            assert bool(own.pipe.step().stepped)
        assert_close(ours, theirs, 1e-6)
    assert int(ours.scaler.nonfinite()["4"]) == 1


def test_a_frozen_parameter_stays_as_it_is(library):
    ours, theirs = Learner(library), Learner()
    for own in (ours, theirs):
        own.params[0].requires_grad_(False)
    before = ours.params[0].detach().clone()
    for _ in range(3):
        assert_reports(ours.step(skip=(0,)), theirs.step(skip=(0,)))
    assert_close(ours, theirs, 1e-6)
    assert torch.equal(ours.params[0], before)


def with_a_tensor_as_rate(own):
    own.optimizer.param_groups[0]["lr"] = torch.tensor(0.02)


def with_a_scale_of_the_step(own):
    own.optimizer.set_step_scale(own.params[:1], torch.tensor([0.5]))


def with_a_frozen_parameter_that_has_a_gradient(own):
    own.params[0].requires_grad_(False)


def with_a_gradient_with_gaps(own):
    own.params[0].grad = own.params[0].grad.t().contiguous().t()


def with_nothing_to_learn_from(own):
    own.give(skip=range(len(SHAPES)))


PLAIN = {
    "another precision": ({"dtype": torch.float64}, None),
    "the published steps": ({"variant": "official"}, None),
    "noise in units of the step": ({"noise_scale": "rms_update"}, None),
    "a tensor as rate": ({}, with_a_tensor_as_rate),
    "a scale of the step": ({"scaler": False}, with_a_scale_of_the_step),
    "frozen, with a gradient": ({}, with_a_frozen_parameter_that_has_a_gradient),
    "a gradient with gaps": ({}, with_a_gradient_with_gaps),
    "no gradient": ({}, with_nothing_to_learn_from),
}


@pytest.mark.parametrize(("options", "change"), PLAIN.values(), ids=PLAIN)
def test_what_the_machine_code_does_not_know_is_done_by_calls(options, change):
    def forbidden(*_):
        raise AssertionError("a call of the machine code")

    ours, theirs = Learner(forbidden, **options), Learner(**options)
    for own in (ours, theirs):
        own.give()
        if change is not None:
            change(own)
    assert_reports(ours.pipe.step(), theirs.pipe.step())
    assert ours.same_as(theirs)


def test_a_vetoed_step_and_another_optimizer_are_done_by_calls():
    def forbidden(*_):
        raise AssertionError("a call of the machine code")

    ours = Learner(forbidden)
    ours.give()
    assert not bool(ours.pipe.step(veto=torch.tensor(True)).stepped)
    params = [nn.Parameter(torch.ones(3))]
    pipe = GradientPipeline(params, torch.optim.AdamW(params))
    pipe.call_whole_steps(forbidden)
    params[0].grad = torch.ones(3)
    assert bool(pipe.step().stepped)


def test_a_saved_state_continues_bit_for_bit(library):
    whole = Learner(library)
    for _ in range(5):
        whole.step()
    weights = [p.detach().clone() for p in whole.params]
    saved = copy.deepcopy((whole.optimizer.state_dict(), whole.scaler.state_dict()))
    later = Learner(library)
    later.step()
    for p, weight in zip(later.params, weights, strict=True):
        p.data.copy_(weight)
    later.optimizer.load_state_dict(saved[0])
    later.scaler.load_state_dict(saved[1])
    later.stream.set_state(whole.stream.get_state())
    for _ in range(5):
        whole.step(), later.step()
    assert later.same_as(whole)


def test_hooks_and_schedulers_see_a_step_and_its_settings_are_those_after_them(library):
    ours, theirs = Learner(library), Learner()
    for own in (ours, theirs):

        def halve(optimizer, *_):
            optimizer.param_groups[0]["lr"] *= 0.5

        own.optimizer.register_step_pre_hook(halve)
        schedule = torch.optim.lr_scheduler.ExponentialLR(own.optimizer, 0.5)
        for _ in range(3):
            own.step()
            schedule.step()
    assert_close(ours, theirs, 1e-6)


def test_gradients_stay_raw(library):
    ours = Learner(library)
    ours.give(scale=100.0)
    raw = [p.grad.clone() for p in ours.params]
    report = ours.pipe.step()
    assert float(report.grad_norm_post_clip) == pytest.approx(1.0, rel=1e-6)
    assert all(torch.equal(p.grad, grad) for p, grad in zip(ours.params, raw, strict=True))
