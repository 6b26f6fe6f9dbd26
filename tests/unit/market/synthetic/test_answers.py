"""The known answers: what the best strategies earn in drawn worlds, and what the formulas say."""

import itertools

import numpy as np
import pytest

from stormsail.core.errors import RangeError
from stormsail.market.interval import Interval
from stormsail.market.synthetic import best_growth, generate, path_optimum, process_of

HOUR = Interval.parse("1h")
SIGMAS = 4.5
SYMBOL = "AAA/USDT:USDT"


def draw(world, bars=200_000, seed=21, **parameters):
    return generate(world, symbols=1, bars=bars, interval=HOUR, seed=seed, **parameters)


def simple(drawn):
    """Return what a decision at the close before each bar earns: open to close."""
    return drawn.bars[0].column("close") / drawn.bars[0].column("open") - 1.0


def assert_mean(sample, expected):
    batches = sample[: len(sample) // 100 * 100].reshape(100, -1).mean(axis=1)
    error = batches.std(ddof=1) / 10.0
    assert abs(sample.mean() - expected) < SIGMAS * error, (sample.mean(), expected, error)
    return error


@pytest.mark.parametrize("phi", [0.2, -0.3])
def test_the_sign_strategy_earns_the_closed_form_on_ar1(phi):
    world = draw("ar1", phi=phi)
    returns, process = simple(world), world.process
    weight = np.sign(phi * returns[:-1])
    error = assert_mean(weight * returns[1:], process.sign_gain)
    assert process.sign_gain > 20 * error
    assert_mean(np.abs(np.diff(weight)), process.sign_turnover)
    banded = np.where(np.abs(returns[:-1]) > 0.012, weight, 0.0)
    assert_mean(banded * returns[1:], process.threshold_gain(0.012))
    net = weight[1:] * returns[2:] - process.break_even_cost * np.abs(np.diff(weight))
    assert_mean(net, 0.0)


def test_ar1_by_hand():
    """φ .5, s .02: gain .5·.02·.79788 = .0079788; arccos .5 = π/3, so turnover 2/3;

    break-even .0119683; σ² = 4e-4·.75 = 3e-4; weight at R = .01: .005/3e-4 = 16.667;
    utility .25/(2·.75) = 1/6.
    """
    process = process_of("ar1", phi=0.5, volatility=0.02)
    assert process.sign_gain == pytest.approx(0.0079788456, rel=1e-8)
    assert process.sign_turnover == pytest.approx(2 / 3)
    assert process.break_even_cost == pytest.approx(0.0119682684, rel=1e-8)
    assert process.optimal_weight(np.array([0.01]))[0] == pytest.approx(16.6666667)
    assert process.optimal_utility == pytest.approx(1 / 6)


def test_the_closed_form_weight_is_the_best_multiple_on_ar1():
    world = draw("ar1")
    returns, process = simple(world), world.process
    weight = process.optimal_weight(returns[:-1])
    drift = process.config.phi * returns[:-1]

    def utility(factor):
        held = factor * weight
        return held * returns[1:] - held**2 * (returns[1:] - drift) ** 2 / 2

    assert_mean(utility(1.0), process.optimal_utility)
    assert utility(1.0).mean() > max(utility(0.8).mean(), utility(1.2).mean())


def test_costs_open_a_band_on_ar1_and_its_policy_earns_what_was_predicted():
    world = draw("ar1")
    weights, cost = np.array([-1.0, 0.0, 1.0]), 0.001
    returns, optimum = simple(world), world.process.optimal(cost_rate=cost)
    assert optimum.error < 1e-11
    place = np.clip(np.rint(returns[:-1] / 0.01 / 0.02).astype(int) + 300, 0, 600)
    held, gains = 1, np.empty(len(place))
    for bar, row in enumerate(place):
        chosen = optimum.choice[held, row]
        cut = np.log1p(-cost * abs(weights[chosen] - weights[held]))
        gains[bar] = cut + np.log1p(weights[chosen] * returns[bar + 1])
        held = chosen
    assert_mean(gains, optimum.log_growth)
    middle = optimum.choice.shape[1] // 2
    assert optimum.choice[:, middle].tolist() == [0, 1, 2]  # nothing is worth a trade at R = 0
    free = world.process.optimal()
    assert free.choice[:, middle + 20].tolist() == [2, 2, 2]
    assert free.log_growth > optimum.log_growth > world.process.optimal(cost_rate=0.01).log_growth
    # without costs: the sign strategy, less half the variance that any full weight pays
    assert free.log_growth == pytest.approx(world.process.sign_gain - 0.5e-4, rel=2e-3)


def test_the_leak_is_the_next_return_exactly():
    world = draw("oracle", bars=20_000)
    leak, returns = world.features[SYMBOL]["leak"], simple(world)
    assert len(leak) == len(returns)
    assert np.array_equal(leak[:-1], returns[1:])
    longer = simple(draw("oracle", bars=20_001))
    assert leak[-1] == longer[-1]


def test_nothing_but_the_leak_predicts_on_oracle():
    world = draw("oracle")
    returns, bars = simple(world), world.bars[0]
    after = returns[1:] / returns.std()
    for column in ("volume", "trades", "taker_buy_base"):
        score = np.log(bars.column(column)[:-1])
        score = (score - score.mean()) / score.std()
        assert abs((score * after).mean()) < SIGMAS / np.sqrt(len(after))
    for lag in range(1, 6):
        assert abs((returns[lag:] * returns[:-lag]).mean()) < (
            SIGMAS * returns.var() / np.sqrt(len(returns))
        )


def test_a_noisy_leak_is_worth_what_the_process_says():
    world = draw("oracle", leak_noise=0.02)
    leak, returns = world.features[SYMBOL]["leak"][:-1], simple(world)[1:]
    assert world.process.trust == pytest.approx(0.2)
    assert_mean(leak * returns, 1e-4)
    assert_mean((returns - 0.2 * leak) * leak, 0.0)
    assert_mean(np.sign(leak) * returns, world.process.sign_gain)


@pytest.mark.parametrize("cost", [0.0, 0.001, 0.004])
def test_the_clairvoyant_policy_earns_what_was_predicted(cost):
    world = draw("oracle", bars=100_000)
    weights, optimum = np.array([-1.0, 0.0, 1.0]), world.process.optimal(cost_rate=cost)
    leak, returns = world.features[SYMBOL]["leak"][:-1], simple(world)[1:]
    place = np.clip(np.rint(leak / 0.01 / 0.02).astype(int) + 300, 0, 600)
    held, gains = 1, np.empty(len(place))
    for bar, row in enumerate(place):
        chosen = optimum.choice[held, row]
        cut = np.log1p(-cost * abs(weights[chosen] - weights[held]))
        gains[bar] = cut + np.log1p(weights[chosen] * returns[bar])
        held = chosen
    assert_mean(gains, optimum.log_growth)


def test_hindsight_is_the_best_of_all_sequences():
    returns = np.array([0.01, -0.02, 0.003, -0.001, 0.03])
    weights, cost = (-1.0, 0.0, 1.0), 0.004
    best, chosen = -np.inf, None
    for sequence in itertools.product(weights, repeat=len(returns)):
        held, total = 0.0, 0.0
        for weight, ret in zip(sequence, returns, strict=True):
            total += np.log(1 - cost * abs(weight - held)) + np.log(1 + weight * ret)
            held = weight * (1 + ret) / (1 + weight * ret)
        if total > best:
            best, chosen = total, sequence
    growth, path = path_optimum(returns, weights, cost_rate=cost)
    assert growth == pytest.approx(best, rel=1e-12)
    assert tuple(path) == chosen


def test_hindsight_bounds_the_clairvoyant_who_sees_one_bar():
    world = draw("oracle", bars=20_000)
    hindsight, _ = path_optimum(simple(world), (-1.0, 0.0, 1.0), cost_rate=0.005)
    assert hindsight / 20_000 > world.process.optimal(cost_rate=0.005).log_growth * 1.05


def test_value_iteration_by_hand():
    """Two states, as likely, each left nine times in ten; weight 1 gains 1 in one, −1 in the other.

    Without costs: hold it in the good one, ½ a bar. At .2 a change costs log .8 in 9 of 10 bars.
    """
    gain = np.array([[0.0, 1.0], [0.0, -1.0]])
    transition = np.array([[0.1, 0.9], [0.9, 0.1]])
    free = best_growth(gain, transition, (0.0, 1.0), cost_rate=0.0)
    assert free.log_growth == pytest.approx(0.5)
    assert free.choice.tolist() == [[1, 0], [1, 0]]
    dear = best_growth(gain, transition, (0.0, 1.0), cost_rate=0.2)
    assert dear.log_growth == pytest.approx(0.5 + 0.9 * np.log(0.8))
    # so dear that one never starts
    assert best_growth(gain, transition, (0.0, 1.0), cost_rate=0.9).log_growth == 0.0


def test_the_bayes_filter_beats_holding_by_the_stated_amount():
    world = draw("regime")
    returns, process = simple(world), world.process
    beliefs = process.bayes_filter(returns)
    grown = np.log1p(process.best_weights(beliefs)[:-1] * returns[1:])
    held = np.log1p(returns[1:])
    assert_mean(held, process.hold_log_growth)
    assert_mean(grown, process.filtered().log_growth)
    error = assert_mean(grown - held, process.filtered().log_growth - process.hold_log_growth)
    assert process.filtered().log_growth - process.hold_log_growth > 5 * error
    state = world.hidden[SYMBOL]["state"][1:]
    known = np.log1p(np.where(state == 0, 1.0, 0.0) * returns[1:])
    assert_mean(known, process.clairvoyant().log_growth)


def test_growth_where_crashes_are_a_state_is_that_of_the_process():
    settings = {
        "drifts": (0.0015, -0.0006, -0.25),
        "volatilities": (0.004, 0.008, 0.03),
        "stay": (0.998, 0.99, 0.0),
    }
    world = draw("regime", **settings)
    returns, process = simple(world), world.process
    assert_mean(np.log1p(returns), process.hold_log_growth)
    known = np.where(world.hidden[SYMBOL]["state"] == 0, 1.0, 0.0)
    assert_mean(np.log1p(known * returns), process.clairvoyant().log_growth)
    believed = process.bayes_filter(returns)[:-1, 2]
    # a crash can come in any bar and is announced by none: its chance is what the chain says
    assert believed.max() < 0.006
    assert_mean((world.hidden[SYMBOL]["state"][1:] == 2).astype(float), float(process.shares[2]))
    assert_mean(believed, float(process.shares[2]))


def test_filtered_probabilities_are_calibrated():
    world = draw("regime", bars=60_000)
    believed = world.process.bayes_filter(simple(world))[:-1, 0]
    state = world.hidden[SYMBOL]["state"][1:]
    for low in (0.0, 0.2, 0.5, 0.8):
        group = (believed >= low) & (believed < low + 0.2)
        error = 0.5 / np.sqrt(group.sum() / 20)  # stays last, so about 20 bars are worth one
        assert abs((state[group] == 0).mean() - believed[group].mean()) < SIGMAS * error


def test_the_bayes_filter_by_hand():
    """Stay .9 and .8: shares 2/3, 1/3. R = .02 with N(0, .01²) and N(0, .02²):

    densities ∝ e^{−2}/.01 = 13.5335 and e^{−.5}/.02 = 30.3265; posterior of the first
    2·13.5335/(2·13.5335 + 30.3265) = .471604; next .9·.471604 + .2·.528396 = .530123.
    """
    process = process_of("regime", drifts=(0.0, 0.0), volatilities=(0.01, 0.02), stay=(0.9, 0.8))
    assert process.bayes_filter(np.array([0.02]))[0] == pytest.approx(
        [0.530123, 0.469877], abs=1e-6
    )


def test_growth_rises_with_knowledge_and_falls_with_costs():
    process = process_of("regime")
    growths = [
        process.hold_log_growth,
        process.filtered(cost_rate=0.001).log_growth,
        process.filtered().log_growth,
        process.clairvoyant().log_growth,
    ]
    assert growths == sorted(growths)
    assert process.clairvoyant(cost_rate=0.001).log_growth < growths[-1]


@pytest.mark.refusal
def test_the_filtered_optimum_of_three_states_is_refused():
    process = process_of(
        "regime", drifts=(0.0, 0.0, 0.0), volatilities=(0.01, 0.01, 0.02), stay=(0.9, 0.9, 0.9)
    )
    with pytest.raises(RangeError) as refused:
        process.filtered()
    assert str(refused.value) == (
        "the filtered optimum is worked out for 2 states; found 3. Draw a world and use"
        " `bayes_filter` and `best_weights` on it. [out-of-range]"
    )
    assert "filtered_log_growth" not in process.numbers()


@pytest.mark.parametrize("weight", [0.05, 0.3, 1.0])
def test_the_growth_curve_of_crash_is_the_closed_form(weight):
    world = draw("crash", bars=400_000)
    assert_mean(np.log1p(weight * simple(world)), world.process.log_growth(weight))


def test_crash_by_hand():
    """One bar in ten loses .5, the others gain .01: .9·log 1.01 + .1·log .5 = −.0603595."""
    process = process_of(
        "crash", drift=0.01, volatility=1e-4, crash_probability=0.1, drop=(0.5, 0.5)
    )
    assert process.log_growth(1.0) == pytest.approx(-0.0603594, abs=1e-6)
    # mean of log(1 − D) over D uniform on [.2, .6]:
    # [F(.8) − F(.4)]/.4 with F(x) = x log x − x: (−.978515 + .766516)/.4 = −.529996
    wide = process_of("crash", crash_probability=0.1, drift=0.0, volatility=1e-4, drop=(0.2, 0.6))
    assert wide.log_growth(1.0) == pytest.approx(-0.0529996, abs=1e-6)


def test_the_weight_that_grows_best_has_by_far_the_worse_tail():
    process = process_of("crash")
    best = process.optimal_weight()
    assert best == 1.0
    grid = [process.log_growth(weight) for weight in np.linspace(0.0, 1.0, 11)]
    assert grid == sorted(grid)
    full, small = process.episode_cvar(1.0, bars=256), process.episode_cvar(0.1, bars=256)
    assert full < -0.4
    assert small > -0.04
    free = process.optimal_weight(most=3.0)
    assert 1.5 < free < 2.2
    assert process.log_growth(free) > max(
        process.log_growth(free - 0.01), process.log_growth(free + 0.01)
    )


def test_episode_returns_of_crash_have_the_distribution_of_drawn_episodes():
    world = draw("crash", bars=512_000, crash_probability=0.002)
    episodes = np.log1p(0.5 * simple(world)).reshape(-1, 128).sum(axis=1)
    drawn = world.process.episode_returns(0.5, bars=128)
    error = np.hypot(episodes.std() / np.sqrt(len(episodes)), drawn.std() / np.sqrt(len(drawn)))
    assert abs(episodes.mean() - drawn.mean()) < SIGMAS * error
    for level in (0.02, 0.1, 0.5, 0.9):
        below = (episodes < np.quantile(drawn, level)).mean()
        assert abs(below - level) < SIGMAS * np.sqrt(level * (1 - level) / len(episodes)) * 1.1


def test_heeding_warnings_pays_what_the_process_says():
    settings = {"crash_probability": 0.003, "warning_share": 0.8, "false_alarms": 0.05}
    world = draw("crash", bars=400_000, drift=0.001, **settings)
    process = world.process
    best = {
        flag: process.optimal_weight(crash_probability=process.crash_given(warning=flag))
        for flag in (True, False)
    }
    warned = world.features[SYMBOL]["warning"][:-1] == 1.0
    weight = np.where(warned, best[True], best[False])
    assert best[True] < 0.01
    assert_mean(np.log1p(weight * simple(world)[1:]), process.warned_log_growth())
    assert process.warned_log_growth() > process.log_growth(process.optimal_weight()) + 2e-4


def test_no_simple_strategy_grows_on_noise():
    world = draw("noise", bars=300_000)
    returns = simple(world)
    for weight in (np.sign(returns[:-1]), -np.sign(returns[:-1]), np.ones(len(returns) - 1)):
        assert_mean(weight * returns[1:], 0.0)
        assert_mean(np.log1p(weight * returns[1:]), world.process.log_growth(1.0))
    assert world.process.log_growth(0.5) == pytest.approx(-0.125e-4, rel=1e-3)
    assert world.process.log_growth(0.0) == 0.0


def test_the_range_of_a_regime_bar_says_nothing_that_its_return_does_not():
    world = draw("regime", drifts=(0.0, 0.0), volatilities=(0.004, 0.02))
    bars, state = world.bars[0], world.hidden[SYMBOL]["state"]
    span = np.log(bars.column("high") / bars.column("low"))
    for column in (span, np.log(bars.column("volume") * bars.column("close"))):
        for low in (0.0, 0.001, 0.002):
            size = np.abs(simple(world))
            groups = [
                column[(size >= low) & (size < low + 0.001) & (state == each)] for each in (0, 1)
            ]
            # volumes persist: about nine bars of them are worth one
            error = 3.0 * np.sqrt(sum(group.var() / len(group) for group in groups))
            assert abs(groups[0].mean() - groups[1].mean()) < SIGMAS * error


@pytest.mark.refusal
def test_weights_that_can_lose_everything_are_refused():
    with pytest.raises(RangeError) as refused:
        process_of("regime").clairvoyant(weights=(0.0, 30.0))
    assert str(refused.value) == (
        "a weight must leave something after every return that its growth counts; found weight 30"
        " and a return of -0.122. Use a weight nearer to 0. [out-of-range]"
    )
    for weight in (2.5, -30.0, float("nan")):
        with pytest.raises(RangeError):
            process_of("crash").log_growth(weight)
        with pytest.raises(RangeError):
            process_of("crash").episode_returns(weight, bars=10)


def test_the_best_weight_of_crash_stays_where_growth_is_finite():
    process = process_of("crash", drift=0.01, volatility=0.05, crash_probability=0.0)
    best = process.optimal_weight(most=100.0)
    assert np.isfinite(process.log_growth(best))
    assert process.log_growth(0.9 * best) < process.log_growth(best)
    # without a crash, 1/drop is no bound; with one it is
    calm = process_of("crash", drift=0.01, volatility=0.01, crash_probability=0.0)
    assert calm.optimal_weight(most=5.0) == 5.0
    assert process_of("crash", drift=0.01).optimal_weight(most=5.0) < 1 / 0.45


def test_a_short_in_a_crash_gains_the_mean_of_its_logarithm():
    """Mean of log(1 + D) over D uniform on [.2, .6]: [F(1.6) − F(1.2)]/.4 = .333050."""
    process = process_of(
        "crash", crash_probability=0.1, drift=0.0, volatility=1e-4, drop=(0.2, 0.6)
    )
    assert process.log_growth(-1.0) == pytest.approx(0.1 * 0.3330498, abs=1e-6)
