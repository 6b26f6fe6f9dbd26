"""A search in a report: read from its document, refused where damaged, drawn as it is."""

import json
import xml.etree.ElementTree as ET

import pytest

from page_reader import PageReader
from search_lab import MEMORY, RATE, document, refused, write_search
from stormsail.core.errors import ArtifactError
from stormsail.evaluation.report.page import report_page
from stormsail.evaluation.report.search_section import (
    history_figure,
    importance_figure,
    parallel_svg,
    search_section,
    slice_figure,
)
from stormsail.evaluation.searches import is_search, read_search


@pytest.fixture
def saved(tmp_path):
    return read_search(write_search(tmp_path / "sought"))


def test_trials_are_those_of_the_document_and_ranked_by_steps_then_fitness(saved):
    assert (saved.name, saved.task, saved.mode, saved.best) == ("sought", "market", "max", 2)
    assert [trial.number for trial in saved.counted] == [0, 1, 2, 3, 5, 6]
    assert [trial.number for trial in saved.ranking()] == [2, 5, 6, 0, 1, 3]
    assert list(saved.importance) == [RATE, MEMORY]
    assert (saved.trials[2].fitness, saved.trials[2].steps) == (4.0, 900)


def test_a_value_has_its_place_between_the_ends(saved):
    rate, memory = saved.over[RATE], saved.over[MEMORY]
    assert [rate.place(value) for value in (1e-5, 1e-3, 1e-1, 1.0)] == pytest.approx([0, 0.5, 1, 1])
    assert [memory.place(value) for value in ("none", "a<b")] == [0.0, 1.0]


def test_parallel_coordinates_have_a_line_for_each_scored_trial(saved):
    root = ET.fromstring(parallel_svg(saved))  # noqa: S314 - made in this test
    lines = {line[0].text.split(",")[0]: line for line in root.iter("polyline")}
    assert set(lines) == {f"trial {number}" for number in (0, 1, 2, 5, 6)}
    kinds = {name: line.get("class") for name, line in lines.items()}
    assert kinds["trial 2"] == "best"
    assert kinds["trial 1"] == "pruned"
    shares = [float(lines[f"trial {number}"].get("stroke-opacity")) for number in (2, 5, 6, 0, 1)]
    assert shares == sorted(shares, reverse=True)
    best = [tuple(map(float, point.split(","))) for point in lines["trial 2"].get("points").split()]
    assert len(best) == 3  # two settings and the fitness
    middle = float(lines["trial 0"].get("points").split()[0].split(",")[1])
    ends = [float(axis.get(end)) for axis in root.iter("line") for end in ("y1", "y2")][:2]
    assert middle == pytest.approx(sum(ends) / 2)  # 1e-3 on a log scale from 1e-5 to 1e-1
    assert best[-1][1] == min(ends)  # the best fitness stands at the top
    assert [line.get("class") for line in root.iter("polyline")][-1] == "best"  # above the others


def test_charts_show_shares_history_and_each_setting(saved):
    (bars,) = importance_figure(saved)["data"]
    assert (bars["y"], bars["x"]) == ([MEMORY, RATE], [0.2, 0.8])
    history = {trace["name"]: trace for trace in history_figure(saved)["data"]}
    assert history["best so far"]["x"] == [0, 2, 5, 6]
    assert history["best so far"]["y"] == [2.0, 4.0, 4.0, 4.0]
    assert history["pruned"]["x"] == [1]
    figure = slice_figure(saved, RATE)
    assert figure["layout"]["xaxis"]["type"] == "log"
    assert slice_figure(saved, MEMORY)["layout"]["xaxis"]["type"] == "category"


def test_the_page_of_a_search_alone_is_escaped_and_the_same_every_time(saved):
    page = report_page([], searches=[saved])
    assert page == report_page([], searches=[saved])
    reader = PageReader(page)
    assert reader.handlers == []
    assert [load for load in reader.loads if not str(load[2]).startswith("#")] == []
    assert any("a<b" in text for text in reader.texts)
    for words in ("6 trials on", "4 finished", "1 refused", "trial 2 with fitness 4", "PED-ANOVA"):
        assert words in page


def test_a_search_without_results_says_so(tmp_path):
    empty = {**document(), "trials": [], "best": None, "importance": {}}
    html = search_section([read_search(write_search(tmp_path / "empty", empty))])
    assert "No trial has finished." in html
    assert "No trial has a score yet." in html
    assert "Importance is not known" in html
    assert search_section([]) == ""


def test_the_best_value_at_an_edge_is_pointed_out(tmp_path):
    edge = document()
    edge["trials"][2]["values"][RATE] = 0.09
    html = search_section([read_search(write_search(tmp_path / "edge", edge))])
    assert "at the edge of its range" in html


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "run"}, "kind 'run'"),
        ({"metric_mode": "most"}, "mode 'most'"),
        ({"over": {}}, "no searched setting"),
        ({"best": 99}, "99 as the best of 7 trials"),
        ({"rungs": [-1]}, "in place of a whole number"),
        ({"over": {RATE: {"min": 2, "max": 1}}}, "a range from 2.0 to 1.0"),
        ({"trials": [{"number": 3, "state": "finished"}]}, "trial 3"),
        ({"trials": [{"number": 0, "state": "lost"}]}, "'lost'"),
        ({"trials": [{"number": 0, "state": "finished", "values": {}}]}, "values of []"),
    ],
)
def test_a_damaged_document_is_refused_in_words(tmp_path, change, words):
    folder = write_search(tmp_path / "bad", {**document(), **change})
    error = refused(read_search, folder)
    assert (error.code, words in str(error)) == ("artifact-document", True), str(error)


@pytest.mark.refusal
def test_what_is_no_search_is_refused(tmp_path):
    assert not is_search(tmp_path)
    with pytest.raises(ArtifactError, match="must hold a readable"):
        read_search(tmp_path)
    (tmp_path / "search.json").write_text("[1]")
    assert is_search(tmp_path)
    with pytest.raises(ArtifactError, match="no table"):
        read_search(tmp_path)
    (tmp_path / "search.json").write_text(json.dumps(document())[:-5])
    with pytest.raises(ArtifactError, match="must hold a search"):
        read_search(tmp_path)
