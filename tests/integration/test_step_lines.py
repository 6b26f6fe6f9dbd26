"""Progress where there is no terminal, and what a second Ctrl-C says."""

import os
import signal
import sys

import pytest

from stormsail.algorithms.trainer import CutShort, Trainer
from stormsail.cli.judging.steps_display import StepLines
from stormsail.cli.learning.train import kept_words
from stormsail.cli.main import main
from stormsail.core.clock import ManualClock
from training_lab import run_for, small


def test_a_step_has_a_line_and_then_one_every_five_seconds(capsys):
    clock = ManualClock(0)
    lines = StepLines(clock)
    lines.began("costs")
    for bar in range(0, 12_000, 1_000):  # a second each
        lines.advanced(bar, 12_000, "bars")
        clock.advance(1.0)
    lines.began("stress")
    assert capsys.readouterr().err.splitlines() == [
        "costs",
        "costs: 5,000 of 12,000 bars",
        "costs: 10,000 of 12,000 bars",
        "stress",
    ]


def twice(_trainer):
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("updates", [0, 3, 5])
def test_a_second_interrupt_says_what_was_kept(tmp_path, monkeypatch, capsys, updates):
    config, out = small(), tmp_path / "run"
    (tmp_path / "tiny.toml").write_text(config.to_toml())
    if updates:
        run_for(config, out, updates)
    monkeypatch.setattr(Trainer, "_update", twice)
    words = ["stormsail", "train", str(tmp_path / "tiny.toml"), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 128 + signal.SIGINT
    best = " and its best agent so far" if updates == 5 else ""  # evaluated after the fourth
    kept = f"{out} keeps its checkpoint of {32 * updates} steps{best}, and the same command goes on"
    assert capsys.readouterr().err.endswith(f"stormsail: ended at once: {kept} from there.\n")


def test_what_else_is_kept_is_said_as_well(capsys):
    for error, line in (
        (KeyboardInterrupt(), "stormsail: ended at once: two runs are kept.\n"),
        (CutShort("one is not"), "stormsail: ended at once: one is not; two runs are kept.\n"),
    ):
        with pytest.raises(BaseException) as ended, kept_words("two runs are kept"):
            raise error
        assert ended.value.exit_code == 130
        assert capsys.readouterr().err == line
