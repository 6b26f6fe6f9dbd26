"""Clean bars from a seed, and the same bars with one planted defect of every class."""

import gzip
import io
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import scipy

from stormsail.market.interval import Interval

Bars = dict[str, np.ndarray]

PRICES = ("open", "high", "low", "close")
FLOWS = ("volume", "quote_volume", "trades", "taker_buy_base", "taker_buy_quote")
START_MS = 1_609_459_200_000  # 2021-01-01T00:00:00Z, a Friday
HOUR_MS = 3_600_000


def stream(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def clean_bars(seed: int, interval: Interval, rows: int = 1500) -> Bars:
    """Return bars as a healthy market would write them.

    Log volatility is an AR(1) process and shocks have Student-t tails with 4 degrees of freedom, so
    there are clusters and jumps. Prices are rounded to cents, opens lie a fraction of a basis point
    from the close before them, volume follows volatility, average prices lie inside their bars.
    """
    rng = stream(seed)
    length = interval.milliseconds
    day = 0.04 * np.exp(rng.normal(0.0, 0.3))
    calm = scipy.signal.lfilter([1.0], [1.0, -0.98], rng.normal(0.0, 0.12, rows))
    sigma = day * np.sqrt(length / 86_400_000) * np.exp(np.clip(calm, -1.2, 1.2))
    move = np.clip(sigma * rng.standard_t(4, rows) / np.sqrt(2.0), -0.7, 0.7)
    close = np.exp(rng.uniform(8.0, 10.5) + np.cumsum(move - np.mean(move)))
    before = np.concatenate((close[:1] * np.exp(-move[:1]), close[:-1]))
    opening = before * np.exp(rng.normal(0.0, 2e-5, rows))
    high = np.maximum(opening, close) * np.exp(np.abs(rng.normal(0.0, 0.6, rows)) * sigma)
    low = np.minimum(opening, close) * np.exp(-np.abs(rng.normal(0.0, 0.6, rows)) * sigma)
    o, h, low, c = (np.round(x, 2) for x in (opening, high, low, close))
    h, low = np.maximum(h, np.maximum(o, c)) + 0.01, np.minimum(low, np.minimum(o, c))
    h = np.round(h, 2)
    volume = np.round(rng.lognormal(4.0, 0.8, rows) * np.exp(0.5 * calm) + 0.01, 3)
    average = low + (h - low) * rng.uniform(0.2, 0.8, rows)
    taker = np.round(volume * rng.uniform(0.3, 0.7, rows), 3)
    start = START_MS + int(rng.integers(0, 500)) * 86_400_000
    start -= (start - interval.origin_ms) % length
    return {
        "ts": start + np.arange(rows) * length,
        **{"open": o, "high": h, "low": low, "close": c},
        "volume": volume,
        "quote_volume": np.round(volume * average, 8),
        "trades": np.maximum(1, rng.poisson(volume * 3.0)).astype(np.int64),
        "taker_buy_base": taker,
        "taker_buy_quote": np.round(taker * average, 8),
    }


@dataclass(frozen=True)
class Case:
    """Bars or bytes with one defect.

    Args:
        number: class that must be reported.
        row: row at which it must be reported first; -1 for the file as a whole.
        severity: how it must be reported.
        bars: columns to check as a table, unless there are bytes.
        content: bytes to check as a file.
        suffix: how the file's name ends.
        now_ms: the present.
        with_it: other classes that are true of the same data.
    """

    number: str
    row: int
    severity: str = "error"
    bars: dict[str, object] | None = None
    content: bytes | None = None
    suffix: str = ".csv"
    now_ms: int | None = None
    with_it: frozenset[str] = field(default_factory=frozenset)

    def table(self) -> pa.Table:
        assert self.bars is not None
        return pa.table(self.bars)


@dataclass(frozen=True)
class World:
    """What a planter works on."""

    bars: Bars
    interval: Interval
    rng: np.random.Generator

    @property
    def rows(self) -> int:
        return len(self.bars["ts"])

    @property
    def length(self) -> int:
        return self.interval.milliseconds

    def somewhere(self, margin: int = 50) -> int:
        return int(self.rng.integers(margin, self.rows - margin))

    def with_times(self, ts: np.ndarray) -> Bars:
        return {**self.bars, "ts": ts}

    def copy(self) -> Bars:
        return {name: column.copy() for name, column in self.bars.items()}

    def take(self, rows: np.ndarray) -> Bars:
        return {name: column[rows] for name, column in self.bars.items()}


Planter = Callable[[World], Case]
PLANTERS: dict[str, Planter] = {}
INTRADAY = set()
"""Planters that make sense for bars of an hour or less."""


def plants(name: str, *, intraday: bool = False) -> Callable[[Planter], Planter]:
    def register(planter: Planter) -> Planter:
        PLANTERS[name] = planter
        if intraday:
            INTRADAY.add(name)
        return planter

    return register


def planted(name: str, seed: int, interval: Interval) -> Case:
    """Return the bars of a seed with one defect."""
    rng = stream(1_000_000 + seed)
    return PLANTERS[name](World(clean_bars(seed, interval), interval, rng))


def names_for(interval: Interval) -> Iterator[str]:
    """Yield the planters that apply to an interval."""
    for name in PLANTERS:
        if interval.milliseconds <= HOUR_MS or name not in INTRADAY:
            yield name


# values


def _cell(number: str, column: str, value: Callable[[float], float], **more: object) -> Planter:
    def planter(world: World) -> Case:
        bars, row = world.copy(), world.somewhere()
        bars[column] = bars[column].astype(float)
        bars[column][row] = value(bars[column][row])
        return Case(number, row, bars=bars, **more)

    return planter


for _column in ("open", "high", "low", "close", "volume", "taker_buy_base"):
    PLANTERS[f"nan-{_column}"] = _cell("D15", _column, lambda _: np.nan)
PLANTERS["nan-ts"] = _cell("D15", "ts", lambda _: np.nan, with_it=frozenset({"D35", "D38"}))
PLANTERS["infinite-high"] = _cell("D16", "high", lambda _: np.inf)
PLANTERS["infinite-low"] = _cell("D16", "low", lambda _: -np.inf, with_it=frozenset({"D17"}))
PLANTERS["infinite-volume"] = _cell("D16", "volume", lambda _: np.inf)
PLANTERS["negative-price"] = _cell("D17", "low", lambda x: -x)
PLANTERS["zero-price"] = _cell("D18", "low", lambda _: 0.0)
PLANTERS["negative-volume"] = _cell("D21", "volume", lambda x: -x, with_it=frozenset({"D22"}))
PLANTERS["negative-trades"] = _cell("D21", "trades", lambda x: -x)
PLANTERS["taker-above-volume"] = _cell(
    "D22", "taker_buy_quote", lambda x: 9.0 * x, with_it=frozenset({"D23"})
)
PLANTERS["vwap"] = _cell("D23", "quote_volume", lambda x: 3.0 * x, severity="warning")
PLANTERS["vwap-below"] = _cell(
    "D23", "quote_volume", lambda x: 0.8 * x, severity="warning", with_it=frozenset({"D22"})
)
PLANTERS["no-trades"] = _cell("D24", "trades", lambda _: 0, severity="warning")
PLANTERS["false-high"] = _cell("D48", "high", lambda x: 2.5 * x, severity="warning")
PLANTERS["false-low"] = _cell("D48", "low", lambda x: x / 2.5, severity="warning")
PLANTERS["wick"] = _cell("D44", "high", lambda x: 10.0 * x, severity="warning")


@plants("null")
def _null(world: World) -> Case:
    row = world.somewhere()
    close = [None if i == row else x for i, x in enumerate(world.bars["close"].tolist())]
    return Case("D15", row, bars={**world.bars, "close": close})


@plants("text")
def _text(world: World) -> Case:
    row = world.somewhere()
    close = [str(x) for x in world.bars["close"]]
    close[row] = ["n/a", "-", "1.2.3", "12e", "0x10", "--1"][int(world.rng.integers(6))]
    return Case("D14", row, bars={**world.bars, "close": close})


@plants("text-time")
def _text_time(world: World) -> Case:
    row = world.somewhere()
    ts = [str(x) for x in world.bars["ts"]]
    ts[row] = ["yesterday", "12:00", "2021-13-45 00:00:00Z"][int(world.rng.integers(3))]
    return Case("D14", row, bars={**world.bars, "ts": ts}, with_it=frozenset({"D35", "D38"}))


@plants("high-below-low")
def _inverted(world: World) -> Case:
    bars, row = world.copy(), world.somewhere()
    bars["high"][row], bars["low"][row] = bars["low"][row], bars["high"][row] + 0.01
    return Case("D19", row, bars=bars, with_it=frozenset({"D23"}))


@plants("close-outside")
def _outside(world: World) -> Case:
    bars, row = world.copy(), world.somewhere()
    bars["close"][row] = bars["high"][row] * 1.01
    return Case("D20", row, bars=bars, with_it=frozenset({"D44"}))  # of a wide bar it is both


@plants("open-outside")
def _open_outside(world: World) -> Case:
    bars, row = world.copy(), world.somewhere()
    bars["open"][row] = bars["low"][row] * 0.99
    return Case("D20", row, bars=bars)


@plants("move-without-volume")
def _move(world: World) -> Case:
    bars, row = world.copy(), world.somewhere()
    for name in FLOWS:
        bars[name][row] = 0
    return Case("D24", row, "warning", bars, with_it=frozenset({"D43"}))


@plants("float32")
def _single(world: World) -> Case:
    single = {name: world.bars[name].astype(np.float32).astype(float) for name in PRICES}
    return Case("D25", -1, "warning", {**world.bars, **single})


@plants("float32-type")
def _single_type(world: World) -> Case:
    single = {name: world.bars[name].astype(np.float32) for name in PRICES}
    return Case("D25", -1, "warning", {**world.bars, **single})


# columns


def _swap(first: str, second: str) -> Planter:
    def planter(world: World) -> Case:
        bars = world.copy()
        bars[first], bars[second] = bars[second], bars[first]
        return Case("D10", 0, bars=bars)

    return planter


for _pair in (("high", "low"), ("open", "close"), ("close", "volume"), ("open", "high")):
    PLANTERS["swapped-" + "-".join(_pair)] = _swap(*_pair)


@plants("missing-column")
def _missing(world: World) -> Case:
    name = ("ts", "open", "volume", "close")[int(world.rng.integers(4))]
    bars = {key: column for key, column in world.bars.items() if key != name}
    return Case("D07", -1, bars=bars)


@plants("extra-column")
def _extra(world: World) -> Case:
    return Case("D08", -1, "warning", {**world.bars, "signal": world.bars["close"]})


@plants("reordered-columns")
def _reordered(world: World) -> Case:
    names = ["ts", "open", "close", "low", "high", *FLOWS]
    return Case("D09", -1, "warning", {name: world.bars[name] for name in names})


@plants("duplicate-name")
def _duplicate_name(world: World) -> Case:
    head, body = csv(world.bars).split(b"\n", 1)
    return Case(
        "D06", -1, content=head.replace(b"low", b"high") + b"\n" + body, with_it=frozenset({"D07"})
    )


# times


@plants("gap")
def _gap(world: World) -> Case:
    row, lost = world.somewhere(), int(world.rng.integers(2, 20))
    keep = np.r_[0:row, row + lost : world.rows]
    return Case("D35", row, "warning", world.take(keep))


@plants("duplicate-same")
def _twice(world: World) -> Case:
    row = world.somewhere()
    return Case("D33", row + 1, bars=world.take(np.r_[0 : row + 1, row : world.rows]))


@plants("duplicate-same-far")
def _twice_far(world: World) -> Case:
    row = world.somewhere()
    bars = world.take(np.r_[0 : world.rows, row])
    return Case("D33", world.rows, bars=bars, with_it=frozenset({"D32"}))


@plants("duplicate-different")
def _revised(world: World) -> Case:
    row = world.somewhere()
    bars = world.take(np.r_[0 : row + 1, row : world.rows])
    bars["trades"][row + 1] += 1
    return Case("D34", row + 1, bars=bars)


@plants("out-of-order")
def _disorder(world: World) -> Case:
    row = world.somewhere()
    order = np.arange(world.rows)
    order[[row, row + 1]] = order[[row + 1, row]]
    return Case("D32", row + 1, bars=world.take(order))


@plants("reversed")
def _reversed(world: World) -> Case:
    return Case("D32", 1, bars=world.take(np.arange(world.rows)[::-1]))


def _units(factor: float, number: str = "D26") -> Planter:
    def planter(world: World) -> Case:
        ts = world.bars["ts"].copy()
        row = 0 if number == "D26" else world.somewhere()
        changed = ts[row:] * int(factor) if factor > 1 else ts[row:] // int(1 / factor)
        return Case(number, row, bars=world.with_times(np.concatenate((ts[:row], changed))))

    return planter


for _name, _factor in (("s", 1e-3), ("us", 1e3), ("ns", 1e6)):
    PLANTERS[f"time-unit-{_name}"] = _units(_factor)
    PLANTERS[f"mixed-units-{_name}"] = _units(_factor, "D27")


@plants("naive-time")
def _naive(world: World) -> Case:
    ts = [str(np.datetime64(int(x), "ms"))[:19].replace("T", " ") for x in world.bars["ts"]]
    return Case("D28", -1, "error", {**world.bars, "ts": ts})


@plants("naive-type")
def _naive_type(world: World) -> Case:
    return Case("D28", -1, "error", world.with_times(world.bars["ts"].astype("datetime64[ms]")))


@plants("misaligned")
def _misaligned(world: World) -> Case:
    row, ts = world.somewhere(), world.bars["ts"].copy()
    ts[row] += world.length // 7
    return Case("D29", row, bars=world.with_times(ts))


@plants("half-hour-zone")
def _half_hour(world: World) -> Case:
    offset = 19_800_000 if world.length > 1_800_000 else world.length // 2
    return Case("D29", 0, bars=world.with_times(world.bars["ts"] + offset))


@plants("close-labels")
def _closing(world: World) -> Case:
    return Case("D30", 0, bars=world.with_times(world.bars["ts"] + world.length - 1))


@plants("leap-offset")
def _leap(world: World) -> Case:
    row, ts = world.somewhere(), world.bars["ts"].copy()
    ts[row:] += 1000
    return Case("D31", row, bars=world.with_times(ts))


@plants("leap-text")
def _leap_text(world: World) -> Case:
    row = world.somewhere()
    ts = [f"{np.datetime64(int(x), 's')}Z" for x in world.bars["ts"] // 1000]
    before = np.datetime64(int(world.bars["ts"][row]) // 1000 - 1, "s")
    ts[row] = f"{str(before)[:-2]}60Z"
    return Case("D31", row, bars={**world.bars, "ts": ts})


def _other_steps(factor: float) -> Planter:
    def planter(world: World) -> Case:
        row, ts = world.somewhere(), world.bars["ts"].copy()
        count = np.arange(1, world.rows - row)
        ts[row + 1 :] = ts[row] + (count * world.length * factor).astype(np.int64)
        return Case("D36", row + 1, bars=world.with_times(ts))

    return planter


PLANTERS["coarser-tail"] = _other_steps(4.0)
PLANTERS["finer-tail"] = _other_steps(0.25)


@plants("wrong-interval")
def _wrong(world: World) -> Case:
    start = world.bars["ts"][0]
    return Case("D36", 0, bars=world.with_times(start + (world.bars["ts"] - start) // 4))


@plants("shifted-block", intraday=True)
def _shifted(world: World) -> Case:
    row = world.somewhere(100)
    hours = int(world.rng.integers(1, 6)) * (1 if world.rng.random() < 0.5 else -1)
    size = abs(hours) * HOUR_MS // world.length + 40
    row = min(max(row, size), world.rows - 2 * size)
    ts = world.bars["ts"].copy()
    ts[row : row + size] += hours * HOUR_MS
    return Case("D37", row, bars=world.with_times(ts))


@plants("shifted-block-sorted", intraday=True)
def _shifted_sorted(world: World) -> Case:
    case = _shifted(world)
    assert case.bars is not None
    order = np.argsort(case.bars["ts"], kind="stable")
    bars = {name: column[order] for name, column in case.bars.items()}
    return replace(case, bars=bars, row=int(np.flatnonzero(order == case.row)[0]))


def _local(number: str, severity: str, sunday_ms: int, sign: int) -> Planter:
    def planter(world: World) -> Case:
        ts = world.bars["ts"]
        start = sunday_ms - int(world.rng.integers(300, 900)) * world.length
        ts = start - start % world.length + np.arange(world.rows) * world.length
        row = int(np.searchsorted(ts, sunday_ms))
        return Case(
            number, row, severity, world.with_times(ts + sign * HOUR_MS * (ts >= sunday_ms))
        )

    return planter


# Central Europe 2021: at 02:00 local time clocks skip to 03:00, at 03:00 they go back to 02:00.
PLANTERS["dst-hole"] = _local("D38", "warning", 1_616_896_800_000, 1)
PLANTERS["dst-duplicate"] = _local("D39", "error", 1_635_649_200_000, -1)
INTRADAY |= {"dst-hole", "dst-duplicate"}


@plants("unclosed")
def _unclosed(world: World) -> Case:
    now = int(world.bars["ts"][-1]) + world.length // 2
    return Case("D40", world.rows - 1, bars=world.bars, now_ms=now)


@plants("future")
def _future(world: World) -> Case:
    now = int(world.bars["ts"][-1]) - 3 * world.length - world.length // 2
    with_it = frozenset({"D40"})
    return Case("D41", world.rows - 4, bars=world.bars, now_ms=now, with_it=with_it)


# levels


def _scaled(bars: Bars, rows: slice, factor: float) -> None:
    for name in (*PRICES, "quote_volume", "taker_buy_quote"):
        bars[name] = bars[name].astype(float)
        bars[name][rows] *= factor


@plants("stuck")
def _stuck(world: World) -> Case:
    bars, row = world.copy(), world.somewhere()
    rows = slice(row, row + 20)
    price = bars["close"][row]
    for name in PRICES:
        bars[name][rows] = price
    bars["quote_volume"][rows] = bars["volume"][rows] * price
    bars["taker_buy_quote"][rows] = bars["taker_buy_base"][rows] * price
    return Case("D42", row, "warning", bars, with_it=frozenset({"D44"}))  # it ends with a step


@plants("outage")
def _outage(world: World) -> Case:
    bars, row = world.copy(), world.somewhere()
    rows = slice(row, row + int(world.rng.integers(1, 20)))
    for name in PRICES:
        bars[name][rows] = bars["close"][row - 1]
    for name in FLOWS:
        bars[name][rows] = 0
    return Case("D43", row, "warning", bars)


def _spiked(bars_long: int) -> Planter:
    def planter(world: World) -> Case:
        bars, row = world.copy(), world.somewhere()
        up = world.rng.random() < 0.5
        size = float(world.rng.uniform(3.0, 8.0)) if up else float(world.rng.uniform(0.1, 0.33))
        _scaled(bars, slice(row, row + bars_long), size)
        return Case("D44", row, "warning", bars)

    return planter


PLANTERS["spike"] = _spiked(1)
PLANTERS["spike-of-two"] = _spiked(2)


@plants("bad-close")
def _bad_close(world: World) -> Case:
    bars, row = world.copy(), world.somewhere()
    bars["close"][row] *= 3.5
    bars["high"][row] = bars["close"][row]
    return Case("D44", row, "warning", bars)


@plants("bad-open")
def _bad_open(world: World) -> Case:
    bars, row = world.copy(), world.somewhere()
    bars["open"][row] *= 3.5
    bars["high"][row] = bars["open"][row]
    return Case("D44", row, "warning", bars)


@plants("scale-change")
def _rescaled(world: World) -> Case:
    bars, row = world.copy(), world.somewhere()
    power = [-3, -2, -1, 1, 2, 3][int(world.rng.integers(6))]
    _scaled(bars, slice(row, None), 10.0**power)
    return Case("D45", row, "error", bars)


@plants("split")
def _split(world: World) -> Case:
    bars, row = world.copy(), world.somewhere()
    _scaled(bars, slice(row, None), 1.0 / [4, 5, 20][int(world.rng.integers(3))])
    return Case("D45", row, "warning", bars)


@plants("symbol-swap")
def _swapped_symbol(world: World) -> Case:
    bars, row = world.copy(), world.somewhere(150)
    factor = float(world.rng.uniform(0.03, 0.07))
    _scaled(bars, slice(row, row + int(world.rng.integers(5, 100))), factor)
    return Case("D46", row, "error", bars)


@plants("foreign-tail")
def _tail(world: World) -> Case:
    bars, row = world.copy(), world.somewhere()
    _scaled(bars, slice(row, None), float(world.rng.uniform(0.055, 0.061)))
    return Case("D46", row, "warning", bars)


# files


def csv(bars: Bars, *, separator: str = ",") -> bytes:
    """Return bars as a CSV file."""
    columns = [[_written(x) for x in column.tolist()] for column in bars.values()]
    lines = [separator.join(bars), *(separator.join(line) for line in zip(*columns, strict=True))]
    return "".join(f"{line}\n" for line in lines).encode()


def _written(x: float) -> str:
    return str(x) if isinstance(x, int) else repr(x)


def parquet(bars: Bars) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(bars), sink)
    return sink.getvalue()


def feather(bars: Bars) -> bytes:
    sink = io.BytesIO()
    pyarrow.feather.write_feather(pa.table(bars), sink)
    return sink.getvalue()


def zipped(content: bytes) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bars.csv", content)
    return sink.getvalue()


def gzipped(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


FORMATS: dict[str, tuple[str, Callable[[Bars], bytes]]] = {
    "csv": (".csv", csv),
    "csv-zip": (".zip", lambda bars: zipped(csv(bars))),
    "csv-gz": (".csv.gz", lambda bars: gzipped(csv(bars))),
    "parquet": (".parquet", parquet),
    "feather": (".feather", feather),
    "csv-semicolon": (".csv", lambda bars: csv(bars, separator=";")),
}


@plants("empty-file")
def _empty(_world: World) -> Case:
    return Case("D01", -1, content=b"")


@plants("header-only")
def _header_only(world: World) -> Case:
    return Case("D01", -1, content=csv(world.bars).split(b"\n")[0] + b"\n")


@plants("empty-table")
def _no_rows(world: World) -> Case:
    return Case("D01", -1, content=parquet(world.take(np.arange(0))), suffix=".parquet")


def _cut(kind: str) -> Planter:
    def planter(world: World) -> Case:
        suffix, write = FORMATS[kind]
        content = write(world.bars)
        if kind == "csv":
            end = (
                content.rfind(b",") if world.rng.random() < 0.5 else content[:-1].rfind(b"\n") + 20
            )
            return Case("D02", -1, content=content[:end], suffix=suffix)
        at = int(world.rng.integers(len(content) // 3, len(content) - 9))
        return Case("D02", -1, content=content[:at], suffix=suffix)

    return planter


for _kind in ("csv", "csv-zip", "csv-gz", "parquet", "feather"):
    PLANTERS[f"truncated-{_kind}"] = _cut(_kind)


@plants("byte-order-mark")
def _mark(world: World) -> Case:
    return Case("D03", -1, "warning", content=b"\xef\xbb\xbf" + csv(world.bars))


@plants("utf-16")
def _utf16(world: World) -> Case:
    return Case("D03", -1, content=csv(world.bars).decode().encode("utf-16"))


@plants("latin-1")
def _latin(world: World) -> Case:
    lines = csv({**world.bars, "remark": world.bars["ts"]}).decode().split("\n")
    row = world.somewhere()
    lines[row] = lines[row].rsplit(",", 1)[0] + ",caf\u00e9"
    content = "\n".join(lines).encode("latin-1")
    return Case("D03", -1, content=content, with_it=frozenset({"D08"}))


@plants("decimal-comma-quoted")
def _comma_semicolon(world: World) -> Case:
    content = csv(world.bars, separator=";").replace(b".", b",")
    return Case("D04", 0, content=content, with_it=frozenset({"D15"}))


@plants("decimal-comma-bare")
def _comma_bare(world: World) -> Case:
    return Case("D04", 0, content=csv(world.bars).replace(b".", b","))


@plants("crlf")
def _crlf(world: World) -> Case:
    return Case("D05", -1, "warning", content=csv(world.bars).replace(b"\n", b"\r\n"))


@plants("duplicate-header")
def _header(world: World) -> Case:
    lines = csv(world.bars).split(b"\n")
    row = 0 if world.rng.random() < 0.5 else world.somewhere()
    content = b"\n".join([*lines[: row + 1], lines[0], *lines[row + 1 :]])
    if row == 0:  # twice at the top: it is read once, and nothing else is wrong
        return Case("D06", -1, "warning", content=content)
    return Case("D06", row, content=content)


@plants("row-claim-parquet")
def _claim(world: World) -> Case:
    content = parquet(world.bars)
    length = struct.unpack("<I", content[-8:-4])[0]
    footer = content[-8 - length : -8]
    old = b"\x16" + _varint(2 * world.rows)  # field 3 of the footer: the number of rows
    assert old in footer
    footer = footer.replace(old, b"\x16" + _varint(2 * 10**12), 1)
    tail = struct.pack("<I", len(footer)) + b"PAR1"
    return Case("D11", -1, content=content[: -8 - length] + footer + tail, suffix=".parquet")


def _varint(number: int) -> bytes:
    result = b""
    while number > 0x7F:
        result += bytes([number & 0x7F | 0x80])
        number >>= 7
    return result + bytes([number])


@plants("row-claim-gzip")
def _bomb(_world: World) -> Case:
    return Case("D11", -1, content=bomb(), suffix=".csv.gz")


@cache
def bomb() -> bytes:
    return gzip.compress(b"0" * (80 << 20), 1, mtime=0)


@plants("one-row")
def _single_row(world: World) -> Case:
    return Case("D12", -1, "warning", content=csv(world.take(np.arange(1))))


@plants("ragged")
def _ragged(world: World) -> Case:
    lines = csv(world.bars).split(b"\n")
    row = world.somewhere()
    lines[row + 1] = lines[row + 1].rsplit(b",", 2)[0]
    return Case("D13", row, content=b"\n".join(lines), with_it=frozenset({"D35", "D38"}))
