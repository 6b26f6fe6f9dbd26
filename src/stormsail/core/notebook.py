"""Objects as a notebook shows them: a title over a table of names and values."""

import html
from collections.abc import Mapping


def html_table(title: str, rows: Mapping[str, object]) -> str:
    """Return a table for `_repr_html_`; every text is escaped."""
    body = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
        f"<td style='text-align:left'>{html.escape(str(value))}</td></tr>"
        for name, value in rows.items()
    )
    return f"<table><caption><b>{html.escape(title)}</b></caption><tbody>{body}</tbody></table>"


def short_repr(title: str, rows: Mapping[str, object]) -> str:
    """Return the same on one line, for `__repr__`."""
    return f"{title}({', '.join(f'{name}: {value}' for name, value in rows.items())})"


def several(names: tuple[str, ...], *, most: int = 4) -> str:
    """Return some names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
