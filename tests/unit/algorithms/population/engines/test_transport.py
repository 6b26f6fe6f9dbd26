"""Folders as bytes: exactly what was sent arrives, or nothing; a cut-off arrival loses nothing."""

import os
import random
import shutil
from pathlib import Path

import pytest

from population_jobs import image
from stormsail.algorithms.population.engines import transport
from stormsail.algorithms.population.engines.transport import (
    ARRIVALS,
    install,
    pack_folders,
    restore,
    unpack_folders,
)
from stormsail.core.errors import ArtifactError

NAME = "members/03"


def made(root, words):
    """Make a member's folder with all kinds of content."""
    folder = root / NAME
    (folder / "checkpoints" / "empty").mkdir(parents=True)
    (folder / "state.bin").write_bytes(random.Random(words).randbytes(200_003))
    (folder / "none").touch()
    (folder / "checkpoints" / "zeros").write_bytes(bytes(20_480))
    (folder / "words é.txt").write_text(words)
    (folder / "tool").write_text("exit 0\n")
    (folder / "tool").chmod(0o755)
    return folder


def test_a_folder_arrives_byte_for_byte(tmp_path):
    made(tmp_path / "here", "first")
    (tmp_path / "here" / "config.toml").write_text("a = 1\n")
    (tmp_path / "there").mkdir()
    names = ["config.toml", NAME, "missing"]
    unpack_folders(pack_folders(tmp_path / "here", names), tmp_path / "there")
    assert image(tmp_path / "there") == image(tmp_path / "here")
    assert len(image(tmp_path / "there")) == 10


def test_only_what_is_named_travels(tmp_path):
    made(tmp_path / "here", "first")
    (tmp_path / "here" / "members" / "04").mkdir()
    (tmp_path / "there").mkdir()
    unpack_folders(pack_folders(tmp_path / "here", [NAME]), tmp_path / "there")
    assert [path.name for path in (tmp_path / "there" / "members").iterdir()] == ["03"]


def test_equal_folders_have_equal_bytes_whenever_they_were_written(tmp_path):
    for place in ("a", "b"):
        made(tmp_path / place, "first")
    os.utime(tmp_path / "b" / NAME / "none", (1, 1))
    assert pack_folders(tmp_path / "a", [NAME]) == pack_folders(tmp_path / "b", [NAME])


@pytest.mark.refusal
@pytest.mark.parametrize("cut", ["end", "middle", "changed"])
def test_bytes_that_are_not_those_that_were_sent_are_refused(cut, tmp_path):
    made(tmp_path / "here", "first")
    data = pack_folders(tmp_path / "here", [NAME])
    # A tar file ends with zeros: without the digest nobody would miss the last of them.
    damaged = {
        "end": data[:-512],
        "middle": data[:1000] + data[1512:],
        "changed": data[:5000] + bytes([data[5000] ^ 1]) + data[5001:],
    }[cut]
    (tmp_path / "there").mkdir()
    with pytest.raises(ArtifactError, match="a folder must arrive as it was sent") as caught:
        unpack_folders(damaged, tmp_path / "there")
    assert caught.value.code == "artifact-corrupt"
    assert image(tmp_path / "there") == {}


@pytest.mark.refusal
def test_links_do_not_travel(tmp_path):
    folder = made(tmp_path, "first")
    (folder / "link").symlink_to("state.bin")
    with pytest.raises(ArtifactError, match="must be a file or a folder to be sent") as caught:
        pack_folders(tmp_path, [NAME])
    assert caught.value.code == "artifact-files"


@pytest.mark.parametrize("known", [True, False])
def test_a_folder_that_comes_home_replaces_the_old_one(known, tmp_path):
    made(tmp_path / "there", "second")
    if known:
        old = made(tmp_path / "home", "first")
        (old / "goes").touch()
    install(pack_folders(tmp_path / "there", [NAME]), tmp_path / "home", NAME)
    assert image(tmp_path / "home") == image(tmp_path / "there")


class KilledError(Exception):
    """The driver was killed."""


@pytest.mark.parametrize("rename", [0, 1, 2])
def test_a_driver_killed_at_any_rename_has_the_old_folder_or_the_new_one(
    rename, tmp_path, monkeypatch
):
    made(tmp_path / "home", "first")
    made(tmp_path / "there", "second")
    old, new = image(tmp_path / "home" / NAME), image(tmp_path / "there" / NAME)
    done = []
    real = Path.rename

    def killed(self, target):
        if len(done) == rename:
            raise KilledError
        done.append(target)
        return real(self, target)

    data = pack_folders(tmp_path / "there", [NAME])
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        if rename == 2:  # both are done, and what is left is to be removed
            patch.setattr(transport, "shutil", None)
        with pytest.raises((KilledError, AttributeError)):
            install(data, tmp_path / "home", NAME)
    assert (tmp_path / "home" / ARRIVALS).exists()
    restore(tmp_path / "home")
    assert image(tmp_path / "home" / NAME) == (old if rename < 2 else new)
    assert sorted(path.name for path in (tmp_path / "home").iterdir()) == ["members"]
    restore(tmp_path / "home")  # nothing to do
    assert image(tmp_path / "home" / NAME) == (old if rename < 2 else new)


def test_what_a_killed_arrival_has_left_does_not_get_into_the_next(tmp_path):
    made(tmp_path / "there", "second")
    rest = tmp_path / "home" / ARRIVALS / "new" / NAME
    rest.mkdir(parents=True)
    (rest / "stray").touch()
    install(pack_folders(tmp_path / "there", [NAME]), tmp_path / "home", NAME)
    assert image(tmp_path / "home") == image(tmp_path / "there")
    shutil.rmtree(tmp_path / "home")
