"""`python -m stormsail` is the command line."""

import signal


def main() -> None:
    """Run the command line; while it is imported, Ctrl-C ends the process without a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from stormsail.cli.main import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
