"""Each table of the command line at 80 and 60 columns, with sample data: nothing is cut."""

import io
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import rich.table
from rich.cells import cell_len
from rich.console import Console
from typer.testing import CliRunner

import stormsail.cli
from stormsail.bench.learner.bounds import Ceilings, Work
from stormsail.bench.learner.train import PARTS, UPKEEP
from stormsail.bench.learner.train import Row as SpeedRow
from stormsail.bench.learner.twins import Held
from stormsail.bench.market.features import Total
from stormsail.bench.market.wicks import Row as Wicks
from stormsail.bench.optimizers import shrinkage
from stormsail.bench.optimizers.continual_problem import KINDS
from stormsail.bench.promotions import Rate
from stormsail.bench.robust.robust import Summary as Robust
from stormsail.bench.timing import Row as Compared
from stormsail.cli.bench import learner, market, optimizers, risk
from stormsail.cli.data import check_features
from stormsail.cli.judging import attack, backtest, compare, performance, validate_display
from stormsail.cli.learning import population as learning_population
from stormsail.cli.main import app
from stormsail.cli.tables import Table

bets, capping, limits, population, robust, vgs = (
    import_module(f"stormsail.cli.bench.{name}")  # the package has functions of these names
    for name in ("bets", "capping", "limits", "population", "robust", "vgs")
)

NAME = "cartpole-masked-memo"
"""A name as long as the longest that is never broken."""


class Sample:
    """Stands for any row: each attribute that is not given is a figure with its interval."""

    values = (1.0, 2.0, 3.0, 4.0, 5.0)
    mean, standard_error, half = -1234.5, 12.5, 0.25

    def __init__(self, **given):
        self.__dict__.update(given)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Sample()

    def __len__(self):
        return 5

    def __getitem__(self, place):
        return Sample()

    def __iter__(self):
        return iter([Sample() for _ in range(7)])

    def __str__(self):
        return "-0.1234 ± 0.0123"

    def __format__(self, form):
        return format(-1234.5678 if form[-1:] not in ("d", "") else 12, form) if form else str(self)

    def __rmul__(self, other):
        return -12.345

    def __add__(self, other):
        return -12.345

    __radd__ = __add__

    def __rtruediv__(self, other):
        return 0.5


def named(**given):
    """Return a row whose words are names."""
    words = ("world", "case", "state", "task", "name", "variant", "market", "way", "kind")
    return Sample(**{**dict.fromkeys(words, NAME), **given})


ROWS = [named(), named()]
SPEEDS = [
    SpeedRow(
        256,
        NAME,
        (1e5, 2e5),
        milliseconds=dict.fromkeys(PARTS, 1234.5),
        environments=16_384,
        processor_rates=(1e5, 2e5),
        peak_mib=12_345.0,
        upkeep=dict.fromkeys((*UPKEEP, "update"), 12.5),
        work=dict.fromkeys(("rollout", "epochs"), Work(1e12, 1e9)),
    ),
    SpeedRow(256, NAME, (1e4, 2e4), environments=16_384),
]
FIGURE = SimpleNamespace(value=-1.23456, low=-1.5, high=2.5)
POINT = SimpleNamespace(
    attack="learned", epsilon=0.125, changed=0.5, mean=FIGURE, cvar=FIGURE, mean_change=FIGURE
)
TEXT = "the probability that the best of 12 trials is no better than chance is 0.93, needed 0.95"


def states():
    tail = Sample(event=0.05, true=-0.123456, true_mean=0.0123)
    return [named(tails=[tail] * 5, within=4, resolution=12.25, bound=5.0)]


def frontier():
    key = Sample(kind="infeasible", setting="limit -0.125", gamma=0.999)
    counts = {"held_by_interval": 3, "kept_by_estimate": 4, "proven_kept": 0, "seeds": 5}
    return [Sample(key=key, exposure=0.25, multiplier=12.5, largest_multiplier=99.0, **counts)]


@cache
def shrinkage_rows():
    return shrinkage.rows(replace(shrinkage.Plan.quick(), seeds=1))


def continual():
    choice = Sample(setting=Sample(knob=0.01, rate=0.001), at_edge=True)
    variant = Sample(name="AdaptiveUPGD + VGS", method=Sample(knob="sigma"))
    rows = [Sample(kind=kind, choice=choice, variant=variant) for kind in KINDS]
    less = Sample(kind="input", variant="AdaptiveUPGD + VGS", other="AdaptiveUPGD")
    return Sample(rows=rows, differences=[less])


class Leak:
    kind = "future"

    def __init__(self, label):
        self.label = label

    def __str__(self):
        return f"{self.label}: row 40 changes by 0.0123 where bars after it do"


def feature_report():
    bound = SimpleNamespace(label="realised_volatility(window=168)", lookback=168)
    report = Sample(
        comparisons=1000,
        roundings=(),
        passed=False,
        conditions={bound.label: TEXT},
        of=lambda label: [Leak(label)],
    )
    return SimpleNamespace(bound=[bound]), report, None


def standing():
    outcome = SimpleNamespace(member=0, updates=100, fitness=-12.345)
    decision = SimpleNamespace(member=0, reason="copies member 03 and perturbs learning rate")
    round_ = SimpleNamespace(number=0, outcomes=[outcome], fitness=[-1.5], decisions=[decision])
    values = [{"ppo.learning_rate": 1e-3, "optimizer.noise_scale": "rms_update"}]
    return SimpleNamespace(round=round_, rounds=12, values=values, seconds=[123.4])


def result():
    metrics = {name: SimpleNamespace(value=-12345.678, enough=True) for name in backtest.SHOWN}
    return SimpleNamespace(
        returns=range(123_456),
        trades=range(1_234),
        metrics=SimpleNamespace(statements=lambda: metrics),
    )


def printed(function, *arguments, **options):
    """Return a table of a function that prints it by itself."""
    return lambda console: function(*[console, *arguments], **options)


def returned(table):
    return lambda console: console.print(table())


CASES = {
    "bets": returned(lambda: bets._table("a title", ROWS)),
    "capping": returned(
        lambda: capping._table([Sample(kind=NAME, seed=1, kept=True, limit=-1.25)] * 2)
    ),
    "vgs": returned(lambda: vgs._table([named(gain=None, over_rate=None)])),
    "limits": returned(lambda: limits._table("week, limit -0.08", Sample(symbols="ab"), ROWS)),
    "learn": returned(
        lambda: learner._learn_table(
            [named(passed=True, bar="mean >= 475", policies=["sampled"], learner="stormsail")],
            title="5 seeds",
        )
    ),
    "gain": returned(lambda: learner._gain_table(ROWS)),
    "best": returned(lambda: learner._best_table([named(score=Sample(), gain=Sample())])),
    "train": lambda console: console.print(
        *learner._train_tables(SPEEDS, Ceilings(1.2e11, 1e10), title="CartPole-v1, 128 rows")
    ),
    "guards": returned(lambda: learner._guard_table([Held(NAME, 0.34, 0.75)])),
    "drift": returned(
        lambda: learner._drift_table([named(name="frozen"), named(name="moving")], Sample())
    ),
    "tails": returned(lambda: risk._tails_table("CVaR at 5 %", ROWS)),
    "states": returned(lambda: risk._states_table("CVaR at 5 %", states())),
    "frontier": returned(lambda: risk._frontier_table(frontier())),
    "robust": returned(lambda: robust._table([Robust(NAME, *[Sample()] * 6)], 5)),
    "bench population": returned(lambda: population._table(Sample(gain=Sample()))),
    "simulator": returned(
        lambda: market._speed_table(
            SimpleNamespace(speeds=[named(batch=16384, difference=None)]), title="float32"
        )
    ),
    "markets": printed(
        learner._print_markets,
        [named(seed=1, informed=Sample(), ledger_difference=1e-9, agent=Sample())],
    ),
    "continual": printed(optimizers._print_continual, continual(), Sample()),
    "shrinkage": lambda console: optimizers._print_shrinkage(console, shrinkage_rows()),
    "attack": printed(attack._print_table, [POINT, POINT], alpha=0.05, columns=12),
    "performance": printed(
        performance._show,
        "benchmarks",
        ["benchmark", "alpha", "alpha_low", "alpha_high", "beta", "information_ratio",
         "tracking_error", "correlation", "up_capture", "down_capture"],
        [["buy and hold", *[-0.123456] * 9]],
    ),
    "compare": printed(
        compare._table,
        "settings that differ",
        ("", "results/first", "results/second", "results/third"),
        [("task.market.costs.taker_fee", "0.0005", None, "[0.0, 0.25, 0.5, 0.75, 1.0]")],
    ),
    "validate": lambda _: validate_display._table(
        ("rule", "holds", "why"), [("deflated Sharpe ratio", "unknown", TEXT)]
    ),
    "backtest": lambda _: backtest._show({"agent": result(), "orders 1 bar late": result()}),
    "population": lambda _: learning_population._show(standing()),
    "check features": lambda _: check_features._print(*feature_report()),
}  # fmt: skip


UNNAMED = {
    *("frontier", "drift", "bench population", "continual", "shrinkage", "attack", "performance"),
    *("compare", "validate", "backtest", "population", "check features"),
}
"""Tables whose rows have names of their own."""


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("name", CASES)
def test_a_table_fits_and_nothing_in_it_is_cut(name, width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    CASES[name](Console())
    text = capsys.readouterr().out
    assert "│" in text or "─" in text
    assert "…" not in text
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert (NAME in text) == (name not in UNNAMED)


def sample_rates():
    fields = dict.fromkeys(Rate.__dataclass_fields__, 1)
    return [Rate(**{**fields, "process": "clustered", "sharpe": 1.25, "planned": True})]


@dataclass
class Timed:
    way: str
    microseconds: float
    ratio: float
    warmup_seconds: float


TIMED = Timed("AdaptiveUPGD + VGS, one pipeline, captured", 1234.5, 1.25, 12.5)

INLINE = {
    ("bench", "functional", "--steps", "2", "--environments", "2", "--quantiles", "2"): {},
    ("bench", "promotions", "--runs", "1"): {
        "stormsail.bench.promotions.simulate_all": [],
        "stormsail.bench.promotions.rates": sample_rates(),
        "stormsail.bench.promotions.verdicts": [],
    },
    ("bench", "optim", "--no-compile"): {
        "stormsail.bench.optimizers.optim.step_times": [TIMED],
    },
    ("bench", "wicks", "data"): {
        "stormsail.bench.market.wicks.rows": [
            Wicks(**{**dict.fromkeys(Wicks.__dataclass_fields__, 123_456), "symbol": NAME})
        ],
        "stormsail.bench.market.wicks.verdicts": [],
    },
    ("bench", "features"): {
        "stormsail.bench.market.features.history": None,
        "stormsail.bench.market.features.rows": [
            ("pandas", Compared("realised_volatility(window=168)", 12.0, 1234.0, 1e-12))
        ],
        "stormsail.bench.market.features.total": Total(
            **{**dict.fromkeys(Total.__dataclass_fields__, 12.5), "missing": ()}
        ),
    },
}
"""Verbs that make a table in their own body, and what stands for the measurements."""


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("words", INLINE, ids=lambda words: words[1])
def test_a_table_that_a_verb_makes_itself_fits_too(words, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    for name, value in INLINE[words].items():
        monkeypatch.setattr(name, Mock(return_value=value))
    text = CliRunner().invoke(app, list(words)).output
    lines = [line for line in text.splitlines() if line[:1] in tuple("┏┡│└")]
    assert len(lines) >= 4
    assert "…" not in text
    assert max(cell_len(line) for line in lines) <= width


def test_every_table_of_the_command_line_is_one_that_fits():
    folder = Path(stormsail.cli.__file__).parent
    own = {file.name for file in folder.rglob("*.py") if "rich.table" in file.read_text()}
    makers = {file.stem for file in folder.rglob("*.py") if " Table(" in file.read_text()}
    assert not own
    assert len(makers) > 15


def shown(table, width):
    console = Console(width=width, file=io.StringIO())
    console.print(table)
    return console.file.getvalue().splitlines()


def wide(keys=1, columns=8):
    table = Table("name", *(f"column {place}" for place in range(1, columns)), keys=keys, title="T")
    for row in range(2):
        table.add_row(f"row-{row}", *(f"cell-{row}-{place}" for place in range(1, columns)))
    return table


def test_a_table_that_fits_is_as_rich_draws_it():
    plain = rich.table.Table("name", "value", title="T")
    plain.add_row("a", "1")
    own = Table("name", "value", title="T")
    own.add_row("a", "1")
    assert shown(own, 80) == shown(plain, 80)


@pytest.mark.parametrize("keys", [1, 2])
def test_each_part_repeats_the_columns_that_name_the_row(keys):
    text = shown(wide(keys), 60)
    parts = [line for line in text if line.startswith("│ row-0")]
    assert len(parts) == 2
    assert all(
        ("cell-0-1 " in line) == (keys == 2 or place == 0) for place, line in enumerate(parts)
    )
    for place in range(keys, 8):
        assert sum(f"cell-0-{place} " in line for line in parts) == 1
    assert sum(line.strip() == "T" for line in text) == 1


def test_long_text_wraps_between_words_before_a_table_is_broken():
    table = Table("rule", "why")
    table.add_row("deflated Sharpe", TEXT)
    text = shown(table, 60)
    assert sum(line.startswith("┏") for line in text) == 1
    words = " ".join(line.split("│")[2].strip() for line in text if line.startswith("│"))
    assert words == TEXT


def test_a_word_wider_than_the_terminal_is_broken_and_complete():
    table = Table("name", "hash")
    table.add_row("a", "f" * 70)
    text = shown(table, 40)
    assert "".join(text).count("f") == 70
    assert max(map(len, text)) <= 40
