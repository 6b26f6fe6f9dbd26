"""A saved robustness curve: written, read, refused where it is damaged, shown in a report."""

import json

import pytest

from stormsail.core.errors import ArtifactError
from stormsail.core.files.artifact import Contents, write_artifact
from stormsail.evaluation.attack.curve import AttackRow, curve
from stormsail.evaluation.attack.files import KIND, attack_document, write_attack
from stormsail.evaluation.report.attack_section import attack_figure, attack_section
from stormsail.evaluation.saved import read_attack

SETTINGS = {"task": "market", "episodes": 4, "norm": "linf", "alpha": 0.5, "columns": ["a<b"]}


def points():
    rows = [
        AttackRow("clean", 0.0, (1.0, 2.0, 3.0, 4.0), 0.0, 0),
        AttackRow("mad", 0.1, (0.0, 2.0, 2.0, 4.0), 0.25, 0),
        AttackRow("mad", 0.2, (0.0, 1.0, 1.0, 2.0), 0.5, 0),
        AttackRow("pgd", 0.1, (0.0, 1.0, 2.0, 3.0), 0.75, 0),
    ]
    return curve(rows[0], rows[1:], alpha=0.5)


def test_a_curve_is_read_as_it_was_written_and_shown(tmp_path):
    write_attack(tmp_path / "forged", attack_document(points(), SETTINGS))
    saved = read_attack(tmp_path / "forged")
    assert saved.name == "forged"
    assert json.loads(json.dumps(saved.document)) == attack_document(points(), SETTINGS)
    mad, pgd = attack_figure(saved, "mean", "mean return")["data"]
    assert (mad["name"], mad["x"], mad["y"]) == ("mad", [0.0, 0.1, 0.2], [2.5, 2.0, 1.0])
    assert (pgd["name"], pgd["x"], pgd["y"]) == ("pgd", [0.0, 0.1], [2.5, 1.5])
    first = points()[0].mean
    assert mad["error_y"]["array"][0] == first.high - first.value
    assert mad["error_y"]["arrayminus"][0] == first.value - first.low
    shown = attack_section([saved])
    assert shown.startswith('<section id="robustness"><h2>Robustness</h2>')
    assert "a&lt;b" in shown
    assert "75.0%" in shown
    assert attack_section([]) == ""


@pytest.mark.refusal
def test_another_folder_or_format_is_refused(tmp_path):
    for name, document, code in (
        ("version", {"format": 9}, "artifact-version"),
        ("empty", {"format": 1, "points": [], "settings": {}}, "artifact-document"),
    ):
        contents = Contents(documents={"attack": document})
        write_artifact(tmp_path / name, kind=KIND, contents=contents)
        with pytest.raises(ArtifactError) as refused:
            read_attack(tmp_path / name)
        assert refused.value.code == code
    write_artifact(tmp_path / "other", kind="agent", contents=Contents(documents={"attack": {}}))
    with pytest.raises(ArtifactError, match="artifact-kind"):
        read_attack(tmp_path / "other")
