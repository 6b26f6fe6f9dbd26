"""What the front door returns shows itself in one line, and as a table in a notebook."""

import pytest

import stormsail as ss
from page_reader import PageReader
from stormsail.core.notebook import html_table, several, short_repr


def test_a_table_escapes_what_it_is_given():
    page = PageReader(html_table("<b>", {"<i>": "a & <script>"}))
    assert page.texts == ["<b>", "<i>", "a & <script>"]
    assert "script" not in page.tags
    assert short_repr("Thing", {"one": 1, "two": "x"}) == "Thing(one: 1, two: x)"
    assert several(("a", "b")) == "a, b"
    assert several(tuple("abcdef")) == "a, b, c, d and 2 more"


@pytest.fixture(scope="module")
def shown(market, cartpole):
    panel = ss.load_bars(market / "store")
    traded = ss.backtest(market / "runs" / "run", panel)
    table = ss.Bars("BTC/USDT", panel.interval, one_symbol(panel))
    return {"run": cartpole, "agent": cartpole.best_agent, "panel": panel, "bars": table,
            "backtest": traded}  # fmt: skip


def one_symbol(panel):
    import pyarrow as pa

    names = ("open", "high", "low", "close", "volume")
    columns = {name: getattr(panel, name)[:, 0].numpy() for name in names}
    return pa.table({"ts": panel.ts.numpy(), **columns})


def test_each_shows_what_one_asks_first(shown, cartpole, market):
    panel, traded = shown["panel"], shown["backtest"]
    first, last = "first: 2021-01-04T00:00:00Z", "last: 2021-02-02T03:00:00Z"
    assert repr(shown["run"]) == (
        f"Run(folder: {cartpole.folder}, task: CartPoleNoVel-v1, status: finished, updates: 6, "
        f"steps: 192, best score: {cartpole.best_score:.6g} "
        f"({cartpole.best_interval[0]:.4g} to {cartpole.best_interval[1]:.4g}, 3 episodes))"
    )
    assert repr(shown["agent"]) == (
        "Agent(trained for: CartPoleNoVel-v1, observation: 4 columns, actions: "
        "DiscreteActions(count=2), memory: lstm of 5, critic: quantile, policy: "
        f"{cartpole.best_policy}, weights: 482)"
    )
    symbols = ", ".join(panel.symbols)
    assert repr(panel) == (
        f"Panel(symbols: {symbols}, interval: 1h, bars: 700, {first}, {last}, missing: 0)"
    )
    assert repr(shown["bars"]) == (
        f"Bars(symbol: BTC/USDT, interval: 1h, bars: 700, {first}, {last}, "
        "columns: ts open high low close volume)"
    )
    words = repr(traded)
    assert words.startswith(f"Backtest(symbols: {symbols}, interval: 1h, bars: ")
    assert f"return: {traded.total_return:+.2%}" in words
    assert f"trades: {len(traded.trades)})" in words


@pytest.mark.parametrize("name", ["run", "agent", "panel", "bars", "backtest"])
def test_a_notebook_shows_the_same_as_a_table(shown, name):
    thing = shown[name]
    page = PageReader(thing._repr_html_())
    title, *cells = page.texts
    assert page.tags.count("tr") * 2 == len(cells)
    pairs = zip(cells[::2], cells[1::2], strict=True)
    assert f"{title}({', '.join(f'{one}: {value}' for one, value in pairs)})" == repr(thing)


def test_an_evaluation_leaves_out_what_was_not_measured(cartpole):
    result = cartpole.best_agent.evaluate("CartPole-v1", 2, policy="greedy")
    page = PageReader(result._repr_html_())
    assert "score" in page.texts
    assert "sampled_score" not in page.texts
    assert "sharpe_per_bar" not in page.texts


def test_bars_without_a_row_show_themselves():
    from stormsail.market import Interval
    from stormsail.market.bars import from_columns

    names = ("ts", "open", "high", "low", "close", "volume")
    empty = from_columns("BTC/USDT", Interval.parse("1h"), {name: [] for name in names})
    assert repr(empty).startswith("Bars(symbol: BTC/USDT, interval: 1h, bars: 0, columns: ts")
