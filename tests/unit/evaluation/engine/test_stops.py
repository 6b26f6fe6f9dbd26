"""The simulator and the backtest keep accounts by one set of rules: same fills, same stops."""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch

import stormsail
from backtest_lab import plain
from simulator_lab import market, play, settings, steady
from stormsail.evaluation.engine.run import ReplayRequest, replay, run_batch

PACKAGE = Path(stormsail.__file__).parent
PERCENTS = tuple(range(5, 100, 5))


def falling(percent):
    """Return bars that rise by a tenth and then fall by a share of the peak, whatever rounds."""
    peak = 37.1 * 1.1
    low = peak * (100 - percent) / 100
    return market(steady([37.1, 37.1, peak, low, low, 0.9 * low, peak]))


def exact(**stops):
    """Return a free market without order steps in which nothing but its stops ends an episode."""
    return settings(episode_bars=5, **{f"stops.{name}": value for name, value in stops.items()})


def ends(bars, rules):
    """Return the step that ends an episode of the simulator in float64, and its equity."""
    rows = play(bars, rules, [1.0] * 5)[2]
    step = [row["terminated"] for row in rows].index(True)
    return step, rows[step]["equity"]


def stops(result):
    """Return the bar after which a backtest of one account decides no more, and its equity."""
    step = result.flags["stopped"][:, 0].tolist().index(True) - 1
    return step, result.bars["equity"][step, 0]


def config(rules):
    return plain(market=rules.model_dump(), filters={}, burn_in=0)


@pytest.mark.parametrize("percent", PERCENTS)
def test_a_stop_ends_simulator_and_backtest_at_the_same_bar_with_the_same_equity(percent):
    bars, rules = falling(percent), exact(drawdown=percent / 100, equity_floor=0.001)
    simulated = ends(bars, rules)
    assert simulated[0] == 2, "the fall by exactly the stop is the third bar"
    assert stops(replay(torch.ones(7, 1), bars, config(rules))) == simulated


@pytest.mark.parametrize(("low", "step"), [(16.0, 1), (16.0 + 2.0**-40, 2)])
def test_equity_at_the_floor_ends_both_and_equity_above_it_neither(low, step):
    bars = market(steady([64.0, 64.0, low, 8.0, 8.0, 8.0, 8.0]))
    rules = exact(equity_floor=0.25)
    simulated = ends(bars, rules)
    assert simulated[0] == step
    assert stops(replay(torch.ones(7, 1), bars, config(rules))) == simulated


def test_scenarios_of_one_batch_have_stops_of_their_own():
    rules = [exact(drawdown=percent / 100, equity_floor=0.001) for percent in PERCENTS]
    rules += [exact(equity_floor=0.001), exact(equity_floor=0.5)]
    bars = falling(60)
    results = run_batch([ReplayRequest(torch.ones(7, 1), bars, config(own)) for own in rules])
    for own, (result,) in zip(rules, results, strict=True):
        rows = play(bars, own, [1.0] * 5)[2]
        ended = np.array([row["terminated"] for row in rows])
        if not ended.any():
            assert not result.flags["stopped"].any()
        else:
            assert stops(result) == ends(bars, own)
    assert 0 < sum(result.flags["stopped"].any() for (result,) in results) < len(results)


def files(text):
    """Return the parsed files of the package that hold a text, by name."""
    sources = {path: path.read_text() for path in PACKAGE.rglob("*.py")}
    return {
        path.relative_to(PACKAGE).as_posix(): ast.walk(ast.parse(source))
        for path, source in sources.items()
        if text in source
    }


@pytest.mark.parametrize(
    ("name", "users"),
    [
        (
            "open_accounts",
            {
                "market/simulator/simulator.py",
                "evaluation/engine/scenario.py",
                "execution/decisions/path.py",
            },
        ),
        (
            "apply_fill",
            {
                "market/simulator/simulator.py",
                "evaluation/engine/loop.py",
                "execution/decisions/ledger.py",
            },
        ),
        (
            "stop_hit",
            {
                "market/simulator/simulator.py",
                "evaluation/engine/loop.py",
                "execution/decisions/closing.py",
            },
        ),
    ],
)
def test_the_transition_of_an_account_stands_in_one_file(name, users):
    assert users == {
        path
        for path, nodes in files(name).items()
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
    }


def test_no_other_file_reads_the_stops_of_a_market():
    readers = {
        path
        for path, nodes in files(".stops").items()
        for node in nodes
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "stops"
    }
    # the ledgers of the cross-check are written a second time, on purpose
    own = {path for path in readers if not path.startswith("evaluation/crosscheck/")}
    assert own == {"market/simulator/account.py", "market/simulator/config.py"}
