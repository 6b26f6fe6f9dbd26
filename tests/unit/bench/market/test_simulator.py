"""`stormsail bench simulator`: what it measures, and that it invents no figure."""

import ast
import json
import stat
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

from stormsail.bench.device import check_device
from stormsail.bench.market import simulator as bench
from stormsail.bench.market import steppers, trading_peers
from stormsail.cli.bench.market import simulator as command
from stormsail.core.errors import ArgumentError, ChoiceError, RangeError
from stormsail.market import Simulator
from stormsail.market.simulator import MarketConfig

ROOT = Path(__file__).resolve().parents[4]
PEERS_HERE = ROOT / bench.PEER_PYTHON


@pytest.fixture(scope="module")
def drawn():
    return bench.history(symbols=2, bars=2500)


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless a test moves it."""
    now = [0.0]
    for module in (bench, steppers, trading_peers):
        monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    return now


def test_the_measured_market_leaves_no_rule_off():
    config = bench.everything_on()
    rules = config.model_dump()
    assert config.funding is True
    assert config.limits.max_leverage == max(config.levels) == 3.0
    assert None not in rules["limits"].values()
    assert None not in (config.stops.drawdown, config.reward_clip)
    off = {
        "costs": {"taker_fee": 0.0, "half_spread": 0.0, "impact": 0.0},
        "margin": {"maintenance": 0.0, "liquidation_fee": 0.0},
        "filters": {"lot": 0.0, "tick": 0.0, "min_notional": 0.0},
        "no_trade": {"daily": (), "ranges": (), "around_funding_minutes": 0},
        "randomise": dict.fromkeys(("taker_fee", "half_spread", "impact"), (1.0, 1.0)),
        "degrade": {"stale_prob": 0.0, "drop_prob": 0.0, "delay_prob": 0.0},
    }
    still = [
        f"{part}.{name}"
        for part, names in off.items()
        for name in names
        if rules[part][name] == names[name]
    ]
    assert still == []
    assert 0.0 not in (config.limits.min_equity, config.min_rebalance, config.ruin_penalty)


def test_random_actions_meet_every_rule_of_the_measured_market():
    panel, _ = bench.history(bars=4000)
    found = bench.activity(panel)
    assert found.steps == 307_200
    assert [name for name, share in found.shares.items() if share == 0.0] == []
    assert list(found.shares) == [
        "filled",
        "funding",
        "liquidated",
        "blocked",
        "feed late",
        "terminated",
        "truncated",
        "gate: position",
        "gate: turnover",
        "gate: daily loss",
        "gate: drawdown",
        "gate: bankrupt",
    ]


def test_activity_notices_a_rule_that_is_off(drawn, monkeypatch):
    monkeypatch.setattr(bench, "everything_on", MarketConfig)
    shares = bench.activity(drawn[0], batch=16, steps=40).shares
    met = {name for name, share in shares.items() if share > 0.0}
    assert met == {"filled", "funding"}


def test_each_call_continues_from_the_state_of_the_last(drawn):
    plain = steppers.Plain(Simulator(drawn[0], bench.everything_on(), batch=8), seed=3)
    before = plain.state
    plain(5)
    assert plain.taken == 5
    moved = ~plain.state.done & (plain.state.last_row == before.last_row)
    assert moved.sum() == 8
    torch.testing.assert_close(plain.state.row, before.row + 5)


def test_no_two_parts_of_the_first_state_share_memory(drawn):
    # A replay writes each part of the state over its own memory.
    plain = steppers.Plain(Simulator(drawn[0], bench.everything_on(), batch=8), seed=3)
    assert len({part.data_ptr() for part in plain.state}) == len(plain.state)


def test_the_fastest_stretch_counts_and_the_warm_up_does_not(clock):
    class Scripted:
        """One call takes 1 s while warming up, then 10 ms, and 5 ms in one stretch of three."""

        def __init__(self):
            clock[0] += 7.0  # compiles
            self.simulator = type("", (), {"batch": 100, "device": torch.device("cpu")})()
            self.stretches = iter([1.0, 0.01, 0.01, 0.005, 0.01])

        def __call__(self, calls):
            clock[0] += calls * next(self.stretches)

        def difference(self):
            return None

    found = bench._measured(Scripted, "eager", seconds=0.3, repeats=3)
    assert found.warmup_seconds == 7.0 + 8 * 1.0
    assert found.microseconds == pytest.approx(5000.0, abs=1e-6)
    assert found.steps_per_second == pytest.approx(100 / 0.005, rel=1e-9)
    assert (found.batch, found.way, found.difference) == (100, "eager", None)


class Counted:
    """An environment whose step takes 1 ms by the clock and whose episodes have 10 steps."""

    def __init__(self, clock):
        self.clock, self.steps, self.resets, self.sampled = clock, 0, 0, 0
        self.action_space = self

    def seed(self, seed):
        self.seeded = seed

    def sample(self):
        self.sampled += 1
        return 1

    def reset(self, **_):
        self.resets += 1
        return None, {}

    def step(self, action):
        assert action == 1
        self.clock[0] += 0.001
        self.steps += 1
        return None, 0.0, False, self.steps % 10 == 0, {}


def test_a_peer_is_stepped_and_reset_and_its_steps_are_counted(clock, monkeypatch):
    env = Counted(clock)
    monkeypatch.setitem(trading_peers.PEERS, "gym-anytrading", lambda _: env)
    row = trading_peers.measure(
        "gym-anytrading", pd.DataFrame(index=range(5)), seconds=3.0, repeats=3, seed=11
    )
    assert row["steps_per_second"] == pytest.approx(1000.0, rel=1e-9)
    assert row["sampling_steps_per_second"] == pytest.approx(1000.0, rel=1e-9)
    assert (row["bars"], row["repeats"], row["warmup_seconds"]) == (5, 3, 2.0)
    # 1 s is 4 chunks of 256 steps; 4 stretches of each way, and the first list is drawn once
    assert env.steps == 2 * 4 * 4 * 256
    assert env.resets == 1 + env.steps // 10
    assert env.sampled == 256 + 4 * 4 * 256
    assert env.seeded == 11


def test_the_script_of_the_peers_imports_nothing_of_the_package():
    tree = ast.parse(Path(trading_peers.__file__).read_text())
    found = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert found - set(sys.stdlib_module_names) == {"gymnasium", "pandas"}


def test_the_peers_are_pinned_without_what_they_pin():
    lines = (ROOT / "bench" / "peers.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert {"gym-anytrading", "gym-trading-env"} < set(pins)
    assert not {"ccxt", "flask", "Flask"} & set(pins)
    assert pins["pandas"].startswith("2.")


@pytest.fixture
def interpreter(tmp_path):
    """Return a maker of interpreters that run the given Python instead of the script."""

    def make(body):
        script = tmp_path / "fake.py"
        script.write_text(body)
        path = tmp_path / "python"
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return make


FAKE = """
import json, pathlib, shutil, sys
_, flag, script, name, table, *options = sys.argv
assert flag == "-P" and script.endswith("trading_peers.py")
here = pathlib.Path(__file__).parent
shutil.copy(table, here / "seen.csv")
runs = here / (name + ".runs")
turn = int(runs.read_text()) if runs.exists() else 0
runs.write_text(str(turn + 1))
rate = {"gym-trading-env": [100.0, 400.0], "gym-anytrading": [2000.0, 1000.0]}[name][turn % 2]
print("a line that a library prints")
print(json.dumps(dict(name=name, version="9", python="3", bars=5, repeats=50, warmup_seconds=0.1,
                      steps_per_second=rate, sampling_steps_per_second=rate / 2)))
"""


def test_a_peer_gets_the_same_bars_to_the_last_digit(drawn, interpreter, tmp_path):
    found = dict(bench.peers(interpreter(FAKE), drawn[1], seconds=0.1))
    assert list(found) == ["gym-trading-env", "gym-anytrading"]
    assert found["gym-trading-env"].steps_per_second == 100.0
    assert found["gym-anytrading"].sampling_steps_per_second == 1000.0
    seen = pd.read_csv(tmp_path / "seen.csv", float_precision="round_trip")
    for name in ("ts", "open", "high", "low", "close", "volume"):
        assert seen[name].tolist() == drawn[1].column(name).tolist()


def test_a_peer_that_fails_has_a_reason_and_no_figure(drawn, interpreter):
    python = interpreter("import sys; sys.exit('Traceback\\nNo module named pandas')")
    assert dict(bench.peers(python, drawn[1])) == {
        "gym-trading-env": "No module named pandas",
        "gym-anytrading": "No module named pandas",
    }


def test_the_better_of_two_measurements_of_a_peer_counts(interpreter):
    found = bench.compare((2,), python=interpreter(FAKE), compiled=False, seconds=0.01, bars=2000)
    rates = {name: peer.steps_per_second for name, peer in found.peers.items()}
    assert rates == {"gym-trading-env": 400.0, "gym-anytrading": 2000.0}
    assert found.absent == {}
    (speed,) = found.speeds
    own = speed.steps_per_second
    assert found.ratios(speed) == {"gym-trading-env": own / 400.0, "gym-anytrading": own / 2000.0}


def run(folder, **options):
    given = {"batch": "1,4", "device": "cpu", "compiled": False, "seconds": 0.01, "threads": 0}
    rest = {"bars": 2000, "seed": 0, "peers_python": None, "out": folder / "figures.json"}
    command(**{**given, **rest, **options})
    return json.loads((folder / "figures.json").read_text())


def test_without_the_peers_there_is_no_ratio(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "COMPARED", 4)
    found = run(tmp_path)
    assert found["peers"] == {}
    assert [(row["batch"], row["way"], row["ratios"]) for row in found["speeds"]] == [
        (1, "eager", {}),
        (4, "eager", {}),
    ]
    printed = capsys.readouterr().out
    assert "gym-trading-env: not installed: run `make peers`\n" in printed
    assert "gym-anytrading: not installed: run `make peers`\n" in printed
    assert "times" not in printed


def test_with_the_peers_the_ratios_are_printed_and_written(
    tmp_path, monkeypatch, capsys, interpreter
):
    monkeypatch.setattr(bench, "COMPARED", 4)
    found = run(tmp_path, peers_python=interpreter(FAKE))
    ratios = found["speeds"][1]["ratios"]
    assert ratios["gym-trading-env"] == found["speeds"][1]["steps_per_second"] / 400.0
    printed = capsys.readouterr().out
    line = next(one for one in printed.splitlines() if one.startswith("B = 4, eager"))
    assert line.endswith(
        f"; {ratios['gym-trading-env']:.1f} times gym-trading-env"
        f"; {ratios['gym-anytrading']:.1f} times gym-anytrading"
    )


def test_without_a_compiler_nothing_is_compiled(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    found = run(tmp_path, compiled=True, batch="2")
    assert [row["way"] for row in found["speeds"]] == ["eager"]
    assert "no C++ compiler is found: nothing is compiled" in capsys.readouterr().out


def test_cuda_is_measured_at_a_larger_batch_too():
    assert bench.batches(None, device="cpu") == (1, 64, 1024, 16_384)
    assert bench.batches(None, device="cuda") == (1, 64, 1024, 16_384, 65_536)
    assert bench.batches("8, 2", device="cuda") == (8, 2)


@pytest.mark.refusal
@pytest.mark.parametrize("text", ["", "0", "-1", "8,", "a", "1.5"])
def test_another_batch_than_whole_numbers_is_refused(text):
    with pytest.raises(RangeError) as caught:
        bench.batches(text, device="cpu")
    assert str(caught.value) == (
        "`--batch` must be whole numbers of at least 1 with commas between them; "
        f"found {text!r}. Write it as 1,64,1024. [out-of-range]"
    )


@pytest.mark.refusal
def test_a_device_that_is_not_here_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ChoiceError) as caught:
        check_device("cuda")
    assert str(caught.value) == (
        "`--device` must be one that torch can use here; found `cuda`, and here cpu. "
        "Run it on a machine with that device, or pass --device cpu. [unknown-choice]"
    )
    check_device("cpu")


@pytest.mark.refusal
def test_an_interpreter_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ArgumentError) as caught:
        bench.peer_python(tmp_path / "python")
    assert str(caught.value) == (
        "`--peers-python` must be the interpreter of an environment with the peers; "
        f"found no file {tmp_path / 'python'}. "
        "Run `make peers` and leave the option out. [missing-argument]"
    )


@pytest.mark.skipif(not PEERS_HERE.is_file(), reason="needs `make peers`")
def test_the_real_peers_run_on_our_bars(drawn):
    found = dict(bench.peers(PEERS_HERE, drawn[1], seconds=0.05, repeats=2))
    assert {name: (peer.version, peer.bars) for name, peer in found.items()} == {
        "gym-trading-env": ("0.3.5", 2500),
        "gym-anytrading": ("2.0.0", 2500),
    }


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")  # torch deprecates functions that its own compiler uses
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_replays_equal_plain_steps_with_the_same_numbers_drawn(drawn, compiled):
    simulator = Simulator(drawn[0], bench.everything_on(), batch=512, device="cuda")
    if compiled:
        simulator.compile()
    captured = steppers.Captured(simulator, seed=5)
    before = captured.state.row.clone()
    captured(3)
    assert int((captured.state.row - before).abs().sum()) == 3 * 512
    assert captured.difference() == 0.0
