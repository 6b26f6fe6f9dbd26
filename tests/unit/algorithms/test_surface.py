"""Public names of `stormsail.algorithms`: complete, callable, and imported on first use."""

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

from stormsail import algorithms

HEAVY = ("torch", "scipy", "gymnasium", "pyarrow", "pydantic", "stormsail.algorithms.trainer")
SLOW = (
    "torch._inductor", "torch._dynamo", "gymnasium", "scipy", "plotly", "tensorboard", "pandas",
)  # fmt: skip


def loaded_by(statement):
    """Return the modules that a fresh process has loaded after a statement."""
    script = f"import sys; {statement}; print(*sorted(sys.modules))"
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()


def homes():
    """Return the module of every public name."""
    return {
        name: f"stormsail.algorithms.{module}"
        for module, names in algorithms._EXPORTS.items()
        for name in names
    }


def test_every_public_name_is_that_of_its_module():
    assert sorted(homes()) == algorithms.__all__ == dir(algorithms)
    for name, module in homes().items():
        assert getattr(algorithms, name) is getattr(importlib.import_module(module), name), name
        assert callable(getattr(algorithms, name)), name


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(algorithms.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    assert {name.name: line.module for line in block.body for name in line.names} == homes()


def test_no_module_hides_a_public_name():
    modules = {module.name for module in pkgutil.iter_modules(algorithms.__path__)}
    assert not modules & set(algorithms.__all__)


def test_the_package_itself_loads_nothing_heavy():
    loaded = loaded_by("import stormsail.algorithms")
    assert not [name for name in HEAVY if name in loaded]


def test_no_public_name_needs_the_slow_imports_before_it_is_called():
    loaded = loaded_by("from stormsail.algorithms import *")
    assert "stormsail.algorithms.fit" in loaded
    assert not [name for name in SLOW if name in loaded]


def test_an_unknown_name_is_refused_as_python_does():
    with pytest.raises(AttributeError, match="has no attribute 'resume'"):
        algorithms.resume  # noqa: B018
