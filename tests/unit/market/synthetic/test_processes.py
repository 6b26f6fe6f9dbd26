"""Drawn worlds against their stated processes, at 4.5 standard errors and fixed seeds."""

import numpy as np
import pytest
from scipy import integrate, stats

from stormsail.core.errors import RangeError
from stormsail.market.interval import Interval
from stormsail.market.synthetic import WORLDS, generate, process_of
from stormsail.market.synthetic.bars import draw_funding
from stormsail.market.synthetic.noise import density, upper_tail
from stormsail.market.synthetic.process import WorldConfig

HOUR = Interval.parse("1h")
SIGMAS = 4.5

# Settings with which eighth moments exist and pairs of crashes are not too rare to be seen, so that
# sample moments have standard errors at all.
TAME = {
    "crash": {"crash_probability": 0.02, "drop": (0.05, 0.1), "drift": 0.001},
    "garch_jump": {"alpha": 0.05, "beta": 0.9, "degrees": 60.0, "jump_deviation": 0.012},
}


def returns_of(drawn):
    bars = drawn.bars[0]
    simple = bars.column("close") / bars.column("open") - 1.0
    return np.log1p(simple) if drawn.process.measured == "log" else simple


def draw(world, bars=300_000, seed=12, **parameters):
    return generate(world, symbols=1, bars=bars, interval=HOUR, seed=seed, **parameters)


def assert_mean(sample, expected):
    """Compare with the mean of the process; the error is that of 100 batches, so clusters count."""
    batches = sample[: len(sample) // 100 * 100].reshape(100, -1).mean(axis=1)
    error = batches.std(ddof=1) / 10.0
    assert abs(sample.mean() - expected) < SIGMAS * error, (sample.mean(), expected, error)


@pytest.fixture(scope="module")
def drawn():
    return {world: draw(world, **TAME.get(world, {})) for world in WORLDS}


@pytest.mark.parametrize("world", WORLDS)
def test_mean_variance_and_kurtosis_are_those_of_the_process(world, drawn):
    returns, process = returns_of(drawn[world]), drawn[world].process
    assert_mean(returns, process.mean)
    assert_mean((returns - process.mean) ** 2, process.variance)
    assert_mean((returns - process.mean) ** 4, process.kurtosis * process.variance**2)


@pytest.mark.parametrize("lag", [1, 2, 5, 20])
@pytest.mark.parametrize("world", WORLDS)
def test_returns_and_squares_correlate_as_the_process_says(world, lag, drawn):
    process = drawn[world].process
    away = returns_of(drawn[world]) - process.mean
    assert_mean(away[lag:] * away[:-lag], process.autocorrelation(lag) * process.variance)
    squares = away**2 - process.variance
    spread = (process.kurtosis - 1.0) * process.variance**2
    assert_mean(squares[lag:] * squares[:-lag], process.squared_autocorrelation(lag) * spread)


@pytest.mark.parametrize("degrees", [3.0, 5.0, None])
def test_tails_of_noise_are_exceeded_as_often_as_the_process_says(degrees):
    noisy = draw("noise", degrees=degrees)
    sizes = np.abs(returns_of(noisy))
    for size in (0.02, 0.03, 0.06, 0.1):
        chance = noisy.process.exceedance(size)
        error = np.sqrt(chance * (1 - chance) / len(sizes))
        assert abs((sizes > size).mean() - chance) <= SIGMAS * error + 1 / len(sizes)


def test_the_variance_of_student_noise_is_heavy_and_still_that_of_the_process():
    noisy = draw("noise", degrees=5.0)
    assert noisy.process.kurtosis > 6.0
    assert_mean(returns_of(noisy) ** 2, noisy.process.variance)


def test_noise_shows_no_predictability(drawn):
    returns = returns_of(drawn["noise"])
    n, lags = len(returns), 20
    r = returns - returns.mean()
    correlations = np.array([(r[k:] * r[:-k]).mean() / r.var() for k in range(1, lags + 1)])
    assert np.abs(correlations).max() < SIGMAS / np.sqrt(n)
    ljung_box = n * (n + 2) * (correlations**2 / (n - np.arange(1, lags + 1))).sum()
    assert 1e-4 < stats.chi2.sf(ljung_box, lags) < 1 - 1e-4
    for horizon in (2, 10, 50):
        sums = np.lib.stride_tricks.sliding_window_view(returns, horizon).sum(axis=1)
        ratio = sums.var() / (horizon * returns.var())
        error = np.sqrt(2 * (2 * horizon - 1) * (horizon - 1) / (3 * horizon * n))
        assert abs(ratio - 1.0) < SIGMAS * error


def test_the_price_of_noise_is_a_martingale_with_student_tails_too():
    for degrees in (None, 2.5):
        noisy = draw("noise", volatility=0.05, bars=150_000, degrees=degrees)
        close, opening = noisy.bars[0].column("close"), noisy.bars[0].column("open")
        assert_mean(close / opening, 1.0)


def test_the_same_tests_do_find_momentum(drawn):
    """The tests that pass on noise must be able to fail."""
    returns = returns_of(drawn["ar1"])
    r = returns - returns.mean()
    assert (r[1:] * r[:-1]).mean() / r.var() > 50 * SIGMAS / np.sqrt(len(r)) / 5


def test_garch_by_hand():
    """alpha .1, beta .8, nearly Gaussian, no jumps.

    kurtosis = 3(1 − .9²)/(1 − .8² − 2·.1·.8 − 3·.1²) = .57/.17 = 3.3529 (Gaussian);
    first autocorrelation of squares = .1(1 − .08 − .64)/(1 − .16 − .64) = .028/.2 = .14,
    then times .9 a lag.
    """
    process = process_of("garch_jump", alpha=0.1, beta=0.8, degrees=1e7, jump_rate=0.0)
    assert process.variance == pytest.approx(1e-4)
    assert process.kurtosis == pytest.approx(0.57 / 0.17, rel=1e-5)
    assert process.squared_autocorrelation(1) == pytest.approx(0.14, rel=1e-5)
    assert process.squared_autocorrelation(3) == pytest.approx(0.14 * 0.81, rel=1e-5)


def test_jumps_by_hand():
    """λ .01, m 0, δ .1, on a variance of 1e-4 without clustering.

    variance 1e-4 + .01·.01 = 2e-4; fourth moment 3e-8 + 6·1e-4·1e-4 + (.01·3·1e-4 + 3e-8)
    = 3e-8 + 6e-8 + 3.03e-6 = 3.12e-6, over 4e-8: 78.
    """
    settings = {"jump_rate": 0.01, "jump_mean": 0.0, "jump_deviation": 0.1}
    process = process_of("garch_jump", alpha=0.0, beta=0.0, degrees=1e8, **settings)
    assert process.variance == pytest.approx(2e-4)
    assert process.kurtosis == pytest.approx(78.0, rel=1e-5)


def test_an_infinite_fourth_moment_is_said_to_be_infinite():
    assert process_of("garch_jump", degrees=4.0).kurtosis == np.inf
    assert process_of("garch_jump", alpha=0.3, beta=0.69).kurtosis == np.inf


def test_the_tail_index_of_garch_is_seen_by_hill():
    parameters = {"alpha": 0.15, "beta": 0.8, "degrees": 5.0, "jump_rate": 0.0}
    garch = draw("garch_jump", bars=400_000, **parameters)
    largest = np.sort(np.abs(returns_of(garch)))[::-1]
    count = 400
    hill = 1.0 / np.log(largest[:count] / largest[count]).mean()
    assert garch.process.tail_index == pytest.approx(3.475, abs=0.001)
    # 1/√400 = 5 %; clustering makes the error of dependent extremes some three times as large
    assert hill == pytest.approx(garch.process.tail_index, rel=0.25)


def test_lopsided_jumps_leave_the_mean_alone():
    world = draw("garch_jump", jump_rate=0.05, jump_mean=-0.02, drift=0.0005)
    assert_mean(returns_of(world), 0.0005)


@pytest.mark.parametrize("degrees", [None, 2.5, 8.0, 1e6])
def test_scores_are_those_of_scipy(degrees):
    process = stats.norm() if degrees is None else stats.t(degrees)
    for x in (0.0, 0.7, 3.0, 30.0):
        assert density(x, degrees) == pytest.approx(process.pdf(x), rel=1e-8, abs=1e-300)
        assert upper_tail(x, degrees) == pytest.approx(process.sf(x), rel=1e-8, abs=1e-300)


def test_jumps_come_as_often_as_the_rate_says():
    garch = draw("garch_jump", jump_rate=0.02)
    counts = garch.hidden["AAA/USDT:USDT"]["jumps"]
    assert abs(counts.mean() - 0.02) < SIGMAS * np.sqrt(0.02 / len(counts))
    assert abs((counts == 2).mean() - stats.poisson.pmf(2, 0.02)) < SIGMAS * np.sqrt(
        stats.poisson.pmf(2, 0.02) / len(counts)
    )


REGIMES = {
    "two": {},
    "three": {
        "drifts": (0.001, 0.0, -0.002),
        "volatilities": (0.005, 0.01, 0.02),
        "stay": (0.98, 0.95, 0.9),
    },
    "crashes": {  # of one bar, and many, so that there is something to count
        "drifts": (0.006, -0.0006, -0.25),
        "volatilities": (0.004, 0.008, 0.03),
        "stay": (0.98, 0.95, 0.0),
    },
}


@pytest.mark.parametrize("settings", REGIMES.values(), ids=REGIMES)
def test_regimes_stay_and_change_as_the_process_says(settings):
    world = draw("regime", **settings)
    count = len(world.config.stay)
    state = world.hidden["AAA/USDT:USDT"]["state"].astype(int)
    for before in range(count):
        leaving = state[1:][state[:-1] == before]
        for after in range(count):
            chance = world.process.transition[before, after]
            error = np.sqrt(chance * (1 - chance) / len(leaving))
            assert abs((leaving == after).mean() - chance) <= SIGMAS * error  # 0 = 0 for never
        assert_mean((state == before).astype(float), world.process.shares[before])
    returns = returns_of(world)
    for index in range(count):
        inside = returns[state == index]
        expected = world.config.drifts[index], world.config.volatilities[index]
        assert abs(inside.mean() - expected[0]) < SIGMAS * expected[1] / np.sqrt(len(inside))
        assert inside.std() == pytest.approx(expected[1], rel=SIGMAS / np.sqrt(2 * len(inside)))


def test_moments_and_clusters_of_crashes_are_those_of_the_process():
    world = draw("regime", **REGIMES["crashes"])
    process, away = world.process, returns_of(world) - world.process.mean
    assert_mean(returns_of(world), process.mean)
    assert_mean(away**2, process.variance)
    assert_mean(away**4, process.kurtosis * process.variance**2)
    spread = (process.kurtosis - 1.0) * process.variance**2
    squares = away**2 - process.variance
    for lag in (1, 2, 5):
        assert_mean(away[lag:] * away[:-lag], process.autocorrelation(lag) * process.variance)
        assert_mean(squares[lag:] * squares[:-lag], process.squared_autocorrelation(lag) * spread)


def test_crashes_as_a_state_by_hand():
    """Stay .98, .95 and 0: bars in a row 50, 20 and 1, so shares 50/71, 20/71 and 1/71.

    mean = (50·.006 − 20·.0006 − .25)/71 = .038/71;
    variance + mean² = (50(1.6e-5 + 3.6e-5) + 20(6.4e-5 + 3.6e-7) + 9e-4 + .0625)/71
    = (.0026 + .0012872 + .0634)/71 = .0672872/71.
    """
    process = process_of("regime", **REGIMES["crashes"])
    assert process.shares == pytest.approx([50 / 71, 20 / 71, 1 / 71])
    assert process.mean == pytest.approx(0.038 / 71)
    assert process.variance == pytest.approx(0.0672872 / 71 - (0.038 / 71) ** 2)


def test_shares_of_states_solve_the_chain():
    process = process_of(
        "regime",
        drifts=(0.001, 0.0, -0.002),
        volatilities=(0.005, 0.01, 0.02),
        stay=(0.98, 0.95, 0.9),
    )
    assert process.shares @ process.transition == pytest.approx(process.shares)
    assert process.transition.sum(axis=1) == pytest.approx([1.0, 1.0, 1.0])


def test_crashes_come_as_often_as_the_probability_says():
    world = draw("crash", crash_probability=0.002)
    crashed = world.hidden["AAA/USDT:USDT"]["crash"].astype(bool)
    assert abs(crashed.mean() - 0.002) < SIGMAS * np.sqrt(0.002 / len(crashed))
    losses = -returns_of(world)[crashed]
    assert losses.min() > 0.2499
    assert losses.max() < 0.4501
    assert abs(losses.mean() - 0.35) < SIGMAS * 0.2 / np.sqrt(12 * len(losses))


def test_warnings_precede_their_share_of_crashes():
    world = draw(
        "crash", crash_probability=0.01, drop=(0.05, 0.1), warning_share=0.6, false_alarms=0.02
    )
    symbol = "AAA/USDT:USDT"
    crashed = world.hidden[symbol]["crash"][1:].astype(bool)
    warned = world.features[symbol]["warning"][:-1].astype(bool)
    for group, chance in ((crashed, 0.6), (~crashed, 0.02)):
        error = np.sqrt(chance * (1 - chance) / group.sum())
        assert abs(warned[group].mean() - chance) < SIGMAS * error
    for group, warning in ((warned, True), (~warned, False)):
        chance = world.process.crash_given(warning=warning)
        error = np.sqrt(chance * (1 - chance) / group.sum())
        assert abs(crashed[group].mean() - chance) < SIGMAS * error
    # 0.01·0.6/(0.01·0.6 + 0.99·0.02) = 0.2326
    assert world.process.crash_given(warning=True) == pytest.approx(0.006 / 0.0258)


def test_warnings_precede_their_share_of_jumps_and_tell_the_mean_of_the_next_bar():
    """A bar jumps with p = 1 − e^−.01 = .0099502; jumps take λm = −.0006 a bar from the drift.

    P(jump | warning) = .7p/(.7p + .03(1 − p)) = .189958, so behind a warning the mean is
    .0002 − .0006·(.189958/p − 1) = −.0106546; behind none P = .3p/(.3p + .97(1 − p)) = .00309867
    and the mean .0002 − .0006·(.00309867/p − 1) = .00061315.
    """
    settings = {"jump_rate": 0.01, "jump_mean": -0.06, "drift": 2e-4}
    world = draw("garch_jump", **settings, warning_share=0.7, false_alarms=0.03)
    symbol, process = "AAA/USDT:USDT", world.process
    jumped = world.hidden[symbol]["jumps"][1:] > 0
    warned = world.features[symbol]["warning"][:-1].astype(bool)
    following = np.log(world.bars[0].column("close"))
    following = following[1:] - following[:-1]
    for group, chance in ((jumped, 0.7), (~jumped, 0.03)):
        error = np.sqrt(chance * (1 - chance) / group.sum())
        assert abs(warned[group].mean() - chance) < SIGMAS * error
    by_hand = {True: (0.189958, -0.0106546), False: (0.00309867, 0.00061315)}
    for warning, group in ((True, warned), (False, ~warned)):
        chance, mean = by_hand[warning]
        assert process.jumps_given(warning=warning) == pytest.approx(chance, rel=1e-4)
        assert process.mean_given(warning=warning) == pytest.approx(mean, rel=1e-4)
        error = np.sqrt(chance * (1 - chance) / group.sum())
        assert abs(jumped[group].mean() - chance) < SIGMAS * error
        error = following[group].std() / np.sqrt(group.sum())
        assert abs(following[group].mean() - mean) < SIGMAS * error
    assert "behind a warning the mean is -0.0107 a bar" in process.answer


def test_worlds_without_warnings_have_no_such_feature():
    plain = draw("garch_jump", bars=500)
    assert plain.features is None
    assert "warning" not in plain.process.answer
    never = draw("garch_jump", bars=500, jump_rate=0.0, drift=3e-4, false_alarms=0.5)
    assert never.features["AAA/USDT:USDT"]["warning"].sum() > 150
    assert never.process.mean_given(warning=True) == 3e-4
    assert never.process.jumps_given(warning=True) == 0.0


def test_funding_reverts_to_its_mean():
    config = WorldConfig(funding_mean=2e-4, funding_deviation=1e-4, funding_persistence=0.8)
    from stormsail.core.generators import Generators

    generators = Generators(5)
    rates = draw_funding(
        "AAA/USDT:USDT", config, generators.numpy, start_ms=0, end_ms=60_000 * 8 * 3_600_000
    ).rate
    away = rates - 2e-4
    slope = (away[1:] * away[:-1]).mean() / (away**2).mean()
    assert abs(slope - 0.8) < SIGMAS * np.sqrt((1 - 0.8**2) / len(away))
    assert_mean(away, 0.0)
    assert_mean(away**2, 1e-8)


@pytest.mark.parametrize(
    ("settings", "low", "high"),
    [
        ({"alpha": 0.001}, 7.999, 8.0),
        ({"alpha": 0.01, "degrees": 30.0}, 29.9, 30.0),
        ({"degrees": 200.0}, 8.0, 30.0),
        ({"degrees": 1e6}, 8.0, 30.0),
        ({"alpha": 0.0, "degrees": 5.0}, 5.0, 5.0),
        ({"alpha": 0.9, "beta": 0.0, "degrees": 2.01}, 2.0, 2.01),
        ({"alpha": 1e-9, "beta": 0.9, "degrees": 1e9}, 1e3, 1e9),
    ],
)
def test_the_tail_index_is_found_for_every_legal_setting(settings, low, high):
    assert low <= process_of("garch_jump", **settings).tail_index <= high


def test_the_tail_index_of_gaussian_arch_by_hand():
    """β 0, Gaussian: E[(α x²)²] = 3α² is 1 at α = 1/√3, and then κ = 4."""
    process = process_of("garch_jump", alpha=3**-0.5, beta=0.0, degrees=1e9)
    assert process.tail_index == pytest.approx(4.0, abs=1e-5)


@pytest.mark.parametrize("volatility", [1e-4, 0.01, 0.03, 0.05])
def test_the_growth_and_kurtosis_of_noise_are_those_of_their_series(volatility):
    """Gaussian z of variance v: 2 log cosh z = z² − z⁴/6 + 2z⁶/45 − …, tanh² = z² − 2z⁴/3 + ….

    E log(1 + R) = −E log cosh z = −(v/2 − 3v²/12 + 15v³/45 − …).
    """
    v, process = volatility**2, process_of("noise", volatility=volatility)
    assert process.log_growth(1.0) == pytest.approx(-v / 2 + v**2 / 4 - v**3 / 3, rel=1e-7)
    assert process.log_growth(-1.0) == process.log_growth(1.0)
    second = v - 2 * v**2 + 17 / 45 * 15 * v**3
    assert process.variance == pytest.approx(second, rel=30 * v**3 + 1e-12)


def test_the_kurtosis_of_noise_is_right_to_six_digits():
    assert process_of("noise").kurtosis == pytest.approx(2.999200, abs=1e-6)


@pytest.mark.parametrize("degrees", [2.0001, 2.5, 3.0, 8.0, 1e6])
@pytest.mark.parametrize("weight", [0.0, 0.3, 0.999999, 1.0])
def test_the_growth_of_noise_is_that_of_an_integral_by_decades(degrees, weight):
    process = process_of("noise", volatility=0.05, degrees=degrees)
    unit, score = 0.05 * np.sqrt((degrees - 2) / degrees), stats.t(degrees)

    def integrand(level):
        z = unit * np.exp(level)
        if weight == 1.0:
            value = 2 * np.log(2) - 2 * np.logaddexp(z, -z)
        else:
            value = np.log1p(-((weight * np.tanh(z)) ** 2))
        return value * score.pdf(np.exp(level)) * np.exp(level)

    parts = [
        integrate.quad(integrand, low, low + 1.0, epsabs=1e-18, epsrel=1e-9)[0]
        for low in range(-12, 36)
    ]
    assert process.log_growth(weight) == pytest.approx(sum(parts), rel=1e-7, abs=1e-15)


@pytest.mark.refusal
def test_a_leveraged_weight_on_noise_is_refused():
    with pytest.raises(RangeError) as refused:
        process_of("noise").log_growth(1.5)
    assert str(refused.value) == (
        "a weight must lie in [-1, 1], or a return near 1 loses everything; found 1.5. Use a"
        " smaller weight. [out-of-range]"
    )
