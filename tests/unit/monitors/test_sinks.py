"""Files of a run: the same bytes however often it was interrupted."""

import json
import math
import os
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from stormsail.core.clock import ManualClock
from stormsail.core.errors import ChoiceError, DataError, RangeError
from stormsail.core.files.documents import DocumentError
from stormsail.monitors.board_layout import LAYOUT
from stormsail.monitors.sinks import EventFile, MetricsFile, TensorBoard


def row(update):
    return {
        "train/update": float(update),
        "train/loss": math.sin(update),
        "rollout/win_rate": math.nan if update % 3 else 0.25,
        "config/gamma": 0.99,
    }


def written(path, rows, *, flush_every=1000, start=0):
    file = MetricsFile(path, rows=start)
    for update in range(start, rows):
        file.append(row(update))
        if (update + 1) % flush_every == 0:
            file.flush()
    file.flush()
    return path.read_bytes()


def test_a_row_is_an_update_and_a_column_a_metric(tmp_path):
    written(tmp_path / "metrics.parquet", 200)
    table = pq.read_table(tmp_path / "metrics.parquet")
    assert table.column_names == list(row(0))
    assert {str(kind) for kind in table.schema.types} == {"double"}
    for name in table.column_names:
        expected = [row(update)[name] for update in range(200)]
        np.testing.assert_array_equal(table[name].to_numpy(), expected)


def test_how_often_it_is_flushed_leaves_no_trace(tmp_path):
    bytes_of = [
        written(tmp_path / f"{every}.parquet", 130, flush_every=every) for every in (1, 7, 1000)
    ]
    assert bytes_of[0] == bytes_of[1] == bytes_of[2]


@pytest.mark.parametrize("ahead", [0, 1, 9])
@pytest.mark.parametrize("checkpoint", [0, 1, 63, 64, 65, 100])
def test_a_resumed_file_ends_with_the_bytes_of_one_that_was_not_interrupted(
    tmp_path, checkpoint, ahead
):
    whole = written(tmp_path / "whole.parquet", 130)
    path = tmp_path / "metrics.parquet"
    written(path, checkpoint + ahead)  # killed later than its checkpoint
    resumed = MetricsFile(path, rows=checkpoint)
    assert len(resumed) == checkpoint
    assert pq.read_table(path).num_rows == checkpoint
    assert written(path, 130, start=checkpoint) == whole


def test_a_run_that_died_before_its_first_checkpoint_starts_an_empty_file(tmp_path):
    path = tmp_path / "metrics.parquet"
    written(path, 5)
    assert len(MetricsFile(path)) == 0
    assert pq.read_table(path).num_rows == 0


def test_more_rows_than_one_group_keep_their_order(tmp_path):
    path = tmp_path / "metrics.parquet"
    file = MetricsFile(path)
    for update in range(9000):
        file.append({"a": float(update)})
    file.flush()
    assert pq.ParquetFile(path).num_row_groups == 2
    np.testing.assert_array_equal(pq.read_table(path)["a"].to_numpy(), np.arange(9000.0))
    assert len(MetricsFile(path, rows=8500)) == 8500


def test_rows_and_columns_are_read_back(tmp_path):
    file = MetricsFile(tmp_path / "metrics.parquet")
    for update in range(3):
        file.append(row(update))
    assert file.row(0) == {**row(0)}
    assert file.row(2)["train/update"] == 2.0
    assert file.column("train/update").tolist() == [0.0, 1.0, 2.0]
    assert file.column("no/such").tolist() == []


@pytest.mark.refusal
def test_other_metrics_than_before_are_refused(tmp_path):
    file = MetricsFile(tmp_path / "metrics.parquet")
    file.append({"a": 1.0, "b": 2.0})
    with pytest.raises(ChoiceError) as refusal:
        file.append({"a": 1.0, "c": 2.0})
    assert str(refusal.value) == (
        "every update must report the metrics of the first one; found a difference in b, c. "
        "Report NaN where a metric is unknown. [unknown-choice]"
    )
    assert len(file) == 1


@pytest.mark.refusal
def test_a_file_shorter_than_its_checkpoint_is_refused(tmp_path):
    path = tmp_path / "metrics.parquet"
    written(path, 5)
    with pytest.raises(DataError) as refusal:
        MetricsFile(path, rows=6)
    assert str(refusal.value) == (
        f"{path} must hold the 6 rows that the checkpoint knew of; found 5. "
        "Put the file back, or resume from an earlier checkpoint. [data-mismatch]"
    )


@pytest.mark.parametrize("damage", ["missing", "cut", "foreign"])
def test_a_damaged_file_is_refused_and_left_alone(tmp_path, damage):
    path = tmp_path / "metrics.parquet"
    data = written(path, 50)
    left = {"missing": None, "cut": data[:-9], "foreign": b"no parquet at all"}[damage]
    path.unlink()
    if left is not None:
        path.write_bytes(left)
    with pytest.raises(DataError) as refusal:
        MetricsFile(path, rows=10)
    assert refusal.value.code == "data-mismatch"
    assert (path.read_bytes() if path.exists() else None) == left


def test_a_negative_number_of_rows_is_refused(tmp_path):
    with pytest.raises(RangeError, match="`rows` must be at least 0; found -1"):
        MetricsFile(tmp_path / "metrics.parquet", rows=-1)


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "metrics.parquet"
    before = written(path, 5)
    file = MetricsFile(path, rows=5)
    file.append(row(5))

    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DataError) as refusal:
        file.flush()
    monkeypatch.undo()
    assert refusal.value.code == "data-write"
    assert "No space left on device" in refusal.value.found
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.parquet"]
    file.flush()
    assert pq.read_table(path).num_rows == 6


def test_where_no_folder_can_be_the_refusal_names_the_file(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(DataError) as refusal:
        EventFile(tmp_path / "taken" / "events.jsonl")
    assert refusal.value.code == "data-write"
    assert str(tmp_path / "taken" / "events.jsonl") in str(refusal.value)


def test_an_event_is_one_sorted_line(tmp_path):
    file = EventFile(tmp_path / "events.jsonl")
    file.append({"kind": "alarm", "update": 3, "value": None})
    file.append({"update": 4, "kind": "trial", "score": 0.1})
    text = (tmp_path / "events.jsonl").read_text()
    assert text == (
        '{"kind":"alarm","update":3,"value":null}\n{"kind":"trial","score":0.1,"update":4}\n'
    )
    assert file.length == len(text)
    assert [json.loads(line)["update"] for line in text.splitlines()] == [3, 4]


def test_every_event_is_forced_to_the_disk(tmp_path, monkeypatch):
    file = EventFile(tmp_path / "events.jsonl")
    forced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: forced.append(real(descriptor)))
    file.append({"update": 1})
    assert len(forced) == 1


@pytest.mark.parametrize("torn", [b"", b'{"update":2', b'{"update":2}\n'])
def test_events_after_the_checkpoint_are_cut_off_and_written_again(tmp_path, torn):
    whole = EventFile(tmp_path / "whole.jsonl")
    path = tmp_path / "events.jsonl"
    file = EventFile(path)
    for update in range(2):
        whole.append({"update": update})
        file.append({"update": update})
    length = file.length
    path.write_bytes(path.read_bytes() + torn)
    resumed = EventFile(path, length=length)
    assert path.stat().st_size == length
    for update in range(2, 5):
        whole.append({"update": update})
        resumed.append({"update": update})
    assert path.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert resumed.length == whole.length


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("content", "shown"), [(b"{}\n", "3"), (b'{"update":1}\n', "a line that is cut off")]
)
def test_events_that_the_checkpoint_knew_of_must_be_there(tmp_path, content, shown):
    path = tmp_path / "events.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError) as refusal:
        EventFile(path, length=8)
    assert str(refusal.value) == (
        f"{path} must hold the 8 bytes of whole lines that the checkpoint knew of; found {shown}. "
        "Put the file back, or resume from an earlier checkpoint. [data-mismatch]"
    )
    assert path.read_bytes() == content


def test_times_stand_in_a_file_of_their_own(tmp_path):
    clock = ManualClock(1_000)
    with_clock = EventFile(tmp_path / "a.jsonl", clock=clock)
    without = EventFile(tmp_path / "b.jsonl")
    for update in range(3):
        with_clock.append({"update": update})
        without.append({"update": update})
        clock.advance(1.0)
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    times = (tmp_path / "a.jsonl.times").read_text()
    assert times == "0 1000\n1 1000001000\n2 2000001000\n"
    assert not (tmp_path / "b.jsonl.times").exists()
    EventFile(tmp_path / "a.jsonl", length=2 * 13, clock=clock).append({"update": 2})
    assert (tmp_path / "a.jsonl.times").read_text() == times + "2 3000001000\n"


def test_an_event_that_json_cannot_give_back_is_refused_and_not_written(tmp_path):
    file = EventFile(tmp_path / "events.jsonl")
    with pytest.raises(DocumentError):
        file.append({"value": math.nan})
    assert (tmp_path / "events.jsonl").read_bytes() == b""
    assert file.length == 0


def shown(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        name: [(scalar.step, scalar.value) for scalar in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_shows_each_step_once_after_a_resume(tmp_path):
    with TensorBoard(tmp_path) as board:
        for step in range(4):
            board.write({"train/loss": float(step), "rollout/win_rate": math.nan}, step=step)
        board.flush()
    with TensorBoard(tmp_path, purge_step=2) as board:
        for step in range(2, 5):
            board.write({"train/loss": 10.0 + step, "rollout/win_rate": 0.5}, step=step)
    assert shown(tmp_path) == {
        "train/loss": [(0, 0.0), (1, 1.0), (2, 12.0), (3, 13.0), (4, 14.0)],
        "rollout/win_rate": [(2, 0.5), (3, 0.5), (4, 0.5)],
    }


def layout_of(folder):
    """Return the layout in the event files, as TensorBoard's own plugin reads it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.custom_scalar import layout_pb2
    from tensorboard.util import tensor_util

    events = EventAccumulator(str(folder))
    events.Reload()
    written = events.Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout()
    layout.ParseFromString(tensor_util.make_ndarray(written[-1].tensor_proto).item())
    return {
        group.title: {chart.title: tuple(chart.multiline.tag) for chart in group.chart}
        for group in layout.category
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_shows_charts_by_group_before_and_after_a_resume(tmp_path):
    with TensorBoard(tmp_path) as board:
        board.write({"train/loss": 0.0}, step=1)
    first = layout_of(tmp_path)
    with TensorBoard(tmp_path, purge_step=1):
        pass
    assert layout_of(tmp_path) == first == LAYOUT
    assert list(first) == [
        "advantages", "return scale", "gradient health", "losses", "twin critics", "VGS", "memory",
        "CVaR",
    ]  # fmt: skip


def test_every_metric_of_a_chart_is_on_the_page_of_metrics():
    page = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
    names = re.findall(r"^\| `([a-z]+/[^`]+)` \|", page, re.M)
    # Placeholders of the page as an example of what they stand for.
    examples = [name.replace("{l}", "0").replace("{trunk}", "trunk") for name in names]
    tags = [tag for charts in LAYOUT.values() for chart in charts.values() for tag in chart]
    unknown = [tag for tag in tags if not any(re.fullmatch(tag, name) for name in examples)]
    assert len(tags) > 80
    assert unknown == []
