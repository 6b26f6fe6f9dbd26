"""Plug-ins of a driver in its workers: they travel with each job, as source."""

import pickle

import pytest

import population_jobs as work
from stormsail.algorithms.population.engines.reports import carry_out, pack_job, unpack_report
from stormsail.algorithms.population.jobs import Outcome
from stormsail.bench import processes
from stormsail.core import plugins
from stormsail.core.errors import ConfigError
from stormsail.market.features import REGISTRY

GAP = """from stormsail.market.features import feature

@feature(name="carried_gap", lookback=2)
def gap(bars):
    return bars["close"][1:] - bars["close"][:-1]
"""


@pytest.fixture(autouse=True)
def _forgets():
    with plugins.scope():
        yield


def knows(job):
    """Return an outcome whose updates say whether the worker knows the plug-in's feature."""
    return Outcome(job.member, job.round, 0.0, int("carried_gap" in REGISTRY), "", {})


def test_a_job_brings_the_plug_ins_of_its_driver(tmp_path):
    (job, *_) = work.jobs(tmp_path, 1)
    path = tmp_path / "mine.py"
    path.write_text(GAP)
    with plugins.scope():
        plugins.load([path])
        packed = pack_job(knows, job)
    path.unlink()  # a node of a cluster does not see the driver's disk
    assert "carried_gap" not in REGISTRY
    for _ in range(2):  # a worker carries out many jobs
        assert unpack_report(carry_out(packed)).updates == 1


def test_a_plug_in_that_cannot_run_there_is_reported(tmp_path):
    (job, *_) = work.jobs(tmp_path, 1)
    sent = plugins.Carried("mine.py", "", str(tmp_path / "mine.py"), b"1 / 0")
    packed = pickle.dumps(((sent,), pickle.dumps((knows, job))))
    error = unpack_report(carry_out(packed))
    assert isinstance(error, ConfigError)
    assert error.code == "plugin-file"


def test_processes_of_a_bench_begin_with_the_plug_ins(tmp_path, monkeypatch):
    given = {}
    monkeypatch.setattr(
        processes, "ProcessPoolExecutor", lambda *_, **options: given.update(options)
    )
    path = tmp_path / "mine.py"
    path.write_text(GAP)
    with plugins.scope():
        plugins.load([path])
        processes.one_thread_processes(2)
    monkeypatch.setattr(processes.torch, "set_num_threads", lambda _: None)
    given["initializer"](*given["initargs"])
    assert "carried_gap" in REGISTRY
