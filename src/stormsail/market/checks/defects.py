"""The numbered list of everything that can be wrong with market data.

A number never changes its meaning and is never used twice: reports, logs and other people's notes
cite it. `docs/data_defects.md` explains each one; a test compares the page with this list.
"""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Defect:
    """One class of defect.

    Args:
        number: `D01` and so on.
        name: short name, as it is written in reports.
        severity: `error` refuses the data, `warning` is only stated. A finding may deviate where
            its evidence is weaker or stronger than usual.
        meaning: what it says about the data.
        remedy: what the owner of the data can do.
        rule: the `--repair` rule that takes it away, if there is one.
    """

    number: str
    name: str
    severity: Severity
    meaning: str
    remedy: str
    rule: str | None = None


_INVALID = "drop-invalid-rows"

DEFECTS: tuple[Defect, ...] = (
    # the file
    Defect("D01", "empty-file", "error", "There is no row.", "Download or export the file again."),
    Defect(
        "D02",
        "truncated-file",
        "error",
        "The file ends too early, or its checksum or structure is broken.",
        "Download it again; what can still be read is not trustworthy at its end.",
    ),
    Defect(
        "D03",
        "encoding",
        "error",
        "The text is not UTF-8, or begins with a byte-order mark (then only a warning).",
        "Export the file as UTF-8 without a byte-order mark.",
    ),
    Defect(
        "D04",
        "decimal-comma",
        "error",
        "Numbers are written with a comma where a point belongs.",
        "Export the file with decimal points; a comma may also be a separator of thousands.",
    ),
    Defect(
        "D05",
        "crlf",
        "warning",
        "Lines end with a carriage return.",
        "Nothing is lost; save the file with plain line feeds to be rid of the message.",
    ),
    Defect(
        "D06",
        "duplicate-header",
        "error",
        "A header stands among the rows, or a column name occurs twice.",
        "Several files were joined: look for further damage at the seams, then drop the headers.",
        "drop-duplicate-header",
    ),
    Defect(
        "D07",
        "missing-column",
        "error",
        "A column that every bar needs is not there.",
        "Take a source that has it; an absent column is never made up.",
    ),
    Defect(
        "D08",
        "extra-column",
        "warning",
        "There are columns that nobody reads.",
        "Nothing to do if they are not needed; otherwise rename them to known names.",
    ),
    Defect(
        "D09",
        "reordered-columns",
        "warning",
        "Known columns stand in an unusual order; they are read by name.",
        "Nothing to do, unless the header itself is wrong: compare a row with another source.",
    ),
    Defect(
        "D10",
        "swapped-columns",
        "error",
        "The values say that columns carry each other's names.",
        "Correct the header or the mapping of columns.",
    ),
    Defect(
        "D11",
        "row-claim",
        "error",
        "The file claims more rows or bytes than any bar file can have.",
        "Do not open it with other tools; download it again from a source that is trusted.",
    ),
    Defect(
        "D12",
        "one-row",
        "warning",
        "There is a single row, so nothing can be compared with anything.",
        "Export a longer period.",
    ),
    Defect(
        "D13",
        "ragged-row",
        "error",
        "Rows have more or fewer fields than the header.",
        "Export the file again; such rows cannot be read and are left out of the other checks.",
    ),
    # values
    Defect(
        "D14",
        "text-value",
        "error",
        "A column of numbers holds something else.",
        "Mend the source, or drop the rows.",
        _INVALID,
    ),
    Defect(
        "D15",
        "missing-value",
        "error",
        "A value is empty or not a number (NaN).",
        "Mend the source, or drop the rows: the gap then is visible.",
        _INVALID,
    ),
    Defect("D16", "infinite-value", "error", "A value is infinite.", "Mend the source.", _INVALID),
    Defect(
        "D17", "negative-price", "error", "A price is below zero.", "Mend the source.", _INVALID
    ),
    Defect("D18", "zero-price", "error", "A price is zero.", "Mend the source.", _INVALID),
    Defect(
        "D19",
        "high-below-low",
        "error",
        "The high of a bar is below its low.",
        "Mend the source, or drop the rows.",
        _INVALID,
    ),
    Defect(
        "D20",
        "outside-range",
        "error",
        "Open or close lies outside the range between low and high.",
        "Mend the source, or drop the rows; prices are never clipped.",
        _INVALID,
    ),
    Defect(
        "D21",
        "negative-volume",
        "error",
        "A volume or a count is below zero.",
        "Mend the source, or drop the rows.",
        _INVALID,
    ),
    Defect(
        "D22",
        "taker-above-volume",
        "error",
        "Takers bought more than was traded.",
        "Check which columns were mapped to the taker volumes.",
    ),
    Defect(
        "D23",
        "vwap-outside-range",
        "warning",
        "Quote volume over volume is no price between low and high.",
        "Check the units: contracts, coins and money are easily mistaken for one another.",
    ),
    Defect(
        "D24",
        "trades-without-volume",
        "warning",
        "There are trades without volume, volume without trades, or a move without volume.",
        "Compare with another source.",
    ),
    Defect(
        "D25",
        "float32-values",
        "warning",
        "Prices have been through single precision and carry its rounding, about 6e-8 of a price.",
        "Take a source that kept the digits.",
    ),
    # times
    Defect(
        "D26",
        "time-unit",
        "error",
        "All times are seconds, microseconds or nanoseconds instead of milliseconds.",
        "Convert them to milliseconds.",
        "time-unit",
    ),
    Defect(
        "D27",
        "mixed-time-units",
        "error",
        "The unit of the times changes inside the file.",
        "Convert every row by its own unit.",
        "time-unit",
    ),
    Defect(
        "D28",
        "naive-time",
        "error",
        "Times name no time zone.",
        "Find out the zone; if it is UTC, say so with `--time-unit iso`, or export them with `Z`.",
    ),
    Defect(
        "D29",
        "misaligned-bar",
        "error",
        "A bar does not open at a multiple of the interval.",
        "Check the interval and the time zone; half-hour zones shift every bar.",
    ),
    Defect(
        "D30",
        "close-labels",
        "error",
        "Bars are labelled by their last millisecond instead of their open time.",
        "Move the labels back by one interval less a millisecond.",
        "close-to-open",
    ),
    Defect(
        "D31",
        "leap-second",
        "error",
        "Times contain a leap second: a `:60`, or rows that are exactly one second off.",
        "Export the times from a clock that follows UTC.",
    ),
    Defect(
        "D32",
        "out-of-order",
        "error",
        "Rows are older than a row before them.",
        "Sort them, if no other finding speaks against it.",
        "sort",
    ),
    Defect(
        "D33",
        "duplicate-same",
        "error",
        "A row is there more than once, with the same values.",
        "Keep the first.",
        "drop-duplicates",
    ),
    Defect(
        "D34",
        "duplicate-different",
        "error",
        "Two rows have the same time and different values.",
        "Find out which one is right; nobody else can.",
    ),
    Defect(
        "D35",
        "gap",
        "warning",
        "Bars are missing.",
        "Fetch the missing span; if the exchange was down, gaps stay gaps and are never filled.",
    ),
    Defect(
        "D36",
        "mixed-intervals",
        "error",
        "Some or all bars have another length.",
        "Name the right interval, or split the file.",
    ),
    Defect(
        "D37",
        "shifted-block",
        "error",
        "A block of rows is shifted by whole quarters of an hour, as another time zone would do.",
        "Export the file in UTC; sorting would mix the shifted rows with the others.",
    ),
    Defect(
        "D38",
        "dst-hole",
        "warning",
        "Exactly the hour that clocks skip in spring is missing: times may be local.",
        "Export the file in UTC.",
    ),
    Defect(
        "D39",
        "dst-duplicate",
        "error",
        "Exactly the hour that clocks repeat in autumn is there twice: times are local.",
        "Export the file in UTC.",
    ),
    Defect(
        "D40",
        "unclosed-bar",
        "error",
        "The last bar had not closed when the data were taken.",
        "Drop it; it will be there, whole, the next time.",
        "drop-last-unclosed",
    ),
    Defect(
        "D41",
        "future-time",
        "error",
        "Bars open after the present.",
        "Check clock, time zone and unit of the source.",
    ),
    # levels
    Defect(
        "D42",
        "stuck-price",
        "warning",
        "Many bars in a row show one single price although something was traded.",
        "Compare with another source.",
    ),
    Defect(
        "D43",
        "zero-volume",
        "warning",
        "Bars without any volume: an outage, a halt, or a market where nobody traded.",
        "Do not trade on them; compare a long run with another source.",
    ),
    Defect(
        "D44",
        "spike",
        "warning",
        "A price leaves its level and is back within two bars.",
        "Compare with another source; some flash crashes are real.",
    ),
    Defect(
        "D45",
        "scale-change",
        "warning",
        "The price level changes between two bars by a round factor, and prices go on from there.",
        "Find the split, the redenomination or the change of unit, and rescale one side.",
    ),
    Defect(
        "D46",
        "symbol-swap",
        "warning",
        "The price level breaks between two bars, as if rows of another instrument were here.",
        "Compare the rows with their source; do not train on them.",
    ),
    Defect(
        "D47",
        "funding-rate",
        "warning",
        "Funding rates are implausibly large: percent or basis points instead of fractions?",
        "Divide them by 100 or by 10,000, or compare with another source.",
    ),
    Defect(
        "D48",
        "false-wick",
        "warning",
        "A high or low lies far outside of what its neighbours, bodies and volume bear out.",
        "Compare with the mark price or another venue (`--reference`): it may end a position.",
    ),
    Defect(
        "D49",
        "funding-coverage",
        "warning",
        "A stored perpetual has rates for less than 99 % of the settlements of its bars.",
        "Import or fetch the rates; until then training and backtests refuse the symbol.",
    ),
)

BY_NAME = {defect.name: defect for defect in DEFECTS}
BY_NUMBER = {defect.number: defect for defect in DEFECTS}
