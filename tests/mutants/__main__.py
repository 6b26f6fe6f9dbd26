"""Run `python -m mutants [name part ...]` with `tests` on the path."""

import os
import sys

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
from mutants.table import MUTANTS

PRELOADED = (gymnasium, hypothesis, jaxtyping, numpy, pyarrow, pydantic, safetensors, scipy, torch)

if __name__ == "__main__":
    wanted = sys.argv[1:]
    chosen = [
        mutant for mutant in MUTANTS if not wanted or any(part in mutant.name for part in wanted)
    ]
    sys.exit(0 if campaign(chosen, workers=os.cpu_count() or 1) else 1)
