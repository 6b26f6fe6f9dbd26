"""Kernels run on a CUDA device; without one, in Triton's interpreter, where Triton is installed."""

from importlib.util import find_spec

import pytest
import torch


@pytest.fixture(scope="session")
def device():
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    return "cuda" if torch.cuda.is_available() else "cpu"
