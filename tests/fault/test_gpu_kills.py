"""Training on a GPU with captured graphs under kills: the run ends with the same bytes.

All lives are children of one process that has imported everything and never touched the GPU: to
import torch and to compile kernels takes longer than to train. Each tells of its updates through a
pipe, so that every kill comes while it trains. torch's strict determinism is on: some sums of
metrics are atomic otherwise, in any order.
"""

import json
import os
import subprocess
import sys

import pytest

from training_lab import image

KILLS = 20
UPDATES = 130
"""More than 20 lives of at most 8 updates come to, less those that are lost with each."""
NURSERY = """
import json, os, random, signal, sys, time, traceback
import torch
from stormsail.algorithms.trainer import Trainer
from training_lab import run_all, small

task, out, kills, updates = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
CHANGES = {
    "cartpole-lstm": {"optimizer__optimizer_class": "AdaptiveUPGD", "vgs__enabled": True},
    "market": {"ppo__microbatch_size": None},
}

def train(folder, pipe):
    torch.use_deterministic_algorithms(True)
    advance = Trainer.advance
    def told(self):
        advance(self)
        os.write(pipe, b".")
    Trainer.advance = told
    config = small(
        task, device="cuda", precision="bf16", ppo__total_steps=updates * 32, **CHANGES[task]
    )
    run_all(config, folder)

def life(folder, after, later):
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(told)
        try:
            train(folder, tell)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(tell)
    done = 0
    while os.read(told, 1):
        done += 1
        if done == after:
            time.sleep(later)
            os.kill(child, signal.SIGKILL)
    os.close(told)
    return done, os.waitpid(child, 0)[1]

chance = random.Random(5)
lives = [life(f"{out}/whole", None, 0.0)]
lives += [life(f"{out}/killed", chance.randint(1, 8), chance.uniform(0, 0.2)) for _ in range(kills)]
lives.append(life(f"{out}/killed", None, 0.0))
print(json.dumps(lives))
"""


@pytest.mark.gpu
@pytest.mark.campaign
@pytest.mark.parametrize("task", ["cartpole-lstm", "market"])
def test_a_captured_run_ends_with_the_same_bytes_however_often_it_is_killed(task, tmp_path):
    paths = os.pathsep.join(path for path in sys.path if path)
    variables = {**os.environ, "PYTHONPATH": paths, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    command = [sys.executable, "-c", NURSERY, task, str(tmp_path), str(KILLS), str(UPDATES)]
    ran = subprocess.run(command, env=variables, check=True, capture_output=True, text=True)
    whole, *killed, last = json.loads(ran.stdout.splitlines()[-1])
    assert whole == [UPDATES, 0]
    assert [status for _, status in killed] == [9] * KILLS
    assert last[1] == 0
    assert sum(done for done, _ in killed) + last[0] > UPDATES  # some updates were done again
    assert image(tmp_path / "killed") == image(tmp_path / "whole")
