"""`docs/findings.md` names only what exists, and leaves out nothing that was claimed or planted."""

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from mutants.harness import functions
from mutants.table import MUTANTS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "findings.md"


def numbered(prefix, first, last):
    return [f"{prefix}{k}" for k in range(first, last + 1)]


EXPECTED = (
    *numbered("S0-", 1, 9),
    *("S1-1a", "S1-1b", "S1-1c"),
    *numbered("S1-V", 1, 5),
    *numbered("S1-P", 1, 3),
    *numbered("S1-D", 1, 3),
    *("S1-T1", "S1-T2"),
    *numbered("S1-U", 1, 3),
    *("S1-N1", "S1-L1"),
    *numbered("S1-S", 1, 4),
    *numbered("S2-", 1, 7),
    *("S2-opt1", "S2-opt2", "S2-log"),
    *numbered("S3-", 1, 12),
    *numbered("S3-M", 1, 3),
    *numbered("S3-FP", 1, 3),
    "S3-arch",
    *numbered("S4-V", 1, 7),
    *("S4-1", "S4-2"),
    *numbered("S4-O", 1, 3),
    *("S4-R1", "S4-R2", "S4-Q1", "S4-Q2"),
    *numbered("X", 1, 23),
    *(f"M{number:02}" for number in range(1, 51)),
)
POINTS = numbered("C", 1, 20)

HELD, PARTIAL, TO_COME = "held", "formula held, use to come", "to come"
VERDICTS = {"real", "false", "partly", "ours"}
PARTS = {
    "optimizers", "modules", "learner", "risk", "population", "adversary", "market", "monitors",
    "execution",
}  # fmt: skip

COLUMNS = ["id", "claim", "verdict and why", "state", "file", "test", "mutant"]
FURTHER = ["mutant", "what it would do", "test"]


class Row(NamedTuple):
    id: str
    claim: str
    verdict: str
    state: str
    file: str
    test: str
    mutant: str


class Further(NamedTuple):
    mutant: str
    effect: str
    test: str


def tables(text):
    """Yield header and rows of every table, each row as a list of cells."""
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        lines = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()
        ]
        assert all(re.fullmatch(r"-+", cell) for cell in lines[1]), f"no rule under {lines[0]}"
        for cells in lines[2:]:
            assert len(cells) == len(lines[0]), f"{cells[0]} has {len(cells)} cells"
        yield lines[0], lines[2:]


def read(text, columns, kind):
    return [kind(*cells) for header, rows in tables(text) if header == columns for cells in rows]


def findings(text):
    return read(text, COLUMNS, Row)


def further(text):
    return read(text, FURTHER, Further)


def quoted(cell):
    """Return what stands in backticks, and check that nothing else but line breaks does."""
    names = re.findall(r"`([^`]+)`", cell)
    rest = re.sub(r"`[^`]+`|<br>|\s", "", cell)
    assert rest in {"", "–"}, f"unquoted words {rest!r}"
    assert bool(names) != (rest == "–"), f"names or a dash, not {cell!r}"
    return names


def exists(test):
    path, _, name = test.partition("::")
    return name.startswith("test_") and name in functions(path)


def state_of(words):
    """Return the word and the part of a state such as `to come: learner`."""
    word, _, part = words.partition(": ")
    fits = (word == HELD and not part) or (word in {PARTIAL, TO_COME} and part in PARTS)
    assert fits, f"{words!r} is no state"
    return word


def id_problems(rows):
    count = Counter(row.id for row in rows)
    missing = [f"{name} is missing" for name in EXPECTED if not count[name]]
    unknown = [f"{name} is unknown" for name in count if name not in EXPECTED]
    return missing + unknown + [f"{name} stands {n} times" for name, n in count.items() if n > 1]


def name_problems(row):
    """Return what a row names that does not exist, or should name and does not."""
    state = state_of(row.state)
    if state == TO_COME:
        named = [cell for cell in (row.file, row.test, row.mutant) if "`" in cell]
        return [f"{row.id} is to come and names {cell}" for cell in named]
    files, tests, mutants = quoted(row.file), quoted(row.test), quoted(row.mutant)
    problems = [f"no file {path}" for path in files if not (ROOT / path).is_file()]
    problems += [f"no test {test}" for test in tests if not exists(test)]
    problems += mutant_problems(mutants, files)
    if not files or not tests:
        problems.append("no file or no test named")
    return [f"{row.id}: {problem}" for problem in problems]


def mutant_problems(mutants, files):
    known = {f"mutant:{mutant.name}": f"src/stormsail/{mutant.file}" for mutant in MUTANTS}
    problems = [f"no {name}" for name in mutants if name not in known]
    strangers = [name for name in mutants if name in known and known[name] not in files]
    return problems + [f"{name} is in {known[name]}, which is not named" for name in strangers]


def planted_problems(rows, others):
    """Return the planted bugs that no row names, or not the row of their finding."""
    named = {row.id: set(re.findall(r"`mutant:([^`]+)`", row.mutant)) for row in rows}
    elsewhere = {name.removeprefix("mutant:") for row in others for name in quoted(row.mutant)}
    problems = []
    for mutant in MUTANTS:
        owners = set(mutant.finding.split()) & set(EXPECTED)
        missing = [owner for owner in sorted(owners) if mutant.name not in named.get(owner, ())]
        problems += [f"{owner} does not name {mutant.name}" for owner in missing]
        if mutant.name not in elsewhere.union(*named.values()):
            problems.append(f"nothing names {mutant.name}")
    return problems


TEXT = PAGE.read_text(encoding="utf-8")
ROWS, OTHERS = findings(TEXT), further(TEXT)


def problems_of(check, rows):
    """Return what the check complains of in all rows, each complaint with the row it is about."""
    problems = []
    for row in rows:
        try:
            problems += check(row)
        except AssertionError as error:  # a cell that cannot be read
            problems.append(f"{row[0]}: {error}")
    return problems


def test_every_finding_has_exactly_one_row():
    assert len(set(EXPECTED)) == len(EXPECTED) == 152
    problems = id_problems(ROWS)
    assert not problems, "\n".join(problems)


def test_every_row_names_only_what_exists():
    problems = problems_of(name_problems, ROWS)
    assert not problems, "\n".join(problems)


def word_problems(row):
    """Return what a row lacks of a claim, a verdict and a reason."""
    verdict = re.match(r"\w+", row.verdict)
    word = verdict.group() if verdict else ""
    faults = {
        f"{word!r} is no verdict": word not in VERDICTS,
        "the verdict has no reason": len(row.verdict) <= len(word) + 10,
        "there is no claim": len(row.claim) <= 10,
    }
    return [f"{row.id}: {fault}" for fault, holds in faults.items() if holds]


def test_every_row_has_a_claim_a_verdict_and_a_reason():
    problems = problems_of(word_problems, ROWS)
    assert not problems, "\n".join(problems)


def further_problems(row):
    """Return what is wrong with the row of a bug that belongs to no finding."""
    known = {f"mutant:{mutant.name}" for mutant in MUTANTS}
    names, tests = quoted(row.mutant), quoted(row.test)
    problems = [f"no {name}" for name in names if name not in known]
    problems += [f"no test {test}" for test in tests if not exists(test)]
    if len(names) != 1:
        problems.append("a row is about one bug")
    if not row.effect:
        problems.append("what it would do is not said")
    return [f"{row.mutant}: {problem}" for problem in problems]


def test_every_further_bug_is_planted_and_its_test_exists():
    problems = problems_of(further_problems, OTHERS)
    assert not problems, "\n".join(problems)


def test_every_planted_bug_is_named_in_the_row_of_its_finding():
    problems = planted_problems(ROWS, OTHERS)
    assert not problems, "\n".join(problems)


def points(text):
    """Return each contradiction with its labelled paragraphs."""
    found = re.split(r"^### (C\d+)\. .+$", text, flags=re.MULTILINE)[1:]
    bodies = [body.partition("\n## ")[0] for body in found[1::2]]
    label = r"^- \*\*(\w+)[.:]\*\* (\S(?:.|\n(?!- \*\*))*)"
    return {
        name: dict(re.findall(label, body, re.MULTILINE))
        for name, body in zip(found[::2], bodies, strict=True)
    }


def test_every_contradiction_has_claims_derivation_cure_and_state():
    found = points(TEXT)
    assert list(found) == POINTS
    for parts in found.values():
        assert list(parts) == ["Claims", "Derivation", "Built", "State"]
        state_of(parts["State"].split(".")[0])


def test_rows_that_a_contradiction_points_to_exist():
    for name, parts in points(TEXT).items():
        _, _, rest = parts["State"].partition(". ")
        cited = re.findall(r"\b(?:S\d-\w+|X\d+|M\d\d)\b", rest)
        assert set(cited) <= set(EXPECTED), name
        assert cited or name == "C20"


# ------------------------------------------------------------------ the checks see what is planted

GOOD = (
    "| X1 | the claim in words | real: and the reason | held | `docs/findings.md` "
    "| `tests/unit/test_findings.py::test_every_finding_has_exactly_one_row` | – |\n"
)
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|\n"


def test_the_parser_reads_a_planted_row():
    (row,) = findings(
        f"words\n\n{HEAD}{GOOD}\nmore words\n\n| word | meaning |\n|---|---|\n| a | b |\n"
    )
    assert (row.id, row.claim, row.state, row.mutant) == ("X1", "the claim in words", "held", "–")
    assert quoted(row.file) == ["docs/findings.md"]
    assert name_problems(row) == []


def test_a_dropped_row_is_noticed():
    unnoticed = []
    for row in ROWS:
        line = re.compile(rf"^\| {re.escape(row.id)} \|.*\n", re.MULTILINE)
        text, count = line.subn("", TEXT)
        if count != 1 or id_problems(findings(text)) != [f"{row.id} is missing"]:
            unnoticed.append(row.id)
    assert unnoticed == []


def test_a_repeated_row_and_an_unknown_one_are_noticed():
    rows = [*ROWS, ROWS[0], ROWS[0]._replace(id="X99")]
    assert id_problems(rows) == ["X99 is unknown", f"{ROWS[0].id} stands 2 times"]


PLANTED = {
    "`docs/findings.md`": ("`docs/nowhere.md`", "X1: no file docs/nowhere.md"),
    "::test_every_finding_has_exactly_one_row": (
        "::test_nothing",
        "X1: no test tests/unit/test_findings.py::test_nothing",
    ),
    "| – |": ("| `mutant:none` |", "X1: no mutant:none"),
    "| held |": ("| to come: learner |", "X1 is to come and names `docs/findings.md`"),
    "`docs/findings.md` ": ("– ", "X1: no file or no test named"),
}


def test_a_wrong_name_is_noticed():
    unnoticed = []
    for place, (put, problem) in PLANTED.items():
        assert place in GOOD
        (row,) = findings(HEAD + GOOD.replace(place, put))
        if problem not in name_problems(row):
            unnoticed.append(problem)
    assert unnoticed == []


def test_a_row_without_its_words_is_noticed():
    (row,) = findings(HEAD + GOOD)
    assert word_problems(row) == []
    assert word_problems(row._replace(verdict="rael: and the reason")) == [
        "X1: 'rael' is no verdict"
    ]
    assert word_problems(row._replace(verdict="real: no")) == ["X1: the verdict has no reason"]
    assert word_problems(row._replace(claim="a claim")) == ["X1: there is no claim"]


def test_a_further_row_that_does_not_fit_is_noticed():
    good = Further(f"`mutant:{MUTANTS[0].name}`", "a loss", f"`{quoted(ROWS[0].test)[0]}`")
    assert further_problems(good) == []
    assert further_problems(good._replace(effect="")) == [
        f"{good.mutant}: what it would do is not said"
    ]
    assert further_problems(good._replace(mutant="`mutant:none`")) == [
        "`mutant:none`: no mutant:none"
    ]
    assert further_problems(good._replace(test="`tests/conftest.py::test_nothing`")) == [
        f"{good.mutant}: no test tests/conftest.py::test_nothing"
    ]
    (problem,) = problems_of(further_problems, [good._replace(test="in words")])
    assert "unquoted words 'inwords'" in problem


def test_a_state_of_other_words_is_noticed():
    for state in (
        "Held", "held: learner", "to come", "to come: never", "formula held, use to come",
    ):  # fmt: skip
        with pytest.raises(AssertionError, match="is no state"):
            state_of(state)


def test_a_planted_bug_that_nothing_names_is_noticed():
    first = MUTANTS[0]
    rows = [row._replace(mutant=row.mutant.replace(first.name, "other")) for row in ROWS]
    problems = planted_problems(rows, OTHERS)
    assert f"nothing names {first.name}" in problems
    owner = next(name for name in first.finding.split() if name in EXPECTED)
    assert f"{owner} does not name {first.name}" in problems


def test_a_mutant_of_another_file_than_the_row_names_is_noticed():
    first = MUTANTS[0]
    expected = f"mutant:{first.name} is in src/stormsail/{first.file}, which is not named"
    assert mutant_problems([f"mutant:{first.name}"], ["docs/findings.md"]) == [expected]
