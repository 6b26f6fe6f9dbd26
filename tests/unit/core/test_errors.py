import ast
import copy
import multiprocessing
import pickle
import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import get_args

import pytest

import stormsail
from stormsail.core import errors
from stormsail.core.clock import ManualClock
from stormsail.core.errors import (
    ArgumentError,
    ArtifactError,
    ChoiceError,
    ConfigError,
    DataError,
    DtypeError,
    ErrorCode,
    InvariantError,
    RangeError,
    ShapeError,
    StormsailError,
    VenueError,
    nearest,
)

SOURCE = Path(stormsail.__file__).parent
PAGE = Path(__file__).parents[3] / "docs" / "errors.md"
CODES = set(get_args(ErrorCode))
SINGLE = {
    ShapeError: "shape-mismatch",
    DtypeError: "dtype-mismatch",
    RangeError: "out-of-range",
    ChoiceError: "unknown-choice",
}


@pytest.mark.refusal
def test_a_message_says_what_must_hold_what_was_found_and_what_to_do():
    error = ConfigError("config-value", wrong="`clip` must be positive", found="-1", remedy="Do x.")
    assert str(error) == "`clip` must be positive; found -1. Do x. [config-value]"
    assert (error.code, error.wrong) == ("config-value", "`clip` must be positive")
    assert (error.found, error.remedy) == ("-1", "Do x.")


@pytest.mark.refusal
@pytest.mark.parametrize(("kind", "code"), SINGLE.items())
def test_a_class_with_one_code_sets_it_itself(kind, code):
    error = kind(wrong="a must hold", found="b", remedy="Do c.")
    assert str(error) == f"a must hold; found b. Do c. [{code}]"
    assert error.code == code


def test_the_tree_is_ordered_by_who_must_act():
    for kind in (ConfigError, DataError, VenueError, InvariantError, ArgumentError):
        assert kind.__mro__[1] is StormsailError
    assert ArtifactError.__mro__[1] is DataError
    for kind in SINGLE:
        assert issubclass(kind, ArgumentError)
        assert issubclass(kind, ValueError)
    assert not issubclass(ConfigError, ValueError)


SAMPLES = [
    ConfigError("config-value", wrong="a", found="b", remedy="C."),
    ArtifactError("artifact-corrupt", wrong="a", found="b", remedy="C."),
    *(kind(wrong="a", found="b", remedy="C.") for kind in SINGLE),
]


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    "transport",
    [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))],  # noqa: S301
)
def test_an_error_survives_every_transport(error, transport):
    error = transport(error)
    error.add_note("in worker 3")
    back = transport(error)
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.args == error.args
    assert (back.code, back.wrong, back.found, back.remedy) == (error.code, "a", "b", "C.")
    assert back.__notes__ == ["in worker 3"]


def test_an_error_comes_home_from_a_worker_process():
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        error = pool.submit(ManualClock().sleep, -2.0).exception(timeout=60)
    assert type(error) is RangeError
    assert str(error) == (
        "`seconds` must be a finite number of at least 0; found -2.0. "
        "Pass how long to wait; time does not run backwards. [out-of-range]"
    )


def test_errors_load_neither_torch_nor_pydantic():
    script = (
        "import sys, stormsail.core.errors; "
        "print([m for m in ('torch', 'pydantic', 'numpy') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert result.stdout == b"[]\n"


@pytest.mark.parametrize(
    ("name", "choices", "expected"),
    [
        ("mean_olny", ["off", "mean_only", "mean_and_variance"], "mean_only"),
        ("MEAN_ONLY", ["off", "mean_only"], "mean_only"),
        ("tanh", ["Tanh", "relu"], "Tanh"),
        ("lx", ["lr", "gamma"], "lr"),
        ("rl", ["lr", "gamma"], "lr"),
        ("q", ["lr", "gamma"], None),
        ("nonsense", ["off", "mean_only"], None),
        ("", ["off"], None),
        ("off", [], None),
        ("beta", ["betb", "beta1", "beta2"], "beta1"),  # longest common part wins
        ("bet", ["bets", "beta"], "beta"),  # a tie: the alphabetically first
    ],
)
def test_the_nearest_name_is_found(name, choices, expected):
    assert nearest(name, choices) == expected
    assert nearest(name, reversed(choices)) == expected


def _raised() -> tuple[set[str], set[str]]:
    """Codes that calls to our errors begin with, and the errors that are called without a code."""
    kinds = {kind.__name__ for kind in _subclasses(StormsailError)}
    codes, bare = set(), set()
    for path in set(SOURCE.rglob("*.py")) - {Path(errors.__file__)}:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id in kinds and not node.args:
                bare.add(node.func.id)
            elif node.func.id in kinds | {"_Problem"}:  # what becomes a ConfigError later
                parts = ast.walk(node.args[0])
                codes |= {part.value for part in parts if isinstance(part, ast.Constant)}
    return {code for code in codes if isinstance(code, str)}, bare


def _subclasses(kind: type) -> set[type]:
    return {kind}.union(*(_subclasses(child) for child in kind.__subclasses__()))


def test_every_code_that_is_raised_is_listed():
    codes, bare = _raised()
    assert codes - CODES == set()
    assert bare - {kind.__name__ for kind in SINGLE} == set()


def test_every_listed_code_is_raised():
    codes, bare = _raised()
    codes |= {code for kind, code in SINGLE.items() if kind.__name__ in bare}
    assert CODES - codes == set()


def test_the_page_has_one_heading_for_each_code():
    headings = re.findall(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(headings) == len(set(headings))
    assert set(headings) == CODES


def test_every_heading_has_its_meaning_an_example_and_a_way_out():
    text = PAGE.read_text(encoding="utf-8")
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        code, _, body = section.partition("\n")
        meaning, example, remedy = body.strip().split("\n\n")
        assert meaning.endswith(".")
        assert re.fullmatch(rf"> .+; found .+\. .+[.?)] \[{code}\]", example), code
        assert remedy.startswith("What to do: ")
