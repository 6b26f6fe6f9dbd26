"""Settings that hold for every test."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("campaign", deadline=None, max_examples=5_000)
settings.load_profile(os.environ.get("STORMSAIL_HYPOTHESIS", "ci"))

if not torch.cuda.is_available():
    # Triton, if there is one, then runs kernels on the CPU; it reads this when it is imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Several workers share the cores; more than one thread each makes them wait for one another.
torch.set_num_threads(1)

if os.environ.get("STORMSAIL_SHAPES"):
    # Executes the annotated shapes. Never outside tests: the hook defeats torch.compile.
    from jaxtyping import install_import_hook

    # Kernels have no annotated shapes, and Triton reads their source: they stay as written.
    source = Path(__file__).parents[1] / "src"
    formulas = [
        ".".join(path.relative_to(source).with_suffix("").parts)
        for path in source.glob("stormsail/functional/**/*.py")
        if path.stem != "__init__" and not path.stem.endswith("_triton")
    ]
    install_import_hook(formulas, "beartype.beartype")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without garbage collection: nothing dies meanwhile, and looking takes half the time.

    What is there afterwards (modules, items) lives until the end and is not looked at again.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip GPU tests where there is no GPU."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
