"""`stormsail check --features`: test features for look-ahead."""

from pathlib import Path
from typing import TYPE_CHECKING

from stormsail.cli.output import publish

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stormsail.market.features import BarTensors, FeatureSet, LeakReport
    from stormsail.market.interval import Interval

DEFAULT = "default"
"""Stands for the features that come with the package."""

HOUR = "1h"


def run(
    target: str | None,
    *,
    interval: str | None = None,
    store: Path | None = None,
    symbol: str | None = None,
    seed: int = 0,
    plugins: "Sequence[str]" = (),
) -> int:
    """Check the default features, or those that a Python file registers; print a table.

    The file is run, as a plug-in is: check only files that you would run.

    Args:
        target: `default`, or the path of a file with `@feature` functions; None for the features of
            the plug-ins alone.
        interval: length of the bars; None takes the store's, or an hour.
        store: folder of the user's own bars, on which every row is tested, too.
        symbol: one symbol of the store; None takes all.
        seed: of random bars and changes.
        plugins: files or modules whose features are checked as well.

    Returns:
        0 when no feature leaks, 1 when one does.

    Raises:
        DataError: if the file cannot be run or registers nothing, or the store has no such bars.
        RangeError: if the stored bars are fewer than the lookback.
    """
    from stormsail.core.generators import Generators
    from stormsail.core.plugins import scope
    from stormsail.market.features import search_leaks

    bars = None if store is None else _stored(store, symbol, interval)
    with scope():
        features = _features(target, plugins, _interval(bars, interval))
        if bars is not None and target == DEFAULT:
            features = features.available(bars.columns)
        generator = Generators(seed).stream("check.features")
        report = search_leaks(features, interval=features.interval, generator=generator, bars=bars)
    _print(features, report, bars)
    return 0 if report.passed else 1


def _interval(bars: "BarTensors | None", interval: str | None) -> "Interval":
    from stormsail.market.interval import Interval

    return Interval.parse(interval or HOUR) if bars is None else bars.interval


def _stored(folder: Path, symbol: str | None, interval: str | None) -> "BarTensors":
    """Return the stored bars of one or all symbols, of the only interval or the one named."""
    from stormsail.core.errors import DataError
    from stormsail.market.features import BarTensors
    from stormsail.market.interval import Interval
    from stormsail.market.panel import load_panel
    from stormsail.market.store import Store

    store = Store(folder)
    held = [
        (name, length)
        for name, length in store.contents()
        if symbol in (None, name) and (interval is None or length == Interval.parse(interval))
    ]
    lengths = sorted({str(length) for _, length in held})
    if len(lengths) != 1:
        raise DataError(
            "data-missing",
            wrong=f"{folder} must hold bars of {symbol or 'some symbol'}, of one interval",
            found=f"bars of {', '.join(lengths)}" if lengths else "none",
            remedy="Name one with `--interval`." if lengths else "Import or fetch some first.",
        )
    panel = load_panel(store, [name for name, _ in held], held[0][1])
    return BarTensors.of(panel)


def _features(target: str | None, plugins: "Sequence[str]", interval: "Interval") -> "FeatureSet":
    from stormsail.core.errors import StormsailError
    from stormsail.market.features import FeatureSet, default_features
    from stormsail.market.features.catalogue import default_specs

    if target == DEFAULT and not plugins:
        return default_features(interval)
    files = [*plugins, *([] if target in (None, DEFAULT) else [str(target)])]
    added = [name for file in files for name in _registered(file)]
    try:
        plain = default_specs(interval) if target == DEFAULT else ()
        return FeatureSet([*plain, *added], interval=interval)
    except StormsailError:
        raise
    except Exception as error:  # a lookback is a user's function too
        raise _refused(files[-1], "must register features that bind", _named(error)) from error


def _registered(file: str) -> list[str]:
    """Run a plug-in; return the names of its features."""
    from stormsail.core.errors import ConfigError
    from stormsail.core.plugins import NOTHING, load

    if file.endswith(".py") and not Path(file).exists():
        raise _refused(file, "must be a Python file", "no file there")
    names = []
    try:
        (plugin,) = load([file])
        names = [name for kind, name in plugin.registered if kind == "feature"]
    except ConfigError as error:
        if error.found != NOTHING:
            must = f"must {error.wrong.partition(' must ')[2]}"
            raise _refused(file, must, error.found) from error
    if not names:
        raise _refused(file, "must register at least one feature", "none")
    return names


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _refused(target: str, must: str, found: str) -> Exception:
    from stormsail.core.errors import DataError

    return DataError(
        "feature-file",
        wrong=f"{target} {must}",
        found=found,
        remedy="Decorate a function with `@feature(name=..., lookback=...)`.",
    )


def _print(features: "FeatureSet", report: "LeakReport", bars: "BarTensors | None") -> None:
    from rich.console import Console

    from stormsail.cli.tables import Table

    publish(
        features=[
            {
                "feature": bound.label,
                "lookback": bound.lookback,
                "leaks": report.of(bound.label),
                "leaks_when": report.conditions.get(bound.label),
            }
            for bound in features.bound
        ],
        comparisons=report.comparisons,
        passed=report.passed,
    )
    own = "" if bars is None else f" and every row of {len(bars)} bars x {bars.symbols} symbols"
    title = f"random bars of many times, prices and lengths{own}: {report.comparisons} checks"
    table = Table("feature", "lookback", "leaks", "first", "leaks when", title=title)
    for bound in features.bound:
        leaks = report.of(bound.label)
        first = str(leaks[0]).partition(": ")[2] if leaks else ""
        count = ", ".join(leak.kind for leak in leaks) or "none"
        when = report.conditions.get(bound.label, "")
        table.add_row(bound.label, str(bound.lookback), count, first, when)
    console = Console()
    console.print(table)
    for leak in report.roundings:
        console.print(f"rounding, no leak: {leak}", markup=False, soft_wrap=True)
