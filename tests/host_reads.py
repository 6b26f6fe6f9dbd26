"""Where the host would wait for a device, counted on a machine without one."""

import sys
from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from stormsail.algorithms import ppo
from stormsail.algorithms.update import assessment, device_epochs

ASKS = {"tolist", "cpu", "numpy", "item", "__bool__", "__float__", "__int__", "__index__"}
"""Methods of a tensor that read it."""

OF_THE_CPU = (
    "modules/memory.py",  # products over time where no reset falls inside
    "optim/pipeline.py",
    "optim/tensor_lists.py",
    "tasks/base.py",  # checks of actions
)
"""Where code that runs on a CPU alone reads."""

COUNTS = {"_local_scalar_dense", "nonzero", "masked_select", "unique_dim", "_unique2", "equal"}
"""Operations whose results, or their shapes, depend on what is in a tensor."""


class _Operations(TorchDispatchMode):
    def __init__(self, found):
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        masks = name in {"index", "index_put", "index_put_"} and any(
            part is not None and part.dtype == torch.bool for part in args[1]
        )
        is_stream = name == "equal" and args[0].dtype == torch.uint8  # its state is on the host
        if (name in COUNTS and not is_stream) or masks:
            self.found(name)
        return func(*args, **(kwargs or {}))


class _Methods(TorchFunctionMode):
    def __init__(self, found):
        super().__init__()
        self.found = found

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name in ASKS:
            self.found(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def host_reads(monkeypatch):
    """Yield the places that read a tensor without leave, and the leaves that were taken.

    Reads after the last leave are left out: what it brought is on the host.
    """
    places, leaves, depth = [], [], [0]

    @contextmanager
    def waiting_allowed():
        leaves.append(len(places))
        depth[0] += 1
        try:
            yield
        finally:
            depth[0] -= 1

    def found(name):
        place = _place()
        if depth[0] == 0 and not place.startswith(OF_THE_CPU):
            places.append((name, place))

    with monkeypatch.context() as patch:
        for module in (assessment, device_epochs, ppo):
            patch.setattr(module, "waiting_allowed", waiting_allowed)
        with _Methods(found), _Operations(found):
            yield places, leaves
        del places[leaves[-1] if leaves else len(places) :]


def _place():
    """Return the innermost line of the package that is being run."""
    frame = sys._getframe(1)
    while frame is not None and "/stormsail/" not in frame.f_code.co_filename:
        frame = frame.f_back
    if frame is None:
        return ""
    return f"{frame.f_code.co_filename.split('/stormsail/')[-1]}:{frame.f_lineno}"
