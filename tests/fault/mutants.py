"""Seeded damage to a real artifact."""

import random
from collections.abc import Callable
from pathlib import Path

Mutation = Callable[[Path, random.Random], None]


def _file(folder: Path, chance: random.Random) -> Path:
    return chance.choice(sorted(folder.iterdir()))


def flip_a_bit(folder: Path, chance: random.Random) -> None:
    path = _file(folder, chance)
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def cut_short(folder: Path, chance: random.Random) -> None:
    path = _file(folder, chance)
    data = path.read_bytes()
    path.write_bytes(data[: chance.randrange(len(data))])


def append(folder: Path, chance: random.Random) -> None:
    path = _file(folder, chance)
    path.write_bytes(path.read_bytes() + chance.randbytes(chance.randint(1, 9)))


def zero_a_page(folder: Path, chance: random.Random) -> None:
    path = _file(folder, chance)
    data = bytearray(path.read_bytes())
    start = chance.randrange(0, len(data), 4096)
    data[start : start + 4096] = bytes(len(data[start : start + 4096]))
    path.write_bytes(data)


def repeat_a_block(folder: Path, chance: random.Random) -> None:
    """A block written to the wrong place."""
    path = _file(folder, chance)
    data = bytearray(path.read_bytes())
    size = min(512, len(data) // 2)
    source, target = chance.randrange(len(data) - size), chance.randrange(len(data) - size)
    data[target : target + size] = data[source : source + size]
    path.write_bytes(data)


def swap_two_files(folder: Path, chance: random.Random) -> None:
    first, second = chance.sample(sorted(folder.iterdir()), 2)
    first_bytes, second_bytes = first.read_bytes(), second.read_bytes()
    first.write_bytes(second_bytes)
    second.write_bytes(first_bytes)


def lose_a_file(folder: Path, chance: random.Random) -> None:
    _file(folder, chance).unlink()


def empty_a_file(folder: Path, chance: random.Random) -> None:
    _file(folder, chance).write_bytes(b"")


def add_a_file(folder: Path, chance: random.Random) -> None:
    names = ["extra.json", "extra.safetensors", ".hidden", "model.safetensors~", "x" * 200]
    (folder / chance.choice(names)).write_bytes(chance.randbytes(20))


def add_a_folder(folder: Path, chance: random.Random) -> None:
    (folder / chance.choice(["extra", "model"])).mkdir()


def rename_a_file(folder: Path, chance: random.Random) -> None:
    path = _file(folder, chance)
    path.rename(path.with_name("other-" + path.name))


def link_instead_of_file(folder: Path, chance: random.Random) -> None:
    """The very same bytes, but behind a symbolic link."""
    path = _file(folder, chance)
    elsewhere = folder.parent / f"{folder.name}-{path.name}"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


MUTATIONS: tuple[tuple[Mutation, int], ...] = (
    (flip_a_bit, 300),
    (cut_short, 80),
    (append, 40),
    (zero_a_page, 30),
    (repeat_a_block, 40),
    (swap_two_files, 30),
    (lose_a_file, 10),
    (empty_a_file, 10),
    (add_a_file, 10),
    (add_a_folder, 4),
    (rename_a_file, 10),
    (link_instead_of_file, 10),
)
"""How to damage, and how often on every change; in all 574."""
