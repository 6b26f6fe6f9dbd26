"""Drawn worlds as data: reproducible, growing at the end only, and what real bars look like."""

import subprocess
import sys

import numpy as np
import pytest

from stormsail.cli.data.synth import synth
from stormsail.core.errors import ChoiceError, ConfigError, DataError, RangeError
from stormsail.market.checks import check_bars, check_funding
from stormsail.market.features import FeatureSet, FeatureSpec
from stormsail.market.interval import Interval
from stormsail.market.panel import Panel, load_panel
from stormsail.market.store import Store
from stormsail.market.synthetic import START_MS, WORLDS, generate
from stormsail.market.synthetic.bars import quantise
from stormsail.market.synthetic.generate import write_world
from stormsail.market.synthetic.noise import NoiseConfig, NoiseProcess
from stormsail.market.synthetic.noise import draw as draw_noise

HOUR = Interval.parse("1h")
EIGHT_HOURS_MS = 8 * 3_600_000


def draw(world, *, symbols=2, bars=300, interval=HOUR, seed=7, **parameters):
    return generate(world, symbols=symbols, bars=bars, interval=interval, seed=seed, **parameters)


# First 16 digits of the digest of the second symbol, and its funding rates in units of 1e-8.
GOLDEN = {
    "ar1": ("d73004584ee35c8f", (-2915, -2791, -1710, -942, -2565, -2673)),
    "crash": ("23f36d0499795d2a", (-6903, -3586, -935, -3073, -1350, -1658)),
    "garch_jump": ("17d44f1c10ed35ad", (3834, 3661, 4068, 2474, 3871, 7816)),
    "noise": ("c91f5c0d303659f6", (-879, 1006, -5166, 6027, -4065, 9296)),
    "oracle": ("4fe0757736496163", (2145, 1756, 3158, 470, 2672, 1492)),
    "regime": ("027b3c477cf21abf", (621, -2696, -7338, -3718, -2579, 1304)),
}


@pytest.mark.parametrize("world", WORLDS)
def test_equal_seeds_give_the_bytes_they_always_gave(world):
    drawn = draw(world, bars=48)
    rates = drawn.funding["BBB/USDT:USDT"].rate
    bits = (drawn.bars[1].digest()[:16], tuple(np.round(1e8 * rates).astype(int).tolist()))
    assert bits == GOLDEN[world]


def test_another_process_gives_the_same_bytes():
    code = (
        "from stormsail.market.synthetic import generate, WORLDS\n"
        "from stormsail.market.interval import Interval\n"
        "for world in WORLDS:\n"
        "    drawn = generate(world, symbols=1, bars=200, interval=Interval(3600000), seed=3)\n"
        "    print(drawn.bars[0].digest())\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    here = [draw(world, symbols=1, bars=200, seed=3).bars[0].digest() for world in WORLDS]
    assert result.stdout.split() == here


@pytest.mark.parametrize("world", WORLDS)
def test_more_bars_only_append(world):
    short, long = draw(world, bars=150), draw(world, bars=400)
    for bars, longer in zip(short.bars, long.bars, strict=True):
        assert bars.table.equals(longer.table.slice(0, 150))
        few, many = short.funding[bars.symbol], long.funding[bars.symbol]
        assert few.table.equals(many.table.slice(0, len(few.ts)))
    for symbol, columns in (short.features or {}).items():
        for name, values in columns.items():
            assert np.array_equal(values, long.features[symbol][name][:150])
    for symbol, columns in short.hidden.items():
        for name, values in columns.items():
            assert np.array_equal(values, long.hidden[symbol][name][:150])


@pytest.mark.parametrize("world", WORLDS)
def test_another_symbol_changes_no_other(world):
    few, many = draw(world, symbols=2), draw(world, symbols=5)
    assert [bars.symbol for bars in many.bars[:2]] == ["AAA/USDT:USDT", "BBB/USDT:USDT"]
    for bars, again in zip(few.bars, many.bars, strict=False):
        assert bars.digest() == again.digest()
    alone = draw(world, symbols=["BBB/USDT:USDT"])
    assert alone.bars[0].digest() == few.bars[1].digest()


@pytest.mark.parametrize("world", WORLDS)
def test_seeds_worlds_and_symbols_share_no_draw(world):
    first, second = draw(world).bars
    other = draw(world, seed=8).bars[0]
    returns = [np.diff(np.log(bars.column("close"))) for bars in (first, second, other)]
    for a, b in ((0, 1), (0, 2)):
        # ± 5 / √300: independent series, whatever their tails
        assert abs(np.corrcoef(returns[a], returns[b])[0, 1]) < 0.29


@pytest.mark.parametrize("interval", ["1m", "1h", "1d", "1w"])
@pytest.mark.parametrize("gap_share", [0.0, 0.3])
@pytest.mark.parametrize("world", WORLDS)
def test_the_checks_find_nothing(world, interval, gap_share):
    length = Interval.parse(interval)
    drawn = draw(world, symbols=1, bars=3_000, interval=length, gap_share=gap_share)
    assert check_bars(drawn.bars[0]).findings == ()
    assert check_funding(drawn.funding["AAA/USDT:USDT"]).findings == ()


@pytest.mark.parametrize("world", WORLDS)
def test_columns_are_consistent(world):
    bars = draw(world, symbols=1, bars=5_000).bars[0]
    column = {name: bars.column(name) for name in bars.columns}
    assert np.array_equal(column["open"][1:], column["close"][:-1])
    assert (column["low"] <= np.minimum(column["open"], column["close"])).all()
    assert (column["high"] >= np.maximum(column["open"], column["close"])).all()
    for value, amount in (("quote_volume", "volume"), ("taker_buy_quote", "taker_buy_base")):
        average = column[value] / column[amount]
        assert ((column["low"] <= average) & (average <= column["high"])).all()
    assert (column["taker_buy_base"] < column["volume"]).all()
    assert column["trades"].min() >= 1
    assert (np.diff(bars.ts) == HOUR.milliseconds).all()
    assert bars.ts[0] == START_MS


def test_start_price_is_the_first_open():
    assert draw("ar1", start_price=2_500.0).bars[0].column("open")[0] == 2_500.0


def test_a_gap_moves_opens_and_leaves_closes():
    plain, gapped = draw("noise"), draw("noise", gap_share=0.3)
    closes = [world.bars[0].column("close") for world in (plain, gapped)]
    assert np.array_equal(*closes)
    opening = gapped.bars[0].column("open")
    assert (opening[1:] != closes[1][:-1]).mean() > 0.99


def test_a_gap_takes_its_share_of_the_variance():
    bars = draw("noise", symbols=1, bars=100_000, gap_share=0.3).bars[0]
    gap = np.log(bars.column("open")[1:] / bars.column("close")[:-1])
    whole = np.diff(np.log(bars.column("close")))
    # relative standard error of a Gaussian variance: √(2/n) = 0.0045
    assert gap.var() / whole.var() == pytest.approx(0.3, rel=4.5 * 0.0063)


def test_highs_and_lows_are_those_of_a_brownian_path():
    bars = draw("noise", symbols=1, bars=400_000, volatility=0.01).bars[0]
    up = np.log(bars.column("high") / bars.column("open"))
    down = np.log(bars.column("low") / bars.column("open"))
    # The maximum of a Brownian motion over a bar is |N(0, 0.01²)|: mean 0.01·√(2/π), variance
    # 0.01²·(1 − 2/π); drift −0.01²/2 shifts the mean by −0.01²/4, that of the minimum the same.
    error = 0.01 * np.sqrt((1 - 2 / np.pi) / len(bars))
    assert up.mean() == pytest.approx(0.01 * np.sqrt(2 / np.pi) - 2.5e-5, abs=4.5 * error)
    assert -down.mean() == pytest.approx(0.01 * np.sqrt(2 / np.pi) + 2.5e-5, abs=4.5 * error)
    # Both together only approximately: Parkinson's 4 ln 2 within half a percent.
    assert ((up - down) ** 2).mean() / 1e-4 == pytest.approx(4 * np.log(2), rel=0.005)


def test_volume_answers_to_returns_and_hours():
    bars = draw("noise", symbols=1, bars=50_000).bars[0]
    level = np.log(bars.column("quote_volume"))
    moves = np.abs(np.diff(np.log(bars.column("close")), prepend=np.log(100.0))) / 0.01
    hour = bars.ts // 3_600_000 % 24
    wave = np.cos(2 * np.pi * (hour - 14) / 24)
    design = np.stack([np.ones(len(moves)), moves, wave], axis=1)
    fitted = np.linalg.lstsq(design, level, rcond=None)[0]
    # median 5e7 a day; the persistent rest (0.8) leaves errors of about 0.02
    assert fitted == pytest.approx([np.log(5e7 / 24), 0.3, 0.4], abs=0.05)


def test_a_perpetual_pays_funding_at_eight_hours_and_spot_never():
    drawn = draw("garch_jump", bars=100)
    rates = drawn.funding["AAA/USDT:USDT"]
    assert rates.ts.tolist() == list(
        range(START_MS, START_MS + 100 * HOUR.milliseconds, EIGHT_HOURS_MS)
    )
    spot = draw("garch_jump", bars=100, spot=True)
    assert [bars.symbol for bars in spot.bars] == ["AAA/USDT", "BBB/USDT"]
    assert spot.funding == {}
    mixed = draw("noise", symbols=["BTC/USDT", "BTC/USDT:USDT"], bars=20)
    assert list(mixed.funding) == ["BTC/USDT:USDT"]


def test_a_start_between_settlements_waits_for_the_next():
    start = START_MS + 3 * HOUR.milliseconds
    rates = draw("noise", bars=10, start_ms=start).funding["AAA/USDT:USDT"]
    assert rates.ts.tolist() == [START_MS + EIGHT_HOURS_MS]


def test_symbols_beyond_the_alphabet_have_names():
    drawn = draw("noise", symbols=28, bars=2)
    assert [bars.symbol for bars in drawn.bars[25:]] == [
        "ZZZ/USDT:USDT",
        "AAA1/USDT:USDT",
        "BBB1/USDT:USDT",
    ]


def test_prices_have_eight_digits():
    values = np.array([1.0, 99999999.4, 0.000123456789, 1.2345678949e-12, 9.99999994e15])
    assert quantise(values) == pytest.approx(
        [1.0, 99999999.0, 0.00012345679, 1.2345679e-12, 9.9999999e15], rel=1e-15
    )


def test_a_written_world_is_read_back(tmp_path):
    drawn = draw("oracle", bars=50)
    store = Store(tmp_path)
    files = write_world(store, drawn)
    assert len(files) == 6
    for bars in drawn.bars:
        stored = store.read(bars.symbol, HOUR)
        assert stored.digest() == bars.digest()
        assert stored.notes["world"] == "oracle"
        assert store.read_funding(bars.symbol).table.equals(drawn.funding[bars.symbol].table)
        features = store.read_signals(stored)
        assert np.array_equal(features["ts"], bars.ts)
        assert np.array_equal(features["leak"], drawn.features[bars.symbol]["leak"])
    assert store.contents() == [("AAA/USDT:USDT", HOUR), ("BBB/USDT:USDT", HOUR)]
    assert store.read_signals(draw("noise", symbols=["CCC/USDT"]).bars[0]) == {}


@pytest.mark.refusal
def test_an_unknown_world_is_refused_with_the_nearest_name():
    with pytest.raises(ChoiceError) as refused:
        draw("garch")
    assert str(refused.value) == (
        "a world must be one of `ar1`, `crash`, `garch_jump`, `noise`, `oracle`, `regime`; found"
        " `garch`. Did you mean `garch_jump`? [unknown-choice]"
    )


@pytest.mark.refusal
def test_an_unknown_setting_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError) as refused:
        draw("ar1", volatilty=0.1)
    assert str(refused.value) == (
        "`volatilty` must be the name of a setting; found 0.1. Did you mean `volatility`?"
        " [config-unknown-key]"
    )


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("world", "parameters", "words"),
    [
        ("garch_jump", {"alpha": 0.3, "beta": 0.8}, "`alpha` + `beta` must be below 1"),
        ("regime", {"drifts": (0.1, 0.0)}, "`drifts` must lie between -0.3 and 0.05"),
        ("regime", {"drifts": (0.001, -0.31)}, "`drifts` must lie between -0.3 and 0.05"),
        ("regime", {"stay": (0.9,)}, "must have 2 entries each, or 3 each"),
        ("crash", {"drop": (0.5, 0.2)}, "`drop` must be two fractions"),
        ("noise", {"volatility": 0.2}, "`volatility` must be less than or equal to 0.05"),
    ],
)
def test_settings_without_sense_are_refused(world, parameters, words):
    with pytest.raises(ConfigError) as refused:
        draw(world, **parameters)
    assert words in str(refused.value)


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"bars": 0}, "`bars` must be at least 1; found 0"),
        ({"symbols": 0}, "`symbols` must be at least one name, each once; found none"),
        ({"symbols": ["A/B", "A/B"]}, "found A/B, A/B"),
        ({"start_ms": START_MS + 1}, "`start_ms` must be a time at which a bar of 1h opens"),
        ({"volatility": 0.05, "bars": 500_000}, "the price must stay between 1e-200 and 1e200"),
    ],
)
def test_arguments_without_sense_are_refused(arguments, words):
    with pytest.raises(RangeError) as refused:
        draw("noise", **{"symbols": 1, **arguments})
    assert words in str(refused.value)


def test_the_leak_of_the_oracle_reaches_a_feature_through_the_store(tmp_path):
    world = generate("oracle", symbols=2, bars=200, interval=HOUR, seed=3)
    store = Store(tmp_path)
    write_world(store, world)
    symbols = [bars.symbol for bars in world.bars]
    panel = load_panel(store, symbols, HOUR)
    features = FeatureSet([FeatureSpec(name="leak")], interval=HOUR).compute(panel)
    for column, bars in enumerate(world.bars):
        close = bars.column("close")
        leaked = features.values[:-1, column, 0].numpy()
        np.testing.assert_allclose(leaked, close[1:] / close[:-1] - 1.0, rtol=0, atol=1e-6)
    assert bool(features.valid.all())


def test_signals_that_do_not_fit_their_bars_are_refused():
    bars = generate("noise", symbols=1, bars=20, interval=HOUR, seed=0).bars
    with pytest.raises(DataError) as caught:
        Panel.from_bars(bars, signals={bars[0].symbol: {"leak": np.zeros(19)}})
    assert str(caught.value) == (
        "signal `leak` of AAA/USDT:USDT must have a value for each of its bars; found 19 values "
        "beside 20 bars. Draw or write bars and signals together. [data-mismatch]"
    )


def test_a_world_drawn_over_another_leaves_nothing_of_it(tmp_path):
    store, symbols = Store(tmp_path), ["AAA/USDT:USDT"]
    write_world(store, draw("oracle", symbols=symbols))
    assert "leak" in load_panel(store, symbols, HOUR).optional
    write_world(store, draw("noise", symbols=symbols, spot=True))
    panel = load_panel(store, symbols, HOUR)
    assert "leak" not in panel.optional
    assert panel.has_funding.tolist() == [False]
    assert sorted(path.name for path in tmp_path.rglob("*.parquet")) == ["1h.parquet"]


@pytest.mark.refusal
def test_signals_of_other_bars_are_refused(tmp_path):
    store, symbols = Store(tmp_path), ["AAA/USDT:USDT"]
    write_world(store, draw("oracle", symbols=symbols))
    store.write(draw("noise", symbols=symbols).bars[0])
    with pytest.raises(DataError) as refused:
        load_panel(store, symbols, HOUR)
    assert str(refused.value) == (
        f"{tmp_path}/AAA-USDT_USDT/features/1h.parquet must belong to the stored bars of"
        " AAA/USDT:USDT 1h; found signals that were written beside other bars. Draw the world"
        " again, or remove the file. [data-mismatch]"
    )


def test_a_process_that_fails_leaves_no_files(tmp_path, monkeypatch):
    def fails(self):
        raise ZeroDivisionError

    monkeypatch.setattr(NoiseProcess, "answer", property(fails))
    with pytest.raises(ZeroDivisionError):
        synth("noise", store=tmp_path, symbols=1, bars=20, interval="1h", seed=0)
    assert list(tmp_path.iterdir()) == []


def test_a_student_score_far_out_still_has_a_price():
    class Far:
        def chisquare(self, _degrees, count):
            return np.full(count, 1e-8)

        def standard_normal(self, count):
            return np.full(count, -1.0)

    path = draw_noise(NoiseConfig(volatility=0.05, degrees=3.0), lambda _name: Far(), 2)
    # z = -.05 · √(1/3) · √(3e8) = -500, and log(1 + tanh z) = 2z + log 2 − log(1 + e^{2z})
    assert path.log_return == pytest.approx([-1000.0 + np.log(2.0)] * 2)
