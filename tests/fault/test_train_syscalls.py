"""The kernel kills a training process at every call of a checkpoint: none is ever torn."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager

import pyarrow.parquet as pq
import pytest

from fault.train_server import BURN
from stormsail.core.files.artifact import read_artifact
from training_lab import image, run_all, run_for, small

CONFIG = small(
    "cartpole-lstm",
    optimizer__optimizer_class="AdaptiveUPGD",
    vgs__enabled=True,
    checkpoint__keep_last=2,  # so that writing one removes another
)
LIMIT = 1_000
"""Call at which the tracer kills; the server itself must make fewer."""

CALLS = {"fsync": 15, "mkdirat": 1, "renameat": 4, "unlinkat": 9, "write": 10}
"""The least number of calls of each name that a checkpoint makes."""


@contextmanager
def server(out, call):
    """Start a training process under a tracer; give what asks it for one checkpoint."""
    kill = f"inject={call}:signal=SIGKILL:when={LIMIT}"
    command = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}"]
    python = [sys.executable, "-m", "fault.train_server", str(out), call, str(LIMIT)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with subprocess.Popen(
        [*command, "-e", kill, *python],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"0\n"

        def ask(number):
            process.stdin.write(f"{number}\n".encode())
            process.stdin.flush()
            return int(process.stdout.readline())

        yield ask
        process.stdin.close()
        assert process.wait(60) == 0


def put_back(out, template):
    """Put a run's folder back as it was, without touching the folder itself, which is held."""
    for path in out.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(template, out, dirs_exist_ok=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    run_all(CONFIG, out)
    return image(out)


@pytest.mark.campaign
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("call", BURN)
def test_the_kernel_kills_at_every_call_of_a_checkpoint_and_none_is_torn(call, whole, tmp_path):
    out, template, later = (tmp_path / name for name in ("run", "template", "later"))
    run_for(CONFIG, out, 1)
    kills, status = 0, -1
    with server(out, call) as ask:
        shutil.copytree(out, template)
        while status != 0:
            status = ask(kills + 1)
            assert status in {0, signal.SIGKILL}
            steps = sorted(int(path.name) for path in (out / "checkpoints").glob("[0-9]*"))
            assert steps in ([0, 32], [0, 32, 64], [32, 64])
            assert steps == [32, 64] or status != 0
            for step in steps:
                read_artifact(out / "checkpoints" / f"{step:012d}", kind="checkpoint")
            pq.read_table(out / "metrics.parquet")
            shutil.copytree(out, later)
            assert run_all(CONFIG, later).status == "finished"
            assert image(later) == whole
            shutil.rmtree(later)
            put_back(out, template)
            kills += status != 0
    assert kills >= CALLS[call]
    # Read by scripts/campaign.py, which runs this with -s: one trial for each kill.
    sys.stdout.write(f"\n{kills} kills at {call}, 0 torn\n")
