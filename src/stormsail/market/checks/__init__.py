"""Data checks: find defects in bars and funding rates of any source; repair only by named rules."""

from stormsail.market.checks.defects import BY_NAME, BY_NUMBER, DEFECTS, Defect
from stormsail.market.checks.files import (
    SUFFIXES,
    Loaded,
    Reading,
    check_file,
    check_loaded,
    interval_of,
    load_file,
    read_reference,
)
from stormsail.market.checks.repair import RULES, repair, repair_file
from stormsail.market.checks.report import Finding, Place, Report
from stormsail.market.checks.table import (
    check_bars,
    check_funding,
    check_funding_table,
    check_table,
)
from stormsail.market.checks.wicks import Reference

__all__ = [
    "BY_NAME",
    "BY_NUMBER",
    "DEFECTS",
    "RULES",
    "SUFFIXES",
    "Defect",
    "Finding",
    "Loaded",
    "Place",
    "Reading",
    "Reference",
    "Report",
    "check_bars",
    "check_file",
    "check_funding",
    "check_funding_table",
    "check_loaded",
    "check_table",
    "interval_of",
    "load_file",
    "read_reference",
    "repair",
    "repair_file",
]
