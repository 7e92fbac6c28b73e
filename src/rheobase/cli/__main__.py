"""The command line as a module: `python -m rheobase.cli`, and under torchrun `torchrun … -m rheobase.cli`."""

from rheobase.cli import main

if __name__ == "__main__":
    main()
