"""Building blocks of HTML pages: sections, tables, charts, in one file without network access.

Every page is a function of what it is given: no time of day, no random names, so the same input
is the same bytes. Texts of others (symbols, names of runs, reasons) become HTML only through
`escape`, charts and long tables travel as JSON that the page's own script reads as data; and the
page's policy lets a browser run no script but ours (by its hash) and load nothing at all.

A page is made of the small pieces below: `section`, `note`, `badge`, `table`, `data_table`,
`chart`; `page` puts them together. What they look like stands in `report.css`, what they do in
`report.js`.
"""

import base64
import hashlib
import html
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stormsail.core.errors import ArgumentError
from stormsail.core.files.documents import JsonValue, encode
from stormsail.core.files.outputs import write_output

_HERE = Path(__file__).parent
_NAME = re.compile(r"[a-z][a-z0-9-]*")

NONE = "\u2013"
"""What stands in a table where there is nothing."""

Cell = str | float | int | None


def escape(text: object) -> str:
    """Return a text as HTML that shows it and does nothing else, inside quotes too."""
    return html.escape(str(text), quote=True)


def prose(text: object) -> str:
    """Return a text as HTML in which what stands between backticks looks like code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def page(title: str, body_html: str) -> str:
    """Return a whole page that loads nothing.

    Args:
        title: plain text, of the window and nothing else; the body has its own heading.
        body_html: made of the pieces of this module; whatever came from outside is escaped by now.
    """
    sources = [_inline(source) for source in map(_read, ("charts.js", "report.js"))]
    allowed = " ".join(f"'sha256-{_sha256(source)}'" for source in sources)
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    head = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_read('report.css')}</style>\n</head>\n"
    )
    fallback = (
        '<noscript><p class="note warn">Charts and long tables need JavaScript.</p></noscript>'
    )
    tail = "".join(f"<script>{source}</script>\n" for source in sources)
    return f"{head}<body>\n{fallback}\n{body_html}\n{tail}</body>\n</html>\n"


def write_page(path: Path, text: str) -> int:
    """Write a page, replacing the file where it exists; return its size in bytes.

    Raises:
        ArtifactError: if something else than a file is there, or the disk refuses.
    """
    return write_output(path, text, replace=True)


def header(title: str, subtitle: str, contents: Sequence[tuple[str, str]]) -> str:
    """Return the top of a page: heading, one line below it, a switch of colours, and a menu."""
    links = "".join(f'<a href="#{_checked(name)}">{escape(text)}</a>' for name, text in contents)
    return (
        f'<header class="top"><div class="headline"><div><h1>{escape(title)}</h1>'
        f'<p class="subtitle">{escape(subtitle)}</p></div>'
        '<button id="theme" type="button" aria-label="colours of the page">colours: auto</button>'
        f'</div></header><nav class="menu" aria-label="sections"><div>{links}</div></nav>'
    )


def section(name: str, title: str, body_html: str, *, lead: str = "") -> str:
    """Return a section with a heading and, in plain words, what it shows."""
    words = f'<p class="lead">{prose(lead)}</p>' if lead else ""
    return f'<section id="{_checked(name)}"><h2>{escape(title)}</h2>{words}{body_html}</section>\n'


def note(text: str, *, kind: str = "info") -> str:
    """Return a remark; `kind` is info, good, bad or warn."""
    return f'<p class="note {_checked(kind)}">{prose(text)}</p>'


def missing(text: str) -> str:
    """Return what stands where a chart would be if it had been measured."""
    return f'<p class="missing">{prose(text)}</p>'


def badge(text: str, *, kind: str = "info") -> str:
    """Return a short word in a coloured frame; `kind` is info, good, bad or warn."""
    return f'<span class="badge {_checked(kind)}">{escape(text)}</span>'


def folded(title: str, body_html: str, *, opened: bool = False, paper: bool = True) -> str:
    """Return a part that a click opens; on paper it is open, or left out without `paper`."""
    state = (" open" if opened else "") + ("" if paper else ' class="screen"')
    return f"<details{state}><summary>{escape(title)}</summary>{body_html}</details>"


def table(
    titles: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    kinds: Sequence[str] = (),
    classes: str = "",
) -> str:
    """Return a table of texts, the first column as headings of the rows.

    Args:
        titles: of the columns, plain text; a table whose titles are all empty has no head.
        rows: texts or numbers, plain; None is shown as a dash.
        kinds: a class for each row, such as `good`, `bad`, `warn`, `differs`; none where empty.
        classes: of the whole table.
    """
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in titles)
    head = f"<thead><tr>{head}</tr></thead>" if any(titles) else ""
    lines = []
    for place, row in enumerate(rows):
        kind = f' class="{escape(kinds[place])}"' if place < len(kinds) and kinds[place] else ""
        first, *rest = [_shown(cell) for cell in row]
        cells = f'<th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in rest)
        lines.append(f"<tr{kind}>{cells}</tr>")
    return (
        f'<div class="scroll"><table class="{escape(classes)}">{head}'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def data_table(
    name: str, columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[JsonValue]]
) -> str:
    """Return a long table that the reader sorts, filters and leafs through.

    Args:
        name: identifier, one of a kind on the page.
        columns: title and kind of each: `text`, `number`, or `time` (UTC milliseconds).
        rows: one list for each row.
    """
    data: JsonValue = {
        "columns": [{"title": title, "kind": kind} for title, kind in columns],
        "rows": [list(row) for row in rows],
    }
    return f'<div class="data-table" id="{_checked(name)}">{_json(data, "rows")}</div>'


def chart(name: str, figure: Mapping[str, object], *, height: int, caption: str = "") -> str:
    """Return a chart, drawn by `charts.js`.

    Args:
        name: identifier, one of a kind on the page.
        figure: `data` and `layout`, as `charts.py` makes them; NumPy arrays are packed. A colour is
            `@name` or `@name/0.2`, one of the page's colours (`--name` in `report.css`) and how
            much of it covers: such colours follow light and dark.
        height: in pixels; the width is that of the page.
        caption: what is seen, in plain words; a screen reader reads it.
    """
    words = f"<figcaption>{prose(caption)}</figcaption>" if caption else ""
    label = f"{name.replace('-', ' ')}: {caption}" if caption else name.replace("-", " ")
    return (
        f'<figure><div class="chart" role="group" aria-label="{escape(label)}" '
        f'id="{_checked(name)}" style="height:{height}px">'
        f"{_json(packed(figure), 'figure')}</div>{words}</figure>"
    )


def packed(value: object) -> JsonValue:
    """Return plain JSON in which arrays are a type and the base64 of little-endian numbers."""
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, Mapping):
        return {str(key): packed(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [packed(item) for item in value]
    if isinstance(value, np.generic):
        return packed(value.item())
    return value  # type: ignore[return-value]  # `encode` refuses what is not JSON


def _array(values: NDArray[np.generic]) -> JsonValue:
    if values.dtype.kind not in "fiu":
        return [packed(value) for value in values.tolist()]
    kind, name = ("<f4", "f4") if values.dtype == np.float32 else ("<f8", "f8")
    raw = np.ascontiguousarray(values, dtype=kind).tobytes()
    return {"dtype": name, "bdata": base64.b64encode(raw).decode("ascii")}


def _json(value: JsonValue, role: str) -> str:
    """Return data for the page's script; `<` cannot end the element it stands in."""
    text = encode(value).decode("ascii")
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return f'<script type="application/json" data-role="{role}">{text}</script>'


def _inline(source: str) -> str:
    """Return a script that can stand between tags."""
    source = source.replace("\r\n", "\n")  # as the browser that checks its hash reads it
    return re.sub(r"</(script)", r"<\\/\1", source, flags=re.IGNORECASE)


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _shown(cell: Cell) -> str:
    return NONE if cell is None else escape(cell)


def _checked(name: str) -> str:
    """Return a name that may stand in HTML as it is."""
    if _NAME.fullmatch(name) is None:
        raise ArgumentError(
            "name-form",
            wrong="the name of a part of a page must be lower-case letters, digits and dashes",
            found=f"`{name}`",
            remedy="Name it in code, not after data.",
        )
    return name


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
