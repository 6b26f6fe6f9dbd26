"""The tables of docs/evidence.md are those of the rows beside it."""

import json
from pathlib import Path

import pytest

from stormsail.bench.risk import frontier, frontier_verdicts, tails, tails_verdicts

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "evidence.md").read_text().replace("−", "-")


def rows(name, kind):
    return [kind(**one) for one in json.loads((DOCS / "evidence" / name).read_text())["rows"]]


@pytest.mark.parametrize(
    "name", ["frontier.json", "frontier_600k.json", "frontier_unwarned.json", "penalties_600k.json"]
)
def test_every_kind_of_agent_stands_in_the_text_with_its_figures(name):
    lines = frontier_verdicts.summaries(rows(name, frontier.Row))
    assert {line.seeds for line in lines} == {5}
    for line in lines:
        if line.key.scale == 1.0:
            cells = f"| {line.mean} | {line.cvar.mean:.3f} ± {line.cvar.half:.3f} |"
            assert cells in TEXT, line.key


def test_every_case_of_the_tails_stands_in_the_text_with_its_figures():
    lines = tails_verdicts.summaries(rows("tails.json", tails.Tail))
    assert {len(line.tails) for line in lines} == {5}
    wanted = {("chain", case.name) for case in tails.CASES}
    wanted |= {
        (world, case.name)
        for world in tails.WORLDS[1:]
        for case in (tails.DEFAULT, tails.CATEGORICAL)
    }
    assert {(line.world, line.case) for line in lines} == wanted
    for line in lines:
        worst = max(tail.coverage for tail in line.tails)
        cells = f"| {line.coverage} | {worst:.2f} | {line.error.mean:.1f} ± "
        assert cells in TEXT, (line.world, line.case)
