"""The loader of plug-ins: what it runs, what it refuses, what artifacts are bound to."""

import hashlib
import os
import sys
from pathlib import Path

import pytest

from stormsail.core import plugins
from stormsail.core.errors import ArgumentError, ArtifactError, ChoiceError, ConfigError
from stormsail.market.features import REGISTRY, feature

GAP = """from stormsail.market.features import feature

@feature(name="{name}", lookback=2)
def gap(bars):
    return bars["close"][1:] - bars["close"][:-1]
"""


@pytest.fixture(autouse=True)
def _forgets():
    with plugins.scope():
        yield


def written(folder, name="mine.py", text=None, feature_name="my_gap"):
    path = folder / name
    path.write_text(GAP.format(name=feature_name) if text is None else text)
    return path


def test_a_file_is_run_once_and_says_what_it_registers(tmp_path):
    marked = "import sys\nsys.my_runs = getattr(sys, 'my_runs', 0) + 1\n" + GAP.format(name="a_gap")
    path = written(tmp_path, text=marked)
    try:
        (first,), (again,) = plugins.load([path]), plugins.load([str(path)])
        assert sys.my_runs == 1
    finally:
        del sys.my_runs
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert first is again
    assert first[:3] == ("mine.py", digest, (("feature", "a_gap"),))
    assert first.module == f"stormsail_plugin_mine_{digest[:8]}"
    assert sys.modules[first.module].gap is REGISTRY.get("a_gap")
    copied = tmp_path / "elsewhere"
    copied.mkdir()
    assert plugins.load([written(copied, text=marked)]) == (first,)


def test_leaving_a_scope_forgets_what_was_loaded_and_nothing_else(tmp_path):
    before = REGISTRY.names()
    with plugins.scope():
        (plugin,) = plugins.load([written(tmp_path)])
        assert "my_gap" in REGISTRY
    assert REGISTRY.names() == before
    assert plugins.loaded() == ()
    assert plugin.module not in sys.modules


def test_what_runs_is_what_was_hashed(tmp_path, monkeypatch):
    # A file that is exchanged between hashing and running: the bytes that were hashed run.
    path, read = written(tmp_path), plugins._read_source
    other = "raise RuntimeError('the other file ran')"

    def exchanged(place):
        source = read(place)
        path.write_text(other)
        return source

    monkeypatch.setattr(plugins, "_read_source", exchanged)
    (plugin,) = plugins.load([path])
    assert path.read_text() == other
    assert plugin.sha256 == hashlib.sha256(GAP.format(name="my_gap").encode()).hexdigest()


def test_a_module_is_loaded_by_its_name_from_the_working_folder(tmp_path, monkeypatch):
    written(tmp_path, "my_little_module.py", feature_name="little_gap")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    try:
        (plugin,) = plugins.load(["my_little_module"])
        assert plugin.name == plugin.module == "my_little_module"
        assert plugin.registered == (("feature", "little_gap"),)
        source = (tmp_path / "my_little_module.py").read_bytes()
        assert plugin.sha256 == hashlib.sha256(source).hexdigest()
        assert plugins.load(["my_little_module"]) == (plugin,)
    finally:
        sys.modules.pop("my_little_module", None)


def test_the_hash_of_a_package_covers_all_its_files(tmp_path, monkeypatch):
    package = tmp_path / "my_package"
    package.mkdir()
    written(package, "__init__.py", "from my_package import parts\n")
    written(package, "parts.py", feature_name="part_gap")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])

    def digest():
        with plugins.scope():
            try:
                (plugin,) = plugins.load(["my_package"])
                assert plugin.registered == (("feature", "part_gap"),)
                return plugin.sha256
            finally:
                for name in ("my_package", "my_package.parts"):
                    sys.modules.pop(name, None)

    first = digest()
    with (package / "parts.py").open("a") as file:
        file.write("# changed\n")
    assert digest() != first


HOSTILE = {
    "missing": (None, "must be a Python file that can be read; found No such file"),
    "syntax": ("def (", "must run; found SyntaxError: invalid syntax in line 1"),
    "null": ("x = 1\0", "must run; found SyntaxError"),
    "encoding": (b"x = '\xff'\n", "must run; found SyntaxError"),
    "raises": ("1 / 0", "must run; found ZeroDivisionError: division by zero."),
    "exits": ("raise SystemExit(3)", "must run; found SystemExit: 3."),
    "imports": ("import no_such_thing", "must run; found ModuleNotFoundError: No module named"),
    "nothing": ("x = 1", "must register a feature, reward, task, world, network or callback; found "
                "nothing."),
    "huge": (b"#" * ((1 << 22) + 1), "must have at most 4194304 bytes; found more."),
}  # fmt: skip


@pytest.mark.refusal
@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_no_plug_in_is_refused_in_words(tmp_path, case):
    content, words = HOSTILE[case]
    path = tmp_path / "bad.py"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as caught:
        plugins.load([path])
    assert caught.value.code == "plugin-file"
    assert words in str(caught.value)
    assert not [name for name in sys.modules if name.startswith("stormsail_plugin_bad")]


@pytest.mark.refusal
def test_folders_pipes_and_odd_names_are_refused_in_words(tmp_path):
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "folder.py").mkdir()
    places = {
        tmp_path / "pipe.py": "a named pipe instead of a file",
        tmp_path / "folder.py": "a folder instead of a file",
        Path("/dev/null"): "a device instead of a file",
        "no_such_module_anywhere": "no such module",
        "no_such_package.part": "No module named 'no_such_package'",
        "": "a folder instead of a file",
        "two words": "No such file or directory",
        "nul\0.py": "embedded null",
        f"{'n' * 300}.py": "File name too long",
        "_io": "a module without a Python file",
    }
    for place, words in places.items():
        with pytest.raises(ConfigError) as caught:
            plugins.load([place])
        assert caught.value.code == "plugin-file"
        assert words in str(caught.value), place


def test_a_path_that_is_no_utf8_can_be_loaded_and_named(tmp_path):
    path = os.fsencode(tmp_path) + b"/m\xffne.py"
    Path(os.fsdecode(path)).write_text(GAP.format(name="odd_gap"))
    (plugin,) = plugins.load([os.fsdecode(path)])
    assert plugin.name == "m\\xffne.py"
    (record,) = plugins.used([("feature", "odd_gap")])
    assert record["file"].encode("utf-8") == b"m\\xffne.py"
    with pytest.raises(ConfigError) as caught:
        plugins.load([os.fsdecode(path.replace(b"m", b"n"))])
    assert "n\\xffne.py" in str(caught.value).encode("utf-8").decode()


@pytest.mark.refusal
def test_a_name_that_is_taken_is_refused_and_leaves_nothing_behind(tmp_path):
    plugins.load([written(tmp_path, feature_name="first_gap")])
    text = GAP.format(name="second_gap") + GAP.format(name="first_gap")
    with pytest.raises(ArgumentError, match="`first_gap` must belong to one feature") as caught:
        plugins.load([written(tmp_path, "other.py", text)])
    assert caught.value.code == "feature-duplicate"
    assert "second_gap" not in REGISTRY
    assert [plugin.name for plugin in plugins.loaded()] == ["mine.py"]
    with pytest.raises(ArgumentError, match="`log_return` must belong to one feature"):
        plugins.load([written(tmp_path, "third.py", feature_name="log_return")])
    assert REGISTRY.get("log_return").function.__module__.startswith("stormsail.")


@pytest.mark.refusal
def test_a_file_that_changed_since_it_was_loaded_is_refused(tmp_path):
    path = written(tmp_path)
    (plugin,) = plugins.load([path])
    path.write_text(path.read_text() + "# changed\n")
    changed = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(ConfigError) as caught:
        plugins.load([path])
    assert caught.value.code == "plugin-mismatch"
    assert plugin.sha256[:12] in str(caught.value)
    assert changed[:12] in str(caught.value)


def test_an_artifact_names_kind_name_file_and_hash_and_no_folder(tmp_path):
    (plugin,) = plugins.load([written(tmp_path)])
    things = [("feature", "log_return"), ("feature", "my_gap"), ("feature", "my_gap")]
    records = plugins.used(things)
    assert records == [
        {
            "kind": "feature",
            "name": "my_gap",
            "file": "mine.py",
            "sha256": plugin.sha256,
            "covers": "file",
        }
    ]
    plugins.require(records, owner="it")
    plugins.require(None, owner="it")


@pytest.mark.refusal
def test_an_artifact_without_its_plug_in_says_which_file_to_bring(tmp_path):
    path = written(tmp_path)
    with plugins.scope():
        plugins.load([path])
        records = plugins.used([("feature", "my_gap")])
    with pytest.raises(ArtifactError) as caught:
        plugins.require(records, owner="the agent in x")
    assert caught.value.code == "plugin-missing"
    assert "the agent in x needs the feature `my_gap` of the plug-in `mine.py`" in str(caught.value)
    assert "`--plugin mine.py`" in str(caught.value)
    plugins.require(records, owner="the agent in x", kinds=("network",))
    plugins.load([path])
    plugins.require(records, owner="the agent in x")


@pytest.mark.refusal
def test_a_plug_in_with_another_hash_is_refused_and_both_hashes_are_named(tmp_path):
    path = written(tmp_path)
    with plugins.scope():
        (old,) = plugins.load([path])
        records = plugins.used([("feature", "my_gap")])
    path.write_text(path.read_text().replace("[1:] -", "[1:] +"))
    (new,) = plugins.load([path])
    with pytest.raises(ArtifactError) as caught:
        plugins.require(records, owner="the agent in x")
    assert caught.value.code == "plugin-mismatch"
    assert f"SHA-256 {old.sha256[:12]}; found a source of SHA-256 {new.sha256[:12]}" in str(
        caught.value
    )


def test_what_a_script_defines_is_bound_by_its_own_source():
    @feature(name="script_gap", lookback=2)
    def script_gap(bars):
        return bars["close"][1:] - bars["close"][:-1]

    (record,) = plugins.used([("feature", "script_gap")])
    assert (record["covers"], record["file"]) == ("definition", "test_plugins.py")
    plugins.require([record], owner="it")
    REGISTRY.forget("script_gap")

    @feature(name="script_gap", lookback=2)
    def another_gap(bars):
        return bars["close"][1:] + bars["close"][:-1]

    with pytest.raises(ArtifactError) as caught:
        plugins.require([record], owner="it")
    assert caught.value.code == "plugin-mismatch"


@pytest.mark.refusal
@pytest.mark.parametrize(
    "records",
    ["x", [1], [{"kind": "feature"}], [{**dict.fromkeys(("name", "file", "sha256"), "x"),
     "kind": "virus", "covers": "file"}], {"kind": "feature"}],
)  # fmt: skip
def test_entries_that_are_none_are_refused(records):
    with pytest.raises(ArtifactError) as caught:
        plugins.require(records, owner="it")
    assert caught.value.code == "artifact-document"


def test_a_process_that_is_started_gets_the_source_and_not_the_path(tmp_path):
    path = written(tmp_path)
    with plugins.scope():
        (plugin,) = plugins.load([path])
        sent = plugins.carried()
    path.write_text("raise RuntimeError('the file of the disk ran')")
    plugins.restore(sent)
    assert plugins.loaded() == (plugin,)
    assert "my_gap" in REGISTRY
    plugins.restore(sent)
    assert plugins.loaded() == (plugin,)


@pytest.mark.refusal
def test_a_module_that_differs_in_a_worker_is_refused(tmp_path, monkeypatch):
    written(tmp_path, "my_worker_module.py", feature_name="worker_gap")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        with plugins.scope():
            plugins.load(["my_worker_module"])
            (sent,) = plugins.carried()
        assert sent.source is None
        sys.modules.pop("my_worker_module")
        with pytest.raises(ConfigError) as caught:
            plugins.restore([sent._replace(sha256="0" * 64)])
        assert caught.value.code == "plugin-mismatch"
    finally:
        sys.modules.pop("my_worker_module", None)


@pytest.mark.refusal
def test_an_unknown_name_says_how_to_bring_it():
    with pytest.raises(ChoiceError, match=r"`--plugin FILE\.py`"):
        REGISTRY.get("zzzzzz")
