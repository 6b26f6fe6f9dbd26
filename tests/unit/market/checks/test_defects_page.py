"""The page of defects says what the code says."""

from pathlib import Path

from stormsail.market.checks import DEFECTS, RULES

PAGE = Path(__file__).resolve().parents[4] / "docs" / "data_defects.md"


def rows(title: str) -> list[list[str]]:
    part = PAGE.read_text().split(f"## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_page_lists_every_defect_in_the_words_of_the_code():
    assert rows("The list") == [
        [
            defect.number,
            defect.name,
            defect.severity,
            defect.meaning,
            defect.remedy,
            f"`{defect.rule}`" if defect.rule else "",
        ]
        for defect in DEFECTS
    ]


def test_the_page_lists_every_rule_in_its_order():
    assert [cells[0] for cells in rows("Repair rules")] == [f"`{rule}`" for rule in RULES]


def test_numbers_and_names_are_used_once():
    assert len({defect.number for defect in DEFECTS}) == len(DEFECTS)
    assert len({defect.name for defect in DEFECTS}) == len(DEFECTS)
