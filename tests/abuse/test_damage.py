"""Runs and results that were half deleted, cut, exchanged, or written by another version."""

import shutil

import pytest

from abuse_lab import CODES, call, check

FILES = {
    "run": ("manifest.json", "config.toml", "lineage.json", "metrics.parquet", "events.jsonl",
            "best", "best/manifest.json", "best/agent.json", "best/model.safetensors",
            "checkpoints", "checkpoints/latest"),
    "judged": ("manifest.json", "summary.json", "equity.parquet", "trades.parquet"),
}  # fmt: skip
HARMS = ("deleted", "empty", "cut", "garbage", "folder")
CALLS = {
    "resume": ("run", lambda: ("resume", "run")),
    "extend": ("run", lambda: ("resume", "run", "--extend-to", 256)),
    "backtest": ("run", lambda: ("backtest", "run", "--data", "data", "--out", "new",
                                 "--from", "2021-01-29")),
    "show": ("run", lambda: ("show", "run")),
    "show result": ("judged", lambda: ("show", "judged")),
    "from": ("run", lambda: ("train", "tiny.toml", "--out", "new", "--from", "run",
                             "--set", "ppo.total_steps=32")),
    "compare": ("run", lambda: ("compare", "judged", "run")),
    "performance": ("judged", lambda: ("performance", "judged")),
    "report": ("judged", lambda: ("report", "judged", "--out", "new.html")),
}  # fmt: skip


def harm(path, kind):
    """Damage a file or a folder."""
    if path.is_dir():
        shutil.rmtree(path)
        if kind != "deleted":
            path.write_bytes(b"" if kind == "empty" else b"\0\1garbage")
        return
    data = path.read_bytes()
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind != "deleted":
        path.write_bytes({"empty": b"", "cut": data[: len(data) // 2], "garbage": b"\0\xff"}[kind])


@pytest.mark.parametrize("kind", HARMS)
@pytest.mark.parametrize(
    ("name", "file"),
    [(name, file) for name, (what, _) in CALLS.items() for file in FILES[what]],
)
def test_a_damaged_folder_is_refused_or_does_not_matter(name, file, kind, place, own):
    what, words = CALLS[name]
    shutil.rmtree(place / what) if what == "judged" else None
    folder = own(what)
    if not (folder / file).exists():
        pytest.skip("this result has no such file")
    harm(folder / file, kind)
    result = call(*words(), cwd=place)
    assert result.code != "unexpected", result.err
    if name.startswith("show") and result.status == 1:  # its own "no", with the problem in words
        check(result, 1)
        assert "damaged" in result.out or "foreign" in result.out
        return
    if result.status == 0:  # what is damaged is not needed, or an older copy took its place
        check(result, 0)
        return
    assert result.code in CODES
    check(result, 2, result.code)
    assert result.code.startswith(("artifact-", "data-", "config-", "trials-", "file-"))


def test_another_version_is_told(place, own, monkeypatch):
    from stormsail.core.files import manifest
    from stormsail.core.files.artifact import Contents, read_artifact, write_artifact

    folder = own("run")
    saved = read_artifact(folder / "best")
    shutil.rmtree(folder / "best")
    contents = Contents(saved.tensors, saved.documents, saved.blobs, saved.metadata)
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "FORMAT", 99)
        write_artifact(folder / "best", kind=saved.kind, contents=contents)
    result = call("backtest", "run", "--data", "data", "--out", "new", cwd=place)
    check(result, 2, "artifact-version")
