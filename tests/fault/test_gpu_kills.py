"""Training on a GPU with captured graphs under kills: the run ends with the same bytes.

All lives descend from one process that has imported everything and never touched the GPU: to import
torch and to compile kernels takes longer than to train. Several runs are killed side by side, since
most of a life is spent on the host, and beside them one is left alone. Each tells of its updates
through a pipe, so that every kill comes while it trains. torch's strict determinism is on: some
sums of metrics are atomic otherwise, in any order.
"""

import json
import os
import subprocess
import sys

import pytest

from training_lab import image

RUNS = 4
KILLS = 5
"""Of each run."""
UPDATES = 45
"""More than 5 lives of at most 8 updates come to, less those that are lost with each."""
NURSERY = """
import json, os, random, signal, sys, time, traceback
import torch
import torch._dynamo, stormsail.market.simulator, stormsail.market.synthetic  # else by each life
from stormsail.algorithms.trainer import Trainer
from training_lab import run_all, small

task, device, out, *counts = sys.argv[1:]
runs, kills, updates = map(int, counts)
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
    precision = "bf16" if device == "cuda" else "float32"
    config = small(
        task, device=device, precision=precision, ppo__total_steps=updates * 32, **CHANGES[task]
    )
    run_all(config, folder)

def forked(work):
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return child

def life(folder, after, later):
    told, tell = os.pipe()
    begun = time.monotonic()
    def work():
        os.close(told)
        train(folder, tell)
    child = forked(work)
    os.close(tell)
    done, first = 0, 0.0
    while os.read(told, 1):
        done += 1
        first = first or time.monotonic() - begun
        if done == after:
            time.sleep(later)
            os.kill(child, signal.SIGKILL)
    os.close(told)
    status = os.waitpid(child, 0)[1]
    return done, status, round(first, 1), round(time.monotonic() - begun, 1)

def run(number):
    chance, place = random.Random(number), f"{out}/{number}"
    folder, cut = f"{place}/run", kills if number else 0
    lives = [life(folder, chance.randint(1, 8), chance.uniform(0, 0.2)) for _ in range(cut)]
    lives.append(life(folder, None, 0.0))
    with open(f"{place}.json", "w") as file:
        json.dump(lives, file)

children = [forked(lambda number=number: run(number)) for number in range(runs + 1)]
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
"""


def lives(task, device, out, runs=RUNS, kills=KILLS, updates=UPDATES):
    """Return updates and ending of every life of each run, the first of which is left alone."""
    paths = os.pathsep.join(path for path in sys.path if path)
    variables = {**os.environ, "PYTHONPATH": paths, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    words = [task, device, str(out), *map(str, (runs, kills, updates))]
    subprocess.run([sys.executable, "-c", NURSERY, *words], env=variables, check=True)
    every = [json.loads((out / f"{number}.json").read_text()) for number in range(runs + 1)]
    for told in every:  # shown where it fails, and with -s: updates, status, seconds to the first
        sys.stdout.write(f"{task}: {told}\n")
    return [[(done, status) for done, status, *_ in told] for told in every]


@pytest.mark.gpu
@pytest.mark.campaign
@pytest.mark.parametrize("task", ["cartpole-lstm", "market"])
def test_captured_runs_end_with_the_same_bytes_however_often_they_are_killed(task, tmp_path):
    whole, *killed = lives(task, "cuda", tmp_path)
    assert whole == [(UPDATES, 0)]
    for number, (*cut, last) in enumerate(killed, start=1):
        assert [status for _, status in cut] == [9] * KILLS
        assert last[1] == 0
        assert sum(done for done, _ in cut) + last[0] >= UPDATES
        assert image(tmp_path / str(number) / "run") == image(tmp_path / "0" / "run")
    assert sum(done for told in killed for done, _ in told) > RUNS * UPDATES  # some done again
