"""`stormsail/Market-v0`, single and vector, as somebody who knows only Gymnasium would use it."""

import math
import subprocess
import sys
import warnings
from datetime import UTC, datetime

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import DictInfoToList

from simulator_lab import (
    FREE,
    HOUR_MS,
    START_MS,
    market,
    plain_features,
    plain_scaler,
    steady,
    wild_panel,
)
from stormsail.core.errors import (
    ArgumentError,
    ChoiceError,
    ConfigError,
    DtypeError,
    RangeError,
    ShapeError,
)
from stormsail.core.gymnasium_plugin import MARKET
from stormsail.market import Interval, MarketConfig, Panel, Store
from stormsail.market.gymnasium.env import MarketEnv
from stormsail.market.gymnasium.vector import MarketVectorEnv
from stormsail.market.simulator import Info
from stormsail.market.splits import Span
from stormsail.market.synthetic import generate

BLUE, ORANGE, PRICE, EQUITY = (31, 119, 180), (230, 126, 34), (52, 73, 94), (0, 121, 107)


def small(panel: Panel, **changes: object) -> dict[str, object]:
    """Return arguments of an environment on a panel, with one plain feature."""
    features = plain_features(panel)
    config = MarketConfig().replace(**{"episode_bars": 12, **changes})
    return {
        "panel": panel,
        "config": config,
        "features": features,
        "scaler": plain_scaler(features),
    }


def one_start(**changes: object) -> dict[str, object]:
    """Return arguments of an environment in which every episode must start at row 1."""
    # half of its bars have no volume
    return small(wild_panel(3, rows=14, symbols=1), trade_without_volume=True, **changes)


# An environment records its arithmetic in its first step, most of a second: tests that only reset
# and step share one.


@pytest.fixture(scope="module")
def two_symbols():
    return MarketEnv(**small(wild_panel(3, rows=60, symbols=2)))


@pytest.fixture(scope="module")
def by_levels():
    return MarketEnv(**one_start())


@pytest.fixture(scope="module")
def by_weights():
    return MarketEnv(**one_start(action="continuous"))


# --- making one


def test_registering_imports_no_torch_and_make_can_register_by_itself():
    code = f"""
import sys, gymnasium
env = gymnasium.envs.registration._find_spec("stormsail.core.gymnasium_plugin:{MARKET}")
print("torch" in sys.modules)
print(gymnasium.make("{MARKET}").reset(seed=0)[0].shape)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["False", "(40,)"]


def test_a_newcomer_plays_a_whole_episode_without_any_argument():
    env = gymnasium.make(MARKET)
    observation, info = env.reset(seed=0)
    assert env.unwrapped.panel.symbols == ("AAA/USDT:USDT", "BBB/USDT:USDT")
    assert env.action_space == gymnasium.spaces.Discrete(5)
    assert info["equity"] == 10_000.0
    growth, steps, ended = 0.0, 0, False
    while not ended:
        assert env.observation_space.contains(observation)
        observation, reward, terminated, truncated, info = env.step(3)
        growth, steps, ended = growth + reward, steps + 1, terminated or truncated
    assert (steps, terminated, truncated) == (256, False, True)
    assert info["equity"] == pytest.approx(10_000.0 * math.exp(growth), rel=1e-12)


@pytest.mark.parametrize("action", ["levels", "continuous"])
@pytest.mark.parametrize("mode", [None, "rgb_array", "ansi"])
def test_gymnasium_own_checker_has_nothing_to_say(action, mode):
    env = gymnasium.make(MARKET, config=MarketConfig(action=action), render_mode=mode)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)


def test_a_panel_is_used_as_it_is_and_not_copied():
    options = one_start()
    assert gymnasium.make(MARKET, **options).unwrapped.panel is options["panel"]
    assert gymnasium.make_vec(MARKET, num_envs=2, **options).unwrapped.panel is options["panel"]


def test_stored_bars_are_the_panel_of_that_store(tmp_path):
    world = generate("noise", symbols=2, bars=40, interval=Interval.parse("1h"), seed=1)
    store = Store(tmp_path)
    for bars in world.bars:
        store.write(bars)
        store.write_funding(world.funding[bars.symbol])
    names = [bars.symbol for bars in world.bars]
    options = small(wild_panel(3, rows=14, symbols=1))
    del options["panel"]
    for place in (store, tmp_path, str(tmp_path)):
        env = MarketEnv(store=place, symbols=names, interval="1h", **options)
        assert env.panel.digest() == Panel.from_bars(world.bars, world.funding).digest()


def test_a_span_holds_every_start_and_every_end():
    panel = wild_panel(3, rows=60, symbols=2)
    span = Span(START_MS + 20 * HOUR_MS, START_MS + 40 * HOUR_MS)
    env = MarketEnv(**small(panel), span=span)
    rows = {env.reset(seed=seed)[1]["row"] for seed in range(60)}
    assert rows == set(range(20, 28))  # the last episode ends at row 27 + 12, the span's last


# --- what a step tells


def test_a_rising_price_pays_its_logarithm():
    panel = market(steady([100, 100, 100, 110, 99, 99]))
    env = MarketEnv(**small(panel, episode_bars=3, levels=(-1.0, 0.0, 1.0), **FREE))
    env.reset(options={"row": 1})
    # Decided at the close of row 1, bought at the open of row 2 for 100: nothing gained yet.
    assert env.step(2)[1] == pytest.approx(0.0, abs=1e-15)
    observation, reward, terminated, truncated, info = env.step(2)
    assert reward == pytest.approx(math.log(1.1), rel=1e-12)
    assert observation[0] == np.float32(math.log(1.1))
    assert (terminated, truncated) == (False, False)
    assert info["equity"] == pytest.approx(11_000.0, rel=1e-12)
    # Long into the fall from 110 to 99, the last bar of the episode.
    _, reward, terminated, truncated, info = env.step(2)
    assert reward == pytest.approx(math.log(0.9), rel=1e-12)
    assert (terminated, truncated, info["time_limit_truncated"]) == (False, True, True)


def test_info_has_every_name_as_a_plain_number():
    env = MarketEnv(**one_start())
    sometimes = {"price", "reward_clip_bound_fraction", "terminal_observation"}
    always = set(Info._fields) - sometimes
    assert set(env.reset(seed=0)[1]) == always
    held = env.step(2)[4]
    bought = env.step(4)[4]
    assert set(held) == always
    assert set(bought) == always | {"price"}
    flags = {"liquidated", "blocked", "delisted", "bad_action", "time_limit_truncated"}
    counts = {"reason", "data_age", "symbol", "row"}
    assert {type(bought[name]) for name in flags} == {bool}
    assert {type(bought[name]) for name in counts} == {int}
    assert {type(bought[name]) for name in set(bought) - flags - counts} == {float}


def test_a_clip_bound_is_in_the_info_where_there_is_one():
    env = MarketEnv(**one_start(reward_clip=0.25))
    assert env.reset(seed=0)[1]["reward_clip_bound_fraction"] == 0.25
    assert env.step(2)[4]["reward_clip_bound_fraction"] == 0.25
    many = MarketVectorEnv(2, **one_start(reward_clip=0.25))
    infos = many.reset(seed=0)[1]
    assert infos["reward_clip_bound_fraction"].tolist() == [0.25, 0.25]
    assert infos["_reward_clip_bound_fraction"].all()
    assert "reward_clip_bound_fraction" not in MarketVectorEnv(2, **one_start()).reset(seed=0)[1]


def test_the_terminal_observation_is_in_the_info_at_the_end_only():
    env = MarketEnv(**one_start())
    env.reset(seed=0)
    steps = [env.step(3) for _ in range(12)]
    assert ["terminal_observation" in info for *_, info in steps] == [False] * 11 + [True]
    np.testing.assert_array_equal(steps[-1][4]["terminal_observation"], steps[-1][0])


def test_a_step_without_an_episode_is_refused():
    env = MarketEnv(**one_start())
    with pytest.raises(gymnasium.error.ResetNeeded, match="an episode must be running"):
        env.step(2)
    env.reset(seed=0)
    for _ in range(12):
        env.step(2)
    with pytest.raises(gymnasium.error.ResetNeeded, match="again after each end"):
        env.step(2)
    env.reset()
    assert env.step(2)[1] == 0.0
    with pytest.raises(gymnasium.error.ResetNeeded, match="an episode must be running"):
        MarketVectorEnv(2, **one_start()).step(np.array([2, 2]))


# --- randomness


def feed_and_costs() -> dict[str, object]:
    return small(
        wild_panel(5, rows=200, symbols=3),
        **{"degrade.stale_prob": 0.3, "randomise.taker_fee": (0.5, 2.0)},
    )


def played(env: gymnasium.Env | gymnasium.vector.VectorEnv, seed: int | None) -> bytes:
    many = isinstance(env, gymnasium.vector.VectorEnv)
    observation, info = env.reset(seed=seed)
    values = [observation.tobytes(), np.asarray(info["row"]).tobytes()]
    for index in range(10):
        action = np.full(env.num_envs, index % 5) if many else index % 5
        observation, reward, *_ = env.step(action)
        values += [observation.tobytes(), np.asarray(reward).tobytes()]
    return b"".join(values)


@pytest.mark.parametrize("make", [MarketEnv, lambda **options: MarketVectorEnv(3, **options)])
def test_equal_seeds_give_equal_bytes_and_no_seed_goes_on(make):
    env, other = make(**feed_and_costs()), make(**feed_and_costs())
    first, second = played(env, 7), played(env, None)
    torch.manual_seed(1)  # no global state may matter
    assert played(other, 7) == first
    assert played(other, None) == second
    assert played(env, 7) == first
    assert played(env, 8) != first
    assert second != first


def test_environments_that_were_not_seeded_differ():
    env, other = MarketEnv(**feed_and_costs()), MarketEnv(**feed_and_costs())
    starts = [[market_env.reset()[1]["row"] for _ in range(8)] for market_env in (env, other)]
    assert starts[0] != starts[1]  # equal by chance once in 10 to the 17


# --- choosing a start


@pytest.mark.parametrize(
    "start",
    [
        {"symbol": "BBB/USDT:USDT", "row": 30},
        {"symbol": 1, "row": np.int64(30)},
        {"symbol": 1, "time": START_MS + 30 * HOUR_MS},
        {"symbol": "BBB/USDT:USDT", "time": "2021-01-05T06:00:00Z"},
        {"symbol": "BBB/USDT:USDT", "time": "2021-01-05T08:00:00+02:00"},
        {"symbol": "BBB/USDT:USDT", "time": datetime(2021, 1, 5, 6, tzinfo=UTC)},
    ],
)
def test_a_chosen_start_is_that_bar(start, two_symbols):
    panel, env = two_symbols.panel, two_symbols
    observation, info = env.reset(options=start)
    assert (info["symbol"], info["row"]) == (1, 30)
    last_return = float((panel.close[30, 1] / panel.close[29, 1]).log())
    assert observation[0] == pytest.approx(last_return, rel=1e-6)
    assert env.step(2)[4]["row"] == 31


def test_an_empty_choice_is_a_random_start():
    env = MarketEnv(**feed_and_costs())
    assert env.reset(seed=4, options={})[1] == env.reset(seed=4)[1]


def test_each_environment_of_a_vector_may_have_a_start_of_its_own():
    env = MarketVectorEnv(3, **small(wild_panel(3, rows=60, symbols=2)))
    info = env.reset(options={"symbol": ["BBB/USDT:USDT", 0, 1], "row": np.array([5, 6, 7])})[1]
    assert info["symbol"].tolist() == [1, 0, 1]
    assert info["row"].tolist() == [5, 6, 7]
    info = env.reset(options={"symbol": 1, "time": "2021-01-04T09:00:00Z"})[1]
    assert (info["symbol"].tolist(), info["row"].tolist()) == ([1, 1, 1], [9, 9, 9])


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        (
            {"simbol": 1},
            ChoiceError,
            "options of `reset` must be among `symbol`, `row`, `time`; found `simbol`. Did you "
            "mean `symbol`? [unknown-choice]",
        ),
        (
            {"symbol": "BBB/USDT", "row": 30},
            ChoiceError,
            "a symbol must be one of the panel's; found `BBB/USDT` and a panel of AAA/USDT:USDT, "
            "BBB/USDT:USDT. Did you mean `BBB/USDT:USDT`? [unknown-choice]",
        ),
        (
            {"symbol": 2, "row": 30},
            RangeError,
            "`symbol` must lie in 0 to 1; found 2 in environment 0. A bar must be left after the "
            "first decision. [out-of-range]",
        ),
        (
            {"symbol": 1, "row": 59},
            RangeError,
            "`row` must lie in 0 to 58; found 59 in environment 0. A bar must be left after the "
            "first decision. [out-of-range]",
        ),
        (
            {"symbol": 1, "row": -1},
            RangeError,
            "`row` must lie in 0 to 58; found -1 in environment 0. A bar must be left after the "
            "first decision. [out-of-range]",
        ),
        (
            {"symbol": 1, "row": 2.0},
            DtypeError,
            "`row` must be a whole number; found 2.0. Rows and columns of the panel are counted "
            "from 0. [dtype-mismatch]",
        ),
        (
            {"symbol": 1, "row": [1, 2]},
            ShapeError,
            "`row` must be one value, or one for each of 1 environments; found 2 values. Pass one "
            "value to start all environments alike. [shape-mismatch]",
        ),
        (
            {"symbol": 1},
            ArgumentError,
            "a chosen start must have a `row` or a `time`; found neither. Pass one of them, or no "
            "options at all for a random start. [missing-argument]",
        ),
        (
            {"symbol": 1, "row": 3, "time": START_MS},
            ArgumentError,
            "a chosen start must have a `row` or a `time`; found both. Pass one of them, or no "
            "options at all for a random start. [config-inconsistent]",
        ),
        (
            {"row": 3},
            ArgumentError,
            "a chosen start must name its `symbol` where there are several; found none, and a "
            "panel of AAA/USDT:USDT, BBB/USDT:USDT. Pass for example `AAA/USDT:USDT`. "
            "[missing-argument]",
        ),
        (
            {"symbol": 1, "time": "2021-01-05T06:30:00Z"},
            RangeError,
            "a bar must open at `time`, in 2021-01-04T00:00:00Z to 2021-01-06T11:00:00Z every 1h; "
            "found 2021-01-05T06:30:00Z. Pass the time at which the first decision's bar opens. "
            "[out-of-range]",
        ),
        (
            {"symbol": 1, "time": "2021-01-05T06:00:00"},
            DtypeError,
            "`time` must be UTC milliseconds, or a date and time with its zone; found "
            "'2021-01-05T06:00:00'. Write for example 2024-01-01T00:00:00Z. [dtype-mismatch]",
        ),
        (
            {"symbol": 1, "time": "noon"},
            DtypeError,
            "`time` must be UTC milliseconds, or a date and time with its zone; found 'noon'. "
            "Write for example 2024-01-01T00:00:00Z. [dtype-mismatch]",
        ),
    ],
)
def test_a_start_that_cannot_be_is_refused(options, kind, words):
    env = MarketEnv(**small(wild_panel(3, rows=60, symbols=2)))
    with pytest.raises(kind) as refusal:
        env.reset(options=options)
    assert str(refusal.value) == words


@pytest.mark.refusal
def test_a_start_before_the_span_or_the_first_bar_is_refused():
    panel = wild_panel(3, rows=60, symbols=2)
    panel.listed[:25, 1] = False
    env = MarketEnv(**small(panel), span=Span(START_MS + 20 * HOUR_MS, START_MS + 60 * HOUR_MS))
    words = (
        "an episode of {} must start at row {} or later; found row {} in environment 0. Earlier "
        "rows lie before the span, or before the symbol's first bar. [out-of-range]"
    )
    for symbol, name, first in ((0, "AAA/USDT:USDT", 20), (1, "BBB/USDT:USDT", 25)):
        assert env.reset(options={"symbol": symbol, "row": first})[1]["row"] == first
        with pytest.raises(RangeError) as refusal:
            env.reset(options={"symbol": symbol, "row": first - 1})
        assert str(refusal.value) == words.format(name, first, first - 1)


# --- bad actions and arguments


@pytest.mark.parametrize(
    ("action", "kind", "words"),
    [
        (5, RangeError, "one of 5 levels, 0 to 4; found 5 in environment 0"),
        (-1, RangeError, "one of 5 levels, 0 to 4; found -1 in environment 0"),
        (2.0, DtypeError, "an action must be a whole number; found float64 2.0"),
        (math.nan, DtypeError, "an action must be a whole number; found float64 nan"),
        (True, DtypeError, "an action must be a whole number; found bool True"),
        (None, DtypeError, "an action must be a whole number; found object None"),
        ("buy", DtypeError, "an action must be a whole number; found <U3 'buy'"),
        (np.array([2]), ShapeError, r"must have the shape \(\); found \(1,\)"),
    ],
)
def test_a_bad_level_is_refused_and_the_episode_goes_on(action, kind, words, by_levels):
    env = by_levels
    env.reset(seed=0)
    with pytest.raises(kind, match=words):
        env.step(action)
    assert env.step(np.array(2))[4]["row"] == 2


@pytest.mark.parametrize(
    ("action", "kind", "words"),
    [
        ([math.nan], RangeError, "a finite weight from -1.0 to 1.0; found nan in environment 0"),
        ([math.inf], RangeError, "a finite weight from -1.0 to 1.0; found inf"),
        ([1.001], RangeError, "a finite weight from -1.0 to 1.0; found 1.001"),
        ([-1.001], RangeError, "a finite weight from -1.0 to 1.0; found -1.001"),
        (0.5, ShapeError, r"must have the shape \(1,\); found \(\)"),
        ([0.5, 0.5], ShapeError, r"must have the shape \(1,\); found \(2,\)"),
        (["0.5"], DtypeError, "an action must be a number; found <U3"),
    ],
)
def test_a_bad_weight_is_refused_and_the_episode_goes_on(action, kind, words, by_weights):
    env = by_weights
    env.reset(seed=0)
    with pytest.raises(kind, match=words):
        env.step(action)
    assert env.step(np.array([0.5], dtype=np.float32))[4]["signal_pos_requested"] == 0.5


@pytest.mark.parametrize("bound", [0.3, 0.7])  # float32 rounds one of them up and one down
def test_the_edge_of_the_action_space_is_the_bound_of_the_config(bound):
    env = MarketEnv(**one_start(action="continuous", weight_range=(-bound, bound)))
    env.reset(seed=0)
    assert env.step(env.action_space.high)[4]["signal_pos_requested"] == bound
    assert env.step(env.action_space.low)[4]["signal_pos_requested"] == -bound
    with pytest.raises(RangeError, match="a finite weight"):
        env.step(np.nextafter(env.action_space.high, np.float32(1)) + np.float32(1e-6))


def test_a_bad_action_of_a_vector_is_refused():
    env = MarketVectorEnv(3, **one_start())
    env.reset(seed=0)
    with pytest.raises(RangeError, match="found 9 in environment 1, and 2 bad in all"):
        env.step(np.array([0, 9, -1]))
    with pytest.raises(ShapeError, match=r"must have the shape \(3,\); found \(2,\)"):
        env.step(np.array([0, 1]))
    with pytest.raises(DtypeError, match="an action must be a whole number; found float64"):
        env.step(np.array([0.0, 1.0, 2.0]))


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"panel": wild_panel(3, rows=14), "store": "bars", "interval": "1h"},
            "an environment must have one source of bars; found `panel` and `store`, `interval`. "
            "Pass a panel, or a store with symbols and an interval. [config-inconsistent]",
        ),
        (
            {"store": "bars", "interval": "1h"},
            "`store`, `symbols` and `interval` must be given together; found `store`, `interval` "
            "only. Name the folder, the symbols and the bars' length, such as `1h`. "
            "[missing-argument]",
        ),
        (
            {"render_mode": "rgb_aray"},
            "`render_mode` must be one of `rgb_array`, `ansi`; found `rgb_aray`. Did you mean "
            "`rgb_array`? [unknown-choice]",
        ),
    ],
)
@pytest.mark.parametrize("kind", [MarketEnv, MarketVectorEnv])
def test_arguments_that_do_not_fit_are_refused(kind, arguments, words):
    with pytest.raises(ArgumentError) as refusal:
        kind(**arguments)
    assert str(refusal.value) == words


# --- many at once


def test_a_vector_has_batched_spaces_and_says_how_it_resets():
    env = gymnasium.make_vec(MARKET, num_envs=4)
    assert type(env) is MarketVectorEnv
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert env.single_action_space == gymnasium.spaces.Discrete(5)
    assert env.action_space == gymnasium.spaces.MultiDiscrete([5] * 4)
    assert env.single_observation_space.shape == (40,)
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
    assert env.observation_space.contains(observation)
    assert [(column.shape, column.dtype) for column in (reward, terminated, truncated)] == [
        ((4,), np.float64),
        ((4,), np.bool_),
        ((4,), np.bool_),
    ]
    weights = gymnasium.make_vec(MARKET, num_envs=4, config=MarketConfig(action="continuous"))
    weights.reset(seed=0)
    assert weights.action_space.shape == (4, 1)
    requested = weights.action_space.sample()
    np.testing.assert_array_equal(
        weights.step(requested)[4]["signal_pos_requested"], requested[:, 0]
    )


def same(infos: dict, other: dict) -> None:
    """Compare two infos of vector environments where their masks say that something is there."""
    names = {name for name in other if not name.startswith("_")}
    assert names <= set(infos)
    for name in {name for name in infos if not name.startswith("_")} - names:
        assert not infos[f"_{name}"].any(), name
    for name in names:
        here = infos[f"_{name}"]
        np.testing.assert_array_equal(here, other[f"_{name}"], err_msg=name)
        np.testing.assert_array_equal(infos[name][here], other[name][here], err_msg=name)


@pytest.mark.parametrize("action", ["levels", "continuous"])
def test_the_vector_does_what_gymnasium_does_with_single_ones(action):
    # Every episode starts at the same bar, so random starts agree; three episodes with their ends.
    options = one_start(action=action, **{"stops.drawdown": 0.1})
    ours = gymnasium.make_vec(MARKET, num_envs=4, **options)
    theirs = gymnasium.make_vec(MARKET, num_envs=4, vectorization_mode="sync", **options)
    ours.action_space.seed(1)
    first, other = ours.reset(seed=0), theirs.reset(seed=0)
    np.testing.assert_array_equal(first[0], other[0])
    same(first[1], other[1])
    ends, kinds = 0, set()
    for _ in range(40):
        actions = ours.action_space.sample()
        step, expected = ours.step(actions), theirs.step(actions)
        for mine, its in zip(step[:4], expected[:4], strict=True):
            assert mine.dtype == its.dtype
            np.testing.assert_array_equal(mine, its)
        same(step[4], expected[4])
        ends += int((step[2] | step[3]).sum())
        kinds |= {"terminated"} if step[2].any() else set()
        kinds |= {"truncated"} if step[3].any() else set()
    assert ends >= 12
    assert kinds == {"terminated", "truncated"}


def test_equal_decisions_earn_the_same_alone_and_in_a_batch():
    options = small(wild_panel(8, rows=80, symbols=3))
    symbols, rows = [0, 1, 2, 1], [3, 17, 40, 67]
    many = MarketVectorEnv(4, **options)
    observation, infos = many.reset(options={"symbol": symbols, "row": rows})
    single = [MarketEnv(**options) for _ in range(4)]
    for index, env in enumerate(single):
        alone, info = env.reset(options={"symbol": symbols[index], "row": rows[index]})
        np.testing.assert_array_equal(alone, observation[index])
        assert info == {name: infos[name][index] for name in info}
    choices = np.random.default_rng(2).integers(5, size=(12, 4))
    for actions in choices:
        observation, reward, terminated, truncated, _ = many.step(actions)
        for index, env in enumerate(single):
            alone = env.step(int(actions[index]))
            np.testing.assert_array_equal(alone[0], observation[index])
            assert alone[1:4] == (reward[index], terminated[index], truncated[index])
    assert (terminated | truncated).all()


def test_the_step_after_an_end_ignores_its_action_and_shows_the_new_episode():
    options = small(wild_panel(8, rows=80, symbols=3), action="continuous")
    many = MarketVectorEnv(2, **options)
    many.reset(seed=3, options={"symbol": 0, "row": [3, 5]})
    for _ in range(12):
        last = many.step(np.array([[0.7], [-0.7]]))
    assert last[3].all()
    np.testing.assert_array_equal(last[4]["terminal_observation"], last[0])
    # NaN and a weight that nobody offered: refused on any other step.
    observation, reward, terminated, truncated, infos = many.step(np.array([[math.nan], [9.0]]))
    assert reward.tolist() == [0.0, 0.0]
    assert not (terminated | truncated).any()
    assert infos["sample_weight"].tolist() == [0.0, 0.0]
    for index in range(2):
        start = {"symbol": int(infos["symbol"][index]), "row": int(infos["row"][index])}
        alone, info = MarketEnv(**options).reset(options=start)
        np.testing.assert_array_equal(observation[index], alone)
        assert info == {name: infos[name][index] for name in info}
    assert many.step(np.array([[0.0], [0.0]]))[4]["sample_weight"].tolist() == [1.0, 1.0]


def test_gymnasium_turns_the_vector_info_into_that_of_single_ones():
    options = one_start()
    many, env = DictInfoToList(MarketVectorEnv(2, **options)), MarketEnv(**options)
    assert many.reset(seed=0)[1][1] == env.reset(seed=0)[1]
    for action in (2, 4, 4, 0):
        infos, info = many.step(np.array([2, action]))[4][1], env.step(action)[4]
        assert infos == info


def test_what_a_caller_does_to_returned_arrays_changes_nothing():
    env, other = MarketVectorEnv(2, **one_start()), MarketVectorEnv(2, **one_start())
    actions = np.array([4, 1])
    results = [env.reset(seed=0), other.reset(seed=0)]
    for _ in range(3):
        for value in (results[0][0], *results[0][-1].values()):
            value.fill(0)
        results = [env.step(actions), other.step(actions)]
        assert results[0][4]["equity"].tolist() == results[1][4]["equity"].tolist()
        np.testing.assert_array_equal(results[0][0], results[1][0])


# --- pictures


def colours(picture: np.ndarray) -> set[tuple[int, int, int]]:
    """Return which of the two colours of a position are there."""
    return {colour for colour in (BLUE, ORANGE) if (picture == colour).all(-1).any()}


def extent(picture: np.ndarray, colour: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return the first and last row and the last column of a colour, below the title."""
    rows, columns = np.nonzero((picture[30:] == colour).all(-1))
    return int(rows.min()) + 30, int(rows.max()) + 30, int(columns.max())


def test_a_picture_shows_price_position_and_equity():
    panel = market(steady([100, 100, 100, 110, 99, 99]))
    options = small(panel, episode_bars=4, levels=(-1.0, 0.0, 1.0), **FREE)
    env = MarketEnv(**options, render_mode="rgb_array")
    env.reset(options={"row": 1})
    empty = env.render()
    assert (empty.shape, empty.dtype) == ((480, 640, 3), np.uint8)
    assert colours(empty) == set()
    env.step(2)
    env.step(2)
    picture = env.render()
    assert colours(picture) == {BLUE}
    # Two of four bars reach the middle of the axis, column 74 + 548 / 2; a dot marks the newest.
    # Panels leave 8 % of air above and below, so the price rises from row 186 to row 62, the equity
    # from row 442 to row 335. The position fills the upper half of its own, from row 224 to 261.
    np.testing.assert_allclose(extent(picture, PRICE), (62 - 3, 186, 348 + 2), atol=1.5)
    np.testing.assert_allclose(extent(picture, EQUITY), (335 - 3, 442, 348 + 2), atol=1.5)
    np.testing.assert_allclose(extent(picture, BLUE), (224, 261, 348), atol=1.5)
    env.step(0)
    assert colours(env.render()) == {BLUE, ORANGE}


def test_the_picture_of_an_ended_episode_stays_until_the_next():
    env = MarketEnv(**one_start(), render_mode="rgb_array")
    env.reset(seed=0)
    for _ in range(12):
        env.step(4)
    assert BLUE in colours(env.render())
    env.reset()
    assert BLUE not in colours(env.render())


def test_ansi_is_one_line():
    panel = market(steady([100, 100, 100, 110, 99, 99]))
    options = small(panel, episode_bars=3, levels=(-1.0, 0.0, 0.5), **FREE)
    env = MarketEnv(**options, render_mode="ansi")
    env.reset(options={"row": 1})
    env.step(2)
    env.step(2)
    # 50 bought at 100; at the open of 110 equity is 10,500, and half of it is kept.
    assert env.render() == (
        "AAA/USDT:USDT 2021-01-04T03:00:00Z bar 2/3 price 110 position +0.50 equity 10500.00 "
        "(+5.00%)"
    )


def test_a_vector_draws_each_environment_and_begins_anew_with_its_episode():
    env = MarketVectorEnv(2, **one_start(), render_mode="ansi")
    env.reset(seed=0)
    for _ in range(12):
        env.step(np.array([4, 2]))
    assert [line.split(" bar ")[1].split()[0] for line in env.render()] == ["12/12", "12/12"]
    env.step(np.array([4, 2]))
    assert [line.split(" bar ")[1].split()[0] for line in env.render()] == ["0/12", "0/12"]
    pictures = MarketVectorEnv(2, **one_start(), render_mode="rgb_array")
    pictures.reset(seed=0)
    pictures.step(np.array([4, 0]))
    assert [colours(picture) for picture in pictures.render()] == [{BLUE}, {ORANGE}]


@pytest.mark.parametrize("make", [MarketEnv, lambda **options: MarketVectorEnv(2, **options)])
def test_drawing_needs_a_mode_and_an_episode(make):
    silent = make(**one_start())
    silent.reset(seed=0)
    with pytest.warns(UserWarning, match="`render` draws nothing without a `render_mode`"):
        assert silent.render() is None
    with pytest.raises(gymnasium.error.ResetNeeded, match="an episode must be running"):
        make(**one_start(), render_mode="ansi").render()


@pytest.mark.refusal
def test_drawing_without_pillow_says_what_to_install(monkeypatch):
    env = MarketEnv(**one_start(), render_mode="rgb_array")
    env.reset(seed=0)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ConfigError) as refusal:
        env.render()
    assert str(refusal.value) == (
        "`render` needs the package Pillow; found no such package in this environment. "
        "Run `pip install pillow`, or render as `ansi`. [missing-extra]"
    )


# --- somebody else's learner


@pytest.mark.parametrize("kind", ["single", "vector"])
def test_stable_baselines3_learns_to_hold_what_only_rises(kind):
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    from stormsail.market.gymnasium import StableBaselinesEnv

    panel = market(steady([100.0 * 1.02**row for row in range(80)]))
    options = small(panel, episode_bars=16, levels=(-1.0, 0.0, 1.0), **FREE)
    if kind == "vector":
        envs = StableBaselinesEnv(4, **options)
    else:
        envs = DummyVecEnv([lambda: gymnasium.make(MARKET, **options) for _ in range(4)])
    model = PPO("MlpPolicy", envs, n_steps=128, batch_size=64, learning_rate=3e-3, seed=0)
    model.learn(2_000)
    assert model.num_timesteps == 2_048  # whole rollouts of 4 times 128
    env = gymnasium.make(MARKET, **options)
    observation, _ = env.reset(seed=1)
    growth, ended = 0.0, False
    while not ended:
        action, _ = model.predict(observation, deterministic=True)
        observation, reward, terminated, truncated, _ = env.step(action)
        growth, ended = growth + reward, terminated or truncated
    # The first fill is at the next open, after the first rise: 15 of 16 rises can be had.
    assert growth == pytest.approx(15 * math.log(1.02), rel=1e-9)


def test_an_account_of_stable_baselines3_is_one_of_the_vector_environment():
    from stormsail.market.gymnasium import StableBaselinesEnv

    options = small(wild_panel(5, rows=200, symbols=3), **{"stops.drawdown": 0.1})
    envs, plain = StableBaselinesEnv(3, **options), MarketVectorEnv(3, **options)
    envs.seed(7)
    observation, expected = envs.reset(), plain.reset(seed=7)[0]
    rng, ends, growth, length = np.random.default_rng(1), 0, np.zeros(3), np.zeros(3)
    for _ in range(60):
        np.testing.assert_array_equal(observation, expected)
        actions = rng.integers(5, size=3)
        observation, reward, done, infos = envs.step(actions)
        expected, rewards, terminated, truncated, told = plain.step(actions)
        np.testing.assert_array_equal(reward, rewards.astype(np.float32))
        np.testing.assert_array_equal(done, terminated | truncated)
        growth, length = growth + rewards, length + 1
        for index in np.flatnonzero(done):
            np.testing.assert_array_equal(infos[index]["terminal_observation"], expected[index])
            assert infos[index]["TimeLimit.truncated"] == truncated[index]
            assert infos[index]["equity"] == told["equity"][index]
            assert infos[index]["episode"] == {"r": growth[index], "l": length[index]}
        assert [bool(info) for info in infos] == done.tolist()
        ends += int(done.sum())
        if done.any():
            expected = np.where(done[:, None], plain.restart(), expected)
            growth[done], length[done] = 0.0, 0
            # a new account: no position, all of the episode left
            flat = observation[done][:, [-6, -2, -1]]
            np.testing.assert_array_equal(flat, np.array([[0.0, 0.0, 1.0]] * int(done.sum())))
    assert ends >= 12


def test_restarting_leaves_the_accounts_that_are_running_alone():
    options = small(wild_panel(5, rows=200, symbols=3), episode_bars=4)
    kept, restarted = MarketVectorEnv(2, **options), MarketVectorEnv(2, **options)
    for envs in (kept, restarted):
        envs.reset(options={"symbol": [0, 1], "row": [10, 50]})
    restarted.restart()
    for action in ([4, 0], [1, 3], [2, 2]):
        for ours, theirs in zip(
            kept.step(np.array(action))[:2], restarted.step(np.array(action))[:2], strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)
