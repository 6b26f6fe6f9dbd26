"""How commands end: statuses, one line in words, and the report of what nobody foresaw."""

import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from stormsail.algorithms.trainer import Progress
from stormsail.cli import endings
from stormsail.cli.learning import train as train_command
from stormsail.cli.main import app
from stormsail.core import steps
from stormsail.core.clock import ManualClock
from stormsail.core.errors import ConfigError, InvariantError
from stormsail.core.files.outputs import check_output, write_output
from stormsail.core.memory import available_memory, check_memory
from training_lab import run_all, small


@pytest.fixture
def ended(tmp_path, monkeypatch, capsys):
    """Return a function that runs a command which raises, and returns status and complaint."""
    monkeypatch.chdir(tmp_path)

    def run(error: BaseException) -> tuple[int, str]:
        verbs = typer.Typer()

        @verbs.command()
        def work() -> None:
            steps.began("measuring")
            raise error

        @verbs.command()
        def rest() -> None:
            pass

        status = endings.run_command(verbs, ["work"])
        return status, capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ConfigError("config-value", wrong="a", found="b\n c", remedy="D."), 2, "config-value"),
        (MemoryError(), 2, "out-of-memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 2, "out-of-memory"),
        (RuntimeError("could not execute a primitive"), 2, "out-of-memory"),
        (ImportError("libarrow.so: failed to map segment from shared object"), 2, "out-of-memory"),
        (ImportError("cannot import name 'x'"), 70, "unexpected"),
        (PermissionError(13, "Permission denied", "place/x"), 2, "file-unusable"),
        (RecursionError("deep"), 70, "unexpected"),
        (KeyError("x"), 70, "unexpected"),
        (InvariantError("ledger-identity", wrong="a", found="b", remedy="C."), 70, "unexpected"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_whatever_stops_a_command_is_said_in_one_line(ended, error, status, code):
    found, complaint = ended(error)
    assert found == status
    assert complaint.startswith("stormsail: ")
    assert complaint.endswith(f"[{code}]\n")
    assert complaint.count("\n") == 1


def test_an_interrupt_is_130_and_an_exit_its_own_status(ended):
    assert ended(KeyboardInterrupt())[0] == 130
    assert ended(typer.Abort())[0] == 130
    assert ended(typer.Exit(1)) == (1, "")
    assert ended(SystemExit(3)) == (3, "")


def test_a_report_names_versions_verb_and_step_and_no_secret(ended, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("EXCHANGE_ACCESS", "s3cr3t-value")
    secret = f"/home/somebody/keys.txt s3cr3t-value password=hunter2 {tmp_path}/data"
    status, complaint = ended(ValueError(secret))
    (report,) = tmp_path.glob("stormsail-error-*.txt")
    text = report.read_text()
    assert status == 70
    assert str(report) in complaint
    assert "ValueError" in complaint
    assert "measuring" in complaint
    for hidden in ("somebody", "s3cr3t", "hunter2", str(tmp_path), "raise error"):
        assert hidden not in text
    assert "verb: work" in text
    assert "step: measuring" in text
    assert f"Python {sys.version.split()[0]}" in text
    assert "ValueError: <path> <$EXCHANGE_ACCESS> password=<secret> <path>" in text
    assert report.stat().st_mode & 0o077 == 0


def test_arguments_that_are_no_text_are_refused(capsys):
    assert endings.run_command(app, ["train", "--out", "\udcff"]) == 2
    assert capsys.readouterr().err.endswith("[usage]\n")


def test_an_output_is_a_regular_file_and_replaced_only_when_told(tmp_path):
    file, link = tmp_path / "page", tmp_path / "link"
    assert write_output(file, "one", replace=False) == 3
    link.symlink_to("page")
    for path in (file, link):
        with pytest.raises(Exception, match=r"must not exist yet.*\[output-exists\]"):
            write_output(path, "two", replace=False)
    write_output(link, "three", replace=True)
    assert (file.read_text(), link.is_symlink()) == ("three", True)
    for other in (tmp_path, Path("/dev/null")):
        with pytest.raises(Exception, match=r"must be a regular file.*\[output-kind\]"):
            check_output(other, replace=True)


def test_memory_is_asked_before_it_is_taken():
    check_memory(0, what="nothing", found="0", remedy="None.")
    with pytest.raises(ConfigError, match=r"must fit into the .* GB of memory that are free"):
        check_memory(available_memory() * 2, what="all", found="much", remedy="Lower it.")


def progress(steps: int, total: int = 60) -> Progress:
    return Progress(1, steps, total, {}, (), None)


def test_progress_has_no_pace_before_there_is_one(capsys):
    clock = ManualClock(0)
    shown = train_command._lines(clock)
    clock.advance(6)
    shown(progress(10))
    clock.advance(10)
    shown(progress(20))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "10 of 60 steps"
    assert lines[1] == "20 of 60 steps, 1 steps/s, 40 s left"


def test_progress_counts_whole_updates_and_resume_says_what_is_left(tmp_path):
    seen = []
    config = small("cartpole", ppo__total_steps=100, validation__every_updates=2)
    from stormsail.algorithms.trainer import train

    train(config, out=tmp_path / "run", tensorboard=False, on_progress=seen.append)
    assert (seen[-1].steps, seen[-1].total_steps) == (128, 128)
    for file in (tmp_path / "run" / "best").iterdir():
        file.unlink()
    (tmp_path / "run" / "best").rmdir()
    result = CliRunner().invoke(app, ["resume", str(tmp_path / "run")])
    assert result.exit_code == 0
    assert "which was removed" in result.output
    assert f"best agent: {tmp_path / 'run' / 'best'}\n" not in result.output


def test_a_healthy_run_names_its_best_agent(tmp_path):
    run_all(small("cartpole", validation__every_updates=2), tmp_path / "run")
    result = CliRunner().invoke(app, ["resume", str(tmp_path / "run")])
    assert f"best agent: {tmp_path / 'run' / 'best'}\n" in result.output
