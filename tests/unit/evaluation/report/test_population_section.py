"""The lineage of a population: read from its ledger, refused where damaged, drawn in a report."""

import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
import typer
from typer.testing import CliRunner

from ledger_lab import RATE, SCALE, rounds, write_ledger
from page_reader import PageReader
from stormsail.cli.judging.report import report
from stormsail.core.errors import ArtifactError
from stormsail.evaluation.populations import Copy, is_population, read_population
from stormsail.evaluation.report import population_section as drawing
from stormsail.evaluation.report.page import report_page
from stormsail.evaluation.report.population_section import (
    drawn_members,
    lineage_svg,
    population_section,
    values_figure,
    values_of_line,
)


@pytest.fixture
def saved(tmp_path):
    return read_population(write_ledger(tmp_path / "bred", rounds()))


def test_rounds_values_and_copies_are_those_of_the_ledger(saved):
    assert (saved.name, saved.mode, saved.size) == ("bred", "max", 3)
    assert saved.search == {RATE: True, SCALE: False}
    assert [values[RATE] for values in saved.rounds[0].values] == [0.01, 0.02, 0.04]
    assert [values[RATE] for values in saved.rounds[1].values] == [0.01, 0.02, 0.024]
    assert [values[SCALE] for values in saved.rounds[2].values] == ["rms_grad", "a<b", "a<b"]
    assert saved.rounds[1].raw == (0.5, 2.0, 4.0)
    assert saved.rounds[2].fitness == (6.0, 2.0, 3.5)
    assert saved.rounds[2].updates == (30, 30, 30)
    assert math.isnan(saved.rounds[0].fitness[2])
    assert saved.copies() == [Copy(1, 1, 2), Copy(2, 2, 0)]


def test_the_line_of_the_best_goes_through_everybody_who_trained_its_weights(saved):
    assert saved.best == 0
    assert saved.ancestors(0) == [1, 2, 0]
    assert saved.ancestors(2) == [1, 2, 2]
    assert saved.ancestors(1) == [1, 1, 1]
    assert values_of_line(saved, RATE, 0) == [0.02, 0.024, 0.0288]
    assert values_of_line(saved, SCALE, 0) == ["a<b", "a<b", "rms_grad"]


def test_the_ranking_is_that_of_the_population(saved, tmp_path):
    assert [saved.ranking(place) for place in range(3)] == [[1, 0, 2], [2, 1, 0], [0, 2, 1]]
    small = read_population(write_ledger(tmp_path / "small", rounds(), mode="min"))
    assert [small.ranking(place) for place in range(3)] == [[0, 1, 2], [0, 1, 2], [1, 2, 0]]
    last = replace(saved.rounds[-1], fitness=(2.0, 2.0, math.nan))
    assert replace(saved, rounds=(last,)).ranking(0) == [0, 1, 2]
    unknown = replace(last, fitness=(math.nan,) * 3)
    assert replace(saved, rounds=(unknown,)).best is None
    assert "No member has a fitness." in population_section([replace(saved, rounds=(unknown,))])


def test_a_picture_has_a_line_a_member_and_an_arrow_a_copy(saved):
    root = ET.fromstring(lineage_svg(saved))  # noqa: S314 - made above
    lines = root.findall("polyline[@class='member']")
    heights = [float(line.get("points").split()[0].split(",")[1]) for line in lines]
    assert len(lines) == 3
    assert [len(line.get("points").split()) for line in lines] == [3, 3, 3]
    arrows = [[float(number) for number in re.findall(r"[\d.]+", path.get("d"))][:4]
              for path in root.findall("path[@class='copy']")]  # fmt: skip
    assert len(arrows) == 2
    columns = [float(point.split(",")[0]) for point in lines[0].get("points").split()]
    for (x, y, end_x, end_y), copy in zip(arrows, saved.copies(), strict=True):
        assert (x, y) == (columns[copy.round - 1], heights[copy.source])
        # the tip is at the edge of the dot of the member that copies, 6 pixels around its middle
        away = math.hypot(end_x - columns[copy.round], end_y - heights[copy.member])
        assert away == pytest.approx(6.0, abs=0.1)
    (best,) = root.findall("polyline[@class='best']")
    points = [tuple(map(float, point.split(","))) for point in best.get("points").split()]
    assert points == list(zip(columns, (heights[1], heights[2], heights[0]), strict=True))


def test_dots_have_the_more_colour_the_better_the_place(saved):
    root = ET.fromstring(lineage_svg(saved))  # noqa: S314 - made above
    shares = [float(dot.get("fill-opacity")) for dot in root.findall("circle")]
    assert shares == [0.12, 1.0, 0.0, 0.12, 0.56, 1.0, 1.0, 0.12, 0.56]
    words = root.findall("circle/title")[2].text
    assert words == f"member 02, round 1: fitness unknown; {RATE} 0.04, {SCALE} rms_grad"


def test_values_over_rounds_of_every_member_and_behind_the_best(saved):
    figure = values_figure(saved, RATE)
    first, _, third, won = figure["data"]
    assert (first["name"], first["x"], first["y"]) == ("member 00", [1, 2, 3], [0.01, 0.01, 0.0288])
    assert third["y"] == [0.04, 0.024, 0.024]
    assert (won["name"], won["y"]) == ("line of member 00", [0.02, 0.024, 0.0288])
    assert figure["layout"]["yaxis"]["type"] == "log"
    assert values_figure(saved, SCALE)["layout"]["yaxis"]["type"] == "category"


def test_of_a_large_population_the_best_and_their_ancestors_are_drawn(saved, monkeypatch):
    monkeypatch.setattr(drawing, "MOST_MEMBERS", 1)
    assert drawn_members(saved) == [0, 1, 2]  # all of them trained the weights of the best
    alone = replace(saved, rounds=saved.rounds[:1])
    assert drawn_members(alone) == [1]
    assert "1 of 3 members are drawn." in population_section([alone])


def test_the_section_shows_the_best_first_and_names_are_inert(saved):
    shown = population_section([saved])
    assert shown.startswith('<section id="population"><h2>Population</h2>')
    assert "3 members, 3 rounds, 2 copies. Best: member 00 with fitness 6;" in shown
    rows = re.findall(r'<tr[^>]*><th scope="row">(.*?)</th>(.*?)</tr>', shown)
    cells = {name: re.findall("<td>(.*?)</td>", row) for name, row in rows}
    assert list(cells) == ["00", "02", "01", RATE, SCALE]
    assert cells["00"] == ["6", "9", "30", "0.0288", "rms_grad", "02 before round 3"]
    assert cells["01"] == ["2", "2", "30", "0.02", "a&lt;b", "–"]
    assert cells[RATE] == ["0.01 to 0.04", "0.02 to 0.0288", "0.02 → 0.024 → 0.0288"]
    assert cells[SCALE] == ["a&lt;b, rms_grad"] * 2 + ["a&lt;b → rms_grad"]
    assert "a<b" not in shown
    assert population_section([]) == ""


def test_the_command_writes_a_page_of_a_population_alone(tmp_path):
    root, out = write_ledger(tmp_path / "bred", rounds()), tmp_path / "page.html"
    with (root / "population.jsonl").open("a") as file:
        file.write('{"round": 3, "outco')  # a line that is not finished
    app = typer.Typer()
    app.command()(report)
    done = CliRunner().invoke(app, [str(root), "--out", str(out)])
    assert done.exit_code == 0, done.output
    text = out.read_text(encoding="utf-8")
    assert text == report_page([], populations=[read_population(root)])
    assert re.findall(r'<section id="([a-z]+)">', text) == ["population"]
    assert {(tag, name) for tag, name, _ in PageReader(text).loads} == {("a", "href")}


def changed(edit):
    lines = rounds()
    edit(lines)
    return lines


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (lambda lines: lines[1].update(round=2), "round 1 .* in line 2; found round 2"),
        (lambda lines: lines[1]["fitness"].pop(), "the fitness of 2 members, not of 3"),
        (lambda lines: lines[1].update(fitness=[1.0, 2.0, "x"]), "'x' in place of a fitness"),
        (lambda lines: lines[0]["outcomes"].reverse(), "no `outcomes` of the members 0 to 2"),
        (lambda lines: lines[0].update(decisions=[]), "line 1; found no `decisions` of the"),
        (lambda lines: lines[0]["decisions"][2].update(source=3), "a copy of member 3 of 3"),
        (lambda lines: lines[0]["decisions"][2].update(source=-1), "-1 in place of a whole"),
        (lambda lines: lines[0]["decisions"][2]["values"].pop(RATE), "values of .* in place of"),
        (lambda lines: lines.insert(0, [1]), "line 1; found round None"),
        (lambda lines: lines.clear(), "one finished round or more; found none"),
    ],
)
def test_a_damaged_ledger_is_refused_in_words(tmp_path, edit, problem):
    root = write_ledger(tmp_path / "bred", changed(edit))
    with pytest.raises(ArtifactError, match=problem) as refused:
        read_population(root)
    assert refused.value.code == "artifact-document"


@pytest.mark.refusal
def test_a_damaged_or_missing_file_is_refused_in_words(tmp_path):
    root = write_ledger(tmp_path / "bred", rounds())
    own = root / "members" / "01" / "config.toml"
    whole = (root / "population.jsonl").read_text()
    (root / "population.jsonl").write_text("{\n" + whole)
    with pytest.raises(ArtifactError, match="round 0 as this version writes it in line 1"):
        read_population(root)
    (root / "population.jsonl").write_text(whole)
    own.write_text("[ppo]\nlearning_rate = 0.1\n")
    with pytest.raises(ArtifactError, match=r"values of \['ppo.learning_rate'\]"):
        read_population(root)
    own.unlink()
    with pytest.raises(ArtifactError, match="artifact-missing"):
        read_population(root)
    own.with_name("lineage.json").write_text("{")
    with pytest.raises(ArtifactError, match="a value of each searched setting"):
        read_population(root)
    (root / "config.toml").write_text("[population]\n")
    with pytest.raises(ArtifactError, match="`metric_mode`, `population_size` and `search`"):
        read_population(root)
    (root / "config.toml").write_text("[")
    with pytest.raises(ArtifactError, match="must hold TOML"):
        read_population(root)
    assert is_population(root)
    assert not is_population(root / "members")
