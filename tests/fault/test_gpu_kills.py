"""Training on a GPU with captured graphs under kills: the run ends with the same bytes.

Each life is a process of its own, since a child of `fork` cannot use its parent's GPU. torch's
strict determinism is on: some sums of metrics are atomic otherwise, in any order.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from training_lab import image

KILLS = 20
LIFE = """
import sys
import torch
torch.use_deterministic_algorithms(True)
from training_lab import run_all, small
config = small(
    "cartpole-lstm", device="cuda", precision="bf16", optimizer__optimizer_class="AdaptiveUPGD",
    vgs__enabled=True, ppo__total_steps=300 * 32,
)
run_all(config, sys.argv[1])
"""


def life(out: Path) -> subprocess.Popen:
    """Begin or continue the run in a process."""
    paths = os.pathsep.join(path for path in sys.path if path)
    variables = {**os.environ, "PYTHONPATH": paths, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    return subprocess.Popen([sys.executable, "-c", LIFE, str(out)], env=variables)


@pytest.mark.gpu
@pytest.mark.campaign
def test_a_captured_run_ends_with_the_same_bytes_however_often_it_is_killed(tmp_path):
    began = time.monotonic()
    assert life(tmp_path / "whole").wait(600) == 0
    longest = time.monotonic() - began
    chance = random.Random(5)
    for _ in range(KILLS):
        process = life(tmp_path / "killed")
        time.sleep(chance.uniform(0.2 * longest, 0.7 * longest))
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    assert life(tmp_path / "killed").wait(600) == 0
    assert image(tmp_path / "killed") == image(tmp_path / "whole")
