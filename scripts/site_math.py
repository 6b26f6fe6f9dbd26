"""Formulas of docstrings on the site: `.. math::` becomes MathML, which browsers draw themselves.

Two halves of one way: the griffe extension writes what the Markdown extension arithmatex reads,
and `drawn` turns what arithmatex writes into MathML. Nothing is fetched and no script runs.
"""

import html
import re
import textwrap

from griffe import Extension, Object
from latex2mathml.converter import convert

BLOCK = re.compile(r"^( *)\.\. math::(.*\n(?:\1 +.*\n?)*)", re.MULTILINE)
INLINE = re.compile(r":math:`([^`]+)`")
ARITHMATEX = re.compile(r'<(div|span) class="arithmatex">\\[\[(](.*?)\\[\])]</\1>', re.DOTALL)


class Formulas(Extension):
    """Rewrites the formulas of docstrings from reStructuredText to the Markdown of the site."""

    def on_object(self, *, obj: Object, **_: object) -> None:
        """Rewrite the docstring of one object as soon as it is read."""
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)


def to_markdown(docstring: str) -> str:
    r"""Return a docstring with its formulas between `\[ \]` and `\( \)`."""
    blocks = BLOCK.sub(_block, docstring)
    return INLINE.sub(lambda found: rf"\({found[1]}\)", blocks)


def drawn(page: str) -> str:
    """Return the HTML of a page with every formula as MathML."""
    return ARITHMATEX.sub(_mathml, page)


def _block(found: re.Match[str]) -> str:
    formula = "\n".join(line.strip() for line in found[2].strip().split("\n"))
    return textwrap.indent(f"\n\\[\n{formula}\n\\]\n\n", found[1])


def _mathml(found: re.Match[str]) -> str:
    formula = html.unescape(found[2]).strip()
    if found[1] == "span":
        return convert(formula)
    return convert(in_rows(formula), display="block")


def in_rows(formula: str) -> str:
    r"""Return a formula with one statement a row: a page is narrower than a docstring."""
    if r"\begin" in formula or not re.search(r"\\\\|\\qquad", formula):
        return formula
    aligned = formula if "&" in formula else f"&{formula}"
    rows = re.sub(r"\s*\\qquad\s*", r" \\\\ &", aligned)
    return rf"\begin{{split}}{rows}\end{{split}}"
