"""Members of a population on one GPU, side by side against one alone.

    PYTHONPATH=src python bench/members.py [--members 8] [--updates 20] [--rounds 3]
        [--alone 8] [--environments 256,512,1024] [--compiled] [--free] [--profile] [--out FILE]

Every member is a learner of its own with everything on (`bench/graphs.py`), in a thread and on a
stream of its own, as `stormsail population --engine in-process --workers 8` carries them out:
members take turns (`core.turns`); an update is a few launches of captured graphs, metrics and
checks included. Printed is the time of all members together over that of one, which is to be below
3 for 8 members; how much of it is work of the host (processor time of a member's thread and update,
without its waits); and how many members, in `--rounds` trainings side by side, have the same bits
as alone, where the first `--alone` were trained. `--free` measures members without turns as well.
`--compiled` compiles the simulator's step. `--profile` says where one member's Python spends its
time, instead. `--check` runs tiny members on the CPU.
"""

import argparse
import cProfile
import io
import itertools
import json
import pstats
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from graphs import learner, say, settings, weights

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.ppo import Ppo
from stormsail.algorithms.run import checkpoint
from stormsail.algorithms.telemetry.metrics import collect, launch
from stormsail.core.turns import Turns, taken

WARM_UPS = 4
"""Updates before the first that counts: they record the graphs."""

READINGS = 3
"""Of the clock while members train, each after as many updates as asked."""

SHOWN = 60
"""Lines of a profile."""


def update(ppo: Ppo) -> None:
    """Do one update with everything that a run does after it but the disk."""
    with taken(ppo.task.device):
        done = ppo.update()
        entropy = done.learned.minibatches.sums.entropy
        flags = checkpoint.state_flags(ppo, entropy)
        _, finite = collect(ppo, launch(ppo, done), flags)
    if not all(finite):
        raise RuntimeError("the state of a member is not finite")


def wait() -> None:
    """Let the device finish."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def own_stream(config: TrainConfig) -> AbstractContextManager[Any]:
    """Let a thread work on a stream of its own, where there is a GPU."""
    return nullcontext() if config.device == "cpu" else torch.cuda.stream(torch.cuda.Stream())


def in_threads(functions: Sequence[Callable[[], None]]) -> None:
    """Call functions side by side; raise what the first one that failed did."""
    failures: list[BaseException] = []

    def guarded(function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - shown by the main thread
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failures.sort(key=lambda error: isinstance(error, threading.BrokenBarrierError))
    if failures:  # the cause, not those that waited for it
        raise failures[0]


@dataclass
class Trained:
    """What members that trained side by side show.

    Attributes:
        seconds: of one update of all of them, by reading.
        host: seconds of the processor that a member's thread takes for an update, by member.
        weights: at the end, by member.
    """

    seconds: list[float] = field(default_factory=list)
    host: dict[int, float] = field(default_factory=dict)
    weights: dict[int, torch.Tensor] = field(default_factory=dict)


def together(
    configs: list[TrainConfig], updates: int, *, switches: tuple[str, ...], turns: Turns | None
) -> Trained:
    """Train members side by side."""
    times: list[float] = []
    trained = Trained()

    def note() -> None:  # by one thread, while all others wait
        wait()
        times.append(time.perf_counter())

    meeting = threading.Barrier(len(configs), action=note)

    def train(place: int, config: TrainConfig) -> None:
        ppo = learner(config, Ppo, switches)
        for _ in range(WARM_UPS):
            update(ppo)
        meeting.wait()
        began = time.thread_time()
        for _ in range(READINGS):
            for _ in range(updates):
                update(ppo)
            meeting.wait()
        trained.host[place] = (time.thread_time() - began) / (READINGS * updates)
        trained.weights[place] = weights(ppo).cpu()

    def member(place: int, config: TrainConfig) -> None:
        try:
            with own_stream(config), nullcontext() if turns is None else turns.joined():
                train(place, config)
        except BaseException:
            meeting.abort()
            raise

    in_threads([partial(member, place, config) for place, config in enumerate(configs)])
    trained.seconds = [(b - a) / updates for a, b in itertools.pairwise(times)]
    return trained


def measured(
    configs: list[TrainConfig],
    updates: int,
    rounds: int,
    alone: int,
    *,
    switches: tuple[str, ...],
    free: bool = False,
) -> dict[str, Any]:
    """Return the row of one size: members alone, one after the other, then side by side."""
    count = len(configs)
    single = [
        together([config], updates, switches=switches, turns=None) for config in configs[:alone]
    ]
    beside = [together(configs, updates, switches=switches, turns=Turns()) for _ in range(rounds)]
    own = [reading for member in single for reading in member.seconds]
    every = [reading for round_ in beside for reading in round_.seconds]
    one, all_ = statistics.median(own), statistics.median(every)
    samples = sum(config.ppo.n_envs * config.ppo.n_steps for config in configs)
    host = statistics.median(each for round_ in beside for each in round_.host.values())
    row: dict[str, Any] = {
        "ms, one": round(1e3 * one, 2),
        f"ms, {count} together": round(1e3 * all_, 2),
        "ratio": round(all_ / one, 2),
        "spread of the ratio": [
            round(min(every) / max(own), 2),
            round(max(every) / min(own), 2),
        ],
        "ms of the host, a member and update": round(1e3 * host, 2),
        "M steps/s, together": round(samples / all_ / 1e6, 2),
    }
    if free:
        beside.append(together(configs, updates, switches=switches, turns=None))
        row[f"ms, {count} without turns"] = round(1e3 * statistics.median(beside[-1].seconds), 2)
    same = [
        torch.equal(member.weights[0], round_.weights[place])
        for round_ in beside
        for place, member in enumerate(single)
    ]
    return {**row, "same bits as alone": f"{sum(same)} of {len(same)}"}


def profiled(config: TrainConfig, updates: int, switches: tuple[str, ...]) -> str:
    """Return where the Python of one member spends its time; its waits are in `given_up`."""
    profile, out = cProfile.Profile(), io.StringIO()

    def member() -> None:
        with Turns().joined(), own_stream(config):
            ppo = learner(config, Ppo, switches)
            for _ in range(WARM_UPS):
                update(ppo)
            began = time.thread_time()
            for _ in range(updates):
                update(ppo)
            say("ms of the host, an update:", 1e3 * (time.thread_time() - began) / updates)
            for _ in range(updates):
                profile.runcall(update, ppo)

    in_threads([member])
    for order in ("tottime", "cumtime"):
        pstats.Stats(profile, stream=out).sort_stats(order).print_stats(SHOWN)
    return out.getvalue()


def main() -> int:
    """Measure every size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--updates", type=int, default=20, help="between two readings of the clock")
    parser.add_argument("--rounds", type=int, default=3, help="trainings side by side")
    parser.add_argument("--alone", type=int, default=8, help="members that train alone, too")
    parser.add_argument("--environments", default="256,512,1024")
    for name in ("compiled", "free", "profile", "check"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    switches = () if asked.compiled else ("eager_step",)
    out: dict[str, Any] = {"torch": torch.__version__, "compiled": asked.compiled}
    if asked.check:
        tiny = {
            "device": "cpu",
            "ppo.n_steps": 8,
            "ppo.sequence_length": 8,
            "compile_update": False,
        }
        configs = [settings(4, 8, seed=seed, **tiny) for seed in range(2)]
        say(json.dumps(measured(configs, 1, 2, 2, switches=switches, free=asked.free)))
        return 0
    out["device"] = torch.cuda.get_device_name()
    for environments in map(int, asked.environments.split(",")):
        name = f"LSTM 64, {environments} environments"
        configs = [settings(environments, 64, seed=seed) for seed in range(asked.members)]
        if asked.profile:
            say(f"{name}:\n{profiled(configs[0], asked.updates, switches)}")
            continue
        row = measured(
            configs,
            asked.updates,
            asked.rounds,
            asked.alone,
            switches=switches,
            free=asked.free,
        )
        out[name] = row
        say(f"{name}:", json.dumps(row))
        if asked.out is not None:
            asked.out.write_text(json.dumps(out, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
