"""The command line in a process of its own: fresh, or forked from one that has imported it."""

import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import IO

from stormsail.cli.main import main

SILENT = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)
"""What a fresh interpreter does not show."""


def fresh(
    *arguments: object, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `stormsail` as a shell does, with other variables of the environment where given."""
    return subprocess.run(
        [sys.executable, "-m", "stormsail", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
    )


def forked(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `stormsail` in a fork of this process, which spares it seconds of imports."""
    words = [str(word) for word in arguments]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads
            child = os.fork()
        if child == 0:
            _run(words, out, err, cwd)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(words, code, out.read(), err.read())


def _run(words: list[str], out: IO[str], err: IO[str], cwd: Path | None) -> None:
    """Run a command in the child and end it; never return into the tests."""
    code = 1
    try:
        os.chdir(cwd or ".")
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        sys.argv, sys.stdout, sys.stderr = ["stormsail", *words], out, err
        warnings.resetwarnings()
        for kind in SILENT:
            warnings.simplefilter("ignore", kind)
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - shown as a fresh interpreter would, which ends too
        sys.excepthook(*sys.exc_info())
    finally:
        out.flush()
        err.flush()
        os._exit(code)
