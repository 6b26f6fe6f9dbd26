"""The number of threads is set for a while, and refused where the environment would take some."""

import pytest
import torch

from stormsail.core.errors import ConfigError
from stormsail.core.threads import torch_threads


@pytest.fixture(autouse=True)
def _as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_threads_are_set_and_restored_after_an_error(count):
    torch.set_num_threads(2)
    seen = []

    def fail():
        seen.append(torch.get_num_threads())
        raise RuntimeError

    with pytest.raises(RuntimeError), torch_threads(count):
        fail()
    assert seen == [count]
    assert torch.get_num_threads() == 2


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("OMP_THREAD_LIMIT", "1", "`OMP_THREAD_LIMIT=1` in the environment"),
        ("OMP_DYNAMIC", "TRUE",
         "`OMP_DYNAMIC=TRUE` in the environment, which lets it take fewer"),
    ],
)  # fmt: skip
def test_an_environment_that_takes_threads_away_is_refused(name, value, problem, monkeypatch):
    torch.set_num_threads(2)
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught, torch_threads(2):
        pass
    assert str(caught.value) == (
        "`threads` must be as many as torch gets, 2: with another number the last bits of every "
        f"sum differ; found {problem}. Change the environment, or begin a run with `threads` 1. "
        "[config-value]"
    )
    with torch_threads(1):  # one there is always
        pass
    assert torch.get_num_threads() == 2


def test_a_limit_that_suffices_or_is_no_number_is_no_obstacle(monkeypatch):
    for value in ("2", "64", "", "many"):
        monkeypatch.setenv("OMP_THREAD_LIMIT", value)
        with torch_threads(2):
            assert torch.get_num_threads() == 2


@pytest.mark.refusal
def test_fewer_threads_than_set_are_refused(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    with pytest.raises(ConfigError) as caught, torch_threads(4):
        pass
    assert caught.value.found == "1, all that torch can have here"
