"""`stormsail check --features`: test features for look-ahead."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stormsail.market.features import FeatureSet
    from stormsail.market.features.leaks import LeakReport
    from stormsail.market.interval import Interval

DEFAULT = "default"
"""Stands for the features that come with the package."""

SYMBOLS = 3
CUTS = 20


def run(target: str, *, cuts: int = CUTS, interval: str = "1h", seed: int = 0) -> int:
    """Check the default features, or those that a Python file registers; print a table.

    The file is run, as `python my_features.py` would run it: check only files that you would run.

    Args:
        target: `default`, or the path of a file with `@feature` functions.
        cuts: at how many rows the future is changed.
        interval: length of the synthetic bars.
        seed: of the bars, the cuts and the noise.

    Returns:
        0 when no feature leaks, 1 when one does.

    Raises:
        DataError: if the file cannot be run or registers nothing.
    """
    from stormsail.core.generators import Generators
    from stormsail.market.features import REGISTRY
    from stormsail.market.features.leaks import check_leaks, draw_cuts
    from stormsail.market.features.sample import sample_bars
    from stormsail.market.interval import Interval

    length = Interval.parse(interval)
    with REGISTRY.scope():
        features = _features(target, length)
        generator = Generators(seed).stream("check.features")
        rows = 3 * features.lookback + 256
        bars = sample_bars(rows=rows, symbols=SYMBOLS, interval=length, generator=generator)
        where = draw_cuts(bars, count=cuts, least=features.lookback - 1, generator=generator)
        report = check_leaks(features, bars, cuts=where, generator=generator)
    _print(features, report, rows)
    return 0 if report.passed else 1


def _features(target: str, interval: "Interval") -> "FeatureSet":
    from stormsail.core.errors import StormsailError
    from stormsail.market.features import REGISTRY, FeatureSet, default_features

    if target == DEFAULT:
        return default_features(interval)
    before = set(REGISTRY.names())
    _run_file(Path(target))
    added = [name for name in REGISTRY.names() if name not in before]
    if not added:
        raise _refused(target, "must register at least one feature", "none")
    try:
        return FeatureSet(added, interval=interval)
    except StormsailError:
        raise
    except Exception as error:  # a lookback is a user's function too
        raise _refused(target, "must register features that bind", _named(error)) from error


def _run_file(path: Path) -> None:
    from runpy import run_path

    from stormsail.core.errors import StormsailError

    if not path.is_file():
        raise _refused(str(path), "must be a Python file", "no file there")
    try:
        run_path(str(path), run_name="stormsail_features")
    except StormsailError:
        raise  # says already what must change
    except (Exception, SystemExit) as error:  # a user's file may raise anything
        raise _refused(str(path), "must run", _named(error)) from error


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


def _print(features: "FeatureSet", report: "LeakReport", rows: int) -> None:
    from rich.console import Console
    from rich.table import Table

    title = f"{rows} bars x {SYMBOLS} symbols, {len(report.cuts)} cuts, {report.comparisons} checks"
    table = Table("feature", "lookback", "leaks", "first", title=title)
    for bound in features.bound:
        leaks = report.of(bound.label)
        first = str(leaks[0]).partition(": ")[2] if leaks else ""
        table.add_row(bound.label, str(bound.lookback), str(len(leaks)) if leaks else "none", first)
    Console().print(table)
