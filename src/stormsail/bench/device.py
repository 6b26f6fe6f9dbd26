"""Which device a benchmark runs on, and what it is called in a table."""

import os
import shutil

import torch

from stormsail.core.errors import ChoiceError


def check_device(device: str) -> None:
    """Refuse a device that is not here.

    Raises:
        ChoiceError: if it is neither cpu nor a CUDA device that torch sees.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device not in {"cpu", *(["cuda"] if count else []), *(f"cuda:{i}" for i in range(count))}:
        here = "cpu, cuda" if torch.cuda.is_available() else "cpu"
        raise ChoiceError(
            wrong="`--device` must be one that torch can use here",
            found=f"`{device}`, and here {here}",
            remedy="Run it on a machine with that device, or pass --device cpu.",
        )


def device_name(device: str) -> str:
    """Return the name of a device, with the threads of a CPU."""
    if device.partition(":")[0] == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads"


def compiler_found() -> bool:
    """Return whether there is a C++ compiler, without which nothing can be compiled."""
    names = [os.environ.get("CXX") or "g++", "clang++"]
    return any(shutil.which(name) for name in names)
