"""Values of the wrong Python type are refused by the name of their argument, before any work."""

import numpy as np
import pytest
import torch

import stormsail as ss
from stormsail.core.errors import ArgumentError, ArtifactError, ChoiceError, DataError

pytestmark = pytest.mark.refusal

SEEN = np.zeros(4, np.float32)
ODD = {
    "number": 12,
    "bytes": b"x",
    "object": object(),
    "class": int,
    "array": np.zeros(3),
    "tensor": torch.zeros(3),
    "nul": "a\0b",
    "long": "n" * 5000,
}
"""What no argument of text, path or object takes."""


@pytest.fixture(scope="module")
def agent(cartpole):
    return cartpole.best_agent


@pytest.mark.parametrize("odd", ODD)
def test_no_call_takes_what_it_cannot_mean(odd, agent, market, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    value = ODD[odd]
    store = str(market / "store")
    word = isinstance(value, str)
    calls = {
        "Agent.load": lambda: ss.Agent.load(value),
        "device": lambda: ss.Agent.load(agent.folder, device=value),
        "observation": lambda: agent.decide(value),
        "memory": lambda: agent.decide(SEEN, value),
        "mask": lambda: agent.decide(SEEN, mask=value),
        "generator": lambda: agent.decide(SEEN, generator=value, deterministic=False),
        "deterministic": lambda: agent.decide(SEEN, deterministic=value),
        "evaluate": lambda: agent.evaluate(value, episodes=1),
        "policy": lambda: agent.evaluate("CartPole-v1", policy=value),
        "alpha": lambda: agent.evaluate("CartPole-v1", alpha=value),
        "train": lambda: ss.train(value),
        "env": lambda: ss.train(env=value),
        "out": lambda: ss.train(env="CartPole-v1", out=value),
        "start_from": lambda: ss.train(env="CartPole-v1", start_from=value),
        "callbacks": lambda: ss.train(env="CartPole-v1", callbacks=[value]),
        "loggers": lambda: ss.train(env="CartPole-v1", loggers=[value]),
        "clock": lambda: ss.train(env="CartPole-v1", clock=value),
        "tensorboard": lambda: ss.train(env="CartPole-v1", tensorboard=value),
        "keep_optimizer": lambda: ss.train(env="CartPole-v1", keep_optimizer=value),
        "backtest": lambda: ss.backtest(value, store),
        "bars": lambda: ss.backtest(agent, value),
        "config": lambda: ss.backtest(agent, store, value),
        "out of a backtest": lambda: ss.backtest(agent, store, out=value),
        "workspace": lambda: ss.backtest(agent, store, workspace=value),
        "load_bars": lambda: ss.load_bars(value),
        "symbols": lambda: ss.load_bars(store, symbols=value),
        "interval": lambda: ss.load_bars(store, interval=value),
        "make_market": lambda: ss.make_market(value),
        "agent of a market": lambda: ss.make_market(store, agent=value),
        "span": lambda: ss.make_market(span=value),
        "render_mode": lambda: ss.make_market(render_mode=value),
        "validate": lambda: ss.validate(value),
        "rules": lambda: ss.validate(ss.TrainConfig(), value),
        "explanations": lambda: ss.validate(ss.TrainConfig(), explanations=value),
        "clock of a validation": lambda: ss.validate(ss.TrainConfig(), clock=value),
        "report": lambda: ss.report(value, "page.html"),
        "runs": lambda: ss.report([], "page.html", runs=value),
        "Panel": lambda: ss.Panel.from_bars(value),
        "file": lambda: ss.TrainConfig.load(value),
        "cvar": lambda: ss.functional.risk.cvar([value], alpha=0.05),
    }
    if not word:
        calls |= {
            "name": lambda: ss.validate(ss.TrainConfig(), name=value),
            "page": lambda: ss.report([], value),
            "what is a world": lambda: ss.world(name="odd_world")(value),
            "name of a task": lambda: ss.task(name=value)(len),
        }
    if odd != "class":
        calls |= {
            "what is a reward": lambda: ss.reward(name="odd_reward")(value),
            "what is a network": lambda: ss.network(name="odd_network")(value),
            "on_progress": lambda: ss.validate(ss.TrainConfig(), on_progress=value),
        }
    if odd != "long":
        calls["world"] = lambda: ss.world(name=value)(len)
    if odd != "number":
        calls |= {
            "max_steps": lambda: agent.evaluate("CartPole-v1", max_steps=value),
            "jobs": lambda: ss.validate(ss.TrainConfig(), jobs=value),
            "tail": lambda: ss.functional.risk.cvar(torch.zeros(2, 4), alpha=value),
        }
    for name, call in list(calls.items()):
        with pytest.raises(ss.StormsailError):
            calls[name] = call()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda _: ss.Agent.load(None), "`path` must be a path, as text or as a `pathlib.Path`"),
        (
            lambda _: ss.Agent.load(""),
            "`path` must be a path that the system takes; found an empty",
        ),
        (lambda _: ss.validate(), "`ss.validate` must be told what to validate"),
        (lambda agent: agent.decide([[0, 0], [0]]), "found rows of different lengths"),
        (lambda agent: agent.decide(torch.zeros(4, dtype=torch.cfloat)), "torch.complex64"),
        (lambda agent: agent.decide(torch.zeros(4, device="meta")), "torch.strided on meta"),
        (lambda agent: agent.decide(SEEN, mask=np.zeros(2, bool)), "all are forbidden"),
        (lambda agent: agent.decide(SEEN, mask=np.ones(0, bool)), "must have the shape (2,)"),
        (lambda agent: agent.evaluate("CartPole-v1", max_steps=-1), "`max_steps` must be at least"),
        (lambda agent: agent.evaluate("CartPole-v1", alpha=True), "found True"),
        (lambda _: ss.make_market(config={"episode_bars": 10**30}), "must fit into the data"),
    ],
)
def test_the_refusal_says_what_was_wrong(call, words, agent):
    with pytest.raises((ArgumentError, DataError)) as caught:
        call(agent)
    assert words in str(caught.value)


def test_memory_that_is_not_finite_decides_nothing(agent):
    memory = agent.decide(SEEN, deterministic=True).memory.copy()
    memory[0, 0, 0] = np.nan
    with pytest.raises(ArgumentError, match="`memory` must hold finite numbers alone; found 1"):
        agent.decide(SEEN, memory, deterministic=True)


def test_bars_that_are_loaded_are_not_silently_others(market):
    store = market / "store"
    bars = ss.load_bars(store)
    first = bars.symbols[0]
    assert ss.load_bars(bars, symbols=bars.symbols, interval="1h") is bars
    with pytest.raises(DataError, match="must be of the symbols asked for"):
        ss.load_bars(bars, symbols=first)
    with pytest.raises(DataError, match="found bars of 1h"):
        ss.load_bars(bars, interval="4h")
    with pytest.raises(DataError, match="must be of the symbols asked for"):
        ss.backtest(market / "runs" / "run", bars, symbols=first)
    with pytest.raises(ChoiceError, match=r"It holds .*1h; symbols are written as ccxt"):
        ss.load_bars(store, symbols="NO/SUCH")


def test_a_file_and_a_folder_of_runs_are_no_agent(cartpole, tmp_path):
    for path, found in (
        (cartpole.folder / "best" / "manifest.json", "found a file. Name a folder, such as"),
        (
            cartpole.folder.parent,
            f"found a folder of runs. Name one of them, such as {cartpole.folder}",
        ),
        (tmp_path, "found an empty folder"),
    ):
        with pytest.raises(ArtifactError, match="must be a run with an agent in `best`") as caught:
            ss.Agent.load(path)
        assert found in str(caught.value)


def test_numpys_true_and_false_are_flags(agent):
    for flag in (True, np.True_, np.bool_(1)):
        assert (
            agent.decide(SEEN, deterministic=flag).action
            == agent.decide(SEEN, deterministic=True).action
        )
