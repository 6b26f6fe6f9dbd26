"""Heads on one input for a CUDA device give the numbers of the plain layers, forward and back."""

import pytest
import torch

from stormsail.core.task import DiscreteActions
from stormsail.functional.kernels.layers import dense as products
from stormsail.functional.kernels.layers.heads import Head, heads
from stormsail.modules import layers
from stormsail.modules.config import CriticConfig, NetworkConfig, PolicyConfig
from stormsail.modules.network import Network

SIZES = {  # leading shape, inputs, units, heads and outputs of each group
    "odd": ((3, 7), 5, 9, ((1, 5), (2, 3))),
    "wide": ((2, 5), 32, 144, ((1, 1), (3, 32))),
    "two programs of rows": ((3, 701), 2, 18, ((2, 17),)),
    "one row": ((1, 1), 3, 4, ((1, 2), (1, 2))),
    "no row": ((0, 4), 3, 4, ((1, 2), (2, 3))),
}


def draw(size, device, *, scale=1.0):
    """Return the input and the weights of all heads, float64, in the order of the groups."""
    shape, inputs, units, groups = size
    source = torch.Generator().manual_seed(0)

    def normal(*sizes, width=1):
        drawn = torch.randn(*sizes, generator=source, dtype=torch.float64) / width**0.5
        return (scale * drawn).to(device).requires_grad_()

    own = [
        [
            Head(
                normal(units, inputs, width=inputs),
                normal(units),
                normal(outputs, units, width=units),
                normal(outputs),
            )
            for _ in range(count)
        ]
        for count, outputs in groups
    ]
    return normal(*shape, inputs), own


def plain(x, groups):
    linear = torch.nn.functional.linear
    return [
        torch.stack([linear(linear(x, *head[:2]).tanh(), *head[2:]) for head in group], -2)
        for group in groups
    ]


def rounded(x, groups):
    """Return leaves of the same numbers in float32."""
    own = [
        [Head(*(part.detach().float().requires_grad_() for part in h)) for h in g] for g in groups
    ]
    return x.detach().float().requires_grad_(), own


def gradients(results, x, groups, *, used=None):
    leaves = [x, *(part for group in groups for head in group for part in head)]
    total = 0.0
    for place, result in enumerate(results):
        if used is None or place in used:
            share = 2.0 + torch.sin(torch.arange(result.numel(), device=x.device) + 1.0)
            total = total + (result * share.view(result.shape).to(result.dtype)).sum()
    return torch.autograd.grad(total, leaves, allow_unused=True)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_values_and_gradients_are_those_of_the_plain_layers(size, device):
    exact = draw(size, device)
    mine = rounded(*exact)
    got, want = heads(*mine), plain(*exact)
    pairs = zip((*got, *gradients(got, *mine)), (*want, *gradients(want, *exact)), strict=True)
    for a, b in pairs:
        assert a.shape == b.shape
        torch.testing.assert_close(a.double(), b, rtol=2e-5, atol=2e-5 * max(1, len(b) ** 0.5))


def test_the_product_with_its_tanh_serves_all_heads(device, monkeypatch):
    """The interpreter multiplies no matrices of bfloat16, which alone go through it on a GPU."""
    monkeypatch.setattr(products, "_is_whole", lambda *_: True)
    exact = draw(((2, 9), 32, 48, ((1, 5), (2, 32))), device)
    mine = rounded(*exact)
    for a, b in zip(heads(*mine), plain(*exact), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-3)


def test_a_group_that_nobody_asks_has_no_gradient(device):
    exact = draw(SIZES["odd"], device)
    mine = rounded(*exact)
    got = gradients(heads(*mine), *mine, used=[1])
    want = gradients(plain(*exact), *exact, used=[1])
    for a, b in zip(got, want, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a.double(), b, rtol=2e-5, atol=2e-5)


def test_a_gradient_with_gaps_between_its_rows_is_that_without(device):
    x, groups = rounded(*draw(SIZES["odd"], device))
    result = heads(x, groups)[1]
    wide = torch.linspace(-1.0, 2.0, 2 * result.numel(), device=device)
    leaves = [x, *(part for head in groups[1] for part in head)]
    for share in (
        wide.view(3, 7, 2, 2, 3)[:, :, 1],
        wide.view(3, 2, 3, 14)[..., :7].movedim(-1, 1),
    ):
        got = torch.autograd.grad(result, leaves, share, retain_graph=True)
        want = torch.autograd.grad(result, leaves, share.contiguous(), retain_graph=True)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


SHAPES = {  # settings, columns past the memory, groups of each call of `heads`
    "shallow": ({}, (), [2]),
    "account past the memory": ({}, (1, 3), [1]),
    "memory of the critics' own": ({"enable_critic_lstm": True}, (), [1]),
    "two layers": ({"head_sizes": (7, 6)}, (), []),
    "no layer": ({"head_sizes": ()}, (), []),
    "another activation": ({"activation": "relu"}, (), []),
}


@pytest.mark.parametrize(("settings", "past", "calls"), SHAPES.values(), ids=SHAPES)
def test_a_network_is_the_same_through_kernels(settings, past, calls, device, monkeypatch):
    shape = {"encoder_sizes": (8,), "lstm_hidden_size": 6, "head_sizes": (7,), **settings}
    network = Network(
        5,
        DiscreteActions(3),
        network=NetworkConfig(**shape),
        policy=PolicyConfig(),
        critic=CriticConfig(num_quantiles=5),
        generator=torch.Generator().manual_seed(3),
        after_memory=past,
    ).to(device)
    source = torch.Generator().manual_seed(4)
    observation = torch.randn(3, 4, 5, generator=source).to(device)
    trunks = [torch.randn(3, 4, 6, generator=source).to(device).requires_grad_()]
    trunks += [trunks[0].detach().clone().requires_grad_()] * (network.critic_trunk is not None)
    asked = []
    monkeypatch.setattr(layers, "heads", lambda x, groups: asked.append(groups) or heads(x, groups))

    def run(*, launches):
        monkeypatch.setattr(layers, "may_launch", lambda *_: launches)
        results = network.heads(observation, trunks)
        total = sum((3.0 * result).sin().sum() for result in results)
        return *results, *torch.autograd.grad(total, [*trunks, *network.head_parameters()])

    got = run(launches=True)
    assert [len(groups) for groups in asked] == calls
    for a, b in zip(got, run(launches=False), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert [len(groups) for groups in asked] == calls


@pytest.mark.gpu
@pytest.mark.parametrize("units", [256, 64])
def test_heads_of_a_minibatch_in_bfloat16(units):
    exact = draw(((64, 4096), units, units, ((1, 5), (2, 32))), "cuda")
    mine = rounded(*exact)
    got, want = heads(*mine, dtype=torch.bfloat16), plain(*exact)
    assert {part.dtype for part in got} == {torch.float32}
    pairs = zip((*got, *gradients(got, *mine)), (*want, *gradients(want, *exact)), strict=True)
    for a, b in pairs:
        assert float((a.detach().double() - b.detach()).norm() / b.detach().norm()) < 1e-2
