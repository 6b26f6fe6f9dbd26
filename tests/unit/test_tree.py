"""What holds for the tree as a whole."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


@pytest.mark.spec("S3-arch")
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_no_file_grows_beyond_six_hundred_lines(path):
    assert len(path.read_text().splitlines()) <= 600


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_every_module_says_what_it_is_for(path):
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_there_is_no_drawer_for_things_without_a_name():
    drawers = {"utils.py", "util.py", "helpers.py", "misc.py", "common.py"}
    assert not drawers & {path.name for path in SOURCES}


def test_ci_runs_the_commands_of_the_readme():
    assert "make test" in (ROOT / ".ci" / "run").read_text()
    assert "make test" in (ROOT / "README.md").read_text()
