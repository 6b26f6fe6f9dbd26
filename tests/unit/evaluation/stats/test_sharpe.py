"""The error of a Sharpe ratio and the price of a search, by hand, by oracle and by peers."""

import math

import numpy as np
import pytest
from scipy import stats

from evaluation_peers import peer
from oracles import significance as oracle
from stormsail.core.errors import ChoiceError, RangeError
from stormsail.evaluation.stats import figures, sharpe

YEAR = 8_760.0
SEEDS = pytest.mark.parametrize("seed", range(5))


def stream(seed):
    return np.random.Generator(np.random.PCG64(seed))


def sample(seed, bars=500):
    return 0.01 * stream(seed).standard_t(5, bars) + 0.0008


def normal_scores(bars, ratio):
    """Returns of a nearly normal shape with exactly this per-bar Sharpe ratio."""
    scores = stats.norm.ppf((np.arange(bars) + 0.5) / bars)
    scores = scores / scores.std(ddof=1)
    return 0.01 * (scores - scores.mean() + ratio)


def test_the_error_of_a_sharpe_ratio_by_hand():
    # Normal: (1 + SR²/2) / (T - 1): (1 + 0.02) / 100. Skew -1, kurtosis 9: 1 + 0.2 + 2 * 0.04.
    assert sharpe.sharpe_error(0.2, bars=101, skew=0.0, kurtosis=3.0) == pytest.approx(
        math.sqrt(1.02 / 100), abs=1e-15
    )
    assert sharpe.sharpe_error(0.2, bars=101, skew=-1.0, kurtosis=9.0) == pytest.approx(
        math.sqrt(1.28 / 100), abs=1e-15
    )


def test_the_expected_best_of_many_by_hand():
    # Bailey, Borwein, López de Prado & Zhu 2014 give 1.57 for the best of 10 standard normal draws.
    assert sharpe.expected_maximum_sharpe(10, std=1.0) == pytest.approx(1.57, abs=0.005)
    # They say that 45 trials over five years are expected to show an annual ratio of 1.
    assert sharpe.expected_maximum_sharpe(45, std=5**-0.5) == pytest.approx(1.0, abs=0.001)
    assert sharpe.expected_maximum_sharpe(1, std=1.0) == 0.0
    assert sharpe.expected_maximum_sharpe(10, std=0.0) == 0.0


def test_the_expected_best_is_that_of_simulated_trials():
    draws = stream(1).standard_normal((20_000, 64))
    # The approximation is 1 % above the mean of the maximum of 64 draws.
    assert sharpe.expected_maximum_sharpe(64, std=1.0) == pytest.approx(
        draws.max(axis=1).mean(), rel=0.02
    )


@SEEDS
def test_the_oracle_says_the_same(seed):
    x, trials = sample(seed), 0.03 * stream(seed + 50).standard_normal(40)
    for benchmark in (0.0, 0.05, -0.02):
        assert sharpe.probabilistic_sharpe(x, benchmark=benchmark) == pytest.approx(
            oracle.probabilistic_sharpe(x.tolist(), benchmark), abs=1e-12
        )
    assert sharpe.deflated_sharpe(x, trial_sharpes=trials, form="paper") == pytest.approx(
        oracle.deflated_sharpe(x.tolist(), trials.tolist()), abs=1e-12
    )
    for count in (1, 2, 3, 64, 1_000):
        assert sharpe.expected_maximum_sharpe(count, std=0.3) == pytest.approx(
            oracle.expected_maximum(count, 0.3), abs=1e-12
        )


@SEEDS
def test_the_track_record_is_as_long_as_the_oracle_finds(seed):
    x = sample(seed) + 0.0008
    assert sharpe.minimum_track_record(x) == oracle.minimum_track_record(x.tolist(), 0.0, 0.95)
    assert sharpe.minimum_track_record(x, benchmark=-0.03, confidence=0.99) == (
        oracle.minimum_track_record(x.tolist(), -0.03, 0.99)
    )


def test_a_ratio_below_the_benchmark_has_no_length_that_proves_it():
    assert sharpe.minimum_track_record(sample(0) - 0.01) == math.inf
    assert sharpe.minimum_track_record(sample(0), benchmark=1.0) == math.inf


@SEEDS
def test_skfolio_says_the_same(seed):
    skfolio = peer("skfolio.measures")
    x, trials = sample(seed), 0.03 * stream(seed + 50).standard_normal(40)
    assert sharpe.probabilistic_sharpe(x, benchmark=0.02) == pytest.approx(
        skfolio.probabilistic_sharpe_ratio(x, benchmark_sharpe_ratio=0.02), abs=1e-12
    )
    assert sharpe.deflated_sharpe(x, trial_sharpes=trials, form="paper") == pytest.approx(
        skfolio.deflated_sharpe_ratio(x, trials), abs=1e-12
    )
    assert sharpe.expected_maximum_sharpe(40, std=0.03) == pytest.approx(
        skfolio.expected_max_sharpe_ratio(40, 0.03), abs=1e-12
    )


@SEEDS
def test_purgedcv_says_the_same_on_its_own_moments(seed):
    purgedcv = peer("purgedcv")
    x = sample(seed)
    # Theirs: deviation with T, moments with the small-sample correction.
    ratio = x.mean() / x.std(ddof=0)
    error = sharpe.sharpe_error(
        ratio,
        bars=x.size,
        skew=stats.skew(x, bias=False),
        kurtosis=stats.kurtosis(x, bias=False, fisher=False),
    )
    benchmark = sharpe.expected_maximum_sharpe(40, std=0.03)
    theirs = purgedcv.deflated_sharpe_ratio(x, 40, 0.03**2)
    assert stats.norm.cdf((ratio - benchmark) / error) == pytest.approx(theirs, abs=1e-12)
    # On our moments the difference is the one that the docstring names.
    ours = sharpe.probabilistic_sharpe(x, benchmark=benchmark)
    assert ours == pytest.approx(theirs, abs=2e-3)
    better = x + 0.001
    assert sharpe.minimum_track_record(better) == purgedcv.min_track_record_length(
        float(figures.per_bar_sharpe(better)),
        0.0,
        0.05,
        figures.skew(better),
        figures.kurtosis(better),
    )


@SEEDS
def test_quantstats_says_the_same_on_its_own_moments(seed):
    quantstats, pandas = peer("quantstats.stats"), peer("pandas")
    x = sample(seed)
    error = sharpe.sharpe_error(
        float(figures.per_bar_sharpe(x)),
        bars=x.size,
        skew=stats.skew(x, bias=False),
        kurtosis=stats.kurtosis(x, bias=False) + 3.0,
    )
    series = pandas.Series(x, index=pandas.date_range("2021-01-01", periods=x.size, freq="h"))
    assert stats.norm.cdf(figures.per_bar_sharpe(x) / error) == pytest.approx(
        quantstats.probabilistic_sharpe_ratio(series), abs=1e-12
    )


def test_the_best_of_64_rules_looks_significant_and_is_not():
    # Measured on a year of BTC hours: the best of 64 momentum rules had an annual ratio of 1.70,
    # PSR 0.955 and DSR 0.069. At 8,735 bars that DSR stands for a spread of 0.01436 a bar.
    x = normal_scores(8_735, 1.70 / math.sqrt(YEAR))
    assert figures.sharpe(x, per_year=YEAR) == pytest.approx(1.70, abs=1e-9)
    assert sharpe.probabilistic_sharpe(x) == pytest.approx(0.955, abs=0.0005)
    spread = stream(3).standard_normal(64)
    spread = 0.01436 * (spread - spread.mean()) / spread.std(ddof=1)
    assert sharpe.deflated_sharpe(x, trial_sharpes=spread, form="paper") == pytest.approx(
        0.069, abs=0.0005
    )


def test_the_best_of_noise_is_deflated_to_noise():
    # 200 searches among 50 strategies without skill: the plain probability passes 186 of the
    # winners, the deflated ones none (10 would be honest at 5 %: they are on the safe side).
    plain = deflated = paper = 0
    for seed in range(200):
        tried = 0.01 * stream(seed).standard_normal((400, 50))
        ratios = figures.per_bar_sharpe(tried)
        best = tried[:, ratios.argmax()]
        plain += sharpe.probabilistic_sharpe(best) > 0.95
        deflated += sharpe.deflated_sharpe(best, trial_sharpes=ratios) > 0.95
        paper += sharpe.deflated_sharpe(best, trial_sharpes=ratios, form="paper") > 0.95
    assert plain == 186
    assert (deflated, paper) == (0, 0)


def test_trials_that_failed_count_all_the_same():
    x, ratios = sample(1) + 0.002, 0.05 * stream(9).standard_normal(10)
    failed = np.concatenate((ratios, np.full(30, np.nan)))
    # The same spread, but the best of 40.
    expected = sharpe.probabilistic_sharpe(
        x, benchmark=sharpe.expected_maximum_sharpe(40, std=ratios.std(ddof=1))
    )
    paper = {"form": "paper"}
    assert sharpe.deflated_sharpe(x, trial_sharpes=failed, **paper) == expected
    assert sharpe.deflated_sharpe(x, trial_sharpes=ratios, trials=40, **paper) == expected
    assert expected < sharpe.deflated_sharpe(x, trial_sharpes=ratios, **paper)
    ours = sharpe.deflated_sharpe(x, trial_sharpes=failed)
    assert ours == sharpe.deflated_sharpe(x, trial_sharpes=ratios, trials=40)
    assert ours < sharpe.deflated_sharpe(x, trial_sharpes=ratios)


@pytest.mark.parametrize("form", ["monotone", "paper"])
def test_one_trial_is_no_search(form):
    x = sample(2)
    assert sharpe.deflated_sharpe(x, trial_sharpes=[0.1], form=form) == sharpe.probabilistic_sharpe(
        x
    )


def test_without_a_spread_of_trials_the_paper_has_no_answer():
    x = sample(2)
    assert math.isnan(sharpe.deflated_sharpe(x, trial_sharpes=[0.1], trials=5, form="paper"))
    # Ours has that of 500 bars: 1 / sqrt(500).
    assert sharpe.deflated_sharpe(x, trial_sharpes=[0.1], trials=5) == sharpe.probabilistic_sharpe(
        x, benchmark=sharpe.expected_maximum_sharpe(5, std=500**-0.5)
    )
    for form in ("monotone", "paper"):
        flat = np.full(50, 0.1)
        assert math.isnan(sharpe.deflated_sharpe(flat, trial_sharpes=[0.1, 0.2], form=form))


def test_the_worst_subset_by_hand():
    # Of -1, 0, 0, 0, 1 in tenths over a million bars. The two ends alone: deviation sqrt(2) / 10,
    # best of 2; with one 0: 1 / 10, best of 3; with all: sqrt(2 / 4) / 10, best of 5.
    trials, best = [0.0, 0.1, 0.0, -0.1, 0.0], sharpe.expected_maximum_sharpe
    sizes = {2: math.sqrt(2.0), 3: 1.0, 4: math.sqrt(2.0 / 3.0), 5: math.sqrt(0.5)}
    values = {count: best(count, std=0.1 * spread) for count, spread in sizes.items()}
    assert max(values, key=values.get) == 4
    found = sharpe.trials_benchmark(trials, trials=5, bars=1_000_000)
    assert found == pytest.approx(values[4], abs=1e-15)
    # Over 25 bars no deviation below 1 / 5 is believed, and all five count.
    assert sharpe.trials_benchmark(trials, trials=5, bars=25) == best(5, std=0.2)


@SEEDS
@pytest.mark.parametrize("unknown", [0, 3])
def test_the_worst_subset_is_that_of_trying_all(seed, unknown):
    trials = 0.05 * stream(seed).standard_normal(9)
    for bars in (40, 900, 10**8):
        assert sharpe.trials_benchmark(trials, trials=9 + unknown, bars=bars) == pytest.approx(
            oracle.largest_expected_maximum(trials.tolist(), unknown, bars), abs=1e-14
        )


def test_idle_trials_no_longer_raise_the_probability():
    # 30 strategies of noise over 2,000 bars, and 1,000 that never traded.
    tried = 0.01 * stream(11).standard_normal((2_000, 30))
    ratios = figures.per_bar_sharpe(tried)
    best = tried[:, ratios.argmax()]
    idle = np.concatenate((ratios, np.zeros(1_000)))
    alone, after = (sharpe.deflated_sharpe(best, trial_sharpes=each) for each in (ratios, idle))
    assert after <= alone
    paper = [
        sharpe.deflated_sharpe(best, trial_sharpes=each, form="paper") for each in (ratios, idle)
    ]
    assert paper[0] < 0.6
    assert paper[1] > 0.9


def test_trials_that_resemble_each_other_count_as_few():
    z = stream(4).standard_normal((2_000, 5))
    alike = math.sqrt(0.9) * z[:, :1] + math.sqrt(0.1) * stream(5).standard_normal((2_000, 5))
    assert sharpe.effective_trials(z) == 5
    assert sharpe.effective_trials(alike) == 2
    assert sharpe.effective_trials(np.repeat(z[:, :1], 4, axis=1)) == 1
    assert sharpe.effective_trials(np.hstack((z[:, :2], z[:, :2]))) == 2
    assert sharpe.effective_trials(z[:, 0]) == 1
    assert sharpe.effective_trials(np.hstack((z[:, :2], np.zeros((2_000, 1))))) == 3


@SEEDS
def test_the_effective_number_never_falls(seed):
    draw = stream(seed)
    mixed = draw.standard_normal((300, 3)) @ draw.standard_normal((3, 20))
    mixed += 0.5 * draw.standard_normal((300, 20))
    counts = [sharpe.effective_trials(mixed[:, : k + 1]) for k in range(20)]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (1, pytest.approx(9, abs=5))


@pytest.mark.refusal
def test_another_form_is_refused():
    with pytest.raises(ChoiceError, match="`form` must be `monotone` or `paper`; found 'exact'"):
        sharpe.deflated_sharpe(sample(0), trial_sharpes=[0.1], form="exact")


@pytest.mark.refusal
def test_fewer_trials_than_ratios_are_refused():
    with pytest.raises(RangeError) as caught:
        sharpe.deflated_sharpe(sample(0), trial_sharpes=[0.1, 0.2], trials=1)
    assert str(caught.value) == (
        "there must be at least 1 trial, and no fewer than there are Sharpe ratios; found 1 trials "
        "and 2 Sharpe ratios. Count every trial, the failed ones and the chosen one included. "
        "[out-of-range]"
    )
    with pytest.raises(RangeError, match="found 0 trials and the deviation 1"):
        sharpe.expected_maximum_sharpe(0, std=1.0)
