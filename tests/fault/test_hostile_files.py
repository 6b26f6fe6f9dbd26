"""Loading runs no code, follows no link, waits for nobody and takes no more memory than needed."""

import pickle
import resource
import signal

import pytest

from fault.hostile import HOSTILE, PAYLOADS, pickled
from fault.sample import assert_whole, contents, prepared
from stormsail.core.config import Config
from stormsail.core.errors import ArtifactError, ConfigError
from stormsail.core.files.artifact import read_artifact, write_artifact


@pytest.fixture
def _no_longer_than_ten_seconds():
    def too_long(_signal, _frame):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_the_canary_is_live(tmp_path):
    canary = tmp_path / "canary"
    pickle.loads(pickled(canary))  # noqa: S301  proves that the payload would do harm
    assert canary.is_dir()


def test_there_are_enough_of_them():
    assert len(HOSTILE) == 70


@pytest.mark.usefixtures("_no_longer_than_ten_seconds")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_artifact_is_refused_and_does_nothing(name, tmp_path):
    canary = tmp_path / "canary"
    folder = tmp_path / "artifact"
    write_artifact(folder, kind="agent", contents=contents(1))
    HOSTILE[name](folder, canary)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ArtifactError):
        read_artifact(folder)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 128 * 1024  # KiB
    assert not canary.exists()
    assert not list(tmp_path.glob("**/canary*"))


@pytest.mark.usefixtures("_no_longer_than_ten_seconds")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_generation_is_passed_over(name, tmp_path):
    canary = tmp_path / "canary"
    generations = prepared(tmp_path / "runs", [1, 2])
    HOSTILE[name](generations.root / f"{2:012d}", canary)
    latest = generations.load_latest()
    assert latest.step == 1
    assert_whole(latest.artifact, 1)
    assert len(latest.skipped) == 1
    assert not canary.exists()


@pytest.mark.parametrize("make", PAYLOADS)
def test_bytes_are_handed_over_unread(make, tmp_path):
    canary = tmp_path / "canary"
    good = contents(1)
    blobs = {"config.pkl": make(canary)}
    write_artifact(tmp_path / "a", kind="agent", contents=type(good)(blobs=blobs))
    assert read_artifact(tmp_path / "a").blobs == blobs
    assert not canary.exists()


class _Settings(Config):
    name: str = "x"


@pytest.mark.parametrize("make", PAYLOADS)
def test_a_hostile_configuration_is_refused_and_does_nothing(make, tmp_path):
    canary = tmp_path / "canary"
    path = tmp_path / "config.toml"
    path.write_bytes(make(canary))
    with pytest.raises(ConfigError):
        _Settings.load(path)
    assert not canary.exists()


@pytest.mark.parametrize(
    "text",
    [
        '__import__("os").mkdir("canary")',
        "!!python/object/apply:os.mkdir [canary]",
        "${oc.env:HOME}",
        "$(touch canary)",
    ],
)
def test_a_hostile_override_is_text_and_nothing_else(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "config.toml"
    path.write_text("")
    assert _Settings.load(path, [f"name={text}"]).name == text
    assert sorted(tmp_path.iterdir()) == [path]
