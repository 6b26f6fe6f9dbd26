"""Worked numbers of the rules of population-based training."""

import math

import pytest
import torch

from stormsail.core.errors import ChoiceError, RangeError, ShapeError
from stormsail.functional import population


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_an_unknown_fitness_is_the_worst_in_both_modes_and_ties_go_by_number():
    fitness = tensor(1.0, math.nan, 2.0, 2.0, -math.inf)
    assert population.ranking(fitness, mode="max").tolist() == [2, 3, 0, 4, 1]
    assert population.ranking(fitness, mode="min").tolist() == [4, 0, 2, 3, 1]


@pytest.mark.parametrize(
    ("n", "ratio", "count"),
    [
        (1, 0.25, 0),
        (2, 0.25, 1),
        (3, 0.25, 1),
        (4, 0.25, 1),
        (8, 0.25, 2),
        (8, 0.5, 4),
        (5, 0.9, 2),
    ],
)
def test_two_and_three_members_still_exploit(n, ratio, count):
    assert population.truncation_count(n, ratio=ratio) == count


def test_the_worst_of_two_and_of_three_copies_the_best():
    for size in (2, 3):
        fitness = torch.arange(size, dtype=torch.float64)
        order = population.ranking(fitness, mode="max")
        sources = population.truncation_sources(order, torch.full((size,), 0.99), ratio=0.25)
        assert sources.tolist() == [size - 1, *range(1, size)]


def test_a_tie_in_a_tournament_changes_nobody_and_the_unknown_lose_to_all():
    equal = population.tournament_sources(tensor(1.0, 1.0), tensor(0.5, 0.5), mode="max")
    assert equal.tolist() == [0, 1]
    unknown = population.tournament_sources(
        tensor(math.nan, 1.0, math.nan), tensor(0.1, 0.1, 0.1), mode="min"
    )
    assert unknown.tolist() == [1, 1, 2]  # the last one met another unknown


def test_one_draw_decides_a_tournament():
    # member 0 meets 1 with a draw below one half, and 2 above
    fitness = tensor(1.0, 0.0, 2.0)
    for draw, source in ((0.49, 0), (0.51, 2)):
        sources = population.tournament_sources(fitness, tensor(draw, 0.9, 0.9), mode="max")
        assert int(sources[0]) == source


def test_a_log_scale_has_the_geometric_mean_in_its_middle():
    low, high = 1e-5, 1e-3
    middle = population.resampled(tensor(0.5), low=low, high=high, is_log_scale=True)
    assert float(middle) == pytest.approx(1e-4, rel=1e-12)
    middle = population.resampled(tensor(0.5), low=low, high=high, is_log_scale=False)
    assert float(middle) == pytest.approx(5.05e-4, rel=1e-12)


def test_up_and_down_come_back():
    up = population.perturbed(tensor(0.1), tensor(0.2), factor=1.2, low=0.0, high=1.0)
    assert float(up) == pytest.approx(0.12, rel=1e-12)
    down = population.perturbed(up, tensor(0.7), factor=1.2, low=0.0, high=1.0)
    assert float(down) == pytest.approx(0.1, rel=1e-12)


def test_a_choice_at_an_end_stays_there():
    options = {"resample_probability": 0.0, "count": 3}
    for index, draw, wanted in ((0, 0.9, 0), (0, 0.1, 1), (2, 0.1, 2), (2, 0.9, 1)):
        new = population.explored_choice(torch.tensor(index), tensor(0.5, 0.5, draw), **options)
        assert int(new) == wanted


def test_whoever_keeps_the_limit_is_better_than_whoever_does_not():
    judged = population.limited_fitness(
        tensor(-50.0, 3.0, 9.0, 9.0), tensor(0.0, 0.0, 0.01, 0.5), mode="max"
    )
    assert judged.tolist() == pytest.approx([-50.0 / 51.0, 0.75, -1.01, -1.5])


@pytest.mark.refusal
def test_what_does_not_fit_is_refused():
    one = tensor(0.5)
    with pytest.raises(ChoiceError, match="`mode`"):
        population.ranking(one, mode="best")
    with pytest.raises(ShapeError, match="same shape"):
        population.tournament_sources(tensor(1.0, 2.0), one, mode="max")
    with pytest.raises(RangeError, match="`ratio`"):
        population.truncation_count(4, ratio=1.5)
    with pytest.raises(RangeError, match="`low` must be at most `high` and above 0"):
        population.resampled(one, low=0.0, high=1.0, is_log_scale=True)
    with pytest.raises(RangeError, match="`factor`"):
        population.perturbed(one, one, factor=0.0, low=0.0, high=1.0)
    with pytest.raises(RangeError, match="`beta`"):
        population.smoothed(one, one, beta=1.0)
    with pytest.raises(RangeError, match="`count`"):
        population.explored_choice(
            torch.tensor([0]), torch.zeros(1, 3), resample_probability=0.5, count=0
        )
