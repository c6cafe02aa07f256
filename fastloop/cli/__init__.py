"""What `python -m fastloop COMMAND` runs; the top floor."""
