"""`docs/architecture.md` and its picture are what the import graph and the docstrings say."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "architecture.py"


def load_script():
    spec = importlib.util.spec_from_file_location("architecture", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


architecture = load_script()


def test_the_page_and_the_picture_are_what_the_code_says():
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_package_is_in_one_layer():
    named = [package for layer in architecture.layers() for package in layer]
    folders = {path.parent.name for path in architecture.SOURCE.glob("*/__init__.py")}
    assert (len(named), set(named)) == (len(folders), folders)


def test_a_row_imports_from_lower_rows_only():
    imports = {"a": {"b", "c"}, "b": {"c"}, "c": set(), "d": {"c"}, "e": set()}
    assert architecture.ranks(imports) == [["a"], ["b", "d"], ["c", "e"]]


def test_rooms_that_import_one_another_have_no_rows():
    with pytest.raises(SystemExit, match="these import one another: \\['a', 'b'\\]"):
        architecture.ranks({"a": {"b"}, "b": {"a"}, "c": set()})


def test_only_what_stands_between_the_markers_is_replaced():
    begin, end = architecture.BEGIN, architecture.END
    made = f"{begin}\nnew\n{end}"
    assert architecture.page(f"above\n{begin}\nold\n{end}\nbelow\n", made) == (
        f"above\n{made}\nbelow\n"
    )
