"""Jobs in threads of this process: the same results, side by side, and a signal ends them all."""

import os
import signal
import threading
import time

import pytest
import torch

import population_jobs as work
from stormsail.algorithms.population.engines.in_process import InProcess
from stormsail.core import turns
from stormsail.core.errors import RangeError
from stormsail.core.signals import handled_signals


def test_outcomes_are_those_of_one_after_the_other(tmp_path):
    expected = dict(InProcess().run(work.advance, work.jobs(tmp_path, 5)))
    assert dict(InProcess(workers=3).run(work.advance, work.jobs(tmp_path, 5))) == expected


def test_as_many_jobs_as_workers_are_carried_out_at_the_same_time(tmp_path):
    meeting, seen = threading.Barrier(3, timeout=30), set()

    def meet(job):
        seen.add(threading.get_ident())
        meeting.wait()
        return work.outcome(job)

    done = dict(InProcess(workers=3).run(meet, work.jobs(tmp_path, 6)))
    assert sorted(job.member for job in done) == list(range(6))
    assert len(seen) >= 3
    assert threading.get_ident() not in seen


def test_what_a_job_raises_is_handed_back_and_the_others_go_on(tmp_path):
    def fail(job):
        if job.member == 1:
            raise ValueError("no")
        return work.outcome(job)

    found = {
        job.member: result for job, result in InProcess(workers=2).run(fail, work.jobs(tmp_path, 3))
    }
    assert isinstance(found.pop(1), ValueError)
    assert found == {
        job.member: work.outcome(job) for job in work.jobs(tmp_path, 3) if job.member != 1
    }


def test_members_take_turns_on_a_device_and_one_that_fails_leaves_its_turn(tmp_path):
    gpu, inside, most = torch.device("cuda"), [], []

    def train(job):
        with turns.taken(gpu):
            assert turns.has_turn()
            inside.append(job.member)
            time.sleep(0.005)
            most.append(len(inside))
            inside.remove(job.member)
            if job.member == 1:
                raise ValueError("no")
        return work.outcome(job)

    jobs = work.jobs(tmp_path, 6)
    found = {job.member: result for job, result in InProcess(workers=3).run(train, jobs)}
    assert isinstance(found.pop(1), ValueError)
    assert sorted(found) == [0, 2, 3, 4, 5]
    assert most == [1] * 6


def test_jobs_one_after_the_other_take_no_turn(tmp_path):
    def train(job):
        with turns.taken(torch.device("cuda")):
            assert not turns.has_turn()
        return work.outcome(job)

    assert len(list(InProcess().run(train, work.jobs(tmp_path, 2)))) == 2


def test_a_signal_ends_every_member_also_one_that_begins_after_it(tmp_path):
    """As a training does: it finishes what it is at, then ends with an interruption."""
    begun, ended = threading.Event(), []

    def train(job):
        stop = threading.Event()
        if job.member == 1:
            assert begun.wait(30)
            time.sleep(0.3)  # the signal came before it listens
        with handled_signals(lambda _: stop.set()):
            if job.member == 0:
                os.kill(os.getpid(), signal.SIGTERM)
                begun.set()
            assert stop.wait(10)
        ended.append(job.member)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(InProcess(workers=2).run(train, work.jobs(tmp_path, 4)))
    assert sorted(ended) == [0, 1]


@pytest.mark.refusal
def test_no_worker_is_refused():
    with pytest.raises(RangeError, match="`workers` must be at least 1"):
        InProcess(workers=0)
