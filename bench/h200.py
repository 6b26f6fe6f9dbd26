"""Everything that is to be known of a GPU in six minutes: right, fast, where the time goes.

    python bench/h200.py [--out FOLDER] [--minutes 6] [--tests]

Each part is a process of its own with a time limit, so that one that dies spoils no other; what a
part found before is kept. Parts that measure nothing run beside each other first, those that time
run alone. Results: FOLDER/h200.json, a table on the screen, and the output of each part in FOLDER.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TESTS = (
    "tests/unit/functional/kernels",
    "tests/unit/algorithms/update/test_graphs.py",
    "tests/unit/algorithms/risk/test_captured_limit.py",
    "tests/unit/core/test_precision.py",
    "tests/unit/optim",
    "tests/unit/modules/test_memory.py",
)
ISOLATED = {
    "256:4096:": {},
    "256:4096:eager_step": {},
    "256:4096:eager_step,no_rollout_graph": {},
    "256:4096:eager_step,no_epochs_graph": {},
    "256:4096:eager_step,no_graphs": {"CUDA_LAUNCH_BLOCKING": "1"},
    "256:4096:eager_step,no_gc": {},
}
"""Variants of the row that once died of an illegal memory access, with their environments."""
ROWS = (
    "256:16384:", "64:16384:", "256:4096:", "64:4096:", "256:16384:critic", "64:16384:critic",
    "256:16384:eager_optimizer", "256:16384:eager_step",
)  # fmt: skip
FATAL = 3
"""Exit code of `graphs.py` after an error that the device does not recover from."""


class Part:
    """A process with a time limit, its output in a file."""

    def __init__(
        self, name: str, command: list[str], folder: Path, seconds: float, **extra: str
    ) -> None:
        self.name, self.began, self.ends = name, time.monotonic(), time.monotonic() + seconds
        self.log = folder / f"{name}.txt"
        paths = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(  # noqa: S603 - our own scripts
                [sys.executable, *command],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={**os.environ, **paths, **extra},
            )

    def wait(self) -> dict[str, Any]:
        """Wait until it ends or its time is up; return how it ended."""
        try:
            code: int | str = self.process.wait(max(self.ends - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            code = "out of time"
        lines = self.log.read_text(errors="replace").strip().splitlines()
        spent = round(time.monotonic() - self.began, 1)
        say(f"{self.name}: {code}, {spent} s: {lines[-1][:150] if lines else ''}")
        return {"code": code, "seconds": spent, "last": lines[-3:]}


def say(*words: object) -> None:
    """Write a line at once."""
    sys.stdout.write(" ".join(str(word) for word in words) + "\n")
    sys.stdout.flush()


def read(path: Path) -> dict[str, Any]:
    """Return what a part has written; nothing if it has not."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found


def right(folder: Path, out: dict[str, Any], *, tests: bool) -> None:
    """Run what is right or wrong, all parts beside each other."""
    graphs = str(HERE / "graphs.py")
    parts = [Part("kernels", [str(HERE / "kernels.py"), "--quick"], folder, 80)]
    parts.append(
        Part("check", [graphs, "--check", "--out", str(folder / "check.json")], folder, 100)
    )
    if tests:
        command = ["-m", "pytest", "-q", "-x", "-m", "gpu", "-p", "no:cacheprovider", *TESTS]
        parts.append(Part("tests", [*command, "-n0", "--maxfail=8"], folder, 110))
    for number, (row, extra) in enumerate(ISOLATED.items()):
        path = folder / f"isolate{number}.json"
        command = [graphs, "--isolate", "--rows", row, "--updates", "9", "--out", str(path)]
        parts.append(Part(f"isolate{number}", command, folder, 100, **extra))
    out["right"] = {part.name: part.wait() for part in parts}
    found = [read(folder / f"isolate{number}.json") for number in range(len(ISOLATED))]
    out["isolate"] = {
        row: each.get(row, "nothing") for row, each in zip(ISOLATED, found, strict=True)
    }
    out["check"] = read(folder / "check.json")


def fast(folder: Path, out: dict[str, Any], until: float) -> str:
    """Time variants one after another; return the switches of the fastest at full size."""
    left, rows, attempt = list(ROWS), {}, 0
    while left and time.monotonic() < until:
        path = folder / f"speed{attempt}.json"
        command = [str(HERE / "graphs.py"), "--speed", "--rows", ";".join(left)]
        command += ["--updates", "5", "--out", str(path)]
        part = Part(f"speed{attempt}", command, folder, until - time.monotonic())
        ended = part.wait()
        rows |= {name: value for name, value in read(path).items() if ":" in name}
        before, left = len(left), [row for row in left if row not in rows]
        if ended["code"] == "out of time" or (len(left) == before and not rows):
            break
        if len(left) == before:
            rows[left.pop(0)] = f"died, {ended['last']}"
        attempt += 1
    out["speed"] = rows
    full = {
        name: row["M steps/s"]
        for name, row in rows.items()
        if isinstance(row, dict) and name.startswith("256:16384:")
    }
    return max(full, key=lambda name: full[name]).split(":", 2)[2] if full else ""


def learns(folder: Path, out: dict[str, Any], seconds: float) -> None:
    """Compare learning curves of eager float32 and captured bfloat16."""
    ways = ("eager", "captured")
    parts = [
        Part(
            f"curve-{task}-{way}",
            [str(HERE / "curves.py"), "--task", task, "--way", way,
             "--out", str(folder / f"curve-{task}-{way}.json")],
            folder,
            seconds,
        )
        for task in ("cartpole", "oracle")
        for way in ways
    ]  # fmt: skip
    for part in parts:
        part.wait()
    sys.path.insert(0, str(ROOT / "src"))
    sys.path.insert(0, str(HERE))
    from curves import compare

    out["curves"] = {}
    for task in ("cartpole", "oracle"):
        both = [read(folder / f"curve-{task}-{way}.json") for way in ways]
        if set(both[0]) & set(both[1]):
            out["curves"][task] = compare(*both)


def table(out: dict[str, Any]) -> str:
    """Return what was found, in 80 columns."""
    lines = ["", f"{'width:environments:switches':36}{'ms':>8}{'M/s':>7}{'roll':>7}{'est':>6}"]
    lines[-1] += f"{'epoch':>7}{'metr':>6}"
    for name, row in out.get("speed", {}).items():
        if isinstance(row, dict):
            parts = [row[f"ms/{key}"] for key in ("rollout", "estimates", "epochs", "metrics")]
            told = f"{name:36}{row['ms/all']:8.1f}{row['M steps/s']:7.2f}"
            told += f"{parts[0]:7.1f}{parts[1]:6.1f}{parts[2]:7.1f}{parts[3]:6.1f}"
            lines.append(told)
        else:
            lines.append(f"{name:36}{row[:44]}")
    lines += ["", *(f"{row:58}{str(text)[:60]}" for row, text in out.get("isolate", {}).items())]
    for task, row in out.get("curves", {}).items():
        low, high = row["interval"]
        lines.append(
            f"{task:10} eager {row['eager float32']:.4g}, captured {row['captured bf16']:.4g}, "
            f"difference {row['difference']:.3g} [{low:.3g}, {high:.3g}]"
        )
    return "\n".join([*lines, *out.get("jax", [])])


def main() -> int:
    """Run all parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "h200")))
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--tests", action="store_true", help="run tests marked `gpu`, too")
    asked = parser.parse_args()
    folder: Path = asked.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    began, out = time.monotonic(), dict[str, Any]()

    def save() -> None:
        out["seconds"] = round(time.monotonic() - began, 1)
        (folder / "h200.json").write_text(json.dumps(out, indent=1))

    right(folder, out, tests=asked.tests)
    save()
    end = began + 60.0 * asked.minutes
    best = fast(folder, out, end - 130.0)
    save()
    say(table(out))
    peer = HERE / "jax_peer.py"
    if peer.exists():
        part = Part("jax", [str(peer)], folder, 60)
        part.wait()
        out["jax"] = [line for line in part.log.read_text().splitlines() if "JAX" in line]
    Part(
        "profile", [str(HERE / "graphs.py"), "--profile", "--switches", best], folder, 45
    ).wait()  # fmt: skip
    learns(folder, out, max(end - time.monotonic(), 40.0))
    save()
    say(table(out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
