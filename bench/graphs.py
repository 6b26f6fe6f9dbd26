"""Whole updates on a GPU: captured against eager, host syncs, time of each phase, kernels.

    PYTHONPATH=src python bench/graphs.py [--check] [--speed] [--profile] [--isolate]
        [--rows WIDTH:ENVIRONMENTS:SWITCHES;...] [--switches SWITCHES] [--out FILE]

Everything is on that makes an update faster; SWITCHES are names, by commas, of what is turned
around (`SWITCHES` below says which).

Everything is on: twin quantile critics with n-step targets, PopArt, CVaR control, AdaptiveUPGD,
the variance gradient scaler, non-finite guard, metrics. Without an option all three parts run.
Ratios within one run are what counts.
"""

import argparse
import contextlib
import gc
import itertools
import json
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.algorithms.ppo import Ppo, Update
from stormsail.algorithms.run import checkpoint
from stormsail.algorithms.run.tasks import agent_spec
from stormsail.algorithms.telemetry.metrics import collect, launch
from stormsail.algorithms.update.graphs import Recorder, waiting_allowed
from stormsail.bench.market.simulator import history
from stormsail.core.errors import StormsailError
from stormsail.core.generators import Generators
from stormsail.market import MarketConfig, Simulator
from stormsail.modules.agent import Agent

Save = Callable[[], None]
ROWS = (
    "256:16384:",
    "256:4096:",
    "64:16384:",
    "64:4096:",
    "256:16384:critic",
    "64:16384:critic",
    "256:16384:eager_step",
)
"""Width, environments and switches of each row of `--speed`."""

PHASES = ("rollout", "estimates", "epochs", "metrics", "checks")
SWITCHES = {
    "eager_step": "the simulator's step is not compiled",
    "critic": "the limit is kept in its default form, by a critic of its own",
    "eager_optimizer": "the optimizer's step is not compiled",
    "no_scaler": "no variance gradient scaler",
    "no_rollout_graph": "the rollout is launched kernel by kernel",
    "no_epochs_graph": "minibatches are launched kernel by kernel",
    "no_recorder": "estimates and metrics are launched kernel by kernel",
    "no_graphs": "no CUDA graphs",
    "no_gc": "Python collects no garbage",
}
"""Names of what is turned around in a variant."""
CHANGES: dict[str, dict[str, Any]] = {
    "critic": {"risk.form": "critic"},
    "eager_optimizer": {"optimizer.compiled": False},
    "no_scaler": {"vgs.enabled": False},
    "no_graphs": {"cuda_graphs": "off"},
}
FATAL = 3
"""Exit code after an error that the device does not recover from."""
_PANEL: list[Any] = []


def say(*words: object) -> None:
    """Write a line at once."""
    sys.stdout.write(" ".join(str(word) for word in words) + "\n")
    sys.stdout.flush()


def panel() -> Any:  # noqa: ANN401 - a panel of bars
    """Return the market of all learners."""
    if not _PANEL:
        _PANEL.append(history(symbols=4, bars=20_000)[0])
    return _PANEL[0]


def settings(environments: int, width: int, **changes: Any) -> TrainConfig:  # noqa: ANN401
    """Return a configuration with everything on."""
    wanted: dict[str, Any] = {
        "device": "cuda",
        "task.name": "market",
        "ppo.n_envs": environments,
        "ppo.n_steps": 64,
        "ppo.sequence_length": 64,
        "ppo.n_epochs": 4,
        "ppo.batch_size": environments // 4,
        "ppo.total_steps": 10**10,
        "network.lstm_hidden_size": width,
        "network.encoder_sizes": (width,),
        "network.head_sizes": (width,),
        "critic.num_quantiles": 32,
        "kl.target_kl": None,
        "risk.cvar_use_constraint": True,
        "risk.cvar_limit": -0.2,
        "risk.form": "budget",
        "vgs.enabled": True,
        "validation.every_updates": 0,
        "task.compile_step": False,
        "observation.warmup_steps": 0,
        **changes,
    }
    return derive(TrainConfig().replace(**wanted))


class Timed(Ppo):
    """The learner with a clock between the phases of its update."""

    stamps: list[float]

    def update(self) -> Update:
        """Do one update; leaves the times between its phases in `stamps`."""
        self.stamps = [now()]
        return super().update()

    def _collect(self) -> Any:  # noqa: ANN401
        collected = super()._collect()
        self.stamps.append(now())
        return collected

    def _prepare(self, given: Any) -> Any:  # noqa: ANN401
        prepared = super()._prepare(given)
        self.stamps.append(now())
        return prepared

    def _finish(self, done: Update, explained_variance: float) -> None:
        super()._finish(done, explained_variance)
        self.stamps.append(now())


def now() -> float:
    """Return the time once the device has done all that it was given."""
    with waiting_allowed():
        torch.cuda.synchronize()
    return time.perf_counter()


@cache
def market(environments: int, device: str, *, compiled: bool) -> Simulator:
    """Return the environments, which keep nothing: learners of one size share a compilation."""
    chosen = MarketConfig(episode_bars=128)
    task = Simulator(panel(), chosen, batch=environments, device=device)
    if compiled:
        task.compile()
    return task


def learner(
    config: TrainConfig, kind: type[Ppo] = Timed, switches: Collection[str] = ("eager_step",)
) -> Ppo:
    """Return a learner on the market, without what is switched."""
    generators = Generators(config.seed, device=config.device)
    task = market(config.ppo.n_envs, config.device, compiled="eager_step" not in switches)
    agent = Agent(agent_spec(config, task), Generators(config.seed).stream("weights"))
    ppo = kind(task, agent.to(config.device), config, generators)
    if "no_rollout_graph" in switches:
        ppo._captures_rollout = False
    if "no_recorder" in switches:
        ppo.recorder = Recorder(captured=False)
    if "no_epochs_graph" in switches and ppo._epochs is not None:
        ppo._epochs._captured = False
    return ppo


@contextlib.contextmanager
def switched(switches: Collection[str]) -> Iterator[None]:
    """Turn parts of the program around for a while."""
    unknown = set(switches) - set(SWITCHES)
    if unknown:
        raise SystemExit(f"no such switch: {', '.join(sorted(unknown))}; {', '.join(SWITCHES)}")
    if "no_gc" in switches:
        gc.disable()
    try:
        yield
    finally:
        gc.enable()


def variant(text: str) -> tuple[int, int, tuple[str, ...]]:
    """Return width, environments and switches of `WIDTH:ENVIRONMENTS:SWITCHES`."""
    width, environments, *rest = text.split(":")
    names = tuple(name for part in rest for name in part.split(",") if name)
    return int(width), int(environments), names


def whole(ppo: Ppo) -> dict[str, float]:
    """Do one update with everything that a run does after it but the disk."""
    update = ppo.update()
    began = now()
    flags = checkpoint.state_flags(ppo, update.learned.minibatches.sums.entropy)
    checked = now()
    values, finite = collect(ppo, launch(ppo, update), flags)
    ended = now()
    if not all(finite):
        raise RuntimeError("the state is not finite")
    if isinstance(ppo, Timed):
        spent = [b - a for a, b in itertools.pairwise(ppo.stamps)]
        spent += [ended - checked, checked - began]
        values |= {f"ms/{name}": 1e3 * part for name, part in zip(PHASES, spent, strict=True)}
        values["ms/all"] = 1e3 * (ended - ppo.stamps[0])
    return values


def weights(ppo: Ppo) -> torch.Tensor:
    """Return all weights in one row."""
    return torch.cat([parameter.detach().flatten() for parameter in ppo.agent.parameters()])


def check(out: dict[str, Any]) -> None:
    """Compare captured with eager updates, and look for host syncs."""
    for precision in ("float32", "bf16"):
        changes = {"precision": precision, "kl.target_kl": 0.05}
        graph = learner(settings(256, 64, **changes), Ppo)
        plain = learner(settings(256, 64, cuda_graphs="off", **changes), Ppo)
        rows = []
        for number in range(4):
            one, two = graph.update(), plain.update()
            same = torch.equal(one.rollout.raw_action, two.rollout.raw_action)
            gap = (weights(graph) - weights(plain)).abs().max() / weights(plain).abs().max()
            states = [each.generators.state() for each in (graph, plain)]
            streams = all(torch.equal(states[0][k], states[1][k]) for k in states[1])
            rows.append(
                {
                    "update": number,
                    "same actions": same,
                    "relative gap of weights": float(gap),
                    "same streams": streams,
                    "minibatches": [len(u.learned.minibatches) for u in (one, two)],
                    "stopped": [u.learned.stopped for u in (one, two)],
                }
            )
            say(precision, rows[-1])
        out[f"equal {precision}"] = rows
        out[f"captured {precision}"] = [graph._rollouts is not None, graph._epochs is not None]
        say("captured rollout, epochs:", out[f"captured {precision}"])
    ppo = learner(settings(256, 64), Ppo)
    for _ in range(2):
        ppo.update()
    out["syncs"] = syncs(ppo)
    say("host syncs of an update:", json.dumps(out["syncs"], indent=1))


def syncs(ppo: Ppo) -> dict[str, int]:
    """Return where an update waits for the device, and how often."""
    found: dict[str, int] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            ppo.update()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for each in caught:
        place = f"{Path(each.filename).name}:{each.lineno}"
        found[place] = found.get(place, 0) + 1
    return found


def speed(out: dict[str, Any], updates: int, rows_of: Sequence[str], save: Save) -> None:
    """Time the phases of an update, for one variant after another."""
    for text in rows_of:
        width, environments, switches = variant(text)
        changes = {key: value for name in switches for key, value in CHANGES.get(name, {}).items()}
        with reported(out, text, save), switched(switches):
            ppo = learner(settings(environments, width, **changes), switches=switches)
            torch.cuda.reset_peak_memory_stats()
            began = now()
            for _ in range(3):
                whole(ppo)
            warm = now() - began
            rows = [whole(ppo) for _ in range(updates)]
            middle = {
                name: sorted(row[name] for row in rows)[len(rows) // 2]
                for name in rows[0]
                if name.startswith("ms/")
            }
            samples = environments * 64
            row = {
                **{name: round(value, 2) for name, value in middle.items()},
                "spread ms": round(
                    max(r["ms/all"] for r in rows) - min(r["ms/all"] for r in rows), 2
                ),
                "M steps/s": round(samples / middle["ms/all"] / 1e3, 3),
                "M steps/s, rollout alone": round(samples / middle["ms/rollout"] / 1e3, 2),
                "warm-up s": round(warm, 1),
                "peak GB": round(torch.cuda.max_memory_allocated() / 1e9, 1),
            }
            out[text] = row
            say(f"{text}", json.dumps(row))
            save()
        ppo = None
        gc.collect()
        torch.cuda.empty_cache()


def isolate(out: dict[str, Any], text: str, updates: int, save: Save) -> None:
    """Do updates one by one; an error is told with the update and the phase that it came in."""
    width, environments, switches = variant(text)
    changes = {key: value for name in switches for key, value in CHANGES.get(name, {}).items()}
    done: list[float] = []
    with reported(out, text, save, where=lambda: f"update {len(done)}, {phase(ppo)}: "):
        ppo = None
        with switched(switches):
            ppo = learner(settings(environments, width, **changes), switches=switches)
            for _ in range(updates):
                done += [whole(ppo)["ms/all"]]
        out[text] = f"{updates} updates, the last in {done[-1]:.1f} ms"
        say(text, out[text])
        save()


def phase(ppo: Any) -> str:  # noqa: ANN401 - a learner, or none yet
    """Return the phase that an update was in when it broke off."""
    stamps = getattr(ppo, "stamps", [])
    return PHASES[min(max(len(stamps) - 1, 0), len(PHASES) - 1)] if stamps else "making"


@contextlib.contextmanager
def reported(
    out: dict[str, Any], name: str, save: Save, where: Callable[[], str] = lambda: ""
) -> Iterator[None]:
    """Note an error under a name, so that the other rows are still measured.

    Raises:
        SystemExit: with `FATAL` if the device does not recover from it.
    """
    try:
        yield
    except (RuntimeError, ValueError, StormsailError) as error:
        trace = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(trace.filename).name}:{trace.lineno}"
        out[name] = f"{where()}{type(error).__name__}: {error} ({place})"
        say(name, out[name][:2000])
        save()
        if "CUDA error" in str(error) or "illegal memory" in str(error):
            raise SystemExit(FATAL) from error


def profile(out: dict[str, Any], environments: int, switches: Collection[str]) -> None:
    """Print the kernels of one update that take longest, and how many are launched."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as traced

    changes = {key: value for name in switches for key, value in CHANGES.get(name, {}).items()}
    ppo = learner(settings(environments, 256, **changes), switches=switches)
    for _ in range(3):
        whole(ppo)
    with traced(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        whole(ppo)
    table = seen.key_averages()
    calls = {
        name: sum(row.count for row in table if row.key == name)
        for name in ("cudaLaunchKernel", "cuLaunchKernel", "cuLaunchKernelEx", "cudaGraphLaunch",
                     "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaLaunchKernelExC")
    }  # fmt: skip
    say("calls of the host:", calls)
    out["calls"] = calls
    kernels = [row for row in table if row.device_type == torch.autograd.DeviceType.CUDA]
    kernels.sort(key=lambda row: -row.self_device_time_total)
    total = sum(row.self_device_time_total for row in kernels)
    say(f"kernels: {sum(row.count for row in kernels)}, {total / 1e3:.1f} ms")
    rows = [
        [round(row.self_device_time_total / 1e3, 2), row.count, row.key[:100]]
        for row in kernels[:40]
    ]
    for row in rows:
        say(f"{row[0]:9.2f} ms {row[1]:7d}  {row[2]}")
    out["kernels"] = rows


def main() -> int:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parts = ("check", "speed", "profile", "isolate")
    for name in parts:
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--environments", type=int, default=16_384)
    parser.add_argument("--rows", default=";".join(ROWS))
    parser.add_argument("--switches", default="")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    chosen = {name for name in parts if getattr(asked, name)} or set(parts[:3])
    switches = [name for name in asked.switches.split(",") if name]
    rows = [text for text in asked.rows.split(";") if text]
    out: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}

    def save() -> None:
        if asked.out is not None:
            asked.out.write_text(json.dumps(out, indent=1))

    if "isolate" in chosen:
        isolate(out, rows[0], asked.updates, save)
    if "check" in chosen:
        with reported(out, "check", save):
            check(out)
    if "speed" in chosen:
        speed(out, asked.updates, rows, save)
    if "profile" in chosen:
        with reported(out, "profile", save), switched(switches):
            profile(out, asked.environments, switches)
    save()
    return 0


if __name__ == "__main__":
    sys.exit(main())
