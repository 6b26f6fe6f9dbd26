"""The reader of saved results: what comes back, and that damage has one error code everywhere."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from report_lab import passed, write_made_validation
from stormsail.cli.judging.report import report
from stormsail.core.errors import ArtifactError, DataError
from stormsail.core.files.artifact import Contents, read_artifact, write_artifact
from stormsail.evaluation.compare.compare import compare_results
from stormsail.evaluation.engine.files import FORMAT, table_bytes, write_backtest
from stormsail.evaluation.saved import (
    MAIN,
    flat,
    kind_of,
    names_of,
    read_result,
    read_run,
    statement_of,
)
from stormsail.evaluation.stats.statement import Statement
from training_lab import run_for, small

KINDS = tuple(MAIN)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return a folder with an undamaged backtest and an undamaged validation."""
    folder = tmp_path_factory.mktemp("saved")
    write_backtest(folder / "backtest", passed(60, symbols=2)[0])
    write_made_validation(folder / "validation", bars=60)
    return folder


# ------------------------------------------------------------------ damage


def rewritten(change):
    """Return damage that a checksum does not show: `change` edits documents and blobs."""

    def damage(path):
        artifact = read_artifact(path)
        change(artifact.documents, artifact.blobs, MAIN[artifact.kind])
        contents = Contents(documents=artifact.documents, blobs=artifact.blobs)
        shutil.rmtree(path)
        write_artifact(path, kind=artifact.kind, contents=contents)

    return damage


def without_column(table, column):
    def change(_, blobs, __):
        kept = pq.read_table(pa.BufferReader(blobs[table])).drop_columns([column])
        blobs[table] = table_bytes(kept)

    return rewritten(change)


def as_agent(path):
    contents = Contents(documents=read_artifact(path).documents)
    shutil.rmtree(path)
    write_artifact(path, kind="agent", contents=contents)


def as_run(path):
    shutil.rmtree(path)
    path.mkdir()
    (path / "manifest.json").write_text('{"kind": "run"}')


def edited(name, old, new):
    """Return damage to the bytes of a file."""

    def damage(path):
        file = path / name.format(MAIN[kind_of(path)])
        assert old in file.read_bytes()
        file.write_bytes(file.read_bytes().replace(old, new, 1))

    return damage


def set_key(key, value):
    return rewritten(lambda documents, _, main: documents[main].update({key: value}))


DAMAGE = {
    "no folder": (shutil.rmtree, "artifact-missing"),
    "no manifest": (lambda path: (path / "manifest.json").unlink(), "artifact-files"),
    "no table": (lambda path: (path / "trades.parquet").unlink(), "artifact-files"),
    "an extra file": (lambda path: (path / "notes.txt").touch(), "artifact-files"),
    "a table that was never written": (
        rewritten(lambda _, blobs, __: blobs.pop("decisions.parquet")),
        "artifact-files",
    ),
    "a document that was never written": (
        rewritten(lambda documents, _, main: documents.pop(main)),
        "artifact-files",
    ),
    "manifest cut off": (
        lambda path: (path / "manifest.json").write_text("{"),
        "artifact-manifest",
    ),
    "manifest edited": (edited("manifest.json", b'"metadata"', b'"Metadata"'), "artifact-manifest"),
    "document edited": (
        edited("{}.json", b'"interval": "1h"', b'"interval": "4h"'),
        "artifact-corrupt",
    ),
    "table edited": (edited("equity.parquet", b"PAR1", b"PAR2"), "artifact-corrupt"),
    "no Parquet": (
        rewritten(lambda _, blobs, __: blobs.update({"trades.parquet": b"nothing"})),
        "artifact-corrupt",
    ),
    "an agent": (as_agent, "artifact-kind"),
    "no column of equity": (without_column("equity.parquet", "total"), "artifact-document"),
    "no column of trades": (without_column("trades.parquet", "price"), "artifact-document"),
    "no column of decisions": (without_column("decisions.parquet", "weight"), "artifact-document"),
    "no metrics": (set_key("metrics", None), "artifact-document"),
    "no hashes": (set_key("hashes", []), "artifact-document"),
    "older version": (set_key("format", FORMAT - 1), "artifact-version"),
    "no version": (set_key("format", None), "artifact-version"),
}


def read_by_python(path, _):
    read_result(path)


def read_by_report(path, folder):
    app = typer.Typer()
    app.command()(report)
    done = CliRunner().invoke(app, [str(path), "--out", str(folder / "page.html")])
    if done.exception is not None:
        raise done.exception


def read_by_compare(path, folder):
    compare_results([folder / "whole", path])


READERS = {"python": read_by_python, "report": read_by_report, "compare": read_by_compare}


@pytest.mark.refusal
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", DAMAGE)
def test_the_same_damage_has_the_same_code_everywhere(whole, tmp_path, damage, kind, reader):
    shutil.copytree(whole / kind, tmp_path / "whole")
    shutil.copytree(whole / kind, tmp_path / "damaged")
    inflict, code = DAMAGE[damage]
    inflict(tmp_path / "damaged")
    with pytest.raises(ArtifactError) as caught:
        READERS[reader](tmp_path / "damaged", tmp_path)
    assert caught.value.code == code
    assert str(tmp_path / "damaged") in str(caught.value)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_damaged_is_read_everywhere(whole, tmp_path, kind, reader):
    for name in ("whole", "other"):
        shutil.copytree(whole / kind, tmp_path / name)
    READERS[reader](tmp_path / "other", tmp_path)


@pytest.mark.refusal
def test_damage_of_one_kind_alone_is_refused_with_its_place(whole, tmp_path):
    def words(kind, inflict):
        path = tmp_path / kind
        shutil.copytree(whole / kind, path)
        inflict(path)
        with pytest.raises(ArtifactError) as caught:
            read_result(path)
        shutil.rmtree(path)
        return str(caught.value).replace(str(path), "PATH")

    after = "Use another copy, or run it again. [artifact-document]"
    assert words("validation", set_key("verdict", {"decision": "maybe"})) == (
        "`validation.json` of PATH must be as this version writes it; found the decision 'maybe' "
        f"of a verdict. {after}"
    )
    assert words("validation", set_key("folds", {})) == (
        "`validation.json` of PATH must be as this version writes it; found no list `folds`. "
        f"{after}"
    )
    symbol = read_result(whole / "backtest").symbols[1]
    assert words("backtest", without_column("equity.parquet", symbol)) == (
        "`equity.parquet` of PATH must be as this version writes it; found no column "
        f"`{symbol}`. {after}"
    )
    assert words("backtest", as_run) == (
        "PATH must be the folder of a `backtest` or a `validation`; found `run`. Pass what "
        "`stormsail backtest` or `stormsail validate` wrote with `--out`; runs are taken by "
        "`stormsail compare` and `stormsail report --run`. [artifact-kind]"
    )
    assert words("backtest", set_key("format", 1)) == (
        f"the backtest in PATH must have the format {FORMAT}; found 1. Run the backtest again, or "
        "read it with the version that wrote it. [artifact-version]"
    )


# ------------------------------------------------------------------ what comes back


def test_a_result_has_its_metrics_verdict_and_self_tests(tmp_path, whole):
    final = {"verdict": {"decision": "reject", "words": "It lost.", "reasons": []}}
    write_made_validation(tmp_path / "v", bars=60, test=final)
    result = read_result(tmp_path / "v")
    document = json.loads((tmp_path / "v" / "validation.json").read_text())
    assert (result.name, result.kind) == ("v", "validation")
    assert result.document == document
    assert result.verdict.document() == document["verdict"]
    assert result.final_verdict.decision == "reject"
    assert [test.document() for test in result.self_tests] == document["self_tests"]
    saved = document["metrics"]
    assert result.bar_ms == saved["bar_ms"] == 3_600_000
    assert {name: metric.document() for name, metric in result.metrics.items()} == {
        name: metric
        for name, metric in saved.items()
        if isinstance(metric, dict) and "value" in metric
    }
    assert sorted(result.documents) == ["significance"]
    backtest = read_result(whole / "backtest", "short")
    assert (backtest.name, backtest.verdict, backtest.final_verdict) == ("short", None, None)
    assert backtest.digest == read_artifact(whole / "backtest").digest


def test_statements_come_back_as_they_were_written():
    for statement in (
        Statement(0.5, 0.4, 0.6, needed=30, found=40),
        Statement(None, needed=30, found=4, unit="trades"),
        Statement(None, needed=3, found=4, why="all returns are equal"),
    ):
        read = statement_of(statement.document())
        assert read.document() == statement.document()
        assert read.enough == statement.enough
    assert statement_of(108) is None
    assert statement_of({"peak_ts": 5}) is None


def test_nested_settings_become_paths():
    data = {"a": {"b": {"c": 1}, "d": {}}, "e": [1, {"f": 2}]}
    assert flat(data, "x.") == {"x.a.b.c": 1, "x.a.d": {}, "x.e": [1, {"f": 2}]}


def test_results_of_the_same_name_get_longer_names(tmp_path):
    assert names_of([tmp_path / "a" / "out", tmp_path / "b" / "out"]) == ["a/out", "b/out"]
    assert names_of([tmp_path / "a", tmp_path / "b"]) == ["a", "b"]
    same = names_of([tmp_path / "a", tmp_path / "a"])
    assert [name[-4:] for name in same] == [" (1)", " (2)"]


# ------------------------------------------------------------------ runs


def test_a_run_is_known_by_its_manifest(whole, tmp_path):
    run_for(small("market"), tmp_path / "run", 1)
    assert kind_of(tmp_path / "run") == "run"
    assert kind_of(whole / "validation") == "validation"
    assert kind_of(tmp_path / "nowhere") is None


@pytest.mark.refusal
def test_a_run_without_metrics_or_with_broken_events_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"must be the folder of a run with `metrics\.parquet`"):
        read_run(tmp_path, name="run")
    pq.write_table(pa.table({"train/approx_kl": [0.1]}), tmp_path / "metrics.parquet")
    (tmp_path / "events.jsonl").write_bytes(b"{}\nnot json\n")
    with pytest.raises(DataError, match=r"line 2 of .* must be strict JSON"):
        read_run(tmp_path, name="run")
