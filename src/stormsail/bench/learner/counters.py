"""What one update costs a machine besides time: calls, kernels, memory."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

MIB = 2.0**20

_LAUNCHES = frozenset(
    {
        "cudaLaunchKernel",
        "cudaLaunchKernelExC",
        "cuLaunchKernel",
        "cuLaunchKernelEx",
        "cudaGraphLaunch",
        "cudaMemcpyAsync",
        "cudaMemsetAsync",
    }
)
_REFERENCES, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
_FORGET_PEAK = "5"


@dataclass(frozen=True)
class Calls:
    """How often the host asks for something, in one update."""

    launches: int
    """Operators of torch on a CPU, views included; launches and copies on a GPU, where a graph is
    one."""
    kernels: int | None = None
    """That ran on a GPU, those of graphs included."""


class _Counter(TorchDispatchMode):
    """Counts the operators that reach a device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - torch's own types
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Count an operator and run it."""
        del types
        self.count += 1
        return func(*args, **(kwargs or {}))


def calls(update: Callable[[], object], device: str) -> Calls:
    """Run one update and count what it calls."""
    if torch.device(device).type == "cpu":
        with _Counter() as counter:
            update()
        return Calls(counter.count)
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        update()
        torch.cuda.synchronize(device)
    events = list(seen.events() or ())
    on_device = [event for event in events if event.device_type.name == "CUDA"]
    return Calls(sum(event.name in _LAUNCHES for event in events), len(on_device))


def forget_peak(device: str) -> None:
    """Begin a new peak of memory, where the system lets a process do so."""
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        _REFERENCES.write_text(_FORGET_PEAK)
    except OSError:  # no Linux, or not allowed: the peak is that of the whole process
        return


def peak_mib(device: str) -> float | None:
    """Return the largest memory since `forget_peak`, in MiB; None where it is unknown.

    On a GPU what torch has given to tensors; on a CPU what the process has resident, with Python,
    torch and whatever it did before.
    """
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device) / MIB
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    peaks = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(peaks[0]) / 1024 if peaks else None
