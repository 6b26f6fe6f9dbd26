"""Precision of matrix products: float32, TF32, or bfloat16 with weights and sums in float32.

Losses, statistics, targets and the optimizer are float32 or more always; `network` returns its
outputs in float32 whatever it computed in.
"""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from stormsail.core import turns
from stormsail.core.errors import ConfigError

_PROBE = (
    "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); "
    "assert float((a @ a).float().mean()) == 64.0"
)
_PATIENCE_S = 120


@contextmanager
def network_precision(precision: str, device: torch.device) -> Iterator[None]:
    """Run a network's matrix products in a precision."""
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        yield


class _Tf32:
    """Whether float32 products on a GPU use TF32: a switch that all threads of a process share.

    Those that want it as it stands go on side by side; one that wants it otherwise waits until they
    are done, and whoever comes later waits behind it.
    """

    def __init__(self) -> None:
        self._first_come, self._left = threading.Lock(), threading.Condition()
        self._users = 0
        self._before = False

    def take(self, *, allowed: bool) -> None:
        if self._joins(allowed=allowed):
            return
        # those that are waited for may need a turn to get on
        with turns.given_up(), self._first_come, self._left:
            matrices = torch.backends.cuda.matmul
            self._left.wait_for(lambda: not self._users or matrices.allow_tf32 == allowed)
            self._enter(allowed=allowed)

    def _joins(self, *, allowed: bool) -> bool:
        """Go on at once, if nobody waits and the switch may stand as it is wanted."""
        if not self._first_come.acquire(blocking=False):
            return False
        try:
            with self._left:
                if self._users and torch.backends.cuda.matmul.allow_tf32 != allowed:
                    return False
                self._enter(allowed=allowed)
                return True
        finally:
            self._first_come.release()

    def _enter(self, *, allowed: bool) -> None:
        matrices = torch.backends.cuda.matmul
        if not self._users:
            self._before, matrices.allow_tf32 = matrices.allow_tf32, allowed
        self._users += 1

    def leave(self) -> None:
        with self._left:
            self._users -= 1
            if not self._users:
                torch.backends.cuda.matmul.allow_tf32 = self._before
                self._left.notify_all()


_TF32 = _Tf32()


@contextmanager
def matrix_precision(precision: str, device: torch.device) -> Iterator[None]:
    """Let float32 matrix products outside of `network_precision` use TF32, unless `float32`.

    Not within itself. Threads of other precisions wait for each other.
    """
    if device.type != "cuda":
        yield
        return
    _TF32.take(allowed=precision != "float32")
    try:
        yield
    finally:
        _TF32.leave()


def check_precision(precision: str, device: torch.device) -> None:
    """Refuse a precision that the device does not have.

    A CPU may say that it has bfloat16 products and then die of one, so another process tries.

    Raises:
        ConfigError: if it does not.
    """
    if precision == "float32" or (device.type == "cuda" and precision == "tf32"):
        return
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return
        place = torch.cuda.get_device_name(device)
    elif precision == "bf16" and _runs_bf16():
        return
    else:
        place = "this CPU"
    raise ConfigError(
        "config-value",
        wrong="`precision` must be one that the device runs",
        found=f"`{precision}` on {place}",
        remedy="Set `precision` to `float32`.",
    )


def _runs_bf16() -> bool:
    command = [sys.executable, "-c", _PROBE]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PATIENCE_S, check=False)  # noqa: S603 - our own interpreter
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
