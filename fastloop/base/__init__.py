"""Helpers that know neither loaders nor steps: arguments, nested batches, interrupts, threads."""
