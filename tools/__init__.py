"""Commands for this repository, which are not part of the package: `python -m tools.pages`."""
