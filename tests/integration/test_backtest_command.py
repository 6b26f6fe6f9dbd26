"""`stormsail backtest` as a user runs it: trained, then judged in processes of its own."""

import hashlib
import json
import os
import shutil
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from stormsail.cli.main import app
from stormsail.core.errors import ArtifactError, ChoiceError, ConfigError, DataError
from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.evaluation.engine.run import backtest
from stormsail.evaluation.robustness import significance
from stormsail.evaluation.saved import read_result
from stormsail.evaluation.stats.trials import TrialLedger
from stormsail.market.interval import Interval
from stormsail.market.panel import load_panel
from stormsail.market.store import Store
from stormsail.market.synthetic import generate
from stormsail.market.synthetic.generate import write_world
from stormsail.modules.agent import Agent
from training_lab import run_all, small

LATE = ["--from", "2021-01-29"]
STEPS = ["--set", "filters.lot=0.001", "--set", "filters.tick=0.01"]
QUIET = {
    "task__market__randomise__taker_fee": (1.0, 1.0),
    "task__market__costs__impact": 0.0,
    "task__market__randomise__impact": (1.0, 1.0),
    "task__market__stops__drawdown": None,
    "validation__every_updates": 2,
}

STEP_LINES = {"trading", "baselines", "costs", "stress", "calibration", "significance"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder with a store of three symbols and a run trained on two of them."""
    folder = tmp_path_factory.mktemp("backtest")
    world = generate("regime", symbols=3, bars=700, interval=Interval.parse("1h"), seed=3)
    write_world(Store(folder / "store"), world)
    symbols = tuple(bars.symbol for bars in world.bars)
    config = small(
        "market",
        task__data__store=str(folder / "store"),
        task__data__symbols=symbols[:2],
        **QUIET,
    )
    run_all(config, folder / "run")
    return folder


def test_an_interrupted_backtest_says_that_nothing_was_written(place, tmp_path, monkeypatch):
    monkeypatch.setattr(significance, "fan_bands", interrupt)
    words = ["backtest", str(place / "run"), "--data", str(place / "store"), *STEPS]
    out = tmp_path / "out"
    done = CliRunner().invoke(
        app, [*words, "--out", str(out), "--significance", "--from", "2021-01-24"]
    )
    assert done.exit_code == 130
    assert done.output.endswith(f"stormsail: ended at once: nothing was written to {out}.\n")
    assert not out.exists()


def interrupt(*_, **__):
    raise KeyboardInterrupt


def called(place, *arguments, out="out"):
    """Run the verb in this process; return what it printed."""
    words = ["backtest", str(place / "run"), "--data", str(place / "store")]
    done = CliRunner().invoke(
        app, [*words, "--out", str(place / out), *STEPS, *arguments], catch_exceptions=True
    )
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def separately(place, out, cwd, **environment):
    """Run the verb in a process of its own."""
    command = [sys.executable, "-m", "stormsail", "backtest", str(place / "run")]
    command += ["--data", str(place / "store"), "--out", str(out), *STEPS, *LATE]
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_two_processes_write_the_same_bytes(place, tmp_path):
    """This one, and one with another hash seed, time zone, locale, number of threads and folder."""
    first = called(place, *LATE, out="one")
    seed = "2" if os.environ.get("PYTHONHASHSEED") != "2" else "3"
    zone = "Asia/Tokyo" if os.environ.get("TZ") != "Asia/Tokyo" else "UTC"
    two = separately(
        place,
        tmp_path / "two",
        tmp_path,
        PYTHONHASHSEED=seed,
        TZ=zone,
        LC_ALL="C",
        OMP_NUM_THREADS="2",
    )
    assert digests(place / "one") == digests(tmp_path / "two")
    said = [line for line in first.splitlines() if line not in STEP_LINES]  # those are on stderr
    assert said[:-1] == two.splitlines()[:-1]  # the last line names the folder


def test_the_command_finds_what_the_function_finds(place):
    printed = called(place, "--from", "2021-01-20", "--burn-in", "10", out="same")
    agent = Agent.load(place / "run" / "best")
    store = Store(place / "store")
    symbols = [symbol for symbol, _ in store.contents()]
    bars = load_panel(store, symbols, Interval.parse("1h"))
    config = BacktestConfig.from_mapping(
        {
            "market": agent.binding.values["market"],
            "start": "2021-01-20T00:00:00Z",
            "burn_in": 10,
            "filters": {"lot": 0.001, "tick": 0.01},
        }
    )
    result = backtest(agent, bars, config)
    saved = read_result(place / "same")
    assert saved.document["order_hash"] == result.order_hash
    assert f"orders {result.order_hash}" in printed
    assert f"not trained on: {symbols[2]}" in printed
    assert saved.document["unseen_symbols"] == [symbols[2]]
    assert saved.document["first_bar"] == "2021-01-20T00:00:00Z"
    assert saved.document["overlaps_training"] is True
    assert "no test of it" in printed
    assert "on which the agent was chosen" in printed


def test_costs_stress_and_baselines_are_written_beside(place):
    printed = called(place, "--costs", "--stress", "--baselines", "--from", "2021-01-26", out="all")
    saved = read_result(place / "all")
    assert set(saved.documents) == {"costs", "stress", "baselines"}
    assert set(saved.documents["costs"]) == {"replay", "decide"}
    assert set(saved.documents["costs"]["replay"]["sweep_bp"]) == {"0", "2", "5", "10", "20"}
    assert "break-even cost (replay):" in printed
    steps = [line for line in printed.splitlines() if line in STEP_LINES]
    assert steps == ["trading", "baselines", "costs", "stress"]
    assert set(saved.documents["baselines"]) == {
        "flat", "buy and hold", "equal weight", "momentum", "volatility target", "random",
        "clairvoyant",
    }  # fmt: skip
    curves = saved.tables["baselines.parquet"]
    assert curves["ts"].to_pylist() == saved.equity["ts"].to_pylist()
    assert set(curves["flat"].to_pylist()) == {30_000.0}
    assert "spread x5" in saved.documents["stress"]


def test_calibration_and_significance_are_written_beside(place):
    printed = called(place, "--conformal", "--significance", "--from", "2021-01-24", out="tested")
    steps = [line for line in printed.splitlines() if line in STEP_LINES]
    assert steps == ["trading", "calibration", "significance"]
    saved = read_result(place / "tested")
    assert set(saved.documents) == {"calibration", "significance"}
    calibration, significance = saved.documents["calibration"], saved.documents["significance"]
    # Trained with a discount of 0.99: 219 bars hold no window of 230.
    assert [calibration[key] for key in ("discount", "horizon_bars", "bars")] == [0.99, 230, 219]
    assert calibration["tail"]["gap"]["reason"] == (
        "not enough data: needs 200 windows that share no bar, found 0"
    )
    assert "needs 200 windows that share no bar, found 0, about 46,000 bars" in printed
    assert "of the market's moves" in calibration["regimes"]
    assert calibration["conformal"]["judged"] == 0
    assert significance["fan"]["ts"][0] == saved.equity["ts"][0].as_py()
    assert significance["fan"]["ts"][-1] == saved.equity["ts"][-1].as_py()
    assert "probability of a Sharpe ratio above 0 after 1 trial" in printed
    assert "beats the benchmark: p = " in printed


def test_significance_counts_the_trials_beside_the_run(place, tmp_path):
    shutil.copytree(place / "run", tmp_path / "run")
    data = Agent.load(place / "run" / "best").binding.values["data"]
    ledger = TrialLedger(tmp_path / "trials.jsonl")
    done = ((0.01, "finished"), (0.03, "finished"), (None, "stopped"), (None, "failed"))
    for sharpe, status in done:  # one that diverged was a trial, one that failed was none
        ledger.record(
            kind="training", name="run", config_hash="c", data_hash=data, sharpe_per_bar=sharpe,
            bars=100, status=status,
        )  # fmt: skip
    for number, run in enumerate((tmp_path / "run", tmp_path / "run" / "best")):
        # the old name of `--significance` is still accepted
        words = ["backtest", str(run), "--data", str(place / "store"), *STEPS, *LATE, "--luck"]
        done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / f"out-{number}")])
        assert done.exit_code == 0, done.output
        assert "probability of a Sharpe ratio above 0 after 3 trials: " in done.output
        tested = read_result(tmp_path / f"out-{number}").documents["significance"]
        # trainings are trials without a ratio, so the deviation is 1/√99, what 99 bars can tell;
        # the best of three trials has 0.8528045 of it
        assert len(read_result(tmp_path / f"out-{number}").returns) == 99
        assert tested["expected_maximum"]["value"] == pytest.approx(0.08571008, abs=1e-7)


def test_a_run_binds_its_discount(place):
    assert Agent.load(place / "run" / "best").binding.values["gamma"] == 0.99


def test_nautilus_reproduces_the_equity(place):
    pytest.importorskip("nautilus_trader", reason="needs the extra `nautilus`")
    printed = called(place, "--engine", "nautilus", "--from", "2021-01-24", out="nautilus")
    assert "largest difference in equity" in printed
    apart = read_result(place / "nautilus").documents["nautilus"]
    assert len(apart) == 3
    assert max(each["equity_share"] for each in apart) <= 1e-8
    assert max(each["position"] for each in apart) <= 1e-9
    assert sum(each["fills"] for each in apart) == read_result(place / "nautilus").trades.num_rows


# ------------------------------------------------------------------ refusals


@pytest.mark.refusal
def test_a_run_without_an_agent_is_refused(place, tmp_path):
    words = ["--data", str(place / "store"), "--out", str(tmp_path / "out")]
    (tmp_path / "young" / "checkpoints").mkdir(parents=True)
    for run, state in (
        (tmp_path / "young", "a run that has saved none yet"),
        (tmp_path / "nowhere", "no such folder"),
    ):
        done = CliRunner().invoke(app, ["backtest", str(run), *words])
        assert isinstance(done.exception, ArtifactError)
        assert str(done.exception) == (
            f"{run} must be a run with an agent in `best`; found {state}. Train until the first "
            "evaluation; `validation.every_updates` says when. [artifact-missing]"
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.refusal
def test_other_fees_spans_and_folders_are_refused_before_anything_is_written(place, tmp_path):
    fresh = os.path.relpath(tmp_path / "fresh", place)
    with pytest.raises(ConfigError, match="`costs` must be what the agent was trained for"):
        called(place, "--set", "market.costs.taker_fee=0.01", out=fresh)
    with pytest.raises(DataError, match="found 0 bars in the span"):
        called(place, "--from", "2035-01-01", out=fresh)
    with pytest.raises(ConfigError, match="`--to` must be a day or a time; found `tomorrow`"):
        called(place, "--to", "tomorrow", out=fresh)
    with pytest.raises(DataError, match="data-missing"):
        called(place, "--symbols", "XYZ/USDT", out=fresh)
    assert not (tmp_path / "fresh").exists()
    called(place, "--from", "2021-01-28", out="taken")
    with pytest.raises(ArtifactError, match="artifact-exists"):
        called(place, out="taken")


@pytest.mark.refusal
def test_a_store_of_another_interval_is_refused(place, tmp_path):
    world = generate("noise", symbols=1, bars=50, interval=Interval.parse("4h"), seed=1)
    write_world(Store(tmp_path / "four"), world)
    words = ["backtest", str(place / "run"), "--out", str(tmp_path / "out"), "--data"]
    done = CliRunner().invoke(app, [*words, str(tmp_path / "four")])
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception) == (
        f"{tmp_path / 'four'} must hold bars of the interval that the agent was trained on, 1h; "
        "found bars of 4h. Import, fetch or resample them, or train another agent. "
        "[config-inconsistent]"
    )


def test_other_fees_can_be_allowed(place):
    called(
        place, "--set", "market.costs.taker_fee=0.01", "--set", 'allow=["costs"]',
        "--from", "2021-01-26", out="dear",
    )  # fmt: skip
    summary = json.loads((place / "dear" / "summary.json").read_text())
    assert summary["settings"]["market"]["costs"]["taker_fee"] == 0.01


def test_performance_is_written_printed_and_exported(place, tmp_path):
    printed = called(place, *LATE, "--performance", "--baselines", out="measured")
    assert "gross: " in printed
    assert "net: " in printed
    saved = read_result(place / "measured")
    rows = saved.part("performance")["attribution"]["costs"]
    assert [rows[0]["item"], rows[-1]["item"]] == ["gross", "net"]
    assert rows[-1]["both"] == pytest.approx(saved.total[-1] - saved.total[0], abs=1e-9)
    words = ["performance", str(place / "measured"), "--benchmark", "momentum"]
    done = CliRunner().invoke(app, [*words, "--csv", str(tmp_path / "tables")])
    assert done.exit_code == 0, done.output
    for title in ("monthly", "drawdowns", "benchmarks", "costs", "regimes", "capacity"):
        assert title in done.output
    assert "folds: not measured" in done.output
    names = {path.name for path in (tmp_path / "tables").iterdir()}
    assert {"returns.csv", "trades.csv", "monthly.csv", "costs.csv", "capacity.csv"} <= names
    lines = (tmp_path / "tables" / "benchmarks.csv").read_text().splitlines()
    assert len(lines) == 2
    assert lines[1].startswith('"momentum"')
    refused = CliRunner().invoke(app, [*words[:-1], "momentun"])
    assert isinstance(refused.exception, ChoiceError)
