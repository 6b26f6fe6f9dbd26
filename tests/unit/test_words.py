"""Source and pages use the words of the field; words that were private to us do not come back.

Every entry of the tables below is a word that was replaced throughout, with what says the same. A
reader who searches for "drawdown", "distribution" or "baseline" finds what she looks for.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Set
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

# Parts of an identifier, in any case: `law_mean`, `_Law`, `ReturnLaw`.
PARTS = {
    "law": "distribution, or process in market.synthetic",
    "laws": "distributions, or processes in market.synthetic",
    "deepest": "max drawdown",
    "promise": "prediction",
    "promises": "predictions",
    "promised": "predicted",
    "foretold": "forecast",
    "luck": "significance",
    "rival": "baseline",
    "rivals": "baselines",
    "doubt": "robustness",
    "doubts": "robustness",
    "course": "scenario",
    "courses": "scenarios",
    "lane": "slot",
    "lanes": "slots",
    "shelf": "cache",
    "desk": "memoised runner",
    "quarantine": "non-finite guard",
    "quarantined": "caught by the non-finite guard",
    "earned": "return so far",
    "blanks": "random strategies",
    "told": "what it is: report, summary, record",
    "asked": "what it is: query, request",
}
# Parts of the name of a class only: elsewhere they are plain words (`order_book`, `background`).
CLASSES = {
    "Ground": "batch",
    "Book": "ledger",
    "Bench": "runner",
    "Play": "env state",
    "Look": "evaluation",
}
# Whole names of variables, arguments and functions.
NAMES = {
    "one": "what it is: run, row, fold, symbol",
    "found": "what it is: result, problems",
    "said": "what it is",
    "heard": "what it is",
    "mine": "what it is",
    "reached": "next value",
    "move_units": "rescale",
    "begin_units": "initial scale",
}
# Words of docstrings, comments, messages and pages.
PROSE = {
    r"laws?": "distribution, or process in market.synthetic",
    r"deepest falls?": "max drawdown",
    r"promises?|promised": "prediction",
    r"foretells?|foretold": "forecast",
    r"luck|lucky": "significance",
    r"rivals?": "baseline",
    r"doubts": "robustness",
    r"shelf|desk": "cache, memoised runner",
    r"quarantined?": "non-finite guard",
    r"time in the market": "exposure time",
    r"blanks": "random strategies",
    r"looks? at unseen": "evaluation",
    r"dynamic programmes?": "dynamic programming",
}

# Names that stay, each for a reason.
KEPT_NAMES = {
    "project_law": "name of `project_distribution` in earlier releases",
    "clip_law": "name of `clip_distribution` in earlier releases",
}
# Files in which a name has its plain meaning.
KEPT_IN: dict[str, Set[str]] = {}
KEPT_PROSE = (
    r"law of total variance",  # a theorem
    r"square-root law",  # of market impact, as the literature calls it
    r"`(project|clip)_law`",  # the earlier names above
    r"--luck\b",  # the earlier name of `--significance`, still accepted
    r"\"(backtest|validation)\.luck\"",  # names of random streams: another name, other draws
)
KEPT_PAGES = {"docs/decisions/0013-rooms.md"}  # it says what was renamed

WORDS = re.compile("|".join(rf"(?P<w{k}>\b(?:{word})\b)" for k, word in enumerate(PROSE)), re.I)
INSTEAD = list(PROSE.values())


def parts(name: str) -> list[str]:
    """Return the words of an identifier in snake or camel case, in lower case."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def bindings(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield line, kind and identifier of everything that a source names."""
    fields = {
        id(line.target)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for line in node.body
        if isinstance(line, ast.AnnAssign)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                yield node.lineno, "field" if id(node) in fields else "variable", name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, "field", name
            case ast.arg(arg=name):
                yield node.lineno, "argument", name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, "function", name
            case ast.ClassDef(name=name):
                yield node.lineno, "class", name
            case ast.alias(asname=str(name)):
                yield node.lineno, "variable", name


def retired(kind: str, name: str) -> str | None:
    """Return what to say instead of an identifier, if anything."""
    bare = name.strip("_")
    if bare in KEPT_NAMES:
        return None
    # `found=` is a keyword of our error classes, and so a name of arguments and fields.
    if bare in NAMES and not (bare == "found" and kind in {"argument", "field"}):
        return NAMES[bare]
    if kind == "class":
        for word, instead in CLASSES.items():
            if word.lower() in parts(bare):
                return instead
    return next((PARTS[word] for word in parts(bare) if word in PARTS), None)


def prose_problems(text: str, first: int = 1) -> Iterator[tuple[int, str]]:
    """Yield the line and the complaint for each retired word of a text."""
    for kept in KEPT_PROSE:
        text = re.sub(kept, lambda match: "-" * len(match[0]), text, flags=re.I)
    for match in WORDS.finditer(text):
        line = first + text.count("\n", 0, match.start())
        yield line, f"{match[0]!r}: say {INSTEAD[int(match.lastgroup[1:])]}"


def source_problems(source: str, kept: Set[str] = frozenset()) -> list[tuple[int, str]]:
    """Return the line and the complaint for each retired word of a source, in order."""
    problems = [
        (line, f"{kind} `{name}`: say {instead}")
        for line, kind, name in bindings(ast.parse(source))
        for instead in [retired(kind, name)]
        if instead and name not in kept
    ]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in {tokenize.STRING, tokenize.COMMENT}:
            problems += prose_problems(token.string, token.start[0])
    return sorted(problems)


def report(problems: dict[Path, list[tuple[int, str]]]) -> str:
    return "\n".join(
        f"{path.relative_to(ROOT)}:{line}: {words}"
        for path, complaints in problems.items()
        for line, words in complaints
    )


def test_the_source_uses_the_words_of_the_field():
    problems = report(
        {
            path: source_problems(path.read_text(), KEPT_IN.get(name, frozenset()))
            for path in SOURCES
            for name in [path.relative_to(ROOT / "src" / "stormsail").as_posix()]
        }
    )
    assert not problems, problems


def test_the_pages_use_the_words_of_the_field():
    pages = [path for path in PAGES if path.relative_to(ROOT).as_posix() not in KEPT_PAGES]
    problems = report({path: list(prose_problems(path.read_text())) for path in pages})
    assert not problems, problems


def test_no_file_or_folder_has_a_retired_name():
    names = {name for path in SOURCES for name in path.relative_to(ROOT / "src").parts}
    retired_names = [name for name in names if retired("module", name.removesuffix(".py"))]
    assert retired_names == []


def test_a_retired_identifier_is_noticed():
    source = (
        "class ReturnLaw: ...\n"
        "class _Bench: ...\n"
        "def law_mean(rivals): ...\n"
        "told = [one for one in rows]\n"
        "self.foretold = 1\n"
        "import numpy as luck\n"
        "found = 1\n"
    )
    assert [line for line, _ in source_problems(source)] == [1, 2, 3, 3, 4, 4, 5, 6, 7]


def test_a_retired_word_of_prose_is_noticed_at_its_line():
    source = '"""A module.\n\nIts Laws and the deepest\u0020fall.\n"""\nx = 1  # luck, not skill\n'
    assert source_problems(source) == [
        (3, "'Laws': say distribution, or process in market.synthetic"),
        (3, "'deepest fall': say max drawdown"),
        (5, "'luck': say significance"),
    ]


def test_what_is_no_retired_word_is_left_alone():
    source = (
        '"""The law of total variance; the square-root law; flawless, a drawer of desks."""\n'
        "def clip_law(self, found): ...\n"
        "def f(lawn, background, order_book, one_hot, lookback): ...\n"
        "class Error:\n    found: str\n"
        "self.found = found\n"
        "raise Error(found='x')\n"
    )
    assert source_problems(source) == []
