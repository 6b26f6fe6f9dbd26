"""The site: its navigation, its links, its reference and its formulas, without building it.

`make site` builds it, with every warning an error, and executes the notebooks.
"""

import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def hooks():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        return importlib.import_module("site_hooks")
    finally:
        sys.path.remove(str(ROOT / "scripts"))


@pytest.fixture(scope="module")
def formulas(hooks):
    return sys.modules["site_math"]


class Shown:
    """The files of a site, by their places."""

    def __init__(self, *places):
        self.places = places

    def get_file_from_path(self, place):
        return place if place in self.places else None


def places(entries):
    """Return all pages of a navigation, in order."""
    for entry in entries:
        if isinstance(entry, dict):
            for below in entry.values():
                yield from places(below)
        else:
            yield entry


def test_the_navigation_shows_every_page_once(hooks):
    shown = list(places(hooks.navigation((ROOT / "docs" / "README.md").read_text())))
    assert len(shown) == len(set(shown))
    docs = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    notebooks = {str(page.relative_to(ROOT / "docs")) for page in NOTEBOOKS}
    assert {*hooks.SHOWN, *hooks.reference(), *docs, *notebooks} - {"README.md"} == set(shown)


@pytest.mark.parametrize(
    ("place", "written", "read"),
    [
        ("tutorial.md", "[a](../README.md#data)", "[a](index.md#data)"),
        ("pages.md", "[a](../CONTRIBUTING.md) [b](risk.md)", "[a](contributing.md) [b](risk.md)"),
        ("index.md", "[a](docs/risk.md)", "[a](risk.md)"),
        ("index.md", "![b](docs/pictures/c.png)", "![b](pictures/c.png)"),
        ("index.md", '<img src="docs/pictures/c.png">', '<img src="pictures/c.png">'),
        ("decisions/0001-layers.md", "[a](../risk.md)", "[a](../risk.md)"),
        ("decisions/0001-layers.md", "[b](../../README.md)", "[b](../index.md)"),
        ("risk.md", "[a](https://b.c/d) [e](#f)", "[a](https://b.c/d) [e](#f)"),
        ("risk.md", "[g](../src/h.py)", "[g](../src/h.py)"),  # the build warns of it
    ],
)
def test_links_lead_to_where_the_site_shows_a_file(hooks, place, written, read):
    shown = Shown("index.md", "contributing.md", "risk.md", "pictures/c.png")
    assert hooks.site_links(written, place, shown) == read


def test_lists_are_set_apart_and_code_is_left_alone(hooks):
    lines = ["text", "- one", "  more", "  - inner", "```", "text", "- code", "```", "1. first"]
    assert list(hooks.rendered_alike(lines)) == [
        "text", "", "- one", "  more", "    - inner",
        "```", "text", "- code", "```", "", "1. first",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "package",
    ["algorithms", "evaluation", "market", "modules", "optim", "tasks", "market.synthetic"],
)
def test_the_reference_names_everything_public(hooks, package):
    surface = importlib.import_module(f"stormsail.{package}").__all__
    page = hooks.reference()[f"api/stormsail.{package}.md"]
    listed = [
        line.split()[-1].rpartition(".")[2]
        for line in page.split("\n")
        if "- " in line or ":::" in line
    ]
    assert {*surface} <= {*listed}


def test_the_reference_has_a_page_for_every_public_module_of_formulas(hooks):
    pages = hooks.reference()
    for name in ("returns", "policy", "advantage", "quantile", "categorical", "value_clip", "risk"):
        module = importlib.import_module(f"stormsail.functional.{name}")
        assert all(
            hasattr(module, found) for found in hooks.exports(f"stormsail.functional.{name}")
        )
        assert f"api/stormsail.functional.{name}.md" in pages
        assert f"({f'stormsail.functional.{name}.md'})" in pages["api/stormsail.functional.md"]
    assert "      - gae\n" in pages["api/stormsail.functional.returns.md"]
    assert not any("kernels" in place or "._" in place for place in pages)


def test_a_formula_of_a_docstring_becomes_mathml(formulas):
    docstring = (
        "First.\n\n.. math::\n    a &= b, \\qquad c = d \\\\\n    e &= f\n\nLast :math:`x^2`."
    )
    written = formulas.to_markdown(docstring)
    assert written == (
        "First.\n\n\n\\[\na &= b, \\qquad c = d \\\\\ne &= f\n\\]\n\n\nLast \\(x^2\\)."
    )  # fmt: skip
    block = '<div class="arithmatex">\\[ a &amp;= b \\\\ c &amp;&lt; d \\]</div>'
    inline = '<span class="arithmatex">\\(x^2\\)</span>'
    drawn = formulas.drawn(block + inline)
    assert drawn.count("<mtr>") == 2
    assert '<math xmlns="http://www.w3.org/1998/Math/MathML" display="inline">' in drawn
    assert "<msup>" in drawn
    assert "arithmatex" not in drawn


def test_no_formula_of_the_package_is_left_as_it_was(formulas):
    for path in sorted((ROOT / "src").rglob("*.py")):
        text = path.read_text()
        if ".. math::" in text:
            assert ".. math::" not in formulas.to_markdown(text), path


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path):
    """What the site shows was computed by this version; a kept output would be of another one."""
    cells = json.loads(path.read_text())["cells"]
    assert cells[0]["cell_type"] == "markdown"
    assert "".join(cells[0]["source"]).startswith("# ")
    for cell in cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
    assert len(NOTEBOOKS) == 3
