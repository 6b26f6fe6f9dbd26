"""A shell completes verbs, configurations and settings, without loading what computes."""

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
import warnings

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
    assert [name for name, _ in complete_config("ot")] == ["other/", "other/inner.toml"]


def test_settings_come_with_what_they_do():
    (plain, words), (whole, same) = complete_setting("ppo.total_s")
    assert (plain, whole) == ("ppo.total_steps=", "ppo.total_steps=1000000")
    assert words == same == complete_setting("ppo.total_")[0][1]
    assert all(words for _, words in complete_setting(""))
    assert complete_setting("population.population_s")
    assert complete_setting("ppo.clip_range")[0][0] == "ppo.clip_range="
    assert complete_setting("ppo.clip_range=")[1][0] == "ppo.clip_range=0.2"
    assert complete_setting("task.data.store")[1][0] == "task.data.store=VALUE"


SHELLS = {
    "bash": (["--norc", "--noprofile", "-i"], ""),
    "zsh": (["-f", "-i"], "autoload -Uz compinit; compinit -u -D; "),
    "fish": (["--no-config", "-i"], ""),
}
TYPED = "stormsail vali\town.t\t--judge test_sh\t0.2 --set ppo.total_s\t64 --plugin x.py --js\t-o\t"
WORDS_TYPED = (
    "[stormsail][validate][own.toml][--judge][test_share=0.2][--set][ppo.total_steps=64]"
    "[--plugin][x.py][--json-out]"
)


class Typist:
    """Types into a shell on a terminal of its own, and reads what it shows."""

    def __init__(self, command, cwd, environment):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads
            self.child, self.terminal = pty.fork()
        if self.child == 0:
            os.chdir(cwd)
            os.execvpe(command[0], command, environment)  # noqa: S606 - it is the shell
        self.shown = ""

    def wait_for(self, text, seconds=60.0):
        until = time.monotonic() + seconds
        while text not in self.shown:
            ready, _, _ = select.select([self.terminal], [], [], until - time.monotonic())
            assert ready, self.shown
            self.shown += os.read(self.terminal, 1 << 16).decode(errors="replace")

    def type(self, text):
        os.write(self.terminal, text.encode())

    def close(self):
        os.kill(self.child, signal.SIGKILL)
        os.waitpid(self.child, 0)
        os.close(self.terminal)


@pytest.mark.parametrize("shell", SHELLS)
def test_keys_in_a_real_shell_complete_a_whole_line(shell, tmp_path):
    place = shutil.which(shell)
    if place is None:
        pytest.skip(f"there is no {shell} here")
    options, setup = SHELLS[shell]
    program = tmp_path / "bin" / "stormsail"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom stormsail.__main__ import main\nmain()\n")
    program.chmod(0o755)
    (tmp_path / "own.toml").touch()
    script = (
        CliRunner()
        .invoke(app, [], env={"_STORMSAIL_COMPLETE": f"source_{shell}"}, prog_name="stormsail")
        .output
    )
    (tmp_path / "script").write_text(script)
    environment = {
        **os.environ,
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "HOME": str(tmp_path),
        "TERM": "xterm",
        "EDITOR": "emacs",
        "COLUMNS": "500",
    }
    typist = Typist([place, *options], tmp_path, environment)
    try:
        typist.type(f"{setup}source ./script; printf '<%s>' loaded\n")
        typist.wait_for("<loaded>")
        # to the start of the line, so that its words are printed instead of the command run
        typist.type(f"{TYPED}\x01printf '[%s]' \n")
        typist.wait_for(WORDS_TYPED)
    finally:
        typist.close()


def test_completing_loads_nothing_that_computes():
    code = (
        "import sys\n"
        "from stormsail.cli.completion import complete_config, complete_setting\n"
        "assert complete_config('q') and complete_setting('ppo.')\n"
        "print([name for name in ('torch', 'numpy', 'pyarrow', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
