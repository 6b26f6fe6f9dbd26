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


LOCKS = {name: pins(f"locks/{name}.txt") for name in ("common", "cpu", "cuda")}


def test_every_dependency_is_locked_at_the_version_of_the_tests():
    tested = {name: version for name, (version, _) in pins("constraints.txt").items()}
    for line in PROJECT["dependencies"]:
        needed = Requirement(line)
        version = {**LOCKS["common"], **LOCKS["cuda"]}[canonicalize_name(needed.name)][0]
        assert version in needed.specifier
        assert version == tested[canonicalize_name(needed.name)]


@pytest.mark.parametrize("lock", LOCKS)
def test_every_entry_has_hashes(lock):
    assert LOCKS[lock]
    for name, (_, rest) in LOCKS[lock].items():
        assert re.findall(r"--hash=sha256:[0-9a-f]{64}(?= \\\n|$)", rest), name
        assert rest.count("--hash") == len(set(re.findall(r"sha256:\w+", rest))), name


def test_both_builds_of_torch_are_covered_and_only_one_needs_cuda():
    cpu = (ROOT / "locks" / "cpu.txt").read_text()
    # the wheel for Linux and Python 3.11
    own = "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b"
    assert f"torch==2.13.0+cpu ; sys_platform == 'linux' \\\n    --hash=sha256:{own}" in cpu
    assert "torch==2.13.0 ; sys_platform != 'linux'" in cpu
    assert own not in (ROOT / "locks" / "cuda.txt").read_text()
    assert LOCKS["cuda"]["torch"][0] == "2.13.0"
    assert LOCKS["cuda"]["torch"][1].count("--hash") == 24
    assert {"triton", "nvidia-cudnn-cu13", "cuda-toolkit"} <= {*LOCKS["cuda"]}
    companions = [name for name in LOCKS["common"] if name.startswith(("nvidia-", "cuda-", "tri"))]
    assert companions == []
    for name in ("cpu", "cuda"):
        assert "-r common.txt" in (ROOT / "locks" / f"{name}.txt").read_text()


def test_no_index_is_named():
    for path in (ROOT / "constraints.txt", *(ROOT / "locks").iterdir()):
        assert "://" not in path.read_text(), path.name


def test_the_pythons_that_are_resolved_are_those_of_the_classifiers():
    source = (ROOT / "scripts" / "packaging.py").read_text()
    resolved = re.findall(r'"(3\.\d+)"', re.search(r"PYTHONS = \((.*)\)", source)[1])
    named = [line.split(" :: ")[-1] for line in PROJECT["classifiers"] if ":: Python ::" in line]
    assert resolved == named == ["3.11", "3.12", "3.13"]
