"""What the driver of a population hands from round to round; its engine trains nobody."""

import math

import pytest

from population_lab import Untrained, plan
from stormsail.algorithms.population import population
from stormsail.algorithms.population.config import RunFile
from stormsail.algorithms.population.population import read_population, train_population


def trained(out, fitness, monkeypatch, **population):
    Untrained.prepare(monkeypatch)
    table = {"population_size": len(fitness[0]), "perturbation_interval": 2, **population}
    changes = {"ppo__total_steps": 2 * len(fitness) * 32}
    return train_population(plan(changes=changes, **table), out=out, engine=Untrained(fitness))


@pytest.mark.parametrize(("interval", "compiles"), [(2, False), (31_249, False), (31_250, True)])
def test_members_compile_where_a_round_is_long_enough_for_it(
    interval, compiles, tmp_path, monkeypatch
):
    """A member is begun anew in every round, here of 32 steps an update."""
    Untrained.prepare(monkeypatch)
    monkeypatch.setattr(population, "check_search", lambda *_: None)
    table = plan(changes={"ppo__total_steps": 10**8}, perturbation_interval=interval).model_dump()
    del table["compile_update"]
    assert population._begun(tmp_path, RunFile.from_mapping(table)).compile_update is compiles


@pytest.mark.spec("X6")
def test_a_copy_inherits_the_smoothed_fitness_of_its_source(tmp_path, monkeypatch):
    fitness = (
        (1.0, 5.0, 2.0, math.nan), (9.0, 1.0, 3.0, 0.5), (2.0, 7.0, 8.0, 3.5), (6.0, 4.0, 1.0, 2.5),
    )  # fmt: skip
    run = trained(tmp_path / "pop", fitness, monkeypatch, fitness_smoothing=0.5)
    copies = [
        [(one.member, one.source) for one in round_.decisions if one.copies]
        for round_ in run.rounds
    ]
    assert copies == [[(3, 1)], [(2, 0)], [(3, 2)], []]
    # halves of what stood before and of the new one; a copy has the past of whom it copied
    assert [round_.fitness for round_ in run.rounds[1:]] == [
        (5.0, 3.0, 2.5, (5.0 + 0.5) / 2),
        (3.5, 5.0, (5.0 + 8.0) / 2, 3.125),
        (4.75, 4.5, 3.75, (6.5 + 2.5) / 2),
    ]
    assert math.isnan(run.rounds[0].fitness[3])
    assert run.best == 0


@pytest.mark.parametrize(("mode", "best"), [("max", 1), ("min", 2)])
def test_the_best_member_is_read_from_the_files(mode, best, tmp_path, monkeypatch):
    fitness = ((3.0, 1.0, 2.0), (2.0, 8.0, 1.0))
    options = {"metric_mode": mode, "fitness_smoothing": 0.0}
    run = trained(tmp_path / "pop", fitness, monkeypatch, **options)
    again = read_population(run.path)
    assert again.best == run.best == best
    assert again.rounds == run.rounds
    assert again.best_folder == run.path / "members" / f"{best:02d}"


def test_a_population_whose_members_have_no_fitness_has_no_best_one(tmp_path, monkeypatch):
    run = trained(tmp_path / "pop", ((math.nan, math.nan),), monkeypatch)
    assert (run.best, run.best_folder) == (None, None)
    (run.path / "population.jsonl").unlink()
    again = read_population(run.path)
    assert (again.rounds, again.best) == ((), None)
