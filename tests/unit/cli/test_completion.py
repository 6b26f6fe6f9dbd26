"""A shell completes verbs, configurations and settings, without loading what computes."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from stormsail.cli.completion import complete_config, complete_setting
from stormsail.cli.main import app

WORDS = {
    "bash": ("complete_bash", "COMP_WORDS", {"COMP_CWORD": "{last}"}),
    "zsh": ("complete_zsh", "_TYPER_COMPLETE_ARGS", {}),
    "fish": ("complete_fish", "_TYPER_COMPLETE_ARGS", {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}),
}


def completed(shell, line):
    """Return what a shell is answered for a line, as its script asks."""
    action, variable, more = WORDS[shell]
    last = str(len(line.split(" ")) - 1)
    environment = {
        "_STORMSAIL_COMPLETE": action,
        variable: line,
        **{name: value.format(last=last) for name, value in more.items()},
    }
    return CliRunner().invoke(app, [], env=environment, prog_name="stormsail").output


@pytest.mark.parametrize("shell", WORDS)
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("stormsail valid", "validate"),
        ("stormsail bench front", "frontier"),
        ("stormsail train quick", "quickstart"),
        ("stormsail validate markets/or", "markets/oracle"),
        ("stormsail train quickstart --set ppo.clip_r", "ppo.clip_range="),
        ("stormsail backtest run --set filters.lo", "filters.lot="),
        ("stormsail validate quickstart --judge test_sh", "test_share="),
        ("stormsail synth --js", "--json-out"),
    ],
)
def test_a_line_is_completed(shell, line, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert expected in completed(shell, line)


@pytest.mark.parametrize(
    ("shell", "mark"),
    [
        ("bash", "complete -o default -F _stormsail_completion stormsail"),
        ("zsh", "compdef _stormsail_completion stormsail"),
        ("fish", "complete --command stormsail"),
    ],
)
def test_each_shell_has_a_script(shell, mark):
    environment = {"_STORMSAIL_COMPLETE": f"source_{shell}"}
    result = CliRunner().invoke(app, [], env=environment, prog_name="stormsail")
    assert mark in result.output


def test_files_and_folders_are_completed_beside_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.toml").touch()
    (tmp_path / "own.csv").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "inner.toml").touch()
    (tmp_path / ".hidden.toml").touch()
    assert [name for name, _ in complete_config("o")] == ["other/", "own.toml"]
    assert [name for name, _ in complete_config("other/")] == ["other/inner.toml"]
    assert not [name for name, _ in complete_config("") if name.startswith(".")]
    assert complete_config("nowhere/x") == []


def test_settings_come_with_what_they_do():
    assert complete_setting("ppo.total_s") == [
        ("ppo.total_steps=", complete_setting("ppo.total_")[0][1])
    ]
    assert all(words for _, words in complete_setting(""))
    assert complete_setting("population.population_s")


def test_completing_loads_nothing_that_computes():
    code = (
        "import sys\n"
        "from stormsail.cli.completion import complete_config, complete_setting\n"
        "assert complete_config('q') and complete_setting('ppo.')\n"
        "print([name for name in ('torch', 'numpy', 'pyarrow', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
