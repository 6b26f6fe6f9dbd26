"""Jobs on a real Ray cluster of two nodes: the same results, whatever is killed or removed."""

import gc
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
import warnings
from dataclasses import replace

import pytest

import plugin_lab
import population_jobs as work
from population_lab import Calling, image, plan
from stormsail.algorithms.population import population
from stormsail.algorithms.population.engines.in_process import InProcess
from stormsail.algorithms.population.engines.ray import Ray, _connect, _passes, load_ray
from stormsail.algorithms.population.population import train_population
from stormsail.algorithms.run.trials import LEDGER
from stormsail.core import plugins
from stormsail.core.errors import (
    ArgumentError,
    ChoiceError,
    ConfigError,
    RangeError,
    WorkerError,
)
from stormsail.evaluation.stats.trials import TrialLedger

pytestmark = [
    pytest.mark.ray,
    # Ray leaves the log files of the processes that it starts to the garbage collection.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
SIZE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


# Workers find modules where their node does: as on a cluster whose nodes have them installed.
PATHS = os.pathsep.join(entry for entry in sys.path if entry)


def add_node(cluster, **changes):
    """Start a node; again where the machine was too busy."""
    return _again(lambda: cluster.add_node(**{**SIZE, **changes}))


def _again(start, *, attempts=4):
    """Start something; a node gives up if its agents need more than 15 seconds for their imports.

    That limit is fixed. Ports for the agents would not lift it, and would make every driver export
    metrics in threads that outlive it.
    """
    for _ in range(attempts - 1):
        try:
            return start()
        except Exception as error:
            if not _passes(error):
                raise
    return start()


def new_cluster():
    """Start a cluster with its first node, which drivers elsewhere reach at `client`."""
    from ray.cluster_utils import Cluster

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    head = {**SIZE, "include_dashboard": False, "ray_client_server_port": port}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.client = f"ray://127.0.0.1:{port}"
    return cluster


@pytest.fixture(scope="module")
def cluster():
    """Two nodes with one core each: room for two members."""
    load_ray()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", PATHS)
        nodes = _again(new_cluster)
        add_node(nodes)
        yield nodes
        nodes.shutdown()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()  # what it left must not be collected in a test of another module


@pytest.fixture
def engine(cluster):
    engine = Ray(address=cluster.address)
    yield engine
    engine.close()


def run(engine, call, jobs):
    results = list(engine.run(call, jobs))
    assert sorted(job.member for job, _ in results) == sorted(job.member for job in jobs)
    return {job.member: (job, result) for job, result in results}


def outcomes(engine, call, jobs):
    return {member: result for member, (_, result) in run(engine, call, jobs).items()}


def in_background(act):
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_members_run_on_both_nodes_and_stay_there(engine, tmp_path):
    rounds = [outcomes(engine, work.node, work.jobs(tmp_path, 2, round_=r)) for r in range(2)]
    for results in rounds:
        assert len({result.digest for result in results.values()}) == 2
    for member in range(2):  # one actor per member, between rounds as well
        assert rounds[0][member].fitness == rounds[1][member].fitness
        assert rounds[0][member].digest == rounds[1][member].digest


def test_more_members_than_room_take_turns_with_the_outcomes_of_one_process(engine, tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    for round_ in range(2):
        expected = outcomes(InProcess(), work.advance, work.jobs(here, 5, round_=round_))
        results = run(engine, work.advance, work.jobs(there, 5, round_=round_))
        for member, (job, result) in results.items():
            assert job == work.jobs(there, 5, round_=round_)[member]
            assert result == expected[member]
    for path in here.rglob("*.txt"):
        assert path.read_bytes() == (there / path.relative_to(here)).read_bytes()


def test_a_killed_actor_is_replaced_and_its_job_done_again(engine, tmp_path):
    jobs = work.jobs(tmp_path, 2)
    results = outcomes(engine, work.die_first, jobs)
    assert [len(work.begun(job)) for job in jobs] == [1, 2]
    assert results == outcomes(InProcess(), work.advance, jobs)


@pytest.mark.refusal
def test_a_job_that_kills_every_actor_is_given_up_after_three(engine, tmp_path):
    jobs = work.jobs(tmp_path, 2)
    results = outcomes(engine, work.die_always, jobs)
    assert [len(work.begun(job)) for job in jobs] == [1, 3]
    assert results[0] == work.advance(jobs[0])
    assert type(results[1]) is WorkerError
    assert results[1].code == "worker-lost"
    assert str(results[1]).startswith(
        "a worker must live until member 1 has done round 0; "
        "found 3 workers that died one after the other, the last of ActorDiedError: "
    )


@pytest.mark.refusal
def test_an_exception_comes_home_as_itself_and_is_not_tried_again(engine, tmp_path):
    jobs = work.jobs(tmp_path, 2)
    results = outcomes(engine, work.refuse, jobs)
    assert [len(work.begun(job)) for job in jobs] == [1, 1]
    assert type(results[1]) is LookupError
    assert str(results[1]) == "member 1 has no bars"
    assert "in refuse" in results[1].__notes__[0]


@pytest.mark.refusal
def test_what_cannot_be_sent_is_refused_as_by_the_other_engines(engine, tmp_path):
    with pytest.raises(ArgumentError, match="must be picklable to reach a worker"):
        next(engine.run(lambda job: work.outcome(job), work.jobs(tmp_path, 1)))


def test_a_removed_node_costs_only_what_was_running_there(engine, cluster, tmp_path):
    ray = load_ray()
    extra = add_node(cluster, resources={"extra": 1})
    jobs = work.jobs(tmp_path, 3)
    node = {n["NodeID"]: n for n in ray.nodes() if n["Alive"]}
    assert len(node) == 3
    (removed,) = [name for name, n in node.items() if "extra" in n["Resources"]]

    def remove():
        assert work.eventually(lambda: all(work.begun(job) for job in jobs))
        cluster.remove_node(extra)

    remover = in_background(remove)
    results = outcomes(engine, work.node_or_sleep(removed), jobs)
    remover.join()
    assert sorted(len(work.begun(job)) for job in jobs) == [1, 1, 2]  # the last was there
    assert removed not in {result.digest for result in results.values()}
    assert {result.updates for result in results.values()} == {5}


def filled(root):
    """Make a population of three with folders of all kinds of content."""
    rng = random.Random(3)
    (root / "logs").mkdir(parents=True)
    (root / "logs" / "long.log").write_text("stays at home")
    (root / "config.toml").write_text("size = 3\n")
    for job in work.jobs(root, 3):
        own = work.folder(job)
        own.mkdir(parents=True)
        (own / "state.bin").write_bytes(rng.randbytes(300_000 + job.member))
        (own / "old.txt").write_text("goes")
        (own / "tool.sh").write_text("exit 0\n")
        (own / "tool.sh").chmod(0o755)
    return root


def lines(root):
    trials = TrialLedger(root.parent / "trials.jsonl").read().trials
    return sorted(
        (t.name, t.sharpe_per_bar, t.bars, t.status, dict(t.extra)["seed"]) for t in trials
    )


def test_folders_travel_through_the_object_store_byte_for_byte(cluster, tmp_path):
    here, there = filled(tmp_path / "here" / "pop"), filled(tmp_path / "there" / "pop")
    courier = Ray(address=cluster.address, storage="object-store")
    for round_ in range(2):
        both = []
        for root in (here, there):
            jobs = work.jobs(root, 3, round_=round_)
            if round_:  # member 2 copies member 0, as that was before the round
                shutil.copytree(work.folder(jobs[0]), work.parent(jobs[2], 0))
                jobs[2] = work.exploiting(jobs[2], 0)
            both.append(jobs)
        expected = outcomes(InProcess(), work.grow, both[0])
        results = outcomes(courier, work.grow, both[1])
        for member, result in results.items():
            assert result.metrics["at home"] == 0.0
            assert expected[member].metrics["at home"] == 1.0
            assert replace(result, metrics={}) == replace(expected[member], metrics={})
            # Every job has seen the ledger as it was at the beginning of its round.
            assert result.metrics["trials"] == 3.0 * round_
        assert work.image(there) == work.image(here)
        assert lines(there) == lines(here)
    names = [f"pop/0{member}" for member in range(3)]
    assert lines(here) == [(n, m / 8, 7, "finished", m) for m, n in enumerate(names)]
    states = {work.folder(job).joinpath("state.bin").read_bytes() for job in work.jobs(there, 3)}
    assert len(states) == 2  # that of member 0 was copied
    assert {len(state) for state in states} == {32 * 70_001 + 7}
    courier.close()
    assert not load_ray().is_initialized()


@pytest.mark.refusal
def test_a_member_that_fits_on_no_node_is_refused(cluster, engine):
    with pytest.raises(ConfigError, match=r"must have 1 cores and 0\.5 GPUs") as caught:
        Ray(address=cluster.address, gpus=0.5)
    assert caught.value.code == "cluster-resources"
    assert "1 cores and 0 GPUs · 1 cores and 0 GPUs" in str(caught.value)
    assert load_ray().is_initialized()  # by the first engine: who did not connect leaves it


@pytest.mark.refusal
def test_a_member_whose_only_node_goes_is_given_up_after_a_while(cluster, tmp_path):
    large = add_node(cluster, num_cpus=3)
    heavy = Ray(address=cluster.address, cpus=3.0, patience=0.5)
    jobs = work.jobs(tmp_path, 1)

    def remove():
        assert work.eventually(lambda: work.begun(jobs[0]))
        cluster.remove_node(large)

    remover = in_background(remove)
    results = outcomes(heavy, work.sleep, jobs)
    remover.join()
    heavy.close()
    assert type(results[0]) is ConfigError
    assert "must have 3 cores and 0 GPUs" in str(results[0])


@pytest.fixture
def gpu_nodes(cluster):
    """Two nodes more with two GPUs each: Ray hands out numbers and never asks for the hardware."""
    nodes = [add_node(cluster, num_cpus=4, num_gpus=2) for _ in range(2)]
    yield nodes
    for node in nodes:
        cluster.remove_node(node)


def at_once(results):
    """Return the largest number of jobs at work at the same time."""
    spans = [(one.metrics["begun"], one.metrics["ended"]) for one in results]
    return max(sum(begun <= moment < ended for begun, ended in spans) for moment, _ in spans)


def gpu_outcomes(cluster, root, *, members, together, **share):
    """Return the outcomes of members that say what they see, by node and GPUs."""
    engine = Ray(address=cluster.address, **share)
    root.mkdir()
    results = outcomes(engine, work.gpus(together), work.jobs(root, members))
    engine.close()
    places = {}
    for result in results.values():
        places.setdefault(result.digest, []).append(result)
    return places


def test_members_share_gpus_by_their_parts_on_all_nodes(cluster, gpu_nodes, tmp_path):
    """Ten members of half a GPU where there is room for eight: two take turns."""
    share = {"cpus": 0.25, "gpus": 0.5}
    places = gpu_outcomes(cluster, tmp_path / "half", members=10, together=8, **share)
    assert len(places) == 4  # both GPUs of both nodes
    assert {place.split()[1] for place in places} == {"0", "1"}
    assert [at_once(own) for own in places.values()] == [2] * 4
    whole = {"cpus": 0.25, "gpus": 2.0}
    places = gpu_outcomes(cluster, tmp_path / "whole", members=2, together=2, **whole)
    assert len(places) == 2
    assert {place.split()[1] for place in places} == {"0,1"}


def test_a_member_without_a_share_sees_no_gpu(cluster, gpu_nodes, tmp_path):
    """Others may have their shares there; Ray alone would leave all visible."""
    places = gpu_outcomes(cluster, tmp_path / "none", members=4, together=4, cpus=2.0)
    assert len(places) == 2
    assert {place.partition(" ")[2] for place in places} == {""}


DRIVER = """
import plugin_lab
import population_jobs as work
from pathlib import Path
from stormsail.algorithms.population.engines.ray import Ray

root = Path({root!r})
engine = Ray(address={address!r})
for job, outcome in engine.run(work.{call}, work.jobs(root, 2)):
    print(job.member, outcome.fitness)
engine.close()
"""


def driver(address, call, root):
    script = root / "driver.py"
    root.mkdir(parents=True, exist_ok=True)
    text = DRIVER.format(root=str(root), address=address, call=call)
    script.write_text(textwrap.dedent(text))
    return subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": PATHS},
    )


def test_actors_end_with_a_driver_that_is_killed_and_another_goes_on(cluster, tmp_path):
    process = driver(cluster.address, "sleep", tmp_path)
    jobs = work.jobs(tmp_path, 2)
    assert work.eventually(lambda: all(work.begun(job) for job in jobs), seconds=60)
    workers = [process for job in jobs for process in work.begun(job)]
    assert all(map(work.is_alive, workers))
    process.kill()
    process.communicate()
    assert work.eventually(lambda: not any(map(work.is_alive, workers)))
    again = Ray(address=cluster.address)
    assert outcomes(again, work.advance, jobs) == outcomes(InProcess(), work.advance, jobs)
    again.close()


def test_a_driver_elsewhere_reaches_the_cluster_through_its_port(cluster, tmp_path):
    process = driver(cluster.client, "die_first", tmp_path)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert sorted(out.splitlines()) == ["0 0.0", "1 1.0"]
    assert [len(work.begun(job)) for job in work.jobs(tmp_path, 2)] == [1, 2]


def test_without_an_address_a_cluster_is_started_quietly(tmp_path):
    process = driver(None, "advance", tmp_path)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    assert sorted(out.splitlines()) == ["0 0.0", "1 1.0"]


@pytest.mark.refusal
@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://127.0.0.1:9"])
def test_an_address_at_which_nobody_listens_is_refused_at_once(address):
    with pytest.raises(WorkerError) as caught:
        Ray(address=address)
    assert str(caught.value).startswith(
        f"a Ray cluster must answer at {address}; found [Errno 111] Connection refused. "
    )
    assert caught.value.code == "cluster-unreachable"


DEAD = ConnectionAbortedError("Initialization failure from server:\nzombie")
LATE = Exception("The current node timed out during startup. This could happen because ...")


@pytest.mark.parametrize("failures", [2, 3])
@pytest.mark.parametrize("error", [DEAD, LATE], ids=["dead", "late"])
def test_a_server_that_does_not_start_is_asked_for_again(monkeypatch, failures, error):
    # Ray gives a driver a server process of its own, which may find its port taken, and a node
    # must start within seconds; neither can be brought about from here, so the answer is played.
    ray, calls = load_ray(), []

    def init(address, **_):
        calls.append(address)
        if len(calls) <= failures:
            raise error

    monkeypatch.setattr(ray, "init", init)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        remote = f"ray://127.0.0.1:{listening.getsockname()[1]}"
        address = remote if error is DEAD else None
        if failures == 3:
            words = f"found {str(error).splitlines()[0].rstrip('.')}"
            with pytest.raises(WorkerError, match=words) as caught:
                _connect(ray, address)
            assert caught.value.code == "cluster-unreachable"
        else:
            _connect(ray, address)
    assert calls == [address or "local"] * 3


def test_what_a_second_start_would_not_cure_is_told_at_once(monkeypatch):
    ray, calls = load_ray(), []

    def init(address, **_):
        calls.append(address)
        raise RuntimeError("Version mismatch: the cluster has another version of Python")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(WorkerError, match="found Version mismatch"):
        _connect(ray, None)
    assert calls == ["local"]


@pytest.mark.refusal
def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError) as caught:
        Ray()
    assert str(caught.value) == (
        "the engine `ray` needs the package ray; found no such package in this environment. "
        "Run `pip install 'stormsail[ray]'`, or use the engine `processes`. [missing-extra]"
    )


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("settings", "kind", "words"),
    [
        ({"cpus": 0.0}, RangeError, "`cpus` must be positive; found 0.0"),
        ({"gpus": 1.5}, RangeError, "must be a share below 1 or a whole number; found 1.5"),
        ({"gpus": -1.0}, RangeError, "must be a share below 1 or a whole number; found -1.0"),
        ({"attempts": 0}, RangeError, "`attempts` must be at least 1; found 0"),
        ({"storage": "objectstore"}, ChoiceError, "Did you mean 'object-store'?"),
    ],
)
def test_settings_without_a_meaning_are_refused(settings, kind, words):
    with pytest.raises(kind) as caught:
        Ray(**settings)
    assert words in str(caught.value)


@pytest.mark.parametrize("storage", ["shared", "object-store"])
def test_a_population_has_the_same_bits_on_the_cluster(cluster, tmp_path, monkeypatch, storage):
    monkeypatch.setattr(population, "check_search", lambda *_: None)  # has a test of its own
    with plugins.scope():
        # A network of a plug-in: its source travels with the jobs, the file need not be there.
        for path in plugin_lab.written(tmp_path / "own"):
            if path.endswith("my_networks.py"):
                plugins.load([path])
        shutil.rmtree(tmp_path / "own")
        own = {"network__encoder": "gated", "network__encoder_parameters": {"width": 6}}
        plan_ = plan(changes=own if storage == "object-store" else None)
        here = train_population(plan_, out=tmp_path / "here" / "pop")
        engine = Ray(address=cluster.address, storage=storage)
        there = train_population(plan_, out=tmp_path / "there" / "pop", engine=engine)
    assert image(there.path) == image(here.path)
    manifest = json.loads((there.path / "members" / "00" / "manifest.json").read_text())
    names = [record["name"] for record in manifest.get("bound_plugins", [])]
    assert names == (["gated"] if storage == "object-store" else [])
    assert len(TrialLedger(tmp_path / "there" / LEDGER).read().counted()) == len(
        TrialLedger(tmp_path / "here" / LEDGER).read().counted()
    )


def test_an_actor_killed_in_the_middle_of_a_training_changes_no_bit(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(population, "check_search", lambda *_: None)  # has a test of its own
    here = train_population(plan(), out=tmp_path / "here" / "pop")
    engine = Calling(Ray(address=cluster.address), work.die_in_training)
    there = train_population(plan(), out=tmp_path / "there" / "pop", engine=engine)
    begins = [len(work.begun(job)) for job in work.jobs(there.path, 3)]
    assert begins == [len(there.rounds) + (member == 1) for member in range(3)]
    assert image(there.path) == image(here.path)
