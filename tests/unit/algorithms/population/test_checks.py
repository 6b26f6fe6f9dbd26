"""What a population may search is asked of learners, in seconds."""

import pytest

from population_lab import RATE, SEARCH, plan
from stormsail.algorithms.population.checks import check_search
from stormsail.core.errors import ConfigError
from stormsail.core.machine_code import graph_compiler


def test_nothing_is_compiled_to_see_what_can_be_searched(monkeypatch):
    """A learner of one update for both ends of every setting: minutes, where each compiles."""
    compiled = []
    monkeypatch.setattr(
        graph_compiler, "_compiled", lambda graph, *_: compiled.append(graph) or graph
    )
    changes = {"compile_update": True, "task__compile_step": True}
    given = plan("market", {RATE: SEARCH[RATE]}, changes)
    check_search(given.training(), given.searched())
    assert compiled == []


@pytest.mark.refusal
def test_heads_with_steps_of_their_own_cannot_come_and_go():
    """A copy would bring a memory of rollouts to a learner that has none, or none to one."""
    given = plan("cartpole", {"critic.head_steps": {"values": [0, 2]}})
    with pytest.raises(ConfigError, match="changes the state of a learner"):
        check_search(given.training(), given.searched())
