"""A sample that every call may read and none changes, and a folder of its own for each call."""

import os
import shutil
from pathlib import Path

import pytest

import report_lab
from abuse_lab import make_bad
from population_lab import plan
from stormsail.market.interval import Interval
from stormsail.market.store import Store
from stormsail.market.synthetic import generate
from stormsail.market.synthetic.generate import write_world
from training_lab import run_all, small

START_MS, HOUR_MS = 1_609_459_200_000, 3_600_000
RULES = {"task__market__levels": (-1.0, 0.0, 1.0), "task__market__stops": {}}


@pytest.fixture(scope="session")
def sample(tmp_path_factory):
    """Return a folder with a store, two runs, a backtest, configurations, a CSV and bad things."""
    place = tmp_path_factory.mktemp("abuse") / "sample"
    place.mkdir()
    here = Path.cwd()
    os.chdir(place)
    try:
        world = generate("regime", symbols=1, bars=700, interval=Interval.parse("1h"), seed=3)
        write_world(Store(Path("data")), world)
        bars = {"task__data__store": "data", "validation__every_updates": 2}
        market = small("market", **bars, **RULES)
        Path("tiny.toml").write_text(market.to_toml())
        Path("cart.toml").write_text(small("cartpole", validation__every_updates=2).to_toml())
        Path("crowd.toml").write_text(plan().to_toml())
        run_all(market, Path("run"))
        run_all(small("cartpole", validation__every_updates=2), Path("cart"))
        report_lab.write_full_backtest(Path("judged"), rows=200, symbols=1)
        Path("bars.csv").write_text(csv_text())
        make_bad(place)
    finally:
        os.chdir(here)
    return place


def csv_text(rows: int = 60, *, head: str = "ts,open,high,low,close,volume") -> str:
    lines = [f"{START_MS + row * HOUR_MS},100,101,99,100.5,10" for row in range(rows)]
    return "\n".join([head, *lines]) + "\n"


@pytest.fixture
def place(sample, tmp_path):
    """Return a folder that shows the sample through links; what a call writes stays in it."""
    for entry in sample.iterdir():
        if entry.name == "judged":  # an artifact behind a link is refused
            shutil.copytree(entry, tmp_path / entry.name)
        elif not entry.name.startswith("trials"):
            (tmp_path / entry.name).symlink_to(entry)
    return tmp_path


@pytest.fixture
def own(sample, tmp_path):
    """Return a function that copies a part of the sample, to be damaged."""

    def copied(name: str) -> Path:
        target = tmp_path / name
        if target.is_symlink():
            target.unlink()
        source = sample / name
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True)
        else:
            shutil.copy(source, target)
        return target

    return copied
