"""`ss.backtest`, `ss.validate` and `ss.report` give what the command line gives."""

import filecmp
import shutil
import sys
import warnings
from pathlib import Path

import pytest

import stormsail as ss
from abuse_lab import call, check
from api_lab import MARKET
from stormsail.api.looks import open_by_verb
from stormsail.cli.main import main
from stormsail.core.errors import ArgumentError, ArtifactError, ConfigError, DataError
from stormsail.evaluation import TrialLedger, read_result
from stormsail.evaluation.stats.trials import RUN_KEY
from stormsail.evaluation.walk_forward.seal import Sealed
from stormsail.market.splits import Span


def command(monkeypatch, *words):
    """Run the command line in this process; return its exit status."""
    monkeypatch.setattr(sys, "argv", ["stormsail", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_a_backtest_is_that_of_the_command_line(market, tmp_path, monkeypatch, capsys):
    run, store = market / "runs" / "run", market / "store"
    start = ss.load_bars(store).ts[500].item()
    drawn = {"start": moment(start), "greedy": False}
    called = ss.backtest(run, store, out=tmp_path / "called", **drawn)
    options = ("--data", store, "--out", tmp_path / "typed", "--from", moment(start))
    options = (*options, "--set", "greedy=false")
    assert command(monkeypatch, "backtest", run, *options) == 0
    assert f"orders {called.order_hash}" in capsys.readouterr().out
    names = [path.name for path in (tmp_path / "typed").iterdir()]
    same, *different = filecmp.cmpfiles(tmp_path / "called", tmp_path / "typed", names, False)
    assert (sorted(same), different) == (sorted(names), [[], []])
    assert len(called.trades) > 0
    one = ss.backtest(ss.Agent.load(run), store, symbols=called.symbols[0], **drawn)
    assert one.symbols == called.symbols[:1]
    config = ss.BacktestConfig(**drawn)
    again = ss.backtest(ss.Agent.load(run), ss.load_bars(store), config, burn_in=64)
    assert again.order_hash == called.order_hash


def moment(ts_ms):
    """Return a time as the settings have it."""
    from stormsail.core.clock import iso

    return iso(ts_ms)


def test_sealed_bars_are_told_and_recorded(market, tmp_path):
    bars = ss.load_bars(market / "store")
    first, last = int(bars.ts[600]), int(bars.ts[-1])
    sealed = Sealed(bars.symbols, Span(first, last)).document()
    ledger = TrialLedger(tmp_path / "trials.jsonl")
    ledger.record(
        "validation",
        "earlier",
        config_hash="c",
        data_hash="d",
        sharpe_per_bar=None,
        bars=0,
        extra={RUN_KEY: "key", **sealed},
    )
    agent = ss.Agent.load(market / "runs" / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        early = ss.backtest(agent, bars, workspace=tmp_path, end=moment(first))
    assert len(ledger.read().trials) == 1
    with pytest.warns(
        ss.SealedBarsWarning, match="sealed as the final test span of `earlier`"
    ) as w:
        late = ss.backtest(agent, bars, workspace=tmp_path, start=moment(first))
    assert w[0].filename == __file__
    look = ledger.read().trials[-1]
    assert (look.name, look.status, look.bars) == ("run", "finished", len(late.returns))
    assert look.sharpe_per_bar == late.metrics.sharpe_per_bar.value
    assert len(early.returns) > 0


def sealed_workspace(market, tmp_path):
    """Return a run of a workspace whose last 100 bars are sealed, and its ledger."""
    shutil.copytree(market / "runs", tmp_path / "own")
    bars = ss.load_bars(market / "store")
    ledger = TrialLedger(tmp_path / "own" / "trials.jsonl")
    ledger.record(
        "validation",
        "earlier",
        config_hash="c",
        data_hash="d",
        sharpe_per_bar=None,
        bars=0,
        extra={RUN_KEY: "k", **Sealed(bars.symbols, Span(int(bars.ts[600]), 2**42)).document()},
    )
    return tmp_path / "own" / "run", ledger


def test_another_workspace_hides_no_seal(market, tmp_path):
    run, ledger = sealed_workspace(market, tmp_path)
    other = TrialLedger(tmp_path / "other" / "trials.jsonl")
    other.path.parent.mkdir()
    bars = ss.load_bars(market / "store")
    other.record("training", "x", config_hash="c", data_hash="d", sharpe_per_bar=None, bars=0)
    with pytest.warns(ss.SealedBarsWarning, match="final test span of `earlier`"):
        traded = ss.backtest(run, bars, workspace=other.path.parent)
    look = ledger.read().trials[-1]
    assert (look.kind, look.status, look.bars) == ("backtest", "finished", len(traded.returns))
    assert len(other.read().trials) == 1


def test_an_attack_on_sealed_bars_opens_them_once(market, tmp_path, caplog):
    run, ledger = sealed_workspace(market, tmp_path)
    words = ("attack", run, "--attacks", "random", "--epsilons", "0.1", "--episodes", 2)
    first = call(*words, cwd=tmp_path)
    assert first.status == 0
    assert (
        "this attack reads bars that are sealed as the final test span of `earlier`" in caplog.text
    )
    assert call(*words, cwd=tmp_path).status == 0
    (opening,) = ledger.read().openings()
    assert (opening.name, opening.extra["by"]) == ("run", "attack")


def test_limits_that_are_judged_on_sealed_bars_open_them(market, tmp_path, monkeypatch):
    run, ledger = sealed_workspace(market, tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").symlink_to(run.parent)
    config = ss.train(run).config
    open_by_verb(Path("runs") / "limits", config, by="bench limits")
    (opening,) = ledger.read().openings()
    assert opening.extra["by"] == "bench limits"


@pytest.mark.refusal
def test_folds_too_short_to_train_on_are_refused_with_the_number_of_bars(tmp_path):
    settings = {"task.data.world_bars": 4000, "task.market.episode_bars": 48, "ppo.n_envs": 4}
    words = "a training must have 1,659 bars: 639 that features look back"
    with pytest.raises(DataError, match=words):
        ss.validate(None, {"folds": 2, "seeds": [0]}, workspace=tmp_path / "runs", **settings)
    assert not (tmp_path / "runs").exists()
    (tmp_path / "own.toml").write_text(ss.TrainConfig().replace(**settings).to_toml())
    for more in (("--plan",), ("--out", "judged")):
        refused = call("validate", "own.toml", "--folds", 2, "--seeds", 1, *more, cwd=tmp_path)
        check(refused, 2, "data-span")
        assert words in refused.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.refusal
def test_a_backtest_that_does_not_fit_is_refused(market, cartpole, tmp_path):
    bars = ss.load_bars(market / "store")
    with pytest.raises(ConfigError, match="`task` must be what the agent was trained for"):
        ss.backtest(cartpole.best_agent, bars)
    with pytest.raises(ConfigError, match="burn_in"):
        ss.backtest(market / "runs" / "run", bars, burnin=3)
    with pytest.raises(ArtifactError, match="no such folder"):
        ss.backtest(tmp_path / "nowhere", bars)
    with pytest.raises(ArtifactError, match="must be a workspace"):
        ss.backtest(market / "runs" / "run", bars, workspace=tmp_path)


RULES = {
    "folds": 1, "seeds": (0,), "burn_in": 8, "costs": False, "stress": False, "baselines": False,
}  # fmt: skip


def test_a_validation_is_that_of_the_command_line(market, tmp_path, monkeypatch, capsys):
    settings = {**MARKET, "task.data.store": str(market / "store"), "ppo.total_steps": 64}
    called = ss.validate(
        None,
        RULES,
        name="tiny-validation",
        out=tmp_path / "called",
        workspace=tmp_path / "a",
        **settings,
    )
    (tmp_path / "tiny.toml").write_text(ss.TrainConfig().replace(**settings).to_toml())
    off = [
        word for name in ("costs", "stress", "baselines") for word in ("--judge", f"{name}=false")
    ]
    fewest = ("--folds", 1, "--seeds", 1, "--judge", "burn_in=8", *off)
    place = ("--out", tmp_path / "typed", "--workspace", tmp_path / "b")
    status = command(monkeypatch, "validate", tmp_path / "tiny.toml", *place, *fewest)
    assert status == (called.verdict.decision == "reject")
    assert called.verdict.words in " ".join(capsys.readouterr().out.split())
    by_call, by_command = (read_result(tmp_path / name) for name in ("called", "typed"))
    assert by_call.document == by_command.document
    assert by_call.equity.equals(by_command.equity)
    assert ss.Agent.load(tmp_path / "called-agent").binding.values["task"] == "market"
    shown = repr(called)
    assert f"verdict: {called.verdict.decision}" in shown
    assert "folds: 1, seeds: 1" in shown
    page = ss.report(called, tmp_path / "validation.html").read_text()
    assert called.verdict.words.split(".")[0] in page


def test_a_report_tells_of_runs_and_of_results_in_memory(market, cartpole, tmp_path, monkeypatch):
    result = ss.backtest(market / "runs" / "run", market / "store", out=tmp_path / "backtest-1")
    by_object = ss.report(result, tmp_path / "object.html", runs=[cartpole])
    by_path = ss.report([tmp_path / "backtest-1", cartpole.folder], str(tmp_path / "path.html"))
    assert by_object == tmp_path / "object.html"
    assert by_object.read_bytes() == by_path.read_bytes()
    alone = ss.report(cartpole, tmp_path / "run.html").read_text()
    assert "<h1>run</h1>" in alone
    assert 'id="training"' in alone
    assert 'id="equity"' not in alone
    # `stormsail report runs/x` on a healthy run
    out = ("--out", tmp_path / "typed.html")
    assert command(monkeypatch, "report", cartpole.folder, *out) == 0
    assert (tmp_path / "typed.html").read_text() == alone


@pytest.mark.refusal
def test_what_cannot_be_reported_is_refused(cartpole, tmp_path):
    with pytest.raises(ArgumentError, match="a value of the type int"):
        ss.report([7], tmp_path / "page.html")
    with pytest.raises(ArtifactError, match="found `agent`"):
        ss.report(cartpole.best, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
