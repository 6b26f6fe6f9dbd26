"""What the default features say about bars whose answer is known."""

import math

import numpy as np
import pyarrow as pa
import pytest
import torch

from stormsail.core.errors import RangeError
from stormsail.core.generators import Generators
from stormsail.market.bars import Funding, from_columns
from stormsail.market.features import (
    BarTensors,
    FeatureSet,
    FeatureSpec,
    default_features,
    sample_bars,
)
from stormsail.market.features.catalogue import SETTLEMENT_MS
from stormsail.market.features.tensors import FUNDING
from stormsail.market.interval import Interval
from stormsail.market.panel import Panel

HOUR = Interval.parse("1h")


def value(name, bars, **parameters):
    spec = FeatureSpec(name=name, parameters=parameters)
    features = FeatureSet([spec], interval=bars.interval).compute(bars)
    assert bool(features.valid[-1, 0, 0])
    return features.values[-1, 0, 0].item()


def bars(interval=HOUR, ts=None, **columns):
    tensors = {
        name: torch.tensor(column, dtype=torch.float64).unsqueeze(-1)
        for name, column in columns.items()
    }
    rows = len(next(iter(tensors.values())))
    times = interval.milliseconds * torch.arange(rows) if ts is None else torch.tensor(ts)
    return BarTensors(times, interval, tensors)


def test_shares_of_the_close_by_hand():
    rising = [100.0 + row for row in range(1000)]
    ranges = {"high": [p + 1 for p in rising], "low": [p - 1 for p in rising]}
    # the true range is always 2; the lag of span n on a line is (n - 1) / 2: 12.5 - 5.5 = 7
    assert value("atr", bars(close=rising, **ranges)) == pytest.approx(2 / 1099)
    assert value("macd", bars(close=rising)) == pytest.approx(7 / 1099)
    assert value("macd_histogram", bars(close=rising)) == pytest.approx(0.0, abs=1e-10)
    assert value("rsi", bars(close=rising)) == 1.0


def test_positions_by_hand():
    low, high, close = [1.0, 2.0, 3.0], [5.0, 4.0, 4.0], [2.0, 3.0, 4.0]
    # the range of three bars is 1 to 5; 4 lies at three quarters of it
    assert value("channel_position", bars(low=low, high=high, close=close), window=3) == 0.5
    assert value("sma_distance", bars(close=close), window=3) == pytest.approx(math.log(4 / 3))
    flat = [7.0] * 3
    assert value("channel_position", bars(low=flat, high=flat, close=flat), window=3) == 0.0


def test_volume_by_hand():
    close, volume = [1.0, 2.0, 1.0, 3.0], [9.0, 1.0, 2.0, 5.0]
    assert value("on_balance", bars(close=close, volume=volume), window=3) == 0.5  # (1 - 2 + 5) / 8
    bought = [9.0, 1.0, 0.0, 5.0]
    columns = {"volume": volume, "taker_buy_base": bought}
    assert value("taker_share", bars(**columns), window=2) == pytest.approx(3 / 7)
    # share of the last bar 1, of the one two before 1
    assert value("taker_momentum", bars(**columns), window=1, horizon=1) == 2.0


def test_a_day_without_volume_says_nothing():
    quiet = {"close": [1.0] * 30, "volume": [0.0] * 30, "taker_buy_base": [0.0] * 30}
    for name in ("on_balance", "relative_volume", "taker_share"):
        assert value(name, bars(**quiet)) == 0.0


def test_the_mean_of_the_last_settlements_does_not_depend_on_the_hour():
    rates = [0.0] * 40
    for row, rate in ((4, 9.0), (12, 1.0), (20, 2.0), (28, 3.0), (36, 4.0)):
        rates[row] = rate
    for rows in range(29, 37):  # the newest settlement is that of row 28
        assert value("funding", bars(funding=rates[:rows])) == 3.0
        assert value("funding", bars(funding=rates[:rows]), settlements=3) == 2.0


@pytest.mark.parametrize(("text", "window"), [("1m", 480), ("1h", 8), ("4h", 2), ("1d", 1)])
def test_the_funding_window_is_eight_hours_or_a_bar(text, window):
    names = default_features(Interval.parse(text)).names
    assert f"funding(window={window}, settlements=1)" in names


@pytest.mark.parametrize("text", ["1m", "30m", "1h", "2h", "3h", "4h", "6h", "8h"])
def test_a_constant_rate_reads_as_itself_whatever_the_bar(text):
    interval = Interval.parse(text)
    chosen = default_features(interval).available((FUNDING,))
    rows = chosen.lookback + 60
    ends = interval.milliseconds * torch.arange(rows) // SETTLEMENT_MS
    settled = torch.cat([torch.ones(1), (ends[1:] - ends[:-1]).double()])
    features = chosen.compute(
        BarTensors(
            interval.milliseconds * torch.arange(rows),
            interval,
            {FUNDING: (1e-4 * settled.double()).unsqueeze(-1)},
        )
    )
    assert features.valid[chosen.lookback - 1 :].all()
    values = features.values[features.valid]
    torch.testing.assert_close(values, torch.full_like(values, 1e-4))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("3h", ["funding_day(window=8)"]),
        ("6h", ["funding_day(window=4)"]),
        ("5h", []),
        ("8h", ["funding(window=1, settlements=1)", "funding(window=1, settlements=3)"]),
    ],
)
def test_bars_that_do_not_divide_eight_hours_show_the_mean_of_a_day_or_nothing(text, names):
    chosen = default_features(Interval.parse(text)).names
    assert [name for name in chosen if name.startswith("funding")] == names


@pytest.mark.parametrize("text", ["3h", "6h"])
def test_the_shortest_window_of_a_panel_has_the_funding_of_its_history(text):
    interval = Interval.parse(text)
    times = interval.milliseconds * np.arange(60)
    flat = dict.fromkeys(("open", "high", "low", "close", "volume"), np.ones(60))
    when = SETTLEMENT_MS * np.arange(3, int(times[-1]) // SETTLEMENT_MS + 1)
    rates = pa.table({"ts": when, "funding_rate": 1e-4 * (1.0 + np.arange(len(when)))})
    source = Panel.from_bars(
        [from_columns("A/USDT", interval, {"ts": times, **flat})],
        {"A/USDT": Funding("A/USDT", rates)},
    )
    chosen = default_features(interval).available((FUNDING,))
    whole = chosen.compute(source)
    day = 86_400_000 // interval.milliseconds
    # the first rate settles after a day, and another day must pass
    assert int(whole.valid[:, 0, 0].nonzero()[0]) == 2 * day - 1
    for row in range(2 * day + day // 3 + 1, 60):
        start, stop = times[row - chosen.lookback + 1], times[row] + 1
        latest = chosen.latest(source.between(int(start), int(stop)))
        assert torch.equal(latest.values, whole.values[row])
        assert bool(latest.valid.all())


@pytest.mark.refusal
def test_funding_is_refused_for_bars_that_do_not_divide_its_time():
    five = bars(interval=Interval.parse("5h"), funding=[0.0] * 20)
    with pytest.raises(RangeError) as caught:
        value("funding", five)
    assert str(caught.value) == (
        "bars of feature `funding` must divide 8 hours, or be longer; found 5h. Use `funding_day` "
        "if the bars divide a day; leave funding out otherwise. [out-of-range]"
    )
    with pytest.raises(RangeError, match="must be 24 hours; found 8 bars of 5h"):
        value("funding_day", five)


def test_time_is_that_of_the_close_in_utc():
    # 2021-01-04 was a Monday; the bar that opens at 05:00 closes at a quarter of the day
    monday = 1_609_718_400_000
    bar = bars(close=[1.0], ts=[monday + 5 * 3_600_000])
    assert value("day_sin", bar) == pytest.approx(1.0)
    assert value("day_cos", bar) == pytest.approx(0.0, abs=1e-12)
    # Tuesday 18:00 is a quarter of the week
    other = bars(close=[1.0], ts=[monday + 41 * 3_600_000])
    assert value("week_sin", other) == pytest.approx(1.0)
    assert value("week_cos", other) == pytest.approx(0.0, abs=1e-12)


def test_no_price_level_enters():
    generator = Generators(1).stream("bars")
    history = sample_bars(rows=1300, symbols=2, interval=HOUR, generator=generator)
    prices = ("open", "high", "low", "close")
    moved = BarTensors(
        history.ts,
        HOUR,
        {
            name: column * 2.0**17 if name in prices else column
            for name, column in history.columns.items()
        },
    )
    chosen = default_features(HOUR)
    assert torch.equal(chosen.compute(moved).values, chosen.compute(history).values)


def test_every_default_column_varies_and_is_valid_after_its_lookback():
    generator = Generators(2).stream("bars")
    history = sample_bars(rows=2000, symbols=2, interval=HOUR, generator=generator)
    chosen = default_features(HOUR)
    features = chosen.compute(history)
    for index, bound in enumerate(chosen.bound):
        valid = features.valid[..., index]
        assert not valid[: bound.lookback - 1].any()
        # a bar without volume has no taker share of its own; everything else is always there
        assert valid[bound.lookback - 1 :].all(), bound.label
        assert features.values[..., index][valid].std() > 0, bound.label
        assert features.values[..., index].abs().max() < 100, bound.label
