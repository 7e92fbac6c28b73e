"""The command line as `python -m rheobase`."""

from rheobase.cli import main

if __name__ == "__main__":
    main()
