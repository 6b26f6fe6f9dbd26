"""The demonstration: a market that jumps, one agent free and one held to a limit, one report.

Usage: `make demo`, or `python scripts/demo.py` in the root of the repository. Every step is a
command that could be typed by hand, and is shown before it runs. Everything lies in `runs/demo`.
An interrupted demonstration goes on when it is started again, and a finished one repeats only what
takes seconds.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

PLACE = "runs/demo"
PAGE = f"{PLACE}/report.html"
MARKET = (
    *("--symbols", "2", "--bars", "32000", "--interval", "1h", "--seed", "7"),
    *("--set", "volatility=0.0070", "--set", "alpha=0.07", "--set", "beta=0.925"),
    *("--set", "degrees=6", "--set", "drift=0.00006", "--set", "jump_rate=0.0015"),
    *("--set", "jump_mean=-0.06", "--set", "jump_deviation=0.03"),
    *("--set", "warning_share=0.7", "--set", "false_alarms=0.005"),
)
"""Hourly bars like those of a volatile coin: 70 % a year with jumps, long clusters of volatility, a
tail index of 3.0 (Gopikrishnan et al. 1998 measure 3 for shares), thirteen falls of 6 % a year. A
warning precedes seven in ten of them; five false ones come with each true one. Holding grows by
0.8 % a week after funding, 0.6 of its deviation in a year: a position pays for its fills, and with
the drift the same in all times and the tail that of volatile ones, a rule that knew the volatility
could step aside in these; agents of this size did not learn it (README)."""

QUICKLY = (
    *("--folds", "2", "--seeds", "1", "--jobs", "2", "--workspace", PLACE),
    *("--judge", "train_bars=18000", "--judge", "stress=false"),
)
"""Enough to see how a validation works; more folds and seeds prove more: see docs/validate.md. Its
two trainings go side by side, which changes no figure."""

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""Sums in another order have other last bits, and a training goes on from them: with one thread the
figures do not depend on the number of cores."""

REJECTED = 1
"""Exit status of a validation that worked and says `reject`."""


class Step(NamedTuple):
    """One command, why it runs, and what it makes."""

    why: str
    command: tuple[str, ...]
    makes: str | None = None
    """Folder that is never overwritten: where it exists, the step is done."""


def _judge(name: str, why: str) -> Step:
    out = f"{PLACE}/judged-{name}"
    return Step(why, ("validate", f"configs/demo/{name}.toml", "--out", out, *QUICKLY), out)


STEPS = (
    Step("a market with jumps", ("synth", "garch_jump", "--store", f"{PLACE}/data", *MARKET)),
    Step(
        "an agent that maximises the mean alone",
        ("train", "configs/demo/free.toml", "--out", f"{PLACE}/free"),
    ),
    Step(
        "the same with a limit on its tail",
        ("train", "configs/demo/limited.toml", "--out", f"{PLACE}/limited"),
    ),
    _judge("free", "is the result of the first one skill or chance?"),
    _judge("limited", "and the second one?"),
    Step(
        "both side by side",
        (
            "compare",
            f"{PLACE}/judged-free",
            f"{PLACE}/judged-limited",
            "--out",
            f"{PLACE}/compare.html",
            "--force",
        ),
    ),
    Step(
        "one page about all of it",
        (
            *("report", f"{PLACE}/judged-free", f"{PLACE}/judged-limited"),
            *("--run", f"{PLACE}/free", "--run", f"{PLACE}/limited", "--out", PAGE, "--force"),
        ),
    ),
)
"""What happens, in order."""


def run(step: Step) -> int:
    """Show and execute one command; return 0, or the exit status that ends the demonstration."""
    print(f"$ stormsail {shlex.join(step.command)}", flush=True)
    if step.makes and Path(step.makes).exists():
        print(f"{step.makes} exists and is kept; remove it to judge anew.", flush=True)
        return 0
    command = [sys.executable, "-m", "stormsail", *step.command]
    status = subprocess.run(command, check=False, env={**os.environ, **ONE_THREAD})
    code = status.returncode
    if code == REJECTED and step.makes and Path(step.makes).exists():
        return 0  # a verdict, not a failure
    return code if code >= 0 else 128 - code


def main() -> int:
    """Run all steps; stop at the first that fails, whose own words say why."""
    # Ctrl-C reaches the verb as well, which saves what it has; it must not be killed meanwhile
    signal.signal(signal.SIGINT, lambda *_: None)
    started = time.monotonic()
    for number, step in enumerate(STEPS, start=1):
        print(f"\n{number} of {len(STEPS)}: {step.why}", flush=True)
        code = run(step)
        if code:
            print(f"the demonstration ends here ({code}); `make demo` goes on.", file=sys.stderr)
            return code
    minutes = (time.monotonic() - started) / 60.0
    print(f"\ndone in {minutes:.1f} minutes; open {PAGE} in a browser,")
    print("and read docs/tutorial.md for what it says and for bars of your own.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
