"""Jobs of a benchmark, alone or side by side."""

import os

import pytest
import torch

from stormsail.bench.processes import as_finished, one_thread, side_by_side


def square(number: int) -> tuple[int, int, int]:
    return number * number, torch.get_num_threads(), os.getpid()


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_one_process_is_this_one_with_one_thread_for_a_while(two_threads):
    told = []
    found = side_by_side(square, [3, 1, 2], processes=1, say=told.append)
    assert found == told == [(9, 1, os.getpid()), (1, 1, os.getpid()), (4, 1, os.getpid())]
    assert torch.get_num_threads() == 2


def test_several_processes_bring_the_same_in_the_same_order(two_threads):
    told = []
    found = side_by_side(square, [3, 1, 2], processes=2, say=told.append)
    assert found == told
    assert [(value, threads) for value, threads, _ in found] == [(9, 1), (1, 1), (4, 1)]
    assert os.getpid() not in {process for *_, process in found}
    assert torch.get_num_threads() == 2


def test_outcomes_come_as_they_are_finished(two_threads):
    alone = [(value, threads) for value, threads, _ in as_finished(square, [3, 1], processes=1)]
    assert alone == [(9, 1), (1, 1)]
    several = list(as_finished(square, [3, 1, 2], processes=2))
    assert sorted((value, threads) for value, threads, _ in several) == [(1, 1), (4, 1), (9, 1)]
    assert os.getpid() not in {process for *_, process in several}
    assert torch.get_num_threads() == 2


def test_the_thread_count_is_put_back_after_a_failure(two_threads):
    with pytest.raises(TypeError):
        side_by_side(square, [None], processes=1)
    assert torch.get_num_threads() == 2
    with pytest.raises(ZeroDivisionError), one_thread():
        raise ZeroDivisionError
    assert torch.get_num_threads() == 2
