"""Write the rooms of docs/architecture.md and its picture from import graph and docstrings.

Layers come from the import contract in pyproject.toml, the order inside a package from the imports
themselves, each description from the docstring of the package or module. `--check` fails where the
page or the picture differs.
"""

import ast
import sys
import tomllib
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "stormsail"
PAGE = ROOT / "docs" / "architecture.md"
PICTURE = ROOT / "docs" / "pictures" / "architecture.svg"
BEGIN, END = "<!-- made by scripts/architecture.py: begin -->", "<!-- end -->"

WIDTH, GUTTER, GAP, PAD = 980.0, 46.0, 10.0, 10.0
CHIP_HEIGHT, TITLE_HEIGHT, LETTER = 22.0, 24.0, 7.3
"""Pixels; LETTER is the width of a character of the names."""

Imports = Mapping[str, set[str]]
"""What each child of a package imports of its siblings."""


def layers() -> list[list[str]]:
    """Return the packages of each layer, highest first, as the import contract lists them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = [
        contract
        for contract in settings["tool"]["importlinter"]["contracts"]
        if contract.get("containers") == ["stormsail"]
    ]
    return [line.split(" | ") for line in contract["layers"]]


def sibling_imports(graph: grimp.ImportGraph, package: str) -> dict[str, set[str]]:
    """Return for each child of a package the siblings that it imports, directly or from inside."""
    top = f"stormsail.{package}"
    result: dict[str, set[str]] = {child.split(".")[2]: set() for child in graph.find_children(top)}
    for module in graph.find_descendants(top):
        child = module.split(".")[2]
        for imported in graph.find_modules_directly_imported_by(module):
            if imported.startswith(f"{top}.") and imported.split(".")[2] != child:
                result[child].add(imported.split(".")[2])
    return result


def ranks(imports: Imports) -> list[list[str]]:
    """Return the children in rows, highest first: a row imports only from rows below it."""
    rank: dict[str, int] = {}
    while len(rank) < len(imports):
        ready = [
            child for child, used in imports.items() if child not in rank and used <= rank.keys()
        ]
        if not ready:
            raise SystemExit(f"these import one another: {sorted(imports.keys() - rank.keys())}")
        rank |= {
            child: 1 + max((rank[used] for used in imports[child]), default=-1) for child in ready
        }
    rows = range(max(rank.values(), default=-1), -1, -1)
    return [sorted(child for child in rank if rank[child] == row) for row in rows]


def label(package: str, child: str) -> str:
    """Return a name as the page shows it: a room ends with a slash, a module with .py."""
    return f"{child}/" if (SOURCE / package / child).is_dir() else f"{child}.py"


def described(*parts: str) -> str:
    """Return the first line of the docstring of a package or module."""
    folder = SOURCE.joinpath(*parts)
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return docstring.partition("\n")[0].replace("|", "\\|")


def table(package: str, imports: Imports) -> list[str]:
    """Return the lines of one package."""
    lines = [f"### {package}", "", described(package), ""]
    if not imports:
        return lines
    lines += ["| room or file | what it is | imports from its siblings |", "|---|---|---|"]
    for row in ranks(imports):
        for child in row:
            used = ", ".join(label(package, name) for name in sorted(imports[child])) or "none"
            lines.append(f"| `{label(package, child)}` | {described(package, child)} | {used} |")
    return [*lines, ""]


def wrapped(names: Iterable[str], width: float) -> list[list[tuple[str, float]]]:
    """Return names with their widths, broken into lines that fit."""
    lines: list[list[tuple[str, float]]] = [[]]
    left = width
    for name in names:
        wide = len(name) * LETTER + 14
        if lines[-1] and wide > left:
            lines.append([])
            left = width
        lines[-1].append((name, wide))
        left -= wide + 6
    return lines


def box(package: str, imports: Imports, width: float) -> list[list[list[tuple[str, float]]]]:
    """Return the rows of a package, each as lines of names that fit into its box."""
    return [
        wrapped([label(package, child) for child in row], width - 2 * PAD) for row in ranks(imports)
    ]


def box_height(rows: list[list[list[tuple[str, float]]]]) -> float:
    """Return the height of a package's box."""
    return TITLE_HEIGHT + PAD + sum(len(row) * (CHIP_HEIGHT + 5) + 5 for row in rows)


def caption(words: str, x: float, y: float, end: float) -> list[str]:
    """Return a description as text, or nothing where it does not fit."""
    words = words.replace("`", "")
    if x + 6.2 * len(words) > end:
        return []
    return [f'<text x="{x:.1f}" y="{y:.1f}" font-size="12" fill="#555555">{escape(words)}</text>']


def drawn_box(
    package: str,
    rows: list[list[list[tuple[str, float]]]],
    x: float,
    y: float,
    width: float,
    height: float,
) -> list[str]:
    """Return the shapes of one package."""
    shapes = [
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="6" '
        'fill="#f4f6f8" stroke="#8a97a5"/>',
        f'<text x="{x + PAD:.1f}" y="{y + 18:.1f}" font-size="14" font-weight="bold">'
        f"{escape(package)}</text>",
    ]
    shapes += caption(described(package), x + PAD + 9.5 * len(package) + 12, y + 18, x + width)
    top = y + TITLE_HEIGHT + 4
    for number, row in enumerate(rows):
        if number:
            shapes.append(
                f'<line x1="{x + PAD:.1f}" y1="{top - 3:.1f}" x2="{x + width - PAD:.1f}" '
                f'y2="{top - 3:.1f}" stroke="#c4ccd4" stroke-dasharray="2 3"/>'
            )
        for line in row:
            left = x + PAD
            for name, wide in line:
                fill = "#cfe3f3" if name.endswith("/") else "#ffffff"
                shapes.append(
                    f'<rect x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" '
                    f'height="{CHIP_HEIGHT}" rx="4" fill="{fill}" stroke="#b4c0cb"/>'
                    f'<text x="{left + 7:.1f}" y="{top + 15:.1f}" '
                    f'font-family="monospace" font-size="12">{escape(name)}</text>'
                )
                left += wide + 6
            if len(row) == len(line) == 1:
                words = described(package, name.rstrip("/").removesuffix(".py"))
                shapes += caption(words, left + 6, top + 15, x + width)
            top += CHIP_HEIGHT + 5
        top += 5
    return shapes


def widths(packages: list[str], graph: Mapping[str, Imports]) -> list[float]:
    """Share the width of a layer among its packages: room for the longest name, then by count."""
    longest = [
        max(len(label(package, child)) for child in [*graph[package], package]) * LETTER
        for package in packages
    ]
    least = [letters + 14 + 2 * PAD for letters in longest]
    space = WIDTH - GUTTER - 2 - GAP * (len(packages) - 1) - sum(least)
    counts = [len(graph[package]) for package in packages]
    return [width + space * count / sum(counts) for width, count in zip(least, counts, strict=True)]


def picture(graph: Mapping[str, Imports]) -> str:
    """Return the picture: a row for each layer, a box for each package, imports go downwards."""
    shapes: list[str] = []
    y = GAP
    for packages in layers():
        shares = widths(packages, graph)
        boxes = [
            box(package, graph[package], width)
            for package, width in zip(packages, shares, strict=True)
        ]
        height = max(box_height(rows) for rows in boxes)
        x = GUTTER
        for package, rows, width in zip(packages, boxes, shares, strict=True):
            shapes += drawn_box(package, rows, x, y, width, height)
            x += width + GAP
        y += height + GAP
    arrow = (
        f'<line x1="20" y1="{GAP}" x2="20" y2="{y - GAP - 10:.1f}" stroke="#0072b2" '
        f'stroke-width="3"/><path d="M12 {y - GAP - 12:.1f} h16 l-8 12 z" fill="#0072b2"/>'
        f'<text transform="translate(38 {y / 2:.1f}) rotate(-90)" text-anchor="middle" '
        'font-size="13" fill="#0072b2">imports</text>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {y:.0f}" '
        f'width="{WIDTH:.0f}" height="{y:.0f}" font-family="sans-serif" fill="#222222">\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{arrow}\n'
        + "\n".join(shapes)
        + "\n</svg>\n"
    )


def room_lists(graph: Mapping[str, Imports]) -> str:
    """Return the part of the page that is made: the picture and a table for each package."""
    lines = [BEGIN, "", f"![Packages and rooms in layers](pictures/{PICTURE.name})", ""]
    for packages in layers():
        for package in packages:
            lines += table(package, graph[package])
    return "\n".join([*lines, END])


def page(text: str, made: str) -> str:
    """Return the page with what stands between the markers replaced."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{made}{after}"


def main() -> None:
    """Write the page and the picture, or compare them with what would be written."""
    imports = grimp.build_graph("stormsail", exclude_type_checking_imports=True, cache_dir=None)
    graph = {package: sibling_imports(imports, package) for layer in layers() for package in layer}
    made = {PICTURE: picture(graph), PAGE: page(PAGE.read_text(), room_lists(graph))}
    if sys.argv[1:] == ["--check"]:
        old = [path.name for path, text in made.items() if path.read_text() != text]
        sys.exit(f"{', '.join(old)}: run scripts/architecture.py" if old else 0)
    for path, text in made.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
