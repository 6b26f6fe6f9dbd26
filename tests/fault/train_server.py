"""Children that write one checkpoint each, for a tracer that kills them at a call of its choice.

`python -m fault.train_server RUN CALL LIMIT` takes up the run, does an update without saving it,
and answers each number k on its input with the wait status of a child that wrote the checkpoint.
The child first makes LIMIT - k calls of that name that do nothing, so that a tracer which kills at
call LIMIT kills at the k-th call of the checkpoint itself. Torch is imported once, not once a kill.
"""

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

from stormsail.algorithms.run.folder import open_run, read_config
from stormsail.algorithms.run.tasks import binding
from stormsail.algorithms.trainer import Trainer

BURN: dict[str, Callable[[int], object]] = {
    "fsync": os.fsync,
    "mkdirat": lambda folder: os.mkdir("", dir_fd=folder),
    "renameat": lambda folder: os.rename("", "", src_dir_fd=folder, dst_dir_fd=folder),
    "unlinkat": lambda folder: os.unlink("", dir_fd=folder),
    "write": lambda folder: os.write(folder, b""),
}
"""A call of each name that changes nothing, whether it is refused or not."""


def main(out: Path, call: str, limit: int) -> None:
    config = read_config(out)
    bound = binding(config)
    with open_run(out, config, bound) as folder:
        trainer = Trainer(folder, bound)
        real, trainer.save = trainer.save, lambda: None
        trainer.advance()
        trainer.save = real
        _answer(0)
        for line in sys.stdin.buffer:
            child = os.fork()
            if child == 0:
                _write(trainer, out, call, limit - int(line))
            _answer(os.waitpid(child, 0)[1])


def _answer(status: int) -> None:
    os.write(1, f"{status}\n".encode())


def _write(trainer: Trainer, out: Path, call: str, burnt: int) -> None:
    status = 1
    try:
        folder = os.open(out, os.O_RDONLY)
        for _ in range(burnt):
            with contextlib.suppress(OSError):
                BURN[call](folder)
        trainer.save()
        status = 0
    finally:
        os._exit(status)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
