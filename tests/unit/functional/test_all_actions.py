"""Values of all actions and a limit that they keep: numbers by hand, edges and refusals."""

import math

import pytest
import torch

from stormsail.core.errors import DtypeError, RangeError, ShapeError
from stormsail.functional import distribution, policy, risk

INF, NAN = math.inf, math.nan


def row(*values):
    return torch.tensor(values, dtype=torch.float64)


def logs(*shares):
    return row(*shares).log()


def close(actual, expected):
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=1e-12, equal_nan=True)


# --------------------------------------------------------------------------- advantages of all


def test_advantages_are_relative_to_the_value_under_the_policy():
    # .5 * 4 + .25 * 0 + .25 * -8 = 0; the last action is impossible and has an advantage all the
    # same. In the second state all probability is on one action: its own advantage is 0.
    values = torch.stack((row(4, 0, -8, 100), row(3, -1, 5, 7)))
    probability = torch.stack((row(0.5, 0.25, 0.25, 0.0), row(0, 1, 0, 0)))
    close(policy.centred(values, probability), [[4.0, 0.0, -8.0, 100.0], [4.0, 0.0, 6.0, 8.0]])


def test_the_expected_surrogate_by_hand():
    # Ratios .5, 2, 1 and clip .2: min(1, 1.6) = 1, min(6, 3.6) = 3.6, -1; weighed by the old .5,
    # .25, .25: -(.5 + .9 - .25). Gradients by log pi: -pi A, and 0 where the clip holds.
    old, new = logs(0.5, 0.25, 0.25), logs(0.25, 0.5, 0.25).requires_grad_()
    loss = policy.expected_surrogate(new, old, row(2, 3, -1), clip=0.2)
    close(loss.detach(), -1.15)
    (gradient,) = torch.autograd.grad(loss, new)
    close(gradient, [-0.5, 0.0, 0.25])


def test_at_an_unchanged_policy_the_gradient_is_that_of_the_expected_advantage():
    logits = row(0.3, -1.0, 2.0).requires_grad_()
    gain = row(1.0, 2.0, -0.5)
    log_prob = logits.log_softmax(-1)
    loss = policy.expected_surrogate(log_prob, log_prob.detach(), gain, clip=0.1)
    (gradient,) = torch.autograd.grad(loss, logits)
    probability = logits.detach().softmax(-1)
    close(gradient, -probability * policy.centred(gain, probability))


@pytest.mark.parametrize("gain", [1e9, -1e9, INF, NAN])
def test_an_impossible_action_adds_nothing_forward_or_backward(gain):
    # old: classes 0 and 2 with .5 each; the mask forbids class 1, whose logit is trained elsewhere
    mask = torch.tensor([True, False, True])
    logits = row(0.0, 5.0, math.log(3.0)).requires_grad_()
    old = distribution.masked_logits(row(0.0, 5.0, 0.0), mask).log_softmax(-1)
    new = distribution.masked_logits(logits, mask).log_softmax(-1)  # .25 and .75
    loss = policy.expected_surrogate(new, old, row(1.0, gain, -2.0), clip=0.2)
    # ratios .5 and 1.5: -(.5 * min(.5, .8) + .5 * min(-3, -2.4)) = -.25 + 1.5
    close(loss.detach(), 1.25)
    (gradient,) = torch.autograd.grad(loss, logits)
    # by log pi: -.25 * 1 and -.75 * -2; by logits: g - pi sum g with sum 1.25
    close(gradient, [-0.25 - 0.25 * 1.25, 0.0, 1.5 - 0.75 * 1.25])


def test_an_infinite_log_probability_of_minus_infinity_is_impossible_too():
    old = row(0.0, -INF)
    new = row(-0.1, -INF).requires_grad_()
    loss = policy.expected_surrogate(new, old, row(2.0, 7.0), clip=0.2)
    close(loss.detach(), -2.0 * math.exp(-0.1))
    (gradient,) = torch.autograd.grad(loss, new)
    close(gradient, [-2.0 * math.exp(-0.1), 0.0])


def test_an_action_that_has_become_impossible_costs_its_old_share():
    # ratio 0, held at e^-20: -(.5 * e^-20 * 2) for a good one, .5 * .8 * 2 for a bad one
    old, gone = logs(0.5, 0.5), row(0.0, -INF)
    good = policy.expected_surrogate(gone, old, row(0.0, 2.0), clip=0.2)
    bad = policy.expected_surrogate(gone, old, row(0.0, -2.0), clip=0.2)
    close(good, -math.exp(-20.0))
    close(bad, 0.8)


@pytest.mark.refusal
@pytest.mark.parametrize("which", [0, 1, 2])
def test_no_argument_of_the_expected_surrogate_broadcasts(which):
    parts = [torch.zeros(2, 3, 4) for _ in range(3)]
    parts[which] = torch.zeros(4)
    with pytest.raises(ShapeError, match="must have the same shape"):
        policy.expected_surrogate(*parts, clip=0.2)


@pytest.mark.refusal
def test_a_band_without_width_and_other_shapes_are_refused():
    with pytest.raises(RangeError, match="`clip` must be greater than 0"):
        policy.expected_surrogate(row(0, 0), row(0, 0), row(0, 0), clip=0.0)
    with pytest.raises(ShapeError, match="`values` and `probability`"):
        policy.centred(torch.zeros(2, 3), torch.zeros(3))


# ------------------------------------------------------------------------- shortfall and level


def test_increments_of_the_shortfall_by_hand():
    # nu = 2. C = 1: from -1 to -4, -1, 0. C = 4: from 0 to -1, 0, 0.
    before = torch.stack((row(1, 1, 1), row(4, 4, 4)))
    reward = torch.stack((row(-3, 0, 4), row(-3, 0, 4)))
    expected = [[-3.0, 0.0, 1.0], [-1.0, 0.0, 0.0]]
    close(risk.shortfall_increment(reward, before, level=2.0), expected)
    close(risk.shortfall_increment(reward, before, level=torch.tensor(2.0)), expected)


@pytest.mark.refusal
def test_an_increment_never_broadcasts():
    with pytest.raises(ShapeError, match="`reward` and `return_so_far`"):
        risk.shortfall_increment(torch.zeros(2, 3), torch.zeros(2, 1), level=0.0)
    with pytest.raises(ShapeError, match="`level` must be a number"):
        risk.shortfall_increment(torch.zeros(2), torch.zeros(2), level=torch.zeros(2))


@pytest.mark.parametrize(
    ("quantile", "cvar", "limit", "level"),
    [
        (-3.0, -6.0, -8.0, -3.0),  # held: the value at risk
        (-3.0, -8.0, -8.0, -3.0),  # just held
        (-10.0, -7.0, -8.0, -8.0),  # a quantile below the limit: the limit
        (-4.0, -10.0, -8.0, -5.0),  # broken by a quarter of its size: a quarter of the way
        (0.0, -16.0, -8.0, -8.0),  # broken by its size: all the way
        (0.0, -99.0, -8.0, -8.0),  # and no further
        (2.0, 1.5, 1.0, 2.0),  # a limit above 0 is one too
        (2.0, 0.75, 1.0, 1.75),
        (3.0, 0.5, 0.0, 3.0),  # a limit of 0, held
        (3.0, 0.0, 0.0, 3.0),  # just held
        (3.0, -1e-9, 0.0, 0.0),  # and broken
    ],
)
def test_the_level_by_hand(quantile, cvar, limit, level):
    close(risk.shortfall_level(row(quantile), row(cvar), limit=limit), [level])
    close(risk.shortfall_level(row(quantile), row(cvar), limit=torch.tensor(limit)), [level])


@pytest.mark.refusal
def test_the_level_refuses_other_shapes_and_no_limit():
    with pytest.raises(ShapeError, match="`value_at_risk` and `cvar`"):
        risk.shortfall_level(row(1, 2), row(1), limit=-1.0)
    with pytest.raises(RangeError, match="`limit` must be a number"):
        risk.shortfall_level(row(1), row(1), limit=NAN)


# ----------------------------------------------------------------------------- share of the risk


@pytest.mark.parametrize(
    ("wanted", "mean_rate", "risk_rate", "most", "share"),
    [
        (0.0, -1.0, 3.0, 1.0, 0.25),  # balance: (1 - x) -1 + x 3 = 0
        (1.0, -1.0, 3.0, 1.0, 0.5),  # and 1 = (1 - x) -1 + x 3
        (-1.0, -1.0, 3.0, 1.0, 0.0),  # a fall by 1 is what the mean makes alone
        (-2.0, -1.0, 3.0, 1.0, 0.0),  # more is not to be had
        (9.0, -1.0, 3.0, 9.0, 1.0),
        (9.0, -1.0, 3.0, 0.125, 0.375),  # at most an eighth from balance
        (-9.0, -1.0, 3.0, 0.125, 0.125),
        (9.0, -1.0, 3.0, 0.0, 0.25),
        (0.0, 1.0, 3.0, 1.0, 0.0),  # both raise CVaR: the mean alone
        (2.0, 1.0, 3.0, 1.0, 0.5),
        (0.1, 2.0, 2.0, 1.0, 1.0),  # risk no better than the mean
        (-0.1, 2.0, 1.0, 1.0, 0.0),
        (0.0, 0.0, 0.0, 1.0, 0.0),
    ],
)
def test_the_share_by_hand(wanted, mean_rate, risk_rate, most, share):
    actual = risk.mixing_share(row(wanted), row(mean_rate), row(risk_rate), most_change=most)
    close(actual, [share])


def test_a_step_with_the_share_moves_cvar_by_what_is_wanted():
    wanted, mean_rate, risk_rate = row(0.3, -0.2, 0.0), row(-1.0, -0.5, -2.0), row(2.0, 1.0, 0.5)
    share = risk.mixing_share(wanted, mean_rate, risk_rate, most_change=1.0)
    close((1.0 - share) * mean_rate + share * risk_rate, wanted)


@pytest.mark.refusal
def test_the_share_refuses_other_shapes_and_a_negative_distance():
    with pytest.raises(ShapeError, match="`wanted` and `risk_rate`"):
        risk.mixing_share(row(1), row(1), row(1, 2), most_change=1.0)
    with pytest.raises(RangeError, match="`most_change` must be at least 0"):
        risk.mixing_share(row(1), row(1), row(1), most_change=-0.1)


# ----------------------------------------------------------------------- trust in a critic


@pytest.mark.parametrize(
    ("product", "square", "errors", "slope"),
    [
        ((0.2, 0.6), (1.0, 3.0), 5.0, 0.2),  # every sample says .2: no error
        # b = .8 / 4; both are .4 off, s^2 = 2 (.16 + .16) / 16 = .2^2
        ((0.0, 0.8), (2.0, 2.0), 0.0, 0.2),
        ((0.0, 0.8), (2.0, 2.0), 1.0, 0.4),
        ((0.0, 0.8), (2.0, 2.0), 2.0, 0.6),
        ((0.0, 0.8), (2.0, 2.0), 9.0, 1.0),  # never more than what was predicted
        ((-2.0, -2.0), (2.0, 2.0), 2.0, 0.0),  # the opposite came: nothing of it is left
        ((3.0, 3.0), (2.0, 2.0), 0.0, 1.0),
        ((0.0,), (2.0,), 0.0, 1.0),  # one sample refutes nothing
        ((0.0, 0.0), (0.0, 0.0), 0.0, 1.0),  # nothing was predicted
    ],
)
def test_the_trust_in_predictions_by_hand(product, square, errors, slope):
    close(risk.calibration_slope(row(*product), row(*square), errors=errors), slope)


def test_predictions_that_are_half_noise_are_halved():
    """Outcome x, prediction x + e with e as wide as x: the best multiple of it is a half."""
    generator = torch.Generator().manual_seed(3)
    x, e = torch.randn(2, 40, 500, generator=generator, dtype=torch.float64)
    slope = risk.calibration_slope(((x + e) * x).mean(-1), (x + e).square().mean(-1), errors=0.0)
    assert float(slope) == pytest.approx(0.5, abs=0.02)


def test_shrinking_by_hand():
    advantage = torch.tensor([[1.0, -1.0], [3.0, -3.0], [9.0, 9.0]], dtype=torch.float64)
    weight = row(1.0, 3.0, 0.0)  # means 2.5 and -2.5: the last state does not count
    actual = risk.shrink_to_mean(advantage, weight, share=0.5)
    close(actual, [[1.75, -1.75], [2.75, -2.75], [5.75, 3.25]])
    assert torch.equal(risk.shrink_to_mean(advantage, weight, share=1.0), advantage)


@pytest.mark.refusal
def test_trust_and_shrinking_refuse_what_does_not_fit():
    with pytest.raises(ShapeError, match="`product` and `square`"):
        risk.calibration_slope(row(1, 2), row(1), errors=1.0)
    with pytest.raises(RangeError, match="`errors` must be at least 0"):
        risk.calibration_slope(row(1, 2), row(1, 2), errors=-1.0)
    with pytest.raises(ShapeError, match="`states` and `weight`"):
        risk.shrink_to_mean(torch.zeros(3, 2), torch.ones(2), share=1.0)
    with pytest.raises(RangeError, match="`share`"):
        risk.shrink_to_mean(torch.zeros(3, 2), torch.ones(3), share=1.5)


# ----------------------------------------------------------------------- floor


@pytest.mark.parametrize(
    ("gap", "weight", "errors", "share"),
    [
        # mean 2; s^2 = (1 + 1) / 4, so 2 is 2.83 of them
        ((1.0, 3.0), (1.0, 1.0), 0.0, 0.5),
        ((1.0, 3.0), (1.0, 1.0), 2.0, 0.5 * (2.0 * math.sqrt(2.0) - 2.0)),
        ((1.0, 3.0), (5.0, 5.0), 2.0, 0.5 * (2.0 * math.sqrt(2.0) - 2.0)),
        ((1.0, 3.0), (1.0, 1.0), 2.9, 0.0),
        ((-1.0, -3.0), (1.0, 1.0), 0.0, 0.0),  # the policy earns more
        # mean 1.5; s^2 = (3 .5)^2 + 1.5^2 over 16, so s = .530
        ((1.0, 3.0), (3.0, 1.0), 2.5, 0.5 * (1.5 * 4.0 / math.sqrt(4.5) - 2.5)),
        ((2.0, 2.0), (1.0, 1.0), 9.0, 0.5),  # no doubt at all
        ((0.0, 0.0), (1.0, 1.0), 0.0, 0.0),
    ],
)
def test_the_floor_by_hand(gap, weight, errors, share):
    close(risk.floor_share(row(*gap), row(*weight), errors=errors), share)


def test_the_pull_by_hand():
    """p = .2 in the first state: (1 - .2) / .4 = 2 and -.2 / .4 = -.5; in the second it is over."""
    probability = torch.tensor([[0.2, 0.8], [0.5, 0.5]], dtype=torch.float64)
    advantage = torch.tensor([[1.0, -1.0], [1.0, -1.0]], dtype=torch.float64)
    actual = risk.pull_to_action(advantage, probability, torch.tensor(0), share=0.25)
    close(actual, [[1.25, -0.875], [1.0, -1.0]])
    other = risk.pull_to_action(advantage, probability, torch.tensor(1), share=0.25)
    assert torch.equal(other, advantage)  # likely everywhere
    whole = risk.pull_to_action(advantage, probability, torch.tensor(0), share=1.0)
    close((probability * whole).sum(-1)[0], 0.0)


@pytest.mark.refusal
def test_floor_and_pull_refuse_what_does_not_fit():
    with pytest.raises(ShapeError, match="`gap` and `weight`"):
        risk.floor_share(row(1, 2), row(1), errors=1.0)
    with pytest.raises(RangeError, match="`errors` must be at least 0"):
        risk.floor_share(row(1, 2), row(1, 2), errors=-1.0)
    with pytest.raises(ShapeError, match="`advantage` and `probability`"):
        risk.pull_to_action(torch.zeros(3, 2), torch.ones(3, 1), torch.tensor(0), share=1.0)
    with pytest.raises(RangeError, match="`share`"):
        risk.pull_to_action(torch.zeros(3, 2), torch.ones(3, 2), torch.tensor(0), share=1.5)


# ----------------------------------------------------------------------- quantile and its error


@pytest.mark.parametrize(
    ("alpha", "level"),
    [
        (0.05, -5.0),
        (0.1, -5.0),
        (0.1000001, -1.0),
        (0.3, -1.0),
        (0.31, 2.0),
        (0.9, 2.0),
        (1.0, 7.0),
    ],
)
def test_the_weighted_quantile_by_hand(alpha, level):
    # sorted: -5 with .1, -1 with .2, 2 with .6, 7 with .1
    sample, weight = row(2, -5, 7, -1), row(0.6, 0.1, 0.1, 0.2)
    assert float(risk.weighted_value_at_risk(sample, weight, alpha=alpha)) == level
    assert float(risk.weighted_value_at_risk(sample, 40.0 * weight, alpha=alpha)) == level


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_quantile_at_a_boundary_is_the_same_for_a_tensor_alpha(dtype):
    sample, weight = torch.arange(10.0), torch.full((10,), 0.1)
    alpha = torch.tensor(0.3, dtype=dtype)
    assert float(risk.weighted_value_at_risk(sample, weight, alpha=alpha)) == 2.0


def test_outcomes_of_weight_zero_are_no_quantile():
    sample, weight = row(-9, 1, 2, 50), row(0.0, 0.5, 0.5, 0.0)
    assert float(risk.weighted_value_at_risk(sample, weight, alpha=0.01)) == 1.0
    assert float(risk.weighted_value_at_risk(sample, weight, alpha=1.0)) == 2.0
    alone = row(0.0, 0.0, 0.0, 3.0)
    assert float(risk.weighted_value_at_risk(sample, alone, alpha=0.5)) == 50.0


def test_an_unknown_outcome_shows():
    assert math.isnan(risk.weighted_value_at_risk(row(1, NAN, 2), row(1, 1, 1), alpha=0.1))


def test_the_stratified_error_by_hand():
    # nu = 0, alpha = .5: x = -4, -2, 0, 0, 0. Weights .1, .1 in the tail; .4, .2, .2 beside it.
    # Mean -.6, variance .1 * 3.4^2 + .1 * 1.4^2 + .8 * .36 = 1.64; over 10 draws .164.
    # Tail: W = .2, s^2 = 2, n = 2: .04. Others: s^2 = 0. (.164 + .04)^.5 / .5.
    sample = row(-4, -2, 1, 0, 5)
    weight = row(0.1, 0.1, 0.4, 0.2, 0.2)
    stratum = torch.tensor([True, True, False, False, False])
    options = {"alpha": 0.5, "level": 0.0, "draws": 10}
    close(risk.stratified_cvar_error(sample, weight, stratum, **options), 2.0 * math.sqrt(0.204))
    # which side is called the stratum does not matter
    close(risk.stratified_cvar_error(sample, weight, ~stratum, **options), 2.0 * math.sqrt(0.204))


def test_a_stratum_of_fewer_than_two_outcomes_adds_nothing():
    # x = -4, 0, 0 with .2, .4, .4: mean -.8, variance .2 * 3.2^2 + .8 * .64 = 2.56; alpha 1
    sample, weight = row(-4, 1, 2), row(0.2, 0.4, 0.4)
    options = {"alpha": 1.0, "level": 0.0, "draws": 4}
    single = torch.tensor([True, False, False])
    close(risk.stratified_cvar_error(sample, weight, single, **options), 0.8)
    # all in one stratum, the other empty: s^2 = 16 / 3, n = 3, W = 1
    nothing = torch.zeros(3, dtype=torch.bool)
    both = math.sqrt(0.64 + 16.0 / 9.0)
    close(risk.stratified_cvar_error(sample, weight, nothing, **options), both)


def test_the_error_of_outcomes_that_share_draws_by_hand():
    # as by hand above: .204 of the other parts; z = -.34, -.14, .24, .12, .12. The first two are
    # near each other, all others far: 2 * .0476 * (1 - distance / reach)
    sample, weight = row(-4, -2, 1, 0, 5), row(0.1, 0.1, 0.4, 0.2, 0.2)
    stratum = torch.tensor([True, True, False, False, False])
    options = {"alpha": 0.5, "level": 0.0, "draws": 10}

    def error(place, reach):
        near = {"place": torch.tensor(place), "reach": reach}
        return risk.stratified_cvar_error(sample, weight, stratum, **options, **near)

    close(error([10, 10, 30, 50, 70], 1), 2.0 * math.sqrt(0.204 + 0.0952))
    close(error([10, 11, 30, 50, 70], 2), 2.0 * math.sqrt(0.204 + 0.0476))
    close(error([10, 12, 30, 50, 70], 8), 2.0 * math.sqrt(0.204 + 0.0714))
    # whichever comes first on the line, and wherever the line begins
    close(error([-11, -12, -30, -50, -70], 2), 2.0 * math.sqrt(0.204 + 0.0476))
    # as far apart as they reach: independent
    close(error([10, 12, 30, 50, 70], 2), 2.0 * math.sqrt(0.204))


def test_sharing_draws_never_makes_the_error_smaller():
    # the worst near the others: -.0408 - .0612 + .0216 + .0238 - .0084 - .0252 = -.0902, twice
    sample, weight = row(-4, -2, 1, 0, 5), row(0.1, 0.1, 0.4, 0.2, 0.2)
    stratum = torch.tensor([True, True, False, False, False])
    options = {"alpha": 0.5, "level": 0.0, "draws": 10}
    near = {"place": torch.tensor([10, 12, 11, 30, 10]), "reach": 4}
    shared = risk.stratified_cvar_error(sample, weight, stratum, **options, **near)
    alone = risk.stratified_cvar_error(sample, weight, stratum, **options)
    assert torch.equal(shared, alone)


def test_the_error_covers_the_truth_of_other_bars():
    """600 sums of 50 bars of 4 symbols from 4,000 bars, each symbol's mostly those of all.

    The truth is that of the process; s of independent outcomes covers it in 75 % of 200 markets.
    """
    drawn = torch.Generator().manual_seed(0)
    bars, steps, count, alpha = 4000, 50, 600, 0.2
    quantile = 0.8416212335729143  # of 80 % of a normal distribution
    truth = -math.sqrt(steps / (2.0 * math.pi)) * math.exp(-(quantile**2) / 2.0) / alpha
    weight = torch.full((count,), 1.0 / count, dtype=torch.float64)
    whole = torch.zeros(count, dtype=torch.bool)
    kept = {"plain": 0, "shared": 0}
    for _ in range(200):
        common = torch.randn(bars, 1, generator=drawn, dtype=torch.float64)
        own = torch.randn(bars, 4, generator=drawn, dtype=torch.float64)
        path = (math.sqrt(0.9) * common + math.sqrt(0.1) * own).cumsum(0)
        first = torch.randint(bars - steps, (count,), generator=drawn)
        symbol = torch.randint(4, (count,), generator=drawn)
        made = path[first + steps, symbol] - path[first, symbol]
        level = risk.value_at_risk(made, alpha=alpha)
        options = {"alpha": alpha, "level": level, "draws": count}
        near = {"place": first, "reach": 2 * steps}
        miss = (risk.empirical_cvar(made, alpha=alpha) - truth).abs()
        for name, more in (("plain", {}), ("shared", near)):
            error = risk.stratified_cvar_error(made, weight, whole, **options, **more)
            kept[name] += int(miss <= 1.96 * error)
    assert kept["plain"] < 160
    assert 180 <= kept["shared"] <= 196


@pytest.mark.refusal
def test_quantile_and_error_refuse_what_they_cannot_mean():
    x, flags = row(1, 2), torch.tensor([True, False])
    options = {"alpha": 0.1, "level": 0.0, "draws": 2}
    for alpha in (0.0, 1.1, NAN):
        with pytest.raises(RangeError, match="`alpha` must lie in"):
            risk.weighted_value_at_risk(x, x, alpha=alpha)
        with pytest.raises(RangeError, match="`alpha` must lie in"):
            risk.stratified_cvar_error(x, x, flags, **{**options, "alpha": alpha})
    with pytest.raises(ShapeError, match="at least one sample"):
        risk.weighted_value_at_risk(row(), row(), alpha=0.1)
    with pytest.raises(ShapeError, match="`sample` and `weight`"):
        risk.weighted_value_at_risk(x, row(1), alpha=0.1)
    with pytest.raises(ShapeError, match="`sample` and `stratum`"):
        risk.stratified_cvar_error(x, x, flags[:1], **options)
    with pytest.raises(ShapeError, match="`level` must be a number"):
        risk.stratified_cvar_error(x, x, flags, **{**options, "level": x})
    with pytest.raises(RangeError, match="`draws` must be a whole number"):
        risk.stratified_cvar_error(x, x, flags, **{**options, "draws": 0})
    with pytest.raises(ShapeError, match="`sample` and `place`"):
        risk.stratified_cvar_error(x, x, flags, **options, place=torch.tensor([1]))
    with pytest.raises(RangeError, match="`reach` must be a whole number"):
        risk.stratified_cvar_error(x, x, flags, **options, place=torch.tensor([1, 2]), reach=0)
    with pytest.raises(DtypeError, match="`stratum` must be a boolean tensor"):
        risk.stratified_cvar_error(x, x, x, **options)
