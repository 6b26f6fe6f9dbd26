"""A user's project that calls the front door as people write it; type checkers read it."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

import stormsail as ss
from stormsail.functional import risk
from stormsail.optim import AdaptiveUPGD


class EarlyStop(ss.Callback):
    """Stop once the score has not improved for some evaluations."""

    def __init__(self, patience: int) -> None:
        self.patience, self.waited = patience, 0

    def on_evaluation(self, evaluated: ss.Evaluated) -> ss.Stop | None:
        self.waited = 0 if evaluated.is_best else self.waited + 1
        score: float = evaluated.evaluation.score
        return ss.Stop(f"no better than {score:.3g}") if self.waited >= self.patience else None

    def on_update(self, progress: ss.Progress) -> None:
        value: float = progress.metrics["train/approx_kl"]
        print(progress.update, value, progress.best_score)

    def on_checkpoint(self, checkpoint: ss.Checkpoint) -> None:
        print(checkpoint.path / "manifest.json")


class Corridor(gymnasium.Env[NDArray[np.float32], np.int64]):
    """An environment of the user's own."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)


def learn(out: Path) -> ss.Run:
    """Train by settings, on an id, an object and a factory."""
    run: ss.Run = ss.train(env="CartPole-v1", out=out, ppo={"n_envs": 8}, seed=1)
    ss.train(env=Corridor(), callbacks=[EarlyStop(3)])
    ss.train(env=lambda: Corridor())
    ss.train("configs/cartpole.toml", ppo={"total_steps": 1000})
    ss.train(ss.TrainConfig(seed=3), extend_to=100)
    kl: NDArray[np.float64] = run.metrics["train/approx_kl"]
    print(kl.mean(), run.folder / "config.toml", run.status, run.best_score)
    return run


def act(path: str) -> NDArray[Any]:
    """Decide with arrays and with tensors."""
    agent = ss.Agent.load(path)
    decision: ss.ArrayDecision = agent.decide(np.zeros(4))
    again: ss.ArrayDecision = agent.decide(np.zeros(4), decision.memory, deterministic=True)
    tensors: ss.Decision = agent.decide(torch.zeros(8, 4), generator=torch.Generator())
    value: torch.Tensor = tensors.value
    result: ss.Evaluation = agent.evaluate("CartPole-v1", episodes=16, policy="both")
    agent.evaluate(Corridor())
    print(value.mean(), result.score, result.cvar, result.policy)
    action: NDArray[Any] = again.action
    return action


def judge(store: Path) -> ss.Validation:
    """Trade, validate and report."""
    bars: ss.Panel = ss.load_bars(store, symbols=["BTC/USDT"], interval="1h")
    result: ss.Backtest = ss.backtest("runs/market", bars, start="2024-01-01T00:00:00Z")
    found: ss.Validation = ss.validate("market.toml", {"folds": 3}, out="judged")
    page: Path = ss.report([result, found, "runs/market"], "page.html")
    market = ss.make_market(bars, num_envs=16, config={"episode_bars": 100})
    observation, _ = market.reset(seed=0)
    print(page, result.metrics.sharpe.value, found.verdict.decision, observation.shape)
    return found


def loop(model: torch.nn.Module) -> torch.Tensor:
    """Use a formula and an optimizer in a plain loop."""
    optimizer = AdaptiveUPGD(model.parameters(), lr=1e-3)
    tail = risk.cvar(torch.randn(8, 32), alpha=0.05)
    optimizer.step()
    again: torch.Tensor = ss.functional.risk.cvar(torch.randn(8, 32), alpha=0.05)
    return tail + again


def careful(path: str) -> str:
    """Catch all that the package refuses on purpose."""
    try:
        return repr(ss.Agent.load(path))
    except ss.StormsailError as error:
        code: str = error.code
        return code
