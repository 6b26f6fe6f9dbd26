"""The command line as a user meets it: another process, exit codes, words."""

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import stormsail

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, code: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code] if code else [sys.executable, "-m", "stormsail"]
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, check=False, timeout=120
    )


def test_version_is_the_package_version():
    result = run("--version")
    assert (result.returncode, result.stdout) == (0, f"stormsail {stormsail.__version__}\n")


def test_without_a_verb_the_verbs_are_listed():
    assert "bench" in run().stdout


def test_the_command_line_starts_without_torch():
    result = run(code="import sys, stormsail.cli.main; print('torch' in sys.modules)")
    assert result.stdout == "False\n"


def test_a_refusal_is_words_and_exit_code_two():
    code = (
        "import stormsail.cli.main as m\n"
        "from stormsail.core.errors import RangeError\n"
        "@m.app.command()\n"
        "def refuse():\n"
        "    raise RangeError(wrong='`x` must be 1', found='2', remedy='Pass 1.')\n"
        "m.main()\n"
    )
    result = run("refuse", code=code)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "stormsail: `x` must be 1; found 2. Pass 1. [out-of-range]\n"


def test_bench_functional_prints_ratios_and_agrees_with_the_loops(tmp_path):
    out = tmp_path / "rows.json"
    size = ("--steps", "6", "--environments", "5", "--quantiles", "8")
    result = run("bench", "functional", *size, "--out", str(out))
    assert result.returncode == 0, result.stderr
    rows = {row["name"]: row for row in json.loads(out.read_text())}
    assert list(rows) == [
        "gae",
        "quantile_nstep_targets",
        "quantile_lambda_targets",
        "categorical_nstep_targets",
        "huber_loss",
        "cvar",
        "budget_advantage",
        "clipped_surrogate",
    ]
    for row in rows.values():
        assert row["largest_difference"] < 1e-12, row["name"]
        assert row["ratio"] == row["reference_milliseconds"] / row["milliseconds"]


def test_every_link_of_the_documents_leads_somewhere():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if not target.startswith(("http://", "https://")):
                assert (page.parent / target).exists(), f"{page.name} -> {target}"


def test_the_data_commands_of_the_readme_run_as_they_stand(tmp_path):
    commands = re.findall(r"^\.venv/bin/(.*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    data = [command.split() for command in commands if "bench" not in command]
    assert [command[1] for command in data] == [
        "synth",
        "import",
        "-m",
        "check",
        "check",
    ]
    for name in ("docs", "scripts"):
        (tmp_path / name).symlink_to(ROOT / name)
    own = [sys.executable, "-m", "stormsail"]
    for program, *arguments in data:
        start = [sys.executable] if program == "python" else own
        words = [[word] if word != ".venv/bin/stormsail" else own for word in arguments]
        result = subprocess.run(
            [*start, *itertools.chain.from_iterable(words)],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert result.returncode == 0, (arguments, result.stdout, result.stderr)
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [
        "AAA-USDT",
        "AAA-USDT_USDT",
        "BBB-USDT_USDT",
        "BTC-USDT_USDT",
        "CCC-USDT_USDT",
    ]
