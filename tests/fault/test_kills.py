"""The writer dies at each of its file-system calls: the old generation or the new, never a mix."""

import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import warnings

import pytest

from fault.faulty_os import FaultyOs, kill_at, never
from fault.sample import assert_whole, contents, copied, prepared
from stormsail.core.files import atomic
from stormsail.core.files.generations import Generations

OLD = [100, 200]
NEW = 300


def save_and_die(generations: Generations, fault) -> int:
    """Save in a forked child under `fault`; return the child's wait status."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of fork and threads
        child = os.fork()
    if child == 0:
        try:
            atomic.os = FaultyOs(fault)
            generations.save(NEW, contents(NEW))
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1]


def assert_old_or_new(generations: Generations) -> int:
    latest = generations.load_latest()
    assert latest.step in {200, NEW}
    assert latest.skipped == ()
    assert_whole(latest.artifact, latest.step)
    for step in generations.steps():
        assert_whole(generations.load(step), step)
    return latest.step


@pytest.mark.parametrize("tear", [False, True])
def test_every_kill_leaves_the_old_or_the_new_generation(tear, tmp_path):
    template = prepared(tmp_path / "template", OLD).root
    seen, number, status = [], 0, -1
    while status != 0:
        number += 1
        generations = Generations(copied(template, tmp_path / f"n{number}"), keep=2)
        status = save_and_die(generations, kill_at(number, tear=tear))
        assert status in {0, signal.SIGKILL}
        seen.append(assert_old_or_new(generations))
        again = seen[-1] + 100
        generations.save(again, contents(again))
        assert generations.load_latest().step == again
        shutil.rmtree(generations.root)
    # Once the new generation is there it stays: the change happens at one call.
    assert seen == sorted(seen)
    assert seen[0] == 200
    assert seen[-1] == NEW
    assert number == len(undisturbed_calls(tmp_path)) + 1


def undisturbed_calls(tmp_path) -> list[str]:
    recorder = FaultyOs(never)
    generations = prepared(tmp_path / "undisturbed", OLD)
    real, atomic.os = atomic.os, recorder
    try:
        generations.save(NEW, contents(NEW))
    finally:
        atomic.os = real
    return recorder.calls


def test_a_killed_writer_frees_its_lock(tmp_path):
    generations = prepared(tmp_path / "lock", OLD)
    assert save_and_die(generations, kill_at(20, tear=False)) == signal.SIGKILL
    assert generations.save(NEW, contents(NEW)).name == "000000000300"


WRITER = textwrap.dedent(
    """
    import itertools, sys
    from fault.sample import contents
    from stormsail.core.files.generations import Generations

    generations = Generations(sys.argv[1], keep=2)
    start = max(generations.steps(), default=0)
    print("ready", flush=True)
    for step in itertools.count(start + 1):
        generations.save(step, contents(step))
    """
)


@pytest.mark.campaign
def test_kills_at_random_times_never_tear_a_generation(tmp_path):
    chance = random.Random(20240101)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for _ in range(50):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "runs")],
            stdout=subprocess.PIPE,
            env=environment,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0.0, 0.2))
        process.kill()
        process.communicate()
        generations = Generations(tmp_path / "runs", keep=2)
        for step in generations.steps():
            assert_whole(generations.load(step), step)


@pytest.mark.campaign
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("call", ["write", "fsync", "renameat", "unlinkat", "mkdirat"])
def test_the_kernel_itself_kills_at_every_call(call, tmp_path):
    template = prepared(tmp_path / "template", OLD).root
    script = textwrap.dedent(
        """
        import sys
        from fault.sample import contents
        from stormsail.core.files.generations import Generations

        Generations(sys.argv[1], keep=2).save(300, contents(300))
        """
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    number, code = 0, None
    while code != 0 and number < 40:
        number += 1
        root = copied(template, tmp_path / f"n{number}")
        inject = f"inject={call}:signal=SIGKILL:when={number}"
        command = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", inject]
        code = subprocess.run(
            [*command, sys.executable, "-c", script, str(root)], env=environment, check=False
        ).returncode
        assert_old_or_new(Generations(root, keep=2))
    assert code == 0
