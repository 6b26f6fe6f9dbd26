"""Advantages and n-step targets for a CUDA device are those of the definitions."""

import math

import numpy as np
import pytest
import torch

from oracles import returns as oracle
from stormsail.functional import returns
from stormsail.functional.kernels import target_rows

SHARES = {"some ends": 0.2, "no end": 0.0, "every row ends": 1.0}


def draw(rows, batch, atoms, *, share=0.2, dtype=torch.float64, device="cpu"):
    source = torch.Generator().manual_seed(rows)

    def normal(*shape):
        return torch.randn(*shape, generator=source, dtype=torch.float64).to(device, dtype)

    def flags():
        return (torch.rand(rows, batch, generator=source) < share).to(device)

    columns = [normal(rows, batch) for _ in range(3)]
    return columns, normal(rows, batch, atoms), (flags(), flags())


@pytest.mark.parametrize("share", SHARES.values(), ids=SHARES)
def test_advantages_are_those_of_the_oracle(share, device):
    (reward, value, ahead), _, flags = draw(6, 5, 1, share=share, device=device)
    got = target_rows.gae(reward, value, ahead, *flags, gamma=0.9, lam=0.7)
    args = [part.cpu().numpy() for part in (reward, value, ahead, *flags)]
    np.testing.assert_allclose(got.cpu(), oracle.gae(*args, 0.9, 0.7), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("share", SHARES.values(), ids=SHARES)
@pytest.mark.parametrize("steps", [1, 3, 9])
def test_atoms_are_those_of_the_oracle(share, steps, device):
    (reward, *_), atoms, flags = draw(6, 5, 3, share=share, device=device)
    options = {"gamma": 0.9, "steps": steps}
    got = target_rows.quantile_nstep_targets(reward, atoms, *flags, **options)
    args = [part.cpu().numpy() for part in (reward, atoms, *flags)]
    want = oracle.quantile_nstep_targets(*args, 0.9, steps)
    np.testing.assert_allclose(got.cpu(), want, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("steps", [1, 4, 7])
def test_windows_are_those_of_the_plain_formula(steps, device):
    (reward, *_), _, flags = draw(7, 70, 1, device=device)
    got = target_rows.windows(reward, *flags, gamma=0.9, steps=steps)
    cpu = [part.cpu() for part in (reward, *flags)]
    for mine, want in zip(got, returns._windows(*cpu, gamma=0.9, steps=steps), strict=True):
        torch.testing.assert_close(mine.cpu(), want, rtol=1e-12, atol=1e-14)


def test_what_lies_behind_an_end_is_never_read(device):
    (reward, value, ahead), atoms, (final, cut) = draw(5, 3, 2, share=0.0, device=device)
    final[2, 1] = True
    ahead[2, 1], atoms[2, 1] = math.nan, math.nan  # of a state that has no value
    reward[3, 1] = math.nan  # of the next episode
    got = target_rows.gae(reward, value, ahead, final, cut, gamma=0.9, lam=0.7)
    assert got.isnan().nonzero().tolist() == [[3, 1]]
    got = target_rows.quantile_nstep_targets(reward, atoms, final, cut, gamma=0.9, steps=5)
    assert got.isnan().any(-1).nonzero().tolist() == [[3, 1]]


def test_discounts_may_be_tensors_and_inputs_strided(device):
    (reward, value, ahead), atoms, flags = draw(4, 6, 3, device=device)
    gamma, lam = (torch.tensor(x, dtype=torch.float64, device=device) for x in (0.9, 0.7))
    turned = reward.t().contiguous().t()
    got = target_rows.gae(turned, value, ahead, *flags, gamma=gamma, lam=lam)
    assert torch.equal(got, target_rows.gae(reward, value, ahead, *flags, gamma=0.9, lam=0.7))
    got = target_rows.quantile_nstep_targets(turned, atoms, *flags, gamma=gamma, steps=2)
    want = target_rows.quantile_nstep_targets(reward, atoms, *flags, gamma=0.9, steps=2)
    assert torch.equal(got, want)
    mine = target_rows.windows(turned, *flags, gamma=gamma, steps=2)
    want = target_rows.windows(reward, *flags, gamma=0.9, steps=2)
    assert all(torch.equal(a, b) for a, b in zip(mine, want, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["gae", "quantile", "categorical"])
def test_a_large_rollout_is_that_of_the_plain_formula(kind):
    columns, atoms, flags = draw(64, 4099, 32, share=0.02, dtype=torch.float32, device="cuda")
    support = torch.linspace(-3.0, 3.0, 32)

    def targets(columns, atoms, flags):
        if kind == "gae":
            return returns.gae(*columns, *flags, gamma=0.99, lam=0.95)
        options = {"gamma": 0.99, "steps": 64}
        if kind == "quantile":
            return returns.quantile_nstep_targets(columns[0], atoms, *flags, **options)
        probs = atoms.softmax(-1)
        place = support.to(probs)
        return returns.categorical_nstep_targets(columns[0], probs, *flags, place, **options)

    cpu = [x.cpu() for x in columns], atoms.cpu(), [x.cpu() for x in flags]
    got = targets(columns, atoms, flags)
    torch.testing.assert_close(got.cpu(), targets(*cpu), rtol=1e-4, atol=1e-4)
