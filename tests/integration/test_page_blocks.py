"""Python on the pages: every block of every page runs, in order, as a reader would type it.

The blocks of a page share their names and a folder of their own, which holds what the pages speak
of: `data`, `configs`, `runs/quickstart`, `results`. Configurations have the names of the shipped
ones and are smaller. A block that needs a GPU, a network or minutes says so in the line above it.
"""

import contextlib
import io
import re
import shutil
from pathlib import Path

import pytest

from population_lab import plan
from stormsail.algorithms import TrainConfig, train
from stormsail.core import plugins
from stormsail.evaluation import BacktestConfig, backtest, write_backtest
from stormsail.market import Interval, Store, load_panel
from stormsail.market.gymnasium import MarketVectorEnv
from stormsail.market.synthetic import generate, write_world
from stormsail.modules import Agent
from training_lab import MARKET, SMALL

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"(?:^\*Not run by the tests: (?P<reason>.+)\*\n\n)?^```python\n(?P<code>.*?)^```", re.M | re.S
)
UNRUN = {"docs/optimizers.md": ["it needs a GPU."]}
"""Every block that is not run, with the reason that its page gives."""
SHORTER = {
    "README.md": ("100_000", "4_096"),
    "docs/gymnasium.md": ("100_000", "4_096"),
    "docs/search.md": ("budget=40", "budget=4"),
}
"""Steps and trials of a page that would take a minute; what they learn has tests of its own."""
PAGES = [
    str(page.relative_to(ROOT))
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
    if "```python" in page.read_text()
]
TINY = {
    **SMALL,
    "task.data.world_bars": 1200,
    "task.data.world_symbols": 1,
    "task.market.episode_bars": 16,
    "task.market.features": MARKET["task.market.features"],
    "ppo.total_steps": 64,
    "checkpoint.every_updates": 1,
    "validation.every_updates": 1,
}


def blocks(page):
    """Return (reason not to run it, code, line) of every Python block of a page."""
    text = (ROOT / page).read_text()
    found = [
        (m["reason"], m["code"], text[: m.start("code")].count("\n")) for m in BLOCK.finditer(text)
    ]
    assert len(found) == text.count("```python"), f"{page}: a block that no pattern reads"
    return found


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Make the folder that the pages speak of, once."""
    root = tmp_path_factory.mktemp("pages")
    hour = Interval.parse("1h")
    write_world(
        Store(root / "data"), generate("regime", symbols=2, bars=2600, interval=hour, seed=7)
    )
    (root / "configs").mkdir()
    quick = TrainConfig.load(ROOT / "configs" / "quickstart.toml").replace(**TINY)
    (root / "configs" / "quickstart.toml").write_text(quick.to_toml())
    (root / "configs" / "full.toml").write_text(plan(population_size=2).to_toml())
    train(quick, out=root / "runs" / "quickstart", tensorboard=False)
    panel = load_panel(Store(root / "data"), ["AAA/USDT:USDT"], hour)
    short = panel.between(int(panel.ts[0]), int(panel.ts[1000]))
    result = backtest(Agent.load(root / "runs" / "quickstart" / "best"), short, BacktestConfig())
    write_backtest(root / "results", result)
    return root


def lay_out(page, prepared, folder):
    """Copy what the pages speak of; one of them compares two results."""
    shutil.copytree(prepared, folder, dirs_exist_ok=True)
    if "results/a" in (ROOT / page).read_text():
        (folder / "results").rename(folder / "one")
        for name in ("a", "b"):
            shutil.copytree(folder / "one", folder / "results" / name)


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning"
)
@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_runs(page, prepared, tmp_path, monkeypatch):
    lay_out(page, prepared, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    names = {"__name__": "__page__"}
    with plugins.scope():  # two pages may give a feature the same name
        for reason, code, line in blocks(page):
            if reason is None:
                told = io.StringIO()
                text = "\n" * line + code.replace(*SHORTER.get(page, ("", "")))
                with contextlib.redirect_stdout(told):
                    exec(compile(text, page, "exec"), names)  # noqa: S102 - the page's own lines
                assert told.getvalue() or "print(" not in code, f"{page}:{line} prints nothing"
        CHECKS.get(page, lambda _names: None)(names)


def test_blocks_that_are_not_run_are_counted_and_say_why():
    reasons = {page: [reason for reason, *_ in blocks(page) if reason] for page in PAGES}
    assert {page: found for page, found in reasons.items() if found} == UNRUN


def _learned(names):
    assert names["model"].num_timesteps == 4_096
    assert isinstance(names["model"].env.market, MarketVectorEnv)
    assert names["held_out"].unwrapped.scaler is names["env"].unwrapped.scaler


def _stepped(names):
    assert bool(names["report"].stepped)


def _trained_and_stepped(names):
    _stepped(names)
    assert (names["run"].status, names["run"].steps) == ("finished", 4_096)


def _searched(names):
    assert len(names["done"].counted) == 4


CHECKS = {
    "README.md": _trained_and_stepped,
    "docs/gymnasium.md": _learned,
    "docs/optimizers.md": _stepped,
    "docs/search.md": _searched,
}
"""What must hold of the names of a page after its last block."""
