"""`stormsail` and `python -m stormsail`: the command line as a process of its own."""

import signal
import sys


def main() -> None:
    """Run the command line.

    Ctrl-C ends the process without a traceback also while the command line is imported, and while
    the interpreter ends. The working directory can be imported from, as `python -m` has it, so that
    `gym:<module>:<id>` finds a module that lies there.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if not sys.flags.safe_path and "" not in sys.path:
        sys.path.append("")
    from stormsail.cli.main import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run()
    except KeyboardInterrupt:  # in the moment before the command line waits for it
        sys.exit(128 + signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
