"""`stormsail bench simulator`, `features` and `wicks`: the market measured."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stormsail.cli.bench.output import (
    Device,
    FirstSeed,
    Out,
    Seconds,
    Threads,
    bench_console,
    check_folders,
    exit_unless_held,
    print_verdicts,
    write_json,
)

if TYPE_CHECKING:
    from rich.console import Console

    from stormsail.bench.market.simulator import Comparison
    from stormsail.cli.tables import Table


def features(
    bars: Annotated[int, typer.Option(min=2000, help="Bars of the history.")] = 1_000_000,
    threads: Threads = 1,
    seed: Annotated[int, typer.Option(help="Seed of the bars.")] = 0,
    out: Out = None,
) -> None:
    """Time the default features beside TA-Lib, pandas and numpy on the same bars."""
    import torch
    from rich.console import Console

    from stormsail.bench.market.features import history, rows, total
    from stormsail.cli.tables import Table

    check_folders(out)
    if threads:
        torch.set_num_threads(threads)
    data = history(bars, seed=seed)
    title = f"{bars} bars, float64, CPU, {torch.get_num_threads()} threads"
    table = Table("column", "ms", "peer", "peer ms", "ratio", "largest difference", title=title)
    measured = []
    for library, row in rows(data):
        measured.append((library, row))
        table.add_row(
            row.name,
            f"{row.milliseconds:.0f}",
            library,
            f"{row.reference_milliseconds:.0f}",
            f"{row.ratio:.1f}",
            f"{row.largest_difference:.1e}",
        )
    console = Console()
    console.print(table)
    sums = total(data)
    console.print(
        f"{sums.columns} columns at once in {sums.threads} threads, peers of {sums.peer_columns} "
        "one after another in one thread:"
    )
    for label, own, peer in (
        ("wall time", sums.seconds, sums.peer_seconds),
        ("processor time", sums.processor_seconds, sums.peer_processor_seconds),
    ):
        console.print(f"{label}: {own:.2f} s, peers {peer:.2f} s; ratio {peer / own:.2f}")
    for library in sums.missing:
        console.print(f"{library} is not installed: its columns have no peer here")
    columns = [{**asdict(row), "peer": library} for library, row in measured]
    write_json(out, {"columns": columns, "total": asdict(sums)})


def wicks(
    store: Annotated[Path, typer.Argument(help="A store of bars that no threshold was made for.")],
    factors: Annotated[str, typer.Option(help="Highs times it, lows divided by it.")] = "1.5,3",
    planted: Annotated[int, typer.Option(min=2, help="Wicks a symbol and factor.")] = 400,
    first_seed: FirstSeed = 0,
    out: Out = None,
) -> None:
    """Plant false wicks in stored bars: how many are found, and what else is flagged."""
    from stormsail.bench.market.wicks import rows, verdicts
    from stormsail.bench.options import numbers
    from stormsail.cli.tables import Table
    from stormsail.core.errors import DataError
    from stormsail.market.store import Store

    check_folders(out)
    chosen = numbers(factors, option="factors", example="1.5,3", positive=True)
    table = Table("symbol", "interval", "bars", "flags", "factor", "planted", "found", keys=2)
    measured = []
    for row in rows(Store(store), factors=chosen, planted=planted, first_seed=first_seed):
        measured.append(row)
        cells = row.symbol, row.interval, row.bars, row.flags, row.factor, row.planted, row.found
        table.add_row(*map(str, cells))
    if not measured:
        raise DataError(
            "data-missing",
            wrong=f"{store} must be a store that holds bars",
            found="none",
            remedy="Import, fetch or synthesise some first.",
        )
    console = bench_console()
    console.print(table)
    claims = verdicts(measured)
    print_verdicts(console, claims)
    write_json(out, {"rows": [asdict(row) for row in measured]})
    exit_unless_held(claims)


def simulator(
    batch: Annotated[
        str | None, typer.Option(help="Batch sizes: 1,64,1024,16384, and on CUDA 65536.")
    ] = None,
    device: Device = "cpu",
    compiled: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Also measure it compiled.")
    ] = True,
    seconds: Seconds = 2.0,
    threads: Threads = 1,
    bars: Annotated[int, typer.Option(min=2000, help="Bars of each symbol.")] = 20_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of bars, market and actions.")] = 0,
    peers_python: Annotated[
        Path | None, typer.Option(help="Interpreter with the peers; `make peers` makes one.")
    ] = None,
    out: Out = None,
) -> None:
    """Time the simulator, everything switched on, beside gym-trading-env and gym-anytrading."""
    import torch
    from rich.console import Console

    from stormsail.bench import device as devices
    from stormsail.bench.market import simulator as bench

    check_folders(out)
    devices.check_device(device)
    sizes = bench.batches(batch, device=device)
    python = bench.peer_python(peers_python)
    if threads:
        torch.set_num_threads(threads)
    console = Console()
    if compiled and not devices.compiler_found():
        console.print("no C++ compiler is found: nothing is compiled")
        compiled = False
    result = bench.compare(
        sizes,
        python=python,
        device=device,
        compiled=compiled,
        seconds=seconds,
        bars=bars,
        seed=seed,
    )
    console.print(_speed_table(result, title=f"float32, {devices.device_name(device)}"))
    _print_peers(console, result)
    _print_ratios(console, result, batch=bench.COMPARED)
    _print_activity(console, result)
    speeds = [{**asdict(row), "ratios": result.ratios(row)} for row in result.speeds]
    write_json(out, {**asdict(result), "speeds": speeds})


def _speed_table(result: "Comparison", *, title: str) -> "Table":
    from stormsail.cli.tables import Table

    table = Table("B", "way", "steps/s", "µs a call", "warm-up s", "replay", keys=2, title=title)
    for row in result.speeds:
        table.add_row(
            str(row.batch),
            row.way,
            f"{row.steps_per_second:,.0f}",
            f"{row.microseconds:,.1f}",
            f"{row.warmup_seconds:.1f}",
            "" if row.difference is None else f"off by {row.difference:g}",
        )
    return table


def _print_peers(console: "Console", result: "Comparison") -> None:
    for name, peer in result.peers.items():
        console.print(
            f"{name} {peer.version}: {peer.steps_per_second:,.0f} steps/s, actions drawn "
            f"beforehand; {peer.sampling_steps_per_second:,.0f} with `action_space.sample()` at "
            f"every step; one process, fastest of 2 x {peer.repeats} stretches on the same "
            f"{peer.bars:,} bars, warm-up {peer.warmup_seconds:g} s",
            soft_wrap=True,
        )
    for name, reason in result.absent.items():
        console.print(f"{name}: {reason}", soft_wrap=True, markup=False)


def _print_ratios(console: "Console", result: "Comparison", *, batch: int) -> None:
    there = [row for row in result.speeds if row.batch == batch]
    if not there:
        return
    best = max(there, key=lambda row: row.steps_per_second)
    line = f"B = {batch}, {best.way}: {best.steps_per_second:,.0f} steps/s"
    for name, ratio in result.ratios(best).items():
        line += f"; {ratio:.1f} times {name}"
    console.print(line, soft_wrap=True)


def _print_activity(console: "Console", result: "Comparison") -> None:
    shares = ", ".join(f"{name} {share:.2g}" for name, share in result.activity.shares.items())
    steps = f"{result.activity.steps:,}"
    console.print(f"what {steps} steps met, as shares: {shares}", soft_wrap=True)
