"""Precision of matrix products: what a device runs, what it changes, what it leaves."""

import threading

import pytest
import torch

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.core import precision
from stormsail.core.errors import ConfigError

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("device", "precise", "compiled"), [("cpu", "float32", False), ("cuda", "bf16", True)]
)
def test_precision_and_step_are_derived_from_the_kind_of_device(device, precise, compiled):
    config = derive(TrainConfig(device=device))
    assert (config.precision, config.optimizer.compiled) == (precise, compiled)
    scaled = derive(TrainConfig(device=device).replace(**{"vgs.enabled": True}))
    assert scaled.optimizer.compiled == compiled  # of a scaler that follows its median, too
    given = derive(TrainConfig(device=device, precision="tf32"))
    assert given.precision == "tf32"


@pytest.mark.refusal
@pytest.mark.parametrize(("name", "runs", "ok"), [
    ("float32", False, True), ("tf32", True, False), ("bf16", True, True), ("bf16", False, False),
])  # fmt: skip
def test_a_cpu_runs_what_another_process_has_tried(monkeypatch, name, runs, ok):
    monkeypatch.setattr(precision, "_runs_bf16", lambda: runs)
    if ok:
        precision.check_precision(name, CPU)
        return
    with pytest.raises(ConfigError) as caught:
        precision.check_precision(name, CPU)
    assert str(caught.value) == (
        f"`precision` must be one that the device runs; found `{name}` on this CPU. "
        "Set `precision` to `float32`. [config-value]"
    )


def test_a_process_that_dies_is_no_yes(monkeypatch):
    monkeypatch.setattr(precision, "_PROBE", "import os, signal; os.kill(os.getpid(), 4)")
    assert not precision._runs_bf16()
    monkeypatch.setattr(precision, "_PROBE", "pass")
    assert precision._runs_bf16()


@pytest.mark.parametrize("name", ["float32", "tf32", "bf16"])
def test_a_network_runs_in_bfloat16_only_where_it_is_asked_for(name):
    with precision.network_precision(name, CPU):
        assert torch.is_autocast_enabled("cpu") == (name == "bf16")
    assert not torch.is_autocast_enabled("cpu")


GPU = torch.device("cuda")  # named, not used: the switch can be turned without one


def allowed():
    return torch.backends.cuda.matmul.allow_tf32


def test_members_side_by_side_leave_each_other_the_precision_that_they_train_in():
    """The first to end an update took TF32 from the other, which left it on for good."""
    inside, leave, seen = threading.Event(), threading.Event(), []

    def member():
        with precision.matrix_precision("bf16", GPU):
            inside.set()
            assert leave.wait(10)

    other = threading.Thread(target=member)
    other.start()
    assert inside.wait(10)
    with precision.matrix_precision("bf16", GPU):
        leave.set()
        other.join(10)
        seen.append(allowed())
    assert (seen, allowed()) == ([True], False)


def test_an_evaluation_waits_for_updates_and_later_updates_for_it():
    order, evaluating = [], threading.Event()

    def evaluate():
        with precision.matrix_precision("float32", GPU):
            order.append(("evaluation", allowed()))
            evaluating.set()

    def update():
        with precision.matrix_precision("tf32", GPU):
            order.append(("update", allowed()))

    with precision.matrix_precision("tf32", GPU):
        threads = [threading.Thread(target=evaluate)]
        threads[0].start()
        assert not evaluating.wait(0.1)
        threads.append(threading.Thread(target=update))
        threads[1].start()
        threads[1].join(0.1)
        assert order == []
        assert allowed()
    for thread in threads:
        thread.join(10)
    assert order == [("evaluation", False), ("update", True)]
    assert not allowed()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["float32", "tf32", "bf16"])
def test_products_outside_the_network_use_tf32_unless_float32(name):
    before = torch.backends.cuda.matmul.allow_tf32
    with precision.matrix_precision(name, torch.device("cuda")):
        assert torch.backends.cuda.matmul.allow_tf32 == (name != "float32")
    assert torch.backends.cuda.matmul.allow_tf32 == before
