"""Hand-computed values, golden numbers and refusals of `stormsail.functional.returns`."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from oracles import risk as risk_oracle
from stormsail.core.errors import DtypeError, RangeError, ShapeError
from stormsail.functional import returns
from stormsail.functional.twin import twin_value

T, F = True, False
NAN = math.nan


def column(*values):
    """One environment, [T, 1]; Python floats become float64, flags bool."""
    dtype = torch.bool if isinstance(values[0], bool) else torch.float64
    return torch.tensor(values, dtype=dtype).unsqueeze(-1)


def rows(*values):
    """One environment of quantiles or probabilities, [T, 1, N]."""
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def close(actual, expected, *, rtol=1e-12, atol=1e-12):
    expected = np.asarray(expected, dtype=float).reshape(actual.shape)
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol)


# ------------------------------------------------------------------------------------------- gae


@pytest.mark.spec("T-GAE1", "S1-P2", "X1")
def test_gae_of_two_episodes_split_by_a_truncation_is_the_golden_row():
    # gamma * lam = .9405. Second episode: 1, 1 + .9405, 1 + .9405 * 1.9405 = 2.825040; nothing of
    # it reaches the first one, whose rewards, values and bootstrap are all zero.
    zeros = column(0.0, 0, 0, 0, 0, 0)
    actual = returns.gae(
        column(0.0, 0, 0, 1, 1, 1),
        zeros,
        zeros,
        column(F, F, F, F, F, F),
        column(F, F, T, F, F, F),
        gamma=0.99,
        lam=0.95,
    )
    close(actual, [0, 0, 0, 2.825040, 1.9405, 1], atol=5e-7, rtol=0)


@pytest.mark.spec("T-GAE1", "X1")
def test_a_truncation_bootstraps_and_a_termination_does_not():
    # delta = 1 + .5 * 8 - 2 = 3 where truncated, 1 - 2 = -1 where terminated; trace cut by both.
    reward, value, bootstrap = column(1.0, 1, 1), column(2.0, 2, 2), column(8.0, 8, 8)
    no, middle = column(F, F, F), column(F, T, F)
    truncated = returns.gae(reward, value, bootstrap, no, middle, gamma=0.5, lam=0.5)
    close(truncated, [3 + 0.25 * 3, 3, 3])
    terminated = returns.gae(reward, value, bootstrap, middle, no, gamma=0.5, lam=0.5)
    close(terminated, [3 - 0.25 * 1, -1, 3])


def test_terminated_wins_over_truncated():
    arguments = column(1.0, 1), column(2.0, 2), column(8.0, 8)
    both = returns.gae(*arguments, column(T, F), column(T, F), gamma=0.5, lam=0.5)
    close(both, [-1, 3])
    targets = returns.quantile_nstep_targets(
        column(1.0, 1), rows([8.0, 9.0], [8.0, 9.0]), column(T, F), column(T, F), gamma=0.5, steps=2
    )
    close(targets, [[1, 1], [5, 5.5]])


def test_the_last_row_bootstraps_from_its_own_entry():
    one = returns.gae(
        column(1.0), column(2.0), column(8.0), column(F), column(F), gamma=0.5, lam=1.0
    )
    close(one, [3])


@pytest.mark.parametrize("kind", ["terminated", "truncated"])
def test_a_rollout_that_ends_on_an_end_stops_there(kind):
    flags = {"terminated": column(F, F), "truncated": column(F, F), kind: column(F, T)}
    actual = returns.gae(
        column(1.0, 1),
        column(0.0, 0),
        column(0.0, 10),
        flags["terminated"],
        flags["truncated"],
        gamma=0.5,
        lam=1.0,
    )
    close(actual, [1.5, 1] if kind == "terminated" else [1 + 0.5 * 6, 6])


def test_with_zero_rewards_the_advantage_comes_from_the_values_alone():
    # delta = .5 * V' - V: .5*2-1 = 0, .5*4-2 = 0, .5*6-4 = -1; trace .5*.5.
    actual = returns.gae(
        column(0.0, 0, 0),
        column(1.0, 2, 4),
        column(2.0, 4, 6),
        column(F, F, F),
        column(F, F, F),
        gamma=0.5,
        lam=0.5,
    )
    close(actual, [-0.0625, -0.25, -1])


def test_when_every_step_ends_the_advantage_is_the_temporal_difference():
    reward, value, bootstrap = column(1.0, 2, 3), column(0.5, 0.5, 0.5), column(4.0, 4, 4)
    yes, no = column(T, T, T), column(F, F, F)
    terminated = returns.gae(reward, value, bootstrap, yes, no, gamma=0.9, lam=0.9)
    close(terminated, [0.5, 1.5, 2.5])
    truncated = returns.gae(reward, value, bootstrap, no, yes, gamma=0.9, lam=0.9)
    close(truncated, [4.1, 5.1, 6.1])


@pytest.mark.spec("T-T2", "S1-T1", "S3-FP2")
def test_gae_on_the_smaller_critic_ignores_the_other_one_in_all_three_places():
    # Heads differ by 1; V_t, the last value and the time-out bootstrap must all be head 2's.
    honest = torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float64)
    reached = torch.tensor([[2.0], [7.0], [4.0]], dtype=torch.float64)
    no, cut = column(F, F, F), column(F, T, F)
    reward = column(0.5, 0.5, 0.5)

    def pair(head):
        return twin_value(torch.stack([head + 1.0, head], dim=-1), mode="min")

    joint = returns.gae(reward, pair(honest), pair(reached), no, cut, gamma=0.9, lam=0.8)
    alone = returns.gae(reward, honest, reached, no, cut, gamma=0.9, lam=0.8)
    assert torch.equal(joint, alone)
    # Each place matters: the biased head in any one of them gives another answer.
    for place in range(3):
        values, bootstraps = honest.clone(), reached.clone()
        (values, bootstraps, bootstraps)[place][(0, 1, 2)[place]] += 1.0
        biased = returns.gae(reward, values, bootstraps, no, cut, gamma=0.9, lam=0.8)
        assert not torch.equal(biased, alone)


@pytest.mark.spec("X5")
def test_the_lambda_return_has_less_than_half_the_spread_of_the_return():
    # One environment for each impulse: the first row then holds the weight of every reward, and
    # the spread under iid noise is the norm of that row. sqrt((1-g^2)/(1-(g l)^2)) = .41516.
    T_ = 1200
    reward = torch.eye(T_, dtype=torch.float64)
    zero, no = torch.zeros_like(reward), torch.zeros(T_, T_, dtype=torch.bool)
    spread = [
        returns.gae(reward, zero, zero, no, no, gamma=0.99, lam=lam)[0].norm()
        for lam in (0.95, 1.0)
    ]
    np.testing.assert_allclose(spread[0] / spread[1], 0.41516, atol=5e-6)
    np.testing.assert_allclose(spread, [2.943, 7.089], rtol=1e-3)


def test_gae_does_not_lose_small_advantages_beside_large_values():
    # In float32 the sum r + gamma V' - V at V = 1e4 keeps only 1e-3; inside it is float64.
    T_ = 64
    value = torch.full((T_, 1), 1e4)
    no = torch.zeros(T_, 1, dtype=torch.bool)
    actual = returns.gae(torch.full((T_, 1), 1e-5), value, value, no, no, gamma=1.0, lam=1.0)
    expected = 1e-5 * np.arange(T_, 0, -1)
    np.testing.assert_allclose(actual[:, 0], expected, rtol=1e-6)


# ----------------------------------------------------------------------------------- n-step
# distributions


def test_nstep_targets_by_hand():
    # gamma = .5, two steps. Row 0: 1 + .5*2 + .25*q1. Row 1: 2 + .5*4 + .25*q2 (row 2 truncated).
    # Row 2: window ends at its own truncation: 4 + .5*q2. Row 3 terminated: 8. Row 4: 16 + .5*q4.
    quantiles = [[10.0 * t, 10.0 * t + 4] for t in range(5)]
    actual = returns.quantile_nstep_targets(
        column(1.0, 2, 4, 8, 16),
        rows(*quantiles),
        column(F, F, F, T, F),
        column(F, F, T, F, F),
        gamma=0.5,
        steps=2,
    )
    close(actual, [[4.5, 5.5], [9, 10], [14, 16], [8, 8], [36, 38]])


def test_nstep_targets_keep_the_order_of_crossing_quantiles():
    actual = returns.quantile_nstep_targets(
        column(1.0), rows([3.0, -1.0, 2.0]), column(F), column(F), gamma=1.0, steps=1
    )
    close(actual, [4, 0, 3])


def test_categorical_nstep_targets_by_hand():
    # Atoms -1, 0, 1; gamma .5. Row 0 (terminated): a point at .25. Row 1: .5 + .5 * (-1, 0, 1)
    # = (0, .5, 1) with masses (.2, .3, .5): 0 gets .2 + .15, 1 gets .15 + .5.
    actual = returns.categorical_nstep_targets(
        column(0.25, 0.5),
        rows([NAN, NAN, NAN], [0.2, 0.3, 0.5]),
        column(T, F),
        column(F, F),
        torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64),
        gamma=0.5,
        steps=1,
    )
    close(actual, [[0, 0.75, 0.25], [0, 0.35, 0.65]])


def test_categorical_targets_outside_the_support_are_clamped_to_its_ends():
    actual = returns.categorical_nstep_targets(
        column(9.0, -9.0),
        rows([0.5, 0.5], [0.5, 0.5]),
        column(T, F),
        column(F, T),
        torch.tensor([-1.0, 1.0], dtype=torch.float64),
        gamma=0.5,
        steps=4,
    )
    close(actual, [[0, 1], [1, 0]])


def test_a_window_of_the_nstep_distribution_uses_the_power_of_the_discount_it_covered():
    # Three rows, steps 2: row 1's window is rows 1-2, row 2's is cut by the rollout to itself.
    actual = returns.categorical_nstep_targets(
        column(0.0, 0, 0),
        rows([0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]),
        column(F, F, F),
        column(F, F, F),
        torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64),
        gamma=0.5,
        steps=2,
    )
    # 2 * .25 = .5 for rows 0 and 1, 2 * .5 = 1 for the last row.
    close(actual, [[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 1, 0]])


# ------------------------------------------------------------------------------------ lambda
# distribution


def test_lambda_targets_by_hand():
    # gamma = 1. Row 1 (last): 10 + (0, 4) = (10, 14). Row 0 mixes its bootstrap (0, 12), mass
    # .25 each, with (10, 14), mass .25 each, at lam = .5. In units of N F: 0 -> .5, 10 -> 1,
    # 12 -> 1.5, 14 -> 2. Levels .5 and 1.5 are both ties: the lower atoms 0 and 12 are read.
    actual = returns.quantile_lambda_targets(
        column(1.0, 10),
        rows([12.0, 0.0], [4.0, 0.0]),
        column(F, F),
        column(F, F),
        gamma=1.0,
        lam=0.5,
    )
    close(actual, [[1, 13], [10, 14]])


def test_a_level_tie_that_rounding_hides_still_reads_the_lower_atom():
    # lam = .9, N = 5: the sum of 5 masses of 1 - .9 = .1 is .49999999999999994 in floating point,
    # yet N F = .5 is the first level exactly, reached by the fifth bootstrap atom.
    bootstrap = [[0.0, 1.0, 2.0, 3.0, 4.0], [100.0, 101.0, 102.0, 103.0, 104.0]]
    actual = returns.quantile_lambda_targets(
        column(0.0, 0.0), rows(*bootstrap), column(F, F), column(F, F), gamma=1.0, lam=0.9
    )
    # Then 100 has N F = 1.4, 101 has 2.3, 102 has 3.2, 103 has 4.1, 104 has 5.
    close(actual[0], [4, 101, 102, 103, 104])


def test_lambda_targets_stop_at_both_kinds_of_end():
    actual = returns.quantile_lambda_targets(
        column(1.0, 2, 3),
        rows([NAN, NAN], [7.0, 5.0], [0.0, 2.0]),
        column(T, F, F),
        column(F, T, F),
        gamma=0.5,
        lam=0.9,
    )
    close(actual, [[1, 1], [4.5, 5.5], [3, 4]])


@pytest.mark.spec("T-Q5", "X5")
def test_nstep_targets_learn_the_spread_of_an_iid_noise_chain_and_lambda_returns_do_not():
    # One state, reward N(0, 1) each step, gamma = .99: the return has std 1/sqrt(1-g^2) = 7.089.
    # Tabular fixed point: pool the targets of many environments, read N quantiles, feed them back.
    gamma, steps, B, N = 0.99, 64, 256, 32
    levels = (np.arange(N) + 0.5) / N
    reward = np.random.default_rng(0).normal(size=(steps, B))
    # Nudge each path so that the discounted sums, by rank, are exact normal quantiles: 256
    # environments then carry no sampling error.
    weight = gamma ** np.arange(steps)
    total, size = weight @ reward, weight @ weight
    rank = np.argsort(np.argsort(total))
    exact = math.sqrt(size) * stats.norm.ppf((rank + 0.5) / B)
    reward += weight[:, None] * (exact - total) / size
    no = torch.zeros(steps, B, dtype=torch.bool)
    noise = torch.from_numpy(reward)
    theta = np.zeros(N)
    for _ in range(16):  # gamma^64 = .53 a round: the start is forgotten to 4e-5
        bootstrap = torch.from_numpy(theta).expand(steps, B, N)
        targets = returns.quantile_nstep_targets(noise, bootstrap, no, no, gamma=gamma, steps=steps)
        theta = np.quantile(targets[0].numpy(), levels, method="inverted_cdf")
    true_std = 1 / math.sqrt(1 - gamma**2)
    iqr = np.interp(0.75, levels, theta) - np.interp(0.25, levels, theta)
    np.testing.assert_allclose(iqr, 2 * 0.67449 * true_std, rtol=0.02)
    # The tail is short by the resolution of 32 quantiles, 4.27 % at the exact ones, not by 58 %.
    tail = risk_oracle.cvar(theta, 0.05)
    truth = true_std * risk_oracle.normal_cvar(0.05)
    assert 0 < 1 - tail / truth < 0.09
    # The lambda-return around the same (zero) mean value has only .415 of that spread.
    zero = torch.zeros_like(noise)
    lambda_return = returns.gae(noise, zero, zero, no, no, gamma=gamma, lam=0.95)[0]
    assert 0.3 < lambda_return.std().item() / true_std < 0.5


# -------------------------------------------------------------------------------------- refusals

TAIL = (
    "Reduce or expand one of them before the call; this function never broadcasts. [shape-mismatch]"
)


def refused(error, function, *arguments, **options):
    with pytest.raises(error) as caught:
        function(*arguments, **options)
    return str(caught.value)


@pytest.mark.refusal
@pytest.mark.parametrize("place", [1, 2, 3, 4])
def test_gae_refuses_to_broadcast(place):
    names = ("reward", "value", "bootstrap", "terminated", "truncated")
    arguments = [torch.zeros(5, 3)] * 3 + [torch.zeros(5, 3, dtype=torch.bool)] * 2
    arguments[place] = arguments[place][:, :1]
    message = refused(ShapeError, returns.gae, *arguments, gamma=0.9, lam=0.9)
    name = names[place]
    assert message == (
        f"`reward` and `{name}` must have the same shape; "
        f"found reward (5, 3) and {name} (5, 1). {TAIL}"
    )


@pytest.mark.refusal
@pytest.mark.parametrize("name", ["terminated", "truncated"])
def test_flags_must_be_boolean(name):
    x, q = torch.zeros(5, 3), torch.zeros(5, 3, 2)
    flags = {"terminated": torch.zeros(5, 3).bool(), "truncated": torch.zeros(5, 3).bool()}
    flags[name] = torch.zeros(5, 3)
    expected = (
        f"`{name}` must be a boolean tensor; found torch.float32. "
        "Convert it with `.bool()`. [dtype-mismatch]"
    )
    both = (flags["terminated"], flags["truncated"])
    atoms = torch.tensor([0.0, 1.0])
    calls = (
        (returns.gae, (x, x, x, *both), {"gamma": 0.9, "lam": 0.9}),
        (returns.quantile_nstep_targets, (x, q, *both), {"gamma": 0.9, "steps": 2}),
        (returns.quantile_lambda_targets, (x, q, *both), {"gamma": 0.9, "lam": 0.9}),
        (returns.categorical_nstep_targets, (x, q, *both, atoms), {"gamma": 0.9, "steps": 2}),
    )
    for function, arguments, options in calls:
        assert refused(DtypeError, function, *arguments, **options) == expected


def calls_with(**changed):
    """Every function of the module that takes the changed option, ready to be called."""
    x, q, no = torch.zeros(5, 3), torch.zeros(5, 3, 2), torch.zeros(5, 3, dtype=torch.bool)
    atoms = torch.tensor([0.0, 1.0])
    calls = (
        (returns.gae, (x, x, x, no, no), {"gamma": 0.9, "lam": 0.9}),
        (returns.quantile_nstep_targets, (x, q, no, no), {"gamma": 0.9, "steps": 2}),
        (returns.quantile_lambda_targets, (x, q, no, no), {"gamma": 0.9, "lam": 0.9}),
        (returns.categorical_nstep_targets, (x, q, no, no, atoms), {"gamma": 0.9, "steps": 2}),
    )
    taking = [c for c in calls if set(changed) <= set(c[2])]
    return [(function, arguments, options | changed) for function, arguments, options in taking]


@pytest.mark.refusal
@pytest.mark.parametrize("gamma", [1.5, -0.1, NAN])
def test_a_discount_outside_the_unit_interval_is_refused(gamma):
    calls = calls_with(gamma=gamma)
    assert len(calls) == 4
    for function, arguments, options in calls:
        assert refused(RangeError, function, *arguments, **options) == (
            f"`gamma` must lie in [0, 1]; found {gamma!r}. "
            "Pass a discount between 0 and 1. [out-of-range]"
        )


@pytest.mark.refusal
@pytest.mark.parametrize("lam", [-0.1, 1.5, NAN])
def test_a_trace_decay_outside_the_unit_interval_is_refused(lam):
    calls = calls_with(lam=lam)
    assert len(calls) == 2
    for function, arguments, options in calls:
        assert refused(RangeError, function, *arguments, **options) == (
            f"`lam` must lie in [0, 1]; found {lam!r}. "
            "Pass a trace decay between 0 and 1. [out-of-range]"
        )


@pytest.mark.refusal
@pytest.mark.parametrize("steps", [0, 1.5, -3, NAN])
def test_a_window_that_is_no_whole_number_of_rows_is_refused(steps):
    calls = calls_with(steps=steps)
    assert len(calls) == 2
    for function, arguments, options in calls:
        assert refused(RangeError, function, *arguments, **options) == (
            f"`steps` must be a whole number of at least 1; found {steps!r}. "
            "Use 1 for the one-step target. [out-of-range]"
        )


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("function", "name"),
    [
        (returns.quantile_nstep_targets, "bootstrap_quantiles"),
        (returns.quantile_lambda_targets, "bootstrap_quantiles"),
        (returns.categorical_nstep_targets, "bootstrap_probs"),
    ],
)
def test_bootstrap_distributions_must_share_the_rows_of_the_reward(function, name):
    no = torch.zeros(5, 3, dtype=torch.bool)
    atoms = (torch.tensor([0.0, 1.0]),) if name == "bootstrap_probs" else ()
    option = {"lam": 0.9} if function is returns.quantile_lambda_targets else {"steps": 2}
    message = refused(
        ShapeError,
        function,
        torch.zeros(5, 3),
        torch.zeros(5, 1, 2),
        no,
        no,
        *atoms,
        gamma=0.9,
        **option,
    )
    assert message == (
        f"`reward` must have the shape of `{name}` without its last dimension; "
        f"found reward (5, 3) and {name} (5, 1, 2). {TAIL}"
    )


@pytest.mark.refusal
def test_categorical_targets_refuse_a_distribution_on_other_atoms():
    x, no = torch.zeros(5, 3), torch.zeros(5, 3, dtype=torch.bool)
    message = refused(
        ShapeError,
        returns.categorical_nstep_targets,
        x,
        torch.zeros(5, 3, 4),
        no,
        no,
        torch.tensor([0.0, 1.0]),
        gamma=0.9,
        steps=2,
    )
    assert message == (
        "`bootstrap_probs` must have one entry for each of the 2 atoms in its last dimension; "
        "found bootstrap_probs (5, 3, 4). Project the distribution on these atoms first. "
        "[shape-mismatch]"
    )
    message = refused(
        ShapeError,
        returns.categorical_nstep_targets,
        x,
        torch.zeros(5, 3, 1),
        no,
        no,
        torch.tensor([0.0]),
        gamma=0.9,
        steps=2,
    )
    assert message == (
        "`atoms` must be one-dimensional with at least 2 entries; found atoms (1,). "
        "Pass the support as one ascending row. [shape-mismatch]"
    )


def test_scalars_that_are_tensors_are_never_inspected():
    # A range check on a device tensor would stall the device; only Python numbers are checked.
    x, no = torch.zeros(2, 1), torch.zeros(2, 1, dtype=torch.bool)
    result = returns.gae(x, x, x, no, no, gamma=torch.tensor(1.5), lam=torch.tensor(-0.1))
    assert result.shape == (2, 1)


@pytest.mark.spec("X5")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_level_ties_of_many_atoms_read_the_lower_atom(dtype):
    # At lam = .95 the masses a * .05 + b * .95 hit levels i + .5 exactly (a = 10, b = 0 is .5), and
    # the next atom lies a whole unit away: summing masses in floats reads wrong atoms here.
    n, environments = 32, 64
    draw = np.random.default_rng(0)
    atoms = np.stack([draw.permutation(2 * n) for _ in range(environments)]).astype(np.float64)
    boot, following = atoms[:, :n], atoms[:, n:]
    lam = Fraction(19, 20)
    expected = np.empty((environments, n))
    for e in range(environments):
        distribution = sorted([(x, 1 - lam) for x in boot[e]] + [(x, lam) for x in following[e]])
        for i in range(n):
            mass = Fraction(0)
            for atom, weight in distribution:
                mass += weight
                if mass >= i + Fraction(1, 2):
                    expected[e, i] = atom
                    break
    quantiles = torch.tensor(np.stack([boot, following]), dtype=dtype)  # [2, B, N]
    nothing = torch.zeros(2, environments, dtype=dtype)
    actual = returns.quantile_lambda_targets(
        nothing, quantiles, nothing.bool(), nothing.bool(), gamma=1.0, lam=0.95
    )
    assert np.array_equal(actual[0].numpy(), expected)
