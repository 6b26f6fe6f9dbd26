"""The rules of population-based training equal their plain-Python oracle, and do what they say."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oracles import population as oracle
from stormsail.functional import population

MODES = ("max", "min")
# Never on an edge between two parts, where rounding would decide.
draws = st.integers(0, 9999).map(lambda k: (k + 0.37) / 10000.0)
numbers = st.one_of(st.integers(-3, 3).map(float), st.floats(-1e6, 1e6), st.just(math.nan))
ratios = st.sampled_from((0.01, 0.1, 0.2, 0.25, 0.5))


@st.composite
def populations(draw):
    size = draw(st.integers(1, 12))
    fitness = draw(st.lists(numbers, min_size=size, max_size=size))
    return fitness, draw(st.lists(draws, min_size=size, max_size=size))


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("mode", MODES)
@given(case=populations())
def test_ranks_equal_the_search_for_the_best_one_left(mode, case):
    fitness, _ = case
    order = population.ranking(tensor(fitness), mode=mode).tolist()
    assert order == oracle.ranking(fitness, mode)
    assert sorted(order) == list(range(len(fitness)))


@given(n=st.integers(0, 300), ratio=st.floats(0.0, 1.0))
def test_the_count_is_one_from_two_members_on_and_at_most_half(n, ratio):
    count = population.truncation_count(n, ratio=ratio)
    assert count == oracle.truncation_count(n, ratio)
    assert count == 0 if n < 2 else 1 <= count <= n // 2


@pytest.mark.parametrize("mode", MODES)
@given(case=populations(), ratio=ratios)
def test_truncation_copies_the_top_into_the_bottom_and_changes_nobody_else(mode, case, ratio):
    fitness, uniform = case
    order = oracle.ranking(fitness, mode)
    sources = population.truncation_sources(torch.tensor(order), tensor(uniform), ratio=ratio)
    assert sources.tolist() == oracle.truncation_sources(order, uniform, ratio)
    count = oracle.truncation_count(len(order), ratio)
    for member, source in enumerate(sources.tolist()):
        place = order.index(member)
        if place >= len(order) - count:
            assert order.index(source) < count
            assert source != member
        else:
            assert source == member


@pytest.mark.parametrize("mode", MODES)
@given(case=populations())
def test_a_tournament_copies_only_a_better_rival(mode, case):
    fitness, uniform = case
    sources = population.tournament_sources(tensor(fitness), tensor(uniform), mode=mode).tolist()
    assert sources == oracle.tournament_sources(fitness, uniform, mode)
    best = oracle.ranking(fitness, mode)[0]
    assert sources[best] == best


@given(
    value=st.floats(1e-3, 10.0),
    uniform=st.tuples(draws, draws, draws),
    probability=st.sampled_from((0.0, 0.25, 1.0)),
    factor=st.floats(1.01, 3.0),
    is_log=st.booleans(),
)
def test_new_values_equal_the_oracle_and_stay_within_bounds(
    value, uniform, probability, factor, is_log
):
    bounds = {"low": 1e-3, "high": 10.0}
    new = population.explored(
        tensor(value),
        tensor(uniform),
        resample_probability=probability,
        factor=factor,
        is_log_scale=is_log,
        **bounds,
    )
    wanted = oracle.explored(value, uniform, probability, factor, 1e-3, 10.0, is_log)
    assert float(new) == pytest.approx(wanted, rel=1e-12)
    assert 1e-3 <= float(new) <= 10.0


@given(
    count=st.integers(1, 6),
    index=st.integers(0, 5),
    uniform=st.tuples(draws, draws, draws),
    probability=st.sampled_from((0.0, 0.25, 1.0)),
)
def test_choices_move_to_a_neighbour_and_never_around(count, index, uniform, probability):
    index = min(index, count - 1)
    new = population.explored_choice(
        torch.tensor(index), tensor(uniform), resample_probability=probability, count=count
    )
    assert int(new) == oracle.explored_choice(index, uniform, probability, count)
    if probability == 0.0:
        assert abs(int(new) - index) <= 1


@given(
    case=st.lists(st.tuples(numbers, numbers), min_size=1, max_size=9),
    beta=st.sampled_from((0.0, 0.5, 0.9)),
)
def test_smoothing_is_the_moving_average_from_the_first_value_on(case, beta):
    raw, before = (list(column) for column in zip(*case, strict=True))
    new = population.smoothed(tensor(raw), tensor(before), beta=beta)
    torch.testing.assert_close(
        new, tensor(oracle.smoothed(raw, before, beta)), rtol=1e-12, atol=0.0, equal_nan=True
    )


@pytest.mark.parametrize("mode", MODES)
@given(
    case=st.lists(
        st.tuples(st.integers(-500, 500), st.sampled_from((0, 0, 1, 2, 7))), min_size=2, max_size=9
    )
)
def test_fitness_under_a_limit_has_the_order_of_breach_then_score(mode, case):
    agents = [(score / 7.0, breach / 10.0) for score, breach in case]
    scores, breaches = zip(*agents, strict=True)
    judged = population.limited_fitness(tensor(scores), tensor(breaches), mode=mode)
    sign = 1.0 if mode == "max" else -1.0
    keys = [oracle.limited_key(*agent, mode) for agent in agents]
    for i, first in enumerate(keys):
        for j, second in enumerate(keys):
            assert (first > second) == (sign * float(judged[i]) > sign * float(judged[j]))
