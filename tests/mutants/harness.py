"""Plant a bug in a copy of the package, run the tests that were written against it, and report.

Every mutant runs in a process forked from one that has already imported torch, pytest and
hypothesis but never stormsail, on links to one compiled copy of the package: a trial costs its
tests and little more. A mutant is *killed* if a test fails, *survived* if all pass, and *broken* if
the tests could not run: a bug that does not import proves nothing.
"""

import ast
import compileall
import gc
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, thread
from dataclasses import dataclass
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "stormsail"


@cache
def functions(path: str) -> frozenset[str]:
    """Return the functions at the top of a file of tests, none where there is no such file."""
    if not (ROOT / path).is_file():
        return frozenset()
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


@dataclass(frozen=True)
class Mutant:
    """One bug: what it is called, which finding it repeats, where it goes, who must notice."""

    name: str
    finding: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def plant(self, package: Path) -> None:
        """Write the bug into a copy of the package, whose files may be links to another."""
        path = package / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            message = f"{self.name}: {self.file} holds {text.count(self.old)} places like this one"
            raise LookupError(message)
        path.unlink()
        Path(cache_from_source(str(path))).unlink(missing_ok=True)
        path.write_text(text.replace(self.old, self.new))


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant."""

    verdict: str
    killed_by: str
    seconds: float
    output: str


class _FirstFailure:
    """Pytest plugin that remembers which test failed first."""

    node = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.node:
            self.node = report.nodeid


def _run_tests(package_parent: Path, tests: Sequence[str], log: Path) -> int:
    """Run in the child: tests against the package in `package_parent`; return pytest's code."""
    sys.path.insert(0, str(package_parent))
    os.chdir(ROOT)
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    plugin = _FirstFailure()
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hypothesis is preloaded
    code = int(pytest.main([*options, *tests], plugins=[plugin]))
    import stormsail

    if not Path(stormsail.__file__).is_relative_to(package_parent):
        code = 99
    log.with_suffix(".node").write_text(plugin.node)
    return code


def _in_child(package_parent: Path, tests: Sequence[str], log: Path) -> int:
    pid = os.fork()
    if pid == 0:
        code = 98
        # the pool's threads are not here; a process that a test forks would wait for them and fail
        thread._threads_queues.clear()
        try:
            code = _run_tests(package_parent, tests, log)
        except BaseException:  # the child must never return into the parent's code
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def compiled(folder: Path) -> Path:
    """Return a copy of the package in the folder, with its bytecode."""
    package = folder / "stormsail"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(package, quiet=1)
    return package


def trial(mutant: Mutant | None, tests: Sequence[str], package: Path) -> Outcome:
    """Run the tests on links to the package, with the bug in place of one if there is a bug."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=package.parent) as folder:
        parent, log = Path(folder) / "src", Path(folder) / "log"
        shutil.copytree(package, parent / "stormsail", copy_function=os.link)
        if mutant is not None:
            mutant.plant(parent / "stormsail")
        code = _in_child(parent, tests, log)
        node = log.with_suffix(".node")
        killed_by = node.read_text() if node.exists() else ""
        output = log.read_text(errors="replace")
    verdict = {0: "survived", 1: "killed"}.get(code, f"broken ({code})")
    return Outcome(verdict, killed_by, time.monotonic() - started, output)


def parts(named: Sequence[str], workers: int) -> list[list[str]]:
    """Share tests out among workers, file by file, so that none shares a fixture with another."""
    files: dict[str, list[str]] = {}
    for test in named:
        files.setdefault(test.partition("::")[0], []).append(test)
    shared: list[list[str]] = [[] for _ in range(workers)]
    for tests in sorted(files.values(), key=len, reverse=True):
        min(shared, key=len).extend(tests)
    return [part for part in shared if part]


def campaign(mutants: Iterable[Mutant], *, workers: int) -> bool:
    """Try every mutant, print a line for each, and return whether all were killed."""
    mutants = list(mutants)
    named = sorted({test for mutant in mutants for test in mutant.tests})
    gc.freeze()  # what is loaded by now need not be looked at in every child
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(workers) as pool:
        package = compiled(Path(folder))
        clean = list(pool.map(lambda part: trial(None, part, package), parts(named, workers)))
        seconds = max(outcome.seconds for outcome in clean)
        failed = [outcome for outcome in clean if outcome.verdict != "survived"]
        verdict = failed[0].verdict if failed else "survived"
        print(f"without a bug: {len(named)} tests named, {verdict} ({seconds:.1f} s)", flush=True)
        if failed:
            print("\n".join(outcome.output for outcome in failed))
            return False
        outcomes = pool.map(lambda mutant: trial(mutant, mutant.tests, package), mutants)
        return _report(mutants, outcomes)


def _report(mutants: Sequence[Mutant], outcomes: Iterable[Outcome]) -> bool:
    width = max(len(mutant.name) for mutant in mutants)
    failed = []
    for mutant, outcome in zip(mutants, outcomes, strict=True):
        by = outcome.killed_by.rsplit("/", 1)[-1]
        line = f"{outcome.seconds:5.1f} s  {outcome.verdict:9} {mutant.name:{width}}"
        print(f"{line}  {mutant.finding:18}  {by}", flush=True)
        if outcome.verdict != "killed":
            failed.append((mutant, outcome))
    for mutant, outcome in failed:
        print(f"\n{mutant.name} {outcome.verdict}:\n{outcome.output[-1500:]}")
    print(f"{len(mutants) - len(failed)} of {len(mutants)} bugs noticed")
    return not failed
