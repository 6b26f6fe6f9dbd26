"""Pages: the index is complete, named files exist, and examples import from package surfaces."""

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
GUIDES = [ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("life_of_*.md"))]
IMPORTED_FOR_ITS_EFFECT = {"stormsail.core.gymnasium_plugin"}


def named_paths(text):
    """Return the files and folders that a page names in backticks, without placeholders."""
    return [
        name
        for name in re.findall(r"`([\w./*-]+)`", text)
        if "/" in name and name.endswith((".py", "/")) and not name.startswith("/")
    ]


def exists(name):
    return any((base / name).exists() for base in (ROOT, ROOT / "src" / "stormsail"))


def imports(text):
    """Return (module, name) of everything of stormsail that the Python examples import."""
    result = []
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom):
                result += [(node.module, alias.name) for alias in node.names]
            elif isinstance(node, ast.Import):
                result += [(alias.name, None) for alias in node.names]
    return [(module, name) for module, name in result if module.split(".")[0] == "stormsail"]


EXAMPLES = [
    (page.name, module, name)
    for page in [ROOT / "README.md", *PAGES]
    for module, name in imports(page.read_text())
    if module not in IMPORTED_FOR_ITS_EFFECT
]


def test_the_index_names_every_page_once():
    linked = re.findall(r"\]\(([\w/.]+\.md)\)", (DOCS / "README.md").read_text())
    inside = [name for name in linked if not name.startswith("../") and "/" not in name]
    assert sorted(inside) == [page.name for page in PAGES if page.name != "README.md"]


def test_the_list_of_decisions_names_every_decision_once():
    linked = re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", (DOCS / "decisions" / "README.md").read_text())
    assert linked == sorted(page.name for page in (DOCS / "decisions").glob("0*.md"))


def test_file_names_have_one_spelling():
    names = [path.name for path in [*PAGES, *DOCS.glob("evidence/*"), *DOCS.glob("pictures/*")]]
    assert [name for name in names if not re.fullmatch(r"README\.md|[a-z0-9_]+\.\w+", name)] == []


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_every_file_that_a_guide_names_exists(page):
    names = named_paths(page.read_text())
    assert len(names) >= 5
    assert [name for name in names if not exists(name)] == []


@pytest.mark.parametrize(
    ("page", "module", "name"),
    EXAMPLES,
    ids=[f"{page}:{module}.{name}" for page, module, name in EXAMPLES],
)
def test_an_example_imports_from_the_surface_of_a_package(page, module, name):
    found = importlib.import_module(module)
    assert Path(found.__file__).name == "__init__.py", f"{page}: {module} is an inner module"
    if name is not None and not hasattr(found, name):
        importlib.import_module(f"{module}.{name}")  # a public module, such as functional.risk
