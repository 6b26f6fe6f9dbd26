"""Members of a population on one GPU, side by side against one alone.

    PYTHONPATH=src python bench/members.py [--members 8] [--updates 20] [--out FILE]

Every member is a learner of its own with everything on (`bench/graphs.py`), in a thread and on a
stream of its own, as `stormsail population --engine in-process --workers 8` carries them out: an
update is a few launches of captured graphs, metrics and checks included. Printed is the time of all
members together over that of one, which is to be below 3 for 8 members, and whether a member that
trained beside others has the same bits as alone. `--check` runs tiny members on the CPU.
"""

import argparse
import itertools
import json
import statistics
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from graphs import learner, say, settings, weights

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.ppo import Ppo
from stormsail.algorithms.run import checkpoint
from stormsail.algorithms.telemetry.metrics import metrics
from stormsail.algorithms.update import nonfinite

WARM_UPS = 4
"""Updates before the first that counts: they record the graphs."""


def update(ppo: Ppo) -> None:
    """Do one update with everything that a run does after it but the disk."""
    metrics(ppo, ppo.update())
    problem = nonfinite.first_nonfinite(
        nonfinite.tensors_of(checkpoint.learner_state(ppo), "state")
    )
    if problem is not None:
        raise RuntimeError(problem)


def wait() -> None:
    """Let the device finish."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def together(configs: list[TrainConfig], updates: int) -> tuple[list[float], list[torch.Tensor]]:
    """Train members side by side; return the seconds of each round of updates, and the weights."""
    times: list[float] = []
    ended: list[torch.Tensor | None] = [None] * len(configs)
    failures: list[BaseException] = []

    def note() -> None:  # by one thread, while all others wait
        wait()
        times.append(time.perf_counter())

    meeting = threading.Barrier(len(configs), action=note)

    def member(place: int, config: TrainConfig) -> None:
        on_gpu = config.device != "cpu"
        try:
            with torch.cuda.stream(torch.cuda.Stream()) if on_gpu else nullcontext():
                ppo = learner(config, Ppo)
                for _ in range(WARM_UPS):
                    update(ppo)
                meeting.wait()
                for _ in range(3):
                    for _ in range(updates):
                        update(ppo)
                    meeting.wait()
                ended[place] = weights(ppo).cpu()
        except BaseException as error:  # noqa: BLE001 - shown by the main thread
            failures.append(error)
            meeting.abort()

    threads = [
        threading.Thread(target=member, args=(place, config))
        for place, config in enumerate(configs)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    spent = [(b - a) / updates for a, b in itertools.pairwise(times)]
    return spent, [part for part in ended if part is not None]


def measured(
    environments: int,
    width: int,
    members: int,
    updates: int,
    **changes: Any,  # noqa: ANN401
) -> dict[str, Any]:
    """Return the row of one size."""
    configs = [settings(environments, width, seed=seed, **changes) for seed in range(members)]
    alone, own = together(configs[:1], updates)
    beside, every = together(configs, updates)
    one, all_ = statistics.median(alone), statistics.median(beside)
    return {
        "ms, one": round(1e3 * one, 2),
        f"ms, {members} together": round(1e3 * all_, 2),
        "ratio": round(all_ / one, 2),
        "spread of the ratio": [
            round(min(beside) / max(alone), 2),
            round(max(beside) / min(alone), 2),
        ],
        "M steps/s, together": round(members * environments * 64 / all_ / 1e6, 2),
        "same bits as alone": torch.equal(own[0], every[0]),
    }


def main() -> int:
    """Measure every size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--updates", type=int, default=20, help="between two readings of the clock")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    out: dict[str, Any] = {"torch": torch.__version__}
    if asked.check:
        row = measured(4, 8, 2, 1, **{"device": "cpu", "ppo.n_steps": 8, "ppo.sequence_length": 8})
        say(json.dumps(row))
        return 0
    out["device"] = torch.cuda.get_device_name()
    for environments in (256, 512, 1024):
        name = f"LSTM 64, {environments} environments"
        row = measured(environments, 64, asked.members, asked.updates)
        out[name] = row
        say(f"{name}:", json.dumps(row))
    if asked.out is not None:
        asked.out.write_text(json.dumps(out, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
