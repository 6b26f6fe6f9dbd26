"""Run `python -m mutants [name part ...]` with `tests` on the path."""

import os
import sys

# Imported once here, so that each forked trial starts with them in memory.
import hypothesis
import numpy
import scipy.stats
import torch

from mutants.harness import campaign
from mutants.table import MUTANTS

PRELOADED = (hypothesis, numpy, scipy.stats, torch)

if __name__ == "__main__":
    wanted = sys.argv[1:]
    chosen = [
        mutant for mutant in MUTANTS if not wanted or any(part in mutant.name for part in wanted)
    ]
    sys.exit(0 if campaign(chosen, workers=os.cpu_count() or 1) else 1)
