"""Precision of matrix products: float32, TF32, or bfloat16 with weights and sums in float32.

Losses, statistics, targets and the optimizer are float32 or more always; `network` returns its
outputs in float32 whatever it computed in.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

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


@contextmanager
def matrix_precision(precision: str, device: torch.device) -> Iterator[None]:
    """Let float32 matrix products outside of `network_precision` use TF32, unless `float32`."""
    if device.type != "cuda":
        yield
        return
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision != "float32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


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
