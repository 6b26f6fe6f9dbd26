"""Public names of `stormsail.evaluation`: complete, callable, and imported on first use."""

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

from stormsail import evaluation

HOMES = {name: module for module, names in evaluation._EXPORTS.items() for name in names}
HEAVY = ("torch", "scipy", "arch", "plotly", "pandas", "pyarrow", "stormsail.evaluation.engine")


def loaded_by(statement):
    """Return the modules that a fresh process has loaded after a statement."""
    script = f"import sys; {statement}; print(*sorted(sys.modules))"
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()


def test_every_public_name_is_that_of_its_module():
    assert sorted(HOMES) == dir(evaluation) == evaluation.__all__
    for name, module in HOMES.items():
        home = importlib.import_module(f"stormsail.evaluation.{module}")
        assert getattr(evaluation, name) is getattr(home, name), name
        assert callable(getattr(evaluation, name)), name


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(evaluation.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {name.name: line.module for line in block.body for name in line.names}
    assert seen == {name: f"stormsail.evaluation.{module}" for name, module in HOMES.items()}


def test_no_room_hides_a_public_name():
    rooms = {module.name for module in pkgutil.iter_modules(evaluation.__path__)}
    assert not rooms & set(evaluation.__all__)


def test_the_package_itself_loads_nothing_heavy():
    loaded = loaded_by("import stormsail.evaluation")
    assert not [name for name in HEAVY if name in loaded]


def test_no_public_name_needs_the_slow_imports_before_it_is_called():
    loaded = loaded_by("from stormsail.evaluation import *")
    assert "stormsail.evaluation.walk_forward.run" in loaded
    assert not [name for name in ("scipy.stats", "arch") if name in loaded]


def test_an_unknown_name_is_refused_as_python_does():
    with pytest.raises(AttributeError, match="has no attribute 'verdict_of'"):
        evaluation.verdict_of  # noqa: B018
