"""Returns of the configurations that were tried: kept, read, compared over the same bars."""

import numpy as np
import pytest

from stormsail.core.errors import ArtifactError
from stormsail.evaluation import validate
from stormsail.evaluation.robustness.self_tests import SelfTest
from stormsail.evaluation.stats.overfitting import probability_of_overfitting
from stormsail.evaluation.stats.trials import TrialLedger
from stormsail.evaluation.walk_forward.judge import _RunSet
from stormsail.evaluation.walk_forward.tried import FOLDER, keep_returns, tried_returns
from validation_lab import fitter, settings, world

TS = np.arange(1, 11, dtype=np.int64)


def test_columns_are_the_bars_that_all_have_traded(tmp_path):
    keep_returns(tmp_path, "late", TS[1:], np.arange(2.0, 11.0))
    keep_returns(tmp_path, "early", TS - 1, np.arange(0.0, 10.0))
    tried = tried_returns(tmp_path, ["late", "early"], TS, -TS.astype(float))
    # 1 is missing in `late` and 10 in `early`: eight bars are left, each its own number
    assert tried.tolist() == [[bar, bar, -bar] for bar in range(2, 10)]


def test_one_that_traded_other_bars_or_left_nothing_is_left_out(tmp_path):
    keep_returns(tmp_path, "short", TS[2:], np.ones(8))  # 8 of 10 bars
    keep_returns(tmp_path, "none", TS[:0], np.zeros(0))
    tried = tried_returns(tmp_path, ["short", "none", "missing"], TS, np.arange(10.0))
    assert tried.tolist() == [[bar] for bar in range(10)]


def test_a_file_that_is_no_table_is_named(tmp_path):
    (tmp_path / "bad.parquet").write_bytes(b"nothing")
    with pytest.raises(ArtifactError, match=r"bad\.parquet must hold the returns"):
        tried_returns(tmp_path, ["bad"], TS, np.zeros(10))


def test_a_validation_is_set_beside_the_configurations_before_it(tmp_path, monkeypatch):
    monkeypatch.setattr(_RunSet, "self_tests", lambda *_: (SelfTest("none", True, ""),))
    bars, small = world(260), settings(folds=2, baselines=False, costs=False)
    ledger = TrialLedger(tmp_path / "trials.jsonl")
    results = [
        validate(bars, small, fit=fitter(bars, gain=gain), ledger=ledger, name=f"gain {gain}")
        for gain in (1.0, 40.0, 5.0)
    ]
    stated = [result.judgement.significance.configurations for result in results]
    assert (stated[0].value, stated[0].found, stated[0].unit) == (None, 1, "strategies")
    columns = np.stack([result.judgement.pooled.returns for result in results], axis=1)
    assert stated[1].value == probability_of_overfitting(columns[:, :2])
    assert stated[2].value == probability_of_overfitting(columns)
    assert len(list((tmp_path / FOLDER).iterdir())) == 3
    # what came later is not seen by the same validation once more, and nothing is kept twice
    again = validate(bars, small, fit=fitter(bars, gain=1.0), ledger=ledger, name="gain 1.0")
    assert again.judgement.significance.configurations == stated[0]
    assert len(list((tmp_path / FOLDER).iterdir())) == 3
    without = validate(bars, small, fit=fitter(bars))
    assert without.judgement.significance.configurations is None
    words = results[2].judgement.significance.overfitting_words
    assert [line.split(":")[0] for line in words] == [
        "probability of overfitting among seeds",
        "probability of overfitting among configurations tried",
    ]
