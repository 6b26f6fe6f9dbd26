"""What holds for the tree as a whole: the size of rooms and files, and what is said of them."""

import ast
import re
import runpy
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "stormsail"
SOURCES = sorted(PACKAGE.rglob("*.py"))

LINES = 600
FILES = 20
DRAWERS = {"util", "utils", "helper", "helpers", "misc", "common", "shared", "tools", "stuff"}


def name(path):
    return path.relative_to(ROOT).as_posix()


@pytest.mark.spec("S3-arch")
def test_no_file_grows_beyond_six_hundred_lines():
    lengths = {name(path): len(path.read_text().splitlines()) for path in SOURCES}
    long = [f"{file}: {length} lines" for file, length in lengths.items() if length > LINES]
    assert not long, "\n".join(long)


def test_no_folder_holds_more_than_twenty_files():
    counts = Counter(name(path.parent) for path in SOURCES)
    crowded = [f"{folder}: {count} files" for folder, count in counts.items() if count > FILES]
    assert not crowded, "\n".join(crowded)


def test_every_module_says_what_it_is_for():
    # An `__init__` is the module of its package, so every package says it as well.
    silent = [name(path) for path in SOURCES if not ast.get_docstring(ast.parse(path.read_text()))]
    assert not silent, "\n".join(silent)


def test_every_folder_of_source_is_a_package():
    folders = sorted({path.parent for path in SOURCES})
    assert [name(path) for path in folders if not (path / "__init__.py").exists()] == []


def test_there_is_no_drawer_for_things_without_a_name():
    drawers = [
        name(path)
        for path in SOURCES
        if DRAWERS & {path.stem.strip("_"), *path.relative_to(PACKAGE).parent.parts}
    ]
    assert drawers == []


# Targets that are no proof, take hours, or need an index of packages; `campaign` runs `packaging`.
NO_SUITE = {"install", "demo", "format", "campaign", "packaging", "peers", "clean"}


def test_ci_runs_every_suite():
    makefile = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    suites = set(phony.split()) - NO_SUITE
    assert {"check", "test", "browser", "mutants"} <= suites
    commands = (ROOT / ".ci" / "run").read_text().splitlines()
    assert {line.removeprefix("make ") for line in commands if line.startswith("make ")} == suites


def test_the_readme_names_the_command_that_tests():
    assert "make test" in (ROOT / "README.md").read_text()


def test_every_long_test_belongs_to_a_campaign():
    script = runpy.run_path(str(ROOT / "scripts" / "campaign.py"))
    words = {word.partition("::")[0] for item in script["CAMPAIGNS"] for word in item.command}
    places = [ROOT / word for word in words if word.startswith("tests/")]
    assert [name(path) for path in places if not path.exists()] == []
    marked = [
        path for path in (ROOT / "tests").rglob("test_*.py") if "mark.campaign" in path.read_text()
    ]
    assert len(marked) > 10
    lost = [
        name(path)
        for path in marked
        if not any(path.is_relative_to(place) for place in places) and path != Path(__file__)
    ]
    assert not lost, "\n".join(lost)
