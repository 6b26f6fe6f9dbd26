"""The bootstrap draws blocks, its intervals cover, and the test against a benchmark is guarded."""

import math

import numpy as np
import pytest

from oracles import significance as oracle
from stormsail.core.errors import ShapeError
from stormsail.core.generators import Generators
from stormsail.evaluation.stats import figures
from stormsail.evaluation.stats.bootstrap import block_length, bootstrap_intervals, superiority

YEAR = 8_760.0


def stream(seed):
    return np.random.Generator(np.random.PCG64(seed))


def clustered(seed, bars, persistence):
    noise = stream(seed).standard_normal(bars + 100)
    values = np.zeros(bars + 100)
    for t in range(1, bars + 100):
        values[t] = persistence * values[t - 1] + noise[t]
    return 0.01 * values[100:]


def test_intervals_are_percentiles_of_resamples_that_the_oracle_draws():
    x, block, repetitions = clustered(1, 250, 0.3), 7, 40
    result = bootstrap_intervals(
        x, per_year=YEAR, generator=stream(5), repetitions=repetitions, block=block
    )
    draws, resampled = stream(5), []
    for _ in range(repetitions):
        starts = draws.integers(250, size=250)
        restarts = draws.random(250) <= 1.0 / block
        resampled.append(np.array(oracle.stationary_resample(x.tolist(), restarts, starts)))
    for statement, figure in (
        (result.mean_return, np.mean),
        (result.sharpe, lambda y: figures.sharpe(y, per_year=YEAR)),
        (result.cvar, lambda y: figures.cvar(y, alpha=0.05)),
        (result.max_drawdown, figures.max_drawdown),
    ):
        ends = np.percentile([figure(y) for y in resampled], [2.5, 97.5])
        assert (statement.low, statement.high) == pytest.approx(ends, abs=1e-12)
        assert statement.value == pytest.approx(figure(x), abs=1e-15)
    assert result.block == block


def test_the_same_stream_gives_the_same_intervals_and_no_global_state_is_touched():
    x = clustered(2, 300, 0.2)
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    first = bootstrap_intervals(
        x, per_year=YEAR, generator=Generators(3).numpy("luck.bootstrap"), repetitions=50
    )
    second = bootstrap_intervals(
        x, per_year=YEAR, generator=Generators(3).numpy("luck.bootstrap"), repetitions=50
    )
    other = bootstrap_intervals(
        x, per_year=YEAR, generator=Generators(4).numpy("luck.bootstrap"), repetitions=50
    )
    assert first == second
    assert first.sharpe.low != other.sharpe.low
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


def test_blocks_follow_dependence_in_sign_and_in_size():
    assert block_length(stream(1).standard_normal(4_000)) <= 8
    assert block_length(clustered(1, 4_000, 0.8)) >= 20
    # Calm and storm by turns: no correlation of returns, much of their size.
    storm = np.repeat(np.tile([0.2, 3.0], 20), 100) * stream(2).standard_normal(4_000)
    assert block_length(storm) >= 50
    assert block_length(np.full(200, 0.01)) == 1
    # The size never varies: the rule has no length for it.
    assert block_length(np.where(stream(3).random(500) < 0.5, 0.01, -0.01)) >= 1


def coverage(persistence, *, block, count=40):
    """Return how often the 90 % interval of the mean contains the true mean, 0."""
    hits = 0
    for seed in range(count):
        result = bootstrap_intervals(
            clustered(seed, 400, persistence),
            per_year=YEAR,
            generator=stream(seed),
            confidence=0.9,
            repetitions=60,
            block=block,
        ).mean_return
        hits += result.low <= 0.0 <= result.high
    return hits / count


def test_blocks_cover_where_single_bars_do_not():
    # Of 40 intervals at 90 % blocks keep 31, single bars 22: theirs are half as wide as they should
    # be, since the next bar repeats 60 % of this one.
    assert coverage(0.6, block=None) >= 0.75
    assert coverage(0.6, block=1) <= 0.6


def test_a_flat_account_has_no_sharpe_interval_and_a_short_one_no_tail():
    flat = bootstrap_intervals(np.zeros(150), per_year=YEAR, generator=stream(0), repetitions=20)
    assert flat.sharpe.reason == "all returns are equal"
    assert flat.cvar.reason == "not enough data: needs 200 bars, found 150"
    assert (flat.mean_return.value, flat.mean_return.low, flat.max_drawdown.high) == (0.0, 0.0, 0.0)


def test_a_resample_without_spread_has_the_ratio_zero():
    once = np.zeros(300)
    once[150] = 0.05  # most resamples of long blocks miss or repeat it
    result = bootstrap_intervals(
        once, per_year=YEAR, generator=stream(0), repetitions=60, block=3
    ).sharpe
    assert result.low == 0.0
    assert math.isfinite(result.high)


def test_superiority_is_that_of_the_library():
    from arch.bootstrap import SPA  # half a second of imports, so not above

    tried = 0.01 * stream(1).standard_normal((300, 4)) + 0.0005
    hold = 0.01 * stream(2).standard_normal(300)
    result = superiority(tried, hold, generator=stream(3), repetitions=200, block=5)
    direct = SPA(-hold, -tried, block_size=5, reps=200, seed=stream(3))
    direct.compute()
    assert (result.low, result.value, result.high) == tuple(direct.pvalues)


def test_skill_is_found_and_chance_is_not():
    hold = 0.01 * stream(2).standard_normal(600)
    tried = 0.01 * stream(7).standard_normal((600, 10))
    assert superiority(tried, hold, generator=stream(3), repetitions=200).value > 0.1
    tried[:, 4] += 0.003  # six standard errors
    assert superiority(tried, hold, generator=stream(3), repetitions=200).value <= 0.01


def test_the_benchmark_itself_does_not_beat_the_benchmark():
    from arch.bootstrap import SPA

    hold = 0.01 * stream(2).standard_normal(300)
    # Without the guard the library answers 0, as if it were certain.
    direct = SPA(-hold, -hold[:, None], block_size=5, reps=50, seed=stream(3))
    direct.compute()
    assert direct.pvalues["consistent"] == 0.0
    assert superiority(hold, hold, generator=stream(3)).value == 1.0
    worse = np.stack([hold, hold - 0.001 * stream(4).random(300)], axis=1)
    assert superiority(worse, hold, generator=stream(3)).value == 1.0


def test_the_library_draws_as_the_paper_says():
    from arch.bootstrap import StationaryBootstrap

    x = np.arange(50.0)
    draws = stream(9)
    starts, u = draws.integers(50, size=50), draws.random(50)
    ours = oracle.stationary_resample(x.tolist(), u <= 1.0 / 4, starts)
    ((arguments, _),) = StationaryBootstrap(4, x, seed=stream(9)).bootstrap(1)
    assert arguments[0].tolist() == ours


def test_too_few_bars_are_named():
    result = superiority(np.zeros(99), np.zeros(99), generator=stream(0))
    assert result.reason == "not enough data: needs 100 bars, found 99"


@pytest.mark.refusal
def test_another_length_of_the_benchmark_is_refused():
    with pytest.raises(ShapeError, match="one return for each of the 300 bars; found 299"):
        superiority(np.zeros(300), np.zeros(299), generator=stream(0))
