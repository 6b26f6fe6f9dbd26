"""Hooks of the site: pages and order from docs/README.md, the API reference, links out of docs.

The same Markdown is read in the repository and on the site, so nothing is written twice: the README
is the front page, docs/README.md gives the navigation, and a link that leaves `docs/` is led to
where the site shows that file. A link to a file that the site does not show is a warning, and
warnings are errors of the build.
"""

import ast
import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
from site_math import drawn

PACKAGE = ROOT / "src" / "stormsail"
LOG = logging.getLogger("mkdocs.plugins.site_hooks")

# Files of the repository that the site shows under another name than their place in docs/.
SHOWN = {
    "index.md": "README.md",
    "pages.md": "docs/README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}

# Packages whose `__all__` is public, with the words of the navigation.
SURFACES = (
    "stormsail",
    "stormsail.algorithms",
    "stormsail.evaluation",
    "stormsail.market",
    "stormsail.market.features",
    "stormsail.market.gymnasium",
    "stormsail.market.synthetic",
    "stormsail.modules",
    "stormsail.monitors",
    "stormsail.optim",
    "stormsail.tasks",
)
# Modules without `__all__`: every name without an underscore is public.
MODULES = ("stormsail.core.errors",)

LINK = re.compile(r"(\]\(|<img src=\")(?![a-z]+:|#|/)([^)\s\"#]+)")
ITEM = re.compile(r"\s*([-*]|\d+\.) ")
FOREIGN = re.compile(
    r"<(?:script|img|iframe)[^>]*\ssrc=\"?(?:https?:)?//[^\s\">]+|<link[^>]*\shref=\"?(?:https?:)?//[^\s\">]+"
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the navigation from docs/README.md, and anchors as the repository's view has them."""
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    if "MIKE_DOCS_VERSION" not in os.environ:
        del config.extra["version"]  # a site of one version has no list to choose from
    config.nav = navigation((ROOT / "docs" / "README.md").read_text(encoding="utf-8"))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside docs/, and those of the API reference."""
    files.remove(files.src_uris["README.md"])
    for place, source in SHOWN.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, place, content=text))
    for place, text in reference().items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to where the site shows their files, and set lists apart from paragraphs."""
    del config
    if page.file.src_uri.startswith("api/") or page.file.src_uri.endswith(".ipynb"):
        return markdown
    return "\n".join(rendered_alike(site_links(markdown, page.file.src_uri, files).split("\n")))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Draw the formulas of a page."""
    del page, config, files
    return drawn(html)


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse a site that would fetch something from elsewhere, or lacks a public name."""
    site = Path(config.site_dir)
    for page in sorted(site.rglob("*.html")):
        for foreign in FOREIGN.findall(page.read_text(encoding="utf-8")):
            LOG.warning("%s fetches from elsewhere: %s", page.relative_to(site), foreign)
    for package in SURFACES:
        html = (site / f"api/{package}.html").read_text(encoding="utf-8")
        missing = [name for name in exports(package) if f'id="{anchor(package, name)}"' not in html]
        if missing:
            raise PluginError(f"the reference of {package} lacks {', '.join(missing)}")


def navigation(index: str) -> list[dict[str, object]]:
    """Return the navigation: one tab a heading of the index, one page a link, and the reference."""
    tabs: list[dict[str, object]] = [{"Home": ["index.md", "pages.md"]}]
    for title, body in re.findall(r"^## (.+)\n((?:(?!## ).*\n?)*)", index, re.MULTILINE):
        links = re.findall(r"^- \[[^\]]+\]\(([^)#]+)\)", body, re.MULTILINE)
        tabs.append({title: [entry for link in links for entry in entries(link)]})
    tabs.append({"API": reference_navigation()})
    return tabs


def reference_navigation() -> list[object]:
    """Return the navigation of the reference: packages, and formulas in a section of their own."""
    places = list(reference())
    formulas = [place for place in places if place.startswith("api/stormsail.functional.")]
    others = [place for place in places if place not in formulas]
    return [*others, {"Formulas": formulas}]


def entries(link: str) -> Iterator[object]:
    """Yield the entries of one line of the index: a page, or a folder with all of its pages."""
    place = place_of(normpath(f"docs/{link}"))
    if place.endswith("/README.md"):
        folder = ROOT / "docs" / PurePosixPath(place).parent
        below = [str(PurePosixPath(place).parent / page.name) for page in folder.glob("0*.md")]
        yield {folder.name.capitalize(): [place, *sorted(below)]}
    else:
        yield place


def reference() -> dict[str, str]:
    """Return the text of every page of the API reference, by its place on the site."""
    pages = {f"api/{package}.md": surface_page(package) for package in SURFACES}
    formulas = formula_modules()
    pages |= {f"api/{module}.md": surface_page(module) for module in (*formulas, *MODULES)}
    pages["api/stormsail.functional.md"] = formulas_page(formulas)
    in_order = sorted(pages, key=lambda place: place.removesuffix(".md").split("."))
    return {place: pages[place] for place in in_order}


def surface_page(package: str) -> str:
    """Return the page of a package: its docstring, then every name of its `__all__`."""
    names = exports(package)
    members = [name for name in names if anchor(package, name) == f"{package}.{name}"]
    listed = "".join(f"\n        - {name}" for name in members) or " false"
    page = f"# {title(package)}\n\n::: {package}\n    options:\n      members:{listed}\n"
    for name in names:
        if name not in members:
            page += f"\n::: {anchor(package, name)}\n    options:\n      show_root_heading: true\n"
    return page


def title(package: str) -> str:
    """Return the heading of a page of the reference, short enough for a phone."""
    return package.removeprefix("stormsail.")


def anchor(package: str, name: str) -> str:
    """Return the path under which a public name is documented.

    A function that has the name of its module hides it when imported, but not when read as text.
    """
    module = ROOT / "src" / Path(*package.split(".")) / f"{name}.py"
    return f"{package}.{name}.{name}" if module.is_file() else f"{package}.{name}"


def formulas_page(modules: list[str]) -> str:
    """Return the page of `stormsail.functional`: its docstring and a table of its modules."""
    rows = [f"| [`{title(name)}`]({name}.md) | {first_line(name)} |" for name in modules]
    table = "\n".join(["| module | holds |", "|---|---|", *rows])
    head = "# functional\n\n::: stormsail.functional\n    options:\n      members: false\n"
    return f"{head}\n{table}\n"


def formula_modules() -> list[str]:
    """Return the public modules of `stormsail.functional`: `kernels` holds their faster twins.

    A package with `__all__` is one page; of a package without, each module is.
    """
    folder = PACKAGE / "functional"
    tops = [
        path for path in folder.iterdir() if path.name[0] not in "_." and path.stem != "kernels"
    ]
    found = [f"stormsail.functional.{path.stem}" for path in tops]
    rooms = [name for name in found if not exports(name)]
    below = [
        f"{room}.{path.stem}"
        for room in rooms
        for path in (ROOT / "src" / Path(*room.split("."))).glob("[a-z]*.py")
    ]
    return sorted({*found, *below} - {*rooms})


def source_of(module: str) -> ast.Module:
    """Return the syntax tree of a module of ours, without importing it."""
    path = ROOT / "src" / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def first_line(module: str) -> str:
    """Return the first line of a module's docstring."""
    return (ast.get_docstring(source_of(module)) or "").split("\n")[0]


def exports(module: str) -> list[str]:
    """Return the public names of a module: its `__all__`, else what has no underscore."""
    body = source_of(module).body
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names = [str(name) for name in ast.literal_eval(node.value)]
            folder = ROOT / "src" / Path(*module.split("."))
            # a package has a page of its own, and `__version__` needs none
            return [name for name in names if name[0] != "_" and not (folder / name).is_dir()]
    defined = [node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return [name for name in defined if not name.startswith("_")]


def place_of(source: str) -> str:
    """Return where the site shows a file of the repository; the file itself where it does not."""
    for place, shown in SHOWN.items():
        if source == shown:
            return place
    return source.removeprefix("docs/")


def site_links(markdown: str, place: str, files: Files) -> str:
    """Return the text of a page with links to files led to where the site shows them."""
    source = SHOWN.get(place, f"docs/{place}")

    def led(match: re.Match[str]) -> str:
        target = normpath(f"{PurePosixPath(source).parent}/{match[2]}")
        shown = place_of(target)
        if files.get_file_from_path(shown) is None:
            return match[0]
        return match[1] + relpath(shown, str(PurePosixPath(place).parent))

    return LINK.sub(led, markdown)


def rendered_alike(lines: list[str]) -> Iterator[str]:
    """Yield lines that Python-Markdown reads as the repository's view does.

    It wants an empty line before a list, and four spaces, not two, before the item of an inner one.
    """
    fenced, before = False, ""
    for line in lines:
        fenced ^= line.lstrip().startswith("```")
        if not fenced and ITEM.match(line):
            if before.strip() and not before.startswith(" ") and not ITEM.match(before):
                yield ""
            indent = len(line) - len(line.lstrip())
            line = " " * indent + line
        yield line
        before = line
