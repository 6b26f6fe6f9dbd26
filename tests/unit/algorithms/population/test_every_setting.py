"""Every setting of a population decides something: change one, and what members do differs.

The driver is the real one. Its engine trains nobody: it writes down the jobs and gives outcomes
from a table, so that only draws, comparisons and the order of work can differ.
"""

import math

import pytest

from population_lab import RATE, SEARCH, Untrained, plan
from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.population.config import PopulationConfig, SearchConfig
from stormsail.algorithms.population.population import train_population

FITNESS = (
    (1.0, 5.0, 2.0, math.nan, 4.0),
    (9.0, 1.0, 3.0, 0.5, 6.0),
    (2.0, 7.0, 8.0, 3.5, 0.0),
    (6.0, 4.0, 1.0, 2.5, 3.0),
)
"""Of the first five members in each round; one is unknown, and the order changes."""

BASE = {"population_size": 4, "perturbation_interval": 2}
CLIP = "ppo.clip_range"

FIELDS = {
    "population_size": (5, {}),
    "perturbation_interval": (3, {}),
    "exploit_method": ("binary_tournament", {}),
    "explore_method": ("resample", {}),
    "truncation_ratio": (0.5, {}),
    "metric_mode": ("min", {}),
    "ready_percentage": (1.0, {}),
    "optimizer_exploit_strategy": ("copy", {}),
    "fitness_smoothing": (0.0, {}),
    "seed": (1, {}),
    "search": ({RATE: SEARCH[RATE]}, {}),
}
"""Setting of a population: another value, and the settings under which it matters."""

RANGE = {"min": 0.05, "max": 0.3}
OFTEN = {"explore_method": "perturb", "seed": 1}
SEARCHED = {
    "min": (0.1, RANGE, {}),
    "max": (0.2, RANGE, {}),
    "values": ((0.1, 0.3, 0.2), {"values": (0.1, 0.2, 0.3)}, {}),
    "perturbation_factor": (1.5, RANGE, OFTEN),
    "resample_probability": (1.0, RANGE, {}),
    "is_log_scale": (True, RANGE, {}),
}
"""Setting of a search: another value, those beside it, and settings of the population."""


@pytest.fixture
def trace(tmp_path, monkeypatch):
    """Return what a population does: values of each round, jobs, fitness and decisions."""
    Untrained.prepare(monkeypatch)
    number = iter(range(10))

    def traced(**population):
        engine, rounds = Untrained(FITNESS), []
        changes = {"ppo__total_steps": 8 * 32}
        run = train_population(
            plan(changes=changes, **{**BASE, **population}),
            out=tmp_path / f"{next(number)}",
            engine=engine,
            on_round=lambda standing: rounds.append((standing.values, standing.round.document())),
        )
        return repr((engine.jobs, rounds, run.best))

    return traced


def test_equal_settings_give_equal_traces(trace):
    """Otherwise the tests below would pass for a setting that does nothing."""
    assert trace() == trace()
    assert trace(**OFTEN) == trace(**OFTEN)


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.spec("X22")
def test_a_change_of_any_setting_of_a_population_changes_what_members_do(name, trace):
    value, circumstances = FIELDS[name]
    assert getattr(plan(**{**BASE, **circumstances}).searched(), name) != value
    assert trace(**circumstances, **{name: value}) != trace(**circumstances)


@pytest.mark.parametrize("name", SEARCHED)
@pytest.mark.spec("X22")
def test_a_change_of_any_setting_of_a_search_changes_the_values(name, trace):
    value, beside, circumstances = SEARCHED[name]
    plain, other = ({CLIP: search} for search in (beside, {**beside, name: value}))
    assert getattr(SearchConfig(**beside), name) != value
    assert trace(**circumstances, search=plain) != trace(**circumstances, search=other)


def test_no_setting_is_missing_from_the_tables():
    assert set(FIELDS) == set(PopulationConfig.model_fields)
    assert set(SEARCHED) == set(SearchConfig.model_fields)
    assert "population" not in TrainConfig.model_fields
