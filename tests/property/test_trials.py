"""Properties of the trial ledger, for any records and any cut."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stormsail.core.clock import ManualClock
from stormsail.core.errors import ArtifactError
from stormsail.evaluation.stats.trials import HEAD, KINDS, STATUSES, TRIED, TrialLedger

RECORD = st.tuples(
    st.sampled_from(KINDS),
    st.text(max_size=8),
    st.none() | st.floats(-1.0, 1.0),
    st.integers(0, 10_000),
    st.sampled_from(STATUSES),
    st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=4), max_size=3),
)


def write(ledger, records):
    for kind, name, sharpe, bars, status, extra in records:
        ledger.record(
            kind,
            name,
            config_hash="c",
            data_hash="d",
            sharpe_per_bar=sharpe,
            bars=bars,
            status=status,
            extra=extra,
        )


@settings(max_examples=25)
@given(st.lists(RECORD, max_size=5))
def test_what_was_recorded_is_read_and_counted(records):
    with tempfile.TemporaryDirectory() as folder:
        ledger = TrialLedger(Path(folder) / "t.jsonl", clock=ManualClock())
        write(ledger, records)
        read = ledger.read()
        assert read.torn == 0
        assert [
            (t.kind, t.name, t.sharpe_per_bar, t.bars, t.status, t.extra) for t in read.trials
        ] == [tuple(record) for record in records]
        # what failed without a result was no trial
        tried = [r for r in records if r[0] in TRIED and (r[4] != "failed" or r[2] is not None)]
        assert ledger.count() == len(tried)
        assert ledger.sharpes().tolist() == [r[2] for r in tried if r[2] is not None]


@settings(max_examples=30)
@given(st.lists(RECORD, min_size=1, max_size=3), st.data())
def test_a_ledger_cut_anywhere_is_noticed(records, data):
    with tempfile.TemporaryDirectory() as folder:
        ledger = TrialLedger(Path(folder) / "t.jsonl", clock=ManualClock())
        write(ledger, records)
        whole = ledger.path.read_bytes()
        cut = data.draw(st.integers(0, len(whole) - 1))
        ledger.path.write_bytes(whole[:cut])
        with pytest.raises(ArtifactError) as caught:
            ledger.read()
        assert caught.value.code == "artifact-corrupt"


@settings(max_examples=30)
@given(st.lists(RECORD, min_size=1, max_size=3), RECORD, st.data())
def test_a_writer_that_died_anywhere_loses_at_most_its_own_line(records, last, data):
    """The file as a crash leaves it: whole lines and their head, and a part of one line more."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = TrialLedger(Path(folder) / "t.jsonl", clock=ManualClock())
        write(ledger, records)
        before, head = ledger.path.read_bytes(), ledger.path.with_name("t.jsonl" + HEAD)
        known = head.read_bytes()
        write(ledger, [last])
        line = ledger.path.read_bytes()[len(before) :]
        kept = data.draw(st.integers(0, len(line)))
        ledger.path.write_bytes(before + line[:kept])
        head.write_bytes(known)  # a line is on the disk before the head names it
        before_repair = ledger.read()
        whole = kept == len(line)
        assert len(before_repair.trials) == len(records) + whole
        assert before_repair.torn == (0 if whole else kept)
        write(ledger, [last])
        after = ledger.read()
        torn = 0 < kept < len(line)
        assert after.torn == 0
        assert len(after.trials) == len(records) + whole + torn + 1
        assert sum(trial.kind == "repair" for trial in after.trials) == torn
        assert after.trials[: len(records)] == before_repair.trials[: len(records)]
