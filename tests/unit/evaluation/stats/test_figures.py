"""Figures of an equity curve, worked out by hand and against other libraries."""

import math

import numpy as np
import pytest

from evaluation_peers import peer
from stormsail.core.errors import RangeError, ShapeError
from stormsail.evaluation.stats import figures

HOUR_MS = 3_600_000
YEAR = 8_760.0
RETURNS = np.array([0.02, -0.01, 0.03, -0.04])


def sample(seed, bars=1_001):
    generator = np.random.Generator(np.random.PCG64(seed))
    return 0.01 * generator.standard_t(4, bars) + 0.0003


SEEDS = pytest.mark.parametrize("seed", range(5))


@pytest.mark.parametrize(
    ("bar_ms", "bars"),
    [(60_000, 525_600), (HOUR_MS, 8_760), (4 * HOUR_MS, 2_190), (86_400_000, 365)],
)
def test_a_year_has_365_days_of_24_hours(bar_ms, bars):
    assert figures.bars_per_year(bar_ms) == bars


def test_returns_are_simple_and_nothing_after_ruin():
    # 110/100, 99/110, -9.9/99; from a debt there is no return, however it grows.
    assert figures.returns_of([100.0, 110.0, 99.0, -9.9, -19.8, 0.0, 5.0]) == pytest.approx(
        [0.1, -0.1, -1.1, 0.0, 0.0, 0.0], abs=1e-15
    )


def test_growth_by_hand():
    # 1.02 * 0.99 * 1.03 * 0.96 = 0.99850..., over 4 of 8 bars a year: squared.
    end = 1.02 * 0.99 * 1.03 * 0.96
    assert figures.total_return(RETURNS) == pytest.approx(end - 1.0, abs=1e-15)
    assert figures.annual_return(RETURNS, per_year=8.0) == pytest.approx(end**2 - 1.0, abs=1e-15)
    assert figures.annual_return([0.5, -1.0], per_year=8.0) == -1.0
    assert figures.annual_return([0.5, -1.5], per_year=8.0) == -1.0


def test_ratios_by_hand():
    # Mean 0. Deviations squared: 4 + 1 + 9 + 16 = 30 (in 1e-4), over 3: s = sqrt(10) %.
    assert figures.volatility(RETURNS, per_year=4.0) == pytest.approx(
        2.0 * math.sqrt(10.0) / 100.0, abs=1e-15
    )
    # Plus 1 %: mean 1 %, the same s. Downside of (3, 0, 4, -3): sqrt(9 / 4) = 1.5 %.
    shifted = RETURNS + 0.01
    assert figures.per_bar_sharpe(shifted) == pytest.approx(1.0 / math.sqrt(10.0), abs=1e-14)
    assert figures.sharpe(shifted, per_year=4.0) == pytest.approx(2.0 / math.sqrt(10.0), abs=1e-14)
    assert figures.sortino(shifted, per_year=4.0) == pytest.approx(2.0 / 1.5, abs=1e-14)
    # Against a target of 1 % the excess is RETURNS: mean 0.
    assert figures.sortino(shifted, per_year=4.0, target=0.01) == pytest.approx(0.0, abs=1e-14)


def test_the_tail_counts_its_last_return_in_part():
    # Worst 60 % of (-4, -1, 2, 3) are 2.4 returns: (-4 - 1 + 0.4 * 2) / 2.4.
    assert figures.cvar(RETURNS, alpha=0.6) == pytest.approx(-0.042 / 2.4, abs=1e-15)
    assert figures.cvar(RETURNS, alpha=1.0) == pytest.approx(0.0, abs=1e-15)
    assert figures.value_at_risk(RETURNS, alpha=0.6) == 0.02
    assert figures.value_at_risk(RETURNS, alpha=0.5) == -0.01


def test_moments_by_hand():
    # Around 0: m2 = 30/4, m3 = (8 - 1 + 27 - 64)/4 = -7.5, m4 = (16 + 1 + 81 + 256)/4 = 88.5.
    assert figures.skew(RETURNS) == pytest.approx(-7.5 / 7.5**1.5, abs=1e-13)
    assert figures.kurtosis(RETURNS) == pytest.approx(88.5 / 7.5**2, abs=1e-13)


def test_a_drawdown_has_its_places():
    #         0    1    2    3    4    5   6   7    8
    equity = [100, 120, 120, 108, 114, 90, 99, 120, 60.0]
    fall = figures.drawdown_of(equity[:8])
    # The last place at 120 before the fall is 2; 90 / 120 - 1; back at 120 in place 7.
    assert (fall.depth, fall.peak, fall.trough, fall.recovery) == (-0.25, 2, 5, 7)
    fall = figures.drawdown_of(equity)
    assert (fall.depth, fall.peak, fall.trough, fall.recovery) == (-0.5, 7, 8, None)


def test_a_loss_in_the_first_bar_is_a_drawdown():
    assert figures.max_drawdown([-0.2, 0.1]) == pytest.approx(-0.2, abs=1e-15)
    assert figures.drawdown_of([100.0, 80.0]).peak == 0


def test_without_a_fall_the_depth_is_zero_and_calmar_undefined():
    assert figures.max_drawdown([0.1, 0.0, 0.2]) == 0.0
    assert math.isnan(figures.calmar([0.1, 0.2], per_year=YEAR))


def test_gains_over_losses_and_wins_without_the_zeros():
    outcomes = [3.0, -1.0, 0.0, 2.0, -1.5]
    assert figures.profit_factor(outcomes) == 2.0
    assert figures.wins(outcomes) == (2, 4)
    assert figures.profit_factor([1.0, 0.0]) == math.inf
    assert math.isnan(figures.profit_factor([0.0]))


def test_intervals_of_a_win_rate_by_hand():
    # Wilson, 8 of 10, z = 1.959964: centre (0.8 + z²/20) / (1 + z²/10), half-width by its formula.
    z = 1.959963984540054
    centre = (0.8 + z**2 / 20) / (1 + z**2 / 10)
    half = z / (1 + z**2 / 10) * math.sqrt(0.8 * 0.2 / 10 + z**2 / 400)
    assert figures.binomial_interval(8, 10) == pytest.approx(
        (centre - half, centre + half), abs=1e-12
    )
    # Clopper & Pearson, 0 of 10: the upper end p has (1 - p)^10 = 0.025.
    low, high = figures.binomial_interval(0, 10, method="exact")
    assert low == 0.0
    assert high == pytest.approx(1.0 - 0.025**0.1, abs=1e-12)


def test_returns_without_spread_have_no_ratio():
    flat = np.full(50, 0.1)  # their mean is not exactly 0.1, so a deviation of rounding remains
    assert math.isnan(figures.sharpe(flat, per_year=YEAR))
    assert math.isnan(figures.skew(flat))
    assert math.isnan(figures.kurtosis(flat))
    assert math.isnan(figures.sortino(flat, per_year=YEAR))
    both = figures.per_bar_sharpe(np.stack([flat, np.tile([0.0, 0.2], 25)], axis=1))
    assert math.isnan(both[0])
    # 25 zeros and 25 times 0.2: mean 0.1, deviation 0.1 * sqrt(50 / 49).
    assert both[1] == pytest.approx(math.sqrt(49 / 50), abs=1e-14)


@SEEDS
def test_empyrical_says_the_same(seed):
    empyrical = peer("empyrical")
    x = sample(seed)
    same = {
        "total": (figures.total_return(x), empyrical.cum_returns_final(x)),
        "annual": (
            figures.annual_return(x, per_year=YEAR),
            empyrical.annual_return(x, annualization=YEAR),
        ),
        "volatility": (
            figures.volatility(x, per_year=YEAR),
            empyrical.annual_volatility(x, annualization=YEAR),
        ),
        "sharpe": (figures.sharpe(x, per_year=YEAR), empyrical.sharpe_ratio(x, annualization=YEAR)),
        "sortino": (
            figures.sortino(x, per_year=YEAR),
            empyrical.sortino_ratio(x, annualization=YEAR),
        ),
        "target": (
            figures.sortino(x, per_year=YEAR, target=0.001),
            empyrical.sortino_ratio(x, required_return=0.001, annualization=YEAR),
        ),
        "calmar": (figures.calmar(x, per_year=YEAR), empyrical.calmar_ratio(x, annualization=YEAR)),
        "drawdown": (figures.max_drawdown(x), empyrical.max_drawdown(x)),
    }
    for name, (ours, theirs) in same.items():
        assert ours == pytest.approx(theirs, rel=1e-12, abs=1e-12), name


@SEEDS
def test_quantstats_says_the_same(seed):
    quantstats = peer("quantstats.stats")
    pandas = peer("pandas")
    x = sample(seed)
    index = pandas.date_range("2021-01-01", periods=x.size, freq="h")
    series = pandas.Series(x, index=index)
    same = {
        "total": (figures.total_return(x), quantstats.comp(series)),
        "annual": (
            figures.annual_return(x, per_year=YEAR),
            quantstats.cagr(series, periods=YEAR),
        ),
        "volatility": (
            figures.volatility(x, per_year=YEAR),
            quantstats.volatility(series, periods=YEAR),
        ),
        "sharpe": (figures.sharpe(x, per_year=YEAR), quantstats.sharpe(series, periods=YEAR)),
        "sortino": (figures.sortino(x, per_year=YEAR), quantstats.sortino(series, periods=YEAR)),
        "drawdown": (figures.max_drawdown(x), quantstats.max_drawdown(series)),
        "profit factor": (figures.profit_factor(x), quantstats.profit_factor(series)),
        "win rate": (np.divide(*figures.wins(x)), quantstats.win_rate(series)),
    }
    for name, (ours, theirs) in same.items():
        assert ours == pytest.approx(float(theirs), rel=1e-12, abs=1e-12), name
    # Theirs carries the small-sample correction of pandas, sqrt(n (n - 1)) / (n - 2).
    n = x.size
    corrected = figures.skew(x) * math.sqrt(n * (n - 1)) / (n - 2)
    assert corrected == pytest.approx(quantstats.skew(series), rel=1e-11)


@SEEDS
def test_skfolio_says_the_same(seed):
    skfolio = peer("skfolio.measures")
    x = sample(seed)
    for alpha in (0.01, 0.05, 0.073, 0.5):
        theirs = -skfolio.cvar(x, beta=1.0 - alpha)
        assert figures.cvar(x, alpha=alpha) == pytest.approx(theirs, rel=1e-12)
        # 1,001 alpha is no whole number, where the two conventions meet.
        theirs = -skfolio.value_at_risk(x, beta=1.0 - alpha)
        assert figures.value_at_risk(x, alpha=alpha) == theirs
    assert figures.skew(x) == pytest.approx(skfolio.skew(x), rel=1e-12)
    assert figures.kurtosis(x) == pytest.approx(skfolio.kurtosis(x), rel=1e-12)
    drawdowns = skfolio.get_drawdowns(x, compounded=True)
    assert figures.max_drawdown(x) == pytest.approx(min(drawdowns.min(), x[0]), rel=1e-12)


@SEEDS
def test_columns_are_treated_one_by_one(seed):
    x = sample(seed).reshape(143, 7)
    assert figures.per_bar_sharpe(x) == pytest.approx(
        [figures.sharpe(column, per_year=1.0) for column in x.T], abs=1e-15
    )


@pytest.mark.refusal
def test_numbers_that_are_not_finite_are_refused_with_their_count():
    with pytest.raises(RangeError) as caught:
        figures.sharpe([0.1, math.nan, math.inf], per_year=YEAR)
    assert str(caught.value) == (
        "`returns` must hold finite numbers only; found 2 of 3 that are not. "
        "Look for the bar where the first of them arises. [out-of-range]"
    )


@pytest.mark.refusal
def test_other_shapes_and_starts_are_refused():
    with pytest.raises(ShapeError, match=r"`returns` must have the shape \[T\]; found \[2, 2\]"):
        figures.total_return([[0.1, 0.2], [0.3, 0.4]])
    with pytest.raises(RangeError, match=r"`equity` must start above 0; found 0\.0"):
        figures.drawdown_of([0.0, 1.0])
    with pytest.raises(RangeError, match="`bar_ms` must be at least 1 millisecond; found 0"):
        figures.bars_per_year(0)
