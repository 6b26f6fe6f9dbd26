"""`bench.resumed`: finished jobs are kept, read again, and not run twice."""

import json
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from stormsail import __version__
from stormsail.bench.campaign import RowLog
from stormsail.bench.resumed import run_missing
from stormsail.core.errors import ArtifactError


class Job(NamedTuple):
    number: int

    @property
    def key(self):
        return f"job {self.number}"


class Marked(NamedTuple):
    number: int
    folder: Path

    @property
    def key(self):
        return f"job {self.number}"


class Row(NamedTuple):
    number: int
    parts: tuple[int, ...] = ()


def twice(job):
    return [Row(job.number, (job.number, 1)), Row(-job.number)]


def interrupted(job):
    if job.number == 2:
        raise KeyboardInterrupt
    return twice(job)


def failing(job):
    """Leave a mark; the first job fails once the second has begun, which waits for that."""
    (job.folder / str(job.number)).touch()
    if job.number == 0:
        until(job.folder / "1")
        (job.folder / "failed").touch()
        raise ValueError("the first one")
    until(job.folder / "failed")
    time.sleep(0.5)  # the parent hears of the failure meanwhile
    return twice(job)


def until(path):
    end = time.monotonic() + 30.0
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.01)


def test_jobs_that_the_file_holds_are_not_run_again(tmp_path):
    path, said = tmp_path / "rows.jsonl", []
    jobs = [Job(1), Job(2), Job(3)]
    with RowLog.open(path) as log, pytest.raises(KeyboardInterrupt):
        run_missing(interrupted, jobs, row=Row, processes=1, log=log)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {
            "key": "job 1",
            "version": __version__,
            "rows": [{"number": 1, "parts": [1, 1]}, {"number": -1, "parts": []}],
        }
    ]
    with RowLog.open(path) as log:
        rows = run_missing(twice, jobs, row=Row, processes=1, log=log, say=said.append)
    assert rows == [twice(job) for job in jobs]
    assert said == [twice(job) for job in jobs[1:]]
    with RowLog.open(path) as log:
        again = run_missing(interrupted, jobs[::-1], row=Row, processes=1, log=log)
    assert again == rows[::-1]
    assert len(path.read_text().splitlines()) == 3


def test_without_a_file_every_job_is_run_and_processes_change_nothing():
    jobs = [Job(number) for number in range(1, 4)]
    said = []
    rows = run_missing(twice, jobs, row=Row, processes=2, say=said.append)
    assert rows == [twice(job) for job in jobs]
    assert sorted(said) == rows


def test_after_a_failure_no_other_job_begins(tmp_path):
    jobs = [Marked(number, tmp_path) for number in range(6)]
    with pytest.raises(ValueError, match="the first one"):
        run_missing(failing, jobs, row=Row, processes=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "failed"]


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"rows": []}', "KeyError: 'key'"),
        ('{"key": "a", "rows": 3}', "TypeError: 'int' object is not iterable"),
        ('{"key": "a", "rows": [3]}', "AttributeError: 'int' object has no attribute 'items'"),
    ],
)
def test_a_line_that_is_no_finished_job_is_refused(tmp_path, line, problem):
    path = tmp_path / "rows.jsonl"
    path.write_text(line + "\n")
    with RowLog.open(path) as log, pytest.raises(ArtifactError) as refused:
        run_missing(twice, [Job(1)], row=Row, processes=1, log=log)
    assert str(refused.value) == (
        f"every line of {path} must be a row that the same command wrote; found line 1, {problem}. "
        "Remove that line, and its run is trained again; or name another file. [artifact-corrupt]"
    )
