"""Jobs in several processes: the same results, whatever dies meanwhile, and nobody left behind."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

import population_jobs as work
from stormsail.algorithms.population.engines.in_process import InProcess
from stormsail.algorithms.population.engines.processes import Processes
from stormsail.core.errors import ArgumentError, RangeError, WorkerError


@pytest.fixture(scope="module")
def shared():
    """Two workers for all tests that do not care which: a process costs seconds."""
    engine = Processes(workers=2)
    yield engine
    engine.close()


def run(engine, call, jobs):
    results = list(engine.run(call, jobs))
    assert sorted(job.member for job, _ in results) == sorted(job.member for job in jobs)
    return {job.member: (job, result) for job, result in results}


def kill_when_begun(job):
    """Kill the first process that begins a job, from outside."""

    def kill():
        assert work.eventually(lambda: work.begun(job))
        os.kill(work.begun(job)[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


def test_outcomes_are_those_of_one_process(shared, tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    for round_ in range(2):
        expected = run(InProcess(), work.advance, work.jobs(here, 5, round_=round_))
        results = run(shared, work.advance, work.jobs(there, 5, round_=round_))
        for member, (job, result) in results.items():
            assert job == work.jobs(there, 5, round_=round_)[member]
            assert result == expected[member][1]
    for path in here.rglob("*.txt"):
        assert path.read_bytes() == (there / path.relative_to(here)).read_bytes()


def test_jobs_run_in_as_many_processes_as_there_are_workers_and_these_stay(shared, tmp_path):
    processes = set()
    for round_ in range(2):
        results = run(shared, work.where, work.jobs(tmp_path, 6, round_=round_))
        processes |= {result.fitness for _, result in results.values()}
        assert {result.digest for _, result in results.values()} == {str(os.getpid())}
    assert len(processes) == 2
    assert os.getpid() not in processes


def test_a_worker_computes_with_one_thread(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    engine = Processes(workers=1)
    ((_, result),) = run(engine, work.threads, work.jobs(tmp_path, 1)).values()
    engine.close()
    assert result.fitness == 1.0


def test_a_killed_worker_is_replaced_and_its_job_done_again(shared, tmp_path):
    jobs = work.jobs(tmp_path, 3)
    results = run(shared, work.die_first, jobs)
    expected = run(InProcess(), work.advance, jobs)
    assert {m: result for m, (_, result) in results.items()} == {
        m: result for m, (_, result) in expected.items()
    }
    assert [len(work.begun(job)) for job in jobs] == [1, 2, 1]


def test_a_worker_killed_from_outside_is_replaced(shared, tmp_path):
    jobs = work.jobs(tmp_path, 1)
    killer = kill_when_begun(jobs[0])
    results = run(shared, work.sleep_first, jobs)
    killer.join()
    assert results[0][1] == work.advance(jobs[0])
    first, second = work.begun(jobs[0])
    assert first != second
    assert not work.is_alive(first)


@pytest.mark.refusal
def test_a_job_that_kills_every_worker_is_given_up_after_three(shared, tmp_path):
    jobs = work.jobs(tmp_path, 3)
    results = run(shared, work.die_always, jobs)
    assert [len(work.begun(job)) for job in jobs] == [1, 3, 1]
    error = results[1][1]
    assert type(error) is WorkerError
    words = (
        "a worker must live until member 1 has done round 0; found 3 workers that died one after"
    )
    assert str(error).startswith(
        f"{words} the other, the last of signal SIGKILL; its output is in "
    )
    assert error.code == "worker-lost"
    assert results[0][1] == work.advance(jobs[0])
    assert results[2][1] == work.advance(jobs[2])


def test_a_death_is_seen_though_a_child_of_the_job_holds_the_pipe(shared, tmp_path):
    jobs = work.jobs(tmp_path, 1)
    results = run(shared, work.fork_and_die, jobs)
    assert results[0][1] == work.advance(jobs[0])
    child = int((tmp_path / "child").read_text())
    assert work.eventually(lambda: not work.is_alive(child))


@pytest.mark.refusal
def test_an_exception_comes_home_as_itself_and_is_not_tried_again(shared, tmp_path):
    jobs = work.jobs(tmp_path, 3)
    results = run(shared, work.refuse, jobs)
    assert [len(work.begun(job)) for job in jobs] == [1, 1, 1]
    error = results[1][1]
    assert type(error) is LookupError
    assert str(error) == "member 1 has no bars"
    (note,) = error.__notes__
    assert note.startswith("In the worker:\nTraceback")
    assert "in refuse" in note
    assert results[2][1] == work.advance(jobs[2])


@pytest.mark.refusal
def test_an_exception_that_cannot_travel_sends_its_words(shared, tmp_path):
    ((_, error),) = run(shared, work.refuse_stubbornly, work.jobs(tmp_path, 1)).values()
    assert type(error) is WorkerError
    assert str(error).startswith(
        "an exception must be picklable to come home from a worker; "
        "found StubbornError: this and member 0. "
    )
    assert "in refuse_stubbornly" in error.__notes__[0]


@pytest.mark.refusal
def test_what_cannot_be_sent_is_refused_before_anything_begins(tmp_path):
    engine = Processes(workers=1)
    with pytest.raises(ArgumentError, match="must be picklable to reach a worker") as caught:
        next(engine.run(lambda job: work.outcome(job), work.jobs(tmp_path, 1)))
    assert caught.value.code == "not-picklable"
    assert "not a lambda" in str(caught.value)
    assert not (tmp_path / "logs").exists()
    engine.close()


@pytest.mark.refusal
def test_an_outcome_that_cannot_be_sent_is_refused_in_words(shared, tmp_path):
    ((_, error),) = run(shared, work.return_a_function, work.jobs(tmp_path, 1)).values()
    assert type(error) is WorkerError
    assert "an outcome must be picklable to come home from a worker" in str(error)


@pytest.mark.refusal
@pytest.mark.parametrize("setting", ["workers", "attempts"])
def test_there_must_be_a_worker_and_an_attempt(setting):
    with pytest.raises(RangeError, match=f"`{setting}` must be at least 1; found 0"):
        Processes(**{"workers": 1, setting: 0})


def test_what_a_job_prints_goes_to_the_file_of_its_worker(tmp_path, capfd):
    engine = Processes(workers=1)
    run(engine, work.speak, work.jobs(tmp_path, 2))
    engine.close()
    (log,) = (tmp_path / "logs").iterdir()
    assert log.name == "worker-00.log"
    lines = [f"member {m} {words}" for m in range(2) for words in ("speaks", "has a child")]
    assert log.read_text().splitlines() == lines
    assert capfd.readouterr() == ("", "")


def test_who_stops_listening_leaves_no_work_behind(tmp_path):
    engine = Processes(workers=2)
    first, second = work.jobs(tmp_path, 2)
    results = engine.run(work.sleep_first, [first, second])
    killer = kill_when_begun(first)
    assert next(results)[0] == first
    killer.join()
    assert work.eventually(lambda: work.begun(second))
    (process,) = work.begun(second)
    assert work.is_alive(process)
    results.close()
    assert not work.is_alive(process)
    engine.close()


DRIVER = """
import signal
import sys
sys.path[:0] = {path!r}
import population_jobs as work
from pathlib import Path
from stormsail.algorithms.population.engines.processes import Processes

if __name__ == "__main__":
    # a shell that starts the tests in the background lets them ignore Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
    root = Path({root!r})
    engine = Processes(workers=2)
    for _ in engine.run(work.{call}, work.jobs(root, 2)):
        {then}
"""


@pytest.fixture
def driver(tmp_path):
    """Start a driver of its own with two workers; kill what is left of it in the end."""
    started = []

    def start(call, then="pass"):
        script = tmp_path / "driver.py"
        path = [entry for entry in sys.path if entry]
        script.write_text(
            textwrap.dedent(DRIVER.format(path=path, root=str(tmp_path), call=call, then=then))
        )
        process = subprocess.Popen(
            [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
    for job in work.jobs(tmp_path, 2):
        for worker in filter(work.is_alive, work.begun(job)):
            os.kill(worker, signal.SIGKILL)


def workers_of(root: Path) -> list[int]:
    jobs = work.jobs(root, 2)
    assert work.eventually(lambda: all(work.begun(job) for job in jobs))
    return [process for job in jobs for process in work.begun(job)]


def test_workers_end_with_a_driver_that_is_killed(driver, tmp_path):
    process = driver("sleep")
    workers = workers_of(tmp_path)
    assert all(work.is_alive(worker) for worker in workers)
    process.kill()
    process.wait()
    assert work.eventually(lambda: not any(map(work.is_alive, workers)), seconds=5)


def test_an_interrupt_ends_driver_and_workers(driver, tmp_path):
    process = driver("sleep")
    workers = workers_of(tmp_path)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == -signal.SIGINT
    assert out == ""
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert err.count("Traceback") == 1  # the driver's: workers have nothing to say
    assert not any(map(work.is_alive, workers))


def test_a_driver_that_forgets_to_close_ends_all_the_same(driver, tmp_path):
    process = driver("where")
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "", "")
    assert not any(map(work.is_alive, workers_of(tmp_path)))
