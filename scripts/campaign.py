"""Run the long versions of the proofs and append one line for each to docs/evidence.md.

Usage: `python scripts/campaign.py [name ...]`, or `make campaign` for all of them.
"""

import datetime
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from stormsail import __version__

ROOT = Path(__file__).resolve().parents[1]
EVIDENCE = ROOT / "docs" / "evidence.md"
BARE = (
    "gym:LunarLander-v3=1000000,gym:MountainCar-v0=1000000,gym:Acrobot-v1=500000,"
    "gym:Pendulum-v1=200000,gym:CartPole-v1=100000,gym:MountainCarContinuous-v0=20000,"
    "Recall-v0=100000,CartPoleNoVel-v1=100000,PendulumNoVel-v1=100000"
)
PYTEST = (sys.executable, "-m", "pytest", "-q", "-n", "auto")
THOUSAND_KILLS = (
    "tests/fault/test_train_kills.py::test_a_thousand_kills_at_random_moments_change_no_byte"
)
EVERY_CALL = "tests/fault/test_train_syscalls.py"
JOURNAL_CALLS = "tests/fault/test_journal_syscalls.py"
MONTH = "tests/fault/test_execution_kills.py::test_a_month_under_faults_leaks_nothing"
BENCH = (sys.executable, "-m", "stormsail", "bench")
OUR_ROW = r"(?m)^[│|] [\w-]+ +[│|] stormsail +[│|]"
"""A row of our learner in the table of `bench learn`; other libraries are held to nothing."""

HOLDS, FAILS = r": holds; ", r": FAILS; "
"""What follows a claim in the output of a benchmark."""


@dataclass(frozen=True)
class Campaign:
    """One long run: what it is called, what it executes, and how its output is counted."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    passed: str = r"(\d+) passed"
    failed: str = r"(\d+) (?:failed|error)"


CAMPAIGNS = (
    Campaign(
        "formulas: 5,000 random examples a property",
        (*PYTEST, "tests/property"),
        {"STORMSAIL_HYPOTHESIS": "campaign"},
    ),
    Campaign(
        "execution: 100,000 faulted scenarios, 5,000 deaths, 10,000 trips",
        (
            *(*PYTEST, "--deselect", MONTH),
            *("-m", "campaign", "tests/fault/test_execution_kills.py"),
            *("tests/integration/test_execution_loop.py", "tests/integration/test_exactly_once.py"),
            "tests/integration/test_turning.py",
            "tests/unit/execution/test_order_gate.py",
            "tests/unit/execution/connection/test_rate_budget.py",
        ),
    ),
    Campaign(
        "execution: ten months of bars of a minute under faults, memory as it grows",
        (sys.executable, "-m", "pytest", "-q", "-s", MONTH),
    ),
    Campaign(
        "execution: killed by the kernel at every call on the journal, none torn",
        (sys.executable, "-m", "pytest", "-q", "-s", "-m", "campaign", JOURNAL_CALLS),
        passed=r"(\d+) kills at \w+, every journal whole",
    ),
    Campaign(
        "execution: 5,000 power losses under the journal; wall clock from a close to the order",
        (
            *(sys.executable, "-m", "pytest", "-q", "-m", "campaign"),
            *("tests/fault/test_journal_power_loss.py", "tests/campaign/test_latency.py"),
        ),
    ),
    Campaign(
        "formulas: compiled to machine code",
        (*PYTEST, "-m", "campaign", "tests/unit/functional"),
    ),
    Campaign(
        "training: updates as machine code",
        (*PYTEST, "-m", "campaign", "tests/unit/algorithms/update/test_compiled.py"),
    ),
    Campaign(
        "files: faults, kills and corruption of artifacts, stores, fetches and runs",
        (
            *(*PYTEST, "-m", "campaign", "tests/fault"),
            *("--deselect", THOUSAND_KILLS, "--deselect", EVERY_CALL),
            *("--deselect", JOURNAL_CALLS, "--deselect", MONTH),
        ),
    ),
    Campaign(
        "training: 1,000 kills -9 at random moments, the same bytes at the end",
        (sys.executable, "-m", "pytest", "-q", "-s", THOUSAND_KILLS),
        passed=r"(\d+) kills in \d+ runs",
    ),
    Campaign(
        "training: killed by the kernel at every call of a checkpoint, none torn",
        (sys.executable, "-m", "pytest", "-q", "-s", EVERY_CALL),
        passed=r"(\d+) kills at \w+, 0 torn",
    ),
    Campaign(
        "packaging: Python 3.11 to 3.13 resolve, the wheel alone follows the tutorial, hashes",
        (sys.executable, "scripts/packaging.py"),
        passed=r"(?m)^(Python 3|the wheel alone|sbom|locks)",
    ),
    Campaign(
        "data: planted defects, clean files, leaks and hostile bytes",
        (*PYTEST, "-m", "campaign", "tests/unit/market"),
    ),
    Campaign(
        "data: 200 pairs of processes write to one store at once, no row lost",
        (
            *(sys.executable, "-m", "pytest", "-q", "-m", "campaign"),
            "tests/integration/test_two_writers.py",
        ),
    ),
    Campaign(
        "data: ten million rows of CSV imported within 1.5 GB",
        (
            *(sys.executable, "-m", "pytest", "-q", "-m", "campaign"),
            "tests/campaign/test_large_import.py",
        ),
    ),
    Campaign(
        "ledgers: 1,000 streams of the simulator against exact decimals",
        (*PYTEST, "-m", "campaign", "tests/integration/test_three_ledgers.py"),
    ),
    Campaign(
        "ledgers: a ledger written from the page alone",
        (*PYTEST, "-m", "campaign", "tests/integration/test_written_rules.py"),
    ),
    Campaign(
        "ledgers: 100 streams of exact decimals against NautilusTrader",
        (*PYTEST, "-m", "campaign", "tests/integration/test_nautilus_ledger.py"),
    ),
    Campaign(
        "ledgers: identity to the last digit over ten million events",
        (*PYTEST, "-m", "campaign", "tests/property/test_reference_ledger.py"),
    ),
    Campaign(
        "others: kills of an import, 200 calibrations, self-tests of the quickstart, two processes",
        (
            *(*PYTEST, "-m", "campaign"),
            "tests/integration/test_import_command.py",
            "tests/unit/algorithms",
            "tests/unit/bench",
            "tests/unit/evaluation",
        ),
    ),
    Campaign(
        "learning: reference tasks, 5 seeds each, beside other libraries",
        (*BENCH, "learn", "--seeds", "5", "--jobs", "2"),
        passed=OUR_ROW + r"(?!.*\bFAIL\b)",
        failed=OUR_ROW + r"(?=.*\bFAIL\b)",
    ),
    Campaign(
        "learning: nine tasks with bare defaults, 5 seeds each",
        (
            *(*BENCH, "learn", "--bare", BARE, "--first-seed", "700", "--seeds", "5"),
            *("--no-peers", "--jobs", "2", "--rows", "docs/evidence/bare_tasks.jsonl"),
        ),
        passed=OUR_ROW + r"(?!.*\bFAIL\b)",
        failed=OUR_ROW + r"(?=.*\bFAIL\b)",
    ),
    Campaign(
        "learning: the gradient scaler beside the learning rate it amounts to, 10 seeds, 4 tasks",
        (*BENCH, "vgs", "--rows", "docs/evidence/vgs.jsonl", "--jobs", "2"),
        passed=r"less (off|its rate): ",
        failed=r"Traceback",
    ),
    Campaign(
        "learning: every part on, CartPole, the least of 5 seeds",
        (
            *(*BENCH, "learn", "--tasks", "full-cartpole", "--first-seed", "910", "--seeds", "5"),
            *("--no-peers", "--jobs", "2", "--rows", "docs/evidence/full_cartpole.jsonl"),
        ),
        passed=OUR_ROW + r"(?!.*\bFAIL\b)",
        failed=OUR_ROW + r"(?=.*\bFAIL\b)",
    ),
    Campaign(
        "learning: markets with a known answer, 5 seeds each",
        (*BENCH, "markets", "--seeds", "5", "--jobs", "2"),
        passed=HOLDS,
        failed=FAILS,
    ),
    Campaign(
        "tails: predicted return distributions beside true ones, 5 seeds each",
        (*BENCH, "tails", "--seeds", "5", "--jobs", "2"),
        passed=HOLDS,
        failed=FAILS,
    ),
    Campaign(
        "limits: CVaR held on a market that crashes, 5 seeds each",
        (*BENCH, "frontier", "--seeds", "5", "--jobs", "2"),
        passed=HOLDS,
        failed=FAILS,
    ),
    Campaign(
        "limits: bets whose best policy is known exactly, 5 seeds each",
        (*BENCH, "bets", "--seeds", "5", "--jobs", "2"),
        passed=HOLDS,
        failed=FAILS,
    ),
    Campaign(
        "limits: beside Return Capping in its betting game, 5 seeds",
        (*BENCH, "capping", "--rows", "docs/evidence/capping.jsonl", "--jobs", "2"),
        passed=HOLDS,
        failed=FAILS,
    ),
    Campaign(
        "robustness: training with an adversary under attack, 2 tasks, 5 seeds each",
        (
            *(*BENCH, "robust", "--change", 'adversary.mode="kl_reg"', "--seed-base", "900"),
            *("--jobs", "2", "--rows", "docs/evidence/robust.jsonl"),
        ),
        passed=HOLDS,
        failed=FAILS,
    ),
    Campaign(
        "plug-ins: in the workers of a population and of attacks",
        (*PYTEST, "-m", "campaign", "tests/integration/test_plugin_commands.py"),
    ),
    Campaign(
        "populations: beside fixed draws of the same search and budget, 5 repeats",
        (*BENCH, "population", "--jobs", "2", "--rows", "docs/evidence/population.jsonl"),
        passed=HOLDS,
        failed=FAILS,
    ),
    Campaign(
        "verdict: promotions of noise and of skill, simulated, 3 processes, 60 runs a case",
        (
            *(*BENCH, "promotions", "--seed-base", "30000", "--runs", "60"),
            *("--rows", "docs/evidence/promotions.jsonl"),
        ),
        passed=HOLDS,
        failed=FAILS,
    ),
    Campaign(
        "limits: CVaR where no warning tells of a crash, 5 seeds each",
        (*BENCH, "frontier", "--seeds", "5", "--warned", "0", "--jobs", "2"),
        passed=HOLDS,
        failed=FAILS,
    ),
    Campaign(
        "limits: best means of bets over 64 bars, solved anew",
        (sys.executable, "-m", "pytest", "-q", "-m", "campaign", "tests/campaign/test_bets.py"),
    ),
    Campaign(
        "demonstration: from an empty folder to the page in eight minutes",
        (sys.executable, "-m", "pytest", "-q", "-m", "campaign", "tests/campaign/test_demo.py"),
    ),
    Campaign(
        "mutants",
        (sys.executable, "-m", "mutants"),
        {"PYTHONPATH": str(ROOT / "tests")},
        passed=r"(\d+) of \d+ bugs noticed",
        failed=r"(?m)^ *[\d.]+ s  (?:survived|broken)",
    ),
)


def count(pattern: str, text: str) -> int:
    """Return the sum of the numbers that a pattern matches; a match without one counts as 1."""
    return sum(int(match) if match.isdigit() else 1 for match in re.findall(pattern, text))


def run(campaign: Campaign) -> bool:
    """Execute one campaign, append its line and return whether nothing failed."""
    started = time.monotonic()
    environment = {**os.environ, **campaign.environment}
    process = subprocess.run(
        campaign.command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    seconds = time.monotonic() - started
    passed = count(campaign.passed, process.stdout)
    failed = count(campaign.failed, process.stdout)
    if process.returncode and not failed:
        failed = 1
    today = datetime.datetime.now(datetime.UTC).date()
    cells = (today, __version__, campaign.name, passed + failed, failed, f"{seconds:.0f}")
    line = f"| {' | '.join(map(str, cells))} |"
    with EVIDENCE.open("a") as file:
        file.write(line + "\n")
    print(line)
    if failed:
        print(process.stdout[-4000:], process.stderr[-2000:])
    return not failed


if __name__ == "__main__":
    wanted = sys.argv[1:]
    chosen = [
        campaign
        for campaign in CAMPAIGNS
        if not wanted or any(part in campaign.name for part in wanted)
    ]
    outcomes = [run(campaign) for campaign in chosen]
    sys.exit(0 if all(outcomes) else 1)
