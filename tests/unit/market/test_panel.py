"""Symbols on one grid: nothing invented, nothing late, nothing early."""

import dataclasses

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given

from stormsail.core.errors import ChoiceError, DataError, DtypeError
from stormsail.market.bars import Bars, Funding, from_columns
from stormsail.market.interval import Interval
from stormsail.market.panel import Panel
from stormsail.market.simulator.config import MarketConfig
from stormsail.market.simulator.tape import traded

H = 3_600_000
START = 1_609_459_200_000
HOUR = Interval.parse("1h")
PRICES = ("open", "high", "low", "close")


def bars(symbol: str, rows, *, interval: Interval = HOUR, level: float = 100.0, **columns) -> Bars:
    rows = np.asarray(rows, dtype=np.int64)
    price = level + rows
    table = {"ts": START + rows * interval.milliseconds, "open": price, "high": price + 0.75}
    table |= {"low": price - 0.75, "close": price + 0.5, "volume": rows + 1.0, **columns}
    return from_columns(symbol, interval, table)


def funding(symbol: str, ts, rate) -> Funding:
    return Funding(symbol, pa.table({"ts": pa.array(ts, pa.int64()), "funding_rate": rate}))


def refusal(call, kind=DataError):
    with pytest.raises(kind) as caught:
        call()
    return caught.value


def test_two_symbols_worked_out_by_hand():
    panel = Panel.from_bars([bars("A/USDT", [0, 1, 3]), bars("B/USDT", [2, 3, 4], level=10.0)])
    assert panel.symbols == ("A/USDT", "B/USDT")
    assert panel.shape == (5, 2)
    assert ((panel.ts - START) // H).tolist() == [0, 1, 2, 3, 4]
    # A has no bar in rows 2 and 4 and repeats its last close, 101.5 and 103.5.
    # B begins in row 2 with an open of 12, which stands in for the rows before.
    assert panel.open.T.tolist() == [[100, 101, 101.5, 103, 103.5], [12, 12, 12, 13, 14]]
    assert panel.high.T.tolist() == [
        [100.75, 101.75, 101.5, 103.75, 103.5],
        [12, 12, 12.75, 13.75, 14.75],
    ]
    assert panel.low.T.tolist() == [
        [99.25, 100.25, 101.5, 102.25, 103.5],
        [12, 12, 11.25, 12.25, 13.25],
    ]
    assert panel.close.T.tolist() == [
        [100.5, 101.5, 101.5, 103.5, 103.5],
        [12, 12, 12.5, 13.5, 14.5],
    ]
    assert panel.volume.T.tolist() == [[1, 2, 0, 4, 0], [0, 0, 3, 4, 5]]
    assert panel.tradable.T.tolist() == [
        [True, True, False, True, False],
        [False, False, True, True, True],
    ]
    assert panel.listed.T.tolist() == [[True] * 5, [False, False, True, True, True]]
    assert panel.funding.eq(0).all()
    assert panel.has_funding.tolist() == [False, False]
    assert panel.open.dtype == torch.float64
    assert panel.ts.dtype == torch.int64


presence = st.lists(st.integers(0, 30), unique=True, min_size=1, max_size=20).map(sorted)


@given(st.lists(presence, min_size=1, max_size=4))
def test_a_panel_is_that_of_a_plain_loop(presences):
    series = [bars(f"S{i}/USDT", rows, level=50.0 * (i + 1)) for i, rows in enumerate(presences)]
    panel = Panel.from_bars(series)
    first = min(rows[0] for rows in presences)
    last = max(rows[-1] for rows in presences)
    assert panel.shape == (last - first + 1, len(series))
    for column, part in enumerate(series):
        known = {row["ts"]: row for row in part.table.to_pylist()}
        carried, seen = part.column("open")[0], False
        for row, ts in enumerate(panel.ts.tolist()):
            bar = known.get(ts)
            seen = seen or bar is not None
            for name in PRICES:
                expected = bar[name] if bar else carried
                assert getattr(panel, name)[row, column].item() == expected
            assert panel.volume[row, column].item() == (bar["volume"] if bar else 0.0)
            assert panel.tradable[row, column].item() is (bar is not None)
            assert panel.listed[row, column].item() is seen
            carried = bar["close"] if bar else carried


@given(presence, st.integers(1, 30))
def test_rows_up_to_a_time_do_not_depend_on_later_bars(rows, cut):
    whole = bars("A/USDT", rows)
    other = bars("B/USDT", range(31), level=10.0)
    early = whole.between(0, START + cut * H)
    if not len(early):
        return
    full = Panel.from_bars([whole, other]).between(0, START + cut * H)
    known = Panel.from_bars([early, other.between(0, START + cut * H)])
    assert full.digest() == known.digest()


def test_a_bar_without_volume_is_there_and_the_market_says_whether_it_fills_orders():
    quiet = bars("A/USDT", [0, 1, 2], volume=[1.0, 0.0, 2.0])
    panel = Panel.from_bars([quiet])
    assert panel.tradable.T.tolist() == [[True, True, True]]
    assert traded(panel, MarketConfig()).T.tolist() == [[True, False, True]]
    assert traded(panel, MarketConfig(trade_without_volume=True)).all()


def test_optional_columns_are_there_only_if_every_symbol_has_them():
    rich = bars("A/USDT", [0, 2], trades=[5, 7], quote_volume=[50.0, 70.0])
    poor = bars("B/USDT", [0, 1, 2], trades=[1, 2, 3])
    panel = Panel.from_bars([rich, poor])
    assert set(panel.optional) == {"trades"}
    assert panel.optional["trades"].T.tolist() == [[5, 0, 7], [1, 2, 3]]
    assert set(Panel.from_bars([rich]).optional) == {"trades", "quote_volume"}
    assert set(Panel.from_bars([bars("A/USDT", [0])]).optional) == set()


def test_a_rate_belongs_to_the_first_row_at_or_after_its_settlement():
    offsets = [-H, -H + 1, 0, 1 * H + 1, 2 * H, 3 * H - 1, 4 * H, 4 * H + 1]
    rate = [0.001 * 2**i for i in range(8)]
    rates = funding("A/USDT:USDT", [START + offset for offset in offsets], rate)
    series = [bars("A/USDT:USDT", range(5)), bars("B/USDT", range(5))]
    panel = Panel.from_bars(series, {"A/USDT:USDT": rates}, settlement_jitter_ms=0)
    # Outside: exactly one row before the first, and a millisecond after the last.
    assert panel.funding[:, 0].tolist() == [
        rate[1] + rate[2],
        0,
        rate[3] + rate[4],
        rate[5],
        rate[6],
    ]
    assert panel.funding[:, 1].tolist() == [0.0] * 5
    assert panel.funding_outside == (2, 0)
    assert panel.has_funding.tolist() == [True, False]


def test_a_settlement_stamped_a_moment_late_is_not_paid_a_bar_late():
    stamps = [START + 8 * H, START + 16 * H + 3, START + 24 * H + 14_999, START + 32 * H + 15_001]
    rates = funding("A/USDT:USDT", stamps, [0.1, 0.2, 0.3, 0.4])
    panel = Panel.from_bars([bars("A/USDT:USDT", range(40))], {"A/USDT:USDT": rates})
    paid = {
        row: round(panel.funding[row, 0].item(), 9)
        for row in panel.funding[:, 0].nonzero()[:, 0].tolist()
    }
    assert paid == {8: 0.1, 16: 0.2, 24: 0.3, 33: 0.4}


def test_several_settlements_in_one_row_add_up():
    day = Interval.parse("1d")
    rates = funding("A/USDT:USDT", [START + 8 * H * i for i in range(1, 7)], [1, 2, 4, 8, 16, 32.0])
    panel = Panel.from_bars([bars("A/USDT:USDT", range(3), interval=day)], {"A/USDT:USDT": rates})
    assert panel.funding[:, 0].tolist() == [0.0, 7.0, 56.0]


@given(
    st.lists(st.integers(-5 * H, 45 * H), unique=True, max_size=30).map(sorted),
    st.sampled_from([0, 1, 15_000]),
)
def test_every_rate_is_in_one_row_or_counted_outside(offsets, jitter):
    rates = funding("A/USDT:USDT", [START + part for part in offsets], [1.0] * len(offsets))
    series = [bars("A/USDT:USDT", range(40))]
    panel = Panel.from_bars(series, {"A/USDT:USDT": rates}, settlement_jitter_ms=jitter)
    assert panel.funding.sum().item() + panel.funding_outside[0] == len(offsets)
    for row in range(40):
        end = row * H + jitter
        expected = sum(end - H < part <= end for part in offsets)
        assert panel.funding[row, 0].item() == expected


def test_between_is_a_half_open_view():
    panel = Panel.from_bars([bars("A/USDT", range(10), trades=range(10))])
    part = panel.between(START + 2 * H, START + 5 * H)
    assert ((part.ts - START) // H).tolist() == [2, 3, 4]
    assert part.shape == (3, 1)
    assert part.optional["trades"][:, 0].tolist() == [2, 3, 4]
    for name in (*PRICES, "volume", "tradable", "listed", "funding", "ts"):
        assert getattr(part, name).untyped_storage().data_ptr() == (
            getattr(panel, name).untyped_storage().data_ptr()
        )
    assert part.has_funding.shape == (1,)
    assert panel.between(START + 1, START + 2).shape == (0, 1)
    assert panel.between(START + 5 * H, START).shape == (0, 1)


def test_to_changes_floating_point_only():
    panel = Panel.from_bars([bars("A/USDT", range(3), trades=range(3))]).to(dtype=torch.float32)
    for name in (*PRICES, "volume", "funding"):
        assert getattr(panel, name).dtype == torch.float32
    assert panel.optional["trades"].dtype == torch.float32
    assert panel.ts.dtype == torch.int64
    assert panel.tradable.dtype == panel.listed.dtype == panel.has_funding.dtype == torch.bool
    meta = panel.to("meta")
    assert {getattr(meta, name).device.type for name in (*PRICES, "ts", "listed")} == {"meta"}
    made = Panel.from_bars([bars("A/USDT", range(3), trades=range(3))], dtype=torch.float32)
    assert made.digest() == panel.digest()


def test_the_digest_sees_every_value():
    rates = funding("A/USDT:USDT", [START + H], [0.1])
    base = bars("A/USDT:USDT", range(4), trades=range(4))
    panel = Panel.from_bars([base], {"A/USDT:USDT": rates})
    assert panel.digest() == Panel.from_bars([base], {"A/USDT:USDT": rates}).digest()
    others = [
        Panel.from_bars([base]),
        panel.to(dtype=torch.float32),
        panel.between(START, START + 3 * H),
        dataclasses.replace(panel, symbols=("B/USDT:USDT",)),
        dataclasses.replace(panel, interval=Interval.parse("2h")),
        dataclasses.replace(panel, optional={}),
        *(
            dataclasses.replace(panel, **{name: getattr(panel, name) + 1})
            for name in (*PRICES, "volume", "funding", "ts")
        ),
        *(
            dataclasses.replace(panel, **{name: ~getattr(panel, name)})
            for name in ("tradable", "listed", "has_funding")
        ),
    ]
    assert len({panel.digest(), *(other.digest() for other in others)}) == len(others) + 1


def test_a_panel_does_not_share_memory_with_its_bars():
    series = bars("A/USDT", range(3))
    panel = Panel.from_bars([series])
    panel.close.zero_()
    panel.ts.zero_()
    assert series.column("close").tolist() == [100.5, 101.5, 102.5]


def test_index_finds_a_symbol_or_suggests_one():
    panel = Panel.from_bars([bars("BTC/USDT", [0]), bars("ETH/USDT", [0])])
    assert panel.index("ETH/USDT") == 1
    error = refusal(lambda: panel.index("ETH/USDC"), ChoiceError)
    assert error.remedy == "Did you mean `ETH/USDT`?"


@pytest.mark.refusal
def test_intervals_must_not_be_mixed():
    series = [bars("A/USDT", [0]), bars("B/USDT", [0], interval=Interval.parse("4h"))]
    assert str(refusal(lambda: Panel.from_bars(series))) == (
        "all symbols of a panel must have one interval; found A/USDT 1h, B/USDT 4h. Resample the "
        "shorter ones with `market.resample`. [data-interval]"
    )


@pytest.mark.parametrize(
    ("series", "code"),
    [
        ([], "data-missing"),
        ([bars("A/USDT", [])], "data-missing"),
        ([bars("A/USDT", [0]), bars("B/USDT", [])], "data-missing"),
        ([bars("A/USDT", [0]), bars("A/USDT", [1])], "data-symbol"),
        (
            [
                from_columns(
                    "A/USDT", HOUR, {name: [START + 1] for name in ("ts", *PRICES, "volume")}
                )
            ],
            "data-alignment",
        ),
        ([bars("A/USDT", [0, 1], close=[1.0, float("nan")])], "data-defects"),
        ([bars("A/USDT", [0, 1], volume=[1.0, float("inf")])], "data-defects"),
        ([bars("A/USDT", [0, 1], trades=[1, None])], "data-defects"),
    ],
)
def test_what_makes_no_panel_is_refused(series, code):
    assert refusal(lambda: Panel.from_bars(series)).code == code


def test_rates_of_strangers_and_rates_that_are_no_numbers_are_refused():
    series = [bars("A/USDT:USDT", [0, 1])]
    good = funding("A/USDT:USDT", [START], [0.1])
    wrong = funding("A/USDT:USDT", [START], [float("nan")])
    other = funding("B/USDT:USDT", [START], [0.1])
    call = lambda rates: lambda: Panel.from_bars(series, rates)  # noqa: E731
    assert refusal(call({"B/USDT:USDT": other}), ChoiceError).code == "unknown-choice"
    assert refusal(call({"A/USDT:USDT": other})).code == "data-defects"
    assert refusal(call({"A/USDT:USDT": wrong})).code == "data-defects"
    assert Panel.from_bars(series, {"A/USDT:USDT": good}).funding[0, 0].item() == 0.1


def test_a_panel_holds_floating_point_numbers_only():
    refusal(lambda: Panel.from_bars([bars("A/USDT", [0])], dtype=torch.int64), DtypeError)


@pytest.mark.gpu
def test_a_panel_is_the_same_on_a_gpu():
    panel = Panel.from_bars([bars("A/USDT", range(5)), bars("B/USDT", range(2, 9))])
    there = panel.to("cuda")
    assert there.close.is_cuda
    assert there.digest() == panel.digest()
    assert there.between(START + 2 * H, START + 4 * H).shape == (2, 2)
