"""`python -m stormsail` is the command line."""

from stormsail.cli.main import main

if __name__ == "__main__":
    main()
