"""Registration, computation, windows and single bars of feature sets."""

from threading import Barrier, get_ident
from time import sleep

import numpy as np
import pytest
import torch

from stormsail.core.errors import (
    ArgumentError,
    ChoiceError,
    ConfigError,
    DataError,
    DtypeError,
    RangeError,
    ShapeError,
)
from stormsail.core.generators import Generators
from stormsail.market.bars import Funding, from_columns
from stormsail.market.features import (
    REGISTRY,
    BarTensors,
    FeatureSet,
    FeatureSpec,
    Registry,
    default_features,
    feature,
    sample_bars,
)
from stormsail.market.interval import Interval
from stormsail.market.panel import Panel

HOUR = Interval.parse("1h")


def bars(rows=1500, symbols=2, seed=0, interval=HOUR):
    generator = Generators(seed).stream("bars")
    return sample_bars(rows=rows, symbols=symbols, interval=interval, generator=generator)


def plain(close, **columns):
    close = torch.tensor(close, dtype=torch.float64)
    columns = {name: torch.tensor(column, dtype=torch.float64) for name, column in columns.items()}
    return BarTensors(3_600_000 * torch.arange(len(close)), HOUR, {"close": close, **columns})


def single(function, **options):
    registry = Registry()
    feature(**{"name": "mine", "lookback": 1, "registry": registry, **options})(function)
    return FeatureSet(["mine"], interval=HOUR, registry=registry)


def test_a_feature_is_one_decorated_function():
    chosen = single(lambda x: x["close"][1:] / x["close"][:-1], lookback=2, neutral=1.0)

    features = chosen.compute(plain([[1.0], [2.0], [6.0]]))

    assert features.names == ("mine",)
    assert features.values[:, 0, 0].tolist() == [1.0, 2.0, 3.0]  # neutral first
    assert features.valid[:, 0, 0].tolist() == [False, True, True]


def test_a_row_for_each_bar_is_accepted_and_its_warm_up_ignored():
    def shifted(x):
        return x["close"] / x["close"].roll(1, 0)

    features = single(shifted, lookback=2, neutral=-1.0).compute(plain([[1.0], [2.0], [6.0]]))

    assert features.values[:, 0, 0].tolist() == [-1.0, 2.0, 3.0]


def test_what_is_not_finite_is_not_valid_and_neutral():
    features = single(lambda x: x["close"].log(), neutral=5.0).compute(plain([[0.0], [1.0]]))

    assert features.values[:, 0, 0].tolist() == [5.0, 0.0]
    assert features.valid[:, 0, 0].tolist() == [False, True]


def test_parameters_have_defaults_names_and_a_lookback_of_their_own():
    registry = Registry()

    @feature(name="lag", lookback=lambda bars: bars + 1, registry=registry)
    def lag(x, *, bars=1):
        return x["close"][: len(x) - bars]

    chosen = FeatureSet(
        ["lag", FeatureSpec(name="lag", parameters={"bars": 2})], interval=HOUR, registry=registry
    )

    assert chosen.names == ("lag(bars=1)", "lag(bars=2)")
    assert [bound.lookback for bound in chosen.bound] == [2, 3]
    assert chosen.lookback == 3
    values = chosen.compute(plain([[1.0], [2.0], [3.0], [4.0]])).values[:, 0]
    assert values.tolist() == [[0, 0], [1, 0], [2, 1], [3, 2]]


@pytest.mark.refusal
def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(ChoiceError) as caught:
        FeatureSet(["log_retrun"], interval=HOUR)
    assert str(caught.value) == (
        "a feature must be registered; found `log_retrun`. Did you mean `log_return`? "
        "Write that, or bring the file that defines it with `--plugin FILE.py`. [unknown-choice]"
    )


@pytest.mark.refusal
def test_an_unknown_parameter_suggests_the_nearest():
    with pytest.raises(ChoiceError) as caught:
        FeatureSet([FeatureSpec(name="rsi", parameters={"perod": 3})], interval=HOUR)
    assert str(caught.value) == (
        "parameters of feature `rsi` must be among: `period`; found `perod`. "
        "Did you mean `period`? [unknown-choice]"
    )


@pytest.mark.refusal
def test_a_parameter_without_a_default_must_be_given():
    registry = Registry()
    feature(name="mine", lookback=1, registry=registry)(lambda x, *, n: x["close"] * n)
    with pytest.raises(ArgumentError) as caught:
        FeatureSet(["mine"], interval=HOUR, registry=registry)
    assert str(caught.value) == (
        "feature `mine` must be given `n`; found no value and no default. "
        "Write for example `parameters = { n = 14 }`. [missing-argument]"
    )


@pytest.mark.refusal
def test_a_name_belongs_to_one_feature():
    with pytest.raises(ArgumentError) as caught:
        feature(name="rsi", lookback=1)(lambda x: x["close"])
    assert str(caught.value) == (
        "the name `rsi` must belong to one feature; "
        "found `stormsail.market.features.catalogue.rsi` under that name. "
        "Choose another name. [feature-duplicate]"
    )


@pytest.mark.refusal
def test_a_column_comes_once_in_a_set():
    explicit = FeatureSpec(name="rsi", parameters={"period": 14})
    with pytest.raises(ArgumentError) as caught:
        FeatureSet(["rsi", explicit], interval=HOUR)
    assert str(caught.value) == (
        "a feature set must have at least one column, and each of them once; "
        "found `rsi(period=14)` 2 times. Leave the second one out, or give it other parameters. "
        "[feature-duplicate]"
    )
    with pytest.raises(ArgumentError, match="found no feature"):
        default_features(HOUR).available(())


@pytest.mark.refusal
def test_a_missing_column_names_feature_and_column():
    chosen = default_features(HOUR)
    few = BarTensors(bars().ts, HOUR, {"close": bars()["close"]})
    with pytest.raises(DataError) as caught:
        chosen.compute(few)
    assert str(caught.value) == (
        "feature `parkinson(window=24)` must have the column `high` that it reads, and declare it; "
        "found close. Import a source that has it and name it in `columns`, or drop the feature. "
        "[data-column]"
    )


@pytest.mark.refusal
def test_a_feature_cannot_read_what_it_does_not_declare():
    sneaky = single(lambda x: x["volume"], columns=("close",))
    with pytest.raises(DataError, match="feature `mine` must have the column `volume`"):
        sneaky.compute(bars())


@pytest.mark.refusal
def test_a_result_of_another_shape_is_refused():
    with pytest.raises(ShapeError) as caught:
        single(lambda x: x["close"][2:], lookback=2).compute(bars(rows=10))
    assert str(caught.value) == (
        "feature `mine` with a lookback of 2 must return (10, 2) or (9, 2) for 10 bars of "
        "2 symbols; found (8, 2). Return one row for each bar, or one for each full window. "
        "[shape-mismatch]"
    )


@pytest.mark.refusal
@pytest.mark.parametrize("lookback", [0, True, 2.0])
def test_a_lookback_is_a_whole_number_of_bars(lookback):
    with pytest.raises(RangeError, match="the lookback of feature `mine` must be a whole number"):
        single(lambda x: x["close"], lookback=lambda: lookback)


@pytest.mark.refusal
def test_a_name_is_lower_case():
    with pytest.raises(ArgumentError, match=r"found `My Feature`\. Write for example"):
        single(lambda x: x["close"], name="My Feature")


@pytest.mark.refusal
def test_bars_of_another_interval_are_refused():
    with pytest.raises(DataError) as caught:
        default_features(HOUR).compute(bars(interval=Interval.parse("4h")))
    assert str(caught.value) == (
        "`interval` of the features must be 1h; found bars of 4h. "
        "Resample the bars, or build the features for that interval. [feature-schema]"
    )


@pytest.mark.refusal
def test_a_window_shorter_than_the_lookback_is_refused():
    with pytest.raises(RangeError) as caught:
        default_features(HOUR).latest(bars(rows=638))
    assert str(caught.value) == (
        "the window must hold at least 639 bars; found 638. "
        "Fetch that many closed bars before the first decision. [out-of-range]"
    )


@pytest.mark.refusal
def test_columns_have_one_shape_and_hold_floats():
    with pytest.raises(ShapeError, match=r"`ts` must be \[T\] and every column \[T, S\]"):
        BarTensors(torch.arange(3), HOUR, {"close": torch.ones(3)})
    with pytest.raises(DtypeError, match=r"column `close` must hold floating point numbers"):
        BarTensors(torch.arange(3), HOUR, {"close": torch.ones(3, 1, dtype=torch.int64)})


def test_a_scope_forgets_what_was_added_inside():
    before = REGISTRY.names()
    with REGISTRY.scope():
        feature(name="passing", lookback=1)(lambda x: x["close"])
        assert "passing" in REGISTRY.names()
    assert REGISTRY.names() == before


def test_a_specification_is_a_closed_configuration():
    spec = FeatureSpec.from_mapping({"name": "rsi", "parameters": {"period": 7}})
    assert FeatureSpec.from_mapping(spec.model_dump()) == spec
    with pytest.raises(ConfigError):
        FeatureSpec.from_mapping({"name": "rsi", "params": {}})
    with pytest.raises(ConfigError):
        FeatureSpec.from_mapping({"name": "rsi", "parameters": {"period": "7"}})


def test_whole_history_blocks_window_and_latest_bar_are_equal_to_the_bit():
    history = bars(rows=4000, symbols=3)
    chosen = default_features(HOUR)
    whole = chosen.compute(history, block=None)
    assert whole.values.shape == (4000, 3, len(chosen.names))
    assert whole.values.isfinite().all()

    blocks = chosen.compute(history, block=900)
    assert torch.equal(blocks.values, whole.values)
    assert torch.equal(blocks.valid, whole.valid)
    for row in (638, 639, 1500, 3999):
        for start in (0, row - 638):
            latest = chosen.latest(history.rows(start, row + 1))
            assert torch.equal(latest.values, whole.values[row])
            assert torch.equal(latest.valid, whole.valid[row])


@pytest.mark.parametrize("longer_first", [True, False])
def test_what_features_share_is_computed_for_the_longest_window_and_cut(longer_first):
    close = torch.arange(60.0, dtype=torch.float64).sin()[:, None] + 3.0
    calls = []

    def smoothed(x, *, window):
        calls.append(len(x))
        return (x.unfold(0, window, 1).sum(-1),)

    whole, kept = plain(close.tolist()), {}
    parts = {first: whole.rows(first, 60) for first in (10, 25)}
    for first in (10, 25) if longer_first else (25, 10):
        part = parts[first]
        part.__dict__.update(kept=kept, first=first)
        (shared,) = part.once(smoothed, "close", window=5)
        assert torch.equal(shared, close[first:].unfold(0, 5, 1).sum(-1))
    assert calls == ([50] if longer_first else [35, 50])
    parts[25].once(smoothed, "close", window=6)
    assert calls[-1] == 35  # another window is another thing
    (alone,) = whole.once(smoothed, "close", window=5)
    assert torch.equal(alone, close.unfold(0, 5, 1).sum(-1))


def test_one_symbol_alone_has_the_numbers_it_has_among_others():
    history = bars(rows=1000, symbols=3)
    alone = BarTensors(
        history.ts, HOUR, {name: column[:, 1:2] for name, column in history.columns.items()}
    )
    chosen = default_features(HOUR)
    assert torch.equal(chosen.compute(alone).values, chosen.compute(history).values[:, 1:2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_dtype_is_kept(dtype):
    history = bars(rows=800)
    cast = BarTensors(
        history.ts, HOUR, {name: column.to(dtype) for name, column in history.columns.items()}
    )
    for features in (default_features(HOUR).compute(cast), default_features(HOUR).latest(cast)):
        assert features.values.dtype == dtype


def panel(rows=60, late=20, *, funding=True):
    """Two symbols; the second begins `late` bars later and misses bar 40."""
    times = 3_600_000 * (24 * 18_628 + np.arange(rows))
    price = 100 + np.arange(rows, dtype=float)
    tables = []
    for symbol, where in (
        ("A/USDT", range(rows)),
        ("B/USDT", [*range(late, 40), *range(41, rows)]),
    ):
        index = np.asarray(list(where))
        columns = dict.fromkeys(("open", "high", "low", "close"), price[index])
        volume = {"volume": np.full(len(index), 2.0), "taker_buy_base": np.full(len(index), 1.5)}
        tables.append(from_columns(symbol, HOUR, {"ts": times[index], **columns, **volume}))
    rates = {"ts": times[::8], "funding_rate": 1e-4 * np.arange(len(times[::8]))}
    import pyarrow as pa

    paid = {"A/USDT": Funding("A/USDT", pa.table(rates))} if funding else None
    return Panel.from_bars(tables, paid)


def test_a_panel_gives_its_columns_and_a_window_before_the_listing_is_not_valid():
    source = panel()
    chosen = FeatureSet([FeatureSpec(name="log_return", parameters={"horizon": 3})], interval=HOUR)

    features = chosen.compute(source)

    assert features.valid[:, 0, 0].nonzero().flatten().tolist() == list(range(3, 60))
    # row 22 would read row 19, where the second symbol is a placeholder
    assert features.valid[:, 1, 0].nonzero().flatten().tolist() == list(range(23, 60))
    assert features.values[:23, 1, 0].eq(0).all()
    expected = torch.log(source.close[23:, 1] / source.close[20:-3, 1])
    assert torch.equal(features.values[23:, 1, 0], expected)


def test_a_symbol_without_funding_has_no_valid_funding():
    chosen = FeatureSet(["funding"], interval=HOUR)
    features = chosen.compute(panel())
    assert not features.valid[:, 1].any()
    # settlement k at row 8 k with a rate of k / 10,000: rows 8 to 15 see the second
    torch.testing.assert_close(
        features.values[7:24, 0, 0], 1e-4 * torch.tensor([0.0] + 8 * [1] + 8 * [2]).double()
    )
    with pytest.raises(DataError, match="must have the column `funding`"):
        chosen.compute(panel(funding=False))


def test_funding_is_not_valid_before_the_first_settlement_was_seen():
    # the first rate that is not 0 settles at row 8
    source = panel()
    chosen = FeatureSet(
        ["funding", FeatureSpec(name="funding", parameters={"settlements": 3})], interval=HOUR
    )
    whole = chosen.compute(source)
    firsts = [int(whole.valid[:, 0, index].nonzero()[0]) for index in range(2)]
    assert firsts == [8, 24]
    assert BarTensors.of(source)["funding"][:8, 0].isnan().all()
    # a later row cannot change what was known, and the shortest window gives what history gives
    for row in range(30, 60):
        start, stop = source.ts[row - 23], source.ts[row] + 1
        latest = chosen.latest(source.between(int(start), int(stop)))
        assert torch.equal(latest.values[0], whole.values[row, 0])
        assert torch.equal(latest.valid[0], whole.valid[row, 0])
    early = BarTensors.of(source.between(int(source.ts[0]), int(source.ts[5])))
    assert early["funding"][:, 0].isnan().all()


@pytest.mark.refusal
@pytest.mark.parametrize("default", ["close", True, None, float("nan"), [1]])
def test_the_default_of_a_parameter_is_a_finite_number(default):
    def wrong(x, *, n=default):
        return x["close"]

    with pytest.raises(DtypeError) as caught:
        single(wrong)
    assert str(caught.value) == (
        f"parameter `n` of feature `mine` must be a finite number; found {default!r}. "
        "Write a whole number or a fraction; 0 and 1 for a switch. [dtype-mismatch]"
    )


@pytest.mark.refusal
@pytest.mark.parametrize("neutral", [float("nan"), float("inf")])
def test_a_neutral_value_is_finite(neutral):
    with pytest.raises(RangeError, match="the neutral value of feature `mine` must be finite"):
        single(lambda x: x["close"], neutral=neutral)


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda x: x["close"].float(), "torch.float32"),
        (lambda x: x["close"].to(torch.complex128), "torch.complex128"),
        (lambda x: x["close"].numpy(), "ndarray"),
        (lambda _: None, "NoneType"),
    ],
)
def test_a_result_of_another_type_is_refused(function, problem):
    with pytest.raises(DtypeError) as caught:
        single(function).compute(bars(rows=10))
    assert str(caught.value) == (
        f"feature `mine` must return a tensor of torch.float64, as the bars are; found {problem}. "
        "Compute with the bars' own numbers, or convert with `.to(torch.float64)`. "
        "[dtype-mismatch]"
    )


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_truths_and_whole_numbers_become_the_bars_numbers(dtype):
    features = single(lambda x: (x["close"] > 1.5).to(dtype)).compute(plain([[1.0], [2.0]]))
    assert features.values.dtype == torch.float64
    assert features.values.flatten().tolist() == [0.0, 1.0]


@pytest.mark.refusal
def test_a_fraction_for_a_whole_parameter_is_refused():
    with pytest.raises(DtypeError) as caught:
        FeatureSet([FeatureSpec(name="rsi", parameters={"period": 2.5})], interval=HOUR)
    assert str(caught.value) == (
        "parameter `period` of feature `rsi` must be a whole number, as its default 14 is; "
        "found 2.5. Round it, or write the default as `14.0`. [dtype-mismatch]"
    )


def test_the_default_set_shrinks_to_what_a_source_has():
    chosen = default_features(HOUR)
    assert len(chosen.names) == 34
    few = chosen.available(("open", "high", "low", "close", "volume"))
    gone = set(chosen.names) - set(few.names)
    assert {name.split("(")[0] for name in gone} == {"taker_share", "taker_momentum", "funding"}
    assert len(few.names) == 29


@pytest.fixture
def threads():
    """Set torch's number of threads; put it back after."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def sums(count):
    """Return a set of some columns: sums of 1, 2, 3, ... closes."""
    registry = Registry()

    @feature(name="total", lookback=lambda window: window, registry=registry)
    def total(x, *, window):
        return x["close"].unfold(0, window, 1).sum(-1)

    specs = [FeatureSpec(name="total", parameters={"window": 1 + n}) for n in range(count)]
    return FeatureSet(specs, interval=HOUR, registry=registry)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_columns_stand_in_their_places_whatever_their_number(count, dtype):
    close = torch.tensor([[1.0, -0.0], [2.0, 3.0], [4.0, torch.nan], [8.0, 5.0]] * 5, dtype=dtype)
    for block in (None, 7):
        features = sums(count).compute(
            BarTensors(3_600_000 * torch.arange(20), HOUR, {"close": close}), block=block
        )
        assert features.values.dtype == dtype
        for at in range(count):
            expected = torch.full_like(close, torch.nan)
            expected[at:] = close.unfold(0, 1 + at, 1).sum(-1)
            valid = expected.isfinite()
            assert torch.equal(features.valid[..., at], valid)
            values = torch.where(valid, expected, 0.0)
            assert torch.equal(features.values[..., at], values)
            # not a bit of a number is lost on the way: -0 is not 0
            assert torch.equal(features.values[..., at].signbit(), values.signbit())


def test_threads_and_block_borders_change_no_bit(threads):
    history = bars(rows=41, symbols=2)
    specs = [
        FeatureSpec(name=name, parameters={"window": window})
        for name in ("yang_zhang", "realised_volatility", "bollinger_width", "cci", "taker_share")
        for window in (3, 6)
    ]
    chosen = FeatureSet([*specs, "log_return", "day_sin", "week_cos"], interval=HOUR)
    whole = chosen.compute(history, block=None)
    for count in (1, 2, 3):
        threads(count)
        for rows in range(7, 16, count):
            # as many bars a block, lookback and all, of two symbols
            parts = chosen.compute(history, block=2 * (rows + chosen.lookback))
            assert torch.equal(parts.values, whole.values), (count, rows)
            assert torch.equal(parts.valid, whole.valid), (count, rows)


def test_columns_that_share_have_the_bits_that_they_have_alone():
    history = bars(rows=1400, symbols=2)
    chosen = default_features(HOUR).available(history.columns)
    together = chosen.compute(history, block=2)  # as many bars as the longest lookback
    for at, bound in enumerate(chosen.bound):
        values, valid = bound.column(history, 0, 1400)
        assert torch.equal(together.values[..., at], values), bound.label
        assert torch.equal(together.valid[..., at], valid), bound.label


def test_finite_numbers_whose_sum_is_not_are_valid_and_the_rest_is_not():
    for wrong in (float("inf"), float("-inf"), float("nan")):
        close = [[1e308], [1.5e308], [wrong], [-1e308]]
        features = single(lambda x: x["close"], neutral=3.0).compute(plain(close))
        assert features.valid[:, 0, 0].tolist() == [True, True, False, True]
        assert features.values[:, 0, 0].tolist() == [1e308, 1.5e308, 3.0, -1e308]
    large = single(lambda x: x["close"]).compute(plain([[1e308], [1.5e308]]))
    assert large.valid.all()


def test_no_block_is_begun_after_a_failure(threads):
    threads(2)
    begun = []

    def failing(x):
        begun.append(x.first)
        if x.first == 0:
            raise ValueError("no such bar")
        sleep(0.02)  # the other worker, while the first one fails
        return x["close"]

    with pytest.raises(ValueError, match="no such bar"):
        single(failing).compute(plain([[1.0]] * 200), block=11)
    assert len(begun) < 10  # of 20


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_helpers_compute_in_the_modes_of_the_caller(threads, mode):
    threads(3)
    seen, together = set(), Barrier(3, timeout=20)

    def noting(x):
        if x.first < 30:  # three blocks at once, so that each has a thread of its own
            together.wait()
        seen.add((get_ident(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
        return x["close"]

    with mode():
        expected = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        features = single(noting).compute(plain([[1.0]] * 40), block=11)
        assert features.values.eq(1.0).all()
    assert len({thread for thread, *_ in seen}) == 3
    assert {tuple(modes) for _, *modes in seen} == {expected}


def test_blocks_that_torch_splits_itself_are_worked_on_one_by_one(threads):
    threads(2)
    workers = set()

    def noting(x):
        workers.add(get_ident())
        return x["close"]

    wide = torch.ones(40, 10_000, dtype=torch.float64)
    history = BarTensors(3_600_000 * torch.arange(40), HOUR, {"close": wide})
    single(noting).compute(history, block=50_000)
    assert workers == {get_ident()}
