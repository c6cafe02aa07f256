"""The commands that `python -m fastloop COMMAND` runs: the top floor of the package."""
