"""Every verb prints text, one JSON document, or nothing; the page of verbs says which keys."""

import ast
import inspect
import json
import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from report_lab import write_made_validation
from stormsail import __version__
from stormsail.cli.main import app
from stormsail.cli.output import add_command, plain, publish

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8")
TINY = [
    *("--set", "ppo.total_steps=64", "--set", "ppo.n_envs=2", "--set", "ppo.n_steps=16"),
    *("--set", "ppo.batch_size=1", "--set", "ppo.n_epochs=1", "--set", "validation.episodes=5"),
    *("--set", "validation.every_updates=2"),
]


def verbs(command=None, above=""):
    """Return every verb by its words."""
    command = command or typer.main.get_command(app)
    found = {}
    for name, inner in command.commands.items():
        words = f"{above} {name}".strip()
        found |= verbs(inner, words) if hasattr(inner, "commands") else {words: inner}
    return found


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def document(result):
    """Return the document, which is all that stdout holds."""
    read = json.loads(result.stdout)
    assert list(read)[:2] == ["verb", "version"]
    assert read["version"] == __version__
    return read


def documented():
    """Return the keys of each verb's document, as the page has them."""
    rows = re.findall(r"^\| `([a-z ]+)` \| [^|]* \| (.*) \|$", PAGE, re.MULTILINE)
    return {verb: set(re.findall(r"`(\w+)`", keys)) for verb, keys in rows}


@pytest.mark.parametrize("verb", sorted(verbs()))
def test_every_verb_has_the_common_options(verb):
    options = {name for part in verbs()[verb].params for name in part.opts}
    assert {"--json", "--json-out", "--quiet", "--force"} <= options


def test_the_page_has_every_verb_and_its_keys():
    assert set(documented()) == set(verbs())
    assert all(documented().values())


def published(function):
    """Return the keys that the module of a verb publishes, by the functions that do."""
    tree = ast.parse(Path(inspect.getsourcefile(function)).read_text(encoding="utf-8"))
    keys = set()
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "publish":
            keys |= {word.arg for word in call.keywords if word.arg is not None}
    return keys


def test_the_page_names_each_key_that_a_verb_publishes_by_name():
    pages, own = {}, {}
    for verb, command in verbs().items():
        function = inspect.unwrap(command.callback)
        pages.setdefault(function.__module__, set()).update(documented()[verb])
        own[function.__module__] = published(function)
    assert sum(map(len, own.values())) > 50
    for module, keys in own.items():
        assert keys <= pages[module], module


def test_without_options_text_goes_to_stdout_and_no_document():
    result = run("synth", "--list")
    assert result.stdout.startswith("random_walk") or "regime: " in result.stdout
    assert "{" not in result.stdout.splitlines()[0]


def test_json_stands_alone_on_stdout_and_text_goes_to_stderr(tmp_path):
    result = run("synth", "regime", "--bars", 50, "--store", tmp_path / "s", "--json")
    assert result.exit_code == 0
    read = document(result)
    assert set(read) == {"verb", "version"} | documented()["synth"] - {"worlds"}
    assert (read["verb"], read["bars"], len(read["symbols"])) == ("synth", 50, 3)
    assert "known answer: " in result.stderr


def test_quiet_prints_nothing_and_with_json_the_document_alone(tmp_path):
    words = ("synth", "regime", "--bars", 50, "--store", tmp_path / "s")
    silent = run(*words, "--quiet")
    assert (silent.exit_code, silent.stdout, silent.stderr) == (0, "", "")
    both = run(*words, "-q", "--json")
    assert (document(both)["verb"], both.stderr) == ("synth", "")


def test_json_out_writes_what_json_prints_and_leaves_stdout_alone(tmp_path):
    file = tmp_path / "out.json"
    result = run("configs", "quickstart", "--json-out", file)
    assert result.stdout.startswith("quickstart: ")
    printed = run("configs", "quickstart", "--json")
    assert file.read_text() == printed.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]  # nothing temporary is left


def test_json_out_follows_a_link_and_is_refused_before_the_work(tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    run("configs", "--json-out", tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "real.json").read_text())["verb"] == "configs"
    store = tmp_path / "s"
    words = ("synth", "regime", "--bars", 50, "--store", store, "--json-out")
    inside = run(*words, tmp_path / "real.json" / "x.json")
    assert inside.exception.code == "artifact-write"
    assert "Not a directory" in str(inside.exception)
    assert run(*words, tmp_path).exception.code == "output-kind"
    assert not store.exists()
    assert run(*words, tmp_path / "new" / "x.json").exit_code == 0  # folders are made
    assert json.loads((tmp_path / "new" / "x.json").read_text())["bars"] == 50


def test_json_out_replaces_a_file_only_with_force(tmp_path):
    file, store = tmp_path / "out.json", tmp_path / "s"
    file.write_text("mine")
    words = ("synth", "regime", "--bars", 50, "--store", store, "--json-out", file)
    refused = run(*words)
    assert refused.exception.code == "output-exists"
    assert "`--force`" in str(refused.exception)
    assert (file.read_text(), store.exists()) == ("mine", False)
    assert run(*words, "--force").exit_code == 0
    assert json.loads(file.read_text())["bars"] == 50
    assert run(*words).exception.code == "output-exists"  # the option is not remembered


def test_a_refusal_has_a_document_with_its_parts():
    result = run("train", "quikstart", "--json")
    read = document(result)
    assert read["verb"] == "train"
    assert read["error"]["code"] == "config-unreadable"
    assert set(read["error"]) == {"code", "message", "wrong", "found", "remedy"}
    assert read["error"]["message"] == str(result.exception)


def test_a_wrong_option_found_by_the_verb_has_a_document_too(tmp_path):
    result = run("bench", "functional", "--out", tmp_path / "no" / "x.json", "--json")
    assert result.exit_code == 2
    assert document(result)["error"]["code"] == "usage"


def test_a_verb_that_ends_with_a_no_of_its_own_prints_its_document(tmp_path):
    (tmp_path / "x_1h.csv").write_text("ts,open,high,low,close,volume\n1,2,1,1,1,1\n")
    result = run("check", tmp_path, "--json")
    assert result.exit_code == 1
    assert document(result)["refused"] == 1
    assert "refused " in result.stderr


def test_a_training_publishes_how_it_ended_and_progress_can_be_silenced(tmp_path):
    words = ("train", "--task", "CartPole-v1", "--out", tmp_path / "run", *TINY)
    result = run(*words, "--json")
    read = document(result)
    assert set(read) == {"verb", "version"} | documented()["train"]
    assert (read["status"], read["steps"]) == ("finished", 64)
    assert read["best"] == str(tmp_path / "run" / "best")
    assert "64 of 64 steps" in result.stderr
    again = run("resume", tmp_path / "run", "--json", "--quiet")
    assert (document(again)["steps"], again.stderr) == (64, "")


def test_results_are_published_by_report_performance_and_compare(tmp_path):
    for name in ("a", "b"):
        write_made_validation(tmp_path / name, drift=0.0002 if name == "a" else 0.0003)
    page = run("report", tmp_path / "a", "--out", tmp_path / "p.html", "--json", "-q")
    read = document(page)
    assert read == {
        "verb": "report",
        "version": __version__,
        "out": str(tmp_path / "p.html"),
        "bytes": (tmp_path / "p.html").stat().st_size,
    }
    tables = document(run("performance", tmp_path / "a", "--json"))
    assert set(tables) == {"verb", "version"} | documented()["performance"]
    assert tables["tables"]["monthly"]
    compared = document(run("compare", tmp_path / "a", tmp_path / "b", "--json"))
    assert set(compared) == {"verb", "version"} | documented()["compare"]
    assert compared["names"] == ["a", "b"]
    assert compared["verdicts"] == {"a": "not proven", "b": "not proven"}


def test_bench_figures_are_the_document():
    size = ("--steps", 4, "--environments", 3, "--quantiles", 4)
    read = document(run("bench", "functional", *size, "--json"))
    assert read["verb"] == "bench functional"
    assert {row["name"] for row in read["rows"]} >= {"gae", "cvar"}


class _Pair(NamedTuple):
    a: int
    b: float


@dataclass
class _Record:
    path: Path
    when: datetime


def test_values_become_jsons_own():
    record = _Record(Path("x/y"), datetime(2024, 1, 2, tzinfo=UTC))
    assert plain({"a": math.nan, 1: _Pair(1, math.inf), "c": np.array([1.0, 2.0])}) == {
        "a": None,
        "1": {"a": 1, "b": None},
        "c": [1.0, 2.0],
    }
    assert plain([record, np.float64(0.5), True, None]) == [
        {"path": "x/y", "when": "2024-01-02T00:00:00+00:00"},
        0.5,
        True,
        None,
    ]


def test_what_a_library_prints_does_not_reach_the_document():
    own = typer.Typer()

    def noisy() -> None:
        print("a library says hello")  # noqa: T201 - the point
        publish(answer=42)

    add_command(own, noisy)
    result = CliRunner().invoke(own, ["--json"])
    assert json.loads(result.stdout)["answer"] == 42
    assert result.stderr == "a library says hello\n"


def test_publishing_outside_a_command_does_nothing():
    publish(answer=42)
    assert "answer" not in document(run("configs", "--json"))
