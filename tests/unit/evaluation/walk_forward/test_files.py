"""A validation as files: what is in them, what comes back, and the same bytes elsewhere."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from stormsail.core.errors import ArtifactError
from stormsail.core.files.artifact import Contents, encode_artifact, write_artifact
from stormsail.evaluation import validate
from stormsail.evaluation.walk_forward.files import (
    KIND,
    contents_of,
    read_validation,
    write_validation,
)
from validation_lab import fitter, settings, world

ROWS = 200
RULES = settings(folds=2, costs=False, seeds=(3, 7))


@pytest.fixture(scope="module")
def found():
    bars = world(ROWS, symbols=2)
    return validate(bars, RULES, fit=fitter(bars), training={"steps": 5})


def test_what_is_written_comes_back(found, tmp_path):
    write_validation(tmp_path / "out", found)
    saved = read_validation(tmp_path / "out")
    told, pooled = saved.document, found.judged.pooled
    assert saved.equity.column_names == ["ts", "total", "seed_3", "seed_7"]
    assert saved.equity["total"].to_pylist() == pooled.equity.tolist()
    assert saved.equity["seed_7"].to_pylist() == pooled.seeds[:, 1].tolist()
    assert saved.tables["baselines.parquet"].column_names == [
        "ts", "flat", "buy_and_hold", "equal_weight", "momentum", "volatility_target", "random",
        "clairvoyant",
    ]  # fmt: skip
    assert sorted(saved.documents) == ["baselines", "calibration", "luck"]
    assert told["verdict"] == found.verdict.document()
    assert told["seeds"] == [3, 7]
    assert told["training"] == {"steps": 5}
    assert told["settings"]["folds"] == 2
    assert told["hashes"] == {"data": found.data_hash, "config": RULES.config_hash()}
    assert told["metrics"]["total_return"]["value"] == pytest.approx(pooled.total_return)
    assert told["test"] is None
    assert told["test_span"]["opened"] is False


def test_the_document_has_the_keys_that_readers_rely_on(found):
    told = contents_of(found).documents["validation"]
    assert set(told) == {
        "format", "code_version", "verdict", "symbols", "interval", "bars", "first_bar", "end",
        "start_equity", "final_equity", "order_hash", "embargo_bars", "purged", "test_span",
        "folds", "seeds", "runs", "metrics", "self_tests", "trials", "hashes", "settings",
        "training", "test",
    }  # fmt: skip
    assert set(told["verdict"]) == {"decision", "words", "reasons"}
    assert set(told["verdict"]["reasons"][0]) == {"name", "holds", "words", "value", "needed"}
    assert set(told["folds"][0]) == {"number", "train", "test", "bars", "return"}
    assert [one["bars"] for one in told["folds"]] == [36, 36]
    assert set(told["runs"][0]) == {
        "fold", "seed", "metrics", "order_hash", "agent", "status", "reason",
    }  # fmt: skip
    assert told["purged"] == (
        "12 bars before each test are left out of its training: 6 that features look back, 5 of "
        "burn-in, and those for the last fill"
    )


def test_every_trade_and_decision_names_its_fold_and_seed(found, tmp_path):
    write_validation(tmp_path / "out", found)
    saved = read_validation(tmp_path / "out")
    trades = saved.trades.to_pandas()
    decisions = saved.decisions.to_pandas()
    for run in found.runs:
        number, seed = run.fold.number, run.seed
        own = trades[(trades.fold == number) & (trades.seed == seed)]
        assert own.quantity.tolist() == [one.quantity for one in run.backtest.trades]
        mine = decisions[(decisions.fold == number) & (decisions.seed == seed)]
        assert mine.decided.tolist() == run.backtest.bars["decided"].reshape(-1).tolist()
    assert len(trades) == found.judged.pooled.trades
    assert len(decisions) == sum(2 * len(run.backtest.returns) for run in found.runs)


def test_a_validation_without_any_agent_is_written_all_the_same(tmp_path):
    def fit(*_):
        raise RuntimeError("no")

    bars = world(ROWS)
    write_validation(tmp_path / "out", validate(bars, settings(folds=2), fit=fit))
    saved = read_validation(tmp_path / "out")
    assert [one["status"] for one in saved.document["runs"]] == ["failed"] * 4
    assert (len(saved.trades), len(saved.decisions)) == (0, 0)
    assert set(saved.equity["total"].to_pylist()) == {20_000.0}
    costs = saved.documents["costs"]["replay"]["break_even"]
    assert costs["reason"] == "nothing was traded, so no cost matters"


@pytest.mark.refusal
def test_a_folder_that_is_no_validation_is_refused(tmp_path):
    write_artifact(tmp_path / "out", kind=KIND, contents=Contents(documents={"luck": {}}))
    with pytest.raises(ArtifactError, match="must hold the document and the tables of a valid"):
        read_validation(tmp_path / "out")


SCRIPT = """
import hashlib, sys
from stormsail.core.files.artifact import encode_artifact
from stormsail.evaluation import validate
from stormsail.evaluation.walk_forward.files import KIND, contents_of
from test_files import RULES, ROWS
from validation_lab import fitter, world
bars = world(ROWS, symbols=2)
found = validate(bars, RULES, fit=fitter(bars), training={"steps": 5})
files = encode_artifact(kind=KIND, contents=contents_of(found))
print({name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())})
"""


def test_another_process_writes_the_same_bytes(found):
    here = Path(__file__).parent
    paths = f"import sys; sys.path[:0] = {[str(here), str(here.parents[2])]!r}\n"
    run = subprocess.run(
        [sys.executable, "-c", paths + SCRIPT], capture_output=True, text=True, check=True
    )
    files = encode_artifact(kind=KIND, contents=contents_of(found))
    mine = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())}
    assert run.stdout.strip() == str(mine)
