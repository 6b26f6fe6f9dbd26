"""Every path that a command reads or writes, naming whatever no command expects."""

import stat

import pytest

from abuse_lab import BAD, FOLDERS, INPUTS, OUTPUTS, bad_paths, call, check

CONFIG = frozenset({"config-unreadable", "config-syntax", "config-unknown-key", "file-unusable"})
ARTIFACT = frozenset({"artifact-missing", "artifact-files", "artifact-manifest", "file-unusable",
                      "artifact-unreadable", "artifact-corrupt"})  # fmt: skip
STORE = frozenset({"config-value", "config-inconsistent", "data-missing", "file-unusable"})
DATA = frozenset({"data-missing", "data-unreadable", "data-source", "data-column", "data-type",
                  "data-defects", "file-unusable"})  # fmt: skip

ROW_FILE = frozenset({"artifact-corrupt", "artifact-unreadable", "artifact-limit", "file-unusable"})

CODES = {
    "train CONFIG": CONFIG | {"config-value"},
    "train --from": ARTIFACT,
    "train store": STORE,
    "resume RUN": ARTIFACT,
    "population CONFIG": CONFIG | {"config-value"},
    "search CONFIG": CONFIG | {"config-value"},
    "search store": STORE,
    "show PATH": ARTIFACT,
    "init --store": STORE | {"output-exists"},
    "backtest RUN": ARTIFACT,
    "backtest --data": STORE,
    "backtest --workspace": ARTIFACT,
    "attack RUN": ARTIFACT,
    "attack --config": CONFIG | {"artifact-mismatch", "config-inconsistent", "config-value"},
    "validate CONFIG": CONFIG | {"config-value"},
    "validate store": STORE,
    "performance RESULT": ARTIFACT,
    "report RESULT": ARTIFACT,
    "report --run": ARTIFACT | {"data-missing", "data-unreadable"},
    "compare FOLDER": ARTIFACT,
    "import SOURCE": DATA,
    "import --terms": CONFIG | {"config-value", "data-symbol"},
    "check FILE": DATA,
    "check --store": DATA,
    "check --reference": DATA,
    "check --features": frozenset({"feature-file", "file-unusable"}),
    "check features store": STORE,
    "bench wicks": STORE,
    "bench frontier --rows": frozenset({"usage"}),
    "bench limits --rows": ROW_FILE | {"usage"},
}
"""Codes of which the refusal of a bad path is one."""

FOUND_BAD = {"empty", "binary", "latin1", "huge", "json", "page", "parquet"}
"""Files that `check` reads and finds wanting, which is its own "no"."""

ABSENT = {"missing", "loop", "dangling", "long", "inside"}
"""What is not there; of everything else `show` says that it is foreign, which is its own "no"."""


@pytest.mark.parametrize(
    ("slot", "bad"),
    [(slot, bad) for slot in INPUTS for bad in BAD],
)
def test_a_bad_input_is_refused_in_words(slot, bad, place):
    result = call(*INPUTS[slot](bad_paths()[bad]), cwd=place)
    if slot in ("check FILE", "check --store") and bad in FOUND_BAD:
        check(result, 1)
        assert result.out.startswith("refused")
        return
    if slot == "show PATH" and bad not in ABSENT:
        check(result, 1)
        assert result.out.startswith(f"{bad_paths()[bad]}: foreign")
        return
    if slot == "init --store" and result.status == 0:  # a store that is yet to be imported
        check(result, 0)
        assert "holds no bars of 1h yet" in result.out
        return
    check(result, 2, CODES[slot])
    assert not (place / "new").exists()
    assert not list(place.glob("stormsail-error*"))


ROWS = {"bench vgs --rows", "attack --rows"}
"""Outputs that are continued where they exist."""

KINDS = {"folder", "device", "zero", "full", "fifo", "socket"}
FREE = {"missing", "dangling"}


@pytest.mark.parametrize(
    ("slot", "bad"),
    [(slot, bad) for slot in OUTPUTS for bad in BAD if bad not in FREE],
)
def test_an_output_that_is_no_new_file_is_refused_and_stays(slot, bad, place):
    name = bad_paths()[bad]
    before = _kind(place / name)
    result = call(*OUTPUTS[slot](name), cwd=place)
    assert _kind(place / name) == before
    if (slot in ROWS and bad == "empty") or (slot in ROWS and bad == "json"):
        check(result, *((2, "usage") if slot == "bench vgs --rows" else (0,)))
    elif slot in ROWS:
        codes = {"output-kind", "artifact-corrupt", "artifact-limit", "artifact-write", "usage",
                 "artifact-unreadable", "file-unusable"}  # fmt: skip
        check(result, 2, frozenset(codes))
    elif bad in KINDS:
        check(result, 2, "output-kind")
    elif bad in ("long", "inside", "loop"):
        check(result, 2, frozenset({"artifact-write", "usage"}))
    else:
        check(result, 2, "output-exists")
        assert "--force" in result.line


def _kind(path):
    """What is at a path: its type and number, which a file put in its place would change."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return stat.S_IFMT(status.st_mode), status.st_ino


@pytest.mark.parametrize("bad", [bad for bad in BAD if bad not in (*FREE, "folder")])
@pytest.mark.parametrize("slot", FOLDERS)
def test_a_folder_that_is_taken_or_cannot_be_is_refused(slot, bad, place):
    result = call(*FOLDERS[slot](bad_paths()[bad]), cwd=place)
    codes = {"artifact-exists", "artifact-write", "file-unusable", "data-write", "data-unreadable",
             "output-kind"}  # fmt: skip
    check(result, 2, frozenset(codes))


FORCED = [
    "report --out",
    "compare --out",
    "bench functional --out",
    "show --json-out",
    "init --out",
]


@pytest.mark.parametrize("slot", FORCED)
def test_force_replaces_a_file_and_follows_a_link(slot, place):
    (place / "old").write_text("old")
    (place / "link").symlink_to("old")
    check(call(*OUTPUTS[slot]("link"), cwd=place), 2, "output-exists")
    assert (place / "old").read_text() == "old"
    check(call(*OUTPUTS[slot]("link"), "--force", cwd=place), 0)
    assert (place / "link").is_symlink()
    assert (place / "old").stat().st_size > 10


@pytest.mark.parametrize("bad", ["device", "fifo", "socket", "folder"])
@pytest.mark.parametrize("slot", FORCED)
def test_force_never_replaces_what_is_no_file(slot, bad, place):
    name = bad_paths()[bad]
    before = _kind(place / name)
    check(call(*OUTPUTS[slot](name), "--force", cwd=place), 2, "output-kind")
    assert _kind(place / name) == before


def test_a_link_to_nothing_is_followed(place):
    (place / "link").symlink_to("made.html")
    check(call("report", "judged", "--out", "link", cwd=place), 0)
    assert str((place / "link").readlink()) == "made.html"
    assert (place / "made.html").stat().st_size > 1000
