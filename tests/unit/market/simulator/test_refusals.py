"""What the simulator refuses, and the words in which it does."""

import math

import pytest
import torch

from simulator_lab import (
    HOUR_MS,
    START_MS,
    at,
    market,
    plain_features,
    plain_scaler,
    settings,
    simulator,
    steady,
)
from stormsail.core.errors import ConfigError, DataError, DtypeError, RangeError, ShapeError
from stormsail.market import MarketConfig, Simulator
from stormsail.market.features import FeatureSet
from stormsail.market.splits import Span

PANEL = market(steady([100.0 + k for k in range(12)]))


def act(*numbers, dtype=torch.float64):
    return torch.tensor(numbers, dtype=dtype)


def ready(*, batch=2, **changes):
    sim = simulator(PANEL, settings(episode_bars=5, **changes), batch=batch)
    return sim, at(sim, row=2), torch.Generator().manual_seed(0)


# --- actions


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("number", "shown"),
    [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf"), (1.0000001, "1.0000001")],
)
def test_a_weight_that_is_no_offer_is_refused_on_a_cpu(number, shown):
    sim, state, generator = ready()
    with pytest.raises(RangeError) as caught:
        sim.step(state, act(0.0, number), generator)
    assert str(caught.value) == (
        f"every action must be a finite weight from -1.0 to 1.0; found {shown} in environment 1, "
        "and 1 bad in all. Look at what the policy returned; a NaN there often began in a loss. "
        "[out-of-range]"
    )


@pytest.mark.refusal
@pytest.mark.parametrize("index", [-1, 3])
def test_a_level_that_is_no_offer_is_refused_on_a_cpu(index):
    sim, state, generator = ready(action="levels")
    with pytest.raises(
        RangeError, match=rf"the index of one of 3 levels, 0 to 2; found {index} in"
    ):
        sim.step(state, torch.tensor([index, 0]), generator)


def test_the_ends_of_the_range_are_on_offer():
    sim, state, generator = ready()
    _, step = sim.step(state, act(-1.0, 1.0), generator)
    assert step.info.signal_pos_requested.tolist() == [-1.0, 1.0]
    assert step.info.bad_action.tolist() == [False, False]


@pytest.mark.refusal
@pytest.mark.parametrize("shape", [(1,), (3,), (2, 2), (1, 2), ()])
def test_an_action_of_another_shape_is_refused(shape):
    sim, state, generator = ready()
    with pytest.raises(ShapeError, match=r"`action` must have the shape \(2, 1\)"):
        sim.step(state, torch.zeros(shape, dtype=torch.float64), generator)


@pytest.mark.refusal
def test_an_action_of_another_type_is_refused():
    sim, state, generator = ready()
    with pytest.raises(DtypeError, match=r"must be a tensor of torch\.float64"):
        sim.step(state, act(0.0, 0.0, dtype=torch.float32), generator)
    sim, state, generator = ready(action="levels")
    with pytest.raises(DtypeError, match=r"must be a tensor of torch\.int64"):
        sim.step(state, act(0.0, 0.0), generator)


def test_a_weight_may_come_with_an_action_axis():
    sim, state, generator = ready()
    flat, _ = sim.step(state, act(0.3, -0.6), generator)
    column, _ = sim.step(state, act(0.3, -0.6)[:, None], generator)
    assert torch.equal(flat.quantity, column.quantity)
    assert flat.quantity.shape == (2,)


# --- places


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("symbol", "row", "last", "words"),
    [
        ([1], [2], None, r"`symbol` must lie in 0 to 0; found 1 in environment 0"),
        ([-1], [2], None, r"`symbol` must lie in 0 to 0; found -1"),
        ([0], [11], None, r"`row` must lie in 0 to 10; found 11"),
        ([0], [-1], None, r"`row` must lie in 0 to 10; found -1"),
        ([0], [5], [5], r"`last_row` must lie in 6 to 11; found 5"),
    ],
)
def test_a_place_that_is_not_there_is_refused(symbol, row, last, words):
    sim, _, _ = ready(batch=1)
    last = None if last is None else torch.tensor(last)
    with pytest.raises(RangeError, match=words):
        sim.place(torch.tensor(symbol), torch.tensor(row), last_row=last)


@pytest.mark.refusal
def test_places_are_one_whole_number_for_each_environment():
    sim, _, _ = ready()
    with pytest.raises(ShapeError, match="`symbol` must be an int64 tensor of 2 environments"):
        sim.place(torch.tensor([0]), torch.tensor([2, 2]))
    with pytest.raises(ShapeError, match="`row` must be an int64 tensor of 2 environments"):
        sim.place(torch.tensor([0, 0]), torch.tensor([2.0, 2.0]))


# --- data and arguments


@pytest.mark.refusal
def test_an_episode_longer_than_the_data_is_refused():
    with pytest.raises(DataError) as caught:
        simulator(PANEL, settings(episode_bars=11))
    assert str(caught.value) == (
        "an episode of 11 bars must fit into the data, after 2 bars of some symbol that the first "
        "observation needs; found 12 bars from 2021-01-04T00:00:00Z, 12 in the whole panel. Use "
        "more data, fewer `episode_bars`, or features with a shorter lookback. [data-span]"
    )


def test_the_longest_episode_that_fits_is_taken():
    sim = simulator(PANEL, settings(episode_bars=10))
    state, _ = sim.reset(torch.Generator().manual_seed(0))
    assert (state.row.item(), state.last_row.item()) == (1, 11)


@pytest.mark.refusal
def test_a_span_too_short_for_an_episode_is_refused():
    span = Span(START_MS + 4 * HOUR_MS, START_MS + 8 * HOUR_MS)
    with pytest.raises(DataError, match="found 4 bars from 2021-01-04T04:00:00Z, 12 in the whole"):
        simulator(PANEL, settings(episode_bars=4), span=span)
    assert simulator(PANEL, settings(episode_bars=3), span=span)


@pytest.mark.refusal
def test_a_span_outside_of_the_data_is_refused():
    span = Span(START_MS + 90 * HOUR_MS, START_MS + 95 * HOUR_MS)
    with pytest.raises(DataError, match="found 0 bars from no bar"):
        simulator(PANEL, settings(episode_bars=4), span=span)


@pytest.mark.refusal
@pytest.mark.parametrize("batch", [0, -3])
def test_a_batch_of_nobody_is_refused(batch):
    with pytest.raises(RangeError, match="`batch` must be at least 1; found"):
        simulator(PANEL, settings(episode_bars=3), batch=batch)


@pytest.mark.refusal
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
def test_a_type_that_cannot_hold_money_is_refused(dtype):
    with pytest.raises(DtypeError, match=r"must be torch\.float32 or torch\.float64"):
        simulator(PANEL, settings(episode_bars=3), dtype=dtype)


@pytest.mark.refusal
def test_filters_of_a_symbol_that_is_not_there_are_refused():
    config = settings(episode_bars=3, symbol_filters={"BBB/USDT:USDT": {"lot": 1.0}})
    with pytest.raises(DataError, match="`BBB/USDT:USDT` and a panel of AAA/USDT:USDT"):
        simulator(PANEL, config)


@pytest.mark.refusal
def test_a_scaler_of_other_features_is_refused():
    features = plain_features(PANEL)
    others = FeatureSet(["log_return", "parkinson"], interval=PANEL.interval)
    with pytest.raises(DataError, match=r"\[[a-z-]+\]"):
        Simulator(
            PANEL, settings(episode_bars=3), batch=1, features=features,
            scaler=plain_scaler(others),
        )  # fmt: skip


# --- configurations

IMPOSSIBLE = {
    "fee of everything": ({"costs": {"taker_fee": 1.0}}, "`costs.taker_fee` must be less than 1"),
    "negative fee": ({"costs": {"taker_fee": -0.1}}, "`costs.taker_fee`"),
    "negative impact": ({"costs": {"impact": -0.1}}, "`costs.impact`"),
    "no window": ({"costs": {"impact_window": 0}}, "`costs.impact_window`"),
    "unknown fee": ({"costs": {"taker_fee": math.nan}}, "`costs.taker_fee` must be a finite"),
    "infinite equity": ({"initial_equity": math.inf}, "`initial_equity` must be a finite number"),
    "no equity": ({"initial_equity": 0.0}, "`initial_equity`"),
    "no bars": ({"episode_bars": 0}, "`episode_bars` must be greater than or equal to 1"),
    "levels falling": ({"levels": [1.0, 0.0]}, "in rising order"),
    "one level": ({"levels": [0.0]}, "at least two weights"),
    "range reversed": ({"weight_range": [1.0, -1.0]}, "the lower one first"),
    "beyond leverage": ({"levels": [-1.0, 2.0]}, "must stay within `limits.max_leverage` 1.0"),
    "no leverage": ({"limits": {"max_leverage": 0.0}}, "`limits.max_leverage`"),
    "loss above all": ({"limits": {"max_daily_loss": 1.5}}, "`limits.max_daily_loss`"),
    "drawdown of none": ({"limits": {"max_drawdown": 0.0}}, "`limits.max_drawdown`"),
    "liquidated at once": (
        {"margin": {"maintenance": 0.5}, "limits": {"max_leverage": 2.0}},
        "must stay below 1",
    ),
    "floor above": ({"stops": {"equity_floor": 1.0}}, "`stops.equity_floor`"),
    "no floor": ({"stops": {"equity_floor": 0.0}}, "`stops.equity_floor`"),
    "window of words": ({"no_trade": {"daily": ["noon"]}}, "HH:MM-HH:MM"),
    "hour 25": ({"no_trade": {"daily": ["25:00-26:00"]}}, "times of a day"),
    "minute 60": ({"no_trade": {"daily": ["01:60-02:00"]}}, "times of a day"),
    "empty window": ({"no_trade": {"daily": ["01:00-01:00"]}}, "at different times"),
    "naive time": (
        {"no_trade": {"ranges": [["2021-01-01T00:00:00", "2021-01-02T00:00:00Z"]]}},
        "must name a time zone",
    ),
    "backward range": (
        {"no_trade": {"ranges": [["2021-01-02T00:00:00Z", "2021-01-01T00:00:00Z"]]}},
        "must start before it ends",
    ),
    "four hours around": ({"no_trade": {"around_funding_minutes": 240}}, "around_funding_minutes"),
    "multipliers reversed": ({"randomise": {"taker_fee": [2.0, 1.0]}}, "0 <= low <= high"),
    "negative multiplier": ({"randomise": {"impact": [-1.0, 1.0]}}, "0 <= low <= high"),
    "chance above one": ({"degrade": {"stale_prob": 1.1}}, "`degrade.stale_prob`"),
    "no delay": ({"degrade": {"max_delay_bars": 0}}, "`degrade.max_delay_bars`"),
    "negative lot": ({"filters": {"lot": -0.1}}, "`filters.lot`"),
    "drawn fee of everything": ({"randomise": {"taker_fee": [1.0, 3_000.0]}}, "taker_fee"),
    "drawn spread of everything": ({"randomise": {"half_spread": [1.0, 9_000.0]}}, "half_spread"),
}


@pytest.mark.refusal
@pytest.mark.parametrize("case", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_an_impossible_market_is_refused(case):
    data, words = case
    with pytest.raises(ConfigError) as caught:
        MarketConfig.from_mapping(data)
    assert words in str(caught.value)
