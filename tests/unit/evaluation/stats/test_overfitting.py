"""Cross-validation by block sums equals the loops of the oracle and the library."""

import numpy as np
import pytest

from evaluation_peers import peer
from oracles import significance as oracle
from stormsail.core.errors import RangeError, ShapeError
from stormsail.evaluation.stats.overfitting import (
    overfitting_logits,
    overfitting_statement,
    probability_of_overfitting,
)


def stream(seed):
    return np.random.Generator(np.random.PCG64(seed))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("bars", "blocks"), [(48, 4), (50, 6), (53, 6)])
def test_the_oracle_says_the_same(seed, bars, blocks):
    tried = 0.01 * stream(seed).standard_t(4, (bars, 7)) + 0.001 * stream(seed).random(7)
    assert overfitting_logits(tried, blocks=blocks) == pytest.approx(
        oracle.overfitting_logits(tried.tolist(), blocks), abs=1e-12
    )


@pytest.mark.parametrize("seed", range(3))
def test_purgedcv_says_the_same(seed):
    purgedcv = peer("purgedcv")
    tried = 0.01 * stream(seed).standard_t(4, (205, 9))
    theirs = purgedcv.probability_of_backtest_overfitting(tried.T, n_splits=8)
    assert np.sort(overfitting_logits(tried, blocks=8)) == pytest.approx(
        np.sort(theirs.logits), abs=1e-12
    )
    assert probability_of_overfitting(tried, blocks=8) == theirs.pbo


def test_by_hand_the_best_of_one_half_is_the_worst_of_the_other():
    # Two strategies, two blocks: each is best where the other is not. Both halves are overfitted:
    # rank 1 of 2, omega 1/3, logit ln(1/2).
    tried = np.array([[3.0, -1.0], [1.0, -3.0], [-1.0, 3.0], [-3.0, 1.0]])
    assert overfitting_logits(tried, blocks=2) == pytest.approx([np.log(0.5)] * 2, abs=1e-15)
    assert probability_of_overfitting(tried, blocks=2) == 1.0


def test_what_is_best_everywhere_is_not_overfitted():
    tried = 0.01 * stream(1).standard_normal((320, 10))
    tried[:, 3] += 0.01
    assert probability_of_overfitting(tried, blocks=16) == 0.0


def test_the_median_itself_is_not_below_the_median():
    # Three strategies, the best of each half in the middle of the other: omega is 1/2.
    tried = np.array([[4.0, 1.0, -0.5], [2.0, -1.0, -0.6], [2.0, 4.0, -1.0], [-1.0, 2.0, -2.0]])
    assert overfitting_logits(tried, blocks=2) == pytest.approx([0.0, 0.0], abs=1e-12)
    assert probability_of_overfitting(tried, blocks=2) == 0.0


def test_selection_among_noise_is_a_coin():
    result = [
        probability_of_overfitting(stream(seed).standard_normal((400, 20)), blocks=10)
        for seed in range(40)
    ]
    assert np.mean(result) == pytest.approx(0.5, abs=0.1)


def test_equal_strategies_share_their_rank():
    column = stream(2).standard_normal((40, 1))
    # Five copies: rank (1 + ... + 5) / 5 = 3 of 5, omega 1/2.
    assert overfitting_logits(np.tile(column, (1, 5)), blocks=4) == pytest.approx(
        np.zeros(6), abs=1e-15
    )


def test_a_strategy_that_never_traded_scores_zero():
    tried = np.stack([np.zeros(64), 0.01 * stream(3).standard_normal(64)], axis=1)
    tried[:32, 1] = 0.1  # a half without spread, though not at 0
    assert overfitting_logits(tried, blocks=4) == pytest.approx(
        oracle.overfitting_logits(tried.tolist(), 4), abs=1e-12
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_half_far_from_the_other_keeps_the_digits_of_its_spread(seed):
    """The same returns in another order, or four times as large, have equal Sharpe ratios.

    The first half lies at 0.2 and spreads by 5e-6, the second spreads by 0.1 around 0: squares
    around one centre leave the first half 8 digits, and ties become ranks by chance.
    """
    draw = np.random.default_rng(seed)
    near = np.round(0.2 + 5e-6 * draw.standard_normal(6), 7)
    far = np.round(0.1 * draw.standard_normal(6), 6)

    def shuffled():
        return np.concatenate((draw.permutation(near), draw.permutation(far)))

    returns = np.stack((shuffled(), shuffled(), 0.5 * shuffled(), 4.0 * shuffled()), axis=1)
    assert overfitting_logits(returns, blocks=2).tolist() == [0.0, 0.0]  # all share rank 2.5 of 4
    returns[:, 2] = np.concatenate((draw.permutation(far), draw.permutation(near)))
    expected = oracle.overfitting_logits(returns.tolist(), 2)
    assert overfitting_logits(returns, blocks=2) == pytest.approx(expected, abs=1e-12)


def test_a_common_large_return_swallows_no_spread():
    tried = 1e-6 * stream(4).standard_normal((64, 5)) + 100.0
    assert overfitting_logits(tried, blocks=4) == pytest.approx(
        oracle.overfitting_logits(tried.tolist(), 4), abs=1e-12
    )


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ((63, 5), "not enough data: needs 64 bars, found 63"),
        ((500, 1), "not enough data: needs 2 strategies, found 1"),
        ((500,), "not enough data: needs 2 strategies, found 1"),
    ],
)
def test_too_little_is_named(shape, reason):
    assert overfitting_statement(stream(0).standard_normal(shape), blocks=32).reason == reason


def test_a_statement_has_the_value_of_the_function():
    tried = stream(5).standard_normal((64, 4))
    assert overfitting_statement(tried, blocks=8).value == probability_of_overfitting(
        tried, blocks=8
    )


@pytest.mark.refusal
@pytest.mark.parametrize("blocks", [0, 5, 26, 22])
def test_blocks_that_do_not_fit_are_refused(blocks):
    with pytest.raises(RangeError) as caught:
        probability_of_overfitting(np.zeros((41, 3)), blocks=blocks)
    assert str(caught.value) == (
        "`blocks` must be even, from 2 to 24, with 2 bars each; "
        f"found {blocks} for 41 bars. Pass an even number up to 20. [out-of-range]"
    )


@pytest.mark.refusal
def test_one_strategy_is_refused():
    with pytest.raises(ShapeError, match=r"at least 2 strategies; found \[40, 1\]"):
        probability_of_overfitting(np.zeros((40, 1)))
