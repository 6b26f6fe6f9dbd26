"""Check what is shipped: versions that resolve, a wheel that works alone, materials and hashes.

Usage: `python scripts/packaging.py [resolve] [wheel] [locks]`, or `make packaging` for all of them.
Everything is written into build/packaging; `locks` also renews the files in `locks/`. Indexes are
those of pip and uv on this machine (`PIP_INDEX_URL`, `UV_INDEX_URL`, `PIP_FIND_LINKS` ...).
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "packaging"
LOCKS = ROOT / "locks"
PYTHONS = ("3.11", "3.12", "3.13")
TORCH = "torch==2.13.0"
"""Pinned everywhere: another one would bring gigabytes, and other last bits of every sum."""

CUDA = re.compile(r"(cuda|nvidia)-[\w-]+|triton")
"""What torch needs beside itself where it is built for CUDA, and nothing else needs."""

SHIPPED = (
    "stormsail/py.typed",
    "stormsail/evaluation/report/report.css",
    "stormsail/configs/quickstart.toml",
)
SHORTER = {"60_000": "8_192", "90_000": "12_288", "--seeds 2": "--seeds 1"}
"""Numbers of the tutorial that make it take minutes, and those that show the same way."""


def main() -> None:
    """Run the checks that were named, or all."""
    checks = {"resolve": resolve, "wheel": wheel, "locks": lock}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checks", nargs="*", choices=[[], *checks], help="default: all")
    chosen = parser.parse_args().checks or list(checks)
    OUT.mkdir(parents=True, exist_ok=True)
    for name in chosen:
        checks[name]()


def resolve() -> None:
    """Resolve all extras together for every Python that we name in our classifiers."""
    for python in PYTHONS:
        out = OUT / f"resolved-{python}.txt"
        compiled("--python-version", python, "--all-extras", "--output-file", out)
        pins = dict(re.findall(r"^([\w.-]+)==(\S+)", out.read_text(encoding="utf-8"), re.MULTILINE))
        print(
            f"Python {python}: {len(pins)} packages; torch {pins['torch']}, numpy {pins['numpy']}, "
            f"nautilus-trader {pins['nautilus-trader']}"
        )


def wheel() -> None:
    """Build the wheel, install it with only torch pinned, follow the tutorial without a clone."""
    shutil.rmtree(OUT / "wheel", ignore_errors=True)
    run(tool("uv"), "build", "--quiet", "--wheel", "--out-dir", OUT / "wheel", ROOT)
    (built,) = (OUT / "wheel").glob("*.whl")
    names = zipfile.ZipFile(built).namelist()
    missing = [name for name in SHIPPED if name not in names]
    if missing:
        raise SystemExit(f"{built.name} lacks {', '.join(missing)}")
    print(f"{built.name}: {len(names)} files, {built.stat().st_size / 1e6:.1f} MB")
    with tempfile.TemporaryDirectory() as place:
        environment = Path(place) / "environment"
        venv.create(environment, with_pip=True)
        python = environment / "bin" / "python"
        run(python, "-m", "pip", "install", "--quiet", TORCH, built)
        run(python, "-m", "pip", "check")
        bill_of_materials(python)
        (empty := Path(place) / "empty").mkdir()
        tutorial(environment, empty)


def bill_of_materials(python: Path) -> None:
    """Write what the environment holds as CycloneDX: names, versions, licences, who needs whom."""
    out = OUT / "sbom.cdx.json"
    run(
        tool("cyclonedx-py"), "environment", python, "--output-reproducible",
        "--pyproject", ROOT / "pyproject.toml", "--mc-type", "library", "--output-file", out,
    )  # fmt: skip
    bill = json.loads(out.read_text(encoding="utf-8"))
    named = {part["name"].lower() for part in bill["components"]}
    if not {"torch", "numpy", "stormsail"} <= named | {bill["metadata"]["component"]["name"]}:
        raise SystemExit(f"{out} lacks torch, numpy or stormsail")
    print(f"{out.name}: {len(named)} components, CycloneDX {bill['specVersion']}")


def tutorial(environment: Path, folder: Path) -> None:
    """Run every command of the tutorial but the demonstration, which is of the clone."""
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8").partition("## 2.")[2]
    lines = "\n".join(re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    for long, short in SHORTER.items():
        lines = lines.replace(long, short)
    # status 1 is the verdict `reject`, which so short a training may deserve
    lines = re.sub(r"^(stormsail validate .*)$", r"\1 || test $? -eq 1", lines, flags=re.MULTILINE)
    script = f"set -euo pipefail\nstormsail configs --out configs\n{lines}\n"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    path = f"{environment / 'bin'}{os.pathsep}{kept['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={**kept, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"the tutorial ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    pages = sorted(str(page.relative_to(folder)) for page in folder.rglob("*.html"))
    print(
        f"the wheel alone: {lines.count('stormsail ')} commands of the tutorial, {', '.join(pages)}"
    )


def lock() -> None:
    """Write the lock files: every hash of every file of the versions in constraints.txt.

    `common.txt` is everything but torch. `cuda.txt` adds torch as the common index has it and what
    CUDA needs; `cpu.txt` adds the CPU build, which has a version of its own on Linux. pip prefers
    files whose hash an index announces, so one pin for both builds would always find CUDA.
    """
    found = OUT / "locked.txt"
    compiled(
        "--universal", "--python-version", PYTHONS[0], "--constraint", ROOT / "constraints.txt",
        "--generate-hashes", "--output-file", found,
    )  # fmt: skip
    locked = list(entries(found.read_text(encoding="utf-8")))
    (torch,) = [entry for entry in locked if entry.startswith(f"{TORCH} ")]
    hashes = re.findall(r"--hash=(\S+)", torch)
    cuda = [entry for entry in locked if CUDA.match(entry)]
    cpu = [
        entry_of(f"{TORCH}+cpu ; sys_platform == 'linux'", cpu_builds()),
        entry_of(f"{TORCH} ; sys_platform != 'linux'", hashes),
    ]
    common = [entry for entry in locked if entry != torch and entry not in cuda]
    LOCKS.mkdir(exist_ok=True)
    head = "# Written by `python scripts/packaging.py locks`; see docs/packaging.md."
    files = {
        "common": common,
        "cpu": ["-r common.txt", *cpu],
        "cuda": ["-r common.txt", torch, *cuda],
    }
    for name, lines in files.items():
        (LOCKS / f"{name}.txt").write_text("\n".join([head, *lines, ""]), encoding="utf-8")
        counted = sum(line.count("--hash") for line in lines)
        print(
            f"locks: {name}.txt, {sum('==' in line for line in lines)} packages, {counted} hashes"
        )


def cpu_builds() -> list[str]:
    """Return the hashes of the CPU builds of torch in the folders of `PIP_FIND_LINKS`."""
    folders = [Path(link) for link in os.environ.get("PIP_FIND_LINKS", "").split()]
    name = TORCH.replace("==", "-")
    files = sorted(file for folder in folders for file in folder.glob(f"{name}+cpu-*.whl"))
    for file in files:
        print(f"CPU build: {file.name}")
    if not files:
        raise SystemExit(f"no {name}+cpu-*.whl: lead PIP_FIND_LINKS to a folder that holds some")
    return [f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files]


def entries(locked: str) -> Iterator[str]:
    """Yield the entries of a file of requirements with hashes, without comments."""
    lines = [
        line for line in locked.split("\n") if line.strip() and not line.lstrip().startswith("#")
    ]
    return (
        found.strip() for found in re.findall(r"^\S.*(?:\n .*)*", "\n".join(lines), re.MULTILINE)
    )


def entry_of(requirement: str, hashes: Sequence[str]) -> str:
    """Return an entry of a file of requirements with hashes."""
    return " \\\n    --hash=".join([requirement, *sorted(hashes)])


def compiled(*arguments: object, source: Path = ROOT / "pyproject.toml") -> None:
    """Resolve requirements with uv; neither indexes nor paths are written into what it writes."""
    pinned = OUT / "torch-pin.txt"
    pinned.write_text(f"{TORCH}\n", encoding="utf-8")
    run(
        tool("uv"), "pip", "compile", "--quiet", "--native-tls", "--no-header", "--no-annotate",
        "--no-emit-index-url", "--no-emit-find-links", "--upgrade", "--constraint", pinned,
        *arguments, source,
    )  # fmt: skip


def tool(name: str) -> Path:
    """Return a program of this environment."""
    return Path(sys.executable).parent / name


def run(*command: object) -> None:
    """Run a command, and stop where it fails."""
    subprocess.run([str(word) for word in command], check=True)


if __name__ == "__main__":
    main()
