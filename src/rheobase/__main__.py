"""The command line as a module: `python -m rheobase`, and under torchrun `torchrun … -m rheobase`."""

from rheobase.cli import main

if __name__ == "__main__":
    main()
