"""Several processes and one GPU: two that share it compute what one does, and NCCL in a graph."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import stormsail
from stormsail.algorithms.run import checkpoint
from stormsail.algorithms.run.learners import new_learner
from stormsail.algorithms.run.tasks import binding, make_task
from stormsail.algorithms.update.nonfinite import tensors_of
from stormsail.core.group import ALONE, Group
from training_lab import small

UPDATES = 3
TASKS = {
    "cartpole-lstm": {"optimizer__optimizer_class": "AdaptiveUPGD", "optimizer__sigma": 0.01},
    "market": {"ppo__microbatch_size": None},
}
PROCESS = """
import sys
import torch, torch.distributed as dist
from stormsail.core.group import Group
from integration.test_gpu_processes import trained

task, device, place = sys.argv[1:]
dist.init_process_group("gloo")
group = Group(dist.get_rank(), dist.get_world_size())
torch.save(trained(task, device, group), f"{place}/{group.rank}.pt")
dist.destroy_process_group()
"""


def trained(task, device, group=ALONE, graphs="off"):
    """Return every tensor of a learner after some updates, and what it has drawn."""
    config = small(task, device=device, precision="float32", cuda_graphs=graphs, **TASKS[task])
    whole = make_task(config, batch=config.ppo.n_envs)
    ppo = new_learner(config, whole, binding(config), group=group)
    for _ in range(UPDATES):
        ppo.update()
    found = tensors_of(checkpoint.learner_state(ppo), "state")
    return {name: value.cpu() for name, value in found}


def in_two_processes(task, device, place):
    """Return what each of two processes has trained; they exchange over gloo."""
    script = place / "process.py"
    script.write_text(PROCESS)
    own = str(Path(__file__).parents[1])
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(Path(stormsail.__file__).parents[1]), own)),
        "OMP_NUM_THREADS": "1",
    }
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*start, str(script), task, device, str(place)]
    done = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    return [torch.load(place / f"{rank}.pt") for rank in (0, 1)]


@pytest.mark.gpu
@pytest.mark.parametrize("task", TASKS)
def test_two_processes_on_one_gpu_are_one_with_all_environments(task, tmp_path):
    alone = trained(task, "cuda")
    first, second = in_two_processes(task, "cuda", tmp_path)
    assert alone.keys() == first.keys() == second.keys()
    for name, value in alone.items():
        if value.is_floating_point():
            close = torch.allclose(first[name], value, rtol=1e-3, atol=2e-5, equal_nan=True)
            assert close, name
        else:
            assert torch.equal(first[name], value), name
        if name.startswith("state/agent"):
            assert torch.equal(first[name], second[name]), name


class Doubled(Group):
    """Half of a pair whose other half does the same: one process, and the exchanges of two."""

    def __init__(self):
        super().__init__(0, 2)

    def gather(self, values, axis=0):
        if values.numel() == 0:
            return torch.cat([values] * 2, axis)
        sent = values.contiguous()
        raw = sent.view(torch.uint8) if sent.dtype == torch.bool else sent
        part = torch.empty_like(raw)
        dist.all_gather([part], raw)
        return torch.cat([part.view(values.dtype)] * 2, axis)

    def add(self, tensors):
        for tensor in tensors:
            dist.all_reduce(tensor)
        torch._foreach_mul_(list(tensors), 2.0)


@pytest.fixture
def nccl(tmp_path):
    place = f"file://{tmp_path / 'meeting'}"
    dist.init_process_group("cpu:gloo,cuda:nccl", init_method=place, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.gpu
@pytest.mark.usefixtures("nccl")
@pytest.mark.parametrize("task", TASKS)
def test_a_minibatch_with_an_exchange_over_nccl_is_captured(task):
    """As on several GPUs: gradients and sums are added within the graph of a minibatch."""
    eager = trained(task, "cuda", Doubled())
    captured = trained(task, "cuda", Doubled(), graphs="auto")
    weights = [name for name in eager if name.startswith("state/agent")]
    assert weights
    for name in weights:
        assert torch.allclose(captured[name], eager[name], rtol=1e-3, atol=2e-5), name
