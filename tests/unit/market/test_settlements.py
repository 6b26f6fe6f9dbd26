"""Funding that is not known: counted in numbers, refused below 99 %, assumed by decision only."""

from dataclasses import replace
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
import torch

from simulator_lab import SYMBOL, market, play, settings, simulator, steady
from stormsail.core.errors import ConfigError, DataError
from stormsail.evaluation.crosscheck.reference import reference_bars
from stormsail.evaluation.crosscheck.reference import replay as refer
from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.evaluation.engine.files import summary_of
from stormsail.evaluation.engine.run import replay
from stormsail.market import Interval, Panel, Store, load_panel
from stormsail.market.bars import Funding, Mark, from_columns
from stormsail.market.checks import check_file
from stormsail.market.settlements import count_settlements, missing_settlements
from stormsail.market.simulator.config import MarketConfig
from stormsail.market.simulator.funding import check_funding, funding_coverage
from stormsail.market.synthetic import generate

H = 3_600_000
DAY = 24 * H
START = 1_609_718_400_000  # 2021-01-04 00:00 UTC
HOUR = Interval.parse("1h")
PERP = "BTC/USDT:USDT"


def bars(count: int, *, symbol: str = PERP, interval: Interval = HOUR, **columns):
    price = np.full(count, 100.0)
    ts = START + interval.milliseconds * np.arange(count)
    table = dict.fromkeys(("open", "high", "low", "close"), price)
    return from_columns(symbol, interval, {"ts": ts, **table, "volume": price, **columns})


def rates(hours, rate: float = 1e-4, *, symbol: str = PERP, late_ms: int = 0) -> Funding:
    ts = START + H * np.asarray(hours, dtype=np.int64) + late_ms
    return Funding(symbol, pa.table({"ts": ts, "funding_rate": np.full(len(ts), rate)}))


def hours(times) -> list[int]:
    return ((np.asarray(times) - START) // H).tolist()


# --- which settlements are missing


def test_without_any_rate_all_settlements_of_eight_hours_are_missing():
    """25 bars from 00:00: those at 08, 16 and 24; the first row's own comes before any position."""
    known, missing = count_settlements(bars(25), None)
    assert (len(known), hours(missing)) == (0, [8, 16, 24])


def test_a_hole_is_filled_with_settlements_as_often_as_the_rates_around_say():
    every_four = [*range(4, 48, 4), *range(72, 100, 4)]
    missing = missing_settlements(rates(every_four), (START, START + 99 * H))
    assert hours(missing) == [48, 52, 56, 60, 64, 68]


def test_a_perpetual_that_comes_to_settle_more_often_has_no_hole():
    changed = [*range(8, 400, 8), *range(400, 600, 4)]
    assert len(missing_settlements(rates(changed), (START, START + 599 * H))) == 0


def test_rates_that_begin_late_and_end_early_leave_both_ends_missing():
    missing = missing_settlements(rates([24, 32, 40], late_ms=7), (START, START + 60 * H))
    assert hours(missing) == [8, 16, 48, 56]


def test_rates_are_never_expected_less_often_than_every_eight_hours():
    """One in six: 5 of the 6 settlements of two days are missing each time."""
    missing = missing_settlements(rates(range(48, 1000, 48)), (START, START + 960 * H))
    assert len(missing) == 960 // 8 - 20


def test_spot_has_no_settlements_and_a_dead_tail_none_that_count():
    assert [len(times) for times in count_settlements(bars(50, symbol="BTC/USDT"), None)] == [0, 0]
    dead = bars(50, volume=[1.0] * 20 + [0.0] * 30)
    assert hours(count_settlements(dead, None)[1]) == [8, 16]


def test_a_panel_counts_by_row_and_a_late_stamp_belongs_to_its_hour():
    panel = Panel.from_bars([bars(30)], {PERP: rates([8, 24], late_ms=3)})
    assert panel.settlements[:, 0].nonzero().ravel().tolist() == [8, 16, 24]
    assert panel.rates_missing[:, 0].nonzero().ravel().tolist() == [16]
    assert funding_coverage(panel, (0, 30))[0] == (PERP, 3, 1)
    assert funding_coverage(panel, (0, 16))[0].share == 1.0
    daily = Panel.from_bars([bars(4, interval=Interval.parse("1d"))])
    assert daily.rates_missing[:, 0].tolist() == [0, 3, 3, 3]


def test_what_is_missing_is_part_of_the_digest_and_complete_rates_are_not():
    whole = Panel.from_bars([bars(30)], {PERP: rates([8, 16, 24])})
    zero = Panel.from_bars([bars(30)], {PERP: rates([8, 16, 24], 0.0)})
    none = Panel.from_bars([bars(30)], {PERP: rates([8, 24], 0.0)})
    assert len({whole.digest(), zero.digest(), none.digest()}) == 3
    assert whole.digest() == replace(whole, settlements=None, rates_missing=None).digest()


# --- what is refused


def panel_of(known: int, due: int = 200) -> Panel:
    """Return a panel with so many rates of the settlements, the missing ones at its end."""
    listed = list(range(8, 8 * (known + 1), 8))
    return Panel.from_bars([bars(8 * due + 1)], {PERP: rates(listed)})


def test_below_99_percent_is_refused_and_99_percent_is_not():
    rows = (0, 1601)
    check_funding(panel_of(198), MarketConfig(), rows)
    with pytest.raises(DataError) as caught:
        check_funding(panel_of(197), MarketConfig(), rows)
    assert caught.value.code == "data-funding"
    text = str(caught.value)
    assert "known for 99% of the settlements of each perpetual from 2021-01-04T00:00:00Z" in text
    assert "197 of 200 (98.5%) of BTC/USDT:USDT" in text
    assert "task.market.funding_missing" in text


def test_simulator_and_backtest_refuse_a_perpetual_without_rates_and_spot_goes_through():
    config = settings(episode_bars=20)
    perpetual = Panel.from_bars([bars(100)])
    with pytest.raises(DataError, match=r"0 of 12 \(0\.0%\) of BTC/USDT:USDT"):
        simulator(perpetual, config)
    weights = torch.ones(100, 1)
    with pytest.raises(DataError, match="data-funding"):
        replay(weights, perpetual, BacktestConfig(market=config))
    for decided in ("zero", 1e-4):
        simulator(perpetual, config.replace(funding_missing=decided))
    simulator(perpetual, config.replace(funding=False))
    spot = Panel.from_bars([bars(100, symbol="BTC/USDT")])
    bought = config.replace(weight_range=(0.0, 1.0), levels=(0.0, 1.0))
    simulator(spot, bought)
    replay(weights, spot, BacktestConfig(market=bought))


def test_only_the_span_that_is_used_counts():
    panel = panel_of(100)  # the second half has none
    config = BacktestConfig(market=settings())
    end = "2021-02-05T00:00:00Z"
    replay(torch.ones(1601, 1), panel, BacktestConfig(market=settings(), end=end))
    with pytest.raises(DataError, match="data-funding"):
        replay(torch.ones(1601, 1), panel, config)


def test_a_drawn_world_has_every_rate():
    for interval in ("15m", "1h", "1d"):
        world = generate("regime", symbols=2, bars=300, interval=Interval.parse(interval), seed=1)
        panel = Panel.from_bars(world.bars, world.funding)
        assert panel.settlements.sum() > 0
        assert panel.rates_missing.sum() == 0


@pytest.mark.refusal
def test_the_setting_is_two_words_or_a_rate():
    for wrong in ("none", 1.5, True):
        with pytest.raises(ConfigError):
            MarketConfig.from_mapping({"funding_missing": wrong})
    assert MarketConfig.from_mapping({"funding_missing": 0.0003}).funding_missing == 0.0003


# --- what is assumed


def missing_at(panel: Panel, *rows: int) -> Panel:
    missing = torch.zeros(panel.shape, dtype=torch.int64)
    missing[list(rows)] = 1
    return replace(panel, settlements=missing.clone(), rates_missing=missing)


def test_an_assumed_rate_is_paid_where_none_is_known():
    """50 units at 100 hold 5,000: 0.001 of it is 5; with 2 missing in one row it is 10."""
    panel = missing_at(market(steady([100.0] * 8), funding={2: 0.002}), 3, 5)
    panel.rates_missing[5] = 2
    config = settings(episode_bars=6, funding_missing=0.001)
    rows = play(panel, config, [0.5] + [torch.nan] * 5)[2]
    assert [row["funding"] for row in rows] == pytest.approx([0, 10, 5, 0, 10, 0], rel=1e-13)
    free = play(panel, config.replace(funding_missing="zero"), [0.5] + [torch.nan] * 5)[2]
    assert [row["funding"] for row in free] == pytest.approx([0, 10, 0, 0, 0, 0], rel=1e-13)
    off = play(panel, config.replace(funding=False), [0.5] + [torch.nan] * 5)[2]
    assert [row["funding"] for row in off] == [0.0] * 6


def test_the_reference_assumes_the_same_rate():
    panel = missing_at(market(steady([100.0] * 8), funding={2: 0.002}), 3, 5)
    config = settings(episode_bars=6, funding_missing=0.001)
    rows = play(panel, config, [0.7] * 6)[2]
    bars_ = reference_bars(panel, SYMBOL, impact_window=24)
    records = refer(config, bars_, [Decimal("0.7")] * 7, symbol=SYMBOL)
    for row, record in zip(rows, records, strict=True):
        assert row["equity"] == pytest.approx(float(record.equity), rel=1e-13)


def test_results_say_what_was_assumed():
    panel = panel_of(100)
    config = BacktestConfig(market=settings(funding_missing=0.0002))
    summary = summary_of(replay(torch.ones(1601, 1), panel, config))
    told = summary["assumptions"]
    assert told["funding"] == [
        {"symbol": PERP, "settlements": 200, "missing": 100, "coverage": 0.5}
    ]
    assert told["words"] == [
        "BTC/USDT:USDT paid an assumed rate of 0.0002 at 100 of 200 settlements (50.00%) whose "
        "rate is not known.",
        "BTC/USDT:USDT is liquidated by its traded price: no mark price is stored.",
    ]
    off = replay(torch.ones(1601, 1), panel, BacktestConfig(market=settings(funding=False)))
    assert off.notes["assumptions"]["words"][0] == (
        "Funding is switched off: BTC/USDT:USDT paid none."
    )


def test_check_warns_of_a_stored_perpetual_with_too_few_rates(tmp_path):
    store = Store(tmp_path)
    written = store.write(bars(1601))
    store.write_funding(rates(range(8, 800, 8)))
    (finding,) = [each for each in check_file(written).findings if each.number == "D49"]
    assert (finding.severity, str(finding.places[0].value)) == (
        "warning",
        "rates for 99 of 200 settlements, 49.5%",
    )
    store.write_funding(rates(range(8, 1601, 8)))
    assert not check_file(written).has("funding-coverage")


# --- mark prices


def test_stored_mark_prices_come_into_the_panel_where_there_are_bars(tmp_path):
    store = Store(tmp_path)
    store.write(bars(10))
    assert load_panel(store, [PERP], HOUR).mark is None
    ts = START + H * np.arange(-2, 6)
    prices = {name: 100.0 + np.arange(8.0) + 10 * k for k, name in enumerate(("open", "high"))}
    prices |= {"low": 50.0 + np.arange(8.0), "close": 60.0 + np.arange(8.0)}
    store.write_mark(Mark(PERP, HOUR, pa.table({"ts": ts, **prices})))
    panel = load_panel(store, [PERP], HOUR)
    assert panel.mark[0, 0].tolist() == [102.0, 112.0, 52.0]
    assert panel.mark[5, 0].tolist() == [107.0, 117.0, 57.0]
    assert panel.mark[6:].isnan().all()
    assert store.contents() == [(PERP, HOUR)]
    bare = load_panel(store, [PERP], HOUR)
    assert panel.digest() == bare.digest() != replace(panel, mark=None).digest()
    part = panel.between(START + 2 * H, START + 4 * H)
    assert part.mark[:, 0, 0].tolist() == [104.0, 105.0]


@pytest.mark.refusal
def test_mark_prices_of_another_interval_are_refused():
    mark = Mark(PERP, Interval.parse("4h"), bars(3).table)
    with pytest.raises(DataError, match="must be its own, of 1h"):
        Panel.from_bars([bars(3)], marks={PERP: mark})
