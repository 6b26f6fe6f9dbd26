"""What is shipped: lock files, constraints and metadata agree. `make packaging` installs it."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ENTRY = re.compile(r"^([\w.-]+)==(\S+)(.*(?:\n .*)*)", re.M)


def pins(path):
    """Return (version, the rest of its entry) of every package that a file pins, by name."""
    found = ENTRY.findall((ROOT / path).read_text())
    return {canonicalize_name(name): (version, rest) for name, version, rest in found}


LOCKED = pins("locks/cpu.txt")
CUDA = pins("locks/cuda.txt")


def test_every_dependency_is_locked_at_the_version_of_the_tests():
    tested = {name: version for name, (version, _) in pins("constraints.txt").items()}
    for line in PROJECT["dependencies"]:
        needed = Requirement(line)
        version = LOCKED[canonicalize_name(needed.name)][0]
        assert version in needed.specifier
        assert version == tested[canonicalize_name(needed.name)]


@pytest.mark.parametrize("lock", [LOCKED, CUDA], ids=["cpu", "cuda"])
def test_every_entry_has_hashes(lock):
    for name, (_, rest) in lock.items():
        assert re.findall(r"--hash=sha256:[0-9a-f]{64}(?= \\\n|$)", rest), name
        assert rest.count("--hash") == len(set(re.findall(r"sha256:\w+", rest))), name


def test_both_builds_of_torch_are_covered_and_only_one_needs_cuda():
    assert LOCKED["torch"][0] == "2.13.0"
    # of the CPU build for Linux and Python 3.11; the others are those of the common index
    assert "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b" in LOCKED["torch"][1]
    assert LOCKED["torch"][1].count("--hash") == 25
    assert not [
        name for name in LOCKED if name.startswith(("nvidia-", "cuda-")) or name == "triton"
    ]
    assert {"triton", "nvidia-cudnn-cu13", "cuda-toolkit"} <= {*CUDA}
    assert "-r cpu.txt" in (ROOT / "locks" / "cuda.txt").read_text()


@pytest.mark.parametrize("path", ["locks/cpu.txt", "locks/cuda.txt", "constraints.txt"])
def test_no_index_is_named(path):
    assert "://" not in (ROOT / path).read_text()


def test_the_pythons_that_are_resolved_are_those_of_the_classifiers():
    source = (ROOT / "scripts" / "packaging.py").read_text()
    resolved = re.findall(r'"(3\.\d+)"', re.search(r"PYTHONS = \((.*)\)", source)[1])
    named = [line.split(" :: ")[-1] for line in PROJECT["classifiers"] if ":: Python ::" in line]
    assert resolved == named == ["3.11", "3.12", "3.13"]
