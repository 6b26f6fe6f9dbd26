"""Memory that may still be taken: of the machine, of its container, of this process."""

import resource

import pytest

from stormsail.core import memory
from stormsail.core.errors import ConfigError


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return the folder of a control group, on a machine with 8,000,000 kB."""
    (tmp_path / "meminfo").write_text("MemTotal: 16000000 kB\nMemAvailable: 8000000 kB\n")
    (tmp_path / "statm").write_text("1000 500 1 1 0 1 0\n")
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_STATM", tmp_path / "statm")
    monkeypatch.setattr(memory, "_GROUP", tmp_path)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, 0))
    return tmp_path


def test_without_limits_it_is_that_of_the_machine(machine):
    assert memory.available_memory() == 8_000_000 * 1024
    (machine / "memory.max").write_text("max\n")
    assert memory.available_memory() == 8_000_000 * 1024


def test_a_container_gives_back_what_it_cached(machine):
    (machine / "memory.max").write_text("1000000\n")
    (machine / "memory.current").write_text("900000\n")
    (machine / "memory.stat").write_text("anon 200000\ninactive_file 600000\nfile 700000\n")
    assert memory.available_memory() == 1_000_000 - 900_000 + 600_000


def test_the_limit_of_the_process_counts(machine, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (10_000_000, 0))
    pages = resource.getpagesize()
    assert memory.available_memory() == 10_000_000 - 1000 * pages


@pytest.mark.refusal
def test_more_than_there_is_is_refused_in_words(machine):
    size = 8_000_000 * 1024
    memory.check_memory(size, what="a rollout", found="x", remedy="Lower it.")
    with pytest.raises(ConfigError) as caught:
        memory.check_memory(size + 1, what="a rollout", found="`n` 7", remedy="Lower `n`.")
    assert str(caught.value) == (
        "a rollout must fit into the 8.2 GB of memory that are free; found `n` 7, which take at "
        "least 8.2 GB. Lower `n`. [out-of-memory]"
    )
