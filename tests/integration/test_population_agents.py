"""Verbs that judge an agent take a population: its best member, and the workspace's trials."""

import math
import shutil

import pytest

from population_lab import Untrained, plan
from stormsail.algorithms.population.population import train_population
from stormsail.api.agent_folders import agent_folder
from stormsail.api.looks import trial_ledger
from stormsail.core.errors import ArtifactError


@pytest.fixture
def population(tmp_path, monkeypatch):
    """Return a function that makes the folder of a population with a fitness of each member."""

    def made(*fitness):
        Untrained.prepare(monkeypatch)
        options = {"population_size": len(fitness), "perturbation_interval": 2}
        config = plan(changes={"ppo__total_steps": 2 * 32}, **options)
        run = train_population(config, out=tmp_path / "pop", engine=Untrained((fitness,)))
        for member in range(len(fitness)):
            (run.path / "members" / f"{member:02d}" / "best").mkdir(parents=True)
        return run.path

    return made


def test_the_agent_of_a_population_is_that_of_its_best_member(population):
    place = population(1.0, 3.0, 2.0)
    assert agent_folder(place) == place / "members" / "01" / "best"
    assert agent_folder(place / "members" / "02") == place / "members" / "02" / "best"


@pytest.mark.refusal
def test_a_population_without_a_best_agent_is_refused(population):
    place = population(math.nan, math.nan)
    with pytest.raises(
        ArtifactError, match="must be a population with a best member; found no fit"
    ):
        agent_folder(place)
    place.rename(place.with_name("unknown"))
    place = population(1.0, 3.0)
    shutil.rmtree(place / "members" / "01")
    with pytest.raises(ArtifactError, match="01 must be a run with an agent in `best`; found no"):
        agent_folder(place)


def test_trials_of_a_member_lie_beside_its_population(population, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # no ledger of a default workspace
    place = population(1.0, 3.0)
    ledger = tmp_path / "trials.jsonl"
    member = place / "members" / "01"
    assert trial_ledger(member, None) is None
    ledger.touch()
    assert [trial_ledger(run, None) for run in (place, member, member / "best")] == [ledger] * 3
    assert trial_ledger(tmp_path / "other" / "members" / "01", None) is None
