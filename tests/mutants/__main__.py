"""Run `python -m mutants [name part ...]` with `tests` on the path."""

import os
import shutil
import sys
from importlib.util import find_spec

os.environ.setdefault("TRITON_INTERPRET", "1")  # as tests/conftest.py does, but before torch

# Imported once here, so that each forked trial starts with them in memory.
import gymnasium
import hypothesis
import jaxtyping
import numpy
import pyarrow
import pydantic
import safetensors.torch
import scipy.stats
import torch
import torch._dynamo

from mutants.harness import campaign
from mutants.kernels import KERNELS
from mutants.table import MUTANTS

PRELOADED = (gymnasium, hypothesis, jaxtyping, numpy, pyarrow, pydantic, safetensors, scipy, torch)

if __name__ == "__main__":
    wanted = sys.argv[1:]
    chosen = [
        mutant for mutant in MUTANTS if not wanted or any(part in mutant.name for part in wanted)
    ]
    if find_spec("triton") is None:
        rested = [mutant for mutant in chosen if mutant in KERNELS]
        chosen = [mutant for mutant in chosen if mutant not in KERNELS]
        print(f"{len(rested)} bugs of device kernels left out: Triton is not installed")
    if shutil.which("strace") is None:
        marks = ("power_loss", "journal_syscalls")
        traced = [own for own in chosen if any(mark in t for mark in marks for t in own.tests)]
        chosen = [mutant for mutant in chosen if mutant not in traced]
        print(f"{len(traced)} bugs of losses and kills left out: strace is not installed")
    sys.exit(0 if campaign(chosen, workers=os.cpu_count() or 1) else 1)
