"""`stormsail bench simulator`: steps a second with everything on; eager, compiled, captured.

All ways take the actions from a list that was drawn beforehand, as the peers do, so that a figure
is that of the environment alone.
"""

import csv
import json
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import Tensor

from stormsail.bench.market.steppers import Captured, Plain, duration
from stormsail.bench.options import whole_numbers
from stormsail.core.errors import ArgumentError
from stormsail.core.task import Step
from stormsail.functional.risk_gate import Reason
from stormsail.market import Bars, MarketConfig, Panel, Simulator
from stormsail.market.interval import Interval
from stormsail.market.simulator import Info
from stormsail.market.simulator.config import (
    Costs,
    Degrade,
    Filters,
    Margin,
    NoTrade,
    Randomise,
    RiskLimits,
    Stops,
)
from stormsail.market.synthetic import World, generate

BATCHES = (1, 64, 1024, 16_384)
CUDA_BATCHES = (*BATCHES, 65_536)
COMPARED = 1024
"""The batch at which the ratios to the peers are stated."""

PEERS = ("gym-trading-env", "gym-anytrading")
PEER_PYTHON = Path(".venv-peers/bin/python")
"""What `make peers` makes, under the current folder."""
NOT_INSTALLED = "not installed: run `make peers`"

_SCRIPT = Path(__file__).with_name("trading_peers.py")
_COLUMNS = ("ts", "open", "high", "low", "close", "volume")


@dataclass(frozen=True)
class Speed:
    """One way of stepping one batch."""

    batch: int
    way: str
    steps_per_second: float
    """Environment steps: B for each call."""
    microseconds: float
    """One call, all B environments."""
    warmup_seconds: float
    """Compilation, capture and first calls, not counted."""
    difference: float | None = None
    """Largest difference of replayed from plain steps in any number of the state."""


@dataclass(frozen=True)
class Activity:
    """Events in steps with random actions, as shares: proof that every rule is switched on.

    Attributes:
        steps: counted.
        shares: by event.
    """

    steps: int
    shares: dict[str, float]


def everything_on() -> MarketConfig:
    """Return a market with every rule switched on, tight enough that random actions meet each."""
    start = datetime(2021, 3, 1, tzinfo=UTC)
    return MarketConfig(
        levels=(-3.0, -1.5, 0.0, 1.5, 3.0),
        min_rebalance=0.05,
        ruin_penalty=1.0,
        reward_clip=0.1,
        costs=Costs(taker_fee=0.0005, half_spread=0.0002, impact=0.01),
        margin=Margin(maintenance=0.05, liquidation_fee=0.005),
        filters=Filters(lot=0.001, tick=0.01, min_notional=10.0),
        limits=RiskLimits(
            max_position=25_000.0,
            max_leverage=3.0,
            max_turnover=24.0,
            max_drawdown=0.5,
            max_daily_loss=0.1,
            min_equity=4_000.0,
        ),
        stops=Stops(equity_floor=0.05, drawdown=0.8),
        no_trade=NoTrade(
            daily=("13:00-14:00",),
            ranges=((start, start.replace(day=8)),),
            around_funding_minutes=5,
            drop_samples=True,
        ),
        randomise=Randomise(taker_fee=(0.5, 2.0), half_spread=(0.5, 2.0), impact=(0.5, 2.0)),
        degrade=Degrade(stale_prob=0.02, drop_prob=0.02, delay_prob=0.05, max_delay_bars=3),
    )


def history(*, symbols: int = 4, bars: int = 20_000, seed: int = 0) -> tuple[Panel, Bars]:
    """Return hourly perpetuals with funding and jumps, and the first one's bars for the peers."""
    world: World = generate(
        "garch_jump",
        symbols=symbols,
        bars=bars,
        interval=Interval.parse("1h"),
        seed=seed,
        start_price=1000.0,
        jump_rate=0.003,
        jump_deviation=0.25,  # deep enough to take a leveraged position away
    )
    return Panel.from_bars(world.bars, world.funding), world.bars[0]


def batches(text: str | None, *, device: str) -> tuple[int, ...]:
    """Return the batch sizes of a list such as `1,64`, or those of the device."""
    if text is None:
        return BATCHES if device == "cpu" else CUDA_BATCHES
    return whole_numbers(text, option="batch", example="1,64,1024")


def speeds(
    panel: Panel,
    sizes: Sequence[int],
    *,
    device: str = "cpu",
    compiled: bool = True,
    seconds: float = 2.0,
    repeats: int = 50,
    seed: int = 0,
) -> Iterator[Speed]:
    """Yield the speed of every way at every batch size; on CUDA also captured in a graph.

    Of `repeats` stretches of `seconds` the fastest counts, because whatever else runs on a machine
    can only lengthen one.
    """
    config = everything_on()
    for batch in sizes:
        simulator = Simulator(panel, config, batch=batch, device=device)
        for way in ("eager", "compiled") if compiled else ("eager",):
            if way == "compiled":
                simulator.compile()
            plain = partial(Plain, simulator, seed=seed)
            yield _measured(plain, way, seconds=seconds, repeats=repeats)
            if simulator.device.type == "cuda":
                captured = partial(Captured, simulator, seed=seed)
                yield _measured(captured, f"{way}, captured", seconds=seconds, repeats=repeats)


@dataclass(frozen=True)
class Peer:
    """A library for one environment, stepped by its own interpreter in a single process."""

    name: str
    version: str
    python: str
    bars: int
    repeats: int
    warmup_seconds: float
    steps_per_second: float
    """With actions drawn beforehand, as ours."""
    sampling_steps_per_second: float
    """With `action_space.sample()` at every step, as its documents show."""


def peer_python(given: Path | None) -> Path | None:
    """Return the interpreter that has the peers: the given one, or what `make peers` made here.

    Raises:
        ArgumentError: if the given one is no file.
    """
    if given is None:
        return PEER_PYTHON if PEER_PYTHON.is_file() else None
    if not given.is_file():
        raise ArgumentError(
            "missing-argument",
            wrong="`--peers-python` must be the interpreter of an environment with the peers",
            found=f"no file {given}",
            remedy="Run `make peers` and leave the option out.",
        )
    return given


def peers(
    python: Path, bars: Bars, *, seconds: float = 2.0, repeats: int = 50, seed: int = 0
) -> Iterator[tuple[str, Peer | str]]:
    """Yield each peer's name and speed on the bars, or the reason why there is none."""
    with TemporaryDirectory() as folder:
        table = Path(folder) / "bars.csv"
        columns = [bars.column(name).tolist() for name in _COLUMNS]
        with table.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(_COLUMNS)
            writer.writerows(zip(*columns, strict=True))
        for name in PEERS:
            options = (f"--seconds={seconds}", f"--repeats={repeats}", f"--seed={seed}")
            # -P: the folder of the script is no place to look for modules in.
            command = [str(python), "-P", str(_SCRIPT), name, str(table), *options]
            ran = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
            if ran.returncode:
                yield name, (ran.stderr.strip().splitlines() or ["no message"])[-1]
            else:
                yield name, Peer(**json.loads(ran.stdout.splitlines()[-1]))


@dataclass(frozen=True)
class Comparison:
    """All figures of one run."""

    speeds: tuple[Speed, ...]
    peers: dict[str, Peer]
    absent: dict[str, str]
    """Peers without a figure, and why."""
    activity: Activity

    def ratios(self, speed: Speed) -> dict[str, float]:
        """Return how many times as fast as each peer a way is."""
        own = speed.steps_per_second
        return {name: own / peer.steps_per_second for name, peer in self.peers.items()}


def compare(
    sizes: Sequence[int],
    *,
    python: Path | None,
    device: str = "cpu",
    compiled: bool = True,
    seconds: float = 2.0,
    bars: int = 20_000,
    seed: int = 0,
) -> Comparison:
    """Measure the simulator between two measurements of the peers, on the same bars.

    A peer's better figure counts: what slows a shared machine comes and goes within minutes, and
    would flatter us if it fell on the peers alone. `python` is the interpreter of the peers; None
    leaves them out. `seconds` are measured for each way and each peer.
    """
    panel, first = history(bars=bars, seed=seed)
    fastest: dict[str, Peer] = {}
    absent = dict.fromkeys(PEERS, NOT_INSTALLED) if python is None else {}

    def measure_peers() -> None:
        for name, peer in () if python is None else peers(python, first, seconds=seconds):
            if isinstance(peer, str):
                absent[name] = peer
            else:
                before = fastest.get(name, peer)
                fastest[name] = max(before, peer, key=lambda either: either.steps_per_second)

    measure_peers()
    measured = tuple(
        speeds(panel, sizes, device=device, compiled=compiled, seconds=seconds, seed=seed)
    )
    measure_peers()
    return Comparison(measured, fastest, absent, activity(panel, seed=seed))


def activity(panel: Panel, *, batch: int = 1024, steps: int = 300, seed: int = 0) -> Activity:
    """Return what random actions meet in the market that is measured."""
    plain = Plain(Simulator(panel, everything_on(), batch=batch), seed=seed)
    counts: dict[str, int] = {}
    for _ in range(steps):
        for name, happened in _events(plain.step()):
            counts[name] = counts.get(name, 0) + int(happened.sum())
    return Activity(batch * steps, {name: n / (batch * steps) for name, n in counts.items()})


def _events(shown: Step[Info]) -> Iterator[tuple[str, Tensor]]:
    info = shown.info
    yield "filled", info.traded != 0.0
    yield "funding", info.funding != 0.0
    yield "liquidated", info.liquidated
    yield "blocked", info.blocked
    yield "feed late", info.data_age > 0
    yield "terminated", shown.terminated
    yield "truncated", shown.truncated
    # A config refuses levels beyond the leverage, and levels are finite: neither can be met.
    unseen = {Reason.NONE, Reason.LEVERAGE, Reason.NONFINITE}
    for reason in (reason for reason in Reason if reason not in unseen):
        yield f"gate: {reason.name.lower().replace('_', ' ')}", info.reason == reason


def _measured(start: Callable[[], Plain], way: str, *, seconds: float, repeats: int) -> Speed:
    """Return the speed of a way after its warm-up."""
    began = time.perf_counter()
    stepper = start()
    calls = 8
    duration(stepper, calls)
    warmup = time.perf_counter() - began
    while (once := duration(stepper, calls)) < 0.2 * seconds / repeats:
        calls *= 2
    calls = max(1, round(calls * seconds / repeats / once))
    best = min(duration(stepper, calls) for _ in range(repeats)) / calls
    batch = stepper.simulator.batch
    return Speed(batch, way, batch / best, 1e6 * best, warmup, stepper.difference())
