"""The optimizers in code that is not ours: stable-baselines3 and a plain training loop."""

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from stormsail.optim import UPGD, UPGDW, AdaptiveUPGD, VarianceGradientScaler

ALL = [UPGD, AdaptiveUPGD, UPGDW]


@pytest.fixture
def cart_pole():
    env = gymnasium.make("CartPole-v1")
    yield env
    env.close()


def train(env, kind, *, seed=3, steps=512):
    sb3 = pytest.importorskip("stable_baselines3")
    model = sb3.PPO(
        "MlpPolicy",
        env,
        n_steps=128,
        batch_size=64,
        n_epochs=2,
        learning_rate=3e-4,
        seed=seed,
        device="cpu",
        policy_kwargs={"optimizer_class": kind, "optimizer_kwargs": {"sigma": 1e-3}},
    )
    return model.learn(steps)


@pytest.mark.parametrize("kind", ALL)
def test_stable_baselines_trains_with_it(cart_pole, kind):
    # Stable-baselines makes the optimizer before anything else knows the learning rate.
    torch.manual_seed(3)
    model = train(cart_pole, kind)
    assert type(model.policy.optimizer) is kind
    assert model.policy.optimizer.param_groups[0]["lr"] == 3e-4
    assert model.num_timesteps == 512
    vector = nn.utils.parameters_to_vector(model.policy.parameters())
    assert torch.isfinite(vector).all()
    counts = {int(s["step"]) for s in model.policy.optimizer.state.values()}
    assert counts == {512 // 128 * 2 * 2}


def test_without_optimizer_arguments_it_drops_in_too(cart_pole):
    sb3 = pytest.importorskip("stable_baselines3")
    model = sb3.PPO(
        "MlpPolicy",
        cart_pole,
        n_steps=128,
        seed=0,
        device="cpu",
        policy_kwargs={"optimizer_class": AdaptiveUPGD},
    )
    model.learn(128)
    assert type(model.policy.optimizer) is AdaptiveUPGD


def test_two_runs_of_one_seed_are_the_same(cart_pole):
    weights = []
    for _ in range(2):
        model = train(cart_pole, AdaptiveUPGD, steps=256)
        weights.append(nn.utils.parameters_to_vector(model.policy.parameters()).detach())
    assert torch.equal(*weights)


def test_a_saved_model_continues_where_it_was(cart_pole, tmp_path):
    sb3 = pytest.importorskip("stable_baselines3")
    model = train(cart_pole, AdaptiveUPGD, steps=256)
    model.save(tmp_path / "model")
    again = sb3.PPO.load(tmp_path / "model", device="cpu")
    rng = np.random.default_rng(0)
    for t in range(5):
        for ours, theirs in zip(model.policy.parameters(), again.policy.parameters(), strict=True):
            g = torch.tensor(rng.normal(size=ours.shape), dtype=torch.float32)
            ours.grad, theirs.grad = g.clone(), g.clone()
        model.policy.optimizer.step()
        again.policy.optimizer.step()
        for ours, theirs in zip(model.policy.parameters(), again.policy.parameters(), strict=True):
            assert torch.equal(ours, theirs), t


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("scaled", [False, True])
def test_a_plain_regression_is_solved(kind, scaled):
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(512, 4, generator=stream)
    y = torch.sin(x[:, :1]) + 0.5 * x[:, 1:2]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
    rate = 0.05 if kind is UPGD else 3e-3
    optimizer = kind(model.parameters(), lr=rate, sigma=1e-4, generator=stream)
    vgs = VarianceGradientScaler(model.named_parameters(), optimizer=optimizer) if scaled else None
    for _ in range(600):
        rows = torch.randint(512, (64,), generator=stream)
        optimizer.zero_grad()
        (model(x[rows]) - y[rows]).square().mean().backward()
        if vgs is not None:
            vgs.step()
        optimizer.step()
    error = (model(x) - y).square().mean().item()
    assert error < 0.05 * y.var().item()
